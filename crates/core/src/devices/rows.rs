//! What is known of rows with parity: which are being filled, what is in them, and which of it has a copy in the row log.
//! Pure bookkeeping; decision 0023 has why.
//!
//! Invariants
//! 1. The parity of a row is written when all of the row is known, and is the same whenever it is written again.
//! 2. What is written of a row that is not full has an entry in the row log before a flush ends that covers it.
//! 3. An entry is not written over, but by the same bytes, while its row is not full and durable with its parity.
//! 4. A row that is not here is full, or nobody needs what is in it.
//! 5. The claim on a row ends with the flush behind the one that made it durable with its parity, or a later one if that finds
//!    another write to its slot under way: long before its segment is used again.
//! 6. Where more rows need an entry than there are slots, those without one wait: what fills a row needs no slot, and a row that is
//!    full gives its slot back with a flush. So nobody who waits keeps from writing whom he waits for.
//! 7. A number is given to one use of the row log only, whatever a cut left of it.

use super::layout::{Place, Row};
use crate::breaks::{Break, broken};
use nenrin_device::{AlignedBuf, DeviceError};
use nenrin_format::row_log::{ROW_SLOTS, RowEntry, RowLog};
use nenrin_format::superblock::{AREA_BLOCKS, UNIT_BLOCKS};
use nenrin_format::{BLOCK_BYTES, SegmentNo};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a unit.
pub(super) const UNIT_BYTES: usize = UNIT_BLOCKS as usize * BLOCK_BYTES;
/// All blocks of a unit.
const ALL: u16 = u16::MAX;

/// Rows that logs write to at a time, if nobody writes out of turn: of the chain, new content, content that is moved, hot and cold,
/// and two copies of the index. With fewer free slots than this a flush is due, rows that lack what somebody was to write long ago
/// are filled with zeros (unless he holds their segment), and none is taken for anything else.
const SLOTS_SPARE: usize = 6;
/// What counts as long ago, in flushes.
const LATE_FLUSHES: u64 = 256;

/// What is numbered so far ahead of all claims is content that looks like an entry: a cut loses not so many.
const NUMBERS_AHEAD: u64 = 1 << 32;

/// A row: its segment, and its number there.
pub(crate) type RowId = (SegmentNo, u32);

/// Something to write to a device.
pub(super) struct Put {
    pub place: Place,
    pub data: Arc<AlignedBuf>,
}

/// What is true of rows once given writes have completed.
#[derive(Default)]
pub(super) struct Marks {
    era: u64,
    written: Vec<(RowId, usize, u16)>,
    parity: Vec<RowId>,
    /// Entries by use, unit and first block.
    entries: Vec<(RowId, u64, u8, u8)>,
    claims: Vec<(RowId, u64)>,
    /// Claims that end the use of a slot.
    ends: Vec<(u8, u64)>,
    /// Slots that were written to.
    slots: Vec<u8>,
    /// A row found no free slot: what is written of it has no entry.
    pub lacking: bool,
    /// Rows that were written once more.
    pub again: Vec<Row>,
    /// Numbers under which that is registered.
    pub under_way: Vec<u64>,
}

/// A copy in the row log.
struct Entry {
    unit: u8,
    block: u8,
    blocks: u8,
    done: bool,
}

/// A row that is being filled.
struct Open {
    row: Row,
    data: Vec<u8>,
    /// Blocks of each unit that were given to be written.
    present: Vec<u16>,
    /// Those that are written.
    done: Vec<u16>,
    parity_done: bool,
    /// The slot of the row log that it has, and the number of that use.
    slot: Option<(u8, u64)>,
    claimed: bool,
    entries: Vec<Entry>,
}

/// A segment that is being filled.
#[derive(Default)]
struct Begun {
    /// Rows of which all is known.
    full: BTreeSet<u32>,
    /// Nothing comes from this block on, and when that was said.
    ends: Option<(u32, u64)>,
    /// Blocks of its rows, but for the last.
    row_blocks: u32,
}

/// What the row log had of a row when the volume was opened.
struct Found {
    row: Row,
    slot: u8,
    blocks: BTreeMap<(usize, u32), Vec<u8>>,
}

