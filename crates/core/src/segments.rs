//! The use of every segment: what is needed, what is free, what is pending.
//!
//! Invariants
//! 1. A segment is handed out only when nothing reachable from either usable
//!    root, from the chain after it, or from a read under way needs it.
//! 2. Counters change only by applying records and by index checkpoints, so
//!    replay repeats them exactly.
//! 3. A segment emptied while generation g was the next to be written becomes
//!    free when the *older* usable root has a generation of at least g.
//! 4. A closed segment is never handed out, nor one that is withheld, until it is given back.
//! 5. Segments on slow devices are handed out when there are no others.

use crate::breaks::{Break, broken};
use nenrin_format::items::Segment;
use nenrin_format::{Addr, Generation, SegmentNo, Seq, Time};
use std::collections::BTreeSet;
use std::ops::Range;

/// What a segment is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// May be handed out.
    Free,
    /// Being appended to.
    Open,
    /// Holds something needed.
    Sealed,
    /// Empty, but a root that recovery may choose still needs it.
    Pending,
}

/// One segment.
#[derive(Clone, Copy, Debug)]
pub struct SegmentUse {
    /// What it is at the moment.
    pub state: SegmentState,
    /// What the space tree keeps of it.
    pub item: Segment,
    /// Index node copies in it that the newest root or the next needs.
    pub nodes: u32,
    /// The chain in it is still needed for roll-forward.
    pub chain_held: bool,
    /// Reads under way, and roots that lie in it.
    pub pins: u32,
    /// It is being emptied for good, or not yet to be used: not to be handed out.
    pub closed: bool,
    /// It is closed because the roots do not list it yet.
    pub fresh: bool,
    /// Somebody writes to it who has it from nobody; see [`Segments::withhold`].
    pub withheld: bool,
}

/// What is counted of a segment, so that nobody has to look at all of them: a volume of 8 TiB has half a million.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Part {
    /// Blocks that are needed.
    blocks: u64,
    /// See [`SegmentUse::chain_held`].
    chain_held: bool,
    /// It is for index nodes: it holds some, or did, or will.
    index: bool,
    /// An index checkpoint will make it free.
    promotable: bool,
    /// So many of [`SHARES`] of it are garbage, where it holds content and nothing keeps it from being emptied but pins.
    garbage: Option<u8>,
}

/// Segments are kept apart by how much of them is garbage, in so many steps.
const SHARES: u32 = 32;

/// How many shares of a segment so many blocks are, rounded down.
fn shares(blocks: u32, of: u32) -> u8 {
    (u64::from(blocks) * u64::from(SHARES) / u64::from(of.max(1))).min(u64::from(SHARES)) as u8
}

impl Part {
    fn of(s: &SegmentUse, segment_blocks: u32) -> Self {
        let holds = s.state == SegmentState::Sealed && !s.chain_held && s.used_blocks() > 0;
        let garbage = segment_blocks.checked_sub(s.used_blocks()).filter(|_| holds);
        Self {
            garbage: garbage.map(|garbage| shares(garbage, segment_blocks)).filter(|shares| *shares > 0),
            blocks: u64::from(s.used_blocks()) + u64::from(s.node_blocks()),
            chain_held: s.chain_held,
            index: s.nodes > 0 || s.item.kind == KIND_INDEX && s.state != SegmentState::Free,
            promotable: s.state == SegmentState::Pending && !s.closed && s.pins == 0,
        }
    }
}

/// Segments by number; not every number has one.
#[derive(Default)]
struct Numbered {
    runs: Vec<(u64, Vec<SegmentUse>)>,
    needed_blocks: u64,
    promotable: u64,
    chain_held: BTreeSet<u64>,
    index: BTreeSet<u64>,
    /// By their garbage, those with one share of it first.
    garbage: [BTreeSet<u64>; SHARES as usize],
    segment_blocks: u32,
}

