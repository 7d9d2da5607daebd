//! Lost ranges that are too large to be marked: of a sparse file, which leaves room for those of others.

use super::tests::{clock, device, new, repair};
use crate::check::{CheckOptions, FINDINGS_MAX, What, check};
use crate::recovery::recover;
use crate::{At, Error, Fs, MkfsOptions, MountOptions, RepairPlan, SetAttr, mkfs};
use nenrin_device::{BlockDevice, MemDevice};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{Entries, TreeId, decode};
use nenrin_format::{BLOCK_BYTES, Ino, NODE_BYTES};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Extents of one block with holes of one between them.
const EXTENTS: u64 = 2000;
/// Larger than all that may be marked in a test.
const SPARSE: u64 = 16 << 30;

/// Two files, a sparse one first, in several leaves each.
fn volume() -> (Vec<u8>, [Ino; 2]) {
    let memory = Arc::new(MemDevice::new(64 << 20));
    let shared: Arc<dyn BlockDevice> = memory.clone();
    mkfs(&shared, &clock(), &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
    let open = || Fs::open(vec![shared.clone()], clock(), MountOptions::default()).unwrap();
    let fs = open();
    let make = |name: &str| fs.create(Ino::ROOT, name.as_bytes(), &new(0o100_600)).unwrap().ino;
    let sparse = make("sparse");
    // So that the inode of the other is not in the last leaf of this one.
    (0..300).for_each(|i| assert!(make(&format!("between {i}")) > sparse));
    let files = [sparse, make("other")];
    for (ino, n) in files.iter().flat_map(|ino| (0..EXTENTS).map(move |n| (*ino, n))) {
        fs.write(ino, n * 2 * BLOCK, &[5; BLOCK_BYTES], 0).unwrap();
    }
    fs.setattr(files[0], &SetAttr { size: Some(SPARSE), ..SetAttr::default() }).unwrap();
    fs.close().unwrap();
    (0..4).for_each(|_| open().close().unwrap());
    (memory.snapshot(), files)
}

/// Destroys all copies of the leaves with this item.
fn lose(bytes: &mut [u8], key: &Key) {
    let places: Vec<usize> = (0..bytes.len() - NODE_BYTES).step_by(BLOCK_BYTES).collect();
    for at in places {
        let Ok((_, Entries::Leaf(items))) = decode(TreeId::LIVE, &bytes[at..at + NODE_BYTES]) else { continue };
        if items.iter().any(|(k, _)| k == key) {
            bytes[at..at + NODE_BYTES].fill(0xa5);
        }
    }
}

fn lost_ranges_of_two_files() {
    let (mut bytes, [sparse, other]) = volume();
    let last = |ino, n: u64| Key::new(ino, Kind::Extent, 0, n * 2);
    // The end of the one, and from the midst of the other.
    lose(&mut bytes, &last(sparse, EXTENTS - 1));
    lose(&mut bytes, &last(other, EXTENTS / 2 + 200));
    let shared = device(&bytes);
    assert!(
        recover(std::slice::from_ref(&shared), &MountOptions { read_only: true, ..MountOptions::default() }).is_ok()
    );
    let plan = RepairPlan::new(std::slice::from_ref(&shared), clock().as_ref(), &mut |_| {}).unwrap();
    plan.report().losses.iter().for_each(|l| println!("{l}"));
    plan.carry_out(clock()).unwrap();
    let fs = Fs::open(vec![shared], clock(), MountOptions::default()).unwrap();
    let is_lost = |ino, n: u64| match fs.read(At::Live, ino, n * BLOCK, BLOCK_BYTES) {
        Ok(bytes) => {
            let hole = n % 2 == 1 && bytes == [0; BLOCK_BYTES];
            assert!(hole || bytes == [5; BLOCK_BYTES], "a lost range reads as zeros: inode {ino} block {n}");
            false
        }
        Err(Error::Corrupt(_)) => true,
        Err(e) => panic!("{e}"),
    };
    let lost = (0..EXTENTS * 2 - 1).filter(|n| is_lost(other, *n)).count();
    assert!((1..2 * EXTENTS as usize - 200).contains(&lost), "{lost}");
    let size = fs.getattr(At::Live, sparse).unwrap().size;
    assert!((1 << 30..SPARSE).contains(&size), "{size}");
    assert!(is_lost(sparse, size / BLOCK - 1) && is_lost(sparse, size / BLOCK / 2));
    fs.close().unwrap();
}

#[test]
fn a_sparse_file_leaves_marks_for_others() {
    lost_ranges_of_two_files();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a lost range reads as zeros")]
fn a_sparse_file_that_takes_all_marks_is_noticed() {
    crate::breaks::with(crate::breaks::Break::LostMarksUsedUp, lost_ranges_of_two_files);
}

/// A volume with more lost ranges than a check lists, and behind them a wrong count of what a segment holds.
fn wrong_behind_many_lost_ranges() {
    let (mut bytes, [_, other]) = volume();
    lose(&mut bytes, &Key::new(other, Kind::Extent, 0, EXTENTS / 2 * 2));
    let shared = device(&repair(&bytes).0);
    let devices = std::slice::from_ref(&shared);
    let fs = Fs::open(devices.to_vec(), clock(), MountOptions::default()).unwrap();
    let lost = |n: &u64| fs.read(At::Live, other, n * BLOCK, BLOCK_BYTES).is_err();
    let lost: Vec<u64> = (0..EXTENTS * 2 - 1).filter(lost).collect();
    assert!(lost.len() > 2 * FINDINGS_MAX + 2, "{}", lost.len());
    let together = check(devices, &CheckOptions::default(), &mut |_| {}).unwrap().count(What::ContentLost);
    assert_eq!(together, 1, "what lies together is told together");
    lost.iter().step_by(2).for_each(|n| assert!(fs.write(other, n * BLOCK, &[6; BLOCK_BYTES], 0).is_ok()));
    fs.close().unwrap();
    drop(fs);
    let options = MountOptions::default();
    let mut opened = recover(devices, &options).unwrap();
    opened.state.live_blocks += 1;
    Fs::assemble(opened, clock(), options).index_checkpoint(true).unwrap();
    let report = check(devices, &CheckOptions::default(), &mut |_| {}).unwrap();
    assert!(report.findings.len() == FINDINGS_MAX && report.count(What::ContentLost) > FINDINGS_MAX as u64);
    assert!(report.findings.iter().all(|f| f.what == What::ContentLost) && report.count(What::TotalWrong) == 1);
    let plan = RepairPlan::new(devices, clock().as_ref(), &mut |_| {}).unwrap();
    assert!(plan.report().needed, "a repair does not see what is not listed: {:?}", plan.report());
    plan.carry_out(clock()).unwrap();
    assert_eq!(check(devices, &CheckOptions::default(), &mut |_| {}).unwrap().count(What::TotalWrong), 0);
}

#[test]
fn what_is_not_listed_counts() {
    wrong_behind_many_lost_ranges();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a repair does not see what is not listed")]
fn what_counts_only_where_it_is_listed_is_noticed() {
    crate::breaks::with(crate::breaks::Break::ListedIsAll, wrong_behind_many_lost_ranges);
}

/// Files of which a snapshot shows what is partly still current, and partly not; and what they were then.
fn changed_since_a_snapshot() -> (Vec<u8>, Vec<(Ino, Vec<u8>)>) {
    let memory = Arc::new(MemDevice::new(64 << 20));
    let shared: Arc<dyn BlockDevice> = memory.clone();
    mkfs(&shared, &clock(), &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
    let open = || Fs::open(vec![shared.clone()], clock(), MountOptions::default()).unwrap();
    let fs = open();
    let mut files = Vec::new();
    for i in 0..120u64 {
        let ino = fs.create(Ino::ROOT, format!("{i}").as_bytes(), &new(0o100_600)).unwrap().ino;
        let bytes = [20, 3000, 70_000, 300_000][i as usize % 4];
        let content: Vec<u8> = (0..bytes).map(|n: u64| (n / 900 + i) as u8 | 1).collect();
        fs.write(ino, 0, &content, 0).unwrap();
        files.push((ino, content));
    }
    let cno = fs.checkpoint_create(Some(b"then")).unwrap();
    assert_eq!(cno.cno.0, 1);
    for (ino, _) in files.iter().step_by(3) {
        fs.write(*ino, 0, &[2; 100], 0).unwrap();
        fs.write(*ino, 40_000, &[3; 100], 0).unwrap();
    }
    for i in (0..120).step_by(7) {
        fs.unlink(Ino::ROOT, format!("{i}").as_bytes()).unwrap();
    }
    fs.close().unwrap();
    (0..4).for_each(|_| open().close().unwrap());
    (memory.snapshot(), files)
}

/// Each leaf of the live tree that has something of a file is lost, one after the other.
fn no_past_reads_as_zeros() {
    let (bytes, files) = changed_since_a_snapshot();
    let (mut told, mut whole) = (0, 0);
    for (lost, _) in files.iter().step_by(5) {
        let mut bytes = bytes.clone();
        lose(&mut bytes, &Key::new(*lost, Kind::Inode, 0, 0));
        let shared = device(&bytes);
        let devices = std::slice::from_ref(&shared);
        let plan = RepairPlan::new(devices, clock().as_ref(), &mut |_| {}).unwrap();
        plan.carry_out(clock()).unwrap();
        let fs = Fs::open(devices.to_vec(), clock(), MountOptions::default()).unwrap();
        for (ino, content) in &files {
            let read = fs.read(At::Past(nenrin_format::Cno(1)), *ino, 0, content.len());
            assert!(read.as_ref().map_or(true, |b| b == content), "the past reads wrong, without {lost}: inode {ino}");
            (told, whole) = (told + u64::from(read.is_err()), whole + u64::from(read.is_ok()));
        }
        fs.close().unwrap();
        let report = check(devices, &CheckOptions { data: true }, &mut |_| {}).unwrap();
        assert!(report.errors <= report.count(What::ContentLost), "{:?}", report.findings);
    }
    assert!(told > 20 && whole > 1000, "{told}, {whole}");
}

#[test]
fn what_is_lost_of_the_past_is_an_error() {
    no_past_reads_as_zeros();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the past reads wrong")]
fn a_past_that_reads_as_zeros_is_noticed() {
    crate::breaks::with(crate::breaks::Break::PastReadsZeros, no_past_reads_as_zeros);
}