/// A slot of the row log.
#[derive(Clone, Default)]
struct Slot {
    /// Number of its last claim.
    number: u64,
    /// The row that this names.
    row: Option<RowId>,
    used: bool,
    /// The number of a claim that is to end the use.
    end: Option<u64>,
    /// Writes to it that are under way.
    under_way: u32,
    /// It may hold what was forgotten.
    unwiped: bool,
}

impl Slot {
    /// Whether a row may have it.
    const fn is_free(&self) -> bool {
        !self.used && self.under_way == 0
    }
}

/// What a part of a unit that cannot be read is.
pub(super) enum Known {
    /// These bytes.
    Bytes(Vec<u8>),
    /// What the rest of the row gives.
    Rebuild,
}

/// How it is with the parity of a row.
pub(super) enum ParityStanding {
    /// It can be relied upon.
    AtRest,
    /// The row is full, and this is its parity.
    Full(AlignedBuf),
    /// It is yet to be written.
    Filling,
}

#[derive(Default)]
pub(super) struct State {
    uuid: [u8; 16],
    next: u64,
    /// Changes when a device begins to join: what was under way then did not reach it.
    era: u64,
    slots: Vec<Slot>,
    open: BTreeMap<RowId, Open>,
    found: BTreeMap<RowId, Found>,
    begun: BTreeMap<SegmentNo, Begun>,
    /// Segments in which somebody has places that he has yet to write to, and how many times.
    held: BTreeMap<SegmentNo, u32>,
    /// Flushes so far.
    flushes: u64,
    /// Goes up with each change by which a row may get a slot, or need none any more.
    changes: u64,
}

/// All rows of a volume that are not at rest.
#[derive(Default)]
pub(super) struct Rows(Mutex<State>);

impl Rows {
    pub fn new(uuid: [u8; 16]) -> Arc<Self> {
        let slots = vec![Slot::default(); ROW_SLOTS as usize];
        Arc::new(Self(Mutex::new(State { uuid, next: 1, slots, ..State::default() })))
    }
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The blocks whose bits are set, as runs.
fn runs(bits: u16) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < UNIT_BLOCKS && bits >> at & 1 == 0 {
            at += 1;
        }
        let from = at;
        while at < UNIT_BLOCKS && bits >> at & 1 == 1 {
            at += 1;
        }
        (at > from).then_some((from, at - from))
    })
}

/// The bits of so many blocks.
fn bits(from: u32, count: u32) -> u16 {
    (((1u32 << count) - 1) << from) as u16
}

/// What makes all of these, together, zeros.
pub(super) fn xor<'a>(parts: impl Iterator<Item = &'a [u8]>) -> AlignedBuf {
    let mut out: Option<AlignedBuf> = None;
    for part in parts {
        match &mut out {
            None => out = Some(AlignedBuf::padded(part)),
            Some(out) => out.iter_mut().zip(part).for_each(|(a, b)| *a ^= b),
        }
    }
    out.unwrap_or_else(|| AlignedBuf::zeroed(0))
}

impl Open {
    fn new(row: Row) -> Self {
        let units = row.units.len();
        Self {
            row,
            data: vec![0; units * UNIT_BYTES],
            present: vec![0; units],
            done: vec![0; units],
            parity_done: false,
            slot: None,
            claimed: false,
            entries: Vec::new(),
        }
    }
    fn is_full(&self) -> bool {
        self.present.iter().all(|p| *p == ALL)
    }
    fn is_done(&self) -> bool {
        self.parity_done && self.done.iter().all(|d| *d == ALL)
    }
    fn bytes(&self, unit: usize, from: u32, count: u32) -> &[u8] {
        let start = unit * UNIT_BYTES + from as usize * BLOCK_BYTES;
        &self.data[start..start + count as usize * BLOCK_BYTES]
    }
    fn parity(&self) -> Put {
        Put { place: self.row.parity, data: Arc::new(xor(self.data.chunks_exact(UNIT_BYTES))) }
    }
    fn block(&self, unit: usize, from: u32, count: u32) -> Put {
        let place = self.row.units[unit];
        let place = Place { block: place.block + u64::from(from), ..place };
        Put { place, data: Arc::new(AlignedBuf::padded(self.bytes(unit, from, count))) }
    }
    fn copied(&self, unit: usize) -> u16 {
        let own = self.entries.iter().filter(|e| usize::from(e.unit) == unit);
        own.fold(0, |all, e| all | bits(e.block.into(), e.blocks.into()))
    }
}

