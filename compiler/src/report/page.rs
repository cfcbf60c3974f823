//! The report as a page with charts.

use std::collections::BTreeMap;

use ::report::{Bar, BarGroup, Bars, Figure, Format, Histogram, Page, Table};
use formats::shown_path;

use super::{CalibrationReport, Matrix, OutputFile, Quality, Report};

/// Relative squared error of the best scale and codes for Gaussian weights in groups of 128, over random
/// groups. Without the groups, the three-level Lloyd-Max quantizer has 0.1902.
const GAUSSIAN_ERROR: f64 = 0.1871;

/// Share of a Gaussian below the threshold of that quantizer, 0.612 standard deviations.
const GAUSSIAN_ZEROS: f64 = 0.4595;

/// The page.
pub(super) fn html(report: &Report) -> String {
    let name = shown_path(&report.input.path);
    let done = report.rule.map_or("converted", |_| "ternarized");
    let mut page = Page::new(
        &format!("A drafter, {done}"),
        &format!("{name}, by ternarize {}", report.version),
    );
    if let Some(total) = &report.total {
        let lines = [Some(verdict(report, total)), calibrated(report)];
        page.verdicts(lines.iter().flatten().map(String::as_str));
        errors(&mut page, report);
        output_errors(&mut page, report);
        zeros(&mut page, report);
        scales(&mut page, report, total);
    }
    page.heading("Files");
    page.facts(&facts(report));
    let row = |o: &OutputFile| {
        vec![shown_path(&o.path), o.format.into(), o.size_bytes.to_string(), o.sha256.clone()]
    };
    page.table(&Table {
        caption: "Outputs".into(),
        head: ["path", "format", "bytes", "SHA-256"].map(str::to_owned).to_vec(),
        rows: report.outputs.iter().map(row).collect(),
    });
    for note in &report.notes {
        page.paragraph(&format!("Note: {note}"));
    }
    page.finish()
}

fn verdict(report: &Report, total: &Quality) -> String {
    let over = 100.0 * (total.relative_error / GAUSSIAN_ERROR - 1.0);
    let place = if over < 0.0 { "below" } else { "above" };
    format!(
        "Relative squared error {:.4} over {} weights in {} matrices, {:.1} % {place} the optimum for Gaussian weights \
         ({GAUSSIAN_ERROR}); {:.1} % zeros; rule {}.",
        total.relative_error,
        total.weights,
        report.matrices.len(),
        over.abs(),
        100.0 * total.zero_share,
        report.rule.unwrap_or("none")
    )
}

/// What calibration brought, where it was used.
fn calibrated(report: &Report) -> Option<String> {
    let CalibrationReport { source, positions, .. } = report.calibration.as_ref()?;
    let with = match positions {
        Some(positions) => format!("rows of {positions} positions in {}", shown_path(source)),
        None => "the weights of the norms".to_owned(),
    };
    let mut ratios: Vec<f64> = report
        .matrices
        .iter()
        .filter_map(|matrix| matrix.calibration.as_ref())
        .filter(|calibration| calibration.optimal_loss > 0.0)
        .map(|calibration| calibration.loss / calibration.optimal_loss)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let (first, last) = (ratios.first()?, ratios.last()?);
    Some(format!(
        "Calibrated with {with}: the relative squared error of the outputs is {first:.2} to {last:.2} times that of the \
         optimum, {:.2} times in the middle of {} matrices.",
        ratios[ratios.len() / 2],
        ratios.len()
    ))
}

