//! Writing content: into pages, and from there behind the caller's back.

use super::behind::Prepared;
use super::bursts::Who;
use super::cutting::Cut;
use super::guard::Guard;
use super::holding::RANGES_MAX;
use super::read::small_content;
use super::space::{PAGE_ROOM_BLOCKS, Room};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::content::{Content, Over, Page, SparePages, zero_page};
use crate::{AlignedBuf, AllocateMode, At, Error, FileKind, Order, Result, SetAttr};
use nenrin_format::items::Inode;
use nenrin_format::key::{Key, Kind};
use nenrin_format::{BLOCK_BYTES, Ino, Time};
use std::collections::btree_map::Entry;
use std::ops::Range;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Largest file in bytes: offsets are signed to the kernel.
pub(super) const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Whole blocks in one call from which they skip being pages.
const DIRECT_BLOCKS_MIN: u64 = 32;
/// Pages of emptied files that wait for a commit in memory; more are written behind.
const ASIDE_PAGES_MAX: usize = 32;
/// Pages of one file at which they are written behind, when they were written one after the other.
pub(super) const WRITE_BEHIND_PAGES: usize = 256;
/// The same of pages here and there, which may be written once more before they are committed: 64 MiB.
const SCATTERED_PAGES_MAX: usize = 16384;

/// A caller that keeps the times sends what it has within so long: a write that comes later is of a change whose time is still to come,
/// and until then the file must not look as it did before.
const KEPT_NANOS: i64 = 40_000_000_000;

/// Who writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    /// The user.
    pub uid: u32,
    /// The caller has the times of the file, and sets them apart: recent ones stay as they are, but that ctime tells one state from the
    /// next by a nanosecond.
    pub keeps_times: bool,
}

impl From<u32> for Writer {
    fn from(uid: u32) -> Self {
        Self { uid, keeps_times: false }
    }
}

impl Writer {
    /// What was changed of content that was not so before gets its times.
    pub(super) fn note_times(self, content: &mut Content, wall: Time) {
        let is_recent = wall.0.saturating_sub(content.mtime.0) < KEPT_NANOS;
        if !(self.keeps_times && is_recent) || broken(Break::CacheMovesTimes) {
            content.mtime = wall;
            content.ctime = wall;
        } else if !content.is_told_apart() && !broken(Break::CacheUnseen) {
            // No time may come for it, and who compares two states goes by times.
            content.ctime = Time(content.ctime.0.saturating_add(1));
        }
    }
}

fn is_regular(inode: &Inode) -> Result<()> {
    match FileKind::from_mode(inode.mode) {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Error::IsDirectory),
        _ => Err(Error::BadArgument("not a regular file")),
    }
}

/// A write that was accepted.
#[must_use = "the program may have to wait"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// All that were given.
    pub bytes: usize,
    /// The program is not told now, but by [`Fs::tell_later`].
    pub is_told_later: bool,
}

impl Inner {
    /// The uncommitted content of a regular file, begun if there is none.
    pub(super) fn content_mut(&mut self, fs: &Fs, ino: Ino) -> Result<&mut Content> {
        if self.files.get(&ino).is_none_or(|f| f.content.is_none()) {
            let inode = self.state.inode(ino)?.ok_or(Error::NotFound)?;
            self.begin_content(fs, ino, &inode)?;
        }
        self.changed_since_cut = true;
        self.files.get_mut(&ino).and_then(|f| f.content.as_mut()).ok_or(Error::NotFound)
    }

    /// Whether this can have content, uncommitted or not.
    pub(super) fn takes_content(&self, ino: Ino) -> Result<()> {
        match self.files.get(&ino).is_some_and(|f| f.content.is_some()) {
            true => Ok(()),
            false => is_regular(&self.state.inode(ino)?.ok_or(Error::NotFound)?),
        }
    }

    fn begin_content(&mut self, fs: &Fs, ino: Ino, inode: &Inode) -> Result<()> {
        is_regular(inode)?;
        let now = fs.clock.monotonic_nanos();
        let mut content = Content::new(inode.blocks, inode.size, inode.mtime, inode.ctime, inode.editor_uid, now);
        if inode.blocks == 0 {
            let key = Key::new(ino, Kind::Inline, 0, 0);
            if let Some(v) = self.state.get(&key)? {
                let mut page = zero_page();
                let bytes = small_content(&key, &v)?;
                let n = bytes.len().min(BLOCK_BYTES);
                page[..n].copy_from_slice(&bytes[..n]);
                content.pages.insert(0, page);
                self.pages += 1;
            }
        }
        // Versions never repeat, so that a reader who let go of the lock
        // notices when content was committed and begun anew meanwhile.
        self.contents += 1;
        content.version = self.contents << 32;
        self.files.entry(ino).or_default().content = Some(content);
        Ok(())
    }

