//! Reads and writes over several devices: one request for each of them, all under way together, one wait.
//!
//! Invariants
//! 1. A request to a slow device holds up only who waits for it.
//! 2. Of several copies that one is read whose device has the fewest reads under way, so that a slow device gets few.
//! 3. A read that fails on one device is answered by another that has the same blocks.

use super::layout::{Place, Run, Runs};
use super::parity::Started;
use super::roster::{Entry, Roster};
use super::slow::Sent;
use super::{Covering, Devices, Member};
use crate::DeviceHealth;
use crate::breaks::{Break, broken};
use nenrin_device::{AlignedBuf, DeviceError, Op, Outcome, Pending, Ticket};
use nenrin_format::{Addr, BLOCK_BYTES};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Reads of blocks with two copies change between these after so many blocks: 1 MiB.
const TURN_BLOCKS: u32 = 256;

/// A read that takes longer is answered by other devices where they have it: much longer than one of a busy device takes.
const READ_PATIENCE: Duration = Duration::from_secs(2);

pub(super) const fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

impl Devices {
    /// What to read from which device: from `avoid` only what no other has.
    fn read_runs(roster: &Roster, addr: Addr, blocks: u32, avoid: Option<u16>) -> Result<Vec<Run>, DeviceError> {
        let turn = (addr.segment().0 as u32).wrapping_add(addr.block() / TURN_BLOCKS) as usize;
        let mut runs = Runs::default();
        let mut missing = false;
        // Once for the whole request: its pieces on one device are to stay together.
        let busy: Vec<u64> = roster.members.iter().map(|m| m.reading.load(SeqCst)).collect();
        roster.layout.each_piece(addr, blocks, |from, count, places| {
            let in_turn = (0..places.len()).map(|i| places[(i + turn) % places.len()]);
            let there = in_turn.filter(|p| roster.is_active(p.device));
            let keeps_waiting = |p: &Place| roster.member(p.device).is_some_and(|m| m.watch.keeps_waiting());
            let load =
                |p: &Place| (Some(p.device) == avoid, keeps_waiting(p), busy.get(usize::from(p.device)).copied());
            match there.min_by_key(load) {
                Some(p) => runs.add(p, from, count),
                None => missing = true,
            }
        });
        if missing { Err(DeviceError::Missing) } else { Ok(runs.0) }
    }

    /// Devices that a read of these blocks would use where any of several could be used:
    /// those to avoid when what was read is wrong.
    pub fn alternatives(&self, addr: Addr, blocks: u32) -> Vec<u16> {
        let roster = self.roster();
        if roster.in_rows(addr) {
            return Self::ways_around_rows(&roster, addr, blocks);
        }
        if roster.layout.copies_max() == 1 {
            return Vec::new();
        }
        let mut used = BTreeSet::new();
        roster.layout.each_piece(addr, blocks, |_, _, places| {
            let there: Vec<u16> = places.iter().map(|p| p.device).filter(|d| roster.is_active(*d)).collect();
            if there.len() > 1 {
                used.extend(there);
            }
        });
        used.into_iter().collect()
    }

    /// The device that these blocks come from where `avoid` is done without, if that is one.
    pub fn read_without(&self, addr: Addr, blocks: u32, avoid: u16) -> Option<DeviceHealth> {
        let roster = self.roster();
        let mut from = BTreeSet::new();
        roster.layout.each_piece(addr, blocks, |_, _, places| {
            from.extend(places.iter().map(|p| p.device).filter(|d| *d != avoid && roster.is_active(*d)));
        });
        drop(roster);
        let one = from.pop_first().filter(|_| from.is_empty())?;
        self.health().into_iter().find(|d| d.index == one)
    }

    /// Starts reading blocks; what `avoid` has is read elsewhere, where it can be.
    pub fn submit_read(&self, addr: Addr, blocks: u32, avoid: Option<u16>) -> Ticket {
        Self::submit_read_of(&self.readers(), addr, blocks, avoid)
    }

    /// The same, for who has counted it, or need not.
    pub(super) fn submit_read_of(roster: &Arc<Roster>, addr: Addr, blocks: u32, avoid: Option<u16>) -> Ticket {
        if let Some((member, place)) = roster.alone(addr) {
            return member.submit(Op::Read { offset: bytes(place.block), bytes: blocks as usize * BLOCK_BYTES });
        }
        if roster.in_rows(addr) {
            return match Self::read_rows(roster, addr, blocks, avoid, false) {
                Err(e) => Ticket::done(Err(e)),
                Ok(reading) => Ticket::new(reading),
            };
        }
        match Self::read_runs(roster, addr, blocks, avoid) {
            Err(e) => Ticket::done(Err(e)),
            Ok(runs) => {
                let parts =
                    runs.into_iter().map(|run| (submit_run(roster, &run), count_read(roster, &run), run)).collect();
                Ticket::new(Reading { roster: roster.clone(), addr, blocks, avoid, parts })
            }
        }
    }

