//! What a device gets done while somebody waits for it, against what others got done before.
//!
//! A device that lets bursts through and then stands looks fast to most requests. What it gets done in a second with somebody
//! waiting for it most of that time is what it can do; and what another got done in any second is no more than what that
//! one can do. So of devices that are limited alike none is ever behind, however little the others have to do. And a device for which
//! nobody waits long holds nobody up, whatever its requests take.
//!
//! Invariants
//! 1. All devices are looked at together, each time at least [`WINDOW_NANOS`] after the last.
//! 2. Behind is who is few in requests and in bytes: many small and few large ones are both much work.

/// What is done is counted for so long.
const WINDOW_NANOS: u64 = 1_000_000_000;
/// A device that is behind gets less done than others did by so many times.
const BEHIND_TIMES: u64 = 4;
/// And so many windows in a row it must be, or hold others up.
const WINDOWS_MIN: u32 = 3;
/// Who is waited for in so many of ten parts of a window, and so many times as long as any other, holds others up.
const HOLDS_UP_MIN: u64 = 8;
const HOLDS_UP_TIMES: u64 = 2;

/// Requests and bytes, of writes and flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub requests: u64,
    pub bytes: u64,
}

impl Work {
    /// Whether this much more of either is still less.
    const fn is_less_by(self, times: u64, other: Self) -> bool {
        self.requests.saturating_mul(times) < other.requests && self.bytes.saturating_mul(times) < other.bytes
    }
}

/// What one device did in a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// How long it was, and for how much of that somebody waited for the device.
    nanos: u64,
    waited: u64,
    done: Work,
    /// The most that it got done in a window, of late.
    best: Work,
}

impl Window {
    fn holds_up(&self, others: &[Self]) -> bool {
        self.waited * 10 >= self.nanos * HOLDS_UP_MIN && others.iter().all(|o| o.waited * HOLDS_UP_TIMES <= self.waited)
    }
}

/// The least that others got done at best, of those that had something to do.
fn least_best(others: &[Window]) -> Work {
    let least =
        |of: fn(&Work) -> u64| others.iter().filter(|o| o.best.requests > 0).map(|o| of(&o.best)).min().unwrap_or(0);
    Work { requests: least(|w| w.requests), bytes: least(|w| w.bytes) }
}

/// Counts what one device gets done. Times are monotonic, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Rate {
    began: Option<u64>,
    /// How many wait for it, and since when anybody does.
    waiting: u32,
    waiting_since: u64,
    waited: u64,
    done: Work,
    best: Work,
    /// Windows in a row in which it held others up, and in which it was behind besides.
    held_up: u32,
    behind: u32,
    /// At its best it is behind what others do at theirs.
    is_less: bool,
}

impl Rate {
    /// Somebody begins to wait for a request.
    pub fn wait_begins(&mut self, now: u64) {
        if self.waiting == 0 {
            self.waiting_since = now;
        }
        self.waiting += 1;
    }

    /// He has what he waited for.
    pub fn wait_ends(&mut self, now: u64) {
        self.waiting -= 1;
        if self.waiting == 0 {
            self.waited += now.saturating_sub(self.waiting_since);
        }
    }

    /// A request is done.
    pub const fn done(&mut self, bytes: u64) {
        self.done.requests += 1;
        self.done.bytes += bytes;
    }

    /// Ends the window and begins the next, if it was long enough.
    pub fn close(&mut self, now: u64) -> Option<Window> {
        let nanos = now.saturating_sub(*self.began.get_or_insert(now));
        if nanos < WINDOW_NANOS {
            return None;
        }
        if self.waiting > 0 {
            self.waited += now.saturating_sub(self.waiting_since);
            self.waiting_since = now;
        }
        self.began = Some(now);
        let (waited, done) = (std::mem::take(&mut self.waited), std::mem::take(&mut self.done));
        let each_second = |n: u64| (u128::from(n) * u128::from(WINDOW_NANOS) / u128::from(nanos)) as u64;
        let done = Work { requests: each_second(done.requests), bytes: each_second(done.bytes) };
        // What it could do a while ago it may not be asked for now, and may not be able to any more.
        if done.requests > 0 {
            let fades = |best: u64| best - best.div_ceil(32);
            self.best.requests = done.requests.max(fades(self.best.requests));
            self.best.bytes = done.bytes.max(fades(self.best.bytes));
        }
        Some(Window { nanos, waited, done, best: self.best })
    }

    /// Compares what it and the others did in the window that ended.
    pub fn compare(&mut self, own: &Window, others: &[Window]) {
        let least = least_best(others);
        let in_a_row = |windows: u32, is_so: bool| if is_so { windows + 1 } else { 0 };
        let holds_up = own.holds_up(others);
        self.held_up = in_a_row(self.held_up, holds_up);
        self.behind = in_a_row(self.behind, holds_up && own.done.is_less_by(BEHIND_TIMES, least));
        self.is_less = own.best.is_less_by(BEHIND_TIMES, least);
    }

    /// Whether it has been behind for long enough.
    pub const fn lags(&self) -> bool {
        self.behind >= WINDOWS_MIN
    }

    /// Whether it was what others waited for, for long enough.
    pub const fn holds_up(&self) -> bool {
        self.held_up >= WINDOWS_MIN
    }

    /// Whether others did, of late, what it never did.
    pub const fn is_less(&self) -> bool {
        self.is_less
    }

    /// Others wait for it no longer, or anew.
    pub const fn forget(&mut self) {
        self.held_up = 0;
        self.behind = 0;
        self.is_less = false;
    }

