//! Pages of the kernel's ring buffer, as `trace_pipe_raw` gives them: a time,
//! how many bytes are used, then events, each with the time since the one before.
//!
//! The layout is told by `events/header_page` and `events/header_event`, and has
//! been the same since Linux 2.6.30 but for absolute times (type 31).

use super::format::field;

const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// `type_len` up to this tells a length of words of 4 bytes.
const DATA_MAX: u32 = 28;
/// The bits of `commit` that are a length; those above are flags.
const LENGTH_MASK: u64 = 0xfffff;
/// Bits of time that fit an event's header.
const DELTA_BITS: u32 = 27;
/// An absolute time carries 59 bits; these come from the page.
const STAMP_HIGH: u64 = 0xf8 << 56;

/// Where things are in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageLayout {
    commit: usize,
    commit_bytes: usize,
    data: usize,
}

impl PageLayout {
    /// From the text of `events/header_page`.
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<_> = text.lines().filter_map(field).collect();
        let find = |name: &str| fields.iter().find(|(n, _)| n == name).map(|(_, f)| *f);
        let (commit, data) = (find("commit")?, find("data")?);
        matches!(commit.size, 4 | 8).then_some(Self {
            commit: commit.offset,
            commit_bytes: commit.size,
            data: data.offset,
        })
    }

    /// Calls `each` with time and bytes of every event of the page. Stops at
    /// anything that does not fit, since what follows could not be found.
    pub fn events(&self, page: &[u8], mut each: impl FnMut(u64, &[u8])) {
        let Some(mut time) = word64(page, 0) else { return };
        let used = match self.commit_bytes {
            8 => word64(page, self.commit),
            _ => word32(page, self.commit).map(u64::from),
        };
        let end = self.data.saturating_add((used.unwrap_or(0) & LENGTH_MASK) as usize);
        let Some(data) = page.get(self.data..end.min(page.len())) else { return };
        let mut at = 0;
        while let Some(head) = word32(data, at) {
            let (kind, delta) = split(head);
            let first = word32(data, at + 4).unwrap_or(0);
            let (body, length) = match kind {
                PADDING if delta == 0 => return,
                PADDING => (None, 4 + first as usize),
                TIME_EXTEND => {
                    time = time.wrapping_add((u64::from(first) << DELTA_BITS) + delta);
                    (None, 8)
                }
                TIME_STAMP => {
                    time = time & STAMP_HIGH | ((u64::from(first) << DELTA_BITS) + delta) & !STAMP_HIGH;
                    (None, 8)
                }
                0 => (Some(at + 8), 4 + first as usize),
                1..=DATA_MAX => (Some(at + 4), 4 + 4 * kind as usize),
                _ => return,
            };
            if length < 4 || at + length > data.len() {
                return;
            }
            if let Some(body) = body {
                time = time.wrapping_add(delta);
                each(time, data.get(body..at + length).unwrap_or_default());
            }
            at += length.next_multiple_of(4);
        }
    }
}

/// `type_len` has the low five bits where those come first.
fn split(head: u32) -> (u32, u64) {
    if cfg!(target_endian = "little") {
        (head & 31, u64::from(head >> 5))
    } else {
        (head >> DELTA_BITS, u64::from(head & ((1 << DELTA_BITS) - 1)))
    }
}

fn word32(b: &[u8], at: usize) -> Option<u32> {
    let b = b.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

fn word64(b: &[u8], at: usize) -> Option<u64> {
    let b = b.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_PAGE: &str = include_str!("../../tests/data/header_page.format");

    fn layout() -> PageLayout {
        PageLayout::parse(HEADER_PAGE).unwrap()
    }
    fn head(kind: u32, delta: u32) -> [u8; 4] {
        (if cfg!(target_endian = "little") { delta << 5 | kind } else { kind << 27 | delta }).to_ne_bytes()
    }
    fn page(time: u64, flags: u64, data: &[u8]) -> Vec<u8> {
        let mut p = time.to_ne_bytes().to_vec();
        p.extend((data.len() as u64 | flags).to_ne_bytes());
        p.extend(data);
        p.resize(4096, 0xee);
        p
    }
    fn all(page: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut out = Vec::new();
        layout().events(page, |t, b| out.push((t, b.to_vec())));
        out
    }

    #[test]
    fn the_layout_of_a_page() {
        assert_eq!(layout(), PageLayout { commit: 8, commit_bytes: 8, data: 16 });
        assert_eq!(PageLayout::parse("nothing"), None);
    }

    #[test]
    fn every_kind_of_event() {
        let mut d = Vec::new();
        d.extend(head(1, 5));
        d.extend(b"abcd");
        d.extend(head(TIME_EXTEND, 1));
        d.extend(1u32.to_ne_bytes());
        d.extend(head(0, 2));
        d.extend(12u32.to_ne_bytes());
        d.extend(b"longtext");
        d.extend(head(PADDING, 1));
        d.extend(8u32.to_ne_bytes());
        d.extend(b"skip");
        d.extend(head(TIME_STAMP, 7));
        d.extend(2u32.to_ne_bytes());
        d.extend(head(2, 0));
        d.extend(b"12345678");
        let high = 0x08 << 56;
        let got = all(&page(high + 1000, 1 << 31, &d));
        let extend = 1 << 27;
        assert_eq!(
            got,
            [
                (high + 1005, b"abcd".to_vec()),
                (high + 1005 + extend + 1 + 2, b"longtext".to_vec()),
                (high + 2 * extend + 7, b"12345678".to_vec())
            ]
        );
    }

    #[test]
    fn what_does_not_fit_ends_the_page() {
        let mut d = Vec::new();
        d.extend(head(1, 5));
        d.extend(b"abcd");
        for bad in [
            &[head(28, 1)][..],
            &[head(0, 1), 4000u32.to_ne_bytes()],
            &[head(PADDING, 0)],
            &[head(0, 1), u32::MAX.to_ne_bytes()],
        ] {
            let mut d = d.clone();
            d.extend(bad.concat());
            assert_eq!(all(&page(0, 0, &d)).len(), 1);
        }
        for length in 0..24 {
            assert!(all(&page(0, 0, &d)[..length]).is_empty());
        }
    }

    /// Whatever the bytes are, decoding ends and does not panic.
    #[test]
    fn noise() {
        let mut state = 1u64;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..512)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            all(&bytes);
        }
    }
}
