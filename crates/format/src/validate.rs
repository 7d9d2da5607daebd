//! What the parts of a root slot must say of each other: where bands lie on devices of which length.

use crate::row_log::ROW_LOG_UNITS;
use crate::superblock::{AREA_BLOCKS, Superblock, UNIT_BLOCKS};
use crate::{BLOCK_BYTES, Invalid};
use std::ops::Range;

/// log2 of a unit in bytes.
const STRIPE_SHIFT: u8 = (UNIT_BLOCKS as usize * BLOCK_BYTES).trailing_zeros() as u8;

/// Segments that a volume may have: 1 PiB of 16 MiB each. Each costs who opens it some memory, and a sparse file of some kilobytes may
/// state as many as an address has room for.
pub const SEGMENTS_MAX: u64 = 1 << 26;

impl Superblock {
    /// Whether segments lie beside each other, and within their devices: no band over another, none in an area or in the row log.
    ///
    /// # Errors
    /// [`Invalid::Segments`] where there are too many, else [`Invalid::Bounds`].
    pub fn validate(&self) -> Result<(), Invalid> {
        let segments = self.bands.iter().fold(0u64, |n, b| n.saturating_add(b.segments));
        if segments > SEGMENTS_MAX {
            return Err(Invalid::Segments(segments));
        }
        if self.stripe_shift != STRIPE_SHIFT {
            return Err(Invalid::Bounds);
        }
        (0..self.devices.len()).try_for_each(|device| self.validate_device(device))
    }

    fn validate_device(&self, device: usize) -> Result<(), Invalid> {
        let mut taken: Vec<Range<u64>> = Vec::new();
        for band in &self.bands {
            let Some(column) = band.members.iter().position(|m| usize::from(m.0) == device) else { continue };
            if band.parity && band.members[column].1 < ROW_LOG_UNITS {
                return Err(Invalid::Bounds);
            }
            taken.push(band.blocks(column, self.segment_blocks));
        }
        // A band that begins in the midst of a row, and is short, takes nothing of some of its devices.
        taken.retain(|r| !r.is_empty());
        taken.sort_unstable_by_key(|r| r.start);
        let end = taken.iter().map(|r| r.end).max().unwrap_or(0);
        // A device without a length has no tail area.
        let blocks = self.devices[device].blocks;
        let is_beyond = blocks > 0 && end > 0 && end.saturating_add(AREA_BLOCKS) > blocks;
        if is_beyond || taken.windows(2).any(|two| two[0].end > two[1].start) {
            return Err(Invalid::Bounds);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests say what went wrong by stopping
mod tests {
    use super::*;
    use crate::superblock::{Band, DeviceEntry, Profile};
    use crate::{Addr, Epoch, Generation, SegmentNo, Seq, Time};

    const SEGMENT: u32 = 64;

    type Change = fn(&mut Superblock);

    /// Two devices of sixty units, and two bands that fill them.
    fn root() -> Superblock {
        let entry = DeviceEntry::active([1; 16], 2 * AREA_BLOCKS + 60 * u64::from(UNIT_BLOCKS), 1);
        let band = |first, segments, copies, start| Band {
            first: SegmentNo(first),
            segments,
            copies,
            parity: false,
            members: vec![(0, start), (1, start)],
        };
        Superblock {
            device_index: 1,
            uuid: [7; 16],
            features: [0; 3],
            generation: Generation(5),
            epoch: Epoch(1),
            segment_blocks: SEGMENT,
            profile: Profile::Mirror,
            stripe_shift: STRIPE_SHIFT,
            clean: false,
            mount_id: 1,
            troubles: Default::default(),
            scrubbed: None,
            hash_key: [0; 16],
            made_at: Time(0),
            written_at: Time(0),
            mounted_nanos: 0,
            root: [(Addr::NONE, 0); 2],
            root_blocks: 0,
            chain: (SegmentNo(0), 0),
            chain_next: None,
            chain_seq: Seq(0),
            chain_last: Addr::NONE,
            chain_crc: 0,
            label: Vec::new(),
            devices: vec![entry; 2],
            // Forty units of each device, and twenty.
            bands: vec![band(0, 10, 2, 0), band(10, 10, 1, 40)],
        }
    }

    #[test]
    fn segments_lie_beside_each_other_and_within_their_devices() {
        let root = root();
        assert_eq!(Superblock::decode(&root.encode()).unwrap(), root);
        let wrong: [(&str, Change); 9] = [
            ("a band over another", |s| s.bands[1].members[1].1 -= 1),
            ("a longer one over another", |s| s.bands[0].segments += 1),
            ("into the tail area", |s| s.bands[1].segments += 1),
            ("by one unit", |s| s.bands[1].members[0].1 += 1),
            ("a shorter device", |s| s.devices[0].blocks -= 1),
            ("rows in their log", |s| {
                s.bands[0] = Band { parity: true, copies: 1, segments: 1, ..s.bands[0].clone() };
            }),
            ("units of another length", |s| s.stripe_shift = 17),
            ("alone, over another", |s| s.bands[0] = Band { copies: 1, members: vec![(0, 1)], ..s.bands[0].clone() }),
            ("alone, behind the end", |s| {
                s.bands.truncate(1);
                s.bands[0] = Band { copies: 1, segments: 16, members: vec![(1, 0)], ..s.bands[0].clone() };
            }),
        ];
        for (what, change) in wrong {
            let mut changed = root.clone();
            change(&mut changed);
            for e in &mut changed.devices {
                e.target_blocks = e.blocks;
            }
            assert_eq!(changed.validate(), Err(Invalid::Bounds), "{what}");
            assert_eq!(Superblock::decode(&changed.encode()), Err(Invalid::Bounds), "{what}");
        }
        let mut without_length = root.clone();
        without_length.devices[0] = DeviceEntry { removed: true, active: false, ..DeviceEntry::active([0; 16], 0, 2) };
        assert_eq!(without_length.validate(), Ok(()));
    }

    /// Such as a sparse file of 16 TiB, of a few kilobytes, may state.
    #[test]
    fn segments_are_no_more_than_memory_has_room_for() {
        let unit = u64::from(UNIT_BLOCKS);
        for (segments, valid) in [(SEGMENTS_MAX, Ok(())), (SEGMENTS_MAX + 1, Err(Invalid::Segments(SEGMENTS_MAX + 1)))]
        {
            let blocks = 2 * AREA_BLOCKS + segments * 8;
            let mut s = Superblock { segment_blocks: 8, device_index: 0, profile: Profile::Single, ..root() };
            s.devices = vec![DeviceEntry::active([1; 16], blocks.next_multiple_of(unit), 1)];
            s.bands = vec![Band { segments, copies: 1, members: vec![(0, 0)], ..s.bands[0].clone() }];
            assert_eq!(s.validate(), valid);
            assert_eq!(Superblock::decode(&s.encode()).map(drop), valid);
        }
    }
}
