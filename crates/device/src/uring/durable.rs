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

use super::polling::{Plan, Polled, Polling};
use crate::DeviceError;
use crate::host::HostFile;
use crate::sync::lock;
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Pause before a system call that failed for want of memory is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// How exact timers are of a thread that polls.
const TIMER_SLACK_NANOS: u64 = 1_000;

pub(super) struct Durable {
    host: Arc<HostFile>,
    /// As many as ever wrote at once.
    idle: Mutex<Vec<OneRing>>,
    polling: Polling,
    /// Not to be tried, or not again.
    refused: AtomicBool,
}

impl Durable {
    pub(super) fn new(host: Arc<HostFile>) -> Self {
        // A file system below would flush all of the file for it.
        let refused = !host.is_block_device() || !host.is_direct();
        let polling = Polling::new(host.may_be_polled());
        Self { host, idle: Mutex::default(), polling, refused: AtomicBool::new(refused) }
    }

    /// Writes a checked range. `None` where the host does not do that, or did only a part of it.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Option<Result<(), DeviceError>> {
        if self.refused.load(Relaxed) || data.is_empty() || data.len() > super::TRANSFER_BYTES_MAX {
            return None;
        }
        let idle = lock(&self.idle).pop();
        let mut ring = idle.or_else(OneRing::new)?;
        debug_assert!(ring.uring.completion().is_empty(), "something was under way in an idle ring");
        let entry = opcode::Write::new(types::Fd(self.host.fd()), data.as_ptr(), data.len() as u32);
        let entry = entry.offset(offset).rw_flags(libc::RWF_DSYNC).build();
        let request = self.polling.begin(ring.polls);
        let performed = ring.perform(entry, request.plan(), || self.polling.met(&request));
        let outcome = performed.map(|(result, _)| Outcome::of(result, data.len()));
        let done = outcome == Some(Outcome::Durable);
        self.polling.end(request, performed.and_then(|(_, polled)| polled), done);
        // A ring that takes nothing goes, too.
        let outcome = outcome?;
        lock(&self.idle).push(ring);
        match outcome {
            Outcome::Durable => {
                self.host.note_completed();
                Some(Ok(()))
            }
            Outcome::NotThisTime => None,
            Outcome::Never => {
                self.refused.store(true, Relaxed);
                None
            }
            Outcome::Failed(errno) => Some(Err(DeviceError::Os(errno))),
        }
    }
}

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Durable,
    /// It was not begun, or only in part: written anew and flushed, nothing is lost.
    NotThisTime,
    /// The host does no such thing.
    Never,
    Failed(i32),
}

impl Outcome {
    /// Of bytes written, or an error number below zero.
    fn of(result: i32, wanted: usize) -> Self {
        match usize::try_from(result) {
            Ok(written) if written == wanted => return Self::Durable,
            Ok(_) => return Self::NotThisTime,
            Err(_) => {}
        }
        match -result {
            // Not begun, so no flush behind it has lost anything: a device that fails says EIO.
            libc::ECANCELED | libc::EAGAIN | libc::EINTR | libc::ENOMEM => Self::NotThisTime,
            libc::EINVAL | libc::EOPNOTSUPP => Self::Never,
            errno => Self::Failed(errno),
        }
    }
}

/// A ring for one request at a time.
struct OneRing {
    uring: IoUring,
    /// Whether its completions can be looked for without a system call.
    polls: bool,
    /// Requests so far: a completion says which one it is of.
    number: u64,
}

impl OneRing {
    fn new() -> Option<Self> {
        // Since Linux 5.19; with the flag a look tells that the kernel has a completion to hand over, and nobody is interrupted for it.
        let polling = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(1);
        let polls = polling.as_ref().is_ok_and(|ring| ring.params().is_feature_ext_arg());
        let uring = polling.or_else(|_| IoUring::new(1)).ok()?;
        Some(Self { uring, polls, number: 0 })
    }

