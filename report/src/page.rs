//! The page: skeleton, headings, tables, charts.

use std::fmt::Write as _;

use crate::bars::SERIES;
use crate::lines::marker;
use crate::text::escaped;

/// A chart, ready to stand in a page.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    pub(crate) title: String,
    pub(crate) description: String,
    /// Pixels.
    pub(crate) height: usize,
    pub(crate) svg: String,
    /// Names of lines, in the order of their colours.
    pub(crate) legend: Vec<String>,
    pub(crate) table: Table,
}

/// A table of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What it holds.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// The rows; the first cell names its row.
    pub rows: Vec<Vec<String>>,
}

/// A page in the making.
#[derive(Debug, Clone)]
pub struct Page {
    title: String,
    lead: String,
    body: String,
    charts: usize,
}

impl Page {
    /// A page with a title and a sentence below it.
    #[must_use]
    pub fn new(title: &str, lead: &str) -> Self {
        Self { title: title.into(), lead: lead.into(), body: String::new(), charts: 0 }
    }

    /// Begins a section.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escaped(text));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escaped(text));
    }

    /// What is most important, a line each.
    pub fn verdicts<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) {
        self.body.push_str("<ul class=\"verdicts\">\n");
        for line in lines {
            let _ = writeln!(self.body, "<li>{}</li>", escaped(line));
        }
        self.body.push_str("</ul>\n");
    }

    /// Names and what they are.
    pub fn facts(&mut self, facts: &[(String, String)]) {
        self.body.push_str("<dl>\n");
        for (name, fact) in facts {
            let _ = writeln!(self.body, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(fact));
        }
        self.body.push_str("</dl>\n");
    }

    /// A table that is always there.
    pub fn table(&mut self, table: &Table) {
        write_table(&mut self.body, table);
    }

    /// A chart over the whole width.
    pub fn chart(&mut self, figure: &Figure) {
        self.figure(figure);
    }

    /// Small charts side by side where there is room.
    pub fn small_charts(&mut self, figures: &[Figure]) {
        self.body.push_str("<div class=\"grid-of-charts\">\n");
        for figure in figures {
            self.figure(figure);
        }
        self.body.push_str("</div>\n");
    }

    fn figure(&mut self, figure: &Figure) {
        self.charts += 1;
        let (id, title) = (self.charts, escaped(&figure.title));
        let out = &mut self.body;
        let _ = writeln!(
            out,
            "<figure><figcaption>{title}</figcaption>\n<svg role=\"img\" aria-labelledby=\"t{id} d{id}\" width=\"100%\" \
             height=\"{}\"><title id=\"t{id}\">{title}</title><desc id=\"d{id}\">{}</desc>{}</svg>",
            figure.height,
            escaped(&figure.description),
            figure.svg
        );
        if figure.legend.len() > 1 {
            out.push_str("<ul class=\"legend\">\n");
            for (n, name) in figure.legend.iter().enumerate() {
                let _ = writeln!(
                    out,
                    "<li><svg aria-hidden=\"true\" width=\"30\" height=\"12\"><g class=\"l{}\"><line class=\"line\" \
                     x1=\"0\" x2=\"30\" y1=\"6\" y2=\"6\"/>{}</g></svg> {}</li>",
                    n % SERIES,
                    marker(n, "15", 6.0),
                    escaped(name)
                );
            }
            out.push_str("</ul>\n");
        }
        out.push_str("<details><summary>As a table</summary>\n");
        write_table(out, &figure.table);
        out.push_str("</details></figure>\n");
    }

    /// The whole page.
    #[must_use]
    pub fn finish(self) -> String {
        let (title, lead) = (escaped(&self.title), escaped(&self.lead));
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             img-src data:\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
             <h1>{title}</h1>\n<p class=\"lead\">{lead}</p>\n{}</main>\n</body>\n</html>\n",
            include_str!("page.css"),
            self.body
        )
    }
}

fn write_table(out: &mut String, table: &Table) {
    let caption = escaped(&table.caption);
    let _ = write!(
        out,
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table><caption>{caption}</caption>\n\
         <thead><tr>"
    );
    for name in &table.head {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escaped(name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (n, cell) in row.iter().enumerate() {
            let cell = escaped(cell);
            let _ = if n == 0 {
                write!(out, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(out, "<td>{cell}</td>")
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Tags are closed in their order, and every place in per cent is in the box.
    pub(crate) fn check(figure: &Figure) {
        let mut page = Page::new("title", "lead");
        page.chart(figure);
        balanced(&page.finish());
        for place in
            figure.svg.split("=\"").filter_map(|part| part.split_once("%\"")).map(|(x, _)| x)
        {
            let place: f64 = place.parse().unwrap();
            assert!((0.0..=100.0).contains(&place), "{place} in {}", figure.svg);
        }
        assert!(figure.table.rows.iter().all(|row| row.len() == figure.table.head.len()));
    }

    fn balanced(html: &str) {
        let mut open: Vec<&str> = Vec::new();
        for tag in
            html.split('<').skip(1).filter_map(|part| part.split_once('>')).map(|(tag, _)| tag)
        {
            let name = tag.split([' ', '\n', '/']).next().unwrap();
            if let Some(closed) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(closed), "{html}");
            } else if !tag.ends_with('/') && !["!doctype", "meta", "link"].contains(&name) {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn nothing_is_loaded_and_nothing_runs() {
        let mut page = Page::new("<script>x</script>", "\"lead\" & more");
        page.heading("<b>");
        page.paragraph("<i>");
        page.verdicts(["<u>", "two"]);
        page.facts(&[("<dt>".into(), "<dd>".into())]);
        let cell = || "<img src=x onerror=y>".to_owned();
        page.table(&Table {
            caption: cell(),
            head: vec![cell()],
            rows: vec![vec![cell()], vec![]],
        });
        let html = page.finish();
        balanced(&html);
        for tag in ["<script", "<b>", "<i>", "<u>", "<img", "src=\"", "http:", "https:", "url("] {
            assert!(!html.contains(tag), "{tag} in {html}");
        }
        assert!(html.contains("<title>&lt;script&gt;x&lt;/script&gt;</title>"));
        assert!(html.contains("default-src 'none'"));
    }
}
