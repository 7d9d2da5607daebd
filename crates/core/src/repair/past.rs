//! History trees and checkpoints.

use super::losses::{About, LossKind};
use super::mender::{Mender, behind};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::state::checkpoint_key;
use nenrin_format::items::{self, CHECKPOINT_NAMED, Checkpoint, Dirent, Extent, Inode, XattrPiece};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Addr, COUNTER_MAX, Cno};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Items of a history tree looked at at once.
const BATCH: usize = 512;

impl Mender {
    /// All of it.
    pub(super) fn past(&mut self) -> Result<()> {
        self.checkpoints()?;
        for i in 0..self.state.history.len() {
            self.history_tree(i)?;
        }
        self.tell_past();
        Ok(())
    }

    /// The list of checkpoints agrees with the space tree and with itself.
    fn checkpoints(&mut self) -> Result<()> {
        self.unnamed_that_may_lack_something()?;
        // A number that no root can state is none; its item goes with the space tree's.
        self.state.kept.retain(|cno, _| (1..COUNTER_MAX).contains(&cno.0));
        let newest = self.state.kept.keys().next_back().copied().unwrap_or(Cno(0));
        self.state.last_cno = self.state.last_cno.max(newest);
        self.state.open_cno = self.state.open_cno.max(self.state.last_cno.next());
        self.state.last_cno = Cno(self.state.open_cno.0.saturating_sub(1));
        let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
        let mut right: Vec<(Cno, Checkpoint)> = Vec::new();
        for (cno, c) in &self.state.kept {
            let mut c = c.clone();
            if c.is_named() == c.name.is_empty() || c.is_named() && names.contains(&c.name) {
                c.flags &= !CHECKPOINT_NAMED;
                c.name.clear();
            }
            if c.is_named() {
                names.insert(c.name.clone());
            }
            right.push((*cno, c));
        }
        for (cno, c) in &right {
            if self.state.kept.get(cno) != Some(c) {
                let text = format!("checkpoint {cno} had an impossible name, which is gone");
                self.losses.add(LossKind::CheckpointsLost, About::Volume, text);
                self.state.space.insert(&self.state.cache, checkpoint_key(*cno), c.encode().into())?;
            }
        }
        self.state.kept = right.into_iter().collect();
        Ok(())
    }

    /// Where it is not known what was shed, checkpoints that lack it would show something else in its place. Nothing is
    /// shed that a snapshot sees.
    fn unnamed_that_may_lack_something(&mut self) -> Result<()> {
        let Some(before) = self.sheds_lost.filter(|_| !broken(Break::ShedUnknown)) else { return Ok(()) };
        let unnamed = self.state.kept.range(..before).filter(|(_, c)| !c.is_named());
        let gone: Vec<Cno> = unnamed.map(|(cno, _)| *cno).collect();
        for cno in &gone {
            self.state.kept.remove(cno);
            self.state.space.remove(&self.state.cache, &checkpoint_key(*cno))?;
        }
        if !gone.is_empty() {
            let text = format!("{} checkpoints without a name go: it is not known what was let go of them", gone.len());
            self.losses.add(LossKind::CheckpointsLost, About::Volume, text);
        }
        for (cno, _) in self.state.kept.range(..before).filter(|(cno, c)| c.named_at > **cno) {
            let text = format!("checkpoint {cno} got its name later, and may lack what was let go before");
            self.losses.add(LossKind::PastIncomplete, About::Volume, text);
        }
        Ok(())
    }

    fn history_tree(&mut self, i: usize) -> Result<()> {
        let mut from = Some(super::mender::FIRST);
        let mut before: Option<Key> = None;
        let mut dropped = 0u64;
        let mut deaths: Option<(Cno, Cno)> = None;
        while let Some(first) = from {
            let mut batch = Vec::new();
            let tree = &self.state.history[i].tree;
            tree.scan(&self.state.cache, &first, &super::mender::LAST, &mut |k, v| {
                batch.push((*k, v.clone()));
                if batch.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            from = batch.last().filter(|_| batch.len() == BATCH).and_then(|(k, _)| behind(k));
            for (key, value) in &batch {
                if self.is_past(key, value, before.as_ref())? {
                    let death = Cno(key.death);
                    deaths = Some(deaths.map_or((death, death), |d| (d.0.min(death), d.1.max(death))));
                    before = Some(*key);
                    self.state.next_ino = self.state.next_ino.max(nenrin_format::Ino(key.ino).next());
                } else {
                    dropped += 1;
                    self.state.history[i].tree.remove(&self.state.cache, key)?;
                }
            }
        }
        let t = &mut self.state.history[i];
        if let Some((low, high)) = deaths {
            t.deaths = (t.deaths.0.min(low), t.deaths.1.max(high).min(self.state.open_cno));
        }
        if dropped > 0 {
            let text = format!("{dropped} past versions meant nothing");
            self.losses.add(LossKind::PastIncomplete, About::Volume, text);
        }
        Ok(())
    }

    /// Whether an item of history can have been, beside the version before it and what is current.
    fn is_past(&self, key: &Key, value: &[u8], before: Option<&Key>) -> Result<bool> {
        let Ok(birth) = items::birth(value) else { return Ok(false) };
        let right = match key.kind {
            Kind::Inode => Inode::decode(value).is_ok(),
            Kind::Inline | Kind::Symlink => items::decode_bytes(value).is_ok(),
            Kind::Xattr => XattrPiece::decode(value).is_ok(),
            Kind::Dirent | Kind::Link => Dirent::decode(value).is_ok(),
            Kind::Extent => Extent::decode(value).is_ok_and(|e| {
                let first = e.addr.0.checked_sub(u64::from(e.lead));
                let covered = e.lead + e.blocks + e.tail;
                e.fits(key.off) && (e.is_unwritten() || first.is_some_and(|a| self.storage.contains(Addr(a), covered)))
            }),
            _ => false,
        };
        let death = Cno(key.death);
        if !right || !(1..COUNTER_MAX).contains(&key.ino) || birth >= death || death > self.state.open_cno {
            return Ok(false);
        }
        if before.is_some_and(|b| b.living() == key.living() && b.death > birth.0) {
            return Ok(false);
        }
        let current = self.state.get(&key.living())?.and_then(|v| items::birth(&v).ok());
        Ok(current.is_none_or(|c| c >= death))
    }

    fn tell_past(&mut self) {
        let text = |c: (&Cno, &Checkpoint)| {
            if c.1.is_named() { String::from_utf8_lossy(&c.1.name).escape_debug().to_string() } else { c.0.to_string() }
        };
        if let Some(last) = self.past_lost {
            let seen: Vec<String> = self.state.kept.range(..last).map(text).collect();
            if !seen.is_empty() {
                let text = format!("nodes of the past are lost: these checkpoints lack something: {}", list(&seen));
                self.losses.add(LossKind::PastIncomplete, About::Volume, text);
            }
        }
        if !self.lost.is_empty() && !self.state.kept.is_empty() {
            let all: Vec<String> = self.state.kept.iter().map(text).collect();
            let text = format!("what is lost now is missing in these checkpoints too: {}", list(&all));
            self.losses.add(LossKind::PastIncomplete, About::Volume, text);
        }
    }
}

/// The first and the last of many.
fn list(all: &[String]) -> String {
    const SHOWN: usize = 8;
    if all.len() <= 2 * SHOWN {
        return all.join(", ");
    }
    format!("{}, ..., {}", all[..SHOWN].join(", "), all[all.len() - SHOWN..].join(", "))
}
