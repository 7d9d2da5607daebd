//! The rows about synchronous writes: what making a write durable costs, alone, beside others, and for databases.

use std::time::Duration;

use super::external::Program;
use super::loaded::Foreground;
use super::rewrite::{Kinds, Spec};
use super::{ALL, ALL_AND_CONTROLS, FILE_SYSTEMS, Group, RowSpec, UNBOUNDED, USUAL, Unit};
use super::{cost, external, loaded, rewrite, small};
use crate::contender::Kind;

const MIB: u64 = 1 << 20;
/// Slices of work that is long by itself.
const FEW: u32 = 5;
/// By itself nilfs2 has order=relaxed and barrier.
const NILFS2_MODES: &[&str] = &["nilfs2+order=strict", "nilfs2+nobarrier"];

/// On the disk as it is.
pub fn groups() -> Vec<Group> {
    let mut groups = vec![appends(), calls(), overwrites(), barriers(), beside_others(), strict_and_relaxed(&[])];
    groups.extend([32, 128, 512].map(rewrites));
    groups.push(buffers());
    groups
}

/// What small synchronous writes cost over a long time, with everything counted.
pub fn long_cost() -> Group {
    let title = "device bytes for each 4 KiB O_SYNC write, volume half full";
    Group {
        rows: vec![RowSpec::new("osync-cost", title, Unit::Cost)],
        contenders: vec!["nenrin+checkpoint=0", "nenrin"],
        kinds: &[Kind::Nenrin],
        slices_max: 1,
        alone: false,
        make: Box::new(|_, plan| cost::make(plan)),
    }
}

/// What limits a disk counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Reads, writes and flushes, as Linux does on a host.
    Flushes,
    /// Reads and writes, as QEMU does.
    NoFlushes,
}

/// Where the disk is the limit. What this kernel lacks is left out; targets are of one kind of limit each.
pub fn limited(counted: Counted) -> Vec<Group> {
    let only = |on: Counted, row: RowSpec, targets: &[(&str, f64, f64)]| {
        targets
            .iter()
            .filter(|_| on == counted)
            .fold(row, |row, (against, floor, aim)| row.target(against, *floor, *aim))
    };
    let kernel = ["raw", "ext4", "xfs", "btrfs", "f2fs", "jfs", "nilfs2", "nenrin"];
    let with = |more: &[&'static str]| kernel.iter().chain(NILFS2_MODES).chain(more).copied().collect::<Vec<_>>();
    vec![
        Group {
            rows: vec![
                only(
                    Counted::Flushes,
                    RowSpec::new("append-fsync-1", "4 KiB append + fsync, 1 job", Unit::Rate),
                    &[("raw", 0.95, 0.98), ("ext4", 1.9, 2.0)],
                ),
                only(
                    Counted::Flushes,
                    RowSpec::new("append-fsync-16", "4 KiB append + fsync, 16 jobs on 16 files", Unit::Rate).jobs(16),
                    &[("ext4", 3.0, 5.0)],
                ),
            ],
            contenders: with(&["nenrin+cache=writeback"]),
            kinds: ALL,
            slices_max: UNBOUNDED,
            alone: false,
            make: Box::new(|contender, plan| small::make(contender, plan, small::Mode::Append, &[1, 16])),
        },
        Group {
            rows: vec![only(
                Counted::NoFlushes,
                RowSpec::new("osync-rewrite", "4 KiB O_SYNC random rewrite, 1 job", Unit::Rate),
                &[("raw", 0.9, 0.97), ("ext4", 2.5, 3.0), ("f2fs", 1.6, 1.8), ("xfs", 1.6, 1.8), ("nilfs2", 0.95, 1.0)],
            )],
            contenders: with(&["nenrin+cache=writeback"]),
            kinds: ALL,
            slices_max: UNBOUNDED,
            alone: false,
            make: Box::new(|contender, plan| small::make(contender, plan, small::Mode::Osync, &[1])),
        },
        Group {
            rows: vec![only(
                Counted::NoFlushes,
                RowSpec::new("busy-200ms", "append + fsync every 200 ms, four writers at 20 MB/s", Unit::Latency),
                &[("f2fs", 1.0, 0.5), ("nilfs2", 1.0, 0.5)],
            )],
            contenders: with(&[]),
            kinds: ALL,
            slices_max: FEW,
            alone: false,
            make: Box::new(|contender, plan| {
                const ROWS: &[Foreground] = &[Foreground::Append(Duration::from_millis(200))];
                loaded::make(contender, plan, ROWS)
            }),
        },
        // Here requests are what a sync costs; on a fast disk the data of others hardly delays one.
        strict_and_relaxed(&["nilfs2", NILFS2_MODES[0], NILFS2_MODES[1]]),
    ]
}

fn appends() -> Group {
    Group {
        rows: vec![
            RowSpec::new("append-fsync-1", "4 KiB append + fsync, 1 job", Unit::Rate)
                .target("ext4", 2.2, 2.6)
                .target("xfs", 1.6, 2.0)
                .target("btrfs", 4.0, 6.0)
                .target("raw", 0.70, 0.85),
            RowSpec::new("append-fsync-4", "4 KiB append + fsync, 4 jobs on 4 files", Unit::Rate)
                .jobs(4)
                .target("ext4", 2.0, 2.8)
                .target("xfs", 1.6, 2.0)
                .target("btrfs", 4.0, 6.0),
            RowSpec::new("append-fsync-16", "4 KiB append + fsync, 16 jobs on 16 files", Unit::Rate)
                .jobs(16)
                .target("ext4", 2.2, 4.0)
                .target("xfs", 1.6, 2.0)
                .target("btrfs", 4.0, 6.0),
        ],
        contenders: with_variants(),
        kinds: ALL_AND_CONTROLS,
        slices_max: UNBOUNDED,
        alone: false,
        make: Box::new(|contender, plan| small::make(contender, plan, small::Mode::Append, &[1, 4, 16])),
    }
}

/// The usual ones, the controls of what is called by messages, a kernel that keeps what is written, and requests over io_uring, which root
/// has to switch on.
fn with_variants() -> Vec<&'static str> {
    const MORE: [&str; 5] =
        ["relay", "bare", "bare+transport=uring", "nenrin+cache=writeback", "nenrin+transport=uring"];
    USUAL.iter().chain(&MORE).copied().collect()
}

