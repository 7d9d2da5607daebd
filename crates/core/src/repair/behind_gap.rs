//! Behind a gap in the log: content does not go with what was the last name of a file before the gap, since it may have
//! got another in it (mail is delivered so: a link, then the first name goes).
//!
//! Invariants
//! 1. What is dropped had no name, as far as all of the log shows. One name too many leaves a file in lost+found.
//! 2. What was forgotten comes back under no name: it had none any more, and nobody used it.

use crate::breaks::{Break, broken};
use crate::recovery::{Found, Island};
use crate::state::{State, orphan_key, reap_key};
use crate::{FileKind, Result};
use nenrin_format::items::Dirent;
use nenrin_format::key::{Key, Kind};
use nenrin_format::records::{RENAME_EXCHANGE, Record};
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, Ino, Time};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// What the log shows of names.
pub(super) struct BehindGap {
    /// Inodes that had no name in the end.
    released: BTreeSet<Ino>,
    /// Inodes made since the gap: all their names are known.
    made: BTreeSet<Ino>,
    /// Inodes that were to go with a name, and have one more now.
    kept: BTreeSet<Ino>,
}

impl BehindGap {
    /// All that is intact behind the first gap.
    pub fn new(islands: &[Island]) -> Self {
        let released = islands.iter().flatten().flat_map(released_by).collect();
        Self { released, made: BTreeSet::new(), kept: BTreeSet::new() }
    }

    /// Another gap.
    pub fn begin(&mut self) {
        self.made.clear();
    }

    /// Before a record is applied: an inode that would go with a name has one more. Whether it is to be applied at all.
    pub fn keep(&mut self, state: &mut State, record: &Record<'_>) -> Result<bool> {
        let (parent, name) = match record {
            Record::Create { ino, .. } => {
                self.made.insert(*ino);
                return Ok(true);
            }
            // What is kept is not being removed.
            Record::ReapStep { ino, fork, .. } if self.kept.contains(ino) => {
                return Ok(state.space.get(&state.cache, &reap_key(*ino, *fork))?.is_some());
            }
            Record::Forget { time, inos } if !broken(Break::GapForgetsNothing) => {
                inos.iter().try_for_each(|ino| let_go(state, *ino, *time))?;
                return Ok(true);
            }
            Record::Unlink { parent, name, .. } => (*parent, *name),
            // Where the name that moves was made in the gap, nothing is replaced.
            Record::Rename { from, to, old, new, flags, .. }
                if flags & RENAME_EXCHANGE == 0 && state.dirent(*from, old)?.is_some() =>
            {
                (*to, *new)
            }
            _ => return Ok(true),
        };
        let Some((_, ino, _)) = state.dirent(parent, name)? else { return Ok(true) };
        let Some(mut inode) = state.inode(ino)? else { return Ok(true) };
        let has_content = matches!(FileKind::from_mode(inode.mode), FileKind::Regular | FileKind::Symlink);
        let goes = inode.nlink <= 1 && has_content;
        if !goes || self.made.contains(&ino) || self.released.contains(&ino) || broken(Break::GapDropsLast) {
            return Ok(true);
        }
        self.kept.insert(ino);
        inode.nlink = 2;
        state.put_inode(ino, inode).map(|()| true)
    }
}

/// What is to be forgotten and lives all the same: its names went in the gap.
pub(super) fn let_go(state: &mut State, ino: Ino, time: Time) -> Result<()> {
    let Some(mut inode) = state.inode(ino)? else { return Ok(()) };
    let is_directory = FileKind::from_mode(inode.mode) == FileKind::Directory;
    if ino == Ino::ROOT || is_directory && inode.entries > 0 {
        return Ok(());
    }
    let mut names = Vec::new();
    let (from, to) = (Key::new(ino, Kind::Link, 0, 0), Key::new(ino, Kind::Link, u32::MAX, u64::MAX));
    state.live.scan(&state.cache, &from, &to, &mut |_, v| {
        names.extend(Dirent::decode(v).ok().map(|d| (d.ino, d.name.to_vec())));
        ControlFlow::Continue(())
    })?;
    if !is_directory && !names.is_empty() {
        inode.nlink = names.len() as u32;
        state.put_inode(ino, inode)?;
    }
    for (parent, name) in names {
        state.apply(&Record::Unlink { parent, drop: true, time, name: &name }, Addr::NONE)?;
    }
    match state.space.get(&state.cache, &orphan_key(ino))? {
        Some(_) => state.apply(&Record::Release { ino }, Addr::NONE),
        None => Ok(()),
    }
}

fn released_by(found: &Found) -> Vec<Ino> {
    let mut out = Vec::new();
    let mut r = Reader::new(&found.records);
    while let (false, Ok(record)) = (r.is_empty(), Record::decode(&mut r)) {
        match record {
            Record::Release { ino } => out.push(ino),
            // It had neither a name nor a user.
            Record::Forget { inos, .. } if !broken(Break::GapForgetsNothing) => out.extend(inos),
            _ => {}
        }
    }
    out
}
