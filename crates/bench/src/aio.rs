//! Reads in flight by io_uring, as a program with asynchronous I/O makes them.
//!
//! Invariants
//! 1. A buffer belongs to one request at a time and lives until the ring is gone.
#![allow(unsafe_code)] // buffers lent to the kernel

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

use crate::disk::Aligned;
use crate::sys;

/// Keeps `in_flight` reads of `bytes` under way for `budget`, at the places that `place` says; how many were done, and the time.
pub fn read_at_random(
    file: &File,
    in_flight: usize,
    bytes: usize,
    budget: Duration,
    mut place: impl FnMut() -> u64,
) -> io::Result<(u64, Duration)> {
    let mut buffers: Vec<Aligned> = (0..in_flight).map(|n| Aligned::noise(bytes, n as u64)).collect();
    let mut ring = IoUring::new(in_flight.next_power_of_two() as u32)?;
    let mut idle: Vec<usize> = (0..in_flight).collect();
    let (begin, mut done) = (Instant::now(), 0);
    loop {
        let over = begin.elapsed() >= budget || sys::interrupted();
        for index in if over { Vec::new() } else { std::mem::take(&mut idle) } {
            let buffer = buffers[index].get_mut();
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), bytes as u32);
            let entry = read.offset(place()).build().user_data(index as u64);
            // SAFETY: the buffer is idle, and `drain` below waits for all of them before it goes (invariant 1).
            unsafe { ring.submission().push(&entry) }.map_err(|_| io::Error::other("the queue is full"))?;
        }
        if idle.len() == in_flight {
            return Ok((done, begin.elapsed()));
        }
        ring.submit_and_wait(1)?;
        let mut failed = None;
        for completion in ring.completion() {
            idle.push(completion.user_data() as usize);
            done += 1;
            match completion.result() {
                n if n < 0 => failed = Some(io::Error::from_raw_os_error(-n)),
                n if n as usize != bytes => failed = Some(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
        if let Some(error) = failed {
            let left = in_flight - idle.len();
            drain(&mut ring, left)?;
            return Err(error);
        }
    }
}

/// Writes that are durable by themselves, one at a time: one system call and one request to the device.
pub struct DurableRing(IoUring);

/// `None` where the host forbids io_uring.
pub fn durable_ring() -> Option<DurableRing> {
    IoUring::new(1).ok().map(DurableRing)
}

impl DurableRing {
    /// Writes all of these bytes, durably.
    pub fn write(&mut self, file: &File, data: &[u8], offset: u64) -> io::Result<()> {
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), data.as_ptr(), data.len() as u32);
        let entry = write.offset(offset).rw_flags(libc::RWF_DSYNC).build();
        // SAFETY: the bytes are lent for the whole call, which returns when the request has completed.
        unsafe { self.0.submission().push(&entry) }.map_err(|_| io::Error::other("the queue is full"))?;
        loop {
            let entered = self.0.submit_and_wait(1);
            match (self.0.completion().next().map(|c| c.result()), entered) {
                (Some(n), _) if n < 0 => return Err(io::Error::from_raw_os_error(-n)),
                (Some(n), _) if n as usize == data.len() => return Ok(()),
                (Some(_), _) => return Err(io::ErrorKind::WriteZero.into()),
                // It may be under way, and what it reads from must stay.
                (None, Err(e)) if e.kind() != io::ErrorKind::Interrupted => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                (None, _) => {}
            }
        }
    }
}

fn drain(ring: &mut IoUring, mut left: usize) -> io::Result<()> {
    while left > 0 {
        ring.submit_and_wait(1)?;
        left -= ring.completion().count().min(left);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn all_that_was_begun_is_counted() {
        let path = std::env::temp_dir().join(format!("nenrin-bench-aio-{}", std::process::id()));
        File::create(&path).unwrap().write_all(&[7; 64 << 10]).unwrap();
        let file = File::open(&path).unwrap();
        let mut asked = 0;
        let read = read_at_random(&file, 8, 4096, Duration::from_millis(5), || {
            asked += 1;
            asked % 16 * 4096
        });
        // Where the host forbids io_uring nothing can be said.
        if let Ok((done, _)) = read {
            assert!(done >= 8 && done == asked);
            assert!(read_at_random(&file, 8, 4096, Duration::from_millis(5), || 1 << 20).is_err());
        }
        std::fs::remove_file(path).unwrap();
    }
}
