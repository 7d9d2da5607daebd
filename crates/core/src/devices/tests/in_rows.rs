//! Memory devices as a volume whose segments lie in rows with parity.

use super::*;
use std::thread;
use std::time::Duration;

/// Three devices with rows of two units, and what is read of blocks of segment 1 when the first of them is gone.
fn rows_world() -> (Vec<Arc<MemDevice>>, Superblock) {
    let given: Vec<Arc<MemDevice>> = (0..3).map(|_| Arc::new(MemDevice::new(8 << 20))).collect();
    let start = nenrin_format::row_log::ROW_LOG_UNITS;
    let members = (0..3).map(|d| (d, start)).collect();
    let superblock = Superblock {
        profile: Profile::Parity,
        devices: vec![DeviceEntry::active([0; 16], 2048, 1); 3],
        bands: vec![Band { first: SegmentNo(0), segments: 6, copies: 1, parity: true, members }],
        ..superblock()
    };
    (given, superblock)
}

fn opened(given: &[Arc<MemDevice>], superblock: &Superblock, gone: Option<usize>) -> Arc<Devices> {
    let one = |(i, d): (usize, &Arc<MemDevice>)| (Some(i) != gone).then(|| d.clone() as Arc<dyn BlockDevice>);
    let all = given.iter().enumerate().map(one).collect();
    Devices::open(all, &[], superblock.clone(), Vec::new(), false)
}

/// Whether these blocks can be read without any one of the devices.
fn is_safe(given: &[Arc<MemDevice>], superblock: &Superblock, addr: Addr, want: &AlignedBuf) -> bool {
    (0..3).all(|gone| {
        let d = opened(given, superblock, Some(gone));
        d.read(addr, (want.len() / BLOCK_BYTES) as u32, None).is_ok_and(|got| got[..] == want[..])
    })
}

#[test]
fn what_is_flushed_of_a_row_is_read_without_any_device() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    let all = data(50, 128);
    let mut at_block = 0;
    for count in [1u32, 2, 14, 3, 20, 1, 40, 33, 14] {
        let part = AlignedBuf::padded(&all[at_block as usize * BLOCK_BYTES..(at_block + count) as usize * BLOCK_BYTES]);
        d.write_flush(at(1, at_block), Arc::new(part), Covering::All).unwrap();
        at_block += count;
        let want = AlignedBuf::padded(&all[..at_block as usize * BLOCK_BYTES]);
        assert!(is_safe(&given, &superblock, at(1, 0), &want), "after {at_block} blocks");
        assert!(d.read(at(1, 0), at_block, None).unwrap()[..] == want[..]);
    }
    assert_eq!(at_block, 128);
    assert!(d.write(at(1, 3), data(1, 1)).is_err(), "a full row is not written to");
    assert!(d.write(at(2, 3), data(1, 1)).is_err(), "nor a segment that nobody began");
}

/// A segment is written, and written again.
fn used_twice() -> bool {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(1, 3), Covering::All).unwrap();
    d.write_flush(at(1, 3), data(4, 125), Covering::All).unwrap();
    d.flush().unwrap();
    d.begin_segment(SegmentNo(1));
    let again = data(90, 128);
    d.write_flush(at(1, 0), again.clone(), Covering::All).unwrap();
    is_safe(&given, &superblock, at(1, 0), &again)
}

#[test]
fn claims_end_before_their_rows_are_used_again() {
    assert!(used_twice());
    #[cfg(feature = "breaks")]
    assert!(!crate::breaks::with(Break::RowLogKept, used_twice));
}

/// A row is full, and its copies in the row log rot before their claim ends.
fn rotten_copies() -> bool {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(1, 3), Covering::All).unwrap();
    d.write_flush(at(1, 3), data(4, 29), Covering::All).unwrap();
    let log = 17..16 + u64::from(nenrin_format::row_log::ROW_LOG_UNITS * 16);
    for device in &given {
        for block in log.clone().filter(|b| b % 2 == 1) {
            let mut bytes = device.read(block * BLOCK_BYTES as u64, BLOCK_BYTES).unwrap();
            let entry = nenrin_format::row_log::RowLog::decode(&bytes, superblock.uuid).is_ok();
            bytes[BLOCK_BYTES - 1] ^= u8::from(!entry);
            device.write(block * BLOCK_BYTES as u64, Arc::new(bytes)).unwrap();
        }
    }
    is_safe(&given, &superblock, at(1, 0), &data(1, 32))
}

