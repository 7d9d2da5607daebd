//! Nothing grows where df says 0.
//!
//! df leaves a sixteenth of the volume out, which cleaning needs. Were it given to whoever writes on, cleaning would cost the
//! more the less there is left, most overwrites would be refused in the end, and what is removed then would make up for
//! that sixteenth before df shows any of it. So what would make the volume hold more than df has available is refused:
//! blocks of files that hold nothing yet, and new records. Overwriting goes on, and so does all that removes.
//!
//! Invariants
//! 1. Who is refused has made no room: nothing was cleaned for it, and no past was let go.
//! 2. What was removed and not reaped, what snapshots keep and was not counted, and what a commit would show is seen to before
//!    anybody is refused; not again while nothing changes.
//! 3. What df has is counted with each call only where little of it is left; see [`Grant`].

use super::background::{HOLD_NANOS_MAX, Reaped};
use super::guard::Guard;
use super::space::{EXHAUSTED_NANOS, Room};
use super::usage::{Run, joined, near, overlaps, run_of, within, without};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::{Error, Result};
use nenrin_format::items::Extent;
use nenrin_format::key::Key;
use nenrin_format::{Addr, Ino, NODE_BLOCKS};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The part of what was available that may be taken before it is counted again.
const GRANTED: u64 = 16;
/// For so long: what others do, to snapshots for example, takes some of it, too.
const GRANT_NANOS: u64 = 1_000_000_000;

/// File blocks beside what is written in which a reservation is looked for first.
const NEAR_BLOCKS: u64 = 1024;

/// Blocks that may be written before what is available is counted again: it takes a look at each file that waits to be committed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grant {
    blocks: u64,
    until: u64,
}

/// What a change does to what the volume holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// So little that nothing was counted: this much at most.
    Little(u64),
    /// So many blocks, which are there: beside what is left then, where it was counted.
    Fits(u64, Option<u64>),
    /// More than df has.
    TooMuch,
}

/// What was done for who would be refused, each once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tried {
    reaping: bool,
    counting: bool,
    commit: bool,
    holds: bool,
}

impl Inner {
    /// Blocks that are available at least, from what is free alone: nothing is looked at for it.
    fn available_at_least(&self, fs: &Fs) -> u64 {
        let segments = &self.state.segments;
        let occupied = (segments.count() - segments.free_count()) * u64::from(fs.storage.segment_blocks);
        let waiting = self.pages + (self.dirty_nodes() + self.frozen_nodes) * 2 * u64::from(NODE_BLOCKS);
        let usable = self.usable_blocks(fs, self.segments_meant());
        usable.saturating_sub(occupied + waiting + fs.kept_for(self.promised()))
    }

    /// Blocks by which this makes the volume hold more, at most.
    const fn growth_at_most(room: Room) -> u64 {
        match room {
            Room::Content(blocks) => blocks,
            Room::Write(_, from, to) => to - from,
            // What is reserved asks for itself; see `promise`.
            Room::Promise(_) | Room::Passing(_) | Room::Removal => 0,
        }
    }

    /// Whether this may be added without counting anything.
    pub(super) fn grows_little(&self, fs: &Fs, room: Room) -> bool {
        let most = Self::growth_at_most(room);
        let granted = || self.grant.blocks >= most && fs.clock.monotonic_nanos() < self.grant.until;
        let unasked = broken(Break::GrowsBeyondDf) || broken(Break::NoReserve);
        most == 0 || unasked || self.available_at_least(fs) >= most || granted()
    }

    /// How many of the file blocks `[from, to)` stay where they are when they are written over: a snapshot or another file keeps them.
    fn blocks_kept(&self, ino: Ino, from: u64, to: u64) -> Result<u64> {
        if broken(Break::KeptWrittenOver) {
            return Ok(0);
        }
        let shared = RefCell::new(BTreeMap::new());
        let committed = |key: &Key, e: &Extent| {
            let all = || vec![(key.off, key.off + u64::from(e.blocks))];
            Ok(match e.addr {
                Addr::NONE => Vec::new(),
                _ if self.state.newest_name_sees(e.birth) => all(),
                _ if e.is_shared() => {
                    shared.borrow_mut().insert(*key, run_of(e));
                    Vec::new()
                }
                _ => Vec::new(),
            })
        };
        let mut kept = self.ranges_not_written(ino, from, to, &committed, &Extent::is_shared)?;
        let shared = shared.into_inner();
        if !shared.is_empty() {
            let others = self.kept_by_others(&shared, from, to)?;
            let of =
                |key: &Key, _: &Extent| Ok(shared.get(key).map_or_else(Vec::new, |run| within(*run, key.off, &others)));
            kept.extend(self.ranges_not_written(ino, from, to, &of, &|_| false)?);
        }
        let kept: u64 = kept.iter().map(|(a, b)| b - a).sum();
        // Who fills what is reserved piece by piece writes the blocks twice in which these meet.
        let pieces = kept > 0 && !broken(Break::PiecesRefused) && self.reserves(ino, from, to)?;
        Ok(if pieces { kept.saturating_sub(2) } else { kept })
    }

