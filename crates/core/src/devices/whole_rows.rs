//! Rows with parity as a whole: what a mount finds of them, parity that is made anew, and what a device that joins gets.
//!
//! Invariants
//! 1. One bad block costs that block at most: whatever is read here is read, where a whole unit cannot be, block by block, and of each
//!    column of a row (one block of each unit, and that of the parity) any one may be unreadable.
//! 2. Nothing is written over what cannot be computed: such a column stays as it is.
//! 3. The parity of a row is mended while nobody writes to it.
//! 4. Where parity is right in all that is known of a row, the row was full, and it is right in the rest, too: a mount does not make it
//!    anew there of what may be rotten.

use super::layout::{Place, Row};
use super::requests::{Patience, bytes};
use super::roster::Roster;
use super::rows::{ParityStanding, Put, RowId, UNIT_BYTES, xor};
use super::{Devices, Member};
use crate::breaks::{Break, broken};
use nenrin_device::{AlignedBuf, DeviceError, Op, Pending, Ticket};
use nenrin_format::row_log::ROW_LOG_UNITS;
use nenrin_format::superblock::{AREA_BLOCKS, UNIT_BLOCKS};
use nenrin_format::{Addr, BLOCK_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// So many units of a row log, one behind the other, that give nothing at all: then nobody asks for the rest.
const SILENT_UNITS_MAX: u32 = 4;

/// What a device that joins is to have in one place: the block where it begins, a unit, and how many blocks of that could be read nowhere.
pub(super) struct Cell {
    pub block: u64,
    pub data: AlignedBuf,
    pub lost: u32,
}

/// One unit of a row, as it should be.
struct Unit {
    data: AlignedBuf,
    /// Blocks that do not lie in their place as the row log has them.
    torn: Vec<u32>,
    /// Blocks that cannot be read in their place, and were rebuilt.
    rebuilt: Vec<u32>,
    /// Blocks that could be read nowhere.
    lost: Vec<u32>,
}

/// Rows that a crash left get their parity: of each device how often it was asked in vain meanwhile.
struct Settling(Vec<Patience>);

/// Why the parity of a row is written anew.
#[derive(Clone, Copy)]
enum Anew<'a> {
    /// Nobody needs what is in it but for what is known of it, or its parity is right.
    Settling(&'a Settling),
    /// What recovery accepted was written anew, in these columns.
    Accepted(&'a BTreeSet<u32>),
    /// All that anybody needs in it was verified, and is right where it lies.
    Mending,
}

impl<'a> Anew<'a> {
    fn settling(self) -> Option<&'a Settling> {
        if let Self::Settling(settling) = self { Some(settling) } else { None }
    }

    /// Whether what cannot be read in its place, though it was asked for, is written there as it was rebuilt.
    fn writes_rebuilt(self) -> bool {
        match self {
            Self::Settling(_) => !broken(Break::RowsUnwritten),
            Self::Accepted(_) => false,
            Self::Mending => !broken(Break::UnreadLeft),
        }
    }

    /// The columns of which something is known, beside those that the row log knows something of; all, where everything was verified.
    fn known(self) -> Option<BTreeSet<u32>> {
        match self {
            Self::Settling(_) => Some(BTreeSet::new()),
            Self::Accepted(columns) => Some(columns.clone()),
            Self::Mending => None,
        }
    }

    /// Whether parity is written also where it reads as it should.
    fn always(self) -> bool {
        !matches!(self, Self::Mending) && !broken(Break::UnflushedBelieved)
    }
}

/// The bytes of a block of a unit.
pub(super) const fn block_bytes(block: u32) -> std::ops::Range<usize> {
    block as usize * BLOCK_BYTES..(block as usize + 1) * BLOCK_BYTES
}

pub(super) fn moved(place: Place, blocks: u32) -> Place {
    Place { block: place.block + u64::from(blocks), ..place }
}

/// One block of a unit, where it belongs.
fn put_block(unit: Place, data: &[u8], block: u32) -> Put {
    Put { place: moved(unit, block), data: Arc::new(AlignedBuf::padded(&data[block_bytes(block)])) }
}

fn active(roster: &Roster, device: u16) -> Option<&Arc<Member>> {
    roster.member(device).filter(|m| m.is_active())
}

/// Starts reading what lies in this place, if its device is there.
pub(super) fn read_here(roster: &Roster, place: Place, blocks: u32) -> Option<Ticket> {
    let op = Op::Read { offset: bytes(place.block), bytes: blocks as usize * BLOCK_BYTES };
    active(roster, place.device).map(|m| m.submit(op))
}

/// Blocks that are read one after another, zeros for those that cannot be: which these are.
fn by_block(one: impl Fn(u32) -> Option<AlignedBuf>) -> (AlignedBuf, Vec<u32>) {
    let (mut out, mut lost) = (AlignedBuf::zeroed(UNIT_BYTES), Vec::new());
    for block in 0..UNIT_BLOCKS {
        match one(block).filter(|_| !broken(Break::RowsInUnits)) {
            Some(bytes) => out[block_bytes(block)].copy_from_slice(&bytes),
            None => lost.push(block),
        }
    }
    (out, lost)
}

/// Parity.
impl Devices {
    /// Blocks of a unit from the rest of its row, or as they are known.
    fn rebuilt_blocks(roster: &Arc<Roster>, row: &Row, unit: usize, from: u32, blocks: u32) -> Option<AlignedBuf> {
        let first = row.range().0.add(unit as u32 * UNIT_BLOCKS + from);
        let reading = Self::read_rows(roster, first, blocks, Some(row.units[unit].device), true).ok()?;
        Box::new(reading).wait().ok()
    }

    /// A block of a unit, from where it lies or else from the rest of its row.
    fn block_of(roster: &Arc<Roster>, row: &Row, unit: usize, block: u32) -> Option<AlignedBuf> {
        let here = read_here(roster, moved(row.units[unit], block), 1).and_then(|t| t.wait().ok());
        here.or_else(|| Self::rebuilt_blocks(roster, row, unit, block, 1))
    }

    /// All units of a row, with what is known of it in place of what is there.
    fn units_of(&self, roster: &Arc<Roster>, row: &Row, settling: Option<&Settling>) -> Vec<Unit> {
        let copies = self.rows.lock().copies_of((row.segment, row.number));
        let reads: Vec<Option<Ticket>> = row.units.iter().map(|p| read_here(roster, *p, UNIT_BLOCKS)).collect();
        let mut units = Vec::new();
        for (i, read) in reads.into_iter().enumerate() {
            let own = Patience::default();
            let patience = settling.and_then(|s| s.0.get(usize::from(row.units[i].device))).unwrap_or(&own);
            let mut unit = match read.map(Ticket::wait) {
                Some(Ok(data)) => {
                    patience.restore();
                    Unit { data, torn: Vec::new(), rebuilt: Vec::new(), lost: Vec::new() }
                }
                _ => Self::unit_by_block(roster, row, i, patience),
            };
            for (_, block, copy) in copies.iter().filter(|(u, ..)| *u == i) {
                let is_absent = active(roster, row.units[i].device).is_none();
                let is_unread = is_absent || unit.rebuilt.contains(block) || unit.lost.contains(block);
                let here = &mut unit.data[block_bytes(*block)];
                // A block is written once: where it lies it is torn, or rotten, if it is not what the row log has.
                if is_unread || here != &copy[..] {
                    here.copy_from_slice(copy);
                    unit.torn.push(*block);
                }
                unit.rebuilt.retain(|b| b != block);
                unit.lost.retain(|b| b != block);
            }
            units.push(unit);
        }
        units
    }

    /// A unit that cannot be read as a whole.
    fn unit_by_block(roster: &Arc<Roster>, row: &Row, unit: usize, patience: &Patience) -> Unit {
        let place = row.units[unit];
        if active(roster, place.device).is_none() {
            let whole = Self::rebuilt_blocks(roster, row, unit, 0, UNIT_BLOCKS).map(|data| (data, Vec::new()));
            let by_block = || by_block(|block| Self::rebuilt_blocks(roster, row, unit, block, 1));
            let (data, lost) = whole.unwrap_or_else(by_block);
            // There is nobody to write it.
            return Unit { data, torn: Vec::new(), rebuilt: Vec::new(), lost };
        }
        let unread = std::cell::RefCell::new(Vec::new());
        let (data, lost) = by_block(|block| {
            let here = || read_here(roster, moved(place, block), 1).and_then(|t| t.wait().ok());
            let elsewhere = || Self::rebuilt_blocks(roster, row, unit, block, 1);
            if patience.is_at_end() {
                // What was not asked for is not written over.
                return elsewhere().or_else(here);
            }
            patience.probe(here).or_else(|| {
                unread.borrow_mut().push(block);
                elsewhere()
            })
        });
        let rebuilt = unread.into_inner().into_iter().filter(|b| !lost.contains(b)).collect();
        Unit { data, torn: Vec::new(), rebuilt, lost }
    }

    /// Writes the parity of a row so that it is that of what its units hold; blocks written for that. Nothing may be written to the row
    /// meanwhile.
    fn parity_anew(&self, row: &Row, anew: Anew<'_>) -> Result<u32, DeviceError> {
        let (first, blocks) = row.range();
        // Who copies the parity to a device that joins must not copy what it was before.
        let number = (!broken(Break::ParityUnregistered)).then(|| self.enter_of(first, blocks));
        let written = self.write_parity(row, anew);
        number.into_iter().for_each(|n| self.leave_of(n));
        written
    }

    fn write_parity(&self, row: &Row, anew: Anew<'_>) -> Result<u32, DeviceError> {
        let roster = self.roster();
        let (settling, always) = (anew.settling(), anew.always());
        let mut units = self.units_of(&roster, row, settling);
        let there = read_here(&roster, row.parity, UNIT_BLOCKS).map(Ticket::wait);
        let there = there.map(|read| read.map_or_else(|_| Self::parity_by_block(&roster, row), |is| (is, Vec::new())));
        if settling.is_some() && !broken(Break::TornLeft) {
            Self::give_up_for_torn(&roster, row, &mut units, there.as_ref());
        }
        let lost = |block: u32| units.iter().any(|u| u.lost.contains(&block));
        if broken(Break::RowsInUnits) && (0..UNIT_BLOCKS).any(lost) {
            return Err(DeviceError::Missing);
        }
        let mut puts = Vec::new();
        for (place, unit) in row.units.iter().zip(&units).filter(|(p, _)| active(&roster, p.device).is_some()) {
            let rebuilt = unit.rebuilt.iter().filter(|b| anew.writes_rebuilt() && !lost(**b));
            let torn = unit.torn.iter().filter(|b| !(lost(**b) && broken(Break::TornLeft)));
            puts.extend(torn.chain(rebuilt).map(|b| put_block(*place, &unit.data, *b)));
        }
        let mut parity = xor(units.iter().map(|u| &u.data[..]));
        if let Some((is, unread)) = there {
            self.keep_unknown(row, anew, &mut parity, (&is, &unread));
            let unlike = |b: &u32| always || unread.contains(b) || is[block_bytes(*b)] != parity[block_bytes(*b)];
            let wrong: Vec<u32> = (0..UNIT_BLOCKS).filter(unlike).collect();
            if !wrong.is_empty() && !(0..UNIT_BLOCKS).any(lost) {
                puts.push(Put { place: row.parity, data: Arc::new(parity) });
            } else {
                puts.extend(wrong.iter().filter(|b| !lost(**b)).map(|b| put_block(row.parity, &parity, *b)));
            }
        }
        let written = puts.iter().map(|p| (p.data.len() / BLOCK_BYTES) as u32).sum();
        self.put_and_wait(&roster, puts)?;
        Ok(written)
    }

    /// Invariant 4: what the parity will be is what it `is`, in columns of which nothing is known.
    fn keep_unknown(&self, row: &Row, anew: Anew<'_>, parity: &mut AlignedBuf, (is, unread): (&AlignedBuf, &[u32])) {
        let Some(mut known) = anew.known().filter(|_| !broken(Break::ParityOfUnknown)) else { return };
        known.extend(self.rows.lock().copies_of((row.segment, row.number)).iter().map(|(_, block, _)| *block));
        let is_right = |b: &u32| !unread.contains(b) && is[block_bytes(*b)] == parity[block_bytes(*b)];
        if !known.iter().all(is_right) {
            return;
        }
        for block in (0..UNIT_BLOCKS).filter(|b| !known.contains(b) && !unread.contains(b)) {
            parity[block_bytes(block)].copy_from_slice(&is[block_bytes(block)]);
        }
    }

    /// Columns of which something is known that lies nowhere in its place, and of which something else is lost: the row log lets go of the
    /// former, so the column must have it. What is lost becomes what the parity gives with the others, or zeros where there is none.
    fn give_up_for_torn(roster: &Roster, row: &Row, units: &mut [Unit], parity: Option<&(AlignedBuf, Vec<u32>)>) {
        for block in 0..UNIT_BLOCKS {
            let who: Vec<usize> = (0..units.len()).filter(|u| units[*u].lost.contains(&block)).collect();
            if who.is_empty() || !units.iter().any(|u| u.torn.contains(&block)) {
                continue;
            }
            let given = parity.filter(|(_, unread)| who.len() == 1 && !unread.contains(&block));
            let is_there = |unit: &usize| active(roster, row.units[*unit].device).is_some();
            if given.is_none() && !(parity.is_some() && who.iter().all(is_there)) {
                continue;
            }
            let data = given.map(|(parity, _)| {
                let others = (0..units.len()).filter(|u| *u != who[0]).map(|u| &units[u].data[block_bytes(block)]);
                xor(others.chain([&parity[block_bytes(block)]]))
            });
            for unit in who {
                let unit = &mut units[unit];
                match &data {
                    Some(data) => unit.data[block_bytes(block)].copy_from_slice(data),
                    None => unit.data[block_bytes(block)].fill(0),
                }
                unit.lost.retain(|b| *b != block);
                unit.rebuilt.push(block);
            }
        }
    }

    /// The parity of a row as it lies there, and which blocks of it cannot be read.
    fn parity_by_block(roster: &Roster, row: &Row) -> (AlignedBuf, Vec<u32>) {
        let read = |block| read_here(roster, moved(row.parity, block), 1).and_then(|t| t.wait().ok());
        by_block(read)
    }
    /// These were verified: until the rows that a crash left have their parity, they are known of them.
    pub fn remember(&self, addr: Addr, data: &[u8]) {
        if !self.has_rows() || !self.rows.lock().has_found() {
            return;
        }
        let blocks = (data.len() / BLOCK_BYTES) as u32;
        for (row, within, from, count) in self.layout().rows(addr, blocks) {
            let mut rows = self.rows.lock();
            for at in 0..count {
                let (unit, block) = (((within + at) / UNIT_BLOCKS) as usize, (within + at) % UNIT_BLOCKS);
                rows.remember((row.segment, row.number), unit, block, &data[block_bytes(from + at)]);
            }
        }
    }

    /// The parity of all rows that these blocks lie in is written anew, of each once; blocks written for that.
    ///
    /// # Errors
    /// Device errors.
    pub fn parity_of(&self, places: &[(Addr, u32)]) -> Result<u64, DeviceError> {
        let layout = self.layout();
        let mut rows: BTreeMap<RowId, (Row, BTreeSet<u32>)> = BTreeMap::new();
        for (row, within, _, count) in places.iter().flat_map(|(addr, blocks)| layout.rows(*addr, *blocks)) {
            let (_, columns) = rows.entry((row.segment, row.number)).or_insert_with(|| (row, BTreeSet::new()));
            columns.extend((within..within + count).map(|block| block % UNIT_BLOCKS));
        }
        let anew = |row, columns| self.parity_anew(row, Anew::Accepted(columns));
        rows.values().try_fold(0, |n, (row, columns)| Ok(n + u64::from(anew(row, columns)?)))
    }

    /// Rows of these blocks whose parity is not what it should be. Those that are being filled, or that an absent device has a
    /// part of, are not looked at.
    pub fn rows_unlike(&self, addr: Addr, blocks: u32) -> Vec<RowId> {
        let roster = self.readers();
        let mut out = Vec::new();
        for (row, within, _, count) in roster.layout.rows(addr, blocks) {
            let id = (row.segment, row.number);
            let all = row.units.iter().chain([&row.parity]);
            if !roster.rows.lock().is_at_rest(id) || !all.clone().all(|p| roster.is_active(p.device)) {
                continue;
            }
            // Of a part of one unit, the same part of the others.
            let one = within / UNIT_BLOCKS == (within + count - 1) / UNIT_BLOCKS;
            let (from, n) = if one { (within % UNIT_BLOCKS, count) } else { (0, UNIT_BLOCKS) };
            let op = |p: &Place| Op::Read { offset: bytes(p.block + u64::from(from)), bytes: n as usize * BLOCK_BYTES };
            let reads: Vec<Ticket> = all.filter_map(|p| Some(roster.member(p.device)?.submit(op(p)))).collect();
            let parts: Result<Vec<AlignedBuf>, DeviceError> = reads.into_iter().map(Ticket::wait).collect();
            let alike = parts.is_ok_and(|parts| xor(parts.iter().map(|p| &p[..])).iter().all(|b| *b == 0));
            if !alike {
                out.push(id);
            }
        }
        out
    }

    /// Whether the parity of a row that nobody writes to is not what it should be.
    pub fn is_unlike(&self, (segment, number): RowId) -> bool {
        let range = self.layout().row(segment, number).map(|row| row.range());
        range.is_some_and(|(first, blocks)| !self.rows_unlike(first, blocks).is_empty())
    }

    /// Everything of this row was verified: its parity is written anew if it is still not what it should be, and what cannot be read of it,
    /// which nobody needs then. Whether it is as it should be now; `None` when it was, or when somebody writes to it: that is for later.
    ///
    /// # Errors
    /// Device errors.
    pub fn mend_parity(&self, id: RowId) -> Result<Option<bool>, DeviceError> {
        let Some(row) = self.layout().row(id.0, id.1).filter(|_| self.is_unlike(id)) else { return Ok(None) };
        let (first, blocks) = row.range();
        // Of a row that is written at once nothing but that is known, and parity of a half of it must not come behind its own.
        let registered = if broken(Break::ParityUnregistered) { None } else { self.enter_alone(first, blocks) };
        if registered.is_none() && !broken(Break::ParityUnregistered) {
            return Ok(None);
        }
        // That may have ended since it was looked at, and left a row that is yet to be filled.
        let at_rest = self.rows.lock().is_at_rest(id);
        let written = if at_rest { self.write_parity(&row, Anew::Mending).map(Some) } else { Ok(None) };
        registered.into_iter().for_each(|n| self.leave_of(n));
        Ok(written?.map(|blocks| blocks > 0 && !self.is_unlike(id)))
    }
}

/// The row log of a volume that was just opened.
impl Devices {
    /// Reads what the row log of a volume that was just opened has.
    pub(super) fn load_rows(&self) {
        let roster = self.roster();
        if !roster.layout.has_parity() {
            return;
        }
        let op = Op::Read { offset: bytes(AREA_BLOCKS), bytes: ROW_LOG_UNITS as usize * UNIT_BYTES };
        let reads: Vec<_> = roster.active().map(|m| (m.index, m.submit(op.clone()))).collect();
        let log = |(i, read): (u16, Ticket)| (i, read.wait().unwrap_or_else(|_| Self::row_log_by_block(&roster, i)));
        let logs: Vec<(u16, AlignedBuf)> = reads.into_iter().map(log).collect();
        self.rows.lock().load(&logs, |(segment, row)| roster.layout.row(segment, row));
    }

    /// The row log of a device that does not give all of it: what of it cannot be read is not there. Nothing else may have what a slot holds,
    /// so each is asked for, until several units in a row have given nothing.
    fn row_log_by_block(roster: &Roster, device: u16) -> AlignedBuf {
        let mut out = AlignedBuf::zeroed(ROW_LOG_UNITS as usize * UNIT_BYTES);
        let mut silent = 0;
        for (unit, to) in (0..ROW_LOG_UNITS).zip(out.chunks_exact_mut(UNIT_BYTES)) {
            let place = Place { device, block: AREA_BLOCKS + u64::from(unit * UNIT_BLOCKS) };
            let read = |place, blocks| move || read_here(roster, place, blocks).and_then(|t| t.wait().ok());
            if let Some(whole) = read(place, UNIT_BLOCKS)().filter(|_| !broken(Break::RowsInUnits)) {
                to.copy_from_slice(&whole);
                silent = 0;
                continue;
            }
            let patience = Patience::default();
            let (data, lost) = by_block(|block| patience.ask(read(moved(place, block), 1)));
            to.copy_from_slice(&data);
            silent = if lost.len() == UNIT_BLOCKS as usize { silent + 1 } else { 0 };
            if silent == SILENT_UNITS_MAX && !broken(Break::PatienceEndless) {
                break;
            }
        }
        out
    }

    /// Before the first write of a mount: rows that were not full get the parity of what is in them. Whether there were any.
    ///
    /// # Errors
    /// Device errors.
    pub fn settle_rows(&self) -> Result<bool, DeviceError> {
        let found = if broken(Break::RowsUnsettled) { Vec::new() } else { self.rows.lock().found() };
        let settling = Settling(self.roster().members.iter().map(|_| Patience::default()).collect());
        found.iter().try_for_each(|row| self.parity_anew(row, Anew::Settling(&settling)).map(drop))?;
        Ok(!found.is_empty())
    }

    /// That is durable: the row log is needed for them no more.
    pub fn rows_settled(&self) {
        self.rows.lock().settled();
    }
}

/// Copying to a device that joins.
impl Devices {
    /// What that device is to have of the rows that these blocks lie in.
    pub(super) fn cells_for(roster: &Arc<Roster>, device: u16, first: Addr, count: u32) -> Vec<Cell> {
        let mut out = Vec::new();
        for (row, ..) in roster.layout.rows(first, count) {
            let unit = row.units.iter().position(|p| p.device == device);
            let Some(place) = unit.map(|u| row.units[u]).or((row.parity.device == device).then_some(row.parity)) else {
                continue;
            };
            // At the end of its patience a device is asked once for each piece whether it gives anything again.
            out.extend(Self::cell(roster, &row, unit, place, out.is_empty()));
        }
        out
    }

    /// A unit of a row, or its parity, that lies in this place: from there, or else from the others. `None` for parity that is yet to be
    /// written.
    fn cell(roster: &Arc<Roster>, row: &Row, unit: Option<usize>, place: Place, probes: bool) -> Option<Cell> {
        let whole = |data| Some(Cell { block: place.block, data, lost: 0 });
        let here = |block: u32, count: u32| {
            move || read_here(roster, moved(place, block), count).and_then(|read| read.wait().ok())
        };
        let there = active(roster, place.device);
        let given = there.and_then(|m| match probes {
            true => m.patience.probe(here(0, UNIT_BLOCKS)),
            false => m.patience.ask(here(0, UNIT_BLOCKS)),
        });
        if let Some(data) = given {
            return whole(data);
        }
        if unit.is_none() {
            let standing = roster.rows.lock().parity_standing((row.segment, row.number));
            match standing {
                // It is written when the row is full, to this device, too.
                ParityStanding::Filling => return None,
                ParityStanding::Full(parity) => return whole(parity),
                ParityStanding::AtRest => {}
            }
        }
        // What the others give may be rotten, as where there are copies.
        if there.is_none_or(|m| m.patience.is_at_end()) {
            if let Some(data) = Self::cell_elsewhere(roster, row, unit) {
                return whole(data);
            }
        }
        let (data, lost) = by_block(|block| {
            let elsewhere = || Self::block_elsewhere(roster, row, unit, block);
            there.map_or_else(elsewhere, |m| m.patience.first(here(block, 1), elsewhere))
        });
        Some(Cell { block: place.block, data, lost: lost.len() as u32 })
    }

    /// A unit of a row, or its parity, from the others.
    pub(super) fn cell_elsewhere(roster: &Arc<Roster>, row: &Row, unit: Option<usize>) -> Option<AlignedBuf> {
        if let Some(unit) = unit {
            return Self::rebuilt_blocks(roster, row, unit, 0, UNIT_BLOCKS);
        }
        let reads: Vec<Option<Ticket>> = row.units.iter().map(|p| read_here(roster, *p, UNIT_BLOCKS)).collect();
        let units: Option<Vec<AlignedBuf>> = reads.into_iter().map(|read| read?.wait().ok()).collect();
        Some(xor(units?.iter().map(|u| &u[..])))
    }

    /// A block of it, from the others.
    pub(super) fn block_elsewhere(
        roster: &Arc<Roster>,
        row: &Row,
        unit: Option<usize>,
        block: u32,
    ) -> Option<AlignedBuf> {
        if let Some(unit) = unit {
            return Self::rebuilt_blocks(roster, row, unit, block, 1);
        }
        let units: Option<Vec<AlignedBuf>> =
            (0..row.units.len()).map(|unit| Self::block_of(roster, row, unit, block)).collect();
        Some(xor(units?.iter().map(|u| &u[..])))
    }
}
