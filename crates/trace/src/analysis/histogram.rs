//! Counts by value, in buckets that are never wider than an eighth of the value.

use std::collections::BTreeMap;

/// A histogram of unsigned numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: BTreeMap<u16, u64>,
    count: u64,
    sum: u128,
    max: u64,
}

const STEPS_BITS: u32 = 3;

fn bucket(value: u64) -> u16 {
    let top = 64 - value.leading_zeros();
    if top <= STEPS_BITS + 1 {
        return value as u16;
    }
    let shift = top - STEPS_BITS - 1;
    ((shift << STEPS_BITS) as u64 + (value >> shift)) as u16
}

/// The smallest value of a bucket.
fn floor(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    let steps = 1 << STEPS_BITS;
    if bucket < 2 * steps {
        return bucket;
    }
    let shift = bucket / steps - 1;
    (bucket % steps + steps) << shift
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        *self.buckets.entry(bucket(value)).or_default() += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }
    /// Values counted.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }
    /// Their mean; 0 of nothing.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(u128::from(self.count)).unwrap_or(0) as u64
    }
    /// The largest; 0 of nothing.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }
    /// The value that this share (0 to 1) of all is not above, at most an eighth too small.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (b, n) in &self.buckets {
            seen += n;
            if seen >= wanted {
                return if seen == self.count { self.max } else { floor(*b) };
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        let mut last = 0;
        for v in (0..5000).chain((13..64).map(|b| 1 << b)).chain([u64::MAX]) {
            let b = bucket(v);
            assert!(floor(b) <= v && v - floor(b) <= v / 8, "{v} in a bucket from {}", floor(b));
            assert!(b == last || b == last + 1 || v > 5000, "{v}: {b} after {last}");
            last = b;
        }
    }

    #[test]
    fn quantiles() {
        let mut h = Histogram::default();
        assert_eq!((h.mean(), h.quantile(0.5), h.max()), (0, 0, 0));
        (1..=100).for_each(|v| h.add(v));
        assert_eq!((h.count(), h.mean(), h.max(), h.quantile(1.0)), (100, 50, 100, 100));
        assert!((44..=50).contains(&h.quantile(0.5)) && (88..=100).contains(&h.quantile(0.99)));
    }
}
