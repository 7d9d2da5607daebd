//! `nenrin scrub`.

use crate::command::{Command, arguments, text_value};
use crate::control::{Client, Request, ScrubData};
use crate::error::{Fail, Outcome};
use crate::output::{self, Progress, printable};
use crate::report;
use crate::size::{parse_bytes, show_bytes};
use crate::target::Target;
use nenrin_core::{Fs, Scrub};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The command.
pub const COMMAND: Command = Command {
    name: "scrub",
    usage: &["scrub [--rate SIZE] [--json] [DIR|DEVICE]"],
    about: "Reads and verifies everything on a volume in use, and mends what has a second copy",
    options: &[
        ("--rate SIZE", "read at most so much in a second (default 200M; 0: as fast as it goes)"),
        ("--json", "what was found as JSON"),
    ],
    notes: "Index nodes, roots and superblock slots have two copies; a damaged one is written anew elsewhere. Content has one:\n\
            damage is listed by path and offset, and stays until the file is written again or restored. A volume that is\n\
            not mounted, or mounted read-only, is verified and not changed. It can be interrupted at any time.\n\
            exit codes: 0 nothing wrong, 1 all damage was mended, 4 damage is left, 8 it could not run.",
    examples: &[
        ("scrub ~/work", "the volume mounted there"),
        ("scrub --rate 20M --json /srv/photos", "quietly, for a nightly job"),
    ],
    run,
};

/// Default of `--rate`.
const RATE_BYTES: u64 = 200 << 20;
/// Most that is read between two answers.
const STEP_BYTES_MAX: u64 = 16 << 20;

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut json, mut rate) = (false, RATE_BYTES);
    let given = arguments(&COMMAND, parser, 1, |flag, parser| {
        match flag.shown().as_str() {
            "--json" => json = true,
            "--rate" => {
                let text = text_value(parser)?;
                rate = if text == "0" { 0 } else { parse_bytes(&text).ok_or_else(|| bad_rate(&text))? };
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let path = given.first().map_or(Path::new("."), Path::new);
    let could_not = |f: Fail| f.with_code(super::check::COULD_NOT);
    let data = match Target::find(path).map_err(could_not)? {
        Target::Owner(mut owner) => paced(rate, |begin, bytes| step_of_owner(&mut owner, begin, bytes)),
        Target::Device(fs, _) => {
            let mut scrub = fs.scrub();
            paced(rate, |_, bytes| step_here(&fs, &mut scrub, bytes))
        }
    }
    .map_err(could_not)?;
    if json {
        output::json(&data)?;
    } else {
        show(path, &data);
    }
    Ok(match (data.has_losses, data.copies_damaged) {
        (true, _) => super::check::DAMAGED,
        (false, 0) => 0,
        (false, _) => 1,
    })
}

fn bad_rate(text: &str) -> Fail {
    Fail::usage(format!("--rate: {text:?} is no size; sizes are like 20M or 1G"))
}

fn step_of_owner(owner: &mut Client, begin: bool, bytes: u64) -> Result<ScrubData, Fail> {
    owner.call(&Request::Scrub { begin, bytes })
}

fn step_here(fs: &Fs, scrub: &mut Scrub, bytes: u64) -> Result<ScrubData, Fail> {
    fs.scrub_step(scrub, bytes).map_err(|e| Fail::new(e.to_string()))?;
    Ok(report::scrub(scrub))
}

/// Takes steps until all is done, no faster than `rate` bytes in a second.
fn paced(rate: u64, mut step: impl FnMut(bool, u64) -> Result<ScrubData, Fail>) -> Result<ScrubData, Fail> {
    let mut progress = Progress::new();
    let start = Instant::now();
    let bytes = if rate == 0 { STEP_BYTES_MAX } else { (rate / 8).clamp(1 << 20, STEP_BYTES_MAX) };
    let mut begin = true;
    loop {
        let data = step(begin, bytes)?;
        if data.done {
            return Ok(data);
        }
        begin = false;
        progress.at("scrubbing", data.bytes, data.bytes_expected);
        if rate > 0 {
            let due = Duration::from_secs_f64(data.bytes as f64 / rate as f64);
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }
}

fn show(path: &Path, data: &ScrubData) {
    for f in &data.findings {
        let place = match (&f.path, f.ino, f.offset) {
            (Some(path), _, Some(offset)) => format!("{path} at byte {offset}: "),
            (None, Some(ino), Some(offset)) => format!("inode {ino} at byte {offset}: "),
            _ => String::new(),
        };
        output::line(printable(&format!("error {place}{} ({})", f.text, f.addr)));
    }
    let told = data.findings.len() as u64;
    let all = data.nodes_lost + data.extents_damaged;
    if all > told {
        output::line(format!("and {} more", all - told));
    }
    let verdict = if data.has_losses {
        format!(
            "{} pieces of content and {} index nodes are damaged and have no second copy",
            data.extents_damaged, data.nodes_lost
        )
    } else if data.copies_damaged > 0 {
        "all damage was mended".to_owned()
    } else {
        "nothing is damaged".to_owned()
    };
    output::line(format!(
        "{}: {verdict}; {} of content and {} index nodes verified, {} copies damaged, {} mended",
        path.display(),
        show_bytes(data.blocks * 4096),
        data.nodes,
        data.copies_damaged,
        data.copies_mended
    ));
}
