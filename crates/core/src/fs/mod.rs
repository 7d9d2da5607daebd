//! An open volume: the calls of the library over state, log and content.
//!
//! One lock guards everything in memory; no device write and no read of
//! content happens under it. Whoever finds no commit under way becomes its
//! leader; callers that come meanwhile join the next one.
//!
//! Invariants
//! 1. Every change of the state is made by applying a record that is appended
//!    to the open batch, in the same order ([`Inner::log`], [`Inner::seal`]).
//! 2. After a failed write or flush nothing more is acknowledged.
//! 3. A batch is acknowledged after all it names is on the device and, unless
//!    `barrier=` says otherwise, flushed. Data writes that another thread is
//!    waiting for count as under way until that thread has seen them complete
//!    ([`Inner::awaited`]).

mod account;
mod at_once;
mod atime;
mod attrs;
mod background;
mod beats;
mod behind;
mod beside;
mod bursts;
mod checkpoint;
mod cleaning;
mod commit;
mod copies;
mod copy;
mod crowded;
#[cfg(test)]
mod crowded_tests;
mod cutting;
mod damage;
#[cfg(test)]
mod extents_tests;
mod forget;
mod gone;
mod growth;
pub(crate) mod guard;
mod heavy;
mod history;
mod holding;
mod joining;
mod landmarks;
mod laying;
mod leading;
mod letting_go;
mod little;
mod merging;
mod namespace;
mod nodes;
#[cfg(test)]
mod past_tests;
mod promise;
mod read;
mod recency;
mod retain;
mod same;
mod scrub;
#[cfg(test)]
mod sharing_tests;
#[cfg(test)]
mod shed_tests;
mod space;
#[cfg(test)]
mod space_tests;
mod submit;
mod usage;
mod write;
mod zeroing;

use crate::breaks::{Break, broken};
use crate::content::{Content, File, SparePages};
use crate::log::chain::Chain;
use crate::log::data::DataStamp;
use crate::log::{DataLog, IndexLog};
use crate::numbers::NumberHasher;
use crate::recovery::{RecoveryReport, Unproven};
use crate::segments::{SegmentState, Segments};
use crate::state::State;
use crate::storage::Storage;
use crate::{Barrier, Clock, Error, MountOptions, Result};
use nenrin_device::{AlignedBuf, Ticket};
use nenrin_format::records::Record;
use nenrin_format::superblock::Superblock;
use nenrin_format::{Addr, Cno, Generation, Ino, SegmentNo, Seq};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, LockResult, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, mpsc};

pub use account::Freed;
pub use at_once::Joined;
pub(crate) use attrs::{CAPABILITY, grants_by};
use cleaning::Cleaner;
pub use cleaning::{Clean, CleanEstimate, CleanerStatus, OrderStatus, Rest};
pub use commit::Done;
pub use crowded::CheckpointsRest;
pub use damage::{DamagedRead, DamagedReads, LostWrites};
pub use forget::{ForgetName, ForgetPlan, ForgetStatus};
pub use gone::GoneName;
use guard::Guard;
pub use heavy::ShedInfo;
pub use history::{Change, NameState};
pub use joining::{JoinStatus, NewDevice};
pub use landmarks::LandmarkInfo;
pub use laying::LayingStatus;
pub use leading::COMMITS_AT_ONCE;
pub use scrub::{Scrub, ScrubFinding, ScrubReport};
pub use submit::{ReadTicket, SyncTicket, WriteTicket};
pub use write::{Accepted, Writer};

