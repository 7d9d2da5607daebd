//! Scrubbing: everything on the device is read and verified while the volume
//! is in use, and what has a second copy is mended.
//!
//! It goes in steps, so that the caller decides how fast and how long. Between
//! and within steps the volume changes: whatever seems damaged counts only if
//! the index still points to it once it has been read again.
//!
//! Invariants
//! 1. A node with a damaged copy becomes dirty and is written anew by an index checkpoint, in both copies, elsewhere. In place
//!    only a copy is written over that is wrong, with what others prove it to be: content of a mirror, and in rows with parity
//!    also nodes, and parity.
//! 2. No lock is held while the device is read.
//! 3. What the log has and no index node yet is in memory: where the log is damaged, index checkpoints make it needless.

use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::check::path_of;
use crate::covered;
use crate::devices::RowId;
use crate::index::{NodeAt, Tree};
use crate::storage::{SlotState, probe_storage};
use crate::{Error, Result};
use nenrin_format::items::Extent;
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{self, TreeId};
use nenrin_format::superblock::{SLOTS_PER_AREA, Scrubbed};
use nenrin_format::{Addr, BLOCK_BYTES, Ino, NODE_BLOCKS, NODE_BYTES, Time};
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

mod log;
mod rows;

/// Nodes looked at under one clone of a tree.
const NODES_AT_ONCE: usize = 64;
/// Extents verified under one clone of a tree.
const EXTENTS_AT_ONCE: usize = 64;
/// Roots that recovery may begin with.
const ROOTS_USABLE: u32 = 2;
/// Findings that are told one by one; more are only counted.
const FINDINGS_MAX: usize = 1000;

/// What scrubbing found, so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Index nodes verified, in both copies.
    pub nodes: u64,
    /// Blocks of content verified.
    pub blocks: u64,
    /// Copies of index nodes, roots, superblock slots and of partials of the log that were damaged; where something has several copies, or
    /// lies in rows with parity, also what its device did not give.
    pub copies_damaged: u64,
    /// Of these, those that were written anew.
    pub copies_mended: u64,
    /// Index nodes of which no copy is left.
    pub nodes_lost: u64,
    /// Extents of content that are damaged: there is no second copy of them.
    pub extents_damaged: u64,
    /// What is damaged and could not be mended, at most 1,000 of it.
    pub findings: Vec<ScrubFinding>,
}

impl ScrubReport {
    /// Damage is left that cannot be mended.
    #[must_use]
    pub fn has_losses(&self) -> bool {
        self.nodes_lost + self.extents_damaged > 0 || self.copies_mended < self.copies_damaged
    }
}

/// One thing that is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubFinding {
    /// What is damaged, and how.
    pub text: String,
    /// The inode whose content it is.
    pub ino: Option<Ino>,
    /// A path of it.
    pub path: Option<Vec<u8>>,
    /// Offset in the file, in bytes.
    pub offset: Option<u64>,
    /// Where on the volume.
    pub addr: Addr,
}

enum Stage {
    Roots,
    /// How far it was looked at, when that has begun.
    Log(Option<log::Walked>),
    Nodes(TreeId),
    Content(TreeId),
    /// Content of history: of the trees that there are when it begins, and not of these that there were before.
    PastContent(Vec<TreeId>),
    /// Parity of rows; what is left of it, when that has begun.
    Rows(Option<rows::RowsLeft>),
    Mend,
}

/// A scrub under way. It holds nothing of the volume.
pub struct Scrub {
    stages: VecDeque<Stage>,
    from: Key,
    /// Copies found damaged that the next index checkpoint writes anew.
    touched: u64,
    /// Damaged copies of roots and slots: the next roots replace them.
    roots_damaged: u64,
    /// The same of the log: needless once both usable roots are new.
    log_damaged: u64,
    /// Rows whose parity was not right when something in them was looked at.
    rows_unlike: BTreeSet<RowId>,
    bytes: u64,
    bytes_expected: u64,
    report: ScrubReport,
}

impl Scrub {
    /// What was found so far.
    #[must_use]
    pub fn report(&self) -> &ScrubReport {
        &self.report
    }
    /// Whether everything was looked at.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stages.is_empty()
    }
    /// Bytes read so far, and about how many it will be.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.bytes, self.bytes_expected.max(self.bytes))
    }

    fn next_stage(&mut self) {
        self.stages.pop_front();
        self.from = Key::first();
    }

    fn note(&mut self, finding: ScrubFinding) {
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(finding);
        }
    }
}

