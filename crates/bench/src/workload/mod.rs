//! The kinds of work, and what a row of a table is. The rows themselves are in
//! `main_suite`, `sync_suite`, `clean_suite` and `stripe`.
//!
//! Rows that share their preparation form a group: a group is made and mounted once for each contender, and its rows are
//! measured one after the other, each interleaved over all contenders.

mod beside_cleaner;
mod churn;
mod clean_suite;
mod cost;
mod external;
mod loaded;
mod main_suite;
mod memory;
mod metadata;
mod mounting;
mod order;
mod overwrites;
mod paced;
mod random;
mod relay;
mod removal;
mod rewrite;
mod sequential;
mod small;
mod stripe;
mod sustained;
mod sync_suite;

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
    /// Length of a slice in which others write at a steady rate.
    pub loaded: Duration,
    /// Length of the row about device bytes for each small write.
    pub long: Duration,
    /// How long sustained work goes on.
    pub sustained: Sustained,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            slices: 15,
            device_bytes: 4 << 30,
            walk_files: 100_000,
            loaded: Duration::from_secs(5),
            long: Duration::from_secs(600),
            sustained: Sustained {
                age_percent: 200,
                age_free_percent: u64::MAX,
                age: Duration::from_secs(60),
                slice_percent: 12,
                slice: Duration::from_secs(20),
                removed_bytes: 100 << 30,
            },
        }
    }
}

/// How long work goes on that a cleaner has to keep up with.
#[derive(Debug, Clone, Copy)]
pub struct Sustained {
    /// What is written before anything counts, in hundredths of the device's size.
    pub age_percent: u64,
    /// And no more than this, in hundredths of what is free beside what is live.
    pub age_free_percent: u64,
    /// That ends after this time at the latest.
    pub age: Duration,
    /// What a slice writes, in hundredths of the device's size.
    pub slice_percent: u64,
    /// A slice ends after this time at the latest.
    pub slice: Duration,
    /// Apparent size of the file whose removal is measured.
    pub removed_bytes: u64,
}

/// Which slice is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// Row of the group.
    pub row: usize,
    /// Round; 0 is the warm-up.
    pub round: u32,
    /// The last round of the row.
    pub last: bool,
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
    pub latencies: Vec<u64>,
    /// The value, where it is neither a rate of operations or bytes nor the time taken.
    pub value: Option<f64>,
    /// More figures.
    pub extra: BTreeMap<String, f64>,
    /// Latency over time, for a plot: seconds since the slice began, microseconds.
    pub series: Vec<(f32, f32)>,
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
    /// How long a slice takes by intent, where that is longer than a slice's share: nobody hangs before that is over.
    fn lasts(&self) -> Duration {
        Duration::ZERO
    }
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
    /// Microseconds of the slowest 1 %; the work says the value.
    Latency,
    /// KiB on the device for each operation; the work says the value.
    Cost,
    /// 10^6 bytes; the work says the value.
    Memory,
    /// Of two figures of one slice; the work says the value.
    Ratio,
}

impl Unit {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "ops/s",
            Self::Throughput => "MB/s",
            Self::Time => "ms",
            Self::Latency => "us",
            Self::Cost => "KiB",
            Self::Memory => "MB",
            Self::Ratio => "x",
        }
    }

    /// Which direction is good.
    pub fn better(self) -> Better {
        match self {
            Self::Rate | Self::Throughput => Better::Higher,
            Self::Time | Self::Latency | Self::Cost | Self::Memory | Self::Ratio => Better::Lower,
        }
    }

    /// Value of a slice.
    pub fn value(self, work: &Work) -> f64 {
        let seconds = work.elapsed.as_secs_f64().max(1e-9);
        work.value.unwrap_or(match self {
            Self::Rate => work.operations as f64 / seconds,
            Self::Throughput => work.bytes as f64 / 1e6 / seconds,
            Self::Time => seconds * 1e3,
            Self::Latency | Self::Cost | Self::Memory | Self::Ratio => 0.0,
        })
    }
}

/// A row of the table.
pub struct RowSpec {
    /// Name for --only.
    pub name: String,
    /// What is done.
    pub title: String,
    /// Unit.
    pub unit: Unit,
    /// Threads.
    pub jobs: u32,
    /// What is to be reached, by contender; the empty name stands for every nenrin.
    pub targets: Vec<(&'static str, Target)>,
    /// Later rows of the group need what this one leaves behind.
    pub needed: bool,
    /// Only file systems can do this one.
    pub cached: bool,
}

impl RowSpec {
    /// A row for one thread, without a target.
    pub fn new(name: impl Into<String>, title: impl Into<String>, unit: Unit) -> Self {
        let (name, title) = (name.into(), title.into());
        Self { name, title, unit, jobs: 1, targets: Vec::new(), needed: false, cached: false }
    }

    /// With so many threads.
    pub fn jobs(self, jobs: u32) -> Self {
        Self { jobs, ..self }
    }

    /// Every nenrin should reach this ratio to another contender.
    pub fn target(self, against: &str, floor: f64, aim: f64) -> Self {
        self.target_of("", against, floor, aim)
    }

    /// One contender should reach this ratio to another one.
    pub fn target_of(mut self, contender: &'static str, against: &str, floor: f64, aim: f64) -> Self {
        self.targets.push((contender, Target { against: against.to_owned(), floor, aim }));
        self
    }

    /// Later rows need it.
    pub fn needed(self) -> Self {
        Self { needed: true, ..self }
    }

