//! Text to token ids and back: the tokenizer of a target, its chat template, its stop tokens.
//!
//! # Text of callers cannot become a control token
//!
//! A vocabulary has tokens that are no text: `<|im_end|>` ends a turn, `<think>` opens the reasoning.
//! If someone writes those characters in a message, they are characters. [`Tokenizer::encode`] never
//! recognises such tokens. A chat template is harder, because it mixes both kinds into one string:
//!
//! 1. Every special token that stands in the *template's* source, in its text or in a string of an
//!    expression, is replaced by one private-use character, its mark. Strings the template only
//!    compares with (`'</think>' in content`, `content.split('</think>')`) stay as they are.
//! 2. Private-use characters of that range in the conversation are escaped, so a mark in the rendered
//!    string comes from the template, whatever the template does with the text of callers.
//! 3. The template as it was written is rendered too, with the conversation as it was given. Both
//!    results must be the same string once the marks are written out; otherwise it is an error.
//!
//! So the text is byte for byte what the template yields anywhere else, and [`Rendered`] knows which
//! parts of it are tokens. A token that is pieced together, by the template (`'<|' + 'im_end|>'`) or
//! across the border of a message, is not marked; it stays text, and is refused where the conversation
//! has no such string of its own that would explain it.

mod byte_alphabet;
mod chat;
mod detokenizer;
mod jinja_words;
mod json_file;
mod marks;
mod python;
mod sampling;
mod split;
mod stops;
mod template;
mod tokenizer;
mod vocabulary;

pub use chat::{Chat, Message, Rendered};
pub use detokenizer::{Controls, Detokenizer};
pub use json_file::JsonFile;
pub use sampling::SamplingDefaults;
pub use stops::{StopSources, stop_set};
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;

#[cfg(test)]
mod tests;
