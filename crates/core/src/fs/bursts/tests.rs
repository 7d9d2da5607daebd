use super::*;
use crate::Accepted;
use crate::testing::{create, device};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// What is done while somebody rests.
type Meanwhile = Box<dyn FnMut(&Arc<Fs>) + Send>;

/// A clock that goes on while somebody rests.
#[derive(Default)]
struct Rests {
    now: AtomicU64,
    rested: AtomicU64,
    meanwhile: Mutex<Option<Meanwhile>>,
    fs: OnceLock<Weak<Fs>>,
}

impl crate::Clock for Rests {
    fn wall(&self) -> nenrin_format::Time {
        nenrin_format::Time(1)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.now.load(Relaxed)
    }
    fn rest(&self, nanos: u64) {
        self.now.fetch_add(nanos, Relaxed);
        self.rested.fetch_add(nanos, Relaxed);
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().as_mut() {
            meanwhile(&self.fs.get().unwrap().upgrade().unwrap());
        }
    }
}

const TOOK: u64 = 8_000_000;

struct Copied {
    clock: Arc<Rests>,
    fs: Arc<Fs>,
    copied: Ino,
    synced: Ino,
}

impl Copied {
    fn new() -> Self {
        let clock = Arc::new(Rests { now: 1_000_000_000.into(), ..Rests::default() });
        let fs = Fs::open(vec![device(128, 0)], clock.clone(), crate::MountOptions::default()).unwrap();
        clock.fs.set(Arc::downgrade(&fs)).unwrap();
        let [copied, synced] = ["copied", "synced"].map(|name| create(&fs, name));
        Self { clock, fs, copied, synced }
    }

    /// So many syncs, and so long afterwards writes that make a burst, where the last one ended so long ago: how long the writer
    /// rested, and how many bursts there were.
    fn burst(
        &self,
        syncs: u64,
        since_sync: u64,
        (ended, took): (u64, u64),
        meanwhile: Option<Meanwhile>,
    ) -> (u64, u64) {
        (0..syncs).for_each(|_| self.fs.fsync_wait(self.synced).unwrap());
        let now = self.clock.now.fetch_add(since_sync, Relaxed) + since_sync;
        *self.clock.meanwhile.lock().unwrap() = meanwhile;
        self.fs.lock().bursts.last = Some((now - ended, took));
        let before = self.fs.counters().bursts;
        let mut at = 0;
        while self.fs.counters().bursts == before && self.clock.rested.load(Relaxed) == 0 {
            assert_eq!(self.fs.write(self.copied, at, &vec![1; 1 << 20], 0).unwrap(), 1 << 20);
            at += 1 << 20;
        }
        *self.clock.meanwhile.lock().unwrap() = None;
        (self.clock.rested.swap(0, Relaxed), self.fs.counters().bursts - before)
    }

    fn syncs(&self, ino: Ino) -> Option<Meanwhile> {
        assert!(ino == self.copied || ino == self.synced);
        Some(Box::new(move |fs| fs.fsync_wait(ino).unwrap()))
    }
}

