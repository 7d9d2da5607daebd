//! What a member that was away still has: it is brought up to date with what it missed, and keeps what it had right.
//!
//! Invariants
//! 1. What is alike is not written. Where it is not, what is vouched for and right stays, whoever has it: a device that comes back may be
//!    the only one to have it.
//! 2. Where nothing is right, or nothing vouches, the others have their way; what they cannot read stays as it is.
//! 3. A device that has failed a write or flush may show what it has lost: there what it keeps is written, too.

use super::joining::runs_on;
use super::layout::{Row, Run};
use super::requests::bytes;
use super::roster::Roster;
use super::rows::{ParityStanding, xor};
use super::whole_rows::{block_bytes, moved, read_here};
use super::{Devices, Member};
use crate::mixture::mixed;
use crate::vouched::Vouched;
use nenrin_device::{AlignedBuf, DeviceError, Op};
use nenrin_format::superblock::UNIT_BLOCKS;
use nenrin_format::{Addr, BLOCK_BYTES};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Blocks, with zeros for what is not there.
struct Given {
    bytes: AlignedBuf,
    has: Vec<bool>,
}

impl Given {
    /// What is read as a whole, or else block by block.
    fn read(blocks: u32, whole: impl Fn() -> Option<AlignedBuf>, one: impl Fn(u32) -> Option<AlignedBuf>) -> Self {
        if let Some(bytes) = whole() {
            return Self { bytes, has: vec![true; blocks as usize] };
        }
        let mut this = Self { bytes: AlignedBuf::zeroed(blocks as usize * BLOCK_BYTES), has: Vec::new() };
        for i in 0..blocks {
            let block = one(i);
            this.has.push(block.is_some());
            if let Some(block) = block {
                this.bytes[block_bytes(i)].copy_from_slice(&block);
            }
        }
        this
    }

    fn block(&self, i: u32) -> Option<&[u8]> {
        self.has.get(i as usize).filter(|has| **has).map(|_| &self.bytes[block_bytes(i)])
    }
}

/// A device that is back, and the others.
#[derive(Clone, Copy)]
struct Back<'a> {
    roster: &'a Arc<Roster>,
    joiner: &'a Arc<Member>,
}

/// Some blocks as the others give them, and as the device that is back has them: those that do not lie there are not its own.
struct Both {
    others: Given,
    own: Given,
}

impl Both {
    /// What there would be with its own in their places.
    fn with_own(&self) -> AlignedBuf {
        let mut out = AlignedBuf::padded(&self.others.bytes);
        for i in 0..self.own.has.len() as u32 {
            if let Some(block) = self.own.block(i) {
                out[block_bytes(i)].copy_from_slice(block);
            }
        }
        out
    }

    fn is_unlike(&self, i: u32) -> bool {
        self.own.block(i).is_some_and(|own| self.others.block(i) != Some(own))
    }
}

