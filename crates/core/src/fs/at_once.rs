//! Calls for a thread on which requests of others wait: they wait neither for a device nor for room nor for another
//! commit, and leave the lead of a commit to a thread that may.
//!
//! Invariants
//! 1. A lead that was taken for somebody else is led by whoever calls [`Fs::lead_announced`]; until then
//!    it counts as a thread that leads, and others count on it.

use super::leading::Stay;
use super::space::Room;
use super::{Done, Fs, Inner};
use crate::Order;
use nenrin_device::BLOCK_BYTES;
use nenrin_format::Ino;
use std::ops::ControlFlow;

/// What became of a sync that was asked for by [`Fs::join_sync`].
pub enum Joined {
    /// It is answered, or whoever leads commits sees to it.
    Seen,
    /// Somebody has to call [`Fs::lead_announced`].
    Unled,
    /// It would have to wait; nothing was done.
    Waits(Done),
}

impl std::fmt::Debug for Joined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Seen => "Seen",
            Self::Unled => "Unled",
            Self::Waits(_) => "Waits",
        })
    }
}

impl Fs {
    /// [`Fs::fsync`], without waiting and without leading.
    #[must_use]
    pub fn join_sync(&self, ino: Ino, done: Done) -> Joined {
        if self.options.read_only || self.options.order == Order::Strict {
            return Joined::Waits(done);
        }
        let mut inner = self.lock();
        if !self.joins(&inner, ino) {
            return Joined::Waits(done);
        }
        inner.note_sync(ino, self.clock.monotonic_nanos());
        self.ask(&mut inner, ino, done);
        if inner.leading.announce() { Joined::Unled } else { Joined::Seen }
    }

    /// Whether [`Fs::join_sync`] will hardly have to wait.
    #[must_use]
    pub fn syncs_at_once(&self, ino: Ino) -> bool {
        self.options.order != Order::Strict && self.joins(&self.lock(), ino)
    }

    fn joins(&self, inner: &Inner, ino: Ino) -> bool {
        let few = self.chain_pages_max();
        let settled = inner.pages_of(ino) <= few && inner.under_way(|other| other == ino) <= few as u64;
        settled && inner.check_alive().is_ok() && inner.leading.can_be_announced()
    }

    /// [`Fs::fsync`], which leads one commit at most. True if somebody has to call [`Fs::lead_announced`]: others wait
    /// for the next, or a checkpoint is due.
    #[must_use]
    pub fn fsync_once(&self, ino: Ino, done: Done) -> bool {
        match self.join_sync(ino, done) {
            Joined::Seen => false,
            Joined::Unled => self.lead_once().is_continue(),
            Joined::Waits(done) => {
                self.fsync(ino, done);
                false
            }
        }
    }

    fn lead_once(&self) -> ControlFlow<()> {
        self.lead_for(self.lock(), None, Stay::Once)
    }

    /// Leads as was announced.
    pub fn lead_announced(&self) {
        let inner = self.lock();
        if inner.batch.waiters.is_empty() {
            return self.end_leading(inner);
        }
        self.lead(inner, None, Stay::WhileAsked);
    }

    /// Whether a write of these bytes neither reads from a device nor waits for room, memory or a sync.
    #[must_use]
    pub fn takes_at_once(&self, ino: Ino, offset: u64, bytes: usize) -> bool {
        let block = BLOCK_BYTES as u64;
        if bytes == 0 || offset % block != 0 || bytes % BLOCK_BYTES != 0 || bytes > AT_ONCE_BYTES_MAX {
            return false;
        }
        let blocks = offset / block..(offset / block).saturating_add((bytes / BLOCK_BYTES) as u64);
        let inner = self.lock();
        // Half of what is allowed, so that it holds until the write comes.
        let limit = (self.options.dirty_bytes_max / BLOCK_BYTES) as u64 / 2;
        !inner.settling.contains_key(&ino)
            && inner.pages + inner.under_way(|_| true) <= limit
            && inner.has_room(self, Room::Write(ino, blocks.start, blocks.end))
            && inner.pages_of(ino) <= self.chain_pages_max()
    }
}

/// Longer writes may have parts of the file written.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;
