//! Memory for large buffers, kept for reuse.
//!
//! A fresh megabyte costs 256 page faults and as many pages to clear, more
//! than its checksum; a huge page also spares the kernel looking up 256 pages
//! for each direct transfer.
//!
//! Invariants
//! 1. A piece is handed out to one owner at a time, and always initialised:
//!    with zeros, or with what its last owner left.
//! 2. A slab without a piece in use goes back to the system when there are
//!    more than [`EMPTY_SLABS_MAX`] of them.
#![allow(unsafe_code)] // maps and unmaps memory

use crate::sync::lock;
use std::collections::HashMap;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Size and alignment of what is taken from the system: one huge page.
const SLAB_BYTES: usize = 2 << 20;
/// The smallest piece.
const PIECE_BYTES_MIN: usize = 64 << 10;
/// Sizes of pieces: 64 KiB to 2 MiB, doubling.
const CLASSES: usize = (SLAB_BYTES / PIECE_BYTES_MIN).ilog2() as usize + 1;
/// Slabs that are kept although nothing in them is used: 16 MiB.
const EMPTY_SLABS_MAX: usize = 8;

/// Whether a buffer of `len` bytes lives here.
pub(crate) const fn takes(len: usize) -> bool {
    len >= PIECE_BYTES_MIN && len <= SLAB_BYTES
}

/// Memory for `len` bytes, aligned to 4096, initialised with anything.
/// `None` when the system has none. Give it back with [`give`].
pub(crate) fn take(len: usize) -> Option<NonNull<u8>> {
    debug_assert!(takes(len));
    let piece = lock(&POOL).get_or_insert_with(Pool::default).take(class_of(len))?;
    USED.fetch_add(class_bytes(class_of(len)), Ordering::Relaxed);
    Some(piece.0)
}

/// Gives back what [`take`] gave for the same length.
pub(crate) fn give(memory: NonNull<u8>, len: usize) {
    USED.fetch_sub(class_bytes(class_of(len)), Ordering::Relaxed);
    if let Some(pool) = &mut *lock(&POOL) {
        pool.give(Piece(memory), class_of(len));
    }
}

/// Bytes that are handed out.
pub(crate) fn bytes_used() -> usize {
    USED.load(Ordering::Relaxed)
}

static USED: AtomicUsize = AtomicUsize::new(0);
static POOL: Mutex<Option<Pool>> = Mutex::new(None);

const fn class_of(len: usize) -> usize {
    (len.next_power_of_two() / PIECE_BYTES_MIN).ilog2() as usize
}

const fn class_bytes(class: usize) -> usize {
    PIECE_BYTES_MIN << class
}

#[derive(Clone, Copy)]
struct Piece(NonNull<u8>);

// SAFETY: a piece is memory without an owner; it belongs to no thread.
unsafe impl Send for Piece {}

impl Piece {
    fn slab(self) -> usize {
        self.0.as_ptr() as usize & !(SLAB_BYTES - 1)
    }
}

#[derive(Default)]
struct Pool {
    free: [Vec<Piece>; CLASSES],
    /// Pieces in use, for each slab by its address.
    used: HashMap<usize, usize>,
    empty: usize,
}

impl Pool {
    fn take(&mut self, class: usize) -> Option<Piece> {
        if self.free[class].is_empty() {
            let slab = map_slab().ok()?;
            self.used.insert(slab.as_ptr() as usize, 0);
            self.empty += 1;
            for offset in (0..SLAB_BYTES).step_by(class_bytes(class)) {
                // SAFETY: the offset lies within the slab.
                self.free[class].push(Piece(unsafe { slab.add(offset) }));
            }
        }
        let piece = self.free[class].pop()?;
        let used = self.used.entry(piece.slab()).or_default();
        self.empty -= usize::from(*used == 0);
        *used += 1;
        Some(piece)
    }

    fn give(&mut self, piece: Piece, class: usize) {
        self.free[class].push(piece);
        let slab = piece.slab();
        let used = self.used.entry(slab).or_default();
        *used -= 1;
        if *used > 0 {
            return;
        }
        self.empty += 1;
        if self.empty > EMPTY_SLABS_MAX {
            self.empty -= 1;
            self.used.remove(&slab);
            self.free[class].retain(|p| p.slab() != slab);
            unmap(slab as *mut u8, SLAB_BYTES);
        }
    }
}

/// A slab of zeros, on a huge page where the system gives one.
fn map_slab() -> io::Result<NonNull<u8>> {
    // Twice as much as needed holds an aligned slab; the rest goes back at once.
    let bytes = 2 * SLAB_BYTES;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping touches no memory that exists.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = start.cast::<u8>();
    let before = start.align_offset(SLAB_BYTES);
    // SAFETY: fewer than SLAB_BYTES, so within the mapping.
    let slab = unsafe { start.add(before) };
    unmap(start, before);
    // SAFETY: `before + SLAB_BYTES <= bytes`.
    unmap(unsafe { slab.add(SLAB_BYTES) }, bytes - before - SLAB_BYTES);
    // SAFETY: the range was mapped above. Advice only: without huge pages it is slower.
    let _ = unsafe { libc::madvise(slab.cast(), SLAB_BYTES, libc::MADV_HUGEPAGE) };
    NonNull::new(slab).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the callers hand over parts of their own mappings that nobody uses.
        let _ = unsafe { libc::munmap(start.cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_classes() {
        assert!(!takes(PIECE_BYTES_MIN - 1) && takes(PIECE_BYTES_MIN) && takes(SLAB_BYTES) && !takes(SLAB_BYTES + 1));
        for len in [65536, 65537, 131_072, 1 << 20, (1 << 20) + 4096, SLAB_BYTES] {
            let bytes = class_bytes(class_of(len));
            assert!(bytes >= len && (bytes / 2 < len || bytes == PIECE_BYTES_MIN), "{len}: {bytes}");
        }
    }

    #[test]
    fn pieces_are_apart_and_slabs_go_back() {
        let mut pool = Pool::default();
        let class = class_of(512 << 10);
        let pieces: Vec<Piece> = (0..64).map(|_| pool.take(class).unwrap()).collect();
        let mut starts: Vec<usize> = pieces.iter().map(|p| p.0.as_ptr() as usize).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|w| w[1] - w[0] >= 512 << 10));
        assert_eq!((pool.used.len(), pool.empty), (16, 0));
        for p in pieces {
            pool.give(p, class);
        }
        assert_eq!((pool.used.len(), pool.empty), (EMPTY_SLABS_MAX, EMPTY_SLABS_MAX));
        assert_eq!(pool.free[class].len(), 4 * EMPTY_SLABS_MAX);
        for slab in pool.used.keys() {
            unmap(*slab as *mut u8, SLAB_BYTES);
        }
    }
}
