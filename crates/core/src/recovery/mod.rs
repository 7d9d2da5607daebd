//! Opening a volume: the newest usable root, then roll-forward over the chain.
//!
//! | what is found behind the last accepted partial | verdict |
//! |---|---|
//! | the next partial, linked and intact, also behind units that were left out | accept |
//! | a partial above the durable mark whose payload or data is not there | the log ends before its logical segment |
//! | anything else, and no later header proves that more was durable | the log ends |
//! | anything else, and a later header, wherever it lies behind, proves that more was durable | damage: read-only |
//! | a place where the next may be, that no device gives, and the volume was not closed | damage: read-only |
//! | a logical segment without its end | it does not count |
//! | a record that cannot be applied: the index cannot be read where it belongs, or contradicts it | the root before; behind both, damage: read-only, as of the logical segment before |
//! | no root can be used, since leaves of the space tree are lost, or items in it mean nothing | damage: read-only, without what they held (`spaceless`) |
//! | no segment is free to go on in | no damage: there is no room to mount it for writing |
//!
//! Invariants
//! 1. Recovery writes nothing; the first write of a mount is an index
//!    checkpoint with a new epoch.
//! 2. It believes checksums, links and addresses only, never order on the device.
//! 3. Of a logical segment all records are applied, or none.

#[cfg(test)]
mod bad_items_tests;
mod behind;
mod durable;
mod proof;
mod resumed;
mod spaceless;
mod walk;

use crate::breaks::{Break, broken};
use crate::devices::Assembly;
use crate::fs::Opened;
use crate::index::{NodeCache, Tree};
use crate::log::chain::Chain;
use crate::log::index::IndexLog;
use crate::segments::{KIND_INDEX, SegmentUse, Segments};
use crate::state::{HistoryTree, KnownPast, Landmarks, Sheds, State, bad_item, checkpoint_key, segment_key};
use crate::storage::{Probe, Storage, storage_of};
use crate::{Clock, Error, Fs, MountOptions, Result, heartbeat};
use nenrin_device::BlockDevice;
use nenrin_format::features::Access;
use nenrin_format::items::{Checkpoint, Segment};
use nenrin_format::node::TreeId;
use nenrin_format::partial::{Header, LOGICAL_END, PartialKind, summary_blocks};
use nenrin_format::records::Record;
use nenrin_format::root::{Root, TreeRoot};
use nenrin_format::superblock::Superblock;
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, BLOCK_BYTES, COUNTER_MAX, Cno, Epoch, Generation, Ino, SegmentNo, Seq};
use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

pub(crate) use behind::Island;
pub(crate) use durable::walk_behind;
use spaceless::{Bad, Spaceless};
pub use walk::Verdict;
pub(crate) use walk::{Found, Outcome, Unproven, Walk, unproven_of};

/// What opening a volume found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The volume was unmounted cleanly.
    pub clean: bool,
    /// Partial segments rolled forward.
    pub partials: u64,
    /// Records in them.
    pub records: u64,
    /// Partial segments found intact that do not count, because what is before them is missing.
    pub dropped: u64,
    /// Bytes of the log read.
    pub bytes_read: u64,
    /// Requests they were read with.
    pub requests: u64,
    /// Highest sequence that is proven to have been durable.
    pub durable_seq: Seq,
    /// The volume uses features that this program can only read: it is read-only.
    pub only_readable: bool,
    /// Damage in the log: the volume is read-only.
    pub damage: Option<String>,
    /// Rows of the decision table that applied.
    pub verdicts: Vec<Verdict>,
    /// Things to tell the user, one line each: damaged slots, an older root.
    pub notes: Vec<String>,
    /// Of these, those that are true as long as that member is not active.
    pub about_devices: Vec<(u16, String)>,
    /// Of these, those about damaged superblock slots: true until roots have been written to all slots since.
    pub about_slots: Vec<String>,
    /// The newest root that was found.
    pub generation: Generation,
}

