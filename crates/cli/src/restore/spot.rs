//! Where a copy goes: a name in a directory that is held open.

use super::place::within;
use crate::error::{At, Fail};
use crate::mounts;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A name in a directory. The path to that is followed once: whoever has it lead elsewhere after that leads nobody astray.
#[derive(Debug)]
pub struct Spot {
    /// The path, as the user said it.
    to: PathBuf,
    name: OsString,
    parent: File,
    device: u64,
}

impl Spot {
    /// Opens the directory that `to` names something in.
    ///
    /// # Errors
    /// There is none; `to` ends in no name.
    pub fn open(to: &Path) -> Result<Self, Fail> {
        let name = to.file_name().ok_or_else(|| Fail::at(to.display(), "is no name to restore to"))?;
        let above = mounts::above(to);
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(above);
        let parent = opened.map_err(|e| {
            let text = match (e.kind(), fs::metadata(above)) {
                (io::ErrorKind::NotADirectory, Ok(_)) => "is not a directory; say where else by --to DEST".to_owned(),
                (io::ErrorKind::NotADirectory | io::ErrorKind::NotFound, _) => {
                    "is not there; make or restore that directory, or say where else by --to DEST".to_owned()
                }
                _ => e.to_string(),
            };
            Fail::at(above.display(), text)
        })?;
        let device = parent.metadata().at(above.display())?.dev();
        Ok(Self { to: to.to_owned(), name: name.to_owned(), parent, device })
    }
    /// The path, for people.
    pub fn shown(&self) -> &Path {
        &self.to
    }
    /// The name.
    pub fn name(&self) -> &OsStr {
        &self.name
    }
    /// The directory.
    pub const fn parent(&self) -> &File {
        &self.parent
    }
    /// Device number of the file system that it lies on.
    pub const fn device(&self) -> u64 {
        self.device
    }
    /// What has the name, through the directory.
    pub fn there(&self) -> PathBuf {
        within(&self.parent).join(&self.name)
    }
    /// Whether something has the name.
    pub fn is_taken(&self) -> bool {
        fs::symlink_metadata(self.there()).is_ok()
    }
    /// The directory as it lies now, without links.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn real_parent(&self) -> io::Result<PathBuf> {
        fs::read_link(within(&self.parent))
    }
    /// A failure with the path as the user said it.
    #[must_use]
    pub fn told(&self, e: Fail) -> Fail {
        let there = self.there().display().to_string();
        Fail { message: e.message.replace(&there, &self.to.display().to_string()), ..e }
    }
}
