//! The ring: one io_uring, one queue, one lock.
//!
//! There is no thread of our own: whoever waits first takes the role of the
//! reaper, sleeps in the kernel, and hands completions to the others through
//! their slots, waking those alone whose slots they are. A single waiter
//! therefore never changes threads.
//!
//! Invariants
//! 1. Entries are pushed and submitted under the lock, a linked pair in one
//!    call: the kernel ends a chain at the end of a submission, so a pair that
//!    is submitted in halves would flush before it has written.
//! 2. While `reaping` is set only the reaper takes completions, or it could
//!    sleep for one that somebody else has taken already.
//! 3. A slot keeps its buffer until the completion has been taken, whether
//!    or not the ticket was dropped. Dropping the ring waits for all of them.
//! 4. A reaper that leaves wakes one of those who sleep, who takes the role.
//! 5. Who has requests under way sleeps in the ring for a flush, where the kernel can hand him their completions ([`Ring::owes_here`]).
//! 6. A request that came back short or cancelled (the kernel cancels those
//!    of a thread that exits), or that there was no memory for, is run again by [`HostFile::perform`]; of a flush only what was not begun.
#![allow(unsafe_code)] // shared ring queues and buffers lent to the kernel

use crate::host::HostFile;
use crate::sync::lock;
use crate::{AlignedBuf, DeviceError, Op, Outcome, Pending, Ticket};
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, Probe, opcode, types};
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

/// Entries of the submission queue; the kernel doubles it for completions.
const QUEUE_ENTRIES: u32 = 128;
/// Requests in flight at most, so that the completion queue never overflows.
const IN_FLIGHT_MAX: usize = 2 * QUEUE_ENTRIES as usize;
/// How long room for a request is waited for.
const ROOM_TIME: Duration = Duration::from_millis(100);
/// Threads of the kernel that requests of one of ours may take, where hosts may not answer them: as many as several silent ones can keep.
/// By itself the kernel has four for each processor, for all the devices together that the thread uses: who has more requests with a silent
/// host gets nothing done at another device either, and that flushes are slow there tells of the wrong one.
const WORKERS_MAX: u32 = 16 * IN_FLIGHT_MAX as u32;
/// Pause before a system call that failed for want of memory is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// A request with what the kernel needs to stay where it is.
pub(super) enum Kept {
    Read { offset: u64, buffer: AlignedBuf },
    Write { offset: u64, data: Arc<AlignedBuf> },
    Flush,
}

impl Kept {
    pub(super) fn into_op(self) -> Op {
        match self {
            Self::Read { offset, buffer } => Op::Read { offset, bytes: buffer.len() },
            Self::Write { offset, data } => Op::Write { offset, data },
            Self::Flush => Op::Flush,
        }
    }
}

struct Slot {
    kept: Kept,
    /// Who submitted it.
    by: ThreadId,
    /// What the kernel reported: a length, or an error number below zero.
    result: Option<i32>,
    /// The ticket was dropped; whoever takes the completion frees the slot.
    orphan: bool,
}

#[derive(Default)]
struct State {
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    in_flight: usize,
    /// Requests so far.
    started: u64,
    reaping: bool,
    /// Threads that sleep while another reaps: those who wait for one slot, with its index, and those who wait for anything.
    sleepers: Vec<(Option<usize>, Thread)>,
}

pub(super) struct Ring {
    uring: IoUring,
    state: Mutex<State>,
    host: Arc<HostFile>,
    /// Where the host may not answer a request is begun by a thread of the kernel: it would ask that host, and wait for the answer, in
    /// who submits (Linux 6.18 does where a file is on FUSE).
    flags: Flags,
}

type Guard<'a> = MutexGuard<'a, State>;

impl Ring {
    pub(super) fn new(host: Arc<HostFile>) -> io::Result<Self> {
        let may_be_silent = host.is_answered_for();
        Self::of(host, may_be_silent)
    }

