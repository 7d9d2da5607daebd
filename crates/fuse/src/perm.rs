//! Our own permission check, for mounts that only one user can enter. There the
//! kernel needs not check, which saves it asking for attributes again and again.
//! The rules are those of path_resolution(7), chmod(2), chown(2), utimensat(2),
//! unlink(2) and xattr(7).

use crate::acl::Acl;
use crate::errno::Errno;
use crate::proto::request::Setattr;
use nenrin_core::{Attr, FileKind};
use std::fs;

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

const STICKY: u32 = 0o1000;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

impl Caller {
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
    /// Looks at supplementary groups only when the first group does not settle it.
    pub fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || groups_of(self.pid).contains(&gid)
    }
    /// Whether what the owner may do is allowed.
    pub fn owns(&self, attr: &Attr) -> bool {
        self.is_root() || self.uid == attr.uid
    }
}

/// Supplementary groups of a process; none when it is gone or not visible.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse_groups(&status)
}

fn parse_groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|gid| gid.parse().ok()).collect()
}

/// Whether the bits of `want` are all granted on an inode with this access list.
pub(crate) fn may(caller: &Caller, attr: &Attr, acl: Option<&Acl>, want: u32) -> Result<(), Errno> {
    let class = |shift: u32| (attr.mode >> shift) & want == want;
    let granted = if caller.is_root() {
        // Root may all but run a program that nobody may run.
        want & EXECUTE == 0 || attr.kind() == FileKind::Directory || attr.mode & 0o111 != 0
    } else if caller.uid == attr.uid {
        class(6)
    } else if let Some(acl) = acl {
        acl.grants(caller.uid, &mut |gid| caller.is_member(gid), attr.gid, want)
    } else if caller.is_member(attr.gid) {
        class(3)
    } else {
        class(0)
    };
    if granted { Ok(()) } else { Err(Errno(libc::EACCES)) }
}

/// Whether the entry for `inode` may be taken out of `dir`, as far as the sticky bit goes.
pub(crate) fn may_remove(caller: &Caller, dir: &Attr, inode: &Attr) -> Result<(), Errno> {
    if dir.mode & STICKY == 0 || caller.owns(dir) || caller.owns(inode) { Ok(()) } else { Err(Errno(libc::EPERM)) }
}

/// What a change of attributes still needs after [`may_set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StillNeeded {
    /// Write permission.
    pub write: bool,
    /// The set-group-id bit does not come through.
    pub clear_setgid: bool,
}

/// Whether these attributes may be set.
pub(crate) fn may_set(caller: &Caller, attr: &Attr, change: &Setattr) -> Result<StillNeeded, Errno> {
    let set = &change.set;
    let refuse = Err(Errno(libc::EPERM));
    let owns = caller.owns(attr);
    let root = caller.is_root();
    if set.uid.is_some_and(|uid| !(root || owns && uid == attr.uid)) {
        return refuse;
    }
    if set.gid.is_some_and(|gid| !(root || owns && (gid == attr.gid || caller.is_member(gid)))) {
        return refuse;
    }
    if (set.mode.is_some() || change.times_given) && !owns {
        return refuse;
    }
    let times_now = !change.times_given && (set.atime.is_some() || set.mtime.is_some());
    let write = set.size.is_some() && change.handle.is_none() || times_now && !owns && change.handle.is_none();
    let gid = set.gid.unwrap_or(attr.gid);
    let clear_setgid = set.mode.is_some_and(|mode| mode & 0o2000 != 0) && !root && !caller.is_member(gid);
    Ok(StillNeeded { write, clear_setgid })
}

