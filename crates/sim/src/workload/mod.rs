//! Random workloads: from a seed and the state of the model, the next call.
//!
//! A seed chooses a profile (what kind of program is at work) and from then on
//! every step. The choice depends on nothing but the seed and what the file
//! system has answered so far.

mod pagecache;
mod shares;
mod steps;
mod wide;

use crate::checkpoint_log::CheckpointLog;
use crate::model::Model;
use crate::ops::Op;
use crate::prng::Prng;
use nenrin_core::{FileKind, XattrMode};
use nenrin_format::items::HISTORY_XATTR;
use nenrin_format::{Ino, NODE_BYTES};
use pagecache::PageCache;
use std::collections::VecDeque;

pub use wide::prefill;

const DIRS_MAX: usize = 10;
const OPEN_MAX: usize = 6;
/// Rules by which checkpoints are kept.
const RULES: [&str; 5] = ["default", "1m:all 1h:10m forever:1h", "1h:all", "1s:all forever:1d", "forever:all"];
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// What kind of program is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Everything.
    General,
    /// Names come and go; little content.
    Names,
    /// Content of a few files, with many fsyncs.
    Content,
    /// Programs that save: write beside and rename over, truncate and write again.
    Savers,
    /// Checkpoints made, named, dropped and read.
    Past,
    /// Files copied within the volume, by sharing, then changed, cut and removed.
    Copies,
    /// Large files, until the volume is full and beyond.
    Fill,
    /// First test of the file-level journaling paper: 4 KiB blocks appended, fsync after each.
    AppendFsync,
    /// Second test of that paper: mkdir, create, write, truncate at random, with fsync.
    TreeFsync,
    /// Overwrites on a volume that is rather full, time for the cleaner, and cleaning on request.
    Clean,
    /// As `Past`, where much of the volume keeps less history.
    Keep,
    /// Everything on a volume with hundreds of files, and nodes so small that its index is deep: see [`prefill`].
    Wide,
}

impl Profile {
    /// All of them, with how often a random seed chooses each (in 100).
    pub const ALL: [(Self, u64); 12] = [
        (Self::General, 28),
        (Self::Copies, 8),
        (Self::Names, 14),
        (Self::Content, 14),
        (Self::Savers, 14),
        (Self::Past, 10),
        (Self::Fill, 6),
        (Self::AppendFsync, 3),
        (Self::TreeFsync, 3),
        // Asked for by name, so that older seeds mean what they meant.
        (Self::Clean, 0),
        (Self::Keep, 0),
        (Self::Wide, 0),
    ];
    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Names => "names",
            Self::Content => "content",
            Self::Savers => "savers",
            Self::Past => "past",
            Self::Copies => "copies",
            Self::Fill => "fill",
            Self::AppendFsync => "append-fsync",
            Self::TreeFsync => "tree-fsync",
            Self::Clean => "clean",
            Self::Keep => "keep",
            Self::Wide => "wide",
        }
    }
    /// The profile with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().map(|(p, _)| *p).find(|p| p.name() == name)
    }
    fn of_seed(rng: &mut Prng) -> Self {
        let mut at = rng.below(100);
        for (p, weight) in Self::ALL {
            if at < weight {
                return p;
            }
            at -= weight;
        }
        Self::General
    }

    /// Weights of the kinds of step, in the order of [`Step`].
    const fn weights(self) -> [u64; STEPS] {
        //                     crea link unli renm attr xatr writ trun allo copy open clos sync past time read save
        match self {
            Self::General => [10, 4, 6, 7, 5, 5, 20, 4, 4, 3, 3, 4, 9, 4, 8, 4, 4],
            Self::Names => [26, 8, 14, 18, 6, 6, 3, 1, 0, 0, 3, 3, 6, 1, 6, 4, 1],
            Self::Content => [3, 0, 1, 1, 1, 0, 42, 7, 8, 5, 1, 3, 18, 1, 6, 5, 1],
            Self::Savers => [6, 3, 3, 4, 2, 2, 12, 4, 1, 1, 3, 6, 10, 2, 9, 2, 30],
            Self::Past | Self::Keep => [8, 3, 6, 6, 3, 3, 18, 4, 3, 3, 1, 3, 5, 22, 9, 3, 3],
            Self::Copies => [7, 1, 5, 2, 1, 0, 16, 6, 4, 32, 1, 2, 8, 6, 6, 4, 2],
            Self::Fill => [12, 1, 8, 2, 1, 1, 46, 4, 3, 2, 1, 2, 6, 3, 6, 2, 1],
            Self::AppendFsync => [1, 0, 0, 0, 0, 0, 50, 0, 0, 0, 0, 0, 0, 0, 6, 1, 0],
            Self::TreeFsync => [30, 0, 0, 0, 0, 0, 30, 15, 0, 0, 0, 0, 20, 0, 4, 1, 0],
            Self::Clean => [7, 1, 5, 1, 1, 1, 40, 5, 5, 2, 1, 2, 7, 4, 16, 2, 1],
            Self::Wide => [14, 6, 14, 14, 6, 12, 16, 4, 6, 4, 2, 2, 8, 6, 12, 2, 2],
        }
    }

    /// How full nodes of the index become in the world of a seed.
    #[must_use]
    pub fn node_bytes_max(self, seed: u64) -> usize {
        let small = [300, 500, 900][Prng::stream(seed, 40).index(3)];
        if self == Self::Wide { small } else { NODE_BYTES }
    }

    /// The device it needs, where `usual` bytes are: a node takes as much room as ever, however little it holds.
    #[must_use]
    pub const fn device_bytes(self, usual: u64) -> u64 {
        if matches!(self, Self::Wide) { 6 * usual } else { usual }
    }

    /// Files at most.
    const fn files_max(self) -> usize {
        if matches!(self, Self::Wide) { 400 } else { 28 }
    }
}

