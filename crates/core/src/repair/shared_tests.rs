//! Repair of volumes in which copies share blocks.

use super::tests::{assert_exact, clock, destroy, device, new, nodes, numbers, read_only, repair, tree};
use super::{LossKind, MendKind, RepairPlan};
use crate::fs::Opened;
use crate::recovery::recover;
use crate::testing::TestClock;
use crate::{At, Error, Fs, MkfsOptions, MountOptions, mkfs};
use nenrin_device::{BlockDevice, MemDevice};
use nenrin_format::items::{Backref, EXTENT_SHARED, Extent};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{BLOCK_BYTES, Ino};
use std::sync::Arc;

/// Files that have copies.
const SOURCES: u64 = 12;

fn content(i: u64) -> Vec<u8> {
    (0..40_960 + 4096 * i).map(|b| (b / 512 + i * 31) as u8).collect()
}

/// The bytes of a volume with copies: whole ones, changed ones, copies of which
/// the source is gone, and shared blocks that only a checkpoint sees. Closed,
/// or with the last copies in the log only.
fn with_copies(clean: bool) -> Vec<u8> {
    let memory = Arc::new(MemDevice::new(32 << 20));
    let shared: Arc<dyn BlockDevice> = memory.clone();
    mkfs(&shared, &clock(), &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
    let open = || Fs::open(vec![shared.clone()], clock(), MountOptions::default()).unwrap();
    let make = |fs: &Fs, name: &str| fs.create(Ino::ROOT, name.as_bytes(), &new(0o100_640)).unwrap().ino;
    let copy = |fs: &Fs, from, name: &str| {
        let to = make(fs, name);
        fs.copy_range(from, 0, to, 0, 1 << 20, 0).unwrap();
        fs.fsync_wait(to).unwrap();
        to
    };
    let fs = open();
    // Fill, so that items take more than one leaf.
    for i in 0..150 {
        let ino = make(&fs, &format!("a file with a name of some length {i}"));
        fs.write(ino, 0, &[i as u8; 900], 0).unwrap();
    }
    let mut sources = Vec::new();
    for i in 0..SOURCES {
        let ino = make(&fs, &format!("source {i}"));
        fs.write(ino, 0, &content(i), 0).unwrap();
        fs.fsync_wait(ino).unwrap();
        let to = copy(&fs, ino, &format!("copy {i}"));
        if i == SOURCES / 2 {
            fs.checkpoint_create(Some(b"half")).unwrap();
        }
        if i % 3 == 1 {
            fs.write(to, 8192, &[1; 5000], 0).unwrap();
        }
        if i % 4 == 2 {
            fs.unlink(Ino::ROOT, format!("source {i}").as_bytes()).unwrap();
        }
        sources.push(ino);
    }
    fs.close().unwrap();
    drop(fs);
    for _ in 0..4 {
        open().close().unwrap();
    }
    if !clean {
        let fs = open();
        for i in [0, 1, 3] {
            let to = copy(&fs, sources[i], &format!("late copy {i}"));
            fs.write(to, 4096, &[2; 3000], 0).unwrap();
            fs.fsync_wait(to).unwrap();
        }
    }
    memory.snapshot()
}

/// Frees what is shared, one owner after another: blocks that are still needed must stay.
fn remove_sources(bytes: &[u8]) {
    let device = device(bytes);
    let before = tree(&read_only(bytes), At::Live);
    let fs = Fs::open(vec![device.clone()], clock(), MountOptions::default()).unwrap();
    for i in 0..SOURCES {
        drop(fs.unlink(Ino::ROOT, format!("source {i}").as_bytes()));
    }
    fs.sync_all().unwrap();
    for _ in 0..8 {
        fs.tick().unwrap();
    }
    for (i, _) in (0..40).enumerate() {
        match fs.create(Ino::ROOT, format!("new {i}").as_bytes(), &new(0o100_600)) {
            Ok(f) => drop(fs.write(f.ino, 0, &[3; 90_000], 0)),
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    fs.close().unwrap();
    drop(fs);
    assert_eq!(numbers(&device), Default::default());
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let after = tree(&Fs::open(vec![device], clock(), options).unwrap(), At::Live);
    for (path, file) in before.iter().filter(|(p, _)| !p.starts_with(b"/source")) {
        assert_eq!(after.get(path), Some(file), "{}", String::from_utf8_lossy(path));
    }
}

#[test]
fn any_node_of_a_volume_with_copies_may_be_lost() {
    for clean in [true, false] {
        let bytes = with_copies(clean);
        let before = tree(&read_only(&bytes), At::Live);
        let mut restored = 0;
        for (tree_id, level, ptr) in nodes(&bytes).iter().filter(|(tree, level, _)| *tree != 1 || *level == 0) {
            println!("clean {clean} tree {tree_id} level {level} at {}", ptr.copies[0]);
            let mut damaged = bytes.clone();
            destroy(&mut damaged, ptr);
            let (after, report) = repair(&damaged);
            let now = tree(&read_only(&after), At::Live);
            assert_exact(&before, &now, &report);
            if *tree_id == 2 {
                // Back references follow from the files: nothing of the live state is lost with them.
                assert_eq!(now, before);
                assert!(report.losses.iter().all(|l| l.kind == LossKind::CheckpointsLost), "{report:?}");
                restored += u32::from(report.mends.iter().any(|(k, _)| *k == MendKind::SharingRestored));
            }
            remove_sources(&after);
        }
        // After a crash the nodes of the space tree are in memory: none is destroyed here.
        assert!(restored > 0 || !clean);
    }
}

/// Each way in which flags and back references can contradict each other.
#[test]
fn sharing_that_contradicts_itself() {
    let bytes = with_copies(true);
    for case in 0..6 {
        println!("case {case}");
        let device = device(&bytes);
        let mut opened: Opened = recover(std::slice::from_ref(&device), &MountOptions::default()).unwrap();
        let s = &mut opened.state;
        let mut all: Vec<(Key, Backref)> = Vec::new();
        s.space
            .walk(&s.cache, &mut |k, v| {
                if k.kind == Kind::Backref {
                    all.push((*k, Backref::decode(v).unwrap()));
                }
                Ok(())
            })
            .unwrap();
        assert!(all.len() > 20 && all.iter().any(|(_, b)| b.owner.death > 0), "{}", all.len());
        let (key, b) = *all.iter().rev().find(|(_, b)| b.owner.death == 0).unwrap();
        let mut put = |key, b: &Backref| drop(s.space.insert(&s.cache, key, b.encode().into()).unwrap());
        match case {
            0 => drop(s.space.remove(&s.cache, &key).unwrap()),
            1 => put(key, &Backref { blocks: b.blocks + 1, ..b }),
            2 => put(Key { off: key.off ^ 1, ..key }, &b),
            3 => put(Key { ino: key.ino + 1, ..key }, &b),
            4 => put(key, &Backref { owner: Key { ino: 9999, ..b.owner }, ..b }),
            _ => {
                // The flag is gone, and with it the proof that the block may have two owners.
                let e = Extent::decode(&s.get(&b.owner).unwrap().unwrap()).unwrap();
                let alone = Extent { flags: e.flags & !EXTENT_SHARED, ..e };
                drop(s.live.insert(&s.cache, b.owner, alone.encode().into()).unwrap());
            }
        }
        let fs = Fs::assemble(opened, clock(), MountOptions::default());
        for _ in 0..2 {
            fs.index_checkpoint(true).unwrap();
        }
        drop(fs);
        let found = numbers(&device);
        assert!(found.iter().any(|n| [501, 510, 511].contains(n)), "{found:?}");
        let plan = RepairPlan::new(std::slice::from_ref(&device), &TestClock::default(), &mut |_| {}).unwrap();
        let report = plan.carry_out(clock()).unwrap();
        assert_eq!(numbers(&device), Default::default(), "{report:?}");
        assert!(report.losses.is_empty(), "{report:?}");
    }
}

/// That a source is shared from now on lies in a gap of the log, and its copy behind that.
#[test]
fn a_source_that_was_shared_in_a_gap_keeps_what_its_copy_has() {
    for names in [["source", "copy"], ["copy", "source"]] {
        let memory = Arc::new(MemDevice::new(32 << 20));
        let shared: Arc<dyn BlockDevice> = memory.clone();
        mkfs(&shared, &clock(), &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
        let fs = Fs::open(vec![shared], clock(), MountOptions::default()).unwrap();
        let make = |name: &str| fs.create(Ino::ROOT, name.as_bytes(), &new(0o100_640)).unwrap().ino;
        let inos = names.map(make);
        let by_name = |name| inos[names.iter().position(|n| *n == name).unwrap()];
        let (source, copy, other) = (by_name("source"), by_name("copy"), make("other"));
        fs.write(source, 0, &content(3), 0).unwrap();
        fs.sync_all().unwrap();
        fs.copy_range(source, 0, copy, 0, 1 << 20, 0).unwrap();
        let before = memory.snapshot();
        fs.write(other, 0, &[5; 100], 0).unwrap();
        fs.fsync_wait(other).unwrap();
        let mut bytes = memory.snapshot();
        let gap = (0..bytes.len())
            .step_by(BLOCK_BYTES)
            .find(|at| bytes[*at..][..BLOCK_BYTES] != before[*at..][..BLOCK_BYTES]);
        let gap = gap.unwrap();
        let partial = bytes[gap..][..BLOCK_BYTES].to_vec();
        for ino in [copy, other] {
            fs.write(other, 0, &[6; 100], 0).unwrap();
            fs.fsync_wait(ino).unwrap();
        }
        drop(fs);
        bytes = memory.snapshot();
        assert!(bytes[gap..][..BLOCK_BYTES] == partial);
        bytes[gap..][..BLOCK_BYTES].fill(0xa5);
        let (after, report) = repair(&bytes);
        assert!(report.losses.iter().any(|l| l.kind == LossKind::LogGap), "{report:?}");
        let fs = read_only(&after);
        for ino in inos {
            assert!(fs.read(At::Live, ino, 0, 1 << 20).is_ok_and(|c| c == content(3)), "{names:?} {ino}: {report:?}");
        }
        remove_sources(&after);
    }
}
