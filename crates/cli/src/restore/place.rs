//! Where a copy is made, and how it gets its name.

use super::attributes::Had;
use super::hidden::{maker, new_name};
use super::in_place;
use super::kept::{Done, kept_name};
use super::spot::Spot;
use crate::error::{At, Fail};
use crate::less::{self, Print};
use crate::{mounts, output, remove};
use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Sees to it that what is about to be replaced is in a checkpoint, as it was when it was looked at for that: what told it from others.
pub(super) type Keep<'a> = &'a mut dyn FnMut() -> Result<Print, Fail>;

/// How often what is written to meanwhile is kept anew.
const KEPT_ANEW_MAX: u32 = 10;
/// The same of a directory: each time it loses its name for a moment, and who looks finds the copy instead.
const TREES_KEPT_ANEW_MAX: u32 = 3;
/// Names that are tried for what stays, where others have the first ones.
const KEPT_NAMES_MAX: u32 = 1000;

/// Why the end was not reached: before the name changed hands, or when it had, and what is in the place of the copy since.
pub(super) enum Stop {
    Before(Fail),
    After(Fail, Left),
}

/// What is where a copy was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// Nothing but what was copied.
    Nothing,
    /// What was replaced.
    Replaced,
    /// What a file that has lost what it had was to get.
    Wanted,
    /// What had the name for a moment: the copy, to which somebody gave more, or whatever he had there instead.
    Given,
}

impl From<Fail> for Stop {
    fn from(e: Fail) -> Self {
        Self::Before(e)
    }
}

/// A private directory beside the destination, in which the copy is made.
pub(super) struct Place<'a> {
    to: &'a Spot,
    hidden: OsString,
    private: File,
    /// What is copied lies on the same volume.
    pub is_same_volume: bool,
}

impl<'a> Place<'a> {
    /// `volume`: device number of what is copied from. `keeps`: what is there will be replaced.
    pub fn new(to: &'a Spot, volume: u64, keeps: bool, keep: Keep<'_>) -> Result<Self, Fail> {
        let (parent, above) = (to.parent(), mounts::above(to.shown()));
        let is_same_volume = to.device() == volume;
        if keeps && !is_same_volume {
            return Err(no_past(to.shown()));
        }
        for left in left_over(parent) {
            output::notice(left_behind(&above.join(left)));
        }
        if keeps {
            keep()?;
        }
        let hidden = new_name().at("/dev/urandom")?;
        sys::mkdirat(parent, &hidden, Mode::RWXU).at(above.display())?;
        match private_directory(parent, &hidden) {
            Ok(private) => Ok(Self { to, hidden, private, is_same_volume }),
            Err(why) => {
                let _ = sys::unlinkat(parent, &hidden, AtFlags::REMOVEDIR);
                Err(Fail::at(above.display(), why))
            }
        }
    }

    /// Where the copy is, whatever becomes of the names above it.
    pub fn copy(&self) -> PathBuf {
        within(&self.private).join("copy")
    }

    /// The directory in which it is, for people.
    pub fn shown(&self) -> PathBuf {
        self.to.shown().with_file_name(&self.hidden)
    }

    /// What has the name, as [`Place::copy`].
    pub fn there(&self) -> PathBuf {
        self.to.there()
    }

    /// Durable first, so that no crash shows an empty file under the name. Whether something was replaced by that.
    pub fn take_name(
        &self,
        replace: bool,
        sync: &mut dyn FnMut() -> Result<(), Fail>,
        keep: Keep<'_>,
    ) -> Result<Done, Stop> {
        let (place, parent, name) = (self.to.shown().display(), self.to.parent(), self.to.name());
        sys::syncfs(parent).at(&place)?;
        sync()?;
        let rename = |flags| sys::renameat_with(&self.private, "copy", parent, name, flags);
        // A directory that moves to another one has to be writable, for its "..".
        let movable = Movable::new(&self.copy()).at(&place)?;
        let mut done = Done::Nothing;
        let named = match rename(RenameFlags::NOREPLACE) {
            // A file system without such renames; it is not one of ours.
            Err(Errno::INVAL | Errno::NOSYS) => take_free(&self.private, parent, name),
            other => other,
        };
        match named {
            Err(Errno::EXIST) if replace => {
                self.exchange(keep)?;
                done = Done::Replaced;
            }
            Err(Errno::EXIST) => return Err(exists(self.to.shown(), self.is_same_volume).into()),
            other => other.at(&place)?,
        }
        let durable = movable.restore().and_then(|()| parent.sync_all()).at(&place).and_then(|()| sync());
        let left = if done == Done::Replaced { Left::Replaced } else { Left::Nothing };
        durable.map(|()| done).map_err(|e| Stop::After(e, left))
    }

