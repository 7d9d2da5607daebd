//! Where blocks of the volume lie on its devices, and the verified way to them.
//!
//! Invariants
//! 1. This is the only place that turns an address into a device offset.
//! 2. Nothing outside the segments and the two slot areas is ever touched.

use crate::breaks::{Break, broken};
use crate::index::NodeSource;
use crate::{Error, Result};
use nenrin_device::{AlignedBuf, BlockDevice, Op, Ticket};
use nenrin_format::node::{self, NodePtr};
use nenrin_format::partial::Header;
use nenrin_format::superblock::{self, SegmentRef, Superblock};
use nenrin_format::{Addr, BLOCK_BYTES, Generation, Invalid, NODE_BLOCKS, SegmentNo};
use std::sync::Arc;

/// Devices of an open volume and the geometry of its segments.
pub struct Storage {
    device: Arc<dyn BlockDevice>,
    blocks: u64,
    /// Blocks in a segment.
    pub segment_blocks: u32,
    /// Segments of the volume.
    pub segments: u64,
}

impl Storage {
    /// Over a device that was probed: `segments` of `segment_blocks` blocks.
    pub fn new(device: Arc<dyn BlockDevice>, segment_blocks: u32, segments: u64) -> Self {
        let blocks = device.geometry().bytes / BLOCK_BYTES as u64;
        Self { device, blocks, segment_blocks, segments }
    }

    /// Where the volume's segment lies, for use before the space tree is read.
    pub fn segment_ref(&self, segment: SegmentNo) -> SegmentRef {
        SegmentRef::single(segment, 0, segment.0 as u32)
    }

    fn offset(&self, addr: Addr, blocks: u32) -> Result<u64> {
        let segment = addr.segment();
        let end = u64::from(addr.block()) + u64::from(blocks);
        if segment.0 >= self.segments || end > u64::from(self.segment_blocks) {
            return Err(Error::Damaged(addr, Invalid::Bounds));
        }
        let first = superblock::segment_block(segment.0 as u32, self.segment_blocks);
        Ok((first + u64::from(addr.block())) * BLOCK_BYTES as u64)
    }

    /// Whether `blocks` blocks at `addr` lie within one segment of the volume.
    pub fn contains(&self, addr: Addr, blocks: u32) -> bool {
        self.offset(addr, blocks).is_ok()
    }

    /// Reads blocks, unverified.
    pub fn read(&self, addr: Addr, blocks: u32) -> Result<AlignedBuf> {
        let offset = self.offset(addr, blocks)?;
        Ok(self.device.read(offset, blocks as usize * BLOCK_BYTES)?)
    }

    /// Starts reading blocks.
    pub fn submit_read(&self, addr: Addr, blocks: u32) -> Result<Ticket> {
        let offset = self.offset(addr, blocks)?;
        Ok(self.device.submit(Op::Read { offset, bytes: blocks as usize * BLOCK_BYTES }))
    }

    /// Starts writing blocks.
    pub fn submit_write(&self, addr: Addr, data: Arc<AlignedBuf>) -> Result<Ticket> {
        let offset = self.offset(addr, (data.len() / BLOCK_BYTES) as u32)?;
        Ok(self.device.submit(Op::Write { offset, data }))
    }

    /// Writes blocks and waits.
    pub fn write(&self, addr: Addr, data: Arc<AlignedBuf>) -> Result<()> {
        let offset = self.offset(addr, (data.len() / BLOCK_BYTES) as u32)?;
        Ok(self.device.write(offset, data)?)
    }

    /// Writes blocks, then flushes: one round trip where the device can.
    pub fn write_flush(&self, addr: Addr, data: Arc<AlignedBuf>) -> Result<()> {
        let offset = self.offset(addr, (data.len() / BLOCK_BYTES) as u32)?;
        Ok(self.device.write_flush(offset, data)?)
    }

    /// Makes completed writes durable.
    pub fn flush(&self) -> Result<()> {
        Ok(self.device.flush()?)
    }

    /// Tells the device that a segment holds nothing of value.
    pub fn submit_discard(&self, segment: SegmentNo) -> Result<Ticket> {
        let offset = self.offset(Addr::new(segment, 0), self.segment_blocks)?;
        let bytes = u64::from(self.segment_blocks) * BLOCK_BYTES as u64;
        Ok(self.device.submit(Op::Discard { offset, bytes }))
    }

    /// Writes the slot of a superblock's generation, both copies, without flushing.
    pub fn write_slots(&self, superblock: &Superblock) -> Result<()> {
        let data = Arc::new(AlignedBuf::padded(&superblock.encode()));
        for block in superblock::slot_blocks(superblock.generation, self.blocks) {
            self.device.write(block * BLOCK_BYTES as u64, data.clone())?;
        }
        Ok(())
    }

