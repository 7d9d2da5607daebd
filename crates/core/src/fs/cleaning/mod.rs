//! The cleaner: empties segments that hold garbage, by moving what is still
//! needed in them. Decision 0007 has the policy and the cases.
//!
//! Work is a [`Job`]: a batch of victims that goes through the stages
//! summaries, owners, comparison, moves, in steps. `tick` takes some
//! ([`Fs::clean_some`]), who cleans on request takes all ([`Fs::clean_step`], in `request`),
//! and so does a writer for want of room ([`Fs::clean_for_room`]). Who asks also gets files put in order (`order`).
//!
//! Invariants
//! 1. Victims are pinned from before they are surveyed until their job ends.
//! 2. Who holds the cleaner never waits for room ([`Fs::room_for`]), since who
//!    makes room may wait for the cleaner.
//! 3. It needs no more room than the reserve leaves it.

mod index;
mod last;
mod order;
mod policy;
mod presort;
mod relocate;
mod request;
mod shared;
mod survey;
#[cfg(test)]
mod tests;
mod wipe;

pub use order::OrderStatus;
pub use policy::Rest;
pub use request::{Clean, CleanEstimate};

use super::{Fs, Inner, locked};
use crate::breaks::{Break, broken};
use crate::vouched::Claim;
use crate::{Error, Result};
use nenrin_format::items::Extent;
use nenrin_format::key::Key;
use nenrin_format::node::TreeId;
use nenrin_format::{Addr, BLOCK_BYTES, Ino, NODE_BLOCKS, SegmentNo};
use policy::{Pace, Picture, QUIET_NANOS};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

/// Live blocks of a batch: 64 MiB.
const BATCH_BLOCKS_MAX: u64 = 16384;
/// Victims of a batch.
const VICTIMS_MAX: usize = 256;
/// What a step that moves nothing counts as, in blocks.
const LOOK_BLOCKS: u64 = 32;
/// Bytes of records that wait for a commit before the cleaner asks for one, when it works without a pause.
const RECORD_BYTES_MAX: usize = 512 << 10;

/// An extent to move: its tree and key, and what it held when it was found.
#[derive(Clone, Debug)]
struct Move {
    tree: TreeId,
    key: Key,
    extent: Extent,
}

/// A segment being emptied.
struct Victim {
    /// What kind of partials it holds.
    kind: u8,
    /// Blocks needed in it when it was chosen.
    used: u32,
    /// Blocks of the extents found in it.
    found: u32,
}

/// Where a job stands.
enum Stage {
    /// Reading summaries: of this victim, from this block on.
    Summaries { victim: usize, block: u32 },
    /// Looking up claims, from this one on.
    Owners { claim: usize },
    /// Walking whole trees, because summaries did not tell everything.
    Walk { tree: Option<TreeId>, from: Key },
    /// What was found is to be compared with the counters.
    Compare,
    /// Moving, from this one on.
    Moves { at: usize },
    /// Moving what is shared, from this group on.
    Shared { at: usize },
    /// Nothing is left to do.
    Done,
}

/// A batch of victims under way.
struct Job {
    victims: BTreeMap<SegmentNo, Victim>,
    stage: Stage,
    claims: Vec<Claim>,
    moves: Vec<Move>,
    groups: Vec<shared::Group>,
    /// Back references were looked at.
    grouped: bool,
    /// All trees were walked.
    walked: bool,
    /// The batch must gain more than it costs the index.
    idle: bool,
    /// It puts files in order: what it moves stays in order of the file, and lies in segments that need not become empty.
    order: bool,
    /// Victims with blocks that cannot be read.
    unreadable: BTreeSet<SegmentNo>,
    /// Victims with blocks whose owners make more leaves dirty than there was room for, and how many these are.
    beyond: BTreeMap<SegmentNo, u64>,
    /// There was no room for the owners of a shared block, and nothing was moved since.
    refused: bool,
    moved: u64,
    /// Blocks that were needed in the victims, and those that were not.
    live: u64,
    garbage: u64,
}

impl Job {
    /// Of these victims, which the caller pins; from the beginning.
    fn of(victims: BTreeMap<SegmentNo, Victim>) -> Self {
        Self {
            victims,
            stage: Stage::Summaries { victim: 0, block: 0 },
            claims: Vec::new(),
            moves: Vec::new(),
            groups: Vec::new(),
            grouped: false,
            walked: false,
            idle: false,
            order: false,
            unreadable: BTreeSet::new(),
            beyond: BTreeMap::new(),
            refused: false,
            moved: 0,
            live: 0,
            garbage: 0,
        }
    }