    /// The copy and what is there change names, where that is then what was kept of it. What somebody gave to the copy, or to its name,
    /// while it had that and lost it again, stays.
    fn exchange(&self, keep: Keep<'_>) -> Result<(), Stop> {
        let place = self.to.shown().display();
        let (made, print) = (fs::symlink_metadata(self.copy()).at(&place)?, Print::of(&self.copy()).ok());
        let is_tree = fs::symlink_metadata(self.there()).is_ok_and(|there| there.is_dir());
        let mut tries = 0..if is_tree { TREES_KEPT_ANEW_MAX } else { KEPT_ANEW_MAX };
        let why = loop {
            match tries.next().map(|_| self.exchange_once(keep, &made)) {
                Some(Ok(true)) => return Ok(()),
                Some(Ok(false)) => {}
                Some(Err(Stop::Before(e))) => break e,
                Some(after) => return after.map(drop),
                None => {
                    let text = "changed each time it was replaced, so that no checkpoint has what it is now; end that first; \
                                nothing was restored";
                    break Fail::at(&place, text);
                }
            }
        };
        // Where somebody took the copy away there is nothing.
        let is_gone = || fs::symlink_metadata(self.copy()).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        let is_as_made = || print.is_some_and(|print| Print::of(&self.copy()).is_ok_and(|now| print.is_like(&now)));
        Err(Stop::After(why, if is_gone() || is_as_made() { Left::Nothing } else { Left::Given }))
    }

    /// The same once. Whether it is what was kept is seen when no path leads to it any more, by which it could change unseen; where it is
    /// not, it gets its name back.
    fn exchange_once(&self, keep: Keep<'_>, made: &Metadata) -> Result<bool, Stop> {
        let (place, copy) = (self.to.shown().display(), self.copy());
        let rename =
            || sys::renameat_with(&self.private, "copy", self.to.parent(), self.to.name(), RenameFlags::EXCHANGE);
        self.may_be_replaced()?;
        let kept = keep()?;
        // As long as it has its name that tells more than afterwards.
        if !kept.is_itself(&fs::symlink_metadata(self.there()).at(&place)?) {
            return Ok(false);
        }
        let old = Movable::new(&self.there()).at(&place)?;
        if let Err(e) = rename() {
            let _ = old.restore();
            return Err(Fail::at(&place, e).into());
        }
        let now = old.restore().at(&place).and_then(|()| less::sync(&copy));
        if now.is_ok_and(|now| kept.is_still(&now)) {
            return Ok(true);
        }
        let old = Movable::new(&copy);
        if let Err(e) = rename() {
            let text = format!("changed while it was replaced, and did not get its name back: {e}");
            return Err(Stop::After(Fail::at(&place, text), Left::Replaced));
        }
        let _ = old.map(Movable::restore);
        let is_copy = |now: Metadata| (now.dev(), now.ino()) == (made.dev(), made.ino());
        if !fs::symlink_metadata(&copy).is_ok_and(is_copy) {
            let text = "became something else meanwhile, and was left as it is";
            return Err(Stop::After(Fail::at(&place, text), Left::Given));
        }
        Ok(false)
    }

