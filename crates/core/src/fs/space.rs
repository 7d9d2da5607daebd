//! Room for what callers want to write, and how it is made when it is short.
//!
//! Invariants
//! 1. Every page accepted has a place in a free segment beyond the reserve, so
//!    what was accepted can always be written.
//! 2. The reserve holds the chain and two index checkpoints; removing things
//!    may use it.
//! 3. Who stops where, from the first to the last: content at the reserve,
//!    removing at [`Inner::removal_segments`], letting the past go, cleaning and
//!    tidying at the floor. So what makes room has room when nothing else has.
//! 4. What is promised is kept back besides, from all but those who write it and
//!    what makes room; see `promise`.

use super::bursts::Who;
use super::growth::{Growth, Tried};
use super::guard::{Awaited, Guard};
use super::holding::ITEM_RECORD_BYTES;
use super::nodes::ITEMS_IN_NEW_NODE;
use super::{DataWrite, Fs, Inner, Request};
use crate::breaks::{Break, broken};
use crate::content::Content;
use crate::devices::Avoided;
use crate::index::Tree;
use crate::log::index::IndexLog;
use crate::state::ITEMS_IN_LEAF_MIN;
use crate::{Error, Result};
use nenrin_format::{BLOCK_BYTES, Ino, NODE_BLOCKS};
use std::collections::BTreeSet;

/// Nodes' worth of blocks that an index checkpoint writes beyond dirty nodes:
/// paths in the space tree, headers, the root.
pub(super) const CHECKPOINT_NODES: u64 = 6;
/// Most blocks that a page of content takes of what is free: itself, summaries, two copies of a leaf.
pub(super) const PAGE_ROOM_BLOCKS: u64 = 2 + 2 * NODE_BLOCKS as u64;
/// Segments for the chain around an index checkpoint.
pub(super) const CHAIN_SEGMENTS: u64 = 2;
/// Segments above the floor at which removing stops: room to empty index segments in.
pub(super) const TIDY_SEGMENTS: u64 = 4;
/// Of the segments that the index takes so many parts are left above the floor by who lets go, to empty others in.
const TIDY_PART: u64 = 16;
/// And so many at least.
const TIDY_SEGMENTS_MIN: u64 = TIDY_SEGMENTS / 2;
/// Of what there is beyond, who lets go takes so many parts between two index checkpoints.
const LET_GO_PART: u64 = 2;
/// A node may make so many more dirty: those above it.
const NODES_ABOVE: u64 = 2;
/// Blocks that removing one thing may take until the next index checkpoint: a
/// page, and two copies of three leaves.
const REMOVAL_BLOCKS: u64 = 1 + 2 * 3 * NODE_BLOCKS as u64;
/// Segments above the floor at which writing to reserved space stops.
const PROMISE_SEGMENTS: u64 = TIDY_SEGMENTS / 2;
/// Room for writers, in segments, below which pending segments are made free.
const PROMOTE_SEGMENTS: u64 = 2;
/// How long it is believed that nothing makes room, while nothing changes.
pub(super) const EXHAUSTED_NANOS: u64 = 1_000_000_000;
/// Rounds without any gain after which segments are cleaned that gain little: the four ways come in turn, and after a gain one is
/// counted at once.
const LITTLE_AFTER: u32 = 5;
/// And after which letting go leaves nothing to who empties index segments: what was let go is swept in that round, whatever its turn.
const TIDIED_UNTIL: u32 = 4;
/// And after which truncations are held back no longer.
const HOLDS_AFTER: u32 = 6;
/// Rounds of making room before giving up.
const ROUNDS_MAX: u32 = 64;
/// Rounds without any gain before giving up: each way is tried once.
const IDLE_ROUNDS_MAX: u32 = HOLDS_AFTER;
/// Blocks are left out for order while more than this part of the volume is room.
const ROOM_FOR_ORDER: u64 = 8;
/// And slow devices while there are more segments: what leaves one may end several that are open.
const ROOM_TO_LEAVE: u64 = 6;
/// Data writes under way from which on a writer looks whether some have completed.
const REAP_FROM: usize = 8;

/// Room that a caller asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// For so many blocks of content, or records like them.
    Content(u64),
    /// For writing these blocks of a file, of which some may be reserved: from, and up to.
    Write(Ino, u64, u64),
    /// To reserve so many blocks.
    Promise(u64),
    /// As for so many blocks of content, for what makes the volume hold no more than it does.
    Passing(u64),
    /// For removing or changing one thing that is there.
    Removal,
}

