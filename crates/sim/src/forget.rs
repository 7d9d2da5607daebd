//! Forgetting under power cuts: a volume is used, with secrets among other
//! things, then everything secret is forgotten and the devices are wiped, and the power is cut
//! after every write and every flush of that. At each cut what is to be forgotten is there whole or not at
//! all, and not once it was acknowledged; all else is as it was; and when the next mount has gone on to
//! the end, no device holds 16 bytes of a secret.
//!
//! Invariants
//! 1. The bytes of secrets are all from 0xe0 to 0xef, in content, names, attributes and link targets.
//!    Nothing else has 16 such bytes in a row, so a scan for these finds every window of every secret.

use crate::clock::VirtualClock;
use crate::config::Config;
use crate::driver::{Cut, Failure, Tally, failure};
use crate::hash;
use crate::prng::Prng;
use crate::subject::{Excused, Subject};
use nenrin_core::{At, Barrier, CheckpointInfo, FileKind, Fs, MkfsOptions, NewInode, RenameMode, SetAttr, XattrMode};
use nenrin_device::{CrashChoice, CrashDisk, Image};
use nenrin_format::{Cno, Ino};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Core = Arc<Fs>;

/// Kinds of disks tried at each cut.
const CHOICES: u64 = 3;
/// Cuts tried of a run, spread over all of it.
const CUTS_MAX: usize = 50;
/// Every how many images the mount that goes on is cut, too; and in how many places.
const AGAIN_EVERY: u64 = 12;
const AGAIN_CUTS: usize = 4;
/// Steps after which wiping counts as endless.
const STEPS_MAX: u64 = 100_000;
/// Names at the top that are forgotten: a directory, a file that is saved by renames, one that is written in place.
const TOPS: usize = 3;
/// Files that begin segments which held secrets.
const TAILS: u64 = 3;
/// Written while the wiping goes on, and not compared.
const BUSY: &[u8] = b"busy";

/// Everything of one state, by path: what it is, and a hash of what is in it.
type State = BTreeMap<Vec<u8>, (String, u64)>;

/// Runs a workload, forgets what is secret in it, and cuts that everywhere, or in one place.
///
/// # Errors
/// The first cut after which something is left, back or changed.
pub fn forget_cuts(config: &Config, only: Option<Cut>, tally: &mut Tally) -> Result<(), Box<Failure>> {
    cuts(config, only, tally).map_err(|(cut, what)| failure(config, cut.as_slice(), what, String::new()))
}

fn cuts(config: &Config, only: Option<Cut>, tally: &mut Tally) -> Result<(), (Option<Cut>, String)> {
    let case = Case::of(config).map_err(|e| (None, e))?;
    tally.workloads += 1;
    let history = case.disk.history().ok_or_else(|| (None, "no history is kept".to_owned()))?;
    let mut cursor = history.cursor();
    let points = history.cut_points();
    let stride = points.div_ceil(CUTS_MAX).max(1);
    let offset = config.seed as usize % stride;
    let mut seen = BTreeSet::new();
    for at in (0..=points).filter(|at| only.is_some() || at % stride == offset || *at == points) {
        if only.is_some_and(|o| o.at != at) {
            continue;
        }
        cursor.advance_to(at);
        for choice in 0..CHOICES {
            let cut = only.unwrap_or(Cut { at, choice: choice + config.seed * u64::from(choice > 1) });
            let image = cursor.image(&CrashChoice::from_seed(cut.choice));
            tally.count_image(image.content_hash(), "forget cut");
            if seen.insert(image.content_hash()) {
                let again = (seen.len() as u64 % AGAIN_EVERY == 0).then_some(config.seed);
                case.judge(image.content(), at, again).map_err(|e| (Some(cut), e))?;
            }
        }
    }
    Ok(())
}