#[test]
fn what_rots_in_the_row_log_is_not_believed() {
    assert!(rotten_copies());
    #[cfg(feature = "breaks")]
    assert!(!crate::breaks::with(Break::RowLogBelieved, rotten_copies));
}

/// Who registered a write while a device joined was told that it does: the device gets it, although it has its place by now.
#[test]
fn a_device_that_has_its_place_gets_what_was_registered_before_in_rows() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_joining(1, Some(Arc::new(MemDevice::new(8 << 20))));
    let early = d.enter(at(1, 0), 16);
    assert!(d.end_joining([9; 16]).unwrap());
    let joined = d.roster().member(1).unwrap().clone();
    let put = rows::Put { place: Place { device: 1, block: 1000 }, data: data(1, 1) };
    let (tickets, left_out) = parity::submit(&early.roster, vec![put]);
    assert!(!left_out && tickets.iter().any(|(m, _)| Arc::ptr_eq(m, &joined)), "who took its place misses a write");
    early.end();
}

/// A cut left copies on device 1 alone, which was away afterwards. Whether what is there is read when it has been brought up to date.
fn copies_of_before_are_gone() -> bool {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(50, 20), Covering::All).unwrap();
    drop(d);
    for i in [0, 2] {
        let claims = Arc::new(AlignedBuf::zeroed(16 * BLOCK_BYTES));
        given[i].write(requests::bytes(superblock::AREA_BLOCKS), claims).unwrap();
    }
    let all = given.iter().map(|d| Some(d.clone() as Arc<dyn BlockDevice>)).collect();
    let d = Devices::open(all, &[1], superblock.clone(), Vec::new(), false);
    d.begin_segment(SegmentNo(1));
    let there = data(90, 128);
    d.write_flush(at(1, 0), there.clone(), Covering::All).unwrap();
    d.begin_joining(1, None);
    assert_eq!(
        d.copy(at(1, 0), 128, Some(&[Vec::new(), Vec::new()])).unwrap(),
        Copied::Done { blocks: 64, unreadable: 0 }
    );
    assert!(d.end_joining([0; 16]).unwrap());
    drop(d);
    opened(&given, &superblock, None).read(at(1, 0), 128, None).unwrap()[..] == there[..]
}

#[test]
fn who_is_brought_up_to_date_forgets_its_row_log() {
    assert!(copies_of_before_are_gone());
    #[cfg(feature = "breaks")]
    assert!(!crate::breaks::with(Break::StaleRowLog, copies_of_before_are_gone));
}

/// Seventeen rows are begun, and there are sixteen slots. What a flush answers that one of them has to wait for.
fn a_flush_of_seventeen_rows(flush: fn(&Devices) -> Result<(), DeviceError>) -> Result<(), DeviceError> {
    let (given, mut superblock) = rows_world();
    superblock.bands[0].segments = 20;
    let d = opened(&given, &superblock, None);
    for no in 0..17 {
        d.begin_segment(SegmentNo(no));
        d.write(at(no, 0), data(no as u8, 1)).unwrap();
    }
    thread::scope(|s| {
        let sync = s.spawn(|| flush(&d));
        // It waits until one of the others is full, whichever.
        thread::sleep(Duration::from_millis(50));
        d.write(at(3, 1), data(4, 31)).unwrap();
        sync.join().unwrap()
    })?;
    for no in 0..17 {
        assert!(is_safe(&given, &superblock, at(no, 0), &data(no as u8, 1)), "the row of segment {no}");
    }
    Ok(())
}

#[test]
fn a_row_that_finds_no_slot_waits_for_one() {
    a_flush_of_seventeen_rows(Devices::flush).unwrap();
    a_flush_of_seventeen_rows(Devices::protect_unflushed).unwrap();
}

#[cfg(feature = "breaks")]
#[test]
fn a_flush_that_fails_for_want_of_a_slot_is_noticed() {
    let fails = |d: &Devices| crate::breaks::with(Break::RowLogFullFails, || d.flush());
    assert_eq!(a_flush_of_seventeen_rows(fails), Err(DeviceError::Misuse("the row log is full")));
}