/// Counts of what was done since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Logical segments written to the chain.
    pub commits: u64,
    /// Chain partials written.
    pub chain_partials: u64,
    /// Blocks of chain partials.
    pub chain_blocks: u64,
    /// Blocks of content written to data partials.
    pub data_blocks: u64,
    /// Blocks left out so that long runs begin at units of stripes.
    pub left_out_blocks: u64,
    /// Partials of the log that stand elsewhere than they would have, because a device is slow.
    pub chain_steps_aside: u64,
    /// Index nodes written, each counted once although there are two copies.
    pub nodes: u64,
    /// Of these, nodes that have inner nodes below them.
    pub upper_nodes: u64,
    /// Flushes asked for.
    pub flushes: u64,
    /// Index checkpoints.
    pub index_checkpoints: u64,
    /// Checkpoints cut.
    pub checkpoints: u64,
    /// Unnamed checkpoints let go to make room.
    pub checkpoints_shed: u64,
    /// Times that history of a single inode was let go to make room.
    pub inodes_shed: u64,
    /// Items moved from one history tree to another.
    pub merged_items: u64,
    /// Blocks moved by cleaning.
    pub moved_blocks: u64,
    /// Those of them that were moved to put files in order.
    pub ordered_blocks: u64,
    /// Times that cleaning had to walk all trees, because summaries did not tell everything.
    pub tree_walks: u64,
    /// Times that a writer, or somebody who removed something, had to make room first.
    pub room_rounds: u64,
    /// Times that room was made in the background, before anybody had to wait for it.
    pub rooms_ahead: u64,
    /// Callers that shared a commit with another.
    pub shared_commits: u64,
    /// Commits that began while another was under way.
    pub overlapped_commits: u64,
    /// Of these, those that the device was done with before it was with one laid out earlier: who waits for them was told after that.
    pub commits_in_turn: u64,
    /// Times that a flush which proves nothing by itself waited for one that began before it.
    pub flushes_awaited: u64,
    /// Times that data which was held back beside syncs was written (see [`bursts`]).
    pub bursts: u64,
    /// Times that a writer left the device to those who sync before he made one.
    pub burst_rests: u64,
    /// Writes whose program was told when a rest or a burst was over, and for which no thread waited.
    pub writes_told_later: u64,
    /// Times that a write or a flush was waited for under the lock that every operation takes: none.
    pub device_waits_locked: u64,
    /// Times that a change of a file waited because a sync of the same file waits for its data, or much of it is cut off.
    pub held_by_own_sync: u64,
    /// Steps in which very many extents of a file were cut off.
    pub cut_steps: u64,
    /// Times that a writer committed what there is and waited for that, since there was no memory left for what he wrote; and that who
    /// changed names waited for an index checkpoint, since there was none left for index nodes.
    pub held_for_memory: u64,
    /// Blocks written anew because a copy on one device was wrong.
    pub mended_blocks: u64,
    /// Blocks copied to devices that were brought up to date.
    pub joined_blocks: u64,
    /// Devices that were.
    pub joined: u64,
    /// Devices added.
    pub devices_added: u64,
    /// Devices that are no members any more.
    pub devices_removed: u64,
    /// Segments that came to lie where devices were added, removed or resized.
    pub segments_laid: u64,
}

/// Something by inode. Its order is the same in every run, since equal calls give equal writes.
type ByIno<T> = HashMap<Ino, T, BuildHasherDefault<NumberHasher>>;

/// In place of a file: the summaries of data partials.
const SUMMARY: Ino = Ino(0);

/// Whether the device knows of a data write.
enum Request {
    Begun(Ticket),
    /// What is to be written is held back, and since when (monotonic): see [`bursts`].
    Held(Arc<AlignedBuf>, u64),
}

/// A data write.
struct DataWrite {
    /// Counts data writes.
    number: u64,
    ino: Ino,
    addr: Addr,
    blocks: u32,
    request: Request,
}

impl Request {
    /// Has the device do it, if that was not done before.
    fn begin(self, storage: &Storage, addr: Addr) -> Result<Ticket> {
        match self {
            Self::Begun(ticket) => Ok(ticket),
            Self::Held(..) if broken(Break::HeldForgotten) => Ok(Ticket::done(Ok(AlignedBuf::zeroed(0)))),
            Self::Held(data, _) => storage.submit_write(addr, data),
        }
    }
}

impl DataWrite {
    /// Whether the device has it, or has failed to.
    fn is_done(&self) -> bool {
        matches!(&self.request, Request::Begun(ticket) if ticket.is_done())
    }
}

