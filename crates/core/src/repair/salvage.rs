//! No root leads to a whole index: one is sought. Nodes of the live tree say
//! which checkpoint of the index wrote them, and the log what came behind it.
//!
//! | what is found | what it proves | where the salvage starts |
//! |---|---|---|
//! | a node of the highest level of a checkpoint, and all nodes below it | the live tree of that checkpoint, whole | there, newest first |
//! | the same, but nodes of older checkpoints have items behind its last | that something was removed, or that this is part of a tree | there, unless an older one and an unbroken log lead there too |
//! | no such node, or only branches of a tree | | an empty tree |
//! | intact partials of the log behind it | what was done since | they are rolled forward, as behind a gap |
//! | payload maps, and content that fits them, where the log has a gap | what a file had, now or before | [`pieces`] |
//!
//! Invariants
//! 1. Nothing is written.
//! 2. Content whose checksum does not fit on any device is not taken: the space may have been used again since.
//! 3. What a salvage that was cut has written is not looked at: its epoch is
//!    higher than that of any root. `held` has all else that was used, so it is found again.

use super::base::{Base, CACHE_BYTES, pass_gap, roll_forward, take_privileges, tell_gap};
use super::forgotten::Forgotten;
use super::losses::{About, LossKind, Losses, MendKind};
use super::mender::{FIRST, LAST};
use super::owners::is_intact;
use super::pieces;
use super::regain::each;
use super::unknown::Unknown;
use crate::breaks::{Break, broken};
use crate::index::{LostRange, NodeCache, Tree};
use crate::log::chain::Chain;
use crate::per_segment::PerSegment;
use crate::recovery::{Island, Walk, chain_of, read_root};
use crate::segments::Segments;
use crate::state::{KnownPast, Sheds, State};
use crate::storage::{Probe, Storage};
use crate::{Error, Result};
use nenrin_format::items::{EXTENT_LOST, EXTENT_UNWRITTEN, Extent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{self, Entries, NodeHeader, NodePtr, TreeId};
use nenrin_format::partial::{Header, PartialKind};
use nenrin_format::records::Record;
use nenrin_format::root::TreeRoot;
use nenrin_format::superblock::Superblock;
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, BLOCK_BYTES, COUNTER_MAX, Cno, Epoch, Ino, NODE_BLOCKS, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Checkpoints of the index that are tried, newest first.
const TRIED_MAX: usize = 16;

/// An intact node of the live tree.
struct Node {
    /// The checkpoint that wrote it: epoch and generation.
    when: (Epoch, u64),
    level: u8,
    addr: Addr,
    crc: u32,
    first: Key,
    /// The chain's last partial in that checkpoint, and the checkpoint number open then.
    seq: Seq,
    open_cno: Cno,
}

/// A tree to start from.
struct Start {
    live: Tree,
    seq: Seq,
    epoch: Epoch,
    open_cno: Cno,
    lost: Vec<LostRange>,
}

/// The state to start from; `None` when nothing at all was found.
pub(super) fn find(
    storage: &Arc<Storage>,
    found: &Probe,
    newest: &Superblock,
    mut held: PerSegment<bool>,
    mut forgotten: Forgotten,
    losses: &mut Losses,
) -> Result<Option<Base>> {
    let cache = Arc::new(NodeCache::new(storage.clone(), CACHE_BYTES));
    let epoch = newest_epoch(found, newest);
    let nodes = scan(storage, newest, epoch)?;
    for n in &nodes {
        hold(&mut held, n.addr);
    }
    let start = choose(storage, &cache, &nodes, newest, losses)?;
    let islands = Walk::new(storage, &chain_of(newest)).of_any_mount().from(start.seq, start.epoch)?;
    losses.add(
        LossKind::CheckpointsLost,
        About::Volume,
        "no root leads to a whole index: all checkpoints and snapshots of before are gone",
    );
    let mut base = base(storage, newest, epoch, cache, start, held);
    // Numbers that were seen are not given again.
    let highest = nodes.iter().map(|n| n.first.ino).filter(|ino| *ino < COUNTER_MAX).max().unwrap_or(0);
    base.state.next_ino = base.state.next_ino.max(Ino(highest).next());
    let is_gapless = replay(&mut base, &islands, losses)?;
    islands.iter().try_for_each(|island| forgotten.learn_log(island))?;
    forgotten.stays_so(&mut base.state, newest.written_at, losses)?;
    base.state.retention = retention(storage, found, newest, &islands, losses)?;
    verify(&mut base, losses)?;
    let pieces = if is_gapless { 0 } else { pieces::find(&mut base, epoch, &told(&islands), losses)? };
    Ok((!nodes.is_empty() || !islands.is_empty() || pieces > 0).then_some(base))
}

/// Up to which part of the log the newest whole tree has all that was done, if one is found of which nothing is doubtful.
pub(super) fn whole_tree(storage: &Arc<Storage>, found: &Probe, newest: &Superblock) -> Result<Option<Seq>> {
    let cache = Arc::new(NodeCache::new(storage.clone(), CACHE_BYTES));
    let nodes = scan(storage, newest, newest_epoch(found, newest))?;
    let start = choose(storage, &cache, &nodes, newest, &mut Losses::default())?;
    Ok(start.lost.is_empty().then_some(start.seq))
}

/// What a salvage that was cut has written is of a later one.
fn newest_epoch(found: &Probe, newest: &Superblock) -> Epoch {
    found.roots.iter().map(|r| r.epoch).max().unwrap_or(newest.epoch)
}

/// The rule of the newest root that can be read, or what the log behind it says.
fn retention(
    storage: &Storage,
    found: &Probe,
    newest: &Superblock,
    islands: &[Island],
    losses: &mut Losses,
) -> Result<Vec<u8>> {
    let mut roots = found.roots.iter().filter(|r| r.uuid == newest.uuid);
    let of_root = roots.find_map(|r| read_root(storage, r).ok().map(|root| (r.chain_seq, root.retention)));
    let (known, mut rule) = of_root.map_or((Seq(0), None), |(seq, rule)| (seq, Some(rule)));
    for found in islands.iter().flatten().filter(|f| f.header.seq > known) {
        each(std::slice::from_ref(found), &mut |record| {
            if let Record::Retention { value } = record {
                rule = Some(value.to_vec());
            }
            Ok(())
        })?;
    }
    Ok(rule.unwrap_or_else(|| {
        let text = "how long checkpoints are kept is not known any more: by the usual rule from now on";
        losses.add(LossKind::CheckpointsLost, About::Volume, text);
        Vec::new()
    }))
}

pub(super) fn hold(held: &mut PerSegment<bool>, addr: Addr) {
    held.change(addr.segment(), |held| *held = true);
}

/// All intact nodes of the live tree, of checkpoints up to this epoch.
fn scan(storage: &Storage, newest: &Superblock, epoch: Epoch) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    Walk::new(storage, &chain_of(newest)).each_partial(&mut |header| {
        let possible = header.seq.0 < COUNTER_MAX && header.open_cno.0 < COUNTER_MAX;
        if header.kind == PartialKind::Index && header.epoch <= epoch && possible {
            nodes_of(storage, header, &mut nodes)?;
        }
        Ok(())
    })?;
    nodes.sort_by_key(|n: &Node| std::cmp::Reverse((n.when, n.level)));
    Ok(nodes)
}

