//! What several owners of blocks cost, and what becomes of them when they are moved.

use super::Fs;
use super::growth::Growth;
use super::space::Room;
use crate::MountOptions;
#[cfg(feature = "breaks")]
use crate::breaks::{Break, with};
use crate::segments::KIND_DATA;
use crate::testing::{create, device, mount};
use nenrin_format::items::Extent;
use nenrin_format::key::Key;
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use nenrin_format::{Addr, BLOCK_BYTES, Cno, Ino, Time};
use std::sync::Arc;

fn volume(mib: usize) -> Arc<Fs> {
    mount(&device(mib, 64), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() })
}

/// A file of so many blocks that are all the same one.
fn copied(fs: &Fs, blocks: u64) -> Ino {
    let [one, all] = ["one", "all"].map(|name| create(fs, name));
    assert_eq!(fs.write(one, 0, &[7; BLOCK_BYTES], 0).unwrap(), BLOCK_BYTES);
    fs.sync_all().unwrap();
    for n in 0..blocks {
        assert_eq!(fs.copy_range(one, 0, all, n * 4096, 4096, 0).unwrap(), 4096);
    }
    fs.sync_all().unwrap();
    all
}

/// P7: who writes over blocks that others have, too, asks these no longer than until one says that it is live.
fn copies_are_written_over() {
    const BLOCKS: u64 = 500;
    let fs = volume(64);
    let all = copied(&fs, BLOCKS);
    let asked = || fs.lock().state.owners_asked.get();
    let before = asked();
    for n in 0..BLOCKS {
        assert_eq!(fs.write(all, n * 4096, &[8; BLOCK_BYTES], 0).unwrap(), BLOCK_BYTES);
    }
    fs.sync_all().unwrap();
    let asked = asked() - before;
    assert!(asked < 8 * BLOCKS, "{asked} back references were looked at, of {BLOCKS} owners");
    assert_eq!(fs.usage().shared_blocks, 0);
}

#[test]
fn the_first_owner_that_is_live_says_it() {
    copies_are_written_over();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "back references were looked at")]
fn owners_that_are_all_asked_are_noticed() {
    with(Break::OwnersAllAsked, copies_are_written_over);
}

/// Blocks of many files that lie next to each other, and files that have one copy of each.
pub(super) fn neighbours(fs: &Fs, files: u64, copies: u64) -> Vec<Ino> {
    let of = |kind: &str, n: u64| create(fs, &format!("{kind} {n}"));
    let originals: Vec<Ino> = (0..files).map(|n| of("original", n)).collect();
    for ino in &originals {
        assert_eq!(fs.write(*ino, 0, &[7; BLOCK_BYTES], 0).unwrap(), BLOCK_BYTES);
    }
    fs.sync_all().unwrap();
    let copies: Vec<Ino> = (0..copies).map(|n| of("copy", n)).collect();
    for copy in &copies {
        for (n, ino) in (0..).zip(&originals) {
            assert_eq!(fs.copy_range(*ino, 0, *copy, n * 2 * 4096, 4096, 0).unwrap(), 4096);
        }
    }
    fs.sync_all().unwrap();
    copies
}

/// P7: who removes something asks nobody who has something else, nor all who have the same.
fn a_copy_among_many_is_removed(fs: &Fs) {
    let asked = || fs.lock().state.owners_asked.get();
    let before = asked();
    fs.unlink(Ino::ROOT, b"original 100").unwrap();
    let one = asked() - before;
    assert!(one < 8, "{one} back references were looked at for one block");
    fs.unlink(Ino::ROOT, b"copy 20").unwrap();
    fs.sync_all().unwrap();
    while fs.reap_step().unwrap() == super::background::Reaped::Some {}
    let all = asked() - before;
    assert!(all < 8 * FILES, "{all} back references were looked at for {FILES} blocks");
    assert_eq!(fs.failed(), None);
}

const FILES: u64 = 256;

#[test]
fn who_removes_one_of_many_copies_asks_few() {
    let fs = volume(64);
    neighbours(&fs, FILES, 50);
    a_copy_among_many_is_removed(&fs);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "back references were looked at for one block")]
fn neighbours_that_are_all_asked_are_noticed() {
    let fs = volume(64);
    neighbours(&fs, FILES, 50);
    with(Break::OwnersAllAsked, || a_copy_among_many_is_removed(&fs));
}

/// Who counts what the past keeps asks no longer than until an owner is live, either.
fn copies_of_the_past_are_counted(fs: &Fs, cno: Cno, items: u64) {
    let before = fs.lock().state.owners_asked.get();
    assert_eq!(fs.freed_by_dropping(&[cno]).unwrap().content_blocks, 0);
    let asked = fs.lock().state.owners_asked.get() - before;
    assert!(asked < 40 * items, "{asked} back references were looked at for {items} items of the past");
}

/// Fills what is left up to where df says nothing.
fn fill(fs: &Fs) {
    let rest = create(fs, "rest");
    let mut at = 0;
    for blocks in [256, 16, 1] {
        while fs.write(rest, at * 4096, &vec![3; blocks as usize * BLOCK_BYTES], 0).is_ok() {
            at += blocks;
        }
    }
    fs.sync_all().unwrap();
}

