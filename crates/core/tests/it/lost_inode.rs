//! P2, P4: the leaf that is lost while the log builds on it held an inode, and content or names of it are in other leaves:
//! a repair applies the log to what is left, so that nothing reads as what it never was, and nothing goes that has a name.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::applied::{BLOCK, rot};
use crate::common::{World, dir, file};
use crate::lost_leaf::{block, cut, mounted_read_only, repaired, settle};
use nenrin_core::format::key::{Key, Kind};
use nenrin_core::format::{BLOCK_BYTES, Ino};
use nenrin_core::repair::{Loss, LossKind, RepairReport};
use nenrin_core::{AllocateMode, At, Error, Fs, RenameMode, SetAttr, XattrMode};
use std::sync::Arc;

/// Extents of four blocks, with holes of four between them: several leaves of them.
const EXTENTS: u64 = 1000;
const BLOCKS: u64 = EXTENTS * 8;
/// An extent far behind the leaf with the inode.
const FAR: u64 = 8 * 750;

/// What the file should have: a byte for each of its blocks.
struct File<'a> {
    fs: &'a Fs,
    ino: Ino,
    blocks: Vec<u8>,
    written: Vec<u64>,
}

impl File<'_> {
    fn write(&mut self, at: u64, blocks: u64, byte: u8) {
        let bytes = vec![byte; blocks as usize * BLOCK_BYTES];
        self.fs.write(self.ino, at * BLOCK, &bytes, 0).unwrap();
        self.blocks.resize(self.blocks.len().max((at + blocks) as usize), 0);
        self.blocks[at as usize..(at + blocks) as usize].fill(byte);
        self.written.extend(at..at + blocks);
    }

    fn fill(&mut self, byte: u8) {
        (0..EXTENTS).for_each(|n| self.write(n * 8, 4, byte));
        self.written.clear();
    }

    fn truncate(&mut self, blocks: u64) {
        let size = SetAttr { size: Some(blocks * BLOCK), ..SetAttr::default() };
        self.fs.setattr(self.ino, &size).unwrap();
        self.blocks.resize(blocks as usize, 0);
        self.written.retain(|n| *n < blocks);
    }

    fn punch(&mut self, at: u64, blocks: u64) {
        self.fs.allocate(self.ino, AllocateMode::Punch, at * BLOCK, blocks * BLOCK).unwrap();
        self.blocks[at as usize..(at + blocks) as usize].fill(0);
    }
}

