//! Writes that are durable by themselves, as one request: RWF_DSYNC past the page cache of a block device, which the kernel makes a
//! write with FUA. Where the device has no FUA the block layer follows it with a flush by itself, without waking anybody between.
//!
//! Every writer has a ring of its own for the time: submitting and waiting are one system call, and nobody reaps for others.
//! With write(2) the kernel would flush once more behind such a write (`generic_write_sync`), asynchronously it does not.
//!
//! Why: see `cargo run --release -p nenrin-device --example write_flush`, and docs/decisions/0031-durable-writes.md.
//!
//! Invariants
//! 1. A buffer outlives the request that reads from it: nobody leaves before its completion was taken.
//! 2. A ring that lies idle has nothing under way.
#![allow(unsafe_code)] // a buffer lent to the kernel

use crate::DeviceError;
use crate::host::HostFile;
use crate::sync::lock;
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Pause before a system call that failed for want of memory is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Durable {
    host: Arc<HostFile>,
    /// As many as ever wrote at once.
    idle: Mutex<Vec<IoUring>>,
    /// Not to be tried, or not again.
    refused: AtomicBool,
}

impl Durable {
    pub(super) fn new(host: Arc<HostFile>) -> Self {
        // A file system below would flush all of the file for it.
        let refused = !host.is_block_device() || !host.is_direct();
        Self { host, idle: Mutex::default(), refused: AtomicBool::new(refused) }
    }

    /// Writes a checked range. `None` where the host does not do that, or did only a part of it.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Option<Result<(), DeviceError>> {
        if self.refused.load(Relaxed) || data.is_empty() || data.len() > super::TRANSFER_BYTES_MAX {
            return None;
        }
        let idle = lock(&self.idle).pop();
        let mut ring = idle.or_else(|| IoUring::new(1).ok())?;
        let entry = opcode::Write::new(types::Fd(self.host.fd()), data.as_ptr(), data.len() as u32);
        // A ring that takes nothing goes, too.
        let result = perform(&mut ring, &entry.offset(offset).rw_flags(libc::RWF_DSYNC).build())?;
        lock(&self.idle).push(ring);
        if result >= 0 {
            let whole = result as usize == data.len();
            return whole.then(|| {
                self.host.note_completed();
                Ok(())
            });
        }
        match -result {
            // The request was not begun, so no flush behind it has lost anything: a device that fails says EIO.
            libc::ECANCELED | libc::EAGAIN | libc::EINTR | libc::ENOMEM => None,
            libc::EINVAL | libc::EOPNOTSUPP => {
                self.refused.store(true, Relaxed);
                None
            }
            errno => Some(Err(DeviceError::Os(errno))),
        }
    }
}

/// Submits a request and waits for it: its result, or an error number below zero. `None` where the kernel does not take it.
fn perform(ring: &mut IoUring, entry: &Entry) -> Option<i32> {
    // SAFETY: the caller keeps what the entry points to until this returns, which is when it has completed (invariant 1).
    let pushed = unsafe { ring.submission().push(entry) };
    if pushed.is_err() {
        debug_assert!(false, "an idle ring has room");
        return None;
    }
    loop {
        let entered = ring.submit_and_wait(1);
        if let Some(completion) = ring.completion().next() {
            return Some(completion.result());
        }
        match entered {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                if !ring.submission().is_empty() {
                    return None;
                }
                // It is under way, and has to be waited for.
                thread::sleep(RETRY_PAUSE);
            }
            _ => {}
        }
    }
}