/// What the calls of an append with fsync cost by themselves; the raw device's time comes on top.
fn calls() -> Group {
    let row = |jobs: u32| {
        let files = if jobs == 1 { "1 job".to_owned() } else { format!("{jobs} jobs on {jobs} files") };
        let title = format!("the calls alone: 4 KiB write + fsync of an unchanged file, {files}");
        RowSpec::new(format!("calls-{jobs}"), title, Unit::Rate).jobs(jobs)
    };
    Group {
        rows: [1, 4, 16].map(row).into(),
        contenders: vec!["ext4", "nenrin", "nenrin+transport=uring"],
        kinds: FILE_SYSTEMS,
        slices_max: UNBOUNDED,
        alone: false,
        make: Box::new(|contender, plan| small::make(contender, plan, small::Mode::Calls, &[1, 4, 16])),
    }
}

fn overwrites() -> Group {
    Group {
        rows: vec![
            RowSpec::new("overwrite-fdatasync-1", "4 KiB overwrite + fdatasync, 1 job", Unit::Rate)
                .target("ext4", 0.8, 0.95)
                .target("raw", 0.75, 0.85),
            RowSpec::new("overwrite-fdatasync-4", "4 KiB overwrite + fdatasync, 4 jobs on 4 files", Unit::Rate)
                .jobs(4)
                .target("ext4", 0.85, 1.1),
        ],
        contenders: with_variants(),
        kinds: ALL_AND_CONTROLS,
        slices_max: UNBOUNDED,
        alone: false,
        make: Box::new(|contender, plan| small::make(contender, plan, small::Mode::Overwrite, &[1, 4])),
    }
}

fn barriers() -> Group {
    let row = RowSpec::new("barrier", "4 KiB overwrite + fdatasync, 1 job, by barrier mode", Unit::Rate);
    Group {
        rows: vec![row.target_of("nenrin+barrier=checkpoint", "nenrin+barrier=none", 0.95, 0.99)],
        contenders: vec!["nenrin+barrier=none", "nenrin+barrier=checkpoint", "nenrin"],
        kinds: ALL,
        slices_max: UNBOUNDED,
        alone: false,
        make: Box::new(|contender, plan| small::make(contender, plan, small::Mode::Overwrite, &[1])),
    }
}

fn beside_others() -> Group {
    const ROWS: &[Foreground] = &[Foreground::Append(Duration::ZERO), Foreground::Append(Duration::from_secs(1))];
    let busy = |name, how| RowSpec::new(name, format!("append + fsync {how}, four writers at 20 MB/s"), Unit::Latency);
    Group {
        rows: vec![
            busy("busy", "back to back").target("ext4", 0.2, 0.1).target("xfs", 1.0, 0.7).target("btrfs", 0.5, 0.2),
            busy("busy-1s", "once a second"),
        ],
        contenders: USUAL.to_vec(),
        kinds: ALL,
        slices_max: FEW,
        alone: false,
        make: Box::new(|contender, plan| loaded::make(contender, plan, ROWS)),
    }
}

