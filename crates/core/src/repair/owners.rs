//! Every block has one owner, or owners that all say they share it.
//!
//! | of two extents with one block, not both of which share it | what is done |
//! |---|---|
//! | one has another checksum than the block | it was given to the other: it loses the block |
//! | neither has the checksum | both lose it |
//! | both have it | both share it from now on |
//!
//! Invariants
//! 1. What an extent loses reads as an error, in the past too.
//! 2. Memory: three bits for each block of the volume.

use super::losses::{About, LossKind, MendKind};
use super::mender::Mender;
use super::salvage::lost_extent;
use super::space::written;
use crate::breaks::{Break, broken};
use crate::covered;
use crate::index::Value;
use crate::per_segment::Ordinals;
use crate::storage::Storage;
use crate::{Error, Result};
use nenrin_format::items::{EXTENT_SHARED, Extent};
use nenrin_format::key::Key;
use nenrin_format::{Addr, BLOCK_BYTES, Ino};
use std::ops::Range;

/// One bit for each block.
struct Bits {
    ordinals: Ordinals,
    segment_blocks: u64,
    words: Vec<u64>,
}

impl Bits {
    fn new(storage: &Storage) -> Self {
        let (ordinals, segment_blocks) = (Ordinals::of(storage.numbers()), u64::from(storage.segment_blocks));
        let words = vec![0; (ordinals.count() * segment_blocks).div_ceil(64) as usize];
        Self { ordinals, segment_blocks, words }
    }
    fn place(&self, addr: Addr) -> Option<(usize, u64)> {
        let i = self.ordinals.place(addr.segment())? * self.segment_blocks + u64::from(addr.block());
        Some(((i / 64) as usize, 1 << (i % 64)))
    }
    /// What is outside the volume is set.
    fn has(&self, addr: Addr) -> bool {
        let word = self.place(addr).and_then(|(word, bit)| Some((self.words.get(word)?, bit)));
        word.is_none_or(|(w, bit)| w & bit != 0)
    }
    fn set(&mut self, addr: Addr) {
        let word = self.place(addr).and_then(|(word, bit)| Some((self.words.get_mut(word)?, bit)));
        if let Some((w, bit)) = word {
            *w |= bit;
        }
    }
}

/// Which blocks have an owner, and which of them one that does not share.
pub(super) struct Owners {
    owned: Bits,
    alone: Bits,
}

impl Owners {
    pub fn new(storage: &Storage) -> Self {
        Self { owned: Bits::new(storage), alone: Bits::new(storage) }
    }
    /// Whether the block has an owner, and not both would share it.
    fn is_denied(&self, e: &Extent, addr: Addr) -> bool {
        self.owned.has(addr) && (!shares(e) || self.alone.has(addr))
    }
    fn give(&mut self, e: &Extent, addr: Addr) {
        self.owned.set(addr);
        if !shares(e) {
            self.alone.set(addr);
        }
    }
    /// Takes blocks into possession, unless one of them has an owner already
    /// and the two do not both share. Returns how many had none before.
    pub fn claim(&mut self, e: &Extent) -> Option<u32> {
        let addrs = || (0..e.blocks).map(|i| e.addr.add(i));
        if addrs().any(|addr| self.is_denied(e, addr)) {
            return None;
        }
        let fresh = addrs().filter(|addr| !self.owned.has(*addr)).count() as u32;
        addrs().for_each(|addr| self.give(e, addr));
        Some(fresh)
    }
}

const fn shares(e: &Extent) -> bool {
    e.flags & EXTENT_SHARED != 0
}