fn nodes_of(storage: &Storage, header: &Header, nodes: &mut Vec<Node>) -> Result<()> {
    for n in 0..header.payload_blocks / NODE_BLOCKS {
        let addr = Addr(header.payload_addr().0 + u64::from(n * NODE_BLOCKS));
        let bytes = match storage.read_right(addr, NODE_BLOCKS, node::verify) {
            Ok(bytes) => bytes,
            Err(Error::Device(_) | Error::Damaged(..)) => continue,
            Err(e) => return Err(e),
        };
        let Ok((_, entries)) = node::decode(TreeId::LIVE, &bytes) else { continue };
        let (Some(crc), Ok((head, _))) = (node::stored_crc(&bytes), NodeHeader::read_prefix(&bytes)) else { continue };
        let first = match &entries {
            Entries::Leaf(v) => v.first().map(|(k, _)| *k),
            Entries::Inner(v) => v.first().map(|(k, _)| *k),
        };
        let Some(first) = first else { continue };
        nodes.push(Node {
            when: (header.epoch, head.generation.get()),
            level: head.level,
            addr,
            crc,
            first,
            seq: header.seq,
            open_cno: header.open_cno,
        });
    }
    Ok(())
}

/// The newest whole tree.
fn choose(
    storage: &Arc<Storage>,
    cache: &Arc<NodeCache>,
    nodes: &[Node],
    newest: &Superblock,
    losses: &mut Losses,
) -> Result<Start> {
    let chain = &chain_of(newest);
    let mut tried = BTreeSet::new();
    let mut second: Option<Start> = None;
    for (i, top) in nodes.iter().enumerate() {
        // The first of each checkpoint is of its highest level.
        if top.when.1 > newest.generation.0 || !tried.insert(top.when) {
            continue;
        }
        if tried.len() > TRIED_MAX {
            break;
        }
        let Some(live) = whole(storage, cache, nodes, top) else { continue };
        let last = live.prev(cache, &LAST)?.map_or(FIRST, |(k, _)| k);
        let older = nodes.get(i..).unwrap_or_default();
        let is_outside = |n: &&Node| n.first < top.first || n.level == 0 && n.first > last;
        let outside = older.iter().any(|n| is_outside(&n));
        let mut start = Start { live, seq: top.seq, epoch: top.when.0, open_cno: top.open_cno, lost: Vec::new() };
        if !outside {
            // Older, and not doubtful: as good only if the log leads from it to the newer one.
            if let Some(newer) = second.take_if(|s| s.seq > start.seq) {
                if !leads(storage, chain, &start, newer.seq)? {
                    losses.mended(MendKind::IndexFound, 1);
                    return Ok(newer);
                }
            }
            losses.mended(MendKind::IndexFound, 1);
            return Ok(start);
        }
        if second.is_none() && (broken(Break::FragmentIsWhole) || !is_fragment(nodes, &is_outside)) {
            start.lost.push(LostRange { low: None, high: Some(top.first), level: 0 });
            start.lost.push(LostRange { low: Some(last), high: None, level: 0 });
            second = Some(start);
        }
    }
    let nothing = Start {
        live: Tree::empty(TreeId::LIVE),
        seq: Seq(0),
        epoch: Epoch(0),
        open_cno: Cno(1),
        lost: vec![LostRange { low: None, high: None, level: 0 }],
    };
    // The whole log is worth more than a doubtful tree.
    match second {
        Some(newer) if !leads(storage, chain, &nothing, newer.seq)? => {
            losses.mended(MendKind::IndexFound, 1);
            Ok(newer)
        }
        _ => Ok(nothing),
    }
}

