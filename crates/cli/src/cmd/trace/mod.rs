//! `nenrin trace`: what reaches a block device, whatever file system is on it.

pub mod child;
pub mod html;
pub mod record;
pub mod report;
pub mod view;
pub mod volume;

use crate::command::Command;
use crate::error::{Fail, Outcome};
use nenrin_trace::TraceError;

/// The command.
pub const COMMAND: Command = Command {
    name: "trace",
    usage: &[
        "trace record --device DEV [--device DEV]... [-o FILE] [--for TIME] [-- COMMAND...]",
        "trace report [--json|--csv] [--html PAGE] [--data SIZE] [--volume DEVICE] FILE...",
    ],
    about: "Records and reports what any file system writes to its device: size, place and time of every request",
    options: &[
        ("--device DEV", "record: a block device, partition or loop device; may be given several times"),
        ("-o, --output FILE", "record: the trace to write (nenrin.trace)"),
        (
            "--for TIME",
            "record: end after so long, like 30s or 2m (COMMAND itself gets 10 s more); otherwise with COMMAND, or Ctrl-C",
        ),
        ("--data SIZE", "report: how much file data was written; the rest of what was written is metadata"),
        (
            "--volume DEVICE",
            "report: the nenrin volume that was recorded, or its image; tells what each write was, and of which file",
        ),
        ("--html PAGE", "report: write a page with plots, which needs nothing else"),
        ("--csv", "report: one line for each request"),
        ("--json", "as JSON"),
    ],
    notes: "Recording needs root, since it uses the kernel's tracepoints (in an instance of its own, removed at the end). Nothing is\n\
            installed, and no program is slowed down but by a few per cent. report also reads the text of blkparse and of biosnoop.\n\
            record ends with the exit code of COMMAND. Several files of one report are shown over each other in its plots.",
    examples: &[
        ("trace record --device /dev/sdb1 -o cp.trace -- cp -r photos /mnt", "what copying does to the device"),
        ("trace report --html cp.html cp.trace", "tables here, plots in a page"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    match parser.next()? {
        Some(lexopt::Arg::Value(v)) if v == "record" => record::run(parser),
        Some(lexopt::Arg::Value(v)) if v == "report" => report::run(parser),
        Some(lexopt::Arg::Short('h') | lexopt::Arg::Long("help")) => {
            crate::output::print(&COMMAND.help());
            Ok(0)
        }
        Some(lexopt::Arg::Value(v)) => Err(COMMAND.misuse(format!("{v:?}: record or report is needed"))),
        Some(other) => Err(other.unexpected().into()),
        None => Err(COMMAND.misuse("record or report is needed")),
    }
}

impl From<TraceError> for Fail {
    fn from(e: TraceError) -> Self {
        Self::new(e.to_string())
    }
}
