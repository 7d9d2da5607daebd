//! Seed 4: nothing but a sync waits for a commit. While the device keeps the write or the flush of one file's commit, every
//! other call on any file goes on and ends, and so does the data of another file's sync; that sync itself ends after the
//! commit only if it was laid out later, for the order of the log (decision 0025).
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::gate::{Which, World, is_answered, world};
use crate::common::{dir, file};
use nenrin_core::format::Ino;
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::{At, Fs, MountOptions, RenameMode, Result, SetAttr, XattrMode};
use nenrin_device::Op;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// Far longer than anything here takes that waits for nothing.
const PATIENCE: Duration = Duration::from_secs(15);

/// A write of the log, not of data ahead of it.
fn is_chain(op: &Op) -> bool {
    matches!(op, Op::Write { data, .. } if Header::peek(data).is_ok_and(|h| h.kind == PartialKind::Chain))
}

fn is_flush(op: &Op) -> bool {
    matches!(op, Op::Flush)
}

/// A volume with files `a` and `b`, all of it durable.
fn files() -> (World, [Ino; 2]) {
    let world = world(MountOptions::default());
    let inos = [&b"a"[..], b"b"].map(|name| {
        let ino = world.fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino;
        world.fs.write(ino, 0, &[7; 9000], 0).unwrap();
        ino
    });
    world.fs.sync_all().unwrap();
    (world, inos)
}

type Call = (&'static str, fn(&Fs, Ino, Ino) -> Result<()>);

/// Every call that is no sync, of a file and beside it.
const CALLS: &[Call] = &[
    ("write", |fs, ino, _| fs.write(ino, 100, &[8; 5000], 0).map(drop)),
    ("write of what was just written", |fs, ino, _| fs.write(ino, 0, &[8; 4096], 0).map(drop)),
    ("large write", |fs, ino, _| fs.write(ino, 1 << 20, &vec![8; 1 << 20], 0).map(drop)),
    ("read", |fs, ino, _| fs.read(At::Live, ino, 100, 5000).map(|bytes| assert_eq!(bytes.len(), 5000))),
    ("getattr", |fs, ino, _| fs.getattr(At::Live, ino).map(drop)),
    ("chmod", |fs, ino, _| fs.setattr(ino, &SetAttr { mode: Some(0o644), ..SetAttr::default() }).map(drop)),
    ("setxattr", |fs, ino, _| fs.setxattr(ino, b"user.x", b"1", XattrMode::Any)),
    ("lookup", |fs, _, _| fs.lookup(At::Live, Ino::ROOT, b"a").map(drop)),
    ("create", |fs, _, d| fs.create(d, b"c", &file(0o600)).map(drop)),
    ("mkdir", |fs, _, d| fs.create(d, b"d", &dir()).map(drop)),
    ("rename", |fs, _, d| fs.rename(d, b"c", d, b"e", RenameMode::Replace).map(drop)),
    ("link", |fs, ino, d| fs.link(ino, d, b"f").map(drop)),
    ("readdir", |fs, _, d| fs.readdir(At::Live, d, 0, &mut |_| true)),
    ("unlink", |fs, _, d| ["c", "d", "e", "f"].iter().try_for_each(|n| gone(fs, d, n))),
    ("close", |fs, ino, _| fs.flush(ino)),
    ("reflink", |fs, ino, d| {
        let copy = fs.create(d, b"copy", &file(0o600))?.ino;
        assert_eq!(fs.copy_range(ino, 0, copy, 0, 8192, 0)?, 8192);
        fs.unlink(d, b"copy")
    }),
    ("truncate", |fs, ino, _| fs.setattr(ino, &SetAttr { size: Some(3000), ..SetAttr::default() }).map(drop)),
    ("statfs", |fs, _, _| {
        assert!(fs.usage().inodes > 2 && fs.counters().commits > 0);
        Ok(())
    }),
];

fn gone(fs: &Fs, d: Ino, name: &str) -> Result<()> {
    let Ok(found) = fs.lookup(At::Live, d, name.as_bytes()) else { return Ok(()) };
    if found.mode & 0o170_000 == 0o040_000 { fs.rmdir(d, name.as_bytes()) } else { fs.unlink(d, name.as_bytes()) }
}

/// Runs this on a thread of its own: whether it ends while the device keeps what it has.
fn ends(patience: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (tx, done) = mpsc::channel();
    thread::spawn(move || {
        work();
        let _ = tx.send(());
    });
    done.recv_timeout(patience).is_ok()
}

/// A sync of `ino` on a thread of its own, by `how`.
fn sync(fs: &Arc<Fs>, ino: Ino, how: fn(&Fs, Ino) -> Result<()>) -> mpsc::Receiver<Result<()>> {
    let (tx, answer) = mpsc::channel();
    let fs = fs.clone();
    thread::spawn(move || drop(tx.send(how(&fs, ino))));
    answer
}

fn plain(fs: &Fs, ino: Ino) -> Result<()> {
    fs.fsync_wait(ino)
}

/// While the commit of `a` is kept at `which`: the first call that does not end, and how often the device was waited for under the lock.
fn beside_a_commit(which: Which, patience: Duration, how: fn(&Fs, Ino) -> Result<()>) -> (Option<&'static str>, u64) {
    let (World { gate, fs, .. }, inos) = files();
    let d = fs.create(Ino::ROOT, b"directory", &dir()).unwrap().ino;
    fs.write(inos[0], 0, &[1; 4096], 0).unwrap();
    gate.close(which, 0);
    let answer = sync(&fs, inos[0], how);
    gate.wait_until(|s| s.waiting == 1);
    let ends_on = |call: &Call, ino: Ino| {
        let (fs, work) = (fs.clone(), call.1);
        ends(patience, move || work(&fs, ino, d).unwrap())
    };
    let waits = inos.into_iter().find_map(|ino| CALLS.iter().find(|call| !ends_on(call, ino)));
    let still = !is_answered(&answer);
    gate.open();
    answer.recv().unwrap().unwrap();
    assert!(still, "the commit was over");
    let counted = fs.counters();
    assert_eq!((counted.held_by_own_sync, counted.held_for_memory), (0, 0));
    (waits.map(|call| call.0), counted.device_waits_locked)
}

#[test]
fn nothing_but_a_sync_waits_for_a_commit() {
    for which in [is_chain as Which, is_flush] {
        assert_eq!(beside_a_commit(which, PATIENCE, plain), (None, 0));
    }
}

#[cfg(feature = "breaks")]
#[test]
fn a_commit_under_the_lock_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    let locked = |fs: &Fs, ino| with(Break::CommitLocked, || fs.fsync_wait(ino));
    for which in [is_chain as Which, is_flush] {
        let (waits, counted) = beside_a_commit(which, Duration::from_secs(1), locked);
        assert!(waits.is_some() && counted > 0, "{waits:?} {counted}");
    }
}