/// Whether more leaves are outside of a tree than in it, so that it is but a branch of one.
fn is_fragment(nodes: &[Node], is_outside: &dyn Fn(&&Node) -> bool) -> bool {
    let leaves = nodes.iter().filter(|n| n.level == 0);
    let (outside, inside): (Vec<&Node>, Vec<&Node>) = leaves.partition(|n| is_outside(n));
    let distinct = |all: &[&Node]| all.iter().map(|n| n.first).collect::<BTreeSet<Key>>().len();
    distinct(&outside) >= distinct(&inside)
}

/// Whether nothing of the log is missing from a tree to this sequence.
fn leads(storage: &Storage, chain: &Chain, start: &Start, seq: Seq) -> Result<bool> {
    let mut reached = start.seq;
    for island in Walk::new(storage, chain).of_any_mount().from(start.seq, start.epoch)? {
        let (Some(first), Some(last)) = (island.first(), island.last()) else { continue };
        if first.header.seq != reached.next() {
            break;
        }
        reached = last.header.seq;
    }
    Ok(reached >= seq)
}

/// The tree below a node, if all of it is there.
fn whole(storage: &Arc<Storage>, cache: &Arc<NodeCache>, nodes: &[Node], top: &Node) -> Option<Tree> {
    let twin = nodes.iter().find(|n| n.crc == top.crc && n.when == top.when && n.addr.segment() != top.addr.segment());
    let ptr = NodePtr { copies: [top.addr, twin.map_or(top.addr, |n| n.addr)], crc: top.crc };
    let root = TreeRoot {
        tree: TreeId::LIVE,
        level: top.level,
        ptr: Some(ptr),
        items: 0,
        nodes: 0,
        deaths: (Cno(0), Cno(0)),
        sealed: false,
    };
    let mut live = Tree::open(&root);
    let survey = live.survey(cache, &mut |ptr| storage.right_copies(ptr));
    if !survey.lost.is_empty() || live.prune(cache, &survey).is_err() {
        return None;
    }
    Some(live)
}

