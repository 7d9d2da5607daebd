//! What operations cost on the device, counted and therefore asserted.
#![allow(clippy::unwrap_used, clippy::panic, clippy::type_complexity)] // tests say what went wrong by stopping

use crate::common::{TestClock, World, dir, file};
#[cfg(feature = "breaks")]
use nenrin_core::breaks::{Break, with};
use nenrin_core::format::Ino;
use nenrin_core::{At, Clock, Fs, MkfsOptions, MountOptions, Order, mkfs};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Geometry, MemDevice, Op, Ticket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

#[test]
fn an_append_with_fsync_costs_one_write_of_8_kib_and_one_flush() {
    let w = World::new(256 << 20);
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &[1; 4096], 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    for i in 1..200u64 {
        let before = w.device.counters();
        fs.write(f.ino, i * 4096, &[i as u8; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
        let cost = w.device.counters().since(&before);
        assert_eq!((cost.writes, cost.flushes), (1, 1), "append {i}");
        assert!(cost.write_bytes <= 8192, "append {i} wrote {} bytes", cost.write_bytes);
        assert_eq!(cost.reads, 0);
    }
}

#[test]
fn a_small_file_travels_inside_its_record() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &[1; 1000], 0).unwrap();
    let before = w.device.counters();
    fs.fsync_wait(f.ino).unwrap();
    let cost = w.device.counters().since(&before);
    assert_eq!((cost.writes, cost.flushes, cost.write_bytes), (1, 1, 4096));
}

