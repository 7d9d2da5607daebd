//! Reads and writes of segments that lie in rows with parity, over several devices.
//!
//! Invariants
//! 1. A flush that anybody counts on ends only when whatever it covers can be read without any one device: its row is full and durable
//!    with its parity, or the row log has it, on another device.
//! 2. What is rebuilt is verified by whoever reads it, like everything else.
//! 3. A device that joins gets what the others of its place get.

use super::layout::{Place, Row, Run, Runs};
use super::requests::{answered, bytes, gathered};
use super::roster::{Entry, Roster};
use super::rows::{Known, Marks, Put, UNIT_BYTES, xor};
use super::{Devices, Member, STALE};
use crate::breaks::{Break, broken};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Op, Outcome, Pending, Ticket};
use nenrin_format::row_log::RowLog;
use nenrin_format::superblock::{AREA_BLOCKS, UNIT_BLOCKS};
use nenrin_format::{Addr, BLOCK_BYTES, SegmentNo};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Who needs a slot of the row log looks so often whether anything has changed, and so many times in vain while writes are under way:
/// for longer than a device is waited for that does not answer. Where none is, each look counts for many: who was given a place and
/// has yet to write to it does so at once. Nothing changes for so long only where many never do.
const LOOK: Duration = Duration::from_millis(1);
const LOOKS_MAX: u32 = 300_000;
const LOOK_COUNTS_ALONE: u32 = 60;
const FULL: DeviceError = DeviceError::Misuse("the row log is full");

/// Writes under way, whether an absent device misses something, and what is true when they have completed.
pub(super) type Started = (Vec<(Arc<Member>, Ticket)>, bool, Marks);

/// Submits what is to be written: to members that are active, and to a device that joins in the place of one.
pub(super) fn submit(roster: &Roster, puts: Vec<Put>) -> (Vec<(Arc<Member>, Ticket)>, bool) {
    let (mut tickets, mut left_out) = (Vec::new(), false);
    for Put { place, data } in puts {
        let op = || Op::Write { offset: bytes(place.block), data: data.clone() };
        let (member, joins) = roster.receivers(place.device);
        left_out |= member.is_none();
        tickets.extend(member.into_iter().chain(joins).map(|m| (m.clone(), m.submit(op()))));
    }
    (tickets, left_out)
}

/// Devices that get claims.
fn claimed_on(roster: &Roster) -> Vec<u16> {
    let there = roster.members.iter().filter(|m| m.is_active() || roster.joins(m.index).is_some());
    there.map(|m| m.index).collect()
}

impl Devices {
    /// Whether anything lies in rows.
    pub fn has_rows(&self) -> bool {
        self.layout().has_parity()
    }

    /// What is written to this segment from now on is a new use of it.
    pub fn begin_segment(&self, segment: SegmentNo) {
        if self.has_rows() {
            self.rows.lock().begin(segment);
        }
    }

    /// Nothing is written to this segment from this block on.
    pub fn end_segment(&self, segment: SegmentNo, block: u32) {
        if self.has_rows() {
            self.rows.lock().end(segment, block);
        }
    }

    /// Somebody has places in this segment, which he writes to before he lets go of it: nothing is written there meanwhile.
    pub fn hold_segment(&self, segment: SegmentNo) {
        if self.has_rows() {
            self.rows.lock().hold(segment);
        }
    }

    /// Ends a [`Devices::hold_segment`].
    pub fn let_go_of_segment(&self, segment: SegmentNo) {
        if self.has_rows() {
            self.rows.lock().let_go(segment);
        }
    }

