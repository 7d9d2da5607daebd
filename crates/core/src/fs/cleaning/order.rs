//! Files that lie scattered are put in order, on request.
//!
//! A file that was written at random has no garbage, so nothing of it is ever a victim, and each block lies where it was
//! written. Here the live tree is walked in order of inodes, and what lies scattered is copied in order of the file, by the
//! same steps as blocks of victims. What is larger than the room for that is sorted first (`presort`).
//!
//! Invariants
//! 1. What is moved lies in segments that were pinned before it was found, until it was moved.
//! 2. A window that is in order, or would not be after moving, is left alone: who asks twice moves nothing twice.
//! 3. Nobody waits for the sake of order: room below which the cleaner works and history goes is left alone.
//! 4. A job of order ends within the step that began it, so that nobody finishes it for want of room.

use super::super::{Fs, Inner};
use super::presort::Sorting;
use super::{BATCH_BLOCKS_MAX, Cleaner, Job, LOOK_BLOCKS, Move, Stage, Victim};
use crate::breaks::{Break, broken};
use crate::devices::Avoided;
use crate::fs::space::with_summaries;
use crate::{Error, FileKind, Result};
use nenrin_format::items::{Extent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::{Addr, Ino};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

/// File blocks that are judged, and copied or left alone, together: 4 MiB.
const WINDOW_BLOCKS: u64 = 1024;
/// What lies in runs of 128 KiB on average is in order: who reads it asks for as much at once, whatever lies behind.
const RUN_BLOCKS_MIN: u64 = 32;
/// Fewer runs more than needed cost less to read than to copy.
const RUNS_MIN: u64 = 8;
/// Blocks of a segment that a run may lose: the summary, blocks left out up to a granule's multiple.
const LOST_BLOCKS: u32 = 5;
/// Items looked at in one step.
const ITEMS_AT_ONCE: usize = 2048;
/// Of what room would be without garbage so much is left alone: below a quarter history goes, below an eighth the cleaner
/// works while others write.
const LEFT_ALONE: u64 = 4;
/// Files for which there is no room that one step looks at: who needs the cleaner waits for the step.
const LEFT_AT_ONCE: u32 = 64;
/// Windows that are remembered because something in them cannot be read.
const UNREADABLE_MAX: usize = 4096;

/// How far putting files in order came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderStatus {
    /// All files were looked at.
    pub looked: bool,
    /// Files that lay scattered.
    pub files: u64,
    /// Blocks of them that are to be copied; twice where room is short.
    pub blocks: u64,
    /// Files that were put in order.
    pub ordered_files: u64,
    /// Blocks that were copied.
    pub ordered_blocks: u64,
    /// Files that were left as they are for want of room, wholly or in part.
    pub left_files: u64,
    /// Blocks of them that would have been copied.
    pub left_blocks: u64,
}

/// Blocks of a file, next to each other there, that lie scattered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    ino: u64,
    fork: u32,
    /// The first of [`WINDOW_BLOCKS`].
    first: u64,
    blocks: u32,
}

/// Putting files in order, as far as it came.
#[derive(Default)]
pub(super) struct Order {
    pub status: OrderStatus,
    looking: Looking,
    windows: VecDeque<Window>,
    /// The file for which there was room when its first window was reached.
    file: Option<u64>,
    /// Blocks that had been moved, by whomever, when what was emptied was made free for the last time.
    finished_at: Option<u64>,
    /// Its first pass, where one takes too much room.
    pub sorting: Option<Sorting>,
}

/// Where looking for scattered files is.
struct Looking {
    from: Key,
    /// The regular file whose extents come, with its fork.
    file: Option<(u64, u32)>,
    /// The window being looked at.
    first: u64,
    layout: Layout,
}

impl Default for Looking {
    fn default() -> Self {
        Self { from: Key::first(), file: None, first: 0, layout: Layout::default() }
    }
}

/// How consecutive extents of a file lie on the device.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    blocks: u64,
    /// Those that may be moved.
    movable: u64,
    runs: u64,
    /// Runs if all that is movable lay in order, but for ends of segments.
    needed: u64,
    /// Where the last extent ends, and whether it is movable.
    last: Option<(Addr, bool)>,
}

