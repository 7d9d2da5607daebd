//! A device that holds back chosen requests, and runs them only when the test
//! lets them: so each meeting of threads is certain.

use super::TestClock;
use nenrin_core::{Fs, MkfsOptions, MountOptions, mkfs};
use nenrin_device::{BlockDevice, DeviceError, Geometry, MemDevice, Op, Outcome, Pending, Ticket};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

/// Which requests are held back.
pub type Which = fn(&Op) -> bool;

impl State {
    fn is_open(&self, number: usize) -> bool {
        number < self.open || self.only.is_some_and(|only| only != number) || self.chosen.iter().any(|c| c.0 == number)
    }
}

/// Holds back requests until they are let go, in the order in which they came.
pub struct Gated {
    inner: Arc<MemDevice>,
    gate: Arc<Gate>,
}

#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub struct State {
    which: Option<Which>,
    /// Requests that were held back so far, and those of them let go.
    pub held: usize,
    open: usize,
    /// One that is held back, and no other.
    only: Option<usize>,
    /// What came meanwhile and was done, for who asks what the device gets done.
    done: Option<u64>,
    /// Others that were let go, or fail.
    chosen: Vec<(usize, bool)>,
    /// One at which the thread that waits for it panics.
    deadly: Option<usize>,
    /// Who does not want to wait for long is told that it cannot be told how long it takes.
    cannot_tell: bool,
    /// Threads that wait for one of them.
    pub waiting: usize,
    /// Those that nobody waits for any more.
    late: Vec<Op>,
}

impl Gate {
    /// Holds back requests from now on, but for the first few.
    pub fn close(&self, which: Which, but: usize) {
        *self.state.lock().unwrap() = State { which: Some(which), open: but, ..State::default() };
    }
    /// Holds back the next of these and nothing else: of all else it is told that it gets done.
    pub fn hold_one(&self, which: Which) {
        *self.state.lock().unwrap() = State { which: Some(which), only: Some(0), done: Some(0), ..State::default() };
    }
    /// Holds back all of these, and tells of all else that it gets done.
    pub fn close_and_tell(&self, which: Which) {
        *self.state.lock().unwrap() = State { which: Some(which), done: Some(0), ..State::default() };
    }
    /// Who does not want to wait for long has to, as with a device that cannot tell whether it is done.
    pub fn cannot_tell(&self) {
        self.state.lock().unwrap().cannot_tell = true;
    }
    /// Lets the first `count` go, or as many as there are.
    pub fn let_go(&self, count: usize) {
        self.state.lock().unwrap().open = count;
        self.changed.notify_all();
    }
    /// Lets one of them go, counted from 0, whatever came before it.
    pub fn let_one_go(&self, number: usize) {
        self.state.lock().unwrap().chosen.push((number, true));
        self.changed.notify_all();
    }
    /// One of them, counted from 0, fails.
    pub fn fail(&self, number: usize) {
        self.state.lock().unwrap().chosen.push((number, false));
        self.changed.notify_all();
    }
    /// One of them, counted from 0, is the end of the thread that waits for it.
    pub fn panics(&self, number: usize) {
        let mut state = self.state.lock().unwrap();
        state.deadly = Some(number);
        state.chosen.push((number, false));
        self.changed.notify_all();
    }
    pub fn open(&self) {
        self.let_go(usize::MAX);
    }
    /// Those that nobody waits for any more, which a device does all the same.
    pub fn take_late(&self) -> Vec<Op> {
        std::mem::take(&mut self.state.lock().unwrap().late)
    }
    pub fn held(&self) -> usize {
        self.state.lock().unwrap().held
    }
    pub fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting
    }
    pub fn wait_until(&self, reached: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let (state, timeout) =
            self.changed.wait_timeout_while(state, Duration::from_secs(20), |s| !reached(s)).unwrap();
        let held = state.held;
        drop(state);
        if timeout.timed_out() {
            // Else whoever joins the threads that wait would wait for ever.
            self.open();
        }
        assert!(!timeout.timed_out(), "{held} requests came");
    }
}

