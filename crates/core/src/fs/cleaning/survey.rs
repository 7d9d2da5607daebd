//! Which extents lie in the victims: their summaries claim ranges of files, the
//! trees say what is true of it.
//!
//! Invariants
//! 1. A claim proves nothing; an extent counts when a tree says where it lies.
//! 2. The live tree of a moment is looked at before the history trees of the
//!    same moment, so that an item on its way from one to the other is found. Who walks them
//!    over several moments goes the way that items move: from the live tree to the newest history tree, and on to older ones.
//! 3. What cannot be read is passed over. A victim of which something was not found so stays where it is; others do not wait for it.

use super::super::{Fs, Inner};
use super::shared::Group;
use super::{Job, Move, Stage, Victim};
use crate::breaks::{Break, broken};
use crate::index::{NodeCache, Tree};
use crate::segments::KIND_DATA;
use crate::vouched::{Claim, note_claims};
use crate::{Error, Result};
use nenrin_format::items::Extent;
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::partial::Header;
use nenrin_format::{Addr, BLOCK_BYTES, SegmentNo};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Blocks of a chain segment read at once. Partials of data are few and long: there it is one.
const CHUNK_BLOCKS: u32 = 256;
/// Claims looked up under one clone of the trees.
pub(super) const CLAIMS_AT_ONCE: usize = 128;
/// Claims of one file this close to each other are looked up together.
const GAP_BLOCKS: u64 = 8;
/// Items of a tree looked at in one step of walking everything.
const ITEMS_AT_ONCE: usize = 2048;

/// All trees that hold extents, as they are now: the live one first, then history, the newest first.
pub(super) struct Views {
    pub trees: Vec<Tree>,
    pub cache: std::sync::Arc<NodeCache>,
    generation: nenrin_format::Generation,
}

impl Fs {
    pub(super) fn views(&self) -> Result<Views> {
        let inner = self.lock_to_change()?;
        let history = inner.state.history.iter().rev().map(|t| t.tree.clone());
        let trees = [inner.state.live.clone()].into_iter().chain(history).collect();
        Ok(Views { trees, cache: inner.state.cache.clone(), generation: inner.generation() })
    }

