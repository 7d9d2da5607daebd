//! Names of the directories in which copies are made.

/// What the hidden directories begin with.
pub const HIDDEN: &str = ".restoring-";

/// Whether a name is that of a directory in which a copy was made.
pub fn is_hidden(name: &[u8]) -> bool {
    name.strip_prefix(HIDDEN.as_bytes()).is_some_and(|pid| !pid.is_empty() && pid.iter().all(u8::is_ascii_digit))
}

/// Whether a path leads into one of these.
pub fn has_hidden(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').any(is_hidden)
}