/// A volume on which secrets were forgotten, and what must be found.
struct Case {
    config: Config,
    disk: Arc<CrashDisk>,
    clock: Arc<VirtualClock>,
    /// Names at the top, and the inodes that a plan told.
    tops: Vec<(Vec<u8>, Vec<Ino>)>,
    /// Before: the live state without secrets, and each checkpoint with them.
    live: State,
    past: BTreeMap<Cno, (CheckpointInfo, State)>,
    /// From these device operations on the secrets are acknowledged as removed, and forgotten.
    removed: usize,
    forgotten: usize,
}

fn text(e: nenrin_core::Error) -> String {
    e.to_string()
}

fn open(config: &Config, disk: &Arc<CrashDisk>, clock: &Arc<VirtualClock>) -> Result<Core, String> {
    Fs::open(config.members.of(disk).members, clock.clone(), config.options()).map_err(text)
}

impl Case {
    fn of(config: &Config) -> Result<Self, String> {
        let clock = Arc::new(VirtualClock::new());
        let (image, names) = Story::tell(config, &clock)?;
        let disk = Arc::new(CrashDisk::from_image(image));
        let fs = open(config, &disk, &clock)?;
        let live = clear(&tree(&fs, At::Live)?);
        let mut past = BTreeMap::new();
        for c in fs.checkpoints() {
            let state = tree(&fs, At::Past(c.cno))?;
            past.insert(c.cno, (c, state));
        }
        if past.values().all(|(_, s)| clear(s).len() == s.len()) {
            return Err("no checkpoint shows a secret".into());
        }
        let mut tops = Vec::new();
        for name in names {
            let plan = fs.forget_plan(&[&name]);
            tops.push((name, plan.map(|p| p.inodes).unwrap_or_default()));
        }
        let mut case = Self { config: config.clone(), disk, clock, tops, live, past, removed: 0, forgotten: 0 };
        if !leaks(&case.disk.current()).is_empty() {
            case.forget(fs)?;
            Ok(case)
        } else {
            Err("no secret is on the device".into())
        }
    }

    /// Removes, forgets and wipes while others write; notes when each was acknowledged.
    fn forget(&mut self, fs: Core) -> Result<(), String> {
        self.remove_secrets(&fs)?;
        self.removed = self.disk.cut_points();
        for (name, inodes) in &self.tops {
            forget_one(&fs, name, inodes)?;
        }
        self.forgotten = self.disk.cut_points();
        if self.config.barrier != Barrier::Sync {
            // A sync does not flush; forgetting does.
            self.removed = self.forgotten;
        }
        let mut random = Prng::stream(self.config.seed, 23);
        let mut busy = None;
        for round in 0.. {
            if fs.forget_step(random.range(1, 1 << 19)).map_err(text)?.is_none() {
                break;
            }
            self.others(&fs, &mut busy, &mut random)?;
            if round == STEPS_MAX {
                return Err(format!("no end: {:?}", fs.forget_status()));
            }
        }
        self.judge_state(&fs, true, true).map_err(|e| format!("without any cut: {e}"))?;
        fs.close().map_err(text)?;
        drop(fs);
        found_none(&self.disk.current()).map_err(|e| format!("without any cut: {e}"))
    }

