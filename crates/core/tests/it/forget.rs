//! Forgetting (decision 0016): afterwards no device holds 16 bytes of what was forgotten, and
//! everything else is as it was.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::{BLOCK_BYTES, Ino};
use nenrin_core::{
    At, CheckOptions, Error, Fs, MkfsOptions, MountOptions, NewInode, RenameMode, SetAttr, XattrMode, check,
};
use nenrin_device::{BlockDevice, Fault, Faulty, MemDevice};
use std::sync::Arc;

const ROOT: Ino = Ino::ROOT;

/// Bytes that nothing else on a volume looks like: 16 in a row with the same high half are no accident.
fn secret(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = nenrin_device::Prng::new(seed);
    (0..bytes).map(|_| 0xe0 | random.below(16) as u8).collect()
}

/// Where 16 bytes of secrets stand on a device.
fn leaks(device: &dyn BlockDevice) -> Vec<u64> {
    let bytes = device.geometry().bytes;
    let all = device.read(0, bytes as usize).unwrap();
    let (mut found, mut run) = (Vec::new(), 0);
    for (i, b) in all.iter().enumerate() {
        run = if b & 0xf0 == 0xe0 { run + 1 } else { 0 };
        if run == 16 {
            found.push(i as u64 - 15);
        }
    }
    found
}

fn plain(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = nenrin_device::Prng::new(seed);
    (0..bytes).map(|_| random.below(0x80) as u8).collect()
}

struct Secrets {
    w: World,
    fs: Arc<Fs>,
    seed: u64,
}