    /// An error is none if the views were too old.
    pub(super) fn unless_old<T>(&self, views: &Views, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(v) => Ok(Some(v)),
            Err(_) if self.is_old(views)? => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether index checkpoints may have used the places of nodes of these views again.
    fn is_old(&self, views: &Views) -> Result<bool> {
        Ok(self.lock_to_change()?.generation() != views.generation)
    }

    /// Reads some summaries; then the stage of looking up begins.
    pub(super) fn read_claims(&self, job: &mut Job) -> Result<()> {
        let Stage::Summaries { victim, block } = &mut job.stage else { return Ok(()) };
        let Some((segment, v)) = job.victims.iter().nth(*victim) else {
            job.claims = merged(std::mem::take(&mut job.claims));
            job.stage = Stage::Owners { claim: 0 };
            return Ok(());
        };
        match self.claims_from(*segment, v.kind, *block, &mut job.claims) {
            Some(next) => *block = next,
            None => (*victim, *block) = (*victim + 1, 0),
        }
        Ok(())
    }

    /// Claims of the partials from `block` on, as far as one read shows them; where to go on.
    fn claims_from(&self, segment: SegmentNo, kind: u8, block: u32, claims: &mut Vec<Claim>) -> Option<u32> {
        let left = self.storage.segment_blocks.checked_sub(block).filter(|left| *left > 0)?;
        let count = if kind == KIND_DATA { 1 } else { CHUNK_BLOCKS.min(left) };
        let mut bytes = self.storage.read(Addr::new(segment, block), count).ok()?;
        let (mut at, mut newest) = (0, None);
        loop {
            let rest = bytes.get(at as usize * BLOCK_BYTES..).filter(|r| !r.is_empty());
            let Some(rest) = rest else { return Some(block + at) };
            let here = Header::peek(rest).ok().filter(|h| h.addr == Addr::new(segment, block + at));
            // What is not newer than what is before it may be of an earlier life, in units that were left out.
            let doubtful = here.as_ref().is_none_or(|h| newest.as_ref().is_none_or(|n| !h.is_newer(n)));
            if let Some(start) = doubtful.then(|| self.behind_left_out(segment, block + at, here.as_ref())).flatten() {
                return Some(start);
            }
            let head = here?;
            let whole = rest.len() / BLOCK_BYTES;
            if head.summary_blocks as usize > whole {
                if at > 0 {
                    return Some(block + at);
                }
                bytes = self.storage.read(Addr::new(segment, block), head.summary_blocks).ok()?;
                continue;
            }
            let summary = Header::decode(rest).ok()?;
            note_claims(&summary, claims);
            at += head.total_blocks();
            newest = Some(head);
        }
    }

    /// Where a partial begins that left this block out, and is newer than what is there.
    fn behind_left_out(&self, segment: SegmentNo, block: u32, there: Option<&Header>) -> Option<u32> {
        let mut places = self.storage.jumps(segment, block).filter(|_| !broken(Break::StaleBelieved));
        places.find(|start| {
            let addr = Addr::new(segment, *start);
            let head = self.storage.read(addr, 1).ok().and_then(|bytes| Header::peek(&bytes).ok());
            head.is_some_and(|h| h.addr == addr && h.has_left_out(block) && there.is_none_or(|t| h.is_newer(t)))
        })
    }

    /// Looks some claims up; then what was found is compared with the counters.
    pub(super) fn find_owners(&self, job: &mut Job) -> Result<()> {
        let Stage::Owners { claim } = &mut job.stage else { return Ok(()) };
        let end = (*claim + CLAIMS_AT_ONCE).min(job.claims.len());
        let views = self.views()?;
        let (mut found, mut lost) = (Vec::new(), None);
        let mut forks: (u64, Vec<Vec<u32>>) = (0, Vec::new());
        for c in &job.claims[*claim..end] {
            self.breathe();
            if forks.0 != c.ino || forks.1.is_empty() {
                forks = (c.ino, views.trees.iter().map(|t| forks_of(t, &views.cache, c.ino, &mut lost)).collect());
            }
            for (tree, forks) in views.trees.iter().zip(&forks.1) {
                forks
                    .iter()
                    .for_each(|fork| owners(tree, &views.cache, (c, *fork), &job.victims, &mut found, &mut lost));
            }
        }
        // Too old a view: the same claims again.
        if lost.is_some() && self.is_old(&views)? {
            return Ok(());
        }
        *claim = end;
        let done = end == job.claims.len();
        job.add(found);
        if done {
            job.stage = Stage::Compare;
        }
        Ok(())
    }

    /// Walks some of all trees, for victims whose summaries did not tell everything.
    pub(super) fn walk_trees(&self, job: &mut Job) -> Result<()> {
        let Stage::Walk { tree, from } = &mut job.stage else { return Ok(()) };
        let views = self.views()?;
        let Some((at, t)) = tree.and_then(|id| tree_or_next(&views.trees, id)) else {
            job.keep_last_found();
            job.stage = Stage::Compare;
            return Ok(());
        };
        if *tree != Some(t.id()) {
            (*tree, *from) = (Some(t.id()), Key::first());
        }
        let (mut found, mut seen, mut next) = (Vec::new(), 0, None);
        let lost = t.scan_readable(&views.cache, from, &Key::last(), &mut |k, v| {
            if seen == ITEMS_AT_ONCE {
                next = Some(*k);
                return ControlFlow::Break(());
            }
            seen += 1;
            found.extend(extent_in(t, k, v, &job.victims));
            ControlFlow::Continue(())
        });
        if lost.is_some() && self.is_old(&views)? {
            return Ok(());
        }
        match next {
            Some(key) => *from = key,
            None => (*tree, *from) = (views.trees.get(at + 1).map(Tree::id), Key::first()),
        }
        job.add(found);
        Ok(())
    }

    /// The extents in a segment that claims may mean, of whatever time. What cannot be read is passed over.
    ///
    /// # Errors
    /// When a write or flush failed earlier.
    pub(in crate::fs) fn extents_claimed(&self, segment: SegmentNo, claims: Vec<Claim>) -> Result<Vec<Extent>> {
        let views = self.views()?;
        let (mut out, mut lost) = (Vec::new(), None);
        for claim in merged(claims) {
            for tree in &views.trees {
                for fork in forks_of(tree, &views.cache, claim.ino, &mut lost) {
                    each_owner(tree, &views.cache, (&claim, fork), &mut lost, &mut |_, value| {
                        let extent = Extent::decode(value).ok().filter(|e| !e.is_unwritten());
                        out.extend(extent.filter(|e| e.addr.segment() == segment));
                    });
                }
            }
        }
        Ok(out)
    }

    /// All content that the trees name in a segment to which nothing is written: what its summaries claim, and what is shared, by its back
    /// references. `None` where that is not as many blocks as are needed there: some claims cannot be read, or others change it meanwhile.
    ///
    /// # Errors
    /// When a write or flush failed earlier.
    pub(in crate::fs) fn named_in(&self, segment: SegmentNo) -> Result<Option<Vec<Extent>>> {
        let used = |inner: &Inner| inner.state.segments.get(segment).map(|s| (s.item.kind, s.used_blocks()));
        let Some((kind, _)) = used(&*self.lock_to_change()?) else { return Ok(None) };
        let (mut claims, mut block) = (Vec::new(), Some(0));
        while let Some(from) = block {
            block = self.claims_from(segment, kind, from, &mut claims);
        }
        let mut named = self.extents_claimed(segment, claims)?;
        named.retain(|e| !e.is_shared());
        let groups = self.groups_of(segment).or_else(|e| self.bear(e).map(|()| None))?;
        let Some(groups) = groups else { return Ok(None) };
        named.extend(groups.iter().flat_map(Group::extents).cloned());
        let blocks: BTreeSet<u64> = named.iter().flat_map(|e| e.addr.0..e.addr.0 + u64::from(e.blocks)).collect();
        let needed = used(&*self.lock_to_change()?).map_or(0, |(_, used)| used as usize);
        Ok((blocks.len() == needed).then_some(named))
    }

    /// Clean leaves that moving these extents will make dirty; what cannot be read counts as one of them. Whoever moves it finds that out.
    pub(super) fn leaves_to_dirty(&self, moves: &[Move]) -> Result<u64> {
        let views = self.views()?;
        views.trees.iter().try_fold(0, |sum, tree| {
            let keys = moves.iter().filter(|m| m.tree == tree.id()).map(|m| &m.key);
            let leaves = match broken(Break::BatchStuck) {
                true => tree.clean_leaves(&views.cache, keys)?,
                false => tree.clean_leaves_about(&views.cache, keys),
            };
            Ok(sum + leaves)
        })
    }
}

/// The tree with this number, and where it is among all: the live one first, then history from the newest on. One that is gone was emptied
/// into older ones, so the next older takes its place.
fn tree_or_next(trees: &[Tree], id: TreeId) -> Option<(usize, &Tree)> {
    let mut places = trees.iter().enumerate();
    places.find(|(_, t)| t.id() == id || t.id() >= TreeId::HISTORY && t.id() < id)
}

/// The same claims in order, those that touch or nearly do as one.
fn merged(mut claims: Vec<Claim>) -> Vec<Claim> {
    claims.sort_unstable();
    let mut out: Vec<Claim> = Vec::new();
    for c in claims {
        match out.last_mut() {
            Some(last) if last.ino == c.ino && c.from <= last.to.saturating_add(GAP_BLOCKS) => {
                last.to = last.to.max(c.to);
            }
            _ => out.push(c),
        }
    }
    out
}

/// Forks of a file of which a tree has extents.
fn forks_of(tree: &Tree, cache: &NodeCache, ino: u64, lost: &mut Option<Error>) -> Vec<u32> {
    let mut forks = Vec::new();
    let mut fork = Some(0);
    while let Some(first) = fork {
        let from = Key { ino, kind: Kind::Extent, fork: first, off: 0, death: 0 };
        let last = Key { fork: u32::MAX, off: u64::MAX, death: u64::MAX, ..from };
        let mut next = None;
        let unread = tree.scan_readable(cache, &from, &last, &mut |k, _| {
            next = Some(k.fork);
            ControlFlow::Break(())
        });
        *lost = lost.take().or(unread);
        forks.extend(next);
        fork = next.and_then(|next| next.checked_add(1));
    }
    forks
}

/// The extents of a tree that a claim may mean, in a fork of the file.
fn owners(
    tree: &Tree,
    cache: &NodeCache,
    (claim, fork): (&Claim, u32),
    victims: &BTreeMap<SegmentNo, Victim>,
    found: &mut Vec<Move>,
    lost: &mut Option<Error>,
) {
    each_owner(tree, cache, (claim, fork), lost, &mut |k, v| found.extend(extent_in(tree, k, v, victims)));
}

/// Calls `each` for items of a tree that a claim may mean, in a fork of the file.
fn each_owner(
    tree: &Tree,
    cache: &NodeCache,
    (claim, fork): (&Claim, u32),
    lost: &mut Option<Error>,
    each: &mut dyn FnMut(&Key, &[u8]),
) {
    let from = Key { ino: claim.ino, kind: Kind::Extent, fork, off: claim.from, death: 0 };
    let to = Key { off: claim.to.saturating_sub(1), death: u64::MAX, ..from };
    let unread = tree.scan_readable(cache, &from, &to, &mut |k, v| {
        each(k, v);
        ControlFlow::Continue(())
    });
    *lost = lost.take().or(unread);
}

/// The item as a move, if it is an extent in one of the victims.
fn extent_in(tree: &Tree, key: &Key, value: &[u8], victims: &BTreeMap<SegmentNo, Victim>) -> Option<Move> {
    if key.kind != Kind::Extent {
        return None;
    }
    let extent = Extent::decode(value).ok()?;
    let inside = !extent.is_unwritten() && victims.contains_key(&extent.addr.segment());
    inside.then(|| Move { tree: tree.id(), key: *key, extent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::space_tests::Looked;
    use crate::recovery::{Walk, chain_of};
    use crate::segments::KIND_CHAIN;
    use crate::storage::probe;
    use crate::{Clock, MkfsOptions, MountOptions, NewInode, mkfs_on};
    use nenrin_device::{AlignedBuf, BlockDevice, MemDevice};
    use nenrin_format::partial::PartialKind;
    use nenrin_format::records::Record;
    use nenrin_format::superblock::Profile;
    use nenrin_format::{Ino, Seq};
    use std::sync::Arc;

    /// A stripe of four devices with a log that stepped over units, of which the first was slow.
    fn stepped_over() -> (Arc<Fs>, Vec<Arc<dyn BlockDevice>>) {
        let devices: Vec<Arc<dyn BlockDevice>> = (0..4).map(|_| Arc::new(MemDevice::new(32 << 20)) as _).collect();
        let clock: Arc<dyn Clock> = Arc::new(Looked::default());
        mkfs_on(&devices, &clock, &MkfsOptions { profile: Profile::Stripe, ..MkfsOptions::default() }).unwrap();
        let fs = Fs::open(devices.clone(), clock, MountOptions::default()).unwrap();
        fs.declare_slow(0, true);
        let new = NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let ino = fs.create(Ino::ROOT, b"log", &new).unwrap().ino;
        for i in 0..100u64 {
            fs.write(ino, i << 12, &[i as u8 + 1; 4096], 0).unwrap();
            fs.fsync_wait(ino).unwrap();
        }
        (fs, devices)
    }

    /// What repair finds in the log, and what the cleaner finds in its segments.
    fn seen(fs: &Fs, devices: &[Arc<dyn BlockDevice>]) -> (Vec<Header>, Vec<Claim>) {
        let newest = probe(devices[0].as_ref()).unwrap().newest().unwrap().clone();
        let (mut partials, mut claims) = (Vec::new(), Vec::new());
        let walk = Walk::new(&fs.storage, &chain_of(&newest));
        walk.each_partial(&mut |h| {
            partials.extend((h.kind == PartialKind::Chain && h.seq > Seq(1)).then(|| h.clone()));
            Ok(())
        })
        .unwrap();
        let mut segments: Vec<SegmentNo> = partials.iter().map(|h| h.addr.segment()).collect();
        segments.dedup();
        for segment in segments {
            let mut block = Some(0);
            while let Some(from) = block {
                block = fs.claims_from(segment, KIND_CHAIN, from, &mut claims);
            }
        }
        claims.sort_unstable();
        (partials, claims)
    }

    /// Before each partial that left units out one of an earlier life is put, which reaches into it: as near as it can be, and as far.
    fn what_an_earlier_life_left_hides_nothing(what: Option<Break>) {
        for near in [true, false] {
            let (fs, devices) = stepped_over();
            let (partials, claims) = seen(&fs, &devices);
            assert_eq!(claims.iter().map(|c| c.to - c.from).sum::<u64>(), 100);
            let behind: Vec<&Header> = partials.iter().filter(|h| h.left_out > 0).collect();
            assert!(behind.len() > 3);
            for h in behind {
                let before = if near { 1 } else { h.left_out };
                let addr = Addr::new(h.addr.segment(), h.addr.block() - before);
                let stale = Header { addr, seq: Seq(1), payload_blocks: before + 1, left_out: 0, ..h.clone() };
                let (summary, _) = stale.encode(&[], &[]);
                fs.storage.write(addr, Arc::new(AlignedBuf::padded(&summary))).unwrap();
            }
            let look = || seen(&fs, &devices);
            let (partials_then, claims_then) = match what {
                #[cfg(feature = "breaks")]
                Some(what) => crate::breaks::with(what, look),
                _ => look(),
            };
            let hidden = (partials_then != partials, claims_then != claims);
            assert_eq!(hidden, (what.is_some(), what.is_some()), "from repair, from the cleaner");
        }
    }

    #[test]
    fn what_lies_in_units_that_are_left_out_hides_nothing() {
        what_an_earlier_life_left_hides_nothing(None);
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn what_hides_something_is_noticed() {
        what_an_earlier_life_left_hides_nothing(Some(Break::StaleBelieved));
    }

    /// A walk that is under way in one tree goes on there or in an older one, whatever was made or emptied meanwhile.
    #[test]
    fn trees_are_walked_the_way_that_items_move() {
        let trees = |ids: &[u32]| ids.iter().map(|id| Tree::empty(TreeId(*id))).collect::<Vec<_>>();
        let then = |ids: &[u32], id: u32| tree_or_next(&trees(ids), TreeId(id)).map(|(at, t)| (at, t.id().0));
        assert_eq!(then(&[1, 20, 18, 16], 1), Some((0, 1)));
        assert_eq!(then(&[1, 20, 18, 16], 18), Some((2, 18)));
        assert_eq!(then(&[1, 22, 21, 20, 18, 16], 18), Some((4, 18)), "newer ones came");
        assert_eq!(then(&[1, 20, 16], 18), Some((2, 16)), "it was merged into an older one");
        assert_eq!(then(&[1, 20], 18), None, "so was the last");
        let device = crate::testing::device(64, 64);
        let fs = crate::testing::mount(&device, MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let ino = crate::testing::create(&fs, "f");
        for round in 0..4u8 {
            fs.write(ino, 0, &vec![round; 64 << 10], 0).unwrap();
            fs.checkpoint_create(None).unwrap();
            let mut inner = fs.lock();
            if let Some(id) = inner.state.history.last().map(|t| t.tree.id()) {
                inner.log(&Record::Seal { tree: id }, 0).unwrap();
            }
        }
        let ids: Vec<TreeId> = fs.views().unwrap().trees.iter().map(Tree::id).collect();
        assert!(ids.len() > 3 && ids[0] == TreeId::LIVE && ids[1..].is_sorted_by(|a, b| a > b), "{ids:?}");
    }

    /// An item that was merged into an older tree meanwhile is found again there, and counts once.
    #[test]
    fn what_is_found_twice_counts_once() {
        let segment = SegmentNo(5);
        let mut job = Job::of(BTreeMap::from([(segment, Victim { kind: KIND_DATA, used: 12, found: 0 })]));
        let found = |tree: u32, off: u64, at: u32| {
            let extent = crate::fs::commit::new_extent(Addr::new(segment, at), 4, 0, vec![0; 4]);
            Move { tree: TreeId(tree), key: Key { death: 3, ..Key::new(Ino(9), Kind::Extent, 0, off) }, extent }
        };
        job.add(vec![found(20, 0, 1), found(20, 4, 5)]);
        job.add(vec![found(16, 0, 1), found(16, 8, 9)]);
        job.keep_last_found();
        assert_eq!(job.moves.iter().map(|m| (m.tree.0, m.key.off)).collect::<Vec<_>>(), [(20, 4), (16, 0), (16, 8)]);
        assert_eq!(job.victims[&segment].found, 12);
    }

    #[test]
    fn claims_that_touch_become_one() {
        let c = |ino, from, to| Claim { ino, from, to };
        let got = merged(vec![c(2, 0, 4), c(1, 40, 50), c(1, 0, 4), c(1, 12, 20), c(1, 2, 3), c(1, 29, 30)]);
        assert_eq!(got, vec![c(1, 0, 20), c(1, 29, 30), c(1, 40, 50), c(2, 0, 4)]);
    }
}
