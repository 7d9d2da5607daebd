//! What the kernel keeps of files and has not sent: a rename, a link, LSEEK and whoever cuts a checkpoint need it; and what it is told to
//! drop, because it is out of date.
//!
//! Nothing is mapped here: a process that serves a mount and has a page of it missing may wait for itself. scripts/tests/pages.sh does that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::raw;
use common::real::Real;
use common::toy::Toy;
use common::{Mounted, errno, mount};
use nenrin_core::{At, Fs, MkfsOptions};
use nenrin_format::{Cno, Ino};
use nenrin_fuse::{Cache, SessionOptions, Shelf, ShowPast, States};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BYTES: usize = 9000;

fn new_file(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

/// On a volume of its own, under each of the caches.
fn each_cache(check: fn(&Fs, &Mounted)) {
    for cache in [Cache::WriteThrough, Cache::WriteBack] {
        let world = Real::new(64 << 20, &MkfsOptions::default());
        let fs = world.open();
        let Some(mounted) = mount(fs.clone(), At::Live, |_, options| options.cache = cache) else { return };
        check(&fs, &mounted);
        mounted.end();
        fs.close().unwrap();
    }
}

/// tar(1) does not read what has no blocks.
#[test]
fn what_may_have_content_has_a_block() {
    each_cache(|_, mounted| {
        let path = mounted.join("f");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        mounted.settle();
        let blocks = || fs::metadata(&path).unwrap().blocks();
        assert_eq!(blocks(), 0);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert!(blocks() > 0);
        file.set_len(2 << 20).unwrap();
        assert!(blocks() > 0);
        let new = new_file(&mounted.join("new"));
        new.set_len(1 << 20).unwrap();
        assert!(new.metadata().unwrap().blocks() > 0);
        drop((file, new));
        mounted.settle();
        assert_eq!(blocks(), 0);
        assert_eq!(fs::metadata(mounted.join("new")).unwrap().blocks(), 0);
    });
    let toy = Arc::new(Toy::new());
    let Some(mounted) = mount(toy, At::Live, |_, options| options.cache = Cache::WriteBack) else { return };
    let written = File::create(mounted.join("written")).unwrap();
    written.write_all_at(&[1; BYTES], 0).unwrap();
    assert!(written.metadata().unwrap().blocks() > 0, "though nothing was sent");
    drop(written);
    mounted.end();
}

/// What others may see of a file from now on is what was written last: what that hides is not there any more for whoever asks the volume.
#[test]
fn who_is_let_in_sees_nothing_that_was_written_over() {
    each_cache(|fs, mounted| {
        for dir in ["closed", "open"] {
            fs::create_dir(mounted.join(dir)).unwrap();
        }
        let granted = |name: &str, grant: &dyn Fn(&Path, &File)| {
            let path = mounted.join("closed").join(name);
            let file = new_file(&path);
            file.write_all_at(&[b's'; BYTES], 0).unwrap();
            file.sync_all().unwrap();
            file.write_all_at(&[b'p'; BYTES], 0).unwrap();
            grant(&path, &file);
            let content = fs.read(At::Live, Ino(file.metadata().unwrap().ino()), 0, BYTES).unwrap();
            assert!(content == [b'p'; BYTES], "{name}");
        };
        granted("mode", &|path, _| fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap());
        granted("moved", &|path, _| fs::rename(path, mounted.join("open").join("moved")).unwrap());
        granted("linked", &|path, _| fs::hard_link(path, mounted.join("open").join("linked")).unwrap());
        if raw::geteuid() == 0 {
            granted("security", &|path, _| raw::setxattr(path, "security.label", b"all", 0).unwrap());
        }
        // user::rw- user:65534:r-- group::--- mask::r-- other::---
        let entry =
            |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
        let nobody = u32::MAX;
        let list = [(1, 6, nobody), (2, 4, 65534), (4, 0, nobody), (0x10, 4, nobody), (0x20, 0, nobody)];
        let list = list
            .into_iter()
            .fold(2_u32.to_le_bytes().to_vec(), |all, (tag, perm, id)| [all, entry(tag, perm, id)].concat());
        granted("list", &|path, _| raw::setxattr(path, "system.posix_acl_access", &list, 0).unwrap());
        granted("no list", &|path, file| {
            raw::setxattr(path, "system.posix_acl_access", &list, 0).unwrap();
            file.write_all_at(&[b'q'; BYTES], 0).unwrap();
            file.sync_all().unwrap();
            file.write_all_at(&[b'p'; BYTES], 0).unwrap();
            raw::removexattr(path, "system.posix_acl_access").unwrap();
        });
    });
}

/// What is no hole stays in the page cache.
#[test]
fn looking_for_holes_drops_no_content() {
    let toy = Arc::new(Toy::new());
    let Some(mounted) = mount(toy, At::Live, |_, _| ()) else { return };
    let file = new_file(&mounted.join("f"));
    let bytes = vec![7; 8 << 20];
    file.write_all_at(&bytes, 0).unwrap();
    let cost = mounted.cost(|| {
        for offset in [0, 4096, 5 << 20] {
            assert_eq!(raw::lseek(&file, offset, libc::SEEK_DATA).unwrap(), offset as u64);
            assert_eq!(raw::lseek(&file, offset, libc::SEEK_HOLE).unwrap(), 8 << 20);
        }
        file.read_exact_at(&mut vec![0; bytes.len()], 0).unwrap();
    });
    assert!(cost.iter().all(|(name, _)| !name.eq_ignore_ascii_case("read")), "{cost:?}");
    drop(file);
    mounted.end();
}

/// A change that failed may have done a part, of which the kernel thinks nothing.
#[test]
fn what_failed_in_part_is_looked_at_again() {
    let toy = Arc::new(Toy::new());
    let Some(mounted) = mount(toy.clone(), At::Live, |_, _| ()) else { return };
    let [path, source] = ["f", "source"].map(|name| mounted.join(name));
    fs::write(&source, [9; 8192]).unwrap();
    let (file, source) = (new_file(&path), File::open(&source).unwrap());
    file.write_all_at(&[1; 16384], 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 16384);
    let failing = |change: &dyn Fn() -> std::io::Result<()>| {
        toy.fails.store(true, Ordering::Relaxed);
        assert_eq!(errno(change()), libc::ENOSPC);
        toy.fails.store(false, Ordering::Relaxed);
    };
    let read = || fs::read(&path).unwrap();
    failing(&|| fs::set_permissions(&path, Permissions::from_mode(0o640)));
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
    failing(&|| file.set_len(12288));
    assert_eq!(file.metadata().unwrap().len(), 12288);
    failing(&|| raw::fallocate(&file, 0, 0, 16384));
    assert_eq!(file.metadata().unwrap().len(), 16384);
    // Pages go once the kernel has the answer.
    let is_there = |at: usize, byte: u8| {
        mounted.settle();
        read()[at] == byte
    };
    let becomes = |at: usize, byte: u8| (0..100).any(|_| is_there(at, byte));
    assert!(becomes(13000, 0));
    failing(&|| raw::fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 4096, 4096));
    assert!(becomes(5000, 0));
    failing(&|| raw::copy_file_range(&source, 0, &file, 8192, 4096).map(drop));
    assert!(becomes(9000, 9));
    // Nor does the kernel look at what a copy did beyond what it tells.
    toy.tells_half.store(true, Ordering::Relaxed);
    read();
    assert_eq!(raw::copy_file_range(&source, 0, &file, 8192, 8192).unwrap(), 4096);
    assert!(becomes(13000, 9));
    assert_eq!(read()[..4096], [1; 4096]);
    drop((file, source));
    mounted.end();
}

