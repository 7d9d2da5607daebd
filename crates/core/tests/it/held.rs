//! P3: a file that is emptied to be written anew shows, after a power cut, one
//! of its commits: also when it waits for a commit already.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::gate::{World, is_long_write, is_write, world};
use crate::common::{TestClock, dir, file};
use nenrin_core::format::Ino;
use nenrin_core::format::Time;
use nenrin_core::{At, COMMITS_AT_ONCE, Fs, MountOptions, Order, RenameMode, SetAttr, SetTime, XattrMode};
use nenrin_device::MemDevice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

fn empty(fs: &Fs, ino: Ino) {
    fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
}

/// The device as it is, after the power has gone: nothing of what is in memory.
fn after_a_cut(device: &MemDevice) -> Arc<Fs> {
    let device = MemDevice::from_bytes(device.snapshot());
    Fs::open(vec![Arc::new(device)], Arc::new(TestClock::default()), MountOptions::default()).unwrap()
}

fn content(fs: &Fs, name: &[u8]) -> Vec<u8> {
    let f = fs.lookup(At::Live, Ino::ROOT, name).unwrap();
    fs.read(At::Live, f.ino, 0, 1 << 20).unwrap()
}

/// Small content lives in the index, larger in blocks, and more goes ahead of its commit.
const SIZES: [usize; 3] = [100, 9000, 600 << 10];

#[test]
fn content_that_a_rename_carries_survives_being_emptied() {
    for bytes in SIZES {
        let World { device, fs, .. } = world(MountOptions::default());
        let old = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap();
        fs.write(old.ino, 0, &vec![1; bytes], 0).unwrap();
        let other = fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap();
        fs.sync_all().unwrap();
        let new = fs.create(Ino::ROOT, b"new", &file(0o600)).unwrap();
        fs.write(new.ino, 0, &vec![2; bytes], 0).unwrap();
        fs.rename(Ino::ROOT, b"new", Ino::ROOT, b"file", RenameMode::Replace).unwrap();
        empty(&fs, new.ino);
        fs.write(other.ino, 0, &[9; 100], 0).unwrap();
        fs.fsync_wait(other.ino).unwrap();
        assert!(content(&after_a_cut(&device), b"file") == vec![2; bytes], "{bytes} bytes: emptied");
        // Beside it the emptied file is what it was made, and goes on.
        assert_eq!(content(&fs, b"file"), b"");
        fs.write(new.ino, 0, &vec![3; bytes / 2], 0).unwrap();
        fs.fsync_wait(other.ino).unwrap();
        assert!(content(&after_a_cut(&device), b"file") == vec![2; bytes], "{bytes} bytes: half of it written");
        fs.flush(new.ino).unwrap();
        fs.sync_all().unwrap();
        assert!(content(&after_a_cut(&device), b"file") == vec![3; bytes / 2], "{bytes} bytes: closed");
    }
}

#[test]
fn content_that_a_sync_waits_to_commit_survives_being_emptied() {
    for bytes in SIZES {
        let World { gate, device, fs, .. } = world(MountOptions::default());
        let f = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap();
        fs.write(f.ino, 0, &vec![1; bytes], 0).unwrap();
        let make = |i: u32| fs.create(Ino::ROOT, format!("other {i}").as_bytes(), &file(0o600)).unwrap().ino;
        let others: Vec<Ino> = (0..COMMITS_AT_ONCE).map(make).collect();
        fs.sync_all().unwrap();
        // As many commits of other files are under way as can be, so that the next has to wait.
        gate.close(is_write, 0);
        let lead = |(i, ino): (usize, Ino)| {
            fs.write(ino, 0, &[9; 100], 0).unwrap();
            let leader = {
                let fs = fs.clone();
                thread::spawn(move || fs.fsync_wait(ino))
            };
            gate.wait_until(|s| s.waiting == i + 1);
            leader
        };
        let leaders: Vec<_> = others.into_iter().enumerate().map(lead).collect();
        fs.write(f.ino, 0, &vec![2; bytes], 0).unwrap();
        let shared = fs.counters().shared_commits;
        let syncer = {
            let fs = fs.clone();
            thread::spawn(move || fs.fsync_wait(f.ino))
        };
        // It waits for the commit, or first for its own data; then the file takes no change until it has joined a commit.
        while gate.waiting() <= leaders.len() && fs.counters().shared_commits == shared {
            thread::yield_now();
        }
        let emptier = {
            let fs = fs.clone();
            thread::spawn(move || empty(&fs, f.ino))
        };
        for _ in 0..100 {
            thread::sleep(Duration::from_millis(u64::from(!emptier.is_finished())));
        }
        assert_eq!(emptier.is_finished(), bytes < 256 << 10);
        gate.open();
        emptier.join().unwrap();
        syncer.join().unwrap().unwrap();
        for leader in leaders {
            leader.join().unwrap().unwrap();
        }
        assert!(content(&after_a_cut(&device), b"file") == vec![2; bytes], "{bytes} bytes: what was synced is gone");
        assert_eq!(content(&fs, b"file"), b"");
        fs.close().unwrap();
        assert_eq!(content(&after_a_cut(&device), b"file"), b"");
    }
}

