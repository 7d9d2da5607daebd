//! `nenrin device`.

use super::laying::{self, NewDevice};
use super::replace::{self, Wishes};
use crate::command::{Command, arguments, text_value};
use crate::control::DeviceData;
use crate::error::{Fail, Outcome};
use crate::output::{self, printable, table};
use crate::size::show_bytes;
use crate::target::Target;
use std::ffi::OsString;
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "device",
    usage: &[
        "device list [--json] [DIR|DEVICE]",
        "device add [--size SIZE] [--sparse] [--force] [--json] [DIR] DEVICE",
        "device remove [--cancel] [--json] [DIR] DEVICE",
        "device replace [--force] [--json] [DIR] OLD NEW",
        "device replace --cancel [DIR]",
        "device forgive [--json] [DIR] DEVICE",
    ],
    about: "Lists the devices of a volume, adds, removes or replaces one while it is in use",
    options: &[
        ("--size SIZE", "add: make an image file of this size"),
        ("--sparse", "add: do not reserve the host's space for it"),
        ("--force", "add, replace: whatever is on the new device now is lost; needed where mkfs needs it"),
        (
            "--cancel",
            "remove: the device stays, what was moved comes back; replace: the new device is not used after all",
        ),
        ("--json", "as JSON"),
    ],
    notes: "active: everything is on it. joining: it is being brought up to date, in the background. absent: it is not there, has\n\
            failed, or misses something; a mount that has it brings it up to date. leaving, shrinking: what lies on it, or behind\n\
            its new end, is being moved. slow: others wait for it, and do more than four times as much without it, so what is new goes to\n\
            these while there is room (under single and stripe). An image that was deleted or renamed while mounted says so.\n\
            Under single and stripe a device that is added is no second copy of anything, and no profile can be changed later.\n\
            Adding and removing moves what has to lie elsewhere: under single nothing when one is added; under the others\n\
            everything, so that all of it is spread over all devices. It goes on in the background when the command is interrupted,\n\
            and with the next mount; the volume is whole all the time. A device of the volume can be told by its number, also when\n\
            it is absent: digits alone are that, ./2 is a file. It is free when the command has ended, its content is not wiped.\n\
            replace: NEW takes the place of OLD, a path or a number of the list, and has to be as long as what is used of OLD; of a\n\
            longer one nenrin resize uses the rest. It gets what is written from the beginning, what was there before is copied.\n\
            Under mirror and parity OLD may be gone. It goes on when the command is interrupted, and begins anew by the same command\n\
            with --force when the volume was unmounted meanwhile; until it has ended the volume is on OLD. Then OLD is free; its\n\
            content is not wiped. Where some could be read nowhere it says so and the exit code is 1: keep OLD then.\n\
            An image that was cut to less than is used of it is told, and what lay behind is had from others where they have it:\n\
            truncate -s to its length and nenrin scrub bring it back; -o degraded mounts without it, as if it were not there.\n\
            read errors, wrong blocks, write errors: what a device failed to give, gave otherwise than it was written while another\n\
            had it right, and failed to take, since it is a member. forgive: these are counted anew, as after another cable.",
    examples: &[
        ("device list ~/work", "the volume mounted there"),
        ("device list /dev/sdb1", "a volume that need not be mounted; its other devices are found"),
        ("device list LABEL=backup", "the same, by the label of the volume"),
        ("device add ~/work /dev/sdd1", "one more device, with progress"),
        ("device add --size 10G ~/work ~/more.img", "the same with an image file, which is made"),
        ("device remove ~/work /dev/sdb1", "moves everything to the others, then lets it go"),
        ("device replace ~/work /dev/sdb1 /dev/sdd1", "with progress; the volume is in use meanwhile"),
        ("device replace /srv 2 /dev/sdd1", "a device that is gone, by its number"),
    ],
    run,
};

/// The options that each of them takes.
const TAKES: [(&str, &[&str]); 5] = [
    ("list", &["--json"]),
    ("add", &["--size", "--sparse", "--force", "--json"]),
    ("remove", &["--cancel", "--json"]),
    ("replace", &["--cancel", "--force", "--json"]),
    ("forgive", &["--json"]),
];