impl Layout {
    fn add(&mut self, e: &Extent) {
        let movable = may_move(e);
        let follows = self.last.is_some_and(|(end, _)| end == e.addr);
        let joins = self.last.is_some_and(|(_, last)| last == movable) && (movable || follows);
        self.blocks += u64::from(e.blocks);
        self.movable += if movable { u64::from(e.blocks) } else { 0 };
        self.runs += u64::from(!follows);
        self.needed += u64::from(!joins);
        self.last = Some((Addr(e.addr.0 + u64::from(e.blocks)), movable));
    }

    /// Whether copying what is movable is worth it. What was copied is not: it is in about as many runs as are needed.
    fn is_scattered(&self, segment_blocks: u32) -> bool {
        let per_segment = u64::from(segment_blocks.saturating_sub(LOST_BLOCKS).max(1));
        let needed = self.needed + self.movable / per_segment;
        let needed = if broken(Break::OrderEndless) { 0 } else { needed };
        let runs_min = if broken(Break::OrderEndless) { 1 } else { RUNS_MIN };
        let short = self.blocks < self.runs * RUN_BLOCKS_MIN || broken(Break::OrderEndless);
        self.movable > 0 && short && self.runs >= 2 * needed + runs_min
    }
}

/// Whether an extent is one to be put in order. What is shared is in order for one of its owners at most, and moving it for
/// one after the other would never end.
fn may_move(e: &Extent) -> bool {
    !e.is_shared()
}

impl Looking {
    /// The next item of the live tree; a window that ended before it and lies scattered.
    fn item(&mut self, key: &Key, value: &[u8], segment_blocks: u32) -> Option<Window> {
        let ended = |l: &mut Self, first: u64| {
            let layout = std::mem::take(&mut l.layout);
            let (ino, fork) = l.file?;
            let window = Window { ino, fork, first: l.first, blocks: layout.movable as u32 };
            l.first = first;
            layout.is_scattered(segment_blocks).then_some(window)
        };
        match key.kind {
            Kind::Inode => {
                let window = ended(self, 0);
                let inode = Inode::decode(value).ok();
                let regular = inode.filter(|i| FileKind::from_mode(i.mode) == FileKind::Regular);
                self.file = regular.map(|i| (key.ino, i.fork));
                window
            }
            Kind::Extent if self.file == Some((key.ino, key.fork)) => {
                let first = key.off - key.off % WINDOW_BLOCKS;
                let window = if first == self.first { None } else { ended(self, first) };
                if let Some(e) = Extent::decode(value).ok().filter(|e| !e.is_unwritten()) {
                    self.layout.add(&e);
                }
                window
            }
            _ => None,
        }
    }
}

impl Order {
    fn found(&mut self, window: Window) {
        let same = self.windows.back().is_some_and(|w| w.ino == window.ino);
        self.status.files += u64::from(!same);
        self.status.blocks += u64::from(window.blocks);
        self.windows.push_back(window);
    }

    /// The file whose turn it is stays as it is.
    fn leave_file(&mut self) {
        let Some(ino) = self.windows.front().map(|w| w.ino) else { return };
        self.status.left_files += 1;
        while let Some(w) = self.windows.front().filter(|w| w.ino == ino) {
            self.status.left_blocks += u64::from(w.blocks);
            self.windows.pop_front();
        }
    }

    /// All that was not done yet stays as it is.
    pub fn leave_all(&mut self) {
        self.sorting = None;
        while !self.windows.is_empty() {
            self.leave_file();
        }
    }
}

impl Inner {
    /// Blocks that putting files in order may take now.
    pub(super) fn room_to_order(&self, fs: &Fs) -> u64 {
        let blocks = u64::from(fs.storage.segment_blocks);
        if broken(Break::OrderBeyondRoom) {
            return self.state.segments.free_count() * blocks;
        }
        let left_alone = self.slack_segments(fs).div_ceil(LEFT_ALONE) + 1;
        self.room_segments(fs).saturating_sub(left_alone) * blocks
    }
}

