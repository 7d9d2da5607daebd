//! The state to start from: which root, its trees without what cannot be
//! read, and everything of the log that verifies.
//!
//! | what is found | where repair starts |
//! |---|---|
//! | a root whose nodes all verify, and an unbroken log behind it that reaches every other root | there, newest first: nothing is lost |
//! | no such root | that of the two newest of which least is lost, see [`Lacks`], without the nodes that cannot be read |
//! | no root, or the live tree of neither of these two has all its branches | what [`salvage`] finds |
//! | the same two, with a log that ends before a whole live tree was written that is on the device still, and no snapshot | the same |
//! | damage in the log behind it | all before the damage, then every linked run of partials behind it |
//!
//! Invariants
//! 1. Nothing is written.
//! 2. `held` has every segment that any usable root, or the log behind it, may need.

use super::behind_gap::BehindGap;
use super::forgotten::Forgotten;
use super::losses::{About, LossKind, Losses, MendKind};
use super::regain::{self, each};
use super::salvage;
use super::unknown::{Hole, Unknown};
use crate::breaks::{Break, broken};
use crate::devices::Assembly;
use crate::fs::{CAPABILITY, grants_by};
use crate::index::{LostRange, NodeCache, Survey, Tree};
use crate::log::chain::Chain;
use crate::per_segment::PerSegment;
use crate::recovery::{Found, Island, Outcome, Unproven, Walk, chain_of, read_root, unproven_of, walk_behind};
use crate::segments::Segments;
use crate::state::{HistoryTree, KnownPast, Sheds, State, is_history, is_space_key};
use crate::storage::{Storage, storage_of};
use crate::{Error, FileKind, Result};
use nenrin_format::features::Access;
use nenrin_format::items::{Checkpoint, Extent, INODE_CAPS, Inode, Segment};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::partial::Header;
use nenrin_format::records::{ContentOp, Record, attr_mask};
use nenrin_format::root::Root;
use nenrin_format::superblock::Superblock;
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, COUNTER_MAX, Cno, Ino, SegmentNo, Seq, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// What a repair prefers where a newer tree is there than a root with a gap behind it leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    NewestTree,
    Root,
}

/// Memory for index nodes while repairing.
pub(super) const CACHE_BYTES: usize = 64 << 20;

/// What is known before anything is mended.
pub(super) struct Base {
    pub storage: Arc<Storage>,
    pub superblock: Superblock,
    pub state: State,
    pub chain: Chain,
    /// Ranges of the live tree of which nothing is known.
    pub lost: Vec<LostRange>,
    /// Nodes of the space tree are lost.
    pub space_lost: bool,
    /// What was shed of checkpoints before this one may have been in them.
    pub sheds_lost: Option<Cno>,
    /// Newest death that a lost node of history may have held.
    pub past_lost: Option<Cno>,
    /// Segments nothing may be written to before the repair is done.
    pub held: PerSegment<bool>,
    /// What the space tree said of segments.
    pub segment_items: BTreeMap<u64, Segment>,
    /// Inodes from here on may have been made in a part of the log that is missing.
    pub gap_from: Option<Ino>,
    /// Inodes made anew, because content of them was found behind a gap.
    pub unproven: BTreeSet<u64>,
    /// File blocks that a gap in the log may have held.
    pub holes: BTreeSet<Hole>,
    /// What of the log counts although nothing proves that every device has its copy.
    pub to_equalize: Vec<Unproven>,
    /// It began with a tree that was found, and a root would do as well.
    pub has_root: bool,
}

/// A root that can be read.
struct Candidate {
    superblock: Superblock,
    root: Root,
    trees: Vec<(Tree, Survey)>,
    log: Outcome,
    /// What is intact of the log behind damage.
    islands: Vec<Island>,
    cache: Arc<NodeCache>,
}

