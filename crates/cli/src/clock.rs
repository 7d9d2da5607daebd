//! Time from the host.

use nenrin_core::Clock;
use nenrin_format::Time;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

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
}