    /// A file is about to be emptied that was closed and is not committed yet: what it was is kept as what is committed would be, so
    /// that there is something to show until it is closed again. Once for each commit: who saves without end writes no more than that.
    /// Whether there is such content.
    fn owe_closed(&mut self, fs: &Fs, ino: Ino) -> bool {
        let whole = self.files.get(&ino).and_then(|f| f.content.as_ref()).filter(|c| c.size > 0);
        if whole.is_none() && self.batch.aside.is_empty() || broken(Break::ClosedNotOwed) {
            return false;
        }
        if self.batch.aside.iter().any(|(of, content)| *of == ino && content.size > 0) {
            return true;
        }
        // Whoever syncs next commits it, too: he is not to wait for data, nor to write much for others.
        let owed: usize = self.batch.aside.iter().map(|(_, content)| content.pages.len()).sum();
        let is_little = |c: &Content| c.pages.len() < ASIDE_PAGES_MAX && owed + c.pages.len() <= fs.chain_pages_max();
        let is_owed = whole.is_some_and(|c| c.is_whole() && is_little(c)) && self.has_nothing_under_way(ino);
        if is_owed {
            self.batch.files.insert(ino);
        }
        is_owed
    }

    /// A file that the open batch will commit is about to be emptied. Others may
    /// be waiting for that commit, or a rename that needs the content is part of
    /// it; the emptying, which may have to be held back, is not. So the content
    /// goes to the batch and the file begins anew. Whether there was any.
    fn set_aside(&mut self, fs: &Fs, ino: Ino) -> Result<bool> {
        let Some(content) = self.files.get(&ino).and_then(|f| f.content.as_ref()) else { return Ok(false) };
        if !self.batch.files.contains(&ino) || broken(Break::NoHold) {
            return Ok(false);
        }
        if content.pages.len() >= ASIDE_PAGES_MAX {
            self.write_behind(fs, ino)?;
        }
        let now = fs.clock.monotonic_nanos();
        let Some(file) = self.files.get_mut(&ino) else { return Ok(false) };
        let Some(old) = file.content.take() else { return Ok(false) };
        let mut new = Content::new(old.blocks_over(old.before), old.size, old.mtime, old.ctime, old.editor_uid, now);
        self.contents += 1;
        new.version = self.contents << 32;
        file.content = Some(new);
        self.batch.files.remove(&ino);
        self.batch.aside.push((ino, old));
        self.batch.since.get_or_insert(now);
        Ok(true)
    }

    /// Pages of a file, written here and there, from which on they are written behind. Waiting gains most where the same
    /// blocks are written again, and costs who syncs: himself and, were there much, others.
    fn scattered_pages_max(&self, fs: &Fs, ino: Ino) -> usize {
        let now = fs.clock.monotonic_nanos();
        if fs.options.order == Order::Strict || self.recent_syncs.beside(ino, now) {
            return WRITE_BEHIND_PAGES;
        }
        // Where room is short what waits must not take it from others.
        let room = usize::try_from(self.room_blocks(fs)).unwrap_or(usize::MAX);
        let limit = fs.options.dirty_bytes_max / BLOCK_BYTES / 4;
        SCATTERED_PAGES_MAX.min(limit).min(room).max(WRITE_BEHIND_PAGES)
    }

    /// That changing file blocks `[from, to)` can be committed. Only where nodes were lost already who writes pays for looking.
    pub(super) fn content_ahead(&self, ino: Ino, from: u64, to: u64) -> Result<()> {
        if !self.state.has_met_damage() {
            return Ok(());
        }
        let replaced = self.files.get(&ino).and_then(|f| f.content.as_ref()).is_some_and(|c| c.replaced);
        self.state.content_ahead(ino, from, if replaced { from } else { to })
    }

    /// Whether block `block` is a page, or is known to hold nothing.
    fn has_page(&self, ino: Ino, block: u64) -> bool {
        self.files.get(&ino).and_then(|f| f.content.as_ref()).is_some_and(|c| c.pages.contains_key(&block))
    }
}

