//! The rows about several devices: what four give over one, beside btrfs with the same profile and ext4 on one device.
//!
//! What adding, removing, replacing and rebuilding a device takes is measured by `scripts/work/device_changes.py`.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Instant;

use super::small::{self, together};
use super::{FILE_SYSTEMS, Group, Plan, RowSpec, Turn, UNBOUNDED, Unit, Work, Workload};
use crate::aio;
use crate::disk::{Aligned, Random};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Bytes of the writes that 16 jobs sync one by one.
const LARGE: u64 = 64 << 10;
const LARGE_JOBS: u32 = 16;

/// `name` or `name@DEVICES:LAYOUT`; degraded: a mirror without one of its devices.
const CONTENDERS: &[&str] = &[
    "ext4",
    "nenrin",
    "nenrin@2",
    "nenrin@3",
    "nenrin@4",
    "nenrin@2:mirror",
    "nenrin@4:mirror",
    "nenrin@3:parity",
    "nenrin@4:parity",
    "nenrin@2:degraded",
    "btrfs",
    "btrfs@2",
    "btrfs@4",
    "btrfs@2:mirror",
    "btrfs@4:mirror",
    "btrfs@3:parity",
    "btrfs@4:parity",
    "btrfs@2:degraded",
];

/// What the profiles of ours should reach against btrfs, in each row.
const RIVALS: &[(&str, &str)] = &[
    ("nenrin@2", "btrfs@2"),
    ("nenrin@4", "btrfs@4"),
    ("nenrin@2:mirror", "btrfs@2:mirror"),
    ("nenrin@4:mirror", "btrfs@4:mirror"),
    ("nenrin@3:parity", "btrfs@3:parity"),
    ("nenrin@4:parity", "btrfs@4:parity"),
    ("nenrin@2:degraded", "btrfs@2:degraded"),
];

/// A row with the bounds of four against one, and of four against ext4.
fn row(name: &str, title: &str, unit: Unit, four: Option<(f64, f64)>, ext4: Option<f64>) -> RowSpec {
    let mut row = RowSpec::new(name, title, unit);
    if let Some((floor, aim)) = four {
        row = row.target_of("nenrin@4", "nenrin", floor, aim);
    }
    if let Some(floor) = ext4 {
        row = row.target_of("nenrin@4", "ext4", floor, floor);
    }
    RIVALS.iter().fold(row, |row, (own, rival)| row.target_of(own, rival, 1.0, 1.0))
}

/// The groups of the suite.
pub fn groups() -> Vec<Group> {
    let group = |rows, make| Group {
        rows,
        contenders: CONTENDERS.to_vec(),
        kinds: FILE_SYSTEMS,
        slices_max: UNBOUNDED,
        alone: false,
        make,
    };
    vec![
        group(
            vec![
                row("seq-write", "sequential 1 MiB writes + fsync", Unit::Throughput, Some((3.4, 3.8)), Some(3.2)),
                row("seq-read", "cold sequential read, 1 MiB", Unit::Throughput, Some((3.4, 3.8)), Some(3.2)),
            ],
            Box::new(|_, plan| Box::new(Streams { bytes: share(plan, 8, 64), data: Aligned::noise(MIB as usize, 21) })),
        ),
        group(
            vec![
                row(
                    "rand-read-16",
                    "4 KiB random direct reads, 16 in flight by io_uring",
                    Unit::Rate,
                    Some((3.2, 3.6)),
                    Some(3.2),
                ),
                row(
                    "rand-read-64",
                    "4 KiB random direct reads, 64 in flight by io_uring",
                    Unit::Rate,
                    Some((3.6, 3.9)),
                    Some(3.2),
                ),
                row(
                    "rand-write",
                    "4 KiB random buffered writes, 24 MiB, + fsync",
                    Unit::Rate,
                    Some((3.0, 3.6)),
                    Some(8.5),
                ),
            ],
            Box::new(|_, plan| {
                Box::new(Scatter {
                    bytes: share(plan, 3, 256),
                    random: Random::new(41),
                    data: Aligned::noise(4096, 22),
                })
            }),
        ),
        group(
            vec![
                row(
                    "sync-64k-16",
                    "64 KiB random writes + fsync, 16 jobs on 16 files",
                    Unit::Rate,
                    Some((2.5, 3.4)),
                    None,
                )
                .jobs(LARGE_JOBS),
                row("sync-4k-1", "4 KiB append + fsync, 1 job", Unit::Rate, None, None)
                    .target_of("nenrin@4", "nenrin", 1.0, 1.0)
                    .target_of("nenrin@2:mirror", "nenrin", 0.8, 0.8)
                    .target_of("nenrin@4:mirror", "nenrin", 0.8, 0.8)
                    .target_of("nenrin@4:parity", "nenrin", 0.8, 0.8),
            ],
            Box::new(|_, plan| Box::new(Syncs { file_bytes: share(plan, 32, 8), lanes: Vec::new() })),
        ),
    ]
}