/// Errors of what the matrices give, by the moments of their inputs.
fn output_errors(page: &mut Page, report: &Report) {
    if report.calibration.is_none() {
        return;
    }
    page.heading("Error of the outputs");
    page.paragraph(
        "The sum of squared errors of a matrix's outputs over their sum of squares, by the moments of its inputs that \
         calibration used. Calibration lowers this error; that of the weights grows with it.",
    );
    let bars = |(label, matrix): &(String, &Matrix)| {
        let calibration = matrix.calibration.as_ref()?;
        let mark = Some(calibration.optimal_loss);
        Some(Bar { mark, ..bar(label, calibration.loss) })
    };
    let group = |(heading, matrices): (String, Vec<(String, &Matrix)>)| BarGroup {
        heading,
        bars: matrices.iter().filter_map(bars).collect(),
    };
    page.chart(
        &Bars {
            title: "Error of the outputs by matrix".into(),
            description: "Relative squared error of the outputs of each calibrated matrix, by layer, with a mark where \
                          the optimum of the weights alone would be."
                .into(),
            columns: ["layer", "matrix"].map(str::to_owned),
            quantity: "calibrated".into(),
            format: Format::Fixed(4),
            reference: None,
            mark: Some("optimum of the weights alone".into()),
            groups: layers(report).into_iter().map(group).filter(|g| !g.bars.is_empty()).collect(),
        }
        .figure(),
    );
}

fn errors(page: &mut Page, report: &Report) {
    page.heading("Error");
    page.paragraph(
        "The sum of squared errors over the sum of squares, in the rotated basis. A matrix below the line has weights \
         that are easier than Gaussian ones; one far above it has groups in which few weights are large.",
    );
    let bars = |title: &str, description: &str, columns: [&str; 2], groups| Bars {
        title: title.into(),
        description: description.into(),
        columns: columns.map(str::to_owned),
        quantity: "relative squared error".into(),
        format: Format::Fixed(4),
        reference: Some(("Gaussian optimum".into(), GAUSSIAN_ERROR)),
        mark: None,
        groups,
    };
    let by_layer = groups(report).into_iter().filter_map(|(name, matrices)| {
        // Of weights of about one size, this is the layer's own error.
        let weights: u64 = matrices.iter().map(|(_, q)| q.weights).sum();
        let sum: f64 = matrices.iter().map(|(_, q)| q.relative_error * q.weights as f64).sum();
        (weights > 0).then(|| bar(&name, sum / weights as f64))
    });
    let by_layer = vec![BarGroup { heading: String::new(), bars: by_layer.collect() }];
    page.chart(
        &bars(
            "Error by layer",
            "Relative squared error of each layer, the mean of its matrices by their number of weights, beside the optimum \
             for Gaussian weights.",
            ["", "layer"],
            by_layer,
        )
        .figure(),
    );
    page.chart(
        &bars(
            "Error by matrix",
            "Relative squared error of each matrix, by layer, beside the optimum for Gaussian weights.",
            ["layer", "matrix"],
            by_matrix(report, |q| q.relative_error),
        )
        .figure(),
    );
}

fn zeros(page: &mut Page, report: &Report) {
    page.heading("Zeros");
    page.chart(
        &Bars {
            title: "Share of zeros by matrix".into(),
            description: "The share of weights that became 0 in each matrix, by layer, beside that of Gaussian weights."
                .into(),
            columns: ["layer", "matrix"].map(str::to_owned),
            quantity: "share of zeros".into(),
            format: Format::Percent(1),
            reference: Some(("Gaussian".into(), GAUSSIAN_ZEROS)),
            mark: None,
            groups: by_matrix(report, |q| q.zero_share),
        }
        .figure(),
    );
}

fn scales(page: &mut Page, report: &Report, total: &Quality) {
    page.heading("Scales");
    page.paragraph(
        "One scale per 128 weights, counted by its binary exponent: -6 counts scales from 2^-6 to below 2^-5. The numbers on \
         the bars are per cent.",
    );
    if total.zero_groups + total.underflow_groups > 0 {
        page.paragraph(&format!(
            "Without a scale: {} groups that are all zero, {} whose scale rounds to zero.",
            total.zero_groups, total.underflow_groups
        ));
    }
    page.chart(&histogram("All scales", &total.scale_exponents, &total.scale_exponents));
    let layers: Vec<Figure> = groups(report)
        .into_iter()
        .map(|(name, matrices)| {
            let mut counts = BTreeMap::new();
            for (exponent, n) in matrices.iter().flat_map(|(_, q)| &q.scale_exponents) {
                *counts.entry(*exponent).or_insert(0) += n;
            }
            histogram(&format!("Scales, {name}"), &counts, &total.scale_exponents)
        })
        .collect();
    page.small_charts(&layers);
}