/// A settled volume with a file `m` among others, its inode read.
fn volume(forks: u32) -> (World, Arc<Fs>, Ino) {
    let w = World::new(128 << 20);
    let fs = w.open();
    for i in 0..400 {
        let x = fs.create(Ino::ROOT, format!("before {i}").as_bytes(), &file(0o600)).unwrap().ino;
        fs.write(x, 0, &[1; 9000], 0).unwrap();
    }
    let m = fs.create(Ino::ROOT, b"m", &file(0o600)).unwrap().ino;
    for fork in 0..=forks {
        let mut f = File { fs: &fs, ino: m, blocks: Vec::new(), written: Vec::new() };
        f.truncate(0);
        f.fill(fork as u8 + 1);
        fs.sync_all().unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    settle(&w);
    let fs = w.open();
    assert!((0..BLOCKS).all(|n| block(&fs, m, n).is_some()));
    (w, fs, m)
}

fn rot_inode(w: &World, ino: Ino) {
    rot(w, |key| *key == Key::new(ino, Kind::Inode, 0, 0));
}

type Change = fn(&mut File<'_>);

const CHANGES: [(&str, Change); 12] = [
    ("the first block of an extent", |f| f.write(FAR, 1, 9)),
    ("a block in the midst of one", |f| f.write(FAR + 2, 1, 9)),
    ("the last block of one", |f| f.write(FAR + 3, 1, 9)),
    ("over two extents", |f| f.write(FAR + 2, 8, 9)),
    ("a hole", |f| f.write(FAR + 4, 2, 9)),
    ("many", |f| (1..EXTENTS).step_by(6).for_each(|n| f.write(n * 8 + n % 5, 2, 9))),
    ("cut short", |f| f.truncate(FAR)),
    ("cut short within an extent, and long again", |f| {
        f.truncate(FAR + 2);
        f.truncate(FAR + 40);
    }),
    ("an extent punched", |f| f.punch(FAR, 4)),
    ("a part of one punched", |f| f.punch(FAR + 1, 2)),
    ("emptied, and less written", |f| {
        f.truncate(0);
        f.write(3, 5, 9);
    }),
    ("twice", |f| {
        f.write(FAR + 2, 1, 8);
        f.fs.fsync_wait(f.ino).unwrap();
        f.write(FAR, 3, 9);
    }),
];

/// Nothing reads as what it was not; what was written since is there, and what lay in other leaves.
fn assert_content(fs: &Fs, f: &(Ino, Vec<u8>, Vec<u64>), what: &str) {
    let (ino, blocks, written) = f;
    let size = fs.getattr(At::Live, *ino).unwrap().size;
    assert_eq!(size, blocks.len() as u64 * BLOCK, "{what}");
    let mut lost = 0;
    for (n, byte) in (0..).zip(blocks) {
        match block(fs, *ino, n) {
            Some(bytes) => assert!(bytes == [*byte; BLOCK_BYTES], "{what}: block {n} is {}, not {byte}", bytes[0]),
            None => {
                assert!(!written.contains(&n), "{what}: block {n} was written and is lost");
                lost += 1;
            }
        }
    }
    assert!(lost < BLOCKS / 2, "{what}: {lost} blocks are lost");
}

fn changes_of_a_file_without_inode(forks: u32) {
    for (what, change) in CHANGES {
        let (w, fs, m) = volume(forks);
        rot_inode(&w, m);
        let mut f = File { fs: &fs, ino: m, blocks: vec![0; BLOCKS as usize], written: Vec::new() };
        for n in 0..EXTENTS as usize {
            f.blocks[n * 8..n * 8 + 4].fill(forks as u8 + 1);
        }
        f.blocks.truncate((EXTENTS as usize - 1) * 8 + 4);
        change(&mut f);
        fs.sync_all().unwrap();
        let f = (m, f.blocks, f.written);
        let device = cut(&w);
        drop(mounted_read_only(&device, false));
        let (fs, report) = repaired(&device);
        assert!(report.losses.iter().all(|l| l.kind != LossKind::ChangeLost), "{what}: {:?}", report.losses);
        assert_content(&fs, &f, what);
        assert_found(&fs, m);
        fs.close().unwrap();
    }
}

#[test]
fn the_log_changes_what_is_left_of_a_file_without_inode() {
    changes_of_a_file_without_inode(0);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the first block of an extent: block 6001 is 0, not 1")]
fn changes_of_a_file_whose_extents_are_not_seen_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::RegainedBlind, || changes_of_a_file_without_inode(0));
}

/// Its extents are in another fork than that of a new file.
#[test]
fn the_log_changes_what_is_left_of_a_file_that_was_emptied_before() {
    changes_of_a_file_without_inode(2);
}

#[test]
fn a_small_file_takes_the_place_of_a_large_one_without_inode() {
    for forks in [0, 1] {
        let (w, fs, m) = volume(forks);
        rot_inode(&w, m);
        fs.setattr(m, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        fs.write(m, 0, b"new", 0).unwrap();
        fs.sync_all().unwrap();
        let device = cut(&w);
        let (fs, report) = repaired(&device);
        assert!(report.losses.iter().all(|l| l.kind != LossKind::ChangeLost), "{:?}", report.losses);
        assert_eq!(fs.read(At::Live, m, 0, 100).unwrap(), b"new");
        assert_found(&fs, m);
        fs.close().unwrap();
    }
}

fn found(fs: &Fs, ino: Ino) -> bool {
    let dir = fs.lookup(At::Live, Ino::ROOT, b"lost+found");
    dir.is_ok_and(|d| fs.lookup(At::Live, d.ino, format!("#{ino}").as_bytes()).is_ok_and(|a| a.ino == ino))
}

fn assert_found(fs: &Fs, ino: Ino) {
    assert!(found(fs, ino), "what is left of inode {ino} is gone");
    assert_eq!(fs.getattr(At::Live, ino).unwrap().nlink, 1);
}

/// What the report says is in lost+found is there.
fn assert_true(fs: &Fs, report: &RepairReport) {
    for l in &report.losses {
        if let Some((ino, _)) = l.text.strip_prefix("its inode ").and_then(|t| t.split_once(" is lost; what was found"))
        {
            assert!(found(fs, Ino(ino.parse().unwrap())), "told, and not true: {l}");
        }
        assert!(!l.text.contains("names are lost"), "{l}");
    }
    assert!(report.losses.iter().all(|l| l.kind != LossKind::ChangeLost), "{:?}", report.losses);
}

/// Mounted again; the inode rots after it was read, and a block is written and synced.
fn written_behind(w: &World, fs: Arc<Fs>, m: Ino) -> Arc<Fs> {
    fs.close().unwrap();
    drop(fs);
    settle(w);
    let fs = w.open();
    assert!(block(&fs, m, FAR).is_some());
    rot_inode(w, m);
    fs.write(m, FAR * BLOCK, &[9; BLOCK_BYTES], 0).unwrap();
    fs.fsync_wait(m).unwrap();
    fs
}

/// The owner is lost with the inode, and the one that is made anew is root: no program runs as root for that.
fn rights_without_inode() {
    let (w, fs, m) = volume(0);
    let fs = written_behind(&w, fs, m);
    fs.setattr(m, &SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
    fs.setxattr(m, b"security.capability", &[1; 3000], XattrMode::Any).unwrap();
    fs.setxattr(m, b"user.kept", b"kept", XattrMode::Any).unwrap();
    fs.sync_all().unwrap();
    let (fs, report) = repaired(&cut(&w));
    assert_eq!(fs.getattr(At::Live, m).unwrap().mode & 0o7777, 0o755);
    let capability = fs.getxattr(At::Live, m, b"security.capability");
    assert!(matches!(capability, Err(Error::NoAttribute)), "a program whose owner is lost has capabilities");
    assert_eq!(fs.getxattr(At::Live, m, b"user.kept").unwrap(), b"kept");
    let is_told = |l: &Loss| l.ino == Some(m) && l.kind == LossKind::AttributesLost && l.text.contains("capabilities");
    assert!(report.losses.iter().any(is_told), "{:?}", report.losses);
    fs.close().unwrap();
}

#[test]
fn a_file_without_inode_gives_nobody_rights() {
    rights_without_inode();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a program whose owner is lost has capabilities")]
fn capabilities_of_a_file_without_inode_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::CapabilitiesStay, rights_without_inode);
}

/// Two names; one goes after content was written and synced.
fn one_of_two_names_goes(go: fn(&Fs, Ino), gone: bool) {
    let (w, fs, m) = volume(0);
    fs.link(m, Ino::ROOT, b"m2").unwrap();
    let fs = written_behind(&w, fs, m);
    go(&fs, m);
    fs.sync_all().unwrap();
    let device = cut(&w);
    drop(mounted_read_only(&device, false));
    let (fs, report) = repaired(&device);
    assert_true(&fs, &report);
    assert_eq!(found(&fs, m), !gone, "content goes with its last name only: {:?}", report.losses);
    if !gone {
        assert_eq!(block(&fs, m, FAR).unwrap(), [9; BLOCK_BYTES]);
        assert_eq!(block(&fs, m, FAR + 1).unwrap(), [1; BLOCK_BYTES]);
        assert_found(&fs, m);
    }
    fs.close().unwrap();
}

fn content_of_two_names() {
    one_of_two_names_goes(|fs, _| fs.unlink(Ino::ROOT, b"m").unwrap(), false);
    one_of_two_names_goes(
        |fs, _| {
            let x = fs.create(Ino::ROOT, b"x", &file(0o600)).unwrap().ino;
            fs.write(x, 0, b"x", 0).unwrap();
            fs.rename(Ino::ROOT, b"x", Ino::ROOT, b"m", RenameMode::Replace).unwrap();
        },
        false,
    );
    one_of_two_names_goes(
        |fs, m| {
            fs.link(m, Ino::ROOT, b"m3").unwrap();
            ["m", "m2"].iter().for_each(|n| fs.unlink(Ino::ROOT, n.as_bytes()).unwrap());
        },
        false,
    );
}

#[test]
fn content_stays_while_it_has_a_name() {
    content_of_two_names();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "content goes with its last name only")]
fn content_that_goes_with_one_of_its_names_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::RegainedOneName, content_of_two_names);
}

