//! Moves blocks that several extents name, with all of them at once.
//!
//! Invariants
//! 1. Owners whose blocks overlap form a group. A group is copied once, to one
//!    place, and all its owners are named anew in one logical segment: a crash
//!    finds them all here or all there, still sharing.
//! 2. Who owns what is asked again before that is logged. An owner more or less,
//!    or one that changed, and the group stays where it is.
//! 3. A group whose owners make more leaves dirty than there is room for stays, and its segment is left alone until there
//!    is: others must not wait for it.

use super::super::{Fs, Inner};
use super::{Job, LOOK_BLOCKS, Move, Stage};
use crate::breaks::{Break, broken};
use crate::covered;
use crate::log::IndexLog;
use crate::state::backref_key;
use crate::{Error, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::items::{Backref, Extent};
use nenrin_format::key::Key;
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use nenrin_format::{Addr, BLOCK_BYTES, Generation, Ino, SegmentNo};
use std::sync::Arc;

/// Owners that are found, or whose back references are, under one hold of the lock.
const OWNERS_AT_ONCE: usize = 1024;
/// Owners that cost as much to look for as a block to move.
const OWNERS_PER_BLOCK: u64 = 64;

/// Shared blocks that belong together, and all extents that name them.
pub(super) struct Group {
    start: Addr,
    pub blocks: u32,
    owners: Vec<Move>,
}

impl Group {
    /// The segment it lies in.
    pub fn segment(&self) -> SegmentNo {
        self.start.segment()
    }
    /// What its owners have of it.
    pub fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.owners.iter().map(|m| &m.extent)
    }
    /// Where it begins.
    pub fn start(&self) -> Addr {
        self.start
    }
    /// Leaves that moving it makes dirty, at most: of each owner, and of its two back references.
    pub fn leaves_max(&self) -> u64 {
        3 * self.owners.len() as u64
    }
    /// What must be read to verify it: from where, and how many blocks.
    fn covered(&self) -> (Addr, u32) {
        let starts = self.owners.iter().map(|m| m.extent.addr.0.saturating_sub(u64::from(m.extent.lead)));
        let ends = self.owners.iter().map(|m| m.extent.addr.0 + u64::from(m.extent.blocks + m.extent.tail));
        let first = starts.min().unwrap_or(self.start.0);
        (Addr(first), (ends.max().unwrap_or(first) - first) as u32)
    }
}

impl Inner {
    /// The item that a back reference names, if it is what it says.
    fn owner(&self, addr: Addr, b: &Backref) -> Result<Option<Move>> {
        let live = (b.owner.death == 0).then_some(&self.state.live);
        let past = self.state.history.iter().map(|t| &t.tree).filter(|_| b.owner.death > 0);
        for tree in live.into_iter().chain(past) {
            let Some(value) = tree.get(&self.state.cache, &b.owner)? else { continue };
            let extent = Extent::decode(&value).ok();
            let fits = extent.filter(|e| e.is_shared() && e.addr == addr && e.blocks == b.blocks);
            return Ok(fits.map(|extent| Move { tree: tree.id(), key: b.owner, extent }));
        }
        Ok(None)
    }

    /// The shared blocks within a range, in groups; `None` where a back reference is wrong.
    pub(super) fn groups(&self, addr: Addr, blocks: u32) -> Result<Option<Vec<Group>>> {
        let mut groups = Vec::new();
        Ok(self.group(&mut groups, self.state.owners(addr, blocks)?)?.then_some(groups))
    }

    /// Adds owners, in the order in which they begin, to groups; whether all of them are what their back references say.
    fn group(&self, groups: &mut Vec<Group>, owners: Vec<(Addr, Backref)>) -> Result<bool> {
        for (addr, b) in owners {
            let Some(owner) = self.owner(addr, &b)? else { return Ok(false) };
            match groups.last_mut() {
                Some(g) if addr.0 < g.start.0 + u64::from(g.blocks) => {
                    g.blocks = g.blocks.max((addr.0 - g.start.0) as u32 + b.blocks);
                    g.owners.push(owner);
                }
                _ => groups.push(Group { start: addr, blocks: b.blocks, owners: vec![owner] }),
            }
        }
        Ok(true)
    }

    /// One place for a group, pinned; `None` when there is no room.
    fn place_group(&mut self, fs: &Fs, group: &Group, bytes: &[u8]) -> Result<Option<Addr>> {
        if self.cold.room_in_one(&fs.storage) < group.blocks {
            if self.state.segments.free_count() <= self.floor_beside_pages(fs) {
                return Ok(None);
            }
            self.cold.end_segment();
        }
        let Some(first) = group.owners.first().map(|m| m.key) else { return Ok(None) };
        let owner = (Ino(first.ino), first.fork, first.off);
        let (addr, blocks) = match self.allocate_cold_run(fs, owner, group.blocks) {
            Ok(got) => got,
            Err(Error::NoSpace) => return Ok(None),
            Err(e) => {
                self.fail(&e.to_string());
                return Err(e);
            }
        };
        let crcs: Vec<u32> = bytes.chunks_exact(BLOCK_BYTES).take(blocks as usize).map(nenrin_format::crc).collect();
        self.cold.describe(addr, 0, &crcs);
        if blocks < group.blocks {
            return Ok(None);
        }
        // Until records name the copy nothing else keeps its segment.
        self.state.segments.pin(addr.segment());
        fs.storage.hold_segment(addr.segment());
        Ok(Some(addr))
    }

