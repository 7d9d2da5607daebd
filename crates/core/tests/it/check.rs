//! Checking volumes: sound ones give no finding, and damage to the device is
//! found for what it is.
#![allow(clippy::unwrap_used, clippy::panic, clippy::type_complexity)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
use nenrin_core::check::{Progress, Severity, Step, What};
use nenrin_core::format::Ino;
use nenrin_core::{AllocateMode, At, CheckOptions, CheckReport, Error, Fs, MkfsOptions, NewInode, RenameMode};
use nenrin_core::{SetAttr, XattrMode, check};
use nenrin_device::{BlockDevice, MemDevice, Prng};
use std::collections::BTreeSet;
use std::sync::Arc;

const DATA: CheckOptions = CheckOptions { data: true };

fn check_device(device: Arc<dyn BlockDevice>) -> CheckReport {
    check(&[device], &DATA, &mut |_| {}).unwrap()
}

/// Nothing but notes about history that waits for the sweeper.
fn assert_clean(report: &CheckReport, when: &str) {
    let lines: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let fine = report.findings.iter().all(|f| f.what == What::HistorySweepable);
    assert!(report.clean() && fine, "{when}: {lines:#?}");
}

#[test]
fn numbers_and_names_are_unique_and_stable() {
    let numbers: BTreeSet<u16> = What::ALL.iter().map(|w| w.number()).collect();
    let names: BTreeSet<&str> = What::ALL.iter().map(|w| w.name()).collect();
    assert_eq!(numbers.len(), What::ALL.len());
    assert_eq!(names.len(), What::ALL.len());
    assert!(What::ALL.is_sorted_by_key(|w| w.number()));
    // Numbers once given stay: add to this list, never change it.
    let fixed: [(u16, &str); 76] = [
        (101, "slot-damaged"),
        (102, "slot-stale"),
        (103, "slot-unfinished"),
        (104, "slot-foreign"),
        (105, "root-copy-damaged"),
        (106, "root-lost"),
        (107, "root-unusable"),
        (108, "root-invalid"),
        (109, "log-damaged"),
        (110, "device-absent"),
        (111, "log-copy-damaged"),
        (201, "node-copy-damaged"),
        (202, "node-lost"),
        (203, "node-invalid"),
        (204, "node-copies-together"),
        (205, "tree-count-wrong"),
        (206, "item-invalid"),
        (207, "item-misplaced"),
        (208, "checks-skipped"),
        (209, "item-unborn"),
        (301, "root-directory-missing"),
        (302, "entry-dangling"),
        (303, "entry-type-wrong"),
        (304, "name-invalid"),
        (305, "name-misplaced"),
        (306, "name-twice"),
        (307, "link-missing"),
        (308, "link-dangling"),
        (309, "link-count-wrong"),
        (310, "entry-count-wrong"),
        (311, "parent-wrong"),
        (312, "directory-cycle"),
        (313, "directory-names"),
        (314, "orphan-unlisted"),
        (315, "orphan-wrong"),
        (316, "entries-in-file"),
        (317, "directories-uncounted"),
        (401, "stray-items"),
        (402, "stray-fork"),
        (403, "reap-wrong"),
        (410, "extent-outside"),
        (411, "extent-crossing"),
        (412, "extent-overlap"),
        (413, "blocks-wrong"),
        (414, "extent-beyond-end"),
        (415, "inline-with-extents"),
        (416, "inline-size-wrong"),
        (417, "content-of-other"),
        (418, "symlink-wrong"),
        (419, "xattr-incomplete"),
        (420, "xattr-misplaced"),
        (421, "xattr-unflagged"),
        (501, "block-owned-twice"),
        (502, "live-count-wrong"),
        (503, "history-count-wrong"),
        (504, "node-count-wrong"),
        (505, "free-in-use"),
        (506, "chain-unmarked"),
        (507, "segment-mixed"),
        (508, "total-wrong"),
        (509, "inode-number-wrong"),
        (510, "backref-missing"),
        (511, "backref-dangling"),
        (512, "emptied-wrong"),
        (601, "history-life-wrong"),
        (602, "history-outside-tree"),
        (603, "history-overlap"),
        (604, "history-sweepable"),
        (605, "checkpoint-wrong"),
        (701, "content-damaged"),
        (702, "content-unreadable"),
        (703, "tail-not-zero"),
        (704, "content-lost"),
        (705, "content-copy-damaged"),
        (706, "parity-wrong"),
        (707, "content-copy-unproven"),
    ];
    for (number, name) in fixed {
        assert!(What::ALL.iter().any(|w| w.number() == number && w.name() == name), "{number} {name}");
    }
    assert_eq!(fixed.len(), What::ALL.len(), "a new number belongs in the list above");
    assert_eq!(What::HistorySweepable.severity(), Severity::Note);
    assert!(What::ALL.iter().all(|w| w.meaning().ends_with('.')));
}

