//! Cleaning on request: garbage first, then files that lie scattered, then what that left behind.

use super::order::{Order, OrderStatus};
use super::{Cleaner, LOOK_BLOCKS, is_refused, lost_to_summaries, policy::Pace, unavoidable};
use crate::Result;
use crate::fs::{Fs, beside};
use nenrin_format::SegmentNo;
use std::collections::{BTreeMap, BTreeSet};

/// What cleaning would gain, for `clean -n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanEstimate {
    /// Segments that would be emptied.
    pub segments: u64,
    /// Blocks that would be copied.
    pub live_blocks: u64,
    /// Blocks that would become free beyond that.
    pub garbage_blocks: u64,
    /// Segments more that would be free at the end, about: what is brought together takes some, so does the index, and what was empty before
    /// becomes free with the rest.
    pub freed_segments: u64,
}

/// What a request is about at the moment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Segments with garbage are emptied.
    Garbage,
    /// Files are put in order.
    Order,
    /// Segments that were left with garbage by that are emptied.
    Rest,
    Done,
}

/// Cleaning on request. It holds nothing of the volume.
pub struct Clean {
    part: Part,
    todo: BTreeSet<SegmentNo>,
    estimate: CleanEstimate,
    free_before: u64,
    free_now: u64,
    moved_blocks: u64,
    out_of_room: bool,
    /// The last batch ended early and nothing of it had moved.
    stalled: bool,
    order: Order,
}

impl Clean {
    /// Everything that was to be cleaned is.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.part == Part::Done
    }
    /// It ended early, because no room was left to copy into.
    #[must_use]
    pub const fn is_out_of_room(&self) -> bool {
        self.out_of_room
    }
    /// Files are looked at, or put in order.
    #[must_use]
    pub fn is_ordering(&self) -> bool {
        self.part == Part::Order
    }
    /// What there was to do at the beginning, and what putting files in order added to it.
    #[must_use]
    pub const fn estimate(&self) -> CleanEstimate {
        self.estimate
    }
    /// Blocks moved so far, of [`CleanEstimate::live_blocks`] or a little more or less; those of files that were put in order apart.
    #[must_use]
    pub const fn moved_blocks(&self) -> u64 {
        self.moved_blocks
    }
    /// Segments that are free now and were not at the beginning; others write meanwhile, too.
    #[must_use]
    pub const fn freed_segments(&self) -> u64 {
        self.free_now.saturating_sub(self.free_before)
    }
    /// How far putting files in order came.
    #[must_use]
    pub const fn order(&self) -> OrderStatus {
        self.order.status
    }
}

impl Fs {
    /// What cleaning now would gain.
    #[must_use]
    pub fn clean_estimate(&self) -> CleanEstimate {
        self.garbage().1
    }

    /// Which files cleaning now would put in order, as far as there is room. All of the index of what is live is read for that.
    ///
    /// # Errors
    /// When the volume failed, or was closed.
    pub fn order_estimate(&self) -> Result<OrderStatus> {
        let _way = beside::giving_way();
        let mut order = Order::default();
        // Nothing is put in order there.
        if self.options.read_only {
            return Ok(order.status);
        }
        while self.look_for_order(&mut order)? {}
        Ok(order.status)
    }

    /// Segments that hold enough garbage.
    fn garbage(&self) -> (BTreeSet<SegmentNo>, CleanEstimate) {
        let inner = self.lock();
        let mut estimate = CleanEstimate::default();
        let blocks = self.storage.segment_blocks;
        let stuck = BTreeMap::new();
        let todo: BTreeSet<SegmentNo> = inner
            .candidates(self, Pace::Pressing, &stuck)
            .into_iter()
            .filter(|c| !inner.left_alone.contains(&c.segment))
            .map(|c| {
                estimate.segments += 1;
                estimate.live_blocks += u64::from(c.used);
                estimate.garbage_blocks += u64::from((blocks - c.used).saturating_sub(unavoidable(blocks)));
                c.segment
            })
            .collect();
        let copies = estimate.live_blocks.div_ceil(u64::from(blocks - lost_to_summaries(blocks)));
        let (gained, taken) = inner.index_after_cleaning(self);
        let gained = estimate.segments + gained + inner.state.segments.pending_count();
        estimate.freed_segments = gained.saturating_sub(copies + taken);
        (todo, estimate)
    }

