//! Devices are added, removed and resized while the volume is in use.

use crate::common::{TestClock, file};
use nenrin_core::check::{CheckOptions, check};
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::superblock::{AREA_BLOCKS, Profile, SLOT_BLOCK, SLOTS_PER_AREA, Superblock};
use nenrin_core::format::{BLOCK_BYTES, Cno, Ino};
use nenrin_core::{At, Clock, Error, Fs, MkfsOptions, MountOptions, Standing, mkfs_on, probe};
use nenrin_device::{AlignedBuf, BlockDevice, Fault, Faulty, MemDevice, OpKind};
use std::sync::Arc;

struct World {
    devices: Vec<Arc<dyn BlockDevice>>,
    clock: Arc<TestClock>,
    fs: Option<Arc<Fs>>,
    /// How often each file was written.
    files: Vec<u64>,
}

fn blank(megabytes: usize) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new(megabytes << 20))
}

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i / 777) as u8 ^ seed as u8).collect()
}

impl World {
    fn new(profile: Profile, megabytes: &[usize]) -> Self {
        let devices: Vec<_> = megabytes.iter().map(|m| blank(*m)).collect();
        let clock: Arc<TestClock> = Arc::default();
        let time: Arc<dyn Clock> = clock.clone();
        let options = MkfsOptions { profile, segment_blocks: 64, ..MkfsOptions::default() };
        mkfs_on(&devices, &time, &options).unwrap();
        let mut this = Self { devices, clock, fs: None, files: Vec::new() };
        this.mount();
        this
    }
    fn mount(&mut self) {
        self.mount_with(&self.devices.clone(), false);
    }
    fn mount_with(&mut self, devices: &[Arc<dyn BlockDevice>], degraded: bool) {
        drop(self.fs.take());
        let options = MountOptions { degraded, ..MountOptions::default() };
        self.fs = Some(Fs::open(devices.to_vec(), self.clock.clone(), options).unwrap());
    }
    fn fs(&self) -> &Arc<Fs> {
        self.fs.as_ref().unwrap()
    }
    fn write(&mut self, which: usize, bytes: usize) {
        self.files.resize(self.files.len().max(which + 1), 0);
        self.files[which] += 1;
        let name = format!("file {which}");
        let fs = self.fs();
        let ino = match fs.lookup(At::Live, Ino::ROOT, name.as_bytes()) {
            Ok(found) => found.ino,
            Err(_) => fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino,
        };
        fs.write(ino, 0, &content(self.files[which] * 16 + which as u64, bytes), 0).unwrap();
        fs.fsync_wait(ino).unwrap();
    }
    fn fill(&mut self, files: usize, bytes: usize) {
        (0..files).for_each(|i| self.write(i, bytes));
    }
    fn read(&self, at: At, which: usize, version: u64, bytes: usize) {
        let fs = self.fs();
        let ino = fs.lookup(at, Ino::ROOT, format!("file {which}").as_bytes()).unwrap().ino;
        let got = fs.read(at, ino, 0, bytes).unwrap();
        assert!(got == content(version * 16 + which as u64, bytes), "file {which} at {at:?}");
    }
    fn read_all(&self, bytes: usize) {
        self.files.iter().enumerate().for_each(|(i, v)| self.read(At::Live, i, *v, bytes));
    }
    /// Until everything lies as it should, with some work in between.
    fn finish(&mut self, bytes: usize) {
        for round in 0..20_000 {
            let Some(status) = self.fs().laying_step(1 << 20).unwrap() else { return };
            assert!(status.waits.is_none(), "{status:?}");
            if round % 3 == 0 {
                self.write(round / 3 % self.files.len().max(1), bytes);
            }
            if round % 7 == 0 {
                self.clock.0.fetch_add(1_000_000_000, std::sync::atomic::Ordering::Relaxed);
                self.fs().tick().unwrap();
            }
        }
        panic!("no end: {:?}", self.fs().laying_status());
    }
    fn is_clean(&self) {
        let report = check(&self.devices, &CheckOptions { data: true }, &mut |_| {}).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
    fn close(&mut self) {
        self.fs().close().unwrap();
        self.fs = None;
        self.is_clean();
    }
    fn available(&self) -> u64 {
        (self.fs().usage().available_blocks * 4096) >> 20
    }
    fn add(&mut self, megabytes: usize) -> u16 {
        let device = blank(megabytes);
        self.devices.push(device.clone());
        self.fs().device_add(device, [self.devices.len() as u8 + 100; 16]).unwrap()
    }
}

const FILE: usize = 1 << 20;

#[test]
fn a_device_is_added_and_its_space_is_there() {
    for (profile, gain) in [(Profile::Single, 16), (Profile::Stripe, 15), (Profile::Mirror, 3), (Profile::Parity, 8)] {
        let first = if profile == Profile::Parity { 3 } else { 2 };
        let mut w = World::new(profile, &vec![24; first]);
        w.fill(8, FILE);
        let snapshot = w.fs().checkpoint_create(Some(b"before")).unwrap().cno;
        let before = w.available();
        assert_eq!(usize::from(w.add(24)), first);
        w.finish(FILE);
        assert!(w.available() >= before + gain, "{profile:?}: {before} MiB, then {} MiB", w.available());
        w.read_all(FILE);
        (0..8).for_each(|i| w.read(At::Past(snapshot), i, 1, FILE));
        let health = w.fs().health();
        assert!(health.len() == first + 1 && health.iter().all(|d| d.standing == Standing::Active));
        w.close();
        w.mount();
        w.read_all(FILE);
        assert!(w.fs().laying_step(1 << 20).unwrap().is_none());
    }
}

#[test]
fn a_device_is_removed_and_is_none_of_the_volume_any_more() {
    for profile in [Profile::Single, Profile::Stripe, Profile::Mirror, Profile::Parity] {
        for index in 0..3u16 {
            let count = if profile == Profile::Parity { 4 } else { 3 };
            let mut w = World::new(profile, &vec![24; count]);
            let files = if profile == Profile::Mirror { 3 } else { 8 };
            w.fill(files, FILE);
            let snapshot = w.fs().checkpoint_create(Some(b"before")).unwrap().cno;
            w.fs().device_remove(index).unwrap();
            w.finish(FILE);
            assert_eq!(w.fs().health().len(), count - 1);
            let gone = w.devices.remove(usize::from(index));
            assert!(probe(gone.as_ref()).unwrap().newest().is_err(), "it still looks like a member");
            w.read_all(FILE);
            (0..files).for_each(|i| w.read(At::Past(snapshot), i, 1, FILE));
            w.close();
            w.mount();
            w.read_all(FILE);
            // Its place is taken by the next.
            assert_eq!(w.add(24), index);
            w.finish(FILE);
            w.close();
            w.mount();
            w.read_all(FILE);
        }
    }
}

#[test]
fn a_device_shrinks_and_grows() {
    for profile in [Profile::Single, Profile::Stripe, Profile::Mirror, Profile::Parity] {
        let count = if profile == Profile::Parity { 3 } else { 2 };
        let mut w = World::new(profile, &vec![24; count]);
        w.fill(6, FILE);
        let before = w.available();
        for index in 0..count as u16 {
            w.fs().device_resize(index, (18 << 20) / 4096).unwrap();
            w.finish(FILE);
        }
        assert!(w.available() < before);
        w.close();
        w.mount();
        w.read_all(FILE);
        for index in 0..count as u16 {
            w.fs().device_resize(index, (24 << 20) / 4096).unwrap();
            w.finish(FILE);
        }
        assert!(w.available() + 4 >= before, "{before} MiB, then {}", w.available());
        w.read_all(FILE);
        w.close();
    }
}

#[test]
fn a_mount_goes_on_where_the_last_one_ended_and_a_change_of_mind_is_possible() {
    for keep in [false, true] {
        let mut w = World::new(Profile::Stripe, &[24, 24, 24]);
        w.fill(8, FILE);
        w.fs().device_remove(1).unwrap();
        for _ in 0..12 {
            w.fs().laying_step(1 << 18).unwrap();
        }
        assert!(w.fs().laying_status().is_some());
        // As if the power had gone.
        w.mount();
        assert_eq!(w.fs().health()[1].target_bytes, 0);
        if keep {
            assert!(w.fs().device_keep(1).unwrap());
        }
        w.finish(FILE);
        assert_eq!(w.fs().health().len(), if keep { 3 } else { 2 });
        if !keep {
            w.devices.remove(1);
        }
        w.read_all(FILE);
        w.close();
        w.mount();
        w.read_all(FILE);
    }
}

/// Who took a device out may use it: what was under way when it left has it no more, be it a write that nobody waited for.
#[test]
fn a_device_that_was_taken_out_is_let_go_of() {
    for profile in [Profile::Stripe, Profile::Parity] {
        let mut w = World::new(profile, &[24, 24, 24, 24]);
        w.fill(6, FILE);
        let fs = w.fs().clone();
        let busy = fs.create(Ino::ROOT, b"busy", &file(0o600)).unwrap().ino;
        fs.device_remove(1).unwrap();
        for round in 0.. {
            assert!(round < 20_000, "{:?}", fs.laying_status());
            fs.write(busy, 0, &content(round, FILE), 0).unwrap();
            if fs.laying_step(1 << 20).unwrap().is_none() {
                break;
            }
            w.clock.0.fetch_add(100_000_000, std::sync::atomic::Ordering::Relaxed);
            fs.tick().unwrap();
        }
        let taken_out = w.devices.remove(1);
        assert_eq!(fs.devices_left_in_use(), 0, "{profile:?}");
        assert_eq!(Arc::strong_count(&taken_out), 1, "{profile:?}: somebody keeps what was taken out");
        drop(fs);
        w.read_all(FILE);
        w.close();
    }
}

/// Headers in index segments are wrong: what is needed of these segments is moved all the same.
#[test]
fn headers_of_the_index_that_are_lost_keep_no_device() {
    let mut w = World::new(Profile::Single, &[24, 24]);
    w.fill(8, FILE);
    for i in 0..1500 {
        w.fs().create(Ino::ROOT, format!("name {i}").as_bytes(), &file(0o600)).unwrap();
    }
    w.close();
    let mut headers = [0; 2];
    for (device, headers) in w.devices.iter().zip(&mut headers) {
        let bytes = device.read(0, device.geometry().bytes as usize).unwrap();
        for (at, block) in (0..).step_by(BLOCK_BYTES).zip(bytes.chunks(BLOCK_BYTES)) {
            if Header::decode(block).is_ok_and(|h| h.header.kind == PartialKind::Index) {
                let mut wrong = block.to_vec();
                wrong[0] ^= 4;
                device.write(at, Arc::new(AlignedBuf::padded(&wrong))).unwrap();
                *headers += 1;
            }
        }
    }
    let with_index = usize::from(headers[1] > headers[0]);
    assert!(headers[with_index] > 2, "{headers:?}");
    w.mount();
    w.fs().device_remove(with_index as u16).unwrap();
    w.finish(FILE);
    w.read_all(FILE);
    w.devices.remove(with_index);
    w.close();
}

#[test]
fn an_absent_device_is_removed() {
    let mut w = World::new(Profile::Mirror, &[24, 24, 24]);
    w.fill(8, FILE);
    w.close();
    let lost = w.devices.remove(1);
    w.mount_with(&w.devices.clone(), true);
    w.fs().device_remove(1).unwrap();
    w.finish(FILE);
    assert_eq!(w.fs().health().len(), 2);
    w.close();
    // It comes back: it is told apart, and left out.
    let both: Vec<_> = w.devices.iter().cloned().chain([lost]).collect();
    w.mount_with(&both, false);
    let notes = w.fs().recovery_report().notes.join("; ");
    assert!(notes.contains("no device of this volume any more"), "{notes}");
    w.read_all(FILE);
    w.close();
}

#[test]
fn what_cannot_be_is_refused_and_says_why() {
    let why = |r: nenrin_core::Result<()>| match r {
        Err(Error::Devices(text)) => text,
        other => panic!("{other:?}"),
    };
    let mut w = World::new(Profile::Single, &[24]);
    assert!(why(w.fs().device_remove(0)).contains("the last device"));
    assert!(why(w.fs().device_remove(7)).contains("no device 8"));
    assert!(why(w.fs().device_add(Arc::new(MemDevice::new(128 << 10)), [9; 16]).map(drop)).contains("too small"));
    assert!(why(w.fs().device_resize(0, 1 << 30)).contains("beyond its end"));
    assert!(why(w.fs().device_resize(0, 40)).contains("no room for a segment"));
    w.add(12);
    w.finish(FILE);
    w.fill(18, FILE);
    assert!(why(w.fs().device_remove(0)).contains("bytes have to go first"));
    assert!(why(w.fs().device_resize(0, (8 << 20) / 4096)).contains("bytes have to go first"));
    w.read_all(FILE);
    let w = World::new(Profile::Mirror, &[24, 24]);
    assert!(why(w.fs().device_remove(0)).contains("a mirror keeps two copies"));
}

/// Removing while more is written than fits: it waits, says so, and goes on when there is room.
#[test]
fn a_removal_without_room_waits_and_loses_nothing() {
    let mut w = World::new(Profile::Single, &[24, 24]);
    w.fill(10, FILE);
    w.fs().device_remove(1).unwrap();
    for n in 10..26 {
        w.write(n, FILE);
    }
    for _ in 0..2000 {
        if w.fs().laying_step(1 << 18).unwrap().is_none_or(|s| s.waits.is_some()) {
            break;
        }
    }
    w.read_all(FILE);
    let waited = w.fs().laying_status().is_some_and(|s| s.waits.is_some());
    for i in (5..w.files.len()).rev() {
        w.fs().unlink(Ino::ROOT, format!("file {i}").as_bytes()).unwrap();
    }
    w.files.truncate(5);
    let unnamed: Vec<Cno> = w.fs().checkpoints().iter().map(|c| c.cno).collect();
    w.fs().checkpoint_drop(&unnamed).unwrap();
    w.fs().sync_all().unwrap();
    w.finish(FILE);
    assert!(waited, "it never had to wait");
    w.devices.pop();
    w.close();
    w.mount();
    w.read_all(FILE);
}

/// A volume on a device that can be made to fail, of which so many blocks are used.
fn on_faulty(used: usize) -> (Arc<Faulty<MemDevice>>, World) {
    let device = Arc::new(Faulty::new(MemDevice::new(24 << 20)));
    let mut w = World::new(Profile::Single, &[24]);
    drop(w.fs.take());
    w.devices = vec![device.clone()];
    let time: Arc<dyn Clock> = w.clock.clone();
    let options = MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() };
    mkfs_on(&w.devices, &time, &options).unwrap();
    w.mount();
    if used < 24 << 20 {
        w.fs().device_resize(0, used as u64 / 4096).unwrap();
        w.finish(FILE);
    }
    (device, w)
}

