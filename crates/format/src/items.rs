//! Values of index items. Every value of the live and history trees begins
//! with its birth.

pub use crate::keep::*;
pub use crate::space_items::*;

use crate::disk_struct;
use crate::layout::le::{I64, U16, U32, U64};
use crate::{Addr, Cno, Ino, Invalid, Time};
use std::sync::Arc;
use zerocopy::IntoBytes;

disk_struct! {
    /// Value of an inode item.
    pub struct InodeDisk [128] {
        /// Cno it was last changed in.
        pub birth: U64,
        /// File type and permission bits, as in stat(2).
        pub mode: U32,
        /// Links to it; 0 for an orphan.
        pub nlink: U32,
        /// Owner.
        pub uid: U32,
        /// Group.
        pub gid: U32,
        /// Size in bytes.
        pub size: U64,
        /// Content blocks allocated.
        pub blocks: U64,
        /// Times.
        pub atime: I64,
        /// Last change of content.
        pub mtime: I64,
        /// Last change of anything.
        pub ctime: I64,
        /// Creation.
        pub btime: I64,
        /// Device number of a device file.
        pub rdev: U32,
        /// Current fork of the content.
        pub fork: U32,
        /// User who last committed content.
        pub editor_uid: U32,
        /// [`INODE_XATTR`], [`INODE_ACL`], [`INODE_CAPS`], [`INODE_HISTORY_MASK`], [`INODE_HISTORY_INHERITED`].
        pub flags: U32,
        /// Directory: its parent.
        pub parent: U64,
        /// Directory: its entries.
        pub entries: U64,
        /// Cno since which the bits of [`INODE_HISTORY_MASK`] hold.
        pub history_since: U64,
        /// Must be zero.
        pub reserved: [u8; 16],
    }
}

/// The inode has extended attributes.
pub const INODE_XATTR: u32 = 1;
/// The inode has a POSIX ACL.
pub const INODE_ACL: u32 = 2;
/// The inode has file capabilities.
pub const INODE_CAPS: u32 = 4;

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inode {
    /// Cno it was last changed in.
    pub birth: Cno,
    /// File type and permission bits, as in stat(2).
    pub mode: u32,
    /// Links to it.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Content blocks allocated.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// Device number of a device file.
    pub rdev: u32,
    /// Current fork of the content.
    pub fork: u32,
    /// User who last committed content.
    pub editor_uid: u32,
    /// [`INODE_XATTR`] and its neighbours.
    pub flags: u32,
    /// Directory: its parent.
    pub parent: Ino,
    /// Directory: its entries.
    pub entries: u64,
    /// Cno since which the bits about its history hold.
    pub history_since: Cno,
}

impl Inode {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.disk().as_bytes().to_vec()
    }
    /// The value of its item.
    #[must_use]
    pub fn value(&self) -> Arc<[u8]> {
        self.disk().as_bytes().into()
    }
    fn disk(&self) -> InodeDisk {
        let mut d = InodeDisk::zeroed();
        d.birth.set(self.birth.0);
        d.mode.set(self.mode);
        d.nlink.set(self.nlink);
        d.uid.set(self.uid);
        d.gid.set(self.gid);
        d.size.set(self.size);
        d.blocks.set(self.blocks);
        d.atime.set(self.atime.0);
        d.mtime.set(self.mtime.0);
        d.ctime.set(self.ctime.0);
        d.btime.set(self.btime.0);
        d.rdev.set(self.rdev);
        d.fork.set(self.fork);
        d.editor_uid.set(self.editor_uid);
        d.flags.set(self.flags);
        d.parent.set(self.parent.0);
        d.entries.set(self.entries);
        d.history_since.set(self.history_since.0);
        d
    }
    /// From bytes.
    ///
    /// # Errors
    /// Short input.
    pub fn decode(b: &[u8]) -> Result<Self, Invalid> {
        let (d, _) = InodeDisk::read_prefix(b)?;
        Ok(Self {
            birth: Cno(d.birth.get()),
            mode: d.mode.get(),
            nlink: d.nlink.get(),
            uid: d.uid.get(),
            gid: d.gid.get(),
            size: d.size.get(),
            blocks: d.blocks.get(),
            atime: Time(d.atime.get()),
            mtime: Time(d.mtime.get()),
            ctime: Time(d.ctime.get()),
            btime: Time(d.btime.get()),
            rdev: d.rdev.get(),
            fork: d.fork.get(),
            editor_uid: d.editor_uid.get(),
            flags: d.flags.get(),
            parent: Ino(d.parent.get()),
            entries: d.entries.get(),
            history_since: Cno(d.history_since.get()),
        })
    }
}

