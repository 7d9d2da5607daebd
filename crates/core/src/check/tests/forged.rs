//! Lists in the space tree that name what is there: check says so, a mount keeps it, a repair mends the list.

use super::*;
use crate::repair::RepairPlan;
use crate::state::forget_key;
use nenrin_format::items::Forget;

/// A volume with a state that was changed behind the records' back.
fn forged(edit: impl FnOnce(&mut State)) -> Arc<dyn BlockDevice> {
    let device = volume();
    let options = MountOptions::default();
    let mut opened: Opened = recover(std::slice::from_ref(&device), &options).unwrap();
    edit(&mut opened.state);
    let fs = Fs::assemble(opened, Arc::new(TestClock::default()), options);
    fs.index_checkpoint(true).unwrap();
    device
}

fn mounted(device: &Arc<dyn BlockDevice>) -> Arc<Fs> {
    Fs::open(vec![device.clone()], Arc::new(TestClock::default()), MountOptions::default()).unwrap()
}

/// Mounts, and has the background do what it wants to; then what is said of a file must still be so.
#[track_caller]
fn file_survives(device: &Arc<dyn BlockDevice>, what: &str) {
    let fs = mounted(device);
    for _ in 0..40 {
        // What it meets may be an error, which is told and ends nothing.
        drop(fs.tick());
    }
    drop(fs.forget_step(1 << 20));
    let is_there = |fs: &Fs| {
        let found = fs.lookup(At::Live, DIR, b"file").and_then(|f| fs.read(At::Live, f.ino, 0, 20 * 4096));
        found.is_ok_and(|bytes| bytes == vec![3; 20 * 4096])
    };
    assert!(is_there(&fs), "{what}: the living file is gone");
    drop(fs.close());
    assert!(is_there(&mounted(device)), "{what}: the living file is gone with the next mount");
}

/// Repaired, nothing is wrong, and the file is there.
#[track_caller]
fn mends(device: &Arc<dyn BlockDevice>, what: &str) {
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    let given = std::slice::from_ref(device);
    RepairPlan::new(given, clock.as_ref(), &mut |_| {}).unwrap().carry_out(clock).unwrap();
    assert!(found(device, true).is_empty(), "{what}");
    file_survives(device, what);
}

fn lists_a_living_file_to_be_forgotten() -> Arc<dyn BlockDevice> {
    forged(|s| s.set_space(forget_key(FILE), Forget { begun: Time(3) }.encode()))
}

