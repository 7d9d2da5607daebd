//! What differs between two states of a directory. Directories are read in
//! pieces, so that nobody has to wait for the walk.

use crate::control::DiffData;
use crate::error::Fail;
use crate::states::kind;
use nenrin_core::{At, Attr, Error, FileKind, Fs};
use nenrin_format::Ino;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Entries read without letting others in.
const ENTRIES_AT_ONCE: usize = 1024;

/// Something that only one of the states has under a path.
struct Lone {
    ino: Ino,
    path: Vec<u8>,
    attr: Attr,
}

/// A directory to compare: in the old state, in the new one, its path.
type Pair = (Option<Ino>, Option<Ino>, Vec<u8>);

struct Walk<'a> {
    fs: &'a Fs,
    old: At,
    new: At,
    to_do: Vec<Pair>,
    gone: Vec<Lone>,
    come: Vec<Lone>,
    found: Vec<DiffData>,
}

/// What differs below `path` (from the root of the volume), by path.
///
/// # Errors
/// Neither state has such a directory; damage; a state that was let go meanwhile.
pub fn between(fs: &Fs, path: &Path, old: At, new: At) -> Result<Vec<DiffData>, Fail> {
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
    let (gone, come, found) = (Vec::new(), Vec::new(), Vec::new());
    let mut walk = Walk { fs, old, new, to_do: vec![(in_old, in_new, Vec::new())], gone, come, found };
    while let Some(pair) = walk.to_do.pop() {
        walk.compare(pair)?;
    }
    Ok(walk.conclude())
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
    fn compare(&mut self, (old, new, path): Pair) -> Result<(), Fail> {
        let fail = |e: Error| Fail::at(String::from_utf8_lossy(&path), e);
        let listed = (entries(self.fs, self.old, old), entries(self.fs, self.new, new));
        let is_unknown = match &listed {
            (Err(Error::Stale), _) => self.is_there(self.old),
            (_, Err(Error::Stale)) => self.is_there(self.new),
            _ => false,
        };
        if is_unknown {
            self.unknown(&path, "directory");
            return Ok(());
        }
        let (was, is) = (listed.0.map_err(fail)?, listed.1.map_err(fail)?);
        let below = |name: &[u8]| if path.is_empty() { name.to_vec() } else { [&path, &b"/"[..], name].concat() };
        for (name, ino) in &was {
            let place = below(name);
            if is.get(name) == Some(ino) {
                let (a, b) = (self.attr(self.old, *ino, &place)?, self.attr(self.new, *ino, &place)?);
                let (Some(a), Some(b)) = (a, b) else { continue };
                if b.kind() == FileKind::Directory {
                    self.to_do.push((Some(*ino), Some(*ino), place.clone()));
                }
                if has_changed(&a, &b) {
                    self.found.push(data("M", &place, None, &b));
                }
            } else if let Some(attr) = self.attr(self.old, *ino, &place)? {
                if attr.kind() == FileKind::Directory {
                    self.to_do.push((Some(*ino), None, place.clone()));
                }
                self.gone.push(Lone { ino: *ino, path: place, attr });
            }
        }
        for (name, ino) in is.iter().filter(|(name, ino)| was.get(*name) != Some(*ino)) {
            let place = below(name);
            // Of the live state something may go while it is read.
            let Some(attr) = self.attr(self.new, *ino, &place)? else { continue };
            if attr.kind() == FileKind::Directory {
                self.to_do.push((None, Some(*ino), place.clone()));
            }
            self.come.push(Lone { ino: *ino, path: place, attr });
        }
        Ok(())
    }

    /// Whether a state is still there, so that what it does not know is not known.
    fn is_there(&self, at: At) -> bool {
        self.fs.getattr(at, Ino::ROOT).is_ok()
    }

    /// Of one of the states it is not known what this was.
    fn unknown(&mut self, path: &[u8], kind: &str) {
        self.found.push(difference("?", path, None, kind, 0));
    }

    fn attr(&mut self, at: At, ino: Ino, path: &[u8]) -> Result<Option<Attr>, Fail> {
        match self.fs.getattr(at, ino) {
            Ok(attr) => Ok(Some(attr)),
            Err(Error::NotFound) => Ok(None),
            Err(Error::Stale) if self.is_there(at) => {
                self.unknown(path, "unknown");
                Ok(None)
            }
            Err(e) => Err(Fail::new(e.to_string())),
        }
    }

    /// Finds what was renamed among what came and went.
    fn conclude(mut self) -> Vec<DiffData> {
        let mut gone: HashMap<Ino, Vec<Lone>> = HashMap::new();
        for lone in std::mem::take(&mut self.gone) {
            gone.entry(lone.ino).or_default().push(lone);
        }
        let mut renamed: Vec<(Lone, Lone)> = Vec::new();
        for new in std::mem::take(&mut self.come) {
            match gone.get_mut(&new.ino).and_then(Vec::pop) {
                Some(old) => renamed.push((old, new)),
                None => self.found.push(data("+", &new.path, None, &new.attr)),
            }
        }
        for lone in gone.into_values().flatten() {
            self.found.push(data("-", &lone.path, None, &lone.attr));
        }
        let moved: HashMap<&[u8], &[u8]> = renamed.iter().map(|(old, new)| (&old.path[..], &new.path[..])).collect();
        for (old, new) in &renamed {
            // What only came along with its directory did not change for that.
            let (from, to) = (split(&old.path), split(&new.path));
            let came_along = from.1 == to.1 && moved.get(from.0) == Some(&to.0);
            if !came_along {
                self.found.push(data("R", &new.path, Some(&old.path), &new.attr));
            } else if has_changed(&old.attr, &new.attr) {
                self.found.push(data("M", &new.path, Some(&old.path), &new.attr));
            }
        }
        self.found.sort_by(|a, b| a.path_as_bytes().cmp(b.path_as_bytes()));
        self.found
    }
}

