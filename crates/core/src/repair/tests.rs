//! Volumes damaged in every way that can be thought of: after the repair the
//! check is clean, a second repair finds nothing to do, and every file that
//! was not listed is what it was.

use super::{LossKind, RepairPlan, RepairReport};
use crate::check::{CheckOptions, check};
use crate::fs::Opened;
use crate::recovery::recover;
use crate::state::State;
use crate::storage::probe;
use crate::testing::TestClock;
use crate::{
    At, Clock, Error, FileKind, Fs, MkfsOptions, MountOptions, NewInode, RenameMode, SetAttr, XattrMode, mkfs,
};
use nenrin_device::{BlockDevice, MemDevice, Prng};
use nenrin_format::key::Key;
use nenrin_format::node::NodePtr;
use nenrin_format::superblock::{segment_block, slot_blocks};
use nenrin_format::{Addr, BLOCK_BYTES, Generation, Ino, NODE_BYTES};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) fn clock() -> Arc<dyn Clock> {
    Arc::new(TestClock::default())
}

pub(super) fn new(mode: u32) -> NewInode<'static> {
    NewInode { mode, uid: 7, gid: 8, rdev: 0, target: b"" }
}

/// The bytes of a volume with some of everything, in several leaves.
pub(super) fn volume(files: u64, clean: bool) -> Vec<u8> {
    let device: Arc<MemDevice> = Arc::new(MemDevice::new(48 << 20));
    let shared: Arc<dyn BlockDevice> = device.clone();
    mkfs(&shared, &clock(), &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
    let open = || Fs::open(vec![shared.clone()], clock(), MountOptions::default()).unwrap();
    let fs = open();
    let mut dirs = vec![Ino::ROOT];
    for d in 0..6u64 {
        let parent = dirs[(d / 2) as usize];
        dirs.push(fs.create(parent, format!("directory {d}").as_bytes(), &new(0o040_755)).unwrap().ino);
    }
    let mut random = Prng::new(files);
    for i in 0..files {
        let dir = dirs[random.below(dirs.len() as u64) as usize];
        let name = format!("a file with a name of some length {i}");
        let ino = match i % 16 {
            0 => {
                let link = NewInode { target: b"to/where/it/leads", ..new(0o120_777) };
                fs.create(dir, name.as_bytes(), &link).unwrap();
                continue;
            }
            _ => fs.create(dir, name.as_bytes(), &new(0o100_640)).unwrap().ino,
        };
        let bytes = match i % 16 {
            1 => 200_000,
            2..=5 => 9_000,
            6..=9 => 1_000,
            10 => 0,
            _ => 5_000,
        };
        fs.write(ino, 0, &vec![(i % 251) as u8 + 1; bytes], 0).unwrap();
        if i % 16 == 11 {
            fs.write(ino, 40 * 4096, &[9; 8192], 0).unwrap();
            fs.link(ino, dirs[1], format!("second name {i}").as_bytes()).unwrap();
        }
        if i % 16 == 12 {
            fs.setxattr(ino, b"user.some", &[5; 5000], XattrMode::Any).unwrap();
        }
        if i == files / 2 {
            fs.checkpoint_create(Some(b"half")).unwrap();
        }
        if i % 64 == 63 {
            fs.sync_all().unwrap();
        }
    }
    fs.checkpoint_create(Some(b"all")).unwrap();
    for d in &dirs[1..4] {
        fs.create(*d, b"late", &new(0o100_600)).unwrap();
    }
    fs.close().unwrap();
    // So that the usable roots share nearly all nodes.
    for _ in 0..4 {
        open().close().unwrap();
    }
    if !clean {
        let fs = open();
        for d in &dirs {
            let f = fs.create(*d, b"after the last checkpoint", &new(0o100_600)).unwrap();
            fs.write(f.ino, 0, &[77; 6000], 0).unwrap();
            fs.fsync_wait(f.ino).unwrap();
        }
    }
    device.snapshot()
}

pub(super) fn device(bytes: &[u8]) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::from_bytes(bytes.to_vec()))
}

