//! Reads that were refused because of damage, and content that came too late to be refused: counted, and some files told.

use super::Fs;
use crate::check::{path_of, shortened};
use crate::{At, Error, Result};
use nenrin_format::Ino;
use nenrin_format::superblock::SLOTS_PER_AREA;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

/// Files of which it is told what could not be read; reads of more are counted.
const FILES_MAX: usize = 16;

/// What could not be read of one file or directory at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRead {
    /// Its inode.
    pub ino: Ino,
    /// The state that was read.
    pub at: At,
    /// The byte, where it was content.
    pub offset: Option<u64>,
    /// What is wrong.
    pub why: String,
}

/// Reads that were refused because of damage, since the volume was opened or [`Fs::damage_is_gone`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamagedReads {
    /// All of them.
    pub count: u64,
    /// The first of each file as it is now, and the first of its past, of the first few files.
    pub first: Vec<DamagedRead>,
}

/// Content that a program had written before it came, out of a page cache, and for which there was no room then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostWrites {
    /// All of it.
    pub bytes: u64,
    /// The first few files.
    pub files: Vec<Ino>,
}

impl Fs {
    /// The outcome of a read of an inode; one that was refused because of damage is noted.
    ///
    /// # Errors
    /// Those of the read.
    pub fn noting<T>(&self, at: At, ino: Ino, read: Result<T>) -> Result<T> {
        read.inspect_err(|why| self.note_damage(at, ino, None, why))
    }

    pub(super) fn note_damage(&self, at: At, ino: Ino, offset: Option<u64>, why: &Error) {
        if !why.is_damage() {
            return;
        }
        let mut damaged = self.damaged();
        damaged.count += 1;
        // Many states may show the same.
        let is_new = |d: &DamagedRead| (d.ino, d.at == At::Live) != (ino, at == At::Live);
        if damaged.first.len() < FILES_MAX && damaged.first.iter().all(is_new) {
            damaged.first.push(DamagedRead { ino, at, offset, why: why.to_string() });
        }
    }

    /// So many bytes, which came out of a page cache and were refused for want of room, are nowhere any more.
    pub fn note_lost_write(&self, ino: Ino, bytes: u64) {
        let mut lost = self.lost_writes.lock().unwrap_or_else(PoisonError::into_inner);
        lost.bytes = lost.bytes.saturating_add(bytes);
        if lost.files.len() < FILES_MAX && !lost.files.contains(&ino) {
            lost.files.push(ino);
        }
    }

    /// What was lost in that way since the volume was opened.
    #[must_use]
    pub fn lost_writes(&self) -> LostWrites {
        self.lost_writes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads that were refused because of damage.
    #[must_use]
    pub fn damaged_reads(&self) -> DamagedReads {
        self.damaged().clone()
    }

    /// A path of an inode in a state, with "?" for what is not known above it; of what has no name any more now, one that it had.
    #[must_use]
    pub fn path_of_inode(&self, at: At, ino: Ino) -> Option<Vec<u8>> {
        let inner = self.lock();
        let state = &inner.state;
        match at {
            At::Past(cno) if ino != Ino::ROOT => {
                let path = state.path_in(&state.links(ino).ok()?, cno).ok()?;
                (path != b"?").then(|| shortened([b"/", &path[..]].concat()))
            }
            _ => path_of(state, ino),
        }
    }

    /// Everything was read, and nothing is damaged any more.
    pub fn damage_is_gone(&self) {
        *self.damaged() = DamagedReads::default();
    }

    /// Whether superblock slots may be as they were found when the volume was opened: until a scrub finds them right, or leaves them so, or
    /// as many roots were written as there are slots.
    #[must_use]
    pub fn has_slots_as_found(&self) -> bool {
        let found = self.report.generation;
        !self.slots_right.load(Ordering::Acquire)
            && self.superblock().generation.0 < found.0.saturating_add(SLOTS_PER_AREA)
    }

    fn damaged(&self) -> MutexGuard<'_, DamagedReads> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
