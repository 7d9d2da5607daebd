//! `nenrin diff`.

use crate::command::{Command, arguments};
use crate::control::{DiffResult, Request};
use crate::error::{At, Fail, Outcome};
use crate::output::{self, printable};
use crate::when;
use similar::TextDiff;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The command.
pub const COMMAND: Command = Command {
    name: "diff",
    usage: &["diff [--json] [--content] DIR FROM [TO]"],
    about: "Tells what differs below a directory between two states",
    options: &[("--content", "also what changed in files, as diff -u shows it"), ("--json", "as JSON")],
    notes: "FROM and TO are states of the past: the number of a checkpoint, a snapshot's name, a time (the newest state not\n\
            later), or \"10 minutes ago\"; without TO, what there is now. Letters: + came, - went, M was modified (content or\n\
            attributes; of a directory: its entries), R was renamed.",
    examples: &[
        ("diff ~/work monday", "since the snapshot monday"),
        ("diff ~/work/src '1 hour ago' '10 minutes ago'", "between two times"),
        ("diff --content ~/work/src '1 hour ago'", "line by line, for reading or patch(1)"),
    ],
    run,
};

/// Larger files are not compared line by line.
const TEXT_BYTES_MAX: u64 = 16 << 20;
/// How long the search for a small difference of one file may take; then it is a larger one.
const SEARCH_TIME: Duration = Duration::from_secs(2);

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut json, mut content) = (false, false);
    let given = arguments(&COMMAND, parser, 3, |flag, _| {
        json |= flag.is("--json");
        content |= flag.is("--content");
        Ok(flag.is("--json") || flag.is("--content"))
    })?;
    let text = |n: usize| given.get(n).map(|t| t.to_string_lossy().into_owned());
    let (Some(dir), Some(from)) = (given.first(), text(1)) else {
        return Err(COMMAND.misuse("a directory and a state to compare with are needed"));
    };
    let (mut owner, mount, path) = super::history::inside(Path::new(dir))?;
    let mut result: DiffResult = owner.call(&Request::Diff { path: path.clone(), from, to: text(2) })?;
    if content {
        let old = super::restore::state_root(&mount, result.from.cno)?.join(&path);
        let new = match &result.to {
            Some(to) => super::restore::state_root(&mount, to.cno)?,
            None => mount.point,
        };
        add_content(&mut result, &old, &new.join(&path))?;
    }
    if json {
        output::json(&result)?;
        return Ok(0);
    }
    let to = result.to.as_ref().map_or("now".into(), |c| format!("checkpoint {} of {}", c.cno, when::show(c.nanos)));
    output::notice(format!("checkpoint {} of {} and {to}", result.from.cno, when::show(result.from.nanos)));
    for d in &result.differences {
        let slash = if d.kind == "directory" { "/" } else { "" };
        match &d.from {
            Some(from) => {
                output::line(format!("{} {}{slash} -> {}{slash}", d.change, printable(from), printable(&d.path)));
            }
            None => output::line(format!("{} {}{slash}", d.change, printable(&d.path))),
        }
        if let Some(content) = &d.content {
            output::print(content);
        }
    }
    Ok(0)
}

/// Fills in what changed in files, read where both states are seen.
fn add_content(result: &mut DiffResult, old: &Path, new: &Path) -> Result<(), Fail> {
    for d in result.differences.iter_mut().filter(|d| d.kind == "file") {
        let was = (d.change != "+").then(|| old.join(d.from.as_deref().unwrap_or(&d.path)));
        let is = (d.change != "-").then(|| new.join(&d.path));
        let name = |prefix: &str, path: &str, there: bool| {
            if there { format!("{prefix}/{path}") } else { "/dev/null".into() }
        };
        let names = (name("a", d.from.as_deref().unwrap_or(&d.path), was.is_some()), name("b", &d.path, is.is_some()));
        d.content = content_diff(was.as_deref(), is.as_deref(), &names)?;
    }
    Ok(())
}

/// How two files differ, for patch(1); nothing where only attributes do.
fn content_diff(old: Option<&Path>, new: Option<&Path>, names: &(String, String)) -> Result<Option<String>, Fail> {
    let size = |path: Option<&Path>| path.map_or(Ok(0), |p| fs::symlink_metadata(p).map(|m| m.len()).at(p.display()));
    if size(old)?.max(size(new)?) > TEXT_BYTES_MAX {
        return Ok(Some(format!("{} and {} are too large to be compared line by line\n", names.0, names.1)));
    }
    let read = |path: Option<&Path>| path.map_or(Ok(Vec::new()), |p| fs::read(p).at(p.display()));
    let (old, new) = (read(old)?, read(new)?);
    if old == new {
        return Ok(None);
    }
    let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok() && !bytes.contains(&0);
    if !is_text(&old) || !is_text(&new) {
        return Ok(Some(format!("{} and {} differ, and are no text\n", names.0, names.1)));
    }
    let diff = TextDiff::configure().timeout(SEARCH_TIME).diff_lines(&old[..], &new[..]);
    let mut out = Vec::new();
    diff.unified_diff().header(&names.0, &names.1).to_writer(&mut out)?;
    Ok(Some(String::from_utf8_lossy(&out).into_owned()))
}