/// A file as it is found: inode, mode, size, names, content, attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub ino: Ino,
    pub mode: u32,
    pub owner: (u32, u32),
    pub size: u64,
    nlink: u32,
    pub content: Result<Vec<u8>, ()>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub(super) fn tree(fs: &Fs, at: At) -> BTreeMap<Vec<u8>, File> {
    let mut out = BTreeMap::new();
    let mut open = vec![(Ino::ROOT, Vec::new())];
    while let Some((dir, path)) = open.pop() {
        let mut entries = Vec::new();
        fs.readdir(at, dir, 0, &mut |e| {
            entries.push(e);
            true
        })
        .unwrap();
        for e in entries.into_iter().filter(|e| e.name != b"." && e.name != b"..") {
            let path = [&path[..], b"/", &e.name].concat();
            let a = fs.lookup(at, dir, &e.name).unwrap();
            assert_eq!(a.ino, e.ino);
            let content = match a.kind() {
                FileKind::Regular => fs.read(at, a.ino, 0, 1 << 22).map_err(drop),
                FileKind::Symlink => fs.readlink(at, a.ino).map_err(drop),
                _ => Ok(Vec::new()),
            };
            let mut xattrs = BTreeMap::new();
            for name in fs.listxattr(at, a.ino).unwrap() {
                let value = fs.getxattr(at, a.ino, &name).unwrap();
                xattrs.insert(name, value);
            }
            if a.kind() == FileKind::Directory {
                open.push((a.ino, path.clone()));
            }
            let is_dir = a.kind() == FileKind::Directory;
            let (nlink, size) = if is_dir { (0, 0) } else { (a.nlink, a.size) };
            let file = File { ino: a.ino, mode: a.mode, owner: (a.uid, a.gid), size, nlink, content, xattrs };
            out.insert(path, file);
        }
    }
    out
}

pub(super) fn read_only(bytes: &[u8]) -> Arc<Fs> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    Fs::open(vec![device(bytes)], clock(), options).unwrap()
}

pub(super) fn numbers(device: &Arc<dyn BlockDevice>) -> BTreeSet<u16> {
    let report = check(std::slice::from_ref(device), &CheckOptions { data: true }, &mut |_| {}).unwrap();
    let errors = report.findings.iter().filter(|f| super::is_of_structure(f.what));
    errors
        .map(|f| {
            println!("  {f}");
            f.what.number()
        })
        .collect()
}

thread_local! {
    /// Numbers that the repairs of this test have said.
    static SAID: RefCell<BTreeSet<u16>> = const { RefCell::new(BTreeSet::new()) };
}

fn note_said(report: &RepairReport) {
    let losses = report.losses.iter().map(|l| l.kind.number());
    let mends = report.mends.iter().map(|(kind, _)| kind.number());
    SAID.with_borrow_mut(|s| s.extend(losses.chain(mends)));
}

/// Each of these losses and mends was said by a repair of this test.
#[track_caller]
pub(super) fn assert_said(numbers: &[u16]) {
    SAID.with_borrow(|said| {
        println!("said: {said:?}");
        assert!(numbers.iter().all(|n| said.contains(n)), "{said:?}");
    });
}

/// Repairs the bytes; what is repaired is clean, and a second repair has nothing to do.
pub(super) fn repair(bytes: &[u8]) -> (Vec<u8>, RepairReport) {
    let memory = Arc::new(MemDevice::from_bytes(bytes.to_vec()));
    let device: Arc<dyn BlockDevice> = memory.clone();
    let plan = RepairPlan::new(std::slice::from_ref(&device), &TestClock::default(), &mut |_| {}).unwrap();
    assert_eq!(memory.snapshot(), bytes, "planning wrote something");
    let report = plan.carry_out(clock()).unwrap();
    note_said(&report);
    for l in &report.losses {
        println!("  {l}");
    }
    assert_eq!(numbers(&device), BTreeSet::new(), "{report:?}");
    let after = memory.snapshot();
    let written = segments_written(bytes, &after);
    assert!(written <= report.segments_needed, "{written} segments were written: {report:?}");
    let again = RepairPlan::new(&[device], &TestClock::default(), &mut |_| {}).unwrap();
    assert!(!again.report().needed, "{:?}", again.report());
    assert_eq!(again.report().leaves_damage(), report.leaves_damage());
    (after, report)
}

