//! A contender's disk: a fully written image file and the loop device over it.
//!
//! Invariants
//! 1. Every block of the image is written: no hole and no unwritten extent, before each mkfs and after it.
//! 2. The loop device reads and writes past the page cache of the image (direct I/O), or it is not used.
//! 3. Nothing discards: mkfs is told so, and so is the one contender that would do it by default (btrfs). The loop device's
//!    own limit is left alone: once it is zero, Linux takes nothing else until the device is removed.
//! 4. What was attached is detached when the value is dropped. The image stays, for the next group of rows.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::command::{self, run};
use crate::error::{Doing, Error, Result};
use crate::sys;

const CHUNK: usize = 4 << 20;
/// Smallest disk that is measured: xfs wants 300 MiB, the rows about large files more.
pub const LEAST_BYTES: u64 = 512 << 20;

/// Bytes at an address that O_DIRECT accepts.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` bytes that no file system can compress or take for a hole.
    pub fn noise(len: usize, seed: u64) -> Self {
        let mut bytes = vec![0u8; len + 4096];
        let start = bytes.as_ptr().align_offset(4096).min(4096);
        let mut random = Random::new(seed);
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        Self { bytes, start, len }
    }

    /// The bytes.
    pub fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes, to be read into.
    pub fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// splitmix64: the same places in every run and for every contender.
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// What a block device did, from /sys/block/NAME/stat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Discard requests.
    pub discards: u64,
}

impl Counters {
    /// What happened since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(earlier.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            writes: self.writes.saturating_sub(earlier.writes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
            discards: self.discards.saturating_sub(earlier.discards),
        }
    }

    /// Adds another slice.
    pub fn add(&mut self, more: Self) {
        self.reads += more.reads;
        self.read_bytes += more.read_bytes;
        self.writes += more.writes;
        self.write_bytes += more.write_bytes;
        self.flushes += more.flushes;
        self.discards += more.discards;
    }
}

/// Counters and requests in flight out of the text of a stat file (Documentation/block/stat.rst of Linux).
fn parse_stat(text: &str) -> Option<(Counters, u64)> {
    let n: Vec<u64> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let at = |place: usize| n.get(place).copied().unwrap_or(0);
    (n.len() >= 11).then(|| {
        let counters = Counters {
            reads: at(0),
            read_bytes: at(2) * 512,
            writes: at(4),
            write_bytes: at(6) * 512,
            flushes: at(15),
            discards: at(11),
        };
        (counters, at(8))
    })
}

fn size_of(device: &Path) -> Result<u64> {
    let doing = || format!("looking at {}", device.display());
    File::open(device).and_then(|mut file| file.seek(SeekFrom::End(0))).doing(doing)
}

/// Whole MiB of the smallest of these devices, which is what every contender on them can use; none where there are none.
/// Refuses one that is smaller than [`LEAST_BYTES`].
pub fn smallest(devices: &[PathBuf]) -> Result<Option<u64>> {
    let mut smallest = None;
    for device in devices {
        let bytes = size_of(device)? & !((1 << 20) - 1);
        if bytes < LEAST_BYTES {
            let text =
                format!("{} has {} MiB: at least {} are needed", device.display(), bytes >> 20, LEAST_BYTES >> 20);
            return Err(Error::Refused(text));
        }
        smallest = Some(smallest.map_or(bytes, |least: u64| least.min(bytes)));
    }
    Ok(smallest)
}

/// An image file with its loop device, or a device that was given.
pub struct Disk {
    image: Option<PathBuf>,
    device: PathBuf,
    name: String,
    bytes: u64,
}

impl Disk {
    /// Writes (or takes over) the image and attaches it.
    pub fn make(image: &Path, bytes: u64) -> Result<Self> {
        let mut disk = Self { image: Some(image.to_owned()), device: PathBuf::new(), name: String::new(), bytes };
        write_whole(image, bytes)?;
        let image_text = image.display().to_string();
        let device = run(&["losetup", "--find", "--show", "--direct-io=on", &image_text])?;
        disk.device = PathBuf::from(device.trim());
        disk.name = disk.device.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let direct = fs::read_to_string(format!("/sys/block/{}/loop/dio", disk.name)).unwrap_or_default();
        if direct.trim() != "1" {
            return Err(Error::Refused(format!(
                "the loop device over {image_text} does not take direct I/O: the file system below cannot carry this \
                 benchmark, choose another --dir"
            )));
        }
        Ok(disk)
    }

    /// Takes a block device as it is: whoever gave it wrote it in full before.
    pub fn given(device: &Path) -> Result<Self> {
        let bytes = size_of(device)?;
        let name = device.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let disk = Self { image: None, device: device.to_owned(), name, bytes };
        if disk.stat().is_none() {
            return Err(Error::Refused(format!("{} is not a whole block device", device.display())));
        }
        Ok(disk)
    }