/// What decides whether room can be made, as far as it is known without looking.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PictureOfRoom {
    segments: [u64; 3],
    needed: [u64; 3],
    waiting: [u64; 5],
    kept: [u64; 2],
}

impl Inner {
    /// Segments that an index checkpoint may take now, with the chain around it,
    /// and what the one under way may still take.
    pub(super) fn checkpoint_segments(&self, fs: &Fs) -> u64 {
        self.segments_for(fs, self.dirty_nodes() + self.frozen_nodes + self.nodes_around()) + CHAIN_SEGMENTS
    }

    /// What an index checkpoint writes beyond dirty nodes, in nodes.
    fn nodes_around(&self) -> u64 {
        let root = u64::from(self.superblock.root_blocks / NODE_BLOCKS);
        CHECKPOINT_NODES + root + self.state.segments.changed_count().min(self.state.space.nodes())
    }

    /// Segments that two copies of so many nodes take, when the open index segments have been filled.
    pub(super) fn segments_for(&self, fs: &Fs, nodes: u64) -> u64 {
        let blocks = fs.storage.segment_blocks;
        let per_segment = IndexLog::nodes_in_segment(blocks);
        self.index.iter().map(|log| nodes.saturating_sub(log.nodes_that_fit(blocks)).div_ceil(per_segment)).sum()
    }

    /// Nodes that may become dirty by cleaning or by letting go before an index
    /// checkpoint has to come.
    pub(super) fn nodes_to_spare(&self, fs: &Fs) -> u64 {
        self.nodes_above(fs, 0)
    }

    /// The same of those that sweeping, reaping and merging history may make dirty. What they let go of lies all over the index, and
    /// so do the old copies of the nodes they change: each sweep leaves little garbage in many index segments, and others must be
    /// emptied to get it back. So they leave room for that, or a sweep of a large history takes all there is and frees hardly a
    /// segment, and then nothing goes any more.
    pub(super) fn nodes_to_let_go(&self, fs: &Fs) -> u64 {
        let limited = self.let_go_share.filter(|_| !self.let_go_all);
        let Some(share) = limited else { return self.nodes_to_spare(fs) };
        let left = share.saturating_sub(self.dirty_nodes() / (1 + NODES_ABOVE));
        self.nodes_above(fs, self.tidy_segments(fs)).min(left)
    }

    /// The same of those that moving content may make dirty, which counts where the index takes much.
    pub(super) fn nodes_to_move(&self, fs: &Fs) -> u64 {
        if self.has_much_index(fs) { self.nodes_to_let_go(fs) } else { self.nodes_to_spare(fs) }
    }

    /// Whether there are more index segments than are emptied without a thought.
    pub(super) fn has_much_index(&self, fs: &Fs) -> bool {
        self.tidy_segments(fs) > TIDY_SEGMENTS_MIN && !broken(Break::LettingGoTakesAll)
    }

    /// Behind an index checkpoint: how many of these there are until the next.
    pub(super) fn share_to_let_go(&mut self, fs: &Fs) {
        let share = self.nodes_above(fs, self.tidy_segments(fs)).div_ceil(LET_GO_PART);
        self.let_go_share = Some(share).filter(|_| !broken(Break::LettingGoTakesAll));
    }

    /// Whether an index checkpoint would take of the floor and give nothing: that is for those that make room, and one that finds none is
    /// the end of the volume.
    pub(super) fn writes_floor_away(&self, fs: &Fs) -> bool {
        let segment_bytes = u64::from(fs.storage.segment_blocks) * BLOCK_BYTES as u64;
        let under_way = self.checkpointing || self.frozen_nodes > 0;
        let emptied = self.state.segments.pending_count() > 0;
        let waits = under_way || emptied || self.dirty_nodes() > 0 || self.has_uncommitted();
        // What is behind that in the log it may give.
        let needless = !waits && self.window_bytes <= segment_bytes;
        needless && self.state.segments.free_count() <= self.floor_segments(fs) && !broken(Break::FloorWrittenAway)
    }

    /// Segments above the floor that who lets go leaves to who empties index segments.
    fn tidy_segments(&self, fs: &Fs) -> u64 {
        let nodes: u64 = self.trees().map(Tree::nodes).sum();
        let segments = 2 * nodes / IndexLog::nodes_in_segment(fs.storage.segment_blocks);
        // Writers leave more than twice as much: else they would go on where nothing is let go or moved any more.
        let most = (TIDY_SEGMENTS + self.chain_segments_max(fs)) / 2;
        (segments / TIDY_PART).min(most).max(TIDY_SEGMENTS_MIN)
    }

