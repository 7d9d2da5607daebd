//! The history of a disk, and the images that a cut at any point may leave.
//!
//! Invariants
//! 1. A cursor at k holds in `base` what was flushed within the first k
//!    operations, and in `unflushed` the others, in order of submission.
//! 2. `hash` is the hash of `hashed`, an earlier state of `base`.

use super::choice::CrashChoice;
use super::image::{Buffer, Change, Content, Image};
use super::{CrashDisk, check};
use crate::sync::lock;
use crate::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, Outcome, Ticket};
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Everything that happened to a disk, in order. Data is shared, not copied.
#[derive(Clone, Debug)]
pub struct History {
    initial: Image,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    pub(super) event: Event,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Change(Change),
    /// The operations that became durable, ascending.
    Flush {
        covered: Arc<[usize]>,
    },
    /// These can be read, and will never be durable, but for what was kept.
    Lost {
        changes: Arc<[usize]>,
        kept: CrashChoice,
    },
}

impl History {
    pub(super) fn new(initial: Image) -> Self {
        Self { initial, entries: Vec::new() }
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Number of operations: cuts are possible at 0 to this many.
    #[must_use]
    pub fn cut_points(&self) -> usize {
        self.entries.len()
    }

    /// The cut point of a moment of the disks' common [`super::Sequence`].
    #[must_use]
    pub fn cut_at(&self, sequence: u64) -> usize {
        self.entries.partition_point(|entry| entry.sequence < sequence)
    }

    /// Whether operation `at` is a flush.
    #[must_use]
    pub fn is_flush(&self, at: usize) -> bool {
        matches!(self.entries.get(at), Some(Entry { event: Event::Flush { .. }, .. }))
    }

    /// A cursor at cut point 0.
    #[must_use]
    pub fn cursor(&self) -> HistoryCursor<'_> {
        let (base, hashed) = (self.initial.clone(), self.initial.clone());
        let hash = self.initial.hash_change(&Image::zeroed(self.initial.bytes()));
        HistoryCursor { history: self, at: 0, base, unflushed: Vec::new(), hashed, hash }
    }

    /// The disk as it could be found after a cut at `cut`. Use a cursor for many.
    #[must_use]
    pub fn image_at(&self, cut: usize, choice: &CrashChoice) -> CrashImage {
        let mut cursor = self.cursor();
        cursor.advance_to(cut);
        cursor.image(choice)
    }

    fn change(&self, at: usize) -> Option<&Change> {
        match self.entries.get(at) {
            Some(Entry { event: Event::Change(change), .. }) => Some(change),
            _ => None,
        }
    }
}

/// Walks through a history and makes crash images on the way.
#[derive(Clone, Debug)]
pub struct HistoryCursor<'h> {
    history: &'h History,
    at: usize,
    base: Image,
    unflushed: Vec<usize>,
    hashed: Image,
    hash: u64,
}

