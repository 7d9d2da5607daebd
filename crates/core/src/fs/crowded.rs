//! How much room history may take while others write and room is short.
//!
//! Whoever overwrites much on a nearly full volume fills with history what the cleaner needs: it would copy nearly full
//! segments to gain hardly anything, and shed a little history again and again, each time by walking all of it. So
//! 1. unnamed checkpoints keep at most so much that three quarters of what is not live are left to the cleaner; what is beyond that,
//!    the heaviest files' first, goes in the background, before writers have to wait for it;
//! 2. where even the newest states of some minutes do not fit, no more are made until room is there, or some minutes have
//!    passed: they would be gone before anybody could want them.
//!
//! What is named is left alone, and who asks for a checkpoint gets one.

use super::heavy::{Found, Survey};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::{Error, Result};
use nenrin_format::Cno;
use nenrin_format::items::Checkpoint;
use std::collections::VecDeque;

/// Where history that was made does not fit, automatic checkpoints rest so long.
const REST_NANOS: u64 = 600_000_000_000;
/// What the cleaner has beside history while room is short, at least, in parts as large as that of history: a quarter of what is
/// not live goes to history, since with half of it overwriting costs as much as on a volume that is half as empty.
const LEFT_TO_CLEANER: u64 = 3;
/// The same while checkpoints rest, for files with much history: what the last checkpoints keep of them grows all the same, and would
/// take its quarter again and again. That of others does not grow, and stays.
const LEFT_WHILE_RESTING: u64 = 7;
/// Room, as part of the slack, below which history is looked at.
const SHORT: u64 = 4;
/// Room, as part of the slack, from which on there is room for history again, however much is written. More than the cleaner leaves
/// while others write: what it gained would be taken by history at once, and go again.
const AMPLE: u64 = 2;
/// Who takes longer than so many seconds to write a quarter of the slack writes little: the cleaner keeps up beside history.
const LITTLE_SECONDS: u64 = 60;
/// How fast others write is measured over so long.
const RATE_NANOS: u64 = 10_000_000_000;
/// So many times that are remembered.
const RATES: usize = 6;
/// Of a volume with less room than this part of it no checkpoints are made by themselves.
const FULL: u64 = 50;
/// Items of history looked at in one tick, for which the next timed commit waits: some dozen leaves. With a quarter of it history
/// grew by as much as there was to look at until it had been looked at, where 80 MB/s are overwritten.
const LOOKED_AT_MAX: usize = 16_384;
/// Nor longer than this, where a device is slow.
const LOOKED_FOR_NANOS: u64 = 50_000_000;

/// Why no checkpoints are made by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointsRest {
    /// History that was made did not fit beside what is written: for so long, or until there is room.
    Crowded {
        /// Nanoseconds.
        for_nanos: u64,
    },
    /// The volume is nearly full, until it no longer is.
    Full,
}

/// How fast others write.
#[derive(Default)]
pub(super) struct WriteRate {
    /// When (monotonic) it was last measured, and the blocks written until then.
    last: Option<(u64, u64)>,
    /// Blocks in a second, the newest last; of one minute.
    recent: VecDeque<u64>,
}

impl WriteRate {
    /// So many blocks were written until now.
    pub(super) fn note(&mut self, now: u64, blocks: u64) {
        let (since, before) = *self.last.get_or_insert((now, blocks));
        let passed = now.saturating_sub(since);
        if passed >= RATE_NANOS {
            let written = u128::from(blocks.saturating_sub(before));
            let per_second = u64::try_from(written * 1_000_000_000 / u128::from(passed)).unwrap_or(u64::MAX);
            if self.recent.len() == RATES {
                self.recent.pop_front();
            }
            self.recent.push_back(per_second);
            self.last = Some((now, blocks));
        }
    }

    /// The most within a minute: who writes much now and then writes much. `None` until it was measured for so long.
    fn most(&self) -> Option<u64> {
        self.recent.iter().max().copied().filter(|_| self.recent.len() == RATES)
    }
}

