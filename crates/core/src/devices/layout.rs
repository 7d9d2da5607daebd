//! Where the blocks of a segment lie on the devices: the rule of FORMAT.md section 6.
//!
//! Invariants
//! 1. Two copies of a block lie on different devices; so do the units of a row and its parity.
//! 2. No two blocks of the volume share a place, and none lies in an area.
//! 3. Where blocks are left out, what follows is at one of [`Layout::jumps`]: there recovery looks for it.

use nenrin_format::superblock::{AREA_BLOCKS, Band, UNIT_BLOCKS, segment_units};
use nenrin_format::{Addr, SegmentNo};
use std::ops::Range;

/// Blocks of one request at most where pieces are merged: 1 MiB.
const MERGE_BLOCKS: u32 = 256;

/// One copy of a unit, or of a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index in the device table.
    pub device: u16,
    /// Block on that device.
    pub block: u64,
}

/// Devices to which nothing new goes, while there is room elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Avoided(pub u32);

impl Avoided {
    /// None.
    pub const NONE: Self = Self(0);

    /// Whether this is one of them.
    pub const fn has(self, device: u16) -> bool {
        device < 32 && self.0 >> device & 1 == 1
    }
    /// The same with this one, or without it.
    pub const fn with(self, device: u16, avoided: bool) -> Self {
        let bit = if device < 32 { 1 << device } else { 0 };
        Self(if avoided { self.0 | bit } else { self.0 & !bit })
    }
    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A row of a band with parity: consecutive units of a segment, and their parity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub segment: SegmentNo,
    /// Its number within the segment.
    pub number: u32,
    /// The first of its units within the segment.
    pub first_unit: u32,
    /// Where its units begin.
    pub units: Vec<Place>,
    /// Where its parity begins.
    pub parity: Place,
    /// Of each unit: the device that gets what the row log has of it.
    pub aside: Vec<u16>,
}

impl Row {
    /// Its first block, and how many.
    pub fn range(&self) -> (Addr, u32) {
        (Addr::new(self.segment, self.first_unit * UNIT_BLOCKS), self.units.len() as u32 * UNIT_BLOCKS)
    }
}

/// What one device contributes to a request: blocks that lie together there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub device: u16,
    /// First block on the device.
    pub block: u64,
    pub blocks: u32,
    /// What it is of the request: first block and how many, in the order of the device.
    pub spans: Vec<(u32, u32)>,
}

impl Run {
    /// Whether it is a whole request of so many blocks, in order.
    pub fn is_whole(&self, blocks: u32) -> bool {
        self.spans == [(0, blocks)]
    }
}

/// Runs of a request under construction.
#[derive(Default)]
pub(crate) struct Runs(pub Vec<Run>);

impl Runs {
    /// Adds blocks `from` to `from + blocks` of the request, which lie at `place`.
    pub fn add(&mut self, place: Place, from: u32, blocks: u32) {
        let last = self.0.iter_mut().rev().find(|r| r.device == place.device);
        match last {
            Some(r) if r.block + u64::from(r.blocks) == place.block && r.blocks + blocks <= MERGE_BLOCKS => {
                r.blocks += blocks;
                match r.spans.last_mut() {
                    Some((start, n)) if *start + *n == from => *n += blocks,
                    _ => r.spans.push((from, blocks)),
                }
            }
            _ => self.0.push(Run { device: place.device, block: place.block, blocks, spans: vec![(from, blocks)] }),
        }
    }
}

/// The bands of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Blocks in a segment.
    pub segment_blocks: u32,
    bands: Vec<Band>,
}

impl Layout {
    pub fn new(segment_blocks: u32, bands: Vec<Band>) -> Self {
        Self { segment_blocks, bands }
    }

    /// Where segments lie.
    pub fn bands(&self) -> &[Band] {
        &self.bands
    }

    /// Segments of the volume.
    pub fn segments(&self) -> u64 {
        self.bands.iter().map(|b| b.segments).sum()
    }

