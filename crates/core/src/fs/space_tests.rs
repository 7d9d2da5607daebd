//! Volumes on which hardly a segment is free.

use crate::{Clock, Fs, MkfsOptions, MountOptions, NewInode, mkfs};
use nenrin_device::{BlockDevice, MemDevice};
use nenrin_format::{Ino, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that goes on when it is looked at.
#[derive(Default)]
struct Looked(AtomicU64);

impl Clock for Looked {
    fn wall(&self) -> Time {
        Time(1_000_000_000_000 + self.0.fetch_add(1, Ordering::Relaxed) as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.fetch_add(10_000_000, Ordering::Relaxed)
    }
}

/// Takes all but so many free segments away.
fn leave_free(fs: &Fs, count: u64) {
    let mut inner = fs.lock();
    let free: Vec<_> = inner.state.segments.iter().map(|(no, _)| no).collect();
    for no in free {
        if inner.state.segments.free_count() > count && inner.state.segments.is_free(no) {
            inner.segments().withhold(no);
        }
    }
}

/// What nobody needs any more goes, and soon, also where index checkpoints have nothing but the open index segments:
/// one volume could not be used again, or even mounted, since sweeping waited for room that only sweeping could give.
#[test]
fn what_may_go_goes_where_nothing_is_free() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(128 << 20));
    let clock: Arc<dyn Clock> = Arc::new(Looked::default());
    mkfs(&device, &clock, &MkfsOptions { segment_blocks: 512, ..MkfsOptions::default() }).unwrap();
    let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = Fs::open(vec![device], clock, options).unwrap();
    let f =
        fs.create(Ino::ROOT, b"f", &NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" }).unwrap().ino;
    let blocks = 6000;
    for pass in 0..2_u8 {
        for i in 0..blocks {
            fs.write(f, i * 7919 % blocks * 2 * 4096, &[pass; 4096], 0).unwrap();
        }
        fs.sync_all().unwrap();
        if pass == 0 {
            fs.checkpoint_create(None).unwrap();
        }
    }
    fs.index_checkpoint(false).unwrap();
    let cno = fs.checkpoints()[0].cno;
    fs.checkpoint_drop(&[cno]).unwrap();
    fs.index_checkpoint(false).unwrap();
    assert_eq!(fs.usage().history_blocks, blocks);
    leave_free(&fs, 3);
    let before = fs.counters().index_checkpoints;
    for _ in 0..30 {
        fs.tick().unwrap();
    }
    assert_eq!(fs.usage().history_blocks, 0);
    let made = fs.counters().index_checkpoints - before;
    assert!(made < 60, "{made} index checkpoints");
    // What it occupied is free.
    let free = fs.lock().state.segments.free_count();
    assert!(free >= 10, "{free}");
}
