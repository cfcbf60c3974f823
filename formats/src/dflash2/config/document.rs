//! A `config.json` in its author's spelling.
//!
//! A JSON library takes `1e-06`, `-0` and integers of 30 digits for numbers and
//! spells them anew. Here the text is only cut into tokens, so that a rewritten
//! file has every key, string and number as it was given, in new white space.

use std::iter::Peekable;

use serde_json::Value;

/// The text of a JSON object. It was parsed before, so it is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::dflash2) struct Document(String);

impl Document {
    /// Keeps `json`, the text of an object.
    pub(super) fn new(json: &str) -> Self {
        Self(json.to_owned())
    }

    /// The object with its member `name` set to `value`, or removed without one;
    /// indented as the JSON library does it, with a final newline.
    pub(super) fn rewritten(&self, name: &str, value: Option<&Value>) -> String {
        let given = value.map(Value::to_string);
        let mut given = given.as_deref().map(|json| indented(&mut tokens(json).peekable()));
        let mut out = Vec::new();
        let mut tokens = tokens(&self.0).skip(1).peekable();
        while let Some(key) = tokens.next() {
            // After a key stands a colon, after a member a comma or the end.
            if key == "," || key == "}" {
                continue;
            }
            tokens.next();
            let mut value = indented(&mut tokens);
            if serde_json::from_str(key).is_ok_and(|key: String| key == name) {
                match given.take() {
                    Some(given) => value = given,
                    None => continue,
                }
            }
            out.push(format!("{INDENT}{key}: {value}"));
        }
        out.extend(given.map(|value| format!("{INDENT}{}: {value}", Value::from(name))));
        match out.as_slice() {
            [] => "{}\n".into(),
            members => format!("{{\n{}\n}}\n", members.join(",\n")),
        }
    }
}

const INDENT: &str = "  ";

/// The next value, indented as that of a member of the outermost object.
fn indented<'a>(tokens: &mut Peekable<impl Iterator<Item = &'a str>>) -> String {
    let mut out = String::new();
    let mut depth = 1;
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(INDENT, depth));
    };
    while let Some(token) = tokens.next() {
        match token {
            "{" | "[" => {
                out.push_str(token);
                depth += 1;
                if !matches!(tokens.peek(), Some(&("}" | "]"))) {
                    line(&mut out, depth);
                }
            }
            "}" | "]" => {
                depth -= 1;
                if !out.ends_with(['{', '[']) {
                    line(&mut out, depth);
                }
                out.push_str(token);
            }
            "," => {
                out.push(',');
                line(&mut out, depth);
            }
            ":" => out.push_str(": "),
            scalar => out.push_str(scalar),
        }
        if depth <= 1 {
            break;
        }
    }
    out
}

/// Brackets, commas, colons, and scalars as they are spelled.
fn tokens(json: &str) -> impl Iterator<Item = &str> {
    const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];
    const MARKS: [char; 6] = ['{', '}', '[', ']', ',', ':'];
    let mut rest = json;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(SPACE);
        let len = match rest.chars().next()? {
            '"' => string_len(rest),
            mark if MARKS.contains(&mark) => 1,
            _ => rest.find(|c| SPACE.contains(&c) || MARKS.contains(&c)).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(len);
        rest = after;
        Some(token)
    })
}

/// Bytes of the string that `text` starts with, quotes included.
fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_keep_their_spelling() {
        let json = r#"{"big":123456789012345678901234567890,"z":-0,"eps":1e-06,"E":1E+2,
            "tail":1.50,"s":"a\u00e9\/ \"}, ] \\","list":[ -0.0 , [ ] , { } , null ],"k\u0065y":true}"#;
        let text = Document::new(json).rewritten("none", None);
        let expected = r#"{
  "big": 123456789012345678901234567890,
  "z": -0,
  "eps": 1e-06,
  "E": 1E+2,
  "tail": 1.50,
  "s": "a\u00e9\/ \"}, ] \\",
  "list": [
    -0.0,
    [],
    {},
    null
  ],
  "k\u0065y": true
}
"#;
        assert_eq!(text, expected);
        // Written once more it is the same.
        assert_eq!(Document::new(&text).rewritten("none", None), text);
    }

    #[test]
    fn the_layout_is_that_of_the_library() {
        for value in [
            json!({}),
            json!({ "a": 1 }),
            json!({ "a": {}, "b": [], "c": [[1, {"x": "[,]"}], "y"], "d": { "e": { "f": null } } }),
        ] {
            let text = Document::new(&value.to_string()).rewritten("none", None);
            assert_eq!(text, format!("{value:#}\n"));
        }
    }

    #[test]
    fn one_member_is_replaced_added_or_removed() {
        let document = Document::new(r#"{"a":1,"b":{"x":[1e5]},"c":2.0}"#);
        assert_eq!(document.rewritten("b", None), "{\n  \"a\": 1,\n  \"c\": 2.0\n}\n");
        let b = json!([true]);
        let replaced = "{\n  \"a\": 1,\n  \"b\": [\n    true\n  ],\n  \"c\": 2.0\n}\n";
        assert_eq!(document.rewritten("b", Some(&b)), replaced);
        let added = Document::new("{}").rewritten("d", Some(&b));
        assert_eq!(added, "{\n  \"d\": [\n    true\n  ]\n}\n");
        // A name is what it means, however it is spelled; a value is no name.
        let spelled = Document::new(r#"{"\u0062":1,"a":"b"}"#);
        assert_eq!(spelled.rewritten("b", None), "{\n  \"a\": \"b\"\n}\n");
    }

    #[test]
    fn no_text_is_too_broken_to_cut() {
        for text in ["", "{", "{\"a", "{\"a\":", "{\"a\":[", "}{", "{\"a\\", "{,:]", "\u{e9}"] {
            Document::new(text).rewritten("a", None);
        }
    }
}
