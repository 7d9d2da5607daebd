//! Access times, as relatime keeps them.
//!
//! Reading must not cost writing: a new access time waits in memory and is
//! shown from there. It reaches the log with the next sync of everything, when
//! the volume is closed, after [`KEPT_NANOS_MAX`], or when [`KEPT_MAX`] wait. A
//! crash before loses it, and a volume too full for it does without.

use super::{Fs, Inner};
use crate::breaks::{Break, broken};
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
/// Access times that are logged under one hold of the lock, each with what it needs read ahead: fewer while others sync.
const LOGGED_AT_ONCE: u32 = 512;

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

    /// Logs all access times that wait, some at a time: others come in between.
    pub(super) fn log_all_accesses(&self) -> Result<()> {
        let mut before = usize::MAX;
        loop {
            let mut inner = self.lock();
            inner.check_alive()?;
            let left = inner.accesses.times.len();
            if left == 0 || left >= before {
                return Ok(());
            }
            before = left;
            inner.log_accesses(self, self.clock.monotonic_nanos())?;
        }
    }

    /// Logs access times that have waited long enough, some at a time.
    pub(super) fn log_old_accesses(&self, inner: &mut Inner, now: u64) -> Result<()> {
        let waiting = !inner.accesses.times.is_empty();
        if waiting && now.saturating_sub(inner.accesses.since) >= KEPT_NANOS_MAX {
            inner.log_accesses(self, now)?;
        }
        Ok(())
    }
}

impl Inner {
    /// Access times that wait go to the open batch, in the order of inodes: as many as may under one hold of the lock.
    fn log_accesses(&mut self, fs: &Fs, now: u64) -> Result<()> {
        if self.accesses.times.is_empty() || !self.has_room_for_records(fs, self.accesses.times.len() as u64) {
            return Ok(());
        }
        let mut times: Vec<(Ino, Time)> = self.accesses.times.iter().map(|(ino, time)| (*ino, *time)).collect();
        times.sort_unstable();
        let most = if broken(Break::AccessesAtOnce) { KEPT_MAX } else { fs.items_at_once(LOGGED_AT_ONCE) as usize };
        for (ino, atime) in times.into_iter().take(most) {
            self.accesses.times.remove(&ino);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{TestClock, create, device};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    /// How many access times an hour of waiting has logged under one hold of the lock, and how many ticks that takes for all.
    fn logged_at_once() -> (usize, usize) {
        let clock = Arc::new(TestClock::default());
        let options = MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
        let fs = Fs::open(vec![device(64, 0)], clock.clone(), options).unwrap();
        let inos: Vec<Ino> = (0..2000).map(|n| create(&fs, &format!("f{n}"))).collect();
        fs.sync_all().unwrap();
        clock.0.fetch_add(1 << 30, Ordering::Relaxed);
        inos.iter().for_each(|ino| fs.accessed(*ino).unwrap());
        assert_eq!(fs.lock().accesses.times.len(), inos.len());
        clock.0.fetch_add(KEPT_NANOS_MAX, Ordering::Relaxed);
        let (mut most, mut ticks) = (0, 0);
        while !fs.lock().accesses.times.is_empty() {
            let before = fs.lock().accesses.times.len();
            let mut inner = fs.lock();
            fs.log_old_accesses(&mut inner, fs.clock.monotonic_nanos()).unwrap();
            most = most.max(before - inner.accesses.times.len());
            ticks += 1;
            assert!(ticks < 1000, "they wait for ever");
        }
        inos.iter().for_each(|ino| fs.accessed(*ino).unwrap());
        // A sync of everything has all of them, however many.
        clock.0.fetch_add(DAY_NANOS as u64 * 2, Ordering::Relaxed);
        inos.iter().for_each(|ino| fs.accessed(*ino).unwrap());
        fs.sync_all().unwrap();
        assert!(fs.lock().accesses.times.is_empty());
        (most, ticks)
    }

    #[test]
    fn access_times_are_logged_some_at_a_time() {
        let (most, ticks) = logged_at_once();
        assert!(most <= LOGGED_AT_ONCE as usize && ticks >= 4, "{most} at once, in {ticks} ticks");
    }

    #[cfg(feature = "breaks")]
    #[test]
    fn access_times_that_are_logged_at_once_are_noticed() {
        assert_eq!(crate::breaks::with(Break::AccessesAtOnce, logged_at_once), (2000, 1));
    }
}
