//! What the volume holds, and what is available: df. Decision 0011 says what it promises.
//!
//! Invariants
//! 1. What waits for its commit counts as it will count then, each block once; where that is not known, rather more.
//! 2. What is let go of counts as available before it is swept, since who lacks room has it swept first.

use super::cleaning::worth_filling;
use super::space::{CHAIN_SEGMENTS, CHECKPOINT_NODES, TIDY_SEGMENTS};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::content::{Change, Content};
use crate::log::index::IndexLog;
use crate::{Result, Usage};
use nenrin_format::items::Extent;
use nenrin_format::key::Key;
use nenrin_format::{Addr, BLOCK_BYTES, Cno, EXTENT_BLOCKS_MAX, NODE_BLOCKS};

/// Addresses of blocks: from, and up to.
pub(super) type Run = (u64, u64);

/// What waits for its commit and is shared: written and copied, or a copy.
#[derive(Default)]
pub(super) struct WaitingShared {
    /// What it was brought together from.
    of: [u64; 5],
    /// Where it lies; in order, without overlap.
    pub(super) runs: Vec<Run>,
    /// Blocks of it that nobody has besides: what they are copies of waits, too, or was removed, or written over.
    alone: u64,
}

impl Inner {
    /// What [`Inner::reserve_segments`] comes back to when all that waits is written, which who lacks room has done first.
    /// df counts with this: with what it is at the moment it would fall with each change of the index, and rise again.
    fn reserve_at_rest(&self, fs: &Fs) -> u64 {
        let nodes = CHECKPOINT_NODES + u64::from(self.superblock.root_blocks / NODE_BLOCKS);
        let checkpoint =
            |nodes: u64| 2 * nodes.div_ceil(IndexLog::nodes_in_segment(fs.storage.segment_blocks)) + CHAIN_SEGMENTS;
        checkpoint(2 * nodes) + TIDY_SEGMENTS + self.chain_segments_max(fs) + checkpoint(nodes) / 2 + 2
    }

    /// Bytes of free segments beyond that.
    pub(super) fn room_at_rest(&self, fs: &Fs) -> u64 {
        let segments = self.state.segments.free_count().saturating_sub(self.reserve_at_rest(fs));
        segments * u64::from(fs.storage.segment_blocks) * BLOCK_BYTES as u64
    }

    /// Blocks of content that are stored, about, when all that waits is committed.
    pub(super) fn content_blocks(&self) -> u64 {
        let (mut all, mut shared) = (Change::default(), 0);
        for c in self.contents() {
            let change = c.change();
            all.more += change.more;
            all.less = all.less.saturating_add(change.less);
            all.anew += change.anew;
            shared += c.shared();
        }
        let (waiting, alone) = self.with_waiting(|w| (blocks(&w.runs), w.alone));
        // What others own or a snapshot keeps stays where it is when it is written over, and when it goes. What is shared and not
        // committed may go, too: of a file that was emptied while its commit was under way.
        let owned = self.state.named_blocks.saturating_sub(self.state.live_blocks);
        let stays = |more: u64| if self.state.has_snapshots() { u64::MAX } else { owned + more };
        let anew = all.anew.min(stays(waiting - alone));
        let less = all.less.saturating_sub(stays(waiting));
        // What is shared counts once, whoever has it.
        (self.state.live_blocks + all.more + anew + alone).saturating_sub(shared + less)
    }

    /// Differs, but for chance, where content that waits does: for who asks again and again, nothing is looked up for it.
    pub(super) fn content_picture(&self) -> u64 {
        let one = |c: &Content| [c.change().more, c.change().less, c.change().anew, c.shared()];
        let all = self.contents().flat_map(one).fold(0_u64, |all, n| all.rotate_left(7) ^ n);
        all ^ self.state.live_blocks
    }

    /// Content that waits for its commit.
    pub(super) fn contents(&self) -> impl Iterator<Item = &Content> {
        let here = self.files.values().filter_map(|f| f.content.as_ref());
        here.chain(self.batch.aside.iter().map(|(_, c)| c))
    }

    /// What waits for its commit and is shared. It is brought together once while nothing changes.
    pub(super) fn with_waiting<T>(&self, what: impl FnOnce(&WaitingShared) -> T) -> T {
        let mut of = [self.state.applied, 0, 0, 0, 0];
        for c in self.contents().filter(|c| c.shared() > 0) {
            of[1] += 1;
            of.iter_mut().skip(2).zip(c.sharing()).for_each(|(all, one)| *all = all.wrapping_add(one));
        }
        let mut known = self.waiting_shared.borrow_mut();
        if known.of != of {
            *known = WaitingShared { of, ..self.bring_together(of[1] > 0) };
        }
        what(&known)
    }

