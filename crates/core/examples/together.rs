//! Reads and syncs of one thread that are under way together: copies a file within a volume, many blocks at a time, and syncs
//! several files with one commit. `cargo run --release -p nenrin-core --example together`.

use nenrin_core::format::{Ino, Time, superblock::Profile};
use nenrin_core::{At, Clock, Fs, MkfsOptions, MountOptions, NewInode, Result, mkfs_on};
use nenrin_device::{BlockDevice, MemDevice};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

const CHUNK: usize = 256 << 10;
/// Chunks under way at a time.
const AHEAD: usize = 16;

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

/// Copies `from` to `to`: while one chunk is written, the next ones are on their way from all devices.
fn copy(fs: &Fs, from: Ino, to: Ino, bytes: u64) -> Result<()> {
    let mut offsets = (0..bytes).step_by(CHUNK);
    let mut reads = VecDeque::new();
    loop {
        while reads.len() < AHEAD {
            let Some(at) = offsets.next() else { break };
            reads.push_back((at, fs.submit_read(At::Live, from, at, CHUNK)));
        }
        let Some((at, read)) = reads.pop_front() else { return Ok(()) };
        let content = read.wait()?.into_vec(); // verified, or an error
        fs.submit_write(to, at, &content, 0).wait()?; // accepted: on its way, not durable
    }
}

fn main() -> Result<()> {
    let devices: Vec<Arc<dyn BlockDevice>> = (0..4).map(|_| Arc::new(MemDevice::new(128 << 20)) as _).collect();
    let clock: Arc<dyn Clock> = Arc::new(Host(Instant::now()));
    mkfs_on(&devices, &clock, &MkfsOptions { profile: Profile::Stripe, ..MkfsOptions::default() })?;
    let fs = Fs::open(devices, clock, MountOptions::default())?;
    let create = |name: &[u8]| {
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        fs.create(Ino::ROOT, name, &new).map(|attr| attr.ino)
    };
    let (from, to) = (create(b"from")?, create(b"to")?);
    fs.write(from, 0, &vec![7; 64 << 20], 0)?;
    copy(&fs, from, to, 64 << 20)?;

    let before = fs.counters().commits;
    let syncs = [fs.submit_sync(from), fs.submit_sync(to)];
    for sync in syncs {
        sync.wait()?; // durable
    }
    println!("64 MiB copied; two files synced with {} commits", fs.counters().commits - before);
    fs.close()
}
