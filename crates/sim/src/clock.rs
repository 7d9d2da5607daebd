//! Virtual time: it moves only when the simulator moves it.

use crate::turns::Turns;
use nenrin_core::Clock;
use nenrin_format::Time;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A clock that stands still until it is told otherwise.
#[derive(Debug)]
pub struct VirtualClock {
    wall: AtomicI64,
    monotonic: AtomicU64,
    turns: OnceLock<Arc<Turns>>,
}

impl VirtualClock {
    /// Starts on 2025-01-01, for every simulation alike.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            wall: AtomicI64::new(1_735_689_600_000_000_000),
            monotonic: AtomicU64::new(1_000_000_000),
            turns: OnceLock::new(),
        }
    }
    /// From now on this decides which thread runs.
    pub fn decide_turns(&self, turns: Arc<Turns>) {
        self.turns.get_or_init(|| turns);
    }
    /// Both times go on.
    pub fn advance(&self, nanos: u64) {
        self.wall.fetch_add(nanos as i64, Ordering::Relaxed);
        self.monotonic.fetch_add(nanos, Ordering::Relaxed);
    }
    /// Somebody sets the wall clock.
    pub fn jump(&self, nanos: i64) {
        self.wall.fetch_add(nanos, Ordering::Relaxed);
    }
    /// A clock that shows the same and goes its own way from here, for one thread.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            wall: AtomicI64::new(self.wall().0),
            monotonic: AtomicU64::new(self.monotonic_nanos()),
            turns: OnceLock::new(),
        }
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for VirtualClock {
    fn wall(&self) -> Time {
        Time(self.wall.load(Ordering::Relaxed))
    }
    fn monotonic_nanos(&self) -> u64 {
        self.monotonic.load(Ordering::Relaxed)
    }
    fn wait(&self, nanos: u64) {
        self.advance(nanos);
    }
    fn rest(&self, _nanos: u64) {
        if let Some(turns) = self.turns.get() {
            turns.rest();
        }
    }
    fn turns(&self) -> Option<&dyn nenrin_core::Turns> {
        self.turns.get().map(|t| t.as_ref() as _)
    }
}
