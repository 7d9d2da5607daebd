//! Commits: what was received goes to the chain, and callers are told.

use super::beside::Pace;
use super::bursts::Who;
use super::guard::Guard;
use super::leading::{Answers, Ended, Place, Stay};
use super::{Batch, DataWrite, Fs, Inner, SUMMARY, flushes};
use crate::breaks::{Break, broken};
use crate::content::{Content, Over, Page};
use crate::devices::Covering;
use crate::log::chain::{OwnedOp, Sealed, Stamp, Unit};
use crate::retention::Moment;
use crate::{Barrier, Error, Order, Result};
use nenrin_device::AlignedBuf;
use nenrin_format::items::{CHECKPOINT_DAILY, CHECKPOINT_MOUNT, Extent};
use nenrin_format::key::{Key, Kind};
use nenrin_format::records::Record;
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, BLOCK_BYTES, Cno, EXTENT_BLOCKS_MAX, INLINE_BYTES_MAX, Ino, Seq, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, mpsc};

/// Told once a sync is durable, or has failed.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Most pages that travel in the chain; more go to data segments first.
const CHAIN_PAGES_MAX: usize = 64;
/// Blocks of records beside them, where a partial has to end before a slow device.
const BESIDE_PAGES: u32 = 8;
/// Bytes of one content record, so that several share a partial.
const CONTENT_RECORD_BYTES_MAX: usize = 24 << 10;
/// Blocks outside the chain that one commit may name before it flushes them
/// first, so that recovery never reads much data.
const NAMED_BLOCKS_MAX: u64 = 256;
/// The same over all commits since the last flush: 16 MiB.
pub(super) const UNFLUSHED_BLOCKS_MAX: u64 = 4096;
/// Blocks that a truncation to nothing cuts off at once; more become a dead
/// fork for the reaper.
const BLOCKS_CUT_AT_ONCE: u64 = 1024;

/// Data writes that are waited for before those who wait for their files are told.
const WRITES_AT_ONCE: usize = 8;

/// A commit that was laid out and is to be written.
pub(super) struct Commit {
    place: Place,
    partials: Vec<(Addr, Arc<AlignedBuf>)>,
    writes: Vec<DataWrite>,
    /// Data writes of its files that somebody else waits for, by number.
    elsewhere: Vec<u64>,
    seq: Seq,
    /// [`Inner::named_blocks`] with its own.
    named_through: u64,
    flush_data_first: bool,
    /// A flush follows its last write.
    flushed: bool,
    /// What it has to cover.
    covering: Covering,
    waiters: Vec<Done>,
    cut: Option<Cno>,
}

impl Commit {
    /// Those who wait for it.
    pub(super) fn take_waiters(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.waiters)
    }

    /// Where it stands among the others.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Makes it wait for all data writes there are, of all files.
    pub(super) fn wait_for_all(&mut self, inner: &mut Inner) {
        self.elsewhere = inner.awaited.keys().copied().collect();
        self.writes.extend(inner.take_writes(|_| true));
    }
}

/// What the device did of a commit.
#[derive(Clone, Copy, Default)]
pub(super) struct Written {
    /// Nanoseconds that the last write and its flush took; none where there was nothing to write.
    pub nanos: Option<u64>,
    /// The flush that proves it, where one was made.
    pub flush: Option<u64>,
}

/// A checkpoint to cut at the end of a commit.
pub(super) struct Cut {
    /// Wall time.
    pub wall: Time,
    /// Flags of the item.
    pub flags: u32,
    /// Name of a snapshot, or nothing.
    pub name: Vec<u8>,
}

impl Fs {
    /// Makes a file's content, and every namespace operation before, durable.
    /// `done` runs on this thread or on that of the commit's leader. The call
    /// may last for as long as others sync, since it commits for them, too.
    pub fn fsync(&self, ino: Ino, done: Done) {
        if let Some(inner) = self.settle_and_ask(ino, done) {
            self.see_to(inner, Stay::WhileAsked);
        }
    }