/// Checkpoints that somebody reads from.
#[derive(Clone, Copy)]
pub(super) enum Held {
    /// Stay.
    Never,
    /// Go after all others; their readers are told that they are gone.
    Last,
}

impl Inner {
    /// Whether room is short and history takes more of what is not needed than it leaves to the cleaner.
    pub(super) fn is_crowded(&self, fs: &Fs) -> bool {
        self.is_crowded_by(fs, LEFT_TO_CLEANER, 0)
    }

    /// The same while checkpoints rest, as far as files go that have much history.
    fn is_crowded_while_resting(&self, fs: &Fs) -> bool {
        self.cuts_rest(fs, fs.clock.monotonic_nanos()) && self.is_crowded_by(fs, LEFT_WHILE_RESTING, 0)
    }

    /// The same, were so many blocks more free.
    fn is_crowded_by(&self, fs: &Fs, left: u64, more: u64) -> bool {
        let more = more / u64::from(fs.storage.segment_blocks);
        let slack = self.slack_segments(fs) + more;
        let history = self.state.history_blocks.saturating_sub(self.named_history());
        !broken(Break::CrowdingUnseen)
            && history.saturating_mul(left) > slack * u64::from(fs.storage.segment_blocks)
            && (self.room_segments(fs) + more) * SHORT < slack
    }

    fn is_short(&self, fs: &Fs) -> bool {
        self.room_segments(fs) * SHORT < self.slack_segments(fs)
    }

    /// Whether checkpoints by themselves rest, because there is no room for history.
    pub(super) fn cuts_rest(&self, fs: &Fs, now: u64) -> bool {
        if now >= self.cuts_rest_until {
            return false;
        }
        let (room, slack) = (self.room_segments(fs), self.slack_segments(fs));
        let quarter = slack * u64::from(fs.storage.segment_blocks) / 4;
        let little = self.write_rate.most().is_some_and(|n| n.saturating_mul(LITTLE_SECONDS) < quarter);
        !little && room * AMPLE < slack
    }

    /// Counts what others have written; for each tick.
    pub(super) fn note_written(&mut self, now: u64) {
        let blocks = self.counters.data_blocks + self.counters.chain_blocks + self.pages;
        self.write_rate.note(now, blocks);
    }
}

impl Inner {
    /// Lets the oldest quarter of the unnamed checkpoints go, so that walking over history is done for much of it; whether there
    /// were any. What only they saw is for the caller to sweep.
    pub(super) fn shed_oldest(&mut self, fs: &Fs, held: Held) -> Result<bool> {
        let may_go = |c: &Checkpoint| !c.is_named() || broken(Break::SnapshotsShed);
        let is_held = |cno: &Cno| self.held.contains_key(cno);
        let mut cnos: Vec<Cno> = self.state.kept.iter().filter(|(_, c)| may_go(c)).map(|(cno, _)| *cno).collect();
        match held {
            Held::Last => cnos.sort_by_key(|cno| (is_held(cno), *cno)),
            Held::Never => cnos.retain(|cno| !is_held(cno)),
        }
        cnos.truncate(cnos.len().div_ceil(4));
        if cnos.is_empty() {
            return Ok(false);
        }
        self.counters.checkpoints_shed += cnos.len() as u64;
        self.shed_at = Some(fs.clock.monotonic_nanos());
        self.log_drops(&cnos, fs.clock.monotonic_nanos())?;
        Ok(true)
    }

    /// History goes because it left the cleaner too little.
    fn note_crowded(&mut self, now: u64) {
        // Once may be for what was kept long; twice is too much for what there is room for.
        if self.uncrowded_at.replace(now).is_some_and(|then| now.saturating_sub(then) < REST_NANOS) {
            self.cuts_rest_until = now.saturating_add(REST_NANOS);
        }
    }
}

