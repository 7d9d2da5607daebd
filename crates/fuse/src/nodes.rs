//! What the kernel holds of a volume: the inodes it knows, by how many replies
//! told it of each, and the files it has open for writing.
//!
//! Invariants
//! 1. The library counts an inode as in use, once, from before its first name
//!    is taken away until the kernel knows it no more. An inode whose names all
//!    stay needs no such use, which spares the library a count for each of the
//!    millions that a walk makes known.
//! 2. Counts only come from replies that are about to be sent, so a FORGET can
//!    never arrive before its LOOKUP was counted. The kernel never forgets what
//!    is open, so open files need no count of their own.
//! 3. A known inode costs 16 bytes and its share of the table's slack.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

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
}

/// How the kernel knows an inode: [`HELD`], and a count.
type Known = u32;

/// The library counts it as in use.
const HELD: Known = 1 << 31;
/// A count that could not be held any more stays: the inode is then known, and
/// if need be in use, until the unmount.
const COUNT_MAX: Known = HELD - 1;

/// The inodes that the kernel knows.
pub(crate) struct Nodes(Sharded<Known>);

impl Nodes {
    pub fn new() -> Self {
        Self(Sharded::new())
    }
    /// One more reply tells the kernel of it.
    pub fn remember(&self, ino: u64) {
        let mut shard = self.0.shard(ino);
        let known = shard.entry(ino).or_insert(0);
        if *known & COUNT_MAX < COUNT_MAX {
            *known += 1;
        }
    }
    /// The kernel gives back `lookups` of them. True when it was the last of an
    /// inode that is held.
    #[must_use]
    pub fn forget(&self, ino: u64, lookups: u64) -> bool {
        let mut shard = self.0.shard(ino);
        let Entry::Occupied(mut entry) = shard.entry(ino) else {
            return false;
        };
        let count = *entry.get() & COUNT_MAX;
        if count == COUNT_MAX {
            return false;
        }
        if lookups < u64::from(count) {
            *entry.get_mut() -= lookups as Known;
            return false;
        }
        let held = entry.remove() & HELD != 0;
        // A table that was once large gives its memory back.
        if shard.capacity() > 1024 && shard.len() * 8 < shard.capacity() {
            shard.shrink_to_fit();
        }
        held
    }
    /// Has the library count an inode from now on, if the kernel knows it. True
    /// when it did not so far, and the caller has to see to it.
    #[must_use]
    pub fn hold(&self, ino: u64) -> bool {
        match self.0.shard(ino).get_mut(&ino) {
            Some(known) if *known & HELD == 0 => {
                *known |= HELD;
                true
            }
            _ => false,
        }
    }
    /// Empties the table and says which inodes were held.
    pub fn drain(&self) -> Vec<u64> {
        let drain = |shard: &Mutex<Map<Known>>| {
            let map = std::mem::take(&mut *shard.lock().unwrap_or_else(PoisonError::into_inner));
            map.into_iter().filter(|(_, known)| known & HELD != 0).map(|(ino, _)| ino).collect::<Vec<_>>()
        };
        self.0.shards.iter().flat_map(drain).collect()
    }
}

#[derive(Default)]
struct OpenFile {
    handles: u32,
    /// Those through which it may be mapped and written to.
    mapping: u32,
    /// Who opened it last.
    writer: u32,
    /// The number of the handle that was opened last.
    last: u64,
    /// Through which handle the file was created or emptied since: whose content it is that is being written.
    streams: Option<u64>,
    /// The epoch in which the file was seen to carry no privileges, plus one.
    unprivileged_in: u64,
    /// Something that the kernel kept of it was lost, and no write was told so far.
    lost: bool,
    /// It lost privileges since it was opened.
    left_alone: bool,
    /// How often the kernel was told that the attributes are out of date, as far as that is of interest.
    notices: u32,
    /// Until when the kernel certainly believes the attributes, but for what it was told is out of date.
    told_until: Option<Instant>,
}

impl OpenFile {
    fn may_wait(&self, writeback: bool) -> bool {
        writeback || self.mapping > 0
    }
}

/// The files that are open for writing, with what is known of their privileges.
pub(crate) struct OpenFiles(Sharded<OpenFile>);

