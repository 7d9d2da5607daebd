//! What the volume holds, and what is available: df. Decision 0011 says what it promises.
//!
//! Invariants
//! 1. What waits for its commit counts as it will count then, each block once.
//! 2. What is let go of counts as available before it is swept, since who lacks room has it swept first.

use super::account::{Kept, sees};
use super::cleaning::worth_filling;
use super::space::{CHAIN_SEGMENTS, CHECKPOINT_NODES, TIDY_SEGMENTS};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::content::{Change, Content};
use crate::log::index::IndexLog;
use crate::{Result, Usage};
use nenrin_format::items::Extent;
use nenrin_format::{Addr, BLOCK_BYTES, NODE_BLOCKS};

/// Addresses of blocks: from, and up to.
pub(super) type Run = (u64, u64);

impl Inner {
    /// What [`Inner::reserve_segments`] comes back to when all that waits is written, which who lacks room has done first.
    /// df counts with this: with what it is at the moment it would fall with each change of the index, and rise again.
    fn reserve_at_rest(&self, fs: &Fs) -> u64 {
        let nodes = CHECKPOINT_NODES + u64::from(self.superblock.root_blocks / NODE_BLOCKS);
        let checkpoint =
            |nodes: u64| 2 * nodes.div_ceil(IndexLog::nodes_in_segment(fs.storage.segment_blocks)) + CHAIN_SEGMENTS;
        let chain = fs.window_bytes_max().div_ceil(u64::from(fs.storage.segment_blocks) * BLOCK_BYTES as u64);
        checkpoint(2 * nodes) + TIDY_SEGMENTS + chain + checkpoint(nodes) / 2 + 2
    }

    /// Bytes of free segments beyond that.
    pub(super) fn room_at_rest(&self, fs: &Fs) -> u64 {
        let segments = self.state.segments.free_count().saturating_sub(self.reserve_at_rest(fs));
        segments * u64::from(fs.storage.segment_blocks) * BLOCK_BYTES as u64
    }

    /// Blocks of content that are stored, about, when all that waits is committed.
    pub(super) fn content_blocks(&self) -> u64 {
        let (mut all, mut waiting) = (Change::default(), 0);
        for c in self.contents() {
            let change = c.change();
            all.more += change.more;
            all.less = all.less.saturating_add(change.less);
            all.anew += change.anew;
            waiting += if broken(Break::CopiesForgotten) { 0 } else { c.shared() };
        }
        // What others own or a snapshot keeps stays where it is when it is written over or goes.
        let shared = self.state.named_blocks.saturating_sub(self.state.live_blocks) + waiting;
        let stays = if self.state.has_snapshots() { u64::MAX } else { shared };
        let less = all.less.saturating_sub(stays);
        (self.state.live_blocks + all.more + all.anew.min(stays) + self.waiting_shared_blocks()).saturating_sub(less)
    }

    /// Content that waits for its commit.
    pub(super) fn contents(&self) -> impl Iterator<Item = &Content> {
        let here = self.files.values().filter_map(|f| f.content.as_ref());
        here.chain(self.batch.aside.iter().map(|(_, c)| c))
    }

    /// What waits for its commit and is shared: each block once, whoever has it.
    pub(super) fn waiting_shared(&self) -> Vec<Run> {
        let sharing = self.contents().filter(|c| c.shared() > 0);
        let extents = sharing.flat_map(|c| c.overlay.iter()).filter_map(|(.., over)| over.extent());
        joined(extents.filter(|e| e.is_shared()).map(run_of).collect())
    }

    /// How much of that nobody has besides: what it is a copy of waits, too, or was removed, or written over.
    fn waiting_shared_blocks(&self) -> u64 {
        let waiting = self.waiting_shared();
        if waiting.is_empty() || broken(Break::SharedUncounted) {
            return 0;
        }
        let named = self.named_kept();
        // Where nothing can be learned of a block, it counts.
        let alone = |run: Run| blocks(&without(vec![run], &self.kept_in(run, &named).unwrap_or_default()));
        waiting.into_iter().map(alone).sum()
    }

    /// Which of these blocks the live tree has, or snapshots keep; in order, without overlap.
    fn kept_in(&self, (from, to): Run, named: &Kept) -> Result<Vec<Run>> {
        let mut kept = Vec::new();
        for (addr, back) in self.state.owners(Addr(from), (to - from) as u32)? {
            let keeps = match back.owner.death {
                0 => true,
                _ => self.life_of(&back.owner)?.is_some_and(|life| sees(named, &[life])),
            };
            if keeps {
                kept.push((addr.0, addr.0 + u64::from(back.blocks)));
            }
        }
        Ok(joined(kept))
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

/// In order, those that overlap or follow each other as one.
fn joined(mut runs: Vec<Run>) -> Vec<Run> {
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

/// What is left of runs in order when others, in order, are taken away.
fn without(runs: Vec<Run>, gone: &[Run]) -> Vec<Run> {
    let (mut out, mut first) = (Vec::new(), 0);
    for (mut at, end) in runs {
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
        assert_eq!(without(runs.clone(), &[]), runs);
        let left = without(runs.clone(), &joined(vec![(2, 4), (3, 5), (13, 22), (24, 26), (49, 90)]));
        assert_eq!(left, [(0, 2), (5, 13), (22, 24), (26, 30), (40, 49)]);
        assert_eq!(blocks(&left), 25);
        assert!(without(runs.clone(), &[(0, 60)]).is_empty() && without(Vec::new(), &runs).is_empty());
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
            let left = without(joined(runs.clone()), &joined(gone.clone()));
            let has = |of: &[(u64, u64)], block: u64| of.iter().any(|(a, b)| (*a..*b).contains(&block));
            for block in 0..80 {
                assert_eq!(has(&left, block), has(&runs, block) && !has(&gone, block), "{block} {runs:?} {gone:?}");
            }
            assert!(left.windows(2).all(|w| w[0].1 <= w[1].0) && left.iter().all(|(a, b)| a < b));
        }
    }
}
