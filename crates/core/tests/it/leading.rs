//! P1, P2, P5: several commits under way at once, each held back by a device
//! that lets go which the test chooses.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::gate::{World, is_answered, is_long_write, is_read, is_write, world};
use crate::common::{file, patience};
#[cfg(feature = "breaks")]
use nenrin_core::breaks::{Break, with};
use nenrin_core::format::Ino;
use nenrin_core::{COMMITS_AT_ONCE, Error, Fs, MountOptions};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const AT_ONCE: usize = COMMITS_AT_ONCE as usize;

/// A volume with files, of which one more has uncommitted content for each sync.
fn files(count: usize) -> (World, Vec<Ino>) {
    let world = world(MountOptions::default());
    let make = |i: usize| {
        let f = world.fs.create(Ino::ROOT, format!("f{i}").as_bytes(), &file(0o600)).unwrap();
        world.fs.write(f.ino, 0, &[7; 4096], 0).unwrap();
        f.ino
    };
    let inos: Vec<Ino> = (0..count).map(make).collect();
    world.fs.sync_all().unwrap();
    for ino in &inos {
        world.fs.write(*ino, 0, &[8; 4096], 0).unwrap();
    }
    (world, inos)
}

type Answer = mpsc::Receiver<Result<(), Error>>;

/// Another thread, for which the same is broken.
pub(crate) fn spawn<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    #[cfg(feature = "breaks")]
    if let Some(broken) = nenrin_core::breaks::now() {
        return thread::spawn(move || with(broken, what));
    }
    thread::spawn(what)
}

/// Another client syncs this file; the answer comes later.
fn sync(fs: &Arc<Fs>, ino: Ino) -> Answer {
    let (tx, answer) = mpsc::channel();
    let fs = fs.clone();
    spawn(move || fs.fsync(ino, Box::new(move |r| drop(tx.send(r)))));
    answer
}

/// Syncs of these files, each a commit under way whose write is held back, in this order.
fn under_way(world: &World, inos: &[Ino]) -> Vec<Answer> {
    world.gate.close(is_write, 0);
    let begin = |(i, ino): (usize, &Ino)| {
        let answer = sync(&world.fs, *ino);
        world.gate.wait_until(|s| s.waiting == i + 1);
        answer
    };
    inos.iter().enumerate().map(begin).collect()
}

#[test]
fn a_commit_that_is_done_first_is_told_after_those_before_it() {
    let (world, inos) = files(AT_ONCE);
    let answers = under_way(&world, &inos);
    assert_eq!(world.fs.counters().overlapped_commits, 0);
    for last in (1..AT_ONCE).rev() {
        world.gate.let_one_go(last);
        assert!(answers.iter().all(|a| !is_answered(a)), "told before the first is done");
    }
    world.gate.open();
    for answer in answers {
        answer.recv().unwrap().unwrap();
    }
    assert_eq!(world.fs.counters().overlapped_commits, AT_ONCE as u64 - 1);
    world.fs.close().unwrap();
}

#[test]
fn no_more_than_so_many_are_under_way_and_the_others_share_the_next() {
    let (world, inos) = files(AT_ONCE + 3);
    let mut answers = under_way(&world, &inos[..AT_ONCE]);
    for ino in &inos[AT_ONCE..] {
        let shared = world.fs.counters().shared_commits;
        answers.push(sync(&world.fs, *ino));
        while world.fs.counters().shared_commits == shared {
            thread::yield_now();
        }
    }
    assert_eq!(world.gate.held(), AT_ONCE);
    let commits = world.fs.counters().commits;
    world.gate.open();
    for answer in answers {
        answer.recv().unwrap().unwrap();
    }
    assert_eq!(world.fs.counters().commits - commits, 1, "those that waited share one");
    world.fs.close().unwrap();
}

/// P5: what lies behind a hole in the log is not durable, whatever the device says of it.
#[test]
fn a_commit_fails_with_one_before_it() {
    let (world, inos) = files(2);
    let answers = under_way(&world, &inos);
    world.gate.let_one_go(1);
    assert!(!is_answered(&answers[1]));
    world.gate.fail(0);
    for answer in answers {
        assert!(answer.recv().unwrap().is_err());
    }
    assert!(world.fs.fsync_wait(inos[1]).is_err());
    assert!(world.fs.failed().is_some());
}