impl Secrets {
    fn new() -> Self {
        let w = World::with(48 << 20, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
        let fs = w.open();
        Self { w, fs, seed: 0 }
    }
    fn next(&mut self, bytes: usize) -> Vec<u8> {
        self.seed += 1;
        secret(bytes, self.seed)
    }
    fn make(&self, parent: Ino, name: &[u8]) -> Ino {
        self.w.pass(1000);
        self.fs.create(parent, name, &file(0o600)).unwrap().ino
    }
    fn fill(&mut self, ino: Ino, offset: u64, bytes: usize) {
        let data = self.next(bytes);
        self.fs.write(ino, offset, &data, 0).unwrap();
        self.fs.fsync_wait(ino).unwrap();
    }
    fn cut(&self, name: Option<&[u8]>) {
        self.w.pass(1_000_000_000);
        self.fs.checkpoint_create(name).unwrap();
    }
    fn wipe(&self) {
        wipe(&self.fs);
    }
    fn leaks(&self) -> Vec<u64> {
        leaks(self.w.device.as_ref())
    }
    fn check(&self) {
        let devices: Vec<Arc<dyn BlockDevice>> = vec![self.w.device.clone()];
        let report = check(&devices, &CheckOptions { data: true }, &mut |_| {}).unwrap();
        let errors: Vec<String> = report
            .findings
            .iter()
            .filter(|f| f.what.severity() == nenrin_core::check::Severity::Error)
            .map(ToString::to_string)
            .collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

/// What the path stands for, as it is listed at this moment.
pub fn forget(fs: &Fs, path: &[&[u8]]) -> Result<u64, Error> {
    let plan = fs.forget_plan(path)?;
    fs.forget(path, &plan.inodes)
}

fn wipe(fs: &Fs) {
    for _ in 0..20_000 {
        match fs.forget_step(1 << 20).unwrap() {
            None => return,
            Some(status) => assert_eq!(status.waits, None, "{status:?}"),
        }
    }
    panic!("no end: {:?}", fs.forget_status());
}

/// Removes a name, and all below it.
fn remove(fs: &Fs, parent: Ino, name: &[u8]) {
    let attr = fs.lookup(At::Live, parent, name).unwrap();
    if attr.kind() != nenrin_core::FileKind::Directory {
        return fs.unlink(parent, name).unwrap();
    }
    let mut below = Vec::new();
    fs.readdir(At::Live, attr.ino, 0, &mut |e| {
        below.push(e.name);
        true
    })
    .unwrap();
    below.iter().filter(|n| *n != b"." && *n != b"..").for_each(|n| remove(fs, attr.ino, n));
    fs.rmdir(parent, name).unwrap();
}

/// What no state ever had is nothing to be forgotten, and what it left is wiped with all that is free.
fn what_no_state_had_is_wiped() {
    let mut s = Secrets::new();
    let kept = s.make(ROOT, b"kept");
    s.fs.write(kept, 0, &plain(200_000, 1), 0).unwrap();
    s.cut(Some(b"one"));
    let name = s.next(40);
    let gone = s.make(ROOT, &name);
    s.fill(gone, 0, 300_000);
    s.fs.retain(gone);
    s.fs.unlink(ROOT, &name).unwrap();
    assert!(matches!(s.fs.forget_free(), Err(Error::ForgetInUse(_))));
    s.fs.release(gone);
    assert!(matches!(s.fs.forget_plan(&[&name]), Err(Error::NotFound)));
    assert!(matches!(s.fs.forget(&[&name], &[]), Err(Error::NotFound)));
    let before = s.fs.usage().inodes;
    s.fs.forget_free().unwrap();
    s.wipe();
    assert_eq!(s.leaks(), Vec::<u64>::new(), "what no state had is on the device");
    assert_eq!((s.fs.forget_status(), s.fs.usage().inodes), (None, before));
    let one = s.fs.checkpoint_find(b"one").unwrap().cno;
    for at in [At::Live, At::Past(one)] {
        assert_eq!(s.fs.read(at, kept, 0, 300_000).unwrap(), plain(200_000, 1));
    }
    s.fs.close().unwrap();
    s.check();
}

#[test]
fn what_no_state_had_is_wiped_with_all_that_is_free() {
    what_no_state_had_is_wiped();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what no state had is on the device")]
fn what_no_state_had_and_is_not_wiped_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ForgetFreeSkipped, what_no_state_had_is_wiped);
}

#[test]
fn what_was_overwritten_renamed_and_snapshotted_is_gone() {
    let mut s = Secrets::new();
    let name = s.next(40);
    let (a, b) = (s.make(ROOT, &name), s.make(ROOT, b"other"));
    s.fill(a, 0, 300_000);
    s.fs.write(b, 0, &plain(200_000, 1), 0).unwrap();
    s.fs.fsync_wait(b).unwrap();
    s.cut(Some(b"one"));
    s.fill(a, 4096, 90_000);
    s.fs.write(b, 50_000, &plain(3000, 2), 0).unwrap();
    s.cut(None);
    let newer = s.next(30);
    s.fs.rename(ROOT, &name, ROOT, &newer, RenameMode::Replace).unwrap();
    s.cut(None);
    s.fill(a, 200_000, 60_000);
    let mut before = Vec::new();
    for c in s.fs.checkpoints() {
        before.push(s.fs.read(At::Past(c.cno), b, 0, 300_000).unwrap());
    }
    assert!(s.leaks().len() > 5);
    let plan = s.fs.forget_plan(&[&newer]).unwrap();
    assert_eq!(plan.inodes, vec![a]);
    assert_eq!(plan.snapshots.len(), 1);
    assert_eq!(plan.names.iter().filter(|n| n.is_now).count(), 1);
    assert_eq!(plan.names.len(), 2, "the name it had, too: {:?}", plan.names);
    let refused = s.fs.forget(&[&newer], &plan.inodes).unwrap_err().to_string();
    assert!(refused.contains("remove it first"), "{refused}");
    s.fs.unlink(ROOT, &newer).unwrap();
    assert_eq!(s.fs.forget(&[&newer], &plan.inodes).unwrap(), 1);
    // At once, for everybody who looks.
    for c in s.fs.checkpoints() {
        assert!(s.fs.getattr(At::Past(c.cno), a).is_err());
        for n in [&name, &newer] {
            assert!(matches!(s.fs.lookup(At::Past(c.cno), ROOT, n), Err(Error::NotFound)));
        }
    }
    assert!(matches!(s.fs.history(&[&newer]), Err(Error::NotFound)));
    s.wipe();
    assert_eq!(s.leaks(), Vec::<u64>::new());
    assert_eq!(s.fs.checkpoints().len(), before.len());
    for (c, was) in s.fs.checkpoints().iter().zip(&before) {
        assert_eq!(&s.fs.read(At::Past(c.cno), b, 0, 300_000).unwrap(), was);
    }
    s.fs.close().unwrap();
    assert_eq!(s.leaks(), Vec::<u64>::new());
    s.check();
}

#[test]
fn what_came_there_since_it_was_listed_is_not_forgotten_unseen() {
    let mut s = Secrets::new();
    let a = s.make(ROOT, b"a");
    s.fill(a, 0, 30_000);
    s.cut(None);
    let plan = s.fs.forget_plan(&[b"a"]).unwrap();
    s.fs.unlink(ROOT, b"a").unwrap();
    let late = s.make(ROOT, b"a");
    s.fill(late, 0, 30_000);
    s.cut(None);
    s.fs.unlink(ROOT, b"a").unwrap();
    s.cut(None);
    let refused = s.fs.forget(&[b"a"], &plan.inodes).unwrap_err().to_string();
    assert!(refused.contains("list it again"), "{refused}");
    assert_eq!(s.fs.forget_status(), None);
    let states = s.fs.history(&[b"a"]).unwrap();
    assert!([a, late].iter().all(|ino| states.iter().any(|n| n.attr.is_some_and(|attr| attr.ino == *ino))));
    assert_eq!(forget(&s.fs, &[b"a"]).unwrap(), 2);
    s.wipe();
    assert_eq!(s.leaks(), Vec::<u64>::new());
}

#[test]
fn everything_that_was_ever_below_a_directory_is_gone() {
    let mut s = Secrets::new();
    let name = s.next(60);
    let top = s.fs.create(ROOT, &name, &dir()).unwrap().ino;
    let sub_name = s.next(20);
    let sub = s.fs.create(top, &sub_name, &dir()).unwrap().ino;
    let keep = s.make(ROOT, b"keep");
    s.fs.write(keep, 0, &plain(400_000, 5), 0).unwrap();
    // Small content, an attribute in several pieces, a link.
    let small_name = s.next(25);
    let small = s.make(sub, &small_name);
    s.fill(small, 0, 900);
    let attribute = [b"user.".to_vec(), s.next(30)].concat();
    let value = s.next(9000);
    s.fs.setxattr(small, &attribute, &value, XattrMode::Any).unwrap();
    let target = s.next(500);
    let link = NewInode { mode: 0o120_777, uid: 0, gid: 0, rdev: 0, target: &target };
    s.fs.create(top, b"link", &link).unwrap();
    s.cut(Some(b"first"));
    // Saved as editors do, so that nobody knows the inodes between.
    for _ in 0..5 {
        let new = s.make(sub, b"new");
        s.fill(new, 0, 20_000);
        s.fs.rename(sub, b"new", sub, &small_name, RenameMode::Replace).unwrap();
        s.fs.write(keep, 100_000, &plain(5000, 6), 0).unwrap();
    }
    s.cut(None);
    // Moved out of it, and linked elsewhere.
    let moved = s.make(top, b"moved");
    s.fill(moved, 0, 5000);
    s.fs.link(moved, ROOT, b"hard link").unwrap();
    s.cut(None);
    s.fs.rename(top, b"moved", ROOT, b"outside", RenameMode::Replace).unwrap();
    s.fill(moved, 5000, 5000);
    let plan = s.fs.forget_plan(&[&name]).unwrap();
    let now: Vec<&[u8]> = plan.names.iter().filter(|n| n.is_now).map(|n| &n.path[..]).collect();
    assert_eq!(now, [&b"hard link"[..], b"outside", &name]);
    for n in now {
        remove(&s.fs, ROOT, n);
    }
    assert_eq!(s.fs.forget(&[&name], &plan.inodes).unwrap() as usize, plan.inodes.len());
    s.wipe();
    assert_eq!(s.leaks(), Vec::<u64>::new());
    let want = s.fs.read(At::Live, keep, 0, 400_000).unwrap();
    s.fs.close().unwrap();
    s.check();
    let fs = s.w.open();
    assert_eq!(fs.read(At::Live, keep, 0, 400_000).unwrap(), want);
    let first = fs.checkpoint_find(b"first").unwrap().cno;
    assert_eq!(fs.read(At::Past(first), keep, 0, 400_000).unwrap().len(), 400_000);
}

#[test]
fn after_a_crash_the_next_mount_goes_on() {
    let mut s = Secrets::new();
    let a = s.make(ROOT, b"a");
    s.fill(a, 0, 100_000);
    s.cut(Some(b"one"));
    s.fs.unlink(ROOT, b"a").unwrap();
    forget(&s.fs, &[b"a"]).unwrap();
    let fs = s.w.open();
    assert!(fs.forget_status().is_some(), "it is on the list");
    assert!(!s.leaks().is_empty());
    for _ in 0..600 {
        s.w.pass(100_000_000);
        fs.tick().unwrap();
    }
    assert_eq!(fs.forget_status(), None);
    assert_eq!(s.leaks(), Vec::<u64>::new());
}

#[test]
fn shared_blocks_stay_with_whom_they_belong_to() {
    let mut s = Secrets::new();
    let a = s.make(ROOT, b"a");
    // Coarse checksums: the copy of a part covers blocks that only the other has.
    let shared = plain(2 << 20, 9);
    s.fs.write(a, 0, &shared, 0).unwrap();
    s.fs.sync_all().unwrap();
    let copy = s.make(ROOT, b"copy");
    s.fs.copy_range(a, 8192, copy, 0, 12_288, 0).unwrap();
    s.fs.sync_all().unwrap();
    s.fill(a, 100_000, 50_000);
    let plan = s.fs.forget_plan(&[b"a"]).unwrap();
    assert_eq!(plan.shared_with, vec![b"copy".to_vec()]);
    s.fs.unlink(ROOT, b"a").unwrap();
    s.fs.forget(&[b"a"], &plan.inodes).unwrap();
    s.wipe();
    assert_eq!(s.leaks(), Vec::<u64>::new());
    assert_eq!(s.fs.read(At::Live, copy, 0, 20_000).unwrap(), &shared[8192..8192 + 12_288]);
    // What only the forgotten file had of the shared run is gone, too.
    let all = s.w.device.read(0, 48 << 20).unwrap();
    let alone = &shared[8192 - 32..8192];
    assert!(!all.windows(32).any(|w| w == alone), "a block beside the shared ones is left");
    s.fs.close().unwrap();
    s.check();
}

#[test]
fn what_cannot_be_forgotten_is_refused() {
    let mut s = Secrets::new();
    assert!(matches!(forget(&s.fs, &[b"nothing"]), Err(Error::NotFound)));
    assert!(matches!(forget(&s.fs, &[]), Err(Error::Forget(_))));
    let a = s.make(ROOT, b"a");
    s.fill(a, 0, 5000);
    s.cut(None);
    s.fs.retain(a);
    s.fs.unlink(ROOT, b"a").unwrap();
    let refused = forget(&s.fs, &[b"a"]).unwrap_err().to_string();
    assert!(refused.contains("in use"), "{refused}");
    s.fs.release(a);
    forget(&s.fs, &[b"a"]).unwrap();
    s.wipe();
    assert_eq!(s.leaks(), Vec::<u64>::new());
    s.fs.close().unwrap();
    let fs = s.w.open_with(MountOptions { read_only: true, ..MountOptions::default() });
    assert!(matches!(fs.forget(&[b"a"], &[]), Err(Error::ReadOnly)));
}

#[test]
fn others_write_meanwhile() {
    let mut s = Secrets::new();
    let a = s.make(ROOT, b"a");
    s.fill(a, 0, 700_000);
    s.cut(Some(b"one"));
    let b = s.make(ROOT, b"b");
    s.fs.unlink(ROOT, b"a").unwrap();
    forget(&s.fs, &[b"a"]).unwrap();
    let mut round = 0u64;
    while s.fs.forget_step(64 << 10).unwrap().is_some() {
        round += 1;
        assert!(round < 20_000, "no end: {:?}", s.fs.forget_status());
        if round % 3 == 0 {
            s.fs.setattr(b, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
            s.fs.write(b, 0, &plain(30_000, round), 0).unwrap();
            s.fs.fsync_wait(b).unwrap();
        }
        if round % 7 == 0 {
            s.cut(None);
        }
        s.w.pass(10_000_000);
        s.fs.tick().unwrap();
    }
    assert_eq!(s.leaks(), Vec::<u64>::new());
    s.fs.close().unwrap();
    s.check();
}

/// What a snapshot kept of it counts as kept until it is gone, and then no longer.
#[test]
fn what_is_forgotten_is_to_be_had_again() {
    let mut s = Secrets::new();
    let a = s.make(ROOT, b"a");
    s.fill(a, 0, 700_000);
    s.cut(Some(b"one"));
    // Of this no snapshot keeps anything.
    let b = s.make(ROOT, b"b");
    s.fs.write(b, 0, &plain(400_000, 1), 0).unwrap();
    s.cut(None);
    s.fs.write(b, 0, &plain(400_000, 2), 0).unwrap();
    s.fs.unlink(ROOT, b"a").unwrap();
    s.fs.sync_all().unwrap();
    while s.fs.count_named_history().unwrap() {}
    assert!(s.fs.usage().snapshot_blocks >= 170, "{:?}", s.fs.usage());
    forget(&s.fs, &[b"a"]).unwrap();
    assert!(s.fs.forget_status().is_some());
    s.fs.tick().unwrap();
    s.wipe();
    while s.fs.count_named_history().unwrap() {}
    let usage = s.fs.usage();
    assert!(usage.history_blocks >= 97, "{usage:?}");
    assert_eq!(usage.snapshot_blocks, 0, "forgotten, and still kept");
}

/// Of index segments none of the headers is left: flipped, or in sectors that cannot be read.
fn it_ends_without_headers_of_the_index(unreadable: bool) {
    let mut s = Secrets::new();
    let files: Vec<Ino> = (0..1500).map(|i| s.make(ROOT, format!("file {i}").as_bytes())).collect();
    let a = s.make(ROOT, b"a");
    s.fill(a, 0, 100_000);
    s.cut(None);
    s.fs.close().unwrap();
    s.fs = s.w.open();
    // So some nodes in each segment are needed, and others are not.
    s.fs.setattr(files[700], &SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    s.fs.close().unwrap();
    let bytes = s.w.device.inner().snapshot();
    let is_index = |b: &&[u8]| Header::decode(b).is_ok_and(|h| h.header.kind == PartialKind::Index);
    let blocks = bytes.windows(BLOCK_BYTES).step_by(BLOCK_BYTES).enumerate();
    let headers: Vec<u64> = blocks.filter(|(_, b)| is_index(b)).map(|(n, _)| (n * BLOCK_BYTES) as u64).collect();
    assert!(headers.len() > 4, "{}", headers.len());
    let device = Arc::new(Faulty::new(MemDevice::from_bytes(bytes)));
    for at in headers {
        if unreadable {
            device.faults().inject(Fault::FailReads { range: at..at + BLOCK_BYTES as u64 });
        } else {
            device.faults().inject(Fault::FlipReads { range: at..at + 1, mask: 4 });
        }
    }
    let fs = Fs::open(vec![device.clone()], s.w.clock.clone(), MountOptions::default()).unwrap();
    fs.unlink(ROOT, b"a").unwrap();
    fs.sync_all().unwrap();
    assert_eq!(forget(&fs, &[b"a"]).unwrap(), 1);
    wipe(&fs);
    fs.close().unwrap();
    let device = MemDevice::from_bytes(device.inner().snapshot());
    assert_eq!(leaks(&device), Vec::<u64>::new());
}

#[test]
fn headers_of_the_index_that_are_lost_do_not_keep_it_from_ending() {
    it_ends_without_headers_of_the_index(false);
}

#[test]
fn headers_of_the_index_that_cannot_be_read_do_not_keep_it_from_ending() {
    it_ends_without_headers_of_the_index(true);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "cannot be emptied")]
fn nodes_that_only_headers_tell_of_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::HeadersBelieved, || {
        it_ends_without_headers_of_the_index(true);
    });
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "forgotten, and still kept")]
fn what_counts_although_it_is_forgotten_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::ForgottenCounts, what_is_forgotten_is_to_be_had_again);
}
