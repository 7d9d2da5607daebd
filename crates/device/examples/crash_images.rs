//! How many crash images a second does one thread make?
//!
//! `cargo run --release -p nenrin-device --example crash_images`
//! A 4 MiB disk, 20,000 operations: 8 KiB writes with a flush after every
//! eighth, so that 0 to 8 changes are unflushed. Each image has one block read.

use nenrin_device::{AlignedBuf, BlockDevice, CrashChoice, CrashDisk, DeviceError, Prng};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

const BYTES: u64 = 4 << 20;
const OPERATIONS: usize = 20_000;

fn main() -> Result<(), DeviceError> {
    let disk = CrashDisk::new(BYTES);
    let mut prng = Prng::new(42);
    let start = Instant::now();
    while disk.cut_points() < OPERATIONS {
        for _ in 0..8 {
            let offset = prng.below(BYTES / 4096 - 1) * 4096;
            let data = AlignedBuf::padded(&prng.next_u64().to_le_bytes().repeat(1024));
            disk.write(offset, Arc::new(data))?;
        }
        disk.flush()?;
    }
    println!("workload of {} operations: {:.1?}", disk.cut_points(), start.elapsed());
    let Some(history) = disk.history() else {
        return Ok(());
    };
    for (title, hashed) in [("images", false), ("images with their hashes", true)] {
        let mut cursor = history.cursor();
        let (mut distinct, mut images) = (HashSet::new(), 0u32);
        let start = Instant::now();
        for cut in 0..=history.cut_points() {
            cursor.advance_to(cut);
            for seed in 1..6 {
                let image = cursor.image(&CrashChoice::from_seed(seed + cut as u64 * 5));
                image.read(0, 4096)?;
                images += 1;
                if hashed {
                    distinct.insert(image.content_hash());
                }
            }
        }
        let rate = f64::from(images) / start.elapsed().as_secs_f64();
        println!("{title}: {rate:.0}/s ({images}, {} distinct)", distinct.len());
    }
    Ok(())
}
