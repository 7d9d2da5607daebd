//! A checkpoint as the model saw it made, named and dropped, and what it keeps of those who keep less history.
//!
//! Invariants
//! 1. `own` has only what the checkpoint's own name keeps as long as it has that: all of a snapshot that was made as
//!    one; of a checkpoint that got its name later, what was still as it shows it at that moment, and when a later one was cut. What it
//!    shows besides, it shows by grace of another, and that goes with the other (decision 0020).
//! 2. A mount does not show when a name was given, so a model that begins there has to be told.

use crate::walk::Part;
use nenrin_format::Time;
use std::collections::{BTreeMap, BTreeSet};

/// The fingerprints, and the times of content, that a checkpoint may show of a file.
pub type MayShow = (Vec<u64>, Vec<Time>);

/// A name given to a checkpoint, or taken from it.
#[derive(Clone, Debug)]
pub struct NameLog {
    /// Device operations before the call.
    pub start: usize,
    /// From here on an older name must not show.
    pub promised: Option<usize>,
    /// The name.
    pub name: Option<Vec<u8>>,
}

/// A checkpoint, as the model saw it made.
#[derive(Clone, Debug)]
pub struct CheckpointLog {
    /// Device operations before the call that made it.
    pub start: usize,
    /// From here on it must be there.
    pub promised: usize,
    /// Made on request.
    pub asked: bool,
    /// The namespace at that moment.
    pub sum: u64,
    /// Files with a name.
    pub files: Vec<(u64, MayShow)>,
    /// The namespace by inode.
    pub parts: BTreeMap<u64, Part>,
    /// Names it was given, in order.
    pub names: Vec<NameLog>,
    /// It was made with a name, and has had one since.
    pub is_snapshot: bool,
    /// Inodes that its name keeps for certain.
    pub own: BTreeSet<u64>,
    /// Device operations before the call after which it was not listed any more.
    pub gone: Option<usize>,
    /// From here on it must not be there.
    pub gone_promised: Option<usize>,
}

impl CheckpointLog {
    fn is_named(&self) -> bool {
        self.names.last().is_some_and(|n| n.name.is_some())
    }

    /// It gets a name, or loses the one it has.
    pub fn name(&mut self, name: NameLog) {
        if name.name.is_none() {
            self.is_snapshot = false;
            self.own.clear();
        }
        self.names.push(name);
    }

    /// A later checkpoint is cut, or this one got its name: what is still the same there dies after the name was given.
    pub fn outlived_by(&mut self, later: &Self) {
        if !self.is_named() {
            return;
        }
        for (ino, then) in &self.parts {
            let is_same = |now: &Part| now.hash == then.hash && now.ctime == then.ctime;
            let lives = then.hash.is_some() && then.ctime.is_some() && later.parts.get(ino).is_some_and(is_same);
            if lives {
                self.own.insert(*ino);
            }
        }
    }

    /// A mount found it. It is the one that was known before as `earlier`, whose names, given later than it was made
    /// too, have outlived that.
    pub fn goes_on_from(&mut self, earlier: &Self) {
        if self.is_named() {
            self.is_snapshot = earlier.is_snapshot;
            self.own = earlier.own.clone();
        }
    }

    /// The same after a power cut, which may have come before what was cut after a name was given.
    pub fn is_left_of(&mut self, earlier: &Self) {
        if earlier.is_snapshot {
            self.goes_on_from(earlier);
        }
    }
}
