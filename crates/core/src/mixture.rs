//! What each of several copies has a part of, put together.
//!
//! Invariants
//! 1. A bounded number of mixtures is tried: for time, and since each is another chance that a checksum of 32 bits fits what is wrong.

use crate::breaks::{Break, broken};
use crate::storage::Storage;
use nenrin_device::AlignedBuf;
use nenrin_format::{Addr, BLOCK_BYTES};

/// Mixtures that are tried at most: of nine parts that differ all, or of many with one of them from the other of two copies.
const MIXTURES_MAX: usize = 512;

/// A part of what is put together, from each copy that gives it.
type Part = Vec<Option<AlignedBuf>>;

/// All copies of some blocks.
pub(crate) struct Copies<'a> {
    storage: &'a Storage,
    addr: Addr,
    /// The device that each does without, and what came where all of it did.
    wholes: Vec<(Option<u16>, Option<AlignedBuf>)>,
}

impl<'a> Copies<'a> {
    /// Reads all of them as wholes.
    pub fn read(storage: &'a Storage, addr: Addr, blocks: u32) -> Self {
        let mut ways: Vec<Option<u16>> = storage.ways_around(addr, blocks).into_iter().map(Some).collect();
        // Without each of several devices every copy is met; without one, only the others'.
        if ways.len() < 2 {
            ways.insert(0, None);
        }
        let mut this = Self { storage, addr, wholes: Vec::new() };
        this.wholes = ways.into_iter().map(|way| (way, this.read_way(way, 0, blocks))).collect();
        this
    }

    fn read_way(&self, way: Option<u16>, from: u32, count: u32) -> Option<AlignedBuf> {
        let addr = self.addr.add(from);
        match way {
            Some(avoid) => self.storage.read_around(addr, count, avoid).ok(),
            None => self.storage.read(addr, count).ok(),
        }
    }

    /// Those that could be read as wholes.
    pub fn wholes(&self) -> impl Iterator<Item = &AlignedBuf> {
        self.wholes.iter().filter_map(|(_, whole)| whole.as_ref())
    }

    /// Whether all of them could.
    pub fn is_complete(&self) -> bool {
        self.wholes.iter().all(|(_, whole)| whole.is_some())
    }

    /// So many blocks of each, from this one on; read by themselves where a copy could not be read as a whole.
    pub fn part(&self, from: u32, count: u32) -> Part {
        let bytes = from as usize * BLOCK_BYTES..(from + count) as usize * BLOCK_BYTES;
        let of = |(way, whole): &(Option<u16>, Option<AlignedBuf>)| match whole {
            Some(whole) => whole.get(bytes.clone()).map(AlignedBuf::padded),
            None => self.read_way(*way, from, count),
        };
        self.wholes.iter().map(of).collect()
    }
}

/// So many blocks in parts of `grain`, of which each but the first begins at a multiple; `None` as soon as there is no copy of one.
pub(crate) fn parts(addr: Addr, blocks: u32, grain: u32, part: impl Fn(u32, u32) -> Part) -> Option<Vec<Part>> {
    let (mut out, mut from) = (Vec::new(), 0);
    while from < blocks {
        let count = (grain - addr.add(from).block() % grain).min(blocks - from);
        let part = part(from, count);
        if part.iter().all(Option::is_none) {
            return None;
        }
        out.push(part);
        from += count;
    }
    Some(out)
}

/// Parts, each of which was found in some copies, put together so that all of it is `right`. Where there are more mixtures than are tried:
/// those that have all but a few parts from one copy.
pub(crate) fn mixed(parts: Vec<Part>, right: impl Fn(&[u8]) -> bool) -> Option<AlignedBuf> {
    let copies = parts.iter().map(Vec::len).max().unwrap_or(0);
    let unlike: Vec<Unlike<'_>> = parts.iter().map(Unlike::new).collect();
    let mixtures = unlike.iter().fold(1usize, |n, some| n.saturating_mul(some.bytes.len()));
    if parts.len() < 2 {
        return None;
    }
    let fits = |chosen: &[usize]| {
        let pieces = || unlike.iter().zip(chosen).map(|(some, i)| some.bytes[*i]);
        let mixed = AlignedBuf::gathered(pieces().map(<[u8]>::len).sum(), pieces());
        right(&mixed).then_some(mixed)
    };
    match mixtures {
        0..=MIXTURES_MAX => each(&unlike, &fits),
        _ if broken(Break::FewMixtures) => None,
        _ => nearest(&unlike, copies, &fits),
    }
}

/// What copies of a part are, each once.
struct Unlike<'a> {
    bytes: Vec<&'a [u8]>,
    /// Which of them each copy has.
    of_copy: Vec<Option<usize>>,
}

impl<'a> Unlike<'a> {
    fn new(part: &'a Part) -> Self {
        let mut bytes: Vec<&[u8]> = Vec::new();
        let of = |copy: &'a Option<AlignedBuf>| {
            let copy = copy.as_deref()?;
            let known = bytes.iter().position(|other| *other == copy);
            Some(known.unwrap_or_else(|| {
                bytes.push(copy);
                bytes.len() - 1
            }))
        };
        let of_copy = part.iter().map(of).collect();
        Self { bytes, of_copy }
    }
}

