//! Marks: which special tokens of a rendered prompt are the template's own.
//!
//! A mark is one character of the private-use plane 16, U+100000 + n for the n-th different special
//! token in the template's source. [`prepare`] writes marks in place of the tokens, [`Marks::escape`]
//! takes the same characters out of the conversation, [`Marks::resolve`] turns a rendered string back
//! into text with places of tokens.
//!
//! A string that is only compared with something keeps its tokens; [`super::jinja_words`] tells which.
//! A guess that is wrong there cannot make a wrong prompt: [`super::ChatTemplate`] compares the result
//! with that of the template as it was written.
//!
//! On the way, `{% generation %}` and `{% endgeneration %}`, which only training needs, become
//! `{% if true %}` and `{% endif %}`; lines keep their numbers and whitespace its rules.

use std::ops::Range;

use serde_json::{Map, Value};

use super::jinja_words::{Tag, end_of_raw, find, lex, next_tag, written_strings};
use super::tokenizer::Tokenizer;

const FIRST_MARK: u32 = 0x10_0000;
/// Marks are below the escape; the two characters above it are no characters.
const MAX_MARKS: u32 = 0xf000;
/// Stands before the stand-in of a mark that a caller wrote.
const ESCAPE: char = '\u{10fffd}';
/// Stand-ins are as far from here as marks are from their first.
const FIRST_STAND_IN: u32 = 0xf_0000;

/// More in one expression is no template; the engine recurses over chains of operators.
const MAX_WORDS: usize = 4096;
/// More is no template; the engine recurses over chains of `elif`.
const MAX_TAGS: usize = 16_384;

/// A template in two forms.
#[derive(Debug)]
pub(super) struct Prepared {
    /// As it was written, but for the generation tags.
    pub(super) plain: String,
    /// With marks.
    pub(super) marked: String,
    pub(super) marks: Marks,
}

/// The special tokens of a template, by mark.
#[derive(Debug, Clone, Default)]
pub(super) struct Marks {
    tokens: Vec<(String, u32)>,
}

/// A template that is refused before it is compiled.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) line: usize,
    pub(super) fault: String,
}

/// Cuts `source` up and marks its special tokens.
pub(super) fn prepare(source: &str, tokenizer: &Tokenizer) -> Result<Prepared, Refused> {
    let mut writer = Writer {
        source,
        tokenizer,
        tags: 0,
        out: Prepared { plain: String::new(), marked: String::new(), marks: Marks::default() },
    };
    let reserved = |c: char| (FIRST_MARK..=u32::from(char::MAX)).contains(&u32::from(c));
    if let Some(at) = source.find(reserved) {
        return Err(writer.refused(at, "a private-use character of plane 16".into()));
    }
    writer.run()?;
    Ok(writer.out)
}

impl Marks {
    fn of(&mut self, text: &str, id: u32) -> Option<char> {
        let known = self.tokens.iter().position(|(_, other)| *other == id);
        let index = known.unwrap_or_else(|| {
            self.tokens.push((text.to_owned(), id));
            self.tokens.len() - 1
        });
        let index = u32::try_from(index).ok().filter(|index| *index < MAX_MARKS)?;
        char::from_u32(FIRST_MARK + index)
    }

    fn token(&self, c: char) -> Option<&(String, u32)> {
        let index = u32::from(c).checked_sub(FIRST_MARK)?;
        self.tokens.get(index as usize)
    }

    fn must_be_escaped(&self, c: char) -> bool {
        c == ESCAPE || self.token(c).is_some()
    }

    /// The same value without a mark in any string or key.
    pub(super) fn escape(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.escape_text(text)),
            Value::Array(values) => values.iter().map(|value| self.escape(value)).collect(),
            Value::Object(fields) => {
                let escape =
                    |(key, value): (&String, &Value)| (self.escape_text(key), self.escape(value));
                Value::Object(fields.iter().map(escape).collect::<Map<_, _>>())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn escape_text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            if self.must_be_escaped(c) {
                let stand_in = char::from_u32(FIRST_STAND_IN + (u32::from(c) - FIRST_MARK));
                out.push(ESCAPE);
                out.extend(stand_in);
            } else {
                out.push(c);
            }
        }
        out
    }

    /// The text of a rendered marked template, and where its special tokens are.
    pub(super) fn resolve(&self, rendered: &str) -> (String, Vec<(Range<usize>, u32)>) {
        let mut text = String::with_capacity(rendered.len());
        let mut specials = Vec::new();
        let mut chars = rendered.chars().peekable();
        while let Some(c) = chars.next() {
            if let Some((token, id)) = self.token(c) {
                let begin = text.len();
                text.push_str(token);
                specials.push((begin..text.len(), *id));
            } else if c == ESCAPE {
                let written = |stand_in: char| {
                    let index = u32::from(stand_in).checked_sub(FIRST_STAND_IN)?;
                    char::from_u32(FIRST_MARK + index).filter(|c| self.must_be_escaped(*c))
                };
                text.extend(chars.next_if(|c| written(*c).is_some()).and_then(written));
            } else {
                text.push(c);
            }
        }
        (text, specials)
    }
}

