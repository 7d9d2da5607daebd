//! One entry: its memory, and where its request stands.

use super::Queue;
use crate::proto::abi::{InHeader, OutHeader, RingEntry};
use crate::transport::{RequestBuffer, Sink};
use nenrin_core::AlignedBuf;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use zerocopy::{FromBytes, IntoBytes};

/// Where the parts of the header memory lie: the header, what is special to the kind of request, and the rest.
const OP_AT: usize = 128;
const ENTRY_AT: usize = 256;
pub(super) const HEADER_BYTES: usize = ENTRY_AT + size_of::<RingEntry>();

/// What the kernel and the daemon write to in turns.
pub(super) struct Memory {
    pub header: AlignedBuf,
    /// On a page boundary.
    pub payload: AlignedBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The kernel has never had it, or will never have it again.
    Ours,
    /// With the kernel, or on the way there.
    Away,
    /// Its request, by number, is served; a reply of this thread stays until the thread takes it.
    Served { unique: u64, by: Option<ThreadId> },
    /// That reply is there.
    Answered(u64),
}

struct State {
    memory: Memory,
    stage: Stage,
}

impl Drop for State {
    fn drop(&mut self) {
        if self.stage != Stage::Ours {
            // The kernel may still write there (invariant 2 of the module above).
            let none = || AlignedBuf::zeroed(0);
            let memory = std::mem::replace(&mut self.memory, Memory { header: none(), payload: none() });
            std::mem::forget(memory);
        }
    }
}

/// An entry of a queue.
pub(super) struct Slot(Mutex<State>);

impl Slot {
    pub fn new(payload_bytes: usize) -> Self {
        let memory = Memory { header: AlignedBuf::zeroed(HEADER_BYTES), payload: AlignedBuf::unset(payload_bytes) };
        Self(Mutex::new(State { memory, stage: Stage::Ours }))
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Hands the memory to the kernel, by `give`.
    pub fn give(&self, give: impl FnOnce(&mut Memory)) {
        let mut state = self.lock();
        give(&mut state.memory);
        state.stage = Stage::Away;
    }
    /// The kernel has given it back for good.
    pub fn is_over(&self) {
        self.lock().stage = Stage::Ours;
    }
    /// What the request is: its header, and what is special to its kind.
    pub fn head(&self) -> Option<(InHeader, [u8; ENTRY_AT - OP_AT])> {
        let state = self.lock();
        let (head, _) = InHeader::read_from_prefix(&state.memory.header).ok()?;
        Some((head, state.memory.header.get(OP_AT..ENTRY_AT)?.try_into().ok()?))
    }
    /// Copies the request to `buffer`, to be served. A reply that the thread `by` gives stays for [`Slot::answer`].
    pub fn receive(&self, buffer: &mut RequestBuffer, by: Option<ThreadId>) -> io::Result<()> {
        let mut state = self.lock();
        let unique = state.memory.receive(buffer).ok_or(io::ErrorKind::InvalidData)?;
        state.stage = Stage::Served { unique, by };
        Ok(())
    }
    /// The number of the request, if the thread that served it has answered it; otherwise whoever answers gives it to the keeper.
    pub fn answer(&self) -> Option<u64> {
        let mut state = self.lock();
        match &mut state.stage {
            Stage::Answered(unique) => {
                let unique = *unique;
                state.stage = Stage::Away;
                Some(unique)
            }
            Stage::Served { by, .. } => {
                *by = None;
                None
            }
            Stage::Ours | Stage::Away => None,
        }
    }
}

impl Memory {
    /// The request's number; `None` when lengths do not fit.
    fn receive(&self, buffer: &mut RequestBuffer) -> Option<u64> {
        let (head, _) = InHeader::read_from_prefix(&self.header).ok()?;
        let (entry, _) = RingEntry::read_from_prefix(self.header.get(ENTRY_AT..)?).ok()?;
        let payload = self.payload.get(..entry.payload_bytes as usize)?;
        let op_bytes = (head.len as usize).checked_sub(size_of::<InHeader>() + payload.len())?;
        let op = self.header.get(OP_AT..ENTRY_AT)?.get(..op_bytes)?;
        let front = self.header.get(..size_of::<InHeader>())?;
        buffer.fill(|parts| Ok(scatter(parts, &[front, op, payload]))).ok()?;
        Some(entry.commit_id)
    }

