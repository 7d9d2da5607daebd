//! How much of its history an inode keeps: `user.nenrin.history`, as bits of
//! inodes, and as marks on items of history. See docs/decisions/0020.

use crate::items::{DirentDisk, ExtentDisk, Inode, InodeDisk, XattrDisk};
use crate::key::Kind;
use crate::{Cno, Invalid};
use core::mem::offset_of;

/// The attribute's name.
pub const HISTORY_XATTR: &[u8] = b"user.nenrin.history";

/// Inode flags: how much history is kept; 0 where nothing was said.
pub const INODE_HISTORY_MASK: u32 = 0x30;
/// Inode flag: that came from the directory it was made in.
pub const INODE_HISTORY_INHERITED: u32 = 0x40;
const INODE_HISTORY_SHIFT: u32 = 4;

/// Extent flags, in history trees only: which checkpoints it is kept for, as [`Keep`].
pub const EXTENT_KEEP_MASK: u8 = 0x30;
const EXTENT_KEEP_SHIFT: u8 = 4;

/// How much history is kept, from most to least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Keep {
    /// What any checkpoint shows.
    #[default]
    Full = 0,
    /// What a snapshot shows, or the first checkpoint of a day.
    Daily = 1,
    /// What a snapshot shows.
    Nothing = 2,
}

impl Keep {
    /// As the attribute's value.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Daily => "daily",
            Self::Nothing => "none",
        }
    }
    /// The one with this text.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        [Self::Full, Self::Daily, Self::Nothing].into_iter().find(|k| k.text().as_bytes() == text)
    }
    pub(crate) const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Full,
            1 => Self::Daily,
            _ => Self::Nothing,
        }
    }
}

/// How much history is kept of an inode, and since which checkpoint that holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepRule {
    /// How much.
    pub keep: Keep,
    /// What any earlier checkpoint shows is kept as for all.
    pub since: Cno,
}

impl KeepRule {
    /// The one that keeps more of the two, and at least what either does.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { keep: self.keep.min(other.keep), since: self.since.max(other.since) }
    }
}

impl Inode {
    /// What was said about its history; `None` when nothing was.
    #[must_use]
    pub const fn history(&self) -> Option<Keep> {
        match (self.flags & INODE_HISTORY_MASK) >> INODE_HISTORY_SHIFT {
            0 => None,
            bits => Some(Keep::from_bits(bits as u8 - 1)),
        }
    }
    /// Whether that came from the directory it was made in.
    #[must_use]
    pub const fn history_is_inherited(&self) -> bool {
        self.flags & INODE_HISTORY_INHERITED != 0
    }
    /// How much of its history is kept.
    #[must_use]
    pub fn keep_rule(&self) -> KeepRule {
        KeepRule { keep: self.history().unwrap_or_default(), since: self.history_since }
    }
    /// Says how much history is kept from checkpoint `open` on.
    pub fn set_history(&mut self, history: Option<Keep>, inherited: bool, open: Cno) {
        if history.unwrap_or_default() != self.keep_rule().keep {
            self.history_since = open;
        }
        let bits = history.map_or(0, |k| k as u32 + 1) << INODE_HISTORY_SHIFT;
        let inherited = if inherited { INODE_HISTORY_INHERITED } else { 0 };
        self.flags = self.flags & !(INODE_HISTORY_MASK | INODE_HISTORY_INHERITED) | bits | inherited;
    }
}

/// Where the value of an item of this kind says for which checkpoints history keeps it.
const fn mark_offset(kind: Kind) -> Option<usize> {
    match kind {
        Kind::Extent => Some(offset_of!(ExtentDisk, flags)),
        Kind::Dirent | Kind::Link => Some(offset_of!(DirentDisk, keep)),
        Kind::Xattr => Some(offset_of!(XattrDisk, keep)),
        _ => None,
    }
}

