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
use crate::proto::abi::OutHeader;
use nenrin_core::ReadBytes;
use std::io::{self, IoSlice};
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
}

/// A request as it came, and where its reply goes.
pub(crate) struct Received<'a> {
    pub bytes: &'a [u8],
    pub sink: &'a Arc<dyn Sink>,
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
}

impl Reply {
    pub fn new(sink: Arc<dyn Sink>, unique: u64) -> Self {
        Self { sink: Some(sink), unique }
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
    use std::sync::Mutex;

    #[derive(Default)]
    struct Kept(Mutex<Vec<Vec<u8>>>);
    impl Sink for Kept {
        fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
            self.0.lock().unwrap().push(parts.iter().flat_map(|p| p.to_vec()).collect());
            Ok(())
        }
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