/// P1: nobody has the file open, so that no close will come: what emptied it is seen by the next checkpoint, and by the next commit of
/// all files.
#[test]
fn what_nobody_has_open_is_emptied_at_once() {
    for bytes in SIZES {
        let World { device, clock, fs, .. } = world(MountOptions::default());
        let f = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap().ino;
        let fill = || {
            fs.write(f, 0, &vec![1; bytes], 0).unwrap();
            fs.sync_all().unwrap();
            fs.setattr(f, &SetAttr { size: Some(0), closed: true, ..SetAttr::default() }).unwrap();
        };
        fill();
        let cno = fs.checkpoint_create(None).unwrap().cno;
        assert_eq!(fs.read(At::Past(cno), f, 0, 1 << 20).unwrap(), b"", "{bytes} bytes: the past");
        fill();
        clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
        fs.tick().unwrap();
        assert_eq!(content(&after_a_cut(&device), b"file"), b"", "{bytes} bytes: after a cut");
    }
}

/// What waits for a commit goes with the file.
#[test]
fn a_file_that_is_gone_needs_no_commit() {
    let World { device, fs, .. } = world(MountOptions::default());
    let old = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap();
    fs.write(old.ino, 0, &[1; 9000], 0).unwrap();
    fs.sync_all().unwrap();
    let new = fs.create(Ino::ROOT, b"new", &file(0o600)).unwrap();
    fs.write(new.ino, 0, &vec![2; 600 << 10], 0).unwrap();
    fs.rename(Ino::ROOT, b"new", Ino::ROOT, b"file", RenameMode::Replace).unwrap();
    empty(&fs, new.ino);
    fs.unlink(Ino::ROOT, b"file").unwrap();
    fs.sync_all().unwrap();
    for _ in 0..20 {
        fs.tick().unwrap();
    }
    assert_eq!(fs.usage().inodes, 1);
    fs.close().unwrap();
    after_a_cut(&device).close().unwrap();
}

/// P1: a sync was submitted, the file is emptied, and time makes a commit of all other files. Whether the sync was told that all is
/// durable, and what of the file is there after a cut then.
fn emptied_behind_a_submitted_sync(bytes: usize) -> (bool, Vec<u8>) {
    let World { device, clock, fs, .. } = world(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap().ino;
    fs.write(f, 0, &vec![1; bytes], 0).unwrap();
    let other = fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap().ino;
    fs.sync_all().unwrap();
    fs.write(f, 0, &vec![2; bytes], 0).unwrap();
    let ticket = fs.submit_sync(f);
    empty(&fs, f);
    fs.write(other, 0, &[9; 100], 0).unwrap();
    clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
    fs.tick().unwrap();
    let commits = fs.counters().commits;
    ticket.wait().unwrap();
    (fs.counters().commits == commits, content(&after_a_cut(&device), b"file"))
}

#[test]
fn a_sync_that_was_submitted_carries_what_is_held_back() {
    for bytes in SIZES {
        let (is_told, content) = emptied_behind_a_submitted_sync(bytes);
        assert!(is_told, "{bytes} bytes: the commit of all files told nobody");
        assert!(content != vec![1; bytes], "{bytes} bytes: what was there before the sync");
        assert!(content.is_empty(), "{bytes} bytes: {} are left", content.len());
    }
}

/// In strict order: a file is emptied and written anew, and another one written whose sync is submitted; time makes a commit. What of the
/// former is there after a cut when the sync has been told.
fn held_back_before_a_submitted_sync() -> Vec<u8> {
    let World { device, clock, fs, .. } = world(MountOptions { order: Order::Strict, ..MountOptions::default() });
    let [f, other] = ["file", "other"].map(|name| fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino);
    fs.write(f, 0, &[1; 9000], 0).unwrap();
    fs.sync_all().unwrap();
    empty(&fs, f);
    fs.write(f, 0, &[2; 9000], 0).unwrap();
    fs.write(other, 0, &[9; 100], 0).unwrap();
    let ticket = fs.submit_sync(other);
    clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
    fs.tick().unwrap();
    ticket.wait().unwrap();
    let after = after_a_cut(&device);
    assert_eq!(content(&after, b"other"), [9; 100]);
    content(&after, b"file")
}

#[test]
fn in_strict_order_a_submitted_sync_goes_behind_what_is_held_back() {
    assert!(held_back_before_a_submitted_sync() == [2; 9000]);
}

#[cfg(feature = "breaks")]
#[test]
fn a_submitted_sync_ahead_of_what_is_held_back_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    assert!(with(Break::AskedAheadOfHeld, held_back_before_a_submitted_sync) == [1; 9000]);
}

