//! Laying space anew: segments come to lie as they should on the devices that there are. Decision 0018 has the cases.
//!
//! What should be follows from the device table, what is from the bands, so that nothing else need be remembered: a
//! mount goes on where the last one ended, and a change of mind is a change of the table. A round closes some of the
//! segments that have to go, empties them, and when no root needs them lays what fits in their place.
//!
//! Invariants
//! 1. A band loses segments only when they are free: neither usable root, nor the log behind it, needs them.
//! 2. Places get new segments only when both usable roots list these; nothing is written there before.
//! 3. A device leaves the table when both usable roots have no band on it, and is cleared after that.
//! 4. Nobody who makes room waits for [`Laying`], so who holds it may wait for room; what is promised, and the reserve, stay.

mod change;

use super::space::Room;
use super::{Fs, Inner, locked};
use crate::breaks::{Break, broken};
use crate::devices::bands_for;
use crate::devices::plan::Way;
use crate::segments::{KIND_INDEX, SegmentState, Segments};
use crate::{Error, Result};
use nenrin_format::superblock::{Band, DeviceEntry};
use nenrin_format::{NODE_BLOCKS, SegmentNo};
use std::sync::{MutexGuard, PoisonError};

/// Needed blocks, and segments, emptied in one step.
const VICTIM_BLOCKS_MAX: u64 = 4096;
const VICTIMS_MAX: usize = 16;
/// The same in a tick: about 40 MiB in a second.
const TICK_BLOCKS: u64 = 1024;
/// Free segments beyond the floor without which nothing more is begun that takes some.
const SPARE_SEGMENTS: u64 = 4;
/// Steps without any gain before it is told that it cannot go on.
const IDLE_ROUNDS_MAX: u32 = 5;
/// Of the room there is a step takes a part, the smaller the more often it was taken back: 2 to this at most, and 1.
const SHARE_MAX: u32 = 4;
/// How long the background rests then.
const REST_NANOS: u64 = 10_000_000_000;

/// How far laying anew came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayingStatus {
    /// Segments that still have to go from where they are.
    pub segments_left: u64,
    /// How many there were to begin with, since the volume was opened.
    pub segments: u64,
    /// Why it does not go on, for a user.
    pub waits: Option<String>,
    /// It waits for what is being forgotten, and goes on by itself when that is wiped.
    pub is_behind_forgetting: bool,
}

/// What is remembered between steps.
#[derive(Default)]
pub(super) struct Laying {
    /// Segments being emptied, in order of their numbers.
    closed: Vec<SegmentNo>,
    /// Blocks left in them, and steps since that changed.
    left: u64,
    idle_rounds: u32,
    status: LayingStatus,
    /// How often closed segments were taken back.
    share: u32,
    /// When (monotonic) the background tries again.
    not_before: u64,
}

/// What came of a step.
enum Step {
    Done,
    On,
    Waits(String),
    BehindForgetting,
}

