//! Bands: consecutive segments that lie on the same devices in the same way, and where that is.

use crate::disk_struct;
use crate::layout::le::{U32, U64};
use crate::superblock::{AREA_BLOCKS, DEVICES_MAX};
use crate::{BLOCK_BYTES, COUNTER_MAX, Invalid, SegmentNo};
use std::ops::Range;

/// Segment numbers without a band that a volume may have.
pub const NUMBERS_UNUSED_MAX: u64 = 1 << 24;
/// Bands of a volume.
pub const BANDS_MAX: usize = 8;
/// Blocks in a unit: what lies together on one device.
pub const UNIT_BLOCKS: u32 = 16;

disk_struct! {
    /// Consecutive segments that lie on the same devices in the same way.
    pub struct BandDisk [256] {
        /// Its first segment.
        pub first_segment: U64,
        /// Segments in it; 0 for an entry that is not used.
        pub segments: U64,
        /// Devices that it lies on.
        pub width: u8,
        /// Copies of each block, on as many devices.
        pub copies: u8,
        /// 1 where units lie in rows with parity; else 0.
        pub parity: u8,
        /// Must be zero.
        pub reserved: [u8; 5],
        /// Indices of these devices in the device table; then zeros.
        pub devices: [u8; 32],
        /// Where it begins on each of them, in units behind the head area; then zeros.
        pub starts: [U32; 32],
        /// Must be zero.
        pub reserved2: [u8; 72],
    }
}

/// Consecutive segments that lie on the same devices in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Its first segment.
    pub first: SegmentNo,
    /// Segments in it.
    pub segments: u64,
    /// Copies of each block, on as many devices.
    pub copies: u8,
    /// Units lie in rows, each with a unit of parity.
    pub parity: bool,
    /// Index in the device table, and where the band begins there, in units behind the head area.
    pub members: Vec<(u8, u32)>,
}

