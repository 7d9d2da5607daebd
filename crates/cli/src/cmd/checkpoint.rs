//! `nenrin checkpoint`.

use crate::command::{Command, arguments};
use crate::control::{CheckpointData, Request};
use crate::error::Outcome;
use crate::target::Target;
use crate::{output, report};
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "checkpoint",
    usage: &["checkpoint list [--json] [DIR|DEVICE]", "checkpoint create [--json] [DIR]"],
    about: "Lists the states that can be gone back to, or makes one now",
    options: &[("--json", "as JSON")],
    notes: "A checkpoint is cut by itself every few seconds while something changes (checkpoint= of mount). The one that create\n\
            makes is on the device when it returns. Kept for good is only what has a name: see snapshot.",
    examples: &[("checkpoint list ~/work", "all states, oldest first"), ("checkpoint create ~/work", "one more, now")],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut json = false;
    let given = arguments(&COMMAND, parser, 2, |flag, _| {
        json |= flag.is("--json");
        Ok(flag.is("--json"))
    })?;
    let path = given.get(1).map_or(Path::new("."), Path::new);
    match given.first().and_then(|v| v.to_str()) {
        Some("list") => {
            let list = Target::find(path)?.checkpoints()?;
            if json {
                output::json(&list)?;
            } else {
                output::print(&report::show_checkpoints(&list));
            }
        }
        Some("create") => {
            let made: CheckpointData = Target::find(path)?.owner()?.call(&Request::CheckpointCreate { name: None })?;
            if json {
                output::json(&made)?;
            } else {
                output::line(made.cno);
            }
        }
        Some(other) => return Err(COMMAND.misuse(format!("unknown subcommand {other:?}"))),
        None => return Err(COMMAND.misuse("list or create is needed")),
    }
    Ok(0)
}
