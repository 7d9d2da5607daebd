//! A device that watches: no change may fall outside the slots and segments of
//! the volume, and no case may go on for ever.

use nenrin_device::{BlockDevice, CrashDisk, DeviceError, Geometry, Op, Ticket};
use nenrin_format::superblock::{AREA_BLOCKS, SLOT_BLOCK, SLOTS_PER_AREA};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = nenrin_device::BLOCK_BYTES as u64;

/// Requests after which a case counts as endless.
pub const REQUESTS_MAX: u64 = 200_000;

/// The watching device.
pub struct Guard {
    inner: Arc<CrashDisk>,
    requests: AtomicU64,
    changes: AtomicU64,
    wrong: Mutex<Option<String>>,
}

impl Guard {
    /// Watches over `inner`.
    #[must_use]
    pub fn new(inner: Arc<CrashDisk>) -> Self {
        Self { inner, requests: AtomicU64::new(0), changes: AtomicU64::new(0), wrong: Mutex::new(None) }
    }

    /// What was wrong, if anything.
    #[must_use]
    pub fn wrong(&self) -> Option<String> {
        if self.requests.load(Ordering::Relaxed) > REQUESTS_MAX {
            return Some(format!("more than {REQUESTS_MAX} requests: it does not end"));
        }
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Requests so far that change something.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn judge(&self, op: &Op) {
        let (offset, bytes) = match op {
            Op::Write { offset, data } => (*offset, data.len() as u64),
            Op::Discard { offset, bytes } | Op::Zero { offset, bytes } => (*offset, *bytes),
            Op::Read { .. } | Op::Flush => return,
        };
        self.changes.fetch_add(1, Ordering::Relaxed);
        let blocks = self.inner.geometry().bytes / BLOCK;
        let (first, end) = (offset / BLOCK, offset.saturating_add(bytes).div_ceil(BLOCK));
        let slots = |area: u64| first >= area + SLOT_BLOCK && end <= area + SLOT_BLOCK + SLOTS_PER_AREA;
        let inside = first >= AREA_BLOCKS && end <= blocks - AREA_BLOCKS;
        if !(inside || slots(0) || slots(blocks - AREA_BLOCKS)) {
            let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
            wrong.get_or_insert(format!("blocks {first}..{end} are changed, outside the volume"));
        }
    }
}

impl BlockDevice for Guard {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, op: Op) -> Ticket {
        if self.requests.fetch_add(1, Ordering::Relaxed) > REQUESTS_MAX {
            return Ticket::done(Err(DeviceError::Off));
        }
        self.judge(&op);
        self.inner.submit(op)
    }
}
