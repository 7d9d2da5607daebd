//! A full volume under `cache=writeback`: the kernel takes what is written without asking, and what finds no room is lost. So whoever
//! goes on writing is to be told by write(2).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::raw;
use common::real::Real;
use common::{Mounted, errno, mount};
use nenrin_core::{At, Fs, MkfsOptions};
use nenrin_fuse::{Cache, MountOptions, SessionOptions};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const VOLUME: usize = 64 << 20;
const PIECE: usize = 1 << 20;

fn mounted(world: &Real) -> Option<(Arc<Fs>, Mounted)> {
    let fs = world.open();
    let mounted = mount(fs.clone(), At::Live, |_, options| options.cache = Cache::WriteBack)?;
    Some((fs, mounted))
}

/// Opens a file that is not there yet.
fn new_file(mounted: &Mounted, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(mounted.join(name)).unwrap()
}

/// Writes piece after piece, as one who neither syncs nor closes the file, while the kernel sends what it has at times. How many
/// were taken, and why the next was not; `most` at most.
fn write_on(mounted: &Mounted, file: &File, most: u64) -> (u64, Option<io::Error>) {
    let piece = vec![7; PIECE];
    for n in 0..most {
        if let Err(e) = file.write_all_at(&piece, n * PIECE as u64) {
            return (n, Some(e));
        }
        if n % 8 == 7 {
            mounted.pages().bring_in();
        }
    }
    (most, None)
}

/// Writes until it is refused.
#[track_caller]
fn fill(mounted: &Mounted, file: &File) -> u64 {
    let (taken, refused) = write_on(mounted, file, 400);
    let refused = refused.unwrap_or_else(|| panic!("{taken} MiB were taken, of a volume of 64"));
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    taken
}

#[test]
fn who_writes_on_is_refused() {
    let world = Real::new(VOLUME, &MkfsOptions::default());
    let Some((fs, mounted)) = mounted(&world) else { return };
    drop(new_file(&mounted, "second"));
    let first = new_file(&mounted, "first");
    let taken = fill(&mounted, &first);
    assert!((40..96).contains(&taken), "{taken} MiB");
    // Whoever comes later is told sooner, and so is who takes no notice.
    let second = OpenOptions::new().write(true).open(mounted.join("second")).unwrap();
    let (taken, refused) = write_on(&mounted, &second, 400);
    assert_eq!(refused.unwrap().raw_os_error(), Some(libc::ENOSPC));
    assert!(taken <= 4, "{taken} MiB");
    let lost = fs.lost_writes().bytes;
    let taken = (10..110).filter(|n| second.write_all_at(&[7; PIECE], n * PIECE as u64).is_ok()).count();
    assert!(taken <= 51, "every second piece at most: {taken}");
    assert!(fs.lost_writes().bytes - lost <= 52 * PIECE as u64);
    drop((first, second));
    mounted.end();
    fs.close().unwrap();
}

/// What asks for no room goes on, and what reads or looks is not told of it.
#[test]
fn nobody_else_is_refused() {
    let world = Real::new(VOLUME, &MkfsOptions::default());
    let Some((fs, mounted)) = mounted(&world) else { return };
    let before = new_file(&mounted, "before");
    before.write_all_at(&[1; 4 * PIECE], 0).unwrap();
    before.sync_all().unwrap();
    let full = new_file(&mounted, "full");
    fill(&mounted, &full);
    for n in 0..40 {
        before.write_all_at(&[n; 8192], u64::from(n) * 10_000).unwrap();
        // Past its end, and where that is.
        let mut byte = [0; 10];
        assert_eq!(before.read_at(&mut byte, 5 * PIECE as u64).unwrap(), 0);
        assert_eq!(raw::lseek(&before, 0, libc::SEEK_END).unwrap(), 4 * PIECE as u64);
        assert_eq!(full.read_at(&mut byte, 1 << 40).unwrap(), 0);
        assert!(raw::lseek(&full, 0, libc::SEEK_END).unwrap() >= 40 * PIECE as u64);
        assert!(full.metadata().unwrap().len() >= 40 * PIECE as u64);
    }
    before.sync_all().unwrap();
    let mut read = [0; 8192];
    for n in 0..40 {
        before.read_exact_at(&mut read, u64::from(n) * 10_000).unwrap();
        assert!(read == [n; 8192], "{n}");
    }
    drop((before, full));
    mounted.end();
    fs.close().unwrap();
}