/// P5: a device tells of what it has lost once, be it to who changes the table.
fn nothing_more_is_acknowledged(fs: &Fs, file_there: Ino) {
    fs.write(file_there, 0, &[7; 5000], 0).ok();
    assert!(matches!(fs.fsync_wait(file_there), Err(Error::Failed(_))), "a sync was told to be durable");
    assert!(fs.failed().is_some());
}

fn the_table_is_changed_and_a_flush_fails() {
    // The one of the moved tail area, and those of the slots.
    for (used, blocks, from) in [(24, 18, 1), (24, 18, 2), (18, 24, 1), (18, 24, 2), (18, 24, 3)] {
        let (device, mut w) = on_faulty(used << 20);
        w.fill(1, FILE);
        let fs = w.fs().clone();
        let ino = fs.lookup(At::Live, Ino::ROOT, b"file 0").unwrap().ino;
        fs.write(ino, 0, &[8; 5000], 0).unwrap();
        device.faults().inject(Fault::Fail { kind: OpKind::Flush, from, times: 1 });
        assert!(fs.device_resize(0, (blocks << 20) / 4096).is_err(), "{used} to {blocks} MiB, flush {from}");
        nothing_more_is_acknowledged(&fs, ino);
    }
}

#[test]
fn a_flush_that_fails_while_the_table_is_changed_is_the_last() {
    the_table_is_changed_and_a_flush_fails();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a sync was told to be durable")]
fn a_flush_that_is_forgotten_with_the_table_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::TableUnwatched, the_table_is_changed_and_a_flush_fails);
}

