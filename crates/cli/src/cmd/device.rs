//! `nenrin device`.

use super::replace::{self, Wishes};
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
    usage: &[
        "device list [--json] [DIR|DEVICE]",
        "device replace [--force] [--json] [DIR] OLD NEW",
        "device replace --cancel [DIR]",
    ],
    about: "Lists the devices of a volume, and replaces one while it is in use",
    options: &[
        ("--force", "replace: whatever is on the new device is lost"),
        ("--cancel", "replace: the new device is not used after all"),
        ("--json", "as JSON"),
    ],
    notes: "active: everything is on it. joining: it is being brought up to date, in the background. absent: it is not there, has\n\
            failed, or misses something; a mount that has it brings it up to date. Adding and removing devices is not built yet.\n\
            replace: NEW takes the place of OLD, a path or a number of the list, and has to be as long as what is used of OLD. It\n\
            gets what is written from the beginning, what was there before is copied. Under mirror OLD may be gone. It goes on when\n\
            the command is interrupted, and begins anew by the same command when the volume was unmounted meanwhile; until it has\n\
            ended the volume is on OLD. Then OLD is free; its content is not wiped.",
    examples: &[
        ("device list ~/work", "the volume mounted there"),
        ("device list /dev/sdb1", "a volume that need not be mounted; its other devices are found"),
        ("device replace ~/work /dev/sdb1 /dev/sdd1", "with progress; the volume is in use meanwhile"),
        ("device replace /srv 2 /dev/sdd1", "a device that is gone, by its number"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut as_json, mut cancel, mut force) = (false, false, false);
    let given = arguments(&COMMAND, parser, usize::MAX, |flag, _| {
        match flag.shown().as_str() {
            "--json" => as_json = true,
            "--cancel" => cancel = true,
            "--force" => force = true,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let wishes = Wishes { force, json: as_json };
    let words: Vec<&std::ffi::OsStr> = given.iter().map(AsRef::as_ref).collect();
    let place = match words.as_slice() {
        [list] if *list == "list" => Path::new("."),
        [list, place] if *list == "list" => Path::new(place),
        [word, rest @ ..] if *word == "replace" => {
            return match rest {
                [] if cancel => replace::cancel(Path::new(".")),
                [place] if cancel => replace::cancel(Path::new(place)),
                [old, new] if !cancel => replace::replace(Path::new("."), old, Path::new(new), &wishes),
                [place, old, new] if !cancel => replace::replace(Path::new(place), old, Path::new(new), &wishes),
                _ => Err(COMMAND.misuse("device replace takes a directory, the device that goes and the new one")),
            };
        }
        [word, ..] if ["add", "remove"].iter().any(|w| w == word) => {
            let word = word.to_string_lossy();
            return Err(Fail::usage(format!(
                "device {word}: not built yet; copy the volume to one made with the devices you want"
            )));
        }
        [] => return Err(COMMAND.misuse("list or replace is needed")),
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
