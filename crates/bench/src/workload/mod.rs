//! The kinds of work, and the table of rows.
//!
//! Rows that share their preparation form a group: a group is made and mounted once for each contender, and its rows are
//! measured one after the other, each interleaved over all contenders.

mod memory;
mod metadata;
mod mounting;
mod random;
mod sequential;
mod small;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::contender::{Contender, Kind};
use crate::error::Result;
use crate::schema::{Better, Target};
use crate::site::Site;

/// Sizes that follow from the command line.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Counted slices.
    pub slices: u32,
    /// Bytes of each device.
    pub device_bytes: u64,
    /// Files of the row about memory.
    pub walk_files: u64,
}

/// Which slice is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// Row of the group.
    pub row: usize,
    /// Round; 0 is the warm-up.
    pub round: u32,
    /// Time a slice bounded by time should take.
    pub budget: Duration,
}

/// What a slice did.
#[derive(Debug, Default)]
pub struct Work {
    /// Operations.
    pub operations: u64,
    /// Bytes the application moved.
    pub bytes: u64,
    /// Time taken.
    pub elapsed: Duration,
    /// Latency of each operation in nanoseconds, for synchronous work.
    pub latencies: Vec<u32>,
    /// The value, where it is neither a rate of operations or bytes nor the time taken.
    pub value: Option<f64>,
    /// More figures.
    pub extra: BTreeMap<String, f64>,
}

/// Work that a contender does slice by slice. Only `slice` is measured.
pub trait Workload {
    /// Once, on the fresh mount.
    fn prepare(&mut self, site: &mut Site) -> Result<()>;
    /// Before the first slice of a row.
    fn enter(&mut self, _row: usize, _site: &mut Site) -> Result<()> {
        Ok(())
    }
    /// Before each slice.
    fn before(&mut self, _turn: Turn, _site: &mut Site) -> Result<()> {
        Ok(())
    }
    /// The slice.
    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work>;
    /// After each slice.
    fn after(&mut self, _turn: Turn, _site: &mut Site) -> Result<()> {
        Ok(())
    }
}

/// Unit of a row, and with it how the value follows from the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Operations per second.
    Rate,
    /// 10^6 bytes per second.
    Throughput,
    /// Milliseconds.
    Time,
    /// 10^6 bytes; the work says the value.
    Memory,
}

impl Unit {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "ops/s",
            Self::Throughput => "MB/s",
            Self::Time => "ms",
            Self::Memory => "MB",
        }
    }

    /// Which direction is good.
    pub fn better(self) -> Better {
        match self {
            Self::Rate | Self::Throughput => Better::Higher,
            Self::Time | Self::Memory => Better::Lower,
        }
    }

    /// Value of a slice.
    pub fn value(self, work: &Work) -> f64 {
        let seconds = work.elapsed.as_secs_f64().max(1e-9);
        work.value.unwrap_or(match self {
            Self::Rate => work.operations as f64 / seconds,
            Self::Throughput => work.bytes as f64 / 1e6 / seconds,
            Self::Time => seconds * 1e3,
            Self::Memory => 0.0,
        })
    }
}

/// A row of the table.
pub struct RowSpec {
    /// Name for --only.
    pub name: &'static str,
    /// What is done.
    pub title: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Threads.
    pub jobs: u32,
    /// Ratio to ext4 by contender; the empty name stands for every nenrin.
    pub targets: &'static [(&'static str, Target)],
    /// Later rows of the group need what this one leaves behind.
    pub needed: bool,
    /// Only file systems can do this one.
    pub cached: bool,
}

/// Rows with one preparation.
pub struct Group {
    /// Its rows.
    pub rows: &'static [RowSpec],
    /// Contenders when none are named.
    pub contenders: &'static [&'static str],
    /// Kinds of contenders that can do this.
    pub kinds: &'static [Kind],
    /// At most so many slices, for work that is slow or does not vary.
    pub slices_max: u32,
    /// Makes the work of one contender.
    pub make: fn(&Contender, Plan) -> Box<dyn Workload>,
}

const fn target(floor: f64, aim: f64) -> Target {
    Target { floor, aim }
}

const fn row(
    name: &'static str,
    title: &'static str,
    unit: Unit,
    jobs: u32,
    targets: &'static [(&'static str, Target)],
) -> RowSpec {
    RowSpec { name, title, unit, jobs, targets, needed: false, cached: false }
}

const ALL: &[Kind] = &[Kind::Raw, Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Nenrin];
const FILE_SYSTEMS: &[Kind] = &[Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Nenrin];
const USUAL: &[&str] = &["raw", "ext4", "xfs", "btrfs", "nenrin"];
const UNBOUNDED: u32 = u32::MAX;

