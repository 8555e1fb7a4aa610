//! Renders a report as one HTML file that loads no other file, and holds the style that such pages share.

use super::plot::{self, escape};
use super::report::{Report, Table};
use anyhow::Context as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The style of reports, for light and dark screens.
const STYLE: &str = "
:root { color-scheme: light dark; --text: #1c2430; --soft: #5c6675; --back: #fff; --line: #d5dae1; --good: #1f7a45;
  --bad: #b3261e; --one: #2b7fb8; --two: #d2572b; --three: #2f8f5b; --four: #8a5bb5; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ee; --soft: #9aa4b2; --back: #14181e; --line: #343c47;
  --good: #56c58a; --bad: #f2837b; --one: #4da3dd; --two: #ee7b4f; --three: #5cc48d; --four: #b98fe0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--text); font: 13px system-ui, sans-serif; }
svg .soft { fill: var(--soft); } .soft { color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; } td, th { padding: .3rem .6rem; text-align: right;
  border-bottom: 1px solid var(--line); white-space: nowrap; } td:first-child, th:first-child { text-align: left; }
.reached { color: var(--good); } .missed { color: var(--bad); } .unknown { color: var(--soft); }
";

/// Renders a report as an HTML page.
pub fn page(report: &Report) -> String {
    let title = escape(&report.title);
    let mut body = format!("<h1>{title}</h1>\n");
    for text in &report.intro {
        body.push_str(&format!("<p>{}</p>\n", escape(text)));
    }
    body.push_str("<h2>Goals</h2>\n<ul>\n");
    for goal in &report.goals {
        let verdict = goal.verdict();
        body.push_str(&format!(
            "<li><strong class=\"{}\">{}</strong>: {}: {}</li>\n",
            verdict.class(),
            escape(&verdict.to_string()),
            escape(&goal.text()),
            escape(&goal.figures()),
        ));
    }
    body.push_str("</ul>\n");
    for plot in &report.plots {
        body.push_str(&format!("<h2>{}</h2>\n{}\n", escape(&plot.title), plot::svg(plot)));
    }
    for it in &report.tables {
        body.push_str(&table(it));
    }
    if !report.notes.is_empty() {
        body.push_str("<h2>Notes</h2>\n<ul>\n");
        for note in &report.notes {
            body.push_str(&format!("<li>{}</li>\n", escape(note)));
        }
        body.push_str("</ul>\n");
    }
    for line in report.origin() {
        body.push_str(&format!("<p class=\"soft\">{}</p>\n", escape(&line)));
    }
    document(&title, "", &body)
}

/// A page in the common style, with more style of its own. Title and body are HTML.
pub fn document(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}{style}</style></head><body>\n{body}</body>\
         </html>\n"
    )
}

fn table(table: &Table) -> String {
    let mut html = format!("<h2>{}</h2>\n", escape(&table.title));
    if !table.note.is_empty() {
        html.push_str(&format!("<p>{}</p>\n", escape(&table.note)));
    }
    let cells = |tag: &str, cells: &[String]| -> String {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    html.push_str("<div class=\"scroll\"><table>");
    html.push_str(&cells("th", &table.columns));
    for row in &table.rows {
        html.push_str(&cells("td", row));
    }
    html + "</table></div>\n"
}

impl Report {
    /// Writes `bench-COMMAND.json` and `.html` into a folder, and gives the path of the HTML page.
    pub fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let place = |extension: &str| folder.join(format!("bench-{}.{extension}", self.command));
        let write = |path: &Path, text: &str| {
            fs::write(path, text)
                .with_context(|| format!("cannot write {}; choose another folder with --out", path.display()))
        };
        write(&place("json"), &(serde_json::to_string_pretty(&self.json())? + "\n"))?;
        write(&place("html"), &page(self))?;
        Ok(place("html"))
    }
}
