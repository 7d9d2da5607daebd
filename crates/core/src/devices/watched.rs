//! The device of a member as the volume sees it: nobody waits for it without anybody seeing that, and when it is given up nobody waits any more.
//!
//! Invariants
//! 1. A device that is given up gets no request from then on, and whoever waits for one gets an error: just as if all of them had failed.
//! 2. What was under way then may still happen. It happens to a device that is read no more, and which this process keeps open, and so
//!    locked, as long as it lives: and the kernel until the last request is over. So nobody writes there before that.
//! 3. Time is what passes while somebody looks, and of each look so much at most: a process that was stopped gives up nobody for that.

use super::requests::Counted;
use crate::breaks::{Break, broken};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, Outcome, Pending, Ticket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Who waits looks so often whether the device was given up, and is known to wait from then on.
const LOOK: Duration = Duration::from_secs(1);
/// Nanoseconds that count of the time between two looks at most.
const LOOK_NANOS_MAX: u64 = 1_000_000_000;
/// A device that gets nothing done for so long while somebody waits for it stands still. Much longer than a queue of requests or a
/// disk that wakes up takes to get anything done; short enough that what is new goes elsewhere before programs give up.
pub(super) const STILL_NANOS: u64 = 5_000_000_000;
/// And so long is given up where others have all it has: as long as the kernel waits for a SCSI command before it does something about it.
/// Who is given up has to be brought up to date, which costs more than waiting for a device that is busy with itself.
pub(super) const GIVEN_UP_NANOS: u64 = 30_000_000_000;
/// The same of a single request, whatever else the device gets done: longer than a disk takes that tries to read a bad sector.
const ONE_GIVEN_UP_NANOS: u64 = 120_000_000_000;

/// Reads that are answered elsewhere while one device is busy with them, at most: who comes then waits for it. Of a volume that somebody
/// judges that takes a minute or two, in which it is given up.
const LEFT_BEHIND_MAX: usize = 64;

/// How a device stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stand {
    /// Nothing was done for so long while somebody waited.
    pub still_nanos: u64,
    /// So long somebody has been waiting for one request.
    pub oldest_nanos: u64,
}

impl Stand {
    pub const fn is_still(self) -> bool {
        self.still_nanos >= STILL_NANOS
    }
    /// Whether it has to be known how the others stand.
    pub const fn is_suspect(self) -> bool {
        self.is_still() || self.oldest_nanos >= GIVEN_UP_NANOS
    }
    pub const fn is_hopeless(self) -> bool {
        self.still_nanos >= GIVEN_UP_NANOS || self.oldest_nanos >= ONE_GIVEN_UP_NANOS
    }
}

/// What is known of those who wait for a device.
#[derive(Default)]
pub(super) struct Watch {
    /// There are several devices, and somebody may look.
    on: AtomicBool,
    given_up: AtomicBool,
    /// Waits that are known.
    waiting: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Waits that are known, and since when: none before the first look at them.
    waits: Vec<(u64, Option<u64>)>,
    /// Reads that were answered elsewhere, and who waits in the stead of their readers.
    left_behind: Vec<(Ticket, Option<Counted>, Waits)>,
    /// Time that has passed in looks, and the moment of the last.
    time: u64,
    looked: Option<u64>,
    /// How much the device had completed, and when that was seen to change.
    completed: Option<u64>,
    progress: u64,
    /// A read by which it is seen whether it answers, how many there were before, and when one was answered last.
    probe: Option<Ticket>,
    probed: u64,
    answered: Option<u64>,
}

impl State {
    fn look(&mut self, now: u64, completed: Option<u64>) -> Stand {
        let passed = now.saturating_sub(self.looked.unwrap_or(now)).min(LOOK_NANOS_MAX);
        self.looked = Some(now);
        self.time += passed;
        // What it was asked for by that says nothing of what others wait for.
        let asked = self.probed + u64::from(self.probe.as_ref().is_some_and(Ticket::is_done));
        let asked = if broken(Break::ProbesCount) { 0 } else { asked };
        let completed = completed.map(|completed| completed.saturating_sub(asked));
        if completed != self.completed {
            self.completed = completed;
            self.progress = self.time;
        }
        let time = self.time;
        let since = |wait: &mut (u64, Option<u64>)| *wait.1.get_or_insert(time);
        let Some(oldest) = self.waits.iter_mut().map(since).min() else { return Stand::default() };
        let progress = if completed.is_some() { self.progress } else { oldest };
        Stand { still_nanos: time - oldest.max(progress), oldest_nanos: time - oldest }
    }
}

