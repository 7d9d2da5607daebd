//! Devices of the host: files with plain calls and behind io_uring.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod common;

use common::{blocks, refuses_misuse, roundtrip, write_op};
use nenrin_device::{
    AlignedBuf, BlockDevice, DeviceError, FileDevice, MemDevice, Op, OpenMode, UringDevice, open_best,
};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::{NamedTempFile, TempDir};

const BYTES: u64 = 4 << 20;

fn image(bytes: u64) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(bytes).unwrap();
    file
}

/// Each way of opening a path; io_uring is left out where the host forbids it.
fn each(path: &Path, mode: OpenMode, test: impl Fn(&dyn BlockDevice)) {
    test(&FileDevice::open(path, mode).unwrap());
    match UringDevice::open(path, mode) {
        Ok(device) => test(&device),
        Err(e) => eprintln!("no io_uring here: {e}"),
    }
    test(&*open_best(path, mode).unwrap());
}

#[test]
fn what_is_written_is_read() {
    let file = image(BYTES);
    each(file.path(), OpenMode::OWNER, |device| {
        roundtrip(device);
        refuses_misuse(device);
        let geometry = device.geometry();
        assert_eq!((geometry.bytes, geometry.writable), (BYTES, true));
        assert_eq!(geometry.name, file.path().display().to_string());
    });
    let memory = MemDevice::new(BYTES as usize);
    roundtrip(&memory);
    refuses_misuse(&memory);
    let copy = MemDevice::from_bytes(memory.snapshot());
    assert_eq!(copy.read(0, 65536).unwrap()[..], memory.read(0, 65536).unwrap()[..]);
}

#[test]
fn a_file_system_without_direct_io_is_served_buffered() {
    for dir in ["/dev/shm", "/proc/self/cwd"] {
        let Ok(dir) = TempDir::new_in(dir) else {
            continue;
        };
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(BYTES).unwrap();
        each(&path, OpenMode::OWNER, roundtrip);
    }
}

#[test]
fn the_linked_pair_writes_and_flushes() {
    let file = image(BYTES);
    let Ok(device) = UringDevice::open(file.path(), OpenMode::OWNER) else {
        return;
    };
    for n in 0..50u8 {
        let offset = u64::from(n) * 8192;
        device.write_flush_linked(offset, blocks(n, 2)).unwrap();
        assert!(device.read(offset, 8192).unwrap().iter().all(|byte| *byte == n));
    }
    assert!(matches!(device.write_flush_linked(BYTES, blocks(1, 1)), Err(DeviceError::Misuse(_))));
}

#[test]
fn zeroing_allocates_and_discarding_gives_back() {
    use std::os::unix::fs::MetadataExt;
    let file = image(BYTES);
    let device = FileDevice::open(file.path(), OpenMode::OWNER).unwrap();
    let allocated = || file.as_file().metadata().unwrap().blocks() * 512;
    assert_eq!(allocated(), 0);
    device.submit(Op::Zero { offset: 0, bytes: BYTES }).wait().unwrap();
    device.flush().unwrap();
    assert!(allocated() >= BYTES);
    device.submit(Op::Discard { offset: 0, bytes: BYTES / 2 }).wait().unwrap();
    device.flush().unwrap();
    assert!(allocated() < BYTES || !device.geometry().discard);
    assert_eq!(device.geometry().bytes, BYTES);
}

#[test]
fn lengths_are_rounded_down() {
    let file = image(3 * 4096 + 1000);
    each(file.path(), OpenMode::OWNER, |device| {
        assert_eq!(device.geometry().bytes, 3 * 4096);
        device.write(2 * 4096, blocks(7, 1)).unwrap();
        assert_eq!(device.read(3 * 4096, 4096).unwrap_err(), DeviceError::Short);
    });
    let empty = image(0);
    each(empty.path(), OpenMode::OWNER, |device| assert_eq!(device.geometry().bytes, 0));
}

#[test]
fn a_file_cut_short_while_open_is_short() {
    let file = image(BYTES);
    each(file.path(), OpenMode::OWNER, |device| {
        file.as_file().set_len(BYTES / 2).unwrap();
        let (offset, bytes) = (BYTES / 2 - 4096, 8192);
        assert_eq!(device.read(offset, bytes).unwrap_err(), DeviceError::Short);
        let submitted = device.submit(Op::Read { offset, bytes }).wait();
        assert_eq!(submitted.unwrap_err(), DeviceError::Short);
        file.as_file().set_len(BYTES).unwrap();
    });
}

#[test]
fn dropped_tickets_still_run() {
    let file = image(BYTES);
    each(file.path(), OpenMode::OWNER, |device| {
        for n in 0..300u64 {
            drop(device.submit(write_op(n, n as u8 | 1, 1)));
        }
        let until = Instant::now() + Duration::from_secs(60);
        while (0..300).any(|n| device.read(n * 4096, 1 << 12).unwrap()[0] != n as u8 | 1) {
            assert!(Instant::now() < until, "a dropped write never ran");
        }
        device.submit(Op::Zero { offset: 0, bytes: 300 * 4096 }).wait().unwrap();
    });
}

#[test]
fn dropping_the_device_finishes_what_was_submitted() {
    let file = image(BYTES);
    for uring in [false, true] {
        let device: Box<dyn BlockDevice> = if uring {
            open_best(file.path(), OpenMode::OWNER).unwrap()
        } else {
            Box::new(FileDevice::open(file.path(), OpenMode::OWNER).unwrap())
        };
        let byte = 10 + u8::from(uring);
        let kept = device.submit(write_op(100, byte, 1));
        (0..64).for_each(|n| drop(device.submit(write_op(n, byte, 1))));
        drop(device);
        assert!(kept.wait().is_ok(), "a ticket outlives its device");
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(bytes[..64 * 4096].iter().all(|b| *b == byte));
        assert_eq!(bytes[100 * 4096], byte);
    }
}

