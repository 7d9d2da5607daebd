//! `nenrin check --repair`: the plan, the question, and carrying it out.

use crate::clock::HostClock;
use crate::cmd::check::{DAMAGED, step, with_path};
use crate::error::{Fail, Outcome};
use crate::output::{self, Progress, printable};
use crate::{device, members};
use nenrin_core::repair::{Loss, MendKind};
use nenrin_core::{RepairPlan, RepairReport};
use nenrin_device::OpenMode;
use serde_json::{Value, json};
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// What to do about content that is lost, which no repair brings back.
pub const BRING_BACK: &str = "no repair brings content back: remove the files that are named, or bring them back (nenrin restore of an \
                              earlier state, or a backup)";

/// Everything that was wrong is right now.
const REPAIRED: u8 = 1;

/// How to go about it.
#[derive(Clone, Copy, Default)]
pub struct How {
    /// Only the plan.
    pub dry: bool,
    /// Do not ask.
    pub yes: bool,
    /// As JSON.
    pub json: bool,
}

/// Plans, asks, repairs the volume on the devices that are named, and on those beside a single one; gives fsck's exit code.
pub fn run(named: &[PathBuf], how: How) -> Outcome {
    let mode = if how.dry { OpenMode::READER } else { OpenMode::OWNER };
    let devices = members::open_named(named, mode)?.devices;
    let path = &members::joined(named);
    let foreign = devices.first().and_then(device::foreign);
    let clock = HostClock::shared();
    let mut progress = Progress::new();
    let plan = RepairPlan::new(&devices, clock.as_ref(), &mut |p| progress.at(step(p.step), p.done, p.total));
    drop(progress);
    let plan = plan.map_err(|e| device::describe_volume(path, foreign, &e))?;
    let needed = plan.report().needed;
    if !how.json {
        show(path, plan.report());
    }
    // Nobody asked for losses that he could not be told.
    output::failed().map_or(Ok(()), Err)?;
    if needed && !how.dry && !how.yes && (how.json || !io::stdin().is_terminal()) {
        return Err(Fail::usage("nobody is there to be asked: give --yes to repair, or -n to see the plan"));
    }
    let go = needed && !how.dry && (how.yes || asked());
    let mut report = plan.report().clone();
    if go {
        report = plan.carry_out(clock).map_err(|e| Fail::at(path.display(), format!("the repair stopped: {e}")))?;
    }
    if go && report.copies_mended > 0 && !how.json {
        output::line(format!("{} copies on single devices were wrong and are written anew", report.copies_mended));
    }
    if how.json {
        output::json(&as_value(&report, go))?;
    } else if needed {
        let what = if go { "repaired" } else { "nothing was changed" };
        output::line(format!("{}: {what}", path.display()));
    }
    let code = match (needed && !go, report.leaves_damage(), go) {
        (true, ..) | (_, true, _) => DAMAGED,
        (_, _, true) => REPAIRED,
        _ => 0,
    };
    let done = if go { "; it was repaired all the same" } else { "" };
    output::failed().map_or(Ok(code), |f| Err(Fail { message: format!("{}{done}", f.message), ..f }))
}

fn asked() -> bool {
    let _ = write!(io::stderr().lock(), "Repair it? What is listed as lost cannot be brought back afterwards. [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

fn show(path: &Path, report: &RepairReport) {
    for loss in &report.losses {
        output::line(format!("loss {}", printable(&loss.to_string())));
    }
    let more = report.losses_total.saturating_sub(report.losses.len() as u64);
    if more > 0 {
        output::line(format!("and {more} more losses"));
    }
    for note in &report.absent {
        output::line(format!("without: {}", printable(note)));
    }
    for (kind, n) in &report.mends {
        output::line(format!("mend {} {}: {n}. {}", kind.number(), kind.name(), kind.meaning()));
    }
    let text = match (report.needed, report.losses_total) {
        (false, 0) => "nothing to repair".to_owned(),
        (false, n) => format!("nothing to repair; {n} losses that no repair can undo: {BRING_BACK}"),
        (true, 0) => "can be repaired without loss".to_owned(),
        (true, n) => format!("can be repaired, with {n} losses"),
    };
    output::line(format!("{}: {text}{}", path.display(), room(report)));
}

/// What of the volume is written.
fn room(report: &RepairReport) -> String {
    match (report.needed, report.segments_needed) {
        (false, _) => String::new(),
        (true, 0) => "; superblock slots are written, and no segment".to_owned(),
        (true, n) => format!("; at most {n} of {} free segments are written", report.segments_free),
    }
}

fn as_value(report: &RepairReport, repaired: bool) -> Value {
    let loss = |l: &Loss| {
        let told = json!({
            "number": l.kind.number(),
            "name": l.kind.name(),
            "meaning": l.kind.meaning(),
            "text": l.text,
            "path": null,
            "ino": l.ino.map(|i| i.0),
            "from": l.range.map(|r| r.0),
            "to": l.range.map(|r| r.1),
        });
        with_path(told, l.path.as_deref())
    };
    let mend = |(kind, n): &(MendKind, u64)| json!({ "number": kind.number(), "name": kind.name(), "meaning": kind.meaning(), "count": n });
    json!({
        "needed": report.needed,
        "repaired": repaired,
        "losses": report.losses.iter().map(loss).collect::<Vec<_>>(),
        "losses_total": report.losses_total,
        "mends": report.mends.iter().map(mend).collect::<Vec<_>>(),
        "absent": report.absent,
        "copies_mended": report.copies_mended,
        "segments_needed": report.segments_needed,
        "segments_free": report.segments_free,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_told_where_segments_are_written() {
        let of = |needed, segments_needed| {
            room(&RepairReport { needed, segments_needed, segments_free: 9, ..RepairReport::default() })
        };
        assert_eq!(of(false, 0), "");
        assert_eq!(of(true, 0), "; superblock slots are written, and no segment");
        assert_eq!(of(true, 7), "; at most 7 of 9 free segments are written");
    }
}