impl Fs {
    /// Opens a volume: recovers, and unless read-only makes it ready for writing.
    ///
    /// # Errors
    /// [`Error::Open`] with what is wrong, where, and what to do.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>, clock: Arc<dyn Clock>, options: MountOptions) -> Result<Arc<Self>> {
        Self::open_and(devices, clock, options, &mut |_| {})
    }

    /// The same. `begins` gets the volume before its first write: to have it beat ([`Fs::beat`]) while it is made ready, which may take its
    /// time, and nothing else.
    ///
    /// # Errors
    /// As [`Fs::open`].
    pub fn open_and(
        devices: Vec<Arc<dyn BlockDevice>>,
        clock: Arc<dyn Clock>,
        mut options: MountOptions,
        begins: &mut dyn FnMut(&Arc<Self>),
    ) -> Result<Arc<Self>> {
        let (assembly, claim) = heartbeat::take(&devices, &clock, &options)?;
        let mut opened = recover_from_all(&assembly, &options)?;
        let unproven = std::mem::take(&mut opened.unproven);
        if broken(Break::NumbersAnew) {
            give_numbers_anew(&mut opened.state)?;
        }
        options.read_only |= opened.report.damage.is_some() || opened.report.only_readable || options.no_recovery;
        let read_only = options.read_only;
        let now = clock.wall();
        let mut fs = Self::assemble(opened, clock, options);
        fs.hear(assembly.probes.iter().map(|(_, _, probe)| &probe.heartbeat[..]));
        match claim {
            Some(claim) if read_only => claim.end(&devices, now)?,
            Some(claim) => fs.show(claim),
            None => {}
        }
        let fs = Arc::new(fs);
        if !read_only {
            begins(&fs);
            fs.still_owns()?;
            fs.before_writing(&unproven)?;
            fs.index_checkpoint(false)?;
            fs.free_what_was_open()?;
            fs.release_orphans()?;
        }
        Ok(fs)
    }
}

/// [`Break::NumbersAnew`].
fn give_numbers_anew(state: &mut State) -> Result<()> {
    while state.next_ino > Ino::FIRST && state.inode(Ino(state.next_ino.0 - 1))?.is_none() {
        state.next_ino.0 -= 1;
    }
    Ok(())
}

/// Reads a volume's state without writing anything.
#[cfg(test)]
pub(crate) fn recover(devices: &[Arc<dyn BlockDevice>], options: &MountOptions) -> Result<Opened> {
    recover_from_all(&crate::devices::assemble(devices, options.degraded)?, options)
}

fn recover_from_all(assembly: &Assembly, options: &MountOptions) -> Result<Opened> {
    let found = &assembly.found;
    let mut report = RecoveryReport::default();
    report.notes.extend(assembly.notes.iter().chain(&assembly.asides).cloned());
    report.about_devices.clone_from(&assembly.about);
    let mut why = None;
    found.newest()?;
    for (_, name, probe) in &assembly.probes {
        note_slots(probe, found, name.as_deref(), &mut report);
    }
    report.notes.extend(report.about_slots.iter().cloned());
    report.generation = found.roots.first().map_or(Generation(0), |r| r.generation);
    // All that was committed, from either root; only then a part of it.
    for (rank, root) in found.roots.iter().take(2).enumerate() {
        let opened = roll_forward(assembly, root, options, report.clone(), Reach::All);
        match opened.and_then(|opened| has_root_directory(opened, Reach::All)) {
            Ok(opened) => return went_back(found, rank, opened, options),
            Err(e @ Error::Open(_)) => return Err(e),
            // All of the log is there, and can be read: that is no damage. What an older root leaves free this one may use.
            Err(Error::NoSpace) if rank == 0 && !broken(Break::FullIsDamage) => return Err(Error::NoSpace),
            Err(Error::NoSpace) if why.is_some() && !broken(Break::FullIsDamage) => {
                return without_room(assembly, rank, options, report, why);
            }
            Err(e) => why = why.or(Some(e)),
        }
    }
    for reach in [Reach::Readable, Reach::WithoutSpace] {
        if options.no_recovery && reach == Reach::Readable || broken(Break::SpaceEnds) && reach == Reach::WithoutSpace {
            continue;
        }
        if let Some((rank, opened)) = furthest(assembly, options, &report, reach)? {
            return went_back(found, rank, opened, options);
        }
    }
    let reason = why.map_or_else(|| "no root".into(), |e| e.to_string());
    Err(Error::Open(format!(
        "the index cannot be read from any root: {reason}; nenrin check says what is damaged, and nenrin check --repair -n \
         what a repair would bring back"
    )))
}

