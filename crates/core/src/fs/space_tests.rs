//! Volumes on which hardly a segment is free.

use crate::fs::Inner;
use crate::segments::KIND_DATA;
use crate::testing::{create, device, mount};
use crate::{At, Clock, Error, Fs, MkfsOptions, MountOptions, NewInode, mkfs};
use nenrin_device::{AlignedBuf, BlockDevice, Fault, Faulty, MemDevice, OpKind};
use nenrin_format::superblock::AREA_BLOCKS;
use nenrin_format::{Addr, Ino, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that goes on when it is looked at.
#[derive(Default)]
pub(super) struct Looked(pub(super) AtomicU64);

impl Clock for Looked {
    fn wall(&self) -> Time {
        Time(1_000_000_000_000 + self.0.fetch_add(1, Ordering::Relaxed) as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.fetch_add(10_000_000, Ordering::Relaxed)
    }
}

/// Takes all but so many free segments away.
fn leave_free(fs: &Fs, count: u64) {
    let mut inner = fs.lock();
    let free: Vec<_> = inner.state.segments.iter().map(|(no, _)| no).collect();
    for no in free {
        if inner.state.segments.free_count() > count && inner.state.segments.is_free(no) {
            inner.segments().withhold(no);
        }
    }
}

/// Why a volume failed, if it did, of which all but the floor is taken and in which room is to be made.
fn room_made_at_the_floor() -> Option<String> {
    let fs = mount(&device(16, 64), MountOptions::default());
    fs.write(create(&fs, "f"), 0, &[1; 4096], 0).unwrap();
    fs.sync_all().unwrap();
    (0..4).for_each(|_| fs.index_checkpoint(false).unwrap());
    leave_free(&fs, 1);
    (0..100).take_while(|_| fs.promote_for_room().is_ok()).count();
    fs.failed()
}

/// Each round of making room asks for two.
#[test]
fn index_checkpoints_of_nothing_leave_the_floor_alone() {
    assert_eq!(room_made_at_the_floor(), None);
}

#[cfg(feature = "breaks")]
#[test]
fn a_floor_that_is_written_away_is_noticed() {
    let failed = crate::breaks::with(crate::breaks::Break::FloorWrittenAway, room_made_at_the_floor);
    assert_eq!(failed.as_deref(), Some("no space left on the volume"));
}

/// What nobody needs any more goes, and soon, also where index checkpoints have nothing but the open index segments:
/// one volume could not be used again, or even mounted, since sweeping waited for room that only sweeping could give.
#[test]
fn what_may_go_goes_where_nothing_is_free() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(128 << 20));
    let clock: Arc<dyn Clock> = Arc::new(Looked::default());
    mkfs(&device, &clock, &MkfsOptions { segment_blocks: 512, ..MkfsOptions::default() }).unwrap();
    let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = Fs::open(vec![device], clock, options).unwrap();
    let f =
        fs.create(Ino::ROOT, b"f", &NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" }).unwrap().ino;
    let blocks = 6000;
    for pass in 0..2_u8 {
        for i in 0..blocks {
            fs.write(f, i * 7919 % blocks * 2 * 4096, &[pass; 4096], 0).unwrap();
        }
        fs.sync_all().unwrap();
        if pass == 0 {
            fs.checkpoint_create(None).unwrap();
        }
    }
    fs.index_checkpoint(false).unwrap();
    let cno = fs.checkpoints()[0].cno;
    fs.checkpoint_drop(&[cno]).unwrap();
    fs.index_checkpoint(false).unwrap();
    assert_eq!(fs.usage().history_blocks, blocks);
    leave_free(&fs, 3);
    let before = fs.counters().index_checkpoints;
    for _ in 0..30 {
        fs.tick().unwrap();
    }
    assert_eq!(fs.usage().history_blocks, 0, "what may go is still there");
    let made = fs.counters().index_checkpoints - before;
    assert!(made < 60, "{made} index checkpoints");
    // What it occupied is free.
    let free = fs.lock().state.segments.free_count();
    assert!(free >= 10, "{free}");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what may go is still there")]
fn open_segments_that_do_not_count_are_noticed() {
    crate::breaks::with(crate::breaks::Break::OpenSegmentsUncounted, what_may_go_goes_where_nothing_is_free);
}

/// A small volume, new.
fn small() -> (Arc<dyn BlockDevice>, Arc<dyn Clock>, Arc<Fs>) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    let clock: Arc<dyn Clock> = Arc::new(Looked::default());
    mkfs(&device, &clock, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() }).unwrap();
    let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = Fs::open(vec![device.clone()], clock.clone(), options).unwrap();
    // Twice, so that nothing waits to become free.
    fs.index_checkpoint(false).unwrap();
    fs.index_checkpoint(false).unwrap();
    (device, clock, fs)
}

