//! What several threads do to each other: a device that holds back chosen
//! requests, and runs them only when the test lets them, makes each meeting certain.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

mod common;

use common::{TestClock, file};
use nenrin_core::format::Ino;
use nenrin_core::{At, Fs, MkfsOptions, MountOptions, mkfs};
use nenrin_device::{BlockDevice, Geometry, MemDevice, Op, Outcome, Pending, Ticket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// Which requests are held back.
type Which = fn(&Op) -> bool;

/// Holds back requests until they are let go, in the order in which they came.
struct Gated {
    inner: Arc<MemDevice>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    which: Option<Which>,
    /// Requests that were held back so far, and those of them let go.
    held: usize,
    open: usize,
    /// Threads that wait for one of them.
    waiting: usize,
}

impl Gate {
    /// Holds back requests from now on, but for the first few.
    fn close(&self, which: Which, but: usize) {
        *self.state.lock().unwrap() = State { which: Some(which), open: but, ..State::default() };
    }
    /// Lets the first `count` go, or as many as there are.
    fn let_go(&self, count: usize) {
        self.state.lock().unwrap().open = count;
        self.changed.notify_all();
    }
    fn open(&self) {
        self.let_go(usize::MAX);
    }
    fn held(&self) -> usize {
        self.state.lock().unwrap().held
    }
    fn wait_until(&self, reached: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let (state, timeout) =
            self.changed.wait_timeout_while(state, Duration::from_secs(20), |s| !reached(s)).unwrap();
        assert!(!timeout.timed_out(), "{} requests came", state.held);
    }
}

struct Held {
    gate: Arc<Gate>,
    device: Arc<MemDevice>,
    number: usize,
    op: Op,
}

impl Pending for Held {
    fn wait(self: Box<Self>) -> Outcome {
        let mut state = self.gate.state.lock().unwrap();
        if state.open <= self.number {
            state.waiting += 1;
            self.gate.changed.notify_all();
        }
        drop(self.gate.changed.wait_while(state, |s| s.open <= self.number).unwrap());
        self.device.submit(self.op).wait()
    }
    fn is_done(&self) -> bool {
        self.gate.state.lock().unwrap().open > self.number
    }
}

impl BlockDevice for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn submit(&self, op: Op) -> Ticket {
        let mut state = self.gate.state.lock().unwrap();
        if !state.which.is_some_and(|which| which(&op)) {
            drop(state);
            return self.inner.submit(op);
        }
        let number = state.held;
        state.held += 1;
        drop(state);
        self.gate.changed.notify_all();
        Ticket::new(Held { gate: self.gate.clone(), device: self.inner.clone(), number, op })
    }
}

struct World {
    gate: Arc<Gate>,
    clock: Arc<TestClock>,
    fs: Arc<Fs>,
}

fn world(options: MountOptions) -> World {
    let gate = Arc::new(Gate::default());
    let inner = Arc::new(MemDevice::new(64 << 20));
    let device: Arc<dyn BlockDevice> = Arc::new(Gated { inner, gate: gate.clone() });
    let clock = Arc::new(TestClock::default());
    let time: Arc<dyn nenrin_core::Clock> = clock.clone();
    mkfs(&device, &time, &MkfsOptions { segment_blocks: 512, ..MkfsOptions::default() }).unwrap();
    let fs = Fs::open(vec![device], time, options).unwrap();
    World { gate, clock, fs }
}

fn is_read(op: &Op) -> bool {
    matches!(op, Op::Read { .. })
}

fn is_long_write(op: &Op) -> bool {
    matches!(op, Op::Write { data, .. } if data.len() >= 256 << 10)
}

/// An index partial of one node, or more.
fn has_nodes(op: &Op) -> bool {
    matches!(op, Op::Write { data, .. } if data.len() > 16 << 10)
}