/// Over the exponents of `range`, so that histograms can be compared.
fn histogram(title: &str, counts: &BTreeMap<i32, u64>, range: &BTreeMap<i32, u64>) -> Figure {
    let ends = range.first_key_value().zip(range.last_key_value());
    let exponents = ends.map_or(0..0, |((first, _), (last, _))| *first..last + 1);
    let count = |exponent: i32| counts.get(&exponent).copied().unwrap_or(0);
    Histogram {
        title: title.into(),
        description: format!("{title}: how many have which binary exponent."),
        bin: "binary exponent".into(),
        counted: "scales".into(),
        bins: exponents.map(|exponent| (exponent.to_string(), count(exponent))).collect(),
    }
    .figure()
}

fn bar(label: &str, value: f64) -> Bar {
    Bar { label: label.into(), series: 0, value: Some(value), interval: None, mark: None }
}

fn by_matrix(report: &Report, value: impl Fn(&Quality) -> f64) -> Vec<BarGroup> {
    let group = |(heading, matrices): (String, Vec<(String, &Quality)>)| BarGroup {
        heading,
        bars: matrices.iter().map(|(label, quality)| bar(label, value(quality))).collect(),
    };
    groups(report).into_iter().map(group).collect()
}

/// Figures of the matrices that were ternarized, by layer.
fn groups(report: &Report) -> Vec<(String, Vec<(String, &Quality)>)> {
    let mut groups = Vec::new();
    for (name, matrices) in layers(report) {
        let qualities = matrices.into_iter();
        let qualities = qualities.filter_map(|(label, m)| Some((label, m.quality.as_ref()?)));
        groups.push((name, qualities.collect()));
    }
    groups
}

/// The matrices by layer, those of none at the end.
fn layers(report: &Report) -> Vec<(String, Vec<(String, &Matrix)>)> {
    let mut layers: BTreeMap<u64, Vec<(String, &Matrix)>> = BTreeMap::new();
    for matrix in &report.matrices {
        let (layer, label) = short(&matrix.name);
        layers.entry(layer.unwrap_or(u64::MAX)).or_default().push((label, matrix));
    }
    let name = |layer: u64| match layer {
        u64::MAX => "around them".to_owned(),
        layer => format!("layer {layer}"),
    };
    layers.into_iter().map(|(layer, matrices)| (name(layer), matrices)).collect()
}

/// The layer of a published name and what is left of it in a chart.
fn short(name: &str) -> (Option<u64>, String) {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let of_layer = name.strip_prefix("layers.").and_then(|rest| {
        let (layer, rest) = rest.split_once('.')?;
        Some((layer.parse().ok()?, rest))
    });
    let (layer, rest) = match of_layer {
        Some((layer, rest)) => (Some(layer), rest),
        None => (None, name),
    };
    let rest = rest.strip_suffix(".kernel_projection").unwrap_or(rest);
    (layer, rest.rsplit('.').next().unwrap_or(rest).to_owned())
}

fn facts(report: &Report) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let input = &report.input;
    let mut facts = vec![
        fact("input", format!("{}, {}", shown_path(&input.path), input.container)),
        fact("parameters", input.parameters.to_string()),
        fact("rotation block", report.block.to_string()),
    ];
    for file in &input.files {
        let text = format!(
            "{}, {} bytes, SHA-256 {}",
            shown_path(&file.path),
            file.size_bytes,
            file.sha256
        );
        facts.push(fact("input file", text));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_charts_are_short() {
        let of = |name: &str| short(name);
        assert_eq!(of("layers.3.self_attn.q_proj.weight"), (Some(3), "q_proj".into()));
        assert_eq!(of("layers.0.mlp_conv.kernel_projection.weight"), (Some(0), "mlp_conv".into()));
        assert_eq!(of("fc.weight"), (None, "fc".into()));
        let selector = "candidate_selector.hidden_projection.weight";
        assert_eq!(of(selector), (None, "hidden_projection".into()));
    }
}
