//! History of single inodes that was let go for want of room, but for what snapshots see.
//!
//! Invariants
//! 1. What is in memory is what the space tree has.
//! 2. A name of a checkpoint counts for what was shed later, so that snapshots lose nothing.
//! 3. What is remembered no longer forbids nothing then, nor later: anchors only become fewer.

use super::State;
use crate::breaks::{Break, broken};
use crate::{Error, Result};
use nenrin_format::items::{Checkpoint, Shed};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Cno, Ino, Invalid, Time};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Most of them: each costs memory.
pub const SHED_MAX: usize = 4096;

/// What was let go.
#[derive(Default)]
pub struct Sheds(BTreeMap<(Ino, Cno), (u32, Shed)>);

impl Sheds {
    /// That which concerns what died in `death`, if any does.
    pub fn covering(&self, ino: Ino, death: Cno) -> Option<&Shed> {
        if self.0.is_empty() {
            return None;
        }
        self.0.range((ino, death)..=(ino, Cno(u64::MAX))).next().map(|(_, (_, shed))| shed)
    }
    /// All, by inode.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Shed)> {
        self.0.iter().map(|((ino, _), (_, shed))| (*ino, shed))
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there is one of this number.
    pub fn has(&self, ino: Ino, upto: Cno, number: u32) -> bool {
        self.0.get(&(ino, upto)).is_some_and(|(n, _)| *n == number)
    }
}

/// The oldest checkpoints, as far as all of them are snapshots that may have what was shed.
struct Named {
    /// Their numbers, and when the last of all got its name that are not newer.
    until: Vec<(Cno, Cno)>,
    /// The first that is none.
    other: Option<Cno>,
}

impl Named {
    /// Of these, in order. A snapshot that was the first of its day and got its name later is one for what is kept by day as well, and
    /// that may have gone by what was shed.
    fn before_others<'a>(kept: impl Iterator<Item = (&'a Cno, &'a Checkpoint)>) -> Self {
        let (mut until, mut last) = (Vec::new(), Cno(0));
        for (cno, c) in kept {
            if !c.is_named() || c.is_daily() && c.named_at > cno.next() || broken(Break::ShedsPileUp) {
                return Self { until, other: Some(*cno) };
            }
            last = last.max(c.named_at);
            until.push((*cno, last));
        }
        Self { until, other: None }
    }

    /// Whether what was shed is kept for all that are older.
    fn have_all_before(&self, shed: &Shed) -> bool {
        let older = self.until.partition_point(|(cno, _)| *cno < shed.upto);
        let by = older.checked_sub(1).map_or(Cno(0), |newest| self.until[newest].1);
        self.other.is_none_or(|cno| cno >= shed.upto) && by <= shed.at
    }
}

impl State {
    pub(super) fn shed(&mut self, ino: Ino, upto: Cno, wall: Time, blocks: u64) -> Result<()> {
        if upto > self.open_cno || self.shed.len() > SHED_MAX {
            return Err(Error::Corrupt(format!("history of inode {ino} up to checkpoint {upto} is shed")));
        }
        if self.shed.covering(ino, upto).is_some() {
            return Ok(());
        }
        let of_it = self.shed.0.range((ino, Cno(0))..=(ino, Cno(u64::MAX)));
        let number = of_it.map(|(_, (number, _))| number.saturating_add(1)).max().unwrap_or(0);
        let shed = Shed { upto, at: self.open_cno, wall, blocks };
        self.space.insert(&self.cache, shed_key(ino, number), shed.encode().into())?;
        self.shed.0.insert((ino, upto), (number, shed));
        let landmarks: Vec<_> =
            self.landmarks.iter().filter(|((cno, _), l)| l.ino == ino && *cno < upto).map(|(at, _)| *at).collect();
        self.drop_landmarks(&landmarks)
    }