/// Rows that are full have all sixteen slots. Who begins another one is told that it has no copy yet, and flushes for one.
#[test]
fn who_finds_no_slot_is_told_and_gets_one_of_a_row_that_is_full() {
    let (given, mut superblock) = rows_world();
    superblock.bands[0].segments = 20;
    let d = opened(&given, &superblock, None);
    (0..17).for_each(|no| d.begin_segment(SegmentNo(no)));
    (0..16).for_each(|no| d.write(at(no, 0), data(no as u8, 1)).unwrap());
    d.flush().unwrap();
    (0..16).for_each(|no| d.write(at(no, 1), data(no as u8 + 1, 31)).unwrap());
    assert!(!d.write_unflushed(at(16, 0), data(16, 1)).unwrap());
    d.protect_unflushed().unwrap();
    for no in 0..17 {
        assert!(is_safe(&given, &superblock, at(no, 0), &data(no as u8, 1)), "the row of segment {no}");
    }
}

/// More logs at once on slow devices than there are slots, and nobody flushes but to have some. Some of them wait for nobody: who fills
/// rows does not.
#[test]
fn slots_are_given_back_while_several_write_without_a_flush() {
    let (given, mut superblock) = rows_world();
    superblock.bands[0].segments = 20;
    let slow = |d: &Arc<MemDevice>| {
        let device = Faulty::new(d.clone());
        device.faults().inject(Fault::Delay(Duration::from_micros(300)));
        Some(Arc::new(device) as Arc<dyn BlockDevice>)
    };
    let d = Devices::open(given.iter().map(slow).collect(), &[], superblock.clone(), Vec::new(), false);
    (0..20).for_each(|no| d.begin_segment(SegmentNo(no)));
    let log = |no: u64| {
        for block in (0..128).step_by(16) {
            if no >= 16 {
                d.write(at(no, block), data(no as u8, 16)).unwrap();
            } else if !d.write_unflushed(at(no, block), data(no as u8, 16)).unwrap() {
                d.protect_unflushed().unwrap();
            }
        }
    };
    thread::scope(|s| (0..20).for_each(|no| drop(s.spawn(move || log(no)))));
    for no in 0..20 {
        let want: Vec<u8> = (0..8).flat_map(|_| data(no as u8, 16).to_vec()).collect();
        assert!(is_safe(&given, &superblock, at(no, 0), &AlignedBuf::padded(&want)), "segment {no}");
    }
}

/// Parity that is made anew while it is copied to another device is copied again.
fn parity_is_made_anew_beside_a_copy() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(50, 128), Covering::All).unwrap();
    let parity = d.layout().row(SegmentNo(1), 0).unwrap().parity;
    given[usize::from(parity.device)].write(requests::bytes(parity.block), data(1, 1)).unwrap();
    d.begin_joining(parity.device, Some(Arc::new(MemDevice::new(8 << 20))));
    assert!(d.open_window(at(1, 0), 32));
    assert_eq!(d.mend_parity((SegmentNo(1), 0)).unwrap(), Some(true));
    assert!(!d.close_window(), "parity of before may have been copied");
}

#[test]
fn parity_that_is_written_meanwhile_is_copied_again() {
    parity_is_made_anew_beside_a_copy();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "parity of before may have been copied")]
fn parity_that_is_not_copied_again_is_noticed() {
    crate::breaks::with(Break::ParityUnregistered, parity_is_made_anew_beside_a_copy);
}

/// A place that cannot be read: device, first block, how many.
type Bad = (u16, u64, u64);

/// The same devices with such places.
fn with_bad(given: &[Arc<MemDevice>], superblock: &Superblock, bad: &[Bad], gone: Option<u16>) -> Arc<Devices> {
    let one = |(i, d): (u16, &Arc<MemDevice>)| {
        let device = Faulty::new(d.clone());
        for (_, first, blocks) in bad.iter().filter(|b| b.0 == i) {
            let range = requests::bytes(*first)..requests::bytes(first + blocks);
            device.faults().inject(Fault::FailReads { range });
        }
        (Some(i) != gone).then(|| Arc::new(device) as Arc<dyn BlockDevice>)
    };
    let all = (0..).zip(given).map(one).collect();
    Devices::open(all, &[], superblock.clone(), Vec::new(), false)
}

/// Before the first write of a mount rows get their parity, and the row log lets go of them.
fn settle(d: Arc<Devices>) {
    assert_eq!(d.settle_rows(), Ok(true), "ends the mount");
    d.flush().unwrap();
    d.rows_settled();
    d.flush().unwrap();
    drop(d);
}

