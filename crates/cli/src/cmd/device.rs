//! `nenrin device`.

use crate::command::{Command, arguments};
use crate::control::DeviceData;
use crate::error::{Fail, Outcome};
use crate::output::{self, printable, table};
use crate::size::show_bytes;
use crate::target::Target;
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "device",
    usage: &["device list [--json] [DIR|DEVICE]"],
    about: "Lists the devices of a volume and how each of them is",
    options: &[("--json", "as JSON")],
    notes: "active: everything is on it. joining: it is being brought up to date, in the background. absent: it is not there, has\n\
            failed, or misses something; a mount that has it brings it up to date. Adding, removing and replacing devices is not built yet.",
    examples: &[
        ("device list ~/work", "the volume mounted there"),
        ("device list /dev/sdb1", "a volume that need not be mounted; its other devices are found"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut as_json = false;
    let given = arguments(&COMMAND, parser, usize::MAX, |flag, _| {
        as_json |= flag.is("--json");
        Ok(flag.is("--json"))
    })?;
    let words: Vec<&std::ffi::OsStr> = given.iter().map(AsRef::as_ref).collect();
    let place = match words.as_slice() {
        [list] if *list == "list" => Path::new("."),
        [list, place] if *list == "list" => Path::new(place),
        [word, ..] if ["add", "remove", "replace"].iter().any(|w| w == word) => {
            let word = word.to_string_lossy();
            return Err(Fail::usage(format!(
                "device {word}: not built yet; copy the volume to one made with the devices you want"
            )));
        }
        [] => return Err(COMMAND.misuse("list is needed")),
        _ => return Err(COMMAND.misuse("device list takes one directory or device")),
    };
    let devices = Target::find(place)?.info()?.devices;
    if as_json {
        output::json(&devices)?;
    } else {
        output::print(&show(&devices));
    }
    Ok(0)
}

fn show(devices: &[DeviceData]) -> String {
    let row = |d: &DeviceData| {
        vec![
            d.number.to_string(),
            d.state.clone(),
            show_bytes(d.bytes),
            d.read_errors.to_string(),
            d.path.as_deref().map(printable).unwrap_or_default(),
            d.why.as_deref().map(printable).unwrap_or_default(),
        ]
    };
    let head = ["device", "state", "size", "read errors", "path", "why"];
    table(&head, &devices.iter().map(row).collect::<Vec<_>>())
}
