//! The simulator's disk: it remembers what a power cut could take away.
//!
//! A write that was acknowledged but not flushed may survive whole, in part
//! (any of its 512-byte sectors) or not at all, whatever became of the others.
//! With the history kept, one run of a workload is enough: a [`HistoryCursor`]
//! makes the disk as it could be found after a cut at any operation.
//!
//! Invariants
//! 1. A change is *completed* once its ticket was waited for (or reported
//!    done); a flush makes durable what was completed when it was submitted,
//!    from the moment that it is waited for. A change whose ticket was dropped
//!    is never known to be completed, so no flush ever covers it.
//! 2. The history lists changes in the order of submission and flushes at
//!    their completion. Cut point k is after the first k of these operations.
//!    A write that is durable by itself is a change, and a flush of it alone.
//!    So is a flush that fails and loses what it was to cover.
//! 3. Everything depends on the order of the calls only: no clock, no thread.

mod choice;
mod history;
mod image;
mod window;

pub use choice::CrashChoice;
pub use history::{CrashImage, History, HistoryCursor};
pub use image::{DISCARD_FILL, Image, SECTOR_BYTES};
pub use window::{Divisible, Window};

use crate::check::check;
use crate::counters::{Counters, OpKind, Tally};
use crate::sync::lock;
use crate::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, Outcome, Pending, Ticket};
use history::{Entry, Event};
use image::{Buffer, Change, Content};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Numbers the operations of several disks in one order, so that a cut can
/// hit all of them at the same moment.
#[derive(Clone, Debug, Default)]
pub struct Sequence(Arc<AtomicU64>);

impl Sequence {
    /// The number of the next operation.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// The simulator's disk.
#[derive(Debug)]
pub struct CrashDisk {
    state: Arc<Mutex<State>>,
    tally: Arc<Tally>,
    bytes: u64,
}

#[derive(Debug)]
struct State {
    durable: Image,
    current: Image,
    unflushed: Vec<Unflushed>,
    /// Operations so far.
    operations: usize,
    sequence: Sequence,
    history: Option<History>,
    off: bool,
    /// Operations after which it goes off.
    off_at: usize,
    /// The next flush loses what it was to cover, but for what this chooses.
    loses: Option<CrashChoice>,
}

#[derive(Debug)]
struct Unflushed {
    /// Number of its operation.
    at: usize,
    change: Change,
    completed: bool,
}

impl CrashDisk {
    /// A disk of `bytes` zeros that keeps its history.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self::from_image(Image::zeroed(bytes))
    }

    /// A disk that holds `image`, durably, and keeps its history from here on.
    #[must_use]
    pub fn from_image(image: Image) -> Self {
        let bytes = image.bytes();
        let state = State {
            durable: image.clone(),
            current: image.clone(),
            unflushed: Vec::new(),
            operations: 0,
            sequence: Sequence::default(),
            history: Some(History::new(image)),
            off: false,
            off_at: usize::MAX,
            loses: None,
        };
        Self { state: Arc::new(Mutex::new(state)), tally: Arc::default(), bytes }
    }

    /// Keeps no history, for long runs that cut the power once, at the end.
    #[must_use]
    pub fn without_history(self) -> Self {
        lock(&self.state).history = None;
        self
    }

    /// Takes operation numbers from a sequence shared with other disks.
    #[must_use]
    pub fn with_sequence(self, sequence: &Sequence) -> Self {
        lock(&self.state).sequence = sequence.clone();
        self
    }

    /// Operations so far: changes and completed flushes. A cut is possible at 0 to this many.
    #[must_use]
    pub fn cut_points(&self) -> usize {
        lock(&self.state).operations
    }

