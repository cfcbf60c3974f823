//! Text that waits until it is known what it is, and still knows who wrote which part.

use std::collections::VecDeque;

use runtime::engine::Origin;

/// Text of one origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) text: String,
    pub(crate) from: Origin,
}

/// A queue of text.
#[derive(Debug, Default)]
pub(crate) struct Tagged {
    text: String,
    parts: VecDeque<(usize, Origin)>,
}

impl Tagged {
    pub(crate) fn push(&mut self, text: &str, from: Origin) {
        if !text.is_empty() {
            self.text.push_str(text);
            self.parts.push_back((text.len(), from));
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Takes the first `bytes` bytes out; they end at a character's border.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<Part> {
        let mut out = Vec::new();
        let mut at = 0;
        while at < bytes {
            let Some((len, from)) = self.parts.front_mut() else { break };
            let n = (*len).min(bytes - at);
            out.push(Part { text: self.text[at..at + n].to_owned(), from: *from });
            at += n;
            *len -= n;
            if *len == 0 {
                self.parts.pop_front();
            }
        }
        self.text.drain(..at);
        out
    }

    /// Drops the first `bytes` bytes.
    pub(crate) fn skip(&mut self, bytes: usize) {
        let _ = self.take(bytes);
    }

    /// Drops white space at the beginning.
    pub(crate) fn trim_start(&mut self) {
        let trimmed = self.text.trim_start().len();
        self.skip(self.text.len() - trimmed);
    }
}

/// Bytes at the end of `text` that may be the beginning of `marker`; not the whole of it.
pub(crate) fn begun(text: &str, marker: &str) -> usize {
    let longest = marker.len().saturating_sub(1).min(text.len());
    let is_begun = |n: &usize| {
        text.is_char_boundary(text.len() - n) && marker.starts_with(&text[text.len() - n..])
    };
    (1..=longest).rev().find(is_begun).unwrap_or(0)
}
