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

#[cfg(test)]
mod tests {
    use super::*;

    /// A partial with so many bytes of records, and a page of `payload`.
    fn laid_out(spare: &mut SparePartials, records: usize, payload: u8) -> AlignedBuf {
        let mut header = PartialHeader::zeroed();
        header.summary_blocks.set(1);
        header.record_bytes.set(records as u32);
        let (mut filling, zeros_from) = spare.take(2 * BLOCK_BYTES, BLOCK_BYTES);
        filling.put(header.bytes());
        filling.put(&vec![9; records]);
        filling.zeros_to(zeros_from);
        filling.keep_to(BLOCK_BYTES);
        filling.put(&[payload; BLOCK_BYTES]);
        filling.finish()
    }

    #[test]
    fn nothing_of_a_partial_is_in_the_next_one() {
        let mut spare = SparePartials::default();
        for records in [300, 20, 1000, 999, 0, BLOCK_BYTES - PartialHeader::BYTES, 7] {
            let bytes = laid_out(&mut spare, records, records as u8);
            assert_eq!(bytes[..], laid_out(&mut SparePartials::default(), records, records as u8)[..], "{records}");
            spare.give(bytes);
            assert_eq!(spare.0.len(), 1, "it is not used again");
        }
    }

    #[test]
    fn another_length_is_left_alone_and_little_is_kept() {
        let mut spare = SparePartials::default();
        let longer = laid_out(&mut spare, 100, 1);
        spare.give(longer);
        // As long, but with a summary of two blocks: there is a page where it has to have zeros.
        let (_, zeros_from) = spare.take(2 * BLOCK_BYTES, 2 * BLOCK_BYTES);
        assert_eq!((zeros_from, spare.0.len()), (2 * BLOCK_BYTES, 1));
        for _ in 0..2 * KEPT_MAX {
            spare.give(AlignedBuf::zeroed(3 * BLOCK_BYTES));
        }
        spare.give(AlignedBuf::zeroed(KEPT_BYTES_MAX + BLOCK_BYTES));
        assert_eq!((spare.0.len(), spare.0.iter().all(|p| p.len() == 3 * BLOCK_BYTES)), (KEPT_MAX, true));
    }
}
