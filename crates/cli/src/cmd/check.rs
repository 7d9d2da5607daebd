//! `nenrin check`, and what `fsck.nenrin` shares with it.

use crate::command::{Command, arguments};
use crate::error::{FAILURE, Fail, Outcome, USAGE};
use crate::output::{self, Progress, printable};
use crate::repair::{self, How};
use crate::states::tell_path;
use crate::{device, members, report, tag};
use nenrin_core::check::{Finding, Severity, Step, What};
use nenrin_core::{CheckOptions, CheckReport, check};
use nenrin_device::OpenMode;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The command.
pub const COMMAND: Command = Command {
    name: "check",
    usage: &["check [--data] [-n] [--json] DEVICE...", "check --repair [-n] [--yes] [--json] DEVICE..."],
    about: "Verifies a volume that is not mounted for writing, and with --repair mends it",
    options: &[
        ("--data", "read all content too and verify its checksums"),
        ("--repair", "plan a repair, list every loss by path, ask, and write the repaired state"),
        ("-n", "change nothing: with --repair, only the plan"),
        ("--yes", "with --repair: do not ask"),
        ("--json", "findings and counts, or plan and losses, as JSON"),
    ],
    notes: "A volume recovers by itself when it is mounted, so no check is ever needed for that.\n\
            Of a volume of several devices one is enough where the others are files in the same directory, or block devices of\n\
            this machine; otherwise name all, since a repair goes on without a mirror's device that was neither named nor found.\n\
            DEVICE may be LABEL=NAME or UUID=... of a volume on block devices of this machine; nenrin probe lists them.\n\
            Findings, losses (8xx) and what is mended without loss (9xx) have stable numbers; notes mean no harm.\n\
            --repair reads all content and plans completely before it writes; it writes into free segments only, so that a\n\
            power cut leaves the volume as it was, or repaired. What has no second copy and no trace is lost; names and\n\
            files of which only a part is left are in /lost+found. Ranges that are lost read as errors, never as zeros;\n\
            only in files under /lost+found that lost their inode, what was not found may be a hole. Copy the device first if you can.\n\
            Where part of the log is missing, a file that grew since is lost from where it ended before,\n\
            unless the log says what is there: a hole may be among that. It also loses set-user-id, set-group-id and capabilities.\n\
            Where no root is left, or none with a whole index, that is sought on the device and the log behind it\n\
            is taken in; snapshots are lost then.\n\
            It refuses to write when another host mounted the volume since the plan was made.\n\
            fsck.nenrin repairs nothing, with -y neither: it checks, and with -a or -p only looks whether there is a root.\n\
            exit codes, as fsck(8): 0 clean, 1 repaired, 4 damage found or left, 8 it could not run, 16 called wrongly.",
    examples: &[
        ("check --data work.img", "verifies everything"),
        ("check -n /dev/sdb1", "verifies the index and the log"),
        ("check LABEL=backup", "the volume on a block device with this label"),
        ("check --repair -n work.img", "what a repair would do, and what is lost"),
        ("check --repair --yes work.img", "repairs it"),
        ("check --repair -n a/one.img b/two.img", "devices that lie in different directories"),
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
    let (mut data, mut json, mut repair, mut dry, mut yes) = (false, false, false, false, false);
    let given = arguments(&COMMAND, parser, usize::MAX, |flag, _| {
        match flag.shown().as_str() {
            "--data" => data = true,
            "--json" => json = true,
            "-n" => dry = true,
            "--yes" => yes = true,
            "--repair" => repair = true,
            _ => return Ok(false),
        }
        Ok(true)
    })
    .map_err(misuse)?;
    let named = tag::devices(&given).map_err(not_found)?;
    if named.is_empty() {
        return Err(misuse(COMMAND.misuse("a device is needed")));
    }
    if repair {
        let how = How { dry, yes, json };
        return repair::run(&named, how).map_err(|f| if f.code == USAGE { misuse(f) } else { f.with_code(COULD_NOT) });
    }
    if yes {
        return Err(misuse(COMMAND.misuse("--yes goes with --repair")));
    }
    check_devices(&named, data, json)
}

/// As fsck(8) counts.
pub fn misuse(fail: Fail) -> Fail {
    match fail.code {
        USAGE => fail.with_code(MISUSE),
        FAILURE => fail.with_code(COULD_NOT),
        _ => fail,
    }
}

/// The failure to tell which device is meant.
pub fn not_found(fail: Fail) -> Fail {
    if fail.code == USAGE { misuse(fail) } else { fail.with_code(COULD_NOT) }
}

/// Verifies, prints findings, and gives fsck's exit code.
pub fn check_device(path: &Path, data: bool, as_json: bool) -> Outcome {
    check_devices(&members::split(path), data, as_json)
}

fn check_devices(named: &[PathBuf], data: bool, as_json: bool) -> Outcome {
    verify(named, data, as_json).map_err(|f| f.with_code(COULD_NOT))
}

fn verify(named: &[PathBuf], data: bool, as_json: bool) -> Outcome {
    let devices = members::open_named(named, OpenMode::READER)?.devices;
    let path = &members::joined(named);
    let foreign = devices.first().and_then(device::foreign);
    let mut progress = Progress::new();
    let report = check(&devices, &CheckOptions { data }, &mut |p| progress.at(step(p.step), p.done, p.total));
    drop(progress);
    let report = report.map_err(|e| device::describe_volume(path, foreign, &e))?;
    if as_json {
        output::json(&as_value(&report))?;
    } else {
        show(path, &report, data);
    }
    // Nobody takes for clean what could not be told.
    output::failed().map_or(Ok(if report.clean() { 0 } else { DAMAGED }), Err)
}

/// What is under way, for progress.
pub fn step(step: Step) -> &'static str {
    match step {
        Step::Index => "index",
        Step::Live => "live state",
        Step::History => "history",
        Step::Owners => "owners of blocks",
        Step::Data => "content",
        Step::Parity => "parity",
    }
}

