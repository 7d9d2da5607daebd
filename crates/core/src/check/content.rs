//! Extents and extended attributes.

use super::findings::What;
use super::live::Live;
use super::report::{Finding, Log};
use super::usage::died;
use crate::state::{SLOT_MASK, State, xattr_pieces};
use crate::storage::Storage;
use crate::{FileKind, Result};
use nenrin_format::items::{Extent, XATTR_PIECE_BYTES, XattrPiece};
use nenrin_format::key::Key;
use nenrin_format::{Addr, BLOCK_BYTES, EXTENT_BLOCKS_MAX, Ino, NAME_BYTES_MAX, XATTR_BYTES_MAX};

/// Checks where an extent lies on the volume and in its file; whether its
/// blocks can be counted.
pub fn check_place(state: &State, storage: &Storage, key: &Key, e: &Extent, log: &mut Log<'_>) -> bool {
    let window = u64::from(EXTENT_BLOCKS_MAX);
    if key.off % window + u64::from(e.blocks) > window || key.off.checked_add(window).is_none() {
        let text = format!("{} blocks from file block {}{}", e.blocks, key.off, died(key));
        log.add_in(state, Finding::new(What::ExtentCrossing, text).of(Ino(key.ino)).at(e.addr));
    }
    if e.is_unwritten() {
        return false;
    }
    let covered = e.lead + e.blocks + e.tail;
    let inside = e.addr.0.checked_sub(u64::from(e.lead)).is_some_and(|first| storage.contains(Addr(first), covered));
    if !inside {
        let text = format!("{} blocks of file block {}{}", e.blocks, key.off, died(key));
        log.add_in(state, Finding::new(What::ExtentOutside, text).of(Ino(key.ino)).at(e.addr));
    }
    inside
}

/// Checks an extent of the live tree.
pub fn check_extent(live: &mut Live<'_, '_>, key: &Key, value: &[u8]) -> Result<()> {
    let e = match Extent::decode(value) {
        Ok(e) => e,
        Err(why) => return live.invalid(key, why),
    };
    if check_place(live.state, live.storage, key, &e, live.log) {
        live.usage.add(live.state, key, &e, live.log);
        if live.whole {
            live.usage.check_backref(live.state, key, &e, live.log)?;
        }
    }
    live.usage.add_total(key, &e);
    let end = key.off.saturating_add(u64::from(e.blocks));
    let (fork, reached) = live.group.end;
    if fork == key.fork && key.off < reached {
        live.bad(What::ExtentOverlap, format!("file block {}, after one that reaches to {reached}", key.off));
    }
    live.group.end = (key.fork, if fork == key.fork { reached.max(end) } else { end });
    let Some(inode) = live.group.inode.filter(|i| i.fork == key.fork) else {
        return check_old_fork(live, key);
    };
    live.group.blocks = live.group.blocks.saturating_add(u64::from(e.blocks));
    if e.is_lost() {
        note_lost(live, key.off, end);
    }
    let behind = key.off >= inode.size.div_ceil(BLOCK_BYTES as u64);
    if behind && !e.is_unwritten() && FileKind::from_mode(inode.mode) == FileKind::Regular {
        let text = format!("{} blocks from file block {}, size is {}", e.blocks, key.off, inode.size);
        live.log.add_in(live.state, Finding::new(What::ExtentBeyondEnd, text).of(live.group.ino).at(e.addr));
    }
    Ok(())
}

/// Extents that say that what they cover is lost are one finding where they follow each other.
fn note_lost(live: &mut Live<'_, '_>, from: u64, to: u64) {
    match &mut live.group.lost {
        Some((_, reached)) if *reached == from => *reached = to,
        _ => {
            end_lost(live);
            live.group.lost = Some((from, to));
        }
    }
}

/// A lost range ends before what comes now.
pub fn end_lost(live: &mut Live<'_, '_>) {
    if let Some((from, to)) = live.group.lost.take() {
        live.bad(What::ContentLost, format!("{} blocks from file block {from}", to - from));
    }
}

/// An extent that is not the file's content any more must be on its way out.
fn check_old_fork(live: &mut Live<'_, '_>, key: &Key) -> Result<()> {
    if live.group.old_fork == Some(key.fork) || !live.whole {
        return Ok(());
    }
    live.group.old_fork = Some(key.fork);
    if live.group.inode.is_none() {
        let is_reaped = live.state.is_fork_reaped(live.group.ino, key.fork)?;
        live.group.unreaped = live.group.unreaped.or((!is_reaped).then_some(key.fork));
    } else if live.reap(key.fork)?.is_none() {
        live.bad(What::StrayFork, format!("fork {}", key.fork));
    }
    Ok(())
}

/// Checks a piece of an extended attribute, and with the first all of them.
pub fn check_xattr(live: &mut Live<'_, '_>, key: &Key, value: &[u8]) -> Result<()> {
    let piece = match XattrPiece::decode(value) {
        Ok(piece) => piece,
        Err(why) => return live.invalid(key, why),
    };
    // Of an inode that goes the reaper takes piece by piece.
    let is_leaving = live.group.inode.is_none() && live.state.reap_of_inode(live.group.ino)?.is_some();
    if key.fork > 0 {
        // A piece in the middle is right if the first one says there are so many.
        if live.whole && !is_leaving {
            let first = live.state.get(&Key { fork: 0, ..*key })?;
            let pieces = first.and_then(|v| XattrPiece::decode(&v).ok().map(|p| xattr_pieces(p.value_bytes as usize)));
            if pieces.is_none_or(|n| key.fork >= n) {
                live.bad(What::XattrIncomplete, format!("piece {} belongs to no attribute", key.fork));
            }
        }
        return Ok(());
    }
    live.count_xattr();
    let name = String::from_utf8_lossy(piece.name).into_owned();
    let length = piece.value_bytes as usize;
    if piece.name.is_empty() || piece.name.len() > NAME_BYTES_MAX || length > XATTR_BYTES_MAX {
        live.bad(What::XattrMisplaced, format!("name of {} bytes, value of {length}", piece.name.len()));
        return Ok(());
    }
    if !live.whole || is_leaving {
        return Ok(());
    }
    let group = live.state.xattr_key(live.group.ino, piece.name);
    let first = live.state.find_slot(group, |v| XattrPiece::decode(v).is_ok_and(|p| p.name == piece.name))?;
    if key.off & !SLOT_MASK != group.off || first.is_some_and(|(k, _)| k != *key) {
        live.bad(What::XattrMisplaced, name.clone());
    }
    for p in 0..xattr_pieces(length) {
        let expected = (length - p as usize * XATTR_PIECE_BYTES).min(XATTR_PIECE_BYTES);
        let held = match p {
            0 => Some(piece.bytes.len()),
            _ => {
                let value = live.state.get(&Key { fork: p, ..*key })?;
                value.and_then(|v| XattrPiece::decode(&v).ok().map(|p| p.bytes.len()))
            }
        };
        if held != Some(expected) {
            live.bad(What::XattrIncomplete, format!("{name}: piece {p} of a value of {length} bytes"));
            break;
        }
    }
    Ok(())
}
