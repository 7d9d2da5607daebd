//! What the simulator has found in the core, each as the shortest run of calls
//! that shows it. Every call is compared with the model.

use nenrin_core::{At, Error, MountOptions, RenameMode, SetAttr, XattrMode};
use nenrin_device::{BlockDevice, CrashChoice, CrashDisk};
use nenrin_format::items::HISTORY_XATTR;
use nenrin_format::{Cno, Ino};
use nenrin_sim::cli::Core;
use nenrin_sim::clock::VirtualClock;
use nenrin_sim::ops::Op;
use nenrin_sim::run::{Run, Step};
use nenrin_sim::subject::Subject;
use std::sync::Arc;

const FILE: u32 = 0o100_644;
/// The first inode that is made.
const FIRST: u64 = 16;

struct World(Run<Core>);

impl World {
    fn new(options: MountOptions) -> Self {
        let disk = Arc::new(CrashDisk::new(16 << 20));
        let device: Arc<dyn BlockDevice> = disk.clone();
        Self(Run::format(disk, device, 64, options).unwrap())
    }
    fn call(&mut self, op: Op) {
        match self.0.step(&op) {
            Ok(Step::Done) => {}
            other => panic!("{op:?}: {other:?}"),
        }
    }
    fn create(&mut self, name: &[u8]) -> u64 {
        let op = Op::Create { parent: 1, name: name.to_vec(), mode: FILE, uid: 0, gid: 0, rdev: 0, target: Vec::new() };
        self.call(op);
        self.0.newest_inode().unwrap()
    }
    fn write(&mut self, ino: u64, offset: u64, bytes: usize) {
        self.call(Op::Write { ino, offset, bytes, id: 1 });
    }
    fn size(&mut self, ino: u64, size: u64) {
        self.call(Op::SetAttr { ino, set: SetAttr { size: Some(size), ..SetAttr::default() } });
    }
    fn fsync(&mut self, ino: u64) {
        self.call(Op::Fsync { ino, callback: false });
    }
    fn compare(&mut self) {
        self.0.compare_all().unwrap();
    }
}

/// Names changed while content waits: the waiting content carried the change
/// time of before, which stat showed and the commit wrote.
#[test]
fn change_time_of_names_outlives_waiting_content() {
    let mut w = World::new(MountOptions::default());
    let ino = w.create(b"a");
    w.write(ino, 0, 100);
    w.call(Op::Link { ino, parent: 1, name: b"b".to_vec() });
    w.write(ino, 100, 100);
    let (old, new) = (b"a".to_vec(), b"c".to_vec());
    w.call(Op::Rename { from: 1, old, to: 1, new, mode: RenameMode::Replace });
    w.write(ino, 200, 100);
    w.call(Op::Unlink { parent: 1, name: b"b".to_vec() });
    w.fsync(ino);
    w.compare();
    w.call(Op::Remount);
}

/// A file emptied and committed kept its extents; they showed when it grew.
#[test]
fn an_emptied_file_does_not_show_its_past_when_it_grows() {
    let mut w = World::new(MountOptions::default());
    let ino = w.create(b"a");
    w.write(ino, 0, 4000);
    w.fsync(ino);
    w.size(ino, 0);
    w.fsync(ino);
    w.write(ino, 0, 24);
    w.size(ino, 7387);
    w.fsync(ino);
    w.compare();
    w.call(Op::Remount);
}

/// A freed segment was written again while its discard was under way, which
/// could then wipe what was flushed there.
#[test]
fn a_discard_never_meets_a_later_write() {
    let mut w = World::new(MountOptions { discard: true, ..MountOptions::default() });
    for round in 0..40 {
        let ino = w.create(format!("f{round}").as_bytes());
        w.write(ino, 0, 300_000);
        w.fsync(ino);
        w.call(Op::Unlink { parent: 1, name: format!("f{round}").into_bytes() });
        w.call(Op::SyncAll);
        // What is under way is applied last: nothing that is needed may change.
        let image = Arc::new(w.0.disk.image(&CrashChoice::from_seed(CrashChoice::SEED_APPLIED)));
        let clock = Arc::new(VirtualClock::new());
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let fs = <Core as Subject>::open(image, clock, options).unwrap();
        assert!(fs.recovery_report().notes.is_empty(), "round {round}: {:?}", fs.recovery_report());
        w.call(Op::Remount);
    }
}

/// Content written behind, and not yet named by a record, lay in a segment
/// that counted as empty and was given out again.
#[test]
fn content_written_behind_keeps_its_segment() {
    let mut w = World::new(MountOptions { dirty_bytes_max: 256 << 10, ..MountOptions::default() });
    let ino = w.create(b"a");
    assert_eq!(ino, FIRST);
    w.write(ino, 0, 900_000);
    let other = w.create(b"b");
    for round in 0..30 {
        // Index checkpoints, as a full chain or idle time bring them.
        w.write(other, round * 4096, 4096);
        w.fsync(other);
        w.call(Op::Advance { nanos: 21_000_000_000 });
        w.call(Op::Tick);
        w.write(ino, 900_000 + round * 40_000, 40_000);
    }
    w.compare();
    w.call(Op::Remount);
}

/// What a checkpoint that was named too late shows by grace of a snapshot goes with that. After a mount the oracle took
/// every name for one that was given when the checkpoint was made, and said that this must be there.
#[test]
fn a_name_given_later_keeps_what_lives_on_and_nothing_else() {
    let mut w = World::new(MountOptions::default());
    let [changed, lasting] = [&b"changed"[..], b"lasting"].map(|name| {
        let ino = w.create(name);
        w.write(ino, 0, 9000);
        let (name, value) = (HISTORY_XATTR.to_vec(), b"none".to_vec());
        w.call(Op::SetXattr { ino, name, value, mode: XattrMode::Any });
        ino
    });
    w.call(Op::CheckpointCreate { name: None });
    w.call(Op::CheckpointCreate { name: Some(b"snapshot".to_vec()) });
    let snapshot = w.0.named_checkpoint(b"snapshot").unwrap();
    let early = snapshot - 1;
    w.write(changed, 0, 100);
    w.call(Op::CheckpointCreate { name: None });
    w.call(Op::CheckpointName { cno: early, name: Some(b"later".to_vec()) });
    w.call(Op::CheckpointCreate { name: None });
    w.write(lasting, 0, 100);
    w.call(Op::SyncAll);
    w.call(Op::Kill);
    w.call(Op::ReadPast { cno: early });
    let read =
        |w: &World, ino| w.0.fs().unwrap().read(At::Past(Cno(early)), Ino(ino), 0, 9000).map(|bytes| bytes.len());
    assert_eq!([changed, lasting].map(|ino| read(&w, ino).ok()), [Some(9000); 2]);
    w.call(Op::CheckpointName { cno: snapshot, name: None });
    w.call(Op::ReadPast { cno: early });
    assert!(matches!(read(&w, changed), Err(Error::Stale)), "{:?}", read(&w, changed));
    assert_eq!(read(&w, lasting).unwrap(), 9000);
}