    /// Segments that the log may take between two index checkpoints.
    pub(super) fn chain_segments_max(&self, fs: &Fs) -> u64 {
        fs.window_bytes_max().div_ceil(u64::from(fs.storage.segment_blocks) * BLOCK_BYTES as u64)
    }

    /// Whether a sweep had no room, and nothing has changed since.
    pub(super) fn sweeps_in_vain(&self) -> bool {
        self.swept_in_vain.as_ref().is_some_and(|(then, _)| *then == self.picture_of_room())
    }

    /// Nodes that may become dirty while so many segments are kept above the floor.
    fn nodes_above(&self, fs: &Fs, kept: u64) -> u64 {
        let blocks = fs.storage.segment_blocks;
        let per_segment = IndexLog::nodes_in_segment(blocks);
        let (needed, content) = self.needed_beside_pages(fs);
        let free = self.state.segments.free_count().saturating_sub(content);
        // The open index segments may be all there is: without them a volume with nothing free could not let go of anything.
        let open = self.index.iter().map(|log| log.nodes_that_fit(blocks)).min().unwrap_or(0);
        let here = if broken(Break::OpenSegmentsUncounted) { 0 } else { open };
        let fit = here + free.saturating_sub(CHAIN_SEGMENTS + kept) / 2 * per_segment;
        fit.saturating_sub(needed) / (1 + NODES_ABOVE)
    }

    /// Nodes that an index checkpoint may have to write, those that accepted content will make dirty included, and the segments
    /// that this content takes.
    fn needed_beside_pages(&self, fs: &Fs) -> (u64, u64) {
        let trees = 1 + u64::from(!self.state.history.is_empty());
        let leaves = (self.pages + self.placed).min(self.state.live.nodes()) * trees;
        let blocks = if self.pages > 0 { with_summaries(self.pages) } else { 0 };
        let nodes = self.dirty_nodes() + self.frozen_nodes + leaves + self.nodes_coming() + 2 * self.nodes_around();
        (nodes, blocks.div_ceil(u64::from(fs.storage.segment_blocks - 1)))
    }

    /// Nodes that the index grows by when what has a place is committed, however few it has now: what was copied may be of more extents
    /// than all that it says. And leaves of back references that go with what is written over.
    fn nodes_coming(&self) -> u64 {
        let new = if broken(Break::NewNodesUnreserved) { 0 } else { self.items / ITEMS_IN_NEW_NODE };
        new + self.owners_to_change()
    }

    /// Segments without which the volume could not go on: for an index
    /// checkpoint now, for the small one after it that makes freed segments
    /// usable, and for the chain. Removing and cleaning stop here.
    pub(super) fn floor_segments(&self, fs: &Fs) -> u64 {
        let nodes = self.dirty_nodes() + self.frozen_nodes + 2 * self.nodes_around();
        (self.segments_for(fs, nodes) + CHAIN_SEGMENTS).max(Self::segments_to_mount(fs, nodes))
    }

    /// What the next mount takes, should this one end now: it finishes no segment that is open.
    fn segments_to_mount(fs: &Fs, nodes: u64) -> u64 {
        1 + 2 * nodes.div_ceil(IndexLog::nodes_in_segment(fs.storage.segment_blocks))
    }

    /// The floor for who makes room: content that was accepted comes on top, with the leaves that its commit makes dirty.
    pub(super) fn floor_beside_pages(&self, fs: &Fs) -> u64 {
        let (nodes, content) = self.needed_beside_pages(fs);
        (self.segments_for(fs, nodes) + CHAIN_SEGMENTS).max(Self::segments_to_mount(fs, nodes)) + content
    }

    /// Items of the past, next to each other, that one record may let go of: what
    /// that makes dirty must fit.
    pub(super) fn items_to_let_go(&self, fs: &Fs, most: u32) -> u32 {
        let items = self.nodes_to_spare(fs).saturating_mul(ITEMS_IN_LEAF_MIN);
        let most = fs.items_at_once(most);
        u32::try_from(items).unwrap_or(most).clamp(ITEMS_IN_LEAF_MIN as u32, most)
    }

