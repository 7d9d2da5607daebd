//! What goes to standard output and to the terminal.

use crate::error::Fail;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Why something could not be printed.
static UNPRINTED: OnceLock<String> = OnceLock::new();

/// Prints text. That it cannot be is told in the end ([`failed`]): what a command does it does all the same.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has gone away has read enough.
        if e.kind() != io::ErrorKind::BrokenPipe {
            let _ = UNPRINTED.set(e.to_string());
        }
    }
}

/// The failure of what could not be printed, if any.
pub fn failed() -> Option<Fail> {
    UNPRINTED.get().map(|why| Fail::at("standard output", why))
}

/// Prints a line.
pub fn line(text: impl std::fmt::Display) {
    print(&format!("{text}\n"));
}

/// A line for the person at the terminal, on standard error.
pub fn notice(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "nenrin: {}", printable(&text.to_string()));
}

/// Prints a value as JSON, for --json.
pub fn json(value: &impl serde::Serialize) -> Result<(), Fail> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Fail::new(e.to_string()))?;
    line(text);
    Ok(())
}

/// A name from a volume, without what would steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Characters of a first cell that its column takes.
const CELL_CHARS_MAX: usize = 80;

/// A table: columns as wide as their widest cell, numbers to the right. What is longer than [`CELL_CHARS_MAX`] in the first column, where others follow it, has a line of its own, and the rest the next one: one
/// such name would push all others out of sight.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    let is_long = |row: &[String]| row.len() > 1 && row[0].chars().count() > CELL_CHARS_MAX;
    for row in rows {
        let skip = usize::from(is_long(row));
        for (w, cell) in widths.iter_mut().zip(row).skip(skip) {
            *w = (*w).max(cell.chars().count());
        }
    }
    let is_number = |i: usize| !rows.is_empty() && rows.iter().all(|r| r[i].bytes().all(|b| b.is_ascii_digit()));
    let right: Vec<bool> = (0..head.len()).map(is_number).collect();
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut row = row.clone();
        if is_long(&row) {
            out.push_str(&std::mem::take(&mut row[0]));
            out.push('\n');
        }
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(i, cell)| {
                let width = widths[i];
                if right[i] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            })
            .collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// A line on the terminal that shows how far a long job is.
pub struct Progress {
    shown: bool,
    next: Instant,
}

impl Progress {
    /// Without a terminal nothing is shown.
    pub fn new() -> Self {
        Self { shown: io::stderr().is_terminal(), next: Instant::now() + Duration::from_millis(500) }
    }
    /// Of the part `what`, `done` of `all` is done.
    pub fn at(&mut self, what: &str, done: u64, all: u64) {
        self.show(|| format!("{what}: {:3} %", done.saturating_mul(100).checked_div(all).unwrap_or(100)));
    }
    /// So much is done, of nobody knows how much.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        if self.shown && Instant::now() >= self.next {
            self.next = Instant::now() + Duration::from_millis(200);
            let _ = write!(io::stderr().lock(), "\r{}\u{1b}[K", text());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            end_progress();
        }
    }
}

/// Takes away what was shown of progress, if there is a terminal.
pub fn end_progress() {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr().lock(), "\r\u{1b}[K");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let rows = vec![vec!["1".into(), "年輪".into()], vec!["200".into(), "b".into()]];
        assert_eq!(table(&["cno", "name"], &rows), "cno  name\n  1  年輪\n200  b\n");
        let long = "x".repeat(CELL_CHARS_MAX + 1);
        let rows = [vec![long.clone(), "1".into()], vec!["ab".into(), "22".into()]];
        assert_eq!(table(&["name", "n"], &rows), format!("name   n\n{long}\n       1\nab    22\n"));
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\u{fffd}[2Jb\u{fffd}c");
    }
}