    /// Lets go of what no kept checkpoint needs to know: where all older ones are snapshots for which what was shed is kept anyway, it
    /// forbids nothing.
    pub(super) fn tidy_shed(&mut self) -> Result<()> {
        if self.shed.0.is_empty() {
            return Ok(());
        }
        let named = Named::before_others(self.kept.iter());
        let over = self.shed.0.iter().filter(|(_, (_, shed))| named.have_all_before(shed));
        let over: Vec<_> = over.map(|(k, v)| (*k, v.0)).collect();
        for ((ino, upto), number) in over {
            self.shed.0.remove(&(ino, upto));
            self.space.remove(&self.cache, &shed_key(ino, number))?;
        }
        Ok(())
    }

    /// Reads those of the space tree; what means nothing is given to `bad`.
    ///
    /// # Errors
    /// A node that cannot be read.
    pub fn load_shed(&mut self, bad: &mut dyn FnMut(&Key, Invalid)) -> Result<()> {
        let from = Key::space(Kind::Shed, 0, 0);
        let to = Key { fork: u32::MAX, off: u64::MAX, death: u64::MAX, ..from };
        let mut all = BTreeMap::new();
        self.space.scan(&self.cache, &from, &to, &mut |k, v| {
            match Shed::decode(v) {
                Ok(shed) if all.len() <= SHED_MAX => drop(all.insert((Ino(k.off), shed.upto), (k.fork, shed))),
                Ok(_) => bad(k, Invalid::Bounds),
                Err(why) => bad(k, why),
            }
            if all.len() <= SHED_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        self.shed = Sheds(all);
        Ok(())
    }
}

/// Key of an item in the space tree.
const fn shed_key(ino: Ino, number: u32) -> Key {
    Key::space(Kind::Shed, number, ino.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_device::Prng;
    use nenrin_format::items::{CHECKPOINT_DAILY, CHECKPOINT_NAMED};

    /// As asking each checkpoint says.
    fn asked_of_each(kept: &BTreeMap<Cno, Checkpoint>, shed: &Shed) -> bool {
        kept.range(..shed.upto).all(|(cno, c)| {
            let by = if c.is_daily() { shed.at.min(cno.next()) } else { shed.at };
            c.is_named() && c.named_at <= by
        })
    }

    fn checkpoint(flags: u32, named_at: u64) -> Checkpoint {
        Checkpoint { wall: Time(0), mounted_nanos: 0, flags, named_at: Cno(named_at), name: Vec::new() }
    }

    #[test]
    fn what_forbids_nothing_is_found_at_once() {
        let mut random = Prng::new(9);
        let (mut yes, mut no) = (0, 0);
        for _ in 0..3000 {
            let mut one = |cno: u64| {
                let named = random.below(12) > 0;
                let daily = if random.below(4) == 0 { CHECKPOINT_DAILY } else { 0 };
                let named_at = if random.below(4) == 0 { cno + random.below(8) } else { cno };
                checkpoint(if named { daily | CHECKPOINT_NAMED } else { daily }, if named { named_at } else { 0 })
            };
            let kept: BTreeMap<Cno, Checkpoint> = (1..=8).map(|n| (Cno(n * 2), one(n * 2))).collect();
            let upto = random.below(20);
            let shed = Shed { upto: Cno(upto), at: Cno(upto + random.below(6)), wall: Time(0), blocks: 1 };
            let found = Named::before_others(kept.iter()).have_all_before(&shed);
            assert_eq!(found, asked_of_each(&kept, &shed), "{kept:?} {shed:?}");
            (yes, no) = (yes + u32::from(found), no + u32::from(!found));
        }
        assert!(yes > 500 && no > 500, "{yes} {no}");
    }

    /// Who lets checkpoints go looks at each snapshot once, and at none behind the first checkpoint without a name.
    #[test]
    fn no_checkpoint_is_looked_at_for_each_file() {
        let mut kept: BTreeMap<Cno, Checkpoint> =
            (1..=10_000).map(|cno| (Cno(cno), checkpoint(CHECKPOINT_NAMED, cno))).collect();
        let looked = |kept: &BTreeMap<Cno, Checkpoint>| {
            let mut looked = 0;
            Named::before_others(kept.iter().inspect(|_| looked += 1));
            looked
        };
        assert_eq!(looked(&kept), 10_000);
        kept.insert(Cno(10), checkpoint(0, 0));
        assert_eq!(looked(&kept), 10);
    }
}
