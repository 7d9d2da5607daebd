//! Writes that are under way while others sync: a device whose writes
//! complete only when the test lets them.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

mod common;

use common::{TestClock, file};
use nenrin_core::format::Ino;
use nenrin_core::{Fs, MkfsOptions, MountOptions, mkfs};
use nenrin_device::{BlockDevice, Geometry, MemDevice, Op, Outcome, Pending, Ticket};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// Long writes wait at the gate; short ones, of the chain, pass.
struct Gated {
    inner: MemDevice,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// Threads that wait for a long write.
    waiting: usize,
}

impl Gate {
    fn set(&self, closed: bool) {
        self.state.lock().unwrap().closed = closed;
        self.changed.notify_all();
    }
    fn wait_until(&self, reached: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |s| !reached(s)).unwrap());
    }
}

struct Held {
    gate: Arc<Gate>,
    below: Ticket,
}

impl Pending for Held {
    fn wait(self: Box<Self>) -> Outcome {
        self.gate.state.lock().unwrap().waiting += 1;
        self.gate.changed.notify_all();
        self.gate.wait_until(|s| !s.closed);
        self.below.wait()
    }
    fn is_done(&self) -> bool {
        !self.gate.state.lock().unwrap().closed
    }
}

impl BlockDevice for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn submit(&self, op: Op) -> Ticket {
        let long = matches!(&op, Op::Write { data, .. } if data.len() >= 256 << 10);
        let below = self.inner.submit(op);
        if long { Ticket::new(Held { gate: self.gate.clone(), below }) } else { below }
    }
}

fn world(options: MountOptions) -> (Arc<Gate>, Arc<Fs>) {
    let gate = Arc::new(Gate::default());
    let device: Arc<dyn BlockDevice> = Arc::new(Gated { inner: MemDevice::new(64 << 20), gate: gate.clone() });
    let clock: Arc<dyn nenrin_core::Clock> = Arc::new(TestClock::default());
    mkfs(&device, &clock, &MkfsOptions { segment_blocks: 512, ..MkfsOptions::default() }).unwrap();
    (gate, Fs::open(vec![device], clock, options).unwrap())
}

/// Whether an answer comes although nothing moves: only ever wrongly yes.
fn is_answered<T>(answer: &mpsc::Receiver<T>) -> bool {
    answer.recv_timeout(Duration::from_millis(100)).is_ok()
}

/// P1: a writer held up for want of memory waits for data writes of a file;
/// its fsync must wait for them too, though it does not hold their tickets.
#[test]
fn a_sync_waits_for_writes_that_another_thread_waits_for() {
    let (gate, fs) = world(MountOptions { dirty_bytes_max: 1 << 20, ..MountOptions::default() });
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.sync_all().unwrap();
    gate.set(true);
    let writer = {
        let fs = fs.clone();
        thread::spawn(move || fs.write(f.ino, 0, &vec![7; 3 << 20], 0))
    };
    gate.wait_until(|s| s.waiting > 0);
    let (tx, synced) = mpsc::channel();
    let syncer = {
        let fs = fs.clone();
        thread::spawn(move || tx.send(fs.fsync_wait(f.ino)))
    };
    assert!(!is_answered(&synced), "acknowledged while its data was under way");
    gate.set(false);
    synced.recv().unwrap().unwrap();
    syncer.join().unwrap().unwrap();
    writer.join().unwrap().unwrap();
}

/// P2, P3: no checkpoint of the index, after which segments are used anew, is
/// completed while a write is under way.
#[test]
fn closing_waits_for_writes_that_another_thread_waits_for() {
    let (gate, fs) = world(MountOptions { dirty_bytes_max: 1 << 20, ..MountOptions::default() });
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.sync_all().unwrap();
    gate.set(true);
    let writer = {
        let fs = fs.clone();
        thread::spawn(move || fs.write(f.ino, 0, &vec![7; 3 << 20], 0))
    };
    gate.wait_until(|s| s.waiting > 0);
    fs.unlink(Ino::ROOT, b"f").unwrap();
    let (tx, closed) = mpsc::channel();
    let closer = {
        let fs = fs.clone();
        thread::spawn(move || tx.send(fs.close()))
    };
    assert!(!is_answered(&closed), "closed while a write was under way");
    gate.set(false);
    closed.recv().unwrap().unwrap();
    closer.join().unwrap().unwrap();
    drop(writer.join().unwrap());
}

/// Seed 4: a sync waits for its own file only.
#[test]
fn a_sync_does_not_wait_for_writes_of_other_files() {
    let (gate, fs) = world(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    let g = fs.create(Ino::ROOT, b"g", &file(0o600)).unwrap();
    fs.sync_all().unwrap();
    gate.set(true);
    fs.write(f.ino, 0, &vec![7; 3 << 20], 0).unwrap();
    fs.write(g.ino, 0, &[8; 4096], 0).unwrap();
    fs.fsync_wait(g.ino).unwrap();
    gate.set(false);
    fs.fsync_wait(f.ino).unwrap();
}