impl OpenFiles {
    pub fn new() -> Self {
        Self(Sharded::new())
    }
    /// One more handle, for this user; `maps`: the file may be mapped through it and written to. Its number, which no other that is
    /// open has.
    pub fn open(&self, ino: u64, writer: u32, maps: bool) -> u64 {
        let mut shard = self.0.shard(ino);
        let file = shard.entry(ino).or_default();
        file.writer = writer;
        file.last += 1;
        file.handles = file.handles.saturating_add(1);
        file.mapping = file.mapping.saturating_add(u32::from(maps));
        file.last
    }
    /// The file was created or emptied through this handle; where the kernel does not say through which, that is the one opened last.
    pub fn emptied(&self, ino: u64, through: Option<u64>) {
        if let Some(file) = self.0.shard(ino).get_mut(&ino) {
            file.streams = Some(through.unwrap_or(file.last));
        }
    }
    /// This handle less, of the same kind. Whether what was written is complete now: not while the one is open through which the file
    /// was emptied.
    pub fn close(&self, ino: u64, number: u64, maps: bool) -> bool {
        let mut shard = self.0.shard(ino);
        let Entry::Occupied(mut entry) = shard.entry(ino) else { return true };
        let file = entry.get_mut();
        if file.streams == Some(number) {
            file.streams = None;
        }
        let is_complete = file.streams.is_none() || file.handles <= 1;
        file.handles = file.handles.saturating_sub(1);
        file.mapping = file.mapping.saturating_sub(u32::from(maps));
        if file.handles == 0 {
            entry.remove();
        }
        is_complete
    }
    /// Whether the kernel may have content of the file that it has not sent: what a mapping changed, which keeps its handle open, or
    /// under writeback also what was written.
    pub fn may_wait(&self, ino: u64, writeback: bool) -> bool {
        self.0.shard(ino).get(&ino).is_some_and(|file| file.may_wait(writeback))
    }
    /// All files of which that is so.
    pub fn waiting(&self, writeback: bool) -> Vec<u64> {
        let of = |shard: &Mutex<Map<OpenFile>>| {
            let map = shard.lock().unwrap_or_else(PoisonError::into_inner);
            map.iter().filter(|(_, file)| file.may_wait(writeback)).map(|(ino, _)| *ino).collect::<Vec<_>>()
        };
        self.0.shards.iter().flat_map(of).collect()
    }
    /// Who opened it last.
    pub fn writer(&self, ino: u64) -> Option<u32> {
        self.0.shard(ino).get(&ino).map(|file| file.writer)
    }
    /// Something that the kernel kept of it was lost.
    pub fn lose(&self, ino: u64) {
        if let Some(file) = self.0.shard(ino).get_mut(&ino) {
            file.lost = true;
            file.notices = file.notices.wrapping_add(1);
        }
    }
    /// Whether it was, and nobody was told since.
    pub fn take_lost(&self, ino: u64) -> bool {
        self.0.shard(ino).get_mut(&ino).is_some_and(|file| std::mem::take(&mut file.lost))
    }
    /// What was lost of any file so far is nobody's to be told.
    pub fn forget_losses(&self) {
        for shard in &self.0.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).values_mut().for_each(|file| file.lost = false);
        }
    }
    /// The kernel is told that its attributes are out of date.
    pub fn note_notice(&self, ino: u64) {
        if let Some(file) = self.0.shard(ino).get_mut(&ino) {
            file.notices = file.notices.wrapping_add(1);
        }
    }
    /// How often it was so far.
    pub fn notices(&self, ino: u64) -> u32 {
        self.0.shard(ino).get(&ino).map_or(0, |file| file.notices)
    }
    /// The kernel was given attributes that it certainly believes until then, unless there were other notices meanwhile; and is
    /// about to be told that they are out of date.
    pub fn tell(&self, ino: u64, notices: u32, until: Instant) {
        if let Some(file) = self.0.shard(ino).get_mut(&ino) {
            if file.notices == notices {
                file.told_until = Some(until);
            }
            file.notices = file.notices.wrapping_add(1);
        }
    }
    /// Privileges were taken from the file, of which the kernel has to learn: nothing else is to tell it that attributes are out of date,
    /// since it takes no notice of those it had asked for before.
    pub fn leave_alone(&self, ino: u64) {
        if let Some(file) = self.0.shard(ino).get_mut(&ino) {
            file.left_alone = true;
        }
    }
    /// Whether the file is open, and that was not so.
    pub fn is_looked_after(&self, ino: u64) -> bool {
        self.0.shard(ino).get(&ino).is_some_and(|file| !file.left_alone)
    }
    /// Whether it certainly believes them now.
    pub fn is_told(&self, ino: u64, now: Instant) -> bool {
        self.0.shard(ino).get(&ino).is_some_and(|file| file.told_until.is_some_and(|until| now < until))
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back_once() {
        let nodes = Nodes::new();
        assert!(!nodes.hold(5), "unknown to the kernel");
        nodes.remember(5);
        nodes.remember(5);
        assert!(nodes.hold(5));
        assert!(!nodes.hold(5), "held already");
        assert!(!nodes.forget(5, 1));
        assert!(nodes.forget(5, 1));
        assert!(!nodes.forget(5, 1), "unknown by now");
        nodes.remember(5);
        assert!(!nodes.forget(5, u64::MAX), "was not held this time");
        nodes.remember(5);
        nodes.remember(69);
        assert!(nodes.hold(69));
        assert_eq!(nodes.drain(), [69]);
        assert!(!nodes.forget(5, 1));
    }

    #[test]
    fn counts_end_where_they_must() {
        let nodes = Nodes::new();
        nodes.remember(5);
        *nodes.0.shard(5).get_mut(&5).unwrap() = COUNT_MAX - 1;
        assert!(nodes.hold(5));
        nodes.remember(5);
        nodes.remember(5);
        assert!(!nodes.forget(5, u64::from(COUNT_MAX)), "nobody knows how many there were");
        assert_eq!(nodes.drain(), [5]);
    }

    #[test]
    fn privileges_are_looked_at_once_in_an_epoch() {
        let files = OpenFiles::new();
        let first = files.open(7, 1000, false);
        assert_eq!(files.writer(7), Some(1000));
        assert!(!files.is_unprivileged(7, 0));
        files.set_unprivileged(7, 0);
        assert!(files.is_unprivileged(7, 0));
        assert!(!files.is_unprivileged(7, 1));
        let second = files.open(7, 1001, true);
        files.close(7, second, true);
        assert!(files.is_unprivileged(7, 0));
        files.close(7, first, false);
        files.close(7, first, false);
        files.set_unprivileged(7, 0);
        assert!(!files.is_unprivileged(7, 0));
        assert_eq!(files.writer(7), None);
    }

    #[test]
    fn what_was_lost_is_told_once_and_what_the_kernel_believes_is_known() {
        let (files, now) = (OpenFiles::new(), Instant::now());
        let later = now + std::time::Duration::from_secs(9);
        files.lose(7);
        assert!(!files.take_lost(7) && !files.is_looked_after(7), "closed");
        let number = files.open(7, 1, false);
        files.lose(7);
        assert!(files.take_lost(7) && !files.take_lost(7));
        assert!(!files.is_told(7, now));
        let asked = files.notices(7);
        files.lose(7);
        files.tell(7, asked, later);
        assert!(!files.is_told(7, now), "it took no notice of the answer");
        files.tell(7, files.notices(7), later);
        assert!(files.is_told(7, now) && !files.is_told(7, later));
        assert!(files.is_looked_after(7));
        files.leave_alone(7);
        assert!(!files.is_looked_after(7));
        files.close(7, number, false);
        files.open(7, 1, false);
        assert!(files.is_looked_after(7) && !files.take_lost(7) && !files.is_told(7, now));
    }

    #[test]
    fn what_is_emptied_is_complete_with_its_own_handle() {
        let files = OpenFiles::new();
        let [a, b, c] = [1, 2, 3].map(|uid| files.open(7, uid, false));
        assert!(a != b && b != c);
        files.emptied(7, None);
        assert!(!files.close(7, a, false), "the one opened last emptied it");
        files.emptied(7, Some(b));
        assert!(!files.close(7, c, false));
        let d = files.open(7, 4, false);
        assert!(files.close(7, b, false));
        let e = files.open(7, 5, false);
        assert!(files.close(7, e, false), "nothing was emptied since");
        files.emptied(7, Some(a));
        assert!(files.close(7, d, false), "nobody is left who writes");
        files.emptied(7, None);
        assert!(files.close(7, d, false));
    }

    /// A mapping that changes a file needs a handle that reads and writes.
    #[test]
    fn what_may_wait_in_the_kernel() {
        let files = OpenFiles::new();
        let waiting = |writeback| {
            let all = files.waiting(writeback);
            assert!((5..9).all(|ino| all.contains(&ino) == files.may_wait(ino, writeback)));
            all.len()
        };
        let number = files.open(7, 0, false);
        let maps = files.open(8, 0, true);
        let writes = files.open(8, 0, false);
        assert_eq!((waiting(false), waiting(true)), (1, 2));
        files.close(8, maps, true);
        assert_eq!((waiting(false), waiting(true)), (0, 2));
        files.close(8, writes, false);
        files.close(7, number, false);
        assert_eq!((waiting(false), waiting(true)), (0, 0));
    }
}
