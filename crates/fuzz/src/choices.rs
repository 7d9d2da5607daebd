//! Choices from a string of bytes: the same bytes, the same choices.

/// Takes choices from the front of a case; when it is used up, zeros.
#[derive(Clone, Debug)]
pub struct Choices<'a>(&'a [u8]);

/// Numbers at which arithmetic goes wrong.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    15,
    16,
    255,
    256,
    4095,
    4096,
    0x7fff,
    0xffff,
    0x10_0000,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 61,
    1 << 62,
    (1 << 63) - 1,
    u64::MAX - 1,
    u64::MAX,
];

impl<'a> Choices<'a> {
    /// Choices from `case`.
    #[must_use]
    pub const fn new(case: &'a [u8]) -> Self {
        Self(case)
    }
    /// Whether all was used up.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// A byte.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((b, rest)) => {
                self.0 = rest;
                *b
            }
            None => 0,
        }
    }
    /// `N` bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }
    /// A number below `limit`, 0 when that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let v = if limit > 256 { u32::from_le_bytes(self.bytes()) as usize } else { usize::from(self.byte()) };
        v.checked_rem(limit).unwrap_or(0)
    }
    /// One of these, if there is one.
    pub fn pick<'t, T>(&mut self, list: &'t [T]) -> Option<&'t T> {
        list.get(self.below(list.len()))
    }
    /// A number for the place of `old`.
    pub fn number(&mut self, old: u64) -> u64 {
        match self.byte() % 8 {
            0..=3 => EDGES[self.below(EDGES.len())],
            4 => old.wrapping_add(1),
            5 => old.wrapping_sub(1),
            6 => u64::from_le_bytes(self.bytes()),
            _ => old ^ 1 << self.below(64),
        }
    }
    /// All the rest.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }
}