    /// Reads blocks and waits.
    pub fn read(&self, addr: Addr, blocks: u32, avoid: Option<u16>) -> Outcome {
        let roster = self.readers();
        if let (Some(place), None) = (roster.layout.alone(addr), avoid) {
            let member = roster.member(place.device).filter(|m| m.is_active());
            let Some(device) = member.and_then(|m| m.device.as_ref()) else { return Err(DeviceError::Missing) };
            return device.read(bytes(place.block), blocks as usize * BLOCK_BYTES);
        }
        Self::submit_read_of(&roster, addr, blocks, avoid).wait()
    }

    /// What a run that failed was to bring, from other devices but `avoid`.
    fn read_elsewhere(roster: &Roster, addr: Addr, run: &Run, avoid: Option<u16>, error: DeviceError) -> Outcome {
        if let Some(m) = roster.member(run.device) {
            m.read_errors.fetch_add(1, SeqCst);
        }
        match Self::from_others(roster, addr, run, avoid) {
            Ok(Some(buf)) => Ok(buf),
            // Each may have what the other has not.
            _ if avoid.is_none() && Self::has_others(roster, addr, run) && !broken(Break::BlocksUnmixed) => {
                let elsewhere = |one: &Run| Self::from_others(roster, addr, one, None).ok().flatten();
                Self::block_by_block(roster, run, elsewhere).ok_or(error)
            }
            Ok(None) => Err(error),
            Err(e) => Err(e),
        }
    }

    /// Whether another device that is there has any of the blocks of a run that has several.
    fn has_others(roster: &Roster, addr: Addr, run: &Run) -> bool {
        let mut any = false;
        for (from, count) in &run.spans {
            let other = |p: &Place| p.device != run.device && roster.is_active(p.device);
            roster.layout.each_piece(addr.add(*from), *count, |_, _, places| any |= places.iter().any(other));
        }
        any && run.blocks > 1
    }

    /// What a run is to bring, each block from its device, as long as that is there, or else from `elsewhere`.
    pub(super) fn block_by_block(
        roster: &Roster,
        run: &Run,
        elsewhere: impl Fn(&Run) -> Option<AlignedBuf>,
    ) -> Option<AlignedBuf> {
        let mut out = AlignedBuf::unset(run.blocks as usize * BLOCK_BYTES);
        let blocks = run.spans.iter().flat_map(|(from, n)| *from..*from + *n);
        let patience = Patience::default();
        for ((to, from), block) in out.chunks_exact_mut(BLOCK_BYTES).zip(blocks).zip(run.block..) {
            let one = Run { device: run.device, block, blocks: 1, spans: vec![(from, 1)] };
            let own = || {
                roster.member(run.device).filter(|m| m.is_active())?;
                submit_run(roster, &one).wait().ok()
            };
            let buf = patience.first(own, || elsewhere(&one))?;
            to.copy_from_slice(&buf);
        }
        Some(out)
    }

    /// What a run is to bring, from other devices but `avoid`, where these have it: who looks at each copy must not be given the other
    /// in place of one that cannot be read.
    fn from_others(
        roster: &Roster,
        addr: Addr,
        run: &Run,
        avoid: Option<u16>,
    ) -> Result<Option<AlignedBuf>, DeviceError> {
        let mut out = AlignedBuf::unset(run.blocks as usize * BLOCK_BYTES);
        let mut at = 0;
        for (from, count) in &run.spans {
            let runs = Self::read_runs(roster, addr.add(*from), *count, Some(run.device))?;
            for r in runs {
                if r.device == run.device || Some(r.device) == avoid && !broken(Break::AvoidedReadAnyway) {
                    return Ok(None);
                }
                let buf = submit_run(roster, &r).wait()?;
                let mut taken = 0;
                for (start, n) in &r.spans {
                    let (to, bytes) = (at + *start as usize * BLOCK_BYTES, *n as usize * BLOCK_BYTES);
                    out[to..to + bytes].copy_from_slice(&buf[taken..taken + bytes]);
                    taken += bytes;
                }
            }
            at += *count as usize * BLOCK_BYTES;
        }
        Ok(Some(out))
    }

