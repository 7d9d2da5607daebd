//! `nenrin check`, and `fsck.nenrin`.

use crate::command::{Command, arguments};
use crate::device;
use crate::error::{At, Fail, Outcome};
use crate::output::{self, Progress};
use nenrin_device::OpenMode;
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "check",
    usage: &["check [--data] [-n] [--json] DEVICE"],
    about: "Verifies a volume that is not mounted for writing; changes nothing",
    options: &[
        ("--data", "read all content too and verify its checksums"),
        ("-n", "change nothing, which is so anyway"),
        ("--json", "findings as JSON"),
    ],
    notes: "A volume recovers by itself when it is mounted, so no check is ever needed for that.\n\
            exit codes, as fsck(8): 0 clean, 4 damage found, 8 the check could not run, 16 called wrongly.",
    examples: &[
        ("check --data work.img", "verifies everything"),
        ("check -n /dev/sdb1", "verifies the index and the log"),
    ],
    run,
};

/// Damage was found.
pub const DAMAGED: u8 = 4;
/// The check could not run.
pub const COULD_NOT: u8 = 8;
/// It was called wrongly.
pub const MISUSE: u8 = 16;

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut data, mut json) = (false, false);
    let given = arguments(&COMMAND, parser, 1, |flag, _| {
        match flag.shown().as_str() {
            "--data" => data = true,
            "--json" => json = true,
            "-n" => {}
            "--repair" => return Err(Fail::usage("--repair: this version only verifies")),
            _ => return Ok(false),
        }
        Ok(true)
    })
    .map_err(misuse)?;
    let [device] = given.as_slice() else { return Err(misuse(COMMAND.misuse("a device is needed"))) };
    check_device(Path::new(device), data, json)
}

/// As fsck(8) counts.
pub fn misuse(fail: Fail) -> Fail {
    if fail.code == crate::error::USAGE { fail.with_code(MISUSE) } else { fail }
}

/// Verifies, prints findings, and gives fsck's exit code.
pub fn check_device(path: &Path, data: bool, json: bool) -> Outcome {
    let could_not = |f: Fail| f.with_code(COULD_NOT);
    let device = device::open(path, OpenMode::READER).map_err(could_not)?;
    nenrin_core::probe(&*device)
        .and_then(|p| p.newest().map(drop))
        .map_err(|e| device::describe_volume(path, device::foreign(&device), &e))
        .map_err(could_not)?;
    let _ = (data, json);
    Err(could_not(Fail::at(path.display(), "this version cannot check yet")))
}
