//! What a device has to write of others makes it slow for whoever syncs meanwhile. So beside syncs data is held back, and
//! handed to the device in bursts: much at once, written and flushed, and in between nothing. Decision 0034.
//!
//! Invariants
//! 1. What is held back counts as memory and as under way, can be read, and is begun by whoever waits for it
//!    ([`Fs::finish_writes`]): the file's own sync, a commit that names it, an index checkpoint, a writer for want of memory.
//! 2. It is held for no longer than what was received may wait for a commit.
//! 3. One burst is under way at a time, and who writes on meanwhile what is held back waits when as much has come again. Who commits
//!    everything makes one, too; who writes nothing of it neither makes nor waits for one: who syncs writes, too.
//! 4. While programs do little but sync, bursts have the device for a third of the time: a writer who is about to make one lets twice as
//!    long go by as the last one took ([`Fs::rest_after_burst`]). Hardly more is held back meanwhile, and whoever needs it begins it, as
//!    ever: commits and checkpoints rest for nobody.

use super::guard::Guard;
use super::{DataWrite, Fs, Inner, Request, flushes};
use crate::breaks::{Break, broken};
use crate::{Order, Result};
use nenrin_format::{BLOCK_BYTES, Ino};

/// What a burst shall take. Longer ones are fewer, and each holds up those who sync while it lasts.
const BURST_NANOS: u64 = 25_000_000;
/// Blocks of a burst at least and at most, however slow or fast the device is: 1 MiB, and 8 MiB, since three times as much may be in
/// memory, and a daemon in a group of 48 MiB must live.
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
/// Writers that wait for the end of a rest: each has a thread that would serve those who sync, so with as many it ends.
const REST_WAITERS_MAX: u32 = 3;

/// Data that is held back, and what bursts took.
#[derive(Default)]
pub(super) struct Bursts {
    /// Blocks of data writes in [`Inner::writes`] that are held back.
    pub held_blocks: u64,
    /// When (monotonic) the oldest of them came.
    held_since: Option<u64>,
    /// A burst is under way.
    bursting: bool,
    /// A writer leaves the device to those who sync before it makes one, and so many wait for it.
    resting: bool,
    rest_waiters: u32,
    /// Nanoseconds for a block and for the flush behind all, the recent bursts counting most.
    took: Option<(u64, u64)>,
    /// When the last full one ended (monotonic), and how long it took.
    last: Option<(u64, u64)>,
}

impl Bursts {
    /// Blocks that make a burst. Where a flush takes long, writing takes as long: else flushes would be all that the device does.
    fn blocks(&self) -> u64 {
        let (least, most) = BURST_BLOCKS;
        let fits = |(each, flush): (u64, u64)| BURST_NANOS.saturating_sub(flush).max(flush) / each.max(1);
        self.took.map_or(FIRST_BURST_BLOCKS, fits).clamp(least, most)
    }

    /// So many more are held back.
    pub fn hold(&mut self, blocks: u32, now: u64) {
        self.held_blocks += u64::from(blocks);
        self.held_since.get_or_insert(now);
    }

    /// So many are no more.
    pub fn let_go(&mut self, blocks: u64) {
        self.held_blocks -= blocks;
        if self.held_blocks == 0 {
            self.held_since = None;
        }
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
    /// A program that writes.
    Writes,
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
        self.0.wake_idle(&inner);
    }
}

/// The same of a rest, in which nothing was taken.
struct Resting<'a>(&'a Fs);

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.bursts.resting = false;
        self.0.wake_idle(&inner);
    }
}

impl DataWrite {
    pub(super) fn is_held(&self) -> bool {
        matches!(self.request, Request::Held(_))
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
            if let Request::Held(data) = &w.request {
                w.request = Request::Begun(Request::Held(data.clone()).begin(&fs.storage, w.addr)?);
                self.bursts.let_go(u64::from(w.blocks));
            }
        }
        Ok(())
    }

    /// Whether much is held back, some of it of this file: who writes it makes a burst, or waits for one.
    pub(super) fn makes_burst(&self, fs: &Fs, ino: Ino) -> bool {
        self.bursts.held_blocks >= self.burst_blocks(fs) && self.writes.iter().any(|w| w.ino == ino && w.is_held())
    }

    fn burst_blocks(&self, fs: &Fs) -> u64 {
        self.bursts.blocks().min((fs.options.dirty_bytes_max / BLOCK_BYTES) as u64 / 4).max(1)
    }
}

