//! Records of content streams: extents, inline content, moves.

use super::sharing::Need;
use super::{State, bad_item, reap_key, weight};
use crate::breaks::{Break, broken};
use crate::index::Value;
use crate::{Error, Result};
use nenrin_format::items::{self, EXTENT_KEEP_MASK, Extent, Inode, Reap};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::records::ContentOp;
use nenrin_format::{Addr, EXTENT_BLOCKS_MAX, Ino, Invalid, Time};
use std::cmp::Ordering;
use std::ops::{ControlFlow, Range};

/// What comes where extents were cut off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    /// An item at the first of these blocks.
    Put,
}

/// First file block of the window of an extent that could cover `block`.
pub const fn window_start(block: u64) -> u64 {
    block & !(EXTENT_BLOCKS_MAX as u64 - 1)
}

/// The extent that an item says, if it can be one at this place.
pub fn extent(key: &Key, value: &[u8]) -> Result<Extent> {
    let e = Extent::decode(value).map_err(|why| bad_item(key, why))?;
    if e.fits(key.off) || broken(Break::BelieveNumbers) { Ok(e) } else { Err(bad_item(key, Invalid::Bounds)) }
}

/// This item, of a live extent that begins before file block `from`, if it reaches there: only one of the same window can.
fn reaching(key: Key, value: Value, from: u64) -> Result<Option<(Key, Extent, Value)>> {
    let blocks = Extent::peek_blocks(&value);
    let reaches = blocks.is_none_or(|blocks| key.off.saturating_add(u64::from(blocks)) > from);
    if key.off < window_start(from) || key.off >= from || !reaches {
        return Ok(None);
    }
    let e = extent(&key, &value)?;
    Ok(Some((key, e, value)))
}

