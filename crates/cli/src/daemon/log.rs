//! What the daemon has to say while it serves.
//!
//! Invariants
//! 1. Logging never fails and never waits for the volume it is about, unless
//!    the user put the log there.

use crate::{clock, when};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Where lines go.
pub struct Log {
    file: Option<File>,
    terminal: bool,
}

impl Log {
    /// To a file, if one is given, and in the foreground to standard error.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: Option<&Path>, terminal: bool) -> io::Result<Self> {
        let open = |p: &Path| OpenOptions::new().create(true).append(true).mode(0o600).open(p);
        Ok(Self { file: path.map(open).transpose()?, terminal })
    }
    /// Adds a line.
    pub fn line(&self, text: &str) {
        let text = text.replace('\n', " ");
        if self.terminal {
            crate::output::notice(&text);
        }
        if let Some(file) = &self.file {
            let line = format!("{} nenrin[{}]: {text}\n", when::show_rfc3339(clock::now()), std::process::id());
            let _ = (&mut &*file).write_all(line.as_bytes());
        }
    }
}
