//! Cutting very many extents off a file: in steps, ahead of the change itself.
//!
//! A hole is one short record, and takes away all extents in its way when it is applied: under one hold of the lock, with as many
//! leaves of the index made dirty. So where a truncation or a hole meets many, they are cut off from the end on by records of their
//! own, few with each, which ask for room like any removal, and have what they make dirty counted before like the steps of the reaper.
//! What is left goes with the change itself.
//!
//! Invariants
//! 1. What is cut off by the holes of a change of content is little: [`EXTENTS_AT_ONCE`] extents, and no more leaves than there is room for,
//!    those of back references included.
//! 2. Each step leaves the file as it was, but shorter, or with a longer hole: what was received before is committed first, and
//!    up to the last step the file takes no other change.

use super::beside::giving_way;
use super::guard::{Awaited, Guard};
use super::space::Room;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::{At, Error, Result};
use nenrin_format::items::Extent;
use nenrin_format::key::Key;
use nenrin_format::node::NODE_ROOM_BYTES;
use nenrin_format::records::{ContentOp, Record};
use nenrin_format::{BLOCK_BYTES, Ino};
use std::ops::Range;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Extents that uncommitted holes of one file cut off at most.
const EXTENTS_AT_ONCE: u64 = 1024;
/// Extents cut off by one step.
const STEP_EXTENTS: u32 = 512;
/// Leaves that every removal has room for.
const LEAVES_UNASKED: u64 = 3;
/// Bytes of items in a leaf that was just split.
const LEAF_BYTES: u64 = NODE_ROOM_BYTES as u64 / 2;

/// A part of a file that is to hold nothing.
#[derive(Clone, Copy)]
pub(super) enum Cut {
    /// What is behind this size in bytes, where the file is longer. What empties it cuts off nothing: it begins a new stream.
    Behind(u64),
    /// These file blocks: from, and up to.
    Within(u64, u64),
}

/// What a cut takes off what is committed of a file.
#[derive(Clone, Copy, Default)]
pub(super) struct Off {
    extents: u64,
    /// They lie in so many leaves.
    leaves: u64,
}

impl Inner {
    /// The file blocks that a cut concerns.
    fn blocks_to_cut(&self, ino: Ino, cut: Cut) -> Result<Range<u64>> {
        Ok(match cut {
            Cut::Behind(size) if size > 0 && size < self.current_inode(At::Live, ino)?.size => {
                size.div_ceil(BLOCK)..u64::MAX
            }
            Cut::Behind(_) => 0..0,
            Cut::Within(from, to) => from..to,
        })
    }

    /// What a cut takes off, where that is little enough to go at once. The nodes to spare are halved so often: who cuts ahead leaves
    /// room for what comes in between.
    pub(super) fn little_to_cut(&self, fs: &Fs, ino: Ino, cut: Cut, halved: u32) -> Result<Option<Off>> {
        let blocks = self.blocks_to_cut(ino, cut)?;
        let content = self.files.get(&ino).and_then(|f| f.content.as_ref());
        let inode = self.state.inode(ino)?.ok_or(Error::NotFound)?;
        if inode.blocks == 0 || content.is_some_and(|c| c.replaced) || broken(Break::CutAtOnce) {
            return Ok(Some(Off::default()));
        }
        let (extents, bytes) = self.state.count_extents(ino, inode.fork, blocks.clone(), EXTENTS_AT_ONCE)?;
        if extents == 0 {
            return Ok(Some(Off::default()));
        }
        let few = extents + content.map_or(0, |c| c.cut_extents) <= EXTENTS_AT_ONCE;
        if !few {
            return Ok(None);
        }
        let most = LEAVES_UNASKED.max(self.nodes_to_spare(fs) >> halved);
        let leaves = bytes / LEAF_BYTES + 1 + self.state.leaves_of_owners(ino, inode.fork, blocks, most)?;
        let fits = leaves <= most;
        Ok(fits.then_some(Off { extents, leaves }))
    }

    /// The change that comes takes this off.
    pub(super) fn note_off(&mut self, fs: &Fs, ino: Ino, off: Off) -> Result<()> {
        let content = self.content_mut(fs, ino)?;
        content.cut_extents += off.extents;
        content.cut_leaves += off.leaves;
        self.count_placed(ino);
        Ok(())
    }