/// A full row of which each device has another bad block: where these are.
fn a_row_with_bad_blocks() -> (Vec<Arc<MemDevice>>, Superblock, layout::Row, Vec<Bad>) {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(50, 128), Covering::All).unwrap();
    d.flush().unwrap();
    let row = d.layout().row(SegmentNo(1), 0).unwrap();
    let places = row.units.iter().chain([&row.parity]).zip([3, 7, 5]);
    let bad = places.map(|(p, block)| (p.device, p.block + block, 1)).collect();
    (given, superblock, row, bad)
}

fn blocks_of_a_row_are_read_one_by_one() {
    let (given, superblock, _, bad) = a_row_with_bad_blocks();
    let d = with_bad(&given, &superblock, &bad, None);
    for (from, count) in [(0, 32), (2, 3), (3, 1), (0, 16), (16, 16), (7, 17), (0, 128)] {
        let read = d.read(at(1, from), count, None);
        let want = data(50 + from as u8, count as usize);
        assert!(read.is_ok_and(|read| read[..] == want[..]), "not read: {count} blocks at {from}");
    }
}

#[test]
fn each_device_of_a_row_may_have_another_bad_block() {
    blocks_of_a_row_are_read_one_by_one();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "not read")]
fn a_row_that_is_not_read_block_by_block_is_noticed() {
    crate::breaks::with(Break::RowsInUnits, blocks_of_a_row_are_read_one_by_one);
}

/// Whoever takes the place of a device gets all but what lies in two bad blocks of one column.
fn a_device_of_such_a_row_is_replaced() {
    let (given, superblock, row, bad) = a_row_with_bad_blocks();
    for place in row.units.iter().chain([&row.parity]) {
        for there in [true, false] {
            // Without the old device each bad block of the others is a second one.
            let lost = if there { 0 } else { 2 };
            let d = with_bad(&given, &superblock, &bad, (!there).then_some(place.device));
            let new = Arc::new(MemDevice::new(8 << 20));
            d.begin_joining(place.device, Some(new.clone()));
            let copied = d.copy(at(1, 0), 32, Some(&[Vec::new(), Vec::new()])).unwrap();
            assert_eq!(copied, Copied::Done { blocks: 16, unreadable: lost }, "left out");
            let is = |d: &MemDevice, b: u64| d.read(requests::bytes(place.block + b), BLOCK_BYTES).unwrap();
            let old = &given[usize::from(place.device)];
            let unlike = (0..16).filter(|b| is(&new, *b)[..] != is(old, *b)[..]).count();
            assert!(unlike <= lost as usize, "{unlike} blocks are not what they were");
        }
    }
}

#[test]
fn who_takes_a_place_in_rows_gets_each_block_that_can_be_had() {
    a_device_of_such_a_row_is_replaced();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "left out")]
fn who_takes_a_place_in_rows_and_gets_units_or_nothing_is_noticed() {
    crate::breaks::with(Break::RowsInUnits, a_device_of_such_a_row_is_replaced);
}

/// A cut left a row that is not full; bad blocks are what was acknowledged, what was not, and what was never written. Then each device is
/// lost.
fn a_row_with_bad_blocks_is_settled() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(50, 20), Covering::All).unwrap();
    let row = d.layout().row(SegmentNo(1), 0).unwrap();
    drop(d);
    // What a write left behind that was cut.
    let [first, second] = [row.units[0], row.units[1]];
    given[usize::from(second.device)].write(requests::bytes(second.block + 9), data(201, 1)).unwrap();
    let bad = [
        (first.device, first.block + 2, 1),
        (second.device, second.block + 3, 1),
        (second.device, second.block + 9, 3),
    ];
    let d = with_bad(&given, &superblock, &bad, None);
    settle(d);
    assert!(is_safe(&given, &superblock, at(1, 0), &data(50, 20)), "lost with a device");
}

#[test]
fn a_bad_block_of_a_row_that_a_cut_left_takes_no_other_with_it() {
    a_row_with_bad_blocks_is_settled();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "lost with a device")]
fn a_bad_block_that_stays_in_a_row_is_noticed() {
    crate::breaks::with(Break::RowsUnwritten, a_row_with_bad_blocks_is_settled);
}