/// What waits for the next commit.
#[derive(Default)]
struct Batch {
    records: Vec<Vec<u8>>,
    bytes: usize,
    files: BTreeSet<Ino>,
    /// Content that it owes and that its file has dropped since: see [`Inner::set_aside`].
    aside: Vec<(Ino, Content)>,
    waiters: Vec<Done>,
    /// Blocks that MOVE records in it name.
    moved_blocks: u64,
    since: Option<u64>,
}

impl Batch {
    /// Adds a record that says nothing: its header proves what was flushed before, and the chain goes on.
    fn mark(&mut self) {
        let mut bytes = Vec::new();
        Record::Mark.encode_into(&mut bytes);
        self.records.push(bytes);
    }
}

/// Everything in memory.
struct Inner {
    state: State,
    files: ByIno<File>,
    accesses: atime::AccessTimes,
    /// Inodes without a name whose last use ended when there was no room to let them go.
    orphans_left: BTreeSet<Ino>,
    chain: Chain,
    data: DataLog,
    /// Where the cleaner moves things.
    cold: DataLog,
    /// Where content goes that is overwritten often.
    hot: DataLog,
    recency: recency::Recency,
    cleaner_status: CleanerStatus,
    index: [IndexLog; 2],
    batch: Batch,
    /// Blocks on their way to the device, by address of the first.
    inflight: BTreeMap<Addr, Arc<AlignedBuf>>,
    writes: Vec<DataWrite>,
    /// Data writes that somebody took out of `writes` and waits for: number, file and blocks.
    awaited: BTreeMap<u64, (Ino, u32)>,
    /// Data writes started since the volume was opened.
    writes_started: u64,
    recent_syncs: beside::RecentSyncs,
    bursts: bursts::Bursts,
    submitted: submit::Submitted,
    /// Files whose data a sync waits for, or of which much is cut off in steps, with how many do that: they take no change until then.
    settling: BTreeMap<Ino, u32>,
    leading: leading::Leading,
    checkpointing: bool,
    /// A thread that has led is about to make one, or makes it.
    checkpoint_claimed: bool,
    /// A thread makes room, and others wait for it.
    making_room: bool,
    /// What room would be without garbage, at the last tick.
    garbage_segments: u64,
    /// The last time that nothing else made room, cleaning what gains little did.
    little_pays: bool,
    /// Until then (monotonic) making room ahead gains nothing.
    ahead_rests_until: u64,
    /// When (monotonic) checkpoints were last let go for want of room.
    shed_at: Option<u64>,
    grant: growth::Grant,
    /// How things stood when nothing made more available, and when (monotonic).
    nothing_available: Option<(space::PictureOfRoom, u64)>,
    /// How things stood when no more room could be made, and when (monotonic).
    exhausted: Option<(space::PictureOfRoom, u64)>,
    /// Blocks of history that may be shed when no inode had more than its share of them, or the fewest since.
    none_heavy_at: Option<u64>,
    /// Looking for files with too much history, while it crowds out the cleaner.
    survey: Option<heavy::Survey>,
    /// Nodes that the index checkpoint under way has yet to give places to.
    frozen_nodes: u64,
    /// Of uncommitted content of all files: extents that have a place and leaves of what it cuts off, items of the index, leaves of owners.
    placed: u64,
    items: u64,
    owners_leaves: u64,
    counted: nodes::Counted,
    /// Threads in [`Fs::wait_idle`].
    idle_waiters: u32,
    durable_seq: Seq,
    superblock: Superblock,
    /// Segments of the usable roots' partials, older first.
    root_pins: VecDeque<[SegmentNo; 2]>,
    /// Contents begun since the volume was opened.
    contents: u64,
    /// Blocks outside the chain that commits named since the volume was opened.
    named_blocks: u64,
    /// The first so many of them were flushed.
    flushed_blocks: u64,
    /// Pages in memory, and those that can be used again.
    pages: u64,
    spare: SparePages,
    /// By how many blocks more uncommitted content reserves than what is committed.
    promised_here: i64,
    /// Chain bytes since the last index checkpoint.
    window_bytes: u64,
    /// Highest `durable_seq` a written header states.
    proven_seq: Seq,
    last_commit_at: u64,
    last_cut_at: u64,
    /// Until then (monotonic) no checkpoints are cut by themselves while room is short.
    cuts_rest_until: u64,
    write_rate: crowded::WriteRate,
    /// When history last had to go because it left the cleaner too little.
    uncrowded_at: Option<u64>,
    /// Content was received since the last cut; what is committed the state knows.
    changed_since_cut: bool,
    /// When the superblock said how long the volume had been mounted, and for how long the machine was suspended since.
    mounted_at: u64,
    suspended: retain::Suspended,
    reaper: background::Reaper,
    sweep: Option<background::Sweeper>,
    sweep_wanted: bool,
    /// Who makes room sweeps.
    sweeping: bool,
    /// Segments that the cleaner leaves alone for now, whoever asks.
    left_alone: BTreeSet<SegmentNo>,
    /// See [`Inner::with_waiting`].
    waiting_shared: RefCell<usage::WaitingShared>,
    /// Blocks of garbage in index segments that are hardly sparse, where emptying these came to nothing.
    index_in_vain: u64,
    /// Nodes that letting go may make dirty until the next index checkpoint, if that is limited.
    let_go_share: Option<u64>,
    /// Not while room is made and nothing else helped.
    let_go_all: bool,
    /// What it looked like when no room could be had to sweep in, and when that was.
    swept_in_vain: Option<(space::PictureOfRoom, u64)>,
    /// History trees that become one.
    merger: merging::Merger,
    /// Who counts history so that nothing may be met twice.
    counting_history: u32,
    named_count: Option<account::NamedCount>,
    /// After an error, when (monotonic) counting is tried again.
    named_rest_until: u64,
    /// Checkpoints that somebody uses, with how many do.
    held: BTreeMap<Cno, u32>,
    /// Monotonic time at which the retention rule is applied next, and whether it was since the mount.
    thin_at: u64,
    thinned: bool,
    /// Segments do not lie as they should: how far that is.
    laying: Option<LayingStatus>,
    /// So many segments there will be then, where these are fewer.
    shrinks_to: Option<u64>,
    failed: Option<String>,
    counters: Counters,
    /// Nothing more is accepted: the volume is being closed, or is.
    closing: bool,
    closed: bool,
}