const STEPS: usize = 17;

#[derive(Clone, Copy)]
enum Step {
    Create,
    Link,
    Unlink,
    Rename,
    Attr,
    Xattr,
    Write,
    Truncate,
    Allocate,
    Copy,
    Open,
    Close,
    Sync,
    Past,
    Time,
    Read,
    Save,
}

const ORDER: [Step; STEPS] = [
    Step::Create,
    Step::Link,
    Step::Unlink,
    Step::Rename,
    Step::Attr,
    Step::Xattr,
    Step::Write,
    Step::Truncate,
    Step::Allocate,
    Step::Copy,
    Step::Open,
    Step::Close,
    Step::Sync,
    Step::Past,
    Step::Time,
    Step::Read,
    Step::Save,
];

/// A step that waits for what the step before it has made.
#[derive(Clone, Debug)]
enum Later {
    Do(Op),
    /// On the file that has this name by then.
    Open(u64, Vec<u8>),
    Write(u64, Vec<u8>, usize),
    Fsync(u64, Vec<u8>),
    Close(u64, Vec<u8>),
}

/// What a run may contain beyond the calls themselves.
#[derive(Clone, Copy, Debug)]
pub struct Allow {
    /// Clean unmounts in between.
    pub remount: bool,
    /// Deaths of the process in between.
    pub kill: bool,
}

/// A workload under way.
#[derive(Clone, Debug)]
pub struct Workload {
    rng: Prng,
    /// What an administrator does, drawn apart.
    chores: Option<Prng>,
    /// Who gets back what was, drawn apart.
    restores: Option<Prng>,
    /// Who says how much history is kept, drawn apart.
    keeps: Option<Prng>,
    /// Who shares directories with others, lists them and writes large files, drawn apart.
    shares: Option<Prng>,
    /// Who deletes checkpoints and snapshots as the commands do, drawn apart.
    deletes: Option<Prng>,
    /// The kind of program.
    pub profile: Profile,
    allow: Allow,
    open: Vec<u64>,
    /// Checkpoints that are read from.
    held: Vec<u64>,
    later: VecDeque<Later>,
    /// Under `cache=writeback`: what the kernel keeps.
    cache: Option<PageCache>,
    /// What it sends next.
    sent: VecDeque<Op>,
    write_id: u32,
    live_bytes_max: u64,
}

