//! What keeps a sync short while others write much.
//!
//! Commits are led one after the other, so what one waits for, all who come after it wait for. Therefore
//! 1. data is waited for before a commit is led: that of the file by who syncs it, or gives it a name that it goes with, that of all files by
//!    whoever commits because of time, or cuts a checkpoint. What comes meanwhile is little, since
//! 2. whoever writes much is held while others sync, and his data goes to the device in bursts ([`super::bursts`]): then nothing is under
//!    way most of the time that a flush would have to wait for.
//! 3. The cleaner and index checkpoints have still less under way then, since nobody waits for them;
//! 4. and what lets many items of the index go holds the lock for a few of them at a time.

use super::behind::BEHIND_PAGES;
use super::bursts::Who;
use super::guard::{Awaited, Guard};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::content::Content;
use crate::storage::Storage;
use crate::{Order, Result};
use nenrin_device::Ticket;
use nenrin_format::{BLOCK_BYTES, Ino};
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;

/// Blocks beside syncs of other files that were begun before these: 4 MiB keep a device busy.
const BESIDE_BLOCKS_MAX: u64 = 1024;
/// Blocks that background work has under way: 4 MiB, and 512 KiB beside syncs.
const BACKGROUND_BLOCKS_MAX: u32 = 1024;
const BACKGROUND_BESIDE_BLOCKS_MAX: u32 = 128;
/// Items of the index changed under one hold of the lock beside syncs: 2 to 4 us each, so less than a sync takes anyway.
const BESIDE_ITEMS_MAX: u32 = 64;
/// How often a commit of all files looks whether much came while it waited.
const SETTLE_ROUNDS_MAX: usize = 4;
/// A sync is looked out for so long.
const RECENT_NANOS: u64 = 1_000_000_000;

/// How much of what waits in memory is started at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// All of it: somebody waits for just that.
    Full,
    /// Beside syncs little.
    BesideSyncs(Who),
}

/// Syncs by a program that goes on syncing: a file and its directory are two, as of one who copies files durably.
const IN_A_ROW: usize = 3;

/// The last syncs.
#[derive(Default)]
pub(super) struct RecentSyncs {
    /// Of two files: whoever writes a file sees those of others.
    files: [Option<(Ino, u64)>; 2],
    /// When the last ones joined a commit, the oldest first.
    times: [Option<u64>; IN_A_ROW],
}

impl RecentSyncs {
    fn note(&mut self, ino: Ino, now: u64) {
        if self.files[0].is_some_and(|(last, _)| last != ino) {
            self.files.swap(0, 1);
        }
        self.files[0] = Some((ino, now));
    }

    /// One joined a commit: once for each, however often it looks whether it may.
    pub(super) fn joined(&mut self, now: u64) {
        self.times.rotate_left(1);
        self.times[IN_A_ROW - 1] = Some(now);
    }

    /// Whether another file was synced a short time ago.
    pub(super) fn beside(&self, ino: Ino, now: u64) -> bool {
        self.files.iter().flatten().any(|(other, at)| *other != ino && now.saturating_sub(*at) < RECENT_NANOS)
    }

    /// Whether any file was.
    fn any(&self, now: u64) -> bool {
        self.any_within(RECENT_NANOS, now)
    }

    /// Whether any file was synced less than so long ago.
    pub(super) fn any_within(&self, nanos: u64, now: u64) -> bool {
        self.files.iter().flatten().any(|(_, at)| now.saturating_sub(*at) < nanos)
    }

    /// Whether several were, as by programs that do little else.
    pub(super) fn several_within(&self, nanos: u64, now: u64) -> bool {
        self.times[0].is_some_and(|at| now.saturating_sub(at) < nanos)
    }
}

/// Writes of background work, of which few are under way at a time.
#[derive(Default)]
pub(super) struct FewWrites {
    under_way: VecDeque<(Ticket, u32)>,
    blocks: u32,
}

