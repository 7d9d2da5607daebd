//! What several owners of blocks cost, and what becomes of them when they are moved.

use super::Fs;
use crate::MountOptions;
#[cfg(feature = "breaks")]
use crate::breaks::{Break, with};
use crate::segments::KIND_DATA;
use crate::testing::{create, device, mount};
use nenrin_format::items::Extent;
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use nenrin_format::{Addr, BLOCK_BYTES, Ino, Time};
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
