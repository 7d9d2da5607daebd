//! Leaves of the space tree are lost in both copies and for both roots: what lives is shown without them, read-only.
//!
//! | what the leaves may have held | what follows |
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
use std::sync::Arc;

/// What of the space tree cannot be read.
pub(super) struct Spaceless {
    survey: Survey,
    /// Where the first of the nodes lies.
    first: Option<Addr>,
}

impl Spaceless {
    /// Of a root whose space tree is not whole.
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
        if survey.lost.is_empty() {
            return Err(Error::Corrupt("the space tree is whole".into()));
        }
        // What has one right copy is read as it is.
        survey.weak.clear();
        Ok(Self { survey, first })
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
        let place = self.first.map_or_else(|| "the index".into(), |a| Error::Damaged(a, Invalid::Checksum).to_string());
        let past = if has_past { "some checkpoints may be missing" } else { "nothing of the past is shown" };
        let text = format!(
            "{place}: of the space tree no copy can be read there, so it is not known which segments are free and nothing \
             is written, and {past}; nenrin check --repair counts anew what it held (with -n it tells what is lost)"
        );
        report.damage = Some(report.damage.take().map_or_else(|| text.clone(), |also| format!("{text}; and {also}")));
        report.verdicts.push(Verdict::Damage);
    }

    /// Whether they may have held what forbids to show something of the past.
    fn may_forbid(&self) -> bool {
        [Kind::Forget, Kind::Shed].iter().any(|kind| {
            let (from, to) = (Key::space(*kind, 0, 0), Key::space(*kind, u32::MAX, u64::MAX));
            self.survey.lost.iter().any(|l: &LostRange| l.meets(&from, &to))
        })
    }
}
