//! Removing a huge file: in bounded steps, and a neighbour's fsync costs what it always does. Counted, not timed.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::file;
use crate::common::sparse::Sparse;
use nenrin_core::format::{Ino, Time};
use nenrin_core::{
    AllocateMode, At, CheckOptions, Clock, Fs, MkfsOptions, MountOptions, SetAttr, SlotState, check, mkfs, mkfs_fits,
    probe,
};
use nenrin_device::{AlignedBuf, BlockDevice, Observed};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const GIB: u64 = 1 << 30;
/// Items that go in one tick: eight records of 512.
const ITEMS_MAX: u64 = 8 * 512;

#[derive(Default)]
struct Virtual(AtomicU64);

impl Clock for Virtual {
    fn wall(&self) -> Time {
        Time(1_000_000_000_000 + self.0.load(Ordering::Relaxed) as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Volume {
    device: Arc<Observed<Sparse>>,
    clock: Arc<Virtual>,
    fs: Arc<Fs>,
    neighbour: Ino,
}

/// What a neighbour's fsync cost at most: writes, bytes and flushes.
type Cost = (u64, u64, u64);

impl Volume {
    fn new(bytes: u64) -> Self {
        let device = Arc::new(Observed::new(Sparse::new(bytes)));
        let clock = Arc::new(Virtual::default());
        let (dev, clk): (Arc<dyn BlockDevice>, Arc<dyn Clock>) = (device.clone(), clock.clone());
        mkfs(&dev, &clk, &MkfsOptions::default()).unwrap();
        let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
        let fs = Fs::open(vec![dev], clk, options).unwrap();
        let neighbour = fs.create(Ino::ROOT, b"neighbour", &file(0o600)).unwrap().ino;
        let this = Self { device, clock, fs, neighbour };
        this.neighbours_fsync(1);
        this
    }

    fn tick(&self) {
        self.clock.0.fetch_add(100_000_000, Ordering::Relaxed);
        self.fs.tick().unwrap();
    }

    fn neighbours_fsync(&self, byte: u8) -> Cost {
        self.fs.write(self.neighbour, 0, &[byte; 4096], 0).unwrap();
        let before = self.device.counters();
        self.fs.fsync_wait(self.neighbour).unwrap();
        let cost = self.device.counters().since(&before);
        (cost.writes, cost.write_bytes, cost.flushes)
    }

    /// The most that one of some fsyncs costs, a tick between them.
    fn usual(&self) -> Cost {
        let costs = (0..30).map(|i| {
            self.tick();
            self.neighbours_fsync(i)
        });
        costs.max().unwrap()
    }

    /// Works beside the reaper until only nodes of small trees are left, and holds that against what is usual; the ticks it took.
    fn until_reaped(&self, usual: Cost, items: u64) -> u64 {
        let mut ticks = 0;
        let mut unusual = Vec::new();
        while self.fs.usage().live_blocks > 40 {
            let before = (self.fs.counters(), self.device.counters());
            self.tick();
            let now = self.fs.counters();
            // A tick takes away so many items, which lie next to each other in leaves of at least 50, in two trees at most; records
            // of a few bytes say so. An index checkpoint that came due writes what several ticks made dirty.
            let chain = now.chain_blocks - before.0.chain_blocks;
            assert!(chain <= 4, "{chain} blocks of the log in one tick");
            let checkpoints = now.index_checkpoints - before.0.index_checkpoints;
            let nodes = now.nodes - before.0.nodes;
            assert!(checkpoints <= 2 && nodes <= 4000, "{nodes} nodes in {checkpoints} index checkpoints");
            let cost = self.neighbours_fsync(ticks as u8);
            if cost.0 > usual.0 || cost.1 > usual.1 || cost.2 > usual.2 {
                unusual.push((ticks, cost));
            }
            let left = self.fs.usage();
            ticks += 1;
            assert!(ticks < items / ITEMS_MAX + 60, "{left:?} after {ticks} ticks; {unusual:?}");
        }
        // The log goes on in another segment now and then.
        assert!(unusual.len() <= 1, "{unusual:?} of {ticks}, and {usual:?} is usual");
        ticks
    }

    fn close(self) {
        self.fs.close().unwrap();
        let device: Arc<dyn BlockDevice> = self.device.clone();
        let report = check::check(&[device], &CheckOptions { data: false }, &mut |_| {}).unwrap();
        assert!(report.findings.iter().all(|f| f.what.severity() != check::Severity::Error), "{:?}", report.findings);
    }
}

/// A file of 100 GiB with a block in each MiB: as many extents as a full one has.
fn sparse(v: &Volume, name: &[u8]) -> Ino {
    let ino = v.fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
    for mib in 0..100 * 1024u64 {
        v.fs.write(ino, mib << 20, &[0; 4096], 0).unwrap();
        if mib % 2048 == 0 {
            v.tick();
        }
    }
    v.fs.fsync_wait(ino).unwrap();
    ino
}

#[test]
fn removing_a_huge_file_costs_its_neighbours_nothing() {
    let v = Volume::new(4 * GIB);
    let usual = v.usual();
    assert_eq!((usual.0, usual.2), (1, 1), "one write and one flush");
    sparse(&v, b"sparse");
    // Seen by nobody; then what a snapshot keeps; then emptied instead of removed.
    v.fs.unlink(Ino::ROOT, b"sparse").unwrap();
    let ticks = v.until_reaped(usual, 100 * 1024);
    assert!(ticks >= 100 * 1024 / ITEMS_MAX, "{ticks}");
    assert!(v.fs.usage().history_blocks < 10);
    let ino = sparse(&v, b"again");
    let snapshot = v.fs.checkpoint_create(Some(b"s")).unwrap().cno;
    v.fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    v.fs.flush(ino).unwrap();
    v.fs.fsync_wait(ino).unwrap();
    v.until_reaped(usual, 100 * 1024);
    assert_eq!(v.fs.usage().history_blocks, 100 * 1024 + 1);
    assert_eq!(v.fs.read(At::Past(snapshot), ino, 77 << 20, 4096).unwrap(), [0; 4096]);
    v.close();
}

/// What is cut off in between, not at either end, and what is left: as where all of a file goes, but its block at the beginning.
#[test]
fn cutting_a_huge_file_short_costs_its_neighbours_nothing() {
    let v = Volume::new(4 * GIB);
    let usual = v.usual();
    let cuts: [fn(&Fs, Ino) -> nenrin_core::Result<()>; 2] = [
        |fs, ino| fs.setattr(ino, &SetAttr { size: Some(4096), ..SetAttr::default() }).map(drop),
        |fs, ino| fs.allocate(ino, AllocateMode::Punch, 4096, 100 * GIB),
    ];
    for (n, cut) in cuts.iter().enumerate() {
        let ino = sparse(&v, format!("{n}").as_bytes());
        v.fs.checkpoint_create(None).unwrap();
        v.tick();
        let before = v.fs.counters();
        cut(&v.fs, ino).unwrap();
        let now = v.fs.counters();
        let steps = now.cut_steps - before.cut_steps;
        assert!(steps >= 100 * 1024 / ITEMS_MAX, "{steps} steps");
        let cost = v.neighbours_fsync(n as u8);
        assert!(cost.1 <= usual.1 + steps * 128 && cost.2 <= usual.2, "{cost:?}, and {usual:?} is usual");
        v.fs.fsync_wait(ino).unwrap();
        assert_eq!(v.fs.getattr(At::Live, ino).unwrap().blocks_512, 8);
        v.tick();
    }
    v.close();
}

#[test]
fn removing_a_full_file_costs_its_neighbours_nothing() {
    let v = Volume::new(6 * GIB);
    let usual = v.usual();
    let full = v.fs.create(Ino::ROOT, b"full", &file(0o600)).unwrap().ino;
    let megabyte = vec![0; 1 << 20];
    for mib in 0..4096u64 {
        v.fs.write(full, mib << 20, &megabyte, 0).unwrap();
        if mib % 64 == 0 {
            v.tick();
        }
    }
    v.fs.fsync_wait(full).unwrap();
    v.fs.checkpoint_create(None).unwrap();
    v.fs.unlink(Ino::ROOT, b"full").unwrap();
    v.until_reaped(usual, 4096);
    assert_eq!(v.fs.usage().history_blocks, (1 << 20) + 1);
    v.close();
}

/// A sparse file may state as many segments as it likes: each would cost who opens it some memory.
#[test]
fn segments_beyond_measure_are_refused() {
    let fits = |bytes: u64, segment_blocks| {
        mkfs_fits(&[("d".into(), bytes)], &MkfsOptions { segment_blocks, ..MkfsOptions::default() })
    };
    let refused = fits(16 << 40, 32).unwrap_err().to_string();
    assert!(refused.contains("segments are too many") && !refused.contains('\n'), "{refused}");
    // What chooses by itself keeps to it.
    for (bytes, blocks) in [(16 << 40, 0), (1 << 50, 0), (1 << 52, 0), (8 << 40, 32)] {
        fits(bytes, blocks).unwrap();
    }
    let device: Arc<dyn BlockDevice> = Arc::new(Sparse::new(16 << 40));
    let clock: Arc<dyn Clock> = Arc::new(Virtual::default());
    mkfs(&device, &clock, &MkfsOptions::default()).unwrap();
    let found = probe(device.as_ref()).unwrap();
    for (block, state) in &found.slots {
        if let SlotState::Valid(generation) = state {
            let mut root = found.roots.iter().find(|r| r.generation == *generation).unwrap().clone();
            (root.segment_blocks, root.bands[0].segments) = (8, (16 << 40) / 4096 / 8 - 4);
            device.write(block * 4096, Arc::new(AlignedBuf::padded(&root.encode()))).unwrap();
        }
    }
    let opened = Fs::open(vec![device.clone()], clock, MountOptions::default()).map(drop).unwrap_err().to_string();
    let checked = check(&[device], &CheckOptions::default(), &mut |_| {}).map(drop).unwrap_err().to_string();
    for told in [opened, checked] {
        assert!(told.contains("536870908 segments, and a volume has at most 67108864"), "{told}");
    }
}