/// Every group, in the order in which they run.
pub const GROUPS: &[Group] = &[
    Group {
        rows: &[
            row("append-fsync-1", "4 KiB append + fsync, 1 job", Unit::Rate, 1, &[("", target(1.8, 2.3))]),
            row("append-fsync-4", "4 KiB append + fsync, 4 jobs on 4 files", Unit::Rate, 4, &[("", target(1.6, 2.2))]),
        ],
        contenders: USUAL,
        kinds: ALL,
        slices_max: UNBOUNDED,
        make: |contender, plan| small::make(contender, plan, small::Mode::Append),
    },
    Group {
        rows: &[
            row(
                "overwrite-fdatasync-1",
                "4 KiB overwrite + fdatasync, 1 job",
                Unit::Rate,
                1,
                &[("", target(0.7, 0.85))],
            ),
            row(
                "overwrite-fdatasync-4",
                "4 KiB overwrite + fdatasync, 4 jobs on 4 files",
                Unit::Rate,
                4,
                &[("", target(0.6, 0.9))],
            ),
        ],
        contenders: USUAL,
        kinds: ALL,
        slices_max: UNBOUNDED,
        make: |contender, plan| small::make(contender, plan, small::Mode::Overwrite),
    },
    Group {
        rows: &[row("seq-write", "sequential 1 MiB writes + fsync", Unit::Throughput, 1, &[("", target(0.7, 0.9))])],
        contenders: USUAL,
        kinds: ALL,
        slices_max: UNBOUNDED,
        make: |contender, plan| sequential::make_writer(contender, plan),
    },
    Group {
        rows: &[
            row("seq-read-cold", "cold sequential read, 1 MiB", Unit::Throughput, 1, &[("", target(0.7, 1.0))]),
            RowSpec {
                cached: true,
                ..row("seq-read-warm", "warm sequential read, 1 MiB", Unit::Throughput, 1, &[("", target(0.95, 1.0))])
            },
        ],
        contenders: USUAL,
        kinds: ALL,
        slices_max: UNBOUNDED,
        make: |contender, plan| sequential::make_reader(contender, plan),
    },
    Group {
        rows: &[row(
            "rand-write",
            "4 KiB random buffered writes over 1 GiB, 64 MiB each time, + fsync",
            Unit::Rate,
            1,
            &[("nenrin+cache=writeback", target(1.0, 2.0)), ("", target(0.4, 0.5))],
        )],
        contenders: &["raw", "ext4", "xfs", "btrfs", "nenrin+cache=writeback", "nenrin+cache=writethrough"],
        kinds: ALL,
        slices_max: UNBOUNDED,
        make: |contender, plan| random::make(contender, plan),
    },
    Group {
        rows: &[
            RowSpec {
                needed: true,
                ..row("create", "create files, 20,000 to a directory", Unit::Rate, 1, &[("", target(0.15, 0.3))])
            },
            row("stat", "stat of these files", Unit::Rate, 1, &[("", target(0.8, 1.0))]),
            row("unlink", "unlink of these files", Unit::Rate, 1, &[("", target(0.15, 0.3))]),
        ],
        contenders: &["ext4", "xfs", "btrfs", "nenrin", "nenrin+own_check"],
        kinds: FILE_SYSTEMS,
        slices_max: UNBOUNDED,
        make: |_, _| metadata::make(),
    },
    Group {
        rows: &[row("mount-time", "mount, from the command to a usable root", Unit::Time, 1, &[])],
        contenders: &["ext4", "xfs", "btrfs", "nenrin"],
        kinds: FILE_SYSTEMS,
        slices_max: UNBOUNDED,
        make: |_, _| mounting::make_mounting(),
    },
    Group {
        rows: &[row("recovery-time", "mount after SIGKILL of the daemon under load", Unit::Time, 4, &[])],
        contenders: &["nenrin"],
        kinds: &[Kind::Nenrin],
        slices_max: 10,
        make: |_, _| mounting::make_recovery(),
    },
    Group {
        rows: &[row("memory", "resident memory of the daemon after walking many files", Unit::Memory, 1, &[])],
        contenders: &["nenrin"],
        kinds: &[Kind::Nenrin],
        slices_max: 1,
        make: |_, plan| memory::make(plan),
    },
];

/// Target of a contender in a row.
pub fn target_of(row: &RowSpec, contender: &Contender) -> Option<Target> {
    let exact = row.targets.iter().find(|(name, _)| *name == contender.name);
    let any = row.targets.iter().find(|(name, _)| name.is_empty());
    exact.or(any).filter(|_| contender.kind == Kind::Nenrin).map(|(_, target)| *target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_contenders_can_be_read() {
        let names: Vec<_> = GROUPS.iter().flat_map(|g| g.rows).map(|r| r.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        for name in GROUPS.iter().flat_map(|g| g.contenders) {
            Contender::parse(name).unwrap();
        }
    }

    #[test]
    fn targets_by_contender() {
        let row = GROUPS.iter().flat_map(|g| g.rows).find(|r| r.name == "rand-write").unwrap();
        let floor = |name| target_of(row, &Contender::parse(name).unwrap()).map(|t| t.floor);
        assert_eq!(floor("nenrin+cache=writeback"), Some(1.0));
        assert_eq!(floor("nenrin"), Some(0.4));
        assert_eq!(floor("xfs"), None);
    }

    #[test]
    fn values_by_unit() {
        let work = Work { operations: 50, bytes: 2_000_000, elapsed: Duration::from_millis(500), ..Work::default() };
        assert_eq!(Unit::Rate.value(&work), 100.0);
        assert_eq!(Unit::Throughput.value(&work), 4.0);
        assert_eq!(Unit::Time.value(&work), 500.0);
        assert_eq!(Unit::Memory.value(&Work { value: Some(7.0), ..work }), 7.0);
    }
}
