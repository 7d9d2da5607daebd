//! A device in memory.
//!
//! Invariants
//! 1. Every request has completed when `submit` returns.

use crate::check::check;
use crate::sync::lock;
use crate::{AlignedBuf, BLOCK_BYTES, BlockDevice, DeviceError, Geometry, Op, Outcome, Ticket};
use std::sync::{Arc, Mutex};

/// Bytes in memory behind the device trait.
#[derive(Debug)]
pub struct MemDevice {
    bytes: Mutex<Vec<u8>>,
    length: u64,
}

impl MemDevice {
    /// A device of `bytes` zeros, rounded down to whole blocks.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self::from_bytes(vec![0; bytes])
    }

    /// A device that holds `bytes`, cut to whole blocks.
    #[must_use]
    pub fn from_bytes(mut bytes: Vec<u8>) -> Self {
        bytes.truncate(bytes.len() - bytes.len() % BLOCK_BYTES);
        let length = bytes.len() as u64;
        Self { bytes: Mutex::new(bytes), length }
    }

    /// A copy of all bytes.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        lock(&self.bytes).clone()
    }

    fn perform(&self, op: &Op) -> Outcome {
        check(op, self.length, true)?;
        let mut all = lock(&self.bytes);
        match op {
            Op::Read { offset, bytes } => {
                let start = *offset as usize;
                let mut data = AlignedBuf::unset(*bytes);
                data.copy_from_slice(&all[start..start + bytes]);
                return Ok(data);
            }
            Op::Write { offset, data } => {
                let start = *offset as usize;
                all[start..start + data.len()].copy_from_slice(data);
            }
            Op::Flush => {}
            Op::Discard { offset, bytes } | Op::Zero { offset, bytes } => {
                all[*offset as usize..(offset + bytes) as usize].fill(0);
            }
        }
        Ok(AlignedBuf::zeroed(0))
    }
}

impl BlockDevice for MemDevice {
    fn geometry(&self) -> Geometry {
        let name = "memory".to_owned();
        Geometry { bytes: self.length, writable: true, discard: true, name, place: None }
    }

    fn submit(&self, op: Op) -> Ticket {
        Ticket::done(self.perform(&op))
    }

    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.perform(&Op::Read { offset, bytes })
    }

    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.perform(&Op::Write { offset, data }).map(drop)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