    fn bring_together(&self, any: bool) -> WaitingShared {
        if !any || broken(Break::SharedUncounted) {
            return WaitingShared::default();
        }
        let sharing = self.contents().filter(|c| c.shared() > 0);
        let extents = sharing.flat_map(|c| c.overlay.iter()).filter_map(|(.., over)| over.extent());
        let runs = joined(extents.filter(|e| e.is_shared()).map(run_of).collect());
        // Where it cannot be read who has it, nobody.
        let kept: Vec<Run> = near(&runs).flat_map(|near| self.kept_of(near, &|_| false).unwrap_or_default()).collect();
        let alone = blocks(&without(&runs, &joined(kept)));
        WaitingShared { runs, alone, ..WaitingShared::default() }
    }

    /// Which of these blocks, in order and [`near`] each other, the live tree has by other items than those that are `left_out`, or snapshots
    /// keep. Of each block it is asked up to the first who does.
    ///
    /// # Errors
    /// Where that cannot be read.
    pub(super) fn kept_of(&self, runs: &[Run], left_out: &dyn Fn(&Key) -> bool) -> Result<Vec<Run>> {
        let (Some((first, _)), Some((_, end))) = (runs.first(), runs.last()) else { return Ok(Vec::new()) };
        let place = |(from, to): Run| (from - first) as usize..(to - first) as usize;
        let mut settled = vec![true; (end - first) as usize];
        runs.iter().for_each(|run| settled[place(*run)].fill(false));
        self.state.ask_owners(Addr(*first), &mut settled, &mut |_, back| match back.owner.death {
            0 => Ok(!left_out(&back.owner)),
            // Looked up only where it matters.
            death if self.state.snapshots.range(..Cno(death)).next().is_none() => Ok(false),
            _ => {
                let life = self.life_of(&back.owner)?;
                Ok(life.is_some_and(|(birth, death, kept)| self.state.is_kept_by_name(birth, death, kept)))
            }
        })?;
        let is_kept = |block: &u64| settled[(block - first) as usize];
        let blocks = runs.iter().flat_map(|(from, to)| *from..*to).filter(is_kept);
        Ok(joined(blocks.map(|block| (block, block + 1)).collect()))
    }

    /// Space and counts.
    pub(super) fn usage(&self, fs: &Fs) -> Usage {
        self.usage_in(fs, self.segments_meant()).0
    }

    /// Segments of the volume; what is to be moved to fewer must fit those.
    pub(super) fn segments_meant(&self) -> u64 {
        let count = self.state.segments.count();
        self.shrinks_to.map_or(count, |n| n.min(count))
    }

    /// Blocks that may hold something on so many segments: what cleaning can bring together, less what it leaves in segments that
    /// are not worth it. In small segments summaries alone take as much as that: who overwrites needs garbage to gain from besides.
    pub(super) fn usable_blocks(&self, fs: &Fs, segments: u64) -> u64 {
        let reserve =
            if broken(Break::DfFallsWithIndex) { self.reserve_segments(fs) } else { self.reserve_at_rest(fs) };
        let (segments, blocks) = (segments.saturating_sub(reserve), fs.storage.segment_blocks);
        let most = segments * u64::from(blocks - 1) / 16 * 15;
        if broken(Break::SummariesAreRoom) { most } else { most.min(segments * u64::from(worth_filling(blocks))) }
    }

    /// The same on so many segments, and blocks that are too many for them.
    pub(super) fn usage_in(&self, fs: &Fs, count: u64) -> (Usage, u64) {
        let total = count * u64::from(fs.storage.segment_blocks);
        let nodes = self.state.live.nodes() + self.state.space.nodes();
        let named = self.named_history();
        // What only snapshots keep is no more to be had than what is live.
        let (named_index, history_nodes) =
            (self.named_index_blocks(), self.state.history.iter().map(|t| t.tree.nodes()).sum::<u64>());
        let kept = named + named_index;
        let content =
            if broken(Break::DfCountsTwice) { self.state.live_blocks + self.pages } else { self.content_blocks() };
        let live = content + nodes * 2 * u64::from(NODE_BLOCKS);
        // History may be shed, so it counts as room.
        let usable = self.usable_blocks(fs, count);
        let promised = self.promised();
        let needed = live + kept + fs.kept_for(promised);
        let available = usable.saturating_sub(needed);
        let usage = Usage {
            total_blocks: total,
            live_blocks: live,
            history_blocks: self.state.history_blocks,
            snapshot_blocks: named,
            history_index_blocks: history_nodes * 2 * u64::from(NODE_BLOCKS),
            snapshot_index_blocks: named_index,
            shared_blocks: self.state.named_blocks.saturating_sub(self.state.live_blocks),
            reserved_blocks: promised,
            available_blocks: available.min(total),
            inodes: self.state.inodes,
        };
        (usage, needed.saturating_sub(usable))
    }
}