struct Held {
    gate: Arc<Gate>,
    device: Arc<MemDevice>,
    number: usize,
    op: Option<Op>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(op) = self.op.take() {
            self.gate.state.lock().unwrap().late.push(op);
        }
    }
}

impl Pending for Held {
    fn wait(mut self: Box<Self>) -> Outcome {
        let op = self.op.take().unwrap();
        let mut state = self.gate.state.lock().unwrap();
        if !state.is_open(self.number) {
            state.waiting += 1;
            self.gate.changed.notify_all();
        }
        let state = self.gate.changed.wait_while(state, |s| !s.is_open(self.number)).unwrap();
        let deadly = state.deadly == Some(self.number);
        if state.chosen.contains(&(self.number, false)) {
            drop(state);
            assert!(!deadly, "in the middle of a write");
            return Err(DeviceError::Os(5));
        }
        drop(state);
        self.device.submit(op).wait()
    }
    fn is_done(&self) -> bool {
        self.gate.state.lock().unwrap().is_open(self.number)
    }
    /// Much less long, so that tests do not take so long.
    fn wait_at_most(&self, _: Duration) -> bool {
        let state = self.gate.state.lock().unwrap();
        if state.cannot_tell {
            return true;
        }
        let closed = |s: &mut State| !s.is_open(self.number);
        !self.gate.changed.wait_timeout_while(state, Duration::from_millis(5), closed).unwrap().1.timed_out()
    }
}

impl BlockDevice for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn completed(&self) -> Option<u64> {
        self.gate.state.lock().unwrap().done
    }
    fn submit(&self, op: Op) -> Ticket {
        let mut state = self.gate.state.lock().unwrap();
        let held = state.which.is_some_and(|which| which(&op)) && !state.is_open(state.held);
        state.done = state.done.map(|done| done + u64::from(!held));
        if !state.which.is_some_and(|which| which(&op)) {
            drop(state);
            return self.inner.submit(op);
        }
        let number = state.held;
        state.held += 1;
        drop(state);
        self.gate.changed.notify_all();
        Ticket::new(Held { gate: self.gate.clone(), device: self.inner.clone(), number, op: Some(op) })
    }
}

/// A device whose requests can be held back, and what does so.
pub fn gated(bytes: usize) -> (Arc<dyn BlockDevice>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    (behind(&gate, bytes), gate)
}

/// One of several devices whose requests the same gate holds back.
pub fn behind(gate: &Arc<Gate>, bytes: usize) -> Arc<dyn BlockDevice> {
    Arc::new(Gated { inner: Arc::new(MemDevice::new(bytes)), gate: gate.clone() })
}

/// A volume on such a device.
pub struct World {
    pub gate: Arc<Gate>,
    pub device: Arc<MemDevice>,
    pub clock: Arc<TestClock>,
    pub fs: Arc<Fs>,
}

pub fn world(options: MountOptions) -> World {
    let gate = Arc::new(Gate::default());
    let inner = Arc::new(MemDevice::new(64 << 20));
    let device: Arc<dyn BlockDevice> = Arc::new(Gated { inner: inner.clone(), gate: gate.clone() });
    let clock = Arc::new(TestClock::default());
    let time: Arc<dyn nenrin_core::Clock> = clock.clone();
    mkfs(&device, &time, &MkfsOptions { segment_blocks: 512, ..MkfsOptions::default() }).unwrap();
    let fs = Fs::open(vec![device], time, options).unwrap();
    World { gate, device: inner, clock, fs }
}

pub fn is_read(op: &Op) -> bool {
    matches!(op, Op::Read { .. })
}

pub fn is_long_write(op: &Op) -> bool {
    matches!(op, Op::Write { data, .. } if data.len() >= 256 << 10)
}

/// An index partial of one node, or more.
pub fn has_nodes(op: &Op) -> bool {
    matches!(op, Op::Write { data, .. } if data.len() > 16 << 10)
}

/// Whether an answer comes although nothing moves: only ever wrongly no.
pub fn is_answered<T>(answer: &mpsc::Receiver<T>) -> bool {
    answer.recv_timeout(Duration::from_millis(100)).is_ok()
}

pub fn is_write(op: &Op) -> bool {
    matches!(op, Op::Write { .. })
}
