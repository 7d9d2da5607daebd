//! What can go wrong in the harness, as one small enum and the words that go with it.

use std::fmt;
use std::io;

/// A failure, with what was being done when it happened.
#[derive(Debug)]
pub enum Error {
    /// A system call failed.
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program failed.
    Command {
        /// The command line.
        line: String,
        /// Exit status and the end of what it printed.
        outcome: String,
    },
    /// Somebody asked the harness to stop.
    Interrupted,
    /// The harness cannot do this at all; the text says why.
    Refused(String),
    /// A contender did something that makes its figure worthless.
    Wrong(String),
}

/// Result of the harness.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
            Self::Command { line, outcome } => write!(f, "`{line}` failed: {outcome}"),
            Self::Interrupted => write!(f, "interrupted"),
            Self::Refused(text) | Self::Wrong(text) => write!(f, "{text}"),
        }
    }
}

impl std::error::Error for Error {}

/// Puts "what was being done" onto an I/O error.
pub trait Doing<T> {
    /// The text is built only when there is an error.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { doing: what(), source })
    }
}