impl Band {
    /// First block behind the band on each of its devices, counted from the start of that device.
    #[must_use]
    pub fn end_block(&self, column: usize, segment_blocks: u32) -> u64 {
        let (start, units) = self.units(column, segment_blocks);
        AREA_BLOCKS.saturating_add(start.saturating_add(units).saturating_mul(u64::from(UNIT_BLOCKS)))
    }
    /// The units that the band takes on one of its devices: the first, and how many.
    #[must_use]
    pub fn units(&self, column: usize, segment_blocks: u32) -> (u64, u64) {
        let start = self.members.get(column).map_or(0, |m| u64::from(m.1));
        let cells = self.cells_of(self.segments, segment_blocks).saturating_sub(column as u64);
        (start, cells.div_ceil((self.members.len() as u64).max(1)))
    }
    /// The blocks that the band takes on one of its devices.
    #[must_use]
    pub fn blocks(&self, column: usize, segment_blocks: u32) -> Range<u64> {
        let (start, units) = self.units(column, segment_blocks);
        let unit = u64::from(UNIT_BLOCKS);
        let first = AREA_BLOCKS.saturating_add(start.saturating_mul(unit));
        // A device alone holds whole segments, of any length.
        let blocks = match self.members.len() {
            1 => self.segments.saturating_mul(u64::from(segment_blocks)),
            _ => units.saturating_mul(unit),
        };
        first..first.saturating_add(blocks)
    }
    /// Cells of so many of its segments.
    #[must_use]
    pub fn cells_of(&self, segments: u64, segment_blocks: u32) -> u64 {
        let width = self.members.len() as u32;
        segments.saturating_mul(cells_of_segment(segment_blocks, width, u32::from(self.copies), self.parity))
    }
    /// First segment number behind the band.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.first.0.saturating_add(self.segments)
    }
    /// Where the same rule begins so many cells later, or earlier; `None` before the first unit of a device.
    #[must_use]
    pub fn members_from(&self, cells: i64) -> Option<Vec<(u8, u32)>> {
        let width = self.members.len() as i64;
        let member = |column: i64| {
            let cell = column.checked_add(cells)?;
            let (device, start) = self.members[cell.rem_euclid(width) as usize];
            let start = i64::from(start).checked_add(cell.div_euclid(width))?;
            Some((device, u32::try_from(start).ok()?))
        };
        (0..width).map(member).collect()
    }
    /// A part of it, or what it would be if it were longer: `count` segments from its segment `from` on, without numbers.
    #[must_use]
    pub fn part(&self, from: i64, count: u64, segment_blocks: u32) -> Option<Self> {
        let cells = from.checked_mul(i64::try_from(self.cells_of(1, segment_blocks)).ok()?)?;
        let members = self.members_from(cells)?;
        Some(Self { first: SegmentNo(0), segments: count, members, ..*self })
    }
    pub(crate) fn encode(&self) -> BandDisk {
        let mut d = BandDisk::zeroed();
        d.first_segment.set(self.first.0);
        d.segments.set(self.segments);
        d.width = self.members.len() as u8;
        d.copies = self.copies;
        d.parity = u8::from(self.parity);
        for (i, (device, start)) in self.members.iter().enumerate() {
            d.devices[i] = *device;
            d.starts[i].set(*start);
        }
        d
    }
    /// `None` for an entry that is not used.
    fn decode(d: &BandDisk, devices: usize, segment_blocks: u32) -> Result<Option<Self>, Invalid> {
        if d.segments.get() == 0 {
            return Ok(None);
        }
        let width = usize::from(d.width);
        if !(1..=devices).contains(&width) || !(1..=2).contains(&d.copies) || usize::from(d.copies) > width {
            return Err(Invalid::Bounds);
        }
        if d.parity > 1 || d.parity == 1 && (d.copies != 1 || width < 2) {
            return Err(Invalid::Bounds);
        }
        let members: Vec<(u8, u32)> = (0..width).map(|i| (d.devices[i], d.starts[i].get())).collect();
        let mut seen = [false; DEVICES_MAX];
        for (device, _) in &members {
            match seen.get_mut(usize::from(*device)).filter(|_| usize::from(*device) < devices) {
                Some(s) if !*s => *s = true,
                _ => return Err(Invalid::Bounds),
            }
        }
        let (first, segments) = (SegmentNo(d.first_segment.get()), d.segments.get());
        let this = Self { first, segments, copies: d.copies, parity: d.parity == 1, members };
        let end = this.first.0.checked_add(this.segments).ok_or(Invalid::Bounds)?;
        // Addresses have 42 bits for the segment, and offsets on a device must stay offsets.
        let far = (0..width).any(|i| this.end_block(i, segment_blocks) > COUNTER_MAX / BLOCK_BYTES as u64);
        if end >> 42 != 0 || far || (width > 1 && segment_blocks % UNIT_BLOCKS != 0) {
            return Err(Invalid::Bounds);
        }
        Ok(Some(this))
    }
}

/// Units of a segment.
#[must_use]
pub const fn segment_units(segment_blocks: u32) -> u32 {
    segment_blocks.div_ceil(UNIT_BLOCKS)
}

/// Cells that a segment takes in a band over `width` devices: its units, and their copies or the parity of its rows.
#[must_use]
pub fn cells_of_segment(segment_blocks: u32, width: u32, copies: u32, parity: bool) -> u64 {
    let units = u64::from(segment_units(segment_blocks));
    match parity {
        true => units + units.div_ceil(u64::from(width.max(2) - 1)),
        false => units * u64::from(copies),
    }
}

/// Units that so many segments take on each of `width` devices, with so many copies.
#[must_use]
pub fn rows(segments: u64, segment_blocks: u32, width: u32, copies: u32, parity: bool) -> u64 {
    let cells = segments.saturating_mul(cells_of_segment(segment_blocks, width, copies, parity));
    cells.div_ceil(u64::from(width.max(1)))
}

/// Bands are in the order of their numbers, and there is at least one.
pub(crate) fn decode_bands(disk: &[BandDisk], devices: usize, segment_blocks: u32) -> Result<Vec<Band>, Invalid> {
    let mut bands: Vec<Band> = Vec::new();
    let mut unused = 0;
    for d in disk {
        let Some(band) = Band::decode(d, devices, segment_blocks)? else { break };
        unused += match band.first.0.checked_sub(bands.last().map_or(0, Band::end)) {
            Some(n) if n <= NUMBERS_UNUSED_MAX => n,
            _ => return Err(Invalid::Bounds),
        };
        bands.push(band);
    }
    if bands.is_empty() || unused > NUMBERS_UNUSED_MAX { Err(Invalid::Bounds) } else { Ok(bands) }
}
