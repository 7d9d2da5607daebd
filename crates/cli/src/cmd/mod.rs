//! The commands, one file for each.

pub mod check;
pub mod checkpoint;
pub mod clean;
pub mod compare;
pub mod device;
pub mod diff;
pub mod dump;
pub mod forget;
pub mod history;
pub mod info;
pub mod laying;
mod made;
pub mod mkfs;
pub mod mount;
pub mod probe;
pub mod replace;
pub mod resize;
pub mod restore;
mod restored;
pub mod retention;
pub mod scrub;
pub mod segments;
pub mod snapshot;
pub mod trace;
pub mod umount;

use crate::command::Command;

/// All commands, in the order in which help lists them.
pub const ALL: &[&Command] = &[
    &mkfs::COMMAND,
    &mount::COMMAND,
    &umount::COMMAND,
    &info::COMMAND,
    &probe::COMMAND,
    &checkpoint::COMMAND,
    &snapshot::COMMAND,
    &history::COMMAND,
    &diff::COMMAND,
    &restore::COMMAND,
    &forget::COMMAND,
    &retention::COMMAND,
    &check::COMMAND,
    &scrub::COMMAND,
    &device::COMMAND,
    &resize::COMMAND,
    &clean::COMMAND,
    &segments::COMMAND,
    &dump::COMMAND,
    &trace::COMMAND,
    &compare::COMMAND,
];
