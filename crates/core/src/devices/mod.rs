//! The devices of an open volume: one queue, one lock and one state for each, and one volume on top.
//!
//! Invariants
//! 1. A write is done when every device that takes part has it. A device that fails while others
//!    have all that it has is left out from then on, and nothing that it misses is
//!    acknowledged before the roots of the others say so (`mark`).
//! 2. A flush covers, on each device, what completed there before it was asked for; devices to
//!    which nothing was written since their last flush are not asked.
//! 3. What is read comes from active devices only.
//! 4. A volume of one device makes exactly the requests that it is asked for.

mod assemble;
mod layout;
pub(crate) mod plan;
mod requests;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use assemble::{Assembly, assemble};
pub(crate) use layout::Layout;
pub(crate) use plan::bands_for;

use crate::breaks::{Break, broken};
use layout::{Place, Runs};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Op, Ticket};
use nenrin_format::superblock::{self, Superblock};
use nenrin_format::{Addr, BLOCK_BYTES, SegmentNo};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What a member of the volume is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// Everything is on it.
    Active = 0,
    /// It is not there, failed, or misses something.
    Absent = 1,
}

/// Standing of a member that is there and misses something.
const STALE: u8 = 2;

/// Blocks copied at once.
const COPY_BLOCKS: u32 = 256;

/// One member of a volume, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Its place in the device table.
    pub index: u16,
    /// Path, when it is there.
    pub name: Option<String>,
    /// Identity within the volume.
    pub uuid: [u8; 16],
    /// Length in bytes, as far as it is used.
    pub bytes: u64,
    /// The same when what is under way is done: 0 when it is to be removed.
    pub target_bytes: u64,
    /// What it is at the moment.
    pub standing: Standing,
    /// Why it is not active.
    pub why: Option<String>,
    /// Reads that it failed since the volume was opened.
    pub read_errors: u64,
}

/// What is known of a member besides what it is.
struct Member {
    standing: AtomicU8,
    /// Writes seen to complete.
    completed: AtomicU64,
    /// How many of these a flush is known to have covered.
    covered: AtomicU64,
    /// Writes were not always counted: every flush is asked for.
    uncounted: AtomicBool,
    read_errors: AtomicU64,
}

impl Member {
    const fn new(standing: Standing) -> Self {
        Self {
            standing: AtomicU8::new(standing as u8),
            completed: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            uncounted: AtomicBool::new(false),
            read_errors: AtomicU64::new(0),
        }
    }
    fn is_active(&self) -> bool {
        self.standing.load(SeqCst) == Standing::Active as u8
    }
    /// Writes that a flush has to cover, when there are any.
    fn uncovered(&self) -> Option<u64> {
        let n = self.completed.load(SeqCst);
        (self.uncounted.load(SeqCst) || n > self.covered.load(SeqCst)).then_some(n)
    }
}

/// Which devices there are, and where segments lie on them: replaced as a whole when that changes.
pub(crate) struct Shape {
    pub layout: Layout,
    /// In the order of the device table; `None` for what is not there.
    devices: Vec<Option<Arc<dyn BlockDevice>>>,
    /// The only device of the volume.
    solo: Option<Arc<dyn BlockDevice>>,
}

impl Shape {
    /// `members`: how many there should be.
    fn new(layout: Layout, devices: Vec<Option<Arc<dyn BlockDevice>>>, members: usize) -> Arc<Self> {
        let mut there = devices.iter().flatten();
        let solo = match (members, there.next(), there.next()) {
            (1, Some(d), None) => Some(Arc::clone(d)),
            _ => None,
        };
        Arc::new(Self { layout, devices, solo })
    }

    fn device(&self, index: u16) -> Option<&Arc<dyn BlockDevice>> {
        self.devices.get(usize::from(index))?.as_ref()
    }

    /// Where these blocks lie, when they lie together on the only device.
    fn alone(&self, addr: Addr) -> Option<(&dyn BlockDevice, Place)> {
        Some((self.solo.as_deref()?, self.layout.alone(addr)?))
    }
}

/// What the roots say of the members.
#[derive(Default)]
struct Table {
    /// The root as last written; `None` before the first.
    superblock: Option<Superblock>,
    /// Why members are absent.
    why: Vec<(u16, String)>,
    /// The table could not be written: nothing more is acknowledged.
    broken: Option<DeviceError>,
}