#[test]
fn after_a_burst_the_device_is_left_to_those_who_sync() {
    let w = Copied::new();
    let slice = TOOK / LOOKS + 1;
    assert_eq!(w.burst(3, 0, (0, TOOK), w.syncs(w.synced)), (REST * TOOK, 1), "they sync all the time");
    assert_eq!(w.fs.lock().bursts.last, Some((w.clock.now.load(Relaxed), TOOK_NANOS_MIN)), "a burst in no time");
    assert_eq!(w.burst(0, 0, (TOOK, TOOK), w.syncs(w.synced)), (TOOK, 1), "some of the time has gone by");
    assert_eq!(w.burst(3, 0, (REST * TOOK, TOOK), w.syncs(w.synced)), (0, 1), "all of it has");
    let long = REST_NANOS_MAX;
    assert_eq!(w.burst(3, 0, (0, long), w.syncs(w.synced)), (REST_NANOS_MAX, 1), "a burst that took very long");
    // Who did nothing but sync may do so no more, and who syncs a file and its directory does nothing else.
    w.clock.now.fetch_add(REST_NANOS_MAX, Relaxed);
    let (rested, bursts) = w.burst(3, TOOK, (0, TOOK), None);
    assert!((TOOK..TOOK + slice + 8).contains(&rested) && bursts == 1, "the last ones: {rested}");
    assert_eq!(w.burst(3, 2 * TOOK, (0, TOOK), None), (0, 1), "nobody has for as long as two bursts take");
    w.clock.now.fetch_add(TOOK, Relaxed);
    assert_eq!(w.burst(2, 0, (0, TOOK), None), (slice, 1), "a file and its directory");
    assert_eq!(w.burst(2, 0, (0, TOOK), w.syncs(w.synced)), (REST * TOOK, 1), "it goes on");
}

#[test]
fn what_others_need_of_it_does_not_wait_for_a_rest() {
    let w = Copied::new();
    // Its own sync: nothing is left to be written.
    let slice = TOOK / LOOKS + 1;
    assert_eq!(w.burst(3, 0, (0, TOOK), w.syncs(w.copied)), (slice, 0), "a rest without a reason goes on");
    // A commit of everything writes it and flushes it, as a burst.
    assert_eq!(w.burst(3, 0, (0, TOOK), Some(Box::new(|fs| fs.sync_all().unwrap()))), (slice, 1));
    assert_eq!(w.fs.lock().bursts.held_blocks, 0);
    // What it has to write before makes bursts, and rests for nobody.
    let w = Copied::new();
    (0..2048).for_each(|n| assert_eq!(w.fs.write(w.copied, n * 8192, &[2; 4096], 0).unwrap(), 4096));
    (0..3).for_each(|_| w.fs.fsync_wait(w.synced).unwrap());
    w.fs.lock().bursts.last = Some((w.clock.now.load(Relaxed), TOOK));
    let before = w.fs.counters().bursts;
    w.fs.sync_all().unwrap();
    assert!(w.fs.counters().bursts > before + 1);
    assert_eq!(w.clock.rested.load(Relaxed), 0, "a commit rested");
}

/// Those who wait on their threads, which would serve syncs.
#[test]
fn other_writers_wait_for_the_end_of_a_rest_unless_they_are_many() {
    let w = Copied::new();
    let others = Arc::new(Mutex::new(Vec::new()));
    let held = Arc::new(AtomicU64::new(0));
    let (threads, seen) = (others.clone(), held.clone());
    let mut left: Vec<Ino> = (0..WAITERS_MAX).map(|n| create(&w.fs, &n.to_string())).collect();
    // In each slice of the rest one more writer comes.
    let meanwhile = move |fs: &Arc<Fs>| {
        fs.fsync_wait(Ino::ROOT).unwrap();
        let Some(other) = left.pop() else { return };
        let (writes, come) = (fs.clone(), WAITERS_MAX - left.len() as u32);
        let writer =
            std::thread::spawn(move || assert_eq!(writes.write(other, 0, &vec![3; 1 << 20], 0).unwrap(), 1 << 20));
        let since = std::time::Instant::now();
        while fs.lock().bursts.waiters < come && !writer.is_finished() {
            assert!(since.elapsed().as_secs() < 60, "a writer neither waits nor ends");
            std::thread::yield_now();
        }
        let inner = fs.lock();
        seen.store(inner.bursts.held_blocks, Relaxed);
        assert!(inner.bursts.held_blocks < 2 * inner.burst_blocks(fs), "they write on");
        drop(inner);
        threads.lock().unwrap().push(writer);
    };
    let (rested, bursts) = w.burst(3, 0, (0, TOOK), Some(Box::new(meanwhile)));
    others.lock().unwrap().drain(..).for_each(|t| t.join().unwrap());
    assert!(held.load(Relaxed) > FIRST_BURST_BLOCKS && bursts >= 1);
    assert_eq!(rested / (TOOK / LOOKS), u64::from(WAITERS_MAX), "so many wait, and nobody is left to serve syncs");
    let inner = w.fs.lock();
    assert_eq!((inner.bursts.led, inner.bursts.waiters), (false, 0));
}

