//! Which history trees are merged, and when: several small ones that lie next to each other become one, so that each item is
//! written again a few times in its life and not with every index checkpoint, and so that there are few trees to look into.
//! See docs/decisions/0027.
//!
//! Invariants
//! 1. Nothing is merged while history is counted or taken apart for a purpose that may meet no item twice.
//! 2. A tree that may hold what a snapshot keeps is not merged with one that cannot: what snapshots take of the index is counted
//!    by trees.
//! 3. What cannot be read is found out before the record: an error in the middle of one would end all writing. A tree of which
//!    something cannot be read is left out for a while; the others are merged.

use super::{Fs, Inner};
use crate::state::HistoryTree;
use crate::{Error, Result};
use nenrin_format::key::Key;
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// So many neighbours of about one size become one.
const TOGETHER: usize = 4;
/// The largest of them has at most so many times the items of the smallest.
const UNLIKE_MAX: u64 = 4;
/// From so many sealed trees on, those with the fewest items are merged, of whatever size; the newest grows on at twice as many.
const TREES_MAX: usize = 24;
/// Items moved by one record: for so long others wait.
const ITEMS_AT_ONCE: u32 = 256;
/// Items moved in one tick, for each run that waits to be merged.
const ITEMS_IN_TICK: u32 = 2048;
/// Of the nodes to spare, one in so many may become dirty by one record: merging is never urgent.
const SPARED: u64 = 4;
/// Fewer items at a time are not worth it.
const ITEMS_MIN: u32 = 4;
/// How long a tree is left out after an error.
const REST_NANOS: u64 = super::background::SWEEP_REST_NANOS;

/// Merging that is under way.
#[derive(Default)]
pub(super) struct Merger {
    /// The oldest of the trees, then the others.
    run: Vec<TreeId>,
    /// All of them have been moved up to here.
    behind: Option<Key>,
    /// Trees of which something cannot be read, and when (monotonic) they are tried again.
    unread: BTreeSet<TreeId>,
    retried_at: u64,
    /// Of which count of what snapshots keep they were chosen ([`crate::state::KnownPast::epoch`]).
    epoch: u64,
}

/// What counts about one sealed tree.
#[derive(Clone, Copy, Debug)]
struct Size {
    items: u64,
    /// It may hold what a snapshot keeps.
    named: bool,
    /// Something of it cannot be read.
    unread: bool,
}

/// The run of neighbours to merge: the first of [`TOGETHER`] trees, oldest first. Trees smaller than `least` count as that small.
fn run_to_merge(sizes: &[Size], least: u64) -> Option<usize> {
    let fits = |w: &[Size]| w.iter().all(|s| s.named == w[0].named && !s.unread);
    let runs = || sizes.windows(TOGETHER).enumerate().filter(|(_, w)| fits(w));
    let alike = |w: &[Size]| {
        let items = || w.iter().map(|s| s.items.max(least));
        items().max() <= items().min().map(|n| n.saturating_mul(UNLIKE_MAX))
    };
    // The newest first: these cost least, and what comes next is merged with what has become of them.
    let found = runs().rfind(|(_, w)| alike(w));
    let many = || runs().min_by_key(|(_, w)| w.iter().map(|s| s.items).sum::<u64>());
    found.or_else(|| (sizes.len() > TREES_MAX).then(many).flatten()).map(|(i, _)| i)
}

impl Merger {
    /// These are merged next.
    fn begin(&mut self, run: Vec<TreeId>, epoch: u64) {
        (self.run, self.behind, self.epoch) = (run, None, epoch);
    }
}