impl Candidate {
    fn has_lost_branches(&self) -> bool {
        self.trees.iter().any(|(tree, s)| tree.id() == TreeId::LIVE && s.lost.iter().any(|l| l.level > 0))
    }
    /// What is lost where a repair starts here; `furthest`: what others prove to have been durable.
    fn lacks(&self, furthest: u64) -> Lacks {
        let lost = |live: bool| {
            let trees = self.trees.iter().filter(|(tree, _)| (tree.id() == TreeId::LIVE) == live);
            trees.map(|(_, s)| s.lost.len()).sum()
        };
        Lacks {
            branches: self.has_lost_branches(),
            log: self.missing(furthest).max(u64::from(self.log.damage.is_some())),
            live: lost(true),
            others: lost(false),
        }
    }
    /// Partials of the log that are not there, as far as others prove that they were.
    fn missing(&self, furthest: u64) -> u64 {
        let there = self.log.accepted.iter().chain(self.islands.iter().flatten());
        missing(self.superblock.chain_seq.0, furthest, there.map(|f| f.header.seq.0))
    }
    /// A log that ends without damage before what others prove is damaged, too.
    fn miss(&mut self, storage: &Storage, furthest: u64) -> Result<()> {
        let furthest = Seq(furthest);
        if self.log.damage.is_none() && Seq(self.reaches()) < furthest {
            self.log.damage = Some(format!("it ends before partial {furthest}"));
            self.log.durable_seq = self.log.durable_seq.max(furthest);
            self.islands = Walk::new(storage, &chain_of(&self.superblock)).behind(&self.log)?;
        }
        Ok(())
    }
    /// Whether somebody gave a checkpoint a name, or asked for something to be forgotten, as far as the space tree and the log can be
    /// read; a salvage would lose that.
    fn has_snapshots(&self) -> bool {
        let mut has = self.log.accepted.iter().chain(self.islands.iter().flatten()).any(|f| {
            let mut r = Reader::new(&f.records);
            let mut asked = false;
            while let (false, false, Ok(record)) = (asked, r.is_empty(), Record::decode(&mut r)) {
                asked = match record {
                    Record::Checkpoint { name, .. } | Record::NameCheckpoint { name, .. } => !name.is_empty(),
                    record => matches!(record, Record::Forget { .. }),
                };
            }
            asked
        });
        for (tree, _) in self.trees.iter().filter(|(tree, _)| tree.id() == TreeId::SPACE) {
            tree.scan_readable(&self.cache, &Key::first(), &Key::last(), &mut |key, value| {
                let is_checkpoint = is_space_key(key) && key.kind == Kind::Checkpoint;
                has |= is_checkpoint && Checkpoint::decode(value).is_ok_and(|c| !c.name.is_empty());
                has |= is_space_key(key) && key.kind == Kind::Forget;
                ControlFlow::Continue(())
            });
        }
        has
    }
    /// What is to be forgotten, as far as this root and its log can be read; `furthest`: what others prove to have been durable.
    fn tell_forgotten(&self, forgotten: &mut Forgotten, furthest: u64) -> Result<()> {
        forgotten.learn_log(&self.log.accepted)?;
        self.islands.iter().try_for_each(|island| forgotten.learn_log(island))?;
        let has_log = self.log.damage.is_none() && self.reaches() >= furthest;
        let space = self.trees.iter().filter(|(tree, _)| tree.id() == TreeId::SPACE);
        space.for_each(|both| forgotten.learn(&self.cache, both, has_log));
        Ok(())
    }
    /// Highest sequence that the state after roll-forward contains.
    fn reaches(&self) -> u64 {
        self.log.accepted.last().map_or(self.superblock.chain_seq, |f| f.header.seq).0
    }
}

/// Partials behind `begin`, up to the furthest that is proven, that are not there. What comes behind that makes up for none of them.
fn missing(begin: u64, furthest: u64, there: impl Iterator<Item = u64>) -> u64 {
    furthest.saturating_sub(begin).saturating_sub(there.filter(|seq| *seq <= furthest).count() as u64)
}

/// What is lost where a repair starts from a root; the less, the better. What is said first weighs most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lacks {
    /// Branches of the live tree, and with them whatever was below.
    branches: bool,
    /// Partials of the log.
    log: u64,
    /// Leaves of the live tree.
    live: usize,
    /// Nodes of the other trees.
    others: usize,
}

