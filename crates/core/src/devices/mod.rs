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
//! 5. Root slots are flushed by who asks for them: no sync waits for that.
//! 6. A commit that names nothing that is not durable leaves what others wrote in the caches: nobody counts on that yet.
//! 7. Who takes part in a write is decided in the moment it is registered ([`roster`]).

mod anew;
mod apart;
mod assemble;
mod joining;
mod layout;
mod outside;
mod parity;
pub(crate) mod plan;
mod rate;
mod requests;
mod returning;
mod roster;
mod rows;
mod slow;
mod table;
#[cfg(test)]
mod tests;
mod unread;
mod watched;
mod whole_rows;

pub(crate) use apart::Apart;
pub use assemble::go_together;
pub(crate) use assemble::{Assembly, assemble};
pub(crate) use joining::Copied;
pub(crate) use layout::{Avoided, Layout};
pub(crate) use outside::{Outside, Zeroed};
pub(crate) use plan::bands_for;
pub(crate) use rows::RowId;

use crate::Clock;
use crate::breaks::{Break, broken};
use apart::{Ending, Prepared};
use layout::Place;
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, HostPlace, Op, Ticket};
use nenrin_format::superblock::{self, Superblock, Trouble};
use nenrin_format::{Addr, BLOCK_BYTES, SegmentNo, Time};
use roster::{Roster, UnderWay};
use rows::Rows;
use slow::{Gauge, Sent};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use table::{Shown, TableGuard};
use unread::Unread;
use watched::{Watch, Watched};

/// What a member of the volume is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// Everything is on it.
    Active = 0,
    /// It is not there, failed, or misses something.
    Absent = 1,
    /// It is brought up to date: it gets what is written, and is read from only for what it still has right.
    Joining = 2,
}

/// Standing of a member that is there and misses something.
const STALE: u8 = 3;
/// Standing of a device that is brought up to date and lacks nothing but its place in the table: it is flushed, too.
const ENTERING: u8 = 4;

/// One member of a volume, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Its place in the device table.
    pub index: u16,
    /// Path, when it is there; of one that is no text some of it.
    pub name: Option<String>,
    /// Which of the host it is, if it is there and one of that.
    pub place: Option<HostPlace>,
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
    /// The first write or flush that it failed while no other device had all that it has: the volume is read-only, unless nothing
    /// depended on it.
    pub failed: Option<String>,
    /// Reads that it failed while it was one of several members, as far as roots tell.
    pub read_errors: u64,
    /// Blocks that it gave otherwise than they were written, and that others had right, likewise.
    pub wrong_blocks: u64,
    /// Writes and flushes that it failed, likewise.
    pub write_errors: u64,
    /// Since when it is slow: what is new goes to other devices, while there is room.
    pub slow_since: Option<Time>,
}

struct Member {
    /// Its place in the device table.
    index: u16,
    device: Option<Arc<dyn BlockDevice>>,
    standing: AtomicU8,
    /// Writes seen to complete, and one more for those before the volume was opened.
    completed: AtomicU64,
    /// How many of these a flush is known to have covered.
    covered: AtomicU64,
    /// The same for root slots.
    roots_completed: AtomicU64,
    roots_covered: AtomicU64,
    /// What it has done wrong while it was a member.
    read_errors: AtomicU64,
    wrong_blocks: AtomicU64,
    write_errors: AtomicU64,
    /// That of who reads block by block what it does not give as a whole.
    patience: requests::Patience,
    /// The same of who writes anew what it did not give.
    mending: requests::Patience,
    /// Reads that are under way.
    reading: Arc<AtomicU64>,
    /// What it takes for writes and flushes.
    gauge: Gauge,
    /// Who waits for it. Behind the device, here and in [`Watched`]: while it is there the device may not be closed.
    watch: Arc<Watch>,
}

