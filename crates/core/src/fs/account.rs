//! What the past costs: how many blocks only certain checkpoints keep. Walks over
//! history trees, in pieces between which others work.
//!
//! Invariants
//! 1. A block of history counts once, whoever names it, and not at all while the
//!    live tree does.
//! 2. What snapshots keep is counted when it goes to history; who names or
//!    unnames a checkpoint has it counted anew. Meanwhile more is taken for kept
//!    than is, never less.
//! 3. Nodes of history trees count as kept by snapshots in proportion to the bytes
//!    of the items: of small files there is nothing else.

use super::background::SWEEP_REST_NANOS;
use super::usage::{joined, run_of, without};
use super::{Fs, Inner, locked};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::index::Value;
use crate::state::{KeptFor, KnownPast, weight};
use nenrin_format::items::{self, Backref, Checkpoint, Extent, Keep};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::{Addr, Cno, Ino, NODE_BLOCKS, NODE_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::PoisonError;

/// Items of history looked at under one clone of a tree.
pub(super) const ITEMS_AT_ONCE: usize = 4096;
/// Of these, how many under one hold of the lock.
const LIVES_AT_ONCE: usize = 64;
/// And after how many back references it is let go.
const OWNERS_AT_ONCE: u64 = 4096;
/// Time for which a tick counts what snapshots keep.
const COUNT_NANOS: u64 = 20_000_000;

/// Birth and death of an owner, and for which checkpoints it is kept.
pub(super) type Life = (Cno, Cno, KeptFor);

/// Checkpoints.
pub(super) type Kept = BTreeMap<Cno, Checkpoint>;

/// A place in the history trees.
pub(super) struct Place {
    trees: Vec<TreeId>,
    from: Key,
    /// What cannot be read is passed over: right where what is counted need not be all, or what was not met counts all the same.
    passes_over: bool,
    /// Leaves that were, or branches.
    lost: u64,
}

impl Place {
    pub(super) fn passing_over(self) -> Self {
        Self { passes_over: !broken(Break::SurveyStops), ..self }
    }

    /// The same for who counts.
    fn counting(self) -> Self {
        if broken(Break::CountStops) { self } else { self.passing_over() }
    }
}

/// Counting what snapshots keep, under way.
pub(super) struct NamedCount {
    place: Place,
    found: KnownPast,
    /// What was known when it began.
    before: KnownPast,
    /// Blocks of history then, and those that were met since.
    blocks: u64,
    met: u64,
    /// Only trees are left in which snapshots keep nothing: looked into to tell how much was not met elsewhere.
    others: bool,
}

impl NamedCount {
    /// What was found when all was looked at that can be read: of the rest snapshots may keep all. A leaf of it counts as full.
    fn end(&mut self, buried_since: u64) {
        if self.place.lost > 0 {
            self.found.named_blocks += (self.blocks + buried_since).saturating_sub(self.met);
            let bytes = self.place.lost.saturating_mul(NODE_BYTES as u64);
            self.found.named_bytes += bytes;
            self.found.bytes += bytes;
        }
    }
}

/// Something in history: an item, or blocks that several items name.
pub(super) struct Piece<'a> {
    /// The inode it belongs to, or one of them.
    pub ino: Ino,
    /// The lives of its owners.
    pub lives: &'a [Life],
    /// Blocks of content; none for items of other kinds, and for those of shared content, whose blocks come by themselves.
    pub blocks: u64,
    /// Bytes of the item; none for blocks of shared content.
    pub bytes: u64,
    /// A landmark keeps it.
    pub marked: bool,
}

/// What letting checkpoints go gives back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Blocks of content.
    pub content_blocks: u64,
    /// Blocks of index nodes, about, with both copies.
    pub index_blocks: u64,
}

impl Freed {
    /// Both.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.content_blocks + self.index_blocks
    }
}

/// So many bytes of `all` in trees with so many nodes, as blocks.
fn share_of_nodes(nodes: u64, bytes: u64, all: u64) -> u64 {
    let share = u128::from(nodes) * u128::from(bytes) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(u64::MAX).min(nodes) * 2 * u64::from(NODE_BLOCKS)
}

/// Which of these checkpoints keep something.
fn keepers<'a>(kept: &'a Kept, (birth, death, kept_for): &Life) -> impl Iterator<Item = Cno> + 'a {
    let kept_for = *kept_for;
    let range = (birth < death).then(|| kept.range(*birth..*death));
    range.into_iter().flatten().filter(move |(_, c)| kept_for.is_anchor(c)).map(|(cno, _)| *cno)
}

