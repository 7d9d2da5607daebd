//! Reads content that is about to be shared. Sharing reads nothing, so a copy would be damaged where its source is, and nobody told;
//! who reads has the volume verify its checksums.
//!
//! Invariants
//! 1. What is read comes from the device, also where the kernel remembers what it once was.
//! 2. It takes [`REQUEST_BYTES`] of memory, whatever is read, and no room of what the kernel keeps of other files.

use rustix::fs::{self as sys, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes read at a time: what one request of the kernel takes. One that fails in part would be gone on with from what the kernel remembers.
const REQUEST_BYTES: usize = 1 << 20;
/// What memory and bytes of direct reads are multiples of, for any file system.
const ALIGNED_BYTES: usize = 4096;

/// Where it is read to.
#[derive(Default)]
pub struct Reading {
    buffer: Vec<u8>,
}

impl Reading {
    /// Reads bytes from `begin`, which lies on a block, up to `end`, and forgets them.
    ///
    /// # Errors
    /// Those of the read; [`io::ErrorKind::UnexpectedEof`] where the file ends before.
    pub fn read(&mut self, source: &File, begin: u64, end: u64) -> io::Result<()> {
        let flags = sys::fcntl_getfl(source)?;
        // A file system that cannot is none of ours.
        let is_direct = sys::fcntl_setfl(source, flags | OFlags::DIRECT).is_ok();
        let read = self.pieces(source, begin, end);
        if is_direct {
            sys::fcntl_setfl(source, flags)?;
        }
        read
    }

    /// The first bytes from `begin`, which lies on a block, up to `end` that can be read: from, and up to; both `end` where none can.
    ///
    /// # Errors
    /// As [`Reading::read`], but for what is damaged; [`io::ErrorKind::Interrupted`] where somebody asks to stop.
    pub fn good(&mut self, source: &File, begin: u64, end: u64, stop: &dyn Fn() -> bool) -> io::Result<(u64, u64)> {
        let (mut at, mut first) = (begin, None);
        while at < end {
            if stop() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let next = end.min(at + ALIGNED_BYTES as u64);
            match self.read(source, at, next) {
                Ok(()) => drop(first.get_or_insert(at)),
                Err(e) if e.raw_os_error() == Some(libc::EIO) && first.is_none() => {}
                Err(e) if e.raw_os_error() == Some(libc::EIO) => break,
                Err(e) => return Err(e),
            }
            at = next;
        }
        Ok(first.map_or((end, end), |first| (first, at)))
    }

    fn pieces(&mut self, source: &File, begin: u64, end: u64) -> io::Result<()> {
        self.buffer.resize(REQUEST_BYTES + ALIGNED_BYTES, 0);
        let skip = self.buffer.as_ptr().align_offset(ALIGNED_BYTES);
        let piece = &mut self.buffer[skip..skip + REQUEST_BYTES];
        let mut at = begin;
        while at < end {
            let bytes = (end - at).min(REQUEST_BYTES as u64) as usize;
            match source.read_at(&mut piece[..bytes.next_multiple_of(ALIGNED_BYTES)], at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => at += n as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_file_is_read_and_no_more_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![7; (2 << 20) + 5]).unwrap();
        let file = File::open(&path).unwrap();
        let before = sys::fcntl_getfl(&file).unwrap();
        let mut reading = Reading::default();
        for (begin, end) in [(0, (2 << 20) + 5), (1 << 20, (1 << 20) + 1), (4096, 8192), (0, 0)] {
            reading.read(&file, begin, end).unwrap();
        }
        assert_eq!(reading.good(&file, 4096, (1 << 20) + 1, &|| false).unwrap(), (4096, (1 << 20) + 1));
        assert_eq!(reading.read(&file, 0, 3 << 20).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(sys::fcntl_getfl(&file).unwrap(), before);
    }
}
