//! `nenrin segments`.

use crate::command::{Command, arguments};
use crate::error::Outcome;
use crate::target::Target;
use crate::{output, report};
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "segments",
    usage: &["segments [--json] [DIR|DEVICE]"],
    about: "Lists the segments of a volume: state, kind, and how much of each is needed",
    options: &[("--json", "as JSON")],
    notes: "live and history are blocks of content, nodes are copies of index nodes; \"held\": recovery needs the chain in it.",
    examples: &[
        ("segments ~/work", "the volume mounted there"),
        ("segments work.img", "a volume that need not be mounted"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut json = false;
    let given = arguments(&COMMAND, parser, 1, |flag, _| {
        json |= flag.is("--json");
        Ok(flag.is("--json"))
    })?;
    let path = given.first().map_or(Path::new("."), Path::new);
    let list = Target::find(path)?.segments()?;
    if json {
        output::json(&list)?;
    } else {
        output::print(&report::show_segments(&list));
    }
    Ok(0)
}
