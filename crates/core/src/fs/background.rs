//! What happens with time: commits, checkpoints, index checkpoints, reaping,
//! sweeping, the durable mark. Nothing here runs by itself; the owner calls
//! [`Fs::tick`].

use super::guard::Guard;
use super::holding::{HELD_ITEMS_MAX, ITEM_RECORD_BYTES};
use super::leading::Stay;
use super::space::EXHAUSTED_NANOS;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::state::Looked;
use crate::{Error, Result};
use nenrin_format::key::Key;
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use nenrin_format::{BLOCK_BYTES, Ino, NODE_BLOCKS};
use std::collections::BTreeSet;

/// A truncation is held back at most this long.
pub(super) const HOLD_NANOS_MAX: u64 = 30_000_000_000;
/// Idle time after which a durable mark closes the window of P4.
const MARK_NANOS: u64 = 500_000_000;
/// A mark is left out when a commit is due within this time.
const MARK_WAIT_NANOS: u64 = 1_000_000_000;
/// Idle time after which the index is checkpointed, so that the next mount is quick.
const IDLE_NANOS: u64 = 20_000_000_000;
/// While a device is slow, root slots are written so often when anything is.
const TRIED_NANOS: u64 = 30_000_000_000;
/// Items reaped by one record.
const REAP_ITEMS: u32 = 512;
/// Bytes of records after which who reaps for room commits them.
const REAP_RECORD_BYTES_MAX: usize = 64 << 10;
/// Items reaped in one tick, at most.
const REAPED_MAX: u32 = 8 * REAP_ITEMS;
/// Items of history swept by one record, and in one tick.
const SWEEP_ITEMS: u32 = 1024;
const SWEPT_MAX: u32 = 8 * SWEEP_ITEMS;
/// What a record costs even if there is little in it, in items.
const RECORD_ITEMS: u32 = 64;
/// How long sweeping, and what could not be reaped, rests after an error.
pub(super) const SWEEP_REST_NANOS: u64 = 60_000_000_000;

/// What is to be swept of a history tree: from a key up to an inode.
#[derive(Clone, Copy)]
pub(super) struct ToSweep {
    pub tree: TreeId,
    pub from: Key,
    pub behind: Ino,
}

impl ToSweep {
    /// All of a tree.
    pub(super) const fn all_of(tree: TreeId) -> Self {
        Self { tree, from: Key::first(), behind: Ino(u64::MAX) }
    }
}

/// What came of a step of reaping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaped {
    /// Some was reaped.
    Some,
    /// There was nothing to reap.
    Nothing,
    /// There was no room to do it in.
    NoRoom,
}

/// Reaping what was removed.
#[derive(Default)]
pub(super) struct Reaper {
    /// What was passed over, since it cannot be read.
    passed: BTreeSet<Key>,
    /// When (monotonic) that is tried again.
    not_before: u64,
    /// What could not be read, until it is told.
    pub(super) lost: Option<Error>,
}

impl Reaper {
    /// Whether this was passed over, and is not tried again yet.
    fn rests(&self, key: &Key, now: u64) -> bool {
        now < self.not_before && self.passed.contains(key)
    }

    fn pass_over(&mut self, key: Key, why: Error, now: u64) {
        if now >= self.not_before {
            self.passed.clear();
            self.not_before = now.saturating_add(SWEEP_REST_NANOS);
        }
        self.passed.insert(key);
        self.lost.get_or_insert(why);
    }
}

/// Sweeping of history in the background.
#[derive(Default)]
pub(super) struct Sweeper {
    /// What is left of it, the next one last.
    ranges: Vec<ToSweep>,
    /// What could not be read, and was passed over.
    lost: Option<Error>,
    /// After an error, when (monotonic) it goes on.
    not_before: u64,
    /// Nor did more come of it when more was let go.
    in_vain: bool,
}

