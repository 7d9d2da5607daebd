//! `nenrin clean`.

use crate::command::{Command, arguments};
use crate::control::{CleanData, CleanEstimateData, Client, Request};
use crate::ending::Ending;
use crate::error::{At as _, Fail, Outcome};
use crate::output::{self, Progress};
use crate::size::show_bytes;
use crate::sys;
use crate::target::Target;
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "clean",
    usage: &["clean [-n] [--json] [DIR]"],
    about: "Brings together what is scattered over half-empty segments now, so that whole segments become free, and puts files\n\
            in order that were written at random",
    options: &[("-n", "only tell what that would free, and what it would put in order"), ("--json", "as JSON")],
    notes: "A mounted volume cleans itself in the background when room is short or nobody uses it; nenrin info tells what the\n\
            cleaner does, or why it rests. What is available (df) counts garbage as free already: cleaning makes writing\n\
            faster later, but lets nothing more be stored.\n\
            Files are put in order only here: where parts of a file lie in runs shorter than 128 KiB they are copied, in order of\n\
            the file. Those that share blocks with other files (a plain cp) keep these where they are. Each file needs room\n\
            for its copy; below a quarter of what is available none is taken, so that no history goes and nobody who writes waits.\n\
            It can be interrupted at any time, and says what it did so far.\n\
            exit codes: 0 done, 1 not, or not all of it, as it says, 2 called wrongly, 130 interrupted, or unmounted meanwhile.",
    examples: &[
        ("clean -n ~/work", "what cleaning would free, and put in order"),
        ("clean ~/work", "clean now, with progress"),
    ],
    run,
};

/// Bytes moved between two answers.
const STEP_BYTES: u64 = 16 << 20;

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut json, mut only_tell) = (false, false);
    let given = arguments(&COMMAND, parser, 1, |flag, _| {
        match flag.shown().as_str() {
            "--json" => json = true,
            "-n" => only_tell = true,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let path = given.first().map_or(Path::new("."), Path::new);
    let mut target = Target::find(path)?;
    let owner = target.owner()?;
    if only_tell {
        return tell(path, json, &owner.call(&Request::CleanEstimate)?);
    }
    told(path, json, &clean(owner)?)
}

/// Says what was done.
fn told(path: &Path, json: bool, data: &CleanData) -> Outcome {
    let code = u8::from(data.out_of_room || data.left_files > 0);
    if json {
        output::json(data)?;
        return Ok(code);
    }
    let (freed, moved) = (show_bytes(data.freed_bytes), show_bytes(data.moved_bytes));
    let early = if data.out_of_room { "; it ended early, since no room was left to copy into" } else { "" };
    output::line(format!("{}: {freed} became free, {moved} moved{early}", path.display()));
    if data.ordered_bytes > 0 || data.left_files > 0 {
        let ordered = show_bytes(data.ordered_bytes);
        let left = match data.left_files {
            0 => String::new(),
            n => format!(
                "; {} in {} stay scattered: room is too short, or a device is slow",
                show_bytes(data.left_bytes),
                files(n)
            ),
        };
        output::line(format!(
            "{}: {} put in order, {ordered} moved for that{left}",
            path.display(),
            files(data.ordered_files)
        ));
    }
    Ok(code)
}

fn files(count: u64) -> String {
    if count == 1 { "1 file".into() } else { format!("{count} files") }
}

fn tell(path: &Path, json: bool, would: &CleanEstimateData) -> Outcome {
    if json {
        output::json(would)?;
    } else {
        output::line(format!(
            "{}: {} segments would be emptied, about {} become free, {} be moved",
            path.display(),
            would.segments,
            show_bytes(would.freed_bytes),
            show_bytes(would.moved_bytes)
        ));
        let (count, bytes) = (files(would.scattered_files), show_bytes(would.scattered_bytes));
        output::line(format!("{}: {count} would be put in order, as far as there is room: {bytes}", path.display()));
    }
    Ok(0)
}

/// What was done, for who ends it.
fn so_far(data: &CleanData) -> String {
    let [freed, moved, ordered] = [data.freed_bytes, data.moved_bytes, data.ordered_bytes].map(show_bytes);
    format!(
        "{freed} became free, {moved} moved, {} put in order ({ordered}), which stays so; it does not go on, and what is left \
         the next one does, or the mount in the background",
        files(data.ordered_files)
    )
}

fn clean(owner: &mut Client) -> Result<CleanData, Fail> {
    let mut progress = Progress::new();
    let (mut begin, run) = (true, sys::random_number().at("/dev/urandom")?);
    let ending = Ending::told("nothing was moved yet").at("signals")?;
    loop {
        let step = owner.call(&Request::Clean { begin, run, bytes: STEP_BYTES });
        let data: CleanData = step.map_err(|why| owner.unless_left(why, &ending.said()))?;
        if data.done {
            return Ok(data);
        }
        begin = false;
        ending.say(so_far(&data));
        if !data.ordering {
            progress.at("cleaning", data.moved_bytes, data.moved_bytes_expected);
        } else if data.looked {
            progress.at("putting files in order", data.ordered_bytes + data.left_bytes, data.scattered_bytes);
        } else {
            progress.show(|| format!("looking for scattered files: {} so far", data.scattered_files));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_all_done_is_no_success() {
        let data = |out_of_room, left_files| CleanData {
            done: true,
            out_of_room,
            moved_bytes: 0,
            moved_bytes_expected: 0,
            freed_bytes: 0,
            ordering: false,
            looked: true,
            scattered_files: left_files,
            scattered_bytes: 0,
            ordered_files: 0,
            ordered_bytes: 0,
            left_files,
            left_bytes: left_files * 4096,
        };
        for json in [false, true] {
            for (out_of_room, left_files, code) in [(false, 0, 0), (true, 0, 1), (false, 2, 1)] {
                assert_eq!(told(Path::new("mnt"), json, &data(out_of_room, left_files)), Ok(code));
            }
        }
    }
}
