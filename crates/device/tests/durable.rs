//! Writes that are durable by themselves, on a block device of the kernel. Needs root: without it there is nothing to attach.
#![allow(clippy::unwrap_used)] // a test

mod common;

use common::blocks;
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Op, OpenMode, UringDevice};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;

/// A loop device over a file that is gone when it is detached.
struct Loop {
    path: PathBuf,
}

impl Loop {
    fn new(bytes: u64) -> Option<Self> {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.as_file().set_len(bytes).unwrap();
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output().ok()?;
        let path = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
        attached.status.success().then(|| Self { path: path.into() })
    }

    /// Writes, blocks written and flushes that the kernel has counted. An empty flush that somebody asks for is a write, too; that which the
    /// block layer puts behind a write is none.
    fn counted(&self) -> [u64; 3] {
        let name = self.path.file_name().unwrap().to_str().unwrap();
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        let numbers: Vec<u64> = stat.split_whitespace().map(|n| n.parse().unwrap()).collect();
        [numbers[4], numbers[6] / 8, numbers[15]]
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

#[test]
fn it_is_written_and_flushed_by_the_kernel() {
    let Some(disk) = Loop::new(16 << 20) else {
        assert_ne!(std::fs::metadata("/proc/self").unwrap().uid(), 0, "no loop device");
        return;
    };
    let device = UringDevice::open(&disk.path, OpenMode::OWNER).unwrap();
    let before = disk.counted();
    // The later ones are polled for where the device is quick.
    for n in 0..100u8 {
        device.write_durable(u64::from(n) * 8192, blocks(n, 2)).unwrap();
    }
    let after = disk.counted();
    assert_eq!([0, 1, 2].map(|i| after[i] - before[i]), [100, 200, 100], "writes, blocks and flushes");
    for n in 0..100u8 {
        assert_eq!(device.read(u64::from(n) * 8192, 8192).unwrap()[..], blocks(n, 2)[..]);
    }
    assert!(matches!(device.write_durable(16 << 20, blocks(1, 1)), Err(DeviceError::Misuse(_))));
}

#[test]
fn many_threads_write_at_once() {
    let Some(disk) = Loop::new(16 << 20) else { return };
    let device = UringDevice::open(&disk.path, OpenMode::OWNER).unwrap();
    thread::scope(|scope| {
        for t in 0..8u64 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..50u64 {
                    let data = Arc::new(AlignedBuf::padded(&[(t * 50 + round) as u8; 12288]));
                    let beside =
                        device.submit(Op::Write { offset: (8 << 20) + t * 4096, data: blocks(round as u8, 1) });
                    device.write_durable((t * 50 + round) * 12288, data.clone()).unwrap();
                    beside.wait().unwrap();
                    assert_eq!(device.read((t * 50 + round) * 12288, 12288).unwrap()[..], data[..]);
                }
            });
        }
    });
}