/// Segments whose bytes differ.
fn segments_written(before: &[u8], after: &[u8]) -> u64 {
    let sb = probe(&MemDevice::from_bytes(before.to_vec())).unwrap().newest().unwrap().clone();
    let bytes = sb.segment_blocks as usize * BLOCK_BYTES;
    let segments = (0..sb.segments()).filter(|i| {
        let at = segment_block(*i as u32, sb.segment_blocks) as usize * BLOCK_BYTES;
        before[at..at + bytes] != after[at..at + bytes]
    });
    segments.count() as u64
}

/// Paths that are listed, and the ranges of inodes that may have vanished.
struct Listed {
    paths: BTreeSet<Vec<u8>>,
    inos: BTreeSet<Ino>,
    vanished: Vec<(u64, u64)>,
}

impl Listed {
    fn new(report: &RepairReport) -> Self {
        let mut this = Self { paths: BTreeSet::new(), inos: BTreeSet::new(), vanished: Vec::new() };
        for l in &report.losses {
            this.paths.extend(l.path.clone());
            if l.kind == LossKind::InodesLost {
                let n: Vec<u64> = l.text.split(' ').filter_map(|w| w.parse().ok()).collect();
                match (n.as_slice(), l.ino) {
                    ([from, to], _) => this.vanished.push((*from, *to)),
                    (_, Some(ino)) => this.vanished.push((ino.0, ino.0)),
                    _ => panic!("{l}"),
                }
            } else {
                this.inos.extend(l.ino);
            }
        }
        this
    }
    /// Whether the path, or a directory above it, is listed.
    fn has(&self, path: &[u8]) -> bool {
        (1..=path.len()).any(|n| (n == path.len() || path[n] == b'/') && self.paths.contains(&path[..n]))
    }
}

/// Every file that is not listed is what it was.
pub(super) fn assert_exact(before: &BTreeMap<Vec<u8>, File>, after: &BTreeMap<Vec<u8>, File>, report: &RepairReport) {
    let listed = Listed::new(report);
    let mut same = 0;
    for (path, file) in before {
        let text = String::from_utf8_lossy(path);
        match after.get(path) {
            Some(f) if f == file => same += 1,
            Some(f) if f.ino != file.ino => panic!("{text} names inode {} instead of {}", f.ino, file.ino),
            Some(f) => {
                assert!(
                    listed.has(path) || listed.inos.contains(&f.ino),
                    "{text} is not what it was: {} {:o} {} {:?}, {} {:o} {} {:?}",
                    f.nlink,
                    f.mode,
                    f.size,
                    f.owner,
                    file.nlink,
                    file.mode,
                    file.size,
                    file.owner
                );
                // What is read is what was there, whatever is missing.
                if let (Ok(now), Ok(then)) = (&f.content, &file.content) {
                    assert_eq!(now, then, "{text} has other content");
                }
            }
            None => {
                let vanished = listed.vanished.iter().any(|(a, b)| (*a..=*b).contains(&file.ino.0));
                let moved = after.values().any(|f| f.ino == file.ino);
                let above = listed.inos.contains(&file.ino);
                assert!(
                    listed.has(path) || vanished || moved || above,
                    "{text}, inode {}, is gone without a word",
                    file.ino
                );
            }
        }
    }
    println!("{same} of {} files are what they were", before.len());
    let report = after.keys().filter(|p| !before.contains_key(*p) && !p.starts_with(b"/lost+found")).count();
    assert_eq!(report, 0, "names came out of nothing");
}

pub(super) fn offset(bytes: &[u8], addr: Addr) -> usize {
    let sb = probe(&MemDevice::from_bytes(bytes.to_vec())).unwrap().newest().unwrap().clone();
    (segment_block(addr.segment().0 as u32, sb.segment_blocks) as usize + addr.block() as usize) * BLOCK_BYTES
}

/// All nodes of the newest root: tree, level and place.
pub(super) fn nodes(bytes: &[u8]) -> Vec<(u32, u8, NodePtr)> {
    let opened = recover(&[device(bytes)], &MountOptions { read_only: true, ..MountOptions::default() }).unwrap();
    let s = &opened.state;
    let mut out = Vec::new();
    for tree in [&s.live, &s.space].into_iter().chain(s.history.iter().map(|t| &t.tree)) {
        let mut found = Vec::new();
        let mut from = Some(super::mender::FIRST);
        while let Some(first) = from {
            from = tree.nodes_from(&s.cache, &first, 1 << 20, &mut found).unwrap();
        }
        out.extend(found.into_iter().map(|n| (tree.id().0, n.level, n.ptr)));
    }
    out
}