impl Member {
    fn new(index: u16, device: Option<Arc<dyn BlockDevice>>, standing: u8) -> Arc<Self> {
        let watch = Arc::<Watch>::default();
        let watched = |d| Arc::new(Watched::new(d, watch.clone())) as Arc<dyn BlockDevice>;
        Arc::new(Self {
            index,
            device: device.map(watched),
            standing: AtomicU8::new(standing),
            completed: AtomicU64::new(u64::from(!broken(Break::FirstFlushPartial))),
            covered: AtomicU64::new(0),
            roots_completed: AtomicU64::new(0),
            roots_covered: AtomicU64::new(0),
            read_errors: AtomicU64::new(0),
            wrong_blocks: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            patience: requests::Patience::default(),
            mending: requests::Patience::default(),
            reading: Arc::default(),
            gauge: Gauge::default(),
            watch,
        })
    }
    /// What roots say of it.
    fn trouble(&self) -> Trouble {
        let told = |n: &AtomicU64| u16::try_from(n.load(SeqCst)).unwrap_or(u16::MAX);
        Trouble { unread: told(&self.read_errors), wrong: told(&self.wrong_blocks), failed: told(&self.write_errors) }
    }
    /// From what roots say of it, or nothing.
    fn set_trouble(&self, trouble: Trouble) {
        self.read_errors.store(trouble.unread.into(), SeqCst);
        self.wrong_blocks.store(trouble.wrong.into(), SeqCst);
        self.write_errors.store(trouble.failed.into(), SeqCst);
    }
    /// Whether it has failed a write or flush: what that was to cover may be readable, and be nowhere but in a cache.
    fn may_have_lost(&self) -> bool {
        self.write_errors.load(SeqCst) > 0 && !broken(Break::AlikeBelieved)
    }
    fn is(&self, standing: u8) -> bool {
        self.standing.load(SeqCst) == standing
    }
    fn is_active(&self) -> bool {
        self.is(Standing::Active as u8)
    }
    /// Whether a sync has to flush it.
    fn is_flushed(&self) -> bool {
        self.is_active() || self.is(ENTERING)
    }
    fn stand(&self, standing: u8) {
        self.standing.store(standing, SeqCst);
    }
    /// Writes that a flush has to cover, when there are any: those of root slots count only `with_roots`.
    fn uncovered(&self, with_roots: bool) -> Option<Covers> {
        let through = self.completed();
        let roots = with_roots && through.roots > self.roots_covered.load(SeqCst);
        (roots || through.writes > self.covered.load(SeqCst)).then_some(through)
    }
    /// Whether a flush has covered what was there when the volume was opened.
    fn was_flushed(&self) -> bool {
        self.covered.load(SeqCst) > 0 || broken(Break::FirstLeft)
    }
    fn completed(&self) -> Covers {
        Covers { writes: self.completed.load(SeqCst), roots: self.roots_completed.load(SeqCst) }
    }
    /// Writes and waits; to be counted by who calls it.
    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.device.as_ref().map_or(Err(DeviceError::Missing), |d| d.write(offset, data))
    }
    /// Makes all that has completed durable.
    fn flush(&self) -> Result<(), DeviceError> {
        let Some(device) = &self.device else { return Err(DeviceError::Missing) };
        let through = self.completed();
        device.flush()?;
        self.cover(self.covered_by(through));
        Ok(())
    }
    /// What a flush has covered that was asked for after these: not what completed beside it, which may have been too late for it.
    fn covered_by(&self, through: Covers) -> Covers {
        if broken(Break::CoversBeside) { self.completed() } else { through }
    }
    /// A flush that was asked for after these has completed.
    fn cover(&self, through: Covers) {
        self.covered.fetch_max(through.writes, SeqCst);
        self.roots_covered.fetch_max(through.roots, SeqCst);
    }
    /// Writes, and makes that durable with all that is to be covered. Where nothing is, or nothing is asked for, this write alone is made
    /// durable, which leaves what else the device has in its cache, and costs one request.
    fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>, covering: Covering) -> Result<(), DeviceError> {
        let Some(device) = &self.device else { return Err(DeviceError::Missing) };
        let itself = covering == Covering::Itself && self.was_flushed();
        match self.uncovered(false).filter(|_| !itself && !broken(Break::UncoveredLeft)) {
            None => device.write_durable(offset, data),
            Some(through) => {
                device.write_flush(offset, data)?;
                self.cover(self.covered_by(through));
                Ok(())
            }
        }
    }
    fn submit(&self, op: Op) -> Ticket {
        self.device.as_ref().map_or_else(|| Ticket::done(Err(DeviceError::Missing)), |d| d.submit(op))
    }
    /// For reports.
    fn standing(&self) -> Standing {
        match self.standing.load(SeqCst) {
            0 => Standing::Active,
            s if s == Standing::Joining as u8 || s == ENTERING => Standing::Joining,
            _ => Standing::Absent,
        }
    }
}

