//! Which devices are slow: what they get done while others wait for them ([`super::rate`]), and whether what they take is as before again.
//!
//! Invariants
//! 1. No time is taken but of requests that somebody waited for until they were done: of others it is not known when they were.
//! 2. No device is slow by itself: it is measured against the others, so not all of them are.
//! 3. Who is slow decides only where new blocks go, never what is true of those that are there.
//! 4. One device at most is left out on trial: what the others do meanwhile is what they can do without it.

use super::layout::Avoided;
use super::rate::{Rate, Window};
use super::roster::Roster;
use super::watched::Stand;
use super::{Devices, Member};
use crate::Clock;
use crate::breaks::{Break, broken};
use nenrin_device::{DeviceError, Op, Ticket};
use nenrin_format::{BLOCK_BYTES, Time};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A slow device is fast again below so many times what the slowest of the others takes that are not.
const FAST_TIMES: u64 = 3;
/// What is shorter is fast.
const FAST_NANOS_MIN: u64 = 2_500_000;
/// Who holds others up, and may be what they bear themselves, is left out for so long to see what they do then.
const TRIAL_NANOS: u64 = 4_000_000_000;
/// And is left out at least this long: longer each time that it is slow again, since a device may be fast when it has nothing to do.
const HOLD_NANOS: u64 = 60_000_000_000;
const HOLD_NANOS_MAX: u64 = 960_000_000_000;
/// The last so many requests count, and so many are needed to tell what is typical; all of them, to tell that a device is fast again.
const SAMPLES: usize = 8;
const SAMPLES_MIN: usize = 3;
/// A request takes longer for each so many bytes under way with it.
const LOAD_BYTES: u64 = 256 << 10;
/// A wait that is shorter was for something that was done already.
const WAITED_NANOS_MIN: u64 = 10_000;

/// What one device takes.
#[derive(Default)]
pub(super) struct Gauge(Mutex<Measured>);

#[derive(Default)]
struct Measured {
    /// Bytes that are being written to it.
    under_way: u64,
    /// Of the last requests, the newest at `next - 1`.
    nanos: [u64; SAMPLES],
    count: usize,
    next: usize,
    /// Since when (monotonic) it is left out on trial, when the next trial may begin, and how long after the last.
    trial_since: Option<u64>,
    next_trial: u64,
    trial_gap: u64,
    /// Since when it is slow: monotonic, and for people.
    slow_since: Option<(u64, Time)>,
    /// How long it is left out at least.
    hold_nanos: u64,
    /// What it gets done.
    rate: Rate,
}

impl Measured {
    fn note(&mut self, nanos: u64) {
        self.nanos[self.next] = nanos;
        self.next = (self.next + 1) % SAMPLES;
        self.count = (self.count + 1).min(SAMPLES);
    }

    /// The median, which one or two that stood do not change.
    fn typical(&self) -> Option<u64> {
        let mut known = self.nanos[..self.count].to_vec();
        known.sort_unstable();
        (self.count >= SAMPLES_MIN).then(|| known[known.len() / 2])
    }

    fn is_slow(&self) -> bool {
        self.slow_since.is_some()
    }

    fn is_left_out(&self) -> bool {
        self.is_slow() || self.trial_since.is_some()
    }

    /// What all of them are judged by.
    fn look(&mut self, now: u64) -> Looked {
        Looked {
            left_out: self.is_left_out(),
            on_trial: self.trial_since.is_some(),
            typical: self.typical(),
            window: self.rate.close(now),
        }
    }

    /// Begins or ends to be left out, given what the others take, where that is known, and whether a trial may begin; whether that changed.
    fn judge(&mut self, others: Option<u64>, may_try: bool, now: u64, wall: Time) -> bool {
        let before = (self.is_slow(), self.is_left_out());
        match (self.slow_since, self.trial_since) {
            (Some((since, _)), _) => {
                let below = FAST_NANOS_MIN.max(others.unwrap_or(0).saturating_mul(FAST_TIMES));
                let is_fast = self.count == SAMPLES && self.typical().is_some_and(|typical| typical < below);
                if is_fast && now.saturating_sub(since) >= self.hold_nanos {
                    self.set(false, now, wall);
                }
            }
            (None, Some(_)) if self.rate.is_less() => self.set(true, now, wall),
            (None, Some(since)) if now.saturating_sub(since) >= TRIAL_NANOS => {
                // The others do no more without it.
                self.trial_since = None;
                self.trial_gap = longer(self.trial_gap);
                self.next_trial = now + self.trial_gap;
                self.forget();
            }
            (None, Some(_)) => {}
            (None, None) if self.rate.lags() => self.set(true, now, wall),
            (None, None) if may_try && self.rate.holds_up() && now >= self.next_trial => {
                self.trial_since = Some(now);
                self.forget();
            }
            (None, None) => {}
        }
        before != (self.is_slow(), self.is_left_out())
    }