/// What an extended attribute asks of the caller, given its name.
pub(crate) fn may_xattr(caller: &Caller, attr: &Attr, name: &[u8], change: bool) -> Result<u32, Errno> {
    if name.starts_with(b"user.") {
        return Ok(if change { WRITE } else { READ });
    }
    if change && name.starts_with(b"system.") && !caller.owns(attr) {
        return Err(Errno(libc::EPERM));
    }
    // trusted.* and security.* are guarded by the kernel itself.
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_core::{SetAttr, SetTime};
    use nenrin_format::{Ino, Time};

    const ME: Caller = Caller { uid: 1000, gid: 100, pid: u32::MAX };
    const ROOT: Caller = Caller { uid: 0, gid: 0, pid: u32::MAX };

    fn attr(mode: u32, uid: u32, gid: u32) -> Attr {
        let t = Time(0);
        Attr {
            ino: Ino(9),
            mode,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks_512: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
        }
    }
    fn change(set: SetAttr, times_given: bool) -> Setattr {
        Setattr { set, handle: None, times_given }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        assert!(may(&ME, &attr(0o100_400, 1000, 0), None, READ).is_ok());
        assert!(may(&ME, &attr(0o100_077, 1000, 100), None, READ).is_err());
        assert!(may(&ME, &attr(0o100_707, 1, 100), None, READ).is_err());
        assert!(may(&ME, &attr(0o100_070, 1, 100), None, READ | WRITE).is_ok());
        assert!(may(&ME, &attr(0o100_004, 1, 1), None, READ).is_ok());
        assert!(may(&ME, &attr(0o100_004, 1, 1), None, READ | WRITE).is_err());
        assert!(may(&ROOT, &attr(0o100_000, 1, 1), None, READ | WRITE).is_ok());
        assert!(may(&ROOT, &attr(0o100_666, 1, 1), None, EXECUTE).is_err());
        assert!(may(&ROOT, &attr(0o040_000, 1, 1), None, EXECUTE).is_ok());
    }

    #[test]
    fn a_sticky_directory_protects_what_others_own() {
        let dir = attr(0o041_777, 1, 1);
        assert!(may_remove(&ME, &dir, &attr(0o100_666, 2, 2)).is_err());
        assert!(may_remove(&ME, &dir, &attr(0o100_666, 1000, 2)).is_ok());
        assert!(may_remove(&ME, &attr(0o041_777, 1000, 1), &attr(0o100_666, 2, 2)).is_ok());
        assert!(may_remove(&ME, &attr(0o040_777, 1, 1), &attr(0o100_666, 2, 2)).is_ok());
    }

    #[test]
    fn only_the_owner_changes_modes_and_given_times() {
        let mine = attr(0o100_644, 1000, 100);
        let other = attr(0o100_666, 1, 1);
        let chmod = change(SetAttr { mode: Some(0o2755), ..Default::default() }, false);
        assert_eq!(may_set(&ME, &mine, &chmod), Ok(StillNeeded { write: false, clear_setgid: false }));
        assert!(may_set(&ME, &other, &chmod).is_err());
        let foreign_group = attr(0o100_644, 1000, 7);
        assert!(may_set(&ME, &foreign_group, &chmod).unwrap().clear_setgid);
        let now = SetAttr { mtime: Some(SetTime::Now), ..Default::default() };
        assert!(may_set(&ME, &other, &change(now, false)).unwrap().write);
        assert!(!may_set(&ME, &mine, &change(now, false)).unwrap().write);
        let given = SetAttr { mtime: Some(SetTime::At(Time(0))), ..Default::default() };
        assert!(may_set(&ME, &other, &change(given, true)).is_err());
        // As the kernel says them under writeback.
        assert!(may_set(&ME, &other, &change(given, false)).unwrap().write);
        let flushed = Setattr { handle: Some(1), ..change(given, false) };
        assert_eq!(may_set(&ME, &other, &flushed), Ok(StillNeeded { write: false, clear_setgid: false }));
    }

    #[test]
    fn only_root_gives_files_away() {
        let mine = attr(0o100_644, 1000, 100);
        let to = |uid, gid| change(SetAttr { uid, gid, ..Default::default() }, false);
        assert!(may_set(&ME, &mine, &to(Some(1), None)).is_err());
        assert!(may_set(&ME, &mine, &to(Some(1000), Some(100))).is_ok());
        assert!(may_set(&ME, &mine, &to(None, Some(5))).is_err());
        assert!(may_set(&ROOT, &mine, &to(Some(1), Some(5))).is_ok());
    }

    #[test]
    fn groups_come_from_the_status_of_a_process() {
        assert_eq!(parse_groups("Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t1\n"), [4, 24, 1000]);
        assert!(parse_groups("Name:\tx\n").is_empty());
    }
}
