//! Files that only the past knows any more, since the leaf that told how they are now is lost: what of their content was still current
//! when they were last told of is gone with it.
//!
//! Invariants
//! 1. A block of which nothing is known never reads as zeros in the past either: it gets an extent of history that says so, from the
//!    last version on that is known.

use super::inodes::LOST_EXTENTS_MAX;
use super::losses::{About, LossKind};
use super::mender::Mender;
use super::salvage::lost_extent;
use crate::breaks::{Break, broken};
use crate::{FileKind, Result};
use nenrin_format::items::{Extent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{BLOCK_BYTES, Cno, EXTENT_BLOCKS_MAX, INLINE_BYTES_MAX, Ino};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::ControlFlow;

const WINDOW: u64 = EXTENT_BLOCKS_MAX as u64;

/// Blocks that an extent has of a file, and when it died.
#[derive(Clone, Copy)]
struct Had {
    from: u64,
    to: u64,
    birth: Cno,
    death: Cno,
}

impl Mender {
    /// All of them.
    pub(super) fn past_gaps(&mut self) -> Result<()> {
        if self.lost.is_empty() || broken(Break::PastReadsZeros) {
            return Ok(());
        }
        for (ino, (death, inode)) in self.known_by_the_past_alone()? {
            self.past_gaps_of(ino, death, &inode)?;
        }
        Ok(())
    }

    /// Regular files that may be lost, and are not there any more: when they were last told of, and how.
    fn known_by_the_past_alone(&self) -> Result<BTreeMap<Ino, (Cno, Inode)>> {
        let mut newest: BTreeMap<Ino, (Cno, Inode)> = BTreeMap::new();
        for tree in self.state.history.iter().map(|t| &t.tree) {
            tree.scan(&self.state.cache, &super::mender::FIRST, &super::mender::LAST, &mut |k, v| {
                let (ino, death) = (Ino(k.ino), Cno(k.death));
                let first = Key::new(ino, Kind::Inode, 0, 0);
                let last = Key { kind: Kind::Extent, fork: u32::MAX, off: u64::MAX, ..first };
                if k.kind == Kind::Inode && newest.get(&ino).is_none_or(|(known, _)| *known < death) {
                    let inode = Inode::decode(v).ok().filter(|i| FileKind::from_mode(i.mode) == FileKind::Regular);
                    if let Some(inode) = inode.filter(|_| self.may_be_lost(&first, &last)) {
                        newest.insert(ino, (death, inode));
                    }
                }
                ControlFlow::Continue(())
            })?;
        }
        let mut out = BTreeMap::new();
        for (ino, known) in newest {
            if self.state.inode(ino)?.is_none() {
                out.insert(ino, known);
            }
        }
        Ok(out)
    }

    fn past_gaps_of(&mut self, ino: Ino, death: Cno, inode: &Inode) -> Result<()> {
        let end = inode.size.div_ceil(BLOCK_BYTES as u64);
        let had = self.past_extents(ino, inode.fork, (0, u64::MAX))?;
        let is_current = |h: &&Had| h.birth < death && h.death >= death;
        let blocks: u64 = had.iter().filter(is_current).map(|h| h.to - h.from).sum();
        let is_inline =
            inode.blocks == 0 && (1..=INLINE_BYTES_MAX as u64).contains(&inode.size) && !self.had_inline(ino, death)?;
        if inode.blocks <= blocks && !is_inline {
            return Ok(());
        }
        let mut marked = 0;
        for (from, to, birth) in unknown(&had, (0, end), death) {
            marked += self.mark_past(ino, inode.fork, (from, to), (birth, death))?;
        }
        if marked > 0 {
            let text = format!("what it was before checkpoint {death} lacks {marked} blocks: reading them is an error");
            self.losses.add(LossKind::PastIncomplete, About::Inode(ino), text);
        }
        Ok(())
    }

    /// Whether the content that was no extent is there.
    fn had_inline(&self, ino: Ino, death: Cno) -> Result<bool> {
        let (from, to) = (Key::new(ino, Kind::Inline, 0, 0), Key::new(ino, Kind::Inline, 0, 0).died(u64::MAX));
        let mut had = false;
        for tree in self.state.history.iter().map(|t| &t.tree) {
            tree.scan(&self.state.cache, &from, &to, &mut |k, _| {
                had |= Cno(k.death) >= death;
                ControlFlow::Continue(())
            })?;
        }
        Ok(had)
    }

    /// What history has of these blocks of a file.
    fn past_extents(&self, ino: Ino, fork: u32, (from, to): (u64, u64)) -> Result<Vec<Had>> {
        let (from, to) =
            (Key::new(ino, Kind::Extent, fork, from / WINDOW * WINDOW), Key::new(ino, Kind::Extent, fork, to - 1));
        let to = to.died(u64::MAX);
        let mut out = Vec::new();
        for tree in self.state.history.iter().map(|t| &t.tree) {
            tree.scan(&self.state.cache, &from, &to, &mut |k, v| {
                if let Ok(e) = Extent::decode(v) {
                    let to = k.off.saturating_add(u64::from(e.blocks));
                    out.push(Had { from: k.off, to, birth: e.birth, death: Cno(k.death) });
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(out)
    }

    /// Says of blocks that nothing is known of them between two checkpoints; of how many.
    fn mark_past(&mut self, ino: Ino, fork: u32, (from, to): (u64, u64), (birth, death): (Cno, Cno)) -> Result<u64> {
        let mut at = from;
        while at < to && birth < death && self.marked < LOST_EXTENTS_MAX {
            let end = ((at / WINDOW + 1) * WINDOW).min(to);
            let Some(history) = self.state.history.last_mut() else { break };
            let key = Key::new(ino, Kind::Extent, fork, at).died(death.0);
            history.tree.insert(&self.state.cache, key, lost_extent(birth, (end - at) as u32).encode().into())?;
            history.deaths = (history.deaths.0.min(death), history.deaths.1.max(death));
            self.marked += 1;
            at = end;
        }
        Ok(at - from)
    }

    /// Parts of a range of which nothing is known now, each with the checkpoint from which on no past version of it is known either.
    pub(super) fn since_known(&self, ino: Ino, fork: u32, (from, to): (u64, u64)) -> Result<Vec<(u64, u64, Cno)>> {
        let had = self.past_extents(ino, fork, (from, to))?;
        let parts = unknown(&had, (from, to), Cno(u64::MAX)).into_iter();
        Ok(parts.map(|(from, to, birth)| (from, to, birth.min(self.state.open_cno))).collect())
    }
}

/// Parts of a range that no extent had just before that death, each with the last death before in it.
fn unknown(had: &[Had], (from, to): (u64, u64), death: Cno) -> Vec<(u64, u64, Cno)> {
    let mut ends: Vec<(u64, bool, Cno)> = Vec::with_capacity(had.len() * 2 + 2);
    for h in had.iter().filter(|h| h.from < to && h.to > from) {
        ends.extend([(h.from.max(from), true, h.death), (h.to.min(to), false, h.death)]);
    }
    ends.extend([(from, true, Cno(1)), (to, false, Cno(1))]);
    ends.sort_unstable();
    let (mut out, mut at): (Vec<(u64, u64, Cno)>, u64) = (Vec::new(), from);
    let mut there: BTreeMap<Cno, usize> = BTreeMap::new();
    for (place, begins, died) in ends {
        let last = there.keys().next_back().copied().unwrap_or(Cno(1));
        if place > at && last < death {
            match out.last_mut() {
                Some(before) if before.1 == at && before.2 == last => before.1 = place,
                _ => out.push((at, place, last)),
            }
        }
        at = place;
        match there.entry(died) {
            entry if begins => *entry.or_insert(0) += 1,
            Entry::Occupied(mut count) if *count.get() > 1 => *count.get_mut() -= 1,
            Entry::Occupied(count) => drop(count.remove()),
            Entry::Vacant(_) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_begins_with_the_last_death() {
        let had = |all: &[(u64, u64, u64)]| -> Vec<Had> {
            all.iter()
                .map(|(from, to, death)| Had { from: *from, to: *to, birth: Cno(1), death: Cno(*death) })
                .collect()
        };
        let of = |all: &[(u64, u64, u64)], death| -> Vec<(u64, u64, u64)> {
            unknown(&had(all), (2, 20), Cno(death)).into_iter().map(|(from, to, birth)| (from, to, birth.0)).collect()
        };
        assert_eq!(of(&[], 9), [(2, 20, 1)]);
        // What died with it, or later, was current then.
        assert_eq!(of(&[(0, 4, 9), (6, 7, 12)], 9), [(4, 6, 1), (7, 20, 1)]);
        assert_eq!(of(&[(0, 4, 9), (2, 8, 5), (6, 30, 3)], 9), [(4, 8, 5), (8, 20, 3)]);
        assert_eq!(of(&[(4, 6, 3), (6, 8, 3), (4, 8, 2)], 9), [(2, 4, 1), (4, 8, 3), (8, 20, 1)]);
        assert_eq!(of(&[(0, 40, 9)], 9), []);
    }
}