    /// Submits a request and waits for it: its result, or an error number below zero, and what came of polling, which `met` ends.
    /// `None` where the kernel does not take it.
    fn perform(&mut self, entry: Entry, plan: Option<Plan>, met: impl Fn() -> bool) -> Option<(i32, Option<Polled>)> {
        self.number += 1;
        let entry = entry.user_data(self.number);
        let ring = &mut self.uring;
        // SAFETY: the caller keeps what the entry points to until this returns, which is when it has completed (invariant 1).
        let pushed = unsafe { ring.submission().push(&entry) };
        if pushed.is_err() {
            debug_assert!(false, "an idle ring has room");
            return None;
        }
        let polled = plan.and_then(|plan| poll(ring, plan, met));
        loop {
            if let Some(completion) = ring.completion().next() {
                if completion.user_data() == self.number {
                    return Some((completion.result(), polled));
                }
                // That of another request, which invariant 2 leaves none of, proves nothing; and its own comes.
                continue;
            }
            // After polling it takes what the kernel has to hand over.
            match ring.submit_and_wait(1) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted && ring.completion().is_empty() => {
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
}

/// Submits what is in the ring, and looks for its completion: that is there, or to be handed over, or has to be slept for. `None` where
/// it was not submitted, or failed to be: that shows when it is waited for.
fn poll(ring: &mut IoUring, plan: Plan, met: impl Fn() -> bool) -> Option<Polled> {
    if plan.sleep.is_zero() {
        ring.submit().ok()?;
    } else {
        let _exact = ExactTimers::new();
        let time = types::Timespec::from(plan.sleep);
        // That the time is over is no error of the request, which was submitted first.
        let _ = ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&time));
        if !ring.submission().is_empty() {
            return None;
        }
        if !ring.completion().is_empty() {
            return Some(Polled::Asleep);
        }
    }
    Some(plan.poll(|| !ring.completion().is_empty() || ring.submission().taskrun(), met))
}

/// Has timers of this thread end when they are due, as long as it lives: newer kernels give these waits the thread's slack, 50 us as a rule.
struct ExactTimers(Option<NonZero<u64>>);

impl ExactTimers {
    fn new() -> Self {
        let before = rustix::thread::current_timer_slack().ok().and_then(NonZero::new);
        // Where it is refused the end is missed more often.
        let _ = rustix::thread::set_current_timer_slack(NonZero::new(TIMER_SLACK_NANOS));
        Self(before)
    }
}

impl Drop for ExactTimers {
    fn drop(&mut self) {
        let _ = rustix::thread::set_current_timer_slack(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    const SECOND: Duration = Duration::from_secs(1);

    /// Reads what another thread writes after some time.
    fn read_late(ring: &mut OneRing, late: Duration, plan: Option<Plan>) -> Option<Polled> {
        let (mut sends, receives) = UnixStream::pair().unwrap();
        let mut bytes = [0; 8];
        let read = opcode::Read::new(types::Fd(receives.as_raw_fd()), bytes.as_mut_ptr(), 8).build();
        let sender = thread::spawn(move || {
            thread::sleep(late);
            sends.write_all(b"it is in").unwrap();
        });
        let (result, polled) = ring.perform(read, plan, || false).unwrap();
        sender.join().unwrap();
        assert_eq!((result, &bytes), (8, b"it is in"));
        assert!(ring.uring.completion().is_empty() && ring.uring.submission().is_empty());
        polled
    }

    #[test]
    fn however_it_is_waited_for_it_is_the_same() {
        let Some(mut ring) = OneRing::new().filter(|ring| ring.polls) else { return };
        let plan = |sleep, poll| Some(Plan { sleep, poll });
        // Long enough that a busy machine does not make it come early.
        let late = Duration::from_millis(100);
        assert_eq!(read_late(&mut ring, late, None), None);
        assert_eq!(read_late(&mut ring, late, plan(SECOND * 60, SECOND)), Some(Polled::Asleep));
        assert_eq!(read_late(&mut ring, late, plan(Duration::from_micros(1), Duration::ZERO)), Some(Polled::Missed));
        assert_eq!(read_late(&mut ring, late, plan(Duration::ZERO, Duration::ZERO)), Some(Polled::Missed));
        // Others may want the processor meanwhile.
        let seen = |polled| matches!(polled, Some(Polled::Seen | Polled::Contested(_)));
        assert!(seen(read_late(&mut ring, late, plan(Duration::ZERO, SECOND * 60))));
        assert!(seen(read_late(&mut ring, late, plan(Duration::from_micros(1), SECOND * 60))));
        // The next may come from another thread.
        let moved = thread::spawn(move || {
            let polled = read_late(&mut ring, late, plan(Duration::ZERO, SECOND * 60));
            (ring, polled)
        });
        let (mut ring, polled) = moved.join().unwrap();
        assert!(seen(polled));
        assert_eq!(read_late(&mut ring, late, None), None);
        assert_eq!(ring.number, 8);
    }

    #[test]
    fn a_completion_of_another_request_proves_nothing() {
        let Some(mut ring) = OneRing::new() else { return };
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        // Not given back: were the test to fail the kernel could still write to it.
        let bytes = Box::leak(Box::new([0; 8]));
        let mut read = || opcode::Read::new(types::Fd(file.as_raw_fd()), bytes.as_mut_ptr(), 8).build();
        for plan in [None, Some(Plan { sleep: Duration::ZERO, poll: SECOND * 60 })] {
            let another = opcode::Nop::new().build().user_data(ring.number + 2);
            // SAFETY: it points to nothing.
            unsafe { ring.uring.submission().push(&another) }.unwrap();
            ring.uring.submit_and_wait(1).unwrap();
            let (result, _) = ring.perform(read(), plan, || false).unwrap();
            assert_eq!(result, 8, "a Nop has 0");
        }
        assert_eq!(bytes[..4], *b"\x7fELF");
    }

    #[test]
    fn who_does_not_want_it_is_not_polled_for() {
        let path = std::env::temp_dir().join(format!("nenrin-polling-{}", std::process::id()));
        std::fs::write(&path, [0; 4096]).unwrap();
        let wanted = |polling| {
            let mode = crate::OpenMode { polling, exclusive: false, ..crate::OpenMode::OWNER };
            Durable::new(Arc::new(HostFile::open(&path, mode).unwrap())).polling.is_wanted()
        };
        let several = thread::available_parallelism().unwrap().get() > 1;
        assert_eq!([wanted(false), wanted(true)], [false, several]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn timers_are_exact_only_as_long_as_they_have_to_be() {
        let slack = || rustix::thread::current_timer_slack().unwrap();
        let before = slack();
        let exact = ExactTimers::new();
        assert_eq!(slack(), TIMER_SLACK_NANOS);
        drop(exact);
        assert_eq!(slack(), before);
    }

    #[test]
    fn only_what_says_so_is_durable() {
        assert_eq!(Outcome::of(8192, 8192), Outcome::Durable);
        for short in [0, 512, 4096, 8191] {
            assert_eq!(Outcome::of(short, 8192), Outcome::NotThisTime, "{short} bytes");
        }
        for errno in [libc::ENOMEM, libc::EAGAIN, libc::EINTR, libc::ECANCELED] {
            assert_eq!(Outcome::of(-errno, 8192), Outcome::NotThisTime, "error {errno}");
        }
        for errno in [libc::EOPNOTSUPP, libc::EINVAL] {
            assert_eq!(Outcome::of(-errno, 8192), Outcome::Never, "error {errno}");
        }
        // Whether such a write has lost something nobody knows: the volume is to fail.
        for errno in [libc::EIO, libc::ENOSPC, libc::ENODATA, libc::ETIMEDOUT, libc::EREMOTEIO, libc::EBADF] {
            assert_eq!(Outcome::of(-errno, 8192), Outcome::Failed(errno), "error {errno}");
        }
    }
}
