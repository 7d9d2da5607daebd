//! A file or block device of the host with plain pread, pwrite and fdatasync.
//!
//! Invariants
//! 1. `submit` hands the request to two worker threads, started when first
//!    needed, and never waits; the synchronous calls run on the caller's thread.
//! 2. Dropping the device finishes every submitted request, then frees the lock.

use crate::host::HostFile;
use crate::sync::{lock, wait, wait_at_most};
use crate::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, OpenMode, Outcome, Pending, Ticket};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Threads that run submitted requests.
const WORKERS: usize = 2;

/// A file or block device of the host.
#[derive(Debug)]
pub struct FileDevice {
    host: Arc<HostFile>,
    queue: Arc<Queue>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl FileDevice {
    /// Opens a regular file or block device; see [`OpenMode`] for locking.
    ///
    /// # Errors
    /// `Busy` or `Mounted` when it is taken, `NotADevice` for other kinds of
    /// path, `Os` for what the host reports.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self, DeviceError> {
        HostFile::open(path.as_ref(), mode).map(Self::over)
    }

    /// Makes a file that is not there, of no length and readable for its owner only, and opens it as [`OpenMode::OWNER`] does: nobody
    /// else has had it before. Who gives it a length says so by [`BlockDevice::remeasure`].
    ///
    /// # Errors
    /// `Busy` where somebody else was faster, whose it is then; `Os` for what the host reports.
    pub fn make(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        HostFile::make(path.as_ref()).map(Self::over)
    }

    fn over(host: HostFile) -> Self {
        Self { host: Arc::new(host), queue: Arc::default(), workers: Mutex::default() }
    }

    /// Whether requests go past the host's page cache (O_DIRECT).
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.host.is_direct()
    }

    pub(crate) fn host(&self) -> &Arc<HostFile> {
        &self.host
    }

    /// Starts the workers; false when the host gives no thread at all.
    fn has_workers(&self) -> bool {
        let mut workers = lock(&self.workers);
        while workers.len() < WORKERS {
            let (host, queue) = (Arc::clone(&self.host), Arc::clone(&self.queue));
            let name = "nenrin-device".to_owned();
            match thread::Builder::new().name(name).spawn(move || queue.work(&host)) {
                Ok(handle) => workers.push(handle),
                Err(_) => break,
            }
        }
        !workers.is_empty()
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        self.host.geometry()
    }

    fn remeasure(&self) -> Result<(), DeviceError> {
        self.host.remeasure()
    }

    fn completed(&self) -> Option<u64> {
        Some(self.host.completed())
    }

    fn submit(&self, op: Op) -> Ticket {
        if let Err(e) = self.host.check(&op) {
            return Ticket::done(Err(e));
        }
        if !self.has_workers() {
            return Ticket::done(self.host.perform(&op));
        }
        self.queue.push(op)
    }

    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.host.perform(&Op::Read { offset, bytes })
    }

    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.host.perform(&Op::Write { offset, data }).map(drop)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.host.perform(&Op::Flush).map(drop)
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        lock(&self.queue.jobs).closed = true;
        self.queue.arrived.notify_all();
        for worker in lock(&self.workers).drain(..) {
            // A worker does not panic; if it did, there is nothing left to wait for.
            let _ = worker.join();
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<(Op, Arc<Slot>)>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Slot {
    outcome: Mutex<Option<Outcome>>,
    filled: Condvar,
}

impl Queue {
    fn push(&self, op: Op) -> Ticket {
        let slot = Arc::new(Slot::default());
        lock(&self.jobs).waiting.push_back((op, Arc::clone(&slot)));
        self.arrived.notify_one();
        Ticket::new(Waiting(slot))
    }

    /// A worker's life: runs jobs until the queue is closed and empty.
    fn work(&self, host: &HostFile) {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some((op, slot)) = jobs.waiting.pop_front() {
                drop(jobs);
                let outcome = host.perform(&op);
                drop(op);
                *lock(&slot.outcome) = Some(outcome);
                slot.filled.notify_all();
                jobs = lock(&self.jobs);
            } else if jobs.closed {
                return;
            } else {
                jobs = wait(&self.arrived, jobs);
            }
        }
    }
}

struct Waiting(Arc<Slot>);

impl Pending for Waiting {
    fn wait(self: Box<Self>) -> Outcome {
        let mut outcome = lock(&self.0.outcome);
        loop {
            match outcome.take() {
                Some(done) => return done,
                None => outcome = wait(&self.0.filled, outcome),
            }
        }
    }

    fn is_done(&self) -> bool {
        lock(&self.0.outcome).is_some()
    }

    fn wait_at_most(&self, time: Duration) -> bool {
        wait_at_most(&self.0.filled, lock(&self.0.outcome), time, |outcome| outcome.is_none()).is_some()
    }
}
