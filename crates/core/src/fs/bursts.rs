//! What a device has to write of others makes it slow for whoever syncs meanwhile. So beside syncs data is held back, and
//! handed to the device in bursts: much at once, written and flushed, and in between nothing. Decision 0034.
//!
//! Invariants
//! 1. What is held back counts as memory and as under way, can be read, and is begun by whoever waits for it
//!    ([`Fs::finish_writes`]): the file's own sync, a commit that names it, an index checkpoint, a writer for want of memory.
//! 2. It is held for no longer than what was received may wait for a commit.
//! 3. One burst is under way at a time, and who writes on meanwhile what is held back waits when as much has come again. Nobody else
//!    waits for it or makes one: who syncs writes, too.

use super::guard::Guard;
use super::{DataWrite, Fs, Inner, Request, flushes};
use crate::{Order, Result};
use nenrin_format::{BLOCK_BYTES, Ino};

/// What a burst shall take. Longer ones are fewer, and each holds up those who sync while it lasts.
const BURST_NANOS: u64 = 25_000_000;
/// Blocks of a burst at least and at most, however slow or fast the device is: 1 MiB and 64 MiB.
const BURST_BLOCKS: (u64, u64) = (256, 16384);
/// As long as nothing is known of the device: 4 MiB.
const FIRST_BURST_BLOCKS: u64 = 1024;

/// Data that is held back, and what bursts took.
#[derive(Default)]
pub(super) struct Bursts {
    /// Blocks of data writes in [`Inner::writes`] that are held back.
    pub held_blocks: u64,
    /// When (monotonic) the oldest of them came.
    held_since: Option<u64>,
    /// A burst is under way.
    bursting: bool,
    /// Nanoseconds for a block, the recent bursts counting most.
    nanos_each: Option<u64>,
}

impl Bursts {
    /// Blocks that make a burst.
    fn blocks(&self) -> u64 {
        let (least, most) = BURST_BLOCKS;
        self.nanos_each.map_or(FIRST_BURST_BLOCKS, |each| BURST_NANOS / each.max(1)).clamp(least, most)
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

    /// What a burst took.
    fn note(&mut self, blocks: u64, nanos: u64) {
        // Of a few blocks the flush is most.
        if blocks >= BURST_BLOCKS.0 {
            let each = nanos / blocks;
            self.nanos_each = Some(self.nanos_each.map_or(each, |mean| mean - mean / 4 + each / 4));
        }
    }
}

/// Lets others burst again, also where its thread is lost. It must not live inside of what holds the lock.
struct Bursting<'a>(&'a Fs);

impl Drop for Bursting<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
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
    /// Whether data of this file waits for a burst now. In strict order every sync waits for all data, so that none gains by that.
    pub(super) fn joins_burst(&self, fs: &Fs, ino: Ino, now: u64) -> bool {
        fs.options.order != Order::Strict && self.recent_syncs.beside(ino, now)
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
        if flushes(self.options.barrier) {
            self.flush_device().inspect_err(|e| self.lock().fail(&e.to_string()))?;
        }
        let took = self.clock.monotonic_nanos().saturating_sub(begun_at);
        self.lock().bursts.note(blocks, took);
        Ok(())
    }

    /// Has what is held back written when it is much and some of it of this file; while somebody does that, waits when twice as much is there.
    pub(super) fn burst_if_much<'a>(&'a self, mut inner: Guard<'a>, ino: Ino) -> Result<Guard<'a>> {
        loop {
            let (held, much) = (inner.bursts.held_blocks, inner.burst_blocks(self));
            if held < much || !inner.writes.iter().any(|w| w.ino == ino && w.is_held()) {
                return Ok(inner);
            }
            if !inner.bursts.bursting {
                drop(inner);
                self.burst()?;
                return Ok(self.lock());
            }
            if held < 2 * much {
                return Ok(inner);
            }
            inner.check_alive()?;
            inner = self.wait_idle(inner);
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

    #[test]
    fn a_burst_takes_as_long_on_slow_devices_as_on_fast_ones() {
        let mut bursts = Bursts::default();
        assert_eq!(bursts.blocks(), FIRST_BURST_BLOCKS);
        // 100 MB in a second.
        bursts.note(1024, 1024 * 41_000);
        assert_eq!(bursts.blocks(), 609);
        bursts.note(255, 255 * 1_000_000);
        assert_eq!(bursts.blocks(), 609, "few blocks tell nothing");
        (0..40).for_each(|_| bursts.note(1024, 1024 * 4_100));
        assert!((5_000..7_000).contains(&bursts.blocks()), "{}", bursts.blocks());
        (0..40).for_each(|_| bursts.note(1024, 0));
        assert_eq!(bursts.blocks(), BURST_BLOCKS.1);
        (0..40).for_each(|_| bursts.note(1024, 1024 * 10_000_000));
        assert_eq!(bursts.blocks(), BURST_BLOCKS.0);
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