    /// Whether exactly these own the group, as they did.
    fn still_own(&self, group: &Group) -> Result<bool> {
        let now = self.groups(group.start, group.blocks)?;
        let mut owners: Vec<Move> = now.into_iter().flatten().flat_map(|g| g.owners).collect();
        let mut then: Vec<&Move> = group.owners.iter().collect();
        owners.sort_unstable_by_key(|m| (m.tree, m.key));
        then.sort_unstable_by_key(|m| (m.tree, m.key));
        let same = |(a, b): (&Move, &&Move)| (a.tree, a.key) == (b.tree, b.key) && a.extent == b.extent;
        Ok(owners.len() == then.len() && owners.iter().zip(&then).all(same))
    }
}

impl Fs {
    /// Moves the next group of the job; how many blocks were copied, or `None` when there is no room to go on.
    pub(super) fn move_shared(&self, job: &mut Job) -> Result<Option<u64>> {
        let Stage::Shared { at } = &mut job.stage else { return Ok(Some(0)) };
        let Some(group) = job.groups.get(*at) else {
            job.stage = Stage::Done;
            return Ok(Some(0));
        };
        let counted_at = self.lock().generation();
        let moves = self.moves_to_spare()?;
        let counted = match group.leaves_max() {
            most if moves >= most || broken(Break::SharedHoldUp) => Ok(most),
            _ => self.leaves_of_groups(std::slice::from_ref(group)),
        };
        let leaves = match counted {
            Ok(leaves) => leaves,
            Err(e) => {
                self.bear(e)?;
                *at += 1;
                job.unreadable.insert(group.segment());
                return Ok(Some(LOOK_BLOCKS));
            }
        };
        if moves < leaves.max(1) {
            let most = job.beyond.entry(group.segment()).or_default();
            *most = leaves.max(*most);
            // An index checkpoint may help, once.
            if moves == 0 || broken(Break::SharedHoldUp) || !std::mem::replace(&mut job.refused, true) {
                return Ok(None);
            }
            *at += 1;
            return Ok(Some(LOOK_BLOCKS.max(group.owners.len() as u64 / OWNERS_PER_BLOCK)));
        }
        let (first, blocks) = group.covered();
        let skip = |e: &Extent| (e.addr.0 - u64::from(e.lead) - first.0) as usize * BLOCK_BYTES;
        let sound = |m: &Move, bytes: &[u8]| {
            let e = &m.extent;
            let length = covered::place(e).1 as usize * BLOCK_BYTES;
            bytes.get(skip(e)..skip(e) + length).is_some_and(|b| covered::verify(e, b).is_ok())
        };
        let all_sound = |bytes: &[u8]| group.owners.iter().all(|m| sound(m, bytes));
        let read = self.storage.read_right(first, blocks, all_sound);
        let Some(bytes) = read.ok().filter(|bytes| all_sound(bytes)) else {
            *at += 1;
            job.unreadable.insert(group.start.segment());
            return Ok(Some(u64::from(blocks)));
        };
        let from = (group.start.0 - first.0) as usize * BLOCK_BYTES;
        let bytes = &bytes[from..from + group.blocks as usize * BLOCK_BYTES];
        let Some(new) = self.lock_to_change()?.place_group(self, group, bytes)? else { return Ok(None) };
        *at += 1;
        job.refused = false;
        let moved = self.write_group(group, new, bytes, (leaves, counted_at));
        self.lock().segments().unpin(new.segment());
        self.storage.let_go_of_segment(new.segment());
        match moved {
            Ok(Some(blocks)) => job.moved += blocks,
            // Others took the room meanwhile.
            Ok(None) => {
                let most = job.beyond.entry(group.segment()).or_default();
                *most = leaves.max(*most);
            }
            Err(e) => {
                self.bear(e)?;
                job.unreadable.insert(group.segment());
            }
        }
        Ok(Some(u64::from(group.blocks)))
    }