impl HistoryCursor<'_> {
    /// The cut point.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// Changes that a cut here could take away.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.unflushed.len()
    }

    /// Sectors of the last unflushed change, for [`CrashChoice::last_torn`].
    #[must_use]
    pub fn last_sectors(&self) -> u64 {
        self.unflushed.last().and_then(|at| self.history.change(*at)).map_or(0, Change::sectors)
    }

    /// The bytes of each unflushed change, in the order in which they were made.
    #[must_use]
    pub fn unflushed_ranges(&self) -> Vec<Range<u64>> {
        self.changes().iter().map(|c| c.offset..c.offset + c.bytes()).collect()
    }

    /// Goes to a cut point (the last one if there are fewer); going back starts afresh.
    pub fn advance_to(&mut self, cut: usize) {
        if cut < self.at {
            *self = self.history.cursor();
        }
        let history = self.history;
        for (at, entry) in history.entries.iter().enumerate().take(cut).skip(self.at) {
            match &entry.event {
                Event::Change(_) => self.unflushed.push(at),
                Event::Flush { covered } => self.flush(covered),
                Event::Lost { changes, kept } => self.lose(at, changes, *kept),
            }
            self.at = at + 1;
        }
    }

    fn flush(&mut self, covered: &[usize]) {
        let (history, base) = (self.history, &mut self.base);
        self.unflushed.retain(|at| {
            let covers = covered.binary_search(at).is_ok();
            if let (true, Some(change)) = (covers, history.change(*at)) {
                base.apply(change);
            }
            !covers
        });
    }

    fn lose(&mut self, at: usize, lost: &[usize], kept: CrashChoice) {
        let is_lost = |at: &usize| lost.binary_search(at).is_ok();
        let gone: Vec<&Change> =
            self.unflushed.iter().filter(|at| is_lost(at)).filter_map(|at| self.history.change(*at)).collect();
        self.unflushed.retain(|at| !is_lost(at));
        self.base = kept.apply(at, &self.base, &gone);
    }

    fn changes(&self) -> Vec<&Change> {
        self.unflushed.iter().filter_map(|at| self.history.change(*at)).collect()
    }

    /// The disk as it could be found after a cut here.
    #[must_use]
    pub fn image(&mut self, choice: &CrashChoice) -> CrashImage {
        self.hash = self.hash.wrapping_add(self.base.hash_change(&self.hashed));
        self.hashed = self.base.clone();
        let image = choice.apply(self.at, &self.base, &self.changes());
        CrashImage::new(image, self.hashed.clone(), self.hash)
    }

    /// What `choice` does here, one line per unflushed change, for a failure report.
    #[must_use]
    pub fn describe(&self, choice: &CrashChoice) -> String {
        let changes = self.changes();
        let mut text = format!("cut at {}, {} unflushed, {choice:?}\n", self.at, changes.len());
        for (n, fate) in choice.fates(self.at, &changes) {
            let (at, change) = (self.unflushed[n], changes[n]);
            let kind = match change.content {
                Content::Data(_) => "write",
                Content::Zeros(_) => "zero",
                Content::Discarded(_) => "discard",
            };
            let (offset, bytes) = (change.offset, change.bytes());
            // Writing to a String does not fail.
            let _ = writeln!(text, "  {at}: {kind} {bytes} at {offset}: {fate}");
        }
        text
    }
}

/// A disk as found after a power cut. Changes stay in this image.
#[derive(Debug)]
pub struct CrashImage {
    image: Mutex<Image>,
    base: Image,
    base_hash: u64,
}

impl CrashImage {
    pub(super) fn new(image: Image, base: Image, base_hash: u64) -> Self {
        Self { image: Mutex::new(image), base, base_hash }
    }

    /// The content now.
    #[must_use]
    pub fn content(&self) -> Image {
        lock(&self.image).clone()
    }

    /// A hash of the whole content, from what differs from what was flushed:
    /// equal contents of disks of one history have equal hashes, at any cut point.
    #[must_use]
    pub fn content_hash(&self) -> u64 {
        self.base_hash.wrapping_add(lock(&self.image).hash_change(&self.base))
    }

    /// A disk with this content that keeps its history, to cut recovery as well.
    #[must_use]
    pub fn record(&self) -> CrashDisk {
        CrashDisk::from_image(self.content())
    }

    fn perform(&self, op: Op) -> Outcome {
        let mut image = lock(&self.image);
        check(&op, image.bytes(), true)?;
        let (offset, content) = match op {
            Op::Read { offset, bytes } => return Ok(image.read(offset, bytes)),
            Op::Flush => return Ok(AlignedBuf::zeroed(0)),
            Op::Write { offset, data } => (offset, Content::Data(Buffer::new(data))),
            Op::Zero { offset, bytes } => (offset, Content::Zeros(bytes)),
            Op::Discard { offset, bytes } => (offset, Content::Discarded(bytes)),
        };
        image.apply(&Change { offset, content });
        Ok(AlignedBuf::zeroed(0))
    }
}

impl BlockDevice for CrashImage {
    fn geometry(&self) -> Geometry {
        let name = "crash image".to_owned();
        Geometry { bytes: self.base.bytes(), writable: true, discard: true, name, place: None }
    }

    fn submit(&self, op: Op) -> Ticket {
        Ticket::done(self.perform(op))
    }

    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.perform(Op::Read { offset, bytes })
    }

    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.perform(Op::Write { offset, data }).map(drop)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