    /// What is left to do, about, in blocks as [`Fs::step`] counts them.
    fn left(&self, segment_blocks: u32) -> u64 {
        let (victims, moves) = (self.victims.len(), self.live.saturating_sub(self.moved));
        // Each block may be claimed by itself.
        let claims = victims * segment_blocks as usize;
        let looks = match self.stage {
            Stage::Summaries { victim, .. } => victims.saturating_sub(victim) + claims / survey::CLAIMS_AT_ONCE,
            Stage::Owners { claim } => self.claims.len().saturating_sub(claim) / survey::CLAIMS_AT_ONCE,
            _ => 0,
        };
        looks as u64 * LOOK_BLOCKS + moves
    }

    /// Extents that were found; those that are shared are found by their back references.
    fn add(&mut self, mut found: Vec<Move>) {
        found.retain(|m| !m.extent.is_shared());
        for m in &found {
            if let Some(v) = self.victims.get_mut(&m.extent.addr.segment()) {
                v.found += m.extent.blocks;
            }
        }
        self.moves.extend(found);
    }

    /// What went from one tree to the next while they were walked was found in both, and is in the last of them.
    fn keep_last_found(&mut self) {
        let last: BTreeMap<Addr, usize> = self.moves.iter().enumerate().map(|(n, m)| (m.extent.addr, n)).collect();
        let moves = std::mem::take(&mut self.moves).into_iter().enumerate();
        let found = moves.filter(|(n, m)| last.get(&m.extent.addr) == Some(n)).map(|(_, m)| m).collect();
        self.victims.values_mut().for_each(|v| v.found = 0);
        self.add(found);
    }

    /// What is shared in the victims, by its back references: these name all owners.
    fn find_groups(&mut self, fs: &Fs) -> Result<()> {
        for (no, v) in &mut self.victims {
            // Where one is wrong, or cannot be read, what is missing keeps the segment where it is.
            let groups = fs.groups_of(*no).or_else(|e| fs.bear(e).map(|()| None))?.unwrap_or_default();
            v.found += groups.iter().map(|g| g.blocks).sum::<u32>();
            self.groups.extend(groups);
        }
        Ok(())
    }
}

/// Why a segment is left alone for now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Something in it cannot be moved.
    Stuck,
    /// Moving something in it makes so many leaves dirty at once: until there is room for them, or the space tree no longer has so
    /// many items, which is when owners came or went.
    Beyond { leaves: u64, items: u64 },
    /// Not worth it in idle time.
    Costly,
}

/// What the cleaner knows between steps.
#[derive(Default)]
pub(super) struct Cleaner {
    job: Option<Job>,
    /// Segments left alone until their counters change, with the blocks used then.
    left: BTreeMap<SegmentNo, (u32, Left)>,
    /// Blocks that others had written at the last tick, and when that last grew.
    written_blocks: u64,
    written_at: u64,
    /// And since they were last quiet.
    burst_blocks: u64,
    /// Blocks of garbage in segments that hold hardly any, when nothing could be gained by it.
    little_left: u64,
    /// Windows of files (inode, first block) that are not put in order, since something in them cannot be read.
    unordered: BTreeSet<(u64, u64)>,
}

/// What the cleaner does, for `info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanerStatus {
    /// Segments being emptied, or blocks moved out of.
    pub victims: u64,
    /// Files are being put in order.
    pub ordering: bool,
    /// Why it does nothing, when it does not.
    pub rest: Rest,
    /// Segments emptied since the volume was opened.
    pub cleaned_segments: u64,
    /// Blocks moved since then.
    pub moved_blocks: u64,
    /// Segments with garbage that are left alone: blocks that cannot be read, whose owners are not known, or have more owners than
    /// there is room to move at once.
    pub stuck_segments: u64,
}

