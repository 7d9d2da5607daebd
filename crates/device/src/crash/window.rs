//! A part of a crash disk, or of an image of it, as a device of its own: so one history has several devices,
//! each with its own flush, and one cut hits all of them at the same moment.

use super::{CrashDisk, CrashImage};
use crate::check::check;
use crate::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, Ticket};
use std::ops::Range;
use std::sync::Arc;

/// What has parts that are devices of their own.
pub trait Divisible: BlockDevice {
    /// [`BlockDevice::submit`] for the part `range`, in bytes: a flush covers nothing else.
    fn submit_in(&self, op: Op, range: &Range<u64>) -> Ticket;
}

impl Divisible for CrashDisk {
    fn submit_in(&self, op: Op, range: &Range<u64>) -> Ticket {
        self.submit_within(op, range)
    }
}

impl Divisible for CrashImage {
    fn submit_in(&self, op: Op, _range: &Range<u64>) -> Ticket {
        self.submit(op)
    }
}

/// A part of a disk as a device.
#[derive(Debug)]
pub struct Window<D> {
    whole: Arc<D>,
    range: Range<u64>,
    name: String,
}

impl<D: Divisible> Window<D> {
    /// The bytes `range` of `whole`, in whole blocks.
    #[must_use]
    pub fn new(whole: Arc<D>, range: Range<u64>, name: String) -> Self {
        Self { whole, range, name }
    }
}

impl<D: Divisible> BlockDevice for Window<D> {
    fn geometry(&self) -> Geometry {
        let bytes = self.range.end - self.range.start;
        Geometry { bytes, writable: true, discard: true, name: self.name.clone(), place: None }
    }

    fn submit(&self, op: Op) -> Ticket {
        if let Err(e) = check(&op, self.range.end - self.range.start, true) {
            return Ticket::done(Err(e));
        }
        let start = self.range.start;
        let op = match op {
            Op::Read { offset, bytes } => Op::Read { offset: start + offset, bytes },
            Op::Write { offset, data } => Op::Write { offset: start + offset, data },
            Op::Flush => Op::Flush,
            Op::Discard { offset, bytes } => Op::Discard { offset: start + offset, bytes },
            Op::Zero { offset, bytes } => Op::Zero { offset: start + offset, bytes },
        };
        self.whole.submit_in(op, &self.range)
    }

    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.submit_durable(offset, data).wait().map(drop)
    }

    fn submit_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Ticket {
        match check(&Op::Write { offset, data: Arc::clone(&data) }, self.range.end - self.range.start, true) {
            Ok(()) => self.whole.submit_durable(self.range.start + offset, data),
            Err(e) => Ticket::done(Err(e)),
        }
    }
}
