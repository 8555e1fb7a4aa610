//! What a command prints on standard output: text, aligned tables, JSON.

use crate::cli::Failure;
use crate::domain::plain::{breaks_or_turns, is_unseen};
use anyhow::Context as _;
use console::measure_text_width;
use serde::Serialize;
use std::io::{Read, Write as _};
use std::os::unix::fs::MetadataExt as _;

/// Bytes of a long answer that are printed at once.
const COPIED_AT_ONCE: usize = 64 * 1024;

/// Whether standard output still has a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// It may have one.
    There,
    /// The reader closed the pipe, as `| head` does. A command that prints without end can end with success.
    Gone,
}

/// Prints `text` and adds no line break. A closed pipe is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    write(text).map(|_| ())
}

/// Like [`print`], for a command that prints without end: the result says whether it can end.
pub fn write(text: &str) -> Result<Reader, Failure> {
    write_bytes(text.as_bytes())
}

/// Prints a server's answer of any length, piece by piece.
pub fn copy(mut answer: impl Read) -> Result<(), Failure> {
    let mut piece = vec![0; COPIED_AT_ONCE];
    loop {
        let length = answer
            .read(&mut piece)
            .context("the answer broke off, so the output is not complete")?;
        if length == 0 || write_bytes(&piece[..length])? == Reader::Gone {
            return Ok(());
        }
    }
}

fn write_bytes(bytes: &[u8]) -> Result<Reader, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::Fault(
            anyhow::Error::new(error).context("standard output cannot be written"),
        )),
    }
}

/// Prints a server's answer, or another value, as indented JSON.
pub fn print_json(answer: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(answer).context("the answer cannot be written as JSON")?;
    print(&format!("{text}\n"))
}

/// Printed in place of a link that grants access as a key does.
pub const LINK_NOT_KEPT: &str = "its link is not written to the journal; start this once on a terminal to see the link";

/// Whether standard output is systemd's journal, which keeps what is printed and shows it to other users.
pub fn goes_to_journal() -> bool {
    let output = std::fs::metadata("/proc/self/fd/1");
    let output = output.map(|output| format!("{}:{}", output.dev(), output.ino()));
    std::env::var("JOURNAL_STREAM").is_ok_and(|journal| output.is_ok_and(|output| journal == output))
}

/// Makes a text safe to print on one line of a terminal, since names come from outside. Control characters become
/// spaces. Line separators, direction marks and invisible characters become `<U+…>`, so that two different names
/// print differently.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_control() => line.push(' '),
            c if breaks_or_turns(c) || is_unseen(c) => line.push_str(&format!("<U+{:04X}>", u32::from(c))),
            c => line.push(c),
        }
    }
    line
}

/// A table with aligned columns. Columns whose cells are all numbers or amounts align to the right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<S: Into<String>>(headings: impl IntoIterator<Item = S>) -> Self {
        Self {
            rows: vec![headings.into_iter().map(Into::into).collect()],
        }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| one_line(&cell)).collect());
    }

    /// The table as text, one line a row.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let layout: Vec<(usize, bool)> = (0..columns).map(|column| self.layout(column)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, (width, is_number)) in row.iter().zip(&layout) {
                // Counted in columns of the terminal: a Chinese character takes two.
                let space = " ".repeat(width.saturating_sub(measure_text_width(cell)));
                let (before, after) = if *is_number {
                    (space.as_str(), "")
                } else {
                    ("", space.as_str())
                };
                line.push_str(&format!("{before}{cell}{after}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn layout(&self, column: usize) -> (usize, bool) {
        let cells = || self.rows.iter().filter_map(|row| row.get(column));
        let width = cells().map(|cell| measure_text_width(cell)).max().unwrap_or(0);
        let mut body = cells().skip(1).filter(|cell| *cell != "-").peekable();
        let is_number = body.peek().is_some() && body.all(|cell| is_number(cell));
        (width, is_number)
    }
}

/// Whether a cell is a number, or an amount such as `499.00 EUR`.
fn is_number(cell: &str) -> bool {
    let is_currency = |word: &str| word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let number = match cell.split_once(' ') {
        Some((number, currency)) if is_currency(currency) => number,
        _ => cell,
    };
    number.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_moves_no_cursor_and_turns_no_line() {
        assert_eq!(one_line("a\nb\u{1b}[2J"), "a b [2J");
        assert_eq!(one_line("ada\u{202e}nimda\u{2066}"), "ada<U+202E>nimda<U+2066>");
        assert_eq!(one_line("王伟 אדה"), "王伟 אדה");
        for unseen in ['\u{61c}', '\u{200b}', '\u{200d}', '\u{200f}', '\u{2060}', '\u{feff}'] {
            let shown = format!("bob<U+{:04X}>", u32::from(unseen));
            assert_eq!(one_line(&format!("bob{unseen}")), shown);
        }
    }

    #[test]
    fn columns_align_also_after_characters_that_take_two() {
        let mut table = Table::new(["SKU", "STOCK"]);
        table.row(["冬季特卖".into(), "5".into()]);
        table.row(["phone".into(), "1000".into()]);
        // Four characters that take eight columns on a terminal.
        assert_eq!(table.render(), "SKU       STOCK\n冬季特卖      5\nphone      1000\n");
    }

    #[test]
    fn amounts_align_right() {
        let mut table = Table::new(["PRICE", "SKU"]);
        table.row(["499.00 EUR".into(), "phone".into()]);
        table.row(["5.00 EUR".into(), "case".into()]);
        assert_eq!(table.render(), "     PRICE  SKU\n499.00 EUR  phone\n  5.00 EUR  case\n");
        assert!(!is_number("5 eur") && !is_number("2026-11-27 20:00:05 UTC"));
    }

    #[test]
    fn words_align_left_and_numbers_right() {
        let mut table = Table::new(["SKU", "STOCK", "NAME"]);
        table.row(["phone".into(), "5".into(), "A phone".into()]);
        table.row(["tv".into(), "1000".into(), "A\u{1b}[2J TV".into()]);
        table.row(["x".into(), "-".into(), String::new()]);
        assert_eq!(
            table.render(),
            "SKU    STOCK  NAME\nphone      5  A phone\ntv      1000  A [2J TV\nx          -\n"
        );
    }
}