/// The same when a device is as long as it shall be, which nobody waits for: of the moved area, the slots, and the old area.
fn a_length_is_settled_and_a_flush_fails() {
    for from in 1..=4 {
        let (device, mut w) = on_faulty(24 << 20);
        w.fill(1, FILE);
        let fs = w.fs().clone();
        let ino = fs.lookup(At::Live, Ino::ROOT, b"file 0").unwrap().ino;
        fs.device_resize(0, (18 << 20) / 4096).unwrap();
        for round in 0.. {
            assert!(round < 1000, "{:?}", fs.laying_status());
            if fs.segments().iter().all(|s| 16 + (s.segment.0 + 1) * 64 <= (18 << 20) / 4096 - 16) {
                break;
            }
            fs.laying_step(1 << 20).unwrap();
        }
        device.faults().inject(Fault::Fail { kind: OpKind::Flush, from, times: 1 });
        let settled = fs.laying_step(1 << 20);
        assert!(device.faults().fired() > 0, "nothing was settled: {:?}", fs.laying_status());
        assert!(matches!(settled, Err(Error::Failed(_))), "flush {from}: {settled:?}");
        nothing_more_is_acknowledged(&fs, ino);
    }
}

#[test]
fn a_flush_that_fails_while_a_length_is_settled_is_the_last() {
    a_length_is_settled_and_a_flush_fails();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "flush 1: ")]
