//! Mounting, unmounting, and everything that can be in the way; past states;
//! what is in use; a volume that misbehaves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::real::Real;
use common::special::{Gate, Special};
use common::toy::Toy;
use common::{errno, missing, mount, raw};
use nenrin_core::{At, MkfsOptions};
use nenrin_format::{Cno, Ino};
use nenrin_fuse::{Cache, MountError, MountOptions, Permissions, Session, SessionOptions};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

fn nothing(_: &mut MountOptions, _: &mut SessionOptions) {}

fn start(directory: &Path) -> Result<Session, MountError> {
    let options = MountOptions::new("toy", directory);
    Session::start(
        Arc::new(Toy::new()),
        At::Live,
        &options,
        &SessionOptions { way: common::way(), ..Default::default() },
    )
}

#[test]
fn what_cannot_be_mounted_on() {
    if missing().is_some() {
        return common::left_out(format_args!("nothing can be mounted"));
    }
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none");
    assert!(matches!(start(&none), Err(MountError::Missing(p)) if p == none));
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(start(&file), Err(MountError::NotDirectory(_))));
    let error = start(dir.path()).unwrap_err();
    assert!(matches!(error, MountError::NotEmpty(_)));
    assert!(error.to_string().contains("nonempty"), "{error}");

    let m = mount(Arc::new(Toy::new()), At::Live, nothing).unwrap();
    assert!(matches!(start(m.root()), Err(MountError::Mounted(p)) if p == m.root()));

    let mut options = MountOptions::new("toy", dir.path());
    options.allow_other = true;
    options.nonempty = true;
    let own = SessionOptions { permissions: Permissions::Own, ..Default::default() };
    let refused = Session::start(Arc::new(Toy::new()), At::Live, &options, &own);
    assert!(matches!(refused, Err(MountError::Conflict(_))));
    assert!(fs::read_dir(dir.path()).unwrap().count() == 1, "nothing was mounted");
}

