//! Checksums set right after a change. CRC32C is linear, so four bytes of
//! padding can be chosen so that the checksum stays what it was: then whatever
//! points to the changed structure still fits, up to the root slot.

use std::sync::OnceLock;

/// For each bit of a checksum's difference, the four bytes that make it.
fn inverse() -> &'static [u32; 32] {
    static INVERSE: OnceLock<[u32; 32]> = OnceLock::new();
    INVERSE.get_or_init(|| {
        let effect = |x: u32| nenrin_format::crc_append(0, &x.to_le_bytes()) ^ nenrin_format::crc_append(0, &[0; 4]);
        // Gauss-Jordan over bits: rows of (effect, cause).
        let mut rows: Vec<(u32, u32)> = (0..32).map(|bit| (effect(1 << bit), 1 << bit)).collect();
        for bit in 0..32 {
            let Some(pivot) = (bit..32).find(|i| rows[*i].0 >> bit & 1 == 1) else { continue };
            rows.swap(bit, pivot);
            let row = rows[bit];
            for (i, other) in rows.iter_mut().enumerate() {
                if i != bit && other.0 >> bit & 1 == 1 {
                    *other = (other.0 ^ row.0, other.1 ^ row.1);
                }
            }
        }
        std::array::from_fn(|bit| rows[bit].1)
    })
}

/// The four bytes that take a checksum from `state` to `wanted`.
#[must_use]
pub fn bytes_to_reach(state: u32, wanted: u32) -> [u8; 4] {
    let mut missing = nenrin_format::crc_append(state, &[0; 4]) ^ wanted;
    let mut bytes = 0;
    for cause in inverse() {
        if missing & 1 == 1 {
            bytes ^= cause;
        }
        missing >>= 1;
    }
    bytes.to_le_bytes()
}

/// Chooses the last four bytes of a summary or a node so that the checksum that it carries is `wanted`.
pub fn forge(bytes: &mut [u8], wanted: u32) {
    let end = bytes.len() - 4;
    let state = checksum(&bytes[..end], 4);
    bytes[end..].copy_from_slice(&bytes_to_reach(state, nenrin_format::unmixed(wanted)));
}

/// The checksum of `bytes` with the field at `field` taken as zero.
#[must_use]
pub fn checksum(bytes: &[u8], field: usize) -> u32 {
    let head = nenrin_format::crc(&bytes[..field]);
    let zeroed = nenrin_format::crc_append(head, &[0; 4]);
    nenrin_format::crc_append(zeroed, &bytes[field + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_checksum_can_be_reached() {
        for wanted in [0, 1, 0x8000_0000, 0xdead_beef, u32::MAX] {
            let mut bytes: Vec<u8> = (0..200u8).collect();
            forge(&mut bytes, wanted);
            assert_eq!(nenrin_format::own_crc(&bytes), wanted);
        }
    }
}
