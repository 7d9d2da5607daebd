//! Repair under power cuts: a volume is damaged, repaired on the crash disk,
//! and the power is cut after every write and every flush of the repair. What
//! is found must be the damaged volume as it was, so that repairing it once
//! more gives the same, or the repaired one; nothing between.

use crate::clock::VirtualClock;
use crate::config::Config;
use crate::content;
use crate::driver::{Cut, Failure, Tally, failure};
use crate::hash;
use crate::ops::Op;
use crate::prng::Prng;
use crate::run::Run;
use nenrin_core::format::key::{Key, Kind};
use nenrin_core::format::node::{self, Entries, NODE_MAGIC, NODE_ROOM_BYTES, NodeHeader, TreeId};
use nenrin_core::format::packed::entry_bytes;
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::superblock::AREA_BLOCKS;
use nenrin_core::format::{BLOCK_BYTES, Ino, NODE_BYTES};
use nenrin_core::repair::{Loss, LossKind};
use nenrin_core::{AllocateMode, At, Error, FileKind, Fs, MountOptions, NewInode, RenameMode, RepairPlan, SetAttr};
use nenrin_device::{AlignedBuf, BlockDevice, CrashChoice, CrashDisk, Image};
use nenrin_fuzz::forge::forge;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

type Core = Arc<Fs>;

/// Kinds of disks tried at each cut.
const CHOICES: u64 = 5;
/// Nodes tried until one is found that the volume needs.
const TRIES: u64 = 12;

/// What a plan says when too few segments are free. Refusals for other reasons are failures.
const NO_ROOM: &str = "free segments and there are";

/// A file or directory as it is found: attributes, and a hash of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    ino: u64,
    attributes: String,
    content: Option<u64>,
}

/// How the volume is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Both copies of a leaf that the volume needs; one copy of some other nodes too.
    Leaf,
    /// Both copies of a leaf that the log changes: it cannot be applied without it.
    Behind,
    /// Every root partial there is.
    Roots,
    /// A partial in the middle of the log, behind which later ones prove that it was durable.
    Log,
    /// An item of the index says something impossible, and all checksums are right.
    Items,
    /// Both copies of a leaf with back references of shared blocks.
    Shared,
}

/// Runs the workload of `config`, damages the volume, and cuts its repair: everywhere, or in one place.
///
/// # Errors
/// The first cut that leaves something between, or a file that changed without a word.
pub fn repair_cuts(config: &Config, damage: Damage, only: Option<Cut>, tally: &mut Tally) -> Result<(), Box<Failure>> {
    cuts(config, damage, only, tally).map_err(|(cut, what)| failure(config, cut.as_slice(), what, String::new()))
}

/// What is wrong, after which cut.
type Wrong = (Option<Cut>, String);

fn cuts(config: &Config, kind: Damage, only: Option<Cut>, tally: &mut Tally) -> Result<(), Wrong> {
    let Some(case) = Case::of(config, kind).map_err(|e| (None, e))? else { return Ok(()) };
    tally.workloads += 1;
    tally.calls += config.steps as u64;
    let history = case.disk.history().ok_or_else(|| (None, "no history is kept".to_owned()))?;
    let mut cursor = history.cursor();
    let mut seen = BTreeSet::new();
    for at in 0..=history.cut_points() {
        cursor.advance_to(at);
        for choice in 0..CHOICES {
            let choice = choice + config.seed * u64::from(choice > 2);
            let cut = Cut { at, choice };
            if only.is_some_and(|o| o != cut) {
                continue;
            }
            let image = cursor.image(&CrashChoice::from_seed(choice));
            tally.count_image(image.content_hash(), "repair cut");
            if seen.insert(image.content_hash()) {
                case.judge(image.content()).map_err(|e| (Some(cut), e))?;
            }
        }
    }
    Ok(())
}

/// A damaged volume, and its repair.
struct Case {
    /// On which it was repaired.
    disk: Arc<CrashDisk>,
    clock: Arc<VirtualClock>,
    /// The losses that were told.
    told: Vec<String>,
    repaired: BTreeMap<Vec<u8>, Entry>,
}