impl Workload {
    /// The workload of `seed` on a volume of `volume_bytes`.
    #[must_use]
    pub fn new(seed: u64, volume_bytes: u64, allow: Allow, profile: Option<Profile>) -> Self {
        let mut rng = Prng::stream(seed, 1);
        let chosen = Profile::of_seed(&mut rng);
        let profile = profile.unwrap_or(chosen);
        let share = match profile {
            Profile::Fill => 2,
            Profile::Clean => 3,
            _ => 8,
        };
        let mut chores = Prng::stream(seed, 11);
        let mut restores = Prng::stream(seed, 14);
        let mut keeps = Prng::stream(seed, 21);
        let mut shares = Prng::stream(seed, 46);
        let mut deletes = Prng::stream(seed, 51);
        let often = if profile == Profile::Keep { 100 } else { 30 };
        Self {
            rng,
            chores: chores.chance(50).then_some(chores),
            restores: restores.chance(40).then_some(restores),
            keeps: keeps.chance(often).then_some(keeps),
            shares: shares.chance(30).then_some(shares),
            deletes: deletes.chance(40).then_some(deletes),
            profile,
            allow,
            open: Vec::new(),
            held: Vec::new(),
            later: VecDeque::new(),
            cache: None,
            sent: VecDeque::new(),
            write_id: 0,
            live_bytes_max: volume_bytes / share,
        }
    }

    /// The same through a kernel that caches writes.
    #[must_use]
    pub fn through_page_cache(mut self, seed: u64) -> Self {
        self.cache = Some(PageCache::new(Prng::stream(seed, 18)));
        self
    }

    /// All handles are gone: the volume was unmounted, or its process died.
    pub fn handles_lost(&mut self) {
        self.open.clear();
        self.held.clear();
        self.later.clear();
        self.sent.clear();
        if let Some(cache) = &mut self.cache {
            cache.lost();
        }
    }

    /// A temporary file was made and is open.
    pub fn opened(&mut self, ino: u64) {
        self.open.push(ino);
    }

    /// The next call that the file system sees.
    pub fn next(&mut self, model: &Model) -> Op {
        loop {
            if let Some(op) = self.sent.pop_front() {
                return op;
            }
            let op = self.draw(model);
            match &mut self.cache {
                Some(cache) => self.sent.extend(cache.pass(op, model)),
                None => return op,
            }
        }
    }

    /// The next call of a program.
    fn draw(&mut self, model: &Model) -> Op {
        let besides = self.chore(model).or_else(|| self.restore(model)).or_else(|| self.keep(model));
        if let Some(op) = besides.or_else(|| self.share(model)).or_else(|| self.delete(model)) {
            return op;
        }
        while let Some(l) = self.later.pop_front() {
            if let Some(op) = self.resolve(l, model) {
                return op;
            }
        }
        for _ in 0..50 {
            if let Some(op) = self.fresh(model) {
                return op;
            }
        }
        Op::Tick
    }

    /// Cleaning, scrubbing, another rule, and time for what they begin.
    fn chore(&mut self, model: &Model) -> Option<Op> {
        let rng = self.chores.as_mut().filter(|_| self.profile != Profile::AppendFsync)?;
        if rng.below(25) > 0 {
            return None;
        }
        match rng.below(8) {
            0..=1 => Some(Op::Clean),
            2..=3 => Some(Op::Scrub),
            4 => Some(Op::SetRetention { rule: RULES[rng.index(RULES.len())] }),
            // Long enough for the rule to be applied.
            5 => {
                self.later.push_front(Later::Do(Op::Tick));
                Some(Op::Advance { nanos: 700_000_000_000 + rng.below(10_000_000_000_000) })
            }
            _ => {
                let unnamed = |c: &CheckpointLog| c.gone.is_none() && c.names.last().is_none_or(|n| n.name.is_none());
                let all: Vec<u64> = model.checkpoints.iter().filter(|(_, c)| unnamed(c)).map(|(n, _)| *n).collect();
                rng.pick(&all).map(|cno| Op::CheckpointDrop { cno: *cno })
            }
        }
    }