impl Fs {
    /// Writes what is held back, and flushes it where syncs do that, unless somebody does so already: who syncs afterwards finds nothing
    /// left to be written.
    pub(super) fn burst(&self) -> Result<()> {
        let mut inner = self.lock();
        inner.check_alive()?;
        if inner.bursts.held_blocks == 0 || std::mem::replace(&mut inner.bursts.bursting, true) {
            return Ok(());
        }
        inner.counters.bursts += 1;
        let writes = inner.take_writes(DataWrite::is_held);
        drop(inner);
        let _ends = Bursting(self);
        let blocks = writes.iter().map(|w| u64::from(w.blocks)).sum();
        let begun_at = self.clock.monotonic_nanos();
        self.finish_writes(writes)?;
        let written_at = self.clock.monotonic_nanos();
        if flushes(self.options.barrier) {
            self.flush_device().inspect_err(|e| self.lock().fail(&e.to_string()))?;
        }
        let flushed_at = self.clock.monotonic_nanos();
        let took = [written_at.saturating_sub(begun_at), flushed_at.saturating_sub(written_at)];
        let mut inner = self.lock();
        if blocks >= inner.burst_blocks(self) {
            inner.bursts.last = Some((flushed_at, (took[0] + took[1]).max(TOOK_NANOS_MIN)));
        }
        inner.bursts.note(blocks, took);
        Ok(())
    }

    /// Has what is held back written when it is much and some of it of this file; while somebody does that, waits when twice as much is
    /// there. A writer leaves the device to those who sync before he does, and waits for who does that.
    pub(super) fn burst_if_much<'a>(&'a self, mut inner: Guard<'a>, ino: Ino, who: Who) -> Result<Guard<'a>> {
        let mut rests = who == Who::Writes;
        while inner.makes_burst(self, ino) {
            if who == Who::Writes && inner.bursts.resting {
                inner.check_alive()?;
                inner = self.wait_for_rest(inner, ino);
                rests = false;
            } else if inner.bursts.bursting {
                if inner.bursts.held_blocks < 2 * inner.burst_blocks(self) {
                    break;
                }
                inner.check_alive()?;
                inner = self.wait_idle(inner);
            } else if std::mem::take(&mut rests) {
                inner.bursts.resting = true;
                drop(inner);
                let resting = Resting(self);
                self.rest_after_burst(ino);
                drop(resting);
                inner = self.lock();
            } else {
                drop(inner);
                self.burst()?;
                return Ok(self.lock());
            }
        }
        Ok(inner)
    }

    fn wait_for_rest<'a>(&'a self, mut inner: Guard<'a>, ino: Ino) -> Guard<'a> {
        inner.bursts.rest_waiters += 1;
        while inner.bursts.resting && inner.makes_burst(self, ino) && inner.check_alive().is_ok() {
            inner = self.wait_idle(inner);
        }
        inner.bursts.rest_waiters -= 1;
        inner
    }