/// What is to be durable when a write is, that a commit ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Covering {
    /// All that completed before.
    All,
    /// Nothing else: what the commit names elsewhere is durable already, and what others wrote is theirs to flush. The first one of a
    /// mount covers all the same what was there.
    Itself,
}

/// How many writes a flush covers.
#[derive(Clone, Copy)]
struct Covers {
    writes: u64,
    roots: u64,
}

/// What the roots say of the members.
#[derive(Default)]
struct Table {
    /// The root as last written; `None` before the first.
    superblock: Option<Superblock>,
    /// Why members are absent.
    why: Vec<(u16, String)>,
    /// Members that failed and that the others cannot do without, and what.
    failed: Vec<(u16, String)>,
    /// The table could not be written: nothing more is acknowledged.
    broken: Option<DeviceError>,
    /// Why the last device that was to join did not.
    joining_ended: Option<String>,
    /// The place of a device that the table lists, and that is about to be taken in.
    expected: Option<u16>,
    /// Devices whose place another has, and whose roots were not ended when that was cut, or when they did not answer.
    replaced: Vec<Ending>,
}

/// The devices of a volume.
pub(crate) struct Devices {
    under_way: Mutex<UnderWay>,
    /// Rows with parity that are not at rest.
    rows: Arc<Rows>,
    /// What some device did not give.
    unread: Arc<Unread>,
    table: Mutex<Table>,
    /// A member was left out, and the roots do not say so yet; or one lacks the newest root.
    unmarked: AtomicBool,
    /// Who decides which thread runs, if anybody does: the table is written under its lock.
    clock: OnceLock<Arc<dyn Clock>>,
    /// Members that are slow, as [`Avoided`].
    slow: AtomicU32,
    /// Held by who judges them.
    judging: Mutex<()>,
    /// Devices that take no part, not yet or not any more, and that somebody may wait for all the same.
    apart: Mutex<Vec<Weak<Member>>>,
    /// The one of them that is made ready to take the place of a member.
    preparing: Mutex<Option<Arc<Prepared>>>,
    /// What reports tell of the table.
    shown: Mutex<Shown>,
    /// See [`Devices::joins`].
    joins: AtomicU64,
}

impl Devices {
    /// Over the members in the order of the device table, of a volume without a root.
    pub fn fresh(devices: &[Arc<dyn BlockDevice>], layout: Layout, uuid: [u8; 16]) -> Arc<Self> {
        let member = |(i, d): (usize, &Arc<dyn BlockDevice>)| Member::new(i as u16, Some(d.clone()), 0);
        let count = devices.len();
        let members = devices.iter().enumerate().map(member).collect();
        Self::over(Roster::new(layout, members, count, Rows::new(uuid)), Table::default(), false)
    }

    fn over(roster: Roster, table: Table, unmarked: bool) -> Arc<Self> {
        let (rows, unread) = (roster.rows.clone(), roster.unread.clone());
        let under_way = Mutex::new(UnderWay::new(roster));
        let shown = Mutex::new(Shown::of(&table));
        let (table, unmarked) = (Mutex::new(table), AtomicBool::new(unmarked));
        Arc::new(Self {
            under_way,
            rows,
            unread,
            table,
            unmarked,
            clock: OnceLock::new(),
            slow: AtomicU32::new(0),
            judging: Mutex::default(),
            apart: Mutex::default(),
            preparing: Mutex::default(),
            shown,
            joins: AtomicU64::new(0),
        })
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
        let member = |(i, d): (usize, Option<Arc<dyn BlockDevice>>)| {
            let standing = match &d {
                Some(_) if stale.contains(&(i as u16)) => STALE,
                Some(_) => Standing::Active as u8,
                None => Standing::Absent as u8,
            };
            Member::new(i as u16, d, standing)
        };
        let members: Vec<Arc<Member>> = devices.into_iter().enumerate().map(member).collect();
        members.iter().zip(&superblock.troubles).for_each(|(m, trouble)| m.set_trouble(*trouble));
        let layout = Layout::new(superblock.segment_blocks, superblock.bands.clone());
        let unmarked = behind || members.iter().zip(&superblock.devices).any(|(m, d)| !m.is_active() && d.active);
        let roster = Roster::new(layout, members, superblock.members(), Rows::new(superblock.uuid));
        let this = Self::over(roster, Table { superblock: Some(superblock), why, ..Table::default() }, unmarked);
        this.load_rows();
        this
    }