    fn others(&self, fs: &Core, busy: &mut Option<Ino>, random: &mut Prng) -> Result<(), String> {
        let full = |e: nenrin_core::Error| if matches!(e, nenrin_core::Error::NoSpace) { Ok(0) } else { Err(text(e)) };
        match random.below(8) {
            0 => {
                let ino = match busy {
                    Some(ino) => *ino,
                    None => {
                        let ino = match fs.lookup(At::Live, Ino::ROOT, BUSY) {
                            Ok(a) => a.ino,
                            Err(_) => match fs.create(Ino::ROOT, BUSY, &new_file()) {
                                Ok(a) => a.ino,
                                Err(e) => return full(e).map(drop),
                            },
                        };
                        *busy.insert(ino)
                    }
                };
                let bytes = random.range(100, 30_000) as usize;
                fs.write(ino, random.below(50_000), &plain(random, bytes), 0).or_else(full)?;
                if random.chance(50) {
                    fs.fsync_wait(ino).map_err(text)?;
                }
            }
            1 => {
                self.clock.advance(random.range(100_000_000, 2_000_000_000));
                fs.tick().map_err(text)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes every secret name that is there, and syncs.
    fn remove_secrets(&self, fs: &Core) -> Result<(), String> {
        let mut names = entries(fs, At::Live, Ino::ROOT)?;
        names.retain(|(name, ..)| is_secret(name));
        for (name, ..) in names {
            remove(fs, Ino::ROOT, &name)?;
        }
        fs.sync_all().map_err(text)
    }

    /// What a cut before device operation `at` left.
    fn judge(&self, image: Image, at: usize, again: Option<u64>) -> Result<(), String> {
        let disk = CrashDisk::from_image(image);
        let disk = Arc::new(if again.is_some() { disk } else { disk.without_history() });
        let clock = Arc::new(self.clock.fork());
        let fs = open(&self.config, &disk, &clock)?;
        self.judge_state(&fs, at >= self.removed, at >= self.forgotten)?;
        // What was acknowledged goes on by itself; the rest is asked for again.
        if at < self.forgotten {
            self.remove_secrets(&fs)?;
            for (name, inodes) in &self.tops {
                forget_one(&fs, name, inodes)?;
            }
            if fs.forget_status().is_none() {
                return Err("what was forgotten is on no list".into());
            }
        }
        let acknowledged = disk.cut_points();
        wipe(&fs)?;
        self.judge_state(&fs, true, true)?;
        fs.close().map_err(text)?;
        drop(fs);
        found_none(&disk.current())?;
        let errors = Core::check(self.config.members.of(&disk), Excused::default()).map_err(text)?;
        if !errors.is_empty() {
            return Err(format!("check: {}", errors.join("; ")));
        }
        let (Some(seed), Some(history)) = (again, disk.history()) else { return Ok(()) };
        let mut random = Prng::stream(seed, 29);
        let mut places: Vec<usize> =
            (0..AGAIN_CUTS).map(|_| random.range(acknowledged as u64, history.cut_points() as u64) as usize).collect();
        places.sort_unstable();
        for place in places {
            let image = history.image_at(place, &CrashChoice::from_seed(random.below(100)));
            self.judge(image.content(), usize::MAX, None).map_err(|e| format!("cut again at {place}: {e}"))?;
        }
        Ok(())
    }

    fn judge_state(&self, fs: &Core, removed: bool, forgotten: bool) -> Result<(), String> {
        let found = tree(fs, At::Live)?;
        let live = clear(&found);
        if live != self.live {
            return Err(format!("the live state changed: {}", difference(&self.live, &live)));
        }
        if removed && found.len() != live.len() {
            return Err("a name that was removed is back".into());
        }
        let kept: BTreeMap<Cno, CheckpointInfo> = fs.checkpoints().into_iter().map(|c| (c.cno, c)).collect();
        for (cno, (info, was)) in &self.past {
            let now = kept.get(cno);
            if info.name.is_some() && now.map(|c| &c.name) != Some(&info.name) {
                return Err(format!("of the snapshot {info:?} is left {now:?}"));
            }
            // Time lets go of those without a name.
            if now.is_none() {
                continue;
            }
            let found = tree(fs, At::Past(*cno)).map_err(|e| format!("checkpoint {cno}: {e}"))?;
            let others = clear(&found);
            if others != clear(was) {
                return Err(format!("checkpoint {cno} changed: {}", difference(&clear(was), &others)));
            }
            if forgotten && found.len() != others.len() {
                return Err(format!("checkpoint {cno} shows what was forgotten"));
            }
            // Each name at the top, with all below it, is there whole or not at all.
            for top in tops_of(was) {
                let part = |s: &State| -> State {
                    let of = |p: &Vec<u8>| p.split(|b| *b == b'/').nth(1) == Some(&top[..]);
                    s.iter().filter(|(p, _)| of(p)).map(|(p, v)| (p.clone(), v.clone())).collect()
                };
                let now = part(&found);
                if !now.is_empty() && now != part(was) {
                    return Err(format!("checkpoint {cno} shows a part of what is to be forgotten"));
                }
            }
        }
        Ok(())
    }
}

fn tops_of(s: &State) -> BTreeSet<Vec<u8>> {
    let first = |p: &Vec<u8>| p.split(|b| *b == b'/').nth(1).map(<[u8]>::to_vec);
    s.keys().filter_map(first).filter(|n| is_secret(n)).collect()
}

fn forget_one(fs: &Core, name: &[u8], inodes: &[Ino]) -> Result<(), String> {
    match fs.forget(&[name], inodes) {
        Ok(_) | Err(nenrin_core::Error::NotFound) => Ok(()),
        Err(e) => Err(format!("forgetting was refused: {e}")),
    }
}

fn wipe(fs: &Core) -> Result<(), String> {
    for _ in 0..STEPS_MAX {
        match fs.forget_step(1 << 20).map_err(text)? {
            None => return Ok(()),
            Some(s) if s.waits.is_some() => return Err(format!("it does not go on: {s:?}")),
            Some(_) => {}
        }
    }
    Err(format!("no end: {:?}", fs.forget_status()))
}

fn is_secret(path: &[u8]) -> bool {
    path.iter().any(|b| *b >= 0x80)
}

/// A state without what is secret. Directories are compared by what is in them.
fn clear(s: &State) -> State {
    s.iter().filter(|(p, _)| !is_secret(p)).map(|(p, v)| (p.clone(), v.clone())).collect()
}

fn difference(want: &State, found: &State) -> String {
    let other = |(p, v): &(&Vec<u8>, &(String, u64))| found.get(*p) != Some(*v);
    let first = want.iter().find(other).map(|(p, v)| (p, v, found.get(p)));
    let more = found.keys().find(|p| !want.contains_key(*p));
    format!("{first:?}, more: {more:?}")
}

/// Whether no secret is left on a disk.
fn found_none(image: &Image) -> Result<(), String> {
    let found = leaks(image);
    match found.first() {
        None => Ok(()),
        Some(first) => {
            Err(format!("{} secrets are left, the first at block {}, byte {}", found.len(), first / 4096, first % 4096))
        }
    }
}

/// Where 16 bytes of secrets begin.
fn leaks(image: &Image) -> Vec<u64> {
    const HIGH: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    const SECRET: u64 = 0xe0e0_e0e0_e0e0_e0e0;
    let all = image.to_vec();
    let (mut out, mut next) = (Vec::new(), 0);
    // Every 16 bytes have 8 that are aligned.
    for (i, word) in all.chunks_exact(8).enumerate() {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        let at = i * 8;
        if u64::from_ne_bytes(bytes) & HIGH != SECRET || at < next {
            continue;
        }
        let is = |b: &u8| b & 0xf0 == 0xe0;
        let before = all[..at].iter().rev().take(8).take_while(|b| is(b)).count();
        let after = all[at..].iter().take_while(|b| is(b)).count();
        if before + after >= 16 {
            out.push((at - before) as u64);
        }
        next = at + after;
    }
    out
}

fn secret(random: &mut Prng, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| 0xe0 | random.below(16) as u8).collect()
}

fn plain(random: &mut Prng, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| random.below(0x80) as u8).collect()
}

fn new_file() -> NewInode<'static> {
    NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" }
}

