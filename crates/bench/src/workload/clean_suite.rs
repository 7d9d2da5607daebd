//! The rows about the cleaner: what sustained work costs on volumes that are more or less full, and what others feel of
//! it.
//!
//! A row is named by what is done, by how much of what is available is live, and by when it is made durable:
//! `uniform-80-end`, `hot-80-16m`.

use super::overwrites::{self, Pattern};
use super::removal::Kinds;
use super::sustained::{self, Durable, ROWS};
use super::{FILE_SYSTEMS, Group, RowSpec, UNBOUNDED, Unit};
use super::{beside_cleaner, churn, order, removal};
use crate::contender::Kind;

/// How much of what is available is live.
const FILLS: [u64; 4] = [50, 80, 90, 95];

/// What is written.
#[derive(Debug, Clone, Copy)]
enum Load {
    Uniform,
    Hot,
    Churn,
}

/// Its groups.
pub fn groups() -> Vec<Group> {
    let mut groups = Vec::new();
    for load in [Load::Uniform, Load::Hot, Load::Churn] {
        groups.extend(FILLS.map(|fill| sustained(load, fill)));
    }
    groups.push(Group {
        rows: vec![RowSpec::new(
            "fsync-cleaning",
            "p99 of 4 KiB + fsync while the cleaner works, 80 % live, against while it has nothing to do",
            Unit::Ratio,
        )],
        contenders: vec!["raw", "nenrin+checkpoint=0", "nenrin"],
        kinds: &[Kind::Raw, Kind::Nenrin],
        slices_max: UNBOUNDED,
        alone: true,
        make: Box::new(|contender, plan| beside_cleaner::make(contender, plan, 80)),
    });
    groups.push(removal("remove-sparse", "a sparse file", Kinds::Sparse));
    groups.push(removal("remove-full", "a file that was written in full", Kinds::Full));
    groups.push(Group {
        rows: vec![RowSpec::new(
            "order",
            "reading a file cold, in sequence, that was written at random and put in order, against one written in sequence",
            Unit::Ratio,
        )],
        contenders: vec!["nenrin+checkpoint=0", "nenrin"],
        kinds: &[Kind::Nenrin],
        slices_max: UNBOUNDED,
        alone: true,
        make: Box::new(|_, plan| order::make(plan)),
    });
    groups
}

fn sustained(load: Load, fill: u64) -> Group {
    let (name, what) = match load {
        Load::Uniform => ("uniform", "random 4 KiB overwrites, uniform"),
        Load::Hot => ("hot", "random 4 KiB overwrites, 90 % of them to 10 % of the data"),
        Load::Churn => ("churn", "files of 1 KiB to 1 MiB removed and created"),
    };
    let row = |durable| {
        let (word, how) = match durable {
            Durable::AtTheEnd => ("end", "one sync at the end of a slice"),
            Durable::Every(_) => ("16m", "an fsync after each 16 MiB"),
        };
        RowSpec::new(format!("{name}-{fill}-{word}"), format!("{what}, {fill} % live, {how}"), Unit::Throughput)
    };
    let mut contenders =
        vec!["ext4", "btrfs", "f2fs", "f2fs+mode=lfs", "nilfs2+cleanerd", "nenrin+checkpoint=0", "nenrin"];
    if fill == 80 {
        contenders.push("nenrin+cache=writeback+checkpoint=0");
    }
    Group {
        rows: ROWS.map(row).into(),
        contenders,
        kinds: FILE_SYSTEMS,
        slices_max: UNBOUNDED,
        alone: true,
        make: Box::new(move |_, plan| {
            let stream = match load {
                Load::Uniform => overwrites::stream(Pattern::Uniform),
                Load::Hot => overwrites::stream(Pattern::HotCold),
                Load::Churn => churn::stream(),
            };
            sustained::make(stream, plan, fill)
        }),
    }
}

fn removal(name: &str, what: &str, kind: Kinds) -> Group {
    let title = format!("p99 of 4 KiB + fsync while {what} is removed, against just before");
    Group {
        rows: vec![RowSpec::new(name, title, Unit::Ratio)],
        contenders: vec!["ext4", "btrfs", "nenrin+checkpoint=0", "nenrin"],
        kinds: FILE_SYSTEMS,
        slices_max: UNBOUNDED,
        alone: true,
        make: Box::new(move |_, plan| removal::make(plan, kind)),
    }
}
