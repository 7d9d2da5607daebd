//! History that crowds out the cleaner.

use super::crowded::{Held, WriteRate};
use super::space_tests::Looked;
use crate::{CheckpointsRest, Clock, Fs, MkfsOptions, MountOptions, NewInode, SetAttr, mkfs};
use nenrin_device::{BlockDevice, MemDevice};
use nenrin_format::records::Record;
use nenrin_format::{Cno, Ino, Time};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const IMAGE_BYTES: u64 = 4 << 20;

/// A volume with much history of attributes, and of the content of one file, which leaves the cleaner too little; hardly a node of
/// it is in memory.
struct Crowded {
    clock: Arc<Looked>,
    fs: Arc<Fs>,
    image: Ino,
}

impl Crowded {
    fn new() -> Self {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(96 << 20));
        let clock = Arc::new(Looked::default());
        let shared: Arc<dyn Clock> = clock.clone();
        mkfs(&device, &shared, &MkfsOptions { segment_blocks: 128, ..MkfsOptions::default() }).unwrap();
        let options = MountOptions { cache_bytes: 256 << 10, ..MountOptions::default() };
        let fs = Fs::open(vec![device], shared, options).unwrap();
        let new = NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let make = |name: &str| fs.create(Ino::ROOT, name.as_bytes(), &new).unwrap().ino;
        let files: Vec<Ino> = (0..4000).map(|i| make(&format!("file number {i}"))).collect();
        let image = make("image");
        for round in 0..8 {
            fs.checkpoint_create(None).unwrap();
            for ino in &files {
                let mode = SetAttr { mode: Some(0o600 + round), ..SetAttr::default() };
                fs.setattr(*ino, &mode).unwrap();
            }
            fs.index_checkpoint(false).unwrap();
        }
        // What was let go before the mount comes first.
        while fs.lock().sweep_wanted || fs.lock().sweep.is_some() {
            fs.sweep_some(0).unwrap();
        }
        let this = Self { clock, fs, image };
        this.crowd();
        this
    }

    fn overwrite(&self) {
        self.fs.write(self.image, 0, &vec![7; IMAGE_BYTES as usize], 0).unwrap();
        self.fs.sync_all().unwrap();
    }

    /// History, and then garbage, until there is too much of both.
    fn crowd(&self) {
        for _ in 0..9 {
            self.overwrite();
            self.fs.checkpoint_create(None).unwrap();
        }
        for round in 0.. {
            self.overwrite();
            let inner = self.fs.lock();
            if inner.is_crowded(&self.fs) {
                break;
            }
            assert!(round < 20, "{} {}", inner.room_segments(&self.fs), inner.slack_segments(&self.fs));
        }
    }

    /// One look at history, and what it let go is swept.
    fn uncrowd(&self) {
        self.fs.uncrowd(self.clock.monotonic_nanos()).unwrap();
        self.fs.sweep_some(0).unwrap();
    }

    /// Until history of files was let go so often.
    fn uncrowd_until(&self, times: u64) {
        for _ in 0..100 {
            if self.fs.counters().inodes_shed == times {
                return;
            }
            self.uncrowd();
        }
        unreachable!("nothing was let go");
    }

    /// Whether history leaves the cleaner so many times as much as it takes.
    fn leaves(&self, times: u64) -> bool {
        let inner = self.fs.lock();
        let slack = inner.slack_segments(&self.fs) * u64::from(self.fs.storage.segment_blocks);
        inner.state.history_blocks * times <= slack
    }
}

/// While checkpoints rest, a file with much history keeps less of it than otherwise: what the last checkpoints see of it grows all the
/// same.
#[test]
fn who_has_much_history_keeps_less_while_checkpoints_rest() {
    let c = Crowded::new();
    c.uncrowd_until(1);
    for _ in 0..20 {
        c.uncrowd();
    }
    assert!(c.leaves(3) && !c.leaves(7), "none of it had to go, or all of it");
    c.crowd();
    c.uncrowd_until(2);
    assert!(c.fs.checkpoints_rest().is_some());
    for _ in 0..20 {
        c.uncrowd();
    }
    assert!(c.leaves(7));
}

/// History that goes as fast as it is made is not made at all for a while: that is told, and is so, until there is room.
#[test]
fn checkpoints_that_rest_are_told() {
    let c = Crowded::new();
    c.uncrowd_until(1);
    // It may have been kept long.
    assert_eq!(c.fs.checkpoints_rest(), None);
    c.crowd();
    c.uncrowd_until(2);
    let told = c.fs.checkpoints_rest();
    let right = |nanos| (590_000_000_000..=600_000_000_000).contains(&nanos);
    assert!(matches!(told, Some(CheckpointsRest::Crowded { for_nanos }) if right(for_nanos)), "{told:?}");
    // Who writes little for a minute has history again, though there is no more room than before.
    let rests_at = |blocks: [u64; 7]| {
        let mut inner = c.fs.lock();
        assert!(inner.room_segments(&c.fs) * 2 < inner.slack_segments(&c.fs));
        inner.write_rate = WriteRate::default();
        let mut all = 0;
        for (n, blocks) in (0..).zip(blocks) {
            all += blocks;
            inner.write_rate.note(n * 10_000_000_000, all);
        }
        inner.cuts_rest(&c.fs, c.clock.monotonic_nanos())
    };
    assert!(!rests_at([100; 7]));
    assert!(rests_at([100, 100, 10_000, 100, 100, 100, 100]), "much was written half a minute ago");
    assert!(rests_at([100, 100, 100, 100, 100, 100, 10_000]));
    c.fs.lock().write_rate = WriteRate::default();
    assert!(c.fs.checkpoints_rest().is_some(), "nothing is known yet");
    let (mut rested, mut cut) = (0, 0);
    for _ in 0..40 {
        c.overwrite();
        c.clock.0.fetch_add(6_000_000_000, Ordering::Relaxed);
        let (rests, before) = (c.fs.checkpoints_rest(), c.fs.counters().checkpoints);
        // What the cleaner leaves to those who write this much is no room for history.
        let inner = c.fs.lock();
        let (room, slack) = (inner.room_segments(&c.fs), inner.slack_segments(&c.fs));
        drop(inner);
        assert_eq!(rests.is_none(), room * 2 >= slack, "{room} segments of {slack}");
        c.fs.tick().unwrap();
        let is_cut = c.fs.counters().checkpoints > before;
        assert_eq!(is_cut, rests.is_none(), "{rests:?}");
        *(if is_cut { &mut cut } else { &mut rested }) += 1;
    }
    assert!(rested > 0, "{rested} {cut}");
    // Who asks gets one, and with time there are some again.
    c.fs.checkpoint_create(None).unwrap();
    c.clock.0.fetch_add(600_000_000_000, Ordering::Relaxed);
    assert_eq!(c.fs.checkpoints_rest(), None);
}

