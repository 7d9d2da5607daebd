//! When the end of a request is looked for instead of slept for (hybrid polling, as Linux had it for NVMe): who waits alone for a short
//! request sleeps for most of the time that such requests take, and looks for its end from shortly before it is due.
//!
//! A thread that sleeps is woken on a processor that sleeps, too, and on a virtual machine that takes tens of microseconds: a seventh
//! of a sync. So the thread gets up while the device still works.
//!
//! It pays only while a processor has nothing else to do. So one thread at a time does it, for a program that is alone; between two looks it
//! gives the processor to whoever wants it; and it stops where it does not see the end, or others took the processor.
//! Why: docs/decisions/0032-polling.md.
//!
//! Invariants
//! 1. Nobody polls beside another request of the device, nor before so many in a row met none, nor beside another thread that polls.
//! 2. A request is polled for at most [`POLL_MAX`].

use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time for which one request is polled for.
const POLL_MAX: Duration = Duration::from_micros(100);
/// So long before the end is due its thread gets up.
const AHEAD: Duration = Duration::from_micros(80);
/// Requests that take longer are slept for: to be woken is little of that.
const MEAN_MAX: Duration = Duration::from_millis(1);
/// So many requests in a row that met no other, and who asks is alone.
const ALONE_FROM: u32 = 16;
/// Who gives the processor away and is without it for so long had competitors.
const CONTESTED_FROM: Duration = Duration::from_micros(50);
/// Most that good experience counts.
const TRUST_MAX: u32 = 16;
/// Where there is no trust, one of so many requests is polled for, so that a change is found out.
const PROBE: u64 = 256;

/// Whether a thread polls, for whichever device.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// What came of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// The end was seen.
    Seen,
    /// It came before the thread got up.
    Asleep,
    /// It did not come in time.
    Missed,
    /// Others wanted the processor.
    Contested,
}

/// How to wait for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Until the thread gets up.
    pub sleep: Duration,
    /// Then it polls for so long.
    pub poll: Duration,
}

impl Plan {
    /// Looks for the end until it is there or something speaks against it.
    pub fn poll(&self, mut is_there: impl FnMut() -> bool) -> Polled {
        let began = Instant::now();
        let mut looked = began;
        loop {
            if is_there() {
                return Polled::Seen;
            }
            if looked - began >= self.poll {
                return Polled::Missed;
            }
            thread::yield_now();
            let now = Instant::now();
            if now - looked >= CONTESTED_FROM {
                return if is_there() { Polled::Seen } else { Polled::Contested };
            }
            looked = now;
        }
    }
}

/// A request that is under way.
pub(super) struct Request {
    began: Instant,
    beside: bool,
    meetings: u64,
    plan: Option<Plan>,
}

impl Request {
    /// How to wait for it; none to sleep.
    pub fn plan(&self) -> Option<Plan> {
        self.plan
    }
}

/// What is known of a device's requests.
pub(super) struct Polling {
    wanted: bool,
    taken: &'static AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    under_way: u32,
    /// Requests that began beside another.
    meetings: u64,
    /// Requests in a row that met no other.
    alone: u32,
    /// What those take; the recent ones count most.
    mean: Duration,
    trust: u32,
    requests: u64,
}

impl Polling {
    /// Nobody polls where it is not wanted, or a single processor has to do everything.
    pub fn new(wanted: bool) -> Self {
        let wanted = wanted && thread::available_parallelism().is_ok_and(|n| n.get() > 1);
        let state =
            State { under_way: 0, meetings: 0, alone: 0, mean: Duration::ZERO, trust: TRUST_MAX / 2, requests: 0 };
        Self { wanted, taken: &TAKEN, state: Mutex::new(state) }
    }

    /// A request begins.
    pub fn begin(&self) -> Request {
        let mut state = lock(&self.state);
        let beside = state.under_way > 0;
        state.under_way += 1;
        state.requests += 1;
        state.meetings += u64::from(beside);
        let plan = if self.wanted && !beside { state.plan() } else { None };
        let plan = plan.filter(|_| !self.taken.swap(true, Relaxed));
        Request { began: Instant::now(), beside, meetings: state.meetings, plan }
    }

    /// It has ended.
    pub fn end(&self, request: &Request, polled: Option<Polled>) {
        let took = request.began.elapsed();
        if request.plan.is_some() {
            self.taken.store(false, Relaxed);
        }
        let mut state = lock(&self.state);
        state.under_way -= 1;
        if request.beside || request.meetings != state.meetings {
            state.alone = 0;
            return;
        }
        state.learn(took, polled);
    }
}

impl State {
    fn plan(&self) -> Option<Plan> {
        let trusts = self.trust > 0 || self.requests % PROBE == 0;
        let short = !self.mean.is_zero() && self.mean <= MEAN_MAX;
        let sleep = self.mean.saturating_sub(AHEAD);
        (trusts && short && self.alone >= ALONE_FROM).then_some(Plan { sleep, poll: POLL_MAX })
    }

