//! `nenrin-fuzz`: hostile bytes from the command line.

use lexopt::prelude::*;
use nenrin_fuzz::{TARGETS, memory, runner};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

const HELP: &str = "\
nenrin-fuzz: hostile bytes for every decoder and for whole images

  nenrin-fuzz run [--target NAME] [--cases N] [--seconds S] [--seed S] [--jobs N] [--keep-going]
      Gives N random cases (or as many as there is time for) to each target.
  nenrin-fuzz replay TARGET HEX
      Gives one case to a target, and says what it changes.
  nenrin-fuzz corpus DIR
      Writes real structures to DIR/TARGET/, for a coverage-guided fuzzer to begin with.

Targets: slot partial records root node items image repair
Exit code 0: nothing wrong; 1: a failure, shown with the line that replays it; 2: bad arguments.
";

struct Arguments {
    target: Option<String>,
    cases: u64,
    seconds: f64,
    seed: u64,
    jobs: u64,
    keep_going: bool,
    rest: Vec<String>,
}

fn parse() -> Result<Arguments, lexopt::Error> {
    let mut a = Arguments {
        target: None,
        cases: u64::MAX,
        seconds: f64::MAX,
        seed: 1,
        jobs: 1,
        keep_going: false,
        rest: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("target") => a.target = Some(parser.value()?.string()?),
            Long("cases") => a.cases = parser.value()?.parse()?,
            Long("seconds") => a.seconds = parser.value()?.parse()?,
            Long("seed") => a.seed = parser.value()?.parse()?,
            Long("jobs") => a.jobs = parser.value()?.parse::<u64>()?.max(1),
            Long("keep-going") => a.keep_going = true,
            Long("help") | Short('h') => a.rest.push("help".into()),
            Value(v) => a.rest.push(v.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    if a.cases == u64::MAX && a.seconds == f64::MAX {
        a.cases = 10_000;
    }
    Ok(a)
}

fn run(a: &Arguments) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let wanted = |name: &str| a.target.as_deref().is_none_or(|t| t == name);
    let chosen: Vec<_> = TARGETS.iter().filter(|t| wanted(t.0)).collect();
    if chosen.is_empty() {
        eprintln!("nenrin-fuzz: there is no target {}", a.target.as_deref().unwrap_or_default());
        return ExitCode::from(2);
    }
    let seconds = a.seconds / chosen.len() as f64;
    for target in chosen {
        let begin = Instant::now();
        let done = AtomicU64::new(0);
        let work = |job: u64| {
            let share = a.cases / a.jobs;
            let enough = || begin.elapsed().as_secs_f64() > seconds;
            let first = job.saturating_mul(share);
            let mut seen = BTreeSet::new();
            let mut fails = |failure: runner::Failure| {
                // Each kind once: numbers aside.
                let kind: String = failure.what.chars().take(90).collect();
                if seen.insert(kind) {
                    eprintln!("{failure}");
                }
                a.keep_going
            };
            let n = runner::many(*target, a.seed, first..first.saturating_add(share), &enough, &mut fails);
            done.fetch_add(n, Ordering::Relaxed);
            seen.is_empty()
        };
        let good = std::thread::scope(|threads| {
            let others: Vec<_> = (1..a.jobs).map(|job| threads.spawn(move || work(job))).collect();
            let mine = work(0);
            others.into_iter().fold(mine, |all, t| all & t.join().unwrap_or(false))
        });
        let took = begin.elapsed().as_secs_f64();
        let n = done.load(Ordering::Relaxed);
        println!("{:<8} {n:>10} executions, {took:.1} s, {:.0} a second", target.0, n as f64 / took);
        if !good {
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn replay(rest: &[String]) -> ExitCode {
    let [_, name, text] = rest else { return usage("replay takes a target and a case") };
    let (Some(target), Some(case)) = (nenrin_fuzz::target(name), runner::unhex(text)) else {
        return usage("replay takes the name of a target, and a case in hexadecimal digits");
    };
    if nenrin_fuzz::is_of_images(name) {
        match nenrin_fuzz::image::altered(&case) {
            Ok((_, said)) => println!("{}", said.join("\n")),
            Err(e) => println!("{e}"),
        }
    }
    match runner::one(target, &case) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// A few structures of each kind.
fn corpus(rest: &[String]) -> ExitCode {
    let [_, dir] = rest else { return usage("corpus takes a directory") };
    for (name, _) in TARGETS {
        let samples = runner::samples_of(name);
        let dir = std::path::Path::new(dir).join(name);
        let step = (samples.len() / 6).max(1);
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&dir)?;
            for (n, bytes) in samples.iter().step_by(step).enumerate() {
                std::fs::write(dir.join(format!("real-{n}")), bytes)?;
            }
            Ok(())
        };
        if let Err(e) = write() {
            eprintln!("nenrin-fuzz: {}: {e}", dir.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn usage(what: &str) -> ExitCode {
    eprintln!("nenrin-fuzz: {what}; see nenrin-fuzz --help");
    ExitCode::from(2)
}

fn main() -> ExitCode {
    let a = match parse() {
        Ok(a) => a,
        Err(e) => return usage(&e.to_string()),
    };
    runner::quiet_panics();
    match a.rest.first().map(String::as_str) {
        Some("run") => run(&a),
        Some("replay") => replay(&a.rest),
        Some("corpus") => corpus(&a.rest),
        None | Some("help") => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Some(other) => usage(&format!("unknown command {other}")),
    }
}
