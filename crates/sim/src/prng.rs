//! Chance from a seed: splitmix64, so that a seed means the same on every
//! machine and in every version of the program.

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Prng(u64);

/// One step of splitmix64: scrambles `v` so that neighbours have nothing in common.
#[must_use]
pub const fn scramble(v: u64) -> u64 {
    let mut z = v.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Prng {
    /// The stream of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(scramble(seed))
    }
    /// The stream of `seed` for one purpose, independent of the other purposes.
    #[must_use]
    pub const fn stream(seed: u64, purpose: u64) -> Self {
        Self(scramble(seed ^ scramble(purpose)))
    }
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.0)
    }
    /// Below `n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
    /// An index into something of length `n`.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }
    /// From `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }
    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    /// One of `items`.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.index(items.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_stable_and_apart() {
        let mut a = Prng::new(1);
        let first: Vec<u64> = (0..3).map(|_| a.next_u64()).collect();
        let mut again = Prng::new(1);
        assert_eq!(first, (0..3).map(|_| again.next_u64()).collect::<Vec<_>>());
        assert_ne!(first[0], Prng::new(2).next_u64());
        assert_ne!(Prng::stream(1, 1).next_u64(), Prng::stream(1, 2).next_u64());
        assert!((0..1000).all(|_| a.below(7) < 7 && (3..=5).contains(&a.range(3, 5))));
    }
}
