//! How requests come and replies go, apart from what they say. The classic way
//! is read(2) and writev(2) on /dev/fuse ([`crate::device`]); another can take
//! its place behind these traits.
//!
//! Invariants
//! 1. A reply goes out through the queue its request came from: the kernel
//!    looks for it nowhere else.
//! 2. Every request that wants a reply gets exactly one: a [`Reply`] that is
//!    dropped answers EIO, whatever went wrong before.

use crate::errno::Errno;
use crate::proto::abi::{OutHeader, WRITE_PREFIX_BYTES};
use crate::proto::flags::Opcode;
use crate::proto::request;
use nenrin_core::{AlignedBuf, ReadBytes};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// A connection to the kernel, from which serving threads take their queues.
pub(crate) trait Transport: Send + Sync {
    /// A further queue.
    fn receiver(&self) -> io::Result<Box<dyn Receiver>>;
    /// Where notifications go.
    fn notifications(&self) -> Arc<dyn Sink>;
}

/// The receiving end of a queue, for one thread.
pub(crate) trait Receiver: Send {
    /// Waits for the next request; `None` when the file system was unmounted.
    fn receive(&mut self) -> io::Result<Option<Received<'_>>>;
    /// Gives memory back until then.
    fn rest(&mut self);
}

/// A request as it came, and where its reply goes.
pub(crate) struct Received<'a> {
    pub request: &'a mut RequestBuffer,
    pub sink: &'a Arc<dyn Sink>,
}

/// Memory for one request. The data of a WRITE lies apart from what is in
/// front of it, where a device can take it from, and can be taken away whole.
pub(crate) struct RequestBuffer {
    front: [u8; WRITE_PREFIX_BYTES],
    /// What lies behind the front; `None` when it was taken.
    rest: Option<AlignedBuf>,
    rest_bytes_max: usize,
    /// A request that has to be in one piece, and has more than a front.
    joined: Vec<u8>,
    bytes: usize,
}

impl RequestBuffer {
    /// For WRITEs up to `write_bytes_max`, and other requests of that length.
    pub fn new(write_bytes_max: usize) -> Self {
        Self {
            front: [0; WRITE_PREFIX_BYTES],
            rest: None,
            rest_bytes_max: write_bytes_max,
            joined: Vec::new(),
            bytes: 0,
        }
    }
    /// Fills the buffer by `read`, which says how many bytes came.
    pub fn fill(&mut self, read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>) -> io::Result<usize> {
        let rest = self.rest.get_or_insert_with(|| AlignedBuf::unset(self.rest_bytes_max));
        self.bytes = 0;
        self.joined.clear();
        self.bytes = read(&mut [IoSliceMut::new(&mut self.front), IoSliceMut::new(rest)])?;
        let writes = request::header(&self.front).is_some_and(|head| head.opcode == Opcode::Write as u32);
        if self.bytes > WRITE_PREFIX_BYTES && !writes {
            self.joined.extend_from_slice(&self.front);
            self.joined.extend_from_slice(&rest[..self.bytes - WRITE_PREFIX_BYTES]);
        }
        Ok(self.bytes)
    }
    /// Gives memory back until it is filled again.
    pub fn rest(&mut self) {
        self.rest = None;
        self.joined = Vec::new();
        self.bytes = 0;
    }
    /// The request; of a WRITE what is in front of its data.
    pub fn front(&self) -> &[u8] {
        if self.joined.is_empty() { &self.front[..self.bytes.min(WRITE_PREFIX_BYTES)] } else { &self.joined }
    }
    /// The data of a WRITE, empty for other requests.
    pub fn data(&self) -> &[u8] {
        match &self.rest {
            Some(rest) if self.joined.is_empty() => &rest[..self.bytes.saturating_sub(WRITE_PREFIX_BYTES)],
            _ => &[],
        }
    }
    /// The request, out of this buffer.
    pub fn take(&mut self) -> Self {
        let mut rest = self.rest.take();
        if let Some(rest) = &mut rest {
            rest.truncate(self.bytes.saturating_sub(WRITE_PREFIX_BYTES));
        }
        let taken = Self {
            front: self.front,
            rest: rest.map(AlignedBuf::fitted),
            rest_bytes_max: self.rest_bytes_max,
            joined: std::mem::take(&mut self.joined),
            bytes: self.bytes,
        };
        self.bytes = 0;
        taken
    }
    /// The first `bytes` bytes of the data, out of this buffer.
    pub fn take_data(&mut self, bytes: usize) -> Option<AlignedBuf> {
        let mut data = self.rest.take_if(|rest| self.joined.is_empty() && bytes <= rest.len())?;
        self.bytes = self.bytes.min(WRITE_PREFIX_BYTES);
        data.truncate(bytes);
        Some(data.fitted())
    }
}

