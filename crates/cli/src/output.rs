//! What goes to standard output and to the terminal.
//!
//! Invariant: nothing that is printed for people steers their terminal, whoever said it: names, and what the program of another user
//! answers. Only [`exactly`] keeps what a program is to read byte for byte, and that at no terminal.

use crate::error::Fail;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Why something could not be printed.
static UNPRINTED: OnceLock<String> = OnceLock::new();

/// Prints lines. That they cannot be is told in the end ([`failed`]): what a command does it does all the same.
pub fn print(text: &str) {
    put(&steady(text));
}

/// Prints text that a program is to read as it is; for a person at a terminal as any other.
pub fn exactly(text: &str) {
    if io::stdout().is_terminal() { print(text) } else { put(text) }
}

fn put(text: &str) {
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
    put(&format!("{}\n", printable(&text.to_string())));
}

/// A line for the person at the terminal, on standard error.
pub fn notice(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "nenrin: {}", printable(&text.to_string()));
}

/// Prints a value as JSON, for --json.
pub fn json(value: &impl serde::Serialize) -> Result<(), Fail> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Fail::new(e.to_string()))?;
    put(&format!("{}\n", escaped(&text)));
    Ok(())
}

/// JSON in which the control characters from U+007F on are escaped, too, as those before U+0020 have to be. They stand in strings alone.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\u{7f}'..='\u{9f}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// A name from a volume, without what would steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The same of several lines, which may have tabs.
fn steady(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}

/// A path as a shell takes it for one word, and a command for no option, on one line: for commands that are there to be copied. Bytes
/// that steer a terminal, or are no text, are written as bash, zsh and ksh read them ($'...').
pub fn shell_quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let before = if bytes.starts_with(b"-") { "./" } else { "" };
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains(char::is_control));
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | ',' | ':' | '@' | '%');
    match text {
        Some(text) if !text.is_empty() && text.chars().all(is_plain) => format!("{before}{text}"),
        Some(text) => format!("'{before}{}'", text.replace('\'', "'\\''")),
        None => {
            let mut out = format!("$'{before}");
            for part in bytes.utf8_chunks() {
                for c in part.valid().chars() {
                    match c {
                        '\'' | '\\' => out.extend(['\\', c]),
                        c if c.is_control() => octal(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                        c => out.push(c),
                    }
                }
                octal(&mut out, part.invalid());
            }
            out + "'"
        }
    }
}

/// Bytes as strings of C and of shells have them.
pub fn octal(out: &mut String, bytes: &[u8]) {
    bytes.iter().for_each(|b| out.push_str(&format!("\\{b:03o}")));
}

/// Characters of a first cell that its column takes.
const CELL_CHARS_MAX: usize = 80;

/// A table, of cells without what would steer a terminal: columns as wide as their widest cell, numbers to the right. What is longer than [`CELL_CHARS_MAX`] in the first column, where others follow it, has a line of its own, and the rest the next one: one
/// such name would push all others out of sight.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    let is_long = |row: &[String]| row.len() > 1 && row[0].chars().count() > CELL_CHARS_MAX;
    for row in &rows {
        let skip = usize::from(is_long(row));
        for (w, cell) in widths.iter_mut().zip(row).skip(skip) {
            *w = (*w).max(cell.chars().count());
        }
    }
    let is_number = |i: usize| !rows.is_empty() && rows.iter().all(|r| r[i].bytes().all(|b| b.is_ascii_digit()));
    let right: Vec<bool> = (0..head.len()).map(is_number).collect();
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
    for row in std::iter::once(&head).chain(&rows) {
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
            let _ = write!(io::stderr().lock(), "\r{}\u{1b}[K", printable(&text()));
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
        assert_eq!(steady("a\u{1b}[2J\tb\r\nc\u{9b}31m\n"), "a\u{fffd}[2J\tb\u{fffd}\nc\u{fffd}31m\n");
        let row = ["a\u{1b}]0;x\u{7}", "b\nc"].map(str::to_owned).to_vec();
        assert_eq!(table(&["h", "i"], &[row]), "h        i\na\u{fffd}]0;x\u{fffd}  b\u{fffd}c\n");
        let value = serde_json::json!({ "a\u{7f}": "\u{9b}31m \u{a0} \u{85} \u{1b}" });
        let text = escaped(&value.to_string());
        assert_eq!(text, "{\"a\\u007f\":\"\\u009b31m \u{a0} \\u0085 \\u001b\"}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    /// As a shell reads them back.
    #[test]
    fn quoted_paths_are_one_word_to_a_shell() {
        let of = |bytes: &[u8]| shell_quoted(Path::new(std::ffi::OsStr::from_bytes(bytes)));
        for plain in ["/srv/work", "a-b_c.d+e,f:g@h%", "\u{5e74}\u{8f2a}/\u{e9}"] {
            assert_eq!(of(plain.as_bytes()), plain);
        }
        assert_eq!((of(b"-f"), of(b"-f x"), of(b"")), ("./-f".into(), "'./-f x'".into(), "''".into()));
        assert_eq!(of(b"it's; rm -rf $HOME"), r"'it'\''s; rm -rf $HOME'");
        assert_eq!((of(b"~x"), of(b"=ls"), of(b"a\\b")), ("'~x'".into(), "'=ls'".into(), r"'a\b'".into()));
        assert_eq!(of(b"a\n'\\\x1b[2J\xff\xc2\x9b"), r"$'a\012\'\\\033[2J\377\302\233'");
        if !Path::new("/bin/bash").exists() {
            return;
        }
        for bytes in [&b"a b'c\"d$e`f\\g"[..], b"-x\n\xff", b"\xc2\x9b31m", b"~/*?[x]{a,b}!#&|<>()"] {
            let script = format!("printf %s {}", of(bytes));
            let out = std::process::Command::new("/bin/bash").args(["-c", &script]).output().unwrap();
            let expected = if bytes.starts_with(b"-") { [b"./", bytes].concat() } else { bytes.to_vec() };
            assert_eq!(out.stdout, expected, "{script}");
        }
    }
}
