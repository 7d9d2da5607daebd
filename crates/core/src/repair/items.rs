//! Items of the live tree, each for itself: what means nothing goes.

use super::losses::{About, LossKind};
use super::mender::{Mender, with_birth};
use crate::breaks::{Break, broken};
use crate::state::{SLOT_MASK, xattr_pieces};
use crate::{FileKind, Result};
use nenrin_format::items::{self, Dirent, Extent, Inode, XATTR_PIECE_BYTES, XattrPiece};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Addr, COUNTER_MAX, EXTENT_BLOCKS_MAX, INLINE_BYTES_MAX, Ino, NAME_BYTES_MAX, XATTR_BYTES_MAX};

impl Mender {
    /// Drops items that mean nothing, or stand where they cannot.
    pub(super) fn items(&mut self) -> Result<()> {
        // Where the last extent ended: inode, fork, file block.
        let mut reached = (0, 0, 0);
        self.sweep(&mut |this, key, value| {
            if !this.is_in_place(key) || items::birth(value).is_err() {
                return this.drop_item(key, "it is no item of the live tree");
            }
            let open = this.state.open_cno;
            let corrected = items::birth(value).is_ok_and(|b| b > open).then(|| with_birth(value, open));
            if let Some(value) = &corrected {
                this.set(*key, value.clone())?;
                if broken(Break::FutureUnchecked) {
                    return Ok(());
                }
            }
            let value: &[u8] = corrected.as_deref().unwrap_or(value);
            let right = match key.kind {
                Kind::Inode => {
                    Inode::decode(value).is_ok_and(|i| FileKind::from_mode(i.mode).mode() == i.mode & !0o7777)
                }
                Kind::Inline => items::decode_bytes(value).is_ok_and(|b| b.len() <= INLINE_BYTES_MAX && !b.is_empty()),
                Kind::Symlink => items::decode_bytes(value).is_ok_and(|b| !b.is_empty()),
                Kind::Dirent | Kind::Link => Dirent::decode(value).is_ok(),
                Kind::Xattr => return this.attribute(key, value),
                _ => return this.extent(key, value, &mut reached),
            };
            if right { Ok(()) } else { this.drop_item(key, "its value means nothing") }
        })
    }

    fn is_in_place(&self, key: &Key) -> bool {
        let whole = key.fork == 0 && key.off == 0;
        key.death == 0
            && (1..COUNTER_MAX).contains(&key.ino)
            && match key.kind {
                Kind::Inode | Kind::Inline | Kind::Symlink => whole,
                Kind::Dirent | Kind::Link => key.fork == 0,
                Kind::Xattr | Kind::Extent => true,
                _ => false,
            }
    }

    /// An item goes; what it stood for counts as lost from here on.
    pub(super) fn drop_item(&mut self, key: &Key, why: &str) -> Result<()> {
        let text = format!("{:?} at {}: {why}", key.kind, key.off);
        self.losses.add(LossKind::ItemDropped, About::Inode(Ino(key.ino)), text);
        self.gone.insert(*key);
        self.unset(key)
    }

    fn extent(&mut self, key: &Key, value: &[u8], reached: &mut (u64, u32, u64)) -> Result<()> {
        let window = u64::from(EXTENT_BLOCKS_MAX);
        let right = Extent::decode(value).ok().filter(|e| {
            let covered = e.lead + e.blocks + e.tail;
            let first = e.addr.0.checked_sub(u64::from(e.lead));
            let inside = e.is_unwritten() || first.is_some_and(|a| self.storage.contains(Addr(a), covered));
            e.fits(key.off) && inside
        });
        let from = if (reached.0, reached.1) == (key.ino, key.fork) { reached.2 } else { 0 };
        match right {
            Some(e) if key.off >= from => {
                *reached = (key.ino, key.fork, key.off + u64::from(e.blocks));
                Ok(())
            }
            Some(e) => {
                let says = !e.is_unwritten() || e.is_lost();
                if says && !broken(Break::OverlapReadsZeros) {
                    self.holes.insert((key.ino, key.fork, from, key.off + u64::from(e.blocks)));
                }
                self.drop_item(key, "it overlaps the extent before")
            }
            None => {
                if key.off < 1 << 52 {
                    let to = (key.off / window + 1) * window;
                    self.holes.insert((key.ino, key.fork, key.off, to));
                }
                self.drop_item(key, "its place is impossible")
            }
        }
    }

    /// A piece of an extended attribute: all of it is there, or it goes.
    fn attribute(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        let Ok(piece) = XattrPiece::decode(value) else { return self.drop_item(key, "its value means nothing") };
        if key.fork > 0 {
            let first = self.state.get(&Key { fork: 0, ..*key })?;
            let pieces = first.and_then(|v| XattrPiece::decode(&v).ok().map(|p| xattr_pieces(p.value_bytes as usize)));
            return if pieces.is_none_or(|n| key.fork >= n) { self.unset(key) } else { Ok(()) };
        }
        let (name, length) = (piece.name.to_vec(), piece.value_bytes as usize);
        let possible = !name.is_empty() && name.len() <= NAME_BYTES_MAX && length <= XATTR_BYTES_MAX;
        let group = self.state.xattr_key(Ino(key.ino), &name);
        let mut right = possible && key.off & !SLOT_MASK == group.off;
        if right {
            let first = self.state.find_slot(group, |v| XattrPiece::decode(v).is_ok_and(|p| p.name == name))?;
            right = first.is_some_and(|(k, _)| k == *key);
        }
        for p in 0..if right { xattr_pieces(length) } else { 0 } {
            let expected = (length - p as usize * XATTR_PIECE_BYTES).min(XATTR_PIECE_BYTES);
            let held = self.state.get(&Key { fork: p, ..*key })?;
            let held = held.and_then(|v| XattrPiece::decode(&v).ok().map(|p| p.bytes.len()));
            right &= held == Some(expected);
        }
        if right {
            return Ok(());
        }
        let text = format!("the extended attribute {} lacks a part", String::from_utf8_lossy(&name).escape_debug());
        self.losses.add(LossKind::AttributesLost, About::Inode(Ino(key.ino)), text);
        self.gone.insert(*key);
        // Later pieces find no first one and go too.
        self.unset(key)
    }
}
