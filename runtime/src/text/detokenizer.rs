//! Ids to text, one id at a time.
//!
//! A token may end inside a character. What is handed out is always whole: up to three bytes that
//! begin a character wait for the next token. The concatenation of everything handed out is the text
//! that [`Tokenizer::decode`] gives for all ids at once, U+FFFD for U+FFFD.

use super::tokenizer::Tokenizer;
use crate::Error;

/// Whether the text of control tokens (type 3, such as `<|im_end|>`) is part of the output.
/// User-defined ones (type 4, such as `<think>`) always are, and padding never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controls {
    /// They have no text.
    Hidden,
    /// They are written out.
    Shown,
}

/// Decodes a stream of ids; made by [`Tokenizer::detokenizer`].
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    controls: Controls,
    /// The beginning of a character: empty, or 1 to 3 bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    pub(super) fn new(tokenizer: Tokenizer, controls: Controls) -> Self {
        Self { tokenizer, controls, pending: Vec::new() }
    }

    /// Takes the next id and returns the text that is complete now; it may be empty. The cost is that
    /// of the token's own bytes.
    ///
    /// # Errors
    /// [`Error::TokenId`] for an id outside the vocabulary; the state is as before.
    pub fn push(&mut self, id: u32) -> Result<String, Error> {
        self.pending.extend(self.tokenizer.bytes(id, self.controls)?);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (valid, after) = rest.split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    // Without a length, the bytes may yet become a character.
                    let Some(len) = e.error_len() else {
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[len..];
                }
            }
        }
        self.pending = rest.to_vec();
        Ok(text)
    }

    /// Ends the stream: a character that was begun and never finished is one U+FFFD.
    #[must_use]
    pub fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}