/// The sending end of a queue, for any thread.
pub(crate) trait Sink: Send + Sync {
    /// Sends one message, whole.
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()>;
}

/// Whether the kernel took a reply. When it did not, it holds no reference to
/// what the reply was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Taken(pub bool);

impl Taken {
    /// For replies that grant the kernel nothing.
    pub fn whatever(self) {}
}

/// The answer that a request waits for. May go to another thread and be given later.
pub(crate) struct Reply {
    sink: Option<Arc<dyn Sink>>,
    unique: u64,
    asked: u64,
}

impl Reply {
    pub fn new(sink: Arc<dyn Sink>, unique: u64) -> Self {
        Self { sink: Some(sink), unique, asked: 0 }
    }
    /// The same, of a request that came when there had been so many notices.
    pub fn asked_at(self, asked: u64) -> Self {
        let mut this = self;
        this.asked = asked;
        this
    }
    /// How many notices there had been when the request came.
    pub fn asked(&self) -> u64 {
        self.asked
    }
    /// Success, with these bytes.
    pub fn bytes(self, body: &[u8]) -> Taken {
        self.send(0, body)
    }
    /// Success, with this structure.
    pub fn value(self, body: &(impl IntoBytes + Immutable)) -> Taken {
        self.send(0, body.as_bytes())
    }
    /// Success, and nothing to say.
    pub fn ok(self) {
        self.send(0, &[]).whatever();
    }
    /// Failure.
    pub fn error(self, errno: Errno) {
        self.send(errno.0, &[]).whatever();
    }
    /// The request wants no answer.
    pub fn none(mut self) {
        self.sink = None;
    }
    /// Success without a body, or failure.
    pub fn done(self, result: Result<(), impl Into<Errno>>) {
        match result {
            Ok(()) => self.ok(),
            Err(e) => self.error(e.into()),
        }
    }
    /// Success with a structure, or failure.
    pub fn result(self, result: Result<impl IntoBytes + Immutable, impl Into<Errno>>) {
        match result {
            Ok(value) => self.value(&value).whatever(),
            Err(e) => self.error(e.into()),
        }
    }
    /// Success with bytes, or failure.
    pub fn result_bytes(self, result: Result<Vec<u8>, impl Into<Errno>>) {
        match result {
            Ok(bytes) => self.bytes(&bytes).whatever(),
            Err(e) => self.error(e.into()),
        }
    }

    /// Success with content, which may come in several pieces, or failure.
    pub fn result_content(mut self, result: Result<ReadBytes, impl Into<Errno>>) {
        match result {
            Ok(content) => {
                if let Some(sink) = self.sink.take() {
                    // A connection that is gone needs no answer.
                    let _ = send_parts(&*sink, 0, self.unique, &content.slices());
                }
            }
            Err(e) => self.error(e.into()),
        }
    }

    fn send(mut self, errno: i32, body: &[u8]) -> Taken {
        let Some(sink) = self.sink.take() else {
            return Taken(false);
        };
        Taken(send(&*sink, -errno, self.unique, body).is_ok())
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            // A connection that is gone needs no answer.
            let _ = send(&*sink, -libc::EIO, self.unique, &[]);
        }
    }
}

/// Sends a reply, or with `unique` 0 the notification whose code is in `error`.
pub(crate) fn send(sink: &dyn Sink, error: i32, unique: u64, body: &[u8]) -> io::Result<()> {
    send_parts(sink, error, unique, &[body])
}