    fn of(host: Arc<HostFile>, may_be_silent: bool) -> io::Result<Self> {
        let uring = IoUring::new(QUEUE_ENTRIES)?;
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE];
        if !needed.into_iter().all(|code| probe.is_supported(code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let state = Mutex::new(State::default());
        let flags = if may_be_silent { Flags::ASYNC } else { Flags::empty() };
        if may_be_silent {
            // Of whoever submits here. Before Linux 5.15 there are as many as the kernel has.
            let _ = uring.submitter().register_iowq_max_workers(&mut [WORKERS_MAX, 0]);
        }
        Ok(Self { uring, state, host, flags })
    }

    /// Starts a request; waits only when [`IN_FLIGHT_MAX`] are under way, and then not for long: a device that does not answer
    /// would hold up whoever submits, with whatever he holds. The request comes back where there is no room.
    pub(super) fn start(self: &Arc<Self>, kept: Kept) -> Result<Ticket, Kept> {
        let mut state = self.room(1, Some(Instant::now() + ROOM_TIME));
        if state.in_flight >= IN_FLIGHT_MAX {
            return Err(kept);
        }
        let entry = self.prepare(&mut state, kept);
        let slot = entry.1;
        self.push(&[entry.0]);
        self.submit_all(&state);
        drop(state);
        Ok(Ticket::new(Waiting { ring: Arc::clone(self), slot: Some(slot) }))
    }

    /// Whether something is under way that this thread submitted. The kernel hands the completions of a request to the thread that has
    /// submitted it: one that sleeps in fsync(2) takes none, and whoever waits for its request waits for that, too.
    pub(super) fn owes_here(&self) -> bool {
        let mut state = lock(&self.state);
        if state.in_flight > 0 && !state.reaping {
            self.drain(&mut state);
            state.wake(false);
        }
        let own = thread::current().id();
        state.in_flight > 0 && state.slots.iter().flatten().any(|slot| slot.result.is_none() && slot.by == own)
    }

    /// Requests so far.
    #[cfg(test)]
    pub(super) fn started(&self) -> u64 {
        lock(&self.state).started
    }

    /// Writes and flushes as a linked pair in one system call, which submits
    /// and waits with the lock held (invariant 1).
    pub(super) fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        let mut state = self.room(2, None);
        let (write, written) = self.prepare(&mut state, Kept::Write { offset, data });
        let (flush, flushed) = self.prepare(&mut state, Kept::Flush);
        self.push(&[write.flags(Flags::IO_LINK), flush]);
        if state.reaping {
            self.submit_all(&state);
        } else {
            // An error here leaves entries in the queue, and `submit_all` to deal with them.
            let _ = self.uring.submitter().submit_and_wait(2);
            self.submit_all(&state);
        }
        let both = |s: &State| s.is_done(written) && s.is_done(flushed);
        let mut state = self.reap_until(state, None, None, both);
        let pair = (state.take(written), state.take(flushed));
        drop(state);
        let ((write, written), (flush, flushed)) = (pair.0, pair.1);
        let whole = matches!(&write, Kept::Write { data, .. } if written as usize == data.len());
        self.finish(write, written)?;
        // A short write cancelled the flush; `finish` completed it by hand.
        let flushed = if whole { flushed } else { -libc::ECANCELED };
        self.finish(flush, flushed).map(drop)
    }

