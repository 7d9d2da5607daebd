//! How many requests of each kind came: what an operation costs in round trips
//! can be counted, and a test that counts does not depend on the machine.

use crate::proto::flags::Opcode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const KINDS: usize = 64;

/// Counts of the requests that a session has received.
#[derive(Clone)]
pub struct Requests(Arc<[AtomicU64; KINDS]>);

impl Requests {
    pub(crate) fn new() -> Self {
        Self(Arc::new(std::array::from_fn(|_| AtomicU64::new(0))))
    }
    pub(crate) fn count(&self, opcode: u32) {
        // What is not known is counted together, as number 0.
        let known = Opcode::from_number(opcode).map_or(0, |opcode| opcode as usize);
        self.0[known % KINDS].fetch_add(1, Ordering::Relaxed);
    }
    /// The kinds of which there were any, by their names in the kernel's
    /// protocol written as one word (`Lookup`, `Batchforget`), with their counts.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let count = |(number, count): (usize, &AtomicU64)| {
            let name = Opcode::from_number(number as u32).map_or("Unknown", Opcode::name);
            Some((name, count.load(Ordering::Relaxed))).filter(|(_, count)| *count > 0)
        };
        self.0.iter().enumerate().filter_map(count).collect()
    }
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.counts()).finish()
    }
}