pub(super) fn destroy(bytes: &mut [u8], ptr: &NodePtr) {
    for addr in ptr.copies {
        let at = offset(bytes, addr);
        bytes[at..at + NODE_BYTES].fill(0xa5);
    }
}

#[test]
fn a_sound_volume_needs_nothing() {
    for clean in [true, false] {
        let bytes = volume(200, clean);
        let (after, report) = repair(&bytes);
        assert!(!report.needed && report.losses.is_empty(), "{report:?}");
        assert_eq!(after, bytes);
    }
}

#[test]
fn damaged_copies_and_slots_are_written_anew() {
    let bytes = volume(300, true);
    let before = tree(&read_only(&bytes), At::Live);
    let all = nodes(&bytes);
    let mut damaged = bytes.clone();
    for (i, (_, _, ptr)) in all.iter().enumerate() {
        let at = offset(&bytes, ptr.copies[i % 2]);
        damaged[at + 99] ^= 1;
    }
    let sb = probe(&MemDevice::from_bytes(bytes.clone())).unwrap().newest().unwrap().clone();
    let slot = slot_blocks(sb.generation, (bytes.len() / BLOCK_BYTES) as u64)[0];
    damaged[slot as usize * BLOCK_BYTES + 70] ^= 1;
    let (after, report) = repair(&damaged);
    assert!(report.needed && report.losses.is_empty(), "{report:?}");
    assert_eq!(tree(&read_only(&after), At::Live), before);
    assert_said(&[901, 902]);
}

/// A block of content, and a file that was changed twice, the first time where the log is damaged.
#[test]
fn content_that_is_damaged_or_uncertain_is_told() {
    let bytes = volume(40, true);
    let mut damaged = bytes.clone();
    let block = damaged.chunks(BLOCK_BYTES).position(|b| b.iter().all(|x| *x == 2)).unwrap();
    damaged[block * BLOCK_BYTES + 9] ^= 1;
    repair(&damaged);
    assert_said(&[801]);
    let memory = Arc::new(MemDevice::from_bytes(bytes));
    let clock = Arc::new(TestClock::default());
    let fs = Fs::open(vec![memory.clone()], clock.clone(), MountOptions::default()).unwrap();
    let known = fs.create(Ino::ROOT, b"known", &new(0o100_600)).unwrap().ino;
    fs.sync_all().unwrap();
    fs.index_checkpoint(true).unwrap();
    let gap = fs.superblock().chain;
    for round in 0..4 {
        fs.write(known, 0, &[round; 9000], 0).unwrap();
        fs.fsync_wait(known).unwrap();
    }
    clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
    fs.tick().unwrap();
    let mut damaged = memory.snapshot();
    let at = offset(&damaged, Addr::new(gap.0, gap.1));
    damaged[at + 70] ^= 4;
    repair(&damaged);
    assert_said(&[807, 809]);
}

/// The newest root cannot be read, the one before and the log can.
#[test]
fn an_older_root_will_do() {
    let mut damaged = volume(40, false);
    let newest = probe(&MemDevice::from_bytes(damaged.clone())).unwrap().newest().unwrap().clone();
    for (addr, _) in newest.root {
        let at = offset(&damaged, addr);
        damaged[at + 70] ^= 4;
    }
    repair(&damaged);
    assert_said(&[907, 908]);
}

/// Slots are written from the newest root, and nothing else: also that of the newest itself, and with a log behind it.
fn slots_alone() {
    for clean in [true, false] {
        let bytes = volume(300, clean);
        let before = tree(&read_only(&bytes), At::Live);
        let sb = probe(&MemDevice::from_bytes(bytes.clone())).unwrap().newest().unwrap().clone();
        let slots = |back: u64| slot_blocks(Generation(sb.generation.0 - back), (bytes.len() / BLOCK_BYTES) as u64);
        for which in [vec![slots(0)[0]], vec![slots(2)[1]], vec![slots(1)[0], slots(3)[0], slots(3)[1]]] {
            let mut damaged = bytes.clone();
            for slot in which {
                damaged[slot as usize * BLOCK_BYTES + 70] ^= 1;
            }
            let (after, report) = repair(&damaged);
            assert!(report.needed || !clean, "{report:?}");
            assert!(report.segments_needed == 0, "a repair of slots writes segments: {report:?}");
            assert_eq!(tree(&read_only(&after), At::Live), before);
            let memory = Arc::new(MemDevice::from_bytes(after));
            let fs = Fs::open(vec![memory.clone()], clock(), MountOptions::default()).unwrap();
            fs.create(Ino::ROOT, b"goes on", &new(0o100_600)).unwrap();
            fs.close().unwrap();
            // What a mount that was cut was writing, perhaps, is no damage: it is written again in time.
            let after = numbers(&(memory as Arc<dyn BlockDevice>));
            assert!(after.is_empty() || !report.needed, "{after:?}");
        }
    }
}

