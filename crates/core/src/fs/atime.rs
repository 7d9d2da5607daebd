//! Access times, as relatime keeps them.
//!
//! Reading must not cost writing: a new access time waits in memory and is
//! shown from there. It reaches the log with the next sync of everything, when
//! the volume is closed, after [`KEPT_NANOS_MAX`], or when [`KEPT_MAX`] wait. A
//! crash before loses it, and a volume too full for it does without.

use super::{Fs, Inner};
use crate::{At, Result};
use nenrin_format::records::{Record, attr_mask};
use nenrin_format::{Ino, Time};

/// A day, in nanoseconds: an access time as old as this moves with any read.
const DAY_NANOS: i64 = 86_400_000_000_000;
/// Longest time that an access time waits in memory: an hour.
const KEPT_NANOS_MAX: u64 = 3_600_000_000_000;
/// Most inodes whose access times wait in memory. Each may dirty a node of the
/// index when it is logged.
const KEPT_MAX: usize = 4096;

/// Access times that the log does not have yet.
#[derive(Default)]
pub(super) struct AccessTimes {
    times: super::ByIno<Time>,
    since: u64,
}

impl AccessTimes {
    /// The access time that waits for an inode.
    pub(super) fn get(&self, ino: Ino) -> Option<Time> {
        self.times.get(&ino).copied()
    }

    /// Another one was set, or the inode is gone.
    pub(super) fn forget(&mut self, ino: Ino) {
        self.times.remove(&ino);
    }
}

impl Fs {
    /// The content was read: moves the access time as relatime says, that is
    /// when it is not newer than the last change, or a day old. Costs no write.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`]; an earlier failed write.
    pub fn accessed(&self, ino: Ino) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let mut inner = self.lock();
        let inode = inner.current_inode(At::Live, ino)?;
        let wall = self.clock.wall();
        let day_old = wall.0.saturating_sub(inode.atime.0) >= DAY_NANOS;
        if inode.atime > inode.mtime.max(inode.ctime) && !day_old {
            return Ok(());
        }
        inner.check_alive()?;
        let now = self.clock.monotonic_nanos();
        if inner.accesses.times.len() >= KEPT_MAX {
            inner.log_accesses(self, now)?;
        }
        if inner.accesses.times.is_empty() {
            inner.accesses.since = now;
        }
        if inner.accesses.times.len() < KEPT_MAX {
            inner.accesses.times.insert(ino, wall);
        }
        Ok(())
    }

    /// Logs access times that have waited long enough.
    pub(super) fn log_old_accesses(&self, inner: &mut Inner, now: u64) -> Result<()> {
        let waiting = !inner.accesses.times.is_empty();
        if waiting && now.saturating_sub(inner.accesses.since) >= KEPT_NANOS_MAX {
            inner.log_accesses(self, now)?;
        }
        Ok(())
    }
}

impl Inner {
    /// Access times that wait go to the open batch, in the order of inodes.
    pub(super) fn log_accesses(&mut self, fs: &Fs, now: u64) -> Result<()> {
        if self.accesses.times.is_empty() || !self.has_room_for_records(fs, self.accesses.times.len() as u64) {
            return Ok(());
        }
        let mut times: Vec<(Ino, Time)> = std::mem::take(&mut self.accesses.times).into_iter().collect();
        times.sort_unstable();
        for (ino, atime) in times {
            // Where the index cannot be read an access is not noted: nobody reads to end all writing.
            if !self.state.inode_ahead(ino).unwrap_or(false) {
                continue;
            }
            let (mtime, ctime) = (Time(0), Time(0));
            let mask = attr_mask::ATIME;
            self.log(&Record::SetAttr { ino, mask, mode: 0, uid: 0, gid: 0, atime, mtime, ctime }, now)?;
        }
        Ok(())
    }
}