/// What of a file is there after a cut that was emptied, and over which very many ranges were copied; and again when it was closed.
fn emptied_and_copied_over() -> [Vec<u8>; 2] {
    let World { device, fs, .. } = world(MountOptions::default());
    let [from, to] = ["from", "file"].map(|name| fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino);
    fs.write(to, 0, &[1; 4096], 0).unwrap();
    // A thousand extents, 36 times.
    (0..1000).for_each(|n| assert_eq!(fs.write(from, n * 8192, &[2; 4096], 0).unwrap(), 4096));
    fs.sync_all().unwrap();
    empty(&fs, to);
    for at in (0..36).map(|n| n * 8_192_000) {
        let mut done = 0;
        while done < 8_187_904 {
            done += fs.copy_range(from, done, to, at + done, 8_187_904 - done, 0).unwrap();
        }
    }
    let held = content(&after_a_cut(&device), b"file");
    fs.flush(to).unwrap();
    fs.sync_all().unwrap();
    [held, content(&after_a_cut(&device), b"file")]
}

#[test]
fn a_copy_of_very_many_ranges_stays_held_back() {
    let [held, closed] = emptied_and_copied_over();
    assert!(held == [1; 4096], "{} bytes", held.len());
    assert!(closed.len() == 1 << 20 && closed.chunks(8192).all(|c| c[..4096] == [2; 4096] && c[4096..] == [0; 4096]));
}

#[cfg(feature = "breaks")]
#[test]
fn a_copy_of_very_many_ranges_that_ends_a_hold_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    let [held, _] = with(Break::RangesEndHolds, emptied_and_copied_over);
    assert!(held != [1; 4096]);
}

#[cfg(feature = "breaks")]
#[test]
fn what_is_held_back_from_a_submitted_sync_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    for bytes in SIZES {
        let (is_told, content) = with(Break::HeldAskedLeftOut, || emptied_behind_a_submitted_sync(bytes));
        assert!(is_told && content == vec![1; bytes], "{bytes} bytes");
    }
}

/// The names of what was there after a cut, with their content, each of a volume on which somebody syncs another file at the end.
fn after_a_sync_of_another(work: impl Fn(&Fs, Ino)) -> Arc<Fs> {
    let World { device, clock, fs, .. } = world(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap().ino;
    let other = fs.create(Ino::ROOT, b"other", &file(0o600)).unwrap().ino;
    fs.sync_all().unwrap();
    work(&fs, f);
    clock.0.fetch_add(50_000_000, Ordering::Relaxed);
    fs.write(other, 0, &[9; 100], 0).unwrap();
    fs.fsync_wait(other).unwrap();
    after_a_cut(&device)
}

/// A file is saved by emptying it, again before the first save was committed: what was closed is kept as if it were committed.
fn saved_twice() {
    // What is large is not: who syncs another file would wait for it.
    for bytes in &SIZES[..2] {
        let bytes = *bytes;
        for saves in 1..4u8 {
            let World { device, clock, fs, .. } = world(MountOptions::default());
            let f = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap().ino;
            for i in 1..=saves {
                empty(&fs, f);
                fs.write(f, 0, &vec![i; bytes], 0).unwrap();
                fs.flush(f).unwrap();
            }
            empty(&fs, f);
            fs.write(f, 0, b"not closed", 0).unwrap();
            clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
            fs.tick().unwrap();
            let cno = fs.checkpoint_create(Some(b"now")).unwrap().cno;
            let is_one = |c: &[u8]| (1..=saves).any(|i| c == vec![i; bytes]);
            assert!(is_one(&content(&after_a_cut(&device), b"file")), "{saves} saves of {bytes} bytes: after a cut");
            assert!(
                is_one(&fs.read(At::Past(cno), f, 0, 1 << 20).unwrap()),
                "{saves} saves of {bytes} bytes: the past"
            );
            assert_eq!(content(&fs, b"file"), b"not closed");
            fs.flush(f).unwrap();
            fs.sync_all().unwrap();
            assert_eq!(content(&after_a_cut(&device), b"file"), b"not closed");
        }
    }
}

#[test]
fn what_was_closed_and_not_committed_is_not_lost_when_it_is_emptied() {
    saved_twice();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "after a cut")]
