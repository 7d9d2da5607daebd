//! Places that no segment has: behind the bands of a device, between them, and what is shorter than a segment.
//!
//! Invariants
//! 1. None of them lies in an area, in the row log or in a band.
//! 2. They are asked for where nobody changes bands meanwhile; a device that changed hands is seen, and gets nothing that was meant for
//!    the one before.

use super::requests::bytes;
use super::roster::Roster;
use super::{Devices, Member};
use crate::Result;
use crate::breaks::{Break, broken};
use nenrin_device::{AlignedBuf, DeviceError, Op, Ticket};
use nenrin_format::row_log::ROW_LOG_UNITS;
use nenrin_format::superblock::{AREA_BLOCKS, Band, UNIT_BLOCKS};
use std::ops::Range;
use std::sync::Arc;

/// Blocks of a device that no segment has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gap {
    device: u16,
    /// Identity of the device.
    uuid: [u8; 16],
    blocks: Range<u64>,
}

/// What no segment has, and how far somebody came with it.
#[derive(Debug)]
pub(crate) struct Outside {
    gaps: Vec<Gap>,
    /// The next of them, and which block of the device.
    next: usize,
    at: u64,
    /// Where something was.
    zeroed: Vec<Gap>,
    /// Blocks that take no zeros, and why.
    failed: Vec<(Gap, DeviceError)>,
}

/// So many blocks that take no zeros are told one by one.
const FAILED_MAX: usize = 256;
/// So many of them are tried again in one step.
const RETRIED_AT_ONCE: usize = 32;

impl Outside {
    /// Whether anything was there.
    pub fn has_zeroed(&self) -> bool {
        !self.zeroed.is_empty()
    }

    fn note_zeroed(&mut self, gap: Gap) {
        match self.zeroed.last_mut() {
            Some(last) if last.device == gap.device && last.blocks.end == gap.blocks.start => {
                last.blocks.end = gap.blocks.end;
            }
            _ => self.zeroed.push(gap),
        }
    }
}

/// What came of a step.
#[derive(Debug)]
pub(crate) enum Zeroed {
    /// So many blocks more are zeros.
    Some(u64),
    /// All are.
    All,
    /// All are but for blocks that cannot be: which.
    Left(String),
    /// Others have no segment now, or other devices: it is to begin anew.
    Changed,
}

impl Devices {
    /// The places of devices that take part, and who they are.
    fn gaps(&self) -> (Vec<Gap>, Arc<Roster>) {
        // Whoever gives a place to another device does so under this lock.
        let table = self.table();
        let roster = self.roster();
        let entries = table.superblock.as_ref().map_or(&[][..], |s| &s.devices);
        let layout = &roster.layout;
        let log = if layout.has_parity() { u64::from(ROW_LOG_UNITS * UNIT_BLOCKS) } else { 0 };
        let mut gaps = Vec::new();
        for member in roster.active() {
            let Some(entry) = entries.get(usize::from(member.index)).filter(|e| !e.removed) else { continue };
            let within = AREA_BLOCKS + log..entry.blocks.saturating_sub(AREA_BLOCKS);
            let free = free_of(layout.bands(), member.index, &within, layout.segment_blocks);
            gaps.extend(free.into_iter().map(|blocks| Gap { device: member.index, uuid: entry.uuid, blocks }));
        }
        drop(table);
        (gaps, roster)
    }

    /// What no segment has as things are.
    pub fn outside(&self) -> Outside {
        Outside { gaps: self.gaps().0, next: 0, at: 0, zeroed: Vec::new(), failed: Vec::new() }
    }

    /// Whether that is what no segment has now, too.
    pub fn is_still_outside(&self, outside: &Outside) -> bool {
        self.gaps().0 == outside.gaps
    }

