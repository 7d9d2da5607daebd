//! Wiping: from the list of what is to be forgotten to devices that hold
//! nothing of it. A round goes through the stages below, until no segment is
//! left that may hold something; then come the places that no segment has.
//!
//! Invariants
//! 1. A segment is noted as wiped only when it was free and out of allocation, and every copy of
//!    it reads as zeros or was zeroed since; or is whole ([`Fs::empty_segments`]).
//! 2. When the first is, all that was under way before the items went is done.
//! 3. Nothing is zeroed but free segments, and places that no band takes.
//! 4. What this takes is above the floor: it never takes what an index checkpoint needs.

mod outside;

use super::super::{Fs, Inner, locked};
use crate::breaks::{Break, broken};
use crate::devices::Outside;
use crate::segments::{KIND_INDEX, SegmentState};
use crate::{Error, Result, Standing};
use nenrin_device::AlignedBuf;
use nenrin_format::key::Key;
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use nenrin_format::{Addr, BLOCK_BYTES, NODE_BLOCKS, SegmentNo};
use std::sync::{Arc, MutexGuard, PoisonError};

/// Blocks that a tick wipes: 4 MiB, so about 40 MiB in a second.
const TICK_BLOCKS: u64 = 1024;
/// Blocks read or zeroed at once.
const CHUNK_BLOCKS: u32 = 256;
/// Items looked at by one record.
const STEP_ITEMS: u32 = 1024;
/// Segments emptied at once, and the needed blocks in them.
const VICTIMS_MAX: usize = 16;
const VICTIM_BLOCKS_MAX: u64 = 4096;
/// Free segments beyond the floor without which nothing more is begun that takes some.
const SPARE_SEGMENTS: u64 = 4;
/// Rounds without any gain before it is told that it cannot go on.
const IDLE_ROUNDS_MAX: u32 = 5;
/// How long the background rests then.
const REST_NANOS: u64 = 60_000_000_000;
/// Inodes that one record takes off the list.
const ENDED_AT_ONCE: u32 = 8192;

/// How far forgetting came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForgetStatus {
    /// Inodes on the list.
    pub inodes: u64,
    /// Items are still being taken out of the index.
    pub removing: bool,
    /// Segments that may still hold something.
    pub segments_left: u64,
    /// Segments of the volume.
    pub segments: u64,
    /// Why it does not go on, for a user.
    pub waits: Option<String>,
}

/// Where a round stands.
#[derive(Default)]
enum Stage {
    /// Nothing is known yet.
    #[default]
    Begin,
    /// Taking items out: the trees left, the last one first, and from where on.
    Remove { trees: Vec<TreeId>, from: Key },
    /// All that is under way has to end.
    Settle,
    /// Zeroing free segments, from this one on.
    Free { at: u64 },
    /// The logs go on in wiped segments.
    Roll,
    /// Making nodes dirty in index segments, from this one on.
    Index { at: u64 },
    /// Emptying segments of content, from this one on.
    Content { at: u64 },
    /// Index checkpoints free what was emptied.
    Renew,
    /// Zeroing places that no segment has: how far that came, if it has begun.
    Outside(Option<Outside>),
    /// Taking inodes off the list, if no segment has what had none when that was zeroed.
    End(Option<Outside>),
}

/// What is known of wiping between steps.
#[derive(Default)]
pub(in super::super) struct Wiper {
    stage: Stage,
    /// Inodes on the list when it began: with more it begins anew.
    listed: usize,
    /// How many devices had come to take part by then: with another one it begins anew, whose free space nobody has looked at.
    joins: u64,
    /// Segments left when the round began, and rounds since that changed.
    left: u64,
    idle_rounds: u32,
    out_of_room: bool,
    waits: Option<String>,
    /// When (monotonic) the background tries again.
    not_before: u64,
}