/// A 1 MiB file written 4 KiB at a time with O_SYNC: the founding paper needed
/// 1541 blocks, 265 without O_SYNC.
#[test]
fn a_mebibyte_of_synchronous_writes_costs_at_most_530_blocks() {
    let w = World::new(256 << 20);
    let fs = w.open();
    let before = w.device.counters();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    for i in 0..256u64 {
        fs.write(f.ino, i * 4096, &[i as u8; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
    }
    let blocks = w.device.counters().since(&before).write_bytes / 4096;
    assert!(blocks <= 530, "{blocks} blocks");
}

/// DESIGN section 6: at most 64 MiB and 200 requests, whatever happened before.
#[test]
fn recovery_reads_a_bounded_part_of_the_log() {
    let w = World::new(1 << 30);
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    let (mut most_bytes, mut most_requests) = (0, 0);
    for i in 0..12_000u64 {
        fs.write(f.ino, i % 5000 * 4096, &[i as u8; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
        if i % 1500 == 1499 {
            let report = reopen_read_only(&w);
            most_bytes = most_bytes.max(report.0);
            most_requests = most_requests.max(report.1);
        }
    }
    assert!(most_bytes > 1 << 20, "the test must see recovery at work: {most_bytes}");
    assert!(most_bytes <= 64 << 20, "{most_bytes} bytes");
    assert!(most_requests <= 200, "{most_requests} requests");
}

fn reopen_read_only(w: &World) -> (u64, u64) {
    let fs: Arc<Fs> = w.open_with(MountOptions { read_only: true, ..MountOptions::default() });
    let r = fs.recovery_report();
    (r.bytes_read, r.requests)
}

/// Makes a directory of `n` entries, and counts the index nodes that operations in it read when next to
/// nothing is cached: look-ups, creations, removals; at most and on average.
fn nodes_of_operations(n: u32) -> [(u64, f64); 3] {
    let w = World::new((64 << 20) + n as usize * 3 * 1024);
    let fs = w.open();
    let d = fs.create(Ino::ROOT, b"d", &dir()).unwrap().ino;
    let now_and_then = |fs: &Fs, i: u32| {
        if i % 1000 == 0 {
            w.pass(100_000_000);
            fs.tick().unwrap();
        }
    };
    for i in 0..n {
        fs.create(d, format!("entry-{i}").as_bytes(), &file(0o600)).unwrap();
        now_and_then(&fs, i);
    }
    fs.close().unwrap();
    let count = |operation: &dyn Fn(&Fs, u32)| {
        let fs = w.open_with(MountOptions { cache_bytes: 64 << 10, ..MountOptions::default() });
        let reads: Vec<u64> = (0..n)
            .step_by(n as usize / 300)
            .map(|i| {
                let before = w.device.counters();
                operation(&fs, i);
                w.device.counters().since(&before).reads
            })
            .collect();
        fs.close().unwrap();
        (reads.iter().copied().max().unwrap(), reads.iter().sum::<u64>() as f64 / reads.len() as f64)
    };
    let counts = [
        count(&|fs, i| assert!(fs.lookup(At::Live, d, format!("entry-{i}").as_bytes()).is_ok())),
        count(&|fs, i| assert!(fs.create(d, format!("new-{i}").as_bytes(), &file(0o600)).is_ok())),
        count(&|fs, i| fs.unlink(d, format!("new-{i}").as_bytes()).unwrap()),
    ];
    println!("{n} entries: nodes read by a look-up, a creation, a removal (most, mean): {counts:?}");
    let fs = w.open();
    let mut seen = 0;
    fs.readdir(At::Live, d, 0, &mut |_| {
        seen += 1;
        true
    })
    .unwrap();
    assert_eq!(seen, n + 2);
    for i in 0..n {
        fs.unlink(d, format!("entry-{i}").as_bytes()).unwrap();
        now_and_then(&fs, i);
    }
    fs.rmdir(Ino::ROOT, b"d").unwrap();
    fs.close().unwrap();
    counts
}

/// Ten times the entries cost a level of the tree at most, in each of the places that an operation looks at.
fn assert_logarithmic(small: &[(u64, f64); 3], large: &[(u64, f64); 3]) {
    for ((_, small), (most, large)) in small.iter().zip(large) {
        assert!(*large <= small + 4.0, "{small} nodes became {large}");
        // Most is read by the first one after a mount: in each tree what it changes, and where that goes in the past.
        assert!(*most <= 30, "{most} nodes for one operation");
    }
}

#[test]
fn large_directories_cost_a_logarithmic_number_of_nodes() {
    let small = nodes_of_operations(10_000);
    let large = nodes_of_operations(100_000);
    assert_logarithmic(&small, &large);
    assert!(large[0].0 <= 6, "a cold look-up read {} nodes", large[0].0);
}

#[test]
#[ignore = "takes long without optimisation; scripts/soak/bigdir.sh runs it"]
fn a_million_entries_cost_a_logarithmic_number_of_nodes() {
    assert_logarithmic(&nodes_of_operations(100_000), &nodes_of_operations(1_000_000));
}

/// A device that counts what makes all durable, and what makes itself durable alone.
#[derive(Clone)]
struct Syncs {
    device: Arc<MemDevice>,
    flushes: Arc<AtomicU64>,
    alone: Arc<AtomicU64>,
}

impl BlockDevice for Syncs {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&self, op: Op) -> Ticket {
        self.flushes.fetch_add(u64::from(matches!(op, Op::Flush)), SeqCst);
        self.device.submit(op)
    }
    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.alone.fetch_add(1, SeqCst);
        self.device.write(offset, data)
    }
}

impl Syncs {
    fn new() -> Self {
        let (flushes, alone) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        Self { device: Arc::new(MemDevice::new(256 << 20)), flushes, alone }
    }
    /// What these syncs ask for.
    fn counted(&self, syncs: impl FnOnce()) -> (u64, u64) {
        let before = (self.flushes.load(SeqCst), self.alone.load(SeqCst));
        syncs();
        (self.flushes.load(SeqCst) - before.0, self.alone.load(SeqCst) - before.1)
    }
    /// An empty volume on it.
    fn volume(&self, order: Order, segment_blocks: u32) -> Arc<Fs> {
        let given: Arc<dyn BlockDevice> = Arc::new(self.clone());
        let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
        mkfs(&given, &clock, &MkfsOptions { segment_blocks, ..MkfsOptions::default() }).unwrap();
        Fs::open(vec![given], clock, MountOptions { order, ..MountOptions::default() }).unwrap()
    }
}

/// Flushes, and writes that were durable alone, of syncs of one file beside another's data, and then of that one's.
fn syncs_beside_data(order: Order) -> [(u64, u64); 2] {
    let device = Syncs::new();
    let fs = device.volume(order, 0);
    let [a, b] = [&b"a"[..], b"b"].map(|name| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    fs.write(a, 0, &[1; 4096], 0).unwrap();
    fs.sync_all().unwrap();
    let beside = device.counted(|| {
        for i in 0..10u64 {
            // As much as would be written behind while it comes, and all of it less than a burst.
            fs.write(b, i << 20, &vec![2; 256 << 10], 0).unwrap();
            fs.write(a, 4096 * i, &[3; 4096], 0).unwrap();
            fs.fsync_wait(a).unwrap();
        }
    });
    [beside, device.counted(|| fs.fsync_wait(b).unwrap())]
}

/// Decision 0031: who syncs does not flush what others write. A sync that names what was written elsewhere does.
#[test]
fn a_sync_leaves_the_data_of_others_to_them() {
    let [beside, own] = syncs_beside_data(Order::Relaxed);
    assert_eq!(beside, (0, 10));
    // 2.5 MiB are flushed before they are named, so that recovery does not read them; then nothing else is needed.
    assert_eq!(own, (1, 1));
    // Under strict order each commit names what the other file has, and nothing is left for that one.
    let [beside, own] = syncs_beside_data(Order::Strict);
    assert_eq!((beside, own), ((10, 0), (0, 0)));
}

/// A commit of several partials is durable with the flush behind the last: the others are not by themselves.
fn a_commit_that_is_long() {
    let device = Syncs::new();
    let fs = device.volume(Order::Relaxed, 64);
    let a = fs.create(Ino::ROOT, b"a", &file(0o600)).unwrap().ino;
    fs.sync_all().unwrap();
    for i in 0..2000 {
        fs.create(Ino::ROOT, format!("{i:0200}").as_bytes(), &file(0o600)).unwrap();
    }
    let partials = fs.counters().chain_partials;
    let asked = device.counted(|| fs.fsync_wait(a).unwrap());
    assert!(fs.counters().chain_partials - partials > 1);
    assert_eq!(asked, (1, 0), "a part of a commit was not flushed");
}

#[test]
fn a_commit_of_several_partials_is_flushed() {
    a_commit_that_is_long();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a part of a commit was not flushed")]
fn a_commit_whose_last_partial_alone_is_durable_is_noticed() {
    with(Break::PartialsLeft, a_commit_that_is_long);
}