/// P1, P3: a write that begins and ends within blocks reads both; a commit
/// between the two reads must not make the first block's other bytes zeros.
#[test]
fn a_commit_between_two_reads_of_a_write_loses_nothing() {
    let World { gate, fs, .. } = world(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &[7; 3 * 4096], 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    gate.close(is_read, 1);
    let writer = {
        let fs = fs.clone();
        thread::spawn(move || fs.write(f.ino, 100, &[9; 2 * 4096], 0))
    };
    gate.wait_until(|s| s.waiting == 1);
    fs.fsync_wait(f.ino).unwrap();
    gate.open();
    writer.join().unwrap().unwrap();
    let mut expected = vec![7; 3 * 4096];
    expected[100..100 + 2 * 4096].fill(9);
    assert!(fs.read(At::Live, f.ino, 0, 3 * 4096).unwrap() == expected, "bytes around the write changed");
}

/// The same for a hole that is punched.
#[test]
fn a_commit_between_two_reads_of_a_hole_leaves_nothing_behind() {
    let World { gate, fs, .. } = world(MountOptions::default());
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.write(f.ino, 0, &[7; 3 * 4096], 0).unwrap();
    fs.fsync_wait(f.ino).unwrap();
    gate.close(is_read, 1);
    let puncher = {
        let fs = fs.clone();
        thread::spawn(move || fs.allocate(f.ino, nenrin_core::AllocateMode::Punch, 100, 2 * 4096))
    };
    gate.wait_until(|s| s.waiting == 1);
    fs.fsync_wait(f.ino).unwrap();
    gate.open();
    puncher.join().unwrap().unwrap();
    let mut expected = vec![7; 3 * 4096];
    expected[100..100 + 2 * 4096].fill(0);
    assert!(fs.read(At::Live, f.ino, 0, 3 * 4096).unwrap() == expected, "the hole is not one");
}

/// P4: nodes of the index leave memory only when the device has them.
#[test]
fn nodes_under_way_are_read_from_memory() {
    let World { gate, clock, fs } = world(MountOptions { cache_bytes: 1, ..MountOptions::default() });
    let names: Vec<String> = (0..600).map(|i| format!("file number {i}")).collect();
    for name in &names {
        fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap();
    }
    for _ in 0..2 {
        fs.tick().unwrap();
        clock.0.fetch_add(30_000_000_000, Ordering::Relaxed);
    }
    gate.close(has_nodes, 0);
    let (tx, ticked) = mpsc::channel();
    let ticker = {
        let fs = fs.clone();
        thread::spawn(move || tx.send(fs.tick()))
    };
    gate.wait_until(|s| s.waiting > 0);
    for name in &names {
        fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).unwrap();
    }
    fs.create(Ino::ROOT, b"one more", &file(0o600)).unwrap();
    gate.open();
    ticked.recv().unwrap().unwrap();
    ticker.join().unwrap().unwrap();
    for name in &names {
        fs.lookup(At::Live, Ino::ROOT, name.as_bytes()).unwrap();
    }
    assert_eq!(fs.failed(), None);
}

/// Seed 4: a sync waits for what was written before it, and for nothing that
/// others write to the same file meanwhile.
#[test]
fn a_sync_does_not_wait_for_later_writes_of_its_file() {
    let World { gate, fs, .. } = world(MountOptions { dirty_bytes_max: 1 << 20, ..MountOptions::default() });
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    fs.sync_all().unwrap();
    gate.close(is_long_write, 0);
    let write = |at: u64| {
        let fs = fs.clone();
        thread::spawn(move || fs.write(f.ino, at, &vec![7; 3 << 20], 0))
    };
    let first = write(0);
    gate.wait_until(|s| s.waiting == 1);
    let (earlier, commits) = (gate.held(), fs.counters().commits);
    let (tx, synced) = mpsc::channel();
    let syncer = {
        let fs = fs.clone();
        thread::spawn(move || tx.send(fs.fsync_wait(f.ino)))
    };
    while fs.counters().commits == commits {
        thread::yield_now();
    }
    let second = write(3 << 20);
    gate.wait_until(|s| s.held > earlier && s.waiting >= 2);
    gate.let_go(earlier);
    synced.recv_timeout(Duration::from_secs(10)).expect("it waits for a later write").unwrap();
    gate.open();
    syncer.join().unwrap().unwrap();
    for writer in [first, second] {
        writer.join().unwrap().unwrap();
    }
}

/// A program that syncs again as soon as it is told, so that somebody always waits.
fn sync_again(fs: &Arc<Fs>, ino: Ino, stop: &Arc<AtomicBool>) {
    let (again, stop) = (fs.clone(), stop.clone());
    let done = move |r: nenrin_core::Result<()>| {
        r.unwrap();
        if !stop.load(Ordering::Relaxed) {
            sync_again(&again, ino, &stop);
        }
    };
    fs.fsync(ino, Box::new(done));
}

/// P1, P2: programs that sync all the time leave others their turn: else no
/// checkpoint is cut, the log is never let go, and nothing else is committed in time.
#[test]
fn programs_that_sync_leave_others_their_turn() {
    let World { clock, fs, .. } = world(MountOptions::default());
    let stop = Arc::new(AtomicBool::new(false));
    let f = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap();
    // Like the serving threads of the front end, which do not wait for the answer.
    let mut threads: Vec<_> = (0..2)
        .map(|i| {
            let (fs, stop) = (fs.clone(), stop.clone());
            thread::spawn(move || {
                if i == 0 {
                    sync_again(&fs, f.ino, &stop);
                }
                while !stop.load(Ordering::Relaxed) {
                    fs.fsync(f.ino, Box::new(|r| r.unwrap()));
                    thread::sleep(Duration::from_millis(1));
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(20));
    let (tx, rx) = mpsc::channel();
    threads.push({
        let fs = fs.clone();
        thread::spawn(move || {
            for i in 0..5 {
                fs.checkpoint_create(None).unwrap();
                fs.create(Ino::ROOT, &[b'0' + i], &file(0o600)).unwrap();
                clock.0.fetch_add(6_000_000_000, Ordering::Relaxed);
                fs.tick().unwrap();
                fs.sync_all().unwrap();
                tx.send(i).unwrap();
            }
        })
    });
    let turns = (0..5).map_while(|_| rx.recv_timeout(Duration::from_secs(10)).ok()).count();
    stop.store(true, Ordering::Relaxed);
    for t in threads {
        t.join().unwrap();
    }
    assert_eq!(turns, 5, "beside {} commits", fs.counters().commits);
    assert_eq!(fs.counters().checkpoints, 10);
}
