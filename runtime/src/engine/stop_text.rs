//! Stop strings: where the text of an answer ends although the model went on.
//!
//! Text that may be the beginning of a stop string is held back until it is known not to be. What is
//! handed out keeps the tag of the token it came from; a token whose text is held back waits, too, so
//! tokens come out in their order.

use std::collections::VecDeque;

/// Finds stop strings in text that comes in pieces.
#[derive(Debug)]
pub(super) struct StopText {
    stops: Vec<String>,
    /// The text that is held back.
    text: String,
    /// The tokens it came from.
    parts: VecDeque<Part>,
}

#[derive(Debug)]
struct Part {
    tag: usize,
    bytes: usize,
    begun: bool,
}

/// Text of one token, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Out {
    pub(super) tag: usize,
    pub(super) text: String,
    /// Whether nothing of this token was handed out before.
    pub(super) first: bool,
}

impl StopText {
    /// `stops`: none of them empty.
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self { stops, text: String::new(), parts: VecDeque::new() }
    }

    /// Takes in the text of the token `tag`; appends to `out` what is safe to show. Says whether a
    /// stop string is complete: then the text ends before it, and what follows is dropped.
    pub(super) fn push(&mut self, tag: usize, text: &str, out: &mut Vec<Out>) -> bool {
        self.text.push_str(text);
        self.parts.push_back(Part { tag, bytes: text.len(), begun: false });
        // Of several, the one that begins first: its beginning is where the text ends.
        if let Some(at) = self.stops.iter().filter_map(|stop| self.text.find(stop)).min() {
            self.release(at, out);
            self.text.clear();
            self.parts.clear();
            return true;
        }
        let held = self.text.char_indices().map(|(at, _)| at).find(|at| {
            let tail = &self.text[*at..];
            self.stops.iter().any(|stop| stop.starts_with(tail))
        });
        self.release(held.unwrap_or(self.text.len()), out);
        false
    }

    /// The text ends: what was held back is no stop string.
    pub(super) fn finish(&mut self, out: &mut Vec<Out>) {
        self.release(self.text.len(), out);
    }

    /// Hands out the first `bytes` bytes.
    fn release(&mut self, mut bytes: usize, out: &mut Vec<Out>) {
        let mut at = 0;
        while let Some(part) = self.parts.front_mut() {
            if part.bytes > bytes {
                if bytes > 0 {
                    let text = self.text[at..at + bytes].to_owned();
                    out.push(Out { tag: part.tag, text, first: !part.begun });
                    part.begun = true;
                    part.bytes -= bytes;
                    at += bytes;
                }
                break;
            }
            let text = self.text[at..at + part.bytes].to_owned();
            out.push(Out { tag: part.tag, text, first: !part.begun });
            at += part.bytes;
            bytes -= part.bytes;
            self.parts.pop_front();
        }
        self.text.drain(..at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<Out>, bool) {
        let mut found = StopText::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut out = Vec::new();
        for (tag, piece) in pieces.iter().enumerate() {
            if found.push(tag, piece, &mut out) {
                return (out, true);
            }
        }
        found.finish(&mut out);
        (out, false)
    }

    fn text(out: &[Out]) -> String {
        out.iter().map(|o| o.text.as_str()).collect()
    }

    #[test]
    fn text_ends_before_the_first_stop_string() {
        let (out, hit) = run(&["END", "ND ×"], &["a", "bE", "N", "", "D × c"]);
        assert!(hit);
        assert_eq!(text(&out), "ab");
        assert_eq!(out.iter().map(|o| o.tag).collect::<Vec<_>>(), [0, 1]);
        // The earlier beginning wins, though the other string was complete first.
        assert_eq!(text(&run(&["xyzw", "yz"], &["axyz"]).0), "ax");
    }

    #[test]
    fn what_only_looked_like_one_is_not_lost() {
        let (out, hit) = run(&["END"], &["E", "", "N", "E", "N"]);
        assert!(!hit);
        assert_eq!(text(&out), "ENEN");
        assert_eq!(
            out.iter().filter(|o| o.first).map(|o| o.tag).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4]
        );
        // Text in parts names its token each time, and says where it begins.
        let (out, _) = run(&["bx"], &["ab", "c"]);
        let first: Vec<_> = out.iter().map(|o| (o.tag, o.text.as_str(), o.first)).collect();
        assert_eq!(first, [(0, "a", true), (0, "b", false), (1, "c", true)]);
    }

    proptest! {
        /// Against searching the whole text at once.
        #[test]
        fn as_a_search_of_the_whole_text(
            pieces in prop::collection::vec("[abé]{0,3}", 0..12),
            stops in prop::collection::vec("[abé]{1,4}", 0..3),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (out, hit) = run(&stops, &pieces);
            // The stop is found as soon as a piece completes one; the earliest of those counts.
            let mut whole = String::new();
            let mut expected = None;
            for piece in &pieces {
                whole.push_str(piece);
                if let Some(at) = stops.iter().filter_map(|s| whole.find(s)).min() {
                    expected = Some(whole[..at].to_owned());
                    break;
                }
            }
            prop_assert_eq!(hit, expected.is_some());
            prop_assert_eq!(text(&out), expected.unwrap_or(whole));
            let tags: Vec<usize> = out.iter().filter(|o| o.first).map(|o| o.tag).collect();
            prop_assert!(tags.iter().enumerate().all(|(i, tag)| i == *tag));
        }
    }
}
