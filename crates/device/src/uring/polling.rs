//! When the end of a request is looked for instead of slept for (hybrid polling, as Linux had it for NVMe): who waits alone for a short
//! request sleeps for most of the time that such requests take, and looks for its end from shortly before it is due.
//!
//! A thread that sleeps is woken on a processor that sleeps, too, and on a virtual machine that takes tens of microseconds: a seventh
//! of a sync. So the thread gets up while the device still works.
//!
//! It pays only while a processor has nothing else to do: who gives it away while others want it is without it for milliseconds, where one who
//! sleeps is given it when he is woken. So one thread of the process does it at a time, where durable writes of the device meet no other;
//! between two looks it gives the processor to whoever wants it; and it stops, for long, when that has cost more than it has saved. How much
//! an end that is seen saves is measured all the time: some are slept for all the same. Where that is little, it stops as well.
//! Why: docs/decisions/0032-polling.md.
//!
//! Invariants
//! 1. Nobody polls beside another durable write of the device, nor before so many in a row met none, nor beside another thread that polls.
//! 2. A request is polled for at most [`POLL_MAX`].

use crate::Prng;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
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
/// Who gives the processor away and is without it for so long has lost time to others, even if the end was there by then. A thread of the kernel
/// that works for the device takes less.
const CONTESTED_FROM: Duration = Duration::from_micros(200);
/// What an end that is seen saves, until that is known, and what looking for one costs that is not, in microseconds: about what it takes to
/// wake a thread.
const SEEN_MICROS: i64 = 30;
const MISSED_MICROS: i64 = 60;
/// One of so many requests that could be polled for is slept for, so that it is known what polling saves.
const SAMPLED: u64 = 32;
/// So many of them are compared with those that were polled for meanwhile, whatever came of it.
const SAMPLES: u64 = 64;
/// Polling has to save this part of what such a request takes, to be worth a processor.
const WORTH: u64 = 32;
/// Most that is saved up against losses: a slice of somebody else.
const BALANCE_MAX: i64 = 5_000;
/// Lent at first and after a rest, so that some may be missed.
const STAKE: i64 = 300;
/// So many requests are slept for where polling did not pay, before it is tried again; twice as many each time that it does not last.
const REST: u64 = 256;
/// The same where it saved nothing, which takes about [`SAMPLES`] times [`SAMPLED`] requests to know.
const IDLE_REST: u64 = 4096;
const REST_MAX: u64 = 1 << 16;
/// It has lasted when so many ends were seen.
const LASTED_FROM: u64 = 512;

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
    /// Others had the processor for so long.
    Contested(Duration),
    /// Another request began.
    Met,
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
    pub fn poll(&self, mut is_there: impl FnMut() -> bool, met: impl Fn() -> bool) -> Polled {
        let began = Instant::now();
        let mut looked = began;
        loop {
            if is_there() {
                return Polled::Seen;
            }
            if met() {
                return Polled::Met;
            }
            if looked - began >= self.poll {
                return Polled::Missed;
            }
            thread::yield_now();
            let now = Instant::now();
            if now - looked >= CONTESTED_FROM {
                return Polled::Contested(now - looked);
            }
            looked = now;
        }
    }
}

