//! Several clients of one volume, each a thread of its own, of which one runs
//! at a time: who it is and for how long is drawn from the seed.
//!
//! The main thread makes the calls of the workload, each without a pause. A
//! client makes one call, a sync or a write, and may lose its turn at every request of the
//! device that the file system makes without its lock, and where it waits for
//! another thread. So the call of one client is under way while others change,
//! sync and tick, and the same seed gives the same meeting.
//!
//! Invariants
//! 1. One thread runs at a time; the others wait for their turn.
//! 2. A client that is stopped for good makes no request any more.

use crate::prng::Prng;
use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Most turns in a row that bring nothing to its end: more means that all wait for each other.
pub const TURNS_MAX: usize = 100_000;

thread_local! {
    /// The client that this thread is.
    static CLIENT: RefCell<Option<(Arc<Turns>, usize)>> = const { RefCell::new(None) };
}

/// Decides who runs.
#[derive(Debug)]
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    rng: Prng,
    /// The client whose turn it is; otherwise the main thread's.
    running: Option<usize>,
    /// Clients that have not ended.
    alive: Vec<usize>,
    /// Clients so far.
    begun: usize,
    /// Turns lost in the middle of a call.
    pauses: u64,
    stopped: bool,
}

impl Turns {
    /// Nobody is there yet.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        let rng = Prng::stream(seed, 12);
        let state = State { rng, running: None, alive: Vec::new(), begun: 0, pauses: 0, stopped: false };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, mut state: MutexGuard<'_, State>, turn: Option<usize>) {
        while state.running != turn {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&self, percent: u64) -> bool {
        self.lock().rng.chance(percent)
    }

    /// Clients whose call is under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.lock().alive.len()
    }

    /// Times that a call was interrupted by others.
    #[must_use]
    pub fn pauses(&self) -> u64 {
        self.lock().pauses
    }

    /// A client makes a call, which runs until it first loses its turn.
    pub fn begin(self: &Arc<Self>, call: Box<dyn FnOnce() + Send>) {
        let mut state = self.lock();
        let me = state.begun;
        state.begun += 1;
        state.alive.push(me);
        drop(state);
        let turns = Arc::clone(self);
        let call = as_broken_as_here(call);
        thread::spawn(move || {
            let _end = End(Arc::clone(&turns), me);
            turns.wait_until(turns.lock(), Some(me));
            CLIENT.set(Some((Arc::clone(&turns), me)));
            call();
        });
        self.run(me);
    }

    /// One turn of a client.
    fn run(&self, client: usize) {
        let mut state = self.lock();
        state.running = Some(client);
        self.changed.notify_all();
        self.wait_until(state, None);
    }

    /// A turn of one of the clients; false when there is none.
    pub fn run_one(&self) -> bool {
        let mut state = self.lock();
        let State { rng, alive, .. } = &mut *state;
        let Some(client) = rng.pick(alive).copied() else { return false };
        drop(state);
        self.run(client);
        true
    }

    /// Whoever rests may lose its turn: a client to whoever is next, who is none to one of them.
    pub fn rest(&self) {
        if CLIENT.with_borrow(Option::is_some) {
            // Who has died since makes no request any more.
            pause();
        } else if self.chance(65) {
            self.run_one();
        }
    }

    /// Turns until all calls, but for so many, have ended.
    ///
    /// # Errors
    /// When they do not end.
    pub fn run_until(&self, left: usize) -> Result<(), String> {
        for _ in 0..TURNS_MAX {
            if self.under_way() <= left {
                return Ok(());
            }
            self.run_one();
        }
        Err("the calls of other clients do not end".to_owned())
    }

    /// All clients die where they are: they make no request any more.
    ///
    /// # Errors
    /// When they do not end.
    pub fn stop(&self) -> Result<(), String> {
        self.lock().stopped = true;
        let ended = self.run_until(0);
        self.lock().stopped = false;
        ended
    }

    /// A client's turn is over.
    fn give_back(&self, me: usize) {
        let mut state = self.lock();
        state.running = None;
        self.changed.notify_all();
        self.wait_until(state, Some(me));
    }
}

impl nenrin_core::Turns for Turns {
    #[allow(clippy::panic)] // all would wait for ever
    fn let_others_run(&self) {
        if let Some((turns, me)) = CLIENT.with_borrow(Clone::clone) {
            turns.give_back(me);
        } else if !self.run_one() {
            panic!("a call waits, and nobody is there to wait for");
        }
    }
}

/// A client may lose its turn here. False when it has died meanwhile.
pub fn pause() -> bool {
    let Some((turns, me)) = CLIENT.with_borrow(Clone::clone) else { return true };
    let mut state = turns.lock();
    let stays = state.stopped || state.rng.chance(35);
    state.pauses += u64::from(!stays);
    drop(state);
    if !stays {
        turns.give_back(me);
    }
    !turns.lock().stopped
}

/// Whether this thread is a client that has died.
pub fn is_stopped() -> bool {
    CLIENT.with_borrow(|c| c.as_ref().is_some_and(|(turns, _)| turns.lock().stopped))
}

/// The end of a client, however it came.
struct End(Arc<Turns>, usize);

impl Drop for End {
    fn drop(&mut self) {
        CLIENT.set(None);
        let mut state = self.0.lock();
        state.alive.retain(|c| *c != self.1);
        state.running = None;
        self.0.changed.notify_all();
    }
}

/// What is broken on purpose is broken for a thread: for that of the client, too.
#[cfg(feature = "breaks")]
fn as_broken_as_here(call: Box<dyn FnOnce() + Send>) -> Box<dyn FnOnce() + Send> {
    match nenrin_core::breaks::now() {
        Some(what) => Box::new(move || nenrin_core::breaks::with(what, call)),
        None => call,
    }
}

#[cfg(not(feature = "breaks"))]
fn as_broken_as_here(call: Box<dyn FnOnce() + Send>) -> Box<dyn FnOnce() + Send> {
    call
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meeting(seed: u64) -> Vec<u32> {
        let turns = Turns::new(seed);
        let seen = Arc::new(Mutex::new(Vec::new()));
        for client in 0..3 {
            let inner = Arc::clone(&seen);
            turns.begin(Box::new(move || {
                for step in 0..4 {
                    inner.lock().unwrap().push(client * 10 + step);
                    assert!(pause());
                }
            }));
            seen.lock().unwrap().push(99);
        }
        turns.run_until(0).unwrap();
        assert!(!turns.run_one());
        let seen = seen.lock().unwrap().clone();
        assert_eq!(seen.len(), 15);
        seen
    }

    #[test]
    fn one_seed_is_one_meeting() {
        assert_eq!(meeting(1), meeting(1));
        assert!((2..6).any(|seed| meeting(seed) != meeting(1)));
    }

    #[test]
    fn who_is_stopped_makes_no_request() {
        let turns = Turns::new(3);
        let requests = Arc::new(Mutex::new(0));
        let inner = Arc::clone(&requests);
        turns.begin(Box::new(move || {
            while pause() {
                *inner.lock().unwrap() += 1;
            }
        }));
        let before = *requests.lock().unwrap();
        turns.stop().unwrap();
        assert_eq!((*requests.lock().unwrap(), turns.under_way()), (before, 0));
    }
}