    /// Path of the device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Size of the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Opens the device for direct I/O.
    pub fn open_direct(&self) -> Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(&self.device)
            .doing(|| format!("opening {}", self.device.display()))
    }

    /// What the device has done so far.
    pub fn counters(&self) -> Counters {
        self.stat().map(|(counters, _)| counters).unwrap_or_default()
    }

    fn stat(&self) -> Option<(Counters, u64)> {
        parse_stat(&fs::read_to_string(format!("/sys/block/{}/stat", self.name)).ok()?)
    }

    /// Waits until nothing is in flight and nothing new was written for 20 ms, for at most `limit`. Whether it became quiet.
    pub fn quiet(&self, limit: Duration) -> bool {
        let begin = Instant::now();
        let mut last = self.stat();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.stat();
            if now == last && now.is_none_or(|(_, in_flight)| in_flight == 0) {
                return true;
            }
            if begin.elapsed() >= limit {
                return false;
            }
            last = now;
        }
    }

    /// Overwrites the places where file systems keep their signatures, so that no mkfs has to be forced past another one's.
    pub fn wipe(&self) -> Result<()> {
        let device = self.open_direct()?;
        let noise = Aligned::noise(1 << 20, 1);
        let last = self.bytes.saturating_sub(1 << 20) & !4095;
        for place in [0, 64 << 20, last] {
            let result = device.write_all_at(noise.get(), place.min(last));
            result.doing(|| format!("wiping {}", self.device.display()))?;
        }
        device.sync_all().doing(|| format!("flushing {}", self.device.display()))
    }

    /// Writes zeroes wherever mkfs left holes or unwritten extents, which read as zeroes; how many bytes that were.
    pub fn fill_holes(&self) -> Result<u64> {
        let Some(image) = &self.image else { return Ok(0) };
        let doing = || format!("filling holes of {}", image.display());
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(image).doing(doing)?;
        let mut zeroes = Aligned::noise(CHUNK, 0);
        zeroes.get_mut().fill(0);
        let mut filled = 0;
        for (start, end) in holes(&file, self.bytes).doing(doing)? {
            let mut at = start & !4095;
            while at < end {
                let len = (end - at).min(CHUNK as u64).next_multiple_of(4096) as usize;
                file.write_all_at(&zeroes.get()[..len.min(CHUNK)], at).doing(doing)?;
                at += len as u64;
            }
            filled += end - start;
        }
        file.sync_all().doing(doing)?;
        Ok(filled)
    }

    /// Bytes of the image that are holes or unwritten.
    pub fn hole_bytes(&self) -> u64 {
        let Some(image) = &self.image else { return 0 };
        let counted = File::open(image).and_then(|file| holes(&file, self.bytes));
        counted.map_or(0, |holes| holes.iter().map(|(start, end)| end - start).sum())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.image.is_some() && !self.name.is_empty() {
            detach(&self.device);
        }
    }
}

/// Detaches a loop device, with a few attempts: a process that just ended may hold it for a moment.
pub fn detach(device: &Path) {
    let device = device.display().to_string();
    let mut last = Ok(String::new());
    for _ in 0..20 {
        last = run(&["losetup", "--detach", &device]);
        if last.is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    command::best_effort("detaching a loop device", last);
}

/// Ranges without written data below `bytes`.
fn holes(file: &File, bytes: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes {
        let Some(hole) = sys::seek_edge(file, at, true)? else { break };
        if hole >= bytes {
            break;
        }
        let data = sys::seek_edge(file, hole, false)?.unwrap_or(bytes).min(bytes);
        found.push((hole, data));
        at = data;
    }
    Ok(found)
}

/// Makes a file of `bytes` in which every block was written, or keeps one that is already so.
fn write_whole(image: &Path, bytes: u64) -> Result<()> {
    let doing = || format!("writing {}", image.display());
    if let Ok(file) = File::open(image) {
        let same = file.metadata().is_ok_and(|m| m.len() == bytes);
        if same && holes(&file, bytes).is_ok_and(|h| h.is_empty()) {
            return Ok(());
        }
    }
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(image)
        .doing(doing)?;
    let noise = Aligned::noise(CHUNK, 7);
    let mut at = 0;
    while at < bytes {
        if sys::interrupted() {
            return Err(Error::Interrupted);
        }
        let len = (bytes - at).min(CHUNK as u64) as usize;
        file.write_all_at(&noise.get()[..len], at).doing(doing)?;
        at += len as u64;
    }
    file.sync_all().doing(doing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_file_with_and_without_flushes() {
        let text = "10 1 16 5 20 2 32 7 3 9 12 4 0 8 0 6 1";
        let (counters, in_flight) = parse_stat(text).unwrap();
        assert_eq!(in_flight, 3);
        let expected =
            Counters { reads: 10, read_bytes: 8192, writes: 20, write_bytes: 16384, flushes: 6, discards: 4 };
        assert_eq!(counters, expected);
        let (old, _) = parse_stat("10 1 16 5 20 2 32 7 0 9 12").unwrap();
        assert_eq!((old.flushes, old.discards), (0, 0));
        assert!(parse_stat("1 2").is_none());
    }

    #[test]
    fn the_smallest_device_gives_the_size() {
        let directory = tempfile::tempdir().unwrap();
        let of = |mib: u64, odd: u64| {
            let path = directory.path().join(format!("{mib}"));
            File::create(&path).and_then(|file| file.set_len((mib << 20) + odd)).unwrap();
            path
        };
        assert_eq!(smallest(&[]).unwrap(), None);
        assert_eq!(smallest(&[of(2048, 0), of(1024, 4096), of(4096, 512)]).unwrap(), Some(1 << 30));
        let error = smallest(&[of(2048, 0), of(511, 4096)]).unwrap_err().to_string();
        assert!(error.contains("511 MiB: at least 512 are needed"), "{error}");
        assert!(smallest(&[directory.path().join("missing")]).is_err());
    }

    #[test]
    fn buffers_are_aligned() {
        for len in [4096, 8192, 1 << 20] {
            let buffer = Aligned::noise(len, 3);
            assert_eq!(buffer.get().len(), len);
            assert_eq!(buffer.get().as_ptr().align_offset(4096), 0);
        }
    }

    #[test]
    fn random_places_repeat() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.below(1000), random.below(1000), random.below(1000)]
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
