//! Values of the items of the space tree: what concerns the volume.

use crate::disk_struct;
use crate::keep::{Keep, KeepRule};
use crate::key::{Key, Kind};
use crate::layout::le::{I64, U16, U32, U64};
use crate::{Cno, Ino, Invalid, Seq, Time};
use zerocopy::IntoBytes;

disk_struct! {
    /// Value of a segment item (space tree).
    pub struct SegmentDisk [56] {
        /// Blocks the live tree needs.
        pub live_blocks: U32,
        /// Blocks only history trees need.
        pub history_blocks: U32,
        /// Generation from which no root needs it; 0 while in use.
        pub emptied_generation: U64,
        /// Highest sequence of a chain partial in it; 0 when none.
        pub chain_seq: U64,
        /// Last time something was written to it.
        pub written_at: I64,
        /// What it holds: as [`crate::partial::PartialKind`].
        pub kind: u8,
        /// Must be zero.
        pub reserved: [u8; 23],
    }
}

/// State of one segment as the space tree keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Blocks the live tree needs.
    pub live_blocks: u32,
    /// Blocks only history trees need.
    pub history_blocks: u32,
    /// Generation from which no root needs it; 0 while in use.
    pub emptied_generation: u64,
    /// Highest sequence of a chain partial in it.
    pub chain_seq: Seq,
    /// Last time something was written to it.
    pub written_at: Time,
    /// What it holds.
    pub kind: u8,
}

impl Segment {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = SegmentDisk::zeroed();
        d.live_blocks.set(self.live_blocks);
        d.history_blocks.set(self.history_blocks);
        d.emptied_generation.set(self.emptied_generation);
        d.chain_seq.set(self.chain_seq.0);
        d.written_at.set(self.written_at.0);
        d.kind = self.kind;
        d.as_bytes().to_vec()
    }
    /// From bytes.
    ///
    /// # Errors
    /// Short input.
    pub fn decode(b: &[u8]) -> Result<Self, Invalid> {
        let (d, _) = SegmentDisk::read_prefix(b)?;
        Ok(Self {
            live_blocks: d.live_blocks.get(),
            history_blocks: d.history_blocks.get(),
            emptied_generation: d.emptied_generation.get(),
            chain_seq: Seq(d.chain_seq.get()),
            written_at: Time(d.written_at.get()),
            kind: d.kind,
        })
    }
}

disk_struct! {
    /// Start of a checkpoint item (space tree); the name follows.
    pub struct CheckpointDisk [32] {
        /// Wall time of the cut.
        pub wall: I64,
        /// Mounted time of the cut, in nanoseconds.
        pub mounted_nanos: U64,
        /// [`CHECKPOINT_NAMED`], [`CHECKPOINT_ASKED`], [`CHECKPOINT_DAILY`]; times [`CHECKPOINT_MOUNT`], the mount that cut it.
        pub flags: U32,
        /// Length of the name.
        pub name_bytes: U16,
        /// Must be zero.
        pub reserved: U16,
        /// With a name: what dies in this cno or later died when it had the name.
        pub named_at: U64,
    }
}

/// Kept by name: a snapshot.
pub const CHECKPOINT_NAMED: u32 = 1;
/// Made on request rather than by time.
pub const CHECKPOINT_ASKED: u32 = 2;
/// The first of a day.
pub const CHECKPOINT_DAILY: u32 = 4;
/// The upper half of the flags tells the mounts apart that cut checkpoints; 0: not known.
pub const CHECKPOINT_MOUNT: u32 = 1 << 16;

/// A checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Wall time of the cut.
    pub wall: Time,
    /// Mounted time of the cut, in nanoseconds.
    pub mounted_nanos: u64,
    /// [`CHECKPOINT_NAMED`], [`CHECKPOINT_ASKED`], [`CHECKPOINT_DAILY`]; times [`CHECKPOINT_MOUNT`], the mount that cut it.
    pub flags: u32,
    /// Name of a snapshot; empty for an unnamed checkpoint.
    pub name: Vec<u8>,
    /// With a name: what dies in this cno or later died when it had the name.
    pub named_at: Cno,
}

