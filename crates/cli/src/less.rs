//! What keeps less of its history (`user.nenrin.history`), and so may be in no state of the past: it is not replaced unless a
//! snapshot shows it.

use crate::error::{At, Fail};
use crate::mounts;
use crate::then::Then;
use nenrin_fuse::INO_MASK;
use rustix::fs as sys;
use rustix::io::Errno;
use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where the volume shows what is about to be replaced.
#[derive(Debug)]
pub struct Shown {
    /// In the newest state of all: what it is now.
    pub now: Then,
    /// In the newest snapshot.
    pub snapshot: Then,
}

/// Who keeps what was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// Any state that shows it.
    State,
    /// Some of it the newest snapshot alone.
    Snapshot,
}

/// Sees to it that all of a file or tree stays in the past when it is replaced. `shown` tells where states show it, if there is a
/// snapshot; one of them was made after the last change.
///
/// # Errors
/// What would be lost, and what to do.
pub fn is_kept(path: &Path, shown: &dyn Fn() -> Option<Shown>) -> Result<Keeper, Fail> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(Keeper::State) };
    let mut walk = Walk { device: meta.dev(), root: path, ask: shown, shown: None };
    walk.look(path, &meta)?;
    Ok(if walk.shown.is_some() { Keeper::Snapshot } else { Keeper::State })
}

/// How far apart two changes are, at least, whose times differ: the kernel's clock for them goes in steps.
const STEP: Duration = Duration::from_millis(20);

/// What tells a file or tree from what it is when something in it has changed: names, inodes, and when each of these changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Print {
    /// Sums of hashes, whatever the order.
    sum: u64,
    /// Something had changed just before it was looked at: what changed it right after that may have the same time.
    is_fresh: bool,
}

impl Print {
    /// Of a file that is as `meta` says.
    pub fn of_file(path: &Path, meta: &Metadata) -> Self {
        let mut print = Self::default();
        print.add(path, meta);
        print
    }
    fn add(&mut self, path: &Path, meta: &Metadata) {
        let mut hash = DefaultHasher::new();
        let changed = (meta.ctime(), meta.ctime_nsec(), meta.mtime(), meta.mtime_nsec(), meta.size());
        (path, meta.ino(), changed).hash(&mut hash);
        self.sum = self.sum.wrapping_add(hash.finish());
        let since =
            Duration::new(u64::try_from(meta.ctime()).unwrap_or(0), u32::try_from(meta.ctime_nsec()).unwrap_or(0));
        self.is_fresh |= UNIX_EPOCH.checked_add(since).is_some_and(|at| is_within_a_step(at, SystemTime::now()));
    }
    /// Whether nothing has changed between the two, so far as times tell.
    pub fn is(&self, other: &Self) -> bool {
        self.sum == other.sum && !self.is_fresh && !other.is_fresh
    }
}

/// Whether two times are so near to each other that what happened at both may have the same. One that lies in the future was not given
/// just now: the clock was set back since, and what happens now gets another.
fn is_within_a_step(one: SystemTime, other: SystemTime) -> bool {
    one.duration_since(other).unwrap_or_else(|e| e.duration()) < STEP
}

/// Syncs the files of what is about to be replaced: what the kernel still has of them, and what is being written anew to one that was
/// emptied for that, no checkpoint would have. Only these: what other programs are writing is none of it. What may not be opened is left.
/// Tells what it was then, if it is there. Where something had just changed it is done once more: what changed within the same step of
/// the kernel's clock has the same time.
///
/// # Errors
/// What cannot be written or read.
pub fn sync(path: &Path) -> Result<Print, Fail> {
    let once = || -> Result<Print, Fail> {
        let mut print = Print::default();
        if let Ok(meta) = fs::symlink_metadata(path) {
            sync_below(path, &meta, meta.dev(), &mut print)?;
        }
        Ok(print)
    };
    let print = once()?;
    if !print.is_fresh {
        return Ok(print);
    }
    thread::sleep(STEP);
    once()
}

