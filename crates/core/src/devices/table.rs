//! Changes of the device table, and of what there is, while the volume is in use.
//!
//! Invariants
//! 1. What the table says is durable on every member before anybody acts by it.
//! 2. While the table is held nobody waits for a device in a way that does not end when that is given up.

use super::{Apart, Devices, Layout, Member, Standing, Table, is_writable, write_slot, write_table};
use crate::breaks::{Break, broken};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Op};
use nenrin_format::BLOCK_BYTES;
use nenrin_format::superblock::{self, Band, DeviceEntry, SlotHead, Superblock};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The tail area of a device whose length changes.
struct Tail {
    member: Arc<Member>,
    /// What it holds.
    slots: Arc<AlignedBuf>,
    /// Lengths of the device, in blocks: before and after.
    before: u64,
    after: u64,
}

impl Tail {
    /// Puts it where it will be.
    fn put(&self) -> Result<(), DeviceError> {
        self.write(area(self.after), self.slots.clone())
    }

    /// What of it lies behind the new end reads as zeros: who finds nothing at the beginning of a device looks at its end, and must not
    /// find what is past. Where the device has become longer it is room for segments.
    fn clear_old(&self) -> Result<(), DeviceError> {
        if self.after > self.before {
            return Ok(());
        }
        let from = area(self.before).max(if broken(Break::TailsOverlap) { 0 } else { self.after });
        self.write(from, Arc::new(AlignedBuf::zeroed((self.before - from) as usize * BLOCK_BYTES)))
    }

    fn write(&self, block: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        let Some(device) = &self.member.device else { return Err(DeviceError::Missing) };
        device.submit(Op::Write { offset: block * BLOCK_BYTES as u64, data }).wait()?;
        device.submit(Op::Flush).wait().map(drop)
    }
}

/// The area at the end of a device of so many blocks. Where blocks of it cannot be read: of a slot its twin at the beginning of the device,
/// if that is one of this volume, or was never written; of all else zeros.
///
/// # Errors
/// When nothing of it can be read, or neither a slot nor its twin, also when asked again.
fn read_tail(device: &dyn BlockDevice, blocks: u64, uuid: &[u8; 16]) -> Result<AlignedBuf, DeviceError> {
    let read = |block: u64, count: u64| {
        let (offset, bytes) = (block * BLOCK_BYTES as u64, count as usize * BLOCK_BYTES);
        device.submit(Op::Read { offset, bytes }).wait()
    };
    let error = match read(area(blocks), superblock::AREA_BLOCKS) {
        Err(error) if !broken(Break::TailWhole) => error,
        whole => return whole,
    };
    let (mut tail, mut is_given) = (AlignedBuf::zeroed(superblock::AREA_BLOCKS as usize * BLOCK_BYTES), false);
    for (i, block) in (0..).zip(tail.chunks_exact_mut(BLOCK_BYTES)) {
        let own = read(area(blocks) + i, 1);
        is_given |= own.is_ok();
        let is_slot = (superblock::SLOT_BLOCK..superblock::SLOT_BLOCK + superblock::SLOTS_PER_AREA).contains(&i);
        let is_ours = |twin: &AlignedBuf| Superblock::decode(twin).is_ok_and(|s| s.uuid == *uuid);
        let is_twin = |twin: &AlignedBuf| is_ours(twin) || twin.iter().all(|b| *b == 0);
        let given = match own {
            Err(_) if !is_slot => continue,
            Err(error) => match read(i, 1).ok().filter(is_twin) {
                Some(twin) => twin,
                // What it says is nowhere else, perhaps.
                None if broken(Break::TailGuessed) => continue,
                None => read(area(blocks) + i, 1).or_else(|_| read(i, 1).ok().filter(is_twin).ok_or(error))?,
            },
            Ok(given) => given,
        };
        block.copy_from_slice(&given);
    }
    if is_given { Ok(tail) } else { Err(error) }
}

/// Where a device is longer than so many blocks, and has slots of this volume at its end, they read as zeros.
fn clear_end(member: &Member, used: u64, uuid: &[u8; 16]) -> Result<(), DeviceError> {
    let Some(device) = &member.device else { return Ok(()) };
    let blocks = device.geometry().bytes / BLOCK_BYTES as u64;
    let from = area(blocks).max(used);
    if from >= blocks {
        return Ok(());
    }
    let (offset, bytes) = (from * BLOCK_BYTES as u64, (blocks - from) as usize * BLOCK_BYTES);
    let is_ours = |slot: &[u8]| SlotHead::decode(slot).is_ok_and(|head| head.uuid == *uuid);
    if !tells_at_the_beginning(&**device, member.index, used, uuid) {
        return Ok(());
    }
    // A block that cannot be read is no root; the others count one by one then.
    let one = |i: u64| Op::Read { offset: offset + i * BLOCK_BYTES as u64, bytes: BLOCK_BYTES };
    let found = match device.submit(Op::Read { offset, bytes }).wait() {
        Ok(all) => all.chunks_exact(BLOCK_BYTES).any(is_ours),
        Err(_) => (0..blocks - from).any(|i| device.submit(one(i)).wait().is_ok_and(|slot| is_ours(&slot))),
    };
    if found {
        device.submit(Op::Write { offset, data: Arc::new(AlignedBuf::zeroed(bytes)) }).wait()?;
        device.submit(Op::Flush).wait()?;
    }
    Ok(())
}

