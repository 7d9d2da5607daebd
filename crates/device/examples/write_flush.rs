//! Which way to make 8 KiB durable is fastest: pwrite + fdatasync on the
//! caller's thread, a linked pair in one io_uring call, submit and wait, or
//! (on a block device) one request that is durable by itself? The last for several writers, too.
//! And the same question for reads and writes of 4 KiB.
//!
//! `cargo run --release -p nenrin-device --example write_flush -- [path [rounds]]`
//! makes the file if it is missing and OVERWRITES it, or the block device, if
//! nobody uses it. Contenders take turns request by request.

use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, FileDevice, Op, OpenMode, UringDevice, open_best};
use std::sync::Arc;
use std::time::Instant;

const FILE_BYTES: u64 = 64 << 20;

type Case<'a> = (&'a str, Box<dyn Fn(u64) -> Result<(), DeviceError> + 'a>);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "/tmp/nenrin-write-flush.img".to_owned());
    let rounds: u64 = args.next().map_or(Ok(4000), |n| n.parse())?;
    if !std::path::Path::new(&path).exists() {
        std::fs::File::create(&path)?.set_len(FILE_BYTES)?;
    }
    // Not kept: three devices share the path below.
    drop(FileDevice::open(&path, OpenMode::OWNER)?);
    let file = FileDevice::open(&path, OpenMode::default())?;
    let uring = UringDevice::open(&path, OpenMode::default())?;
    let best = open_best(&path, OpenMode::default())?;
    let length = file.geometry().bytes;
    file.submit(Op::Zero { offset: 0, bytes: length }).wait()?;
    file.flush()?;
    println!("{path}: {length} bytes, O_DIRECT: {}, {rounds} rounds", file.is_direct());

    let eight = Arc::new(AlignedBuf::padded(&[0xa5; 8192]));
    let four = Arc::new(AlignedBuf::padded(&[0x5a; 4096]));
    let at = |round: u64| round * 8192 % length;
    run(
        "8 KiB write + flush",
        rounds,
        &[
            ("pwrite + fdatasync", Box::new(|i| file.write_flush(at(i), Arc::clone(&eight)))),
            ("linked pair", Box::new(|i| uring.write_flush_linked(at(i), Arc::clone(&eight)))),
            (
                "ring: submit and wait twice",
                Box::new(|i| {
                    uring.submit(Op::Write { offset: at(i), data: Arc::clone(&eight) }).wait()?;
                    uring.submit(Op::Flush).wait().map(drop)
                }),
            ),
            ("open_best().write_flush", Box::new(|i| best.write_flush(at(i), Arc::clone(&eight)))),
            ("open_best().write_durable", Box::new(|i| best.write_durable(at(i), Arc::clone(&eight)))),
        ],
    )?;
    for writers in [1, 3, 4, 16] {
        let rate = |durable| together(&*best, &eight, writers, length, durable);
        let mut ratios: Vec<f64> =
            (0..7).map(|_| rate(false).and_then(|flushed| Ok(rate(true)? / flushed))).collect::<Result<_, _>>()?;
        ratios.sort_by(f64::total_cmp);
        println!(
            "{writers:2} writers: write_durable is {:.2} times write_flush ({:.2}-{:.2})",
            ratios[3], ratios[0], ratios[6]
        );
    }
    run(
        "4 KiB write",
        rounds,
        &[
            ("pwrite", Box::new(|i| file.write(at(i), Arc::clone(&four)))),
            ("ring", Box::new(|i| uring.submit(Op::Write { offset: at(i), data: Arc::clone(&four) }).wait().map(drop))),
            (
                "worker threads",
                Box::new(|i| file.submit(Op::Write { offset: at(i), data: Arc::clone(&four) }).wait().map(drop)),
            ),
        ],
    )?;
    run(
        "4 KiB read",
        rounds,
        &[
            ("pread", Box::new(|i| file.read(at(i), 4096).map(drop))),
            ("ring", Box::new(|i| uring.submit(Op::Read { offset: at(i), bytes: 4096 }).wait().map(drop))),
        ],
    )?;
    run(
        "16 reads of 64 KiB, all under way at once",
        rounds / 8,
        &[
            ("worker threads", Box::new(|i| many_reads(&file, at(i), length))),
            ("ring", Box::new(|i| many_reads(&uring, at(i), length))),
        ],
    )?;
    Ok(())
}

/// 8 KiB made durable by several threads for 400 ms: how many in a second.
fn together(
    device: &dyn BlockDevice,
    data: &Arc<AlignedBuf>,
    writers: u64,
    length: u64,
    durable: bool,
) -> Result<f64, DeviceError> {
    let begin = Instant::now();
    let part = length / writers / 8192 * 8192;
    let write = |thread: u64| {
        let mut done = 0;
        while begin.elapsed().as_millis() < 400 {
            let at = thread * part + done * 8192 % part;
            if durable {
                device.write_durable(at, Arc::clone(data))?
            } else {
                device.write_flush(at, Arc::clone(data))?
            }
            done += 1;
        }
        Ok::<u64, DeviceError>(done)
    };
    let write = &write;
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers).map(|thread| scope.spawn(move || write(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(DeviceError::Off))).sum::<Result<u64, _>>()
    })?;
    Ok(done as f64 / begin.elapsed().as_secs_f64())
}

fn many_reads(device: &dyn BlockDevice, start: u64, length: u64) -> Result<(), DeviceError> {
    let reads = (0..16).map(|n| {
        let offset = (start + n * (3 << 20)) % (length - 65536) / 4096 * 4096;
        device.submit(Op::Read { offset, bytes: 65536 })
    });
    let tickets: Vec<_> = reads.collect();
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))
}

fn run(title: &str, rounds: u64, cases: &[Case<'_>]) -> Result<(), DeviceError> {
    let mut times = vec![Vec::new(); cases.len()];
    for round in 0..rounds {
        for (n, (_, case)) in cases.iter().enumerate() {
            let start = Instant::now();
            case(round * cases.len() as u64 + n as u64)?;
            times[n].push(start.elapsed().as_nanos() as u64);
        }
    }
    println!("{title}");
    for ((name, _), times) in cases.iter().zip(&mut times) {
        times.sort_unstable();
        let at = |percent: usize| times[times.len() * percent / 100] as f64 / 1000.0;
        println!("  {name:30} median {:7.1} us   p90 {:7.1}   p99 {:7.1}", at(50), at(90), at(99));
    }
    Ok(())
}