    /// Segments at which removing stops.
    pub(super) fn removal_segments(&self, fs: &Fs) -> u64 {
        self.floor_segments(fs) + TIDY_SEGMENTS
    }

    /// Segments kept back from content: the floor, what the chain may take
    /// before its next index checkpoint, and room to remove things and to clean in.
    pub(super) fn reserve_segments(&self, fs: &Fs) -> u64 {
        let segment_bytes = u64::from(fs.storage.segment_blocks) * BLOCK_BYTES as u64;
        let chain = fs.window_bytes_max().saturating_sub(self.window_bytes).div_ceil(segment_bytes);
        self.removal_segments(fs) + chain + self.checkpoint_segments(fs) / 2 + 2
    }

    /// Blocks that can be accepted without making room.
    pub(super) fn free_blocks(&self, fs: &Fs, reserve: u64) -> u64 {
        self.free_blocks_with(fs, reserve, 0)
    }

    /// The same, were so many more free.
    fn free_blocks_with(&self, fs: &Fs, reserve: u64, more: u64) -> u64 {
        let per_segment = u64::from(fs.storage.segment_blocks - 1);
        let free = self.state.segments.free_count() + more / u64::from(fs.storage.segment_blocks);
        let segments = free.saturating_sub(reserve);
        // A page costs itself, its share of summaries, and its share of nodes.
        let records = self.batch.bytes as u64 / BLOCK_BYTES as u64;
        // Each page, each run placed and each record may dirty a node that is clean now.
        let nodes = (self.pages + self.placed + self.batch.records.len() as u64).min(self.state.live.nodes());
        let nodes = (nodes + self.nodes_coming()) * 2 * u64::from(NODE_BLOCKS);
        let coming = self.items * ITEM_RECORD_BYTES / BLOCK_BYTES as u64;
        (segments * per_segment).saturating_sub(self.pages + self.pages / 16 + records + coming + nodes)
    }

    /// Whether this room is granted without making any.
    pub(super) fn has_room(&self, fs: &Fs, room: Room) -> bool {
        self.has_room_beyond(fs, room, 0, 0) || self.has_promised_room(fs, room, 0)
    }

    /// Whether there is this room and `extra` blocks besides, without making any, were `more` blocks free.
    fn has_room_beyond(&self, fs: &Fs, room: Room, extra: u64, more: u64) -> bool {
        let promised = self.promised();
        let kept_back = |promised: u64| {
            self.free_blocks_with(fs, self.reserve_segments(fs), more).checked_sub(fs.kept_for(promised))
        };
        let (left, needed) = match room {
            Room::Content(blocks) | Room::Passing(blocks) => (kept_back(promised), with_summaries(blocks)),
            Room::Write(ino, from, to) => {
                let own = self.promised_in(ino, from, to).unwrap_or(0);
                (kept_back(promised.saturating_sub(own)), with_summaries(to - from))
            }
            Room::Promise(blocks) => (kept_back(promised + blocks), 0),
            Room::Removal => {
                let kept =
                    if broken(Break::RemovalsWait) { self.reserve_segments(fs) } else { self.removal_segments(fs) };
                let free = self.free_blocks_with(fs, kept, more);
                (free.checked_sub(fs.kept_for(promised)), REMOVAL_BLOCKS)
            }
        };
        let enough = |left: u64| left >= needed + extra;
        left.is_some_and(enough) || self.blocks_for_little(fs, room).is_some_and(enough)
    }

    /// Whether this room was promised, and is there at the cost of what is kept
    /// for removing. Of what is not promised there may be the blocks at both ends, which
    /// a program that goes on where it stopped writes a second time.
    fn has_promised_room(&self, fs: &Fs, room: Room, extra: u64) -> bool {
        self.is_promised(room) && self.has_kept_room(fs, room, extra)
    }

    /// Whether this room was promised.
    pub(super) fn is_promised(&self, room: Room) -> bool {
        let Room::Write(ino, from, to) = room else { return false };
        let here = self.pages_in(ino, from, to);
        self.promised_in(ino, from, to).is_ok_and(|own| own > 0 && own + here + 2 >= to - from)
    }

    /// Whether there is this room at the cost of what is kept for removing.
    pub(super) fn has_kept_room(&self, fs: &Fs, room: Room, extra: u64) -> bool {
        let Room::Write(_, from, to) = room else { return false };
        self.free_blocks(fs, self.floor_segments(fs) + PROMISE_SEGMENTS) >= with_summaries(to - from) + extra
    }

