//! Checkpoints, and the history trees that keep what only they see.
//!
//! What dies goes to the newest tree, which is small: items of what is overwritten here and there come in any order, and each of
//! its leaves is written again with each index checkpoint. Larger trees come from merging those of one size, in order of keys.
//! Which are merged, and when, is for `fs/merging.rs`; see docs/decisions/0027.
//!
//! Invariants
//! 1. An item moves in one direction: from the live tree to the newest history tree, and from there to older ones. So who looks at
//!    the live tree first, and at the others from the newest to the oldest, misses none.
//! 2. Only the newest tree may be open; items go from one sealed tree to another.

use super::{State, checkpoint_key};
use crate::breaks::{Break, broken};
use crate::index::{Tree, Value};
use crate::{Error, Result};
use nenrin_format::Cno;
use nenrin_format::items::{CHECKPOINT_NAMED, Checkpoint};
use nenrin_format::key::Key;
use nenrin_format::node::TreeId;
use std::ops::ControlFlow;

/// One history tree.
#[derive(Clone)]
pub struct HistoryTree {
    /// Its items, keyed with their death.
    pub tree: Tree,
    /// Smallest and largest death it holds.
    pub deaths: (Cno, Cno),
    /// Nothing is added any more.
    pub sealed: bool,
}

/// What was looked at to be swept.
#[derive(Default)]
pub struct Looked {
    /// How many items it is, for a record: not all where one could not be read.
    pub items: u32,
    /// Where to go on, unless that was the end of the tree.
    pub go_on: Option<Key>,
    /// What could not be read, and is passed over.
    pub lost: Option<Error>,
    /// What nobody sees, with how many items are before it.
    pub(super) gone: Vec<(u32, Key, Value)>,
}

impl HistoryTree {
    /// Whether it holds what died after `first`, or may come to.
    pub fn may_hold(&self, first: Cno) -> bool {
        self.deaths.1 > first || !self.sealed
    }
}

impl State {
    /// An item goes to the newest history tree.
    pub(super) fn bury(&mut self, key: Key, value: Value) -> Result<()> {
        let death = Cno(key.death);
        let full = |t: &HistoryTree| t.sealed;
        if self.history.last().is_none_or(full) {
            let id = TreeId(self.next_tree.max(TreeId::HISTORY.0));
            self.next_tree = id.0.saturating_add(1);
            self.history.push(HistoryTree { tree: Tree::empty(id), deaths: (death, death), sealed: false });
        }
        let Some(newest) = self.history.last_mut() else {
            return Err(Error::Corrupt("no history tree".into()));
        };
        newest.deaths = (newest.deaths.0.min(death), newest.deaths.1.max(death));
        match newest.tree.insert(&self.cache, key, value.clone())? {
            None => {
                self.weigh_buried(&key, &value);
                Ok(())
            }
            Some(_) => Err(Error::Corrupt(format!("two versions of one item died in checkpoint {death}"))),
        }
    }

    /// Whether what users see may be in no checkpoint that is kept: what changed behind the newest one left history with a death behind
    /// it. (So does what the background takes away of removed files, and then a checkpoint may be cut for nothing.)
    pub fn changed_since_kept(&self) -> bool {
        match self.kept.last_key_value() {
            Some((newest, _)) => self.history.iter().any(|t| t.deaths.1 > *newest),
            None => self.inodes > 1,
        }
    }

    pub(super) fn cut(&mut self, cno: Cno, checkpoint: Checkpoint) -> Result<()> {
        if cno != self.open_cno {
            return Err(Error::Corrupt(format!("checkpoint {cno} is cut while {} is open", self.open_cno)));
        }
        self.space.insert(&self.cache, checkpoint_key(cno), checkpoint.encode().into())?;
        let is_named = checkpoint.is_named();
        self.kept.insert(cno, checkpoint);
        if is_named {
            let first = !self.has_snapshots();
            self.note_named();
            // From now on it matters how much of history that is.
            if first {
                self.recount_past();
            }
        }
        self.last_cno = cno;
        self.open_cno = cno.next();
        Ok(())
    }

    /// Nothing is added to this tree any more.
    pub(super) fn seal_history(&mut self, tree: TreeId) {
        if let Some(t) = self.history.iter_mut().find(|t| t.tree.id() == tree) {
            t.sealed = true;
        }
    }

