//! The directory that a run works in: one of its own below the directory that was given, which may have anything in it.
//!
//! Invariants
//! 1. Whatever is unmounted, detached or deleted lies in a directory that a harness made, as its lock says, and has a name that a
//!    harness gives.
//! 2. A lock that is there is opened as it is: neither emptied, nor sought where a link leads.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Doing, Error, Result};
use crate::{command, disk, sys};

/// The directory that is made below the given one.
const NAME: &str = "nenrin-bench";
/// In it: locked for as long as a run lasts; that it is there says whose the directory is.
const LOCK: &str = "lock";
/// What is in the lock.
const MARK: &str = "nenrin-bench works in this directory, and deletes its image-N.img, log-NAME.txt and mnt-NAME\n";

/// The image of a contender's disk.
pub fn image(work: &Path, slot: usize) -> PathBuf {
    work.join(format!("image-{slot}.img"))
}

/// Where a contender is mounted.
pub fn mount_point(work: &Path, contender: &str) -> PathBuf {
    work.join(format!("mnt-{contender}"))
}

/// What a contender's daemon says.
pub fn log(work: &Path, contender: &str) -> PathBuf {
    work.join(format!("log-{contender}.txt"))
}

/// What a run calls so.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ours {
    Image,
    MountPoint,
    Log,
}

impl Ours {
    fn named(name: &OsStr) -> Option<Self> {
        let name = name.to_str()?;
        let within = |first: &str, last: &str| name.strip_prefix(first)?.strip_suffix(last).filter(|n| !n.is_empty());
        let slot = within("image-", ".img");
        if slot.is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit())) {
            return Some(Self::Image);
        }
        within("mnt-", "").map(|_| Self::MountPoint).or_else(|| within("log-", ".txt").map(|_| Self::Log))
    }
}

/// The work directory: locked, and emptied of what this run made when dropped.
pub struct WorkDirectory {
    /// Where it is.
    pub path: PathBuf,
    /// The given directory was not there before, and goes when it is empty.
    is_made: bool,
    keep_images: bool,
    _lock: File,
}

impl WorkDirectory {
    /// Makes it below `given`, or takes over one that an earlier run made.
    pub fn open(given: &Path, keep_images: bool) -> Result<Self> {
        let is_made = !given.exists();
        fs::create_dir_all(given).doing(|| format!("making {}", given.display()))?;
        let path = given.canonicalize().doing(|| format!("looking at {}", given.display()))?.join(NAME);
        let looking = || format!("looking at {}", path.display());
        match DirBuilder::new().create(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(e).doing(|| format!("making {}", path.display()));
            }
            _ => {}
        }
        let foreign = || {
            let text = "was not made by a benchmark, which would delete in it; move it, or give another --dir";
            Error::Refused(format!("{} {text}", path.display()))
        };
        if !fs::symlink_metadata(&path).doing(looking)?.is_dir() {
            return Err(foreign());
        }
        let is_empty = fs::read_dir(&path).doing(looking)?.next().is_none();
        let lock = open_lock(&path.join(LOCK), is_empty).doing(looking)?.ok_or_else(foreign)?;
        let directory = Self { path, is_made, keep_images, _lock: lock };
        directory.clear_leftovers();
        Ok(directory)
    }

    /// Unmounts and detaches what an earlier run left here when it was killed.
    fn clear_leftovers(&self) {
        let is_ours = |path: &Path, what| {
            path.parent() == Some(&self.path) && path.file_name().and_then(Ours::named) == Some(what)
        };
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
            if is_ours(Path::new(point), Ours::MountPoint) {
                eprintln!("nenrin-bench: unmounting {point}, left by an earlier run");
                command::best_effort("unmounting", command::run(&["umount", "-l", point]));
            }
        }
        let Ok(blocks) = fs::read_dir("/sys/block") else { return };
        for entry in blocks.flatten() {
            let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            if is_ours(Path::new(backing.trim()), Ours::Image) {
                let device = Path::new("/dev").join(entry.file_name());
                eprintln!("nenrin-bench: detaching {}, left by an earlier run", device.display());
                disk::detach(&device);
            }
        }
    }
}

