//! A flush fails, and what it was to cover stays readable: in the cache of a host, which takes it for written from then on, so that no
//! later flush covers it. A mount finds it there, shows it and syncs; then the power fails.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{TestClock, file};
use nenrin_core::check::{CheckOptions, What, check};
use nenrin_core::format::Ino;
use nenrin_core::format::superblock::Profile;
use nenrin_core::{At, Clock, Fs, MkfsOptions, MountOptions, Standing, mkfs_on};
use nenrin_device::{BlockDevice, CrashChoice, CrashDisk};
use std::sync::Arc;

const PROFILES: [(Profile, usize); 4] =
    [(Profile::Single, 1), (Profile::Stripe, 2), (Profile::Mirror, 2), (Profile::Parity, 3)];

fn devices(disks: &[Arc<CrashDisk>]) -> Vec<Arc<dyn BlockDevice>> {
    disks.iter().map(|d| d.clone() as Arc<dyn BlockDevice>).collect()
}

fn open(devices: &[Arc<dyn BlockDevice>]) -> Arc<Fs> {
    let options = MountOptions { degraded: true, ..MountOptions::default() };
    let open = || Fs::open(devices.to_vec(), Arc::new(TestClock::default()), options.clone());
    // The flush that fails may be that of the mount itself, on each of them.
    open().or_else(|_| open()).or_else(|_| open()).or_else(|_| open()).unwrap()
}

/// What a file of this name holds, if it is there.
fn content(fs: &Fs, name: &[u8], bytes: usize) -> Option<nenrin_core::Result<Vec<u8>>> {
    let ino = fs.lookup(At::Live, Ino::ROOT, name).ok()?.ino;
    Some(fs.read(At::Live, ino, 0, bytes + 1))
}

/// A volume on so many devices, and a file in it to which so many bytes were written that wait.
fn written((profile, count): (Profile, usize), bytes: usize) -> (Vec<Arc<CrashDisk>>, Arc<Fs>, Ino) {
    let disks: Vec<_> = (0..count).map(|_| Arc::new(CrashDisk::new(32 << 20))).collect();
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    mkfs_on(&devices(&disks), &clock, &MkfsOptions { profile, ..MkfsOptions::default() }).unwrap();
    let fs = open(&devices(&disks));
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    fs.fsync_wait(ino).unwrap();
    assert_eq!(fs.write(ino, 0, &vec![7; bytes], 0).unwrap(), bytes);
    (disks, fs, ino)
}

/// One of them fails to flush a sync of so many bytes, or all do. Whether the next mount showed what was not synced.
fn shows_what_was_not_flushed((profile, count): (Profile, usize), bytes: usize, kept: u64, all: bool) -> bool {
    let (disks, fs, ino) = written((profile, count), bytes);
    let failing = if all { &disks[..] } else { &disks[count - 1..] };
    failing.iter().for_each(|d| d.fail_next_flush(CrashChoice::from_seed(kept)));
    let synced = fs.fsync_wait(ino).is_ok();
    drop(fs);
    disks.iter().for_each(|d| d.complete_all());
    let fs = open(&devices(&disks));
    let shown = content(&fs, b"f", bytes).unwrap().unwrap();
    assert!(shown.is_empty() || shown == vec![7; bytes]);
    assert!(!synced || !shown.is_empty(), "a sync was lost");
    fs.sync_all().unwrap();
    // Whoever saw it, and was told that all is synced, finds it.
    let cut = |d: &Arc<CrashDisk>| Arc::new(d.image(&CrashChoice::from_seed(0))) as Arc<dyn BlockDevice>;
    let images: Vec<_> = disks.iter().map(cut).collect();
    let after = open(&images);
    let found = content(&after, b"f", bytes).unwrap();
    let what = format!("{profile:?}, {bytes} bytes, {kept}, {all}");
    assert!(found.as_ref().is_ok_and(|found| *found == shown), "what a mount showed and synced is lost: {what}");
    while after.is_joining() {
        after.join_step(64 << 20).unwrap();
    }
    after.close().unwrap();
    let report = check(&images, &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.clean(), "{what}: {:?}", report.findings);
    !shown.is_empty()
}