/// Whether who looks at the beginning of a device finds that so many blocks of it are used: else what is at its end may be all that can be found.
fn tells_at_the_beginning(device: &dyn BlockDevice, index: u16, used: u64, uuid: &[u8; 16]) -> bool {
    let of = |s: Superblock| s.uuid == *uuid && s.devices.get(usize::from(index)).is_some_and(|e| e.blocks == used);
    let slot = |i: u64| {
        let offset = (superblock::SLOT_BLOCK + i) * BLOCK_BYTES as u64;
        device.submit(Op::Read { offset, bytes: BLOCK_BYTES }).wait()
    };
    (0..superblock::SLOTS_PER_AREA).any(|i| slot(i).is_ok_and(|bytes| Superblock::decode(&bytes).is_ok_and(of)))
}

/// Where the tail area of a device of so many blocks begins.
const fn area(blocks: u64) -> u64 {
    blocks.saturating_sub(superblock::AREA_BLOCKS)
}

/// What reports tell of the table: as it was when nobody held it last, since it is held while devices are waited for.
pub(super) struct Shown {
    pub devices: Vec<DeviceEntry>,
    pub why: Vec<(u16, String)>,
    pub failed: Vec<(u16, String)>,
}

impl Shown {
    pub fn of(table: &Table) -> Self {
        let devices = table.superblock.as_ref().map_or_else(Vec::new, |s| s.devices.clone());
        Self { devices, why: table.why.clone(), failed: table.failed.clone() }
    }
}

/// A device is expected in a place of the table: whatever becomes of that, not for longer than this is there.
pub(crate) struct Expected<'a>(&'a Devices);

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        if !broken(Break::ExpectedForEver) {
            self.0.table().expected = None;
        }
    }
}

/// The table, held.
pub(super) struct TableGuard<'a> {
    pub guard: MutexGuard<'a, Table>,
    pub shown: &'a Mutex<Shown>,
}

impl Deref for TableGuard<'_> {
    type Target = Table;
    fn deref(&self) -> &Table {
        &self.guard
    }
}

impl DerefMut for TableGuard<'_> {
    fn deref_mut(&mut self) -> &mut Table {
        &mut self.guard
    }
}

impl Drop for TableGuard<'_> {
    fn drop(&mut self) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Shown::of(&self.guard);
    }
}

impl Devices {
    /// The device table as the roots have it.
    pub fn entries(&self) -> Vec<DeviceEntry> {
        self.table().superblock.as_ref().map_or_else(Vec::new, |s| s.devices.clone())
    }

    /// Changes the device table: the newest root is written again with it, one area durable before the other. What `change`
    /// is given: the table, and the number that the entries it changes take.
    ///
    /// # Errors
    /// What keeps the volume from going on: the table could not be written. Inside, why nothing was done.
    pub fn change(
        &self,
        change: impl FnOnce(&mut Vec<DeviceEntry>, u64),
    ) -> Result<Result<(), DeviceError>, DeviceError> {
        let mut table = self.table();
        let Some(superblock) = &mut table.superblock else { return Ok(Err(DeviceError::Missing)) };
        let mut entries = superblock.devices.clone();
        change(&mut entries, superblock.table_generation() + 1);
        let changed = Superblock { devices: entries, ..superblock.clone() };
        let tails = match is_writable(&changed).and_then(|()| self.tails(superblock, &changed.devices)) {
            Err(e) => return Ok(Err(e)),
            Ok(tails) => tails,
        };
        superblock.devices.clone_from(&changed.devices);
        let superblock = changed;
        // Those that the table tells of are there before it does.
        let moved = tails.iter().try_for_each(|t| t.put().map_err(|e| (t.member.clone(), e)));
        let written = moved.and_then(|()| write_table(&self.roster(), &superblock));
        drop(table);
        if let Err((failed, error)) = written {
            self.lose(&failed, error)?;
        }
        let table = self.table();
        self.change_roster(|r| r.count = superblock.members());
        let cleared = tails.iter().try_for_each(|t| t.clear_old().map_err(|e| (t.member.clone(), e)));
        drop(table);
        cleared.or_else(|(failed, error)| self.lose(&failed, error)).map(Ok)
    }

