//! Bringing a device up to date while the volume is in use: a member that missed something, or one that takes the
//! place of a member. Decision 0019 has the steps and the cases.
//!
//! Invariants
//! 1. A device that joins gets every write that is registered from [`Devices::begin_joining`] on. What was there
//!    before is copied, and a copy of something that was written meanwhile is made again.
//! 2. From before the flush with which it has everything until it has its place, each sync flushes it, too. It was flushed before
//!    that, so that no sync waits for all that was copied.
//! 3. The device whose place another takes gets every write until the roots say who has the place, and its own
//!    roots are there no longer, or it does not answer.
//! 4. Each write waits for its part on that device, and nothing else does; its failure fails nobody. Where it does not answer it is
//!    given up, and when somebody asks for that it is left.

use super::apart::Ending;
use super::layout::{Run, Runs};
use super::requests::bytes;
use super::roster::Roster;
use super::whole_rows::Cell;
use super::{Devices, ENTERING, Member, STALE, Standing, Table, is_writable, write_slot, write_table};
use crate::breaks::{Break, broken};
use crate::vouched::Vouched;
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Op, Ticket};
use nenrin_format::superblock::{DeviceEntry, UNIT_BLOCKS};
use nenrin_format::{Addr, BLOCK_BYTES, SegmentNo};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};

/// What came of copying some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// The device that joins has its part of them: so many blocks, of which so many could be read nowhere.
    Done { blocks: u32, unreadable: u32 },
    /// They are being written: later.
    Busy,
    /// The device that joins was a member before, and still has other blocks there: which of them are right is to be said by what summaries
    /// vouch for.
    Unlike,
    /// No device joins any more.
    Over,
}

impl Devices {
    /// Members that are there and miss something, but for those that are to leave.
    pub fn stale(&self) -> Vec<u16> {
        let roster = self.roster();
        let stale: Vec<u16> = roster.members.iter().filter(|m| m.is(STALE)).map(|m| m.index).collect();
        if stale.is_empty() {
            return stale;
        }
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let leaves = |i: &u16| shown.devices.get(usize::from(*i)).is_some_and(|e| e.removed || e.is_leaving());
        stale.into_iter().filter(|i| !leaves(i) || broken(Break::LeavingJoins)).collect()
    }

    /// How many devices have come to take part, or were about to, since the volume was opened. Who read this before they saw that none joins, and
    /// finds it unchanged when they see that all are active, had all of them before them all the time.
    pub fn joins(&self) -> u64 {
        self.joins.load(SeqCst)
    }

    /// The place of the device that joins, if one does.
    pub fn joining(&self) -> Option<u16> {
        self.roster().joining.as_ref().map(|j| j.index)
    }

    /// From now on a stale member gets what is written; or, in its place or that of any other member, `new` does.
    pub fn begin_joining(&self, index: u16, new: Option<Arc<dyn BlockDevice>>) {
        // What became of the one before is no news of this one.
        if !broken(Break::EndedBefore) {
            self.table().joining_ended = None;
        }
        let cleared = if new.is_none() { self.clear_stale_row_log(index) } else { Ok(()) };
        self.change_roster(|roster| {
            let joining = match new {
                Some(device) => Some(Member::new(index, Some(device), Standing::Joining as u8)),
                None => roster.member(index).filter(|m| m.is(STALE)).cloned(),
            };
            if let (None, Some(j)) = (&roster.joining, joining) {
                j.stand(Standing::Joining as u8);
                roster.joining = Some(j);
            }
        });
        self.rows.lock().copies_lost(index);
        if let Err(e) = cleared {
            self.stop_joining(&format!("it failed: {e}"));
        }
    }

    /// No device joins any more: a member stays absent, and one that was to take its place is of no use.
    pub fn stop_joining(&self, why: &str) {
        self.give_up_joining(&mut self.table(), why.to_owned());
    }

    pub(super) fn give_up_joining(&self, table: &mut Table, why: String) {
        self.change_roster(|roster| {
            let Some(j) = roster.joining.take() else { return };
            j.stand(Standing::Absent as u8);
            self.look_at(&j);
            table.joining_ended = Some(why.clone());
            if roster.has(&j) {
                table.why.push((j.index, why));
            }
        });
    }

    /// A device that joins in a place that the table has no more is given up; whether there was one.
    pub(super) fn give_up_unlisted(&self, table: &mut Table, index: u16) -> bool {
        let entry = table.superblock.as_ref().and_then(|s| s.devices.get(usize::from(index)));
        let unlisted = entry.is_none_or(|e| e.removed) && !broken(Break::LeavingJoins);
        if unlisted {
            self.give_up_joining(table, "its place was taken out of the volume".into());
        }
        unlisted
    }

