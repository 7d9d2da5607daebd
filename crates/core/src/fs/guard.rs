//! The lock that all operations take, held by a thread; and whether the thread holds it.
//!
//! Invariants
//! 1. Nobody waits for a write or a flush of a device while holding it: so whoever waits for it waits for no commit. Such waits
//!    are counted ([`super::Counters::device_waits_locked`]); there are none.

use super::{Fs, Inner};
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

/// Ends the volume where a thread panics that others wait for while it holds no lock: they would wait for ever. It must not live inside of
/// what holds the lock.
pub(super) struct Awaited<'a>(pub &'a Fs);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !broken(Break::AwaitedLost) {
            let mut inner = self.0.lock();
            inner.fail("a thread that others waited for has failed");
            self.0.wake_idle(&inner);
        }
    }
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
        Self { inner, _mark: Mark(PhantomData) }
    }

    /// Lets others have it until somebody wakes this thread.
    pub(super) fn wait(self, idle: &Condvar) -> Self {
        let Self { inner, _mark } = self;
        let inner = idle.wait(inner).unwrap_or_else(|e| {
            let mut inner = PoisonError::into_inner(e);
            inner.fail(POISONED);
            inner
        });
        Self { inner, _mark }
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

#[cfg(test)]
impl super::Fs {
    /// Gives an item of the live tree another value, of which the log says nothing; what it had.
    pub(crate) fn put_unlogged(&self, key: nenrin_format::key::Key, value: crate::index::Value) -> crate::index::Value {
        let s = &mut self.lock().state;
        s.live.insert(&s.cache, key, value).unwrap().unwrap()
    }

    /// Puts an item into the space tree that means nothing, instead of what is there.
    pub(crate) fn put_bad_space_item(&self, key: nenrin_format::key::Key) {
        let s = &mut self.lock().state;
        s.space.insert(&s.cache, key, vec![0xff; 3].into()).unwrap();
    }
}
