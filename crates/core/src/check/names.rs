//! Names: entries and back references to each other, and directories to the root.
//!
//! Invariants
//! 1. Each name costs a bounded number of look-ups.
//! 2. Memory: 24 bytes for each directory, at most [`DIRECTORIES_MAX`] of them.

use super::findings::What;
use super::report::{Finding, Log};
use crate::Result;
use crate::state::{SLOT_MASK, State};
use nenrin_format::items::Dirent;
use nenrin_format::key::Key;
use nenrin_format::{Ino, can_be_name};

/// Directories whose places are held in memory: 384 MiB of them.
const DIRECTORIES_MAX: usize = 16 << 20;

/// Checks an entry against the inode it names and that inode's back reference.
pub fn check_entry(state: &State, key: &Key, d: &Dirent<'_>, log: &mut Log<'_>) -> Result<()> {
    let parent = Ino(key.ino);
    let mut bad = |what: What, text: String| {
        log.add_name(state, parent, d.name, Finding::new(what, text).of(d.ino));
    };
    if !can_be_name(d.name) {
        bad(What::NameInvalid, format!("in directory {parent}"));
        return Ok(());
    }
    if key.fork != 0 || key.off & !SLOT_MASK != state.name_hash(0, d.name) {
        bad(What::NameMisplaced, format!("in directory {parent}"));
        return Ok(());
    }
    if state.dirent(parent, d.name)?.is_some_and(|(first, ..)| first != *key) {
        bad(What::NameTwice, format!("in directory {parent}"));
    }
    let Some(inode) = state.inode(d.ino)? else {
        bad(What::EntryDangling, format!("directory {parent} names inode {}", d.ino));
        return Ok(());
    };
    if inode.mode >> 12 != u32::from(d.file_type) {
        bad(What::EntryTypeWrong, format!("type {:o} stated, mode is {:o}", d.file_type, inode.mode));
    }
    if state.find_slot(state.link_key(d.ino, parent, d.name), |v| is_link(v, parent, d.name))?.is_none() {
        bad(What::LinkMissing, format!("named in directory {parent}"));
    }
    Ok(())
}

/// Checks a back reference against the entry it is about.
pub fn check_link(state: &State, key: &Key, link: &Dirent<'_>, log: &mut Log<'_>) -> Result<()> {
    let (ino, parent) = (Ino(key.ino), link.ino);
    let mut bad = |what: What, text: String| {
        log.add_name(state, parent, link.name, Finding::new(what, text).of(ino));
    };
    if !can_be_name(link.name) {
        bad(What::NameInvalid, format!("of inode {ino}"));
        return Ok(());
    }
    let group = state.link_key(ino, parent, link.name);
    if key.fork != 0 || key.off & !SLOT_MASK != group.off {
        bad(What::NameMisplaced, format!("back reference to directory {parent}"));
        return Ok(());
    }
    if state.find_slot(group, |v| is_link(v, parent, link.name))?.is_some_and(|(first, _)| first != *key) {
        bad(What::NameTwice, format!("back reference to directory {parent}"));
    }
    match state.dirent(parent, link.name)? {
        Some((_, named, _)) if named == ino => {}
        Some((_, named, _)) => bad(What::LinkDangling, format!("the name belongs to inode {named}")),
        None => bad(What::LinkDangling, format!("directory {parent} has no such name")),
    }
    Ok(())
}

fn is_link(value: &[u8], parent: Ino, name: &[u8]) -> bool {
    Dirent::decode(value).is_ok_and(|l| l.ino == parent && l.name == name)
}

/// Directories and what they lie in, by ascending inode number.
pub struct Directories {
    all: Vec<(u64, u64)>,
    room: usize,
    uncounted: bool,
}

impl Default for Directories {
    fn default() -> Self {
        Self::with_room(DIRECTORIES_MAX)
    }
}

/// What is known of a directory while looking for the root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Unknown,
    OnTheWay,
    Settled,
}

impl Directories {
    /// For at most so many.
    pub const fn with_room(room: usize) -> Self {
        Self { all: Vec::new(), room, uncounted: false }
    }

    /// Notes a directory; they come in ascending order.
    pub fn push(&mut self, ino: Ino, parent: Ino) {
        if self.all.len() < self.room {
            self.all.push((ino.0, parent.0));
        } else {
            self.uncounted = true;
        }
    }

    fn parent(&self, i: usize) -> Option<usize> {
        let (ino, parent) = self.all.get(i)?;
        if *ino == Ino::ROOT.0 {
            return None;
        }
        // A parent that does not exist was noted with the name.
        self.all.binary_search_by_key(parent, |d| d.0).ok()
    }

    /// Finds directories that contain each other: one finding for each circle.
    pub fn check(&self, state: &State, log: &mut Log<'_>) {
        if self.uncounted {
            let text = format!("more than {} directories", self.room);
            log.add(Finding::new(What::DirectoriesUncounted, text));
            return;
        }
        let mut places = vec![Place::Unknown; self.all.len()];
        for start in 0..self.all.len() {
            // Up to what is settled, then the same way again to settle it.
            let mut at = Some(start);
            while let Some(i) = at.filter(|i| places[*i] == Place::Unknown) {
                places[i] = Place::OnTheWay;
                at = self.parent(i);
            }
            if let Some(i) = at.filter(|i| places[*i] == Place::OnTheWay) {
                let (ino, parent) = self.all[i];
                let text = format!("directory {ino} lies in {parent}, which lies in it");
                log.add_in(state, Finding::new(What::DirectoryCycle, text).of(Ino(ino)));
            }
            let mut at = Some(start);
            while let Some(i) = at.filter(|i| places[*i] == Place::OnTheWay) {
                places[i] = Place::Settled;
                at = self.parent(i);
            }
        }
    }
}
