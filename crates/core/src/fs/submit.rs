//! The asynchronous calls: submit, then wait. The plain calls are both in one.
//!
//! Invariants
//! 1. A ticket that is dropped leaves nothing behind: a read lets go of its segments, a sync is asked for no more.
//! 2. A read begins when it is submitted as long as less than [`READ_AHEAD_BYTES_MAX`] is under way, and otherwise when it is
//!    waited for, which nobody can be kept from.
//! 3. A submitted sync joins a commit only when its data has arrived, so that nobody else waits for that; and whoever
//!    makes it join has a commit led afterwards.

use super::bursts::Who;
use super::commit::Done;
use super::leading::Stay;
use super::read::Reading;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::content::ReadBytes;
use crate::{AlignedBuf, At, Error, Order, Result};
use nenrin_format::Ino;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

/// Bytes of reads under way from which on a submitted read does not begin yet: 64 MiB.
pub(super) const READ_AHEAD_BYTES_MAX: usize = 64 << 20;

/// A sync that was submitted and that no commit has taken yet.
pub(super) struct Asked {
    number: u64,
    ino: Ino,
    done: Done,
}

/// What was submitted and is not over.
#[derive(Default)]
pub(super) struct Submitted {
    syncs: Vec<Asked>,
    numbers: u64,
}

/// A read that was submitted: see [`Fs::submit_read`].
#[must_use = "what was read comes from wait"]
pub struct ReadTicket<'a>(Read<'a>);

enum Read<'a> {
    Begun(Result<Reading<'a>>),
    /// Too much is under way: this begins when it is waited for.
    Later(&'a Fs, (At, Ino, u64, usize)),
}

impl ReadTicket<'_> {
    /// Waits for the devices. Content, short at the end of the file, every checksum of it verified.
    ///
    /// # Errors
    /// [`Error::Damaged`] when a block is not what was written there and no device has a copy that is; those of the file.
    pub fn wait(self) -> Result<ReadBytes> {
        match self.0 {
            Read::Begun(reading) => reading?.wait(),
            Read::Later(fs, (at, ino, offset, bytes)) => fs.begin_read(at, ino, offset, bytes)?.wait(),
        }
    }

    /// Whether [`ReadTicket::wait`] need not wait for a device.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.0 {
            Read::Begun(reading) => reading.as_ref().map_or(true, Reading::is_done),
            Read::Later(..) => false,
        }
    }
}

/// A write that was submitted: see [`Fs::submit_write`].
#[must_use = "whether it was accepted is told by wait"]
pub struct WriteTicket(Result<usize>);

impl WriteTicket {
    /// Bytes that were accepted. Never waits: accepting has ended when the call that submitted returned.
    ///
    /// # Errors
    /// Why the write was refused; nothing of it was done then.
    pub fn wait(self) -> Result<usize> {
        self.0
    }
}

/// A sync that was submitted: see [`Fs::submit_sync`].
#[must_use = "nothing is durable before wait has said so"]
pub struct SyncTicket<'a> {
    fs: &'a Fs,
    ino: Ino,
    state: Sync,
}

enum Sync {
    Over(Result<()>),
    Asked(u64, mpsc::Receiver<Result<()>>),
}

impl SyncTicket<'_> {
    /// Waits until it is durable. The thread may commit for others, too.
    ///
    /// # Errors
    /// When a write or flush failed, now or earlier.
    pub fn wait(mut self) -> Result<()> {
        match std::mem::replace(&mut self.state, Sync::Over(Ok(()))) {
            Sync::Over(result) => result,
            Sync::Asked(number, answer) => {
                let result = self.fs.commit_asked(self.ino, number, &answer);
                if result.is_err() {
                    self.fs.lock().submitted.forget(number);
                }
                result
            }
        }
    }
}

impl Drop for SyncTicket<'_> {
    fn drop(&mut self) {
        if let Sync::Asked(number, _) = self.state {
            self.fs.lock().submitted.forget(number);
        }
    }
}