    /// The numbers that segments have, in order.
    pub fn numbers(&self) -> Vec<Range<u64>> {
        self.bands.iter().map(|b| b.first.0..b.end()).collect()
    }

    /// The most copies that any block has.
    pub fn copies_max(&self) -> u8 {
        self.bands.iter().map(|b| b.copies).max().unwrap_or(1)
    }

    /// Whether neighbouring units may lie on different devices.
    pub fn lies_apart(&self) -> bool {
        self.bands.iter().any(|b| b.members.len() > usize::from(b.copies))
    }

    /// Whether any segment lies in rows with parity.
    pub fn has_parity(&self) -> bool {
        self.bands.iter().any(|b| b.parity)
    }

    /// Rows of a segment; 0 where it has no parity.
    pub fn rows_of(&self, segment: SegmentNo) -> u32 {
        let data = |b: &Band| b.members.len() as u32 - 1;
        let rows = |b: &Band| segment_units(self.segment_blocks).div_ceil(data(b).max(1));
        self.band(segment).filter(|b| b.parity).map_or(0, rows)
    }

    /// A row of a segment, where that lies in rows.
    pub fn row(&self, segment: SegmentNo, number: u32) -> Option<Row> {
        let band = self.band(segment).filter(|b| b.parity && number < self.rows_of(segment))?;
        let width = band.members.len() as u64;
        let data = band.members.len() as u32 - 1;
        let first_unit = number * data;
        let units = u64::from(data.min(segment_units(self.segment_blocks) - first_unit));
        let before = (segment.0 - band.first.0) * band.cells_of(1, self.segment_blocks);
        let first = before + u64::from(number) * width;
        let place = |cell: u64| {
            let (device, start) = band.members[((first + cell) % width) as usize];
            let unit = u64::from(start) + (first + cell) / width;
            Place { device: u16::from(device), block: AREA_BLOCKS + unit * u64::from(UNIT_BLOCKS) }
        };
        // By where it lies, which stays the same whatever the band is a part of.
        let turn = (place(0).block - AREA_BLOCKS) / u64::from(UNIT_BLOCKS) % (units + 1);
        let cells: Vec<u64> = (0..=units).filter(|c| *c != turn).collect();
        Some(Row {
            segment,
            number,
            first_unit,
            units: cells.iter().map(|c| place(*c)).collect(),
            parity: place(turn),
            aside: cells.iter().map(|c| place((c + 1) % (units + 1)).device).collect(),
        })
    }

    /// The rows that these blocks lie in, with the blocks of the request in each: the first of the row, the first of the
    /// request, and how many.
    pub fn rows(&self, addr: Addr, blocks: u32) -> Vec<(Row, u32, u32, u32)> {
        let mut out = Vec::new();
        let data = self.band(addr.segment()).filter(|b| b.parity).map_or(0, |b| b.members.len() as u32 - 1);
        let mut at = 0;
        while data > 0 && at < blocks {
            let block = addr.block() + at;
            let number = block / (data * UNIT_BLOCKS);
            let within = block % (data * UNIT_BLOCKS);
            let Some(row) = self.row(addr.segment(), number) else { break };
            let count = (row.range().1.saturating_sub(within)).min(blocks - at);
            if count == 0 {
                break;
            }
            out.push((row, within, at, count));
            at += count;
        }
        out
    }

    fn band(&self, segment: SegmentNo) -> Option<&Band> {
        let i = self.bands.partition_point(|b| b.first <= segment).checked_sub(1)?;
        self.bands.get(i).filter(|b| segment.0 - b.first.0 < b.segments)
    }

    /// Whether these blocks lie within one segment of the volume.
    pub fn contains(&self, addr: Addr, blocks: u32) -> bool {
        u64::from(addr.block()) + u64::from(blocks) <= u64::from(self.segment_blocks)
            && self.band(addr.segment()).is_some()
    }

