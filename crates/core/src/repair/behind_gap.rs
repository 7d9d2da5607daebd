//! Behind a gap in the log: content does not go with what was the last name of a file before the gap, since it may have
//! got another in it (mail is delivered so: a link, then the first name goes).
//!
//! Invariant: what is dropped had no name, as far as all of the log shows. One name too many leaves a file in lost+found.

use crate::breaks::{Break, broken};
use crate::recovery::{Found, Island};
use crate::state::State;
use crate::{FileKind, Result};
use nenrin_format::Ino;
use nenrin_format::records::{RENAME_EXCHANGE, Record};
use nenrin_format::wire::Reader;
use std::collections::BTreeSet;

/// What the log shows of names.
pub(super) struct BehindGap {
    /// Inodes that had no name in the end.
    released: BTreeSet<Ino>,
    /// Inodes made since the gap: all their names are known.
    made: BTreeSet<Ino>,
}

impl BehindGap {
    /// All that is intact behind the first gap.
    pub fn new(islands: &[Island]) -> Self {
        Self { released: islands.iter().flatten().flat_map(released_by).collect(), made: BTreeSet::new() }
    }

    /// Another gap.
    pub fn begin(&mut self) {
        self.made.clear();
    }

    /// Before a record is applied: an inode that would go with this name has one more.
    pub fn keep(&mut self, state: &mut State, record: &Record<'_>) -> Result<()> {
        let (parent, name) = match record {
            Record::Create { ino, .. } => {
                self.made.insert(*ino);
                return Ok(());
            }
            Record::Unlink { parent, name, .. } => (*parent, *name),
            Record::Rename { to, new, flags, .. } if flags & RENAME_EXCHANGE == 0 => (*to, *new),
            _ => return Ok(()),
        };
        let Some((_, ino, _)) = state.dirent(parent, name)? else { return Ok(()) };
        let Some(mut inode) = state.inode(ino)? else { return Ok(()) };
        let goes = inode.nlink <= 1 && FileKind::from_mode(inode.mode) != FileKind::Directory;
        if !goes || self.made.contains(&ino) || self.released.contains(&ino) || broken(Break::GapDropsLast) {
            return Ok(());
        }
        inode.nlink = 2;
        state.put_inode(ino, inode)
    }
}

fn released_by(found: &Found) -> Vec<Ino> {
    let mut out = Vec::new();
    let mut r = Reader::new(&found.records);
    while let (false, Ok(record)) = (r.is_empty(), Record::decode(&mut r)) {
        if let Record::Release { ino } = record {
            out.push(ino);
        }
    }
    out
}