impl Inner {
    pub(super) fn tree(&self, id: TreeId) -> Option<&Tree> {
        self.trees().find(|t| t.id() == id)
    }

    pub(super) fn trees(&self) -> impl Iterator<Item = &Tree> {
        [&self.state.live, &self.state.space].into_iter().chain(self.state.history.iter().map(|t| &t.tree))
    }
}

impl Fs {
    /// Begins to scrub; nothing is read yet.
    #[must_use]
    pub fn scrub(&self) -> Scrub {
        let inner = self.lock();
        // The newest first, as items move to older ones.
        let history: Vec<TreeId> = inner.state.history.iter().rev().map(|t| t.tree.id()).collect();
        let trees = || [TreeId::LIVE, TreeId::SPACE].into_iter().chain(history.iter().copied());
        let first = [Stage::Roots, Stage::Log(None)].into_iter();
        let stages = first
            .chain(trees().map(Stage::Nodes))
            .chain([Stage::Content(TreeId::LIVE), Stage::PastContent(history.clone())]);
        // As roots say, which may say anything.
        let nodes = trees().filter_map(|t| inner.tree(t)).map(Tree::nodes).fold(0, u64::saturating_add);
        let blocks = inner.state.live_blocks.saturating_add(inner.state.history_blocks);
        Scrub {
            stages: stages.chain([Stage::Rows(None), Stage::Mend]).collect(),
            from: Key::first(),
            touched: 0,
            roots_damaged: 0,
            log_damaged: 0,
            rows_unlike: BTreeSet::new(),
            bytes: 0,
            bytes_expected: nodes
                .saturating_mul(2 * NODE_BYTES as u64)
                .saturating_add(blocks.saturating_mul(BLOCK_BYTES as u64)),
            report: ScrubReport::default(),
        }
    }

    /// Reads and verifies about `bytes` more bytes.
    ///
    /// # Errors
    /// [`Error::Failed`] and the like when mending needs to write and cannot;
    /// what cannot be read is no error but a finding.
    pub fn scrub_step(&self, scrub: &mut Scrub, bytes: u64) -> Result<()> {
        let _way = super::beside::giving_way();
        let end = scrub.bytes.saturating_add(bytes);
        while scrub.bytes < end {
            match scrub.stages.front_mut() {
                None => return Ok(()),
                Some(Stage::Roots) => {
                    // What is only in memory could not be looked at where it is going to be.
                    if self.may_mend() {
                        self.sync_received(false)?;
                    }
                    scrub.roots_damaged = self.damaged_roots()?;
                    scrub.report.copies_damaged += scrub.roots_damaged;
                    self.slots_right.store(scrub.roots_damaged == 0, Ordering::Release);
                    scrub.next_stage();
                }
                Some(Stage::Log(walked)) => {
                    let walked = walked.take();
                    self.scrub_log(scrub, walked)?;
                }
                Some(Stage::Nodes(tree)) => {
                    let tree = *tree;
                    self.scrub_nodes(scrub, tree)?;
                }
                Some(Stage::Content(tree)) => {
                    let tree = *tree;
                    self.scrub_content(scrub, tree)?;
                }
                Some(Stage::PastContent(then)) => {
                    let then = std::mem::take(then);
                    scrub.next_stage();
                    let ids = if broken(Break::ScrubTreesOfBefore) { then } else { self.history_ids() };
                    // What died meanwhile may be in trees that were not there when the scrub began; what dies from now on was looked at.
                    for id in ids.into_iter().rev() {
                        scrub.stages.push_front(Stage::Content(id));
                    }
                }
                Some(Stage::Rows(left)) => {
                    let left = left.take();
                    match self.scrub_rows(scrub, left)? {
                        None => scrub.next_stage(),
                        left => scrub.stages[0] = Stage::Rows(left),
                    }
                }
                Some(Stage::Mend) => {
                    self.mend(scrub)?;
                    self.note_scrubbed(&scrub.report)?;
                    scrub.next_stage();
                }
            }
        }
        Ok(())
    }

    pub(super) fn may_mend(&self) -> bool {
        !self.options.read_only && self.owns_to_write().is_ok() && self.lock().check_alive().is_ok()
    }