/// The birth at the start of any live or history value.
///
/// # Errors
/// Short input.
pub fn birth(value: &[u8]) -> Result<Cno, Invalid> {
    let b = value.get(..8).ok_or(Invalid::Short)?;
    let mut v = [0; 8];
    v.copy_from_slice(b);
    Ok(Cno(u64::from_le_bytes(v)))
}

/// A value that is a birth and bytes: inline content, or a link's target.
#[must_use]
pub fn encode_bytes(birth: Cno, bytes: &[u8]) -> Vec<u8> {
    let mut out = birth.0.to_le_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

/// The bytes behind the birth.
///
/// # Errors
/// Short input.
pub fn decode_bytes(value: &[u8]) -> Result<&[u8], Invalid> {
    value.get(8..).ok_or(Invalid::Short)
}

disk_struct! {
    /// Start of a directory entry or of a link item; the name follows.
    pub struct DirentDisk [20] {
        /// Cno it appeared in.
        pub birth: U64,
        /// Dirent: the inode it names. Link: the directory that holds the name.
        pub ino: U64,
        /// File type as in the high four bits of st_mode.
        pub file_type: u8,
        /// In history trees: which checkpoints it is kept for, as [`Keep`].
        pub keep: u8,
        /// Length of the name.
        pub name_bytes: U16,
    }
}

/// A directory entry, or (kind link) a back reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// Cno it appeared in.
    pub birth: Cno,
    /// Dirent: the inode it names. Link: the directory that holds the name.
    pub ino: Ino,
    /// File type as in the high four bits of st_mode.
    pub file_type: u8,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> Dirent<'a> {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = DirentDisk::zeroed();
        d.birth.set(self.birth.0);
        d.ino.set(self.ino.0);
        d.file_type = self.file_type;
        d.name_bytes.set(self.name.len() as u16);
        let mut out = d.as_bytes().to_vec();
        out.extend_from_slice(self.name);
        out
    }
    /// From bytes.
    ///
    /// # Errors
    /// Short input; a name that none can be.
    pub fn decode(b: &'a [u8]) -> Result<Self, Invalid> {
        let this = Self::decode_any_name(b)?;
        if crate::can_be_name(this.name) { Ok(this) } else { Err(Invalid::Bounds) }
    }
    /// From bytes, with a name that may be none: for who says what is wrong with it.
    ///
    /// # Errors
    /// Short input; a name of impossible length.
    pub fn decode_any_name(b: &'a [u8]) -> Result<Self, Invalid> {
        let (d, rest) = DirentDisk::read_prefix(b)?;
        let n = usize::from(d.name_bytes.get());
        if n == 0 || n > crate::NAME_BYTES_MAX || n != rest.len() {
            return Err(Invalid::Bounds);
        }
        Ok(Self { birth: Cno(d.birth.get()), ino: Ino(d.ino.get()), file_type: d.file_type, name: rest })
    }
}

disk_struct! {
    /// Start of one piece of an extended attribute. Piece 0 carries the name,
    /// then bytes of the value; later pieces only bytes.
    pub struct XattrDisk [16] {
        /// Cno it appeared in.
        pub birth: U64,
        /// Length of the whole value (piece 0).
        pub value_bytes: U32,
        /// Length of the name that follows (piece 0).
        pub name_bytes: U16,
        /// In history trees: which checkpoints it is kept for, as [`Keep`].
        pub keep: u8,
        /// Must be zero.
        pub reserved: u8,
    }
}

/// Value bytes in one xattr piece.
pub const XATTR_PIECE_BYTES: usize = 4096;

/// One piece of an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrPiece<'a> {
    /// Cno it appeared in.
    pub birth: Cno,
    /// Length of the whole value.
    pub value_bytes: u32,
    /// The name; empty in later pieces.
    pub name: &'a [u8],
    /// Bytes of the value.
    pub bytes: &'a [u8],
}

impl<'a> XattrPiece<'a> {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = XattrDisk::zeroed();
        d.birth.set(self.birth.0);
        d.value_bytes.set(self.value_bytes);
        d.name_bytes.set(self.name.len() as u16);
        let mut out = d.as_bytes().to_vec();
        out.extend_from_slice(self.name);
        out.extend_from_slice(self.bytes);
        out
    }
    /// From bytes.
    ///
    /// # Errors
    /// Short input.
    pub fn decode(b: &'a [u8]) -> Result<Self, Invalid> {
        let (d, rest) = XattrDisk::read_prefix(b)?;
        let (name, bytes) = rest.split_at_checked(usize::from(d.name_bytes.get())).ok_or(Invalid::Short)?;
        Ok(Self { birth: Cno(d.birth.get()), value_bytes: d.value_bytes.get(), name, bytes })
    }
}

