//! Memory for changed index nodes: who changes something waits before they become too many.
//!
//! Names and attributes change the index when they are accepted, content when it is committed, all of a file at once: blocks written
//! here and there may make a leaf dirty with each. So what a commit of all that was received would change counts, too. Counting it
//! exactly takes a walk down the index for each leaf, which nobody is to pay for with each write; so what could be at most is
//! looked at first, and a count holds good until calls could have made it wrong.
//!
//! Invariants
//! 1. While an index checkpoint is written, [`MountOptions::dirty_nodes_max`](crate::MountOptions) more nodes become dirty by content, or
//!    twice as many by names; else twice as many by both together; but for what one call changes, and for files whose truncations were held
//!    back, which add no more than twice as many again.
//! 2. Records that wait for a commit are no more than some MiB, whoever adds to them.
//! 3. Who is held commits and writes the index at most once for what was received, so nobody waits for what cannot be committed.

use super::guard::Guard;
use super::{Fs, Inner};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::content::Content;
use crate::index::{NodeCache, Tree};
use crate::state::HistoryTree;
use nenrin_format::Ino;
use nenrin_format::key::{Key, Kind};

/// Leaves that one block, or one call, makes dirty at most: those of the inode and of the extent, and of what these replace.
const LEAVES_OF_ONE: u64 = 4;
/// So many new items make a node, at least: half of one, single blocks that lie anywhere.
pub(super) const ITEMS_IN_NEW_NODE: u64 = 256;

/// Bytes of records that wait for a commit, from which on who adds some waits for it: attributes of 64 KiB, set without end, would else
/// take all memory, and one commit more than recovery may have to read.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Chain bytes since the last root from which on such a one waits for an index checkpoint, too: with what is under way and what waits they
/// stay below the 64 MiB that recovery may read.
const WINDOW_BYTES_LONG: u64 = (64 << 20) - 2 * BATCH_BYTES_MAX as u64;

/// What a commit would make dirty, as it was last counted.
#[derive(Default)]
pub(super) struct Counted {
    leaves: u64,
    /// Calls that may have added to it since.
    calls: u64,
    /// Pages and runs that the last commit which was made for this left waiting: those of files that are held back; and items.
    left: u64,
    left_items: u64,
}

/// Leaves of a tree at keys that come in order, each counted once, but for dirty ones.
struct CleanLeaves<'a> {
    tree: &'a Tree,
    cache: &'a NodeCache,
    count: u64,
    /// Where the last one ends, if anything is behind it.
    end: Option<Key>,
    is_first: bool,
}

impl CleanLeaves<'_> {
    /// Whether a key lies in the last one.
    fn has(&self, key: &Key) -> bool {
        !self.is_first && self.end.is_none_or(|end| *key < end)
    }

    /// Counts that of a key. Where that cannot be said, as one with nothing else in it.
    fn add(&mut self, key: &Key) {
        if !self.has(key) {
            let (end, is_dirty) = self.tree.leaf_end(self.cache, key).unwrap_or((key.successor(), false));
            (self.end, self.is_first) = (end, false);
            self.count += u64::from(!is_dirty);
        }
    }

    /// Counts those of the items that committing the content of a file changes; not on beyond `max`.
    fn add_file(&mut self, ino: Ino, fork: u32, content: &Content, max: u64) {
        let mut from = 0;
        while let Some(block) = content.changed_from(from).filter(|_| self.count < max) {
            let key = Key::new(ino, Kind::Extent, fork, block);
            self.add(&key);
            match self.end {
                // What is cut off first is little, or left to the reaper.
                _ if content.replaced => break,
                Some(end) if (end.ino, end.kind, end.fork) == (key.ino, key.kind, key.fork) => {
                    from = end.off.max(block.saturating_add(1));
                }
                _ => break,
            }
        }
    }
}

fn clean_nodes(tree: &Tree) -> u64 {
    tree.nodes().saturating_sub(tree.dirty_nodes() as u64)
}