impl Fs {
    pub(in super::super) fn wiper(&self) -> MutexGuard<'_, Wiper> {
        // Wherever a panic left it, it begins anew with the next mount.
        locked(&self.wiper, self.clock.as_ref()).unwrap_or_else(PoisonError::into_inner)
    }

    /// What is being forgotten, if anything is.
    #[must_use]
    pub fn forget_status(&self) -> Option<ForgetStatus> {
        // Who wipes holds this for a step, and does not wait then.
        let waits = self.wiper.try_lock().ok().and_then(|w| w.waits.clone());
        let inner = self.lock();
        let s = &inner.state.segments;
        let removing = !s.is_wiping();
        (!inner.state.forgetting.is_empty()).then(|| ForgetStatus {
            inodes: inner.state.forgetting.len() as u64,
            removing,
            segments_left: if removing { s.count() } else { s.unwiped_count() },
            segments: s.count(),
            waits,
        })
    }

    /// Wipes on, reading and writing about `bytes` bytes. `None` when nothing is left to be forgotten;
    /// [`ForgetStatus::waits`] says when it cannot go on now.
    ///
    /// # Errors
    /// When a write or flush failed, now or earlier.
    pub fn forget_step(&self, bytes: u64) -> Result<Option<ForgetStatus>> {
        let _way = super::super::beside::giving_way();
        let mut wiper = self.wiper();
        wiper.waits = None;
        let done = self.wipe(&mut wiper, bytes.div_ceil(BLOCK_BYTES as u64));
        drop(wiper);
        done?;
        Ok(self.forget_status())
    }

    /// Some of it in the background.
    pub(in super::super) fn forget_some(&self, now: u64) -> Result<()> {
        if self.lock().state.forgetting.is_empty() {
            return Ok(());
        }
        // Who asked for it does it meanwhile.
        let Ok(mut wiper) = self.wiper.try_lock() else { return Ok(()) };
        if now < wiper.not_before {
            return Ok(());
        }
        wiper.waits = None;
        self.wipe(&mut wiper, TICK_BLOCKS)?;
        if wiper.waits.is_some() {
            wiper.not_before = now.saturating_add(REST_NANOS);
        }
        Ok(())
    }

    /// At once: a device has joined, by which it begins anew. Who wipes at this moment does not rest.
    pub(in super::super) fn wipe_soon(&self) {
        if let Ok(mut wiper) = self.wiper.try_lock() {
            wiper.not_before = 0;
        }
    }

    fn wipe(&self, wiper: &mut Wiper, blocks: u64) -> Result<()> {
        if let Some(index) = self.storage.devices().joining() {
            // What it holds in free segments would neither be copied over nor looked at.
            wiper.stage = Stage::Begin;
            wiper.waits = Some(format!("device {} is still being brought up to date", index + 1));
            return Ok(());
        }
        let mut left = blocks.max(1);
        while left > 0 && wiper.waits.is_none() {
            let listed = self.lock_to_accept()?.state.forgetting.len();
            if listed == 0 {
                *wiper = Wiper::default();
                return Ok(());
            }
            if listed > wiper.listed {
                wiper.stage = Stage::Begin;
            }
            match self.wipe_on(wiper, listed) {
                Ok(cost) => left = left.saturating_sub(cost.max(1)),
                Err(e @ (Error::Failed(_) | Error::ReadOnly)) => return Err(e),
                Err(e) => {
                    self.fail_with_flushes()?;
                    self.lock_to_change()?.segments().end_wipe();
                    // Damage in the index is told to who needs it. It must not stop all else that is due.
                    wiper.stage = Stage::Begin;
                    wiper.waits = Some(format!("what is to be forgotten cannot be reached: {e}"));
                }
            }
        }
        Ok(())
    }

    /// One step; what it cost in blocks.
    fn wipe_on(&self, wiper: &mut Wiper, listed: usize) -> Result<u64> {
        let (next, cost) = match std::mem::take(&mut wiper.stage) {
            Stage::Begin => {
                let joins = self.storage.devices().joins();
                if self.storage.devices().joining().is_some() {
                    return Ok(1);
                }
                let mut inner = self.lock_to_change()?;
                inner.segments().end_wipe();
                let past = inner.state.history.iter().map(|t| t.tree.id());
                // The live tree first: nothing of it becomes history then.
                let trees = past.chain([TreeId::LIVE]).collect();
                *wiper = Wiper { listed, joins, ..Wiper::default() };
                (Stage::Remove { trees, from: Key::first() }, 1)
            }
            Stage::Remove { trees, from } => (self.remove_next(trees, from)?, u64::from(NODE_BLOCKS)),
            Stage::Settle => {
                // What the cleaner has copied lies somewhere and is named by nothing.
                self.stop_cleaning();
                self.lock_to_change()?.segments().begin_wipe();
                self.storage.devices().begin_row_log_wipe();
                self.renew()?;
                // What is in use of it ends with the logs that go on elsewhere.
                self.wipe_row_log()?;
                wiper.left = u64::MAX;
                (Stage::Free { at: 0 }, 1)
            }
            Stage::Free { at } => match self.zero_next(at)? {
                Some(segment) => (Stage::Free { at: segment.0 + 1 }, u64::from(self.storage.segment_blocks)),
                None => (Stage::Roll, 1),
            },
            Stage::Roll => {
                self.roll_logs()?;
                (Stage::Index { at: 0 }, 1)
            }
            Stage::Index { at } => match self.touch_next(at)? {
                Some((segment, nodes)) => (Stage::Index { at: segment.0 + 1 }, nodes * u64::from(NODE_BLOCKS)),
                None => (Stage::Content { at: 0 }, 1),
            },
            Stage::Content { at } => match self.empty_next(at)? {
                Some((next, cost, out_of_room)) => {
                    wiper.out_of_room = out_of_room;
                    (if out_of_room { Stage::Renew } else { Stage::Content { at: next } }, cost)
                }
                None => (Stage::Renew, 1),
            },
            Stage::Renew => {
                self.renew()?;
                (self.end_round(wiper)?, 1)
            }
            Stage::Outside(come) => self.wipe_outside(wiper, come)?,
            Stage::End(come) => (self.end_list(wiper, come)?, 1),
        };
        wiper.stage = next;
        Ok(cost)
    }

    /// Takes some items out of the last of these trees; the stage after that.
    fn remove_next(&self, mut trees: Vec<TreeId>, from: Key) -> Result<Stage> {
        let Some(tree) = trees.last().copied() else { return Ok(Stage::Settle) };
        Ok(match self.remove_some(tree, from)? {
            Some(from) => Stage::Remove { trees, from },
            None => {
                trees.pop();
                Stage::Remove { trees, from: Key::first() }
            }
        })
    }

    /// Zeroes what of the row log nobody uses; whether nothing is left there.
    fn wipe_row_log(&self) -> Result<bool> {
        let wiped = self.storage.devices().wipe_row_log();
        Ok(wiped.inspect_err(|e| self.lock().fail(&e.to_string()))?)
    }

    /// Commits everything, and makes free what was emptied.
    fn renew(&self) -> Result<()> {
        self.sync_received(false)?;
        self.index_checkpoint(false)?;
        self.index_checkpoint(false)
    }

    /// Takes some items out of a tree by a record; where to go on.
    fn remove_some(&self, tree: TreeId, from: Key) -> Result<Option<Key>> {
        let mut inner = self.room_to_let_go()?;
        let (max, nodes) = (inner.items_to_let_go(self, STEP_ITEMS), inner.nodes_to_spare(self));
        let (end, max) = inner.state.forget_ahead(tree, &from, max, nodes)?;
        if max > 0 {
            inner.log(&Record::ForgetStep { tree, from, max }, self.clock.monotonic_nanos())?;
        }
        Ok(end)
    }

    /// Zeroes the next free segment from `at` on that may hold something.
    fn zero_next(&self, at: u64) -> Result<Option<SegmentNo>> {
        let segment = {
            let mut inner = self.lock_to_change()?;
            if inner.state.segments.free_count() <= inner.floor_segments(self) + 1 {
                return Ok(None);
            }
            let s = &inner.state.segments;
            let next = s.unwiped_from(at).find(|no| s.is_free(*no));
            match next {
                Some(no) if inner.segments().withhold(no) => no,
                _ => return Ok(None),
            }
        };
        let zeroed = self.zero(segment).inspect_err(|e| self.lock().fail(&e.to_string()));
        let mut inner = self.lock();
        inner.segments().give_back(segment);
        if zeroed.is_ok() {
            inner.segments().note_wiped(segment);
        }
        self.wake_idle(&inner);
        zeroed.map(|()| Some(segment))
    }

    /// Zeroes a segment that nobody may use meanwhile.
    fn zero(&self, segment: SegmentNo) -> Result<()> {
        let mut changed = false;
        let mut block = 0;
        self.storage.begin_segment(segment);
        while block < self.storage.segment_blocks && !broken(Break::ForgetSkipsFree) {
            let count = CHUNK_BLOCKS.min(self.storage.segment_blocks - block);
            let addr = Addr::new(segment, block);
            // What cannot be read may be there all the same.
            if !self.reads_as_zeros(addr, count) {
                self.owns_to_write()?;
                self.storage.write(addr, Arc::new(AlignedBuf::zeroed(count as usize * BLOCK_BYTES)))?;
                changed = true;
            }
            block += count;
        }
        self.storage.end_segment(segment, 0);
        if changed {
            // The parity of its rows says nothing of them either.
            self.owns_to_write()?;
            self.storage.protect_unflushed()?;
        }
        if changed && self.options.discard {
            // Not before: a device may then give back what was there.
            self.flush_device()?;
            self.discard(&[segment])?;
        }
        Ok(())
    }

    /// Whether every copy of these blocks can be read, and is all zeros.
    pub(in super::super) fn reads_as_zeros(&self, addr: Addr, blocks: u32) -> bool {
        let zeros = |bytes: Result<AlignedBuf>| bytes.is_ok_and(|b| b.iter().all(|b| *b == 0));
        let mut done = 0;
        while done < blocks {
            let (at, count) = (addr.add(done), CHUNK_BLOCKS.min(blocks - done));
            let ways = self.storage.ways_around(at, count);
            let clear = match ways.is_empty() {
                true => zeros(self.storage.read(at, count)),
                false => ways.into_iter().all(|avoid| zeros(self.storage.read_around(at, count, avoid))),
            };
            if !clear {
                return false;
            }
            done += count;
        }
        true
    }

    /// Logs that lie in segments which may hold something go on in others.
    fn roll_logs(&self) -> Result<()> {
        let mut inner = self.lock_to_change()?;
        if !inner.may_roll(self) {
            return Ok(());
        }
        let stamp = inner.data_stamp(self.clock.wall());
        let closed: Vec<_> = {
            let Inner { data, hot, cold, state, .. } = &mut *inner;
            let old =
                [data, hot, cold].into_iter().filter(|log| log.segment().is_some_and(|s| state.segments.is_unwiped(s)));
            let old: Vec<_> = old.collect();
            old.into_iter().filter_map(|log| log.finish(stamp, &self.storage, &mut state.segments)).collect()
        };
        inner.start_summaries(self, closed)?;
        if !inner.checkpointing {
            for copy in 0..2 {
                let old = inner.index[copy].segment.filter(|s| inner.state.segments.is_unwiped(*s));
                if old.is_some() && inner.may_roll(self) {
                    if let Some(segment) = inner.index[copy].leave() {
                        let block = inner.index[copy].block;
                        self.storage.end_segment(segment, block);
                        inner.segments().seal(segment);
                    }
                }
            }
        }
        drop(inner);
        self.roll_chain(&|inner, no| inner.state.segments.is_unwiped(no) && inner.may_roll(self))
    }

    /// Makes nodes of the next index segment from `at` on dirty, if it may hold something; how many.
    fn touch_next(&self, at: u64) -> Result<Option<(SegmentNo, u64)>> {
        let inner = self.lock_to_change()?;
        let s = &inner.state.segments;
        let wanted = |no: &SegmentNo| {
            s.get(*no).is_some_and(|u| u.state == SegmentState::Sealed && u.item.kind == KIND_INDEX && u.nodes > 0)
        };
        let Some(segment) = s.unwiped_from(at).find(|no| wanted(no)) else { return Ok(None) };
        let nodes = s.get(segment).map_or(0, |u| u64::from(u.nodes));
        let (spare, dirty) = (inner.nodes_to_spare(self), inner.dirty_nodes());
        drop(inner);
        if spare < nodes && dirty > 0 {
            self.renew()?;
            if self.lock_to_change()?.nodes_to_spare(self) == 0 {
                return Ok(None);
            }
        }
        Ok(Some((segment, self.touch_all_nodes(segment)?.max(1))))
    }

    /// Empties the next segments of content from `at` on that may hold something: where to go on, what it cost in
    /// blocks, and whether room ran out.
    fn empty_next(&self, at: u64) -> Result<Option<(u64, u64, bool)>> {
        let mut wanted = Vec::new();
        {
            let inner = self.lock_to_change()?;
            let s = &inner.state.segments;
            let mut used = 0;
            for no in s.unwiped_from(at) {
                let Some(u) = s.get(no) else { continue };
                if u.state != SegmentState::Sealed || u.chain_held || u.used_blocks() == 0 {
                    continue;
                }
                used += u64::from(u.used_blocks());
                if !wanted.is_empty() && (wanted.len() == VICTIMS_MAX || used > VICTIM_BLOCKS_MAX) {
                    break;
                }
                wanted.push(no);
            }
        }
        let Some(last) = wanted.last().copied() else { return Ok(None) };
        let emptied = self.empty_segments(&wanted)?;
        let mut inner = self.lock_to_change()?;
        for no in emptied.whole {
            inner.segments().note_wiped(no);
        }
        Ok(Some((last.0 + 1, emptied.moved + wanted.len() as u64, emptied.out_of_room)))
    }

    /// A round is over: the stage after it. Notes why it does not go on, when it does not.
    fn end_round(&self, wiper: &mut Wiper) -> Result<Stage> {
        let left = self.lock_to_change()?.state.segments.unwiped_count();
        wiper.idle_rounds = if left < wiper.left { 0 } else { wiper.idle_rounds + 1 };
        wiper.left = left;
        let again = Stage::Free { at: 0 };
        if left > 0 {
            if wiper.idle_rounds > IDLE_ROUNDS_MAX {
                wiper.idle_rounds = 0;
                wiper.waits = Some(self.lock_to_change()?.why_not(self, wiper.out_of_room));
            }
            return Ok(again);
        }
        if !self.wipe_row_log()? {
            if wiper.idle_rounds > IDLE_ROUNDS_MAX {
                wiper.idle_rounds = 0;
                wiper.waits =
                    Some("a row that is not full yet has a copy beside old ones; it goes with the next writes".into());
            }
            return Ok(again);
        }
        Ok(Stage::Outside(None))
    }

    /// Why nothing can end, where a device takes no part: it holds what it held. One that is to be removed does not come back, and what
    /// takes it out of the bands comes behind forgetting.
    fn why_absent(&self) -> Option<String> {
        let (health, entries) = (self.health(), self.storage.entries());
        let leaves = |index: u16| {
            entries.get(usize::from(index)).is_some_and(|e| e.is_leaving()) && !broken(Break::AwaitsWhatLeaves)
        };
        let d = health.iter().find(|d| d.standing != Standing::Active && !leaves(d.index))?;
        Some(format!("device {} is absent; what is on it is wiped when it is back", d.index + 1))
    }

    /// Nothing is left anywhere: takes all off the list. The stage after that.
    fn end_list(&self, wiper: &mut Wiper, come: Option<Outside>) -> Result<Stage> {
        // A device that fails to flush is absent from then on.
        self.flush_device()?;
        if let Some(why) = self.why_absent() {
            wiper.waits = Some(why);
            return Ok(Stage::Free { at: 0 });
        }
        let Some(_bands_stay) = self.bands_stay() else {
            wiper.waits = Some("devices are being changed at this moment".into());
            return Ok(Stage::End(come));
        };
        let devices = self.storage.devices();
        if come.is_some_and(|come| !devices.is_still_outside(&come)) {
            return Ok(Stage::Outside(None));
        }
        loop {
            let mut inner = self.lock_to_change()?;
            let list = inner.state.forgetting.len();
            let has_joined = devices.joins() != wiper.joins || devices.joining().is_some();
            if has_joined || list == 0 || list > wiper.listed || inner.state.segments.unwiped_count() > 0 {
                inner.segments().end_wipe();
                return Ok(Stage::Begin);
            }
            inner.log(&Record::ForgetEnd { max: ENDED_AT_ONCE }, self.clock.monotonic_nanos())?;
            wiper.listed = inner.state.forgetting.len();
            drop(inner);
            self.sync_received(false)?;
        }
    }
}