    /// Why the last device that was to join did not.
    pub fn joining_ended(&self) -> Option<String> {
        self.table().joining_ended.clone()
    }

    /// Blocks to copy at once of a segment: about 1 MiB for the device that joins.
    pub fn copy_blocks(&self, segment: SegmentNo) -> u32 {
        self.layout().row_blocks(segment).saturating_mul(COPY_UNITS).max(1)
    }

    /// Blocks that one of its devices has of a segment, about.
    pub fn share_blocks(&self, segment: SegmentNo) -> u64 {
        let layout = self.layout();
        let rows = layout.row_blocks(segment) / nenrin_format::superblock::UNIT_BLOCKS;
        u64::from(layout.segment_blocks / rows.max(1)).max(1)
    }

    /// Whether the others have all that this device has.
    pub fn can_spare(&self, index: u16) -> bool {
        self.roster().is_whole_without(&[index])
    }

    /// Whether this device has a part of a segment.
    pub fn has_part(&self, index: u16, segment: SegmentNo) -> bool {
        self.layout().devices_of(segment).contains(&index)
    }

    /// Copies what the device that joins is to have of these blocks. Of one that was a member before only what is unlike is written, by what
    /// is `vouched` for in their segment.
    ///
    /// # Errors
    /// What keeps the volume from going on; never a failure of that device alone.
    pub fn copy(
        self: &Arc<Self>,
        first: Addr,
        count: u32,
        vouched: Option<&[Vec<Vouched>; 2]>,
    ) -> Result<Copied, DeviceError> {
        let roster = self.roster();
        let Some(joiner) = roster.joining.clone() else { return Ok(Copied::Over) };
        let in_rows = roster.in_rows(first);
        if !self.open_window(first, count) && !broken(Break::WindowIgnored) {
            return Ok(Copied::Busy);
        }
        let copied = match in_rows {
            _ if roster.has(&joiner) && !broken(Break::JoinUnjudged) => {
                self.copy_unlike(&roster, &joiner, (first, count), vouched)
            }
            true => self.copy_cells(&roster, &joiner, first, count).map(Some),
            false => {
                let runs = runs_on(&roster, joiner.index, first, count);
                self.copy_runs(&roster, &joiner, first, &runs).map(Some)
            }
        };
        let quiet = self.close_window() || broken(Break::WindowIgnored);
        match copied {
            Err(e) => {
                self.lose(&joiner, e)?;
                Ok(Copied::Over)
            }
            Ok(_) if !quiet => Ok(Copied::Busy),
            Ok(None) => Ok(Copied::Unlike),
            Ok(Some((blocks, unreadable))) => Ok(Copied::Done { blocks, unreadable }),
        }
    }

    /// Copies what lies in rows: how many blocks, and those that could be read nowhere.
    ///
    /// # Errors
    /// Those of the device that joins.
    fn copy_cells(
        &self,
        roster: &Arc<Roster>,
        joiner: &Arc<Member>,
        first: Addr,
        count: u32,
    ) -> Result<(u32, u32), DeviceError> {
        let cells = Self::cells_for(roster, joiner.index, first, count);
        let (mut unreadable, mut writes) = (0, Vec::new());
        let blocks = cells.len() as u32 * UNIT_BLOCKS;
        for Cell { block, data, lost } in cells {
            unreadable += lost;
            let op = Op::Write { offset: bytes(block), data: Arc::new(data) };
            writes.push(self.send(joiner, op));
        }
        match self.wait_writes(writes, |m| &m.completed).into_iter().next() {
            Some((_, e)) => Err(e),
            None => Ok((blocks, unreadable)),
        }
    }

    /// How many blocks were copied, and those that could be read nowhere.
    ///
    /// # Errors
    /// Those of the device that joins.
    fn copy_runs(
        &self,
        roster: &Arc<Roster>,
        joiner: &Arc<Member>,
        first: Addr,
        runs: &[Run],
    ) -> Result<(u32, u32), DeviceError> {
        let reads: Vec<Vec<Ticket>> = runs.iter().map(|run| Self::start_copy(roster, first, run)).collect();
        let (mut unreadable, mut writes) = (0, Vec::new());
        for (run, tickets) in runs.iter().zip(reads) {
            let parts: Result<Vec<AlignedBuf>, DeviceError> = tickets.into_iter().map(Ticket::wait).collect();
            let data = match parts {
                Ok(mut parts) => {
                    if let Some(m) = roster.member(run.device) {
                        m.patience.restore();
                    }
                    match parts.len() {
                        1 => parts.remove(0),
                        _ => AlignedBuf::gathered(bytes(run.blocks.into()) as usize, parts.iter().map(|p| &p[..])),
                    }
                }
                Err(e) => {
                    let (data, lost) = Self::copy_by_block(roster, first, run);
                    if lost == run.blocks && broken(Break::UnreadableEnds) {
                        return Err(e);
                    }
                    unreadable += lost;
                    data
                }
            };
            let op = Op::Write { offset: bytes(run.block), data: Arc::new(data) };
            writes.push(self.send(joiner, op));
        }
        match self.wait_writes(writes, |m| &m.completed).into_iter().next() {
            Some((_, e)) => Err(e),
            None => Ok((runs.iter().map(|r| r.blocks).sum(), unreadable)),
        }
    }