impl Fs {
    /// Looks at some files; whether there are more.
    pub(super) fn look_for_order(&self, order: &mut Order) -> Result<bool> {
        self.breathe();
        let views = self.views()?;
        let Some(live) = views.trees.first() else { return Ok(false) };
        let (mut items, mut next) = (Vec::new(), None);
        let walked = live.scan(&views.cache, &order.looking.from, &Key::last(), &mut |k, v| {
            if items.len() == ITEMS_AT_ONCE {
                next = Some(*k);
                return ControlFlow::Break(());
            }
            items.push((*k, v.clone()));
            ControlFlow::Continue(())
        });
        match self.unless_old(&views, walked) {
            Ok(None) => return Ok(true),
            Ok(Some(())) => {}
            // Damage in the index is told to who needs it. What was read until there counts, and nothing is looked at behind it.
            Err(_) => drop(self.lock_to_change()?),
        }
        if next.is_none() {
            // Ends the last window.
            items.push((Key { kind: Kind::Inode, ..Key::last() }, Vec::new().into()));
        }
        for (key, value) in &items {
            let window = order.looking.item(key, value, self.storage.segment_blocks);
            window.into_iter().for_each(|w| order.found(w));
        }
        order.looking.from = next.unwrap_or(Key::last());
        order.status.looked = next.is_none();
        Ok(next.is_some())
    }

    /// Looks at some files, or puts some in order; what it cost in blocks, or `None` when there is nothing more to do.
    pub(super) fn order_some(&self, cleaner: &mut Cleaner, order: &mut Order, blocks: u64) -> Result<Option<u64>> {
        if !order.status.looked {
            self.look_for_order(order)?;
            return Ok(Some(LOOK_BLOCKS));
        }
        self.lock().cleaner_status.ordering = true;
        let cost = if order.sorting.is_some() {
            self.sort_some(cleaner, order).map(|cost| Some(cost + LOOK_BLOCKS))
        } else {
            self.order_windows(cleaner, order, blocks)
        };
        self.lock().cleaner_status.ordering = false;
        cost
    }

    /// Puts the next windows in order; what that cost in blocks, or `None` when there are none.
    fn order_windows(&self, cleaner: &mut Cleaner, order: &mut Order, blocks: u64) -> Result<Option<u64>> {
        let windows = self.next_windows(cleaner, order, blocks)?;
        if windows.is_empty() {
            return Ok((order.sorting.is_some() || !order.windows.is_empty()).then_some(LOOK_BLOCKS));
        }
        // One of the background would wait, with its victims pinned.
        self.end_job(cleaner);
        let moved = self.begin_order(cleaner, &windows).and_then(|()| self.move_in_order(cleaner, order));
        cleaner.unordered.extend(self.unread_windows(cleaner, &windows));
        self.end_job(cleaner);
        let last = windows.last().map(|w| w.ino);
        let goes_on = order.windows.front().is_some_and(|w| Some(w.ino) == last);
        let files = windows.chunk_by(|a, b| a.ino == b.ino).count() as u64;
        order.status.ordered_files += files - u64::from(goes_on);
        moved.map(|blocks| Some(blocks + LOOK_BLOCKS))
    }

    /// What to put in order next, about so many blocks; nothing when that is all, or when many files find no room.
    fn next_windows(&self, cleaner: &Cleaner, order: &mut Order, blocks: u64) -> Result<Vec<Window>> {
        let (mut windows, mut planned, mut left) = (Vec::new(), 0, 0);
        while let Some(w) = order.windows.front().copied() {
            if cleaner.unordered.contains(&(w.ino, w.first)) {
                order.windows.pop_front();
                continue;
            }
            let size = u64::from(w.blocks);
            if planned > 0 && planned + size > blocks.min(BATCH_BLOCKS_MAX) {
                break;
            }
            let begins = order.file != Some(w.ino);
            // A file is begun only when all of it finds room: before the last of its blocks have moved hardly any segment is empty.
            let here: Vec<Window> = order.windows.iter().take_while(|o| begins && o.ino == w.ino).copied().collect();
            let whole = here.iter().map(|o| u64::from(o.blocks)).sum::<u64>().max(size);
            if !self.has_room_to_order(order, planned + whole)? {
                if planned > 0 || left == LEFT_AT_ONCE && !broken(Break::OrderStepsLong) {
                    break;
                }
                left += 1;
                if !begins {
                    order.leave_all();
                } else if self.begin_sorting(order, &here, whole)? {
                    order.file = Some(w.ino);
                    break;
                } else {
                    order.leave_file();
                }
                continue;
            }
            order.file = Some(w.ino);
            order.windows.pop_front();
            planned += size;
            windows.push(w);
        }
        Ok(windows)
    }

