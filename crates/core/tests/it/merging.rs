//! Merging of history trees (decision 0027).
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::check::{Severity, check};
use nenrin_core::format::{Cno, Ino};
use nenrin_core::{At, CheckOptions, Error, Fs, MountOptions};
use nenrin_device::{BlockDevice, Fault, Faulty, OpKind, Prng};
use std::collections::BTreeMap;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
const BLOCK: u64 = 4096;
const FILES: usize = 3;
const BLOCKS: u64 = 200;

/// A volume whose history trees are sealed early, and what each checkpoint must show.
struct Past {
    w: World,
    fs: Arc<Fs>,
    prng: Prng,
    files: Vec<Ino>,
    /// First byte of each block of each file.
    now: Vec<Vec<u8>>,
    then: BTreeMap<Cno, Vec<Vec<u8>>>,
}

fn options() -> MountOptions {
    MountOptions { checkpoint_nanos: 0, history_tree_items: 32, ..MountOptions::default() }
}

impl Past {
    fn new(seed: u64) -> Self {
        let w = World::new(64 << 20);
        let fs = w.open_with(options());
        let files: Vec<Ino> = (0..FILES)
            .map(|i| fs.create(Ino::ROOT, format!("file {i}").as_bytes(), &file(0o600)).unwrap().ino)
            .collect();
        for ino in &files {
            fs.write(*ino, 0, &vec![0; (BLOCKS * BLOCK) as usize], 0).unwrap();
        }
        let now = vec![vec![0; BLOCKS as usize]; FILES];
        Self { w, fs, prng: Prng::new(seed), files, now, then: BTreeMap::new() }
    }

    /// Blocks here and there are written, then a checkpoint is made.
    fn round(&mut self, byte: u8) -> Cno {
        for _ in 0..60 {
            let (f, b) = (self.prng.below(FILES as u64) as usize, self.prng.below(BLOCKS));
            self.fs.write(self.files[f], b * BLOCK, &[byte; BLOCK as usize], 0).unwrap();
            self.now[f][b as usize] = byte;
        }
        self.fs.sync_all().unwrap();
        let cno = self.fs.checkpoint_create(None).unwrap().cno;
        self.then.insert(cno, self.now.clone());
        cno
    }

    fn tick(&self) {
        self.w.pass(SECOND / 10);
        self.fs.tick().unwrap();
    }

    /// Every checkpoint that is kept shows what was there.
    fn verify(&self) {
        let shown = |at: At| -> Vec<Vec<u8>> {
            let first = |ino: &Ino| {
                let bytes = self.fs.read(at, *ino, 0, (BLOCKS * BLOCK) as usize).unwrap();
                bytes.chunks(BLOCK as usize).map(|b| b[0]).collect()
            };
            self.files.iter().map(first).collect()
        };
        for (cno, then) in &self.then {
            assert!(shown(At::Past(*cno)) == *then, "checkpoint {cno} shows something else");
        }
        assert!(shown(At::Live) == self.now, "what is current is something else");
    }

    /// The power goes, and the volume is mounted again.
    fn cut(&mut self) {
        self.fs = self.w.open_with(options());
    }

    fn check(&self) {
        self.fs.sync_all().unwrap();
        let device: Arc<dyn BlockDevice> = self.w.device.clone();
        let report = check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
        let bad: Vec<_> = report.findings.iter().filter(|f| f.what.severity() != Severity::Note).collect();
        assert!(bad.is_empty(), "{bad:?}");
    }
}

#[test]
fn what_checkpoints_show_stays_while_history_is_merged() {
    for seed in 1..4 {
        let mut p = Past::new(seed);
        for byte in 1..60 {
            p.round(byte);
            p.tick();
            if byte % 20 == 0 {
                p.verify();
                p.cut();
                p.verify();
            }
        }
        assert!(p.fs.counters().merged_items > 200, "{} items were merged", p.fs.counters().merged_items);
        p.check();
        p.w.pass(30 * SECOND);
        p.tick();
        p.cut();
        p.verify();
        p.check();
    }
}

/// Sweeping and merging meet: what nobody sees goes all the same.
#[test]
fn what_is_swept_while_it_is_merged_goes() {
    let mut p = Past::new(7);
    for byte in 1..80 {
        p.round(byte);
        p.tick();
        if byte % 3 == 0 {
            // All but some.
            let gone: Vec<Cno> = p.then.keys().copied().filter(|cno| cno.0 % 7 != 0).collect();
            p.fs.checkpoint_drop(&gone).unwrap();
            p.then.retain(|cno, _| !gone.contains(cno));
            p.tick();
        }
    }
    p.verify();
    assert!(p.fs.counters().merged_items > 200, "{} items were merged", p.fs.counters().merged_items);
    let all: Vec<Cno> = p.then.keys().copied().collect();
    p.fs.checkpoint_drop(&all).unwrap();
    p.then.clear();
    for _ in 0..100 {
        p.tick();
    }
    assert_eq!(p.fs.usage().history_blocks, 0);
    p.verify();
    p.check();
}