/// No directory had entries in the leaf: all names are known.
#[test]
fn content_goes_with_its_last_name() {
    one_of_two_names_goes(|fs, _| ["m", "m2"].iter().for_each(|n| fs.unlink(Ino::ROOT, n.as_bytes()).unwrap()), true);
}

/// The leaves held the entries of a directory. What the log does to names in it is done, each file being there.
fn names_in_lost_leaves() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let d = fs.create(Ino::ROOT, b"d", &dir()).unwrap().ino;
    let make = |name: String| {
        let ino = fs.create(d, name.as_bytes(), &file(0o640)).unwrap().ino;
        fs.write(ino, 0, &[ino.0 as u8; 9000], 0).unwrap();
        ino
    };
    let files: Vec<Ino> = (0..1500).map(|i| make(format!("f{i}"))).collect();
    fs.close().unwrap();
    drop(fs);
    settle(&w);
    let fs = w.open();
    let name = |i: usize| format!("f{i}").into_bytes();
    (0..1500).for_each(|i| assert_eq!(fs.lookup(At::Live, d, &name(i)).unwrap().ino, files[i]));
    rot(&w, |key| key.ino == d.0 && key.kind == Kind::Dirent);
    fs.unlink(d, &name(1001)).unwrap();
    fs.rename(d, &name(1002), d, b"moved", RenameMode::Replace).unwrap();
    fs.rename(d, &name(1003), d, &name(1004), RenameMode::Replace).unwrap();
    fs.rename(d, &name(1005), d, &name(1006), RenameMode::Exchange).unwrap();
    let new = fs.create(d, b"new", &file(0o600)).unwrap().ino;
    fs.sync_all().unwrap();
    let device = cut(&w);
    drop(mounted_read_only(&device, false));
    let (fs, report) = repaired(&device);
    assert_true(&fs, &report);
    let named = |name: &[u8]| match fs.lookup(At::Live, d, name) {
        Ok(a) => Some(a.ino),
        Err(Error::NotFound) => None,
        Err(e) => panic!("{e}"),
    };
    assert_eq!(named(b"new"), Some(new));
    assert_eq!(named(&name(1001)), None, "what was removed is back");
    assert_eq!((named(&name(1002)), named(b"moved")), (None, Some(files[1002])));
    assert_eq!((named(&name(1003)), named(&name(1004))), (None, Some(files[1003])));
    assert_eq!((named(&name(1005)), named(&name(1006))), (Some(files[1006]), Some(files[1005])));
    (1007..1500).for_each(|i| assert_eq!(named(&name(i)), Some(files[i])));
    for gone in [1001, 1004] {
        assert!(!found(&fs, files[gone]) && fs.getattr(At::Live, files[gone]).is_err(), "what was replaced is back");
    }
    assert_eq!(fs.read(At::Live, files[1003], 0, 10_000).unwrap(), [files[1003].0 as u8; 9000]);
    fs.close().unwrap();
}