impl Fs {
    /// Does what is due. Call it about every 100 ms.
    ///
    /// # Errors
    /// When a write or flush failed; the volume is read-only then.
    pub fn tick(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let _way = super::beside::giving_way();
        self.beat()?;
        let now = self.clock.monotonic_nanos();
        self.judge_devices();
        let mut inner = self.lock();
        inner.check_alive()?;
        if inner.closing {
            return Ok(());
        }
        inner.reap_writes();
        inner.suspended.note(&*self.clock);
        inner.note_written(now);
        inner.note_less_history();
        self.log_old_accesses(&mut inner, now)?;
        drop(inner);
        self.commit_due()?;
        let inner = self.lock();
        let every = self.options.checkpoint_nanos;
        let cut_due = every > 0
            && inner.is_uncut()
            && now.saturating_sub(inner.last_cut_at) >= every
            && !inner.cuts_rest(self, now);
        drop(inner);
        self.burst_if_old(now)?;
        // What cannot be done, for want of room or because a node is damaged,
        // must not keep the rest from being done.
        self.count_named_for(now);
        let cut = if cut_due && self.has_room_to_cut() { self.cut_unnamed() } else { Ok(()) };
        let result = cut
            .and(self.thin(now))
            .and(self.uncrowd(now))
            .and(self.reap_some())
            .and(self.sweep_some(now))
            .and(self.merge_some(now))
            .and(self.clean_some(now));
        let result = result.and(self.forget_some(now)).and(self.lay_some(now)).and(self.join_some(now));
        let mut inner = self.lock();
        inner.check_alive()?;
        // The next commit proves as much as a mark; one that never comes proves nothing.
        let coming = now.saturating_sub(inner.last_commit_at) < MARK_NANOS + MARK_WAIT_NANOS
            && inner.commit_due_at(now, self.options.commit_nanos).is_some_and(|at| at <= now + MARK_WAIT_NANOS);
        // Root slots are what a slow device is tried with.
        let tried = !self.storage.slow().is_empty() && now.saturating_sub(inner.mounted_at) >= TRIED_NANOS;
        let idle = tried || now.saturating_sub(inner.last_commit_at) >= IDLE_NANOS;
        let idle = idle && inner.window_bytes > 0;
        let mark = !idle
            && now.saturating_sub(inner.last_commit_at) >= MARK_NANOS
            && inner.proven_seq < inner.chain.seq
            && inner.durable_seq == inner.chain.seq
            && inner.batch.records.is_empty()
            && !coming;
        let promote = inner.wants_promotion(self);
        let due = idle || promote || self.checkpoint_is_due(&inner);
        drop(inner);
        if due {
            self.index_checkpoint(false)?;
            if promote {
                // What was emptied is needed by the older of two roots: the second one is cheap.
                self.index_checkpoint(false)?;
            }
        } else if mark {
            self.mark()?;
        }
        result
    }

    /// Cuts a checkpoint of what has changed since the last one, where checkpoints are cut by time: for who is about to close, so that the
    /// last work of a mount can be gone back to as that before.
    ///
    /// # Errors
    /// When a write or flush failed, now or earlier.
    pub fn cut_at_end(&self) -> Result<()> {
        let (now, mut inner) = (self.clock.monotonic_nanos(), self.lock());
        let by_time = !self.options.read_only && self.options.checkpoint_nanos > 0;
        if by_time && !broken(Break::HeldUncut) {
            // Closing commits all of it.
            inner.end_all_holds();
        }
        let is_due = by_time && inner.is_uncut() && inner.check_alive().is_ok() && !inner.cuts_rest(self, now);
        drop(inner);
        if is_due && self.has_room_to_cut() { self.cut_unnamed() } else { Ok(()) }
    }

    /// Commits what was received and would else wait for longer than it may. [`Fs::tick`] does so, too, but may be long at other work:
    /// whoever calls it from a thread of its own, about every 100 ms, keeps to the time.
    ///
    /// # Errors
    /// When a write or flush failed; the volume is read-only then.
    pub fn commit_due(&self) -> Result<()> {
        let now = self.clock.monotonic_nanos();
        let mut inner = self.lock();
        inner.check_alive()?;
        let is_due = inner.commit_due_at(now, self.options.commit_nanos).is_some_and(|at| at <= now);
        let is_due = is_due && !inner.closing && !self.options.read_only;
        drop(inner);
        if !is_due {
            return Ok(());
        }
        self.commit_little()?;
        self.sync_received(false)
    }