/// The same where the device says so of the later one first: what it failed to write may be needed by none, but nobody knows.
#[test]
fn commits_under_way_fail_with_one_that_fails_early() {
    let (world, inos) = files(3);
    let answers = under_way(&world, &inos);
    world.gate.fail(1);
    world.gate.let_one_go(2);
    assert!(answers.iter().all(|a| !is_answered(a)));
    world.gate.open();
    for answer in answers {
        assert!(answer.recv().unwrap().is_err());
    }
}

/// The same where a flush that began before fails, and its thread has not come back when a later one succeeds: a device tells of a
/// loss once, so that one proves nothing.
fn a_flush_that_fails_beside_one_that_succeeds() {
    let (world, inos) = files(2);
    world.gate.close(is_write, 0);
    // On its way to the device before the commit, which waits for it.
    world.fs.write(inos[0], 4096, &[9; 128 << 10], 0).unwrap();
    let first = sync(&world.fs, inos[0]);
    world.gate.wait_until(|s| s.waiting == 1);
    let second = sync(&world.fs, inos[1]);
    world.gate.wait_until(|s| s.waiting == 2);
    // The first commit is written and flushed behind the second.
    world.gate.let_one_go(0);
    world.gate.wait_until(|s| s.waiting == 3);
    world.gate.let_one_go(2);
    let begun = Instant::now();
    while world.fs.counters().commits_in_turn == 0 && begun.elapsed() < Duration::from_secs(5) {
        thread::yield_now();
    }
    let early = first.try_recv();
    world.gate.fail(1);
    world.gate.open();
    assert!(second.recv().unwrap().is_err());
    let told = early.unwrap_or_else(|_| first.recv().unwrap());
    assert!(told.is_err(), "told that it is durable, which nobody knows");
    assert!(world.fs.failed().is_some());
}

#[test]
fn commits_fail_with_a_flush_beside_them() {
    a_flush_that_fails_beside_one_that_succeeds();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "told that it is durable")]
fn flushes_that_are_trusted_are_noticed() {
    with(Break::FlushesTrusted, a_flush_that_fails_beside_one_that_succeeds);
}

/// A bug in a thread that leads, or in what it tells, ends the volume and strands nobody.
fn a_thread_that_leads_is_lost() {
    let (world, inos) = files(2);
    let (fs, ino) = (world.fs.clone(), inos[0]);
    let lost = spawn(move || fs.fsync(ino, Box::new(|_| panic!("in the middle of telling"))));
    assert!(lost.join().is_err());
    let (tx, rx) = mpsc::channel();
    let (fs, ino) = (world.fs.clone(), inos[1]);
    spawn(move || {
        for what in [Fs::sync_all, Fs::tick, Fs::close, |fs: &Fs| fs.checkpoint_create(None).map(drop)] {
            tx.send(what(&fs)).unwrap();
        }
        tx.send(fs.fsync_wait(ino)).unwrap();
    });
    for _ in 0..5 {
        let told = rx.recv_timeout(patience()).expect("nobody answers any more");
        assert!(told.is_err());
    }
    assert!(world.fs.failed().is_some());
}

/// One that is lost in the device, while a commit behind its own is under way.
fn a_thread_is_lost_in_the_device() {
    let (world, inos) = files(2);
    let answers = under_way(&world, &inos);
    world.gate.panics(0);
    assert!(answers[0].recv_timeout(Duration::from_secs(20)).is_err(), "its own answer is gone with it");
    // It is known to be lost a little later.
    let until = Instant::now() + Duration::from_secs(20);
    while world.fs.failed().is_none() && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    world.gate.open();
    assert!(answers[1].recv_timeout(patience()).expect("nobody answers any more").is_err());
    assert!(world.fs.failed().is_some() && world.fs.close().is_err());
}

/// What a write to the file is told by the time the thread is lost that waits for the device.
fn told_beside_lost(world: &World, ino: Ino, lost: thread::JoinHandle<()>) -> Result<(), Error> {
    world.gate.wait_until(|s| s.waiting > 0);
    world.gate.panics(0);
    assert!(lost.join().is_err());
    world.gate.open();
    let (tx, rx) = mpsc::channel();
    let fs = world.fs.clone();
    spawn(move || tx.send(fs.write(ino, 0, &[9; 4096], 0).map(drop)));
    rx.recv_timeout(patience()).expect("nobody answers any more")
}

/// The file takes no change while it is settled.
fn a_thread_that_settles_is_lost() {
    let (world, inos) = files(1);
    let ino = inos[0];
    world.gate.close(is_long_write, 0);
    assert_eq!(world.fs.write(ino, 0, &vec![1; 4 << 20], 0).unwrap(), 4 << 20);
    let fs = world.fs.clone();
    let lost = spawn(move || fs.fsync_wait(ino).unwrap());
    assert!(told_beside_lost(&world, ino, lost).is_err());
    assert!(world.fs.failed().is_some());
}

