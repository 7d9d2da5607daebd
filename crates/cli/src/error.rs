//! How a command ends: an exit code, and for a failure one line that says what,
//! where and what to do.

use std::fmt;

/// The exit code of a failed command.
pub const FAILURE: u8 = 1;
/// The exit code of a command that was called wrongly.
pub const USAGE: u8 = 2;
/// The exit code of a command that was asked to end before it was done.
pub const INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fail {
    /// The exit code.
    pub code: u8,
    /// One line, without the program's name and without a full stop.
    pub message: String,
    /// Whoever was asked has refused it, and nothing has changed.
    pub is_untouched: bool,
}

/// What a command gives back: its exit code, or why it failed.
pub type Outcome = Result<u8, Fail>;

impl Fail {
    /// Something could not be done.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: FAILURE, message: message.into(), is_untouched: false }
    }
    /// The command was called wrongly.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, ..Self::new(message) }
    }
    /// The same failure with another exit code.
    #[must_use]
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }
    /// The same failure, of what has changed nothing.
    #[must_use]
    pub fn untouched(self) -> Self {
        Self { is_untouched: true, ..self }
    }
    /// Something could not be done at `place`.
    pub fn at(place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self::new(format!("{place}: {what}"))
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line, whatever the parts it was made of.
        f.write_str(&self.message.replace(['\n', '\r'], " "))
    }
}

impl From<lexopt::Error> for Fail {
    fn from(e: lexopt::Error) -> Self {
        Self::usage(e.to_string())
    }
}

impl From<std::io::Error> for Fail {
    fn from(e: std::io::Error) -> Self {
        Self::new(e.to_string())
    }
}

/// Turns an error into a [`Fail`] that says where.
pub trait At<T> {
    /// The value, or the failure at `place`.
    fn at(self, place: impl fmt::Display) -> Result<T, Fail>;
}

impl<T, E: fmt::Display> At<T> for Result<T, E> {
    fn at(self, place: impl fmt::Display) -> Result<T, Fail> {
        self.map_err(|e| Fail::at(place, e))
    }
}