struct Writer<'a> {
    source: &'a str,
    tokenizer: &'a Tokenizer,
    tags: usize,
    out: Prepared,
}

impl<'a> Writer<'a> {
    fn run(&mut self) -> Result<(), Refused> {
        let mut at = 0;
        while at < self.source.len() {
            let Some((open, tag)) = next_tag(self.source, at) else {
                return self.marked(at..self.source.len());
            };
            self.marked(at..open)?;
            self.tags += 1;
            if self.tags > MAX_TAGS {
                return Err(self.refused(open, format!("more than {MAX_TAGS} tags")));
            }
            at = match tag {
                Tag::Comment => {
                    let end =
                        find(self.source, open + 2, "#}").map_or(self.source.len(), |e| e + 2);
                    self.verbatim(open..end);
                    end
                }
                Tag::Expression(close) => self.expression(open, close)?,
            };
        }
        Ok(())
    }

    /// Writes the expression from `open` on, and the raw block it may open; returns where it ends.
    fn expression(&mut self, open: usize, close: &str) -> Result<usize, Refused> {
        let source = self.source;
        let (words, end) = lex(source, open + 2, close);
        if words.len() > MAX_WORDS {
            return Err(self.refused(open, format!("a tag of more than {MAX_WORDS} words")));
        }
        let statement: Vec<&str> = words
            .iter()
            .map(|word| &source[word.range.clone()])
            .filter(|text| !matches!(*text, "-" | "+"))
            .collect();
        match (close, statement.as_slice()) {
            ("%}", ["raw"]) => {
                self.verbatim(open..end);
                let Some((inner, after)) = end_of_raw(source, end) else {
                    return self.marked(end..source.len()).map(|()| source.len());
                };
                self.marked(end..inner)?;
                self.verbatim(inner..after);
                return Ok(after);
            }
            ("%}", ["generation"]) => self.renamed(open..end, "generation", "if true"),
            ("%}", ["endgeneration"]) => self.renamed(open..end, "endgeneration", "endif"),
            _ => {
                let mut at = open;
                for range in written_strings(source, &words) {
                    self.verbatim(at..range.start);
                    self.marked(range.clone())?;
                    at = range.end;
                }
                self.verbatim(at..end);
            }
        }
        Ok(end)
    }

    fn verbatim(&mut self, range: Range<usize>) {
        self.out.plain.push_str(&self.source[range.clone()]);
        self.out.marked.push_str(&self.source[range]);
    }

    fn renamed(&mut self, range: Range<usize>, from: &str, to: &str) {
        let tag = self.source[range].replacen(from, to, 1);
        self.out.plain.push_str(&tag);
        self.out.marked.push_str(&tag);
    }

    fn marked(&mut self, range: Range<usize>) -> Result<(), Refused> {
        let (source, tokenizer) = (self.source, self.tokenizer);
        let text = &source[range.clone()];
        self.out.plain.push_str(text);
        let mut from = 0;
        for (found, id) in tokenizer.find_specials(text) {
            let Some(mark) = self.out.marks.of(&text[found.clone()], id) else {
                let fault = format!("more than {MAX_MARKS} different special tokens");
                return Err(self.refused(range.start + found.start, fault));
            };
            self.out.marked.push_str(&text[from..found.start]);
            self.out.marked.push(mark);
            from = found.end;
        }
        self.out.marked.push_str(&text[from..]);
        Ok(())
    }