    /// What to write to which device: all copies that are there, at least one of each block, and what a device
    /// that joins will have. Whether one was left out.
    pub(super) fn write_runs(roster: &Roster, addr: Addr, blocks: u32) -> Result<(Vec<Part>, bool), DeviceError> {
        Self::write_runs_of(roster, addr, blocks, |_| true)
    }

    /// The same, of `which` copies alone, counted from 0.
    pub(super) fn write_runs_of(
        roster: &Roster,
        addr: Addr,
        blocks: u32,
        which: impl Fn(usize) -> bool,
    ) -> Result<(Vec<Part>, bool), DeviceError> {
        let (mut runs, mut joining) = (Runs::default(), Runs::default());
        let (mut missing, mut left_out) = (false, false);
        roster.layout.each_piece(addr, blocks, |from, count, places| {
            let mut any = false;
            let copies = if broken(Break::MirrorHalf) { 1 } else { places.len() };
            for (i, p) in places.iter().enumerate().take(copies) {
                let (member, joins) = roster.receivers(p.device);
                any |= member.is_some();
                left_out |= member.is_none();
                if member.is_some() && which(i) {
                    runs.add(*p, from, count);
                }
                if joins.is_some() && which(i) {
                    joining.add(*p, from, count);
                }
            }
            missing |= !any;
        });
        if missing {
            return Err(DeviceError::Missing);
        }
        let members = runs.0.into_iter().filter_map(|run| Some((roster.member(run.device)?.clone(), run)));
        let joiner = joining.0.into_iter().filter_map(|run| Some((roster.joining.clone()?, run)));
        Ok((members.chain(joiner).collect(), left_out))
    }

    /// Starts writing blocks, to all devices that have a copy.
    pub fn submit_write(self: &Arc<Self>, addr: Addr, data: Arc<AlignedBuf>) -> Ticket {
        let blocks = (data.len() / BLOCK_BYTES) as u32;
        let entry = self.enter(addr, blocks);
        if let Some((member, place)) = entry.roster.alone(addr) {
            let ticket = member.submit(Op::Write { offset: bytes(place.block), data });
            return Ticket::new(Alone { ticket, entry });
        }
        if entry.roster.in_rows(addr) {
            return match self.start_rows(&entry, addr, &data, false) {
                Err(e) => {
                    entry.end();
                    Ticket::done(Err(e))
                }
                Ok(started) => Ticket::new(WritingRows { devices: Arc::clone(self), started, entry }),
            };
        }
        match Self::write_runs(&entry.roster, addr, blocks) {
            Err(e) => {
                entry.end();
                Ticket::done(Err(e))
            }
            Ok((parts, left_out)) => self.start_writes(entry, &parts, left_out, &data),
        }
    }

    pub(super) fn start_writes(
        self: &Arc<Self>,
        entry: Entry,
        parts: &[Part],
        left_out: bool,
        data: &Arc<AlignedBuf>,
    ) -> Ticket {
        let start = |(member, run): &Part| {
            let op = Op::Write { offset: bytes(run.block), data: gathered(run, data) };
            self.send(member, op)
        };
        let parts = parts.iter().map(start).collect();
        Ticket::new(Writing { devices: Arc::clone(self), parts, left_out, entry })
    }

    /// Writes blocks and waits.
    pub fn write(self: &Arc<Self>, addr: Addr, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        let entry = self.enter(addr, (data.len() / BLOCK_BYTES) as u32);
        let roster = entry.roster.clone();
        if let Some((member, place)) = roster.alone(addr) {
            let written = member.write(bytes(place.block), data);
            entry.end_alone(&written);
            return written;
        }
        if roster.in_rows(addr) {
            return self.write_rows(entry, addr, &data, false).map(drop);
        }
        match Self::write_runs(&roster, addr, (data.len() / BLOCK_BYTES) as u32) {
            Err(e) => {
                entry.end();
                Err(e)
            }
            Ok((parts, left_out)) => self.start_writes(entry, &parts, left_out, &data).wait().map(drop),
        }
    }

