//! The suite over a real mount of a real volume on a device in memory. After
//! each check the volume is closed, opened again, and must show the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::real::{Real, contents};
use common::slow::{Slow, forget_pages, read_at_once};
use common::suite::{content, names, owners, space};
use common::toy::Toy;
use common::{errno, mount, raw};
use nenrin_core::format::superblock::Profile;
use nenrin_core::{At, MkfsOptions};
use nenrin_device::BlockDevice;
use nenrin_format::Ino;
use nenrin_fuse::{Cache, MountOptions, SessionOptions};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

const VOLUME_BYTES: usize = 256 << 20;

fn run(check: fn(&Path), change: impl FnOnce(&mut MountOptions, &mut SessionOptions)) {
    let world = Real::new(VOLUME_BYTES, &MkfsOptions::default());
    let fs = world.open();
    let Some(mounted) = mount(fs.clone(), At::Live, change) else { return };
    check(mounted.root());
    mounted.end();
    let before = contents(&fs, At::Live);
    assert_eq!(fs.failed(), None);
    fs.close().unwrap();
    assert_eq!(Arc::strong_count(&fs), 1, "the session has let go of the volume");
    drop(fs);
    let fs = world.open();
    assert!(fs.recovery_report().clean);
    assert_eq!(contents(&fs, At::Live), before);
    fs.close().unwrap();
}

fn allow_other(mount: &mut MountOptions, _: &mut SessionOptions) {
    mount.allow_other = true;
    mount.suid = true;
    mount.dev = true;
}
fn writeback(_: &mut MountOptions, options: &mut SessionOptions) {
    options.cache = Cache::WriteBack;
}

macro_rules! suite {
    ($($mode:ident: $($area:ident::$check:ident),*;)*) => {$(
        mod $mode {
            use super::*;
            $(#[test] fn $check() { run($area::$check, super::$mode) })*
        }
    )*};
}
suite! {
    allow_other:
        content::write_and_read, content::append_and_truncate, content::running_programs_stay, content::shared_mapping,
        content::direct_io, content::times, content::unlinked_but_open, content::many_at_once,
        names::renames, names::links, names::directories, names::odd_names, names::special_files,
        names::large_listing, names::xattrs,
        space::holes, space::reservations, space::copies, space::usage,
        owners::users, owners::set_group_id_directories, owners::privileges_go_with_a_write,
        owners::access_lists, owners::default_lists, owners::history_is_the_owners,
        owners::changed_programs_run_without_privileges;
    writeback:
        content::write_and_read, content::append_and_truncate, content::running_programs_stay, content::shared_mapping,
        content::direct_io, content::times, content::unlinked_but_open, content::many_at_once,
        names::renames, names::links, names::directories, names::large_listing, names::xattrs,
        space::holes, space::reservations, space::copies;
}

/// What du(1), tar(1) and cp(1) go by.
#[test]
fn space_is_counted_before_it_is_committed() {
    fn check(root: &Path) {
        let blocks = |name: &str| fs::metadata(root.join(name)).unwrap().blocks();
        fs::write(root.join("small"), b"in the inode").unwrap();
        fs::write(root.join("large"), vec![1; 3_000_000]).unwrap();
        let reserved = File::create(root.join("reserved")).unwrap();
        raw::fallocate(&reserved, 0, 0, 1 << 20).unwrap();
        File::create(root.join("hole")).unwrap().set_len(1 << 20).unwrap();
        for _ in 0..2 {
            assert!(blocks("small") > 0);
            assert_eq!(blocks("large"), 3_000_000u64.div_ceil(4096) * 8);
            assert_eq!(blocks("reserved"), 2048);
            assert_eq!(blocks("hole"), 0);
            for name in ["small", "large", "reserved", "hole"] {
                File::open(root.join(name)).unwrap().sync_all().unwrap();
            }
        }
        // Written over, it stays what it is.
        fs::OpenOptions::new().write(true).open(root.join("large")).unwrap().write_all_at(&[2; 1_000_000], 0).unwrap();
        assert_eq!(blocks("large"), 3_000_000u64.div_ceil(4096) * 8);
        fs::write(root.join("large"), b"").unwrap();
        assert_eq!(blocks("large"), 0);
    }
    run(check, allow_other);
}

fn atime(path: &Path) -> (i64, i64) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.atime(), meta.atime_nsec())
}

