//! Removes a tree whose owner may go on changing it meanwhile.
//!
//! Invariants
//! 1. Nothing is reached by a path: what was seen to be a directory is entered by a descriptor, and looked at and changed through
//!    that, so that a link put in its place leads nowhere.
//! 2. Nothing of another file system is touched.

use rustix::fs::{self as sys, AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

/// Removes what has a name in a directory, with all that is in it on the file system `device`.
///
/// # Errors
/// What the kernel says; that something is mounted in it.
pub fn tree(parent: &impl AsFd, name: &CStr, device: u64) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match sys::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(sys::unlinkat(parent, name, AtFlags::empty())?),
        other => enterable(other?, device)?,
    };
    // One descriptor for each directory above is enough.
    let mut listed = Dir::new(directory)?;
    for name in names(&mut listed)? {
        tree(&listed.fd()?, &name, device)?;
    }
    drop(listed);
    Ok(sys::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
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
    use rustix::fs::{CWD, RenameFlags};
    use std::fs::File;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    fn removed(parent: &Path, name: &CStr) -> io::Result<()> {
        let parent = File::open(parent)?;
        let device = parent.metadata()?.dev();
        tree(&parent, name, device)
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
        assert!(tree(&parent, c"top", other).unwrap_err().to_string().contains("mounted") && top.exists());
        removed(dir.path(), c"top").unwrap();
        removed(dir.path(), c"link").unwrap();
        assert!(!top.exists() && fs::symlink_metadata(dir.path().join("link")).is_err());
        assert!(sings(&outside));
        assert_eq!(removed(dir.path(), c"top").unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::set_permissions(&outside, Permissions::from_mode(0o700)).unwrap();
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
