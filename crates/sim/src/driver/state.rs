//! What a mount of a crash image shows, and whether the promises of a cut allow it: of all devices and of some, alike.

use super::{Cut, Recorded, Tally};
use crate::checkpoint_log::CheckpointLog;
use crate::hash;
use crate::model::Model;
use crate::oracle::{self, Rules};
use crate::subject::Subject;
use crate::walk::{Found, walk};
use nenrin_core::{At, CheckpointInfo};
use nenrin_format::Cno;

/// What is compared of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub found: Found,
    listed: Vec<CheckpointInfo>,
    rule: Option<String>,
}

impl State {
    /// What is mounted shows this.
    pub fn of<S: Subject>(fs: &S) -> Result<Self, String> {
        is_undamaged(fs)?;
        Ok(Self { found: walk(fs, At::Live, None)?, listed: fs.checkpoints(), rule: fs.retention() })
    }

    /// Judges it after a cut at `k`. Returns the checkpoints whose states can be compared.
    pub fn judge<'m>(
        &self,
        model: &'m Model,
        rules: Rules,
        k: usize,
    ) -> Result<Vec<(CheckpointInfo, &'m CheckpointLog)>, String> {
        oracle::judge(model, rules, k, &self.found)?;
        oracle::judge_rule(model, rules, k, self.rule.as_deref())?;
        oracle::judge_checkpoints(model, rules, k, &self.listed)
    }
}

impl Recorded {
    /// Judges all that is mounted: what lives, the list of checkpoints, and of the past what is the turn of this cut.
    pub(super) fn look_into<S: Subject>(
        &self,
        fs: &S,
        cut: Cut,
        model: &Model,
        tally: &mut Tally,
    ) -> Result<State, String> {
        let state = State::of(fs)?;
        let known = state.judge(model, self.rules(cut.choice), cut.at)?;
        // Which past states are read depends on the cut alone, so that a replay reads the same.
        let turn = hash::of_words(&[cut.at as u64, cut.choice]);
        let shed = fs.shed().map_err(|e| format!("what was shed: {e}"))?;
        let all = turn % 32 == 0;
        let one = (turn as usize).checked_rem(known.len()).unwrap_or(0);
        for (n, (info, log)) in known.into_iter().enumerate() {
            if all || n == one {
                past_equals(fs, info.cno, |found| oracle::judge_past(&info, log, found, &shed))?;
                tally.past_states += 1;
            }
        }
        if turn % 8 == 3 {
            tally.names_told += fs.told()?;
        }
        if turn % 8 == 0 {
            tally.landmarks += oracle::judge_landmarks(fs, model)?;
        }
        Ok(state)
    }
}

/// A power cut damages nothing.
fn is_undamaged<S: Subject>(fs: &S) -> Result<(), String> {
    fs.damage().map_or(Ok(()), |d| Err(format!("a power cut is taken for damage: {d}")))
}

fn past_equals<S: Subject>(fs: &S, cno: Cno, judge: impl Fn(&Found) -> Result<(), String>) -> Result<(), String> {
    let found = walk(fs, At::Past(cno), None).map_err(|e| format!("checkpoint {cno}: {e}"))?;
    judge(&found)
}
