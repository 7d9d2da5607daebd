//! The names that a directory has no more, with where they were seen last. See docs/decisions/0012.

use super::history::{Named, Resolved, whole_lives};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::state::{Span, State, bad_item};
use crate::{At, Attr, Error, FileKind, Result};
use nenrin_format::items::{Dirent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{Cno, Ino};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// A name that a directory had, and has no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoneName {
    /// The name.
    pub name: Vec<u8>,
    /// The newest kept checkpoint that shows it, or the newest of which a landmark keeps it.
    pub last: Cno,
    /// It is the latter: of a directory nothing is left then but the way to single files.
    pub is_landmark: bool,
    /// What it stood for then; none where that cannot be read.
    pub attr: Option<Attr>,
    /// Its path then, from the root of the volume, where that is not the one that was asked for: a directory had another
    /// name.
    pub then: Option<Vec<u8>>,
    /// Where that is now, from the root of the volume, if it still has a name.
    pub now: Option<Vec<u8>>,
    /// Why some of this is not told, or told as "?": the damage that it cannot be read for.
    pub damage: Option<String>,
}

impl Fs {
    /// The names that the directory `path` (its parts, from the root of the volume) had in a kept
    /// checkpoint or by a landmark and has no more, by name. The directory itself may be gone, and what it lost while it
    /// had other names counts, too.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there never was anything of this name, as far as is known; [`Error::NotDirectory`]
    /// when that never was a directory.
    pub fn gone(&self, path: &[&[u8]]) -> Result<Vec<GoneName>> {
        let mut all = Vec::new();
        self.gone_in_parts(path, &mut |some| {
            all.extend(some);
            ControlFlow::Continue(())
        })?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// [`Fs::gone`], some at a time and in any order, or none where all of many are still there, until `each` breaks.
    ///
    /// # Errors
    /// Those of [`Fs::gone`].
    pub fn gone_in_parts(&self, path: &[&[u8]], each: &mut dyn FnMut(Vec<GoneName>) -> ControlFlow<()>) -> Result<()> {
        let Resolved { named, followed } = self.lock().state.resolve(path)?;
        if followed.is_empty() {
            return Err(Error::NotFound);
        }
        let inner = self.lock();
        let mut dirs = Vec::with_capacity(followed.len());
        for n in whole_lives(&followed) {
            if inner.state.was_directory(n.ino)? {
                dirs.push(n);
            }
        }
        drop(inner);
        if dirs.is_empty() {
            return Err(Error::NotDirectory);
        }
        let asked = Asked { named, now: dirs.iter().find(|n| n.span.to.is_none()).map(|n| n.ino) };
        for piece in 0..GONE_PIECES {
            // A name is in the same piece of each directory.
            let mut newest: BTreeMap<Vec<u8>, Last> = BTreeMap::new();
            for dir in &dirs {
                // Others get the volume in between.
                self.lock().gone_in_piece(dir, piece, &mut newest)?;
            }
            let found: Vec<_> = newest.into_iter().collect();
            for some in found.chunks(GONE_AT_ONCE) {
                let gone = self.lock().gone_of(&asked, some)?;
                if each(gone).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Pieces of a directory, by the hashes of its names, and names, that are looked at under one lock.
const GONE_PIECES: u64 = 64;
const GONE_AT_ONCE: usize = 256;

/// What a directory that was asked for is and was.
struct Asked {
    /// What the path stood for.
    named: Vec<Named>,
    /// What it stands for.
    now: Option<Ino>,
}

/// Where a name was shown last.
#[derive(Clone, Copy)]
struct Last {
    cno: Cno,
    /// The directory.
    dir: Ino,
    /// What the name stood for.
    ino: Ino,
}

impl Inner {
    /// Those of these names that the directory has no more.
    fn gone_of(&self, asked: &Asked, some: &[(Vec<u8>, Last)]) -> Result<Vec<GoneName>> {
        let mut out = Vec::new();
        for (name, last) in some {
            let mut damage = None;
            let there = asked.now.map(|dir| self.state.dirent(dir, name)).transpose();
            let is_there = readable(there, &mut damage)?.flatten().flatten().is_some();
            if !is_there {
                out.extend(self.gone_name(asked, name, *last, damage)?);
            }
        }
        Ok(out)
    }

    /// What is known of a name that is gone. What cannot be read of it keeps no other from being told.
    fn gone_name(
        &self,
        asked: &Asked,
        name: &[u8],
        Last { cno: last, dir, ino }: Last,
        mut damage: Option<String>,
    ) -> Result<Option<GoneName>> {
        let attr = match self.attr(At::Past(last), ino) {
            // Meanwhile the checkpoint may have been let go.
            Err(Error::Stale | Error::NotFound) => return Ok(None),
            attr => readable(attr, &mut damage)?,
        };
        let now = match readable(self.state.links(ino), &mut damage)? {
            Some(links) if links.iter().any(|l| l.span.to.is_none()) => {
                let path = self.state.path_in(&links, Cno(u64::MAX));
                Some(readable(path, &mut damage)?.unwrap_or_else(|| b"?".to_vec()))
            }
            _ => None,
        };
        let is_landmark = !self.state.kept.contains_key(&last);
        let as_asked = asked.named.iter().any(|n| n.ino == dir && n.span.holds(last));
        let then = match as_asked {
            true => None,
            false => {
                let path = self.state.path_below(dir, name, last);
                Some(readable(path, &mut damage)?.unwrap_or_else(|| [&b"?/"[..], name].concat()))
            }
        };
        Ok(Some(GoneName { name: name.to_vec(), last, is_landmark, attr, then, now, damage }))
    }

    /// Adds the names of a piece of `dir` that a checkpoint or a landmark shows and that ended, or that the directory
    /// took along when it lost its own name.
    fn gone_in_piece(&self, dir: &Named, piece: u64, newest: &mut BTreeMap<Vec<u8>, Last>) -> Result<()> {
        let width = u64::MAX / GONE_PIECES + 1;
        let from = Key::new(dir.ino, Kind::Dirent, 0, piece * width);
        let to = Key { off: from.off + (width - 1), ..from };
        let versions =
            if dir.span.to.is_some() { self.state.versions(&from, &to)? } else { self.state.ended(&from, &to)? };
        for v in versions {
            let entry = Dirent::decode(&v.value).map_err(|why| bad_item(&v.key, why))?;
            let is_dir = FileKind::from_mode(u32::from(entry.file_type) << 12) == FileKind::Directory;
            let span = v.span.cut(&dir.span);
            let Some(span) = span else { continue };
            let seen = match self.state.entry_seen(&v.key, &span, entry.ino, is_dir) {
                Err(e) if e.is_damage() && broken(Break::DamageHidesNames) => None,
                // That it cannot be read what it was says nothing against its having been there.
                Err(e) if e.is_damage() => self.state.shown_by(&span).map(|(_, last)| last),
                seen => seen?,
            };
            let Some(cno) = seen else { continue };
            let last = Last { cno, dir: dir.ino, ino: entry.ino };
            let known = newest.entry(entry.name.to_vec()).or_insert(last);
            if known.cno < cno {
                *known = last;
            }
        }
        Ok(())
    }
}

impl State {
    /// Whether an inode is or was a directory, which never changes.
    fn was_directory(&self, ino: Ino) -> Result<bool> {
        let key = Key::new(ino, Kind::Inode, 0, 0);
        let versions = self.versions(&key, &key)?;
        let Some(v) = versions.first() else { return Ok(false) };
        let inode = Inode::decode(&v.value).map_err(|why| bad_item(&v.key, why))?;
        Ok(FileKind::from_mode(inode.mode) == FileKind::Directory)
    }

    /// The newest checkpoint in a span that shows an entry, or of which a landmark keeps it. Since of a directory
    /// a landmark has a part only, an older checkpoint comes before it.
    fn entry_seen(&self, key: &Key, span: &Span, ino: Ino, is_dir: bool) -> Result<Option<Cno>> {
        let mut checkpoint = None;
        if let Some((first, last)) = self.shown_by(span) {
            for (cno, _) in self.kept.range(first..=last).rev() {
                if self.knows(ino, *cno)? {
                    checkpoint = Some(*cno);
                    break;
                }
            }
        }
        if is_dir && checkpoint.is_some() {
            return Ok(checkpoint);
        }
        Ok(checkpoint.max(self.landmarks.newest_entry(key, span.from, span.to.unwrap_or(Cno::NEVER))))
    }
}

/// What was read; nothing where there is damage, which is noted.
fn readable<T>(read: Result<T>, damage: &mut Option<String>) -> Result<Option<T>> {
    match read {
        Err(e) if e.is_damage() => {
            damage.get_or_insert_with(|| e.to_string());
            Ok(None)
        }
        read => read.map(Some),
    }
}
