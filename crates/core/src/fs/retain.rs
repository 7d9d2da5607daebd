//! The retention rule at work: unnamed checkpoints are thinned as they age.

use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::retention::{DAY, Kept, Moment, Retention};
use crate::{Clock, Error, Result};
use nenrin_format::Cno;
use nenrin_format::items::Checkpoint;
use nenrin_format::records::Record;
use std::collections::BTreeSet;

/// How often the rule is applied. Sweeping what only thinned checkpoints saw
/// costs a walk over history, so not with every checkpoint.
const THIN_NANOS: u64 = 600_000_000_000;
/// And after a mount for the first time. A volume may never be mounted for longer than some minutes.
const FIRST_THIN_NANOS: u64 = 60_000_000_000;
/// Nor for as long: then it is applied before the volume is unmounted, where that is little work. So many checkpoints go then,
const LAST_CNOS_MAX: usize = CNOS_MAX;
/// with so many items of history, which are looked through for landmarks.
const LAST_ITEMS_MAX: u64 = 100_000;
/// So many mounts are told apart.
const MOUNTS: u64 = u16::MAX as u64;
/// Checkpoints let go by one record.
const CNOS_MAX: usize = 512;

/// How long after a mount the rule is first applied.
pub(super) fn first_thin_nanos() -> u64 {
    if broken(Break::ShortMountsKeep) { THIN_NANOS } else { FIRST_THIN_NANOS }
}

impl Inner {
    /// The rule; one that an unknown version wrote and this one cannot read keeps everything.
    pub(super) fn retention(&self) -> Option<Retention> {
        let text = std::str::from_utf8(&self.state.retention).ok()?;
        if text.is_empty() { Some(Retention::default()) } else { Retention::parse(text).ok() }
    }

    /// The kept checkpoints, and for which the rule does not count.
    pub(super) fn kept(&self, is_held: impl Fn(&Cno, bool) -> bool) -> Vec<Kept> {
        let kept =
            |(cno, c): (&Cno, &Checkpoint)| Kept { cno: *cno, moment: moment_of(c), held: is_held(cno, c.is_named()) };
        self.state.kept.iter().map(kept).collect()
    }

    /// The same of those that have no name and no use.
    fn kept_by_all(&self) -> Vec<Kept> {
        self.kept(|cno, is_named| is_named || self.held.contains_key(cno) && !broken(Break::HeldThinned))
    }

    /// Whether a checkpoint of this moment is the first of a day.
    pub(super) fn begins_day(&self, now: Moment) -> bool {
        let last = self.state.kept.values().rev().find(|c| c.is_daily());
        last.is_none_or(|c| now.begins_day_after(moment_of(c)))
    }

    /// Lets checkpoints go, by records that each fit the log.
    pub(super) fn log_drops(&mut self, cnos: &[Cno], now: u64) -> Result<()> {
        let most = if broken(Break::DropsUnbounded) { cnos.len().max(1) } else { CNOS_MAX };
        let mut records = cnos.chunks(most).map(|cnos| Record::DropCheckpoints { cnos: cnos.to_vec() });
        records.try_for_each(|record| self.log(&record, now))
    }

    /// Nanoseconds that the volume has been mounted for, over its whole life, suspended or not.
    pub(super) fn mounted_nanos(&self, now: u64) -> u64 {
        let awake = now.saturating_sub(self.mounted_at);
        self.superblock.mounted_nanos.saturating_add(awake).saturating_add(self.suspended.counted)
    }

    /// Now.
    pub(super) fn moment(&self, fs: &Fs) -> Moment {
        let mount = if fs.options.read_only { 0 } else { (self.chain.epoch.0 % MOUNTS) as u16 + 1 };
        Moment { wall: fs.clock.wall().0, mounted: self.mounted_nanos(fs.clock.monotonic_nanos()), mount }
    }
}

/// For how long the machine was suspended while the volume is mounted. The kernel has that from the machine's battery clock, which anybody
/// may have set meanwhile: as of other pauses, no more than a day is believed of each.
pub(super) struct Suspended {
    /// Since the machine was started.
    seen: u64,
    /// Since the superblock said how long the volume had been mounted.
    counted: u64,
}

impl Suspended {
    pub(super) fn new(clock: &dyn Clock) -> Self {
        Self { seen: suspended_nanos(clock), counted: 0 }
    }

    /// Counts what there was since the last look, of which there are many between two; what is counted now.
    pub(super) fn note(&mut self, clock: &dyn Clock) -> u64 {
        let now = suspended_nanos(clock);
        let more = now.saturating_sub(self.seen);
        let believed = if broken(Break::SuspendsBelieved) { more } else { more.min(DAY) };
        self.counted = self.counted.saturating_add(believed);
        self.seen = self.seen.max(now);
        self.counted
    }

    /// So much of it the superblock says.
    pub(super) const fn take_off(&mut self, nanos: u64) {
        self.counted = self.counted.saturating_sub(nanos);
    }
}

/// The monotonic time first: what goes by between is counted once, as suspended, in each mount.
fn suspended_nanos(clock: &dyn Clock) -> u64 {
    let awake = clock.monotonic_nanos();
    clock.lease_nanos().saturating_sub(awake)
}

/// Those that the rule does without.
fn thinned(rule: &Retention, moment: Moment, kept: &[Kept]) -> Vec<Cno> {
    let mut drops = rule.drops(moment, kept);
    if broken(Break::ThinnedTooMuch) {
        drops.extend(kept.last().filter(|newest| !newest.held && !drops.contains(&newest.cno)).map(|k| k.cno));
    }
    drops
}