impl Inner {
    pub(super) fn dirty_nodes(&self) -> u64 {
        let history: usize = self.state.history.iter().map(|t: &HistoryTree| t.tree.dirty_nodes()).sum();
        (self.state.live.dirty_nodes() + self.state.space.dirty_nodes() + history) as u64
    }

    /// Clean nodes of the history tree that takes what is replaced.
    fn clean_history(&self) -> u64 {
        self.state.history.last().filter(|t| !t.sealed).map_or(0, |t| clean_nodes(&t.tree))
    }

    /// Whether there is much room for changes before somebody has to wait for a commit or a checkpoint.
    pub(super) fn changes_little(&self, dirty_nodes_max: u64) -> bool {
        let max = if self.checkpointing { dirty_nodes_max / 2 } else { dirty_nodes_max };
        self.dirty_nodes() < max && self.batch.bytes < BATCH_BYTES_MAX / 2
    }

    /// Whether a commit of what was received comes near to making so many nodes dirty. Asked by each call that may add to that.
    fn changes_many(&mut self, nodes: u64) -> bool {
        let waiting = self.pages + self.placed;
        self.counted.left = self.counted.left.min(waiting);
        self.counted.left_items = self.counted.left_items.min(self.items);
        let items = waiting - self.counted.left;
        let new = items.max(self.items - self.counted.left_items) / ITEMS_IN_NEW_NODE;
        let there_are = clean_nodes(&self.state.live) + self.clean_history();
        self.counted.calls += 1;
        let since = self.counted.calls.saturating_mul(LEAVES_OF_ONE);
        let owners = self.owners_to_change();
        let at_most = there_are.min(items * LEAVES_OF_ONE).min(self.counted.leaves + since) + new + owners;
        if items == 0 || at_most < nodes - nodes / 4 {
            return false;
        }
        let near = nodes / 2;
        self.counted = Counted { leaves: self.leaves_to_change(near + 1), calls: 0, ..self.counted };
        self.counted.leaves + new + owners > near
    }

    /// Clean leaves with back references that a commit of what was received makes dirty, at most.
    pub(super) fn owners_to_change(&self) -> u64 {
        if self.owners_leaves == 0 { 0 } else { self.owners_leaves.min(clean_nodes(&self.state.space)) }
    }

    /// Content is to be committed, or for good: it changes no more than has been.
    pub(super) fn uncount(&mut self, content: &mut Content) {
        self.placed -= std::mem::take(&mut content.placed);
        self.items -= std::mem::take(&mut content.items);
        self.owners_leaves -= std::mem::take(&mut content.owners_leaves);
    }

    /// A file is emptied: who removes what it had counts that.
    pub(super) fn uncount_owners(&mut self, ino: Ino) {
        if let Some(content) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) {
            self.owners_leaves -= std::mem::take(&mut content.owners_leaves);
            content.cut_leaves = 0;
        }
    }

    /// These blocks of a file are written over: what they are now may be shared. What waits for a commit already was counted when it came, and
    /// what cannot be read is not counted.
    pub(super) fn note_owners(&mut self, ino: Ino, from: u64, to: u64) {
        if !self.state.has_backrefs() || broken(Break::OwnersOfWrittenUncounted) {
            return;
        }
        let inode = self.state.inode(ino).ok().flatten().filter(|i| i.blocks > 0);
        let content = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()).filter(|c| !c.replaced);
        let (Some(inode), Some(content)) = (inode, content) else { return };
        let waits = |block: u64| {
            content.pages.contains_key(&block) || content.overlay.overlapping(block, block + 1).next().is_some()
        };
        if (from..to).all(waits) {
            return;
        }
        let shared = self.state.extents(ino, inode.fork, from, to, usize::MAX).unwrap_or_default();
        let shared = shared.into_iter().filter(|(key, e)| e.is_shared() && !waits(key.off.max(from)));
        let leaves = self.state.leaves_of_these(shared);
        content.owners_leaves += leaves;
        self.owners_leaves += leaves;
    }

    /// Clean leaves that a commit of what was received makes dirty; not counted on beyond `max`.
    fn leaves_to_change(&self, max: u64) -> u64 {
        let ready = |c: &&Content| c.held_since.is_none();
        let of_file = |ino: &Ino| self.files.get(ino).and_then(|f| f.content.as_ref()).filter(ready);
        let mut files: Vec<Ino> = self.files.keys().filter(|ino| of_file(ino).is_some()).copied().collect();
        files.sort_unstable();
        let (tree, cache) = (&self.state.live, &self.state.cache);
        let mut leaves = CleanLeaves { tree, cache, count: 0, end: None, is_first: true };
        for ino in files {
            if leaves.count >= max {
                break;
            }
            leaves.add(&Key::new(ino, Kind::Inode, 0, 0));
            if leaves.has(&Key::new(ino, Kind::Extent, u32::MAX, u64::MAX)) {
                continue;
            }
            if let (Some(content), Ok(Some(inode))) = (of_file(&ino), self.state.inode(ino)) {
                leaves.add_file(ino, inode.fork, content, max);
            }
        }
        leaves.count + leaves.count.min(self.clean_history()) + self.batch.aside.len() as u64
    }
}