/// A part of the smallest contender's device, in whole MiB, at most so many.
fn share(plan: Plan, part: u64, most: u64) -> u64 {
    (plan.device_bytes / part).min(most * MIB) & !(MIB - 1)
}

fn write_file(path: &PathBuf, bytes: u64, data: &Aligned) -> Result<()> {
    let doing = || format!("writing {}", path.display());
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path).doing(doing)?;
    for at in (0..bytes).step_by(data.get().len()) {
        file.write_all_at(data.get(), at).doing(doing)?;
        if sys::interrupted() {
            return Err(Error::Interrupted);
        }
    }
    file.sync_all().doing(doing)
}

/// The warm-up moves a quarter.
fn of_round(turn: Turn, bytes: u64) -> u64 {
    if turn.round == 0 { (bytes / 4) & !(MIB - 1) } else { bytes }
}

struct Streams {
    bytes: u64,
    data: Aligned,
}

impl Workload for Streams {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        write_file(&site.path("read"), self.bytes, &self.data)
    }

    fn before(&mut self, turn: Turn, site: &mut Site) -> Result<()> {
        if turn.row == 1 {
            // The file was read in the slice before: neither the kernel nor a daemon may have it.
            site.remount()?;
            fs::write("/proc/sys/vm/drop_caches", "3").doing(|| "dropping caches".to_owned())?;
        }
        Ok(())
    }

    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work> {
        let bytes = of_round(turn, self.bytes);
        let begin = Instant::now();
        if turn.row == 0 {
            write_file(&site.path("written"), bytes, &self.data)?;
        } else {
            let path = site.path("read");
            let doing = || format!("reading {}", path.display());
            let file = File::open(&path).doing(doing)?;
            for at in (0..bytes).step_by(MIB as usize) {
                file.read_exact_at(self.data.get_mut(), at).doing(doing)?;
                if sys::interrupted() {
                    return Err(Error::Interrupted);
                }
            }
        }
        Ok(Work { operations: bytes / MIB, bytes, elapsed: begin.elapsed(), ..Work::default() })
    }

    fn after(&mut self, turn: Turn, site: &mut Site) -> Result<()> {
        if turn.row == 0 {
            let path = site.path("written");
            fs::remove_file(&path).doing(|| format!("removing {}", path.display()))?;
        }
        Ok(())
    }
}

struct Scatter {
    bytes: u64,
    random: Random,
    data: Aligned,
}

impl Workload for Scatter {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        write_file(&site.path("scattered"), self.bytes, &Aligned::noise(MIB as usize, 23))
    }

    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work> {
        let path = site.path("scattered");
        let doing = || format!("using {}", path.display());
        let blocks = self.bytes / BLOCK;
        if turn.row < 2 {
            let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).doing(doing)?;
            let in_flight = if turn.row == 0 { 16 } else { 64 };
            let random = &mut self.random;
            let done =
                aio::read_at_random(&file, in_flight, BLOCK as usize, turn.budget, || random.below(blocks) * BLOCK);
            let (operations, elapsed) = done.doing(doing)?;
            return Ok(Work { operations, bytes: operations * BLOCK, elapsed, ..Work::default() });
        }
        let file = OpenOptions::new().write(true).open(&path).doing(doing)?;
        let operations = of_round(turn, 24 * MIB) / BLOCK;
        let begin = Instant::now();
        for _ in 0..operations {
            file.write_all_at(self.data.get(), self.random.below(blocks) * BLOCK).doing(doing)?;
            if sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        file.sync_all().doing(doing)?;
        Ok(Work { operations, bytes: operations * BLOCK, elapsed: begin.elapsed(), ..Work::default() })
    }
}

struct Syncs {
    file_bytes: u64,
    lanes: Vec<small::Lane>,
}

impl Workload for Syncs {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        let data = Aligned::noise(MIB as usize, 24);
        (0..LARGE_JOBS).try_for_each(|job| write_file(&site.path(&format!("job-{job}")), self.file_bytes, &data))
    }

    fn enter(&mut self, row: usize, site: &mut Site) -> Result<()> {
        self.lanes.clear();
        let (jobs, bytes) = if row == 0 { (LARGE_JOBS, LARGE) } else { (1, BLOCK) };
        for job in 0..jobs {
            let path = site.path(&if row == 0 { format!("job-{job}") } else { "appended".to_owned() });
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
            let file = file.doing(|| format!("opening {}", path.display()))?;
            self.lanes.push(small::Lane::new(file, u64::from(job), bytes as usize));
        }
        Ok(())
    }

    fn slice(&mut self, turn: Turn, _: &mut Site) -> Result<Work> {
        let places = self.file_bytes / LARGE;
        if turn.row == 0 {
            return together(&mut self.lanes, turn.budget, LARGE as usize, |lane| lane.overwrite(places));
        }
        together(&mut self.lanes, turn.budget, BLOCK as usize, small::Lane::append)
    }
}