/// With room again nobody is asked any more.
#[test]
fn where_there_is_room_again_writes_go_on() {
    let world = Real::new(VOLUME, &MkfsOptions::default());
    let Some((fs, mounted)) = mounted(&world) else { return };
    let full = new_file(&mounted, "full");
    fill(&mounted, &full);
    drop(full);
    fs::remove_file(mounted.join("full")).unwrap();
    // It is closed, and goes, a moment later.
    while fs.usage().available_blocks < 8192 {
        mounted.settle();
    }
    let next = new_file(&mounted, "next");
    let piece = vec![9; 4096];
    let write = |at: u64| next.write_all_at(&piece, at * 4096);
    (0..8).for_each(|n| write(n).unwrap());
    let cost = mounted.cost(|| (8..200).for_each(|n| write(n).unwrap()));
    let asked = cost.iter().find(|(kind, _)| *kind == "Getattr").map_or(0, |(_, count)| *count);
    assert!(asked <= 10, "{cost:?}");
    next.sync_all().unwrap();
    drop(next);
    mounted.end();
    fs.close().unwrap();
}

/// fsync and close tell as ever.
#[test]
fn a_sync_of_what_found_no_room_fails() {
    let world = Real::new(VOLUME, &MkfsOptions::default());
    let Some((fs, mounted)) = mounted(&world) else { return };
    let full = new_file(&mounted, "full");
    fill(&mounted, &full);
    assert_eq!(errno(full.sync_all()), libc::ENOSPC);
    assert!(fs.lost_writes().bytes > 0);
    drop(full);
    mounted.end();
    fs.close().unwrap();
}

/// The bytes of an access list that says no more than a mode does; what others may do.
fn list(other: u16) -> Vec<u8> {
    let entry = |(tag, perm): (u16, u16)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &[0xff; 4]].concat();
    [2u32.to_le_bytes().to_vec(), [(1, 6), (4, 4), (32, other)].into_iter().flat_map(entry).collect()].concat()
}

const ACCESS: &str = "system.posix_acl_access";

/// The file is left alone only until the kernel knows the mode.
#[test]
fn who_writes_on_is_refused_after_a_list_was_set() {
    let world = Real::new(VOLUME, &MkfsOptions::default());
    let Some((fs, mounted)) = mounted(&world) else { return };
    let file = new_file(&mounted, "file");
    raw::setxattr(&mounted.join("file"), ACCESS, &list(0), 0).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    // What brings in what the kernel keeps has it ask, too.
    let write = |n: u64| {
        raw::write_out(&file);
        file.write_all_at(&[7; PIECE], n * PIECE as u64)
    };
    let refused = (0..200).find_map(|n| write(n).err());
    assert_eq!(refused.map(|e| e.raw_os_error()), Some(Some(libc::ENOSPC)), "200 MiB were taken, of a volume of 64");
    drop(file);
    mounted.end();
    fs.close().unwrap();
}

/// However much is written to a file meanwhile, whoever a list shuts out stays out.
#[test]
fn who_is_shut_out_while_others_write_stays_out() {
    if raw::geteuid() != 0 {
        return common::left_out(format_args!("only root can be several users"));
    }
    let world = Real::new(VOLUME, &MkfsOptions::default());
    let fs = world.open();
    let change = |mount: &mut MountOptions, options: &mut SessionOptions| {
        (mount.allow_other, options.cache) = (true, Cache::WriteBack);
    };
    let Some(mounted) = mount(fs.clone(), At::Live, change) else { return };
    let file = new_file(&mounted, "file");
    fill(&mounted, &file);
    let (path, over) = (mounted.join("file"), AtomicBool::new(false));
    let let_in = std::thread::scope(|scope| {
        for n in 0..2 {
            let (file, over) = (&file, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let _ = file.write_all_at(&[1; 4096], n << 20);
                }
            });
        }
        let let_in = (0..300).filter(|_| {
            raw::setxattr(&path, ACCESS, &list(4), 0).unwrap();
            let was_in = raw::as_user(1000, 1000, &[], || File::open(&path).is_ok());
            raw::setxattr(&path, ACCESS, &list(0), 0).unwrap();
            was_in && raw::as_user(1000, 1000, &[], || File::open(&path).is_ok())
        });
        let let_in = let_in.count();
        over.store(true, Ordering::Relaxed);
        let_in
    });
    assert_eq!(let_in, 0, "of 300");
    drop(file);
    mounted.end();
    fs.close().unwrap();
}
