//! What a volume costs that nobody uses: writes of each hour of virtual time, and blocks moved, counted on a device in
//! memory, as JSON, one line for each state of the volume.
//! `cargo run --release -p nenrin-core --example idle_cost -- [MiB] [hours]`
#![allow(clippy::unwrap_used)] // an example stops at the first error

#[path = "../tests/it/common/mod.rs"]
mod common;

use common::{World, file};
use nenrin_core::format::Ino;
use nenrin_core::{Fs, MkfsOptions, MountOptions};

const SECOND: u64 = 1_000_000_000;
const FILE: usize = 50_000;
/// Time after the last change that is told apart: what was accepted is still being written then.
const SETTLING: u64 = 60;

fn pass(w: &World, fs: &Fs, seconds: u64) {
    for _ in 0..seconds * 10 {
        w.pass(SECOND / 10);
        fs.tick().unwrap();
    }
}

/// Files until nothing more fits. With `churn`, most of them are replaced afterwards, so that cleaning has gone on.
fn fill(w: &World, fs: &Fs, churn: bool) {
    let data = vec![7; FILE];
    let step = |name: &str| {
        let made = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600));
        w.pass(SECOND / 10);
        fs.tick().unwrap();
        made.is_ok_and(|f| fs.write(f.ino, 0, &data, 0).is_ok())
    };
    let made = (0u64..).take_while(|n| step(&format!("f{n}"))).count() as u64;
    for n in (0..made).filter(|n| churn && n % 8 != 0) {
        let name = format!("f{n}");
        let removed = fs.unlink(Ino::ROOT, name.as_bytes());
        if removed.is_ok() {
            step(&name);
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().unwrap());
    let (mib, hours) = (args.next().unwrap_or(512), args.next().unwrap_or(3));
    for (history, checkpoint_nanos) in [("off", 0), ("default", MountOptions::default().checkpoint_nanos)] {
        for churn in [false, true] {
            let w = World::with((mib << 20) as usize, &MkfsOptions::default());
            let fs = w.open_with(MountOptions { checkpoint_nanos, ..MountOptions::default() });
            fill(&w, &fs, churn);
            let last = w.device.counters();
            pass(&w, &fs, SETTLING);
            let settling = w.device.counters().since(&last);
            let moved = fs.counters().moved_blocks;
            let (mut writes, mut bytes) = (Vec::new(), Vec::new());
            for _ in 0..hours {
                let before = w.device.counters();
                pass(&w, &fs, 3600);
                let hour = w.device.counters().since(&before);
                writes.push(hour.writes);
                bytes.push(hour.write_bytes);
            }
            let usage = fs.usage();
            println!(
                "{{\"volume_mib\":{mib},\"history\":\"{history}\",\"replaced\":{churn},\"available_blocks\":{},\
                 \"settling_seconds\":{SETTLING},\"settling_writes\":{},\"writes_each_hour\":{writes:?},\"bytes_each_hour\":{bytes:?},\
                 \"moved_blocks\":{},\"rests\":\"{}\"}}",
                usage.available_blocks,
                settling.writes,
                fs.counters().moved_blocks - moved,
                fs.cleaner_status().rest.words(),
            );
        }
    }
}