    /// Requests so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.tally.counters()
    }

    /// The history so far; `None` when it is not kept.
    #[must_use]
    pub fn history(&self) -> Option<History> {
        lock(&self.state).history.clone()
    }

    /// What readers see now.
    #[must_use]
    pub fn current(&self) -> Image {
        lock(&self.state).current.clone()
    }

    /// What no power cut can take away any more.
    #[must_use]
    pub fn durable(&self) -> Image {
        lock(&self.state).durable.clone()
    }

    /// Completes everything under way, as the kernel does for a process that
    /// has died before anybody else can open the device.
    pub fn complete_all(&self) {
        for change in &mut lock(&self.state).unflushed {
            change.completed = true;
        }
    }

    /// Switches the disk off: every request fails from now on, and requests
    /// under way are never acknowledged.
    pub fn power_off(&self) {
        lock(&self.state).off = true;
    }

    /// Switches the disk off once `operations` operations were made, counted as
    /// by [`CrashDisk::cut_points`]: the end of a loop that has none.
    pub fn power_off_at(&self, operations: usize) {
        lock(&self.state).off_at = operations;
    }

    /// The next flush, or write that is durable by itself, fails, as a host's does whose device fails beneath its cache: what had
    /// completed reads as it was written, and no later flush covers it, since it counts as clean. Of it `kept` reaches the medium.
    pub fn fail_next_flush(&self, kept: CrashChoice) {
        lock(&self.state).loses = Some(kept);
    }

    /// The same of a flush that has failed elsewhere: what has completed by now is lost but for what is `kept`, and reads as it was written.
    pub fn lose_unflushed(&self, kept: CrashChoice) {
        let mut state = lock(&self.state);
        let lost = state.completed(&(0..self.bytes));
        state.lose(&lost, kept);
    }

    /// Sectors of the last change, where nobody was told that it is done.
    #[must_use]
    pub fn last_under_way(&self) -> Option<u64> {
        lock(&self.state).unflushed.last().filter(|last| !last.completed).map(|last| last.change.sectors())
    }

    /// The disk as it could be found after a power cut now.
    #[must_use]
    pub fn image(&self, choice: &CrashChoice) -> CrashImage {
        let state = lock(&self.state);
        let changes: Vec<_> = state.unflushed.iter().map(|u| &u.change).collect();
        let image = choice.apply(state.operations, &state.durable, &changes);
        // No base hash is kept up here, so the hash is taken over all blocks.
        let zeros = Image::zeroed(self.bytes);
        CrashImage::new(image, zeros, 0)
    }

    fn submit_within(&self, op: Op, range: &Range<u64>) -> Ticket {
        match self.perform(op, range) {
            Err(e) => Ticket::done(Err(e)),
            Ok(Done::Read(data)) => Ticket::done(Ok(data)),
            Ok(Done::Later(step)) => self.later(step),
        }
    }

    fn later(&self, step: Step) -> Ticket {
        let state = Arc::clone(&self.state);
        Ticket::new(Unacknowledged { state, step, seen: AtomicBool::new(false) })
    }

    /// Carries out a request; a flush covers changes within `range` only.
    fn perform(&self, op: Op, range: &Range<u64>) -> Result<Done, DeviceError> {
        check(&op, self.bytes, true)?;
        let (kind, _, bytes) = op.outline();
        let mut state = lock(&self.state);
        if state.off {
            return Err(DeviceError::Off);
        }
        self.tally.add(kind, bytes);
        let (offset, content) = match op {
            Op::Read { offset, bytes } => {
                return Ok(Done::Read(state.current.read(offset, bytes)));
            }
            Op::Flush => {
                let covered = state.completed(range);
                return match state.loses.take() {
                    Some(kept) => Err(state.lose(&covered, kept)),
                    None => Ok(Done::Later(Step::Flush(covered))),
                };
            }
            Op::Write { offset, data } => (offset, Content::Data(Buffer::new(data))),
            Op::Zero { offset, bytes } => (offset, Content::Zeros(bytes)),
            Op::Discard { offset, bytes } => (offset, Content::Discarded(bytes)),
        };
        Ok(Done::Later(Step::Change(state.change(Change { offset, content }))))
    }

    fn perform_now(&self, op: Op) -> Outcome {
        match self.perform(op, &(0..self.bytes))? {
            Done::Read(data) => Ok(data),
            Done::Later(step) => {
                lock(&self.state).complete(&step)?;
                Ok(AlignedBuf::zeroed(0))
            }
        }
    }
}

enum Done {
    Read(AlignedBuf),
    Later(Step),
}

/// What waiting for a ticket brings about.
enum Step {
    /// The change of this operation is completed.
    Change(usize),
    /// The changes of these operations are durable.
    Flush(Vec<usize>),
    /// The change of this operation is durable, and no other.
    Durable(usize),
}

impl State {
    fn change(&mut self, change: Change) -> usize {
        let at = self.operations;
        self.current.apply(&change);
        self.log(Event::Change(change.clone()));
        self.unflushed.push(Unflushed { at, change, completed: false });
        at
    }

