//! Counts the memory in use, so that a case which takes too much is noticed
//! whether or not the memory is ever touched.
#![allow(unsafe_code)] // an allocator cannot be had without

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static NOW: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, with a count for each thread.
pub struct Counting;

fn count(bytes: isize) {
    // While a thread ends there is nothing to count for.
    let _ = NOW.try_with(|n| {
        let (now, peak) = n.get();
        n.set((now + bytes, peak.max(now + bytes)));
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those of this call.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// Runs `f`; returns what it returned and the most bytes it had at once beyond those before.
/// Zero bytes where [`Counting`] is not the program's allocator.
pub fn peak<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let (before, _) = NOW.get();
    NOW.set((before, before));
    let value = f();
    let (_, peak) = NOW.get();
    (value, (peak - before).max(0) as usize)
}