    /// Starts writing blocks that lie in rows. `copied`: and their copies in the row log, where rows are not full; but for those that
    /// find no slot, which is told with what was started. So what fills a row waits for nothing.
    pub(super) fn start_rows(
        &self,
        entry: &Entry,
        addr: Addr,
        data: &Arc<AlignedBuf>,
        copied: bool,
    ) -> Result<Started, DeviceError> {
        let roster = &entry.roster;
        let blocks = (data.len() / BLOCK_BYTES) as u32;
        let mut runs = Runs::default();
        roster.layout.each_piece(addr, blocks, |from, count, places| runs.add(places[0], from, count));
        let put = |run: &Run| Put { place: Place { device: run.device, block: run.block }, data: gathered(run, data) };
        let mut puts: Vec<Put> = runs.0.iter().map(put).collect();
        let mut marks = Marks::default();
        let mut rows = self.rows.lock();
        for (row, within, from, count) in roster.layout.rows(addr, blocks) {
            let bytes = &data[from as usize * BLOCK_BYTES..(from + count) as usize * BLOCK_BYTES];
            rows.put(row, within, bytes, &mut puts, &mut marks)?;
        }
        let mut again = Vec::new();
        if copied {
            rows.note_flush();
            rows.protect(&claimed_on(roster), &mut puts, &mut marks);
            again.append(&mut marks.again);
        }
        drop(rows);
        Ok(self.with_entries(again, puts, marks))
    }

    /// Submits what is to be written, registered also for the rows that are written once more.
    fn with_entries(&self, again: Vec<Row>, puts: Vec<Put>, mut marks: Marks) -> Started {
        let registered = again.iter().map(|row| {
            let (first, blocks) = row.range();
            self.enter_of(first, blocks)
        });
        marks.under_way = registered.collect();
        // Whoever joined before that gets it, too; whoever joins later copies it.
        let (tickets, left_out) = submit(&self.roster(), puts);
        (tickets, left_out, marks)
    }

    /// Waits for what was started; then it counts as written.
    pub(super) fn end_rows(&self, (tickets, left_out, marks): Started) -> Result<(), DeviceError> {
        let mut failed = Vec::new();
        for (member, ticket) in tickets {
            match ticket.wait() {
                Ok(_) => drop(member.completed.fetch_add(1, SeqCst)),
                Err(e) => failed.push((member, e)),
            }
        }
        let lost = failed.into_iter().try_for_each(|(m, e)| self.lose(&m, e));
        let written = lost.and_then(|()| if left_out { self.settle() } else { Ok(()) });
        // Not before: until then what a device failed to write is nowhere taken for written.
        marks.under_way.iter().for_each(|n| self.leave_of(*n));
        match &written {
            Ok(()) => self.rows.lock().apply(&marks),
            Err(_) => self.rows.lock().give_up(&marks),
        }
        written
    }

    /// Before a flush: what it covers can be read without any one device. Where the row log is full, that waits for others to write, and
    /// may flush.
    pub(super) fn protect(&self) -> Result<(), DeviceError> {
        if !self.has_rows() {
            return Ok(());
        }
        self.rows.lock().note_flush();
        loop {
            let members = claimed_on(&self.roster());
            let (mut puts, mut marks) = (Vec::new(), Marks::default());
            let mut rows = self.rows.lock();
            rows.protect(&members, &mut puts, &mut marks);
            let seen = rows.changes();
            drop(rows);
            let (again, lacking) = (std::mem::take(&mut marks.again), marks.lacking);
            let started = self.with_entries(again, puts, marks);
            self.end_rows(started)?;
            if !lacking {
                return Ok(());
            }
            self.await_slot(seen)?;
        }
    }

    /// A row needs a slot of the row log, and none was free when so much had changed (`seen`): flushes if that gives one back, or else
    /// waits until others have, or until they need one less.
    fn await_slot(&self, seen: u64) -> Result<(), DeviceError> {
        if broken(Break::RowLogFullFails) {
            return Err(FULL);
        }
        let gives_back = self.rows.lock().gives_back();
        if gives_back {
            return self.flush_protected(false);
        }
        let turns = self.clock().and_then(|clock| clock.turns());
        let mut looks = 0;
        while looks < LOOKS_MAX {
            if self.rows.lock().changes() != seen {
                return Ok(());
            }
            match turns {
                Some(turns) => turns.let_others_run(),
                None => std::thread::sleep(LOOK),
            }
            looks += if self.is_writing() { 1 } else { LOOK_COUNTS_ALONE };
        }
        Err(FULL)
    }

