//! A file or block device of the host behind an io_uring.
//!
//! Submitted reads, writes and flushes go through the ring; the synchronous
//! calls run as plain system calls on the caller's thread.
//!
//! Why: 8 KiB written and made durable on a preallocated file (ext4, virtio
//! disk, O_DIRECT, 2 cores, Linux 6.18), medians of 4000 rounds with the
//! contenders taking turns, `pwrite` + `fdatasync` takes 37 us, a linked pair
//! in one `io_uring_enter` 41 us, write and flush submitted and waited for one
//! after the other 42 us; on a loop device 57, 59 and 61 us. The kernel hands
//! the ring's fsync to a worker thread, and that costs more than the system
//! call saved. A write of 4 KiB takes 20 us by `pwrite` and 23 us by the ring,
//! a read 21.6 and 22.3 us. 16 reads of 64 KiB in flight take 0.83 ms by the
//! ring and 1.03 ms by two threads. To repeat it:
//! `cargo run --release -p nenrin-device --example write_flush`
//!
//! What is durable by itself goes through rings of its own: `durable.rs`.
//!
//! Invariants
//! 1. Both ways lead to the same open file, so that a flush by either covers
//!    the writes completed by the other.

mod durable;
mod polling;
mod ring;

use crate::{AlignedBuf, BlockDevice, DeviceError, FileDevice, Geometry, Op, OpenMode};
use crate::{Outcome, Ticket};
use durable::Durable;
use ring::{Kept, Ring};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Longest single transfer the kernel takes, in whole blocks.
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// A file or block device of the host behind an io_uring.
pub struct UringDevice {
    ring: Arc<Ring>,
    durable: Durable,
    file: FileDevice,
}

impl UringDevice {
    /// Opens a regular file or block device; see [`OpenMode`] for locking.
    ///
    /// # Errors
    /// As [`FileDevice::open`]; `Os` when the host forbids io_uring.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self, DeviceError> {
        Self::over(FileDevice::open(path, mode)?).map_err(|(_, e)| e.into())
    }

    /// Puts a ring over an open file, or hands it back.
    fn over(file: FileDevice) -> Result<Self, (FileDevice, io::Error)> {
        match Ring::new(Arc::clone(file.host())) {
            Ok(ring) => Ok(Self { ring: Arc::new(ring), durable: Durable::new(Arc::clone(file.host())), file }),
            Err(e) => Err((file, e)),
        }
    }

    /// Whether requests go past the host's page cache (O_DIRECT).
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    /// Writes and flushes as one linked pair in one system call. Slower than
    /// [`BlockDevice::write_flush`] where it was measured (see there), and
    /// holds up `submit` meanwhile; kept so that it can be measured elsewhere,
    /// by `examples/write_flush.rs`: nothing else calls it.
    ///
    /// # Errors
    /// What the device reported for either; a failed write cancels the flush.
    pub fn write_flush_linked(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        let write = Op::Write { offset, data: Arc::clone(&data) };
        self.file.host().check(&write)?;
        if data.len() > TRANSFER_BYTES_MAX || data.is_empty() {
            return self.file.write_flush(offset, data);
        }
        self.ring.write_flush(offset, data)
    }
}

impl BlockDevice for UringDevice {
    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn remeasure(&self) -> Result<(), DeviceError> {
        self.file.remeasure()
    }

    fn completed(&self) -> Option<u64> {
        self.file.completed()
    }

    fn submit(&self, op: Op) -> Ticket {
        if let Err(e) = self.file.host().check(&op) {
            return Ticket::done(Err(e));
        }
        let kept = match op {
            Op::Read { offset, bytes } if (1..=TRANSFER_BYTES_MAX).contains(&bytes) => {
                Kept::Read { offset, buffer: AlignedBuf::unset(bytes) }
            }
            Op::Write { offset, data } if (1..=TRANSFER_BYTES_MAX).contains(&data.len()) => {
                Kept::Write { offset, data }
            }
            Op::Flush => Kept::Flush,
            // Rare, long, or without an io_uring operation: the worker threads.
            other => return self.file.submit(other),
        };
        // Where hundreds are under way and none completes, those that wait for nothing but their turn lie in the other queue.
        self.ring.start(kept).unwrap_or_else(|kept| self.file.submit(kept.into_op()))
    }

    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.file.read(offset, bytes)
    }

    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.file.write(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.file.flush()
    }

    fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.file.write_flush(offset, data)
    }

    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.file.host().check(&Op::Write { offset, data: Arc::clone(&data) })?;
        match self.durable.write(offset, &data) {
            Some(outcome) => outcome,
            None => self.file.write_flush(offset, data),
        }
    }
}

/// Opens with io_uring where the host allows it, else with plain calls.
///
/// # Errors
/// As [`FileDevice::open`].
pub fn open_best(path: impl AsRef<Path>, mode: OpenMode) -> Result<Box<dyn BlockDevice>, DeviceError> {
    match UringDevice::over(FileDevice::open(path, mode)?) {
        Ok(device) => Ok(Box::new(device)),
        Err((file, _)) => Ok(Box::new(file)),
    }
}