/// The reaper takes a large attribute piece by piece, and a volume may be closed, or cut, in the middle of that.
#[test]
fn a_large_attribute_that_is_going_is_no_finding() {
    for ticks in 0..12 {
        let w = World::new(64 << 20);
        let fs = w.open();
        let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
        fs.setxattr(f, b"user.large", &[b'r'; 65536], XattrMode::Any).unwrap();
        fs.checkpoint_create(None).unwrap();
        fs.unlink(Ino::ROOT, b"f").unwrap();
        for _ in 0..ticks {
            w.pass(1_000_000_000);
            fs.tick().unwrap();
        }
        fs.close().unwrap();
        drop(fs);
        assert_clean(&check_device(w.device.clone()), &format!("after {ticks} ticks"));
    }
}

#[test]
fn an_empty_volume_is_clean() {
    for (bytes, segment_blocks) in [(16 << 20, 0), (64 << 20, 512), (8 << 20, 32)] {
        let w = World::with(bytes, &MkfsOptions { segment_blocks, ..MkfsOptions::default() });
        let before = w.device.inner().snapshot();
        let writes = w.device.counters().writes;
        let report = check_device(w.device.clone());
        assert_eq!(report.total(), 0, "{:?}", report.findings);
        assert!(w.device.counters().writes == writes && w.device.inner().snapshot() == before, "it wrote");
        assert_eq!((report.counts.inodes, report.counts.directories), (1, 1));
        assert!(report.recovery.unwrap().clean);
    }
}

#[test]
fn what_is_no_volume_is_an_error() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(1 << 20));
    assert!(matches!(check(std::slice::from_ref(&device), &DATA, &mut |_| {}), Err(Error::Open(_))));
    assert!(matches!(check(&[device.clone(), device], &DATA, &mut |_| {}), Err(Error::Open(_))));
    assert!(matches!(check(&[], &DATA, &mut |_| {}), Err(Error::Open(_))));
    let w = World::new(16 << 20);
    let mut bytes = w.device.inner().snapshot();
    bytes.truncate(12 << 20);
    assert!(matches!(check(&[Arc::new(MemDevice::from_bytes(bytes))], &DATA, &mut |_| {}), Err(Error::Open(_))));
}

/// Random calls; whatever the volume refuses is left out.
struct Workload {
    random: Prng,
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    used: Vec<Ino>,
}

impl Workload {
    fn new(seed: u64) -> Self {
        Self { random: Prng::new(seed), dirs: vec![Ino::ROOT], files: Vec::new(), used: Vec::new() }
    }
    fn pick(&mut self, n: u64) -> u64 {
        self.random.below(n.max(1))
    }
    fn name(&mut self) -> Vec<u8> {
        format!("name{}", self.pick(40)).into_bytes()
    }
    fn dir(&mut self) -> Ino {
        let i = self.pick(self.dirs.len() as u64);
        self.dirs[i as usize]
    }
    fn file(&mut self) -> Option<Ino> {
        let i = self.pick(self.files.len() as u64);
        self.files.get(i as usize).copied()
    }