    /// What it took before says nothing of how it is from now on.
    fn set(&mut self, slow: bool, now: u64, wall: Time) {
        if slow && !self.is_slow() {
            self.hold_nanos = longer(self.hold_nanos);
        }
        self.slow_since = slow.then_some((now, wall));
        self.trial_since = None;
        self.forget();
    }

    fn forget(&mut self) {
        self.count = 0;
        self.next = 0;
        self.rate.forget();
    }
}

/// How long the next time, after so long.
fn longer(nanos: u64) -> u64 {
    (nanos * 2).clamp(HOLD_NANOS, HOLD_NANOS_MAX)
}

impl Gauge {
    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when it is slow, for people.
    pub fn slow_since(&self) -> Option<Time> {
        self.measured().slow_since.map(|(_, wall)| wall)
    }

    /// A request that writes so many bytes begins.
    fn begin(&self, bytes: u64, clock: Option<&Arc<dyn Clock>>) -> Begun {
        let at = clock.map(|c| c.monotonic_nanos());
        let mut measured = self.measured();
        measured.under_way += bytes;
        Begun { at, bytes, load: measured.under_way }
    }

    /// Waits for what began, by `wait`.
    fn wait<T>(&self, begun: &Begun, clock: Option<&Arc<dyn Clock>>, wait: impl FnOnce() -> T) -> T {
        let Some(clock) = clock else { return wait() };
        let from = clock.monotonic_nanos();
        self.measured().rate.wait_begins(from);
        let outcome = wait();
        let now = clock.monotonic_nanos();
        let mut measured = self.measured();
        measured.rate.wait_ends(now);
        if let Some(at) = begun.at.filter(|_| now.saturating_sub(from) >= WAITED_NANOS_MIN) {
            measured.note(now.saturating_sub(at) / (1 + begun.load / LOAD_BYTES));
        }
        outcome
    }

    /// It is done, or nobody waits for it any more.
    fn end(&self, begun: &Begun) {
        let mut measured = self.measured();
        measured.under_way -= begun.bytes;
        measured.rate.done(begun.bytes);
    }
}

/// What is known of a device when all are judged. One that is left out is nothing to measure others against: it has
/// little to do, and would make all of them look slow.
struct Looked {
    left_out: bool,
    on_trial: bool,
    typical: Option<u64>,
    window: Option<Window>,
}

/// When (monotonic) a request began, how many bytes it writes, and how many were under way then.
struct Begun {
    at: Option<u64>,
    bytes: u64,
    load: u64,
}

/// A write or flush under way on one device. Who drops it does not wait for it, and it is not measured.
pub(super) struct Sent {
    member: Arc<Member>,
    ticket: Option<Ticket>,
    begun: Begun,
}

impl Sent {
    pub fn is_done(&self) -> bool {
        self.ticket.as_ref().is_none_or(Ticket::is_done)
    }

    /// Waits, and measures what it took.
    pub fn wait(mut self, clock: Option<&Arc<dyn Clock>>) -> (Arc<Member>, Result<(), DeviceError>) {
        let ticket = self.ticket.take();
        let outcome = self.member.gauge.wait(&self.begun, clock, || ticket.map_or(Ok(()), |t| t.wait().map(drop)));
        (self.member.clone(), outcome)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.member.gauge.end(&self.begun);
    }
}

impl Devices {
    pub(super) fn clock(&self) -> Option<&Arc<dyn Clock>> {
        self.clock.get()
    }

    /// Submits a write or flush that is measured.
    pub(super) fn send(&self, member: &Arc<Member>, op: Op) -> Sent {
        let own = if let Op::Write { data, .. } = &op { data.len() as u64 } else { 0 };
        let begun = member.gauge.begin(own, self.clock());
        Sent { member: member.clone(), ticket: Some(member.submit(op)), begun }
    }

    /// Measures a call that writes so many blocks and flushes.
    pub(super) fn measured<T>(&self, member: &Member, blocks: u32, call: impl FnOnce() -> T) -> T {
        let begun = member.gauge.begin(u64::from(blocks) * BLOCK_BYTES as u64, self.clock());
        let done = member.gauge.wait(&begun, self.clock(), call);
        member.gauge.end(&begun);
        done
    }