/// P7: where df says nothing, who writes over blocks that others have, too, asks of each no longer than until one says that it is live.
fn copies_are_written_over_on_a_full_volume() {
    let fs = volume(64);
    let all = copied(&fs, 500);
    let copies = neighbours(&fs, FILES, 50);
    fill(&fs);
    let grows = |ino, from, to| {
        let inner = fs.lock();
        let before = inner.state.owners_asked.get();
        let growth = inner.growth(&fs, Room::Write(ino, from, to));
        assert!(matches!(growth, Growth::TooMuch), "{growth:?}");
        inner.state.owners_asked.get() - before
    };
    let one = (0..500).map(|n| grows(all, n, n + 1)).max().unwrap();
    assert!(one < 8, "{one} back references were looked at for one block");
    let many = grows(copies[20], 0, 2 * FILES);
    assert!(many < 8 * FILES, "{many} back references were looked at for {FILES} blocks");
}

#[test]
fn a_full_volume_asks_no_more() {
    copies_are_written_over_on_a_full_volume();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "back references were looked at for one block")]
fn owners_that_are_all_asked_on_a_full_volume_are_noticed() {
    with(Break::OwnersAllAsked, copies_are_written_over_on_a_full_volume);
}

/// The same of df, while a copy of them waits for its commit.
#[test]
fn who_counts_copies_that_wait_asks_no_more() {
    let fs = volume(64);
    let copies = neighbours(&fs, FILES, 50);
    let waiting = create(&fs, "waiting");
    let bytes = 2 * FILES * 4096;
    assert_eq!(fs.copy_range(copies[20], 0, waiting, 0, bytes, 0).unwrap(), bytes - 4096);
    let before = fs.lock().state.owners_asked.get();
    let _ = fs.usage();
    let asked = fs.lock().state.owners_asked.get() - before;
    assert!((1..8 * FILES).contains(&asked), "{asked} back references were looked at for {FILES} blocks");
}

/// Whom of the owners of these blocks it is asked makes no difference.
#[test]
fn who_asks_few_learns_the_same() {
    let fs = volume(64);
    let mut random = nenrin_device::Prng::new(4);
    let files: Vec<Ino> = (0..12).map(|n| create(&fs, &format!("{n}"))).collect();
    for round in 0..300 {
        let [a, b] = [random.below(12), random.below(12)].map(|n| files[n as usize]);
        let [from, to] = [random.below(300), random.below(300)].map(|n| n * 4096);
        let blocks = 1 + random.below(40);
        match random.below(4) {
            0 => drop(fs.write(a, from, &vec![round as u8; blocks as usize * BLOCK_BYTES], 0).unwrap()),
            _ if a == b => {}
            _ => drop(fs.copy_range(a, from, b, to, blocks * 4096, 0).unwrap()),
        }
        match round % 60 {
            20 => drop(fs.checkpoint_create(None).unwrap()),
            40 => drop(fs.checkpoint_create(Some(format!("s{round}").as_bytes())).unwrap()),
            n if n % 5 == 0 => fs.sync_all().unwrap(),
            _ => {}
        }
    }
    fs.sync_all().unwrap();
    let inner = fs.lock();
    let places: Vec<Addr> =
        files.iter().flat_map(|ino| inner.state.extents(*ino, 0, 0, 300, 99).unwrap()).map(|(_, e)| e.addr).collect();
    let mut counted = [0; 2];
    for addr in places.iter().filter(|addr| addr.0 > 0) {
        let blocks = 1 + random.below(300).min(63 - u64::from(addr.block()));
        let owners = inner.state.owners(*addr, blocks as u32).unwrap();
        let left_out = owners.first().map(|(_, back)| back.owner);
        let keeps = |block: u64| {
            let mut all = owners.iter().filter(|(at, back)| at.0 <= block && block < at.0 + u64::from(back.blocks));
            all.any(|(_, back)| match back.owner.death {
                0 => Some(back.owner) != left_out,
                _ => inner.life_of(&back.owner).unwrap().is_some_and(|l| inner.state.is_kept_by_name(l.0, l.1, l.2)),
            })
        };
        let (end, run) = (addr.0 + blocks, (addr.0, addr.0 + blocks));
        let kept = inner.kept_of(&[run], &|owner| Some(*owner) == left_out).unwrap();
        for block in addr.0..end {
            let is_kept = kept.iter().any(|(from, to)| (*from..*to).contains(&block));
            assert_eq!(is_kept, keeps(block), "block {block} of {run:?}");
            counted[usize::from(is_kept)] += 1;
        }
        let has_owner = |block: u64| owners.iter().any(|(at, b)| at.0 <= block && block < at.0 + u64::from(b.blocks));
        assert_eq!(inner.state.has_owners(*addr, blocks as u32).unwrap(), (addr.0..end).all(has_owner));
    }
    assert!(counted.iter().all(|n| *n > 100), "{counted:?}");
}