/// Finds the state to start from. `None` when no root can be read.
pub(super) fn find(assembly: &Assembly, begin: Begin, losses: &mut Losses) -> Result<Option<Base>> {
    let found = &assembly.found;
    let newest = found.newest()?;
    if let Access::ReadOnly(bits) = found.access(newest) {
        return Err(Error::Open(format!("features that this program can only read (bits {bits:#x}); update nenrin")));
    }
    let storage = storage_of(assembly);
    let mut all: Vec<Candidate> = Vec::new();
    let mut proven = Seq(0);
    for superblock in found.roots.iter().filter(|r| r.uuid == newest.uuid) {
        match read_root(&storage, superblock) {
            Ok(root) => all.push(candidate(&storage, superblock, root)?),
            // Where its log begins is known all the same.
            Err(_) => proven = proven.max(Walk::new(&storage, &chain_of(superblock)).run()?.proves()),
        }
    }
    if all.iter().any(|c| c.log.is_newer) {
        return Err(Error::Open("the log has a format version newer than this program; update nenrin".into()));
    }
    // What any of them proves to have been durable, all of them must reach.
    let durable = all.iter().map(|c| c.log.durable_seq.0.max(c.reaches()));
    let furthest = durable.chain(found.roots.iter().map(|r| r.chain_seq.0)).chain([proven.0]).max().unwrap_or(0);
    let is_usable = |c: &&Candidate| found.roots.iter().take(2).any(|r| r.generation == c.superblock.generation);
    let usable = all.iter().take_while(is_usable).count();
    let chosen = choose(&all, usable, furthest);
    if let Some(c) = all.get_mut(chosen) {
        c.miss(&storage, furthest)?;
    }
    let mut held = PerSegment::of(storage.numbers());
    for c in all.iter().enumerate().filter(|(i, _)| *i < 2 || *i == chosen).map(|(_, c)| c) {
        hold(c, &mut held)?;
    }
    for root in found.roots.iter().take(2) {
        hold_segments(&mut held, root.root.iter().map(|(addr, _)| addr.segment()));
    }
    let forgotten = || {
        let mut out = Forgotten::default();
        all.iter().try_for_each(|c| c.tell_forgotten(&mut out, furthest)).map(|()| out)
    };
    // A lost inner node hides what is below it, and a gap in the log what came later: a whole tree is worth more, wherever it is found.
    if all.get(chosen).is_none_or(Candidate::has_lost_branches) {
        return salvage::find(&storage, found, newest, held, forgotten()?, losses);
    }
    let may_be_behind = |c: &&Candidate| {
        c.log.damage.is_some() && begin == Begin::NewestTree && !c.has_snapshots() && !broken(Break::NewerTreeLeft)
    };
    if let Some(c) = all.get(chosen).filter(may_be_behind) {
        if salvage::whole_tree(&storage, found, newest)?.is_some_and(|seq| seq.0 > c.reaches()) {
            let base = salvage::find(&storage, found, newest, held, forgotten()?, losses)?;
            return Ok(base.map(|base| Base { has_root: true, ..base }));
        }
    }
    let chosen = all.swap_remove(chosen);
    if chosen.superblock.generation != newest.generation {
        losses.mended(MendKind::OlderRoot, 1);
    }
    // Behind an older root the space of what was removed may have been used again.
    let is_recent = found.roots.iter().take(2).any(|r| r.generation == chosen.superblock.generation);
    start(storage, chosen, held, is_recent, losses).map(Some)
}

/// A root of which nothing is lost, else of the first `usable` ones, whose nodes are not written over, that of which least is lost; the
/// newest of those alike.
fn choose(all: &[Candidate], usable: usize, furthest: u64) -> usize {
    let lacks: Vec<Lacks> = all.iter().map(|c| c.lacks(furthest)).collect();
    let nothing = Lacks { branches: false, log: 0, live: 0, others: 0 };
    if broken(Break::RootAllOrNone) {
        return lacks.iter().position(|l| *l == nothing).unwrap_or(0);
    }
    // Of an older one nodes may have been written over since: it must be whole.
    let sound = lacks.iter().position(|l| *l == nothing);
    sound.or_else(|| (0..usable).min_by_key(|i| lacks[*i])).unwrap_or(0)
}

