//! Who commits for whom: leaders, those who take over from them, and the commits that are under way at once.
//!
//! Invariants
//! 1. Nothing is laid out in the chain but by a thread that leads.
//! 2. Commits end in the order in which they were laid out: who is told that his commit is
//!    durable can count on all before it, whichever of them the device was done with first.
//! 3. While a commit has not ended, a thread leads one that is under way, and ends, when the device is done with that, whatever else
//!    it was done with: so nobody sleeps for the turn of his own commit.
//! 4. Whoever takes the lead through [`Fs::turn`] finds no commit under way. None begins beside the first of his that cuts a
//!    checkpoint or freezes the index.
//! 5. A commit ends when its flush has returned and all that began before that: see [`crate::flushes`].
//! 6. A panic of a thread that leads fails the volume, and leaves nobody waiting.

use super::beside::hurrying;
use super::commit::{Commit, Cut, Done, Written};
use super::guard::Guard;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::log::SparePartials;
use crate::{AlignedBuf, Result};
use nenrin_format::Addr;
use nenrin_format::row_log::ROW_SLOTS;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;

/// Most threads that lead, and commits under way. With 4 programs that sync all the time four at once gave
/// 1.1 times the syncs of three (decision 0025).
pub const COMMITS_AT_ONCE: u32 = 4;
/// Rows with parity that are not full, at most, while all who have a place to write to wait for a slot of the row log, who all lead
/// commits: two of each log of content, one more of the cleaner, one of each copy of the index, and of the chain those where one
/// commit meets the next or another segment (decision 0023). With a slot for each somebody goes on.
const ROWS_HELD_MAX: u32 = 3 * 2 + 1 + 2 + (COMMITS_AT_ONCE + 1) + 1;
const _: () = assert!(ROWS_HELD_MAX <= ROW_SLOTS);
/// One of so many commits is done the other way, so that what it costs stays known.
const PROBE: u64 = 128;

/// A commit counts as twice the mean and this, if it takes longer.
const ACCIDENT_NANOS: u64 = 1_000;

/// How long a thread leads commits. Programs that sync all the time never leave
/// the batch empty, so nobody may be kept by that who has other things to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stay {
    /// As long as somebody waits and nobody else wants to lead.
    WhileAsked,
    /// Until somebody comes who can go on.
    Briefly,
    /// For one commit; what is left is announced.
    Once,
}

/// The last so many commits tell whether the device holds requests back.
const HELD_BACK_OF: f64 = 512.0;
/// It does where they take so many times as long, on the average, as is usual.
const HELD_BACK_TIMES: f64 = 3.0;
/// One of them counts as so many times as long at most: one accident tells nothing.
const HELD_BACK_MOST: f64 = HELD_BACK_OF * (HELD_BACK_TIMES - 1.0);

/// What commits at once cost, against one at a time: nanoseconds of the device for each, which are those that it takes for one by
/// the number that was under way; the recent ones count most. `None` where there was none yet.
#[derive(Default)]
struct Gains {
    alone: Option<u64>,
    beside: Option<u64>,
    /// How many times as long they take, accidents among them, as is usual.
    times: f64,
}

impl Gains {
    /// A commit took so long, with so many under way, itself among them.
    fn note(&mut self, under_way: u64, nanos: u64) {
        let each = nanos / under_way.max(1);
        let pays = self.alone.map_or(each, worth);
        let mean = if under_way > 1 { &mut self.beside } else { &mut self.alone };
        // One that took very long is an accident, and would keep commits apart until some probes have made up for it: the first one
        // does not decide, and a later one counts as twice the mean.
        let Some(m) = *mean else {
            *mean = Some(each.min(pays));
            return;
        };
        *mean = Some(m - m / 8 + each.min(2 * m + ACCIDENT_NANOS) / 8);
        let times = each as f64 / (m + ACCIDENT_NANOS) as f64;
        self.times += (times.min(HELD_BACK_MOST) - self.times) / HELD_BACK_OF;
    }

    /// A device that takes requests one after another is not faster with several commits, which carry less each: there one that finds n - 1
    /// takes n times as long, or less by the half of one where it comes at any time. So much as that is no gain.
    fn pay(&self) -> bool {
        match (self.alone, self.beside) {
            _ if self.are_held_back() => false,
            (Some(alone), Some(beside)) => beside <= worth(alone),
            _ => true,
        }
    }