impl Fs {
    fn laying(&self) -> MutexGuard<'_, Laying> {
        locked(&self.laying, self.clock.as_ref()).unwrap_or_else(PoisonError::into_inner)
    }

    /// How far laying anew came, if anything is to be done.
    #[must_use]
    pub fn laying_status(&self) -> Option<LayingStatus> {
        let inner = self.lock();
        let mut status = inner.laying.clone()?;
        if status.is_behind_forgetting && inner.state.forgetting.is_empty() {
            (status.waits, status.is_behind_forgetting) = (None, false);
        }
        Some(status)
    }

    /// How many devices that were taken out, or replaced, are still in use: a request that was under way then has them until it is
    /// let go of, which this does with what has completed. Their owner may have them back when there is none.
    #[must_use]
    pub fn devices_left_in_use(&self) -> usize {
        self.lock().reap_writes();
        self.storage.left_in_use()
    }

    /// Goes on, moving about `bytes` bytes. `None` when everything lies as it should; [`LayingStatus::waits`] says when
    /// it cannot go on now.
    ///
    /// # Errors
    /// When a write or flush failed, now or earlier.
    pub fn laying_step(&self, bytes: u64) -> Result<Option<LayingStatus>> {
        let _way = super::beside::giving_way();
        let mut laying = self.laying();
        self.lay(&mut laying, (bytes / nenrin_format::BLOCK_BYTES as u64).clamp(1, VICTIM_BLOCKS_MAX))?;
        drop(laying);
        Ok(self.laying_status())
    }

    /// Some of it in the background.
    pub(super) fn lay_some(&self, now: u64) -> Result<()> {
        {
            let inner = self.lock();
            let is_kept_back = |s: &LayingStatus| s.is_behind_forgetting && !inner.state.forgetting.is_empty();
            if inner.laying.as_ref().is_none_or(is_kept_back) {
                return Ok(());
            }
        }
        // Who asked for it does it meanwhile.
        let Ok(mut laying) = self.laying.try_lock() else { return Ok(()) };
        if now < laying.not_before {
            return Ok(());
        }
        self.lay(&mut laying, TICK_BLOCKS)?;
        // What comes first is seen to be over when it is.
        let rests = laying.status.waits.is_some() && !laying.status.is_behind_forgetting;
        laying.not_before = if rests { now.saturating_add(REST_NANOS) } else { 0 };
        Ok(())
    }

    /// Nothing more is done; closed segments may be used again.
    pub(super) fn stop_laying(&self) {
        let mut laying = self.laying();
        self.reopen(&mut laying);
    }

    fn reopen(&self, laying: &mut Laying) {
        let mut inner = self.lock();
        for segment in laying.closed.drain(..) {
            inner.segments().open(segment);
        }
    }

    fn lay(&self, laying: &mut Laying, blocks: u64) -> Result<()> {
        (laying.status.waits, laying.status.is_behind_forgetting) = (None, false);
        let step = match self.lay_on(laying, blocks) {
            Ok(step) => step,
            Err(e @ (Error::Failed(_) | Error::ReadOnly)) => return Err(e),
            Err(e) => {
                self.fail_with_flushes()?;
                drop(self.lock_to_change()?);
                // Damage in the index is told to who needs it. It must not stop all else that is due.
                Step::Waits(e.to_string())
            }
        };
        if matches!(step, Step::Done) {
            self.reopen(laying);
        }
        let mut inner = self.lock();
        match step {
            Step::Done => {
                *laying = Laying::default();
                inner.laying = None;
                inner.shrinks_to = None;
            }
            Step::On => inner.laying = Some(laying.status.clone()),
            Step::BehindForgetting => {
                laying.status.waits = Some("something is being forgotten; that comes first".into());
                laying.status.is_behind_forgetting = true;
                inner.laying = Some(laying.status.clone());
            }
            Step::Waits(why) => {
                laying.status.waits = Some(why);
                inner.laying = Some(laying.status.clone());
            }
        }
        Ok(())
    }

    /// How the table says that segments should lie.
    fn target(&self, entries: &[DeviceEntry]) -> Vec<Band> {
        let profile = self.lock().superblock.profile;
        let blocks: Vec<u64> = entries.iter().map(|e| if e.removed { 0 } else { e.target_blocks }).collect();
        bands_for(profile, &blocks, self.storage.segment_blocks)
    }

    fn lay_on(&self, laying: &mut Laying, blocks: u64) -> Result<Step> {
        let entries = self.storage.entries();
        let bands = self.lock_to_accept()?.superblock.bands.clone();
        let lies_on = |i: usize| bands.iter().any(|b| b.members.iter().any(|m| usize::from(m.0) == i));
        let lost = |(i, e): &(usize, &DeviceEntry)| !e.removed && !e.active && !lies_on(*i);
        if let Some((i, _)) = entries.iter().enumerate().find(lost) {
            // It never was quite added, or is all but removed.
            self.unlist(i as u16)?;
            // What should go is another now.
            if !broken(Break::ClosedForGone) {
                self.reopen(laying);
            }
            return Ok(Step::On);
        }
        let target = self.target(&entries);
        let way = Way::new(&bands, &target, self.storage.segment_blocks);
        let leaving = way.leaving();
        let is_settled = leaving == 0 && way.grown(&bands).is_none();
        let is_forgetting = !self.lock().state.forgetting.is_empty();
        // What is cut off holds what it held, though no segment lies there.
        let cuts = |e: &DeviceEntry| !e.removed && e.target_blocks < e.blocks && (e.active || !e.is_leaving());
        if is_settled && is_forgetting && entries.iter().any(cuts) && !broken(Break::CutWhileForgetting) {
            self.reopen(laying);
            return Ok(Step::BehindForgetting);
        }
        if is_settled && !self.settle_lengths(&entries)? {
            return Ok(Step::Done);
        }
        let away = |(_, e): &(usize, &DeviceEntry)| !e.removed && !e.active && !e.is_leaving();
        if let Some((i, _)) = entries.iter().enumerate().find(away) {
            self.reopen(laying);
            return Ok(Step::Waits(format!("device {} is absent: mount with it again, or remove it", i + 1)));
        }
        // What is added holds nothing: it counts as not wiped, and nobody waits for that.
        if let Some(grown) = way.grown(&bands).filter(|_| leaving == 0 && laying.closed.is_empty()) {
            self.put(laying, grown)?;
            return Ok(Step::On);
        }
        laying.status.segments = laying.status.segments.max(leaving);
        laying.status.segments_left = leaving;
        {
            let mut inner = self.lock();
            let count: u64 = target.iter().map(|b| b.segments).sum();
            inner.shrinks_to = (count < self.storage.segments()).then_some(count);
            if !inner.state.forgetting.is_empty() {
                drop(inner);
                // Wiping wants every place that had something, so none may go meanwhile.
                self.reopen(laying);
                return Ok(Step::BehindForgetting);
            }
        }
        if laying.closed.iter().any(|no| !self.lock().is_closed(*no)) {
            // Somebody needed them; a smaller step may do.
            self.reopen(laying);
            laying.share = (laying.share + 1).min(SHARE_MAX);
        }
        if !laying.closed.is_empty() {
            return self.empty_closed(laying, &way, blocks);
        }
        if let Some(grown) = way.grown(&bands) {
            self.put(laying, grown)?;
            return Ok(Step::On);
        }
        if leaving == 0 {
            return Ok(Step::On);
        }
        if self.close_some(laying, &way)? {
            return Ok(Step::On);
        }
        // What cleaning and letting the past go can bring.
        match self.room(Room::Passing(u64::from(self.storage.segment_blocks) * 2)) {
            Err(Error::NoSpace) => {}
            other => drop(other?),
        }
        Ok(match self.close_some(laying, &way)? {
            true => Step::On,
            false => Step::Waits("there is no room to move things to: remove something, or add a device".into()),
        })
    }

    /// Closes as many of the segments that have to go as there is room for what they hold; whether any.
    fn close_some(&self, laying: &mut Laying, way: &Way<'_>) -> Result<bool> {
        let order = way.order();
        let mut inner = self.lock_to_accept()?;
        // That may have begun since it was looked at, and whoever wipes withholds segments, which nobody may open meanwhile.
        if !inner.state.forgetting.is_empty() {
            return Ok(false);
        }
        // Those who write are left some.
        laying.closed = inner.that_fit(self, &order, inner.room_segments(self) >> (1 + laying.share));
        if laying.closed.is_empty() {
            // The reserve is lent only to what gives back at least as much.
            let lent = inner.state.segments.free_count().saturating_sub(inner.floor_beside_pages(self) + 1) / 2;
            let some = inner.that_fit(self, &order, lent);
            let gone: std::collections::BTreeSet<SegmentNo> = some.iter().copied().collect();
            let cut = way.without(|no| gone.contains(&no)).unwrap_or_default();
            let count = |bands: &[Band]| bands.iter().map(|b| b.segments).sum::<u64>();
            if way.grown(&cut).is_some_and(|bands| count(&bands) >= count(way.bands)) {
                laying.closed = some;
            }
        }
        laying.closed.sort_unstable();
        for no in &laying.closed {
            inner.segments().close(*no);
        }
        laying.left = u64::MAX;
        laying.idle_rounds = 0;
        Ok(!laying.closed.is_empty())
    }

    /// Empties closed segments; when nothing needs any of them the bands go on without them.
    fn empty_closed(&self, laying: &mut Laying, way: &Way<'_>, blocks: u64) -> Result<Step> {
        let is_free = |s: &Segments, no: SegmentNo| {
            s.get(no).is_none_or(|u| {
                u.state == SegmentState::Free && u.pins == 0 || broken(Break::BandCutEarly) && u.used_blocks() == 0
            })
        };
        let (busy, left, open) = {
            let inner = self.lock_to_accept()?;
            let s = &inner.state.segments;
            let busy: Vec<SegmentNo> = laying.closed.iter().copied().filter(|no| !is_free(s, *no)).collect();
            let left = busy.iter().filter_map(|no| s.get(*no));
            let left = left.map(|u| u64::from(u.used_blocks()) + u64::from(u.node_blocks()) + 1).sum::<u64>();
            let open = busy.iter().any(|no| s.get(*no).is_some_and(|u| u.state == SegmentState::Open));
            (busy, left, open)
        };
        laying.status.segments_left = way.leaving().saturating_sub((laying.closed.len() - busy.len()) as u64);
        if busy.is_empty() {
            let gone = |no: SegmentNo| laying.closed.binary_search(&no).is_ok();
            let Some(cut) = way.without(gone) else {
                self.reopen(laying);
                return Ok(Step::Waits("it would take more bands than a volume has".into()));
            };
            let bands = way.grown(&cut).unwrap_or(cut);
            if !bands.is_empty() {
                self.put(laying, bands)?;
            }
            return Ok(Step::On);
        }
        laying.idle_rounds = if left < laying.left { 0 } else { laying.idle_rounds + 1 };
        laying.left = left;
        if laying.idle_rounds > IDLE_ROUNDS_MAX {
            self.reopen(laying);
            let some = busy.iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Ok(Step::Waits(format!(
                "{} segments cannot be emptied ({some}{}): something in them is in use, or damaged (nenrin scrub tells, else nenrin check), or \
                 there is no room",
                busy.len(),
                if busy.len() > 3 { ", ..." } else { "" }
            )));
        }
        if open {
            self.roll_off()?;
        }
        if !self.empty_content(&busy, blocks)? && !self.touch_index(&busy)? {
            self.renew_for_laying()?;
        }
        Ok(Step::On)
    }

    /// Moves content out of some of these segments; whether there was any.
    fn empty_content(&self, busy: &[SegmentNo], blocks: u64) -> Result<bool> {
        let (mut wanted, mut used) = (Vec::new(), 0);
        {
            let inner = self.lock_to_change()?;
            for no in busy {
                let Some(u) = inner.state.segments.get(*no) else { continue };
                if u.state != SegmentState::Sealed || u.chain_held || u.used_blocks() == 0 || u.pins > 0 {
                    continue;
                }
                used += u64::from(u.used_blocks());
                if !wanted.is_empty() && (wanted.len() == VICTIMS_MAX || used > blocks) {
                    break;
                }
                wanted.push(*no);
            }
        }
        if wanted.is_empty() {
            return Ok(false);
        }
        // Nothing moved: then what was emptied before has to become free first.
        Ok(self.empty_whatever(&wanted)?.moved > 0)
    }

    /// Has nodes in some of these segments written elsewhere; whether there were any.
    fn touch_index(&self, busy: &[SegmentNo]) -> Result<bool> {
        let mut touched = 0;
        for no in busy {
            let inner = self.lock_to_change()?;
            let Some(u) = inner.state.segments.get(*no) else { continue };
            if u.state != SegmentState::Sealed || u.item.kind != KIND_INDEX || u.nodes == 0 {
                continue;
            }
            let (spare, dirty, nodes) = (inner.nodes_to_spare(self), inner.dirty_nodes(), u64::from(u.nodes));
            drop(inner);
            if spare < nodes && dirty > 0 || spare == 0 {
                break;
            }
            touched += self.touch_all_nodes(*no)?;
            if touched * u64::from(NODE_BLOCKS) > VICTIM_BLOCKS_MAX {
                break;
            }
        }
        if touched > 0 {
            self.renew_for_laying()?;
        }
        Ok(touched > 0)
    }

    /// Commits everything, and makes free what was emptied.
    fn renew_for_laying(&self) -> Result<()> {
        self.sync_received(false)?;
        self.index_checkpoint(false)?;
        self.index_checkpoint(false)
    }

    /// Logs that lie in closed segments go on in others.
    fn roll_off(&self) -> Result<()> {
        let mut inner = self.lock_to_change()?;
        if !inner.may_roll_off(self) {
            return Ok(());
        }
        let stamp = inner.data_stamp(self.clock.wall());
        let closed: Vec<_> = {
            let Inner { data, hot, cold, state, .. } = &mut *inner;
            let is_closed = |s: &Segments, no| s.get(no).is_some_and(|u| u.closed);
            let logs = [data, hot, cold].into_iter();
            let old: Vec<_> = logs.filter(|l| l.segment().is_some_and(|no| is_closed(&state.segments, no))).collect();
            old.into_iter().filter_map(|log| log.finish(stamp, &self.storage, &mut state.segments)).collect()
        };
        inner.start_summaries(self, closed)?;
        if !inner.checkpointing {
            for copy in 0..2 {
                let old = inner.index[copy].segment.filter(|no| inner.is_closed(*no));
                if old.is_some() && inner.may_roll_off(self) {
                    if let Some(segment) = inner.index[copy].leave() {
                        let block = inner.index[copy].block;
                        self.storage.end_segment(segment, block);
                        inner.segments().seal(segment);
                    }
                }
            }
        }
        drop(inner);
        self.roll_chain(&|inner, no| inner.is_closed(no) && inner.may_roll_off(self))
    }

    /// The chain goes on in the segment after the next, where it is to leave either and may.
    pub(super) fn roll_chain(&self, leaves: &dyn Fn(&Inner, SegmentNo) -> bool) -> Result<()> {
        // First it has to be in a segment at all, and to name the next, then past this one, and past the next.
        for _ in 0..6 {
            let mut inner = self.lock_to_change()?;
            let lies = [Some(inner.chain.segment), inner.chain.next];
            if !lies.into_iter().flatten().any(|no| leaves(&inner, no)) {
                return Ok(());
            }
            // On a volume that was full there may have been no next one: the mark names it.
            if inner.chain.block > 0 && (inner.chain.next.is_some() || broken(Break::RolledNowhere)) {
                inner.chain.block = self.storage.segment_blocks;
            }
            inner.batch.mark();
            drop(inner);
            self.sync_received(false)?;
        }
        Ok(())
    }

    /// From now on these are the bands: written in two roots before a segment that they add is used.
    fn put(&self, laying: &mut Laying, bands: Vec<Band>) -> Result<()> {
        let mut inner = self.lock_to_change()?;
        while inner.checkpointing {
            // It writes the bands as they were, and must not put them back.
            inner = self.wait_idle(inner);
            inner.check_alive()?;
        }
        let numbers: Vec<_> = bands.iter().map(|b| b.first.0..b.end()).collect();
        let known = inner.state.segments.iter().map(|(no, _)| no).collect::<std::collections::BTreeSet<_>>();
        if !inner.segments().renumber(&numbers) {
            // Somebody began to use one: it is emptied again.
            return Ok(());
        }
        self.storage.lay(bands.clone());
        inner.superblock.bands = bands;
        let added = inner.state.segments.closed().map(|(no, _)| no).filter(|no| !known.contains(no));
        let added: Vec<SegmentNo> = added.collect();
        laying.closed.clear();
        if broken(Break::BandUsedEarly) {
            added.iter().for_each(|no| inner.segments().open(*no));
            return Ok(());
        }
        drop(inner);
        // Roots are flushed here whatever the barrier mode: places change hands.
        self.flush_device()?;
        for _ in 0..2 {
            self.index_checkpoint(false)?;
            self.flush_device()?;
        }
        let mut inner = self.lock();
        inner.counters.segments_laid += added.len() as u64;
        for no in added {
            inner.segments().open(no);
        }
        self.wake_idle(&inner);
        Ok(())
    }
}