pub(super) fn sees(kept: &Kept, lives: &[Life]) -> bool {
    lives.iter().any(|life| keepers(kept, life).next().is_some())
}

/// What is called with what was found.
pub(super) type Each<'a> = dyn FnMut(Piece<'_>) + 'a;

impl Inner {
    /// Whether a landmark keeps an item of history.
    fn is_marked(&self, owner: &Key, (birth, death, _): Life) -> bool {
        self.state.landmarks.see(owner, birth, death)
    }

    /// Blocks of history that snapshots keep, so that no want of room frees them.
    pub(super) fn named_history(&self) -> u64 {
        if !self.state.has_snapshots() {
            return 0;
        }
        let known = if self.state.past.counted { self.state.past.named_blocks } else { u64::MAX };
        known.min(self.state.history_blocks)
    }

    /// Blocks of history trees that hold what snapshots keep, about, with both copies.
    pub(super) fn named_index_blocks(&self) -> u64 {
        let may_be = self.state.history.iter().filter(|t| self.state.may_be_named(t));
        let (nodes, past) = (may_be.map(|t| t.tree.nodes()).sum(), &self.state.past);
        let bytes = if past.counted { past.named_bytes } else { past.bytes.max(1) };
        if broken(Break::PastIndexUncounted) { 0 } else { share_of_nodes(nodes, bytes, past.bytes) }
    }

    /// The life of an owner in history; `None`: it is gone.
    pub(super) fn life_of(&self, owner: &Key) -> Result<Option<Life>> {
        for t in &self.state.history {
            if let Some(v) = t.tree.get(&self.state.cache, owner)? {
                let bad = |why| crate::state::bad_item(owner, why);
                let keep = items::keep_of(owner.kind, &v).map_err(bad)?;
                let death = Cno(owner.death);
                return Ok(Some((items::birth(&v).map_err(bad)?, death, self.state.kept_by(owner, keep, death))));
            }
        }
        Ok(None)
    }

    /// The blocks of a shared extent of history that are its to count, with the
    /// lives of all their owners: those for which it is the first by key, and which the live tree does not have.
    fn shared_lives(&self, key: &Key, e: &Extent, each: &mut Each<'_>) -> Result<()> {
        let Some(owners) = self.state.owners_unless_live(e.addr, e.blocks)? else { return Ok(()) };
        let run = |(addr, b): &(Addr, Backref)| (addr.0, addr.0 + u64::from(b.blocks));
        let (live, past): (Vec<_>, Vec<_>) = owners.iter().partition(|(_, b)| b.owner.death == 0);
        let mut known = BTreeMap::new();
        for (from, to) in without(&[run_of(e)], &joined(live.into_iter().map(run).collect())) {
            let here = past.iter().map(|owner| (run(owner), owner.1.owner)).filter(|((a, b), _)| *a < to && from < *b);
            let mut bounds: Vec<(u64, bool, Key)> =
                here.flat_map(|((a, b), owner)| [(a.max(from), true, owner), (b.min(to), false, owner)]).collect();
            bounds.sort_unstable();
            let mut owners = BTreeSet::new();
            for (n, (at, begins, owner)) in bounds.iter().enumerate() {
                if *begins {
                    owners.insert(*owner)
                } else {
                    owners.remove(owner)
                };
                let blocks = bounds.get(n + 1).map_or(0, |next| next.0 - at);
                if blocks > 0 {
                    self.lives_of(key, &owners, blocks, &mut known, each)?;
                }
            }
        }
        Ok(())
    }

    /// So many blocks that all these own, if the item at `key` is the first of them.
    fn lives_of(
        &self,
        key: &Key,
        owners: &BTreeSet<Key>,
        blocks: u64,
        known: &mut BTreeMap<Key, Option<Life>>,
        each: &mut Each<'_>,
    ) -> Result<()> {
        let (mut lives, mut marked) = (Vec::new(), false);
        for owner in owners {
            let life = match known.get(owner) {
                Some(life) => *life,
                None => *known.entry(*owner).or_insert(self.life_of(owner)?),
            };
            let Some(life) = life else { continue };
            // Another one counts them.
            if lives.is_empty() && owner != key {
                return Ok(());
            }
            lives.push(life);
            marked |= self.is_marked(owner, life);
        }
        if !lives.is_empty() {
            each(Piece { ino: Ino(key.ino), lives: &lives, blocks, bytes: 0, marked });
        }
        Ok(())
    }

