//! A decorator that makes a device misbehave on request.
//!
//! Invariants
//! 1. Without a fault injected, a request costs one relaxed load more.
//! 2. A fault that fails or loses a request leaves the device below untouched.
//! 3. Requests are counted towards a fault from the moment it was injected.
//! 4. `submit` does not wait for a delay; waiting for the ticket does.

use crate::counters::OpKind;
use crate::sync::lock;
use crate::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, Outcome, Pending, Ticket};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// What a misplaced write is aligned to, and the length of what is bad until it is written, in bytes.
const BLOCK: u64 = 4096;

/// One way to misbehave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Requests of `kind` number `from` to `from + times - 1`, counted from 1, fail with EIO.
    Fail {
        /// Which requests count.
        kind: OpKind,
        /// The first to fail; 1 is the next one.
        from: u64,
        /// How many fail.
        times: u64,
    },
    /// Writes with these numbers, counted from 1, claim to succeed and are not done.
    LoseWrites {
        /// The first to be lost; 1 is the next one.
        from: u64,
        /// How many are lost.
        times: u64,
    },
    /// The write with this number, counted from 1, goes to another offset.
    MisdirectWrite {
        /// Its number; 1 is the next one.
        number: u64,
        /// Where it goes.
        to: u64,
    },
    /// The write with this number, counted from 1, goes onto the one before it.
    MisdirectOntoLast {
        /// Its number; 2 is the second from now on, and the first that has one before it.
        number: u64,
        /// The block of 4096 bytes of the one before at which it begins; beyond its end, from its beginning again.
        block: u64,
    },
    /// Reads of any of these bytes of the device fail with EIO, as those of a bad sector do.
    FailReads {
        /// Bytes of the device.
        range: Range<u64>,
    },
    /// Writes of any of these bytes of the device fail with EIO.
    FailWrites {
        /// Bytes of the device.
        range: Range<u64>,
    },
    /// Reads of the 4096 bytes at `at` fail with EIO until a write covers all of them, as those of a sector do that the device then
    /// puts another in the place of.
    BadUntilWritten {
        /// The first of these bytes of the device.
        at: u64,
    },
    /// Reads return the bytes of `range` combined with `mask` by exclusive or.
    FlipReads {
        /// Bytes of the device.
        range: Range<u64>,
        /// Bits to flip in each of them.
        mask: u8,
    },
    /// The read with this number, counted from 1, returns one byte combined with `mask` by exclusive or.
    FlipRead {
        /// Its number; 1 is the next one.
        number: u64,
        /// Which byte, counted from the beginning of the answer; beyond its end, from the beginning again.
        byte: u64,
        /// Bits to flip in it.
        mask: u8,
        /// So does every later read of this byte.
        for_good: bool,
    },
    /// The read with this number, counted from 1, fails with EIO.
    FailRead {
        /// Its number; 1 is the next one.
        number: u64,
        /// Which 4096 bytes of it are bad; beyond its end, counted from its beginning again.
        block: u64,
        /// So does every later read of these bytes.
        for_good: bool,
    },
    /// Every request takes at least this long.
    Delay(Duration),
}

/// A device that can be made to misbehave.
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    faults: Faults,
}

/// Injects faults into a [`Faulty`] device from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    active: AtomicBool,
    plan: Mutex<Plan>,
    fired: AtomicU64,
}

#[derive(Debug, Default)]
struct Plan {
    off: bool,
    /// The bytes that the read asked for which a [`Fault::FlipRead`] hit.
    flipped: Option<Range<u64>>,
    /// The bytes of the last write.
    written: Option<Range<u64>>,
    /// Each fault with the requests that it has counted.
    faults: Vec<(Fault, u64)>,
}

/// What to do with one request.
#[derive(Default)]
struct Verdict {
    error: Option<DeviceError>,
    lose: bool,
    to: Option<u64>,
    delay: Duration,
    /// Bytes of the answer and the bits to flip in them.
    flips: Vec<(Range<usize>, u8)>,
}