fn flushes_that_lose() {
    let mut shown = 0;
    for profile in PROFILES {
        for bytes in [3000, 9000, 200 << 10] {
            for kept in [0, 5, 6, 7] {
                for all in [false, true] {
                    shown += u32::from(shows_what_was_not_flushed(profile, bytes, kept, all));
                }
            }
        }
    }
    assert!(shown >= 40, "{shown}");
}

#[test]
fn what_a_failed_flush_left_readable_is_written_anew() {
    flushes_that_lose();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what a mount showed and synced is lost")]
fn what_is_believed_after_a_failed_flush_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::UnflushedBelieved, flushes_that_lose);
}

/// After an end that was clean nothing is written anew; after a crash what no flush is known to have covered is, and nothing else.
#[test]
fn a_mount_writes_anew_what_is_not_proven() {
    let disk = Arc::new(CrashDisk::new(32 << 20));
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    let disks = [disk.clone()];
    mkfs_on(&devices(&disks), &clock, &MkfsOptions::default()).unwrap();
    let writes_of_mount = || {
        let before = disk.counters();
        let fs = open(&devices(&disks));
        let cost = disk.counters().since(&before);
        (fs, cost.writes, cost.flushes)
    };
    open(&devices(&disks)).close().unwrap();
    let (fs, clean, flushes) = writes_of_mount();
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    for n in 0..50 {
        assert_eq!(fs.write(ino, n * 4096, &[7; 4096], 0).unwrap(), 4096);
        fs.fsync_wait(ino).unwrap();
    }
    drop(fs);
    let (fs, after, more) = writes_of_mount();
    // Two copies of the nodes that replaying makes dirty; and the last of fifty commits, with a flush.
    assert_eq!((clean, flushes, after, more), (4, 2, 4 + 2 + 1, 2 + 1));
    fs.close().unwrap();
}

/// A member that was left out since it failed to flush a sync of so many bytes comes back, in a host that still shows these.
/// Whether it was left out.
fn comes_back((profile, count): (Profile, usize), bytes: usize, kept: u64) -> bool {
    let (disks, fs, ino) = written((profile, count), bytes);
    disks[count - 1].fail_next_flush(CrashChoice::from_seed(kept));
    fs.fsync_wait(ino).unwrap();
    if fs.health()[count - 1].standing == Standing::Active {
        return false;
    }
    // Forgiven or not, what it shows may be lost.
    assert!(fs.device_forgive(count as u16 - 1).unwrap());
    fs.close().unwrap();
    drop(fs);
    disks.iter().for_each(|d| d.complete_all());
    let fs = open(&devices(&disks));
    while fs.is_joining() {
        fs.join_step(64 << 20).unwrap();
    }
    assert!(fs.health().iter().all(|d| d.standing == Standing::Active));
    fs.close().unwrap();
    drop(fs);
    // The power fails, and with it one of the others.
    let cut = |d: &Arc<CrashDisk>| Arc::new(d.image(&CrashChoice::from_seed(0))) as Arc<dyn BlockDevice>;
    let images: Vec<_> = disks.iter().skip(1).map(cut).collect();
    let after = open(&images);
    let found = content(&after, b"f", bytes);
    let what = format!("{profile:?}, {bytes} bytes, {kept}");
    assert!(
        found.is_some_and(|f| f.is_ok_and(|f| f == vec![7; bytes])),
        "a member came back without what it showed: {what}"
    );
    after.close().unwrap();
    drop(after);
    let report = check(&images, &CheckOptions { data: true }, &mut |_| {}).unwrap();
    let others = report.findings.iter().filter(|f| f.what != What::DeviceAbsent).count();
    assert_eq!(others, 0, "{what}: {:?}", report.findings);
    true
}

fn all_come_back() {
    let mut left_out = 0;
    for profile in [(Profile::Mirror, 2), (Profile::Parity, 3)] {
        for bytes in [3000, 9000, 200 << 10] {
            for kept in [0, 5, 6, 7] {
                left_out += u32::from(comes_back(profile, bytes, kept));
            }
        }
    }
    assert!(left_out >= 16, "{left_out}");
}

#[test]
fn what_a_member_shows_that_failed_a_flush_is_written_anew() {
    all_come_back();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a member came back without what it showed")]
fn what_a_member_is_believed_to_have_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::AlikeBelieved, all_come_back);
}
