//! Time from the host.

use nenrin_core::Clock;
use nenrin_format::Time;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// How long a thread computes between pauses.
const BREATH: Duration = Duration::from_micros(150);

thread_local! {
    /// What this thread had computed when it last paused, if it ever did.
    static PAUSED_AT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// What this thread has computed so far: where it waited, for a device or a lock, others had the processor.
fn computed() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// The host's clocks.
pub struct HostClock {
    /// What the host's clock said when this began.
    start: u64,
}

/// Nanoseconds of a clock of the host that never goes back.
fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Those of the monotonic one, which is asked several times for each request.
fn monotonic() -> u64 {
    nanos(ClockId::Monotonic)
}

impl HostClock {
    /// A clock that starts now.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self { start: monotonic() })
    }
}

/// Nanoseconds since 1970.
pub fn now() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

impl Clock for HostClock {
    fn wall(&self) -> Time {
        Time(now())
    }
    fn monotonic_nanos(&self) -> u64 {
        monotonic().saturating_sub(self.start)
    }
    fn lease_nanos(&self) -> u64 {
        nanos(ClockId::Boottime)
    }
    fn breathe(&self) {
        let now = computed();
        if now.saturating_sub(PAUSED_AT.get().unwrap_or_default()) >= BREATH {
            // As short as the timer makes it: about 60 us.
            std::thread::sleep(Duration::from_nanos(1));
            PAUSED_AT.set(Some(now));
        }
    }
    fn rest(&self, nanos: u64) {
        std::thread::sleep(Duration::from_nanos(nanos));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time in which the machine was suspended counts: the monotonic clock stood meanwhile, so it is never ahead.
    #[test]
    fn a_lease_goes_by_all_time_that_has_passed() {
        let clock = HostClock::shared();
        let (monotonic, first) = (monotonic(), clock.lease_nanos());
        std::thread::sleep(Duration::from_millis(5));
        assert!(first >= monotonic && clock.lease_nanos() >= first + 5_000_000);
    }

    /// A pause after so much computing, not at each call: they are many.
    #[test]
    fn a_thread_pauses_now_and_then() {
        let clock = HostClock::shared();
        let until_it_pauses = || {
            let last = PAUSED_AT.get();
            while PAUSED_AT.get() == last {
                clock.breathe();
            }
            PAUSED_AT.get().unwrap()
        };
        let first = until_it_pauses();
        assert!(until_it_pauses() >= first + BREATH);
        // Who waited has not computed.
        let (last, before) = (PAUSED_AT.get(), computed());
        std::thread::sleep(20 * BREATH);
        clock.breathe();
        assert!(PAUSED_AT.get() == last || computed() - before >= BREATH, "it paused for having slept");
    }
}