fn a_flush_that_is_forgotten_with_a_length_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::TableUnwatched, a_length_is_settled_and_a_flush_fails);
}

/// A device that fails when all of it is emptied that goes: the others say how long it is, durably, whatever it still has.
#[test]
fn the_length_of_an_absent_device_is_settled_by_the_others() {
    let device = Arc::new(Faulty::new(MemDevice::new(24 << 20)));
    let mut w = World::new(Profile::Mirror, &[24, 24]);
    drop(w.fs.take());
    w.devices[1] = device.clone();
    let time: Arc<dyn Clock> = w.clock.clone();
    let options = MkfsOptions { profile: Profile::Mirror, segment_blocks: 64, ..MkfsOptions::default() };
    mkfs_on(&w.devices, &time, &options).unwrap();
    w.mount();
    w.fill(1, FILE);
    let fs = w.fs().clone();
    fs.device_resize(1, (18 << 20) / 4096).unwrap();
    for round in 0.. {
        assert!(round < 1000, "{:?}", fs.laying_status());
        if fs.segments().iter().all(|s| 16 + (s.segment.0 + 1) * 64 <= (18 << 20) / 4096 - 16) {
            break;
        }
        fs.laying_step(1 << 20).unwrap();
    }
    device.faults().inject(Fault::Fail { kind: OpKind::Write, from: 1, times: u64::MAX });
    w.fill(1, FILE);
    assert_eq!(fs.health()[1].standing, Standing::Absent);
    fs.laying_step(1 << 20).unwrap();
    assert_eq!(fs.laying_step(1 << 20).unwrap(), None);
    drop((fs, w.fs.take()));
    device.faults().clear();
    w.mount();
    let fs = w.fs().clone();
    assert_eq!(fs.health()[1].bytes, 18 << 20);
    while fs.health().iter().any(|h| h.standing != Standing::Active) {
        fs.tick().unwrap();
    }
    w.finish(FILE);
}

