//! Which devices are slow: what they take for writes and flushes, against what the others take.
//!
//! Invariants
//! 1. Nothing is measured but requests that somebody waited for until they were done: of others it is not known when they were.
//! 2. No device is slow by itself: it is measured against the others, so not all of them are.
//! 3. Who is slow decides only where new blocks go, never what is true of those that are there.

use super::layout::Avoided;
use super::{Devices, Member};
use crate::Clock;
use nenrin_device::{DeviceError, Op, Ticket};
use nenrin_format::{BLOCK_BYTES, Time};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device is slow from so many times what the others take.
const SLOW_TIMES: u64 = 8;
/// And fast again below so many times.
const FAST_TIMES: u64 = 3;
/// What is shorter is not slow, whatever the others take.
const SLOW_NANOS_MIN: u64 = 5_000_000;
/// What is shorter is fast.
const FAST_NANOS_MIN: u64 = 2_500_000;
/// It has to be slow for so long.
const JUDGED_AFTER_NANOS: u64 = 1_000_000_000;
/// And is left out at least this long: longer each time that it is slow again, since a device may be fast when it has nothing to do.
const HOLD_NANOS: u64 = 10_000_000_000;
const HOLD_NANOS_MAX: u64 = 640_000_000_000;
/// The last so many requests count, and so many are needed to tell.
const SAMPLES: usize = 8;
const SAMPLES_MIN: usize = 3;
/// A request takes longer for each so many bytes under way with it.
const LOAD_BYTES: u64 = 256 << 10;
/// A wait that is shorter was for something that was done already.
const WAITED_NANOS_MIN: u64 = 10_000;

/// What one device takes.
#[derive(Default)]
pub(super) struct Gauge {
    /// Bytes that are being written to it.
    under_way: AtomicU64,
    measured: Mutex<Measured>,
}

#[derive(Default)]
struct Measured {
    /// Of the last requests, the newest at `next - 1`.
    nanos: [u64; SAMPLES],
    count: usize,
    next: usize,
    /// Since when (monotonic) it takes too long.
    over_since: Option<u64>,
    /// Since when it is slow: monotonic, and for people.
    slow_since: Option<(u64, Time)>,
    /// How long it is left out at least.
    hold_nanos: u64,
}

impl Measured {
    fn note(&mut self, nanos: u64) {
        self.nanos[self.next] = nanos;
        self.next = (self.next + 1) % SAMPLES;
        self.count = (self.count + 1).min(SAMPLES);
    }

    fn typical(&self) -> Option<u64> {
        let mut known = self.nanos[..self.count].to_vec();
        known.sort_unstable();
        (self.count >= SAMPLES_MIN).then(|| known[known.len() / 2])
    }

    fn is_slow(&self) -> bool {
        self.slow_since.is_some()
    }

    /// Begins or ends to be slow, given what the others take; whether that changed.
    fn judge(&mut self, others: u64, now: u64, wall: Time) -> bool {
        let Some(typical) = self.typical() else { return false };
        match self.slow_since {
            None if typical <= SLOW_NANOS_MIN.max(others.saturating_mul(SLOW_TIMES)) => {
                self.over_since = None;
                false
            }
            None => {
                let since = *self.over_since.get_or_insert(now);
                let slow = now.saturating_sub(since) >= JUDGED_AFTER_NANOS;
                if slow {
                    self.hold_nanos = (self.hold_nanos * 2).clamp(HOLD_NANOS, HOLD_NANOS_MAX);
                    self.set(true, now, wall);
                }
                slow
            }
            Some((since, _)) => {
                let fast = typical < FAST_NANOS_MIN.max(others.saturating_mul(FAST_TIMES))
                    && now.saturating_sub(since) >= self.hold_nanos;
                if fast {
                    self.set(false, now, wall);
                }
                fast
            }
        }
    }

    /// What it took before says nothing of how it is from now on.
    fn set(&mut self, slow: bool, now: u64, wall: Time) {
        self.slow_since = slow.then_some((now, wall));
        self.over_since = None;
        self.count = 0;
        self.next = 0;
    }
}

impl Gauge {
    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when it is slow, for people.
    pub fn slow_since(&self) -> Option<Time> {
        self.measured().slow_since.map(|(_, wall)| wall)
    }
}

/// A write or flush under way on one device.
pub(super) struct Sent {
    pub member: Arc<Member>,
    ticket: Ticket,
    /// When, and with how much.
    begun: Begun,
}

/// When (monotonic) a request began, how many bytes it writes, and how many were under way then.
#[derive(Clone, Copy)]
struct Begun {
    at: u64,
    own: u64,
    load: u64,
}

impl Begun {
    fn new(gauge: &Gauge, own: u64, clock: Option<&Arc<dyn Clock>>) -> Self {
        let load = gauge.under_way.fetch_add(own, SeqCst) + own;
        Self { at: clock.map_or(0, |c| c.monotonic_nanos()), own, load }
    }

