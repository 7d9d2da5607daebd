//! Time from the host.

use crate::sys;
use nenrin_core::Clock;
use nenrin_format::Time;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The slice of a thread that gives way: the longest that Linux takes.
const LONG_SLICE: Duration = Duration::from_millis(100);

/// The host's clocks.
pub struct HostClock {
    start: Instant,
}

impl HostClock {
    /// A clock that starts now.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self { start: Instant::now() })
    }
}

/// Nanoseconds since 1970.
pub fn now() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |n| -n),
    }
}

impl Clock for HostClock {
    fn wall(&self) -> Time {
        Time(now())
    }
    fn monotonic_nanos(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
    fn give_way(&self, on: bool) {
        thread_local!(static DEPTH: Cell<u32> = const { Cell::new(0) });
        let before = DEPTH.get();
        DEPTH.set(if on { before + 1 } else { before.saturating_sub(1) });
        if before.max(DEPTH.get()) == 1 {
            sys::set_slice(on.then_some(LONG_SLICE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until the last of nested calls has ended, and for no other thread.
    #[test]
    fn a_thread_gives_way_from_the_first_call_to_the_last() {
        let clock = HostClock::shared();
        let usual = sys::slice();
        clock.give_way(true);
        if sys::slice() == usual {
            println!("SKIP: this kernel has no slices for single threads");
            return;
        }
        assert_eq!(sys::slice(), LONG_SLICE);
        clock.give_way(true);
        clock.give_way(false);
        assert_eq!(sys::slice(), LONG_SLICE, "the inner one ended the outer one");
        clock.give_way(false);
        assert_eq!(sys::slice(), usual);
        clock.give_way(false);
        clock.give_way(true);
        assert_eq!(sys::slice(), LONG_SLICE, "one end too many counts");
    }
}