impl Fs {
    /// Why no checkpoints are made by themselves at the moment, where they should be.
    #[must_use]
    pub fn checkpoints_rest(&self) -> Option<CheckpointsRest> {
        if self.options.read_only || self.options.checkpoint_nanos == 0 {
            return None;
        }
        let now = self.clock.monotonic_nanos();
        let inner = self.lock();
        if inner.cuts_rest(self, now) {
            return Some(CheckpointsRest::Crowded { for_nanos: inner.cuts_rest_until.saturating_sub(now) });
        }
        drop(inner);
        (!self.has_room_to_cut()).then_some(CheckpointsRest::Full)
    }

    /// Whether the volume is not so full that a checkpoint would be let go at once.
    pub(super) fn has_room_to_cut(&self) -> bool {
        let usage = self.usage();
        usage.available_blocks + usage.reserved_blocks > usage.total_blocks / FULL
    }

    /// Lets history go when it crowds out the cleaner: that of the heaviest files, where there are none the oldest unnamed
    /// checkpoints. A tick looks at some of history only, and what nobody sees any more is swept after it.
    pub(super) fn uncrowd(&self, now: u64) -> Result<()> {
        let mut inner = self.lock_to_change()?;
        let sweeping = inner.sweeping && !broken(Break::SweepUnseen);
        // What the last one let go comes first; and for want of nodes to spare others make room.
        if inner.sweep_wanted || inner.sweep.is_some() || sweeping || inner.nodes_to_let_go(self) == 0 {
            // While a sweep rests, time and again where a leaf is lost, one that does not go on would keep history from being merged.
            if inner.sweep_rests(now) && !broken(Break::SurveysStay) {
                inner.survey = None;
            }
            return Ok(());
        }
        // What counts as kept by snapshots is left alone, and may be less.
        if inner.state.past.is_doubtful() && inner.is_short(self) {
            inner.state.recount_past();
        }
        let under_way = inner.survey.take();
        // Looking through all of history is done for all who have too much of it.
        let crowded = inner.is_crowded(self);
        if !under_way.as_ref().is_some_and(Survey::has_found) && !crowded && !inner.is_crowded_while_resting(self) {
            return Ok(());
        }
        drop(inner);
        if crowded && self.end_holds_for(&|inner, more| !inner.is_crowded_by(self, LEFT_TO_CLEANER, more))? {
            return Ok(());
        }
        match under_way.or_else(|| self.survey()).map(|survey| self.uncrowd_some(survey, now)) {
            Some(Ok(true)) => Ok(()),
            Some(Err(e @ (Error::Failed(_) | Error::ReadOnly))) => Err(e),
            // Where history cannot be read there may be damage; what can be let go without reading it, is.
            None | Some(Ok(false) | Err(_)) if !crowded => Ok(()),
            None | Some(Ok(false) | Err(_)) => {
                let mut inner = self.lock_to_change()?;
                if inner.shed_oldest(self, Held::Never)? {
                    inner.note_crowded(now);
                    inner.sweep_wanted = true;
                }
                Ok(())
            }
        }
    }

    /// Goes on for a while with a survey, up to the next file with too much history, some of which it lets go; false when there
    /// was none at all.
    fn uncrowd_some(&self, mut survey: Survey, now: u64) -> Result<bool> {
        let (mut looked_at, begun) = (0, self.clock.monotonic_nanos());
        while looked_at < LOOKED_AT_MAX && self.clock.monotonic_nanos().saturating_sub(begun) < LOOKED_FOR_NANOS {
            looked_at += survey.piece();
            match self.survey_some(&mut survey)? {
                Found::More => {}
                Found::Heavy(heavy) => {
                    let is_first = !survey.has_let_go();
                    self.let_go_of(&mut survey, &heavy)?;
                    if is_first && survey.has_let_go() {
                        self.lock().note_crowded(now);
                    }
                    break;
                }
                Found::All => return Ok(survey.has_let_go()),
            }
        }
        self.lock().survey = Some(survey);
        Ok(true)
    }
}