    /// Reads of what a run holds: from the device whose place it is about, or else from wherever it is.
    fn start_copy(roster: &Arc<Roster>, first: Addr, run: &Run) -> Vec<Ticket> {
        match roster.member(run.device).filter(|m| m.is_active()) {
            Some(m) => vec![m.submit(Op::Read { offset: bytes(run.block), bytes: bytes(run.blocks.into()) as usize })],
            None => {
                let spans = run.spans.iter();
                spans.map(|(from, n)| Self::submit_read_of(roster, first.add(*from), *n, None)).collect()
            }
        }
    }

    /// What of a run can be read, block by block, with zeros for the rest; how many are the rest.
    fn copy_by_block(roster: &Arc<Roster>, first: Addr, run: &Run) -> (AlignedBuf, u32) {
        let mut out = AlignedBuf::zeroed(run.blocks as usize * BLOCK_BYTES);
        let blocks = run.spans.iter().flat_map(|(from, n)| *from..*from + *n);
        let mut lost = 0;
        let own = roster.member(run.device).filter(|m| m.is_active() && !broken(Break::JoinReadsElsewhere));
        for ((to, block), place) in out.chunks_exact_mut(BLOCK_BYTES).zip(blocks).zip(run.block..) {
            // What is elsewhere may be rotten: it is asked for where this one cannot be read, and for nothing more, as long as this
            // one fails now and then only.
            let here = || own?.submit(Op::Read { offset: bytes(place), bytes: BLOCK_BYTES }).wait().ok();
            let elsewhere = || Self::submit_read_of(roster, first.add(block), 1, Some(run.device)).wait().ok();
            let given = own.map_or_else(elsewhere, |m| m.patience.first(here, elsewhere));
            match given {
                Some(buf) => to.copy_from_slice(&buf),
                None => lost += 1,
            }
        }
        (out, lost)
    }

    /// All that was copied may be in the cache of the device that joins: nobody waits for that, and for the flush with which it takes its
    /// place not long.
    ///
    /// # Errors
    /// What keeps the volume from going on.
    pub fn flush_joiner(&self) -> Result<(), DeviceError> {
        let Some(joiner) = self.roster().joining.clone() else { return Ok(()) };
        if broken(Break::EnteringAtOnce) || broken(Break::JoinUnflushed) {
            return Ok(());
        }
        joiner.submit(Op::Flush).wait().map_or_else(|e| self.lose(&joiner, e), |_| Ok(()))
    }

    /// From now on the device that joins is flushed as the others are: unless it was given up a moment ago, and then it stays so.
    fn let_enter(&self) -> Option<Arc<Member>> {
        let mut joiner = None;
        self.change_roster(|roster| {
            joiner = roster.joining.clone();
            if let Some(j) = &joiner {
                j.stand(ENTERING);
            }
        });
        joiner
    }

    /// Everything is copied: the device takes its place, under `uuid` if it takes another's. Whether it did.
    ///
    /// # Errors
    /// What keeps the volume from going on.
    pub fn end_joining(self: &Arc<Self>, uuid: [u8; 16]) -> Result<bool, DeviceError> {
        let Some(joiner) = self.let_enter() else { return Ok(false) };
        self.protect()?;
        let completed = joiner.completed.load(SeqCst);
        if !broken(Break::JoinUnflushed) {
            if let Err(e) = joiner.submit(Op::Flush).wait() {
                self.lose(&joiner, e)?;
                return Ok(false);
            }
        }
        joiner.covered.fetch_max(completed, SeqCst);
        let mut table = self.table();
        let roster = self.roster();
        // A sync may have found out that it failed.
        let joins = roster.joining.as_ref().is_some_and(|j| Arc::ptr_eq(j, &joiner));
        if !joins || table.superblock.is_none() {
            return Ok(false);
        }
        if self.give_up_unlisted(&mut table, joiner.index) {
            return Ok(false);
        }
        // Before it counts as active: who sees that sees this, too.
        if !broken(Break::JoinUncounted) {
            self.joins.fetch_add(1, SeqCst);
        }
        let failed = if roster.has(&joiner) {
            self.admit(&mut table, &joiner)
        } else {
            match self.replace(&mut table, &roster, &joiner, uuid) {
                Err(e) => {
                    self.take_back(&mut table, joiner.index, &e)?;
                    return Ok(false);
                }
                Ok(failed) => failed,
            }
        };
        drop(table);
        if let Err((member, error)) = failed {
            self.lose(&member, error)?;
        }
        Ok(true)
    }