/// Two blocks of a column are bad, and its parity: it stays as it is, but for what the row log has of it. The others get their parity.
fn a_column_that_is_lost_is_left() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(50, 13), Covering::All).unwrap();
    let row = d.layout().row(SegmentNo(1), 0).unwrap();
    drop(d);
    let places: Vec<&Place> = row.units.iter().chain([&row.parity]).collect();
    let bytes_of = |block: u64| -> Vec<Vec<u8>> {
        let read =
            |p: &&Place| given[usize::from(p.device)].read(requests::bytes(p.block + block), BLOCK_BYTES).unwrap();
        places.iter().map(|p| read(p).to_vec()).collect()
    };
    // In one column the row log has a block, which is torn where it lies; in the other nothing is known.
    let (acknowledged, unknown) = (5, 14);
    given[usize::from(places[0].device)].write(requests::bytes(places[0].block + acknowledged), data(7, 1)).unwrap();
    for (n, place) in places.iter().enumerate() {
        given[usize::from(place.device)].write(requests::bytes(place.block + unknown), data(n as u8, 1)).unwrap();
    }
    let before = bytes_of(unknown);
    let bad = |p: &&Place| [acknowledged, unknown].map(|block| (p.device, p.block + block, 1));
    let bad: Vec<Bad> = places.iter().flat_map(bad).collect();
    let d = with_bad(&given, &superblock, &bad, None);
    settle(d);
    assert!(bytes_of(unknown) == before, "a lost column is written to");
    // What the row log had of the other column is put back, and has parity: with zeros for what is lost.
    for block in 0..13 {
        assert!(
            is_safe(&given, &superblock, at(1, block), &data(50 + block as u8, 1)),
            "what the row log had is not put back"
        );
    }
}

/// The same while a device is absent, whose acknowledged block the row log has, and another has a bad block in that column.
#[test]
fn what_the_row_log_has_of_an_absent_device_is_kept() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    let row = {
        d.begin_segment(SegmentNo(1));
        d.layout().row(SegmentNo(1), 0).unwrap()
    };
    drop(d);
    let [absent, bad] = [row.units[0], row.units[1]];
    let d = opened(&given, &superblock, Some(usize::from(absent.device)));
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(50, 13), Covering::All).unwrap();
    drop(d);
    let d = with_bad(&given, &superblock, &[(bad.device, bad.block + 5, 1)], Some(absent.device));
    settle(d);
    let read = opened(&given, &superblock, Some(usize::from(absent.device))).read(at(1, 0), 13, None);
    assert!(read.is_ok_and(|read| read[..] == data(50, 13)[..]), "an acknowledged block of the absent device is gone");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what the row log had is not put back")]
fn what_the_row_log_has_and_is_not_put_back_is_noticed() {
    crate::breaks::with(Break::TornLeft, a_column_that_is_lost_is_left);
}

/// What recovery verified of such a row, and the row log does not have, is right also where it cannot be read any more.
fn what_was_verified_is_known() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(50, 3), Covering::All).unwrap();
    d.write(at(1, 3), data(53, 17)).unwrap();
    let place = d.layout().row(SegmentNo(1), 0).unwrap().units[0];
    drop(d);
    // Something was here before.
    let parity = opened(&given, &superblock, None).layout().row(SegmentNo(1), 0).unwrap().parity;
    given[usize::from(parity.device)].write(requests::bytes(parity.block), data(99, 16)).unwrap();
    let d = with_bad(&given, &superblock, &[(place.device, place.block + 4, 3)], None);
    d.remember(at(1, 3), &data(53, 17));
    settle(d);
    assert!(is_safe(&given, &superblock, at(1, 0), &data(50, 20)), "what was verified is written over");
}