#[test]
fn a_burst_takes_as_long_on_slow_devices_as_on_fast_ones() {
    let mut bursts = Bursts::default();
    assert_eq!(bursts.blocks(), FIRST_BURST_BLOCKS);
    // 100 MB in a second.
    bursts.note(1024, [1024 * 41_000, 0]);
    assert_eq!(bursts.blocks(), 609);
    bursts.note(255, [255 * 1_000_000, 0]);
    assert_eq!(bursts.blocks(), 609, "few blocks tell nothing");
    bursts.note(1024, [1_000_000_000_000, 0]);
    assert!(bursts.blocks() > 450, "one that took very long: {}", bursts.blocks());
    (0..40).for_each(|_| bursts.note(1024, [1024 * 12_000, 5_000_000]));
    assert!((1_500..1_800).contains(&bursts.blocks()), "{}", bursts.blocks());
    (0..40).for_each(|_| bursts.note(1024, [0, 0]));
    assert_eq!(bursts.blocks(), BURST_BLOCKS.1);
    (0..80).for_each(|_| bursts.note(1024, [1024 * 10_000_000, 0]));
    assert_eq!(bursts.blocks(), BURST_BLOCKS.0);
}

#[test]
fn writing_takes_as_long_as_a_flush_that_takes_long() {
    let mut bursts = Bursts::default();
    bursts.note(1024, [1024 * 40_000, 40_000_000]);
    assert_eq!(bursts.blocks(), 1_000);
}

#[test]
fn who_is_kept_waiting_is_told_when_as_much_as_was_before_him_is_written() {
    let (mut bursts, told) = (Bursts::default(), Told::default());
    for n in 1..4 {
        bursts.hold(256);
        let told = told.clone();
        bursts.told_later.push((bursts.held_ever, Box::new(move |_| told.lock().unwrap().push((n, Ok(()))))));
    }
    let tell = |bursts: &mut Bursts, all| {
        bursts.take_told(all).into_iter().for_each(|done| done(Ok(())));
        told.lock().unwrap().drain(..).map(|(n, _)| n).collect::<Vec<u64>>()
    };
    bursts.let_go(255);
    assert_eq!(tell(&mut bursts, false), []);
    bursts.let_go(257);
    assert_eq!(tell(&mut bursts, false), [1, 2]);
    assert_eq!(tell(&mut bursts, false), []);
    assert_eq!(tell(&mut bursts, true), [3]);
}

/// Half a second of nothing else, so that no second burst is in it.
const LONG: u64 = 500_000_000;

/// Who was told, and what.
type Told = Arc<Mutex<Vec<(u64, std::result::Result<(), String>)>>>;

/// Writes to files of others while somebody rests, at once, and has them told later; the files, and who was told.
fn writes_told_later(w: &Copied, writers: u64) -> (Meanwhile, Told) {
    let told = Told::default();
    let (kept, mut files) = (told.clone(), (0..writers).map(|n| create(&w.fs, &n.to_string())).collect::<Vec<_>>());
    let meanwhile = move |fs: &Arc<Fs>| {
        for (n, file) in (0..).zip(std::mem::take(&mut files)) {
            let accepted = fs.accept(file, 0, &vec![3; 1 << 20], 0.into()).unwrap();
            assert_eq!(accepted, Accepted { bytes: 1 << 20, is_told_later: true }, "writer {n} waits for the rest");
            let kept = kept.clone();
            fs.tell_later(
                file,
                Box::new(move |result| kept.lock().unwrap().push((n, result.map_err(|e| e.to_string())))),
            );
        }
        let before_any_burst = fs.counters().bursts == 0;
        assert!(!before_any_burst || kept.lock().unwrap().is_empty(), "told while somebody rests");
        fs.fsync_wait(Ino::ROOT).unwrap();
    };
    (Box::new(meanwhile), told)
}

