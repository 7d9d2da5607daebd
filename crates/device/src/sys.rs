//! The system calls that the standard library does not offer.
//!
//! Invariants
//! 1. Every function takes a borrowed `File`, so the descriptor is open.
//! 2. EINTR is handled here; callers see other errors only.
#![allow(unsafe_code)] // a few system calls, each with plain integers or a local variable

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOR(0x12, 114, size_t)`; the `libc` crate does not carry it.
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
/// `_IO(0x12, 119)`.
const BLKDISCARD: libc::c_ulong = 0x1277;

fn retry(mut call: impl FnMut() -> libc::c_int) -> io::Result<libc::c_int> {
    loop {
        let n = call();
        if n >= 0 {
            return Ok(n);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Takes a lock on the open file without waiting; `WouldBlock` when somebody else holds it.
pub(crate) fn try_lock(file: &File, shared: bool) -> io::Result<()> {
    let kind = if shared { libc::LOCK_SH } else { libc::LOCK_EX };
    // SAFETY: flock takes two integers; the descriptor is open (invariant 1).
    retry(|| unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) }).map(drop)
}

/// Turns O_DIRECT off.
pub(crate) fn clear_direct(file: &File) -> io::Result<()> {
    // SAFETY: F_GETFL takes no argument.
    let flags = retry(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) })?;
    let flags = flags & !libc::O_DIRECT;
    // SAFETY: F_SETFL takes an integer.
    retry(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) }).map(drop)
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
    retry(|| unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) }).map(drop)
}

/// Gives the blocks of a range of a regular file back to the host.
pub(crate) fn punch_hole(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let (Ok(offset), Ok(bytes)) = (i64::try_from(offset), i64::try_from(bytes)) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: fallocate takes integers only.
    retry(|| unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset, bytes) }).map(drop)
}
