//! `nenrin retention`.

use crate::command::{Command, arguments};
use crate::control::Request;
use crate::error::Outcome;
use crate::output;
use crate::target::Target;
use serde_json::json;
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "retention",
    usage: &["retention show [--json] [DIR|DEVICE]", "retention set [--json] [DIR] RULE"],
    about: "Shows or sets how long the states that can be gone back to are kept",
    options: &[("--json", "as JSON")],
    notes: "A rule is a ladder of AGE:EVERY. Up to each age one checkpoint in so much time is kept, beyond the last age none;\n\
            \"all\" keeps each, the age \"forever\" ends never, and the rule \"default\" is 1h:all 1d:10m 7d:1h 30d:1d. Periods are in\n\
            s m h d w M Y. Snapshots are kept until they are deleted. The rule is applied every ten minutes. A clock that\n\
            jumps while the volume is mounted drops nothing for a day. How long it was not mounted the clock alone says: up to\n\
            a day of that is believed at once, also of a clock that was set forward meanwhile. A volume that becomes full lets\n\
            history of the files that have the most of it go before that, then the oldest. When checkpoints go, the versions\n\
            of single files that stood longest among their neighbours stay to the end of the next step, or of later ones:\n\
            landmarks, which nenrin history shows.\n\
            A directory or file can keep less: setfattr -n user.nenrin.history -v none DIR (or daily, or full), for itself\n\
            and what is made below from then on. Of what changes there only snapshots, or also the first checkpoint of\n\
            each day, keep how it was; other states say that they do not know it (\"stale file handle\"). Only its owner and\n\
            root set that.\n\
            A file that was closed to others (chmod) and then removed stays closed in the past as long as a state is kept that\n\
            shows it closed. When only states are left that show it open, they show it to others again; nenrin forget takes\n\
            out for good what must not be seen.",
    examples: &[
        ("retention show ~/work", "the rule in force"),
        ("retention set ~/work '1d:all 30d:1h forever:1d'", "keep more"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut as_json = false;
    let given = arguments(&COMMAND, parser, 3, |flag, _| {
        as_json |= flag.is("--json");
        Ok(flag.is("--json"))
    })?;
    let words: Vec<&std::ffi::OsStr> = given.iter().map(AsRef::as_ref).collect();
    let rule = match words.as_slice() {
        [show] if *show == "show" => Target::find(Path::new("."))?.retention()?,
        [show, dir] if *show == "show" => Target::find(Path::new(dir))?.retention()?,
        [set, rule] if *set == "set" => change(Path::new("."), rule)?,
        [set, dir, rule] if *set == "set" => change(Path::new(dir), rule)?,
        [set] if *set == "set" => return Err(COMMAND.misuse("a rule is needed, such as '1h:all 1d:10m 30d:1d'")),
        [] => return Err(COMMAND.misuse("show or set is needed")),
        [show, _, more, ..] if *show == "show" => {
            let more = more.to_string_lossy();
            return Err(COMMAND.misuse(format!("retention show takes one directory or device; {more:?} is one more")));
        }
        [other, ..] => return Err(COMMAND.misuse(format!("{} makes no sense here", other.to_string_lossy()))),
    };
    if as_json {
        output::json(&json!({ "retention": rule }))?;
    } else {
        output::line(rule);
    }
    Ok(0)
}

fn change(dir: &Path, rule: &std::ffi::OsStr) -> Result<String, crate::error::Fail> {
    let rule = rule.to_str().ok_or_else(|| COMMAND.misuse("the rule is no text"))?.to_owned();
    Target::find(dir)?.owner()?.call(&Request::SetRetention { rule })
}
