//! What differs between two states of a directory. Directories are read in
//! pieces, so that nobody has to wait for the walk.

use crate::control::{DiffData, PART_ENTRIES};
use crate::error::Fail;
use crate::states::{kind, no_text};
use nenrin_core::{At, Attr, DirEntry, Error, FileKind, Fs};
use nenrin_format::{Ino, Time};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Entries read without letting others in.
const ENTRIES_AT_ONCE: usize = 1024;

/// Something is told so often, be it nothing: whether anybody still waits for it is seen by that.
pub const TOLD_EVERY: Duration = Duration::from_secs(1);

/// What of an inode counts as a change; reading alone changes nothing.
#[derive(PartialEq)]
struct Seen {
    kind: FileKind,
    size: u64,
    mode: u32,
    nlink: u32,
    owner: (u32, u32),
    times: (Time, Time),
}

impl Seen {
    fn of(a: &Attr) -> Self {
        Self {
            kind: a.kind(),
            size: a.size,
            mode: a.mode,
            nlink: a.nlink,
            owner: (a.uid, a.gid),
            times: (a.mtime, a.ctime),
        }
    }
}

/// Something that only one of the states has under a path, and both have under some.
struct Lone {
    ino: Ino,
    path: Vec<u8>,
    seen: Seen,
}

/// A directory to compare: in the old state, in the new one, and its path.
struct Pair {
    old: Option<Ino>,
    new: Option<Ino>,
    path: Vec<u8>,
    /// The path that it has in the old state, where that is another.
    from: Option<Vec<u8>>,
}

/// Takes some of what was found.
type Each<'a> = dyn FnMut(Vec<DiffData>) -> Result<(), Fail> + 'a;

struct Walk<'a> {
    fs: &'a Fs,
    old: At,
    new: At,
    to_do: Vec<Pair>,
    gone: Vec<Lone>,
    come: Vec<Lone>,
    /// Directories among these that were not looked into: whoever was only renamed is compared with itself.
    gone_to_do: HashMap<Ino, Vec<u8>>,
    come_to_do: HashMap<Ino, Vec<u8>>,
    found: Vec<DiffData>,
    each: &'a mut Each<'a>,
    /// Whether anybody still waits for it.
    wanted: &'a dyn Fn() -> bool,
    /// When it got something.
    told_at: Instant,
}

/// Tells what differs below `path` (from the root of the volume) between an old state and a new one, in any order and some at a
/// time; the rest is returned. No more is kept than directories to be compared, and what may have been renamed.
///
/// # Errors
/// Neither state has such a directory; damage; a state that was let go meanwhile; what `each` says; that it is not `wanted` any more.
pub fn between(
    fs: &Fs,
    path: &Path,
    (old, new): (At, At),
    each: &mut Each<'_>,
    wanted: &dyn Fn() -> bool,
) -> Result<Vec<DiffData>, Fail> {
    let (was, is) = (found(fs, old, path)?, found(fs, new, path)?);
    let directory = |a: &Option<Attr>| a.as_ref().filter(|a| a.kind() == FileKind::Directory).map(|a| a.ino);
    let (in_old, in_new) = (directory(&was), directory(&is));
    if in_old.is_none() && in_new.is_none() {
        let text = match was.or(is) {
            Some(_) => "is not a directory; diff compares directories, and nenrin history tells the states of a file",
            None => "neither of the two states has such a directory",
        };
        return Err(Fail::at(path.display(), text));
    }
    let to_do = vec![Pair { old: in_old, new: in_new, path: Vec::new(), from: None }];
    let (gone, come, found) = (Vec::new(), Vec::new(), Vec::new());
    let (gone_to_do, come_to_do) = (HashMap::new(), HashMap::new());
    let told_at = Instant::now();
    let mut walk = Walk { fs, old, new, to_do, gone, come, gone_to_do, come_to_do, found, each, wanted, told_at };
    while walk.has_more() {
        while let Some(pair) = walk.to_do.pop() {
            walk.compare(&pair)?;
        }
    }
    let rest = walk.conclude()?;
    // Of a state that went meanwhile it cannot be told what it had.
    let mut both = [old, new].into_iter();
    both.try_for_each(|at| fs.getattr(at, Ino::ROOT).map(drop)).map_err(|e| Fail::at(path.display(), e))?;
    Ok(rest)
}

fn found(fs: &Fs, at: At, path: &Path) -> Result<Option<Attr>, Fail> {
    let mut ino = Ino::ROOT;
    for name in path.components() {
        match fs.lookup(at, ino, name.as_os_str().as_bytes()) {
            Ok(attr) => ino = attr.ino,
            Err(Error::NotFound | Error::NotDirectory) => return Ok(None),
            Err(e) => return Err(Fail::at(path.display(), e)),
        }
    }
    fs.getattr(at, ino).map(Some).map_err(|e| Fail::at(path.display(), e))
}

