//! What a power cut does to the changes that were not flushed.
//!
//! Invariants
//! 1. The fates depend on the seed, the cut point and the number and lengths
//!    of the unflushed changes, and on nothing else: seed and cut point are
//!    enough to make an image again.

use super::image::{Change, Image, SECTOR_BYTES};
use crate::prng::{Prng, mix};
use std::fmt;

/// Which of the unflushed changes survive a power cut, chosen by a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashChoice(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Dropped,
    Applied,
    LastTorn { sectors: Option<u64> },
    Random(u64),
}

impl CrashChoice {
    /// Seed under which no unflushed change survives.
    pub const SEED_DROPPED: u64 = 0;
    /// Seed under which all survive.
    pub const SEED_APPLIED: u64 = 1;
    /// Seed under which all survive, the last one with its first half only.
    pub const SEED_LAST_TORN: u64 = 2;

    /// The choice of `seed`; 0, 1 and 2 have the fixed meanings above.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self(match seed {
            Self::SEED_DROPPED => Kind::Dropped,
            Self::SEED_APPLIED => Kind::Applied,
            Self::SEED_LAST_TORN => Kind::LastTorn { sectors: None },
            seed => Kind::Random(seed),
        })
    }

    /// All survive, the last one with its first `sectors` sectors only.
    #[must_use]
    pub fn last_torn(sectors: u64) -> Self {
        Self(Kind::LastTorn { sectors: Some(sectors) })
    }

    /// `base` with the survivors of a cut at `cut` put over it.
    pub(super) fn apply(&self, cut: usize, base: &Image, unflushed: &[&Change]) -> Image {
        let mut image = base.clone();
        for (n, fate) in self.fates(cut, unflushed) {
            let change = unflushed[n];
            match fate {
                Fate::Dropped => {}
                Fate::Applied => image.apply(change),
                Fate::Prefix(end) => image.apply_torn(change, |s| s < end),
                Fate::Suffix(start) => image.apply_torn(change, |s| s >= start),
                Fate::Hole(at) => image.apply_torn(change, |s| s != at),
                Fate::Scattered(seed) => image.apply_torn(change, |s| mix(seed ^ s) & 1 == 0),
            }
        }
        image
    }

    /// The fates in the order in which the disk gets to them.
    pub(super) fn fates(&self, cut: usize, unflushed: &[&Change]) -> Vec<(usize, Fate)> {
        let last = unflushed.len().wrapping_sub(1);
        let fixed = |n: usize| match self.0 {
            Kind::Applied => Fate::Applied,
            Kind::LastTorn { .. } if n != last => Fate::Applied,
            Kind::LastTorn { sectors: Some(sectors) } => Fate::Prefix(sectors),
            Kind::LastTorn { sectors: None } => Fate::Prefix(unflushed[n].sectors() / 2),
            Kind::Dropped | Kind::Random(_) => Fate::Dropped,
        };
        match self.0 {
            Kind::Random(seed) => random_fates(Prng::new(mix(seed) ^ cut as u64), unflushed),
            _ => (0..unflushed.len()).map(|n| (n, fixed(n))).collect(),
        }
    }
}

/// Four kinds of disks: an even mixture, one that had nearly finished, one
/// that had hardly begun, and one that writes in order. Overlapping changes
/// reach the medium in any order, now and then.
fn random_fates(mut prng: Prng, unflushed: &[&Change]) -> Vec<(usize, Fate)> {
    let style = prng.below(4);
    let stop = prng.below(unflushed.len() as u64 + 1) as usize;
    let mut fates = Vec::with_capacity(unflushed.len());
    for (n, change) in unflushed.iter().enumerate() {
        let roll = prng.below(8);
        let fate = match (style, roll) {
            (0, 0..4) | (1, 0..6) | (2, 0) => Fate::Applied,
            (0, 4..6) | (1, 6) | (2, 1..7) => Fate::Dropped,
            (3, _) if n < stop => Fate::Applied,
            (3, _) if n > stop => Fate::Dropped,
            _ => torn(&mut prng, change.sectors()),
        };
        fates.push((n, fate));
    }
    if prng.below(4) == 0 {
        for n in (1..fates.len()).rev() {
            fates.swap(n, prng.below(n as u64 + 1) as usize);
        }
    }
    fates
}

fn torn(prng: &mut Prng, sectors: u64) -> Fate {
    if sectors < 2 {
        return Fate::Dropped;
    }
    let inside = 1 + prng.below(sectors - 1);
    match prng.below(8) {
        0..5 => Fate::Prefix(inside),
        5 => Fate::Suffix(inside),
        6 => Fate::Hole(inside),
        _ => Fate::Scattered(prng.next_u64()),
    }
}

/// What became of one change. Numbers are sectors from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Dropped,
    Applied,
    Prefix(u64),
    Suffix(u64),
    Hole(u64),
    Scattered(u64),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped => f.write_str("dropped"),
            Self::Applied => f.write_str("applied"),
            Self::Prefix(end) => write!(f, "first {end} sectors of {SECTOR_BYTES}"),
            Self::Suffix(start) => write!(f, "all but the first {start} sectors"),
            Self::Hole(at) => write!(f, "all but sector {at}"),
            Self::Scattered(seed) => write!(f, "sectors by seed {seed:#x}"),
        }
    }
}