    /// All was looked at: the next root says what is left, and where that is damage, or was, one is written at once.
    fn note_scrubbed(&self, report: &ScrubReport) -> Result<()> {
        if broken(Break::ScrubForgotten) {
            return Ok(());
        }
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        // The time 0 stands for none.
        let ended_at = Time(self.clock.wall().0.max(1));
        let found = Scrubbed {
            ended_at,
            content: count(report.extents_damaged),
            nodes: count(report.nodes_lost),
            copies: count(report.copies_damaged.saturating_sub(report.copies_mended)),
        };
        let mut inner = self.lock();
        let before = inner.superblock.scrubbed.replace(found);
        drop(inner);
        let is_news = !found.is_clean() || before.is_some_and(|before| !before.is_clean());
        if is_news && self.may_mend() { self.index_checkpoint(false) } else { Ok(()) }
    }

    /// Damaged superblock slots, and damaged copies of the root that counts.
    fn damaged_roots(&self) -> Result<u64> {
        let mut damaged = 0;
        // Slots are written in turn: with the lock let go, one can be half written now and whole later.
        for attempt in 0..3 {
            let superblock = self.lock().superblock.clone();
            let probes = probe_storage(&self.storage);
            let all_used = superblock.generation.0 >= SLOTS_PER_AREA;
            let bad = |s: &SlotState| match s {
                SlotState::Valid(_) => false,
                SlotState::Empty => all_used,
                SlotState::Invalid(_) | SlotState::Newer(_) | SlotState::Unreadable(_) => true,
            };
            // What cannot be read is mended like what is wrong: where the device takes no writes either, it is left out.
            let unreadable = probes.iter().filter(|p| p.is_err()).count() as u64;
            let slots = probes.iter().flatten().flat_map(|p| &p.slots);
            damaged = slots.filter(|(_, s)| bad(s)).count() as u64 + unreadable * 2 * SLOTS_PER_AREA;
            for (addr, crc) in &superblock.root {
                let right = |bytes: &[u8]| summary_crc(bytes) == Some(*crc);
                let read = self.storage.read_summary(*addr, Some(*crc));
                let intact = read.is_ok_and(|b| self.are_right(*addr, (b.len() / BLOCK_BYTES) as u32, right));
                damaged += u64::from(!intact);
            }
            if damaged == 0 || attempt == 2 || self.lock().superblock.generation == superblock.generation {
                break;
            }
        }
        Ok(damaged)
    }

    fn scrub_nodes(&self, scrub: &mut Scrub, id: TreeId) -> Result<()> {
        let inner = self.lock();
        // A history tree may have been merged away meanwhile.
        let Some(tree) = inner.tree(id).cloned() else {
            scrub.next_stage();
            return Ok(());
        };
        let cache = inner.state.cache.clone();
        drop(inner);
        let mut nodes = Vec::new();
        let go_on = tree.nodes_from(&cache, &scrub.from, NODES_AT_ONCE, &mut nodes)?;
        drop(tree);
        for n in &nodes {
            let damaged = self.damaged_copies(n);
            scrub.report.nodes += 1;
            let unlike = n.ptr.copies.iter().flat_map(|addr| self.storage.rows_unlike(*addr, NODE_BLOCKS));
            scrub.rows_unlike.extend(unlike);
            scrub.bytes += 2 * NODE_BYTES as u64;
            if !damaged.is_empty() {
                self.node_is_damaged(scrub, id, n)?;
            }
        }
        match go_on {
            Some(key) => scrub.from = key,
            None => scrub.next_stage(),
        }
        Ok(())
    }

    fn damaged_copies(&self, n: &NodeAt) -> Vec<Addr> {
        n.ptr.copies.into_iter().filter(|addr| !self.is_right_copy(n, *addr)).collect()
    }

    fn is_right_copy(&self, n: &NodeAt, addr: Addr) -> bool {
        self.are_right(addr, NODE_BLOCKS, |bytes| node::stored_crc(bytes) == Some(n.ptr.crc) && node::verify(bytes))
    }

