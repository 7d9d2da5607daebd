//! The transport over io_uring (Linux 6.14): one system call takes a reply away and brings the next request, to a thread
//! on the CPU that asked. FORGET, INTERRUPT and INIT still come the classic way ([`crate::device`]), and notifications go there.
//!
//! Every CPU has a queue, and every queue so many entries, each with memory for one request and its reply. The kernel fills an
//! entry in the context of the thread that gave it, when that thread enters the kernel: who holds entries and waits for
//! something else holds up whoever's requests come to them. So a queue has two kinds of threads. Its keeper holds many
//! entries and never waits: it answers by itself what can be answered at once, and has workers do the rest. A worker holds
//! no entry while it serves, so that it may wait; when it has answered, it keeps that one entry and waits for what comes there.
//! A reply that another thread gives, such as that to a sync by whoever led its commit, goes through the keeper.
//!
//! Invariants
//! 1. A thread that may wait holds no entry: nothing can come to a thread that does not look.
//! 2. The kernel writes to an entry's memory from when it gets the entry until it gives it back. In between nobody
//!    here touches that memory, and it is not freed.
//! 3. Each entry is in one place: with the kernel, served, or answered and on its way to the keeper.

mod entry;
mod keeper;
mod leaders;
#[expect(unsafe_code, reason = "commands to the kernel that name memory")]
mod sys;
mod worker;

pub(crate) use keeper::Desk;
pub(crate) use leaders::Leaders;

use entry::Slot;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Entries of a queue, each with memory for the longest transfer, of which pages are there once used.
pub(crate) const DEPTH: u16 = 32;
/// So many requests, one after the other, and one client is alone.
const ALONE_FROM: usize = 32;

/// Whether rings can be set up here; whether the kernel has them for FUSE it says itself.
pub(crate) fn possible() -> bool {
    sys::Ring::new(2).is_ok() && possible_cpus().is_ok()
}

/// The queues of a connection, one for each CPU that there may ever be.
pub(crate) fn queues(mounted: OwnedFd, payload_bytes: usize) -> io::Result<Vec<Arc<Queue>>> {
    let mounted = Arc::new(File::from(mounted));
    let traffic = Arc::<Traffic>::default();
    let queue = |number| {
        Ok(Arc::new(Queue {
            mounted: mounted.clone(),
            number,
            slots: (0..DEPTH).map(|_| Slot::new(payload_bytes)).collect(),
            payload_bytes,
            inbox: Inbox::new()?,
            bench: Bench::default(),
            traffic: traffic.clone(),
        }))
    };
    (0..possible_cpus()?).map(queue).collect()
}

/// CPUs that there may ever be, also those that are not plugged in: the kernel waits until each has its queue.
fn possible_cpus() -> io::Result<u16> {
    let ranges = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    cpus_in(&ranges).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// How many are in a list such as `0-3,5`. Where numbers are left out, the kernel has queues for none beyond that count, and
/// takes what comes from such a CPU to the first.
fn cpus_in(ranges: &str) -> Option<u16> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    ranges.trim().split(',').try_fold(0u16, |sum, range| sum.checked_add(count(range)?))
}

/// The requests of the programs on one CPU.
pub(crate) struct Queue {
    mounted: Arc<File>,
    /// That of the CPU, if there is one of this number.
    number: u16,
    slots: Vec<Slot>,
    payload_bytes: usize,
    inbox: Inbox,
    bench: Bench,
    traffic: Arc<Traffic>,
}

impl Queue {
    fn device(&self) -> BorrowedFd<'_> {
        self.mounted.as_fd()
    }
}

/// Answered entries for the keeper.
struct Inbox {
    /// Numbers of entries, and of the requests.
    answered: Mutex<Vec<(u16, u64)>>,
    /// The keeper knows that it has to look.
    rung: AtomicBool,
    /// A worker got an entry back for good: the keeper may have none that says so.
    over: AtomicBool,
    bell: File,
}