fn entries(fs: &Core, at: At, dir: Ino) -> Result<Vec<(Vec<u8>, Ino, FileKind)>, String> {
    let mut out = Vec::new();
    fs.readdir(at, dir, 0, &mut |e| {
        out.push((e.name, e.ino, e.kind));
        true
    })
    .map_err(text)?;
    out.retain(|(n, ..)| n != b"." && n != b"..");
    Ok(out)
}

/// Removes a name, and all below it.
fn remove(fs: &Core, parent: Ino, name: &[u8]) -> Result<(), String> {
    let attr = fs.lookup(At::Live, parent, name).map_err(text)?;
    if attr.kind() != FileKind::Directory {
        return fs.unlink(parent, name).map_err(text);
    }
    for (below, ..) in entries(fs, At::Live, attr.ino)? {
        remove(fs, attr.ino, &below)?;
    }
    fs.rmdir(parent, name).map_err(text)
}

/// Everything in a state, without what is busy.
fn tree(fs: &Core, at: At) -> Result<State, String> {
    let mut out = State::new();
    let mut open = vec![(Ino::ROOT, Vec::new())];
    while let Some((dir, path)) = open.pop() {
        for (name, ino, _) in entries(fs, at, dir)? {
            if dir == Ino::ROOT && name == BUSY {
                continue;
            }
            let path = [&path[..], b"/", &name].concat();
            let a = fs.getattr(at, ino).map_err(text)?;
            let mut sum = 0;
            for x in fs.listxattr(at, ino).map_err(text)? {
                let value = fs.getxattr(at, ino, &x).map_err(text)?;
                sum = hash::of_words(&[sum, hash::of_bytes(1, &x), hash::of_bytes(2, &value)]);
            }
            let bytes = match a.kind() {
                FileKind::Regular => fs.read(at, ino, 0, 4 << 20).map_err(text)?,
                FileKind::Symlink => fs.readlink(at, ino).map_err(text)?,
                _ => Vec::new(),
            };
            if a.kind() == FileKind::Directory {
                open.push((ino, path.clone()));
            }
            let size = if a.kind() == FileKind::Directory { 0 } else { a.size };
            let attributes = format!("{} {:o} {} {} {size} {:?}", ino, a.mode, a.uid, a.gid, a.mtime);
            out.insert(path, (attributes, hash::of_words(&[sum, hash::of_bytes(3, &bytes)])));
        }
    }
    Ok(out)
}