impl Watch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// From now on who waits is known. A device that is the only one is not watched: nobody could do without it.
    pub fn switch_on(&self) {
        self.on.store(true, SeqCst);
    }
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(SeqCst)
    }
    /// Whether somebody has been waiting for it for longer than a look.
    pub fn keeps_waiting(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }
    /// Nobody waits for it any more.
    pub fn give_up(&self) {
        self.given_up.store(true, SeqCst);
    }
    /// Looks how long it is waited for.
    pub fn look(&self, now: u64, completed: Option<u64>) -> Stand {
        self.let_go_of_done();
        self.state().look(now, completed)
    }
    /// Reads that were answered elsewhere and are done by now, with their buffers.
    fn let_go_of_done(&self) {
        let mut state = self.state();
        let (over, left) = std::mem::take(&mut state.left_behind).into_iter().partition(|(t, ..)| t.is_done());
        state.left_behind = left;
        drop(state);
        // Not under the lock: it is taken by who ends to wait.
        drop::<Vec<_>>(over);
    }
    /// Whether it answers: of several that do not, only the first may have somebody who waits for it. `submit` begins a read of it.
    pub fn answers(&self, submit: impl FnOnce() -> Ticket) -> bool {
        let mut state = self.state();
        let probe = state.probe.take_if(|probe| probe.is_done());
        state.probed += u64::from(probe.is_some());
        if probe.is_some_and(|probe| probe.wait().is_ok()) {
            state.answered = Some(state.time);
        }
        let (waits, answered) = (state.probe.is_some(), state.answered);
        let time = state.time;
        drop(state);
        if !waits {
            let probe = submit();
            self.state().probe = Some(probe);
        }
        answered.is_some_and(|at| time - at < STILL_NANOS)
    }
    /// Whether one more read may be answered elsewhere: each keeps its buffer until the device is done with it.
    pub fn may_leave_behind(&self) -> bool {
        self.let_go_of_done();
        self.state().left_behind.len() < LEFT_BEHIND_MAX
    }
    /// A read that was answered elsewhere: it is not waited for, but known to be under way until it is done.
    pub fn leave_behind(self: &Arc<Self>, ticket: Ticket, counted: Option<Counted>) {
        let waits = self.waits();
        self.state().left_behind.push((ticket, counted, waits));
    }
    fn waits(self: &Arc<Self>) -> Waits {
        self.waiting.fetch_add(1, SeqCst);
        let mut state = self.state();
        state.next += 1;
        let number = state.next;
        state.waits.push((number, None));
        Waits(Arc::clone(self), number)
    }
}

/// Somebody who is known to wait, until it is dropped.
struct Waits(Arc<Watch>, u64);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.state().waits.retain(|w| w.0 != self.1);
        self.0.waiting.fetch_sub(1, SeqCst);
    }
}

const fn unanswered() -> DeviceError {
    DeviceError::Unanswered { seconds: GIVEN_UP_NANOS / 1_000_000_000 }
}

/// The device of a member.
pub(super) struct Watched {
    inner: Arc<dyn BlockDevice>,
    watch: Arc<Watch>,
}

impl Watched {
    pub fn new(inner: Arc<dyn BlockDevice>, watch: Arc<Watch>) -> Self {
        Self { inner, watch }
    }

    /// A call that cannot be left: it is known, at least.
    fn call<T>(&self, call: impl FnOnce(&dyn BlockDevice) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        if self.watch.is_given_up() {
            return Err(unanswered());
        }
        let _waits = self.watch.on.load(SeqCst).then(|| self.watch.waits());
        call(self.inner.as_ref())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.watch.is_given_up() {
            // Closing it would wait for what is under way, and let others have it before that (invariant 2).
            std::mem::forget(Arc::clone(&self.inner));
            return;
        }
        // They know the watch, which has them: neither would ever go.
        let mut state = self.watch.state();
        let kept = (state.probe.take(), std::mem::take(&mut state.left_behind));
        drop(state);
        drop(kept);
    }
}

