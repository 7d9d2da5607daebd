//! Making an empty volume.

use crate::fs::Opened;
use crate::index::{NodeCache, Tree};
use crate::log::chain::Chain;
use crate::recovery::RecoveryReport;
use crate::segments::{KIND_CHAIN, Segments};
use crate::state::State;
use crate::storage::Storage;
use crate::{Clock, Error, Fs, MountOptions, Result};
use nenrin_device::{AlignedBuf, BlockDevice};
use nenrin_format::items::Inode;
use nenrin_format::node::TreeId;
use nenrin_format::superblock::{
    AREA_BLOCKS, DeviceEntry, Profile, SegmentRef, Superblock, device_blocks, segments_on,
};
use nenrin_format::{Addr, BLOCK_BYTES, Cno, Epoch, Generation, Ino, Seq, Time};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Fewest segments a volume may have.
pub const SEGMENTS_MIN: u64 = 16;
/// Blocks of a segment unless asked otherwise: 16 MiB. Each has at least one block of summary.
pub const SEGMENT_BLOCKS_DEFAULT: u32 = 4096;
/// Smaller volumes get smaller segments, so that there are at least this many.
const SEGMENTS_AIM: u64 = 512;

/// How to make a volume.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// Label, at most 64 bytes.
    pub label: Vec<u8>,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Key of the hash of names: random.
    pub hash_key: [u8; 16],
    /// Blocks in a segment, a power of two from 32 to 65536; 0 chooses by size.
    pub segment_blocks: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permission bits of the root directory.
    pub mode: u32,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self { label: Vec::new(), uuid: [0; 16], hash_key: [0; 16], segment_blocks: 0, uid: 0, gid: 0, mode: 0o755 }
    }
}

/// Smallest device in bytes on which [`mkfs`] makes a volume.
#[must_use]
pub const fn bytes_min() -> u64 {
    device_blocks(SEGMENTS_MIN, 64) * BLOCK_BYTES as u64
}

/// Blocks of a segment for a device of this many blocks.
fn choose_segment_blocks(blocks: u64) -> u32 {
    let mut segment_blocks = SEGMENT_BLOCKS_DEFAULT;
    while segment_blocks > 64 && segments_on(blocks, segment_blocks) < SEGMENTS_AIM {
        segment_blocks /= 2;
    }
    segment_blocks
}

/// Writes an empty volume on the device. What was on it is lost.
///
/// # Errors
/// [`Error::Open`] when the device is too small or an option impossible; device errors.
pub fn mkfs(device: &Arc<dyn BlockDevice>, clock: &Arc<dyn Clock>, options: &MkfsOptions) -> Result<()> {
    let blocks = device.geometry().bytes / BLOCK_BYTES as u64;
    let segment_blocks = match options.segment_blocks {
        0 => choose_segment_blocks(blocks),
        n if n.is_power_of_two() && (32..=65536).contains(&n) => n,
        n => {
            return Err(Error::Open(format!(
                "a segment of {n} blocks is impossible; use a power of two from 32 to 65536"
            )));
        }
    };
    let count = segments_on(blocks, segment_blocks);
    if count < SEGMENTS_MIN {
        let need = device_blocks(SEGMENTS_MIN, segment_blocks) * BLOCK_BYTES as u64;
        return Err(Error::Open(format!(
            "{} is too small: {} bytes, and a volume needs at least {need}",
            device.geometry().name,
            device.geometry().bytes
        )));
    }
    if options.label.len() > nenrin_format::superblock::LABEL_BYTES_MAX {
        return Err(Error::Open("the label is longer than 64 bytes".into()));
    }
    let zeros = Arc::new(AlignedBuf::zeroed(AREA_BLOCKS as usize * BLOCK_BYTES));
    for area in [0, blocks - AREA_BLOCKS] {
        device.write(area * BLOCK_BYTES as u64, zeros.clone())?;
    }
    device.flush()?;
    let fs =
        Fs::assemble(empty(device, clock, options, segment_blocks, count)?, clock.clone(), MountOptions::default());
    fs.index_checkpoint(true)
}

fn empty(
    device: &Arc<dyn BlockDevice>,
    clock: &Arc<dyn Clock>,
    options: &MkfsOptions,
    segment_blocks: u32,
    count: u64,
) -> Result<Opened> {
    let storage = Arc::new(Storage::new(device.clone(), segment_blocks, count));
    let now = clock.wall();
    let mut segments = Segments::new(count, Generation(1));
    let mut take = || segments.allocate(KIND_CHAIN, now).map(|s| storage.segment_ref(s)).ok_or(Error::NoSpace);
    let (segment, next) = (take()?, take()?);
    let mut state = State {
        cache: Arc::new(NodeCache::new(storage.clone(), 1 << 20)),
        live: Tree::empty(TreeId::LIVE),
        space: Tree::empty(TreeId::SPACE),
        history: Vec::new(),
        segments,
        kept: BTreeMap::new(),
        hash_key: options.hash_key,
        next_ino: Ino::FIRST,
        open_cno: Cno(1),
        last_cno: Cno(0),
        next_tree: TreeId::HISTORY.0,
        inodes: 1,
        live_blocks: 0,
        history_blocks: 0,
        named_blocks: 0,
        promised_blocks: 0,
        named_history: 0,
        retention: Vec::new(),
    };
    let root = Inode {
        mode: 0o040_000 | options.mode & 0o7777,
        nlink: 2,
        uid: options.uid,
        gid: options.gid,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        parent: Ino::ROOT,
        ..Inode::default()
    };
    state.put_inode(Ino::ROOT, root)?;
    let chain = Chain {
        uuid: options.uuid,
        epoch: Epoch(1),
        segment,
        block: 0,
        next: Some(next),
        seq: Seq(0),
        last_addr: Addr::NONE,
        last_crc: 0,
    };
    Ok(Opened {
        superblock: first_superblock(options, segment_blocks, count, segment, now),
        storage,
        state,
        chain,
        report: RecoveryReport::default(),
        window_bytes: 0,
        root_pins: VecDeque::new(),
    })
}

fn first_superblock(
    options: &MkfsOptions,
    segment_blocks: u32,
    count: u64,
    segment: SegmentRef,
    now: Time,
) -> Superblock {
    Superblock {
        device_index: 0,
        uuid: options.uuid,
        features: [0; 3],
        generation: Generation(0),
        epoch: Epoch(1),
        segment_blocks,
        profile: Profile::Single,
        stripe_shift: 16,
        clean: true,
        hash_key: options.hash_key,
        made_at: now,
        written_at: now,
        mounted_nanos: 0,
        root: [(segment, Addr::NONE, 0); 2],
        root_blocks: 0,
        chain: (segment, 0),
        chain_next: None,
        chain_seq: Seq(0),
        chain_last: Addr::NONE,
        chain_crc: 0,
        label: options.label.clone(),
        devices: vec![DeviceEntry { uuid: options.uuid, segments: count, member_generation: 1, state: 1 }],
    }
}
