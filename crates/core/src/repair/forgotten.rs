//! What is to be forgotten stays so where no root leads to the list of it any more.
//!
//! Invariants
//! 1. What the space tree of any root that can be read, or any part of the log, says is to be forgotten is in nothing that a salvage brings
//!    back, whatever the tree shows that it starts from: numbers are not given twice. It is on the list again, so that it is wiped.
//! 2. Where the list may have had more, that is told.

use super::behind_gap::let_go;
use super::losses::{About, LossKind, Losses};
use super::regain::each;
use crate::breaks::{Break, broken};
use crate::index::{NodeCache, Survey, Tree};
use crate::recovery::Found;
use crate::state::{State, is_space_key};
use crate::{Error, Result};
use nenrin_format::items::KeepRule;
use nenrin_format::key::{Key, Kind};
use nenrin_format::records::Record;
use nenrin_format::{Addr, COUNTER_MAX, Ino, Time};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Items taken out of the tree at once.
const BATCH: usize = 512;

/// What is known to be forgotten.
#[derive(Default)]
pub(super) struct Forgotten {
    inos: BTreeSet<Ino>,
    /// Some root, and the log behind it, has the whole list.
    is_all: bool,
}

impl Forgotten {
    /// What the space tree of a root says, of which so much is lost; and whether nothing of the log behind it is missing.
    pub fn learn(&mut self, cache: &NodeCache, (tree, survey): &(Tree, Survey), has_log: bool) {
        let (from, to) = (Key::space(Kind::Forget, 0, 0), Key::space(Kind::Forget, u32::MAX, u64::MAX));
        tree.scan_readable(cache, &from, &to, &mut |key, _| {
            if is_space_key(key) {
                self.add(Ino(key.off));
            }
            ControlFlow::Continue(())
        });
        self.is_all |= has_log && !survey.lost.iter().any(|l| l.meets(&from, &to));
    }

    /// What parts of the log say.
    pub fn learn_log(&mut self, log: &[Found]) -> Result<()> {
        each(log, &mut |record| {
            if let Record::Forget { inos, .. } = record {
                inos.iter().for_each(|ino| self.add(*ino));
            }
            Ok(())
        })
    }

    fn add(&mut self, ino: Ino) {
        if ino != Ino::ROOT && ino.0 < COUNTER_MAX {
            self.inos.insert(ino);
        }
    }

    /// Takes it out of what was found, and puts it on the list.
    pub fn stays_so(mut self, state: &mut State, now: Time, losses: &mut Losses) -> Result<()> {
        if !self.is_all {
            let text =
                "the list of what was being forgotten may have had more than is known; that has to be forgotten again";
            losses.add(LossKind::CheckpointsLost, About::Volume, text);
        }
        if broken(Break::SalvageRemembers) {
            return Ok(());
        }
        self.inos.extend(&state.forgetting);
        for ino in take_all_out(state, self.inos.iter().rev().copied().collect(), now)? {
            let text = "it was to be forgotten, and cannot be: that has to be asked for again";
            losses.add(LossKind::ChangeLost, About::Inode(ino), text);
        }
        if let Some(last) = self.inos.last() {
            state.next_ino = state.next_ino.max(last.next());
        }
        state.apply(&Record::Forget { time: now, inos: self.inos.into_iter().collect() }, Addr::NONE)
    }
}

/// Takes these out, and a directory again when what was in it is gone; those that live on.
fn take_all_out(state: &mut State, mut living: Vec<Ino>, now: Time) -> Result<Vec<Ino>> {
    loop {
        let (before, mut left) = (living.len(), Vec::new());
        for ino in living {
            match take_out(state, ino, now) {
                Err(e @ Error::Device(_)) => return Err(e),
                Ok(()) if state.inode(ino)?.is_none() => {}
                Ok(()) | Err(_) => left.push(ino),
            }
        }
        living = left;
        if living.is_empty() || living.len() == before || broken(Break::ForgottenOnce) {
            return Ok(living);
        }
    }
}

/// An inode goes with its names and all it has; a directory stays in which there is something.
fn take_out(state: &mut State, ino: Ino, now: Time) -> Result<()> {
    let (from, to) = (Key::new(ino, Kind::Inode, 0, 0), Key { ino: ino.0, ..Key::last() });
    // Where its names contradict it they go later: names that lead nowhere do.
    let let_go = let_go(state, ino, now);
    if let Err(e @ Error::Device(_)) = let_go {
        return Err(e);
    }
    if state.inode(ino)?.is_some_and(|inode| inode.entries > 0) {
        return Ok(());
    }
    loop {
        let mut keys = Vec::new();
        state.live.scan(&state.cache, &from, &to, &mut |key, _| {
            keys.push(*key);
            if keys.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if keys.is_empty() {
            return Ok(());
        }
        for key in keys {
            state.remove(&key, KeepRule::default())?;
        }
    }
}