/// An open volume.
pub struct Fs {
    inner: Mutex<Inner>,
    idle: Condvar,
    /// Taken before `inner`, never while it is held.
    cleaner: Mutex<Cleaner>,
    /// Held by who counts what snapshots keep, a piece at a time.
    counting_named: Mutex<()>,
    /// Taken before `cleaner` and `inner`, never while they are held.
    wiper: Mutex<forget::Wiper>,
    /// Taken before `inner`, never while it is held.
    joiner: Mutex<joining::Joiner>,
    /// The same; never together with `wiper`.
    laying: Mutex<laying::Laying>,
    /// Under `mmp`. Its lock is taken before `inner`, never while that is held.
    heart: Option<beats::Heart>,
    /// What the heartbeat said when the volume was opened.
    heard: crate::heartbeat::Said,
    /// Bytes of reads that were submitted and are not over.
    reads_ahead: AtomicUsize,
    /// When (monotonic) a sync was last asked for; 0 before the first one.
    synced_at: AtomicU64,
    /// Taken alone.
    damaged: Mutex<DamagedReads>,
    lost_writes: Mutex<LostWrites>,
    /// A scrub found the superblock slots right, or made them so.
    slots_right: AtomicBool,
    storage: Arc<Storage>,
    clock: Arc<dyn Clock>,
    options: MountOptions,
    report: RecoveryReport,
    /// The same with what was found after that, when the volume was made ready for writing.
    report_ready: OnceLock<RecoveryReport>,
}