impl Faults {
    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        lock(&self.0.plan).faults.push((fault, 0));
        self.0.active.store(true, Relaxed);
    }

    /// Switches the device off: every request fails with `Off`.
    pub fn switch_off(&self) {
        lock(&self.0.plan).off = true;
        self.0.active.store(true, Relaxed);
    }

    /// Takes all faults away and switches the device on.
    pub fn clear(&self) {
        *lock(&self.0.plan) = Plan::default();
        self.0.active.store(false, Relaxed);
    }

    /// Requests that failed, were lost, misdirected or altered so far.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.0.fired.load(Relaxed)
    }

    /// What the read that a [`Fault::FlipRead`] hit asked for.
    #[must_use]
    pub fn flipped(&self) -> Option<Range<u64>> {
        lock(&self.0.plan).flipped.clone()
    }

    fn is_idle(&self) -> bool {
        !self.0.active.load(Relaxed)
    }

    fn judge(&self, kind: OpKind, offset: u64, bytes: u64) -> Verdict {
        let verdict = lock(&self.0.plan).judge(kind, offset, bytes);
        if !verdict.is_harmless() {
            self.0.fired.fetch_add(1, Relaxed);
        }
        verdict
    }
}

impl Plan {
    fn judge(&mut self, kind: OpKind, offset: u64, bytes: u64) -> Verdict {
        let mut verdict = Verdict::default();
        if self.off {
            verdict.error = Some(DeviceError::Off);
            return verdict;
        }
        for (fault, seen) in &mut self.faults {
            let counts = match fault {
                Fault::Fail { kind: counted, .. } => kind == *counted,
                Fault::FailWrites { .. }
                | Fault::LoseWrites { .. }
                | Fault::MisdirectWrite { .. }
                | Fault::MisdirectOntoLast { .. } => kind == OpKind::Write,
                Fault::FailReads { .. }
                | Fault::BadUntilWritten { .. }
                | Fault::FlipReads { .. }
                | Fault::FailRead { .. }
                | Fault::FlipRead { .. } => kind == OpKind::Read,
                Fault::Delay(_) => true,
            };
            if !counts {
                continue;
            }
            *seen += 1;
            let within = |from: u64, times: u64| *seen >= from && *seen - from < times;
            match fault {
                Fault::Fail { from, times, .. } if within(*from, *times) => {
                    verdict.error = Some(DeviceError::Os(libc::EIO));
                }
                Fault::FailReads { range } | Fault::FailWrites { range }
                    if range.start < offset.saturating_add(bytes) && offset < range.end =>
                {
                    verdict.error = Some(DeviceError::Os(libc::EIO));
                }
                Fault::BadUntilWritten { at } if *at < offset.saturating_add(bytes) && offset < *at + BLOCK => {
                    verdict.error = Some(DeviceError::Os(libc::EIO));
                }
                Fault::LoseWrites { from, times } => verdict.lose |= within(*from, *times),
                Fault::MisdirectWrite { number, to } if within(*number, 1) => {
                    verdict.to = Some(*to);
                }
                Fault::MisdirectOntoLast { number, block } if within(*number, 1) => {
                    let onto = |last: &Range<u64>| {
                        let blocks = ((last.end - last.start) / BLOCK).max(1);
                        last.start + *block % blocks * BLOCK
                    };
                    verdict.to = self.written.as_ref().map(onto);
                }
                Fault::FlipReads { range, mask } => {
                    let start = range.start.clamp(offset, offset.saturating_add(bytes)) - offset;
                    let end = range.end.clamp(offset, offset.saturating_add(bytes)) - offset;
                    if start < end {
                        verdict.flips.push((start as usize..end as usize, *mask));
                    }
                }
                Fault::FlipRead { number, byte, mask, for_good } if within(*number, 1) && bytes > 0 => {
                    let (at, mask) = (*byte % bytes, *mask);
                    verdict.flips.push((at as usize..at as usize + 1, mask));
                    self.flipped = Some(offset..offset + bytes);
                    if *for_good {
                        *fault = Fault::FlipReads { range: offset + at..offset + at + 1, mask };
                    }
                }
                Fault::FailRead { number, block, for_good } if within(*number, 1) => {
                    verdict.error = Some(DeviceError::Os(libc::EIO));
                    if *for_good {
                        let at = offset + *block % (bytes / BLOCK).max(1) * BLOCK;
                        *fault = Fault::FailReads { range: at..at + BLOCK };
                    }
                }
                Fault::Delay(delay) => verdict.delay = verdict.delay.max(*delay),
                Fault::Fail { .. }
                | Fault::FailReads { .. }
                | Fault::FailWrites { .. }
                | Fault::BadUntilWritten { .. }
                | Fault::MisdirectWrite { .. }
                | Fault::MisdirectOntoLast { .. }
                | Fault::FailRead { .. }
                | Fault::FlipRead { .. } => {}
            }
        }
        if kind == OpKind::Write {
            self.written = Some(offset..offset + bytes);
            if verdict.error.is_none() && !verdict.lose {
                let first = verdict.to.unwrap_or(offset);
                let covered = |at: u64| first <= at && at + BLOCK <= first + bytes;
                self.faults.retain(|(fault, _)| !matches!(fault, Fault::BadUntilWritten { at } if covered(*at)));
            }
        }
        verdict
    }
}