impl Fs {
    fn cleaner(&self) -> MutexGuard<'_, Cleaner> {
        // A job that a panic cut short is given up below like any other.
        locked(&self.cleaner, self.clock.as_ref()).unwrap_or_else(PoisonError::into_inner)
    }

    /// What the cleaner does, or why it rests.
    #[must_use]
    pub fn cleaner_status(&self) -> CleanerStatus {
        let inner = self.lock();
        CleanerStatus { moved_blocks: inner.counters.moved_blocks, ..inner.cleaner_status }
    }

    /// Some work in the background, as the policy wants it; and room for those who write, before they have to make it.
    pub(super) fn clean_some(&self, now: u64) -> Result<()> {
        // Who cleans on request, or for want of room, does it for all.
        let Ok(mut cleaner) = self.cleaner.try_lock() else { return Ok(()) };
        let picture = self.picture(&mut cleaner, now)?;
        self.clean_at_pace(&mut cleaner, &picture)?;
        drop(cleaner);
        let ahead = policy::ahead(&picture, self.storage.segment_blocks);
        if ahead > 0 && !broken(Break::RoomNotAhead) { self.make_room_ahead(ahead, now) } else { Ok(()) }
    }

    fn clean_at_pace(&self, cleaner: &mut Cleaner, picture: &Picture) -> Result<()> {
        let pace = policy::pace(picture);
        if cleaner.job.is_none() {
            let rest = match pace {
                Pace::Rest => Some(policy::rest(picture)),
                _ if !self.may_move()? => Some(Rest::NoRoom),
                _ if !self.begin_job(cleaner, pace, None)? => Some(Rest::NothingToGain),
                _ => None,
            };
            if let Some(rest) = rest {
                self.lock().cleaner_status.rest = rest;
                return Ok(());
            }
        }
        // A batch that was begun is finished, or its victims would stay pinned.
        let pace = if pace == Pace::Rest { Pace::Idle } else { pace };
        let left_of = |j: &Job| j.left(self.storage.segment_blocks);
        let mut left = cleaner.job.as_ref().map_or(0, |j| policy::blocks(pace, picture, left_of(j)));
        while left > 0 && cleaner.job.is_some() {
            let was_refused = is_refused(cleaner);
            let Some(cost) = self.step(cleaner, left)? else {
                // What is too much to move at once is passed over by the next step; others need not wait for an index checkpoint.
                if is_refused(cleaner) && !was_refused {
                    left = left.saturating_sub(LOOK_BLOCKS);
                    continue;
                }
                self.end_job(cleaner);
                self.lock().cleaner_status.rest = Rest::NoRoom;
                break;
            };
            left = left.saturating_sub(cost);
            self.end_if_done(cleaner);
        }
        Ok(())
    }

    /// Empties a batch of segments for want of room, and index segments that hold little; whether content was moved.
    pub(super) fn clean_for_room(&self) -> Result<bool> {
        let mut cleaner = self.cleaner();
        self.lock_to_change()?.end_hot_for_room(self)?;
        // Moving content makes nodes dirty all over the index: where that takes much, what is cheap to be had comes first.
        let much = self.lock_to_change()?.has_much_index(self);
        if much && self.touch_sparse()? > 0 {
            self.finish_cleaning()?;
        }
        let begun = cleaner.job.is_some() || self.begin_job(&mut cleaner, Pace::Pressing, None)?;
        let moved = if begun { self.finish_job(&mut cleaner)? } else { 0 };
        drop(cleaner);
        let before = self.lock_to_change()?.blocks_for_index(self);
        let touched = self.touch_sparse()?;
        if touched + moved > 0 {
            self.finish_cleaning()?;
        }
        // The segments filled last are sparse each time, and hardly anything comes of these alone.
        if moved == 0 {
            self.empty_hardly_sparse(before)?;
        }
        Ok(moved > 0)
    }

    /// Does what is left of the job, as far as there is room; how many blocks were moved.
    fn finish_job(&self, cleaner: &mut Cleaner) -> Result<u64> {
        // What was moved at the last index checkpoint, and before.
        let (mut then, before) = (None, cleaner.job.as_ref().map_or(0, |j| j.moved));
        let mut moved = 0;
        while let Some(job) = &cleaner.job {
            moved = job.moved - before;
            if matches!(job.stage, Stage::Done) {
                break;
            }
            if self.step(cleaner, u64::MAX)?.is_none() {
                // A batch may make more nodes dirty than fit at once. Given up halfway, it would have gained nothing.
                if then == Some(moved) {
                    break;
                }
                then = Some(moved);
                self.finish_cleaning()?;
            }
        }
        moved = cleaner.job.as_ref().map_or(moved, |j| j.moved - before);
        self.end_job(cleaner);
        Ok(moved)
    }

    /// Makes what was emptied free.
    fn finish_cleaning(&self) -> Result<()> {
        self.sync_received(false)?;
        self.promote_for_room()
    }

    /// Gives up what is under way; what was moved stays moved.
    pub(super) fn stop_cleaning(&self) {
        self.end_job(&mut self.cleaner());
    }

    /// Commits moves before their records become many.
    fn commit_moves(&self) -> Result<()> {
        let bytes = self.lock_to_change()?.batch.bytes;
        let segment_bytes = self.storage.segment_blocks as usize * BLOCK_BYTES;
        if bytes > RECORD_BYTES_MAX.min(segment_bytes / 4) { self.sync_received(false) } else { Ok(()) }
    }

    fn picture(&self, cleaner: &mut Cleaner, now: u64) -> Result<Picture> {
        let mut inner = self.lock_to_change()?;
        let slack = inner.slack_segments(self);
        inner.garbage_segments = slack;
        let s = &inner.state.segments;
        let written = inner.counters.data_blocks + inner.counters.chain_blocks + inner.pages;
        let written_blocks = written.saturating_sub(cleaner.written_blocks);
        if now.saturating_sub(cleaner.written_at) >= QUIET_NANOS {
            cleaner.burst_blocks = 0;
        }
        cleaner.burst_blocks += written_blocks;
        if written != cleaner.written_blocks {
            cleaner.written_at = now;
            cleaner.written_blocks = written;
        }
        Ok(Picture {
            room: inner.room_segments(self) + s.promotable_count(),
            slack,
            room_blocks: inner.room_segments(self) * u64::from(self.storage.segment_blocks),
            written_blocks,
            burst_blocks: cleaner.burst_blocks,
            quiet_nanos: now.saturating_sub(cleaner.written_at),
        })
    }

    /// Chooses victims and pins them; whether there are any. With `todo`, of these only.
    fn begin_job(&self, cleaner: &mut Cleaner, pace: Pace, todo: Option<&mut BTreeSet<SegmentNo>>) -> Result<bool> {
        let mut inner = self.lock_to_change()?;
        inner.reap_writes();
        let blocks = self.storage.segment_blocks;
        let items = inner.state.space.items();
        cleaner.left.retain(|no, (used, why)| {
            let others =
                matches!(why, Left::Beyond { items: then, .. } if *then != items) && !broken(Break::BeyondForEver);
            !others && inner.state.segments.get(*no).is_some_and(|s| s.used_blocks() == *used)
        });
        let mut candidates = inner.candidates(self, pace, &cleaner.left);
        inner.note_left(&cleaner.left);
        if let Some(todo) = &todo {
            candidates.retain(|c| todo.contains(&c.segment));
        }
        let room = inner.state.segments.free_count().saturating_sub(inner.floor_beside_pages(self));
        let most = (room * u64::from(blocks) / 2).min(BATCH_BLOCKS_MAX);
        let mut job = Job { idle: pace == Pace::Idle, ..Job::of(BTreeMap::new()) };
        for c in candidates.into_iter().take(VICTIMS_MAX) {
            if job.live > 0 && job.live + u64::from(c.used) > most {
                break;
            }
            job.live += u64::from(c.used);
            job.garbage += u64::from((blocks - c.used).saturating_sub(kept_by(pace, blocks)));
            job.victims.insert(c.segment, Victim { kind: c.kind, used: c.used, found: 0 });
        }
        if let Some(todo) = todo {
            todo.retain(|no| !job.victims.contains_key(no));
        }
        if job.victims.is_empty() {
            return Ok(false);
        }
        for no in job.victims.keys() {
            inner.state.segments.pin(*no);
        }
        inner.cleaner_status.victims = job.victims.len() as u64;
        drop(inner);
        // An older one is never left behind pinned.
        self.end_job(cleaner);
        self.lock().cleaner_status.victims = job.victims.len() as u64;
        cleaner.job = Some(job);
        Ok(true)
    }

    /// One step of the job, moving at most `blocks`; what it cost in blocks, or
    /// `None` when there is no room to go on.
    fn step(&self, cleaner: &mut Cleaner, blocks: u64) -> Result<Option<u64>> {
        let Some(job) = &mut cleaner.job else { return Ok(Some(LOOK_BLOCKS)) };
        let cost = Some(LOOK_BLOCKS);
        let done = match job.stage {
            Stage::Summaries { .. } => self.read_claims(job).map(|()| cost),
            Stage::Owners { .. } => self.find_owners(job).map(|()| cost),
            Stage::Walk { .. } => self.walk_trees(job).map(|()| cost),
            Stage::Compare => self.compare(job, &mut cleaner.left).map(|()| cost),
            Stage::Moves { .. } => return self.move_some(job, blocks),
            Stage::Shared { .. } => return self.move_shared(job),
            Stage::Done => Ok(cost),
        };
        done.or_else(|e| {
            self.bear(e)?;
            let used = job.victims.iter().map(|(no, v)| (*no, (v.used, Left::Stuck)));
            cleaner.left.extend(used);
            job.stage = Stage::Done;
            Ok(cost)
        })
    }

    /// Damage in the index is told to who needs it. It must not stop all else that is due.
    fn bear(&self, e: Error) -> Result<()> {
        drop(self.lock_to_change()?);
        if matches!(e, Error::Failed(_) | Error::ReadOnly) { Err(e) } else { Ok(()) }
    }

    /// Takes victims out of the job that cannot be emptied, and puts in order
    /// what is to be moved.
    fn compare(&self, job: &mut Job, left: &mut BTreeMap<SegmentNo, (u32, Left)>) -> Result<()> {
        if !job.grouped {
            job.grouped = true;
            job.find_groups(self)?;
        }
        let mut inner = self.lock_to_change()?;
        let used = |inner: &Inner, no: &SegmentNo| inner.state.segments.get(*no).map_or(0, |s| s.used_blocks());
        let incomplete = |inner: &Inner, job: &Job| {
            let missing = |(no, v): &(&SegmentNo, &Victim)| v.found < used(inner, no);
            job.victims.iter().filter(missing).map(|(no, _)| *no).collect::<BTreeSet<_>>()
        };
        let out = incomplete(&inner, job);
        if !out.is_empty() && !job.walked {
            job.walked = true;
            job.moves.clear();
            job.groups.clear();
            job.grouped = false;
            job.victims.values_mut().for_each(|v| v.found = 0);
            job.stage = Stage::Walk { tree: Some(TreeId::LIVE), from: Key::first() };
            inner.counters.tree_walks += 1;
            return Ok(());
        }
        for no in &out {
            left.insert(*no, (used(&inner, no), Left::Stuck));
            job.victims.remove(no);
            inner.state.segments.unpin(*no);
        }
        let live = |m: &&Move| !job.order && m.tree == TreeId::LIVE && inner.recency.is_hot(Ino(m.key.ino), m.key.off);
        let hot: BTreeSet<Key> = job.moves.iter().filter(live).map(|m| m.key).collect();
        drop(inner);
        job.moves.retain(|m| !out.contains(&m.extent.addr.segment()));
        job.groups.retain(|g| !out.contains(&g.segment()));
        // The files as they are in order, then what is past; then what will soon be overwritten, so that it shares few
        // segments with what will not.
        job.moves.sort_unstable_by_key(|m| (hot.contains(&m.key), m.tree, m.key));
        if job.idle {
            let most = job.groups.iter().map(shared::Group::leaves_max).sum();
            // Where some cannot be read one segment stays behind, when it comes to that.
            let of_groups = self.leaves_of_groups(&job.groups).or_else(|e| self.bear(e).map(|()| most))?;
            let leaves = self.leaves_to_dirty(&job.moves)? + of_groups;
            if leaves * 2 * u64::from(NODE_BLOCKS) >= job.garbage {
                left.extend(job.victims.iter().map(|(no, v)| (*no, (v.used, Left::Costly))));
                job.stage = Stage::Done;
                return Ok(());
            }
        }
        // What may be too much to move at once comes last: each time an index checkpoint is tried.
        let spare = self.moves_to_spare()?;
        job.groups.sort_by_key(|g| g.leaves_max() > spare);
        job.stage = Stage::Moves { at: 0 };
        Ok(())
    }

    fn end_if_done(&self, cleaner: &mut Cleaner) {
        if cleaner.job.as_ref().is_some_and(|j| matches!(j.stage, Stage::Done)) {
            self.end_job(cleaner);
        }
    }

    /// Lets the victims go.
    fn end_job(&self, cleaner: &mut Cleaner) {
        let Some(job) = cleaner.job.take() else { return };
        let mut inner = self.lock();
        let items = inner.state.space.items();
        for no in job.victims.keys() {
            inner.segments().unpin(*no);
            let used = inner.state.segments.get(*no).map_or(0, |s| s.used_blocks());
            if used == 0 {
                inner.cleaner_status.cleaned_segments += 1;
            } else if job.unreadable.contains(no) {
                cleaner.left.insert(*no, (used, Left::Stuck));
            } else if let Some(leaves) = job.beyond.get(no) {
                if cleaner.left.get(no).is_none_or(|(_, why)| *why != Left::Stuck) {
                    cleaner.left.insert(*no, (used, Left::Beyond { leaves: *leaves, items }));
                }
            }
        }
        inner.note_left(&cleaner.left);
        inner.cleaner_status.victims = 0;
    }
}

