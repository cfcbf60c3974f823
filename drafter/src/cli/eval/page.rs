//! The result as a page with charts.

use formats::Location;
use report::{Bar, BarGroup, Bars, Format, Lines, Page, Point, Series, Table};

use super::arms::FileHash;
use super::document::{Document, PerDrafter, Rate};
use super::figures::Figure;
use super::table;

/// The page.
pub(super) fn html(document: &Document<'_>) -> String {
    let names: Vec<&str> = document.drafters.iter().map(|drafter| drafter.name).collect();
    let mut page = Page::new(
        "Tokens per round",
        &format!(
            "{} over {} prompts, at most {} tokens each, by drafter {}",
            names.join(", "),
            document.suite.prompts,
            document.max_tokens,
            document.version
        ),
    );
    let identity = table::identity(document);
    page.verdicts(document.verdicts.iter().map(String::as_str).chain([identity.as_str()]));
    tokens_per_round(&mut page, document);
    changes(&mut page, document);
    positions(&mut page, document);
    speed(&mut page, document);
    page.heading("What was measured");
    page.facts(&facts(document));
    files(&mut page, document);
    page.finish()
}

fn tokens_per_round(page: &mut Page, document: &Document<'_>) {
    page.heading("Tokens per round");
    page.paragraph("Delivered tokens after the first one over rounds; whiskers are 95 % intervals over prompts.");
    for draft_max in document.draft_max {
        let of: Vec<&PerDrafter<'_>> =
            document.results.iter().filter(|result| result.draft_max == *draft_max).collect();
        let title = format!("Tokens per round, at most {draft_max} drafts");
        let bars = |class: usize| {
            let bar = |(series, result): (usize, &&PerDrafter<'_>)| {
                bar(result.drafter, series, result.groups[class].tokens_per_round)
            };
            of.iter().enumerate().map(bar).collect()
        };
        let groups = of[0].groups.iter().enumerate();
        let groups = groups
            .map(|(n, group)| BarGroup { heading: class(group.class.as_deref()), bars: bars(n) });
        page.chart(
            &Bars {
                description: format!(
                    "{title}, of every drafter, by class of prompts and over all."
                ),
                title,
                columns: ["class", "drafter"].map(str::to_owned),
                quantity: "tokens per round".into(),
                format: Format::Fixed(3),
                reference: None,
                mark: None,
                groups: groups.collect(),
            }
            .figure(),
        );
    }
}

fn changes(page: &mut Page, document: &Document<'_>) {
    let Some(first) = document.comparisons.first() else { return };
    page.heading(&format!("Against {}", first.against));
    page.paragraph(
        "The change of tokens per round on the same prompts. An interval that does not touch 0 shows a difference.",
    );
    for draft_max in document.draft_max {
        let of: Vec<_> =
            document.comparisons.iter().filter(|one| one.draft_max == *draft_max).collect();
        let title = format!("Change of tokens per round, at most {draft_max} drafts");
        let groups = of[0].groups.iter().enumerate().map(|(n, group)| BarGroup {
            heading: class(group.class.as_deref()),
            // The first drafter has the first colour everywhere.
            bars: of
                .iter()
                .enumerate()
                .map(|(s, one)| bar(one.drafter, s + 1, one.groups[n].change))
                .collect(),
        });
        page.chart(
            &Bars {
                description: format!(
                    "{title}, against {}, by class of prompts and over all.",
                    first.against
                ),
                title,
                columns: ["class", "drafter"].map(str::to_owned),
                quantity: "change".into(),
                format: Format::Change(1),
                reference: None,
                mark: None,
                groups: groups.collect(),
            }
            .figure(),
        );
    }
}

