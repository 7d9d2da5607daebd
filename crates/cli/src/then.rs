//! A path in a state, looked at without leaving that state: a symbolic link on the way would lead to what there is now, or
//! to another place altogether. The daemon, whose lists of names these paths come from, follows none either.
//!
//! Invariants
//! 1. Nothing is reached by a path: each part is looked up in the directory that is held, so that a link that is put in its place
//!    meanwhile leads nowhere.
//! 2. No part leads up: who lists the names may be a daemon of another user.

use rustix::fs::{self as sys, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// A path below the root of a state.
#[derive(Clone, Debug)]
pub struct Then {
    root: PathBuf,
    inside: PathBuf,
}

impl Then {
    /// `inside` is relative, and has no "..".
    ///
    /// # Errors
    /// It is not.
    pub fn new(root: PathBuf, inside: PathBuf) -> io::Result<Self> {
        let is_below = inside.components().all(|part| matches!(part, Component::Normal(_)));
        match is_below {
            true => Ok(Self { root, inside }),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "a path that leads out of the volume")),
        }
    }
    /// What lies below it.
    ///
    /// # Errors
    /// `below` does not.
    pub fn join(&self, below: &Path) -> io::Result<Self> {
        let below = Self::new(self.root.clone(), below.to_owned())?.inside;
        let inside = if below.as_os_str().is_empty() { self.inside.clone() } else { self.inside.join(below) };
        Ok(Self { root: self.root.clone(), inside })
    }
    /// The whole path.
    pub fn path(&self) -> PathBuf {
        self.root.join(&self.inside)
    }
    /// What it is; of a link, the link.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotADirectory`] where something on the way is no directory; what the state says.
    pub fn metadata(&self) -> io::Result<Metadata> {
        let (above, name) = self.found()?;
        File::from(sys::openat(&above, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
            .metadata()
    }
    /// The same, open for reading. What is no file is not waited for.
    ///
    /// # Errors
    /// As of [`Then::metadata`]; it is a link.
    pub fn open(&self) -> io::Result<File> {
        let (above, name) = self.found()?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(sys::openat(&above, name, flags, Mode::empty())?.into())
    }
    /// The directory above it, and its name there.
    fn found(&self) -> io::Result<(OwnedFd, &OsStr)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = sys::open(&self.root, flags, Mode::empty())?;
        let mut names = self.inside.iter();
        let last = names.next_back().unwrap_or(OsStr::new("."));
        for name in names {
            at = sys::openat(&at, name, flags, Mode::empty())?;
        }
        Ok((at, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn a_link_on_the_way_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("d/e")).unwrap();
        fs::write(root.join("d/e/f"), "").unwrap();
        symlink("d", root.join("inner")).unwrap();
        symlink(dir.path(), root.join("outer")).unwrap();
        let of = |inside: &str| Then::new(root.clone(), inside.into()).and_then(|then| then.metadata());
        assert!(of("").unwrap().is_dir() && of("d/e").unwrap().is_dir() && of("d/e/f").unwrap().is_file());
        assert!(of("inner").unwrap().is_symlink() && of("outer").unwrap().is_symlink());
        for left in ["inner/e", "inner/e/f", "outer/root", "d/e/f/g"] {
            assert_eq!(of(left).unwrap_err().kind(), io::ErrorKind::NotADirectory, "{left}");
        }
        assert_eq!(of("d/none").unwrap_err().kind(), io::ErrorKind::NotFound);
        let tree = Then::new(root.clone(), "d".into()).unwrap();
        assert_eq!(tree.join(Path::new("e/f")).unwrap().path(), root.join("d/e/f"));
        assert_eq!(tree.join(Path::new("")).unwrap().path(), root.join("d"));
    }

    /// Whoever owns a directory may exchange it for a link in any moment.
    #[test]
    fn a_link_that_comes_meanwhile_leads_nowhere() {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use std::io::Read;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        for (at, text) in [(root.join("d"), "inside"), (dir.path().join("outside"), "outside")] {
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("f"), text).unwrap();
        }
        symlink(dir.path().join("outside"), root.join("link")).unwrap();
        let (done, then) = (AtomicBool::new(false), Then::new(root.clone(), "d/f".into()).unwrap());
        let begun = Instant::now();
        let (mut seen, mut refused) = (0, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    renameat_with(CWD, root.join("d"), CWD, root.join("link"), RenameFlags::EXCHANGE).unwrap();
                }
            });
            while begun.elapsed() < Duration::from_secs(5) && seen < 20_000 {
                let mut text = String::new();
                match then.open() {
                    Ok(mut file) => file.read_to_string(&mut text).map(|_| seen += 1).unwrap(),
                    Err(_) => refused += 1,
                }
                if text == "outside" {
                    done.store(true, Ordering::Relaxed);
                    panic!("it was led out after {seen} files");
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(seen > 0, "it was never there in {:?}", begun.elapsed());
    }

    /// What lists names may be a daemon of another user.
    #[test]
    fn what_leads_up_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("d")).unwrap();
        fs::write(dir.path().join("f"), "outside").unwrap();
        let absolute = dir.path().join("f");
        for inside in [Path::new("../f"), Path::new("d/../../f"), &absolute] {
            assert!(Then::new(root.clone(), inside.to_owned()).is_err(), "{}", inside.display());
            let tree = Then::new(root.clone(), "d".into()).unwrap();
            assert!(tree.join(inside).is_err(), "{}", inside.display());
        }
    }
}