/// The devices of a volume.
pub(crate) struct Devices {
    /// One for each entry that the device table may have.
    members: Vec<Member>,
    shape: RwLock<Arc<Shape>>,
    table: Mutex<Table>,
    /// A member was left out, and the roots do not say so yet; or one lacks the newest root.
    unmarked: AtomicBool,
}

impl Devices {
    /// Over the members in the order of the device table, of a volume without a root.
    pub fn fresh(devices: &[Arc<dyn BlockDevice>], layout: Layout) -> Arc<Self> {
        let shape = Shape::new(layout, devices.iter().cloned().map(Some).collect(), devices.len());
        Self::over(shape, Table::default(), false)
    }

    fn over(shape: Arc<Shape>, table: Table, unmarked: bool) -> Arc<Self> {
        let standing = |i: usize| match shape.devices.get(i) {
            Some(Some(_)) => Standing::Active,
            _ => Standing::Absent,
        };
        let members = (0..superblock::DEVICES_MAX).map(|i| Member::new(standing(i))).collect();
        let unmarked = AtomicBool::new(unmarked);
        Arc::new(Self { members, shape: RwLock::new(shape), table: Mutex::new(table), unmarked })
    }

    /// Over what was put together: `None` for a member that is left out, with the reason in `why`.
    /// `stale`: indices of those that are there and miss something. `behind`: one of them lacks that root.
    fn open(
        devices: Vec<Option<Arc<dyn BlockDevice>>>,
        stale: &[u16],
        superblock: Superblock,
        why: Vec<(u16, String)>,
        behind: bool,
    ) -> Arc<Self> {
        let layout = Layout::new(superblock.segment_blocks, superblock.bands.clone());
        let shape = Shape::new(layout, devices, superblock.members());
        let entries = superblock.devices.clone();
        let this = Self::over(shape, Table { superblock: Some(superblock), why, broken: None }, behind);
        for i in stale {
            this.members[usize::from(*i)].standing.store(STALE, SeqCst);
        }
        if this.members.iter().zip(&entries).any(|(m, d)| !m.is_active() && d.active) {
            this.unmarked.store(true, SeqCst);
        }
        this
    }

