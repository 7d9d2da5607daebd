//! `nenrin snapshot`.

use crate::command::{Command, arguments, text_value};
use crate::control::{CheckpointData, Client, Request, owner_of_directory};
use crate::error::{Fail, Outcome};
use crate::target::Target;
use crate::when::{self, When};
use crate::{clock, output, report};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The command.
pub const COMMAND: Command = Command {
    name: "snapshot",
    usage: &[
        "snapshot create [--of CNO] [--json] [DIR] [NAME]",
        "snapshot list [--json] [DIR|DEVICE]",
        "snapshot delete [--json] [DIR] NAME",
    ],
    about: "Keeps a state of the volume by name, lists such states, or lets one go",
    options: &[
        ("--of CNO", "name this checkpoint, which has no name yet, instead of making a new one"),
        ("--json", "as JSON"),
    ],
    notes: "With one argument, create and delete take it for a directory if there is one of that name, else for the snapshot's\n\
            name. Without a name, create uses the time. A name must not look like a number or a time,\n\
            nor be a word for one (now, today, latest, oldest, ...), nor begin with @. Snapshots that have such a name are found by it.\n\
            What a listing says that a snapshot frees becomes available (df) when it alone is deleted; what two keep, with the\n\
            second. What unnamed checkpoints keep is available already: they go when room is short.\n\
            Content that the kernel still keeps, of shared mappings or under cache=writeback, is brought in first: those pages\n\
            of files that are open are read again afterwards.\n\
            Of a file that a program has emptied and is writing anew the state has the old content, until that is closed or\n\
            synced, for 30 seconds at most. create tells of how many (in JSON held_back_files), and waits a second for those that\n\
            were just closed.",
    examples: &[
        ("snapshot create ~/work monday", "keeps the state of now"),
        ("snapshot create --of 1234 ~/work before-upgrade", "keeps an earlier state"),
        ("snapshot delete ~/work monday", "lets it go; its space comes back in the background"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut json = false;
    let mut of = None;
    let given = arguments(&COMMAND, parser, 3, |flag, parser| {
        match flag.shown().as_str() {
            "--json" => json = true,
            "--of" => of = Some(number(&text_value(parser)?)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let (verb, rest) = given.split_first().ok_or_else(|| COMMAND.misuse("create, list or delete is needed"))?;
    if of.is_some() && (verb == "list" || verb == "delete") {
        return Err(COMMAND.misuse(format!("snapshot {} takes no --of", verb.to_string_lossy())));
    }
    match verb.to_str() {
        Some("list") if rest.len() <= 1 => {
            let path = rest.first().map_or(Path::new("."), Path::new);
            let list = Target::find(path)?.snapshots()?;
            if json {
                output::json(&list)?;
            } else {
                output::print(&report::show_snapshots(&list));
            }
            Ok(0)
        }
        Some("create") => {
            let (path, name) = place_and_name(rest)?;
            let name = match name {
                Some(name) => {
                    when::check_name(&name).map_err(Fail::usage)?;
                    name
                }
                None => name_of_now(),
            };
            let mut target = Target::find(&path)?;
            if of.is_none() {
                is_live(&path)?;
            }
            let made = create(target.owner()?, of, name)?;
            report::held_back(&made).iter().for_each(output::notice);
            shown(json, &made)
        }
        Some("delete") => {
            let (path, name) = place_and_name(rest)?;
            let name = name.ok_or_else(|| COMMAND.misuse("the snapshot's name is needed"))?;
            let gone: CheckpointData = Target::find(&path)?.owner()?.call(&Request::SnapshotDelete { name })?;
            if json { shown(true, &gone) } else { Ok(0) }
        }
        Some("list") => {
            let more = rest.get(1).map_or_else(String::new, |more| more.to_string_lossy().into_owned());
            Err(COMMAND.misuse(format!("snapshot list takes one directory or device; {more:?} is one more")))
        }
        _ => Err(COMMAND.misuse(format!("{verb:?} is not understood: create, list or delete is needed"))),
    }
}

fn number(text: &str) -> Result<u64, Fail> {
    match when::parse(text, 0) {
        Ok(When::Cno(n)) => Ok(n),
        _ => Err(Fail::usage(format!("--of {text}: the number of a checkpoint is needed"))),
    }
}

fn create(owner: &mut Client, of: Option<u64>, name: String) -> Result<CheckpointData, Fail> {
    match of {
        Some(cno) => owner.call(&Request::SnapshotName { cno, name }),
        None => owner.call(&Request::CheckpointCreate { name: Some(name) }),
    }
}

/// What there is now is not what a mount of the past shows.
fn is_live(path: &Path) -> Result<(), Fail> {
    if !path.is_dir() {
        return Ok(());
    }
    let (owner, mount, _) = owner_of_directory(path)?;
    let here = owner.hello.mounts.iter().find(|m| m.device == mount.device);
    here.and_then(|m| m.checkpoint).map_or(Ok(()), |cno| {
        let text = format!("shows checkpoint {cno}, not what there is now; --of {cno} names that one");
        Err(Fail::at(path.display(), text))
    })
}

fn shown(json: bool, c: &CheckpointData) -> Outcome {
    if json {
        output::json(c)?;
    } else {
        output::line(format!("{} {}", c.cno, c.name.as_deref().map(output::printable).unwrap_or_default()));
    }
    Ok(0)
}

/// The directory and the name, either of which may be missing.
fn place_and_name(given: &[OsString]) -> Result<(PathBuf, Option<String>), Fail> {
    let name = |v: &OsString| {
        v.to_str().map(str::to_owned).ok_or_else(|| Fail::usage(format!("{v:?}: a snapshot's name is UTF-8")))
    };
    match given {
        [] => Ok((".".into(), None)),
        [one] if Path::new(one).is_dir() => Ok((one.into(), None)),
        [one] => Ok((".".into(), Some(name(one)?))),
        [place, second, ..] => Ok((place.into(), Some(name(second)?))),
    }
}

/// The local time without blanks and colons: no form of WHEN.
fn name_of_now() -> String {
    format!("at-{}", when::show(clock::now()).replace(' ', "_").replace(':', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_now_is_a_name() {
        when::check_name(&name_of_now()).unwrap();
    }

    #[test]
    fn one_argument_is_a_directory_if_there_is_one() {
        let os = |s: &str| OsString::from(s);
        assert_eq!(place_and_name(&[os("/")]).unwrap(), ("/".into(), None));
        assert_eq!(place_and_name(&[os("monday")]).unwrap(), (".".into(), Some("monday".into())));
        assert_eq!(place_and_name(&[os("/"), os("monday")]).unwrap(), ("/".into(), Some("monday".into())));
    }
}