    /// Whether what recovery would read, or what memory holds, asks for an index checkpoint.
    pub(super) fn checkpoint_is_due(&self, inner: &Inner) -> bool {
        let segments = &inner.state.segments;
        // What a root or a reader still holds is not waited for: on a full volume that would never end.
        let short = || segments.free_count() <= inner.floor_segments(self) + 2;
        let unflushed = inner.unflushed_blocks() > super::commit::UNFLUSHED_BLOCKS_MAX;
        let much = inner.dirty_nodes() >= self.options.dirty_nodes_max;
        // None is due before the usual window has gone by.
        let long = || inner.window_bytes >= self.window_bytes_max() && inner.window_bytes >= self.window_due(inner);
        let too_long = || inner.window_bytes > leaving_room_for(inner.items);
        unflushed || much || segments.promotable_count() > 0 && short() || long() || too_long()
    }

    /// Chain bytes after which an index checkpoint is due now.
    fn window_due(&self, inner: &Inner) -> u64 {
        let nodes = inner.dirty_nodes() * 2 * u64::from(NODE_BLOCKS) * BLOCK_BYTES as u64;
        longer_window(self.window_bytes_max(), nodes, inner.room_at_rest(self))
    }

    /// Chain bytes after which an index checkpoint is due, where it costs little or room is short. The reserve has room for them.
    pub(super) fn window_bytes_max(&self) -> u64 {
        let segment = u64::from(self.storage.segment_blocks) * 4096;
        (self.storage.segments() * segment / 16).clamp(segment / 2, WINDOW_BYTES_MAX)
    }

    /// Writes an empty record, so that its header proves what was flushed before.
    fn mark(&self) -> Result<()> {
        let inner = self.lock();
        if inner.leading.is_taken() {
            return Ok(());
        }
        let mut inner = self.turn(inner);
        inner.batch.mark();
        let before = inner.chain.seq;
        self.lead(inner, None, Stay::Briefly);
        let mut inner = self.lock();
        // The mark itself needs no mark; what others committed since does.
        inner.proven_seq = inner.proven_seq.max(before.next());
        inner.check_alive()
    }

    pub(super) fn reap_some(&self) -> Result<()> {
        let mut left = REAPED_MAX;
        while left > 0 {
            let mut inner = self.lock_to_change()?;
            if !inner.has_to_reap(self.clock.monotonic_nanos())? {
                return inner.reaper.lost.take().map_or(Ok(()), Err);
            }
            drop(inner);
            let Some(mut inner) = self.room_for_step()? else { return Ok(()) };
            if inner.let_orphan_left_go(self)? {
                left = left.saturating_sub(RECORD_ITEMS);
                continue;
            }
            match inner.reap_next(self, self.clock.monotonic_nanos())? {
                0 => return inner.reaper.lost.take().map_or(Ok(()), Err),
                items => left = left.saturating_sub(items.max(RECORD_ITEMS)),
            }
        }
        Ok(())
    }

