//! `nenrin-sim`: runs the simulator from the command line.

use lexopt::prelude::*;
use nenrin_core::{Barrier, Order};
use nenrin_sim::config::Config;
use nenrin_sim::driver::{Cut, Failure, Plan, Tally, record};
use nenrin_sim::fault::{self, FaultPlan};
use nenrin_sim::subject::Subject;
use nenrin_sim::workload::Profile;
use std::process::ExitCode;
use std::time::Instant;

const HELP: &str = "\
nenrin-sim: power cuts against a model

  nenrin-sim run [--seeds A..B] [--minutes M] [--images N] [--json] [SETTINGS] [--choices N] [--deep N]
                 [--faults N] [--keep-going]
      Runs the workloads of these seeds and recovers from every cut, until the
      seeds, the minutes or the distinct images are used up.
  nenrin-sim replay --seed S [SETTINGS] [--cut K --choice C [--cut2 K --choice2 C]] [--fault KIND:N] [--verbose]
      Shows one failure again; with --verbose, the calls that led to it.

SETTINGS: --order relaxed|strict  --barrier sync|checkpoint|none  --steps N  --profile NAME
          --device BYTES  --segment-blocks N  --remounts true|false
Exit code 0: nothing wrong; 1: a failure, shown with the line that replays it; 2: bad arguments.
";

type Core = std::sync::Arc<nenrin_core::Fs>;

#[derive(Default)]
struct Arguments {
    first: u64,
    last: Option<u64>,
    minutes: Option<f64>,
    images: Option<u64>,
    json: bool,
    verbose: bool,
    keep_going: bool,
    faults: u64,
    fault: Option<FaultPlan>,
    plan: Plan,
    cut: [(Option<usize>, Option<u64>); 2],
    order: Option<Order>,
    barrier: Option<Barrier>,
    steps: Option<usize>,
    profile: Option<Profile>,
    device: Option<u64>,
    segment_blocks: Option<u32>,
    remounts: Option<bool>,
}

impl Arguments {
    fn parse(mut parser: lexopt::Parser) -> Result<Self, lexopt::Error> {
        let mut a = Self { faults: 4, ..Self::default() };
        while let Some(arg) = parser.next()? {
            match arg {
                Long("seeds") => {
                    let text = parser.value()?.string()?;
                    let (from, to) = text.split_once("..").ok_or("--seeds takes A..B")?;
                    a.first = from.parse().map_err(|_| "--seeds takes numbers")?;
                    a.last = Some(to.parse().map_err(|_| "--seeds takes numbers")?);
                }
                Long("seed") => {
                    a.first = parser.value()?.parse()?;
                    a.last = Some(a.first + 1);
                }
                Long("minutes") => a.minutes = Some(parser.value()?.parse()?),
                Long("images") => a.images = Some(parser.value()?.parse()?),
                Long("choices") => a.plan.choices = parser.value()?.parse()?,
                Long("deep") => a.plan.deep_every = parser.value()?.parse()?,
                Long("json") => a.json = true,
                Long("faults") => a.faults = parser.value()?.parse()?,
                Long("fault") => {
                    let text = parser.value()?.string()?;
                    a.fault = Some(FaultPlan::parse(&text).ok_or("--fault takes read|write|flush:N or :N+")?);
                }
                Long("keep-going") => a.keep_going = true,
                Long("verbose") => a.verbose = true,
                Long("cut") => a.cut[0].0 = Some(parser.value()?.parse()?),
                Long("choice") => a.cut[0].1 = Some(parser.value()?.parse()?),
                Long("cut2") => a.cut[1].0 = Some(parser.value()?.parse()?),
                Long("choice2") => a.cut[1].1 = Some(parser.value()?.parse()?),
                Long("steps") => a.steps = Some(parser.value()?.parse()?),
                Long("device") => a.device = Some(parser.value()?.parse()?),
                Long("segment-blocks") => a.segment_blocks = Some(parser.value()?.parse()?),
                Long("remounts") => a.remounts = Some(parser.value()?.parse()?),
                Long("order") => {
                    a.order = Some(match parser.value()?.string()?.as_str() {
                        "relaxed" => Order::Relaxed,
                        "strict" => Order::Strict,
                        _ => return Err("--order takes relaxed or strict".into()),
                    });
                }
                Long("barrier") => {
                    a.barrier = Some(match parser.value()?.string()?.as_str() {
                        "sync" => Barrier::Sync,
                        "checkpoint" => Barrier::Checkpoint,
                        "none" => Barrier::None,
                        _ => return Err("--barrier takes sync, checkpoint or none".into()),
                    });
                }
                Long("profile") => {
                    let name = parser.value()?.string()?;
                    a.profile = Some(Profile::named(&name).ok_or("unknown profile")?);
                }
                _ => return Err(arg.unexpected()),
            }
        }
        Ok(a)
    }