impl Walk<'_> {
    /// Whether anything is to be compared. Those that were renamed come first: what came along with them needs not be kept.
    fn has_more(&mut self) -> bool {
        let gone = &mut self.gone_to_do;
        self.come_to_do.retain(|ino, path| match gone.remove(ino) {
            None => true,
            Some(from) => {
                self.to_do.push(Pair {
                    old: Some(*ino),
                    new: Some(*ino),
                    path: std::mem::take(path),
                    from: Some(from),
                });
                false
            }
        });
        if self.to_do.is_empty() {
            let pair = |old, new, path| Pair { old, new, path, from: None };
            self.to_do.extend(self.gone_to_do.drain().map(|(ino, path)| pair(Some(ino), None, path)));
            self.to_do.extend(self.come_to_do.drain().map(|(ino, path)| pair(None, Some(ino), path)));
        }
        !self.to_do.is_empty()
    }

    fn compare(&mut self, pair: &Pair) -> Result<(), Fail> {
        let fail = |e: Error| Fail::at(String::from_utf8_lossy(&pair.path), e);
        let (mut was, mut is) = (Names::of(self.fs, self.old, pair.old), Names::of(self.fs, self.new, pair.new));
        let listed = (was.next_place(), is.next_place());
        let is_unknown = match &listed {
            (Err(Error::Stale), _) => self.is_there(self.old),
            (_, Err(Error::Stale)) => self.is_there(self.new),
            _ => false,
        };
        if is_unknown {
            return self.tell("?", &pair.path, None, "directory", 0);
        }
        let mut next = (listed.0.map_err(fail)?, listed.1.map_err(fail)?);
        while let Some(place) = next.0.into_iter().chain(next.1).min() {
            let (old, new) = (was.at_place(place).map_err(fail)?, is.at_place(place).map_err(fail)?);
            self.compare_names(pair, &old, &new)?;
            next = (was.next_place().map_err(fail)?, is.next_place().map_err(fail)?);
        }
        Ok(())
    }

    /// Compares what a directory has under some names.
    fn compare_names(&mut self, pair: &Pair, was: &Entries, is: &Entries) -> Result<(), Fail> {
        if self.told_at.elapsed() >= TOLD_EVERY {
            self.send()?;
        }
        if !(self.wanted)() {
            return Err(Fail::new("nobody waits for it any more"));
        }
        let old_path = pair.from.as_ref().unwrap_or(&pair.path);
        let mut compared: Vec<&[u8]> = Vec::new();
        for (name, ino) in was {
            match is.get(name) {
                Some(new) if new == ino => self.compare_same(pair, name, *ino)?,
                Some(new) if self.compare_replaced(pair, name, *ino, *new)? => compared.push(name),
                _ => self.note_gone(*ino, below(old_path, name))?,
            }
        }
        let come = is.iter().filter(|(name, ino)| was.get(*name) != Some(*ino));
        for (name, ino) in come.filter(|(name, _)| !compared.contains(&&name[..])) {
            self.note_come(*ino, below(&pair.path, name))?;
        }
        Ok(())
    }

    /// The same inode under the same name.
    fn compare_same(&mut self, pair: &Pair, name: &[u8], ino: Ino) -> Result<(), Fail> {
        let (path, from) = (below(&pair.path, name), pair.from.as_ref().map(|from| below(from, name)));
        let was = self.attr(self.old, ino, from.as_ref().unwrap_or(&path))?;
        let (Some(was), Some(is)) = (was, self.attr(self.new, ino, &path)?) else { return Ok(()) };
        let (old, new) = (Seen::of(&was), Seen::of(&is));
        if old != new {
            let attributes_only =
                was.kind() != FileKind::Directory && self.has_same_content((&was, ino), (&is, ino))?;
            let d = difference("M", &path, from.as_deref(), kind(new.kind), new.size);
            self.add(DiffData { attributes_only, ..d })?;
        }
        if is.kind() == FileKind::Directory {
            self.to_do.push(Pair { old: Some(ino), new: Some(ino), path, from });
        }
        Ok(())
    }

    /// Another inode under the same name, as where something was restored or saved by renaming: whether it was told how they differ.
    /// Not of what only moved, which is told by where it was, or is, otherwise.
    fn compare_replaced(&mut self, pair: &Pair, name: &[u8], old: Ino, new: Ino) -> Result<bool, Fail> {
        let (path, from) = (below(&pair.path, name), pair.from.as_ref().map(|from| below(from, name)));
        let [was, is] = [(self.old, old), (self.new, new)].map(|(at, ino)| self.fs.getattr(at, ino));
        // What is not known is told of each.
        let (Ok(was), Ok(is)) = (was, is) else { return Ok(false) };
        if was.kind() != is.kind() || self.has(self.new, old)? || self.has(self.old, new)? {
            return Ok(false);
        }
        let plain = |a: &Attr| (a.mode, a.uid, a.gid, a.mtime);
        let same_attributes = plain(&was) == plain(&is) && self.has_same_xattrs(old, new)?;
        if was.kind() == FileKind::Directory {
            if !same_attributes {
                self.tell_seen("M", &path, from.as_deref(), &Seen::of(&is))?;
            }
            self.to_do.push(Pair { old: Some(old), new: Some(new), path, from });
            return Ok(true);
        }
        let same_content = self.has_same_content((&was, old), (&is, new))?;
        if !same_content || !same_attributes {
            let d = difference("M", &path, from.as_deref(), kind(is.kind()), is.size);
            self.add(DiffData { replaced: true, attributes_only: same_content, ..d })?;
        }
        Ok(true)
    }

    /// Whether two of one kind, in the old state and in the new one, have the same content. What cannot be read is not known to be the same.
    fn has_same_content(&mut self, (was, old): (&Attr, Ino), (is, new): (&Attr, Ino)) -> Result<bool, Fail> {
        Ok(match was.kind() {
            FileKind::Symlink => {
                let [a, b] = [(self.old, old), (self.new, new)].map(|(at, ino)| self.fs.readlink(at, ino).ok());
                a.is_some() && a == b
            }
            FileKind::Fifo | FileKind::Socket => true,
            FileKind::CharDevice | FileKind::BlockDevice => was.rdev == is.rdev,
            FileKind::Regular | FileKind::Directory => {
                let mut goes_on = || (self.wanted)();
                match self.fs.has_same_content((self.old, old), (self.new, new), &mut goes_on) {
                    Ok(Some(same)) => same,
                    Ok(None) => return Err(Fail::new("nobody waits for it any more")),
                    Err(_) => false,
                }
            }
        })
    }

    /// Whether both have the same extended attributes, as far as they can be read.
    fn has_same_xattrs(&mut self, old: Ino, new: Ino) -> Result<bool, Fail> {
        let mut goes_on = || (self.wanted)();
        match self.fs.has_same_xattrs((self.old, old), (self.new, new), &mut goes_on) {
            Ok(Some(same)) => Ok(same),
            Ok(None) => Err(Fail::new("nobody waits for it any more")),
            Err(_) => Ok(false),
        }
    }

    /// Something that the old state alone has there.
    fn note_gone(&mut self, ino: Ino, path: Vec<u8>) -> Result<(), Fail> {
        let Some(attr) = self.attr(self.old, ino, &path)? else { return Ok(()) };
        let (is_dir, seen) = (attr.kind() == FileKind::Directory, Seen::of(&attr));
        if self.has(self.new, ino)? {
            if is_dir {
                self.gone_to_do.insert(ino, path.clone());
            }
            self.gone.push(Lone { ino, path, seen });
            return Ok(());
        }
        self.tell_seen("-", &path, None, &seen)?;
        if is_dir {
            self.to_do.push(Pair { old: Some(ino), new: None, path, from: None });
        }
        Ok(())
    }

    /// Something that the new state alone has there.
    fn note_come(&mut self, ino: Ino, path: Vec<u8>) -> Result<(), Fail> {
        // Of the live state something may go while it is read.
        let Some(attr) = self.attr(self.new, ino, &path)? else { return Ok(()) };
        let (is_dir, seen) = (attr.kind() == FileKind::Directory, Seen::of(&attr));
        if self.has(self.old, ino)? {
            if is_dir {
                self.come_to_do.insert(ino, path.clone());
            }
            self.come.push(Lone { ino, path, seen });
            return Ok(());
        }
        self.tell_seen("+", &path, None, &seen)?;
        if is_dir {
            self.to_do.push(Pair { old: None, new: Some(ino), path, from: None });
        }
        Ok(())
    }

    /// Whether a state is still there, so that what it does not know is not known.
    fn is_there(&self, at: At) -> bool {
        self.fs.getattr(at, Ino::ROOT).is_ok()
    }

    /// Whether a state has an inode, under whatever name: what it has not was not renamed.
    fn has(&self, at: At, ino: Ino) -> Result<bool, Fail> {
        match self.fs.getattr(at, ino) {
            Ok(_) => Ok(true),
            // The past does not tell these apart; that it is still there is looked at in the end.
            Err(Error::NotFound | Error::Stale) => Ok(false),
            Err(e) => Err(Fail::new(e.to_string())),
        }
    }

    fn tell_seen(&mut self, change: &str, path: &[u8], from: Option<&[u8]>, seen: &Seen) -> Result<(), Fail> {
        self.tell(change, path, from, kind(seen.kind), seen.size)
    }

    fn tell(&mut self, change: &str, path: &[u8], from: Option<&[u8]>, kind: &str, size: u64) -> Result<(), Fail> {
        self.add(difference(change, path, from, kind, size))
    }

    fn add(&mut self, d: DiffData) -> Result<(), Fail> {
        self.found.push(d);
        if self.found.len() < PART_ENTRIES { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> Result<(), Fail> {
        self.told_at = Instant::now();
        (self.each)(std::mem::take(&mut self.found))
    }

    fn attr(&mut self, at: At, ino: Ino, path: &[u8]) -> Result<Option<Attr>, Fail> {
        match self.fs.getattr(at, ino) {
            Ok(attr) => Ok(Some(attr)),
            Err(Error::NotFound) => Ok(None),
            Err(Error::Stale) if self.is_there(at) => {
                self.tell("?", path, None, "unknown", 0)?;
                Ok(None)
            }
            Err(e) => Err(Fail::new(e.to_string())),
        }
    }

    /// Finds what was renamed among what came and went. What was not sent yet.
    fn conclude(mut self) -> Result<Vec<DiffData>, Fail> {
        let mut gone: HashMap<Ino, Vec<Lone>> = HashMap::new();
        for lone in std::mem::take(&mut self.gone) {
            gone.entry(lone.ino).or_default().push(lone);
        }
        let mut renamed: Vec<(Lone, Lone)> = Vec::new();
        for new in std::mem::take(&mut self.come) {
            match gone.get_mut(&new.ino).and_then(Vec::pop) {
                Some(old) => renamed.push((old, new)),
                None => self.tell_seen("+", &new.path, None, &new.seen)?,
            }
        }
        for lone in gone.into_values().flatten() {
            self.tell_seen("-", &lone.path, None, &lone.seen)?;
        }
        let moved: HashMap<&[u8], &[u8]> = renamed.iter().map(|(old, new)| (&old.path[..], &new.path[..])).collect();
        for (old, new) in &renamed {
            // What only came along with its directory did not change for that.
            let (from, to) = (split(&old.path), split(&new.path));
            let came_along = from.1 == to.1 && moved.get(from.0) == Some(&to.0);
            if !came_along {
                self.tell_seen("R", &new.path, Some(&old.path), &new.seen)?;
            } else if old.seen != new.seen {
                self.tell_seen("M", &new.path, Some(&old.path), &new.seen)?;
            }
        }
        Ok(self.found)
    }
}

/// Directory and name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Some names of a directory.
type Entries = BTreeMap<Vec<u8>, Ino>;

/// The names of a directory, read in pieces, between which others get the volume.
struct Names<'a> {
    fs: &'a Fs,
    at: At,
    /// None once all was read, and where there is no such directory.
    dir: Option<Ino>,
    cookie: u64,
    read: VecDeque<DirEntry>,
}