    fn table(&self) -> TableGuard<'_> {
        let guard = match self.clock.get() {
            Some(clock) => crate::fs::locked(&self.table, clock.as_ref()),
            None => self.table.lock(),
        };
        TableGuard { guard: guard.unwrap_or_else(PoisonError::into_inner), shown: &self.shown }
    }

    /// From now on threads may take turns, as this clock says.
    pub fn take_turns(&self, clock: Arc<dyn Clock>) {
        let _ = self.clock.set(clock);
    }

    /// Devices that may be read, with their indices.
    pub fn active(&self) -> Vec<(u16, Arc<dyn BlockDevice>)> {
        let roster = self.roster();
        roster.active().filter_map(|m| Some((m.index, m.device.clone()?))).collect()
    }

    /// Whether each block can be had, also without some of the members.
    pub fn is_whole_without(&self, gone: &[u16]) -> bool {
        self.roster().is_whole_without(gone)
    }

    /// Members, for reports; none before the first root. Waits for no device.
    pub fn health(&self) -> Vec<DeviceHealth> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |(m, entry): (&Arc<Member>, &superblock::DeviceEntry)| {
            let geometry = m.device.as_ref().map(|d| d.geometry());
            DeviceHealth {
                index: m.index,
                name: geometry.as_ref().map(|g| g.name.clone()),
                place: geometry.and_then(|g| g.place),
                uuid: entry.uuid,
                bytes: entry.blocks.saturating_mul(BLOCK_BYTES as u64),
                target_bytes: entry.target_blocks.saturating_mul(BLOCK_BYTES as u64),
                standing: m.standing(),
                why: shown.why.iter().rev().find(|(i, _)| *i == m.index && !m.is_active()).map(|(_, why)| why.clone()),
                failed: shown.failed.iter().find(|(i, _)| *i == m.index && m.is_active()).map(|(_, what)| what.clone()),
                read_errors: m.read_errors.load(SeqCst),
                wrong_blocks: m.wrong_blocks.load(SeqCst),
                write_errors: m.write_errors.load(SeqCst),
                slow_since: m.gauge.slow_since().filter(|_| m.is_active()),
            }
        };
        let roster = self.roster();
        let all = roster.members.iter().zip(&shown.devices);
        all.filter(|(_, entry)| !entry.removed).map(one).collect()
    }

    /// What was read of these blocks is not what they hold: counts that for the devices that gave it. `avoided`: where the other of two
    /// copies was read.
    pub fn note_wrong(&self, addr: Addr, read: &[u8], right: &[u8], avoided: Option<u16>) {
        let roster = self.roster();
        let blocks = (right.len() / BLOCK_BYTES) as u32;
        roster.layout.each_piece(addr, blocks, |from, count, places| {
            let mut there = places.iter().filter(|p| roster.is_active(p.device) && Some(p.device) != avoided);
            // Which of two gave it nobody knows.
            let (Some(one), None) = (there.next(), there.next()) else { return };
            let part = |block: u32| block as usize * BLOCK_BYTES..(block as usize + 1) * BLOCK_BYTES;
            let wrong = (from..from + count).filter(|b| read.get(part(*b)) != right.get(part(*b))).count();
            if let Some(member) = roster.member(one.device) {
                member.wrong_blocks.fetch_add(wrong as u64, SeqCst);
            }
        });
    }

    /// What a device is to have done wrong from now on, with the next root for good, and what that was. `None` where there is no such
    /// member. That one which is not active has failed writes stays known: it may have lost what it shows.
    pub fn set_trouble(&self, index: u16, trouble: Trouble) -> Option<Trouble> {
        let roster = self.roster();
        let member = roster.members.get(usize::from(index))?;
        let before = member.trouble();
        let failed = if member.is_active() { trouble.failed } else { trouble.failed.max(before.failed) };
        member.set_trouble(Trouble { failed, ..trouble });
        Some(before)
    }

    /// Flushes the devices to which something was written since their last flush.
    pub fn flush(&self) -> Result<(), DeviceError> {
        self.flush_those(true)
    }

    /// The same, but not because of root slots.
    pub fn flush_segments(&self) -> Result<(), DeviceError> {
        self.flush_those(broken(Break::CommitAwaitsRoots))
    }

    fn flush_those(&self, with_roots: bool) -> Result<(), DeviceError> {
        if let Some(member) = self.roster().solo() {
            return member.flush();
        }
        self.protect()?;
        self.flush_protected(with_roots)
    }

    /// The same where nothing need be protected any more, or nobody is told. Slots of the row log are given back whose rows it makes durable.
    fn flush_protected(&self, with_roots: bool) -> Result<(), DeviceError> {
        // Not before: what protects the others may have been written to a device that has come meanwhile.
        let roster = self.roster();
        let full = self.rows.lock().ready();
        let mut flushes = self.start_flushes(&roster, with_roots, |_| true);
        if broken(Break::FlushHalf) {
            flushes.truncate(1);
        }
        self.end_flushes(flushes)?;
        self.settle()?;
        self.rows.lock().release(&full);
        Ok(())
    }

    fn start_flushes(&self, roster: &Roster, with_roots: bool, which: impl Fn(u16) -> bool) -> Vec<(Sent, Covers)> {
        let those = roster.all().filter(|m| m.is_flushed() && which(m.index));
        let start = |m: &Arc<Member>| {
            let through = m.uncovered(with_roots)?;
            Some((self.send(m, Op::Flush), through))
        };
        those.filter_map(start).collect()
    }

    fn end_flushes(&self, flushes: Vec<(Sent, Covers)>) -> Result<(), DeviceError> {
        let mut failed = Vec::new();
        for (sent, through) in flushes {
            match sent.wait(self.clock()) {
                (member, Ok(())) => member.cover(through),
                (member, Err(e)) => failed.push((member, e)),
            }
        }
        failed.into_iter().try_for_each(|(m, e)| self.lose(&m, e))
    }

    /// A write or flush of this device failed: goes on without it where that is possible.
    ///
    /// # Errors
    /// The error itself, when something is on no other device.
    fn lose(&self, member: &Arc<Member>, error: DeviceError) -> Result<(), DeviceError> {
        if !matches!(error, DeviceError::Unowned { .. }) {
            member.write_errors.fetch_add(1, SeqCst);
        }
        let mut table = self.table();
        if let Some(e) = &table.broken {
            return Err(e.clone());
        }
        let roster = self.roster();
        if !member.is_active() {
            if roster.joining.as_ref().is_some_and(|j| Arc::ptr_eq(j, member)) {
                // Nobody needs it yet.
                self.give_up_joining(&mut table, format!("it failed: {error}"));
                if roster.has(member) && !matches!(error, DeviceError::Unowned { .. }) {
                    // That it has failed has to be known when it comes back.
                    return self.mark(&mut table);
                }
            }
            return Ok(());
        }
        if !roster.has(member) {
            // Another device has taken its place.
            return Ok(());
        }
        if let DeviceError::Unowned { .. } = error {
            return Self::is_not_ours(&mut table, error);
        }
        if table.superblock.is_none() || !roster.is_whole_without(&[member.index]) {
            if !table.failed.iter().any(|(i, _)| *i == member.index) {
                table.failed.push((member.index, error.to_string()));
            }
            return Err(error);
        }
        self.unmarked.store(true, SeqCst);
        member.stand(Standing::Absent as u8);
        table.why.push((member.index, format!("it failed: {error}")));
        self.mark(&mut table)
    }

    /// A write was refused since another host has the volume, or it cannot be told in time: no device has failed, and no slot may be written.
    fn is_not_ours(table: &mut Table, error: DeviceError) -> Result<(), DeviceError> {
        table.broken.get_or_insert_with(|| error.clone());
        Err(error)
    }

    /// The devices on which others are to see who has the volume: all that may be written to, those among them that miss something or
    /// join. Not one that was given up.
    pub fn shown_on(&self) -> Vec<Arc<dyn BlockDevice>> {
        let is_shown = |m: &&Arc<Member>| match broken(Break::JoinerUnshown) {
            true => m.is_active(),
            false => !m.is(Standing::Absent as u8) && !m.watch.is_given_up(),
        };
        self.roster().all().filter(is_shown).filter_map(|m| m.device.clone()).collect()
    }

    fn whose(&self, device: &Arc<dyn BlockDevice>) -> Option<Arc<Member>> {
        let is_it = |m: &&Arc<Member>| m.device.as_ref().is_some_and(|d| Arc::ptr_eq(d, device));
        self.roster().all().find(is_it).cloned()
    }

    /// Whether this device has what the volume is made of.
    pub fn is_needed(&self, device: &Arc<dyn BlockDevice>) -> bool {
        self.whose(device).is_some_and(|m| m.is_active())
    }

    /// A write to this device failed that nothing else depends on.
    ///
    /// # Errors
    /// The error itself, when something is on no other device.
    pub fn fails(&self, device: &Arc<dyn BlockDevice>, error: DeviceError) -> Result<(), DeviceError> {
        match self.whose(device) {
            // Nobody misses it.
            Some(m) if m.is(STALE) => {
                self.leave(device, &format!("it failed: {error}"));
                Ok(())
            }
            Some(m) => self.lose(&m, error),
            None => Ok(()),
        }
    }

    /// A device that misses something, or joins, is not to be written to any more.
    pub fn leave(&self, device: &Arc<dyn BlockDevice>, why: &str) {
        let Some(member) = self.whose(device).filter(|m| !m.is_active()) else { return };
        if self.roster().joining.as_ref().is_some_and(|j| Arc::ptr_eq(j, &member)) {
            return self.stop_joining(why);
        }
        member.stand(Standing::Absent as u8);
        self.table().why.push((member.index, why.to_owned()));
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
        let roster = self.roster();
        let expected = table.expected;
        while let Some(superblock) = &mut table.superblock {
            let number = superblock.table_generation() + 1;
            roster.tell_troubles(superblock);
            for (m, entry) in roster.members.iter().zip(&mut superblock.devices) {
                if entry.active && !m.is_active() && expected != Some(m.index) {
                    entry.stand(false, number);
                }
            }
            let Err((member, error)) = write_table(&roster, superblock) else { break };
            if let DeviceError::Unowned { .. } = error {
                return Self::is_not_ours(table, error);
            }
            // Another one fails: that has to be said, too.
            member.stand(Standing::Absent as u8);
            if !roster.is_whole_without(&[]) {
                table.broken = Some(error.clone());
                return Err(error);
            }
            table.why.push((member.index, format!("it failed: {error}")));
        }
        self.unmarked.store(false, SeqCst);
        Ok(())
    }

    /// Writes the slots of a root on all devices, without flushing. The table is the volume's own.
    pub fn write_slots(&self, superblock: &Superblock) -> Result<(), DeviceError> {
        if self.roster().solo().is_none() {
            self.settle()?;
        }
        let mut table = self.table();
        let mut superblock = superblock.clone();
        if let Some(last) = &table.superblock {
            superblock.devices.clone_from(&last.devices);
        }
        is_writable(&superblock)?;
        self.roster().tell_troubles(&mut superblock);
        table.superblock = Some(superblock.clone());
        // Under the lock of the table: who joins meanwhile takes its place before or after.
        let roster = self.roster();
        let mut tickets = Vec::new();
        let solo = roster.solo().is_some();
        for member in roster.active() {
            let slot = Superblock { device_index: member.index, ..superblock.clone() };
            let data = Arc::new(AlignedBuf::padded(&slot.encode()));
            let copies = if superblock.clean && broken(Break::OneSlotAtClose) { 1 } else { 2 };
            for block in slots_of(&superblock, member.index).into_iter().flatten().take(copies) {
                let offset = block * BLOCK_BYTES as u64;
                if let (true, Some(device)) = (solo, &member.device) {
                    device.write(offset, data.clone())?;
                    member.roots_completed.fetch_add(1, SeqCst);
                    continue;
                }
                tickets.push(self.send(member, Op::Write { offset, data: data.clone() }));
            }
        }
        let failed = self.wait_writes(tickets, |m| &m.roots_completed);
        // Not before: what is under way must never land on a slot that says more.
        drop(table);
        failed.into_iter().try_for_each(|(m, e)| self.lose(&m, e))
    }

    /// Waits for all of them, and counts them; those that failed.
    fn wait_writes(&self, sent: Vec<Sent>, counted: fn(&Member) -> &AtomicU64) -> Vec<(Arc<Member>, DeviceError)> {
        let mut failed = Vec::new();
        for one in sent {
            match one.wait(self.clock()) {
                (member, Ok(())) => drop(counted(&member).fetch_add(1, SeqCst)),
                (member, Err(e)) => failed.push((member, e)),
            }
        }
        failed
    }

    /// Tells the devices that a segment holds nothing of value.
    pub fn submit_discard(&self, segment: SegmentNo) -> Vec<Ticket> {
        let roster = self.roster();
        let shares = roster.layout.shares(segment).into_iter();
        let op = |place: Place, blocks: u64| Op::Discard {
            offset: place.block * BLOCK_BYTES as u64,
            bytes: blocks * BLOCK_BYTES as u64,
        };
        let there = |i: u16| roster.member(i).filter(|m| m.is_active());
        shares.filter_map(|(place, blocks)| Some(there(place.device)?.submit(op(place, blocks)))).collect()
    }
}

