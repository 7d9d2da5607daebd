//! Work that a program does: a database as its users run it, with a large copy beside it where the row says so.
//!
//! The program is a script of `scripts/work`: `SCRIPT prepare DIR`, `SCRIPT run DIR`, `SCRIPT end DIR`; what a run prints
//! last is a line `operations N seconds S`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Turn, Work, Workload};
use crate::command;
use crate::disk::Aligned;
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const COPIED: usize = 256;
const MIB: usize = 1 << 20;

/// One row of such work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Script in the directory of scripts.
    pub script: &'static str,
    /// Words before the verb.
    pub words: &'static [&'static str],
    /// Whether a file of 256 MiB is copied again and again meanwhile.
    pub copying: bool,
}

/// Where the scripts are.
pub fn directory() -> PathBuf {
    PathBuf::from(std::env::var_os("NENRIN_BENCH_SCRIPTS").unwrap_or_else(|| "scripts/work".into()))
}

/// The work of one contender.
pub fn make(rows: &'static [Program]) -> Box<dyn Workload> {
    Box::new(External { rows, scripts: directory().canonicalize().unwrap_or_default() })
}

struct External {
    rows: &'static [Program],
    scripts: PathBuf,
}

impl External {
    fn run(&self, program: &Program, verb: &str, site: &Site) -> Result<String> {
        let script = self.scripts.join(program.script).display().to_string();
        let directory = site.path(program.script).display().to_string();
        let mut line = vec![script.as_str()];
        line.extend(program.words);
        line.extend([verb, directory.as_str()]);
        command::run(&line)
    }
}

/// Copies a file by reads and writes of 1 MiB until told to stop, fsync after each copy.
fn copy(from: &Path, to: &Path, stop: &AtomicBool, copied: &AtomicU64) -> std::io::Result<()> {
    let mut buffer = vec![0; MIB];
    while !stop.load(Ordering::Relaxed) {
        let (mut source, mut target) = (File::open(from)?, File::create(to)?);
        loop {
            let read = source.read(&mut buffer)?;
            target.write_all(&buffer[..read])?;
            copied.fetch_add(read as u64, Ordering::Relaxed);
            if read == 0 || stop.load(Ordering::Relaxed) {
                break;
            }
        }
        target.sync_all()?;
    }
    Ok(())
}

/// Does something while `from` is copied to `to`, counting bytes in `copied`; what it came to, and the copied bytes per second
/// from its begin to its end.
fn beside_copies<T>(from: &Path, to: &Path, copied: &AtomicU64, what: impl FnOnce() -> T) -> Result<(T, f64)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy(from, to, &stop, copied));
        let (begin, before) = (Instant::now(), copied.load(Ordering::Relaxed));
        let outcome = what();
        let (elapsed, after) = (begin.elapsed(), copied.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        let ended = copying.join().unwrap_or_else(|_| Err(std::io::Error::other("the copying thread died")));
        ended.doing(|| "copying beside the database".to_owned())?;
        Ok((outcome, (after - before) as f64 / elapsed.as_secs_f64().max(1e-9)))
    })
}

/// What the last line of a script's output says.
fn parse(text: &str) -> Option<(u64, Duration)> {
    let words: Vec<&str> = text.lines().last()?.split_whitespace().collect();
    let ["operations", operations, "seconds", seconds] = words[..] else { return None };
    Some((operations.parse().ok()?, Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?))
}

impl Workload for External {
    fn prepare(&mut self, site: &mut Site) -> Result<()> {
        let path = site.path("large");
        let data = Aligned::noise(MIB, 61);
        let doing = || format!("preparing {}", path.display());
        if self.rows.iter().any(|program| program.copying) {
            let mut file = File::create(&path).doing(doing)?;
            for _ in 0..COPIED {
                file.write_all(data.get()).doing(doing)?;
            }
            file.sync_all().doing(doing)?;
        }
        Ok(())
    }

    fn enter(&mut self, row: usize, site: &mut Site) -> Result<()> {
        self.run(&self.rows[row], "prepare", site)?;
        site.settle().map(drop)
    }

    fn slice(&mut self, turn: Turn, site: &mut Site) -> Result<Work> {
        let program = &self.rows[turn.row];
        let (from, to) = (site.path("large"), site.path("copy"));
        let run = || self.run(program, "run", site);
        let (outcome, rate) = if program.copying {
            let (outcome, rate) = beside_copies(&from, &to, &AtomicU64::new(0), run)?;
            (outcome, Some(rate))
        } else {
            (run(), None)
        };
        if sys::interrupted() {
            return Err(Error::Interrupted);
        }
        let text = outcome?;
        let (operations, elapsed) = parse(&text)
            .ok_or_else(|| Error::Wrong(format!("{}: no result in `{}`", program.script, command::tail(&text, 200))))?;
        let mut work = Work { operations, elapsed, ..Work::default() };
        // The program's own seconds are fewer than those in which was copied.
        work.extra.extend(rate.map(|rate| ("others_mb_per_s".to_owned(), rate / 1e6)));
        Ok(work)
    }

    fn after(&mut self, turn: Turn, site: &mut Site) -> Result<()> {
        let program = &self.rows[turn.row];
        if program.copying {
            let path = site.path("copy");
            fs::remove_file(&path).doing(|| format!("removing {}", path.display()))?;
        }
        self.run(program, "end", site).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was copied while the program came up and ended is divided by that time, too.
    #[test]
    fn a_rate_is_of_the_time_in_which_was_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("large"), dir.path().join("copy"));
        fs::write(&from, vec![1; MIB]).unwrap();
        let (copied, lasts) = (AtomicU64::new(0), Duration::from_millis(300));
        let (said, rate) = beside_copies(&from, &to, &copied, || {
            std::thread::sleep(lasts);
            "operations 1 seconds 0.001"
        })
        .unwrap();
        assert_eq!(parse(said), Some((1, Duration::from_millis(1))));
        let copied = copied.into_inner() as f64;
        assert!(rate > 0.0 && rate * lasts.as_secs_f64() <= copied, "{rate} bytes per second, {copied} bytes in all");
        let missing = beside_copies(&dir.path().join("none"), &to, &AtomicU64::new(0), || std::thread::sleep(lasts));
        assert!(missing.is_err());
    }

    #[test]
    fn what_scripts_print() {
        assert_eq!(parse("noise\noperations 12 seconds 0.5\n"), Some((12, Duration::from_millis(500))));
        assert_eq!(parse("operations x seconds 1"), None);
        assert_eq!(parse("operations 1 seconds -1"), None);
        assert_eq!(parse(""), None);
    }
}
