//! What the past costs: how many blocks only certain checkpoints keep. Walks over
//! history trees, in pieces between which others work.
//!
//! Invariants
//! 1. A block of history counts once, whoever names it, and not at all while the
//!    live tree does.
//! 2. What snapshots keep is counted when it goes to history; who names or
//!    unnames a checkpoint has it counted anew. Meanwhile more is taken for kept
//!    than is, never less.

use super::{Fs, Inner};
use crate::state::KeptFor;
use crate::{Error, Result};
use nenrin_format::items::{self, Checkpoint, Extent};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::{Addr, Cno, Ino};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Items of history looked at under one clone of a tree.
const ITEMS_AT_ONCE: usize = 4096;

/// Birth and death of an owner, and for which checkpoints it is kept.
pub(super) type Life = (Cno, Cno, KeptFor);

/// Checkpoints.
pub(super) type Kept = BTreeMap<Cno, Checkpoint>;

/// A place in the history trees.
pub(super) struct Place {
    trees: Vec<TreeId>,
    from: Key,
}

/// Counting what snapshots keep, under way.
pub(super) struct NamedCount {
    place: Place,
    blocks: u64,
    /// What had gone to history, and is kept by snapshots, when it began.
    before: u64,
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

/// What is called with an owner, the lives of the owners of some blocks, how many those are, and whether a landmark keeps them.
pub(super) type Each<'a> = dyn FnMut(Ino, &[Life], u64, bool) + 'a;

impl Inner {
    /// Whether a landmark keeps an item of history.
    fn is_marked(&self, owner: &Key, (birth, death, _): Life) -> bool {
        self.state.landmarks.see(owner, birth, death)
    }

    /// Blocks of history that snapshots keep, so that no want of room frees them.
    pub(super) fn named_history(&self) -> u64 {
        if !self.state.kept.values().any(Checkpoint::is_named) {
            return 0;
        }
        let known = if self.named_stale { u64::MAX } else { self.state.named_history };
        known.min(self.state.history_blocks)
    }

    /// Nodes of history trees that hold what snapshots keep, about.
    pub(super) fn named_history_nodes(&self) -> u64 {
        let nodes: u64 = self.state.history.iter().map(|t| t.tree.nodes()).sum();
        let (named, all) = (self.named_history(), self.state.history_blocks);
        if all == 0 || named == 0 { 0 } else { (u128::from(nodes) * u128::from(named) / u128::from(all)) as u64 }
    }

    fn life_of(&self, owner: &Key) -> Result<Option<Life>> {
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
    /// lives of all their owners.
    fn shared_lives(&self, key: &Key, e: &Extent, each: &mut Each<'_>) -> Result<()> {
        let owners = self.state.owners(e.addr, e.blocks)?;
        let mut lives: Vec<(Addr, u32, Key, Option<Life>)> = Vec::new();
        for (addr, b) in &owners {
            let life = if b.owner.death == 0 {
                None
            } else {
                let Some(life) = self.life_of(&b.owner)? else { continue };
                Some(life)
            };
            lives.push((*addr, b.blocks, b.owner, life));
        }
        for block in e.addr.0..e.addr.0 + u64::from(e.blocks) {
            let covers = |a: &Addr, n: u32| (a.0..a.0 + u64::from(n)).contains(&block);
            let here: Vec<_> = lives.iter().filter(|(a, n, ..)| covers(a, *n)).collect();
            let first = here.iter().map(|(_, _, owner, _)| owner).min();
            if first == Some(key) && here.iter().all(|(.., life)| life.is_some()) {
                let lives: Vec<Life> = here.iter().filter_map(|(.., life)| *life).collect();
                let marked = here.iter().any(|(_, _, owner, life)| life.is_some_and(|l| self.is_marked(owner, l)));
                each(Ino(key.ino), &lives, 1, marked);
            }
        }
        Ok(())
    }
}

impl Fs {
    /// Looks at some items of history, giving for each run of blocks the lives
    /// of its owners; whether there are more.
    pub(super) fn look_at_history(&self, place: &mut Place, each: &mut Each<'_>) -> Result<bool> {
        let Some(id) = place.trees.last().copied() else { return Ok(false) };
        let inner = self.lock();
        let Some(tree) = inner.tree(id).cloned() else {
            place.trees.pop();
            place.from = super::background::first_key();
            return Ok(!place.trees.is_empty());
        };
        let (cache, generation) = (inner.state.cache.clone(), inner.generation());
        drop(inner);
        let (mut seen, mut next, mut found) = (0, None, Vec::new());
        let scanned = tree.scan(&cache, &place.from, &super::cleaning::last_key(), &mut |k, v| {
            if seen == ITEMS_AT_ONCE {
                next = Some(*k);
                return ControlFlow::Break(());
            }
            seen += 1;
            if k.kind == Kind::Extent {
                let keep = items::keep_of(k.kind, v).unwrap_or_default();
                found.extend(Extent::decode(v).ok().filter(|e| e.stored_blocks() > 0).map(|e| (*k, e, keep)));
            }
            ControlFlow::Continue(())
        });
        match scanned {
            Ok(()) => {}
            // Index checkpoints since then may have used the places of old nodes again.
            Err(_) if self.lock().generation() != generation => return Ok(true),
            Err(e) => return Err(e),
        }
        for (key, e, keep) in found {
            if e.is_shared() {
                self.lock().shared_lives(&key, &e, each)?;
            } else {
                let (inner, death) = (self.lock(), Cno(key.death));
                let life = (e.birth, death, inner.state.kept_by(&key, keep, death));
                let marked = inner.is_marked(&key, life);
                drop(inner);
                each(Ino(key.ino), &[life], u64::from(e.blocks), marked);
            }
        }
        match next {
            Some(key) => place.from = key,
            None => {
                place.trees.pop();
                place.from = super::background::first_key();
            }
        }
        Ok(!place.trees.is_empty())
    }