/// What was read since the last change has a newer access time, if the kernel had to ask for it.
fn read_everything(world: &Real, change: fn(&mut MountOptions, &mut SessionOptions)) -> Option<[bool; 4]> {
    let fs = world.open();
    let mounted = mount(fs.clone(), At::Live, change)?;
    let root = mounted.root();
    let paths = [root.join("file"), root.join("quiet"), root.join("dir"), root.join("link")];
    let before: Vec<_> = paths.iter().map(|p| atime(p)).collect();
    fs::read(&paths[0]).unwrap();
    let quiet = File::options().read(true).custom_flags(libc::O_NOATIME).open(&paths[1]).unwrap();
    quiet.read_at(&mut [0; 100], 0).unwrap();
    assert_eq!(fs::read_dir(&paths[2]).unwrap().count(), 1);
    fs::read_link(&paths[3]).unwrap();
    let after: Vec<_> = paths.iter().map(|p| atime(p)).collect();
    drop(quiet);
    mounted.end();
    fs.close().unwrap();
    drop(fs);
    Some(std::array::from_fn(|i| after[i] > before[i]))
}

#[test]
fn reading_moves_the_access_time_once_and_for_good() {
    let world = Real::new(VOLUME_BYTES, &MkfsOptions::default());
    let fs = world.open();
    let Some(mounted) = mount(fs.clone(), At::Live, |_, _| ()) else { return };
    let root = mounted.root();
    fs::create_dir(root.join("dir")).unwrap();
    for name in ["file", "quiet", "dir/x"] {
        fs::write(root.join(name), [1; 9000]).unwrap();
    }
    std::os::unix::fs::symlink("file", root.join("link")).unwrap();
    mounted.end();
    fs.close().unwrap();
    drop(fs);
    let noatime = |mount: &mut MountOptions, _: &mut SessionOptions| mount.noatime = true;
    assert_eq!(read_everything(&world, noatime), Some([false; 4]));
    assert_eq!(read_everything(&world, |_, _| ()), Some([true, false, true, true]));
    // relatime: nothing has changed since, and the times outlived the mount.
    assert_eq!(read_everything(&world, |_, _| ()), Some([false; 4]));
}

/// The most reads that each of four devices had at once while a program had 48 in flight.
fn reads_at_once(threads_max: usize, flags: i32) -> Option<Vec<usize>> {
    let devices: Vec<Slow> = (0..4).map(|_| Slow::new(64 << 20)).collect();
    let members = devices.iter().map(|d| Arc::new(d.clone()) as Arc<dyn BlockDevice>).collect();
    let options = MkfsOptions { profile: Profile::Stripe, segment_blocks: 1024, ..MkfsOptions::default() };
    let world = Real::on(members, &options);
    let fs = world.open();
    let mounted = mount(fs.clone(), At::Live, |_, options| options.threads_max = threads_max)?;
    let path = mounted.root().join("f");
    let written: Vec<u8> = (0..48 << 20).map(|i: u32| (i >> 18) as u8).collect();
    fs::write(&path, &written).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
    // The page cache has what was written; the reads are to come from the devices.
    forget_pages(&file);
    devices.iter().for_each(|d| _ = d.most());
    let places: Vec<u64> = (0..48).map(|i| (i * 37 % 48) << 20 | (i % 16) << 16).collect();
    let read = read_at_once(&file, &places);
    assert!(read.iter().zip(&places).all(|(byte, place)| *byte == (place >> 18) as u8));
    drop(file);
    mounted.end();
    fs.close().unwrap();
    Some(devices.iter().map(Slow::most).collect())
}

/// Seed 3: what a program has in flight is in flight on all devices.
#[test]
fn requests_in_flight_reach_several_devices() {
    for flags in [libc::O_DIRECT, 0] {
        let Some(most) = reads_at_once(SessionOptions::default().threads_max, flags) else { return };
        assert!(most.iter().all(|n| *n >= 6), "flags {flags}: {most:?}");
        assert!(most.iter().sum::<usize>() >= 32, "flags {flags}: {most:?}");
    }
    if common::way() != nenrin_fuse::Way::Classic {
        return; // Over io_uring as many serve as there are entries.
    }
    // That this is what makes the difference: with four threads there are never more than four.
    let Some(most) = reads_at_once(4, libc::O_DIRECT) else { return };
    assert!(most.iter().all(|n| *n <= 4), "{most:?}");
}