impl FewWrites {
    /// One more; who holds no lock should [`Fs::hold_background`] soon.
    pub(super) fn push(&mut self, ticket: Ticket, blocks: u32) {
        self.under_way.push_back((ticket, blocks));
        self.blocks = self.blocks.saturating_add(blocks);
    }

    /// Waits, the oldest first, until at most so many blocks are under way.
    fn wait_down_to(&mut self, storage: &Storage, blocks: u32) -> Result<()> {
        if self.blocks > blocks {
            storage.about_to_wait();
        }
        while self.blocks > blocks {
            let Some((ticket, count)) = self.under_way.pop_front() else { break };
            self.blocks -= count;
            ticket.wait()?;
        }
        Ok(())
    }

    /// Waits for all.
    pub(super) fn wait(mut self, storage: &Storage) -> Result<()> {
        self.wait_down_to(storage, 0)
    }
}

thread_local! {
    /// Guards of this thread.
    static GIVING_WAY: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, its thread pauses now and then for those who sync: see [`Fs::breathe`]. Guards nest, on one thread.
pub(super) struct GivesWay(PhantomData<*const ()>);

impl Drop for GivesWay {
    fn drop(&mut self) {
        GIVING_WAY.set(GIVING_WAY.get() - 1);
    }
}

/// For long work that nobody is meant to feel.
pub(super) fn giving_way() -> GivesWay {
    GIVING_WAY.set(GIVING_WAY.get() + 1);
    GivesWay(PhantomData)
}

/// While it lives, its thread does not pause, since others wait for it.
pub(super) struct Hurries {
    guards: u32,
    _thread: PhantomData<*const ()>,
}

impl Drop for Hurries {
    fn drop(&mut self) {
        GIVING_WAY.set(self.guards);
    }
}

/// For what many wait for, whoever does it: commits.
pub(super) fn hurrying() -> Hurries {
    Hurries { guards: GIVING_WAY.replace(0), _thread: PhantomData }
}

impl Fs {
    /// Where files are synced, and this thread gives way: a moment for others now and then. A sync is a chain of threads that wake each
    /// other, those of the kernel too, and where all processors are taken each of them waits for the end of somebody's slice.
    /// Not under the lock.
    pub(super) fn breathe(&self) {
        if GIVING_WAY.get() == 0 {
            return;
        }
        if self.is_beside_syncs() {
            self.clock.breathe();
        }
    }

    /// Whether any file was synced a short time ago.
    fn is_beside_syncs(&self) -> bool {
        let at = self.synced_at.load(Relaxed);
        at > 0 && self.clock.monotonic_nanos().saturating_sub(at) < RECENT_NANOS
    }

    /// Items of the index to change under one hold of the lock, where so many would be changed while nobody syncs.
    pub(super) fn items_at_once(&self, most: u32) -> u32 {
        if self.is_beside_syncs() { most.min(BESIDE_ITEMS_MAX) } else { most }
    }

    /// A sync of this file was asked for.
    pub(super) fn note_sync(&self, inner: &mut Inner, ino: Ino) {
        let now = self.clock.monotonic_nanos();
        inner.recent_syncs.note(ino, now);
        self.synced_at.store(now, Relaxed);
    }
}

impl Inner {
    /// Pages of this file that are written behind under one hold of the lock.
    pub(super) fn behind_at_once(&self, ino: Ino, now: u64) -> usize {
        if self.recent_syncs.beside(ino, now) { BACKGROUND_BESIDE_BLOCKS_MAX as usize } else { BEHIND_PAGES }
    }
}

impl Fs {
    /// Before a sync of this file: its data is on the device, and nothing of it was changed meanwhile. The lock, so that
    /// its content can join a commit.
    pub(super) fn settle_file(&self, ino: Ino) -> Result<Guard<'_>> {
        self.owns_to_write()?;
        let mut inner = self.lock();
        inner.check_alive()?;
        self.note_sync(&mut inner, ino);
        if self.options.order == Order::Strict {
            drop(inner);
            self.settle_all(Pace::Full, true)?;
            return self.lock_to_change();
        }
        self.settle_one(inner, ino)
    }

    /// The same for who is about to have its content committed with a name, for which it must not be older: who writes waits, where anybody
    /// syncs, and not whoever syncs next. Where nobody does the writing begins.
    pub(super) fn settle_to_carry(&self, ino: Ino) -> Result<()> {
        let inner = self.lock();
        let few = self.chain_pages_max();
        let all = self.options.order == Order::Strict;
        if all || self.options.read_only || inner.has_little(ino, few) || broken(Break::CarriedUnsettled) {
            return Ok(());
        }
        if inner.recent_syncs.any(self.clock.monotonic_nanos()) {
            return self.settle_one(inner, ino).map(drop);
        }
        drop(inner);
        self.write_all_behind(ino, few, Pace::Full)
    }

    fn settle_one<'a>(&'a self, mut inner: Guard<'a>, ino: Ino) -> Result<Guard<'a>> {
        let few = self.chain_pages_max();
        if inner.has_little(ino, few) {
            return Ok(inner);
        }
        inner.begin_settling(ino);
        drop(inner);
        let awaited = Awaited(self);
        let behind = self.write_all_behind(ino, few, Pace::Full);
        let settled = behind.and_then(|()| self.settle(self.lock(), |other| other == ino));
        let settled = settled.and_then(|()| self.owns_to_write());
        drop(awaited);
        let mut inner = self.lock();
        inner.end_settling(ino);
        self.wake_idle(&inner);
        settled.and_then(|()| inner.check_alive())?;
        Ok(inner)
    }

    /// The same before a commit of all files; of those whose truncation is held back only with `held`.
    pub(super) fn settle_all(&self, pace: Pace, held: bool) -> Result<()> {
        for round in 0..SETTLE_ROUNDS_MAX {
            self.owns_to_write()?;
            let inner = self.lock();
            inner.check_alive()?;
            let goes = |c: &Content| held || c.held_since.is_none();
            let ready = inner.files.iter().filter(|(_, f)| f.content.as_ref().is_some_and(goes));
            // In order, since where things lie follows from it.
            let ready: BTreeSet<Ino> = ready.map(|(ino, _)| *ino).collect();
            let ready: Vec<(Ino, usize)> = ready.iter().map(|ino| (*ino, inner.pages_outside_index(*ino))).collect();
            drop(inner);
            let pages = ready.iter().map(|(_, pages)| pages).sum::<usize>();
            // While the device takes what was there, more comes: the less, the shorter that takes.
            if round > 0 && pages <= BEHIND_PAGES {
                break;
            }
            if pages > self.chain_pages_max() {
                for (ino, _) in ready.into_iter().filter(|(_, pages)| *pages > 0) {
                    self.write_all_behind(ino, 0, pace)?;
                }
            }
            if pace != Pace::Full {
                self.burst()?;
            }
            self.settle(self.lock(), |_| true)?;
            if matches!(pace, Pace::BesideSyncs(Who::Commits)) {
                // What came meanwhile has waited as long already.
                self.commit_little()?;
            }
        }
        Ok(())
    }

    /// Starts writing the pages that a file has, unless they are few. The lock is free in between.
    pub(super) fn write_all_behind(&self, ino: Ino, few: usize, pace: Pace) -> Result<()> {
        let mut left = self.lock().pages_of(ino);
        if left <= few {
            return Ok(());
        }
        while left > 0 {
            self.owns_to_write()?;
            let mut inner = self.lock();
            inner.check_alive()?;
            left = left.saturating_sub(inner.behind_at_once(ino, self.clock.monotonic_nanos()));
            inner.write_some_behind(self, ino)?;
            if let Pace::BesideSyncs(who) = pace {
                let (inner, _) = self.burst_if_much(inner, ino, who)?;
                self.hold_committer(inner)?;
            }
        }
        Ok(())
    }

    /// Holds who commits all files while anybody syncs and much was begun, whosever it is, where that is not done in bursts: the oldest of
    /// it is waited for. Once, since what comes meanwhile may have no end.
    fn hold_committer(&self, mut inner: Guard<'_>) -> Result<()> {
        if !inner.recent_syncs.any(self.clock.monotonic_nanos()) {
            return Ok(());
        }
        inner.reap_writes();
        let mut excess = inner.begun_blocks().saturating_sub(u64::from(BACKGROUND_BESIDE_BLOCKS_MAX));
        let writes = inner.take_writes(|w| {
            let take = excess > 0 && !w.is_held();
            excess = excess.saturating_sub(if take { u64::from(w.blocks) } else { 0 });
            take
        });
        drop(inner);
        self.finish_writes(writes)
    }

    /// Waits for the data writes of these files, whoever has them.
    fn settle(&self, mut inner: Guard<'_>, of: impl Fn(Ino) -> bool) -> Result<()> {
        let elsewhere: Vec<u64> = inner.awaited.iter().filter(|(_, (ino, _))| of(*ino)).map(|(n, _)| *n).collect();
        let writes = inner.take_writes(|w| of(w.ino));
        drop(inner);
        self.finish_writes(writes)?;
        self.wait_elsewhere(&elsewhere)
    }

    /// Waits until background work has no more under way than it may now. Not under the lock.
    pub(super) fn hold_background(&self, writes: &mut FewWrites) -> Result<()> {
        if writes.blocks <= BACKGROUND_BESIDE_BLOCKS_MAX {
            return Ok(());
        }
        writes.wait_down_to(&self.storage, self.background_blocks())
    }

    /// Blocks that background work may have under way now.
    pub(super) fn background_blocks(&self) -> u32 {
        let beside = self.lock().recent_syncs.any(self.clock.monotonic_nanos());
        if beside { BACKGROUND_BESIDE_BLOCKS_MAX } else { BACKGROUND_BLOCKS_MAX }
    }

    /// Holds who has just written to this file while others sync and much is under way, some of it his. Whether he is to be told later.
    pub(super) fn hold_beside_syncs<'a>(&'a self, inner: Guard<'a>, ino: Ino, who: Who) -> Result<(Guard<'a>, bool)> {
        let (mut inner, is_told_later) = self.burst_if_much(inner, ino, who)?;
        let limit = BESIDE_BLOCKS_MAX.min((self.options.dirty_bytes_max / BLOCK_BYTES) as u64 / 2);
        while !inner.writes.is_empty() && inner.recent_syncs.beside(ino, self.clock.monotonic_nanos()) {
            let mut excess = inner.begun_blocks().saturating_sub(limit);
            let writes = inner.take_writes(|w| {
                let take = w.ino == ino && excess > 0 && !w.is_held();
                excess = excess.saturating_sub(if take { u64::from(w.blocks) } else { 0 });
                take
            });
            if writes.is_empty() {
                break;
            }
            drop(inner);
            self.finish_writes(writes)?;
            self.owns_to_write()?;
            inner = self.lock();
        }
        Ok((inner, is_told_later))
    }
}

