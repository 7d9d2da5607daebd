//! What the checksums of an extent cover: content is verified, looked for elsewhere and mended granule by granule.
//!
//! Invariants
//! 1. Each granule (the blocks under one checksum) is judged by itself: what is wrong with one has no say in what becomes of another.

use crate::breaks::{Break, broken};
use crate::mixture::Copies;
use crate::storage::{Storage, Turn};
use crate::{Error, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::items::Extent;
use nenrin_format::{Addr, BLOCK_BYTES, Invalid};
use std::ops::Range;

/// The blocks that the checksums of an extent cover: the first, and how many.
pub(crate) fn place(e: &Extent) -> (Addr, u32) {
    let blocks = e.lead.saturating_add(e.blocks).saturating_add(e.tail);
    (Addr(e.addr.0.saturating_sub(u64::from(e.lead))), blocks)
}

/// Checks blocks, with those around them that share checksums, against an extent.
pub(crate) fn verify(e: &Extent, bytes: &[u8]) -> Result<()> {
    if broken(Break::NoVerify) {
        return Ok(());
    }
    let granule = BLOCK_BYTES << e.granule_shift;
    let mut expected = e.crcs.iter();
    for (i, chunk) in bytes.chunks(granule).enumerate() {
        if expected.next() != Some(&nenrin_format::crc(chunk)) {
            let block = (i << e.granule_shift) as u64;
            let addr = Addr((e.addr.0 + block).saturating_sub(u64::from(e.lead)));
            return Err(Error::Damaged(addr, Invalid::Checksum));
        }
    }
    Ok(())
}

/// The granules of an extent, each as one.
fn granules(e: &Extent) -> impl Iterator<Item = Extent> {
    let (first, blocks) = place(e);
    let of_one = if broken(Break::GranulesTogether) { blocks } else { 1 << e.granule_shift };
    let crcs = e.crcs.chunks(if broken(Break::GranulesTogether) { e.crcs.len().max(1) } else { 1 });
    (0u64..).zip(crcs).map(move |(i, crcs)| Extent {
        addr: Addr(first.0 + i * u64::from(of_one)),
        blocks: of_one,
        lead: 0,
        tail: 0,
        crcs: crcs.to_vec(),
        ..*e
    })
}

/// What an extent's checksums cover, each granule from whichever copies are right.
///
/// # Errors
/// [`Error::Damaged`] with the first granule that no copy has right; device errors.
pub(crate) fn read(storage: &Storage, e: &Extent) -> Result<AlignedBuf> {
    let (first, blocks) = place(e);
    let whole = storage.read(first, blocks).and_then(|bytes| verify(e, &bytes).map(|()| bytes));
    whole.or_else(|why| read_elsewhere(storage, e, why))
}

/// After a read that was wrong, and `why`: [`read`].
pub(crate) fn read_elsewhere(storage: &Storage, e: &Extent, why: Error) -> Result<AlignedBuf> {
    let (first, blocks) = place(e);
    if storage.ways_around(first, blocks).is_empty() && !broken(Break::ReadInVain) {
        return Err(why);
    }
    if u64::from(blocks) != (e.crcs.len() as u64) << e.granule_shift {
        return Err(Error::Damaged(first, Invalid::Bounds));
    }
    let copies = Copies::read(storage, first, blocks);
    let mut parts: Vec<AlignedBuf> = Vec::with_capacity(e.crcs.len());
    for g in granules(e) {
        let whole = copies.wholes().map(|whole| &whole[within(first, &g)]).find(|bytes| verify(&g, bytes).is_ok());
        parts.push(match whole {
            Some(bytes) => AlignedBuf::padded(bytes),
            None => {
                let bytes = storage.read_right(g.addr, g.blocks, |bytes| verify(&g, bytes).is_ok())?;
                verify(&g, &bytes)?;
                bytes
            }
        });
    }
    Ok(AlignedBuf::gathered(parts.iter().map(|p| p.len()).sum(), parts.iter().map(|p| &p[..])))
}

/// The bytes of a granule in what begins with block `first`.
fn within(first: Addr, g: &Extent) -> Range<usize> {
    let start = (g.addr.0 - first.0) as usize * BLOCK_BYTES;
    start..start + g.blocks as usize * BLOCK_BYTES
}

/// The granules that are not right in each copy.
fn unlike(storage: &Storage, e: &Extent) -> Vec<Extent> {
    let (first, blocks) = place(e);
    let copies = Copies::read(storage, first, blocks);
    let is_right =
        |g: &Extent| copies.is_complete() && copies.wholes().all(|w| verify(g, &w[within(first, g)]).is_ok());
    granules(e).filter(|g| !is_right(g)).collect()
}

/// [`Storage::equalize`] of each granule; what can be done is done, whatever the first error was.
///
/// # Errors
/// As there.
pub(crate) fn equalize(storage: &Storage, e: &Extent) -> Result<u64> {
    let (mut written, mut failed) = (0, None);
    // Where rows have parity each is looked at, since what is right is to be known of its row.
    let granules = if storage.has_parity() { granules(e).collect() } else { unlike(storage, e) };
    for g in granules {
        match storage.equalize(g.addr, g.blocks, |bytes| verify(&g, bytes).is_ok()) {
            Ok(blocks) => written += blocks,
            Err(why) => failed = failed.or(Some(why)),
        }
    }
    failed.map_or(Ok(written), Err)
}

/// [`Storage::write_anew`]: of all of it where it can be read as one, else of each granule; what can be done is done, whatever the first
/// error was.
///
/// # Errors
/// As there.
pub(crate) fn write_anew(storage: &Storage, e: &Extent, turn: Turn) -> Result<u64> {
    let (first, blocks) = place(e);
    if u64::from(blocks) == (e.crcs.len() as u64) << e.granule_shift {
        match storage.write_anew(first, blocks, turn, |bytes| verify(e, bytes).is_ok()) {
            Err(Error::Damaged(..)) => {}
            done => return done,
        }
    }
    let (mut written, mut failed) = (0, None);
    for g in granules(e) {
        match storage.write_anew(g.addr, g.blocks, turn, |bytes| verify(&g, bytes).is_ok()) {
            Ok(blocks) => written += blocks,
            Err(why) => failed = failed.or(Some(why)),
        }
    }
    failed.map_or(Ok(written), Err)
}

/// [`Storage::mend`] of each granule that can be mended; blocks written for that.
pub(crate) fn mend(storage: &Storage, e: &Extent) -> u64 {
    // Where that fails the other copy is still there, and the next reader tries again.
    let mended = |g: Extent| storage.mend(g.addr, g.blocks, |bytes| verify(&g, bytes).is_ok()).unwrap_or(0);
    let (first, blocks) = place(e);
    // What a device does not give comes from elsewhere, and is right: which granules these are is to be asked of each.
    let unread = storage.has_parity() && storage.read_telling(first, blocks).1;
    let granules = if unread { granules(e).collect() } else { unlike(storage, e) };
    let written = granules.into_iter().map(mended).sum();
    if unread {
        storage.take_unread(first, blocks);
    }
    written
}
