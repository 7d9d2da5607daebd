//! Items that contradict each other, and lists of who may do what.

use super::tests::{clock, destroy, new, nodes, numbers, offset, read_only, repair};
use super::{LossKind, RepairPlan, RepairReport};
use crate::check::{CheckOptions, What, check};
use crate::fs::Opened;
use crate::recovery::recover;
use crate::state::State;
use crate::testing::TestClock;
use crate::{At, Fs, MkfsOptions, MountOptions, SetAttr, XattrMode, mkfs};
use nenrin_device::{AlignedBuf, BlockDevice, MemDevice};
use nenrin_format::items::{Extent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::partial::Header;
use nenrin_format::{Addr, BLOCK_BYTES, Ino, SegmentNo};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// A volume with files of so many blocks, each full of a byte of its own: 1, 2, …
fn files(blocks: &[usize]) -> (Arc<dyn BlockDevice>, Vec<Ino>) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(32 << 20));
    mkfs(&device, &clock(), &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
    let fs = Fs::open(vec![device.clone()], clock(), MountOptions::default()).unwrap();
    let make = |(i, blocks): (usize, &usize)| {
        let ino = fs.create(Ino::ROOT, format!("file {i}").as_bytes(), &new(0o100_600)).unwrap().ino;
        fs.write(ino, 0, &vec![i as u8 + 1; blocks * BLOCK_BYTES], 0).unwrap();
        fs.fsync_wait(ino).unwrap();
        ino
    };
    let inos = blocks.iter().enumerate().map(make).collect();
    fs.close().unwrap();
    (device, inos)
}

fn extent(s: &State, ino: Ino) -> (Key, Extent) {
    s.extents(ino, 0, 0, u64::MAX, 1).unwrap().remove(0)
}

fn put(s: &mut State, ino: Ino, off: u64, e: &Extent) {
    s.live.insert(&s.cache, Key::new(ino, Kind::Extent, 0, off), e.encode().into()).unwrap();
}

fn resize(s: &mut State, ino: Ino, blocks: u64, size: u64) {
    let inode = s.need_inode(ino).unwrap();
    s.put_inode(ino, Inode { blocks, size, ..inode }).unwrap();
}

/// The volume after `edit`, then repaired.
fn edited(device: &Arc<dyn BlockDevice>, edit: impl FnOnce(&mut State)) -> (Arc<Fs>, RepairReport) {
    let options = MountOptions::default();
    let mut opened: Opened = recover(std::slice::from_ref(device), &options).unwrap();
    edit(&mut opened.state);
    let fs = Fs::assemble(opened, clock(), options.clone());
    (0..2).for_each(|_| fs.index_checkpoint(true).unwrap());
    drop(fs);
    let plan = RepairPlan::new(std::slice::from_ref(device), &TestClock::default(), &mut |_| {}).unwrap();
    let report = plan.carry_out(clock()).unwrap();
    report.losses.iter().for_each(|l| println!("  {l}"));
    assert_eq!(numbers(device), Default::default());
    (Fs::open(vec![device.clone()], clock(), options).unwrap(), report)
}

/// The byte that fills each of these blocks; `None` where it cannot be read.
fn bytes_of(fs: &Fs, ino: Ino, blocks: u64) -> Vec<Option<u8>> {
    let read = |n| fs.read(At::Live, ino, n * BLOCK, BLOCK_BYTES).ok();
    let byte = |bytes: Vec<u8>| {
        assert!(bytes.len() == BLOCK_BYTES && bytes.iter().all(|b| *b == bytes[0]));
        bytes[0]
    };
    (0..blocks).map(|n| read(n).map(|bytes| byte(bytes.to_vec()))).collect()
}

/// One extent of a file reaches into the next: what only that one has is lost with it, not a hole.
fn overlapping() {
    let (device, inos) = files(&[10, 15]);
    let (fs, report) = edited(&device, |s| {
        let (key, e) = extent(s, inos[1]);
        assert_eq!(e.blocks, 15);
        s.live.remove(&s.cache, &key).unwrap();
        let (_, first) = extent(s, inos[0]);
        put(s, inos[0], 5, &e);
        resize(s, inos[0], 25, 20 * BLOCK);
        assert_eq!(first.blocks, 10);
        resize(s, inos[1], 0, 0);
    });
    let read = bytes_of(&fs, inos[0], 20);
    assert!(!read.contains(&Some(0)), "what an extent had reads as zeros: {read:?}");
    assert_eq!(read, [vec![Some(1); 10], vec![None; 10]].concat(), "{report:?}");
    let lost = report.losses.iter().find(|l| l.kind == LossKind::RangeLost).unwrap();
    assert_eq!(lost.range, Some((10 * BLOCK, 20 * BLOCK)));
}

