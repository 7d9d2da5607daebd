//! What the daemon has to say while it serves.
//!
//! Invariants
//! 1. Logging never fails and never waits for the volume it is about, unless
//!    the user put the log there.

use crate::output::printable;
use crate::{clock, sys, when};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Where lines go.
pub struct Log {
    /// Absolute: the daemon leaves the directory that it was started in.
    path: Option<PathBuf>,
    file: Mutex<Option<File>>,
    terminal: bool,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

impl Log {
    /// To a file, if one is given, and in the foreground to standard error.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: Option<&Path>, terminal: bool) -> io::Result<Self> {
        let path = path.map(std::path::absolute).transpose()?;
        let file = Mutex::new(path.as_deref().map(open).transpose()?);
        Ok(Self { path, file, terminal })
    }
    /// Whether it is that of a daemon, which has no terminal whose end could be meant.
    pub const fn is_of_background(&self) -> bool {
        !self.terminal
    }
    /// Goes on in a file of that name, which may be a new one since the old one was moved away. Where that cannot be opened it goes on where it is.
    pub fn reopen(&self) {
        let Some(path) = &self.path else { return };
        match open(path) {
            Ok(file) => {
                // What a panic prints goes there, too.
                let _ = sys::redirect(&file, 2);
                *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
                self.line("the log was opened anew");
            }
            Err(e) => self.line(&format!("{}: the log cannot be opened anew: {e}", path.display())),
        }
    }
    /// Adds a line. Names in it are those of users, and who reads a log does so at a terminal.
    pub fn line(&self, text: &str) {
        let text = printable(&text.replace('\n', " "));
        if self.terminal {
            crate::output::notice(&text);
        }
        if let Some(file) = self.file.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            let line = format!("{} nenrin[{}]: {text}\n", when::show_rfc3339(clock::now()), std::process::id());
            let _ = file.write_all(line.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_steers_the_terminal_of_who_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Log::open(Some(&path), false).unwrap();
        log.line("f\u{1b}[2J\ng\u{9b}31m cannot be read");
        let said = std::fs::read_to_string(&path).unwrap();
        assert!(said.ends_with(": f\u{fffd}[2J g\u{fffd}31m cannot be read\n"), "{said:?}");
        assert_eq!(said.lines().count(), 1);
    }
}
