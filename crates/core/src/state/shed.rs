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
    /// forbids nothing. A snapshot that was the first of its day and got its name later is one for what is kept by day as well, and that
    /// may have gone by what was shed.
    pub(super) fn tidy_shed(&mut self) -> Result<()> {
        let all = |shed: &Shed| {
            let keeps = |(cno, c): (&Cno, &Checkpoint)| {
                let by = if c.is_daily() { shed.at.min(cno.next()) } else { shed.at };
                c.is_named() && c.named_at <= by && !broken(Break::ShedsPileUp)
            };
            self.kept.range(..shed.upto).all(keeps)
        };
        let over: Vec<_> = self.shed.0.iter().filter(|(_, (_, shed))| all(shed)).map(|(k, v)| (*k, v.0)).collect();
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