    /// Gives the life of an item that was found, and those of the owners of its blocks.
    fn lives_of_item(&self, item: &Item, place: &mut Place, each: &mut Each<'_>) -> Result<()> {
        let Item { key, birth, keep, bytes, extent } = item;
        let death = Cno(key.death);
        let life = (*birth, death, self.state.kept_by(key, *keep, death));
        let marked = self.is_marked(key, life);
        let blocks = extent.as_ref().filter(|e| !e.is_shared()).map_or(0, |e| u64::from(e.blocks));
        each(Piece { ino: Ino(key.ino), lives: &[life], blocks, bytes: *bytes, marked });
        let Some(e) = extent.as_ref().filter(|e| e.is_shared()) else { return Ok(()) };
        match self.shared_lives(key, e, each) {
            Err(_) if place.passes_over => {
                place.lost = place.lost.max(1);
                Ok(())
            }
            other => other,
        }
    }
}

/// An item of history that was found.
struct Item {
    key: Key,
    birth: Cno,
    keep: Keep,
    bytes: u64,
    /// Its blocks, where it has any.
    extent: Option<Extent>,
}

/// While it is there, no item of history moves to another tree.
pub(super) struct Counting<'a>(&'a Fs);

impl<'a> Counting<'a> {
    pub(super) fn begin(fs: &'a Fs) -> Self {
        fs.lock().counting_history += 1;
        Self(fs)
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.0.lock().counting_history -= 1;
    }
}

impl Fs {
    /// Looks at some items of history, giving for each item and each run of blocks
    /// the lives of its owners; whether there are more.
    pub(super) fn look_at_history(&self, place: &mut Place, each: &mut Each<'_>) -> Result<bool> {
        let mut seen = 0;
        while seen < ITEMS_AT_ONCE && !place.trees.is_empty() {
            seen += self.look_at_tree(place, each)?.max(1);
        }
        Ok(!place.trees.is_empty())
    }

