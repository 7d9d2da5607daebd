//! All content, read and verified.
//!
//! Invariants
//! 1. Extents are taken in file order, a batch at a time, and each batch is
//!    read in the order of the device.
//! 2. Memory: one batch of extents, at most [`BATCH`], and [`READS`] reads, or those of one run's copies, of
//!    at most [`RUN_BLOCKS`] blocks and what one extent needs.
//! 3. Every copy is read, and where all is well once.

use super::findings::What;
use super::report::{Finding, Log, Step};
use super::roots::Entered;
use super::usage::died;
use crate::breaks::{Break, broken};
use crate::covered;
use crate::index::Tree;
use crate::recovery::Unproven;
use crate::state::State;
use crate::storage::Storage;
use crate::{Error, Result};
use nenrin_device::{AlignedBuf, Ticket};
use nenrin_format::items::{Extent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Addr, BLOCK_BYTES, Ino};

/// Extents sorted at once.
const BATCH: usize = 8192;
/// Blocks of one read of several extents.
const RUN_BLOCKS: u64 = 256;
/// Blocks between two extents that are read rather than left out.
const GAP_BLOCKS: u64 = 8;
/// Reads under way.
const READS: usize = 8;

/// An extent to verify.
struct Piece {
    key: Key,
    extent: Extent,
    /// Bytes of its last block from here on are behind the end of the file.
    end: Option<(u32, usize)>,
}

impl Piece {
    /// What its checksums cover.
    fn span(&self) -> Blocks {
        let (first, blocks) = covered::place(&self.extent);
        (first.0, u64::from(blocks))
    }
}

/// The first block, and how many.
type Blocks = (u64, u64);

/// Extents that one read serves, and reads of all their copies, each with the device that it does without.
struct Run<'a> {
    pieces: &'a [Piece],
    blocks: Blocks,
    reads: Vec<(Option<u16>, Result<Ticket>)>,
}

/// What such a read came to.
type Copy = (Option<u16>, Result<AlignedBuf>);

impl<'a> Run<'a> {
    /// Takes extents from the front of `rest`, and starts reading them.
    fn begin(content: &Content<'_>, rest: &mut &'a [Piece]) -> Self {
        let storage = content.storage;
        let (pieces, first, count) = next_run(rest);
        let (addr, blocks) = (Addr(first), count as u32);
        // What lies in rows has no copy; its parity is looked at by itself.
        let is_one = storage.has_parity() || broken(Break::OneCopyChecked);
        let mut ways: Vec<Option<u16>> = Vec::new();
        if !is_one {
            ways.extend(storage.ways_around(addr, blocks).into_iter().map(Some));
        }
        // Without each of several devices every copy is met; without one, only the others'.
        if ways.len() < 2 {
            ways.insert(0, None);
        }
        let read = |avoid: Option<u16>| match avoid {
            Some(device) => storage.submit_read_around(addr, blocks, device),
            None => storage.submit_read(addr, blocks),
        };
        Self { pieces, blocks: (first, count), reads: ways.into_iter().map(|avoid| (avoid, read(avoid))).collect() }
    }

    /// Waits for all of it, and verifies it.
    fn verify(self, content: &Content<'_>, log: &mut Log<'_>) {
        let wait = |(avoid, read): (_, Result<Ticket>)| (avoid, read.and_then(|t| t.wait().map_err(Error::from)));
        let copies: Vec<Copy> = self.reads.into_iter().map(wait).collect();
        let Some(head) = copies.first() else { return };
        let first = self.blocks.0;
        let is_right = |p: &&Piece| match &head.1 {
            Ok(bytes) => one(content, p, (bytes, first, head.0), log),
            // Find out which of them cannot be read.
            Err(_) => alone(content, p, log),
        };
        let right: Vec<&Piece> = self.pieces.iter().filter(is_right).collect();
        // Where the first could not be read as a whole, an extent may have been right in another.
        let others = &copies[usize::from(head.1.is_ok())..];
        for p in right {
            let wrong: Vec<&Copy> = others.iter().filter(|copy| !is_right_in(content, p, copy, first)).collect();
            if !wrong.is_empty() {
                let what = content.copy_is_wrong(p.span());
                let on = wrong.iter().filter_map(|(avoid, _)| content.named_around(p, *avoid)).collect::<Vec<_>>();
                let on = if on.is_empty() { "another device".to_owned() } else { on.join(" and ") };
                bad(content.state, p, what, p.extent.addr, &format!("checksum mismatch on {on}"), log);
            }
        }
    }
}

