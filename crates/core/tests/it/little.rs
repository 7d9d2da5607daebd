//! Who writes little, and those who write much and wait for room.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::gate::{gated, is_answered, is_read};
use crate::common::{TestClock, file};
use nenrin_core::format::Ino;
use nenrin_core::{Clock, Fs, MkfsOptions, MountOptions, mkfs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const CHUNK: u64 = 64 << 10;
const CHUNKS: u64 = 150 << 4;

/// Seed 4: a small sync does not wait while room is made for those who write much. The cleaner's reads are held back, so
/// that they wait until the test ends; a database that commits beside them must not.
#[test]
fn who_writes_little_does_not_wait_for_the_room_of_others() {
    let (device, gate) = gated(256 << 20);
    let clock = Arc::new(TestClock::default());
    let time: Arc<dyn Clock> = clock.clone();
    mkfs(&device, &time, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() }).unwrap();
    let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = Fs::open(vec![device], time, options).unwrap();
    let [f, g] = [&b"f"[..], b"g"].map(|name| fs.create(Ino::ROOT, name, &file(0o600)).unwrap().ino);
    let mut seed = 1_u64;
    let mut write_much = |fs: &Fs, chunk: Option<u64>| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chunk = chunk.unwrap_or((seed >> 33) % CHUNKS);
        fs.write(f, chunk * CHUNK, &[seed as u8; CHUNK as usize], 0).map(drop)
    };
    for chunk in 0..CHUNKS {
        write_much(&fs, Some(chunk)).unwrap();
    }
    fs.sync_all().unwrap();
    fs.fsync_wait(g).unwrap();
    clock.0.fetch_add(100_000_000, Ordering::Relaxed);
    fs.tick().unwrap();
    gate.close(is_read, 0);
    let ended = AtomicBool::new(false);
    let (tx, much) = mpsc::channel();
    thread::scope(|scope| {
        let (fs_much, ended_much) = (fs.clone(), &ended);
        scope.spawn(move || {
            let mut writes = 0;
            let result = loop {
                if ended_much.load(Ordering::Relaxed) {
                    break Ok(());
                }
                match write_much(&fs_much, None)
                    .and_then(|()| if writes % 64 == 63 { fs_much.sync_all() } else { Ok(()) })
                {
                    Ok(()) => writes += 1,
                    Err(e) => break Err(e),
                }
            };
            tx.send(()).unwrap();
            result.unwrap();
        });
        gate.wait_until(|s| s.waiting > 0);
        let (synced, answers) = mpsc::channel();
        let little = fs.clone();
        scope.spawn(move || {
            for n in 0..50 {
                little.write(g, n * 4096, &[9; 4096], 0).unwrap();
                little.fsync_wait(g).unwrap();
                little.create(Ino::ROOT, format!("journal {n}").as_bytes(), &file(0o600)).unwrap();
                little.fsync_wait(Ino::ROOT).unwrap();
                synced.send(n).unwrap();
            }
        });
        let last = (0..50).take_while(|_| answers.recv_timeout(Duration::from_secs(20)).is_ok()).last();
        let waits = !is_answered(&much);
        ended.store(true, Ordering::Relaxed);
        gate.open();
        assert_eq!(last, Some(49), "small syncs waited for room that was being made for others");
        assert!(waits, "nobody waited for room");
    });
}