fn what_was_closed_and_is_lost_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::ClosedNotOwed, saved_twice);
}

/// A list that is there before.
const KEEPS_OUT: &[u8] = b"system.posix_acl_default";

/// Somebody gets access to a file when it holds nothing any more that he must not see.
fn opened_to_others() {
    type Grant = fn(&Fs, Ino);
    fn set(fs: &Fs, f: Ino, set: SetAttr) {
        fs.setattr(f, &set).unwrap();
    }
    let grants: [(&str, Grant); 8] = [
        ("mode", |fs, f| set(fs, f, SetAttr { mode: Some(0o644), ..SetAttr::default() })),
        ("set-id", |fs, f| set(fs, f, SetAttr { mode: Some(0o4700), ..SetAttr::default() })),
        ("owner", |fs, f| set(fs, f, SetAttr { uid: Some(77), ..SetAttr::default() })),
        ("group", |fs, f| set(fs, f, SetAttr { gid: Some(77), ..SetAttr::default() })),
        ("capabilities", |fs, f| fs.setxattr(f, b"security.capability", b"all", XattrMode::Any).unwrap()),
        ("a list", |fs, f| fs.setxattr(f, b"system.posix_acl_access", b"more", XattrMode::Any).unwrap()),
        ("no list", |fs, f| fs.removexattr(f, KEEPS_OUT).unwrap()),
        ("directory", |fs, _| {
            let public = fs.lookup(At::Live, Ino::ROOT, b"public").unwrap().ino;
            fs.rename(Ino::ROOT, b"file", public, b"file", RenameMode::Replace).unwrap();
        }),
    ];
    for bytes in SIZES {
        for (what, grant) in grants {
            for is_closed in [true, false] {
                let fs = after_a_sync_of_another(|fs, f| {
                    fs.create(Ino::ROOT, b"public", &dir()).unwrap();
                    fs.write(f, 0, &vec![1; bytes], 0).unwrap();
                    fs.setxattr(f, KEEPS_OUT, b"less", XattrMode::Any).unwrap();
                    fs.sync_all().unwrap();
                    empty(fs, f);
                    fs.write(f, 0, &vec![2; bytes], 0).unwrap();
                    if is_closed {
                        fs.flush(f).unwrap();
                    }
                    grant(fs, f);
                });
                let public = fs.lookup(At::Live, Ino::ROOT, b"public").unwrap().ino;
                let moved = fs.lookup(At::Live, public, b"file");
                let is_there = moved.is_ok();
                let f = moved.or_else(|_| fs.lookup(At::Live, Ino::ROOT, b"file")).unwrap();
                let is_granted = is_there || f.mode & 0o7777 != 0o600 || f.uid == 77 || f.gid == 77;
                let has = |name: &[u8]| fs.getxattr(At::Live, f.ino, name).is_ok();
                let is_granted = is_granted || has(b"security.capability") || has(b"system.posix_acl_access");
                let is_granted = is_granted || !has(KEEPS_OUT);
                let secret = fs.read(At::Live, f.ino, 0, 1 << 20).unwrap() == vec![1; bytes];
                assert!(is_granted, "{what}: it was synced");
                assert!(!secret, "{what}, {bytes} bytes, closed {is_closed}: what was there before is shown");
            }
        }
    }
}

#[test]
fn who_is_allowed_more_is_not_shown_what_was_there_before() {
    opened_to_others();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was there before is shown")]
fn what_was_there_before_and_is_shown_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::GrantedAhead, opened_to_others);
}