/// Whether a device has what the checksums of an extent state.
pub(super) fn is_intact(storage: &Storage, e: &Extent) -> Result<bool> {
    match covered::read(storage, e) {
        Ok(_) => Ok(true),
        Err(Error::Device(_) | Error::Damaged(..)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// What takes the place of an extent that loses these of its blocks.
fn without(key: &Key, e: &Extent, lost: &[Range<u32>]) -> Vec<(Key, Vec<u8>)> {
    let mut out = Vec::new();
    let mut put = |from: u32, part: Extent| out.push((Key { off: key.off + u64::from(from), ..*key }, part.encode()));
    let mut at = 0;
    for run in lost {
        if at < run.start {
            put(at, e.slice(at, run.start - at));
        }
        put(run.start, lost_extent(e.birth, run.end - run.start));
        at = run.end;
    }
    if at < e.blocks {
        put(at, e.slice(at, e.blocks - at));
    }
    out
}

impl Mender {
    /// All of it.
    pub(super) fn owners(&mut self) -> Result<()> {
        let Some(contested) = self.contested()? else { return Ok(()) };
        if !broken(Break::FirstOwnerKeeps) {
            let storage = self.storage.clone();
            self.take_away(&mut |e| not_its_own(&storage, e, &contested))?;
            if let Some(contested) = self.contested()? {
                self.share(&contested)?;
            }
        }
        let mut owners = Owners::new(&self.storage);
        self.take_away(&mut |e| Ok(owners.claim(e).is_none().then_some(0..e.blocks).into_iter().collect()))
    }

    /// Blocks with several owners that do not all share them.
    fn contested(&self) -> Result<Option<Bits>> {
        let mut owners = Owners::new(&self.storage);
        let mut contested = None;
        let state = &self.state;
        for tree in [&state.live].into_iter().chain(state.history.iter().map(|t| &t.tree)) {
            tree.walk(&state.cache, &mut |key, value| {
                let Some(e) = written(key, value) else { return Ok(()) };
                for addr in (0..e.blocks).map(|i| e.addr.add(i)) {
                    if owners.is_denied(&e, addr) {
                        contested.get_or_insert_with(|| Bits::new(&self.storage)).set(addr);
                    }
                    owners.give(&e, addr);
                }
                Ok(())
            })?;
        }
        Ok(contested)
    }

    /// Extents with a contested block share their blocks: who has not lost it has its checksum.
    fn share(&mut self, contested: &Bits) -> Result<()> {
        let shared = |key: &Key, value: &Value| {
            let e =
                written(key, value).filter(|e| !shares(e) && (0..e.blocks).any(|i| contested.has(e.addr.add(i))))?;
            Some(Value::from(Extent { flags: e.flags | EXTENT_SHARED, ..e }.encode()))
        };
        let mut count = 0u64;
        self.sweep(&mut |this, key, value| {
            let Some(value) = shared(key, value) else { return Ok(()) };
            count += 1;
            this.set(*key, value.to_vec())
        })?;
        for i in 0..self.state.history.len() {
            let mut changed = Vec::new();
            self.state.history[i].tree.walk(&self.state.cache, &mut |key, value| {
                changed.extend(shared(key, value).map(|value| (*key, value)));
                Ok(())
            })?;
            count += changed.len() as u64;
            for (key, value) in changed {
                self.state.history[i].tree.insert(&self.state.cache, key, value)?;
            }
        }
        self.losses.mended(MendKind::SharingRestored, count);
        Ok(())
    }

    /// Extents lose the blocks that `which` says.
    fn take_away(&mut self, which: &mut dyn FnMut(&Extent) -> Result<Vec<Range<u32>>>) -> Result<()> {
        self.sweep(&mut |this, key, value| {
            let Some(e) = written(key, value) else { return Ok(()) };
            let lost = which(&e)?;
            for run in &lost {
                let bytes = |block: u32| (key.off + u64::from(block)) * BLOCK_BYTES as u64;
                let (about, range) = (About::Inode(Ino(key.ino)), (bytes(run.start), bytes(run.end)));
                this.losses.add_range(LossKind::RangeLost, about, Some(range), "its blocks belong to another file");
            }
            if lost.is_empty() {
                return Ok(());
            }
            without(key, &e, &lost).into_iter().try_for_each(|(key, value)| this.set(key, value))
        })?;
        for i in 0..self.state.history.len() {
            self.take_away_past(i, which)?;
        }
        Ok(())
    }

    fn take_away_past(&mut self, i: usize, which: &mut dyn FnMut(&Extent) -> Result<Vec<Range<u32>>>) -> Result<()> {
        let mut changed = Vec::new();
        let mut count = 0u64;
        self.state.history[i].tree.walk(&self.state.cache, &mut |key, value| {
            let Some(e) = written(key, value) else { return Ok(()) };
            let lost = which(&e)?;
            if !lost.is_empty() {
                count += 1;
                changed.extend(without(key, &e, &lost));
            }
            Ok(())
        })?;
        for (key, value) in changed {
            self.state.history[i].tree.insert(&self.state.cache, key, value.into())?;
        }
        if count > 0 {
            let text = format!("{count} past extents had blocks that belong to others");
            self.losses.add(LossKind::PastIncomplete, About::Volume, text);
        }
        Ok(())
    }
}

/// Contested blocks of an extent that have another checksum.
fn not_its_own(storage: &Storage, e: &Extent, contested: &Bits) -> Result<Vec<Range<u32>>> {
    let mut out: Vec<Range<u32>> = Vec::new();
    for i in (0..e.blocks).filter(|i| contested.has(e.addr.add(*i))) {
        if is_intact(storage, &e.slice(i, 1))? {
            continue;
        }
        match out.last_mut() {
            Some(run) if run.end == i => run.end += 1,
            _ => out.push(i..i + 1),
        }
    }
    Ok(out)
}
