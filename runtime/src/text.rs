//! Text to token ids and back, the ids that end it, and how a model wants to be sampled.

mod byte_alphabet;
mod detokenizer;
mod json_file;
mod sampling;
mod split;
mod stops;
mod tokenizer;
mod vocabulary;

pub use detokenizer::{Controls, Detokenizer};
pub use json_file::JsonFile;
pub use sampling::SamplingDefaults;
pub use stops::{StopSources, stop_set};
pub use tokenizer::Tokenizer;

#[cfg(test)]
mod tests;
