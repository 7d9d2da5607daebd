//! `nenrin`: makes, mounts and looks after volumes.
//!
//! Exit codes: 0 done, 1 failed, 2 called wrongly; `check` and the helpers by
//! name use those of fsck(8) and mount(8). Errors are one line on standard
//! error: what, where, what to do.

mod clock;
mod cmd;
mod command;
mod control;
mod daemon;
mod database;
mod describe;
mod device;
mod diff;
mod encode;
mod ending;
mod error;
mod fuller;
mod less;
mod libmount;
mod machine;
mod manual;
mod members;
mod mended;
mod mounts;
mod opening;
mod options;
mod output;
mod past;
mod patch;
mod personality;
mod remove;
mod repair;
mod report;
mod restore;
mod shelf;
mod signature;
mod size;
mod space;
mod states;
mod sys;
mod tag;
mod target;
mod teller;
mod then;
mod when;
mod written;

use error::{Fail, Outcome};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    sys::fail_at_file_size_limit();
    let mut arguments = std::env::args_os();
    let called = arguments.next().unwrap_or_default();
    let name = Path::new(&called).file_name().and_then(|n| n.to_str()).unwrap_or("nenrin").to_owned();
    let arguments: Vec<OsString> = arguments.collect();
    let (name, outcome) = match personality::run(&name, arguments.clone()) {
        Some(outcome) => (name, outcome),
        None => ("nenrin".to_owned(), run(arguments)),
    };
    let is_done = matches!(&outcome, Ok(0) | Err(Fail { code: 0, .. }));
    let outcome = output::failed().filter(|_| is_done).map_or(outcome, Err);
    match outcome {
        Ok(code) => code.into(),
        Err(fail) => {
            if fail.code != 0 {
                // Where that cannot be written the code has to do.
                let _ = writeln!(std::io::stderr().lock(), "{name}: {}", output::printable(&fail.to_string()));
            }
            fail.code.into()
        }
    }
}

fn run(arguments: Vec<OsString>) -> Outcome {
    let mut parser = lexopt::Parser::from_args(arguments);
    let word = match parser.next()? {
        None => {
            output::print(&overview());
            return Ok(error::USAGE);
        }
        Some(lexopt::Arg::Value(v)) => v,
        Some(lexopt::Arg::Short('h') | lexopt::Arg::Long("help")) => "help".into(),
        Some(lexopt::Arg::Short('V') | lexopt::Arg::Long("version")) => "version".into(),
        Some(other) => return Err(other.unexpected().into()),
    };
    match word.to_str() {
        Some("help") => help(&mut parser),
        Some("version") => {
            match parser.next()? {
                None => {}
                Some(lexopt::Arg::Long("help")) | Some(lexopt::Arg::Short('h')) => return explain("version"),
                Some(other) => return Err(other.unexpected().into()),
            }
            output::line(format!("nenrin {}", env!("CARGO_PKG_VERSION")));
            Ok(0)
        }
        Some(name) => (find(name)?.run)(&mut parser),
        None => Err(Fail::usage(format!("unknown command {word:?}; nenrin help lists them"))),
    }
}

fn find(name: &str) -> Result<&'static command::Command, Fail> {
    let found = cmd::ALL.iter().find(|c| c.name == name);
    found.copied().ok_or_else(|| Fail::usage(format!("unknown command {name:?}; nenrin help lists them")))
}

fn help(parser: &mut lexopt::Parser) -> Outcome {
    match parser.next()? {
        None => output::print(&overview()),
        Some(lexopt::Arg::Value(v)) => return explain(&v.to_string_lossy()),
        Some(lexopt::Arg::Long("man")) => manual::write(Path::new(&parser.value()?))?,
        Some(other) => return Err(other.unexpected().into()),
    }
    Ok(0)
}

fn explain(command: &str) -> Outcome {
    match OTHERS.iter().find(|(name, _)| command == *name) {
        Some((name, about)) => output::print(&format!("usage: nenrin {name}\n\n{about}.\n")),
        None => output::print(&find(command)?.help()),
    }
    Ok(0)
}

