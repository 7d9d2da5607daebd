//! Versions of one file, 4 KiB changed in each, all of them kept: what they take on the device.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)] // each user needs a part

use nenrin_core::format::{Cno, Ino, Time};
use nenrin_core::{At, Clock, Fs, MkfsOptions, MountOptions, NewInode, SegmentState, mkfs};
use nenrin_device::{BlockDevice, MemDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = 4096;

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

pub struct Versions {
    clock: Arc<Virtual>,
    pub fs: Arc<Fs>,
    ino: Ino,
    blocks: u64,
    random: u64,
    /// What each block holds, and where each version differs from the one before.
    first: Vec<u64>,
    changes: Vec<(Cno, u64, u64)>,
}

/// What is on the device, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Blocks of content that only history needs.
    pub history: u64,
    /// Both copies of all index nodes.
    pub nodes: u64,
    /// Segments that are not free.
    pub segments: u64,
    /// The same beyond the content of the file as it is.
    pub beyond: u64,
}

impl Versions {
    pub fn new(device_bytes: usize, file_bytes: u64) -> Self {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(device_bytes));
        let clock = Arc::new(Virtual::default());
        let shared: Arc<dyn Clock> = clock.clone();
        mkfs(&device, &shared, &MkfsOptions::default()).unwrap();
        let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
        let fs = Fs::open(vec![device], shared, options).unwrap();
        fs.set_retention("forever:all").unwrap();
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let ino = fs.create(Ino::ROOT, b"f", &new).unwrap().ino;
        let blocks = file_bytes / BLOCK;
        let first: Vec<u64> = (0..blocks).map(|b| b * 1_000_003 + 1).collect();
        let bytes: Vec<u8> = first.iter().flat_map(|stamp| stamp.to_le_bytes().repeat(BLOCK as usize / 8)).collect();
        for (i, part) in bytes.chunks(1 << 20).enumerate() {
            fs.write(ino, (i << 20) as u64, part, 0).unwrap();
        }
        fs.fsync_wait(ino).unwrap();
        Self { clock, fs, ino, blocks, random: 1, first, changes: Vec::new() }
    }

    /// Another version: a block somewhere is another one, and a checkpoint shows it.
    pub fn add(&mut self) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (block, stamp) = ((self.random >> 33) % self.blocks, self.random | 1);
        let before = self.fs.checkpoint_create(None).unwrap().cno;
        self.fs.write(self.ino, block * BLOCK, &stamp.to_le_bytes().repeat(BLOCK as usize / 8), 0).unwrap();
        self.fs.fsync_wait(self.ino).unwrap();
        self.changes.push((before, block, stamp));
        self.pass(5);
    }

    fn pass(&self, seconds: u64) {
        for _ in 0..seconds {
            self.clock.0.fetch_add(1_000_000_000, Ordering::Relaxed);
            self.fs.tick().unwrap();
        }
    }

    /// Cleans all there is to clean, and writes the index.
    pub fn clean(&self) {
        self.fs.sync_all().unwrap();
        self.pass(60);
        let mut clean = self.fs.clean();
        while !clean.is_done() {
            self.fs.clean_step(&mut clean, 1024).unwrap();
        }
        self.pass(60);
    }

    pub fn taken(&self) -> Taken {
        let (usage, segment) = (self.fs.usage(), u64::from(self.fs.superblock().segment_blocks) * BLOCK);
        let all = self.fs.segments();
        let used = all.iter().filter(|s| s.state != SegmentState::Free).count() as u64 * segment;
        let nodes = all.iter().map(|s| u64::from(s.nodes)).sum::<u64>() * 4 * BLOCK;
        let beyond = used.saturating_sub(self.blocks * BLOCK);
        Taken { history: usage.history_blocks * BLOCK, nodes, segments: used, beyond }
    }

    /// Each version is what it was.
    pub fn verify(&self) {
        let mut stamps = self.first.clone();
        let check = |at: At, stamps: &[u64]| {
            let bytes = self.fs.read(at, self.ino, 0, (self.blocks * BLOCK) as usize).unwrap();
            for (block, (bytes, stamp)) in bytes.chunks(BLOCK as usize).zip(stamps).enumerate() {
                assert!(bytes.chunks_exact(8).all(|b| b == stamp.to_le_bytes()), "block {block} of {at:?}");
            }
        };
        for (i, (cno, block, stamp)) in self.changes.iter().enumerate() {
            if i % 50 == 0 {
                check(At::Past(*cno), &stamps);
            }
            stamps[*block as usize] = *stamp;
        }
        check(At::Live, &stamps);
    }
}
