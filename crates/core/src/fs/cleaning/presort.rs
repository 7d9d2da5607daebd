//! What lies scattered and is larger than the room for its copy is put in order in two passes: first the segments that
//! hold it are emptied in groups, so that each group lies in order by itself; then the windows are copied as ever.
//!
//! Each window then takes a stretch from each group, and what is taken first lies in the same segments: these become empty
//! as the windows go on, one after the other of each group, and so make room for what follows.
//!
//! Invariants
//! 1. A file is begun only when the room takes one group, and one segment of each.
//! 2. A group is emptied within one step, as for jobs of order.

use super::super::Fs;
use super::order::{Order, Window};
use super::{BATCH_BLOCKS_MAX, Cleaner, Job, Stage};
use crate::Result;
use crate::fs::space::with_summaries;
use crate::segments::SegmentState;
use nenrin_format::SegmentNo;
use std::collections::{BTreeMap, VecDeque};

/// Segments of room beyond one for each group.
const SPARE_SEGMENTS: u64 = 4;

/// The first pass over a file.
pub(super) struct Sorting {
    segments: VecDeque<SegmentNo>,
    group_blocks: u64,
}

impl Fs {
    /// Begins the first pass over the file of these windows, of so many blocks; whether there is room for two passes.
    pub(super) fn begin_sorting(&self, order: &mut Order, windows: &[Window], blocks: u64) -> Result<bool> {
        let segment_blocks = u64::from(self.storage.segment_blocks);
        let room = self.lock_to_change()?.room_to_order(self);
        let group_blocks = (room / 2).min(BATCH_BLOCKS_MAX);
        let groups = blocks.div_ceil(group_blocks.max(1));
        if group_blocks < segment_blocks
            || room < (groups + SPARE_SEGMENTS) * segment_blocks + with_summaries(group_blocks)
        {
            return Ok(false);
        }
        let mut held: BTreeMap<SegmentNo, u64> = BTreeMap::new();
        for window in windows {
            for m in self.extents_of(std::slice::from_ref(window))?.iter().flatten() {
                *held.entry(m.extent.addr.segment()).or_default() += u64::from(m.extent.blocks);
            }
        }
        let inner = self.lock_to_change()?;
        // Where it is the smaller part, others would be moved for it.
        held.retain(|no, blocks| {
            let s = inner.state.segments.get(*no).filter(|s| s.state == SegmentState::Sealed);
            s.is_some_and(|s| *blocks * 2 >= u64::from(s.used_blocks()))
        });
        order.status.blocks += held.values().sum::<u64>();
        order.sorting = Some(Sorting { segments: held.into_keys().collect(), group_blocks });
        Ok(true)
    }

    /// Empties the next group; what it cost in blocks.
    pub(super) fn sort_some(&self, cleaner: &mut Cleaner, order: &mut Order) -> Result<u64> {
        let Some(sorting) = &mut order.sorting else { return Ok(0) };
        let mut group = Vec::new();
        {
            let inner = self.lock_to_change()?;
            let mut live = 0;
            while let Some(no) = sorting.segments.front().copied() {
                live += inner.state.segments.get(no).map_or(0, |s| u64::from(s.used_blocks()));
                if live > sorting.group_blocks && !group.is_empty() {
                    break;
                }
                sorting.segments.pop_front();
                group.push(no);
            }
        }
        let group_blocks = sorting.group_blocks;
        if group.is_empty() {
            order.sorting = None;
            return Ok(0);
        }
        if !self.has_room_to_order(order, group_blocks)? {
            order.leave_all();
            return Ok(0);
        }
        self.end_job(cleaner);
        let Some(job) = self.job_of(&group)? else { return Ok(0) };
        cleaner.job = Some(Job { order: true, ..job });
        let result = self.sort_group(cleaner);
        let moved = cleaner.job.as_ref().map_or(0, |j| j.moved);
        self.end_job(cleaner);
        self.note_ordered(order, moved);
        match result {
            Ok(true) => self.finish_cleaning()?,
            Ok(false) => order.leave_all(),
            Err(e) => return Err(e),
        }
        Ok(moved)
    }

    /// Takes all steps of the job; whether there was room for them.
    fn sort_group(&self, cleaner: &mut Cleaner) -> Result<bool> {
        let mut at_last = None;
        while let Some(job) = cleaner.job.as_ref().filter(|j| !matches!(j.stage, Stage::Done)) {
            let moved = job.moved;
            if self.step(cleaner, u64::MAX)?.is_some() {
                self.commit_moves()?;
                continue;
            }
            if at_last == Some(moved) {
                return Ok(false);
            }
            at_last = Some(moved);
            self.finish_cleaning()?;
        }
        Ok(true)
    }
}
