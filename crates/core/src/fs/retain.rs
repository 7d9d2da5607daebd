//! The retention rule at work: unnamed checkpoints are thinned as they age.

use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::retention::{Kept, Moment, Retention};
use crate::{Error, Result};
use nenrin_format::Cno;
use nenrin_format::items::Extent;
use nenrin_format::key::Kind;
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// How often the rule is applied. Sweeping what only thinned checkpoints saw
/// costs a walk over history, so not with every checkpoint.
const THIN_NANOS: u64 = 600_000_000_000;
/// Items of history looked at under one clone of a tree.
const ITEMS_AT_ONCE: usize = 4096;
/// Checkpoints let go by one record.
const CNOS_MAX: usize = 512;

impl Inner {
    /// The rule; one that an unknown version wrote and this one cannot read keeps everything.
    fn retention(&self) -> Option<Retention> {
        let text = std::str::from_utf8(&self.state.retention).ok()?;
        if text.is_empty() { Some(Retention::default()) } else { Retention::parse(text).ok() }
    }

    /// Nanoseconds that the volume has been mounted for, over its whole life.
    pub(super) fn mounted_nanos(&self, now: u64) -> u64 {
        self.superblock.mounted_nanos.saturating_add(now.saturating_sub(self.mounted_at))
    }
}

impl Fs {
    /// The retention rule, in the words of [`Retention`].
    #[must_use]
    pub fn retention(&self) -> String {
        let inner = self.lock();
        match inner.retention() {
            Some(rule) => rule.to_string(),
            None => String::from_utf8_lossy(&inner.state.retention).into_owned(),
        }
    }

    /// Sets the retention rule, durably. It is applied within ten minutes.
    ///
    /// # Errors
    /// [`Error::BadRule`]; those of a sync.
    pub fn set_retention(&self, rule: &str) -> Result<()> {
        let value = if rule == "default" { String::new() } else { Retention::parse(rule)?.to_string() };
        let mut inner = self.room_to_let_go()?;
        inner.log(&Record::Retention { value: value.as_bytes() }, self.clock.monotonic_nanos())?;
        drop(inner);
        if broken(Break::RuleNotSynced) { Ok(()) } else { self.sync_received(false) }
    }

    /// A checkpoint is in use, for instance mounted: retention leaves it alone.
    ///
    /// # Errors
    /// [`Error::Stale`] when it is not kept.
    pub fn hold_checkpoint(&self, cno: Cno) -> Result<()> {
        let mut inner = self.lock();
        if !inner.state.kept.contains_key(&cno) {
            return Err(Error::Stale);
        }
        *inner.held.entry(cno).or_default() += 1;
        Ok(())
    }

    /// A use of a checkpoint has ended.
    pub fn let_checkpoint_go(&self, cno: Cno) {
        let mut inner = self.lock();
        if let Some(uses) = inner.held.get_mut(&cno) {
            *uses -= 1;
            if *uses == 0 {
                inner.held.remove(&cno);
            }
        }
    }

    /// Blocks of content that letting these checkpoints go would free: those
    /// that no other kept checkpoint sees, and that are not live. Walks over
    /// the history that they see, without keeping others from working.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when one is unknown; an index node that cannot be read.
    pub fn freed_by_dropping(&self, cnos: &[Cno]) -> Result<u64> {
        let inner = self.lock();
        if let Some(cno) = cnos.iter().find(|c| !inner.state.kept.contains_key(c)) {
            return Err(Error::Checkpoint(format!("there is no checkpoint {cno}")));
        }
        let now: BTreeSet<Cno> = inner.state.kept.keys().copied().collect();
        let first = cnos.iter().min().copied().unwrap_or(Cno::NEVER);
        // A tree whose newest death was before the first of them holds nothing that they see.
        let trees: Vec<TreeId> =
            inner.state.history.iter().filter(|t| t.deaths.1 > first).map(|t| t.tree.id()).collect();
        drop(inner);
        let then: BTreeSet<Cno> = now.iter().filter(|c| !cnos.contains(c)).copied().collect();
        let sees =
            |kept: &BTreeSet<Cno>, birth: Cno, death: Cno| birth < death && kept.range(birth..death).next().is_some();
        let mut blocks = 0;
        for id in trees {
            let mut from = Some(super::background::first_key());
            while let Some(start) = from.take() {
                let inner = self.lock();
                let Some(tree) = inner.tree(id).cloned() else { break };
                let (cache, generation) = (inner.state.cache.clone(), inner.generation());
                drop(inner);
                let (mut seen, mut found) = (0, 0);
                let scanned = tree.scan(&cache, &start, &super::cleaning::last_key(), &mut |k, v| {
                    if seen == ITEMS_AT_ONCE {
                        from = Some(*k);
                        return ControlFlow::Break(());
                    }
                    seen += 1;
                    if k.kind == Kind::Extent {
                        if let Ok(e) = Extent::decode(v) {
                            let death = Cno(k.death);
                            if sees(&now, e.birth, death) && !sees(&then, e.birth, death) {
                                found += u64::from(e.stored_blocks());
                            }
                        }
                    }
                    ControlFlow::Continue(())
                });
                match scanned {
                    Ok(()) => blocks += found,
                    // Index checkpoints since then may have used the places of old nodes again.
                    Err(_) if self.lock().generation() != generation => from = Some(start),
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(blocks)
    }

    /// Lets go what the rule does not keep, now and then.
    pub(super) fn thin(&self, now: u64) -> Result<()> {
        let mut inner = self.lock();
        if now.saturating_sub(inner.thinned_at) < THIN_NANOS {
            return Ok(());
        }
        inner.thinned_at = now;
        let Some(rule) = inner.retention() else { return Ok(()) };
        let moment = Moment { wall: self.clock.wall().0, mounted: inner.mounted_nanos(now) };
        let held = |inner: &Inner, cno: &Cno| inner.held.contains_key(cno);
        let kept: Vec<Kept> = inner
            .state
            .kept
            .iter()
            .map(|(cno, c)| Kept {
                cno: *cno,
                moment: Moment { wall: c.wall.0, mounted: c.mounted_nanos },
                held: c.is_named() || held(&inner, cno),
            })
            .collect();
        drop(inner);
        let drops = rule.drops(moment, &kept);
        for cnos in drops.chunks(CNOS_MAX) {
            let mut inner = self.room_to_let_go()?;
            // Meanwhile one may have got a name, a use, or gone.
            let free = |cno: &&Cno| inner.state.kept.get(cno).is_some_and(|c| !c.is_named()) && !held(&inner, cno);
            let cnos: Vec<Cno> = cnos.iter().filter(free).copied().collect();
            if !cnos.is_empty() {
                inner.log(&Record::DropCheckpoints { cnos }, now)?;
                inner.sweep_wanted = true;
            }
        }
        Ok(())
    }
}
