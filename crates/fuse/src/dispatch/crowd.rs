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
use super::names::Waiter;
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

    /// Where writes are looked after the kernel is to ask before the next one.
    pub(super) fn have_writers_ask(&self, ino: u64) {
        if self.crowded.load(Ordering::Acquire) {
            self.have_it_ask(ino);
        }
    }

    /// After an answer with attributes of a file, to a request that came when there had been so many notices.
    pub(super) fn told_attributes(&self, ino: u64, asked: u64) {
        self.open_files.answered(ino, asked);
        self.have_writers_ask(ino);
    }

    /// `fh`: the handle that the kernel asks for.
    pub(super) fn answer_getattr(self: &Arc<Self>, ino: u64, fh: Option<u64>, reply: Reply) {
        // Whoever is let in or kept out is so by what is told without a handle: that stays valid.
        if !self.crowded.load(Ordering::Acquire) || fh.is_none() {
            let (asked, attributes): (_, Result<_>) = (reply.asked(), self.getattr(ino));
            let is_told = attributes.is_ok();
            reply.result(attributes);
            if is_told {
                self.open_files.answered(ino, asked);
            }
            return;
        }
        let (now, writes) = (Instant::now(), fh.is_some_and(|fh| fh & HANDLE_WRITES != 0));
        let is_write = writes && self.open_files.is_looked_after(ino, now) && self.open_files.is_told(ino, now);
        if !is_write {
            return self.tell_and_have_ask(ino, reply);
        }
        // What was written before comes in first, and so it is known whether something of that is lost. The kernel takes no notice of
        // attributes that it asked for before, and so asks again.
        let server = self.clone();
        self.after_pages(Waiter::Write, move |waits| {
            let is_known = !waits || server.drop_pages_unless_left(ino);
            if is_known && server.open_files.take_lost(ino) {
                return reply.error(Errno(libc::ENOSPC));
            }
            if has_room(&server.volume.usage()) {
                server.crowded.store(false, Ordering::Release);
                server.open_files.forget_losses();
            }
            server.tell_and_have_ask(ino, reply);
        });
    }

    fn tell_and_have_ask(&self, ino: u64, reply: Reply) {
        let (asked, since) = (reply.asked(), Instant::now());
        let attributes: Result<_> = self.getattr(ino);
        let is_told = attributes.is_ok();
        reply.result(attributes);
        if is_told {
            self.open_files.tell(ino, asked, since + certainly(self.behaviour.valid));
            self.told_attributes(ino, asked);
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

    use super::super::testing::{self, Kept};
    use super::super::{InHeader, Syncs};
    use crate::acl;
    use crate::init::Wishes;
    use std::cell::Cell;

    /// A file that is open for writing, on a volume that is taken for full.
    struct World {
        server: Arc<Server>,
        kept: Arc<Kept>,
        ino: u64,
        fh: u64,
        requests: Cell<u64>,
    }

    impl World {
        fn new() -> Self {
            let (_, server, kept) =
                testing::server(Wishes { writeback: true, acl: true, rings: false, page_bytes: 4096 });
            let root = InHeader { nodeid: Ino::ROOT.0, ..Default::default() };
            let ino = server.mknod(&root, b"file", libc::S_IFREG | 0o644, 0, 0).unwrap().ino.0;
            let fh = server.new_handle(&root, ino, libc::O_RDWR).fh;
            server.crowded.store(true, Ordering::Release);
            Self { server, kept, ino, fh, requests: Cell::new(0) }
        }
        fn request(&self) -> Reply {
            self.requests.set(self.requests.get() + 1);
            self.kept.request(&self.server, self.requests.get())
        }
        /// What the last request is answered, and how many notices were sent.
        fn sent(&self) -> (i32, usize) {
            self.server.pages.finish();
            self.server.names.finish();
            let sent = self.kept.take();
            let answer = sent.iter().find(|(unique, _)| *unique == self.requests.get()).unwrap();
            (-answer.1, sent.iter().filter(|(unique, _)| *unique == 0).count())
        }
        /// The same of a GETATTR by the handle, as before a write. There is room, so the volume is taken for full anew.
        fn write(&self) -> (i32, usize) {
            self.server.crowded.store(true, Ordering::Release);
            self.server.answer_getattr(self.ino, Some(self.fh), self.request());
            self.sent()
        }
        fn set_list(&self, other: u16) {
            let entries = [(1u16, 6u16), (4, 4), (32, other)];
            let entry = |(tag, perm): (u16, u16)| {
                [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
            };
            let list = [2u32.to_le_bytes().to_vec(), entries.into_iter().flat_map(entry).collect()].concat();
            let head = InHeader { nodeid: self.ino, ..Default::default() };
            self.server.answer_setxattr(head, acl::ACCESS, &list, (0, 0), self.request());
            assert_eq!(self.sent(), (0, 2), "the pages, and what it asked for before counts no more");
        }
    }

    /// The kernel takes no notice of a mode that it asked for before a notice, and goes by the one it has.
    #[test]
    fn what_others_may_do_becomes_known_before_writers_are_asked_again() {
        let world = World::new();
        assert_eq!(world.write(), (0, 1), "is told, and to ask again");
        assert_eq!(world.write(), (0, 1), "is a write: what is kept comes in");
        world.set_list(0);
        assert_eq!(world.write(), (0, 0));
        assert_eq!(world.write(), (0, 0));
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(world.write(), (0, 1), "it knows");
        world.server.open_files.lose(world.ino);
        assert_eq!(world.write(), (libc::ENOSPC, 1));
    }

    /// It believes an answer to SETATTR for no time where a notice meets it, and asks before a read past the end, too.
    #[test]
    fn nothing_is_refused_right_after_a_change_of_attributes() {
        let world = World::new();
        world.write();
        world.server.open_files.begin_change(world.ino);
        world.server.open_files.end_change(world.ino);
        world.server.open_files.lose(world.ino);
        assert_eq!(world.write(), (0, 1));
        assert_eq!(world.write(), (libc::ENOSPC, 1));
    }

    #[test]
    fn what_a_sync_told_no_write_tells() {
        let world = World::new();
        world.write();
        world.server.open_files.lose(world.ino);
        world.server.fsync(world.ino, world.request(), &Syncs::Led);
        world.write();
        assert_eq!(world.write().0, 0);
    }

    /// What was lost of a file before there was room again is not told when there is little once more.
    #[test]
    fn losses_are_forgotten_where_there_is_room() {
        let world = World::new();
        let head = InHeader::default();
        let other = world.server.new_handle(&head, world.ino + 1, libc::O_RDWR);
        assert!(other.fh != 0);
        world.write();
        world.server.open_files.lose(world.ino + 1);
        assert_eq!(world.write().0, 0);
        assert!(!world.server.crowded.load(Ordering::Acquire) && !world.server.open_files.take_lost(world.ino + 1));
    }
}