/// States by their numbers.
struct Numbers;

impl States for Numbers {
    fn find(&self, _: Shelf, name: &[u8]) -> Option<Cno> {
        std::str::from_utf8(name).ok()?.parse().ok().map(Cno)
    }
    fn names(&self, _: Shelf) -> Vec<(u64, Vec<u8>)> {
        Vec::new()
    }
    fn told(&self, _: Cno) -> Option<Vec<u8>> {
        None
    }
}

/// A file server that is restarted must not be given another state of a file than the one it had.
#[test]
fn a_handle_of_the_past_leads_to_no_other_state() {
    let world = Real::new(64 << 20, &MkfsOptions::default());
    let fs = world.open();
    let shown = |options: &mut SessionOptions| options.past = ShowPast(Some(Arc::new(Numbers)));
    let Some(mounted) = mount(fs.clone(), At::Live, |_, options| shown(options)) else { return };
    let cut = |text: &str| {
        let mut file = File::create(mounted.join("f")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        // The kernel tells later that it was closed.
        file.sync_all().unwrap();
        fs.checkpoint_create(None).unwrap().cno.0
    };
    let (first, second) = (cut("first"), cut("second"));
    let of = |mounted: &Mounted, cno: u64| mounted.join(&format!(".nenrin/at/{cno}/f"));
    let handle = raw::handle(&of(&mounted, first)).unwrap();
    let live = raw::handle(&mounted.join("f")).unwrap();
    let open = |mounted: &Mounted, handle| raw::open_handle(&File::open(mounted.root()).unwrap(), handle);
    let text = |file: std::io::Result<File>| std::io::read_to_string(file.unwrap()).unwrap();
    assert_eq!(text(open(&mounted, &handle)), "first");
    mounted.end();
    let Some(mounted) = mount(fs.clone(), At::Live, |_, options| shown(options)) else { return };
    // It gets the number that the other had.
    assert_eq!(fs::read_to_string(of(&mounted, second)).unwrap(), "second");
    assert_eq!(errno(open(&mounted, &handle)), libc::ESTALE);
    assert_eq!(text(open(&mounted, &live)), "second");
    mounted.end();
    fs.close().unwrap();
}

/// What a crash took before it was committed had a number that another file gets; who has a handle of it finds nothing.
#[test]
fn a_handle_of_what_a_crash_took_leads_to_no_other_file() {
    const BYTES: usize = 64 << 20;
    let world = Real::new(BYTES, &MkfsOptions::default());
    let before = world.devices[0].read(0, BYTES).unwrap();
    let fs = world.open();
    let Some(mounted) = mount(fs.clone(), At::Live, |_, _| {}) else { return };
    fs::write(mounted.join("lost"), "lost").unwrap();
    let (number, handle) =
        (fs::metadata(mounted.join("lost")).unwrap().ino(), raw::handle(&mounted.join("lost")).unwrap());
    mounted.end();
    drop(fs);
    world.devices[0].write(0, Arc::new(before)).unwrap();
    let fs = world.open();
    let Some(mounted) = mount(fs.clone(), At::Live, |_, _| {}) else { return };
    fs::write(mounted.join("new"), "new").unwrap();
    assert_eq!(
        fs::metadata(mounted.join("new")).unwrap().ino(),
        number,
        "else there is nothing to be taken for the other"
    );
    let open = |handle| raw::open_handle(&File::open(mounted.root()).unwrap(), handle);
    assert_eq!(errno(open(&handle)), libc::ESTALE);
    let own = raw::handle(&mounted.join("new")).unwrap();
    assert_eq!(std::io::read_to_string(open(&own).unwrap()).unwrap(), "new");
    mounted.end();
    fs.close().unwrap();
}

/// Who has one of the directories open that no volume stores goes on there, whoever looks one up meanwhile.
#[test]
fn a_directory_of_ours_stays_what_it_is() {
    let world = Real::new(64 << 20, &MkfsOptions::default());
    let fs = world.open();
    let shown = |options: &mut SessionOptions| options.past = ShowPast(Some(Arc::new(Numbers)));
    let Some(mounted) = mount(fs.clone(), At::Live, |_, options| shown(options)) else { return };
    fs::write(mounted.join("f"), "then").unwrap();
    let cno = fs.checkpoint_create(None).unwrap().cno.0;
    for name in [".nenrin", ".nenrin/at", ".snapshots"] {
        let (path, open) = (mounted.join(name), File::open(mounted.join(name)).unwrap());
        let held = Path::new("/proc/self/fd").join(open.as_raw_fd().to_string());
        let number = open.metadata().unwrap().ino();
        // The kernel asks again.
        std::thread::sleep(std::time::Duration::from_millis(1200));
        assert_eq!(fs::metadata(&path).unwrap().ino(), number);
        assert_eq!(open.metadata().unwrap().ino(), number, "{name}");
        fs::read_dir(&held).unwrap().for_each(|e| drop(e.unwrap()));
        if name == ".nenrin/at" {
            assert_eq!(fs::read_to_string(held.join(cno.to_string()).join("f")).unwrap(), "then");
        }
    }
    mounted.end();
    fs.close().unwrap();
}