/// The lock, held; none where what is there is no lock of ours. It is made where nothing is there yet.
fn open_lock(path: &Path, is_new: bool) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(is_new).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut lock = match options.open(path) {
        Err(e)
            if !is_new && matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ELOOP | libc::EISDIR | libc::ENXIO)) =>
        {
            return Ok(None);
        }
        other => other?,
    };
    if !lock.metadata()?.is_file() {
        return Ok(None);
    }
    sys::try_lock(&lock).map_err(|_| io::Error::other("another benchmark works there; wait for it or give --dir"))?;
    let mut mark = String::new();
    (&lock).take(MARK.len() as u64 + 1).read_to_string(&mut mark)?;
    if is_new {
        lock.write_all(MARK.as_bytes())?;
        return Ok(Some(lock));
    }
    Ok((mark == MARK).then_some(lock))
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        let mut stays = self.keep_images;
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let doing = "removing what this run made";
            match Ours::named(&entry.file_name()) {
                Some(Ours::Image) if self.keep_images => {}
                Some(Ours::Image | Ours::Log) => command::best_effort(doing, fs::remove_file(entry.path())),
                // Fails where it is mounted still, or somebody put something there.
                Some(Ours::MountPoint) => stays |= fs::remove_dir(entry.path()).is_err(),
                None => stays |= entry.file_name() != LOCK,
            }
        }
        if stays {
            return;
        }
        command::best_effort("removing the lock", fs::remove_file(self.path.join(LOCK)));
        let _ = fs::remove_dir(&self.path);
        if self.is_made {
            // Fails when somebody else put something there, which then stays.
            let _ = self.path.parent().map(fs::remove_dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(directory: &Path) -> Vec<String> {
        let mut all: Vec<String> =
            fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn what_others_have_in_the_directory_stays() {
        let given = tempfile::tempdir().unwrap();
        let others = ["image-of-mine.png", "lock", "log-book", "image-0.img", "log-ext4.txt"];
        others.iter().for_each(|name| fs::write(given.path().join(name), "mine").unwrap());
        symlink("lock", given.path().join("link")).unwrap();
        let work = WorkDirectory::open(given.path(), false).unwrap();
        let own = ["image-old.img", "note", "log-1", "image-x.img"];
        own.iter().for_each(|name| fs::write(work.path.join(name), "mine").unwrap());
        fs::write(image(&work.path, 12), "").unwrap();
        fs::write(log(&work.path, "nenrin+cache=writeback"), "").unwrap();
        fs::create_dir(mount_point(&work.path, "ext4")).unwrap();
        let path = work.path.clone();
        drop(work);
        assert_eq!(names(&path), ["image-old.img", "image-x.img", "lock", "log-1", "note"]);
        for name in others {
            assert_eq!(fs::read_to_string(given.path().join(name)).unwrap(), "mine", "{name}");
        }
    }

    #[test]
    fn images_are_kept_for_the_next_run_and_nothing_is_left_otherwise() {
        let given = tempfile::tempdir().unwrap();
        let within = given.path().join("new/work");
        let work = WorkDirectory::open(&within, true).unwrap();
        assert!(WorkDirectory::open(&within, true).is_err_and(|e| e.to_string().contains("another benchmark")));
        fs::write(image(&work.path, 0), "").unwrap();
        fs::write(log(&work.path, "ext4"), "").unwrap();
        let path = work.path.clone();
        drop(work);
        assert_eq!(names(&path), ["image-0.img", "lock"]);
        drop(WorkDirectory::open(&within, false).unwrap());
        assert_eq!(names(&within), Vec::<String>::new());
        fs::remove_dir(&within).unwrap();
        drop(WorkDirectory::open(&within, false).unwrap());
        assert!(!within.exists());
    }

    #[test]
    fn a_directory_that_no_benchmark_made_is_refused_as_it_is() {
        let given = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (given.path().join(NAME), given.path().join("elsewhere"));
        let refused = || {
            let e = WorkDirectory::open(given.path(), false).err().unwrap().to_string();
            assert!(e.contains("was not made by a benchmark"), "{e}");
        };
        fs::create_dir(&path).unwrap();
        fs::write(path.join("note"), "mine").unwrap();
        refused();
        fs::write(&elsewhere, MARK).unwrap();
        symlink(&elsewhere, path.join(LOCK)).unwrap();
        refused();
        fs::remove_file(path.join(LOCK)).unwrap();
        fs::write(path.join(LOCK), "a lock of somebody else").unwrap();
        refused();
        assert_eq!(names(&path), ["lock", "note"]);
        assert_eq!(fs::read_to_string(path.join(LOCK)).unwrap(), "a lock of somebody else");
        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(given.path().join("other")).unwrap();
        symlink("other", &path).unwrap();
        refused();
        assert_eq!(names(&given.path().join("other")), Vec::<String>::new());
    }
}