/// Parts that recovery hands over.
pub(crate) struct Opened {
    pub storage: Arc<Storage>,
    pub state: State,
    pub chain: Chain,
    pub superblock: Superblock,
    pub report: RecoveryReport,
    pub window_bytes: u64,
    pub root_pins: VecDeque<[SegmentNo; 2]>,
    /// Where the next nodes go: nowhere yet, but where there are no segments to begin.
    pub index: [IndexLog; 2],
    /// Blocks that counted although nothing proves that every copy of them is on its device.
    pub unproven: Vec<Unproven>,
}

/// Takes a lock; where turns are decided, others go on until it is free.
pub(crate) fn locked<'a, T>(mutex: &'a Mutex<T>, clock: &dyn Clock) -> LockResult<MutexGuard<'a, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(e)) => return Err(e),
            Err(TryLockError::WouldBlock) => match clock.turns() {
                Some(turns) => turns.let_others_run(),
                None => return mutex.lock(),
            },
        }
    }
}

impl Fs {
    pub(crate) fn assemble(opened: Opened, clock: Arc<dyn Clock>, mut options: MountOptions) -> Self {
        // With none at all there would be nothing to wait for.
        options.dirty_nodes_max = options.dirty_nodes_max.max(1);
        let now = clock.monotonic_nanos();
        opened.storage.take_turns(&clock);
        let durable_seq = opened.chain.seq;
        if opened.chain.block == 0 && !options.read_only {
            opened.storage.begin_segment(opened.chain.segment);
        }
        let (mut state, mut chain, index) = (opened.state, opened.chain, opened.index);
        if !options.read_only {
            chain.mount_id = crate::mounts::identity(state.hash_key, chain.epoch, clock.wall());
        }
        state.note_named();
        state.recount_past();
        let inner = Inner {
            state,
            files: ByIno::default(),
            accesses: atime::AccessTimes::default(),
            orphans_left: BTreeSet::new(),
            chain,
            data: DataLog::default(),
            cold: DataLog::of_cleaner(),
            hot: DataLog::default(),
            recency: recency::Recency::default(),
            cleaner_status: CleanerStatus::default(),
            index,
            batch: Batch::default(),
            inflight: BTreeMap::new(),
            writes: Vec::new(),
            awaited: BTreeMap::new(),
            writes_started: 0,
            recent_syncs: beside::RecentSyncs::default(),
            bursts: bursts::Bursts::default(),
            submitted: submit::Submitted::default(),
            settling: BTreeMap::new(),
            leading: leading::Leading::default(),
            checkpointing: false,
            checkpoint_claimed: false,
            making_room: false,
            garbage_segments: 0,
            little_pays: false,
            ahead_rests_until: 0,
            shed_at: None,
            grant: growth::Grant::default(),
            nothing_available: None,
            exhausted: None,
            none_heavy_at: None,
            survey: None,
            frozen_nodes: 0,
            placed: 0,
            items: 0,
            owners_leaves: 0,
            counted: nodes::Counted::default(),
            idle_waiters: 0,
            durable_seq,
            superblock: opened.superblock,
            root_pins: opened.root_pins,
            contents: 0,
            named_blocks: 0,
            flushed_blocks: 0,
            pages: 0,
            spare: SparePages::default(),
            promised_here: 0,
            window_bytes: opened.window_bytes,
            proven_seq: durable_seq,
            last_commit_at: now,
            last_cut_at: now,
            cuts_rest_until: 0,
            write_rate: crowded::WriteRate::default(),
            uncrowded_at: None,
            changed_since_cut: false,
            mounted_at: now,
            suspended: retain::Suspended::new(&*clock),
            reaper: background::Reaper::default(),
            sweep: None,
            // What was let go before may not have been swept yet.
            sweep_wanted: true,
            sweeping: false,
            left_alone: BTreeSet::new(),
            waiting_shared: RefCell::default(),
            index_in_vain: 0,
            let_go_share: None,
            let_go_all: false,
            swept_in_vain: None,
            merger: merging::Merger::default(),
            counting_history: 0,
            named_count: None,
            named_rest_until: 0,
            held: BTreeMap::new(),
            thin_at: now.saturating_add(retain::first_thin_nanos()),
            thinned: false,
            // Whether anything is to be done is seen in the first tick.
            laying: Some(LayingStatus::default()),
            shrinks_to: None,
            failed: None,
            counters: Counters::default(),
            closing: false,
            closed: false,
        };
        Self {
            inner: Mutex::new(inner),
            idle: Condvar::new(),
            cleaner: Mutex::default(),
            counting_named: Mutex::default(),
            wiper: Mutex::default(),
            joiner: Mutex::default(),
            laying: Mutex::default(),
            heart: None,
            heard: crate::heartbeat::Said::Nothing,
            reads_ahead: AtomicUsize::new(0),
            synced_at: AtomicU64::new(0),
            damaged: Mutex::default(),
            lost_writes: Mutex::default(),
            slots_right: AtomicBool::new(false),
            storage: opened.storage,
            clock,
            options,
            report: opened.report,
            report_ready: OnceLock::new(),
        }
    }