    /// A request that was alone took so long.
    fn learn(&mut self, took: Duration, polled: Option<Polled>) {
        self.alone = self.alone.saturating_add(1);
        // One that took very long is an accident.
        let took = if self.mean.is_zero() { took } else { took.min(self.mean * 2) };
        self.mean = if self.mean.is_zero() { took } else { self.mean * 7 / 8 + took / 8 };
        self.trust = match polled {
            Some(Polled::Seen) => (self.trust + 1).min(TRUST_MAX),
            Some(Polled::Missed) => self.trust.saturating_sub(2),
            Some(Polled::Contested) => self.trust.saturating_sub(TRUST_MAX / 2),
            Some(Polled::Asleep) | None => self.trust,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(mean_us: u64) -> State {
        State {
            under_way: 0,
            meetings: 0,
            alone: ALONE_FROM,
            mean: Duration::from_micros(mean_us),
            trust: TRUST_MAX / 2,
            requests: 1,
        }
    }

    #[test]
    fn short_requests_of_one_program_are_polled_for_from_shortly_before_their_end() {
        assert_eq!(state(240).plan(), Some(Plan { sleep: Duration::from_micros(160), poll: POLL_MAX }));
        assert_eq!(state(30).plan(), Some(Plan { sleep: Duration::ZERO, poll: POLL_MAX }));
        assert_eq!(state(0).plan(), None, "nothing is known");
        assert_eq!(state(1_001).plan(), None, "long ones are slept for");
        assert_eq!(State { alone: ALONE_FROM - 1, ..state(240) }.plan(), None, "there are others");
    }

    #[test]
    fn what_does_not_pay_ends_and_is_tried_again_now_and_then() {
        let mut state = state(240);
        let us = Duration::from_micros(240);
        for _ in 0..4 {
            assert!(state.plan().is_some());
            state.learn(us, Some(Polled::Missed));
        }
        assert_eq!(state.plan(), None);
        state.requests = PROBE;
        assert!(state.plan().is_some());
        state.learn(us, Some(Polled::Seen));
        state.requests += 1;
        assert!(state.plan().is_some(), "it pays again");
        for _ in 0..TRUST_MAX {
            state.learn(us, Some(Polled::Seen));
        }
        state.learn(us, Some(Polled::Contested));
        assert!(state.plan().is_some(), "once is an accident");
        state.learn(us, Some(Polled::Contested));
        assert_eq!(state.plan(), None, "others want the processor");
    }

    #[test]
    fn the_mean_follows_the_device_and_not_one_that_took_very_long() {
        let mut state = state(200);
        state.learn(Duration::from_secs(1), None);
        assert_eq!(state.mean.as_micros(), 225);
        for _ in 0..100 {
            state.learn(Duration::from_micros(500), None);
        }
        assert!((490..=500).contains(&state.mean.as_micros()), "{:?}", state.mean);
    }

    #[test]
    fn nobody_polls_beside_another_or_after_one() {
        let taken: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let known = || Mutex::new(state(240));
        let polling = Polling { wanted: true, taken, state: known() };
        let first = polling.begin();
        assert!(first.plan().is_some());
        let elsewhere = Polling { wanted: true, taken, state: known() };
        let other = elsewhere.begin();
        assert!(other.plan().is_none(), "one thread polls, whichever the device");
        elsewhere.end(&other, None);
        let second = polling.begin();
        assert!(second.plan.is_none());
        polling.end(&second, None);
        polling.end(&first, Some(Polled::Seen));
        assert_eq!(lock(&polling.state).alone, 0, "the first had another beside it as well");
        for _ in 0..ALONE_FROM {
            let one = polling.begin();
            assert!(one.plan.is_none());
            polling.end(&one, None);
        }
        assert!(polling.begin().plan.is_some());
        let unwanted = Polling { wanted: false, taken, state: known() };
        assert!(unwanted.begin().plan.is_none());
    }

    #[test]
    fn polling_ends_with_what_it_looks_for_or_its_time() {
        let plan = Plan { sleep: Duration::ZERO, poll: Duration::from_secs(60) };
        let mut looks = 0;
        let polled = plan.poll(|| {
            looks += 1;
            looks == 100
        });
        // Others may have wanted the processor.
        assert!(polled == Polled::Seen && looks == 100 || polled == Polled::Contested && looks < 100);
        let plan = Plan { poll: Duration::ZERO, ..plan };
        assert_eq!(plan.poll(|| false), Polled::Missed);
        assert_eq!(plan.poll(|| true), Polled::Seen);
        let slow = || {
            thread::sleep(CONTESTED_FROM);
            false
        };
        let plan = Plan { poll: Duration::from_secs(60), ..plan };
        assert_eq!(plan.poll(slow), Polled::Contested);
    }
}