fn candidate(storage: &Arc<Storage>, superblock: &Superblock, root: Root) -> Result<Candidate> {
    let cache = Arc::new(NodeCache::new(storage.clone(), CACHE_BYTES));
    let mut trees = Vec::new();
    let mut seen = BTreeSet::new();
    for t in &root.trees {
        if seen.insert(t.tree) {
            let tree = Tree::open(t);
            let survey = tree.survey(&cache, &mut |ptr| storage.right_copies(ptr));
            trees.push((tree, survey));
        }
    }
    let log = walk_behind(storage, superblock, &root)?;
    let islands = match log.damage {
        Some(_) => Walk::new(storage, &chain_of(superblock)).behind(&log)?,
        None => Vec::new(),
    };
    Ok(Candidate { superblock: superblock.clone(), root, trees, log, islands, cache })
}

fn hold_segments(held: &mut PerSegment<bool>, segments: impl IntoIterator<Item = SegmentNo>) {
    for segment in segments {
        held.change(segment, |held| *held = true);
    }
}

/// Marks what a root and the log behind it may need.
fn hold(c: &Candidate, held: &mut PerSegment<bool>) -> Result<()> {
    hold_segments(held, c.root.index_segments.iter().map(|(segment, _)| *segment));
    hold_segments(held, c.superblock.root.iter().map(|(addr, _)| addr.segment()));
    hold_segments(held, [c.superblock.chain.0]);
    hold_segments(held, c.superblock.chain_next);
    for f in c.log.accepted.iter().chain(c.islands.iter().flatten()) {
        hold_segments(held, [f.header.addr.segment()].into_iter().chain(f.header.next));
        for e in named(f) {
            hold_segments(held, [e.addr.segment()]);
        }
    }
    for (tree, _) in &c.trees {
        tree.walk(&c.cache, &mut |key, value| {
            match key.kind {
                Kind::Extent => {
                    if let Ok(e) = Extent::decode(value) {
                        hold_segments(held, (!e.is_unwritten()).then(|| e.addr.segment()));
                    }
                }
                Kind::Segment => hold_segments(held, [SegmentNo(key.off)]),
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Extents outside the chain that a partial's records name.
pub(super) fn named(f: &Found) -> Vec<Extent> {
    let mut out = Vec::new();
    let mut r = Reader::new(&f.records);
    while let (false, Ok(record)) = (r.is_empty(), Record::decode(&mut r)) {
        match record {
            Record::Content { ops, .. } => out.extend(ops.into_iter().filter_map(|op| match op {
                ContentOp::Extent(_, e) if !e.is_unwritten() && !e.addr.is_payload() => Some(e),
                _ => None,
            })),
            Record::Move { new, .. } => out.push(new),
            _ => {}
        }
    }
    out
}

fn start(
    storage: Arc<Storage>,
    c: Candidate,
    held: PerSegment<bool>,
    is_recent: bool,
    losses: &mut Losses,
) -> Result<Base> {
    let Candidate { superblock, root, trees, log, islands, cache } = c;
    let mut state = State {
        cache,
        live: Tree::empty(TreeId::LIVE),
        space: Tree::empty(TreeId::SPACE),
        history: Vec::new(),
        segments: Segments::new(&storage.numbers(), storage.segment_blocks, superblock.generation.next()),
        kept: BTreeMap::new(),
        snapshots: BTreeSet::new(),
        landmarks: crate::state::Landmarks::default(),
        hash_key: superblock.hash_key,
        next_ino: root.next_ino,
        open_cno: root.open_cno,
        last_cno: root.last_cno,
        next_tree: root.next_tree,
        inodes: root.inodes,
        live_blocks: root.live_blocks,
        history_blocks: root.history_blocks,
        named_blocks: root.named_blocks,
        promised_blocks: root.promised_blocks,
        past: KnownPast::default(),
        forgetting: BTreeSet::new(),
        shed: Sheds::default(),
        applied: 0,
        uncut: true,
        owners_asked: std::cell::Cell::new(0),
        shares: std::cell::Cell::default(),
        retention: root.retention.clone(),
    };
    let Taken { lost, space_lost, sheds_lost, past_lost } = take_trees(&mut state, trees, &root, losses)?;
    let (segment_items, is_shed_bad) = load_space(&mut state)?;
    let sheds_lost = sheds_lost.or(is_shed_bad.then_some(root.open_cno));
    let mut chain = chain_of(&superblock);
    let mut unproven = BTreeSet::new();
    // Records that change shared extents need them.
    losses.mended(MendKind::SharingRestored, state.mend_backrefs()?);
    regain::what_is_lost(&mut state, &lost, &log.accepted, &mut unproven, losses)?;
    roll_forward(&mut state, &mut chain, &log.accepted, None, losses)?;
    let first_made = state.next_ino;
    let gap_from = log.damage.is_some().then_some(first_made);
    let to_equalize = unproven_of(log.accepted.iter().filter(|f| f.header.seq > log.vouched))
        .into_iter()
        .chain(unproven_of(islands.iter().flatten()))
        .collect();
    let mut before = log.accepted.last().map(|f| f.header.written_at);
    let mut gap = BehindGap::new(&islands);
    let mut unknown = Unknown::default();
    for island in &islands {
        let Some(first) = island.first() else { continue };
        tell_gap(&chain, before, Some(&first.header), losses);
        let privileged = pass_gap(&mut state, first_made, island, &mut unproven, &mut unknown, losses)?;
        unknown.learn(island)?;
        regain::what_is_lost(&mut state, &lost, island, &mut unproven, losses)?;
        gap.begin();
        roll_forward(&mut state, &mut chain, island, Some(&mut gap).filter(|_| is_recent), losses)?;
        take_privileges(&mut state, &privileged, losses)?;
        before = island.last().map(|f| f.header.written_at);
    }
    if log.damage.is_some() && chain.seq < log.durable_seq {
        tell_gap(&chain, before, None, losses);
    }
    Ok(Base {
        holes: unknown.holes(&state)?,
        storage,
        superblock,
        state,
        chain,
        lost,
        space_lost,
        sheds_lost,
        past_lost,
        held,
        segment_items,
        gap_from,
        unproven,
        to_equalize,
        has_root: false,
    })
}

/// What of the trees of a root is lost.
#[derive(Default)]
struct Taken {
    /// Leaves of the live tree.
    lost: Vec<LostRange>,
    /// Whether any of the space tree is.
    space_lost: bool,
    /// What was shed of checkpoints before this one may have been in those.
    sheds_lost: Option<Cno>,
    /// The newest death that a lost leaf of history may have held.
    past_lost: Option<Cno>,
}

/// What is left of the trees goes into the state.
fn take_trees(state: &mut State, trees: Vec<(Tree, Survey)>, root: &Root, losses: &mut Losses) -> Result<Taken> {
    let mut taken = Taken::default();
    let (first, last) = (Key::space(Kind::Shed, 0, 0), Key::space(Kind::Shed, u32::MAX, u64::MAX));
    for (mut tree, survey) in trees {
        tree.prune(&state.cache, &survey)?;
        losses.mended(MendKind::NodesRewritten, survey.weak.len() as u64);
        match tree.id() {
            TreeId::LIVE => (state.live, taken.lost) = (tree, survey.lost),
            TreeId::SPACE => {
                taken.space_lost = !survey.lost.is_empty();
                taken.sheds_lost = survey.lost.iter().any(|l| l.meets(&first, &last)).then_some(root.open_cno);
                state.space = tree;
            }
            id if is_history(id) => {
                let Some(t) = root.trees.iter().find(|t| t.tree == id) else { continue };
                if !survey.lost.is_empty() {
                    taken.past_lost = taken.past_lost.max(Some(t.deaths.1));
                }
                state.next_tree = state.next_tree.max(id.0.saturating_add(1));
                state.history.push(HistoryTree { tree, deaths: t.deaths, sealed: t.sealed });
            }
            _ => {}
        }
    }
    Ok(taken)
}

/// Tells what of the log is missing.
pub(super) fn tell_gap(chain: &Chain, before: Option<Time>, next: Option<&Header>, losses: &mut Losses) {
    let from = before.map_or_else(|| "the last index checkpoint".to_owned(), |t| t.utc());
    let first = chain.seq.next();
    let text = match next {
        Some(h) => {
            let last = h.seq.0.saturating_sub(1);
            format!("partial segments {first} to {last} are missing, written between {from} and {}", h.written_at.utc())
        }
        None => format!("partial segments from {first} on are missing, written after {from}"),
    };
    losses.add(LossKind::LogGap, About::Volume, text);
}

/// Makes the state such that records behind a gap apply as far as they can. Files that are given privileges behind it: for
/// [`take_privileges`].
pub(super) fn pass_gap(
    state: &mut State,
    gap_from: Ino,
    island: &Island,
    unproven: &mut BTreeSet<u64>,
    unknown: &mut Unknown,
    losses: &mut Losses,
) -> Result<BTreeSet<Ino>> {
    let (mut allowed, mut privileged) = (BTreeSet::new(), BTreeSet::new());
    let mut told: BTreeSet<u64> = BTreeSet::new();
    let mut made: BTreeSet<u64> = BTreeSet::new();
    if let Some(open) =
        island.first().map(|f| f.header.open_cno).filter(|open| *open > state.open_cno && open.0 < COUNTER_MAX)
    {
        let text = format!("checkpoints {} to {} were in the gap", state.open_cno, open.0 - 1);
        losses.add(LossKind::CheckpointsLost, About::Volume, text);
        state.open_cno = open;
        state.last_cno = Cno(open.0 - 1);
    }
    each(island, &mut |record| {
        // Where a name is to be is not lost with the directory's own, which may have been made in the gap.
        if let Record::Create { parent, .. } | Record::Link { parent, .. } | Record::Rename { to: parent, .. } = record
        {
            if *parent >= gap_from && !made.contains(&parent.0) && !broken(Break::GapLosesDirectories) {
                let outcome = make_directory(state, *parent, losses);
                note(outcome, *parent, losses)?;
            }
        }
        match record {
            Record::Create { ino, .. } => drop(made.insert(ino.0)),
            Record::Content { ino, size, .. } if !made.contains(&ino.0) && told.insert(ino.0) => {
                let outcome = changed_behind(state, *ino, *ino >= gap_from, unproven, losses)
                    .and_then(|()| unknown.begin(state, *ino, *size));
                note(outcome, *ino, losses)?;
            }
            record => {
                let Some((ino, grant)) = grant(record).filter(|(ino, _)| !made.contains(&ino.0)) else { return Ok(()) };
                let more = allows_more(state, ino, grant);
                let (allows, has_privileges) = *more.as_ref().unwrap_or(&(false, false));
                note(more.map(drop), ino, losses)?;
                if allows && allowed.insert(ino) {
                    let text = "was allowed more behind a gap in the log; it may hold what it held before";
                    losses.add(LossKind::FileUncertain, About::Inode(ino), text);
                }
                privileged.extend(has_privileges.then_some(ino));
            }
        }
        Ok(())
    })?;
    Ok(privileged)
}

/// Content of a file is the first that is found of it behind a gap; `in_gap`: it may have been made there.
fn changed_behind(
    state: &mut State,
    ino: Ino,
    in_gap: bool,
    unproven: &mut BTreeSet<u64>,
    losses: &mut Losses,
) -> Result<()> {
    if let Some(inode) = state.inode(ino)? {
        losses.add(LossKind::FileUncertain, About::Inode(ino), "changed behind a gap in the log");
        let outcome = drop_privileges(state, ino, &inode, losses);
        return note(outcome, ino, losses);
    }
    if in_gap {
        // What is written of it is all that is known.
        let inode = Inode { mode: 0o100_600, nlink: 1, ..Inode::default() };
        state.put_inode(ino, inode)?;
        state.next_ino = state.next_ino.max(ino.next());
        unproven.insert(ino.0);
        let text = "made in a gap in the log: owner, permissions and perhaps content are not known";
        losses.add(LossKind::AttributesLost, About::Inode(ino), text);
    }
    Ok(())
}

/// What a record gives somebody.
enum Grant {
    /// Attributes, by their mask: mode, user and group.
    Attributes(u32, [u32; 3]),
    /// An access list or label, or capabilities.
    Named { capabilities: bool },
}

/// Which file a record may give somebody more rights to, or rights of its own.
fn grant(record: &Record<'_>) -> Option<(Ino, Grant)> {
    match record {
        _ if broken(Break::GapGrants) => None,
        Record::SetAttr { ino, mask, mode, uid, gid, .. } => {
            Some((*ino, Grant::Attributes(*mask, [*mode, *uid, *gid])))
        }
        Record::SetXattr { ino, name, .. } if grants_by(name) => {
            Some((*ino, Grant::Named { capabilities: *name == CAPABILITY }))
        }
        _ => None,
    }
}

/// Whether that is more than is known from before a gap, of a file whose content is known from there only, and whether the file gets
/// rights of its own with it.
fn allows_more(state: &State, ino: Ino, grant: Grant) -> Result<(bool, bool)> {
    let Some(inode) = state.inode(ino)?.filter(|i| FileKind::from_mode(i.mode) == FileKind::Regular) else {
        return Ok((false, false));
    };
    let (mask, [mode, uid, gid]) = match grant {
        Grant::Named { capabilities } => return Ok((true, capabilities)),
        Grant::Attributes(mask, values) => (mask, values),
    };
    let has = |bit| mask & bit != 0;
    let added = if has(attr_mask::MODE) { mode & !inode.mode & 0o7777 } else { 0 };
    let is_other = has(attr_mask::UID) && uid != inode.uid || has(attr_mask::GID) && gid != inode.gid;
    // Bits that it had may be somebody else's behind the gap, and so what it holds.
    let sets_ids = has(attr_mask::MODE) && mode & 0o6000 != 0;
    let allows = added != 0 || is_other || sets_ids;
    Ok((allows, allows && (sets_ids || inode.mode & 0o6000 != 0)))
}

/// Behind a gap these files were given rights of their own, and what they hold is what they held before it.
pub(super) fn take_privileges(state: &mut State, privileged: &BTreeSet<Ino>, losses: &mut Losses) -> Result<()> {
    for ino in privileged {
        let outcome = match state.inode(*ino) {
            Ok(Some(inode)) => drop_privileges(state, *ino, &inode, losses),
            other => other.map(drop),
        };
        note(outcome, *ino, losses)?;
    }
    Ok(())
}

/// A directory that was made in a gap, if it is not there: its name is not known, and what was made in it since is.
fn make_directory(state: &mut State, ino: Ino, losses: &mut Losses) -> Result<()> {
    if ino.0 >= COUNTER_MAX || state.inode(ino)?.is_some() {
        return Ok(());
    }
    let text = "a directory made in a gap in the log: name, owner, permissions and what it had by then are not known";
    losses.add(LossKind::AttributesLost, About::Inode(ino), text);
    state.next_ino = state.next_ino.max(ino.next());
    state.put_inode(ino, Inode { mode: 0o040_700, nlink: 2, parent: Ino::ROOT, ..Inode::default() })
}

/// What cannot be done for records behind a gap ends no repair; what of them misses it is told, too.
fn note(outcome: Result<()>, ino: Ino, losses: &mut Losses) -> Result<()> {
    match outcome {
        Err(e @ Error::Device(_)) => Err(e),
        Err(e) => {
            let text = format!("what it may have been in a gap in the log cannot be told: {e}");
            losses.add(LossKind::ChangeLost, About::Inode(ino), text);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Who wrote to a file in the gap may not have been who gave it privileges: what took them away would be in the gap, too.
fn drop_privileges(state: &mut State, ino: Ino, inode: &Inode, losses: &mut Losses) -> Result<()> {
    let has_bits = inode.mode & 0o6000 != 0 && FileKind::from_mode(inode.mode) == FileKind::Regular;
    let has_capability = inode.flags & INODE_CAPS != 0;
    if !(has_bits || has_capability) || broken(Break::GapKeepsPrivileges) {
        return Ok(());
    }
    let Inode { mode, uid, gid, atime, mtime, ctime, .. } = *inode;
    let (mask, mode) = (attr_mask::MODE, mode & 0o1777);
    state.apply(&Record::SetAttr { ino, mask, mode, uid, gid, atime, mtime, ctime }, Addr::NONE)?;
    if has_capability {
        state.apply(&Record::RemoveXattr { ino, ctime, name: CAPABILITY }, Addr::NONE)?;
    }
    let text = "it may have been written to in a gap in the log, so it sets no user, group or capabilities any more";
    losses.add(LossKind::AttributesLost, About::Inode(ino), text);
    Ok(())
}

/// What of the space tree is kept in memory; items that mean nothing are left for later. And whether one of them may have said what was shed.
fn load_space(state: &mut State) -> Result<(BTreeMap<u64, Segment>, bool)> {
    let mut segments = BTreeMap::new();
    let mut kept = BTreeMap::new();
    state.space.walk(&state.cache, &mut |key: &Key, value| {
        match key.kind {
            _ if !is_space_key(key) => {}
            Kind::Segment => drop(Segment::decode(value).map(|s| segments.insert(key.off, s))),
            Kind::Checkpoint => drop(Checkpoint::decode(value).map(|c| kept.insert(Cno(key.off), c))),
            _ => {}
        }
        Ok(())
    })?;
    state.kept = kept;
    state.load_landmarks(&mut |_, _| {})?;
    drop(state.load_forgetting()?);
    let mut is_shed_bad = false;
    state.load_shed(&mut |_, _| is_shed_bad = true)?;
    Ok((segments, is_shed_bad))
}

/// Applies what can be applied.
pub(super) fn roll_forward(
    state: &mut State,
    chain: &mut Chain,
    accepted: &[Found],
    mut gap: Option<&mut BehindGap>,
    losses: &mut Losses,
) -> Result<()> {
    for found in accepted {
        let header = &found.header;
        let mut r = Reader::new(&found.records);
        while !r.is_empty() {
            let Ok(record) = Record::decode(&mut r) else {
                let text = format!("a record of the partial segment at {} means nothing", header.addr);
                losses.add(LossKind::ChangeLost, About::Volume, text);
                break;
            };
            let applies = gap.as_mut().map_or(Ok(true), |gap| gap.keep(state, &record));
            let outcome =
                applies.and_then(|yes| if yes { state.apply(&record, header.payload_addr()) } else { Ok(()) });
            match outcome {
                Ok(()) => {}
                Err(Error::Device(e)) => return Err(Error::Device(e)),
                Err(e) => losses.add(LossKind::ChangeLost, about(&record), e.to_string()),
            }
        }
        chain.segment = header.addr.segment();
        chain.block = header.addr.block() + header.total_blocks();
        chain.next = header.next;
        chain.epoch = header.epoch;
        chain.mount_id = header.mount_id;
        chain.seq = header.seq;
        chain.last_addr = header.addr;
        chain.last_crc = found.crc;
    }
    losses.mended(MendKind::RolledForward, accepted.len() as u64);
    Ok(())
}

/// What a record changes, for the list of losses.
fn about(record: &Record<'_>) -> About {
    match record {
        Record::Create { parent, name, .. }
        | Record::Link { parent, name, .. }
        | Record::Unlink { parent, name, .. } => About::Name(*parent, name.to_vec()),
        Record::Rename { to, new, .. } => About::Name(*to, new.to_vec()),
        Record::SetAttr { ino, .. }
        | Record::SetXattr { ino, .. }
        | Record::RemoveXattr { ino, .. }
        | Record::Content { ino, .. }
        | Record::Release { ino }
        | Record::ReapStep { ino, .. } => About::Inode(*ino),
        _ => About::Volume,
    }
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn what_comes_behind_what_is_proven_makes_up_for_nothing() {
        // Partials 103, and 75 and 103, are missing; up to 109 is proven, up to 110 is there.
        let from = |begin: u64, lost: &[u64]| missing(begin, 109, (begin + 1..=110).filter(|seq| !lost.contains(seq)));
        assert_eq!((from(100, &[103]), from(50, &[75, 103])), (1, 2));
        assert_eq!((from(100, &[]), from(120, &[])), (0, 0));
    }
}
