//! Content that was read, in the pieces in which it came.

use nenrin_device::AlignedBuf;
use std::ops::Range;

/// Zeros to point at.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

enum Part {
    Zero(usize),
    Memory(Vec<u8>, Range<usize>),
    Device(AlignedBuf, Range<usize>),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Zero(n) => *n,
            Self::Memory(_, r) | Self::Device(_, r) => r.len(),
        }
    }
    fn cut_front(&mut self, by: usize) {
        match self {
            Self::Zero(n) => *n -= by,
            Self::Memory(_, r) | Self::Device(_, r) => r.start += by,
        }
    }
    fn cut_back(&mut self, by: usize) {
        match self {
            Self::Zero(n) => *n -= by,
            Self::Memory(_, r) | Self::Device(_, r) => r.end -= by,
        }
    }
}

/// Content that was read: what came from the device is not copied.
#[derive(Default)]
pub struct ReadBytes {
    parts: Vec<Part>,
    len: usize,
}

impl ReadBytes {
    /// Bytes in all.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The bytes in order, in a few slices.
    #[must_use]
    pub fn slices(&self) -> Vec<&[u8]> {
        let mut out = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            match part {
                Part::Memory(bytes, range) => out.push(&bytes[range.clone()]),
                Part::Device(buf, range) => out.push(&buf[range.clone()]),
                Part::Zero(n) => {
                    let whole = std::iter::repeat_n(&ZEROS[..], n / ZEROS.len());
                    out.extend(whole.chain(Some(&ZEROS[..n % ZEROS.len()])));
                }
            }
        }
        out.retain(|s| !s.is_empty());
        out
    }
    /// The bytes in one piece.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        if let [Part::Memory(bytes, range)] = &mut self.parts[..] {
            if *range == (0..bytes.len()) {
                return std::mem::take(bytes);
            }
        }
        self.slices().concat()
    }

    pub(crate) fn push_zeros(&mut self, bytes: usize) {
        self.push(Part::Zero(bytes));
    }
    pub(crate) fn push_memory(&mut self, bytes: Vec<u8>) {
        let range = 0..bytes.len();
        self.push(Part::Memory(bytes, range));
    }
    /// A part of what the device gave.
    pub(crate) fn push_device(&mut self, buf: AlignedBuf, range: Range<usize>) {
        self.push(Part::Device(buf, range));
    }
    fn push(&mut self, part: Part) {
        self.len += part.len();
        self.parts.push(part);
    }

    /// Leaves `bytes` bytes from `skip` on.
    pub(crate) fn trim(&mut self, skip: usize, bytes: usize) {
        let mut front = skip.min(self.len);
        self.len -= front;
        let whole = self
            .parts
            .iter()
            .take_while(|p| {
                front >= p.len() && {
                    front -= p.len();
                    true
                }
            })
            .count();
        self.parts.drain(..whole);
        if let Some(first) = self.parts.first_mut() {
            first.cut_front(front);
        }
        while let Some(last) = self.parts.last_mut() {
            let excess = self.len.saturating_sub(bytes);
            if excess == 0 {
                break;
            }
            let cut = excess.min(last.len());
            last.cut_back(cut);
            self.len -= cut;
            if last.len() == 0 {
                self.parts.pop();
            }
        }
    }
}

impl From<Vec<u8>> for ReadBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let mut this = Self::default();
        this.push_memory(bytes);
        this
    }
}

impl std::fmt::Debug for ReadBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadBytes({} bytes in {} parts)", self.len, self.parts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimming_is_that_of_a_slice() {
        let made = || {
            let mut b = ReadBytes::from((1..=100u8).collect::<Vec<_>>());
            b.push_zeros(70_000);
            b.push_device(AlignedBuf::padded(&[9; 4096]), 5..205);
            b
        };
        let all = made().into_vec();
        assert_eq!(all.len(), made().len());
        let points = [0, 1, 99, 100, 101, 65_636, 70_099, 70_100, 70_101, 70_299, 70_300, 80_000];
        for skip in points {
            for bytes in points {
                let mut b = made();
                b.trim(skip, bytes);
                let from = skip.min(all.len());
                let expected = &all[from..all.len().min(from + bytes)];
                assert_eq!(b.len(), expected.len(), "{skip} {bytes}");
                assert_eq!(b.into_vec(), expected, "{skip} {bytes}");
            }
        }
    }
}
