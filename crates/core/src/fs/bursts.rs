//! What a device has to write of others makes it slow for whoever syncs meanwhile. So beside syncs data is held back, and
//! handed to the device in bursts: much at once, written and flushed, and in between nothing. Decision 0034.
//!
//! Invariants
//! 1. What is held back counts as memory and as under way, can be read, and is begun by whoever waits for it
//!    ([`Fs::finish_writes`]): the file's own sync, a commit that names it, an index checkpoint, a writer for want of memory.
//! 2. It is held for no longer than what was received may wait for a commit.
//! 3. One burst is under way at a time, and who writes on meanwhile what is held back waits when as much has come again. Nobody else
//!    waits for it or makes one: who syncs writes, too.
//! 4. While syncs come one after the other, bursts have the device for a third of the time at most: who is about to make one lets twice
//!    as long go by as the last one took ([`Fs::rest_after_burst`]). What is held back can be begun by others meanwhile, as ever.

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

/// Data that is held back, and what bursts took.
#[derive(Default)]
pub(super) struct Bursts {
    /// Blocks of data writes in [`Inner::writes`] that are held back.
    pub held_blocks: u64,
    /// When (monotonic) the oldest of them came.
    held_since: Option<u64>,
    /// A burst is under way.
    bursting: bool,
    /// Nanoseconds for a block and for the flush behind all, the recent bursts counting most.
    took: Option<(u64, u64)>,
    /// When the last one ended (monotonic), and how long it took.
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

    /// How long writing so many blocks took, and the flush, and that they ended now.
    fn note(&mut self, blocks: u64, [writing, flush]: [u64; 2], now: u64) {
        // A clock may stand still.
        self.last = Some((now, (writing + flush).max(1)));
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
        self.burst_after(|_| ())
    }

    /// The same, once what was held back for it has been done: it is given the last burst's end and duration.
    fn burst_after(&self, rest: impl FnOnce(Option<(u64, u64)>)) -> Result<()> {
        let mut inner = self.lock();
        inner.check_alive()?;
        if inner.bursts.held_blocks == 0 || std::mem::replace(&mut inner.bursts.bursting, true) {
            return Ok(());
        }
        let last = inner.bursts.last;
        drop(inner);
        let _ends = Bursting(self);
        rest(last);
        let mut inner = self.lock();
        inner.check_alive()?;
        if inner.bursts.held_blocks == 0 {
            return Ok(());
        }
        inner.counters.bursts += 1;
        let writes = inner.take_writes(DataWrite::is_held);
        drop(inner);
        let blocks = writes.iter().map(|w| u64::from(w.blocks)).sum();
        let begun_at = self.clock.monotonic_nanos();
        self.finish_writes(writes)?;
        let written_at = self.clock.monotonic_nanos();
        if flushes(self.options.barrier) {
            self.flush_device().inspect_err(|e| self.lock().fail(&e.to_string()))?;
        }
        let flushed_at = self.clock.monotonic_nanos();
        let took = [written_at.saturating_sub(begun_at), flushed_at.saturating_sub(written_at)];
        self.lock().bursts.note(blocks, took, flushed_at);
        Ok(())
    }

    /// Has what is held back written when it is much and some of it of this file; while somebody does that, waits when twice as much is there.
    pub(super) fn burst_if_much<'a>(&'a self, mut inner: Guard<'a>, ino: Ino) -> Result<Guard<'a>> {
        loop {
            if !inner.makes_burst(self, ino) {
                return Ok(inner);
            }
            if !inner.bursts.bursting {
                drop(inner);
                self.burst_after(|last| self.rest_after_burst(last))?;
                return Ok(self.lock());
            }
            if inner.bursts.held_blocks < 2 * inner.burst_blocks(self) {
                return Ok(inner);
            }
            inner.check_alive()?;
            inner = self.wait_idle(inner);
        }
    }