/// [`send`] with a body in pieces, at most 1,000 of them.
fn send_parts(sink: &dyn Sink, error: i32, unique: u64, body: &[&[u8]]) -> io::Result<()> {
    // Replies are bounded by what was asked for, a few MiB at most.
    let bytes: usize = body.iter().map(|part| part.len()).sum();
    let head = OutHeader { len: (size_of::<OutHeader>() + bytes) as u32, error, unique };
    if let [part] = body {
        return sink.send(&[IoSlice::new(head.as_bytes()), IoSlice::new(part)]);
    }
    let mut parts = Vec::with_capacity(body.len() + 1);
    parts.push(IoSlice::new(head.as_bytes()));
    parts.extend(body.iter().map(|part| IoSlice::new(part)));
    sink.send(&parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::abi::InHeader;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Kept(Mutex<Vec<Vec<u8>>>);
    impl Sink for Kept {
        fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
            self.0.lock().unwrap().push(parts.iter().flat_map(|p| p.to_vec()).collect());
            Ok(())
        }
    }

    fn filled(bytes: &[u8]) -> RequestBuffer {
        let mut buffer = RequestBuffer::new(256 << 10);
        fill(&mut buffer, bytes);
        buffer
    }
    fn fill(buffer: &mut RequestBuffer, bytes: &[u8]) {
        let read = |mut parts: &mut [IoSliceMut<'_>]| {
            let mut rest = bytes;
            while !rest.is_empty() {
                let n = parts[0].len().min(rest.len());
                parts[0][..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                IoSliceMut::advance_slices(&mut parts, n);
            }
            Ok(bytes.len())
        };
        assert_eq!(buffer.fill(read).unwrap(), bytes.len());
    }
    fn message(opcode: Opcode, bytes: usize) -> Vec<u8> {
        let head = InHeader { len: bytes as u32, opcode: opcode as u32, ..Default::default() };
        let mut out: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        out[..size_of::<InHeader>()].copy_from_slice(head.as_bytes());
        out
    }

    #[test]
    fn only_the_data_of_a_write_lies_apart() {
        for bytes in [40, 60, 80, 81, 5000] {
            let (other, write) = (message(Opcode::Lookup, bytes), message(Opcode::Write, bytes));
            assert_eq!((filled(&other).front(), filled(&other).data()), (&other[..], &[][..]), "{bytes}");
            let (front, data) = write.split_at(bytes.min(WRITE_PREFIX_BYTES));
            assert_eq!((filled(&write).front(), filled(&write).data()), (front, data), "{bytes}");
        }
    }

    #[test]
    fn data_is_taken_once_and_the_buffer_goes_on() {
        let (long, short) = (message(Opcode::Write, 80 + 200_000), message(Opcode::Write, 80 + 3));
        let mut buffer = filled(&long);
        let taken = buffer.take_data(199_000).unwrap();
        assert_eq!(taken[..], long[80..199_080]);
        assert_eq!(taken.as_ptr() as usize % 4096, 0);
        assert!(buffer.take_data(1).is_none() && buffer.data().is_empty());
        fill(&mut buffer, &short);
        assert_eq!((buffer.front(), buffer.data()), (&short[..80], &short[80..]));
        assert_eq!(taken[..], long[80..199_080]);
        buffer.rest();
        fill(&mut buffer, &message(Opcode::Lookup, 90));
        assert_eq!(buffer.front(), message(Opcode::Lookup, 90));
        assert!(buffer.take_data(1).is_none(), "another request has no data");
    }

    #[test]
    fn a_forgotten_reply_is_an_error_and_a_given_one_is_single() {
        let kept = Arc::new(Kept::default());
        drop(Reply::new(kept.clone(), 3));
        Reply::new(kept.clone(), 4).ok();
        Reply::new(kept.clone(), 5).none();
        assert!(Reply::new(kept.clone(), 6).bytes(b"abc").0);
        let sent = kept.0.lock().unwrap();
        assert_eq!(sent.len(), 3);
        let head = OutHeader { len: 16, error: -libc::EIO, unique: 3 };
        assert_eq!(sent[0], head.as_bytes());
        assert_eq!(sent[2][..4], 19u32.to_ne_bytes());
        assert_eq!(&sent[2][16..], b"abc");
    }
}