/// Where an extent lies.
pub(super) fn run_of(e: &Extent) -> Run {
    (e.addr.0, e.addr.0 + u64::from(e.blocks))
}

/// Runs in order, those together of which one look at owners may meet the owners of several: it begins with the blocks before.
pub(super) fn near(runs: &[Run]) -> impl Iterator<Item = &[Run]> {
    runs.chunk_by(|a, b| b.0 - a.1 <= u64::from(EXTENT_BLOCKS_MAX))
}

/// What of these runs, in order, lies within one, as the blocks of something that begins there with this number.
pub(super) fn within((from, to): Run, number: u64, runs: &[Run]) -> Vec<Run> {
    let first = runs.partition_point(|(_, end)| *end <= from);
    let there = runs[first..].iter().take_while(|(start, _)| *start < to);
    there.map(|(a, b)| (from.max(*a) - from + number, to.min(*b) - from + number)).collect()
}

/// In order, those that overlap or follow each other as one.
pub(super) fn joined(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable();
    let mut out: Vec<Run> = Vec::with_capacity(runs.len());
    for (from, to) in runs {
        match out.last_mut() {
            Some((_, end)) if *end >= from => *end = to.max(*end),
            _ => out.push((from, to)),
        }
    }
    out
}

/// What is in more than one of these runs.
pub(super) fn overlaps(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable();
    let (mut out, mut behind) = (Vec::new(), 0);
    for (from, to) in runs {
        if from < behind {
            out.push((from, to.min(behind)));
        }
        behind = behind.max(to);
    }
    out
}

/// What is left of runs in order when others, in order, are taken away.
pub(super) fn without(runs: &[Run], gone: &[Run]) -> Vec<Run> {
    let (mut out, mut first) = (Vec::new(), 0);
    for (mut at, end) in runs.iter().copied() {
        first += gone[first..].partition_point(|(_, to)| *to <= at);
        for (from, to) in gone[first..].iter().take_while(|(from, _)| *from < end) {
            if *from > at {
                out.push((at, *from));
            }
            at = at.max(*to);
        }
        if at < end {
            out.push((at, end));
        }
    }
    out
}

fn blocks(runs: &[Run]) -> u64 {
    runs.iter().map(|(from, to)| to - from).sum()
}

impl Fs {
    /// Space and counts of the volume.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.lock().usage(self)
    }
}

#[cfg(test)]
mod tests {
    use super::{blocks, joined, without};

    #[test]
    fn runs_are_joined_and_taken_away() {
        let runs = joined(vec![(20, 30), (0, 10), (8, 12), (12, 14), (40, 50), (22, 25)]);
        assert_eq!(runs, [(0, 14), (20, 30), (40, 50)]);
        assert_eq!(without(&runs, &[]), runs);
        let left = without(&runs, &joined(vec![(2, 4), (3, 5), (13, 22), (24, 26), (49, 90)]));
        assert_eq!(left, [(0, 2), (5, 13), (22, 24), (26, 30), (40, 49)]);
        assert_eq!(blocks(&left), 25);
        assert!(without(&runs, &[(0, 60)]).is_empty() && without(&[], &runs).is_empty());
    }

    /// Block by block it comes to the same.
    #[test]
    fn what_is_left_is_what_nobody_took() {
        let mut random = nenrin_device::Prng::new(3);
        for _ in 0..500 {
            let mut some = |n: u64| {
                let one = |from: u64, len: u64| (from, from + 1 + len);
                (0..n).map(|_| one(random.below(60), random.below(12))).collect::<Vec<_>>()
            };
            let (runs, gone) = (some(6), some(5));
            let left = without(&joined(runs.clone()), &joined(gone.clone()));
            let has = |of: &[(u64, u64)], block: u64| of.iter().any(|(a, b)| (*a..*b).contains(&block));
            for block in 0..80 {
                assert_eq!(has(&left, block), has(&runs, block) && !has(&gone, block), "{block} {runs:?} {gone:?}");
            }
            assert!(left.windows(2).all(|w| w[0].1 <= w[1].0) && left.iter().all(|(a, b)| a < b));
        }
    }
}