    /// Leaves the device to those who sync, while they do, for a time after the last burst.
    fn rest_after_burst(&self, last: Option<(u64, u64)>) {
        let Some((ended, took)) = last else { return };
        let until = ended.saturating_add((REST * took).min(REST_NANOS_MAX));
        for _ in 0..REST * LOOKS {
            let now = self.clock.monotonic_nanos();
            let left = until.saturating_sub(now);
            if left == 0 || !self.lock().recent_syncs.several_within(took, now) {
                return;
            }
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
    use std::sync::{Arc, OnceLock, Weak};

    /// A clock that goes on while somebody rests, who may sync files meanwhile.
    #[derive(Default)]
    struct Rests {
        now: AtomicU64,
        rested: AtomicU64,
        syncs: AtomicU64,
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
            let synced = self.syncs.load(Relaxed);
            if synced != 0 {
                self.fs.get().unwrap().upgrade().unwrap().fsync_wait(Ino(synced)).unwrap();
            }
        }
    }

    #[test]
    fn after_a_burst_the_device_is_left_to_those_who_sync() {
        const TOOK: u64 = 8_000_000;
        let clock = Arc::new(Rests { now: 1.into(), ..Rests::default() });
        let fs = Fs::open(vec![device(128, 0)], clock.clone(), crate::MountOptions::default()).unwrap();
        clock.fs.set(Arc::downgrade(&fs)).unwrap();
        let [f, g] = ["f", "g"].map(|name| create(&fs, name));
        // Writes what makes a burst, so long after so many syncs of the other file; `synced` is synced again and again meanwhile.
        let burst = |syncs: u64, since_sync: u64, synced: Ino| {
            (0..syncs).for_each(|_| fs.fsync_wait(g).unwrap());
            clock.now.fetch_add(since_sync, Relaxed);
            clock.syncs.store(synced.0, Relaxed);
            fs.lock().bursts.last = Some((clock.now.load(Relaxed), TOOK));
            let before = fs.counters().bursts;
            let mut at = 0;
            while !fs.lock().makes_burst(&fs, f) && fs.counters().bursts == before && clock.rested.load(Relaxed) == 0 {
                assert_eq!(fs.write(f, at, &vec![1; 1 << 20], 0).unwrap(), 1 << 20);
                at += 1 << 20;
            }
            (clock.rested.swap(0, Relaxed), fs.counters().bursts - before)
        };
        assert_eq!(burst(3, 0, g), (REST * TOOK, 1), "they sync all the time");
        let (rested, bursts) = burst(3, 0, Ino(0));
        assert!((TOOK..TOOK + TOOK / LOOKS + 8).contains(&rested) && bursts == 1, "the last ones: {rested}");
        assert_eq!(burst(3, TOOK, Ino(0)), (0, 1), "nobody has for as long as a burst takes");
        assert_eq!(burst(2, 0, Ino(0)), (0, 1), "a file and its directory");
        // Its own sync needs what is held back, and then there is nothing left to be written.
        let (rested, bursts) = burst(3, 0, f);
        assert!(rested > 0 && bursts == 0, "{rested}, {bursts}");
        assert_eq!(burst(3, 0, g), (REST * TOOK, 1));
    }

    #[test]
    fn a_burst_takes_as_long_on_slow_devices_as_on_fast_ones() {
        let mut bursts = Bursts::default();
        assert_eq!(bursts.blocks(), FIRST_BURST_BLOCKS);
        // 100 MB in a second.
        bursts.note(1024, [1024 * 41_000, 0], 0);
        assert_eq!(bursts.blocks(), 609);
        bursts.note(255, [255 * 1_000_000, 0], 0);
        assert_eq!(bursts.blocks(), 609, "few blocks tell nothing");
        bursts.note(1024, [1_000_000_000_000, 0], 0);
        assert!(bursts.blocks() > 450, "one that took very long: {}", bursts.blocks());
        (0..40).for_each(|_| bursts.note(1024, [1024 * 12_000, 5_000_000], 0));
        assert!((1_500..1_800).contains(&bursts.blocks()), "{}", bursts.blocks());
        (0..40).for_each(|_| bursts.note(1024, [0, 0], 0));
        assert_eq!(bursts.blocks(), BURST_BLOCKS.1);
        (0..80).for_each(|_| bursts.note(1024, [1024 * 10_000_000, 0], 0));
        assert_eq!(bursts.blocks(), BURST_BLOCKS.0);
    }

    #[test]
    fn writing_takes_as_long_as_a_flush_that_takes_long() {
        let mut bursts = Bursts::default();
        bursts.note(1024, [1024 * 40_000, 40_000_000], 0);
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