impl Back<'_> {
    fn read(self, first: Addr, count: u32) -> Both {
        let of = |addr, n| Devices::submit_read_of(self.roster, addr, n, None).wait().ok();
        let others = Given::read(count, || of(first, count), |i| of(first.add(i), 1));
        let size = count as usize;
        let mut own = Given { bytes: AlignedBuf::zeroed(size * BLOCK_BYTES), has: vec![false; size] };
        for run in runs_on(self.roster, self.joiner.index, first, count) {
            let read = self.read_own(run.block, run.blocks);
            let blocks = run.spans.iter().flat_map(|(from, n)| *from..*from + *n);
            for (from, to) in (0..).zip(blocks) {
                if let Some(block) = read.block(from) {
                    own.bytes[block_bytes(to)].copy_from_slice(block);
                    own.has[to as usize] = true;
                }
            }
        }
        Both { others, own }
    }

    /// Blocks that lie in rows: of the others each as the rest of its column gives it, with what the device itself still has of that.
    fn rebuilt(self, first: Addr, count: u32) -> AlignedBuf {
        let mut out = AlignedBuf::zeroed(count as usize * BLOCK_BYTES);
        for (row, within, from, n) in self.roster.layout.rows(first, count) {
            let (begin, blocks) = row.range();
            let units = self.read(begin, blocks);
            let with = units.with_own();
            let parity = match row.parity.device == self.joiner.index {
                true => self.read_own(row.parity.block, UNIT_BLOCKS).bytes,
                false => {
                    Given::read(
                        UNIT_BLOCKS,
                        || read_here(self.roster, row.parity, UNIT_BLOCKS)?.wait().ok(),
                        |i| read_here(self.roster, moved(row.parity, i), 1)?.wait().ok(),
                    )
                    .bytes
                }
            };
            for i in 0..n {
                let (block, c) = (within + i, (within + i) % UNIT_BLOCKS);
                let own = units.own.block(block).map(AlignedBuf::padded);
                let others = (0..blocks).filter(|b| b % UNIT_BLOCKS == c && *b != block).map(|b| &with[block_bytes(b)]);
                let bytes = own.unwrap_or_else(|| xor(others.chain([&parity[block_bytes(c)]])));
                out[block_bytes(from + i)].copy_from_slice(&bytes);
            }
        }
        out
    }

    /// What lies on the device itself.
    fn read_own(self, block: u64, blocks: u32) -> Given {
        let of = |block, n: u32| {
            let op = Op::Read { offset: bytes(block), bytes: n as usize * BLOCK_BYTES };
            self.joiner.submit(op).wait().ok()
        };
        let patience = &self.joiner.patience;
        Given::read(
            blocks,
            || of(block, blocks).inspect(|_| patience.restore()),
            |i| patience.ask(|| of(block + u64::from(i), 1)),
        )
    }
}

impl Both {
    /// So many of these blocks, from this one on.
    fn part(&self, from: u32, blocks: u32) -> Self {
        let range = from as usize..(from + blocks) as usize;
        let of = |given: &Given| Given {
            bytes: AlignedBuf::padded(&given.bytes[range.start * BLOCK_BYTES..range.end * BLOCK_BYTES]),
            has: given.has[range.clone()].to_vec(),
        };
        Self { others: of(&self.others), own: of(&self.own) }
    }

    /// What is vouched for, if the others have it, or it is there with what the device still has.
    fn right(&self, v: &Vouched) -> Option<AlignedBuf> {
        if self.others.is_whole() && v.is(&self.others.bytes) {
            return Some(AlignedBuf::padded(&self.others.bytes));
        }
        let with = self.with_own();
        let is_there = |i| self.own.block(i).or(self.others.block(i)).is_some();
        ((0..v.blocks).all(is_there) && v.is(&with)).then_some(with)
    }
}

/// What is vouched for, each block of it from one of these.
fn put_together<'b>(v: &Vouched, of: impl Fn(u32) -> Vec<Option<&'b [u8]>>) -> Option<AlignedBuf> {
    let parts = (0..v.blocks).map(|i| of(i).into_iter().map(|b| b.map(AlignedBuf::padded)).collect::<Vec<_>>());
    let parts: Vec<_> = parts.collect();
    if parts.iter().any(|part| part.iter().all(Option::is_none)) { None } else { mixed(parts, |bytes| v.is(bytes)) }
}

/// What is vouched for and has some of these blocks.
fn overlapping(vouched: &[Vouched], first: Addr, blocks: u32) -> &[Vouched] {
    let from = vouched.partition_point(|v| v.end() <= first);
    let to = vouched.partition_point(|v| v.addr < first.add(blocks));
    vouched.get(from..to).unwrap_or_default()
}

/// The blocks that two ranges share, counted from the first of each; and how many.
fn shared(v: &Vouched, first: Addr, blocks: u32) -> (u32, u32, u32) {
    let (from, to) = (v.addr.max(first), v.end().min(first.add(blocks)));
    ((from.0 - v.addr.0) as u32, (from.0 - first.0) as u32, (to.0 - from.0) as u32)
}