    /// Before what counts without a flush: it can be read without any one device, as long as power is not cut. May flush, so that slots
    /// of the row log are given back.
    ///
    /// # Errors
    /// Device errors.
    pub fn protect_unflushed(&self) -> Result<(), DeviceError> {
        self.protect()?;
        if self.rows.lock().is_short() { self.flush() } else { Ok(()) }
    }

    /// Writes blocks that are to count without a flush; whether they do, or [`Devices::protect_unflushed`] has to follow.
    ///
    /// # Errors
    /// Device errors.
    pub fn write_unflushed(self: &Arc<Self>, addr: Addr, data: Arc<AlignedBuf>) -> Result<bool, DeviceError> {
        let entry = self.enter(addr, (data.len() / BLOCK_BYTES) as u32);
        if !entry.roster.in_rows(addr) {
            entry.end();
            return self.write(addr, data).map(|()| true);
        }
        let copied = self.write_rows(entry, addr, &data, true)?;
        Ok(copied && !self.rows.lock().is_short())
    }

    /// Starts reading blocks that lie in rows. What is on `avoid`, or on no active device, is rebuilt; only with `strict` is
    /// nothing read from there where it cannot be.
    pub(super) fn read_rows(
        roster: &Arc<Roster>,
        addr: Addr,
        blocks: u32,
        avoid: Option<u16>,
        strict: bool,
    ) -> Result<RowsReading, DeviceError> {
        let (mut runs, mut known, mut rebuilt) = (Runs::default(), Vec::new(), Vec::new());
        let has_found = roster.rows.lock().has_found();
        for (row, within, from, count) in roster.layout.rows(addr, blocks) {
            let mut at = 0;
            while at < count {
                let (unit, block) = (((within + at) / UNIT_BLOCKS) as usize, (within + at) % UNIT_BLOCKS);
                let n = (UNIT_BLOCKS - block).min(count - at);
                let place = row.units[unit];
                let active = roster.is_active(place.device);
                if active && Some(place.device) != avoid {
                    runs.add(Place { block: place.block + u64::from(block), ..place }, from + at, n);
                    let rows = roster.rows.lock();
                    let copy = |i: u32| Some((from + at + i, rows.copy_of(&row, unit, block + i)?.to_vec()));
                    known.extend((0..if has_found { n } else { 0 }).filter_map(copy));
                } else {
                    let mut parts = Vec::new();
                    let said = roster.rows.lock().known(&row, unit, block..block + n);
                    match said {
                        None => parts.push((block, n)),
                        Some(all) => {
                            for (i, one) in (0..).zip(all) {
                                match one {
                                    Known::Bytes(bytes) => known.push((from + at + i, bytes)),
                                    Known::Rebuild => parts.push((block + i, 1)),
                                }
                            }
                        }
                    }
                    for (start, n) in parts {
                        let others = Self::others(roster, &row, unit);
                        match others {
                            Some(others) => {
                                let mut copies = Vec::new();
                                let rows = roster.rows.lock();
                                let copied = |p: &Place| {
                                    let u = row.units.iter().position(|o| o == p).filter(|_| has_found && n == 1)?;
                                    rows.copy_of(&row, u, start).map(<[u8]>::to_vec)
                                };
                                let mut places = Vec::new();
                                for p in others {
                                    match copied(&p) {
                                        Some(bytes) => copies.push(bytes),
                                        None => places.push(p),
                                    }
                                }
                                rebuilt.push((from + at + start - block, n, places, start, copies));
                            }
                            None if active && !strict => {
                                let place = Place { block: place.block + u64::from(start), ..place };
                                runs.add(place, from + at + start - block, n);
                            }
                            None => return Err(DeviceError::Missing),
                        }
                    }
                }
                at += n;
            }
        }
        let parts = runs
            .0
            .into_iter()
            .map(|run| (super::requests::submit_run(roster, &run), super::requests::count_read(roster, &run), run));
        let parts = parts.collect();
        let read = |(from, n, others, start, copies): (u32, u32, Vec<Place>, u32, Vec<Vec<u8>>)| {
            let op =
                |p: &Place| Op::Read { offset: bytes(p.block + u64::from(start)), bytes: n as usize * BLOCK_BYTES };
            let submit = |p: &Place| {
                roster.member(p.device).map_or_else(|| Ticket::done(Err(DeviceError::Missing)), |m| m.submit(op(p)))
            };
            (from, others.iter().map(submit).collect(), copies)
        };
        let rebuilt = rebuilt.into_iter().map(read).collect();
        Ok(RowsReading { roster: roster.clone(), addr, blocks, parts, known, rebuilt })
    }