impl State {
    /// What is written to this segment from now on is a new use of it.
    pub fn begin(&mut self, segment: SegmentNo) {
        let old: Vec<RowId> = self.open.range((segment, 0)..=(segment, u32::MAX)).map(|(id, _)| *id).collect();
        for id in old {
            self.forget(id);
        }
        self.begun.insert(segment, Begun::default());
    }

    /// A flush is about to be protected.
    pub fn note_flush(&mut self) {
        self.flushes += 1;
    }

    /// See [`State::changes`]: who finds it the same has nothing to try again.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Nothing is written to this segment from this block on.
    pub fn end(&mut self, segment: SegmentNo, block: u32) {
        self.changes += 1;
        if let Some(begun) = self.begun.get_mut(&segment) {
            begun.ends = Some((block, self.flushes));
        }
    }

    /// Somebody has places in this segment, which he writes to before he lets go of it.
    pub fn hold(&mut self, segment: SegmentNo) {
        *self.held.entry(segment).or_default() += 1;
    }

    /// All places that were taken with a [`State::hold`] are written to, or nobody will.
    pub fn let_go(&mut self, segment: SegmentNo) {
        if let Some(count) = self.held.get_mut(&segment) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&segment);
                // Who waits for a slot looks again.
                self.changes += 1;
            }
        }
    }

    /// What nobody will write of the rows of segments that ended is zeros.
    fn fill_ends(&mut self) {
        let filling: BTreeSet<SegmentNo> = self.open.iter().filter(|(_, o)| !o.is_full()).map(|(id, _)| id.0).collect();
        // Of those that are all written nothing need be known any more.
        self.begun.retain(|segment, b| {
            let written = b.ends.is_some_and(|(block, _)| b.full.len() as u32 * b.row_blocks >= block);
            !written || filling.contains(segment)
        });
        let short = self.free_slots() < SLOTS_SPARE;
        for ((segment, number), open) in &mut self.open {
            let Some(begun) = self.begun.get_mut(segment) else { continue };
            let Some((block, since)) = begun.ends else { continue };
            // Who took a place and gave it up must not keep a slot for ever.
            let held = self.held.contains_key(segment) && !broken(Break::HeldFilled);
            let block = if short && !held && self.flushes - since > LATE_FLUSHES { 0 } else { block };
            for (unit, present) in open.present.iter_mut().enumerate() {
                let first = (open.row.first_unit + unit as u32) * UNIT_BLOCKS;
                let from = block.saturating_sub(first).min(UNIT_BLOCKS);
                *present |= bits(from, UNIT_BLOCKS - from);
            }
            if open.is_full() {
                begun.full.insert(*number);
            }
        }
    }

    fn forget(&mut self, id: RowId) {
        if let Some((slot, _)) = self.open.remove(&id).and_then(|o| o.slot) {
            self.free(slot);
        }
    }

    fn free_slots(&self) -> usize {
        self.slots.iter().filter(|s| s.is_free()).count()
    }

    /// Nobody needs what a slot has: its claim ends, unless another follows.
    fn free(&mut self, slot: u8) {
        self.changes += 1;
        let slot = &mut self.slots[usize::from(slot)];
        slot.used = false;
        if !broken(Break::RowLogKept) {
            slot.end = Some(self.next);
            self.next += 1;
        }
    }

    /// Blocks of a row are about to be written, from its block `within` on; what has to be written besides.
    ///
    /// # Errors
    /// When something else was written there before.
    pub fn put(
        &mut self,
        row: Row,
        within: u32,
        bytes: &[u8],
        puts: &mut Vec<Put>,
        marks: &mut Marks,
    ) -> Result<(), DeviceError> {
        let id = (row.segment, row.number);
        let Some(Begun { full, row_blocks, .. }) = self.begun.get_mut(&id.0) else {
            return Err(DeviceError::Misuse("a write to a segment whose use was not begun"));
        };
        *row_blocks = row.range().1.max(*row_blocks);
        if full.contains(&id.1) && !self.open.contains_key(&id) {
            return Err(DeviceError::Misuse("a write to a row that is full"));
        }
        if bytes.len() == row.units.len() * UNIT_BYTES && !self.open.contains_key(&id) {
            full.insert(id.1);
            if !broken(Break::ParityUnwritten) {
                puts.push(Put { place: row.parity, data: Arc::new(xor(bytes.chunks_exact(UNIT_BYTES))) });
            }
            return Ok(());
        }
        let open = self.open.entry(id).or_insert_with(|| Open::new(row));
        for (i, block) in bytes.chunks_exact(BLOCK_BYTES).enumerate() {
            let at = within + i as u32;
            let (unit, bit) = ((at / UNIT_BLOCKS) as usize, bits(at % UNIT_BLOCKS, 1));
            let start = at as usize * BLOCK_BYTES;
            if open.present[unit] & bit != 0 && open.data[start..start + BLOCK_BYTES] != *block {
                return Err(DeviceError::Misuse("a block of a row is written twice"));
            }
            open.data[start..start + BLOCK_BYTES].copy_from_slice(block);
            open.present[unit] |= bit;
            match marks.written.last_mut() {
                Some((last, u, b)) if *last == id && *u == unit => *b |= bit,
                _ => marks.written.push((id, unit, bit)),
            }
        }
        if open.is_full() && full.insert(id.1) {
            if !broken(Break::ParityUnwritten) {
                puts.push(open.parity());
            }
            marks.parity.push(id);
            self.changes += 1;
        }
        Ok(())
    }

    /// What has to be written before a flush, so that it covers all that is written, and what is about to be (`marks`): but for rows
    /// that find no free slot ([`Marks::lacking`]). `members`: all devices.
    pub fn protect(&mut self, members: &[u16], puts: &mut Vec<Put>, marks: &mut Marks) {
        marks.era = self.era;
        self.fill_ends();
        let ids: Vec<RowId> = self.open.keys().copied().collect();
        for id in ids {
            let Some(open) = self.open.get(&id) else { continue };
            let own = |unit: usize| {
                let mine = marks.written.iter().filter(|(i, u, _)| *i == id && *u == unit);
                mine.fold(0, |all, (_, _, bits)| all | bits)
            };
            if open.is_full() {
                let lacks: Vec<u16> = (0..open.done.len()).map(|u| ALL & !open.done[u] & !own(u)).collect();
                let lacks_parity = !open.parity_done && !marks.parity.contains(&id);
                if lacks_parity || lacks.iter().any(|l| *l != 0) {
                    marks.again.push(open.row.clone());
                }
                for (unit, lacks) in lacks.into_iter().enumerate().filter(|(_, l)| *l != 0) {
                    puts.extend(runs(lacks).map(|(from, count)| open.block(unit, from, count)));
                    marks.written.push((id, unit, lacks));
                }
                if lacks_parity {
                    if !broken(Break::ParityUnwritten) {
                        puts.push(open.parity());
                    }
                    marks.parity.push(id);
                }
            } else if broken(Break::ParityInPlace) {
                let all = open.present.iter().enumerate();
                all.for_each(|(unit, p)| puts.extend(runs(!p).map(|(from, count)| open.block(unit, from, count))));
                puts.push(open.parity());
            } else if !broken(Break::RowsUncopied) {
                let need: Vec<u16> = (0..open.done.len()).map(|u| (open.done[u] | own(u)) & !open.copied(u)).collect();
                self.copy(id, &need, members, puts, marks);
            }
        }
        for (i, slot) in self.slots.iter_mut().enumerate() {
            let Some(number) = slot.end else { continue };
            // Which of two claims that are under way together is on the device in the end nobody knows: the next flush ends it.
            if slot.under_way > 0 && !broken(Break::ClaimsCross) {
                continue;
            }
            let claim = RowLog { number, row: None, slot: i as u8, entry: None };
            claim_puts(&claim, self.uuid, members, puts);
            marks.ends.push((i as u8, number));
            marks.slots.push(i as u8);
            slot.under_way += 1;
        }
    }

    /// Gives these blocks of a row that is not full entries, if there is a slot for it, and writes those again of which nobody knows
    /// that they are written.
    fn copy(&mut self, id: RowId, need: &[u16], members: &[u16], puts: &mut Vec<Put>, marks: &mut Marks) {
        let Some(open) = self.open.get_mut(&id) else { return };
        if need.iter().all(|n| *n == 0) && open.claimed && open.entries.iter().all(|e| e.done) {
            return;
        }
        if open.slot.is_none() {
            if need.iter().all(|n| *n == 0) {
                return;
            }
            let free = self.slots.iter_mut().filter(|s| s.is_free());
            let Some(slot) = free.min_by_key(|s| (s.unwiped, s.end.is_none(), s.number)) else {
                marks.lacking = true;
                return;
            };
            *slot = Slot { number: self.next, row: Some(id), used: true, unwiped: slot.unwiped, ..Slot::default() };
            self.next += 1;
            let i = self.slots.iter().position(|s| s.row == Some(id) && s.used).unwrap_or(0);
            open.slot = Some((i as u8, self.slots[i].number));
        }
        let Some((slot, number)) = open.slot else { return };
        for (unit, need) in need.iter().enumerate() {
            for (from, count) in runs(*need) {
                open.entries.push(Entry { unit: unit as u8, block: from as u8, blocks: count as u8, done: false });
            }
        }
        if !open.claimed {
            let claim = RowLog { number, row: Some(id), slot, entry: None };
            claim_puts(&claim, self.uuid, members, puts);
            marks.claims.push((id, number));
        }
        for e in open.entries.iter().filter(|e| !e.done) {
            let payload = open.bytes(e.unit.into(), e.block.into(), e.blocks.into());
            let payload_crc = nenrin_format::crc(payload);
            let entry = RowEntry { unit: e.unit, block: e.block, blocks: e.blocks, payload_crc };
            let mut bytes = RowLog { number, row: Some(id), slot, entry: Some(entry) }.encode(self.uuid);
            bytes.extend_from_slice(payload);
            let device = open.row.aside[usize::from(e.unit)];
            let place = Place { device, block: AREA_BLOCKS + RowLog::entry_block(slot, e.block) };
            puts.push(Put { place, data: Arc::new(AlignedBuf::padded(&bytes)) });
            marks.entries.push((id, number, e.unit, e.block));
        }
        marks.slots.push(slot);
        self.slots[usize::from(slot)].under_way += 1;
    }

    /// These writes have completed.
    pub fn apply(&mut self, marks: &Marks) {
        self.changes += u64::from(!marks.written.is_empty() || !marks.parity.is_empty());
        for (id, unit, bits) in &marks.written {
            if let Some(open) = self.open.get_mut(id) {
                open.done[*unit] |= bits;
            }
        }
        for id in &marks.parity {
            if let Some(open) = self.open.get_mut(id) {
                open.parity_done = true;
            }
        }
        let fresh = marks.era == self.era;
        for (id, number, unit, block) in marks.entries.iter().filter(|_| fresh) {
            let open = self.open.get_mut(id).filter(|o| o.slot.is_some_and(|(_, n)| n == *number));
            let entry = open.and_then(|o| o.entries.iter_mut().find(|e| (e.unit, e.block) == (*unit, *block)));
            if let Some(e) = entry {
                e.done = true;
            }
        }
        for (id, number) in marks.claims.iter().filter(|_| fresh) {
            if let Some(open) = self.open.get_mut(id).filter(|o| o.slot.is_some_and(|(_, n)| n == *number)) {
                open.claimed = true;
            }
        }
        for (slot, number) in marks.ends.iter().filter(|_| fresh) {
            let slot = &mut self.slots[usize::from(*slot)];
            if slot.end == Some(*number) {
                (slot.end, slot.row, slot.number) = (None, None, *number);
            }
        }
        self.ended(&marks.slots);
        // What no slot protects needs none any more.
        self.open.retain(|_, o| !o.is_done() || o.slot.is_some());
    }

    /// These writes have ended, and nothing is known of some of them.
    pub fn give_up(&mut self, marks: &Marks) {
        self.ended(&marks.slots);
    }

    /// Writes to these slots are under way no more.
    fn ended(&mut self, slots: &[u8]) {
        self.changes += u64::from(!slots.is_empty());
        for slot in slots {
            let slot = &mut self.slots[usize::from(*slot)];
            slot.under_way = slot.under_way.saturating_sub(1);
        }
    }

    /// Few slots are left, and a flush would give some back.
    pub fn is_short(&self) -> bool {
        self.free_slots() < SLOTS_SPARE && self.gives_back()
    }

    /// Whether a flush would give slots back.
    pub fn gives_back(&self) -> bool {
        self.open.values().any(|o| o.is_done() && o.slot.is_some())
    }

    /// Rows that a flush makes durable with their parity.
    pub fn ready(&self) -> Vec<RowId> {
        self.open.iter().filter(|(_, o)| o.is_done()).map(|(id, _)| *id).collect()
    }

    /// The flush has ended.
    pub fn release(&mut self, ready: &[RowId]) {
        for id in ready {
            if self.open.get(id).is_some_and(Open::is_done) {
                self.forget(*id);
            }
        }
    }

    /// A device begins to join in this place: what the row log is to have there is not there.
    pub fn copies_lost(&mut self, device: u16) {
        self.era += 1;
        for open in self.open.values_mut() {
            open.claimed = false;
            let aside = &open.row.aside;
            let own = open.entries.iter_mut().filter(|e| aside[usize::from(e.unit)] == device);
            own.for_each(|e| e.done = false);
        }
    }

    /// What is known of a part of a unit, block by block; `None` when nothing but the rest of its row is.
    pub fn known(&self, row: &Row, unit: usize, blocks: Range<u32>) -> Option<Vec<Known>> {
        let id = (row.segment, row.number);
        if let Some(open) = self.open.get(&id) {
            return Some(blocks.map(|b| Known::Bytes(open.bytes(unit, b, 1).to_vec())).collect());
        }
        let found = self.found.get(&id)?;
        let one = |b: u32| match found.blocks.get(&(unit, b)) {
            Some(bytes) => Known::Bytes(bytes.clone()),
            // Without a copy it has parity, or was never acknowledged.
            None => Known::Rebuild,
        };
        Some(blocks.map(one).collect())
    }

    /// How it is with the parity of a row.
    pub fn parity_standing(&self, id: RowId) -> ParityStanding {
        match self.open.get(&id) {
            Some(open) if open.is_full() => ParityStanding::Full(xor(open.data.chunks_exact(UNIT_BYTES))),
            None if self.is_at_rest(id) => ParityStanding::AtRest,
            _ => ParityStanding::Filling,
        }
    }

    /// These are right: where the row log had something of their row, they count before what lies there, like its copies. Blocks of one unit.
    pub fn remember(&mut self, id: RowId, unit: usize, first: u32, bytes: &[u8]) {
        if let Some(found) = self.found.get_mut(&id).filter(|_| !broken(Break::VerifiedForgotten)) {
            for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                found.blocks.insert((unit, block), bytes.to_vec());
            }
        }
    }

    /// Whether the parity of this row can be relied upon.
    pub fn is_at_rest(&self, id: RowId) -> bool {
        !self.open.contains_key(&id) && !self.found.contains_key(&id)
    }
}