impl Back<'_> {
    /// What is vouched for, as far as it was read, or else anew.
    fn read_vouched(self, v: &Vouched, first: Addr, read: &Both) -> Both {
        let is_within = first <= v.addr && v.end() <= first.add(read.own.has.len() as u32);
        if is_within { read.part((v.addr.0 - first.0) as u32, v.blocks) } else { self.read(v.addr, v.blocks) }
    }

    /// What is vouched for, as it is in one way, or each block of it in some way: a bad block of another device may be under the same
    /// checksum as one that this device has right.
    fn right(self, v: &Vouched, both: &Both) -> Option<AlignedBuf> {
        both.right(v).or_else(|| {
            let ways = self.other_ways(v.addr, v.blocks);
            let of_ways = |i: u32| ways.iter().map(move |way| way.block(i));
            put_together(v, |i| [both.others.block(i), both.own.block(i)].into_iter().chain(of_ways(i)).collect())
        })
    }

    /// Blocks in the other ways in which the others give them.
    fn other_ways(self, first: Addr, count: u32) -> Vec<Given> {
        if self.roster.in_rows(first) {
            return vec![Given { bytes: self.rebuilt(first, count), has: vec![true; count as usize] }];
        }
        let mut there = BTreeSet::new();
        self.roster.layout.each_piece(first, count, |_, _, places| {
            let active = places.iter().map(|p| p.device).filter(|d| self.roster.is_active(*d));
            there.extend(active);
        });
        let around = |avoid: u16| {
            let of = |addr, n| Devices::submit_read_of(self.roster, addr, n, Some(avoid)).wait().ok();
            Given::read(count, || of(first, count), |i| of(first.add(i), 1))
        };
        if there.len() > 1 { there.into_iter().map(around).collect() } else { Vec::new() }
    }

    fn decide(self, both: &Both, first: Addr, vouched: &[Vec<Vouched>; 2]) -> Decided {
        let count = both.own.has.len() as u32;
        let mut bytes = AlignedBuf::padded(&both.others.bytes);
        let mut lost: Vec<bool> = both.others.has.iter().map(|has| !has).collect();
        for i in (0..count).filter(|i| lost[*i as usize]) {
            if let Some(own) = both.own.block(i) {
                bytes[block_bytes(i)].copy_from_slice(own);
            }
        }
        for v in vouched.iter().flat_map(|all| overlapping(all, first, count)) {
            let (from, to, n) = shared(v, first, count);
            if (to..to + n).all(|i| !lost[i as usize] && !both.is_unlike(i)) {
                continue;
            }
            let Some(right) = self.right(v, &self.read_vouched(v, first, both)) else { continue };
            for i in 0..n {
                bytes[block_bytes(to + i)].copy_from_slice(&right[block_bytes(from + i)]);
                lost[(to + i) as usize] = false;
            }
        }
        for (row, within, from, n) in self.roster.layout.rows(first, count) {
            let Some(unit) = row.units.iter().position(|p| p.device == self.joiner.index) else { continue };
            let unit = unit as u32 * UNIT_BLOCKS;
            let at = |c: u32| (unit + c).checked_sub(within).filter(|i| *i < n).map(|i| from + i);
            if !(0..UNIT_BLOCKS).filter_map(at).any(|i| both.is_unlike(i)) {
                continue;
            }
            for i in self.columns_to_keep(&row, vouched, first, both).into_iter().filter_map(at) {
                if let Some(own) = both.own.block(i) {
                    bytes[block_bytes(i)].copy_from_slice(own);
                    lost[i as usize] = false;
                }
            }
        }
        Decided { bytes, lost }
    }

    /// Columns of a row in which a block of another device is wrong, and right as it can be rebuilt with what this one still has: what that
    /// is, be it parity or nothing that is needed.
    fn columns_to_keep(self, row: &Row, vouched: &[Vec<Vouched>; 2], first: Addr, both: &Both) -> BTreeSet<u32> {
        let (begin, blocks) = row.range();
        let mut out = BTreeSet::new();
        for v in vouched.iter().flat_map(|all| overlapping(all, begin, blocks)) {
            let there = self.read_vouched(v, first, both);
            if there.others.is_whole() && v.is(&there.others.bytes) {
                continue;
            }
            let rebuilt = self.rebuilt(v.addr, v.blocks);
            let ways = |i| vec![there.others.block(i), Some(&rebuilt[block_bytes(i)])];
            let Some(right) = put_together(v, ways) else { continue };
            let (from, to, n) = shared(v, begin, blocks);
            let is_wrong = |i: &u32| there.others.block(*i) != Some(&right[block_bytes(*i)]);
            let is_own = |block: u32| row.units[(block / UNIT_BLOCKS) as usize].device == self.joiner.index;
            let wrong = (from..from + n).filter(is_wrong).map(|i| to + i - from);
            out.extend(wrong.filter(|block| !is_own(*block)).map(|block| block % UNIT_BLOCKS));
        }
        out
    }

    /// What parity a row is to have: that of its units, but for columns of which a unit is wrong, and right as what is still there of the
    /// parity has it.
    fn decide_parity(self, parity: &Parity, vouched: &[Vec<Vouched>; 2], first: Addr, both: &Both) -> AlignedBuf {
        let mut out = AlignedBuf::padded(&parity.new.bytes);
        let own = |c: u32| parity.own.block(c);
        let mut keep = |c: u32| {
            if let Some(own) = own(c) {
                out[block_bytes(c)].copy_from_slice(own);
            }
        };
        (0..UNIT_BLOCKS).filter(|c| parity.new.block(*c).is_none()).for_each(&mut keep);
        if (0..UNIT_BLOCKS).all(|c| own(c).is_none() || own(c) == parity.new.block(c)) {
            return out;
        }
        self.columns_to_keep(&parity.row, vouched, first, both).into_iter().for_each(keep);
        out
    }
}