    /// A snapshot, or a range of checkpoints, in which some are gone, named or in use; or one is used, or no longer.
    fn delete(&mut self, model: &Model) -> Option<Op> {
        let often = if matches!(self.profile, Profile::Past | Profile::Keep) { 10 } else { 20 };
        let rng = self.deletes.as_mut().filter(|_| self.profile != Profile::AppendFsync)?;
        if rng.below(often) > 0 {
            return None;
        }
        if rng.chance(40) {
            if rng.chance(40) && !self.held.is_empty() {
                let cno = self.held.swap_remove(rng.index(self.held.len()));
                return Some(Op::LetCheckpointGo { cno });
            }
            let all: Vec<u64> = model.checkpoints.keys().copied().collect();
            let cno = *rng.pick(&all)?;
            self.held.extend(model.checkpoints.get(&cno).filter(|c| c.gone.is_none()).map(|_| cno));
            return Some(Op::HoldCheckpoint { cno });
        }
        if rng.chance(60) {
            let name = |c: &CheckpointLog| c.names.last().and_then(|n| n.name.clone());
            let here = model.checkpoints.iter().filter(|(_, c)| c.gone.is_none());
            let all: Vec<(u64, Vec<u8>)> = here.filter_map(|(cno, c)| Some((*cno, name(c)?))).collect();
            let (cno, name) = rng.pick(&all)?.clone();
            let name = if rng.chance(10) { b"snap0".to_vec() } else { name };
            return Some(Op::SnapshotDrop { cno, name, in_use: rng.chance(15) });
        }
        let all: Vec<u64> = model.checkpoints.keys().copied().collect();
        let from = rng.index(all.len().max(1));
        let cnos: Vec<u64> = all.into_iter().skip(from).take(1 + rng.index(6)).collect();
        let in_use = cnos.iter().copied().filter(|_| rng.chance(15)).collect();
        (!cnos.is_empty()).then_some(Op::CheckpointsDrop { cnos, in_use })
    }

    /// How much history something keeps.
    fn keep(&mut self, model: &Model) -> Option<Op> {
        let often = if self.profile == Profile::Keep { 12 } else { 40 };
        let rng = self.keeps.as_mut().filter(|_| self.profile != Profile::AppendFsync)?;
        if rng.below(often) > 0 {
            return None;
        }
        let named = model.tree.inodes.iter().filter(|(_, i)| i.attr.nlink > 0);
        let dirs = rng.chance(50);
        // The kernel lets nothing else have attributes of this kind.
        let fits = |kind| kind == FileKind::Directory || !dirs && kind == FileKind::Regular;
        let all: Vec<u64> = named.filter(|(_, i)| fits(i.attr.kind())).map(|(ino, _)| *ino).collect();
        let ino = *rng.pick(&all)?;
        let name = HISTORY_XATTR.to_vec();
        if rng.chance(15) {
            return Some(Op::RemoveXattr { ino, name });
        }
        let value = *rng.pick(&[&b"none"[..], b"none", b"daily", b"full", b"some"])?;
        let mode = if rng.chance(10) { XattrMode::Create } else { XattrMode::Any };
        Some(Op::SetXattr { ino, name, value: value.to_vec(), mode })
    }

    /// A file, or a part of it, as it was in a checkpoint, into the same or another file.
    fn restore(&mut self, model: &Model) -> Option<Op> {
        let rng = self.restores.as_mut().filter(|_| self.profile != Profile::AppendFsync)?;
        if rng.below(20) > 0 {
            return None;
        }
        let there: Vec<_> = model.checkpoints.iter().filter(|(_, c)| c.gone.is_none() && !c.files.is_empty()).collect();
        let (cno, log) = rng.pick(&there)?;
        let (from, _) = rng.pick(&log.files)?;
        let regular = |ino: &u64| model.tree.inodes.get(ino).is_some_and(|i| i.attr.kind() == FileKind::Regular);
        let files: Vec<u64> = model.tree.inodes.keys().copied().filter(regular).collect();
        let to = if regular(from) && rng.chance(50) { *from } else { *rng.pick(&files)? };
        let (mut from_offset, mut to_offset, mut bytes) = (0, 0, 1 << 20);
        if rng.chance(50) {
            (from_offset, to_offset, bytes) = (rng.below(10) * 4096, rng.below(10) * 4096, 1 + rng.below(60_000));
        }
        if rng.chance(20) {
            from_offset += rng.below(4096);
        }
        Some(Op::CopyPast { cno: **cno, from: *from, from_offset, to, to_offset, bytes })
    }