/// The data of a sync is written, its record laid out and on its way, while the commit before it is kept; what is left to wait for is the
/// order in which both are told, and that is counted.
#[test]
fn a_sync_waits_for_a_commit_before_it_only_to_be_told() {
    let (World { gate, fs, .. }, [a, b]) = files();
    fs.write(a, 0, &[1; 4096], 0).unwrap();
    gate.close(is_chain, 0);
    let first = sync(&fs, a, plain);
    gate.wait_until(|s| s.waiting == 1);
    let before = fs.counters();
    // With more than 256 blocks its data would be flushed first, which waits for flushes that began before.
    fs.write(b, 0, &vec![2; 255 << 12], 0).unwrap();
    let second = sync(&fs, b, plain);
    // Its data went through, or there would be no commit of it.
    gate.wait_until(|s| s.waiting == 2);
    gate.let_one_go(1);
    assert!(!is_answered(&second), "told before what stands before it in the log");
    assert!(!is_answered(&first));
    gate.open();
    first.recv().unwrap().unwrap();
    second.recv().unwrap().unwrap();
    let after = fs.counters();
    assert!(after.data_blocks - before.data_blocks >= 255, "its data travelled in the log");
    assert_eq!(after.overlapped_commits - before.overlapped_commits, 1);
    assert_eq!(after.commits_in_turn - before.commits_in_turn, 1);
    assert_eq!(after.device_waits_locked, 0);
    fs.close().unwrap();
}