    /// Devices to which nothing new should go.
    pub fn slow(&self) -> Avoided {
        Avoided(self.slow.load(SeqCst))
    }

    /// Gives up devices that do not answer and that the others can do without. Those that stand still.
    fn give_up(&self, roster: &Roster, now: u64, mmp: bool) -> Avoided {
        let look = |m: &Arc<Member>| m.watch.look(now, m.device.as_ref().and_then(|d| d.completed()));
        let there = roster.all().filter(|m| m.device.is_some() && !m.watch.is_given_up());
        let stands: Vec<(&Arc<Member>, Stand)> = there.map(|m| (m, look(m))).collect();
        let is_suspect = |(m, stand): &&(&Arc<Member>, Stand)| m.is_active() && stand.is_suspect();
        if stands.iter().any(|s| is_suspect(&s)) {
            // Where several do not answer it is what they have in common, and may pass. All of them are asked: also one that owes a single
            // request may be all that another is measured by.
            let answers = |m: &Arc<Member>| m.watch.answers(|| m.submit(Op::Read { offset: 0, bytes: BLOCK_BYTES }));
            let silent: Vec<u16> =
                stands.iter().filter(|(m, _)| m.is_active() && !answers(m)).map(|(m, _)| m.index).collect();
            let is_alone = |one: u16| silent.iter().all(|i| *i == one);
            let is_whole_without = |one: u16| {
                let there = |i| roster.member(i).is_some_and(|m| m.is_active() && !m.watch.is_given_up());
                roster.layout.is_whole(|i| i != one && there(i))
            };
            let may = !mmp || !broken(Break::MemberAwaited);
            let first = if broken(Break::FirstSuspectOnly) { 1 } else { usize::MAX };
            let hopeless = stands.iter().filter(is_suspect).take(first).filter(|(_, stand)| may && stand.is_hopeless());
            // One at a time: what the others can do without depends on it.
            if let Some((m, _)) = hopeless.into_iter().find(|(m, _)| is_alone(m.index) && is_whole_without(m.index)) {
                m.watch.give_up();
            }
        }
        // Nobody needs a device that joins, and what it lacks nobody counts on.
        let may_end = !mmp || !broken(Break::JoinerAwaited);
        let joins = stands.iter().filter(|(m, stand)| may_end && !m.is_active() && stand.is_hopeless());
        joins.for_each(|(m, _)| m.watch.give_up());
        let still = stands.iter().filter(|(m, stand)| m.is_active() && stand.is_still());
        still.fold(Avoided::NONE, |still, (m, _)| still.with(m.index, true))
    }

