//! Reads a whole state back through the public calls and reduces it to what
//! the oracle compares: one namespace hash, and per file a fingerprint.
//!
//! Along the way it checks what no model is needed for: every entry's inode
//! exists and has the kind the entry says, `.` and `..` are right, sizes and
//! holes fit the bytes.

use crate::content::{self, Content, PAGE_BYTES};
use crate::flip::is_report;
use crate::subject::Subject;
use crate::tree::{Inode, Tree, attr_hash, entry_hash, target_hash, xattr_hash};
use nenrin_core::{At, Attr, DirEntry, Error, FileKind, Seek};
use nenrin_format::items::{HISTORY_XATTR, Keep};
use nenrin_format::{Ino, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Files up to this size are read whole; of longer ones, only what is not a hole.
const READ_WHOLE_BYTES: u64 = 512 * 1024;
/// Largest single read.
const READ_BYTES: usize = 256 * 1024;

/// A regular file as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFile {
    /// Inode.
    pub ino: u64,
    /// [`Content::fingerprint`] of what was read.
    pub fingerprint: u64,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
}

/// A state as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Sum of the namespace's hashes, comparable with [`Tree::sum`].
    pub sum: u64,
    /// Regular files, each once.
    pub files: Vec<FoundFile>,
    /// Of a past state: what is known of the namespace, by inode.
    pub parts: BTreeMap<u64, Part>,
    /// Of a past state: inodes of which it says that they, or what belongs to them, are not known.
    pub unknown: BTreeSet<u64>,
    /// Regular files of which something is said to be damaged, and what is said, where that is borne.
    pub damaged: BTreeMap<u64, String>,
    bears_damage: bool,
}

/// What belongs to one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// As [`Inode::hash`]; `None` where it was not known when it was first looked at.
    pub hash: Option<u64>,
    /// Last change of anything; `None` where what the call changed may be committed later.
    pub ctime: Option<Time>,
    /// How much of its history was kept.
    pub keep: Keep,
}

impl Part {
    /// What was not known when it was first looked at.
    pub const UNKNOWN: Self = Self { hash: None, ctime: None, keep: Keep::Nothing };
}

/// Why a walk ends, or leaves something out.
enum Missed {
    /// The state says that it does not know.
    Unknown,
    /// It is wrong.
    Wrong(String),
}

impl From<String> for Missed {
    fn from(what: String) -> Self {
        Self::Wrong(what)
    }
}

/// What a call says, of a past state that may not know everything.
fn missed(at: At, e: &Error, what: impl FnOnce() -> String) -> Missed {
    if matches!((at, e), (At::Past(_), Error::Stale)) { Missed::Unknown } else { Missed::Wrong(what()) }
}

/// Reads the state `at`. With `keep`, everything is also kept in a tree.
///
/// # Errors
/// A sentence about the first thing that is wrong.
pub fn walk<S: Subject>(fs: &S, at: At, keep: Option<&mut Tree>) -> Result<Found, String> {
    walk_into(fs, at, keep, Found::default())
}

/// [`walk`] over files whose content is said to be damaged.
///
/// # Errors
/// A sentence about the first other thing that is wrong.
pub fn walk_past_damage<S: Subject>(fs: &S, at: At) -> Result<Found, String> {
    walk_into(fs, at, None, Found { bears_damage: true, ..Found::default() })
}