    /// Leaves that moving these makes dirty: those of their owners, of the back references they have, and of the new ones, which
    /// lie next to each other.
    pub(super) fn leaves_of_groups(&self, groups: &[Group]) -> Result<u64> {
        let mut owners: Vec<&Move> = groups.iter().flat_map(|g| &g.owners).collect();
        owners.sort_unstable_by_key(|m| (m.tree, m.key));
        let bound = groups.iter().map(Group::leaves_max).sum();
        let views = self.views()?;
        let space = self.lock_to_change()?.state.space.clone();
        let mut old: Vec<Key> = Vec::with_capacity(owners.len());
        for some in owners.chunks(OWNERS_AT_ONCE) {
            self.breathe();
            let inner = self.lock_to_change()?;
            old.extend(some.iter().map(|m| inner.state.backref_slots(&m.key, m.extent.addr)));
        }
        old.sort_unstable();
        let counted = views.trees.iter().chain([&space]).try_fold(0, |sum, tree| {
            let of_tree = owners.iter().filter(|m| m.tree == tree.id()).map(|m| &m.key);
            let keys = of_tree.chain(old.iter().filter(|_| tree.id() == TreeId::SPACE));
            Ok(sum + tree.clean_leaves(&views.cache, keys)?)
        });
        let new = owners.len() as u64 / crate::state::ITEMS_IN_LEAF_MIN + 2;
        Ok(self.unless_old(&views, counted)?.map_or(bound, |leaves: u64| bound.min(leaves + new)))
    }

    /// Writes the copy of a group, which makes so many leaves dirty as counted at a generation, and names it; how many blocks moved,
    /// or `None` where that no longer fits.
    fn write_group(
        &self,
        group: &Group,
        new: Addr,
        bytes: &[u8],
        (leaves, counted_at): (u64, Generation),
    ) -> Result<Option<u64>> {
        let mut buf = AlignedBuf::unset(bytes.len());
        buf.copy_from_slice(bytes);
        let flushed = super::super::flushes(self.options.barrier);
        self.storage.about_to_wait();
        let written = self.owns_to_write().and_then(|()| self.storage.submit_write(new, Arc::new(buf)));
        let written = written.and_then(|t| Ok(t.wait()?));
        let written = written.and_then(|_| if flushed { self.flush_device() } else { Ok(()) });
        written.inspect_err(|e| self.lock().fail(&e.to_string()))?;
        let now = self.clock.monotonic_nanos();
        let mut inner = self.lock_to_change()?;
        if !inner.still_own(group)? && !broken(Break::MoveBlind) {
            return Ok(Some(0));
        }
        // An index checkpoint may have begun since leaves were counted: what was dirty then is dirty once more.
        let leaves = if inner.generation() == counted_at { leaves } else { group.leaves_max() };
        // The copy may have taken a segment itself.
        let own = IndexLog::nodes_in_segment(self.storage.segment_blocks) / 2;
        if inner.nodes_to_spare(self) + own < leaves {
            return Ok(None);
        }
        let place = |extent: &Extent| moved_extent(extent, group.start, new, bytes);
        let ahead = |m: &Move| inner.state.move_ahead(m.tree, &m.key, &place(&m.extent)).map(drop);
        inner.state.owners_ahead(group.start, new, group.blocks)?;
        group.owners.iter().try_for_each(ahead)?;
        for Move { tree, key, extent } in &group.owners {
            let new = place(extent);
            if !flushed {
                inner.batch.moved_blocks += u64::from(new.blocks);
            }
            inner.log(&Record::Move { tree: *tree, key: *key, old: extent.addr, new }, now)?;
        }
        inner.counters.moved_blocks += u64::from(group.blocks);
        Ok(Some(u64::from(group.blocks)))
    }

    /// All groups of a segment; `None` where a back reference is wrong. Others get the volume in between: what they change of a group is
    /// seen when it is to be moved.
    pub(super) fn groups_of(&self, segment: SegmentNo) -> Result<Option<Vec<Group>>> {
        let (start, mut groups) = (Addr::new(segment, 0), Vec::new());
        let mut from = Some(backref_key(start, 0));
        while let Some(key) = from {
            let inner = self.lock_to_change()?;
            let (owners, next) =
                inner.state.some_owners(&key, start.add(self.storage.segment_blocks), OWNERS_AT_ONCE)?;
            if !inner.group(&mut groups, owners)? {
                return Ok(None);
            }
            from = next;
        }
        Ok(Some(groups))
    }
}

/// An extent of a group, whose blocks are `bytes` from `start` on, at the group's new place.
fn moved_extent(e: &Extent, start: Addr, new: Addr, bytes: &[u8]) -> Extent {
    let skip = (e.addr.0 - start.0) as usize;
    let addr = new.add(skip as u32);
    if e.lead == 0 && e.tail == 0 {
        return Extent { addr, ..e.clone() };
    }
    // The blocks around that its checksums cover stay behind.
    let own = &bytes[skip * BLOCK_BYTES..(skip + e.blocks as usize) * BLOCK_BYTES];
    let crcs = own.chunks_exact(BLOCK_BYTES).map(nenrin_format::crc).collect();
    Extent { addr, granule_shift: 0, lead: 0, tail: 0, crcs, ..e.clone() }
}