#[test]
fn a_session_that_never_runs_leaves_no_mount() {
    if missing().is_some() {
        return common::left_out(format_args!("nothing can be mounted"));
    }
    let dir = tempfile::tempdir().unwrap();
    drop(start(dir.path()).unwrap());
    assert!(!is_mounted(dir.path()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

fn is_mounted(directory: &Path) -> bool {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    text.lines().any(|line| line.split(' ').nth(4) == directory.to_str())
}

#[test]
fn unmounting_from_outside_ends_the_session() {
    let Some(m) = mount(Arc::new(Toy::new()), At::Live, nothing) else { return };
    let root = m.root().to_owned();
    let file = File::create(root.join("f")).unwrap();
    assert_eq!(errno(nenrin_fuse::unmount(&root)), libc::EBUSY);
    drop(file);
    // RELEASE comes later than close(2) returns, but nobody waits for it.
    nenrin_fuse::unmount(&root).unwrap();
    m.end();
    assert!(!is_mounted(&root));
}

#[test]
fn a_session_that_ended_leaves_the_next_one_alone() {
    if missing().is_some() {
        return common::left_out(format_args!("nothing can be mounted"));
    }
    let dir = tempfile::tempdir().unwrap();
    let first = start(dir.path()).unwrap();
    let old = first.stopper();
    let thread = std::thread::spawn(move || first.run());
    nenrin_fuse::unmount(old.directory()).unwrap();
    thread.join().unwrap().unwrap();
    let second = start(dir.path()).unwrap();
    let new = second.stopper();
    let thread = std::thread::spawn(move || second.run());
    old.stop().unwrap();
    assert!(is_mounted(new.directory()));
    new.stop().unwrap();
    thread.join().unwrap().unwrap();
}

/// Detaches what is mounted, and leaves it to who still uses it.
fn detach(directory: &Path) {
    let command = if raw::geteuid() == 0 { "umount" } else { "fusermount3" };
    let flags: &[&str] = if raw::geteuid() == 0 { &["-l"] } else { &["-u", "-z"] };
    assert!(Command::new(command).args(flags).arg(directory).status().unwrap().success());
}

#[test]
fn a_detached_session_leaves_what_is_mounted_there_since() {
    if missing().is_some() {
        return common::left_out(format_args!("nothing can be mounted"));
    }
    let dir = tempfile::tempdir().unwrap();
    let first = start(dir.path()).unwrap();
    let old = first.stopper();
    let thread = std::thread::spawn(move || first.run());
    let file = File::create(dir.path().join("f")).unwrap();
    detach(old.directory());
    old.stop().unwrap();
    assert!(!thread.is_finished(), "its file is open");
    let second = start(dir.path()).unwrap();
    let new = second.stopper();
    old.stop().unwrap();
    assert!(is_mounted(new.directory()));
    drop(file);
    thread.join().unwrap().unwrap();
    assert!(is_mounted(new.directory()));
    // One that never ran, and that somebody still holds.
    let held = raw::open(new.directory(), libc::O_PATH, 0).unwrap();
    new.stop().unwrap();
    let third = start(dir.path()).unwrap();
    drop(second);
    assert!(is_mounted(new.directory()));
    drop(held);
    drop(third);
    assert!(!is_mounted(new.directory()));
}

#[test]
fn a_stopped_session_serves_what_is_open() {
    let toy = Arc::new(Toy::new());
    let Some(m) = mount(toy.clone(), At::Live, nothing) else { return };
    let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(m.join("f")).unwrap();
    let root = m.root().to_owned();
    let stopper = m.stopper();
    stopper.stop().unwrap();
    assert!(!is_mounted(&root));
    file.write_all(b"still").unwrap();
    file.sync_all().unwrap();
    let mut got = [0; 5];
    file.read_exact_at(&mut got, 0).unwrap();
    assert_eq!(&got, b"still");
    drop(file);
    m.end();
    assert_eq!(toy.inodes_and_uses(), (2, 0));
}

#[test]
fn every_fsync_is_answered() {
    let toy = Arc::new(Toy::new());
    let Some(m) = mount(toy.clone(), At::Live, nothing) else { return };
    std::thread::scope(|scope| {
        for t in 0..16 {
            let path = m.join(&format!("{t}"));
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                for _ in 0..50 {
                    file.write_all(b"x").unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    File::open(m.root()).unwrap().sync_all().unwrap();
    assert_eq!(toy.syncs.load(Ordering::Relaxed), 16 * 50 + 1);
}

/// After a write the kernel asks for the sync; after these it does not.
#[test]
fn what_else_changes_a_file_opened_with_o_dsync_is_synced() {
    let toy = Arc::new(Toy::new());
    let Some(m) = mount(toy.clone(), At::Live, nothing) else { return };
    fs::write(m.join("from"), [1; 9000]).unwrap();
    let from = File::open(m.join("from")).unwrap();
    let syncs = |flags: i32, change: &dyn Fn(&File)| {
        let path = m.join("to");
        let to = OpenOptions::new().create(true).truncate(false).write(true).custom_flags(flags).open(path).unwrap();
        let before = toy.syncs.load(Ordering::Relaxed);
        change(&to);
        toy.syncs.load(Ordering::Relaxed) - before
    };
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let changes: [&dyn Fn(&File); 4] = [
        &|to| raw::fallocate(to, 0, 0, 100_000).unwrap(),
        &|to| raw::fallocate(to, punch, 0, 4096).unwrap(),
        &|to| raw::fallocate(to, libc::FALLOC_FL_ZERO_RANGE, 0, 4096).unwrap(),
        &|to| assert_eq!(raw::copy_file_range(&from, 0, to, 0, 9000).unwrap(), 9000),
    ];
    for change in changes {
        assert_eq!([0, libc::O_DSYNC, libc::O_SYNC].map(|flags| syncs(flags, change)), [0, 1, 1]);
    }
    drop(from);
    m.end();
}

#[test]
fn a_past_state_is_read_only_and_does_not_move() {
    let world = Real::new(128 << 20, &MkfsOptions::default());
    let volume = world.open();
    let Some(live) = mount(volume.clone(), At::Live, nothing) else { return };
    fs::create_dir(live.join("dir")).unwrap();
    fs::write(live.join("dir/file"), b"then").unwrap();
    raw::setxattr(&live.join("dir/file"), "user.x", b"1", 0).unwrap();
    let cno = volume.checkpoint_create(None).unwrap().cno;
    fs::write(live.join("dir/file"), b"now, and longer").unwrap();
    fs::write(live.join("later"), b"").unwrap();
    fs::rename(live.join("dir"), live.join("moved")).unwrap();

    let past = mount(volume.clone(), At::Past(cno), nothing).unwrap();
    let file = past.join("dir/file");
    assert_eq!(fs::read(&file).unwrap(), b"then");
    assert_eq!(raw::getxattr(&file, "user.x").unwrap(), b"1");
    assert_eq!(fs::read_dir(past.root()).unwrap().count(), 1);
    for error in [
        errno(fs::write(&file, b"")),
        errno(fs::write(past.join("new"), b"")),
        errno(fs::remove_file(&file)),
        errno(fs::create_dir(past.join("new"))),
        errno(fs::rename(&file, past.join("x"))),
        errno(fs::hard_link(&file, past.join("x"))),
        errno(std::os::unix::fs::symlink("a", past.join("x"))),
        errno(raw::setxattr(&file, "user.x", b"2", 0)),
        errno(raw::removexattr(&file, "user.x")),
        errno(fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o777))),
        errno(OpenOptions::new().append(true).open(&file)),
        errno(raw::open(past.root(), libc::O_TMPFILE | libc::O_RDWR, 0o600)),
    ] {
        assert_eq!(error, libc::EROFS);
    }
    File::open(&file).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(live.join("moved/file")).unwrap(), b"now, and longer");
    let options = MountOptions::new("toy", live.root());
    assert!(matches!(
        Session::start(volume.clone(), At::Live, &options, &SessionOptions::default()),
        Err(MountError::Mounted(_))
    ));
    past.end();
    live.end();
    volume.close().unwrap();
}

#[test]
fn a_state_that_was_let_go_is_stale() {
    let Some(m) = mount(Arc::new(Toy::new()), At::Past(Cno(7)), nothing) else { return };
    assert_eq!(errno(fs::read_dir(m.root()).map(drop)), libc::ESTALE);
}

#[test]
fn nothing_stays_in_use() {
    let toy = Arc::new(Toy::new());
    let Some(m) = mount(toy.clone(), At::Live, nothing) else { return };
    for i in 0..500 {
        fs::write(m.join(&format!("f{i}")), b"x").unwrap();
    }
    let held = File::open(m.join("f0")).unwrap();
    for i in 0..500 {
        fs::metadata(m.join(&format!("f{i}"))).unwrap();
        fs::remove_file(m.join(&format!("f{i}"))).unwrap();
    }
    // FORGETs come later than unlink(2) returns.
    let wait = |want: usize| {
        let start = std::time::Instant::now();
        while toy.inodes_and_uses().0 != want {
            assert!(start.elapsed().as_secs() < 10, "{:?} for {want}", toy.inodes_and_uses());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    wait(2);
    assert_eq!(held.metadata().unwrap().nlink(), 0);
    let mut byte = [0];
    (&held).read_exact(&mut byte).unwrap();
    drop(held);
    wait(1);
}

#[test]
fn a_volume_that_panics_is_answered_for() {
    let before_read = || panic!("this panic is part of the test");
    let volume = Arc::new(Special { before_read, loses_syncs: true, ..Special::new() });
    let Some(m) = mount(volume, At::Live, nothing) else { return };
    fs::write(m.join("f"), b"x").unwrap();
    let file = raw::open(&m.join("f"), libc::O_RDWR | libc::O_DIRECT, 0).unwrap();
    for _ in 0..20 {
        assert_eq!(errno(file.read_at(&mut [0; 4096], 0)), libc::EIO);
    }
    assert_eq!(errno(file.sync_all()), libc::EIO);
    assert_eq!(fs::metadata(m.join("f")).unwrap().len(), 1);
}

/// However many wait for room in memory or on the device: names are looked up.
#[test]
fn many_who_wait_to_write_hold_up_nobody_who_does_not() {
    if common::way() != nenrin_fuse::Way::Classic {
        return; // Over io_uring as many may wait as there are entries.
    }
    const THREADS: usize = 4;
    let gate = Gate::default();
    let waits = gate.clone();
    let volume = Arc::new(Special { before_write: Box::new(move |_| waits.pass()), ..Special::new() });
    let few = |_: &mut MountOptions, s: &mut SessionOptions| (s.threads, s.threads_max) = (2, THREADS);
    let Some(m) = mount(volume, At::Live, few) else { return };
    let files: Vec<_> = (0..12).map(|n| fs::File::create(m.join(&format!("f{n}"))).unwrap()).collect();
    let (told, looked_up) = mpsc::channel();
    let answered = thread::scope(|scope| {
        files.iter().for_each(|file| _ = scope.spawn(|| file.write_at(&[1; 8192], 0).unwrap()));
        let writes = || m.counts().into_iter().find(|(name, _)| *name == "Write").map_or(0, |(_, n)| n);
        while writes() < THREADS as u64 {
            thread::sleep(Duration::from_millis(1));
        }
        let path = m.join("nobody asked for it yet");
        // Not awaited if it never is answered.
        thread::spawn(move || told.send(fs::metadata(path).is_err()));
        let answered = looked_up.recv_timeout(Duration::from_secs(20));
        gate.open();
        answered
    });
    assert_eq!(answered, Ok(true), "a name is looked up while many wait to write");
    drop(files);
    assert_eq!(fs::read(m.join("f11")).unwrap(), [1; 8192]);
}

/// Who is left to the thread behind those that serve, and syncs, is not to have it lead the commits of others, as long as these sync.
#[test]
fn a_sync_behind_a_change_holds_up_nobody_who_was_left() {
    if common::way() != nenrin_fuse::Way::Classic {
        return; // Nothing is left there.
    }
    const THREADS: usize = 4;
    let [writes, leads] = [Gate::default(), Gate::default()];
    let (waits, others) = (writes.clone(), leads.clone());
    let (before_write, after_sync) = (move |_| waits.pass(), move || others.pass());
    let volume = Special { before_write: Box::new(before_write), after_sync: Box::new(after_sync), ..Special::new() };
    let few = |_: &mut MountOptions, s: &mut SessionOptions| (s.threads, s.threads_max) = (2, THREADS);
    let Some(m) = mount(Arc::new(volume), At::Live, few) else { return };
    let open = |name: &str, how: i32| raw::open(&m.join(name), libc::O_RDWR | libc::O_CREAT | how, 0o600).unwrap();
    let files: Vec<_> = (0..THREADS - 2).map(|n| open(&format!("f{n}"), 0)).collect();
    let synced = open("synced", libc::O_DSYNC);
    let (told, made) = mpsc::channel();
    let answered = thread::scope(|scope| {
        files.iter().for_each(|file| _ = scope.spawn(|| file.write_at(&[1; 8192], 0).unwrap()));
        let count = |of: &str| m.counts().into_iter().find(|(name, _)| *name == of).map_or(0, |(_, n)| n);
        while count("Write") < files.len() as u64 {
            thread::sleep(Duration::from_millis(1));
        }
        let path = m.join("new");
        // Not awaited if they never are answered.
        thread::spawn(move || {
            raw::fallocate(&synced, 0, 0, 8192).unwrap();
            told.send(fs::create_dir(path).is_ok())
        });
        let answered = made.recv_timeout(Duration::from_secs(20));
        [writes, leads].iter().for_each(Gate::open);
        answered
    });
    assert_eq!(answered, Ok(true), "a directory is made while somebody leads commits");
    drop(files);
    m.end();
}

/// The space of what was removed goes with the FORGET behind it, which may wait for room as a removal does.
#[test]
fn many_removals_whose_space_waits_hold_up_nobody() {
    const THREADS: usize = 4;
    let gate = Gate::default();
    let waits = gate.clone();
    let volume = Arc::new(Special { before_release: Box::new(move || waits.pass()), ..Special::new() });
    let few = |_: &mut MountOptions, s: &mut SessionOptions| (s.threads, s.threads_max) = (2, THREADS);
    let Some(m) = mount(volume.clone(), At::Live, few) else { return };
    let path = m.join("");
    let (told, looked_up) = mpsc::channel();
    // Not awaited if it never is answered.
    thread::spawn(move || {
        let files: Vec<_> = (0..=THREADS).map(|n| path.join(format!("f{n}"))).collect();
        files.iter().for_each(|file| fs::write(file, b"x").unwrap());
        for file in &files {
            fs::remove_file(file).unwrap();
            thread::sleep(Duration::from_millis(30));
        }
        told.send(fs::metadata(path.join("nobody asked for it yet")).is_err())
    });
    let answered = looked_up.recv_timeout(Duration::from_secs(20));
    let unnamed = volume.toy.unnamed();
    gate.open();
    assert_eq!(answered, Ok(true), "a name is looked up while the space of removed files waits");
    assert_eq!(unnamed, THREADS + 1, "nothing was let go so far");
    m.end();
    assert_eq!(volume.toy.inodes_and_uses(), (1, 0), "what waited is let go before the session has ended");
}

/// Who asks where a file has data, of which the kernel has yet to send some, holds up no rename of another file.
#[test]
fn a_rename_waits_for_the_pages_of_its_own_file() {
    let gate = Arc::new((Mutex::new(None), Condvar::new()));
    let waits = gate.clone();
    let before_write = move |ino: Ino| drop(waits.1.wait_while(waits.0.lock().unwrap(), |kept| *kept == Some(ino)));
    let volume = Arc::new(Special { before_write: Box::new(before_write), ..Special::new() });
    let Some(m) = mount(volume, At::Live, |_, s| s.cache = Cache::WriteBack) else { return };
    fs::write(m.join("target"), b"old").unwrap();
    let open =
        |name: &str| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(m.join(name)).unwrap();
    let (slow, new) = (open("slow"), open("new"));
    *gate.0.lock().unwrap() = Some(Ino(slow.metadata().unwrap().ino()));
    slow.write_at(&[1; 8192], 0).unwrap();
    new.write_at(b"new", 0).unwrap();
    let (told, renamed) = mpsc::channel();
    let (from, to) = (m.join("new"), m.join("target"));
    let answered = thread::scope(|scope| {
        scope.spawn(|| raw::lseek(&slow, 0, libc::SEEK_DATA));
        while !m.counts().iter().any(|(name, _)| *name == "Lseek") {
            thread::sleep(Duration::from_millis(1));
        }
        thread::spawn(move || told.send(fs::rename(from, to).is_ok()));
        let answered = renamed.recv_timeout(Duration::from_secs(20));
        *gate.0.lock().unwrap() = None;
        gate.1.notify_all();
        answered
    });
    assert_eq!(answered, Ok(true), "a rename waits for another file's pages");
    assert_eq!(fs::read(m.join("target")).unwrap(), b"new");
}

/// Tests that need another process run this one again, with this variable.
const CHILD: &str = "NENRIN_TEST_CHILD";

/// Serves a toy in the directory given until killed or unmounted; not a test by itself.
#[test]
fn child() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    let toy = Toy::new();
    toy.give_root_to(65534, 65534);
    let options = MountOptions::new("to\\y,", &directory);
    toy.add_file("theirs", 0o666, 1);
    let own = std::env::var("NENRIN_TEST_OWN").is_ok();
    let permissions = if own { Permissions::Own } else { Permissions::Kernel };
    let back = std::env::var("NENRIN_TEST_BACK").is_ok();
    let cache = if back { Cache::WriteBack } else { Cache::WriteThrough };
    let session = SessionOptions { permissions, cache, ..Default::default() };
    match Session::start(Arc::new(toy), At::Live, &options, &session) {
        Ok(session) => {
            println!("ready");
            session.run().unwrap();
            println!("ended");
        }
        Err(e) => println!("refused: {e}"),
    }
}

fn run_child(
    directory: &Path,
    change: impl FnOnce(&mut Command),
) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    run_child_of(&std::env::current_exe().unwrap(), directory, change)
}

fn run_child_of(
    program: &Path,
    directory: &Path,
    change: impl FnOnce(&mut Command),
) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(program);
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(CHILD, directory).stdout(Stdio::piped());
    change(&mut command);
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    // The test harness prints, too.
    let mut line = String::new();
    while !line.contains("ready") && !line.contains("refused") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "the child ended");
    }
    assert!(line.contains("ready"), "{line}");
    (child, out)
}

#[test]
fn a_dead_mount_is_cleared() {
    if missing().is_some() {
        return common::left_out(format_args!("nothing can be mounted"));
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut child, _out) = run_child(dir.path(), |_| {});
    fs::write(dir.path().join("f"), b"x").unwrap();
    assert!(matches!(start(dir.path()), Err(MountError::Mounted(_))));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(errno(fs::read(dir.path().join("f"))), libc::ENOTCONN);
    let session = start(dir.path()).unwrap();
    let stopper = session.stopper();
    let thread = std::thread::spawn(move || session.run());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    stopper.stop().unwrap();
    thread.join().unwrap().unwrap();
    assert!(!is_mounted(&dir.path().canonicalize().unwrap()));
}

/// As nobody, through fusermount3, with the kernel's check and with ours.
#[test]
fn without_root() {
    if missing().is_some() || !Path::new("/usr/bin/fusermount3").exists() || raw::geteuid() != 0 {
        return common::left_out(format_args!("needs root, /dev/fuse and fusermount3"));
    }
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 != 0o006 {
        return common::left_out(format_args!("users cannot open /dev/fuse"));
    }
    // Where that user may go: the program may lie in a home that is closed. Copied by another
    // process, since what other tests start would for a moment hold it open for writing.
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = place.path().join("lifecycle");
    assert!(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap().success());
    for (own, back) in [(false, false), (false, true), (true, false), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
        let (mut child, mut out) = run_child_of(&program, dir.path(), |command| {
            command.uid(65534).gid(65534);
            if own {
                command.env("NENRIN_TEST_OWN", "1");
            }
            if back {
                command.env("NENRIN_TEST_BACK", "1");
            }
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|l| l.contains(dir.path().to_str().unwrap())).unwrap();
        assert!(line.contains("fuse.nenrin to\\134y, "), "{line}");
        assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
        raw::as_user(65534, 65534, &[], || {
            let file = dir.path().join("file");
            fs::write(&file, b"mine").unwrap();
            assert_eq!(fs::metadata(&file).unwrap().uid(), 65534);
            fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
            assert_eq!(errno(fs::write(&file, b"")), libc::EACCES);
            assert_eq!(errno(std::os::unix::fs::chown(&file, Some(0), None)), libc::EPERM);
            fs::create_dir(dir.path().join("sub")).unwrap();
            fs::set_permissions(dir.path().join("sub"), std::os::unix::fs::PermissionsExt::from_mode(0o500)).unwrap();
            assert_eq!(errno(fs::write(dir.path().join("sub/x"), b"")), libc::EACCES);
            fs::remove_dir(dir.path().join("sub")).unwrap();
            assert_eq!(fs::read(&file).unwrap(), b"mine");
            use_what_others_own(&dir.path().join("theirs"));
        });
        // Nobody else gets in, not even root.
        assert_eq!(errno(fs::read_dir(dir.path()).map(drop)), libc::EACCES);
        let status = Command::new("fusermount3").arg("-u").arg(dir.path()).uid(65534).gid(65534).status().unwrap();
        assert!(status.success());
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("ended"), "{rest}");
        assert!(child.wait().unwrap().success());
    }
}

/// A file that others own and everybody may write: all but its mode and times can be changed.
fn use_what_others_own(path: &Path) {
    let mut file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.write_all(&[7; 10_000]).unwrap();
    file.sync_all().unwrap();
    file.set_len(5000).unwrap();
    file.write_all(&[8; 100]).unwrap();
    drop(file);
    assert_eq!(fs::read(path).unwrap().len(), 10_100);
    assert!(Command::new("truncate").args(["-s", "77"]).arg(path).status().unwrap().success());
    assert!(Command::new("touch").arg(path).status().unwrap().success());
    drop(File::create(path).unwrap());
    assert_eq!(fs::metadata(path).unwrap().len(), 0);
    let file = File::open(path).unwrap();
    assert_eq!(errno(file.set_modified(std::time::SystemTime::UNIX_EPOCH)), libc::EPERM);
    let now = fs::FileTimes::new().set_modified(std::time::SystemTime::now());
    assert_eq!(errno(file.set_times(now)), libc::EPERM);
    assert_eq!(errno(fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777))), libc::EPERM);
}