    /// The lock, for a step that lets go in the background; none where there is no room for it.
    fn room_for_step(&self) -> Result<Option<Guard<'_>>> {
        let (inner, now) = (self.room_to_let_go()?, self.clock.monotonic_nanos());
        if inner.nodes_to_let_go(self) > 0 {
            return Ok(Some(inner));
        }
        // Under a trickle of changes each tick would try.
        let rests = inner.swept_in_vain.as_ref().is_some_and(|(_, at)| now.saturating_sub(*at) < EXHAUSTED_NANOS);
        drop(inner);
        if rests { Ok(None) } else { self.room_to_sweep() }
    }

    /// Frees what was removed, as far as there is room to do it in. For who makes
    /// room, and so must not wait for any.
    pub(super) fn reap_for_room(&self) -> Result<()> {
        while self.reap_step()? == Reaped::Some {}
        Ok(())
    }

    /// One step of that.
    pub(super) fn reap_step(&self) -> Result<Reaped> {
        let mut inner = self.lock_to_change()?;
        let now = self.clock.monotonic_nanos();
        if !inner.has_to_reap(now)? {
            return Ok(Reaped::Nothing);
        }
        if inner.nodes_to_let_go(self) == 0 {
            return Ok(Reaped::NoRoom);
        }
        if inner.dirty_nodes() >= self.options.dirty_nodes_max {
            drop(inner);
            self.index_checkpoint(false)?;
            return Ok(Reaped::Some);
        }
        if inner.let_orphan_left_go(self)? {
            return Ok(Reaped::Some);
        }
        inner.reap_next(self, now)?;
        let much = inner.batch.bytes > REAP_RECORD_BYTES_MAX;
        drop(inner);
        if much {
            self.sync_received(false)?;
        }
        Ok(Reaped::Some)
    }

    pub(super) fn sweep_some(&self, now: u64) -> Result<()> {
        if self.lock().sweep.as_ref().is_some_and(|s| now < s.not_before) {
            return Ok(());
        }
        let mut swept = 0;
        while swept < SWEPT_MAX {
            let inner = self.lock();
            if inner.sweep.is_none() && !inner.sweep_wanted {
                return Ok(());
            }
            drop(inner);
            let Some(mut inner) = self.room_for_step()? else { return Ok(()) };
            if inner.sweep.is_none() {
                if !inner.sweep_wanted {
                    return Ok(());
                }
                inner.sweep_wanted = false;
                let ranges = inner.state.history.iter().map(|t| ToSweep::all_of(t.tree.id())).collect();
                inner.sweep = Some(Sweeper { ranges, ..Sweeper::default() });
            }
            let Some(range) = inner.sweep.as_ref().and_then(|s| s.ranges.last().copied()) else {
                return inner.end_sweep(now);
            };
            let step = self.sweep_step(&mut inner, range.tree, range.from, SWEEP_ITEMS)?;
            swept += step.items.max(RECORD_ITEMS);
            let Some(s) = &mut inner.sweep else { continue };
            s.ranges.pop();
            s.lost = s.lost.take().or(step.lost);
            if let Some(from) = step.go_on.filter(|from| from.ino < range.behind.0) {
                s.ranges.push(ToSweep { from, ..range });
            }
        }
        Ok(())
    }

    /// Sweeps some items of a tree by a record. What cannot be read is passed over.
    pub(super) fn sweep_step(&self, inner: &mut Inner, tree: TreeId, from: Key, max: u32) -> Result<Looked> {
        let (max, nodes) = (inner.items_to_let_go(self, max), inner.nodes_to_let_go(self));
        let looked = inner.state.sweep_ahead(tree, &from, max, nodes);
        if looked.items > 0 {
            // Where the tree ends that is all the same.
            inner.log(&Record::Sweep { tree, from, max: looked.items }, self.clock.monotonic_nanos())?;
            inner.note_less_history();
        }
        Ok(looked)
    }
}

/// A commit by time begins so long before it would be late, and earlier than that where it is soon: it is looked at about every 100 ms,
/// and takes its time.
const COMMIT_AHEAD_NANOS: u64 = 200_000_000;

/// Chain bytes that recovery reads at most before an index checkpoint is due.
/// DESIGN section 6 allows 64 MiB; commits under way come on top.
pub(super) const WINDOW_BYTES_MAX: u64 = 32 << 20;
/// The same where the index costs much: the rest of 64 MiB is what is read beyond the end, and what comes within a tick.
const LONGER_WINDOW_BYTES_MAX: u64 = 56 << 20;

/// Chain bytes after which an index checkpoint is due that writes so many bytes of nodes, with so much room: small writes to
/// random places of a large file make all leaves dirty in one window of the usual length, and would cost a quarter more.
fn longer_window(usual: u64, node_bytes: u64, room: u64) -> u64 {
    usual.max((16 * node_bytes).min(room / 4).min(LONGER_WINDOW_BYTES_MAX))
}

/// Chain bytes beside which so many items that wait for their commit find room: what is held back comes to the log all at once.
pub(super) fn leaving_room_for(items: u64) -> u64 {
    let coming = items.min(HELD_ITEMS_MAX) * ITEM_RECORD_BYTES;
    LONGER_WINDOW_BYTES_MAX.saturating_sub(coming)
}

