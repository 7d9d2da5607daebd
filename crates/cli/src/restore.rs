//! Copies a file or a tree, with everything that belongs to it, into a place of
//! its own, and then gives it its name in one step.
//!
//! An ordinary client of the mount: content is asked for by copy_file_range(2),
//! which shares blocks where both ends lie on one volume. Before that it is read.
//!
//! Invariants
//! 1. Until the last step what has the name stays what it was; a failure before leaves
//!    nothing behind.
//! 2. What is replaced is kept in the past, or not replaced.
//! 3. Until the last step nobody but the user who copies can enter the copy, or put something else in its place: it is
//!    made in a directory of its own that is held open, and reached through that.
//! 4. Where the destination lies is decided once, before anything of it is looked at: its directory is held open ([`Spot`]), and what
//!    has the name looked at, kept and reached through that.
//!    What was replaced its owner may still have open, and change: it is removed as [`crate::remove`] does.
//! 5. No block is shared that could not be read just before: what is damaged is left out, wherever the destination lies. Of a file
//!    that is salvaged holes stand for it, and where these are is told.
//! 6. What a volume says gives nobody privileges: who serves it may be anybody.

mod attributes;
mod hidden;
mod in_place;
mod kept;
mod names;
mod place;
mod reading;
mod spot;

use crate::error::{At, Fail, INTERRUPTED};
use crate::less::{self, Shown};
use crate::output::shell_quoted;
use attributes::{Had, has_access_list, is_privileged, mode_then, xattrs_of};
pub use hidden::{has_hidden, is_hidden};
use kept::Done;
pub use kept::{Rest, Unkept};
pub use names::names_in;
use names::{Names, takes_no_link};
use nenrin_core::breaks::{Break, broken};
pub use place::exists;
use place::{Left, Place, Stop, is_replaceable};
use reading::Reading;
use rustix::fs::{self as sys, CWD, FileType, Mode, SeekFrom};
use rustix::io::Errno;
pub use spot::Spot;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Files, of every kind but directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of content, without holes.
    pub bytes: u64,
    /// Inodes whose owner or group only root could have set.
    pub owners_lost: u64,
    /// Inodes that did not get all permissions of then: others are not told to who copies, or no access lists are taken there.
    pub permissions_lost: u64,
    /// Inodes that got permissions of then that had been taken away since.
    pub permissions_back: u64,
    /// Names that are files of their own where no hard links can be made.
    pub links_lost: u64,
}

/// A copy, and what had to be left out of it.
#[derive(Debug)]
pub struct Restored {
    /// What was copied.
    pub copied: Copied,
    /// What was not.
    pub left_out: Vec<LeftOut>,
    /// Of which parts are holes that could not be read.
    pub salvaged: Vec<Salvaged>,
    /// Of which extended attributes do not fit there.
    pub unfit: Vec<Unfit>,
    /// What stayed behind of what was replaced, and why.
    pub rest: Option<Rest>,
    /// Names below a directory that was replaced which the copy does not have, from that directory: what came since. The first of them.
    pub beyond: Vec<PathBuf>,
    /// How many these are, without what is below them.
    pub beyond_count: u64,
    /// Who keeps what was replaced.
    pub keeper: less::Keeper,
    /// Why that is not known any more, where it is not.
    pub unkept: Option<Unkept>,
    /// Files that had more names than came back, and these may stand for something now: a path of each from what was copied.
    pub parted_then: BTreeSet<PathBuf>,
    /// Files of which a name was replaced, and others keep what they have, in the same way.
    pub parted_now: BTreeSet<PathBuf>,
}

/// What becomes of what is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum There {
    /// Nothing may be there.
    Stays,
    /// The copy takes its name.
    Goes,
    /// It is the same file still, and gets what it was: all its names have that.
    Changes,
}

/// What cannot be had of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Where it would have been copied from.
    pub path: PathBuf,
    /// Why it was not.
    pub lack: Lack,
}

/// Something of which extended attributes were left out, since they do not fit where it was copied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Where it was copied from.
    pub path: PathBuf,
    /// The attributes: name, length and why of each.
    pub attributes: Vec<String>,
}

/// A file of which not all could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// Where it was copied from.
    pub path: PathBuf,
    /// The bytes that are a hole in the copy: from, and up to; in order.
    pub bad: Vec<(u64, u64)>,
}