/// The newest root cannot be used, and behind this one nothing is free to go on in: all is shown, and nothing written.
fn without_room(
    assembly: &Assembly,
    rank: usize,
    options: &MountOptions,
    report: RecoveryReport,
    why: Option<Error>,
) -> Result<Opened> {
    let found = &assembly.found;
    let root = found.roots.get(rank).ok_or(Error::NoSpace)?;
    let options = MountOptions { read_only: true, ..options.clone() };
    let mut opened = went_back(found, rank, roll_forward(assembly, root, &options, report, Reach::All)?, &options)?;
    let why = why.map_or_else(String::new, |e| format!(" ({e})"));
    let text = format!(
        "the newest root cannot be used{why}, and no segment is free to go on in behind the one before; nenrin check \
         --repair -n tells what a repair would do"
    );
    let report = &mut opened.report;
    report.damage = Some(report.damage.take().map_or_else(|| text.clone(), |also| format!("{text}; and {also}")));
    report.verdicts.push(Verdict::Damage);
    Ok(opened)
}

/// Of the roots whose log cannot be applied to its end, the one from which it leads further; the newest of two alike.
fn furthest(
    assembly: &Assembly,
    options: &MountOptions,
    report: &RecoveryReport,
    reach: Reach,
) -> Result<Option<(usize, Opened)>> {
    let roll = |rank: usize| match assembly.found.roots.get(rank) {
        None => Ok(None),
        Some(root) => match roll_forward(assembly, root, options, report.clone(), reach) {
            Ok(opened) => has_root_directory(opened, reach).map(Some),
            Err(e @ Error::Open(_)) => Err(e),
            Err(_) => Ok(None),
        },
    };
    // One state is in memory at a time.
    let older = roll(1)?.map(|opened| opened.chain.seq);
    let newest = roll(0)?;
    Ok(match (newest, older) {
        (Some(opened), older) if older.is_none_or(|seq| seq <= opened.chain.seq) => Some((0, opened)),
        (_, None) => None,
        (newest, Some(_)) => {
            drop(newest);
            roll(1)?.map(|opened| (1, opened))
        }
    })
}

/// Without the root directory nothing is shown, and a mount that writes would replace the roots from which a repair brings it back.
fn has_root_directory(mut opened: Opened, reach: Reach) -> Result<Opened> {
    match opened.state.inode(Ino::ROOT) {
        Err(why @ (Error::Damaged(..) | Error::Device(_))) if !broken(Break::RootUnread) => {
            if reach == Reach::All {
                return Err(why);
            }
            let text = format!(
                "the root directory cannot be read: {why}; nenrin check --repair -n tells what a repair would do"
            );
            let report = &mut opened.report;
            report.damage =
                Some(report.damage.take().map_or_else(|| text.clone(), |also| format!("{text}; and {also}")));
            report.verdicts.push(Verdict::Damage);
            Ok(opened)
        }
        _ => Ok(opened),
    }
}

/// How much of the log has to be applied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// What counts.
    All,
    /// What comes before a record that cannot be: the rest is damage, for a repair to bring back.
    Readable,
    /// The same, without the leaves of the space tree that cannot be read.
    WithoutSpace,
}

/// Where it is not the newest root that was used: that could not be read, or what its log changes. The log behind the one
/// before leads over it, unless that is damaged, too: then what came later is not shown.
fn went_back(found: &Probe, rank: usize, mut opened: Opened, options: &MountOptions) -> Result<Opened> {
    let (Some(newest), Some(used)) = (found.roots.first().filter(|_| rank > 0), found.roots.get(rank)) else {
        return Ok(opened);
    };
    let report = &mut opened.report;
    report.notes.push(format!(
        "the newest root (generation {}) cannot be read, or the log behind it not applied; went on from generation {} and \
         the log behind it",
        newest.generation, used.generation
    ));
    if options.no_recovery || report.damage.is_some() {
        return Ok(opened);
    }
    let reached = opened.chain.seq;
    // The slot is intact and says where the log went on; that may be further than the log before it still leads.
    let behind = Walk::new(&opened.storage, &chain_of(newest)).run()?;
    let proven = newest.chain_seq.max(behind.proves());
    // Where the log did not get beyond the lost root, what is wrong behind that was not met.
    let unmet = behind.damage.filter(|_| reached <= newest.chain_seq);
    if (reached < proven || unmet.is_some()) && !broken(Break::WentBackUnseen) {
        let unmet = unmet.map_or_else(String::new, |why| format!(" ({why})"));
        report.damage = Some(format!(
            "the newest root (generation {}) cannot be used, and the log behind generation {} ends at partial {reached} \
             of {proven}: what came later is not shown{unmet}",
            newest.generation, used.generation
        ));
        report.verdicts.push(Verdict::Damage);
    }
    Ok(opened)
}