    /// A copy of a node did not verify: if the tree still has that node, and
    /// reading again does not help, the node is to be written anew.
    fn node_is_damaged(&self, scrub: &mut Scrub, id: TreeId, n: &NodeAt) -> Result<()> {
        let may_mend = self.may_mend();
        if may_mend && self.storage.has_parity() && !broken(Break::ParityUnverified) {
            let mended = self.mend_node(id, n)?;
            scrub.report.copies_damaged += mended;
            scrub.report.copies_mended += mended;
        }
        let damaged = self.damaged_copies(n);
        if damaged.is_empty() {
            return Ok(());
        }
        let mut inner = self.lock();
        let state = &mut inner.state;
        let cache = state.cache.clone();
        let tree = match id {
            TreeId::LIVE => Some(&mut state.live),
            TreeId::SPACE => Some(&mut state.space),
            id => state.history.iter_mut().map(|t| &mut t.tree).find(|t| t.id() == id),
        };
        let Some(tree) = tree else { return Ok(()) };
        if !tree.is_at(&cache, n.level, &n.key, &n.ptr)? {
            return Ok(());
        }
        scrub.report.copies_damaged += damaged.len() as u64;
        let touched = may_mend && matches!(tree.touch(&cache, n.level, &n.key, n.ptr.copies[0]), Ok(true));
        drop(inner);
        if touched {
            scrub.touched += damaged.len() as u64;
        } else {
            // A mirror may have what one of its devices has not.
            let lost = !self.storage.right_copies(&n.ptr).contains(&true);
            scrub.report.nodes_lost += u64::from(lost);
            let what = if lost { "both copies of an index node are" } else { "a copy of an index node is" };
            let text = format!("tree {}, level {}: {what} damaged", id.0, n.level);
            scrub.note(ScrubFinding { text, ino: None, path: None, offset: None, addr: damaged[0] });
        }
        Ok(())
    }

    /// Where rows have parity: copies of a node that were written anew where they lie, since the rest of their rows may
    /// need them there.
    fn mend_node(&self, id: TreeId, n: &NodeAt) -> Result<u64> {
        let mut inner = self.lock();
        let cache = inner.state.cache.clone();
        let Some(tree) = inner.tree(id).cloned() else { return Ok(0) };
        if !tree.is_at(&cache, n.level, &n.key, &n.ptr)? {
            return Ok(0);
        }
        n.ptr.copies.iter().for_each(|addr| inner.segments().pin(addr.segment()));
        drop(inner);
        let right = |bytes: &[u8]| node::stored_crc(bytes) == Some(n.ptr.crc) && node::verify(bytes);
        // Where that fails the node is written elsewhere.
        let mended =
            n.ptr.copies.iter().filter(|addr| self.storage.mend(**addr, NODE_BLOCKS, right).is_ok_and(|n| n > 0));
        let mended = mended.count() as u64;
        let mut inner = self.lock();
        n.ptr.copies.iter().for_each(|addr| inner.segments().unpin(addr.segment()));
        Ok(mended)
    }

    /// History trees, in the order in which items move from one to the next: the newest first.
    fn history_ids(&self) -> Vec<TreeId> {
        self.lock().state.history.iter().rev().map(|t| t.tree.id()).collect()
    }

    /// Some extents of a tree from a key on, none where the tree is gone.
    fn extents_from(&self, id: TreeId, from: &Key) -> Piece {
        let inner = self.lock();
        let Some(tree) = inner.tree(id).cloned() else { return Piece::default() };
        let (cache, generation) = (inner.state.cache.clone(), inner.generation());
        drop(inner);
        let (mut extents, mut next): (Vec<(Key, Extent)>, _) = (Vec::new(), None);
        let lost = tree.scan_readable(&cache, from, &Key::last(), &mut |k, v| {
            if extents.len() == EXTENTS_AT_ONCE {
                next = Some(*k);
                return ControlFlow::Break(());
            }
            if k.kind == Kind::Extent {
                if let Ok(e) = Extent::decode(v) {
                    extents.extend((!e.is_unwritten()).then_some((*k, e)));
                }
            }
            ControlFlow::Continue(())
        });
        drop(tree);
        let is_old = lost.is_some() && self.lock().generation() != generation;
        Piece { extents, next, is_lost: lost.is_some(), is_old }
    }

    fn scrub_content(&self, scrub: &mut Scrub, id: TreeId) -> Result<()> {
        let Piece { extents, next, is_old, .. } = self.extents_from(id, &scrub.from);
        // What is lost was noted with the nodes.
        if is_old {
            return Ok(());
        }
        for (key, extent) in &extents {
            scrub.report.blocks += u64::from(extent.blocks);
            scrub.bytes += u64::from(extent.blocks) * BLOCK_BYTES as u64;
            let (first, blocks) = covered::place(extent);
            let is_right = || self.are_right(first, blocks, |bytes| covered::verify(extent, bytes).is_ok());
            // A device may fail once: that is told of it, and is no damage.
            let is_right_now = || self.storage.has_parity() && is_right();
            if !is_right() && !is_right_now() {
                self.extent_is_damaged(scrub, id, key, extent)?;
            }
            scrub.rows_unlike.extend(self.storage.rows_unlike(first, blocks));
        }
        match next {
            Some(key) => scrub.from = key,
            None => scrub.next_stage(),
        }
        Ok(())
    }