    /// Has a file join the open batch, when little of it waits. Somebody must see to that afterwards; none where it is answered.
    pub(super) fn settle_and_ask(&self, ino: Ino, done: Done) -> Option<Guard<'_>> {
        if self.options.read_only {
            done(Ok(()));
            return None;
        }
        let settled = self.settle_file(ino).and_then(|inner| inner.check_alive().map(|()| inner));
        let mut inner = match settled {
            Ok(inner) => inner,
            Err(e) => {
                done(Err(e));
                return None;
            }
        };
        if self.options.order == Order::Strict {
            inner.join_all(true);
        }
        self.ask(&mut inner, ino, done);
        Some(inner)
    }

    /// Has a settled file join the open batch. Somebody must see to that afterwards.
    pub(super) fn ask(&self, inner: &mut Inner, ino: Ino, done: Done) {
        if let Some(c) = inner.files.get_mut(&ino).and_then(|f| f.content.as_mut()) {
            c.held_since = None;
            inner.batch.files.insert(ino);
        }
        inner.add_sync(self, done);
        inner.join_asked(self, None);
    }

    /// [`Fs::fsync`], waiting.
    ///
    /// # Errors
    /// When a write or flush failed, now or earlier.
    pub fn fsync_wait(&self, ino: Ino) -> Result<()> {
        self.submit_sync(ino).wait()
    }

    /// Commits everything received, of all files, and makes it durable.
    ///
    /// # Errors
    /// When a write or flush failed, now or earlier.
    pub fn sync_all(&self) -> Result<()> {
        self.sync_received(true)
    }

    /// Commits what was received; files whose truncation is held back only with `held`.
    pub(super) fn sync_received(&self, held: bool) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.settle_all(Pace::BesideSyncs(Who::Commits), held)?;
        self.owns_to_write()?;
        if held {
            self.log_all_accesses()?;
        }
        let mut inner = self.lock();
        inner.check_alive()?;
        inner.join_all(held);
        inner.join_all_asked(self.options.order, held);
        self.commit_open(inner)
    }

    /// Commits the open batch, and waits for that.
    fn commit_open(&self, mut inner: Guard<'_>) -> Result<()> {
        let (tx, rx) = mpsc::channel();
        inner.batch.waiters.push(Box::new(move |r| drop(tx.send(r))));
        self.see_to(inner, Stay::Briefly);
        self.answer(&rx)
    }

    /// Before a commit of everything, which waits until the device has the data that it names, of whoever writes much: what waits for
    /// none, by itself. In strict order nothing goes before anything else.
    pub(super) fn commit_little(&self) -> Result<()> {
        self.owns_to_write()?;
        let mut inner = self.lock();
        inner.check_alive()?;
        if self.options.order == Order::Strict || broken(Break::LittleWaits) || !inner.much_waits(self) {
            return Ok(());
        }
        inner.join_little(self);
        if inner.batch.records.is_empty() && inner.batch.files.is_empty() {
            return Ok(());
        }
        self.commit_open(inner)
    }

    /// Most pages that travel in the chain with one commit.
    pub(super) fn chain_pages_max(&self) -> usize {
        CHAIN_PAGES_MAX.min(self.storage.segment_blocks as usize / 4)
    }

    /// Writes a commit and flushes as the barrier mode says. It ends after those that were laid out before it: while one of them is under
    /// way, whoever leads that ends this one, too.
    pub(super) fn carry_out(&self, mut commit: Commit) -> Ended<'_> {
        let outcome = self
            .finish_writes(std::mem::take(&mut commit.writes))
            .and_then(|()| self.wait_elsewhere(&commit.elsewhere))
            .and_then(|()| self.owns_to_commit())
            .and_then(|()| self.write_commit(&commit))
            // Who was stopped meanwhile may have written over what another host has.
            .and_then(|written| self.owns_to_commit().map(|()| written));
        self.end_in_turn(commit, outcome)
    }

    fn owns_to_commit(&self) -> Result<()> {
        if broken(Break::MmpSyncsLate) { Ok(()) } else { self.still_owns() }
    }

    fn write_commit(&self, commit: &Commit) -> Result<Written> {
        if commit.flush_data_first {
            self.storage.flush_segments()?;
            self.owns_to_commit()?;
        }
        let Some(((last_addr, last), before)) = commit.partials.split_last() else {
            return Ok(Written::default());
        };
        let tickets = before
            .iter()
            .map(|(addr, bytes)| self.storage.submit_write(*addr, bytes.clone()))
            .collect::<Result<Vec<_>>>()?;
        self.storage.about_to_wait();
        for t in tickets {
            t.wait()?;
        }
        if !before.is_empty() {
            self.owns_to_commit()?;
        }
        let begun_at = self.clock.monotonic_nanos();
        let _held = broken(Break::CommitLocked).then(|| self.lock());
        let mut flush = None;
        if flushes(self.options.barrier) && !broken(Break::NoFlush) {
            let done = self.storage.write_flush(*last_addr, last.clone(), commit.covering);
            if done.is_err() && broken(Break::FlushRetried) {
                self.storage.flush()?;
            } else {
                flush = Some(done?);
            }
        } else {
            self.storage.write_unflushed(*last_addr, last.clone())?;
        }
        Ok(Written { nanos: Some(self.clock.monotonic_nanos().saturating_sub(begun_at)), flush })
    }

    /// Flushes and counts it. Where rows have parity that may write what protects them.
    pub(super) fn flush_device(&self) -> Result<()> {
        self.owns_to_write()?;
        self.lock().counters.flushes += 1;
        self.storage.flush()
    }

    /// Waits for data writes, and lets go of the buffers that the device has taken.
    pub(super) fn finish_writes(&self, writes: Vec<DataWrite>) -> Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        self.storage.about_to_wait();
        let mut result = Ok(());
        // What was held back begins now, all of it before any is waited for; another host may have the volume since it came.
        let owns = if writes.iter().any(DataWrite::is_held) && !broken(Break::HeldUnowned) {
            self.still_owns()
        } else {
            Ok(())
        };
        let begin = |w: DataWrite| match (&owns, w.is_held()) {
            (Err(e), true) => (w.number, w.addr, Err(e.clone())),
            _ => (w.number, w.addr, w.request.begin(&self.storage, w.addr)),
        };
        let begun: Vec<_> = writes.into_iter().map(begin).collect();
        let mut begun = begun.into_iter().peekable();
        while begun.peek().is_some() {
            let mut ended = Vec::with_capacity(WRITES_AT_ONCE);
            for (number, addr, ticket) in begun.by_ref().take(WRITES_AT_ONCE) {
                if broken(Break::DataNotAwaited) {
                    ended.push((number, addr, true));
                    continue;
                }
                let outcome = ticket.and_then(|ticket| Ok(ticket.wait().map(drop)?));
                ended.push((number, addr, outcome.is_ok()));
                if let Err(e) = outcome {
                    result = Err(e);
                }
            }
            let mut inner = self.lock();
            if let Err(e) = &result {
                inner.fail(&e.to_string());
            }
            for (number, addr, written) in ended {
                inner.awaited.remove(&number);
                // What could not be written stays: it can still be read and copied away.
                if written {
                    inner.inflight.remove(&addr);
                }
            }
            self.wake_idle(&inner);
        }
        result
    }

    /// Waits until those who took these data writes have seen them complete.
    pub(super) fn wait_elsewhere(&self, writes: &[u64]) -> Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut inner = self.lock();
        while writes.iter().any(|number| inner.awaited.contains_key(number)) {
            inner.check_alive()?;
            inner = self.wait_idle(inner);
        }
        inner.check_alive()
    }
}

