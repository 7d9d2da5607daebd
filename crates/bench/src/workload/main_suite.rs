//! The rows of the main job: what everybody does with a file system.

use super::{ALL, FILE_SYSTEMS, Group, RowSpec, UNBOUNDED, USUAL, Unit};
use super::{memory, metadata, mounting, random, sequential, small};
use crate::contender::Kind;

/// Its groups.
pub fn groups() -> Vec<Group> {
    let row = RowSpec::new;
    vec![
        Group {
            rows: vec![
                row("append-fsync-1", "4 KiB append + fsync, 1 job", Unit::Rate).target("ext4", 1.8, 2.3),
                row("append-fsync-4", "4 KiB append + fsync, 4 jobs on 4 files", Unit::Rate)
                    .jobs(4)
                    .target("ext4", 1.6, 2.2),
            ],
            contenders: USUAL.to_vec(),
            kinds: ALL,
            slices_max: UNBOUNDED,
            alone: false,
            make: Box::new(|contender, plan| small::make(contender, plan, small::Mode::Append, &[1, 4])),
        },
        Group {
            rows: vec![
                row("overwrite-fdatasync-1", "4 KiB overwrite + fdatasync, 1 job", Unit::Rate)
                    .target("ext4", 0.7, 0.85),
                row("overwrite-fdatasync-4", "4 KiB overwrite + fdatasync, 4 jobs on 4 files", Unit::Rate)
                    .jobs(4)
                    .target("ext4", 0.6, 0.9),
            ],
            contenders: USUAL.to_vec(),
            kinds: ALL,
            slices_max: UNBOUNDED,
            alone: false,
            make: Box::new(|contender, plan| small::make(contender, plan, small::Mode::Overwrite, &[1, 4])),
        },
        Group {
            rows: vec![row("seq-write", "sequential 1 MiB writes + fsync", Unit::Throughput).target("ext4", 0.7, 0.9)],
            contenders: USUAL.to_vec(),
            kinds: ALL,
            slices_max: UNBOUNDED,
            alone: false,
            make: Box::new(sequential::make_writer),
        },
        Group {
            rows: vec![
                row("seq-read-cold", "cold sequential read, 1 MiB", Unit::Throughput).target("ext4", 0.7, 1.0),
                row("seq-read-warm", "warm sequential read, 1 MiB", Unit::Throughput)
                    .target("ext4", 0.95, 1.0)
                    .cached(),
            ],
            contenders: USUAL.to_vec(),
            kinds: ALL,
            slices_max: UNBOUNDED,
            alone: false,
            make: Box::new(sequential::make_reader),
        },
        Group {
            rows: vec![
                row("rand-write", "4 KiB random buffered writes over 1 GiB, 64 MiB each time, + fsync", Unit::Rate)
                    .target_of("nenrin+cache=writeback", "ext4", 1.0, 2.0)
                    .target("ext4", 0.4, 0.5),
            ],
            contenders: vec!["raw", "ext4", "xfs", "btrfs", "nenrin+cache=writeback", "nenrin+cache=writethrough"],
            kinds: ALL,
            slices_max: UNBOUNDED,
            alone: false,
            make: Box::new(random::make),
        },
        Group {
            rows: vec![
                row("create", "create files, 20,000 to a directory", Unit::Rate).target("ext4", 0.15, 0.3).needed(),
                row("stat", "stat of these files", Unit::Rate).target("ext4", 0.8, 1.0),
                row("unlink", "unlink of these files", Unit::Rate).target("ext4", 0.15, 0.3),
            ],
            contenders: vec!["ext4", "xfs", "btrfs", "nenrin", "nenrin+own_check"],
            kinds: FILE_SYSTEMS,
            slices_max: UNBOUNDED,
            alone: false,
            make: Box::new(|_, _| metadata::make()),
        },
        Group {
            rows: vec![row("mount-time", "mount, from the command to a usable root", Unit::Time)],
            contenders: vec!["ext4", "xfs", "btrfs", "nenrin"],
            kinds: FILE_SYSTEMS,
            slices_max: UNBOUNDED,
            alone: false,
            make: Box::new(|_, _| mounting::make_mounting()),
        },
        Group {
            rows: vec![row("recovery-time", "mount after SIGKILL of the daemon under load", Unit::Time).jobs(4)],
            contenders: vec!["nenrin"],
            kinds: &[Kind::Nenrin],
            slices_max: 10,
            alone: false,
            make: Box::new(|_, _| mounting::make_recovery()),
        },
        Group {
            rows: vec![row("memory", "resident memory of the daemon after walking many files", Unit::Memory)],
            contenders: vec!["nenrin"],
            kinds: &[Kind::Nenrin],
            slices_max: 1,
            alone: false,
            make: Box::new(|_, plan| memory::make(plan)),
        },
    ]
}
