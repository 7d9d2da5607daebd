//! What is to be forgotten: the list of inodes, and taking their items out of
//! the trees. Decision 0016 has the whole.
//!
//! Invariants
//! 1. An inode on the list is not in the live tree, and never will be again:
//!    numbers are not given twice.
//! 2. No landmark keeps it.
//! 3. What belongs to it, or names it, is shown by no view of the past.

use super::sharing::Need;
use super::{State, bad_item, forget_key};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::index::Value;
use nenrin_format::items::{Dirent, Extent, Forget, KeepRule};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::{Ino, Time};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Items to be forgotten, each with how many others are looked at before it, and where to go on, or `None` at the end of the tree.
type ToForget = (Vec<(u32, Key, Value)>, Option<Key>);

impl State {
    /// Puts inodes on the list; those that are in the live tree stay off it.
    pub(super) fn forget(&mut self, time: Time, inos: &[Ino]) -> Result<()> {
        for ino in inos {
            if self.inode(*ino)?.is_none() {
                let value = Forget { begun: time }.encode();
                self.space.insert(&self.cache, forget_key(*ino), value.into())?;
                self.forgetting.insert(*ino);
            }
        }
        let landmarks = self.landmarks.through(&self.forgetting);
        self.drop_landmarks(&landmarks)
    }

    /// Puts inodes on the list in memory alone: of a state that is only read.
    pub fn hide(&mut self, inos: impl IntoIterator<Item = Ino>) {
        self.forgetting.extend(inos);
        if broken(Break::LandmarksNotHidden) {
            return;
        }
        for (cno, number) in self.landmarks.through(&self.forgetting) {
            self.landmarks.unload(cno, number);
        }
    }

    /// Whether an item belongs to an inode that is to be forgotten, or names one, or a name in one.
    pub fn is_forgotten(&self, key: &Key, value: &[u8]) -> bool {
        if self.forgetting.is_empty() {
            return false;
        }
        let named = || match key.kind {
            Kind::Dirent | Kind::Link => Dirent::decode(value).is_ok_and(|d| self.forgetting.contains(&d.ino)),
            _ => false,
        };
        self.forgetting.contains(&Ino(key.ino)) || named()
    }

    /// Whether there is an inode, which nothing on the list can be.
    fn is_living(&self, ino: Ino) -> Result<bool> {
        Ok(self.get(&Key::new(ino, Kind::Inode, 0, 0))?.is_some() && !broken(Break::LivingForgotten))
    }

    /// What is to be forgotten among up to `max` items of a tree from `from` on.
    pub(super) fn forgotten(&self, tree: TreeId, from: &Key, max: u32) -> Result<ToForget> {
        let past = self.history.iter().find(|t| t.tree.id() == tree);
        let found = match past {
            None if tree != TreeId::LIVE => return Ok((Vec::new(), None)),
            None => &self.live,
            Some(t) => &t.tree,
        };
        let (mut gone, mut seen, mut go_on) = (Vec::new(), 0, None);
        let last = Key::last();
        found.scan(&self.cache, from, &last, &mut |k, v| {
            if seen == max {
                go_on = Some(*k);
                return ControlFlow::Break(());
            }
            let before = seen;
            seen += 1;
            let of_list = if past.is_some() { self.is_forgotten(k, v) } else { self.forgetting.contains(&Ino(k.ino)) };
            if of_list && !(broken(Break::ForgetKeepsNames) && past.is_some() && k.kind == Kind::Dirent) {
                gone.push((before, *k, v.clone()));
            }
            ControlFlow::Continue(())
        })?;
        // What lives, or has a name, is nothing to be forgotten, whatever a damaged volume says.
        if past.is_none() {
            let inos: BTreeSet<u64> = gone.iter().map(|(_, k, _)| k.ino).collect();
            for ino in inos {
                if self.is_living(Ino(ino))? {
                    gone.retain(|(_, k, _)| k.ino != ino);
                }
            }
        }
        Ok((gone, go_on))
    }

    /// Frees what is to be forgotten among up to `max` items of a tree from `from` on.
    /// Returns where to go on, or `None` at the end of the tree.
    pub fn forget_step(&mut self, tree: TreeId, from: &Key, max: u32) -> Result<Option<Key>> {
        let (gone, go_on) = self.forgotten(tree, from, max)?;
        let past = self.history.iter().position(|t| t.tree.id() == tree);
        for (_, key, value) in gone {
            match past {
                None => drop(self.remove(&key, KeepRule::default())?),
                Some(i) => self.free_past(i, &key, &value)?,
            }
        }
        Ok(go_on)
    }

    /// Takes an item out of a history tree for good.
    pub(super) fn free_past(&mut self, index: usize, key: &Key, value: &Value) -> Result<()> {
        self.history[index].tree.remove(&self.cache, key)?;
        self.weigh_freed(key, value, index);
        if key.kind == Kind::Extent {
            let e = Extent::decode(value).map_err(|why| bad_item(key, why))?;
            if e.is_shared() {
                self.remove_backref(key, &e)?;
            }
            self.change_need(&e, Need::History, Need::None)?;
        }
        Ok(())
    }

    /// Takes the first `max` inodes off the list.
    pub(super) fn end_forget(&mut self, max: u32) -> Result<()> {
        let first: Vec<Ino> = self.forgetting.iter().take(max as usize).copied().collect();
        for ino in first {
            self.space.remove(&self.cache, &forget_key(ino))?;
            self.forgetting.remove(&ino);
        }
        if self.forgetting.is_empty() && !broken(Break::ForgottenCounts) {
            self.recount_past();
        }
        Ok(())
    }

    /// The list as the space tree has it, without what lives: those are returned. Where that cannot be read it is found out later.
    pub fn load_forgetting(&mut self) -> Result<Vec<Ino>> {
        let (from, to) = (forget_key(Ino(0)), forget_key(Ino(u64::MAX)));
        let mut list = BTreeSet::new();
        self.space.scan(&self.cache, &from, &to, &mut |k, _| {
            list.insert(Ino(k.off));
            ControlFlow::Continue(())
        })?;
        let (living, rest): (BTreeSet<Ino>, _) = list.into_iter().partition(|i| self.is_living(*i).unwrap_or(false));
        self.forgetting = if broken(Break::ForgetNotResumed) { Default::default() } else { rest };
        Ok(living.into_iter().collect())
    }
}