impl Inner {
    /// Whether a commit of everything waits for more than travels in it.
    fn much_waits(&self, fs: &Fs) -> bool {
        let max = fs.chain_pages_max();
        self.under_way(|_| true) + self.pages > max as u64
    }

    /// Files of which little waits join the open batch, as long as all of that travels in it.
    fn join_little(&mut self, fs: &Fs) {
        let aside: usize = self.batch.aside.iter().map(|(_, content)| content.pages.len()).sum();
        let joined: usize = self.batch.files.iter().map(|ino| self.pages_of(*ino)).sum();
        let mut left = fs.chain_pages_max().saturating_sub(aside + joined);
        let busy: BTreeSet<Ino> =
            self.writes.iter().map(|w| w.ino).chain(self.awaited.values().map(|(ino, _)| *ino)).collect();
        let is_ready =
            |c: &Content| c.held_since.is_none() && c.pages.len() <= left && c.placed_blocks() <= NAMED_BLOCKS_MAX;
        let ready = self.files.iter().filter(|(ino, _)| !busy.contains(ino) && !self.settling.contains_key(ino));
        let ready = ready.filter(|(_, f)| f.content.as_ref().is_some_and(is_ready)).map(|(ino, _)| *ino);
        // In order, since where things lie follows from it.
        for ino in ready.collect::<BTreeSet<Ino>>() {
            if let Some(less) = left.checked_sub(self.pages_of(ino)) {
                left = less;
                self.batch.files.insert(ino);
            }
        }
    }

