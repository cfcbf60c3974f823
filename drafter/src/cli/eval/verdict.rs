//! What an interval says, in a sentence.

use serde::Serialize;

use super::figures::Figure;

/// How tokens per round compare, by the interval of their change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// All of the interval is above 0.
    Gains,
    /// All of it is below.
    Loses,
    /// It has 0 in it.
    NoDifference,
    /// Every prompt gave the same.
    Same,
    /// There is no interval.
    Unknown,
}

impl Verdict {
    pub(crate) fn of(change: Option<Figure>) -> Self {
        match change {
            Some(Figure { low: Some(low), high: Some(high), .. }) => match (low, high) {
                _ if high < 0.0 => Self::Loses,
                _ if low > 0.0 => Self::Gains,
                (0.0, 0.0) => Self::Same,
                _ => Self::NoDifference,
            },
            _ => Self::Unknown,
        }
    }
}

/// A drafter without a single round.
pub(crate) fn silent(name: &str, draft_max: usize) -> String {
    format!("{name} has no rounds at {draft_max} drafts: every answer ended with its first token")
}

/// How tokens per round of `name` compare with those of `base`.
pub(crate) fn sentence(name: &str, base: &str, draft_max: usize, change: Option<Figure>) -> String {
    let percent = |x: f64| format!("{:.1}", 100.0 * x);
    let signed = |x: f64| format!("{:+.1}", 100.0 * x);
    let at = format!("tokens per round at {draft_max} drafts against {base}");
    let Some(Figure { value, low, high }) = change else {
        return format!(
            "{name} and {base} cannot be compared at {draft_max} drafts: there are no rounds"
        );
    };
    let (low, high) = (low.unwrap_or(f64::NAN), high.unwrap_or(f64::NAN));
    match Verdict::of(change) {
        Verdict::Loses => {
            let ends = format!("{}..{}", percent(-high), percent(-low));
            format!("{name} loses {} % ({ends}) {at}", percent(-value))
        }
        Verdict::Gains => {
            let ends = format!("{}..{}", percent(low), percent(high));
            format!("{name} gains {} % ({ends}) {at}", percent(value))
        }
        Verdict::Same => format!("{name} has the same {at}, on every prompt"),
        Verdict::NoDifference => {
            let ends = format!("{}..{}", signed(low), signed(high));
            format!("{name} shows no difference in {at}: {} % ({ends})", signed(value))
        }
        Verdict::Unknown => {
            format!("{name}: {} % {at}; too few prompts for an interval", signed(value))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences() {
        let of = |value, ends: Option<(f64, f64)>| {
            let (low, high) = ends.unzip();
            sentence("B", "A", 3, Some(Figure { value, low, high }))
        };
        assert_eq!(
            of(-0.099, Some((-0.112, -0.087))),
            "B loses 9.9 % (8.7..11.2) tokens per round at 3 drafts against A"
        );
        assert_eq!(
            of(0.05, Some((0.01, 0.09))),
            "B gains 5.0 % (1.0..9.0) tokens per round at 3 drafts against A"
        );
        assert_eq!(
            of(-0.004, Some((-0.015, 0.007))),
            "B shows no difference in tokens per round at 3 drafts against A: -0.4 % (-1.5..+0.7)"
        );
        assert!(of(0.0, Some((0.0, 0.0))).contains("same"));
        assert!(of(0.5, None).contains("+50.0 %") && of(0.5, None).contains("too few prompts"));
        assert!(sentence("B", "A", 3, None).contains("cannot be compared"));
    }
}
