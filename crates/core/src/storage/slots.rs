//! What the slots of a device say, and its heartbeat, without opening the volume.

use super::Storage;
use crate::breaks::{Break, broken};
use crate::devices::Assembly;
use crate::mounts::Mounts;
use crate::{Error, Result};
use nenrin_device::{BlockDevice, DeviceError};
use nenrin_format::features::{self, Access};
use nenrin_format::superblock::{self, SlotHead, Superblock};
use nenrin_format::{BLOCK_BYTES, Generation, Invalid};
use std::sync::Arc;

/// What a slot block held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// A valid root of this generation.
    Valid(Generation),
    /// Never written.
    Empty,
    /// Something else, or a damaged slot.
    Invalid(Invalid),
    /// Intact, and written by a program that knows more than this one.
    Newer(Invalid),
    /// The device does not give it.
    Unreadable(DeviceError),
}

/// What the slots of a device say.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    /// Valid roots, newest first, one for each generation.
    pub roots: Vec<Superblock>,
    /// All slots: block on the device and state.
    pub slots: Vec<(u64, SlotState)>,
    /// The number of the device table of each valid root, by the block of its slot.
    pub tables: Vec<(u64, u64)>,
    /// The block of the heartbeat.
    pub heartbeat: Vec<u8>,
    /// What every program can read of a slot, of all that are intact.
    pub heads: Vec<SlotHead>,
}

impl Probe {
    /// The newest root.
    ///
    /// # Errors
    /// When no slot holds one, or a newer program wrote to the volume: says why, in one line.
    pub fn newest(&self) -> Result<&Superblock> {
        match self.newer() {
            Some(Invalid::Version(v)) => {
                return Err(Error::Open(format!(
                    "the volume has format version {v}, newer than this program; update nenrin"
                )));
            }
            Some(Invalid::Feature(bits)) => {
                return Err(Error::Open(format!(
                    "the volume uses features this program does not know (bits {bits:#x}); update nenrin"
                )));
            }
            _ => {}
        }
        if let Some(sb) = self.roots.first() {
            return Ok(sb);
        }
        let reasons: Vec<Invalid> = self
            .slots
            .iter()
            .filter_map(|(_, s)| if let SlotState::Invalid(why) = s { Some(*why) } else { None })
            .collect();
        if let Some(why @ Invalid::Segments(_)) = reasons.iter().find(|why| matches!(why, Invalid::Segments(_))) {
            return Err(Error::Open(format!("the volume cannot be opened: its superblock states {why}")));
        }
        let unread = self.slots.iter().any(|(_, s)| matches!(s, SlotState::Unreadable(_)));
        if unread || reasons.iter().any(|why| *why != Invalid::Magic) {
            Err(Error::Open("all superblock slots are damaged; nothing was changed".into()))
        } else {
            Err(Error::Open("not a nenrin volume".into()))
        }
    }

    /// Why this program must leave the volume alone: what a newer one wrote came after what this one could read, or beside it.
    fn newer(&self) -> Option<Invalid> {
        if broken(Break::NewerPassedOver) && !self.roots.is_empty() {
            return None;
        }
        let is_ours = |h: &&SlotHead| self.roots.is_empty() || self.roots.iter().any(|r| r.uuid == h.uuid);
        self.heads.iter().filter(is_ours).find_map(SlotHead::refused)
    }

    /// How the volume of this root may be opened: by what any of its slots says.
    pub(crate) fn access(&self, root: &Superblock) -> Access {
        let of_volume = self.heads.iter().filter(|h| h.uuid == root.uuid && !broken(Break::OneRootAsked));
        let read_only = of_volume.fold(root.features[1], |bits, h| bits | h.features[1]);
        features::access(read_only, root.features[2])
    }