    /// Where these blocks lie if they lie together on one device, without a copy.
    pub fn alone(&self, addr: Addr) -> Option<Place> {
        let band = self.band(addr.segment())?;
        let [(device, start)] = band.members[..] else { return None };
        let before = (addr.segment().0 - band.first.0) * u64::from(self.segment_blocks);
        let block = AREA_BLOCKS + u64::from(start) * u64::from(UNIT_BLOCKS) + before + u64::from(addr.block());
        Some(Place { device: u16::from(device), block })
    }

    /// Calls `each` for every piece of these blocks that lies in one unit: its first block
    /// in the request, how many, and where its copies are.
    pub fn each_piece(&self, addr: Addr, blocks: u32, mut each: impl FnMut(u32, u32, &[Place])) {
        let Some(band) = self.band(addr.segment()) else { return };
        if let Some(place) = self.alone(addr) {
            return each(0, blocks, &[place]);
        }
        if band.parity {
            for (row, within, from, count) in self.rows(addr, blocks) {
                let mut at = 0;
                while at < count {
                    let (unit, block) = ((within + at) / UNIT_BLOCKS, (within + at) % UNIT_BLOCKS);
                    let n = (UNIT_BLOCKS - block).min(count - at);
                    let place = row.units[unit as usize];
                    each(from + at, n, &[Place { block: place.block + u64::from(block), ..place }]);
                    at += n;
                }
            }
            return;
        }
        let (width, copies) = (band.members.len() as u64, u64::from(band.copies));
        let first_unit = (addr.segment().0 - band.first.0) * u64::from(segment_units(self.segment_blocks));
        let mut at = 0;
        while at < blocks {
            let block = addr.block() + at;
            let (unit, within) = (first_unit + u64::from(block / UNIT_BLOCKS), block % UNIT_BLOCKS);
            let count = (UNIT_BLOCKS - within).min(blocks - at);
            let place = |copy: u64| {
                let cell = unit * copies + copy;
                let (device, start) = band.members[(cell % width) as usize];
                let unit = u64::from(start) + cell / width;
                let block = AREA_BLOCKS + unit * u64::from(UNIT_BLOCKS) + u64::from(within);
                Place { device: u16::from(device), block }
            };
            match copies {
                1 => each(at, count, &[place(0)]),
                _ => each(at, count, &[place(0), place(1)]),
            }
            at += count;
        }
    }

    /// Calls `each` for every unit of a segment: its number, and where its copies are.
    #[cfg(test)]
    pub fn each_unit(&self, segment: SegmentNo, mut each: impl FnMut(u32, &[Place])) {
        for unit in 0..self.segment_blocks / UNIT_BLOCKS {
            self.each_piece(Addr::new(segment, unit * UNIT_BLOCKS), UNIT_BLOCKS, |_, _, places| each(unit, places));
        }
    }

    /// What a segment takes of the devices: where, and how many blocks.
    pub fn shares(&self, segment: SegmentNo) -> Vec<(Place, u64)> {
        let mut shares: Vec<(Place, u64)> = Vec::new();
        let mut add = |count: u32, places: &[Place]| {
            for place in places {
                let last = shares.iter_mut().rev().find(|(p, _)| p.device == place.device);
                match last {
                    Some((p, blocks)) if p.block + *blocks == place.block => *blocks += u64::from(count),
                    _ => shares.push((*place, u64::from(count))),
                }
            }
        };
        let rows = self.rows_of(segment);
        for row in (0..rows).filter_map(|n| self.row(segment, n)) {
            row.units.iter().chain([&row.parity]).for_each(|p| add(UNIT_BLOCKS, &[*p]));
        }
        if rows == 0 {
            self.each_piece(Addr::new(segment, 0), self.segment_blocks, |_, count, places| add(count, places));
        }
        shares
    }

    /// Blocks of a segment that fill one unit on each of its devices, about.
    pub fn row_blocks(&self, segment: SegmentNo) -> u32 {
        let units = self
            .band(segment)
            .map_or(1, |b| (b.members.len() as u32 - u32::from(b.parity)) / u32::from(b.copies.max(1)));
        units.max(1) * UNIT_BLOCKS
    }

