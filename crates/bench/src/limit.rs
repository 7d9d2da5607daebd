//! Limits the rate of a block device by the blkio controller, so that the disk is what everybody waits for.
//!
//! The limit is set on the root group, since the threads that write a file system's journal live there. Linux counts a flush
//! as a request, and splits or charges twice what is larger than 512 KiB: figures of large writes go by the device's counters.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::command;
use crate::error::{Doing, Error, Result};

const ROOT: &str = "/sys/fs/cgroup/blkio";

/// What every device is limited to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    /// Write requests per second, flushes among them.
    pub iops: Option<u64>,
    /// Bytes per second, read and written each.
    pub bps: Option<u64>,
}

/// A limit in force; lifted when dropped.
pub struct Limited {
    files: Vec<PathBuf>,
    device: String,
}

impl Limit {
    /// Puts the limit on a block device.
    pub fn set(self, device: &Path) -> Result<Limited> {
        let number = fs::metadata(device).doing(|| format!("looking at {}", device.display()))?.rdev();
        let device = format!("{}:{}", libc::major(number), libc::minor(number));
        let mut limited = Limited { files: Vec::new(), device };
        let both =
            [(self.iops, "write_iops"), (self.iops, "read_iops"), (self.bps, "write_bps"), (self.bps, "read_bps")];
        for (limit, name) in both {
            let Some(limit) = limit else { continue };
            let file = Path::new(ROOT).join(format!("blkio.throttle.{name}_device"));
            fs::write(&file, format!("{} {limit}", limited.device)).map_err(|e| {
                Error::Refused(format!(
                    "{}: {e}; limits need the blkio controller of cgroup version 1, mounted at {ROOT}",
                    file.display()
                ))
            })?;
            limited.files.push(file);
        }
        Ok(limited)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        for file in &self.files {
            command::best_effort("lifting a limit", fs::write(file, format!("{} 0", self.device)));
        }
    }
}
