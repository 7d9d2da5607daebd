//! Blocks of the volume by their addresses, and the verified way to them. Where they lie on devices is the business of [`crate::devices`].
//!
//! Invariants
//! 1. What lies within no segment of the volume is neither read nor written.
//! 2. Flushes of members that are asked for here are among [`Flushes`].

mod slots;

use crate::breaks::{Break, broken};
use crate::devices::{Apart, Avoided, Covering, DeviceHealth, Devices, RowId};
use crate::flushes::Flushes;
use crate::index::NodeSource;
use crate::mixture::{Copies, mixed, parts};
use crate::mounts::Mounts;
use crate::{Clock, Error, Result};
use nenrin_device::{AlignedBuf, BlockDevice, Op, Ticket};
use nenrin_format::node::{self, NodePtr};
use nenrin_format::partial::{Header, Summary};
use nenrin_format::superblock::{self, Band, DeviceEntry, Superblock, Trouble, UNIT_BLOCKS};
use nenrin_format::{Addr, BLOCK_BYTES, Invalid, NODE_BLOCKS, SegmentNo};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) use slots::storage_of;
pub use slots::{Probe, SlotState, probe, probe_storage};

/// Bytes at either end of a device in which others have their marks.
const WIPED_BYTES: u64 = 1 << 20;

/// What of copies is written anew at a time: see [`Storage::turns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// All there is.
    All,
    /// What is not right.
    Wrong,
    /// The copy of this number.
    Copy(usize),
}

/// Devices of an open volume and the geometry of its segments.
pub struct Storage {
    devices: Arc<Devices>,
    /// Blocks in a segment.
    pub segment_blocks: u32,
    /// See [`Storage::waits_locked`].
    waits_locked: AtomicU64,
    flushes: Flushes,
    mounts: Mounts,
}

impl Storage {
    /// Over devices that were put together.
    pub(crate) fn new(devices: Arc<Devices>, mounts: Mounts) -> Self {
        let segment_blocks = devices.layout().segment_blocks;
        Self { devices, segment_blocks, waits_locked: AtomicU64::new(0), flushes: Flushes::default(), mounts }
    }

    /// Mounts that roots named when it was put together.
    pub(crate) fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// The numbers that segments have, in order.
    pub fn numbers(&self) -> Vec<Range<u64>> {
        self.devices.layout().numbers()
    }

    /// Segments of the volume.
    pub fn segments(&self) -> u64 {
        self.devices.segments()
    }

    /// Whether there is a segment with this number.
    pub fn has(&self, segment: SegmentNo) -> bool {
        self.numbers().iter().any(|r| r.contains(&segment.0))
    }

    fn within(&self, addr: Addr, blocks: u32) -> Result<()> {
        if self.devices.layout().contains(addr, blocks) { Ok(()) } else { Err(Error::Damaged(addr, Invalid::Bounds)) }
    }

    /// Whether `blocks` blocks at `addr` lie within one segment of the volume.
    pub fn contains(&self, addr: Addr, blocks: u32) -> bool {
        self.devices.layout().contains(addr, blocks)
    }

    /// Whether what is wrong on one device can be had from others.
    pub fn others_stand_in(&self) -> bool {
        self.devices.layout().copies_max() > 1 || self.has_parity()
    }

    /// Whether neighbouring units may lie on different devices.
    pub fn lies_apart(&self) -> bool {
        self.devices.layout().lies_apart()
    }

    /// Devices to which nothing new should go.
    pub(crate) fn slow(&self) -> Avoided {
        self.devices.slow()
    }

    /// Whether all of a segment lies on avoided devices.
    pub(crate) fn is_avoided(&self, segment: SegmentNo, avoided: Avoided) -> bool {
        !avoided.is_empty() && self.devices.layout().is_avoided(segment, avoided)
    }

