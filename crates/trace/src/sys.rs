//! System calls that the standard library has no safe call for.
#![allow(unsafe_code)] // two system calls, each with a live local variable

/// The clock in which the kernel is asked to stamp events, in nanoseconds.
pub(crate) fn monotonic_nanos() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The effective user of this process.
pub(crate) fn euid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}