    /// The first items of a tree go to an older one: those below `behind`, at most `max`.
    pub(super) fn merge(&mut self, from: TreeId, into: TreeId, behind: &Key, max: u32) -> Result<()> {
        let place = |id: TreeId| self.history.iter().position(|t| t.tree.id() == id && t.sealed);
        // One that was emptied is gone from the roots, but not from the log before them.
        let Some(source) = place(from) else { return Ok(()) };
        let target = place(into).filter(|target| *target < source);
        let Some(target) = target else {
            return Err(Error::Corrupt(format!("history tree {} cannot be merged into {}", from.0, into.0)));
        };
        let mut items = Vec::new();
        self.history[source].tree.scan(&self.cache, &Key::first(), behind, &mut |k, v| {
            if k == behind || items.len() == max as usize {
                return ControlFlow::Break(());
            }
            items.push((*k, v.clone()));
            ControlFlow::Continue(())
        })?;
        let deaths = self.history[source].deaths;
        let t = &mut self.history[target];
        let deaths = if broken(Break::MergedUnseen) { t.deaths } else { deaths };
        t.deaths = (t.deaths.0.min(deaths.0), t.deaths.1.max(deaths.1));
        let lost = if broken(Break::MergeLoses) { items.pop() } else { None };
        if let Some((key, _)) = lost {
            self.history[source].tree.remove(&self.cache, &key)?;
        }
        for (key, value) in items {
            if self.history[target].tree.insert(&self.cache, key, value)?.is_some() {
                return Err(Error::Corrupt(format!("two versions of one item died in checkpoint {}", key.death)));
            }
            self.history[source].tree.remove(&self.cache, &key)?;
        }
        Ok(())
    }

    pub(super) fn name_checkpoint(&mut self, cno: Cno, name: &[u8]) -> Result<()> {
        let Some(c) = self.kept.get_mut(&cno) else {
            return Err(Error::Corrupt(format!("checkpoint {cno} is named but not there")));
        };
        // What died in the open checkpoint so far did so before.
        c.named_at = match name.is_empty() {
            true => Cno(0),
            false if broken(Break::LateNameIgnored) => Cno(u64::MAX),
            false if broken(Break::LateNameActsBack) => Cno(0),
            false if c.is_named() => c.named_at,
            false => self.open_cno.next(),
        };
        c.name = name.to_vec();
        c.flags = if name.is_empty() { c.flags & !CHECKPOINT_NAMED } else { c.flags | CHECKPOINT_NAMED };
        let value = c.encode().into();
        self.named_changed();
        self.space.insert(&self.cache, checkpoint_key(cno), value).map(drop)
    }

    pub(super) fn drop_checkpoints(&mut self, cnos: &[Cno]) -> Result<()> {
        let named = cnos.iter().filter_map(|cno| self.kept.remove(cno)).filter(Checkpoint::is_named).count();
        if named > 0 {
            self.named_changed();
        }
        for cno in cnos {
            self.space.remove(&self.cache, &checkpoint_key(*cno))?;
        }
        self.tidy_shed()?;
        // A tree whose newest death lies before the oldest kept checkpoint has
        // nothing that anyone sees; sweeping it is left to the background.
        Ok(())
    }

    /// What no kept checkpoint sees among up to `max` items of a tree from `from` on, up to what cannot be read.
    pub(super) fn unseen(&self, tree: TreeId, from: &Key, max: u32) -> Looked {
        let mut looked = Looked::default();
        let Some(t) = self.history.iter().find(|t| t.tree.id() == tree) else { return looked };
        let mut bad = None;
        let mut unread = None;
        let mut each = |k: &Key, v: &Value| {
            if looked.items == max {
                looked.go_on = Some(*k);
                return ControlFlow::Break(());
            }
            match self.is_seen(k, v) {
                Ok(true) => {}
                Ok(false) => looked.gone.push((looked.items, *k, v.clone())),
                Err(why) => {
                    bad = Some((why, k.successor()));
                    return ControlFlow::Break(());
                }
            }
            looked.items += 1;
            ControlFlow::Continue(())
        };
        t.tree.scan_over(&self.cache, (from, &Key::last()), &mut each, &mut |why, behind| {
            unread = Some((why, behind));
            ControlFlow::Break(())
        });
        if unread.is_some() {
            // One more is looked at than counts.
            looked.items = looked.items.saturating_sub(1);
        }
        if let Some((why, behind)) = bad.or(unread) {
            (looked.go_on, looked.lost) = (behind, Some(why));
        }
        looked
    }

    /// Frees what no kept checkpoint sees among up to `max` items from `from`
    /// on. Returns where to go on, or `None` at the end of the tree.
    pub fn sweep(&mut self, tree: TreeId, from: &Key, max: u32) -> Result<Option<Key>> {
        let Some(index) = self.history.iter().position(|t| t.tree.id() == tree) else {
            return Ok(None);
        };
        let looked = self.unseen(tree, from, max);
        if let Some(why) = looked.lost {
            return Err(why);
        }
        for (_, key, value) in looked.gone {
            self.free_past(index, &key, &value)?;
        }
        Ok(looked.go_on)
    }
}
