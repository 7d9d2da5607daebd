//! The totals of a trace.

use super::{Histogram, Request};
use crate::device::Counters;
use crate::event::{Event, EventKind, Flags, Op};
use crate::file::Header;
use std::collections::{BTreeMap, HashMap};

/// Unit in which what was written is counted.
const BLOCK_BYTES: u64 = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES / crate::SECTOR_BYTES;

/// Requests and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Traffic {
    fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }
}

/// Of one operation.
#[derive(Clone, Debug, Default)]
pub struct OpTotals {
    /// All of them.
    pub all: Traffic,
    /// By length in bytes.
    pub by_size: BTreeMap<u64, u64>,
    /// That start where the last one of the operation ended, on the same device.
    pub sequential: Traffic,
    /// That the file system calls metadata.
    pub meta: Traffic,
    /// That somebody waits for.
    pub sync: Traffic,
    /// Durable when complete.
    pub fua: Traffic,
    /// That empty the cache first.
    pub preflush: Traffic,
    /// Nanoseconds from issue to completion.
    pub latency: Histogram,
    /// Completed with an error.
    pub failed: u64,
}

/// What one process issued.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Reads.
    pub read: Traffic,
    /// Writes.
    pub write: Traffic,
}

/// What was done from one mark to the next.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// When it began.
    pub begin: u64,
    /// Nanoseconds it lasted.
    pub nanos: u64,
    /// Reads.
    pub read: Traffic,
    /// Writes.
    pub write: Traffic,
    /// Flushes.
    pub flushes: u64,
}

/// Requests under way at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Depth {
    /// At most.
    pub max: u64,
    /// Mean while at least one was.
    pub mean: f64,
    /// Nanoseconds in which at least one was.
    pub busy: u64,
}

/// Totals of a trace.
#[derive(Debug, Default)]
pub struct Summary {
    ops: BTreeMap<Op, OpTotals>,
    processes: BTreeMap<String, Process>,
    phases: Vec<Phase>,
    /// Requests under way.
    pub depth: Depth,
    /// Completions of requests whose issue was not seen, or of parts.
    pub unmatched: u64,
    /// Requests that were issued and not completed.
    pub unfinished: u64,
    /// Different bytes written, in blocks of 4 KiB.
    pub distinct_bytes: u64,
    /// Lowest sector written, and the one after the highest.
    pub reach: Option<(u64, u64)>,
    /// What the device's counters must agree with, for each device.
    pub counted: Vec<Counters>,
    /// Writes counted at sector 0 that the device may have counted already.
    unsure: Vec<u64>,
    /// Whether sector 0 was written since the last empty end.
    at_zero: Vec<bool>,
    last_end: HashMap<(u8, Op), u64>,
    /// Blocks written: device and first block, and the one after the last. None of a device touch.
    written: BTreeMap<(u8, u64), u64>,
    under_way: u64,
    changed_at: u64,
    area: f64,
}