/// While a truncation is held back, and until content is committed, what is shown has the times that it had.
fn times_of_what_is_shown() {
    for bytes in SIZES {
        let fs = after_a_sync_of_another(|fs, f| {
            fs.write(f, 0, &vec![1; bytes], 0).unwrap();
            let old = SetAttr { mtime: Some(SetTime::At(Time(1))), ..SetAttr::default() };
            fs.setattr(f, &old).unwrap();
            fs.sync_all().unwrap();
            let times = (Some(SetTime::At(Time(5))), Some(SetTime::At(Time(6))));
            fs.setattr(f, &SetAttr { size: Some(0), mtime: times.0, ctime: times.1, ..SetAttr::default() }).unwrap();
            fs.write(f, 0, &vec![2; bytes], 0).unwrap();
            fs.setattr(f, &SetAttr { mtime: Some(SetTime::At(Time(7))), ..SetAttr::default() }).unwrap();
            assert_eq!(fs.getattr(At::Live, f).unwrap().mtime, Time(7));
        });
        let f = fs.lookup(At::Live, Ino::ROOT, b"file").unwrap();
        assert!(content(&fs, b"file") == vec![1; bytes]);
        assert_eq!(f.mtime, Time(1), "{bytes} bytes: the time of other content");
    }
}

#[test]
fn what_is_shown_has_the_times_that_it_had() {
    times_of_what_is_shown();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the time of other content")]
fn times_of_other_content_are_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::TimesAhead, times_of_what_is_shown);
}

/// A time that is set when nothing waits is synced with the file.
#[test]
fn a_time_that_is_set_behind_a_write_is_synced_with_it() {
    for is_written in [false, true] {
        let World { device, fs, .. } = world(MountOptions::default());
        let f = fs.create(Ino::ROOT, b"file", &file(0o600)).unwrap().ino;
        fs.sync_all().unwrap();
        if is_written {
            fs.write(f, 0, &[1; 5000], 0).unwrap();
        }
        let set =
            SetAttr { atime: Some(SetTime::At(Time(3))), mtime: Some(SetTime::At(Time(4))), ..SetAttr::default() };
        fs.setattr(f, &set).unwrap();
        fs.fsync_wait(f).unwrap();
        let after = after_a_cut(&device);
        let f = after.lookup(At::Live, Ino::ROOT, b"file").unwrap();
        assert_eq!((f.atime, f.mtime), (Time(3), Time(4)), "written {is_written}");
    }
}

/// While the device has to do with a large file, by time a small one and names are committed without waiting for that.
fn small_beside_large() {
    let World { gate, device, clock, fs } = world(MountOptions::default());
    let large = fs.create(Ino::ROOT, b"large", &file(0o600)).unwrap().ino;
    fs.sync_all().unwrap();
    gate.close(is_long_write, 0);
    fs.write(large, 0, &vec![1; 4 << 20], 0).unwrap();
    gate.wait_until(|s| s.held > 0);
    let small = fs.create(Ino::ROOT, b"small", &file(0o600)).unwrap().ino;
    fs.write(small, 0, &[2; 100], 0).unwrap();
    clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
    let by_time = {
        let fs = fs.clone();
        #[cfg(feature = "breaks")]
        let what = nenrin_core::breaks::now();
        thread::spawn(move || {
            #[cfg(feature = "breaks")]
            if let Some(what) = what {
                return nenrin_core::breaks::with(what, || fs.commit_due());
            }
            fs.commit_due()
        })
    };
    gate.wait_until(|s| s.waiting > 0);
    let is_there = after_a_cut(&device).lookup(At::Live, Ino::ROOT, b"small").is_ok_and(|f| f.size == 100);
    gate.open();
    by_time.join().unwrap().unwrap();
    assert!(is_there, "it waits for the large one");
    let after = after_a_cut(&device);
    assert_eq!(after.lookup(At::Live, Ino::ROOT, b"large").unwrap().size, 4 << 20);
    assert!(content(&after, b"large") == vec![1; 1 << 20]);
}

#[test]
fn what_is_small_is_committed_by_time_without_waiting_for_what_is_large() {
    small_beside_large();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "it waits for the large one")]
fn what_is_small_and_waits_for_what_is_large_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::LittleWaits, small_beside_large);
}
