//! The system calls that the standard library does not offer.
//!
//! Invariants
//! 1. Every function takes a borrowed `File`, so the descriptor is open.
//! 2. EINTR is handled here; callers see other errors only.
#![allow(unsafe_code)] // requests to block devices and for locks, each with a local variable

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::retry_on_intr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOR(0x12, 114, size_t)`; the `libc` crate does not carry it.
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
/// `_IO(0x12, 119)`.
const BLKDISCARD: libc::c_ulong = 0x1277;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
/// `struct loop_info64`, in words.
const LOOP_INFO_WORDS: usize = 29;

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

/// The same of a range, for as long as the file is open. Other users of the file have to ask for ranges too.
pub(crate) fn try_lock_range(file: &File, from: u64, bytes: Option<u64>, shared: bool) -> io::Result<()> {
    let offset = |n: u64| libc::off_t::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    // SAFETY: flock is plain data for which zero is valid; no process is named, as such a lock wants it.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = if shared { libc::F_RDLCK } else { libc::F_WRLCK } as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = offset(from)?;
    lock.l_len = bytes.map_or(Ok(0), offset)?;
    // SAFETY: F_OFD_SETLK reads a flock at the address given, which is a live local.
    match retry(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }) {
        // POSIX allows both.
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
        other => other,
    }
}

/// Where a file lies, as far as its locks depend on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// Its two kinds of locks have nothing to do with each other.
    Local,
    /// Both are locks of ranges.
    Nfs,
    /// Who has a lock keeps all others from reading and writing.
    Smb,
}

pub(crate) fn host_of(file: &File) -> Host {
    match rustix::fs::fstatfs(file).map(|s| s.f_type as u32) {
        Ok(0x6969) => Host::Nfs,
        // CIFS, SMB, SMB2.
        Ok(0xff53_4d42 | 0x517b | 0xfe53_4d42) => Host::Smb,
        _ => Host::Local,
    }
}

/// Whether a file lies where somebody else answers for it, who may not: another machine, or a process.
pub(crate) fn is_answered_for(file: &File) -> bool {
    // FUSE, 9P, Ceph.
    const OTHERS: [u32; 3] = [0x6573_5546, 0x0102_1997, 0x00c3_6400];
    host_of(file) != Host::Local || rustix::fs::fstatfs(file).is_ok_and(|s| OTHERS.contains(&(s.f_type as u32)))
}

/// Device and inode of the file behind a loop device.
pub(crate) fn loop_file(device: &File) -> io::Result<(u64, u64)> {
    let mut info = [0u64; LOOP_INFO_WORDS];
    // SAFETY: LOOP_GET_STATUS64 stores a loop_info64, which has that length, at the address of a live local.
    retry(|| unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, info.as_mut_ptr()) })?;
    Ok((info[0], info[1]))
}

/// Turns O_DIRECT on, where the host can do that.
pub(crate) fn set_direct(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)?)
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
