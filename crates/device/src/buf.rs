//! A buffer aligned for O_DIRECT.
#![allow(unsafe_code)] // the one place where aligned memory is made

use crate::{BLOCK_BYTES, pool};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

/// As much of [`pool`] may be in use before a buffer that is mostly empty is copied.
const LOOSE_BYTES_MAX: usize = 64 << 20;

/// Bytes on the heap, aligned to 4096, of a length that never grows.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Bytes that were allocated: `len` or more; 0 where the memory is another's.
    room: usize,
    /// Whose memory it is, if it is another's.
    owner: Option<Arc<AlignedBuf>>,
}

// SAFETY: the buffer owns its memory exclusively, like a Box<[u8]>.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access gives only shared slices.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    fn layout(len: usize) -> Layout {
        match Layout::from_size_align(len, BLOCK_BYTES) {
            Ok(l) => l,
            Err(_) => handle_alloc_error(Layout::new::<u8>()),
        }
    }
    /// `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { ptr: NonNull::dangling(), len, room: len, owner: None };
        }
        if pool::takes(len) {
            let mut this = Self::unset(len);
            this.fill(0);
            return this;
        }
        let layout = Self::layout(len);
        // SAFETY: the layout has a size above zero.
        let raw = unsafe { alloc_zeroed(layout) };
        match NonNull::new(raw) {
            Some(ptr) => Self { ptr, len, room: len, owner: None },
            None => handle_alloc_error(layout),
        }
    }
    /// `len` bytes of any value, to be overwritten: large ones cost nothing.
    #[must_use]
    pub fn unset(len: usize) -> Self {
        if !pool::takes(len) {
            return Self::zeroed(len);
        }
        match pool::take(len) {
            Some(ptr) => Self { ptr, len, room: len, owner: None },
            None => handle_alloc_error(Self::layout(len)),
        }
    }
    /// The bytes of `pieces`, one behind the other, cut or filled with zeros to `len` bytes: none is written twice.
    #[must_use]
    pub fn gathered<'a>(len: usize, pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut filling = Filling::new(len);
        pieces.for_each(|piece| filling.put(piece));
        filling.finish()
    }
    /// A part of another, which is copied when it is changed. `start` is a multiple of 4096, and the part lies within.
    #[must_use]
    pub fn shared(of: &Arc<Self>, start: usize, len: usize) -> Self {
        assert!(start % BLOCK_BYTES == 0 && start + len <= of.len, "{len} bytes from {start} of {}", of.len);
        // SAFETY: within the allocation, see above. It lives as long as its owner, which is held here; and nobody
        // has the owner for himself to change it meanwhile.
        let ptr = unsafe { of.ptr.add(start) };
        Self { ptr, len, room: 0, owner: Some(Arc::clone(of)) }
    }
    /// Leaves the first `len` bytes, where there are more.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
    /// The same bytes, in memory of their size where they would keep at least twice as much and much is in use already: what waits for a
    /// slow device is counted by its bytes.
    #[must_use]
    pub fn fitted(self) -> Self {
        if self.room < 2 * self.len || pool::bytes_used() <= LOOSE_BYTES_MAX {
            return self;
        }
        Self::gathered(self.len, std::iter::once(&self[..]))
    }
    /// A copy of `bytes`, padded with zeros to whole blocks.
    #[must_use]
    pub fn padded(bytes: &[u8]) -> Self {
        let mut this = Self::zeroed(bytes.len().next_multiple_of(BLOCK_BYTES));
        this[..bytes.len()].copy_from_slice(bytes);
        this
    }
}

/// A buffer that is being filled from its beginning on, so that nothing is written twice.
pub struct Filling {
    /// Initialised up to `at` and up to `kept`, and shown to nobody before all of it is.
    buf: AlignedBuf,
    at: usize,
    /// Bytes that it had before.
    kept: usize,
}