#[test]
fn what_the_kernel_gives_is_raised() {
    const CAP_SYS_RESOURCE: u32 = 24;
    // Without the right to mark its threads as those that free memory, a daemon must not hold much of it.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let may_mark = u64::from_str_radix(rights, 16).unwrap() & 1 << CAP_SYS_RESOURCE != 0;
    for (cache, dirty_percent) in [(Cache::WriteThrough, "1"), (Cache::WriteBack, if may_mark { "100" } else { "1" })] {
        let Some(m) = mount(Arc::new(Toy::new()), At::Live, |_, options| options.cache = cache) else { return };
        if raw::geteuid() != 0 {
            return common::left_out(format_args!("needs root"));
        }
        let dev = fs::metadata(m.root()).unwrap().dev();
        let told = |name| {
            let path = format!("/sys/class/bdi/{}:{}/{name}", libc::major(dev), libc::minor(dev));
            fs::read_to_string(path).unwrap().trim().to_owned()
        };
        assert_eq!(told("read_ahead_kb"), "4096");
        assert_eq!(told("max_ratio"), dirty_percent);
    }
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let Some(m) = mount(Arc::new(Toy::new()), At::Live, |mount, _| mount.read_only = true) else { return };
    assert_eq!(errno(fs::write(m.join("f"), b"")), libc::EROFS);
    assert_eq!(fs::read_dir(m.root()).unwrap().count(), 0);
}