    /// It is done, and was waited for since then.
    fn end(self, gauge: &Gauge, waited_from: u64, clock: Option<&Arc<dyn Clock>>) {
        gauge.under_way.fetch_sub(self.own, SeqCst);
        let Some(now) = clock.map(|c| c.monotonic_nanos()) else { return };
        if now.saturating_sub(waited_from) >= WAITED_NANOS_MIN {
            let nanos = now.saturating_sub(self.at) / (1 + self.load / LOAD_BYTES);
            gauge.measured().note(nanos);
        }
    }
}

impl Sent {
    pub fn is_done(&self) -> bool {
        self.ticket.is_done()
    }

    /// Waits, and measures what it took.
    pub fn wait(self, clock: Option<&Arc<dyn Clock>>) -> (Arc<Member>, Result<(), DeviceError>) {
        let from = clock.map_or(0, |c| c.monotonic_nanos());
        let outcome = self.ticket.wait().map(drop);
        self.begun.end(&self.member.gauge, from, clock);
        (self.member, outcome)
    }
}

impl Devices {
    pub(super) fn clock(&self) -> Option<&Arc<dyn Clock>> {
        self.clock.get()
    }

    /// Submits a write or flush that is measured.
    pub(super) fn send(&self, member: &Arc<Member>, op: Op) -> Sent {
        let own = if let Op::Write { data, .. } = &op { data.len() as u64 } else { 0 };
        let begun = Begun::new(&member.gauge, own, self.clock());
        Sent { member: member.clone(), ticket: member.submit(op), begun }
    }

    /// Measures a call that writes so many blocks and flushes.
    pub(super) fn measured<T>(&self, member: &Member, blocks: u32, call: impl FnOnce() -> T) -> T {
        let begun = Begun::new(&member.gauge, u64::from(blocks) * BLOCK_BYTES as u64, self.clock());
        let done = call();
        begun.end(&member.gauge, begun.at, self.clock());
        done
    }

    /// Devices to which nothing new should go.
    pub fn slow(&self) -> Avoided {
        Avoided(self.slow.load(SeqCst))
    }

    /// Looks who is slow by now, and who is not any more.
    pub fn judge(&self, now: u64, wall: Time) {
        let roster = self.roster();
        if roster.count < 2 {
            return;
        }
        let there: Vec<&Arc<Member>> = roster.active().collect();
        let typical: Vec<Option<u64>> = there.iter().map(|m| m.gauge.measured().typical()).collect();
        let mut changed = false;
        for (i, member) in there.iter().enumerate() {
            let mut others: Vec<u64> =
                typical.iter().enumerate().filter(|(j, _)| *j != i).filter_map(|(_, t)| *t).collect();
            others.sort_unstable();
            if let Some(median) = others.get(others.len().saturating_sub(1) / 2) {
                changed |= member.gauge.measured().judge(*median, now, wall);
            }
        }
        if changed {
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
            slow = slow.with(m.index, m.gauge.measured().is_slow());
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

    fn measured(nanos: u64, count: usize) -> Measured {
        let mut m = Measured::default();
        (0..count).for_each(|_| m.note(nanos));
        m
    }

    fn judge(m: &mut Measured, at: u64) -> bool {
        m.judge(MS, at, Time(0))
    }

    #[test]
    fn slow_is_who_takes_long_for_a_while() {
        let mut m = measured(30 * MS, SAMPLES);
        assert!(!judge(&mut m, SECOND) && !judge(&mut m, 2 * SECOND - 1) && judge(&mut m, 2 * SECOND));
        // Nothing is known of it until it was tried, and then for a while it is believed to be slow all the same.
        assert!(m.is_slow() && m.typical().is_none() && !judge(&mut m, 100 * SECOND));
        (0..SAMPLES_MIN).for_each(|_| m.note(MS));
        assert!(!judge(&mut m, 11 * SECOND) && judge(&mut m, 12 * SECOND) && !m.is_slow());
        // The next time it takes longer.
        (0..SAMPLES).for_each(|_| m.note(30 * MS));
        assert!(!judge(&mut m, 20 * SECOND) && judge(&mut m, 21 * SECOND) && m.hold_nanos == 2 * HOLD_NANOS);
    }

    #[test]
    fn one_that_takes_long_once_or_as_long_as_others_is_not() {
        let mut m = measured(MS, SAMPLES);
        (0..SAMPLES / 2 - 1).for_each(|_| m.note(900 * MS));
        assert!(!judge(&mut m, SECOND) && !judge(&mut m, 9 * SECOND));
        let mut m = measured(30 * MS, SAMPLES);
        assert!(!m.judge(5 * MS, SECOND, Time(0)) && !m.judge(5 * MS, 9 * SECOND, Time(0)));
        let mut m = measured(4 * MS, SAMPLES);
        assert!(!m.judge(1000, SECOND, Time(0)) && !m.judge(1000, 9 * SECOND, Time(0)));
        let mut m = measured(30 * MS, SAMPLES_MIN - 1);
        assert!(!judge(&mut m, SECOND) && !judge(&mut m, 9 * SECOND));
    }
}