/// What the row log had when the volume was opened.
impl State {
    /// `logs`: of each device its index and its row log; `row` finds a row where there is one.
    pub fn load(&mut self, logs: &[(u16, AlignedBuf)], row: impl Fn(RowId) -> Option<Row>) {
        let block = |log: &'_ AlignedBuf, at: u64| -> Option<RowLog> {
            let start = at as usize * BLOCK_BYTES;
            RowLog::decode(log.get(start..start + BLOCK_BYTES)?, self.uuid).ok()
        };
        let mut claims: Vec<RowLog> = Vec::new();
        for slot in 0..ROW_SLOTS as u8 {
            let all = logs.iter().filter_map(|(_, log)| block(log, RowLog::claim_block(slot)));
            let own = all.filter(|c| c.slot == slot && c.entry.is_none());
            claims.extend(own.max_by_key(|c| c.number));
        }
        claims.sort_by_key(|c| c.number);
        let mut next = claims.last().map_or(1, |c| c.number + 1);
        // Also of a use whose claim was lost: entries that it left would count for the next one of that number.
        let most = next + NUMBERS_AHEAD;
        for (_, log) in logs.iter().filter(|_| !broken(Break::ClaimsReused)) {
            let places =
                (0..ROW_SLOTS as u8).flat_map(|s| (0..UNIT_BLOCKS as u8).map(move |b| RowLog::entry_block(s, b)));
            let numbers = places.filter_map(|at| Some(block(log, at)?.number)).filter(|n| *n < most);
            next = numbers.fold(next, |next, n| next.max(n + 1));
        }
        let mut stale = Vec::new();
        for claim in claims {
            self.slots[usize::from(claim.slot)] = Slot { number: claim.number, row: claim.row, ..Slot::default() };
            let Some((id, row)) = claim.row.and_then(|id| Some((id, row(id)?))) else { continue };
            let mut blocks = BTreeMap::new();
            for (device, log) in logs {
                for at in 0..UNIT_BLOCKS as u8 {
                    let place = RowLog::entry_block(claim.slot, at);
                    let Some(e) = block(log, place) else { continue };
                    let Some(entry) = e.entry else { continue };
                    if broken(Break::ClaimsReused) {
                        next = next.max(e.number + 1);
                    }
                    let unit = usize::from(entry.unit);
                    let fits = e.number == claim.number && e.row == claim.row && e.slot == claim.slot;
                    if !fits || entry.block != at || row.aside.get(unit) != Some(device) {
                        continue;
                    }
                    let start = (place as usize + 1) * BLOCK_BYTES;
                    let Some(payload) = log.get(start..start + usize::from(entry.blocks) * BLOCK_BYTES) else {
                        continue;
                    };
                    if nenrin_format::crc(payload) != entry.payload_crc && !broken(Break::RowLogBelieved) {
                        continue;
                    }
                    for (i, bytes) in payload.chunks_exact(BLOCK_BYTES).enumerate() {
                        blocks.insert((unit, u32::from(at) + i as u32), bytes.to_vec());
                    }
                }
            }
            self.slots[usize::from(claim.slot)].used = true;
            let replaced = self.found.insert(id, Found { row, slot: claim.slot, blocks });
            stale.extend(replaced.map(|old| old.slot));
        }
        self.next = next;
        stale.into_iter().for_each(|slot| self.free(slot));
    }

    /// The rows it had something of.
    pub fn found(&self) -> Vec<Row> {
        self.found.values().map(|f| f.row.clone()).collect()
    }

    /// The parity of these rows is right, and durable.
    pub fn settled(&mut self) {
        for found in std::mem::take(&mut self.found).into_values() {
            self.free(found.slot);
        }
    }

    /// Whether it had anything of any row, which no parity was written for since.
    pub fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// What it had of a block. That counts before what lies in the block's place, which may be torn: as if it had been written there.
    pub fn copy_of(&self, row: &Row, unit: usize, block: u32) -> Option<&[u8]> {
        self.found.get(&(row.segment, row.number))?.blocks.get(&(unit, block)).map(|b| &b[..])
    }

    /// What the row log had of a row, by unit and block.
    pub fn copies_of(&self, id: RowId) -> Vec<(usize, u32, Vec<u8>)> {
        let found = self.found.get(&id).into_iter().flat_map(|f| &f.blocks);
        found.map(|((unit, block), bytes)| (*unit, *block, bytes.clone())).collect()
    }
}