/// The generations of the roots in an area of slots.
fn roots(device: &dyn BlockDevice, area: u64) -> Vec<u64> {
    let slot = |i: u64| Superblock::decode(&device.read((area + SLOT_BLOCK + i) * 4096, 4096).unwrap()).ok();
    (0..SLOTS_PER_AREA).filter_map(slot).map(|s| s.generation.0).collect()
}

/// A length that is hardly another one: at each moment the area at the end of what the table says is whole.
fn a_device_changes_by_little() {
    for less in 1..20 {
        let mut w = World::new(Profile::Single, &[24]);
        w.fill(4, FILE);
        let all = w.fs().health()[0].bytes / 4096;
        for blocks in [all - less, all] {
            w.fs().device_resize(0, blocks).unwrap();
            w.finish(FILE);
            let used = w.fs().health()[0].bytes / 4096;
            assert!(used <= blocks && blocks - used <= AREA_BLOCKS, "{used} of {blocks} blocks");
            let device = w.devices[0].as_ref();
            let (head, tail) = (roots(device, 0), roots(device, used - AREA_BLOCKS));
            let newest = probe(device).unwrap().newest().unwrap().generation.0;
            assert!(head == tail && head.contains(&newest), "{blocks} blocks: {newest} in {head:?} and {tail:?}");
        }
        w.read_all(FILE);
        w.close();
    }
}