    /// The numbers of segments of which all lies on avoided devices.
    pub(crate) fn avoided_numbers(&self, avoided: Avoided) -> Vec<Range<u64>> {
        self.devices.layout().avoided_numbers(avoided)
    }

    /// The numbers of segments on other devices than this one, where that lies on one device alone.
    pub(crate) fn numbers_apart(&self, segment: SegmentNo) -> Vec<Range<u64>> {
        self.devices.layout().numbers_apart(segment)
    }

    /// Blocks from here on, up to the end of the segment or to the first on an avoided device.
    pub(crate) fn free_run(&self, segment: SegmentNo, block: u32, avoided: Avoided) -> u32 {
        if avoided.is_empty() {
            return self.segment_blocks.saturating_sub(block);
        }
        self.devices.layout().free_run(segment, block, avoided)
    }

    /// Where a partial may begin that does not begin at this block of the segment.
    pub(crate) fn jumps(&self, segment: SegmentNo, block: u32) -> impl Iterator<Item = u32> + use<> {
        self.devices.layout().jumps(segment, block)
    }

    /// Where a partial whose place begins at this block may begin, with room for so many blocks that lie on no avoided device.
    pub(crate) fn place_of(&self, segment: SegmentNo, block: u32, blocks: u32, avoided: Avoided) -> Option<u32> {
        if self.free_run(segment, block, avoided) >= blocks {
            return Some(block);
        }
        if avoided.is_empty() {
            return None;
        }
        self.jumps(segment, block).find(|b| self.free_run(segment, *b, avoided) >= blocks)
    }

    /// The most blocks that lie together without an avoided device.
    pub(crate) fn longest_run(&self, avoided: Avoided) -> u32 {
        if avoided.is_empty() { self.segment_blocks } else { self.devices.layout().longest_run(avoided) }
    }

    /// Reads blocks, unverified.
    pub fn read(&self, addr: Addr, blocks: u32) -> Result<AlignedBuf> {
        self.within(addr, blocks)?;
        Ok(self.devices.read(addr, blocks, None)?)
    }

    /// Starts reading blocks.
    pub fn submit_read(&self, addr: Addr, blocks: u32) -> Result<Ticket> {
        self.within(addr, blocks)?;
        Ok(self.devices.submit_read(addr, blocks, None))
    }

    /// Which copies of a node are right; where only both together are, the first counts as such.
    pub fn right_copies(&self, ptr: &NodePtr) -> [bool; 2] {
        let right = |bytes: &[u8]| node::stored_crc(bytes) == Some(ptr.crc) && node::verify(bytes);
        match ptr.copies.map(|addr| self.read_right(addr, NODE_BLOCKS, right).is_ok_and(|bytes| right(&bytes))) {
            [false, false] => [self.node_of_parts(ptr).is_some(), false],
            copies => copies,
        }
    }

    /// A node of which neither copy is right, but each of its blocks in one of them.
    fn node_of_parts(&self, ptr: &NodePtr) -> Option<AlignedBuf> {
        if broken(Break::NodesUnmixed) || broken(Break::OneCopy) {
            return None;
        }
        let right = |bytes: &[u8]| node::stored_crc(bytes) == Some(ptr.crc) && node::verify(bytes);
        let copies: Vec<Copies<'_>> = ptr.copies.iter().map(|addr| Copies::read(self, *addr, NODE_BLOCKS)).collect();
        let of_all = |from, count| copies.iter().flat_map(|c| c.part(from, count)).collect();
        mixed(parts(ptr.copies[0], NODE_BLOCKS, 1, of_all)?, right)
    }

    /// Reads blocks from whichever copies are `right`. Without a second copy, and where none is right: as [`Storage::read`].
    pub fn read_right(&self, addr: Addr, blocks: u32, right: impl Fn(&[u8]) -> bool) -> Result<AlignedBuf> {
        let first = self.read(addr, blocks);
        if first.as_ref().is_ok_and(|bytes| right(bytes)) {
            return first;
        }
        self.read_other(addr, blocks, right).map_or(first, Ok)
    }