/// Where the log goes on behind a root.
pub(crate) fn chain_of(superblock: &Superblock) -> Chain {
    Chain {
        uuid: superblock.uuid,
        epoch: superblock.epoch,
        mount_id: superblock.mount_id,
        segment: superblock.chain.0,
        block: superblock.chain.1,
        filled: superblock.chain.1,
        next: superblock.chain_next,
        seq: superblock.chain_seq,
        last_addr: superblock.chain_last,
        last_crc: superblock.chain_crc,
        begins_epoch: false,
    }
}

/// Slots of a device that are not as they should be; its name is told where there are several.
fn note_slots(probe: &Probe, found: &Probe, name: Option<&str>, report: &mut RecoveryReport) {
    use crate::storage::SlotState;
    let of = name.map_or_else(String::new, |n| format!(" of {n}"));
    let newest = found.roots.first().map_or(0, |r| r.generation.0);
    let wrong = |state: &SlotState| match state {
        SlotState::Invalid(why) => Some(format!("damaged ({why})")),
        SlotState::Newer(_) => Some("of another volume".to_owned()),
        SlotState::Unreadable(why) => Some(format!("unreadable ({why})")),
        SlotState::Valid(_) | SlotState::Empty => None,
    };
    let (first, second) = probe.slots.split_at(probe.slots.len() / 2);
    for ((a, one), (b, other)) in first.iter().zip(second) {
        if let (Some(why), Some(_)) = (wrong(one), wrong(other)) {
            report.about_slots.push(format!(
                "both copies of a superblock slot, at blocks {a} and {b}{of}, are {why}; \
                 went on from generation {newest} and the log behind it"
            ));
        }
    }
    let twins = |block: u64| {
        let place = |slots: &[(u64, SlotState)]| slots.iter().position(|(b, _)| *b == block);
        let at = place(first).or_else(|| place(second)).unwrap_or(0);
        first.get(at).into_iter().chain(second.get(at)).all(|(_, s)| wrong(s).is_some())
    };
    for (block, state) in &probe.slots {
        match (wrong(state), state) {
            (Some(_), _) if twins(*block) => {}
            (Some(why), _) => {
                report.about_slots.push(format!("superblock slot at block {block}{of} is {why}; its twin is used"))
            }
            (None, SlotState::Empty) if newest > 8 => {
                report.about_slots.push(format!("superblock slot at block {block}{of} is empty"))
            }
            _ => {}
        }
    }
}

/// The state that a root and all of the log behind it lead to.
pub(crate) fn recover_from(
    assembly: &Assembly,
    superblock: &Superblock,
    options: &MountOptions,
    report: RecoveryReport,
) -> Result<Opened> {
    roll_forward(assembly, superblock, options, report, Reach::All)
}

