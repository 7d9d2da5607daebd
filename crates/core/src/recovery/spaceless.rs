//! Leaves of the space tree are lost in both copies and for both roots, or items in them mean nothing: what lives is shown without them, read-only.
//!
//! | what the leaves may have held, or the items may have said | what follows |
//! |---|---|
//! | the use of segments, back references, what is to be removed | nothing is written: it is not known what is free |
//! | checkpoints, landmarks | those are not listed |
//! | what is to be forgotten, what was shed | nothing of the past is shown: not what was forgotten, and nothing else in its place |
//! | none of these, but the log is not applied to its end | the same: what is behind may have said so |
//!
//! Invariants
//! 1. Nothing is shown that the leaves may forbid.
//! 2. The log is applied as far as it can be without them; where it cannot, the rest is not shown, as with any other leaf.

use super::{RecoveryReport, Verdict};
use crate::breaks::{Break, broken};
use crate::index::{LostRange, NodeCache, Survey, Tree};
use crate::state::{Landmarks, State};
use crate::storage::Storage;
use crate::{Error, Result};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::root::Root;
use nenrin_format::{Addr, Invalid};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What of the space tree cannot be read.
pub(super) struct Spaceless {
    survey: Survey,
    /// Where the first of the nodes lies.
    first: Option<Addr>,
    /// Items that mean nothing, and what is wrong with the first of them.
    bad: RefCell<(BTreeSet<Key>, Option<String>)>,
}

impl Spaceless {
    /// Of a root.
    pub fn of(storage: &Arc<Storage>, root: &Root, cache_bytes: usize) -> Result<Self> {
        let cache = NodeCache::new(storage.clone(), cache_bytes);
        let mut first = None;
        let mut copies = |ptr: &_| {
            let right = storage.right_copies(ptr);
            if right == [false, false] {
                first = first.or(Some(ptr.copies[0]));
            }
            right
        };
        let tree = root.trees.iter().find(|t| t.tree == TreeId::SPACE).map(Tree::open);
        let mut survey = tree.map(|t| t.survey(&cache, &mut copies)).unwrap_or_default();
        // What has one right copy is read as it is.
        survey.weak.clear();
        Ok(Self { survey, first, bad: RefCell::default() })
    }

    /// An item is as if it were lost.
    pub fn note_bad(&self, key: &Key, why: &Error) {
        let mut bad = self.bad.borrow_mut();
        bad.0.insert(*key);
        bad.1.get_or_insert_with(|| why.to_string());
    }

    /// Whether nothing of the tree is lost, as far as a state was loaded of it.
    pub fn is_whole(&self) -> bool {
        self.survey.lost.is_empty() && self.bad.borrow().0.is_empty()
    }

    /// Takes them out of the tree in memory.
    pub fn prune(&self, state: &mut State) -> Result<()> {
        state.space.prune(&state.cache, &self.survey)
    }

    /// Ends the past of a state that is complete otherwise, and says what is the matter.
    pub fn settle(&self, state: &mut State, no_recovery: bool, report: &mut RecoveryReport) {
        // What of the log is not applied may forbid something, too.
        let is_all = report.damage.is_none() && !no_recovery;
        let has_past = !self.may_forbid() && is_all || broken(Break::SpacelessPast);
        if !has_past {
            state.kept.clear();
            state.landmarks = Landmarks::default();
            state.history.clear();
        }
        let of_item = || self.bad.borrow().1.clone().unwrap_or_else(|| "the index".into());
        let place = self.first.map_or_else(of_item, |a| Error::Damaged(a, Invalid::Checksum).to_string());
        let what = match self.first {
            Some(_) => "of the space tree no copy can be read there",
            None => "this item of the space tree means nothing",
        };
        let past = if has_past { "some checkpoints may be missing" } else { "nothing of the past is shown" };
        let text = format!(
            "{place}: {what}, so it is not known which segments are free and nothing \
             is written, and {past}; nenrin check --repair counts anew what it held (with -n it tells what is lost)"
        );
        report.damage = Some(report.damage.take().map_or_else(|| text.clone(), |also| format!("{text}; and {also}")));
        report.verdicts.push(Verdict::Damage);
    }

    /// Whether they may have held what forbids to show something of the past.
    fn may_forbid(&self) -> bool {
        [Kind::Forget, Kind::Shed].iter().any(|kind| {
            let (from, to) = (Key::space(*kind, 0, 0), Key::space(*kind, u32::MAX, u64::MAX));
            let is_bad = self.bad.borrow().0.range(from..=to).next().is_some();
            is_bad || self.survey.lost.iter().any(|l: &LostRange| l.meets(&from, &to))
        })
    }
}

/// Items that mean nothing, while a state is loaded.
pub(super) struct Bad<'a> {
    /// It counts them among what is lost.
    spaceless: Option<&'a Spaceless>,
    /// Why there is no state, where nobody does.
    first: RefCell<Option<Error>>,
}

impl<'a> Bad<'a> {
    pub fn of(spaceless: Option<&'a Spaceless>) -> Self {
        Self { spaceless, first: RefCell::default() }
    }

    pub fn note(&self, key: &Key, why: Error) {
        match self.spaceless.filter(|_| !broken(Break::BadItemEnds)) {
            Some(spaceless) => spaceless.note_bad(key, &why),
            None => drop(self.first.borrow_mut().get_or_insert(why)),
        }
    }

    /// Why there is no state.
    pub fn first(self) -> Option<Error> {
        self.first.into_inner()
    }
}