    /// After [`Storage::read`] gave something wrong: the same blocks from other copies, if these are `right`; or put together of what each
    /// copy has, unit by unit, or else block by block. Where there is no other copy nothing is read.
    pub fn read_other(&self, addr: Addr, blocks: u32, right: impl Fn(&[u8]) -> bool) -> Option<AlignedBuf> {
        if self.ways_around(addr, blocks).is_empty() && !broken(Break::ReadInVain) {
            return None;
        }
        let copies = Copies::read(self, addr, blocks);
        if let Some(whole) = copies.wholes().find(|bytes| right(bytes)) {
            return Some(AlignedBuf::padded(whole));
        }
        let grains = if broken(Break::BlocksUnmixed) { &[UNIT_BLOCKS][..] } else { &[UNIT_BLOCKS, 1] };
        let by = |grain: u32| mixed(parts(addr, blocks, grain, |from, count| copies.part(from, count))?, &right);
        grains.iter().filter(|_| !broken(Break::UnitsUnmixed)).find_map(|grain| by(*grain))
    }

    /// Where blocks come from that are read around a device, for people.
    pub fn named_around(&self, addr: Addr, blocks: u32, avoid: Option<u16>) -> Option<String> {
        let from = self.devices.read_without(addr, blocks, avoid?)?;
        let name = from.name.map_or_else(String::new, |name| format!(" ({name})"));
        Some(format!("device {}{name}", from.index + 1))
    }

    /// Devices without each of which these blocks can be read: for [`Storage::read_around`].
    pub fn ways_around(&self, addr: Addr, blocks: u32) -> Vec<u16> {
        if self.contains(addr, blocks) { self.devices.alternatives(addr, blocks) } else { Vec::new() }
    }

    /// Reads blocks without a device, where another has them.
    pub fn read_around(&self, addr: Addr, blocks: u32, avoid: u16) -> Result<AlignedBuf> {
        self.within(addr, blocks)?;
        Ok(self.devices.read(addr, blocks, Some(avoid))?)
    }

    /// The same, and with that device where no other can be read: for who judges what is read, and may find parts of it here and there.
    pub fn read_rather_around(&self, addr: Addr, blocks: u32, avoid: u16) -> Result<AlignedBuf> {
        let around = self.read_around(addr, blocks, avoid);
        if broken(Break::WalkReadsElsewhere) { around } else { around.or_else(|_| self.read(addr, blocks)) }
    }

    /// Starts [`Storage::read_around`].
    pub fn submit_read_around(&self, addr: Addr, blocks: u32, avoid: u16) -> Result<Ticket> {
        self.within(addr, blocks)?;
        Ok(self.devices.submit_read(addr, blocks, Some(avoid)))
    }

    /// Sees to it that every device has its copy of these blocks: blocks written for that. Where they lie in rows,
    /// [`Storage::parity_anew`] does the rest.
    ///
    /// # Errors
    /// When no copy is `right`; device errors.
    pub fn equalize(&self, addr: Addr, blocks: u32, right: impl Fn(&[u8]) -> bool) -> Result<u64> {
        self.equalize_noting(addr, blocks, right, |_, _, _| {})
    }

