//! Random overwrites of 4 KiB on a nearly full volume in memory, counted.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used, clippy::panic)] // each user needs a part

use nenrin_core::format::{Ino, Time};
use nenrin_core::{Clock, Fs, MkfsOptions, MountOptions, NewInode, mkfs};
use nenrin_device::{BlockDevice, MemDevice, Observed};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every block as often as any other.
    Uniform,
    /// Nine of ten writes to a tenth of the blocks.
    HotCold,
    /// The same with the tenth spread evenly over the file.
    HotSpread,
}

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

pub struct Churn {
    pub device: Arc<Observed<MemDevice>>,
    clock: Arc<Virtual>,
    pub fs: Arc<Fs>,
    pub ino: Ino,
    pub blocks: u64,
    pattern: Pattern,
    commit_blocks: u64,
    random: u64,
    /// What each block should hold.
    pub stamps: Vec<u64>,
}

/// Bytes of the device for each byte that was written, and what they were for.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub device: f64,
    pub moved: f64,
    pub index: f64,
    pub chain: f64,
    /// Index checkpoints.
    pub checkpoints: u64,
    pub tree_walks: u64,
    /// Index checkpoints and batches that a writer had to wait for.
    pub stalls: u64,
}

impl Churn {
    /// A volume of which one file takes `percent` of what is available when it is empty.
    pub fn new(bytes: u64, percent: u64, pattern: Pattern, commit_blocks: u64) -> Self {
        let device = Arc::new(Observed::new(MemDevice::new(bytes as usize)));
        let clock = Arc::new(Virtual::default());
        let (dev, clk): (Arc<dyn BlockDevice>, Arc<dyn Clock>) = (device.clone(), clock.clone());
        mkfs(&dev, &clk, &MkfsOptions::default()).unwrap();
        let mount = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
        let fs = Fs::open(vec![dev], clk, mount).unwrap();
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let ino = fs.create(Ino::ROOT, b"f", &new).unwrap().ino;
        let blocks = fs.usage().available_blocks * percent / 100;
        let mut this = Self {
            device,
            clock,
            fs,
            ino,
            blocks,
            pattern,
            commit_blocks,
            random: 1,
            stamps: vec![0; blocks as usize],
        };
        for block in 0..blocks {
            this.write(block);
        }
        this.settle();
        this
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn write(&mut self, block: u64) {
        let stamp = self.next(u64::MAX >> 34) + 1;
        let mut bytes = [0; 4096];
        bytes.chunks_exact_mut(8).for_each(|b| b.copy_from_slice(&stamp.to_le_bytes()));
        let wrote = self.fs.write(self.ino, block * 4096, &bytes, 0);
        wrote.unwrap_or_else(|e| panic!("{e}: {:?} {:?}", self.fs.usage(), self.fs.cleaner_status()));

        self.stamps[block as usize] = stamp;
    }

    /// A tenth of a second passes.
    pub fn tick(&mut self) {
        self.clock.0.fetch_add(100_000_000, Ordering::Relaxed);
        self.fs.tick().unwrap();
    }

    pub fn settle(&mut self) {
        self.fs.sync_all().unwrap();
        for _ in 0..20 {
            self.tick();
        }
    }

    /// Overwrites `times` times as many blocks as there are; what that cost.
    pub fn overwrite(&mut self, times: u64) -> Cost {
        let hot = (self.blocks / 10).max(1);
        let (before, done) = (self.device.counters(), self.fs.counters());
        let writes = self.blocks * times;
        for i in 0..writes {
            let is_hot = self.next(10) < 9;
            let block = match self.pattern {
                Pattern::HotCold if is_hot => self.next(hot),
                Pattern::HotCold => hot + self.next(self.blocks - hot),
                Pattern::HotSpread if is_hot => self.next(hot) * 10,
                Pattern::HotSpread => {
                    let cold = self.next(self.blocks - hot - 1);
                    (cold / 9 * 10 + 1 + cold % 9).min(self.blocks - 1)
                }
                Pattern::Uniform => self.next(self.blocks),
            };
            self.write(block);
            // Ten ticks, and so a second, from one commit to the next.
            if i % (self.commit_blocks / 10).max(1) == 0 {
                self.tick();
            }
        }
        self.fs.sync_all().unwrap();
        let cost = self.device.counters().since(&before);
        let now = self.fs.counters();
        let user = (writes * 4096) as f64;
        let of = |blocks: u64| (blocks * 4096) as f64 / user;
        Cost {
            device: cost.write_bytes as f64 / user,
            moved: of(now.moved_blocks - done.moved_blocks),
            index: of((now.nodes - done.nodes) * 8),
            chain: of(now.chain_blocks - done.chain_blocks),
            checkpoints: now.index_checkpoints - done.index_checkpoints,
            tree_walks: now.tree_walks - done.tree_walks,
            stalls: now.room_rounds - done.room_rounds,
        }
    }

    /// Every block holds what was written last.
    pub fn verify(&self) {
        for (block, stamp) in self.stamps.iter().enumerate() {
            let bytes = self.fs.read(nenrin_core::At::Live, self.ino, block as u64 * 4096, 4096).unwrap();
            assert!(bytes.chunks_exact(8).all(|b| b == stamp.to_le_bytes()), "block {block}");
        }
    }
}