/// How the volume is used before: secrets among other things.
struct Story<'a> {
    config: &'a Config,
    clock: &'a Arc<VirtualClock>,
    disk: Arc<CrashDisk>,
    random: Prng,
    /// Names at the top, as they are now: a directory, and files.
    tops: [Vec<u8>; TOPS],
    /// All names that these had.
    names: Vec<Vec<u8>>,
    made: u64,
}

impl<'a> Story<'a> {
    fn tell(config: &'a Config, clock: &'a Arc<VirtualClock>) -> Result<(Image, Vec<Vec<u8>>), String> {
        let disk = Arc::new(CrashDisk::new(config.device_bytes).without_history());
        let drive = config.members.of(&disk);
        let options = MkfsOptions {
            segment_blocks: config.segment_blocks,
            uuid: [7; 16],
            hash_key: [9; 16],
            profile: drive.profile,
            ..MkfsOptions::default()
        };
        let time: Arc<dyn nenrin_core::Clock> = clock.clone();
        nenrin_core::mkfs_on(&drive.members, &time, &options).map_err(text)?;
        let mut random = Prng::stream(config.seed, 21);
        let tops = [secret(&mut random, 40), secret(&mut random, 17), secret(&mut random, 200)];
        let names = tops.to_vec();
        let mut this = Self { config, clock, disk, random, tops, names, made: 0 };
        let mut fs = open(config, &this.disk, clock)?;
        let folder = NewInode { mode: 0o040_755, uid: 0, gid: 0, rdev: 0, target: b"" };
        fs.create(Ino::ROOT, &this.tops[0].clone(), &folder).map_err(text)?;
        this.write_secret(&fs, Ino::ROOT, &this.tops[2].clone())?;
        for step in 0..config.steps.clamp(40, 120) {
            clock.advance(this.random.range(1_000_000, 400_000_000));
            match this.step(&fs) {
                Ok(()) => {}
                Err(nenrin_core::Error::NoSpace) => this.make_room(&fs)?,
                Err(e) => return Err(format!("step {step}: {e}")),
            }
            if this.random.chance(4) {
                // As a killed process does, or unmounted.
                if this.random.chance(50) {
                    fs.close().map_err(text)?;
                } else {
                    fs.sync_all().map_err(text)?;
                }
                drop(fs);
                fs = open(config, &this.disk, clock)?;
            }
        }
        this.make_room(&fs)?;
        for round in 0..TAILS {
            fs = this.leave_a_tail(fs, round)?;
        }
        fs.checkpoint_create(Some(b"last")).map_err(text)?;
        fs.sync_all().map_err(text)?;
        drop(fs);
        // What is there now first: of older names nothing may be known any more, and who goes with one call goes whole.
        let names = this.tops.iter().cloned().chain(this.names).collect();
        Ok((this.disk.current(), names))
    }

