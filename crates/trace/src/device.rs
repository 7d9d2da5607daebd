//! Block devices as sysfs tells of them: what they are part of, and their
//! counters.

use crate::{SECTOR_BYTES, TraceError};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where a device's work can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As requests, merged and split as the driver gets them.
    Request,
    /// As bios, since the driver takes no requests (dm, md, zram).
    Bio,
}

/// A block device or partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDev {
    /// As the caller named it.
    pub path: PathBuf,
    /// Its name in sysfs, like `sda1`.
    pub name: String,
    /// Its directory in sysfs.
    pub sysfs: PathBuf,
    /// Major and minor number of the whole device.
    pub whole: (u32, u32),
    /// First sector on the whole device.
    pub start: u64,
    /// Length in sectors.
    pub sectors: u64,
    /// It is a part of a larger device.
    pub partition: bool,
    /// Where its work can be seen.
    pub level: Level,
}

/// A device's own counters since it appeared, from `stat` in sysfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed; a flush that carries no data counts as one, too.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Discards completed.
    pub discards: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
    /// Flushes completed; zero where the kernel does not count them.
    pub flushes: u64,
}

impl Counters {
    /// From the text of `stat`: 11 numbers, 15 since Linux 4.18, 17 since 5.5.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let n: Vec<u64> = text.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let at = |i: usize| n.get(i).copied().unwrap_or(0);
        (n.len() >= 11).then(|| Self {
            reads: at(0),
            read_bytes: at(2) * SECTOR_BYTES,
            writes: at(4),
            write_bytes: at(6) * SECTOR_BYTES,
            discards: at(11),
            discard_bytes: at(13) * SECTOR_BYTES,
            flushes: at(15),
        })
    }
    /// What was added since `before`.
    #[must_use]
    pub const fn since(&self, before: &Self) -> Self {
        Self {
            reads: self.reads.wrapping_sub(before.reads),
            read_bytes: self.read_bytes.wrapping_sub(before.read_bytes),
            writes: self.writes.wrapping_sub(before.writes),
            write_bytes: self.write_bytes.wrapping_sub(before.write_bytes),
            discards: self.discards.wrapping_sub(before.discards),
            discard_bytes: self.discard_bytes.wrapping_sub(before.discard_bytes),
            flushes: self.flushes.wrapping_sub(before.flushes),
        }
    }
}

impl BlockDev {
    /// The device at `path`.
    ///
    /// # Errors
    /// It is no block device, or sysfs does not know it.
    pub fn find(path: &Path) -> Result<Self, TraceError> {
        let meta = fs::metadata(path).map_err(TraceError::io(path))?;
        if !meta.file_type().is_block_device() {
            let hint = "not a block device; losetup --find --show FILE makes one of a file, and findmnt -no SOURCE DIR tells that of a directory";
            return Err(TraceError::device(path, hint));
        }
        let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
        let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let sysfs = fs::canonicalize(&link).map_err(|_| TraceError::device(path, "sysfs does not know this device"))?;
        Self::from_sysfs(path, sysfs)
    }

    fn from_sysfs(path: &Path, sysfs: PathBuf) -> Result<Self, TraceError> {
        let partition = sysfs.join("partition").exists();
        let whole = if partition { sysfs.parent().unwrap_or(&sysfs).to_owned() } else { sysfs.clone() };
        let number = |file: &str| -> Result<u64, TraceError> {
            let place = sysfs.join(file);
            let text = fs::read_to_string(&place).map_err(TraceError::io(&place))?;
            text.trim().parse().map_err(|_| TraceError::device(path, format!("{} holds no number", place.display())))
        };
        let level = if whole.join("mq").exists() { Level::Request } else { Level::Bio };
        if partition && level == Level::Bio {
            let why =
                "a partition of a device that takes no requests cannot be told from the rest; give the whole device";
            return Err(TraceError::device(path, why));
        }
        let place = whole.join("dev");
        let text = fs::read_to_string(&place).map_err(TraceError::io(&place))?;
        let numbers = text.trim().split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        Ok(Self {
            path: path.to_owned(),
            name: sysfs.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
            whole: numbers.ok_or_else(|| TraceError::device(path, format!("{} is not understood", place.display())))?,
            start: if partition { number("start")? } else { 0 },
            sectors: number("size")?,
            partition,
            level,
            sysfs,
        })
    }