impl Fs {
    /// Makes the given blocks pages, reading what is not in memory. The lock is
    /// let go for each read, and a commit may take pages away meanwhile, those
    /// of earlier blocks too: when this returns, all are there at once.
    pub(super) fn load_pages<'a>(&'a self, mut inner: Guard<'a>, ino: Ino, blocks: &[u64]) -> Result<Guard<'a>> {
        while let Some(&block) = blocks.iter().find(|b| !inner.has_page(ino, **b)) {
            let version = inner.content_mut(self, ino)?.version;
            if inner.has_page(ino, block) {
                continue;
            }
            let pieces = inner.pieces(At::Live, ino, block, block + 1)?;
            drop(inner);
            let bytes = self.fetch(ino, block, pieces)?.into_vec();
            inner = self.lock_to_accept()?;
            let content = inner.content_mut(self, ino)?;
            if content.version != version || content.pages.contains_key(&block) {
                continue;
            }
            inner.promise_ends(ino, block, block + 1)?;
            inner.note_owners(ino, block, block + 1);
            let content = inner.content_mut(self, ino)?;
            let mut page: Page = zero_page();
            page.copy_from_slice(&bytes);
            content.pages.insert(block, page);
            inner.pages += 1;
        }
        Ok(inner)
    }

    /// The lock, with room and with the blocks as pages that `edges` says for a
    /// file of this size. Reading them lets go of the lock, and others may take
    /// the room or change the size meanwhile: when this returns, all is true at once.
    pub(super) fn room_and_pages(&self, room: Room, ino: Ino, edges: &dyn Fn(u64) -> Vec<u64>) -> Result<Guard<'_>> {
        let (mut extra, mut promised) = (0, false);
        loop {
            let mut inner = self.room_beyond(room, extra, promised)?;
            if inner.settling.contains_key(&ino) && !broken(Break::ChangedWhileSettling) {
                inner.counters.held_by_own_sync += 1;
                drop(self.wait_idle(inner));
                continue;
            }
            let size = inner.content_mut(self, ino)?.size;
            let blocks = edges(size);
            let missing = blocks.iter().filter(|b| !inner.has_page(ino, **b)).count() as u64;
            if missing == 0 {
                return Ok(inner);
            }
            // Pages that are loaded take room, too: were it not asked for, they would
            // take away again and again what was found.
            if missing * PAGE_ROOM_BLOCKS > extra && !broken(Break::PagesWithoutRoom) {
                extra = missing * PAGE_ROOM_BLOCKS;
                continue;
            }
            // The reservation of a block ends when it is loaded: what it promised is still ours.
            promised |= inner.is_promised(room);
            inner = self.load_pages(inner, ino, &blocks)?;
            let has_room = inner.has_room(self, room) || promised && inner.has_kept_room(self, room, 0);
            // Somebody may have begun to settle the file while it was read.
            let changes = !inner.settling.contains_key(&ino) || broken(Break::ChangedWhileSettling);
            if has_room && changes && inner.content_mut(self, ino)?.size == size {
                return Ok(inner);
            }
        }
    }

    /// Writes content; returns once the bytes are in memory.
    ///
    /// # Errors
    /// [`Error::NoSpace`] before anything changed; [`Error::TooLarge`] behind the largest offset.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], uid: u32) -> Result<usize> {
        self.submit_write(ino, offset, data, uid).wait()
    }

    /// [`Fs::write`] that does not wait for others who write beside syncs: the caller tells the program through [`Fs::tell_later`] where
    /// that is to wait.
    ///
    /// # Errors
    /// Those of [`Fs::write`].
    pub fn accept(&self, ino: Ino, offset: u64, data: &[u8], writer: Writer) -> Result<Accepted> {
        self.accept_of(Who::IsTold, ino, offset, data, writer)
    }

    /// [`Fs::accept`] of bytes that the caller gives away, as [`Fs::write_buf`].
    ///
    /// # Errors
    /// Those of [`Fs::write`].
    pub fn accept_buf(&self, ino: Ino, offset: u64, data: AlignedBuf, writer: Writer) -> Result<Accepted> {
        self.accept_buf_of(Who::IsTold, ino, offset, data, writer)
    }

    pub(super) fn accept_of(&self, who: Who, ino: Ino, offset: u64, data: &[u8], writer: Writer) -> Result<Accepted> {
        let whole = whole_blocks(offset, data.len());
        let prepared = (whole.end.saturating_sub(whole.start) >= DIRECT_BLOCKS_MIN).then(|| {
            let (from, to) = (whole.start * BLOCK - offset, whole.end * BLOCK - offset);
            Prepared::copied(whole.start, &data[from as usize..to as usize])
        });
        self.write_prepared(who, ino, offset, data, prepared.as_ref(), writer)
    }

    /// [`Fs::write`] of bytes that the caller gives away: whole blocks go to
    /// the device from where they are.
    ///
    /// # Errors
    /// Those of [`Fs::write`].
    pub fn write_buf(&self, ino: Ino, offset: u64, data: AlignedBuf, uid: u32) -> Result<usize> {
        self.submit_write_buf(ino, offset, data, uid).wait()
    }

    pub(super) fn accept_buf_of(
        &self,
        who: Who,
        ino: Ino,
        offset: u64,
        data: AlignedBuf,
        writer: Writer,
    ) -> Result<Accepted> {
        let whole = whole_blocks(offset, data.len());
        let blocks = data.len() / BLOCK_BYTES;
        if !Self::takes_buf(offset, data.len()) || whole != (offset / BLOCK..offset / BLOCK + blocks as u64) {
            return self.accept_of(who, ino, offset, &data, writer);
        }
        let prepared = Prepared::new(whole.start, data);
        self.write_prepared(who, ino, offset, prepared.bytes(), Some(&prepared), writer)
    }

    /// Whether [`Fs::write_buf`] gains anything over [`Fs::write`] for these bytes.
    #[must_use]
    pub const fn takes_buf(offset: u64, bytes: usize) -> bool {
        offset % BLOCK == 0 && bytes % BLOCK_BYTES == 0 && bytes as u64 >= DIRECT_BLOCKS_MIN * BLOCK
    }

    fn write_prepared(
        &self,
        who: Who,
        ino: Ino,
        offset: u64,
        data: &[u8],
        prepared: Option<&Prepared>,
        writer: Writer,
    ) -> Result<Accepted> {
        if data.is_empty() {
            return Ok(Accepted::default());
        }
        let end = offset.checked_add(data.len() as u64).filter(|e| *e <= FILE_BYTES_MAX).ok_or(Error::TooLarge)?;
        let (first, last) = (offset / BLOCK, (end - 1) / BLOCK);
        let whole = whole_blocks(offset, data.len());
        // Behind the end there is nothing to read, and must be nothing if the write is refused.
        let edges = |size: u64| cut_blocks(offset, end).into_iter().filter(|b| b * BLOCK < size).collect();
        let mut inner = self.room_and_pages(Room::Write(ino, first, last + 1), ino, &edges)?;
        inner.content_ahead(ino, first, last + 1)?;
        inner.promise_ends(ino, first, last + 1)?;
        let wall = self.clock.wall();
        inner.content_mut(self, ino)?;
        inner.note_owners(ino, first, last + 1);
        let mut spare = std::mem::take(&mut inner.spare);
        let content = inner.content_mut(self, ino)?;
        let before = content.pages.len();
        if prepared.is_some() {
            let from = (whole.start * BLOCK - offset) as usize;
            let to = (whole.end * BLOCK - offset) as usize;
            copy_in(content, offset, &data[..from], &mut spare);
            copy_in(content, whole.end * BLOCK, &data[to..], &mut spare);
            let mut rest = content.pages.split_off(&whole.start);
            let mut behind = rest.split_off(&whole.end);
            content.pages.append(&mut behind);
        } else {
            copy_in(content, offset, data, &mut spare);
        }
        content.size = content.size.max(end);
        writer.note_times(content, wall);
        content.editor_uid = writer.uid;
        content.version += 1;
        let (pages, is_much) = (content.pages.len(), content.has_many_ranges(RANGES_MAX));
        // A block that is not full yet stays.
        let sequence = content.note_sequence(first, end / BLOCK);
        inner.pages = inner.pages + pages as u64 - before as u64;
        inner.spare = spare;
        if let Some(prepared) = prepared {
            inner.write_ahead(self, ino, prepared)?;
        }
        if pages >= WRITE_BEHIND_PAGES {
            if sequence.end.saturating_sub(sequence.start) >= WRITE_BEHIND_PAGES as u64 {
                inner.write_behind_of(self, ino, sequence)?;
                inner.content_mut(self, ino)?.restart_sequence();
            } else if pages >= inner.scattered_pages_max(self, ino) {
                inner.write_some_behind(self, ino)?;
            }
        }
        let is_told_later = self.hold_writer(inner, ino, who)?;
        if is_much {
            self.hold_scattered(ino)?;
        }
        Ok(Accepted { bytes: data.len(), is_told_later })
    }

    /// Sets the size: cuts content off or grows a hole.
    pub(super) fn truncate(&self, ino: Ino, size: u64, set: &SetAttr) -> Result<Guard<'_>> {
        if size > FILE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        let tail = size / BLOCK;
        let grows = size > self.lock().current_inode(At::Live, ino)?.size;
        // Emptying what is empty may be refused no more than emptying what is not.
        let grows = grows || size == 0 && broken(Break::EmptyNeedsRoom);
        let room = if grows { Room::Passing(1) } else { Room::Removal };
        let edges = |current: u64| if size < current { cut_blocks(size, size) } else { Vec::new() };
        let mut inner = self.room_and_pages_to_cut(room, ino, &edges, Cut::Behind(size))?;
        inner.content_ahead(ino, size / BLOCK, if size > 0 { u64::MAX } else { 0 })?;
        let now = self.clock.monotonic_nanos();
        let wall = self.clock.wall();
        let committed = inner.state.inode(ino)?.map_or(0, |i| i.size);
        let before = inner.content_mut(self, ino)?.size;
        // What is set aside counts by itself until it is committed, so what it promises is looked up before.
        let gone =
            if size < before || size == 0 { inner.promised_in(ino, size.div_ceil(BLOCK), u64::MAX)? } else { 0 };
        if 0 < size && size < before {
            inner.note_cut(ino, size.div_ceil(BLOCK), u64::MAX)?;
        }
        let is_kept = size == 0 && !set.closed && inner.owe_closed(self, ino);
        let owed = size == 0 && inner.set_aside(self, ino)? && before > 0;
        let content = inner.content_mut(self, ino)?;
        let had = if content.replaced { 0 } else { content.before.max(u64::from(committed > 0)) };
        if size == 0 && had > 0 {
            inner.note_emptied(ino, had, now);
        }
        inner.promise(ino, -(gone as i64));
        if size == 0 {
            inner.uncount_owners(ino);
        }
        let content = inner.content_mut(self, ino)?;
        let pages = content.pages.len();
        if size == 0 {
            content.pages.clear();
            content.overlay.set(0, u64::MAX, Over::Hole);
            content.replaced = true;
            if !set.closed && (committed > 0 || owed || is_kept) && !broken(Break::NoHold) {
                content.held_since.get_or_insert(now);
            }
        } else if size < content.size {
            let keep = size.div_ceil(BLOCK);
            content.pages.split_off(&keep);
            content.overlay.set(keep, u64::MAX, Over::Hole);
            if let Some(page) = content.pages.get_mut(&tail).filter(|_| size % BLOCK != 0 && !broken(Break::StaleTail))
            {
                page[(size % BLOCK) as usize..].fill(0);
            }
        }
        let removed = pages - content.pages.len();
        content.size = size;
        content.mtime = wall;
        content.ctime = wall;
        content.editor_uid = set.editor.unwrap_or(content.editor_uid);
        content.version += 1;
        inner.pages -= removed as u64;
        inner.count_placed(ino);
        inner.unpin_dead(self, ino);
        Ok(inner)
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the range cannot be reserved.
    pub fn allocate(&self, ino: Ino, mode: AllocateMode, offset: u64, bytes: u64) -> Result<()> {
        self.allocate_for(Writer::default(), ino, mode, offset, bytes)
    }

    /// [`Fs::allocate`] for a caller who may keep the times; the user is not noted.
    ///
    /// # Errors
    /// As there.
    pub fn allocate_for(&self, writer: Writer, ino: Ino, mode: AllocateMode, offset: u64, bytes: u64) -> Result<()> {
        let end = offset.checked_add(bytes).filter(|e| *e <= FILE_BYTES_MAX).ok_or(Error::TooLarge)?;
        if bytes == 0 {
            return Err(Error::BadArgument("an empty range"));
        }
        match mode {
            AllocateMode::Reserve => self.reserve(writer, ino, offset, end, true),
            AllocateMode::ReserveKeepSize => self.reserve(writer, ino, offset, end, false),
            AllocateMode::Punch => self.clear(writer, ino, offset, end, false),
            AllocateMode::Zero => self.zero_range(writer, ino, offset, end, true),
            AllocateMode::ZeroKeepSize => self.zero_range(writer, ino, offset, end, false),
        }
    }

    /// Makes `[offset, end)` read as zeros, and lets go of what is reserved in it.
    pub(super) fn clear(&self, writer: Writer, ino: Ino, offset: u64, end: u64, grow: bool) -> Result<()> {
        self.clear_but(Keeps::Nothing, writer, ino, offset, end, grow)?;
        self.hold_scattered(ino)
    }

    /// Makes `[offset, end)` read as zeros. False where there is no room to keep what is to be kept: then nothing was done, or only what
    /// is cut off ahead where that is much.
    pub(super) fn clear_but(
        &self,
        keeps: Keeps,
        writer: Writer,
        ino: Ino,
        offset: u64,
        end: u64,
        grow: bool,
    ) -> Result<bool> {
        // Only blocks cut in part need their other bytes, and nothing is behind the end.
        let edges = |size: u64| match end.min(size) {
            stop if offset >= stop => Vec::new(),
            stop if stop == size => cut_blocks(offset, stop.next_multiple_of(BLOCK)),
            stop => cut_blocks(offset, stop),
        };
        let cut = Cut::Within(offset.div_ceil(BLOCK), end / BLOCK);
        let (room, kept) = match keeps {
            Keeps::Nothing => (Room::Removal, 0),
            Keeps::All(blocks) => (Room::Promise(blocks), blocks),
        };
        let lacks = |inner: &Inner| kept > 0 && inner.reservable(self) < kept;
        if lacks(&self.lock()) {
            return Ok(false);
        }
        let mut inner = self.room_and_pages_to_cut(room, ino, &edges, cut)?;
        if lacks(&inner) {
            return Ok(false);
        }
        inner.content_ahead(ino, offset / BLOCK, end.div_ceil(BLOCK))?;
        let wall = self.clock.wall();
        let size = inner.content_mut(self, ino)?.size;
        let whole_end = if end >= size { end.div_ceil(BLOCK) } else { end / BLOCK };
        let whole = (offset.div_ceil(BLOCK), whole_end);
        if whole.0 < whole.1 {
            inner.note_cut(ino, whole.0, whole.1)?;
            inner.promise_ends(ino, whole.0, whole.1)?;
        }
        let content = inner.content_mut(self, ino)?;
        let before = content.pages.len();
        for (block, page) in content.pages.range_mut(offset / BLOCK..end.div_ceil(BLOCK)) {
            let start = block * BLOCK;
            let a = offset.max(start) - start;
            let b = end.min(start + BLOCK) - start;
            page[a as usize..b as usize].fill(0);
        }
        if whole.0 < whole.1 {
            let mut rest = content.pages.split_off(&whole.0);
            let mut behind = rest.split_off(&whole.1);
            content.pages.append(&mut behind);
            content.overlay.set(whole.0, whole.1, Over::Hole);
            if kept > 0 {
                content.reserve_hole(whole.0, whole.1);
            }
        }
        if grow {
            content.size = content.size.max(end);
        }
        writer.note_times(content, wall);
        content.version += 1;
        let after = content.pages.len();
        inner.pages = inner.pages + after as u64 - before as u64;
        if kept > 0 {
            inner.promise(ino, whole.1.saturating_sub(whole.0) as i64);
        }
        inner.count_placed(ino);
        inner.unpin_dead(self, ino);
        Ok(true)
    }
}