#[test]
fn who_can_be_told_later_takes_no_thread_while_somebody_rests() {
    let w = Copied::new();
    let (meanwhile, told) = writes_told_later(&w, 9);
    // A slow device: a burst is 1 MiB.
    w.fs.lock().bursts.took = Some((100_000, 0));
    let (rested, bursts) = w.burst(3, 0, (0, TOOK), Some(meanwhile));
    assert!(rested >= REST * TOOK, "they end the rest: {rested}");
    assert_eq!(*told.lock().unwrap(), (0..9).map(|n| (n, Ok(()))).collect::<Vec<_>>());
    // They go on until less than two are left, and none takes all that has come.
    assert!(bursts > 2, "{bursts}");
    let inner = w.fs.lock();
    assert!(inner.bursts.held_blocks < 2 * inner.burst_blocks(&w.fs));
    assert_eq!((inner.bursts.led, inner.bursts.waiters, inner.counters.writes_told_later), (false, 0, 9));
    drop(inner);
    // Without a rest or a burst under way whoever asks is told at once.
    let accepted = w.fs.accept(w.synced, 0, &[1; 4096], 0.into()).unwrap();
    assert!(!accepted.is_told_later);
    let (at_once, seen) = (told.clone(), told.lock().unwrap().len());
    w.fs.tell_later(
        w.copied,
        Box::new(move |result| at_once.lock().unwrap().push((99, result.map_err(|e| e.to_string())))),
    );
    assert_eq!(told.lock().unwrap()[seen..], [(99, Ok(()))]);
}

#[test]
fn what_waits_to_be_told_is_bounded() {
    let w = Copied::new();
    let others = Arc::new(Mutex::new(Vec::new()));
    let threads = others.clone();
    let mut files: Vec<Ino> = (0..40).map(|n| create(&w.fs, &n.to_string())).collect();
    let meanwhile = move |fs: &Arc<Fs>| {
        fs.fsync_wait(Ino::ROOT).unwrap();
        for file in std::mem::take(&mut files) {
            if fs.lock().under_way(|_| true) < fs.told_blocks_max() - 256 {
                assert!(fs.accept(file, 0, &vec![3; 1 << 20], 0.into()).unwrap().is_told_later);
                fs.tell_later(file, Box::new(drop));
            } else if threads.lock().unwrap().is_empty() {
                let writes = fs.clone();
                let writer = std::thread::spawn(move || writes.accept(file, 0, &vec![3; 1 << 20], 0.into()).unwrap());
                while fs.lock().bursts.waiters == 0 {
                    assert!(!writer.is_finished(), "more than memory may hold, and nobody waits");
                    std::thread::yield_now();
                }
                threads.lock().unwrap().push(writer);
            }
        }
    };
    w.burst(3, 0, (0, TOOK), Some(Box::new(meanwhile)));
    let mut others = others.lock().unwrap();
    assert_eq!(others.len(), 1);
    let _ = others.pop().unwrap().join().unwrap();
    assert!(w.fs.lock().bursts.told_later.is_empty());
}

#[test]
fn who_waits_is_told_of_a_failure() {
    let w = Copied::new();
    let (mut writes, told) = writes_told_later(&w, 2);
    let meanwhile = move |fs: &Arc<Fs>| {
        writes(fs);
        fs.lock().fail("this failure is part of the test");
        writes = Box::new(|_| {});
    };
    (0..3).for_each(|_| w.fs.fsync_wait(w.synced).unwrap());
    w.fs.lock().bursts.last = Some((w.clock.now.load(Relaxed), TOOK));
    *w.clock.meanwhile.lock().unwrap() = Some(Box::new(meanwhile));
    let [.., outcome] = [0, 1, 2, 3].map(|n| w.fs.write(w.copied, n << 20, &vec![1; 1 << 20], 0));
    assert!(matches!(outcome, Err(crate::Error::Failed(_))), "{outcome:?}");
    let told = told.lock().unwrap();
    assert!(
        told.len() == 2 && told.iter().all(|(_, r)| r.as_ref().is_err_and(|e| e.contains("part of the test"))),
        "{told:?}"
    );
}