    /// Writes blocks, and makes them durable with what they are to cover: one round trip where one device is concerned and can do that.
    pub fn write_flush(
        self: &Arc<Self>,
        addr: Addr,
        data: Arc<AlignedBuf>,
        covering: Covering,
    ) -> Result<(), DeviceError> {
        let entry = self.enter(addr, (data.len() / BLOCK_BYTES) as u32);
        let roster = entry.roster.clone();
        if let Some((member, place)) = roster.alone(addr) {
            let written = member.write_flush(bytes(place.block), data, covering);
            entry.end();
            return written;
        }
        if roster.in_rows(addr) {
            self.write_rows(entry, addr, &data, true)?;
            return self.flush();
        }
        let (parts, left_out) = match Self::write_runs(&roster, addr, (data.len() / BLOCK_BYTES) as u32) {
            Ok(parts) => parts,
            Err(e) => {
                entry.end();
                return Err(e);
            }
        };
        if let ([part], true) = (&parts[..], covering == Covering::Itself && !left_out && roster.may_leave_others()) {
            let written = self.write_flush_one(part, &data, covering);
            entry.end();
            written?;
            return self.settle();
        }
        let touched: BTreeSet<u16> = parts.iter().map(|(_, r)| r.device).collect();
        // The others have all they will have: their flushes need not wait for these writes.
        let others = self.start_flushes(&roster, broken(Break::CommitAwaitsRoots), |i| !touched.contains(&i));
        let written = match &parts[..] {
            [part] => {
                let written = self.write_flush_one(part, &data, Covering::All);
                entry.end();
                written
            }
            _ => self.start_writes(entry, &parts, left_out, &data).wait().map(drop),
        };
        self.end_flushes(others)?;
        written?;
        self.flush_segments()
    }

    /// Writes blocks that lie in rows, and waits. `copied`: they are to count from then on, or with a flush that follows at once; whether all
    /// of them have the copies that this takes.
    pub(super) fn write_rows(
        &self,
        entry: Entry,
        addr: Addr,
        data: &Arc<AlignedBuf>,
        copied: bool,
    ) -> Result<bool, DeviceError> {
        let written = self.start_rows(&entry, addr, data, copied).and_then(|started| {
            let all = copied && !started.2.lacking;
            self.end_rows(started).map(|()| all)
        });
        entry.end();
        written
    }

    fn write_flush_one(
        &self,
        (member, run): &Part,
        data: &Arc<AlignedBuf>,
        covering: Covering,
    ) -> Result<(), DeviceError> {
        let write = || member.write_flush(bytes(run.block), gathered(run, data), covering);
        let written = self.measured(member, run.blocks, write);
        written.or_else(|e| self.lose(member, e))
    }
}

/// How often a device was asked in vain for blocks one by one, of late: each failure may take it seconds.
#[derive(Default)]
pub(super) struct Patience(AtomicU32);

/// Each failure counts two, and what it gives takes one back.
const PATIENCE: u32 = 16;

impl Patience {
    /// Whether others are to be asked first.
    pub fn is_at_end(&self) -> bool {
        self.0.load(SeqCst) >= PATIENCE && !broken(Break::PatienceEndless)
    }

    /// What the device gives, whatever there was.
    pub fn probe<T>(&self, own: impl Fn() -> Option<T>) -> Option<T> {
        let (failed, given) = (self.0.load(SeqCst), own());
        let failed = if given.is_some() { failed.min(PATIENCE).saturating_sub(1) } else { failed + 2 };
        self.0.store(failed, SeqCst);
        given
    }

    /// What the device gives; at the end of its patience it is not asked.
    pub fn ask<T>(&self, own: impl Fn() -> Option<T>) -> Option<T> {
        if self.is_at_end() { None } else { self.probe(own) }
    }

    /// What the device itself gives, or else what comes from elsewhere; the other way round at the end of its patience.
    pub fn first<T>(&self, own: impl Fn() -> Option<T>, elsewhere: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.is_at_end() { elsewhere().or_else(own) } else { self.probe(own).or_else(elsewhere) }
    }

    /// It gave much at once.
    pub fn restore(&self) {
        self.0.store(0, SeqCst);
    }
}

/// What one device gets of a write.
pub(super) type Part = (Arc<Member>, Run);

pub(super) fn submit_run(roster: &Roster, run: &Run) -> Ticket {
    let op = Op::Read { offset: bytes(run.block), bytes: run.blocks as usize * BLOCK_BYTES };
    roster.member(run.device).map_or_else(|| Ticket::done(Err(DeviceError::Missing)), |m| m.submit(op))
}

/// What a read of a run brings; or `elsewhere` does, if the device takes long and that can be had.
pub(super) fn answered(
    roster: &Roster,
    run: &Run,
    ticket: Ticket,
    counted: Option<Counted>,
    elsewhere: impl FnOnce() -> Option<AlignedBuf>,
) -> Outcome {
    let leaves = || roster.member(run.device).filter(|m| m.watch.may_leave_behind());
    if !ticket.wait_at_most(READ_PATIENCE) {
        if let Some((member, buf)) = leaves().and_then(|m| Some((m, elsewhere()?))) {
            member.watch.leave_behind(ticket, counted);
            return Ok(buf);
        }
    }
    ticket.wait()
}

