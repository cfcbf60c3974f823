//! Horizontal bars with intervals.
//!
//! ```text
//! layer 0            0        0.1       0.2
//! q_proj             |██████████████         0.1869
//! k_proj             |██████████████|-|      0.1893
//! ```

use std::fmt::Write as _;

use crate::axis::Axis;
use crate::page::{Figure, Table};
use crate::text::{Format, cut, escaped};

/// Bars in groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// What is shown.
    pub title: String,
    /// The same in a sentence.
    pub description: String,
    /// What headings and labels are, for the table.
    pub columns: [String; 2],
    /// What values are, for the table.
    pub quantity: String,
    /// How values are written.
    pub format: Format,
    /// A value that a dashed line marks, and its name.
    pub reference: Option<(String, f64)>,
    /// What the bars' marks are; without a name, none is drawn.
    pub mark: Option<String>,
    /// The bars.
    pub groups: Vec<BarGroup>,
}

/// Bars that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct BarGroup {
    /// Stands above them, unless it is empty.
    pub heading: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Stands beside it.
    pub label: String,
    /// Colour: bars of one series have the same.
    pub series: usize,
    /// Its length; none, or one that is not finite, is shown as a dash.
    pub value: Option<f64>,
    /// Ends of the value's interval; not drawn unless both are finite.
    pub interval: Option<(f64, f64)>,
    /// Another value on the same row, drawn as an upright line.
    pub mark: Option<f64>,
}

impl Bar {
    fn value(&self) -> Option<f64> {
        self.value.filter(|value| value.is_finite())
    }

    fn interval(&self) -> Option<(f64, f64)> {
        self.interval.filter(|(low, high)| low.is_finite() && high.is_finite())
    }

    fn mark(&self) -> Option<f64> {
        self.mark.filter(|mark| mark.is_finite())
    }
}

/// Where values begin and end, per cent of the width; labels are on the left, values on the right.
const PLOT: (f64, f64) = (36.0, 82.0);
const ROW: usize = 22;
/// Characters of a label: what fits on a telephone.
const LABEL: usize = 18;
/// Characters above the bars, likewise.
const TICKS: usize = 24;

