//! Keys of the index: what an item is about, in the order the trees keep.
//!
//! All trees share one key type. A history tree tells the versions of one item
//! apart by `death`; elsewhere `death` is zero.

use crate::{Ino, Invalid};

/// What an item says about its inode (live and history trees) or about the
/// volume (space tree).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Attributes of an inode.
    Inode = 1,
    /// Small content held in the index.
    Inline = 2,
    /// Target of a symbolic link.
    Symlink = 3,
    /// Extended attribute; `off` is the name's hash, `fork` the piece.
    Xattr = 4,
    /// Directory entry; `off` is the name's hash and slot.
    Dirent = 5,
    /// Back reference from an inode to a name; `off` is a hash of parent and name.
    Link = 6,
    /// Content: `off` is the first file block.
    Extent = 7,
    /// Space tree: a segment. `off` is its number; `ino` is 0, as in all items
    /// of the space tree but back references.
    Segment = 32,
    /// Space tree: a checkpoint. `off` is its cno.
    Checkpoint = 33,
    /// Space tree: an owner of a shared extent. `ino` is its address, `off` a hash of the owner.
    Backref = 34,
    /// Space tree: an inode without a name. `off` is its number.
    Orphan = 35,
    /// Space tree: a dead inode or fork whose items are still to be removed. `off` is its number.
    Reap = 36,
    /// Space tree: a landmark. `off` is the cno whose state it keeps of one file, `fork` tells those of one cno apart.
    Landmark = 37,
    /// Space tree: an inode that is being forgotten. `off` is its number.
    Forget = 38,
    /// Space tree: history of an inode that was shed. `off` is its number, `fork` tells those of one inode apart.
    Shed = 39,
}

impl Kind {
    /// The greatest.
    #[must_use]
    pub const fn last() -> Self {
        Self::Shed
    }
    /// The kind with this number.
    ///
    /// # Errors
    /// [`Invalid::Kind`] for a number without meaning.
    pub const fn from_u8(v: u8) -> Result<Self, Invalid> {
        Ok(match v {
            1 => Self::Inode,
            2 => Self::Inline,
            3 => Self::Symlink,
            4 => Self::Xattr,
            5 => Self::Dirent,
            6 => Self::Link,
            7 => Self::Extent,
            32 => Self::Segment,
            33 => Self::Checkpoint,
            34 => Self::Backref,
            35 => Self::Orphan,
            36 => Self::Reap,
            37 => Self::Landmark,
            38 => Self::Forget,
            39 => Self::Shed,
            _ => return Err(Invalid::Kind(v)),
        })
    }
}

/// A key. Field order is sort order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Inode, segment, checkpoint or address, by kind.
    pub ino: u64,
    /// What the item says.
    pub kind: Kind,
    /// Generation of the inode's content, raised when a huge file is emptied.
    pub fork: u32,
    /// Offset or hash, by kind.
    pub off: u64,
    /// In history trees the cno from which the item was gone; else 0.
    pub death: u64,
}

impl Key {
    /// Size of an encoded key in bytes.
    pub const BYTES: usize = 29;

    /// No key of the live tree or of a history tree is smaller.
    #[must_use]
    pub const fn first() -> Self {
        Self { ino: 0, kind: Kind::Inode, fork: 0, off: 0, death: 0 }
    }
    /// No key of the live tree or of a history tree is larger.
    #[must_use]
    pub const fn last() -> Self {
        Self { ino: u64::MAX, kind: Kind::Extent, fork: u32::MAX, off: u64::MAX, death: u64::MAX }
    }
    /// A key of the live tree.
    #[must_use]
    pub const fn new(ino: Ino, kind: Kind, fork: u32, off: u64) -> Self {
        Self { ino: ino.0, kind, fork, off, death: 0 }
    }
    /// A key of the space tree.
    #[must_use]
    pub const fn space(kind: Kind, fork: u32, off: u64) -> Self {
        Self { ino: 0, kind, fork, off, death: 0 }
    }
    /// The same item in a history tree.
    #[must_use]
    pub const fn died(mut self, death: u64) -> Self {
        self.death = death;
        self
    }
    /// The same item in the live tree.
    #[must_use]
    pub const fn living(mut self) -> Self {
        self.death = 0;
        self
    }
    /// The smallest key greater than this one, if there is one.
    #[must_use]
    pub fn successor(mut self) -> Option<Self> {
        if let Some(d) = self.death.checked_add(1) {
            self.death = d;
            return Some(self);
        }
        self.death = 0;
        self.off = self.off.checked_add(1)?;
        Some(self)
    }
    /// The smallest key of another item greater than this one, deaths aside.
    #[must_use]
    pub fn successor_living(self) -> Option<Self> {
        Some(Self { off: self.off.checked_add(1)?, death: 0, ..self })
    }
    /// Encodes big-endian, so that byte order is key order.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.ino.to_be_bytes());
        out[8] = self.kind as u8;
        out[9..13].copy_from_slice(&self.fork.to_be_bytes());
        out[13..21].copy_from_slice(&self.off.to_be_bytes());
        out[21..29].copy_from_slice(&self.death.to_be_bytes());
        out
    }
    /// Decodes what [`Key::encode`] made.
    ///
    /// # Errors
    /// [`Invalid::Kind`] when the kind has no meaning.
    pub fn decode(b: &[u8; Self::BYTES]) -> Result<Self, Invalid> {
        let u64_at = |i: usize| {
            let mut v = [0; 8];
            v.copy_from_slice(&b[i..i + 8]);
            u64::from_be_bytes(v)
        };
        Ok(Self {
            ino: u64_at(0),
            kind: Kind::from_u8(b[8])?,
            fork: u32::from_be_bytes([b[9], b[10], b[11], b[12]]),
            off: u64_at(13),
            death: u64_at(21),
        })
    }
}