/// What has been decided of some blocks.
struct Decided {
    bytes: AlignedBuf,
    /// Blocks that neither the others could give nor anything vouched for.
    lost: Vec<bool>,
}

/// The parity of a row that lies on the device that is back.
struct Parity {
    row: Row,
    block: u64,
    own: Given,
    /// What the units of the others give.
    new: Given,
}

impl Devices {
    /// Blocks as those have them that take part, and then in other ways: with what a device still has that joins again, in its places;
    /// and in rows those of the others as they can be rebuilt with that. Nothing if none joins.
    pub fn ways_with_own(&self, first: Addr, count: u32) -> Vec<AlignedBuf> {
        let roster = self.roster();
        let Some(joiner) = roster.joining.clone() else { return Vec::new() };
        let back = Back { roster: &roster, joiner: &joiner };
        let both = back.read(first, count);
        let (with, rebuilt) = (both.with_own(), roster.in_rows(first).then(|| back.rebuilt(first, count)));
        [both.others.bytes, with].into_iter().chain(rebuilt).collect()
    }

    /// The parity of rows of these blocks that lies on the device that is back, but for rows that are yet to be full.
    fn parities(&self, back: Back<'_>, first: Addr, count: u32) -> Vec<Parity> {
        let roster = back.roster;
        let rows = roster.layout.rows(first, count).into_iter().map(|(row, ..)| row);
        let of = |row: Row| {
            let standing = self.rows.lock().parity_standing((row.segment, row.number));
            let new = match standing {
                // It is written when the row is full, to this device, too.
                ParityStanding::Filling => return None,
                ParityStanding::Full(parity) => Given { bytes: parity, has: vec![true; UNIT_BLOCKS as usize] },
                ParityStanding::AtRest => {
                    let block = |i| Self::block_elsewhere(roster, &row, None, i);
                    Given::read(UNIT_BLOCKS, || Self::cell_elsewhere(roster, &row, None), block)
                }
            };
            let (block, own) = (row.parity.block, back.read_own(row.parity.block, UNIT_BLOCKS));
            Some(Parity { row, block, own, new })
        };
        rows.filter(|row| row.parity.device == back.joiner.index).filter_map(of).collect()
    }