    /// All of history from this death on.
    pub(super) fn history_from(&self, first: Cno) -> Place {
        let inner = self.lock();
        let trees = inner.state.history.iter().filter(|t| t.deaths.1 > first).map(|t| t.tree.id()).collect();
        Place { trees, from: super::background::first_key() }
    }

    /// Blocks of content that letting these checkpoints go would free: those
    /// that no other kept checkpoint sees, and that are not live. Walks over
    /// the history that they see, without keeping others from working.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when one is unknown; an index node that cannot be read.
    pub fn freed_by_dropping(&self, cnos: &[Cno]) -> Result<u64> {
        let now = self.lock().state.kept.clone();
        if let Some(cno) = cnos.iter().find(|c| !now.contains_key(c)) {
            return Err(Error::Checkpoint(format!("there is no checkpoint {cno}")));
        }
        let mut then = now.clone();
        then.retain(|cno, _| !cnos.contains(cno));
        let mut blocks = 0;
        // A tree whose newest death was before the first of them holds nothing that they see.
        let mut place = self.history_from(cnos.iter().min().copied().unwrap_or(Cno::NEVER));
        let mut each = |_, lives: &[Life], n, marked: bool| {
            let goes = !marked && sees(&now, lives) && !sees(&then, lives);
            blocks += if goes { n } else { 0 };
        };
        while self.look_at_history(&mut place, &mut each)? {}
        Ok(blocks)
    }

    /// For each snapshot the blocks of content that letting it go alone would free.
    ///
    /// # Errors
    /// An index node that cannot be read.
    pub fn freed_by_each_snapshot(&self) -> Result<BTreeMap<Cno, u64>> {
        let inner = self.lock();
        let kept = inner.state.kept.clone();
        let named = inner.state.kept.iter().filter(|(_, c)| c.is_named()).map(|(cno, _)| (*cno, 0));
        let mut freed: BTreeMap<Cno, u64> = named.collect();
        drop(inner);
        let Some(first) = freed.keys().next().copied() else { return Ok(freed) };
        let mut place = self.history_from(first);
        let mut each = |_, lives: &[Life], n: u64, marked: bool| {
            if marked {
                return;
            }
            let mut seen = lives.iter().flat_map(|life| keepers(&kept, life).take(2));
            let Some(one) = seen.next() else { return };
            if seen.all(|other| other == one) {
                if let Some(blocks) = freed.get_mut(&one) {
                    *blocks += n;
                }
            }
        };
        while self.look_at_history(&mut place, &mut each)? {}
        Ok(freed)
    }

    /// Counts on what snapshots keep, when that has to be known anew; whether there is more to do.
    ///
    /// # Errors
    /// An index node that cannot be read.
    pub fn count_named_history(&self) -> Result<bool> {
        let mut inner = self.lock();
        if !inner.named_stale {
            return Ok(false);
        }
        let mut named = inner.state.kept.clone();
        named.retain(|_, c| c.is_named());
        let before = inner.state.named_history;
        let under_way = inner.named_count.take();
        drop(inner);
        let mut count = under_way.unwrap_or_else(|| NamedCount {
            place: self.history_from(named.keys().next().copied().unwrap_or(Cno::NEVER)),
            blocks: 0,
            before,
        });
        let blocks = &mut count.blocks;
        let more = self.look_at_history(&mut count.place, &mut |_, lives, n, _| {
            *blocks += if sees(&named, lives) { n } else { 0 }
        })?;
        let mut inner = self.lock();
        let named_now = inner.state.kept.iter().filter(|(_, c)| c.is_named()).map(|(cno, _)| *cno);
        if named_now.ne(named.keys().copied()) {
            // Counted for others: from the beginning.
            return Ok(true);
        }
        if more {
            inner.named_count = Some(count);
            return Ok(true);
        }
        // What went to history meanwhile may have been met, too: rather too much.
        let since = inner.state.named_history.saturating_sub(count.before);
        inner.state.named_history = count.blocks + since;
        inner.named_stale = false;
        Ok(false)
    }

    /// Counts what snapshots keep to the end.
    pub(super) fn recount_named_history(&self) -> Result<()> {
        {
            let mut inner = self.lock();
            inner.named_stale = true;
            inner.named_count = None;
        }
        while self.count_named_history()? {}
        Ok(())
    }
}