    /// Devices that a segment may lie on.
    pub fn devices_of(&self, segment: SegmentNo) -> Vec<u16> {
        self.band(segment).map_or_else(Vec::new, |b| b.members.iter().map(|m| u16::from(m.0)).collect())
    }

    /// The band of a segment that has neither copies nor parity.
    fn plain_band(&self, segment: SegmentNo) -> Option<&Band> {
        self.band(segment).filter(|b| is_plain(b))
    }

    /// Whether all of a segment lies on avoided devices.
    pub fn is_avoided(&self, segment: SegmentNo, avoided: Avoided) -> bool {
        !avoided.is_empty() && self.plain_band(segment).is_some_and(|b| is_wholly(b, avoided))
    }

    /// The numbers of the segments of which all lies on avoided devices.
    pub fn avoided_numbers(&self, avoided: Avoided) -> Vec<Range<u64>> {
        let those = self.bands.iter().filter(|b| !avoided.is_empty() && is_plain(b) && is_wholly(b, avoided));
        those.map(|b| b.first.0..b.end()).collect()
    }

    /// The numbers of the segments on other devices than this one, where that lies on one device alone.
    pub fn numbers_apart(&self, segment: SegmentNo) -> Vec<Range<u64>> {
        let Some([(device, _)]) = self.plain_band(segment).map(|b| &b.members[..]) else { return Vec::new() };
        let apart = self.bands.iter().filter(|b| b.members.iter().all(|(d, _)| d != device));
        apart.map(|b| b.first.0..b.end()).collect()
    }

    /// Blocks from here on, up to the end of the segment or to the first on an avoided device.
    pub fn free_run(&self, segment: SegmentNo, block: u32, avoided: Avoided) -> u32 {
        let rest = self.segment_blocks.saturating_sub(block);
        let Some(band) = self.plain_band(segment).filter(|_| !avoided.is_empty()) else { return rest };
        let (width, units) = (band.members.len() as u64, u64::from(segment_units(self.segment_blocks)));
        let first = (segment.0 - band.first.0) * units;
        let is_avoided =
            |unit: u32| avoided.has(u16::from(band.members[((first + u64::from(unit)) % width) as usize].0));
        let end = (block / UNIT_BLOCKS..self.segment_blocks.div_ceil(UNIT_BLOCKS)).find(|unit| is_avoided(*unit));
        end.map_or(rest, |unit| (unit * UNIT_BLOCKS).saturating_sub(block))
    }

    /// Where in a segment a partial may begin that does not begin at `block`: there, units before it are left out.
    pub fn jumps(&self, segment: SegmentNo, block: u32) -> impl Iterator<Item = u32> + use<> {
        let width = self.plain_band(segment).map_or(0, |b| b.members.len() as u32);
        let units = if width > 1 { width } else { 0 };
        let (first, end) = (block / UNIT_BLOCKS + 1, self.segment_blocks);
        (first..first + units).map(|unit| unit * UNIT_BLOCKS).take_while(move |b| *b < end)
    }

    /// The most blocks that lie together without an avoided device, in the band where that is least.
    pub fn longest_run(&self, avoided: Avoided) -> u32 {
        let runs = self.bands.iter().filter(|b| is_plain(b) && !is_wholly(b, avoided)).map(|b| {
            let (mut longest, mut run) = (0, 0);
            // Twice around, since a run may go over the end.
            for (device, _) in b.members.iter().chain(&b.members) {
                run = if avoided.has(u16::from(*device)) { 0 } else { run + 1 };
                longest = longest.max(run);
            }
            if longest as usize >= b.members.len() { self.segment_blocks } else { longest * UNIT_BLOCKS }
        });
        runs.min().unwrap_or(self.segment_blocks).min(self.segment_blocks)
    }