/// Whether there was no room for the owners of a shared block, and nothing was moved since.
fn is_refused(cleaner: &Cleaner) -> bool {
    cleaner.job.as_ref().is_some_and(|j| j.refused)
}

/// Blocks that a segment full of relocated data loses to summaries and at its end:
/// they are no garbage, or the cleaner would never come to rest.
const fn unavoidable(segment_blocks: u32) -> u32 {
    4 + segment_blocks / 64
}

/// Blocks that a segment may hold so that the last cleaning gains by writing it anew.
pub(super) const fn worth_filling(segment_blocks: u32) -> u32 {
    segment_blocks.saturating_sub(unavoidable(segment_blocks) + segment_blocks / Pace::Last.garbage_divisor())
}

/// Blocks of a segment that count as needed by the summaries of those who move what is in it.
const fn kept_by(pace: Pace, segment_blocks: u32) -> u32 {
    if matches!(pace, Pace::Last) { lost_to_summaries(segment_blocks) } else { unavoidable(segment_blocks) }
}

/// Blocks that it loses at least.
const fn lost_to_summaries(segment_blocks: u32) -> u32 {
    1 + segment_blocks / 64
}

/// What age counts: less than in proportion, or old segments with little garbage would come before new ones with much.
const fn weight(age: u128) -> u128 {
    let root = (age << 16).isqrt();
    root * (root << 16).isqrt()
}