#[test]
fn slots_alone_take_no_room() {
    slots_alone();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a repair of slots writes segments")]
fn slots_that_take_room_are_noticed() {
    crate::breaks::with(crate::breaks::Break::SlotsTakeRoom, slots_alone);
}

/// A plan for which there is no room says so, and writes nothing. Of a volume with less room than df leaves.
#[cfg(feature = "breaks")]
#[test]
fn a_repair_without_room_is_refused() {
    let bytes = volume(1700, true);
    let memory = Arc::new(MemDevice::from_bytes(bytes));
    let fs = Fs::open(vec![memory.clone()], clock(), MountOptions::default()).unwrap();
    let big = fs.create(Ino::ROOT, b"all the rest", &new(0o100_600)).unwrap().ino;
    let mut full = (0..4096).map(|i| fs.write(big, i << 16, &[3; 1 << 16], 0).and_then(|_| fs.sync_all()));
    let mut refused = || full.any(|r| matches!(r, Err(Error::NoSpace)));
    assert!(crate::breaks::with(crate::breaks::Break::SummariesAreRoom, &mut refused));
    drop(full);
    fs.close().unwrap();
    drop(fs);
    let mut damaged = memory.snapshot();
    for (_, _, ptr) in nodes(&damaged) {
        let at = offset(&damaged, ptr.copies[0]);
        damaged[at + 99] ^= 1;
    }
    let memory = Arc::new(MemDevice::from_bytes(damaged.clone()));
    let device: Arc<dyn BlockDevice> = memory.clone();
    let refused = RepairPlan::new(&[device], &TestClock::default(), &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("free segments and there are") && refused.contains("nothing was changed"), "{refused}");
    println!("{refused}");
    assert_eq!(memory.snapshot(), damaged);
}

#[test]
fn any_node_may_be_lost() {
    let bytes = volume(400, true);
    let before = tree(&read_only(&bytes), At::Live);
    let all = nodes(&bytes);
    assert!(all.len() > 20, "{}", all.len());
    for (tree_id, level, ptr) in all.iter().filter(|(tree, level, _)| *tree != 1 || *level == 0) {
        println!("tree {tree_id} level {level} at {}", ptr.copies[0]);
        let mut damaged = bytes.clone();
        destroy(&mut damaged, ptr);
        let (after, report) = repair(&damaged);
        assert!(report.needed);
        let fs = read_only(&after);
        assert_exact(&before, &tree(&fs, At::Live), &report);
        for c in fs.checkpoints() {
            let mut names = 0;
            fs.readdir(At::Past(c.cno), Ino::ROOT, 0, &mut |_| {
                names += 1;
                true
            })
            .unwrap_or_else(|e| println!("  checkpoint {}: {e}", c.cno));
            println!("  checkpoint {}: {names} names", c.cno);
        }
    }
    assert_said(&[802, 803, 804, 806, 810, 811]);
}

#[test]
fn random_damage_and_then_use() {
    let bytes = volume(400, false);
    let before = tree(&read_only(&bytes), At::Live);
    let all = nodes(&bytes);
    for seed in 0..16 {
        println!("seed {seed}");
        let mut random = Prng::new(seed);
        let mut damaged = bytes.clone();
        for _ in 0..1 + random.below(6) {
            let (tree, level, ptr) = &all[random.below(all.len() as u64) as usize];
            if *tree != 1 || *level == 0 {
                destroy(&mut damaged, ptr);
            }
        }
        let (after, report) = repair(&damaged);
        assert_exact(&before, &tree(&read_only(&after), At::Live), &report);
        // The repaired volume can be used, and stays sound.
        let memory: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(after));
        let fs = Fs::open(vec![memory.clone()], clock(), MountOptions::default()).unwrap();
        for i in 0..200 {
            let f = fs.create(Ino::ROOT, format!("new {i}").as_bytes(), &new(0o100_600)).unwrap();
            fs.write(f.ino, 0, &[3; 9000], 0).unwrap();
        }
        fs.close().unwrap();
        assert_eq!(numbers(&memory), BTreeSet::new());
    }
}

