//! The content of a disk, cheap to copy: a two-level tree of shared blocks.
//!
//! Invariants
//! 1. A copy shares everything; a change copies one node of 64 pointers, and
//!    bytes only where a block is changed in part.
//! 2. Ranges given here lie inside the image, in whole blocks: the devices
//!    above have checked that.

use crate::prng::mix;
use crate::{AlignedBuf, BLOCK_BYTES};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Bytes that a disk writes as a whole or not at all.
pub const SECTOR_BYTES: usize = 512;
/// Sectors in a block.
const BLOCK_SECTORS: u64 = (BLOCK_BYTES / SECTOR_BYTES) as u64;
/// What a discarded range reads as: nothing that anyone could mistake for zeros.
pub const DISCARD_FILL: u8 = 0xdb;
/// Pointers in a node.
const NODE_BLOCKS: usize = 64;
/// Most blocks of one fill that are read without a copy.
const FILLED_BLOCKS_MAX: usize = 256;

/// The content of a disk.
#[derive(Clone)]
pub struct Image {
    nodes: Vec<Arc<Vec<Block>>>,
    blocks: usize,
}

/// Bytes that changes and images share, with what was computed about them:
/// the same blocks are hashed for many images of one history.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Arc<AlignedBuf>,
    /// Hash of each block, wherever it may lie; 0 when not yet known.
    hashes: Vec<AtomicU64>,
    /// Every block of it is as the first, which stands for all.
    is_fill: bool,
}

impl Buffer {
    pub(super) fn new(bytes: Arc<AlignedBuf>) -> Arc<Self> {
        let hashes = (0..bytes.len() / BLOCK_BYTES).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { bytes, hashes, is_fill: false })
    }
}

/// One block inside a shared buffer.
#[derive(Clone)]
struct Block {
    buffer: Arc<Buffer>,
    start: usize,
}

/// A change to a disk: its place and what it puts there.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) offset: u64,
    pub(super) content: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Data(Arc<Buffer>),
    Zeros(u64),
    Discarded(u64),
}

impl Change {
    pub(super) fn bytes(&self) -> u64 {
        match &self.content {
            Content::Data(data) => data.bytes.len() as u64,
            Content::Zeros(bytes) | Content::Discarded(bytes) => *bytes,
        }
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.offset + other.bytes() && other.offset < self.offset + self.bytes()
    }

    pub(super) fn sectors(&self) -> u64 {
        self.bytes() / SECTOR_BYTES as u64
    }

    fn block(&self, index: usize) -> Block {
        match &self.content {
            Content::Data(data) => Block { buffer: Arc::clone(data), start: index * BLOCK_BYTES },
            Content::Zeros(_) => Block::filled(0),
            Content::Discarded(_) => Block::filled(DISCARD_FILL),
        }
    }
}

impl Block {
    /// A block of zeros or of [`DISCARD_FILL`], shared by all: the first of many such.
    fn filled(byte: u8) -> Self {
        static FILLED: [OnceLock<Arc<Buffer>>; 2] = [OnceLock::new(), OnceLock::new()];
        let fill = || {
            let mut bytes = AlignedBuf::zeroed(FILLED_BLOCKS_MAX * BLOCK_BYTES);
            bytes.fill(byte);
            Arc::new(Buffer { bytes: Arc::new(bytes), hashes: vec![AtomicU64::new(0)], is_fill: true })
        };
        let buffer = FILLED[usize::from(byte != 0)].get_or_init(fill);
        Self { buffer: Arc::clone(buffer), start: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer.bytes[self.start..self.start + BLOCK_BYTES]
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer) && self.start == other.start
    }

    /// A hash of the block at its place.
    fn hash(&self, index: usize) -> u64 {
        let known = &self.buffer.hashes[self.start / BLOCK_BYTES];
        let mut hash = known.load(Relaxed);
        if hash == 0 {
            hash = self.hash_bytes();
            known.store(hash, Relaxed);
        }
        mix(hash ^ mix(index as u64 + 1))
    }

    /// Folded multiplication, 16 bytes a step.
    fn hash_bytes(&self) -> u64 {
        let mut state = mix(1);
        for pair in self.bytes().chunks_exact(16) {
            let (low, high) = pair.split_at(8);
            let a = word(low) ^ 0x2d35_8dcc_aa6c_78a5 ^ state;
            let b = word(high) ^ 0x8bb8_4b93_962e_acc9;
            let product = u128::from(a) * u128::from(b);
            state = (product as u64) ^ ((product >> 64) as u64) ^ state.rotate_left(23);
        }
        mix(state)
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

impl Image {
    /// `bytes` zeros, rounded down to whole blocks.
    #[must_use]
    pub fn zeroed(bytes: u64) -> Self {
        let blocks = bytes as usize / BLOCK_BYTES;
        let node = Arc::new(vec![Block::filled(0); NODE_BLOCKS]);
        Self { nodes: vec![node; blocks.div_ceil(NODE_BLOCKS)], blocks }
    }

    /// A copy of `bytes`, cut to whole blocks.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut image = Self::zeroed(bytes.len() as u64);
        let whole = image.bytes() as usize;
        for (start, piece) in (0..).step_by(1 << 16).zip(bytes[..whole].chunks(1 << 16)) {
            let content = Content::Data(Buffer::new(Arc::new(AlignedBuf::padded(piece))));
            image.apply(&Change { offset: start, content });
        }
        image
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.blocks * BLOCK_BYTES) as u64
    }