#[test]
fn what_was_verified_of_a_row_is_not_rebuilt() {
    what_was_verified_is_known();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was verified is written over")]
fn what_was_verified_and_is_rebuilt_is_noticed() {
    crate::breaks::with(Break::VerifiedForgotten, what_was_verified_is_known);
}

/// A device that gives nothing is asked a bounded number of times: when it is opened, when rows get their parity, and by who takes its
/// place.
fn a_device_of_rows_that_fails_is_asked_now_and_then() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(50, 128), Covering::All).unwrap();
    d.flush().unwrap();
    d.begin_segment(SegmentNo(2));
    d.write_flush(at(2, 0), data(90, 20), Covering::All).unwrap();
    drop(d);
    let faulty = Faulty::new(given[0].clone());
    faulty.faults().inject(Fault::FailReads { range: 0..u64::MAX });
    let observed = Observed::new(faulty);
    let observer = observed.observer();
    let asked = |what: &str| {
        let reads = observer.counters().reads;
        assert!(reads < 60, "asked in vain {reads} times: {what}");
    };
    let others = given[1..].iter().map(|d| Some(d.clone() as Arc<dyn BlockDevice>));
    let all = [Some(Arc::new(observed) as Arc<dyn BlockDevice>)].into_iter().chain(others).collect();
    let d = Devices::open(all, &[], superblock, Vec::new(), false);
    asked("opened");
    assert_eq!(d.settle_rows(), Ok(true));
    d.rows_settled();
    asked("settled");
    d.begin_joining(0, Some(Arc::new(MemDevice::new(8 << 20))));
    for segment in 1..3 {
        assert_eq!(
            d.copy(at(segment, 0), 128, Some(&[Vec::new(), Vec::new()])).unwrap(),
            Copied::Done { blocks: 64, unreadable: 0 }
        );
    }
    asked("copied");
    assert!(d.end_joining([9; 16]).unwrap());
    assert!(d.read(at(1, 0), 128, None).unwrap()[..] == data(50, 128)[..]);
    assert!(d.read(at(2, 0), 20, None).unwrap()[..] == data(90, 20)[..]);
}

#[test]
fn a_device_of_rows_that_fails_is_not_asked_for_ever() {
    a_device_of_rows_that_fails_is_asked_now_and_then();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "asked in vain")]
fn a_device_of_rows_that_is_asked_for_each_block_is_noticed() {
    crate::breaks::with(Break::PatienceEndless, a_device_of_rows_that_fails_is_asked_now_and_then);
}

#[test]
fn a_mount_goes_on_where_a_column_of_a_row_is_lost() {
    a_column_that_is_lost_is_left();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "ends the mount")]
fn a_mount_that_ends_at_a_lost_column_is_noticed() {
    crate::breaks::with(Break::RowsInUnits, a_column_that_is_lost_is_left);
}

/// A block of a device's row log is bad, and nothing that counts lies there: what else the row log has is read.
fn a_row_log_with_a_bad_block() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    // The first slot is another row's.
    for (segment, blocks) in [(2, 3), (1, 20)] {
        d.begin_segment(SegmentNo(segment));
        d.write_flush(at(segment, 0), data(50, blocks), Covering::All).unwrap();
    }
    drop(d);
    // More than patience bears, before what counts is asked for; and some behind that.
    let unit = |unit: u64| superblock::AREA_BLOCKS + 16 * unit;
    let bad: Vec<Bad> = (0..3).flat_map(|device| [(device, unit(2), 16), (device, unit(20), 3)]).collect();
    for gone in 0..3 {
        let read = with_bad(&given, &superblock, &bad, Some(gone)).read(at(1, 0), 20, None);
        assert!(read.is_ok_and(|read| read[..] == data(50, 20)[..]), "without {gone}: the row log is not read");
    }
}

#[test]
fn a_bad_block_of_the_row_log_is_one_block() {
    a_row_log_with_a_bad_block();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "the row log is not read")]
fn a_row_log_that_is_read_as_a_whole_is_noticed() {
    crate::breaks::with(Break::RowsInUnits, a_row_log_with_a_bad_block);
}

/// Of a segment that ended somebody has places that he writes to very late, while slots are short; whether he said that he does.
fn places_are_written_late(says_so: bool) -> Result<(), DeviceError> {
    let (given, mut superblock) = rows_world();
    superblock.bands[0].segments = 20;
    let d = opened(&given, &superblock, None);
    for no in 0..11 {
        d.begin_segment(SegmentNo(no));
        d.write(at(no, 0), data(no as u8, 1)).unwrap();
    }
    d.flush().unwrap();
    if says_so {
        d.hold_segment(SegmentNo(0));
    }
    d.end_segment(SegmentNo(0), 32);
    (0..258).for_each(|_| d.flush().unwrap());
    d.write(at(0, 1), data(5, 31))?;
    d.let_go_of_segment(SegmentNo(0));
    d.flush().unwrap();
    assert!(
        is_safe(&given, &superblock, at(0, 0), &data(0, 1)) && is_safe(&given, &superblock, at(0, 1), &data(5, 31))
    );
    Ok(())
}

#[test]
fn places_that_are_held_are_written_to_however_late() {
    places_are_written_late(true).unwrap();
    assert!(places_are_written_late(false).is_err(), "what was given up keeps a slot for ever");
}