impl Numbered {
    fn new(runs: Vec<(u64, Vec<SegmentUse>)>, segment_blocks: u32) -> Self {
        let mut this = Self { runs, segment_blocks, ..Self::default() };
        let unused = this.part(&UNUSED);
        let parts: Vec<_> = this.iter().map(|(i, s)| (i, this.part(s))).filter(|(_, p)| *p != unused).collect();
        parts.into_iter().for_each(|(i, part)| this.count(i, unused, part));
        this
    }
    fn part(&self, s: &SegmentUse) -> Part {
        Part::of(s, self.segment_blocks)
    }
    fn place(&self, i: u64) -> Option<(usize, usize)> {
        let run = self.runs.partition_point(|(first, _)| *first <= i).checked_sub(1)?;
        let (first, all) = self.runs.get(run)?;
        let within = usize::try_from(i - first).ok()?;
        (within < all.len()).then_some((run, within))
    }
    fn get(&self, i: u64) -> Option<&SegmentUse> {
        let (run, within) = self.place(i)?;
        self.runs[run].1.get(within)
    }
    /// The only way to change one.
    fn change<R>(&mut self, i: u64, change: impl FnOnce(&mut SegmentUse) -> R) -> Option<R> {
        let (run, within) = self.place(i)?;
        let s = self.runs[run].1.get_mut(within)?;
        let before = Part::of(s, self.segment_blocks);
        let result = change(s);
        let after = Part::of(s, self.segment_blocks);
        if after != before {
            self.count(i, before, after);
        }
        Some(result)
    }
    fn count(&mut self, i: u64, before: Part, after: Part) {
        self.needed_blocks = self.needed_blocks - before.blocks + after.blocks;
        self.promotable = self.promotable - u64::from(before.promotable) + u64::from(after.promotable);
        let sets =
            [(&mut self.chain_held, before.chain_held, after.chain_held), (&mut self.index, before.index, after.index)];
        for (set, before, after) in sets {
            match (before, after) {
                (false, true) => drop(set.insert(i)),
                (true, false) => drop(set.remove(&i)),
                _ => {}
            }
        }
        if before.garbage != after.garbage {
            let at = |shares: u8| usize::from(shares) - 1;
            before.garbage.map(|shares| self.garbage[at(shares)].remove(&i));
            after.garbage.map(|shares| self.garbage[at(shares)].insert(i));
        }
    }
    fn iter(&self) -> impl Iterator<Item = (u64, &SegmentUse)> {
        self.runs.iter().flat_map(|(first, all)| (*first..).zip(all))
    }
}

impl SegmentUse {
    /// Blocks of content that are needed. The counters come from disk.
    pub const fn used_blocks(&self) -> u32 {
        self.item.live_blocks.saturating_add(self.item.history_blocks)
    }
    /// Blocks of index nodes that are needed.
    pub const fn node_blocks(&self) -> u32 {
        self.nodes.saturating_mul(nenrin_format::NODE_BLOCKS)
    }
    const fn is_empty(&self) -> bool {
        self.item.live_blocks == 0 && self.item.history_blocks == 0 && self.nodes == 0 && !self.chain_held
    }
}

/// A segment that was never used.
const UNUSED: SegmentUse = SegmentUse {
    state: SegmentState::Free,
    item: Segment {
        live_blocks: 0,
        history_blocks: 0,
        emptied_generation: 0,
        chain_seq: Seq(0),
        written_at: Time(0),
        kind: 0,
    },
    nodes: 0,
    chain_held: false,
    pins: 0,
    closed: false,
    fresh: false,
    withheld: false,
};

/// All segments of a volume.
pub struct Segments {
    all: Numbered,
    free: BTreeSet<u64>,
    pending: BTreeSet<u64>,
    changed: BTreeSet<u64>,
    /// Segments that may hold what was forgotten; allocated only when there are no others.
    unwiped: BTreeSet<u64>,
    is_wiping: bool,
    /// The numbers of those that are handed out first; none: all.
    preferred: Vec<Range<u64>>,
    /// How many are closed.
    closed: u64,
    /// Generation that the next index checkpoint will have.
    pub next_generation: Generation,
}

/// Kind of a segment in its item, while it holds chain partials.
pub const KIND_CHAIN: u8 = 1;
/// Kind of a segment in its item, while it holds data partials.
pub const KIND_DATA: u8 = 2;
/// Kind of a segment in its item, while it holds index nodes.
pub const KIND_INDEX: u8 = 3;