    /// What there is at the moment.
    pub fn shape(&self) -> Arc<Shape> {
        Arc::clone(&self.shape.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn device(&self, index: u16) -> Option<Arc<dyn BlockDevice>> {
        self.shape().device(index).cloned()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Devices that may be read, with their indices.
    pub fn active(&self) -> Vec<(u16, Arc<dyn BlockDevice>)> {
        let shape = self.shape();
        let there = self.members.iter().enumerate().filter(|(_, m)| m.is_active());
        there.filter_map(|(i, _)| Some((i as u16, shape.device(i as u16)?.clone()))).collect()
    }

    /// Members, for reports; none before the first root.
    pub fn health(&self) -> Vec<DeviceHealth> {
        let table = self.table();
        let Some(superblock) = &table.superblock else { return Vec::new() };
        let shape = self.shape();
        let one = |(index, (m, entry)): (usize, (&Member, &superblock::DeviceEntry))| DeviceHealth {
            index: index as u16,
            name: shape.device(index as u16).map(|d| d.geometry().name),
            uuid: entry.uuid,
            bytes: entry.blocks.saturating_mul(BLOCK_BYTES as u64),
            target_bytes: entry.target_blocks.saturating_mul(BLOCK_BYTES as u64),
            standing: if m.is_active() { Standing::Active } else { Standing::Absent },
            why: table
                .why
                .iter()
                .rev()
                .find(|(i, _)| usize::from(*i) == index && !m.is_active())
                .map(|(_, why)| why.clone()),
            read_errors: m.read_errors.load(SeqCst),
        };
        let all = self.members.iter().zip(&superblock.devices).enumerate();
        all.filter(|(_, (_, entry))| !entry.removed).map(one).collect()
    }

    /// Flushes the devices to which something was written since their last flush.
    pub fn flush(&self) -> Result<(), DeviceError> {
        if let Some(device) = &self.shape().solo {
            return device.flush();
        }
        let mut flushes = self.start_flushes(|_| true);
        if broken(Break::FlushHalf) {
            flushes.truncate(1);
        }
        self.end_flushes(flushes)?;
        self.settle()
    }

    fn start_flushes(&self, which: impl Fn(u16) -> bool) -> Vec<(u16, u64, Ticket)> {
        let active = self.active().into_iter().filter(|(i, _)| which(*i));
        active.filter_map(|(i, d)| Some((i, self.members[usize::from(i)].uncovered()?, d.submit(Op::Flush)))).collect()
    }

    fn end_flushes(&self, flushes: Vec<(u16, u64, Ticket)>) -> Result<(), DeviceError> {
        let mut failed = Vec::new();
        for (i, n, ticket) in flushes {
            match ticket.wait() {
                Ok(_) => drop(self.members[usize::from(i)].covered.fetch_max(n, SeqCst)),
                Err(e) => failed.push((i, e)),
            }
        }
        failed.into_iter().try_for_each(|(i, e)| self.lose(i, e))
    }

    /// A write or flush of this device failed: goes on without it where that is possible.
    ///
    /// # Errors
    /// The error itself, when something is on no other device.
    fn lose(&self, index: u16, error: DeviceError) -> Result<(), DeviceError> {
        let mut table = self.table();
        if let Some(e) = &table.broken {
            return Err(e.clone());
        }
        let member = &self.members[usize::from(index)];
        if !member.is_active() {
            return Ok(());
        }
        let spared = |i: u16| i != index && self.members.get(usize::from(i)).is_some_and(Member::is_active);
        if table.superblock.is_none() || !self.shape().layout.is_whole(spared) {
            return Err(error);
        }
        self.unmarked.store(true, SeqCst);
        member.standing.store(Standing::Absent as u8, SeqCst);
        table.why.push((index, format!("it failed: {error}")));
        self.mark(&mut table)
    }

    /// Before anything is acknowledged that an absent member misses: the roots say that it is absent, on all devices.
    pub fn settle(&self) -> Result<(), DeviceError> {
        if !self.unmarked.load(SeqCst) {
            return Ok(());
        }
        let mut table = self.table();
        match &table.broken {
            Some(e) => Err(e.clone()),
            None if self.unmarked.load(SeqCst) => self.mark(&mut table),
            None => Ok(()),
        }
    }

    /// Writes the newest root once more, with absent members marked in its table.
    fn mark(&self, table: &mut Table) -> Result<(), DeviceError> {
        while let Some(superblock) = &mut table.superblock {
            let number = superblock.table_generation() + 1;
            for (m, entry) in self.members.iter().zip(&mut superblock.devices) {
                if entry.active && !m.is_active() {
                    entry.active = false;
                    entry.member_generation = number;
                }
            }
            let Err((index, error)) = self.write_table(superblock) else { break };
            // Another one fails: that has to be said, too.
            let member = &self.members[usize::from(index)];
            member.standing.store(Standing::Absent as u8, SeqCst);
            if !self.shape().layout.is_whole(|i| self.members.get(usize::from(i)).is_some_and(Member::is_active)) {
                table.broken = Some(error.clone());
                return Err(error);
            }
            table.why.push((index, format!("it failed: {error}")));
        }
        self.unmarked.store(false, SeqCst);
        Ok(())
    }

    /// Both copies of the slot on every active device, one durable before the other is touched.
    fn write_table(&self, superblock: &Superblock) -> Result<(), (u16, DeviceError)> {
        for area in 0..2 {
            for (i, device) in self.active() {
                let Some(block) = slots_of(superblock, i).map(|both| both[area]) else { continue };
                let data = Arc::new(AlignedBuf::padded(&Superblock { device_index: i, ..superblock.clone() }.encode()));
                let written = device.write(block * BLOCK_BYTES as u64, data).and_then(|()| device.flush());
                written.map_err(|e| (i, e))?;
            }
        }
        Ok(())
    }

    /// Members that are there and miss something.
    pub fn stale(&self) -> Vec<u16> {
        let stale = |m: &Member| m.standing.load(SeqCst) == STALE;
        self.members.iter().enumerate().filter(|(_, m)| stale(m)).map(|(i, _)| i as u16).collect()
    }

    /// Copies what a stale member has of a segment from the others. Nobody else writes meanwhile.
    pub fn copy_segment(self: &Arc<Self>, index: u16, segment: SegmentNo) -> Result<(), DeviceError> {
        let Some(device) = self.device(index) else { return Err(DeviceError::Missing) };
        let shape = self.shape();
        let mut block = 0;
        while block < shape.layout.segment_blocks {
            let addr = Addr::new(segment, block);
            let count = COPY_BLOCKS.min(shape.layout.segment_blocks - block);
            let mut runs = Runs::default();
            shape.layout.each_piece(addr, count, |from, n, places| {
                places.iter().filter(|p| p.device == index).for_each(|p| runs.add(*p, from, n));
            });
            if !runs.0.is_empty() {
                let data = Arc::new(self.read(addr, count, None)?);
                for run in &runs.0 {
                    device.write(run.block * BLOCK_BYTES as u64, requests::gathered(run, &data))?;
                }
            }
            block += count;
        }
        Ok(())
    }

    /// A stale member has everything now: it becomes active, and the roots on all devices say so.
    pub fn admit(&self, index: u16) -> Result<(), DeviceError> {
        let Some(device) = self.device(index) else { return Err(DeviceError::Missing) };
        device.flush()?;
        let mut table = self.table();
        let Some(superblock) = &mut table.superblock else { return Err(DeviceError::Missing) };
        let number = superblock.table_generation() + 1;
        if let Some(entry) = superblock.devices.get_mut(usize::from(index)) {
            entry.active = true;
            entry.member_generation = number;
        }
        self.members[usize::from(index)].standing.store(Standing::Active as u8, SeqCst);
        let superblock = superblock.clone();
        let Err((failed, error)) = self.write_table(&superblock) else { return Ok(()) };
        drop(table);
        self.lose(failed, error)
    }

    /// Writes the slots of a root on all devices, without flushing. The table is the volume's own.
    pub fn write_slots(&self, superblock: &Superblock) -> Result<(), DeviceError> {
        self.settle()?;
        let mut table = self.table();
        let mut superblock = superblock.clone();
        if let Some(last) = &table.superblock {
            superblock.devices.clone_from(&last.devices);
        }
        table.superblock = Some(superblock.clone());
        let mut tickets = Vec::new();
        let solo = self.shape().solo.is_some();
        for (i, device) in self.active() {
            let data = Arc::new(AlignedBuf::padded(&Superblock { device_index: i, ..superblock.clone() }.encode()));
            for block in slots_of(&superblock, i).into_iter().flatten() {
                let offset = block * BLOCK_BYTES as u64;
                if solo {
                    device.write(offset, data.clone())?;
                    continue;
                }
                tickets.push((i, device.submit(Op::Write { offset, data: data.clone() })));
            }
        }
        let failed = self.wait_writes(tickets);
        // Not before: what is under way must never land on a slot that says more.
        drop(table);
        failed.into_iter().try_for_each(|(i, e)| self.lose(i, e))
    }

    /// Waits for all of them; those that failed.
    fn wait_writes(&self, tickets: Vec<(u16, Ticket)>) -> Vec<(u16, DeviceError)> {
        let mut failed = Vec::new();
        for (i, ticket) in tickets {
            match ticket.wait() {
                Ok(_) => drop(self.members[usize::from(i)].completed.fetch_add(1, SeqCst)),
                Err(e) => failed.push((i, e)),
            }
        }
        failed
    }

    /// Tells the devices that a segment holds nothing of value.
    pub fn submit_discard(&self, segment: SegmentNo) -> Vec<Ticket> {
        let shape = self.shape();
        let shares = shape.layout.shares(segment).into_iter();
        let op = |place: Place, blocks: u64| Op::Discard {
            offset: place.block * BLOCK_BYTES as u64,
            bytes: blocks * BLOCK_BYTES as u64,
        };
        let there =
            |i: u16| shape.device(i).filter(|_| self.members.get(usize::from(i)).is_some_and(Member::is_active));
        shares.filter_map(|(place, blocks)| Some(there(place.device)?.submit(op(place, blocks)))).collect()
    }
}

/// The blocks of the two slots of a root on a device, where that has its length.
fn slots_of(superblock: &Superblock, index: u16) -> Option<[u64; 2]> {
    let blocks = superblock.devices.get(usize::from(index))?.blocks;
    (blocks >= 2 * superblock::AREA_BLOCKS).then(|| superblock::slot_blocks(superblock.generation, blocks))
}