    /// A member that missed something has it now. Its own slot comes last: whoever looks before that takes it for
    /// stale, and it is the only one that misses nothing by that.
    fn admit(&self, table: &mut Table, joiner: &Arc<Member>) -> Result<(), (Arc<Member>, DeviceError)> {
        let Some(superblock) = &mut table.superblock else { return Ok(()) };
        let number = superblock.table_generation() + 1;
        if let Some(entry) = superblock.devices.get_mut(usize::from(joiner.index)) {
            entry.stand(true, number);
        }
        let others = self.roster().without(joiner.index);
        joiner.stand(Standing::Active as u8);
        self.change_roster(|r| r.joining = None);
        write_table(&others, superblock)?;
        (0..2).try_for_each(|area| write_slot(joiner, superblock, area)).map_err(|e| (joiner.clone(), e))
    }

    /// A device takes the place of a member: first its own slots are durable, then those of the others, and only
    /// then is the member's root ended that says otherwise. Where that does not answer [`Devices::end_replaced`] waits for it. A failure of
    /// one of the others comes back inside.
    ///
    /// # Errors
    /// When the new device fails: nothing has changed then but, perhaps, its slots.
    fn replace(
        &self,
        table: &mut Table,
        roster: &Roster,
        joiner: &Arc<Member>,
        uuid: [u8; 16],
    ) -> Result<Result<(), (Arc<Member>, DeviceError)>, DeviceError> {
        let Some(mut superblock) = table.superblock.clone() else { return Err(DeviceError::Missing) };
        let old = roster.member(joiner.index).cloned();
        let number = superblock.table_generation() + 1;
        let Some(entry) = superblock.devices.get_mut(usize::from(joiner.index)) else {
            return Err(DeviceError::Missing);
        };
        let used = entry.blocks;
        // As much of it is used as of the old one, where it has that; resizing changes that.
        let most = joiner.device.as_ref().map_or(0, |d| d.geometry().bytes / BLOCK_BYTES as u64);
        let (blocks, target_blocks) = (used.min(most), entry.target_blocks.min(most));
        *entry = DeviceEntry { uuid, blocks, target_blocks, ..*entry };
        entry.stand(true, number);
        is_writable(&superblock)?;
        let mut old = old.filter(|m| m.device.is_some()).map(|m| Ending::of(m, used));
        if let (Some(old), true) = (&mut old, broken(Break::OldEndedEarly)) {
            old.go_on();
        }
        for area in 0..2 {
            write_slot(joiner, &superblock, area)?;
        }
        let written = write_table(&roster.without(joiner.index), &superblock);
        // Until its roots are ended, or it does not answer, it gets all that the new one gets.
        let left = old.as_ref().map(|old| old.member().clone());
        table.replaced.extend(old.and_then(|mut old| (!old.go_on()).then_some(old)));
        table.superblock = Some(superblock);
        table.why.retain(|(i, _)| *i != joiner.index);
        joiner.stand(Standing::Active as u8);
        self.change_roster(|r| {
            r.joining = None;
            if let Some(place) = r.members.get_mut(usize::from(joiner.index)) {
                *place = joiner.clone();
            }
        });
        // Who has asked it for something before waits on.
        left.iter().for_each(|old| self.look_at(old));
        Ok(written)
    }

    /// The new device failed in the last moment, and may hold a root that says it has the place: the members' table
    /// becomes newer than that one.
    fn take_back(&self, table: &mut Table, index: u16, error: &DeviceError) -> Result<(), DeviceError> {
        self.give_up_joining(table, format!("it failed: {error}"));
        if let Some(superblock) = &mut table.superblock {
            let number = superblock.table_generation() + 2;
            if let Some(entry) = superblock.devices.get_mut(usize::from(index)) {
                entry.member_generation = number;
            }
        }
        self.mark(table)
    }
}

/// What of these blocks lies on a device.
pub(super) fn runs_on(roster: &Roster, device: u16, first: Addr, count: u32) -> Vec<Run> {
    let mut runs = Runs::default();
    roster.layout.each_piece(first, count, |from, n, places| {
        places.iter().filter(|p| p.device == device).for_each(|p| runs.add(*p, from, n));
    });
    runs.0
}

/// Units of the device that joins in one piece of copying: 1 MiB.
const COPY_UNITS: u32 = 16;