    /// All bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.blocks * BLOCK_BYTES);
        (0..self.blocks).for_each(|index| all.extend_from_slice(self.block(index).bytes()));
        all
    }

    /// Into a file of this size, with a hole where a block is zeros.
    ///
    /// # Errors
    /// Those of the host.
    pub fn write_to(&self, path: &Path) -> std::io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.bytes())?;
        for index in 0..self.blocks {
            let block = self.block(index);
            if block.bytes().iter().any(|byte| *byte != 0) {
                file.write_all_at(block.bytes(), (index * BLOCK_BYTES) as u64)?;
            }
        }
        Ok(())
    }

    pub(super) fn read(&self, offset: u64, bytes: usize) -> AlignedBuf {
        let first = offset as usize / BLOCK_BYTES;
        // What was written at once is not copied.
        let begin = self.block(first);
        let (blocks, is_fill) = (bytes / BLOCK_BYTES, begin.buffer.is_fill);
        let follows = |n: usize| {
            let block = self.block(first + n);
            let start = if is_fill { 0 } else { begin.start + n * BLOCK_BYTES };
            Arc::ptr_eq(&block.buffer, &begin.buffer) && block.start == start
        };
        if (!is_fill || blocks <= FILLED_BLOCKS_MAX) && (1..blocks).all(follows) {
            return AlignedBuf::shared(&begin.buffer.bytes, begin.start, bytes);
        }
        AlignedBuf::gathered(bytes, (first..first + blocks).map(|index| self.block(index).bytes()))
    }

    pub(super) fn apply(&mut self, change: &Change) {
        let first = change.offset as usize / BLOCK_BYTES;
        for index in 0..change.bytes() as usize / BLOCK_BYTES {
            self.set(first + index, change.block(index));
        }
    }

    /// Applies those sectors of `change` that `kept` names, counted from its start.
    pub(super) fn apply_torn(&mut self, change: &Change, kept: impl Fn(u64) -> bool) {
        let first = change.offset as usize / BLOCK_BYTES;
        for index in 0..change.bytes() as usize / BLOCK_BYTES {
            let start = index as u64 * BLOCK_SECTORS;
            let mask = (0..BLOCK_SECTORS).filter(|s| kept(start + s)).fold(0u8, |m, s| m | 1 << s);
            match mask {
                0 => {}
                0xff => self.set(first + index, change.block(index)),
                _ => self.merge(first + index, &change.block(index), mask),
            }
        }
    }

    fn merge(&mut self, index: usize, new: &Block, mask: u8) {
        let mut merged = AlignedBuf::padded(self.block(index).bytes());
        let sectors = merged.chunks_exact_mut(SECTOR_BYTES);
        for (n, (old, new)) in sectors.zip(new.bytes().chunks_exact(SECTOR_BYTES)).enumerate() {
            if mask & (1 << n) != 0 {
                old.copy_from_slice(new);
            }
        }
        self.set(index, Block { buffer: Buffer::new(Arc::new(merged)), start: 0 });
    }

    fn block(&self, index: usize) -> &Block {
        &self.nodes[index / NODE_BLOCKS][index % NODE_BLOCKS]
    }

    fn set(&mut self, index: usize, block: Block) {
        Arc::make_mut(&mut self.nodes[index / NODE_BLOCKS])[index % NODE_BLOCKS] = block;
    }

    /// What to add to the hash of `base` to get the hash of `self`. Looks at
    /// nothing that both share. Both have the same length.
    pub(super) fn hash_change(&self, base: &Self) -> u64 {
        let nodes = self.nodes.iter().zip(&base.nodes).enumerate();
        let mut change = 0u64;
        for (n, (new, old)) in nodes.filter(|(_, (new, old))| !Arc::ptr_eq(new, old)) {
            let blocks = new.iter().zip(old.iter()).enumerate();
            for (b, (new, old)) in blocks.filter(|(_, (new, old))| !new.is_same(old)) {
                let index = n * NODE_BLOCKS + b;
                change = change.wrapping_add(new.hash(index)).wrapping_sub(old.hash(index));
            }
        }
        change
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes)", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_all_of_it_and_holes_for_zeros() {
        let mut image = Image::zeroed(64 << 20);
        let data = AlignedBuf::padded(&[7; 2 * BLOCK_BYTES]);
        image.apply(&Change { offset: 5 << 20, content: Content::Data(Buffer::new(Arc::new(data))) });
        image.apply(&Change { offset: 9 << 20, content: Content::Discarded(BLOCK_BYTES as u64) });
        let path = std::env::temp_dir().join(format!("nenrin-image-{}", std::process::id()));
        image.write_to(&path).unwrap();
        let (found, meta) = (std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(found == image.to_vec());
        assert!(std::os::unix::fs::MetadataExt::blocks(&meta) * 512 < 1 << 20);
    }
}
