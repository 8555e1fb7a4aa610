//! A report: goals, tables, plots and the origin of its figures. It shows a missing figure as "not measured", never as
//! zero.

use super::machine::{Machine, build, load_average};
use super::numbers::{NOT_MEASURED, cell, median, plain, range};
use super::plot::Plot;
use anyhow::Context as _;
use chrono::{SecondsFormat, Utc};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The good side of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    AtLeast,
    AtMost,
}

/// A goal and its measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    pub figure: String,
    pub side: Side,
    pub bound: f64,
    /// The median of the rounds, if any round has a figure.
    pub measured: Option<f64>,
    pub rounds: Vec<f64>,
    /// The reason why the goal is missed, or why it has no figure.
    pub remark: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    Reached,
    /// The distance as a share of the bound; the figure itself where the bound is zero.
    Missed(f64),
    NotMeasured,
}

impl Verdict {
    /// The CSS class of the verdict's word.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::Missed(_) => "missed",
            Self::NotMeasured => "unknown",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reached => f.write_str("reached"),
            Self::Missed(by) => write!(f, "missed by {:.1} %", by * 100.0),
            Self::NotMeasured => f.write_str(NOT_MEASURED),
        }
    }
}

impl Goal {
    /// A goal with the figure of each round; without a figure it counts as not measured.
    pub fn at_least(figure: &str, bound: f64, rounds: &[f64]) -> Self {
        Self::of(figure, Side::AtLeast, bound, rounds)
    }

    /// Like [`Goal::at_least`], with an upper bound.
    pub fn at_most(figure: &str, bound: f64, rounds: &[f64]) -> Self {
        Self::of(figure, Side::AtMost, bound, rounds)
    }

    fn of(figure: &str, side: Side, bound: f64, rounds: &[f64]) -> Self {
        let rounds: Vec<f64> = rounds.iter().copied().filter(|it| it.is_finite()).collect();
        Self {
            figure: figure.to_owned(),
            side,
            bound,
            measured: median(&rounds),
            rounds,
            remark: String::new(),
        }
    }

    pub fn with_remark(mut self, remark: impl Into<String>) -> Self {
        self.remark = remark.into();
        self
    }

    /// Adds the reason to the remark, if the goal is missed.
    pub fn if_missed(mut self, what: impl Into<String>) -> Self {
        if matches!(self.verdict(), Verdict::Missed(_)) {
            let what = what.into();
            self.remark = if self.remark.is_empty() {
                what
            } else {
                join(&self.remark, &what)
            };
        }
        self
    }

    pub fn verdict(&self) -> Verdict {
        let Some(measured) = self.measured else {
            return Verdict::NotMeasured;
        };
        let short = match self.side {
            Side::AtLeast => self.bound - measured,
            Side::AtMost => measured - self.bound,
        };
        if short <= 0.0 {
            Verdict::Reached
        } else if self.bound == 0.0 {
            Verdict::Missed(short)
        } else {
            Verdict::Missed(short / self.bound)
        }
    }

    pub fn text(&self) -> String {
        let side = match self.side {
            Side::AtLeast => "at least",
            Side::AtMost => "at most",
        };
        format!("{}, {side} {}", self.figure, plain(self.bound))
    }

    /// The measurement in words.
    pub fn figures(&self) -> String {
        let Some(measured) = self.measured else {
            return join(NOT_MEASURED, &self.remark);
        };
        let range = match range(&self.rounds) {
            Some((low, high)) if self.rounds.len() > 1 => format!(
                "{} (median of {} rounds, {} to {})",
                plain(measured),
                self.rounds.len(),
                plain(low),
                plain(high)
            ),
            _ => plain(measured),
        };
        join(&range, &self.remark)
    }
}

fn join(text: &str, remark: &str) -> String {
    if remark.is_empty() {
        text.to_owned()
    } else {
        format!("{text}; {remark}")
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    pub title: String,
    pub note: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: &str, note: &str, columns: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            note: note.to_owned(),
            columns: columns.iter().map(|it| (*it).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }
}

/// The whole report of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `ceiling`, `compare` or `scale`.
    pub command: String,
    pub title: String,
    pub intro: Vec<String>,
    /// Whether the run was a trial of a few seconds; its figures mean nothing.
    pub is_quick: bool,
    pub version: String,
    /// The first digits of the SHA-256 of the program's file; reports of one build share it.
    pub build: String,
    pub began: String,
    /// The start of the idempotency keys.
    pub seed: u16,
    pub machine: Machine,
    /// The load averages after the run.
    pub load_after: String,
    pub redis: String,
    pub postgres: String,
    /// The time that the disk takes to sync 4 KiB, in microseconds.
    pub sync_micros: Option<f64>,
    pub goals: Vec<Goal>,
    pub tables: Vec<Table>,
    pub plots: Vec<Plot>,
    pub notes: Vec<String>,
    pub figures: Value,
}