/// Why something cannot be had of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The state knows that it was there, and not what it was.
    Unknown,
    /// It is damaged.
    Unreadable,
    /// Its extended attributes alone are left out: they are more than the kernel lists.
    Attributes,
    /// Who copies may not read it.
    Forbidden,
    /// Its path is longer than a path may be.
    TooLong,
    /// A device node, which who copies may not make.
    Device,
    /// A device node that a user tells of who is not root, as whom it would be made.
    DeviceOfUser,
    /// Where it would go there can be nothing like that: links, names, and sizes that a file system does not have.
    Unfit,
}

impl Lack {
    /// Why something of the state could not be read.
    fn of(e: &io::Error) -> Option<Self> {
        match Errno::from_io_error(e)? {
            Errno::STALE => Some(Self::Unknown),
            Errno::IO => Some(Self::Unreadable),
            Errno::ACCESS | Errno::PERM => Some(Self::Forbidden),
            Errno::NAMETOOLONG => Some(Self::TooLong),
            _ => None,
        }
    }

    /// Why something could not be made on another file system, in a directory in which nobody else makes anything.
    fn of_target(e: &io::Error) -> Option<Self> {
        match Errno::from_io_error(e)? {
            Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::FBIG => Some(Self::Unfit),
            // A name that cannot be, or that is another one with small letters.
            Errno::INVAL | Errno::ILSEQ | Errno::NAMETOOLONG | Errno::EXIST => Some(Self::Unfit),
            _ => None,
        }
    }

    /// In one word, for programs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Unreadable => "damaged",
            Self::Attributes => "attributes",
            Self::Forbidden => "forbidden",
            Self::TooLong => "path-too-long",
            Self::Device | Self::DeviceOfUser => "device",
            Self::Unfit => "unfit",
        }
    }

    /// In words, of something.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Unknown => "is not known",
            Self::Unreadable => "is damaged and cannot be read",
            Self::Attributes => "has more extended attributes than can be listed",
            Self::Forbidden => "may not be read by you",
            Self::TooLong => "has a longer path there than there can be; restore the directory above it by itself",
            Self::Device => "is a device node (only root may make one)",
            Self::DeviceOfUser => "is a device node (none is made of a volume that a user mounted)",
            Self::Unfit => "cannot be made where it was to go (its kind, name or size)",
        }
    }
}

/// What a copy tells, and asks for.
pub struct Calls<'a> {
    /// Device number of the volume that is copied from.
    pub volume: u64,
    /// A user mounted that who is not root, and root copies: what it says gives nobody privileges.
    pub is_of_user: bool,
    /// So much was copied.
    pub progress: &'a mut dyn FnMut(&Copied),
    /// Everything written so far to the volume that is copied from has to be durable: syncfs(2) does not
    /// reach a file system in user space. Where nobody can be asked for that, each file is synced by itself.
    pub sync: Option<&'a mut dyn FnMut() -> Result<(), Fail>>,
    /// What is there now is about to be replaced, and has to be seen by a checkpoint; it was synced.
    pub keep: &'a mut dyn FnMut() -> Result<(), Fail>,
    /// Whether the checkpoint that was made for that is there still, and the snapshot where that is the keeper: meanwhile a checkpoint may
    /// go for want of room, and either be deleted.
    pub is_kept: &'a dyn Fn(less::Keeper) -> Result<bool, Fail>,
    /// The copy is about to get its name, and this had to be left out of it: whether that is as it should be.
    pub fits: &'a mut dyn FnMut(&[LeftOut]) -> Result<(), Fail>,
    /// Where the newest state and the newest snapshot show what is about to be replaced, if there is a snapshot.
    pub shown: &'a dyn Fn() -> Option<Shown>,
    /// Whether to stop: then nothing has changed.
    pub stop: &'a dyn Fn() -> bool,
    /// Of files that are damaged what can be read is copied, too.
    pub salvage: bool,
}

/// Copies `from` to `to`; `there` says what becomes of what has that name.
///
/// # Errors
/// What cannot be read, made or named, and why.
pub fn copy(from: &Path, to: &Spot, there: There, calls: &mut Calls<'_>) -> Result<Restored, Fail> {
    copied(from, to, there, calls).map_err(|e| to.told(e))
}

