//! Counting again what the volume says it uses, and who owns which block.
//!
//! Invariants
//! 1. Memory: two counters for each segment, and one bit for each block of a
//!    window of segments, at most [`WINDOW_BYTES`]; a volume of more blocks is
//!    gone through once for each window.

use super::findings::What;
use super::report::{Finding, Log, Step};
use super::roots::Entered;
use crate::Result;
use crate::index::Tree;
use crate::per_segment::{Ordinals, PerSegment};
use crate::segments::{KIND_CHAIN, SegmentState};
use crate::state::State;
use crate::storage::Storage;
use nenrin_format::items::Extent;
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Addr, Ino, SegmentNo};

/// Memory for owners: 2^29 bits are 2 TiB of blocks.
const WINDOW_BYTES: u64 = 64 << 20;

/// Which blocks of a window of segments have an owner.
struct Owners {
    ordinals: Ordinals,
    /// The place of the first segment among all of them.
    first: u64,
    segment_blocks: u64,
    /// Blocks with one owner who shares with nobody.
    alone: Vec<u64>,
    /// Blocks whose owners say they share; made when there are any.
    shared: Vec<u64>,
}

impl Owners {
    fn new(ordinals: Ordinals, first: u64, segments: u64, segment_blocks: u32) -> Self {
        let segment_blocks = u64::from(segment_blocks);
        let words = (segments * segment_blocks).div_ceil(64) as usize;
        Self { ordinals, first, segment_blocks, alone: vec![0; words], shared: Vec::new() }
    }

    /// Takes blocks into possession: how many had no owner, and the first that
    /// has one who shares with nobody. Nothing outside the window.
    fn claim(&mut self, addr: Addr, blocks: u32, shared: bool) -> Option<(u32, Option<Addr>)> {
        let segment = self.ordinals.place(addr.segment())?.checked_sub(self.first)?;
        if segment.checked_mul(self.segment_blocks)? / 64 >= self.alone.len() as u64 {
            return None;
        }
        let start = segment.checked_mul(self.segment_blocks)? + u64::from(addr.block());
        if shared && self.shared.is_empty() {
            self.shared = vec![0; self.alone.len()];
        }
        let (mut taken, mut fresh) = (None, 0);
        for i in 0..u64::from(blocks) {
            let (word, bit) = (((start + i) / 64) as usize, 1u64 << ((start + i) % 64));
            let (Some(alone), common) = (self.alone.get_mut(word), self.shared.get_mut(word)) else { break };
            let in_common = common.as_ref().is_some_and(|c| **c & bit != 0);
            if *alone & bit != 0 || in_common && !shared {
                taken = taken.or(Some(Addr(addr.0 + i)));
            }
            fresh += u32::from(*alone & bit == 0 && !in_common);
            match common {
                Some(common) if shared => *common |= bit,
                _ => *alone |= bit,
            }
        }
        Some((fresh, taken))
    }
}

/// What was counted.
pub struct Usage {
    live: PerSegment<u32>,
    history: PerSegment<u32>,
    owners: Owners,
    window: u64,
    segments: u64,
    pub live_blocks: u64,
    pub history_blocks: u64,
    /// Blocks of the live tree, shared ones once for each owner.
    pub named_blocks: u64,
    /// Blocks that the live tree reserves.
    pub promised_blocks: u64,
    pub inodes: u64,
}

impl Usage {
    /// For the segments of a volume.
    pub fn new(storage: &Storage) -> Self {
        let (ordinals, segment_blocks) = (Ordinals::of(storage.numbers()), storage.segment_blocks);
        let segments = ordinals.count();
        let window = (WINDOW_BYTES * 8 / u64::from(segment_blocks).max(1)).clamp(1, segments.max(1));
        Self {
            live: PerSegment::of(storage.numbers()),
            history: PerSegment::of(storage.numbers()),
            owners: Owners::new(ordinals, 0, window, segment_blocks),
            window,
            segments,
            live_blocks: 0,
            history_blocks: 0,
            named_blocks: 0,
            promised_blocks: 0,
            inodes: 0,
        }
    }

    /// Counts an extent of the live tree, or then of history, that lies in the volume.
    pub fn add(&mut self, state: &State, key: &Key, e: &Extent, log: &mut Log<'_>) {
        let fresh = self.own(state, key, e, log);
        self.count(key, e, if e.is_shared() { fresh } else { e.blocks });
    }

    /// Counts blocks of a segment; those of shared extents for the first owner only.
    fn count(&mut self, key: &Key, e: &Extent, blocks: u32) {
        let past = key.death > 0;
        let counts = if past { &mut self.history } else { &mut self.live };
        counts.change(e.addr.segment(), |count| *count = count.saturating_add(blocks));
        if e.is_shared() {
            self.total(blocks, past);
        }
    }

    /// How many of an extent's blocks in the window had no owner yet.
    fn own(&mut self, state: &State, key: &Key, e: &Extent, log: &mut Log<'_>) -> u32 {
        let Some((fresh, taken)) = self.owners.claim(e.addr, e.blocks, e.is_shared()) else { return 0 };
        if let Some(addr) = taken {
            let text = format!("file block {}{}", key.off, died(key));
            log.add_in(state, Finding::new(What::BlockOwnedTwice, text).of(Ino(key.ino)).at(addr));
        }
        fresh
    }