    /// Blocks for content that nobody was promised.
    pub(super) fn room_blocks(&self, fs: &Fs) -> u64 {
        self.free_blocks(fs, self.reserve_segments(fs)).saturating_sub(fs.kept_for(self.promised()))
    }

    /// Whether room is no question, so that some may be left out.
    fn has_room_for_order(&self, fs: &Fs) -> bool {
        let total = self.state.segments.count() * u64::from(fs.storage.segment_blocks);
        self.room_blocks(fs) > total / ROOM_FOR_ORDER
    }

    /// Devices that get nothing new at the moment: those that are slow, while there is room without them.
    pub(super) fn steer(&mut self, fs: &Fs) -> Avoided {
        let slow = fs.storage.slow();
        let leaves = !slow.is_empty() && self.has_room_for_order(fs) && self.room_segments(fs) > ROOM_TO_LEAVE;
        let avoided = if leaves { slow } else { Avoided::NONE };
        if !avoided.is_empty() {
            let unwanted = fs.storage.avoided_numbers(avoided);
            let numbers = fs.storage.numbers().into_iter().filter(|r| !unwanted.contains(r));
            self.state.segments.prefer(if unwanted.is_empty() { Vec::new() } else { numbers.collect() });
        } else if self.state.segments.prefers() {
            self.state.segments.prefer(Vec::new());
        }
        avoided
    }

    /// Blocks of a segment that may be left out so that units stay whole: where these lie apart, and room is no question.
    pub(super) fn left_out_max(&self, fs: &Fs) -> u32 {
        let segment_blocks = fs.storage.segment_blocks;
        if fs.storage.lies_apart() && self.has_room_for_order(fs) {
            segment_blocks / fs.options.left_out_share.max(1)
        } else {
            0
        }
    }

    /// Segments that writers may take before room must be made.
    pub(super) fn room_segments(&self, fs: &Fs) -> u64 {
        self.room_blocks(fs) / u64::from(fs.storage.segment_blocks)
    }

    /// Segments that are free or will be.
    pub(super) fn segments_in_all(&self) -> u64 {
        self.state.segments.free_count() + self.state.segments.pending_count()
    }

    /// Blocks that are free or will be, open index segments included.
    fn room_in_all(&self, fs: &Fs) -> u64 {
        let blocks = fs.storage.segment_blocks;
        let open: u64 = self.index.iter().map(|log| log.nodes_that_fit(blocks) * u64::from(NODE_BLOCKS)).sum();
        self.segments_in_all() * u64::from(blocks) + open
    }

    pub(super) fn picture_of_room(&self) -> PictureOfRoom {
        let s = &self.state;
        let content = if broken(Break::ChangesUnseen) { 0 } else { self.content_picture() };
        let history: u64 = s.history.iter().map(|t| t.tree.nodes()).sum();
        PictureOfRoom {
            segments: [s.segments.free_count(), s.segments.pending_count(), s.segments.promotable_count()],
            needed: [s.live_blocks, s.history_blocks, s.live.nodes() + s.space.nodes() + history],
            waiting: [self.dirty_nodes(), self.pages, self.batch.bytes as u64, self.promised(), content],
            kept: [s.kept.len() as u64, s.kept.values().filter(|c| c.is_named()).count() as u64],
        }
    }

    /// Whether everything was tried a moment ago, and nothing has changed since:
    /// who is refused again and again costs the device nothing.
    fn is_exhausted(&self, now: u64) -> bool {
        self.exhausted
            .as_ref()
            .is_some_and(|(then, at)| now.saturating_sub(*at) < EXHAUSTED_NANOS && *then == self.picture_of_room())
    }

    /// What [`Inner::room_segments`] would be if there were no garbage.
    pub(super) fn slack_segments(&self, fs: &Fs) -> u64 {
        let blocks = u64::from(fs.storage.segment_blocks);
        let s = &self.state.segments;
        // What is kept back for pages in memory is no garbage.
        let kept_back = s.free_count().saturating_sub(self.room_segments(fs));
        let least = self.reserve_segments(fs) + fs.kept_for(self.promised()).div_ceil(blocks);
        s.count().saturating_sub(s.needed_blocks().div_ceil(blocks) + kept_back.max(least))
    }