impl Bars {
    /// The chart.
    #[must_use]
    pub fn figure(&self) -> Figure {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let ends = bars().filter_map(Bar::interval).flat_map(|(low, high)| [low, high]);
        let marks = bars().filter_map(Bar::mark).filter(|_| self.mark.is_some());
        let reference = self.reference.iter().map(|(_, value)| *value);
        let axis =
            Axis::over(bars().filter_map(Bar::value).chain(ends).chain(marks).chain(reference), 4);
        let x = |value: f64| PLOT.0 + (PLOT.1 - PLOT.0) * axis.place(value);
        let rows: usize =
            self.groups.iter().map(|g| g.bars.len() + usize::from(!g.heading.is_empty())).sum();
        let (top, bottom) = (ROW, ROW + rows * ROW + 4);

        let mut svg = String::new();
        let ticks: Vec<(f64, String)> =
            axis.ticks().map(|tick| (tick, self.format.tick(tick))).collect();
        let longest = ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
        // Counted from 0, so that 0 has its number.
        let every = (ticks.len() * longest).div_ceil(TICKS).max(1);
        let zero = ticks.iter().position(|(tick, _)| tick.abs() < 1e-12).unwrap_or(0);
        for (n, (tick, label)) in ticks.iter().enumerate() {
            let (at, class) = (x(*tick), if n == zero { "zero" } else { "grid" });
            let _ = write!(
                svg,
                r#"<line class="{class}" x1="{at:.2}%" x2="{at:.2}%" y1="{top}" y2="{bottom}"/>"#
            );
            if n.abs_diff(zero) % every == 0 {
                let _ = write!(
                    svg,
                    r#"<text class="quiet middle" x="{at:.2}%" y="{}">{}</text>"#,
                    top - 6,
                    escaped(label)
                );
            }
        }
        let mut row = top;
        for group in &self.groups {
            if !group.heading.is_empty() {
                let heading = escaped(&cut(&group.heading, LABEL));
                let _ =
                    write!(svg, r#"<text class="strong" x="0" y="{}">{heading}</text>"#, row + 17);
                row += ROW;
            }
            for bar in &group.bars {
                self.bar(&mut svg, bar, row, &x);
                row += ROW;
            }
        }
        let mut height = bottom;
        if let Some((name, value)) = &self.reference {
            let at = x(*value);
            let anchor = if at > 60.0 { "end" } else { "start" };
            height += ROW;
            let _ = write!(
                svg,
                r#"<line class="reference" x1="{at:.2}%" x2="{at:.2}%" y1="{top}" y2="{}"/><text class="quiet {anchor}" x="{at:.2}%" y="{}">{}: {}</text>"#,
                bottom + 4,
                bottom + 16,
                escaped(name),
                self.format.show(*value)
            );
        }
        if let Some(name) = &self.mark {
            let y = height + 6;
            height += ROW;
            let _ = write!(
                svg,
                r#"<line class="mark" x1="4" x2="4" y1="{y}" y2="{}"/><text class="quiet" x="12" y="{}">{}</text>"#,
                y + 14,
                y + 11,
                escaped(name)
            );
        }
        let (title, description) = (self.title.clone(), self.description.clone());
        Figure { title, description, height, svg, legend: Vec::new(), table: self.table() }
    }

    fn bar(&self, svg: &mut String, bar: &Bar, row: usize, x: &impl Fn(f64) -> f64) {
        let (label, base) = (escaped(&cut(&bar.label, LABEL)), row + 16);
        let _ = write!(svg, r#"<text x="0" y="{base}">{label}</text>"#);
        let shown = bar.value().map_or_else(|| "-".into(), |value| self.format.show(value));
        let _ = write!(svg, r#"<text class="end" x="100%" y="{base}">{shown}</text>"#);
        let Some(value) = bar.value() else { return };
        let (from, to) = (x(value.min(0.0)), x(value.max(0.0)));
        let series = bar.series % SERIES;
        let _ = write!(
            svg,
            r#"<rect class="s{series}" x="{from:.2}%" y="{}" width="{:.2}%" height="{}"/>"#,
            row + 4,
            to - from,
            ROW - 8
        );
        if let Some(mark) = bar.mark().filter(|_| self.mark.is_some()) {
            let at = x(mark);
            let _ = write!(
                svg,
                r#"<line class="mark" x1="{at:.2}%" x2="{at:.2}%" y1="{}" y2="{}"/>"#,
                row + 2,
                row + ROW - 2
            );
        }
        if let Some((low, high)) = bar.interval() {
            let (low, high, middle) = (x(low), x(high), row + ROW / 2);
            let _ = write!(
                svg,
                r#"<line class="whisker" x1="{low:.2}%" x2="{high:.2}%" y1="{middle}" y2="{middle}"/>"#
            );
            for end in [low, high] {
                let _ = write!(
                    svg,
                    r#"<line class="whisker" x1="{end:.2}%" x2="{end:.2}%" y1="{}" y2="{}"/>"#,
                    middle - 4,
                    middle + 4
                );
            }
        }
    }

    fn table(&self) -> Table {
        let intervals =
            self.groups.iter().flat_map(|g| &g.bars).any(|bar| bar.interval().is_some());
        let headings = self.groups.iter().any(|group| !group.heading.is_empty());
        let [group, label] = self.columns.clone();
        let mut head = vec![label, self.quantity.clone()];
        if headings {
            head.insert(0, group);
        }
        if intervals {
            head.push("95 % interval".into());
        }
        head.extend(self.mark.clone());
        let dash = || "-".to_owned();
        let mut rows = Vec::new();
        for group in &self.groups {
            for bar in &group.bars {
                let value = bar.value().map_or_else(dash, |value| self.format.show(value));
                let mut row = vec![bar.label.clone(), value];
                if headings {
                    row.insert(0, group.heading.clone());
                }
                if intervals {
                    row.push(bar.interval().map_or_else(dash, |(low, high)| {
                        format!("{} to {}", self.format.show(low), self.format.show(high))
                    }));
                }
                if self.mark.is_some() {
                    row.push(bar.mark().map_or_else(dash, |mark| self.format.show(mark)));
                }
                rows.push(row);
            }
        }
        Table { caption: self.title.clone(), head, rows }
    }
}

/// Colours of the page.
pub(crate) const SERIES: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::check;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = Option<f64>> {
        prop::option::of(prop_oneof![-1e4_f64..1e4, Just(0.0), Just(f64::NAN)])
    }

    proptest! {
        #[test]
        fn whatever_the_values_a_chart_stays_in_its_box(
            values in prop::collection::vec((value(), value(), value()), 0..6),
            name in ".{0,30}",
            reference in prop::option::of(-10.0_f64..10.0),
        ) {
            let bar = |(n, (value, low, high)): (usize, &(_, Option<f64>, _))| Bar {
                label: format!("{name}{n}"),
                series: n,
                value: *value,
                interval: low.zip(*high),
                mark: *low,
            };
            let bars = values.iter().enumerate().map(bar).collect();
            let figure = Bars {
                title: name.clone(),
                description: name.clone(),
                columns: ["group".into(), name.clone()],
                quantity: "value".into(),
                format: Format::Change(2),
                reference: reference.map(|value| (name.clone(), value)),
                mark: reference.map(|_| name.clone()),
                groups: vec![BarGroup { heading: name.clone(), bars }],
            }
            .figure();
            prop_assert_eq!(figure.table.rows.len(), values.len());
            check(&figure);
        }
    }

    #[test]
    fn lengths_are_the_values() {
        let bar = |value| Bar {
            label: "a".into(),
            series: 0,
            value: Some(value),
            interval: Some((0.5, 4.0)),
            mark: Some(3.0),
        };
        let bars = |bars| Bars {
            title: "t".into(),
            description: "d".into(),
            columns: ["g".into(), "l".into()],
            quantity: "q".into(),
            format: Format::Fixed(1),
            reference: None,
            mark: Some("m".into()),
            groups: vec![BarGroup { heading: String::new(), bars }],
        };
        let figure = bars(vec![bar(2.0), bar(1.0)]).figure();
        // Of 46 per cent for 0 to 4.
        for part in [
            r#"x="36.00%" y="26" width="23.00%""#,
            r#"width="11.50%""#,
            r#"x1="41.75%" x2="82.00%""#,
            r#"<line class="mark" x1="70.50%""#,
        ] {
            assert!(figure.svg.contains(part), "{part} in {}", figure.svg);
        }
        assert_eq!(figure.table.head, ["l", "q", "95 % interval", "m"]);
        assert_eq!(figure.table.rows[0], ["a", "2.0", "0.5 to 4.0", "3.0"]);
    }
}