impl Inner {
    /// When (monotonic) the next commit by time is to begin; may be past.
    fn commit_due_at(&mut self, now: u64, commit_nanos: u64) -> Option<u64> {
        let mut since = self.batch.since;
        for f in self.files.values_mut() {
            let Some(c) = &mut f.content else { continue };
            match c.held_since {
                Some(held) if now.saturating_sub(held) < HOLD_NANOS_MAX || broken(Break::HoldNeverEnds) => {}
                _ => {
                    c.held_since = None;
                    since = Some(since.map_or(c.since, |s| s.min(c.since)));
                }
            }
        }
        let ahead = if broken(Break::CommitsLate) { 0 } else { COMMIT_AHEAD_NANOS.min(commit_nanos / 4 * 3) };
        let wait = commit_nanos - ahead;
        since.map(|s| s.saturating_add(wait))
    }

    /// Whether users see something that is in no checkpoint, but for what a truncation holds back.
    fn is_uncut(&self) -> bool {
        self.changed_since_cut || self.state.uncut
    }

    /// Whether something was let go that is not swept yet, and nothing speaks against sweeping it.
    pub(super) fn has_released(&self, now: u64) -> bool {
        (self.sweep_wanted || self.sweep.is_some()) && !self.sweep_rests(now) && !broken(Break::SweepLeft)
    }

    /// Whether sweeping rests after an error.
    pub(super) fn sweep_rests(&self, now: u64) -> bool {
        self.sweep.as_ref().is_some_and(|s| now < s.not_before)
    }

    /// Whether it rests, and letting more go gained nothing either.
    pub(super) fn sheds_in_vain(&self, now: u64) -> bool {
        self.sweep_rests(now) && self.sweep.as_ref().is_some_and(|s| s.in_vain)
    }

    /// More was let go, and where sweeping rests all the same nothing came of it.
    pub(super) fn shed_in_vain(&mut self) {
        if let Some(s) = &mut self.sweep {
            s.in_vain = true;
        }
    }

    /// What is left to be swept, the next one first, and whether something was passed over before; it is for the caller now, who
    /// ends `sweeping`.
    pub(super) fn take_released(&mut self) -> (Vec<ToSweep>, bool) {
        self.sweeping = true;
        let left = self.sweep.take().unwrap_or_default();
        let all = self.state.history.iter().map(|t| ToSweep::all_of(t.tree.id()));
        // What is let go meanwhile asks for a sweep of its own. All is all of what was passed over, too.
        let (what, unread): (Vec<_>, _) = match std::mem::take(&mut self.sweep_wanted) {
            true => (all.collect(), false),
            false => (left.ranges, left.lost.is_some()),
        };
        // The newest first, as items move to older ones.
        (what.into_iter().rev().collect(), unread)
    }

    /// All is swept once more, and not at once: some of it cannot be read.
    pub(super) fn rest_sweep(&mut self, now: u64) {
        self.sweep_wanted = true;
        let not_before = now.saturating_add(SWEEP_REST_NANOS);
        self.sweep = Some(Sweeper { not_before, ..Sweeper::default() });
    }

    /// These are swept in the background, besides what is swept already.
    pub(super) fn sweep_later(&mut self, ranges: &[ToSweep]) {
        self.sweep.get_or_insert_default().ranges.extend(ranges);
    }

    /// All was swept that can be read. Where something was passed over all is done once more, since what that has may move to
    /// older trees meanwhile.
    fn end_sweep(&mut self, now: u64) -> Result<()> {
        let lost = self.sweep.take().and_then(|s| s.lost);
        lost.map_or(Ok(()), |why| {
            self.rest_sweep(now);
            Err(why)
        })
    }

    /// Whether there is something to reap that was not passed over.
    pub(super) fn has_to_reap(&self, now: u64) -> Result<bool> {
        Ok(!self.orphans_left.is_empty() || self.next_to_reap(now)?.is_some())
    }

    /// What comes first of what is to be reaped, but for what was passed over.
    fn next_to_reap(&self, now: u64) -> Result<Option<Key>> {
        self.state.next_reap(&|key| self.reaper.rests(key, now))
    }