#[test]
fn a_device_that_changes_by_little_keeps_its_slots() {
    a_device_changes_by_little();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = " in [")]
fn slots_that_are_lost_with_a_length_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::TailsOverlap, a_device_changes_by_little);
}

/// What is gone is less than a segment, so that none lies there.
fn a_device_lacks_its_last_block() {
    for profile in [Profile::Single, Profile::Stripe, Profile::Mirror] {
        let mut w = World::new(profile, &[24, 24]);
        w.fill(1, FILE);
        w.close();
        let all = w.devices[1].read(0, (24 << 20) - 4096).unwrap();
        let short = Arc::new(MemDevice::new((24 << 20) - 4096));
        short.write(0, Arc::new(all)).unwrap();
        let devices = vec![w.devices[0].clone(), short];
        let opened = Fs::open(devices, w.clock.clone(), MountOptions::default());
        let said = opened.map(|fs| fs.health().len()).map_err(|e| e.to_string());
        let told = |text: &String| text.contains("truncated") && text.contains("restore its length");
        assert!(said.as_ref().is_err_and(told), "that it is too short is not said: {said:?}");
    }
}

#[test]
fn a_device_without_its_last_block_is_said_to_be_truncated() {
    a_device_lacks_its_last_block();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "that it is too short is not said")]
fn a_length_that_is_not_measured_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::TailUnmeasured, a_device_lacks_its_last_block);
}

const OLD: u8 = 0xa7;

impl World {
    /// Writes until there is no room, and removes it again.
    fn fill_with_old(&self) {
        let fs = self.fs();
        let ino = fs.create(Ino::ROOT, b"filler", &file(0o600)).unwrap().ino;
        let fits = |i: u64| fs.write(ino, i << 20, &[OLD; 1 << 20], 0).is_ok() && fs.fsync_wait(ino).is_ok();
        let count = (0..200).find(|i| !fits(*i)).unwrap();
        assert!(count > 10, "{count}");
        fs.unlink(Ino::ROOT, b"filler").unwrap();
        for _ in 0..50 {
            self.clock.0.fetch_add(1_000_000_000, std::sync::atomic::Ordering::Relaxed);
            fs.tick().unwrap();
        }
    }
    /// How many blocks of a device are old content.
    fn old_blocks(&self, device: usize) -> usize {
        let device = &self.devices[device];
        let bytes = device.read(0, device.geometry().bytes as usize).unwrap();
        bytes.chunks(BLOCK_BYTES).filter(|b| b.iter().all(|b| *b == OLD)).count()
    }
    /// Makes a file, removes it, and has it forgotten.
    fn forget_one(&self) {
        let fs = self.fs();
        let ino = fs.create(Ino::ROOT, b"secret", &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &[OLD; 1 << 18], 0).unwrap();
        fs.checkpoint_create(None).unwrap();
        fs.unlink(Ino::ROOT, b"secret").unwrap();
        crate::forget::forget(fs, &[b"secret"]).unwrap();
        let stuck = |s: Option<nenrin_core::ForgetStatus>| s.is_some_and(|s| s.waits.is_some());
        let done = (0..20_000).any(|_| {
            let status = fs.forget_step(1 << 20).unwrap();
            assert!(!stuck(status.clone()), "{status:?}");
            status.is_none()
        });
        assert!(done, "no end: {:?}", fs.forget_status());
    }
}