impl Case {
    /// `None` where there is nothing to damage, or no room to repair it.
    fn of(config: &Config, kind: Damage) -> Result<Option<Self>, String> {
        let mut random = Prng::stream(config.seed, 9);
        let closed = random.chance(50) && !matches!(kind, Damage::Log | Damage::Behind);
        // A volume without room for its own checkpoints is none to repair.
        let Some((image, clock)) = used(config, closed, (kind == Damage::Behind).then_some(&mut random))? else {
            return Ok(None);
        };
        let before = tree(&image, &clock)?;
        let damaged = match kind {
            Damage::Leaf | Damage::Behind | Damage::Items | Damage::Shared => {
                damage(&image, &clock, kind, &mut random)?
            }
            Damage::Roots => destroy_roots(&image, &clock)?,
            Damage::Log => hole_in_the_log(&image, &clock, &mut random)?,
        };
        let Some(damaged) = damaged else { return Ok(None) };
        let disk = Arc::new(CrashDisk::from_image(damaged));
        let plan = plan(&disk, &clock)?;
        let told: Vec<String> = plan.report().losses.iter().map(ToString::to_string).collect();
        let paths: BTreeSet<Vec<u8>> = plan.report().losses.iter().filter_map(|l| l.path.clone()).collect();
        // That checkpoints are gone is no excuse for the live state.
        let of_past = |l: &Loss| !matches!(kind, Damage::Leaf | Damage::Behind) && l.kind == LossKind::CheckpointsLost;
        let ranges: Vec<RangeInclusive<u64>> = plan.report().losses.iter().filter_map(inodes_lost).collect();
        let excuse = |l: &Loss| l.path.is_none() && inodes_lost(l).is_none() && !of_past(l);
        // An item that was changed and says something possible is what it says.
        let unsure = kind == Damage::Items || plan.report().losses.iter().any(excuse);
        plan.carry_out(clock.clone()).map_err(|e| format!("the repair failed: {e}"))?;
        let repaired = tree(&disk.current(), &clock)?;
        for (path, entry) in &before {
            let listed = (1..=path.len()).any(|n| paths.contains(&path[..n]));
            let now = repaired.get(path);
            // What was in a lost leaf may be gone, and not be another.
            let gone = ranges.iter().any(|r| r.contains(&entry.ino)) && now.is_none_or(|e| e.content == entry.content);
            if !listed && !unsure && !gone && now != Some(entry) {
                return Err(format!("{} changed without a word; told were {told:?}", String::from_utf8_lossy(path)));
            }
        }
        Ok(Some(Self { disk, clock, told, repaired }))
    }

    /// After a cut: the same repair again, or nothing left to lose.
    fn judge(&self, image: Image) -> Result<(), String> {
        let disk = Arc::new(CrashDisk::from_image(image).without_history());
        let plan = plan(&disk, &self.clock)?;
        let now: Vec<String> = plan.report().losses.iter().map(ToString::to_string).collect();
        let structural = |l: &&Loss| l.kind.number() > 802;
        if now != self.told && plan.report().losses.iter().any(|l| structural(&l)) {
            return Err(format!("other losses than before: {now:?}, before {:?}", self.told));
        }
        plan.carry_out(self.clock.clone()).map_err(|e| e.to_string())?;
        let found = tree(&disk.current(), &self.clock)?;
        if found == self.repaired { Ok(()) } else { Err("another state than the repaired one".to_owned()) }
    }
}

/// The inodes that may have vanished without a trace.
fn inodes_lost(l: &Loss) -> Option<RangeInclusive<u64>> {
    if l.kind != LossKind::InodesLost {
        return None;
    }
    if let Some(ino) = l.ino {
        return Some(ino.0..=ino.0);
    }
    let (from, to) = l.text.split_once("items of inodes ")?.1.split_once(" to ")?;
    Some(from.parse().ok()?..=to.parse().ok()?)
}