    fn lock(&self) -> Guard<'_> {
        self.breathe();
        // A panic under the lock leaves state that must not be written; the
        // failure below sees to it that nothing is.
        let guard = locked(&self.inner, self.clock.as_ref()).unwrap_or_else(|poisoned: PoisonError<_>| {
            let mut guard = poisoned.into_inner();
            guard.fail(guard::POISONED);
            guard
        });
        Guard::new(guard)
    }

    /// The lock, if the volume may be changed.
    fn lock_to_change(&self) -> Result<Guard<'_>> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        self.owns_to_write()?;
        let inner = self.lock();
        inner.check_alive()?;
        Ok(inner)
    }

    /// The lock, if anything new may be accepted.
    fn lock_to_accept(&self) -> Result<Guard<'_>> {
        self.still_owns()?;
        let inner = self.lock_to_change()?;
        if inner.closing { Err(Error::ReadOnly) } else { Ok(inner) }
    }

    /// Waits until some commit, index checkpoint or data write has ended.
    /// May return early: who waits asks again.
    fn wait_idle<'a>(&'a self, mut guard: Guard<'a>) -> Guard<'a> {
        if let Some(turns) = self.clock.turns() {
            drop(guard);
            turns.let_others_run();
            return self.lock();
        }
        guard.idle_waiters += 1;
        let mut guard = guard.wait(&self.idle);
        guard.idle_waiters -= 1;
        guard
    }

    /// Waits until a commit answers.
    fn answer(&self, rx: &mpsc::Receiver<Result<()>>) -> Result<()> {
        let gone = || Error::Failed("a commit ended without an answer".into());
        while let Some(turns) = self.clock.turns() {
            match rx.try_recv() {
                Ok(answer) => return answer,
                Err(mpsc::TryRecvError::Empty) => turns.let_others_run(),
                Err(mpsc::TryRecvError::Disconnected) => return Err(gone()),
            }
        }
        rx.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Wakes those in [`Fs::wait_idle`], and spares the system call when there are none.
    fn wake_idle(&self, inner: &Inner) {
        if inner.idle_waiters > 0 {
            self.idle.notify_all();
        }
    }

    /// After a mount: lets orphans go, as far as there is room for that; the others when there is some. What cannot be read stays.
    pub(crate) fn release_orphans(&self) -> Result<()> {
        let mut inner = self.lock_to_change()?;
        match inner.state.orphans() {
            Ok(orphans) => inner.orphans_left.extend(orphans),
            Err(why) => inner.reaper.lost = Some(why),
        }
        let has_room =
            |inner: &Inner| inner.nodes_to_spare(self) > 0 && inner.dirty_nodes() < self.options.dirty_nodes_max;
        while has_room(&inner) && inner.let_orphan_left_go(self)? {}
        let left = inner.reaper.lost.take();
        drop(inner);
        let note = |why| format!("a file that was removed while it was in use keeps its space: {why}");
        if let Some(note) = left.map(note) {
            let mut report = self.report.clone();
            report.notes.push(note);
            let _ = self.report_ready.set(report);
        }
        Ok(())
    }

    /// What recovery found when the volume was opened.
    #[must_use]
    pub fn recovery_report(&self) -> &RecoveryReport {
        self.report_ready.get().unwrap_or(&self.report)
    }

    /// Why the volume became read-only, if it did.
    #[must_use]
    pub fn failed(&self) -> Option<String> {
        self.lock().failed.clone()
    }

    /// Counts of what was done since the volume was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let device_waits_locked = self.storage.waits_locked();
        let flushes_awaited = self.storage.flushes().awaited();
        Counters { device_waits_locked, flushes_awaited, ..self.lock().counters }
    }

    /// The superblock as last written.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        let mut superblock = self.lock().superblock.clone();
        let entries = self.storage.entries();
        if !entries.is_empty() {
            superblock.devices = entries;
        }
        superblock
    }

    /// How the volume was opened.
    #[must_use]
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Every segment: number, state, live and history blocks, node copies, kind.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let inner = self.lock();
        inner
            .state
            .segments
            .iter()
            .map(|(no, s)| SegmentInfo {
                segment: no,
                state: s.state,
                live_blocks: s.item.live_blocks,
                history_blocks: s.item.history_blocks,
                nodes: s.nodes,
                kind: s.item.kind,
                chain_held: s.chain_held,
            })
            .collect()
    }
}