    /// A secret that no checkpoint sees goes, and a file that stays begins the segments it was in, and does not fill them.
    fn leave_a_tail(&mut self, fs: Core, round: u64) -> Result<Core, String> {
        let again = |fs: Core| -> Result<Core, String> {
            fs.close().map_err(text)?;
            drop(fs);
            open(self.config, &self.disk, self.clock)
        };
        let name = secret(&mut self.random, 20);
        let ino = fs.create(Ino::ROOT, &name, &new_file()).map_err(text)?.ino;
        let bytes = self.random.range(200_000, 400_000) as usize;
        fs.write(ino, 0, &secret(&mut self.random, bytes), 0).map_err(text)?;
        fs.sync_all().map_err(text)?;
        fs.unlink(Ino::ROOT, &name).map_err(text)?;
        let fs = again(again(fs)?)?;
        let ino = fs.create(Ino::ROOT, format!("tail {round}").as_bytes(), &new_file()).map_err(text)?.ino;
        fs.write(ino, 0, &plain(&mut self.random, 140_000), 0).map_err(text)?;
        fs.sync_all().map_err(text)?;
        again(fs)
    }

    /// A file that is filled must not keep the story from being told.
    fn make_room(&mut self, fs: &Core) -> Result<(), String> {
        for (name, ..) in entries(fs, At::Live, Ino::ROOT)?.into_iter().filter(|(n, ..)| n.starts_with(b"large")) {
            remove(fs, Ino::ROOT, &name)?;
        }
        let unnamed: Vec<Cno> = fs.checkpoints().iter().filter(|c| c.name.is_none()).map(|c| c.cno).collect();
        let half = unnamed.len() / 2;
        fs.checkpoint_drop(&unnamed[..half]).map_err(text)?;
        for _ in 0..10 {
            self.clock.advance(200_000_000);
            fs.tick().map_err(text)?;
        }
        Ok(())
    }

    fn file(&mut self, fs: &Core, dir: Ino, name: &[u8]) -> nenrin_core::Result<Ino> {
        match fs.lookup(At::Live, dir, name) {
            Ok(a) => Ok(a.ino),
            Err(_) => Ok(fs.create(dir, name, &new_file())?.ino),
        }
    }

    fn bytes(&mut self) -> usize {
        match self.random.below(4) {
            0 => self.random.range(16, 1900) as usize,
            1 => self.random.range(2000, 9000) as usize,
            2 => self.random.range(9000, 70_000) as usize,
            _ => self.random.range(70_000, 200_000) as usize,
        }
    }

    fn write_secret(&mut self, fs: &Core, dir: Ino, name: &[u8]) -> Result<(), String> {
        self.put_secret(fs, dir, name).map_err(text)
    }

