//! Create, stat and unlink of many empty files, up to 20,000 in a directory.
//!
//! The harness steps into the directory before a slice, so that a name is one component and no other contender's mount
//! is on the way to it.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::time::Instant;

use super::{Turn, Work, Workload};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const BATCH: usize = 4_000;
const BATCHES_PER_DIRECTORY: u32 = 5;
const WARM_UP: usize = 500;

/// The work of one contender.
pub fn make() -> Box<dyn Workload> {
    let names = (0..BATCH * BATCHES_PER_DIRECTORY as usize).map(|n| format!("file-{n:06}")).collect();
    Box::new(Files { names, made: 0 })
}

struct Files {
    names: Vec<String>,
    made: u32,
}

/// Directory and number of the batch of a round, both counted from 0.
fn place(round: u32) -> (u32, u32) {
    let batch = round.saturating_sub(1);
    (batch / BATCHES_PER_DIRECTORY, batch % BATCHES_PER_DIRECTORY)
}

impl Files {
    fn directory(site: &Site, turn: Turn) -> PathBuf {
        if turn.round == 0 { site.path("warm-up") } else { site.path(&format!("dir-{}", place(turn.round).0)) }
    }

    fn batch(&self, turn: Turn) -> &[String] {
        if turn.round == 0 {
            return &self.names[..WARM_UP];
        }
        let start = place(turn.round).1 as usize * BATCH;
        &self.names[start..start + BATCH]
    }

    /// Names that exist in the directory of this round once all batches were created.
    fn existing(&self, turn: Turn) -> &[String] {
        if turn.round == 0 {
            return &self.names[..WARM_UP];
        }
        let batches = (self.made - place(turn.round).0 * BATCHES_PER_DIRECTORY).min(BATCHES_PER_DIRECTORY);
        &self.names[..batches as usize * BATCH]
    }
}

fn create(names: &[String]) -> std::io::Result<()> {
    for name in names {
        OpenOptions::new().write(true).create_new(true).open(name)?;
    }
    Ok(())
}

impl Workload for Files {
    fn prepare(&mut self, _: &mut Site) -> Result<()> {
        Ok(())
    }

    fn before(&mut self, turn: Turn, site: &mut Site) -> Result<()> {
        let directory = Self::directory(site, turn);
        let doing = || format!("stepping into {}", directory.display());
        fs::create_dir_all(&directory).doing(doing)?;
        std::env::set_current_dir(&directory).doing(doing)?;
        if turn.row == 0 {
            self.made = self.made.max(turn.round);
        }
        Ok(())
    }

    fn slice(&mut self, turn: Turn, _: &mut Site) -> Result<Work> {
        let names = if turn.row == 1 { self.existing(turn) } else { self.batch(turn) };
        let mut work = Work::default();
        let begin = Instant::now();
        match turn.row {
            0 => {
                create(names).doing(|| "creating files".to_owned())?;
                work.operations = names.len() as u64;
            }
            1 => {
                while begin.elapsed() < turn.budget {
                    for name in names {
                        fs::metadata(name).doing(|| format!("stat of {name}"))?;
                    }
                    work.operations += names.len() as u64;
                }
            }
            _ => {
                for name in names {
                    fs::remove_file(name).doing(|| format!("removing {name}"))?;
                }
                work.operations = names.len() as u64;
            }
        }
        work.elapsed = begin.elapsed();
        if sys::interrupted() { Err(Error::Interrupted) } else { Ok(work) }
    }

    fn after(&mut self, _: Turn, _: &mut Site) -> Result<()> {
        std::env::set_current_dir("/").doing(|| "stepping out".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn batches_fill_directories() {
        let places: Vec<_> = (1..=7).map(place).collect();
        assert_eq!(places, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)]);
        let names = (0..20_000).map(|n| n.to_string()).collect();
        let files = Files { names, made: 7 };
        let turn = |round| Turn { row: 1, round, last: false, budget: Duration::ZERO };
        assert_eq!(files.existing(turn(1)).len(), 20_000);
        assert_eq!(files.existing(turn(6)).len(), 8_000);
        assert_eq!(files.batch(turn(2))[0], "4000");
    }
}