impl Inner {
    /// Whether there is a wiped free segment, and room to begin another one.
    fn may_roll(&self, fs: &Fs) -> bool {
        let s = &self.state.segments;
        let wiped = s.free_count() - s.unwiped().filter(|no| s.is_free(*no)).count() as u64;
        wiped > 1 && s.free_count() > self.floor_segments(fs) + SPARE_SEGMENTS
    }

    /// Why the segments that are left cannot be wiped now.
    fn why_not(&self, fs: &Fs, out_of_room: bool) -> String {
        let s = &self.state.segments;
        let stuck: Vec<String> = s.unwiped().map(|no| no.to_string()).collect();
        if out_of_room || !self.may_roll(fs) {
            return format!("{} segments are left, and there is no room to empty them; remove something", stuck.len());
        }
        let some = stuck.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
        format!(
            "{} segments cannot be emptied ({some}{}): something in them is in use, or damaged: nenrin scrub tells, else nenrin check",
            stuck.len(),
            if stuck.len() > 3 { ", ..." } else { "" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Still, create};
    use crate::{MkfsOptions, MountOptions, mkfs_on};
    use nenrin_device::{BlockDevice, MemDevice};
    use nenrin_format::superblock::Profile;

    const OLD: u8 = 0xa7;

    fn has_old(device: &MemDevice) -> bool {
        device.snapshot().chunks(BLOCK_BYTES).any(|b| b.iter().all(|b| *b == OLD))
    }

    /// All is wiped but what an absent device has; that is back, and takes part before whoever brought it up to date says so.
    fn a_device_joins_before_the_list_ends() {
        let memory = [Arc::new(MemDevice::new(32 << 20)), Arc::new(MemDevice::new(32 << 20))];
        let all: Vec<Arc<dyn BlockDevice>> = memory.iter().map(|m| m.clone() as Arc<dyn BlockDevice>).collect();
        let clock: Arc<dyn crate::Clock> = Arc::new(Still);
        mkfs_on(&all, &clock, &MkfsOptions { profile: Profile::Mirror, ..MkfsOptions::default() }).unwrap();
        let open = |which: &[Arc<dyn BlockDevice>]| {
            let options = MountOptions { degraded: true, ..MountOptions::default() };
            Fs::open(which.to_vec(), clock.clone(), options).unwrap()
        };
        let fs = open(&all);
        fs.forget_free().unwrap();
        fs.close().unwrap();
        let fs = open(&all[..1]);
        create(&fs, "missed");
        fs.close().unwrap();
        let bytes = AlignedBuf::padded(&vec![OLD; 1 << 20]);
        memory[1].write(24 << 20, Arc::new(bytes)).unwrap();
        let fs = open(&all);
        let devices = fs.storage.devices();
        for _ in 0..1000 {
            if fs.forget_step(1 << 20).unwrap().is_none_or(|s| s.waits.is_some()) {
                break;
            }
        }
        assert!(fs.forget_status().unwrap().waits.unwrap().contains("absent"));
        assert!(has_old(&memory[1]));
        devices.begin_joining(1, None);
        let used = |inner: &Inner| {
            let all = inner.state.segments.iter().map(|(no, _)| no);
            all.filter(|no| !inner.state.segments.is_free(*no)).collect::<Vec<_>>()
        };
        let segments = used(&fs.lock());
        for no in segments {
            let copied = devices.copy(Addr::new(no, 0), fs.storage.segment_blocks, Some(&<_>::default())).unwrap();
            assert!(matches!(copied, crate::devices::Copied::Done { .. }), "{copied:?}");
        }
        assert!(fs.storage.end_joining([0; 16]).unwrap());
        for _ in 0..1000 {
            if fs.forget_step(1 << 20).unwrap().is_none() {
                break;
            }
        }
        assert!(fs.forget_status().is_none(), "{:?}", fs.forget_status());
        assert!(!has_old(&memory[1]), "it counts as wiped");
        fs.close().unwrap();
    }

    #[test]
    fn what_a_device_that_joins_has_in_free_space_is_wiped() {
        a_device_joins_before_the_list_ends();
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "it counts as wiped")]
    fn a_device_that_joins_unseen_is_noticed() {
        crate::breaks::with(Break::JoinUncounted, a_device_joins_before_the_list_ends);
    }
}
