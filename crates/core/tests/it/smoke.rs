//! The calls of the library on a device in memory.
#![allow(clippy::unwrap_used, clippy::panic, clippy::type_complexity)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
use nenrin_core::format::Ino;
use nenrin_core::format::XATTR_BYTES_MAX;
use nenrin_core::format::items::HISTORY_XATTR;
use nenrin_core::{
    AlignedBuf, AllocateMode, At, CheckOptions, Error, Fs, RenameMode, SetAttr, XattrMode, Xattrs, check,
};
use nenrin_device::BlockDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn what_is_written_is_read_before_and_after_a_clean_unmount() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let d = fs.create(Ino::ROOT, b"dir", &dir()).unwrap();
    let small = fs.create(d.ino, b"small", &file(0o644)).unwrap();
    fs.write(small.ino, 0, b"hello", 0).unwrap();
    let large = fs.create(d.ino, b"large", &file(0o644)).unwrap();
    let data: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251) as u8).collect();
    fs.write(large.ino, 777, &data, 0).unwrap();
    fs.setxattr(large.ino, b"user.x", &[7; 10_000], XattrMode::Any).unwrap();
    let check = |fs: &Fs| {
        assert_eq!(fs.read(At::Live, small.ino, 0, 100).unwrap(), b"hello");
        assert_eq!(fs.read(At::Live, large.ino, 777, data.len() + 5).unwrap(), data);
        assert_eq!(fs.read(At::Live, large.ino, 0, 777).unwrap(), vec![0; 777]);
        assert_eq!(fs.getxattr(At::Live, large.ino, b"user.x").unwrap(), vec![7; 10_000]);
        assert_eq!(fs.lookup(At::Live, d.ino, b"large").unwrap().size, 777 + data.len() as u64);
    };
    check(&fs);
    fs.fsync_wait(large.ino).unwrap();
    check(&fs);
    fs.close().unwrap();
    drop(fs);
    let fs = w.open();
    assert!(fs.recovery_report().clean);
    check(&fs);
}