    /// Where all the others of a row are that give this unit of it, when all of them are there.
    fn others(roster: &Roster, row: &Row, unit: usize) -> Option<Vec<Place>> {
        let units = row.units.iter().enumerate().filter(|(u, _)| *u != unit).map(|(_, p)| *p);
        let all: Vec<Place> = units.chain([row.parity]).collect();
        all.iter().all(|p| roster.is_active(p.device)).then_some(all)
    }

    /// Devices that these blocks, which lie in rows, can be read without.
    pub(super) fn ways_around_rows(roster: &Roster, addr: Addr, blocks: u32) -> Vec<u16> {
        let mut out = std::collections::BTreeSet::new();
        for (row, within, _, count) in roster.layout.rows(addr, blocks) {
            for unit in within / UNIT_BLOCKS..(within + count).div_ceil(UNIT_BLOCKS) {
                let device = row.units[unit as usize].device;
                if roster.is_active(device) && Self::others(roster, &row, unit as usize).is_some() {
                    out.insert(device);
                }
            }
        }
        out.into_iter().collect()
    }

    /// Reads blocks, and tells whether a device that is there did not give what lies in their place, so that it came from elsewhere, or
    /// not at all.
    pub fn read_telling(&self, addr: Addr, blocks: u32) -> (Outcome, bool) {
        let roster = self.readers();
        if !roster.in_rows(addr) {
            return (Self::submit_read_of(&roster, addr, blocks, None).wait(), false);
        }
        match Self::read_rows(&roster, addr, blocks, None, false) {
            Err(e) => (Err(e), false),
            Ok(reading) => reading.finish(),
        }
    }

    /// Whether a device did not give something of these blocks lately, which came from elsewhere: told once.
    pub fn take_unread(&self, addr: Addr, blocks: u32) -> bool {
        self.unread.take(addr, blocks)
    }

    /// What was written anew where a device did not give it: whether it does now. Then what it does not give is worth writing again.
    pub fn gives_again(&self, addr: Addr, blocks: u32) -> bool {
        let (read, unread) = self.read_telling(addr, blocks);
        let gives = read.is_ok() && !unread;
        if gives {
            let roster = self.roster();
            roster.layout.each_piece(addr, blocks, |_, _, places| {
                places.iter().filter_map(|p| roster.member(p.device)).for_each(|m| m.mending.restore());
            });
        }
        gives
    }

