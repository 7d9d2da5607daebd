//! Checkpoints, and the history trees that keep what only they see.

use super::{State, checkpoint_key};
use crate::breaks::{Break, broken};
use crate::index::{Tree, Value};
use crate::{Error, Result};
use nenrin_format::Cno;
use nenrin_format::items::{CHECKPOINT_NAMED, Checkpoint};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use std::ops::ControlFlow;

/// Items after which the newest history tree is sealed and another begun.
const TREE_ITEMS_MAX: u64 = 400_000;
/// History trees there may be; the newest grows on beyond that.
const TREES_MAX: usize = 24;

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
                self.weigh_buried(&value);
                Ok(())
            }
            Some(_) => Err(Error::Corrupt(format!("two versions of one item died in checkpoint {death}"))),
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
            self.note_named();
        }
        self.last_cno = cno;
        self.open_cno = cno.next();
        let trees = self.history.iter().filter(|t| t.tree.items() > 0).count();
        if let Some(newest) = self.history.last_mut() {
            newest.sealed = newest.tree.items() >= TREE_ITEMS_MAX && trees < TREES_MAX;
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
        self.note_named();
        self.space.insert(&self.cache, checkpoint_key(cno), value).map(drop)
    }

    pub(super) fn drop_checkpoints(&mut self, cnos: &[Cno]) -> Result<()> {
        for cno in cnos {
            if self.kept.remove(cno).is_some_and(|c| c.is_named()) {
                self.note_named();
            }
            self.space.remove(&self.cache, &checkpoint_key(*cno))?;
        }
        self.tidy_shed()?;
        // A tree whose newest death lies before the oldest kept checkpoint has
        // nothing that anyone sees; sweeping it is left to the background.
        Ok(())
    }

    /// Frees what no kept checkpoint sees among up to `max` items from `from`
    /// on. Returns where to go on, or `None` at the end of the tree.
    pub fn sweep(&mut self, tree: TreeId, from: &Key, max: u32) -> Result<Option<Key>> {
        let Some(index) = self.history.iter().position(|t| t.tree.id() == tree) else {
            return Ok(None);
        };
        let mut gone = Vec::new();
        let mut bad = None;
        let mut seen = 0;
        let mut go_on = None;
        let last = Key { ino: u64::MAX, kind: Kind::Extent, fork: u32::MAX, off: u64::MAX, death: u64::MAX };
        self.history[index].tree.scan(&self.cache, from, &last, &mut |k, v| {
            if seen == max {
                go_on = Some(*k);
                return ControlFlow::Break(());
            }
            seen += 1;
            match self.is_seen(k, v) {
                Ok(false) => gone.push((*k, v.clone())),
                Ok(true) => {}
                Err(e) => {
                    bad = Some(e);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        if let Some(e) = bad {
            return Err(e);
        }
        for (key, value) in gone {
            self.free_past(index, &key, &value)?;
        }
        Ok(go_on)
    }
}
