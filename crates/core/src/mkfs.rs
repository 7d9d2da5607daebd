//! Making an empty volume.

use crate::devices::{Devices, Layout, bands_for};
use crate::fs::Opened;
use crate::index::{NodeCache, Tree};
use crate::log::chain::Chain;
use crate::mounts::Mounts;
use crate::recovery::RecoveryReport;
use crate::segments::{KIND_CHAIN, Segments};
use crate::state::{KnownPast, Sheds, State};
use crate::storage::Storage;
use crate::{Clock, Error, Fs, MountOptions, Result, heartbeat};
use nenrin_device::{AlignedBuf, BlockDevice};
use nenrin_format::items::Inode;
use nenrin_format::node::TreeId;
use nenrin_format::row_log::ROW_LOG_UNITS;
use nenrin_format::superblock::{
    AREA_BLOCKS, BANDS_MAX, Band, DEVICES_MAX, DeviceEntry, Profile, Superblock, UNIT_BLOCKS, device_blocks, rows,
    segments_on,
};
use nenrin_format::{Addr, BLOCK_BYTES, Cno, Epoch, Generation, Ino, SEGMENTS_MAX, SegmentNo, Seq, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Fewest segments a volume may have.
pub const SEGMENTS_MIN: u64 = 16;
/// Blocks of a segment unless asked otherwise: 16 MiB. Each has at least one block of summary.
pub const SEGMENT_BLOCKS_DEFAULT: u32 = 4096;
/// Most blocks of a segment: 256 MiB.
const SEGMENT_BLOCKS_MAX: u32 = 65536;
/// Smaller volumes get smaller segments, so that there are at least this many.
const SEGMENTS_AIM: u64 = 512;
/// With parity a segment has at least this many rows, unless asked otherwise.
const ROWS_AIM: u32 = 4;

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
    /// How data is laid over several devices.
    pub profile: Profile,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            label: Vec::new(),
            uuid: [0; 16],
            hash_key: [0; 16],
            segment_blocks: 0,
            uid: 0,
            gid: 0,
            mode: 0o755,
            profile: Profile::Single,
        }
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
    while segment_blocks < SEGMENT_BLOCKS_MAX && segments_on(blocks, segment_blocks) > SEGMENTS_MAX {
        segment_blocks *= 2;
    }
    segment_blocks
}

/// Writes an empty volume on the device. What was on it is lost.
///
/// # Errors
/// As [`mkfs_on`].
pub fn mkfs(device: &Arc<dyn BlockDevice>, clock: &Arc<dyn Clock>, options: &MkfsOptions) -> Result<()> {
    mkfs_on(std::slice::from_ref(device), clock, options)
}

/// Writes an empty volume on one or several devices. What was on them is lost.
///
/// # Errors
/// [`Error::Open`] when a device is too small, an option impossible, or another host at work on a device; device errors.
pub fn mkfs_on(devices: &[Arc<dyn BlockDevice>], clock: &Arc<dyn Clock>, options: &MkfsOptions) -> Result<()> {
    if options.label.len() > nenrin_format::superblock::LABEL_BYTES_MAX {
        return Err(Error::Open("the label is longer than 64 bytes".into()));
    }
    let lengths: Vec<(String, u64)> = devices.iter().map(|d| (d.geometry().name, d.geometry().bytes)).collect();
    let layout = plan(&lengths, options)?;
    heartbeat::refuse_to_replace(devices, clock.as_ref())?;
    let zeros = Arc::new(AlignedBuf::zeroed(AREA_BLOCKS as usize * BLOCK_BYTES));
    for device in devices {
        for area in [0, blocks_of(device) - AREA_BLOCKS] {
            device.write(area * BLOCK_BYTES as u64, zeros.clone())?;
        }
        if options.profile == Profile::Parity {
            // No row log of another life.
            let unit = AlignedBuf::zeroed(UNIT_BLOCKS as usize * BLOCK_BYTES);
            device.write(AREA_BLOCKS * BLOCK_BYTES as u64, Arc::new(unit))?;
        }
        device.flush()?;
    }
    let fs = Fs::assemble(empty(devices, layout, clock, options)?, clock.clone(), MountOptions::default());
    fs.index_checkpoint(true)
}