    fn refused(&self, at: usize, fault: String) -> Refused {
        Refused { line: self.source[..at].matches('\n').count() + 1, fault }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::vocabulary;
    use super::*;

    fn marked(source: &str) -> String {
        let prepared = prepare(source, &vocabulary().tokenizer()).unwrap();
        assert_eq!(prepared.plain, source);
        // Readable: a mark is `@`.
        prepared.marked.replace(|c| u32::from(c) >= FIRST_MARK, "@")
    }

    #[test]
    fn what_is_written_is_marked_and_what_is_compared_is_not() {
        for (source, expected) in [
            ("<|im_start|>a{{ b }}<|im_end|>", "@a{{ b }}@"),
            ("{{ '<|im_start|>' + r + \"<|im_end|>\\n\" }}", "{{ '@' + r + \"@\\n\" }}"),
            ("{% if '</think>' in c %}", "{% if '</think>' in c %}"),
            ("{% if '</think>' not in c %}", "{% if '</think>' not in c %}"),
            (
                "{% if c == '<think>' and '<think>' != c %}",
                "{% if c == '<think>' and '<think>' != c %}",
            ),
            ("{{ c.split('</think>')[-1] + '<think>' }}", "{{ c.split('</think>')[-1] + '@' }}"),
            ("{{ c.replace('<think>', '</think>') }}", "{{ c.replace('<think>', '@') }}"),
            ("{{ c | replace('<think>', '') }}", "{{ c | replace('<think>', '') }}"),
            ("{{ f('<think>', g.x('<think>')) }}", "{{ f('@', g.x('@')) }}"),
            ("{{ c.startswith(('<think>', 'b')) }}", "{{ c.startswith(('<think>', 'b')) }}"),
            ("{% if c is startingwith('<think>') %}", "{% if c is startingwith('<think>') %}"),
            ("{% if c is not eq '<think>' %}", "{% if c is not eq '<think>' %}"),
            ("{% if c in ['<think>'] %}", "{% if c in ['<think>'] %}"),
            (
                "{%- for t in ['<think>'] if t in ['<think>'] %}",
                "{%- for t in ['@'] if t in ['<think>'] %}",
            ),
            ("{{ '<think>' if c else '</think>' }}", "{{ '@' if c else '@' }}"),
            ("{{ {'a': {'b': '<think>'}} }}<think>", "{{ {'a': {'b': '@'}} }}@"),
            (
                "{# <think> #}{% raw %}{{ '<think>' == 1 }}{%- endraw %}",
                "{# <think> #}{% raw %}{{ '@' == 1 }}{%- endraw %}",
            ),
            ("{{ 'it\\'s <think>' }}{{ '}}<think>' }}", "{{ 'it\\'s @' }}{{ '}}@' }}"),
            ("{{ '語<think>' }} { {", "{{ '語@' }} { {"),
        ] {
            assert_eq!(marked(source), expected);
        }
    }

    #[test]
    fn broken_tags_end_with_the_source() {
        for source in
            ["{{ '<think>", "{% raw %}<think>", "{#<think>", "{{ 'a' }", "{%", "{", "{{ \"\\"]
        {
            prepare(source, &vocabulary().tokenizer()).unwrap();
        }
    }

    #[test]
    fn generation_tags_are_neutral() {
        let prepared = prepare(
            "{%- generation %}a{% endgeneration -%}{% set generation = 1 %}",
            &vocabulary().tokenizer(),
        );
        let expected = "{%- if true %}a{% endif -%}{% set generation = 1 %}";
        assert_eq!(prepared.unwrap().plain, expected);
    }

    #[test]
    fn what_the_engine_would_recurse_over_is_refused() {
        let refused = |source: &str| prepare(source, &vocabulary().tokenizer()).unwrap_err();
        assert_eq!(refused(&format!("\n{{{{ x{} }}}}", "+x".repeat(5000))).line, 2);
        let fault = refused(&format!("{{% if x %}}{}", "{%elif x%}".repeat(20_000))).fault;
        assert_eq!(fault, "more than 16384 tags");
        assert_eq!(refused("a\nb\u{100005}").line, 2);
    }

    #[test]
    fn marks_of_callers_come_back_as_they_were() {
        let marks = prepare("<think></think>", &vocabulary().tokenizer()).unwrap().marks;
        for text in [
            "\u{100000}",
            "\u{100001}\u{100002}",
            "\u{10fffd}",
            "\u{10fffd}\u{f0000}",
            "a\u{f0001}",
        ] {
            let escaped = marks.escape(&Value::from(text));
            let escaped = escaped.as_str().unwrap();
            assert!(!escaped.contains(['\u{100000}', '\u{100001}']));
            assert_eq!(marks.resolve(escaped), (text.to_owned(), vec![]));
        }
        assert_eq!(
            marks.resolve("a\u{100001}"),
            ("a</think>".into(), vec![(1..9, marks.tokens[1].1)])
        );
        // What is left when a template cuts an escape in two.
        assert_eq!(marks.resolve("\u{10fffd}x\u{10fffd}"), ("x".into(), vec![]));
    }
}
