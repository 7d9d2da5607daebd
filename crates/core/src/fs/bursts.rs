//! What a device has to write of others makes it slow for whoever syncs meanwhile. So beside syncs data is held back, and
//! handed to the device in bursts: much at once, written and flushed, and in between nothing. Decision 0034.
//!
//! Invariants
//! 1. What is held back counts as memory and as under way, can be read, and is begun by whoever waits for it
//!    ([`Fs::finish_writes`]): the file's own sync, a commit that names it, an index checkpoint, a writer for want of memory.
//! 2. It is held for no longer than what was received may wait for a commit.
//! 3. One burst is under way at a time, and who writes on meanwhile what is held back is kept waiting when as much has come again. Who
//!    commits everything makes one, too; who writes nothing of it neither makes nor waits for one: who syncs writes, too.
//! 4. While programs do little but sync, bursts have the device for a third of the time: the writer who leads them lets twice as
//!    long go by as the last one took ([`Fs::rest_after_burst`]), and others are kept waiting. Whoever needs what is held back begins it,
//!    as ever: commits and checkpoints rest for nobody.
//! 5. Who is kept waiting without a thread ([`Fs::tell_later`]) is so only while somebody leads or a burst is under way. Whoever ends the
//!    last of both tells all of them, also when he fails; and after each burst those are told whose data is on the device. Nobody is told
//!    under the lock.

use super::commit::Done;
use super::guard::Guard;
use super::{DataWrite, Fs, Inner, Request, flushes};
use crate::breaks::{Break, broken};
use crate::{Order, Result};
use nenrin_format::{BLOCK_BYTES, Ino};

/// What a burst shall take. Longer ones are fewer, and each holds up those who sync while it lasts.
const BURST_NANOS: u64 = 25_000_000;
/// Blocks of a burst at least and at most, however slow or fast the device is: 1 MiB, and 8 MiB, since several of them are in memory
/// ([`TOLD_BLOCKS_MAX`]), and a daemon in a group of 48 MiB must live.
const BURST_BLOCKS: (u64, u64) = (256, 2048);
/// As long as nothing is known of the device: 4 MiB.
const FIRST_BURST_BLOCKS: u64 = 1024;

/// Times as long as a burst took that the device is left to those who sync, where they want it.
const REST: u64 = 2;
/// Looks, in a burst's time, whether they still do.
const LOOKS: u64 = 4;
/// However long a burst took.
const REST_NANOS_MAX: u64 = 100_000_000;
/// Short ones count as so long: nobody sleeps for less, and a clock may stand still.
const TOOK_NANOS_MIN: u64 = 1_000_000;
/// Threads that wait for it to be over: they would serve those who sync, so with as many a rest ends.
const WAITERS_MAX: u32 = 3;

/// Blocks on their way to the device, held back or not, up to which the threads of writers need not wait: four of the largest bursts,
/// one under way, two held back, and one of those who are kept waiting. It is memory.
const TOLD_BLOCKS_MAX: u64 = 4 * BURST_BLOCKS.1;
/// Bursts that one writer leads: his own answer waits for them.
const LED_BURSTS_MAX: u32 = 4;

/// Data that is held back, and what bursts took.
#[derive(Default)]
pub(super) struct Bursts {
    /// Blocks of data writes in [`Inner::writes`] that are held back, and all that ever were.
    pub held_blocks: u64,
    held_ever: u64,
    /// A burst is under way.
    bursting: bool,
    /// A writer sees to it that there are rests and bursts.
    led: bool,
    /// Threads that wait for these.
    waiters: u32,
    /// Nanoseconds for a block and for the flush behind all, the recent bursts counting most.
    took: Option<(u64, u64)>,
    /// When the last full one ended (monotonic), and how long it took.
    last: Option<(u64, u64)>,
    /// Those who wrote, by [`Bursts::held_ever`] when they had.
    told_later: Vec<(u64, Done)>,
}

impl Bursts {
    /// Blocks that make a burst. Where a flush takes long, writing takes as long: else flushes would be all that the device does.
    fn blocks(&self) -> u64 {
        let (least, most) = BURST_BLOCKS;
        let fits = |(each, flush): (u64, u64)| BURST_NANOS.saturating_sub(flush).max(flush) / each.max(1);
        self.took.map_or(FIRST_BURST_BLOCKS, fits).clamp(least, most)
    }

    /// So many more are held back.
    pub fn hold(&mut self, blocks: u32) {
        self.held_blocks += u64::from(blocks);
        self.held_ever += u64::from(blocks);
    }

    /// So many are no more.
    pub fn let_go(&mut self, blocks: u64) {
        self.held_blocks -= blocks;
    }

    /// Those who are to be told now: all of them, or those before whom as much was held back as has been let go.
    fn take_told(&mut self, all: bool) -> Vec<Done> {
        let gone = if all { u64::MAX } else { self.held_ever - self.held_blocks };
        let count = self.told_later.partition_point(|(held, _)| *held <= gone);
        self.told_later.drain(..count).map(|(_, done)| done).collect()
    }