impl Inner {
    /// The first of these segments, as many as can be emptied into so many others.
    fn that_fit(&self, fs: &Fs, order: &[SegmentNo], room: u64) -> Vec<SegmentNo> {
        let blocks = u64::from(fs.storage.segment_blocks);
        let (mut free, mut needed) = (0, 0);
        let fits = |no: &&SegmentNo| {
            let Some(s) = self.state.segments.get(**no) else { return false };
            free += u64::from(self.state.segments.is_free(**no));
            needed += u64::from(s.used_blocks()) + u64::from(s.node_blocks());
            if s.state == SegmentState::Open {
                needed += blocks / 4;
            }
            free + (needed + needed / 8).div_ceil(blocks) <= room
        };
        order.iter().take_while(fits).copied().collect()
    }

    fn is_closed(&self, segment: SegmentNo) -> bool {
        self.state.segments.get(segment).is_some_and(|u| u.closed)
    }

    /// Whether there is room to begin another segment.
    fn may_roll_off(&self, fs: &Fs) -> bool {
        self.state.segments.free_count() > self.floor_segments(fs) + SPARE_SEGMENTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{device, mount};
    use nenrin_format::Ino;

    /// There was no segment for the log to go on in when this one was begun.
    fn the_log_leaves_its_segment() -> Result<()> {
        let fs = mount(&device(64, 64), MountOptions::default());
        crate::testing::create(&fs, "f");
        fs.sync_all()?;
        let mut inner = fs.lock();
        let (left, next) = (inner.chain.segment, inner.chain.next.take());
        inner.segments().take_back(next.unwrap());
        assert!(inner.chain.block > 0 && inner.chain.block < fs.storage.segment_blocks);
        drop(inner);
        fs.roll_chain(&|_, no| no == left)?;
        assert_ne!(fs.lock().chain.segment, left);
        fs.close()
    }

    #[test]
    fn the_log_leaves_a_segment_without_a_next_one() {
        the_log_leaves_its_segment().unwrap();
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn a_log_that_leaves_for_nowhere_is_noticed() {
        assert!(crate::breaks::with(Break::RolledNowhere, the_log_leaves_its_segment).is_err());
    }

    /// To forget something may begin while whoever empties segments waits for room.
    #[test]
    fn nothing_is_closed_while_something_is_forgotten() {
        let fs = mount(&device(64, 64), MountOptions::default());
        let blocks = fs.storage.entries()[0].blocks;
        fs.device_resize(0, blocks / 2).unwrap();
        let bands = fs.lock().superblock.bands.clone();
        let target = fs.target(&fs.storage.entries());
        let way = Way::new(&bands, &target, fs.storage.segment_blocks);
        let mut laying = Laying::default();
        assert!(fs.lock().state.forgetting.insert(Ino(5)));
        assert!(!fs.close_some(&mut laying, &way).unwrap() && laying.closed.is_empty());
        fs.lock().state.forgetting.clear();
        assert!(fs.close_some(&mut laying, &way).unwrap());
        fs.reopen(&mut laying);
    }

    /// What was to go is another when a device is lost that was about to be added: its place in the table goes first.
    fn a_device_is_lost_while_segments_are_closed() {
        let fs = mount(&device(64, 64), MountOptions::default());
        let lost = |entries: &mut Vec<DeviceEntry>, number| {
            entries.push(DeviceEntry { active: false, ..DeviceEntry::active([5; 16], entries[0].blocks, number) });
        };
        fs.storage.change(lost).unwrap();
        let last = fs.lock().state.segments.iter().map(|(no, _)| no).last().unwrap();
        let mut laying = Laying { closed: vec![last], ..Laying::default() };
        fs.lock().segments().close(last);
        assert!(matches!(fs.lay_on(&mut laying, 1), Ok(Step::On)));
        assert!(fs.storage.entries()[1].removed);
        assert!(laying.closed.is_empty() && !fs.lock().is_closed(last), "a segment stays closed that need not go");
        fs.close().unwrap();
    }

    #[test]
    fn segments_are_opened_when_a_device_is_lost() {
        a_device_is_lost_while_segments_are_closed();
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "a segment stays closed that need not go")]
    fn segments_that_stay_closed_are_noticed() {
        crate::breaks::with(Break::ClosedForGone, a_device_is_lost_while_segments_are_closed);
    }

    /// When nothing is being forgotten any more nobody is told that it waits for that, and the background does not rest.
    #[test]
    fn it_goes_on_when_all_is_forgotten() {
        let fs = mount(&device(64, 64), MountOptions::default());
        fs.device_resize(0, fs.storage.entries()[0].blocks / 2).unwrap();
        assert!(fs.lock().state.forgetting.insert(Ino(5)));
        fs.lay_some(0).unwrap();
        let status = fs.laying_status().unwrap();
        assert!(status.is_behind_forgetting && status.waits.unwrap().contains("being forgotten"));
        fs.lock().state.forgetting.clear();
        let status = fs.laying_status().unwrap();
        assert!(!status.is_behind_forgetting && status.waits.is_none(), "{status:?}");
        fs.lay_some(0).unwrap();
        assert!(!fs.laying().closed.is_empty(), "it rests");
        fs.stop_laying();
    }
}