    /// The tail areas of devices whose length changes.
    fn tails(&self, before: &Superblock, after: &[DeviceEntry]) -> Result<Vec<Tail>, DeviceError> {
        let roster = self.roster();
        let changed = before.devices.iter().zip(after).zip(&roster.members);
        let changed = changed.filter(|((old, new), _)| old.blocks != new.blocks && !old.removed && !new.removed);
        // One that failed is brought up to date before it counts, and that needs none of its slots.
        let changed = changed.filter(|(_, member)| member.is_active());
        let tail = |((old, new), member): ((&DeviceEntry, &DeviceEntry), &Arc<Member>)| {
            let device = member.device.as_ref()?;
            let slots = read_tail(&**device, old.blocks, &before.uuid).map(Arc::new);
            Some(slots.map(|slots| Tail { member: member.clone(), slots, before: old.blocks, after: new.blocks }))
        };
        changed.filter_map(tail).collect()
    }

    /// Before the first write of a mount: what a change of length that was cut left at the very end of a device is gone. Who finds nothing at
    /// the beginning of the device looks there, and roots of that time must not be found once there are others.
    pub fn clear_left(&self) -> Result<(), DeviceError> {
        let table = self.table();
        let Some(superblock) = table.superblock.clone().filter(|_| !broken(Break::OldEndsLeft)) else { return Ok(()) };
        drop(table);
        let roster = self.roster();
        for member in roster.active() {
            let used = superblock.devices.get(usize::from(member.index)).map_or(u64::MAX, |e| e.blocks);
            let cleared = clear_end(member, used, &superblock.uuid);
            cleared.or_else(|error| self.lose(member, error))?;
        }
        Ok(())
    }

    fn device(&self, index: u16) -> Option<Arc<dyn BlockDevice>> {
        self.roster().member(index)?.device.clone()
    }

    /// Blocks that a device has now.
    pub fn length(&self, index: u16) -> Result<u64, DeviceError> {
        let device = self.device(index).ok_or(DeviceError::Missing)?;
        device.remeasure()?;
        Ok(device.geometry().bytes / BLOCK_BYTES as u64)
    }

    /// The table is about to list a device here, which will be taken in: until then, or until that is given up, it is no member that failed.
    pub fn expect(&self, index: u16) -> Expected<'_> {
        self.table().expected = Some(index);
        Expected(self)
    }

    /// A device that the table has becomes a member: it gets the newest root.
    pub fn take_in(&self, index: u16, device: Arc<dyn BlockDevice>) -> Result<(), DeviceError> {
        let member = Member::new(index, Some(device), Standing::Joining as u8);
        self.look_at(&member);
        let Some(device) = &member.device else { return Err(DeviceError::Missing) };
        // Others wait for the table: what takes longer comes before.
        let cleared = self.clear_row_log(device.as_ref()).and_then(|()| device.submit(Op::Flush).wait());
        let mut table = self.table();
        table.expected = None;
        cleared?;
        let Some(superblock) = &table.superblock else { return Err(DeviceError::Missing) };
        (0..2).try_for_each(|area| write_slot(&member, superblock, area))?;
        member.stand(Standing::Active as u8);
        self.seat(index, Some(member), superblock.members());
        Ok(())
    }

    /// Nothing is written to a device any more; it, and how much of it was used.
    pub fn unseat(&self, index: u16) -> Option<(Apart, u64)> {
        let mut table = self.table();
        table.expected = table.expected.filter(|i| *i != index);
        let superblock = table.superblock.as_ref()?;
        let blocks = superblock.devices.get(usize::from(index))?.blocks;
        let roster = self.roster();
        let member = roster.member(index).filter(|m| m.device.is_some()).cloned();
        let members = superblock.members();
        drop(roster);
        if self.roster().joins(index).is_some() && !broken(Break::LeavingJoins) {
            self.give_up_joining(&mut table, "its place was taken out of the volume".into());
        }
        self.seat(index, None, members);
        Some((Apart::of(self, member?), blocks))
    }

    /// From now on segments lie like this. What is needed at the moment lies as before.
    pub fn lay(&self, bands: Vec<Band>) {
        let _table = self.table();
        self.change_roster(|r| r.layout = Arc::new(Layout::new(r.layout.segment_blocks, bands)));
    }

    /// Puts a device in a place of the table, or takes the one that is there away. `count`: how many there should be.
    fn seat(&self, index: u16, member: Option<Arc<Member>>, count: usize) {
        self.change_roster(|r| {
            while r.members.len() <= usize::from(index) {
                r.members.push(Member::new(r.members.len() as u16, None, Standing::Absent as u8));
            }
            if let Some(place) = r.members.get_mut(usize::from(index)) {
                let absent = Standing::Absent as u8;
                if member.is_none() {
                    // Who still sees it there reads it no more.
                    place.stand(absent);
                }
                *place = member.unwrap_or_else(|| Member::new(index, None, absent));
            }
            r.count = count;
        });
    }
}