#[test]
fn what_only_an_overlapping_extent_had_is_lost_and_no_hole() {
    overlapping();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what an extent had reads as zeros")]
fn what_an_overlapping_extent_had_and_is_a_hole_is_noticed() {
    crate::breaks::with(crate::breaks::Break::OverlapReadsZeros, overlapping);
}

/// Items that were born in the future, and are wrong in more than that: one overlaps another, one lies outside the volume.
fn from_the_future() {
    let (device, inos) = files(&[10, 15]);
    let (fs, report) = edited(&device, |s| {
        let birth = s.open_cno.next();
        let (key, e) = extent(s, inos[1]);
        s.live.remove(&s.cache, &key).unwrap();
        put(s, inos[0], 5, &Extent { birth, ..e.clone() });
        resize(s, inos[0], 25, 20 * BLOCK);
        put(s, inos[1], 0, &Extent { birth, addr: Addr::new(SegmentNo(1 << 20), 0), ..e });
    });
    assert_eq!(bytes_of(&fs, inos[0], 20), [vec![Some(1); 10], vec![None; 10]].concat(), "{report:?}");
    assert_eq!(bytes_of(&fs, inos[1], 15), [None; 15], "{report:?}");
}

#[test]
fn what_is_born_in_the_future_is_looked_at_all_the_same() {
    from_the_future();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "cannot be repaired yet")]
fn what_is_born_in_the_future_and_not_looked_at_is_noticed() {
    crate::breaks::with(crate::breaks::Break::FutureUnchecked, from_the_future);
}

/// A file says of blocks that are another's that they are its own: those in the midst of its extent, and some beside them.
fn owned_twice() {
    let (device, inos) = files(&[12, 4]);
    let (fs, report) = edited(&device, |s| {
        let ((_, first), (_, other)) = (extent(s, inos[0]), extent(s, inos[1]));
        assert!(first.granule_shift == 0 && other.granule_shift == 0);
        // Four blocks in the midst of it are where the other file is, with the checksums that they had.
        let moved = Extent { addr: other.addr, ..first.slice(4, 4) };
        put(s, inos[0], 0, &first.slice(0, 4));
        put(s, inos[0], 4, &moved);
        put(s, inos[0], 8, &first.slice(8, 4));
    });
    assert_eq!(bytes_of(&fs, inos[1], 4), [Some(2); 4], "a file loses what is its own");
    let expected = [vec![Some(1); 4], vec![None; 4], vec![Some(1); 4]].concat();
    assert_eq!(bytes_of(&fs, inos[0], 12), expected, "{report:?}");
    fs.close().unwrap();
    drop(fs);
    // Blocks in the midst of an extent were given to the other file, and written.
    let (device, inos) = files(&[12, 4]);
    let bytes = device.read(0, device.geometry().bytes as usize).unwrap();
    let (fs, report) = edited(&device, |s| {
        let ((_, first), (_, other)) = (extent(s, inos[0]), extent(s, inos[1]));
        let to = first.addr.add(4);
        let place = offset(&bytes, to) as u64;
        device.write(place, Arc::new(AlignedBuf::padded(&[2; 4 * BLOCK_BYTES]))).unwrap();
        put(s, inos[1], 0, &Extent { addr: to, ..other });
    });
    assert_eq!(bytes_of(&fs, inos[1], 4), [Some(2); 4], "{report:?}");
    assert_eq!(bytes_of(&fs, inos[0], 12), expected, "{report:?}");
}

