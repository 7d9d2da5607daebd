//! The classic transport: read(2) and writev(2) on /dev/fuse, one queue of the
//! connection for each serving thread.
//!
//! Invariants
//! 1. The data of a WRITE is read to where a device can take it from.
//! 2. A receiver that spins holds the one right to do so: with few CPUs, two
//!    spinning threads would take them from the programs they wait for.

use crate::sys;
use crate::transport::{Received, Receiver, RequestBuffer, Sink, Transport};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
    spin: Duration,
    spinner: Arc<AtomicBool>,
}

impl FuseDevice {
    /// Over a mounted descriptor, for WRITEs up to `write_bytes_max`. A thread
    /// that has just served a request looks for the next for `spin` before it sleeps.
    pub fn new(mounted: OwnedFd, write_bytes_max: usize, spin: Duration) -> Self {
        Self { first: Arc::new(Queue(File::from(mounted))), write_bytes_max, spin, spinner: Arc::default() }
    }
    /// A queue on the mounted descriptor itself, which never spins: for the handshake.
    pub fn first_receiver(&self) -> Box<dyn Receiver> {
        Box::new(self.receiver_on(self.first.clone(), Duration::ZERO))
    }

    /// The mounted descriptor once more.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.first.0.as_fd().try_clone_to_owned()
    }

    fn receiver_on(&self, queue: Arc<Queue>, spin: Duration) -> DeviceReceiver {
        DeviceReceiver {
            sink: queue.clone(),
            queue,
            buffer: RequestBuffer::new(self.write_bytes_max),
            spin,
            spinner: self.spinner.clone(),
            busy: false,
        }
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
        if !self.spin.is_zero() {
            sys::set_nonblocking(queue.0.as_fd(), true)?;
        }
        Ok(Box::new(self.receiver_on(queue, self.spin)))
    }
    fn notifications(&self) -> Arc<dyn Sink> {
        self.first.clone()
    }
}

struct DeviceReceiver {
    queue: Arc<Queue>,
    sink: Arc<dyn Sink>,
    buffer: RequestBuffer,
    spin: Duration,
    spinner: Arc<AtomicBool>,
    /// The last wait ended early, so that another short one is worth its cost.
    busy: bool,
}

impl DeviceReceiver {
    /// Reads one request, spinning and sleeping as told.
    fn read(&mut self) -> io::Result<usize> {
        if self.spin.is_zero() {
            return self.read_once();
        }
        match self.read_spinning()? {
            Some(bytes) => Ok(bytes),
            None => {
                let slept = Instant::now();
                sys::wait_readable(self.queue.0.as_fd())?;
                self.busy = slept.elapsed() < self.spin * 2;
                self.read_once()
            }
        }
    }

    fn read_once(&mut self) -> io::Result<usize> {
        self.buffer.fill(|parts| (&self.queue.0).read_vectored(parts))
    }

    /// `None` when nothing came in time.
    fn read_spinning(&mut self) -> io::Result<Option<usize>> {
        let mine = self.busy && !self.spinner.swap(true, Ordering::Acquire);
        let start = Instant::now();
        let result = loop {
            match self.read_once() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if !mine || start.elapsed() >= self.spin {
                        self.busy = false;
                        break Ok(None);
                    }
                    std::hint::spin_loop();
                }
                Err(e) => break Err(e),
                Ok(bytes) => {
                    self.busy = true;
                    break Ok(Some(bytes));
                }
            }
        };
        if mine {
            self.spinner.store(false, Ordering::Release);
        }
        result
    }
}

impl Receiver for DeviceReceiver {
    fn receive(&mut self) -> io::Result<Option<Received<'_>>> {
        loop {
            match self.read() {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(e) => match e.raw_os_error() {
                    // Unmounted, or cut off by the kernel: with the second it says that
                    // the end came while this read was taking a request out.
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                    // The request was taken back, or another thread was faster.
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