impl Roster {
    /// Has a root that is about to be written say what devices have done wrong.
    fn tell_troubles(&self, superblock: &mut Superblock) {
        if !broken(Break::TroubleUntold) {
            self.members.iter().zip(&mut superblock.troubles).for_each(|(m, told)| *told = m.trouble());
        }
    }
}

/// What no mount would take is not written.
fn is_writable(superblock: &Superblock) -> Result<(), DeviceError> {
    superblock
        .validate()
        .map_err(|_| DeviceError::Misuse("bands of a root lie over each other, or beyond a device"))?;
    match Superblock::decode(&superblock.encode()) {
        Err(_) if !broken(Break::CountersBelieved) => Err(DeviceError::Misuse("a root states what none can")),
        _ => Ok(()),
    }
}

/// Both copies of the slot on every active device, one durable before the other is touched.
fn write_table(roster: &Roster, superblock: &Superblock) -> Result<(), (Arc<Member>, DeviceError)> {
    for area in 0..2 {
        for member in roster.active() {
            write_slot(member, superblock, area).map_err(|e| (member.clone(), e))?;
        }
    }
    Ok(())
}

/// One copy of the slot on one device, durable.
fn write_slot(member: &Member, superblock: &Superblock, area: usize) -> Result<(), DeviceError> {
    let Some(device) = &member.device else { return Err(DeviceError::Missing) };
    let Some(block) = slots_of(superblock, member.index).map(|both| both[area]) else { return Ok(()) };
    let slot = Superblock { device_index: member.index, ..superblock.clone() };
    let data = Arc::new(AlignedBuf::padded(&slot.encode()));
    device.submit(Op::Write { offset: block * BLOCK_BYTES as u64, data }).wait()?;
    device.submit(Op::Flush).wait().map(drop)
}

/// The blocks of the two slots of a root on a device, where that has its length.
fn slots_of(superblock: &Superblock, index: u16) -> Option<[u64; 2]> {
    let blocks = superblock.devices.get(usize::from(index))?.blocks;
    (blocks >= 2 * superblock::AREA_BLOCKS).then(|| superblock::slot_blocks(superblock.generation, blocks))
}
