//! Block devices behind one trait: submit, complete, flush, geometry.
//!
//! Invariants
//! 1. Offsets and lengths of reads and writes are multiples of 4096 bytes;
//!    buffers are 4096-aligned, so that O_DIRECT needs no copy.
//! 2. `submit` does not wait for what it submits. Where as much is under way as a queue takes, it waits
//!    for room there, for a tenth of a second at most. A completed write is *not* durable
//!    until a flush that was submitted after its completion has completed.
//! 3. Each ticket is waited for once. Dropping one unwaited is allowed: the
//!    request still runs and its buffer lives until then.

mod beneath;
mod buf;
mod check;
mod counters;
pub mod crash;
mod error;
mod fault;
mod file;
mod forward;
mod holder;
mod host;
mod mem;
mod observe;
mod pool;
mod prng;
mod sync;
mod sys;
mod uring;

pub use beneath::same_as;
pub use buf::{AlignedBuf, Filling};
pub use counters::{Counters, OpKind};
pub use crash::{CrashChoice, CrashDisk, CrashImage, Divisible, History, HistoryCursor, Image, Sequence, Window};
pub use error::DeviceError;
pub use fault::{Fault, Faults, Faulty};
pub use file::FileDevice;
pub use host::OpenMode;
pub use mem::MemDevice;
pub use observe::{Observed, Observer, TraceEvent};
pub use prng::Prng;
pub use uring::{UringDevice, make_best, open_best};

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Bytes in the smallest unit of I/O.
pub const BLOCK_BYTES: usize = 4096;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length in bytes, a multiple of [`BLOCK_BYTES`] (rounded down).
    pub bytes: u64,
    /// May be written.
    pub writable: bool,
    /// Understands [`Op::Discard`].
    pub discard: bool,
    /// A name for messages: the path, of one that is no text some of it.
    pub name: String,
    /// Which of the host it is, if it is one.
    pub place: Option<HostPlace>,
}

/// Which file or block device of the host one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlace {
    /// By which it was opened.
    pub path: PathBuf,
    /// Of what was opened, whatever is at the path by now.
    pub id: HostId,
}

/// What tells files and block devices of the host from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostId {
    /// A block device, by its number.
    Block(u64),
    /// A file, by the number of its file system and its own.
    File(u64, u64),
}

impl HostId {
    /// Of a file or block device.
    #[must_use]
    pub fn of(meta: &Metadata) -> Self {
        if meta.file_type().is_block_device() { Self::Block(meta.rdev()) } else { Self::File(meta.dev(), meta.ino()) }
    }
}

/// One request.
#[derive(Clone, Debug)]
pub enum Op {
    /// Read `bytes` at `offset`.
    Read {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        bytes: usize,
    },
    /// Write the whole buffer at `offset`.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// What to write. Shared, so that readers may use it while it is under way.
        data: Arc<AlignedBuf>,
    },
    /// Make everything that completed before durable.
    Flush,
    /// The range holds nothing of value any more.
    Discard {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Write zeros, allocating where the host allocates lazily.
    Zero {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
}

/// What came of a request: the bytes for a read, an empty buffer otherwise.
pub type Outcome = Result<AlignedBuf, DeviceError>;

/// A request under way.
#[must_use]
pub struct Ticket(Box<dyn Pending>);

/// The device's side of a [`Ticket`].
pub trait Pending: Send {
    /// Blocks until the request has completed.
    fn wait(self: Box<Self>) -> Outcome;
    /// Whether `wait` would return at once.
    fn is_done(&self) -> bool;
    /// Blocks until the request has completed, or for about so long at most; whether `wait` is what to call next. A device that
    /// cannot tell says so at once, and its `wait` takes as long as it takes.
    fn wait_at_most(&self, _time: Duration) -> bool {
        true
    }
}

impl Ticket {
    /// Wraps a device's own pending request.
    pub fn new(pending: impl Pending + 'static) -> Self {
        Self(Box::new(pending))
    }
    /// A request that has completed already.
    pub fn done(outcome: Outcome) -> Self {
        struct Done(Outcome);
        impl Pending for Done {
            fn wait(self: Box<Self>) -> Outcome {
                self.0
            }
            fn is_done(&self) -> bool {
                true
            }
        }
        Self::new(Done(outcome))
    }
    /// Blocks until the request has completed.
    ///
    /// # Errors
    /// What the device reported.
    pub fn wait(self) -> Outcome {
        self.0.wait()
    }
    /// Whether [`Ticket::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }
    /// Blocks until the request has completed, or for about so long at most: false when it has not, and asking again is better than
    /// [`Ticket::wait`] for who does not want to wait without end.
    #[must_use]
    pub fn wait_at_most(&self, time: Duration) -> bool {
        self.0.wait_at_most(time)
    }
}

/// A device of a volume.
pub trait BlockDevice: Send + Sync {
    /// Length and abilities.
    fn geometry(&self) -> Geometry;

    /// Looks how long the device is now. Requests under way are within what it was.
    ///
    /// # Errors
    /// What the host reported.
    fn remeasure(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Requests that have completed, as far as the device knows without being asked for each: whether it gets anything done is seen by
    /// that, whoever waits for what. `None` where it is not known.
    fn completed(&self) -> Option<u64> {
        None
    }

    /// Starts a request, and waits for room for it at most.
    fn submit(&self, op: Op) -> Ticket;

    /// Reads `bytes` at `offset`.
    ///
    /// # Errors
    /// What the device reported.
    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.submit(Op::Read { offset, bytes }).wait()
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// What the device reported.
    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.submit(Op::Write { offset, data }).wait().map(drop)
    }

    /// Makes everything that completed before durable.
    ///
    /// # Errors
    /// What the device reported. After a failed flush nothing may be assumed.
    fn flush(&self) -> Result<(), DeviceError> {
        self.submit(Op::Flush).wait().map(drop)
    }

    /// Writes, then flushes: the sync path, which a device may make one round trip.
    ///
    /// # Errors
    /// What the device reported for either.
    fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.write(offset, data)?;
        self.flush()
    }

    /// Writes so that these blocks are durable when it returns (FUA). Says nothing of what was written before: that needs a flush
    /// as ever. Where a device has nothing cheaper, it flushes.
    ///
    /// # Errors
    /// What the device reported. The blocks may then hold what they held, what was written, or a mixture.
    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.write_flush(offset, data)
    }

    /// Starts [`BlockDevice::write_durable`], where the device can; one that cannot has done it when this returns. Nobody but a simulator
    /// asks for it, which has others run meanwhile.
    fn submit_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Ticket {
        Ticket::done(self.write_durable(offset, data).map(|()| AlignedBuf::zeroed(0)))
    }
}
