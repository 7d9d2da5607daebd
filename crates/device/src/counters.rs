//! Counts of requests by kind.
//!
//! Invariants
//! 1. A request is counted when it is submitted, whatever becomes of it.
//! 2. Writing and flushing in one call, and writing what is durable by itself, count as one write and one flush.

use crate::Op;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How often each kind of request was made, and for how many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
    /// Zero requests.
    pub zeros: u64,
    /// Bytes zeroed.
    pub zero_bytes: u64,
}

impl Counters {
    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            flushes: self.flushes - earlier.flushes,
            discards: self.discards - earlier.discards,
            discard_bytes: self.discard_bytes - earlier.discard_bytes,
            zeros: self.zeros - earlier.zeros,
            zero_bytes: self.zero_bytes - earlier.zero_bytes,
        }
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// [`Op::Read`]
    Read,
    /// [`Op::Write`]
    Write,
    /// [`Op::Flush`]
    Flush,
    /// [`Op::Discard`]
    Discard,
    /// [`Op::Zero`]
    Zero,
}

impl Op {
    /// The kind, offset and length of the request; a flush has neither offset nor length.
    #[must_use]
    pub fn outline(&self) -> (OpKind, u64, u64) {
        match self {
            Self::Read { offset, bytes } => (OpKind::Read, *offset, *bytes as u64),
            Self::Write { offset, data } => (OpKind::Write, *offset, data.len() as u64),
            Self::Flush => (OpKind::Flush, 0, 0),
            Self::Discard { offset, bytes } => (OpKind::Discard, *offset, *bytes),
            Self::Zero { offset, bytes } => (OpKind::Zero, *offset, *bytes),
        }
    }
}

/// [`Counters`] that several threads may add to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Requests and bytes, by [`OpKind`].
    counts: [[AtomicU64; 2]; 5],
}

impl Tally {
    pub(crate) fn add(&self, kind: OpKind, bytes: u64) {
        let [requests, total] = &self.counts[kind as usize];
        requests.fetch_add(1, Relaxed);
        total.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn counters(&self) -> Counters {
        let requests = |kind: OpKind| self.counts[kind as usize][0].load(Relaxed);
        let bytes = |kind: OpKind| self.counts[kind as usize][1].load(Relaxed);
        Counters {
            reads: requests(OpKind::Read),
            read_bytes: bytes(OpKind::Read),
            writes: requests(OpKind::Write),
            write_bytes: bytes(OpKind::Write),
            flushes: requests(OpKind::Flush),
            discards: requests(OpKind::Discard),
            discard_bytes: bytes(OpKind::Discard),
            zeros: requests(OpKind::Zero),
            zero_bytes: bytes(OpKind::Zero),
        }
    }
}