    /// Whether most of the time goes by with requests that the device holds back, as one does that takes so many in a second, at once, and
    /// then none: there it is their number that counts, so fewer commits that carry more.
    fn are_held_back(&self) -> bool {
        self.times > HELD_BACK_TIMES
    }
}

/// Most that a commit beside others may take where one alone takes this, for it to pay.
fn worth(alone: u64) -> u64 {
    alone / 10 * 7
}

/// Where a commit stands among the others.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Commits are numbered as they are laid out, and end in that order.
    number: u64,
    /// So many others the device had to do with when it was laid out.
    beside: u64,
}

/// Threads that lead, and their commits.
#[derive(Default)]
pub(super) struct Leading {
    leaders: u32,
    /// The one leader wants to leave: the next to come takes over.
    leaves: bool,
    /// Threads in [`Fs::turn`].
    successors: u32,
    /// Another commit may begin beside what is under way.
    shares: bool,
    /// Leaders that tell those who waited, and look at the batch after that.
    telling: u32,
    /// Commits laid out, and ended.
    begun: u64,
    ended: u64,
    /// Those that the device was done with before it was with one laid out earlier, with what came of them.
    early: Vec<(Commit, Result<Written>)>,
    /// A thread that led is lost, and its commit with it: those behind it end all the same, since the volume has failed.
    lost: bool,
    gains: Gains,
    /// Partials of commits that have ended.
    pub(super) spare: SparePartials,
}

/// What those are told who wait for a commit.
pub(super) struct Answers {
    pub result: Result<()>,
    pub waiters: Vec<Done>,
    /// What was written, of which the memory is not to be given back under the lock.
    pub written: Vec<(Addr, Arc<AlignedBuf>)>,
}

/// What came of carrying out a commit.
pub(super) enum Ended<'a> {
    /// It ended, and those behind it that were done already: who waited is to be told, by [`Fs::tell`].
    Now(Vec<Answers>),
    /// One before it is under way, and whoever leads that ends this one.
    Later(Guard<'a>),
}

impl Leading {
    /// Whether somebody leads, so that a commit may be under way.
    pub fn is_led(&self) -> bool {
        self.leaders > 0
    }

    /// Whether somebody leads or is about to.
    pub fn is_taken(&self) -> bool {
        self.is_led() || self.successors > 0
    }

    /// Whoever comes while this commit of the one leader is under way may lead in his place.
    pub fn may_be_relieved(&mut self) {
        self.leaves = self.leaders == 1;
    }

    /// A commit was laid out.
    pub fn begin(&mut self) -> Place {
        self.begun += 1;
        let with_device = (self.begun - 1 - self.ended).saturating_sub(self.early.len() as u64);
        Place { number: self.begun, beside: with_device }
    }

    /// Whether nobody has to wait who asks now.
    pub fn can_be_announced(&self) -> bool {
        !self.is_led() || !self.leaves || self.successors > 0
    }

    /// Has whoever leads see to the open batch. True where the calling thread has taken the lead, for another.
    pub fn announce(&mut self) -> bool {
        if self.successors > 0 || self.is_led() && !self.has_room() {
            return false;
        }
        if !self.is_led() {
            self.shares = false;
        }
        self.leaders += 1;
        self.leaves = false;
        true
    }

    /// There is an answer, for whoever leads to tell; he looks at the batch after that.
    pub fn answered(&mut self) {
        self.telling += 1;
    }

    /// Whether a commit may begin beside the one under way: it may, it pays, and
    /// nobody is there who will see to the batch in a moment.
    fn has_room(&self) -> bool {
        let probe = self.begun % PROBE == 0;
        let under_way = self.leaders + self.early.len() as u32;
        self.shares && under_way < COMMITS_AT_ONCE && self.telling == 0 && self.gains.pay() != probe
    }