#[test]
fn more_tickets_than_the_queue_holds() {
    let file = image(BYTES);
    each(file.path(), OpenMode::OWNER, |device| {
        let tickets: Vec<_> =
            (0..1000u64).map(|n| device.submit(Op::Read { offset: n % 1024 * 4096, bytes: 4096 })).collect();
        for ticket in tickets.into_iter().rev() {
            assert_eq!(ticket.wait().unwrap().len(), 4096);
        }
    });
}

#[test]
fn many_threads_share_one_device() {
    let file = image(BYTES);
    each(file.path(), OpenMode::OWNER, |device| {
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                scope.spawn(move || {
                    for round in 0..40u64 {
                        let block = thread * 64 + round;
                        let byte = (thread * 31 + round) as u8;
                        let write = device.submit(write_op(block, byte, 1));
                        let other = device.submit(write_op(block + 512, byte ^ 0xff, 1));
                        while !write.is_done() {
                            std::hint::spin_loop();
                        }
                        other.wait().unwrap();
                        write.wait().unwrap();
                        let offset = block * 4096;
                        let read = device.submit(Op::Read { offset, bytes: 4096 });
                        if round % 8 == 0 {
                            device.submit(Op::Flush).wait().unwrap();
                        }
                        assert!(read.wait().unwrap().iter().all(|b| *b == byte));
                    }
                });
            }
        });
    });
}

#[test]
fn requests_of_a_thread_that_ended_complete() {
    let file = image(BYTES);
    each(file.path(), OpenMode::OWNER, |device| {
        for round in 1..30u8 {
            let tickets = std::thread::scope(|scope| {
                let submit = || {
                    let writes = (0..8).map(|n| device.submit(write_op(n, round, 1)));
                    let mut tickets: Vec<_> = writes.collect();
                    tickets.push(device.submit(Op::Flush));
                    tickets
                };
                scope.spawn(submit).join().unwrap()
            });
            for ticket in tickets {
                ticket.wait().unwrap();
            }
            assert!(device.read(0, 8 * 4096).unwrap().iter().all(|byte| *byte == round));
        }
    });
}

#[test]
fn a_device_in_use_names_the_process() {
    let file = image(BYTES);
    let owner = FileDevice::open(file.path(), OpenMode::OWNER).unwrap();
    for mode in [OpenMode::OWNER, OpenMode::READER] {
        let error = FileDevice::open(file.path(), mode).unwrap_err();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        let (pid, command) = (Some(std::process::id()), Some(comm.trim_end().to_owned()));
        assert_eq!(error, DeviceError::Busy { pid, command });
        let text = format!("in use by {} (pid {})", comm.trim_end(), std::process::id());
        assert_eq!(error.to_string(), text);
    }
    FileDevice::open(file.path(), OpenMode::default()).unwrap();
    drop(owner);
    let readers = [(); 2].map(|()| FileDevice::open(file.path(), OpenMode::READER).unwrap());
    let error = open_best(file.path(), OpenMode::OWNER).err().unwrap();
    assert!(matches!(error, DeviceError::Busy { .. }));
    drop(readers);
    open_best(file.path(), OpenMode::OWNER).unwrap();
}

#[test]
fn a_reader_does_not_write() {
    let file = image(BYTES);
    each(file.path(), OpenMode::READER, |device| {
        assert!(!device.geometry().writable && !device.geometry().discard);
        assert_eq!(device.write(0, blocks(1, 1)), Err(DeviceError::ReadOnly));
        let zero = device.submit(Op::Zero { offset: 0, bytes: 4096 }).wait();
        assert_eq!(zero.unwrap_err(), DeviceError::ReadOnly);
        assert_eq!(device.read(0, 4096).unwrap()[0], 0);
    });
}

#[test]
fn paths_that_are_no_device() {
    let open = |path: &str| FileDevice::open(path, OpenMode::OWNER).unwrap_err();
    assert_eq!(open("/nowhere/at/all"), DeviceError::Os(2));
    assert_eq!(open("/tmp"), DeviceError::NotADevice);
    assert_eq!(open("/dev/null"), DeviceError::NotADevice);
    assert_eq!(open("/tmp").to_string(), "neither a regular file nor a block device");
}

#[test]
#[ignore = "overwrites the block device named by NENRIN_BLOCK_DEVICE"]
fn a_block_device() {
    let path = std::env::var("NENRIN_BLOCK_DEVICE").unwrap();
    each(path.as_ref(), OpenMode::OWNER, |device| {
        roundtrip(device);
        refuses_misuse(device);
        let error = FileDevice::open(&path, OpenMode::OWNER).unwrap_err();
        assert!(matches!(error, DeviceError::Busy { pid: Some(pid), .. } if pid == std::process::id()), "{error:?}");
    });
    let read = FileDevice::open(&path, OpenMode::READER).unwrap();
    assert!(read.is_direct() && read.geometry().bytes > 0);
}

#[test]
fn buffers_hold_whole_blocks() {
    let buffer = AlignedBuf::padded(&[1; 5000]);
    assert_eq!((buffer.len(), buffer.as_ptr() as usize % 4096), (8192, 0));
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(1 << 20));
    Box::new(Arc::clone(&device)).write_flush(0, Arc::new(buffer)).unwrap();
    assert_eq!(device.read(4096, 4096).unwrap()[..905], [[1; 904].as_slice(), &[0]].concat()[..]);
}
