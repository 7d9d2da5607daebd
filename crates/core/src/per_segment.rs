//! Something for each segment of a volume, found by its number.
//!
//! Invariants
//! 1. Memory goes by how many segments there are. Numbers are nothing to go by: an image may state any.

use nenrin_format::SegmentNo;
use std::ops::Range;

/// Segments in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ordinals {
    /// Runs of numbers, and how many come before each.
    runs: Vec<(Range<u64>, u64)>,
}

impl Ordinals {
    /// Of segments with these numbers, which are in order.
    pub fn of(numbers: Vec<Range<u64>>) -> Self {
        let mut before = 0;
        let run = |r: Range<u64>| {
            let first = before;
            before += r.end.saturating_sub(r.start);
            (r, first)
        };
        Self { runs: numbers.into_iter().map(run).collect() }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|(r, _)| r.end.saturating_sub(r.start)).sum()
    }

    /// How many come before this one; `None` if there is none with this number.
    pub fn place(&self, segment: SegmentNo) -> Option<u64> {
        let run = self.runs.partition_point(|(r, _)| r.start <= segment.0).checked_sub(1)?;
        let (numbers, before) = self.runs.get(run)?;
        numbers.contains(&segment.0).then(|| before + (segment.0 - numbers.start))
    }
}

/// Values of segments.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerSegment<T> {
    ordinals: Ordinals,
    all: Vec<T>,
}

impl<T: Copy + Default> PerSegment<T> {
    /// One for each segment with these numbers.
    pub fn of(numbers: Vec<Range<u64>>) -> Self {
        let ordinals = Ordinals::of(numbers);
        let all = vec![T::default(); ordinals.count() as usize];
        Self { ordinals, all }
    }

    /// That of a segment; the default where there is none.
    pub fn get(&self, segment: SegmentNo) -> T {
        let place = self.ordinals.place(segment);
        place.and_then(|i| self.all.get(i as usize)).copied().unwrap_or_default()
    }

    /// Changes that of a segment, if there is one.
    pub fn change(&mut self, segment: SegmentNo, change: impl FnOnce(&mut T)) {
        let place = self.ordinals.place(segment);
        if let Some(value) = place.and_then(|i| self.all.get_mut(i as usize)) {
            change(value);
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (SegmentNo, T)> + '_ {
        let numbers = self.ordinals.runs.iter().flat_map(|(r, _)| r.clone()).map(SegmentNo);
        numbers.zip(self.all.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_far_apart() {
        let mut all: PerSegment<u32> = PerSegment::of(vec![3..5, 1 << 40..(1 << 40) + 2]);
        for (n, value) in [(3, 1), (4, 2), (1 << 40, 3), ((1 << 40) + 1, 4), (2, 9), (5, 9), ((1 << 40) + 2, 9)] {
            all.change(SegmentNo(n), |v| *v = value);
        }
        assert_eq!(
            all.iter().map(|(no, v)| (no.0, v)).collect::<Vec<_>>(),
            [(3, 1), (4, 2), (1 << 40, 3), ((1 << 40) + 1, 4)]
        );
        assert_eq!([2, 3, 5, (1 << 40) + 1, u64::MAX].map(|n| all.get(SegmentNo(n))), [0, 1, 0, 4, 0]);
        assert_eq!(Ordinals::of(vec![3..5, 8..9]).place(SegmentNo(8)), Some(2));
    }
}
