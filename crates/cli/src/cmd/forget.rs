//! `nenrin forget`.

use super::history::inside;
use crate::command::{Command, arguments};
use crate::control::{Client, ForgetData, ForgetNameData, ForgetPlanData, Request};
use crate::error::{Fail, Outcome};
use crate::output::{self, Progress, printable};
use crate::size::show_bytes;
use crate::states::tell_path;
use crate::sys;
use serde_json::json;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// The command.
pub const COMMAND: Command = Command {
    name: "forget",
    usage: &["forget [-n] [--yes] [--json] PATH"],
    about: "Takes what was removed out of all of the past, snapshots too, and wipes it off the devices",
    options: &[
        ("-n", "only tell all that would go, and forget nothing"),
        ("--yes", "do not ask"),
        ("--json", "as JSON; needs --yes or -n"),
    ],
    notes: "What is there is not forgotten: remove it first, with the other names that are listed. Then everything that ever bore\n\
            PATH goes, whole: all its versions, in snapshots too, and what was ever below it. What it takes along is listed\n\
            first, and nothing brings it back; so is what had the name while a directory above it had another, which stays\n\
            until that path is forgotten, too. Then every segment that may hold a byte of it is emptied and zeroed, which\n\
            reads the whole volume and writes much of it; if that is interrupted, or the power fails, it goes on in the\n\
            background with the next mount, and nenrin info tells so. Of what came and went between two checkpoints, or kept no\n\
            history (user.nenrin.history), no state has the name: then nothing is forgotten, all that is free is wiped, and\n\
            the exit code is 1, since a path that was mistyped is as unknown. With --json, paths that are no text have their bytes\n\
            beside them (path_bytes, shared_with_bytes, elsewhere_bytes).\n\
            Only root may, and who mounted the volume where all of it is his: where root mounted it, root alone. What it cannot\n\
            reach: blocks that a copy made by cp or restore shares (it is named), what a flash device keeps besides, devices that\n\
            were removed or replaced before, what lies behind the end of a device that was made shorter, copies that the host or\n\
            a backup made, and memory of programs and of the kernel, which drops what it keeps of past states.",
    examples: &[
        ("forget -n ~/work/secret.txt", "lists what would go, all of it"),
        ("forget ~/work/secret.txt", "lists what goes, asks, forgets and wipes"),
        ("forget --yes ~/work/gone.txt", "what was removed long ago, too"),
    ],
    run,
};

/// Bytes wiped between two answers.
const STEP_BYTES: u64 = 16 << 20;
/// Of what stays so many are listed one by one; of what goes all is.
const LISTED_MAX: usize = 20;

/// Of what no state has.
const MAY_BE_LEFT: &str =
    "what came and went between two checkpoints, or kept no history, may be left where the devices are free";