impl<'a> Names<'a> {
    fn of(fs: &'a Fs, at: At, dir: Option<Ino>) -> Self {
        Self { fs, at, dir, cookie: 0, read: VecDeque::new() }
    }

    /// The place of the next of them, if there is any.
    fn next_place(&mut self) -> Result<Option<u64>, Error> {
        while let (Some(dir), true) = (self.dir, self.read.is_empty()) {
            self.read_some(dir)?;
        }
        Ok(self.read.front().map(DirEntry::place))
    }

    /// Those at this place, if they are the next.
    fn at_place(&mut self, place: u64) -> Result<Entries, Error> {
        let mut out = Entries::new();
        while self.next_place()? == Some(place) {
            out.extend(self.read.pop_front().map(|e| (e.name, e.ino)));
        }
        Ok(out)
    }

    fn read_some(&mut self, dir: Ino) -> Result<(), Error> {
        let Self { fs, at, cookie, read, .. } = self;
        let mut seen = 0;
        let listed = fs.readdir(*at, dir, *cookie, &mut |e| {
            *cookie = e.cookie;
            seen += 1;
            if e.name != b"." && e.name != b".." {
                read.push_back(e);
            }
            seen < ENTRIES_AT_ONCE
        });
        match listed {
            Ok(()) if seen == ENTRIES_AT_ONCE => return Ok(()),
            Ok(()) | Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
        self.dir = None;
        Ok(())
    }
}

fn difference(letter: &str, path: &[u8], from: Option<&[u8]>, kind: &str, size: u64) -> DiffData {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    DiffData {
        change: letter.into(),
        replaced: false,
        attributes_only: false,
        path: text(path),
        from: from.map(text),
        path_bytes: no_text(path),
        from_bytes: from.and_then(no_text),
        kind: kind.into(),
        size,
        content: None,
    }
}