    /// Looks at some items of the last of the trees; at how many.
    fn look_at_tree(&self, place: &mut Place, each: &mut Each<'_>) -> Result<usize> {
        let Some(id) = place.trees.last().copied() else { return Ok(0) };
        let inner = self.lock();
        let Some(tree) = inner.tree(id).cloned() else {
            place.trees.pop();
            place.from = Key::first();
            return Ok(0);
        };
        let (cache, generation) = (inner.state.cache.clone(), inner.generation());
        drop(inner);
        let (mut seen, mut next, mut found) = (0, None, Vec::new());
        let (mut lost, mut lost_leaves) = (None, 0);
        let mut each_item = |k: &Key, v: &Value| {
            if seen == ITEMS_AT_ONCE {
                next = Some(*k);
                return ControlFlow::Break(());
            }
            seen += 1;
            if let Ok(birth) = items::birth(v) {
                let keep = items::keep_of(k.kind, v).unwrap_or_default();
                let extent = (k.kind == Kind::Extent).then(|| Extent::decode(v).ok()).flatten();
                let extent = extent.filter(|e| e.stored_blocks() > 0);
                found.push(Item { key: *k, birth, keep, bytes: weight(k, v), extent });
            }
            ControlFlow::Continue(())
        };
        tree.scan_over(&cache, (&place.from, &Key::last()), &mut each_item, &mut |why, _| {
            lost.get_or_insert(why);
            lost_leaves += 1;
            if place.passes_over { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        match lost {
            None => {}
            // Index checkpoints since then may have used the places of old nodes again.
            Some(_) if self.lock().generation() != generation => return Ok(ITEMS_AT_ONCE),
            Some(why) if !place.passes_over => return Err(why),
            Some(_) => place.lost += lost_leaves,
        }
        let mut rest = &found[..];
        while !rest.is_empty() {
            let inner = self.lock();
            let before = inner.state.owners_asked.get();
            let mut done = 0;
            while done < rest.len().min(LIVES_AT_ONCE) && inner.state.owners_asked.get() - before < OWNERS_AT_ONCE {
                inner.lives_of_item(&rest[done], place, each)?;
                done += 1;
            }
            rest = &rest[done..];
        }
        match next {
            Some(key) => place.from = key,
            None => {
                place.trees.pop();
                place.from = Key::first();
            }
        }
        Ok(seen)
    }

    /// All of history from this death on, now or later.
    pub(super) fn history_from(&self, first: Cno) -> Place {
        let inner = self.lock();
        let trees = inner.state.history.iter().filter(|t| t.may_hold(first)).map(|t| t.tree.id()).collect();
        Place { trees, from: Key::first(), passes_over: false, lost: 0 }
    }

    /// Nodes of the history trees that hold deaths from this one on.
    fn history_nodes_from(&self, first: Cno) -> u64 {
        self.lock().state.history.iter().filter(|t| t.may_hold(first)).map(|t| t.tree.nodes()).sum()
    }

    /// What letting these checkpoints go would free: what no other kept checkpoint
    /// sees, and is not live. Walks over the history that they see, without keeping
    /// others from working. What cannot be read of it does not count: that must keep nobody from letting the rest go. One that is
    /// not there (any more) frees nothing.
    ///
    /// # Errors
    /// Where nothing can be read.
    pub fn freed_by_dropping(&self, cnos: &[Cno]) -> Result<Freed> {
        let now = self.lock().state.kept.clone();
        let mut then = now.clone();
        for cno in cnos {
            then.remove(cno);
        }
        // A tree whose newest death was before the first of them holds nothing that they see.
        let first = cnos.iter().min().copied().unwrap_or(Cno::NEVER);
        let mut place = self.history_from(first).counting();
        let (mut blocks, mut bytes, mut all) = (0, 0, 0);
        let mut each = |p: Piece<'_>| {
            let goes = !p.marked && sees(&now, p.lives) && !sees(&then, p.lives);
            blocks += if goes { p.blocks } else { 0 };
            bytes += if goes { p.bytes } else { 0 };
            all += p.bytes;
        };
        let counting = Counting::begin(self);
        while self.look_at_history(&mut place, &mut each)? {}
        drop(counting);
        let index_blocks = share_of_nodes(self.history_nodes_from(first), bytes, all);
        Ok(Freed { content_blocks: blocks, index_blocks })
    }

    /// For each snapshot what becomes available when it alone is let go: what no other snapshot keeps. What unnamed
    /// checkpoints keep counts as available already, since it goes when room is short. What cannot be read does not count.
    ///
    /// # Errors
    /// None: what cannot be read is passed over.
    pub fn freed_by_each_snapshot(&self) -> Result<BTreeMap<Cno, Freed>> {
        let named = self.lock().named_kept();
        let mut found: BTreeMap<Cno, (u64, u64)> = named.keys().map(|cno| (*cno, (0, 0))).collect();
        let first = named.keys().next().copied().unwrap_or(Cno::NEVER);
        let mut place = self.history_from(first).counting();
        let mut all = 0;
        let mut each = |p: Piece<'_>| {
            all += p.bytes;
            let mut seen = p.lives.iter().flat_map(|life| keepers(&named, life).take(2));
            let Some(one) = seen.next() else { return };
            if seen.all(|other| other == one) {
                if let Some((blocks, bytes)) = found.get_mut(&one) {
                    *blocks += p.blocks;
                    *bytes += p.bytes;
                }
            }
        };
        let counting = Counting::begin(self);
        while self.look_at_history(&mut place, &mut each)? {}
        drop(counting);
        let nodes = self.history_nodes_from(first);
        let freed = |(content_blocks, bytes)| Freed { content_blocks, index_blocks: share_of_nodes(nodes, bytes, all) };
        Ok(found.into_iter().map(|(cno, of)| (cno, freed(of))).collect())
    }

    /// Counts on what snapshots keep for a while; an error is tried again later.
    pub(super) fn count_named_for(&self, now: u64) {
        if now < self.lock().named_rest_until {
            return;
        }
        while self.count_named_or_rest(now) && self.clock.monotonic_nanos() < now.saturating_add(COUNT_NANOS) {}
    }

    /// Counts a piece; whether there is more to do. After an error that is tried again later: until then what is known stays as it is.
    pub(super) fn count_named_or_rest(&self, now: u64) -> bool {
        self.count_named_history().unwrap_or_else(|_| {
            self.lock().named_rest_until = now.saturating_add(SWEEP_REST_NANOS);
            false
        })
    }

    /// Counts on what snapshots keep, when that has to be known anew; whether there is more to do. What cannot be read counts as kept, since
    /// df would else tell nothing as long as it is there.
    ///
    /// # Errors
    /// None: what cannot be read is passed over.
    pub fn count_named_history(&self) -> Result<bool> {
        // One piece at a time: who begins while another one counts would count all of it for himself.
        let _one = locked(&self.counting_named, self.clock.as_ref()).unwrap_or_else(PoisonError::into_inner);
        let mut inner = self.lock();
        let (named, before, blocks) = (inner.named_kept(), inner.state.past, inner.state.history_blocks);
        let under_way =
            inner.named_count.take().filter(|count| count.before.epoch == before.epoch || broken(Break::CountMixed));
        if before.counted && !before.recount {
            return Ok(false);
        }
        // From now on, or items could move to a tree that comes later.
        inner.counting_history += 1;
        let _counting = Counting(self);
        drop(inner);
        let mut count = under_way.unwrap_or_else(|| {
            let place = self.history_from(named.keys().next().copied().unwrap_or(Cno::NEVER)).counting();
            NamedCount { place, found: KnownPast::default(), before, blocks, met: 0, others: false }
        });
        let more = self.count_some(&mut count, &named)?;
        let mut inner = self.lock();
        if inner.state.past.epoch != count.before.epoch && !broken(Break::CountMixed) {
            // Counted for others, or somebody else has counted to the end.
            return Ok(true);
        }
        if more {
            inner.named_count = Some(count);
            return Ok(true);
        }
        count.end(inner.state.past.buried.saturating_sub(count.before.buried));
        // What went to history meanwhile may have been met, too: rather too much.
        inner.state.past.end_count(&count.before, &count.found);
        Ok(inner.state.past.recount)
    }

    /// Looks at a piece of what snapshots keep; whether there is more.
    fn count_some(&self, count: &mut NamedCount, named: &Kept) -> Result<bool> {
        let (found, met, is_other) = (&mut count.found, &mut count.met, count.others);
        let more = self.look_at_history(&mut count.place, &mut |p| {
            *met += p.blocks;
            found.bytes += if is_other { 0 } else { p.bytes };
            if sees(named, p.lives) {
                found.named_blocks += p.blocks;
                found.named_bytes += p.bytes;
            }
        })?;
        if more || is_other || count.place.lost == 0 {
            return Ok(more);
        }
        let first = named.keys().next().copied().unwrap_or(Cno::NEVER);
        let inner = self.lock();
        count.place.trees = inner.state.history.iter().filter(|t| !t.may_hold(first)).map(|t| t.tree.id()).collect();
        count.others = true;
        Ok(!count.place.trees.is_empty())
    }

    /// History trees that hold something.
    #[must_use]
    pub fn history_trees(&self) -> usize {
        self.lock().state.history.iter().filter(|t| t.tree.items() > 0).count()
    }

    /// Counts what snapshots keep to the end.
    pub(super) fn recount_named_history(&self) -> Result<()> {
        self.count_what_was_asked(&mut || self.count_named_history())
    }

    /// Counts piece by piece until all is done that was asked for by now: what others ask for meanwhile, again and again, is theirs.
    pub(super) fn count_what_was_asked(&self, piece: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        let asked = self.lock().state.past;
        while piece()? && (!self.lock().state.past.answers(&asked) || broken(Break::CountsForOthers)) {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::MountOptions;
    use crate::testing::{create, device, mount};

    /// Who waits for a count, while others ask for one with each piece of it. How many pieces it took: one count is two.
    fn pieces_beside_others() -> u32 {
        let fs = mount(&device(160, 0), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let ino = create(&fs, "f");
        let write = || (0..6000).for_each(|n| assert_eq!(fs.write(ino, n * 8192, &[1; 4096], 0).unwrap(), 4096));
        write();
        fs.checkpoint_create(Some(b"kept")).unwrap();
        write();
        fs.sync_all().unwrap();
        fs.recount_named_history().unwrap();
        fs.lock().state.recount_past();
        let mut pieces = 0;
        let mut piece = || {
            pieces += 1;
            assert!(pieces < 20, "a count without end");
            let more = fs.count_named_history();
            fs.lock().state.recount_past();
            more
        };
        fs.count_what_was_asked(&mut piece).unwrap();
        assert!(fs.lock().state.past.counted && fs.lock().state.past.recount);
        pieces
    }

    #[test]
    fn who_waits_for_a_count_waits_for_two_at_most() {
        let pieces = pieces_beside_others();
        assert!((2..=4).contains(&pieces), "{pieces}");
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "a count without end")]
    fn counts_for_others_are_noticed() {
        crate::breaks::with(crate::breaks::Break::CountsForOthers, pieces_beside_others);
    }
}
