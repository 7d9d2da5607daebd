//! Files of mixed sizes that come and go: one is removed where the next has no place, and the next is made.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use super::sustained::{Step, Stream, nanos};
use crate::disk::{Aligned, Random};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const BLOCK: usize = 4096;
const DIRECTORIES: u64 = 64;
/// How many of a hundred files have how many bytes: from, and below.
const SIZES: [(u64, u64, u64); 4] =
    [(50, 1 << 10, 16 << 10), (30, 16 << 10, 64 << 10), (15, 64 << 10, 256 << 10), (5, 256 << 10, 1 << 20)];

/// The stream.
pub fn stream() -> Box<dyn Stream> {
    let data = Aligned::noise(1 << 20, 82);
    let mut this =
        Churn { files: Vec::new(), live: 0, most: 0, made: 0, next: 0, last: None, random: Random::new(81), data };
    this.next = draw(&mut this.random);
    Box::new(this)
}

struct Made {
    number: u64,
    bytes: u64,
}

struct Churn {
    files: Vec<Made>,
    /// Bytes of all files, in whole blocks.
    live: u64,
    /// What they may be at most.
    most: u64,
    made: u64,
    /// Bytes of the file that comes next.
    next: u64,
    /// The newest, open.
    last: Option<File>,
    random: Random,
    data: Aligned,
}

fn draw(random: &mut Random) -> u64 {
    let mut place = random.below(100);
    for (share, from, below) in SIZES {
        if place < share {
            return from + random.below(below - from);
        }
        place -= share;
    }
    SIZES[0].1
}

fn blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK as u64)
}

fn path(site: &Site, number: u64) -> PathBuf {
    site.path(&format!("d{}/f{number}", number % DIRECTORIES))
}

/// Puts the file's number and the block's place to the beginning of each block.
fn stamp(data: &mut [u8], number: u64) {
    for (at, block) in (0u64..).zip(data.chunks_mut(BLOCK)) {
        let stamp = ((number << 16) | at).to_le_bytes();
        let len = block.len().min(8);
        block[..len].copy_from_slice(&stamp[..len]);
    }
}

impl Churn {
    fn create(&mut self, site: &Site) -> io::Result<Step> {
        let made = Made { number: self.made, bytes: self.next };
        let data = &mut self.data.get_mut()[..made.bytes as usize];
        stamp(data, made.number);
        let start = Instant::now();
        let mut file = OpenOptions::new().write(true).create_new(true).open(path(site, made.number))?;
        let wrote = file.write_all(data);
        if wrote.is_err() {
            fs::remove_file(path(site, made.number))?;
        }
        wrote?;
        // What was open until now is closed in the measured time, as somebody has to.
        self.last = Some(file);
        let took = nanos(start);
        self.made += 1;
        self.live += blocks(made.bytes);
        self.next = draw(&mut self.random);
        let bytes = made.bytes;
        self.files.push(made);
        Ok(Step::Wrote(bytes, took))
    }
}

impl Stream for Churn {
    fn fill(&mut self, site: &Site, percent: u64) -> Result<()> {
        let doing = || "filling with files".to_owned();
        let available = || sys::space(site.root()).map(|space| space.available).doing(doing);
        for number in 0..DIRECTORIES {
            fs::create_dir(site.path(&format!("d{number}"))).doing(doing)?;
        }
        let empty = available()?;
        let left = empty - empty / 100 * percent;
        loop {
            // Half of what is missing, so that what the file system itself takes is seen in time.
            let missing = available()?.saturating_sub(left);
            if missing < (empty / 500).max(4 << 20) {
                break;
            }
            let until = self.live + missing / 2;
            while self.live < until {
                self.create(site).doing(doing)?;
            }
            self.sync(site).doing(doing)?;
            if sys::interrupted() {
                return Err(Error::Interrupted);
            }
        }
        self.most = self.live;
        Ok(())
    }

    fn step(&mut self, site: &Site) -> io::Result<Step> {
        if self.live + blocks(self.next) <= self.most || self.files.is_empty() {
            return self.create(site);
        }
        let gone = self.files.swap_remove(self.random.below(self.files.len() as u64) as usize);
        let path = path(site, gone.number);
        let start = Instant::now();
        fs::remove_file(path)?;
        self.live -= blocks(gone.bytes);
        Ok(Step::Removed(nanos(start)))
    }

    fn fsync(&mut self, _: &Site) -> io::Result<()> {
        self.last.as_ref().map_or(Ok(()), File::sync_all)
    }

    /// The kernel does not pass syncfs on to file systems in user space: there the newest file is all that is waited for.
    fn sync(&mut self, site: &Site) -> io::Result<()> {
        self.fsync(site)?;
        sys::sync_file_system(&File::open(site.root())?)
    }

    fn close(&mut self) {
        self.last = None;
    }

    fn verify(&mut self, site: &Site) -> Result<u64> {
        let mut found = 0;
        for made in &self.files {
            let path = path(site, made.number);
            let data = fs::read(&path).doing(|| format!("reading {} back", path.display()))?;
            let expected = &mut self.data.get_mut()[..made.bytes as usize];
            stamp(expected, made.number);
            if data != *expected {
                return Err(Error::Wrong(format!("{} does not hold what was written", path.display())));
            }
            found += blocks(made.bytes) / BLOCK as u64;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_mixed_and_fit_the_buffer() {
        let mut random = Random::new(3);
        let sizes: Vec<u64> = (0..10_000).map(|_| draw(&mut random)).collect();
        assert!(sizes.iter().all(|s| (1 << 10..1 << 20).contains(s)));
        let small = sizes.iter().filter(|s| **s < 16 << 10).count();
        assert!((4_700..5_300).contains(&small), "{small}");
        assert_eq!(SIZES.iter().map(|s| s.0).sum::<u64>(), 100);
    }

    #[test]
    fn stamps_tell_files_and_blocks_apart() {
        let mut data = vec![0; 2 * BLOCK + 3];
        stamp(&mut data, 5);
        assert_eq!(data[..8], (5u64 << 16).to_le_bytes());
        assert_eq!(data[BLOCK..BLOCK + 8], ((5u64 << 16) | 1).to_le_bytes());
        assert_eq!(data[2 * BLOCK..], [2, 0, 5]);
    }
}
