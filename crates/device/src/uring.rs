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
//! 2. Nobody sleeps in a flush outside of the ring with requests of his own under way in it: they would not be done before that.

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
        if self.ring.owes_here() {
            return self.submit(Op::Flush).wait().map(drop);
        }
        self.file.flush()
    }

    fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        if self.ring.owes_here() {
            self.submit(Op::Write { offset, data }).wait()?;
            return self.submit(Op::Flush).wait().map(drop);
        }
        self.file.write_flush(offset, data)
    }

    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.file.host().check(&Op::Write { offset, data: Arc::clone(&data) })?;
        match self.durable.write(offset, &data) {
            Some(outcome) => outcome,
            None => self.write_flush(offset, data),
        }
    }
}

/// Opens with io_uring where the host allows it, else with plain calls.
///
/// # Errors
/// As [`FileDevice::open`].
pub fn open_best(path: impl AsRef<Path>, mode: OpenMode) -> Result<Box<dyn BlockDevice>, DeviceError> {
    FileDevice::open(path, mode).map(best)
}

/// The same of a file that is made, as [`FileDevice::make`] does.
///
/// # Errors
/// As that.
pub fn make_best(path: impl AsRef<Path>) -> Result<Box<dyn BlockDevice>, DeviceError> {
    FileDevice::make(path).map(best)
}

fn best(file: FileDevice) -> Box<dyn BlockDevice> {
    match UringDevice::over(file) {
        Ok(device) => Box::new(device),
        Err((file, _)) => Box::new(file),
    }
}

#[cfg(test)]
mod tests {
    use super::ring::tests::start_read_of;
    use super::*;
    use crate::OpenMode;
    use std::io::Write;
    use std::time::Duration;

    /// Who has requests under way flushes by the ring, where others need not wait for that; who has none makes the shorter call.
    #[test]
    fn a_flush_of_who_has_requests_under_way_goes_through_the_ring() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let Ok(device) = UringDevice::open(file.path(), OpenMode::OWNER) else { return };
        let data = Arc::new(AlignedBuf::padded(&[7; 4096]));
        let through_the_ring = || {
            let before = device.ring.started();
            device.flush().unwrap();
            device.write_flush(4096, data.clone()).unwrap();
            device.write_durable(8192, data.clone()).unwrap();
            device.ring.started() - before
        };
        assert_eq!(through_the_ring(), 0);
        let (never, mut writer) = std::io::pipe().unwrap();
        let under_way = start_read_of(&device.ring, &never);
        assert_eq!(through_the_ring(), 5, "its completion waits for a flush");
        std::thread::scope(|scope| {
            assert_eq!(scope.spawn(through_the_ring).join().unwrap(), 0, "it is not this one's")
        });
        writer.write_all(b"x").unwrap();
        assert!(under_way.wait_at_most(Duration::from_secs(20)));
        assert_eq!(through_the_ring(), 0);
        assert_eq!(device.read(8192, 4096).unwrap()[0], 7);
    }
}