/// Of unequal devices one is removed, so that a part of the largest has no segments any more; what they held is forgotten.
fn what_lay_where_no_segment_lies_is_forgotten() {
    for (profile, sizes, gone) in [
        (Profile::Mirror, &[24, 40, 56][..], 1),
        (Profile::Parity, &[24, 32, 40, 56], 2),
        (Profile::Single, &[24, 33], 0),
    ] {
        let mut w = World::new(profile, sizes);
        w.fill(3, FILE);
        w.fill_with_old();
        w.fs().device_remove(gone).unwrap();
        w.finish(FILE);
        let stay: Vec<usize> = (0..sizes.len()).filter(|i| *i != usize::from(gone)).collect();
        assert!(w.old_blocks(sizes.len() - 1) > 0, "{profile:?}: nothing was there");
        w.forget_one();
        w.read_all(FILE);
        for device in &stay {
            assert_eq!(w.old_blocks(*device), 0, "{profile:?}: device {device} has what was forgotten");
        }
        w.fs().close().unwrap();
        w.fs = None;
        w.devices.remove(usize::from(gone));
        w.is_clean();
        w.mount();
        w.read_all(FILE);
        w.write(0, FILE);
        w.read_all(FILE);
        w.close();
    }
}

#[test]
fn forgetting_reaches_where_no_segment_lies_any_more() {
    what_lay_where_no_segment_lies_is_forgotten();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "has what was forgotten")]
fn what_is_left_where_no_segment_lies_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::OutsideUnwiped, what_lay_where_no_segment_lies_is_forgotten);
}

impl World {
    /// Makes a file, removes it, and has it put on the list of what is to be forgotten.
    fn begin_to_forget(&self) {
        let fs = self.fs();
        let ino = fs.create(Ino::ROOT, b"secret", &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &[OLD; 1 << 18], 0).unwrap();
        fs.checkpoint_create(None).unwrap();
        fs.unlink(Ino::ROOT, b"secret").unwrap();
        crate::forget::forget(fs, &[b"secret"]).unwrap();
        fs.sync_all().unwrap();
    }
    /// Until everything lies as it should and nothing is left to be forgotten.
    fn finish_both(&self) {
        let done = (0..10_000).any(|_| {
            let laid = self.fs().laying_step(1 << 20).unwrap().is_none();
            self.fs().forget_step(1 << 20).unwrap().is_none() && laid
        });
        assert!(done, "no end: {:?}, {:?}", self.fs().laying_status(), self.fs().forget_status());
    }
}

/// A device is gone while something is being forgotten, or is there and has missed something, and is removed.
fn what_is_removed_is_absent(is_there: bool) {
    let mut w = World::new(Profile::Mirror, &[24, 24, 24]);
    w.fill(3, FILE);
    w.begin_to_forget();
    let all = w.devices.clone();
    w.mount_with(&[all[0].clone(), all[2].clone()], true);
    w.write(0, FILE);
    if is_there {
        w.mount_with(&all, true);
        assert!(w.fs().health()[1].standing != Standing::Active);
    }
    w.fs().device_remove(1).unwrap();
    w.finish_both();
    assert_eq!(w.fs().health().len(), 2);
    assert_eq!([w.old_blocks(0), w.old_blocks(2)], [0; 2]);
    w.read_all(FILE);
    w.devices.remove(1);
    w.close();
}