    fn step(&mut self, fs: &Fs, w: &World) {
        let (parent, name) = (self.dir(), self.name());
        w.pass(self.random.below(2_000_000_000));
        match self.pick(22) {
            0..=3 => {
                if let Ok(a) = fs.create(parent, &name, &file(0o644)) {
                    self.files.push(a.ino);
                }
            }
            4 => {
                if let Ok(a) = fs.create(parent, &name, &dir()) {
                    self.dirs.push(a.ino);
                }
            }
            5 => {
                let link = NewInode { mode: 0o120_777, uid: 0, gid: 0, rdev: 0, target: b"target/of/link" };
                drop(fs.create(parent, &name, &link));
                drop(fs.create(parent, b"device", &NewInode { mode: 0o020_600, rdev: 5, target: b"", ..link }));
            }
            6..=9 => {
                let (offset, bytes) = match self.pick(4) {
                    0 => (0, self.pick(2000)),
                    1 => (self.pick(100_000), self.pick(20_000)),
                    2 => (self.pick(4 << 20), self.pick(900_000)),
                    _ => (self.pick(8) * 4096, 4096),
                };
                let data = vec![self.pick(255) as u8; bytes as usize];
                if let Some(f) = self.file() {
                    drop(fs.write(f, offset, &data, 1000));
                }
            }
            10 | 11 => {
                let size = [0, 0, 100, 5000, 123_456, 3 << 20][self.pick(6) as usize];
                if let Some(f) = self.file() {
                    drop(fs.setattr(f, &SetAttr { size: Some(size), ..SetAttr::default() }));
                }
            }
            12 => drop(fs.unlink(parent, &name)),
            13 => drop(fs.rmdir(parent, &name)),
            14 => {
                let (to, new) = (self.dir(), self.name());
                let mode = if self.pick(3) == 0 { RenameMode::Exchange } else { RenameMode::Replace };
                drop(fs.rename(parent, &name, to, &new, mode));
            }
            15 => {
                if let Some(f) = self.file() {
                    drop(fs.link(f, parent, &name));
                }
            }
            16 => {
                let value = vec![7; [10, 4096, 9000, 0][self.pick(4) as usize]];
                if let Some(f) = self.file() {
                    let name = [&b"user.x"[..], b"user.y", b"security.capability"][self.pick(3) as usize];
                    drop(fs.setxattr(f, name, &value, XattrMode::Any));
                    if self.pick(3) == 0 {
                        drop(fs.removexattr(f, b"user.x"));
                    }
                }
            }
            17 => {
                use AllocateMode::{Punch, Reserve, ReserveKeepSize, Zero, ZeroKeepSize};
                let mode = [Punch, Reserve, ReserveKeepSize, Zero, ZeroKeepSize][self.pick(5) as usize];
                let (offset, bytes) = (self.pick(2 << 20), 1 + self.pick(1 << 20));
                if let Some(f) = self.file() {
                    drop(fs.allocate(f, mode, offset, bytes));
                }
            }
            18 => {
                if let Some(f) = self.file() {
                    if fs.getattr(At::Live, f).is_ok() {
                        fs.retain(f);
                        self.used.push(f);
                    }
                }
                if self.pick(3) == 0 {
                    if let Ok(a) = fs.tmpfile(&file(0o600)) {
                        drop(fs.write(a.ino, 0, &[1; 50_000], 0));
                        self.used.push(a.ino);
                    }
                }
            }
            19 => {
                if self.used.len() > 3 {
                    fs.release(self.used.remove(0));
                }
            }
            20 => {
                if let Some(f) = self.file() {
                    drop(fs.fsync_wait(f));
                }
            }
            _ => match self.pick(4) {
                0 => drop(fs.checkpoint_create(Some(&name))),
                1 => {
                    let all = fs.checkpoints();
                    if let Some(c) = all.get(self.pick(all.len() as u64) as usize) {
                        drop(fs.checkpoint_drop(&[c.cno]));
                    }
                }
                2 => drop(fs.checkpoint_create(None)),
                _ => drop(fs.tick()),
            },
        }
    }
}

fn run_workload(seed: u64, bytes: usize, segment_blocks: u32, rounds: u32, steps: u32) {
    let w = World::with(bytes, &MkfsOptions { segment_blocks, ..MkfsOptions::default() });
    let mut load = Workload::new(seed);
    for round in 0..rounds {
        let fs = w.open();
        load.used.clear();
        for _ in 0..steps {
            load.step(&fs, &w);
        }
        assert_eq!(fs.failed(), None, "seed {seed}, round {round}");
        let when = format!("seed {seed}, round {round}");
        if round % 3 == 2 {
            fs.close().unwrap();
            let report = check_device(w.device.clone());
            assert_clean(&report, &format!("{when}, closed"));
        } else {
            if round % 3 == 1 {
                fs.sync_all().unwrap();
            }
            drop(fs);
            let report = check_device(w.device.clone());
            assert_clean(&report, &format!("{when}, left"));
        }
    }
}

#[test]
fn volumes_of_random_workloads_are_clean() {
    for seed in 0..12 {
        run_workload(seed, 64 << 20, 0, 6, 250);
    }
}

#[test]
fn volumes_of_small_segments_are_clean() {
    for seed in 100..106 {
        run_workload(seed, 48 << 20, 64, 6, 250);
    }
}

#[test]
fn a_volume_filled_again_and_again_is_clean() {
    for seed in 200..212 {
        run_workload(seed, 12 << 20, 64, 6, 400);
    }
}

#[test]
fn progress_never_goes_back_and_tells_every_part() {
    let w = World::new(32 << 20);
    let fs = w.open();
    for i in 0..3000 {
        fs.create(Ino::ROOT, format!("f{i}").as_bytes(), &file(0o600)).unwrap();
    }
    let f = fs.lookup(At::Live, Ino::ROOT, b"f7").unwrap();
    fs.write(f.ino, 0, &vec![3; 9 << 20], 0).unwrap();
    fs.close().unwrap();
    let mut seen: Vec<Progress> = Vec::new();
    let report = check(&[w.device.clone() as Arc<dyn BlockDevice>], &DATA, &mut |p| seen.push(p)).unwrap();
    assert_clean(&report, "many files");
    for step in [Step::Index, Step::Live, Step::History, Step::Data] {
        assert!(seen.iter().any(|p| p.step == step), "{step:?}");
    }
    assert!(seen.windows(2).all(|p| p[0].step != p[1].step || p[0].done <= p[1].done));
    assert!(seen.iter().filter(|p| p.step == Step::Live).count() > 5);
    assert!(seen.iter().all(|p| p.done <= p.total.max(1)));
    let c = report.counts;
    assert_eq!((c.inodes, c.names, c.live_blocks, c.blocks_verified), (3001, 3000, 2304, 2304));
}