    /// Whether so many blocks may be copied, if need be after what was emptied since this was asked has become free.
    pub(super) fn has_room_to_order(&self, order: &mut Order, blocks: u64) -> Result<bool> {
        let mut inner = self.lock_to_change()?;
        // What is left out because of a slow device would be no order.
        if inner.steer(self) != Avoided::NONE {
            return Ok(false);
        }
        let fits = |inner: &Inner| inner.room_to_order(self) >= with_summaries(blocks);
        let moved = Some(inner.counters.moved_blocks);
        if fits(&inner) || inner.state.segments.promotable_count() == 0 || order.finished_at == moved {
            return Ok(fits(&inner));
        }
        order.finished_at = moved;
        drop(inner);
        self.finish_cleaning()?;
        Ok(fits(&*self.lock_to_change()?))
    }

    /// Pins what these windows lie in, and finds there what is to be moved.
    fn begin_order(&self, cleaner: &mut Cleaner, windows: &[Window]) -> Result<()> {
        let found = self.extents_of(windows)?;
        let mut inner = self.lock_to_change()?;
        let mut victims = BTreeMap::new();
        for m in found.iter().flatten().filter(|m| may_move(&m.extent)) {
            let no = m.extent.addr.segment();
            if let Some(s) = inner.state.segments.get(no).filter(|_| !victims.contains_key(&no)) {
                victims.insert(no, Victim { kind: s.item.kind, used: s.used_blocks(), found: 0 });
            }
        }
        for no in victims.keys() {
            inner.state.segments.pin(*no);
        }
        drop(inner);
        cleaner.job = Some(Job { stage: Stage::Moves { at: 0 }, order: true, ..Job::of(victims) });
        // Again, now that nothing can take their place.
        let found = self.extents_of(windows)?;
        let inner = self.lock_to_change()?;
        let Some(job) = &mut cleaner.job else { return Ok(()) };
        for window in found {
            let mut layout = Layout::default();
            window.iter().for_each(|m| layout.add(&m.extent));
            if layout.is_scattered(self.storage.segment_blocks) {
                let pinned = |m: &Move| job.victims.contains_key(&m.extent.addr.segment());
                let whole = |m: &Move| may_move(&m.extent) && pinned(m) && !inner.is_on_its_way(&m.extent);
                job.moves.extend(window.into_iter().filter(whole));
            }
        }
        job.live = job.moves.iter().map(|m| u64::from(m.extent.blocks)).sum();
        Ok(())
    }

    /// The stored extents of windows, as they are now.
    pub(super) fn extents_of(&self, windows: &[Window]) -> Result<Vec<Vec<Move>>> {
        let mut all = Vec::with_capacity(windows.len());
        while let Some(w) = windows.get(all.len()) {
            self.breathe();
            let views = self.views()?;
            let Some(live) = views.trees.first() else { break };
            let from = Key::new(Ino(w.ino), Kind::Extent, w.fork, w.first);
            let to = Key { off: w.first + WINDOW_BLOCKS - 1, ..from };
            let mut found = Vec::new();
            let looked = live.scan(&views.cache, &from, &to, &mut |k, v| {
                let extent = Extent::decode(v).ok().filter(|e| !e.is_unwritten());
                found.extend(extent.map(|extent| Move { tree: TreeId::LIVE, key: *k, extent }));
                ControlFlow::Continue(())
            });
            match self.unless_old(&views, looked) {
                Ok(None) => {}
                Ok(Some(())) => all.push(found),
                Err(e @ (Error::Failed(_) | Error::ReadOnly)) => return Err(e),
                // Damage in the index is told to who needs it; this window stays as it is.
                Err(_) => {
                    drop(self.lock_to_change()?);
                    all.push(Vec::new());
                }
            }
        }
        Ok(all)
    }