    /// Counts the total of an extent, wherever it lies.
    pub fn add_total(&mut self, key: &Key, e: &Extent) {
        let past = key.death > 0;
        if !past {
            self.named_blocks = self.named_blocks.saturating_add(u64::from(e.stored_blocks()));
            self.promised_blocks = self.promised_blocks.saturating_add(u64::from(e.promised_blocks()));
        }
        if !e.is_shared() {
            self.total(e.stored_blocks(), past);
        }
    }

    fn total(&mut self, blocks: u32, past: bool) {
        let total = if past { &mut self.history_blocks } else { &mut self.live_blocks };
        *total = total.saturating_add(u64::from(blocks));
    }

    /// Checks that an extent that says it is shared has its back reference.
    pub fn check_backref(&self, state: &State, key: &Key, e: &Extent, log: &mut Log<'_>) -> Result<()> {
        if e.is_shared() && state.backref(key, e.addr)?.is_none_or(|(_, b)| b.blocks != e.blocks) {
            let text = format!("{} blocks of file block {}{}", e.blocks, key.off, died(key));
            log.add_in(state, Finding::new(What::BackrefMissing, text).of(Ino(key.ino)).at(e.addr));
        }
        Ok(())
    }

    /// Looks at the owners of blocks in the segments the first pass had no memory for.
    pub fn other_windows(&mut self, entered: &Entered, log: &mut Log<'_>) -> Result<()> {
        let (state, storage) = (&entered.opened.state, &entered.opened.storage);
        let mut first = self.window;
        while first < self.segments {
            let (ordinals, segments) =
                (std::mem::take(&mut self.owners.ordinals), self.window.min(self.segments - first));
            self.owners = Owners::new(ordinals, first, segments, storage.segment_blocks);
            log.step(Step::Owners, items(state));
            let mut each = |tree: &Tree| {
                tree.walk(&state.cache, &mut |key, value| {
                    log.advance(1);
                    match Extent::decode(value) {
                        Ok(e)
                            if key.kind == Kind::Extent && !e.is_unwritten() && storage.contains(e.addr, e.blocks) =>
                        {
                            let fresh = self.own(state, key, &e, log);
                            if e.is_shared() {
                                self.count(key, &e, fresh);
                            }
                        }
                        _ => {}
                    }
                    Ok(())
                })
            };
            each(&state.live)?;
            for t in &state.history {
                each(&t.tree)?;
            }
            first += self.window;
        }
        Ok(())
    }

    /// Compares with what the volume states.
    pub fn compare(&self, entered: &Entered, log: &mut Log<'_>) {
        let state = &entered.opened.state;
        for (no, s) in state.segments.iter() {
            let (live, history, nodes) = (self.live.get(no), self.history.get(no), entered.audit.copies.get(no));
            let content = u64::from(live) + u64::from(history);
            let mut bad = |what: What, text: String| {
                log.add(Finding::new(what, format!("segment {no}: {text}")).at(Addr::new(no, 0)));
            };
            if nodes > 0 && content > 0 {
                bad(What::SegmentMixed, format!("{nodes} node copies, {content} blocks of content"));
            }
            if s.state == SegmentState::Free && (nodes > 0 || content > 0) {
                bad(What::FreeInUse, format!("{live} live blocks, {history} of history, {nodes} node copies"));
                continue;
            }
            if s.item.live_blocks != live {
                bad(What::LiveCountWrong, format!("{} stated, {live} found", s.item.live_blocks));
            }
            if s.item.history_blocks != history {
                bad(What::HistoryCountWrong, format!("{} stated, {history} found", s.item.history_blocks));
            }
            if s.nodes != nodes {
                bad(What::NodeCountWrong, format!("{} stated, {nodes} found", s.nodes));
            }
        }
        let totals = [
            ("live blocks", state.live_blocks, self.live_blocks),
            ("history blocks", state.history_blocks, self.history_blocks),
            ("named blocks", state.named_blocks, self.named_blocks),
            ("reserved blocks", state.promised_blocks, self.promised_blocks),
            ("inodes", state.inodes, self.inodes),
        ];
        for (name, stated, counted) in totals {
            if stated != counted {
                log.add(Finding::new(What::TotalWrong, format!("{name}: {stated} stated, {counted} found")));
            }
        }
    }
}

/// The segments that hold what recovery replays are marked, and no others.
pub fn check_chain(entered: &Entered, log: &mut Log<'_>) {
    let (state, chain, sb) = (&entered.opened.state, &entered.opened.chain, &entered.superblock);
    // A segment that no partial was written to yet needs no mark.
    let mut needed: Vec<SegmentNo> = Vec::new();
    if sb.chain.1 > 0 {
        needed.push(sb.chain.0);
    }
    if chain.seq > sb.chain_seq {
        needed.push(chain.last_addr.segment());
    }
    for (no, s) in state.segments.iter() {
        let mut bad = |text: &str| {
            log.add(Finding::new(What::ChainUnmarked, format!("segment {no}: {text}")).at(Addr::new(no, 0)));
        };
        if s.chain_held {
            if s.item.chain_seq > chain.seq {
                bad("marked with a sequence behind the end of the log");
            } else if s.item.kind != KIND_CHAIN {
                bad("marked as part of the log, but of another kind");
            }
        } else if needed.contains(&no) {
            bad("recovery reads the log there, and nothing keeps it");
        }
    }
}

/// Items of the live tree and of history.
pub fn items(state: &State) -> u64 {
    state.history.iter().fold(state.live.items(), |n, t| n.saturating_add(t.tree.items()))
}

/// For texts: when an item of history died.
pub fn died(key: &Key) -> String {
    if key.death > 0 { format!(", until checkpoint {}", key.death) } else { String::new() }
}