fn roll_forward(
    assembly: &Assembly,
    superblock: &Superblock,
    options: &MountOptions,
    mut report: RecoveryReport,
    reach: Reach,
) -> Result<Opened> {
    let found = &assembly.found;
    if let Access::ReadOnly(bits) = found.access(superblock) {
        report.only_readable = true;
        if !options.read_only {
            report.notes.push(format!(
                "the volume uses features this program can only read (bits {bits:#x}), so it is read-only; \
                 update nenrin to write to it"
            ));
        }
    }
    let storage = storage_of(assembly);
    let root = read_root(&storage, superblock)?;
    let spaceless = match reach {
        Reach::WithoutSpace => Some(Spaceless::of(&storage, &root, options.cache_bytes)?),
        Reach::All | Reach::Readable => None,
    };
    let living = RefCell::new(Vec::new());
    let load = || {
        let (state, kept) = load_state(&storage, superblock, &root, options, spaceless.as_ref())?;
        living.replace(kept);
        Ok((state, chain_of(superblock)))
    };
    report.clean = superblock.clean;
    report.durable_seq = superblock.chain_seq;
    let as_is = options.no_recovery || options.read_only && broken(Break::ReadOnlyBehind);
    let ((mut state, mut chain), window_bytes, unproven) = if as_is {
        (load()?, 0, Vec::new())
    } else {
        let newest = found.roots.first().is_some_and(|r| r.generation == superblock.generation);
        let walk = Walk::new(&storage, &chain_of(superblock)).closed(newest && superblock.clean);
        let walk = walk.behind_state(&load).run()?;
        let unproven = walk.unproven();
        let (reached, bytes) = take_in(&load, walk, reach, &mut report)?;
        (reached, bytes, unproven)
    };
    if let Some(first) = living.take().first() {
        report.notes.push(format!(
            "inode {first} is listed to be forgotten, and it is there: it stays; nenrin check says what else is wrong"
        ));
    }
    if let Some(spaceless) = &spaceless {
        spaceless.settle(&mut state, options.no_recovery, &mut report);
    }
    let root_pins = pin_roots(&mut state.segments, found, superblock);
    // What both usable roots do without is free, as it was before the crash.
    let older = found.roots.get(1).map_or(superblock.generation, |r| r.generation);
    state.segments.promote(older);
    let mut writes = !(options.read_only || options.no_recovery || report.only_readable || report.damage.is_some());
    if writes && !can_count_on(&state, &chain, found) {
        report.damage = Some(
            "a counter of the volume is further than counting leads, so nothing is written to it; what is there can be \
             copied to another volume"
                .into(),
        );
        report.verdicts.push(Verdict::Damage);
        writes = false;
    }
    start_epoch(&mut state, &mut chain, &storage, found, writes)?;
    let index = match writes {
        true => behind_newest_root(&mut state.segments, &storage, superblock, &root, found),
        false => Default::default(),
    };
    Ok(Opened {
        storage,
        state,
        chain,
        superblock: with_newest_generation(superblock, found),
        report,
        window_bytes,
        root_pins,
        index,
        unproven,
    })
}

/// Whether a mount that writes can count on from here, and all that it writes be read again: half of what counters may reach is left for that.
fn can_count_on(state: &State, chain: &Chain, found: &Probe) -> bool {
    let trees = [&state.live, &state.space].into_iter().chain(state.history.iter().map(|t| &t.tree)).map(Tree::nodes);
    let of_roots = found.roots.iter().flat_map(|r| [r.generation.0, r.epoch.0, r.mounted_nanos >> 8]);
    let blocks = [state.live_blocks, state.history_blocks, state.named_blocks, state.promised_blocks];
    let others = [state.next_ino.0, state.inodes, state.open_cno.0, state.last_cno.0, chain.seq.0, chain.epoch.0];
    let mut all = blocks.into_iter().chain(others).chain(trees).chain(of_roots);
    all.all(|n| n <= COUNTER_MAX / 2) || broken(Break::CountersBelieved)
}

/// The superblock to go on from: never a generation that a slot already has.
pub(crate) fn with_newest_generation(superblock: &Superblock, found: &Probe) -> Superblock {
    let mut sb = superblock.clone();
    if let Some(newest) = found.roots.first() {
        sb.generation = sb.generation.max(newest.generation);
    }
    sb
}

/// The root partial, from either copy.
pub(crate) fn read_root(storage: &Storage, superblock: &Superblock) -> Result<Root> {
    let mut why = Error::Corrupt("no root partial".into());
    for copy in 0..superblock.root.len() {
        match read_root_copy(storage, superblock, copy) {
            Ok(root) => return Ok(root),
            Err(e) => why = e,
        }
    }
    Err(why)
}