    /// All files with uncommitted content join the open batch; those held back only with `held`.
    pub(super) fn join_all(&mut self, held: bool) {
        for (ino, f) in &mut self.files {
            if let Some(c) = &mut f.content {
                if held || c.held_since.is_none() {
                    c.held_since = None;
                    self.batch.files.insert(*ino);
                }
            }
        }
    }

    /// A sync waits for the open batch.
    pub(super) fn add_sync(&mut self, fs: &Fs, done: Done) {
        if !self.batch.waiters.is_empty() || self.leading.is_led() {
            self.counters.shared_commits += 1;
        }
        self.batch.waiters.push(done);
        self.recent_syncs.joined(fs.clock.monotonic_nanos());
    }

    /// Lays out the open batch as one logical segment and applies what was not
    /// applied yet. An error here leaves memory ahead of the log: it is final.
    pub(super) fn seal(&mut self, fs: &Fs, cut: Option<Cut>) -> std::result::Result<Commit, Answers> {
        if fs.options.order == Order::Strict && !broken(Break::StrictForgets) {
            // Names that were received since the sync was asked for are in the batch; the content
            // that was received before them has to be, too; but for what a truncation holds back.
            self.join_all(false);
        }
        let mut batch = std::mem::take(&mut self.batch);
        let waiters = std::mem::take(&mut batch.waiters);
        let sealed = self.check_alive().and_then(|()| self.seal_batch(fs, batch, cut));
        match sealed {
            Ok(mut commit) => {
                commit.waiters = waiters;
                Ok(commit)
            }
            Err(e) => {
                self.fail(&e.to_string());
                self.leading.answered();
                Err(Answers { result: Err(e), waiters, written: Vec::new() })
            }
        }
    }