impl Segments {
    /// Free segments with these numbers, of so many blocks each.
    pub fn new(numbers: &[Range<u64>], segment_blocks: u32, next_generation: Generation) -> Self {
        let run = |r: &Range<u64>| (r.start, vec![UNUSED; (r.end - r.start) as usize]);
        Self {
            all: Numbered::new(numbers.iter().map(run).collect(), segment_blocks),
            free: numbers.iter().cloned().flatten().collect(),
            pending: BTreeSet::new(),
            changed: BTreeSet::new(),
            unwiped: BTreeSet::new(),
            is_wiping: false,
            preferred: Vec::new(),
            closed: 0,
            next_generation,
        }
    }

    /// Segments of the volume that are not closed.
    pub fn count(&self) -> u64 {
        self.all.runs.iter().map(|(_, all)| all.len() as u64).sum::<u64>() - self.closed
    }
    /// Blocks that are needed, in all of them.
    pub fn needed_blocks(&self) -> u64 {
        debug_assert!(self.counts_what_is_there(), "what is counted of segments is not what they have");
        self.all.needed_blocks
    }
    /// Segments for index nodes, until those that were emptied are free, in order.
    pub fn of_index(&self) -> impl Iterator<Item = (SegmentNo, &SegmentUse)> {
        self.all.index.iter().filter_map(|i| Some((SegmentNo(*i), self.all.get(*i)?)))
    }
    /// Sealed segments with content, and at least so many blocks of garbage, more or less: the last share may not be full.
    pub fn with_garbage(&self, blocks: u32) -> impl Iterator<Item = (SegmentNo, &SegmentUse)> {
        debug_assert!(self.counts_what_is_there(), "what is counted of segments is not what they have");
        let least = shares(blocks, self.all.segment_blocks);
        debug_assert!(least > 0, "of those with less nothing is known");
        let numbers = self.all.garbage.iter().skip(usize::from(least.max(1)) - 1).flatten();
        numbers.filter_map(|i| Some((SegmentNo(*i), self.all.get(*i)?)))
    }
    fn counts_what_is_there(&self) -> bool {
        let parts = || self.all.iter().map(|(i, s)| (i, self.all.part(s)));
        let has = |shares: usize| move |(_, p): &(u64, Part)| p.garbage == Some(shares as u8 + 1);
        let mut by_garbage = self.all.garbage.iter().enumerate();
        let promotable = self.pending_open().filter(|s| s.pins == 0).count() as u64;
        parts().map(|(_, p)| p.blocks).sum::<u64>() == self.all.needed_blocks
            && promotable == self.all.promotable
            && parts().filter(|(_, p)| p.chain_held).map(|(i, _)| i).eq(self.all.chain_held.iter().copied())
            && parts().filter(|(_, p)| p.index).map(|(i, _)| i).eq(self.all.index.iter().copied())
            && by_garbage.all(|(n, set)| parts().filter(has(n)).map(|(i, _)| i).eq(set.iter().copied()))
    }
    /// Segments that may be handed out now.
    pub fn free_count(&self) -> u64 {
        self.free.len() as u64
    }
    fn pending_open(&self) -> impl Iterator<Item = &SegmentUse> {
        self.pending.iter().filter_map(|i| self.all.get(*i)).filter(|s| !s.closed)
    }
    /// Segments that index checkpoints will make free.
    pub fn pending_count(&self) -> u64 {
        if self.closed == 0 { self.pending.len() as u64 } else { self.pending_open().count() as u64 }
    }
    /// Segments that index checkpoints will make free: those that nothing else holds.
    pub fn promotable_count(&self) -> u64 {
        debug_assert!(self.counts_what_is_there(), "what is counted of segments is not what they have");
        self.all.promotable
    }
    /// Segments whose items in the space tree are to be written.
    pub fn changed_count(&self) -> u64 {
        self.changed.len() as u64
    }
    /// One segment.
    pub fn get(&self, segment: SegmentNo) -> Option<&SegmentUse> {
        self.all.get(segment.0)
    }
    /// Every segment in order.
    pub fn iter(&self) -> impl Iterator<Item = (SegmentNo, &SegmentUse)> {
        self.all.iter().map(|(i, s)| (SegmentNo(i), s))
    }
    /// It may be handed out, unless it is closed or withheld, or somebody has it by now.
    fn release(&mut self, i: u64) {
        if self.all.get(i).is_some_and(|s| !s.closed && !s.withheld && s.state == SegmentState::Free) {
            self.free.insert(i);
        }
    }
    fn with(&mut self, segment: SegmentNo, change: impl FnOnce(&mut SegmentUse)) {
        if self.all.change(segment.0, change).is_some() {
            self.changed.insert(segment.0);
            self.classify(segment.0);
        }
    }