/// What no command can do.
const NOT_REACHED: &str = "not reached: what flash devices keep besides, devices removed or replaced before, what is behind the end of one made shorter, \
     copies on the host or in backups, and memory of programs and the kernel";

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut json, mut yes, mut only_tell) = (false, false, false);
    let given = arguments(&COMMAND, parser, 1, |flag, _| {
        match flag.shown().as_str() {
            "--json" => json = true,
            "-n" => only_tell = true,
            "--yes" => yes = true,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let path = given.first().map(Path::new).ok_or_else(|| COMMAND.misuse("a path is needed"))?;
    if only_tell && yes {
        return Err(COMMAND.misuse("-n forgets nothing, and takes no --yes"));
    }
    let (mut owner, inside) = volume_of(path)?;
    let plan: ForgetPlanData = owner.call(&Request::ForgetPlan { path: inside.clone(), only_tell })?;
    is_ones_own(path, &plan)?;
    if only_tell {
        return tell(path, &inside, &plan, json);
    }
    is_gone(path, &inside, &plan, json)?;
    if !yes {
        if json || !io::stdin().is_terminal() {
            return Err(Fail::at(path.display(), unasked(&plan)).with_code(crate::error::USAGE));
        }
        if !asked(question(path, &inside, &plan)) {
            output::line(format!("{}: nothing was changed", path.display()));
            return Ok(1);
        }
    }
    let forgotten: u64 = owner.call(&Request::Forget { path: inside, plan: plan.plan.clone() })?;
    let data = wipe(&mut owner)?;
    if json {
        let mut told = as_json(path, &plan);
        told["forgotten"] = forgotten.into();
        told["wiped"] = data.done.into();
        told["waits"] = json!(data.waits);
        output::json(&told)?;
    } else {
        told(path, forgotten, &plan, &data);
    }
    // Who mistyped a path must not take it for forgotten.
    Ok(u8::from(!data.done || plan.unknown.is_some()))
}

/// The owner of the volume that `path` lies on, and where it is there.
fn volume_of(path: &Path) -> Result<(Client, PathBuf), Fail> {
    let (owner, mount, inside) = inside(path)?;
    let of_past = owner.hello.mounts.iter().any(|m| m.device == mount.device && m.checkpoint.is_some());
    if owner.hello.read_only || mount.root != Path::new("/") || of_past {
        let text = "forgetting needs the writable mount of the volume's root";
        return Err(Fail::at(mount.point.display(), text));
    }
    if inside.as_os_str().is_empty() {
        let text = "is the root of the volume, which cannot be forgotten; forget what was removed from it";
        return Err(Fail::at(path.display(), text));
    }
    Ok((owner, inside))
}

/// All that would go, for who only asks; whether it could go now, the exit code says.
fn tell(path: &Path, inside: &Path, plan: &ForgetPlanData, json: bool) -> Outcome {
    if json {
        output::json(&as_json(path, plan))?;
    } else if plan.unknown.is_none() {
        list(path, inside, plan);
    }
    is_gone(path, inside, plan, true)?;
    match &plan.unknown {
        Some(why) => Err(Fail::at(path.display(), format!("{why}; {MAY_BE_LEFT}"))),
        None => Ok(0),
    }
}

/// Only who owns all that goes may forget it.
fn is_ones_own(path: &Path, plan: &ForgetPlanData) -> Result<(), Fail> {
    let me = sys::euid();
    if me != 0 && plan.owners.iter().any(|uid| *uid != me) {
        return Err(Fail::at(path.display(), "belongs to somebody else, now or in the past; only root may forget it"));
    }
    Ok(())
}

/// Only what is gone is forgotten. What is not is listed, unless it was.
fn is_gone(path: &Path, inside: &Path, plan: &ForgetPlanData, was_listed: bool) -> Result<(), Fail> {
    let there: Vec<_> = plan.names.iter().filter(|n| n.is_now).collect();
    let Some(first) = there.first() else { return Ok(()) };
    let what = match there.len() {
        1 => format!("{} is", first.path.display()),
        n => format!("{} and {} more names of it are", first.path.display(), n - 1),
    };
    if !was_listed {
        there.iter().for_each(|n| output::line(printable(&format!("  still there: {}", n.path.display()))));
    }
    let mut text = format!("{what} still there; remove what is there first, then forget it");
    if there.iter().any(|n| !n.path.starts_with(inside)) {
        text += "; to keep what lies elsewhere by now, forget the rest by its own paths instead";
    }
    Err(Fail::at(path.display(), text))
}

/// What would be asked, where nobody can be.
fn unasked(plan: &ForgetPlanData) -> String {
    let (what, to) = match &plan.unknown {
        Some(why) => (format!("{why}; {MAY_BE_LEFT}"), "wipe all that is free"),
        None => (summary(plan), "forget it"),
    };
    let more = plan.elsewhere.len().saturating_sub(LISTED_MAX);
    let named = plan.elsewhere.iter().take(LISTED_MAX).map(|then| stays(then));
    let what = named.chain((more > 0).then(|| format!("and {more} more"))).fold(what, |what, s| what + "; " + &s);
    format!("{what}; nobody is there to be asked: give --yes to {to}")
}

/// What is asked, behind a list of what goes.
fn question(path: &Path, inside: &Path, plan: &ForgetPlanData) -> &'static str {
    match &plan.unknown {
        Some(why) => {
            output::line(format!("{}: {why}; {MAY_BE_LEFT}", path.display()));
            some(plan.elsewhere.iter().map(|then| format!("  {}", stays(then))).collect());
            "No name is taken away by that. Wipe all that is free?"
        }
        None => {
            list(path, inside, plan);
            "Nothing brings it back. Forget it?"
        }
    }
}

fn as_json(path: &Path, plan: &ForgetPlanData) -> serde_json::Value {
    let name = |n: &ForgetNameData| {
        let mut told = json!({ "is_now": n.is_now });
        tell_path(&mut told, "path", &n.path);
        told
    };
    let mut all = json!({
        "known": plan.unknown.is_none(),
        "inodes": plan.inodes,
        "bytes": plan.bytes,
        "names": plan.names.iter().map(name).collect::<Vec<_>>(),
        "snapshots": plan.snapshots,
        "shared_with": plan.shared_with,
        "elsewhere": plan.elsewhere,
        "not_reached": NOT_REACHED,
    });
    tell_path(&mut all, "path", path);
    for (name, bytes) in [("shared_with_bytes", &plan.shared_with_bytes), ("elsewhere_bytes", &plan.elsewhere_bytes)] {
        if !bytes.is_empty() {
            all[name] = json!(bytes);
        }
    }
    all
}

fn told(path: &Path, forgotten: u64, plan: &ForgetPlanData, data: &ForgetData) {
    let forgotten = match &plan.unknown {
        Some(_) => "no state has anything of this name, so nothing was to be forgotten".to_owned(),
        None => format!("{} forgotten", count(forgotten, "file or directory", "files and directories")),
    };
    let what = format!("{}: {forgotten}", path.display());
    match &data.waits {
        Some(why) => output::line(format!("{what}, and not wiped yet: {why}; it goes on in the background")),
        None => output::line(format!("{what}, and all {} segments wiped", data.segments)),
    }
    some(plan.shared_with.iter().map(|other| format!("  blocks of it that {other} shares stay there")).collect());
    some(plan.elsewhere.iter().map(|then| format!("  {}", stays(then))).collect());
    output::line(format!("  {NOT_REACHED}"));
}

/// That something of another path is not taken along.
fn stays(then: &str) -> String {
    format!("{} had this name while a directory had another, and stays: forget that, too", printable(then))
}

fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// In one line what would go.
fn summary(plan: &ForgetPlanData) -> String {
    format!(
        "{} would go, with {}, from {}",
        count(plan.inodes, "file or directory", "files and directories"),
        count(plan.names.len() as u64, "name", "names"),
        count(plan.snapshots.len() as u64, "snapshot", "snapshots")
    )
}

/// Some of these rows, and how many there are beside.
fn some(rows: Vec<String>) {
    let more = rows.len().saturating_sub(LISTED_MAX);
    rows.iter().take(LISTED_MAX).for_each(|r| output::line(printable(r)));
    if more > 0 {
        output::line(format!("  and {more} more"));
    }
}

/// All that goes, for who is asked.
fn list(path: &Path, inside: &Path, plan: &ForgetPlanData) {
    output::line(format!("{}: {}, {} of content", path.display(), summary(plan), show_bytes(plan.bytes)));
    let when = |is_now: bool| if is_now { " (still there)" } else { " (in the past)" };
    for n in plan.names.iter().filter(|n| n.path != inside) {
        output::line(printable(&format!("  also named {}{}", n.path.display(), when(n.is_now))));
    }
    for c in &plan.snapshots {
        output::line(printable(&format!("  snapshot {} loses it", c.name.as_deref().unwrap_or_default())));
    }
    some(plan.shared_with.iter().map(|p| format!("  blocks that {p} shares stay there")).collect());
    some(plan.elsewhere.iter().map(|then| format!("  {}", stays(then))).collect());
}

fn asked(question: &str) -> bool {
    let mut out = io::stdout().lock();
    let _ = write!(out, "{} [y/N] ", printable(question));
    let _ = out.flush();
    drop(out);
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes" | "Yes")
}

/// Goes on until all that is being forgotten is wiped, or that cannot be now.
pub(super) fn wipe(owner: &mut Client) -> Result<ForgetData, Fail> {
    let mut progress = Progress::new();
    loop {
        let step = owner.call(&Request::ForgetStep { bytes: STEP_BYTES });
        let data: ForgetData = step.map_err(|why| owner.unless_left(why, "wiping goes on with the next mount"))?;
        if data.done || data.waits.is_some() {
            return Ok(data);
        }
        let what = if data.removing { "forgetting" } else { "wiping" };
        progress.at(what, data.segments - data.segments_left.min(data.segments), data.segments);
    }
}