#[test]
fn what_the_log_does_to_names_in_lost_leaves_is_done() {
    names_in_lost_leaves();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "ChangeLost")]
fn names_in_lost_leaves_that_are_not_made_again_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::LostNotRegained, names_in_lost_leaves);
}

/// Of a small file whose inode and content were in the leaf nothing is left but names: they are told, and nothing is
/// there that reads as if it were empty.
#[test]
fn a_lost_file_that_is_moved_is_no_empty_one() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let make = |name: String| {
        let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
        fs.write(ino, 0, b"small", 0).unwrap();
        ino
    };
    let files: Vec<Ino> = (0..2000).map(|i| make(format!("f{i}"))).collect();
    fs.close().unwrap();
    drop(fs);
    settle(&w);
    let fs = w.open();
    let x = files[1000];
    assert_eq!(fs.read(At::Live, x, 0, 10).unwrap(), b"small");
    rot_inode(&w, x);
    fs.rename(Ino::ROOT, b"f1000", Ino::ROOT, b"moved", RenameMode::Replace).unwrap();
    fs.sync_all().unwrap();
    let device = cut(&w);
    let (fs, report) = repaired(&device);
    assert_true(&fs, &report);
    assert!(fs.getattr(At::Live, x).is_err(), "a lost file reads as an empty one");
    assert!(report.losses.iter().any(|l| l.kind == LossKind::NameLost && l.path.as_deref() == Some(b"/moved")));
    fs.close().unwrap();
}
