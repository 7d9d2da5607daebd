//! The log goes on where leaves of the index are lost: what its records build on is made anew before they are applied,
//! so that no more is lost than what the leaves held.
//!
//! | what the log has | what was lost | what is made |
//! |---|---|---|
//! | a name that is made, moved or removed in a directory | the directory's inode | the directory, as for names that are left of one (`names`) |
//! | content of a file, a name more for it, its end | the file's inode | an inode that nothing vouches for, with the extents that are left: what is known of its content goes to lost+found |
//! | a name that is moved, replaced or removed | the inode it names | the same; it goes with its last name only |
//! | anything | an entry, or its back reference | each from the other, as it was before |
//!
//! Invariants
//! 1. Nothing is made that the log or an entry does not prove to have been there, and nothing where no leaf is lost.
//! 2. Records find the extents of a made inode: its fork is the one they are in, and its count of blocks is right.
//! 3. Content that is left, or in the log, goes with the last name only, and where one may be lost it does not go.

use super::losses::{About, LossKind, Losses, MendKind};
use super::mender::{FIRST, LAST, may_be_lost};
use super::names::place_name;
use crate::breaks::{Break, broken};
use crate::index::LostRange;
use crate::recovery::Found;
use crate::state::{SLOT_MASK, State, orphan_key};
use crate::{Error, Result};
use nenrin_format::Ino;
use nenrin_format::items::{Dirent, Extent, Inode, Reap};
use nenrin_format::key::{Key, Kind};
use nenrin_format::records::Record;
use nenrin_format::wire::Reader;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Type of a directory, in an entry.
const DIRECTORY: u8 = 0o04;
const REGULAR: u8 = 0o10;

/// Makes anew what these partials build on and lost leaves held.
pub(super) fn what_is_lost(
    state: &mut State,
    lost: &[LostRange],
    partials: &[Found],
    unproven: &mut BTreeSet<u64>,
    losses: &mut Losses,
) -> Result<()> {
    if lost.is_empty() || partials.is_empty() || broken(Break::LostNotRegained) {
        return Ok(());
    }
    let mut regain = Regain {
        removed: forks_being_removed(state)?,
        state,
        lost,
        unproven,
        losses,
        made: BTreeSet::new(),
        written: BTreeSet::new(),
        released: BTreeSet::new(),
        names_lost: true,
    };
    each(partials, &mut |record| {
        match record {
            Record::Content { ino, .. } => drop(regain.written.insert(*ino)),
            Record::Release { ino } => drop(regain.released.insert(*ino)),
            Record::Forget { inos, .. } => regain.released.extend(inos),
            _ => {}
        }
        Ok(())
    })?;
    let outcome = regain.names();
    regain.note(outcome)?;
    each(partials, &mut |record| {
        let outcome = regain.needs(record);
        regain.note(outcome)
    })
}

/// All records of these partials.
pub(super) fn each(partials: &[Found], then: &mut dyn FnMut(&Record<'_>) -> Result<()>) -> Result<()> {
    for found in partials {
        let mut r = Reader::new(&found.records);
        while let (false, Ok(record)) = (r.is_empty(), Record::decode(&mut r)) {
            then(&record)?;
        }
    }
    Ok(())
}

/// The newest fork of each inode whose extents are being removed.
pub(super) fn forks_being_removed(state: &State) -> Result<BTreeMap<u64, u32>> {
    let mut forks: BTreeMap<u64, u32> = BTreeMap::new();
    let (from, to) = (Key::space(Kind::Reap, 0, 0), Key::space(Kind::Reap, u32::MAX, u64::MAX));
    state.space.scan(&state.cache, &from, &to, &mut |key, v| {
        if Reap::decode(v).is_ok_and(|r| !r.whole && r.fork == key.fork) {
            let newest = forks.entry(key.off).or_insert(0);
            *newest = key.fork.max(*newest);
        }
        ControlFlow::Continue(())
    })?;
    Ok(forks)
}

/// The fork an inode has as far as its extents tell: the newest, or the one behind it where that is being removed.
pub(super) fn newest_fork(state: &State, ino: Ino, removed: &BTreeMap<u64, u32>) -> Result<u32> {
    let last = Key::new(ino, Kind::Extent, u32::MAX, u64::MAX);
    let found = state.live.prev(&state.cache, &last)?;
    let fork = found.filter(|(k, _)| k.ino == ino.0 && k.kind == Kind::Extent).map_or(0, |(k, _)| k.fork);
    Ok(removed.get(&ino.0).map_or(fork, |r| fork.max(r.saturating_add(1))))
}

/// Blocks in the extents of a fork.
pub(super) fn count_blocks(state: &State, ino: Ino, fork: u32) -> Result<u64> {
    let mut blocks = 0;
    let (from, to) = (Key::new(ino, Kind::Extent, fork, 0), Key::new(ino, Kind::Extent, fork, u64::MAX));
    state.live.scan(&state.cache, &from, &to, &mut |_, v| {
        blocks += Extent::decode(v).map_or(0, |e| u64::from(e.blocks));
        ControlFlow::Continue(())
    })?;
    Ok(blocks)
}

/// An entry, or a back reference, whose counterpart may have been lost.
struct Half {
    /// Where the counterpart belongs.
    group: Key,
    birth: nenrin_format::Cno,
    /// What the counterpart names.
    ino: Ino,
    file_type: u8,
    name: Vec<u8>,
}

struct Regain<'a> {
    state: &'a mut State,
    lost: &'a [LostRange],
    unproven: &'a mut BTreeSet<u64>,
    losses: &'a mut Losses,
    /// Inodes that the log itself makes.
    made: BTreeSet<Ino>,
    /// Inodes of whose content the log has some.
    written: BTreeSet<Ino>,
    /// Inodes that had no name at some point in the log.
    released: BTreeSet<Ino>,
    /// Forks that are being removed.
    removed: BTreeMap<u64, u32>,
    /// There may have been names of which neither half is left.
    names_lost: bool,
}

