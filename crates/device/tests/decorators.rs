//! Decorators: what they count, and how they misbehave when told to.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod common;

use common::{blocks, refuses_misuse, roundtrip, write_op};
use nenrin_device::{BlockDevice, CrashDisk, DeviceError, Fault, Faulty, MemDevice, Observed, Op, OpKind};
use std::time::{Duration, Instant};

const EIO: DeviceError = DeviceError::Os(5);

fn memory() -> MemDevice {
    MemDevice::new(1 << 20)
}

#[test]
fn decorators_change_nothing_by_themselves() {
    roundtrip(&Faulty::new(Observed::new(memory())));
    refuses_misuse(&Faulty::new(Observed::new(memory())));
    let device = Faulty::new(memory());
    device.faults().inject(Fault::Delay(Duration::ZERO));
    roundtrip(&device);
    refuses_misuse(&device);
}

#[test]
fn requests_are_counted_by_kind() {
    let device = Observed::new(Observed::new(memory()));
    device.observer().start_trace();
    device.write(4096, blocks(1, 2)).unwrap();
    device.write_flush(0, blocks(1, 1)).unwrap();
    device.submit(Op::Flush).wait().unwrap();
    device.read(0, 8192).unwrap();
    device.submit(Op::Discard { offset: 0, bytes: 4096 }).wait().unwrap();
    device.submit(Op::Zero { offset: 0, bytes: 8192 }).wait().unwrap();
    let counters = device.counters();
    assert_eq!((counters.writes, counters.write_bytes, counters.flushes), (2, 12288, 2));
    assert_eq!((counters.reads, counters.read_bytes), (1, 8192));
    assert_eq!((counters.discards, counters.discard_bytes), (1, 4096));
    assert_eq!((counters.zeros, counters.zero_bytes), (1, 8192));
    assert_eq!(device.inner().counters(), counters, "write_flush is not counted twice below");
    assert_eq!(counters.since(&counters), nenrin_device::Counters::default());

    let trace = device.observer().take_trace();
    let kinds: Vec<_> = trace.iter().map(|e| (e.kind, e.offset, e.bytes)).collect();
    assert_eq!(kinds[..3], [(OpKind::Write, 4096, 8192), (OpKind::Write, 0, 4096), (OpKind::Flush, 0, 0)]);
    assert!(trace.is_sorted_by_key(|e| e.at));
    device.flush().unwrap();
    assert!(device.observer().take_trace().is_empty());
}

#[test]
fn write_flush_and_write_durable_reach_the_device_as_one_call() {
    /// Fails unless both come together.
    struct OnlyTogether(MemDevice);
    impl BlockDevice for OnlyTogether {
        fn geometry(&self) -> nenrin_device::Geometry {
            self.0.geometry()
        }
        fn submit(&self, _: Op) -> nenrin_device::Ticket {
            nenrin_device::Ticket::done(Err(DeviceError::Off))
        }
        fn write_flush(&self, offset: u64, data: std::sync::Arc<nenrin_device::AlignedBuf>) -> Result<(), DeviceError> {
            self.0.write_flush(offset, data)
        }
    }
    let device = Faulty::new(Observed::new(Box::new(OnlyTogether(memory()))));
    device.write_flush(0, blocks(3, 1)).unwrap();
    device.faults().inject(Fault::Fail { kind: OpKind::Write, from: 2, times: 1 });
    device.write_flush(0, blocks(3, 1)).unwrap();
    assert_eq!(device.write_flush(0, blocks(4, 1)), Err(EIO));
    assert_eq!(device.inner().inner().0.read(0, 4096).unwrap()[0], 3);
    assert_eq!(device.inner().counters().flushes, 2, "no flush after a failed write");

    device.faults().clear();
    device.write_durable(0, blocks(5, 1)).unwrap();
    assert_eq!((device.inner().counters().writes, device.inner().counters().flushes), (3, 3));
    for kind in [OpKind::Write, OpKind::Flush] {
        device.faults().inject(Fault::Fail { kind, from: 1, times: 1 });
        assert!(device.write_durable(0, blocks(6, 1)).is_err(), "{kind:?}");
        device.faults().clear();
    }
}

#[test]
fn the_nth_request_fails() {
    for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
        let device = Faulty::new(memory());
        device.write(0, blocks(1, 1)).unwrap();
        device.faults().inject(Fault::Fail { kind, from: 2, times: 2 });
        let outcomes: Vec<_> = (0..4u8)
            .map(|n| match kind {
                OpKind::Read => device.read(0, 4096).map(drop),
                OpKind::Flush if n % 2 == 0 => device.flush(),
                OpKind::Flush => device.write_flush(4096, blocks(n, 1)),
                _ => device.submit(write_op(0, 10 + n, 1)).wait().map(drop),
            })
            .collect();
        assert_eq!(outcomes, [Ok(()), Err(EIO), Err(EIO), Ok(())], "{kind:?}");
        assert_eq!(device.faults().fired(), 2);
        device.faults().clear();
        assert!(device.read(0, 4096).is_ok());
    }
}

