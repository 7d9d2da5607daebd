//! Attributes of what is copied: those that are listed, and the permissions that an inode of the past had.

use super::{Lack, Work};
use crate::error::{At, Fail};
use nenrin_fuse::{ACL_THEN, MODE_THEN};
use rustix::fs::{self as sys, AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

/// An extended attribute: its name and its value.
pub type Xattr = (CString, Vec<u8>);

/// Those of a file, access lists among them.
pub fn xattrs_of(path: &Path) -> io::Result<Vec<Xattr>> {
    let mut names = vec![0; 65_536];
    let bytes = match sys::llistxattr(path, names.as_mut_slice()) {
        Ok(bytes) => bytes,
        Err(Errno::OPNOTSUPP) => 0,
        Err(e) => return Err(e.into()),
    };
    let mut value = vec![0; 65_536];
    let mut all = Vec::new();
    for name in names[..bytes].split_inclusive(|b| *b == 0) {
        let name = CStr::from_bytes_with_nul(name).map_err(io::Error::other)?;
        match sys::lgetxattr(path, name, value.as_mut_slice()) {
            Ok(bytes) => all.push((name.to_owned(), value[..bytes].to_vec())),
            Err(Errno::NODATA) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(all)
}

/// Whether an attribute gives privileges, or is what root and the kernel go by: the past shows no capabilities, and who mounted a
/// volume may have it say anything (`is_of_user`).
pub fn is_privileged(name: &CStr, is_of_user: bool) -> bool {
    let name = name.to_bytes();
    name == b"security.capability" || is_of_user && (name.starts_with(b"security.") || name.starts_with(b"trusted."))
}

/// Whether there is an access list among them.
pub fn has_access_list(xattrs: &[Xattr]) -> bool {
    xattrs.iter().any(|(name, _)| name.as_c_str() == ACCESS_LIST)
}

/// The permissions that it had, with the access list in place of what is shown of that; none where the state tells only what is
/// granted now, too. Where nothing tells more than is seen, as of other file systems, that is it.
pub fn mode_then(from: &Path, meta: &Metadata, xattrs: &mut Vec<Xattr>) -> io::Result<Option<u32>> {
    let mut value = vec![0; 65_536];
    let mut told = |name: &str| match sys::lgetxattr(from, name, value.as_mut_slice()) {
        Ok(bytes) => Ok(value[..bytes].to_vec()),
        Err(e) => Err(e),
    };
    let mode = match told(MODE_THEN) {
        Ok(mode) => mode,
        Err(Errno::OPNOTSUPP | Errno::NODATA) => return Ok(Some(meta.mode())),
        Err(Errno::ACCESS) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let mode = std::str::from_utf8(&mode).ok().and_then(|m| u32::from_str_radix(m, 8).ok());
    let mode = mode.ok_or_else(|| io::Error::other("permissions that are no number"))?;
    match told(ACL_THEN) {
        Ok(list) => {
            xattrs.retain(|(name, _)| name.as_c_str() != ACCESS_LIST);
            xattrs.push((ACCESS_LIST.to_owned(), list));
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(Some(mode))
}

/// The access list of an inode.
pub const ACCESS_LIST: &CStr = c"system.posix_acl_access";
/// The access list of what is made in a directory.
const DEFAULT_LIST: &CStr = c"system.posix_acl_default";

/// Sets an extended attribute.
pub type SetXattr<'a> = dyn Fn(&CStr, &[u8]) -> Result<(), Errno> + 'a;

/// What was not taken of extended attributes.
#[derive(Default)]
struct NotTaken {
    /// What is left of the permissions of who is not the owner where an access list is not taken.
    without_list: Option<u32>,
    /// Those that do not fit where they were to go: name, length and why of each.
    unfit: Vec<String>,
}

/// Sets those that the user may set, by `set`. `is_same_volume`: where they come from all of them fit, but for want of room.
fn set_xattrs(set: &SetXattr<'_>, xattrs: &[Xattr], is_same_volume: bool) -> io::Result<NotTaken> {
    let mut not_taken = NotTaken::default();
    // Some file systems have room for little, however much is free, and say that there is no more.
    let is_unfit = |e: Errno| {
        e == Errno::OPNOTSUPP
            || !is_same_volume && matches!(e, Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE)
    };
    for (name, value) in xattrs {
        match set(name, value) {
            Ok(()) => {}
            Err(e) if name.as_c_str() == ACCESS_LIST && (e == Errno::PERM || is_unfit(e)) => {
                not_taken.without_list = Some(without_list(value));
            }
            // These are root's, and of the machine.
            Err(Errno::PERM | Errno::OPNOTSUPP) if name.to_bytes().starts_with(b"security.") => {}
            Err(Errno::PERM) if name.to_bytes().starts_with(b"trusted.") => {}
            Err(e) if is_unfit(e) || e == Errno::PERM && !name.to_bytes().starts_with(b"user.") => {
                not_taken.unfit.push(format!("{} ({} bytes: {e})", name.to_string_lossy(), value.len()));
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(not_taken)
}

/// What a mode may grant to the group and to others where the list that went with it is not there: the bits of the group were the most
/// that the list grants to anybody, and not the group's own. A list that is not understood grants nothing.
fn without_list(list: &[u8]) -> u32 {
    let of = |which| granted(list.get(4..).unwrap_or_default(), which).map(u32::from);
    of(GROUP_OBJ).map_or(0, |group| (group & of(MASK).unwrap_or(0o7)) << 3) | of(OTHER).unwrap_or(0)
}

/// What an inode had in a state, so far as that tells.
pub struct Had {
    pub meta: Metadata,
    /// Its permissions; none where no more is told than is granted now, too.
    pub told: Option<u32>,
    pub xattrs: Vec<Xattr>,
}

/// How these are given: by a path, or to a file that is open.
pub struct Setting<'a> {
    pub owner: &'a dyn Fn(Option<u32>, Option<u32>) -> io::Result<()>,
    pub xattr: &'a SetXattr<'a>,
    pub is_same_volume: bool,
}

/// What of them was given.
pub struct Given {
    /// The permissions that it may have now, which are still to be set.
    pub mode: u32,
    /// It has not got the owner, or not the group.
    pub is_owner_lost: bool,
    /// It has not got all permissions.
    pub is_less: bool,
    /// Extended attributes that do not fit: name, length and why of each.
    pub unfit: Vec<String>,
}

impl Had {
    /// The permissions. Of writing a state shows what was granted then, so where no more is told the others get none of that.
    pub fn mode(&self) -> u32 {
        self.told.unwrap_or(self.meta.mode() & !0o022)
    }

    /// Gives owner, group and attributes, as far as the user may. A change of the owner takes set-id bits away, so the mode comes later.
    pub fn give(&self, set: &Setting<'_>) -> io::Result<Given> {
        let (meta, then) = (&self.meta, self.mode());
        let (is_owned, has_group) = owned(set.owner, meta)?;
        let (mode, xattrs) = match has_group {
            true => (then, Cow::Borrowed(&*self.xattrs)),
            false => for_another_group(then, &self.xattrs),
        };
        let NotTaken { without_list: left, unfit } = set_xattrs(set.xattr, &xattrs, set.is_same_volume)?;
        let is_less = self.told.is_none() || left.is_some() || mode != then || *xattrs != *self.xattrs;
        let mode = left.map_or(mode, |left| mode & (!0o077 | left));
        // No file runs as another user, whatever the volume says.
        let mode = if meta.is_file() { mode & !0o6000 } else { mode };
        Ok(Given {
            mode: mode & 0o7777,
            is_owner_lost: !is_owned,
            is_less: is_less && !meta.file_type().is_symlink(),
            unfit,
        })
    }

    /// When it was read and changed.
    pub fn times(&self) -> Timestamps {
        let (meta, time) = (&self.meta, |secs, nanos| Timespec { tv_sec: secs, tv_nsec: nanos });
        Timestamps {
            last_access: time(meta.atime(), meta.atime_nsec()),
            last_modification: time(meta.mtime(), meta.mtime_nsec()),
        }
    }
}

impl Work<'_> {
    /// Everything but content; what of extended attributes does not fit. Times last, since all else changes them.
    pub(super) fn attributes(&mut self, to: &Path, had: &Had) -> Result<Vec<String>, Fail> {
        let given = had
            .give(&Setting {
                owner: &|uid, gid| lchown(to, uid, gid),
                xattr: &|name, value| sys::lsetxattr(to, name, value, XattrFlags::empty()),
                is_same_volume: self.is_same_volume,
            })
            .at(to.display())?;
        let mut is_less = given.is_less;
        if !had.meta.file_type().is_symlink() {
            match fs::set_permissions(to, Permissions::from_mode(given.mode)) {
                // There are none there.
                Err(e) if !self.is_same_volume && Lack::of_target(&e).is_some() => is_less = true,
                set => set.at(to.display())?,
            }
        }
        self.copied.owners_lost += u64::from(given.is_owner_lost);
        self.copied.permissions_lost += u64::from(is_less);
        sys::utimensat(CWD, to, &had.times(), AtFlags::SYMLINK_NOFOLLOW).at(to.display()).map(|()| given.unfit)
    }
}

/// Gives the owner and the group of `meta` by `set`, as far as the user may: whether it got both, and whether it got the group.
fn owned(set: &dyn Fn(Option<u32>, Option<u32>) -> io::Result<()>, meta: &Metadata) -> io::Result<(bool, bool)> {
    match set(Some(meta.uid()), Some(meta.gid())) {
        Err(e) if is_refused(&e) => {}
        both => return both.map(|()| (true, true)),
    }
    // Who may not give a file away may give it to a group of his, unless a quota or a server has it otherwise.
    Ok((false, set(None, Some(meta.gid())).is_ok()))
}

/// Whether who restores may not make somebody the owner, or where he is there is no such user.
fn is_refused(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::PermissionDenied || Errno::from_io_error(e) == Some(Errno::INVAL)
}

/// The permissions where it has another group, which nobody granted more than all others: mode, and attributes. With an access list the
/// bits of the group are the most that the list grants to anybody, and the group has its own entry. So it is with what is made in a
/// directory, which gets its group, and its default list.
fn for_another_group(mode: u32, xattrs: &[Xattr]) -> (u32, Cow<'_, [Xattr]>) {
    let is_list = |name: &CString| [ACCESS_LIST, DEFAULT_LIST].contains(&name.as_c_str());
    let left = if has_access_list(xattrs) { mode } else { of_no_group(mode) };
    if !xattrs.iter().any(|(name, _)| is_list(name)) {
        return (left, Cow::Borrowed(xattrs));
    }
    let mut xattrs = xattrs.to_vec();
    xattrs.iter_mut().filter(|(name, _)| is_list(name)).for_each(|(_, list)| narrow(list));
    (left, Cow::Owned(xattrs))
}

/// The permissions with no more for the group than for others.
pub const fn of_no_group(mode: u32) -> u32 {
    mode & (!0o070 | (mode & 0o007) << 3)
}

/// Has a list grant the group of the file no more than others.
fn narrow(list: &mut [u8]) {
    let (_, entries) = list.split_at_mut(list.len().min(4));
    let others = granted(entries, OTHER).unwrap_or(0);
    for entry in entries.chunks_exact_mut(8).filter(|e| tag(e) == GROUP_OBJ) {
        let both = perm(entry) & others;
        entry[2..4].copy_from_slice(&both.to_le_bytes());
    }
}

/// Entries of an access list: which it is, of 8 bytes each.
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

fn tag(entry: &[u8]) -> u16 {
    u16::from_le_bytes([entry[0], entry[1]])
}

fn perm(entry: &[u8]) -> u16 {
    u16::from_le_bytes([entry[2], entry[3]]) & 0o7
}

/// What the first of these entries grants.
fn granted(entries: &[u8], which: u16) -> Option<u16> {
    entries.chunks_exact(8).find(|e| tag(e) == which).map(perm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_gets_no_more_than_its_own_without_the_list() {
        let list = |entries: &[(u16, u16)]| {
            let entry =
                |(tag, perm): &(u16, u16)| [tag.to_le_bytes(), perm.to_le_bytes(), [0xff; 2], [0xff; 2]].concat();
            [vec![2, 0, 0, 0], entries.iter().flat_map(entry).collect()].concat()
        };
        let denied = list(&[(1, 6), (2, 6), (4, 0), (0x10, 6), (0x20, 0)]);
        assert_eq!(without_list(&denied), 0);
        assert_eq!(without_list(&list(&[(1, 6), (4, 7), (0x10, 4), (0x20, 1)])), 0o41);
        assert_eq!(without_list(&list(&[(1, 6), (4, 5), (0x20, 4)])), 0o54);
        assert_eq!((without_list(&[]), without_list(&denied[..9])), (0, 0));
    }

    /// As members of the group that it had are not in it, and others may be.
    #[test]
    fn another_group_gets_no_more_than_others() {
        for (then, now) in [(0o640, 0o600), (0o664, 0o644), (0o2775, 0o2755), (0o604, 0o604), (0o777, 0o777)] {
            assert_eq!(for_another_group(then, &[]).0, now, "{then:o}");
        }
        let list = |group: u8| {
            let entry = |tag: u8, perm: u8| [tag, 0, perm, 0, 0xff, 0xff, 0xff, 0xff];
            let entries = [entry(1, 6), entry(2, 6), entry(4, group), entry(0x10, 6), entry(0x20, 4)];
            [vec![2, 0, 0, 0], entries.concat()].concat()
        };
        // What others may not do is taken away also where there is nothing but the list for what is made in a directory.
        let default = [(DEFAULT_LIST.to_owned(), list(6))];
        let (mode, given) = for_another_group(0o775, &default);
        assert_eq!((mode, &*given), (0o755, &[(DEFAULT_LIST.to_owned(), list(4))][..]));
        let user = (c"user.a".to_owned(), list(6));
        let all = [user.clone(), (ACCESS_LIST.to_owned(), list(6))];
        let (mode, given) = for_another_group(0o664, &all);
        assert_eq!((mode, &*given), (0o664, &[user, (ACCESS_LIST.to_owned(), list(4))][..]));
        for broken in [&[][..], &[2, 0], &list(6)[..9]] {
            narrow(&mut broken.to_vec());
        }
    }

    /// Nobody may give a file to who is not known where he is, as in a container.
    #[test]
    fn an_owner_that_cannot_be_ends_no_restore() {
        let meta = fs::metadata("/").unwrap();
        for (refused, is_fatal) in [(Errno::PERM, false), (Errno::INVAL, false), (Errno::IO, true)] {
            let set = |uid: Option<u32>, _: Option<u32>| if uid.is_some() { Err(refused.into()) } else { Ok(()) };
            assert_eq!(owned(&set, &meta).ok(), if is_fatal { None } else { Some((false, true)) }, "{refused}");
            assert_eq!(
                owned(&|_, _| Err(refused.into()), &meta).ok(),
                if is_fatal { None } else { Some((false, false)) }
            );
        }
        assert_eq!(owned(&|_, _| Ok(()), &meta).unwrap(), (true, true));
    }
}