/// A volume that was used; closed, or with its last commits in the log only, perhaps also of files that were there before.
fn used(
    config: &Config,
    closed: bool,
    old_files: Option<&mut Prng>,
) -> Result<Option<(Image, Arc<VirtualClock>)>, String> {
    let disk = Arc::new(CrashDisk::new(config.device_bytes));
    let device: Arc<dyn BlockDevice> = disk.clone();
    let mut run = Run::<Core>::format(disk, device, config.segment_blocks, config.options())?;
    if let Some(e) = run.steps(&mut config.workload(), config.steps)? {
        return Err(format!("the volume failed without a fault: {e}"));
    }
    run.step(&Op::SyncAll)?;
    run.forget();
    let clock = Arc::new(run.clock.fork());
    let disk = Arc::new(CrashDisk::from_image(run.disk.current()).without_history());
    let text = |e: Error| e.to_string();
    // So that the two usable roots share nodes.
    for _ in 0..3 {
        match Fs::open(vec![disk.clone()], clock.clone(), MountOptions::default()).and_then(|fs| fs.close()) {
            Err(Error::NoSpace) => return Ok(None),
            other => other.map_err(text)?,
        }
    }
    if !closed {
        let opened = Fs::open(vec![disk.clone()], clock.clone(), MountOptions::default());
        let Ok(fs) = opened else { return Ok(None) };
        if let Some(random) = old_files {
            if !overwrite(&fs, random).map_err(text)? {
                return Ok(None);
            }
        }
        for i in 0..6u64 {
            let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
            let created = fs.create(Ino::ROOT, format!("in the log only {i}").as_bytes(), &new);
            let f = match created {
                Err(Error::NoSpace) => return Ok(None),
                other => other.map_err(text)?,
            };
            fs.write(f.ino, 0, &content::pattern(i as u32, 0, 300), 0).map_err(text)?;
            fs.fsync_wait(f.ino).map_err(text)?;
        }
    }
    Ok(Some((disk.current(), clock)))
}

/// Changes some files in the root directory, in all ways; false where there is no room for that.
fn overwrite(fs: &Fs, random: &mut Prng) -> Result<bool, Error> {
    let mut files = Vec::new();
    fs.readdir(At::Live, Ino::ROOT, 0, &mut |e| {
        files.push((e.ino, e.name.to_vec()));
        files.len() < 40
    })?;
    for (i, (ino, name)) in files.into_iter().enumerate() {
        let a = fs.getattr(At::Live, ino)?;
        if a.kind() != FileKind::Regular || random.chance(50) {
            continue;
        }
        match change(fs, ino, &name, a.size, i as u32, random).and_then(|()| fs.sync_all()) {
            Err(Error::NoSpace) => return Ok(false),
            // It went with its last name.
            Err(Error::NotFound) => {}
            other => other?,
        }
    }
    Ok(true)
}

/// One change of a file.
fn change(fs: &Fs, ino: Ino, name: &[u8], size: u64, i: u32, random: &mut Prng) -> Result<(), Error> {
    let write = |at: u64, bytes: u64| fs.write(ino, at, &content::pattern(i, at, bytes as usize), 0).map(drop);
    let middle = (size / 2) & !(BLOCK_BYTES as u64 - 1);
    let size_is = |size: u64| fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop);
    match random.index(8) {
        0 => write(0, 5000),
        1 => write(middle, 5000),
        2 => write(size, 100_000),
        3 => size_is(middle),
        4 => {
            size_is(0)?;
            write(0, 30)
        }
        5 => fs.allocate(ino, AllocateMode::Punch, middle, 2 * BLOCK_BYTES as u64),
        6 => {
            let linked = format!("a name more {i}");
            fs.link(ino, Ino::ROOT, linked.as_bytes())?;
            fs.write(ino, middle, &content::pattern(i, middle, 5000), 0)?;
            fs.fsync_wait(ino)?;
            fs.unlink(Ino::ROOT, name)
        }
        _ => {
            let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
            let saved = fs.create(Ino::ROOT, b"saved", &new)?.ino;
            fs.write(saved, 0, &content::pattern(i, 0, 9000), 0)?;
            fs.rename(Ino::ROOT, b"saved", Ino::ROOT, name, RenameMode::Replace)
        }
    }
}

/// Whether a mount of what is on the disk shows less than the log has, and says so.
fn is_cut_short(disk: &CrashDisk, clock: &Arc<VirtualClock>) -> bool {
    let copy = Arc::new(CrashDisk::from_image(disk.current()).without_history());
    let opened = Fs::open(vec![copy], clock.clone(), MountOptions::default());
    opened.is_ok_and(|fs| fs.recovery_report().damage.is_some())
}

fn plan(disk: &Arc<CrashDisk>, clock: &Arc<VirtualClock>) -> Result<RepairPlan, String> {
    let device: Arc<dyn BlockDevice> = disk.clone();
    RepairPlan::new(&[device], clock.as_ref(), &mut |_| {}).map_err(|e| format!("no plan: {e}"))
}

