//! The log goes on where leaves of the index are lost: what its records build on is made anew before they are applied,
//! so that no more is lost than what the leaves held.
//!
//! | what the log has | what was lost | what is made |
//! |---|---|---|
//! | a name that is made, moved or removed in a directory | the directory's inode | the directory, as for names that are left of one (`names`) |
//! | content of a file | the file's inode | an inode that nothing vouches for: what is known of its content goes to lost+found |
//! | a name that is moved, replaced or removed | the inode it names | the same; where content of it is left it stays, whatever becomes of the name |
//! | the same | the back reference | the back reference |
//!
//! Invariants
//! 1. Nothing is made that the log or an entry does not prove to have been there, and nothing where no leaf is lost.

use super::losses::{About, LossKind, Losses, MendKind};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::index::LostRange;
use crate::recovery::Found;
use crate::state::{SLOT_MASK, State};
use nenrin_format::Ino;
use nenrin_format::items::{Dirent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::records::Record;
use nenrin_format::wire::Reader;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Makes anew what these partials build on and lost leaves held.
pub(super) fn what_is_lost(
    state: &mut State,
    lost: &[LostRange],
    partials: &[Found],
    unproven: &mut BTreeSet<u64>,
    losses: &mut Losses,
) -> Result<()> {
    if lost.is_empty() || broken(Break::LostNotRegained) {
        return Ok(());
    }
    let mut regain = Regain { state, lost, unproven, losses, made: BTreeSet::new() };
    for found in partials {
        let mut r = Reader::new(&found.records);
        while let (false, Ok(record)) = (r.is_empty(), Record::decode(&mut r)) {
            regain.needs(&record)?;
        }
    }
    Ok(())
}

struct Regain<'a> {
    state: &'a mut State,
    lost: &'a [LostRange],
    unproven: &'a mut BTreeSet<u64>,
    losses: &'a mut Losses,
    /// Inodes that the log itself makes.
    made: BTreeSet<Ino>,
}

impl Regain<'_> {
    /// What a record needs to be there.
    fn needs(&mut self, record: &Record<'_>) -> Result<()> {
        match record {
            Record::Create { parent, ino, .. } => {
                self.made.insert(*ino);
                self.directory(*parent)
            }
            Record::Link { parent, .. } => self.directory(*parent),
            Record::Unlink { parent, name, .. } => self.name(*parent, name),
            Record::Rename { from, to, old, new, .. } => {
                self.name(*from, old)?;
                self.name(*to, new)
            }
            Record::Content { ino, .. } if self.is_lost(*ino)? => self.file(*ino, 0o100_600, 1),
            _ => Ok(()),
        }
    }

    fn may_be_lost(&self, from: &Key, to: &Key) -> bool {
        self.lost.iter().any(|l| l.meets(from, to))
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

    fn file(&mut self, ino: Ino, mode: u32, nlink: u32) -> Result<()> {
        let text = "the inode is lost, and with it owner and permissions";
        self.losses.add(LossKind::AttributesLost, About::Inode(ino), text);
        self.unproven.insert(ino.0);
        self.state.put_inode(ino, Inode { mode, nlink, ..Inode::default() })
    }

    /// It may have had more names.
    fn has_content(&self, ino: Ino) -> Result<bool> {
        let (from, to) = (Key::new(ino, Kind::Inode, 0, 0), Key::new(ino, Kind::Extent, u32::MAX, u64::MAX));
        let mut has = false;
        self.state.live.scan(&self.state.cache, &from, &to, &mut |key, _| {
            has |= key.kind != Kind::Link;
            if has { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(has)
    }

    /// A name that is to go, or to be another's.
    fn name(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        self.directory(parent)?;
        let Some((_, ino, file_type)) = self.state.dirent(parent, name)? else { return Ok(()) };
        if self.is_lost(ino)? {
            match file_type {
                0o04 => self.directory(ino)?,
                _ => {
                    let nlink = 1 + u32::from(self.has_content(ino)?);
                    self.file(ino, u32::from(file_type) << 12 | 0o600, nlink)?;
                }
            }
        }
        let group = self.state.link_key(ino, parent, name);
        let last = Key { off: group.off | SLOT_MASK, ..group };
        let is_it = |v: &[u8]| Dirent::decode(v).is_ok_and(|l| l.ino == parent && l.name == name);
        if !self.may_be_lost(&group, &last) || self.state.find_slot(group, is_it)?.is_some() {
            return Ok(());
        }
        let key = self.state.free_slot(group)?;
        let birth = self.state.open_cno;
        self.losses.mended(MendKind::NamesRestored, 1);
        self.state.put(key, Dirent { birth, ino: parent, file_type, name }.encode())
    }
}
