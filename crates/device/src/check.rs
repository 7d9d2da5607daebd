//! What every device asks of a request before it touches anything.
//!
//! Invariants
//! 1. A request that passes lies wholly inside the device, in whole blocks.
//! 2. A read past the end is `Short` (the device may have shrunk); a change
//!    past the end is `Misuse` (somebody computed a wrong address).

use crate::{BLOCK_BYTES, DeviceError, Op};

/// Judges `op` against a device of `device_bytes`.
pub(crate) fn check(op: &Op, device_bytes: u64, writable: bool) -> Result<(), DeviceError> {
    let (offset, bytes, reads) = match op {
        Op::Read { offset, bytes } => (*offset, *bytes as u64, true),
        Op::Write { offset, data } => (*offset, data.len() as u64, false),
        Op::Flush => return Ok(()),
        Op::Discard { offset, bytes } | Op::Zero { offset, bytes } => (*offset, *bytes, false),
    };
    if offset % BLOCK_BYTES as u64 != 0 {
        return Err(DeviceError::Misuse("the offset is not a multiple of 4096"));
    }
    if bytes % BLOCK_BYTES as u64 != 0 {
        return Err(DeviceError::Misuse("the length is not a multiple of 4096"));
    }
    if !reads && !writable {
        return Err(DeviceError::ReadOnly);
    }
    match offset.checked_add(bytes) {
        Some(end) if end <= device_bytes => Ok(()),
        _ if reads => Err(DeviceError::Short),
        _ => Err(DeviceError::Misuse("the range ends past the end of the device")),
    }
}