/// How a volume is named that is on a block device.
const BY_NAME: &str = "\
Where a command takes a DEVICE of a volume that there is, LABEL=NAME and UUID=... mean one, too;\nnenrin probe lists them.";
/// What somebody in need looks for.
const GOING_BACK: &str = "\
Overwrote a file?  nenrin history FILE, then nenrin restore FILE --at NUMBER --force
Deleted something? nenrin restore --list-deleted DIR, then nenrin restore DIR/NAME --at NUMBER
Is the volume full? Keep the state before anything is written: nenrin snapshot create --of NUMBER DIR NAME
Every state is also there to look at: MOUNTPOINT/.nenrin/at/NUMBER/
";
const EXIT_CODES: &str = "exit codes: 0 done, 1 failed, or not all of it done, 2 called wrongly, 130 interrupted; check has those of fsck(8),\n\
scrub 0 nothing wrong, 1 all damage mended, 4 damage left, 8 it could not run, and probe those of blkid(8).";
/// What needs no module of its own.
const OTHERS: [(&str, &str); 2] = [
    ("help", "Lists the commands, or explains one: nenrin help COMMAND; manual pages: nenrin help --man DIR"),
    ("version", "Prints the version"),
];

fn overview() -> String {
    let mut out = String::from("usage: nenrin COMMAND ...\n\ncommands:\n");
    let rows = cmd::ALL.iter().map(|c| (c.name, c.about));
    for (name, about) in rows.chain(OTHERS) {
        out.push_str(&format!("  {name:<12} {about}\n"));
    }
    out.push_str(&format!("\n{BY_NAME}\n\n{GOING_BACK}\n{EXIT_CODES}\n"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_explains_itself() {
        for c in cmd::ALL {
            let help = c.help();
            assert!(help.contains("usage: nenrin"), "{}", c.name);
            assert!(!c.examples.is_empty(), "{} has no example", c.name);
            for (call, _) in c.examples {
                assert!(call.starts_with(c.name), "{call:?} is an example of another command");
            }
            assert!(help.lines().all(|l| l.chars().count() <= 130), "{}: a line is too long", c.name);
            assert!(overview().contains(c.name));
        }
    }

    #[test]
    fn what_needs_no_module_explains_itself_too() {
        for (name, about) in OTHERS {
            assert!(overview().contains(about));
            assert_eq!(help(&mut lexopt::Parser::from_args([name])), Ok(0));
        }
        assert!(help(&mut lexopt::Parser::from_args(["nothing"])).is_err());
        for code in ["4 damage left", "8 it could not run", "130 interrupted"] {
            assert!(overview().contains(code), "{code}");
        }
    }

    #[test]
    fn readme_lists_every_command() {
        let readme = include_str!("../../../README.md");
        for c in cmd::ALL {
            assert!(
                readme.contains(&format!("nenrin {}", c.name)) || readme.contains(&format!("`{}`", c.name)),
                "{}",
                c.name
            );
        }
    }

    /// The table of defaults in docs/DESIGN.md, as far as defaults can be seen from here.
    #[test]
    fn design_states_the_defaults() {
        let design = include_str!("../../../docs/DESIGN.md");
        let table = design.split("## 12. Defaults").nth(1).unwrap();
        let o = nenrin_core::MountOptions::default();
        let seconds = |nanos: u64| nanos / 1_000_000_000;
        let mib = |bytes: usize| bytes >> 20;
        let segment = nenrin_core::SEGMENT_BLOCKS_DEFAULT as usize * nenrin_device::BLOCK_BYTES;
        for row in [
            format!("| smallest volume | {}iB ", size::show_bytes(nenrin_core::bytes_min()).replace('M', " M")),
            format!("| segment | {} MiB; ", mib(segment)),
            format!("| commit of everything received | within {} s |", seconds(o.commit_nanos)),
            format!("| checkpoints | every {} s ", seconds(o.checkpoint_nanos)),
            format!("| memory for clean index nodes | {} MiB |", mib(o.cache_bytes)),
            format!("| memory for content not yet written | {} MiB |", mib(o.dirty_bytes_max)),
            format!("| changed index nodes in memory | {}, ", o.dirty_nodes_max),
            format!("| content held in the index | files up to {} KiB |", nenrin_format::INLINE_BYTES_MAX >> 10),
        ] {
            assert!(table.contains(&row), "DESIGN.md does not say: {row}");
        }
    }
}