    /// Writes what was there already, or should have been, where it lies: parity is not concerned.
    ///
    /// # Errors
    /// Device errors.
    pub fn write_units(self: &Arc<Self>, addr: Addr, data: &Arc<AlignedBuf>) -> Result<(), DeviceError> {
        let blocks = (data.len() / BLOCK_BYTES) as u32;
        let entry = self.enter(addr, blocks);
        let mut runs = Runs::default();
        entry.roster.layout.each_piece(addr, blocks, |from, count, places| runs.add(places[0], from, count));
        let put = |run: &Run| Put { place: Place { device: run.device, block: run.block }, data: gathered(run, data) };
        let ended = self.put_and_wait(&entry.roster, runs.0.iter().map(put).collect());
        entry.end();
        ended
    }
}

/// The row log.
impl Devices {
    /// A device that is to be a member has no row log of another life.
    ///
    /// # Errors
    /// Those of that device.
    pub fn clear_row_log(&self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        if self.has_rows() {
            let (offset, data) = (bytes(AREA_BLOCKS), Arc::new(AlignedBuf::zeroed(UNIT_BYTES)));
            device.submit(Op::Write { offset, data }).wait()?;
        }
        Ok(())
    }

    /// The same of a stale member: what a cut left there alone, and the others never knew, names rows that have other content by now.
    pub(super) fn clear_stale_row_log(&self, index: u16) -> Result<(), DeviceError> {
        let stale = self.roster().member(index).filter(|m| m.is(STALE) && !broken(Break::StaleRowLog)).cloned();
        stale.and_then(|m| m.device.clone()).map_or(Ok(()), |device| self.clear_row_log(device.as_ref()))
    }

    /// From now on the row log may hold what is to be forgotten.
    pub fn begin_row_log_wipe(&self) {
        if self.has_rows() {
            self.rows.lock().begin_wipe();
        }
    }

    /// Zeroes what of the row log nobody uses, and leaves meanwhile what syncs may need; whether nothing is left that may hold what was
    /// forgotten.
    ///
    /// # Errors
    /// Device errors.
    pub fn wipe_row_log(&self) -> Result<bool, DeviceError> {
        if !self.has_rows() {
            return Ok(true);
        }
        loop {
            let slots = self.rows.lock().take_unwiped();
            if slots.is_empty() {
                return Ok(self.rows.lock().is_wiped());
            }
            let wiped = self.zero_slots(&slots);
            self.rows.lock().wiped(&slots, wiped.is_ok());
            wiped?;
        }
    }

    /// Zeroes these slots of the row log on all devices.
    fn zero_slots(&self, slots: &[u8]) -> Result<(), DeviceError> {
        let roster = self.roster();
        let zeros = Arc::new(AlignedBuf::zeroed(2 * UNIT_BYTES));
        let mut puts = Vec::new();
        for slot in slots {
            let block = AREA_BLOCKS + RowLog::entry_block(*slot, 0);
            puts.extend(roster.active().map(|m| Put { place: Place { device: m.index, block }, data: zeros.clone() }));
        }
        self.put_and_wait(&roster, puts)
    }

    /// Writes what is of no row that is being filled.
    pub(super) fn put_and_wait(&self, roster: &Roster, puts: Vec<Put>) -> Result<(), DeviceError> {
        let (tickets, left_out) = submit(roster, puts);
        self.end_rows((tickets, left_out, Marks::default()))
    }
}

/// A read of blocks that lie in rows.
pub(super) struct RowsReading {
    roster: Arc<Roster>,
    addr: Addr,
    blocks: u32,
    parts: Vec<(Ticket, Option<super::requests::Counted>, Run)>,
    known: Vec<(u32, Vec<u8>)>,
    /// From which block on, what of the row is read, and what of it the row log had.
    rebuilt: Vec<(u32, Vec<Ticket>, Vec<Vec<u8>>)>,
}

impl RowsReading {
    /// Waits; and whether a device did not give what was asked of it in the first place.
    fn finish(self) -> (Outcome, bool) {
        let mut unread = false;
        (self.finish_noting(&mut unread), unread)
    }