    /// What has the name, and is `known`, gets what the copy has, and what it `had` besides, and keeps its names. What it was is kept
    /// before. What it could not have.
    pub fn give(
        &self,
        known: Option<&Metadata>,
        had: Option<&Had>,
        sync: &mut dyn FnMut() -> Result<(), Fail>,
        keep: Keep<'_>,
    ) -> Result<in_place::Lost, Stop> {
        let shown = self.to.shown();
        let gone = || Fail::at(shown.display(), "went meanwhile; nothing was restored");
        let (known, had) = known.zip(had).ok_or_else(gone)?;
        let wanted = in_place::Wanted { copy: self.copy(), had };
        self.may_be_replaced()?;
        sync()?;
        for _ in 0..KEPT_ANEW_MAX {
            let kept = keep()?;
            // What a program wrote since is in no checkpoint.
            let is_kept = |now: &Metadata| kept.is(&Print::of_file(now));
            if let Some(lost) = in_place::give(&wanted, &self.there(), (known, &is_kept), shown)? {
                return Ok(lost);
            }
        }
        let text = "is written to all the time, so that no checkpoint has what it is now; end that first; nothing was restored";
        Err(Fail::at(shown.display(), text).into())
    }

    /// What has the name is gone, as a deliberate break has it.
    pub fn clear(&self) {
        let there = self.there();
        let _ = fs::remove_file(&there).or_else(|_| fs::remove_dir_all(&there));
    }

    /// What is replaced is removed, with all that is in it: only where it has a past.
    fn may_be_replaced(&self) -> Result<(), Fail> {
        let place = self.to.shown().display();
        let meta = fs::symlink_metadata(self.there()).at(place.to_string())?;
        is_replaceable(self.to.shown(), &meta)?;
        if !self.is_same_volume {
            return Err(no_past(self.to.shown()));
        }
        if !meta.is_dir() {
            return Ok(());
        }
        let real = fs::canonicalize(self.there()).at(place.to_string())?;
        match mounts::all().at("/proc/self/mountinfo")?.iter().find(|m| m.point.starts_with(&real)) {
            Some(m) => Err(Fail::at(m.point.display(), "something is mounted there; unmount it first")),
            None => Ok(()),
        }
    }

    /// Gives the private directory, whose content stays, a name that says what it is and that nothing has, and the content its own. The
    /// path, for people: where there can be no such name that of before.
    pub fn named(&self) -> PathBuf {
        let parent = self.to.parent();
        let _ = sys::renameat_with(&self.private, "copy", &self.private, self.to.name(), RenameFlags::NOREPLACE);
        for nth in 0..KEPT_NAMES_MAX {
            let new = kept_name(self.to.name(), nth);
            match sys::renameat_with(parent, &self.hidden, parent, &new, RenameFlags::NOREPLACE) {
                Ok(()) => return self.to.shown().with_file_name(new),
                Err(Errno::EXIST) => {}
                Err(_) => break,
            }
        }
        self.shown()
    }

    /// What is in the private directory by now goes, as long as it `may`: what was replaced, or what was copied in vain.
    pub fn tidy(&self, may: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        let device = self.private.metadata()?.dev();
        match remove::tree(&self.private, c"copy", device, may) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        Ok(sys::unlinkat(self.to.parent(), &self.hidden, AtFlags::REMOVEDIR)?)
    }
}

/// Gives a copy a name that nothing has, where a rename replaces what has it.
///
/// # Errors
/// [`Errno::EXIST`] where something has it; what the kernel says.
pub(super) fn take_free(private: &File, parent: &File, name: &OsStr) -> Result<(), Errno> {
    let mode = |of: &File, name: &OsStr| sys::statat(of, name, AtFlags::SYMLINK_NOFOLLOW).map(|s| s.st_mode);
    if FileType::from_raw_mode(mode(private, OsStr::new("copy"))?) != FileType::Directory {
        match sys::linkat(private, "copy", parent, name, AtFlags::empty()) {
            // Without links, too, there is nothing that does not replace: it is looked at just before.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {}
            linked => {
                linked?;
                // Where it stays it goes with the directory that it is in.
                let _ = sys::unlinkat(private, "copy", AtFlags::empty());
                return Ok(());
            }
        }
    }
    // Whatever gets the name meanwhile, of a directory nothing but an empty one is replaced.
    match mode(parent, name) {
        Ok(_) => Err(Errno::EXIST),
        Err(Errno::NOENT) => sys::renameat(private, "copy", parent, name),
        Err(e) => Err(e),
    }
}