/// Refuses an option that is another's: what was asked for by it would not be done.
fn takes_all(word: &str, flags: &[&str]) -> Result<(), Fail> {
    let Some((_, takes)) = TAKES.iter().find(|(of, _)| *of == word) else { return Ok(()) };
    match flags.iter().find(|flag| !takes.contains(*flag)) {
        Some(flag) => Err(COMMAND.misuse(format!("device {word} takes no {flag}"))),
        None if word == "replace" && flags.contains(&"--cancel") && flags.iter().any(|flag| *flag != "--cancel") => {
            Err(COMMAND.misuse("device replace --cancel takes no other option"))
        }
        None => Ok(()),
    }
}

/// What was given, of which each option is one that the first word takes.
fn given(parser: &mut lexopt::Parser) -> Result<(Vec<OsString>, Vec<&'static str>, NewDevice), Fail> {
    let (mut flags, mut size) = (Vec::new(), None);
    let words = arguments(&COMMAND, parser, usize::MAX, |flag, parser| {
        flags.push(match flag.shown().as_str() {
            "--json" => "--json",
            "--cancel" => "--cancel",
            "--force" | "-f" => "--force",
            "--sparse" => "--sparse",
            "--size" | "-s" => {
                size = Some(laying::size("--size", &text_value(parser)?)?);
                "--size"
            }
            _ => return Ok(false),
        });
        Ok(true)
    })?;
    takes_all(words.first().and_then(|word| word.to_str()).unwrap_or_default(), &flags)?;
    let new = NewDevice { size, force: flags.contains(&"--force"), sparse: flags.contains(&"--sparse") };
    Ok((words, flags, new))
}

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (words, flags, new) = given(parser)?;
    let [as_json, cancel] = ["--json", "--cancel"].map(|flag| flags.contains(&flag));
    let wishes = Wishes { force: new.force, json: as_json };
    let words: Vec<&std::ffi::OsStr> = words.iter().map(AsRef::as_ref).collect();
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
        [add, device] if *add == "add" => return laying::add(Path::new("."), Path::new(device), &new, as_json),
        [add, place, device] if *add == "add" => {
            return laying::add(Path::new(place), Path::new(device), &new, as_json);
        }
        [remove, device] if *remove == "remove" => return laying::remove(Path::new("."), device, cancel, as_json),
        [remove, place, device] if *remove == "remove" => {
            return laying::remove(Path::new(place), device, cancel, as_json);
        }
        [forgive, device] if *forgive == "forgive" => return laying::forgive(Path::new("."), device, as_json),
        [forgive, place, device] if *forgive == "forgive" => return laying::forgive(Path::new(place), device, as_json),
        [] => return Err(COMMAND.misuse("list, add, remove, replace or forgive is needed")),
        [word, ..] if *word == "forgive" => return Err(COMMAND.misuse("device forgive takes a directory and a device")),
        [word, ..] if *word == "add" => return Err(COMMAND.misuse("device add takes a directory and a device")),
        [word, ..] if *word == "remove" => return Err(COMMAND.misuse("device remove takes a directory and a device")),
        [list, _, more, ..] if *list == "list" => {
            let more = more.to_string_lossy();
            return Err(COMMAND.misuse(format!("device list takes one directory or device; {more:?} is one more")));
        }
        [other, ..] => {
            let other = other.to_string_lossy();
            let text = format!("{other:?} is not understood: list, add, remove, replace or forgive is needed");
            return Err(COMMAND.misuse(text));
        }
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
            d.wrong_blocks.to_string(),
            d.write_errors.to_string(),
            d.path.as_deref().map(printable).unwrap_or_default(),
            d.why.as_deref().map(printable).unwrap_or_default(),
        ]
    };
    let head = ["device", "state", "size", "read errors", "wrong blocks", "write errors", "path", "why"];
    table(&head, &devices.iter().map(row).collect::<Vec<_>>())
}