    /// Puts a segment that is not open where its counters say it belongs.
    fn classify(&mut self, i: u64) {
        let Some(s) = self.all.get(i) else { return };
        match (s.state, s.is_empty()) {
            (SegmentState::Open, _)
            | (SegmentState::Pending | SegmentState::Free, true)
            | (SegmentState::Sealed, false) => {}
            (SegmentState::Sealed, true) => {
                let (early, generation) = (broken(Break::ReuseEarly), self.next_generation.0);
                self.all.change(i, |s| {
                    s.state = if early { SegmentState::Free } else { SegmentState::Pending };
                    s.item.emptied_generation = generation;
                });
                if early {
                    self.release(i);
                } else {
                    self.pending.insert(i);
                }
            }
            (SegmentState::Pending | SegmentState::Free, false) => {
                self.all.change(i, |s| {
                    s.state = SegmentState::Sealed;
                    s.item.emptied_generation = 0;
                });
                self.pending.remove(&i);
                self.free.remove(&i);
            }
        }
    }

    /// Restores a segment from its item in the space tree.
    pub fn load(&mut self, segment: SegmentNo, mut item: Segment) {
        // Emptied later than the next root is written: it would never be free.
        let is_later = item.emptied_generation > self.next_generation.0 && !broken(Break::EmptiedBelieved);
        if is_later {
            item.emptied_generation = self.next_generation.0;
            self.changed.insert(segment.0);
        }
        let state = self.all.change(segment.0, |s| {
            s.item = item;
            s.chain_held = item.chain_seq.0 > 0;
            if !s.is_empty() {
                s.state = SegmentState::Sealed;
            } else if item.emptied_generation > 0 {
                s.state = SegmentState::Pending;
            }
            s.state
        });
        if matches!(state, Some(SegmentState::Sealed | SegmentState::Pending)) {
            self.free.remove(&segment.0);
        }
        if state == Some(SegmentState::Pending) {
            self.pending.insert(segment.0);
        }
    }

    /// Takes a free segment for `kind`.
    pub fn allocate(&mut self, kind: u8, now: Time) -> Option<SegmentNo> {
        let wiped = || self.free.iter().find(|i| !self.unwiped.contains(i)).or_else(|| self.free.first()).copied();
        let i = self.first_wiped(&self.preferred).or_else(wiped)?;
        self.take(i, kind, now)
    }

    fn take(&mut self, i: u64, kind: u8, now: Time) -> Option<SegmentNo> {
        self.free.remove(&i);
        self.all.change(i, |s| {
            s.state = SegmentState::Open;
            s.item = Segment { kind, written_at: now, ..Segment::default() };
        })?;
        self.changed.insert(i);
        Some(SegmentNo(i))
    }

    /// The first free one with one of these numbers that holds nothing that was forgotten.
    fn first_wiped(&self, numbers: &[Range<u64>]) -> Option<u64> {
        numbers.iter().find_map(|r| self.free.range(r.clone()).find(|i| !self.unwiped.contains(i))).copied()
    }

    /// Takes a free segment with one of these numbers, or else one that is preferred, if there is one.
    pub fn allocate_better(&mut self, numbers: &[Range<u64>], kind: u8, now: Time) -> Option<SegmentNo> {
        let better: Vec<_> = numbers.iter().filter(|r| self.is_preferred(r.start)).cloned().collect();
        let i = self.first_wiped(&better).or_else(|| self.first_wiped(&self.preferred))?;
        self.take(i, kind, now)
    }

    fn is_preferred(&self, i: u64) -> bool {
        self.preferred.is_empty() || self.preferred.iter().any(|r| r.contains(&i))
    }

    /// From now on segments with these numbers are handed out first; none: all alike.
    pub fn prefer(&mut self, numbers: Vec<Range<u64>>) {
        self.preferred = numbers;
    }

    /// Whether some are.
    pub fn prefers(&self) -> bool {
        !self.preferred.is_empty()
    }

    /// Whether one of those that are handed out first is free.
    pub fn has_better(&self) -> bool {
        self.first_wiped(&self.preferred).is_some()
    }