    /// Where those of these live extents of a file lie, as far as they are of the file blocks `[from, to)`, that other files have, too, or
    /// copies that wait, or snapshots by other extents.
    fn kept_by_others(&self, shared: &BTreeMap<Key, Run>, from: u64, to: u64) -> Result<Vec<Run>> {
        let part = |(key, run): (&Key, &Run)| {
            let (first, end) = (run.0 + from.saturating_sub(key.off), run.1.min(run.0 + to.saturating_sub(key.off)));
            (first < end).then_some((first, end))
        };
        let asked = joined(shared.iter().filter_map(part).collect());
        // What a file has twice goes with neither.
        let mut kept = overlaps(shared.values().copied().collect());
        for near in near(&asked) {
            kept.extend(self.kept_of(near, &|owner| shared.contains_key(owner))?);
        }
        self.with_waiting(|waiting| {
            let overlap = |(from, to): &Run| {
                let behind = waiting.runs.partition_point(|(_, end)| *end <= *from);
                let (from, to) = (*from, *to);
                let there = waiting.runs[behind..].iter().take_while(move |(start, _)| *start < to);
                there.map(move |(a, b)| (from.max(*a), to.min(*b)))
            };
            if broken(Break::CopiesForgotten) {
                kept = without(&joined(std::mem::take(&mut kept)), &waiting.runs);
            } else {
                kept.extend(asked.iter().flat_map(overlap));
            }
        });
        Ok(joined(kept))
    }

    /// Whether anything of a file is reserved, as far as that is looked for: near these file blocks, and, unless nothing was found before and
    /// nothing was reserved since, elsewhere.
    fn reserves(&self, ino: Ino, from: u64, to: u64) -> Result<bool> {
        if self.promised_in(ino, from.saturating_sub(NEAR_BLOCKS), to.saturating_add(NEAR_BLOCKS))? > 0 {
            return Ok(true);
        }
        let file = self.files.get(&ino);
        if self.promised() == 0 || file.is_some_and(|f| f.reserves_nothing.get()) {
            return Ok(false);
        }
        let found = self.promised_in(ino, 0, u64::MAX)? > 0;
        if let Some(file) = file {
            file.reserves_nothing.set(!found);
        }
        Ok(found)
    }

    /// Blocks that a file may have again, which was emptied a moment ago and not closed since: who saves it would be refused, and lose
    /// what it held. Of what lay in the index it is one.
    fn blocks_to_rewrite(&self, fs: &Fs, ino: Ino) -> u64 {
        let Some(file) = self.files.get(&ino) else { return 0 };
        let Some((had, until)) = file.had.filter(|_| !broken(Break::RewritingGrows)) else { return 0 };
        let committed = self.state.inode(ino).ok().flatten().map_or(0, |i| i.blocks);
        let has = file.content.as_ref().map_or(committed, |c| c.blocks_over(committed));
        if fs.clock.monotonic_nanos() < until { had.saturating_sub(has) } else { 0 }
    }

    /// A file that had so many blocks is emptied.
    pub(super) fn note_emptied(&mut self, ino: Ino, had: u64, now: u64) {
        self.files.entry(ino).or_default().had = Some((had, now.saturating_add(HOLD_NANOS_MAX)));
    }

    /// What this does to what the volume holds.
    pub(super) fn growth(&self, fs: &Fs, room: Room) -> Growth {
        if self.grows_little(fs, room) {
            return Growth::Little(Self::growth_at_most(room));
        }
        let blocks = match room {
            // An index that cannot be read is told of by the write itself.
            Room::Write(ino, from, to) => {
                let new = self.blocks_to_reserve(ino, from, to, u64::MAX).unwrap_or(0);
                new.saturating_sub(self.blocks_to_rewrite(fs, ino)) + self.blocks_kept(ino, from, to).unwrap_or(0)
            }
            other => Self::growth_at_most(other),
        };
        if blocks == 0 {
            return Growth::Fits(0, None);
        }
        let left = self.usage(fs).available_blocks.checked_sub(blocks);
        left.map_or(Growth::TooMuch, |left| Growth::Fits(blocks, Some(left)))
    }