/// Under writeback the kernel asks for data and holes before it sends what was
/// written. A program that copies only data must not be told of a hole there.
#[test]
fn data_that_was_not_sent_is_no_hole() {
    let toy = Arc::new(Toy::new());
    let Some(m) = mount(toy.clone(), At::Live, |_, options| options.cache = Cache::WriteBack) else { return };
    let mut file = File::create(m.join("log")).unwrap();
    for i in 1..20_i64 {
        file.write_all(&[7; 50_000]).unwrap();
        let size = i * 50_000;
        let reader = File::open(m.join("log")).unwrap();
        assert_eq!(raw::lseek(&reader, size - 40_000, libc::SEEK_DATA).unwrap(), size as u64 - 40_000);
        assert_eq!(raw::lseek(&reader, size - 40_000, libc::SEEK_HOLE).unwrap(), size as u64);
    }
    assert!(toy.content("log") == vec![7; 950_000]);
}

/// Under writeback the kernel renames a file before it sends what was written
/// to it. The name must not show anything else than that for a moment.
#[test]
fn a_name_never_shows_less_than_was_written() {
    let toy = Arc::new(Toy::new());
    let Some(m) = mount(toy.clone(), At::Live, |_, options| options.cache = Cache::WriteBack) else { return };
    for i in 0..20 {
        let content = vec![i; 100_000];
        fs::write(m.join("config"), b"old").unwrap();
        let mut file = File::create(m.join("new")).unwrap();
        file.write_all(&content).unwrap();
        // Not closed, so nothing was sent.
        assert_ne!(toy.content("new").len(), content.len());
        if i % 2 == 0 {
            fs::rename(m.join("new"), m.join("config")).unwrap();
        } else {
            fs::remove_file(m.join("config")).unwrap();
            fs::hard_link(m.join("new"), m.join("config")).unwrap();
        }
        assert!(toy.content("config") == content);
        drop(file);
        let _ = fs::remove_file(m.join("new"));
    }
    fs::create_dir(m.join("d1")).unwrap();
    fs::create_dir(m.join("d2")).unwrap();
    fs::rename(m.join("d1"), m.join("d2")).unwrap();
}

#[test]
fn writers_are_told_by_others() {
    common::later::writers_are_told_by_others(common::way());
}
