//! What the library's calls cost the processor, on a device in memory:
//! `cargo run --release -p nenrin-core --example costs`.
#![allow(clippy::unwrap_used)] // an example stops at the first error

use nenrin_core::format::{Ino, Time};
use nenrin_core::{At, Clock, Fs, MkfsOptions, MountOptions, NewInode, mkfs};
use nenrin_device::{BlockDevice, MemDevice};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

struct Host(Instant);

impl Clock for Host {
    fn wall(&self) -> Time {
        let d = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Time(d.as_nanos() as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

fn timed(what: &str, operations: u64, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    let nanos = start.elapsed().as_nanos() as u64;
    println!(
        "{what:<44} {:>9.2} us each, {:>9} a second",
        nanos as f64 / 1e3 / operations as f64,
        operations * 1_000_000_000 / nanos.max(1)
    );
}

fn main() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(2 << 30));
    let clock: Arc<dyn Clock> = Arc::new(Host(Instant::now()));
    mkfs(&device, &clock, &MkfsOptions::default()).unwrap();
    let fs = Fs::open(vec![device], clock, MountOptions::default()).unwrap();
    let new = |mode| NewInode { mode, uid: 0, gid: 0, rdev: 0, target: b"" };
    let d = fs.create(Ino::ROOT, b"d", &new(0o040_755)).unwrap().ino;
    let n = 20_000;
    timed("create", n, || {
        for i in 0..n {
            fs.create(d, format!("f{i}").as_bytes(), &new(0o100_644)).unwrap();
        }
    });
    timed("lookup", n, || {
        for i in 0..n {
            fs.lookup(At::Live, d, format!("f{i}").as_bytes()).unwrap();
        }
    });
    timed("unlink", n, || {
        for i in 0..n {
            fs.unlink(d, format!("f{i}").as_bytes()).unwrap();
        }
    });
    let f = fs.create(d, b"appended", &new(0o100_644)).unwrap().ino;
    timed("4 KiB append + fsync", n, || {
        for i in 0..n {
            fs.write(f, i * 4096, &[1; 4096], 0).unwrap();
            fs.fsync_wait(f).unwrap();
        }
    });
    timed("4 KiB overwrite + fsync", n, || {
        for i in 0..n {
            fs.write(f, i * 7919 % n * 4096, &[2; 4096], 0).unwrap();
            fs.fsync_wait(f).unwrap();
        }
    });
    timed("4 KiB random read", n, || {
        for i in 0..n {
            fs.read(At::Live, f, i * 7919 % n * 4096, 4096).unwrap();
        }
    });
    let g = fs.create(d, b"large", &new(0o100_644)).unwrap().ino;
    let data = vec![3u8; 1 << 20];
    timed("1 MiB sequential write, 512 of them, fsync", 512, || {
        for i in 0..512u64 {
            fs.write(g, i << 20, &data, 0).unwrap();
        }
        fs.fsync_wait(g).unwrap();
    });
    timed("128 KiB sequential read", 4096, || {
        for i in 0..4096u64 {
            fs.read(At::Live, g, i << 17, 1 << 17).unwrap();
        }
    });
    let pages = 1 << 17;
    timed("4 KiB random buffered write of 512 MiB, fsync", pages, || {
        for i in 0..pages {
            fs.write(g, i * 60_013 % pages * 4096, &data[..4096], 0).unwrap();
        }
        fs.fsync_wait(g).unwrap();
    });
    println!("{:?}", fs.counters());
    fs.close().unwrap();
}
