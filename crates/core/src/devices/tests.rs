//! Several memory devices as one volume, some of which fail.

mod in_rows;

use super::*;
use nenrin_device::{CrashChoice, CrashDisk, Fault, Faults, Faulty, MemDevice, Observed, Observer, OpKind};
use nenrin_format::superblock::{Band, DeviceEntry, Profile};
use nenrin_format::{Addr, Epoch, Generation, Seq, Time};

/// Some superblock.
pub(super) fn superblock() -> Superblock {
    Superblock {
        device_index: 0,
        uuid: [7; 16],
        features: [0; 3],
        generation: Generation(5),
        epoch: Epoch(1),
        segment_blocks: 128,
        profile: Profile::Mirror,
        stripe_shift: 16,
        clean: false,
        hash_key: [0; 16],
        mount_id: 1,
        troubles: Default::default(),
        scrubbed: None,
        made_at: Time(0),
        written_at: Time(0),
        mounted_nanos: 0,
        root: [(Addr::NONE, 0); 2],
        root_blocks: 0,
        chain: (SegmentNo(0), 0),
        chain_next: None,
        chain_seq: Seq(0),
        chain_last: Addr::NONE,
        chain_crc: 0,
        label: Vec::new(),
        devices: Vec::new(),
        bands: Vec::new(),
    }
}

struct World {
    devices: Arc<Devices>,
    faults: Vec<Faults>,
    observers: Vec<Observer>,
    /// Flushes of each device when the test began.
    flushed: u64,
}

impl World {
    /// Devices of which nothing waits for a flush.
    fn new(width: u8, copies: u8) -> Self {
        let this = Self { flushed: 1, ..Self::unflushed(width, copies) };
        this.devices.flush().unwrap();
        this
    }
    /// Devices as they are opened.
    fn unflushed(width: u8, copies: u8) -> Self {
        let (mut given, mut faults, mut observers) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..width {
            let faulty = Faulty::new(MemDevice::new(4 << 20));
            faults.push(faulty.faults());
            let observed = Observed::new(faulty);
            observers.push(observed.observer());
            given.push(Some(Arc::new(observed) as Arc<dyn BlockDevice>));
        }
        let members = (0..width).map(|d| (d, 0)).collect();
        let entry = DeviceEntry::active([0; 16], 1024, 1);
        let superblock = Superblock {
            devices: vec![entry; usize::from(width)],
            bands: vec![Band { first: SegmentNo(0), segments: 6, copies, parity: false, members }],
            ..superblock()
        };
        let devices = Devices::open(given, &[], superblock, Vec::new(), false);
        Self { devices, faults, observers, flushed: 0 }
    }
    fn flushes(&self) -> Vec<u64> {
        self.observers.iter().map(|o| o.counters().flushes - self.flushed).collect()
    }
    fn writes(&self) -> Vec<u64> {
        self.observers.iter().map(|o| o.counters().writes).collect()
    }
}

fn at(segment: u64, block: u32) -> Addr {
    Addr::new(SegmentNo(segment), block)
}

fn data(seed: u8, blocks: usize) -> Arc<AlignedBuf> {
    let bytes: Vec<u8> = (0..blocks * BLOCK_BYTES).map(|i| seed.wrapping_add((i / BLOCK_BYTES) as u8)).collect();
    Arc::new(AlignedBuf::padded(&bytes))
}

#[test]
fn what_is_written_is_read_whatever_the_shape() {
    for (width, copies) in [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2)] {
        let w = World::new(width, copies);
        w.devices.write(at(1, 0), data(100, 128)).unwrap();
        w.devices.write_flush(at(1, 10), data(1, 3), Covering::All).unwrap();
        w.devices.write(at(1, 14), data(20, 40)).unwrap();
        let all = w.devices.read(at(1, 0), 128, None).unwrap();
        for block in 0..128u32 {
            let want = match block {
                10..=12 => 1 + block - 10,
                14..=53 => 20 + block - 14,
                _ => (100 + block) % 256,
            };
            assert_eq!(
                u32::from(all[block as usize * BLOCK_BYTES]),
                want,
                "width {width}, copies {copies}, block {block}"
            );
        }
        assert_eq!(w.devices.read(at(1, 30), 5, None).unwrap()[..], all[30 * BLOCK_BYTES..35 * BLOCK_BYTES]);
    }
}