/// A thread that is lost in a rest has taken nothing, and leaves nobody waiting.
#[test]
fn a_thread_that_is_lost_while_it_rests_leaves_nobody_waiting() {
    let w = Copied::new();
    let (mut writes, told) = writes_told_later(&w, 2);
    let meanwhile = move |fs: &Arc<Fs>| {
        writes(fs);
        panic!("this panic is part of the test");
    };
    (0..3).for_each(|_| w.fs.fsync_wait(w.synced).unwrap());
    w.fs.lock().bursts.last = Some((w.clock.now.load(Relaxed), TOOK));
    *w.clock.meanwhile.lock().unwrap() = Some(Box::new(meanwhile));
    let (fs, copied) = (w.fs.clone(), w.copied);
    let writer = std::thread::spawn(move || (0..4).for_each(|n| drop(fs.write(copied, n << 20, &vec![1; 1 << 20], 0))));
    assert!(writer.join().is_err());
    assert_eq!(*told.lock().unwrap(), [(0, Ok(())), (1, Ok(()))]);
    w.clock.meanwhile.clear_poison();
    *w.clock.meanwhile.lock().unwrap() = None;
    assert!(!w.fs.lock().bursts.led);
    w.fs.sync_all().unwrap();
    w.fs.close().unwrap();
}

/// Who commits everything makes the burst himself, while somebody rests and much is held back.
#[test]
fn a_commit_does_not_wait_for_a_rest_that_is_under_way() {
    let w = Copied::new();
    let committed = Arc::new(AtomicU64::new(0));
    let (done, small) = (committed.clone(), create(&w.fs, "small"));
    (0..2048).for_each(|n| assert_eq!(w.fs.write(small, n * 8192, &[2; 4096], 0).unwrap(), 4096));
    let mut commits: Option<std::thread::JoinHandle<()>> = None;
    let meanwhile = move |fs: &Arc<Fs>| {
        if commits.is_none() {
            let fs = fs.clone();
            commits = Some(std::thread::spawn(move || fs.sync_all().unwrap()));
        }
        let since = std::time::Instant::now();
        while !commits.as_ref().unwrap().is_finished() {
            assert!(since.elapsed().as_secs() < 60, "a commit waits for a rest");
            assert_eq!(fs.lock().bursts.waiters, 0, "a commit waits for a rest");
            std::thread::yield_now();
        }
        done.store(1, Relaxed);
    };
    w.burst(3, 0, (0, TOOK), Some(Box::new(meanwhile)));
    assert_eq!(committed.load(Relaxed), 1, "nobody rested");
}

#[test]
fn who_closes_a_file_rests() {
    let w = Copied::new();
    let closed = create(&w.fs, "closed");
    // Pages here and there, which are written behind when the file is closed and not before.
    (0..FIRST_BURST_BLOCKS + 512).for_each(|n| assert_eq!(w.fs.write(closed, n * 8192, &[2; 4096], 0).unwrap(), 4096));
    assert!(w.fs.lock().pages_of(closed) as u64 >= FIRST_BURST_BLOCKS, "they are written already");
    (0..3).for_each(|_| w.fs.fsync_wait(w.synced).unwrap());
    w.fs.lock().bursts.last = Some((w.clock.now.load(Relaxed) + LONG, TOOK));
    *w.clock.meanwhile.lock().unwrap() = w.syncs(w.synced);
    w.fs.flush(closed).unwrap();
    assert!(w.fs.counters().burst_rests > 0 && w.clock.rested.load(Relaxed) > 0);
}