    /// Zeroes so many blocks of that, unless they are zeros. A block that takes none is no reason to go without its device, which has
    /// nothing there: it is left, and tried again when all others are done.
    ///
    /// # Errors
    /// What keeps the volume from going on; why it may not be written to.
    pub fn zero_outside(
        &self,
        outside: &mut Outside,
        blocks: u64,
        may_write: impl Fn() -> Result<()>,
    ) -> Result<Zeroed> {
        let (gaps, roster) = self.gaps();
        if gaps != outside.gaps {
            return Ok(Zeroed::Changed);
        }
        let Some(gap) = gaps.get(outside.next) else { return self.zero_failed(outside, &roster, may_write) };
        let Some(member) = roster.member(gap.device) else { return Ok(Zeroed::Changed) };
        let from = outside.at.max(gap.blocks.start);
        let to = gap.blocks.end.min(from.saturating_add(blocks));
        let found = member.submit(Op::Read { offset: bytes(from), bytes: bytes(to - from) as usize }).wait();
        // What cannot be read may be there all the same.
        if !found.is_ok_and(|b| b.iter().all(|b| *b == 0)) {
            may_write()?;
            match self.zero(member, from..to)? {
                // Of a few the others are zeroed all the same.
                Some(_) if outside.failed.len() < FAILED_MAX => {
                    for block in from..to {
                        may_write()?;
                        let failed = self.zero(member, block..block + 1)?;
                        outside.failed.extend(failed.map(|e| (Gap { blocks: block..block + 1, ..gap.clone() }, e)));
                    }
                }
                Some(e) => outside.failed.push((Gap { blocks: from..to, ..gap.clone() }, e)),
                None => {}
            }
            outside.note_zeroed(Gap { blocks: from..to, ..gap.clone() });
        }
        match to == gap.blocks.end {
            true => (outside.next, outside.at) = (outside.next + 1, 0),
            false => outside.at = to,
        }
        Ok(Zeroed::Some(to - from))
    }

    /// Zeroes blocks of a device; why it does not take that for them.
    fn zero(&self, member: &Arc<Member>, blocks: Range<u64>) -> Result<Option<DeviceError>> {
        let zeros = Arc::new(AlignedBuf::zeroed(bytes(blocks.end - blocks.start) as usize));
        let sent = self.send(member, Op::Write { offset: bytes(blocks.start), data: zeros });
        for (member, e) in self.wait_writes(vec![sent], |m| &m.completed) {
            // Nothing that counts as written is lost by that.
            if matches!(e, DeviceError::Os(_)) && !broken(Break::OutsideFailsDevice) {
                return Ok(Some(e));
            }
            self.lose(&member, e)?;
        }
        Ok(None)
    }

    /// Tries those again that took none. What is to go, with its device or as the end of it, is not waited for: that waits for this.
    fn zero_failed(
        &self,
        outside: &mut Outside,
        roster: &Roster,
        may_write: impl Fn() -> Result<()>,
    ) -> Result<Zeroed> {
        let some = RETRIED_AT_ONCE.min(outside.failed.len());
        // The others come before these next time.
        let mut left = outside.failed.split_off(some);
        for (gap, _) in std::mem::take(&mut outside.failed) {
            let Some(member) = roster.member(gap.device) else { return Ok(Zeroed::Changed) };
            may_write()?;
            left.extend(self.zero(member, gap.blocks.clone())?.map(|e| (gap, e)));
        }
        let table = self.table();
        let entries = table.superblock.as_ref().map_or(&[][..], |s| &s.devices);
        let stays = |gap: &Gap| entries.get(usize::from(gap.device)).is_none_or(|e| gap.blocks.start < e.target_blocks);
        left.retain(|(gap, _)| stays(gap));
        drop(table);
        outside.failed = left;
        Ok(match outside.failed.first() {
            None => Zeroed::All,
            Some((gap, e)) => Zeroed::Left(format!(
                "{} blocks that no segment has take no zeros, block {} of device {} first: {e}; replace or remove the device",
                outside.failed.iter().map(|(gap, _)| gap.blocks.end - gap.blocks.start).sum::<u64>(),
                gap.blocks.start,
                gap.device + 1
            )),
        })
    }