    fn seal_batch(&mut self, fs: &Fs, batch: Batch, cut: Option<Cut>) -> Result<Commit> {
        let Batch { mut records, files, aside, moved_blocks, .. } = batch;
        if broken(Break::NamesOutOfOrder) && records.len() > 1 {
            self.batch.records.push(records.remove(0));
        }
        let mut queue = VecDeque::with_capacity(records.len() + files.len() + 1);
        queue.extend(records.into_iter().map(Unit::Applied));
        let mut data_blocks = moved_blocks;
        let chain_max = fs.chain_pages_max();
        // Most commits find less than that in all memory.
        let is_much = self.pages > chain_max as u64
            && files.iter().map(|ino| self.pages_outside_index(*ino)).sum::<usize>() > chain_max;
        // What stands in one partial fits between two slow devices.
        let between = fs.storage.longest_run(self.steer(fs)).saturating_sub(BESIDE_PAGES);
        let unit_max = chain_max.min(between as usize).max(1);
        // With the blocks that each has when what was set aside is committed. What came before that, here or in the log, has blocks or not:
        // cutting them off is always right.
        let mut emptied: BTreeMap<Ino, u64> = BTreeMap::new();
        for (ino, content) in aside {
            let before = self.state.inode(ino)?.map_or(0, |inode| inode.blocks);
            let blocks = emptied.entry(ino).or_insert(1);
            let had = std::mem::replace(blocks, content.blocks_over(before).max(*blocks));
            data_blocks += self.collect_content(ino, content, had, unit_max, &mut queue)?;
        }
        let of_batch = |ino: &Ino| files.contains(ino) || emptied.contains_key(ino);
        for ino in &files {
            if is_much && self.pages_outside_index(*ino) > 0 {
                self.write_behind(fs, *ino)?;
            }
            data_blocks += self.collect(*ino, emptied.get(ino).copied().unwrap_or(0), unit_max, &mut queue)?;
        }
        let cut_cno = match cut {
            Some(cut) => {
                let cno = self.state.open_cno;
                let moment = Moment { wall: cut.wall.0, ..self.moment(fs) };
                let mut bytes = Vec::new();
                let daily = if self.begins_day(moment) { CHECKPOINT_DAILY } else { 0 };
                let flags = cut.flags | daily | (u32::from(moment.mount) * CHECKPOINT_MOUNT);
                Record::Checkpoint { cno, wall: cut.wall, mounted_nanos: moment.mounted, flags, name: &cut.name }
                    .encode_into(&mut bytes);
                queue.push_back(Unit::Late(bytes));
                Some(cno)
            }
            None => None,
        };
        let elsewhere = self.awaited.iter().filter(|(_, (ino, _))| of_batch(ino)).map(|(n, _)| *n).collect();
        self.named_blocks += data_blocks;
        let much = data_blocks > NAMED_BLOCKS_MAX || self.unflushed_blocks() > UNFLUSHED_BLOCKS_MAX;
        let flush_data_first = much && fs.options.barrier != Barrier::None;
        if flush_data_first {
            self.flushed_blocks = self.named_blocks;
        }
        let stamp = Stamp {
            durable_seq: self.durable_seq,
            open_cno: self.state.open_cno,
            now: fs.clock.wall(),
            data_flushed: flush_data_first || data_blocks == 0,
        };
        let partials = self.seal_queue(fs, queue, stamp)?;
        // What those before it name was flushed with them, and it ends behind them.
        let one = partials.len() == 1 || broken(Break::PartialsLeft);
        let itself = one && (stamp.data_flushed || broken(Break::NamedLeft));
        let covering = if itself { Covering::Itself } else { Covering::All };
        // Taken last: on an error above they stay where others find and wait for them.
        let writes = self.take_writes(|w| of_batch(&w.ino) || w.ino == SUMMARY && w.is_done());
        let flushed = flushes(fs.options.barrier) && !partials.is_empty();
        self.counters.commits += u64::from(!partials.is_empty());
        // Counted here, where the lock is held anyway: nobody is to wait for it between this and the write.
        self.counters.flushes += u64::from(flush_data_first) + u64::from(flushed);
        Ok(Commit {
            place: self.leading.begin(),
            partials,
            writes,
            elsewhere,
            seq: self.chain.seq,
            named_through: self.named_blocks,
            flush_data_first,
            flushed,
            covering,
            waiters: Vec::new(),
            cut: cut_cno,
        })
    }

    fn seal_queue(&mut self, fs: &Fs, mut queue: VecDeque<Unit>, stamp: Stamp) -> Result<Vec<(Addr, Arc<AlignedBuf>)>> {
        let mut partials = Vec::with_capacity(1);
        let avoided = self.steer(fs);
        while !queue.is_empty() {
            let first = partials.is_empty();
            let here = Addr::new(self.chain.segment, self.chain.block);
            let (segments, spare) = (&mut self.state.segments, &mut self.leading.spare);
            let sealed = self.chain.seal(&mut queue, first, stamp, avoided, &fs.storage, segments, spare)?;
            self.proven_seq = self.proven_seq.max(stamp.durable_seq);
            let Sealed { addr, bytes, base, records, late, units } = sealed;
            self.spare.give(units.into_iter().flat_map(Unit::into_pages));
            for range in late {
                let record = Record::decode(&mut Reader::new(&records[range]))
                    .map_err(|why| Error::Corrupt(format!("a record just encoded does not decode: {why}")))?;
                match self.state.apply(&record, base) {
                    Err(e) if broken(Break::WrittenUnapplied) => self.fail(&e.to_string()),
                    applied => applied?,
                }
            }
            self.counters.chain_partials += 1;
            self.counters.chain_steps_aside += u64::from(!avoided.is_empty() && addr != here);
            self.counters.chain_blocks += (bytes.len() / BLOCK_BYTES) as u64;
            self.window_bytes += bytes.len() as u64;
            let bytes = Arc::new(bytes);
            self.inflight.insert(addr, bytes.clone());
            partials.push((addr, bytes));
        }
        Ok(partials)
    }