    fn finish_noting(self, unread: &mut bool) -> Outcome {
        let Self { roster, addr, blocks, parts, known, rebuilt } = self;
        let whole =
            known.is_empty() && rebuilt.is_empty() && matches!(&parts[..], [(_, _, run)] if run.is_whole(blocks));
        let mut out = if whole { None } else { Some(AlignedBuf::unset(blocks as usize * BLOCK_BYTES)) };
        for (ticket, counted, run) in parts {
            let elsewhere = || Devices::from_rows(&roster, addr, &run).ok().flatten();
            let buf = match answered(&roster, &run, ticket, counted, elsewhere) {
                Ok(buf) => buf,
                Err(e) => {
                    *unread = true;
                    Devices::rebuilt(&roster, addr, &run, e)?
                }
            };
            let Some(out) = &mut out else { return Ok(buf) };
            let mut at = 0;
            for (from, count) in &run.spans {
                let (start, bytes) = (*from as usize * BLOCK_BYTES, *count as usize * BLOCK_BYTES);
                out[start..start + bytes].copy_from_slice(&buf[at..at + bytes]);
                at += bytes;
            }
        }
        let mut out = out.unwrap_or_else(|| AlignedBuf::zeroed(0));
        for (from, bytes) in known {
            let start = from as usize * BLOCK_BYTES;
            out[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        for (from, tickets, copies) in rebuilt {
            let parts: Vec<AlignedBuf> = tickets.into_iter().map(Ticket::wait).collect::<Result<_, _>>()?;
            let bytes = xor(parts.iter().map(|p| &p[..]).chain(copies.iter().map(|c| &c[..])));
            let start = from as usize * BLOCK_BYTES;
            out[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(out)
    }
}

impl Pending for RowsReading {
    fn wait(self: Box<Self>) -> Outcome {
        self.finish().0
    }

    fn is_done(&self) -> bool {
        self.parts.iter().all(|(t, ..)| t.is_done())
            && self.rebuilt.iter().all(|(_, all, _)| all.iter().all(Ticket::is_done))
    }
}

impl Devices {
    /// What a run that failed was to bring, from the rest of its rows.
    fn rebuilt(roster: &Arc<Roster>, addr: Addr, run: &Run, error: DeviceError) -> Outcome {
        if let Some(m) = roster.member(run.device) {
            m.read_errors.fetch_add(1, SeqCst);
        }
        let rebuilt = match Self::from_rows(roster, addr, run) {
            Ok(Some(buf)) => Ok(buf),
            // Of each row another device may have what this one has not.
            _ if run.blocks > 1 && !broken(Break::RowsInUnits) => {
                let elsewhere = |one: &Run| Self::from_rows(roster, addr, one).ok().flatten();
                Self::block_by_block(roster, run, elsewhere).ok_or(error)
            }
            _ => Err(error),
        };
        // Who verifies it writes it anew. A device that gives nothing all the same is not written to for ever.
        let tried = roster.member(run.device).is_none_or(|m| m.mending.is_at_end());
        if rebuilt.is_ok() && !tried {
            run.spans.iter().for_each(|(from, count)| roster.unread.note(addr.add(*from), *count));
            roster.member(run.device).and_then(|m| m.mending.probe(|| None::<()>));
        }
        rebuilt
    }

    /// What a run is to bring, from the rest of its rows, where that is there.
    fn from_rows(roster: &Arc<Roster>, addr: Addr, run: &Run) -> Result<Option<AlignedBuf>, DeviceError> {
        let mut out = AlignedBuf::unset(run.blocks as usize * BLOCK_BYTES);
        let mut at = 0;
        for (from, count) in &run.spans {
            let Ok(read) = Self::read_rows(roster, addr.add(*from), *count, Some(run.device), true) else {
                return Ok(None);
            };
            if !read.parts.is_empty() {
                return Ok(None);
            }
            let buf = Box::new(read).wait()?;
            out[at..at + buf.len()].copy_from_slice(&buf);
            at += buf.len();
        }
        Ok(Some(out))
    }
}