impl Submitted {
    fn forget(&mut self, number: u64) {
        self.syncs.retain(|s| s.number != number);
    }
    fn has(&self, number: u64) -> bool {
        self.syncs.iter().any(|s| s.number == number)
    }
}

impl Fs {
    /// Starts reading content: the requests for all of it, to all devices that have some, are under way when this
    /// returns. Several reads of one thread are under way together; with 64 MiB under way, a further one begins when it is waited for.
    /// What comes is the content of some moment between this call and the wait. A ticket may be dropped.
    ///
    /// ```
    /// # use nenrin_core::{At, Clock, Fs, MkfsOptions, MountOptions, NewInode, format::{Ino, Time}, mkfs};
    /// # use nenrin_device::{BlockDevice, MemDevice};
    /// # use std::sync::Arc;
    /// # struct Still;
    /// # impl Clock for Still {
    /// #     fn wall(&self) -> Time { Time(0) }
    /// #     fn monotonic_nanos(&self) -> u64 { 0 }
    /// # }
    /// # fn main() -> nenrin_core::Result<()> {
    /// # let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    /// # let clock: Arc<dyn Clock> = Arc::new(Still);
    /// # mkfs(&device, &clock, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() })?;
    /// # let fs = Fs::open(vec![device], clock, MountOptions::default())?;
    /// # let new = NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };
    /// let file = fs.create(Ino::ROOT, b"file", &new)?.ino;
    /// let writes: Vec<_> = (0..4u64).map(|i| fs.submit_write(file, i << 20, &[i as u8; 1 << 20], 0)).collect();
    /// for write in writes {
    ///     assert_eq!(write.wait()?, 1 << 20); // accepted: readers see it
    /// }
    /// fs.submit_sync(file).wait()?; // durable
    ///
    /// let reads: Vec<_> = (0..4u64).map(|i| fs.submit_read(At::Live, file, i << 20, 4096)).collect();
    /// for (i, read) in reads.into_iter().enumerate() {
    ///     assert_eq!(read.wait()?.into_vec(), [i as u8; 4096]); // verified
    /// }
    /// # fs.close()
    /// # }
    /// ```
    pub fn submit_read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> ReadTicket<'_> {
        if self.reads_ahead.load(Relaxed) >= READ_AHEAD_BYTES_MAX && !broken(Break::ReadsUnbounded) {
            return ReadTicket(Read::Later(self, (at, ino, offset, bytes)));
        }
        ReadTicket(Read::Begun(self.begin_read(at, ino, offset, bytes)))
    }

    /// Writes content. Completion means *accepted*: readers see it, and long runs are on their way to the devices; durable
    /// it becomes by a sync, or within the time of [`crate::MountOptions::commit_nanos`]. The call waits for room or memory where
    /// there is none.
    pub fn submit_write(&self, ino: Ino, offset: u64, data: &[u8], uid: u32) -> WriteTicket {
        WriteTicket(self.accept_of(Who::Writes, ino, offset, data, uid.into()).map(|a| a.bytes))
    }

    /// [`Fs::submit_write`] of bytes that the caller gives away: whole blocks go to the device from where they are.
    pub fn submit_write_buf(&self, ino: Ino, offset: u64, data: AlignedBuf, uid: u32) -> WriteTicket {
        WriteTicket(self.accept_buf_of(Who::Writes, ino, offset, data, uid.into()).map(|a| a.bytes))
    }

    /// Starts making a file's content, and every namespace operation before, durable: what it has is on its way to the
    /// devices when this returns. Syncs that were submitted share the commit of whoever is the first to wait, as far as their
    /// data has arrived by then. A ticket may be dropped; it promises nothing then.
    pub fn submit_sync(&self, ino: Ino) -> SyncTicket<'_> {
        let state = if self.options.read_only { Sync::Over(Ok(())) } else { self.ask_later(ino) };
        SyncTicket { fs: self, ino, state }
    }

    fn ask_later(&self, ino: Ino) -> Sync {
        let owns = self.still_owns();
        let mut inner = self.lock();
        if let Err(e) = owns.and_then(|()| inner.check_alive()) {
            return Sync::Over(Err(e));
        }
        self.note_sync(&mut inner, ino);
        if let Some(c) = inner.files.get_mut(&ino).and_then(|f| f.content.as_mut()) {
            c.held_since = None;
            if c.pages.len() > self.chain_pages_max() {
                if let Err(e) = inner.write_behind(self, ino) {
                    return Sync::Over(Err(e));
                }
            }
        }
        if let Err(e) = inner.begin_held(self, ino) {
            return Sync::Over(Err(e));
        }
        let (tx, rx) = mpsc::channel();
        let number = inner.submitted.numbers;
        inner.submitted.numbers += 1;
        inner.submitted.syncs.push(Asked { number, ino, done: Box::new(move |r| drop(tx.send(r))) });
        Sync::Asked(number, rx)
    }

    /// Has a submitted sync committed, unless somebody else's commit has taken it along.
    fn commit_asked(&self, ino: Ino, number: u64, answer: &mpsc::Receiver<Result<()>>) -> Result<()> {
        if !self.lock().submitted.has(number) {
            return self.answer(answer);
        }
        let mut inner = self.settle_file(ino)?;
        if !inner.submitted.has(number) {
            drop(inner);
            return self.answer(answer);
        }
        if self.options.order == Order::Strict {
            inner.join_all(true);
        }
        inner.join_asked(self, Some(number));
        self.see_to(inner, Stay::Briefly);
        self.answer(answer)
    }
}