    /// Nothing was written to a segment that was handed out, and nothing will be.
    pub fn take_back(&mut self, segment: SegmentNo) {
        if self.all.get(segment.0).is_some_and(|s| s.state == SegmentState::Open && s.is_empty()) {
            self.all.change(segment.0, |s| {
                s.state = SegmentState::Free;
                s.item = Segment::default();
            });
            self.changed.insert(segment.0);
            self.release(segment.0);
        }
    }

    /// Puts a given segment to use that recovery knows the chain goes on in.
    pub fn reopen(&mut self, segment: SegmentNo, kind: u8) {
        self.free.remove(&segment.0);
        self.pending.remove(&segment.0);
        self.all.change(segment.0, |s| {
            s.state = SegmentState::Open;
            s.item.kind = kind;
        });
    }

    /// What must never be done: an empty segment is free, whatever still needs it.
    pub fn free_at_once(&mut self, segment: SegmentNo) {
        if self.pending.remove(&segment.0) {
            self.with(segment, |s| s.state = SegmentState::Free);
            self.release(segment.0);
        }
    }

    /// Nothing more is appended to the segment.
    pub fn seal(&mut self, segment: SegmentNo) {
        self.with(segment, |s| s.state = SegmentState::Sealed);
    }

    /// Notes a chain partial in the segment.
    pub fn chain_written(&mut self, segment: SegmentNo, seq: Seq) {
        self.with(segment, |s| {
            s.chain_held = true;
            s.item.chain_seq = seq;
            s.item.kind = KIND_CHAIN;
        });
    }

    /// An index checkpoint of the next generation contains the chain up to
    /// `seq`: older chain segments are needed for content only.
    pub fn chain_contained(&mut self, seq: Seq) {
        let contained = |s: &SegmentUse| s.chain_held && s.state != SegmentState::Open && s.item.chain_seq <= seq;
        let held = self.all.chain_held.iter().copied();
        let which: Vec<u64> = held.filter(|i| self.all.get(*i).is_some_and(contained)).collect();
        for i in which {
            self.with(SegmentNo(i), |s| {
                s.chain_held = false;
                s.item.chain_seq = Seq(0);
            });
        }
    }

    /// `blocks` at `addr` became part of the live tree.
    pub fn add_live(&mut self, addr: Addr, blocks: u32) {
        self.with(addr.segment(), |s| s.item.live_blocks = s.item.live_blocks.saturating_add(blocks));
    }
    /// `blocks` at `addr` left the live tree for good.
    pub fn sub_live(&mut self, addr: Addr, blocks: u32) {
        self.with(addr.segment(), |s| s.item.live_blocks = s.item.live_blocks.saturating_sub(blocks));
    }
    /// `blocks` at `addr` left the live tree for history.
    pub fn live_to_history(&mut self, addr: Addr, blocks: u32) {
        self.with(addr.segment(), |s| {
            s.item.live_blocks = s.item.live_blocks.saturating_sub(blocks);
            s.item.history_blocks = s.item.history_blocks.saturating_add(blocks);
        });
    }
    /// `blocks` at `addr` that only history needed became part of the live tree again.
    pub fn history_to_live(&mut self, addr: Addr, blocks: u32) {
        self.with(addr.segment(), |s| {
            s.item.history_blocks = s.item.history_blocks.saturating_sub(blocks);
            s.item.live_blocks = s.item.live_blocks.saturating_add(blocks);
        });
    }
    /// `blocks` at `addr` became part of history (a move).
    pub fn add_history(&mut self, addr: Addr, blocks: u32) {
        self.with(addr.segment(), |s| s.item.history_blocks = s.item.history_blocks.saturating_add(blocks));
    }
    /// `blocks` at `addr` left history.
    pub fn sub_history(&mut self, addr: Addr, blocks: u32) {
        self.with(addr.segment(), |s| s.item.history_blocks = s.item.history_blocks.saturating_sub(blocks));
    }
    /// An index node copy was placed in the segment.
    pub fn add_node(&mut self, segment: SegmentNo) {
        self.with(segment, |s| s.nodes = s.nodes.saturating_add(1));
    }
    /// An index node copy in the segment is needed by no root from the newest on.
    pub fn sub_node(&mut self, segment: SegmentNo) {
        self.with(segment, |s| s.nodes = s.nodes.saturating_sub(1));
    }
    /// Restores the number of node copies from a root.
    pub fn load_nodes(&mut self, segment: SegmentNo, nodes: u32, generation: Generation) {
        let empty = self.all.change(segment.0, |s| {
            s.nodes = nodes;
            s.item.kind = KIND_INDEX;
            if s.is_empty() {
                s.state = SegmentState::Pending;
                s.item.emptied_generation = generation.0;
            } else {
                s.state = SegmentState::Sealed;
            }
            s.is_empty()
        });
        let Some(empty) = empty else { return };
        self.free.remove(&segment.0);
        if empty {
            self.pending.insert(segment.0);
        } else {
            self.pending.remove(&segment.0);
        }
    }
    /// Index segments with their node copies; those emptied by the root of
    /// `generation` with a zero, because the root before still needs them.
    pub fn index_segments(&self, generation: Generation) -> Vec<(SegmentNo, u32)> {
        self.of_index()
            .filter(|(_, s)| {
                s.nodes > 0 || s.state == SegmentState::Pending && s.item.emptied_generation >= generation.0
            })
            .map(|(no, s)| (no, s.nodes))
            .collect()
    }