/// Destroys every root partial; `None` where repair finds no room, and says so.
fn destroy_roots(image: &Image, clock: &Arc<VirtualClock>) -> Result<Option<Image>, String> {
    let disk = Arc::new(CrashDisk::from_image(image.clone()).without_history());
    for block in 0..image.bytes() / BLOCK_BYTES as u64 {
        let at = block * BLOCK_BYTES as u64;
        let bytes = disk.read(at, BLOCK_BYTES).map_err(|e| e.to_string())?;
        if Header::peek(&bytes).is_ok_and(|h| h.kind == PartialKind::Root) {
            let junk = Arc::new(AlignedBuf::padded(&[0xa5; BLOCK_BYTES]));
            disk.write(at, junk).map_err(|e| e.to_string())?;
        }
    }
    match plan(&disk, clock) {
        Ok(_) => Ok(Some(disk.current())),
        Err(e) if e.contains(NO_ROOM) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Destroys a partial of the log that is followed by two more.
fn hole_in_the_log(image: &Image, clock: &Arc<VirtualClock>, random: &mut Prng) -> Result<Option<Image>, String> {
    let disk = Arc::new(CrashDisk::from_image(image.clone()).without_history());
    let found = nenrin_core::probe(disk.as_ref()).map_err(|e| e.to_string())?;
    let newest = found.newest().map_err(|e| e.to_string())?;
    let (segment, mut block) = newest.chain;
    let first = AREA_BLOCKS + segment.0 * u64::from(newest.segment_blocks);
    let mut partials = Vec::new();
    while block < newest.segment_blocks {
        let at = (first + u64::from(block)) * BLOCK_BYTES as u64;
        let bytes = disk.read(at, BLOCK_BYTES).map_err(|e| e.to_string())?;
        let Ok(header) = Header::peek(&bytes) else { break };
        if header.kind != PartialKind::Chain || header.epoch != newest.epoch {
            break;
        }
        partials.push(at);
        block += header.total_blocks();
    }
    let Some(last) = partials.len().checked_sub(2).filter(|n| *n > 0) else { return Ok(None) };
    let at = partials[random.index(last)];
    let junk = Arc::new(AlignedBuf::padded(&[0xa5; BLOCK_BYTES]));
    disk.write(at, junk).map_err(|e| e.to_string())?;
    let plan = match plan(&disk, clock) {
        Err(e) if e.contains(NO_ROOM) => return Ok(None),
        plan => plan?,
    };
    if plan.report().losses.iter().any(|l| l.kind == LossKind::LogGap) {
        return Ok(Some(disk.current()));
    }
    Err(format!("a partial of the log is gone, and no gap is told: {:?}", plan.report()))
}

/// Damages both copies of a leaf that the volume needs.
fn damage(image: &Image, clock: &Arc<VirtualClock>, kind: Damage, random: &mut Prng) -> Result<Option<Image>, String> {
    let mut nodes: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let blocks = image.bytes() / BLOCK_BYTES as u64;
    let whole = CrashDisk::from_image(image.clone());
    for block in 0..blocks.saturating_sub(4) {
        let bytes = whole.read(block * BLOCK_BYTES as u64, NODE_BYTES).map_err(|e| e.to_string())?;
        let leaf = bytes[..4] == NODE_MAGIC.to_le_bytes() && bytes[14] == 0;
        if leaf && node::verify(&bytes) && (kind != Damage::Shared || has_backrefs(&bytes)) {
            nodes.entry(node::stored_crc(&bytes).unwrap_or(0)).or_default().push(block);
        }
    }
    let all: Vec<Vec<u64>> = nodes.into_values().collect();
    let tries = if kind == Damage::Behind { 8 * TRIES } else { TRIES };
    for _ in 0..if all.is_empty() { 0 } else { tries } {
        let disk = Arc::new(CrashDisk::from_image(image.clone()).without_history());
        let places = &all[random.index(all.len())];
        let mut bytes = vec![0xa5; NODE_BYTES];
        if kind == Damage::Items {
            let at = places[0] * BLOCK_BYTES as u64;
            bytes = disk.read(at, NODE_BYTES).map_err(|e| e.to_string())?.to_vec();
            if !impossible_item(&mut bytes, random) {
                continue;
            }
        }
        for block in places {
            let junk = Arc::new(AlignedBuf::padded(&bytes));
            disk.write(block * BLOCK_BYTES as u64, junk).map_err(|e| e.to_string())?;
        }
        if kind == Damage::Behind && !is_cut_short(&disk, clock) {
            continue;
        }
        let planned = plan(&disk, clock);
        // Refused with nothing changed: nothing to cut.
        if planned.as_ref().is_err_and(|e: &String| e.contains(NO_ROOM)) {
            continue;
        }
        if planned?.report().needed {
            return Ok(Some(disk.current()));
        }
    }
    Ok(None)
}

/// The entries of an intact leaf.
fn entries(bytes: &[u8]) -> Vec<(Key, Arc<[u8]>)> {
    let Ok((head, _)) = NodeHeader::read_prefix(bytes) else { return Vec::new() };
    match node::decode(TreeId(head.tree.get()), bytes) {
        Ok((_, Entries::Leaf(entries))) => entries,
        _ => Vec::new(),
    }
}

fn has_backrefs(bytes: &[u8]) -> bool {
    entries(bytes).iter().any(|(key, _)| key.kind == Kind::Backref)
}

/// Changes eight bytes of an item, and the padding so that the checksum stays. False where there is no room.
fn impossible_item(bytes: &mut [u8], random: &mut Prng) -> bool {
    let Ok((head, _)) = NodeHeader::read_prefix(bytes) else { return false };
    let crc = head.crc.get();
    let mut all = entries(bytes);
    if all.is_empty() {
        return false;
    }
    let (base, at) = (all[0].0, random.index(all.len()));
    let mut value = all[at].1.to_vec();
    if value.len() < 16 {
        return false;
    }
    let field = random.index(value.len() / 8) * 8;
    value[field..field + 8].copy_from_slice(&random.next_u64().to_le_bytes());
    all[at].1 = value.into();
    // The last four bytes are what the checksum is set right with.
    if all.iter().map(|(k, v)| entry_bytes(&base, k, v)).sum::<usize>() + 4 > NODE_ROOM_BYTES {
        return false;
    }
    let again = node::encode(TreeId(head.tree.get()), head.level, head.generation.get(), &Entries::Leaf(all));
    bytes.copy_from_slice(&again);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    forge(bytes, crc);
    true
}

/// Everything on the volume, by path.
fn tree(image: &Image, clock: &Arc<VirtualClock>) -> Result<BTreeMap<Vec<u8>, Entry>, String> {
    let disk = Arc::new(CrashDisk::from_image(image.clone()).without_history());
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = Fs::open(vec![disk], clock.clone(), options).map_err(|e| e.to_string())?;
    let mut out = BTreeMap::new();
    let mut open = vec![(Ino::ROOT, Vec::new())];
    while let Some((dir, path)) = open.pop() {
        let mut entries = Vec::new();
        fs.readdir(At::Live, dir, 0, &mut |e| {
            entries.push(e);
            true
        })
        .map_err(|e| e.to_string())?;
        for e in entries.into_iter().filter(|e| e.name != b"." && e.name != b"..") {
            let path = [&path[..], b"/", &e.name].concat();
            let a = fs.getattr(At::Live, e.ino).map_err(|e| e.to_string())?;
            let content = match a.kind() {
                FileKind::Regular => content_hash(&fs, e.ino, a.size),
                FileKind::Directory => {
                    open.push((e.ino, path.clone()));
                    Some(0)
                }
                _ => Some(0),
            };
            let nlink = if a.kind() == FileKind::Directory { 0 } else { a.nlink };
            let attributes = format!("{:o} {} {} {} {}", a.mode, a.uid, a.gid, nlink, a.rdev);
            out.insert(path, Entry { ino: e.ino.0, attributes, content });
        }
    }
    Ok(out)
}

/// `None` when the file cannot be read.
fn content_hash(fs: &Core, ino: Ino, size: u64) -> Option<u64> {
    let mut sum = size;
    let mut at = 0;
    while at < size.min(64 << 20) {
        let bytes = fs.read(At::Live, ino, at, content::PAGE_BYTES * 64).ok()?;
        sum = hash::of_words(&[sum, u64::from(nenrin_core::format::crc(&bytes))]);
        at += (content::PAGE_BYTES * 64) as u64;
    }
    Some(sum)
}