    /// The same; `wrong` gets what was read of a copy that is not right, what is, and the device that was left out for that.
    fn equalize_noting(
        &self,
        addr: Addr,
        blocks: u32,
        right: impl Fn(&[u8]) -> bool,
        wrong: impl Fn(&[u8], &[u8], u16),
    ) -> Result<u64> {
        let ways = self.ways_around(addr, blocks);
        if ways.is_empty() {
            return Ok(0);
        }
        if self.devices.layout().has_parity() {
            return self.mend(addr, blocks, right);
        }
        let copies: Vec<_> = ways.iter().map(|avoid| self.read_around(addr, blocks, *avoid)).collect();
        let mut wholes = copies.iter().flatten();
        let is_whole = wholes.clone().any(|bytes| right(bytes));
        let put_together = || self.read_right(addr, blocks, &right).ok().filter(|bytes| right(bytes));
        let mixed = if is_whole { None } else { put_together() };
        let Some(whole) = wholes.find(|bytes| right(bytes)).or(mixed.as_ref()) else {
            return Err(Error::Damaged(addr, Invalid::Checksum));
        };
        if copies.iter().all(|c| c.as_ref().is_ok_and(|bytes| bytes[..] == whole[..])) {
            return Ok(0);
        }
        for (copy, avoided) in copies.iter().zip(ways) {
            copy.iter().for_each(|copy| wrong(copy, whole, avoided));
        }
        self.about_to_wait();
        let any = self.devices.write_unlike(addr, &Arc::new(AlignedBuf::padded(whole)))?;
        Ok(if any { u64::from(blocks) } else { 0 })
    }