/// The right to poll.
struct Turn(&'static AtomicBool);

impl Turn {
    fn take(taken: &'static AtomicBool) -> Option<Self> {
        (!taken.swap(true, Relaxed)).then_some(Self(taken))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

/// A request that is under way.
pub(super) struct Request {
    began: Instant,
    beside: bool,
    meetings: u64,
    /// Slept for although it could be polled for.
    sampled: bool,
    plan: Option<(Plan, Turn)>,
}

impl Request {
    /// How to wait for it; none to sleep.
    pub fn plan(&self) -> Option<Plan> {
        self.plan.as_ref().map(|(plan, _)| *plan)
    }
}

/// What is known of a device's requests.
pub(super) struct Polling {
    wanted: bool,
    taken: &'static AtomicBool,
    /// Requests that began beside another.
    meetings: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    under_way: u32,
    /// Requests in a row that met no other.
    alone: u32,
    /// What those take; the recent ones count most.
    mean: Duration,
    requests: u64,
    /// What polling has saved, less what it has cost, in microseconds.
    balance: i64,
    /// Until so many requests all are slept for, where it costs more.
    rests_until: u64,
    /// How long it rested last because it had cost more than it saved, and because it saved nothing.
    rest: u64,
    idle_rest: u64,
    /// Ends that were seen since.
    seen: u64,
    /// What an end that is seen saves, as last compared, in microseconds. `None` where that is not known, or was not worth it.
    saves: Option<i64>,
    comparison: Comparison,
}

/// Times of requests, together.
#[derive(Debug, Default)]
struct Times {
    requests: u64,
    micros: u64,
}

impl Times {
    fn add(&mut self, took: Duration) {
        self.requests += 1;
        self.micros += u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 2);
    }

    fn mean(&self) -> u64 {
        self.micros / self.requests.max(1)
    }
}

/// Requests that were polled for, and those that were slept for among them.
#[derive(Debug, Default)]
struct Comparison {
    polled: Times,
    slept: Times,
}

/// Whether the request of this number is slept for where it could be polled for: at random, since programs have cycles.
fn is_sampled(number: u64) -> bool {
    Prng::new(number).below(SAMPLED) == 0
}

impl Polling {
    /// Nobody polls where it is not wanted, or a single processor has to do everything.
    pub fn new(wanted: bool) -> Self {
        let wanted = wanted && thread::available_parallelism().is_ok_and(|n| n.get() > 1);
        Self {
            wanted,
            taken: &TAKEN,
            meetings: AtomicU64::new(0),
            state: Mutex::new(State { balance: STAKE, ..State::default() }),
        }
    }

    #[cfg(test)]
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// A request begins, which can be polled for or not.
    pub fn begin(&self, can: bool) -> Request {
        let mut state = lock(&self.state);
        let beside = state.under_way > 0;
        state.under_way += 1;
        state.requests += 1;
        let meetings = self.meetings.fetch_add(u64::from(beside), Relaxed) + u64::from(beside);
        let plan = if self.wanted && can && !beside { state.plan() } else { None };
        let plan = plan.and_then(|plan| Some((plan, Turn::take(self.taken)?)));
        let sampled = plan.is_some() && is_sampled(state.requests);
        let plan = plan.filter(|_| !sampled);
        Request { began: Instant::now(), beside, meetings, sampled, plan }
    }

    /// Whether another began meanwhile.
    pub fn met(&self, request: &Request) -> bool {
        self.meetings.load(Relaxed) != request.meetings
    }

    /// It has ended, and was done or not.
    pub fn end(&self, request: Request, polled: Option<Polled>, done: bool) {
        self.end_after(request.began.elapsed(), request, polled, done);
    }

    fn end_after(&self, took: Duration, request: Request, polled: Option<Polled>, done: bool) {
        let met = request.beside || self.met(&request);
        let mut state = lock(&self.state);
        state.under_way -= 1;
        state.judge(polled);
        if met {
            state.alone = 0;
        } else if done {
            let took = state.learn(took);
            if request.sampled {
                state.comparison.slept.add(took);
                state.compare();
            } else if request.plan.is_some() {
                // Those whose end was missed count as well, or what is saved would be what is seen.
                state.comparison.polled.add(took);
            }
        }
    }
}

/// How long to rest: for longer than before if it has not `lasted` since then.
fn longer(before: u64, lasted: bool, least: u64) -> u64 {
    if lasted { least } else { (before * 2).clamp(least, REST_MAX) }
}

impl State {
    fn plan(&self) -> Option<Plan> {
        let rests = self.requests < self.rests_until;
        let short = !self.mean.is_zero() && self.mean <= MEAN_MAX;
        let sleep = self.mean.saturating_sub(AHEAD);
        (!rests && short && self.alone >= ALONE_FROM).then_some(Plan { sleep, poll: POLL_MAX })
    }

    /// A request that was alone took so long. As what it counts: one that took very long is an accident.
    fn learn(&mut self, took: Duration) -> Duration {
        self.alone = self.alone.saturating_add(1);
        let took = if self.mean.is_zero() { took } else { took.min(self.mean * 2) };
        self.mean = if self.mean.is_zero() { took } else { self.mean * 7 / 8 + took / 8 };
        took
    }

    /// What polling saves, once that can be told, and whether it is worth it.
    fn compare(&mut self) {
        let Comparison { polled, slept } = &self.comparison;
        if slept.requests < SAMPLES || polled.requests < SAMPLES {
            return;
        }
        let (polled, slept) = (polled.mean(), slept.mean());
        let saves = slept.saturating_sub(polled);
        self.comparison = Comparison::default();
        if saves * WORTH >= slept {
            self.saves = Some(saves as i64);
            return;
        }
        let was_worth_it = self.saves.take().is_some();
        self.idle_rest = longer(self.idle_rest, was_worth_it, IDLE_REST);
        self.stop(self.idle_rest);
    }

    /// The next so many are all slept for.
    fn stop(&mut self, rest: u64) {
        self.rests_until = self.requests + rest;
        (self.balance, self.seen) = (STAKE, 0);
    }

    /// Whether it pays to go on.
    fn judge(&mut self, polled: Option<Polled>) {
        self.balance += match polled {
            Some(Polled::Seen) => self.saves.unwrap_or(SEEN_MICROS),
            Some(Polled::Missed) => -MISSED_MICROS,
            Some(Polled::Contested(lost)) => -i64::try_from(lost.as_micros()).unwrap_or(i64::MAX / 2),
            Some(Polled::Asleep | Polled::Met) | None => return,
        };
        self.balance = self.balance.min(BALANCE_MAX);
        self.seen += u64::from(polled == Some(Polled::Seen));
        if self.balance < 0 {
            self.rest = longer(self.rest, self.seen >= LASTED_FROM, REST);
            self.stop(self.rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(mean_us: u64) -> State {
        let mean = Duration::from_micros(mean_us);
        State { alone: ALONE_FROM, mean, ..State::default() }
    }

    fn flag() -> &'static AtomicBool {
        Box::leak(Box::new(AtomicBool::new(false)))
    }

    fn known(wanted: bool, taken: &'static AtomicBool) -> Polling {
        Polling { wanted, taken, meetings: AtomicU64::new(0), state: Mutex::new(state(240)) }
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
    fn what_does_not_pay_ends_and_is_tried_again_after_a_rest() {
        let mut state = state(240);
        for polled in [Polled::Seen, Polled::Seen, Polled::Missed] {
            state.judge(Some(polled));
            assert!(state.plan().is_some(), "two of three are seen");
        }
        state.judge(Some(Polled::Missed));
        assert_eq!(state.plan(), None, "one of two is");
        state.requests = REST - 1;
        assert_eq!(state.plan(), None);
        state.requests = REST;
        assert!(state.plan().is_some());
        state.judge(Some(Polled::Seen));
        assert!(state.plan().is_some(), "it pays again");
    }

    #[test]
    fn others_who_want_the_processor_get_it_for_long() {
        let mut state = state(240);
        let slice = Some(Polled::Contested(Duration::from_millis(4)));
        let mut rests = Vec::new();
        for _ in 0..12 {
            state.judge(slice);
            assert_eq!(state.plan(), None, "nothing is saved up");
            rests.push(state.rests_until - state.requests);
            state.requests = state.rests_until;
            assert!(state.plan().is_some());
        }
        assert_eq!(rests[..4], [256, 512, 1024, 2048]);
        assert_eq!(rests[11], REST_MAX);
        for _ in 0..LASTED_FROM {
            state.judge(Some(Polled::Seen));
        }
        state.judge(slice);
        assert!(state.plan().is_some(), "one slice is less than hundreds have saved");
        state.judge(slice);
        assert_eq!(state.plan(), None, "two are not");
        assert_eq!(state.rests_until - state.requests, REST, "it had lasted");
        state.requests = state.rests_until;
        state.judge(Some(Polled::Contested(Duration::MAX)));
        assert_eq!(state.plan(), None);
    }

    /// A request of a program for itself, that ends like that after so many microseconds if it is polled for, and after so many if not;
    /// whether it was.
    fn run_one(polling: &Polling, (end, polled_us): (Polled, u64), slept_us: u64) -> bool {
        let one = polling.begin(true);
        let polled = one.plan().map(|_| end);
        let took = Duration::from_micros(if polled.is_some() { polled_us } else { slept_us });
        polling.end_after(took, one, polled, true);
        polled.is_some()
    }

    /// As many of them as it takes until something is known of what polling saves; how many were slept for, of how many.
    fn compare(polling: &Polling, ends: &[(Polled, u64)], slept_us: u64) -> (u64, u64) {
        let before = lock(&polling.state).saves;
        let (mut slept, mut all) = (0, 0);
        for end in ends.iter().cycle().take(4 * (SAMPLED * SAMPLES) as usize) {
            all += 1;
            slept += u64::from(!run_one(polling, *end, slept_us));
            let state = lock(&polling.state);
            if state.saves != before || state.rests_until > state.requests {
                return (slept, all);
            }
        }
        panic!("nothing is ever known");
    }

    /// How many more are slept for; these are over when it returns, but for one.
    fn rest(polling: &Polling) -> u64 {
        let rests = {
            let state = lock(&polling.state);
            assert_eq!((state.plan(), state.saves), (None, None));
            state.rests_until - state.requests
        };
        assert!((1..rests).all(|_| !run_one(polling, (Polled::Seen, 1), 240)));
        rests
    }

    #[test]
    fn what_polling_saves_is_measured() {
        let polling = known(true, flag());
        let (slept, all) = compare(&polling, &[(Polled::Seen, 200)], 240);
        assert_eq!((slept, lock(&polling.state).saves), (SAMPLES, Some(40)));
        assert!(all.abs_diff(SAMPLED * SAMPLES) < SAMPLED * SAMPLES / 2, "one in so many is slept for: {all}");
        compare(&polling, &[(Polled::Seen, 220)], 240);
        assert_eq!(lock(&polling.state).saves, Some(20), "only the last ones count");
        // Of those that are polled for some are not seen, and took longer: one in four.
        compare(&polling, &[(Polled::Seen, 200), (Polled::Seen, 200), (Polled::Missed, 240), (Polled::Seen, 200)], 240);
        let saves = lock(&polling.state).saves.unwrap();
        assert!((28..=32).contains(&saves), "{saves}");
    }

    #[test]
    fn where_polling_saves_nothing_it_ends_and_is_tried_more_and_more_seldom() {
        let polling = known(true, flag());
        for expected in [IDLE_REST, 2 * IDLE_REST, 4 * IDLE_REST] {
            compare(&polling, &[(Polled::Seen, 240)], 240);
            assert_eq!(rest(&polling), expected);
        }
        // Those whose end is seen took less, since they were short.
        compare(&polling, &[(Polled::Seen, 230), (Polled::Asleep, 250)], 240);
        assert_eq!(rest(&polling), 8 * IDLE_REST);
        // An end may even be seen later than it would have woken somebody: the processor was given away.
        compare(&polling, &[(Polled::Seen, 245)], 240);
        assert_eq!(rest(&polling), REST_MAX);
        compare(&polling, &[(Polled::Seen, 200)], 240);
        assert_eq!(lock(&polling.state).saves, Some(40));
        compare(&polling, &[(Polled::Seen, 240)], 240);
        assert_eq!(rest(&polling), IDLE_REST, "it had been worth it");
    }

    #[test]
    fn a_program_with_a_cycle_has_all_of_it_slept_for() {
        for cycle in 2..=16 {
            let of = |nth| (0..4096 * cycle).filter(|n| n % cycle == nth && is_sampled(*n)).count() as u64;
            // 128 of each, more or less.
            assert!((0..cycle).all(|nth| (80..180).contains(&of(nth))), "{cycle}");
        }
    }

    #[test]
    fn an_account_that_is_overdrawn_keeps_what_was_compared() {
        let polling = known(true, flag());
        let before = lock(&polling.state).comparison.slept.requests;
        for _ in 0..10 * SAMPLED {
            run_one(&polling, (Polled::Seen, 240), 240);
        }
        lock(&polling.state).judge(Some(Polled::Contested(Duration::from_secs(1))));
        assert_eq!(rest(&polling), REST);
        assert!(lock(&polling.state).comparison.slept.requests > before + 5);
        compare(&polling, &[(Polled::Seen, 240)], 240);
        assert_eq!(rest(&polling), IDLE_REST);
        lock(&polling.state).judge(Some(Polled::Contested(Duration::from_secs(1))));
        assert_eq!(lock(&polling.state).rest, 2 * REST, "each reason has a rest of its own");
    }

    #[test]
    fn an_end_that_is_seen_counts_what_that_saves() {
        let mut state = state(240);
        state.saves = Some(8);
        state.judge(Some(Polled::Seen));
        assert_eq!(state.balance, 8);
        state.saves = None;
        state.judge(Some(Polled::Seen));
        assert_eq!(state.balance, 8 + SEEN_MICROS);
    }

    #[test]
    fn the_mean_follows_the_device_and_not_one_that_took_very_long() {
        let mut state = state(200);
        state.learn(Duration::from_secs(1));
        assert_eq!(state.mean.as_micros(), 225);
        for _ in 0..100 {
            state.learn(Duration::from_micros(500));
        }
        assert!((490..=500).contains(&state.mean.as_micros()), "{:?}", state.mean);
    }

    #[test]
    fn nobody_polls_beside_another_or_after_one() {
        let taken = flag();
        let polling = known(true, taken);
        let first = polling.begin(true);
        assert!(first.plan().is_some());
        let elsewhere = known(true, taken);
        let other = elsewhere.begin(true);
        assert!(other.plan().is_none(), "one thread polls, whichever the device");
        elsewhere.end(other, None, true);
        assert!(!polling.met(&first));
        let second = polling.begin(true);
        assert!(second.plan().is_none() && polling.met(&first));
        polling.end(second, None, true);
        polling.end(first, Some(Polled::Met), true);
        assert_eq!(lock(&polling.state).alone, 0, "the first had another beside it as well");
        for _ in 0..ALONE_FROM {
            let one = polling.begin(true);
            assert!(one.plan().is_none());
            polling.end(one, None, true);
        }
        assert!(polling.begin(true).plan().is_some());
        assert!(known(true, flag()).begin(false).plan().is_none(), "it cannot be");
        assert!(known(false, flag()).begin(true).plan().is_none(), "it is not wanted");
        assert!(known(true, flag()).begin(true).plan().is_some());
    }

    #[test]
    fn what_failed_tells_nothing_of_the_device() {
        let polling = known(true, flag());
        let one = polling.begin(true);
        thread::sleep(Duration::from_millis(1));
        polling.end(one, Some(Polled::Missed), false);
        let state = lock(&polling.state);
        assert_eq!((state.mean.as_micros(), state.alone, state.under_way), (240, ALONE_FROM, 0));
        assert!(!polling.taken.load(Relaxed));
    }

    #[test]
    fn polling_ends_with_what_it_looks_for_or_what_speaks_against_it() {
        let plan = Plan { sleep: Duration::ZERO, poll: Duration::from_secs(60) };
        let mut looks = 0;
        let polled = plan.poll(
            || {
                looks += 1;
                looks == 100
            },
            || false,
        );
        // Others may have wanted the processor.
        assert!(polled == Polled::Seen && looks == 100 || matches!(polled, Polled::Contested(_)) && looks < 100);
        assert_eq!(plan.poll(|| false, || true), Polled::Met);
        let none = Plan { poll: Duration::ZERO, ..plan };
        assert_eq!(none.poll(|| false, || false), Polled::Missed);
        assert_eq!(none.poll(|| true, || true), Polled::Seen);
    }

    #[test]
    fn an_end_that_is_there_after_the_processor_was_lost_was_not_seen_in_time() {
        let began = Instant::now();
        let plan = Plan { sleep: Duration::ZERO, poll: Duration::from_secs(60) };
        let met = || {
            // As if the next one to run had kept it.
            thread::sleep(Duration::from_millis(3));
            false
        };
        let polled = plan.poll(|| began.elapsed() > Duration::from_millis(1), met);
        assert!(matches!(polled, Polled::Contested(lost) if lost >= Duration::from_millis(3)), "{polled:?}");
    }
}
