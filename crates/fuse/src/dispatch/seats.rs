//! How many of the serving threads may wait for long at once, and what becomes of what is beyond that.
//!
//! Invariants
//! 1. What comes while all seats are taken waits for one thread behind, in order; or, where that has no memory for it or cannot be
//!    started, is done by who took it.
//! 2. What was closed counts as closed from when its RELEASE was taken, whoever the rest of that waits for: the program was not held up
//!    by it, and what it does next, such as to cut a checkpoint, is to find it so.

use super::{Server, Syncs};
use crate::errno::Errno;
use crate::init::TRANSFER_BYTES_MAX;
use crate::proto::flags::Opcode;
use crate::proto::request::{self, Op, Request};
use crate::transport::{Reply, RequestBuffer, Sink};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Whether an operation waits for more than the device: it changes the volume, and is no sync.
fn may_wait_for_long(opcode: u32) -> bool {
    use Opcode as Op;
    matches!(
        Opcode::from_number(opcode),
        Some(
            Op::Write
                | Op::Fallocate
                | Op::Setattr
                | Op::CopyFileRange
                | Op::CopyFileRange64
                | Op::Create
                | Op::Tmpfile
                | Op::Mknod
                | Op::Mkdir
                | Op::Symlink
                | Op::Link
                | Op::Unlink
                | Op::Rmdir
                | Op::Rename
                | Op::Rename2
                | Op::Setxattr
                | Op::Removexattr
        )
    )
}

/// One of so many, until it is dropped.
struct Seat<'a>(&'a AtomicUsize);