/// No segment is free to go on in, for the newest root; for the one before so many.
fn full(free_before: u64) -> (Arc<dyn BlockDevice>, Arc<dyn Clock>) {
    let (device, clock, fs) = small();
    let chain = fs.lock().chain.segment;
    fs.lock().segments().add_live(Addr::new(chain, 200), 1);
    for free in [free_before, free_before, free_before, free_before, 0] {
        let mut inner = fs.lock();
        let next = inner.chain.next.take();
        let taken = |inner: &mut Inner| {
            let more = inner.segments().free_count() > free;
            more.then(|| inner.segments().allocate(KIND_DATA, Time(1))).flatten()
        };
        for segment in next.into_iter().chain(std::iter::from_fn(|| taken(&mut inner)).collect::<Vec<_>>()) {
            inner.segments().add_live(Addr::new(segment, 1), 255);
            inner.segments().seal(segment);
        }
        drop(inner);
        fs.index_checkpoint_as_is(false).unwrap();
    }
    (device, clock)
}

fn mount_without_room(free_before: u64) {
    let (device, clock) = full(free_before);
    let open =
        |read_only| Fs::open(vec![device.clone()], clock.clone(), MountOptions { read_only, ..Default::default() });
    let opened = open(false).map(|fs| fs.recovery_report().damage.clone());
    assert!(opened.is_err(), "what the newest root uses is taken for free: {opened:?}");
    assert!(matches!(opened, Err(Error::NoSpace)), "a full volume is taken for damaged: {opened:?}");
    assert_eq!(open(true).unwrap().recovery_report().damage, None);
}

#[test]
fn a_volume_without_room_is_not_damaged() {
    mount_without_room(0);
}