impl State {
    pub(super) fn content(
        &mut self,
        ino: Ino,
        size: u64,
        mtime: Time,
        ctime: Time,
        editor_uid: u32,
        ops: &[ContentOp<'_>],
        base: Addr,
    ) -> Result<()> {
        let mut inode = self.need_inode(ino)?;
        for op in ops {
            match op {
                ContentOp::Hole(from, blocks) => self.hole(ino, &mut inode, *from, *blocks)?,
                ContentOp::Extent(off, extent) => self.place(ino, &mut inode, *off, extent, base)?,
                ContentOp::Inline(bytes) => {
                    self.hole(ino, &mut inode, 0, u64::MAX)?;
                    if !bytes.is_empty() {
                        self.put(Key::new(ino, Kind::Inline, 0, 0), items::encode_bytes(self.open_cno, bytes))?;
                    }
                }
                ContentOp::NewFork => {
                    let rule = inode.keep_rule();
                    self.remove(&Key::new(ino, Kind::Inline, 0, 0), rule)?;
                    let reap = Reap { death: self.open_cno, fork: inode.fork, whole: false, rule };
                    self.space.insert(&self.cache, reap_key(ino, inode.fork), reap.encode().into())?;
                    inode.fork = inode.fork.checked_add(1).ok_or_else(|| {
                        Error::Corrupt(format!("inode {ino} has had more forks than there are numbers"))
                    })?;
                    inode.blocks = 0;
                }
            }
        }
        inode.size = size;
        inode.mtime = mtime;
        inode.ctime = ctime;
        inode.editor_uid = editor_uid;
        self.put_inode(ino, inode)
    }

    fn hole(&mut self, ino: Ino, inode: &mut Inode, from: u64, blocks: u64) -> Result<()> {
        if from == 0 {
            self.remove_inline(ino, inode)?;
        }
        self.cut_extents(ino, inode, from, from.saturating_add(blocks), Then::Nothing)
    }

    /// Content in the index and extents exclude each other.
    fn remove_inline(&mut self, ino: Ino, inode: &Inode) -> Result<()> {
        let inline = Key::new(ino, Kind::Inline, 0, 0);
        if inode.blocks > 0 { Ok(()) } else { self.remove(&inline, inode.keep_rule()).map(drop) }
    }

    fn place(&mut self, ino: Ino, inode: &mut Inode, off: u64, extent: &Extent, base: Addr) -> Result<()> {
        if !extent.fits(off) && !broken(Break::BelieveNumbers) {
            return Err(Error::Corrupt(format!("a record puts an extent of inode {ino} at impossible block {off}")));
        }
        self.remove_inline(ino, inode)?;
        self.cut_extents(ino, inode, off, off.saturating_add(u64::from(extent.blocks)), Then::Put)?;
        // What comes from the past lives now. Its checksums are put where they are to be.
        let mut placed =
            Extent { birth: self.open_cno, flags: extent.flags & !EXTENT_KEEP_MASK, crcs: Vec::new(), ..*extent };
        if !placed.is_unwritten() {
            placed.addr = placed.addr.resolve(base);
        }
        inode.blocks = inode.blocks.saturating_add(u64::from(placed.blocks));
        let key = Key::new(ino, Kind::Extent, inode.fork, off);
        self.change_need(&placed, Need::None, Need::Live)?;
        if placed.is_shared() {
            self.add_backref(&key, &placed)?;
        }
        self.live.insert(&self.cache, key, placed.value_with(&extent.crcs)).map(drop)
    }

    /// The live extents that overlap file blocks `[from, to)`, at most `max` of them.
    pub fn extents(&self, ino: Ino, fork: u32, from: u64, to: u64, max: usize) -> Result<Vec<(Key, Extent)>> {
        Ok(self.extent_values(ino, fork, from, to, max)?.into_iter().map(|(key, e, _)| (key, e)).collect())
    }

    /// The same, with the values of their items.
    fn extent_values(&self, ino: Ino, fork: u32, from: u64, to: u64, max: usize) -> Result<Vec<(Key, Extent, Value)>> {
        let first = Key::new(ino, Kind::Extent, fork, from);
        let last = Key::new(ino, Kind::Extent, fork, to.saturating_sub(1));
        // Many may be there, and the last leaf of them is not needed for the first: where it is lost these can be had.
        if to.saturating_sub(from) > u64::from(EXTENT_BLOCKS_MAX) {
            return self.several_extents(first, last, max);
        }
        // The last one that may tells most: where it begins before the range, or with it, there is no other.
        match self.live.prev(&self.cache, &last)? {
            Some((k, v)) if (k.ino, k.kind, k.fork) == (first.ino, first.kind, first.fork) => match k.off.cmp(&from) {
                Ordering::Greater => self.several_extents(first, last, max),
                Ordering::Equal => Ok(vec![(k, extent(&k, &v)?, v)]),
                Ordering::Less => Ok(reaching(k, v, from)?.into_iter().collect()),
            },
            _ => Ok(Vec::new()),
        }
    }

    /// Those that begin from `first` to `last`, and one that begins before and reaches into the range.
    fn several_extents(&self, first: Key, last: Key, max: usize) -> Result<Vec<(Key, Extent, Value)>> {
        let mut out = Vec::new();
        let mut bad = None;
        let from = first.off;
        self.live.scan(&self.cache, &first, &last, &mut |k, v| {
            match extent(k, v) {
                Ok(e) => out.push((*k, e, v.clone())),
                Err(e) => {
                    bad = Some(e);
                    return ControlFlow::Break(());
                }
            }
            if out.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if let Some(e) = bad {
            return Err(e);
        }
        // Where one begins with the range none reaches into it.
        if out.first().is_none_or(|(k, ..)| k.off != from) {
            let before = self.live.prev(&self.cache, &first)?;
            let same = before.filter(|(k, _)| (k.ino, k.kind, k.fork) == (first.ino, first.kind, first.fork));
            if let Some(before) = same.map(|(k, v)| reaching(k, v, from)).transpose()?.flatten() {
                out.insert(0, before);
                out.truncate(max);
            }
        }
        Ok(out)
    }

    /// How many live extents begin within these file blocks, and what they take of leaves, in bytes; not counted on beyond `max`.
    pub fn count_extents(&self, ino: Ino, fork: u32, blocks: Range<u64>, max: u64) -> Result<(u64, u64)> {
        let (mut count, mut bytes) = (0, 0);
        let Some(last) = blocks.end.checked_sub(1).filter(|last| blocks.start <= *last) else { return Ok((0, 0)) };
        let [first, last] = [blocks.start, last].map(|block| Key::new(ino, Kind::Extent, fork, block));
        self.live.scan(&self.cache, &first, &last, &mut |k, v| {
            count += 1;
            bytes += weight(k, v);
            if count <= max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok((count, bytes))
    }

    /// Blocks of live content of a file that nobody has any more when it goes now, among its first `max` extents.
    pub fn blocks_unkept(&self, ino: Ino, max: u64) -> Result<u64> {
        let inode = self.need_inode(ino)?;
        let [first, last] = [0, u64::MAX].map(|block| Key::new(ino, Kind::Extent, inode.fork, block));
        let (mut count, mut blocks, mut bad) = (0, 0, None);
        self.live.scan(&self.cache, &first, &last, &mut |key, value| {
            match self.burial(key, value, self.open_cno, inode.keep_rule()) {
                Ok((_, None, Some(e))) if !e.is_unwritten() && !e.is_shared() => blocks += u64::from(e.blocks),
                Ok(_) => {}
                Err(why) => bad = Some(why),
            }
            count += 1;
            if count < max && bad.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        bad.map_or(Ok(blocks), Err)
    }

    /// File blocks `[from, to)` leave the live tree; what sticks out stays.
    fn cut_extents(&mut self, ino: Ino, inode: &mut Inode, from: u64, to: u64, then: Then) -> Result<()> {
        if inode.blocks == 0 || from >= to && !broken(Break::BelieveNumbers) {
            return Ok(());
        }
        // One item for each block that is put at most, and one before: what stays is not to be found again.
        let batch_max = if then == Then::Put { usize::MAX } else { 256 };
        loop {
            let batch = self.extent_values(ino, inode.fork, from, to, batch_max)?;
            let is_last = batch.len() < batch_max;
            for (key, extent, value) in batch {
                // What is put in its place replaces it.
                let stays = then == Then::Put && key.off == from;
                self.cut_extent(inode, &key, &extent, value, from..to, stays)?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Unless the item `stays` for now, or a part that begins where it does, it is gone then.
    fn cut_extent(
        &mut self,
        inode: &mut Inode,
        key: &Key,
        extent: &Extent,
        value: Value,
        Range { start: from, end: to }: Range<u64>,
        stays: bool,
    ) -> Result<()> {
        let end = key.off.saturating_add(u64::from(extent.blocks));
        let (cut_from, cut_to) = (from.max(key.off), to.min(end));
        let (head, middle) = ((cut_from - key.off) as u32, (cut_to - cut_from) as u32);
        let tail = extent.blocks - head - middle;
        if head == 0 && !stays {
            self.live.remove(&self.cache, key)?;
        }
        inode.blocks = inode.blocks.saturating_sub(u64::from(middle));
        if middle == extent.blocks && !extent.is_shared() {
            return self.retire_as(key, value, Some(extent), self.open_cno, inode.keep_rule());
        }
        let part =
            |off: u64, skip: u32, blocks: u32| (blocks > 0).then(|| (Key { off, ..*key }, extent.slice(skip, blocks)));
        let stay = [part(key.off, 0, head), part(cut_to, head + middle, tail)];
        let gone = (Key { off: cut_from, ..*key }, extent.slice(head, middle));
        if extent.is_shared() {
            let parts: Vec<_> = stay.iter().flatten().cloned().chain([gone.clone()]).collect();
            self.split_backref(key, extent, &parts)?;
        }
        // The parts that stay keep their birth and their blocks, so only the
        // middle changes any counter.
        for (key, part) in stay.into_iter().flatten() {
            self.live.insert(&self.cache, key, part.value_with(&part.crcs))?;
        }
        let (key, gone) = gone;
        self.retire_as(&key, gone.value_with(&gone.crcs), Some(&gone), self.open_cno, inode.keep_rule())
    }

    /// Blocks were copied: the first `new.blocks` blocks of the item at `key`
    /// now lie at `new`, if it still lies at `old`; the rest becomes an item of its own.
    pub(super) fn relocate(&mut self, tree: TreeId, key: &Key, old: Addr, new: &Extent) -> Result<()> {
        let history = super::is_history(tree);
        let found = if history {
            match self.history.iter().find(|t| t.tree.id() == tree) {
                Some(t) => t.tree.get(&self.cache, key)?,
                None => None,
            }
        } else {
            self.get(key)?
        };
        let Some(value) = found else { return Ok(()) };
        let current = extent(key, &value)?;
        // A shared item moves whole: its back reference names all of it.
        let fits = if current.is_shared() { current.blocks == new.blocks } else { current.blocks >= new.blocks };
        let holds = current.addr == old && fits || broken(Break::MoveBlind);
        if !holds || new.blocks == 0 || current.is_unwritten() || new.is_unwritten() {
            return Ok(());
        }
        let moved = Extent { birth: current.birth, flags: current.flags, ..new.clone() };
        let blocks = moved.blocks.min(current.blocks);
        let rest = (current.blocks > blocks).then(|| {
            let key = Key { off: key.off.saturating_add(u64::from(blocks)), ..*key };
            (key, current.slice(blocks, current.blocks - blocks).encode().into())
        });
        let items = [(*key, moved.encode().into())].into_iter().chain(rest);
        let need = Need::of(key);
        if current.is_shared() {
            self.remove_backref(key, &current)?;
        }
        // The owner that is live may follow one of history: nothing comes back by that.
        let back = self.move_need(&current.slice(0, blocks), need, Need::None)?;
        if (self.move_need(&moved, Need::None, need)? || back) && broken(Break::MovesCountBack) {
            self.recount_past();
        }
        if moved.is_shared() {
            self.add_backref(key, &moved)?;
        }
        if history {
            let Some(t) = self.history.iter_mut().find(|t| t.tree.id() == tree) else {
                return Err(Error::Corrupt("a history tree vanished".into()));
            };
            for (key, value) in items {
                t.tree.insert(&self.cache, key, value)?;
            }
        } else {
            for (key, value) in items {
                self.live.insert(&self.cache, key, value)?;
            }
        }
        if broken(Break::VictimReused) {
            self.segments.free_at_once(old.segment());
        }
        Ok(())
    }
}
