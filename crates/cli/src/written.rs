//! Files that a command writes for who calls it, at places where others may have a hand in.
//!
//! Invariants
//! 1. A link of somebody else, unless root's, leads nowhere: what is written by root would land wherever he wants.
//! 2. What was looked at is what is opened: a link that comes meanwhile is not followed, and what is new is made anew.

use crate::sys::euid;
use rustix::fs::{self as sys, FileType, Mode, OFlags, PROC_SUPER_MAGIC};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Links that are followed one after the other.
const LINKS_MAX: usize = 40;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What is no link, or is not there.
    pub path: PathBuf,
    /// It is what a process has open, such as a pipe, and has no other path than this link of the kernel's.
    pub is_open: bool,
}

impl Place {
    /// Where `path` leads, through links of who calls and of root alone.
    ///
    /// # Errors
    /// A link of somebody else; what the kernel says.
    pub fn of(path: &Path) -> io::Result<Self> {
        let mut at = path.to_owned();
        for _ in 0..LINKS_MAX {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let held = match sys::open(&at, flags, Mode::empty()) {
                Err(Errno::NOENT) => return Ok(Self { path: at, is_open: false }),
                other => other?,
            };
            let meta = sys::fstat(&held)?;
            if FileType::from_raw_mode(meta.st_mode) != FileType::Symlink {
                return Ok(Self { path: at, is_open: false });
            }
            if sys::fstatfs(&held)?.f_type == PROC_SUPER_MAGIC {
                let is_file = fs::metadata(&at)?.is_file();
                let path = if is_file { fs::canonicalize(&at)? } else { at };
                return Ok(Self { path, is_open: !is_file });
            }
            if ![0, euid()].contains(&meta.st_uid) {
                let text = "a link of another user, which is not followed; name another file";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            // Of the link that was looked at, and not of what has its name by now.
            let target = OsString::from_vec(sys::readlinkat(&held, "", Vec::new())?.into_bytes());
            at = at.parent().unwrap_or(Path::new("")).join(target);
        }
        Err(Errno::LOOP.into())
    }

    /// Opens it, which is a link by now only where somebody has just put it there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(&self, options: &mut OpenOptions) -> io::Result<File> {
        options.custom_flags(if self.is_open { 0 } else { libc::O_NOFOLLOW }).open(&self.path)
    }
}

/// Writes all of a file.
///
/// # Errors
/// Those of [`Place::of`]; what the kernel says.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let place = Place::of(path)?;
    let mut options = OpenOptions::new();
    options.write(true).create(!place.is_open).truncate(!place.is_open);
    place.open(&mut options)?.write_all(bytes.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn links_of_others_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let [file, own, theirs, none] = ["file", "own", "theirs", "none"].map(|name| dir.path().join(name));
        fs::write(&file, "before").unwrap();
        symlink("file", &own).unwrap();
        symlink("none", dir.path().join("dangling")).unwrap();
        write(&own, "by a link").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "by a link");
        write(&dir.path().join("dangling"), "new").unwrap();
        assert_eq!(fs::read_to_string(&none).unwrap(), "new");
        fs::remove_file(&none).unwrap();
        if euid() == 0 {
            for target in ["file", "none", "own"] {
                symlink(target, &theirs).unwrap();
                lchown(&theirs, Some(1000), Some(1000)).unwrap();
                assert_eq!(write(&theirs, "led").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
                // Nor by a link of one's own to it.
                fs::remove_file(&own).unwrap();
                symlink("theirs", &own).unwrap();
                assert_eq!(write(&own, "led").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
                fs::remove_file(&theirs).unwrap();
            }
            assert!(!none.exists());
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "by a link");
        // One that comes between looking and opening.
        let place = Place::of(&none).unwrap();
        symlink("file", &none).unwrap();
        assert!(place.open(OpenOptions::new().write(true).create(true).truncate(true)).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "by a link");
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(write(&dir.path().join("loop"), "").is_err());
    }

    /// What is no file at all is the caller's wish.
    #[test]
    fn what_is_open_is_written_to() {
        write(Path::new("/dev/null"), "gone").unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let itself = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        assert!(Place::of(Path::new(&itself)).unwrap().is_open);
        write(Path::new(&itself), "said").unwrap();
        drop(writer);
        assert_eq!(io::read_to_string(&mut reader).unwrap(), "said");
    }
}