/// A tick, and so a timed commit, waits for some of a walk over history, never for all of it.
#[test]
fn a_tick_looks_at_a_part_of_history() {
    let c = Crowded::new();
    let nodes_read = || c.fs.lock().state.cache.counters().misses;
    assert!(c.fs.lock().is_crowded(&c.fs));
    let mut read: Vec<u64> = Vec::new();
    while c.fs.counters().inodes_shed + c.fs.counters().checkpoints_shed == 0 {
        let before = nodes_read();
        c.fs.uncrowd(0).unwrap();
        read.push(nodes_read() - before);
        assert!(read.len() < 100, "{read:?}");
    }
    let (most, all) = (*read.iter().max().unwrap(), read.iter().sum::<u64>());
    // There are more than twice as many items as a tick looks at.
    assert!(all > 200 && most * 3 <= all * 2, "{read:?}");
    // It was the file's, and what nobody sees any more is freed in the background.
    assert_eq!((c.fs.counters().inodes_shed, c.fs.counters().checkpoints_shed), (1, 0));
    let before = c.fs.usage().history_blocks;
    c.fs.sweep_some(0).unwrap();
    let after = c.fs.usage().history_blocks;
    assert!(after < before * 3 / 4, "{before} {after}");
    assert!(c.fs.lock().sweep.is_none());
}

/// What somebody sweeps who lacks room comes before more of it is let go.
fn history_that_goes_while_somebody_sweeps() -> [u64; 2] {
    let c = Crowded::new();
    let gone = || c.fs.counters().inodes_shed + c.fs.counters().checkpoints_shed;
    c.fs.lock().sweeping = true;
    (0..40).for_each(|_| c.uncrowd());
    let meanwhile = gone();
    c.fs.lock().sweeping = false;
    (0..40).for_each(|_| c.uncrowd());
    [meanwhile, gone() - meanwhile]
}

#[test]
fn who_sweeps_comes_before_more_goes() {
    let [meanwhile, later] = history_that_goes_while_somebody_sweeps();
    assert!(meanwhile == 0 && later > 0, "{meanwhile} {later}");
}

#[cfg(feature = "breaks")]
#[test]
fn history_that_does_not_wait_for_who_sweeps_is_noticed() {
    use crate::breaks::{Break, with};
    assert_ne!(with(Break::SweepUnseen, history_that_goes_while_somebody_sweeps)[0], 0);
}

/// However many checkpoints go at once, each record of it fits the log, and all of them are one commit.
#[test]
fn more_checkpoints_go_than_one_record_holds() {
    many_checkpoints_go();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a commit fails")]
fn a_record_that_is_too_long_is_noticed() {
    crate::breaks::with(crate::breaks::Break::DropsUnbounded, many_checkpoints_go);
}

fn many_checkpoints_go() {
    let fs = crate::testing::mount(&crate::testing::device(64, 64), MountOptions::default());
    for n in 0..140_000 {
        let mut inner = fs.lock();
        let cno = inner.state.open_cno;
        let record = Record::Checkpoint { cno, wall: Time(n), mounted_nanos: 0, flags: 0, name: b"" };
        inner.log(&record, 0).unwrap();
        drop(inner);
        if n % 1000 == 0 {
            fs.sync_received(false).unwrap();
        }
    }
    assert!(fs.lock().shed_oldest(&fs, Held::Never).unwrap());
    fs.sync_received(false).expect("a commit fails");
    let all: Vec<Cno> = fs.checkpoints().iter().map(|c| c.cno).collect();
    assert_eq!(all.len(), 105_000);
    fs.checkpoint_drop(&all).unwrap();
    assert!(fs.checkpoints().is_empty());
    fs.close().unwrap();
}

/// A leaf of history is lost, so that sweeping rests again and again.
fn merging_goes_on_beside_a_sweep_that_rests() {
    let c = Crowded::new();
    let now = || c.clock.monotonic_nanos();
    for _ in 0..100 {
        if c.fs.lock().survey.is_some() {
            break;
        }
        c.uncrowd();
    }
    assert!(c.fs.lock().survey.is_some());
    c.fs.lock().rest_sweep(now());
    c.fs.uncrowd(now()).unwrap();
    assert!(!c.fs.lock().merging_rests(), "nothing is merged");
}

#[test]
fn a_sweep_that_rests_keeps_nothing_from_being_merged() {
    merging_goes_on_beside_a_sweep_that_rests();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "nothing is merged")]
fn surveys_that_stay_are_noticed() {
    crate::breaks::with(crate::breaks::Break::SurveysStay, merging_goes_on_beside_a_sweep_that_rests);
}
