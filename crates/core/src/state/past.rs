//! Reading the state as it is, or as of a kept checkpoint: live items born
//! early enough, else what history has.

use super::{State, bad_item};
use crate::breaks::{Break, broken};
use crate::index::Value;
use crate::{At, Error, Result};
use nenrin_format::items::{self, Extent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::{Cno, Ino};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The state at one moment.
#[derive(Clone, Copy)]
pub struct View<'a> {
    state: &'a State,
    cno: Option<Cno>,
    /// Of that checkpoint only landmarks are left: what else is found may be a part of what there was.
    landmarks_only: bool,
}

impl State {
    /// The state now, or as of a kept checkpoint; of one that only has landmarks left, those
    /// and the way to them, while all else is [`Error::Stale`].
    ///
    /// # Errors
    /// [`Error::Stale`] when that checkpoint is not kept.
    pub fn view(&self, at: At) -> Result<View<'_>> {
        match at {
            At::Live => Ok(View { state: self, cno: None, landmarks_only: false }),
            At::Past(cno) => {
                let landmarks_only = !self.kept.contains_key(&cno);
                if landmarks_only && self.landmarks.at(cno).is_none() {
                    return Err(Error::Stale);
                }
                Ok(View { state: self, cno: Some(cno), landmarks_only })
            }
        }
    }
}