/// What was lost stays an error for checkpoints that saw it, whatever is written there later.
#[test]
fn a_lost_range_is_no_hole_in_the_past_either() {
    let bytes = volume(400, true);
    let mut seen = 0;
    for (_, _, ptr) in nodes(&bytes).iter().filter(|(tree, level, _)| *tree == 1 && *level == 0) {
        let mut damaged = bytes.clone();
        destroy(&mut damaged, ptr);
        let (after, report) = repair(&damaged);
        let lost = report.losses.iter().find(|l| l.kind == LossKind::RangeLost && l.path.is_some());
        let Some((ino, (from, to))) = lost.and_then(|l| l.ino.zip(l.range)) else { continue };
        let memory: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(after));
        let fs = Fs::open(vec![memory], clock(), MountOptions::default()).unwrap();
        assert!(fs.read(At::Live, ino, from, 4096).is_err());
        let cno = fs.checkpoint_create(Some(b"with a lost range")).unwrap().cno;
        fs.write(ino, from / 4096 * 4096, &vec![1; to.div_ceil(4096) as usize * 4096], 0).unwrap();
        fs.sync_all().unwrap();
        fs.read(At::Live, ino, from, 4096).unwrap();
        assert!(fs.read(At::Past(cno), ino, from, 4096).is_err(), "{lost:?}");
        seen += 1;
    }
    assert!(seen > 0);
}

/// The test above can fail: `scripts/crash.sh` runs this.
#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "range: Some")]
fn a_lost_range_that_is_a_hole_in_the_past_is_noticed() {
    crate::breaks::with(crate::breaks::Break::LostIsReserved, a_lost_range_is_no_hole_in_the_past_either);
}

/// States that no damage of bytes makes: items changed behind the back of the records.
#[test]
fn any_item_with_any_bytes() {
    let bytes = volume(60, true);
    let mut refused = 0;
    for seed in 0..120 {
        println!("seed {seed}");
        let mut random = Prng::new(seed);
        let device = device(&bytes);
        let options = MountOptions::default();
        let mut opened: Opened = recover(std::slice::from_ref(&device), &options).unwrap();
        for _ in 0..1 + random.below(4) {
            change_an_item(&mut opened.state, &mut random);
        }
        let fs = Fs::assemble(opened, clock(), options);
        for _ in 0..2 {
            fs.index_checkpoint(true).unwrap();
        }
        if numbers(&device).is_empty() {
            continue;
        }
        match RepairPlan::new(std::slice::from_ref(&device), &TestClock::default(), &mut |_| {}) {
            Ok(plan) => note_said(&plan.carry_out(clock()).unwrap()),
            Err(Error::Open(why)) => {
                println!("refused: {why}");
                refused += 1;
                continue;
            }
            Err(e) => panic!("{e}"),
        }
        assert_eq!(numbers(&device), BTreeSet::new());
        let again = RepairPlan::new(&[device], &TestClock::default(), &mut |_| {}).unwrap();
        assert!(!again.report().needed, "{:?}", again.report());
    }
    assert_eq!(refused, 0);
    assert_said(&[813, 903, 904, 905, 906]);
}