fn copied(from: &Path, to: &Spot, there: There, calls: &mut Calls<'_>) -> Result<Restored, Fail> {
    let known = match there {
        There::Changes => Some(in_place::same_file(from, to)?),
        There::Goes => fs::symlink_metadata(to.there()).ok(),
        There::Stays => None,
    };
    // Now, so that the checkpoint shows nothing of what is done here; and again below, if more came meanwhile.
    known.as_ref().map_or(Ok(()), |meta| is_replaceable(to.shown(), meta))?;
    let mut kept: Option<less::Print> = None;
    let keeper = Cell::new(less::Keeper::State);
    let mut keep = || {
        let print = less::sync(&to.there())?;
        if !kept.as_ref().is_some_and(|kept| kept.is(&print)) || !(calls.is_kept)(less::Keeper::State)? {
            (calls.keep)()?;
            kept = Some(print);
        }
        less::is_kept(&to.there(), &*calls.shown).map(|by| keeper.set(by)).map(|()| print)
    };
    let place = Place::new(to, calls.volume, known.is_some(), &mut keep)?;
    let mut work = Work::new(calls.progress, calls.stop);
    work.syncs_each = calls.sync.is_none() || !place.is_same_volume;
    work.is_same_volume = place.is_same_volume;
    (work.volume, work.is_of_user) = (calls.volume, calls.is_of_user);
    work.salvages = calls.salvage;
    if there == There::Goes && broken(Break::ReplacedGoesFirst) {
        place.clear();
    }
    let result = work.copy(from, &place.copy(), Path::new(""));
    let (mut all, names, had) = work.ended();
    // What is there instead has no past either.
    let result = match all.left_out.first().filter(|_| known.is_some()) {
        Some(left) => result.and(Err(lost(left))),
        None => result,
    };
    let result = result.and_then(|()| (calls.fits)(&all.left_out));
    let mut sync = || calls.sync.as_mut().map_or(Ok(()), |sync| sync());
    let result = result.map_err(Stop::Before).and_then(|()| match there {
        There::Changes => place.give(known.as_ref(), had.as_ref(), &mut sync, &mut keep).map(|lost| {
            (all.copied.owners_lost, all.copied.permissions_lost) = (lost.owner.into(), lost.permissions.into());
            Done::Changed
        }),
        _ => place.take_name(there == There::Goes, &mut sync, &mut keep),
    });
    all.keeper = keeper.get();
    if there != There::Changes {
        all.parted_then = names.elsewhere();
    }
    match result {
        Ok(done) => Ok(ended(&place, done, all, calls)),
        Err(stop) => Err(given_up(&place, to, stop)),
    }
}

/// What was replaced goes, and is told of before.
fn ended(place: &Place<'_>, done: Done, all: Restored, calls: &Calls<'_>) -> Restored {
    let mut replaced = Names::default();
    let (mut beyond, mut beyond_count) = (Vec::new(), 0);
    if done == Done::Replaced {
        replaced.note_all(&place.copy(), Path::new(""));
        (beyond, beyond_count) = kept::beyond(place, calls.stop);
    }
    let is_there = |path: &PathBuf| fs::symlink_metadata(place.there().join(path)).is_ok();
    let parted_now = replaced.elsewhere().into_iter().filter(is_there).collect();
    // Last of all, since nothing else has what goes then.
    let (rest, unkept) = kept::end(place, done, all.keeper, calls.is_kept);
    Restored { beyond, beyond_count, parted_now, rest, unkept, ..all }
}

/// What was copied in vain goes, and what else lies where it was made is told.
fn given_up(place: &Place<'_>, to: &Spot, stop: Stop) -> Fail {
    let here = |e: Fail| Fail {
        message: e.message.replace(&place.copy().display().to_string(), &to.shown().display().to_string()),
        ..e
    };
    match stop {
        Stop::Before(e) | Stop::After(e, Left::Nothing) => {
            // Whatever else is wrong. After that there is nothing in it.
            let _ = place.tidy(&mut || Ok(()));
            here(e)
        }
        Stop::After(e, left) => {
            let (e, kept) = (here(e), place.named());
            let what = match left {
                Left::Replaced => "was there before",
                Left::Wanted => "it was to be",
                _ => "had its name meanwhile",
            };
            Fail { message: format!("{}; what {what} is in {}", e.message, kept.display()), ..e }
        }
    }
}

