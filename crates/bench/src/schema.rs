//! The result schema: what results.json holds. Every benchmark of the project writes this and nothing else.
//!
//! Invariants
//! 1. `VERSION` grows whenever a reader of the old schema would misread the new one. New fields that may be absent
//!    (`#[serde(default)]`) do not raise it.
//! 2. Raw samples are kept: every summary can be computed again from them.
//! 3. A ratio is value / value of the reference in the same round, whatever is better.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::disk::Counters;
use crate::gate;
use crate::machine::Machine;
use crate::stats::{Latency, Summary};

/// Name of the schema.
pub const NAME: &str = "nenrin-bench";
/// Version of the schema.
pub const VERSION: u32 = 2;

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`NAME`].
    pub schema: String,
    /// [`VERSION`].
    pub schema_version: u32,
    /// When the run began, UTC.
    pub started: String,
    /// When these results were written, UTC.
    pub finished: String,
    /// Whether every selected row ran.
    pub complete: bool,
    /// Settings of the run.
    pub settings: Settings,
    /// The machine.
    pub machine: Machine,
    /// One entry per kind of work.
    pub rows: Vec<Row>,
    /// What a reader has to know: contenders left out and why, troubles.
    pub notes: Vec<String>,
}

/// Settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Command line after the program's name.
    pub arguments: Vec<String>,
    /// Slices per contender and row.
    pub slices: u32,
    /// Length of a slice that is bounded by time.
    pub slice_ms: u64,
    /// Size of each device.
    pub device_bytes: u64,
    /// Files walked for the row about memory.
    pub walk_files: u64,
    /// Write requests per second that every device was limited to.
    #[serde(default)]
    pub limit_iops: Option<u64>,
    /// Bytes per second that every device was limited to.
    #[serde(default)]
    pub limit_bps: Option<u64>,
    /// Priority of the harness and of the daemons.
    #[serde(default)]
    pub nice: i32,
    /// The idle gate.
    pub gate: gate::Settings,
}

/// Which direction is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// One kind of work, done by several contenders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Short name, as for --only.
    pub name: String,
    /// What is done.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Which direction is good.
    pub better: Better,
    /// Threads working at once.
    pub jobs: u32,
    /// The contenders, in the order given.
    pub contenders: Vec<Entry>,
}

/// A contender's result in a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Why there is no (complete) result.
    pub error: Option<String>,
    /// The mkfs command.
    pub mkfs: String,
    /// Type and options of the mount, from the kernel.
    pub mount: String,
    /// Mount options that were given.
    pub options: Vec<String>,
    /// Cache mode.
    pub cache: String,
    /// What is kept of the past (`checkpoint=` and retention), where the contender keeps any.
    pub retention: Option<String>,
    /// Part of the device in use after preparation.
    pub fill_level: Option<f64>,
    /// Holes found in the image at the end: more than none means that the disk was not fully written all the time.
    #[serde(default)]
    pub hole_bytes: u64,
    /// Values of the counted samples.
    pub summary: Option<Summary>,
    /// Against ext4, round by round.
    pub to_ext4: Option<Summary>,
    /// The same over the rounds in which no other program disturbed either, when there are at least three.
    #[serde(default)]
    pub to_ext4_quiet: Option<Summary>,
    /// Speed against ext4 by the median latency of each round's slices (ext4's p50 / own p50), for synchronous work. A
    /// neighbour that takes the processor makes a few operations very slow and leaves the middle one alone, so on a busy
    /// machine this says more than the rate does.
    #[serde(default)]
    pub to_ext4_by_p50: Option<Summary>,
    /// Against the raw device, round by round.
    pub to_raw: Option<Summary>,
    /// Against each contender that a target of the row names, round by round.
    #[serde(default)]
    pub ratios: BTreeMap<String, Summary>,
    /// The same by median latency.
    #[serde(default)]
    pub ratios_by_p50: BTreeMap<String, Summary>,
    /// Latency of the single operations of all counted slices.
    pub latency: Option<Latency>,
    /// What one operation cost.
    pub per_operation: Option<PerOperation>,
    /// What the project set out for this contender.
    #[serde(default)]
    pub targets: Vec<Target>,
    /// Slices that ran although the machine was not idle.
    pub gate_gave_up: usize,
    /// Every slice.
    pub samples: Vec<Sample>,
}