    /// The lock, with so few in flight that `wanted` more may be, or at that moment. Slots of
    /// tickets not yet waited for do not count, or their owner could wait for himself.
    fn room(&self, wanted: usize, until: Option<Instant>) -> Guard<'_> {
        let has_room = |s: &State| s.in_flight + wanted <= IN_FLIGHT_MAX;
        let state = lock(&self.state);
        if has_room(&state) {
            return state;
        }
        self.reap_until(state, None, until, has_room)
    }

    /// Puts a request into a slot and makes the entry that points to it.
    fn prepare(&self, state: &mut State, kept: Kept) -> (Entry, usize) {
        let index = state.free.pop().unwrap_or_else(|| {
            state.slots.push(None);
            state.slots.len() - 1
        });
        let by = thread::current().id();
        let slot = state.slots[index].insert(Slot { kept, by, result: None, orphan: false });
        state.in_flight += 1;
        state.started += 1;
        let fd = types::Fd(self.host.fd());
        let entry = match &mut slot.kept {
            Kept::Read { offset, buffer } => {
                let bytes = buffer.len() as u32;
                opcode::Read::new(fd, buffer.as_mut_ptr(), bytes).offset(*offset).build()
            }
            Kept::Write { offset, data } => {
                opcode::Write::new(fd, data.as_ptr(), data.len() as u32).offset(*offset).build()
            }
            Kept::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        (entry.user_data(index as u64).flags(self.flags), index)
    }

    /// Publishes entries at once. Called with the lock held.
    fn push(&self, entries: &[Entry]) {
        // SAFETY: the caller holds the lock, so this is the only submission queue.
        let mut queue = unsafe { self.uring.submission_shared() };
        // SAFETY: the entries point into buffers that their slots keep until completion
        // (invariant 3); a read's buffer is touched by nobody meanwhile.
        let pushed = unsafe { queue.push_multiple(entries) };
        // Each push is followed by a submit that empties the queue, so there is room.
        debug_assert!(pushed.is_ok());
    }

    /// Hands all published entries to the kernel. Called with the lock held.
    fn submit_all(&self, _held: &Guard<'_>) {
        loop {
            // SAFETY: the caller holds the lock, so this is the only submission queue.
            if unsafe { self.uring.submission_shared() }.is_empty() {
                return;
            }
            match self.uring.submitter().submit() {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => thread::sleep(RETRY_PAUSE),
                _ => {}
            }
        }
    }

    /// Takes completions, as the reaper or by waiting for it, until `done`: which is to be asked
    /// when `slot` has completed, or without one whenever anything has. Or until that moment, if one is given.
    fn reap_until<'a>(
        &'a self,
        mut state: Guard<'a>,
        slot: Option<usize>,
        until: Option<Instant>,
        done: impl Fn(&State) -> bool,
    ) -> Guard<'a> {
        loop {
            let nobody_reaps = !state.reaping;
            if nobody_reaps {
                self.drain(&mut state);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let over = done(&state) || left.is_some_and(|left| left.is_zero());
            if nobody_reaps {
                state.wake(over);
            }
            if over {
                return state;
            }
            if state.reaping {
                state.sleepers.push((slot, thread::current()));
                drop(state);
                // May end early, and when it does another may reap already.
                left.map_or_else(thread::park, thread::park_timeout);
                state = lock(&self.state);
                let own = thread::current().id();
                state.sleepers.retain(|(_, sleeper)| sleeper.id() != own);
                continue;
            }
            state.reaping = true;
            drop(state);
            self.sleep(left);
            state = lock(&self.state);
            state.reaping = false;
        }
    }

    /// Sleeps in the kernel until anything has completed, or for so long. A kernel that cannot do the latter (before 5.11) sleeps on.
    fn sleep(&self, time: Option<Duration>) {
        let mut flags = io_uring::EnterFlags::GETEVENTS;
        let time = time.filter(|_| self.uring.params().is_feature_ext_arg()).map(types::Timespec::from);
        let entered = if let Some(time) = &time {
            flags |= io_uring::EnterFlags::EXT_ARG;
            let arguments = types::SubmitArgs::new().timespec(time);
            // SAFETY: with EXT_ARG that is the structure which is passed, and both live until the call returns. Nothing is
            // submitted here (invariant 1).
            unsafe { self.uring.submitter().enter(0, 1, flags.bits(), Some(&arguments)) }
        } else {
            // SAFETY: no argument structure is passed. Nothing is submitted here (invariant 1).
            unsafe { self.uring.submitter().enter::<libc::sigset_t>(0, 1, flags.bits(), None) }
        };
        let passing = |e: &io::Error| e.kind() == io::ErrorKind::Interrupted || e.raw_os_error() == Some(libc::ETIME);
        if entered.is_err_and(|e| !passing(&e)) {
            thread::sleep(RETRY_PAUSE);
        }
    }

    /// Moves completions into their slots. Called with the lock held (invariant 2).
    fn drain(&self, state: &mut State) {
        // SAFETY: the caller holds the lock, so this is the only completion queue.
        for completion in unsafe { self.uring.completion_shared() } {
            let index = completion.user_data() as usize;
            let Some(slot) = state.slots.get_mut(index).and_then(Option::as_mut) else {
                debug_assert!(false, "a completion for a free slot");
                continue;
            };
            slot.result = Some(completion.result());
            let orphan = slot.orphan;
            state.in_flight -= 1;
            self.host.note_completed();
            if orphan {
                let (kept, result) = state.take(index);
                self.see_through(kept, result);
            }
        }
    }

    /// Nobody waits for the outcome, but what is written must have been. A read that nobody wants is not run again: the device may not answer.
    fn see_through(&self, kept: Kept, result: i32) {
        if !matches!(kept, Kept::Read { .. }) {
            let _ = self.finish(kept, result);
        }
    }

    /// The outcome of a completed request; runs it again where the kernel
    /// transferred a part only or gave up for a passing reason (invariant 6).
    fn finish(&self, kept: Kept, result: i32) -> Outcome {
        let passing = match -result {
            libc::ECANCELED | libc::EAGAIN | libc::EINTR => true,
            // A flush may have been executed and told its error: another one would say that all is well.
            libc::ENOMEM => !matches!(kept, Kept::Flush),
            _ => false,
        };
        if result < 0 && !passing {
            return Err(DeviceError::Os(-result));
        }
        match kept {
            Kept::Read { buffer, .. } if result as usize == buffer.len() => Ok(buffer),
            Kept::Write { data, .. } if result as usize == data.len() => Ok(AlignedBuf::zeroed(0)),
            Kept::Flush if result == 0 => Ok(AlignedBuf::zeroed(0)),
            Kept::Read { offset, buffer } => self.host.perform(&Op::Read { offset, bytes: buffer.len() }),
            Kept::Write { offset, data } => self.host.perform(&Op::Write { offset, data }),
            Kept::Flush => self.host.perform(&Op::Flush),
        }
    }
}