    /// How all that has to be written anew is, each after a flush of the one before, so that of what has two copies one is always whole: a sector that was being
    /// written when power fails may be read no more.
    pub fn turns(&self) -> &'static [Turn] {
        let is_mirror = self.devices.layout().copies_max() > 1 && !broken(Break::AnewAtOnce);
        if is_mirror { &[Turn::Wrong, Turn::Copy(0), Turn::Copy(1)] } else { &[Turn::All] }
    }

    /// Writes these blocks once more, to the devices that should have them and whose `turn` it is: blocks written. What can be read may be in the cache of a
    /// host alone, which lost it when a flush failed, and takes it for written: no flush covers it before it is. Where they lie in rows,
    /// [`Storage::parity_anew`] does the rest.
    ///
    /// # Errors
    /// When no copy is `right`; device errors.
    pub fn write_anew(&self, addr: Addr, blocks: u32, turn: Turn, right: impl Fn(&[u8]) -> bool) -> Result<u64> {
        if turn == Turn::Wrong {
            return self.equalize(addr, blocks, right);
        }
        let whole = self.read_right(addr, blocks, &right).ok().filter(|bytes| right(bytes));
        let Some(whole) = whole else { return Err(Error::Damaged(addr, Invalid::Checksum)) };
        if self.has_parity() {
            self.devices.remember(addr, &whole);
            self.devices.write_units(addr, &Arc::new(whole))?;
        } else if let Turn::Copy(copy) = turn {
            self.about_to_wait();
            self.devices.write_copy(addr, &Arc::new(whole), copy)?;
        } else {
            self.write(addr, Arc::new(whole))?;
        }
        Ok(u64::from(blocks))
    }

    /// Sees to it that these blocks can be read from where they lie (also where a device does not give them and others do), if they are in use and nobody writes to them: blocks written for that.
    /// What other blocks need to be rebuilt stays as it is.
    ///
    /// # Errors
    /// When nothing is `right`; device errors.
    pub fn mend(&self, addr: Addr, blocks: u32, right: impl Fn(&[u8]) -> bool) -> Result<u64> {
        if !self.devices.layout().has_parity() {
            let wrong = |read: &[u8], right: &[u8], avoided| self.devices.note_wrong(addr, read, right, Some(avoided));
            return self.equalize_noting(addr, blocks, right, wrong);
        }
        let (first, unread) = self.read_telling(addr, blocks);
        let first = first.ok();
        let is_right = first.as_ref().is_some_and(|bytes| right(bytes));
        if let Some(bytes) = first.as_ref().filter(|_| is_right && !unread) {
            self.devices.remember(addr, bytes);
            return Ok(0);
        }
        let other = if is_right { None } else { self.read_other(addr, blocks, right) };
        let whole = match (first, other) {
            // A device does not give it, and the rest of its row does.
            (Some(first), None) if is_right => first,
            (first, Some(whole)) => {
                // What was made of the rest of its row in place of what a device did not give is not that device's.
                first.iter().filter(|_| !unread).for_each(|first| self.devices.note_wrong(addr, first, &whole, None));
                whole
            }
            _ => return Err(Error::Damaged(addr, Invalid::Checksum)),
        };
        self.devices.remember(addr, &whole);
        self.devices.write_units(addr, &Arc::new(whole))?;
        self.devices.take_unread(addr, blocks);
        // What a device does not give even then is not mended.
        Ok(if unread && !self.devices.gives_again(addr, blocks) { 0 } else { u64::from(blocks) })
    }

    /// Reads blocks, unverified; and whether a device did not give what lies in rows there, so that it came from the rest of its row.
    pub fn read_telling(&self, addr: Addr, blocks: u32) -> (Result<AlignedBuf>, bool) {
        if let Err(e) = self.within(addr, blocks) {
            return (Err(e), false);
        }
        let (read, unread) = self.devices.read_telling(addr, blocks);
        (read.map_err(Error::from), unread && !broken(Break::UnreadLeft))
    }

    /// Whether a device did not give something of these blocks lately that lies in rows, and that came from the rest of its row: told once.
    pub fn take_unread(&self, addr: Addr, blocks: u32) -> bool {
        self.devices.take_unread(addr, blocks) && !broken(Break::UnreadLeft)
    }

    /// The parity of the rows of these blocks is written anew, of what is in them; blocks written for that. Nobody may write to them.
    pub fn parity_anew(&self, places: &[(Addr, u32)]) -> Result<u64> {
        Ok(self.devices.parity_of(places)?)
    }

    /// Before the first write of a mount: what was written of rows that have no parity yet gets it. Whether there are any.
    pub fn settle_rows(&self) -> Result<bool> {
        Ok(self.devices.settle_rows()?)
    }

    /// Rows of these blocks whose parity is not what it should be.
    pub fn rows_unlike(&self, addr: Addr, blocks: u32) -> Vec<RowId> {
        if self.contains(addr, blocks) { self.devices.rows_unlike(addr, blocks) } else { Vec::new() }
    }

    /// Rows with parity that these blocks lie in.
    pub fn rows_of(&self, addr: Addr, blocks: u32) -> Vec<RowId> {
        let here = self.contains(addr, blocks);
        here.then(|| self.devices.layout().rows(addr, blocks))
            .into_iter()
            .flatten()
            .map(|(row, ..)| (row.segment, row.number))
            .collect()
    }

    /// Whether segments lie in rows with parity.
    pub fn has_parity(&self) -> bool {
        self.devices.layout().has_parity()
    }

    /// Where a row begins.
    pub fn row_begin(&self, (segment, number): RowId) -> Option<Addr> {
        self.devices.layout().row(segment, number).map(|row| row.range().0)
    }

    /// Whether the parity of a row that nobody writes to is wrong.
    pub fn parity_is_wrong(&self, row: RowId) -> bool {
        self.devices.is_unlike(row)
    }

    /// Everything in this row that is needed was verified: if its parity is wrong, or something cannot be read, that is written anew.
    /// Whether it is right now; `None` when it was, or is being written.
    pub fn mend_parity(&self, row: RowId) -> Result<Option<bool>> {
        Ok(self.devices.mend_parity(row)?)
    }

    /// What is written to this segment from now on is a new use of it.
    pub fn begin_segment(&self, segment: SegmentNo) {
        self.devices.begin_segment(segment);
    }

    /// Somebody has places in this segment, which he writes to before he lets go of it: nothing is written there meanwhile.
    pub fn hold_segment(&self, segment: SegmentNo) {
        self.devices.hold_segment(segment);
    }

    /// Ends a [`Storage::hold_segment`].
    pub fn let_go_of_segment(&self, segment: SegmentNo) {
        self.devices.let_go_of_segment(segment);
    }

    /// Nothing is written to this segment from this block on.
    pub fn end_segment(&self, segment: SegmentNo, block: u32) {
        self.devices.end_segment(segment, block);
    }

    /// Before a write or a flush is waited for: counts it where this thread holds the lock that all operations take.
    pub fn about_to_wait(&self) {
        if crate::fs::guard::is_held() {
            self.waits_locked.fetch_add(1, Relaxed);
        }
    }

    /// How often a write or a flush was waited for under that lock.
    pub fn waits_locked(&self) -> u64 {
        self.waits_locked.load(Relaxed)
    }

    /// Starts writing blocks.
    pub fn submit_write(&self, addr: Addr, data: Arc<AlignedBuf>) -> Result<Ticket> {
        self.within(addr, (data.len() / BLOCK_BYTES) as u32)?;
        Ok(self.devices.submit_write(addr, data))
    }

    /// Writes blocks and waits.
    pub fn write(&self, addr: Addr, data: Arc<AlignedBuf>) -> Result<()> {
        self.within(addr, (data.len() / BLOCK_BYTES) as u32)?;
        self.about_to_wait();
        Ok(self.devices.write(addr, data)?)
    }

    /// Writes blocks that are to count as they are, without a flush.
    pub fn write_unflushed(&self, addr: Addr, data: Arc<AlignedBuf>) -> Result<()> {
        self.within(addr, (data.len() / BLOCK_BYTES) as u32)?;
        self.about_to_wait();
        if self.devices.write_unflushed(addr, data)? { Ok(()) } else { self.protect_unflushed() }
    }

    /// What was written, and counts without a flush, can be read without any one device.
    pub fn protect_unflushed(&self) -> Result<()> {
        self.about_to_wait();
        // It may flush, to have room for that.
        self.flushes.watch(|| Ok(self.devices.protect_unflushed()?))
    }

    /// Writes the last blocks of a commit, and makes durable what it needs: one round trip where the device can. The number of the flush: see [`Flushes`].
    pub fn write_flush(&self, addr: Addr, data: Arc<AlignedBuf>, covering: Covering) -> Result<u64> {
        self.within(addr, (data.len() / BLOCK_BYTES) as u32)?;
        self.about_to_wait();
        self.flushes.watch_commit(|| Ok(self.devices.write_flush(addr, data, covering)?))
    }

    /// Makes completed writes durable.
    pub fn flush(&self) -> Result<()> {
        self.about_to_wait();
        self.flushes.watch(|| Ok(self.devices.flush()?))
    }

    /// Makes completed writes durable, but for those of root slots.
    pub fn flush_segments(&self) -> Result<()> {
        self.about_to_wait();
        self.flushes.watch(|| Ok(self.devices.flush_segments()?))
    }

    /// From now on turns are decided by this, if it does that.
    pub(crate) fn take_turns(&self, clock: &Arc<dyn Clock>) {
        self.devices.take_turns(Arc::clone(clock));
        self.flushes.take_turns(Arc::clone(clock));
    }

    /// Flushes under way.
    pub(crate) const fn flushes(&self) -> &Flushes {
        &self.flushes
    }

    /// Before anything else is written: the roots say which members are absent.
    pub fn settle(&self) -> Result<()> {
        Ok(self.devices.settle()?)
    }

    /// The devices, for who brings one of them up to date.
    pub(crate) fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// What a member is to have done wrong from now on, with the next root for good, and what that was. `None` where there is no such
    /// member.
    pub fn set_trouble(&self, index: u16, trouble: Trouble) -> Option<Trouble> {
        self.devices.set_trouble(index, trouble)
    }

    /// Whether each block can be had, also without some of the members.
    pub fn is_whole_without(&self, gone: &[u16]) -> bool {
        self.devices.is_whole_without(gone)
    }

    /// The members of the volume and how they are.
    pub fn health(&self) -> Vec<DeviceHealth> {
        self.devices.health()
    }

    /// The device table as the roots have it.
    pub fn entries(&self) -> Vec<DeviceEntry> {
        self.devices.entries()
    }

    /// Changes the device table, durably.
    pub fn change(&self, change: impl FnOnce(&mut Vec<DeviceEntry>, u64)) -> Result<()> {
        self.about_to_wait();
        if broken(Break::TableUnwatched) {
            return Ok(self.devices.change(change)??);
        }
        // It flushes, and who flushes beside it must not be told that all is well when it fails.
        Ok(self.flushes.watch(|| Ok(self.devices.change(change)?))??)
    }

    /// Everything is copied to a device that joins, and nobody waits for it yet ([`Devices::flush_joiner`]).
    pub fn flush_joiner(&self) -> Result<()> {
        self.about_to_wait();
        Ok(self.devices.flush_joiner()?)
    }

    /// Everything is copied to a device that joins: it takes its place ([`Devices::end_joining`]). Whether it did.
    pub fn end_joining(&self, uuid: [u8; 16]) -> Result<bool> {
        self.about_to_wait();
        if broken(Break::TableUnwatched) {
            return Ok(self.devices.end_joining(uuid)?);
        }
        self.flushes.watch(|| Ok(self.devices.end_joining(uuid)?))
    }

    /// From now on segments lie like this.
    pub fn lay(&self, bands: Vec<Band>) {
        self.devices.lay(bands);
    }

    /// Blocks that a device has now, whatever of it is used.
    pub fn length(&self, index: u16) -> Result<u64> {
        Ok(self.devices.length(index)?)
    }

    /// A device that the table has becomes a member: it gets the newest root.
    pub fn take_in(&self, index: u16, device: Arc<dyn BlockDevice>) -> Result<()> {
        Ok(self.devices.take_in(index, device)?)
    }

    /// Nothing is written to a device any more; it, and how much of it was used.
    pub fn unseat(&self, index: u16) -> Option<(Apart, u64)> {
        self.devices.unseat(index)
    }

    /// See [`Devices::left_in_use`].
    pub fn left_in_use(&self) -> usize {
        self.devices.left_in_use()
    }

    /// Nothing is left at either end of a device that is to become a member, by which others would take it for theirs.
    pub fn clear_ends(&self, apart: Apart) -> Result<()> {
        let bytes = apart.device().map_or(0, |d| d.geometry().bytes) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let wiped = bytes.min(WIPED_BYTES);
        let zero = |offset| Op::Zero { offset, bytes: wiped };
        Ok(apart.carry_out([0, bytes - wiped].map(zero))?)
    }

    /// What must never be done: a member loses its roots.
    pub fn clear_slots(&self, index: u16) -> Result<()> {
        let blocks = self.length(index)?;
        let device = self.devices.active().into_iter().find(|(i, _)| *i == index);
        device.map_or(Ok(()), |(_, d)| Ok(self.devices.apart(d).carry_out(cleared_areas(blocks))?))
    }

    /// Tells the devices that a segment holds nothing of value.
    pub fn submit_discard(&self, segment: SegmentNo) -> Result<Vec<Ticket>> {
        self.within(Addr::new(segment, 0), self.segment_blocks)?;
        Ok(self.devices.submit_discard(segment))
    }

    /// Writes the slots of a superblock's generation, both copies on each device, without flushing.
    pub fn write_slots(&self, superblock: &Superblock) -> Result<()> {
        self.about_to_wait();
        Ok(self.devices.write_slots(superblock)?)
    }

    /// Reads and verifies the summary of the partial segment at `addr`, with this checksum if one is known: a device may still have one of
    /// before, which is as whole. Returns its bytes; decode them again with [`Header::decode`].
    pub fn read_summary(&self, addr: Addr, crc: Option<u32>) -> Result<AlignedBuf> {
        let crc = crc.filter(|_| !broken(Break::SummaryUnknown));
        let first = self.summary_from(addr, None, crc);
        if first.is_ok() {
            return first;
        }
        let mut others = self.ways_around(addr, 1).into_iter();
        let other = others.find_map(|avoid| self.summary_from(addr, Some(avoid), crc).ok());
        other.or_else(|| self.summary_of_parts(addr, crc)).map_or(first, Ok)
    }

    /// A summary of which parts are right here and there.
    fn summary_of_parts(&self, addr: Addr, crc: Option<u32>) -> Option<AlignedBuf> {
        let is_it = |s: &Summary<'_>| s.header.addr == addr && crc.is_none_or(|crc| s.crc == crc);
        let right = |bytes: &[u8]| Header::decode(bytes).is_ok_and(|s| is_it(&s));
        let ways = self.ways_around(addr, 1);
        let around = ways.into_iter().map(|avoid| self.read_rather_around(addr, 1, avoid));
        let heads = [self.read(addr, 1)].into_iter().chain(around).flatten();
        let blocks =
            heads.filter_map(|head| Header::peek(&head).ok()).filter(|h| h.addr == addr).map(|h| h.summary_blocks);
        blocks.filter(|blocks| *blocks > 1).find_map(|n| self.read_right(addr, n, right).ok().filter(|b| right(b)))
    }

    fn summary_from(&self, addr: Addr, avoid: Option<u16>, crc: Option<u32>) -> Result<AlignedBuf> {
        let read = |blocks| match avoid {
            None => self.read(addr, blocks),
            Some(avoid) => self.read_rather_around(addr, blocks, avoid),
        };
        let first = read(1)?;
        let head = Header::peek(&first).map_err(|why| Error::Damaged(addr, why))?;
        if head.addr != addr {
            return Err(Error::Damaged(addr, Invalid::Bounds));
        }
        let bytes = if head.summary_blocks == 1 { first } else { read(head.summary_blocks)? };
        let summary = Header::decode(&bytes).map_err(|why| Error::Damaged(addr, why))?;
        if crc.is_some_and(|crc| summary.crc != crc) {
            return Err(Error::Damaged(addr, Invalid::Checksum));
        }
        Ok(bytes)
    }
}