/// What cannot be had cannot take the place of what is there.
fn lost(left: &LeftOut) -> Fail {
    let why = left.lack.words();
    let text = format!("{why} in that state, and would be lost where it is now; --to DEST restores the rest beside");
    Fail::at(left.path.display(), text)
}

/// What helps when the volume is full.
pub fn with_way_out(e: Fail, to: &Path, is_same_volume: bool) -> Fail {
    if !is_same_volume || !e.message.to_lowercase().contains("no space left") {
        return e;
    }
    let (place, said) = (format!("{}: ", to.display()), &e.message);
    let said = said.strip_prefix(&place).unwrap_or(said);
    let text = "names and the index of what comes back need some, and what no snapshot keeps counts as in use again; keep the state \
                first (nenrin snapshot create --of N DIR NAME), then removing files makes room, or deleting snapshots that do not have \
                what you look for (nenrin snapshot list says how much)";
    Fail { message: format!("{place}{said}: {text}"), ..e }
}

/// What helps on a file system that keeps no permissions, where a copy is never private: `from` is what was to be copied.
pub fn with_plain_copy(e: Fail, from: &Path, to: &Path) -> Fail {
    if !e.message.ends_with(place::NO_PERMISSIONS) {
        return e;
    }
    let (from, to) = (shell_quoted(from), shell_quoted(to));
    let text = format!("{}: cp -r --preserve=timestamps {from} {to} copies what it can take", e.message);
    Fail { message: text, ..e }
}

/// Bytes read, or copied through memory, before somebody may ask to stop.
const COPY_BYTES: u64 = 16 << 20;
/// Of these, read and written at a time.
const PIECE_BYTES: usize = 1 << 20;

struct Work<'a> {
    copied: Copied,
    /// Where inodes with several names were copied to.
    links: HashMap<u64, PathBuf>,
    /// How many of these they have, and how many were copied.
    names: Names,
    progress: &'a mut dyn FnMut(&Copied),
    stop: &'a dyn Fn() -> bool,
    /// Nothing else makes the copies durable.
    syncs_each: bool,
    /// The copy lies on the volume, and shares its blocks.
    is_same_volume: bool,
    /// See [`Calls`].
    volume: u64,
    /// See [`Calls`].
    is_of_user: bool,
    reading: Reading,
    /// Directories above that are copied, too.
    depth: usize,
    /// What cannot be had of the state.
    left_out: Vec<LeftOut>,
    salvages: bool,
    /// Bytes of the file at hand that cannot be read.
    bad: Vec<(u64, u64)>,
    salvaged: Vec<Salvaged>,
    unfit: Vec<Unfit>,
    /// What the first of all had, which is a file or the root of a tree.
    had: Option<Had>,
}

/// What is known of something before it is made.
struct Known {
    had: Had,
    /// An access list is shown of it.
    has_list: bool,
    /// It is another name of what is there, where no link can be made.
    is_parted: bool,
}

/// At which end copying of content failed.
enum Failed {
    Source(io::Error),
    Target(io::Error),
    /// Somebody asked to stop.
    Stopped,
}

impl Failed {
    fn why(self) -> io::Error {
        match self {
            Self::Source(e) | Self::Target(e) => e,
            Self::Stopped => io::ErrorKind::Interrupted.into(),
        }
    }
}

impl<'a> Work<'a> {
    /// Of what is read on the way, whole, and made durable by somebody else.
    fn new(progress: &'a mut dyn FnMut(&Copied), stop: &'a dyn Fn() -> bool) -> Self {
        Self {
            copied: Copied::default(),
            links: HashMap::new(),
            names: Names::default(),
            progress,
            stop,
            syncs_each: false,
            is_same_volume: false,
            volume: 0,
            is_of_user: false,
            reading: Reading::default(),
            depth: 0,
            left_out: Vec::new(),
            salvages: false,
            bad: Vec::new(),
            salvaged: Vec::new(),
            unfit: Vec::new(),
            had: None,
        }
    }

    /// What was copied; names of it; what the first of all had.
    fn ended(self) -> (Restored, Names, Option<Had>) {
        let restored = Restored {
            copied: self.copied,
            left_out: self.left_out,
            salvaged: self.salvaged,
            unfit: self.unfit,
            rest: None,
            beyond: Vec::new(),
            beyond_count: 0,
            keeper: less::Keeper::State,
            unkept: None,
            parted_then: BTreeSet::new(),
            parted_now: BTreeSet::new(),
        };
        (restored, self.names, self.had)
    }

