//! Lines over a few places, with intervals.

use std::fmt::Write as _;

use crate::axis::Axis;
use crate::bars::SERIES;
use crate::page::{Figure, Table};
use crate::text::{Format, escaped};

/// Several series over the same places.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// What is shown.
    pub title: String,
    /// The same in a sentence.
    pub description: String,
    /// What the places are; stands below them.
    pub place: String,
    /// How values are written.
    pub format: Format,
    /// Names of the places, from left to right.
    pub places: Vec<String>,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// One entry per place; nothing where there is no value.
    pub points: Vec<Option<Point>>,
}

/// A value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Its height.
    pub value: f64,
    /// Ends of its interval.
    pub interval: Option<(f64, f64)>,
}

/// Left and right end of the places, per cent of the width.
const PLOT: (f64, f64) = (14.0, 96.0);
/// Upper and lower end of values, pixels.
const HEIGHT: (f64, f64) = (12.0, 172.0);

impl Lines {
    /// The chart.
    #[must_use]
    pub fn figure(&self) -> Figure {
        let points = self
            .series
            .iter()
            .flat_map(|series| (0..series.points.len()).filter_map(|place| series.at(place)));
        let ends = |p: Point| {
            let (low, high) = p.interval.unwrap_or((p.value, p.value));
            [p.value, low, high]
        };
        let axis = Axis::over(points.flat_map(ends), 4);
        let y = |value: f64| HEIGHT.1 - (HEIGHT.1 - HEIGHT.0) * axis.place(value);
        let width = (PLOT.1 - PLOT.0) / self.places.len().max(1) as f64;
        let x = |place: usize| PLOT.0 + (place as f64 + 0.5) * width;

        let mut svg = String::new();
        for tick in axis.ticks() {
            let (at, class) = (y(tick), if tick.abs() < 1e-12 { "zero" } else { "grid" });
            let _ = write!(
                svg,
                r#"<line class="{class}" x1="{}%" x2="{}%" y1="{at:.1}" y2="{at:.1}"/><text class="quiet end" x="{}%" y="{:.1}">{}</text>"#,
                PLOT.0,
                PLOT.1,
                PLOT.0 - 1.5,
                at + 4.0,
                escaped(&self.format.tick(tick))
            );
        }
        for (place, name) in self.places.iter().enumerate() {
            let _ = write!(
                svg,
                r#"<text class="middle" x="{:.2}%" y="{}">{}</text>"#,
                x(place),
                HEIGHT.1 + 17.0,
                escaped(name)
            );
        }
        let _ = write!(
            svg,
            r#"<text class="quiet middle" x="{}%" y="{}">{}</text>"#,
            (PLOT.0 + PLOT.1) / 2.0,
            HEIGHT.1 + 35.0,
            escaped(&self.place)
        );
        for (n, series) in self.series.iter().enumerate() {
            // Beside each other, so that no interval hides another.
            let shift = 6.0 * (n as f64 - (self.series.len() as f64 - 1.0) / 2.0);
            let _ =
                write!(svg, r#"<g class="l{}" transform="translate({shift:.1} 0)">"#, n % SERIES);
            series.draw(&mut svg, n, &x, &y);
            svg.push_str("</g>");
        }
        Figure {
            title: self.title.clone(),
            description: self.description.clone(),
            height: 212,
            svg,
            legend: self.series.iter().map(|series| series.name.clone()).collect(),
            table: self.table(),
        }
    }

    fn table(&self) -> Table {
        let mut head = vec![self.place.clone()];
        for series in &self.series {
            head.push(series.name.clone());
            head.push("95 % interval".into());
        }
        let row = |(place, name): (usize, &String)| {
            let mut row = vec![name.clone()];
            for series in &self.series {
                let point = series.at(place);
                let show = |value| self.format.show(value);
                row.push(point.map_or_else(|| "-".into(), |point| show(point.value)));
                let interval = point.and_then(|point| point.interval);
                row.push(
                    interval
                        .map_or_else(|| "-".into(), |(a, b)| format!("{} to {}", show(a), show(b))),
                );
            }
            row
        };
        let rows = self.places.iter().enumerate().map(row).collect();
        Table { caption: self.title.clone(), head, rows }
    }
}

impl Series {
    /// What is finite of a point.
    fn at(&self, place: usize) -> Option<Point> {
        let Point { value, interval } = self.points.get(place).copied().flatten()?;
        let interval = interval.filter(|(low, high)| low.is_finite() && high.is_finite());
        value.is_finite().then_some(Point { value, interval })
    }

    fn draw(&self, svg: &mut String, n: usize, x: &impl Fn(usize) -> f64, y: &impl Fn(f64) -> f64) {
        for place in 0..self.points.len() {
            let Some(point) = self.at(place) else { continue };
            let (at, height) = (x(place), y(point.value));
            if let Some(next) = self.at(place + 1) {
                let _ = write!(
                    svg,
                    r#"<line class="line" x1="{at:.2}%" x2="{:.2}%" y1="{height:.1}" y2="{:.1}"/>"#,
                    x(place + 1),
                    y(next.value)
                );
            }
            if let Some((low, high)) = point.interval {
                let _ = write!(
                    svg,
                    r#"<line class="interval" x1="{at:.2}%" x2="{at:.2}%" y1="{:.1}" y2="{:.1}"/>"#,
                    y(low),
                    y(high)
                );
            }
            svg.push_str(&marker(n, &format!("{at:.2}%"), height));
        }
    }
}

/// Shapes tell the lines apart where colours do not.
pub(crate) fn marker(n: usize, x: &str, y: f64) -> String {
    match n % 3 {
        0 => format!(r#"<circle cx="{x}" cy="{y:.1}" r="3.5"/>"#),
        1 => format!(
            r#"<rect x="{x}" y="{:.1}" width="7" height="7" transform="translate(-3.5 0)"/>"#,
            y - 3.5
        ),
        _ => format!(r#"<circle class="hollow" cx="{x}" cy="{y:.1}" r="3.5"/>"#),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::check;

    #[test]
    fn heights_are_the_values() {
        let point = |value, interval| Some(Point { value, interval });
        let series = |name: &str, points| Series { name: name.into(), points };
        let figure = Lines {
            title: "t".into(),
            description: "d".into(),
            place: "draft".into(),
            format: Format::Percent(1),
            places: ["1", "2"].map(str::to_owned).to_vec(),
            series: vec![
                series("<a>", vec![point(1.0, Some((0.5, 1.0))), point(0.25, None)]),
                series("b", vec![None, point(0.5, Some((0.0, 0.75)))]),
                series(
                    "c",
                    vec![point(0.1, Some((f64::NEG_INFINITY, 1.0))), point(f64::NAN, None)],
                ),
            ],
        }
        .figure();
        check(&figure);
        for part in [r#"y1="12.0" y2="132.0""#, r#"y1="92.0" y2="12.0""#, r#"y1="172.0" y2="52.0""#]
        {
            assert!(figure.svg.contains(part), "{part} in {}", figure.svg);
        }
        assert_eq!(figure.table.rows[1][..4], ["2", "25.0 %", "-", "50.0 %"]);
        assert_eq!(figure.table.rows[0][5..], ["10.0 %", "-"]);
        assert_eq!(figure.table.rows[1][5..], ["-", "-"]);
        assert!(!figure.svg.contains("NaN") && !figure.svg.contains("inf"), "{}", figure.svg);
        assert_eq!(figure.legend, ["<a>", "b", "c"]);
    }
}
