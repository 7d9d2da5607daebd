//! A volume in memory with a clock that the test moves.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)] // each test file uses a part

pub mod churn;
pub mod gate;
pub mod sparse;
pub mod versions;

use nenrin_core::format::Time;
use nenrin_core::{Clock, Fs, MkfsOptions, MountOptions, NewInode, mkfs};
use nenrin_device::{BlockDevice, MemDevice, Observed};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Default)]
pub struct TestClock(pub AtomicU64);

impl Clock for TestClock {
    fn wall(&self) -> Time {
        Time(1_000_000_000_000 + self.0.fetch_add(1, Ordering::Relaxed) as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn wait(&self, nanos: u64) {
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }
}

pub struct World {
    pub device: Arc<Observed<MemDevice>>,
    pub clock: Arc<TestClock>,
}

impl World {
    pub fn new(bytes: usize) -> Self {
        Self::with(bytes, &MkfsOptions::default())
    }
    pub fn with(bytes: usize, options: &MkfsOptions) -> Self {
        let this =
            Self { device: Arc::new(Observed::new(MemDevice::new(bytes))), clock: Arc::new(TestClock::default()) };
        let device: Arc<dyn BlockDevice> = this.device.clone();
        let clock: Arc<dyn Clock> = this.clock.clone();
        mkfs(&device, &clock, options).unwrap();
        this
    }
    pub fn open(&self) -> Arc<Fs> {
        self.open_with(MountOptions::default())
    }
    pub fn open_with(&self, options: MountOptions) -> Arc<Fs> {
        Fs::open(vec![self.device.clone()], self.clock.clone(), options).unwrap()
    }
    pub fn pass(&self, nanos: u64) {
        self.clock.0.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// So long it is waited for what has to come: a busy machine takes its time. What is broken on purpose so that it never comes does not
/// come any more for being waited for as long.
pub fn patience() -> Duration {
    #[cfg(feature = "breaks")]
    if nenrin_core::breaks::now().is_some() {
        return Duration::from_secs(3);
    }
    Duration::from_secs(20)
}

pub fn file(mode: u32) -> NewInode<'static> {
    NewInode { mode: 0o100_000 | mode, uid: 0, gid: 0, rdev: 0, target: b"" }
}

pub fn dir() -> NewInode<'static> {
    NewInode { mode: 0o040_755, uid: 0, gid: 0, rdev: 0, target: b"" }
}
