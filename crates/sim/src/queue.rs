//! A queue in front of a device: requests that were submitted are carried out,
//! and told to be done, in an order drawn from the seed.
//!
//! Invariants
//! 1. A request is carried out between its submission and the moment at which
//!    somebody is told that it is done; otherwise nothing orders it.
//! 2. Calls that wait (read, write, flush) may overtake what was submitted
//!    before; a flush covers what was told to be done.
//! 3. One seed gives one order for the same requests.

use crate::prng::Prng;
use crate::turns;
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, Outcome, Ticket};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most requests that wait to be carried out.
const DEPTH: usize = 32;

/// A device behind a queue.
#[derive(Debug)]
pub struct Queue<D> {
    shared: Arc<Shared<D>>,
}

struct Shared<D> {
    device: D,
    state: Mutex<State>,
}

impl<D> std::fmt::Debug for Shared<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("queue")
    }
}

struct State {
    rng: Prng,
    /// In order or not.
    shuffled: bool,
    waiting: Vec<(u64, Op)>,
    /// Carried out, and nobody was told yet.
    begun: BTreeMap<u64, Ticket>,
    submitted: u64,
    overtaken: u64,
}

impl State {
    /// Carries out one of those that wait.
    fn one(&mut self, device: &impl BlockDevice) {
        let at = self.rng.index(self.waiting.len());
        if at < self.waiting.len() {
            self.overtaken += u64::from(at > 0);
            let (number, op) = self.waiting.remove(at);
            self.begun.insert(number, device.submit(op));
        }
    }
    /// Some are carried out, or none.
    fn some(&mut self, device: &impl BlockDevice) {
        while self.waiting.len() > DEPTH || !self.waiting.is_empty() && self.rng.chance(40) {
            self.one(device);
        }
    }
}

impl<D: BlockDevice> Queue<D> {
    /// A queue in front of `device`; without `shuffled` it only passes requests on.
    pub fn new(device: D, seed: u64, shuffled: bool) -> Self {
        let state = State {
            rng: Prng::stream(seed, 13),
            shuffled,
            waiting: Vec::new(),
            begun: BTreeMap::new(),
            submitted: 0,
            overtaken: 0,
        };
        Self { shared: Arc::new(Shared { device, state: Mutex::new(state) }) }
    }

    /// Carries out all that waits, as the kernel does for a process that has died.
    pub fn settle(&self) {
        let mut state = self.shared.lock();
        while !state.waiting.is_empty() {
            state.one(&self.shared.device);
        }
    }

    /// Requests carried out before one that was submitted earlier.
    #[must_use]
    pub fn overtaken(&self) -> u64 {
        self.shared.lock().overtaken
    }

    /// A call that waits: others may have their turn first.
    fn now<T>(&self, call: impl FnOnce(&D) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        if !turns::pause() {
            return Err(DeviceError::Off);
        }
        self.shared.lock().some(&self.shared.device);
        call(&self.shared.device)
    }
}

impl<D> Shared<D> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: BlockDevice + 'static> BlockDevice for Queue<D> {
    fn geometry(&self) -> Geometry {
        self.shared.device.geometry()
    }

    fn submit(&self, op: Op) -> Ticket {
        if turns::is_stopped() {
            return Ticket::done(Err(DeviceError::Off));
        }
        let mut state = self.shared.lock();
        if !state.shuffled || matches!(op, Op::Flush) {
            drop(state);
            return self.shared.device.submit(op);
        }
        let (number, writes) = (state.submitted, matches!(op, Op::Write { .. }));
        state.submitted += 1;
        state.waiting.push((number, op));
        state.some(&self.shared.device);
        Ticket::new(Pending { shared: Arc::clone(&self.shared), number, writes })
    }

    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        // Nodes are read under the volume's lock: no turn may be lost.
        self.shared.lock().some(&self.shared.device);
        self.shared.device.read(offset, bytes)
    }

    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.now(|device| device.write(offset, data))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.now(BlockDevice::flush)
    }

    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        let under_way = self.now(|device| Ok(device.submit_durable(offset, data)))?;
        // Others may have their turn before it is done.
        self.now(|_| under_way.wait().map(drop))
    }
}

struct Pending<D> {
    shared: Arc<Shared<D>>,
    number: u64,
    /// Reads are waited for under the volume's lock: no turn may be lost there.
    writes: bool,
}

impl<D: BlockDevice> nenrin_device::Pending for Pending<D> {
    fn wait(self: Box<Self>) -> Outcome {
        if self.writes && !turns::pause() {
            return Err(DeviceError::Off);
        }
        let mut state = self.shared.lock();
        loop {
            if let Some(ticket) = state.begun.remove(&self.number) {
                drop(state);
                return ticket.wait();
            }
            if !state.waiting.iter().any(|(n, _)| *n == self.number) {
                return Err(DeviceError::Off);
            }
            state.one(&self.shared.device);
        }
    }

    fn is_done(&self) -> bool {
        let mut state = self.shared.lock();
        state.some(&self.shared.device);
        let told = state.rng.chance(50);
        told && state.begun.get(&self.number).is_some_and(Ticket::is_done)
    }
}