impl Summary {
    /// Of the devices of a trace.
    #[must_use]
    pub fn new(header: &Header) -> Self {
        let n = header.devices.len();
        Self { counted: vec![Counters::default(); n], unsure: vec![0; n], at_zero: vec![false; n], ..Self::default() }
    }
    /// What was counted of an operation.
    #[must_use]
    pub fn op(&self, op: Op) -> OpTotals {
        self.ops.get(&op).cloned().unwrap_or_default()
    }
    /// Operations that occurred.
    pub fn ops(&self) -> impl Iterator<Item = (Op, &OpTotals)> {
        self.ops.iter().map(|(op, t)| (*op, t))
    }
    /// Bytes that the device was given: writes, and zeros it writes by itself.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        [Op::Write, Op::Zeroes].iter().filter_map(|op| self.ops.get(op)).map(|t| t.all.bytes).sum()
    }
    /// Requests that write.
    #[must_use]
    pub fn write_requests(&self) -> u64 {
        [Op::Write, Op::Zeroes].iter().filter_map(|op| self.ops.get(op)).map(|t| t.all.requests).sum()
    }
    /// Times that the device's cache was emptied.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.ops.get(&Op::Flush).map_or(0, |t| t.all.requests)
    }
    /// Processes, the one that wrote most first.
    #[must_use]
    pub fn processes(&self) -> Vec<(&str, &Process)> {
        let mut all: Vec<_> = self.processes.iter().map(|(n, p)| (n.as_str(), p)).collect();
        all.sort_by_key(|(_, p)| std::cmp::Reverse((p.write.bytes, p.read.bytes, p.write.requests)));
        all
    }
    /// Phases between marks; none where there are no marks.
    #[must_use]
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    pub(super) fn mark(&mut self, nanos: u64, name: &str) {
        if let Some(last) = self.phases.last_mut() {
            last.nanos = nanos.saturating_sub(last.begin);
        }
        self.phases.push(Phase { name: name.to_owned(), begin: nanos, ..Phase::default() });
    }

    /// Counts what the order of events tells: queue depth, the device's own counters.
    pub(super) fn event(&mut self, e: &Event) {
        if e.is_empty_end() {
            self.empty_end(e);
            return;
        }
        if self.under_way > 0 {
            let nanos = e.nanos.saturating_sub(self.changed_at);
            self.depth.busy += nanos;
            self.area += nanos as f64 * self.under_way as f64;
        }
        self.changed_at = e.nanos;
        match e.kind {
            EventKind::Issue => {
                self.under_way += 1;
                self.depth.max = self.depth.max.max(self.under_way);
            }
            EventKind::Complete | EventKind::Requeue => self.under_way = self.under_way.saturating_sub(1),
        }
        let device = usize::from(e.device);
        if e.kind == EventKind::Complete && device < self.counted.len() {
            count(&mut self.counted[device], e);
            self.at_zero[device] |= e.op == Op::Write && e.sector == 0;
        }
    }

    /// The kernel counts such a write once: an empty one here, another where its
    /// data was complete. At sector 0 the two cannot always be told apart.
    fn empty_end(&mut self, e: &Event) {
        let device = usize::from(e.device);
        if e.sector == 0 && device < self.counted.len() {
            self.counted[device].writes += 1;
            self.unsure[device] += u64::from(std::mem::take(&mut self.at_zero[device]));
        }
    }

    /// Whether this many writes of a device agree with what was counted.
    #[must_use]
    pub fn agrees_on_writes(&self, device: usize, told: u64) -> bool {
        let (Some(c), Some(unsure)) = (self.counted.get(device), self.unsure.get(device)) else { return false };
        (c.writes.saturating_sub(*unsure)..=c.writes).contains(&told)
    }

    pub(super) fn request(&mut self, r: &Request, process: &str) {
        let e = &r.event;
        let bytes = e.bytes();
        let totals = self.ops.entry(e.op).or_default();
        totals.all.add(bytes);
        *totals.by_size.entry(bytes).or_default() += 1;
        let end = self.last_end.insert((e.device, e.op), e.end());
        if bytes > 0 && end == Some(e.sector) {
            totals.sequential.add(bytes);
        }
        for (flag, traffic) in [
            (Flags::META, &mut totals.meta),
            (Flags::SYNC, &mut totals.sync),
            (Flags::FUA, &mut totals.fua),
            (Flags::PREFLUSH, &mut totals.preflush),
        ] {
            if e.flags.has(flag) {
                traffic.add(bytes);
            }
        }
        totals.failed += u64::from(r.error != 0);
        match r.latency {
            Some(nanos) => totals.latency.add(nanos),
            None => self.unfinished += 1,
        }
        self.share(e, process);
    }

    fn share(&mut self, e: &Event, process: &str) {
        let bytes = e.bytes();
        let write = matches!(e.op, Op::Write | Op::Zeroes);
        if !self.processes.contains_key(process) {
            self.processes.insert(process.to_owned(), Process::default());
        }
        let process = self.processes.get_mut(process);
        let phase = self.phases.iter_mut().rev().find(|p| p.begin <= e.nanos);
        match e.op {
            Op::Read => {
                process.into_iter().for_each(|p| p.read.add(bytes));
                phase.into_iter().for_each(|p| p.read.add(bytes));
            }
            Op::Write | Op::Zeroes => {
                process.into_iter().for_each(|p| p.write.add(bytes));
                phase.into_iter().for_each(|p| p.write.add(bytes));
            }
            Op::Flush => phase.into_iter().for_each(|p| p.flushes += 1),
            Op::Discard | Op::Other => {}
        }
        if write && bytes > 0 {
            self.reach = Some(self.reach.map_or((e.sector, e.end()), |(a, b)| (a.min(e.sector), b.max(e.end()))));
            self.touch(e);
        }
    }

    /// Notes the blocks that a write touches: as ranges, since a trace may say any lengths.
    fn touch(&mut self, e: &Event) {
        let (begin, end) = (e.sector / BLOCK_SECTORS, e.end().saturating_sub(1) / BLOCK_SECTORS + 1);
        let (mut first, mut after, mut new) = (begin, end, end.saturating_sub(begin));
        while let Some((&(device, from), &to)) = self.written.range(..=(e.device, after)).next_back() {
            if device != e.device || to < first {
                break;
            }
            new -= to.min(end).saturating_sub(from.max(begin));
            (first, after) = (first.min(from), after.max(to));
            self.written.remove(&(device, from));
        }
        self.written.insert((e.device, first), after);
        self.distinct_bytes = self.distinct_bytes.saturating_add(new.saturating_mul(BLOCK_BYTES));
    }

    pub(super) fn finish(&mut self, nanos: u64, unmatched: u64) {
        if let Some(last) = self.phases.last_mut() {
            last.nanos = nanos.saturating_sub(last.begin);
        }
        self.unmatched = unmatched;
        self.depth.mean = if self.depth.busy == 0 { 0.0 } else { self.area / self.depth.busy as f64 };
        self.written = BTreeMap::new();
    }
}