    fn completed(&self, range: &Range<u64>) -> Vec<usize> {
        self.unflushed.iter().filter(|u| u.completed && range.contains(&u.change.offset)).map(|u| u.at).collect()
    }

    /// These changes will never be durable, but for what is `kept` of them; the error of who was to flush them.
    fn lose(&mut self, lost: &[usize], kept: CrashChoice) -> DeviceError {
        let is_lost = |u: &&Unflushed| lost.binary_search(&u.at).is_ok();
        let changes: Vec<_> = self.unflushed.iter().filter(is_lost).map(|u| &u.change).collect();
        self.durable = kept.apply(self.operations, &self.durable, &changes);
        self.unflushed.retain(|u| !is_lost(&u));
        self.log(Event::Lost { changes: lost.into(), kept });
        DeviceError::Os(libc::EIO)
    }

    /// This change and those before it that it overlaps: whatever a disk still had of these is not put over what is durable.
    fn replaced_by(&self, at: usize) -> Vec<usize> {
        let Ok(n) = self.unflushed.binary_search_by_key(&at, |u| u.at) else { return Vec::new() };
        let durable = &self.unflushed[n].change;
        let older = self.unflushed[..n].iter().filter(|u| u.change.overlaps(durable)).map(|u| u.at);
        older.chain([at]).collect()
    }

    fn complete(&mut self, step: &Step) -> Result<(), DeviceError> {
        if self.off {
            return Err(DeviceError::Off);
        }
        match step {
            Step::Change(at) => {
                if let Ok(n) = self.unflushed.binary_search_by_key(at, |u| u.at) {
                    self.unflushed[n].completed = true;
                }
            }
            Step::Durable(at) => return self.complete(&Step::Flush(self.replaced_by(*at))),
            Step::Flush(covered) => {
                let durable = &mut self.durable;
                self.unflushed.retain(|u| {
                    let covers = covered.binary_search(&u.at).is_ok();
                    if covers {
                        durable.apply(&u.change);
                    }
                    !covers
                });
                self.log(Event::Flush { covered: covered.as_slice().into() });
            }
        }
        Ok(())
    }

    fn log(&mut self, event: Event) {
        self.operations += 1;
        self.off |= self.operations >= self.off_at;
        let sequence = self.sequence.take();
        if let Some(history) = &mut self.history {
            history.push(Entry { sequence, event });
        }
    }
}

impl BlockDevice for CrashDisk {
    fn geometry(&self) -> Geometry {
        let name = "crash disk".to_owned();
        Geometry { bytes: self.bytes, writable: true, discard: true, name, place: None }
    }

    fn submit(&self, op: Op) -> Ticket {
        self.submit_within(op, &(0..self.bytes))
    }

    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.perform_now(Op::Read { offset, bytes })
    }

    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.perform_now(Op::Write { offset, data }).map(drop)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.perform_now(Op::Flush).map(drop)
    }

    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.submit_durable(offset, data).wait().map(drop)
    }

    fn submit_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Ticket {
        match self.perform(Op::Write { offset, data }, &(0..self.bytes)) {
            Ok(Done::Later(Step::Change(at))) => {
                self.tally.add(OpKind::Flush, 0);
                let mut state = lock(&self.state);
                if let Some(kept) = state.loses.take() {
                    return Ticket::done(Err(state.lose(&[at], kept)));
                }
                drop(state);
                self.later(Step::Durable(at))
            }
            Ok(_) => Ticket::done(Err(DeviceError::Misuse("a write that is none"))),
            Err(e) => Ticket::done(Err(e)),
        }
    }
}

struct Unacknowledged {
    state: Arc<Mutex<State>>,
    step: Step,
    seen: AtomicBool,
}

impl Unacknowledged {
    /// Telling somebody that the request is done is what completes it.
    fn acknowledge(&self) -> Result<(), DeviceError> {
        let mut state = lock(&self.state);
        if self.seen.load(Ordering::Relaxed) {
            return Ok(());
        }
        state.complete(&self.step)?;
        self.seen.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Pending for Unacknowledged {
    fn wait(self: Box<Self>) -> Outcome {
        self.acknowledge().map(|()| AlignedBuf::zeroed(0))
    }

    fn is_done(&self) -> bool {
        // An error is an outcome too: waiting would return at once.
        let _ = self.acknowledge();
        true
    }
}