    fn add(&mut self, block: u64, slot: &[u8]) {
        self.heads.extend(SlotHead::decode(slot).ok());
        let state = match Superblock::decode(slot) {
            Ok(sb) => {
                let state = SlotState::Valid(sb.generation);
                self.tables.push((block, sb.table_generation()));
                match self.roots.iter_mut().find(|r| r.generation == sb.generation) {
                    // Twins differ while the device table is being changed.
                    Some(twin) if twin.table_generation() < sb.table_generation() => *twin = sb,
                    Some(_) => {}
                    None => self.roots.push(sb),
                }
                state
            }
            Err(_) if slot.iter().all(|b| *b == 0) => SlotState::Empty,
            Err(why @ (Invalid::Version(_) | Invalid::Feature(_))) => SlotState::Newer(why),
            Err(why) => SlotState::Invalid(why),
        };
        self.slots.push((block, state));
    }
}

/// [`probe`], for each active device of an open volume that can be read.
pub fn probe_storage(storage: &Storage) -> Vec<Result<Probe>> {
    storage.devices.active().iter().map(|(_, d)| probe(d.as_ref())).collect()
}

/// The storage of members that were put together.
pub(crate) fn storage_of(assembly: &Assembly) -> Arc<Storage> {
    let mounts = Mounts::of(assembly.probes.iter().map(|(.., probe)| probe));
    Arc::new(Storage::new(assembly.devices.clone(), mounts))
}

/// Reads the slots of a device, without opening the volume. A slot that cannot be read is one of several that say the same.
///
/// # Errors
/// When none can be read; what the slots hold is told in the result.
pub fn probe(device: &dyn BlockDevice) -> Result<Probe> {
    let blocks = device.geometry().bytes / BLOCK_BYTES as u64;
    let mut probe = Probe { heartbeat: vec![0; BLOCK_BYTES], ..Probe::default() };
    if blocks < 2 * superblock::AREA_BLOCKS {
        return Ok(probe);
    }
    probe_area(device, 0, &mut probe);
    // The volume may use less of the device than there is.
    let rank = |s: &&Superblock| (s.table_generation(), s.generation);
    let used = probe.roots.iter().max_by_key(rank).and_then(|s| s.devices.get(usize::from(s.device_index)));
    let end = used.map_or(blocks, |e| e.blocks.clamp(2 * superblock::AREA_BLOCKS, blocks));
    probe_area(device, end - superblock::AREA_BLOCKS, &mut probe);
    probe.roots.sort_by_key(|r| std::cmp::Reverse(r.generation));
    let mut unread = probe.slots.iter().map(|(_, s)| if let SlotState::Unreadable(e) = s { Some(e) } else { None });
    match unread.next().flatten() {
        Some(e) if unread.all(|e| e.is_some()) => Err(e.clone().into()),
        _ => Ok(probe),
    }
}

/// Adds what the slots of an area hold.
fn probe_area(device: &dyn BlockDevice, area: u64, probe: &mut Probe) {
    const SLOTS: usize = superblock::SLOTS_PER_AREA as usize;
    let first = area + superblock::SLOT_BLOCK;
    let read = |block: u64, blocks: usize| device.read(block * BLOCK_BYTES as u64, blocks * BLOCK_BYTES);
    // The heartbeat follows in the head area.
    let more = usize::from(area == 0);
    if let Ok(bytes) = read(first, SLOTS + more) {
        let mut blocks = bytes.chunks_exact(BLOCK_BYTES);
        (first..).zip(blocks.by_ref().take(SLOTS)).for_each(|(block, slot)| probe.add(block, slot));
        if let Some(heartbeat) = blocks.next() {
            probe.heartbeat = heartbeat.to_vec();
        }
        return;
    }
    // One block that cannot be read takes none of the others with it.
    for block in first..first + SLOTS as u64 {
        match read(block, 1) {
            Ok(slot) => probe.add(block, &slot),
            Err(e) => probe.slots.push((block, SlotState::Unreadable(e))),
        }
    }
    if more == 1 {
        let heartbeat = read(first + SLOTS as u64, 1);
        probe.heartbeat = heartbeat.map_or_else(|_| crate::heartbeat::unread(), |block| block.to_vec());
    }
}