    /// Ends a commit behind all that were laid out before it. What those are told who wait for it.
    pub(super) fn end(&mut self, mut commit: Commit, outcome: Result<()>, now: u64) -> Answers {
        let waiters = commit.take_waiters();
        let result = outcome.and_then(|()| {
            // What could not be written stays: it can still be read and copied away.
            for (addr, _) in &commit.partials {
                self.inflight.remove(addr);
            }
            // A commit before it may have failed meanwhile: then this one proves nothing.
            self.check_alive()?;
            if commit.flushed {
                self.flushed_blocks = self.flushed_blocks.max(commit.named_through);
                self.durable_seq = self.durable_seq.max(commit.seq);
            }
            self.last_commit_at = now;
            self.counters.checkpoints += u64::from(commit.cut.is_some());
            Ok(())
        });
        Answers { result, waiters, written: commit.partials }
    }

    /// Blocks outside the chain that commits named and no flush has covered.
    pub(super) fn unflushed_blocks(&self) -> u64 {
        self.named_blocks - self.flushed_blocks
    }

    /// Pages of a file that will not live in the index.
    pub(super) fn pages_outside_index(&self, ino: Ino) -> usize {
        let Some(c) = self.files.get(&ino).and_then(|f| f.content.as_ref()) else { return 0 };
        // What the index says of the file is asked for small ones only.
        let small = c.size <= INLINE_BYTES_MAX as u64;
        let blocks = || self.state.inode(ino).ok().flatten().map_or(0, |i| i.blocks);
        if small && is_inline(c, blocks()) { 0 } else { c.pages.len() }
    }

    /// Takes the data writes for which `which` holds. Who takes them must wait
    /// for them with [`Fs::finish_writes`]: commits of their files do until then.
    pub(super) fn take_writes(&mut self, mut which: impl FnMut(&DataWrite) -> bool) -> Vec<DataWrite> {
        if self.writes.is_empty() {
            return Vec::new();
        }
        let (taken, others): (Vec<_>, _) = std::mem::take(&mut self.writes).into_iter().partition(|w| which(w));
        self.writes = others;
        self.bursts.let_go(taken.iter().filter(|w| w.is_held()).map(|w| u64::from(w.blocks)).sum());
        self.awaited.extend(taken.iter().map(|w| (w.number, (w.ino, w.blocks))));
        taken
    }

    /// Uncommitted content leaves memory, to be named by records or for good:
    /// its pages count no more, and segments it was written to are held no longer.
    pub(super) fn let_go(&mut self, content: &mut Content) {
        self.pages -= content.pages.len() as u64;
        self.uncount(content);
        self.promised_here -= std::mem::take(&mut content.promised);
        // Most have none.
        while let Some(segment) = content.pins.pop_first() {
            self.state.segments.unpin(segment);
        }
    }

    /// Turns a file's uncommitted content into units. The file has at least
    /// `blocks` blocks by then. Returns how many blocks they name outside the chain.
    fn collect(&mut self, ino: Ino, blocks: u64, chain_max: usize, queue: &mut VecDeque<Unit>) -> Result<u64> {
        let Some(file) = self.files.get_mut(&ino) else { return Ok(0) };
        let Some(content) = file.content.take() else { return Ok(0) };
        let unused = file.uses == 0;
        if unused {
            self.files.remove(&ino);
        }
        self.collect_content(ino, content, blocks, chain_max, queue)
    }

