//! The commands, one file for each.

pub mod check;
pub mod checkpoint;
pub mod dump;
pub mod info;
pub mod mkfs;
pub mod mount;
pub mod segments;
pub mod snapshot;
pub mod umount;

use crate::command::Command;

/// All commands, in the order in which help lists them.
pub const ALL: &[&Command] = &[
    &mkfs::COMMAND,
    &mount::COMMAND,
    &umount::COMMAND,
    &info::COMMAND,
    &checkpoint::COMMAND,
    &snapshot::COMMAND,
    &check::COMMAND,
    &segments::COMMAND,
    &dump::COMMAND,
];