pub(super) fn count_read(roster: &Roster, run: &Run) -> Option<Counted> {
    roster.member(run.device).map(|m| Counted::new(&m.reading))
}

/// The bytes of a run, in the order of the device.
pub(super) fn gathered(run: &Run, data: &Arc<AlignedBuf>) -> Arc<AlignedBuf> {
    if run.is_whole((data.len() / BLOCK_BYTES) as u32) {
        return Arc::clone(data);
    }
    let mut out = AlignedBuf::unset(run.blocks as usize * BLOCK_BYTES);
    let mut at = 0;
    for (from, count) in &run.spans {
        let (start, bytes) = (*from as usize * BLOCK_BYTES, *count as usize * BLOCK_BYTES);
        out[at..at + bytes].copy_from_slice(&data[start..start + bytes]);
        at += bytes;
    }
    Arc::new(out)
}

/// A read under way on several devices, or on one that others can stand in for.
struct Reading {
    roster: Arc<Roster>,
    addr: Addr,
    blocks: u32,
    avoid: Option<u16>,
    parts: Vec<(Ticket, Option<Counted>, Run)>,
}

/// A read under way, counted until it is dropped.
pub(super) struct Counted(Arc<AtomicU64>);

impl Counted {
    fn new(counter: &Arc<AtomicU64>) -> Self {
        counter.fetch_add(1, SeqCst);
        Self(Arc::clone(counter))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Pending for Reading {
    fn wait(self: Box<Self>) -> Outcome {
        let Self { roster, addr, blocks, avoid, parts } = *self;
        let mut out: Option<AlignedBuf> = None;
        for (ticket, counted, run) in parts {
            let elsewhere = || Devices::from_others(&roster, addr, &run, avoid).ok().flatten();
            let answer = answered(&roster, &run, ticket, counted, elsewhere);
            let buf = answer.or_else(|e| Devices::read_elsewhere(&roster, addr, &run, avoid, e))?;
            if run.is_whole(blocks) {
                return Ok(buf);
            }
            let out = out.get_or_insert_with(|| AlignedBuf::unset(blocks as usize * BLOCK_BYTES));
            let mut at = 0;
            for (from, count) in &run.spans {
                let (start, bytes) = (*from as usize * BLOCK_BYTES, *count as usize * BLOCK_BYTES);
                out[start..start + bytes].copy_from_slice(&buf[at..at + bytes]);
                at += bytes;
            }
        }
        Ok(out.unwrap_or_else(|| AlignedBuf::zeroed(0)))
    }

    fn is_done(&self) -> bool {
        self.parts.iter().all(|(t, ..)| t.is_done())
    }
}

/// A write under way on the only device.
struct Alone {
    ticket: Ticket,
    entry: Entry,
}

impl Pending for Alone {
    fn wait(self: Box<Self>) -> Outcome {
        let outcome = self.ticket.wait().map(drop);
        self.entry.end_alone(&outcome);
        outcome.map(|()| AlignedBuf::zeroed(0))
    }

    fn is_done(&self) -> bool {
        self.ticket.is_done()
    }
}

/// A write under way of blocks that lie in rows.
struct WritingRows {
    devices: Arc<Devices>,
    started: Started,
    entry: Entry,
}

impl Pending for WritingRows {
    fn wait(self: Box<Self>) -> Outcome {
        let ended = self.devices.end_rows(self.started);
        self.entry.end();
        ended.map(|()| AlignedBuf::zeroed(0))
    }

    fn is_done(&self) -> bool {
        self.started.0.iter().all(|(_, t)| t.is_done())
    }
}

/// A write under way on several devices.
struct Writing {
    devices: Arc<Devices>,
    parts: Vec<Sent>,
    /// An absent device misses it.
    left_out: bool,
    entry: Entry,
}

impl Pending for Writing {
    fn wait(self: Box<Self>) -> Outcome {
        let failed = self.devices.wait_writes(self.parts, |m| &m.completed);
        let lost = failed.into_iter().try_for_each(|(member, e)| self.devices.lose(&member, e));
        // Not before: else what it failed to write is copied from it, and when another has its place nobody asks for it any more.
        self.entry.end();
        lost?;
        if self.left_out {
            self.devices.settle()?;
        }
        Ok(AlignedBuf::zeroed(0))
    }

    fn is_done(&self) -> bool {
        self.parts.iter().all(Sent::is_done)
    }
}
