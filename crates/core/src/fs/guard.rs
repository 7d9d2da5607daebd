//! The lock that all operations take, held by a thread; and whether the thread holds it.
//!
//! Invariants
//! 1. Nobody waits for a write or a flush of a device while holding it: so whoever waits for it waits for no commit. Such waits
//!    are counted ([`super::Counters::device_waits_locked`]); there are none.
//! 2. What was laid out and is not applied yet is applied by the next who gets it, before anything else: nobody sees a state without it.

use super::Inner;
use crate::breaks::{Break, broken};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, MutexGuard, PoisonError};

/// Why a volume fails whose lock was held by a thread that panicked.
pub(super) const POISONED: &str = "a thread stopped in the middle of a change";

thread_local! {
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread holds the lock of a volume.
pub(crate) fn is_held() -> bool {
    HELD.get() > 0
}

/// Counts as long as it lives.
struct Mark(PhantomData<*const ()>);

impl Drop for Mark {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

/// The lock, held.
pub(super) struct Guard<'a> {
    inner: MutexGuard<'a, Inner>,
    _mark: Mark,
}

impl<'a> Guard<'a> {
    pub(super) fn new(inner: MutexGuard<'a, Inner>) -> Self {
        HELD.set(HELD.get() + 1);
        let mut guard = Self { inner, _mark: Mark(PhantomData) };
        guard.catch_up();
        guard
    }

    /// Whoever has the lock sees all that was laid out (invariant 2).
    fn catch_up(&mut self) {
        let due = !self.inner.sealed_records.is_empty() && !broken(Break::SealedUnapplied);
        // A thread that panics leaves it to the next: it may be what it panicked in.
        if due && !std::thread::panicking() {
            self.inner.apply_sealed();
        }
    }

    /// Lets others have it until somebody wakes this thread.
    pub(super) fn wait(self, idle: &Condvar) -> Self {
        let Self { inner, _mark } = self;
        let inner = idle.wait(inner).unwrap_or_else(|e| {
            let mut inner = PoisonError::into_inner(e);
            inner.fail(POISONED);
            inner
        });
        let mut guard = Self { inner, _mark };
        guard.catch_up();
        guard
    }
}

impl Deref for Guard<'_> {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}
