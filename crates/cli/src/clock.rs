//! Time from the host.

use nenrin_core::Clock;
use nenrin_format::Time;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a thread computes between pauses.
const BREATH: Duration = Duration::from_micros(300);

thread_local! {
    /// When this thread last did.
    static PAUSED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

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
    fn breathe(&self) {
        if PAUSED_AT.get().is_none_or(|at| at.elapsed() >= BREATH) {
            // As short as the timer makes it: about 60 us.
            std::thread::sleep(Duration::from_nanos(1));
            PAUSED_AT.set(Some(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pause after so long, not at each call: they are many.
    #[test]
    fn a_thread_pauses_now_and_then() {
        let clock = HostClock::shared();
        clock.breathe();
        let first = PAUSED_AT.get();
        assert!(first.is_some());
        std::thread::sleep(BREATH);
        clock.breathe();
        assert!(PAUSED_AT.get() > first);
        PAUSED_AT.set(Some(Instant::now() + Duration::from_secs(60)));
        let not_yet = PAUSED_AT.get();
        clock.breathe();
        assert_eq!(PAUSED_AT.get(), not_yet);
    }
}
