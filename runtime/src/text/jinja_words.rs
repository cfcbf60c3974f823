//! The words of a Jinja template, as far as it takes to tell its strings apart.
//!
//! The source is cut into text, comments, raw blocks and expressions as Jinja does it, and expressions
//! into words, strings and signs. A string is *compared* next to `in`, `==` or `!=`, as an argument of
//! a test, or of a method or filter that searches. Otherwise it may be written into the prompt.

use std::ops::Range;

pub(super) enum Tag {
    Comment,
    /// With what closes it.
    Expression(&'static str),
}

pub(super) fn find(source: &str, from: usize, what: &str) -> Option<usize> {
    source[from..].find(what).map(|at| from + at)
}

/// The next tag at or after `from`.
pub(super) fn next_tag(source: &str, from: usize) -> Option<(usize, Tag)> {
    let bytes = source.as_bytes();
    (from..bytes.len().saturating_sub(1)).filter(|at| bytes[*at] == b'{').find_map(|at| {
        let tag = match bytes[at + 1] {
            b'#' => Tag::Comment,
            b'%' => Tag::Expression("%}"),
            b'{' => Tag::Expression("}}"),
            _ => return None,
        };
        Some((at, tag))
    })
}

/// Where the content of a raw block ends that begins at `from`, and where its closing tag ends.
pub(super) fn end_of_raw(source: &str, from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let open = find(source, at, "{%")?;
        let tag = source[open + 2..].trim_start_matches(['-', '+']).trim_start();
        if tag.starts_with("endraw") {
            return find(source, open, "%}").map(|close| (open, close + 2));
        }
        at = open + 2;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WordKind {
    String,
    Name,
    Sign,
}

/// A part of an expression.
pub(super) struct Word {
    pub(super) range: Range<usize>,
    kind: WordKind,
}

/// The words of the expression that begins at `from`, and where its tag ends.
pub(super) fn lex(source: &str, from: usize, close: &str) -> (Vec<Word>, usize) {
    let bytes = source.as_bytes();
    let (mut words, mut at, mut depth) = (Vec::new(), from, 0_usize);
    while at < bytes.len() {
        if depth == 0 && source[at..].starts_with(close) {
            return (words, at + close.len());
        }
        let begin = at;
        let byte = bytes[at];
        let kind = match byte {
            _ if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'\'' | b'"' => {
                at = end_of_string(bytes, at);
                WordKind::String
            }
            _ if is_name(byte) => {
                while bytes.get(at).is_some_and(|byte| is_name(*byte)) {
                    at += 1;
                }
                WordKind::Name
            }
            _ => {
                match byte {
                    b'(' | b'[' | b'{' => depth += 1,
                    b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                at += if matches!(&bytes[at..], [b'=' | b'!', b'=', ..]) { 2 } else { 1 };
                WordKind::Sign
            }
        };
        words.push(Word { range: begin..at, kind });
    }
    (words, at)
}

/// Letters of other scripts count as names; so every border between words is one of characters.
fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// The place behind the string that begins at `at`.
fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let mut at = at + 1;
    while let Some(byte) = bytes.get(at) {
        at += match byte {
            b'\\' => 2,
            byte if *byte == quote => return at + 1,
            _ => 1,
        };
    }
    bytes.len()
}

/// Methods whose string arguments are looked for in a text.
const SEARCHING_METHODS: [&str; 15] = [
    "count",
    "endswith",
    "find",
    "index",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "rfind",
    "rindex",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "startswith",
];

/// What an opening bracket says of the strings inside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Written,
    Compared,
    /// Arguments of `replace`: the first is looked for, the second written.
    FirstCompared,
}

/// Strings that may be written into the prompt, in the order of the source.
pub(super) fn written_strings(source: &str, words: &[Word]) -> Vec<Range<usize>> {
    let text = |at: Option<usize>| {
        let word = at.and_then(|at| words.get(at))?;
        (word.kind != WordKind::String).then(|| &source[word.range.clone()])
    };
    let mut frames: Vec<(Use, usize)> = Vec::new();
    let mut n_in = 0;
    let mut written = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let before = |n: usize| text(at.checked_sub(n));
        // Of `for x in y`, y is no haystack.
        let is_haystack = || {
            let first = words.iter().find(|w| !matches!(&source[w.range.clone()], "-" | "+"));
            let in_for = first.is_some_and(|w| &source[w.range.clone()] == "for");
            before(1) == Some("in") && !(in_for && n_in == 1)
        };
        let here = &source[word.range.clone()];
        match (word.kind, here) {
            (WordKind::Sign, "(" | "[" | "{") => {
                let outer = frames.last().map_or(Use::Written, |(usage, _)| *usage);
                let usage = if is_haystack() {
                    Use::Compared
                } else {
                    match (here, before(1), before(2)) {
                        ("(", Some("replace"), Some("." | "|")) => Use::FirstCompared,
                        ("(", Some("strip"), Some("." | "|")) => Use::Compared,
                        ("(", Some("trim"), Some("|")) => Use::Compared,
                        ("(", Some(name), Some("." | "|")) if SEARCHING_METHODS.contains(&name) => {
                            Use::Compared
                        }
                        ("(", Some(_), Some("is")) => Use::Compared,
                        ("(", Some(_), Some("not")) if before(3) == Some("is") => Use::Compared,
                        ("(", Some(name), _) if is_callee(name) => Use::Written,
                        _ => outer,
                    }
                };
                frames.push((usage, 0));
            }
            (WordKind::Sign, ")" | "]" | "}") => {
                frames.pop();
            }
            (WordKind::Sign, ",") => {
                if let Some((_, n_commas)) = frames.last_mut() {
                    *n_commas += 1;
                }
            }
            (WordKind::Name, "in") => n_in += 1,
            (WordKind::String, _) => {
                let operator = matches!(text(Some(at + 1)), Some("in" | "not" | "==" | "!="))
                    || matches!(before(1), Some("==" | "!="))
                    || is_haystack();
                let test = before(2) == Some("is")
                    || (before(2) == Some("not") && before(3) == Some("is"));
                let argument = match frames.last() {
                    Some((Use::Compared, _)) | Some((Use::FirstCompared, 0)) => true,
                    Some(_) | None => false,
                };
                if !(operator || test || argument) {
                    written.push(word.range.clone());
                }
            }
            _ => {}
        }
    }
    written
}

/// Whether a bracket behind this word is a call, not a group.
fn is_callee(word: &str) -> bool {
    word.bytes().all(is_name)
        && !matches!(word, "in" | "not" | "and" | "or" | "if" | "else" | "elif" | "is" | "set")
}
