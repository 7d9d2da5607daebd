//! Flushes under way, and whether one of them failed.
//!
//! A device tells of what it has lost once: the next flush has nothing left to do, and succeeds. So one that succeeds proves what
//! was written before it only if none failed that was under way when it began.
//!
//! Invariants
//! 1. That a flush failed is known before it counts as one that has returned; one whose thread panicked has failed.

use crate::breaks::{Break, broken};
use crate::{Clock, Error, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

/// Numbers of flushes, in the order in which they began.
#[derive(Default)]
struct State {
    begun: u64,
    /// Under way, of commits, in order: whoever leads one of them looks at the others when it returns.
    of_commits: Vec<u64>,
    /// Under way, of others, in order.
    others: Vec<u64>,
    /// Threads that wait until one has returned.
    waiters: u32,
    failed: Option<String>,
}

/// All flushes of a volume.
#[derive(Default)]
pub(crate) struct Flushes {
    state: Mutex<State>,
    returned: Condvar,
    awaited: AtomicU64,
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
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if let Some(turns) = self.clock.get().and_then(|clock| clock.turns()) {
            drop(state);
            turns.let_others_run();
            return self.lock();
        }
        state.waiters += 1;
        let mut state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.waiters -= 1;
        state
    }

    fn wait_while<'a>(&'a self, mut state: MutexGuard<'a, State>, blocked: impl Fn(&State) -> bool) {
        self.awaited.fetch_add(u64::from(blocked(&state)), Relaxed);
        while blocked(&state) {
            state = self.wait(state);
        }
    }

    fn begin(&self, of_commit: bool) -> u64 {
        let mut state = self.lock();
        state.begun += 1;
        let number = state.begun;
        let under_way = if of_commit { &mut state.of_commits } else { &mut state.others };
        under_way.push(number);
        number
    }

    /// Does one, and waits for those of others that began before it.
    fn make<T>(&self, of_commit: bool, flush: impl FnOnce() -> Result<T>) -> Result<(u64, T)> {
        let under_way = UnderWay { flushes: self, number: self.begin(of_commit) };
        let number = under_way.number;
        let done = flush();
        under_way.end(&done);
        let done = done?;
        let older = |state: &State| state.others.first().is_some_and(|first| *first < number);
        self.wait_while(self.lock(), |state| older(state) && !broken(Break::FlushesTrusted));
        Ok((number, done))
    }

    /// Does a flush that belongs to no commit. What it proves it proves when it returns.
    ///
    /// # Errors
    /// When it fails, or another has failed.
    pub fn watch<T>(&self, flush: impl FnOnce() -> Result<T>) -> Result<T> {
        let (number, done) = self.make(false, flush)?;
        self.wait_while(self.lock(), |state| !state.proves(number));
        self.failure().map_or(Ok(done), |why| Err(Error::Failed(why)))
    }

    /// Does that of a commit, which proves something when [`Flushes::proves`] says so of the number that this gives.
    ///
    /// # Errors
    /// When it fails.
    pub fn watch_commit(&self, flush: impl FnOnce() -> Result<()>) -> Result<u64> {
        Ok(self.make(true, flush)?.0)
    }

    /// Whether no flush is under way that began before this one.
    pub fn proves(&self, number: u64) -> bool {
        self.lock().proves(number)
    }

    /// Times that one waited for one that began before it.
    pub fn awaited(&self) -> u64 {
        self.awaited.load(Relaxed)
    }

    /// Why one of them failed, if one did.
    pub fn failure(&self) -> Option<String> {
        let forgotten = broken(Break::FlushesTrusted) || broken(Break::FlushRetried) || broken(Break::FailureForgotten);
        self.lock().failed.clone().filter(|_| !forgotten)
    }
}

/// One of them, until it has returned.
struct UnderWay<'a> {
    flushes: &'a Flushes,
    number: u64,
}

impl UnderWay<'_> {
    fn end<T>(self, done: &Result<T>) {
        if let Err(e) = done {
            self.flushes.lock().failed.get_or_insert_with(|| e.to_string());
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.flushes.lock();
        if thread::panicking() {
            state.failed.get_or_insert_with(|| "a thread failed while it flushed".into());
        }
        let State { of_commits, others, .. } = &mut *state;
        [of_commits, others].into_iter().for_each(|under_way| under_way.retain(|n| *n != self.number));
        // Where nobody waits it would be a system call all the same.
        if state.waiters > 0 {
            self.flushes.returned.notify_all();
        }
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
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn fails() -> Error {
        Error::Failed("the device has lost something".into())
    }

    impl Flushes {
        fn under_way(&self, of_commit: bool) -> UnderWay<'_> {
            UnderWay { flushes: self, number: self.begin(of_commit) }
        }
    }

    #[test]
    fn a_flush_proves_nothing_while_an_older_one_is_under_way() {
        let flushes = Flushes::default();
        let first = flushes.under_way(true);
        let second = flushes.watch_commit(|| Ok(())).unwrap();
        assert!(!flushes.proves(second) && flushes.failure().is_none());
        first.end::<()>(&Err(fails()));
        assert!(flushes.proves(second) && flushes.failure().is_some());
        assert!(flushes.watch(|| Ok(())).is_err(), "none is trusted after that");
    }

    #[test]
    fn those_of_others_are_waited_for() {
        let flushes = Flushes::default();
        thread::scope(|s| {
            let first = flushes.under_way(false);
            let waits = s.spawn(|| flushes.watch_commit(|| Ok(())));
            while flushes.awaited() == 0 {
                thread::yield_now();
            }
            assert!(!waits.is_finished());
            first.end(&Ok(()));
            assert_eq!(waits.join().unwrap().unwrap(), 2);
        });
        assert_eq!(flushes.watch(|| Ok(7)).unwrap(), 7);
    }

    #[test]
    fn one_that_is_lost_has_failed() {
        for of_commit in [false, true] {
            let flushes = Flushes::default();
            let lost = || flushes.make::<()>(of_commit, || panic!("in the middle of a flush"));
            assert!(catch_unwind(AssertUnwindSafe(lost)).is_err());
            assert!(flushes.failure().is_some() && flushes.proves(9));
            assert!(flushes.watch(|| Ok(())).is_err());
        }
    }
}