/// What a checkpoint of this moment shows of a file.
fn now_in_the_past(fs: &nenrin_core::Fs, name: &str) -> Vec<u8> {
    let at = At::Past(fs.checkpoint_create(None).unwrap().cno);
    fs.read(at, fs.lookup(at, Ino::ROOT, name.as_bytes()).unwrap().ino, 0, 100).unwrap()
}

/// P3: what will be closed is held back until then; what is emptied by its name has no such end.
#[test]
fn what_is_emptied_by_its_name_is_not_held_back() {
    let world = Real::new(VOLUME_BYTES, &MkfsOptions::default());
    let fs = world.open();
    let Some(mounted) = mount(fs.clone(), At::Live, |_, _| ()) else { return };
    let path = mounted.join("file");
    let fill = || {
        fs::write(&path, b"old").unwrap();
        fs.sync_all().unwrap();
        // Its handle ends behind the call: until then what is emptied by its name may be of whoever has that open.
        mounted.settle();
    };
    fill();
    raw::truncate(&path, 0).unwrap();
    assert_eq!(now_in_the_past(&fs, "file"), b"");
    fill();
    let open = File::create(&path).unwrap();
    assert_eq!(now_in_the_past(&fs, "file"), b"old");
    open.write_all_at(b"new", 0).unwrap();
    assert_eq!(now_in_the_past(&fs, "file"), b"old");
    open.set_len(0).unwrap();
    assert_eq!(now_in_the_past(&fs, "file"), b"old");
    drop(open);
    mounted.end();
    assert_eq!(now_in_the_past(&fs, "file"), b"");
    fs.close().unwrap();
}

/// P3: who closes another handle does not end what is still being written.
#[test]
fn what_is_being_written_is_held_until_its_own_handle_is_closed() {
    let world = Real::new(VOLUME_BYTES, &MkfsOptions::default());
    let fs = world.open();
    let Some(mounted) = mount(fs.clone(), At::Live, |_, _| ()) else { return };
    let path = mounted.join("file");
    fs::write(&path, b"old").unwrap();
    fs.sync_all().unwrap();
    let before = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let open = File::create(&path).unwrap();
    open.write_all_at(b"ne", 0).unwrap();
    // As touch(1) does, and who took a lock.
    drop(fs::OpenOptions::new().write(true).open(&path).unwrap());
    drop(before);
    mounted.settle();
    assert_eq!(now_in_the_past(&fs, "file"), b"old");
    // Through this handle it is emptied once more, and not by its end.
    let other = fs::OpenOptions::new().write(true).open(&path).unwrap();
    open.set_len(0).unwrap();
    drop(other);
    mounted.settle();
    assert_eq!(now_in_the_past(&fs, "file"), b"old");
    open.write_all_at(b"new", 0).unwrap();
    let still = fs::OpenOptions::new().write(true).open(&path).unwrap();
    drop(open);
    mounted.settle();
    assert_eq!(now_in_the_past(&fs, "file"), b"new", "complete, though somebody has it open");
    drop(still);
    mounted.end();
    fs.close().unwrap();
}

