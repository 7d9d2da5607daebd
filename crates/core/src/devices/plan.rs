//! How segments should lie on given devices, and the way there from how they lie: pure functions.
//!
//! The way is a fixed point: of the bands there are, what lies as it should stays; the rest *goes*, from the far end of the
//! devices to their beginning; what becomes free is laid as it should be. Where a way was cut off, the next step follows
//! from the bands alone.
//!
//! Invariants
//! 1. A segment that stays keeps its number and its place.
//! 2. Bands never share a place, nor a number.

use nenrin_format::SegmentNo;
use nenrin_format::row_log::ROW_LOG_UNITS;
use nenrin_format::superblock::{
    AREA_BLOCKS, BANDS_MAX, Band, NUMBERS_UNUSED_MAX, Profile, UNIT_BLOCKS, cells_of_segment, rows, segments_on,
};
use std::ops::Range;

/// Bands for devices of so many blocks each; 0 for those that are not to be used.
pub(crate) fn bands_for(profile: Profile, blocks: &[u64], segment_blocks: u32) -> Vec<Band> {
    match profile {
        Profile::Single => bands_single(blocks, segment_blocks),
        Profile::Stripe => bands_wide(blocks, segment_blocks, 1, false),
        Profile::Mirror => bands_wide(blocks, segment_blocks, 2, false),
        Profile::Parity => bands_wide(blocks, segment_blocks, 1, true),
    }
}

/// Each device for itself.
fn bands_single(blocks: &[u64], segment_blocks: u32) -> Vec<Band> {
    let mut first = 0;
    let mut bands = Vec::new();
    for (i, have) in blocks.iter().enumerate() {
        let segments = segments_on(*have, segment_blocks);
        if segments > 0 {
            bands.push(Band {
                first: SegmentNo(first),
                segments,
                copies: 1,
                parity: false,
                members: vec![(i as u8, 0)],
            });
            first += segments;
        }
    }
    bands
}

/// All devices as far as the smallest of them goes, then the larger ones as far as they go together.
fn bands_wide(blocks: &[u64], segment_blocks: u32, copies: u8, parity: bool) -> Vec<Band> {
    let least = if parity { 2 } else { usize::from(copies) };
    let units: Vec<u64> = blocks.iter().map(|b| b.saturating_sub(2 * AREA_BLOCKS) / u64::from(UNIT_BLOCKS)).collect();
    let mut bands: Vec<Band> = Vec::new();
    let (mut first, mut taken) = (0, if parity { u64::from(ROW_LOG_UNITS) } else { 0 });
    while bands.len() < BANDS_MAX {
        let members: Vec<(u8, u32)> = (0..units.len())
            .filter(|i| units[*i] > taken)
            .filter_map(|i| Some((i as u8, u32::try_from(taken).ok()?)))
            .collect();
        if members.len() < least {
            break;
        }
        let Some(end) = members.iter().map(|m| units[usize::from(m.0)]).min() else { break };
        let (width, copies) = (members.len() as u32, u32::from(copies));
        let cells = (end - taken) * u64::from(width);
        let segments = cells / cells_of_segment(segment_blocks, width, copies, parity);
        taken = if segments == 0 { end } else { taken + rows(segments, segment_blocks, width, copies, parity) };
        if segments > 0 {
            bands.push(Band { first: SegmentNo(first), segments, copies: copies as u8, parity, members });
            first += segments;
        } else if width as usize == least {
            break;
        }
    }
    bands
}

/// A part of a target band that lies there already.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// Which target band, and which of its segments.
    target: usize,
    range: Range<u64>,
    /// Number of the first.
    number: u64,
}

/// How segments lie, and how they should.
pub(crate) struct Way<'a> {
    pub bands: &'a [Band],
    pub target: &'a [Band],
    /// Whose numbers are not to be given, besides those of `bands`.
    avoid: &'a [Band],
    segment_blocks: u32,
}

impl<'a> Way<'a> {
    pub fn new(bands: &'a [Band], target: &'a [Band], segment_blocks: u32) -> Self {
        Self { bands, target, avoid: &[], segment_blocks }
    }
}