/// What stays of a range that is to read as zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    Nothing,
    /// The room of these many blocks at most: whole ones are reserved from then on.
    All(u64),
}

/// Blocks of which `[from, to)` covers a part only.
fn cut_blocks(from: u64, to: u64) -> Vec<u64> {
    let mut blocks: Vec<u64> = [from, to].into_iter().filter(|at| at % BLOCK != 0).map(|at| at / BLOCK).collect();
    blocks.dedup();
    blocks
}

/// The file blocks that `bytes` bytes at `offset` cover whole; reversed where there are none.
fn whole_blocks(offset: u64, bytes: usize) -> Range<u64> {
    offset.div_ceil(BLOCK)..offset.saturating_add(bytes as u64) / BLOCK
}

/// Copies bytes into pages; partly covered pages are there already.
pub(super) fn copy_in(content: &mut Content, offset: u64, data: &[u8], spare: &mut SparePages) {
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let within = (at % BLOCK) as usize;
        let n = (BLOCK_BYTES - within).min(data.len() - done);
        let piece = &data[done..done + n];
        match content.pages.entry(at / BLOCK) {
            Entry::Occupied(page) => page.into_mut()[within..within + n].copy_from_slice(piece),
            Entry::Vacant(place) => {
                place.insert(spare.page_with(within, piece));
            }
        }
        done += n;
    }
}