#[test]
fn of_two_owners_the_one_keeps_a_block_whose_checksum_fits() {
    owned_twice();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a file loses what is its own")]
fn a_first_owner_that_keeps_what_is_anothers_is_noticed() {
    crate::breaks::with(crate::breaks::Break::FirstOwnerKeeps, owned_twice);
}

/// A file that ends in the midst of a block in which more stands: told, and left.
#[test]
fn what_is_behind_the_end_of_a_file_is_told() {
    let (device, inos) = files(&[2]);
    let (fs, report) = edited(&device, |s| {
        let inode = s.need_inode(inos[0]).unwrap();
        resize(s, inos[0], inode.blocks, BLOCK + 100);
    });
    fs.close().unwrap();
    assert!(report.leaves_damage() && !report.needed, "{report:?}");
    assert!(report.losses.iter().any(|l| l.kind == LossKind::TailLeft && l.path.as_deref() == Some(b"/file 0")));
    let found = check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert_eq!(found.count(What::TailNotZero), 1);
}

/// The bytes of a volume with a directory that has both lists, and so many attributes that they take several leaves.
fn with_lists() -> (Vec<u8>, Ino) {
    let memory = Arc::new(MemDevice::new(48 << 20));
    let shared: Arc<dyn BlockDevice> = memory.clone();
    mkfs(&shared, &clock(), &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
    let open = || Fs::open(vec![shared.clone()], clock(), MountOptions::default()).unwrap();
    let fs = open();
    let dir = fs.create(Ino::ROOT, b"dir", &new(0o040_770)).unwrap().ino;
    for i in 0..60 {
        fs.setxattr(dir, format!("user.number {i}").as_bytes(), &[i; 1000], XattrMode::Any).unwrap();
    }
    for name in [ACCESS, DEFAULT] {
        fs.setxattr(dir, name, &[2; 44], XattrMode::Any).unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    (0..4).for_each(|_| open().close().unwrap());
    (memory.snapshot(), dir)
}

fn lists_that_are_lost() {
    let (bytes, dir) = with_lists();
    let (mut without, mut kept) = (0, 0);
    for (_, _, ptr) in nodes(&bytes).iter().filter(|(tree, level, _)| *tree == 1 && *level == 0) {
        let mut damaged = bytes.clone();
        destroy(&mut damaged, ptr);
        let (after, report) = repair(&damaged);
        let fs = read_only(&after);
        let Ok(attr) = fs.getattr(At::Live, dir) else { continue };
        let is_there = |name| fs.getxattr(At::Live, dir, name).is_ok();
        let told = report.losses.iter().any(|l| l.kind == LossKind::AttributesLost && l.ino == Some(dir));
        if is_there(ACCESS) {
            // Or it was made anew.
            assert!(told || attr.mode & 0o777 == 0o770, "{:o}", attr.mode);
            kept += 1;
        } else {
            assert!(attr.mode & 0o070 == 0, "the group has what a lost list kept from it");
            assert!(told, "{report:?}");
            without += usize::from(is_there(DEFAULT));
        }
    }
    assert!(without > 0 && kept > 0, "{without} {kept}");
}

#[test]
fn without_its_access_list_a_directory_is_closed_to_its_group() {
    lists_that_are_lost();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the group has what a lost list kept from it")]
fn a_lost_access_list_that_is_not_missed_is_noticed() {
    crate::breaks::with(crate::breaks::Break::AnyAclCounts, lists_that_are_lost);
}

/// The root has an inode that cannot be understood, and the log changes it behind a gap.
#[test]
fn a_bad_inode_ends_no_repair_behind_a_gap() {
    let changes: [fn(&Fs, Ino); 3] = [
        |fs, f| assert_eq!(fs.setattr(f, &SetAttr { mode: Some(0o644), ..SetAttr::default() }).unwrap().ino, f),
        |fs, f| assert_eq!(fs.write(f, 0, &[9; BLOCK_BYTES], 0).unwrap(), BLOCK_BYTES),
        |fs, f| fs.setxattr(f, b"security.capability", b"all", XattrMode::Any).unwrap(),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let (device, inos) = files(&[3, 3]);
        let (f, other, options) = (inos[0], inos[1], MountOptions::default());
        let fs = Fs::assemble(recover(std::slice::from_ref(&device), &options).unwrap(), clock(), options);
        let key = Key::new(f, Kind::Inode, 0, 0);
        let good = fs.put_unlogged(key, vec![0xff; 3].into());
        (0..2).for_each(|_| fs.index_checkpoint(false).unwrap());
        fs.put_unlogged(key, good);
        let first = fs.superblock().chain;
        let write = |byte: u8| {
            fs.write(other, 0, &[byte; BLOCK_BYTES], 0).unwrap();
            fs.fsync_wait(other).unwrap();
        };
        (0..2).for_each(write);
        change(&fs, f);
        fs.fsync_wait(f).unwrap();
        (2..5).for_each(write);
        drop(fs);
        // The second partial is the gap.
        let bytes = device.read(0, 32 << 20).unwrap();
        let at = Addr::new(first.0, first.1);
        let header = Header::decode(&bytes[offset(&bytes, at)..]).unwrap().header;
        let gap = offset(&bytes, Addr::new(first.0, first.1 + header.total_blocks()));
        assert!(Header::decode(&bytes[gap..]).is_ok());
        device.write(gap as u64, Arc::new(AlignedBuf::padded(&[0xa5; BLOCK_BYTES]))).unwrap();
        let plan = RepairPlan::new(std::slice::from_ref(&device), &TestClock::default(), &mut |_| {});
        let report = plan.unwrap_or_else(|e| panic!("{n}: {e}")).carry_out(clock()).unwrap();
        assert!(report.losses.iter().any(|l| l.kind == LossKind::LogGap), "{n}: {:?}", report.losses);
        assert_eq!(numbers(&device), Default::default(), "{n}");
    }
}
