//! The state being mended, and what all passes need.
//!
//! Invariants
//! 1. Counters of the state mean nothing until `space` has recounted them.
//! 2. What leaves the live tree because it means nothing leaves no trace in
//!    history; what is corrected keeps its past as it was.

use super::losses::{About, LossKind, Losses};
use super::unknown::Hole;
use crate::index::{LostRange, Value};
use crate::per_segment::PerSegment;
use crate::state::State;
use crate::storage::Storage;
use crate::{Error, Result};
use nenrin_format::items::{KeepRule, Segment};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Cno, Ino, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Items taken out of a tree at once.
const BATCH: usize = 512;

/// The state being mended.
pub(super) struct Mender {
    pub state: State,
    pub storage: Arc<Storage>,
    pub losses: Losses,
    pub now: Time,
    /// Ranges of the live tree of which nothing is known, in order.
    pub lost: Vec<LostRange>,
    /// Keys of items that were dropped.
    pub gone: BTreeSet<Key>,
    /// File blocks of which nothing is known, unless an extent covers them.
    pub holes: BTreeSet<Hole>,
    /// Inodes from here on may have been made in a part of the log that is missing.
    pub gap_from: Option<Ino>,
    /// Inodes made anew that nothing vouches for: their names go.
    pub unproven: BTreeSet<u64>,
    /// Inodes that are or may be gone, with names they had.
    pub missing: BTreeSet<u64>,
    /// Extents made that say a range is lost.
    pub marked: u64,
    /// Nodes of the space tree are lost.
    pub space_lost: bool,
    /// What was shed of checkpoints before this one may have been in them.
    pub sheds_lost: Option<Cno>,
    /// Newest death that a lost node of history may have held.
    pub past_lost: Option<Cno>,
    /// Segments nothing may be written to before the repair is done.
    pub held: PerSegment<bool>,
    /// What the space tree said of segments.
    pub segment_items: BTreeMap<u64, Segment>,
}

/// A value with another birth.
pub(super) fn with_birth(value: &[u8], birth: Cno) -> Vec<u8> {
    let mut out = value.to_vec();
    if let Some(head) = out.get_mut(..8) {
        head.copy_from_slice(&birth.0.to_le_bytes());
    }
    out
}

/// The first key there can be.
pub(super) const FIRST: Key = Key { ino: 0, kind: Kind::Inode, fork: 0, off: 0, death: 0 };
/// The last key there can be.
pub(super) const LAST: Key = Key { ino: u64::MAX, kind: Kind::last(), fork: u32::MAX, off: u64::MAX, death: u64::MAX };

/// The key behind `key`, whatever its kind.
pub(super) fn behind(key: &Key) -> Option<Key> {
    if let Some(next) = key.successor() {
        return Some(next);
    }
    let next = Key { off: 0, death: 0, ..*key };
    match next.fork.checked_add(1) {
        Some(fork) => Some(Key { fork, ..next }),
        None => {
            let kind = (next.kind as u8 + 1..=Kind::last() as u8).find_map(|k| Kind::from_u8(k).ok());
            match kind {
                Some(kind) => Some(Key { kind, fork: 0, ..next }),
                None => Some(Key { ino: next.ino.checked_add(1)?, kind: Kind::Inode, fork: 0, off: 0, death: 0 }),
            }
        }
    }
}

/// Whether anything with keys from `from` to `to` was in one of these ranges, which are in order.
pub(super) fn may_be_lost(lost: &[LostRange], from: &Key, to: &Key) -> bool {
    let after = lost.partition_point(|l| l.low.is_none_or(|low| low <= *to));
    after.checked_sub(1).and_then(|i| lost.get(i)).is_some_and(|l| l.meets(from, to))
}

impl Mender {
    /// Items of the live tree from `from` to `to`, at most `max`.
    pub fn some(&self, from: &Key, to: &Key, max: usize) -> Result<Vec<(Key, Value)>> {
        let mut out = Vec::new();
        self.state.live.scan(&self.state.cache, from, to, &mut |k, v| {
            out.push((*k, v.clone()));
            if out.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(out)
    }

    /// Calls `each` for all items of the live tree, which it may change; items
    /// that are made behind the one at hand may come too.
    pub fn sweep(&mut self, each: &mut dyn FnMut(&mut Self, &Key, &Value) -> Result<()>) -> Result<()> {
        let mut from = Some(FIRST);
        while let Some(first) = from {
            let batch = self.some(&first, &LAST, BATCH)?;
            from = batch.last().filter(|_| batch.len() == BATCH).and_then(|(k, _)| behind(k));
            for (key, value) in &batch {
                each(self, key, value)?;
            }
        }
        Ok(())
    }

    /// Replaces an item in place.
    pub fn set(&mut self, key: Key, value: Vec<u8>) -> Result<()> {
        self.state.live.insert(&self.state.cache, key, value.into()).map(drop)
    }

    /// Removes an item.
    pub fn unset(&mut self, key: &Key) -> Result<()> {
        self.state.live.remove(&self.state.cache, key).map(drop)
    }

    /// Replaces an item from now on; checkpoints see it as it was.
    pub fn change(&mut self, key: Key, value: Vec<u8>) -> Result<()> {
        match self.state.put(key, value) {
            // History had a version that died now, too, which contradicts this one: this one is in its place.
            Err(Error::Corrupt(_)) => Ok(()),
            other => other,
        }
    }

    /// Removes an item from now on; checkpoints see it as it was.
    pub fn remove(&mut self, key: &Key) -> Result<()> {
        match self.state.remove(key, KeepRule::default()) {
            Err(Error::Corrupt(_)) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Whether anything with keys from `from` to `to` may have been lost.
    pub fn may_be_lost(&self, from: &Key, to: &Key) -> bool {
        may_be_lost(&self.lost, from, to) || self.gone.range(*from..=*to).next().is_some()
    }

    /// Whether the inode item may have been lost.
    pub fn inode_may_be_lost(&self, ino: Ino) -> bool {
        let key = Key::new(ino, Kind::Inode, 0, 0);
        self.may_be_lost(&key, &key) || self.gap_from.is_some_and(|from| ino >= from)
    }

    /// Tells in numbers what ranges of inodes are lost.
    pub fn tell_ranges(&mut self) {
        for l in &self.lost {
            let from = l.low.map_or(1, |k| k.ino);
            let to = l.high.map_or(self.state.next_ino.0.saturating_sub(1), |k| k.ino);
            if l.low.is_some_and(|k| k.ino == to) && from == to {
                let text = "one node of its part of the index is lost";
                self.losses.add(LossKind::InodesLost, About::Inode(Ino(from)), text);
            } else {
                let text = format!("a node of the index is lost that had items of inodes {from} to {to}");
                self.losses.add(LossKind::InodesLost, About::Volume, text);
            }
        }
        if self.space_lost {
            let text = "a node of the space tree is lost; what was being forgotten then has to be forgotten again";
            self.losses.add(LossKind::CheckpointsLost, About::Volume, text);
        }
    }
}
