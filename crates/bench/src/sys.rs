//! The system calls that the standard library does not offer.
//!
//! Invariants
//! 1. Descriptors come from a borrowed `File`, so they are open.
//! 2. Every pointer handed to the kernel is to a live local or to a C string.
#![allow(unsafe_code)] // a few system calls, each with plain integers or a local variable

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP only set the flag that [`interrupted`] reads.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores into an atomic, which is safe inside a signal handler.
        unsafe { libc::signal(signal, note_signal as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

/// Whether somebody asked the harness to stop.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the effective user is root.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Length of a clock tick in /proc/stat, as ticks per second.
pub fn ticks_per_second() -> f64 {
    // SAFETY: sysconf takes an integer.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as f64 } else { 100.0 }
}

/// A pipe: what is read from the first was written to the second.
pub fn pipe() -> io::Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both descriptors.
    checked(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: they were opened just now, and nobody else has them.
    Ok(unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) })
}

/// Writes out the file system that holds `file`.
pub fn sync_file_system(file: &File) -> io::Result<()> {
    // SAFETY: syncfs takes an open descriptor (invariant 1).
    checked(unsafe { libc::syncfs(file.as_raw_fd()) })
}

/// Asks the kernel to forget the cached pages of `file`.
pub fn forget_pages(file: &File) -> io::Result<()> {
    // SAFETY: posix_fadvise takes integers and an open descriptor (invariant 1).
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Sets the priority of this process, which those it starts inherit.
pub fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: setpriority takes integers; 0 is this process.
    checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) })
}

/// Sends a signal to a process the harness started.
pub fn signal(pid: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: kill takes two integers.
    checked(unsafe { libc::kill(pid, signal) })
}

/// Takes an exclusive lock without waiting; `WouldBlock` when another harness holds it.
pub fn try_lock(file: &File) -> io::Result<()> {
    // SAFETY: flock takes an open descriptor and an integer (invariant 1).
    checked(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) })
}

/// Bytes of a file system.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    /// All bytes.
    pub total: u64,
    /// Bytes nobody uses.
    pub free: u64,
    /// Bytes that may still be written.
    pub available: u64,
}

/// Space of the file system that holds `path`.
pub fn space(path: &Path) -> io::Result<Space> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: statvfs is plain integers, for which all zeroes is a value.
    let mut facts: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a live local (invariant 2).
    checked(unsafe { libc::statvfs(path.as_ptr(), &raw mut facts) })?;
    let unit = facts.f_frsize;
    Ok(Space {
        total: facts.f_blocks.saturating_mul(unit),
        free: facts.f_bfree.saturating_mul(unit),
        available: facts.f_bavail.saturating_mul(unit),
    })
}

/// Where the next written byte (`hole == false`) or the next hole is, at or after `offset`; None at the end.
pub fn seek_edge(file: &File, offset: u64, hole: bool) -> io::Result<Option<u64>> {
    let offset = libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: lseek takes an open descriptor and integers (invariant 1).
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, if hole { libc::SEEK_HOLE } else { libc::SEEK_DATA }) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) }
        }
    }
}