/// What the older root leaves free the newest one may use.
#[test]
fn a_root_without_room_is_not_left_for_an_older_one() {
    mount_without_room(6);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what the newest root uses is taken for free")]
fn what_an_older_root_leaves_free_is_noticed() {
    crate::breaks::with(crate::breaks::Break::FullIsDamage, || mount_without_room(6));
}

/// The newest root is damaged, and the one before has no room: all is shown.
#[test]
fn no_room_behind_an_older_root_hides_nothing() {
    let (device, clock) = full(0);
    let newest = crate::probe(&*device).unwrap().newest().unwrap().clone();
    for (addr, _) in newest.root {
        let block = AREA_BLOCKS + addr.segment().0 * 256 + u64::from(addr.block());
        device.write(block * 4096, Arc::new(AlignedBuf::padded(&[0xa5; 4096]))).unwrap();
    }
    for read_only in [false, true] {
        let options = MountOptions { read_only, ..MountOptions::default() };
        let fs = Fs::open(vec![device.clone()], clock.clone(), options).unwrap();
        let damage = fs.recovery_report().damage.clone();
        assert!(read_only || damage.is_some_and(|d| d.contains("no segment is free")));
        assert!(
            fs.create(Ino::ROOT, b"x", &NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" }).is_err()
        );
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a full volume is taken for damaged")]
fn a_full_volume_that_is_taken_for_damaged_is_noticed() {
    crate::breaks::with(crate::breaks::Break::FullIsDamage, || mount_without_room(0));
}

/// A process has died and left three free segments, of which its log has taken one ahead.
fn three_free() -> (Arc<dyn BlockDevice>, Arc<dyn Clock>) {
    let (device, clock, fs) = small();
    while fs.lock().state.segments.free_count() > 2 {
        // Nobody's, and in use: what is stated is believed by who mounts.
        let mut inner = fs.lock();
        let segment = inner.segments().allocate(KIND_DATA, Time(1)).unwrap();
        inner.segments().add_live(Addr::new(segment, 1), 255);
        inner.segments().seal(segment);
    }
    fs.index_checkpoint_as_is(false).unwrap();
    let inner = fs.lock();
    assert!(inner.chain.next.is_some() && inner.state.segments.free_count() == 2);
    drop(inner);
    (device, clock)
}

/// That is enough to mount, for the log and for both copies of the index. And it is enough time and again, although each mount leaves its
/// index segments with hardly a node.
#[test]
fn three_free_segments_are_enough_to_mount() {
    let (device, clock) = three_free();
    for mount in 0..6 {
        let opened = Fs::open(vec![device.clone()], clock.clone(), MountOptions::default());
        assert!(opened.is_ok(), "mount {mount} found no room: {:?}", opened.err());
        let fs = opened.unwrap();
        for _ in 0..30 {
            fs.tick().unwrap();
        }
        assert_eq!(fs.failed(), None);
    }
}

/// What a mount of this leaves that is cut off after so many writes; whether it was.
fn cut_after(image: Vec<u8>, writes: u64, clock: &Arc<dyn Clock>) -> (Vec<u8>, bool) {
    let device = Arc::new(Faulty::new(MemDevice::from_bytes(image)));
    device.faults().inject(Fault::Fail { kind: OpKind::Write, from: writes + 1, times: u64::MAX });
    drop(Fs::open(vec![device.clone()], clock.clone(), MountOptions::default()));
    (device.inner().snapshot(), device.faults().fired() > 0)
}

fn cut_at_every_write_of_a_mount() {
    let (device, clock) = three_free();
    let image = device.read(0, device.geometry().bytes as usize).unwrap().to_vec();
    let mut cuts = 0;
    for first in 0.. {
        let (once, was_cut) = cut_after(image.clone(), first, &clock);
        if !was_cut {
            break;
        }
        for second in (0..).step_by(5) {
            let (twice, was_cut) = cut_after(once.clone(), second, &clock);
            cuts += 1;
            let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(twice));
            let opened = Fs::open(vec![device.clone()], clock.clone(), MountOptions::default());
            assert!(opened.is_ok(), "cut after {first} and {second} writes there is no room: {:?}", opened.err());
            let fs = opened.unwrap();
            fs.tick().unwrap();
            fs.close().unwrap();
            drop(fs);
            let fs = Fs::open(vec![device], clock.clone(), MountOptions::default()).unwrap();
            fs.getattr(At::Live, Ino::ROOT).unwrap();
            if !was_cut {
                break;
            }
        }
    }
    assert!(cuts > 10, "{cuts}");
}

/// P1, P7: what a mount takes of the last room it does not take from the next one.
#[test]
fn a_mount_without_room_that_is_cut_anywhere_is_no_obstacle() {
    cut_at_every_write_of_a_mount();
}

/// Nor do many, one after the other, that all end at the same place.
#[test]
fn mounts_without_room_that_are_cut_again_and_again_are_no_obstacle() {
    let (device, clock) = three_free();
    let image = device.read(0, device.geometry().bytes as usize).unwrap().to_vec();
    for writes in 0.. {
        let (mut image, mut was_cut) = (image.clone(), true);
        for _ in 0..10 {
            (image, was_cut) = cut_after(image, writes, &clock);
        }
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(image));
        let opened = Fs::open(vec![device], clock.clone(), MountOptions::default());
        assert!(opened.is_ok(), "cut ten times after {writes} writes there is no room: {:?}", opened.err());
        if !was_cut {
            break;
        }
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "there is no room")]
fn mounts_that_begin_segments_are_noticed() {
    crate::breaks::with(crate::breaks::Break::MountsBeginSegments, cut_at_every_write_of_a_mount);
}

/// Memory: nobody ticks, or an index checkpoint takes long, and what it writes is all there is of changed nodes.
#[test]
fn who_changes_names_waits_for_index_checkpoints() {
    let fs = mount(&device(64, 64), MountOptions { dirty_nodes_max: 8, ..MountOptions::default() });
    let mut most = 0;
    for i in 0..3000 {
        create(&fs, &format!("file number {i}"));
        most = most.max(fs.lock().dirty_nodes());
    }
    assert!(most < 2 * 8 + 12, "{most}");
    let counted = fs.counters();
    assert!(counted.held_for_memory > 0 && counted.index_checkpoints >= counted.held_for_memory, "{counted:?}");
    for i in 0..3000 {
        fs.unlink(Ino::ROOT, format!("file number {i}").as_bytes()).unwrap();
        most = most.max(fs.lock().dirty_nodes());
    }
    assert!(most < 2 * 8 + 12, "{most}");
    fs.close().unwrap();
}

/// Nor does who reaps for room.
#[test]
fn who_reaps_for_room_waits_for_index_checkpoints() {
    let fs = mount(&device(160, 64), MountOptions { dirty_nodes_max: 4, ..MountOptions::default() });
    let ino = create(&fs, "f");
    (0..20_000).for_each(|n| assert_eq!(fs.write(ino, n * 2 * 4096, &[1; 4096], 0).unwrap(), 4096));
    fs.sync_all().unwrap();
    fs.unlink(Ino::ROOT, b"f").unwrap();
    let (before, leaves) = (fs.counters().index_checkpoints, fs.lock().state.live.nodes());
    fs.reap_for_room().unwrap();
    let (after, left) = (fs.counters().index_checkpoints, fs.lock().state.live.nodes());
    assert!(leaves - left > 2 * 4 && after > before, "{before} {after} {leaves} {left}");
    fs.close().unwrap();
}