    /// Copies what is at `from`, which is `path` from the root of all that is copied. As deep as a tree may be, what this takes of the
    /// stack it takes for each directory above: so what is done for each by itself is done elsewhere.
    fn copy(&mut self, from: &Path, to: &Path, path: &Path) -> Result<(), Fail> {
        if (self.stop)() {
            return Err(stopped());
        }
        let Some(known) = self.begun(from, to, path)? else { return Ok(()) };
        let is_made = match known.had.meta.is_dir() {
            true => self.directory(from, to, path)?,
            false => self.file(from, to, &known.had.meta)?,
        };
        if is_made {
            self.made_of(*known, from, to, path)?;
        }
        (self.progress)(&self.copied);
        Ok(())
    }

    /// What is known of it; nothing where it is left out, or was made as another name of what is there.
    #[inline(never)]
    fn begun(&mut self, from: &Path, to: &Path, path: &Path) -> Result<Option<Box<Known>>, Fail> {
        let Some(meta) = self.known(from, fs::symlink_metadata(from))? else { return Ok(None) };
        let is_parted = match self.links.get(&meta.ino()).map(|first| fs::hard_link(first, to)) {
            None => false,
            Some(Err(e)) if !self.is_same_volume && takes_no_link(&e) => true,
            Some(linked) => {
                if self.made(from, to, linked)?.is_some() {
                    self.names.note(path, &meta);
                }
                return Ok(None);
            }
        };
        // First, since nothing is made of what has to be left out.
        let listed = match xattrs_of(from) {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::TOOBIG) => {
                self.left_out.push(LeftOut { path: from.to_owned(), lack: Lack::Attributes });
                Ok(Vec::new())
            }
            other => other,
        };
        let Some(mut xattrs) = self.known(from, listed)? else { return Ok(None) };
        xattrs.retain(|(name, _)| !is_privileged(name, self.is_of_user));
        let has_list = has_access_list(&xattrs);
        let Some(told) = self.known(from, mode_then(from, &meta, &mut xattrs))? else { return Ok(None) };
        Ok(Some(Box::new(Known { had: Had { meta, told, xattrs }, has_list, is_parted })))
    }

    /// Gives what was made everything but content, and counts it.
    #[inline(never)]
    fn made_of(&mut self, known: Known, from: &Path, to: &Path, path: &Path) -> Result<(), Fail> {
        let Known { had, has_list, is_parted } = known;
        self.copied.links_lost += u64::from(is_parted);
        self.copied.permissions_back += u64::from(is_more(&had, has_list));
        let unfit = self.attributes(to, &had)?;
        if !unfit.is_empty() {
            self.unfit.push(Unfit { path: from.to_owned(), attributes: unfit });
        }
        self.count(to, path, &had.meta);
        if self.depth == 0 {
            self.had = Some(had);
        }
        Ok(())
    }

    /// Counts what is at `to` now.
    fn count(&mut self, to: &Path, path: &Path, meta: &Metadata) {
        if meta.is_dir() {
            self.copied.directories += 1;
            return;
        }
        self.copied.files += 1;
        self.names.note(path, meta);
        if meta.nlink() > 1 {
            self.links.insert(meta.ino(), to.to_owned());
        }
    }

    /// What was read of `from`; nothing where it cannot be had, and the rest of what is copied can do without.
    fn known<T>(&mut self, from: &Path, read: io::Result<T>) -> Result<Option<T>, Fail> {
        let e = match read {
            Ok(read) => return Ok(Some(read)),
            Err(e) => e,
        };
        let text = match Lack::of(&e) {
            Some(lack) if self.depth > 0 => {
                self.left_out.push(LeftOut { path: from.to_owned(), lack });
                return Ok(None);
            }
            Some(Lack::Forbidden | Lack::TooLong) | None => e.to_string(),
            Some(lack @ Lack::Unreadable)
                if !self.salvages && fs::symlink_metadata(from).is_ok_and(|m| m.is_file()) =>
            {
                let help =
                    "--salvage with --to DEST restores what can be read of it, nenrin history tells its other states";
                format!("{} in that state; {help}: {e}", lack.words())
            }
            Some(lack) => format!("{} in that state; nenrin history tells what is known of it: {e}", lack.words()),
        };
        Err(Fail::at(from.display(), text))
    }

    /// Whether it was made: what is not known is not.
    fn directory(&mut self, from: &Path, to: &Path, path: &Path) -> Result<bool, Fail> {
        // What is in it comes at once or not at all.
        let Some(entries) = self.known(from, names_in(from))? else { return Ok(false) };
        let made = DirBuilder::new().mode(0o700).create(to);
        if self.made(from, to, made)?.is_none() {
            return Ok(false);
        }
        self.depth += 1;
        for name in entries {
            // A state that was cut while something was restored has that, half made.
            let is_private = |m: Metadata| m.is_dir() && m.mode() & 0o777 == 0o700;
            if is_hidden(name.as_encoded_bytes()) && fs::symlink_metadata(from.join(&name)).is_ok_and(is_private) {
                continue;
            }
            self.copy(&from.join(&name), &to.join(&name), &path.join(&name))?;
        }
        self.depth -= 1;
        Ok(true)
    }

    /// The same of anything else.
    #[inline(never)]
    fn file(&mut self, from: &Path, to: &Path, meta: &Metadata) -> Result<bool, Fail> {
        let kind = meta.file_type();
        if kind.is_file() {
            return self.regular(from, to, meta.len());
        }
        if kind.is_symlink() {
            let Some(target) = self.known(from, fs::read_link(from))? else { return Ok(false) };
            return self.made(from, to, symlink(target, to)).map(|made| made.is_some());
        }
        let special = [
            (kind.is_fifo(), FileType::Fifo),
            (kind.is_socket(), FileType::Socket),
            (kind.is_char_device(), FileType::CharacterDevice),
            (kind.is_block_device(), FileType::BlockDevice),
        ];
        let kind = special.into_iter().find(|(is, _)| *is).map_or(FileType::Unknown, |(_, kind)| kind);
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        if is_device && self.is_of_user {
            return self.without(from, Lack::DeviceOfUser);
        }
        match sys::mknodat(CWD, to, kind, Mode::from_raw_mode(0o600), meta.rdev()) {
            Err(Errno::PERM) if is_device => self.without(from, Lack::Device),
            made => self.made(from, to, made.map_err(io::Error::from)).map(|made| made.is_some()),
        }
    }

    /// What was made of `from`; nothing where there can be nothing like that, and the rest of what is copied can do without.
    fn made<T>(&mut self, from: &Path, to: &Path, made: io::Result<T>) -> Result<Option<T>, Fail> {
        match made {
            Err(e) if !self.is_same_volume && self.depth > 0 && Lack::of_target(&e).is_some() => {
                self.left_out.push(LeftOut { path: from.to_owned(), lack: Lack::Unfit });
                Ok(None)
            }
            made => made.map(Some).at(to.display()),
        }
    }

    /// Goes on without what cannot be made, where that is not all that is wanted.
    fn without(&mut self, from: &Path, lack: Lack) -> Result<bool, Fail> {
        if self.depth == 0 {
            return Err(Fail::at(from.display(), lack.words()));
        }
        self.left_out.push(LeftOut { path: from.to_owned(), lack });
        Ok(false)
    }

    fn regular(&mut self, from: &Path, to: &Path, bytes: u64) -> Result<bool, Fail> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(from);
        let Some(source) = self.known(from, opened)? else { return Ok(false) };
        // Who serves the volume may have a link lead out of it by now.
        let is = source.metadata().at(from.display())?;
        if (is.dev(), is.is_file()) != (self.volume, true) {
            return Err(Fail::at(from.display(), "became something else while it was copied"));
        }
        let target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to);
        let Some(target) = self.made(from, to, target)? else { return Ok(false) };
        let before = self.copied.bytes;
        self.bad.clear();
        match self.content(&source, &target, bytes) {
            Ok(()) => {}
            Err(Failed::Stopped) => return Err(stopped()),
            Err(Failed::Source(e)) => {
                self.copied.bytes = before;
                fs::remove_file(to).at(to.display())?;
                return self.known(from, Err::<(), _>(e)).map(|_| false);
            }
            Err(Failed::Target(e)) => {
                self.copied.bytes = before;
                let _ = fs::remove_file(to);
                return self.made(from, to, Err::<(), _>(e)).map(|_| false);
            }
        }
        if self.syncs_each {
            target.sync_all().at(to.display())?;
        }
        if !self.bad.is_empty() {
            self.salvaged.push(Salvaged { path: from.to_owned(), bad: std::mem::take(&mut self.bad) });
        }
        Ok(true)
    }

    /// Content where there is some, holes where there are holes.
    fn content(&mut self, source: &File, target: &File, size: u64) -> Result<(), Failed> {
        let unread = |e: Errno| Failed::Source(e.into());
        let mut at = 0;
        while at < size {
            let begin = match sys::seek(source, SeekFrom::Data(at)) {
                Ok(begin) => begin,
                Err(Errno::NXIO) => break,
                Err(e) => return Err(unread(e)),
            };
            let end = sys::seek(source, SeekFrom::Hole(begin)).map_err(unread)?.min(size);
            self.range(source, target, begin, end)?;
            at = end;
        }
        target.set_len(size).map_err(Failed::Target)
    }

    fn range(&mut self, source: &File, target: &File, begin: u64, end: u64) -> Result<(), Failed> {
        let (mut from, mut to) = (begin, begin);
        // Up to here it may be asked for: off the volume it is read on the way.
        let mut known = if self.is_same_volume || self.salvages { begin } else { end };
        while from < end {
            if (self.stop)() {
                return Err(Failed::Stopped);
            }
            if from == known {
                known = end.min(from + COPY_BYTES);
                match self.reading.read(source, from, known) {
                    Err(e) if self.salvages && Lack::of(&e) == Some(Lack::Unreadable) => {
                        let (first, last) = match self.reading.good(source, from, known, self.stop) {
                            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Err(Failed::Stopped),
                            good => good.map_err(Failed::Source)?,
                        };
                        note_bad(&mut self.bad, from, first);
                        (from, to, known) = (first, first, last);
                        continue;
                    }
                    read => read.map_err(Failed::Source)?,
                }
            }
            let bytes = usize::try_from(known - from).unwrap_or(usize::MAX).min(1 << 30);
            match sys::copy_file_range(source, Some(&mut from), target, Some(&mut to), bytes) {
                // Shorter by now; a state of the past never is.
                Ok(0) => return Err(Failed::Source(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.copied.bytes += n as u64,
                // The destination lies elsewhere; or one of both fails, and then it is seen which.
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::IO) => {
                    let n = through_memory(source, target, from, (known - from).min(COPY_BYTES))?;
                    self.copied.bytes += n;
                    (from, to) = (from + n, to + n);
                }
                Err(e @ Errno::STALE) => return Err(Failed::Source(e.into())),
                Err(e) => return Err(Failed::Target(e.into())),
            }
            (self.progress)(&self.copied);
        }
        Ok(())
    }
}