#[test]
fn writes_are_lost_and_misdirected() {
    let device = Faulty::new(Observed::new(memory()));
    device.faults().inject(Fault::LoseWrites { from: 1, times: 1 });
    device.faults().inject(Fault::MisdirectWrite { number: 2, to: 8 * 4096 });
    for n in 1..4u8 {
        device.write_flush(0, blocks(n, 1)).unwrap();
        let read = |block: u64| device.read(block * 4096, 4096).unwrap()[0];
        assert_eq!([read(0), read(8)], [[0, 0], [0, 2], [3, 2]][usize::from(n) - 1]);
    }
    assert_eq!(device.inner().counters().writes, 2);
    assert_eq!(device.inner().counters().flushes, 3);
}

#[test]
fn a_write_goes_onto_the_one_before() {
    let device = Faulty::new(memory());
    device.faults().inject(Fault::MisdirectOntoLast { number: 2, block: 4 });
    device.write_flush(8 * 4096, blocks(1, 3)).unwrap();
    device.write_flush(0, blocks(2, 1)).unwrap();
    let read = |block: u64| device.read(block * 4096, 4096).unwrap()[0];
    assert_eq!([read(0), read(8), read(9), read(10)], [0, 1, 2, 1]);
}

#[test]
fn reads_come_back_flipped() {
    let device = Faulty::new(memory());
    device.faults().inject(Fault::FlipReads { range: 5000..5002, mask: 0x81 });
    let read = device.read(4096, 4096).unwrap();
    let flipped: Vec<_> = (0..4096).filter(|n| read[*n] != 0).collect();
    assert_eq!(flipped, [5000 - 4096, 5001 - 4096]);
    assert_eq!(read[5000 - 4096], 0x81);
    assert!(device.submit(Op::Read { offset: 8192, bytes: 4096 }).wait().unwrap()[0] == 0);
    assert_eq!(device.faults().fired(), 1);
}

#[test]
fn a_bad_sector_is_never_read() {
    let device = Faulty::new(memory());
    device.faults().inject(Fault::FailReads { range: 5000..5002 });
    let read = |offset, bytes| device.read(offset, bytes);
    for _ in 0..2 {
        assert_eq!(read(0, 8192).unwrap_err(), DeviceError::Os(libc::EIO));
        assert!(read(0, 4096).is_ok() && read(8192, 4096).is_ok());
    }
    device.write_flush(4096, blocks(1, 1)).unwrap();
    assert_eq!(device.faults().fired(), 2);
}

#[test]
fn a_sector_that_is_written_anew_is_bad_no_more() {
    let device = Faulty::new(memory());
    device.faults().inject(Fault::BadUntilWritten { at: 8192 });
    let read = |offset, bytes| device.read(offset, bytes);
    for written in [0, 4096, 12288] {
        device.write(written, blocks(1, 1)).unwrap();
        assert_eq!(read(4096, 8192).unwrap_err(), EIO);
        assert!(read(0, 8192).is_ok() && read(12288, 4096).is_ok());
    }
    device.faults().inject(Fault::LoseWrites { from: 1, times: 1 });
    device.write(8192, blocks(2, 1)).unwrap();
    assert_eq!(read(8192, 4096).unwrap_err(), EIO, "a write that was lost covers nothing");
    device.write(4096, blocks(3, 3)).unwrap();
    assert!(read(8192, 4096).unwrap()[..] == blocks(3, 1)[..]);
}

#[test]
fn one_read_comes_back_flipped_once_or_for_ever() {
    for (for_good, again) in [(false, 0), (true, 4)] {
        let device = Faulty::new(memory());
        let faults = device.faults();
        faults.inject(Fault::FlipRead { number: 2, byte: 8192 + 7, mask: 4, for_good });
        let read = |offset| device.read(offset, 8192).unwrap();
        assert!(read(4096).iter().all(|b| *b == 0));
        assert_eq!(faults.flipped(), None);
        let hit = read(4096);
        assert_eq!(hit.iter().position(|b| *b != 0), Some(7));
        assert_eq!(hit[7], 4);
        assert_eq!(faults.flipped(), Some(4096..12_288));
        assert_eq!((read(0)[4096 + 7], read(8192)[7]), (again, 0));
    }
}

#[test]
fn delays_hold_up_the_waiter_only() {
    let device = Faulty::new(memory());
    let delay = Duration::from_millis(30);
    device.faults().inject(Fault::Delay(delay));
    let start = Instant::now();
    let tickets = [1, 2, 3].map(|n| device.submit(write_op(n, 1, 1)));
    let soon = start.elapsed() < delay;
    assert!(!soon || tickets.iter().all(|ticket| !ticket.is_done()));
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    assert!(start.elapsed() >= delay);
    device.write_flush(0, blocks(1, 1)).unwrap();
    assert!(start.elapsed() >= 2 * delay);
}

#[test]
fn a_device_switched_off_stays_off() {
    let device = Faulty::new(CrashDisk::new(1 << 20));
    device.faults().switch_off();
    assert_eq!(device.flush(), Err(DeviceError::Off));
    assert_eq!(device.write_flush(0, blocks(1, 1)), Err(DeviceError::Off));
    assert_eq!(device.read(0, 4096).unwrap_err(), DeviceError::Off);
    assert_eq!(device.inner().cut_points(), 0);
    device.faults().clear();
    device.flush().unwrap();
}