fn positions(page: &mut Page, document: &Document<'_>) {
    let Some(most) = document.draft_max.iter().max() else { return };
    let of: Vec<&PerDrafter<'_>> =
        document.results.iter().filter(|result| result.draft_max == *most).collect();
    page.heading("Acceptance by position");
    page.paragraph(&format!(
        "How often the first, second, … of at most {most} drafts was delivered, of the times it was verified."
    ));
    let chart = |n: usize| {
        let name = class(of[0].groups[n].class.as_deref());
        let title = format!("Acceptance by position, {name}");
        let series = of.iter().map(|result| Series {
            name: result.drafter.to_owned(),
            points: result.groups[n].by_position.iter().map(|p| p.share.map(point)).collect(),
        });
        Lines {
            description: format!("{title}: one line per drafter over the positions of a round's drafts, with 95 % intervals."),
            title,
            place: "draft of a round".into(),
            format: Format::Percent(1),
            places: (1..=*most).map(|position| position.to_string()).collect(),
            series: series.collect(),
        }
        .figure()
    };
    let all = of[0].groups.len() - 1;
    page.chart(&chart(all));
    page.small_charts(&(0..all).map(chart).collect::<Vec<_>>());
}

fn speed(page: &mut Page, document: &Document<'_>) {
    let Some(speed) = &document.speed else { return };
    page.heading("Speed");
    page.paragraph(&format!(
        "Tokens per second after the first, on {} threads; every run twice, the second time in the reverse order.",
        document.threads
    ));
    let series = |rate: &Rate<'_>| {
        document.drafters.iter().position(|d| d.name == rate.drafter).unwrap_or(0)
    };
    let drafts = |rate: &Rate<'_>| {
        bar(&format!("{}, {} drafts", rate.drafter, rate.draft_max), series(rate), rate.per_second)
    };
    let plain = bar("no drafter", document.drafters.len(), speed.plain_per_second);
    let bars = std::iter::once(plain).chain(speed.drafting.iter().map(drafts)).collect();
    page.chart(
        &Bars {
            title: "Tokens per second".into(),
            description:
                "Tokens per second without a drafter, and with each drafter and draft length."
                    .into(),
            columns: ["", "what"].map(str::to_owned),
            quantity: "tokens per second".into(),
            format: Format::Fixed(1),
            reference: None,
            mark: None,
            groups: vec![BarGroup { heading: String::new(), bars }],
        }
        .figure(),
    );
}

fn facts(document: &Document<'_>) -> Vec<(String, String)> {
    let classes: Vec<String> = document
        .suite
        .classes
        .iter()
        .map(|class| format!("{} {}", class.prompts, class.class))
        .collect();
    let or_none = |text: Option<&str>| text.unwrap_or("none").to_owned();
    let think = match document.think {
        None => "as the template says",
        Some(true) => "on",
        Some(false) => "off",
    };
    [
        ("suites", document.suite.suites.join(", ")),
        ("prompts", classes.join(", ")),
        ("prompts' SHA-256", document.suite.prompts_sha256.to_owned()),
        ("thinking", think.into()),
        ("stop tokens", if document.ignore_eos { "ignored" } else { "end an answer" }.into()),
        ("template's SHA-256", or_none(document.chat_template_sha256)),
        ("arithmetic", format!("{}, keys and values in {}", document.act, document.kv)),
        ("computed with", format!("{}, {} threads", document.isa, document.threads)),
        ("power", document.power.unwrap_or("not known").into()),
    ]
    .map(|(name, fact)| (name.to_owned(), fact))
    .to_vec()
}

fn files(page: &mut Page, document: &Document<'_>) {
    let row = |what: &str, file: &FileHash| {
        let Location(path) = &file.path;
        let sha256 = file.sha256.clone().unwrap_or_default();
        vec![what.to_owned(), formats::shown_path(path), file.size_bytes.to_string(), sha256]
    };
    let target = document.target.iter().map(|file| row("target", file));
    let drafters =
        document.drafters.iter().flat_map(|d| d.files.iter().map(|file| row(d.name, file)));
    page.table(&Table {
        caption: "Files".into(),
        head: ["what", "path", "bytes", "SHA-256"].map(str::to_owned).to_vec(),
        rows: target.chain(drafters).collect(),
    });
}

fn class(name: Option<&str>) -> String {
    name.unwrap_or("all").to_owned()
}

fn bar(label: &str, series: usize, figure: Option<Figure>) -> Bar {
    Bar {
        label: label.into(),
        series,
        value: figure.map(|figure| figure.value),
        interval: figure.and_then(|figure| figure.low.zip(figure.high)),
        mark: None,
    }
}

fn point(figure: Figure) -> Point {
    Point { value: figure.value, interval: figure.low.zip(figure.high) }
}