impl BlockDevice for Watched {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn remeasure(&self) -> Result<(), DeviceError> {
        self.inner.remeasure()
    }
    fn completed(&self) -> Option<u64> {
        self.inner.completed()
    }
    fn submit(&self, op: Op) -> Ticket {
        if self.watch.is_given_up() {
            return Ticket::done(Err(unanswered()));
        }
        let ticket = self.inner.submit(op);
        if self.watch.on.load(SeqCst) { Ticket::new(Asked { ticket, watch: self.watch.clone() }) } else { ticket }
    }
    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.call(|d| d.read(offset, bytes))
    }
    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.call(|d| d.write(offset, data))
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.call(|d| d.flush())
    }
    fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.call(|d| d.write_flush(offset, data))
    }
    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.call(|d| d.write_durable(offset, data))
    }
}

/// A request under way.
struct Asked {
    ticket: Ticket,
    watch: Arc<Watch>,
}

impl Pending for Asked {
    fn wait(self: Box<Self>) -> Outcome {
        let mut waits = None;
        while !self.watch.is_given_up() || self.ticket.is_done() {
            if self.ticket.wait_at_most(LOOK) {
                return self.ticket.wait();
            }
            waits.get_or_insert_with(|| self.watch.waits());
        }
        Err(unanswered())
    }
    fn is_done(&self) -> bool {
        self.watch.is_given_up() || self.ticket.is_done()
    }
    fn wait_at_most(&self, time: Duration) -> bool {
        self.watch.is_given_up() || self.ticket.wait_at_most(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn only_time_in_which_somebody_looks_counts() {
        let watch = Arc::new(Watch::default());
        assert_eq!(watch.look(5 * SECOND, None), Stand::default());
        let waits = watch.waits();
        assert!(watch.keeps_waiting());
        watch.look(6 * SECOND, None);
        // The process was stopped for an hour.
        assert_eq!(watch.look(3606 * SECOND, None).still_nanos, SECOND);
        for s in 1..=4 {
            assert!(!watch.look((3606 + s) * SECOND, None).is_still() || s == 4);
        }
        drop(waits);
        assert_eq!(watch.look(3700 * SECOND, None), Stand::default());
    }

    #[test]
    fn a_device_that_gets_anything_done_does_not_stand_still() {
        let watch = Arc::new(Watch::default());
        let _waits = watch.waits();
        for s in 0..119 {
            let stand = watch.look(s * SECOND, Some(s / 4));
            assert!(!stand.is_still() && !stand.is_hopeless(), "{s}");
        }
        // One request that never ends.
        assert!(watch.look(119 * SECOND, Some(30)).oldest_nanos == 119 * SECOND);
        assert!(watch.look(120 * SECOND, Some(31)).is_hopeless());
        for s in 121..125 {
            assert!(!watch.look(s * SECOND, Some(31)).is_still(), "{s}");
        }
        assert!(watch.look(125 * SECOND, Some(31)).is_still());
    }

    /// Also where nobody looks how long the device is waited for, as in a check.
    #[test]
    fn reads_that_were_answered_elsewhere_are_let_go_when_they_are_done() {
        let watch = Arc::new(Watch::default());
        for _ in 0..3 * LEFT_BEHIND_MAX {
            assert!(watch.may_leave_behind());
            watch.leave_behind(Ticket::done(Err(DeviceError::Missing)), None);
        }
        assert!(watch.state().left_behind.len() <= 1);
        watch.let_go_of_done();
        assert!(!watch.keeps_waiting());
        // Those that never end are not kept without end.
        let mut kept = 0;
        while watch.may_leave_behind() && kept < 2 * LEFT_BEHIND_MAX {
            watch.leave_behind(Ticket::new(Never), None);
            kept += 1;
        }
        assert_eq!(kept, LEFT_BEHIND_MAX);
    }

    struct Never;

    impl Pending for Never {
        fn wait(self: Box<Self>) -> Outcome {
            Err(DeviceError::Missing)
        }
        fn is_done(&self) -> bool {
            false
        }
        fn wait_at_most(&self, _: Duration) -> bool {
            false
        }
    }
}
