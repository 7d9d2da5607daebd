//! What the daemon tells the kernel unasked.
//!
//! Invariants
//! 1. Dropping cached pages waits for their WRITEs to be answered, so
//!    [`Notifier::drop_pages`] and [`Notifier::drop_pages_of`] are never called from a thread that serves
//!    requests, nor with any lock held. Dropping attributes waits for nothing.

use crate::proto::abi::NotifyInvalInode;
use crate::proto::flags::NOTIFY_INVAL_INODE;
use crate::transport::{Sink, send};
use std::io;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Sends notifications over a connection.
#[derive(Clone)]
pub(crate) struct Notifier(Arc<dyn Sink>);

impl Notifier {
    pub fn new(sink: Arc<dyn Sink>) -> Self {
        Self(sink)
    }
    /// What the kernel knows of the attributes and ACLs of `ino` is out of date.
    pub fn drop_attributes(&self, ino: u64) -> io::Result<()> {
        self.inode(NotifyInvalInode { ino, off: -1, len: 0 })
    }
    /// Has the kernel write out and drop every cached page of `ino`.
    pub fn drop_pages(&self, ino: u64) -> io::Result<()> {
        self.inode(NotifyInvalInode { ino, off: 0, len: 0 })
    }
    /// The same of the pages with these bytes; `None`: from there on.
    pub fn drop_pages_of(&self, ino: u64, from: u64, to: Option<u64>) -> io::Result<()> {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        // None at all would mean all of them.
        let len = to.map_or(0, |to| number(to.saturating_sub(from)).max(1));
        self.inode(NotifyInvalInode { ino, off: number(from), len })
    }
    fn inode(&self, body: NotifyInvalInode) -> io::Result<()> {
        self.send(NOTIFY_INVAL_INODE, body.as_bytes())
    }
    fn send(&self, code: i32, body: &[u8]) -> io::Result<()> {
        match send(&*self.0, code, 0, body) {
            // It knows nothing of that inode, which is as good.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }
}