/// For which checkpoints history keeps an item. Of an inode that is for those of which its content is kept,
/// where it inherited that; else for all, like small content and targets of links, which carry no mark.
///
/// # Errors
/// Short input.
pub fn keep_of(kind: Kind, value: &[u8]) -> Result<Keep, Invalid> {
    if kind == Kind::Inode {
        let (d, _) = InodeDisk::read_prefix(value)?;
        let inode = Inode { flags: d.flags.get(), ..Inode::default() };
        return Ok(if inode.history_is_inherited() { inode.keep_rule().keep } else { Keep::Full });
    }
    let Some(at) = mark_offset(kind) else { return Ok(Keep::Full) };
    let byte = *value.get(at).ok_or(Invalid::Short)?;
    Ok(Keep::from_bits(if kind == Kind::Extent { (byte & EXTENT_KEEP_MASK) >> EXTENT_KEEP_SHIFT } else { byte }))
}

/// Marks an item for history as kept for certain checkpoints, if it can be.
pub fn mark_keep(kind: Kind, value: &mut [u8], keep: Keep) {
    let Some(byte) = mark_offset(kind).and_then(|at| value.get_mut(at)) else { return };
    *byte = match kind {
        Kind::Extent => *byte & !EXTENT_KEEP_MASK | (keep as u8) << EXTENT_KEEP_SHIFT,
        _ => keep as u8,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::{Dirent, Extent, XattrPiece};
    use crate::{Addr, Ino};

    #[test]
    fn values_are_what_they_say() {
        for keep in [Keep::Full, Keep::Daily, Keep::Nothing] {
            assert_eq!(Keep::parse(keep.text().as_bytes()), Some(keep));
            let mut inode = Inode { flags: 7, ..Inode::default() };
            inode.set_history(Some(keep), true, Cno(5));
            let inode = Inode::decode(&inode.encode()).unwrap();
            assert_eq!((inode.history(), inode.history_is_inherited()), (Some(keep), true));
            assert_eq!(inode.keep_rule().since, Cno(if keep == Keep::Full { 0 } else { 5 }));
            assert_eq!(keep_of(Kind::Inode, &inode.encode()), Ok(keep));
            let mut explicit = inode;
            explicit.set_history(Some(keep), false, Cno(9));
            assert_eq!(explicit.keep_rule(), inode.keep_rule());
            assert_eq!(keep_of(Kind::Inode, &explicit.encode()), Ok(Keep::Full));
            explicit.set_history(None, false, Cno(9));
            assert_eq!((explicit.history(), explicit.flags), (None, 7));
        }
        for text in ["", "Full", "full\0", "no"] {
            assert_eq!(Keep::parse(text.as_bytes()), None);
        }
    }

    #[test]
    fn marks_leave_the_rest_as_it_is() {
        let extent = Extent {
            birth: Cno(3),
            addr: Addr(70),
            blocks: 2,
            flags: crate::items::EXTENT_SHARED,
            granule_shift: 0,
            lead: 0,
            tail: 0,
            crcs: vec![1, 2],
        };
        let dirent = Dirent { birth: Cno(2), ino: Ino(17), file_type: 8, name: b"file" }.encode();
        let xattr = XattrPiece { birth: Cno(2), value_bytes: 5, name: b"user.a", bytes: b"value" }.encode();
        for (kind, plain) in [
            (Kind::Extent, extent.encode()),
            (Kind::Dirent, dirent.clone()),
            (Kind::Link, dirent),
            (Kind::Xattr, xattr),
        ] {
            for keep in [Keep::Nothing, Keep::Daily, Keep::Full] {
                let mut value = plain.clone();
                mark_keep(kind, &mut value, keep);
                assert_eq!(keep_of(kind, &value), Ok(keep));
                mark_keep(kind, &mut value, Keep::Full);
                assert_eq!(value, plain);
            }
        }
        assert!(Extent { flags: 0x20, ..extent }.slice(1, 1).flags == 0x20, "a part is kept as the whole");
    }
}