fn base(
    storage: &Arc<Storage>,
    newest: &Superblock,
    epoch: Epoch,
    cache: Arc<NodeCache>,
    start: Start,
    held: PerSegment<bool>,
) -> Base {
    let known = start.seq > Seq(0);
    let state = State {
        cache,
        live: start.live,
        space: Tree::empty(TreeId::SPACE),
        history: Vec::new(),
        segments: Segments::new(&storage.numbers(), storage.segment_blocks, newest.generation.next()),
        kept: BTreeMap::new(),
        snapshots: BTreeSet::new(),
        landmarks: crate::state::Landmarks::default(),
        hash_key: newest.hash_key,
        next_ino: Ino::FIRST,
        open_cno: start.open_cno,
        last_cno: Cno(start.open_cno.0.saturating_sub(1)),
        next_tree: TreeId::HISTORY.0,
        inodes: 0,
        live_blocks: 0,
        history_blocks: 0,
        named_blocks: 0,
        promised_blocks: 0,
        past: KnownPast::default(),
        forgetting: BTreeSet::new(),
        shed: Sheds::default(),
        applied: 0,
        uncut: true,
        owners_asked: std::cell::Cell::new(0),
        shares: std::cell::Cell::default(),
        retention: Vec::new(),
    };
    let chain = Chain {
        uuid: newest.uuid,
        epoch,
        mount_id: newest.mount_id,
        segment: newest.chain.0,
        block: 0,
        filled: 0,
        next: None,
        seq: start.seq,
        last_addr: Addr::NONE,
        last_crc: 0,
        begins_epoch: true,
    };
    Base {
        storage: storage.clone(),
        superblock: newest.clone(),
        state,
        chain,
        lost: start.lost,
        space_lost: false,
        sheds_lost: None,
        past_lost: None,
        held,
        segment_items: BTreeMap::new(),
        gap_from: (!known).then_some(Ino::FIRST),
        unproven: BTreeSet::new(),
        holes: BTreeSet::new(),
        to_equalize: Vec::new(),
        has_root: false,
    }
}

/// Takes in what the log says behind the tree; whether nothing of it is missing, as far as it is known.
fn replay(base: &mut Base, islands: &[Island], losses: &mut Losses) -> Result<bool> {
    // A whole log, from the first, is as good as a tree.
    let mut is_gapless = base.chain.seq > Seq(0) || !islands.is_empty();
    let state = &mut base.state;
    if let Some((last, _)) = state.live.prev(&state.cache, &LAST)? {
        state.next_ino = state.next_ino.max(Ino(last.ino).next());
    }
    losses.mended(MendKind::SharingRestored, state.mend_backrefs()?);
    let first_made = base.gap_from.unwrap_or(state.next_ino);
    let mut before = None;
    let mut unknown = Unknown::default();
    for island in islands {
        let Some(first) = island.first().map(|f| &f.header) else { continue };
        for f in island {
            hold(&mut base.held, f.header.addr);
            for e in super::base::named(f) {
                hold(&mut base.held, e.addr);
            }
        }
        let mut privileged = BTreeSet::new();
        if first.seq > base.chain.seq.next() {
            base.gap_from.get_or_insert(first_made);
            is_gapless = false;
            tell_gap(&base.chain, before, Some(first), losses);
            privileged = pass_gap(state, first_made, island, &mut base.unproven, &mut unknown, losses)?;
        }
        unknown.learn(island)?;
        directories(state, island, losses)?;
        roll_forward(state, &mut base.chain, island, None, losses)?;
        take_privileges(state, &privileged, losses)?;
        before = island.last().map(|f| f.header.written_at);
    }
    base.holes = unknown.holes(state)?;
    Ok(is_gapless)
}