fn sync_below(path: &Path, meta: &Metadata, device: u64, print: &mut Print) -> Result<(), Fail> {
    if !meta.is_file() || meta.dev() != device {
        print.add(path, meta);
    }
    if meta.dev() != device {
        return Ok(());
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path).at(path.display())? {
            let path = entry.at(path.display())?.path();
            let meta = fs::symlink_metadata(&path).at(path.display())?;
            sync_below(&path, &meta, device, print)?;
        }
    } else if meta.is_file() {
        let flags = sys::OFlags::RDONLY | sys::OFlags::NOFOLLOW | sys::OFlags::NONBLOCK | sys::OFlags::CLOEXEC;
        match sys::open(path, flags, sys::Mode::empty()) {
            Ok(file) => sys::fsync(&file).at(path.display())?,
            Err(Errno::ACCESS | Errno::PERM) => {}
            Err(e) => return Err(Fail::at(path.display(), e)),
        }
        // What the kernel had of it may have got its time by that.
        print.add(path, &fs::symlink_metadata(path).at(path.display())?);
    }
    Ok(())
}

struct Walk<'a> {
    device: u64,
    root: &'a Path,
    ask: &'a dyn Fn() -> Option<Shown>,
    /// What `ask` said, once it was asked.
    shown: Option<Option<Shown>>,
}

impl Walk<'_> {
    fn look(&mut self, path: &Path, meta: &Metadata) -> Result<(), Fail> {
        if meta.dev() != self.device {
            return Ok(());
        }
        if let Some(value) = less_kept(path, meta)? {
            if !self.is_in_snapshot(path, meta) {
                let text = format!(
                    "keeps less of its history (user.nenrin.history is {value}), so what it is now would be lost; make a \
                     snapshot first (nenrin snapshot create), or restore beside it by --to DEST"
                );
                return Err(Fail::at(path.display(), text));
            }
        }
        if meta.is_dir() {
            for entry in fs::read_dir(path).at(path.display())? {
                let path = entry.at(path.display())?.path();
                let meta = fs::symlink_metadata(&path).at(path.display())?;
                self.look(&path, &meta)?;
            }
        }
        Ok(())
    }

    /// Whether the newest snapshot shows the same inode, unchanged. Both times are the volume's, which has another one for each
    /// state: under `cache=writeback` the kernel's own may be the same for two of them, and a nanosecond off.
    fn is_in_snapshot(&mut self, path: &Path, meta: &Metadata) -> bool {
        let shown = self.shown.get_or_insert_with(self.ask);
        let (Some(shown), Ok(below)) = (shown, path.strip_prefix(self.root)) else { return false };
        let key = |m: Metadata| (m.ino() & INO_MASK, m.ctime(), m.ctime_nsec());
        let [now, snapshot] = [&shown.now, &shown.snapshot].map(|then| then.join(below).metadata().ok().map(key));
        now.is_some_and(|now| now.0 == meta.ino() & INO_MASK) && now == snapshot
    }
}

/// How much is kept, where that is not all. Links have no such attribute to be asked for: they are made with that of their directory.
fn less_kept(path: &Path, meta: &Metadata) -> Result<Option<String>, Fail> {
    // That may itself be reached by a link, as a descriptor is.
    let above = mounts::above(path).join(".");
    let asked = if meta.is_dir() || meta.is_file() { path } else { &above };
    let mut value = [0; 64];
    match sys::lgetxattr(asked, c"user.nenrin.history", value.as_mut_slice()) {
        Ok(bytes) if &value[..bytes] == b"full" => Ok(None),
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&value[..bytes]).into_owned())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(e) => Err(Fail::at(asked.display(), e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that was wrong once leaves files whose times no clock has reached yet.
    #[test]
    fn what_changed_in_the_future_did_not_change_just_now() {
        let now = SystemTime::now();
        assert!(
            is_within_a_step(now, now)
                && is_within_a_step(now - STEP / 2, now)
                && is_within_a_step(now + STEP / 2, now)
        );
        assert!(!is_within_a_step(now + STEP, now) && !is_within_a_step(now - STEP, now));
        let hour = Duration::from_secs(3600);
        assert!(!is_within_a_step(now + hour * 24 * 365, now) && !is_within_a_step(now - hour, now));
    }
}
