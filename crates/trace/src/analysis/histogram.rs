//! Counts by value, in buckets that are never wider than a thirty-second part of the value.

use std::collections::BTreeMap;

/// A histogram of unsigned numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: BTreeMap<u16, u64>,
    count: u64,
    sum: u128,
    max: u64,
}

const STEPS_BITS: u32 = 5;

fn bucket(value: u64) -> u16 {
    let top = 64 - value.leading_zeros();
    if top <= STEPS_BITS + 1 {
        return value as u16;
    }
    let shift = top - STEPS_BITS - 1;
    ((shift << STEPS_BITS) as u64 + (value >> shift)) as u16
}

/// The smallest and the largest value of a bucket.
fn values(bucket: u16) -> (u64, u64) {
    let bucket = u64::from(bucket);
    let steps = 1 << STEPS_BITS;
    if bucket < 2 * steps {
        return (bucket, bucket);
    }
    let shift = bucket / steps - 1;
    let floor = (bucket % steps + steps) << shift;
    (floor, floor + ((1 << shift) - 1))
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
    /// A value that this share (0 to 1) of all is not above: the smallest there is, or at most a thirty-second part more.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (b, n) in &self.buckets {
            seen += n;
            if seen >= wanted {
                return values(*b).1.min(self.max);
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
            let (floor, ceiling) = values(b);
            assert!(
                floor <= v && v <= ceiling && ceiling - floor <= v / 32,
                "{v} in a bucket from {floor} to {ceiling}"
            );
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
        assert!((50..=51).contains(&h.quantile(0.5)) && (99..=100).contains(&h.quantile(0.99)));
    }

    /// As many as are said are not above it, and not all are where there is one that is far above all others.
    #[test]
    fn a_quantile_is_never_too_low() {
        let mut h = Histogram::default();
        (0..1000).for_each(|_| h.add(1100));
        h.add(1_000_000_000);
        assert!((1100..1135).contains(&h.quantile(0.99)) && (1100..1135).contains(&h.quantile(0.5)), "{h:?}");
        assert_eq!(h.quantile(1.0), 1_000_000_000);
        let (mut state, mut all, mut h) = (1_u64, Vec::new(), Histogram::default());
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = (state >> 33) >> (state >> 60);
            all.push(value);
            h.add(value);
        }
        all.sort_unstable();
        for share in [0.01, 0.5, 0.9, 0.99, 0.999] {
            let exact = all[(5000.0_f64 * share).ceil() as usize - 1];
            let told = h.quantile(share);
            assert!(told >= exact && told <= exact + exact / 32 + 1, "{share}: {told}, not {exact}");
        }
    }
}