    /// Whether all copies of these blocks, on all devices that have one, are right, and are given by these devices.
    fn are_right(&self, addr: Addr, blocks: u32, right: impl Fn(&[u8]) -> bool) -> bool {
        let ways = self.storage.ways_around(addr, blocks);
        // What lies in rows has no copy, and what its parity is worth is looked at when all in the row was.
        if ways.is_empty() || self.storage.has_parity() {
            let (read, unread) = self.storage.read_telling(addr, blocks);
            return !unread && read.is_ok_and(|bytes| right(&bytes));
        }
        ways.into_iter().all(|avoid| self.storage.read_around(addr, blocks, avoid).is_ok_and(|bytes| right(&bytes)))
    }

    fn verify_extent(&self, e: &Extent) -> Result<()> {
        covered::read(&self.storage, e).map(drop)
    }

    fn extent_is_damaged(&self, scrub: &mut Scrub, id: TreeId, key: &Key, extent: &Extent) -> Result<()> {
        let read = self.verify_extent(extent);
        let mut inner = self.lock();
        // Content on its way to the device is in memory; it may also have been moved or removed.
        let current = match inner.tree(id) {
            Some(tree) => tree.get(&inner.state.cache, key)?,
            None => None,
        };
        let same = current.and_then(|v| Extent::decode(&v).ok()).is_some_and(|e| e == *extent);
        if !same || inner.is_on_its_way(extent) {
            return Ok(());
        }
        // Another device has it whole, or as much as is not lost.
        inner.segments().pin(extent.addr.segment());
        drop(inner);
        let mended = self.mend_copies(extent);
        let mut inner = self.lock();
        inner.segments().unpin(extent.addr.segment());
        let is_whole = read.is_ok() || broken(Break::GranulesTogether);
        scrub.report.copies_damaged += u64::from(is_whole || mended);
        scrub.report.copies_mended += u64::from(mended);
        let Err(why) = read else { return Ok(()) };
        let addr = if let Error::Damaged(addr, _) = why { addr } else { extent.addr };
        let block = (addr.0.saturating_sub(extent.addr.0)).min(u64::from(extent.blocks.saturating_sub(1)));
        let past = if key.death > 0 { format!(", as it was before checkpoint {}", key.death) } else { String::new() };
        let ino = Ino(key.ino);
        let finding = ScrubFinding {
            text: format!("content is damaged{past}: {why}"),
            ino: Some(ino),
            path: path_of(&inner.state, ino),
            offset: Some((key.off + block) * BLOCK_BYTES as u64),
            addr,
        };
        drop(inner);
        scrub.report.extents_damaged += 1;
        scrub.note(finding);
        Ok(())
    }

    /// Writes anew what has a second copy.
    fn mend(&self, scrub: &mut Scrub) -> Result<()> {
        let may_mend = self.may_mend();
        if scrub.touched + scrub.roots_damaged + scrub.log_damaged == 0 || !may_mend {
            return Ok(());
        }
        let roots = if scrub.log_damaged > 0 { ROOTS_USABLE } else { 1 };
        (0..roots).try_for_each(|_| self.index_checkpoint(false))?;
        scrub.report.copies_mended += scrub.touched + scrub.log_damaged;
        // Each new root replaces one slot and both copies of the root before.
        let mut left = scrub.roots_damaged;
        for _ in 0..SLOTS_PER_AREA {
            if left == 0 {
                break;
            }
            self.index_checkpoint(false)?;
            left = self.damaged_roots()?;
        }
        self.slots_right.store(left == 0, Ordering::Release);
        scrub.report.copies_mended += scrub.roots_damaged.saturating_sub(left);
        Ok(())
    }
}

/// Extents of a tree that lie one behind the other.
#[derive(Default)]
struct Piece {
    extents: Vec<(Key, Extent)>,
    /// Where to go on.
    next: Option<Key>,
    /// Some of it could not be read.
    is_lost: bool,
    /// That is of a view whose places index checkpoints may have used again: it is to be looked at once more.
    is_old: bool,
}

/// Checksum that the summary at the start of a partial carries.
fn summary_crc(bytes: &[u8]) -> Option<u32> {
    nenrin_format::partial::Header::decode(bytes).ok().map(|s| s.crc)
}