/// One copy of the root partial.
pub(crate) fn read_root_copy(storage: &Storage, superblock: &Superblock, copy: usize) -> Result<Root> {
    let (addr, crc) = superblock.root[copy];
    let bytes = storage.read_summary(addr, Some(crc))?;
    let damaged = |e| Error::Damaged(addr, e);
    let summary = Header::decode(&bytes).map_err(damaged)?;
    if summary.crc != crc || summary.header.kind != PartialKind::Root || summary.header.uuid != superblock.uuid {
        return Err(Error::Damaged(addr, nenrin_format::Invalid::Checksum));
    }
    Root::decode(summary.records).map_err(damaged)
}

/// The state that a root has, and inodes that it lists to be forgotten although they are there.
fn load_state(
    storage: &Arc<Storage>,
    superblock: &Superblock,
    root: &Root,
    options: &MountOptions,
    spaceless: Option<&Spaceless>,
) -> Result<(State, Vec<Ino>)> {
    let cache = NodeCache::new(storage.clone(), options.cache_bytes).filling(options.node_bytes_max);
    let cache = Arc::new(cache);
    let tree =
        |id: TreeId| -> Tree { root.trees.iter().find(|t| t.tree == id).map_or_else(|| Tree::empty(id), Tree::open) };
    let history = |t: &TreeRoot| HistoryTree { tree: Tree::open(t), deaths: t.deaths, sealed: t.sealed };
    let mut state = State {
        live: tree(TreeId::LIVE),
        space: tree(TreeId::SPACE),
        history: root.trees.iter().filter(|t| crate::state::is_history(t.tree)).map(history).collect(),
        segments: Segments::new(&storage.numbers(), storage.segment_blocks, superblock.generation.next()),
        kept: BTreeMap::new(),
        snapshots: BTreeSet::new(),
        landmarks: Landmarks::default(),
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
        uncut: false,
        shares: std::cell::Cell::default(),
        owners_asked: std::cell::Cell::new(0),
        retention: root.retention.clone(),
        cache,
    };
    if let Some(spaceless) = spaceless {
        spaceless.prune(&mut state)?;
    }
    let bad = Bad::of(spaceless);
    load_segments(&mut state, &bad)?;
    for (segment, nodes) in &root.index_segments {
        state.segments.load_nodes(*segment, *nodes, superblock.generation);
    }
    load_checkpoints(&mut state, &bad)?;
    // What went into the root behind the newest checkpoint it does not say. Who closes a volume cuts one, where there is room for that.
    state.uncut = (!superblock.clean || state.changed_since_kept()) && !broken(Break::ReplayedUncut);
    state.load_past(root.past);
    state.load_landmarks(&mut |key, why| bad.note(key, bad_item(key, why)))?;
    let living = state.load_forgetting()?;
    state.load_shed(&mut |key, why| bad.note(key, bad_item(key, why)))?;
    match bad.first() {
        Some(e) => Err(e),
        None if spaceless.is_some_and(Spaceless::is_whole) => Err(Error::Corrupt("the space tree is whole".into())),
        None => Ok((state, living)),
    }
}

fn load_segments(state: &mut State, bad: &Bad<'_>) -> Result<()> {
    let mut items = Vec::new();
    state.space.scan(&state.cache, &segment_key(0), &segment_key(u64::MAX), &mut |k, v| {
        match Segment::decode(v) {
            Ok(item) => items.push((k.off, item)),
            Err(why) => bad.note(k, Error::Corrupt(format!("segment item {}: {why}", k.off))),
        }
        ControlFlow::Continue(())
    })?;
    for (no, item) in items {
        state.segments.load(SegmentNo(no), item);
    }
    Ok(())
}

fn load_checkpoints(state: &mut State, bad: &Bad<'_>) -> Result<()> {
    let mut kept = BTreeMap::new();
    let (from, to) = (checkpoint_key(Cno(0)), checkpoint_key(Cno(u64::MAX)));
    state.space.scan(&state.cache, &from, &to, &mut |k, v| {
        match Checkpoint::decode(v) {
            Ok(c) => drop(kept.insert(Cno(k.off), c)),
            Err(why) => bad.note(k, Error::Corrupt(format!("checkpoint item {}: {why}", k.off))),
        }
        ControlFlow::Continue(())
    })?;
    state.kept = kept;
    Ok(())
}

/// The state of a root, and where its log goes on.
type Loaded = (State, Chain);