    /// One that others waited for, or not, and that is behind at its best, or not.
    #[cfg(test)]
    pub fn of(holds_up: bool, is_less: bool) -> Self {
        Self { held_up: if holds_up { WINDOWS_MIN } else { 0 }, is_less, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Closes windows of a second in which each device did so many requests of so many bytes, and was waited for so many ms; in which of them the first lags.
    fn lagging(rates: &mut [Rate], from: u64, seconds: u64, did: &[(u64, u64, u64)]) -> Vec<u64> {
        let mut lagging = Vec::new();
        for second in from..from + seconds {
            let begin = second * 1000 * MS;
            let windows: Vec<Window> = rates
                .iter_mut()
                .zip(did)
                .map(|(rate, (requests, bytes, waited))| {
                    assert!(second > from || from > 0 || rate.close(begin).is_none());
                    rate.wait_begins(begin);
                    rate.wait_ends(begin + waited * MS);
                    (0..*requests).for_each(|_| rate.done(*bytes));
                    rate.close(begin + 1000 * MS).unwrap()
                })
                .collect();
            rates[0].compare(&windows[0], &windows[1..]);
            if rates[0].lags() {
                lagging.push(second);
            }
        }
        lagging
    }

    fn four() -> Vec<Rate> {
        (0..4).map(|_| Rate::default()).collect()
    }

    #[test]
    fn who_holds_up_all_lags_after_three_windows() {
        let mut rates = four();
        assert!(lagging(&mut rates, 0, 2, &[(2000, 8192, 200); 4]).is_empty());
        let held_up = [(80, 8192, 950), (80, 8192, 10), (80, 8192, 10), (80, 8192, 10)];
        assert_eq!(lagging(&mut rates, 2, 4, &held_up), [4, 5]);
        // One that never answers gets nothing done.
        let mut rates = four();
        lagging(&mut rates, 0, 2, &[(100, 8192, 200); 4]);
        assert_eq!(lagging(&mut rates, 2, 3, &[(0, 0, 1000), (0, 0, 0), (0, 0, 0), (0, 0, 0)]), [4]);
    }

    #[test]
    fn limited_alike_none_is_behind() {
        // The first is at its limit, and the others, which wait for it, look as if they had none.
        let mut rates = four();
        assert!(
            lagging(&mut rates, 0, 9, &[(250, 8192, 1000), (120, 8192, 12), (130, 8192, 13), (1, 4096, 1)]).is_empty()
        );
        // All of them had a burst before.
        let mut rates = four();
        lagging(&mut rates, 0, 1, &[(275, 8192, 30); 4]);
        assert!(
            lagging(&mut rates, 1, 9, &[(250, 8192, 1000), (100, 8192, 9), (100, 8192, 9), (100, 8192, 9)]).is_empty()
        );
        // Limited in bytes: many small ones before, and few large ones now.
        let mut rates = four();
        lagging(&mut rates, 0, 1, &[(5000, 4096, 900); 4]);
        let large = [(40, 512 << 10, 1000), (5, 512 << 10, 9), (5, 512 << 10, 9), (5, 512 << 10, 9)];
        assert!(lagging(&mut rates, 1, 9, &large).is_empty());
    }

    #[test]
    fn none_is_behind_that_has_little_to_do_or_waits_with_others() {
        let mut rates = four();
        lagging(&mut rates, 0, 1, &[(2000, 8192, 300); 4]);
        assert!(lagging(&mut rates, 1, 5, &[(3, 8192, 100), (3, 8192, 1), (3, 8192, 1), (3, 8192, 1)]).is_empty());
        let mut rates = four();
        lagging(&mut rates, 0, 1, &[(2000, 8192, 300); 4]);
        assert!(lagging(&mut rates, 1, 5, &[(3, 8192, 900), (3, 8192, 900), (3, 8192, 1), (3, 8192, 1)]).is_empty());
        // Nothing is known of what the others can do.
        let mut rates = four();
        assert!(lagging(&mut rates, 0, 5, &[(80, 8192, 950), (80, 8192, 10), (80, 8192, 10), (0, 0, 0)]).is_empty());
        assert!(rates[0].holds_up() && !rates[0].is_less());
        // While it had nothing to do that was seen.
        lagging(&mut rates, 5, 1, &[(0, 0, 0), (400, 8192, 100), (400, 8192, 100), (400, 8192, 100)]);
        assert!(!rates[0].holds_up() && rates[0].is_less());
    }

    #[test]
    fn who_is_waited_for_longest_holds_up() {
        let holds_up = |waited: [u64; 4], seconds: u64| {
            let mut rates = four();
            lagging(&mut rates, 0, seconds, &waited.map(|ms| (10, 4096, ms)));
            rates[0].holds_up()
        };
        assert!(holds_up([800, 400, 0, 0], 3));
        assert!(!holds_up([800, 400, 0, 0], 2));
        assert!(!holds_up([799, 0, 0, 0], 3));
        assert!(!holds_up([1000, 0, 501, 0], 3));
    }

    #[test]
    fn waits_of_several_count_once() {
        let mut rate = Rate::default();
        assert!(rate.close(0).is_none());
        rate.wait_begins(100 * MS);
        rate.wait_begins(200 * MS);
        rate.wait_ends(300 * MS);
        rate.wait_ends(600 * MS);
        rate.wait_begins(900 * MS);
        let window = rate.close(1000 * MS).unwrap();
        assert_eq!((window.nanos, window.waited), (1000 * MS, 600 * MS));
        assert!(rate.close(1500 * MS).is_none());
        assert_eq!(rate.close(2000 * MS).unwrap().waited, 1000 * MS);
    }
}
