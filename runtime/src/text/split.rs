//! The pre-tokenizer `qwen35`: where text is cut before pairs of bytes are merged.
//!
//! The pattern, as tokenizer.json files and llama.cpp have it:
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*
//! |\s*[\r\n]+|\s+(?!\S)|\s+
//! ```
//!
//! Digits stand alone, marks travel with letters. The look-ahead is done by hand: a run of whitespace
//! in front of something else gives its last character back. So one linear pass of a plain automaton
//! is enough. A backtracking engine has limits on its steps and its stack, and the `tokenizers` library
//! takes an engine that gives up (in a run of a million spaces, say) for the end of all matches; so its
//! pipeline is not used.

use std::sync::LazyLock;

use regex::Regex;

static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"|\p{N}",
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        r"|\s*[\r\n]+",
        r"|\s+",
    ))
    .expect("the pattern is a constant")
});

/// The pieces of `text`, in order and without gaps.
pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        // Every character begins some alternative, so a match begins at the front.
        let end = PATTERN.find(rest).map_or(rest.len(), |found| piece_end(rest, found.end()));
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}

/// Where the piece ends that was matched up to `end`.
fn piece_end(text: &str, end: usize) -> usize {
    let (matched, after) = text.split_at(end);
    let mut chars = matched.chars();
    match chars.next_back() {
        // More than one whitespace character, no line end among them, and something follows.
        Some(last)
            if !after.is_empty()
                && !chars.as_str().is_empty()
                && !matches!(last, '\r' | '\n')
                && matched.chars().all(char::is_whitespace) =>
        {
            end - last.len_utf8()
        }
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::tokenizer::pattern::Pattern;
    use tokenizers::utils::SysRegex;

    use super::*;

    /// The pattern as it stands in a tokenizer.json, look-ahead included.
    const ORIGINAL: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn pieces(text: &str) -> Vec<&str> {
        split(text).collect()
    }

    #[test]
    fn hand_cases() {
        assert_eq!(pieces("it's 2024"), ["it", "'s", " ", "2", "0", "2", "4"]);
        assert_eq!(pieces("IT'LL can't"), ["IT", "'LL", " can", "'t"]);
        assert_eq!(pieces("a  b"), ["a", " ", " b"]);
        assert_eq!(pieces("a    1"), ["a", "   ", " ", "1"]);
        assert_eq!(pieces("a \t "), ["a", " \t "]);
        assert_eq!(pieces("a  \n  b"), ["a", "  \n", " ", " b"]);
        assert_eq!(pieces("x!\r\n\r\ny"), ["x", "!\r\n\r\n", "y"]);
        assert_eq!(pieces("e\u{301}\u{20dd}t"), ["e\u{301}\u{20dd}t"]);
        assert_eq!(pieces(" \u{301}a"), [" \u{301}a"]);
        assert_eq!(pieces("\u{3000}\u{3000}語"), ["\u{3000}", "\u{3000}語"]);
        assert_eq!(pieces("²½Ⅷ"), ["²", "½", "Ⅷ"]);
        assert_eq!(pieces(""), [""; 0]);
    }

    #[test]
    fn a_long_run_of_spaces_takes_no_time() {
        let text = format!("{}x", " ".repeat(3_000_000));
        assert_eq!(pieces(&text).iter().map(|p| p.len()).collect::<Vec<_>>(), [2_999_999, 2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn pieces_are_those_of_the_original_pattern(
            text in prop_oneof!["[a-zA-Z'ſ0-9 \t\r\n\u{a0}\u{85}\u{2028}.,<|>e\u{301}語🦀]{0,40}", ".{0,30}", "(?s).{0,30}"],
        ) {
            let original = SysRegex::new(ORIGINAL).unwrap();
            let spans = (&original).find_matches(&text).unwrap();
            let expected: Vec<_> =
                spans.iter().map(|((a, b), _)| &text[*a..*b]).filter(|p| !p.is_empty()).collect();
            prop_assert_eq!(pieces(&text), expected);
        }
    }
}