    /// Whether each block of the volume has a copy on a device that is `there`.
    pub fn is_whole(&self, there: impl Fn(u16) -> bool) -> bool {
        self.bands.iter().all(|b| {
            let width = b.members.len();
            if b.parity {
                return b.members.iter().filter(|m| !there(u16::from(m.0))).count() <= 1;
            }
            let copies = usize::from(b.copies);
            // The pattern repeats after as many units as there are devices.
            (0..width).all(|unit| (0..copies).any(|c| there(u16::from(b.members[(unit * copies + c) % width].0))))
        })
    }
}

/// Whether a band has one copy of everything, and no parity: others need all their devices for each write.
fn is_plain(band: &Band) -> bool {
    band.copies == 1 && !band.parity
}

/// Whether all of a band lies on avoided devices.
fn is_wholly(band: &Band, avoided: Avoided) -> bool {
    band.members.iter().all(|(device, _)| avoided.has(u16::from(*device)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn band(first: u64, segments: u64, copies: u8, members: &[(u8, u32)]) -> Band {
        Band { first: SegmentNo(first), segments, copies, parity: false, members: members.to_vec() }
    }

    /// Every unit and every parity has a place of its own, those of a row are on different devices, and a part of the
    /// band that begins later says the same of each row.
    #[test]
    fn rows_have_their_places() {
        for (width, segment_blocks) in [(2, 64), (3, 32), (3, 64), (4, 64), (4, 256), (5, 64), (5, 512), (9, 128)] {
            let members: Vec<(u8, u32)> = (0..width).map(|d| (d, 33 + u32::from(d) * 2)).collect();
            let whole = Band { parity: true, ..band(0, 7, 1, &members) };
            let later = Band { first: SegmentNo(3), ..whole.part(3, 4, segment_blocks).unwrap() };
            let (l, later) =
                (Layout::new(segment_blocks, vec![whole.clone()]), Layout::new(segment_blocks, vec![later]));
            let mut used = BTreeMap::new();
            for segment in (0..7).map(SegmentNo) {
                let mut units = 0;
                for number in 0..l.rows_of(segment) {
                    let row = l.row(segment, number).unwrap();
                    assert_eq!(row.first_unit, units);
                    units += row.units.len() as u32;
                    let mut devices = std::collections::BTreeSet::new();
                    for p in row.units.iter().chain([&row.parity]) {
                        assert!(devices.insert(p.device), "two of a row on a device");
                        assert_eq!(used.insert((p.device, p.block), segment), None);
                    }
                    assert!(row.units.iter().zip(&row.aside).all(|(p, aside)| p.device != *aside));
                    if segment.0 >= 3 {
                        assert_eq!(later.row(segment, number), Some(row));
                    }
                }
                assert_eq!(units, segment_blocks / UNIT_BLOCKS);
            }
            for (column, (device, start)) in members.iter().enumerate() {
                let own: Vec<u64> = used.keys().filter(|k| k.0 == u16::from(*device)).map(|k| k.1).collect();
                assert!(own.iter().all(|b| *b >= AREA_BLOCKS + u64::from(start * UNIT_BLOCKS)));
                assert!(own.iter().all(|b| b + u64::from(UNIT_BLOCKS) <= whole.end_block(column, segment_blocks)));
            }
        }
    }

    #[test]
    fn parity_goes_round() {
        let members: Vec<(u8, u32)> = (0..4).map(|d| (d, 33)).collect();
        for segment_blocks in [64, 192, 256, 4096] {
            let l = Layout::new(segment_blocks, vec![Band { parity: true, ..band(0, 64, 1, &members) }]);
            let mut parity = [0u32; 4];
            for row in (0..64).flat_map(|s| (0..l.rows_of(SegmentNo(s))).map(move |n| (s, n))) {
                parity[usize::from(l.row(SegmentNo(row.0), row.1).unwrap().parity.device)] += 1;
            }
            let (least, most) = (parity.iter().min().unwrap(), parity.iter().max().unwrap());
            assert!(most * 2 <= least * 3, "{segment_blocks}: {parity:?}");
        }
    }

    fn pieces(l: &Layout, addr: Addr, blocks: u32) -> Vec<(u32, u32, Vec<Place>)> {
        let mut out = Vec::new();
        l.each_piece(addr, blocks, |from, count, places| out.push((from, count, places.to_vec())));
        out
    }

    #[test]
    fn one_device_is_as_it_was() {
        let l = Layout::new(24, vec![band(0, 10, 1, &[(0, 0)])]);
        for (segment, block) in [(0, 0), (3, 23), (9, 5)] {
            let want = nenrin_format::superblock::segment_block(segment, 24) + u64::from(block);
            let addr = Addr::new(SegmentNo(u64::from(segment)), block);
            assert_eq!(pieces(&l, addr, 1), [(0, 1, vec![Place { device: 0, block: want }])]);
        }
        assert!(l.contains(Addr::new(SegmentNo(9), 0), 24) && !l.contains(Addr::new(SegmentNo(9), 1), 24));
        assert!(!l.contains(Addr::new(SegmentNo(10), 0), 1));
    }

    /// Every place of every copy is used once, within what the band has, and copies are apart.
    #[test]
    fn no_two_blocks_share_a_place() {
        for (width, copies) in [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2), (5, 2)] {
            let members: Vec<(u8, u32)> = (0..width).map(|d| (d, u32::from(d) * 3)).collect();
            for segment_blocks in [32, 64, 128] {
                let first = band(0, 5, copies, &members);
                let rows = nenrin_format::superblock::rows;
                let taken = |n| rows(n, segment_blocks, u32::from(width), u32::from(copies), false) as u32;
                let (five, two) = (taken(5), taken(2));
                let behind: Vec<(u8, u32)> = members.iter().map(|(d, s)| (*d, s + five)).collect();
                let l = Layout::new(segment_blocks, vec![first.clone(), band(5, 2, copies, &behind)]);
                let mut used: BTreeMap<(u16, u64), Addr> = BTreeMap::new();
                for segment in 0..7 {
                    let start = Addr::new(SegmentNo(segment), 0);
                    for (from, count, places) in pieces(&l, start, segment_blocks) {
                        assert_eq!(places.len(), usize::from(copies));
                        assert!(copies == 1 || places[0].device != places[1].device);
                        for p in places {
                            for i in 0..count {
                                let before = used.insert((p.device, p.block + u64::from(i)), start.add(from + i));
                                assert_eq!(before, None, "width {width}, copies {copies}");
                            }
                        }
                    }
                }
                for (column, (device, start)) in members.iter().enumerate() {
                    let own: Vec<u64> = used.keys().filter(|k| k.0 == u16::from(*device)).map(|k| k.1).collect();
                    // A segment can have fewer units than there are devices.
                    let Some(last) = own.last() else { continue };
                    let end = AREA_BLOCKS + u64::from((start + five + two) * UNIT_BLOCKS);
                    assert!(first.end_block(column, segment_blocks) <= end);
                    assert!(own[0] == AREA_BLOCKS + u64::from(start * UNIT_BLOCKS) && *last < end);
                }
            }
        }
    }

    #[test]
    fn a_pair_holds_a_request_in_one_piece_on_each() {
        let l = Layout::new(128, vec![band(0, 5, 2, &[(0, 0), (1, 7)])]);
        let mut runs = [Runs::default(), Runs::default()];
        l.each_piece(Addr::new(SegmentNo(2), 3), 90, |from, count, places| {
            for (runs, place) in runs.iter_mut().zip(places) {
                runs.add(*place, from, count);
            }
        });
        for (device, runs) in runs.iter().enumerate() {
            assert!(matches!(&runs.0[..], [r] if r.is_whole(90) && usize::from(r.device) == device));
        }
    }

    #[test]
    fn units_of_a_stripe_are_merged_up_to_a_limit() {
        let l = Layout::new(4096, vec![band(0, 5, 1, &[(0, 0), (1, 0)])]);
        let mut runs = Runs::default();
        l.each_piece(Addr::new(SegmentNo(1), 0), 256, |from, count, places| runs.add(places[0], from, count));
        let shape: Vec<_> = runs.0.iter().map(|r| (r.device, r.blocks, r.spans.len())).collect();
        assert_eq!(shape, [(0, 128, 8), (1, 128, 8)]);
        let mut runs = Runs::default();
        l.each_piece(Addr::new(SegmentNo(1), 0), 1024, |from, count, places| runs.add(places[0], from, count));
        assert!(runs.0.iter().all(|r| r.blocks == MERGE_BLOCKS) && runs.0.len() == 4);
    }

    /// Decision 0026: what leaves devices out stands where it is looked for.
    #[test]
    fn units_of_avoided_devices_are_left_out() {
        for width in 2..=5u8 {
            let members: Vec<(u8, u32)> = (0..width).map(|d| (d, 0)).collect();
            let l = Layout::new(100, vec![band(0, 3, 1, &members)]);
            for mask in 1..(1 << width) - 1 {
                let avoided = Avoided(mask);
                let mut longest = 0;
                for (segment, block) in (0..3).flat_map(|s| (0..100).map(move |b| (SegmentNo(s), b))) {
                    let mut here = None;
                    l.each_piece(Addr::new(segment, block), 1, |_, _, places| here = Some(places[0].device));
                    let run = l.free_run(segment, block, avoided);
                    assert_eq!(run == 0, avoided.has(here.unwrap()), "{width} {mask} {segment} {block}");
                    longest = longest.max(run);
                    // There is a place within reach, unless the segment ends before.
                    let reach = l.jumps(segment, block).any(|b| l.free_run(segment, b, avoided) > 0);
                    assert!(reach || block / UNIT_BLOCKS + u32::from(width) >= 100 / UNIT_BLOCKS);
                }
                assert!(l.longest_run(avoided) >= longest.min(16));
                assert!(!l.is_avoided(SegmentNo(0), avoided) && l.avoided_numbers(avoided).is_empty());
            }
            assert!(l.is_avoided(SegmentNo(1), Avoided((1 << width) - 1)));
        }
        let single = Layout::new(64, vec![band(0, 3, 1, &[(0, 0)]), band(3, 4, 1, &[(1, 0)])]);
        assert!(single.is_avoided(SegmentNo(2), Avoided(1)) && !single.is_avoided(SegmentNo(3), Avoided(1)));
        let (unwanted, apart) = (single.avoided_numbers(Avoided(2)), single.numbers_apart(SegmentNo(5)));
        assert!(unwanted.len() == 1 && unwanted[0] == (3..7) && apart.len() == 1 && apart[0] == (0..3));
        assert_eq!((single.jumps(SegmentNo(0), 0).count(), single.longest_run(Avoided(1))), (0, 64));
        let pair = Layout::new(64, vec![band(0, 3, 2, &[(0, 0), (1, 0)])]);
        assert!(!pair.is_avoided(SegmentNo(0), Avoided(3)) && pair.free_run(SegmentNo(0), 5, Avoided(1)) == 59);
    }

    #[test]
    fn what_can_be_lost() {
        let lost = |l: &Layout, gone: &[u16]| !l.is_whole(|d| !gone.contains(&d));
        let pair = |width: u8| Layout::new(64, vec![band(0, 5, 2, &(0..width).map(|d| (d, 0)).collect::<Vec<_>>())]);
        assert!(!lost(&pair(2), &[0]) && !lost(&pair(2), &[1]) && lost(&pair(2), &[0, 1]));
        // Four: two pairs.
        assert!(
            !lost(&pair(4), &[0, 2]) && lost(&pair(4), &[0, 1]) && lost(&pair(4), &[2, 3]) && !lost(&pair(4), &[1, 2])
        );
        // Three: each two share something.
        assert!(!lost(&pair(3), &[2]) && lost(&pair(3), &[0, 1]) && lost(&pair(3), &[1, 2]) && lost(&pair(3), &[0, 2]));
        let stripe = Layout::new(64, vec![band(0, 5, 1, &[(0, 0), (1, 0)])]);
        assert!(lost(&stripe, &[1]));
    }
}