    /// Brings what a member that is back has of these blocks up to date: how many blocks that are, and how many could be read nowhere;
    /// `None` where it has others, and nothing is known of what is vouched for.
    ///
    /// # Errors
    /// Those of that device.
    pub(super) fn copy_unlike(
        &self,
        roster: &Arc<Roster>,
        joiner: &Arc<Member>,
        (first, count): (Addr, u32),
        vouched: Option<&[Vec<Vouched>; 2]>,
    ) -> Result<Option<(u32, u32)>, DeviceError> {
        let back = Back { roster, joiner };
        let both = back.read(first, count);
        let runs = runs_on(roster, joiner.index, first, count);
        let parities = self.parities(back, first, count);
        let is_alike = |run: &Run| blocks_of(run).all(|i| both.own.has[i as usize] && !both.is_unlike(i));
        let all = runs.iter().map(|r| r.blocks).sum::<u32>() + parities.len() as u32 * UNIT_BLOCKS;
        let alike = runs.iter().all(is_alike)
            && parities.iter().all(|p| p.own.bytes[..] == p.new.bytes[..] && p.own.is_whole());
        let anew = joiner.may_have_lost();
        if alike && !anew {
            return Ok(Some((all, 0)));
        }
        let none = <[Vec<Vouched>; 2]>::default();
        let Some(vouched) = vouched.or(alike.then_some(&none)) else { return Ok(None) };
        let decided = back.decide(&both, first, vouched);
        let (mut writes, mut lost) = (Vec::new(), 0);
        for run in &runs {
            lost += blocks_of(run).filter(|i| decided.lost[*i as usize]).count() as u32;
            let wanted = |i: u32| &decided.bytes[block_bytes(i)];
            let is_written = |i: u32| anew || both.own.block(i) != Some(wanted(i));
            let pieces: Vec<&[u8]> = blocks_of(run).map(wanted).collect();
            if let Some(range) = enclosing(blocks_of(run).map(is_written)) {
                writes.push((
                    run.block,
                    range.clone(),
                    AlignedBuf::gathered(range.len() * BLOCK_BYTES, pieces[range].iter().copied()),
                ));
            }
        }
        for parity in &parities {
            lost += (0..UNIT_BLOCKS).filter(|i| parity.new.block(*i).is_none()).count() as u32;
            let wanted = back.decide_parity(parity, vouched, first, &both);
            if let Some(range) =
                enclosing((0..UNIT_BLOCKS).map(|i| anew || parity.own.block(i) != Some(&wanted[block_bytes(i)])))
            {
                let bytes = &wanted[range.start * BLOCK_BYTES..range.end * BLOCK_BYTES];
                writes.push((parity.block, range, AlignedBuf::padded(bytes)));
            }
        }
        let sent = writes.into_iter().map(|(block, range, data)| {
            let op = Op::Write { offset: bytes(block + range.start as u64), data: Arc::new(data) };
            self.send(joiner, op)
        });
        match self.wait_writes(sent.collect(), |m| &m.completed).into_iter().next() {
            Some((_, e)) => Err(e),
            None => Ok(Some((all, lost))),
        }
    }
}

impl Given {
    fn is_whole(&self) -> bool {
        self.has.iter().all(|has| *has)
    }
}

/// The blocks of a request that a run brings, in its order.
pub(super) fn blocks_of(run: &Run) -> impl Iterator<Item = u32> + '_ {
    run.spans.iter().flat_map(|(from, n)| *from..*from + *n)
}

/// From the first that is so to the last.
fn enclosing(is: impl Iterator<Item = bool>) -> Option<Range<usize>> {
    let mut all = is.enumerate().filter(|(_, is)| *is).map(|(i, _)| i);
    let first = all.next()?;
    Some(first..all.last().unwrap_or(first) + 1)
}