/// Whether something had other permissions than it has now, which are shown; `has_list`: an access list is, too.
fn is_more(had: &Had, has_list: bool) -> bool {
    let (meta, kind) = (&had.meta, had.meta.file_type());
    // Of a device node the past shows none, whether they are others now or not.
    let has_none = kind.is_symlink() || kind.is_char_device() || kind.is_block_device();
    let is_other = |mode: u32| mode & 0o7777 != meta.mode() & 0o7777 || has_list != has_access_list(&had.xattrs);
    !has_none && had.told.is_some_and(is_other)
}

/// Adds a range of bytes that cannot be read, which follows all others.
fn note_bad(bad: &mut Vec<(u64, u64)>, from: u64, to: u64) {
    match bad.last_mut() {
        Some(last) if last.1 == from => last.1 = to,
        _ if from < to => bad.push((from, to)),
        _ => {}
    }
}

/// Somebody asked to stop.
fn stopped() -> Fail {
    Fail::new("interrupted; nothing was restored").with_code(INTERRUPTED)
}

/// Copies bytes to the same place of another file.
fn through_memory(source: &File, target: &File, at: u64, bytes: u64) -> Result<u64, Failed> {
    let mut piece = vec![0; (bytes as usize).min(PIECE_BYTES)];
    let mut done = 0;
    while done < bytes {
        let some = piece.len().min((bytes - done) as usize);
        let piece = &mut piece[..some];
        source.read_exact_at(piece, at + done).map_err(Failed::Source)?;
        target.write_all_at(piece, at + done).map_err(Failed::Target)?;
        done += some as u64;
    }
    Ok(done)
}

#[cfg(test)]
mod tests;