impl State {
    /// Wakes sleepers whose slots have completed; and one more when who could reap is leaving (invariant 4).
    fn wake(&mut self, leaving: bool) {
        let Self { slots, sleepers, .. } = self;
        let mut heir = leaving;
        let is_done = |slot: usize| slots[slot].as_ref().is_none_or(|slot| slot.result.is_some());
        sleepers.retain(|(slot, sleeper)| {
            let wake = slot.is_none_or(is_done) || std::mem::take(&mut heir);
            if wake {
                sleeper.unpark();
            }
            !wake
        });
    }

    fn is_done(&self, index: usize) -> bool {
        self.slots[index].as_ref().is_none_or(|slot| slot.result.is_some())
    }

    /// Frees a slot whose request has completed.
    fn take(&mut self, index: usize) -> (Kept, i32) {
        self.free.push(index);
        match self.slots[index].take() {
            Some(Slot { kept, result: Some(result), .. }) => (kept, result),
            other => {
                debug_assert!(false, "taken before completion");
                mem::forget(other);
                (Kept::Flush, -libc::EIO)
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let state = lock(&self.state);
        drop(self.reap_until(state, None, None, |s| s.in_flight == 0));
    }
}

struct Waiting {
    ring: Arc<Ring>,
    /// Empty once waited for.
    slot: Option<usize>,
}

impl Pending for Waiting {
    fn wait(mut self: Box<Self>) -> Outcome {
        let Some(slot) = self.slot.take() else {
            return Err(DeviceError::Misuse("the ticket was waited for before"));
        };
        let state = lock(&self.ring.state);
        let mut state = self.ring.reap_until(state, Some(slot), None, |s| s.is_done(slot));
        let (kept, result) = state.take(slot);
        drop(state);
        self.ring.finish(kept, result)
    }

    fn is_done(&self) -> bool {
        let mut state = lock(&self.ring.state);
        if !state.reaping {
            self.ring.drain(&mut state);
            state.wake(false);
        }
        self.slot.is_none_or(|slot| state.is_done(slot))
    }

    fn wait_at_most(&self, time: Duration) -> bool {
        let Some(slot) = self.slot else { return true };
        let state = lock(&self.ring.state);
        let until = Instant::now() + time;
        self.ring.reap_until(state, Some(slot), Some(until), |s| s.is_done(slot)).is_done(slot)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(index) = self.slot.take() else {
            return;
        };
        let mut state = lock(&self.ring.state);
        if state.is_done(index) {
            let (kept, result) = state.take(index);
            drop(state);
            self.ring.see_through(kept, result);
        } else if let Some(slot) = &mut state.slots[index] {
            slot.orphan = true;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::OpenMode;

    /// Starts a read of one byte of this pipe, which is not done before that is there.
    pub(in super::super) fn start_read_of(ring: &Arc<Ring>, pipe: &impl std::os::fd::AsRawFd) -> Ticket {
        let mut state = ring.room(1, None);
        let mut buffer = AlignedBuf::zeroed(4096);
        let pointer = buffer.as_mut_ptr();
        let (_, slot) = ring.prepare(&mut state, Kept::Read { offset: 0, buffer });
        let fd = types::Fd(pipe.as_raw_fd());
        ring.push(&[opcode::Read::new(fd, pointer, 1).build().user_data(slot as u64)]);
        ring.submit_all(&state);
        Ticket::new(Waiting { ring: Arc::clone(ring), slot: Some(slot) })
    }

    /// One that does not answer keeps as many threads of the kernel as it has requests, and there are others.
    #[test]
    fn a_silent_host_leaves_threads_for_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 4096]).unwrap();
        let host = Arc::new(HostFile::open(file.path(), OpenMode::OWNER).unwrap());
        let Ok(ring) = Ring::of(host, true) else { return };
        let ring = Arc::new(ring);
        let read = || ring.start(Kept::Read { offset: 0, buffer: AlignedBuf::zeroed(4096) }).ok().unwrap();
        assert_eq!(read().wait().unwrap()[0], 7);
        // Those of this thread, of all rings.
        let mut now = [0, 0];
        if IoUring::new(1).unwrap().submitter().register_iowq_max_workers(&mut now).is_ok() {
            assert_eq!(now[0], WORKERS_MAX);
        }
    }

    /// Many threads wait, each for its own requests, in another order than they were submitted: all get theirs.
    #[test]
    fn everybody_is_woken_for_what_is_his() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let blocks: Vec<u8> = (0..64u8).flat_map(|i| [i; 4096]).collect();
        std::fs::write(file.path(), blocks).unwrap();
        let host = Arc::new(HostFile::open(file.path(), OpenMode::OWNER).unwrap());
        let Ok(ring) = Ring::new(host) else { return };
        let ring = Arc::new(ring);
        thread::scope(|scope| {
            for t in 0..24u64 {
                let ring = &ring;
                scope.spawn(move || {
                    for round in 0..200 {
                        let wanted = [t, t + 24, round % 64].map(|block| block % 64);
                        let tickets = wanted.map(|block| {
                            let buffer = AlignedBuf::zeroed(4096);
                            (block, ring.start(Kept::Read { offset: block * 4096, buffer }).ok().unwrap())
                        });
                        for (block, ticket) in tickets.into_iter().rev() {
                            assert_eq!(ticket.wait().unwrap()[0], block as u8);
                        }
                    }
                });
            }
        });
        assert!(lock(&ring.state).sleepers.is_empty());
    }

