//! Which blocks were written a short time ago: they will be written again soon.
//!
//! Blocks that die together should lie together. What is overwritten often goes to segments of its own, which empty by
//! themselves; what is not stays dense. A block counts as hot when it was written twice in this span of writes and the one
//! before, which is kept in filters (Bloom 1970). A wrong answer costs a copy and nothing else, so they are small, and
//! nothing of them is kept over a mount.

use nenrin_format::Ino;

/// Bits for each block that a filter is to remember.
const BITS: u64 = 8;
/// Blocks that a filter remembers at most: 8 GiB of content, in 2 MiB.
const SPAN_MAX: u64 = 2 << 20;
/// And at least.
const SPAN_MIN: u64 = 1024;

/// What was written last.
#[derive(Debug, Default)]
pub(super) struct Recency {
    /// Written in this span, and in the one before.
    once: [Vec<u64>; 2],
    /// Found there when it was written.
    again: [Vec<u64>; 2],
    noted: u64,
    span: u64,
}

impl Recency {
    /// Begins a span, on a volume with so many blocks of content: half of them is one.
    fn turn(&mut self, live_blocks: u64) {
        let span = (live_blocks / 2).clamp(SPAN_MIN, SPAN_MAX).next_power_of_two();
        if span != self.span {
            let empty = || vec![0; (span * BITS / 64) as usize];
            *self = Self { once: [empty(), empty()], again: [empty(), empty()], noted: 0, span };
        }
        for filters in [&mut self.once, &mut self.again] {
            filters.swap(0, 1);
            filters[0].fill(0);
        }
        self.noted = 0;
    }

    fn places(&self, ino: Ino, block: u64) -> [(usize, u64); 2] {
        let bits = self.span * BITS;
        let hash = (ino.0.rotate_left(32) ^ block).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let hash = hash ^ hash >> 31;
        [hash % bits, (hash >> 32).wrapping_mul(0x9e37_79b9) % bits].map(|bit| ((bit / 64) as usize, 1 << (bit % 64)))
    }

    /// Notes that a block is written; whether it was a short time ago, too.
    pub(super) fn note(&mut self, ino: Ino, block: u64, live_blocks: u64) -> bool {
        if self.noted >= self.span {
            self.turn(live_blocks);
        }
        self.noted += 1;
        let places = self.places(ino, block);
        let hot = is_in(&self.once, &places);
        for (word, bit) in places {
            self.once[0][word] |= bit;
            if hot {
                self.again[0][word] |= bit;
            }
        }
        hot
    }

    /// Whether a block was written twice a short time ago.
    pub(super) fn is_hot(&self, ino: Ino, block: u64) -> bool {
        self.span > 0 && is_in(&self.again, &self.places(ino, block))
    }
}

fn is_in(filters: &[Vec<u64>; 2], places: &[(usize, u64)]) -> bool {
    filters.iter().any(|f| places.iter().all(|(word, bit)| f[*word] & bit != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_twice_in_two_spans_is_hot() {
        let mut r = Recency::default();
        let ino = Ino(7);
        assert!(!r.is_hot(ino, 1), "nothing was written yet");
        assert!(!r.note(ino, 1, 0) && !r.is_hot(ino, 1));
        assert!(!r.note(Ino(8), 1, 0));
        assert!(r.note(ino, 1, 0) && r.is_hot(ino, 1) && !r.is_hot(Ino(8), 1));
        // Others come; after two spans it is forgotten.
        let wrong = (0..2 * SPAN_MIN).filter(|block| r.note(Ino(9), *block, 0)).count();
        assert!(wrong < 100, "{wrong} were taken for hot");
        assert!(!r.is_hot(ino, 1) && !r.note(ino, 1, 0));
    }

    #[test]
    fn a_span_follows_the_content() {
        let mut r = Recency::default();
        for block in 0..=SPAN_MIN {
            r.note(Ino(7), block, 1 << 20);
        }
        assert_eq!((r.span, r.once[0].len() as u64 * 64), (1 << 19, (1 << 19) * BITS));
        assert!(size_of_val(&r.once[0][..]) <= (SPAN_MAX * BITS / 8) as usize);
    }
}
