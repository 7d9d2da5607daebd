//! `nenrin-sim`: runs the simulator from the command line.

use lexopt::prelude::*;
use nenrin_sim::cli::{self, Arguments, Core};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let mut parser = lexopt::Parser::from_env();
    let command = match parser.next() {
        Ok(Some(Value(v))) => v.string().unwrap_or_default(),
        Ok(Some(Long("help") | Short('h')) | None) => String::new(),
        _ => "?".to_owned(),
    };
    if command.is_empty() {
        print!("{}", cli::HELP);
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse(parser) {
        Ok(a) if matches!(command.as_str(), "run" | "replay" | "operations") => a,
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