impl Verdict {
    /// Nothing but a delay.
    fn is_harmless(&self) -> bool {
        self.error.is_none() && !self.lose && self.to.is_none() && self.flips.is_empty()
    }
}

impl<D: BlockDevice> Faulty<D> {
    /// Passes requests on to `inner` until a fault is injected.
    pub fn new(inner: D) -> Self {
        Self { inner, faults: Faults::default() }
    }

    /// The handle to inject faults with.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn submit_with(&self, op: Op, verdict: Verdict) -> Ticket {
        let until = (!verdict.delay.is_zero()).then(|| Instant::now() + verdict.delay);
        let below = match (verdict.error, op) {
            (Some(error), _) => Ticket::done(Err(error)),
            (None, Op::Write { .. }) if verdict.lose => Ticket::done(Ok(AlignedBuf::zeroed(0))),
            (None, Op::Write { offset, data }) => {
                // Where the device would end, it lies further in front.
                let last = self.inner.geometry().bytes.saturating_sub(data.len() as u64);
                let offset = verdict.to.map_or(offset, |to| to.min(last));
                self.inner.submit(Op::Write { offset, data })
            }
            (None, op) => self.inner.submit(op),
        };
        if until.is_none() && verdict.flips.is_empty() {
            return below;
        }
        Ticket::new(Altered { below, until, flips: verdict.flips })
    }
}

impl<D: BlockDevice> BlockDevice for Faulty<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn completed(&self) -> Option<u64> {
        self.inner.completed()
    }

    fn submit(&self, op: Op) -> Ticket {
        if self.faults.is_idle() {
            return self.inner.submit(op);
        }
        let (kind, offset, bytes) = op.outline();
        let verdict = self.faults.judge(kind, offset, bytes);
        self.submit_with(op, verdict)
    }

    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        if self.faults.is_idle() {
            return self.inner.read(offset, bytes);
        }
        self.submit(Op::Read { offset, bytes }).wait()
    }

    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        if self.faults.is_idle() {
            return self.inner.write(offset, data);
        }
        self.submit(Op::Write { offset, data }).wait().map(drop)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.faults.is_idle() {
            return self.inner.flush();
        }
        self.submit(Op::Flush).wait().map(drop)
    }

    fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.write_in_one(offset, data, D::write_flush)
    }

    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.write_in_one(offset, data, D::write_durable)
    }
}

impl<D: BlockDevice> Faulty<D> {
    /// A write and a flush, or what counts as both: one call below unless a fault hits it. A failed write is not followed by a flush.
    fn write_in_one(
        &self,
        offset: u64,
        data: Arc<AlignedBuf>,
        below: impl FnOnce(&D, u64, Arc<AlignedBuf>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        if self.faults.is_idle() {
            return below(&self.inner, offset, data);
        }
        let write = self.faults.judge(OpKind::Write, offset, data.len() as u64);
        if write.error.is_some() {
            return self.submit_with(Op::Write { offset, data }, write).wait().map(drop);
        }
        let flush = self.faults.judge(OpKind::Flush, 0, 0);
        if write.is_harmless() && flush.is_harmless() {
            thread::sleep(write.delay + flush.delay);
            return below(&self.inner, offset, data);
        }
        self.submit_with(Op::Write { offset, data }, write).wait()?;
        self.submit_with(Op::Flush, flush).wait().map(drop)
    }
}

/// A request whose answer comes late or changed.
struct Altered {
    below: Ticket,
    until: Option<Instant>,
    flips: Vec<(Range<usize>, u8)>,
}

impl Pending for Altered {
    fn wait(self: Box<Self>) -> Outcome {
        let Self { below, until, flips } = *self;
        let outcome = below.wait();
        if let Some(until) = until {
            thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        let mut data = outcome?;
        for (range, mask) in flips {
            data[range].iter_mut().for_each(|byte| *byte ^= mask);
        }
        Ok(data)
    }

    fn is_done(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now()) && self.below.is_done()
    }

    fn wait_at_most(&self, time: Duration) -> bool {
        let left = self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        if left > time {
            thread::sleep(time);
            return false;
        }
        thread::sleep(left);
        self.below.wait_at_most(time - left)
    }
}