#[test]
fn what_lives_is_not_forgotten() {
    let device = lists_a_living_file_to_be_forgotten();
    assert_eq!(found(&device, true), [403].into());
    file_survives(&device, "forget");
    let notes = mounted(&device).recovery_report().notes.clone();
    assert!(notes.iter().any(|n| n.contains("to be forgotten, and it is there")), "{notes:?}");
    mends(&lists_a_living_file_to_be_forgotten(), "forget");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the living file is gone")]
fn a_living_file_that_is_forgotten_is_noticed() {
    use crate::breaks::{Break, with};
    with(Break::LivingForgotten, || file_survives(&lists_a_living_file_to_be_forgotten(), "forget"));
}

/// Items for the reaper: fork in the key, fork, whether all of it, of an inode that is there; and whether that is wrong.
const REAPS: [(u32, u32, bool, bool, bool); 12] = [
    (0, 0, true, true, true),
    (REST_FORK, 0, true, true, true),
    (REST_FORK, 5, true, true, true),
    (7, 0, true, true, true),
    (7, 7, true, true, true),
    (0, 0, false, true, true),
    (3, 0, false, true, true),
    (3, 3, false, true, true),
    (0, 0, true, false, false),
    (REST_FORK, 0, true, false, false),
    (7, 0, true, false, true),
    (3, 0, false, false, true),
];

/// The number of no inode.
const NOBODY: Ino = Ino(17_000);

fn listed_for_the_reaper((key, fork, whole, exists, _): (u32, u32, bool, bool, bool)) -> Arc<dyn BlockDevice> {
    forged(|s| {
        s.next_ino = NOBODY.next();
        s.set_space(reap_key(if exists { FILE } else { NOBODY }, key), reap(fork, whole));
    })
}

#[test]
fn what_is_in_use_is_not_reaped() {
    for row in REAPS {
        let device = listed_for_the_reaper(row);
        let what = format!("{row:?}");
        let wrong: BTreeSet<u16> = if row.4 { [403].into() } else { [].into() };
        assert_eq!(found(&device, true), wrong, "{what}");
        file_survives(&device, &what);
        mends(&listed_for_the_reaper(row), &what);
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the living file is gone")]
fn a_living_file_that_is_reaped_is_noticed() {
    use crate::breaks::{Break, with};
    with(Break::LivingReaped, || file_survives(&listed_for_the_reaper(REAPS[3]), "reap"));
}

/// A directory with a file in it has lost its name, and is listed as an orphan.
fn dead_with_a_child() -> Arc<dyn BlockDevice> {
    forged(|s| {
        let (key, ..) = s.dirent(DIR, b"sub").unwrap().unwrap();
        s.unset(key);
        s.unset(s.first(SUB, Kind::Link).0);
        s.edit_inode(SUB, |i| i.nlink = 0);
        s.edit_inode(DIR, |i| (i.nlink, i.entries) = (i.nlink - 1, i.entries - 1));
        s.set_space(orphan_key(SUB), reap(0, true));
    })
}

fn child_survives(device: &Arc<dyn BlockDevice>) {
    let fs = mounted(device);
    for _ in 0..20 {
        drop(fs.tick());
    }
    drop(fs.close());
    let bytes = mounted(device).read(At::Live, SMALL, 0, 200);
    let state = recover(std::slice::from_ref(device), &MountOptions::default()).unwrap().state;
    let is_named = state.inode(SUB).unwrap().is_some() && state.dirent(SUB, b"small").unwrap().is_some();
    assert!(is_named && bytes.is_ok_and(|b| b == vec![1; 100]), "the child is gone");
}

#[test]
fn what_is_in_a_directory_without_a_name_stays() {
    let device = dead_with_a_child();
    assert_eq!(found(&device, true), [313].into());
    child_survives(&device);
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    let plan = RepairPlan::new(std::slice::from_ref(&device), clock.as_ref(), &mut |_| {}).unwrap();
    plan.carry_out(clock).unwrap();
    assert!(found(&device, true).is_empty());
    let fs = mounted(&device);
    let lost = fs.lookup(At::Live, Ino::ROOT, b"lost+found").unwrap().ino;
    let mut names = Vec::new();
    let mut each = |e: crate::DirEntry| {
        names.push(e.ino);
        true
    };
    fs.readdir(At::Live, lost, 0, &mut each).unwrap();
    assert!(names.contains(&SMALL), "{names:?}");
    assert_eq!(fs.read(At::Live, SMALL, 0, 200).unwrap(), vec![1; 100]);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the child is gone")]
fn children_that_go_with_their_directory_are_noticed() {
    crate::breaks::with(crate::breaks::Break::ChildrenGo, || child_survives(&dead_with_a_child()));
}

/// All that is free waits for a root that is never written, or says so.
fn emptied_in_the_future() -> Arc<dyn BlockDevice> {
    forged(|s| {
        let free: Vec<SegmentNo> =
            s.segments.iter().filter(|(no, _)| s.segments.is_free(*no)).map(|(no, _)| no).skip(12).collect();
        for no in free {
            let item = nenrin_format::items::Segment { emptied_generation: 1 << 54, ..Default::default() };
            s.set_space(Key::space(Kind::Segment, 0, no.0), item.encode());
        }
    })
}

fn become_free(device: &Arc<dyn BlockDevice>) {
    let fs = mounted(device);
    for _ in 0..4 {
        fs.index_checkpoint(true).unwrap();
    }
    let waiting = fs.segments().iter().filter(|s| s.state == crate::SegmentState::Pending).count();
    assert!(waiting < 12, "{waiting} segments wait for ever");
}

#[test]
fn segments_emptied_in_the_future_become_free() {
    let device = emptied_in_the_future();
    assert_eq!(found(&device, true), [512].into());
    become_free(&device);
    assert!(found(&device, true).is_empty());
    mends(&emptied_in_the_future(), "emptied");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "wait for ever")]
fn segments_that_wait_for_ever_are_noticed() {
    crate::breaks::with(crate::breaks::Break::EmptiedBelieved, || become_free(&emptied_in_the_future()));
}