impl Inner {
    /// The file takes no change until [`Inner::end_settling`].
    pub(super) fn begin_settling(&mut self, ino: Ino) {
        *self.settling.entry(ino).or_default() += 1;
    }

    /// One reason less why it takes none.
    pub(super) fn end_settling(&mut self, ino: Ino) {
        let Some(count) = self.settling.get_mut(&ino) else { return };
        *count -= 1;
        if *count == 0 {
            self.settling.remove(&ino);
        }
    }

    /// Whether a commit that takes this file along waits for little: of what others have taken, which may be a burst, it would wait for all.
    pub(super) fn has_little(&self, ino: Ino, few: usize) -> bool {
        self.pages_of(ino) <= few
            && self.under_way(|other| other == ino) <= few as u64
            && !self.awaited.values().any(|(other, _)| *other == ino)
    }

    /// Whether the device has nothing of this file to do, nor anybody who waits for that.
    pub(super) fn has_nothing_under_way(&self, ino: Ino) -> bool {
        !self.writes.iter().any(|w| w.ino == ino) && !self.awaited.values().any(|(other, _)| *other == ino)
    }

    /// Blocks of content that the device has to do with.
    fn begun_blocks(&self) -> u64 {
        self.under_way(|_| true) - self.bursts.held_blocks
    }

