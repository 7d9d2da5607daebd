//! Names of the directories in which copies are made.

/// What the hidden directories begin with.
pub use nenrin_fuse::RESTORING as HIDDEN;
/// Whether a name is that of a directory in which a copy was made.
pub use nenrin_fuse::is_of_restore as is_hidden;

/// Whether a path leads into one of these.
pub fn has_hidden(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').any(is_hidden)
}