    /// How long writing so many blocks took, and the flush.
    fn note(&mut self, blocks: u64, [writing, flush]: [u64; 2]) {
        // Few blocks tell nothing of many.
        if blocks < BURST_BLOCKS.0 {
            return;
        }
        let each = writing / blocks;
        // One that took very long is an accident.
        let toward = |mean: u64, new: u64| mean - mean / 4 + new.min(2 * mean + 1_000) / 4;
        self.took = Some(self.took.map_or((each, flush), |(e, f)| (toward(e, each), toward(f, flush))));
    }
}

/// On whose behalf data is handed to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// A program that writes, and waits on its thread.
    Writes,
    /// The same, where it can be told later ([`Fs::tell_later`]) and its thread need not wait.
    IsTold,
    /// Others may wait for what is done.
    Commits,
}

/// Lets others burst again, also where its thread is lost. It must not live inside of what holds the lock.
struct Bursting<'a>(&'a Fs);

impl Drop for Bursting<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        if std::thread::panicking() {
            // What it took is written by nobody.
            inner.fail("a thread that wrote what was held back has failed");
        }
        inner.bursts.bursting = false;
        self.0.let_writers_go(inner);
    }
}

/// The same of who leads.
struct Leads<'a>(&'a Fs);

impl Drop for Leads<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.bursts.led = false;
        self.0.let_writers_go(inner);
    }
}

impl DataWrite {
    fn held_since(&self) -> Option<u64> {
        if let Request::Held(_, since) = self.request { Some(since) } else { None }
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self.request, Request::Held(..))
    }
}

impl Inner {
    /// Whether data of this file waits for a burst now. In strict order every sync waits for all data, so that none gains by that; and
    /// rows with parity are to be filled in order, since each that is begun and not full keeps a place in the row log.
    pub(super) fn joins_burst(&self, fs: &Fs, ino: Ino, now: u64) -> bool {
        let may = fs.options.order != Order::Strict && !fs.storage.has_parity() || broken(Break::RowsHeld);
        may && self.recent_syncs.beside(ino, now)
    }

    /// Begins what is held back of a file.
    pub(super) fn begin_held(&mut self, fs: &Fs, ino: Ino) -> Result<()> {
        for w in self.writes.iter_mut().filter(|w| w.ino == ino) {
            if let Request::Held(data, since) = &w.request {
                w.request = Request::Begun(Request::Held(data.clone(), *since).begin(&fs.storage, w.addr)?);
                self.bursts.let_go(u64::from(w.blocks));
            }
        }
        Ok(())
    }

    /// Whether much is held back, some of it of this file: who writes it makes a burst, or waits for one.
    pub(super) fn makes_burst(&self, fs: &Fs, ino: Ino) -> bool {
        self.bursts.held_blocks >= self.burst_blocks(fs) && self.writes.iter().any(|w| w.ino == ino && w.is_held())
    }

    /// Whether whoever this is has to wait. While a burst is under way others write on, until as much as for another is held back again.
    fn waits_for_burst(&self, fs: &Fs, who: Who) -> bool {
        let rests = self.bursts.led && who != Who::Commits;
        if self.bursts.bursting { self.has_twice(fs) } else { rests }
    }

    fn has_twice(&self, fs: &Fs) -> bool {
        self.bursts.held_blocks >= 2 * self.burst_blocks(fs)
    }

    fn burst_blocks(&self, fs: &Fs) -> u64 {
        self.bursts.blocks().min((fs.options.dirty_bytes_max / BLOCK_BYTES) as u64 / 4).max(1)
    }
}

impl Fs {
    /// Writes what is held back, and flushes it where syncs do that, after whoever does so already: who syncs afterwards finds nothing of
    /// it left to be written.
    pub(super) fn burst(&self) -> Result<()> {
        self.burst_of(u64::MAX)
    }

    /// The same of the oldest of it: so many blocks, or some more.
    fn burst_of(&self, blocks: u64) -> Result<()> {
        let mut inner = self.lock();
        inner.check_alive()?;
        while inner.bursts.bursting {
            inner = self.wait_idle(inner);
            inner.check_alive()?;
        }
        if inner.bursts.held_blocks == 0 {
            return Ok(());
        }
        inner.bursts.bursting = true;
        inner.counters.bursts += 1;
        drop(inner);
        let _ends = Bursting(self);
        let mut taken = 0;
        let writes = self.lock().take_writes(|w| {
            let takes = w.is_held() && taken < blocks;
            taken += if takes { u64::from(w.blocks) } else { 0 };
            takes
        });
        let begun_at = self.clock.monotonic_nanos();
        self.finish_writes(writes)?;
        let written_at = self.clock.monotonic_nanos();
        if flushes(self.options.barrier) {
            self.flush_device().inspect_err(|e| self.lock().fail(&e.to_string()))?;
        }
        let flushed_at = self.clock.monotonic_nanos();
        let took = [written_at.saturating_sub(begun_at), flushed_at.saturating_sub(written_at)];
        let mut inner = self.lock();
        if taken >= inner.burst_blocks(self) {
            inner.bursts.last = Some((flushed_at, (took[0] + took[1]).max(TOOK_NANOS_MIN)));
        }
        inner.bursts.note(taken, took);
        Ok(())
    }

