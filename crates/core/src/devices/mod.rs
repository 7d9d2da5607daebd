//! The devices of an open volume: one queue, one lock and one state for each, and one volume on top.
//!
//! Invariants
//! 1. A write is done when every device that takes part has it. A device that fails while others
//!    have all that it has is left out from then on, and nothing that it misses is
//!    acknowledged before the roots of the others say so (`mark`).
//! 2. A flush covers, on each device, what completed there before it was asked for; devices to
//!    which nothing was written since their last flush are not asked. What a process that died
//!    wrote may not be flushed yet, and was accepted all the same: so the first flush goes to all.
//! 3. What is read comes from active devices only.
//! 4. A volume of one device makes exactly the requests that it is asked for.

mod assemble;
mod layout;
mod requests;
#[cfg(test)]
mod tests;

pub(crate) use assemble::{Assembly, assemble};
pub(crate) use layout::Layout;

use crate::breaks::{Break, broken};
use layout::{Place, Runs};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Op, Ticket};
use nenrin_format::superblock::{self, Superblock};
use nenrin_format::{Addr, BLOCK_BYTES, SegmentNo};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Length in bytes when it joined.
    pub bytes: u64,
    /// What it is at the moment.
    pub standing: Standing,
    /// Why it is not active.
    pub why: Option<String>,
    /// Reads that it failed since the volume was opened.
    pub read_errors: u64,
}

struct Member {
    device: Option<Arc<dyn BlockDevice>>,
    /// Whole blocks of the device; 0 when it is not there.
    blocks: u64,
    standing: AtomicU8,
    /// Writes seen to complete, and one more for those before the volume was opened.
    completed: AtomicU64,
    /// How many of these a flush is known to have covered.
    covered: AtomicU64,
    read_errors: AtomicU64,
    /// Reads that are under way.
    reading: Arc<AtomicU64>,
}

impl Member {
    fn new(device: Option<Arc<dyn BlockDevice>>, standing: Standing) -> Self {
        let blocks = device.as_ref().map_or(0, |d| d.geometry().bytes / BLOCK_BYTES as u64);
        Self {
            device,
            blocks,
            standing: AtomicU8::new(standing as u8),
            completed: AtomicU64::new(1),
            covered: AtomicU64::new(0),
            read_errors: AtomicU64::new(0),
            reading: Arc::default(),
        }
    }
    fn is_active(&self) -> bool {
        self.standing.load(SeqCst) == Standing::Active as u8
    }
    /// Writes that a flush has to cover, when there are any.
    fn uncovered(&self) -> Option<u64> {
        let n = self.completed.load(SeqCst);
        (n > self.covered.load(SeqCst)).then_some(n)
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
    members: Vec<Member>,
    pub layout: Layout,
    table: Mutex<Table>,
    /// A member was left out, and the roots do not say so yet; or one lacks the newest root.
    unmarked: AtomicBool,
}

impl Devices {
    /// Over the members in the order of the device table, of a volume without a root.
    pub fn fresh(devices: &[Arc<dyn BlockDevice>], layout: Layout) -> Arc<Self> {
        let members = devices.iter().map(|d| Member::new(Some(d.clone()), Standing::Active)).collect();
        Arc::new(Self { members, layout, table: Mutex::default(), unmarked: AtomicBool::new(false) })
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
        let standing = |d: &Option<_>| if d.is_some() { Standing::Active } else { Standing::Absent };
        let members: Vec<Member> = devices.into_iter().map(|d| Member::new(d.clone(), standing(&d))).collect();
        for i in stale {
            members[usize::from(*i)].standing.store(STALE, SeqCst);
        }
        let layout = Layout::new(superblock.segment_blocks, superblock.bands.clone());
        let unmarked = behind || members.iter().zip(&superblock.devices).any(|(m, d)| !m.is_active() && d.active);
        let table = Table { superblock: Some(superblock), why, broken: None };
        Arc::new(Self { members, layout, table: Mutex::new(table), unmarked: AtomicBool::new(unmarked) })
    }

    /// The only device of the volume.
    fn solo(&self) -> Option<&dyn BlockDevice> {
        match &self.members[..] {
            [m] => m.device.as_deref(),
            _ => None,
        }
    }