/// Directory and name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Reading alone changes nothing.
fn has_changed(a: &Attr, b: &Attr) -> bool {
    (a.mode, a.nlink, a.uid, a.gid, a.size, a.mtime, a.ctime)
        != (b.mode, b.nlink, b.uid, b.gid, b.size, b.mtime, b.ctime)
}

/// In pieces, between which others get the volume.
fn entries(fs: &Fs, at: At, dir: Option<Ino>) -> Result<BTreeMap<Vec<u8>, Ino>, Error> {
    let mut out = BTreeMap::new();
    let Some(dir) = dir else { return Ok(out) };
    let mut cookie = 0;
    loop {
        let mut seen = 0;
        let listed = fs.readdir(at, dir, cookie, &mut |e| {
            cookie = e.cookie;
            seen += 1;
            if e.name != b"." && e.name != b".." {
                out.insert(e.name, e.ino);
            }
            seen < ENTRIES_AT_ONCE
        });
        match listed {
            Ok(()) if seen < ENTRIES_AT_ONCE => return Ok(out),
            Ok(()) => {}
            Err(Error::NotFound) => return Ok(out),
            Err(e) => return Err(e),
        }
    }
}

fn data(letter: &str, path: &[u8], from: Option<&[u8]>, attr: &Attr) -> DiffData {
    difference(letter, path, from, kind(attr.kind()), attr.size)
}

fn difference(letter: &str, path: &[u8], from: Option<&[u8]>, kind: &str, size: u64) -> DiffData {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let bytes = |path: &[u8]| std::str::from_utf8(path).is_err().then(|| path.to_vec());
    DiffData {
        change: letter.into(),
        path: text(path),
        from: from.map(text),
        path_bytes: bytes(path),
        from_bytes: from.and_then(bytes),
        kind: kind.into(),
        size,
        content: None,
    }
}
