//! Reads and writes over several devices: one request for each of them, all under way together, one wait.
//!
//! Invariants
//! 1. A request to a slow device holds up only who waits for it.
//! 2. Of several copies that one is read whose device has the fewest reads under way, so that a slow device gets few.
//! 3. A read that fails on one device is answered by another that has the same blocks.

use super::layout::{Place, Run, Runs};
use super::{Devices, Member};
use crate::breaks::{Break, broken};
use nenrin_device::{AlignedBuf, DeviceError, Op, Outcome, Pending, Ticket};
use nenrin_format::{Addr, BLOCK_BYTES};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Reads of blocks with two copies change between these after so many blocks: 1 MiB.
const TURN_BLOCKS: u32 = 256;

const fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

impl Devices {
    fn is_active(&self, device: u16) -> bool {
        self.members.get(usize::from(device)).is_some_and(Member::is_active)
    }

    /// What to read from which device: from `avoid` only what no other has.
    fn read_runs(&self, addr: Addr, blocks: u32, avoid: Option<u16>) -> Result<Vec<Run>, DeviceError> {
        let turn = (addr.segment().0 as u32).wrapping_add(addr.block() / TURN_BLOCKS) as usize;
        let mut runs = Runs::default();
        let mut missing = false;
        // Once for the whole request: its pieces on one device are to stay together.
        let busy: Vec<u64> = self.members.iter().map(|m| m.reading.load(SeqCst)).collect();
        self.layout.each_piece(addr, blocks, |from, count, places| {
            let in_turn = (0..places.len()).map(|i| places[(i + turn) % places.len()]);
            let there = in_turn.filter(|p| self.is_active(p.device));
            let load = |p: &Place| (Some(p.device) == avoid, busy.get(usize::from(p.device)).copied());
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
        if self.layout.copies_max() == 1 {
            return Vec::new();
        }
        let mut used = BTreeSet::new();
        self.layout.each_piece(addr, blocks, |_, _, places| {
            let there: Vec<u16> = places.iter().map(|p| p.device).filter(|d| self.is_active(*d)).collect();
            if there.len() > 1 {
                used.extend(there);
            }
        });
        used.into_iter().collect()
    }

    /// Starts reading blocks; what `avoid` has is read elsewhere, where it can be.
    pub fn submit_read(self: &Arc<Self>, addr: Addr, blocks: u32, avoid: Option<u16>) -> Ticket {
        if let (Some(device), Some(place)) = (self.solo(), self.layout.alone(addr)) {
            return device.submit(Op::Read { offset: bytes(place.block), bytes: blocks as usize * BLOCK_BYTES });
        }
        match self.read_runs(addr, blocks, avoid) {
            Err(e) => Ticket::done(Err(e)),
            Ok(runs) => {
                let parts = runs.into_iter().map(|run| (self.submit_run(&run), self.count_read(&run), run)).collect();
                Ticket::new(Reading { devices: Arc::clone(self), addr, blocks, parts })
            }
        }
    }

    fn count_read(&self, run: &Run) -> Option<Counted> {
        self.members.get(usize::from(run.device)).map(|m| Counted::new(&m.reading))
    }

    fn submit_run(&self, run: &Run) -> Ticket {
        let op = Op::Read { offset: bytes(run.block), bytes: run.blocks as usize * BLOCK_BYTES };
        self.device(run.device).map_or_else(|| Ticket::done(Err(DeviceError::Missing)), |d| d.submit(op))
    }

    /// Reads blocks and waits.
    pub fn read(self: &Arc<Self>, addr: Addr, blocks: u32, avoid: Option<u16>) -> Outcome {
        if let (Some((member, device, place)), None) = (self.alone(addr), avoid) {
            if !member.is_active() {
                return Err(DeviceError::Missing);
            }
            return device.read(bytes(place.block), blocks as usize * BLOCK_BYTES);
        }
        self.submit_read(addr, blocks, avoid).wait()
    }

    /// What a run that failed was to bring, from other devices.
    fn read_elsewhere(self: &Arc<Self>, addr: Addr, run: &Run, error: DeviceError) -> Outcome {
        if let Some(m) = self.members.get(usize::from(run.device)) {
            m.read_errors.fetch_add(1, SeqCst);
        }
        let mut out = AlignedBuf::unset(run.blocks as usize * BLOCK_BYTES);
        let mut at = 0;
        for (from, count) in &run.spans {
            let runs = self.read_runs(addr.add(*from), *count, Some(run.device))?;
            for r in runs {
                if r.device == run.device {
                    return Err(error);
                }
                let buf = self.submit_run(&r).wait()?;
                let mut taken = 0;
                for (start, n) in &r.spans {
                    let (to, bytes) = (at + *start as usize * BLOCK_BYTES, *n as usize * BLOCK_BYTES);
                    out[to..to + bytes].copy_from_slice(&buf[taken..taken + bytes]);
                    taken += bytes;
                }
            }
            at += *count as usize * BLOCK_BYTES;
        }
        Ok(out)
    }

    /// What to write to which device: all copies that are there, at least one of each block.
    /// Whether one was left out.
    fn write_runs(&self, addr: Addr, blocks: u32) -> Result<(Vec<Run>, bool), DeviceError> {
        let mut runs = Runs::default();
        let (mut missing, mut left_out) = (false, false);
        self.layout.each_piece(addr, blocks, |from, count, places| {
            let mut any = false;
            for p in places.iter().take(if broken(Break::MirrorHalf) { 1 } else { places.len() }) {
                if self.is_active(p.device) {
                    runs.add(*p, from, count);
                    any = true;
                } else {
                    left_out = true;
                }
            }
            missing |= !any;
        });
        if missing { Err(DeviceError::Missing) } else { Ok((runs.0, left_out)) }
    }

    /// Starts writing blocks, to all devices that have a copy.
    pub fn submit_write(self: &Arc<Self>, addr: Addr, data: Arc<AlignedBuf>) -> Ticket {
        if let (Some(device), Some(place)) = (self.solo(), self.layout.alone(addr)) {
            return device.submit(Op::Write { offset: bytes(place.block), data });
        }
        match self.write_runs(addr, (data.len() / BLOCK_BYTES) as u32) {
            Err(e) => Ticket::done(Err(e)),
            Ok((runs, left_out)) => self.start_writes(&runs, left_out, &data),
        }
    }

    fn start_writes(self: &Arc<Self>, runs: &[Run], left_out: bool, data: &Arc<AlignedBuf>) -> Ticket {
        let mut parts = Vec::with_capacity(runs.len());
        for run in runs {
            let op = Op::Write { offset: bytes(run.block), data: gathered(run, data) };
            let ticket = self.device(run.device).map(|d| d.submit(op));
            parts.push((run.device, ticket.unwrap_or_else(|| Ticket::done(Err(DeviceError::Missing)))));
        }
        Ticket::new(Writing { devices: Arc::clone(self), parts, left_out })
    }

    /// Writes blocks and waits.
    pub fn write(self: &Arc<Self>, addr: Addr, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        if let (Some(device), Some(place)) = (self.solo(), self.layout.alone(addr)) {
            return device.write(bytes(place.block), data);
        }
        self.submit_write(addr, data).wait().map(drop)
    }

    /// Writes blocks, then flushes what was written to any device: one round trip where one device is
    /// concerned and can do that.
    pub fn write_flush(self: &Arc<Self>, addr: Addr, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        if let (Some(device), Some(place)) = (self.solo(), self.layout.alone(addr)) {
            return device.write_flush(bytes(place.block), data);
        }
        let (runs, left_out) = self.write_runs(addr, (data.len() / BLOCK_BYTES) as u32)?;
        let touched: BTreeSet<u16> = runs.iter().map(|r| r.device).collect();
        // The others have all they will have: their flushes need not wait for these writes.
        let others = self.start_flushes(|i| !touched.contains(&i));
        let written = match &runs[..] {
            [run] => self.write_flush_one(run, &data),
            _ => self.start_writes(&runs, left_out, &data).wait().map(drop),
        };
        self.end_flushes(others)?;
        written?;
        self.flush()
    }

    fn write_flush_one(&self, run: &Run, data: &Arc<AlignedBuf>) -> Result<(), DeviceError> {
        let Some(device) = self.device(run.device) else { return Err(DeviceError::Missing) };
        let member = &self.members[usize::from(run.device)];
        let before = member.completed.load(SeqCst);
        if let Err(e) = device.write_flush(bytes(run.block), gathered(run, data)) {
            return self.lose(run.device, e);
        }
        let number = member.completed.fetch_add(1, SeqCst) + 1;
        // What completed beside it may have been too late for this flush.
        member.covered.fetch_max(if number == before + 1 { number } else { before }, SeqCst);
        Ok(())
    }
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
    devices: Arc<Devices>,
    addr: Addr,
    blocks: u32,
    parts: Vec<(Ticket, Option<Counted>, Run)>,
}

/// A read under way, counted until it is dropped.
struct Counted(Arc<AtomicU64>);

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
        let Self { devices, addr, blocks, parts } = *self;
        let mut out: Option<AlignedBuf> = None;
        for (ticket, counted, run) in parts {
            let answer = ticket.wait();
            drop(counted);
            let buf = answer.or_else(|e| devices.read_elsewhere(addr, &run, e))?;
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

/// A write under way on several devices.
struct Writing {
    devices: Arc<Devices>,
    parts: Vec<(u16, Ticket)>,
    /// An absent device misses it.
    left_out: bool,
}

impl Pending for Writing {
    fn wait(self: Box<Self>) -> Outcome {
        let failed = self.devices.wait_writes(self.parts);
        for (i, e) in failed {
            self.devices.lose(i, e)?;
        }
        if self.left_out {
            self.devices.settle()?;
        }
        Ok(AlignedBuf::zeroed(0))
    }

    fn is_done(&self) -> bool {
        self.parts.iter().all(|(_, t)| t.is_done())
    }
}