    /// Begins to clean all segments that hold enough garbage, and then to put files in order that lie scattered; nothing is
    /// done yet.
    #[must_use]
    pub fn clean(&self) -> Clean {
        let (todo, estimate) = self.garbage();
        let free = self.lock().state.segments.free_count();
        Clean {
            part: Part::Garbage,
            todo,
            estimate,
            free_before: free,
            free_now: free,
            moved_blocks: 0,
            out_of_room: false,
            stalled: false,
            order: Order::default(),
        }
    }

    /// Cleans on, moving about `blocks` blocks.
    ///
    /// # Errors
    /// When a write or flush failed, now or earlier.
    pub fn clean_step(&self, clean: &mut Clean, blocks: u64) -> Result<()> {
        let _way = beside::giving_way();
        let mut cleaner = self.cleaner();
        let mut left = blocks;
        while left > 0 && !clean.is_done() {
            let cost = match clean.part {
                Part::Order => self.order_on(&mut cleaner, clean, left)?,
                _ => self.empty_on(&mut cleaner, clean, left)?,
            };
            left = left.saturating_sub(cost);
        }
        clean.free_now = self.lock().state.segments.free_count();
        Ok(())
    }

    /// One step of emptying segments; what it cost in blocks.
    fn empty_on(&self, cleaner: &mut Cleaner, clean: &mut Clean, blocks: u64) -> Result<u64> {
        if cleaner.job.is_none() && !self.begin_job(cleaner, Pace::Pressing, Some(&mut clean.todo))? {
            self.finish_cleaning()?;
            clean.part = if clean.part == Part::Garbage { Part::Order } else { Part::Done };
            return Ok(0);
        }
        let (before, was_refused) = (cleaner.job.as_ref().map_or(0, |j| j.moved), is_refused(cleaner));
        let Some(cost) = self.step(cleaner, blocks)? else {
            // What was emptied so far becomes room for the rest; what is too much to move at once even then is passed over.
            if is_refused(cleaner) && !was_refused {
                self.finish_cleaning()?;
                return Ok(LOOK_BLOCKS);
            }
            let job = cleaner.job.as_ref();
            let (gained, stalled) = (job.is_some_and(|j| j.moved > 0), clean.stalled);
            clean.stalled = !gained;
            if gained || !stalled {
                clean.todo.extend(job.into_iter().flat_map(|j| j.victims.keys()));
            }
            self.end_job(cleaner);
            self.finish_cleaning()?;
            clean.out_of_room = !gained && stalled || !self.may_move()?;
            if clean.out_of_room {
                clean.part = Part::Done;
            }
            return Ok(0);
        };
        clean.stalled &= cleaner.job.as_ref().is_none_or(|j| j.moved <= before);
        clean.moved_blocks += cleaner.job.as_ref().map_or(0, |j| j.moved.saturating_sub(before));
        self.end_if_done(cleaner);
        self.commit_moves()?;
        Ok(cost)
    }

    /// Looks at some files, or puts some in order; what it cost in blocks.
    fn order_on(&self, cleaner: &mut Cleaner, clean: &mut Clean, blocks: u64) -> Result<u64> {
        if let Some(cost) = self.order_some(cleaner, &mut clean.order, blocks)? {
            return Ok(cost);
        }
        if clean.order.status.ordered_blocks == 0 {
            clean.part = Part::Done;
            return Ok(0);
        }
        self.finish_cleaning()?;
        let (todo, estimate) = self.garbage();
        clean.todo = todo;
        clean.estimate.live_blocks += estimate.live_blocks;
        clean.part = Part::Rest;
        Ok(0)
    }
}
