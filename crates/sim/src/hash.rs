//! Fingerprints: 64 bits, fast, the same on every machine. Collections are
//! summed, so that one member can change without hashing the others again.

const K0: u64 = 0xa076_1d64_78bd_642f;
const K1: u64 = 0xe703_7ed1_a0b4_28db;
const K2: u64 = 0x8ebc_6af0_9c88_c6e3;

const fn fold(a: u64, b: u64) -> u64 {
    let wide = (a as u128) * (b as u128);
    (wide as u64) ^ ((wide >> 64) as u64)
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    if let Ok(whole) = <[u8; 8]>::try_from(bytes) {
        return u64::from_le_bytes(whole);
    }
    let mut w = [0; 8];
    w[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(w)
}

/// Fingerprint of numbers, in order.
#[must_use]
pub fn of_words(words: &[u64]) -> u64 {
    words.iter().fold(K2, |h, w| fold(h ^ w ^ K0, K1 ^ h.rotate_left(29)))
}

/// Fingerprint of `bytes`, of their length, and of `seed`.
#[must_use]
pub fn of_bytes(seed: u64, bytes: &[u8]) -> u64 {
    // Four lanes, since a multiplication waits for the one before it in its lane.
    let mut lanes = [seed ^ K0, seed ^ K2, seed ^ K1, !seed];
    let mut chunks = bytes.chunks_exact(64);
    for c in &mut chunks {
        for (lane, pair) in lanes.iter_mut().zip(c.chunks_exact(16)) {
            let (low, high) = pair.split_at(8);
            *lane = fold(word(low) ^ K1, word(high) ^ *lane);
        }
    }
    let [mut a, b, c, d] = lanes;
    for rest in chunks.remainder().chunks(8) {
        a = fold(word(rest) ^ K1, a ^ K0);
    }
    fold(fold(a ^ K1 ^ bytes.len() as u64, b ^ K0), fold(c ^ K2, d ^ K1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_the_length_count() {
        let base = vec![7u8; 100];
        let h = of_bytes(1, &base);
        for i in 0..base.len() {
            let mut other = base.clone();
            other[i] ^= 1;
            assert_ne!(h, of_bytes(1, &other), "byte {i}");
        }
        assert_ne!(h, of_bytes(2, &base));
        assert_ne!(of_bytes(0, &[0; 8]), of_bytes(0, &[0; 9]));
        assert_ne!(of_words(&[1, 2]), of_words(&[2, 1]));
    }
}
