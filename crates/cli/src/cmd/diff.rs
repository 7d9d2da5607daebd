//! `nenrin diff`.

use crate::command::{Command, arguments};
use crate::control::{DiffResult, Request};
use crate::error::Outcome;
use crate::output::{self, printable};
use crate::when;
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "diff",
    usage: &["diff [--json] DIR FROM [TO]"],
    about: "Tells what differs below a directory between two states",
    options: &[("--json", "as JSON")],
    notes: "FROM and TO are states of the past: the number of a checkpoint, a snapshot's name, a time (the newest state not\n\
            later), or \"10 minutes ago\"; without TO, what there is now. Letters: + came, - went, M was modified (content or\n\
            attributes; of a directory: its entries), R was renamed.",
    examples: &[
        ("diff ~/work monday", "since the snapshot monday"),
        ("diff ~/work/src '1 hour ago' '10 minutes ago'", "between two times"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut json = false;
    let given = arguments(&COMMAND, parser, 3, |flag, _| {
        json |= flag.is("--json");
        Ok(flag.is("--json"))
    })?;
    let text = |n: usize| given.get(n).map(|t| t.to_string_lossy().into_owned());
    let (Some(dir), Some(from)) = (given.first(), text(1)) else {
        return Err(COMMAND.misuse("a directory and a state to compare with are needed"));
    };
    let (mut owner, _, path) = super::history::inside(Path::new(dir))?;
    let result: DiffResult = owner.call(&Request::Diff { path, from, to: text(2) })?;
    if json {
        output::json(&result)?;
    } else {
        let to =
            result.to.as_ref().map_or("now".into(), |c| format!("checkpoint {} of {}", c.cno, when::show(c.nanos)));
        output::notice(format!("checkpoint {} of {} and {to}", result.from.cno, when::show(result.from.nanos)));
        for d in &result.differences {
            let slash = if d.kind == "directory" { "/" } else { "" };
            match &d.from {
                Some(from) => {
                    output::line(format!("{} {}{slash} -> {}{slash}", d.change, printable(from), printable(&d.path)))
                }
                None => output::line(format!("{} {}{slash}", d.change, printable(&d.path))),
            }
        }
    }
    Ok(0)
}