fn blocks_of(device: &Arc<dyn BlockDevice>) -> u64 {
    device.geometry().bytes / BLOCK_BYTES as u64
}

/// Whether [`mkfs_on`] makes a volume on devices with these names, of so many bytes.
///
/// # Errors
/// As there, but for what is on them.
pub fn mkfs_fits(devices: &[(String, u64)], options: &MkfsOptions) -> Result<()> {
    plan(devices, options).map(drop)
}

/// Where segments lie on these devices.
fn plan(devices: &[(String, u64)], options: &MkfsOptions) -> Result<Plan> {
    let profile = options.profile;
    let copies = check_profile(profile, devices.len())?;
    let blocks: Vec<u64> = devices.iter().map(|(_, bytes)| bytes / BLOCK_BYTES as u64).collect();
    let parity = profile == Profile::Parity;
    let width = blocks.len() as u64;
    let total = blocks.iter().fold(0u64, |n, b| n.saturating_add(*b)) / u64::from(copies);
    let total = if parity { total / width * (width - 1) } else { total };
    // A segment of few rows has much parity.
    let least = if parity { (ROWS_AIM * UNIT_BLOCKS * (width as u32 - 1)).next_power_of_two() } else { 0 };
    let segment_blocks = match options.segment_blocks {
        0 => choose_segment_blocks(total).max(least),
        n if n.is_power_of_two() && (32..=SEGMENT_BLOCKS_MAX).contains(&n) => n,
        n => {
            return Err(Error::Open(format!(
                "a segment of {n} blocks is impossible; use a power of two from 32 to 65536"
            )));
        }
    };
    for ((name, bytes), have) in devices.iter().zip(&blocks) {
        // A device of several has to hold its share of as many segments as a volume needs at least;
        // one after the other they need as many only together.
        let need = match profile {
            Profile::Single if devices.len() > 1 => device_blocks(1, segment_blocks),
            Profile::Single => device_blocks(SEGMENTS_MIN, segment_blocks),
            _ => {
                let rows = rows(SEGMENTS_MIN, segment_blocks, devices.len() as u32, u32::from(copies), parity)
                    + if parity { u64::from(ROW_LOG_UNITS) } else { 0 };
                2 * AREA_BLOCKS + rows * u64::from(UNIT_BLOCKS)
            }
        };
        if *have < need {
            return Err(Error::Open(format!(
                "{name} is too small: {bytes} bytes, and a volume needs at least {}{}",
                need * BLOCK_BYTES as u64,
                if devices.len() > 1 { " on each device" } else { "" }
            )));
        }
    }
    let bands = bands_for(profile, &blocks, segment_blocks);
    let segments = bands.iter().map(|b| b.segments).sum::<u64>();
    if segments > SEGMENTS_MAX {
        return Err(Error::Open(format!(
            "{segments} segments are too many: a volume has at most {SEGMENTS_MAX}; make them larger"
        )));
    }
    if segments < SEGMENTS_MIN {
        let need = SEGMENTS_MIN * u64::from(segment_blocks) * BLOCK_BYTES as u64;
        return Err(Error::Open(format!("the devices are too small: together a volume needs at least {need} bytes")));
    }
    Ok(Plan { segment_blocks, bands })
}

/// What [`plan`] found.
struct Plan {
    segment_blocks: u32,
    bands: Vec<Band>,
}

