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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
        // No code that could panic while it changes them runs under these locks.
        self.shards[ino as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the kernel knows an inode: [`HELD`], and a count.
type Known = u32;

/// The library counts it as in use; of the past: the kernel may keep pages of it.
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
    /// Those that are held.
    pub fn held(&self) -> Vec<u64> {
        let held = |shard: &Mutex<Map<Known>>| {
            let map = shard.lock().unwrap_or_else(PoisonError::into_inner);
            map.iter().filter(|(_, known)| **known & HELD != 0).map(|(ino, _)| *ino).collect::<Vec<_>>()
        };
        self.0.shards.iter().flat_map(held).collect()
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
    /// The number of the last notice that its attributes are out of date.
    noticed: u64,
    /// Notices that are being sent.
    noticing: u32,
    /// Who may do what with it was changed, and the kernel may not know yet.
    unlearnt: Option<Unlearnt>,
    /// Requests under way that change its attributes.
    changing: u32,
    /// Until when the kernel certainly believes the attributes, but for what it was told is out of date.
    told_until: Option<Instant>,
}

/// What the kernel may not know yet.
#[derive(Clone, Copy)]
struct Unlearnt {
    /// When it was told last that what it knows is out of date.
    since: Instant,
    /// It asked since, and was answered.
    is_answered: bool,
}

/// So long after a notice the kernel has sent what it had begun to ask for before: what it takes no notice of, it then asks for again as
/// soon as somebody looks.
const ASKED_TIME: Duration = Duration::from_secs(1);

impl OpenFile {
    fn may_wait(&self, writeback: bool) -> bool {
        writeback || self.mapping > 0
    }
}

/// The files that are open for writing, with what is known of their privileges.
pub(crate) struct OpenFiles {
    files: Sharded<OpenFile>,
    /// Notices so far.
    notices: AtomicU64,
    /// Files of which the kernel may not know all.
    unlearnt: AtomicUsize,
}

impl OpenFiles {
    pub fn new() -> Self {
        Self { files: Sharded::new(), notices: AtomicU64::new(0), unlearnt: AtomicUsize::new(0) }
    }
    /// One more handle, for this user; `maps`: the file may be mapped through it and written to. Its number, which no other that is
    /// open has.
    pub fn open(&self, ino: u64, writer: u32, maps: bool) -> u64 {
        let mut shard = self.files.shard(ino);
        let file = shard.entry(ino).or_default();
        file.writer = writer;
        file.last += 1;
        file.handles = file.handles.saturating_add(1);
        file.mapping = file.mapping.saturating_add(u32::from(maps));
        file.last
    }
    /// The file was created or emptied through this handle; where the kernel does not say through which, that is the one opened last.
    pub fn emptied(&self, ino: u64, through: Option<u64>) {
        if let Some(file) = self.files.shard(ino).get_mut(&ino) {
            file.streams = Some(through.unwrap_or(file.last));
        }
    }
    /// This handle less, of the same kind. Where what was written is complete now, which it is not while the one is open through which
    /// the file was emptied, `note` tells of it, and who empties the file next comes behind that.
    pub fn close<R>(&self, ino: u64, number: u64, maps: bool, note: impl FnOnce() -> R) -> Option<R> {
        let mut shard = self.files.shard(ino);
        self.is_complete_without(&mut shard, ino, number, maps).then(note)
    }
    fn is_complete_without(&self, shard: &mut Map<OpenFile>, ino: u64, number: u64, maps: bool) -> bool {
        let Entry::Occupied(mut entry) = shard.entry(ino) else { return true };
        let file = entry.get_mut();
        if file.streams == Some(number) {
            file.streams = None;
        }
        let is_complete = file.streams.is_none() || file.handles <= 1;
        file.handles = file.handles.saturating_sub(1);
        file.mapping = file.mapping.saturating_sub(u32::from(maps));
        if file.handles == 0 {
            let unlearnt = entry.remove().unlearnt.is_some();
            self.unlearnt.fetch_sub(usize::from(unlearnt), Ordering::AcqRel);
        }
        is_complete
    }
    /// Whether the kernel may have content of the file that it has not sent: what a mapping changed, which keeps its handle open, or
    /// under writeback also what was written.
    pub fn may_wait(&self, ino: u64, writeback: bool) -> bool {
        self.files.shard(ino).get(&ino).is_some_and(|file| file.may_wait(writeback))
    }
    /// All files of which that is so.
    pub fn waiting(&self, writeback: bool) -> Vec<u64> {
        let of = |shard: &Mutex<Map<OpenFile>>| {
            let map = shard.lock().unwrap_or_else(PoisonError::into_inner);
            map.iter().filter(|(_, file)| file.may_wait(writeback)).map(|(ino, _)| *ino).collect::<Vec<_>>()
        };
        self.files.shards.iter().flat_map(of).collect()
    }
    /// Who opened it last.
    pub fn writer(&self, ino: u64) -> Option<u32> {
        self.files.shard(ino).get(&ino).map(|file| file.writer)
    }
    /// Something that the kernel kept of it was lost.
    pub fn lose(&self, ino: u64) {
        if let Some(file) = self.files.shard(ino).get_mut(&ino) {
            file.lost = true;
        }
    }
    /// Whether it was, and nobody was told since.
    pub fn take_lost(&self, ino: u64) -> bool {
        self.files.shard(ino).get_mut(&ino).is_some_and(|file| std::mem::take(&mut file.lost))
    }
    /// What was lost of any file so far is nobody's to be told.
    pub fn forget_losses(&self) {
        for shard in &self.files.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).values_mut().for_each(|file| file.lost = false);
        }
    }
    fn next_notice(&self) -> u64 {
        self.notices.fetch_add(1, Ordering::AcqRel) + 1
    }
    /// How many notices there were: what the kernel asks for now.
    pub fn asked(&self) -> u64 {
        self.notices.load(Ordering::Acquire)
    }
    fn learn(&self, file: &mut OpenFile, now: Instant) {
        let is_learnt = |unlearnt: &mut Unlearnt| unlearnt.is_answered && now >= unlearnt.since + ASKED_TIME;
        let learnt = file.unlearnt.take_if(is_learnt).is_some();
        self.unlearnt.fetch_sub(usize::from(learnt), Ordering::AcqRel);
    }
    fn note_notice(&self, file: &mut OpenFile, now: Instant) {
        self.learn(file, now);
        file.noticed = self.next_notice();
        file.unlearnt = file.unlearnt.map(|_| Unlearnt { since: now, is_answered: false });
    }
    /// The kernel is about to be told that its attributes are out of date. With `spares` false where it is left alone, or not open, and
    /// then it is not to be told.
    pub fn begin_notice(&self, ino: u64, spares: bool, now: Instant) -> bool {
        let mut shard = self.files.shard(ino);
        let Some(file) = shard.get_mut(&ino) else { return !spares };
        self.learn(file, now);
        if spares && file.unlearnt.is_some() {
            return false;
        }
        file.noticing += 1;
        self.note_notice(file, now);
        true
    }
    /// It was.
    pub fn end_notice(&self, ino: u64, now: Instant) {
        if let Some(file) = self.files.shard(ino).get_mut(&ino) {
            file.noticing = file.noticing.saturating_sub(1);
            self.note_notice(file, now);
        }
    }
    /// Whether a notice is being sent for a file that was left alone since.
    pub fn is_noticed_still(&self, ino: u64) -> bool {
        self.files.shard(ino).get(&ino).is_some_and(|file| file.unlearnt.is_some() && file.noticing > 0)
    }
    /// A request that changes attributes begins. Where a notice meets it the kernel believes its answer for no time (Linux 6.17).
    pub fn begin_change(&self, ino: u64) {
        if let Some(file) = self.files.shard(ino).get_mut(&ino) {
            file.changing += 1;
            file.told_until = None;
        }
    }
    /// It was answered.
    pub fn end_change(&self, ino: u64) {
        if let Some(file) = self.files.shard(ino).get_mut(&ino) {
            file.changing = file.changing.saturating_sub(1);
            file.noticed = self.next_notice();
        }
    }
    /// The kernel was given attributes that it believes until then; unless there were notices since it asked.
    pub fn tell(&self, ino: u64, asked: u64, until: Instant) {
        if let Some(file) = self.files.shard(ino).get_mut(&ino) {
            if file.noticed <= asked && file.changing == 0 {
                file.told_until = Some(until);
            }
        }
    }
    /// Who may do what with a file was changed, of which the kernel has to learn: nothing else is to tell it that attributes are out of
    /// date meanwhile, since it takes no notice of those it had asked for before.
    pub fn leave_alone(&self, ino: u64, now: Instant) {
        if let Some(file) = self.files.shard(ino).get_mut(&ino) {
            let before = file.unlearnt.replace(Unlearnt { since: now, is_answered: false });
            self.unlearnt.fetch_add(usize::from(before.is_none()), Ordering::AcqRel);
        }
    }
    /// The kernel was given attributes for which it asked then.
    pub fn answered(&self, ino: u64, asked: u64) {
        if self.unlearnt.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some(file) = self.files.shard(ino).get_mut(&ino).filter(|file| file.noticed <= asked) {
            file.unlearnt = file.unlearnt.map(|unlearnt| Unlearnt { is_answered: true, ..unlearnt });
        }
    }
    /// Whether the file is open, and the kernel knows who may do what with it.
    pub fn is_looked_after(&self, ino: u64, now: Instant) -> bool {
        let mut shard = self.files.shard(ino);
        let Some(file) = shard.get_mut(&ino) else { return false };
        self.learn(file, now);
        file.unlearnt.is_none()
    }
    /// Whether it certainly believes them now.
    pub fn is_told(&self, ino: u64, now: Instant) -> bool {
        self.files.shard(ino).get(&ino).is_some_and(|file| file.told_until.is_some_and(|until| now < until))
    }
    /// Whether the file was seen without privileges in this epoch.
    pub fn is_unprivileged(&self, ino: u64, epoch: u64) -> bool {
        self.files.shard(ino).get(&ino).is_some_and(|file| file.unprivileged_in == epoch + 1)
    }
    /// The file was seen without privileges in this epoch.
    pub fn set_unprivileged(&self, ino: u64, epoch: u64) {
        if let Some(file) = self.files.shard(ino).get_mut(&ino) {
            file.unprivileged_in = epoch + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether what was written is complete with this handle's end.
    fn closes(files: &OpenFiles, number: u64) -> bool {
        files.close(7, number, false, || ()).is_some()
    }

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
        assert_eq!(nodes.held(), [69]);
        assert_eq!(nodes.drain(), [69]);
        assert!(nodes.held().is_empty());
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
        files.close(7, second, true, || ());
        assert!(files.is_unprivileged(7, 0));
        files.close(7, first, false, || ());
        files.close(7, first, false, || ());
        files.set_unprivileged(7, 0);
        assert!(!files.is_unprivileged(7, 0));
        assert_eq!(files.writer(7), None);
    }

    fn notice(files: &OpenFiles, ino: u64, now: Instant) {
        assert!(files.begin_notice(ino, false, now));
        files.end_notice(ino, now);
    }

    #[test]
    fn what_was_lost_is_told_once_and_what_the_kernel_believes_is_known() {
        let (files, now) = (OpenFiles::new(), Instant::now());
        let later = now + Duration::from_secs(9);
        files.lose(7);
        assert!(!files.take_lost(7) && !files.is_looked_after(7, now), "closed");
        files.open(7, 1, false);
        files.lose(7);
        assert!(files.take_lost(7) && !files.take_lost(7));
        files.open(8, 1, false);
        [7, 8].into_iter().for_each(|ino| files.lose(ino));
        files.forget_losses();
        assert!(!files.take_lost(7) && !files.take_lost(8));
        assert!(!files.is_told(7, now));
        let asked = files.asked();
        notice(&files, 7, now);
        files.tell(7, asked, later);
        assert!(!files.is_told(7, now), "it took no notice of the answer");
        notice(&files, 8, now);
        files.tell(7, files.asked(), later);
        assert!(files.is_told(7, now) && !files.is_told(7, later));
        notice(&files, 7, now);
        assert!(files.is_told(7, now), "what it asks for again has its time");
    }

    /// Where a notice meets the change the kernel believes its answer for no time.
    #[test]
    fn what_is_told_beside_a_change_is_not_relied_on() {
        let (files, now) = (OpenFiles::new(), Instant::now());
        let later = now + Duration::from_secs(9);
        files.open(7, 1, false);
        files.tell(7, files.asked(), later);
        files.begin_change(7);
        assert!(!files.is_told(7, now));
        let asked = files.asked();
        files.tell(7, asked, later);
        assert!(!files.is_told(7, now));
        files.end_change(7);
        files.tell(7, asked, later);
        assert!(!files.is_told(7, now));
        files.tell(7, files.asked(), later);
        assert!(files.is_told(7, now));
    }

    #[test]
    fn a_file_is_left_alone_until_the_kernel_knows() {
        let (files, now) = (OpenFiles::new(), Instant::now());
        let at = |seconds: f64| now + Duration::from_secs_f64(seconds);
        let number = files.open(7, 1, false);
        assert!(files.is_looked_after(7, now));
        let before = files.asked();
        assert!(files.begin_notice(7, true, now) && !files.is_noticed_still(7));
        files.leave_alone(7, now);
        assert!(files.is_noticed_still(7), "one that was begun before");
        files.end_notice(7, now);
        assert!(!files.is_noticed_still(7) && !files.begin_notice(7, true, now));
        notice(&files, 7, now);
        assert!(!files.is_looked_after(7, at(100.0)), "it did not ask");
        files.answered(7, before);
        assert!(!files.is_looked_after(7, at(100.0)), "it asked before");
        files.answered(7, files.asked());
        assert!(!files.is_looked_after(7, at(0.5)), "it may have begun to ask before");
        notice(&files, 7, at(0.6));
        assert!(!files.is_looked_after(7, at(100.0)), "it has to ask again");
        files.answered(7, files.asked());
        assert!(!files.is_looked_after(7, at(1.5)));
        notice(&files, 7, at(1.7));
        assert!(files.is_looked_after(7, at(1.7)), "what it knows no notice takes away");
        files.leave_alone(7, now);
        files.close(7, number, false, || ());
        files.open(7, 1, false);
        assert!(files.is_looked_after(7, now) && !files.take_lost(7) && !files.is_told(7, now));
        assert_eq!(files.unlearnt.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_emptied_is_complete_with_its_own_handle() {
        let files = OpenFiles::new();
        let [a, b, c] = [1, 2, 3].map(|uid| files.open(7, uid, false));
        assert!(a != b && b != c);
        files.emptied(7, None);
        assert!(!closes(&files, a), "the one opened last emptied it");
        files.emptied(7, Some(b));
        assert!(!closes(&files, c));
        let d = files.open(7, 4, false);
        assert!(closes(&files, b));
        let e = files.open(7, 5, false);
        assert!(closes(&files, e), "nothing was emptied since");
        files.emptied(7, Some(a));
        assert!(closes(&files, d), "nobody is left who writes");
        files.emptied(7, None);
        assert!(closes(&files, d));
    }

    /// What is held back of a file is let go of by the close of a handle, and not by one of before it was emptied.
    #[test]
    fn who_empties_a_file_comes_behind_a_close_that_is_noted() {
        let files = OpenFiles::new();
        let before = files.open(7, 0, false);
        let next = files.open(7, 0, false);
        let order = Mutex::new(Vec::new());
        let note = |what| order.lock().unwrap().push(what);
        std::thread::scope(|scope| {
            files.close(7, before, false, || {
                let (begins, begun) = std::sync::mpsc::channel();
                let (files, note) = (&files, &note);
                scope.spawn(move || {
                    begins.send(()).unwrap();
                    files.emptied(7, Some(next));
                    note("emptied");
                });
                begun.recv().unwrap();
                std::thread::sleep(Duration::from_millis(20));
                note("closed");
            });
        });
        assert_eq!(*order.lock().unwrap(), ["closed", "emptied"]);
        assert!(!closes(&files, files.open(7, 0, false)) && closes(&files, next));
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
        files.close(8, maps, true, || ());
        assert_eq!((waiting(false), waiting(true)), (0, 2));
        files.close(8, writes, false, || ());
        files.close(7, number, false, || ());
        assert_eq!((waiting(false), waiting(true)), (0, 0));
    }
}