/// Inodes that intact parts of the log are about.
fn told(islands: &[Island]) -> BTreeSet<Ino> {
    let mut out = BTreeSet::new();
    for f in islands.iter().flatten() {
        let mut r = Reader::new(&f.records);
        while let (false, Ok(record)) = (r.is_empty(), Record::decode(&mut r)) {
            match record {
                Record::Create { ino, .. }
                | Record::Release { ino }
                | Record::ReapStep { ino, .. }
                | Record::Link { ino, .. } => drop(out.insert(ino)),
                Record::Forget { inos, .. } => out.extend(inos),
                _ => {}
            }
        }
    }
    out
}

/// Directories in which something was made, and of which nothing else is known.
fn directories(state: &mut State, island: &Island, losses: &mut Losses) -> Result<()> {
    let mut made = BTreeSet::new();
    for f in island {
        let mut r = Reader::new(&f.records);
        while let (false, Ok(record)) = (r.is_empty(), Record::decode(&mut r)) {
            let parent = match record {
                Record::Create { parent, ino, .. } => {
                    made.insert(ino);
                    parent
                }
                Record::Link { parent, .. } => parent,
                Record::Rename { to, .. } => to,
                _ => continue,
            };
            let possible = parent.0 > 0 && parent.0 < COUNTER_MAX && !made.contains(&parent);
            if !possible || state.inode(parent)?.is_some() {
                continue;
            }
            let mode = if parent == Ino::ROOT { 0o040_755 } else { 0o040_700 };
            let inode = Inode { mode, nlink: 2, parent: Ino::ROOT, ..Inode::default() };
            state.put_inode(parent, inode)?;
            state.next_ino = state.next_ino.max(parent.next());
            let text =
                format!("only what was made in the directory is known; it belongs to root, mode {:o}", mode & 0o777);
            losses.add(LossKind::AttributesLost, About::Inode(parent), text);
        }
    }
    Ok(())
}

/// Content that is not what its checksum says, because it is damaged or its
/// space was used again, becomes a range that is lost.
fn verify(base: &mut Base, losses: &mut Losses) -> Result<()> {
    let Base { state, storage, held, .. } = base;
    let mut wrong: Vec<(Key, Extent)> = Vec::new();
    state.live.walk(&state.cache, &mut |key, value| {
        let Some(e) = Extent::decode(value).ok().filter(|e| key.kind == Kind::Extent && !e.is_unwritten()) else {
            return Ok(());
        };
        if is_intact(storage, &e)? {
            hold(held, e.addr);
        } else {
            wrong.push((*key, e));
        }
        Ok(())
    })?;
    for (key, e) in wrong {
        let range = (key.off * BLOCK_BYTES as u64, (key.off + u64::from(e.blocks)) * BLOCK_BYTES as u64);
        let about = About::Inode(Ino(key.ino));
        losses.add_range(LossKind::RangeLost, about, Some(range), "its space holds something else");
        state.live.insert(&state.cache, key, lost_extent(e.birth, e.blocks).encode().into())?;
    }
    Ok(())
}

/// Blocks of which nothing is known: reading them is an error.
pub(super) fn lost_extent(birth: Cno, blocks: u32) -> Extent {
    let flags = EXTENT_UNWRITTEN | EXTENT_LOST;
    Extent { addr: Addr::NONE, flags, granule_shift: 0, lead: 0, tail: 0, crcs: Vec::new(), birth, blocks }
}
