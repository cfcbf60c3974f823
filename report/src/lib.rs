//! Pages that show what was measured: one HTML file with inline SVG, which loads nothing and runs nothing.
//!
//! Horizontal places in a chart are per cent of its width and vertical ones pixels, so that a chart
//! fits a telephone and a desk without a script, and its letters keep their size. Every chart has a
//! title and a description for screen readers, and its figures once more as a table. All text is
//! escaped.
//!
//! ```
//! use report::{Bar, BarGroup, Bars, Format, Page};
//!
//! let bar = Bar { label: "q_proj".into(), series: 0, value: Some(0.187), interval: None, mark: None };
//! let bars = Bars {
//!     title: "Error".into(),
//!     description: "Relative squared error by matrix.".into(),
//!     columns: ["layer".into(), "matrix".into()],
//!     quantity: "error".into(),
//!     format: Format::Fixed(4),
//!     reference: Some(("optimum".into(), 0.1871)),
//!     mark: None,
//!     groups: vec![BarGroup { heading: "layer 0".into(), bars: vec![bar] }],
//! };
//! let mut page = Page::new("A report", "Of one matrix.");
//! page.heading("Errors");
//! page.chart(&bars.figure());
//! assert!(page.finish().starts_with("<!doctype html>"));
//! ```

#![forbid(unsafe_code)]

mod axis;
mod bars;
mod histogram;
mod lines;
mod page;
mod text;

pub use bars::{Bar, BarGroup, Bars};
pub use histogram::Histogram;
pub use lines::{Lines, Point, Series};
pub use page::{Figure, Page, Table};
pub use text::Format;