disk_struct! {
    /// Start of an extent item; CRC32C values follow, one per granule.
    pub struct ExtentDisk [24] {
        /// Cno it appeared in.
        pub birth: U64,
        /// Address of its first block; all ones where nothing is allocated.
        pub addr: U64,
        /// Blocks it covers.
        pub blocks: U16,
        /// [`EXTENT_UNWRITTEN`], [`EXTENT_SHARED`], [`EXTENT_LOST`]; in history trees [`EXTENT_KEEP_MASK`].
        pub flags: u8,
        /// log2 of the blocks under one checksum.
        pub granule_shift: u8,
        /// Blocks before `addr` that the first checksum covers too.
        pub lead: u8,
        /// Blocks behind the end that the last checksum covers too.
        pub tail: u8,
        /// Must be zero.
        pub reserved: U16,
    }
}

/// Reserved by fallocate: reads as zeros.
pub const EXTENT_UNWRITTEN: u8 = 1;
/// Has other owners; see the back references of its address.
pub const EXTENT_SHARED: u8 = 2;
/// What was here is not known any more: reads give an error. Only together with
/// [`EXTENT_UNWRITTEN`]; a repair writes it.
pub const EXTENT_LOST: u8 = 4;

fn put_crcs(crcs: &[u32], out: &mut Vec<u8>) {
    for c in crcs {
        out.extend_from_slice(&c.to_le_bytes());
    }
}

/// A run of file blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Cno it appeared in.
    pub birth: Cno,
    /// Address of its first block; [`Addr::NONE`] when unwritten.
    pub addr: Addr,
    /// Blocks it covers, 1 to 256.
    pub blocks: u32,
    /// [`EXTENT_UNWRITTEN`], [`EXTENT_SHARED`], [`EXTENT_LOST`].
    pub flags: u8,
    /// log2 of the blocks under one checksum.
    pub granule_shift: u8,
    /// Blocks before `addr` that the first checksum covers too.
    pub lead: u32,
    /// Blocks behind the end that the last checksum covers too.
    pub tail: u32,
    /// One checksum per granule of `lead + blocks + tail` blocks.
    pub crcs: Vec<u32>,
}

