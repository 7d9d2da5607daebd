//! The ring itself, and the system calls about it.

use super::Queue;
use super::entry::{HEADER_BYTES, Slot};
use crate::proto::abi::RingCommand;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Commands to /dev/fuse.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// What the completion of the bell says it is of.
const BELL: u64 = u64::MAX;

/// What comes out of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The entry has a request.
    Request(u16),
    /// The kernel has given the entry back, with this error.
    Back(u16, i32),
    /// The bell rang; or, with false, will ring no more.
    Bell(bool),
}

/// A ring, for the thread that made it.
pub(super) struct Ring(IoUring<squeue::Entry128, cqueue::Entry>);

impl Ring {
    /// With room for so many commands at a time.
    pub fn new(commands: u32) -> io::Result<Self> {
        // The kernel fills entries in the context of this thread, when it looks: it has not to be interrupted for that.
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(commands).map(Self)
    }

    /// Gives all entries of a queue to the kernel.
    pub fn register(&mut self, queue: &Queue) -> io::Result<()> {
        // The kernel reads where the memory is when it takes the commands, which is before this returns.
        let mut parts = Vec::with_capacity(queue.slots.len());
        for slot in &queue.slots {
            slot.give(|memory| {
                parts.push([
                    libc::iovec { iov_base: memory.header.as_mut_ptr().cast(), iov_len: HEADER_BYTES },
                    libc::iovec { iov_base: memory.payload.as_mut_ptr().cast(), iov_len: queue.payload_bytes },
                ]);
            });
        }
        for (index, parts) in (0..).zip(&parts) {
            let mut command = command(queue, REGISTER, 0).addr(Some(parts.as_ptr() as u64)).build().user_data(index);
            set_len(&mut command, parts.len() as u32);
            self.push(&command);
        }
        while !self.0.submission().is_empty() {
            self.submit(0)?;
        }
        Ok(())
    }

    /// Has the reply in an entry taken, and gives the entry to the kernel; with the next [`Ring::wait`].
    pub fn commit(&mut self, queue: &Queue, index: u16, unique: u64) {
        self.push(&command(queue, COMMIT_AND_FETCH, unique).build().user_data(index.into()));
    }

    /// Has the bell of a queue ring here.
    pub fn hear(&mut self, queue: &Queue) {
        let bell = types::Fd(queue.inbox.bell.as_raw_fd());
        let poll = opcode::PollAdd::new(bell, libc::POLLIN as u32).multi(true).build().user_data(BELL);
        self.push(&poll.into());
    }

    /// Waits until something happens.
    pub fn wait(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        loop {
            self.submit(1)?;
            events.extend(self.0.completion().map(|done| match (done.user_data(), done.result()) {
                (BELL, _) => Event::Bell(cqueue::more(done.flags())),
                (index, 0) => Event::Request(index as u16),
                (index, error) => Event::Back(index as u16, -error),
            }));
            if !events.is_empty() {
                return Ok(());
            }
        }
    }

    fn submit(&mut self, wait_for: usize) -> io::Result<()> {
        loop {
            match self.0.submit_and_wait(wait_for) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The kernel is short of something for a moment.
                Err(e) if is_passing(&e) => std::thread::sleep(PAUSE),
                other => return other.map(drop),
            }
        }
    }

    fn push(&mut self, command: &squeue::Entry128) {
        // SAFETY: what a command points to is read when it is submitted (see `register`), and the memory that it names
        // then is not freed while the kernel has it (`State::drop`).
        let pushed = unsafe { self.0.submission().push(command) };
        // There is room for one command of each entry and the bell, and none is given twice.
        debug_assert!(pushed.is_ok());
    }
}

/// Until the kernel may have again what it was short of.
const PAUSE: Duration = Duration::from_millis(1);

fn is_passing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM))
}

fn command(queue: &Queue, what: u32, commit_id: u64) -> opcode::UringCmd80 {
    let mut room = [0; 80];
    let command = RingCommand { commit_id, queue: queue.number, ..Default::default() };
    room[..size_of::<RingCommand>()].copy_from_slice(command.as_bytes());
    opcode::UringCmd80::new(types::Fd(queue.device().as_raw_fd()), what).cmd(room)
}

/// Sets the field `len`, for which the builder of these commands has no word.
fn set_len(command: &mut squeue::Entry128, len: u32) {
    const LEN_AT: usize = 24;
    const _: () = assert!(size_of::<squeue::Entry128>() == 128);
    // SAFETY: the command is the kernel's `io_uring_sqe` of 128 bytes and nothing else, of which the four at 24 are `len`.
    unsafe { (&raw mut *command).cast::<u8>().add(LEN_AT).cast::<u32>().write_unaligned(len) };
}

/// What a thread of ours writes to and a ring hears.
pub(super) fn bell() -> io::Result<File> {
    // SAFETY: eventfd takes integers, and the descriptor is new and owned by nobody else.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd).into()),
        }
    }
}

/// Keeps the calling thread on one CPU, if that is there.
pub(super) fn stay_on(cpu: u16) {
    // SAFETY: cpu_set_t is plain data for which zero is valid; CPU_SET writes within it, since the number was looked at;
    // sched_setaffinity reads as much as it is told.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if usize::from(cpu) < 8 * size_of::<libc::cpu_set_t>() {
            libc::CPU_SET(cpu.into(), &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

/// Commands that a thread with `slots` has under way at most.
pub(super) fn commands_of(slots: &[Slot]) -> u32 {
    slots.len() as u32 + 1
}
