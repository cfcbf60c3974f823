//! Text and numbers as they stand in a page.

/// How a figure is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// With so many digits after the point.
    Fixed(usize),
    /// A share as per cent.
    Percent(usize),
    /// A relative change as per cent, with its sign.
    Change(usize),
}

impl Format {
    /// The figure with all its digits.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Fixed(digits) => format!("{value:.digits$}"),
            Self::Percent(digits) => format!("{:.digits$} %", 100.0 * value),
            Self::Change(digits) => format!("{:+.digits$} %", 100.0 * value),
        }
    }

    /// At a line of an axis: without needless digits.
    pub(crate) fn tick(self, value: f64) -> String {
        let short = |value: f64| {
            let text = format!("{:.4}", if value.abs() < 1e-9 { 0.0 } else { value });
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        match self {
            Self::Fixed(_) => short(value),
            Self::Percent(_) | Self::Change(_) => format!("{} %", short(100.0 * value)),
        }
    }
}

/// Text that is nothing but text, in elements and in quoted attributes. Control characters, which HTML
/// has no place for, are shown as replacement characters.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// At most so many characters, then dots: labels in a chart, whose table has all of them.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text() {
        let escaped = escaped("<a href=\"x\" o='&'>\u{7}");
        assert_eq!(escaped, "&lt;a href=&quot;x&quot; o=&#39;&amp;&#39;&gt;\u{fffd}");
        assert_eq!((cut("abcd", 4), cut("abcde", 4)), ("abcd".into(), "abc…".into()));
    }

    #[test]
    fn figures_have_their_digits() {
        assert_eq!(Format::Fixed(4).show(0.18708), "0.1871");
        assert_eq!(Format::Percent(1).show(0.4595), "46.0 %");
        assert_eq!(Format::Change(1).show(-0.114), "-11.4 %");
        assert_eq!(Format::Change(1).show(0.02), "+2.0 %");
        assert_eq!(
            (Format::Fixed(3).tick(0.25), Format::Fixed(3).tick(-1e-17)),
            ("0.25".into(), "0".into())
        );
        assert_eq!(Format::Percent(1).tick(0.2), "20 %");
    }
}
