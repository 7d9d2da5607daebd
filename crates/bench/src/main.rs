//! `nenrin-bench`: one harness and one result schema for every benchmark of the project.
//!
//! Contenders live on loop devices over fully written files of one disk and take turns slice by slice, so that what else
//! happens on the machine hits all of them; every slice waits for an idle machine first. See `workload` for the rows,
//! `schema` for what is written down, `slice` for the taking of turns.

mod aio;
mod args;
mod command;
mod contender;
mod disk;
mod error;
mod gate;
mod limit;
mod machine;
mod measured;
mod place;
mod report;
mod schema;
mod site;
mod slice;
mod stats;
mod sys;
mod watchdog;
mod workload;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::{Config, Task};
use crate::contender::Contender;
use crate::error::{Doing, Error, Result};
use crate::place::WorkDirectory;
use crate::schema::Results;
use crate::workload::{Group, groups};

const EXIT_INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let outcome = args::parse(std::env::args_os().skip(1)).and_then(|task| match task {
        Task::Print(text) => {
            say(&text);
            Ok(())
        }
        Task::Render(path) => render(&path),
        Task::Measure(config) => measure(*config),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Interrupted) => {
            eprintln!("nenrin-bench: interrupted; everything was unmounted and detached");
            ExitCode::from(EXIT_INTERRUPTED)
        }
        Err(error) => {
            eprintln!("nenrin-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints; a reader that went away (as `head` does) is no reason to leave mounts behind.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn render(path: &Path) -> Result<()> {
    let text = fs::read_to_string(path).doing(|| format!("reading {}", path.display()))?;
    let results: Results =
        serde_json::from_str(&text).map_err(|e| Error::Refused(format!("{}: {e}", path.display())))?;
    if results.schema_version != schema::VERSION {
        return Err(Error::Refused(format!("schema version {} is not known here", results.schema_version)));
    }
    for row in &results.rows {
        say(&report::table(row));
    }
    Ok(())
}

/// Contenders of a group that can run here; the others are noted.
fn able(group: &Group, config: &Config, notes: &mut BTreeSet<String>) -> Result<Vec<Contender>> {
    let named: Result<Vec<Contender>> = group.contenders.iter().map(|name| Contender::parse(name)).collect();
    let wanted = if config.contenders.is_empty() { named? } else { config.contenders.clone() };
    let mut able = Vec::new();
    for contender in wanted.into_iter().filter(|c| group.kinds.contains(&c.kind)) {
        match config.tools.missing(&contender) {
            Some(reason) => {
                if notes.insert(format!("{} left out: {reason}", contender.name)) {
                    eprintln!("nenrin-bench: {} is left out: {reason}", contender.name);
                }
            }
            None => able.push(contender),
        }
    }
    Ok(able)
}

fn check_space(work: &Path, config: &Config, most: usize) -> Result<()> {
    let space = sys::space(work).doing(|| format!("asking for the space of {}", work.display()))?;
    let there: u64 = (0..most).filter_map(|slot| fs::metadata(place::image(work, slot)).ok()).map(|m| m.len()).sum();
    let needed = (most as u64 * config.plan.device_bytes).saturating_sub(there) + (1 << 30);
    if needed > space.available {
        return Err(Error::Refused(format!(
            "{} needs {} MiB and has {} MiB: give a smaller --size, fewer --contenders or another --dir",
            work.display(),
            needed >> 20,
            space.available >> 20
        )));
    }
    Ok(())
}

fn measure(mut config: Config) -> Result<()> {
    if !sys::is_root() {
        return Err(Error::Refused("loop devices and mounts need root: run it with sudo".to_owned()));
    }
    let missing: Vec<&str> = ["losetup", "mount", "umount"].into_iter().filter(|p| !command::find(p)).collect();
    if !missing.is_empty() {
        return Err(Error::Refused(format!("{} missing: install util-linux and mount", missing.join(", "))));
    }
    let own = std::env::current_exe().ok();
    let program = |option: &str, given: Option<PathBuf>, beside: &str| {
        if let Some(path) = given.as_ref().filter(|path| !path.is_file()) {
            return Err(Error::Refused(format!("{option} {}: there is no such program", path.display())));
        }
        let usual = || Some(own.as_ref()?.parent()?.join(beside)).filter(|path| path.is_file());
        Ok(given.or_else(usual).and_then(|path| path.canonicalize().ok()))
    };
    config.tools.nenrin = program("--nenrin", config.tools.nenrin.take(), "nenrin")?;
    config.tools.bare = program("--bare", config.tools.bare.take(), "examples/bare")?;
    sys::catch_signals();
    sys::set_nice(config.nice).doing(|| "setting the priority".to_owned())?;
    let directory = WorkDirectory::open(&config.work, config.keep_images)?;
    fs::create_dir_all(&config.out).doing(|| format!("making {}", config.out.display()))?;
    // The harness steps into mounts and out of them again, to `/`.
    config.out = config.out.canonicalize().doing(|| format!("looking at {}", config.out.display()))?;

    let mut notes = BTreeSet::new();
    let mut todo = Vec::new();
    for group in groups(config.suite).into_iter().filter(|group| group.rows.iter().any(|row| config.wants(&row.name))) {
        let contenders = able(&group, &config, &mut notes)?;
        if !contenders.is_empty() {
            todo.push((group, contenders));
        }
    }
    let needed = |group: &Group, c: &[Contender]| {
        let devices = c.iter().map(|c| c.devices);
        if group.alone { devices.max().unwrap_or(0) } else { devices.sum() }
    };
    let most = todo.iter().map(|(group, c)| needed(group, c)).max().unwrap_or(0);
    if config.devices.is_empty() {
        check_space(&directory.path, &config, most)?;
    } else if config.devices.len() < most {
        let text = format!("--devices: {most} are needed for the contenders, {} were given", config.devices.len());
        return Err(Error::Refused(text));
    }

    let mut results = Results {
        schema: schema::NAME.to_owned(),
        schema_version: schema::VERSION,
        started: machine::now(),
        finished: String::new(),
        complete: false,
        settings: schema::Settings {
            arguments: config.arguments.clone(),
            slices: config.plan.slices,
            slice_ms: u64::try_from(config.budget.as_millis()).unwrap_or(u64::MAX),
            device_bytes: config.plan.device_bytes,
            walk_files: config.plan.walk_files,
            limit_iops: config.limit.iops,
            limit_bps: config.limit.bps,
            nice: config.nice,
            gate: config.gate.clone(),
        },
        machine: machine::collect(&directory.path),
        rows: Vec::new(),
        notes: notes.into_iter().collect(),
    };
    let contenders = todo.iter().flat_map(|(_, contenders)| contenders);
    results.machine.versions = contenders.filter_map(|c| config.tools.version(c)).collect();
    run_all(&config, &directory, &todo, &mut results)
}

fn run_all(
    config: &Config,
    directory: &WorkDirectory,
    todo: &[(Group, Vec<Contender>)],
    results: &mut Results,
) -> Result<()> {
    let mut bench = slice::Bench {
        plan: config.plan,
        budget: config.budget,
        tools: config.tools.clone(),
        work: directory.path.clone(),
        gate: gate::Gate::new(config.gate.clone(), machine::Processors),
        watchdog: watchdog::Watchdog::default(),
        devices: config.devices.clone(),
        limit: config.limit,
    };
    for (group, contenders) in todo {
        let rows = bench.run(group, contenders, |row| config.wants(row))?;
        for row in rows {
            say(&report::table(&row));
            results.rows.push(row);
        }
        save(config, results)?;
    }
    results.complete = true;
    save(config, results)?;
    let files = ["results.json", "results.md"].map(|name| config.out.join(name).display().to_string());
    say(&format!("\nwritten: {}\n", files.join(", ")));
    let failed: BTreeSet<&str> = results
        .rows
        .iter()
        .flat_map(|row| &row.contenders)
        .filter(|entry| entry.error.is_some())
        .map(|entry| entry.name.as_str())
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Error::Wrong(format!("without a complete result: {}", failed.into_iter().collect::<Vec<_>>().join(", "))))
}

fn save(config: &Config, results: &mut Results) -> Result<()> {
    results.finished = machine::now();
    results.machine.load_end = machine::load_average();
    let json = serde_json::to_string_pretty(results).map_err(|e| Error::Refused(e.to_string()))?;
    for (name, text) in [("results.json", json), ("results.md", report::markdown(results))] {
        let path = config.out.join(name);
        fs::write(&path, text).doing(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
