//! A full volume under writeback: the kernel takes what is written without asking whether there is room, and what it sends later and
//! is refused is lost; fsync and close tell that, and who does neither would write on for ever. But before each write(2) the kernel
//! asks for the mode of the file where it does not know that, by a GETATTR with the handle, and an error of that is the answer to the
//! write. So from the first loss on, until there is room again, it is kept from knowing the attributes of files that are open for
//! writing, and each write is answered when what was written to the file before has come in: with the error, once for each time that
//! something of that was lost (docs/decisions/0003).
//!
//! Invariants
//! 1. A GETATTR is refused only where it is known to belong to a write: from a handle that writes, of a file whose attributes the
//!    kernel was given so lately that nothing but the missing mode can have it ask. (A read past the end and SEEK_END ask, too,
//!    by a handle, where the attributes are too old.)

use super::files::HANDLE_WRITES;
use super::{Result, Server};
use crate::errno::Errno;
use crate::transport::Reply;
use nenrin_core::Usage;
use nenrin_format::{BLOCK_BYTES, Ino};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// So much is room enough, or this part of the volume where that is less.
const ROOM_BYTES: u64 = 64 << 20;
const ROOM_PART: u64 = 16;

/// Whether writes need not be looked after any more.
fn has_room(usage: &Usage) -> bool {
    usage.available_blocks >= (ROOM_BYTES / BLOCK_BYTES as u64).min(usage.total_blocks / ROOM_PART)
}

/// For how long it is certain that the kernel believes what it is told to be valid for so long.
fn certainly(valid: Duration) -> Duration {
    valid - valid / 8
}

impl Server {
    /// What came out of the page cache was lost for want of room, `bytes` of this file.
    pub(super) fn lost_in_cache(&self, ino: u64, bytes: u32) {
        self.volume.note_lost_write(Ino(ino), bytes.into());
        if !self.agreed.asks_before_writes() {
            return;
        }
        self.open_files.lose(ino);
        if !self.crowded.swap(true, Ordering::AcqRel) {
            self.open_files.waiting(true).into_iter().for_each(|ino| self.have_it_ask(ino));
        }
        self.have_it_ask(ino);
    }

    /// The kernel asks before the next write to the file, if that is open for writing.
    fn have_it_ask(&self, ino: u64) {
        if self.open_files.is_looked_after(ino) {
            let _ = self.notifier.drop_attributes(ino);
        }
    }

    /// After an answer with attributes of a file, or that opens it: where writes are looked after, the kernel is to ask again.
    pub(super) fn told_attributes(&self, ino: u64) {
        if self.crowded.load(Ordering::Acquire) {
            self.have_it_ask(ino);
        }
    }

    /// `fh`: the handle that the kernel asks for.
    pub(super) fn answer_getattr(self: &Arc<Self>, ino: u64, fh: Option<u64>, reply: Reply) {
        if !self.crowded.load(Ordering::Acquire) {
            return reply.result(self.getattr(ino));
        }
        // Whoever is let in or kept out is so by what is told without a handle: that stays valid.
        if fh.is_none() {
            return reply.result(self.getattr(ino));
        }
        let is_write = fh.is_some_and(|fh| fh & HANDLE_WRITES != 0) && self.open_files.is_told(ino, Instant::now());
        if !is_write {
            return self.tell_and_have_ask(ino, self.open_files.notices(ino), reply);
        }
        // What was written before comes in first, and so it is known whether something of that is lost.
        let server = self.clone();
        self.after_pages(move |waits| {
            let notices = server.open_files.notices(ino);
            if waits {
                // The kernel takes no notice of attributes that it asked for before, and so asks again.
                server.open_files.note_notice(ino);
                server.bring_in(&[ino]);
            }
            if server.open_files.take_lost(ino) {
                return reply.error(Errno(libc::ENOSPC));
            }
            if has_room(&server.volume.usage()) {
                server.crowded.store(false, Ordering::Release);
                server.open_files.forget_losses();
            }
            server.tell_and_have_ask(ino, notices, reply);
        });
    }

    /// `notices`: how many there were when the kernel asked.
    fn tell_and_have_ask(&self, ino: u64, notices: u32, reply: Reply) {
        let asked = Instant::now();
        let attributes: Result<_> = self.getattr(ino);
        let is_told = attributes.is_ok();
        reply.result(attributes);
        if is_told && self.crowded.load(Ordering::Acquire) {
            self.open_files.tell(ino, notices, asked + certainly(self.behaviour.valid));
            self.told_attributes(ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_a_part_of_small_volumes() {
        let usage = |total_blocks, available_blocks| Usage { total_blocks, available_blocks, ..Usage::default() };
        assert!(!has_room(&usage(16_384, 1023)) && has_room(&usage(16_384, 1024)));
        assert!(!has_room(&usage(1 << 30, 16_383)) && has_room(&usage(1 << 30, 16_384)));
    }

    #[test]
    fn what_is_told_with_no_time_is_never_certain() {
        assert_eq!(certainly(Duration::ZERO), Duration::ZERO);
        assert_eq!(certainly(Duration::from_secs(3600)), Duration::from_secs(3150));
    }
}