impl Fs {
    /// Merges some, where there is something to merge.
    pub(super) fn merge_some(&self, now: u64) -> Result<()> {
        let mut left = ITEMS_IN_TICK;
        while left > 0 {
            let mut inner = self.lock_to_change()?;
            inner.seal_newest(self, now)?;
            // Each item may lie in a leaf of its own.
            let most = (inner.nodes_to_let_go(self) / SPARED).min(u64::from(ITEMS_AT_ONCE)) as u32;
            if inner.merging_rests() || most < ITEMS_MIN {
                return Ok(());
            }
            match inner.merge_step(self.options.history_tree_items, most, now)? {
                0 => return Ok(()),
                moved => left = left.saturating_sub(moved),
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Whether somebody walks over history who must not meet anything twice, or takes it out for good.
    pub(super) fn merging_rests(&self) -> bool {
        let counts = self.counting_history > 0 || self.named_count.is_some() || self.survey.is_some();
        counts || !self.state.forgetting.is_empty()
    }

    /// The newest tree takes no more once it is large enough.
    fn seal_newest(&mut self, fs: &Fs, now: u64) -> Result<()> {
        // Those that were emptied are there until the next index checkpoint.
        let trees = self.state.history.len();
        let Some(newest) = self.state.history.last() else { return Ok(()) };
        let is_full = newest.tree.items() >= fs.options.history_tree_items && trees < 2 * TREES_MAX;
        match is_full && !newest.sealed {
            true => self.log(&Record::Seal { tree: newest.tree.id() }, now),
            false => Ok(()),
        }
    }

    /// The next trees to merge, the oldest first.
    fn run_to_merge(&self, least: u64) -> Vec<TreeId> {
        let sealed: Vec<&HistoryTree> = self.state.history.iter().filter(|t| t.sealed && t.tree.items() > 0).collect();
        let size = |t: &&HistoryTree| Size {
            items: t.tree.items(),
            named: self.state.may_be_named(t),
            unread: self.merger.unread.contains(&t.tree.id()),
        };
        let sizes: Vec<Size> = sealed.iter().map(size).collect();
        match run_to_merge(&sizes, least) {
            Some(i) => sealed[i..i + TOGETHER].iter().map(|t| t.tree.id()).collect(),
            None => Vec::new(),
        }
    }

    /// Moves some items, at most `most`; how many, 0 when there is nothing to do.
    fn merge_step(&mut self, least: u64, most: u32, now: u64) -> Result<u32> {
        // Other snapshots may need some of them and not others.
        let epoch = self.state.past.epoch;
        if now >= self.merger.retried_at {
            self.merger.unread.clear();
        }
        if self.merger.run.is_empty() || self.merger.epoch != epoch {
            self.merger.begin(self.run_to_merge(least), epoch);
        }
        let Some((into, others)) = self.merger.run.split_first() else { return Ok(0) };
        let (into, others) = (*into, others.to_vec());
        // Swept empty meanwhile.
        if self.tree(into).is_none_or(|t| t.items() == 0) {
            self.merger.begin(Vec::new(), epoch);
            return Ok(1);
        }
        let behind = match self.merger.behind {
            Some(behind) => behind,
            None => self.next_border(&others).or_else(|unread| self.leave_out(unread, now))?,
        };
        for from in others {
            let moved = self.items_below(from, into, &behind, most).or_else(|unread| self.leave_out(unread, now))?;
            if moved > 0 {
                self.merger.behind = Some(behind);
                self.log(&Record::Merge { from, into, behind, max: moved }, now)?;
                self.counters.merged_items += u64::from(moved);
                return Ok(moved);
            }
        }
        match behind == Key::last() {
            true => self.merger.begin(Vec::new(), epoch),
            false => self.merger.behind = None,
        }
        Ok(1)
    }

    /// A tree is left out for a while, since something of it cannot be read.
    fn leave_out<T>(&mut self, (tree, why): (TreeId, Error), now: u64) -> Result<T> {
        if self.merger.unread.is_empty() {
            self.merger.retried_at = now.saturating_add(REST_NANOS);
        }
        self.merger.unread.insert(tree);
        self.merger.begin(Vec::new(), self.state.past.epoch);
        Err(why)
    }

    /// Up to which key the trees are merged next: all of them up to one key, so that each node of what they become is made
    /// dirty once.
    fn next_border(&self, trees: &[TreeId]) -> std::result::Result<Key, (TreeId, Error)> {
        let largest = trees.iter().filter_map(|id| self.tree(*id)).max_by_key(|t| t.items());
        let (mut seen, mut border) = (0, Key::last());
        if let Some(tree) = largest {
            tree.scan(&self.state.cache, &Key::first(), &Key::last(), &mut |k, _| {
                if seen == ITEMS_AT_ONCE {
                    border = *k;
                    return ControlFlow::Break(());
                }
                seen += 1;
                ControlFlow::Continue(())
            })
            .map_err(|why| (tree.id(), why))?;
        }
        Ok(border)
    }

    /// How many items of a tree a record would move, at most `most`; all that it needs can be read.
    fn items_below(
        &self,
        from: TreeId,
        into: TreeId,
        behind: &Key,
        most: u32,
    ) -> std::result::Result<u32, (TreeId, Error)> {
        let (Some(from), Some(into)) = (self.tree(from), self.tree(into)) else { return Ok(0) };
        let mut keys = Vec::new();
        from.scan(&self.state.cache, &Key::first(), behind, &mut |k, _| {
            if k == behind || keys.len() == most as usize {
                return ControlFlow::Break(());
            }
            keys.push(*k);
            ControlFlow::Continue(())
        })
        .map_err(|why| (from.id(), why))?;
        let has_place = |key: &Key| {
            into.reach(&self.state.cache, key)?;
            match into.get(&self.state.cache, key)? {
                None => Ok(()),
                Some(_) => Err(Error::Corrupt(format!("two versions of one item died in checkpoint {}", key.death))),
            }
        };
        keys.iter().try_for_each(has_place).map_err(|why| (into.id(), why))?;
        Ok(keys.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_size_are_merged_and_the_newest_of_them_first() {
        // Items of each tree, the oldest first: where the run begins.
        let table: &[(&[u64], Option<usize>)] = &[
            (&[], None),
            (&[10, 10, 10], None),
            (&[10, 10, 10, 10], Some(0)),
            (&[1000, 10, 10, 10], None),
            (&[1000, 10, 10, 10, 10], Some(1)),
            (&[40, 40, 10, 10], Some(0)),
            (&[400, 400, 400, 400, 10, 10, 10], Some(0)),
            // Smaller than the least counts as that.
            (&[8, 1, 2, 3], Some(0)),
        ];
        for (items, expected) in table {
            let sizes: Vec<Size> = items.iter().map(|n| Size { items: *n, named: false, unread: false }).collect();
            assert_eq!(run_to_merge(&sizes, 8), *expected, "{items:?}");
        }
    }

    /// Trees that were chosen for the snapshots there were are chosen anew for others.
    #[test]
    fn what_was_chosen_for_other_snapshots_is_not_merged() {
        let fs = crate::testing::mount(&crate::testing::device(64, 64), crate::MountOptions::default());
        let mut inner = fs.lock();
        let run = vec![TreeId(50), TreeId(51)];
        inner.merger = Merger { run, epoch: inner.state.past.epoch + 1, ..Merger::default() };
        assert_eq!(inner.merge_step(8, 100, 0).unwrap(), 0, "there are none");
    }

    #[test]
    fn what_snapshots_keep_stays_apart() {
        let size = |named| Size { items: 10, named, unread: false };
        assert_eq!(run_to_merge(&[size(false), size(false), size(true), size(true)], 8), None);
        let sizes = [false, false, true, true, true, true].map(size);
        assert_eq!(run_to_merge(&sizes, 8), Some(2));
    }

    /// One tree that cannot be read keeps its neighbours apart, for a while, and no others.
    #[test]
    fn what_cannot_be_read_is_left_out() {
        let size = |unread| Size { items: 10, named: false, unread };
        let sizes = [false, false, false, false, true, false, false, false].map(size);
        assert_eq!(run_to_merge(&sizes, 8), Some(0));
        assert_eq!(run_to_merge(&sizes[1..], 8), None);
        let fs = crate::testing::mount(&crate::testing::device(64, 64), crate::MountOptions::default());
        let mut inner = fs.lock();
        let left_out = inner.leave_out::<()>((TreeId(50), Error::NotFound), 7);
        assert!(left_out.is_err() && inner.merger.unread.contains(&TreeId(50)));
        for (now, is_left_out) in [(6 + REST_NANOS, true), (7 + REST_NANOS, false)] {
            assert_eq!(inner.merge_step(8, 100, now).unwrap(), 0);
            assert_eq!(inner.merger.unread.contains(&TreeId(50)), is_left_out);
        }
    }

    #[test]
    fn too_many_trees_are_merged_whatever_their_size() {
        let sizes: Vec<Size> = (0..=TREES_MAX as u32)
            .map(|i| Size { items: if i % 2 == 0 { 10 } else { 100_000 + u64::from(i) }, named: false, unread: false })
            .collect();
        assert_eq!(run_to_merge(&sizes[..TREES_MAX], 8), None);
        assert_eq!(run_to_merge(&sizes, 8), Some(0));
    }
}