    /// Tells devices that nothing of value is where something was, and waits. Advice only: one that refuses it keeps working.
    pub fn discard_outside(&self, outside: &Outside) {
        let (gaps, roster) = self.gaps();
        if gaps != outside.gaps {
            return;
        }
        let start = |gap: &Gap| {
            let (offset, length) = (bytes(gap.blocks.start), bytes(gap.blocks.end - gap.blocks.start));
            Some(roster.member(gap.device)?.submit(Op::Discard { offset, bytes: length }))
        };
        let tickets: Vec<Ticket> = outside.zeroed.iter().filter_map(start).collect();
        tickets.into_iter().for_each(|t| drop(t.wait()));
    }
}

/// What no band takes of these blocks of a device.
fn free_of(bands: &[Band], device: u16, within: &Range<u64>, segment_blocks: u32) -> Vec<Range<u64>> {
    let mut taken: Vec<Range<u64>> = Vec::new();
    for band in bands {
        let column = band.members.iter().position(|m| u16::from(m.0) == device);
        taken.extend(column.map(|c| band.blocks(c, segment_blocks)));
    }
    taken.sort_unstable_by_key(|r| r.start);
    let mut free = Vec::new();
    let mut from = within.start;
    for r in taken.into_iter().filter(|r| !r.is_empty()) {
        if r.start > from {
            free.push(from..r.start.min(within.end));
        }
        from = from.max(r.end);
    }
    free.push(from..within.end);
    free.retain(|r| !r.is_empty());
    free
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{Layout, bands_for};
    use nenrin_format::SegmentNo;
    use nenrin_format::superblock::Profile;
    use std::collections::BTreeSet;

    const SEGMENT: u32 = 64;

    /// Each block of the data area is either in a segment, as the layout says, or free of all bands.
    fn is_one_or_the_other(bands: Vec<Band>, lengths: &[u64], log: u64) {
        let layout = Layout::new(SEGMENT, bands);
        let mut taken: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); lengths.len()];
        for no in layout.numbers().into_iter().flatten() {
            for (place, blocks) in layout.shares(SegmentNo(no)) {
                taken[usize::from(place.device)].extend(place.block..place.block + blocks);
            }
        }
        for (device, length) in lengths.iter().enumerate() {
            let within = AREA_BLOCKS + log..length.saturating_sub(AREA_BLOCKS);
            let free = free_of(layout.bands(), device as u16, &within, SEGMENT);
            let free: BTreeSet<u64> = free.into_iter().flatten().collect();
            let want: BTreeSet<u64> = within.filter(|b| !taken[device].contains(b)).collect();
            assert!(free == want, "device {device} of {lengths:?}: {:?}", layout.bands());
        }
    }

    #[test]
    fn what_no_segment_has_is_what_no_band_takes() {
        for profile in [Profile::Single, Profile::Stripe, Profile::Mirror, Profile::Parity] {
            let log = if profile == Profile::Parity { u64::from(ROW_LOG_UNITS * UNIT_BLOCKS) } else { 0 };
            for lengths in [[1000, 1000, 1000], [1003, 1700, 2507], [2507, 900, 0]] {
                let lengths = lengths.map(|n| if n == 0 { 0 } else { n + log });
                let bands = bands_for(profile, &lengths, SEGMENT);
                // Some of the first band is gone, so that the rest begins within a row.
                let rest = bands[0].part(1, bands[0].segments - 1, SEGMENT).unwrap();
                let mut cut = bands.clone();
                cut[0] = Band { first: SegmentNo(1), ..rest };
                is_one_or_the_other(bands, &lengths, log);
                is_one_or_the_other(cut, &lengths, log);
            }
        }
    }
}
