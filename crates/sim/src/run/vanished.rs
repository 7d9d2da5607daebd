//! P6 of checkpoints without a name: none goes without a reason.
//!
//! There are three. Somebody deletes it; then the call that does so has taken it off the list. The rule does not keep it any more,
//! which is applied by `tick` and before an unmount, and computed here from the clock and from when each was cut. Or room is short:
//! without what history takes there was less than the call takes and a margin besides, or, for what goes on in the background, history
//! has taken much of what is available; what is moved since devices came, went or changed their length takes all there is. One that somebody reads from goes for want of room only, and not in the background.
//! What truncations will free that are held back until the file is closed counts as taken here: history goes before that is ended.

use super::{Check, Run, Step};
use crate::ops::Op;
use crate::subject::Subject;
use nenrin_core::{CheckpointInfo, Clock, Error, Kept, Moment, Retention};
use nenrin_format::Cno;
use std::collections::{BTreeMap, BTreeSet};

/// History is looked at in the background from so much of what is available on: less than a quarter of it, with what waits.
const HISTORY_SHARE: u64 = 5;

/// When checkpoints were cut, and whether room was short.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    /// Of those cut in this run.
    moments: BTreeMap<u64, Moment>,
    /// Mounts so far.
    mounts: u16,
    /// Something of the volume is older than the run, or a mount has died: how long the volume was mounted is not known.
    ages_unknown: bool,
    /// Checkpoints that somebody reads from, and how many do.
    held: BTreeMap<u64, u32>,
    /// Room was short before this call, or since others are at work.
    short: bool,
    /// The same for what goes on in the background.
    crowded: bool,
    /// What was available, and what of that history has.
    room: (u64, u64),
}

impl Reasons {
    /// A mount began.
    pub(super) fn mounted(&mut self) {
        self.mounts += 1;
        self.held.clear();
    }

    /// From now on ages are not known.
    pub(super) const fn forget_ages(&mut self) {
        self.ages_unknown = true;
    }

    /// Before a call that takes so many blocks, margin included, where `available` are, of which history has `shed`; `beside` others
    /// who are at work.
    pub(super) fn note_room(&mut self, wanted: u64, (available, shed): (u64, u64), is_laying: bool, beside: bool) {
        let short = is_laying || available.saturating_sub(shed) < wanted;
        // What is kept back is within the margin.
        let crowded = shed.saturating_mul(HISTORY_SHARE) > available.saturating_sub(wanted);
        self.room = (available, shed);
        self.short = short || self.short && beside;
        self.crowded = crowded || self.crowded && beside;
    }

    /// A checkpoint was cut just now.
    pub(super) fn cut(&mut self, cno: u64, wall: i64, clock: &impl Clock) {
        self.moments.insert(cno, Moment { wall, mounted: clock.monotonic_nanos(), mount: self.mounts });
    }
}

impl<S: Subject> Run<S> {
    /// Somebody begins to read from a checkpoint that is kept, or of which landmarks are left.
    pub(super) fn hold_checkpoint(&mut self, cno: u64) -> Check {
        let is_left = self.fs()?.landmarks().iter().any(|(of, _)| of.0 == cno);
        let there = is_left || self.listed.iter().any(|c| c.cno.0 == cno);
        match self.fs()?.hold_checkpoint(Cno(cno)) {
            Ok(()) if there => {
                *self.reasons.held.entry(cno).or_default() += 1;
                Ok(Step::Done)
            }
            Err(Error::Stale) if !there => Ok(Step::Denied),
            Err(Error::NotSupported) => Ok(Step::Denied),
            other => Err(format!("a use of checkpoint {cno}, which is there: {there}, is answered by {other:?}")),
        }
    }

    pub(super) fn let_checkpoint_go(&mut self, cno: u64) -> Check {
        self.fs()?.let_checkpoint_go(Cno(cno));
        if let Some(uses) = self.reasons.held.get_mut(&cno) {
            *uses -= 1;
        }
        self.reasons.held.retain(|_, uses| *uses > 0);
        Ok(Step::Done)
    }

    /// Checkpoints of this list that the rule does not keep now; `None` where that is not known.
    fn not_kept(&self, rule: &Retention, list: &[CheckpointInfo]) -> Option<Vec<u64>> {
        let now =
            Moment { wall: self.clock.wall().0, mounted: self.clock.monotonic_nanos(), mount: self.reasons.mounts };
        let kept = |c: &CheckpointInfo| {
            let moment = *self.reasons.moments.get(&c.cno.0)?;
            Some(Kept { cno: c.cno, moment, held: c.name.is_some() || self.reasons.held.contains_key(&c.cno.0) })
        };
        let kept: Option<Vec<Kept>> = list.iter().map(kept).collect();
        Some(rule.drops(now, &kept?).into_iter().map(|cno| cno.0).collect())
    }

    /// Whether there was a reason for these to go, of those listed before; `now` are those listed afterwards.
    ///
    /// # Errors
    /// There was none.
    pub(super) fn judge_gone(
        &mut self,
        op: &Op,
        gone: &[u64],
        before: &[CheckpointInfo],
        now: &[CheckpointInfo],
    ) -> Result<(), String> {
        let thins = matches!(op, Op::Tick | Op::Remount);
        if gone.is_empty() || self.reasons.short || self.fs()?.is_laying() {
            return Ok(());
        }
        if let Some(cno) = gone.iter().find(|cno| self.reasons.held.contains_key(cno)) {
            return Err(format!("checkpoint {cno} is in use and went, and room is not short"));
        }
        if thins && self.reasons.crowded {
            return Ok(());
        }
        if !thins {
            return Err(format!("checkpoints {gone:?} went, nobody deleted them, and room is not short"));
        }
        let Some(rule) = self.model()?.rules.last().map(|r| r.rule.clone()) else {
            return Err(format!("checkpoints {gone:?} went, and there is no rule"));
        };
        if self.reasons.ages_unknown {
            return Ok(());
        }
        let rule = Retention::parse(&rule).map_err(|e| e.to_string())?;
        let mut thinned: BTreeSet<u64> = BTreeSet::new();
        // One that was cut in the same call is among them, or not.
        let with_new: Vec<CheckpointInfo> =
            before.iter().chain(now.iter().filter(|n| before.iter().all(|b| b.cno != n.cno))).cloned().collect();
        for list in [before, &with_new] {
            thinned.extend(self.not_kept(&rule, list).ok_or("a checkpoint of which it is not known when it was cut")?);
        }
        match gone.iter().find(|cno| !thinned.contains(cno)) {
            Some(cno) => Err(format!(
                "checkpoint {cno} went, room is not short {:?}, and of {:?} the rule {rule} keeps all but {thinned:?}",
                self.reasons.room,
                before.iter().map(|c| c.cno.0).collect::<Vec<_>>()
            )),
            None => Ok(()),
        }
    }
}