fn walk_into<S: Subject>(fs: &S, at: At, mut keep: Option<&mut Tree>, mut found: Found) -> Result<Found, String> {
    let mut seen = BTreeSet::new();
    let root = fs.getattr(at, Ino::ROOT).map_err(|e| format!("the root directory: {e}"))?;
    let mut root_inode = Inode::new(root);
    one(fs, at, &root, &mut found, keep.is_some().then_some(&mut root_inode))?;
    if let Some(tree) = &mut keep {
        tree.insert(root_inode);
    }
    let mut open = vec![(Ino::ROOT, Ino::ROOT)];
    let mut entries: Vec<DirEntry> = Vec::new();
    while let Some((dir, parent)) = open.pop() {
        match list(fs, at, dir, parent, &mut entries) {
            Ok(()) => {}
            Err(Missed::Unknown) => {
                found.leave_out(dir);
                continue;
            }
            Err(Missed::Wrong(what)) => return Err(what),
        }
        let mut names = keep.is_some().then(Vec::new);
        for e in entries.drain(..) {
            found.add(dir, entry_hash(dir.0, &e.name, e.ino.0));
            let text = || format!("{} in directory {dir}", String::from_utf8_lossy(&e.name));
            let attr = match fs.getattr(at, e.ino) {
                Ok(attr) => attr,
                Err(err) => match missed(at, &err, || format!("inode {} of {}: {err}", e.ino, text())) {
                    Missed::Unknown => {
                        found.leave_out(e.ino);
                        continue;
                    }
                    Missed::Wrong(what) => return Err(what),
                },
            };
            if attr.ino != e.ino || attr.kind() != e.kind {
                return Err(format!("{} is listed as {:?} {} and found as {attr:?}", text(), e.kind, e.ino));
            }
            match fs.lookup(at, dir, &e.name) {
                Ok(named) if named.ino == e.ino => {}
                Err(Error::Stale) if at != At::Live && found.leaves_out(dir, e.ino) => {}
                other => return Err(format!("{} is listed as {}, and looked up it is {other:?}", text(), e.ino)),
            }
            if let Some(n) = &mut names {
                n.push((e.name.clone(), e.ino.0));
            }
            if (attr.nlink != 1 || attr.kind() == FileKind::Directory) && !seen.insert(e.ino.0) {
                if attr.kind() == FileKind::Directory {
                    return Err(format!("directory {} has two names, one is {}", e.ino, text()));
                }
                continue;
            }
            let mut inode = Inode::new(attr);
            inode.parent = dir.0;
            one(fs, at, &attr, &mut found, keep.is_some().then_some(&mut inode))?;
            if attr.kind() == FileKind::Directory && !found.unknown.contains(&e.ino.0) {
                open.push((e.ino, dir));
            }
            if let Some(tree) = &mut keep {
                tree.insert(inode);
            }
        }
        if let (Some(tree), Some(names)) = (&mut keep, names) {
            if let Some(mut d) = tree.inodes.get(&dir.0).cloned() {
                d.entries.extend(names);
                tree.insert(d);
            }
        }
    }
    found.files.sort_unstable_by_key(|f| f.ino);
    Ok(found)
}

impl Found {
    /// Something of the namespace belongs to an inode.
    fn add(&mut self, ino: Ino, hash: u64) {
        self.sum = self.sum.wrapping_add(hash);
        if let Some(Part { hash: Some(sum), .. }) = self.parts.get_mut(&ino.0) {
            *sum = sum.wrapping_add(hash);
        }
    }
    /// The state says that it does not know all of one of them.
    fn leaves_out(&self, dir: Ino, ino: Ino) -> bool {
        self.unknown.contains(&dir.0) || self.unknown.contains(&ino.0)
    }
    /// Not all of an inode is known.
    fn leave_out(&mut self, ino: Ino) {
        self.parts.remove(&ino.0);
        self.unknown.insert(ino.0);
    }
}

/// Takes one inode in.
fn one<S: Subject>(fs: &S, at: At, attr: &Attr, found: &mut Found, keep: Option<&mut Inode>) -> Result<(), String> {
    let ino = attr.ino;
    if at != At::Live {
        let text = match fs.getxattr(at, ino, HISTORY_XATTR) {
            Ok(text) => Some(text),
            Err(Error::NoAttribute | Error::Stale) => None,
            Err(e) => return Err(format!("how much history inode {ino} keeps: {e}")),
        };
        let keep = text.as_deref().and_then(Keep::parse).unwrap_or_default();
        found.parts.insert(ino.0, Part { hash: Some(0), ctime: Some(attr.ctime), keep });
    }
    found.add(ino, attr_hash(attr));
    match common(fs, at, attr, found, keep) {
        Ok(()) => Ok(()),
        Err(Missed::Unknown) => {
            found.leave_out(ino);
            Ok(())
        }
        Err(Missed::Wrong(what)) => Err(what),
    }
}

fn list<S: Subject>(fs: &S, at: At, dir: Ino, parent: Ino, out: &mut Vec<DirEntry>) -> Result<(), Missed> {
    out.clear();
    fs.readdir(at, dir, 0, &mut |e| {
        out.push(e);
        true
    })
    .map_err(|e| missed(at, &e, || format!("listing directory {dir}: {e}")))?;
    let dots = [(&b"."[..], dir), (b"..", parent)];
    if out.len() < 2 || !dots.iter().zip(out.iter()).all(|((name, ino), e)| e.name == *name && e.ino == *ino) {
        let first = out.iter().take(2).collect::<Vec<_>>();
        return Err(format!("directory {dir} does not begin with . and ..{first:?}").into());
    }
    out.drain(..2);
    Ok(())
}