    /// File blocks `[from, to)` are about to be nothing any more: of what is committed there nothing counts from now on.
    pub(super) fn note_cut(&mut self, ino: Ino, from: u64, to: u64) -> Result<()> {
        let all = |key: &Key, e: &Extent| Ok(vec![(key.off, key.off + u64::from(e.blocks))]);
        let gone = self.ranges_not_written(ino, from, to, &all, &|_| false)?;
        if let Some(content) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) {
            content.cut_blocks += gone.iter().map(|(a, b)| b - a).sum::<u64>();
        }
        Ok(())
    }

    /// Cuts off the last extents of a file that has no uncommitted content, by a record.
    fn cut_last(&mut self, fs: &Fs, ino: Ino, cut: Cut) -> Result<()> {
        let (blocks, inode) = (self.blocks_to_cut(ino, cut)?, self.state.need_inode(ino)?);
        let (max, nodes) = (self.items_to_let_go(fs, STEP_EXTENTS), self.nodes_to_spare(fs));
        let at = self.state.last_extents(ino, inode.fork, blocks.clone(), max, nodes)?;
        let size = match cut {
            Cut::Behind(_) => inode.size.min(at.saturating_mul(BLOCK)),
            Cut::Within(..) => inode.size,
        };
        let (wall, editor_uid) = (fs.clock.wall(), inode.editor_uid);
        let ops = vec![ContentOp::Hole(at, blocks.end - at)];
        let record = Record::Content { ino, size, mtime: wall, ctime: wall, editor_uid, ops };
        self.log(&record, fs.clock.monotonic_nanos())
    }
}