    /// From now on this device is looked at, although it takes no part: until nobody has anything to do with it any more.
    pub(super) fn look_at(&self, member: &Arc<Member>) {
        member.watch.switch_on();
        self.apart.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(member));
    }

    /// Gives up those of them that do not answer. One whose place another has is no member, and stands as one for who began before that.
    fn give_up_apart(&self, now: u64) {
        let roster = self.roster();
        let mut apart = self.apart.lock().unwrap_or_else(PoisonError::into_inner);
        apart.retain(|m| m.upgrade().is_some_and(|m| !m.watch.is_given_up()));
        for m in apart.iter().filter_map(Weak::upgrade).filter(|m| !(m.is_active() && roster.has(m))) {
            if m.watch.look(now, m.device.as_ref().and_then(|d| d.completed())).is_hopeless() {
                m.watch.give_up();
            }
        }
    }

    /// Ends that a device takes the place of another, and all waiting for it, where somebody has waited for long; whether that was so.
    pub fn leave_hanging(&self, why: &str) -> bool {
        let roster = self.roster();
        let Some(j) = roster.joining.as_ref().filter(|j| !roster.has(j) && j.watch.keeps_waiting()) else {
            return false;
        };
        j.watch.give_up();
        self.stop_joining(why);
        true
    }

    /// Looks who is slow by now, and who is not any more, and who does not answer at all, which is given up where the others can do without it. Waits for no
    /// device. With `mmp`, too: the others are behind their gates, so who goes on without one writes nothing where another host is.
    pub fn judge(&self, now: u64, wall: Time, mmp: bool) {
        let Ok(_judging) = self.judging.try_lock() else { return };
        self.give_up_apart(now);
        let roster = self.roster();
        if roster.count < 2 && roster.joining.is_none() {
            return;
        }
        let still = self.give_up(&roster, now, mmp);
        let there: Vec<&Arc<Member>> = roster.active().collect();
        if there.len() < 2 {
            return;
        }
        let looked: Vec<Looked> = there.iter().map(|m| m.gauge.measured().look(now)).collect();
        let mut may_try = !looked.iter().any(|l| l.on_trial);
        let mut changed = false;
        for (i, member) in there.iter().enumerate() {
            let others =
                || looked.iter().enumerate().filter(|(j, other)| *j != i && !other.left_out).map(|(_, other)| other);
            let windows: Vec<Window> = others().filter_map(|o| o.window).collect();
            let mut measured = member.gauge.measured();
            if let Some(own) = looked[i].window.filter(|_| !windows.is_empty()) {
                measured.rate.compare(&own, &windows);
            }
            if still.has(member.index) && !measured.is_slow() {
                measured.set(true, now, wall);
                changed = true;
            }
            changed |= measured.judge(others().filter_map(|o| o.typical).max(), may_try, now, wall);
            may_try &= measured.trial_since.is_none();
        }
        // Also when one died meanwhile: not all that are there may be left out.
        if changed || !self.slow().is_empty() {
            self.note_slow();
        }
    }

    /// Says that a device is slow, or is not: for who knows better, and for tests.
    pub fn declare_slow(&self, index: u16, slow: bool, now: u64, wall: Time) {
        if let Some(member) = self.roster().member(index) {
            member.gauge.measured().set(slow, now, wall);
        }
        self.note_slow();
    }

    /// Who is slow, for who asks often. Not all of them, also when that was said.
    fn note_slow(&self) {
        let roster = self.roster();
        let mut slow = Avoided::NONE;
        for m in roster.active() {
            slow = slow.with(m.index, m.gauge.measured().is_left_out());
        }
        let all = roster.active().all(|m| slow.has(m.index));
        self.slow.store(if all { 0 } else { slow.0 }, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MS;

    /// What others wait for, and at its best less than they are, or not.
    fn held_up(is_less: bool) -> Measured {
        Measured { rate: Rate::of(true, is_less), ..Measured::default() }
    }

    fn judge(m: &mut Measured, at: u64) -> bool {
        m.judge(Some(MS), true, at, Time(0))
    }

    #[test]
    fn what_others_wait_for_is_slow_if_they_do_more_without_it() {
        let mut m = held_up(false);
        assert!(!m.judge(None, false, SECOND, Time(0)));
        assert!(judge(&mut m, SECOND) && m.is_left_out() && !m.is_slow());
        assert!(!judge(&mut m, 2 * SECOND));
        m.rate = Rate::of(false, true);
        assert!(judge(&mut m, 3 * SECOND) && m.is_slow() && m.trial_since.is_none());
        assert_eq!(m.hold_nanos, HOLD_NANOS);
    }

    #[test]
    fn it_is_not_if_they_do_not_and_is_tried_ever_more_seldom() {
        let mut m = held_up(false);
        assert!(
            judge(&mut m, SECOND) && !judge(&mut m, 5 * SECOND - 1) && judge(&mut m, 5 * SECOND) && !m.is_left_out()
        );
        m.rate = Rate::of(true, false);
        assert!(!judge(&mut m, 64 * SECOND) && judge(&mut m, 65 * SECOND) && judge(&mut m, 69 * SECOND));
        m.rate = Rate::of(true, false);
        assert!(!judge(&mut m, 188 * SECOND) && judge(&mut m, 189 * SECOND));
    }

    #[test]
    fn slow_is_fast_again_when_all_of_the_last_tell_and_after_a_while() {
        let mut m = held_up(false);
        m.set(true, 2 * SECOND, Time(0));
        (1..SAMPLES).for_each(|_| m.note(MS));
        assert!(!judge(&mut m, 100 * SECOND));
        m.note(MS);
        assert!(!judge(&mut m, 61 * SECOND) && judge(&mut m, 62 * SECOND) && !m.is_left_out());
        // The next time it takes longer.
        m.set(true, 70 * SECOND, Time(0));
        assert_eq!(m.hold_nanos, 2 * HOLD_NANOS);
        (0..SAMPLES).for_each(|_| m.note(30 * MS));
        assert!(!judge(&mut m, 900 * SECOND));
    }

    #[test]
    fn what_is_under_way_is_what_began_and_has_not_ended() {
        let gauge = Gauge::default();
        let (a, b) = (gauge.begin(4096, None), gauge.begin(8192, None));
        assert_eq!((a.load, b.load), (4096, 12288));
        gauge.end(&a);
        gauge.end(&b);
        assert_eq!(gauge.measured().under_way, 0);
    }
}
