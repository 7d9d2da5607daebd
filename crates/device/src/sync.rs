//! Locks that shrug off poison: nothing here panics while it holds one, and
//! a caller's panic must not take the device away from everybody else.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks `mutex`.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar`.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar` for as long as `blocked` says so, and so long at most.
pub(crate) fn wait_at_most<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
    blocked: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    condvar.wait_timeout_while(guard, time, blocked).unwrap_or_else(PoisonError::into_inner).0
}
