//! Attributes of what is copied: those that are listed, and the permissions that an inode of the past had.

use crate::error::Fail;
use nenrin_fuse::{ACL_THEN, MODE_THEN};
use rustix::fs::{self as sys, XattrFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
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
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// What was not taken of extended attributes.
#[derive(Default)]
pub struct NotTaken {
    /// What is left of the permissions of who is not the owner where an access list is not taken.
    pub without_list: Option<u32>,
    /// Those that do not fit where they were to go: name, length and why of each.
    pub unfit: Vec<String>,
}

/// Sets those that the user may set. `is_same_volume`: where they come from all of them fit, but for want of room.
pub fn set_xattrs(to: &Path, xattrs: &[Xattr], is_same_volume: bool) -> Result<NotTaken, Fail> {
    let mut not_taken = NotTaken::default();
    // Some file systems have room for little, however much is free, and say that there is no more.
    let is_unfit = |e: Errno| {
        e == Errno::OPNOTSUPP
            || !is_same_volume && matches!(e, Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE)
    };
    for (name, value) in xattrs {
        match sys::lsetxattr(to, name, value, XattrFlags::empty()) {
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
            Err(e) => return Err(Fail::at(to.display(), e)),
        }
    }
    Ok(not_taken)
}

/// What a mode may grant to the group and to others where the list that went with it is not there: the bits of the group were the most
/// that the list grants to anybody, and not the group's own. A list that is not understood grants nothing.
fn without_list(list: &[u8]) -> u32 {
    const GROUP_OBJ: u16 = 0x04;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    let entries = list.get(4..).unwrap_or_default().chunks_exact(8);
    let of = |tag: u16| {
        let field = |e: &[u8], at: usize| u16::from_le_bytes([e[at], e[at + 1]]);
        entries.clone().find(|e| field(e, 0) == tag).map(|e| u32::from(field(e, 2)) & 0o7)
    };
    of(GROUP_OBJ).map_or(0, |group| (group & of(MASK).unwrap_or(0o7)) << 3) | of(OTHER).unwrap_or(0)
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
}