/// One segment, for listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number.
    pub segment: SegmentNo,
    /// What it is at the moment.
    pub state: SegmentState,
    /// Blocks the live tree needs.
    pub live_blocks: u32,
    /// Blocks only history needs.
    pub history_blocks: u32,
    /// Index node copies in it.
    pub nodes: u32,
    /// 1 chain, 2 data, 3 index, 0 never used.
    pub kind: u8,
    /// The chain in it is still needed for roll-forward.
    pub chain_held: bool,
}

impl Inner {
    fn check_alive(&self) -> Result<()> {
        self.failure()?;
        if self.closed { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// The failure that has ended all writing.
    fn failure(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |why| Err(Error::Failed(why.clone())))
    }

    /// Notes a failure that ends all writing.
    fn fail(&mut self, why: &str) {
        if self.failed.is_none() && !broken(Break::FailureForgotten) {
            self.failed = Some(why.to_owned());
        }
    }

    /// Applies a record and appends it to the open batch. An error in the
    /// middle of applying leaves trees and log apart, so it ends all writing.
    fn log(&mut self, record: &Record<'_>, now: u64) -> Result<()> {
        if let Err(e) = self.state.apply(record, Addr::NONE) {
            self.fail(&format!("the index could not be changed: {e}"));
            return Err(e);
        }
        let mut bytes = Vec::with_capacity(96);
        record.encode_into(&mut bytes);
        self.batch.bytes += bytes.len();
        self.batch.records.push(bytes);
        self.batch.since.get_or_insert(now);
        Ok(())
    }

    /// Lets an inode go that has no name and that nobody uses. It stays where something that this needs cannot be read.
    fn log_release(&mut self, ino: Ino, now: u64) -> Result<()> {
        self.state.release_ahead(ino)?;
        self.log(&Record::Release { ino }, now)
    }

    fn data_stamp(&self, now: nenrin_format::Time) -> DataStamp {
        DataStamp {
            uuid: self.chain.uuid,
            epoch: self.chain.epoch,
            seq: self.chain.seq,
            open_cno: self.state.open_cno,
            now,
        }
    }

    fn segments(&mut self) -> &mut Segments {
        &mut self.state.segments
    }

    fn generation(&self) -> Generation {
        self.superblock.generation
    }
}

/// Whether a sync must flush under this barrier mode.
const fn flushes(barrier: Barrier) -> bool {
    matches!(barrier, Barrier::Sync)
}
