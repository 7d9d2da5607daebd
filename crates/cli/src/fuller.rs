//! Which state has more of a directory that was being removed when the last one that shows it was cut: `rm -r` takes names
//! away one by one, and a checkpoint falls anywhere.

use nenrin_core::{At, Attr, CheckpointInfo, DirEntry, Error, FileKind, Fs, Result};
use nenrin_format::{Cno, Ino};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// States that lie further apart were not both cut during one removal.
const APART_MAX: Duration = Duration::from_secs(60);
/// Names that are looked at for one answer, in all.
const NAMES_MAX: u64 = 200_000;
/// How long is looked for one answer, in all, before another directory.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Names read without letting others in.
const NAMES_AT_ONCE: usize = 1024;

/// Looks at the states before those that were asked for.
pub struct Fuller<'a> {
    fs: &'a Fs,
    checkpoints: &'a [CheckpointInfo],
    /// Names that may still be looked at.
    left: u64,
    /// Until when more is looked at.
    end: Option<Instant>,
}

/// What a directory has in a state: inodes by name.
type Names = HashMap<Vec<u8>, (Ino, FileKind)>;

impl<'a> Fuller<'a> {
    /// `checkpoints`: those that are kept, in order.
    pub fn new(fs: &'a Fs, checkpoints: &'a [CheckpointInfo]) -> Self {
        Self { fs, checkpoints, left: NAMES_MAX, end: None }
    }

    /// The state before `last` that has more of this directory: from each to the next, up to `last`, names went, none came, and little
    /// time passed. None where `last` has all of it, as far as so many names tell.
    pub fn of(&mut self, dir: Ino, last: Cno) -> Option<Cno> {
        let mut at = self.checkpoints.iter().position(|c| c.cno == last)?;
        let mut fuller = None;
        if self.left == 0 || self.end.is_some_and(|end| Instant::now() > end) {
            return None;
        }
        self.end.get_or_insert_with(|| Instant::now() + TIME_MAX);
        while let Some(before) = at.checked_sub(1).and_then(|i| Some((i, self.checkpoints.get(i)?))) {
            let this = self.checkpoints.get(at)?;
            let apart = this.wall.0.saturating_sub(before.1.wall.0);
            let is_near = u64::try_from(apart).is_ok_and(|n| Duration::from_nanos(n) <= APART_MAX);
            if !is_near || !self.was_removed_from(dir, before.1.cno, this.cno).unwrap_or(false) {
                break;
            }
            fuller = Some(before.1.cno);
            at = before.0;
        }
        fuller
    }

    /// Whether of a directory, and those below it, something is there in the first state and under no name in the second, and nothing
    /// came meanwhile: where programs are at work, names come and go. Not, where that is not known.
    fn was_removed_from(&mut self, dir: Ino, was: Cno, is: Cno) -> Result<bool> {
        let (mut to_do, mut went) = (vec![dir], false);
        while let Some(dir) = to_do.pop() {
            let (Some(then), Some(now)) = (self.there(was, dir)?, self.there(is, dir)?) else { continue };
            let Some(names) = self.names(dir, was)? else { return Ok(false) };
            if then.mtime != now.mtime {
                let Some(rest) = self.names(dir, is)? else { return Ok(false) };
                if rest.keys().any(|name| !names.contains_key(name)) {
                    return Ok(false);
                }
                let mut lost = names.iter().filter(|(name, _)| !rest.contains_key(*name)).map(|(_, (ino, _))| *ino);
                while let (false, Some(ino)) = (went, lost.next()) {
                    went = self.there(is, ino)?.is_none();
                }
            }
            to_do.extend(names.into_values().filter(|n| n.1 == FileKind::Directory).map(|n| n.0));
        }
        Ok(went)
    }

    fn there(&self, at: Cno, ino: Ino) -> Result<Option<Attr>> {
        match self.fs.getattr(At::Past(at), ino) {
            Ok(attr) => Ok(Some(attr)),
            // The past does not tell these apart; a state that was let go meanwhile shows nothing.
            Err(Error::NotFound | Error::Stale) => self.fs.getattr(At::Past(at), Ino::ROOT).map(|_| None),
            Err(e) => Err(e),
        }
    }

    /// None once too many were looked at.
    fn names(&mut self, dir: Ino, at: Cno) -> Result<Option<Names>> {
        let (mut names, mut cookie) = (Names::new(), 0);
        loop {
            let mut seen = 0;
            self.fs.readdir(At::Past(at), dir, cookie, &mut |e: DirEntry| {
                (cookie, seen) = (e.cookie, seen + 1);
                if e.name != b"." && e.name != b".." {
                    names.insert(e.name, (e.ino, e.kind));
                }
                seen < NAMES_AT_ONCE
            })?;
            self.left = self.left.saturating_sub(seen as u64);
            if self.left == 0 {
                return Ok(None);
            }
            if seen < NAMES_AT_ONCE {
                return Ok(Some(names));
            }
        }
    }
}
