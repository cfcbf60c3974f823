//! Text to token ids and back.

mod byte_alphabet;
mod detokenizer;
mod json_file;
mod split;
mod tokenizer;
mod vocabulary;

pub use detokenizer::{Controls, Detokenizer};
pub use json_file::JsonFile;
pub use tokenizer::Tokenizer;

#[cfg(test)]
mod tests;
