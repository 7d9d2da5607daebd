//! Names that files have elsewhere: a copy takes the place of one name, and the others keep what they have.

use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files with several names, of some tree, and how many of these lie in it.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<u64, One>);

#[derive(Debug)]
struct One {
    /// The first of them, from the root of the tree.
    path: PathBuf,
    has: u64,
    seen: u64,
}

impl Names {
    /// Notes what is at `path` from the root of the tree.
    pub fn note(&mut self, path: &Path, meta: &Metadata) {
        if !meta.is_dir() && meta.nlink() > 1 {
            let one = || One { path: path.to_owned(), has: meta.nlink(), seen: 0 };
            self.0.entry(meta.ino()).or_insert_with(one).seen += 1;
        }
    }

    /// All that is at `at`, and below it, which is `path` from the root of the tree, as far as it can be read.
    pub fn note_all(&mut self, at: &Path, path: &Path) {
        let Ok(meta) = fs::symlink_metadata(at) else { return };
        self.note(path, &meta);
        if meta.is_dir() {
            for name in names_in(at).unwrap_or_default() {
                self.note_all(&at.join(&name), &path.join(&name));
            }
        }
    }

    /// Those that have names elsewhere, too: a name of each.
    pub fn elsewhere(&self) -> BTreeSet<PathBuf> {
        self.0.values().filter(|one| one.seen < one.has).map(|one| one.path.clone()).collect()
    }
}

/// What a directory has in it. It is closed by then: as deep as a tree may be, whoever goes down in it has no more of it open.
///
/// # Errors
/// What cannot be read.
pub fn names_in(at: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(at)?.map(|entry| entry.map(|e| e.file_name())).collect()
}

/// Whether no link can be made there, or of this file no more, whatever its name.
pub(super) fn takes_no_link(e: &io::Error) -> bool {
    let whys = [Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL, Errno::MLINK];
    Errno::from_io_error(e).is_some_and(|e| whys.contains(&e))
}
