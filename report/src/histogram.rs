//! Vertical bars: how often.

use std::fmt::Write as _;

use crate::page::{Figure, Table};
use crate::text::{Format, escaped};

/// Counts of bins.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// What is shown.
    pub title: String,
    /// The same in a sentence.
    pub description: String,
    /// What bins are; stands below them.
    pub bin: String,
    /// What is counted, for the table.
    pub counted: String,
    /// The bins' names and counts, from left to right.
    pub bins: Vec<(String, u64)>,
}

const TOP: f64 = 18.0;
const FOOT: f64 = 118.0;

impl Histogram {
    /// The chart.
    #[must_use]
    pub fn figure(&self) -> Figure {
        let total: u64 = self.bins.iter().map(|(_, n)| n).sum();
        let most = self.bins.iter().map(|(_, n)| *n).max().unwrap_or(0).max(1) as f64;
        let share = |n: u64| n as f64 / total.max(1) as f64;
        let width = 100.0 / self.bins.len().max(1) as f64;
        // As many names as there is room for on a telephone.
        let every = self.bins.len().div_ceil(12).max(1);
        let mut svg = String::new();
        for (i, (name, n)) in self.bins.iter().enumerate() {
            let (left, middle) = (i as f64 * width, (i as f64 + 0.5) * width);
            let height = (FOOT - TOP) * *n as f64 / most;
            let _ = write!(
                svg,
                r#"<rect class="s0" x="{:.2}%" y="{:.1}" width="{:.2}%" height="{height:.1}"/>"#,
                left + 0.1 * width,
                FOOT - height,
                0.8 * width
            );
            if i % every != 0 {
                continue;
            }
            let percent = match 100.0 * share(*n) {
                0.0 => String::new(),
                p if p < 1.0 => "&lt;1".into(),
                p => format!("{p:.0}"),
            };
            let _ = write!(
                svg,
                r#"<text class="quiet middle" x="{middle:.2}%" y="{:.1}">{percent}</text><text class="middle" x="{middle:.2}%" y="{}">{}</text>"#,
                FOOT - height - 4.0,
                FOOT + 15.0,
                escaped(name)
            );
        }
        let _ = write!(
            svg,
            r#"<line class="zero" x1="0%" x2="100%" y1="{FOOT}" y2="{FOOT}"/><text class="quiet middle" x="50%" y="{}">{}</text>"#,
            FOOT + 33.0,
            escaped(&self.bin)
        );
        let row = |(name, n): &(String, u64)| {
            vec![name.clone(), n.to_string(), Format::Percent(2).show(share(*n))]
        };
        let table = Table {
            caption: self.title.clone(),
            head: vec![self.bin.clone(), self.counted.clone(), "share".into()],
            rows: self.bins.iter().map(row).collect(),
        };
        let (title, description) = (self.title.clone(), self.description.clone());
        Figure { title, description, height: 156, svg, legend: Vec::new(), table }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::check;

    #[test]
    fn heights_are_the_counts() {
        let of = |bins: &[(&str, u64)]| {
            let figure = Histogram {
                title: "t".into(),
                description: "d".into(),
                bin: "<bin>".into(),
                counted: "n".into(),
                bins: bins.iter().map(|(name, n)| ((*name).into(), *n)).collect(),
            }
            .figure();
            check(&figure);
            figure
        };
        let figure = of(&[("a&b", 1), ("c", 4), ("d", 0)]);
        for part in [r#"height="25.0""#, r#"height="100.0""#, ">20</text>", ">80</text>", "a&amp;b"]
        {
            assert!(figure.svg.contains(part), "{part} in {}", figure.svg);
        }
        assert_eq!(figure.table.rows[1], ["c", "4", "80.00 %"]);
        assert_eq!(of(&[]).table.rows.len(), 0);
        of(&[("x", 0); 40]);
        of(&[("x", u64::MAX / 64); 40]);
    }
}