    /// The next commit that ends, if the device is done with it, and its flush proves something.
    fn next_ended(&mut self, proves: impl Fn(u64) -> bool) -> Option<(Commit, Result<()>)> {
        let next = self.ended + 1;
        let lost = self.lost;
        let ends = |number| number <= next || lost || broken(Break::EndsOutOfTurn);
        let proven =
            |written: &Result<Written>| lost || written.as_ref().ok().and_then(|w| w.flush).is_none_or(&proves);
        let at = self.early.iter().position(|(commit, written)| ends(commit.place().number) && proven(written))?;
        let (commit, outcome) = self.early.swap_remove(at);
        self.ended = self.ended.max(commit.place().number);
        Some((commit, outcome.map(drop)))
    }
}

impl Fs {
    /// Has the open batch committed: by whoever leads or is about to, else by this thread.
    pub(super) fn see_to<'a>(&'a self, mut inner: Guard<'a>, stay: Stay) {
        let leading = &mut inner.leading;
        if leading.successors > 0 {
            return;
        }
        if leading.is_led() && leading.has_room() {
            leading.leaders += 1;
            leading.leaves = false;
            return self.lead(inner, None, stay);
        }
        if leading.is_led() && !leading.leaves {
            return;
        }
        inner = self.turn(inner);
        self.lead(inner, None, stay);
    }

    /// Waits until this thread alone leads and no commit is under way; it must [`Fs::lead`] or
    /// [`Fs::leave`] then, since those who came meanwhile count on it.
    pub(super) fn turn<'a>(&'a self, mut inner: Guard<'a>) -> Guard<'a> {
        inner.leading.successors += 1;
        // Once: it looks, or fails the volume.
        for asks in [true, false] {
            // Of a volume that has failed nothing is laid out any more, and somebody may have been lost who led.
            while inner.leading.is_led() && inner.failed.is_none() {
                inner = self.wait_idle(inner);
            }
            if !asks || !self.is_late() {
                break;
            }
            drop(inner);
            drop(self.owns_to_write());
            inner = self.lock();
        }
        let ended = inner.leading.early.is_empty() || inner.failed.is_some();
        debug_assert!(ended, "a commit without anybody to end it");
        inner.leading.successors -= 1;
        inner.leading.leaders += 1;
        inner.leading.shares = false;
        inner
    }

    /// Ends leading after [`Fs::turn`], unless somebody waits and nobody else is there to lead.
    pub(super) fn leave<'a>(&'a self, mut inner: Guard<'a>) {
        if inner.batch.waiters.is_empty() || inner.leading.successors > 0 {
            inner.leading.leaders -= 1;
            self.wake_idle(&inner);
        } else {
            self.lead(inner, None, Stay::Briefly);
        }
    }

    /// Leads commits until nobody waits, or somebody else wants to. With `cut`,
    /// the first of them ends with a checkpoint.
    pub(super) fn lead<'a>(&'a self, inner: Guard<'a>, cut: Option<Cut>, stay: Stay) {
        let _ = self.lead_for(inner, cut, stay);
    }

    /// The same. Goes on where the lead is another's then; see [`Stay::Once`].
    pub(super) fn lead_for<'a>(&'a self, inner: Guard<'a>, cut: Option<Cut>, stay: Stay) -> ControlFlow<()> {
        // It gives the lock back before what it counts is looked at.
        let _lost = Lost(self);
        self.lead_while(inner, cut, stay)
    }

    fn lead_while<'a>(&'a self, mut inner: Guard<'a>, mut cut: Option<Cut>, stay: Stay) -> ControlFlow<()> {
        let hurry = hurrying();
        loop {
            let shares = cut.is_none();
            let commit = inner.seal(self, cut.take());
            inner.leading.shares = shares && commit.is_ok();
            if stay == Stay::Briefly && commit.is_ok() {
                inner.leading.may_be_relieved();
            }
            drop(inner);
            inner = match self.end_sealed(commit) {
                Ended::Now(answers) => self.tell(answers),
                Ended::Later(guard) => {
                    inner = guard;
                    break;
                }
            };
            // Each of them looks at the batch before he leaves, as this thread did.
            let others_see_to_it = inner.leading.leaders > 1 && (stay == Stay::Briefly || !inner.leading.gains.pay());
            if inner.batch.waiters.is_empty() || inner.leading.successors > 0 || others_see_to_it {
                break;
            }
            if stay == Stay::Once {
                return ControlFlow::Continue(());
            }
        }
        if stay == Stay::Once && self.owes_checkpoint(&inner) {
            return ControlFlow::Continue(());
        }
        drop(hurry);
        self.end_leading(inner);
        ControlFlow::Break(())
    }

    /// Carries out what was sealed.
    fn end_sealed(&self, sealed: std::result::Result<Commit, Answers>) -> Ended<'_> {
        let mut commit = match sealed {
            Ok(commit) => commit,
            Err(answers) => return Ended::Now(vec![answers]),
        };
        if broken(Break::AckEarly) {
            commit.take_waiters().into_iter().for_each(|done| done(Ok(())));
        }
        let mut ended = self.carry_out(commit);
        if let Ended::Now(answers) = &mut ended {
            if let Some(last) = answers.last_mut().filter(|_| broken(Break::SharedTooEarly)) {
                last.waiters.append(&mut self.lock().batch.waiters);
            }
        }
        ended
    }

    fn owes_checkpoint(&self, inner: &Inner) -> bool {
        !inner.checkpointing
            && !inner.checkpoint_claimed
            && inner.check_alive().is_ok()
            && self.checkpoint_is_due(inner)
    }

    /// Ends leading when nobody waits.
    pub(super) fn end_leading<'a>(&'a self, mut inner: Guard<'a>) {
        inner.leading.leaders -= 1;
        let due = self.owes_checkpoint(&inner);
        // Others who lead meanwhile leave it to this thread: were all of them caught in it, nobody would lead whom it waits for.
        inner.checkpoint_claimed |= due;
        self.wake_idle(&inner);
        drop(inner);
        if due {
            // A failure is noted there and told to everybody who comes later.
            drop(self.index_checkpoint(false));
            self.lock().checkpoint_claimed = false;
        }
    }

    /// Tells those who waited for commits that this thread has ended.
    pub(super) fn tell(&self, answers: Vec<Answers>) -> Guard<'_> {
        let mut spare = None;
        for Answers { result, waiters, written } in answers {
            for done in waiters {
                done(result.clone());
            }
            // Nobody else has it who still writes or reads it.
            spare = written.into_iter().filter_map(|(_, bytes)| Arc::into_inner(bytes)).last();
        }
        let mut inner = self.lock();
        inner.leading.telling -= 1;
        spare.into_iter().for_each(|partial| inner.leading.spare.give(partial));
        inner
    }

    /// The device is done with a commit, in so many nanoseconds: it ends, unless one before it is under way, and so do those behind
    /// it that were done already.
    pub(super) fn end_in_turn(&self, commit: Commit, outcome: Result<Written>) -> Ended<'_> {
        let place = commit.place();
        let mut inner = self.lock();
        if let Err(e) = &outcome {
            inner.fail(&e.to_string());
        }
        inner.counters.overlapped_commits += u64::from(place.beside > 0);
        // One that was alone at first and not to its end tells nothing of either.
        let is_mixed = place.beside == 0 && inner.leading.begun > place.number;
        if let (Ok(Written { nanos: Some(nanos), .. }), false) = (&outcome, is_mixed) {
            inner.leading.gains.note(1 + place.beside, *nanos);
        }
        inner.leading.early.push((commit, outcome));
        let flushes = self.storage.flushes();
        let now = self.clock.monotonic_nanos();
        let mut answers = Vec::with_capacity(1);
        while let Some((commit, outcome)) = inner.leading.next_ended(|number| flushes.proves(number)) {
            if let Some(why) = flushes.failure() {
                inner.fail(&why);
            }
            answers.push(inner.end(commit, outcome, now));
        }
        if answers.is_empty() {
            inner.counters.commits_in_turn += 1;
            return Ended::Later(inner);
        }
        inner.leading.answered();
        // Who syncs again when he is told does so on this thread, and must not wait for it.
        inner.leading.leaves = false;
        self.wake_idle(&inner);
        Ended::Now(answers)
    }
}

