//! Device bytes of each 4 KiB that is written to a random place and synced, with all that goes on meanwhile counted, on a
//! device in memory and in virtual time: as JSON, one line for each of history on and off.
//! `cargo run --release -p nenrin-core --example sync_cost -- [MiB] [seconds] [microseconds for each write]`
#![allow(clippy::unwrap_used)] // an example stops at the first error

#[path = "../tests/it/common/mod.rs"]
mod common;

use common::{World, file};
use nenrin_core::format::{Ino, NODE_BLOCKS};
use nenrin_core::{Fs, MkfsOptions, MountOptions};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const TICK: u64 = 100_000_000;

/// A file of so many MiB, synced.
fn filled(w: &World, fs: &Fs, name: &str, mib: u64) -> Ino {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
    for at in 0..mib {
        fs.write(ino, at * MIB, &vec![7; MIB as usize], 0).unwrap();
        w.pass(1_000_000);
    }
    fs.fsync_wait(ino).unwrap();
    ino
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().unwrap());
    let (mib, seconds) = (args.next().unwrap_or(2048), args.next().unwrap_or(60));
    let nanos = args.next().unwrap_or(280) * 1000;
    for checkpoint_nanos in [0, MountOptions::default().checkpoint_nanos] {
        let w = World::with((mib * MIB) as usize, &MkfsOptions::default());
        let fs = w.open_with(MountOptions { checkpoint_nanos, ..MountOptions::default() });
        let size = 256.min(mib / 8);
        let worked_on = filled(&w, &fs, "worked on", size);
        filled(&w, &fs, "there", mib / 2 - size);
        let (device, before) = (w.device.counters(), fs.counters());
        let (mut random, mut writes) = (53u64, 0u64);
        for now in (0..seconds * 1_000_000_000).step_by(nanos as usize) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (random >> 33) % (size * MIB / BLOCK) * BLOCK;
            fs.write(worked_on, place, &[writes as u8; BLOCK as usize], 0).unwrap();
            fs.fsync_wait(worked_on).unwrap();
            writes += 1;
            w.pass(nanos);
            if now % TICK < nanos {
                fs.tick().unwrap();
            }
        }
        let (bytes, after) = (w.device.counters().since(&device).write_bytes, fs.counters());
        let each = |blocks: u64| blocks as f64 * BLOCK as f64 / 1024.0 / writes as f64;
        println!(
            "{{\"volume_mib\":{mib},\"seconds\":{seconds},\"writes\":{writes},\"history\":{},\"kib_each\":{:.2},\"chain_kib_each\":{:.2},\
             \"node_kib_each\":{:.2},\"moved_kib_each\":{:.2},\"index_checkpoints\":{},\"checkpoints\":{},\"shed\":{},\"room_rounds\":{}}}",
            checkpoint_nanos > 0,
            bytes as f64 / 1024.0 / writes as f64,
            each(after.chain_blocks - before.chain_blocks),
            // Two copies.
            each(2 * u64::from(NODE_BLOCKS) * (after.nodes - before.nodes)),
            each(after.moved_blocks - before.moved_blocks),
            after.index_checkpoints - before.index_checkpoints,
            after.checkpoints - before.checkpoints,
            after.checkpoints_shed - before.checkpoints_shed,
            after.room_rounds - before.room_rounds,
        );
    }
}