/// As the kernel counts completions in `stat`: a flush is not among the writes.
fn count(c: &mut Counters, e: &Event) {
    match e.op {
        Op::Read => {
            c.reads += 1;
            c.read_bytes += e.bytes();
        }
        Op::Write | Op::Zeroes => {
            c.writes += 1;
            c.write_bytes += e.bytes();
        }
        Op::Discard => {
            c.discards += 1;
            c.discard_bytes += e.bytes();
        }
        Op::Flush => c.flushes += 1,
        Op::Other => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn write(device: u8, sector: u64, sectors: u32) -> Event {
        let (flags, kind, op) = (Flags::default(), EventKind::Issue, Op::Write);
        Event { kind, device, op, flags, sectors, sector, nanos: 0, pid: 0, name: 0, error: 0 }
    }

    #[test]
    fn blocks_count_once_however_writes_overlap() {
        let (mut summary, mut blocks, mut n) = (Summary::default(), HashSet::new(), 1u64);
        for _ in 0..2000 {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let e = write((n >> 62) as u8 & 1, n >> 32 & 0xfff, (n >> 50) as u32 % 90 + 1);
            summary.touch(&e);
            blocks.extend((e.sector / BLOCK_SECTORS..=(e.end() - 1) / BLOCK_SECTORS).map(|b| (e.device, b)));
            assert_eq!(summary.distinct_bytes, blocks.len() as u64 * BLOCK_BYTES);
        }
        let ranges: Vec<_> = summary.written.iter().collect();
        assert!(ranges.windows(2).all(|w| w[0].0.0 != w[1].0.0 || *w[0].1 < w[1].0.1), "{ranges:?}");
    }

    /// A file of a few hundred bytes may say so.
    #[test]
    fn lengths_that_no_device_has_take_no_memory() {
        let mut summary = Summary::default();
        for n in 0..1000 {
            summary.touch(&write(0, n << 40, u32::MAX));
        }
        summary.touch(&write(0, u64::MAX - 1, u32::MAX));
        assert_eq!(summary.written.len(), 1001);
    }
}