impl<'a> Seat<'a> {
    fn take(taken: &'a AtomicUsize, most: usize) -> Option<Self> {
        let one_more = |n: usize| (n < most).then_some(n + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Self(taken))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    /// [`Self::handle`] by one of few threads. What changes the volume may wait for long: for memory, for room, for a change of the same
    /// file in many steps. So no more than `most` threads do at once, and what is beyond that is left to one behind them: others
    /// go on reading and looking up names. Data is left to it as far as there is memory for what it came in.
    pub fn handle_or_leave(self: &Arc<Self>, received: &mut RequestBuffer, sink: &Arc<dyn Sink>, most: usize) {
        let opcode = request::header(received.front()).map_or(0, |head| head.opcode);
        if opcode == Opcode::Release as u32 {
            let Some(reply) = self.begin(received, sink) else { return };
            return self.close_or_leave(received, reply, most);
        }
        let _seat = match may_wait_for_long(opcode).then(|| Seat::take(&self.changing, most)) {
            Some(None) if self.leaves(received.data().is_empty()) => {
                let Some(reply) = self.begin(received, sink) else { return };
                let (server, mut request) = (self.clone(), received.take());
                return self.behind.run_anyhow(move || {
                    server.left_with_data.fetch_sub(usize::from(!request.data().is_empty()), Ordering::Relaxed);
                    server.answer(&mut request, reply, &Syncs::Apart);
                });
            }
            seat => seat.flatten(),
        };
        self.handle(received, sink, &Syncs::Led);
    }

    /// A RELEASE: only what it writes may wait.
    fn close_or_leave(self: &Arc<Self>, received: &RequestBuffer, reply: Reply, most: usize) {
        let (ino, closed) = match request::decode_apart(received.front(), received.data(), self.agreed.setxattr_ext()) {
            Ok(Request { head, op: Op::Release { fh } }) => (head.nodeid, self.close(head.nodeid, fh)),
            _ => return reply.error(Errno(libc::EINVAL)),
        };
        match closed {
            Err(e) => return reply.error(e),
            Ok(false) => return reply.ok(),
            Ok(true) => {}
        }
        match Seat::take(&self.changing, most) {
            Some(_seat) => reply.done(self.write_closed(ino)),
            None => {
                let server = self.clone();
                self.behind.run_anyhow(move || reply.done(server.write_closed(ino)));
            }
        }
    }

    /// Whether one more request may be left to the thread behind: of those with data so many as there is memory for.
    fn leaves(&self, is_without_data: bool) -> bool {
        let most = self.behaviour.left_bytes_max / TRANSFER_BYTES_MAX;
        let one_more = |n: usize| (n < most).then_some(n + 1);
        is_without_data || self.left_with_data.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Kept};
    use super::*;
    use crate::helper::NO_THREADS;
    use crate::init::Wishes;
    use crate::proto::abi::{InHeader, ReleaseIn, WriteIn};
    use nenrin_core::{At, Fs};
    use nenrin_format::Ino;
    use std::sync::mpsc;
    use zerocopy::IntoBytes;

    const WISHES: Wishes = Wishes { writeback: false, acl: true, rings: false, page_bytes: 4096 };
    /// There are so many seats.
    const NONE: usize = 0;
    const ENOUGH: usize = 9;

    /// A file with the content "old" of which there is a checkpoint, emptied and opened for writing.
    struct World {
        fs: Arc<Fs>,
        server: Arc<Server>,
        kept: Arc<Kept>,
        ino: u64,
        fh: u64,
    }

    impl World {
        fn new() -> Self {
            let (fs, server, kept) =
                testing::server_with(WISHES, |behaviour| behaviour.left_bytes_max = 4 * TRANSFER_BYTES_MAX);
            let root = InHeader { nodeid: Ino::ROOT.0, ..Default::default() };
            let ino = server.mknod(&root, b"app.conf", libc::S_IFREG | 0o644, 0, 0).unwrap().ino.0;
            let mut world = Self { fs, server, kept, ino, fh: 0 };
            world.open(libc::O_WRONLY);
            world.write(1, b"old", ENOUGH);
            world.release(2, ENOUGH);
            world.fs.checkpoint_create(None).unwrap();
            world.open(libc::O_WRONLY | libc::O_TRUNC);
            assert_eq!(world.kept.take(), [(1, 0), (2, 0)]);
            world
        }
        fn open(&mut self, flags: i32) {
            let head = InHeader { nodeid: self.ino, ..Default::default() };
            self.server.prepare_open(&head, self.ino, flags, 0).unwrap();
            self.fh = self.server.new_handle(&head, self.ino, flags).fh;
        }
        fn send(&self, unique: u64, opcode: Opcode, args: &[u8], data: &[u8], most: usize) {
            let sink: Arc<dyn Sink> = self.kept.clone();
            let mut request = testing::request(unique, opcode, self.ino, &[args, data].concat());
            self.server.handle_or_leave(&mut request, &sink, most);
        }
        fn write(&self, unique: u64, data: &[u8], most: usize) {
            let args = WriteIn { fh: self.fh, size: data.len() as u32, ..Default::default() };
            self.send(unique, Opcode::Write, args.as_bytes(), data, most);
        }
        fn release(&self, unique: u64, most: usize) {
            let args = ReleaseIn { fh: self.fh, ..Default::default() };
            self.send(unique, Opcode::Release, args.as_bytes(), &[], most);
        }
        fn content(&self, at: At) -> Vec<u8> {
            self.fs.read(at, Ino(self.ino), 0, 100).unwrap()
        }
    }

    /// Nothing is lost for want of a thread, and no place for data is.
    #[test]
    fn what_is_left_is_done_where_no_thread_can_be_started() {
        let world = World::new();
        NO_THREADS.set(true);
        assert!(world.server.start_helpers().is_err());
        (0..9).for_each(|n| world.write(n, b"new", NONE));
        world.release(9, NONE);
        NO_THREADS.set(false);
        assert_eq!(world.kept.take(), (0..10).map(|n| (n, 0)).collect::<Vec<_>>());
        assert_eq!(world.server.left_with_data.load(Ordering::Relaxed), 0);
        assert_eq!(world.server.open_files.writer(world.ino), None);
        assert!(world.content(At::Live) == b"new" && world.fs.held_back().is_empty());
        world.server.start_helpers().unwrap();
        world.server.let_go();
    }

    /// `cp new.conf app.conf && nenrin snapshot create`: the kernel asks to release the handle when close(2) has returned.
    #[test]
    fn what_was_closed_is_in_the_checkpoint_that_is_cut_next() {
        let world = World::new();
        let (go, wait) = mpsc::channel::<()>();
        world.server.behind.run(move || _ = wait.recv());
        world.write(3, b"new", ENOUGH);
        let before = world.fs.checkpoint_create(None).unwrap().cno;
        world.release(4, NONE);
        let after = world.fs.checkpoint_create(None).unwrap().cno;
        assert_eq!(world.kept.take(), [(3, 0)], "the rest of it waits");
        let contents = [before, after].map(|cno| world.content(At::Past(cno)));
        assert_eq!(contents, [b"old".to_vec(), b"new".to_vec()]);
        // What is emptied anew meanwhile is not complete because of that.
        let mut world = world;
        world.open(libc::O_WRONLY | libc::O_TRUNC);
        drop(go);
        world.server.behind.finish();
        assert_eq!((world.kept.take(), world.fs.held_back()), (vec![(4, 0)], vec![Ino(world.ino)]));
    }
}
