//! `nenrin info`.

use crate::command::{Command, arguments};
use crate::error::Outcome;
use crate::target::Target;
use crate::{output, report};
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "info",
    usage: &["info [--json] [DIR|DEVICE]"],
    about: "Shows a volume: usage, how far history reaches, what recovery did, health",
    options: &[("--json", "everything, counters too, as JSON")],
    notes: "DIR may be any path on the volume and defaults to the current directory. A volume that is not mounted is only read.\n\
            DEVICE may be LABEL=NAME or UUID=... of a volume on block devices of this machine; nenrin probe lists them.\n\
            live, snapshots, promised, history, kept free and free are together all that its segments hold (in JSON space); available\n\
            is what is free, and history that goes when it is written to. shared is no part of it: what copies would take besides.",
    examples: &[
        ("info ~/work", "the volume mounted there"),
        ("info --json work.img", "a volume that need not be mounted"),
        ("info LABEL=backup", "the volume on a block device with this label"),
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
    let info = Target::find(path)?.info()?;
    if json {
        output::json(&info)?;
    } else {
        output::print(&report::show_volume(&info));
    }
    Ok(0)
}