impl Checkpoint {
    /// Whether it is a snapshot.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        self.flags & CHECKPOINT_NAMED != 0
    }
    /// Whether it is the first of a day.
    #[must_use]
    pub const fn is_daily(&self) -> bool {
        self.flags & CHECKPOINT_DAILY != 0
    }
    /// Tells the mount that cut it from those before and behind; 0: not known.
    #[must_use]
    pub const fn mount(&self) -> u16 {
        (self.flags / CHECKPOINT_MOUNT) as u16
    }
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = CheckpointDisk::zeroed();
        d.wall.set(self.wall.0);
        d.mounted_nanos.set(self.mounted_nanos);
        d.flags.set(self.flags);
        d.name_bytes.set(self.name.len() as u16);
        d.named_at.set(self.named_at.0);
        let mut out = d.as_bytes().to_vec();
        out.extend_from_slice(&self.name);
        out
    }
    /// From bytes.
    ///
    /// # Errors
    /// Short input, or a name of another length than stated.
    pub fn decode(b: &[u8]) -> Result<Self, Invalid> {
        let (d, rest) = CheckpointDisk::read_prefix(b)?;
        if rest.len() != usize::from(d.name_bytes.get()) {
            return Err(Invalid::Bounds);
        }
        Ok(Self {
            wall: Time(d.wall.get()),
            mounted_nanos: d.mounted_nanos.get(),
            flags: d.flags.get(),
            name: rest.to_vec(),
            named_at: Cno(d.named_at.get()),
        })
    }
}

disk_struct! {
    /// Value of an orphan or reap item (space tree).
    pub struct ReapDisk [24] {
        /// Cno from which the items are gone.
        pub death: U64,
        /// Fork to reap, when only one is; else the first.
        pub fork: U32,
        /// 1: everything of the inode from that fork on; 0: only that fork's extents.
        pub whole: u8,
        /// How much of its history is kept, as [`Keep`].
        pub keep: u8,
        /// Must be zero.
        pub reserved: [u8; 2],
        /// Cno since which that holds.
        pub since: U64,
    }
}

/// An orphan, or work for the reaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reap {
    /// Cno from which the items are gone.
    pub death: Cno,
    /// Fork to reap, when only one is; else the first: older ones that are there are reaped by themselves.
    pub fork: u32,
    /// Everything of the inode from that fork on, or only that fork's extents.
    pub whole: bool,
    /// How much of its history is kept.
    pub rule: KeepRule,
}

impl Reap {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = ReapDisk::zeroed();
        d.death.set(self.death.0);
        d.fork.set(self.fork);
        d.whole = u8::from(self.whole);
        d.keep = self.rule.keep as u8;
        d.since.set(self.rule.since.0);
        d.as_bytes().to_vec()
    }
    /// From bytes.
    ///
    /// # Errors
    /// Short input.
    pub fn decode(b: &[u8]) -> Result<Self, Invalid> {
        let (d, _) = ReapDisk::read_prefix(b)?;
        let rule = KeepRule { keep: Keep::from_bits(d.keep), since: Cno(d.since.get()) };
        Ok(Self { death: Cno(d.death.get()), fork: d.fork.get(), whole: d.whole == 1, rule })
    }
}

disk_struct! {
    /// Value of a landmark (space tree), before its steps.
    pub struct LandmarkDisk [40] {
        /// The file.
        pub ino: U64,
        /// Wall time of the checkpoint.
        pub wall: I64,
        /// Mounted time of the checkpoint, in nanoseconds.
        pub mounted_nanos: U64,
        /// How long the file stayed as it was then, in nanoseconds.
        pub stood_nanos: U64,
        /// How much it stands out, from 1.
        pub level: u8,
        /// Must be zero.
        pub reserved: [u8; 3],
        /// Steps that follow, each 16 bytes: a directory, and the `off` of its entry for the next, from the root on.
        pub steps: U32,
    }
}

/// A version of one file that outlives the checkpoints that showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landmark {
    /// The file.
    pub ino: Ino,
    /// Wall time of the checkpoint.
    pub wall: Time,
    /// Mounted time of the checkpoint, in nanoseconds.
    pub mounted_nanos: u64,
    /// How long the file stayed as it was then, in nanoseconds.
    pub stood_nanos: u64,
    /// How much it stands out, from 1.
    pub level: u8,
    /// The way to it: a directory, and the `off` of its entry for the next, from the root on.
    pub steps: Vec<(Ino, u64)>,
}