    /// Keeps a segment from being handed out.
    pub fn pin(&mut self, segment: SegmentNo) {
        self.all.change(segment.0, |s| s.pins += 1);
    }
    /// Ends a [`Segments::pin`].
    pub fn unpin(&mut self, segment: SegmentNo) {
        self.all.change(segment.0, |s| s.pins = s.pins.saturating_sub(1));
    }

    /// Pending segments that no root needs when the older usable one has
    /// generation `older`.
    pub fn promotable(&self, older: Generation) -> Vec<SegmentNo> {
        let ready = |i: &&u64| self.all.get(**i).is_some_and(|s| s.pins == 0 && s.item.emptied_generation <= older.0);
        self.pending.iter().filter(ready).map(|i| SegmentNo(*i)).collect()
    }

    /// The older usable root has generation `older`: frees what no root needs.
    pub fn promote(&mut self, older: Generation) {
        for SegmentNo(i) in self.promotable(older) {
            self.pending.remove(&i);
            self.all.change(i, |s| {
                s.state = SegmentState::Free;
                s.item = Segment::default();
            });
            self.changed.insert(i);
            self.release(i);
        }
    }

    /// Segments whose items changed since the last call, with what the space
    /// tree shall say; `None` for no item.
    pub fn take_changed(&mut self) -> Vec<(SegmentNo, Option<Segment>)> {
        std::mem::take(&mut self.changed).into_iter().map(|i| (SegmentNo(i), self.kept_item(i))).collect()
    }

    fn kept_item(&self, i: u64) -> Option<Segment> {
        let s = self.all.get(i)?;
        let keep =
            s.item.live_blocks > 0 || s.item.history_blocks > 0 || s.chain_held || s.state == SegmentState::Pending;
        keep.then_some(s.item)
    }

    /// What the space tree shall say of every segment; `None` for no item.
    pub fn kept_items(&self) -> Vec<(SegmentNo, Option<Segment>)> {
        self.iter().map(|(no, _)| (no, self.kept_item(no.0))).collect()
    }

    /// The item of a segment is to be stored anew.
    pub fn note_changed(&mut self, segment: SegmentNo) {
        self.changed.insert(segment.0);
    }
}

impl Segments {
    /// Whether a segment may be handed out now.
    pub fn is_free(&self, segment: SegmentNo) -> bool {
        self.free.contains(&segment.0)
    }

    /// A root that recovery may choose lies in the segment: if nothing else
    /// does, it is pending as if emptied by `generation`.
    pub fn protect(&mut self, segment: SegmentNo, generation: Generation) {
        if self.free.remove(&segment.0) {
            self.all.change(segment.0, |s| {
                s.state = SegmentState::Pending;
                s.item.kind = KIND_INDEX;
                s.item.emptied_generation = generation.0;
            });
            self.pending.insert(segment.0);
        }
    }
}