impl Way<'_> {
    /// At which segment of `target` a band begins that lies by the same rule.
    fn offset(&self, target: &Band, band: &Band) -> Option<i64> {
        if target.copies != band.copies || target.parity != band.parity || target.members.len() != band.members.len() {
            return None;
        }
        let (device, start) = *band.members.first()?;
        let column = target.members.iter().position(|m| m.0 == device)?;
        let rows = i64::from(start) - i64::from(target.members[column].1);
        let cells = rows * target.members.len() as i64 + column as i64;
        let each = target.cells_of(1, self.segment_blocks) as i64;
        (cells % each == 0 && target.members_from(cells)? == band.members).then_some(cells / each)
    }

    /// What of a band lies as it should.
    fn part_of(&self, band: &Band) -> Option<Part> {
        self.target.iter().enumerate().find_map(|(target, t)| {
            let offset = self.offset(t, band)?;
            let (from, to) = (offset.max(0), (offset + band.segments as i64).min(t.segments as i64));
            let number = (band.first.0 as i64 + from - offset) as u64;
            (from < to).then_some(Part { target, range: from as u64..to as u64, number })
        })
    }

    fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = self.bands.iter().filter_map(|b| self.part_of(b)).collect();
        parts.sort_by_key(|p| (p.target, p.range.start));
        parts
    }

    /// Segments that have to go.
    pub fn leaving(&self) -> u64 {
        let stay: u64 = self.parts().iter().map(|p| p.range.end - p.range.start).sum();
        self.bands.iter().map(|b| b.segments).sum::<u64>() - stay
    }

    /// Segments that have to go, those at the far end of the devices first.
    pub fn order(&self) -> Vec<SegmentNo> {
        let mut out: Vec<(u64, u64)> = Vec::new();
        for band in self.bands {
            let stays = self.part_of(band).map_or(0..0, |p| p.number..p.number + p.range.end - p.range.start);
            let (width, each) = (band.members.len() as u64, band.cells_of(1, self.segment_blocks));
            let farthest = |segment: u64| {
                let last = (segment + 1) * each - 1;
                let column = |(j, m): (usize, &(u8, u32))| u64::from(m.1) + last.saturating_sub(j as u64) / width;
                band.members.iter().enumerate().map(column).max().unwrap_or(0)
            };
            let goes = (0..band.segments).filter(|l| !stays.contains(&(band.first.0 + l)));
            out.extend(goes.map(|l| (farthest(l), band.first.0 + l)));
        }
        out.sort_unstable_by_key(|place| std::cmp::Reverse(*place));
        out.into_iter().map(|(_, number)| SegmentNo(number)).collect()
    }

    /// The bands without segments that nothing needs; `None` when they would be too many.
    pub fn without(&self, gone: impl Fn(SegmentNo) -> bool) -> Option<Vec<Band>> {
        let mut out: Vec<Band> = Vec::new();
        for band in self.bands {
            let mut from = None;
            for l in 0..=band.segments {
                let stays = l < band.segments && !gone(SegmentNo(band.first.0 + l));
                match (from, stays) {
                    (None, true) => from = Some(l),
                    (Some(start), false) => {
                        let part = band.part(start as i64, l - start, self.segment_blocks)?;
                        out.push(Band { first: SegmentNo(band.first.0 + start), ..part });
                        from = None;
                    }
                    _ => {}
                }
            }
        }
        (out.len() <= BANDS_MAX).then_some(out)
    }

    /// `bands`, which are some of those there are, with whatever of the target fits between them; `None` when nothing does.
    /// Numbers of those there are do not get another meaning by that.
    pub fn grown(&self, bands: &[Band]) -> Option<Vec<Band>> {
        let way = Way { bands, avoid: self.bands, ..*self };
        let mut out = bands.to_vec();
        let mut grew = false;
        for (target, hull) in way.missing() {
            for run in way.free_runs(target, &hull) {
                grew |= way.add(&mut out, target, run, &hull);
            }
        }
        grew.then(|| self.merged(out))
    }

    /// What of each target band does not lie there: its number, and which segments.
    fn missing(&self) -> Vec<(usize, Range<u64>)> {
        let parts = self.parts();
        let mut out = Vec::new();
        for (target, t) in self.target.iter().enumerate() {
            let mut from = 0;
            for p in parts.iter().filter(|p| p.target == target) {
                if p.range.start > from {
                    out.push((target, from..p.range.start));
                }
                from = from.max(p.range.end);
            }
            if from < t.segments {
                out.push((target, from..t.segments));
            }
        }
        out
    }

    /// Runs of these segments of a target band whose places nobody has.
    fn free_runs(&self, target: usize, hull: &Range<u64>) -> Vec<Range<u64>> {
        let t = &self.target[target];
        let (width, each) = (t.members.len() as u64, t.cells_of(1, self.segment_blocks));
        let mut taken: Vec<Range<u64>> = Vec::new();
        for (column, (device, start)) in t.members.iter().enumerate() {
            for band in self.bands {
                let Some(other) = band.members.iter().position(|m| m.0 == *device) else { continue };
                let (first, units) = band.units(other, self.segment_blocks);
                let (from, to) = (first.max(u64::from(*start)), first + units);
                if from < to {
                    let segment = |unit: u64| ((unit - u64::from(*start)) * width + column as u64) / each;
                    taken.push(segment(from)..segment(to - 1) + 1);
                }
            }
        }
        taken.sort_unstable_by_key(|r| r.start);
        let mut runs = Vec::new();
        let mut from = hull.start;
        for r in taken {
            if r.start > from {
                runs.push(from..r.start.min(hull.end));
            }
            from = from.max(r.end);
        }
        runs.push(from..hull.end);
        runs.retain(|r| r.start < r.end);
        runs
    }

    /// Adds a run of a target band, `hull` being all that is missing around it: next to what lies there already, where its
    /// numbers are free, else as a band of its own.
    fn add(&self, out: &mut Vec<Band>, target: usize, mut run: Range<u64>, hull: &Range<u64>) -> bool {
        let t = &self.target[target];
        let before = out.clone();
        for p in self.parts().iter().filter(|p| p.target == target) {
            let Some(i) = out.iter().position(|b| (b.first.0..b.end()).contains(&p.number)) else { continue };
            let end = p.number + p.range.end - p.range.start;
            if p.range.end == run.start && end == out[i].end() {
                let room = self.numbers_above(out, end);
                let more = room.min(run.end - run.start);
                out[i].segments += more;
                run.start += more;
            } else if p.range.start == run.end && p.number == out[i].first.0 {
                let room = self.numbers_below(out, out[i].first.0);
                let more = room.min(run.end - run.start);
                if let Some(part) = out[i].part(-(more as i64), out[i].segments + more, self.segment_blocks) {
                    out[i] = Band { first: SegmentNo(out[i].first.0 - more), ..part };
                    run.end -= more;
                }
            }
        }
        if run.start < run.end && out.len() < BANDS_MAX {
            let number = self.numbers_for(out, hull.end - hull.start) + (run.start - hull.start);
            let part = t.part(run.start as i64, run.end - run.start, self.segment_blocks);
            let known: u64 = out.iter().map(|b| b.segments).sum();
            if let Some(part) = part.filter(|_| number < known + NUMBERS_UNUSED_MAX) {
                out.push(Band { first: SegmentNo(number), ..part });
                out.sort_by_key(|b| b.first);
            }
        }
        *out != before
    }

    /// Free numbers from this one on.
    fn numbers_above(&self, out: &[Band], from: u64) -> u64 {
        let taken = out.iter().chain(self.avoid).filter(|b| b.end() > from);
        taken.map(|b| b.first.0.saturating_sub(from)).min().unwrap_or(u64::MAX)
    }

    /// Free numbers right before this one.
    fn numbers_below(&self, out: &[Band], to: u64) -> u64 {
        let taken = out.iter().chain(self.avoid).filter(|b| b.first.0 < to);
        taken.map(|b| to.saturating_sub(b.end())).min().unwrap_or(to)
    }

    /// The first of so many numbers that are free, and that nothing will want to grow into.
    fn numbers_for(&self, out: &[Band], count: u64) -> u64 {
        let way = Way { bands: out, ..*self };
        let mut taken: Vec<Range<u64>> = out.iter().chain(self.avoid).map(|b| b.first.0..b.end()).collect();
        for (target, hull) in way.missing() {
            for p in way.parts().iter().filter(|p| p.target == target) {
                if p.range.start == hull.end {
                    taken.push(p.number.saturating_sub(hull.end - hull.start)..p.number);
                } else if p.range.end == hull.start {
                    let end = p.number + p.range.end - p.range.start;
                    taken.push(end..end + hull.end - hull.start);
                }
            }
        }
        taken.sort_unstable_by_key(|r| r.start);
        let mut from = 0;
        for r in taken {
            if r.start >= from + count {
                break;
            }
            from = from.max(r.end);
        }
        from
    }

    /// Neighbours that are one band.
    fn merged(&self, bands: Vec<Band>) -> Vec<Band> {
        let mut out: Vec<Band> = Vec::new();
        for band in bands {
            if let Some(last) =
                out.last_mut().filter(|l| l.end() == band.first.0 && l.copies == band.copies && l.parity == band.parity)
            {
                let next = last.part(last.segments as i64, 1, self.segment_blocks);
                if next.is_some_and(|n| n.members == band.members) {
                    last.segments += band.segments;
                    continue;
                }
            }
            out.push(band);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::layout::{Layout, Place};
    use nenrin_format::superblock::{DeviceEntry, Superblock};
    use std::collections::BTreeMap;

    const SEGMENT: u32 = 64;

    /// Every place that segments have, told by segment and unit.
    fn places(bands: &[Band]) -> BTreeMap<(u64, u32), Vec<Place>> {
        let layout = Layout::new(SEGMENT, bands.to_vec());
        let mut out = BTreeMap::new();
        for number in layout.numbers().into_iter().flatten() {
            for row in (0..layout.rows_of(SegmentNo(number))).filter_map(|n| layout.row(SegmentNo(number), n)) {
                out.insert((number, 1_000_000 + row.number), vec![row.parity]);
            }
            layout.each_unit(SegmentNo(number), |unit, places| {
                out.insert((number, unit), places.to_vec());
            });
        }
        out
    }

    /// No place is used twice, none by a device that ends before it.
    fn is_sound(bands: &[Band], blocks: &[u64]) {
        let devices = blocks.iter().map(|b| DeviceEntry::active([0; 16], *b, 1)).collect();
        let root = super::super::tests::superblock();
        let root = Superblock { segment_blocks: SEGMENT, devices, bands: bands.to_vec(), ..root };
        assert_eq!(root.validate(), Ok(()), "{bands:?}");
        assert!(!bands.is_empty() && bands.len() <= BANDS_MAX);
        assert!(bands.windows(2).all(|w| w[0].end() <= w[1].first.0), "{bands:?}");
        let mut used = BTreeMap::new();
        for (whose, places) in places(bands) {
            for p in places {
                assert_eq!(used.insert((p.device, p.block), whose), None, "{bands:?}");
                assert!(p.block + u64::from(UNIT_BLOCKS) <= blocks[usize::from(p.device)] - AREA_BLOCKS, "{bands:?}");
            }
        }
    }

    /// Goes from one to the other, `at_once` segments in a round; how many were moved from where they were.
    fn go(profile: Profile, from: &[u64], to: &[u64], at_once: usize) -> Vec<Band> {
        let ends: Vec<u64> = from.iter().zip(to).map(|(a, b)| *a.max(b)).collect();
        go_on(bands_for(profile, from, SEGMENT), profile, to, &ends, at_once)
    }

    fn go_on(mut bands: Vec<Band>, profile: Profile, to: &[u64], ends: &[u64], at_once: usize) -> Vec<Band> {
        let target = bands_for(profile, to, SEGMENT);
        is_sound(&bands, ends);
        for round in 0.. {
            assert!(round < 10_000, "no end: {bands:?} to {target:?}");
            let way = Way::new(&bands, &target, SEGMENT);
            let gone: Vec<SegmentNo> = match way.grown(&bands) {
                Some(_) => Vec::new(),
                None => way.order().into_iter().take(at_once).collect(),
            };
            let cut = if gone.is_empty() { Some(bands.clone()) } else { way.without(|no| gone.contains(&no)) };
            let cut = cut.unwrap_or_else(|| panic!("too many: {bands:?} to {target:?}"));
            let next = way.grown(&cut);
            let next = match (next, gone.is_empty()) {
                (Some(next), _) => next,
                (None, false) => cut,
                (None, true) => break,
            };
            let (before, after) = (places(&bands), places(&next));
            for (whose, at) in &before {
                match after.get(whose) {
                    Some(now) => assert_eq!(now, at, "{whose:?} lies elsewhere: {bands:?} {next:?}"),
                    None => assert!(gone.contains(&SegmentNo(whose.0)), "{whose:?} was lost: {bands:?} {next:?}"),
                }
            }
            is_sound(&next, ends);
            bands = next;
        }
        let way = Way::new(&bands, &target, SEGMENT);
        assert_eq!(way.leaving(), 0);
        let count = |bands: &[Band]| bands.iter().map(|b| b.segments).sum::<u64>();
        assert_eq!(count(&bands), count(&target), "{bands:?} {target:?}");
        bands
    }

    /// With room for the row log.
    fn with_log(profile: Profile, lengths: Vec<u64>) -> Vec<u64> {
        let more = if profile == Profile::Parity { u64::from(ROW_LOG_UNITS * UNIT_BLOCKS) } else { 0 };
        lengths.into_iter().map(|n| if n == 0 { 0 } else { n + more }).collect()
    }

    fn device(segments: u64) -> u64 {
        2 * AREA_BLOCKS + segments * u64::from(SEGMENT)
    }

    #[test]
    fn devices_come_and_go_and_change_their_length() {
        let d = |lengths: &[u64]| lengths.iter().map(|n| if *n == 0 { 0 } else { device(*n) }).collect::<Vec<_>>();
        let steps: [(&[u64], &[u64]); 12] = [
            (&[20, 20, 0], &[20, 20, 20]),
            (&[20, 20, 20], &[20, 0, 20]),
            (&[20, 30, 40], &[20, 30, 0]),
            (&[20, 30, 40], &[0, 30, 40]),
            (&[20, 30, 0], &[20, 30, 25]),
            (&[20, 20, 20, 20], &[20, 20, 20, 11]),
            (&[20, 20, 20, 20], &[20, 33, 20, 20]),
            (&[20, 33, 20, 20], &[20, 20, 20, 20]),
            (&[24, 24], &[40, 40]),
            (&[40, 40], &[24, 24]),
            (&[40, 12, 31, 9], &[12, 40, 9, 31]),
            (&[9, 40, 40, 40, 0], &[0, 40, 40, 40, 17]),
        ];
        for profile in [Profile::Single, Profile::Stripe, Profile::Mirror, Profile::Parity] {
            for (from, to) in steps {
                for at_once in [1, 2, 7, 1000] {
                    go(profile, &with_log(profile, d(from)), &with_log(profile, d(to)), at_once);
                }
            }
        }
    }

    #[test]
    fn many_changes_leave_few_bands_and_numbers() {
        let mut seed = 7u64;
        let mut draw = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for profile in [Profile::Single, Profile::Stripe, Profile::Mirror, Profile::Parity] {
            let mut lengths = with_log(profile, vec![device(20), device(20), device(20), 0]);
            let mut bands = bands_for(profile, &lengths, SEGMENT);
            for _ in 0..60 {
                let which = draw(4) as usize;
                let length = if draw(3) == 0 { 0 } else { device(6 + draw(30)) };
                let length = with_log(profile, vec![length])[0];
                let mut to = lengths.clone();
                to[which] = length;
                if to.iter().filter(|b| **b > 0).count() < 2 {
                    continue;
                }
                let ends: Vec<u64> = lengths.iter().zip(&to).map(|(a, b)| *a.max(b)).collect();
                bands = go_on(bands, profile, &to, &ends, 1 + draw(9) as usize);
                lengths = to;
            }
            assert!(bands.last().unwrap().end() < 2000, "{bands:?}");
        }
    }

    #[test]
    fn what_lies_as_it_should_stays() {
        // The second device of two comes after the first: nothing of that moves.
        let bands = bands_for(Profile::Single, &[device(20), device(20)], SEGMENT);
        let target = bands_for(Profile::Single, &[device(20), device(20), device(9)], SEGMENT);
        let way = Way::new(&bands, &target, SEGMENT);
        assert_eq!(way.leaving(), 0);
        assert_eq!(way.grown(&bands).unwrap(), target);
        // A longer device goes on behind its band, under numbers that are free.
        let target = bands_for(Profile::Single, &[device(30), device(20)], SEGMENT);
        let way = Way::new(&bands, &target, SEGMENT);
        let grown = way.grown(&bands).unwrap();
        assert_eq!(grown.iter().map(|b| (b.first.0, b.segments)).collect::<Vec<_>>(), [(0, 20), (20, 20), (40, 10)]);
        assert_eq!(grown[2].members, [(0, 80)]);
    }
}