/// What was read, from which block on, and around which device.
type Bytes<'a> = (&'a [u8], u64, Option<u16>);

/// Whether an extent is right in a copy that begins with block `first`.
fn is_right_in(content: &Content<'_>, p: &Piece, (avoid, copy): &Copy, first: u64) -> bool {
    let (start, blocks) = p.span();
    let right = |bytes: &[u8]| covered::verify(&p.extent, bytes).is_ok();
    match (copy, avoid) {
        (Ok(bytes), _) => {
            let at = (start - first) as usize * BLOCK_BYTES;
            bytes.get(at..at + blocks as usize * BLOCK_BYTES).is_some_and(right)
        }
        // Another extent of the run may be what cannot be read.
        (Err(_), Some(avoid)) => {
            let read = content.storage.read_around(Addr(start), blocks as u32, *avoid);
            read.is_ok_and(|bytes| right(&bytes))
        }
        // It was read alone.
        (Err(_), None) => true,
    }
}

/// What content is verified against.
struct Content<'a> {
    state: &'a State,
    storage: &'a Storage,
    /// Blocks that count although nothing proves that every device has its copy: the first, and how many.
    unproven: Vec<(Addr, u32)>,
}

/// Reads and verifies the content of all trees.
pub fn check(entered: &Entered, log: &mut Log<'_>) -> Result<()> {
    let opened = &entered.opened;
    let unproven = opened.unproven.iter().map(Unproven::place).collect();
    let content = Content { state: &opened.state, storage: &opened.storage, unproven };
    log.step(Step::Data, opened.state.live_blocks.saturating_add(opened.state.history_blocks));
    check_tree(&content, &opened.state.live, log)?;
    for t in &opened.state.history {
        check_tree(&content, &t.tree, log)?;
    }
    Ok(())
}

impl Content<'_> {
    /// Whether a mount sees to it that every device has this: until then one may lack it.
    fn is_unproven(&self, (first, blocks): Blocks) -> bool {
        self.unproven.iter().any(|(at, count)| at.0 < first + blocks && first < at.0 + u64::from(*count))
    }

    /// Where a copy comes from that is read around a device, for people.
    fn named_around(&self, p: &Piece, avoid: Option<u16>) -> Option<String> {
        let (first, blocks) = p.span();
        self.storage.named_around(Addr(first), blocks as u32, avoid)
    }

    /// What it is that one copy of these blocks is wrong and another right.
    fn copy_is_wrong(&self, blocks: Blocks) -> What {
        if self.is_unproven(blocks) { What::ContentCopyUnproven } else { What::ContentCopyDamaged }
    }
}

fn check_tree(content: &Content<'_>, tree: &Tree, log: &mut Log<'_>) -> Result<()> {
    let Content { state, storage, .. } = content;
    let mut batch: Vec<Piece> = Vec::new();
    let mut inode: Option<(u64, Inode)> = None;
    tree.walk(&state.cache, &mut |key, value| {
        if key.kind == Kind::Inode && key.death == 0 {
            inode = Inode::decode(value).ok().map(|i| (key.ino, i));
        }
        if key.kind != Kind::Extent {
            return Ok(());
        }
        let Ok(extent) = Extent::decode(value) else { return Ok(()) };
        let mut piece = Piece { key: *key, extent, end: None };
        let (first, blocks) = piece.span();
        // What lies outside was noted already.
        if piece.extent.is_unwritten() || !storage.contains(Addr(first), blocks as u32) {
            return Ok(());
        }
        if let Some((_, i)) = inode.filter(|(ino, i)| *ino == key.ino && i.fork == key.fork && key.death == 0) {
            let (last, rest) = (i.size / BLOCK_BYTES as u64, (i.size % BLOCK_BYTES as u64) as usize);
            let index = last.checked_sub(key.off).filter(|n| *n < u64::from(piece.extent.blocks) && rest > 0);
            piece.end = index.map(|n| (n as u32, rest));
        }
        batch.push(piece);
        if batch.len() == BATCH {
            verify(content, &mut batch, log);
        }
        Ok(())
    })?;
    verify(content, &mut batch, log);
    Ok(())
}