    /// Pages of a file that wait in memory.
    pub(super) fn pages_of(&self, ino: Ino) -> usize {
        self.files.get(&ino).and_then(|f| f.content.as_ref()).map_or(0, |c| c.pages.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{create, device, mount};

    #[test]
    fn own_syncs_are_not_those_of_others() {
        let mut syncs = RecentSyncs::default();
        syncs.note(Ino(7), 10);
        syncs.note(Ino(7), 20);
        assert!(!syncs.beside(Ino(7), 20) && syncs.beside(Ino(8), 20));
        syncs.note(Ino(8), 30);
        syncs.note(Ino(8), 40);
        assert!(syncs.beside(Ino(7), 40) && syncs.beside(Ino(8), 40));
        assert!(!syncs.beside(Ino(7), 40 + RECENT_NANOS));
    }

    #[test]
    fn two_syncs_are_not_several() {
        let mut syncs = RecentSyncs::default();
        (1..3).for_each(|at| syncs.joined(at));
        assert!(!syncs.several_within(10, 3));
        syncs.joined(3);
        assert!(syncs.several_within(10, 10) && !syncs.several_within(10, 11));
    }

    /// A clock that counts the pauses it was asked for.
    #[derive(Default)]
    struct Pauses(std::sync::atomic::AtomicU64);

    impl crate::Clock for Pauses {
        fn wall(&self) -> nenrin_format::Time {
            nenrin_format::Time(1)
        }
        fn monotonic_nanos(&self) -> u64 {
            1
        }
        fn breathe(&self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Who syncs never pauses, nor does anybody while nobody syncs.
    #[test]
    fn only_long_work_beside_syncs_pauses() {
        let clock = std::sync::Arc::new(Pauses::default());
        let device: std::sync::Arc<dyn nenrin_device::BlockDevice> =
            std::sync::Arc::new(nenrin_device::MemDevice::new(32 << 20));
        let time: std::sync::Arc<dyn crate::Clock> = clock.clone();
        crate::mkfs(&device, &time, &crate::MkfsOptions::default()).unwrap();
        let fs = Fs::open(vec![device], time, crate::MountOptions::default()).unwrap();
        let pauses = || clock.0.swap(0, Relaxed);
        fs.tick().unwrap();
        assert_eq!(pauses(), 0, "nobody synced");
        fs.fsync_wait(Ino::ROOT).unwrap();
        assert_eq!(pauses(), 0, "a sync waited for itself");
        fs.tick().unwrap();
        assert!(pauses() > 0);
        let outer = giving_way();
        drop(giving_way());
        drop(fs.lock());
        assert_eq!(pauses(), 1, "the inner guard ended the outer one");
        let hurry = hurrying();
        drop(fs.lock());
        assert_eq!(pauses(), 0, "others wait for what hurries");
        drop(hurry);
        drop(fs.lock());
        assert_eq!(pauses(), 1);
        drop(outer);
        drop(fs.lock());
        assert_eq!(pauses(), 0);
    }

    /// A large file is looked through a window at a time, and others come in between.
    #[test]
    fn long_seeks_pause() {
        let clock = std::sync::Arc::new(Pauses::default());
        let device: std::sync::Arc<dyn nenrin_device::BlockDevice> =
            std::sync::Arc::new(nenrin_device::MemDevice::new(128 << 20));
        let time: std::sync::Arc<dyn crate::Clock> = clock.clone();
        crate::mkfs(&device, &time, &crate::MkfsOptions::default()).unwrap();
        let fs = Fs::open(vec![device], time, crate::MountOptions::default()).unwrap();
        let ino = create(&fs, "f");
        (0..40).for_each(|mib| assert_eq!(fs.write(ino, mib << 20, &vec![1; 1 << 20], 0).unwrap(), 1 << 20));
        fs.fsync_wait(ino).unwrap();
        let pauses = || clock.0.swap(0, Relaxed);
        pauses();
        assert_eq!(fs.seek(crate::At::Live, ino, 0, crate::Seek::Hole).unwrap(), 40 << 20);
        assert_eq!(pauses(), 3, "after each of three windows");
        #[cfg(feature = "breaks")]
        crate::breaks::with(crate::breaks::Break::SeeksLocked, || {
            fs.seek(crate::At::Live, ino, 0, crate::Seek::Hole).unwrap()
        });
        #[cfg(feature = "breaks")]
        assert_eq!(pauses(), 1, "as if there was one");
        assert_eq!(fs.seek(crate::At::Live, ino, 5, crate::Seek::Data).unwrap(), 5);
        assert_eq!(pauses(), 0);
    }

    /// A directory of the past is looked through some names at a time, where most came later or were gone before.
    #[test]
    fn long_listings_of_the_past_pause() {
        let clock = std::sync::Arc::new(Pauses::default());
        let device: std::sync::Arc<dyn nenrin_device::BlockDevice> =
            std::sync::Arc::new(nenrin_device::MemDevice::new(128 << 20));
        let time: std::sync::Arc<dyn crate::Clock> = clock.clone();
        crate::mkfs(&device, &time, &crate::MkfsOptions::default()).unwrap();
        let fs = Fs::open(vec![device], time, crate::MountOptions::default()).unwrap();
        create(&fs, "then");
        let then = crate::At::Past(fs.checkpoint_create(None).unwrap().cno);
        (0..5000).for_each(|n| assert!(create(&fs, &format!("f{n}")).0 > 1));
        fs.checkpoint_create(None).unwrap();
        (0..5000).for_each(|n| fs.unlink(Ino::ROOT, format!("f{n}").as_bytes()).unwrap());
        fs.fsync_wait(Ino::ROOT).unwrap();
        let listed = || {
            let mut names = Vec::new();
            clock.0.store(0, Relaxed);
            fs.readdir(then, Ino::ROOT, 0, &mut |entry| {
                names.push(entry.name);
                true
            })
            .unwrap();
            assert_eq!(names, [&b"."[..], b"..", b"then"]);
            clock.0.load(Relaxed)
        };
        let pauses = listed();
        assert!((4..=6).contains(&pauses), "{pauses} after each of some thousand names");
        #[cfg(feature = "breaks")]
        assert_eq!(crate::breaks::with(crate::breaks::Break::SeeksLocked, listed), 0, "under one hold of the lock");
    }

    /// What waits for the lock beside syncs waits for short steps, and a tick gets as much done.
    #[test]
    fn items_are_reaped_in_short_steps_beside_syncs() {
        let options = crate::MountOptions { checkpoint_nanos: 0, ..crate::MountOptions::default() };
        let fs = mount(&device(128, 0), options);
        let scattered = |name: &str| {
            let ino = create(&fs, name);
            (0..3000).for_each(|n| assert_eq!(fs.write(ino, n * 8192, &[1; 4096], 0).unwrap(), 4096));
            fs.sync_received(false).unwrap();
            fs.index_checkpoint(false).unwrap();
        };
        let steps_to_reap = |name: &str| {
            fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
            let before = fs.lock().batch.records.len();
            fs.reap_some().unwrap();
            let inner = fs.lock();
            assert!(inner.state.next_reap(&|_| false).unwrap().is_none(), "not in one tick");
            inner.batch.records.len() - before
        };
        scattered("quiet");
        scattered("synced");
        let steps = steps_to_reap("quiet");
        assert_eq!(fs.lock().items_to_let_go(&fs, 4096), 4096);
        fs.fsync_wait(Ino::ROOT).unwrap();
        assert_eq!(fs.lock().items_to_let_go(&fs, 4096), BESIDE_ITEMS_MAX);
        let shorter = steps_to_reap("synced");
        assert!(shorter >= 3 * steps, "{shorter}, and {steps} while nobody syncs");
    }

    /// A clock that moves when it is told to, and looks at each pause whether the thread leads commits.
    #[derive(Default)]
    struct Leaders {
        now: std::sync::atomic::AtomicU64,
        fs: std::sync::OnceLock<std::sync::Weak<Fs>>,
        /// Pauses, and those of a thread that leads.
        pauses: [std::sync::atomic::AtomicU64; 2],
    }

    impl crate::Clock for Leaders {
        fn wall(&self) -> nenrin_format::Time {
            nenrin_format::Time(1)
        }
        fn monotonic_nanos(&self) -> u64 {
            self.now.load(Relaxed)
        }
        fn breathe(&self) {
            let Some(fs) = self.fs.get().and_then(std::sync::Weak::upgrade) else { return };
            let leads = fs.inner.try_lock().is_ok_and(|inner| inner.leading.is_led());
            self.pauses[usize::from(leads)].fetch_add(1, Relaxed);
        }
    }

    /// A tick commits, makes checkpoints and marks for those who sync meanwhile, too: they wait for it.
    #[test]
    fn nobody_pauses_who_leads() {
        let clock = std::sync::Arc::new(Leaders { now: 1.into(), ..Leaders::default() });
        let device: std::sync::Arc<dyn nenrin_device::BlockDevice> =
            std::sync::Arc::new(nenrin_device::MemDevice::new(64 << 20));
        let time: std::sync::Arc<dyn crate::Clock> = clock.clone();
        crate::mkfs(&device, &time, &crate::MkfsOptions::default()).unwrap();
        let fs = std::sync::Arc::new(Fs::open(vec![device], time, crate::MountOptions::default()).unwrap());
        clock.fs.set(std::sync::Arc::downgrade(&fs)).unwrap();
        let who = crate::NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let [f, g] = [&b"f"[..], b"g"].map(|name| fs.create(Ino::ROOT, name, &who).unwrap().ino);
        for round in 0..20 {
            clock.now.fetch_add(3 * RECENT_NANOS, Relaxed);
            (0..200).for_each(|n| assert_eq!(fs.write(f, n * 8192, &[round; 4096], 0).unwrap(), 4096));
            fs.fsync_wait(g).unwrap();
            let _way = giving_way();
            fs.tick().unwrap();
            fs.index_checkpoint(false).unwrap();
        }
        let [others, leaders] = clock.pauses.each_ref().map(|n| n.load(Relaxed));
        assert!(others > 100, "{others}");
        assert_eq!(leaders, 0);
    }

    #[test]
    fn little_is_under_way_in_the_background() {
        let device: std::sync::Arc<dyn nenrin_device::BlockDevice> =
            std::sync::Arc::new(nenrin_device::MemDevice::new(64 << 20));
        let time: std::sync::Arc<dyn crate::Clock> = std::sync::Arc::new(Leaders::default());
        crate::mkfs(&device, &time, &crate::MkfsOptions::default()).unwrap();
        let fs = Fs::open(vec![device], time, crate::MountOptions::default()).unwrap();
        let mut writes = FewWrites::default();
        for blocks in [100, 28, 60, 70] {
            writes.push(Ticket::done(Ok(nenrin_device::AlignedBuf::zeroed(0))), blocks);
        }
        writes.wait_down_to(&fs.storage, BACKGROUND_BESIDE_BLOCKS_MAX).unwrap();
        // The oldest were waited for, and no more than necessary.
        assert_eq!((writes.blocks, writes.under_way.len()), (70, 1));
        assert_eq!(fs.counters().device_waits_locked, 0);
        let inner = fs.lock();
        writes.wait(&fs.storage).unwrap();
        drop(inner);
        assert_eq!(fs.counters().device_waits_locked, 1);
        let mut syncs = RecentSyncs::default();
        assert!(!syncs.any(10));
        syncs.note(Ino(7), 10);
        assert!(syncs.any(10 + RECENT_NANOS - 1) && !syncs.any(10 + RECENT_NANOS));
    }
}