/// A segment that could be cleaned.
struct Candidate {
    segment: SegmentNo,
    kind: u8,
    used: u32,
}

impl Inner {
    /// What the cleaner leaves alone, for those who ask.
    fn note_left(&mut self, left: &BTreeMap<SegmentNo, (u32, Left)>) {
        let spare = |why: &Left| *why != Left::Costly;
        self.left_alone = left.iter().filter(|(_, (_, why))| spare(why)).map(|(no, _)| *no).collect();
        self.cleaner_status.stuck_segments = self.left_alone.len() as u64;
    }

    /// Blocks that cleaning could gain in segments that hold hardly any garbage.
    fn little_garbage(&self, fs: &Fs, left: &BTreeMap<SegmentNo, (u32, Left)>) -> u64 {
        let blocks = fs.storage.segment_blocks;
        let gain = |c: &Candidate| u64::from((blocks - c.used).saturating_sub(kept_by(Pace::Last, blocks)));
        self.candidates(fs, Pace::Last, left).iter().map(gain).sum()
    }

    /// Sealed segments of content with as much garbage as this pace asks for, those first that are most worth it.
    fn candidates(&self, fs: &Fs, pace: Pace, left: &BTreeMap<SegmentNo, (u32, Left)>) -> Vec<Candidate> {
        let blocks = fs.storage.segment_blocks;
        let (garbage_min, idle) = ((blocks / pace.garbage_divisor()).max(1), pace == Pace::Idle);
        let kept = kept_by(pace, blocks);
        let (now, spare) = (fs.clock.wall().0, self.nodes_to_spare(fs));
        let mut under_way: BTreeSet<SegmentNo> = self.inflight.keys().map(|a| a.segment()).collect();
        under_way.extend(self.writes.iter().map(|w| w.addr.segment()));
        let mut found: Vec<(u128, Candidate)> = Vec::new();
        for (segment, s) in self.state.segments.with_garbage(garbage_min + kept) {
            let used = s.used_blocks();
            let skipped = left.get(&segment).is_some_and(|(_, why)| match why {
                Left::Stuck => true,
                Left::Beyond { leaves, .. } => *leaves > spare,
                Left::Costly => idle,
            });
            let garbage = blocks.saturating_sub(used).saturating_sub(kept);
            if garbage < garbage_min || s.pins > 0 || skipped || under_way.contains(&segment) {
                continue;
            }
            // A clock that jumped makes the order worse and nothing else.
            let age = (now.saturating_sub(s.item.written_at.0) / 1_000_000_000).max(1) as u128;
            // Where nothing else is left, what gains most comes first, however old it is.
            let weight = if pace == Pace::Last { 1 } else { weight(age) };
            let rank = weight * u128::from(garbage) * 4096 / u128::from(used);
            found.push((rank, Candidate { segment, kind: s.item.kind, used }));
        }
        found.sort_by_key(|(rank, c)| (std::cmp::Reverse(*rank), c.segment));
        found.into_iter().map(|(_, c)| c).collect()
    }
}
