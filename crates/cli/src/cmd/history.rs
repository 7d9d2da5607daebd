//! `nenrin history`.

use crate::command::{Command, arguments};
use crate::control::{Client, mount_of_directory, owner_of_directory};
use crate::error::{Fail, Outcome};
use crate::mounts::Mount;
use crate::shelf::Shelf;
use crate::teller::Teller;
use crate::{output, states};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// The command.
pub const COMMAND: Command = Command {
    name: "history",
    usage: &["history [--json] PATH"],
    about: "Lists the states of a file or directory that can be gone back to",
    options: &[("--json", "as JSON")],
    notes: "Numbers like 3..7 are the checkpoints that show one state: any of them brings it back. The name is\n\
            followed: over files that replace each other under it, over renames of what it stands for now and of the\n\
            directories above it, and after it was removed. A state is there as long as a checkpoint that shows it is kept:\n\
            \"kept until\" is what the rule says (nenrin retention); a full volume may let unnamed ones go before. A version\n\
            that stood longer than those around it outlives the checkpoints that showed it, and is called a landmark then. \"by\" is\n\
            the user who last wrote the content. Who neither mounted the volume nor is root gets what the states let him see, without\n\
            renames, and without \"by\" and \"kept until\". A state is seen below .nenrin/at/CHECKPOINT/ in the root of the mount, and\n\
            brought back by nenrin restore.",
    examples: &[
        ("history ~/work/report.txt", "each state of it, oldest first"),
        ("history --json ~/work/gone.txt", "of something that was removed, too"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut json = false;
    let given = arguments(&COMMAND, parser, 1, |flag, _| {
        json |= flag.is("--json");
        Ok(flag.is("--json"))
    })?;
    let path = given.first().map(Path::new).ok_or_else(|| COMMAND.misuse("a path is needed"))?;
    let (mut teller, _, inside) = told_by(path)?;
    let list = teller.history(&inside, path)?;
    if json {
        output::json(&list)?;
    } else {
        output::print(&states::show(&list, &inside.to_string_lossy()));
    }
    Ok(0)
}

/// The owner of the volume that `path` lies or lay on, its mount, and the path from its root.
///
/// # Errors
/// It is on no volume, or on one whose owner does not answer.
pub fn inside(path: &Path) -> Result<(Client, Mount, PathBuf), Fail> {
    let (there, gone) = existing(path)?;
    let (owner, mount, real) = owner_of_directory(&there)?;
    let inside = from_root(&mount, &real, &gone).ok_or_else(|| Fail::at(path.display(), "cannot be resolved"))?;
    Ok((owner, mount, inside))
}

/// As [`inside`], with whoever tells of the past.
///
/// # Errors
/// As there; the mount shows none.
pub fn told_by(path: &Path) -> Result<(Teller, Mount, PathBuf), Fail> {
    let (there, gone) = existing(path)?;
    let (owner, mount, real) = mount_of_directory(&there)?;
    let inside = from_root(&mount, &real, &gone).ok_or_else(|| Fail::at(path.display(), "cannot be resolved"))?;
    let teller = match owner {
        Some(owner) => Teller::Owner(owner),
        None => Teller::Mount(Shelf::of(&mount)?),
    };
    Ok((teller, mount, inside))
}

/// The path from the root of the volume of what is `gone` below `real`.
pub(super) fn from_root(mount: &Mount, real: &Path, gone: &Path) -> Option<PathBuf> {
    let inside = mount.root.join(real.strip_prefix(&mount.point).ok()?).join(gone);
    Some(inside.components().filter(|c| matches!(c, Component::Normal(_))).collect())
}

/// The directory that is there and on the way to `path`, and the rest. The last part
/// is never followed, so that a link is asked about itself.
fn existing(path: &Path) -> Result<(PathBuf, PathBuf), Fail> {
    if path.as_os_str().is_empty() {
        return Err(Fail::usage("\"\": an empty path names nothing; . is the directory you are in"));
    }
    let is_directory = |p: &Path| std::fs::symlink_metadata(p).is_ok_and(|m| m.is_dir());
    if is_directory(path) {
        return Ok((path.to_owned(), PathBuf::new()));
    }
    let mut there = path.to_owned();
    let mut rest: Vec<OsString> = Vec::new();
    loop {
        let Some(name) = there.file_name().map(OsString::from) else {
            return Err(Fail::at(path.display(), "\"..\" behind what is not there cannot be resolved"));
        };
        rest.push(name);
        there.pop();
        if there.as_os_str().is_empty() {
            there.push(".");
        }
        // Links on the way are followed, as by everything else.
        match std::fs::metadata(&there) {
            Ok(meta) if meta.is_dir() => return Ok((there, rest.iter().rev().collect())),
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                let text = format!("{e}; a mount without allow_other is closed to others");
                return Err(Fail::at(there.display(), text));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_told_from_what_is_not() {
        let of = |p: &str| existing(Path::new(p)).unwrap();
        assert_eq!(of("/usr/bin"), ("/usr/bin".into(), "".into()));
        assert_eq!(of("/proc/self"), ("/proc".into(), "self".into()), "a link is asked about itself");
        assert_eq!(of("/usr/bin/env"), ("/usr/bin".into(), "env".into()));
        assert_eq!(of("/usr/gone/deep/file"), ("/usr".into(), "gone/deep/file".into()));
        assert_eq!(of("gone"), (".".into(), "gone".into()));
        assert_eq!(of("/"), ("/".into(), "".into()));
        assert_eq!(of("."), (".".into(), "".into()));
        assert!(existing(Path::new("/usr/gone/../file")).is_err());
        assert!(existing(Path::new("")).unwrap_err().to_string().contains("an empty path"));
    }
}