/// Where the device is done with them as they were laid out, nobody waits for another.
#[test]
fn commits_that_are_done_as_laid_out_wait_for_none() {
    let (World { gate, fs, .. }, inos) = files();
    gate.close(is_chain, 0);
    let mut answers = Vec::new();
    for (n, ino) in inos.into_iter().enumerate() {
        fs.write(ino, 0, &[1; 4096], 0).unwrap();
        answers.push(sync(&fs, ino, plain));
        gate.wait_until(|s| s.waiting == n + 1);
    }
    for (n, answer) in answers.into_iter().enumerate() {
        gate.let_go(n + 1);
        answer.recv().unwrap().unwrap();
    }
    let counted = fs.counters();
    assert_eq!((counted.overlapped_commits, counted.commits_in_turn, counted.device_waits_locked), (1, 0, 0));
    gate.open();
    fs.close().unwrap();
}

fn is_data(op: &Op) -> bool {
    matches!(op, Op::Write { .. }) && !is_chain(op)
}

/// Whether the sync of `c` ends while the device keeps the data of `a`, which gets a name for which its content goes into the next commit.
fn beside_a_carried_file(named: fn(&Fs, Ino) -> Result<()>) -> bool {
    let (World { gate, fs, .. }, [a, _]) = files();
    let c = fs.create(Ino::ROOT, b"c", &file(0o600)).unwrap().ino;
    gate.close(is_data, 0);
    fs.write(a, 0, &vec![3; 8 << 20], 0).unwrap();
    fs.fsync_wait(c).unwrap();
    let (tx, done) = mpsc::channel();
    let beside = fs.clone();
    thread::spawn(move || drop(tx.send(named(&beside, a))));
    let named = std::iter::repeat_with(|| done.recv_timeout(Duration::from_millis(10)).ok());
    let named = named.take_while(|done| done.is_some() || gate.waiting() == 0).flatten().next();
    fs.write(c, 0, &[1; 4096], 0).unwrap();
    let answer = sync(&fs, c, plain);
    let told = answer.recv_timeout(if named.is_none() { PATIENCE } else { Duration::from_secs(1) });
    let is_told = told.is_ok();
    gate.open();
    told.or_else(|_| answer.recv()).unwrap().unwrap();
    named.unwrap_or_else(|| done.recv().unwrap()).unwrap();
    assert!(fs.read(At::Live, a, 0, 8 << 20).unwrap().iter().all(|byte| *byte == 3));
    is_told
}

fn over(fs: &Fs, _: Ino) -> Result<()> {
    fs.rename(Ino::ROOT, b"a", Ino::ROOT, b"b", RenameMode::Replace)
}

/// Whoever renames over another file, or links, has that content go with the name, and waits for it.
#[test]
fn a_sync_waits_for_no_data_that_goes_with_a_name() {
    let exchanged: fn(&Fs, Ino) -> Result<()> =
        |fs, _| fs.rename(Ino::ROOT, b"b", Ino::ROOT, b"a", RenameMode::Exchange);
    let linked: fn(&Fs, Ino) -> Result<()> = |fs, a| fs.link(a, Ino::ROOT, b"d").map(drop);
    for named in [over, exchanged, linked] {
        assert!(beside_a_carried_file(named), "a sync waits for the data of another file");
    }
}

#[cfg(feature = "breaks")]
#[test]
fn a_file_that_is_carried_as_it_is_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    assert!(!beside_a_carried_file(|fs, a| with(Break::CarriedUnsettled, || over(fs, a))));
}

/// Where nobody syncs it waits for nothing either, and the device has all of it.
#[test]
fn a_name_waits_for_no_data_while_nobody_syncs() {
    let (World { gate, fs, .. }, [a, _]) = files();
    gate.close(is_data, 0);
    // More than travels in the log, in pieces that nobody has begun to write.
    (0..200).for_each(|i| assert_eq!(fs.write(a, i << 13, &[3; 4096], 0).unwrap(), 4096));
    let before = gate.held();
    let beside = fs.clone();
    assert!(ends(PATIENCE, move || over(&beside, a).unwrap()));
    assert!(gate.held() > before, "what is left of it is not begun");
    gate.open();
    fs.close().unwrap();
}