/// Attributes, link target and bytes of one inode.
fn common<S: Subject>(
    fs: &S,
    at: At,
    attr: &Attr,
    found: &mut Found,
    mut keep: Option<&mut Inode>,
) -> Result<(), Missed> {
    let ino = attr.ino;
    let missed = |e: &Error, what: String| missed(at, e, || format!("{what} of inode {ino}: {e}"));
    let names = fs.listxattr(at, ino).map_err(|e| missed(&e, "attributes".to_owned()))?;
    for name in names {
        let value = fs
            .getxattr(at, ino, &name)
            .map_err(|e| missed(&e, format!("attribute {}", String::from_utf8_lossy(&name))))?;
        found.add(ino, xattr_hash(ino.0, &name, &value));
        if let Some(i) = &mut keep {
            i.xattrs.insert(name, value);
        }
    }
    match attr.kind() {
        FileKind::Symlink => {
            let target = fs.readlink(at, ino).map_err(|e| missed(&e, "target".to_owned()))?;
            found.add(ino, target_hash(ino.0, &target));
            if let Some(i) = keep {
                i.target = target;
            }
        }
        FileKind::Regular => {
            let kept = keep.map(|i| &mut i.content);
            if at != At::Live {
                fs.read(at, ino, 0, 1).map_err(|e| missed(&e, "content".to_owned()))?;
            }
            let fingerprint = match read_file(fs, at, ino, attr.size, kept) {
                Err(e) if found.bears_damage && is_report(&e) => {
                    found.damaged.insert(ino.0, e);
                    return Ok(());
                }
                read => read?,
            };
            found.files.push(FoundFile { ino: ino.0, fingerprint, mtime: attr.mtime, ctime: attr.ctime });
        }
        _ => {}
    }
    Ok(())
}

/// Fingerprint of a file's bytes; the bytes too when asked for.
///
/// # Errors
/// Where reading failed.
pub fn read_file<S: Subject>(
    fs: &S,
    at: At,
    ino: Ino,
    size: u64,
    mut keep: Option<&mut Content>,
) -> Result<u64, String> {
    let mut sum = 0u64;
    let mut offset = 0;
    while offset < size {
        let mut end = size;
        if size > READ_WHOLE_BYTES {
            let seek = |from, what| fs.seek(at, ino, from, what);
            let data = match seek(offset, Seek::Data) {
                Ok(o) if o >= offset => o,
                Err(e) if is_past_end(&e) => break,
                other => return Err(format!("next data of inode {ino} from {offset}: {other:?}")),
            };
            offset = data / PAGE_BYTES as u64 * PAGE_BYTES as u64;
            end = match seek(data, Seek::Hole) {
                Ok(o) if o > data => o.next_multiple_of(PAGE_BYTES as u64).min(size),
                other => return Err(format!("next hole of inode {ino} from {data}: {other:?}")),
            };
        }
        while offset < end {
            let bytes = ((end - offset) as usize).min(READ_BYTES);
            let mut at_page = offset / PAGE_BYTES as u64;
            let mut each = |data: &[u8]| {
                if let Some(c) = &mut keep {
                    c.write(at_page * PAGE_BYTES as u64, data);
                }
                for page in data.chunks(PAGE_BYTES) {
                    sum = sum.wrapping_add(content::page_hash(at_page, page));
                    at_page += 1;
                }
            };
            let got = fs.read_pages(at, ino, offset, bytes, &mut each);
            let got = got.map_err(|e| format!("reading inode {ino} at {offset}: {e}"))?;
            if got != bytes {
                return Err(format!("reading inode {ino} at {offset} of {size}: {got} of {bytes} bytes"));
            }
            offset += bytes as u64;
        }
    }
    if let Some(c) = keep {
        c.resize(size);
    }
    Ok(content::fingerprint(size, sum))
}

/// Whether a seek found nothing more.
#[must_use]
pub fn is_past_end(e: &Error) -> bool {
    matches!(e, Error::NoSuchOffset)
}