impl Extent {
    /// Takes in `next`, which covers the file blocks behind this extent; false
    /// where the two do not make one item. `off` is this extent's file block.
    pub fn join(&mut self, off: u64, next: &Self) -> bool {
        let alike = (self.birth, self.flags, self.granule_shift) == (next.birth, next.flags, next.granule_shift);
        let whole = self.tail == 0 && next.lead == 0 && (self.lead + self.blocks) % (1 << self.granule_shift) == 0;
        let stored = self.flags == 0 && Addr(self.addr.0 + u64::from(self.blocks)) == next.addr;
        let joined = Self { blocks: self.blocks + next.blocks, crcs: Vec::new(), ..*self };
        if !(alike && whole && stored && self.addr.segment() == next.addr.segment() && joined.fits(off)) {
            return false;
        }
        self.blocks = joined.blocks;
        self.tail = next.tail;
        self.crcs.extend_from_slice(&next.crcs);
        true
    }
    /// Whether it may begin at file block `off`: within the largest file, and
    /// within one window of [`crate::EXTENT_BLOCKS_MAX`] blocks.
    #[must_use]
    pub const fn fits(&self, off: u64) -> bool {
        let window = crate::EXTENT_BLOCKS_MAX as u64;
        off < 1 << 52 && off % window + self.blocks as u64 <= window
    }
    /// Whether nothing is stored for it.
    #[must_use]
    pub const fn is_unwritten(&self) -> bool {
        self.flags & EXTENT_UNWRITTEN != 0
    }
    /// Whether its content is lost: reading it is an error.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        self.flags & EXTENT_LOST != 0 && self.is_unwritten()
    }
    /// Whether it may have other owners: then it has a back reference.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.flags & EXTENT_SHARED != 0 && !self.is_unwritten()
    }
    /// Blocks that count against the segment it lies in.
    #[must_use]
    pub const fn stored_blocks(&self) -> u32 {
        if self.is_unwritten() { 0 } else { self.blocks }
    }
    /// Blocks that are reserved, with nothing written to them yet.
    #[must_use]
    pub const fn promised_blocks(&self) -> u32 {
        if self.is_unwritten() && !self.is_lost() { self.blocks } else { 0 }
    }
    /// The part of the extent that starts `skip` blocks in and has `blocks`.
    ///
    /// Checksums that cover it come along; blocks outside that they cover too
    /// are told in `lead` and `tail`.
    #[must_use]
    pub fn slice(&self, skip: u32, blocks: u32) -> Self {
        debug_assert!(blocks > 0 && skip + blocks <= self.blocks);
        if self.is_unwritten() {
            return Self { blocks, ..self.clone() };
        }
        let granule = 1u32 << self.granule_shift;
        let from = self.lead + skip;
        let to = from + blocks;
        let first = from >> self.granule_shift;
        let last = to.div_ceil(granule);
        Self {
            birth: self.birth,
            addr: self.addr.add(skip),
            blocks,
            flags: self.flags,
            granule_shift: self.granule_shift,
            lead: from - (first << self.granule_shift),
            tail: (last << self.granule_shift) - to,
            crcs: self.crcs[first as usize..last as usize].to_vec(),
        }
    }
    /// Appends its bytes.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        self.encode_at(self.addr, out);
    }
    /// The same as if it were at this address.
    pub fn encode_at(&self, addr: Addr, out: &mut Vec<u8>) {
        let mut d = self.disk();
        d.addr.set(addr.0);
        out.extend_from_slice(d.as_bytes());
        put_crcs(&self.crcs, out);
    }
    fn disk(&self) -> ExtentDisk {
        let mut d = ExtentDisk::zeroed();
        d.birth.set(self.birth.0);
        d.addr.set(self.addr.0);
        d.blocks.set(self.blocks as u16);
        d.flags = self.flags;
        d.granule_shift = self.granule_shift;
        d.lead = self.lead as u8;
        d.tail = self.tail as u8;
        d
    }
    /// The value of its item, with these checksums.
    #[must_use]
    pub fn value_with(&self, crcs: &[u32]) -> Arc<[u8]> {
        let disk = self.disk();
        if let [crc] = crcs {
            let mut value = [0; ExtentDisk::BYTES + 4];
            value[..ExtentDisk::BYTES].copy_from_slice(disk.as_bytes());
            value[ExtentDisk::BYTES..].copy_from_slice(&crc.to_le_bytes());
            return value.as_slice().into();
        }
        let mut value = Vec::with_capacity(ExtentDisk::BYTES + 4 * crcs.len());
        value.extend_from_slice(disk.as_bytes());
        put_crcs(crcs, &mut value);
        value.into()
    }
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ExtentDisk::BYTES + 4 * self.crcs.len());
        self.encode_into(&mut out);
        out
    }
    /// How many blocks that covers which these bytes say, without the rest of it; `None` where they are too few.
    #[must_use]
    pub fn peek_blocks(b: &[u8]) -> Option<u32> {
        ExtentDisk::read_prefix(b).ok().map(|(d, _)| u32::from(d.blocks.get()))
    }
    /// The extent at the start of `b`, and the rest.
    ///
    /// # Errors
    /// Short input; impossible length or granule.
    pub fn decode_prefix(b: &[u8]) -> Result<(Self, &[u8]), Invalid> {
        let (d, rest) = ExtentDisk::read_prefix(b)?;
        let blocks = u32::from(d.blocks.get());
        if blocks == 0 || blocks > crate::EXTENT_BLOCKS_MAX || d.granule_shift > 4 {
            return Err(Invalid::Bounds);
        }
        let covered = u32::from(d.lead) + blocks + u32::from(d.tail);
        let unwritten = d.flags & EXTENT_UNWRITTEN != 0;
        let granule = 1 << d.granule_shift;
        // No segment is longer than its numbers of blocks reach, so no extent goes on in the next.
        let (kind, block) = (d.addr.get() >> 62, d.addr.get() & 0xf_ffff);
        let crosses = kind == 0 && block + u64::from(blocks) + u64::from(d.tail) > 1 << Addr::BLOCK_BITS;
        if !unwritten
            && (crosses
                || covered % granule != 0
                || u32::from(d.lead) >= granule
                || u32::from(d.tail) >= granule
                || kind > 1
                || kind == 0 && block < u64::from(d.lead))
        {
            return Err(Invalid::Bounds);
        }
        let count = if unwritten { 0 } else { (covered / granule) as usize };
        let (crcs, rest) = rest.split_at_checked(count * 4).ok_or(Invalid::Short)?;
        let this = Self {
            birth: Cno(d.birth.get()),
            addr: Addr(d.addr.get()),
            blocks,
            flags: d.flags,
            granule_shift: d.granule_shift,
            lead: u32::from(d.lead),
            tail: u32::from(d.tail),
            crcs: crcs.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect(),
        };
        Ok((this, rest))
    }
    /// From bytes.
    ///
    /// # Errors
    /// As [`Extent::decode_prefix`], and bytes left over.
    pub fn decode(b: &[u8]) -> Result<Self, Invalid> {
        let (this, rest) = Self::decode_prefix(b)?;
        if rest.is_empty() { Ok(this) } else { Err(Invalid::Bounds) }
    }
}