/// The path of an open directory that stays right when it is moved.
pub(super) fn within(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

/// Whoever names a device as what to restore to hardly means to lose it.
pub(super) fn is_replaceable(to: &Path, meta: &Metadata) -> Result<(), Fail> {
    let kind = meta.file_type();
    if kind.is_file() || kind.is_symlink() || kind.is_dir() {
        return Ok(());
    }
    let text = "is neither a file nor a symbolic link nor a directory, and is not replaced; move it away first";
    Err(Fail::at(to.display(), text))
}

/// What is replaced has to stay in the past, and off the volume nothing has one.
fn no_past(to: &Path) -> Fail {
    Fail::at(to.display(), "is on a file system that keeps no past of it, and is not replaced; move it away first")
}

/// What a process left that was killed; another may have its number by now.
fn left_behind(place: &Path) -> Fail {
    Fail::at(place.display(), "left from a restore that was broken off: look into it, then remove it")
}

/// Private directories in `above` whose processes are gone; this one has made none yet.
fn left_over(above: &File) -> Vec<OsString> {
    let Ok(entries) = fs::read_dir(within(above)) else { return Vec::new() };
    let is_gone = |pid: u32| pid == std::process::id() || !Path::new("/proc").join(pid.to_string()).exists();
    let is_left = |name: &OsString| maker(name.as_encoded_bytes()).is_some_and(is_gone);
    entries.flatten().map(|e| e.file_name()).filter(is_left).collect()
}

/// Why nothing is restored to FAT and the like.
pub(super) const NO_PERMISSIONS: &str =
    "this file system keeps no permissions, so that what is restored would be open to others meanwhile";

/// Opens the directory that was just made, if it is ours alone.
fn private_directory(parent: &File, hidden: &OsStr) -> Result<File, String> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let private = File::from(sys::openat(parent, hidden, flags, Mode::empty()).map_err(|e| e.to_string())?);
    let meta = private.metadata().map_err(|e| e.to_string())?;
    if meta.uid() != crate::sys::euid() || meta.mode() & 0o077 != 0 {
        return Err(NO_PERMISSIONS.into());
    }
    // What is made in it shall not inherit access lists.
    match sys::fremovexattr(&private, c"system.posix_acl_default") {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(private),
        Err(e) => Err(e.to_string()),
    }
}

/// A directory that may be moved, whatever its mode, until it gets that back.
pub(super) struct Movable(pub Option<(File, Metadata)>);

impl Movable {
    pub fn new(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(directory) = sys::open(path, flags, Mode::empty()) else { return Ok(Self(None)) };
        let directory = File::from(directory);
        let meta = directory.metadata()?;
        if meta.mode() & 0o200 != 0 {
            return Ok(Self(None));
        }
        // Who is not its owner is told by the rename.
        let changed = directory.set_permissions(Permissions::from_mode(meta.mode() & 0o7777 | 0o200));
        Ok(Self(changed.is_ok().then_some((directory, meta))))
    }
    pub fn restore(mut self) -> io::Result<()> {
        let Some((directory, meta)) = self.0.take() else { return Ok(()) };
        directory.set_permissions(Permissions::from_mode(meta.mode() & 0o7777))
    }
}

/// The failure when something is in the way. `is_same_volume`: it lies where it would stay in the past.
pub fn exists(to: &Path, is_same_volume: bool) -> Fail {
    let text = match is_same_volume {
        true => "is there already; --force replaces it, --to DEST restores beside it",
        false => {
            "is there already, on a file system that keeps no past of it, and is not replaced; move it away first, or say \
             another DEST"
        }
    };
    Fail::at(to.display(), text)
}
