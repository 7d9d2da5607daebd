//! Cleaning where nothing else makes room: of segments that hold hardly any garbage.
//!
//! On a full volume that is written over at random all segments come to hold the same little garbage, a sixteenth at most, and
//! none of them would be worth it. Who writes over what is there is not refused for that: copying costs up to thirty times what it
//! gains, and comes after all history that may go has gone.

use super::{Fs, Pace};
use crate::Result;
use crate::breaks::{Break, broken};

/// Batches of one round, at most.
const BATCHES_MAX: usize = 32;
/// After so long a segment is enough: somebody waits.
const LONG_NANOS: u64 = 500_000_000;
/// So large a part of what would be room without garbage is gained at once: each batch costs two index checkpoints, and the rounds before it more.
const PART_AT_ONCE: u64 = 8;

impl Fs {
    /// Cleans what gains little until there is a segment more; whether anything was gained. Not unless there are two segments more of such garbage
    /// than could not be had before: each who is refused would try again.
    pub(in super::super) fn clean_what_gains_little(&self) -> Result<bool> {
        if broken(Break::LittleGarbageKept) {
            return Ok(false);
        }
        let blocks = u64::from(self.storage.segment_blocks);
        let mut cleaner = self.cleaner();
        let inner = self.lock_to_change()?;
        let before = inner.segments_in_all();
        let garbage = inner.little_garbage(self, &cleaner.left);
        let wanted = before + (inner.slack_segments(self) / PART_AT_ONCE).max(1);
        drop(inner);
        cleaner.little_left = cleaner.little_left.min(garbage);
        if garbage < cleaner.little_left + 2 * blocks {
            self.lock().little_pays = false;
            return Ok(false);
        }
        let started = self.clock.monotonic_nanos();
        for _ in 0..BATCHES_MAX {
            let inner = self.lock_to_change()?;
            let (now, has) = (self.clock.monotonic_nanos(), inner.segments_in_all());
            let enough = has >= wanted || has > before && now.saturating_sub(started) > LONG_NANOS || inner.closing;
            drop(inner);
            if enough || !self.begin_job(&mut cleaner, Pace::Last, None)? || self.finish_job(&mut cleaner)? == 0 {
                break;
            }
            self.finish_cleaning()?;
        }
        let mut inner = self.lock_to_change()?;
        let gained = inner.segments_in_all() > before;
        inner.little_pays = gained;
        let left = inner.little_garbage(self, &cleaner.left);
        drop(inner);
        if !gained {
            cleaner.little_left = left;
        }
        Ok(gained)
    }
}