    fn collect_content(
        &mut self,
        ino: Ino,
        mut content: Content,
        blocks: u64,
        chain_max: usize,
        queue: &mut VecDeque<Unit>,
    ) -> Result<u64> {
        self.let_go(&mut content);
        let Some(inode) = self.state.inode(ino)? else { return Ok(0) };
        let is_inline = inode.blocks == 0 && self.state.get(&Key::new(ino, Kind::Inline, 0, 0))?.is_some();
        // Only what is replaced may come behind other content of the same batch.
        let blocks = if content.replaced { inode.blocks.max(blocks) } else { inode.blocks };
        let mut ops = Vec::new();
        if let Some(bytes) = inline_content(&content, blocks) {
            if content.replaced && blocks > 0 {
                ops.push(cut_off(blocks));
            }
            // An empty one too: it cuts off the extents that were there.
            if !bytes.is_empty() || is_inline || blocks > 0 {
                ops.push(OwnedOp::Inline(bytes));
            }
            let (size, times, editor_uid) = (content.size, (content.mtime, content.ctime), content.editor_uid);
            queue.push_back(Unit::Content { ino, size, times, editor_uid, ops, pages: Vec::new() });
            return Ok(0);
        }
        if content.replaced {
            ops.push(cut_off(blocks));
        }
        let mut outside = 0;
        for (from, to, over) in content.overlay.iter() {
            match over {
                Over::Hole if content.replaced => {}
                Over::Hole => ops.push(OwnedOp::Hole(from, to - from)),
                Over::Extent(e) => {
                    outside += u64::from(e.stored_blocks());
                    ops.push(OwnedOp::Extent(from, e.clone()));
                }
            }
        }
        let pages = std::mem::take(&mut content.pages);
        content_units(ino, &content, ops, pages, chain_max, queue);
        Ok(outside)
    }
}

/// Cuts off all content of a file with this many blocks.
fn cut_off(blocks: u64) -> OwnedOp {
    if blocks > BLOCKS_CUT_AT_ONCE { OwnedOp::NewFork } else { OwnedOp::Hole(0, u64::MAX) }
}

/// Whether content is small enough to live in the index.
fn is_inline(content: &Content, blocks: u64) -> bool {
    content.size <= INLINE_BYTES_MAX as u64
        && (content.replaced || blocks == 0)
        && !content.overlay.has_extents()
        && content.pages.keys().all(|b| *b == 0)
}

/// The whole content, if it lives in the index.
fn inline_content(content: &Content, blocks: u64) -> Option<Vec<u8>> {
    let fits = is_inline(content, blocks);
    match content.pages.get(&0) {
        Some(page) if fits => Some(page[..content.size as usize].to_vec()),
        None if fits && content.replaced => Some(Vec::new()),
        _ => None,
    }
}

/// Cuts steps and pages into units that fit partials.
fn content_units(
    ino: Ino,
    content: &Content,
    ops: Vec<OwnedOp>,
    pages: BTreeMap<u64, Page>,
    chain_max: usize,
    queue: &mut VecDeque<Unit>,
) {
    let mut left = pages.len();
    let mut unit_ops = Vec::with_capacity(1);
    let mut unit_pages: Vec<Page> = Vec::with_capacity(left.min(chain_max));
    let mut bytes = 0;
    let mut flush = |ops: &mut Vec<OwnedOp>, pages: &mut Vec<Page>| {
        queue.push_back(Unit::Content {
            ino,
            size: content.size,
            times: (content.mtime, content.ctime),
            editor_uid: content.editor_uid,
            ops: std::mem::take(ops),
            pages: std::mem::take(pages),
        });
    };
    for op in ops {
        bytes += match &op {
            OwnedOp::Extent(_, e) => 33 + 4 * e.crcs.len(),
            _ => 17,
        };
        unit_ops.push(op);
        if bytes > CONTENT_RECORD_BYTES_MAX {
            flush(&mut unit_ops, &mut unit_pages);
            bytes = 0;
        }
    }
    for (block, page) in pages {
        let crc = nenrin_format::crc(&page[..]);
        let is_full = unit_pages.len() >= chain_max;
        match unit_ops.last_mut() {
            Some(OwnedOp::Extent(start, e)) if !is_full && goes_on(*start, e, block) => {
                e.blocks += 1;
                e.crcs.push(crc);
                bytes += 4;
            }
            _ => {
                if is_full || bytes > CONTENT_RECORD_BYTES_MAX {
                    flush(&mut unit_ops, &mut unit_pages);
                    bytes = 0;
                }
                let addr = Addr::payload(unit_pages.len() as u32);
                let mut crcs = Vec::with_capacity(left.min(chain_max - unit_pages.len()));
                crcs.push(crc);
                unit_ops.push(OwnedOp::Extent(block, new_extent(addr, 1, 0, crcs)));
                bytes += 33 + 4;
            }
        }
        unit_pages.push(page);
        left -= 1;
    }
    // Even a commit without steps records size and times.
    flush(&mut unit_ops, &mut unit_pages);
}

