//! For repair: what of the chain is intact behind damage.
//!
//! Invariants
//! 1. Only whole logical segments are given, each in an unbroken run of
//!    partials that are linked to each other.
//! 2. What lies in units that a newer partial left out is nothing, and hides nothing by its length.
//! 3. Where a later epoch began, the one before it ended: what it has of higher
//!    sequence was never acknowledged, or is of a life that recovery cut off.
//! 4. Of an epoch that is not the last, what nothing of it proves to have been durable counts only as far as it is whole.

use super::walk::{Found, Outcome, Walk, is_possible, proves};
use crate::breaks::{Break, broken};
use crate::mounts::Point;
use crate::{Error, Result};
use nenrin_format::partial::{Header, LOGICAL_BEGIN, LOGICAL_END};
use nenrin_format::{Addr, COUNTER_MAX, Epoch, SegmentNo, Seq};
use std::collections::BTreeMap;

/// Partials in sequence, each linked to the one before.
pub(crate) type Island = Vec<Found>;

impl Walk<'_> {
    /// What is intact behind the damage that ended a walk, in order.
    pub fn behind(mut self, log: &Outcome) -> Result<Vec<Island>> {
        let (seq, epoch) = log.stopped;
        let found = self.lives_behind(seq, epoch, log.left)?;
        let durable = Durable::of(&found, self.storage.mounts().points(), (log.vouched, log.durable_seq));
        self.islands(found, &durable)
    }

    /// What is intact behind this sequence, from this epoch on, in order.
    pub fn from(mut self, seq: Seq, epoch: Epoch) -> Result<Vec<Island>> {
        let found = self.lives_behind(seq, epoch, None)?;
        let all = found.iter().map(|f| f.header.durable_seq).max().unwrap_or(seq);
        let durable = Durable::of(&found, self.storage.mounts().points(), (seq, all));
        self.islands(found, &durable)
    }

    /// `left`: what a walk that ended knows of where a later epoch began.
    fn lives_behind(&mut self, seq: Seq, epoch: Epoch, left: Option<(Epoch, Seq)>) -> Result<Vec<Found>> {
        let all = self.all_behind(seq, epoch)?;
        let points = self.storage.mounts().points().iter();
        let known = points.filter(|p| p.uuid == self.at.uuid).map(|p| (p.epoch, p.seq.next()));
        Ok(newest_lives(all, known.chain(left)))
    }

    fn islands(mut self, found: Vec<Found>, durable: &Durable) -> Result<Vec<Island>> {
        let mut islands: Vec<Island> = Vec::new();
        for f in found {
            let linked = islands.last().and_then(|i| i.last()).is_some_and(|last| {
                f.header.seq == last.header.seq.next()
                    && f.header.prev_addr == last.header.addr
                    && f.header.prev_crc == last.crc
            });
            match islands.last_mut() {
                Some(island) if linked => island.push(f),
                _ => islands.push(vec![f]),
            }
        }
        let mut out = Vec::new();
        let mut ended = None;
        for mut island in islands {
            let Some(epoch) = durable.epoch_of(&island).filter(|epoch| Some(*epoch) > ended) else { continue };
            let first = island.iter().position(|f| f.header.flags & LOGICAL_BEGIN != 0);
            island.drain(..first.unwrap_or(island.len()));
            let (unproven, _) = self.first_unproven(&island, durable.seq_of(epoch))?;
            ended = unproven.and_then(|at| island.get(at)).map(|f| f.header.epoch).or(ended);
            island.truncate(unproven.unwrap_or(island.len()));
            while island.last().is_some_and(|f| f.header.flags & LOGICAL_END == 0) {
                island.pop();
            }
            if !island.is_empty() {
                out.push(island);
            }
        }
        Ok(out)
    }

    /// Calls `each` for every intact partial of the volume, of any kind, whichever device has it.
    pub fn each_partial(mut self, each: &mut dyn FnMut(&Header) -> Result<()>) -> Result<()> {
        for segment in self.storage.numbers().into_iter().flatten().map(SegmentNo) {
            let mut found: BTreeMap<Addr, Header> = BTreeMap::new();
            self.each_way(segment, 0, &mut |walk| {
                walk.partials_in(segment, &mut |header| {
                    if found.get(&header.addr).is_none_or(|known| header.is_newer(known)) {
                        found.insert(header.addr, header);
                    }
                })
            })?;
            // What looks like one within another is content, unless it is what came later.
            let mut last: Option<(Addr, Header)> = None;
            for header in found.into_values() {
                if last.as_ref().is_some_and(|(end, whole)| header.addr < *end && !header.is_newer(whole)) {
                    continue;
                }
                each(&header)?;
                last = Some((header.addr.add(header.total_blocks()), header));
            }
        }
        Ok(())
    }

    /// Calls `each` for every intact partial of a segment.
    fn partials_in(&mut self, segment: SegmentNo, each: &mut dyn FnMut(Header)) -> Result<()> {
        let mut block = 0;
        while block < self.storage.segment_blocks {
            block += match self.intact(Addr::new(segment, block)) {
                Ok(Some(header)) => match self.left_out_by(&header)? {
                    Some(start) => start - block,
                    None => {
                        let blocks = header.total_blocks().max(1);
                        each(header);
                        blocks
                    }
                },
                Ok(None) | Err(Error::Device(_)) => 1,
                Err(e) => return Err(e),
            };
        }
        Ok(())
    }

    /// Where a newer partial begins that left out the units in which this one lies.
    fn left_out_by(&mut self, header: &Header) -> Result<Option<u32>> {
        if broken(Break::StaleBelieved) {
            return Ok(None);
        }
        let (segment, block) = (header.addr.segment(), header.addr.block());
        for start in self.storage.jumps(segment, block) {
            match self.intact(Addr::new(segment, start)) {
                Ok(Some(h)) if h.has_left_out(block) && h.is_newer(header) => return Ok(Some(start)),
                Ok(_) | Err(Error::Device(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// Intact partials of the chain with a higher sequence, in no order, from whichever devices have them.
    fn all_behind(&mut self, seq: Seq, epoch: Epoch) -> Result<Vec<Found>> {
        let mut out: BTreeMap<Addr, Found> = BTreeMap::new();
        let mounts = self.mounts.clone();
        for segment in self.storage.numbers().into_iter().flatten().map(SegmentNo) {
            self.each_way(segment, 0, &mut |walk| {
                walk.behind_in(segment, &mut |found| {
                    let possible = found.header.seq.0 < COUNTER_MAX && is_possible(&found.header);
                    let counts = possible
                        && found.header.seq > seq
                        && found.header.epoch >= epoch
                        && proves(&mounts, &found.header);
                    if counts && out.get(&found.header.addr).is_none_or(|known| found.is_better(known)) {
                        out.insert(found.header.addr, found);
                    }
                })
            })?;
        }
        Ok(out.into_values().collect())
    }

    /// Calls `each` for intact partials of the chain in a segment.
    fn behind_in(&mut self, segment: SegmentNo, each: &mut dyn FnMut(Found)) -> Result<()> {
        let mut block = 0;
        while block < self.storage.segment_blocks {
            let addr = Addr::new(segment, block);
            let Some(here) = self.intact(addr)? else {
                block += 1;
                continue;
            };
            if let Some(start) = self.left_out_by(&here)? {
                block = start;
                continue;
            }
            // What lies in the payload of an intact partial is content, whatever it looks like.
            block += here.total_blocks().max(1);
            let Some((header, crc, records)) = self.partial(addr)? else { continue };
            block = addr.block() + header.total_blocks().max(1);
            each(self.found(header, crc, records)?);
        }
        Ok(())
    }
}

/// What is proven of each epoch to have been durable.
struct Durable {
    /// Highest sequences that partials of an epoch state, or that a root says a later mount went on behind.
    by_epoch: BTreeMap<Epoch, Seq>,
    /// The last epoch of which anything was found.
    newest: Epoch,
    /// What was durable before, and all that anything proves.
    known: (Seq, Seq),
}

impl Durable {
    fn of(found: &[Found], points: &[Point], known: (Seq, Seq)) -> Self {
        let mut by_epoch: BTreeMap<Epoch, Seq> = BTreeMap::new();
        for f in found {
            let is_here = |p: &&Point| (p.last_addr, p.last_crc) == (f.header.addr, f.crc);
            let later = points.iter().filter(is_here).map(|p| p.seq).max();
            let seq = f.header.durable_seq.max(later.unwrap_or_default());
            let durable = by_epoch.entry(f.header.epoch).or_default();
            *durable = seq.max(*durable);
        }
        let newest = by_epoch.keys().next_back().copied().unwrap_or_default();
        Self { by_epoch, newest, known }
    }

    /// What was durable of an epoch.
    fn seq_of(&self, epoch: Epoch) -> Seq {
        if epoch >= self.newest || broken(Break::LaterVouches) {
            return self.known.1;
        }
        self.by_epoch.range(..=epoch).map(|(_, seq)| *seq).fold(self.known.0, Seq::max)
    }

    /// The last epoch of an island, unless it lies behind what may never have been, in an epoch that others came after.
    fn epoch_of(&self, island: &Island) -> Option<Epoch> {
        let (first, last) = (island.first()?.header.seq, island.last()?.header.epoch);
        let is_known = last >= self.newest || first <= self.seq_of(last).next() || broken(Break::LivesByFound);
        is_known.then_some(last)
    }
}

/// One partial for each sequence, without what a later epoch has cut off. `known`: where epochs had begun by then, at the latest.
fn newest_lives(all: Vec<Found>, known: impl Iterator<Item = (Epoch, Seq)>) -> Vec<Found> {
    let mut begins: BTreeMap<Epoch, Seq> = BTreeMap::new();
    let found = all.iter().map(|f| (f.header.epoch, f.header.seq));
    for (epoch, seq) in found.chain(known.filter(|_| !broken(Break::LivesByFound))) {
        let begin = begins.entry(epoch).or_insert(seq);
        *begin = seq.min(*begin);
    }
    let cut = |f: &Found| begins.iter().any(|(epoch, begin)| *epoch > f.header.epoch && *begin <= f.header.seq);
    let mut by_seq: BTreeMap<Seq, Found> = BTreeMap::new();
    for f in all.into_iter().filter(|f| !cut(f)) {
        by_seq.entry(f.header.seq).or_insert(f);
    }
    by_seq.into_values().collect()
}