fn change_an_item(s: &mut State, random: &mut Prng) {
    let mut all: Vec<(Key, Vec<u8>)> = Vec::new();
    let which = random.below(3) as usize;
    let trees = [&s.live, &s.space, &s.history[0].tree];
    trees[which]
        .walk(&s.cache, &mut |k, v| {
            all.push((*k, v.to_vec()));
            Ok(())
        })
        .unwrap();
    let (mut key, mut value) = all.swap_remove(random.below(all.len() as u64) as usize);
    let i = random.below(value.len() as u64) as usize;
    let mut remove = false;
    match random.below(7) {
        0 => value[i] = random.below(256) as u8,
        1 => value[i] ^= 1 << random.below(8),
        2 => value[i / 8 * 8..].iter_mut().take(8).for_each(|b| *b = 0xff),
        3 => value.truncate(i),
        4 => key.off = key.off.wrapping_add([1, 1 << 40, u64::MAX][random.below(3) as usize]),
        5 => key.ino = [0, 1, 16, 18, u64::MAX][random.below(5) as usize],
        _ => remove = true,
    }
    let tree = match which {
        0 => &mut s.live,
        1 => &mut s.space,
        _ => &mut s.history[0].tree,
    };
    if remove {
        drop(tree.remove(&s.cache, &key).unwrap());
    } else {
        drop(tree.insert(&s.cache, key, value.into()).unwrap());
    }
}

/// A file that was emptied twice, and removed with so many blocks in it: what had many is not reaped yet.
fn with_old_forks(blocks: usize) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    mkfs(&device, &clock(), &MkfsOptions::default()).unwrap();
    let fs = Fs::open(vec![device.clone()], clock(), MountOptions::default()).unwrap();
    let ino = fs.create(Ino::ROOT, b"f", &new(0o100_600)).unwrap().ino;
    let write = |blocks: usize| {
        for at in (0..blocks).step_by(256) {
            fs.write(ino, at as u64 * 4096, &[1; 256 * 4096], 0).unwrap();
        }
        fs.fsync_wait(ino).unwrap();
    };
    for _ in 0..2 {
        write(1280);
        fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        fs.fsync_wait(ino).unwrap();
    }
    write(blocks);
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.close().unwrap();
    device
}

/// They are nobody's: a repair makes no file of them, and leaves nothing of them behind, whichever of what says so is lost.
#[test]
fn old_forks_of_what_was_removed_are_reaped() {
    let all = |device: &Arc<dyn BlockDevice>| {
        let opened = recover(std::slice::from_ref(device), &MountOptions::default()).unwrap();
        let mut keys = BTreeSet::new();
        while let Some(key) = opened.state.next_reap(&|key| keys.contains(key)).unwrap() {
            keys.insert(key);
        }
        keys.into_iter().collect::<Vec<_>>()
    };
    for (blocks, count) in [(0, 2), (3072, 3)] {
        for lost in (0..count).map(Some).chain([None]) {
            let device = with_old_forks(blocks);
            let options = MountOptions::default();
            let pending = all(&device);
            assert_eq!(pending.len(), count, "{pending:?}");
            let mut opened: Opened = recover(std::slice::from_ref(&device), &options).unwrap();
            let s = &mut opened.state;
            if let Some(lost) = lost {
                s.space.remove(&s.cache, &pending[lost]).unwrap();
            }
            // So that there is something to be repaired in any case.
            let mut root = s.need_inode(Ino::ROOT).unwrap();
            root.entries += 1;
            s.put_inode(Ino::ROOT, root).unwrap();
            Fs::assemble(opened, clock(), options.clone()).index_checkpoint(true).unwrap();
            let plan = RepairPlan::new(std::slice::from_ref(&device), &TestClock::default(), &mut |_| {}).unwrap();
            let report = plan.carry_out(clock()).unwrap();
            assert!(report.needed && report.losses_total == 0, "{report:?}");
            assert_eq!(numbers(&device), BTreeSet::new(), "{blocks}, {lost:?}");
            // What nothing was wrong with stays as it was.
            assert!(lost.is_some() || all(&device) == pending, "{blocks}: {:?}", all(&device));
            let time = Arc::new(TestClock::default());
            let fs = Fs::open(vec![device.clone()], time.clone(), options).unwrap();
            for _ in 0..100 {
                time.0.fetch_add(100_000_000, Ordering::Relaxed);
                fs.tick().unwrap();
            }
            assert!(fs.usage().live_blocks < 100 && fs.usage().inodes == 1, "{blocks}, {lost:?}: {:?}", fs.usage());
            fs.close().unwrap();
            assert_eq!(numbers(&device), BTreeSet::new(), "{blocks}, {lost:?}");
        }
    }
}