    /// The kernel's internal number of the whole device, as tracepoints carry it.
    #[must_use]
    pub const fn kernel_number(&self) -> u32 {
        self.whole.0 << 20 | self.whole.1
    }

    /// Its counters now.
    ///
    /// # Errors
    /// The device has gone.
    pub fn counters(&self) -> Result<Counters, TraceError> {
        let place = self.sysfs.join("stat");
        let text = fs::read_to_string(&place).map_err(TraceError::io(&place))?;
        Counters::parse(&text)
            .ok_or_else(|| TraceError::device(&self.path, format!("{} is not understood", place.display())))
    }

    /// Requests under way; zero where that cannot be told.
    #[must_use]
    pub fn inflight(&self) -> u64 {
        let text = fs::read_to_string(self.sysfs.join("inflight")).unwrap_or_default();
        text.split_ascii_whitespace().filter_map(|n| n.parse::<u64>().ok()).sum()
    }

    /// Whether the event is about this device, by the kernel's number and sector.
    #[must_use]
    pub const fn covers(&self, kernel_number: u32, sector: u64, sectors: u32) -> bool {
        kernel_number == self.kernel_number()
            && (!self.partition || sectors == 0 || (sector >= self.start && sector < self.start + self.sectors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_kernels() {
        let old = "  10 0 80 5 20 3 160 9 0 1 2";
        let c = Counters::parse(old).unwrap();
        assert_eq!((c.reads, c.read_bytes, c.writes, c.write_bytes, c.flushes), (10, 40960, 20, 81920, 0));
        let new = format!("{old} 4 0 32 1 7 8\n");
        let c = Counters::parse(&new).unwrap();
        assert_eq!((c.discards, c.discard_bytes, c.flushes), (4, 16384, 7));
        assert_eq!(c.since(&Counters::parse(old).unwrap()).writes, 0);
        assert_eq!(Counters::parse("1 2 3"), None);
        assert_eq!(Counters::parse("a b c d e f g h i j k"), None);
    }

    #[test]
    fn not_a_block_device() {
        for path in ["/dev/null", "/", "/proc/version"] {
            let said = BlockDev::find(Path::new(path)).unwrap_err().to_string();
            assert!(said.starts_with(path) && said.contains("not a block device"), "{said}");
        }
        assert!(BlockDev::find(Path::new("/no/such")).unwrap_err().to_string().starts_with("/no/such: "));
    }

    /// A disk with a partition, as sysfs shows them.
    #[test]
    fn partitions_are_ranges_of_their_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, part) = (dir.path().join("sda"), dir.path().join("sda/sda1"));
        fs::create_dir_all(&part).unwrap();
        fs::create_dir_all(disk.join("mq")).unwrap();
        for (file, text) in [
            ("dev", "8:0\n"),
            ("size", "4096\n"),
            ("sda1/partition", "1\n"),
            ("sda1/start", "2048\n"),
            ("sda1/size", "1024\n"),
        ] {
            fs::write(disk.join(file), text).unwrap();
        }
        let p = BlockDev::from_sysfs(Path::new("/dev/sda1"), part.clone()).unwrap();
        assert_eq!((p.whole, p.start, p.sectors, p.partition, p.name.as_str()), ((8, 0), 2048, 1024, true, "sda1"));
        assert_eq!(p.kernel_number(), 8 << 20);
        assert!(p.covers(8 << 20, 2048, 8) && p.covers(8 << 20, 3071, 1) && p.covers(8 << 20, 0, 0));
        assert!(!p.covers(8 << 20, 2047, 8) && !p.covers(8 << 20, 3072, 8) && !p.covers(9 << 20, 2048, 8));
        let whole = BlockDev::from_sysfs(Path::new("/dev/sda"), disk.clone()).unwrap();
        assert!(whole.covers(8 << 20, 0, 8) && !whole.partition);
        fs::remove_dir(disk.join("mq")).unwrap();
        assert_eq!(BlockDev::from_sysfs(Path::new("/dev/sda"), disk).unwrap().level, Level::Bio);
        assert!(BlockDev::from_sysfs(Path::new("/dev/sda1"), part).is_err());
    }
}
