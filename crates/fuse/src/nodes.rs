//! What the kernel holds of a volume: the inodes it knows, by how many replies
//! told it of each, and the files it has open.
//!
//! Invariants
//! 1. The library counts an inode as in use exactly while it has an entry in
//!    one of these tables, once for each table.
//! 2. Counts only come from replies that are about to be sent, so a FORGET can
//!    never arrive before its LOOKUP was counted.
//! 3. A known inode costs 16 bytes and its share of the table's slack.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

/// Spreads inode numbers, which nobody chooses in order to make them collide.
#[derive(Default)]
struct InoHasher(u64);

impl Hasher for InoHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }
    fn write_u64(&mut self, ino: u64) {
        let mixed = (self.0 ^ ino).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

type Map<T> = HashMap<u64, T, BuildHasherDefault<InoHasher>>;

/// A table by inode number that many threads use.
struct Sharded<T> {
    shards: [Mutex<Map<T>>; SHARDS],
}

impl<T> Sharded<T> {
    fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
    fn shard(&self, ino: u64) -> MutexGuard<'_, Map<T>> {
        // No code that could panic runs under these locks.
        self.shards[ino as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn drain(&self) -> Vec<u64> {
        let drain = |shard: &Mutex<Map<T>>| {
            let map = std::mem::take(&mut *shard.lock().unwrap_or_else(PoisonError::into_inner));
            map.into_keys().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(drain).collect()
    }
}

/// The inodes that the kernel knows.
pub(crate) struct Nodes(Sharded<u32>);

impl Nodes {
    pub fn new() -> Self {
        Self(Sharded::new())
    }
    /// One more reply tells the kernel of it. True when it was unknown.
    pub fn remember(&self, ino: u64) -> bool {
        let mut shard = self.0.shard(ino);
        let count = shard.entry(ino).or_insert(0);
        // A count that could not be held any more stays: the inode is then let
        // go at unmount.
        *count = count.saturating_add(1);
        *count == 1
    }
    /// The kernel gives back `lookups` of them. True when it was the last.
    pub fn forget(&self, ino: u64, lookups: u64) -> bool {
        let mut shard = self.0.shard(ino);
        let Entry::Occupied(mut entry) = shard.entry(ino) else {
            return false;
        };
        let count = *entry.get();
        if count == u32::MAX {
            return false;
        }
        if lookups < u64::from(count) {
            *entry.get_mut() = count - lookups as u32;
            return false;
        }
        entry.remove();
        // A table that was once large gives its memory back.
        if shard.capacity() > 1024 && shard.len() * 8 < shard.capacity() {
            shard.shrink_to_fit();
        }
        true
    }
    /// Empties the table and says what was in it.
    pub fn drain(&self) -> Vec<u64> {
        self.0.drain()
    }
}

#[derive(Default)]
struct OpenFile {
    handles: u32,
    /// Who last opened it for writing.
    writer: Option<u32>,
    /// The epoch in which the file was seen to carry no privileges, plus one.
    unprivileged_in: u64,
}

/// The files that are open, with what is known of their privileges.
pub(crate) struct OpenFiles(Sharded<OpenFile>);

impl OpenFiles {
    pub fn new() -> Self {
        Self(Sharded::new())
    }
    /// One more handle, for this user to write through if there is one. True
    /// when it is the first.
    pub fn open(&self, ino: u64, writer: Option<u32>) -> bool {
        let mut shard = self.0.shard(ino);
        let file = shard.entry(ino).or_default();
        file.writer = writer.or(file.writer);
        file.handles = file.handles.saturating_add(1);
        file.handles == 1
    }
    /// One handle less. True when it was the last.
    pub fn close(&self, ino: u64) -> bool {
        let mut shard = self.0.shard(ino);
        let Entry::Occupied(mut entry) = shard.entry(ino) else {
            return false;
        };
        entry.get_mut().handles -= 1;
        let last = entry.get().handles == 0;
        if last {
            entry.remove();
        }
        last
    }
    /// Who last opened it for writing.
    pub fn writer(&self, ino: u64) -> Option<u32> {
        self.0.shard(ino).get(&ino)?.writer
    }
    /// Whether the file was seen without privileges in this epoch.
    pub fn is_unprivileged(&self, ino: u64, epoch: u64) -> bool {
        self.0.shard(ino).get(&ino).is_some_and(|file| file.unprivileged_in == epoch + 1)
    }
    /// The file was seen without privileges in this epoch.
    pub fn set_unprivileged(&self, ino: u64, epoch: u64) {
        if let Some(file) = self.0.shard(ino).get_mut(&ino) {
            file.unprivileged_in = epoch + 1;
        }
    }
    /// Empties the table and says what was in it.
    pub fn drain(&self) -> Vec<u64> {
        self.0.drain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_and_the_last_matter_to_the_library() {
        let nodes = Nodes::new();
        assert!(nodes.remember(5));
        assert!(!nodes.remember(5));
        assert!(!nodes.forget(5, 1));
        assert!(nodes.forget(5, 1));
        assert!(!nodes.forget(5, 1), "unknown by now");
        assert!(nodes.remember(5));
        assert!(nodes.forget(5, u64::MAX));
        assert!(nodes.remember(69));
        assert_eq!(nodes.drain(), [69]);
        assert!(nodes.remember(69));
    }

    #[test]
    fn privileges_are_looked_at_once_in_an_epoch() {
        let files = OpenFiles::new();
        assert!(files.open(7, None));
        assert!(!files.is_unprivileged(7, 0));
        files.set_unprivileged(7, 0);
        assert!(files.is_unprivileged(7, 0));
        assert!(!files.is_unprivileged(7, 1));
        assert!(!files.open(7, None));
        assert!(!files.close(7));
        assert!(files.close(7));
        assert!(!files.close(7));
        files.set_unprivileged(7, 0);
        assert!(!files.is_unprivileged(7, 0));
    }
}
