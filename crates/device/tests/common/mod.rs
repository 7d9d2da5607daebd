//! Helpers of the device tests.
#![allow(dead_code, clippy::unwrap_used)] // test helpers, of which each binary uses some

use nenrin_device::{AlignedBuf, BLOCK_BYTES, BlockDevice, Op};
use std::sync::Arc;

/// `blocks` blocks full of `byte`.
pub fn blocks(byte: u8, blocks: usize) -> Arc<AlignedBuf> {
    Arc::new(AlignedBuf::padded(&vec![byte; blocks * BLOCK_BYTES]))
}

pub fn write_op(block: u64, byte: u8, count: usize) -> Op {
    Op::Write { offset: block * BLOCK_BYTES as u64, data: blocks(byte, count) }
}

/// What every writable device has to do. The device has at least 64 blocks.
pub fn roundtrip(device: &dyn BlockDevice) {
    let block = BLOCK_BYTES as u64;
    device.write(0, blocks(1, 3)).unwrap();
    device.write_flush(2 * block, blocks(2, 2)).unwrap();
    device.flush().unwrap();
    let read = device.read(0, 5 * BLOCK_BYTES).unwrap();
    let firsts: Vec<_> = read.chunks(BLOCK_BYTES).map(|b| b[0]).collect();
    assert_eq!(firsts[..4], [1, 1, 2, 2]);
    assert!(read.chunks(BLOCK_BYTES).all(|b| b.iter().all(|x| *x == b[0])));

    let tickets: Vec<_> = (8..24).map(|n| device.submit(write_op(n, n as u8, 1))).collect();
    for ticket in tickets {
        assert!(ticket.wait().unwrap().is_empty());
    }
    device.submit(Op::Flush).wait().unwrap();
    let reads = (8..24).map(|n| device.submit(Op::Read { offset: n * block, bytes: 4096 }));
    for (n, ticket) in (8u8..).zip(reads.collect::<Vec<_>>()) {
        assert!(ticket.wait().unwrap().iter().all(|byte| *byte == n));
    }

    device.submit(Op::Zero { offset: 8 * block, bytes: 8 * block }).wait().unwrap();
    device.submit(Op::Discard { offset: 16 * block, bytes: 4 * block }).wait().unwrap();
    assert!(device.read(8 * block, 8 * BLOCK_BYTES).unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(device.read(20 * block, BLOCK_BYTES).unwrap()[0], 20);
    assert!(device.read(0, 0).unwrap().is_empty());
    assert!(device.submit(Op::Read { offset: 0, bytes: 0 }).wait().unwrap().is_empty());
}

/// Requests that every device refuses, by both ways of asking.
pub fn refuses_misuse(device: &dyn BlockDevice) {
    use nenrin_device::DeviceError::{Misuse, Short};
    let end = device.geometry().bytes;
    let misuse = [
        Op::Read { offset: 512, bytes: 4096 },
        Op::Read { offset: 0, bytes: 100 },
        Op::Write { offset: end, data: blocks(1, 1) },
        Op::Write { offset: 8, data: blocks(1, 1) },
        Op::Write { offset: 0, data: Arc::new(AlignedBuf::zeroed(1000)) },
        Op::Zero { offset: end - 4096, bytes: 8192 },
        Op::Discard { offset: u64::MAX - 4095, bytes: 8192 },
    ];
    for op in misuse {
        let got = device.submit(op.clone()).wait();
        assert!(matches!(got, Err(Misuse(_))), "{op:?}: {got:?}");
    }
    for offset in [end, end - 4096, u64::MAX - 4095] {
        assert_eq!(device.submit(Op::Read { offset, bytes: 8192 }).wait().unwrap_err(), Short);
        assert_eq!(device.read(offset, 8192).unwrap_err(), Short);
    }
    assert!(matches!(device.write(end, blocks(1, 1)), Err(Misuse(_))));
    assert!(matches!(device.write_flush(1, blocks(1, 1)), Err(Misuse(_))));
}
