//! What keeps less of its history (`user.nenrin.history`), and so may be in no state of the past: it is not replaced unless a
//! snapshot shows it.

use crate::error::{At, Fail};
use crate::mounts;
use crate::restore::names_in;
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
    /// The number of that.
    pub snapshot_cno: u64,
}

/// Who keeps what was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// Any state that shows it.
    State,
    /// Some of it the newest snapshot alone, which has this number.
    Snapshot(u64),
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
    Ok(walk.shown.flatten().map_or(Keeper::State, |shown| Keeper::Snapshot(shown.snapshot_cno)))
}

/// How far apart two changes are, at least, whose times differ: the kernel's clock for them goes in steps.
const STEP: Duration = Duration::from_millis(20);

/// What tells a file or tree from what it is when something in it has changed: names, inodes, and when each of these changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Print {
    /// Of all that is below: a sum of hashes, whatever the order.
    below: u64,
    /// Of what it is itself, but for the time that another name changes, too.
    itself: u64,
    /// That time.
    changed: (i64, i64),
    /// Something had changed just before it was looked at: what changed it right after that may have the same time.
    is_fresh: bool,
    /// The same of that time.
    is_renamed: bool,
}

impl Print {
    /// Of a file that is as `meta` says.
    pub fn of_file(meta: &Metadata) -> Self {
        let mut print = Self::default();
        print.add(Path::new(""), meta);
        print
    }
    /// Of a file or tree as it is, without making sure that all is written.
    pub fn of(path: &Path) -> Result<Self, Fail> {
        let mut print = Self::default();
        let meta = fs::symlink_metadata(path).at(path.display())?;
        let mut walk = Looking { root: path, device: meta.dev(), syncs: false, print: &mut print };
        walk.look(path, &meta).map(|()| print)
    }
    /// `below`: its path from where the tree begins.
    fn add(&mut self, below: &Path, meta: &Metadata) {
        let (changed, modified) = ((meta.ctime(), meta.ctime_nsec()), (meta.mtime(), meta.mtime_nsec()));
        let mut hash = DefaultHasher::new();
        (below, meta.ino(), modified, meta.size()).hash(&mut hash);
        if below.as_os_str().is_empty() {
            (meta.mode(), meta.uid(), meta.gid(), meta.nlink()).hash(&mut hash);
            (self.itself, self.changed) = (hash.finish(), changed);
            (self.is_renamed, self.is_fresh) = (is_just_now(changed), self.is_fresh | is_just_now(modified));
            return;
        }
        changed.hash(&mut hash);
        self.below = self.below.wrapping_add(hash.finish());
        self.is_fresh |= is_just_now(changed);
    }
    /// Whether nothing has changed between the two, so far as times tell.
    pub fn is(&self, other: &Self) -> bool {
        let all = [self.is_fresh, self.is_renamed, other.is_fresh, other.is_renamed];
        self.is_like(other) && self.changed == other.changed && !all.contains(&true)
    }
    /// The same where it got another name between the two, and nothing else.
    pub fn is_still(&self, other: &Self) -> bool {
        self.is_like(other) && !self.is_fresh && !self.is_renamed && !other.is_fresh
    }
    /// Whether both are alike but for that, whatever may have changed with the same time.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.below, self.itself) == (other.below, other.itself)
    }
    /// Whether what it is of is itself what `meta` says.
    pub fn is_itself(&self, meta: &Metadata) -> bool {
        let now = Self::of_file(meta);
        (self.itself, self.changed) == (now.itself, now.changed)
    }
}

/// Whether this time has just come.
fn is_just_now((seconds, nanos): (i64, i64)) -> bool {
    let since = Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0));
    UNIX_EPOCH.checked_add(since).is_some_and(|at| is_within_a_step(at, SystemTime::now()))
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
            Looking { root: path, device: meta.dev(), syncs: true, print: &mut print }.look(path, &meta)?;
        }
        Ok(print)
    };
    let print = once()?;
    if !print.is_fresh && !print.is_renamed {
        return Ok(print);
    }
    thread::sleep(STEP);
    once()
}

/// Takes the print of a tree.
struct Looking<'a> {
    root: &'a Path,
    device: u64,
    /// Syncs its files before.
    syncs: bool,
    print: &'a mut Print,
}

impl Looking<'_> {
    fn look(&mut self, path: &Path, meta: &Metadata) -> Result<(), Fail> {
        let below = path.strip_prefix(self.root).unwrap_or(path);
        let is_ours = meta.dev() == self.device;
        if !(is_ours && meta.is_file() && self.syncs) {
            self.print.add(below, meta);
        }
        if is_ours && meta.is_dir() {
            for name in names_in(path).at(path.display())? {
                let path = path.join(name);
                let meta = fs::symlink_metadata(&path).at(path.display())?;
                self.look(&path, &meta)?;
            }
        } else if is_ours && meta.is_file() && self.syncs {
            let flags = sys::OFlags::RDONLY | sys::OFlags::NOFOLLOW | sys::OFlags::NONBLOCK | sys::OFlags::CLOEXEC;
            match sys::open(path, flags, sys::Mode::empty()) {
                Ok(file) => sys::fsync(&file).at(path.display())?,
                Err(Errno::ACCESS | Errno::PERM) => {}
                Err(e) => return Err(Fail::at(path.display(), e)),
            }
            // What the kernel had of it may have got its time by that.
            self.print.add(below, &fs::symlink_metadata(path).at(path.display())?);
        }
        Ok(())
    }
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
            for name in names_in(path).at(path.display())? {
                let path = path.join(name);
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
        let [now, snapshot] =
            [&shown.now, &shown.snapshot].map(|then| then.join(below).and_then(|then| then.metadata()).ok().map(key));
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
    use std::os::unix::fs::PermissionsExt;

    /// A name of its own changes nothing of what a tree is, and all else does.
    #[test]
    fn a_tree_is_still_what_it_was_under_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        fs::create_dir_all(one.join("sub")).unwrap();
        fs::write(one.join("sub/f"), "same").unwrap();
        let mut before = sync(&one).unwrap();
        assert!(before.is(&Print::of(&one).unwrap()));
        fs::rename(&one, &two).unwrap();
        let now = sync(&two).unwrap();
        assert!(before.is_still(&now) && before.is_like(&now) && !before.is(&now));
        let changes: [&dyn Fn(); 5] = [
            &|| fs::write(two.join("sub/f"), "same").unwrap(),
            &|| fs::rename(two.join("sub/f"), two.join("sub/g")).unwrap(),
            &|| fs::set_permissions(two.join("sub"), PermissionsExt::from_mode(0o700)).unwrap(),
            &|| fs::set_permissions(&two, PermissionsExt::from_mode(0o700)).unwrap(),
            &|| fs::write(two.join("new"), "").unwrap(),
        ];
        for (i, change) in changes.iter().enumerate() {
            before = sync(&two).unwrap();
            change();
            let now = Print::of(&two).unwrap();
            assert!(!before.is_still(&now) && !before.is(&now) && !before.is_like(&now), "{i}");
        }
    }

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
