//! How much room history may take while others write and room is short.
//!
//! Whoever overwrites much on a nearly full volume fills with history what the cleaner needs: it would copy nearly full
//! segments to gain hardly anything, and shed a little history again and again, each time by walking all of it. So
//! 1. unnamed checkpoints keep at most so much that half of what is not needed is left to the cleaner; what is beyond that,
//!    the heaviest files' first, goes in the background, before writers have to wait for it;
//! 2. where even the newest states of some minutes do not fit, no more are made until room is there, or some minutes have
//!    passed: they would be gone before anybody could want them.
//!
//! What is named is left alone, and who asks for a checkpoint gets one.

use super::{Fs, Inner};
use crate::{Error, Result};
use nenrin_format::Cno;
use nenrin_format::records::Record;

/// Where history that was made does not fit, automatic checkpoints rest so long.
const REST_NANOS: u64 = 600_000_000_000;
/// Room, as part of the slack, below which history is looked at.
const SHORT: u64 = 4;

impl Inner {
    /// Whether room is short and history takes more of what is not needed than it leaves to the cleaner.
    fn is_crowded(&self, fs: &Fs) -> bool {
        let slack = self.slack_segments(fs);
        let history = self.state.history_blocks.saturating_sub(self.named_history());
        history > slack * u64::from(fs.storage.segment_blocks) && self.room_segments(fs) * SHORT < slack
    }

    /// Whether checkpoints by themselves rest, because there is no room for history.
    pub(super) fn cuts_rest(&self, fs: &Fs, now: u64) -> bool {
        now < self.cuts_rest_until && self.room_segments(fs) * SHORT < self.slack_segments(fs)
    }
}

impl Fs {
    /// Lets history go when it crowds out the cleaner: that of the heaviest files, where there are none the oldest unnamed
    /// checkpoints; what only they saw is swept after it.
    pub(super) fn uncrowd(&self, now: u64) -> Result<()> {
        let inner = self.lock_to_change()?;
        if inner.sweep_wanted || inner.sweep.is_some() || !inner.is_crowded(self) {
            return Ok(());
        }
        drop(inner);
        let mut inner = self.room_to_let_go()?;
        // Once may be for what was kept long; twice is too much for what there is room for.
        if inner.uncrowded_at.replace(now).is_some_and(|then| now.saturating_sub(then) < REST_NANOS) {
            inner.cuts_rest_until = now.saturating_add(REST_NANOS);
        }
        drop(inner);
        match self.shed_heavy() {
            Ok(true) => return Ok(()),
            Err(e @ (Error::Failed(_) | Error::ReadOnly)) => return Err(e),
            // Where history cannot be read there may be damage; what can be let go without reading it, is.
            Ok(false) | Err(_) => {}
        }
        let mut inner = self.lock_to_change()?;
        let free = |cno: &Cno| !inner.held.contains_key(cno);
        let unnamed: Vec<Cno> =
            inner.state.kept.iter().filter(|(cno, c)| !c.is_named() && free(cno)).map(|(cno, _)| *cno).collect();
        // A quarter of them, so that walking over history is done for much of it.
        let count = unnamed.len().div_ceil(4);
        let cnos: Vec<Cno> = unnamed.into_iter().take(count).collect();
        if cnos.is_empty() {
            return Ok(());
        }
        inner.counters.checkpoints_shed += cnos.len() as u64;
        inner.log(&Record::DropCheckpoints { cnos }, now)?;
        inner.sweep_wanted = true;
        Ok(())
    }
}
