//! For forgetting: segments are emptied whatever they hold, but for those in
//! which nothing is left over.
//!
//! Invariants
//! 1. A segment counts as whole only when every payload block of it has an
//!    owner, all of it belongs to data partials, and the rest reads as zeros.

use super::super::Fs;
use super::{Cleaner, Job, Stage, Victim};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::segments::{KIND_DATA, SegmentState};
use nenrin_format::partial::{Header, PartialKind, Summary};
use nenrin_format::{Addr, SegmentNo};
use std::collections::{BTreeMap, BTreeSet};

/// What came of emptying segments.
#[derive(Default)]
pub(in super::super) struct Emptied {
    /// Those that hold nothing without an owner, and so stay as they are.
    pub whole: Vec<SegmentNo>,
    /// Blocks that were moved.
    pub moved: u64,
    /// It ended early, for want of room.
    pub out_of_room: bool,
}

impl Fs {
    /// Moves what is needed out of these segments, as far as they can be emptied now; those that
    /// are whole are left alone.
    pub(in super::super) fn empty_segments(&self, wanted: &[SegmentNo]) -> Result<Emptied> {
        self.empty(wanted, true)
    }

    /// The same, also those in which nothing is left over.
    pub(in super::super) fn empty_whatever(&self, wanted: &[SegmentNo]) -> Result<Emptied> {
        self.empty(wanted, false)
    }

    fn empty(&self, wanted: &[SegmentNo], leave_whole: bool) -> Result<Emptied> {
        let mut cleaner = self.cleaner();
        self.end_job(&mut cleaner);
        let mut done = Emptied::default();
        let Some(job) = self.job_of(wanted)? else { return Ok(done) };
        cleaner.job = Some(job);
        let result = self.empty_all(&mut cleaner, leave_whole, &mut done);
        done.moved = cleaner.job.as_ref().map_or(0, |j| j.moved);
        self.end_job(&mut cleaner);
        result.map(|()| done)
    }

    fn empty_all(&self, cleaner: &mut Cleaner, leave_whole: bool, done: &mut Emptied) -> Result<()> {
        let mut looked = !leave_whole;
        while let Some(job) = &mut cleaner.job {
            match job.stage {
                Stage::Done => break,
                Stage::Compare if !looked => {
                    looked = true;
                    self.leave_whole(job, done)?;
                    if job.victims.is_empty() {
                        break;
                    }
                }
                _ => {}
            }
            if self.step(cleaner, u64::MAX)?.is_none() {
                done.out_of_room = true;
                break;
            }
            self.commit_moves()?;
        }
        Ok(())
    }

    /// A job for these segments, as far as nothing is under way in them; they are pinned.
    pub(super) fn job_of(&self, wanted: &[SegmentNo]) -> Result<Option<Job>> {
        let mut inner = self.lock_to_change()?;
        inner.reap_writes();
        let mut busy: BTreeSet<SegmentNo> = inner.inflight.keys().map(|a| a.segment()).collect();
        busy.extend(inner.writes.iter().map(|w| w.addr.segment()));
        let mut victims = BTreeMap::new();
        let mut live = 0;
        for no in wanted {
            let Some(s) = inner.state.segments.get(*no) else { continue };
            let used = s.used_blocks();
            if s.state == SegmentState::Sealed && !s.chain_held && s.pins == 0 && used > 0 && !busy.contains(no) {
                victims.insert(*no, Victim { kind: s.item.kind, used, found: 0 });
                live += u64::from(used);
            }
        }
        if victims.is_empty() {
            return Ok(None);
        }
        for no in victims.keys() {
            inner.state.segments.pin(*no);
        }
        inner.cleaner_status.victims = victims.len() as u64;
        Ok(Some(Job { live, ..Job::of(victims) }))
    }

    /// Takes victims out of a job that was surveyed in which nothing is left over.
    fn leave_whole(&self, job: &mut Job, done: &mut Emptied) -> Result<()> {
        if !job.grouped {
            job.grouped = true;
            job.find_groups(self)?;
        }
        let data = job.victims.iter().filter(|(_, v)| v.kind == KIND_DATA);
        let whole: Vec<SegmentNo> = data
            .map(|(no, v)| (*no, v.found))
            .filter(|(no, found)| self.is_whole(job, *no, *found))
            .map(|(no, _)| no)
            .collect();
        let mut inner = self.lock_to_change()?;
        for no in whole {
            let used = inner.state.segments.get(no).map_or(0, |s| s.used_blocks());
            if job.victims.get(&no).is_some_and(|v| v.found == used) {
                job.victims.remove(&no);
                inner.state.segments.unpin(no);
                done.whole.push(no);
            }
        }
        drop(inner);
        job.moves.retain(|m| !done.whole.contains(&m.extent.addr.segment()));
        job.groups.retain(|g| !done.whole.contains(&g.segment()));
        Ok(())
    }

    /// Whether every payload block has an owner, `found` in all, and the rest is zeros.
    fn is_whole(&self, job: &Job, segment: SegmentNo, found: u32) -> bool {
        let uuid = self.superblock().uuid;
        let (mut end, mut payload) = (0, 0u32);
        while end < self.storage.segment_blocks {
            let at = Addr::new(segment, end);
            let Ok(bytes) = self.storage.read_summary(at, None) else { break };
            let Ok(summary) = Header::decode(&bytes) else { break };
            let header = &summary.header;
            // What was left out is not looked through: such a segment is zeroed as a whole.
            if header.kind != PartialKind::Data || header.uuid != uuid || header.left_out > 0 {
                return false;
            }
            payload += header.payload_blocks - self.zeros_left_out(&summary);
            end += header.total_blocks();
        }
        let inside = |addr: Addr, blocks: u32| addr.segment() == segment && addr.block() + blocks <= end;
        let own = job.moves.iter().filter(|m| inside(m.extent.addr, m.extent.blocks)).map(|m| m.extent.blocks);
        let shared = job.groups.iter().filter(|g| inside(g.start(), g.blocks)).map(|g| g.blocks);
        let owned: u32 = own.chain(shared).sum();
        let rest = self.storage.segment_blocks.saturating_sub(end);
        let clear = broken(Break::ForgetSkipsTails) || self.reads_as_zeros(Addr::new(segment, end), rest);
        owned == payload && payload == found && end <= self.storage.segment_blocks && clear
    }

    /// Blocks of a data partial that were left out so that a run begins at a unit, and are zeros.
    fn zeros_left_out(&self, summary: &Summary<'_>) -> u32 {
        let (mut at, mut zeros) = (summary.header.payload_addr(), 0);
        for run in &summary.map {
            let blocks = run.blocks.get();
            if run.ino.get() == 0 && self.reads_as_zeros(at, blocks) {
                zeros += blocks;
            }
            at = at.add(blocks);
        }
        zeros.min(summary.header.payload_blocks)
    }
}
