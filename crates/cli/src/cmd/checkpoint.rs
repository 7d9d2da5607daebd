//! `nenrin checkpoint`.

use crate::command::{Command, arguments};
use crate::control::{CheckpointData, DeletedData, Request};
use crate::error::{Fail, Outcome};
use crate::size::show_bytes;
use crate::target::Target;
use crate::{output, report};
use std::ffi::OsStr;
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "checkpoint",
    usage: &[
        "checkpoint list [--json] [DIR|DEVICE]",
        "checkpoint create [--json] [DIR]",
        "checkpoint delete [--json] [DIR] CNO|A..B",
    ],
    about: "Lists the states that can be gone back to, makes one now, or lets some go",
    options: &[("--json", "as JSON")],
    notes: "A checkpoint is cut by itself every few seconds while something changes (checkpoint= of mount), unless there is no\n\
            room for history: info tells then. The one that create makes is on the device when it returns. Kept for good is\n\
            only what has a name: see snapshot. Of a file that a program has emptied and is writing anew it has the old\n\
            content, until that is closed or synced, for 30 seconds at most; create tells of how many (in JSON held_back_files), and\n\
            waits a second for those that were just closed. What the kernel still keeps, of shared mappings or\n\
            under cache=writeback, is brought in first: those pages of files that are open are read again afterwards.\n\
            delete lets those from A to B go, both included, that have no name and are not mounted; A.. and ..B are understood.\n\
            Their space comes back in the background.",
    examples: &[
        ("checkpoint list ~/work", "all states, oldest first"),
        ("checkpoint create ~/work", "one more, now"),
        ("checkpoint delete ~/work 100..200", "lets these go"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut json = false;
    let given = arguments(&COMMAND, parser, 3, |flag, _| {
        json |= flag.is("--json");
        Ok(flag.is("--json"))
    })?;
    let path = given.get(1).map_or(Path::new("."), Path::new);
    match given.first().and_then(|v| v.to_str()) {
        Some("list" | "create") if given.len() > 2 => {
            let more = given[2].to_string_lossy();
            return Err(COMMAND.misuse(format!("one directory or device is enough; {more:?} is one more")));
        }
        Some("list") => {
            let list = Target::find(path)?.checkpoints()?;
            if json {
                output::json(&list)?;
            } else {
                output::print(&report::show_checkpoints(&list));
            }
        }
        Some("create") => {
            let made: CheckpointData = Target::find(path)?.owner()?.call(&Request::CheckpointCreate { name: None })?;
            report::held_back(&made).iter().for_each(output::notice);
            if json {
                output::json(&made)?;
            } else {
                output::line(made.cno);
            }
        }
        Some("delete") => {
            let (path, range) = match &given[1..] {
                [range] => (Path::new("."), range),
                [dir, range] => (Path::new(dir), range),
                _ => return Err(COMMAND.misuse("delete needs the number of a checkpoint, or A..B")),
            };
            let (from, to) = range_of(range)?;
            let gone: DeletedData = Target::find(path)?.owner()?.call(&Request::CheckpointDelete { from, to })?;
            return shown(json, &gone, from == to);
        }
        Some(other) => {
            return Err(COMMAND.misuse(format!("{other:?} is not understood: list, create or delete is needed")));
        }
        None => return Err(COMMAND.misuse("list, create or delete is needed")),
    }
    Ok(0)
}

/// The first and the last of a range, either of which may be missing.
fn range_of(text: &OsStr) -> Result<(u64, u64), Fail> {
    let bad = || Fail::usage(format!("{}: the number of a checkpoint is needed, or A..B", text.to_string_lossy()));
    let text = text.to_str().ok_or_else(bad)?;
    let number = |t: &str, missing: Option<u64>| match missing {
        Some(n) if t.is_empty() => Ok(n),
        _ if t.bytes().all(|b| b.is_ascii_digit()) => t.parse().map_err(|_| bad()),
        _ => Err(bad()),
    };
    let (from, to) = match text.split_once("..") {
        Some((from, to)) if !(from.is_empty() && to.is_empty()) => {
            (number(from, Some(0))?, number(to, Some(u64::MAX))?)
        }
        Some(_) => return Err(bad()),
        None => (number(text, None)?, number(text, None)?),
    };
    if from > to {
        return Err(Fail::usage(format!("{text}: the first is behind the last")));
    }
    Ok((from, to))
}

/// What was let go. One that was asked for by its number and stays is a failure.
fn shown(json: bool, gone: &DeletedData, one: bool) -> Outcome {
    if json {
        output::json(gone)?;
    }
    if one && gone.deleted == 0 {
        return Err(match (gone.named.first(), gone.mounted.first()) {
            (Some(cno), _) => {
                Fail::new(format!("checkpoint {cno} is kept as a snapshot; nenrin snapshot delete lets it go"))
            }
            (_, Some(cno)) => Fail::new(format!("checkpoint {cno} is mounted; unmount it first")),
            _ => Fail::new("there is no such checkpoint; nenrin checkpoint list shows what there is"),
        });
    }
    if !json {
        let stay = match (gone.named.len(), gone.mounted.len()) {
            (0, 0) => String::new(),
            (n, 0) => format!("; {n} with a name stay"),
            (0, m) => format!("; {m} that are mounted stay"),
            (n, m) => format!("; {n} with a name and {m} that are mounted stay"),
        };
        let freed = show_bytes(gone.freed_bytes);
        output::line(format!("{} let go, {freed} of history become free in the background{stay}", gone.deleted));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let of = |t: &str| range_of(OsStr::new(t)).ok();
        assert_eq!([of("7"), of("3..9"), of("3.."), of("..9")], [(7, 7), (3, 9), (3, u64::MAX), (0, 9)].map(Some));
        for bad in ["", "..", "x", "3..x", "-1", "9..3", "1..2..3", "99999999999999999999"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