    fn put_secret(&mut self, fs: &Core, dir: Ino, name: &[u8]) -> nenrin_core::Result<()> {
        let ino = self.file(fs, dir, name)?;
        let bytes = self.bytes();
        let data = secret(&mut self.random, bytes);
        if self.random.chance(30) {
            fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() })?;
        }
        let at = self.random.below(3) * 4096 + self.random.below(50);
        fs.write(ino, at, &data, 0)?;
        match self.random.below(3) {
            0 => fs.fsync_wait(ino),
            1 => fs.sync_all(),
            _ => Ok(()),
        }
    }

    fn step(&mut self, fs: &Core) -> nenrin_core::Result<()> {
        self.made += 1;
        match self.random.below(18) {
            // In place, and as editors do it.
            0 => self.put_secret(fs, Ino::ROOT, &self.tops[2].clone()),
            1 | 2 => {
                let new = secret(&mut self.random, 22);
                self.names.push(new.clone());
                self.put_secret(fs, Ino::ROOT, &new)?;
                fs.rename(Ino::ROOT, &new, Ino::ROOT, &self.tops[1], RenameMode::Replace)
            }
            3 => {
                let which = if self.random.chance(50) { 0 } else { 2 };
                let new = secret(&mut self.random, 30);
                fs.rename(Ino::ROOT, &self.tops[which], Ino::ROOT, &new, RenameMode::Replace)?;
                self.names.push(new.clone());
                self.tops[which] = new;
                Ok(())
            }
            4..=10 => self.step_inside(fs),
            _ => self.step_beside(fs),
        }
    }

    /// Something in the secret directory.
    fn step_inside(&mut self, fs: &Core) -> nenrin_core::Result<()> {
        let top = fs.lookup(At::Live, Ino::ROOT, &self.tops[0])?.ino;
        let mut inside: Vec<Vec<u8>> = Vec::new();
        fs.readdir(At::Live, top, 0, &mut |e| {
            if e.kind == FileKind::Regular {
                inside.push(e.name);
            }
            true
        })?;
        let what = self.random.below(7);
        if what < 2 || inside.is_empty() {
            let bytes = self.random.range(16, 60) as usize;
            let name = secret(&mut self.random, bytes);
            return self.put_secret(fs, top, &name);
        }
        let name = self.random.pick(&inside).cloned().unwrap_or_default();
        match what {
            2 | 3 => self.put_secret(fs, top, &name),
            4 => {
                let ino = fs.lookup(At::Live, top, &name)?.ino;
                let key = [b"user.".to_vec(), secret(&mut self.random, 20)].concat();
                let bytes = self.random.range(16, 6000) as usize;
                fs.setxattr(ino, &key, &secret(&mut self.random, bytes), XattrMode::Any)
            }
            5 => {
                let (name, target) = (secret(&mut self.random, 18), secret(&mut self.random, 100));
                fs.create(top, &name, &NewInode { mode: 0o120_777, uid: 0, gid: 0, rdev: 0, target: &target }).map(drop)
            }
            _ if self.random.chance(50) => fs.unlink(top, &name),
            _ => {
                let ino = fs.lookup(At::Live, top, &name)?.ino;
                let other = secret(&mut self.random, 24);
                self.names.push(other.clone());
                fs.link(ino, Ino::ROOT, &other).map(drop)
            }
        }
    }

    /// Something that has nothing to do with secrets.
    fn step_beside(&mut self, fs: &Core) -> nenrin_core::Result<()> {
        let n = self.random.below(5);
        match self.random.below(7) {
            0..=2 => {
                let name = format!("{} {n}", if n == 4 { "large" } else { "plain" });
                let ino = self.file(fs, Ino::ROOT, name.as_bytes())?;
                let bytes = self.bytes();
                let data = plain(&mut self.random, bytes);
                fs.write(ino, self.random.below(20_000), &data, 0)?;
                if self.random.chance(50) { fs.fsync_wait(ino) } else { Ok(()) }
            }
            3 => {
                let (from, to) = (self.file(fs, Ino::ROOT, b"plain 0")?, self.file(fs, Ino::ROOT, b"plain copy")?);
                fs.copy_range((from, 4096), (to, 0), 60_000, 0).map(drop)
            }
            4 => {
                let name = format!("snapshot {}", self.made);
                fs.checkpoint_create(self.random.chance(30).then_some(name.as_bytes())).map(drop)
            }
            5 => Subject::clean(fs),
            _ => {
                self.clock.advance(1_500_000_000);
                fs.tick()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bytes_are_found_wherever_they_lie() {
        for at in 0..40 {
            for length in [15, 16, 17, 60] {
                let mut bytes = vec![1; 4096];
                bytes[at..at + length].fill(0xe7);
                let found = leaks(&Image::from_bytes(&bytes));
                let want = if length < 16 { Vec::new() } else { vec![at as u64] };
                assert_eq!(found, want, "{length} bytes at {at}");
            }
        }
    }
}