/// What the walk accepted, upon the state that `load` gives, and the bytes of it.
fn take_in(
    load: &dyn Fn() -> Result<Loaded>,
    walk: Outcome,
    reach: Reach,
    report: &mut RecoveryReport,
) -> Result<(Loaded, u64)> {
    report.bytes_read = walk.bytes_read;
    report.requests = walk.requests;
    report.durable_seq = report.durable_seq.max(walk.durable_seq);
    report.dropped = walk.dropped;
    report.damage = walk.damage;
    report.verdicts = walk.verdicts;
    report.notes.extend(walk.passed.map(|first| {
        format!("from {first} on the device gives hardly anything behind the log; what is there was looked at here and there")
    }));
    if reach == Reach::All {
        let mut loaded = load()?;
        // Each partial is let go as soon as it is in the state.
        return match replay(&mut loaded, walk.accepted, report) {
            Ok(bytes) => Ok((loaded, bytes)),
            Err((_, why)) => Err(why),
        };
    }
    let mut loaded = load()?;
    let (at, why) = match replay(&mut loaded, &walk.accepted, report) {
        Ok(bytes) => return Ok((loaded, bytes)),
        Err(stopped) => stopped,
    };
    let before = &walk.accepted[..whole_before(&walk.accepted, at)];
    let first = walk.accepted.get(before.len()).map_or(Seq(0), |f| f.header.seq);
    let text = format!(
        "the log cannot be applied ({why}): what was committed from partial {first} on is not shown; a repair may \
         bring it back (nenrin check --repair -n tells)"
    );
    report.damage = Some(report.damage.take().map_or_else(|| text.clone(), |also| format!("{text}; and {also}")));
    report.verdicts.push(Verdict::Damage);
    if broken(Break::StoppedWithin) {
        return Ok((loaded, 0));
    }
    // Once more from the start: a part of what cannot be applied is in there.
    drop(loaded);
    let mut loaded = load()?;
    let bytes = replay(&mut loaded, before, report).map_err(|(_, why)| why)?;
    loaded.0.hide(walk.accepted[before.len()..].iter().flat_map(forgotten_by));
    Ok((loaded, bytes))
}

/// Inodes that a partial says are to be forgotten: the past does not show them, whether it is applied or not.
fn forgotten_by(found: &Found) -> Vec<Ino> {
    let (mut out, mut r) = (Vec::new(), Reader::new(&found.records));
    while let (false, Ok(record)) = (r.is_empty(), Record::decode(&mut r)) {
        if let Record::Forget { inos, .. } = record {
            out.extend(inos);
        }
    }
    out
}

/// How many partials end with the last logical segment that is whole before the partial `at`.
fn whole_before(accepted: &[Found], at: usize) -> usize {
    accepted[..at].iter().rposition(|f| f.header.flags & LOGICAL_END != 0).map_or(0, |end| end + 1)
}

/// Applies partials. Returns the bytes of them, or which one cannot be applied.
fn replay(
    (state, chain): &mut Loaded,
    partials: impl IntoIterator<Item: Borrow<Found>>,
    report: &mut RecoveryReport,
) -> std::result::Result<u64, (usize, Error)> {
    (report.partials, report.records) = (0, 0);
    let mut bytes = 0;
    for (at, found) in partials.into_iter().enumerate() {
        let found = found.borrow();
        report.records += apply(state, found).map_err(|why| (at, why))?;
        let header = &found.header;
        report.partials += 1;
        bytes += u64::from(header.total_blocks()) * BLOCK_BYTES as u64;
        state.segments.chain_written(header.addr.segment(), header.seq);
        chain.segment = header.addr.segment();
        chain.block = header.addr.block() + header.total_blocks();
        chain.next = header.next;
        chain.epoch = header.epoch;
        chain.mount_id = header.mount_id;
        chain.seq = header.seq;
        chain.last_addr = header.addr;
        chain.last_crc = found.crc;
    }
    Ok(bytes)
}