/// Reads a batch in the order of the device; leaves it empty.
fn verify(content: &Content<'_>, batch: &mut Vec<Piece>, log: &mut Log<'_>) {
    batch.sort_by_key(Piece::span);
    let mut rest: &[Piece] = batch;
    while !rest.is_empty() {
        let mut runs: Vec<Run<'_>> = Vec::with_capacity(READS);
        let mut reads = 0;
        while reads < READS && !rest.is_empty() {
            let run = Run::begin(content, &mut rest);
            reads += run.reads.len();
            runs.push(run);
        }
        runs.into_iter().for_each(|run| run.verify(content, log));
    }
    batch.clear();
}

/// Takes pieces from the front that one read serves: them, its first block and its blocks.
fn next_run<'a>(rest: &mut &'a [Piece]) -> (&'a [Piece], u64, u64) {
    let Some(head) = rest.first() else { return (&[], 0, 0) };
    let (first, blocks) = head.span();
    let mut end = first + blocks;
    let mut count = 1;
    for p in &rest[1..] {
        let (start, blocks) = p.span();
        let to = end.max(start + blocks);
        if Addr(start).segment() != Addr(first).segment() || start > end + GAP_BLOCKS || to - first > RUN_BLOCKS {
            break;
        }
        end = to;
        count += 1;
    }
    let (run, after) = rest.split_at(count);
    *rest = after;
    (run, first, end - first)
}

fn alone(content: &Content<'_>, p: &Piece, log: &mut Log<'_>) -> bool {
    let (first, blocks) = p.span();
    match content.storage.read(Addr(first), blocks as u32) {
        Ok(bytes) => one(content, p, (&bytes, first, None), log),
        Err(e) => {
            bad(content.state, p, What::ContentUnreadable, p.extent.addr, &e.to_string(), log);
            false
        }
    }
}

/// Verifies one extent in what was read from block `from` on, without the device `avoid`; whether its checksum is right there.
fn one(content: &Content<'_>, p: &Piece, (bytes, from, avoid): Bytes<'_>, log: &mut Log<'_>) -> bool {
    let state = content.state;
    log.advance(u64::from(p.extent.blocks));
    log.report.counts.blocks_verified += u64::from(p.extent.blocks);
    let (first, blocks) = p.span();
    let start = (first.saturating_sub(from)) as usize * BLOCK_BYTES;
    let Some(bytes) = bytes.get(start..start + blocks as usize * BLOCK_BYTES) else {
        bad(state, p, What::ContentUnreadable, p.extent.addr, "the device read too little", log);
        return false;
    };
    let mut other = None;
    if let Err(e) = covered::verify(&p.extent, bytes) {
        let addr = if let Error::Damaged(addr, _) = e { addr } else { p.extent.addr };
        other = covered::read_elsewhere(content.storage, &p.extent, e).ok();
        let what = match other {
            Some(_) => content.copy_is_wrong((first, blocks)),
            None => What::ContentDamaged,
        };
        let on = content.named_around(p, avoid).filter(|_| other.is_some()).map(|on| format!(" on {on}"));
        bad(state, p, what, addr, &format!("checksum mismatch{}", on.unwrap_or_default()), log);
        if other.is_none() {
            return false;
        }
    }
    let is_right = other.is_none();
    let bytes = other.as_deref().unwrap_or(bytes);
    if let Some((block, rest)) = p.end {
        let start = (p.extent.lead + block) as usize * BLOCK_BYTES;
        let behind = bytes.get(start + rest..start + BLOCK_BYTES).unwrap_or(&[]);
        if behind.iter().any(|b| *b != 0) {
            bad(state, p, What::TailNotZero, p.extent.addr.add(block), "bytes behind the end", log);
        }
    }
    is_right
}

fn bad(state: &State, p: &Piece, what: What, addr: Addr, why: &str, log: &mut Log<'_>) {
    let offset = i128::from(addr.0) - i128::from(p.extent.addr.0) + i128::from(p.key.off);
    let text = format!("file block {offset}{}: {why}", died(&p.key));
    log.add_in(state, Finding::new(what, text).of(Ino(p.key.ino)).at(addr));
}