/// Wiping: which segments may still hold what was forgotten.
impl Segments {
    /// All of them may.
    pub fn begin_wipe(&mut self) {
        self.unwiped = self.iter().map(|(no, _)| no.0).collect();
        self.is_wiping = true;
    }
    /// It is over, or nothing is to be wiped any more.
    pub fn end_wipe(&mut self) {
        self.unwiped.clear();
        self.is_wiping = false;
    }
    /// Whether it has begun and is not over: with none left, a device may be waited for.
    pub const fn is_wiping(&self) -> bool {
        self.is_wiping
    }
    /// Those that may, in order.
    pub fn unwiped(&self) -> impl Iterator<Item = SegmentNo> + '_ {
        self.unwiped.iter().map(|i| SegmentNo(*i))
    }
    /// The same from this number on.
    pub fn unwiped_from(&self, number: u64) -> impl Iterator<Item = SegmentNo> + '_ {
        self.unwiped.range(number..).map(|i| SegmentNo(*i))
    }
    /// How many may.
    pub fn unwiped_count(&self) -> u64 {
        self.unwiped.len() as u64
    }
    /// Whether this one may.
    pub fn is_unwiped(&self, segment: SegmentNo) -> bool {
        self.unwiped.contains(&segment.0)
    }
    /// This one does not: whatever is written to it from now on is nothing of that.
    pub fn note_wiped(&mut self, segment: SegmentNo) {
        self.unwiped.remove(&segment.0);
    }
    /// Takes a free segment out of allocation for a while, whatever is closed and opened meanwhile; whether it was free.
    pub fn withhold(&mut self, segment: SegmentNo) -> bool {
        let is_free = self.free.remove(&segment.0);
        if is_free {
            self.all.change(segment.0, |s| s.withheld = true);
        }
        is_free
    }
    /// Ends a [`Segments::withhold`].
    pub fn give_back(&mut self, segment: SegmentNo) {
        self.all.change(segment.0, |s| s.withheld = false);
        self.release(segment.0);
    }
}

/// Which segments there are.
impl Segments {
    /// It is not handed out any more.
    pub fn close(&mut self, segment: SegmentNo) {
        if let Some(before) = self.all.change(segment.0, |s| std::mem::replace(&mut s.closed, true)) {
            self.closed += u64::from(!before);
            self.free.remove(&segment.0);
        }
    }
    /// It may be handed out again, when nothing needs it and nobody withholds it.
    pub fn open(&mut self, segment: SegmentNo) {
        let opened = self.all.change(segment.0, |s| {
            s.fresh = false;
            std::mem::replace(&mut s.closed, false)
        });
        if opened == Some(true) {
            self.closed -= 1;
            self.release(segment.0);
        }
    }
    /// Closed segments, in order.
    pub fn closed(&self) -> impl Iterator<Item = (SegmentNo, &SegmentUse)> {
        self.iter().filter(|(_, s)| s.closed)
    }
    /// Closed segments may be handed out again, where nothing but that keeps them from it; whether there were any.
    pub fn open_all(&mut self) -> bool {
        let which: Vec<SegmentNo> = self.closed().filter(|(_, s)| !s.fresh).map(|(no, _)| no).collect();
        which.iter().for_each(|no| self.open(*no));
        !which.is_empty()
    }
    /// From now on the segments are those with these numbers. New ones are closed; whether no other was lost than free and
    /// closed ones: else nothing was done.
    pub fn renumber(&mut self, numbers: &[Range<u64>]) -> bool {
        let stays = |i: u64| numbers.iter().any(|r| r.contains(&i));
        let needed = |s: &SegmentUse| !(s.closed && s.state == SegmentState::Free && s.pins == 0 && !s.withheld);
        if self.iter().any(|(no, s)| !stays(no.0) && needed(s)) && !broken(Break::BandCutEarly) {
            return false;
        }
        let gone: Vec<u64> = self.iter().map(|(no, _)| no.0).filter(|i| !stays(*i)).collect();
        for i in gone {
            self.unwiped.remove(&i);
        }
        let old = std::mem::take(&mut self.all);
        let mut runs = Vec::with_capacity(numbers.len());
        for r in numbers {
            let all = r.clone().map(|i| match old.get(i) {
                Some(s) => *s,
                None => {
                    if self.is_wiping {
                        self.unwiped.insert(i);
                    }
                    SegmentUse { closed: true, fresh: true, ..UNUSED }
                }
            });
            runs.push((r.start, all.collect()));
        }
        self.all = Numbered::new(runs, old.segment_blocks);
        self.closed = self.iter().filter(|(_, s)| s.closed).count() as u64;
        true
    }
}

#[cfg(test)]
mod tests;
