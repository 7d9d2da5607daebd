//! Threads that lead commits for those that must not wait.
//!
//! Invariants
//! 1. Every call is followed, also one that comes at the end: others count on a lead that was announced.

use std::sync::{Condvar, Mutex, PoisonError};

/// Where they wait.
#[derive(Default)]
pub(crate) struct Leaders {
    state: Mutex<Calls>,
    changed: Condvar,
}

#[derive(Default)]
struct Calls {
    open: usize,
    ended: bool,
}

impl Leaders {
    /// Somebody has to lead.
    pub fn call(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).open += 1;
        self.changed.notify_one();
    }
    /// Waits for a call; false at the end.
    pub fn wait(&self) -> bool {
        let calls = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |calls: &mut Calls| calls.open == 0 && !calls.ended;
        let mut calls = self.changed.wait_while(calls, idle).unwrap_or_else(PoisonError::into_inner);
        let called = calls.open > 0;
        calls.open -= usize::from(called);
        called
    }
    /// No more calls will come.
    pub fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_followed_before_the_end() {
        let leaders = Leaders::default();
        leaders.call();
        leaders.call();
        leaders.end();
        assert!(leaders.wait() && leaders.wait() && !leaders.wait());
    }
}
