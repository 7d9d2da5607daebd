//! A listing in pieces, with other calls between them: what was there all the time is listed once, and nothing that never was.

use super::{Check, Run, Step};
use crate::subject::Subject;
use nenrin_core::{At, Error};
use nenrin_format::Ino;
use std::collections::{BTreeMap, BTreeSet};

/// Entries of a piece.
const PIECE: usize = 2;

/// One that is under way.
pub(super) struct Listing {
    dir: u64,
    cookie: u64,
    /// There from the first piece on.
    always: BTreeMap<Vec<u8>, u64>,
    /// There at some time since.
    ever: BTreeSet<(Vec<u8>, u64)>,
    got: Vec<(Vec<u8>, u64)>,
}

impl<S: Subject> Run<S> {
    /// Notes what has become of the directory since the last call.
    pub(super) fn watch_listing(&mut self) -> Result<(), String> {
        let Some(mut listing) = self.listing.take() else { return Ok(()) };
        // Removed directories are listed by nobody.
        if let Ok(dir) = self.model()?.tree.inode(listing.dir) {
            listing.always.retain(|name, ino| dir.entries.get(name) == Some(ino));
            listing.ever.extend(dir.entries.iter().map(|(name, ino)| (name.clone(), *ino)));
            self.listing = Some(listing);
        }
        Ok(())
    }

    /// The next piece.
    pub(super) fn list_on(&mut self, dir: u64) -> Check {
        if !S::LISTS_ON {
            return Ok(Step::Denied);
        }
        let mut listing = match self.listing.take() {
            Some(listing) => listing,
            None => {
                let Ok(found) = self.model()?.tree.inode(dir) else { return Ok(Step::Denied) };
                let always = found.entries.clone();
                let ever = always.iter().map(|(name, ino)| (name.clone(), *ino)).collect();
                Listing { dir, cookie: 0, always, ever, got: Vec::new() }
            }
        };
        let mut piece = 0;
        let Listing { dir, cookie, got, .. } = &mut listing;
        let done = self.fs()?.readdir(At::Live, Ino(*dir), *cookie, &mut |e| {
            *cookie = e.cookie;
            if e.name != b"." && e.name != b".." {
                got.push((e.name, e.ino.0));
            }
            piece += 1;
            piece < PIECE
        });
        match done {
            Err(e @ (Error::Failed(_) | Error::Device(_))) => return Ok(Step::Failed(e)),
            Err(e) => return Err(format!("a listing of {} cannot be gone on with: {e}", listing.dir)),
            Ok(()) if piece < PIECE => listing.judge()?,
            Ok(()) => self.listing = Some(listing),
        }
        Ok(Step::Done)
    }
}

impl Listing {
    /// All of it has been listed.
    fn judge(&self) -> Result<(), String> {
        if let Some(entry) = self.got.iter().find(|entry| !self.ever.contains(entry)) {
            return Err(format!("{entry:?} was listed and not there since that began"));
        }
        for (name, ino) in &self.always {
            let times = self.got.iter().filter(|(n, i)| n == name && i == ino).count();
            if times != 1 {
                let name = String::from_utf8_lossy(name);
                return Err(format!("{name} was there all the time, and listed {times} times in {:?}", self.got));
            }
        }
        Ok(())
    }
}
