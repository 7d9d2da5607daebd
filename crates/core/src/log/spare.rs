//! Memory of chain partials that were written, for those that are laid out next.
//!
//! Invariants
//! 1. What is taken from here has zeros between the end of its records and the end of its summary: nobody changes a partial
//!    after it was laid out.

use nenrin_device::{AlignedBuf, Filling};
use nenrin_format::BLOCK_BYTES;
use nenrin_format::partial::PartialHeader;

/// So many are kept: those of commits at once.
const KEPT_MAX: usize = crate::COMMITS_AT_ONCE as usize;
/// Longer ones are not: they are few, and their memory comes from where it is kept anyway.
const KEPT_BYTES_MAX: usize = 16 * BLOCK_BYTES;

/// Partials that nobody needs any more.
#[derive(Default)]
pub struct SparePartials(Vec<AlignedBuf>);

/// Bytes of the summary of a partial, and of those the header and the records.
fn lengths(bytes: &[u8]) -> Option<(usize, usize)> {
    let (header, _) = PartialHeader::read_prefix(bytes).ok()?;
    let records = header.record_bytes.get() as usize;
    Some((header.summary_blocks.get() as usize * BLOCK_BYTES, PartialHeader::BYTES + records))
}

impl SparePartials {
    /// Keeps one, in the place of the oldest.
    pub fn give(&mut self, partial: AlignedBuf) {
        if partial.len() > KEPT_BYTES_MAX {
            return;
        }
        if self.0.len() == KEPT_MAX {
            self.0.remove(0);
        }
        self.0.push(partial);
    }

    /// Memory for a partial of so many bytes with a summary of so many, and up to where that has anything but zeros.
    pub fn take(&mut self, bytes: usize, summary_bytes: usize) -> (Filling, usize) {
        for (i, partial) in self.0.iter().enumerate().filter(|(_, partial)| partial.len() == bytes) {
            if let Some((_, records_end)) = lengths(partial).filter(|(summary, _)| *summary == summary_bytes) {
                return (Filling::again(self.0.remove(i)), records_end);
            }
        }
        (Filling::new(bytes), summary_bytes)
    }
}
