//! Removes a tree whose owner may go on changing it meanwhile.
//!
//! Invariants
//! 1. Nothing is reached by a path: what was seen to be a directory is entered by a descriptor, and looked at and changed through
//!    that, so that a link put in its place leads nowhere.
//! 2. Nothing of another file system is touched.

use rustix::fs::{self as sys, AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

/// Directories that are held open at most, one in the other; what lies deeper is moved up first.
const OPEN_MAX: usize = 64;
/// Names that are tried for what is moved up, where others are there.
const NAMES_MAX: u32 = 1000;
/// Names that go before it is asked once more whether to go on.
pub const NAMES_A_LOOK: u32 = 64;

/// Removes what has a name in a directory, with all that is in it on the file system `device`, as long as `may` says so, which is asked
/// again and again.
///
/// # Errors
/// What the kernel says; that something is mounted in it; what `may` says.
pub fn tree(parent: &impl AsFd, name: &CStr, device: u64, may: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
    let Some(mut top) = directory(parent, name, device)? else { return Ok(()) };
    let mut left = names(&mut top)?;
    let mut moved = Moved { top: top.fd()?, names: Vec::new(), count: 0, may, looked: 0 };
    while let Some(name) = left.pop() {
        below(&top.fd()?, &name, device, &mut moved, 1)?;
        left.append(&mut moved.names);
    }
    drop(top);
    match sys::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        done => Ok(done?),
    }
}

/// What was moved to the top of the tree, of which it has no more to be held open than of any other.
struct Moved<'a> {
    top: BorrowedFd<'a>,
    names: Vec<CString>,
    count: u32,
    /// Whether to go on, and for how many names that was not asked.
    may: &'a mut dyn FnMut() -> io::Result<()>,
    looked: u32,
}

impl Moved<'_> {
    /// One more name is about to go.
    fn look(&mut self) -> io::Result<()> {
        self.looked += 1;
        if self.looked % NAMES_A_LOOK == 0 { (self.may)() } else { Ok(()) }
    }

    /// Moves what has a name in a directory of the tree. Whatever is moved by that lies in the tree, and goes with it.
    fn take(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        // What holds nothing goes at once.
        if matches!(sys::unlinkat(parent, name, AtFlags::REMOVEDIR), Ok(()) | Err(Errno::NOENT)) {
            return Ok(());
        }
        let mut failed = Errno::EXIST;
        for _ in 0..NAMES_MAX {
            self.count += 1;
            let new = CString::new(format!(".deep-{}", self.count))?;
            // What has that name, be it an empty directory, is in the list of what is removed.
            let moved = match sys::renameat_with(parent, name, self.top, &new, RenameFlags::NOREPLACE) {
                // A file system that does not know how.
                Err(Errno::INVAL) => sys::renameat(parent, name, self.top, &new),
                other => other,
            };
            match moved {
                Ok(()) => {
                    self.names.push(new);
                    return Ok(());
                }
                Err(e @ (Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR)) => failed = e,
                Err(e) => return Err(e.into()),
            }
        }
        Err(failed.into())
    }
}

