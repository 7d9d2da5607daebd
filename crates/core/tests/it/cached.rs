//! What comes out of the cache of a kernel, which has the times of its files and sends them apart.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::Ino;
use nenrin_core::{AllocateMode, At, SetAttr, SetTime, Writer};

const SECOND: u64 = 1_000_000_000;
const KERNEL: Writer = Writer { uid: 0, keeps_times: true };

/// Times stay what the kernel has, but that one commit looks different from the next; what comes long after a change is of one whose
/// times are still to come.
fn the_kernel_has_the_times() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    fs.write(f, 0, b"first", 0).unwrap();
    fs.fsync_wait(f).unwrap();
    let times = || fs.getattr(At::Live, f).map(|a| (a.mtime.0, a.ctime.0)).unwrap();
    let first = times();
    for n in 1..=3 {
        w.pass(SECOND);
        assert!(!fs.accept(f, 0, &[n; 9], KERNEL).unwrap().is_told_later);
        assert!(!fs.accept(f, 9, &[n; 9], KERNEL).unwrap().is_told_later);
        assert_ne!(times(), (first.0, first.1 + i64::from(n) - 1), "two states look the same");
        assert_eq!(times(), (first.0, first.1 + i64::from(n)), "what the kernel has is gone");
        fs.fsync_wait(f).unwrap();
    }
    // What moves no time on its way: room that is reserved, and a size that the file has.
    let mut last = times();
    let same_size = || {
        let now = fs.getattr(At::Live, f).unwrap();
        let (mtime, ctime) = (Some(SetTime::At(now.mtime)), Some(SetTime::At(now.ctime)));
        fs.setattr(f, &SetAttr { size: Some(now.size), mtime, ctime, ..SetAttr::default() }).map(drop)
    };
    let still: [&dyn Fn() -> nenrin_core::Result<()>; 3] =
        [&|| fs.allocate_for(KERNEL, f, AllocateMode::ReserveKeepSize, 1 << 20, 4096), &same_size, &|| {
            fs.allocate_for(KERNEL, f, AllocateMode::Reserve, 0, 9)
        }];
    for change in still {
        change().unwrap();
        assert!(!fs.accept(f, 0, b"and then", KERNEL).unwrap().is_told_later);
        assert_eq!(times(), (last.0, last.1 + 1), "two states look the same");
        fs.fsync_wait(f).unwrap();
        last = times();
    }
    let first = last;
    w.pass(60 * SECOND);
    assert!(!fs.accept(f, 0, b"late", KERNEL).unwrap().is_told_later);
    assert!(times().0 > first.0 && times().1 > first.1, "as old as before");
    fs.close().unwrap();
}

#[test]
fn what_comes_out_of_a_cache_leaves_the_times() {
    the_kernel_has_the_times();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what the kernel has is gone")]
fn times_that_move_with_what_comes_out_of_a_cache_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::CacheMovesTimes, the_kernel_has_the_times);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "two states look the same")]
fn what_comes_out_of_a_cache_unseen_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::CacheUnseen, the_kernel_has_the_times);
}