/// Under writeback the kernel has the times. What it sends of them is not all: a second write in the same tick of its clock
/// changes none.
#[test]
fn what_comes_out_of_the_cache_leaves_the_times_to_the_kernel() {
    let world = Real::new(VOLUME_BYTES, &MkfsOptions::default());
    let fs = world.open();
    let Some(mounted) = mount(fs.clone(), At::Live, writeback) else { return };
    let file = File::create(mounted.join("file")).unwrap();
    let times = |meta: fs::Metadata| (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
    let twice_in_a_tick = || {
        file.write_all_at(&[1; 5000], 0).unwrap();
        file.sync_all().unwrap();
        let first = times(file.metadata().unwrap());
        file.write_all_at(b"second", 100).unwrap();
        first == times(file.metadata().unwrap())
    };
    assert!((0..1000).any(|_| twice_in_a_tick()), "a clock that never stands");
    let shown = times(file.metadata().unwrap());
    drop(file);
    mounted.end();
    let kept = fs.lookup(At::Live, Ino::ROOT, b"file").unwrap();
    let parts = |t: nenrin_format::Time| (t.0.div_euclid(1_000_000_000), t.0.rem_euclid(1_000_000_000));
    // The time of the change tells both states apart all the same.
    let (mtime, ctime) = (parts(kept.mtime), parts(nenrin_format::Time(kept.ctime.0 - 1)));
    assert_eq!((mtime.0, mtime.1, ctime.0, ctime.1), shown);
    assert_eq!(&fs.read(At::Live, kept.ino, 100, 6).unwrap(), b"second");
    // What goes past the cache is the volume's to stamp.
    let Some(mounted) = mount(fs.clone(), At::Live, writeback) else { return };
    let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(mounted.join("file")).unwrap();
    direct.write_all_at(&[2; 4096], 0).unwrap();
    assert!(fs.getattr(At::Live, kept.ino).unwrap().mtime > kept.mtime);
    drop(direct);
    mounted.end();
    fs.close().unwrap();
}

/// What changes a file by another call than a write, within the tick in which the kernel has emptied it, is followed by no time,
/// either; nor is a size that the file has.
#[test]
fn copies_in_a_tick_leave_the_times_to_the_kernel() {
    let world = Real::new(VOLUME_BYTES, &MkfsOptions::default());
    // What is committed between the two is told apart from what comes.
    let rarely = nenrin_core::MountOptions { commit_nanos: 1 << 62, checkpoint_nanos: 0, ..Default::default() };
    let fs = world.open_with(rarely);
    let Some(mounted) = mount(fs.clone(), At::Live, writeback) else { return };
    let source = File::options().read(true).write(true).create_new(true).open(mounted.join("source")).unwrap();
    source.write_all_at(&[1; 200_000], 0).unwrap();
    source.sync_all().unwrap();
    let times = |meta: fs::Metadata| (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
    let changes: [&dyn Fn(&File); 3] = [
        &|file| assert_eq!(raw::copy_file_range(&source, 0, file, 0, 200_000).unwrap(), 200_000),
        &|file| assert_eq!(raw::copy_file_range(&source, 100, file, 0, 5000).unwrap(), 5000),
        &|file| raw::fallocate(file, 0, 0, 100_000).unwrap(),
    ];
    let mut shown = Vec::new();
    for (kind, change) in changes.iter().enumerate() {
        let before = shown.len();
        for n in 0..100 {
            let name = format!("{kind}-{n}");
            fs::write(mounted.join(&name), "old").unwrap();
            // In the tick of what was closed before it would be told apart from that.
            std::thread::sleep(std::time::Duration::from_millis(5));
            let file = File::create(mounted.join(&name)).unwrap();
            let emptied = times(file.metadata().unwrap());
            change(&file);
            if times(file.metadata().unwrap()) == emptied {
                shown.push((name, emptied));
            }
        }
        assert!(shown.len() > before, "a clock that never stands");
    }
    let file = File::create(mounted.join("same")).unwrap();
    file.write_all_at(&[1; 5000], 0).unwrap();
    file.sync_all().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    raw::truncate(&mounted.join("same"), 5000).unwrap();
    shown.push(("same".into(), times(file.metadata().unwrap())));
    drop((file, source));
    mounted.end();
    for (name, then) in &shown {
        let kept = fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).unwrap();
        let parts = |t: nenrin_format::Time| (t.0.div_euclid(1_000_000_000), t.0.rem_euclid(1_000_000_000));
        let (mtime, ctime) = (parts(kept.mtime), parts(kept.ctime));
        assert_eq!((mtime.0, mtime.1, ctime.0, ctime.1), *then, "{name}");
    }
    fs.close().unwrap();
}

/// Names of attributes that are more than the kernel gives anybody, or than fit the buffer, are not all collected.
#[test]
fn a_list_of_attributes_ends_where_it_is_too_long() {
    let toy = Arc::new(Toy::new());
    let Some(mounted) = mount(toy.clone(), At::Live, |_, _| ()) else { return };
    let path = mounted.join("f");
    fs::write(&path, b"").unwrap();
    let set = |n: usize| raw::setxattr(&path, &format!("user.{n:0>235}"), b"", 0).unwrap();
    let given = || toy.names_given.swap(0, std::sync::atomic::Ordering::Relaxed);
    (0..200).for_each(set);
    given();
    assert_eq!((raw::listxattr_sized(&path, 0).unwrap(), given()), (200 * 241, 200));
    assert_eq!((raw::listxattr(&path).unwrap().len(), given()), (200, 200));
    assert_eq!((errno(raw::listxattr_sized(&path, 1000)), given()), (libc::ERANGE, 5));
    (200..1000).for_each(set);
    given();
    // As of any file system.
    assert_eq!((raw::listxattr_sized(&path, 0).unwrap(), given()), (65_536, 272));
    assert_eq!((errno(raw::listxattr(&path)), given()), (libc::E2BIG, 272));
    mounted.end();
}