    fn config(&self, seed: u64) -> Config {
        let base = Config::of_seed(seed);
        Config {
            seed,
            steps: self.steps.unwrap_or(base.steps),
            order: self.order.unwrap_or(base.order),
            barrier: self.barrier.unwrap_or(base.barrier),
            profile: self.profile.or(base.profile),
            device_bytes: self.device.unwrap_or(base.device_bytes),
            segment_blocks: self.segment_blocks.unwrap_or(base.segment_blocks),
            remounts: self.remounts.unwrap_or(base.remounts),
        }
    }
}

fn run<S: Subject>(a: &Arguments) -> Result<Tally, Box<Failure>> {
    let begin = Instant::now();
    let mut total = Tally::default();
    let mut last_failure = None;
    let bounded = a.last.is_some() || a.minutes.is_some() || a.images.is_some();
    let last = a.last.unwrap_or(if bounded { u64::MAX } else { a.first + 100 });
    for seed in a.first..last {
        let late = a.minutes.is_some_and(|m| begin.elapsed().as_secs_f64() > m * 60.0);
        if late || a.images.is_some_and(|n| total.distinct >= n) {
            break;
        }
        let mut tally = Tally::default();
        let done = one_seed::<S>(a, seed, &mut tally);
        total.add(&tally);
        match done {
            Err(failure) if a.keep_going => {
                eprintln!("{failure}");
                last_failure = Some(failure);
            }
            other => other?,
        }
    }
    last_failure.map_or(Ok(total), Err)
}

fn one_seed<S: Subject>(a: &Arguments, seed: u64, tally: &mut Tally) -> Result<(), Box<Failure>> {
    let config = a.config(seed);
    let recorded = record::<S>(&config, false)?;
    recorded.cut_all::<S>(&a.plan, tally)?;
    for plan in fault::plans(seed, recorded.last_cut() - recorded.first_cut(), a.faults) {
        fault::run_with_fault::<S>(&config, plan, tally)?;
    }
    Ok(())
}

fn report(tally: &Tally, seconds: f64, json: bool) {
    let rate = tally.distinct as f64 / seconds;
    if json {
        let value = serde_json::json!({ "tally": tally, "seconds": seconds, "distinct_per_second": rate });
        println!("{value}");
        return;
    }
    println!(
        "workloads          {:>10}   calls {}, refused for want of space {}",
        tally.workloads, tally.calls, tally.refused
    );
    for (what, n) in &tally.activity {
        println!("  {what:<26} {n:>8}");
    }
    println!("crash images       {:>10}   distinct {}", tally.images, tally.distinct);
    for (kind, n) in &tally.by_choice {
        println!("  {kind:<26} {n:>8}");
    }
    println!("recoveries         {:>10}   past states compared {}", tally.recoveries, tally.past_states);
    println!("second lives       {:>10}   images cut from them {}", tally.second_lives, tally.second_images);
    for (what, n) in &tally.faults {
        println!("  {what:<26} {n:>8}");
    }
    println!("seconds            {seconds:>10.1}   distinct images per second {rate:.0}");
    println!("digest       {:016x}", tally.digest);
}

fn replay<S: Subject>(a: &Arguments) -> Result<Tally, Box<Failure>> {
    if let Some(plan) = a.fault {
        let mut tally = Tally::default();
        println!("{:?}", fault::run_with_fault::<S>(&a.config(a.first), plan, &mut tally)?);
        return Ok(tally);
    }
    let recorded = record::<S>(&a.config(a.first), a.verbose)?;
    for line in &recorded.trace {
        println!("{line}");
    }
    println!("cuts {}..={}", recorded.first_cut(), recorded.last_cut());
    let cut = |(at, choice): (Option<usize>, Option<u64>)| at.map(|at| Cut { at, choice: choice.unwrap_or(1) });
    if let Some(first) = cut(a.cut[0]) {
        return recorded.replay::<S>(first, cut(a.cut[1]), &a.plan);
    }
    let mut tally = Tally::default();
    recorded.cut_all::<S>(&a.plan, &mut tally)?;
    Ok(tally)
}

fn main() -> ExitCode {
    let mut parser = lexopt::Parser::from_env();
    let command = match parser.next() {
        Ok(Some(Value(v))) => v.string().unwrap_or_default(),
        Ok(Some(Long("help") | Short('h')) | None) => String::new(),
        _ => "?".to_owned(),
    };
    if command.is_empty() {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse(parser) {
        Ok(a) if matches!(command.as_str(), "run" | "replay") => a,
        Ok(_) => {
            eprintln!("nenrin-sim: unknown command {command}; see nenrin-sim --help");
            return ExitCode::from(2);
        }
        Err(e) => {
            eprintln!("nenrin-sim: {e}");
            return ExitCode::from(2);
        }
    };
    let begin = Instant::now();
    let done = if command == "run" { run::<Core>(&arguments) } else { replay::<Core>(&arguments) };
    match done {
        Ok(tally) => {
            report(&tally, begin.elapsed().as_secs_f64(), arguments.json);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{}", failure.detail);
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}