    /// Puts a reply where the kernel looks for it. One that does not fit becomes an error.
    fn answer(&mut self, unique: u64, parts: &[IoSlice<'_>]) {
        let body = parts.get(1..).unwrap_or_default();
        let bytes: usize = body.iter().map(|part| part.len()).sum();
        let mut entry = RingEntry { commit_id: unique, payload_bytes: bytes as u32, ..Default::default() };
        if let Some(mut room) = self.payload.get_mut(..bytes) {
            for part in body {
                let (this, rest) = room.split_at_mut(part.len());
                this.copy_from_slice(part);
                room = rest;
            }
            self.header[..size_of::<OutHeader>()].copy_from_slice(&parts[0]);
        } else {
            let head = OutHeader { len: size_of::<OutHeader>() as u32, error: -libc::EIO, unique };
            self.header[..size_of::<OutHeader>()].copy_from_slice(head.as_bytes());
            entry.payload_bytes = 0;
        }
        self.header[ENTRY_AT..HEADER_BYTES].copy_from_slice(entry.as_bytes());
    }
}

/// Where the reply to the request in an entry goes.
pub(super) struct Place {
    pub queue: Arc<Queue>,
    pub index: u16,
}

impl Sink for Place {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut state = self.queue.slots[usize::from(self.index)].lock();
        let Stage::Served { unique, by } = state.stage else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        state.memory.answer(unique, parts);
        self.queue.traffic.end();
        if by == Some(thread::current().id()) {
            state.stage = Stage::Answered(unique);
            return Ok(());
        }
        state.stage = Stage::Away;
        drop(state);
        self.queue.inbox.post(self.index, unique);
        Ok(())
    }
}

/// Copies `from`, one behind the other, to `to`; how many bytes.
fn scatter(mut to: &mut [IoSliceMut<'_>], from: &[&[u8]]) -> usize {
    let mut copied = 0;
    for mut part in from.iter().copied() {
        while let (false, Some(room)) = (part.is_empty(), to.first_mut()) {
            let n = room.len().min(part.len());
            room[..n].copy_from_slice(&part[..n]);
            part = &part[n..];
            copied += n;
            IoSliceMut::advance_slices(&mut to, n);
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::abi::WriteIn;
    use crate::proto::flags::Opcode;

    /// A WRITE of `data`, as the kernel lays it out.
    fn written(slot: &Slot, data: &[u8], len: usize) {
        slot.give(|memory| {
            let args = WriteIn { size: data.len() as u32, offset: 4096, ..Default::default() };
            let head = InHeader { len: len as u32, opcode: Opcode::Write as u32, unique: 6, ..Default::default() };
            let entry = RingEntry { commit_id: 6, payload_bytes: data.len() as u32, ..Default::default() };
            memory.header[..40].copy_from_slice(head.as_bytes());
            memory.header[OP_AT..OP_AT + 40].copy_from_slice(args.as_bytes());
            memory.header[ENTRY_AT..HEADER_BYTES].copy_from_slice(entry.as_bytes());
            memory.payload[..data.len()].copy_from_slice(data);
        });
    }

    #[test]
    fn a_request_comes_as_it_would_over_the_device() {
        let slot = Slot::new(64 << 10);
        let mut buffer = RequestBuffer::new(64 << 10);
        written(&slot, b"hello", 85);
        slot.receive(&mut buffer, None).unwrap();
        assert_eq!((buffer.front().len(), buffer.data()), (80, &b"hello"[..]));
        let head = InHeader::read_from_prefix(buffer.front()).unwrap().0;
        assert_eq!((head.unique, head.len), (6, 85));
        slot.is_over();
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let slot = Slot::new(4096);
        let mut buffer = RequestBuffer::new(4096);
        for len in [0, 44, 40 + 5 + 129, usize::MAX >> 33] {
            written(&slot, b"hello", len);
            assert!(slot.receive(&mut buffer, None).is_err(), "{len}");
        }
        slot.is_over();
    }

    #[test]
    fn a_reply_that_is_too_long_is_an_error() {
        let slot = Slot::new(4096);
        let state = &mut *slot.lock();
        let head = OutHeader { len: 16 + 5000, error: 0, unique: 9 };
        state.memory.answer(9, &[IoSlice::new(head.as_bytes()), IoSlice::new(&[1; 5000])]);
        let (out, _) = OutHeader::read_from_prefix(&state.memory.header).unwrap();
        assert_eq!((out.error, out.unique), (-libc::EIO, 9));
        state.memory.answer(9, &[IoSlice::new(head.as_bytes()), IoSlice::new(b"ab"), IoSlice::new(b"c")]);
        assert_eq!(&state.memory.payload[..3], b"abc");
        let (entry, _) = RingEntry::read_from_prefix(&state.memory.header[ENTRY_AT..]).unwrap();
        assert_eq!((entry.commit_id, entry.payload_bytes), (9, 3));
    }
}