/// How many copies a profile makes, where it can be made on so many devices.
fn check_profile(profile: Profile, devices: usize) -> Result<u8> {
    let wrong = |text: &str| Err(Error::Open(text.to_owned()));
    match profile {
        _ if devices == 0 => wrong("a device is needed"),
        _ if devices > DEVICES_MAX => wrong("a volume has at most 32 devices"),
        Profile::Parity if devices < 3 => {
            wrong("the profile parity needs at least 3 devices; mirror bears the loss of a device with 2")
        }
        Profile::Single if devices > BANDS_MAX => {
            wrong("the profile single is possible on at most 8 devices; use stripe")
        }
        Profile::Single => Ok(1),
        Profile::Stripe if devices < 2 => wrong("the profile stripe needs at least 2 devices"),
        Profile::Mirror if devices < 2 => wrong("the profile mirror needs at least 2 devices"),
        Profile::Stripe | Profile::Parity => Ok(1),
        Profile::Mirror => Ok(2),
    }
}

fn empty(
    devices: &[Arc<dyn BlockDevice>],
    plan: Plan,
    clock: &Arc<dyn Clock>,
    options: &MkfsOptions,
) -> Result<Opened> {
    let layout = Layout::new(plan.segment_blocks, plan.bands.clone());
    let storage = Arc::new(Storage::new(Devices::fresh(devices, layout, options.uuid), Mounts::any()));
    let now = clock.wall();
    let mut segments = Segments::new(&storage.numbers(), storage.segment_blocks, Generation(1));
    let mut take = || segments.allocate(KIND_CHAIN, now).ok_or(Error::NoSpace);
    let (segment, next) = (take()?, take()?);
    let mut state = State {
        cache: Arc::new(NodeCache::new(storage.clone(), 1 << 20)),
        live: Tree::empty(TreeId::LIVE),
        space: Tree::empty(TreeId::SPACE),
        history: Vec::new(),
        segments,
        kept: BTreeMap::new(),
        snapshots: BTreeSet::new(),
        landmarks: crate::state::Landmarks::default(),
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
        past: KnownPast::default(),
        forgetting: BTreeSet::new(),
        shed: Sheds::default(),
        applied: 0,
        uncut: false,
        owners_asked: std::cell::Cell::new(0),
        shares: std::cell::Cell::default(),
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
        mount_id: 0,
        segment,
        block: 0,
        filled: 0,
        next: Some(next),
        seq: Seq(0),
        last_addr: Addr::NONE,
        last_crc: 0,
        begins_epoch: true,
    };
    Ok(Opened {
        superblock: first_superblock(options, devices, plan, segment, now),
        storage,
        state,
        chain,
        report: RecoveryReport::default(),
        window_bytes: 0,
        root_pins: VecDeque::new(),
        index: Default::default(),
        unproven: Vec::new(),
    })
}

fn first_superblock(
    options: &MkfsOptions,
    devices: &[Arc<dyn BlockDevice>],
    plan: Plan,
    segment: SegmentNo,
    now: Time,
) -> Superblock {
    let entry = |(i, device): (usize, &Arc<dyn BlockDevice>)| {
        let mut uuid = options.uuid;
        uuid[15] ^= i as u8;
        DeviceEntry::active(uuid, blocks_of(device), 1)
    };
    Superblock {
        device_index: 0,
        uuid: options.uuid,
        features: [0; 3],
        generation: Generation(0),
        epoch: Epoch(1),
        segment_blocks: plan.segment_blocks,
        profile: options.profile,
        stripe_shift: 16,
        clean: true,
        hash_key: options.hash_key,
        mount_id: 0,
        troubles: Default::default(),
        scrubbed: None,
        made_at: now,
        written_at: now,
        mounted_nanos: 0,
        root: [(Addr::NONE, 0); 2],
        root_blocks: 0,
        chain: (segment, 0),
        chain_next: None,
        chain_seq: Seq(0),
        chain_last: Addr::NONE,
        chain_crc: 0,
        label: options.label.clone(),
        devices: devices.iter().enumerate().map(entry).collect(),
        bands: plan.bands,
    }
}