    fn resolve(&mut self, later: Later, model: &Model) -> Option<Op> {
        let find = |parent: u64, name: &[u8]| {
            let ino = model.tree.inodes.get(&parent)?.entries.get(name).copied()?;
            (model.tree.inodes.get(&ino)?.attr.kind() == FileKind::Regular).then_some(ino)
        };
        Some(match later {
            Later::Do(op) => op,
            Later::Open(parent, name) => {
                let ino = find(parent, &name)?;
                self.open.push(ino);
                Op::Open { ino }
            }
            Later::Write(parent, name, bytes) => {
                let ino = find(parent, &name)?;
                let offset = model.tree.inodes.get(&ino)?.content.size();
                self.write(ino, offset, bytes)
            }
            Later::Fsync(parent, name) => Op::Fsync { ino: find(parent, &name)?, callback: self.rng.chance(50) },
            Later::Close(parent, name) => self.close(find(parent, &name)?)?,
        })
    }

    fn fresh(&mut self, model: &Model) -> Option<Op> {
        if self.profile == Profile::AppendFsync {
            return self.append_fsync(model);
        }
        if self.allow.remount && self.rng.below(400) == 0 {
            return Some(Op::Remount);
        }
        if self.allow.kill && self.rng.below(400) == 0 {
            return Some(Op::Kill);
        }
        if self.profile == Profile::Clean && self.rng.below(30) == 0 {
            return Some(Op::Clean);
        }
        if self.profile == Profile::Wide && self.rng.below(12) == 0 {
            return self.swath(model);
        }
        let weights = self.profile.weights();
        let mut at = self.rng.below(weights.iter().sum());
        let mut step = Step::Time;
        for (s, w) in ORDER.into_iter().zip(weights) {
            if at < w {
                step = s;
                break;
            }
            at -= w;
        }
        match step {
            Step::Create => self.create(model),
            Step::Link => self.link(model),
            Step::Unlink => self.unlink(model),
            Step::Rename => self.rename(model),
            Step::Attr => self.attr(model),
            Step::Xattr => self.xattr(model),
            Step::Write => self.some_write(model),
            Step::Truncate => self.truncate(model),
            Step::Allocate => self.allocate(model),
            Step::Copy => self.copy(model),
            Step::Open => self.open(model),
            Step::Close => {
                let ino = *self.rng.pick(&self.open)?;
                self.close(ino)
            }
            Step::Sync => self.sync(model),
            Step::Past => self.past(model),
            Step::Time => Some(self.time()),
            Step::Read => self.read(model),
            Step::Save => self.save(model),
        }
    }

    // -- choosing objects

    fn dirs(model: &Model) -> Vec<u64> {
        let is = |i: &crate::tree::Inode| i.attr.kind() == FileKind::Directory && i.attr.nlink > 0;
        model.tree.inodes.iter().filter(|(_, i)| is(i)).map(|(n, _)| *n).collect()
    }
    fn dir(&mut self, model: &Model) -> u64 {
        self.rng.pick(&Self::dirs(model)).copied().unwrap_or(Ino::ROOT.0)
    }
    fn files(model: &Model) -> Vec<u64> {
        model.tree.inodes.iter().filter(|(_, i)| i.attr.kind() == FileKind::Regular).map(|(n, _)| *n).collect()
    }
    fn file(&mut self, model: &Model) -> Option<u64> {
        if self.rng.chance(25) && !self.open.is_empty() {
            return self.rng.pick(&self.open).copied();
        }
        self.rng.pick(&Self::files(model)).copied()
    }
    fn name(&mut self) -> Vec<u8> {
        if self.profile == Profile::Wide && self.rng.chance(70) {
            return wide::name(self.rng.below(400));
        }
        match self.rng.below(40) {
            0 => vec![b'n'; 255],
            1 => "年輪".as_bytes().to_vec(),
            2 => vec![0xff, 0x80, b'x'],
            _ => vec![b'a' + self.rng.below(18) as u8],
        }
    }
    fn entry(&mut self, model: &Model) -> Option<(u64, Vec<u8>, u64)> {
        let mut all: Vec<(u64, &Vec<u8>, u64)> = Vec::new();
        for (dir, d) in &model.tree.inodes {
            all.extend(d.entries.iter().map(|(name, ino)| (*dir, name, *ino)));
        }
        self.rng.pick(&all).map(|(d, n, i)| (*d, (*n).clone(), *i))
    }
    fn live_bytes(model: &Model) -> u64 {
        model.tree.inodes.values().map(|i| i.content.pages().count() as u64 * 4096).sum()
    }
}