impl View<'_> {
    /// An error where what is not found of an inode may have been there.
    pub fn all_is_known(&self, ino: Ino) -> Result<()> {
        if self.landmarks_only && !broken(Break::LandmarkIsAll) {
            return Err(Error::Stale);
        }
        self.is_known(&Key::new(ino, Kind::Dirent, 0, 0))
    }

    fn shows(&self, key: &Key) -> bool {
        let seen = |cno: Cno| self.state.landmarks.see(key, cno, cno.next());
        !self.landmarks_only || broken(Break::LandmarkIsAll) || self.cno.is_none_or(seen)
    }

    /// An error where of the inode this belongs to only its attributes are left.
    pub fn content_is_known(&self, ino: Ino) -> Result<()> {
        self.is_known(&Key::new(ino, Kind::Extent, 0, 0))
    }

    fn is_known(&self, key: &Key) -> Result<()> {
        match self.cno {
            Some(cno) if key.kind != Kind::Inode && !self.landmarks_only => self.state.need_known(Ino(key.ino), cno),
            _ => Ok(()),
        }
    }

    /// The item at `key`.
    pub fn get(&self, key: &Key) -> Result<Option<Value>> {
        let s = self.state;
        if !self.shows(key) {
            return Err(Error::Stale);
        }
        let live = s.live.get(&s.cache, key)?;
        let Some(cno) = self.cno else { return Ok(live) };
        if s.forgetting.contains(&Ino(key.ino)) {
            return Ok(None);
        }
        self.is_known(key)?;
        if let Some(v) = live {
            if items::birth(&v).map_err(|why| bad_item(key, why))? <= cno {
                return Ok(Some(v));
            }
        }
        for t in s.history.iter().filter(|t| t.deaths.1 > cno) {
            // The version that died soonest after the moment is the one that lived then.
            if let Some((k, v)) = t.tree.next_within(&s.cache, &key.died(cno.next().0), &key.died(u64::MAX))? {
                if items::birth(&v).map_err(|why| bad_item(key, why))? <= cno {
                    return Ok((!s.is_forgotten(&k, &v)).then_some(v));
                }
            }
        }
        Ok(None)
    }

    /// Items with keys from `from` to `to`, of one inode, in key order, until `each` breaks.
    pub fn scan(&self, from: &Key, to: &Key, each: &mut dyn FnMut(&Key, &Value) -> ControlFlow<()>) -> Result<()> {
        self.is_known(from)?;
        self.scan_what_is_left(from, to, each)
    }

    /// [`View::scan`], also where there may have been more.
    pub fn scan_what_is_left(
        &self,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(&Key, &Value) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut next = Some(*from);
        while let Some(start) = next {
            next = self.some_that_is_left(&start, to, each)?;
        }
        Ok(())
    }

    /// [`View::scan`] of a past state, where much may lie in between that it does not show: as much as is looked at under one hold of the
    /// lock, and where to go on, unless that was all, or `each` broke.
    pub fn scan_some(
        &self,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(&Key, &Value) -> ControlFlow<()>,
    ) -> Result<Option<Key>> {
        if !broken(Break::UnkeptIsHole) {
            self.is_known(from)?;
        }
        self.some_that_is_left(from, to, each)
    }

    fn some_that_is_left(
        &self,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(&Key, &Value) -> ControlFlow<()>,
    ) -> Result<Option<Key>> {
        let s = self.state;
        let Some(cno) = self.cno else {
            return s.live.scan(&s.cache, from, to, each).map(|()| None);
        };
        if !self.shows(&Key::new(Ino(from.ino), Kind::Inode, 0, 0)) {
            return Err(Error::Stale);
        }
        let (batch, go_on) = self.batch(cno, from, to)?;
        let mut shown = batch.iter().filter(|(k, _)| self.shows(k));
        Ok(if shown.any(|(k, v)| each(k, v).is_break()) { None } else { go_on })
    }

    /// A bounded piece of [`View::scan`] of a past state: merges the trees over
    /// a range of keys that each of them has been read completely for.
    fn batch(&self, cno: Cno, from: &Key, to: &Key) -> Result<(BTreeMap<Key, Value>, Option<Key>)> {
        const BATCH: usize = 1024;
        let s = self.state;
        let mut merged: BTreeMap<Key, Value> = BTreeMap::new();
        let mut limit: Option<Key> = None;
        let mut bad = None;
        let mut read = |tree: &crate::index::Tree, past: bool| -> Result<()> {
            let last = if past { to.died(u64::MAX) } else { *to };
            let mut seen = 0;
            tree.scan(&s.cache, from, &last, &mut |k, v| {
                let key = k.living();
                seen += 1;
                if seen > BATCH {
                    limit = Some(limit.map_or(key, |l: Key| l.min(key)));
                    return ControlFlow::Break(());
                }
                match items::birth(v) {
                    Ok(birth) if birth <= cno && (!past || cno.0 < k.death) && !s.is_forgotten(k, v) => {
                        merged.insert(key, v.clone());
                    }
                    Ok(_) => {}
                    Err(why) => {
                        bad = Some(bad_item(k, why));
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            })
        };
        read(&s.live, false)?;
        for t in s.history.iter().filter(|t| t.deaths.1 > cno) {
            read(&t.tree, true)?;
        }
        if let Some(e) = bad {
            return Err(e);
        }
        match limit {
            // More versions of the first key than a batch holds: take them one by one.
            Some(l) if l <= *from => {
                let mut one = BTreeMap::new();
                if let Some(v) = self.get(from)? {
                    one.insert(*from, v);
                }
                Ok((one, from.successor_living().filter(|k| k <= to)))
            }
            Some(l) => {
                merged.retain(|k, _| *k < l);
                Ok((merged, Some(l)))
            }
            None => Ok((merged, None)),
        }
    }

    /// The inode.
    ///
    /// # Errors
    /// [`Error::NotFound`]; in the past [`Error::Stale`], since whoever asks has met its number.
    pub fn inode(&self, ino: Ino) -> Result<Inode> {
        let key = Key::new(ino, Kind::Inode, 0, 0);
        match self.get(&key)? {
            Some(v) => {
                let inode = Inode::decode(&v).map_err(|why| bad_item(&key, why))?;
                // Not even its attributes are kept: whether they were swept already must make no difference.
                if inode.history_is_inherited() {
                    self.content_is_known(ino)?;
                }
                Ok(inode)
            }
            None if self.cno.is_some() && !self.state.forgetting.contains(&ino) => Err(Error::Stale),
            None => Err(Error::NotFound),
        }
    }

    /// The items of a past state that hold extents which overlap file blocks
    /// `from` to `last`, with the trees they are in.
    pub(super) fn extent_items(&self, ino: Ino, from: u64, last: u64) -> Result<Vec<(TreeId, Key, Extent)>> {
        let inode = self.inode(ino)?;
        let cno = self.cno.unwrap_or(Cno(u64::MAX));
        let first = Key::new(ino, Kind::Extent, inode.fork, super::content::window_start(from));
        self.is_known(&first)?;
        let last = Key::new(ino, Kind::Extent, inode.fork, last);
        let (mut out, mut bad) = (Vec::new(), None);
        let mut take = |tree: TreeId, k: &Key, v: &Value| match super::content::extent(k, v) {
            Ok(e) => {
                let there = e.birth <= cno && (k.death == 0 || cno.0 < k.death);
                if there && k.off.saturating_add(u64::from(e.blocks)) > from {
                    out.push((tree, *k, e));
                }
                ControlFlow::Continue(())
            }
            Err(e) => {
                bad = Some(e);
                ControlFlow::Break(())
            }
        };
        let s = self.state;
        s.live.scan(&s.cache, &first, &last, &mut |k, v| take(s.live.id(), k, v))?;
        for t in s.history.iter().filter(|t| t.deaths.1 > cno) {
            t.tree.scan(&s.cache, &first, &last.died(u64::MAX), &mut |k, v| take(t.tree.id(), k, v))?;
        }
        bad.map_or(Ok(out), Err)
    }

    /// The extents that overlap file blocks `[from, to)`, in order.
    pub fn extents(&self, ino: Ino, fork: u32, from: u64, to: u64) -> Result<Vec<(u64, Extent)>> {
        if self.cno.is_none() {
            let found = self.state.extents(ino, fork, from, to, usize::MAX)?;
            return Ok(found.into_iter().map(|(k, e)| (k.off, e)).collect());
        }
        let mut out = Vec::new();
        let mut bad = None;
        let first = Key::new(ino, Kind::Extent, fork, super::content::window_start(from));
        let last = Key::new(ino, Kind::Extent, fork, to.saturating_sub(1));
        self.scan(&first, &last, &mut |k, v| match super::content::extent(k, v) {
            Ok(e) => {
                if k.off.saturating_add(u64::from(e.blocks)) > from {
                    out.push((k.off, e));
                }
                ControlFlow::Continue(())
            }
            Err(e) => {
                bad = Some(e);
                ControlFlow::Break(())
            }
        })?;
        bad.map_or(Ok(out), Err)
    }
}