    /// Lets time go by after the last burst, as long as programs sync one after the other and there is something of this file to be written.
    fn rest_after_burst(&self, ino: Ino) {
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
            let is_crowded = inner.bursts.rest_waiters >= REST_WAITERS_MAX;
            if left == 0 || !wanted || is_crowded || !inner.makes_burst(self, ino) || inner.check_alive().is_err() {
                return;
            }
            inner.counters.burst_rests += u64::from(look == 0);
            drop(inner);
            self.clock.rest(left.min(took / LOOKS + 1));
        }
    }

    /// Writes what has been held back for as long as anything may be: content that was dropped since is in no commit.
    pub(super) fn burst_if_old(&self, now: u64) -> Result<()> {
        let since = self.lock().bursts.held_since;
        let is_old = since.is_some_and(|since| now.saturating_sub(since) >= self.options.commit_nanos);
        if is_old { self.burst() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{create, device};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::sync::{Arc, Mutex, OnceLock, Weak};

    /// What is done while somebody rests.
    type Meanwhile = Box<dyn FnMut(&Arc<Fs>) + Send>;

    /// A clock that goes on while somebody rests.
    #[derive(Default)]
    struct Rests {
        now: AtomicU64,
        rested: AtomicU64,
        meanwhile: Mutex<Option<Meanwhile>>,
        fs: OnceLock<Weak<Fs>>,
    }

    impl crate::Clock for Rests {
        fn wall(&self) -> nenrin_format::Time {
            nenrin_format::Time(1)
        }
        fn monotonic_nanos(&self) -> u64 {
            self.now.load(Relaxed)
        }
        fn rest(&self, nanos: u64) {
            self.now.fetch_add(nanos, Relaxed);
            self.rested.fetch_add(nanos, Relaxed);
            if let Some(meanwhile) = self.meanwhile.lock().unwrap().as_mut() {
                meanwhile(&self.fs.get().unwrap().upgrade().unwrap());
            }
        }
    }

    const TOOK: u64 = 8_000_000;

    struct Copied {
        clock: Arc<Rests>,
        fs: Arc<Fs>,
        copied: Ino,
        synced: Ino,
    }

    impl Copied {
        fn new() -> Self {
            let clock = Arc::new(Rests { now: 1_000_000_000.into(), ..Rests::default() });
            let fs = Fs::open(vec![device(128, 0)], clock.clone(), crate::MountOptions::default()).unwrap();
            clock.fs.set(Arc::downgrade(&fs)).unwrap();
            let [copied, synced] = ["copied", "synced"].map(|name| create(&fs, name));
            Self { clock, fs, copied, synced }
        }

        /// So many syncs, and so long afterwards writes that make a burst, where the last one ended so long ago: how long the writer
        /// rested, and how many bursts there were.
        fn burst(
            &self,
            syncs: u64,
            since_sync: u64,
            (ended, took): (u64, u64),
            meanwhile: Option<Meanwhile>,
        ) -> (u64, u64) {
            (0..syncs).for_each(|_| self.fs.fsync_wait(self.synced).unwrap());
            let now = self.clock.now.fetch_add(since_sync, Relaxed) + since_sync;
            *self.clock.meanwhile.lock().unwrap() = meanwhile;
            self.fs.lock().bursts.last = Some((now - ended, took));
            let before = self.fs.counters().bursts;
            let mut at = 0;
            while self.fs.counters().bursts == before && self.clock.rested.load(Relaxed) == 0 {
                assert_eq!(self.fs.write(self.copied, at, &vec![1; 1 << 20], 0).unwrap(), 1 << 20);
                at += 1 << 20;
            }
            *self.clock.meanwhile.lock().unwrap() = None;
            (self.clock.rested.swap(0, Relaxed), self.fs.counters().bursts - before)
        }

        fn syncs(&self, ino: Ino) -> Option<Meanwhile> {
            assert!(ino == self.copied || ino == self.synced);
            Some(Box::new(move |fs| fs.fsync_wait(ino).unwrap()))
        }
    }

    #[test]
    fn after_a_burst_the_device_is_left_to_those_who_sync() {
        let w = Copied::new();
        let slice = TOOK / LOOKS + 1;
        assert_eq!(w.burst(3, 0, (0, TOOK), w.syncs(w.synced)), (REST * TOOK, 1), "they sync all the time");
        assert_eq!(w.fs.lock().bursts.last, Some((w.clock.now.load(Relaxed), TOOK_NANOS_MIN)), "a burst in no time");
        assert_eq!(w.burst(0, 0, (TOOK, TOOK), w.syncs(w.synced)), (TOOK, 1), "some of the time has gone by");
        assert_eq!(w.burst(3, 0, (REST * TOOK, TOOK), w.syncs(w.synced)), (0, 1), "all of it has");
        let long = REST_NANOS_MAX;
        assert_eq!(w.burst(3, 0, (0, long), w.syncs(w.synced)), (REST_NANOS_MAX, 1), "a burst that took very long");
        // Who did nothing but sync may do so no more, and who syncs a file and its directory does nothing else.
        w.clock.now.fetch_add(REST_NANOS_MAX, Relaxed);
        let (rested, bursts) = w.burst(3, TOOK, (0, TOOK), None);
        assert!((TOOK..TOOK + slice + 8).contains(&rested) && bursts == 1, "the last ones: {rested}");
        assert_eq!(w.burst(3, 2 * TOOK, (0, TOOK), None), (0, 1), "nobody has for as long as two bursts take");
        w.clock.now.fetch_add(TOOK, Relaxed);
        assert_eq!(w.burst(2, 0, (0, TOOK), None), (slice, 1), "a file and its directory");
        assert_eq!(w.burst(2, 0, (0, TOOK), w.syncs(w.synced)), (REST * TOOK, 1), "it goes on");
    }

    #[test]
    fn what_others_need_of_it_does_not_wait_for_a_rest() {
        let w = Copied::new();
        // Its own sync: nothing is left to be written.
        let slice = TOOK / LOOKS + 1;
        assert_eq!(w.burst(3, 0, (0, TOOK), w.syncs(w.copied)), (slice, 0), "a rest without a reason goes on");
        // A commit of everything writes it and flushes it, as a burst.
        assert_eq!(w.burst(3, 0, (0, TOOK), Some(Box::new(|fs| fs.sync_all().unwrap()))), (slice, 1));
        assert_eq!(w.fs.lock().bursts.held_blocks, 0);
        // What it has to write before makes bursts, and rests for nobody.
        let w = Copied::new();
        (0..2048).for_each(|n| assert_eq!(w.fs.write(w.copied, n * 8192, &[2; 4096], 0).unwrap(), 4096));
        (0..3).for_each(|_| w.fs.fsync_wait(w.synced).unwrap());
        w.fs.lock().bursts.last = Some((w.clock.now.load(Relaxed), TOOK));
        let before = w.fs.counters().bursts;
        w.fs.sync_all().unwrap();
        assert!(w.fs.counters().bursts > before + 1);
        assert_eq!(w.clock.rested.load(Relaxed), 0, "a commit rested");
    }

    /// Else there would be twice as much in the burst, and all of that in memory.
    #[test]
    fn other_writers_wait_for_the_end_of_a_rest_unless_they_are_many() {
        let w = Copied::new();
        let others = Arc::new(Mutex::new(Vec::new()));
        let held = Arc::new(AtomicU64::new(0));
        let (threads, seen) = (others.clone(), held.clone());
        let mut left: Vec<Ino> = (0..REST_WAITERS_MAX).map(|n| create(&w.fs, &n.to_string())).collect();
        // In each slice of the rest one more writer comes.
        let meanwhile = move |fs: &Arc<Fs>| {
            fs.fsync_wait(Ino::ROOT).unwrap();
            let Some(other) = left.pop() else { return };
            let (writes, come) = (fs.clone(), REST_WAITERS_MAX - left.len() as u32);
            let writer =
                std::thread::spawn(move || assert_eq!(writes.write(other, 0, &vec![3; 1 << 20], 0).unwrap(), 1 << 20));
            let since = std::time::Instant::now();
            while fs.lock().bursts.rest_waiters < come && !writer.is_finished() {
                assert!(since.elapsed().as_secs() < 60, "a writer neither waits nor ends");
                std::thread::yield_now();
            }
            let inner = fs.lock();
            seen.store(inner.bursts.held_blocks, Relaxed);
            assert!(inner.bursts.held_blocks < 2 * inner.burst_blocks(fs), "they write on");
            drop(inner);
            threads.lock().unwrap().push(writer);
        };
        let (rested, bursts) = w.burst(3, 0, (0, TOOK), Some(Box::new(meanwhile)));
        others.lock().unwrap().drain(..).for_each(|t| t.join().unwrap());
        assert!(held.load(Relaxed) > FIRST_BURST_BLOCKS && bursts >= 1);
        assert_eq!(
            rested / (TOOK / LOOKS),
            u64::from(REST_WAITERS_MAX),
            "so many wait, and nobody is left to serve syncs"
        );
        let inner = w.fs.lock();
        assert_eq!((inner.bursts.resting, inner.bursts.rest_waiters), (false, 0));
    }

    #[test]
    fn a_burst_takes_as_long_on_slow_devices_as_on_fast_ones() {
        let mut bursts = Bursts::default();
        assert_eq!(bursts.blocks(), FIRST_BURST_BLOCKS);
        // 100 MB in a second.
        bursts.note(1024, [1024 * 41_000, 0]);
        assert_eq!(bursts.blocks(), 609);
        bursts.note(255, [255 * 1_000_000, 0]);
        assert_eq!(bursts.blocks(), 609, "few blocks tell nothing");
        bursts.note(1024, [1_000_000_000_000, 0]);
        assert!(bursts.blocks() > 450, "one that took very long: {}", bursts.blocks());
        (0..40).for_each(|_| bursts.note(1024, [1024 * 12_000, 5_000_000]));
        assert!((1_500..1_800).contains(&bursts.blocks()), "{}", bursts.blocks());
        (0..40).for_each(|_| bursts.note(1024, [0, 0]));
        assert_eq!(bursts.blocks(), BURST_BLOCKS.1);
        (0..80).for_each(|_| bursts.note(1024, [1024 * 10_000_000, 0]));
        assert_eq!(bursts.blocks(), BURST_BLOCKS.0);
    }

    #[test]
    fn writing_takes_as_long_as_a_flush_that_takes_long() {
        let mut bursts = Bursts::default();
        bursts.note(1024, [1024 * 40_000, 40_000_000]);
        assert_eq!(bursts.blocks(), 1_000);
    }

    #[test]
    fn it_is_known_since_when_something_is_held() {
        let mut bursts = Bursts::default();
        bursts.hold(3, 10);
        bursts.hold(4, 20);
        bursts.let_go(3);
        assert_eq!((bursts.held_blocks, bursts.held_since), (4, Some(10)));
        bursts.let_go(4);
        bursts.hold(1, 30);
        assert_eq!((bursts.held_blocks, bursts.held_since), (1, Some(30)));
    }
}