/// Whether the page of this block lengthens an extent of pages that begins at `start`.
fn goes_on(start: u64, extent: &Extent, block: u64) -> bool {
    extent.addr.is_payload() && start + u64::from(extent.blocks) == block && block % u64::from(EXTENT_BLOCKS_MAX) != 0
}

pub(super) fn new_extent(addr: Addr, blocks: u32, granule_shift: u8, crcs: Vec<u32>) -> Extent {
    Extent { birth: Cno(0), addr, blocks, flags: 0, granule_shift, lead: 0, tail: 0, crcs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{create, device, mount};

    /// A volume with a file whose content is on its way to the device.
    fn under_way() -> (Arc<Fs>, Ino) {
        let fs = mount(&device(64, 64), MountOptions::default());
        let ino = create(&fs, "f");
        fs.write(ino, 0, &vec![7; 200 << 10], 0).unwrap();
        (fs, ino)
    }

    /// P5: what a commit that cannot be laid out would have waited for is still
    /// under way, and nobody waits for it in vain.
    #[test]
    fn writes_of_a_commit_that_cannot_be_sealed_are_not_lost() {
        let (fs, ino) = under_way();
        let mut inner = fs.lock();
        // The chain has nowhere to go.
        inner.chain.block = fs.storage.segment_blocks;
        inner.chain.next = None;
        inner.batch.files.insert(ino);
        let before = inner.writes.len();
        assert!(before > 0);
        assert!(inner.seal(&fs, None).is_err());
        assert!(inner.writes.len() >= before && inner.awaited.is_empty(), "{} writes", inner.writes.len());
        drop(inner);
        assert!(fs.fsync_wait(ino).is_err());
        assert!(fs.close().is_err());
    }

    /// What is emptied after a sync was asked for has all that was set aside when both are committed: much goes bit by bit.
    #[test]
    fn much_that_was_set_aside_is_not_cut_off_at_once() {
        let fs = mount(&device(64, 0), MountOptions::default());
        let ino = create(&fs, "f");
        fs.write(ino, 0, &vec![7; (2 * BLOCKS_CUT_AT_ONCE as usize) << 12], 0).unwrap();
        fs.lock().batch.files.insert(ino);
        fs.setattr(ino, &crate::SetAttr { size: Some(0), ..crate::SetAttr::default() }).unwrap();
        assert_eq!(fs.lock().batch.aside.len(), 1);
        fs.write(ino, 0, b"new", 0).unwrap();
        fs.sync_all().unwrap();
        assert!(fs.lock().state.need_inode(ino).unwrap().fork > 0, "all extents went at once");
        // Twice before one commit.
        for _ in 0..2 {
            fs.write(ino, 0, &vec![8; (2 * BLOCKS_CUT_AT_ONCE as usize) << 12], 0).unwrap();
            fs.lock().batch.files.insert(ino);
            fs.setattr(ino, &crate::SetAttr { size: Some(0), ..crate::SetAttr::default() }).unwrap();
        }
        let forks = fs.lock().state.need_inode(ino).unwrap().fork;
        assert_eq!(fs.lock().batch.aside.len(), 2);
        fs.sync_all().unwrap();
        assert_eq!(fs.lock().state.need_inode(ino).unwrap().fork, forks + 2, "all extents went at once");
    }

    /// P5: who waits for the writes of others is told when the volume has failed.
    #[test]
    fn waiting_for_others_ends_with_the_volume() {
        let (fs, ino) = under_way();
        let mut inner = fs.lock();
        inner.awaited.insert(u64::MAX, (ino, 1));
        inner.fail("a test");
        drop(inner);
        assert!(fs.wait_elsewhere(&[u64::MAX]).is_err());
    }
}