/// What clears both areas of a device of so many blocks.
pub(crate) fn cleared_areas(blocks: u64) -> [Op; 2] {
    let zeros = Arc::new(AlignedBuf::zeroed(superblock::AREA_BLOCKS as usize * BLOCK_BYTES));
    [0, blocks.saturating_sub(superblock::AREA_BLOCKS)]
        .map(|area| Op::Write { offset: area * BLOCK_BYTES as u64, data: zeros.clone() })
}

impl NodeSource for Storage {
    fn read_node(&self, ptr: &NodePtr) -> Result<Vec<u8>> {
        loop {
            let mut why = Error::Damaged(ptr.copies[0], Invalid::Checksum);
            let copies = if broken(Break::OneCopy) { &ptr.copies[..1] } else { &ptr.copies[..] };
            let right = |bytes: &[u8]| node::stored_crc(bytes) == Some(ptr.crc) && node::verify(bytes);
            for &addr in copies {
                match self.read(addr, NODE_BLOCKS) {
                    Ok(bytes) if right(&bytes) => return Ok(bytes.to_vec()),
                    Ok(_) => {}
                    Err(e) => why = e,
                }
            }
            // The other copy is mostly whole: not before is anything read again.
            let elsewhere = copies.iter().find_map(|addr| self.read_other(*addr, NODE_BLOCKS, right));
            if let Some(bytes) = elsewhere.or_else(|| self.node_of_parts(ptr)) {
                return Ok(bytes.to_vec());
            }
            // Else the break would outlast the device that ends it.
            if !broken(Break::ReadAgain) || matches!(why, Error::Device(_)) {
                return Err(why);
            }
        }
    }
}
