//! What was durable before a commit that names it: content that it shares with what is there already.
//!
//! A commit that was acknowledged may name blocks that were written and flushed long before it, since a copy shares them. What became of
//! those meanwhile says nothing of the commit: were it judged by them, a block that rots would take acknowledged commits with it.
//!
//! Invariants
//! 1. Only what the state has before the commit's own content counts: of what the commit wrote itself nothing is believed.
//! 2. Nobody is asked, and no state is read, while all is right.

use super::walk::{Found, Outcome, Walk};
use super::{Loaded, chain_of, load_state};
use crate::breaks::{Break, broken};
use crate::state::State;
use crate::storage::Storage;
use crate::{Error, MountOptions, Result};
use nenrin_format::EXTENT_BLOCKS_MAX;
use nenrin_format::items::Extent;
use nenrin_format::records::Record;
use nenrin_format::root::Root;
use nenrin_format::superblock::Superblock;
use nenrin_format::wire::Reader;
use std::sync::Arc;

/// The state as of somewhere in the log, read when it is first asked for.
pub(super) struct Before<'a> {
    load: &'a dyn Fn() -> Result<Loaded>,
    state: Option<State>,
    /// It cannot be read, or the log not applied to it: then nothing is known.
    is_unknown: bool,
    /// Partials whose records are all in it, and bytes of those of the next one that are.
    at: (usize, usize),
    /// Where that one moved something to: it wrote that itself.
    moved: Vec<(u64, u64)>,
}

impl<'a> Before<'a> {
    pub(super) fn new(load: &'a dyn Fn() -> Result<Loaded>) -> Self {
        Self { load, state: None, is_unknown: false, at: (0, 0), moved: Vec::new() }
    }

    /// Whether the blocks of an extent that partial `i` names were somebody's before that wrote any content. Each call is for a partial
    /// that is not before that of the last one.
    pub(super) fn has(&mut self, found: &[Found], i: usize, e: &Extent) -> bool {
        if !e.is_shared() || e.blocks > EXTENT_BLOCKS_MAX || broken(Break::SharedJudged) {
            return false;
        }
        if broken(Break::SharedBelieved) {
            return true;
        }
        let known = if self.is_unknown { Ok(false) } else { self.has_before(found, i, e) };
        self.is_unknown |= known.is_err();
        known.unwrap_or(false)
    }

    fn has_before(&mut self, found: &[Found], i: usize, e: &Extent) -> Result<bool> {
        if self.state.is_none() {
            self.state = Some((self.load)()?.0);
        }
        while self.at.0 < i {
            let Some(f) = found.get(self.at.0) else { return Ok(false) };
            self.apply_some(f, false)?;
            self.at = (self.at.0 + 1, 0);
            self.moved.clear();
        }
        let Some(f) = found.get(i) else { return Ok(false) };
        self.apply_some(f, true)?;
        let (from, to) = (e.addr.0, e.addr.0.saturating_add(u64::from(e.blocks)));
        let own = self.moved.iter().any(|(start, end)| *start < to && from < *end);
        let state = self.state.as_ref().filter(|_| !own);
        state.map_or(Ok(false), |state| state.has_owners(e.addr, e.blocks))
    }

    /// Applies the rest of a partial, or that of it which comes before content.
    fn apply_some(&mut self, f: &Found, before_content: bool) -> Result<()> {
        let Some(state) = &mut self.state else { return Ok(()) };
        let Some(rest) = f.records.get(self.at.1..) else { return Ok(()) };
        let mut r = Reader::new(rest);
        while !r.is_empty() {
            let record = Record::decode(&mut r)
                .map_err(|why| Error::Corrupt(format!("a record of the partial at {}: {why}", f.header.addr)))?;
            match &record {
                Record::Content { .. } if before_content => break,
                Record::Move { new, .. } => {
                    self.moved.push((new.addr.0, new.addr.0.saturating_add(u64::from(new.blocks))));
                }
                _ => {}
            }
            state.apply(&record, f.header.payload_addr())?;
            self.at.1 = f.records.len() - r.rest().len();
        }
        Ok(())
    }
}

impl<'a> Walk<'a> {
    /// What the root has can be had: it was durable, whatever names it behind that.
    pub fn behind_state(mut self, load: &'a dyn Fn() -> Result<Loaded>) -> Self {
        self.before = Some(Before::new(load));
        self
    }

    /// Whether content that partial `i` names, and that is not as it should be, was durable before that.
    pub(super) fn was_durable(&mut self, found: &[Found], i: usize, e: &Extent) -> bool {
        let was = self.before.as_mut().is_some_and(|before| before.has(found, i, e));
        if was {
            self.wrong_before.insert(e.addr);
        }
        was
    }
}

/// Where the log behind a root ends.
pub(crate) fn walk_behind(storage: &Arc<Storage>, superblock: &Superblock, root: &Root) -> Result<Outcome> {
    let options = MountOptions::default();
    let load = || Ok((load_state(storage, superblock, root, &options, None)?.0, chain_of(superblock)));
    Walk::new(storage, &chain_of(superblock)).behind_state(&load).run()
}