/// Wiping what was forgotten.
impl State {
    /// Every slot may hold it.
    pub fn begin_wipe(&mut self) {
        self.slots.iter_mut().for_each(|s| s.unwiped = true);
    }

    /// Slots that may hold it and are free, but for those that logs may need meanwhile: nobody takes them until [`State::wiped`].
    pub fn take_unwiped(&mut self) -> Vec<u8> {
        let spare = if broken(Break::WipeTakesAll) { 0 } else { SLOTS_SPARE };
        let count = self.free_slots().saturating_sub(spare);
        let free = self.slots.iter_mut().enumerate().filter(|(_, s)| s.unwiped && s.is_free());
        let take = |(i, slot): (usize, &mut Slot)| {
            slot.under_way += 1;
            i as u8
        };
        free.take(count).map(take).collect()
    }

    /// They are written: if that was `done`, nothing of it is in them any more.
    pub fn wiped(&mut self, slots: &[u8], done: bool) {
        slots.iter().for_each(|slot| self.slots[usize::from(*slot)].unwiped &= !done);
        self.ended(slots);
    }

    /// Whether no slot may hold it.
    pub fn is_wiped(&self) -> bool {
        !self.slots.iter().any(|s| s.unwiped)
    }
}

/// A claim, on all devices.
fn claim_puts(claim: &RowLog, uuid: [u8; 16], members: &[u16], puts: &mut Vec<Put>) {
    let data = Arc::new(AlignedBuf::padded(&claim.encode(uuid)));
    let block = AREA_BLOCKS + RowLog::claim_block(claim.slot);
    puts.extend(members.iter().map(|device| Put { place: Place { device: *device, block }, data: data.clone() }));
}