fn strict_and_relaxed(rivals: &[&'static str]) -> Group {
    let row =
        |name, how| {
            RowSpec::new(name, format!("4 KiB {how} + fdatasync, others dirtying 20 MB/s, by order"), Unit::Rate)
                .target_of("nenrin", "nenrin+order=strict", 1.5, 3.0)
        };
    Group {
        rows: vec![row("order-overwrite", "overwrite"), row("order-random", "random overwrite")],
        contenders: ["nenrin+order=strict", "nenrin", "ext4", "xfs"].iter().chain(rivals).copied().collect(),
        kinds: FILE_SYSTEMS,
        slices_max: FEW,
        alone: false,
        make: Box::new(|contender, plan| loaded::make(contender, plan, &[Foreground::Overwrite, Foreground::Random])),
    }
}

/// Databases with their own syncs, as users run them.
pub fn databases() -> [Group; 2] {
    const SQLITE: &[Program] = &[
        Program { script: "sqlite_load.py", words: &["delete"], copying: true },
        Program { script: "sqlite_load.py", words: &["wal"], copying: true },
    ];
    const SERVERS: &[Program] = &[
        Program { script: "postgres.sh", words: &[], copying: false },
        Program { script: "rocksdb.sh", words: &[], copying: false },
    ];
    let sqlite = |name, mode| {
        RowSpec::new(
            name,
            format!("SQLite {mode}, 8 threads, 1,000 transactions, a large copy beside them"),
            Unit::Rate,
        )
        .jobs(8)
    };
    [
        Group {
            rows: vec![
                sqlite("sqlite-rollback", "rollback journal").target("ext4", 1.5, 2.5),
                sqlite("sqlite-wal", "WAL").target("ext4", 1.1, 1.5),
            ],
            contenders: USUAL.iter().chain(&["bare+content", "nenrin+cache=writeback"]).copied().collect(),
            kinds: FILE_SYSTEMS,
            slices_max: FEW,
            alone: false,
            make: Box::new(|_, _| external::make(SQLITE)),
        },
        Group {
            rows: vec![
                RowSpec::new("postgres", "PostgreSQL, pgbench, 4 clients", Unit::Rate).jobs(4),
                RowSpec::new("rocksdb", "RocksDB, db_bench overwrite with sync, 1 thread", Unit::Rate),
            ],
            // The server is another user.
            contenders: vec!["ext4", "xfs", "btrfs", "nenrin+allow_other"],
            kinds: FILE_SYSTEMS,
            slices_max: FEW,
            alone: false,
            make: Box::new(|_, _| external::make(SERVERS)),
        },
    ]
}

fn size_name(bytes: u64) -> String {
    if bytes < MIB { format!("{}k", bytes >> 10) } else { format!("{}m", bytes >> 20) }
}

/// Seed 1: continuous and random rewrite of a file, with and without O_SYNC.
fn rewrites(megabytes: u64) -> Group {
    let (mut rows, mut specs) = (Vec::new(), Vec::new());
    for (kind, how) in [(Kinds::Rewrite, "continuous"), (Kinds::RandomRewrite, "random")] {
        for sync in [false, true] {
            for buffer in [2048, 4096, 8192] {
                let (size, flag) = (size_name(buffer), if sync { "-osync" } else { "" });
                let name = format!("seed1-{how}-{megabytes}m-{size}{flag}");
                let title = format!(
                    "{how} rewrite of {megabytes} MiB by {} KiB{}",
                    buffer >> 10,
                    if sync { ", O_SYNC" } else { ", fsync at the end" }
                );
                rows.push(RowSpec::new(name, title, Unit::Throughput));
                specs.push(Spec { kind, buffer, sync });
            }
        }
    }
    Group {
        rows,
        contenders: USUAL.to_vec(),
        kinds: ALL,
        slices_max: FEW,
        alone: false,
        make: Box::new(move |contender, plan| rewrite::make(contender, plan, megabytes * MIB, specs.clone())),
    }
}

/// Seed 2: O_SYNC writes and reads of a file of 128 MiB with buffers of 1 KiB to 16 MiB.
fn buffers() -> Group {
    let kinds = [
        (Kinds::Write, "write"),
        (Kinds::Rewrite, "rewrite"),
        (Kinds::RandomRewrite, "random-rewrite"),
        (Kinds::Read, "read"),
        (Kinds::RandomRead, "random-read"),
    ];
    let (mut rows, mut specs) = (Vec::new(), Vec::new());
    for (kind, how) in kinds {
        for power in [10, 12, 14, 16, 18, 20, 22, 24] {
            let buffer = 1 << power;
            let sync = !matches!(kind, Kinds::Read | Kinds::RandomRead);
            let title = format!("{how} of 128 MiB by {} KiB{}", buffer >> 10, if sync { ", O_SYNC" } else { "" });
            rows.push(RowSpec::new(format!("seed2-{how}-{}", size_name(buffer)), title, Unit::Throughput));
            specs.push(Spec { kind, buffer, sync });
        }
    }
    Group {
        rows,
        contenders: vec!["raw", "ext4", "xfs", "btrfs", "nenrin", "nenrin+order=strict", "nenrin+barrier=checkpoint"],
        kinds: ALL,
        slices_max: FEW,
        alone: false,
        make: Box::new(move |contender, plan| rewrite::make(contender, plan, 128 * MIB, specs.clone())),
    }
}