impl Regain<'_> {
    /// What cannot be made anew ends no repair; the records that miss it are told, too.
    fn note(&mut self, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(e @ Error::Device(_)) => Err(e),
            Err(e) => {
                let text = format!("what the log builds on cannot be made anew: {e}");
                self.losses.add(LossKind::ChangeLost, About::Volume, text);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// What a record needs to be there.
    fn needs(&mut self, record: &Record<'_>) -> Result<()> {
        match record {
            Record::Create { parent, ino, .. } => {
                self.made.insert(*ino);
                self.directory(*parent)
            }
            Record::Link { parent, ino, .. } => {
                self.directory(*parent)?;
                self.file(*ino, None)
            }
            Record::Unlink { parent, name, .. } => self.name(*parent, name),
            Record::Rename { from, to, old, new, .. } => {
                self.name(*from, old)?;
                self.name(*to, new)
            }
            Record::Content { ino, .. } | Record::Share { ino, .. } | Record::Release { ino } => self.file(*ino, None),
            _ => Ok(()),
        }
    }

    fn may_be_lost(&self, from: &Key, to: &Key) -> bool {
        may_be_lost(self.lost, from, to)
    }

    /// Whether the inode is not there, and its item was in a leaf that is lost.
    fn is_lost(&self, ino: Ino) -> Result<bool> {
        let key = Key::new(ino, Kind::Inode, 0, 0);
        let known = ino == Ino::ROOT || ino >= Ino::FIRST && ino < self.state.next_ino;
        Ok(known && !self.made.contains(&ino) && self.may_be_lost(&key, &key) && self.state.inode(ino)?.is_none())
    }

    fn directory(&mut self, ino: Ino) -> Result<()> {
        if !self.is_lost(ino)? {
            return Ok(());
        }
        let mode = if ino == Ino::ROOT { 0o040_755 } else { 0o040_700 };
        let text = format!("the directory is made anew; it belongs to root, mode {:o}", mode & 0o777);
        self.losses.add(LossKind::AttributesLost, About::Inode(ino), text);
        self.state.put_inode(ino, Inode { mode, nlink: 2, parent: Ino::ROOT, ..Inode::default() })
    }

    fn file(&mut self, ino: Ino, file_type: Option<u8>) -> Result<()> {
        if !self.is_lost(ino)? {
            return Ok(());
        }
        let (links, known_type) = self.links(ino)?;
        let file_type = file_type.or(known_type).filter(|t| *t != DIRECTORY).unwrap_or(REGULAR);
        let fork = newest_fork(self.state, ino, &self.removed)?;
        let blocks = count_blocks(self.state, ino, fork)?;
        let (fork, blocks) = if broken(Break::RegainedBlind) { (0, 0) } else { (fork, blocks) };
        let links = if broken(Break::RegainedOneName) { 1 } else { links };
        let text = "the inode is lost, and with it owner and permissions";
        self.losses.add(LossKind::AttributesLost, About::Inode(ino), text);
        self.unproven.insert(ino.0);
        let mode = u32::from(file_type) << 12 | 0o600;
        self.state.put_inode(ino, Inode { mode, nlink: links, fork, blocks, ..Inode::default() })
    }

    /// How many names it has: one more than are known where one may be lost and content would go with those.
    fn links(&self, ino: Ino) -> Result<(u32, Option<u8>)> {
        if self.state.space.get(&self.state.cache, &orphan_key(ino))?.is_some() {
            return Ok((0, None));
        }
        let (from, to) = (Key::new(ino, Kind::Link, 0, 0), Key::new(ino, Kind::Link, u32::MAX, u64::MAX));
        let (mut links, mut file_type) = (0u32, None);
        self.state.live.scan(&self.state.cache, &from, &to, &mut |_, v| {
            links = links.saturating_add(1);
            file_type = file_type.or(Dirent::decode(v).ok().map(|l| l.file_type));
            ControlFlow::Continue(())
        })?;
        let more = self.names_lost && self.may_be_lost(&from, &to) && !self.released.contains(&ino);
        let more = more && (self.written.contains(&ino) || self.has_content(ino)?);
        Ok((links.saturating_add(u32::from(more)).max(1), file_type))
    }

    fn has_content(&self, ino: Ino) -> Result<bool> {
        let (from, to) = (Key::new(ino, Kind::Inline, 0, 0), Key::new(ino, Kind::Extent, u32::MAX, u64::MAX));
        let mut has = false;
        self.state.live.scan(&self.state.cache, &from, &to, &mut |key, _| {
            has |= matches!(key.kind, Kind::Inline | Kind::Extent);
            if has { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(has)
    }

    /// A name that is to go, or to be another's.
    fn name(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        self.directory(parent)?;
        match self.state.dirent(parent, name)? {
            Some((_, ino, DIRECTORY)) => self.directory(ino),
            Some((_, ino, file_type)) => self.file(ino, Some(file_type)),
            None => Ok(()),
        }
    }

    /// Entries and back references, each from the other. Names of which neither is left can only have been in directories
    /// that are known and lost entries: every way to the root begins in such a one.
    fn names(&mut self) -> Result<()> {
        let (mut halves, mut names_lost) = (Vec::new(), self.entries_may_be_lost(Ino::ROOT));
        self.state.live.scan(&self.state.cache, &FIRST, &LAST, &mut |key, value| {
            let Some(d) = matches!(key.kind, Kind::Dirent | Kind::Link).then(|| Dirent::decode(value).ok()).flatten()
            else {
                return ControlFlow::Continue(());
            };
            let is_entry = key.kind == Kind::Dirent;
            let (here, there) = (Ino(key.ino), d.ino);
            let group = match is_entry {
                true => self.state.link_key(there, here, d.name),
                false => self.state.dirent_key(there, d.name),
            };
            names_lost |= d.file_type == DIRECTORY && self.entries_may_be_lost(if is_entry { there } else { here });
            if self.may_be_lost(&group, &Key { off: group.off | SLOT_MASK, ..group }) {
                halves.push(Half { group, birth: d.birth, ino: here, file_type: d.file_type, name: d.name.to_vec() });
            }
            ControlFlow::Continue(())
        })?;
        self.names_lost = names_lost;
        halves.iter().try_for_each(|half| {
            let outcome = self.counterpart(half);
            self.note(outcome)
        })
    }

    fn entries_may_be_lost(&self, dir: Ino) -> bool {
        let (from, to) = (Key::new(dir, Kind::Dirent, 0, 0), Key::new(dir, Kind::Dirent, u32::MAX, u64::MAX));
        self.may_be_lost(&from, &to)
    }

    fn counterpart(&mut self, Half { group, birth, ino, file_type, name }: &Half) -> Result<()> {
        let is_link = group.kind == Kind::Link;
        let is_it = |v: &[u8]| Dirent::decode(v).is_ok_and(|d| d.name == name && (!is_link || d.ino == *ino));
        let of = Ino(group.ino);
        if self.state.find_slot(*group, is_it)?.is_some() || self.state.inode(of)?.is_none() && !self.is_lost(of)? {
            return Ok(());
        }
        self.losses.mended(MendKind::NamesRestored, 1);
        let item = Dirent { birth: *birth, ino: *ino, file_type: *file_type, name };
        place_name(self.state, *group, item).map(drop)
    }
}