impl Inner {
    /// Submitted syncs join the open batch: `first` in any case, the others as far as that makes nobody wait for their data.
    /// Somebody must see to the batch afterwards.
    pub(super) fn join_asked(&mut self, fs: &Fs, first: Option<u64>) {
        if self.submitted.syncs.is_empty() {
            return;
        }
        let mut pages: usize = self.batch.files.iter().map(|ino| self.pages_of(*ino)).sum();
        for asked in std::mem::take(&mut self.submitted.syncs) {
            let own = self.pages_of(asked.ino);
            let arrived = pages + own <= fs.chain_pages_max() && self.under_way(|ino| ino == asked.ino) == 0;
            if first != Some(asked.number) && !arrived && !self.batch.files.contains(&asked.ino) {
                self.submitted.syncs.push(asked);
                continue;
            }
            let left_out = broken(Break::AskedLeftOut) && first != Some(asked.number);
            if let Some(c) = self.files.get_mut(&asked.ino).and_then(|f| f.content.as_mut()).filter(|_| !left_out) {
                c.held_since = None;
                pages += if self.batch.files.insert(asked.ino) { own } else { 0 };
            }
            self.add_sync(fs, asked.done);
        }
    }

    /// All of them, for a commit of everything: also of what that leaves out because it is held back. In strict order nothing may be left out
    /// of what was received before; then who asked commits it, when he waits.
    pub(super) fn join_all_asked(&mut self, order: Order, held: bool) {
        if order == Order::Strict && !held && !broken(Break::AskedAheadOfHeld) {
            return;
        }
        for asked in std::mem::take(&mut self.submitted.syncs) {
            let content = self.files.get_mut(&asked.ino).and_then(|f| f.content.as_mut());
            if let Some(c) = content.filter(|_| !broken(Break::HeldAskedLeftOut)) {
                c.held_since = None;
                self.batch.files.insert(asked.ino);
            }
            self.batch.waiters.push(asked.done);
        }
    }
}

/// Bytes of a read under way, counted until it is dropped.
pub(super) struct Ahead<'a>(&'a AtomicUsize, usize);

impl<'a> Ahead<'a> {
    pub fn new(counter: &'a AtomicUsize, bytes: usize) -> Self {
        counter.fetch_add(bytes, Relaxed);
        Self(counter, bytes)
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Relaxed);
    }
}

/// What has no content cannot be read: for [`Fs::begin_read`].
pub(super) fn readable(mode: u32) -> Result<()> {
    match crate::FileKind::from_mode(mode) {
        crate::FileKind::Directory => Err(Error::IsDirectory),
        crate::FileKind::Regular => Ok(()),
        _ => Err(Error::BadArgument("not a regular file")),
    }
}