    /// Of many that wait for something that does not come, each leaves in time, and those who wait for what does come are not kept.
    #[test]
    fn who_waits_for_so_long_at_most_leaves_in_time() {
        let (never, mut writer) = std::io::pipe().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let Ok(ring) = Ring::new(Arc::new(HostFile::open(file.path(), OpenMode::OWNER).unwrap())) else { return };
        let ring = Arc::new(ring);
        // A read of an empty pipe is a request that does not complete.
        let mut buffer = AlignedBuf::zeroed(4096);
        let (fd, pointer) = (std::os::fd::AsRawFd::as_raw_fd(&never), buffer.as_mut_ptr());
        let mut state = ring.room(1, None);
        let (_, slot) = ring.prepare(&mut state, Kept::Read { offset: 0, buffer });
        ring.push(&[opcode::Read::new(types::Fd(fd), pointer, 1).build().user_data(slot as u64)]);
        ring.submit_all(&state);
        drop(state);
        let stuck = Waiting { ring: Arc::clone(&ring), slot: Some(slot) };
        let time = Duration::from_millis(200);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let begin = Instant::now();
                    assert!(!stuck.wait_at_most(time));
                    assert!(begin.elapsed() >= time);
                });
            }
            for _ in 0..100 {
                let read = ring.start(Kept::Read { offset: 4096, buffer: AlignedBuf::zeroed(4096) });
                let read = read.ok().unwrap();
                assert!(read.wait_at_most(Duration::from_secs(20)));
                read.wait().unwrap();
            }
        });
        assert!(lock(&ring.state).sleepers.is_empty());
        std::io::Write::write_all(&mut writer, b"x").unwrap();
        assert!(stuck.wait_at_most(Duration::from_secs(20)));
    }

    /// Who submits is not kept by hundreds of requests that do not complete.
    #[test]
    fn a_full_ring_does_not_keep_who_submits() {
        let (never, mut writer) = std::io::pipe().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let Ok(ring) = Ring::new(Arc::new(HostFile::open(file.path(), OpenMode::OWNER).unwrap())) else { return };
        let ring = Arc::new(ring);
        let fd = types::Fd(std::os::fd::AsRawFd::as_raw_fd(&never));
        let stuck: Vec<Waiting> = (0..IN_FLIGHT_MAX)
            .map(|_| {
                let mut state = ring.room(1, None);
                let mut buffer = AlignedBuf::zeroed(4096);
                let pointer = buffer.as_mut_ptr();
                let (_, slot) = ring.prepare(&mut state, Kept::Read { offset: 0, buffer });
                ring.push(&[opcode::Read::new(fd, pointer, 1).build().user_data(slot as u64)]);
                ring.submit_all(&state);
                Waiting { ring: Arc::clone(&ring), slot: Some(slot) }
            })
            .collect();
        let begin = Instant::now();
        assert!(ring.start(Kept::Flush).is_err());
        assert!(begin.elapsed() >= ROOM_TIME);
        std::io::Write::write_all(&mut writer, &[1; IN_FLIGHT_MAX]).unwrap();
        assert!(stuck.iter().all(|s| s.wait_at_most(Duration::from_secs(20))));
        assert!(ring.start(Kept::Flush).is_ok());
    }

    #[test]
    fn what_the_kernel_left_undone_is_done() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let host = Arc::new(HostFile::open(file.path(), OpenMode::OWNER).unwrap());
        let Ok(ring) = Ring::new(Arc::clone(&host)) else { return };
        let results = [-libc::ECANCELED, -libc::EINTR, -libc::EAGAIN, -libc::ENOMEM, 0, 512, 4096];
        for (byte, result) in (1u8..).zip(results) {
            let data = Arc::new(AlignedBuf::padded(&[byte; 8192]));
            ring.finish(Kept::Write { offset: 4096, data }, result).unwrap();
            let buffer = AlignedBuf::zeroed(8192);
            let read = ring.finish(Kept::Read { offset: 4096, buffer }, result).unwrap();
            assert!(read.iter().all(|b| *b == byte), "result {result}");
        }
        assert!(ring.finish(Kept::Flush, -libc::ECANCELED).is_ok());
        let failed = ring.finish(Kept::Flush, -libc::EIO);
        assert_eq!(failed.unwrap_err(), DeviceError::Os(libc::EIO));
        let failed = ring.finish(Kept::Flush, -libc::ENOMEM);
        assert_eq!(failed.unwrap_err(), DeviceError::Os(libc::ENOMEM), "what a flush lost is not told");
        let whole = Kept::Read { offset: 0, buffer: AlignedBuf::padded(&[9; 4096]) };
        assert_eq!(ring.finish(whole, 4096).unwrap()[0], 9, "not read again");
    }
}