/// What cannot be read keeps nothing else from being done, and ends no writing.
#[test]
fn merging_goes_on_after_an_error() {
    let mut p = Past::new(9);
    for byte in 1..5 {
        p.round(byte);
        p.tick();
    }
    p.round(5);
    assert_eq!(p.fs.counters().merged_items, 0);
    p.fs.close().unwrap();
    // With the fourth there is something to merge, and all of it is on the device.
    let device = Arc::new(Faulty::new(p.w.device.clone()));
    let few = MountOptions { cache_bytes: 1, ..options() };
    p.fs = Fs::open(vec![device.clone()], p.w.clock.clone(), few).unwrap();
    device.faults().inject(Fault::Fail { kind: OpKind::Read, from: 1, times: u64::MAX / 2 });
    let told = (0..20).any(|_| {
        p.w.pass(SECOND / 10);
        p.fs.tick().is_err()
    });
    assert!(told, "nothing was read");
    assert_eq!(p.fs.failed(), None);
    device.faults().clear();
    p.w.pass(120 * SECOND);
    for _ in 0..50 {
        p.tick();
    }
    assert!(p.fs.counters().merged_items > 100);
    p.verify();
}

/// A leaf of one tree is lost: its neighbours are merged with others, long before that is tried again.
#[test]
fn a_tree_that_cannot_be_read_keeps_no_others_from_being_merged() {
    let mut p = Past::new(17);
    for byte in 1..5 {
        p.round(byte);
        p.tick();
    }
    assert_eq!(p.fs.counters().merged_items, 0);
    p.fs.close().unwrap();
    let lost = *p.then.keys().nth(1).unwrap();
    crate::applied::rot(&p.w, |key| key.death == lost.0);
    p.fs = p.w.open_with(options());
    let mut told = 0;
    for byte in 5..13 {
        p.round(byte);
        p.w.pass(SECOND / 10);
        told += u32::from(p.fs.tick().is_err());
    }
    assert!(told > 0, "nothing was read");
    assert!(p.fs.counters().merged_items > 100, "the others are not merged: {}", p.fs.counters().merged_items);
    assert_eq!(p.fs.failed(), None);
    p.then.clear();
    p.verify();
}

/// Nodes written for blocks that are overwritten here and there, with a checkpoint now and then: with one large tree each has a
/// leaf of its own.
#[test]
fn history_of_scattered_overwrites_costs_few_nodes() {
    let nodes = |checkpoint_nanos: u64, history_tree_items: u64| {
        let w = World::new(2 << 30);
        let fs = w.open_with(MountOptions { checkpoint_nanos, history_tree_items, ..MountOptions::default() });
        let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
        let blocks = 32_000;
        fs.write(ino, 0, &vec![1; (blocks * BLOCK) as usize], 0).unwrap();
        fs.fsync_wait(ino).unwrap();
        let mut prng = Prng::new(5);
        let before = fs.counters().nodes;
        for i in 0..160_000u64 {
            fs.write(ino, prng.below(blocks) * BLOCK, &[i as u8; BLOCK as usize], 0).unwrap();
            fs.fsync_wait(ino).unwrap();
            w.pass(250_000);
            if i % 400 == 0 {
                fs.tick().unwrap();
            }
        }
        assert!(checkpoint_nanos == 0 || fs.counters().checkpoints >= 8, "{}", fs.counters().checkpoints);
        assert_eq!(fs.counters().checkpoints_shed, 0);
        fs.counters().nodes - before
    };
    let usual = MountOptions::default().history_tree_items;
    let (none, merged, one) = (nodes(0, usual), nodes(SECOND, usual), nodes(SECOND, u64::MAX));
    assert!((merged - none) * 2 < one - none, "without history {none} nodes, with it {merged}, in one tree {one}");
}

/// Trees stay few.
#[test]
fn there_are_few_trees() {
    let mut p = Past::new(11);
    for byte in 1..120 {
        p.round(byte);
        p.tick();
    }
    for _ in 0..100 {
        p.tick();
    }
    let trees = p.fs.history_trees();
    assert!((2..=16).contains(&trees), "{trees} trees");
    p.verify();
    assert!(matches!(p.fs.read(At::Past(Cno(99_999)), p.files[0], 0, 1), Err(Error::Stale)));
}
