//! Devices that take their time, and count how many reads they have at once; a program that has many in flight.
#![allow(unsafe_code, reason = "buffers lent to the kernel")]

use io_uring::{IoUring, opcode, types};
use nenrin_device::{BlockDevice, Geometry, MemDevice, Op, Outcome, Pending, Ticket};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const READ: Duration = Duration::from_millis(25);

/// A device whose reads take a while, however many there are.
#[derive(Clone)]
pub struct Slow {
    inner: Arc<MemDevice>,
    in_flight: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Slow {
    pub fn new(bytes: usize) -> Self {
        Self { inner: Arc::new(MemDevice::new(bytes)), in_flight: Arc::default(), most: Arc::default() }
    }
    /// The most reads it had at once since this was asked last.
    pub fn most(&self) -> usize {
        self.most.swap(0, SeqCst)
    }
}

struct Waiting {
    read: Ticket,
    until: Instant,
    in_flight: Arc<AtomicUsize>,
}

impl Pending for Waiting {
    fn wait(self: Box<Self>) -> Outcome {
        std::thread::sleep(self.until.saturating_duration_since(Instant::now()));
        self.in_flight.fetch_sub(1, SeqCst);
        self.read.wait()
    }
    fn is_done(&self) -> bool {
        Instant::now() >= self.until
    }
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn submit(&self, op: Op) -> Ticket {
        if !matches!(op, Op::Read { .. }) {
            return self.inner.submit(op);
        }
        let now = self.in_flight.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(now, SeqCst);
        let (read, until) = (self.inner.submit(op), Instant::now() + READ);
        Ticket::new(Waiting { read, until, in_flight: self.in_flight.clone() })
    }
}

/// The kernel forgets what it has cached of a file.
pub fn forget_pages(file: &File) {
    // SAFETY: posix_fadvise takes an open descriptor and integers.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
}

/// Reads 4 KiB at each of these places, all submitted at once; the first byte of each.
pub fn read_at_once(file: &File, places: &[u64]) -> Vec<u8> {
    let mut buffers: Vec<nenrin_device::AlignedBuf> =
        places.iter().map(|_| nenrin_device::AlignedBuf::zeroed(4096)).collect();
    let mut ring = IoUring::new(places.len().next_power_of_two() as u32).unwrap();
    for (buffer, (number, place)) in buffers.iter_mut().zip(places.iter().enumerate()) {
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), 4096).offset(*place);
        // SAFETY: the buffer lives until all completions have been taken below.
        unsafe { ring.submission().push(&read.build().user_data(number as u64)).unwrap() };
    }
    ring.submit_and_wait(places.len()).unwrap();
    let mut left = places.len();
    while left > 0 {
        for completion in ring.completion() {
            assert_eq!(completion.result(), 4096);
            left -= 1;
        }
    }
    buffers.iter().map(|b| b[0]).collect()
}
