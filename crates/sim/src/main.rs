//! `nenrin-sim`: runs the simulator from the command line.

use lexopt::prelude::*;
use nenrin_core::Barrier;
use nenrin_sim::cli::{self, Arguments, Core};
use nenrin_sim::config::barrier_named;
use nenrin_sim::cut_image::cut_image;
use nenrin_sim::cut_judge::Told;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    // Anywhere, as in `nenrin-sim run --help`.
    if std::env::args_os().skip(1).any(|a| a == "--help" || a == "-h") {
        print!("{}", cli::HELP);
        return ExitCode::SUCCESS;
    }
    let mut parser = lexopt::Parser::from_env();
    let command = match parser.next() {
        Ok(Some(Value(v))) => v.string().unwrap_or_default(),
        Ok(None) => String::new(),
        _ => "?".to_owned(),
    };
    if command.is_empty() {
        print!("{}", cli::HELP);
        return ExitCode::SUCCESS;
    }
    if command == "breaks" {
        return breaks(parser);
    }
    if command == "image" {
        return image(parser).unwrap_or_else(|text| wrong(&text));
    }
    if command == "judge" {
        return judge(parser).unwrap_or_else(|text| wrong(&text));
    }
    let arguments = match Arguments::parse(parser) {
        Ok(a) if command == "lives" && !a.lives_fit() => return wrong("of lives, only --life forget takes --devices"),
        Ok(a) if matches!(command.as_str(), "run" | "ace" | "scenarios" | "lives" | "replay" | "operations") => a,
        Ok(_) => return wrong(&format!("unknown command {command}; see nenrin-sim --help")),
        Err(e) => return wrong(&e.to_string()),
    };
    let begin = Instant::now();
    let done = match command.as_str() {
        "run" => cli::run::<Core>(&arguments).map(Some),
        "ace" => cli::exhaustive::<Core>(&arguments).map(Some),
        "scenarios" => cli::scenarios::<Core>(&arguments).map(Some),
        "lives" => cli::lives(&arguments).map(Some),
        "replay" => cli::replay::<Core>(&arguments).map(Some),
        _ => cli::operations::<Core>(&arguments).map(|()| None),
    };
    match done {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(tally)) => {
            cli::report(&tally, begin.elapsed().as_secs_f64(), arguments.json);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{}", failure.detail);
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the image of one cut under load to a file, and with `--told` to another what is promised of it.
fn image(mut parser: lexopt::Parser) -> Result<ExitCode, String> {
    let (mut seed, mut barrier, mut out, mut told) = (0, Barrier::Sync, None, None);
    while let Some(argument) = parser.next().map_err(|e| e.to_string())? {
        match argument {
            Long("seed") => seed = value(&mut parser)?.parse().map_err(|_| "--seed takes a number")?,
            Long("barrier") => barrier = barrier_named(&value(&mut parser)?)?,
            Long("out") => out = Some(value(&mut parser)?),
            Long("told") => told = Some(value(&mut parser)?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let out = out.ok_or("image: --out FILE is needed")?;
    let cut = match cut_image(seed, barrier) {
        Ok(made) => made,
        Err(e) => {
            eprintln!("nenrin-sim: image --seed {seed}: {e}");
            return Ok(ExitCode::FAILURE);
        }
    };
    cut.image.write_to(Path::new(&out)).map_err(|e| format!("{out}: {e}"))?;
    if let Some(told) = told {
        let text = serde_json::to_string(&cut.told).map_err(|e| e.to_string())?;
        std::fs::write(&told, text).map_err(|e| format!("{told}: {e}"))?;
    }
    println!("{}", serde_json::to_string(&cut.load).map_err(|e| e.to_string())?);
    Ok(ExitCode::SUCCESS)
}

/// Compares what a mount of such an image shows with what is promised of it.
fn judge(mut parser: lexopt::Parser) -> Result<ExitCode, String> {
    let (mut told, mut directory) = (None, None);
    while let Some(argument) = parser.next().map_err(|e| e.to_string())? {
        match argument {
            Long("told") => told = Some(value(&mut parser)?),
            Value(path) if directory.is_none() => directory = Some(Path::new(&path).to_owned()),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let told = told.ok_or("judge: --told FILE is needed")?;
    let directory = directory.ok_or("judge: the directory of the mount is needed")?;
    let text = std::fs::read_to_string(&told).map_err(|e| format!("{told}: {e}"))?;
    let all: Told = serde_json::from_str(&text).map_err(|e| format!("{told}: {e}"))?;
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))? {
        names.insert(entry.map_err(|e| e.to_string())?.file_name().to_string_lossy().into_owned());
    }
    let verdict = all.judge(&names, |name| std::fs::read(directory.join(name)).map_err(|e| format!("{name}: {e}")));
    println!("{}", serde_json::to_string(&verdict).map_err(|e| e.to_string())?);
    Ok(if verdict.mismatches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn value(parser: &mut lexopt::Parser) -> Result<String, String> {
    parser.value().and_then(|v| v.string()).map_err(|e| e.to_string())
}

/// Takes away one thing after another and shows how that is noticed.
#[cfg(feature = "breaks")]
fn breaks(mut parser: lexopt::Parser) -> ExitCode {
    use nenrin_sim::breaks::{SEEDS_MAX, TRIALS, Trial};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    let mut name = None;
    loop {
        match parser.next() {
            Ok(None) => break,
            Ok(Some(Long("list"))) => {
                TRIALS.iter().for_each(|t| println!("{} {}", t.promises, t.name()));
                return ExitCode::SUCCESS;
            }
            Ok(Some(Value(one))) if name.is_none() => name = Some(one.string().unwrap_or_default()),
            _ => return wrong("breaks takes the name of one break, or nothing"),
        }
    }
    let wanted = |t: &&Trial| name.as_ref().is_none_or(|n| t.name() == *n);
    let chosen: Vec<&Trial> = TRIALS.iter().filter(wanted).collect();
    if chosen.is_empty() {
        let all: Vec<String> = TRIALS.iter().map(Trial::name).collect();
        return wrong(&format!("there is no break {}; there are {}", name.unwrap_or_default(), all.join(", ")));
    }
    let (next, unnoticed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let close = Mutex::new(Vec::new());
    let work = || {
        while let Some(trial) = chosen.get(next.fetch_add(1, Relaxed)) {
            let begin = Instant::now();
            let found = trial.run();
            let seconds = begin.elapsed().as_secs_f64();
            let line = format!("{:<5} {:<18}", trial.promises, trial.name());
            match found {
                Ok(n) => {
                    println!(
                        "{line} noticed after {:>6} images, {:>3} seeds, {seconds:>5.1} s: {}",
                        n.images, n.seeds, n.what
                    );
                    if let (true, Ok(mut all)) = (n.was_close(), close.lock()) {
                        all.push(format!("{} ({})", trial.name(), n.seeds));
                    }
                }
                Err(e) => {
                    unnoticed.fetch_add(1, Relaxed);
                    println!("{line} {e}");
                }
            }
        }
    };
    // A break is one thread's alone.
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(chosen.len());
    std::thread::scope(|s| (0..threads).for_each(|_| drop(s.spawn(work))));
    let unnoticed = unnoticed.into_inner();
    let close = close.into_inner().unwrap_or_default();
    if !close.is_empty() {
        println!("took more than a tenth of {SEEDS_MAX} seeds, and want a hunt of their own: {}", close.join(", "));
    }
    println!("{} of {} deliberate breaks were noticed", chosen.len() - unnoticed, chosen.len());
    if unnoticed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Programs that are shipped have no breaks in them.
#[cfg(not(feature = "breaks"))]
fn breaks(_: lexopt::Parser) -> ExitCode {
    wrong("breaks needs a build with them: cargo run --release -p nenrin-sim --features breaks -- breaks")
}

fn wrong(what: &str) -> ExitCode {
    eprintln!("nenrin-sim: {what}");
    ExitCode::from(2)
}