    /// This is about to be added.
    pub(super) fn note_growth(&mut self, fs: &Fs, growth: Growth) {
        match growth {
            Growth::TooMuch => {}
            Growth::Little(most) => self.grant.blocks = self.grant.blocks.saturating_sub(most),
            Growth::Fits(blocks, left) => {
                let now = fs.clock.monotonic_nanos();
                // Who only overwrites has it counted now and then.
                if blocks > 0 || now >= self.grant.until {
                    let left = left.unwrap_or_else(|| self.usage(fs).available_blocks);
                    let blocks = if broken(Break::GrantsLast) { left } else { left / GRANTED };
                    self.grant = Grant { blocks, until: now.saturating_add(GRANT_NANOS) };
                }
            }
        }
    }
}

impl Fs {
    /// Does a part of what makes more available without costing anybody's past: reaps what was removed, counts what snapshots
    /// keep, commits what waits. False when there is nothing more of that kind.
    pub(super) fn find_available(&self, inner: Guard<'_>, tried: &mut Tried) -> Result<bool> {
        let now = self.clock.monotonic_nanos();
        let in_vain =
            |(then, at): &(_, u64)| now.saturating_sub(*at) < EXHAUSTED_NANOS && *then == inner.picture_of_room();
        if inner.nothing_available.as_ref().is_some_and(in_vain) {
            return Ok(false);
        }
        let removed = !tried.reaping && inner.has_to_reap(now).unwrap_or(false);
        if removed && !broken(Break::GrowthReapsNothing) {
            drop(inner);
            tried.reaping = !self.reap_a_piece()?;
            return Ok(true);
        }
        let mut inner = inner;
        if !tried.counting && inner.state.past.is_doubtful() {
            inner.state.recount_past();
        }
        let past = &inner.state.past;
        let uncounted = !tried.counting && (!past.counted || past.recount) && now >= inner.named_rest_until;
        if uncounted && !broken(Break::GrowthCountsNothing) {
            drop(inner);
            tried.counting = true;
            self.count_what_was_asked(&mut || Ok(self.count_named_or_rest(now)))?;
            return Ok(true);
        }
        // What is written over while there are snapshots, or shares its blocks, counts twice until then; what goes from within a file
        // does not count before.
        let (waits, holds) = (!tried.commit && inner.has_uncommitted(), !tried.holds && inner.holds_back(self));
        if (waits || holds) && !broken(Break::GrowthCommitsNothing) {
            if !waits {
                inner.end_holds();
                tried.holds = true;
            }
            tried.commit = true;
            drop(inner);
            self.sync_received(false)?;
            return Ok(true);
        }
        inner.nothing_available = Some((inner.picture_of_room(), now));
        Ok(false)
    }

    /// Reaps some of what was removed; false when there is no room to do that in, or it cannot be read.
    fn reap_a_piece(&self) -> Result<bool> {
        let inner = self.lock_to_change()?;
        let room = if broken(Break::ReapsHalf) { inner.nodes_to_spare(self) } else { inner.nodes_to_let_go(self) };
        drop(inner);
        if room == 0 {
            self.sync_received(false)?;
            self.promote_for_room()?;
            let mut inner = self.lock_to_change()?;
            if inner.nodes_to_let_go(self) == 0 {
                // Somebody waits for it.
                inner.let_go_share = None;
            }
        }
        match self.reap_step() {
            Ok(reaped) => Ok(reaped != Reaped::NoRoom),
            Err(e @ (Error::Failed(_) | Error::ReadOnly)) => Err(e),
            Err(_) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{create, device, mount};

    /// Whether a piece of what was removed is reaped for who needs it, where nothing more may be let go until the next index checkpoint.
    fn reaped_without_a_share() -> bool {
        let fs = mount(&device(64, 64), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let ino = create(&fs, "f");
        for at in 0..1000 {
            fs.write(ino, at * 2 * 4096, &[1; 4096], 0).unwrap();
        }
        fs.sync_all().unwrap();
        fs.unlink(Ino::ROOT, b"f").unwrap();
        fs.sync_all().unwrap();
        fs.lock().let_go_share = Some(0);
        fs.reap_a_piece().unwrap()
    }

    #[test]
    fn who_needs_what_was_removed_has_it_reaped_beyond_the_share() {
        assert!(reaped_without_a_share());
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn reaping_that_ends_with_its_share_is_noticed() {
        assert!(!crate::breaks::with(Break::ReapsHalf, reaped_without_a_share));
    }
}