#[cfg(feature = "breaks")]
#[test]
fn places_that_become_zeros_are_noticed() {
    let written = crate::breaks::with(Break::HeldFilled, || places_are_written_late(true));
    assert!(matches!(written, Err(DeviceError::Misuse(_))), "{written:?}");
}

/// Scrubbing comes to a row that is being written, all of it at once.
fn parity_is_mended_beside_a_write() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    let write = d.submit_write(at(1, 0), data(50, 32));
    let parity = d.layout().row(SegmentNo(1), 0).unwrap().parity;
    given[usize::from(parity.device)].write(requests::bytes(parity.block), data(1, 1)).unwrap();
    assert_eq!(d.mend_parity((SegmentNo(1), 0)), Ok(None), "parity of what is being written");
    write.wait().unwrap();
    assert_eq!(d.mend_parity((SegmentNo(1), 0)), Ok(Some(true)));
    assert!(is_safe(&given, &superblock, at(1, 0), &data(50, 32)));
}

#[test]
fn parity_is_not_made_of_what_is_being_written() {
    parity_is_mended_beside_a_write();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "parity of what is being written")]
fn parity_that_is_made_of_what_is_being_written_is_noticed() {
    crate::breaks::with(Break::ParityBesideWrites, parity_is_mended_beside_a_write);
}

/// A cut took the claim of a row and left its entries; another use of the segment has one in another place. Whether that is what is read.
fn a_claim_is_lost_and_its_entries_are_not() -> bool {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(1, 3), Covering::All).unwrap();
    d.write_flush(at(1, 3), data(4, 2), Covering::All).unwrap();
    drop(d);
    for device in &given {
        let claims = Arc::new(AlignedBuf::zeroed(16 * BLOCK_BYTES));
        device.write(requests::bytes(superblock::AREA_BLOCKS), claims).unwrap();
    }
    let d = opened(&given, &superblock, None);
    d.begin_segment(SegmentNo(1));
    d.write_flush(at(1, 0), data(90, 5), Covering::All).unwrap();
    drop(d);
    is_safe(&given, &superblock, at(1, 0), &data(90, 5))
}

#[test]
fn a_number_of_the_row_log_is_given_once() {
    assert!(a_claim_is_lost_and_its_entries_are_not());
    #[cfg(feature = "breaks")]
    assert!(!crate::breaks::with(Break::ClaimsReused, a_claim_is_lost_and_its_entries_are_not));
}

/// What is written of a row, or nothing, and protected: how many claims that takes, and what is true when it is done.
fn protected(rows: &mut rows::State, part: Option<(layout::Row, u32, &[u8])>) -> (usize, rows::Marks) {
    let (mut puts, mut marks) = (Vec::new(), rows::Marks::default());
    if let Some((row, within, bytes)) = part {
        rows.put(row, within, bytes, &mut puts, &mut marks).unwrap();
    }
    rows.protect(&[0, 1, 2], &mut puts, &mut marks);
    let claims = superblock::AREA_BLOCKS..superblock::AREA_BLOCKS + u64::from(nenrin_format::row_log::ROW_SLOTS);
    (puts.iter().filter(|p| claims.contains(&p.place.block)).count(), marks)
}

/// A row is full and durable before all devices have its claim.
fn a_slot_is_free_before_it_is_claimed() {
    let (given, superblock) = rows_world();
    let d = opened(&given, &superblock, None);
    let row = d.layout().row(SegmentNo(1), 0).unwrap();
    let mut rows = d.rows.lock();
    rows.begin(SegmentNo(1));
    let (claims, first) = protected(&mut rows, Some((row.clone(), 0, &data(1, 3))));
    assert_eq!(claims, 3);
    let (claims, rest) = protected(&mut rows, Some((row, 3, &data(4, 29))));
    assert_eq!(claims, 0);
    rows.apply(&rest);
    let ready = rows.ready();
    assert_eq!(ready.len(), 1);
    rows.release(&ready);
    let (claims, beside) = protected(&mut rows, None);
    assert_eq!(claims, 0, "a claim is ended beside itself");
    rows.apply(&beside);
    rows.apply(&first);
    assert_eq!(protected(&mut rows, None).0, 3);
}

#[test]
fn a_claim_is_ended_when_it_is_written() {
    a_slot_is_free_before_it_is_claimed();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "a claim is ended beside itself")]
fn a_claim_that_is_ended_beside_itself_is_noticed() {
    crate::breaks::with(Break::ClaimsCross, a_slot_is_free_before_it_is_claimed);
}
