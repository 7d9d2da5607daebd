//! Order statistics of a few samples. Medians and percentiles only: slices on a shared machine have long tails, and a mean
//! would report the neighbours.

use serde::{Deserialize, Serialize};

/// What a set of samples looks like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub n: usize,
    /// Middle value.
    pub median: f64,
    /// A tenth of the samples are below.
    pub p10: f64,
    /// A tenth of the samples are above.
    pub p90: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// Value at `fraction` (0 to 1) of sorted samples, interpolated between neighbours; None without samples.
pub fn percentile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = fraction.clamp(0.0, 1.0) * last as f64;
    let low = place.floor() as usize;
    let high = (low + 1).min(last);
    let part = place - low as f64;
    Some(sorted[low] + (sorted[high] - sorted[low]) * part)
}

/// Summary of samples in any order; values that are not finite are left out. None when nothing remains.
pub fn summarize(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    Some(Summary {
        n: sorted.len(),
        median: percentile(&sorted, 0.5)?,
        p10: percentile(&sorted, 0.1)?,
        p90: percentile(&sorted, 0.9)?,
        min: *sorted.first()?,
        max: *sorted.last()?,
    })
}

/// Ratios of the samples that two contenders took in the same round, as (round, value) pairs. Rounds that only one of them
/// has are left out, and so are rounds in which the reference is zero.
pub fn round_ratios(own: &[(u32, f64)], reference: &[(u32, f64)]) -> Vec<f64> {
    own.iter()
        .filter_map(|(round, value)| {
            let (_, base) = reference.iter().find(|(other, _)| other == round)?;
            (*base > 0.0).then_some(value / base)
        })
        .collect()
}

/// Latency of single operations in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of operations.
    pub n: usize,
    /// Median.
    pub p50_us: f64,
    /// 99 of 100 are faster.
    pub p99_us: f64,
    /// 999 of 1000 are faster.
    #[serde(default)]
    pub p999_us: f64,
    /// Slowest.
    pub max_us: f64,
}

/// Latency of operations given in nanoseconds; None without operations.
pub fn latency(nanos: &[u64]) -> Option<Latency> {
    let mut sorted = nanos.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().checked_sub(1)?;
    let at = |fraction: f64| sorted[(fraction * last as f64).round() as usize] as f64 / 1000.0;
    Some(Latency { n: sorted.len(), p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999), max_us: at(1.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate() {
        let sorted = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(percentile(&sorted, 0.0), Some(1.0));
        assert_eq!(percentile(&sorted, 0.5), Some(3.0));
        assert_eq!(percentile(&sorted, 0.9), Some(4.6));
        assert_eq!(percentile(&sorted, 1.0), Some(5.0));
        assert_eq!(percentile(&sorted, 7.0), Some(5.0));
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[9.0], 0.9), Some(9.0));
    }

    #[test]
    fn summary_of_an_even_number() {
        let s = summarize([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((s.n, s.median, s.min, s.max), (4, 2.5, 1.0, 4.0));
        assert!(s.p10 >= s.min && s.p90 <= s.max);
    }

    #[test]
    fn what_is_not_finite_is_left_out() {
        assert_eq!(summarize([f64::NAN, f64::INFINITY]), None);
        assert_eq!(summarize([f64::NAN, 2.0]).unwrap().n, 1);
    }

    #[test]
    fn ratios_pair_rounds_and_not_positions() {
        let own = [(1, 20.0), (2, 30.0), (4, 9.0)];
        let reference = [(2, 10.0), (1, 10.0), (3, 1.0), (4, 0.0)];
        assert_eq!(round_ratios(&own, &reference), vec![2.0, 3.0]);
    }

    #[test]
    fn one_slow_machine_minute_does_not_move_the_median_of_ratios() {
        let own: Vec<_> = (0..9).map(|r| (r, if r < 3 { 20.0 } else { 200.0 })).collect();
        let reference: Vec<_> = (0..9).map(|r| (r, if r < 3 { 10.0 } else { 100.0 })).collect();
        let s = summarize(round_ratios(&own, &reference)).unwrap();
        assert_eq!((s.median, s.min, s.max), (2.0, 2.0, 2.0));
    }

    #[test]
    fn latency_in_microseconds() {
        let nanos: Vec<u64> = (1..=101).map(|n| n * 1000).collect();
        let l = latency(&nanos).unwrap();
        assert_eq!((l.n, l.p50_us, l.p99_us, l.max_us), (101, 51.0, 100.0, 101.0));
        assert_eq!(latency(&[]), None);
        assert_eq!(latency(&[30_000_000_000]).unwrap().max_us, 3e7, "a stall of half a minute");
    }
}