    /// Moves all of the job; how many blocks that were.
    fn move_in_order(&self, cleaner: &mut Cleaner, order: &mut Order) -> Result<u64> {
        let mut at_last = None;
        loop {
            let Some(job) = &mut cleaner.job else { return Ok(0) };
            let before = job.moved;
            if matches!(job.stage, Stage::Done | Stage::Shared { .. }) {
                return Ok(job.moved);
            }
            let room = self.move_some(job, u64::MAX)?.is_some();
            let moved = job.moved - before;
            self.note_ordered(order, moved);
            let Some(job) = &cleaner.job else { return Ok(0) };
            if room {
                self.commit_moves()?;
                continue;
            }
            // Leaves that are dirty are written, and what was emptied becomes free.
            if at_last == Some(job.moved) {
                let moved = job.moved;
                order.status.left_blocks += job.live.saturating_sub(moved);
                order.leave_all();
                return Ok(moved);
            }
            at_last = Some(job.moved);
            self.finish_cleaning()?;
        }
    }

    pub(super) fn note_ordered(&self, order: &mut Order, blocks: u64) {
        order.status.ordered_blocks += blocks;
        self.lock().counters.ordered_blocks += blocks;
    }

    /// Those of these windows in which something could not be read.
    fn unread_windows(&self, cleaner: &Cleaner, windows: &[Window]) -> BTreeSet<(u64, u64)> {
        let Some(job) = cleaner.job.as_ref().filter(|j| !j.unreadable.is_empty()) else { return BTreeSet::new() };
        let free = UNREADABLE_MAX.saturating_sub(cleaner.unordered.len());
        let unread = |w: &&Window| {
            let within = |m: &&Move| {
                (m.key.ino, m.key.fork) == (w.ino, w.fork) && m.key.off / WINDOW_BLOCKS == w.first / WINDOW_BLOCKS
            };
            job.moves.iter().filter(within).any(|m| job.unreadable.contains(&m.extent.addr.segment()))
        };
        windows.iter().filter(unread).take(free).map(|w| (w.ino, w.first)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_format::{Cno, SegmentNo};

    fn extent(segment: u64, block: u32, blocks: u32, flags: u8) -> Extent {
        let addr = Addr::new(SegmentNo(segment), block);
        Extent {
            birth: Cno(1),
            addr,
            blocks,
            flags,
            granule_shift: 0,
            lead: 0,
            tail: 0,
            crcs: vec![0; blocks as usize],
        }
    }

    fn layout(extents: impl IntoIterator<Item = Extent>) -> Layout {
        let mut layout = Layout::default();
        extents.into_iter().for_each(|e| layout.add(&e));
        layout
    }

    #[test]
    fn what_is_in_order_or_cannot_be_is_left_alone() {
        let own = |segment, block, blocks| extent(segment, block, blocks, 0);
        let shared = |segment, block| extent(segment, block, 1, nenrin_format::items::EXTENT_SHARED);
        // One behind the other, over the end of a segment.
        let ordered = layout((0..1024).map(|i| own(i / 600, i as u32 % 600, 1)));
        assert_eq!((ordered.runs, ordered.needed, ordered.is_scattered(4096)), (2, 1, false));
        let random = layout((0..1024).map(|i| own(i * 7 % 16, i as u32 * 13 % 1024, 1)));
        assert!(random.is_scattered(4096), "{random:?}");
        // Runs of 128 KiB, and slightly less.
        assert!(!layout((0..32).map(|i| own(i, 0, 32))).is_scattered(4096));
        assert!(layout((0..32).map(|i| own(i, 0, 31))).is_scattered(4096));
        // Too few to matter.
        assert!(!layout((0..9).map(|i| own(i, 0, 1))).is_scattered(4096));
        assert!(layout((0..10).map(|i| own(i, 0, 1))).is_scattered(4096));
        // As much order as segments allow.
        let small = layout((0..1024).map(|i| own(i / 11, 1 + i as u32 % 11, 1)));
        assert!(!small.is_scattered(16), "{small:?}");
        // What is shared stays where it is, and cuts what lies between.
        assert!(!layout((0..100).map(|i| shared(i, 0))).is_scattered(4096));
        let every_second = (0..100).map(|i| if i % 2 == 0 { shared(i, 0) } else { own(i, 0, 1) });
        assert!(!layout(every_second).is_scattered(4096));
        let some = (0..100).map(|i| if i % 10 == 0 { shared(i, 0) } else { own(i, 0, 1) });
        assert!(layout(some).is_scattered(4096));
    }
}