impl Fs {
    /// The lock, as soon as memory holds no more changed index nodes than it may, with those that the next commit adds: what is changed
    /// while an index checkpoint writes them comes on top, however slow the device is.
    pub(super) fn lock_with_nodes(&self) -> Result<Guard<'_>> {
        let max = self.options.dirty_nodes_max;
        let mut committed = false;
        loop {
            let mut inner = self.lock_to_accept()?;
            let dirty = inner.dirty_nodes();
            let many = dirty >= 2 * max;
            let long = inner.batch.bytes > BATCH_BYTES_MAX && !committed && !broken(Break::RecordsUnbounded);
            let bound = if inner.checkpointing { max } else { 2 * max };
            if !many && !long && (committed || !inner.changes_many(bound.saturating_sub(dirty))) {
                return Ok(inner);
            }
            inner.counters.held_for_memory += 1;
            if inner.checkpointing && (!long || inner.window_bytes >= WINDOW_BYTES_LONG) {
                self.wait_idle(inner).check_alive()?;
                continue;
            }
            drop(inner);
            if !many {
                self.sync_received(false)?;
                committed = true;
                let mut inner = self.lock();
                (inner.counted.left, inner.counted.left_items) = (inner.pages + inner.placed, inner.items);
            }
            // Who led that commit may have seen to it already.
            let inner = self.lock();
            let far = long && inner.window_bytes >= WINDOW_BYTES_LONG && !inner.checkpointing;
            if inner.dirty_nodes() >= max || far {
                drop(inner);
                self.index_checkpoint(false)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{create, device, mount};
    use crate::{Fs, MountOptions, XattrMode};
    use nenrin_format::Ino;
    use nenrin_format::key::{Key, Kind};

    const BLOCKS: u64 = 60_000;

    fn write_block(fs: &Fs, ino: Ino, block: u64) {
        assert_eq!(fs.write(ino, block * 4096, &[block as u8; 4096], 0).unwrap(), 4096);
    }

    /// Nodes that are dirty, and leaves that are not and have blocks of a file which wait for a commit.
    fn dirty_with_waiting(fs: &Fs, ino: Ino) -> u64 {
        let inner = fs.lock();
        let waiting = inner.files.get(&ino).and_then(|f| f.content.as_ref());
        let blocks: Vec<u64> = waiting.map_or(Vec::new(), |c| {
            let over = c.overlay.iter().flat_map(|(from, to, _)| from..to);
            over.chain(c.pages.keys().copied()).collect()
        });
        let mut keys: Vec<Key> = blocks.iter().map(|block| Key::new(ino, Kind::Extent, 0, *block)).collect();
        keys.sort_unstable();
        inner.dirty_nodes() + inner.state.live.clean_leaves(&inner.state.cache, keys.iter()).unwrap()
    }

    /// Most of these while single blocks of a file of 46 leaves were written over here and there.
    fn most_dirty(dirty_nodes_max: u64, writes: u64) -> u64 {
        let device = device(400, 64);
        let fs = mount(&device, MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let ino = create(&fs, "f");
        (0..BLOCKS).for_each(|n| write_block(&fs, ino, n * 2));
        fs.checkpoint_create(None).unwrap();
        fs.close().unwrap();
        let fs = mount(&device, MountOptions { dirty_nodes_max, checkpoint_nanos: 0, ..MountOptions::default() });
        let mut random = nenrin_device::Prng::new(1);
        let mut after_write = || {
            write_block(&fs, ino, random.below(BLOCKS) * 2);
            dirty_with_waiting(&fs, ino)
        };
        let most = (0..writes).map(|_| after_write()).max().unwrap();
        fs.sync_all().unwrap();
        let counted = fs.counters();
        assert!(counted.index_checkpoints <= counted.held_for_memory + 2, "{counted:?}");
        fs.close().unwrap();
        most
    }

    /// What a batch will change counts before it is committed.
    #[test]
    fn who_writes_here_and_there_waits_for_index_checkpoints() {
        let most = most_dirty(6, 3000);
        assert!(most <= 2 * 6 + 2, "{most}");
    }

    /// However small the bound is, all goes on.
    #[test]
    fn the_smallest_bound_stops_nobody() {
        for max in 0..3 {
            let most = most_dirty(max, 40);
            assert!(most <= 12, "{most}");
        }
    }

    /// What is held back is in no commit: nobody commits for it again and again.
    #[test]
    fn what_is_held_back_holds_nobody_for_long() {
        let device = device(400, 64);
        let fs = mount(&device, MountOptions { dirty_nodes_max: 8, checkpoint_nanos: 0, ..MountOptions::default() });
        let ino = create(&fs, "f");
        write_block(&fs, ino, 0);
        fs.sync_all().unwrap();
        fs.setattr(ino, &crate::SetAttr { size: Some(0), ..crate::SetAttr::default() }).unwrap();
        (0..4000).for_each(|n| write_block(&fs, ino, n * 2));
        assert!(fs.lock().files.values().any(|f| f.content.as_ref().is_some_and(|c| c.held_since.is_some())));
        let before = fs.counters().held_for_memory;
        (0..100).for_each(|n| assert!(create(&fs, &format!("name {n}")) > ino));
        let held = fs.counters().held_for_memory - before;
        assert!(held < 20, "{held}");
        fs.close().unwrap();
    }

    /// Most bytes of records that waited for a commit while an attribute of 64 KiB was set again and again, and of chain since a root.
    fn most_waiting() -> (usize, u64) {
        let device = device(400, 64);
        let fs = mount(&device, MountOptions::default());
        let ino = create(&fs, "f");
        let mut most = (0, 0);
        for i in 0..1500u32 {
            let value = vec![i as u8; 64 << 10];
            fs.setxattr(ino, b"user.x", &value, XattrMode::Any).unwrap();
            let inner = fs.lock();
            most = (most.0.max(inner.batch.bytes), most.1.max(inner.window_bytes));
        }
        fs.close().unwrap();
        most
    }

    #[test]
    fn records_that_wait_are_bounded_and_so_is_what_recovery_reads() {
        let (waiting, chain) = most_waiting();
        assert!(waiting <= super::BATCH_BYTES_MAX + (1 << 20), "{waiting} bytes of records wait");
        assert!(chain <= 64 << 20, "{chain} bytes of chain since a root");
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "bytes of records wait")]
    fn records_without_end_are_noticed() {
        use crate::breaks::{Break, with};
        let (waiting, _) = with(Break::RecordsUnbounded, most_waiting);
        assert!(waiting <= super::BATCH_BYTES_MAX + (1 << 20), "{waiting} bytes of records wait");
    }

    /// Most nodes that an index checkpoint writes while a file of scattered blocks, of which a copy was made, is written over from its begin to
    /// its end, and how many there are with back references.
    fn most_dirty_of_shared(dirty_nodes_max: u64) -> (u64, u64) {
        const BLOCKS: u64 = 20_000;
        let device = device(400, 64);
        let fs = mount(&device, MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let [ino, copy] = ["f", "copy"].map(|name| create(&fs, name));
        // What lies next to each other in the file does not on the device.
        for n in 0..BLOCKS {
            write_block(&fs, ino, n * 7919 % BLOCKS);
            if n % 16 == 15 {
                fs.fsync_wait(ino).unwrap();
            }
        }
        let (mut at, end) = (0, BLOCKS * 4096);
        while at < end {
            at += fs.copy_range(ino, at, copy, at, end - at, 0).unwrap();
        }
        fs.checkpoint_create(None).unwrap();
        fs.close().unwrap();
        let fs = mount(&device, MountOptions { dirty_nodes_max, checkpoint_nanos: 0, ..MountOptions::default() });
        let nodes = fs.lock().state.space.nodes();
        let (mut before, mut most) = (fs.counters(), 0);
        for n in 0..BLOCKS / 16 {
            assert_eq!(fs.write(ino, n << 16, &[7; 1 << 16], 0).unwrap(), 1 << 16);
            if n % 32 == 31 {
                fs.sync_all().unwrap();
                fs.index_checkpoint(false).unwrap();
                let now = fs.counters();
                most = most.max((now.nodes - before.nodes) / (now.index_checkpoints - before.index_checkpoints));
                before = now;
            }
        }
        fs.close().unwrap();
        (most, nodes)
    }

    #[test]
    fn who_writes_over_what_is_shared_waits_for_index_checkpoints() {
        let (most, nodes) = most_dirty_of_shared(10);
        assert!(nodes > 60 && most < 50, "{most} of {nodes}");
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn owners_that_are_not_counted_are_noticed() {
        use crate::breaks::{Break, with};
        let (most, nodes) = with(Break::OwnersOfWrittenUncounted, || most_dirty_of_shared(10));
        assert!(most >= 50, "{most} of {nodes}");
    }

    /// Small writes to a file that is shared count little, once each, and hold nobody who writes another one when it is emptied.
    #[test]
    fn small_writes_to_what_is_shared_hold_nobody() {
        let device = device(400, 64);
        let fs = mount(&device, MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let [ino, copy, other] = ["f", "copy", "other"].map(|name| create(&fs, name));
        for n in 0..6000 {
            write_block(&fs, ino, n * 7919 % 6000);
            if n % 16 == 15 {
                fs.fsync_wait(ino).unwrap();
            }
        }
        assert_eq!(fs.copy_range(ino, 0, copy, 0, 6000 << 12, 0).unwrap(), 6000 << 12);
        fs.checkpoint_create(None).unwrap();
        fs.close().unwrap();
        let fs = mount(&device, MountOptions { dirty_nodes_max: 40, checkpoint_nanos: 0, ..MountOptions::default() });
        // Also where only a part of it is written, for which it is read.
        assert_eq!(fs.write(ino, 3000 * 4096 + 7, &[1; 100], 0).unwrap(), 100);
        let leaves = fs.lock().owners_leaves;
        assert!((1..=4).contains(&leaves), "{leaves}");
        for _ in 0..1000 {
            write_block(&fs, ino, 3000);
        }
        assert_eq!(fs.lock().owners_leaves, leaves);
        (0..20).for_each(|n| write_block(&fs, ino, n * 300));
        assert!(fs.lock().owners_leaves > leaves);
        let before = fs.counters().held_for_memory;
        fs.setattr(ino, &crate::SetAttr { size: Some(0), ..crate::SetAttr::default() }).unwrap();
        assert_eq!(fs.lock().owners_leaves, 0);
        (0..200).for_each(|n| write_block(&fs, other, n));
        let held = fs.counters().held_for_memory - before;
        assert!(held < 5, "{held}");
        fs.close().unwrap();
    }
}