/// No commit and no checkpoint comes between an inode and the attributes that it is made with.
#[test]
fn an_inode_has_its_attributes_from_its_beginning() {
    let (w, large) = (World::new(96 << 20), vec![7; 9000]);
    let fs = w.open();
    let xattrs: Xattrs<'_> =
        &[(b"user.large", &large), (HISTORY_XATTR, b"none"), (b"system.posix_acl_default", b"list")];
    let names: Vec<Vec<u8>> = (0..1000).map(|n: u32| n.to_string().into_bytes()).collect();
    let is_done = AtomicBool::new(false);
    let states: Vec<At> = std::thread::scope(|scope| {
        scope.spawn(|| {
            for name in &names {
                fs.create_with(Ino::ROOT, name, &dir(), xattrs).unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        let cut = || (!is_done.load(Ordering::Relaxed)).then(|| At::Past(fs.checkpoint_create(None).unwrap().cno));
        std::iter::from_fn(cut).take(100).collect()
    });
    let has_all = |fs: &Fs, at: At| {
        let newest = names.iter().rev().find_map(|name| fs.lookup(at, Ino::ROOT, name).ok());
        let Some(newest) = newest else { return };
        for (name, value) in xattrs {
            assert_eq!(fs.getxattr(at, newest.ino, name).unwrap(), *value, "{at:?}");
        }
    };
    states.into_iter().chain([At::Live]).for_each(|at| has_all(&fs, at));
    let unnamed = fs.tmpfile_with(&file(0o600), xattrs).unwrap().ino;
    assert_eq!(fs.getxattr(At::Live, unnamed, b"user.large").unwrap(), large);
    // What it may not have, it is not made with.
    let too_large = vec![0; XATTR_BYTES_MAX + 1];
    let impossible: [(&[u8], &[u8]); 3] = [(b"", b"1"), (b"user.large", &too_large), (HISTORY_XATTR, b"some")];
    for attribute in impossible {
        assert!(fs.create_with(Ino::ROOT, b"other", &file(0o600), &[attribute]).is_err());
        assert!(matches!(fs.lookup(At::Live, Ino::ROOT, b"other"), Err(Error::NotFound)));
    }
    fs.sync_all().unwrap();
    drop(fs);
    // Without a clean unmount.
    let fs = w.open();
    has_all(&fs, At::Live);
    fs.close().unwrap();
    drop(fs);
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let report = check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// pjdfstest cannot ask FUSE for the limit and leaves this out.
#[test]
fn a_file_has_65000_names_and_not_one_more() {
    let w = World::new(96 << 20);
    let fs = w.open();
    let ino = fs.create(Ino::ROOT, b"0", &file(0o644)).unwrap().ino;
    for n in 1..65_000u32 {
        fs.link(ino, Ino::ROOT, n.to_string().as_bytes()).unwrap_or_else(|e| panic!("name {n}: {e}"));
    }
    assert!(matches!(fs.link(ino, Ino::ROOT, b"one more"), Err(Error::TooManyLinks)));
    assert_eq!(fs.getattr(At::Live, ino).unwrap().nlink, 65_000);
    fs.unlink(Ino::ROOT, b"7").unwrap();
    fs.link(ino, Ino::ROOT, b"one more").unwrap();
}

#[test]
fn bytes_given_away_are_written_as_lent_ones_are() {
    let w = World::new(128 << 20);
    let fs = w.open();
    let (lent, given) =
        (fs.create(Ino::ROOT, b"lent", &file(0o644)).unwrap(), fs.create(Ino::ROOT, b"given", &file(0o644)).unwrap());
    // Whole blocks and not, large and small, over what was there and behind it, odd offsets.
    let writes = [(0, 1 << 20), (1 << 20, 300_000), (4096, 131_072), (8192, 4096), (5000, 262_144), (3 << 20, 2 << 20)];
    for (i, (offset, bytes)) in writes.into_iter().enumerate() {
        let data: Vec<u8> = (0..bytes).map(|n| (n % 253 + i) as u8).collect();
        let mut buf = AlignedBuf::unset(bytes + 10_000);
        buf.truncate(bytes);
        buf.copy_from_slice(&data);
        assert_eq!(fs.write(lent.ino, offset, &data, 0).unwrap(), bytes);
        assert_eq!(fs.write_buf(given.ino, offset, buf, 0).unwrap(), bytes);
        let all = |ino| fs.read(At::Live, ino, 0, 8 << 20).unwrap();
        assert_eq!(all(lent.ino), all(given.ino), "{offset} {bytes}");
    }
    let last = i64::MAX as u64 / 4096 * 4096;
    assert!(matches!(fs.write_buf(given.ino, last, AlignedBuf::zeroed(1 << 20), 0), Err(Error::TooLarge)));
    fs.fsync_wait(lent.ino).unwrap();
    fs.fsync_wait(given.ino).unwrap();
    drop(fs);
    let fs = w.open();
    let all = |ino| fs.read(At::Live, ino, 0, 8 << 20).unwrap();
    assert_eq!(all(lent.ino).len(), 5 << 20);
    assert_eq!(all(lent.ino), all(given.ino));
}

#[test]
fn fsynced_content_is_there_without_a_clean_unmount() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    for i in 0..3000u64 {
        fs.write(f.ino, i * 4096, &[i as u8; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
    }
    drop(fs);
    let fs = w.open();
    assert!(!fs.recovery_report().clean);
    assert!(fs.recovery_report().partials > 0);
    let f = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap();
    assert_eq!(f.size, 3000 * 4096);
    for i in 0..3000u64 {
        assert_eq!(fs.read(At::Live, f.ino, i * 4096, 4096).unwrap(), vec![i as u8; 4096]);
    }
}

#[test]
fn checkpoints_show_the_past() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let mut kept = Vec::new();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    for i in 0..50u8 {
        fs.write(f.ino, u64::from(i % 7) * 3000, &vec![i; 5000], 0).unwrap();
        if i % 9 == 8 {
            fs.setattr(f.ino, &SetAttr { size: Some(u64::from(i) * 100), ..SetAttr::default() }).unwrap();
        }
        let name = [b'n', i + 50];
        fs.create(Ino::ROOT, &name, &file(0o600)).unwrap();
        if i > 10 {
            fs.unlink(Ino::ROOT, &[b'n', i + 40]).unwrap();
        }
        let c = fs.checkpoint_create(None).unwrap();
        let content = fs.read(At::Live, f.ino, 0, 1 << 20).unwrap();
        let mut names = Vec::new();
        fs.readdir(At::Live, Ino::ROOT, 0, &mut |e| {
            names.push(e.name);
            true
        })
        .unwrap();
        kept.push((c.cno, content, names));
    }
    let check = |fs: &Fs| {
        for (cno, content, names) in &kept {
            let at = At::Past(*cno);
            assert_eq!(&fs.read(at, f.ino, 0, 1 << 20).unwrap(), content, "content as of {cno}");
            let mut seen = Vec::new();
            fs.readdir(at, Ino::ROOT, 0, &mut |e| {
                seen.push(e.name);
                true
            })
            .unwrap();
            assert_eq!(&seen, names, "names as of {cno}");
        }
    };
    check(&fs);
    drop(fs);
    let fs = w.open();
    check(&fs);
    fs.checkpoint_drop(&[kept[3].0]).unwrap();
    assert!(matches!(fs.getattr(At::Past(kept[3].0), f.ino), Err(Error::Stale)));
    kept_without(&fs, &kept, 3);
}

fn kept_without(fs: &Fs, kept: &[(nenrin_core::format::Cno, Vec<u8>, Vec<Vec<u8>>)], gone: usize) {
    for _ in 0..20 {
        fs.tick().unwrap();
    }
    for (i, (cno, content, _)) in kept.iter().enumerate() {
        if i != gone {
            let f = fs.lookup(At::Past(*cno), Ino::ROOT, b"f").unwrap();
            assert_eq!(&fs.read(At::Past(*cno), f.ino, 0, 1 << 20).unwrap(), content);
        }
    }
}

#[test]
fn steady_create_and_delete_never_fills_a_volume() {
    let w = World::new(24 << 20);
    let fs = w.open();
    let data = vec![9u8; 1 << 20];
    for i in 0..400u32 {
        let name = format!("f{}", i % 4);
        let f = match fs.lookup(At::Live, Ino::ROOT, name.as_bytes()) {
            Ok(_) => {
                fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
                fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap()
            }
            Err(_) => fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap(),
        };
        fs.write(f.ino, 0, &data, 0).unwrap_or_else(|e| panic!("round {i}: {e} {:?}", fs.usage()));
        if i % 3 == 0 {
            fs.fsync_wait(f.ino).unwrap();
        }
        w.pass(1_000_000_000);
        fs.tick().unwrap();
    }
}

#[test]
fn renames_and_links_keep_counts() {
    let w = World::new(32 << 20);
    let fs = w.open();
    let a = fs.create(Ino::ROOT, b"a", &dir()).unwrap();
    let b = fs.create(Ino::ROOT, b"b", &dir()).unwrap();
    let sub = fs.create(a.ino, b"sub", &dir()).unwrap();
    assert_eq!(fs.getattr(At::Live, a.ino).unwrap().nlink, 3);
    fs.rename(a.ino, b"sub", b.ino, b"sub", RenameMode::Replace).unwrap();
    assert_eq!(fs.getattr(At::Live, a.ino).unwrap().nlink, 2);
    assert_eq!(fs.getattr(At::Live, b.ino).unwrap().nlink, 3);
    assert_eq!(fs.lookup(At::Live, sub.ino, b"..").unwrap().ino, b.ino);
    assert!(fs.rename(Ino::ROOT, b"b", sub.ino, b"x", RenameMode::Replace).is_err());
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.link(f.ino, a.ino, b"g").unwrap();
    fs.retain(f.ino);
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.write(f.ino, 0, b"still", 0).unwrap();
    fs.unlink(a.ino, b"g").unwrap();
    assert_eq!(fs.read(At::Live, f.ino, 0, 9).unwrap(), b"still");
    assert_eq!(fs.getattr(At::Live, f.ino).unwrap().nlink, 0);
    fs.release(f.ino);
    assert!(matches!(fs.getattr(At::Live, f.ino), Err(Error::NotFound)));
    assert!(matches!(fs.rmdir(Ino::ROOT, b"b"), Err(Error::NotEmpty)));
    fs.rename(Ino::ROOT, b"a", Ino::ROOT, b"b", RenameMode::Exchange).unwrap();
    assert_eq!(fs.lookup(At::Live, Ino::ROOT, b"a").unwrap().ino, b.ino);
    fs.close().unwrap();
}

#[test]
fn scattered_deletes_leave_room_that_is_found_again() {
    let w = World::new(32 << 20);
    let fs = w.open();
    let write = |name: &str, byte: u8| -> Result<(), Error> {
        let f = match fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)) {
            Err(Error::Exists) => fs.lookup(At::Live, Ino::ROOT, name.as_bytes())?,
            other => other?,
        };
        fs.write(f.ino, 0, &vec![byte; 40_000], 0)?;
        Ok(())
    };
    // Fill, delete every other file, fill again: several times over.
    let mut full = 0;
    for round in 0..6u8 {
        for i in 0..900 {
            match write(&format!("r{round}-{i}"), round) {
                Ok(()) => {}
                Err(Error::NoSpace) => {
                    full += 1;
                    drop(fs.unlink(Ino::ROOT, format!("r{round}-{i}").as_bytes()));
                    break;
                }
                Err(e) => panic!("round {round} file {i}: {e}"),
            }
        }
        w.pass(2_000_000_000);
        fs.tick().unwrap();
        for old in 0..=round {
            for i in (old as usize % 2..900).step_by(2) {
                match fs.unlink(Ino::ROOT, format!("r{old}-{i}").as_bytes()) {
                    Ok(()) | Err(Error::NotFound) => {}
                    Err(e) => panic!("unlink in round {round}: {e}"),
                }
            }
        }
        w.pass(2_000_000_000);
        fs.tick().unwrap();
    }
    assert!(full > 0, "the volume was never full");
    assert!(fs.counters().moved_blocks > 0, "nothing was moved: {:?}", fs.counters());
    for round in 0..6u8 {
        for i in 0..900 {
            if let Ok(f) = fs.lookup(At::Live, Ino::ROOT, format!("r{round}-{i}").as_bytes()) {
                assert_eq!(fs.read(At::Live, f.ino, 0, 50_000).unwrap(), vec![round; 40_000], "r{round}-{i}");
            }
        }
    }
    fs.close().unwrap();
    drop(fs);
    let fs = w.open();
    let mut names = Vec::new();
    fs.readdir(At::Live, Ino::ROOT, 2, &mut |e| {
        names.push(e.name);
        true
    })
    .unwrap();
    for name in names {
        fs.unlink(Ino::ROOT, &name).unwrap();
    }
    let usage = fs.usage();
    assert!(usage.available_blocks > usage.total_blocks / 3 * 2, "{usage:?}");
}

#[test]
fn what_a_truncation_cut_off_never_comes_back() {
    let w = World::new(32 << 20);
    let fs = w.open();
    for (name, bytes) in [(b"a", 20_000), (b"b", 3000), (b"c", 6 << 20)] {
        let f = fs.create(Ino::ROOT, name, &file(0o600)).unwrap();
        fs.write(f.ino, 0, &vec![7; bytes], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
        for size in [0, bytes as u64] {
            fs.setattr(f.ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
            fs.fsync_wait(f.ino).unwrap();
            assert_eq!(fs.getattr(At::Live, f.ino).unwrap().blocks_512, 0);
        }
        assert_eq!(fs.read(At::Live, f.ino, 0, bytes).unwrap(), vec![0; bytes]);
    }
}

/// A window of extents of one block each, all that one can have, and writes over all of them, from their middle and to it.
#[test]
fn what_is_written_over_many_pieces_takes_their_place() {
    const BLOCKS: u64 = 256;
    let w = World::new(64 << 20);
    let fs = w.open();
    let ino = fs.create(Ino::ROOT, b"f", &file(0o644)).unwrap().ino;
    let put = |block: u64, blocks: u64, with: u8| {
        fs.write(ino, block * 4096, &vec![with; blocks as usize * 4096], 0).unwrap();
        fs.fsync_wait(ino).unwrap();
    };
    let read = |at| fs.read(at, ino, 0, 2 * BLOCKS as usize * 4096).unwrap();
    let mut model = vec![0; 2 * BLOCKS as usize];
    let mut past = Vec::new();
    // So that something lies behind the window, and begins where that ends.
    put(BLOCKS, BLOCKS, 9);
    model[BLOCKS as usize..].fill(9);
    for (round, (first, blocks)) in [(0, BLOCKS), (3, BLOCKS - 3), (0, BLOCKS - 5), (7, 1)].into_iter().enumerate() {
        for block in (0..BLOCKS).step_by(2).chain((1..BLOCKS).step_by(2)) {
            put(block, 1, block as u8);
            model[block as usize] = block as u8;
        }
        let with = 100 + round as u8;
        put(first, blocks, with);
        model[first as usize..][..blocks as usize].fill(with);
        let bytes: Vec<u8> = model.iter().flat_map(|b| [*b; 4096]).collect();
        assert!(read(At::Live) == bytes, "round {round}");
        assert_eq!(fs.getattr(At::Live, ino).unwrap().blocks_512, 2 * BLOCKS * 8);
        past.push((fs.checkpoint_create(None).unwrap().cno, bytes));
    }
    past.iter().for_each(|(cno, bytes)| assert!(read(At::Past(*cno)) == *bytes, "checkpoint {cno}"));
    fs.close().unwrap();
    drop(fs);
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let report = check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let fs = w.open();
    let (_, last) = past.last().unwrap();
    assert!(fs.read(At::Live, ino, 0, last.len()).unwrap() == *last);
}

#[test]
fn what_is_cut_off_takes_no_blocks_any_more() {
    let w = World::new(32 << 20);
    let fs = w.open();
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    fs.write(ino, 0, &vec![1; 400 << 10], 0).unwrap();
    fs.sync_all().unwrap();
    let blocks = || fs.getattr(At::Live, ino).unwrap().blocks_512 / 8;
    assert_eq!(blocks(), 100);
    fs.allocate(ino, AllocateMode::Punch, 40 << 10, 40 << 10).unwrap();
    assert_eq!(blocks(), 90);
    fs.write(ino, 40 << 10, &[1; 4096], 0).unwrap();
    // Twice, and nothing else the second time.
    for _ in 0..2 {
        fs.allocate(ino, AllocateMode::Punch, 44 << 10, 40 << 10).unwrap();
        assert_eq!(blocks(), 90);
    }
    fs.setattr(ino, &SetAttr { size: Some(200 << 10), ..SetAttr::default() }).unwrap();
    assert_eq!(blocks(), 40);
    fs.sync_all().unwrap();
    assert_eq!(blocks(), 40);
    fs.close().unwrap();
}

/// What nobody syncs is on the device when its time is over, not only begun to be written: a commit takes its time, and so do ticks.
#[test]
fn what_was_received_is_committed_before_its_time_is_over() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.write(f.ino, 0, b"received", 0).unwrap();
    let writes = w.device.counters().writes;
    w.pass(700_000_000);
    fs.commit_due().unwrap();
    assert_eq!(w.device.counters().writes, writes, "more may come that shares the commit");
    w.pass(200_000_000);
    fs.commit_due().unwrap();
    drop(fs);
    let fs = w.open();
    let f = fs.lookup(At::Live, Ino::ROOT, b"f").unwrap();
    assert_eq!(fs.read(At::Live, f.ino, 0, 100).unwrap(), b"received");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "NotFound")]
fn a_commit_that_comes_late_is_noticed() {
    let late = nenrin_core::breaks::Break::CommitsLate;
    nenrin_core::breaks::with(late, what_was_received_is_committed_before_its_time_is_over);
}

/// A hash that as many names have as there can be refuses one more, and nothing else.
#[cfg(feature = "breaks")]
#[test]
fn names_that_collide_end_no_writing() {
    let hash_key = nenrin_core::breaks::COLLIDING;
    let options = nenrin_core::MkfsOptions { hash_key, ..nenrin_core::MkfsOptions::default() };
    let w = World::with(64 << 20, &options);
    let fs = w.open();
    let mut refused = Vec::new();
    let mut made = Vec::new();
    for n in 0..400_u32 {
        let name = format!("n{n}").into_bytes();
        match fs.create(Ino::ROOT, &name, &file(0o600)) {
            Ok(attr) => made.push((name, attr.ino)),
            Err(Error::NoSpace) => refused.push(name),
            Err(e) => panic!("{e}"),
        }
    }
    assert!(made.len() > 50 && refused.len() > 50 && fs.failed().is_none(), "{}, {}", made.len(), refused.len());
    let (first, ino) = made.first().unwrap();
    let full = refused.first().unwrap();
    assert!(matches!(fs.rename(Ino::ROOT, first, Ino::ROOT, full, RenameMode::NoReplace), Err(Error::NoSpace)));
    assert!(matches!(fs.link(*ino, Ino::ROOT, full), Err(Error::NoSpace)));
    // What has the name makes room for it.
    let (last, _) = made.last().unwrap();
    fs.rename(Ino::ROOT, first, Ino::ROOT, last, RenameMode::Replace).unwrap();
    fs.sync_all().unwrap();
    assert_eq!(fs.lookup(At::Live, Ino::ROOT, last).unwrap().ino, *ino);
    for (name, _) in &made[1..] {
        fs.unlink(Ino::ROOT, name).unwrap();
    }
    fs.create(Ino::ROOT, full, &file(0o600)).unwrap();
    fs.close().unwrap();
}