/// A volume whose log has one commit for each of many files, and the places of its partials.
fn with_log() -> (Vec<u8>, Vec<Addr>) {
    let device: Arc<MemDevice> = Arc::new(MemDevice::from_bytes(volume(40, true)));
    let clock = Arc::new(TestClock::default());
    let fs = Fs::open(vec![device.clone()], clock.clone(), MountOptions::default()).unwrap();
    let first = fs.superblock().chain;
    let dir = fs.create(Ino::ROOT, b"first directory", &new(0o040_755)).unwrap().ino;
    fs.sync_all().unwrap();
    for i in 0..30u32 {
        let parent = if i % 3 == 0 { Ino::ROOT } else { dir };
        let f = fs.create(parent, format!("committed {i}").as_bytes(), &new(0o100_600)).unwrap();
        fs.write(f.ino, 0, &vec![i as u8 + 1; 3000 + 900 * i as usize], 0).unwrap();
        if i == 12 {
            fs.create(Ino::ROOT, b"second directory", &new(0o040_700)).unwrap();
        }
        if i == 16 {
            let (old, new) = (b"second directory", b"a directory by another name");
            fs.rename(Ino::ROOT, old, Ino::ROOT, new, RenameMode::Replace).unwrap();
        }
        if i == 20 {
            fs.checkpoint_create(Some(b"in the log")).unwrap();
        }
        fs.fsync_wait(f.ino).unwrap();
    }
    // The durable mark, without which the end might as well be the end.
    clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
    fs.tick().unwrap();
    let bytes = device.snapshot();
    let mut places = Vec::new();
    let mut at = Addr::new(first.0, first.1);
    while let Ok(s) = nenrin_format::partial::Header::decode(&bytes[offset(&bytes, at)..]) {
        places.push(at);
        let next = at.block() + s.header.total_blocks();
        at = Addr::new(at.segment(), next);
        if next >= 64 || nenrin_format::partial::Header::decode(&bytes[offset(&bytes, at)..]).is_err() {
            match s.header.next {
                Some(n) => at = Addr::new(n, 0),
                None => break,
            }
        }
    }
    (bytes, places)
}

/// One partial after another is damaged, and what the others have is there afterwards.
fn behind_damage() {
    let (bytes, places) = with_log();
    let before = tree(&read_only(&bytes), At::Live);
    let files = |tree: &BTreeMap<Vec<u8>, File>| -> BTreeSet<Vec<u8>> {
        let regular = tree.values().filter(|f| f.mode & 0o170_000 == 0o100_000);
        regular.filter_map(|f| f.content.clone().ok()).collect()
    };
    assert!(places.len() >= 31, "{}", places.len());
    let mut most = 0;
    for n in 0..places.len() - 2 {
        println!("partial {n} at {}", places[n]);
        let mut damaged = bytes.clone();
        damaged[offset(&bytes, places[n]) + 70] ^= 4;
        let (after, report) = repair(&damaged);
        let gap = report.losses.iter().find(|l| l.kind == LossKind::LogGap).map(|l| l.text.as_str());
        assert!(gap.is_some_and(|text| text.contains("written ") && text.ends_with(" UTC")), "{report:?}");
        let now = tree(&read_only(&after), At::Live);
        // Of 30 commits at most one is missing, and what was made in it.
        let kept = before.iter().filter(|(p, f)| now.get(*p) == Some(f)).count();
        most = most.max(before.len() - kept);
        let missing = files(&before).difference(&files(&now)).count();
        assert!(missing <= 1, "content of {missing} files is gone, and of one partial there is none");
        let listed = Listed::new(&report);
        for (path, file) in &now {
            let same = before.get(path).is_some_and(|f| f.content == file.content);
            let told = listed.has(path) || listed.inos.contains(&file.ino);
            // One that got its name in the gap has the one before, which nothing tells.
            let is_older = path == b"/second directory";
            assert!(same || told || is_older || path == b"/lost+found", "{}", String::from_utf8_lossy(path));
        }
    }
    // The directory that the first one made has two thirds of the files: they are in lost+found with it.
    assert!((1..=25).contains(&most), "{most}");
    assert_said(&[804, 807, 808, 812, 908]);
}

#[test]
fn the_log_goes_on_behind_damage() {
    behind_damage();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "files is gone")]
fn files_that_go_with_a_directory_of_a_gap_are_noticed() {
    use crate::breaks::{Break, with};
    with(Break::GapLosesDirectories, behind_damage);
}