/// What somebody else has taken away is gone as well.
fn below(parent: &impl AsFd, name: &CStr, device: u64, moved: &mut Moved<'_>, depth: usize) -> io::Result<()> {
    match entered(parent, name, device, moved, depth) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn entered(parent: &impl AsFd, name: &CStr, device: u64, moved: &mut Moved<'_>, depth: usize) -> io::Result<()> {
    moved.look()?;
    let Some(mut listed) = directory(parent, name, device)? else { return Ok(()) };
    if depth == OPEN_MAX {
        return moved.take(parent.as_fd(), name);
    }
    for name in names(&mut listed)? {
        below(&listed.fd()?, &name, device, moved, depth + 1)?;
    }
    drop(listed);
    Ok(sys::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// The directory of that name, to be listed; anything else of that name is removed.
fn directory(parent: &impl AsFd, name: &CStr, device: u64) -> io::Result<Option<Dir>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match sys::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(sys::unlinkat(parent, name, AtFlags::empty()).map(|()| None)?),
        // One descriptor for each directory is enough.
        other => Ok(Some(Dir::new(enterable(other?, device)?)?)),
    }
}

/// The same directory, open for reading and so that its owner may take out what is in it.
fn enterable(directory: OwnedFd, device: u64) -> io::Result<OwnedFd> {
    let meta = sys::fstat(&directory)?;
    if meta.st_dev != device {
        return Err(io::Error::other("something is mounted in it"));
    }
    if meta.st_mode & 0o700 != 0o700 {
        // This kind of descriptor alone is had of a directory that cannot be read, and only so it changes the mode.
        let itself = format!("/proc/self/fd/{}", directory.as_raw_fd());
        fs::set_permissions(itself, Permissions::from_mode(meta.st_mode & 0o7777 | 0o700))?;
    }
    Ok(sys::openat(&directory, c".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn names(listed: &mut Dir) -> io::Result<Vec<CString>> {
    let names = listed.map(|entry| entry.map(|e| e.file_name().to_owned()).map_err(io::Error::from));
    names.filter(|name| !matches!(name, Ok(n) if n.as_c_str() == c"." || n.as_c_str() == c"..")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use std::fs::File;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    fn removed(parent: &Path, name: &CStr) -> io::Result<()> {
        let parent = File::open(parent)?;
        let device = parent.metadata()?.dev();
        tree(&parent, name, device, &mut || Ok(()))
    }

    /// A directory that holds something and that its owner may only read and enter.
    fn canary(at: &Path) {
        fs::create_dir(at).unwrap();
        fs::write(at.join("canary"), "").unwrap();
        fs::set_permissions(at, Permissions::from_mode(0o500)).unwrap();
    }

    fn sings(at: &Path) -> bool {
        at.join("canary").exists() && fs::metadata(at).unwrap().mode() & 0o7777 == 0o500
    }

    #[test]
    fn everything_goes_but_what_links_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let (outside, top) = (dir.path().join("outside"), dir.path().join("top"));
        canary(&outside);
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/f"), "").unwrap();
        symlink(&outside, top.join("a/link")).unwrap();
        symlink(&outside, dir.path().join("link")).unwrap();
        canary(&top.join("closed"));
        for (path, mode) in [("a/b", 0o000), ("a", 0o300)] {
            fs::set_permissions(top.join(path), Permissions::from_mode(mode)).unwrap();
        }
        // What is mounted in it lies on another file system.
        let parent = File::open(dir.path()).unwrap();
        let other = parent.metadata().unwrap().dev() + 1;
        assert!(
            tree(&parent, c"top", other, &mut || Ok(())).unwrap_err().to_string().contains("mounted") && top.exists()
        );
        removed(dir.path(), c"top").unwrap();
        removed(dir.path(), c"link").unwrap();
        assert!(!top.exists() && fs::symlink_metadata(dir.path().join("link")).is_err());
        assert!(sings(&outside));
        assert_eq!(removed(dir.path(), c"top").unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::set_permissions(&outside, Permissions::from_mode(0o700)).unwrap();
    }

    /// Who has it removed may think better of it meanwhile, wherever it is by then.
    #[test]
    fn it_is_asked_again_whether_to_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let count = || walk(&dir.path().join("top"));
        fn walk(at: &Path) -> u32 {
            let below = |e: fs::DirEntry| 1 + if e.path().is_dir() { walk(&e.path()) } else { 0 };
            fs::read_dir(at).map_or(0, |all| all.map(|e| below(e.unwrap())).sum())
        }
        for stop in [1, 2, u32::MAX] {
            for name in 0..3 * NAMES_A_LOOK {
                let sub = dir.path().join(format!("top/{}", name % 7));
                fs::create_dir_all(&sub).unwrap();
                fs::write(sub.join(name.to_string()), "").unwrap();
            }
            let (all, mut asked) = (count(), 0);
            let mut may = || {
                asked += 1;
                if asked == stop { Err(io::Error::other("no more")) } else { Ok(()) }
            };
            let parent = File::open(dir.path()).unwrap();
            let done = tree(&parent, c"top", parent.metadata().unwrap().dev(), &mut may);
            if stop == u32::MAX {
                assert!(done.is_ok() && asked == all / NAMES_A_LOOK && count() == 0, "{asked}");
            } else {
                assert_eq!((done.unwrap_err().to_string(), asked), ("no more".into(), stop));
                // What is being emptied has been counted, and is there still.
                assert!((0..=1).contains(&(count() + stop * NAMES_A_LOOK - 1 - all)), "{} of {all}", count());
            }
        }
    }

    /// As deep as names of one letter lead, and deeper: beside what is called as what is moved up.
    #[test]
    fn what_is_deep_goes_with_few_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("top")).unwrap();
        fs::create_dir(dir.path().join("top/.deep-1")).unwrap();
        fs::write(dir.path().join("top/.deep-2"), "").unwrap();
        fs::create_dir_all(dir.path().join("top/.deep-3/full")).unwrap();
        let mut at = OwnedFd::from(File::open(dir.path().join("top")).unwrap());
        for _ in 0..3000 {
            sys::mkdirat(&at, c"d", Mode::from_raw_mode(0o700)).unwrap();
            sys::mkdirat(&at, c"e", Mode::from_raw_mode(0o700)).unwrap();
            at = sys::openat(&at, c"d", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        drop(at);
        let (done, most) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let of_tree =
                        |fd: &fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(dir.path()));
                    let open = fs::read_dir("/proc/self/fd").unwrap().flatten().filter(of_tree).count();
                    most.fetch_max(open, Ordering::Relaxed);
                }
            });
            removed(dir.path(), c"top").unwrap();
            done.store(true, Ordering::Relaxed);
        });
        assert!(!dir.path().join("top").exists());
        assert!((1..OPEN_MAX + 8).contains(&most.load(Ordering::Relaxed)), "{most:?}");
    }

    /// Whose the tree was puts a link in the place of a directory, and that back, all the time.
    #[test]
    fn a_link_that_is_put_in_place_of_a_directory_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (outside, top) = (dir.path().join("outside"), dir.path().join("top"));
        let (sub, link) = (top.join("sub"), dir.path().join("link"));
        canary(&outside);
        let (end, done) = (Instant::now() + Duration::from_secs(2), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _ = sys::renameat_with(CWD, &sub, CWD, &link, RenameFlags::EXCHANGE);
                }
            });
            for _ in 0..5000 {
                // What the other made of the last round may be anything.
                let _ = removed(dir.path(), c"top");
                let _ = removed(dir.path(), c"link");
                fs::create_dir_all(&top).unwrap();
                let _ = symlink(&outside, &link);
                if fs::create_dir(&sub).is_ok() {
                    let _ = fs::write(sub.join("f"), "");
                    let _ = fs::set_permissions(&sub, Permissions::from_mode(0o500));
                }
                let _ = removed(dir.path(), c"top");
                if !sings(&outside) || Instant::now() > end {
                    break;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(sings(&outside));
        fs::set_permissions(&outside, Permissions::from_mode(0o700)).unwrap();
    }
}
