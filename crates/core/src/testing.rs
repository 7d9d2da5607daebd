//! Small volumes in memory, for the tests inside this crate.

use crate::{Clock, Fs, MkfsOptions, MountOptions, NewInode, mkfs};
use nenrin_device::{BlockDevice, MemDevice};
use nenrin_format::{Ino, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that stands.
pub(crate) struct Still;

impl Clock for Still {
    fn wall(&self) -> Time {
        Time(1_000_000_000_000)
    }
    fn monotonic_nanos(&self) -> u64 {
        1
    }
}

/// A clock by which no two events are of one time, and which the test moves.
#[derive(Default)]
pub(crate) struct TestClock(pub(crate) AtomicU64);

impl Clock for TestClock {
    fn wall(&self) -> Time {
        Time(1_000_000_000_000 + self.0.fetch_add(1, Ordering::Relaxed) as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a new file of root is like.
pub(crate) const FILE: NewInode<'static> = NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };

/// A new volume on a device of so many MiB, with segments of so many blocks (0: what mkfs chooses).
pub(crate) fn device(mib: usize, segment_blocks: u32) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(mib << 20));
    let still: Arc<dyn Clock> = Arc::new(Still);
    mkfs(&device, &still, &MkfsOptions { segment_blocks, ..MkfsOptions::default() }).unwrap();
    device
}

/// A mount by a clock that stands.
pub(crate) fn mount(device: &Arc<dyn BlockDevice>, options: MountOptions) -> Arc<Fs> {
    Fs::open(vec![device.clone()], Arc::new(Still), options).unwrap()
}

/// A new file in the root directory.
pub(crate) fn create(fs: &Fs, name: &str) -> Ino {
    fs.create(Ino::ROOT, name.as_bytes(), &FILE).unwrap().ino
}
