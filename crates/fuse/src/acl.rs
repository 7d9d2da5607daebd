//! POSIX access control lists as the kernel stores them in extended attributes
//! (version 2: a four-byte version, then eight bytes an entry), and the rules
//! that a file system has to follow when it keeps them: what mode a list means,
//! what a chmod does to it, what a new file inherits. The rules are those of
//! acl(5) and POSIX.1e draft 17.
//!
//! Invariants
//! 1. A list that was read is valid: its entries are in order, the three basic
//!    ones are there once each, and a mask is there when anybody is named.

use crate::errno::Errno;

/// The attribute that decides who may do what.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory that new entries inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

/// What a new inode gets from its directory's default list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inherited {
    /// Permission bits of the mode, masked.
    pub mode: u32,
    /// Its access list, if that says more than the mode.
    pub access: Option<Acl>,
}

impl Acl {
    /// Reads a list. An empty one, with a version and nothing else, is `None`.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Errno> {
        const INVALID: Errno = Errno(libc::EINVAL);
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(INVALID)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let entries = rest.chunks_exact(8);
        if !entries.remainder().is_empty() {
            return Err(INVALID);
        }
        if rest.is_empty() {
            return Ok(None);
        }
        let entry = |e: &[u8]| Entry {
            tag: u16::from_le_bytes([e[0], e[1]]),
            perm: u16::from_le_bytes([e[2], e[3]]),
            id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
        };
        let acl = Self(entries.map(entry).collect());
        if acl.is_valid() { Ok(Some(acl)) } else { Err(INVALID) }
    }

    /// Invariant 1.
    fn is_valid(&self) -> bool {
        let count = |tag: u16| self.0.iter().filter(|e| e.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let single = |tag: u16| count(tag) == 1;
        single(USER_OBJ)
            && single(GROUP_OBJ)
            && single(OTHER)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
            && named + 3 + count(MASK) == self.0.len()
            && self.0.iter().all(|e| e.perm <= 7)
            && self.0.iter().all(|e| !matches!(e.tag, USER | GROUP) || e.id != NOBODY)
            && self.0.windows(2).all(|w| w[0].tag <= w[1].tag)
    }

    /// The bytes of the attribute.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            bytes.extend_from_slice(&e.tag.to_le_bytes());
            bytes.extend_from_slice(&e.perm.to_le_bytes());
            bytes.extend_from_slice(&e.id.to_le_bytes());
        }
        bytes
    }

    fn perm(&self, tag: u16) -> Option<u32> {
        self.0.iter().find(|e| e.tag == tag).map(|e| u32::from(e.perm))
    }

    /// The nine permission bits that the list means, the mask standing for the group.
    pub fn mode(&self) -> u32 {
        let group = self.perm(MASK).or(self.perm(GROUP_OBJ)).unwrap_or(0);
        self.perm(USER_OBJ).unwrap_or(0) << 6 | group << 3 | self.perm(OTHER).unwrap_or(0)
    }

    /// Whether it says no more than permission bits can.
    pub fn is_mode_only(&self) -> bool {
        self.0.len() == 3
    }

    /// The list after a chmod(2) to `mode`.
    #[must_use]
    pub fn with_mode(&self, mode: u32) -> Self {
        let group_tag = if self.perm(MASK).is_some() { MASK } else { GROUP_OBJ };
        self.map(|e| match e.tag {
            USER_OBJ => Some(mode >> 6),
            OTHER => Some(mode),
            tag if tag == group_tag => Some(mode >> 3),
            _ => None,
        })
    }

    fn map(&self, perm: impl Fn(&Entry) -> Option<u32>) -> Self {
        let change = |e: &Entry| Entry { perm: perm(e).map_or(e.perm, |p| (p & 7) as u16), ..*e };
        Self(self.0.iter().map(change).collect())
    }

    /// What an inode created with `mode` inherits when this is its directory's
    /// default list. The list takes the place of the umask.
    pub fn inherit(&self, mode: u32) -> Inherited {
        let access = self.with_mode(self.mode() & mode);
        let mode = mode & !0o777 | access.mode();
        let access = (!access.is_mode_only()).then_some(access);
        Inherited { mode, access }
    }

    /// The access that the list gives to somebody who is not the owner:
    /// the bits of `want` (4 read, 2 write, 1 execute) are all granted.
    pub fn grants(&self, uid: u32, is_member: &mut dyn FnMut(u32) -> bool, file_gid: u32, want: u32) -> bool {
        let mask = self.perm(MASK).unwrap_or(7);
        let enough = |perm: u32| perm & want == want;
        if let Some(user) = self.0.iter().find(|e| e.tag == USER && e.id == uid) {
            return enough(u32::from(user.perm) & mask);
        }
        let mut member_of_any = false;
        for e in self.0.iter().filter(|e| matches!(e.tag, GROUP_OBJ | GROUP)) {
            if is_member(if e.tag == GROUP { e.id } else { file_gid }) {
                member_of_any = true;
                if enough(u32::from(e.perm) & mask) {
                    return true;
                }
            }
        }
        !member_of_any && enough(self.perm(OTHER).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect())
    }
    fn basic(user: u16, group: u16, other: u16) -> Acl {
        acl(&[(USER_OBJ, user, NOBODY), (GROUP_OBJ, group, NOBODY), (OTHER, other, NOBODY)])
    }
    /// u::rwx u:100:rw g::r-x g:7:rwx m::rw- o::---
    fn extended() -> Acl {
        acl(&[
            (USER_OBJ, 7, NOBODY),
            (USER, 6, 100),
            (GROUP_OBJ, 5, NOBODY),
            (GROUP, 7, 7),
            (MASK, 6, NOBODY),
            (OTHER, 0, NOBODY),
        ])
    }

    #[test]
    fn bytes_are_the_kernels() {
        let bytes = [
            2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
        ];
        let got = Acl::parse(&bytes).unwrap().unwrap();
        assert_eq!(got, basic(6, 4, 4));
        assert_eq!(got.to_bytes(), bytes);
        assert_eq!(got.mode(), 0o644);
        assert!(got.is_mode_only());
        assert_eq!(Acl::parse(&bytes[..4]).unwrap(), None);
    }

    #[test]
    fn impossible_lists_are_refused() {
        let invalid = [
            acl(&[(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 7, NOBODY)]),
            acl(&[(USER_OBJ, 8, NOBODY), (GROUP_OBJ, 7, NOBODY), (OTHER, 7, NOBODY)]),
            acl(&[(GROUP_OBJ, 7, NOBODY), (USER_OBJ, 7, NOBODY), (OTHER, 7, NOBODY)]),
            // Somebody is named, and there is no mask.
            acl(&[(USER_OBJ, 7, 0), (USER, 7, 1), (GROUP_OBJ, 7, 0), (OTHER, 7, 0)]),
            acl(&[(USER_OBJ, 7, 0), (USER_OBJ, 7, 0), (GROUP_OBJ, 7, 0), (OTHER, 7, 0)]),
            acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 7, 0), (OTHER, 7, 0), (64, 7, 0)]),
        ];
        for list in invalid {
            assert_eq!(Acl::parse(&list.to_bytes()), Err(Errno(libc::EINVAL)), "{list:?}");
        }
        assert!(Acl::parse(&[2, 0, 0]).is_err());
        assert!(Acl::parse(&[1, 0, 0, 0]).is_err());
        assert!(Acl::parse(&basic(7, 7, 7).to_bytes()[..20 + 4]).is_err());
    }

    #[test]
    fn chmod_changes_the_mask_where_there_is_one() {
        let got = extended().with_mode(0o451);
        assert_eq!(got.perm(MASK), Some(5));
        assert_eq!(got.perm(GROUP_OBJ), Some(5));
        assert_eq!(got.perm(USER_OBJ), Some(4));
        assert_eq!(got.perm(OTHER), Some(1));
        assert_eq!(got.mode(), 0o451);
        assert_eq!(basic(7, 7, 7).with_mode(0o640), basic(6, 4, 0));
    }

    #[test]
    fn a_new_inode_gets_no_more_than_asked_for() {
        let got = extended().inherit(0o100_644);
        assert_eq!(got.mode, 0o100_640);
        let access = got.access.unwrap();
        assert_eq!(access.perm(MASK), Some(4));
        assert_eq!(access.perm(GROUP_OBJ), Some(5), "the mask limits it, not the mode");
        let got = basic(7, 5, 5).inherit(0o042_775);
        assert_eq!(got, Inherited { mode: 0o042_755, access: None });
    }

    #[test]
    fn access_goes_by_the_first_entry_that_fits() {
        let list = extended();
        let grants = |uid, groups: &[u32], want| list.grants(uid, &mut |gid| groups.contains(&gid), 50, want);
        assert!(grants(100, &[], 6));
        assert!(!grants(100, &[7], 1), "the named user's entry ends the search");
        assert!(grants(101, &[7], 6));
        assert!(!grants(101, &[7], 1), "masked");
        assert!(grants(101, &[50], 4));
        assert!(!grants(101, &[50], 2));
        assert!(grants(101, &[50, 7], 2), "any group will do");
        assert!(!grants(101, &[], 4));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(Some(list)) = Acl::parse(&bytes) {
                prop_assert_eq!(list.to_bytes(), bytes);
            }
        }
        #[test]
        fn near_valid_lists_never_panic(
            entries in proptest::collection::vec((0u16..64, 0u16..9, 0u32..4), 0..8), mode: u32,
        ) {
            if let Ok(Some(list)) = Acl::parse(&acl(&entries).to_bytes()) {
                let inherited = list.inherit(mode);
                prop_assert_eq!(inherited.mode & !mode, 0);
                prop_assert_eq!(list.with_mode(mode).mode(), mode & 0o777);
            }
        }
    }
}