fn severity(finding: &Finding) -> &'static str {
    match finding.what.severity() {
        Severity::Error => "error",
        Severity::Note => "note",
    }
}

fn show(path: &Path, found: &CheckReport, data: bool) {
    for finding in &found.findings {
        output::line(format!("{} {}", severity(finding), printable(&finding.to_string())));
    }
    let more = found.total() - found.findings.len() as u64;
    if more > 0 {
        output::line(format!("and {more} more"));
    }
    let c = &found.counts;
    let verdict = match (found.errors, found.notes) {
        (0, 0) => "clean".to_owned(),
        (0, notes) => format!("clean, {notes} notes"),
        (errors, notes) => format!("{errors} errors, {notes} notes"),
    };
    let content = if data { format!(", {} blocks of content", c.blocks_verified) } else { String::new() };
    output::line(format!(
        "{}: {verdict}; {} inodes, {} names, {} checkpoints, {} index nodes{content} verified",
        path.display(),
        c.inodes,
        c.names,
        c.checkpoints,
        c.nodes
    ));
    if let Some(left) = found.scrubbed.as_ref().and_then(report::scrub_problem).filter(|_| !data) {
        output::line(format!("{}: {left}; --data reads all of it", path.display()));
    }
    if let Some(next) = next(found) {
        output::line(format!("{}: what to do: {next}", path.display()));
    }
}

/// What to do about what was found, if anything.
fn next(report: &CheckReport) -> Option<&'static str> {
    let errors: Vec<What> = report.kinds.keys().copied().filter(|w| w.severity() == Severity::Error).collect();
    // Of these something else is right, which a volume in use finds by itself.
    let has_copy = |w: &What| {
        use What::{ContentCopyDamaged, NodeCopyDamaged, ParityWrong, RootCopyDamaged, SlotDamaged, SlotStale};
        [SlotDamaged, SlotStale, RootCopyDamaged, NodeCopyDamaged, ContentCopyDamaged, ParityWrong].contains(w)
    };
    let is_of_content = |w: &What| {
        use What::{ContentDamaged, ContentLost, ContentUnreadable, TailNotZero};
        [ContentDamaged, ContentUnreadable, ContentLost, TailNotZero].contains(w)
    };
    match errors.as_slice() {
        [] => None,
        all if all.iter().all(|w| *w == What::DeviceAbsent || has_copy(w)) && all.contains(&What::DeviceAbsent) => {
            Some("mount it with all of its devices; one that is lost, nenrin device replace puts another in place of")
        }
        all if all.iter().all(has_copy) => {
            Some("mount it and run nenrin scrub: it writes anew what is right elsewhere")
        }
        all if all.iter().all(|w| is_of_content(w) || has_copy(w) || *w == What::DeviceAbsent) => {
            Some(repair::BRING_BACK)
        }
        _ => Some(
            "nenrin check --repair -n plans a repair and lists what would be lost; copy the devices first if you can",
        ),
    }
}

/// With the path that it is about, if there is one; beside one that is no text its bytes.
pub fn with_path(mut told: Value, path: Option<&[u8]>) -> Value {
    if let Some(path) = path {
        tell_path(&mut told, "path", Path::new(OsStr::from_bytes(path)));
    }
    told
}

fn as_value(report: &CheckReport) -> Value {
    let finding = |f: &Finding| {
        let told = json!({
            "number": f.what.number(),
            "name": f.what.name(),
            "severity": severity(f),
            "text": f.text,
            "meaning": f.what.meaning(),
            "path": null,
            "ino": f.ino.map(|i| i.0),
            "addr": f.addr.map(|a| a.to_string()),
        });
        with_path(told, f.path.as_deref())
    };
    let c = &report.counts;
    json!({
        "clean": report.clean(),
        "errors": report.errors,
        "notes": report.notes,
        "what_to_do": next(report),
        "scrubbed": report.scrubbed.as_ref().map(report::scrubbed),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "counts": {
            "inodes": c.inodes,
            "directories": c.directories,
            "names": c.names,
            "orphans": c.orphans,
            "live_items": c.live_items,
            "history_items": c.history_items,
            "space_items": c.space_items,
            "nodes": c.nodes,
            "live_blocks": c.live_blocks,
            "history_blocks": c.history_blocks,
            "checkpoints": c.checkpoints,
            "segments": c.segments,
            "blocks_verified": c.blocks_verified,
        },
    })
}