impl Landmark {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = LandmarkDisk::zeroed();
        d.ino.set(self.ino.0);
        d.wall.set(self.wall.0);
        d.mounted_nanos.set(self.mounted_nanos);
        d.stood_nanos.set(self.stood_nanos);
        d.level = self.level;
        d.steps.set(self.steps.len() as u32);
        let mut out = d.as_bytes().to_vec();
        for (directory, off) in &self.steps {
            out.extend_from_slice(&directory.0.to_le_bytes());
            out.extend_from_slice(&off.to_le_bytes());
        }
        out
    }
    /// From bytes.
    ///
    /// # Errors
    /// Short input, or another number of steps than stated.
    pub fn decode(b: &[u8]) -> Result<Self, Invalid> {
        let (d, rest) = LandmarkDisk::read_prefix(b)?;
        let steps = rest.chunks_exact(16);
        if steps.len() != d.steps.get() as usize || !steps.remainder().is_empty() {
            return Err(Invalid::Bounds);
        }
        let number = |b: &[u8]| b.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        Ok(Self {
            ino: Ino(d.ino.get()),
            wall: Time(d.wall.get()),
            mounted_nanos: d.mounted_nanos.get(),
            stood_nanos: d.stood_nanos.get(),
            level: d.level,
            steps: steps.map(|s| (Ino(number(&s[..8])), number(&s[8..]))).collect(),
        })
    }
}

disk_struct! {
    /// Value of an item for an inode that is being forgotten (space tree).
    pub struct ForgetDisk [16] {
        /// When that was asked for.
        pub begun: I64,
        /// Must be zero.
        pub reserved: U64,
    }
}

/// Since when an inode is being forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    /// When that was asked for.
    pub begun: Time,
}

impl Forget {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = ForgetDisk::zeroed();
        d.begun.set(self.begun.0);
        d.as_bytes().to_vec()
    }
    /// From bytes.
    ///
    /// # Errors
    /// Short input.
    pub fn decode(b: &[u8]) -> Result<Self, Invalid> {
        let (d, _) = ForgetDisk::read_prefix(b)?;
        Ok(Self { begun: Time(d.begun.get()) })
    }
}

disk_struct! {
    /// Value of an item for history of an inode that was shed (space tree).
    pub struct ShedDisk [32] {
        /// What of its content died in this cno or before is kept for snapshots only.
        pub upto: U64,
        /// Those that had a name before this cno.
        pub at: U64,
        /// When that was done.
        pub wall: I64,
        /// Blocks of content that history alone kept of it then.
        pub blocks: U64,
    }
}

/// History of an inode that was shed for want of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed {
    /// What of its content died in this cno or before is kept for snapshots only.
    pub upto: Cno,
    /// Those that had a name before this cno.
    pub at: Cno,
    /// When that was done.
    pub wall: Time,
    /// Blocks of content that history alone kept of it then.
    pub blocks: u64,
}

impl Shed {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = ShedDisk::zeroed();
        d.upto.set(self.upto.0);
        d.at.set(self.at.0);
        d.wall.set(self.wall.0);
        d.blocks.set(self.blocks);
        d.as_bytes().to_vec()
    }
    /// From bytes.
    ///
    /// # Errors
    /// Short input.
    pub fn decode(b: &[u8]) -> Result<Self, Invalid> {
        let (d, _) = ShedDisk::read_prefix(b)?;
        Ok(Self { upto: Cno(d.upto.get()), at: Cno(d.at.get()), wall: Time(d.wall.get()), blocks: d.blocks.get() })
    }
}

disk_struct! {
    /// Value of a back reference (space tree): one owner of a shared extent.
    pub struct BackrefDisk [32] {
        /// Owning inode.
        pub ino: U64,
        /// First file block of the owner's extent.
        pub off: U64,
        /// Fork of the owner.
        pub fork: U32,
        /// Blocks.
        pub blocks: U32,
        /// Cno the owner's extent died in; 0 while it lives.
        pub death: U64,
    }
}

/// One owner of a shared extent: the extent item that has this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backref {
    /// Key of the owner's item, in the live tree or, with a death, in history.
    pub owner: Key,
    /// Blocks it has, from the address in the back reference's key on.
    pub blocks: u32,
}

impl Backref {
    /// To bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = BackrefDisk::zeroed();
        d.ino.set(self.owner.ino);
        d.off.set(self.owner.off);
        d.fork.set(self.owner.fork);
        d.blocks.set(self.blocks);
        d.death.set(self.owner.death);
        d.as_bytes().to_vec()
    }
    /// From bytes.
    ///
    /// # Errors
    /// Short input, or a length that no extent has.
    pub fn decode(b: &[u8]) -> Result<Self, Invalid> {
        let (d, _) = BackrefDisk::read_prefix(b)?;
        let blocks = d.blocks.get();
        if blocks == 0 || blocks > crate::EXTENT_BLOCKS_MAX {
            return Err(Invalid::Bounds);
        }
        let owner = Key::new(Ino(d.ino.get()), Kind::Extent, d.fork.get(), d.off.get()).died(d.death.get());
        Ok(Self { owner, blocks })
    }
}