impl Filling {
    /// For `len` bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        if len == 0 {
            return Self { buf: AlignedBuf::zeroed(0), at: 0, kept: 0 };
        }
        let raw = if pool::takes(len) {
            pool::take(len)
        } else {
            // SAFETY: the layout has a size above zero.
            NonNull::new(unsafe { alloc(AlignedBuf::layout(len)) })
        };
        let Some(ptr) = raw else { handle_alloc_error(AlignedBuf::layout(len)) };
        Self { buf: AlignedBuf { ptr, len, room: len, owner: None }, at: 0, kept: 0 }
    }
    /// Over what a buffer had before, of which some may stay.
    #[must_use]
    pub fn again(buf: AlignedBuf) -> Self {
        // What is another's memory is filled nowhere.
        let buf = if buf.owner.is_some() { AlignedBuf::gathered(buf.len, std::iter::once(&buf[..])) } else { buf };
        Self { at: 0, kept: buf.len, buf }
    }
    /// Leaves what the buffer had before up to this byte, if it is not there yet.
    pub fn keep_to(&mut self, end: usize) {
        self.at = self.at.max(end.min(self.kept));
    }
    /// Puts bytes behind those that are there, as many as there is room for.
    pub fn put(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.buf.len - self.at);
        // SAFETY: `at + n <= len`, and memory that nobody else has cannot overlap with a slice.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.buf.ptr.as_ptr().add(self.at), n) };
        self.at += n;
    }
    /// Puts zeros up to this byte, if it is not there yet, or up to the end.
    pub fn zeros_to(&mut self, end: usize) {
        let n = end.min(self.buf.len).saturating_sub(self.at);
        // SAFETY: `at + n <= len`.
        unsafe { std::ptr::write_bytes(self.buf.ptr.as_ptr().add(self.at), 0, n) };
        self.at += n;
    }
    /// The buffer, with zeros where nothing was put.
    #[must_use]
    pub fn finish(mut self) -> AlignedBuf {
        self.zeros_to(usize::MAX);
        self.buf
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if pool::takes(self.room) {
            pool::give(self.ptr, self.room);
        } else if self.room > 0 {
            // SAFETY: allocated in `zeroed` or `Filling::new` with the same layout.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.room)) }
        }
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `room >= len` initialised bytes, or within those of `owner`; dangling only when `len` is 0.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.owner.is_some() {
            *self = Self::gathered(self.len, std::iter::once(&self[..]));
        }
        // SAFETY: as above, `&mut self` is exclusive, and the memory is its own.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_part_is_copied_when_it_is_changed() {
        let mut whole = AlignedBuf::zeroed(3 * BLOCK_BYTES);
        (0..3).for_each(|n| whole[n * BLOCK_BYTES..][..BLOCK_BYTES].fill(n as u8 + 1));
        let whole = Arc::new(whole);
        let mut part = AlignedBuf::shared(&whole, BLOCK_BYTES, BLOCK_BYTES);
        let second = AlignedBuf::shared(
            &Arc::new(AlignedBuf::shared(&whole, BLOCK_BYTES, 2 * BLOCK_BYTES)),
            BLOCK_BYTES,
            BLOCK_BYTES,
        );
        assert_eq!((part.as_ptr(), part.len()), (whole[BLOCK_BYTES..].as_ptr(), BLOCK_BYTES));
        part[5] = 9;
        assert_eq!(part[4..7], [2, 9, 2]);
        assert!(whole[BLOCK_BYTES..2 * BLOCK_BYTES].iter().all(|b| *b == 2));
        drop(whole);
        assert!(second.iter().all(|b| *b == 3));
    }

    #[test]
    fn what_was_there_stays_where_it_is_to_be_kept() {
        let mut filling = Filling::again(AlignedBuf::padded(&[7; 100]));
        filling.put(&[1; 20]);
        filling.zeros_to(40);
        filling.keep_to(80);
        filling.put(&[2; 5]);
        let buf = filling.finish();
        let expected = [&[1; 20][..], &[0; 20], &[7; 40], &[2; 5]].concat();
        assert_eq!(buf[..85], expected);
        assert!(buf[85..].iter().all(|b| *b == 0));
        // Of a new one nothing is there to be kept, nor of another's memory to be changed.
        let mut fresh = Filling::new(BLOCK_BYTES);
        fresh.keep_to(BLOCK_BYTES);
        assert!(fresh.finish().iter().all(|b| *b == 0));
        let whole = Arc::new(AlignedBuf::padded(&[7; 100]));
        let mut part = Filling::again(AlignedBuf::shared(&whole, 0, BLOCK_BYTES));
        part.put(&[1; 20]);
        part.keep_to(BLOCK_BYTES);
        assert_eq!((part.finish()[19..21].to_vec(), whole[0]), (vec![1, 7], 7));
    }

    #[test]
    fn a_buffer_is_filled_from_its_beginning_on() {
        for len in [0, BLOCK_BYTES, 3 * BLOCK_BYTES, 128 << 10] {
            let mut filling = Filling::new(len);
            filling.put(&[1; 100]);
            filling.zeros_to(50);
            filling.put(&[2; 100]);
            filling.zeros_to(BLOCK_BYTES);
            filling.put(&[3; 2 * BLOCK_BYTES]);
            let mut want = [vec![1; 100], vec![2; 100], vec![0; BLOCK_BYTES - 200], vec![3; 2 * BLOCK_BYTES]].concat();
            want.resize(len, 0);
            assert!(filling.finish()[..] == want[..], "{len}");
        }
    }

    #[test]
    fn much_that_waits_keeps_no_more_memory_than_it_has_bytes() {
        const LEN: usize = 128 << 10;
        let received = |n: u8| {
            let mut buf = AlignedBuf::unset(1 << 20);
            buf[..LEN].fill(n);
            buf.truncate(LEN);
            buf.fitted()
        };
        let waiting: Vec<_> = (0..200).map(received).collect();
        assert!((0..200).all(|n| waiting[usize::from(n)].iter().all(|b| *b == n)));
        let room: usize = waiting.iter().map(|buf| buf.room).sum();
        assert!(room <= LOOSE_BYTES_MAX + 200 * LEN, "{room}");
        assert_eq!(AlignedBuf::unset(1 << 20).fitted().room, 1 << 20);
    }

    #[test]
    #[should_panic(expected = "bytes from")]
    fn no_part_reaches_beyond() {
        drop(AlignedBuf::shared(&Arc::new(AlignedBuf::zeroed(BLOCK_BYTES)), BLOCK_BYTES, BLOCK_BYTES));
    }
}
