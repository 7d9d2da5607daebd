//! `nenrin device`.

use super::laying::{self, NewDevice};
use crate::command::{Command, arguments, text_value};
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
        "device add [--size SIZE] [--sparse] [--force] [--json] [DIR] DEVICE",
        "device remove [--cancel] [--json] [DIR] DEVICE",
    ],
    about: "Lists the devices of a volume, adds one or removes one while it is in use",
    options: &[
        ("--size SIZE", "add: make an image file of this size"),
        ("--sparse", "add: do not reserve the host's space for it"),
        ("--force", "add: whatever is on the device now is lost"),
        ("--cancel", "remove: the device stays, what was moved comes back"),
        ("--json", "as JSON"),
    ],
    notes: "active: everything is on it. absent: it is not there, has failed, or misses something; a mount that has it brings it up to\n\
            date. leaving, shrinking: what lies on it, or behind its new end, is being moved.\n\
            Adding and removing moves what has to lie elsewhere: under single nothing when one is added; under stripe and mirror\n\
            everything, so that all of it is spread over all devices. It goes on in the background when the command is interrupted,\n\
            and with the next mount; the volume is whole all the time. A device to be removed can be told by its number, also when\n\
            it is absent; it is free when the command has ended, and its content is not wiped. Replacing is not built yet.",
    examples: &[
        ("device list ~/work", "the volume mounted there"),
        ("device list /dev/sdb1", "a volume that need not be mounted; its other devices are found"),
        ("device add ~/work /dev/sdd1", "one more device, with progress"),
        ("device add --size 10G ~/work ~/more.img", "the same with an image file, which is made"),
        ("device remove ~/work /dev/sdb1", "moves everything to the others, then lets it go"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut as_json, mut cancel, mut new) = (false, false, NewDevice::default());
    let given = arguments(&COMMAND, parser, usize::MAX, |flag, parser| {
        match flag.shown().as_str() {
            "--json" => as_json = true,
            "--cancel" => cancel = true,
            "--force" | "-f" => new.force = true,
            "--sparse" => new.sparse = true,
            "--size" | "-s" => new.size = Some(laying::size("--size", &text_value(parser)?)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let words: Vec<&std::ffi::OsStr> = given.iter().map(AsRef::as_ref).collect();
    let place = match words.as_slice() {
        [list] if *list == "list" => Path::new("."),
        [list, place] if *list == "list" => Path::new(place),
        [add, device] if *add == "add" => return laying::add(Path::new("."), Path::new(device), &new, as_json),
        [add, place, device] if *add == "add" => {
            return laying::add(Path::new(place), Path::new(device), &new, as_json);
        }
        [remove, device] if *remove == "remove" => return laying::remove(Path::new("."), device, cancel, as_json),
        [remove, place, device] if *remove == "remove" => {
            return laying::remove(Path::new(place), device, cancel, as_json);
        }
        [word, ..] if *word == "replace" => {
            return Err(Fail::usage("device replace: not built yet; add the new device, then remove the old one"));
        }
        [] => return Err(COMMAND.misuse("list, add or remove is needed")),
        [word, ..] if *word == "add" => return Err(COMMAND.misuse("device add takes a directory and a device")),
        [word, ..] if *word == "remove" => return Err(COMMAND.misuse("device remove takes a directory and a device")),
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
            if d.target_bytes == d.bytes || d.target_bytes == 0 {
                show_bytes(d.bytes)
            } else {
                format!("{} to {}", show_bytes(d.bytes), show_bytes(d.target_bytes))
            },
            d.read_errors.to_string(),
            d.path.as_deref().map(printable).unwrap_or_default(),
            d.why.as_deref().map(printable).unwrap_or_default(),
        ]
    };
    let head = ["device", "state", "size", "read errors", "path", "why"];
    table(&head, &devices.iter().map(row).collect::<Vec<_>>())
}