/// What was tried: `None` when no more may be, and otherwise what fits.
type Tried = Option<Option<AlignedBuf>>;

/// All mixtures.
fn each(unlike: &[Unlike<'_>], fits: &dyn Fn(&[usize]) -> Option<AlignedBuf>) -> Option<AlignedBuf> {
    let mixtures = unlike.iter().map(|some| some.bytes.len()).product();
    (0..mixtures).find_map(|mut number: usize| {
        let choose = |some: &Unlike<'_>| {
            let i = number % some.bytes.len();
            number /= some.bytes.len();
            i
        };
        fits(&unlike.iter().map(choose).collect::<Vec<_>>())
    })
}

/// Mixtures with none, one or two parts that are not from the copy that the others are from, as far as that has them: as many for each copy.
fn nearest(unlike: &[Unlike<'_>], copies: usize, fits: &dyn Fn(&[usize]) -> Option<AlignedBuf>) -> Option<AlignedBuf> {
    let others: Vec<usize> = (0..unlike.len()).filter(|i| unlike[*i].bytes.len() > 1).collect();
    (0..copies).find_map(|copy| {
        let of = |some: &Unlike<'_>| some.of_copy.get(copy).copied().flatten().unwrap_or(0);
        let mut base: Vec<usize> = unlike.iter().map(of).collect();
        let mut left = MIXTURES_MAX / copies;
        let mut try_one = |chosen: &[usize]| {
            left = left.checked_sub(1)?;
            Some(fits(chosen))
        };
        (0..3).find_map(|changed| with_others(unlike, &mut base, &others, changed, &mut try_one).flatten())
    })
}

/// A mixture in which so many of these parts are other copies.
fn with_others(
    unlike: &[Unlike<'_>],
    chosen: &mut [usize],
    parts: &[usize],
    changed: usize,
    fits: &mut dyn FnMut(&[usize]) -> Tried,
) -> Tried {
    if changed == 0 {
        return fits(chosen);
    }
    for (i, part) in parts.iter().enumerate() {
        let was = chosen[*part];
        for other in (0..unlike[*part].bytes.len()).filter(|other| *other != was) {
            chosen[*part] = other;
            let tried = with_others(unlike, chosen, &parts[i + 1..], changed - 1, fits);
            chosen[*part] = was;
            if !matches!(tried, Some(None)) {
                return tried;
            }
        }
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Parts of two copies that differ in all of them.
    fn unlike_parts(count: u8) -> Vec<Part> {
        let part = |i: u8| [i, 100 + i].map(|b| Some(AlignedBuf::padded(&[b; 4096]))).into_iter().collect();
        (0..count).map(part).collect()
    }

    /// How many were tried until the mixture was found that has these parts from the second copy.
    fn tried(count: u8, second: &[u8]) -> (bool, usize) {
        let tried = Cell::new(0);
        let right = |bytes: &[u8]| {
            tried.set(tried.get() + 1);
            (0..count).zip(bytes.chunks(4096)).all(|(i, b)| b[0] == if second.contains(&i) { 100 + i } else { i })
        };
        (mixed(unlike_parts(count), right).is_some(), tried.get())
    }

    #[test]
    fn of_few_parts_each_mixture_is_tried() {
        for second in 0..512u32 {
            let second: Vec<u8> = (0..9).filter(|i| second >> i & 1 == 1).collect();
            assert!(tried(9, &second).0, "{second:?}");
        }
        assert_eq!(tried(8, &[200]), (true, 1));
        assert!(mixed(vec![Vec::new()], |_| true).is_none());
    }

    fn of_many_parts_those_near_a_copy_are_tried() {
        for at in 0..16 {
            assert!(tried(16, &[at]).0, "one part is from the other copy");
            let all_but: Vec<u8> = (0..16).filter(|i| *i != at).collect();
            assert!(tried(16, &all_but).0, "one part is from the other copy");
        }
        assert!(tried(16, &[2, 11]).0);
    }

    #[test]
    fn of_many_parts_those_are_tried_that_are_mostly_of_one_copy() {
        of_many_parts_those_near_a_copy_are_tried();
        let all_but = |at: u8| (0..100).filter(|i| *i != at).collect::<Vec<u8>>();
        assert!(tried(100, &[99]).0 && tried(100, &all_but(99)).0 && tried(100, &all_but(0)).0);
        let (found, tries) = tried(30, &[1, 5, 7, 9, 11, 13]);
        assert!(!found && tries == MIXTURES_MAX, "{tries}");
        let lacking = unlike_parts(16).into_iter().chain([vec![None, None]]).collect();
        assert!(mixed(lacking, |_| true).is_none());
        // What a copy does not give comes from the other, and counts as no change.
        let mut some = unlike_parts(16);
        (some[3][1], some[9][1], some[12][1]) = (None, None, None);
        let right =
            |bytes: &[u8]| (0u8..16).zip(bytes.chunks(4096)).all(|(i, b)| (b[0] == i) == [3, 9, 12].contains(&i));
        assert!(mixed(some, right).is_some());
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "one part is from the other copy")]
    fn many_parts_that_are_not_tried_are_noticed() {
        crate::breaks::with(Break::FewMixtures, of_many_parts_those_near_a_copy_are_tried);
    }
}
