//! Flushes under way, and whether one of them failed.
//!
//! A device tells of what it has lost once: the next flush has nothing left to do, and succeeds. So one that succeeds proves what
//! was written before it only if none failed that was under way when it began.
//!
//! Invariants
//! 1. That a flush failed is known before it counts as one that has returned.

use crate::breaks::{Break, broken};
use crate::{Clock, Error, Result};
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// Numbers of flushes, in the order in which they began.
#[derive(Default)]
struct State {
    begun: u64,
    /// Under way, of commits: whoever leads one of them looks at the others when it returns.
    of_commits: BTreeSet<u64>,
    /// Under way, of others.
    others: BTreeSet<u64>,
    failed: Option<String>,
}

/// All flushes of a volume.
#[derive(Default)]
pub(crate) struct Flushes {
    state: Mutex<State>,
    returned: Condvar,
    /// Who decides which thread runs.
    clock: OnceLock<Arc<dyn Clock>>,
}

impl Flushes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on turns are decided by this, if it does that.
    pub fn take_turns(&self, clock: Arc<dyn Clock>) {
        let _ = self.clock.set(clock);
    }

    /// Waits until one has returned, or for less.
    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if let Some(turns) = self.clock.get().and_then(|clock| clock.turns()) {
            drop(state);
            turns.let_others_run();
            return self.lock();
        }
        self.returned.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, of_commit: bool) -> u64 {
        let mut state = self.lock();
        state.begun += 1;
        let number = state.begun;
        if of_commit {
            state.of_commits.insert(number)
        } else {
            state.others.insert(number)
        };
        number
    }

    /// It returned. Waits for those of others that began before it.
    fn end<T>(&self, number: u64, done: Result<T>) -> Result<T> {
        let mut state = self.lock();
        if let Err(e) = &done {
            state.failed.get_or_insert_with(|| e.to_string());
        }
        let _ = state.of_commits.remove(&number) || state.others.remove(&number);
        self.returned.notify_all();
        let done = done?;
        while state.others.first().is_some_and(|first| *first < number) && !broken(Break::FlushesTrusted) {
            state = self.wait(state);
        }
        Ok(done)
    }

    /// Does a flush that belongs to no commit. What it proves it proves when it returns.
    ///
    /// # Errors
    /// When it fails, or another has failed.
    pub fn watch<T>(&self, flush: impl FnOnce() -> Result<T>) -> Result<T> {
        let number = self.begin(false);
        let done = self.end(number, flush())?;
        let mut state = self.lock();
        while !state.proves(number) {
            state = self.wait(state);
        }
        drop(state);
        self.failure().map_or(Ok(done), |why| Err(Error::Failed(why)))
    }

    /// Does one that belongs to no commit, for a commit that proves more with its own, later: so it waits for none of those before.
    ///
    /// # Errors
    /// When it fails, or another has failed.
    pub fn watch_data(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let number = self.begin(false);
        self.end(number, flush())?;
        self.failure().map_or(Ok(()), |why| Err(Error::Failed(why)))
    }

    /// Does that of a commit, which proves something when [`Flushes::proves`] says so of the number that this gives.
    ///
    /// # Errors
    /// When it fails.
    pub fn watch_commit(&self, flush: impl FnOnce() -> Result<()>) -> Result<u64> {
        let number = self.begin(true);
        self.end(number, flush()).map(|()| number)
    }

    /// Whether no flush is under way that began before this one.
    pub fn proves(&self, number: u64) -> bool {
        self.lock().proves(number)
    }

    /// Why one of them failed, if one did.
    pub fn failure(&self) -> Option<String> {
        let forgotten = broken(Break::FlushesTrusted) || broken(Break::FlushRetried) || broken(Break::FailureForgotten);
        self.lock().failed.clone().filter(|_| !forgotten)
    }
}

impl State {
    fn proves(&self, number: u64) -> bool {
        broken(Break::FlushesTrusted) || self.of_commits.first().is_none_or(|first| *first >= number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn fails() -> Error {
        Error::Failed("the device has lost something".into())
    }

    #[test]
    fn a_flush_proves_nothing_while_an_older_one_is_under_way() {
        let flushes = Flushes::default();
        let (first, second) = (flushes.begin(true), flushes.begin(true));
        flushes.end(second, Ok(())).unwrap();
        assert!(!flushes.proves(second) && flushes.failure().is_none());
        flushes.end::<()>(first, Err(fails())).unwrap_err();
        assert!(flushes.proves(second) && flushes.failure().is_some());
        assert!(flushes.watch(|| Ok(())).is_err(), "none is trusted after that");
    }

    #[test]
    fn those_of_others_are_waited_for() {
        let flushes = Arc::new(Flushes::default());
        let first = flushes.begin(false);
        let second = flushes.begin(true);
        let other = flushes.clone();
        let waits = thread::spawn(move || other.end(second, Ok(second)));
        while flushes.lock().of_commits.contains(&second) {
            thread::yield_now();
        }
        assert!(!waits.is_finished());
        flushes.end(first, Ok(())).unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), second);
        assert_eq!(flushes.watch(|| Ok(7)).unwrap(), 7);
    }
}