impl Inbox {
    fn new() -> io::Result<Self> {
        let off = || AtomicBool::new(false);
        Ok(Self { answered: Mutex::default(), rung: off(), over: off(), bell: sys::bell()? })
    }
    fn post(&self, index: u16, unique: u64) {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).push((index, unique));
        self.ring();
    }
    /// No more requests will come.
    fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.ring();
    }
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // It fails only when the count is full, and then the bell is ringing.
            let _ = (&self.bell).write(&1u64.to_ne_bytes());
        }
    }
    /// What there is; whoever posts from now on rings again.
    fn take(&self, into: &mut Vec<(u16, u64)>) {
        self.rung.store(false, Ordering::Release);
        std::mem::swap(into, &mut *self.answered.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Where workers without an entry wait for one that has a request.
#[derive(Default)]
struct Bench {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<u16>,
    idle: usize,
    workers: usize,
    ended: bool,
}

impl Bench {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Gives an entry with a request to a worker. True when another worker is to be started, which is counted already. As
    /// each worker has one entry at most, there is an idle one when there are as many as entries.
    #[must_use]
    fn give(&self, index: u16) -> bool {
        let mut waiting = self.lock();
        waiting.requests.push_back(index);
        if waiting.requests.len() <= waiting.idle {
            drop(waiting);
            self.changed.notify_one();
            return false;
        }
        let more = waiting.workers < usize::from(DEPTH);
        waiting.workers += usize::from(more);
        more
    }
    /// The worker could not be started; a request that nobody else will serve.
    fn not_started(&self) -> Option<u16> {
        let mut waiting = self.lock();
        waiting.workers -= 1;
        // Who is at work may stay with his entry, and so never take another.
        if waiting.requests.len() > waiting.idle { waiting.requests.pop_back() } else { None }
    }
    /// The next for this worker; `None` at the end.
    fn take(&self) -> Option<u16> {
        let mut waiting = self.lock();
        loop {
            if let Some(index) = waiting.requests.pop_front() {
                return Some(index);
            }
            if waiting.ended {
                return None;
            }
            waiting.idle += 1;
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            waiting.idle -= 1;
        }
    }
    fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }
}

/// Whether requests come one after the other, from one client. Then who serves may lead its commit: nobody else waits.
#[derive(Default)]
struct Traffic {
    under_way: AtomicUsize,
    /// Requests that came, one after the other, when no other was under way.
    alone: AtomicUsize,
}

impl Traffic {
    fn begin(&self) {
        if self.under_way.fetch_add(1, Ordering::Relaxed) > 0 {
            self.alone.store(0, Ordering::Relaxed);
        } else {
            self.alone.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
    fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed) >= ALONE_FROM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_started_when_none_is_idle_and_all_end() {
        let bench = Bench::default();
        assert!(bench.give(3));
        assert_eq!(bench.take(), Some(3));
        assert!(bench.give(4), "the one there is may be busy");
        assert_eq!(bench.not_started(), Some(4), "who is at work may stay with his entry");
        assert!(bench.give(4));
        assert_eq!(bench.take(), Some(4));
        std::thread::scope(|scope| {
            let idle = scope.spawn(|| (bench.take(), bench.take()));
            while bench.lock().idle == 0 {
                std::thread::yield_now();
            }
            assert!(!bench.give(5));
            bench.end();
            assert_eq!(idle.join().unwrap(), (Some(5), None));
        });
        assert!(!bench.lock().requests.iter().any(|_| true));
    }

    #[test]
    fn a_request_that_no_thread_can_be_started_for_comes_back() {
        let bench = Bench::default();
        assert!(bench.give(7));
        assert_eq!(bench.not_started(), Some(7));
    }

    #[test]
    fn every_cpu_that_may_come_is_counted() {
        let counts = ["0\n", "0-1\n", "0-3,8-15", "0,2", "0-65534", "0-65535", "3-0", "x", ""].map(cpus_in);
        let want = [Some(1), Some(2), Some(12), Some(2), Some(65535), None, None, None, None];
        assert_eq!(counts, want);
    }

    #[test]
    fn a_number_without_a_cpu_leaves_a_thread_where_it_is() {
        let cpus = || std::thread::available_parallelism().unwrap();
        let thread = std::thread::spawn(move || {
            let before = cpus();
            sys::stay_on(1023);
            sys::stay_on(u16::MAX);
            (before, cpus())
        });
        let (before, after) = thread.join().unwrap();
        assert_eq!(before, after);
    }

    #[test]
    fn one_client_is_alone_until_another_comes() {
        let traffic = Traffic::default();
        for _ in 0..ALONE_FROM {
            assert!(!traffic.is_alone());
            traffic.begin();
            traffic.end();
        }
        assert!(traffic.is_alone());
        traffic.begin();
        traffic.begin();
        assert!(!traffic.is_alone());
    }

    #[test]
    fn the_keeper_is_rung_once_for_many_answers() {
        let inbox = Inbox::new().unwrap();
        inbox.post(1, 10);
        inbox.post(2, 20);
        let mut taken = Vec::new();
        inbox.take(&mut taken);
        assert_eq!(taken, [(1, 10), (2, 20)]);
        let mut rung = [0; 8];
        std::io::Read::read_exact(&mut &inbox.bell, &mut rung).unwrap();
        assert_eq!(u64::from_ne_bytes(rung), 1);
    }
}
