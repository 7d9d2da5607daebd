//! What a device did not give, and others did: to be written anew by whoever verifies what was read.
//!
//! Invariants
//! 1. It is a hint: who is told looks again at what he has verified, and writes only what is still not given.
//! 2. Bounded; of more the oldest is forgotten, which a scrub finds.

use nenrin_format::Addr;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// Runs of blocks that are remembered at most.
const PLACES_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Unread {
    /// Looked at with each read.
    any: AtomicBool,
    places: Mutex<VecDeque<(Addr, u32)>>,
}

impl Unread {
    /// These were not given.
    pub fn note(&self, addr: Addr, blocks: u32) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.contains(&(addr, blocks)) {
            return;
        }
        if places.len() == PLACES_MAX {
            places.pop_front();
        }
        places.push_back((addr, blocks));
        self.any.store(true, SeqCst);
    }

    /// Whether some of these blocks were not given; told once of each.
    pub fn take(&self, addr: Addr, blocks: u32) -> bool {
        if !self.any.load(SeqCst) {
            return false;
        }
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, end) = (addr.0, addr.0 + u64::from(blocks));
        let mut rest = Vec::new();
        let before = places.len();
        places.retain(|(first, count)| {
            let last = first.0 + u64::from(*count);
            let meets = first.0 < end && start < last;
            if meets {
                // What others read with it is theirs to write anew.
                rest.extend((first.0 < start).then(|| (*first, (start - first.0) as u32)));
                rest.extend((end < last).then(|| (Addr(end), (last - end) as u32)));
            }
            !meets
        });
        let took = places.len() < before;
        places.extend(rest);
        self.any.store(!places.is_empty(), SeqCst);
        took
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_format::SegmentNo;

    #[test]
    fn what_was_not_given_is_told_once() {
        let at = |block| Addr::new(SegmentNo(3), block);
        let unread = Unread::default();
        assert!(!unread.take(at(0), 100));
        unread.note(at(10), 16);
        unread.note(at(10), 16);
        assert!(!unread.take(at(0), 10) && !unread.take(at(26), 10));
        assert!(unread.take(at(12), 2));
        assert!(!unread.take(at(12), 2));
        assert!(unread.take(at(0), 11) && unread.take(at(20), 100));
        assert!(unread.take(at(11), 1) && unread.take(at(14), 6));
        assert!(!unread.take(at(0), 100));
        (0..100).for_each(|i| unread.note(at(100 * i), 1));
        assert!(!unread.take(at(0), 1) && unread.take(at(9900), 1));
    }
}
