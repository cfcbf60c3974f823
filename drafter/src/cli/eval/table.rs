//! The result for people.

use super::document::Document;
use super::figures::Figure;

/// Tables of tokens per round, then the verdicts.
pub(crate) fn text(document: &Document<'_>) -> String {
    let mut lines = Vec::new();
    let classes: Vec<&str> = document.suite.classes.iter().map(|class| class.class).collect();
    let mut head = vec!["drafter".to_owned(), "drafts".to_owned()];
    if classes.len() > 1 {
        head.extend(classes.iter().map(|class| (*class).to_owned()));
    }
    head.push("all (95 % interval)".into());
    let mut rows = vec![head];
    for result in &document.results {
        let mut row = vec![result.drafter.to_owned(), result.draft_max.to_string()];
        let (all, groups) = match result.groups.split_last() {
            Some((all, groups)) => (all.tokens_per_round, groups),
            None => (None, &[][..]),
        };
        row.extend(groups.iter().map(|group| number(group.tokens_per_round)));
        row.push(with_interval(all));
        rows.push(row);
    }
    lines.push(format!(
        "tokens per round over {} prompts, at most {} tokens each",
        document.suite.prompts, document.max_tokens
    ));
    lines.extend(aligned(&rows));
    if let Some(speed) = &document.speed {
        let change = |figure: Option<Figure>| match figure {
            None => "-".to_owned(),
            Some(f) => format!("{:+.1} %{}", 100.0 * f.value, ends(f, 100.0, 1)),
        };
        let mut rows = vec![
            ["drafter", "drafts", "tokens per second", "against plain"].map(str::to_owned).to_vec(),
            vec!["plain".into(), "0".into(), with_interval(speed.plain_per_second), "-".into()],
        ];
        for rate in &speed.drafting {
            rows.push(vec![
                rate.drafter.into(),
                rate.draft_max.to_string(),
                with_interval(rate.per_second),
                change(rate.against_plain),
            ]);
        }
        lines.push(String::new());
        lines.extend(aligned(&rows));
    }
    lines.push(String::new());
    lines.push(identity(document));
    lines.extend(document.verdicts.iter().cloned());
    lines.join("\n") + "\n"
}

/// Whether the served loop gave what was computed, in a line.
pub(crate) fn identity(document: &Document<'_>) -> String {
    let identity = &document.identity;
    match &identity.difference {
        Some(found) => format!(
            "different: prompt {} served {}: ids {}{}",
            found.prompt + 1,
            found.drafter.map_or_else(
                || "plainly".into(),
                |name| format!("with {name} at {} drafts", found.draft_max)
            ),
            found.ids,
            found.round.map_or_else(String::new, |n| format!(", round {} is another", n + 1))
        ),
        None if identity.prompts_served == 0 => "not checked: no prompt was served".into(),
        None => format!(
            "identical: {} of {} prompts served with every drafter and draft length",
            identity.prompts_served, document.suite.prompts
        ),
    }
}

fn number(figure: Option<Figure>) -> String {
    figure.map_or_else(|| "-".into(), |figure| format!("{:.3}", figure.value))
}

fn with_interval(figure: Option<Figure>) -> String {
    figure.map_or_else(|| "-".into(), |f| format!("{:.3}{}", f.value, ends(f, 1.0, 3)))
}

fn ends(figure: Figure, factor: f64, digits: usize) -> String {
    match (figure.low, figure.high) {
        (Some(low), Some(high)) => {
            format!(" ({:.digits$}..{:.digits$})", factor * low, factor * high)
        }
        _ => String::new(),
    }
}

/// Columns of one width each.
fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