#[test]
fn a_device_that_is_absent_is_removed_while_something_is_forgotten() {
    what_is_removed_is_absent(false);
    what_is_removed_is_absent(true);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "no end")]
fn a_removal_and_forgetting_that_wait_for_each_other_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::AwaitsWhatLeaves, || what_is_removed_is_absent(false));
}

/// While something is being forgotten a device is cut where no segment lies; nothing of it is left there.
fn a_device_is_cut_where_no_segment_lies() {
    let mut w = World::new(Profile::Mirror, &[24, 40, 56]);
    w.fill(3, FILE);
    w.fill_with_old();
    w.fs().device_remove(1).unwrap();
    w.finish(FILE);
    assert!(w.old_blocks(2) > 0);
    w.begin_to_forget();
    w.fs().device_resize(2, (24 << 20) / 4096).unwrap();
    w.finish_both();
    assert_eq!(w.old_blocks(2), 0, "what was cut off has what was forgotten");
    w.devices.remove(1);
    w.read_all(FILE);
    w.close();
}

#[test]
fn what_is_cut_off_where_no_segment_lies_is_wiped_first() {
    a_device_is_cut_where_no_segment_lies();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was cut off has what was forgotten")]
fn a_cut_ahead_of_wiping_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::CutWhileForgetting, a_device_is_cut_where_no_segment_lies);
}

/// What is added holds nothing of the volume's, so nobody waits until all else is wiped; and what it held before goes with that.
#[test]
fn a_device_is_added_while_something_is_forgotten() {
    for profile in [Profile::Single, Profile::Stripe, Profile::Mirror, Profile::Parity] {
        let first = if profile == Profile::Parity { 3 } else { 2 };
        let mut w = World::new(profile, &vec![24; first]);
        w.fill(3, FILE);
        w.begin_to_forget();
        let before = w.fs().usage().total_blocks;
        let device = blank(24);
        device.write(0, Arc::new(AlignedBuf::padded(&vec![OLD; 24 << 20]))).unwrap();
        w.devices.push(device.clone());
        w.fs().device_add(device, [77; 16]).unwrap();
        let is_behind = |w: &World| w.fs().laying_step(1 << 20).unwrap().is_none_or(|s| s.waits.is_some());
        assert!((0..1000).any(|_| is_behind(&w)));
        if matches!(profile, Profile::Single) {
            assert!(w.fs().usage().total_blocks > before, "{profile:?}: there is no more room");
            assert!(w.fs().laying_status().is_none() && w.fs().forget_status().is_some());
        }
        w.finish_both();
        assert_eq!((0..w.devices.len()).map(|i| w.old_blocks(i)).sum::<usize>(), 0, "{profile:?}");
        assert!(w.fs().usage().total_blocks > before);
        w.read_all(FILE);
        w.close();
    }
}

/// A block of a device where no segment lies takes no zeros: the device can be removed while something is being forgotten.
#[test]
fn a_device_with_a_bad_block_is_removed_while_something_is_forgotten() {
    let mut w = World::new(Profile::Mirror, &[24, 33, 24]);
    w.fill(3, FILE);
    w.fs().close().unwrap();
    let memory = w.devices[1].clone();
    let end = memory.geometry().bytes - (AREA_BLOCKS + 1) * BLOCK_BYTES as u64;
    memory.write(end, Arc::new(AlignedBuf::padded(&[OLD; BLOCK_BYTES]))).unwrap();
    let faulty = Arc::new(Faulty::new(memory));
    faulty.faults().inject(Fault::FailWrites { range: end..end + 4096 });
    w.devices[1] = faulty;
    w.mount();
    w.begin_to_forget();
    w.fs().device_remove(1).unwrap();
    w.finish_both();
    assert_eq!(w.fs().health().len(), 2);
    w.devices.remove(1);
    w.read_all(FILE);
    w.close();
}
