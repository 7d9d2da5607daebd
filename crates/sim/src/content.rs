//! The bytes of a model file, sparse and cheap to keep in many versions.
//!
//! Invariants
//! 1. A page that holds only zeros is not stored, so that two contents are
//!    equal exactly when their sizes and their stored pages are.
//! 2. Bytes from `size` on are zero in the last page.

use crate::hash;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;
const PAGE: u64 = PAGE_BYTES as u64;

#[derive(Debug)]
struct Page {
    bytes: [u8; PAGE_BYTES],
    hash: u64,
}

/// Size and bytes of a file. A clone shares all pages.
#[derive(Clone, Debug, Default)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
    sum: u64,
}

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// What a file's page adds to the file's fingerprint; zero for a page of zeros.
#[must_use]
pub fn page_hash(page: u64, bytes: &[u8]) -> u64 {
    // Compared as a whole: many times as fast as byte by byte.
    if ZEROS.get(..bytes.len()) == Some(bytes) {
        return 0;
    }
    let mut whole = [0; PAGE_BYTES];
    if bytes.len() == PAGE_BYTES {
        return hash::of_bytes(page, bytes);
    }
    whole[..bytes.len()].copy_from_slice(bytes);
    hash::of_bytes(page, &whole)
}

/// Fingerprint of a file of `size` bytes whose pages' hashes add up to `sum`.
#[must_use]
pub fn fingerprint(size: u64, sum: u64) -> u64 {
    hash::of_words(&[size, sum])
}

/// The bytes that write number `id` puts at `offset` of its file: each 8 bytes
/// name the write and the place, so that a mixture shows what was mixed.
#[must_use]
pub fn pattern(id: u32, offset: u64, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 16);
    let mut cell = offset / 8;
    out.extend_from_slice(&cell_bytes(id, cell)[(offset % 8) as usize..]);
    while out.len() < bytes {
        cell += 1;
        out.extend_from_slice(&cell_bytes(id, cell));
    }
    out.truncate(bytes);
    out
}

/// Never zero, so that written bytes differ from holes. A cell is the write's
/// number above the low bits of the place.
fn cell_bytes(id: u32, cell: u64) -> [u8; 8] {
    (u64::from(id) << 32 | (cell & 0x00ff_ffff) << 8 | 0xa5).to_le_bytes()
}

/// The write number that the pattern at `offset` (a multiple of 8) names.
#[must_use]
pub fn pattern_id(cell: &[u8]) -> Option<u32> {
    let b: [u8; 8] = cell.try_into().ok()?;
    let v = u64::from_le_bytes(b);
    (v & 0xff == 0xa5).then_some((v >> 32) as u32)
}

impl Content {
    /// Length in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }
    /// Equal for equal contents.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        fingerprint(self.size, self.sum)
    }
    /// Hash of one page, 0 for zeros.
    #[must_use]
    pub fn page(&self, page: u64) -> u64 {
        self.pages.get(&page).map_or(0, |p| p.hash)
    }
    /// Numbers of the pages that are not all zeros.
    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.keys().copied()
    }

    fn put(&mut self, page: u64, bytes: [u8; PAGE_BYTES]) {
        self.drop_page(page);
        let hash = page_hash(page, &bytes);
        if hash != 0 {
            self.sum = self.sum.wrapping_add(hash);
            self.pages.insert(page, Arc::new(Page { bytes, hash }));
        }
    }
    fn drop_page(&mut self, page: u64) {
        if let Some(old) = self.pages.remove(&page) {
            self.sum = self.sum.wrapping_sub(old.hash);
        }
    }
    fn edit(&mut self, page: u64, f: impl FnOnce(&mut [u8; PAGE_BYTES])) {
        let mut bytes = self.pages.get(&page).map_or([0; PAGE_BYTES], |p| p.bytes);
        f(&mut bytes);
        self.put(page, bytes);
    }

    /// Writes `data` at `offset`, growing the file where needed.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % PAGE) as usize;
            let n = rest.len().min(PAGE_BYTES - within);
            let (now, later) = rest.split_at(n);
            self.edit(at / PAGE, |p| p[within..within + n].copy_from_slice(now));
            at += n as u64;
            rest = later;
        }
        self.size = self.size.max(at);
    }

    /// Makes `bytes` from `offset` on zero, as far as the file reaches.
    pub fn zero(&mut self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes).min(self.size);
        if offset >= end {
            return;
        }
        let touched: Vec<u64> = self.pages.range(offset / PAGE..=(end - 1) / PAGE).map(|(n, _)| *n).collect();
        for page in touched {
            let low = offset.saturating_sub(page * PAGE).min(PAGE) as usize;
            let high = (end - page * PAGE).min(PAGE) as usize;
            self.edit(page, |p| p[low..high].fill(0));
        }
    }

    /// Cuts or grows the file.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    /// Up to `bytes` from `offset` on, short at the end of the file.
    #[must_use]
    pub fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let end = offset.saturating_add(bytes as u64).min(self.size);
        if offset >= end {
            return Vec::new();
        }
        let mut out = vec![0; (end - offset) as usize];
        for (n, page) in self.pages.range(offset / PAGE..=(end - 1) / PAGE) {
            let start = n * PAGE;
            let low = offset.max(start);
            let high = end.min(start + PAGE);
            out[(low - offset) as usize..(high - offset) as usize]
                .copy_from_slice(&page.bytes[(low - start) as usize..(high - start) as usize]);
        }
        out
    }

    /// Whether every byte of the range is zero or behind the end.
    #[must_use]
    pub fn is_zero(&self, from: u64, to: u64) -> bool {
        if from >= to {
            return true;
        }
        self.pages.range(from / PAGE..=(to - 1) / PAGE).all(|(n, page)| {
            let low = from.saturating_sub(n * PAGE).min(PAGE) as usize;
            let high = (to - n * PAGE).min(PAGE) as usize;
            page.bytes[low..high].iter().all(|b| *b == 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    #[test]
    fn behaves_like_a_vector_of_bytes() {
        let mut rng = Prng::new(3);
        let mut plain: Vec<u8> = Vec::new();
        let mut content = Content::default();
        for id in 0..2000 {
            let offset = rng.below(20_000);
            let bytes = rng.below(9000) as usize;
            match rng.below(4) {
                0 => {
                    plain.resize(offset as usize, 0);
                    content.resize(offset);
                }
                1 => {
                    let end = (offset as usize + bytes).min(plain.len());
                    if (offset as usize) < end {
                        plain[offset as usize..end].fill(0);
                    }
                    content.zero(offset, bytes as u64);
                }
                _ => {
                    let data = pattern(id, offset, bytes);
                    let end = offset as usize + bytes;
                    if bytes > 0 {
                        plain.resize(plain.len().max(end), 0);
                        plain[offset as usize..end].copy_from_slice(&data);
                    }
                    content.write(offset, &data);
                    assert_eq!(data.len(), bytes);
                }
            }
            plain.resize(content.size() as usize, 0);
            assert_eq!(content.read(0, 40_000), plain, "step {id}");
            let mut fresh = Content::default();
            fresh.write(0, &plain);
            assert_eq!(fresh.fingerprint(), content.fingerprint());
        }
    }

    #[test]
    fn a_pattern_names_its_write() {
        let p = pattern(77, 4093, 100);
        assert_eq!(pattern_id(&p[3..11]), Some(77));
        assert_eq!(pattern_id(&[0; 8]), None);
        assert_eq!(pattern(5, 0, 64)[10..20], pattern(5, 10, 10)[..]);
    }
}
