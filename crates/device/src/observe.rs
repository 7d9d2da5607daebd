//! A decorator that counts requests and, when asked, keeps a trace of them.
//!
//! Invariants
//! 1. Requests are counted when they are submitted, also those that fail.
//! 2. `write_flush` and `write_durable` count as one write and one flush and stay one call below.
//! 3. Without a trace the cost is two relaxed additions a request.

use crate::counters::{Counters, OpKind, Tally};
use crate::sync::lock;
use crate::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, Outcome, Ticket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One request in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// When it was submitted, from the start of the trace.
    pub at: Duration,
    /// What it was.
    pub kind: OpKind,
    /// Offset in bytes; 0 for a flush.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub bytes: u64,
}

/// A device whose requests are counted.
#[derive(Debug)]
pub struct Observed<D> {
    inner: D,
    observer: Observer,
}

/// Reads the counts and the trace of an [`Observed`] device from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Observer(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    tally: Tally,
    tracing: AtomicBool,
    trace: Mutex<Trace>,
}

#[derive(Debug, Default)]
struct Trace {
    started: Option<Instant>,
    events: Vec<TraceEvent>,
}

impl Observer {
    /// The counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.tally.counters()
    }

    /// Starts an empty trace.
    pub fn start_trace(&self) {
        *lock(&self.0.trace) = Trace { started: Some(Instant::now()), events: Vec::new() };
        self.0.tracing.store(true, Relaxed);
    }

    /// Ends the trace and hands it over.
    #[must_use]
    pub fn take_trace(&self) -> Vec<TraceEvent> {
        self.0.tracing.store(false, Relaxed);
        std::mem::take(&mut *lock(&self.0.trace)).events
    }

    fn note(&self, kind: OpKind, offset: u64, bytes: u64) {
        self.0.tally.add(kind, bytes);
        if !self.0.tracing.load(Relaxed) {
            return;
        }
        let mut trace = lock(&self.0.trace);
        if let Some(started) = trace.started {
            trace.events.push(TraceEvent { at: started.elapsed(), kind, offset, bytes });
        }
    }
}

impl<D: BlockDevice> Observed<D> {
    /// Counts the requests to `inner`.
    pub fn new(inner: D) -> Self {
        Self { inner, observer: Observer::default() }
    }

    /// The counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.observer.counters()
    }

    /// A handle that outlives the device.
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }
}

impl<D: BlockDevice> BlockDevice for Observed<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn remeasure(&self) -> Result<(), DeviceError> {
        self.inner.remeasure()
    }
    fn completed(&self) -> Option<u64> {
        self.inner.completed()
    }

    fn submit(&self, op: Op) -> Ticket {
        let (kind, offset, bytes) = op.outline();
        self.observer.note(kind, offset, bytes);
        self.inner.submit(op)
    }

    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.observer.note(OpKind::Read, offset, bytes as u64);
        self.inner.read(offset, bytes)
    }

    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.observer.note(OpKind::Write, offset, data.len() as u64);
        self.inner.write(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.observer.note(OpKind::Flush, 0, 0);
        self.inner.flush()
    }

    fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.observer.note(OpKind::Write, offset, data.len() as u64);
        self.observer.note(OpKind::Flush, 0, 0);
        self.inner.write_flush(offset, data)
    }

    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.observer.note(OpKind::Write, offset, data.len() as u64);
        self.observer.note(OpKind::Flush, 0, 0);
        self.inner.write_durable(offset, data)
    }
}