impl Fs {
    /// [`Fs::room_and_pages`] for a change that makes this cut: what is too much for it was cut off ahead, and what is left is counted as
    /// a part of it.
    pub(super) fn room_and_pages_to_cut(
        &self,
        room: Room,
        ino: Ino,
        edges: &dyn Fn(u64) -> Vec<u64>,
        cut: Cut,
    ) -> Result<Guard<'_>> {
        let mut halved = 0;
        loop {
            // Each time more, down to what needs no room: pages that are loaded may take what the steps before left.
            halved = (halved + 1).min(u64::BITS - 1);
            self.cut_ahead(ino, cut, halved)?;
            let mut inner = self.room_and_pages(room, ino, edges)?;
            // Others may have written meanwhile.
            let Some(off) = inner.little_to_cut(self, ino, cut, 0)? else { continue };
            inner.note_off(self, ino, off)?;
            return Ok(inner);
        }
    }

    /// Cuts off what is too much to go at once. Where that ends for want of room, what was cut off is.
    fn cut_ahead(&self, ino: Ino, cut: Cut, halved: u32) -> Result<()> {
        let mut inner = self.lock_to_accept()?;
        if inner.little_to_cut(self, ino, cut, halved)?.is_some() {
            return Ok(());
        }
        inner.begin_settling(ino);
        drop(inner);
        let _way = giving_way();
        let awaited = Awaited(self);
        let done = self.cut_in_steps(ino, cut, halved);
        drop(awaited);
        let mut inner = self.lock();
        inner.end_settling(ino);
        self.wake_idle(&inner);
        done
    }

    fn cut_in_steps(&self, ino: Ino, cut: Cut, halved: u32) -> Result<()> {
        while self.cut_step(ino, cut, halved)? {}
        Ok(())
    }

    /// A step of that; whether there is more to do.
    fn cut_step(&self, ino: Ino, cut: Cut, halved: u32) -> Result<bool> {
        if self.lock().dirty_nodes() >= self.options.dirty_nodes_max {
            self.index_checkpoint(false)?;
        }
        let mut inner = self.room_to_remove()?;
        if inner.little_to_cut(self, ino, cut, halved)?.is_some() {
            return Ok(false);
        }
        if inner.files.get(&ino).is_some_and(|f| f.content.is_some()) {
            drop(inner);
            self.fsync_wait(ino)?;
            return Ok(true);
        }
        if inner.nodes_to_spare(self) == 0 {
            drop(inner);
            inner = self.room_for_nodes()?.ok_or(Error::NoSpace)?;
            // Others may have written meanwhile.
            if inner.little_to_cut(self, ino, cut, halved)?.is_some() {
                return Ok(false);
            }
            if inner.files.get(&ino).is_some_and(|f| f.content.is_some()) {
                return Ok(true);
            }
        }
        inner.counters.cut_steps += 1;
        inner.cut_last(self, ino, cut).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::KIND_DATA;
    use crate::testing::{create, device, mount};
    use crate::{AllocateMode, MountOptions, SetAttr};
    use nenrin_device::AlignedBuf;
    use nenrin_format::key::Kind;
    use nenrin_format::node::{Entries, TreeId, decode};
    use nenrin_format::wire::Reader;
    use nenrin_format::{Addr, NODE_BYTES};
    use std::sync::Arc;

    const EXTENTS: u64 = 6000;

    /// A file with a block in each second place, all of it committed.
    fn scattered(mib: usize) -> (Arc<dyn nenrin_device::BlockDevice>, Arc<Fs>, Ino) {
        let device = device(mib, 0);
        let fs = mount(&device, MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let ino = create(&fs, "f");
        (0..EXTENTS).for_each(|n| assert_eq!(fs.write(ino, n * 2 * BLOCK, &[n as u8; 4096], 0).unwrap(), 4096));
        fs.sync_all().unwrap();
        (device, fs, ino)
    }

    /// Who looks at the first extents of a file, as a truncation does to learn what it takes back, needs no leaf behind them.
    #[test]
    fn the_first_extents_are_found_without_the_last_leaf() {
        let (device, fs, ino) = scattered(128);
        fs.close().unwrap();
        drop(fs);
        let last = Key::new(ino, Kind::Extent, 0, 2 * (EXTENTS - 1));
        let bytes = device.read(0, device.geometry().bytes as usize).unwrap();
        let mut lost = 0;
        for (n, node) in bytes.windows(NODE_BYTES).step_by(BLOCK_BYTES).enumerate() {
            let Ok((_, Entries::Leaf(items))) = decode(TreeId::LIVE, node) else { continue };
            if items.iter().any(|(key, _)| *key == last) {
                let rot = Arc::new(AlignedBuf::padded(&[0xa5; BLOCK_BYTES]));
                device.write(n as u64 * BLOCK, rot).unwrap();
                lost += 1;
            }
        }
        assert!(lost >= 2, "{lost}");
        let fs = mount(&device, MountOptions { read_only: true, ..MountOptions::default() });
        let inner = fs.lock();
        assert_eq!(inner.state.extents(ino, 0, 0, u64::MAX, 10).unwrap().len(), 10);
        assert!(inner.state.extents(ino, 0, 0, u64::MAX, usize::MAX).is_err());
    }

    fn set_size(fs: &Fs, ino: Ino, size: u64) {
        fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    }

    /// The steps may be committed with the batch of somebody else, each before the next.
    #[test]
    fn privileges_go_before_what_is_cut_off() {
        let (_, fs, ino) = scattered(128);
        fs.setattr(ino, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }).unwrap();
        fs.sync_all().unwrap();
        fs.setattr(ino, &SetAttr { size: Some(4 * BLOCK), kill_privileges: true, ..SetAttr::default() }).unwrap();
        let inner = fs.lock();
        let records = inner.batch.records.iter().map(|bytes| Record::decode(&mut Reader::new(bytes)).unwrap());
        let kinds: Vec<u8> = records
            .filter_map(|r| match r {
                Record::SetAttr { mode, .. } if mode & 0o4000 == 0 => Some(0),
                Record::Content { .. } => Some(1),
                _ => None,
            })
            .collect();
        assert!(kinds.len() > 2 && kinds.is_sorted(), "{kinds:?}");
    }

    /// What others wrote here and there may be all that leaves no room for nodes, where there is room to remove: it is committed.
    #[test]
    fn what_waits_makes_room_to_cut() {
        let device = device(400, 64);
        let fs = mount(&device, MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let [ino, other] = ["f", "g"].map(|name| create(&fs, name));
        (0..60_000).for_each(|n| assert_eq!(fs.write(ino, n * 2 * BLOCK, &[1; 4096], 0).unwrap(), 4096));
        fs.checkpoint_create(None).unwrap();
        // There is a past then, where as many leaves may change.
        fs.write(ino, 0, &[2; 4096], 0).unwrap();
        fs.sync_all().unwrap();
        fs.index_checkpoint(false).unwrap();
        fs.index_checkpoint(false).unwrap();
        (0..60).for_each(|n| assert_eq!(fs.write(other, n * 2 * BLOCK, &[1; 4096], 0).unwrap(), 4096));
        let mut inner = fs.lock();
        while inner.nodes_to_spare(&fs) > 0 {
            let segment = inner.segments().allocate(KIND_DATA, fs.clock.wall()).unwrap();
            inner.segments().add_live(Addr::new(segment, 1), 63);
            inner.segments().seal(segment);
        }
        assert!(inner.has_room(&fs, Room::Removal));
        assert!(inner.little_to_cut(&fs, ino, Cut::Behind(BLOCK), 1).unwrap().is_none());
        drop(inner);
        assert!(fs.cut_step(ino, Cut::Behind(BLOCK), 1).unwrap());
        assert_eq!(fs.counters().cut_steps, 1);
    }

    /// Extents that the commit of what is received takes away.
    fn cut_by_a_commit(fs: &Fs) -> u64 {
        let before = fs.lock().state.live.items();
        fs.sync_all().unwrap();
        before - fs.lock().state.live.items()
    }

    #[test]
    fn no_commit_cuts_off_very_many_extents() {
        let (_, fs, ino) = scattered(128);
        fs.checkpoint_create(None).unwrap();
        fs.allocate(ino, AllocateMode::Punch, 4000 * BLOCK, 5000 * BLOCK).unwrap();
        assert!(cut_by_a_commit(&fs) <= EXTENTS_AT_ONCE);
        assert_eq!(fs.getattr(At::Live, ino).unwrap().blocks_512, (EXTENTS - 2500) * 8);
        // What was received before comes first.
        fs.write(ino, BLOCK, &[7; 4096], 0).unwrap();
        set_size(&fs, ino, 4 * BLOCK);
        assert!(cut_by_a_commit(&fs) <= EXTENTS_AT_ONCE);
        let expected = [vec![0; 4096], vec![7; 4096], vec![1; 4096], vec![0; 4096]].concat();
        assert_eq!(fs.read(At::Live, ino, 0, 1 << 20).unwrap(), expected);
        // Many small holes are many, too.
        let (_, fs, ino) = scattered(128);
        (1..12).for_each(|n| fs.allocate(ino, AllocateMode::Punch, n * 1000 * BLOCK, 1000 * BLOCK).unwrap());
        assert!(cut_by_a_commit(&fs) <= EXTENTS_AT_ONCE);
        assert_eq!(fs.getattr(At::Live, ino).unwrap().blocks_512, 500 * 8);
        fs.close().unwrap();
    }

    /// A file that has hardly more than holes is copied over one of many extents, from within a block on or not.
    fn sparse_over_scattered(shift: u64) -> u64 {
        let (_, fs, ino) = scattered(128);
        let sparse = create(&fs, "sparse");
        let bytes = 2 * EXTENTS * BLOCK;
        for n in 0..4 {
            fs.write(sparse, n * 3000 * BLOCK, &[8; 8192], 0).unwrap();
        }
        set_size(&fs, sparse, bytes);
        fs.sync_all().unwrap();
        let (mut done, mut most) = (shift, 0);
        while done < bytes {
            done += fs.copy_range(sparse, done, ino, done, bytes - done, 0).unwrap();
            most = most.max(cut_by_a_commit(&fs));
        }
        let mut expected = fs.read(At::Live, sparse, 0, 1 << 30).unwrap();
        expected[..shift as usize].fill(0);
        assert!(fs.read(At::Live, ino, 0, 1 << 30).unwrap() == expected, "another content, from {shift} on");
        fs.close().unwrap();
        most
    }

    #[test]
    fn no_copy_of_holes_cuts_off_very_many_extents() {
        for shift in [0, 100] {
            let cut = sparse_over_scattered(shift);
            assert!(cut <= EXTENTS_AT_ONCE, "{cut} at once, from {shift} on");
        }
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn holes_that_are_copied_unasked_are_noticed() {
        let cut = crate::breaks::with(Break::CopiedHolesUnasked, || sparse_over_scattered(0));
        assert!(cut > EXTENTS_AT_ONCE, "{cut}");
    }

    /// After each step the file is what it was, only shorter, or with a hole.
    #[test]
    fn what_is_cut_off_in_steps_may_end_after_each() {
        for cut in [Cut::Behind(4096), Cut::Within(100, 11_000)] {
            let (device, fs, ino) = scattered(128);
            let all = fs.read(At::Live, ino, 0, 1 << 30).unwrap();
            let mut steps = 0;
            while fs.cut_step(ino, cut, 1).unwrap() {
                steps += 1;
                if steps % 3 != 0 {
                    continue;
                }
                fs.sync_all().unwrap();
                let all_of_it = nenrin_device::Op::Read { offset: 0, bytes: device.geometry().bytes as usize };
                let bytes = device.submit(all_of_it).wait().unwrap().to_vec();
                let copy: Arc<dyn nenrin_device::BlockDevice> = Arc::new(nenrin_device::MemDevice::from_bytes(bytes));
                let after = mount(&copy, MountOptions::default());
                let (left, size) =
                    (after.read(At::Live, ino, 0, 1 << 30).unwrap(), after.getattr(At::Live, ino).unwrap().size);
                match cut {
                    Cut::Behind(_) => assert!(size < all.len() as u64 && left == all[..size as usize]),
                    Cut::Within(_, to) => {
                        let to = to as usize * 4096;
                        let from =
                            (0..to / 4096).rev().find(|n| left[n * 4096..][..4096] != [0; 4096]).unwrap() * 4096 + 4096;
                        assert!(size == all.len() as u64 && left[..from] == all[..from] && left[to..] == all[to..]);
                    }
                }
            }
            assert!(steps > 6, "{steps}");
            fs.close().unwrap();
        }
    }

    /// How many leaves of back references a step of a cut makes dirty for which four are to spare. The blocks lie on the device in
    /// another order than in the file.
    fn leaves_of_a_step() -> u64 {
        let blocks = 4000;
        let fs = mount(&device(256, 0), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let [from, to] = ["f", "g"].map(|name| create(&fs, name));
        for n in 0..blocks {
            fs.write(from, n * 2503 % blocks * 2 * BLOCK, &[1; 4096], 0).unwrap();
            if n % 16 == 15 {
                fs.fsync_wait(from).unwrap();
            }
        }
        let (mut done, bytes) = (0, blocks * 2 * BLOCK);
        while done < bytes {
            match fs.copy_range(from, done, to, done, bytes - done, 0).unwrap() {
                0 => break,
                n => done += n,
            }
        }
        fs.sync_all().unwrap();
        fs.index_checkpoint(false).unwrap();
        let inner = fs.lock();
        let fork = inner.state.need_inode(to).unwrap().fork;
        let at = inner.state.last_extents(to, fork, 0..u64::MAX, STEP_EXTENTS, 4).unwrap();
        let extents = inner.state.extents(to, fork, at, u64::MAX, usize::MAX).unwrap();
        assert!(!extents.is_empty());
        let slots = extents.iter().map(|(key, e)| inner.state.backref_slots(key, e.addr));
        let leaves = slots.filter_map(|slot| inner.state.space.clean_leaf(&inner.state.cache, &slot).unwrap());
        leaves.collect::<std::collections::BTreeSet<_>>().len() as u64
    }

    #[test]
    fn a_step_makes_no_more_leaves_of_back_references_dirty_than_there_is_room_for() {
        let leaves = leaves_of_a_step();
        assert!(leaves <= 4, "{leaves}");
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn steps_that_do_not_count_them_are_noticed() {
        let leaves = crate::breaks::with(Break::BackReferencesUncounted, leaves_of_a_step);
        assert!(leaves > 8, "{leaves}");
    }
}
