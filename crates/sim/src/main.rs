//! `nenrin-sim`: runs the simulator from the command line.

use lexopt::prelude::*;
use nenrin_sim::cli::{self, Arguments, Core};
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
    let arguments = match Arguments::parse(parser) {
        #[cfg(feature = "breaks")]
        Ok(_) if command == "breaks" => return breaks(std::env::args().nth(2).as_deref()),
        Ok(a) if matches!(command.as_str(), "run" | "ace" | "scenarios" | "replay" | "operations") => a,
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
    let done = match command.as_str() {
        "run" => cli::run::<Core>(&arguments).map(Some),
        "ace" => cli::exhaustive::<Core>(&arguments).map(Some),
        "scenarios" => cli::scenarios::<Core>(&arguments).map(Some),
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

/// Takes away one thing after another and shows how that is noticed.
#[cfg(feature = "breaks")]
fn breaks(only: Option<&str>) -> ExitCode {
    let mut unnoticed = 0;
    for trial in nenrin_sim::breaks::TRIALS.iter().filter(|t| only.is_none_or(|name| t.name() == name)) {
        let begin = Instant::now();
        let line = format!("{:<5} {:<18}", trial.promises, trial.name());
        match trial.run() {
            Ok(n) => {
                println!(
                    "{line} noticed after {:>6} images, {:>5.1} s: {}",
                    n.images,
                    begin.elapsed().as_secs_f64(),
                    n.what
                )
            }
            Err(e) => {
                unnoticed += 1;
                println!("{line} {e}");
            }
        }
    }
    if unnoticed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