/// Applies the records of a partial; how many there are.
fn apply(state: &mut State, found: &Found) -> Result<u64> {
    let (header, mut r) = (&found.header, Reader::new(&found.records));
    let mut records = 0;
    while !r.is_empty() {
        let record = Record::decode(&mut r)
            .map_err(|why| Error::Corrupt(format!("a record of the partial at {}: {why}", header.addr)))?;
        // Where there is no room for a name the record contradicts the index.
        let text = |e| match e {
            Error::NoSpace => Error::Corrupt(format!("a name in the partial at {} has no place", header.addr)),
            e => e,
        };
        state.apply(&record, header.payload_addr()).map_err(text)?;
        records += 1;
    }
    Ok(records)
}

/// Where there are no segments to begin, the index goes on behind the newest root: nothing that a root needs lies there. A mount that was
/// cut off right behind its first root has taken the last of them, and that root has made none free.
fn behind_newest_root(
    segments: &mut Segments,
    storage: &Storage,
    used: &Superblock,
    root: &Root,
    found: &Probe,
) -> [IndexLog; 2] {
    let is_newest = found.roots.first().is_some_and(|r| r.generation == used.generation);
    let is_short = segments.free_count() < INDEX_SEGMENTS;
    // Of rows with parity what lies there is not filled up block by block.
    if !is_newest || !is_short || storage.devices().has_rows() || broken(Break::MountsBeginSegments) {
        return Default::default();
    }
    // Both copies are what the slot says, in segments of the index, and end within them.
    let blocks = used.root_blocks.max(summary_blocks(root.encode().len(), 0));
    let is_of_index = |(addr, _): &(Addr, u32)| {
        let of_index = |s: &SegmentUse| s.item.kind == KIND_INDEX && s.item.live_blocks == 0 && !s.chain_held;
        let fits = addr.block().checked_add(blocks).is_some_and(|end| end <= storage.segment_blocks);
        fits && segments.get(addr.segment()).is_some_and(of_index)
    };
    let [one, other] = used.root.map(|(addr, _)| addr.segment());
    let are_whole = (0..2).all(|copy| read_root_copy(storage, used, copy).is_ok());
    if one == other || !are_whole || !used.root.iter().all(is_of_index) {
        return Default::default();
    }
    used.root.map(|(addr, _)| {
        segments.reopen(addr.segment(), KIND_INDEX);
        IndexLog::behind(addr, blocks)
    })
}

/// Root partials of the two newest roots stay where they are.
pub(crate) fn pin_roots(segments: &mut Segments, found: &Probe, used: &Superblock) -> VecDeque<[SegmentNo; 2]> {
    let mut pins = VecDeque::new();
    let generation = found.roots.first().map_or(used.generation, |r| r.generation);
    for root in found.roots.iter().take(2) {
        let both = root.root.map(|(addr, _)| addr.segment());
        for segment in both {
            segments.protect(segment, generation);
            segments.pin(segment);
        }
        pins.push_front(both);
    }
    pins
}

/// Segments that the index checkpoint at the end of recovery begins: one for each copy.
const INDEX_SEGMENTS: u64 = 2;

/// The chain goes on in a fresh segment, with a new epoch.
pub(crate) fn start_epoch(
    state: &mut State,
    chain: &mut Chain,
    storage: &Storage,
    found: &Probe,
    writes: bool,
) -> Result<()> {
    let epochs = found.roots.iter().map(|r| r.epoch).chain([chain.epoch]);
    let newest: Epoch = epochs.max().unwrap_or(chain.epoch);
    state.segments.next_generation = found
        .roots
        .first()
        .map_or(state.segments.next_generation, |r| r.generation.next().max(state.segments.next_generation));
    if !writes {
        return Ok(());
    }
    chain.epoch = newest.next();
    let now = nenrin_format::Time(0);
    let next = match chain.next {
        Some(next) if state.segments.is_free(next) => next,
        _ => state.segments.allocate(crate::segments::KIND_CHAIN, now).ok_or(Error::NoSpace)?,
    };
    state.segments.reopen(next, crate::segments::KIND_CHAIN);
    chain.segment = next;
    (chain.block, chain.filled) = (0, 0);
    chain.begins_epoch = true;
    // The index checkpoint that ends recovery comes first; with it more is free.
    let spare = state.segments.free_count() > INDEX_SEGMENTS;
    chain.next = if spare { chain.allocate_next(storage, &mut state.segments, now) } else { None };
    Ok(())
}