/// Who has no room waits for who makes some.
fn a_thread_that_makes_room_is_lost() {
    const BLOCKS: u64 = 4096;
    let world = world(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let fs = world.fs.clone();
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    fs.write(ino, 0, &vec![1; (BLOCKS * 4096) as usize], 0).unwrap();
    fs.sync_all().unwrap();
    world.gate.close(is_read, 0);
    // Each second block becomes garbage, until the cleaner reads the others.
    let lost = spawn(move || {
        for at in 0.. {
            fs.write(ino, at * 2 % BLOCKS * 4096, &[2; 4096], 0).unwrap();
            if at % 256 == 0 {
                fs.sync_all().unwrap();
            }
        }
    });
    assert!(told_beside_lost(&world, ino, lost).is_err());
    assert!(world.fs.failed().is_some());
}

#[test]
fn a_thread_that_settles_a_file_and_is_lost_strands_nobody() {
    a_thread_that_settles_is_lost();
}

#[test]
fn a_thread_that_makes_room_and_is_lost_strands_nobody() {
    a_thread_that_makes_room_is_lost();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "nobody answers any more")]
fn a_lost_thread_that_settled_is_noticed() {
    with(Break::AwaitedLost, a_thread_that_settles_is_lost);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "nobody answers any more")]
fn a_lost_thread_that_made_room_is_noticed() {
    with(Break::AwaitedLost, a_thread_that_makes_room_is_lost);
}

#[test]
fn a_thread_that_is_lost_in_the_device_strands_nobody() {
    a_thread_is_lost_in_the_device();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "nobody answers any more")]
fn commits_behind_one_that_is_lost_are_noticed() {
    with(Break::LostHoldsOthers, a_thread_is_lost_in_the_device);
}

#[test]
fn a_thread_that_leads_and_is_lost_strands_nobody() {
    a_thread_that_leads_is_lost();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "nobody answers any more")]
fn leaders_that_are_lost_unseen_are_noticed() {
    with(Break::LeadersLost, a_thread_that_leads_is_lost);
}

/// What is done early is told by the thread that leads what stands before it, and the own thread has other things to do.
#[test]
fn who_led_a_commit_that_is_done_early_is_not_kept_for_its_turn() {
    let (world, inos) = files(2);
    let first = under_way(&world, &inos[..1]).remove(0);
    let (tx, told) = mpsc::channel();
    let (back, came_back) = mpsc::channel();
    let (fs, ino) = (world.fs.clone(), inos[1]);
    thread::spawn(move || {
        fs.fsync(ino, Box::new(move |r| drop(tx.send((r, thread::current().id())))));
        back.send(thread::current().id())
    });
    world.gate.wait_until(|s| s.waiting == 2);
    world.gate.let_one_go(1);
    let own = came_back.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(!is_answered(&told), "told before the first is done");
    world.gate.open();
    first.recv().unwrap().unwrap();
    let (result, teller) = told.recv().unwrap();
    result.unwrap();
    assert_ne!(teller, own);
    assert_eq!(world.fs.counters().commits_in_turn, 1);
    world.fs.close().unwrap();
}

/// A checkpoint is cut behind all that was laid out before, and nothing goes beside it.
#[test]
fn a_checkpoint_waits_for_all_commits_and_none_begins_beside_it() {
    let (world, inos) = files(4);
    let mut answers = under_way(&world, &inos[..2]);
    let (tx, cut) = mpsc::channel();
    let fs = world.fs.clone();
    thread::spawn(move || tx.send(fs.checkpoint_create(Some(b"cut"))));
    assert!(!is_answered(&cut));
    world.gate.let_go(2);
    for answer in answers.drain(..) {
        answer.recv().unwrap().unwrap();
    }
    // Its own commit is held back now, and whoever comes shares the next.
    world.gate.wait_until(|s| s.waiting == 3);
    for ino in &inos[2..] {
        answers.push(sync(&world.fs, *ino));
    }
    assert!(answers.iter().all(|a| !is_answered(a)));
    assert_eq!(world.gate.held(), 3);
    world.gate.open();
    cut.recv().unwrap().unwrap();
    for answer in answers {
        answer.recv().unwrap().unwrap();
    }
    world.fs.close().unwrap();
}