    /// Reaps some of what comes first, and can be read; for how many items that counts, 0 when there is nothing.
    fn reap_next(&mut self, fs: &Fs, now: u64) -> Result<u32> {
        let Some(key) = self.next_to_reap(now)? else { return Ok(0) };
        let (ino, fork) = (Ino(key.off), key.fork);
        let (most, nodes) = (self.items_to_let_go(fs, REAP_ITEMS), self.nodes_to_let_go(fs));
        match self.state.reap_ahead(ino, fork, most, nodes) {
            Ok(max) => self.log(&Record::ReapStep { ino, fork, max }, now)?,
            // The others first.
            Err(why) => self.reaper.pass_over(key, why, now),
        }
        Ok(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{create, device, mount};

    /// Who makes room takes a sweep over with what it had passed over.
    #[test]
    fn what_was_passed_over_is_swept_again_whoever_ends_the_sweep() {
        let fs = mount(&device(16, 0), MountOptions::default());
        fs.write(create(&fs, "f"), 0, &[1; 4096], 0).unwrap();
        fs.checkpoint_create(None).unwrap();
        let lost = Some(Error::Corrupt("a leaf".into()));
        let mut inner = fs.lock();
        (inner.sweep, inner.sweep_wanted) = (Some(Sweeper { lost, ..Sweeper::default() }), false);
        drop(inner);
        assert!(!fs.sweep_released().unwrap());
        let inner = fs.lock();
        assert!(inner.sweep_wanted && inner.sweep_rests(fs.clock.monotonic_nanos()));
    }

    /// How many leaves of history a step of a sweep makes dirty for which four are to spare, of items of which five fill one.
    fn leaves_of_large_items() -> u64 {
        let fs = mount(&device(64, 64), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let files = ["a", "b", "c", "d"].map(|name| create(&fs, name));
        let names = (0..20).map(|n| format!("user.{n}")).collect::<Vec<_>>();
        let each = |what: &dyn Fn(nenrin_format::Ino, &[u8])| {
            files.iter().for_each(|f| names.iter().for_each(|name| what(*f, name.as_bytes())));
        };
        each(&|f, name| fs.setxattr(f, name, &[1; 3000], crate::XattrMode::Any).unwrap());
        let cno = fs.checkpoint_create(None).unwrap().cno;
        each(&|f, name| fs.removexattr(f, name).unwrap());
        fs.sync_all().unwrap();
        fs.index_checkpoint(false).unwrap();
        let mut inner = fs.lock();
        inner.state.kept.remove(&cno);
        let past = inner.state.history[0].tree.clone();
        let looked = inner.state.sweep_ahead(past.id(), &Key::first(), SWEEP_ITEMS, 4);
        let mut keys = Vec::new();
        let each = &mut |key: &Key, _: &crate::index::Value| {
            keys.push(*key);
            std::ops::ControlFlow::<()>::Continue(())
        };
        past.scan(&inner.state.cache, &Key::first(), &Key::last(), each).unwrap();
        past.clean_leaves(&inner.state.cache, keys.iter().take(looked.items as usize)).unwrap()
    }

    #[test]
    fn a_step_makes_no_more_leaves_dirty_than_there_is_room_for_however_large_its_items_are() {
        let leaves = leaves_of_large_items();
        assert!((1..=4).contains(&leaves), "{leaves}");
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn steps_that_do_not_count_their_own_leaves_are_noticed() {
        let leaves = crate::breaks::with(crate::breaks::Break::OwnLeavesUncounted, leaves_of_large_items);
        assert!(leaves > 8, "{leaves}");
    }

    #[test]
    fn a_window_is_longer_where_the_index_costs_much_and_room_is_plenty() {
        const MIB: u64 = 1 << 20;
        // Usual, nodes, room: what is due.
        let table = [
            (32, 0, 1000, 32),
            (32, 1, 1000, 32),
            (32, 3, 1000, 48),
            (32, 10, 1000, 56),
            (32, 10, 160, 40),
            (32, 10, 100, 32),
            (4, 1, 40, 10),
            (4, 1, 0, 4),
        ];
        for (usual, nodes, room, due) in table {
            assert_eq!(longer_window(usual * MIB, nodes * MIB, room * MIB), due * MIB, "{usual} {nodes} {room}");
        }
    }
}