/// Decision 0026: a sync beside an index checkpoint waits for no root slot.
#[test]
fn root_slots_are_flushed_by_who_asks_for_them() {
    let w = World::new(4, 1);
    let root = Superblock { bands: w.devices.layout().bands().to_vec(), ..superblock() };
    w.devices.write_slots(&root).unwrap();
    w.devices.write_flush(at(0, 17), data(1, 2), Covering::All).unwrap();
    w.devices.flush_segments().unwrap();
    assert_eq!(w.flushes(), [0, 1, 0, 0], "a sync flushed because of root slots");
    // Of the second one the sync has made durable what it wrote, and nothing else.
    w.devices.flush().unwrap();
    assert_eq!(w.flushes(), [1, 2, 1, 1]);
    w.devices.flush().unwrap();
    assert_eq!(w.flushes(), [1, 2, 1, 1]);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a sync flushed because of root slots")]
fn a_sync_that_flushes_because_of_root_slots_is_noticed() {
    crate::breaks::with(crate::breaks::Break::CommitAwaitsRoots, root_slots_are_flushed_by_who_asks_for_them);
}

#[test]
fn a_small_sync_on_a_stripe_touches_one_device() {
    let w = World::new(4, 1);
    let (writes, flushes) = (w.writes(), w.flushes());
    w.devices.write_flush(at(0, 17), data(1, 2), Covering::All).unwrap();
    let grown = |now: Vec<u64>, before: Vec<u64>| now.iter().zip(before).map(|(a, b)| a - b).collect::<Vec<_>>();
    assert_eq!(grown(w.writes(), writes), [0, 1, 0, 0]);
    assert_eq!(grown(w.flushes(), flushes), [0, 1, 0, 0]);
}

#[test]
fn a_sync_flushes_each_device_that_has_something_unflushed_and_no_other() {
    let w = World::new(4, 1);
    w.devices.write(at(0, 32), data(1, 16)).unwrap();
    w.devices.write_flush(at(0, 0), data(1, 2), Covering::All).unwrap();
    assert_eq!(w.flushes(), [1, 0, 1, 0]);
    w.devices.flush().unwrap();
    assert_eq!(w.flushes(), [1, 0, 1, 0], "nothing was written since");
    w.devices.write(at(0, 48), data(1, 16)).unwrap();
    w.devices.flush().unwrap();
    assert_eq!(w.flushes(), [1, 0, 1, 1]);
}

/// A volume on this device alone.
fn solo(device: Arc<dyn BlockDevice>) -> Arc<Devices> {
    let superblock = Superblock {
        devices: vec![DeviceEntry::active([0; 16], 1024, 1)],
        bands: vec![Band { first: SegmentNo(0), segments: 6, copies: 1, parity: false, members: vec![(0, 0)] }],
        ..superblock()
    };
    Devices::open(vec![Some(device)], &[], superblock, Vec::new(), false)
}

/// What a sync of these leaves after a power cut that takes all that may be taken, and operations of the disk for the last one.
fn synced_and_cut(syncs: impl FnOnce(&Arc<Devices>) -> Addr) -> (Vec<u8>, usize) {
    let disk = Arc::new(CrashDisk::new(4 << 20));
    let devices = solo(disk.clone());
    let before = disk.cut_points();
    let looked_at = syncs(&devices);
    let place = devices.layout().alone(looked_at).unwrap();
    let image = disk.image(&CrashChoice::from_seed(CrashChoice::SEED_DROPPED));
    (image.read(requests::bytes(place.block), BLOCK_BYTES).unwrap().to_vec(), disk.cut_points() - before)
}

fn a_sync_leaves_nothing_behind() {
    let (bytes, _) = synced_and_cut(|devices| {
        devices.flush().unwrap();
        devices.write(at(1, 5), data(7, 1)).unwrap();
        devices.write_flush(at(1, 9), data(8, 1), Covering::All).unwrap();
        at(1, 5)
    });
    assert_eq!(bytes[..], data(7, 1)[..], "a sync left what was written before it");
    let (bytes, _) = synced_and_cut(|devices| {
        devices.flush().unwrap();
        devices.submit_write(at(1, 5), data(7, 1)).wait().unwrap();
        devices.write_flush(at(1, 9), data(8, 1), Covering::All).unwrap();
        at(1, 5)
    });
    assert_eq!(bytes[..], data(7, 1)[..], "a sync left what was written before it");
}

#[test]
fn a_sync_covers_all_that_was_written_before_it() {
    a_sync_leaves_nothing_behind();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a sync left what was written before it")]
fn a_sync_that_covers_itself_alone_is_noticed() {
    crate::breaks::with(crate::breaks::Break::UncoveredLeft, a_sync_leaves_nothing_behind);
}

/// What a process that died wrote to the only device, and what the chain found there goes on from: the first sync of a mount flushes.
fn the_first_sync_of_a_mount_covers_what_was_there() {
    for covering in [Covering::All, Covering::Itself] {
        let disk = Arc::new(CrashDisk::new(4 << 20));
        let offset = 700 * BLOCK_BYTES as u64;
        disk.write(offset, data(7, 1)).unwrap();
        solo(disk.clone()).write_flush(at(1, 9), data(8, 1), covering).unwrap();
        let image = disk.image(&CrashChoice::from_seed(CrashChoice::SEED_DROPPED));
        let bytes = image.read(offset, BLOCK_BYTES).unwrap();
        assert_eq!(bytes[..], data(7, 1)[..], "what an earlier mount wrote was not flushed");
    }
}

#[test]
fn the_first_sync_covers_what_an_earlier_mount_wrote() {
    the_first_sync_of_a_mount_covers_what_was_there();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what an earlier mount wrote was not flushed")]
fn a_first_sync_that_covers_itself_alone_is_noticed() {
    crate::breaks::with(crate::breaks::Break::FirstFlushPartial, the_first_sync_of_a_mount_covers_what_was_there);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what an earlier mount wrote was not flushed")]
fn a_first_sync_that_names_nothing_and_covers_itself_alone_is_noticed() {
    crate::breaks::with(crate::breaks::Break::FirstLeft, the_first_sync_of_a_mount_covers_what_was_there);
}

/// What others wrote is left in the cache by a commit that names nothing of it, and covered by the next that does.
#[test]
fn what_a_commit_does_not_name_is_left_to_others() {
    let what_is_there = |block, then: Option<Covering>| {
        synced_and_cut(|devices| {
            devices.flush().unwrap();
            devices.write(at(1, 5), data(7, 1)).unwrap();
            devices.write_flush(at(1, 9), data(8, 1), Covering::Itself).unwrap();
            then.into_iter().for_each(|c| devices.write_flush(at(1, 10), data(9, 1), c).unwrap());
            at(1, block)
        })
    };
    let nothing = vec![0; BLOCK_BYTES];
    // A flush, a write, and one that is durable by itself, which counts as two.
    assert_eq!(what_is_there(9, None), (data(8, 1).to_vec(), 4));
    assert_eq!(what_is_there(5, None).0, nothing);
    assert_eq!(what_is_there(5, Some(Covering::Itself)).0, nothing);
    assert_eq!(what_is_there(5, Some(Covering::All)).0, data(7, 1).to_vec());
}

/// A disk whose next flush has begun when something else is called, and returns after that.
struct Meanwhile {
    disk: Arc<CrashDisk>,
    called: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl BlockDevice for Meanwhile {
    fn geometry(&self) -> nenrin_device::Geometry {
        self.disk.geometry()
    }
    fn submit(&self, op: Op) -> Ticket {
        let ticket = self.disk.submit(op.clone());
        let called = matches!(op, Op::Flush).then(|| self.called.lock().unwrap().take()).flatten();
        called.into_iter().for_each(|call| call());
        ticket
    }
    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.disk.write_durable(offset, data)
    }
}

/// What completes while a flush is under way may be too late for it: the next sync covers it.
fn what_completes_beside_a_flush(flushes: fn(&Arc<Devices>) -> Result<(), DeviceError>) {
    let disk = Arc::new(CrashDisk::new(4 << 20));
    let device = Arc::new(Meanwhile { disk: disk.clone(), called: Mutex::default() });
    let devices = solo(device.clone());
    devices.flush().unwrap();
    devices.write(at(1, 2), data(6, 1)).unwrap();
    let writes = devices.clone();
    *device.called.lock().unwrap() = Some(Box::new(move || writes.write(at(1, 5), data(7, 1)).unwrap()));
    flushes(&devices).unwrap();
    devices.write_flush(at(1, 9), data(8, 1), Covering::All).unwrap();
    let place = devices.layout().alone(at(1, 5)).unwrap();
    let image = disk.image(&CrashChoice::from_seed(CrashChoice::SEED_DROPPED));
    let bytes = image.read(requests::bytes(place.block), BLOCK_BYTES).unwrap();
    assert_eq!(bytes[..], data(7, 1)[..], "a sync left what was written before it");
}

#[test]
fn what_completes_beside_a_flush_is_covered_by_the_next() {
    what_completes_beside_a_flush(|devices| devices.flush());
    what_completes_beside_a_flush(|devices| devices.write_flush(at(1, 8), data(5, 1), Covering::All));
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a sync left what was written before it")]
fn a_flush_that_covers_what_completes_beside_it_is_noticed() {
    crate::breaks::with(crate::breaks::Break::CoversBeside, || {
        what_completes_beside_a_flush(|devices| devices.flush());
    });
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a sync left what was written before it")]
fn a_sync_that_covers_what_completes_beside_it_is_noticed() {
    crate::breaks::with(crate::breaks::Break::CoversBeside, || {
        what_completes_beside_a_flush(|devices| devices.write_flush(at(1, 8), data(5, 1), Covering::All));
    });
}

/// Where nothing else waits for a flush, what a sync writes is made durable alone; the disk of the simulator counts that as a change and a
/// flush of it alone, so that what was not known to be there is not covered.
#[test]
fn a_sync_with_nothing_before_it_is_durable_by_itself() {
    let late = |devices: &Arc<Devices>| {
        devices.flush().unwrap();
        devices.write_flush(at(1, 9), data(8, 1), Covering::All).unwrap();
        // Nobody has waited for it, so nobody counts on it.
        let late = devices.submit_write(at(1, 5), data(7, 1));
        devices.write_flush(at(1, 10), data(9, 1), Covering::All).unwrap();
        drop(late);
    };
    let (bytes, operations) = synced_and_cut(|devices| {
        late(devices);
        at(1, 10)
    });
    assert_eq!((&bytes[..], operations), (&data(9, 1)[..], 6));
    let (bytes, _) = synced_and_cut(|devices| {
        late(devices);
        at(1, 5)
    });
    assert_eq!(bytes, [0; BLOCK_BYTES]);
}

/// The same on a stripe: one device takes part.
#[test]
fn a_commit_on_a_stripe_leaves_the_other_devices_alone() {
    let w = World::new(4, 1);
    w.devices.write(at(0, 32), data(1, 16)).unwrap();
    w.devices.write(at(0, 1), data(1, 1)).unwrap();
    w.devices.write_flush(at(0, 0), data(1, 1), Covering::Itself).unwrap();
    assert_eq!(w.flushes(), [1, 0, 0, 0], "what is durable by itself counts as a flush, of its own device");
    w.devices.write_flush(at(0, 2), data(1, 1), Covering::All).unwrap();
    assert_eq!(w.flushes(), [2, 0, 1, 0]);
    // On two devices it is a flush of all that wait for one.
    w.devices.write(at(0, 48), data(1, 16)).unwrap();
    w.devices.write_flush(at(0, 15), data(1, 2), Covering::Itself).unwrap();
    assert_eq!(w.flushes(), [3, 1, 1, 1]);
}

/// What an earlier mount left on any of the devices is covered by the first, whatever that names.
#[test]
fn the_first_commit_on_a_stripe_covers_all_devices() {
    let w = World::unflushed(4, 1);
    w.devices.write_flush(at(0, 0), data(1, 1), Covering::Itself).unwrap();
    let flushes = w.flushes();
    assert!(flushes.iter().all(|f| *f == 1), "{flushes:?}");
}

/// A process that died may have left something unflushed on any of them.
#[test]
fn the_first_flush_goes_to_all_devices() {
    let w = World { flushed: 0, ..World::new(4, 1) };
    assert_eq!(w.flushes(), [1, 1, 1, 1], "devices were not flushed");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "devices were not flushed")]
fn a_first_flush_of_some_devices_is_noticed() {
    crate::breaks::with(crate::breaks::Break::FirstFlushPartial, the_first_flush_goes_to_all_devices);
}

#[test]
fn a_mirrored_write_goes_to_two_devices_in_one_piece() {
    let w = World::new(2, 2);
    w.devices.write_flush(at(0, 3), data(1, 60), Covering::All).unwrap();
    assert_eq!((w.writes(), w.flushes()), (vec![1, 1], vec![1, 1]));
}

#[test]
fn large_requests_are_merged() {
    let w = World::new(4, 1);
    w.devices.write(at(0, 0), data(1, 128)).unwrap();
    assert_eq!(w.writes(), [1, 1, 1, 1]);
    let reads = |w: &World| w.observers.iter().map(|o| o.counters().reads).collect::<Vec<_>>();
    w.devices.read(at(0, 0), 128, None).unwrap();
    assert_eq!(reads(&w), [1, 1, 1, 1]);
}

/// Device 1 fails a write: it is left out, the others say so before the write is told to be done.
#[test]
fn a_device_that_fails_is_left_out_and_the_roots_say_so() {
    for kind in [OpKind::Write, OpKind::Flush] {
        let w = World::new(2, 2);
        w.devices.write_flush(at(0, 0), data(1, 4), Covering::All).unwrap();
        w.faults[1].inject(Fault::Fail { kind, from: 1, times: u64::MAX });
        w.devices.write_flush(at(0, 4), data(9, 4), Covering::All).unwrap();
        let health = w.devices.health();
        assert_eq!((health[0].standing, health[1].standing), (Standing::Active, Standing::Absent));
        assert!(health[1].why.as_ref().unwrap().starts_with("it failed"), "{:?}", health[1].why);
        let device = w.devices.active()[0].1.clone();
        let probe = crate::storage::probe(device.as_ref()).unwrap();
        let newest = probe.newest().unwrap();
        assert_eq!(
            newest.devices.iter().map(|d| (d.active, d.member_generation)).collect::<Vec<_>>(),
            [(true, 1), (false, 2)]
        );
        assert_eq!(probe.slots.iter().filter(|(_, s)| matches!(s, crate::SlotState::Valid(_))).count(), 2);
        assert_eq!(w.devices.read(at(0, 4), 4, None).unwrap()[..], data(9, 4)[..]);
        // Both cannot be lost.
        w.faults[0].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: 1 });
        assert!(w.devices.write(at(0, 8), data(1, 1)).is_err());
        assert_eq!(w.devices.health()[0].standing, Standing::Active);
    }
}

/// Until the others say that it is absent what it failed to write is under way: so nobody copies that from it, nor takes its place.
#[test]
fn what_failed_is_under_way_until_that_is_known() {
    let disk = Arc::new(Meanwhile { disk: Arc::new(CrashDisk::new(4 << 20)), called: Mutex::default() });
    let faulty = Faulty::new(MemDevice::new(4 << 20));
    faulty.faults().inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    let superblock = Superblock {
        devices: vec![DeviceEntry::active([0; 16], 1024, 1); 2],
        bands: vec![Band { first: SegmentNo(0), segments: 6, copies: 2, parity: false, members: vec![(0, 0), (1, 0)] }],
        ..superblock()
    };
    let given: Vec<Arc<dyn BlockDevice>> = vec![disk.clone(), Arc::new(faulty)];
    let devices = Devices::open(given.into_iter().map(Some).collect(), &[], superblock, Vec::new(), false);
    let (told, was_writing) = std::sync::mpsc::channel();
    let looks = devices.clone();
    // The first flush is that of the table which says so.
    *disk.called.lock().unwrap() = Some(Box::new(move || told.send(looks.is_writing()).unwrap()));
    devices.write(at(1, 0), data(1, 4)).unwrap();
    assert_eq!(devices.health()[1].standing, Standing::Absent);
    assert!(was_writing.try_recv().unwrap(), "what failed counts as written");
    assert!(!devices.is_writing());
}

#[test]
fn a_stripe_bears_no_failure() {
    let w = World::new(2, 1);
    w.faults[1].inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    w.devices.write_flush(at(0, 0), data(1, 4), Covering::All).unwrap();
    assert!(w.devices.write_flush(at(0, 14), data(1, 4), Covering::All).is_err());
    assert!(w.devices.health().iter().all(|h| h.standing == Standing::Active));
}

#[test]
fn a_read_that_fails_is_answered_by_the_other_device() {
    for width in [2, 3, 4] {
        let w = World::new(width, 2);
        w.devices.write_flush(at(2, 0), data(1, 128), Covering::All).unwrap();
        let whole = w.devices.read(at(2, 0), 128, None).unwrap();
        for i in 0..usize::from(width) {
            w.faults[i].inject(Fault::Fail { kind: OpKind::Read, from: 1, times: u64::MAX });
            assert_eq!(w.devices.read(at(2, 0), 128, None).unwrap()[..], whole[..], "device {i} of {width}");
            w.faults[i].clear();
        }
        let errors: u64 = w.devices.health().iter().map(|h| h.read_errors).sum();
        assert!(errors > 0 && w.devices.health().iter().all(|h| h.standing == Standing::Active));
    }
}

/// One device holds wrong bytes: reading around it gives the right ones.
#[test]
fn there_is_a_way_around_each_device() {
    for width in [2, 3, 4] {
        let w = World::new(width, 2);
        w.devices.write_flush(at(2, 0), data(1, 128), Covering::All).unwrap();
        assert_eq!(w.devices.alternatives(at(2, 0), 128), (0..u16::from(width)).collect::<Vec<_>>());
        for i in 0..width {
            w.faults[usize::from(i)].inject(Fault::FlipReads { range: 0..4 << 20, mask: 0xff });
            assert_eq!(
                w.devices.read(at(2, 0), 128, Some(u16::from(i))).unwrap()[..],
                data(1, 128)[..],
                "{i} of {width}"
            );
            w.faults[usize::from(i)].clear();
        }
    }
    assert!(World::new(4, 1).devices.alternatives(at(2, 0), 128).is_empty());
}

impl World {
    /// The same volume again, as if device `index` had missed something.
    fn with_stale(self, index: u16) -> Self {
        let superblock = self.devices.table().superblock.clone().unwrap();
        let devices = self.devices.roster().members.iter().map(|m| m.device.clone()).collect();
        Self { devices: Devices::open(devices, &[index], superblock, Vec::new(), false), ..self }
    }
}

/// What is written while it is copied is copied again, whether the write began before or in the middle.
#[test]
fn what_is_written_meanwhile_is_copied_again() {
    let w = World::new(2, 2).with_stale(1);
    w.devices.write_flush(at(1, 0), data(1, 64), Covering::All).unwrap();
    w.devices.begin_joining(1, None);
    let early = w.devices.submit_write(at(1, 3), data(50, 2));
    assert_eq!(w.devices.copy(at(1, 0), 64, Some(&[Vec::new(), Vec::new()])).unwrap(), Copied::Busy);
    assert!(
        matches!(
            w.devices.copy(at(2, 0), 64, Some(&[Vec::new(), Vec::new()])).unwrap(),
            Copied::Done { blocks: 64, .. }
        ),
        "others do not matter"
    );
    early.wait().unwrap();
    // It begins and ends between reading and writing.
    assert!(w.devices.open_window(at(1, 0), 64));
    w.devices.write(at(1, 63), data(70, 1)).unwrap();
    assert!(!w.devices.close_window());
    assert!(w.devices.open_window(at(1, 0), 64));
    w.devices.write(at(1, 64), data(71, 1)).unwrap();
    assert!(w.devices.close_window());
    assert_eq!(
        w.devices.copy(at(1, 0), 64, Some(&[Vec::new(), Vec::new()])).unwrap(),
        Copied::Done { blocks: 64, unreadable: 0 }
    );
    assert!(w.devices.end_joining([0; 16]).unwrap());
    for avoid in 0..2 {
        let all = w.devices.read(at(1, 0), 65, Some(avoid)).unwrap();
        let block = |i: usize| all[i * BLOCK_BYTES];
        assert_eq!([block(2), block(3), block(4), block(63), block(64)], [3, 50, 51, 70, 71], "without {avoid}");
    }
}

/// A flush is for those whose content counts: who joins is flushed at the end, and with every sync from then on.
#[test]
fn who_joins_is_flushed_when_it_has_everything() {
    let w = World::new(2, 2).with_stale(1);
    w.devices.settle().unwrap();
    w.devices.begin_joining(1, None);
    let flushes = w.flushes();
    for i in 0..5 {
        w.devices.write_flush(at(0, i), data(1, 1), Covering::All).unwrap();
    }
    assert_eq!((w.flushes()[0] - flushes[0], w.flushes()[1] - flushes[1]), (5, 0));
    w.devices.roster().joining.as_ref().unwrap().stand(ENTERING);
    w.devices.write_flush(at(0, 9), data(1, 1), Covering::All).unwrap();
    assert_eq!((w.flushes()[0] - flushes[0], w.flushes()[1] - flushes[1]), (6, 1));
}

/// While a device takes another's place on a stripe, a commit that names nothing covers what it has all the same.
fn a_device_that_enters_is_covered() {
    let w = World::new(2, 1);
    let joiner = Observed::new(MemDevice::new(4 << 20));
    let observer = joiner.observer();
    w.devices.begin_joining(1, Some(Arc::new(joiner)));
    w.devices.roster().joining.as_ref().unwrap().stand(ENTERING);
    w.devices.flush().unwrap();
    w.devices.write(at(0, 16), data(1, 1)).unwrap();
    let before = observer.counters().flushes;
    w.devices.write_flush(at(0, 0), data(1, 1), Covering::Itself).unwrap();
    assert_eq!(observer.counters().flushes - before, 1, "a device that enters was not flushed");
}

#[test]
fn no_commit_leaves_a_device_that_enters() {
    a_device_that_enters_is_covered();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a device that enters was not flushed")]
fn a_commit_that_leaves_a_device_that_enters_is_noticed() {
    crate::breaks::with(crate::breaks::Break::EnteringLeft, a_device_that_enters_is_covered);
}

/// Who registered a write while a device joined was told that it does: the device gets it, although it has its place by now.
fn who_takes_its_place_gets_what_was_registered_before() {
    for (width, copies, index, new) in [(1, 1, 0, true), (2, 1, 1, true), (2, 2, 0, true), (2, 2, 1, false)] {
        let w = World::new(width, copies);
        let w = if new { w } else { w.with_stale(index) };
        w.devices.settle().unwrap();
        w.devices.begin_joining(index, new.then(|| Arc::new(MemDevice::new(4 << 20)) as Arc<dyn BlockDevice>));
        let early = w.devices.enter(at(1, 0), 64);
        assert!(w.devices.end_joining([9; 16]).unwrap());
        let joined = w.devices.roster().member(index).unwrap().clone();
        let (parts, _) = Devices::write_runs(&early.roster, at(1, 0), 64).unwrap();
        let blocks: u32 = parts.iter().filter(|(m, _)| Arc::ptr_eq(m, &joined)).map(|(_, run)| run.blocks).sum();
        assert_eq!(blocks, if width > copies { 32 } else { 64 }, "who took its place misses a write");
        early.end();
    }
}

#[test]
fn a_device_that_has_its_place_gets_what_was_registered_before() {
    who_takes_its_place_gets_what_was_registered_before();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "who took its place misses a write")]
fn a_write_that_misses_who_took_its_place_is_noticed() {
    crate::breaks::with(Break::SeatedDeaf, who_takes_its_place_gets_what_was_registered_before);
}

/// What one copy cannot give the other does, block by block, whichever device is replaced.
fn each_block_comes_from_where_it_can_be_read() {
    for replaced in 0..2u16 {
        let w = World::new(2, 2);
        w.devices.write_flush(at(1, 0), data(1, 64), Covering::All).unwrap();
        let place = |device: u16, block: u32| {
            let roster = w.devices.roster();
            let mut found = None;
            roster.layout.each_piece(at(1, block), 1, |_, _, places| {
                found = places.iter().find(|p| p.device == device).map(|p| p.block * BLOCK_BYTES as u64);
            });
            found.unwrap()
        };
        let other = 1 - replaced;
        for (device, block) in [(replaced, 5), (other, 9)] {
            let from = place(device, block);
            w.faults[usize::from(device)].inject(Fault::FailReads { range: from..from + BLOCK_BYTES as u64 });
        }
        // Both at once, whichever is asked first.
        assert_eq!(w.devices.read(at(1, 0), 64, None).unwrap()[..], data(1, 64)[..]);
        // Rot that only the other has.
        let roster = w.devices.roster();
        let rot = Op::Write { offset: place(other, 20), data: data(99, 1) };
        roster.member(other).unwrap().submit(rot).wait().unwrap();
        w.devices.begin_joining(replaced, Some(Arc::new(MemDevice::new(4 << 20))));
        assert_eq!(
            w.devices.copy(at(1, 0), 64, Some(&[Vec::new(), Vec::new()])).unwrap(),
            Copied::Done { blocks: 64, unreadable: 0 }
        );
        assert!(w.devices.end_joining([9; 16]).unwrap());
        assert!(
            w.devices.read(at(1, 0), 64, Some(other)).unwrap()[..] == data(1, 64)[..],
            "the device that came has rot"
        );
    }
}

#[test]
fn a_device_that_is_replaced_is_read_where_the_other_cannot_be() {
    each_block_comes_from_where_it_can_be_read();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "unreadable: 1")]
fn a_device_that_is_replaced_and_not_read_is_noticed() {
    crate::breaks::with(Break::JoinReadsElsewhere, each_block_comes_from_where_it_can_be_read);
}

/// A device whose place another takes, and that gives nothing of a part of it, is asked a bounded number of times.
fn who_fails_is_asked_now_and_then() {
    let w = World::new(2, 2);
    w.devices.write_flush(at(1, 0), data(1, 128), Covering::All).unwrap();
    w.devices.begin_joining(0, Some(Arc::new(MemDevice::new(4 << 20))));
    w.faults[0].inject(Fault::FailReads { range: 0..u64::MAX });
    let reads = |blocks: u32| {
        let before = w.observers[0].counters().reads;
        assert_eq!(
            w.devices.copy(at(1, blocks), 64, Some(&[Vec::new(), Vec::new()])).unwrap(),
            Copied::Done { blocks: 64, unreadable: 0 }
        );
        w.observers[0].counters().reads - before
    };
    let asked = [reads(0), reads(64)];
    assert!(asked[0] < 12 && asked[1] == 1, "asked in vain {asked:?} times");
    // Where it gives something again it is asked for each block.
    w.faults[0].clear();
    reads(0);
    w.faults[0].inject(Fault::FailReads { range: 0..u64::MAX });
    assert!(reads(0) > 4);
}

#[test]
fn a_device_that_is_replaced_is_not_asked_for_ever() {
    who_fails_is_asked_now_and_then();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "asked in vain")]
fn a_device_that_is_asked_for_each_block_is_noticed() {
    crate::breaks::with(Break::PatienceEndless, who_fails_is_asked_now_and_then);
}

/// The only device of a volume was written to without counting: who joins it does not make flushes go missing.
#[test]
fn what_one_device_has_not_flushed_is_flushed_when_another_joins() {
    let w = World::new(1, 1);
    w.devices.write(at(0, 0), data(1, 1)).unwrap();
    w.devices.begin_joining(0, Some(Arc::new(MemDevice::new(4 << 20))));
    let flushes = w.flushes();
    w.devices.flush().unwrap();
    assert_eq!(w.flushes()[0] - flushes[0], 1);
}

#[test]
fn a_device_that_left_is_in_use_until_what_was_under_way_has_ended() {
    let w = World::new(3, 1);
    assert_eq!(w.devices.left_in_use(), 0);
    let elsewhere = w.devices.enter(at(1, 0), 1);
    drop(w.devices.unseat(1).unwrap());
    assert_eq!(w.devices.left_in_use(), 1);
    elsewhere.end();
    assert_eq!(w.devices.left_in_use(), 0);
}

/// A device joins in a place that is taken out of the volume.
fn a_place_goes_in_which_a_device_joins() {
    let d = World::new(3, 2).devices;
    d.begin_joining(1, Some(Arc::new(MemDevice::new(4 << 20))));
    d.unseat(1);
    assert_eq!((d.joining(), d.end_joining([9; 16])), (None, Ok(false)), "it joins where there is no place");
    assert!(d.joining_ended().is_some());
}

#[test]
fn who_joins_in_a_place_that_goes_is_given_up() {
    a_place_goes_in_which_a_device_joins();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "it joins where there is no place")]
fn who_joins_in_a_place_that_went_is_noticed() {
    crate::breaks::with(Break::LeavingJoins, a_place_goes_in_which_a_device_joins);
}

/// A device was to be added, and is not; later one in its place fails.
fn who_was_expected_does_not_come() {
    let d = World::new(2, 2).devices;
    drop(d.expect(1));
    let member = d.roster().member(1).cloned().unwrap();
    d.lose(&member, DeviceError::Os(5)).unwrap();
    assert!(!d.entries()[1].active, "no root says that it failed");
}

#[test]
fn a_place_is_expected_to_be_taken_no_longer_than_somebody_tries() {
    who_was_expected_does_not_come();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "no root says that it failed")]
fn a_place_that_is_expected_to_be_taken_for_ever_is_noticed() {
    crate::breaks::with(Break::ExpectedForEver, who_was_expected_does_not_come);
}
