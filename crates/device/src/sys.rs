//! The system calls that the standard library does not offer.
//!
//! Invariants
//! 1. Every function takes a borrowed `File`, so the descriptor is open.
//! 2. EINTR is handled here; callers see other errors only.
#![allow(unsafe_code)] // two requests to block devices, each with a local variable

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::retry_on_intr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOR(0x12, 114, size_t)`; the `libc` crate does not carry it.
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
/// `_IO(0x12, 119)`.
const BLKDISCARD: libc::c_ulong = 0x1277;

fn retry(mut call: impl FnMut() -> libc::c_int) -> io::Result<()> {
    loop {
        if call() >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Takes a lock on the open file without waiting; `WouldBlock` when somebody else holds it.
pub(crate) fn try_lock(file: &File, shared: bool) -> io::Result<()> {
    let kind = if shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    Ok(retry_on_intr(|| rustix::fs::flock(file, kind))?)
}

/// Turns O_DIRECT off.
pub(crate) fn clear_direct(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)?)
}

/// Length of a block device in bytes.
pub(crate) fn block_device_bytes(file: &File) -> io::Result<u64> {
    let mut bytes = 0u64;
    // SAFETY: BLKGETSIZE64 stores one u64 at the address given, which is a live local.
    retry(|| unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64 as _, &raw mut bytes) })?;
    Ok(bytes)
}

/// Tells a block device that a range holds nothing of value.
pub(crate) fn block_device_discard(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let range = [offset, bytes];
    // SAFETY: BLKDISCARD reads two u64 at the address given, which is a live local.
    retry(|| unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) })
}

/// Gives the blocks of a range of a regular file back to the host.
pub(crate) fn punch_hole(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(retry_on_intr(|| rustix::fs::fallocate(file, mode, offset, bytes))?)
}