/// Tells those who count on a thread that leads when that panics. It must not live inside of what holds the lock.
pub(super) struct Lost<'a>(pub &'a Fs);

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        if !thread::panicking() || broken(Break::LeadersLost) {
            return;
        }
        let mut inner = self.0.lock();
        inner.fail("a thread that committed for others has failed");
        inner.leading.lost = !broken(Break::LostHoldsOthers);
        let early = std::mem::take(&mut inner.leading.early).into_iter().flat_map(|(mut c, _)| c.take_waiters());
        let waiters: Vec<Done> = early.chain(std::mem::take(&mut inner.batch.waiters)).collect();
        inner.checkpoint_claimed = false;
        let why = inner.check_alive();
        self.0.wake_idle(&inner);
        drop(inner);
        for done in waiters {
            done(why.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commits of which each began while the one before was under way.
    fn led(nanos: [u64; 2]) -> Leading {
        let mut leading = Leading { leaders: 1, shares: true, begun: 1, ..Leading::default() };
        leading.gains.note(1, nanos[0]);
        // The first one does not decide.
        (0..2).for_each(|_| leading.gains.note(2, nanos[1]));
        leading
    }

    #[test]
    fn a_device_that_takes_requests_one_after_another_gets_them_so() {
        assert!(Leading { leaders: 1, shares: true, begun: 1, ..Leading::default() }.has_room(), "nothing is known");
        assert!(led([100, 130]).has_room());
        assert!(!led([100, 150]).has_room(), "it began in the middle of the one before");
        assert!(!led([100, 200]).has_room());
        let mut four = Leading { leaders: 3, shares: true, begun: 3, ..Leading::default() };
        four.gains.note(1, 100);
        four.gains.note(4, 250);
        assert!(four.has_room(), "four in the time of two and a half");
        four.gains = Gains::default();
        four.gains.note(1, 100);
        (0..2).for_each(|_| four.gains.note(4, 350));
        assert!(!four.has_room());
        // What turns out to be faster later is found out.
        let mut slow = led([100, 200]);
        slow.begun = PROBE;
        assert!(slow.has_room());
        slow.gains.note(2, 0);
        slow.gains.note(2, 0);
        slow.gains.note(2, 0);
        slow.begun += 1;
        assert!(slow.has_room());
        let mut fast = led([100, 100]);
        fast.begun = PROBE;
        assert!(!fast.has_room(), "what one alone takes is found out, too");
    }

    #[test]
    fn one_commit_that_takes_long_does_not_keep_others_apart() {
        let mut device = led([300_000, 160_000]);
        for _ in 0..20 {
            device.gains.note(4, 320_000);
        }
        device.gains.note(4, 1_000_000_000);
        assert!(device.has_room(), "{:?}", device.gains.beside);
        let mut first = led([300_000, 160_000]);
        first.gains.beside = None;
        first.gains.note(2, 1_000_000_000);
        assert_eq!(first.gains.beside, Some(210_000));
        first.gains.note(2, 320_000);
        assert!(first.has_room(), "the first one took long: {:?}", first.gains.beside);
        // A device that has become slow for several at once is noticed soon.
        for _ in 0..10 {
            device.gains.note(4, 1_200_000);
        }
        assert!(!device.has_room());
    }

    /// 200 requests in a second, as the kernel's limit has it: twenty at once, and none for the rest of a tenth of a second.
    #[test]
    fn a_device_that_holds_requests_back_gets_fewer_that_carry_more() {
        let tenths = |device: &mut Leading, under_way: u64, count: u64| {
            for n in 1..=20 * count {
                let nanos = if n % 20 == 0 { 90_000_000 } else { 150_000 };
                device.gains.note(under_way, nanos);
                device.begun = n;
            }
        };
        for under_way in [1, 4] {
            let mut device = led([300_000, 160_000]);
            assert!(device.has_room());
            tenths(&mut device, under_way, 5);
            assert!(!device.has_room(), "{under_way}: {:?}", device.gains.times);
            // It holds none back any more.
            (0..6_000).for_each(|_| device.gains.note(under_way, 150_000));
            assert!(!device.gains.are_held_back(), "{under_way}: {:?}", device.gains.times);
        }
        // Where time stands still nothing is held back.
        let mut still = led([0, 0]);
        still.gains.note(1, 0);
        assert!(still.has_room());
    }

    #[test]
    fn nobody_begins_beside_what_wants_to_be_alone() {
        let free = || led([100, 100]);
        assert!(!Leading { shares: false, ..free() }.has_room());
        assert!(!Leading { telling: 1, ..free() }.has_room());
        assert!(!Leading { leaders: COMMITS_AT_ONCE, ..free() }.has_room());
    }
}
