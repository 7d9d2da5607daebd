//! Random overwrites of 4 KiB in one large file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::sustained::{Step, Stream, nanos};
use crate::disk::{Aligned, Random};
use crate::error::{Doing, Error, Result};
use crate::site::Site;
use crate::sys;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const NAME: &str = "overwritten";

/// Where the writes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Every block as often as any other.
    Uniform,
    /// Nine of ten writes to the first tenth of the file.
    HotCold,
}

impl Pattern {
    /// A block of so many.
    pub fn draw(self, random: &mut Random, blocks: u64) -> u64 {
        let hot = (blocks / 10).max(1);
        match self {
            Self::Uniform => random.below(blocks),
            Self::HotCold if random.below(10) < 9 => random.below(hot),
            Self::HotCold => hot + random.below(blocks - hot),
        }
    }
}

/// The stream.
pub fn stream(pattern: Pattern) -> Box<dyn Stream> {
    let (random, block) = (Random::new(71), Aligned::noise(BLOCK as usize, 72));
    Box::new(Overwrites { pattern, file: None, stamps: Vec::new(), random, block })
}

/// A large file in which every block begins with the number of its last write.
pub struct Overwrites {
    pattern: Pattern,
    file: Option<File>,
    stamps: Vec<u64>,
    random: Random,
    block: Aligned,
}

/// A file of `bytes`, each block stamped with zero, written in large pieces.
pub fn fill(path: &Path, bytes: u64) -> Result<File> {
    let doing = || format!("filling {}", path.display());
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).doing(doing)?;
    let mut data = Aligned::noise(MIB as usize, 73);
    data.get_mut().chunks_exact_mut(BLOCK as usize).for_each(|block| block[..8].fill(0));
    for at in (0..bytes & !(MIB - 1)).step_by(MIB as usize) {
        file.write_all_at(data.get(), at).doing(doing)?;
        if sys::interrupted() {
            return Err(Error::Interrupted);
        }
    }
    file.sync_all().doing(doing)?;
    Ok(file)
}

impl Overwrites {
    fn file(&mut self, site: &Site) -> io::Result<&File> {
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().read(true).write(true).open(site.path(NAME))?);
        }
        self.file.as_ref().ok_or_else(|| io::Error::other("nothing is open"))
    }
}

impl Stream for Overwrites {
    fn fill(&mut self, site: &Site, percent: u64) -> Result<()> {
        let space = sys::space(site.root()).doing(|| "asking for the space".to_owned())?;
        let bytes = (space.available / 100 * percent) & !(MIB - 1);
        self.file = Some(fill(&site.path(NAME), bytes)?);
        self.stamps = vec![0; (bytes / BLOCK) as usize];
        Ok(())
    }

    fn step(&mut self, site: &Site) -> io::Result<Step> {
        self.file(site)?;
        let block = self.pattern.draw(&mut self.random, self.stamps.len() as u64);
        let Some(stamp) = self.stamps.get_mut(block as usize) else {
            return Err(io::Error::other("nothing is filled"));
        };
        *stamp += 1;
        self.block.get_mut()[..8].copy_from_slice(&stamp.to_le_bytes());
        let start = Instant::now();
        let wrote = self.file.as_ref().map_or(Ok(()), |file| file.write_all_at(self.block.get(), block * BLOCK));
        if wrote.is_err() {
            *stamp -= 1;
        }
        wrote?;
        Ok(Step::Wrote(BLOCK, nanos(start)))
    }

    fn fsync(&mut self, site: &Site) -> io::Result<()> {
        self.file(site)?.sync_all()
    }

    fn close(&mut self) {
        self.file = None;
    }

    fn verify(&mut self, site: &Site) -> Result<u64> {
        let doing = || "reading back what was overwritten".to_owned();
        let stamps = std::mem::take(&mut self.stamps);
        let mut data = vec![0; MIB as usize];
        let (mut found, file) = (0, self.file(site).doing(doing)?);
        for (chunk, stamps) in (0..).zip(stamps.chunks((MIB / BLOCK) as usize)) {
            let data = &mut data[..stamps.len() * BLOCK as usize];
            file.read_exact_at(data, chunk * MIB).doing(doing)?;
            for (block, stamp) in data.chunks_exact(BLOCK as usize).zip(stamps) {
                if block[..8] != stamp.to_le_bytes() {
                    return Err(Error::Wrong(format!("block {found} of {NAME} does not hold what was written last")));
                }
                found += 1;
            }
        }
        self.stamps = stamps;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_of_ten_go_to_a_tenth() {
        let mut random = Random::new(1);
        let hot = (0..10_000).filter(|_| Pattern::HotCold.draw(&mut random, 1000) < 100).count();
        assert!((8_900..9_100).contains(&hot), "{hot}");
        let low = (0..10_000).filter(|_| Pattern::Uniform.draw(&mut random, 1000) < 100).count();
        assert!((800..1_200).contains(&low), "{low}");
    }
}