/// Ratio to another contender that one should reach; at most that much where less is better.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The other one.
    pub against: String,
    /// At least this.
    pub floor: f64,
    /// Better this.
    pub aim: f64,
}

/// Cost of one operation, averaged over all counted slices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PerOperation {
    /// Device reads.
    pub reads: f64,
    /// Bytes read from the device.
    pub read_bytes: f64,
    /// Write requests as the kernel counts them: an empty flush that comes from fdatasync on the device is one too, the flush behind a write
    /// with FUA is not.
    pub writes: f64,
    /// Write requests that carry data, of the raw device, which is flushed by fdatasync. Flushes that the kernel joins make it too large.
    #[serde(default)]
    pub data_writes: Option<f64>,
    /// Bytes written to the device.
    pub write_bytes: f64,
    /// Flushes.
    pub flushes: f64,
    /// Processor time of the daemon, microseconds.
    pub daemon_us: Option<f64>,
}

/// One slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Round; 0 is the warm-up, which no summary counts.
    pub round: u32,
    /// Place in the order of this round.
    pub place: u32,
    /// The value, in the row's unit.
    pub value: f64,
    /// Operations done.
    pub operations: u64,
    /// Bytes the application moved.
    pub bytes: u64,
    /// Time measured.
    pub nanos: u64,
    /// Latency of the operations of this slice.
    pub latency: Option<Latency>,
    /// What the device did, from before the slice until it was quiet again.
    pub device: Counters,
    /// The same for each device, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Counters>,
    /// Whether it became quiet.
    pub settled: bool,
    /// Processor time of the daemon in the same span; none where the slice ended with another one, having mounted anew.
    pub daemon_us: Option<u64>,
    /// Cores that programs outside the harness used during the slice.
    pub foreign_cores: f64,
    /// What the idle gate saw.
    pub gate: Option<gate::Verdict>,
    /// Load average before the slice.
    pub load: String,
    /// More figures of this row, by name.
    #[serde(default)]
    pub extra: BTreeMap<String, f64>,
    /// Latency over time: seconds since the slice began, microseconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<(f32, f32)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::summarize;

    fn example() -> Results {
        let sample = Sample {
            round: 1,
            value: 123.5,
            operations: 50,
            gate: Some(gate::Verdict { waited_ms: 100, busy_cores: 0.5, gave_up: true }),
            extra: BTreeMap::from([("idle_mb".to_owned(), 12.0)]),
            ..Sample::default()
        };
        let entry = Entry {
            name: "nenrin".to_owned(),
            summary: summarize([123.5]),
            targets: vec![Target { against: "ext4".to_owned(), floor: 1.8, aim: 2.3 }],
            per_operation: Some(PerOperation { writes: 1.0, ..PerOperation::default() }),
            samples: vec![sample],
            ..Entry::default()
        };
        Results {
            schema: NAME.to_owned(),
            schema_version: VERSION,
            started: "a".to_owned(),
            finished: "b".to_owned(),
            complete: true,
            settings: Settings {
                arguments: vec![],
                slices: 15,
                slice_ms: 400,
                device_bytes: 1 << 30,
                walk_files: 10,
                limit_iops: None,
                limit_bps: None,
                nice: 0,
                gate: gate::Settings { busy_cores: 0.2, window_ms: 100, max_wait_ms: 1, budget_ms: 1 },
            },
            machine: Machine::default(),
            rows: vec![Row {
                name: "append-fsync-1".to_owned(),
                title: "t".to_owned(),
                unit: "ops/s".to_owned(),
                better: Better::Higher,
                jobs: 1,
                contenders: vec![entry],
            }],
            notes: vec![],
        }
    }

    #[test]
    fn survives_json() {
        let text = serde_json::to_string_pretty(&example()).unwrap();
        let back: Results = serde_json::from_str(&text).unwrap();
        assert_eq!(back, example());
    }

    #[test]
    fn names_of_the_schema_stay() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!(json["schema"], "nenrin-bench");
        assert_eq!(json["schema_version"], 2);
        let entry = &json["rows"][0]["contenders"][0];
        for name in ["summary", "to_ext4", "to_raw", "latency", "per_operation", "samples", "fill_level", "mount"] {
            assert!(entry.get(name).is_some(), "{name} is gone: raise the version");
        }
        assert_eq!(json["rows"][0]["better"], "higher");
        assert_eq!(entry["samples"][0]["gate"]["gave_up"], true);
    }
}