    /// Reads and verifies the summary of the partial segment at `addr`.
    /// Returns its bytes; decode them again with [`Header::decode`].
    pub fn read_summary(&self, addr: Addr) -> Result<AlignedBuf> {
        let first = self.read(addr, 1)?;
        let head = Header::peek(&first).map_err(|why| Error::Damaged(addr, why))?;
        if head.addr != addr {
            return Err(Error::Damaged(addr, Invalid::Bounds));
        }
        let bytes = if head.summary_blocks == 1 { first } else { self.read(addr, head.summary_blocks)? };
        Header::decode(&bytes).map_err(|why| Error::Damaged(addr, why))?;
        Ok(bytes)
    }
}

impl NodeSource for Storage {
    fn read_node(&self, ptr: &NodePtr) -> Result<Vec<u8>> {
        let mut why = Error::Damaged(ptr.copies[0], Invalid::Checksum);
        let copies = if broken(Break::OneCopy) { &ptr.copies[..1] } else { &ptr.copies[..] };
        loop {
            for &addr in copies {
                match self.read(addr, NODE_BLOCKS) {
                    Ok(bytes) if node::stored_crc(&bytes) == Some(ptr.crc) && node::verify(&bytes) => {
                        return Ok(bytes.to_vec());
                    }
                    Ok(_) => {}
                    Err(e) => why = e,
                }
            }
            if !broken(Break::ReadAgain) || matches!(why, Error::Device(_)) {
                return Err(why);
            }
        }
    }
}

/// What a slot block held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// A valid root of this generation.
    Valid(Generation),
    /// Never written.
    Empty,
    /// Something else, or a damaged slot.
    Invalid(Invalid),
}

/// What the slots of a device say.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Valid roots, newest first, one for each generation.
    pub roots: Vec<Superblock>,
    /// All slots: block on the device and state.
    pub slots: Vec<(u64, SlotState)>,
}

impl Probe {
    /// The newest root.
    ///
    /// # Errors
    /// When no slot holds one: says why, in one line.
    pub fn newest(&self) -> Result<&Superblock> {
        if let Some(sb) = self.roots.first() {
            return Ok(sb);
        }
        let reasons: Vec<Invalid> = self
            .slots
            .iter()
            .filter_map(|(_, s)| if let SlotState::Invalid(why) = s { Some(*why) } else { None })
            .collect();
        for why in &reasons {
            match why {
                Invalid::Version(v) => {
                    return Err(Error::Open(format!(
                        "the volume has format version {v}, newer than this program; update nenrin"
                    )));
                }
                Invalid::Feature(bits) => {
                    return Err(Error::Open(format!(
                        "the volume uses features this program does not know (bits {bits:#x}); update nenrin"
                    )));
                }
                _ => {}
            }
        }
        if reasons.iter().any(|why| *why != Invalid::Magic) {
            Err(Error::Open("all superblock slots are damaged; nothing was changed".into()))
        } else {
            Err(Error::Open("not a nenrin volume".into()))
        }
    }
}

/// [`probe`], for an open volume.
pub fn probe_storage(storage: &Storage) -> Result<Probe> {
    probe(&*storage.device)
}

/// Reads the slots of a device, without opening the volume.
///
/// # Errors
/// Device errors only; what the slots hold is told in the result.
pub fn probe(device: &dyn BlockDevice) -> Result<Probe> {
    let blocks = device.geometry().bytes / BLOCK_BYTES as u64;
    let mut probe = Probe { roots: Vec::new(), slots: Vec::new() };
    if blocks < 2 * superblock::AREA_BLOCKS {
        return Ok(probe);
    }
    let areas = [0, blocks - superblock::AREA_BLOCKS];
    for area in areas {
        let first = area + superblock::SLOT_BLOCK;
        let bytes = device.read(first * BLOCK_BYTES as u64, superblock::SLOTS_PER_AREA as usize * BLOCK_BYTES)?;
        for (i, slot) in bytes.chunks_exact(BLOCK_BYTES).enumerate() {
            let state = match Superblock::decode(slot) {
                Ok(sb) => {
                    let state = SlotState::Valid(sb.generation);
                    if probe.roots.iter().all(|r| r.generation != sb.generation) {
                        probe.roots.push(sb);
                    }
                    state
                }
                Err(_) if slot.iter().all(|b| *b == 0) => SlotState::Empty,
                Err(why) => SlotState::Invalid(why),
            };
            probe.slots.push((first + i as u64, state));
        }
    }
    probe.roots.sort_by_key(|r| std::cmp::Reverse(r.generation));
    Ok(probe)
}