/// When a checkpoint was cut.
fn moment_of(c: &Checkpoint) -> Moment {
    Moment { wall: c.wall.0, mounted: c.mounted_nanos, mount: c.mount() }
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

    /// How much longer the rule keeps each checkpoint, in nanoseconds from now on; `None` for ever. A full volume
    /// may let those without a name go before.
    #[must_use]
    pub fn keeps_for(&self) -> Vec<(Cno, Option<u64>)> {
        let inner = self.lock();
        let kept: Vec<Kept> = inner.kept(|_, is_named| is_named);
        let Some(rule) = inner.retention() else { return kept.iter().map(|k| (k.cno, None)).collect() };
        let moment = inner.moment(self);
        let left = rule.keeps_for(moment, &kept);
        kept.iter().zip(left).map(|(k, left)| (k.cno, left)).collect()
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

    /// A checkpoint, or what landmarks keep of it, is in use, for instance mounted: retention leaves it alone.
    ///
    /// # Errors
    /// [`Error::Stale`] when it is not kept.
    pub fn hold_checkpoint(&self, cno: Cno) -> Result<()> {
        let mut inner = self.lock();
        if !inner.state.kept.contains_key(&cno) && inner.state.landmarks.at(cno).is_none() {
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

    /// Lets go what the rule does not keep, now and then.
    pub(super) fn thin(&self, now: u64) -> Result<()> {
        let is_due = now >= self.lock().thin_at;
        if is_due { self.thin_now(now, usize::MAX) } else { Ok(()) }
    }

    /// The same before an unmount, where that should have been done, there is room to do it in, and it is little work. What cannot be
    /// read waits for the next mount.
    pub(super) fn thin_at_end(&self) {
        let (now, inner) = (self.clock.monotonic_nanos(), self.lock());
        let items: u64 = inner.state.history.iter().map(|t| t.tree.items()).sum();
        let is_due = !inner.thinned || now >= inner.thin_at;
        let is_done = !is_due || items > LAST_ITEMS_MAX || inner.nodes_to_spare(self) == 0 || inner.failed.is_some();
        drop(inner);
        if !is_done && !broken(Break::ShortMountsKeep) {
            drop(self.thin_now(now, LAST_CNOS_MAX));
        }
    }

    /// Lets so many checkpoints go that the rule does not keep, the oldest first.
    fn thin_now(&self, now: u64, most: usize) -> Result<()> {
        let mut inner = self.lock();
        (inner.thin_at, inner.thinned) = (now.saturating_add(THIN_NANOS), true);
        let Some(rule) = inner.retention() else { return Ok(()) };
        let moment = inner.moment(self);
        let kept = inner.kept_by_all();
        drop(inner);
        let mut drops = thinned(&rule, moment, &kept);
        drops.truncate(most);
        // What cannot be read has no landmarks; it must not keep anything else from going.
        let marked = match self.keep_landmarks(&rule, &drops) {
            Err(e @ (Error::Failed(_) | Error::ReadOnly)) => return Err(e),
            other => other,
        };
        self.drop_thinned(&rule, moment, &drops, now)?;
        self.drop_landmarks(&rule, &kept, moment)?;
        marked
    }

    /// Lets these checkpoints go, as far as the rule does without them still: meanwhile one may have got a name, a use, or gone, and then
    /// another stays for its stretch of time.
    fn drop_thinned(&self, rule: &Retention, moment: Moment, drops: &[Cno], now: u64) -> Result<()> {
        for some in drops.chunks(CNOS_MAX) {
            let mut inner = self.room_to_let_go()?;
            let now_free: BTreeSet<Cno> = match broken(Break::ThinnedUnlooked) {
                true => some.iter().filter(|cno| inner.state.kept.contains_key(cno)).copied().collect(),
                false => thinned(rule, moment, &inner.kept_by_all()).into_iter().collect(),
            };
            let cnos: Vec<Cno> = some.iter().filter(|cno| now_free.contains(cno)).copied().collect();
            if !cnos.is_empty() {
                inner.log(&Record::DropCheckpoints { cnos }, now)?;
                inner.sweep_wanted = true;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{device, mount};

    /// The oldest of a stretch of time goes for another reason after it was decided that the others of it are to go.
    fn another_goes_meanwhile() {
        let fs = mount(&device(64, 64), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        for n in 0..3 {
            crate::testing::create(&fs, &format!("f{n}"));
            fs.checkpoint_create(None).unwrap();
        }
        // All of them lie in one stretch, and the rule keeps one.
        let rule = Retention::parse("1d:1h").unwrap();
        let inner = fs.lock();
        let (moment, kept) = (inner.moment(&fs), inner.kept_by_all());
        drop(inner);
        let drops = rule.drops(moment, &kept);
        assert_eq!(kept.iter().filter(|k| !drops.contains(&k.cno)).count(), 1, "{kept:?}");
        let first = kept.iter().find(|k| !drops.contains(&k.cno)).unwrap().cno;
        fs.checkpoint_drop(&[first]).unwrap();
        fs.drop_thinned(&rule, moment, &drops, 0).unwrap();
        assert_eq!(fs.lock().state.kept.len(), 1, "nothing is left of a stretch of time");
        fs.close().unwrap();
    }

    #[test]
    fn what_the_rule_keeps_is_decided_when_others_go() {
        another_goes_meanwhile();
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "nothing is left of a stretch of time")]
    fn who_thins_by_an_old_list_is_noticed() {
        crate::breaks::with(Break::ThinnedUnlooked, another_goes_meanwhile);
    }
}