impl Report {
    /// An empty report of a run that starts now.
    pub fn begin(command: &str, title: &str, is_quick: bool, seed: u16) -> Self {
        Self {
            command: command.to_owned(),
            title: title.to_owned(),
            intro: Vec::new(),
            is_quick,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: build(),
            began: Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true),
            seed,
            machine: Machine::of_this_run(),
            load_after: String::new(),
            redis: NOT_MEASURED.to_owned(),
            postgres: NOT_MEASURED.to_owned(),
            sync_micros: None,
            goals: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
            notes: Vec::new(),
            figures: json!({}),
        }
    }

    /// Records the load at the end of the run, and warns in the notes if it was a trial.
    pub fn end(&mut self) {
        self.load_after = load_average();
        if self.is_quick {
            self.notes.insert(
                0,
                "This was a trial of a few seconds (--quick): its figures say nothing.".to_owned(),
            );
        }
        if cfg!(debug_assertions) {
            self.notes.insert(
                0,
                "This program was built without optimisation: its figures say nothing.".to_owned(),
            );
        }
    }

    /// The origin of the figures: build, time and machine.
    pub fn origin(&self) -> Vec<String> {
        vec![
            format!(
                "flashsale {} (build {}) bench {}, {}; seed {}. {}; Redis {}, Postgres {}; the disk takes {} µs to have 4 KiB. \
                 Load average before {}, after {}.",
                self.version,
                self.build,
                self.command,
                self.began,
                self.seed,
                self.machine,
                self.redis,
                self.postgres,
                cell(self.sync_micros, 0),
                self.machine.load_before,
                self.load_after,
            ),
            "Generator, program, Redis and Postgres share the processors. Compare figures of one run only.".to_owned(),
        ]
    }

    /// The report in Markdown, for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("# {}\n\n", self.title);
        for line in &self.intro {
            text.push_str(&format!("{line}\n\n"));
        }
        for table in &self.tables {
            text.push_str(&markdown(table));
        }
        for goal in &self.goals {
            text.push_str(&format!("{}: {}: {}\n", goal.verdict(), goal.text(), goal.figures()));
        }
        text.push('\n');
        for note in &self.notes {
            text.push_str(&format!("- {note}\n"));
        }
        for line in self.origin() {
            text.push_str(&format!("{line}\n"));
        }
        text
    }

    /// The report in JSON, with the verdict of each goal.
    pub fn json(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(goals) = value["goals"].as_array_mut() {
            for (written, goal) in goals.iter_mut().zip(&self.goals) {
                written["verdict"] = goal.verdict().to_string().into();
                written["is_reached"] = match goal.verdict() {
                    Verdict::Reached => true.into(),
                    Verdict::Missed(_) => false.into(),
                    Verdict::NotMeasured => Value::Null,
                };
            }
        }
        value
    }
}

/// The folder for reports, after a trial write. If the run writes no report, dropping this removes the folders that it
/// created.
pub struct Folder {
    /// Created folders, the innermost first.
    made: Vec<PathBuf>,
}

impl Folder {
    /// Creates the missing folders, and checks that the last one is writable.
    pub fn ready(folder: &Path) -> anyhow::Result<Self> {
        let missing = folder
            .ancestors()
            .take_while(|it| !it.as_os_str().is_empty() && !it.exists());
        let ready = Self {
            made: missing.map(Path::to_path_buf).collect(),
        };
        let trial = folder.join(format!("bench-trial-{}", Uuid::new_v4().simple()));
        let tried = fs::create_dir_all(folder).and_then(|()| {
            let written = fs::write(&trial, "a trial");
            // If the trial write failed, the file may not exist.
            let _rest = fs::remove_file(&trial);
            written
        });
        tried.with_context(|| {
            format!(
                "no report can be written into {}; choose another folder with --out",
                folder.display()
            )
        })?;
        Ok(ready)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that is not empty stays, and so do its parents.
        let is_removed = |folder: &PathBuf| fs::remove_dir(folder).is_ok();
        let _stays = self.made.iter().find(|folder| !is_removed(folder));
    }
}