    /// Not for the raw device.
    pub fn cached(self) -> Self {
        Self { cached: true, ..self }
    }
}

/// Makes the work of one contender.
pub type Make = Box<dyn Fn(&Contender, Plan) -> Box<dyn Workload>>;

/// Rows with one preparation.
pub struct Group {
    /// Its rows.
    pub rows: Vec<RowSpec>,
    /// Contenders when none are named.
    pub contenders: Vec<&'static str>,
    /// Kinds of contenders that can do this.
    pub kinds: &'static [Kind],
    /// At most so many slices, for work that is slow or does not vary.
    pub slices_max: u32,
    /// Each contender has the machine for itself, from its preparation to its last slice, with nothing between slices
    /// but what the harness needs: what goes on in the background must not find pauses that only others make.
    pub alone: bool,
    /// Makes the work of one contender.
    pub make: Make,
}

const ALL: &[Kind] =
    &[Kind::Raw, Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Nilfs2, Kind::F2fs, Kind::Jfs, Kind::Nenrin];
/// Small durable writes have controls of what is asked by messages, too.
const ALL_AND_CONTROLS: &[Kind] = &[
    Kind::Raw,
    Kind::Relay,
    Kind::Bare,
    Kind::Ext4,
    Kind::Xfs,
    Kind::Btrfs,
    Kind::Nilfs2,
    Kind::F2fs,
    Kind::Jfs,
    Kind::Nenrin,
];
const FILE_SYSTEMS: &[Kind] =
    &[Kind::Bare, Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Nilfs2, Kind::F2fs, Kind::Jfs, Kind::Nenrin];
const USUAL: &[&str] = &["raw", "ext4", "xfs", "btrfs", "nenrin"];
const UNBOUNDED: u32 = u32::MAX;

/// Which rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// What everybody does with a file system.
    Main,
    /// Synchronous writes, on the disk as it is.
    Sync,
    /// Databases, on the disk as it is.
    Databases,
    /// Device bytes of small synchronous writes over a long time.
    Cost,
    /// Synchronous writes where the disk is the limit, and flushes count.
    Limited,
    /// The same where flushes are free, as in a virtual machine.
    Guest,
    /// What the cleaner costs.
    Clean,
    /// Several devices.
    Stripe,
}

/// The groups of a suite, in the order in which they run.
pub fn groups(suite: Suite) -> Vec<Group> {
    match suite {
        Suite::Main => main_suite::groups(),
        Suite::Sync => sync_suite::groups(),
        Suite::Databases => sync_suite::databases().into(),
        Suite::Cost => vec![sync_suite::long_cost()],
        Suite::Limited => sync_suite::limited(sync_suite::Counted::Flushes),
        Suite::Guest => sync_suite::limited(sync_suite::Counted::NoFlushes),
        Suite::Clean => clean_suite::groups(),
        Suite::Stripe => stripe::groups(),
    }
}

/// Targets of a contender in a row.
pub fn targets_of(row: &RowSpec, contender: &Contender) -> Vec<Target> {
    if contender.kind != Kind::Nenrin {
        return Vec::new();
    }
    let named = |wanted: &str| -> Vec<Target> {
        row.targets.iter().filter(|(name, _)| *name == wanted).map(|(_, target)| target.clone()).collect()
    };
    let exact = named(&contender.name);
    if exact.is_empty() { named("") } else { exact }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::SUITES;
    use std::collections::BTreeSet;

    fn all() -> impl Iterator<Item = Group> {
        SUITES.into_iter().flat_map(|(_, suite)| groups(suite))
    }

    #[test]
    fn names_are_unique_and_contenders_can_be_read() {
        for (_, suite) in SUITES {
            let names: Vec<String> = groups(suite).into_iter().flat_map(|g| g.rows).map(|r| r.name).collect();
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        }
        for name in all().flat_map(|g| g.contenders) {
            Contender::parse(name).unwrap();
        }
    }

    #[test]
    fn whoever_is_compared_with_takes_part() {
        for group in all() {
            for (_, target) in group.rows.iter().flat_map(|r| &r.targets) {
                assert!(group.contenders.contains(&target.against.as_str()), "{}", target.against);
            }
        }
    }

    /// What the document about synchronous writes compares, beside the defaults.
    #[test]
    fn modes_are_beside_the_defaults() {
        let measures = |suite, row: &str, wanted: &[&str]| {
            let group = groups(suite).into_iter().find(|g| g.rows.iter().any(|r| r.name == row)).unwrap();
            for name in wanted {
                assert!(group.contenders.contains(name), "{row}: {name}");
            }
        };
        for row in ["append-fsync-1", "overwrite-fdatasync-1"] {
            measures(Suite::Sync, row, &["nenrin", "nenrin+cache=writeback", "nenrin+transport=uring"]);
        }
        measures(Suite::Databases, "sqlite-wal", &["nenrin", "nenrin+cache=writeback"]);
        measures(Suite::Limited, "append-fsync-16", &["nenrin+cache=writeback"]);
        for row in ["busy-200ms", "order-overwrite", "order-random"] {
            measures(Suite::Guest, row, &["nilfs2", "nilfs2+order=strict", "nilfs2+nobarrier"]);
        }
    }

    #[test]
    fn targets_by_contender() {
        let row = groups(Suite::Main).into_iter().flat_map(|g| g.rows).find(|r| r.name == "rand-write").unwrap();
        let floor = |name| targets_of(&row, &Contender::parse(name).unwrap()).first().map(|t| t.floor);
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