    fn device(&self, index: u16) -> Option<&Arc<dyn BlockDevice>> {
        self.members.get(usize::from(index))?.device.as_ref()
    }

    /// Where a block lies, for a request to one device. Callers have checked that it is within the volume.
    fn alone(&self, addr: Addr) -> Option<(&Member, &dyn BlockDevice, Place)> {
        let place = self.layout.alone(addr)?;
        let member = self.members.get(usize::from(place.device))?;
        Some((member, member.device.as_deref()?, place))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Devices that may be read, with their indices.
    pub fn active(&self) -> impl Iterator<Item = (u16, &Arc<dyn BlockDevice>)> {
        let there = self.members.iter().enumerate().filter(|(_, m)| m.is_active());
        there.filter_map(|(i, m)| Some((i as u16, m.device.as_ref()?)))
    }

    /// Members, for reports; none before the first root.
    pub fn health(&self) -> Vec<DeviceHealth> {
        let table = self.table();
        let Some(superblock) = &table.superblock else { return Vec::new() };
        let one = |(index, (m, entry)): (usize, (&Member, &superblock::DeviceEntry))| DeviceHealth {
            index: index as u16,
            name: m.device.as_ref().map(|d| d.geometry().name),
            uuid: entry.uuid,
            bytes: entry.blocks.saturating_mul(BLOCK_BYTES as u64),
            standing: if m.is_active() { Standing::Active } else { Standing::Absent },
            why: table
                .why
                .iter()
                .rev()
                .find(|(i, _)| usize::from(*i) == index && !m.is_active())
                .map(|(_, why)| why.clone()),
            read_errors: m.read_errors.load(SeqCst),
        };
        self.members.iter().zip(&superblock.devices).enumerate().map(one).collect()
    }

    /// Flushes the devices to which something was written since their last flush.
    pub fn flush(&self) -> Result<(), DeviceError> {
        if let Some(device) = self.solo() {
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
        let active = self.active().filter(|(i, _)| which(*i));
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
        if table.superblock.is_none() || !self.layout.is_whole(spared) {
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
            if !self.layout.is_whole(|i| self.members.get(usize::from(i)).is_some_and(Member::is_active)) {
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
                let blocks = self.members[usize::from(i)].blocks;
                let block = superblock::slot_blocks(superblock.generation, blocks)[area];
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
        let mut block = 0;
        while block < self.layout.segment_blocks {
            let addr = Addr::new(segment, block);
            let count = COPY_BLOCKS.min(self.layout.segment_blocks - block);
            let mut runs = Runs::default();
            self.layout.each_piece(addr, count, |from, n, places| {
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
        if let Some(device) = self.solo() {
            let data = Arc::new(AlignedBuf::padded(&superblock.encode()));
            for block in superblock::slot_blocks(superblock.generation, self.members[0].blocks) {
                device.write(block * BLOCK_BYTES as u64, data.clone())?;
            }
            self.table().superblock = Some(superblock.clone());
            return Ok(());
        }
        self.settle()?;
        let mut table = self.table();
        let mut superblock = superblock.clone();
        if let Some(last) = &table.superblock {
            superblock.devices.clone_from(&last.devices);
        }
        table.superblock = Some(superblock.clone());
        let mut tickets = Vec::new();
        for (i, device) in self.active() {
            let data = Arc::new(AlignedBuf::padded(&Superblock { device_index: i, ..superblock.clone() }.encode()));
            for block in superblock::slot_blocks(superblock.generation, self.members[usize::from(i)].blocks) {
                let op = Op::Write { offset: block * BLOCK_BYTES as u64, data: data.clone() };
                tickets.push((i, device.submit(op)));
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
        let shares = self.layout.shares(segment).into_iter();
        let op = |place: Place, blocks: u64| Op::Discard {
            offset: place.block * BLOCK_BYTES as u64,
            bytes: blocks * BLOCK_BYTES as u64,
        };
        let there = |i: u16| self.members.get(usize::from(i)).filter(|m| m.is_active())?.device.as_ref();
        shares.filter_map(|(place, blocks)| Some(there(place.device)?.submit(op(place, blocks)))).collect()
    }
}