    /// Whether room for writers is short while index checkpoints would add to it.
    pub(super) fn wants_promotion(&self, fs: &Fs) -> bool {
        let waiting = self.state.segments.promotable_count();
        let room = self.room_segments(fs);
        // What it takes is gained back by the next one only: less than that is not worth it.
        let cost = self.floor_beside_pages(fs);
        waiting > room.max(cost) && room < PROMOTE_SEGMENTS.max(self.slack_segments(fs) / 16)
    }

    /// Whether so many records on different inodes fit without making room.
    pub(super) fn has_room_for_records(&self, fs: &Fs, records: u64) -> bool {
        let nodes = records.min(self.state.live.nodes()) * 2 * u64::from(NODE_BLOCKS);
        self.room_blocks(fs) > nodes + records / 32
    }

    /// Whether a commit would change what is stored.
    pub(super) fn has_uncommitted(&self) -> bool {
        let ready = |c: &Content| c.held_since.is_none();
        self.pages > 0
            || !self.batch.records.is_empty()
            || self.files.values().any(|f| f.content.as_ref().is_some_and(ready))
    }
}

/// Blocks of content with their share of summaries.
pub(super) const fn with_summaries(blocks: u64) -> u64 {
    blocks + blocks / 16 + 2
}

impl Fs {
    /// The lock, with room for `blocks` more blocks of content.
    pub(super) fn room_for(&self, blocks: u64) -> Result<Guard<'_>> {
        self.room(Room::Content(blocks))
    }

    /// The lock, to remove something: may use the reserve down to the floor.
    /// Where snapshots keep all that is removed, even that comes to an end.
    pub(super) fn room_to_remove(&self) -> Result<Guard<'_>> {
        self.room(Room::Removal)
    }

    /// The lock, with this room.
    pub(super) fn room(&self, room: Room) -> Result<Guard<'_>> {
        self.room_beyond(room, 0, false)
    }

    /// The lock, with this room and `extra` blocks besides. `promised`: the caller has ended the reservation that promised it.
    pub(super) fn room_beyond(&self, room: Room, extra: u64, promised: bool) -> Result<Guard<'_>> {
        if broken(Break::ShedForNothing) {
            self.shed_history()?;
        }
        let mut tried = Tried::default();
        loop {
            let has_room = |inner: &Inner, more: u64| inner.has_room_beyond(self, room, extra, more);
            let enough =
                |inner: &Inner, more: u64| has_room(inner, more) || inner.growth(self, room) == Growth::TooMuch;
            let (mut inner, is_enough) = self.make_room_until(&enough)?;
            let growth = inner.growth(self, room);
            if growth == Growth::TooMuch {
                if self.find_available(inner, &mut tried)? {
                    continue;
                }
                return Err(Error::NoSpace);
            }
            // What is enough and not too much is room: nobody had the lock in between.
            let kept = || (promised || inner.is_promised(room)) && inner.has_kept_room(self, room, extra);
            if !(is_enough || kept() || broken(Break::NoReserve)) {
                return Err(Error::NoSpace);
            }
            inner.note_growth(self, growth);
            return Ok(inner);
        }
    }

    /// After a mount: what was open before is free only after a second index checkpoint; on a full volume that is all there is.
    pub(crate) fn free_what_was_open(&self) -> Result<()> {
        let short = |inner: &Inner| inner.state.segments.free_count() <= inner.removal_segments(self);
        let inner = self.lock_to_change()?;
        let waiting = short(&inner) && inner.state.segments.promotable_count() > 0;
        drop(inner);
        if waiting {
            self.index_checkpoint(false)?;
        }
        // Each mount leaves the open index segments of the one before with hardly a node: by and by these would be all there is.
        if short(&*self.lock_to_change()?) && self.touch_sparse()? > 0 {
            self.index_checkpoint(false)?;
            self.index_checkpoint(false)?;
        }
        Ok(())
    }

    /// The lock, to let something of the past go, which is never refused: it is
    /// the way out of a full volume.
    pub(super) fn room_to_let_go(&self) -> Result<Guard<'_>> {
        if broken(Break::LettingGoNeedsRoom) {
            return self.room_to_remove();
        }
        self.make_room_until(&|inner, more| inner.nodes_to_spare(self) > 0 || more > 0).map(|(inner, _)| inner)
    }

    /// Makes room until there is enough, or until nothing helps any more; which of both. `enough` is asked whether there would be, were
    /// so many blocks more free.
    fn make_room_until(&self, enough: &dyn Fn(&Inner, u64) -> bool) -> Result<(Guard<'_>, bool)> {
        let mut best = 0;
        let mut idle = 0;
        let mut round = 0;
        loop {
            let mut inner = self.lock_with_nodes()?;
            if enough(&inner, 0) {
                return Ok((inner, true));
            }
            if inner.making_room {
                // One at a time, or each would shed history for all of them.
                drop(self.wait_idle(inner));
                continue;
            }
            let room = inner.room_in_all(self);
            idle = if room > best { 0 } else { idle + 1 };
            best = best.max(room);
            let now = self.clock.monotonic_nanos();
            if round > ROUNDS_MAX.max(inner.state.segments.count() as u32) || round == 0 && inner.is_exhausted(now) {
                return Ok((inner, false));
            }
            if idle > IDLE_ROUNDS_MAX && inner.segments().open_all() {
                // Who writes comes before who lays space anew.
                idle = 0;
                continue;
            }
            if idle > IDLE_ROUNDS_MAX {
                inner.exhausted = Some((inner.picture_of_room(), now));
                return Ok((inner, false));
            }
            inner.making_room = true;
            inner.counters.room_rounds += 1;
            drop(inner);
            let awaited = Awaited(self);
            let made = self.make_room(round, idle, enough);
            drop(awaited);
            let mut inner = self.lock();
            (inner.making_room, inner.let_go_all) = (false, false);
            self.wake_idle(&inner);
            drop(inner);
            if made? {
                idle = 0;
            }
            round += 1;
        }
    }

    /// Makes room in the background where there are fewer than so many blocks, as those who write would: they come to it soon.
    pub(super) fn make_room_ahead(&self, blocks: u64, now: u64) -> Result<()> {
        let mut inner = self.lock_to_change()?;
        let before = inner.room_blocks(self);
        if inner.making_room || before >= blocks || now < inner.ahead_rests_until {
            return Ok(());
        }
        inner.making_room = true;
        drop(inner);
        let awaited = Awaited(self);
        let made = self.make_room(0, 0, &|inner, more| inner.room_blocks(self) + more >= blocks);
        drop(awaited);
        let mut inner = self.lock();
        (inner.making_room, inner.let_go_all) = (false, false);
        self.wake_idle(&inner);
        made?;
        inner.counters.rooms_ahead += 1;
        if inner.room_blocks(self) <= before {
            inner.ahead_rests_until = now.saturating_add(EXHAUSTED_NANOS);
        }
        Ok(())
    }

    /// The index checkpoints that make free what was emptied, for who makes room; none that would only take some.
    pub(super) fn promote_for_room(&self) -> Result<()> {
        for _ in 0..2 {
            if self.lock_to_change()?.writes_floor_away(self) {
                break;
            }
            self.index_checkpoint(false)?;
        }
        Ok(())
    }

    /// One step of making room, milder ones first; whether it gained something that [`Inner::room_in_all`] may not show yet.
    /// `idle` rounds before it did not.
    fn make_room(&self, round: u32, idle: u32, enough: &dyn Fn(&Inner, u64) -> bool) -> Result<bool> {
        let _way = super::beside::giving_way();
        let mut inner = self.lock_to_change()?;
        inner.unpin_all_dead(self);
        let pending = inner.state.segments.pending_count() > 0;
        let waiting = pending || inner.dirty_nodes() > 0 || inner.window_bytes > 0 || inner.has_uncommitted();
        let now = self.clock.monotonic_nanos();
        let reaps = inner.has_to_reap(now)?;
        let (released, in_vain) = (inner.has_released(now), inner.sheds_in_vain(now));
        let unnamed = inner.state.kept.values().filter(|c| !c.is_named()).count() + inner.state.landmarks.len();
        let little_pays = inner.little_pays;
        let holds = inner.holds_back(self) && !broken(Break::HoldsOutlast);
        // Else there is more to be had by cleaning, which ends with the same.
        let is_much = inner.state.segments.promotable_count() > inner.slack_segments(self) / 16;
        // Letting go may be all that is left.
        inner.let_go_all = idle >= TIDIED_UNTIL;
        let swept_in_vain = inner.sweeps_in_vain();
        drop(inner);
        if holds && broken(Break::HoldsEndFirst) {
            self.lock_to_change()?.end_holds();
        }
        let nothing_milder = unnamed == 0 && !released && !reaps && !holds && !is_much;
        if idle == LITTLE_AFTER || round == 1 && little_pays && nothing_milder {
            return self.clean_what_gains_little();
        }
        if idle == TIDIED_UNTIL && released && self.sweep_gains()? {
            return Ok(true);
        }
        // Who empties a file and is refused would lose what it held as well as what was to be in it.
        if holds && idle >= HOLDS_AFTER {
            self.lock_to_change()?.end_holds();
            self.sync_received(false)?;
            return Ok(true);
        }
        match round % 4 {
            0 if !is_much && !reaps && self.clean_for_room()? => return Ok(true),
            // Write out what waits, so that what it replaced can go.
            0 | 2 if waiting || reaps => {
                self.sync_received(false)?;
                self.reap_for_room()?;
                self.promote_for_room()?;
            }
            // Cleaning costs copies, shedding costs the past: whichever helps, in turn.
            1 => return self.clean_for_room(),
            // What was let go already comes before more of it.
            3 if released && self.sweep_gains()? => return Ok(true),
            // What was let go may have been swept by now but for what cannot be read.
            3 if unnamed > 0 && !in_vain && !swept_in_vain && !self.lock_to_change()?.has_released(now) => {
                return Ok(self.end_holds_for(enough)? || self.shed_history()?);
            }
            _ => {}
        }
        Ok(false)
    }

    /// Keeps memory for content within its limit, and syncs of other files short: the writer of this file waits, or is to be told later.
    pub(super) fn hold_writer<'a>(&'a self, inner: Guard<'a>, ino: Ino, who: Who) -> Result<bool> {
        let (mut inner, is_told_later) = self.hold_beside_syncs(inner, ino, who)?;
        let limit = (self.options.dirty_bytes_max / BLOCK_BYTES) as u64;
        loop {
            if inner.writes.len() >= REAP_FROM {
                inner.reap_writes();
            }
            let on_the_way = inner.under_way(|_| true);
            if inner.pages + on_the_way <= limit {
                return Ok(is_told_later);
            }
            inner.check_alive()?;
            let waiting = inner.pages;
            if waiting > limit / 2 {
                // In order, since where things lie follows from it.
                let files: BTreeSet<_> =
                    inner.files.iter().filter(|(_, f)| f.content.is_some()).map(|(ino, _)| *ino).collect();
                for ino in files {
                    inner.write_some_behind(self, ino)?;
                    if inner.pages <= limit / 2 {
                        break;
                    }
                }
            }
            if inner.pages > limit / 2 {
                let started = inner.pages < waiting;
                drop(inner);
                if started {
                    inner = self.lock();
                    continue;
                }
                // Only a commit takes what is left.
                self.lock().counters.held_for_memory += 1;
                self.sync_received(false)?;
                inner = self.lock();
                continue;
            }
            // The oldest, until half of what is allowed is left.
            let mut excess = inner.under_way(|_| true).saturating_sub(limit / 2);
            let writes = inner.take_writes(|w| {
                let take = excess > 0;
                excess = excess.saturating_sub(u64::from(w.blocks));
                take
            });
            if writes.is_empty() {
                // Others wait for all there are.
                inner = self.wait_idle(inner);
                continue;
            }
            drop(inner);
            self.finish_writes(writes)?;
            self.owns_to_write()?;
            inner = self.lock();
        }
    }
}

impl Inner {
    /// Blocks of content on their way to the device, whoever waits for them.
    pub(super) fn under_way(&self, of: impl Fn(Ino) -> bool) -> u64 {
        if self.writes.is_empty() && self.awaited.is_empty() {
            return 0;
        }
        let here: u64 = self.writes.iter().filter(|w| of(w.ino)).map(|w| u64::from(w.blocks)).sum();
        let elsewhere = self.awaited.values().filter(|(ino, _)| of(*ino));
        here + elsewhere.map(|(_, blocks)| u64::from(*blocks)).sum::<u64>()
    }

    /// Lets go of data writes that have completed. While nothing is committed nobody else does, and who needs a segment
    /// in which nothing is under way (the cleaner, what wipes, a device that joins) would wait for ever.
    pub(super) fn reap_writes(&mut self) {
        let (done, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.writes).into_iter().partition(DataWrite::is_done);
        self.writes = rest;
        for w in done {
            let Request::Begun(ticket) = w.request else { continue };
            match ticket.wait() {
                Ok(_) => drop(self.inflight.remove(&w.addr)),
                Err(e) => self.fail(&e.to_string()),
            }
        }
    }
}