/// Copies that are written over behind a checkpoint, and how many items of the past that makes.
fn copies_of_the_past() -> (Arc<Fs>, Cno, u64) {
    let fs = volume(64);
    let copies = neighbours(&fs, FILES, 12);
    let cno = fs.checkpoint_create(None).unwrap().cno;
    for ino in copies {
        (0..FILES).for_each(|n| assert!(fs.write(ino, n * 2 * 4096, &[8; BLOCK_BYTES], 0).is_ok()));
    }
    fs.sync_all().unwrap();
    (fs, cno, 12 * FILES)
}

#[test]
fn who_counts_asks_up_to_the_first_that_is_live() {
    let (fs, cno, items) = copies_of_the_past();
    copies_of_the_past_are_counted(&fs, cno, items);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "items of the past")]
fn who_counts_and_asks_all_is_noticed() {
    let (fs, cno, items) = copies_of_the_past();
    with(Break::OwnersAllAsked, || copies_of_the_past_are_counted(&fs, cno, items));
}

/// P7: where all owners are of the past each asks all others, a bounded number of them while others wait.
#[test]
fn a_step_of_a_sweep_asks_a_bounded_number() {
    let fs = volume(64);
    neighbours(&fs, 256, 12);
    let cno = fs.checkpoint_create(None).unwrap().cno;
    for n in 0..256 {
        fs.unlink(Ino::ROOT, format!("original {n}").as_bytes()).unwrap();
    }
    (0..12).for_each(|n| fs.unlink(Ino::ROOT, format!("copy {n}").as_bytes()).unwrap());
    fs.sync_all().unwrap();
    while fs.reap_step().unwrap() == super::background::Reaped::Some {}
    assert_eq!(fs.usage().history_blocks, 256);
    fs.checkpoint_drop(&[cno]).unwrap();
    let trees: Vec<TreeId> = fs.lock().state.history.iter().rev().map(|t| t.tree.id()).collect();
    let (mut steps, mut most) = (0, 0);
    for tree in trees {
        let mut from = Some(Key::first());
        while let Some(key) = from {
            let mut inner = fs.lock();
            let before = inner.state.owners_asked.get();
            from = fs.sweep_step(&mut inner, tree, key, 4096).unwrap().go_on;
            most = most.max(inner.state.owners_asked.get() - before);
            steps += 1;
        }
    }
    assert!(steps > 4 && most < 1_000_000, "{most} back references were looked at in one of {steps} steps");
    assert_eq!(fs.usage().history_blocks, 0);
}

/// P6: blocks that a live item and one of history have are moved; which goes first does not matter.
fn what_is_moved_is_not_counted_anew(history_first: bool) {
    let fs = volume(64);
    let [f, g] = ["f", "g"].map(|name| create(&fs, name));
    assert_eq!(fs.write(f, 0, &[7; 4 * BLOCK_BYTES], 0).unwrap(), 4 * BLOCK_BYTES);
    fs.sync_all().unwrap();
    assert_eq!(fs.copy_range(f, 0, g, 0, 4 * 4096, 0).unwrap(), 4 * 4096);
    fs.checkpoint_create(Some(b"kept")).unwrap();
    assert_eq!(fs.write(g, 0, &[8; 4 * BLOCK_BYTES], 0).unwrap(), 4 * BLOCK_BYTES);
    fs.sync_all().unwrap();
    while fs.count_named_history().unwrap() {}
    let mut inner = fs.lock();
    let fork = inner.state.need_inode(f).unwrap().fork;
    let (_, e) = inner.state.extents(f, fork, 0, 4, 1).unwrap().remove(0);
    let mut owners = inner.state.owners(e.addr, 4).unwrap();
    owners.sort_by_key(|(_, b)| (b.owner.death == 0) == history_first);
    assert_eq!(owners.iter().map(|(_, b)| b.owner.death > 0).collect::<Vec<_>>(), [history_first, !history_first]);
    let before = (inner.state.live_blocks, inner.state.history_blocks);
    let segment = inner.segments().allocate(KIND_DATA, Time(0)).unwrap();
    let new = Extent { addr: Addr::new(segment, 1), ..e.clone() };
    assert!(!inner.state.past.recount);
    let history = inner.state.history[0].tree.id();
    for (_, b) in owners {
        let tree = if b.owner.death > 0 { history } else { TreeId::LIVE };
        inner.log(&Record::Move { tree, key: b.owner, old: e.addr, new: new.clone() }, 0).unwrap();
    }
    assert_eq!((inner.state.live_blocks, inner.state.history_blocks), before);
    assert_eq!(inner.segments().get(segment).map(|s| (s.item.live_blocks, s.item.history_blocks)), Some((4, 0)));
    assert!(!inner.state.past.recount, "what snapshots keep is counted anew");
}

#[test]
fn what_is_moved_does_not_come_back_from_history() {
    [true, false].into_iter().for_each(what_is_moved_is_not_counted_anew);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what snapshots keep is counted anew")]
fn what_is_moved_and_counts_as_coming_back_is_noticed() {
    with(Break::MovesCountBack, what_is_moved_does_not_come_back_from_history);
}
