//! The classic transport: read(2) and writev(2) on /dev/fuse, one queue of the
//! connection for each serving thread.
//!
//! Invariant: the data of a WRITE is read to where a device can take it from.

use crate::sys;
use crate::transport::{Received, Receiver, RequestBuffer, Sink, Transport};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Where the kernel's side is.
pub(crate) const DEVICE_PATH: &str = "/dev/fuse";

/// One open /dev/fuse: a queue of the connection.
struct Queue(File);

impl Sink for Queue {
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        // The kernel takes a message whole or not at all.
        (&self.0).write_vectored(parts).map(drop)
    }
}

/// A connection over /dev/fuse.
pub(crate) struct FuseDevice {
    first: Arc<Queue>,
    write_bytes_max: usize,
}

impl FuseDevice {
    /// Over a mounted descriptor, for WRITEs up to `write_bytes_max`.
    pub fn new(mounted: OwnedFd, write_bytes_max: usize) -> Self {
        Self { first: Arc::new(Queue(File::from(mounted))), write_bytes_max }
    }
    /// A queue on the mounted descriptor itself: for the handshake.
    pub fn first_receiver(&self) -> Box<dyn Receiver> {
        Box::new(self.receiver_on(self.first.clone()))
    }

    /// The mounted descriptor once more.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.first.0.as_fd().try_clone_to_owned()
    }

    fn receiver_on(&self, queue: Arc<Queue>) -> DeviceReceiver {
        DeviceReceiver { sink: queue.clone(), queue, buffer: RequestBuffer::new(self.write_bytes_max) }
    }
}

impl Transport for FuseDevice {
    fn receiver(&self) -> io::Result<Box<dyn Receiver>> {
        let fresh = OpenOptions::new().read(true).write(true).open(DEVICE_PATH);
        let queue = match fresh {
            Ok(fresh) => {
                sys::clone_device(fresh.as_fd(), self.first.0.as_fd())?;
                Arc::new(Queue(fresh))
            }
            // Who may mount through fusermount3 need not be able to open the
            // device; the threads then share the queue that it opened.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => self.first.clone(),
            Err(e) => return Err(e),
        };
        Ok(Box::new(self.receiver_on(queue)))
    }
    fn notifications(&self) -> Arc<dyn Sink> {
        self.first.clone()
    }
}

struct DeviceReceiver {
    queue: Arc<Queue>,
    sink: Arc<dyn Sink>,
    buffer: RequestBuffer,
}

impl Receiver for DeviceReceiver {
    fn receive(&mut self) -> io::Result<Option<Received<'_>>> {
        loop {
            match self.buffer.fill(|parts| (&self.queue.0).read_vectored(parts)) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(e) => match e.raw_os_error() {
                    // Unmounted, or cut off by the kernel: with the second it says that
                    // the end came while this read was taking a request out.
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                    // The request was taken back.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                    _ => return Err(e),
                },
            }
        }
        Ok(Some(Received { request: &mut self.buffer, sink: &self.sink }))
    }

    fn rest(&mut self) {
        self.buffer.rest();
    }
}
