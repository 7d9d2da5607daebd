//! Waits for an idle machine before a slice, for a bounded time.
//!
//! Invariants
//! 1. A single wait ends after `max_wait`, all waits together after `budget`; from then on the gate looks once and lets
//!    through, saying that it gave up.
//! 2. Whatever the gate saw is in its verdict, so that a reader can leave out noisy slices.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sys;

/// How the gate behaves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Busy cores (all processes and the kernel together) below which the machine counts as idle.
    pub busy_cores: f64,
    /// Length of one look.
    pub window_ms: u64,
    /// Longest wait before one slice.
    pub max_wait_ms: u64,
    /// Longest wait in the whole run.
    pub budget_ms: u64,
}

/// What the gate saw before a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Time spent waiting.
    pub waited_ms: u64,
    /// Busy cores in the last look.
    pub busy_cores: f64,
    /// The machine never became idle, the slice ran all the same.
    pub gave_up: bool,
}

/// Something that tells, over a window, how many cores were busy.
pub trait Load {
    /// Looks for `window` and says how many cores were busy; None when it cannot be told.
    fn busy_cores(&mut self, window: Duration) -> Option<f64>;
}

/// The gate, with what is left of its budget.
pub struct Gate<L> {
    settings: Settings,
    left_ms: u64,
    load: L,
}

impl<L: Load> Gate<L> {
    /// A gate with its whole budget.
    pub fn new(settings: Settings, load: L) -> Self {
        Self { left_ms: settings.budget_ms, settings, load }
    }

    /// Waits until the machine is idle or the patience is over.
    pub fn wait(&mut self) -> Verdict {
        let patience = self.settings.max_wait_ms.min(self.left_ms);
        let window = Duration::from_millis(self.settings.window_ms);
        let mut waited_ms = 0;
        loop {
            let busy = self.load.busy_cores(window);
            let busy_cores = busy.unwrap_or(0.0);
            let idle = busy_cores <= self.settings.busy_cores;
            if idle || waited_ms >= patience || sys::interrupted() {
                self.left_ms = self.left_ms.saturating_sub(waited_ms);
                return Verdict { waited_ms, busy_cores, gave_up: !idle };
            }
            waited_ms += self.settings.window_ms.max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Script(Vec<f64>, usize);

    impl Load for Script {
        fn busy_cores(&mut self, _: Duration) -> Option<f64> {
            self.1 += 1;
            if self.0.len() > 1 { Some(self.0.remove(0)) } else { self.0.first().copied() }
        }
    }

    fn gate(load: &[f64]) -> Gate<Script> {
        let settings = Settings { busy_cores: 0.2, window_ms: 100, max_wait_ms: 500, budget_ms: 700 };
        Gate::new(settings, Script(load.to_vec(), 0))
    }

    #[test]
    fn idle_passes_at_once() {
        let verdict = gate(&[0.1]).wait();
        assert_eq!(verdict, Verdict { waited_ms: 0, busy_cores: 0.1, gave_up: false });
    }

    #[test]
    fn waits_until_idle() {
        let verdict = gate(&[1.5, 1.0, 0.2]).wait();
        assert_eq!(verdict, Verdict { waited_ms: 200, busy_cores: 0.2, gave_up: false });
    }

    #[test]
    fn gives_up_and_says_so() {
        let verdict = gate(&[1.5]).wait();
        assert_eq!(verdict, Verdict { waited_ms: 500, busy_cores: 1.5, gave_up: true });
    }

    #[test]
    fn the_budget_bounds_the_whole_run() {
        let mut gate = gate(&[1.5]);
        let waits: Vec<u64> = (0..4).map(|_| gate.wait().waited_ms).collect();
        assert_eq!(waits, [500, 200, 0, 0]);
        let looks = gate.load.1;
        assert!(gate.wait().gave_up);
        assert_eq!(gate.load.1, looks + 1);
    }

    #[test]
    fn a_machine_that_cannot_be_asked_counts_as_idle() {
        struct Blind;
        impl Load for Blind {
            fn busy_cores(&mut self, _: Duration) -> Option<f64> {
                None
            }
        }
        let settings = Settings { busy_cores: 0.2, window_ms: 100, max_wait_ms: 500, budget_ms: 700 };
        assert!(!Gate::new(settings, Blind).wait().gave_up);
    }
}