    /// Has what is held back written when it is much and some of it of this file; while somebody does that, waits when twice as much is
    /// there. A writer leaves the device to those who sync before he does, and waits for who does that. Whether somebody is to be told
    /// later, who then did not wait.
    pub(super) fn burst_if_much<'a>(&'a self, mut inner: Guard<'a>, ino: Ino, who: Who) -> Result<(Guard<'a>, bool)> {
        while inner.makes_burst(self, ino) {
            let waits = inner.waits_for_burst(self, who);
            if waits && who == Who::IsTold && inner.under_way(|_| true) < self.told_blocks_max() {
                return Ok((inner, true));
            }
            if waits {
                inner.check_alive()?;
                inner.bursts.waiters += 1;
                inner = self.wait_idle(inner);
                inner.bursts.waiters -= 1;
            } else if inner.bursts.bursting {
                break;
            } else {
                if who == Who::Commits {
                    drop(inner);
                    self.burst()?;
                } else {
                    self.lead_bursts(inner)?;
                }
                return Ok((self.lock(), false));
            }
        }
        Ok((inner, false))
    }

    /// Leaves the device to those who sync, and makes a burst, and so on while writers wait to be told and much is left.
    fn lead_bursts<'a>(&'a self, mut inner: Guard<'a>) -> Result<()> {
        inner.bursts.led = true;
        drop(inner);
        let _ends = Leads(self);
        for _ in 0..LED_BURSTS_MAX {
            self.rest_after_burst();
            let inner = self.lock();
            let blocks = inner.burst_blocks(self);
            if inner.bursts.held_blocks < blocks {
                break;
            }
            drop(inner);
            self.burst_of(blocks)?;
            let inner = self.lock();
            if inner.bursts.told_later.is_empty() || !inner.has_twice(self) {
                break;
            }
        }
        Ok(())
    }

    /// Tells who wrote to this file, and whose thread has not waited for others' bursts, when that is over; at once where it is. `done`
    /// is called by any thread, and neither waits nor panics.
    pub fn tell_later(&self, ino: Ino, done: Done) {
        let mut inner = self.lock();
        let outcome = inner.failure();
        if outcome.is_ok() && inner.makes_burst(self, ino) && inner.waits_for_burst(self, Who::IsTold) {
            inner.counters.writes_told_later += 1;
            let held = inner.bursts.held_ever;
            inner.bursts.told_later.push((held, done));
            return;
        }
        drop(inner);
        done(outcome);
    }

    /// Somebody leads no more, or a burst is over: who waited for it writes on, as far as there is not another.
    fn let_writers_go(&self, mut inner: Guard<'_>) {
        self.wake_idle(&inner);
        let outcome = inner.failure();
        let waits = (inner.bursts.led || inner.bursts.bursting) && outcome.is_ok();
        let told = inner.bursts.take_told(!waits);
        drop(inner);
        if !broken(Break::WritersUntold) {
            told.into_iter().for_each(|done| done(outcome.clone()));
        }
    }

    /// Lets time go by after the last burst, as long as programs sync one after the other and there is enough for another.
    fn rest_after_burst(&self) {
        for look in 0..REST * LOOKS {
            let mut inner = self.lock();
            let now = self.clock.monotonic_nanos();
            let Some((ended, took)) = inner.bursts.last else { return };
            let left = ended.saturating_add((REST * took).min(REST_NANOS_MAX)).saturating_sub(now);
            // While a burst was under way few could: only after a while it can be told whether they go on.
            let wanted = match look {
                0 => inner.recent_syncs.any_within(2 * took, now),
                _ => inner.recent_syncs.several_within(2 * took, now),
            };
            let is_crowded = inner.bursts.waiters >= WAITERS_MAX;
            let is_enough = inner.bursts.held_blocks >= inner.burst_blocks(self);
            if left == 0 || !wanted || is_crowded || !is_enough || inner.check_alive().is_err() {
                return;
            }
            inner.counters.burst_rests += u64::from(look == 0);
            drop(inner);
            self.clock.rest(left.min(took / LOOKS + 1));
        }
    }

    /// Blocks on their way from which on a writer's thread has to wait all the same.
    fn told_blocks_max(&self) -> u64 {
        TOLD_BLOCKS_MAX.min((self.options.dirty_bytes_max / BLOCK_BYTES) as u64 / 2)
    }

    /// Writes what has been held back for as long as anything may be: content that was dropped since is in no commit.
    pub(super) fn burst_if_old(&self, now: u64) -> Result<()> {
        let since = self.lock().writes.iter().find_map(DataWrite::held_since);
        let is_old = since.is_some_and(|since| now.saturating_sub(since) >= self.options.commit_nanos);
        if is_old { self.burst() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