fn markdown(table: &Table) -> String {
    let mut text = format!("## {}\n\n", table.title);
    if !table.note.is_empty() {
        text.push_str(&format!("{}\n\n", table.note));
    }
    let widths: Vec<usize> = (0..table.columns.len())
        .map(|column| {
            let cells = table.rows.iter().chain([&table.columns]);
            let widths = cells.filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            widths.max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| -> String {
        let cells = cells.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
            if at == 0 {
                format!(" {cell:<width$} |")
            } else {
                format!(" {cell:>width$} |")
            }
        });
        format!("|{}\n", cells.collect::<String>())
    };
    text.push_str(&line(&table.columns));
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    text.push_str(&line(&rules));
    for row in &table.rows {
        text.push_str(&line(row));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::{grouped, ratio};
    use crate::page::page;

    #[test]
    fn a_goal_is_reached_missed_by_so_much_or_not_measured() {
        let least = |rounds: &[f64]| Goal::at_least("a ÷ b", 0.5, rounds).verdict();
        assert_eq!(least(&[0.4, 0.5, 0.9]), Verdict::Reached);
        assert_eq!(least(&[0.25]), Verdict::Missed(0.5));
        assert_eq!(least(&[]), Verdict::NotMeasured);
        assert_eq!(least(&[f64::NAN]), Verdict::NotMeasured);
        let most = |measured| Goal::at_most("lost", 0.0, &[measured]).verdict();
        assert_eq!((most(0.0), most(2.0)), (Verdict::Reached, Verdict::Missed(2.0)));
        assert_eq!(Verdict::Missed(0.125).to_string(), "missed by 12.5 %");
    }

    #[test]
    fn what_was_not_measured_is_no_number() {
        assert_eq!(cell(None, 1), NOT_MEASURED);
        assert_eq!(cell(Some(f64::INFINITY), 1), NOT_MEASURED);
        assert_eq!(cell(Some(0.0), 1), "0.0");
        assert_eq!((ratio(Some(1.0), None), ratio(Some(1.0), Some(0.0))), (None, None));
        assert_eq!(median(&[]), None);
        let goal = Goal::at_least("x", 1.0, &[]).with_remark("there is no cluster");
        assert_eq!(goal.figures(), "not measured; there is no cluster");
        let said = |measured| Goal::at_least("x", 1.0, &[measured]).if_missed("so much").remark;
        assert_eq!((said(0.5), said(1.0)), ("so much".to_owned(), String::new()));
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(
            (grouped(-1234.0), grouped(999.0), grouped(-0.2)),
            ("-1,234".to_owned(), "999".to_owned(), "0".to_owned())
        );
        assert_eq!(
            (plain(0.65), plain(5.0), plain(350.0)),
            ("0.65".to_owned(), "5".to_owned(), "350".to_owned())
        );
        assert_eq!(median(&[3.0, 1.0, 2.0, 10.0]), Some(2.5));
    }

    #[test]
    fn a_folder_is_tried_before_anything_is_measured_and_goes_if_nothing_was() {
        let place = tempfile::tempdir().unwrap();
        let (outer, inner) = (place.path().join("a"), place.path().join("a/b"));
        drop(Folder::ready(&inner).unwrap());
        assert!(!outer.exists());
        let folder = Folder::ready(&inner).unwrap();
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 0, "the trial is gone");
        fs::write(inner.join("report"), "").unwrap();
        drop(folder);
        assert!(inner.join("report").exists());
        // A folder that existed before is not ours to remove.
        let there = place.path().join("there");
        fs::create_dir(&there).unwrap();
        drop(Folder::ready(&there).unwrap());
        assert!(there.exists());
        let below = inner.join("report/c");
        let refused = Folder::ready(&below).map(|_| ()).unwrap_err();
        let said = format!("{refused:#}");
        assert!(
            said.contains(below.to_str().unwrap()) && said.contains("--out"),
            "{said}"
        );
    }

    #[test]
    fn a_report_is_one_page_without_addresses_and_json_with_verdicts() {
        let mut report = Report::begin("ceiling", "<title>", true, 7);
        report.goals.push(Goal::at_least("a & b", 0.5, &[0.6]));
        report.goals.push(Goal::at_most("c", 5.0, &[]));
        let mut table = Table::new("T", "", &["what", "figure"]);
        table.row(["x <y>".to_owned(), cell(None, 0)]);
        report.tables.push(table);
        report.end();
        let page = page(&report);
        assert!(page.contains("&lt;title&gt;") && page.contains("x &lt;y&gt;") && page.contains("a &amp; b"));
        assert!(!page.contains("://") && !page.contains("<script"), "{page}");
        assert!(page.contains("class=\"unknown\">not measured"), "{page}");
        assert!(report.text().contains("its figures say nothing"));
        let json = report.json();
        assert_eq!(json["goals"][0]["is_reached"], true);
        assert_eq!(json["goals"][1]["is_reached"], Value::Null);
        assert_eq!(json["goals"][1]["measured"], Value::Null);
        let folder = tempfile::tempdir().unwrap();
        let path = report.write(folder.path()).unwrap();
        assert!(path.ends_with("bench-ceiling.html") && folder.path().join("bench-ceiling.json").exists());
    }
}
