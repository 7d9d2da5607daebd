//! Landmarks: versions of single files that outlive the checkpoints that showed
//! them. See docs/decisions/0017.
//!
//! Invariants
//! 1. What is in memory is what the space tree has.
//! 2. A landmark keeps the items of its file and of each directory on the way to it, and of their
//!    entries those on the way: what else there was then may be gone.

use super::State;
use crate::{Error, Result};
use nenrin_format::items::Landmark;
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Cno, Ino, Invalid};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Most landmarks of a volume: each costs memory. Between two times of letting some go there may be twice as many.
pub const LANDMARKS_MAX: usize = 20_000;

/// The landmarks of a volume, and what they keep.
#[derive(Default)]
pub struct Landmarks {
    all: BTreeMap<(Cno, u32), Landmark>,
    /// How many landmarks of a checkpoint keep an inode.
    inodes: BTreeMap<(u64, Cno), u32>,
    /// How many keep the entry of a directory at this `off`.
    entries: BTreeMap<(u64, u64, Cno), u32>,
}

impl Landmarks {
    /// All, in the order of their checkpoints.
    pub fn iter(&self) -> impl Iterator<Item = (&(Cno, u32), &Landmark)> {
        self.all.iter()
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }
    /// Whether there is one of this number.
    pub fn has(&self, cno: Cno, number: u32) -> bool {
        self.all.contains_key(&(cno, number))
    }
    /// A landmark of this checkpoint.
    pub fn at(&self, cno: Cno) -> Option<&Landmark> {
        self.all.range((cno, 0)..=(cno, u32::MAX)).next().map(|(_, l)| l)
    }
    /// A number that no landmark of this checkpoint has.
    pub fn next_number(&self, cno: Cno) -> u32 {
        self.all.range((cno, 0)..=(cno, u32::MAX)).next_back().map_or(0, |((_, n), _)| n.saturating_add(1))
    }
    /// The newest landmark of this file in `[birth, death)`.
    pub fn of(&self, ino: Ino, birth: Cno, death: Cno) -> Option<(Cno, &Landmark)> {
        if birth >= death {
            return None;
        }
        // Directories on the way to others are marked, too.
        let marked = self.inodes.range((ino.0, birth)..(ino.0, death)).rev();
        marked
            .flat_map(|((_, cno), _)| self.all.range((*cno, 0)..=(*cno, u32::MAX)))
            .find(|(_, l)| l.ino == ino)
            .map(|((cno, _), l)| (*cno, l))
    }
    /// The newest checkpoint in `[birth, death)` of which a landmark keeps this inode, or leads over it.
    pub fn newest(&self, ino: Ino, birth: Cno, death: Cno) -> Option<Cno> {
        let marked = (birth < death).then(|| self.inodes.range((ino.0, birth)..(ino.0, death)).next_back());
        marked.flatten().map(|((_, cno), _)| *cno)
    }
    /// The newest checkpoint in `[birth, death)` of which a landmark keeps the directory entry at this key.
    pub fn newest_entry(&self, key: &Key, birth: Cno, death: Cno) -> Option<Cno> {
        let range = (key.ino, key.off, birth)..(key.ino, key.off, death);
        let marked = (birth < death).then(|| self.entries.range(range).next_back());
        marked.flatten().map(|((.., cno), _)| *cno)
    }
    /// Whether one sees the item at `key` that lived in `[birth, death)`.
    pub fn see(&self, key: &Key, birth: Cno, death: Cno) -> bool {
        if birth >= death {
            return false;
        }
        match key.kind {
            Kind::Dirent => self.entries.range((key.ino, key.off, birth)..(key.ino, key.off, death)).next().is_some(),
            _ => self.inodes.range((key.ino, birth)..(key.ino, death)).next().is_some(),
        }
    }

    /// Those of these inodes, or with one of them on the way.
    pub fn through(&self, which: &BTreeSet<Ino>) -> Vec<(Cno, u32)> {
        let meets = |l: &Landmark| inodes(l).any(|ino| which.contains(&Ino(ino)));
        self.all.iter().filter(|(_, l)| meets(l)).map(|(number, _)| *number).collect()
    }

    /// Takes one that was read.
    pub fn load(&mut self, cno: Cno, number: u32, landmark: Landmark) {
        self.unload(cno, number);
        for ino in inodes(&landmark) {
            *self.inodes.entry((ino, cno)).or_default() += 1;
        }
        for (directory, off) in &landmark.steps {
            *self.entries.entry((directory.0, *off, cno)).or_default() += 1;
        }
        self.all.insert((cno, number), landmark);
    }

    pub(super) fn unload(&mut self, cno: Cno, number: u32) {
        fn less<K: Ord>(map: &mut BTreeMap<K, u32>, key: K) {
            if let Some(n) = map.get_mut(&key) {
                *n -= 1;
                if *n == 0 {
                    map.remove(&key);
                }
            }
        }
        let Some(landmark) = self.all.remove(&(cno, number)) else { return };
        for ino in inodes(&landmark) {
            less(&mut self.inodes, (ino, cno));
        }
        for (directory, off) in &landmark.steps {
            less(&mut self.entries, (directory.0, *off, cno));
        }
    }
}

fn inodes(landmark: &Landmark) -> impl Iterator<Item = u64> + '_ {
    landmark.steps.iter().map(|(directory, _)| directory.0).chain([landmark.ino.0])
}

impl State {
    pub(super) fn add_landmark(&mut self, cno: Cno, number: u32, landmark: &Landmark) -> Result<()> {
        if cno >= self.open_cno {
            return Err(Error::Corrupt(format!("a landmark of checkpoint {cno}, while {} is open", self.open_cno)));
        }
        if self.landmarks.len() > 2 * LANDMARKS_MAX {
            return Err(Error::Corrupt("more landmarks than are ever kept".into()));
        }
        if inodes(landmark).any(|ino| self.forgetting.contains(&Ino(ino))) {
            return Ok(());
        }
        self.space.insert(&self.cache, landmark_key(cno, number), landmark.encode().into())?;
        self.landmarks.load(cno, number, landmark.clone());
        Ok(())
    }

    pub(super) fn drop_landmarks(&mut self, which: &[(Cno, u32)]) -> Result<()> {
        for (cno, number) in which {
            self.landmarks.unload(*cno, *number);
            self.space.remove(&self.cache, &landmark_key(*cno, *number))?;
        }
        Ok(())
    }

    /// Reads those of the space tree; what means nothing is given to `bad`.
    ///
    /// # Errors
    /// A node that cannot be read.
    pub fn load_landmarks(&mut self, bad: &mut dyn FnMut(&Key, Invalid)) -> Result<()> {
        let from = Key::space(Kind::Landmark, 0, 0);
        let to = Key { fork: u32::MAX, off: u64::MAX, death: u64::MAX, ..from };
        let mut landmarks = Landmarks::default();
        self.space.scan(&self.cache, &from, &to, &mut |k, v| {
            if landmarks.len() > 2 * LANDMARKS_MAX {
                // Nothing of ours wrote so many.
                bad(k, Invalid::Bounds);
                return ControlFlow::Break(());
            }
            match Landmark::decode(v) {
                Ok(l) => landmarks.load(Cno(k.off), k.fork, l),
                Err(why) => bad(k, why),
            }
            ControlFlow::Continue(())
        })?;
        self.landmarks = landmarks;
        Ok(())
    }
}

/// Key of a landmark in the space tree.
const fn landmark_key(cno: Cno, number: u32) -> Key {
    Key::space(Kind::Landmark, number, cno.0)
}
