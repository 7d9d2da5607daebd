//! Changes of the device table, and of what there is, while the volume is in use.
//!
//! Invariants
//! 1. What the table says is durable on every member before anybody acts by it.

use super::{Devices, Layout, Member, Standing, Table, slots_of, write_table};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError};
use nenrin_format::BLOCK_BYTES;
use nenrin_format::superblock::{self, Band, DeviceEntry, Superblock};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A place on a device: where it begins, in bytes.
type At = (Arc<dyn BlockDevice>, u64);

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
    /// That of `change`, with nothing done; when the table could not be written.
    pub fn change(&self, change: impl FnOnce(&mut Vec<DeviceEntry>, u64) -> crate::Result<()>) -> crate::Result<()> {
        let mut table = self.table();
        let Some(superblock) = &mut table.superblock else { return Err(DeviceError::Missing.into()) };
        let mut entries = superblock.devices.clone();
        change(&mut entries, superblock.table_generation() + 1)?;
        let ends = self.move_tails(&superblock.devices, &entries)?;
        superblock.devices = entries;
        let superblock = superblock.clone();
        let written = write_table(&self.roster(), &superblock);
        drop(table);
        if let Err((failed, error)) = written {
            self.lose(&failed, error)?;
        }
        let _table = self.table();
        self.change_roster(|r| r.count = superblock.members());
        // Who finds nothing at the beginning of a device looks at its end, and must not find what is past.
        let zeros = Arc::new(AlignedBuf::zeroed(superblock::AREA_BLOCKS as usize * BLOCK_BYTES));
        for (device, offset) in ends {
            device.write(offset, zeros.clone())?;
            device.flush()?;
        }
        Ok(())
    }

    /// Where the length of a device changes its tail area is put where it will be; those that nothing will be put over.
    fn move_tails(&self, before: &[DeviceEntry], after: &[DeviceEntry]) -> Result<Vec<At>, DeviceError> {
        let area = |blocks: u64| blocks.saturating_sub(superblock::AREA_BLOCKS) * BLOCK_BYTES as u64;
        let mut ends = Vec::new();
        for (i, (old, new)) in before.iter().zip(after).enumerate() {
            let Some(device) = self.device(i as u16) else { continue };
            if old.blocks == new.blocks || old.removed || new.removed {
                continue;
            }
            let slots = device.read(area(old.blocks), superblock::AREA_BLOCKS as usize * BLOCK_BYTES)?;
            device.write(area(new.blocks), Arc::new(slots))?;
            device.flush()?;
            if new.blocks < old.blocks {
                ends.push((device, area(old.blocks)));
            }
        }
        Ok(ends)
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

    /// The table is about to list a device here, which will be taken in: until then it is no member that failed.
    pub fn expect(&self, index: u16) {
        self.table().expected = Some(index);
    }

    /// A device that the table has becomes a member: it gets the newest root.
    pub fn take_in(&self, index: u16, device: Arc<dyn BlockDevice>) -> Result<(), DeviceError> {
        let mut table = self.table();
        table.expected = None;
        let Some(superblock) = &table.superblock else { return Err(DeviceError::Missing) };
        let root = Superblock { device_index: index, ..superblock.clone() };
        let data = Arc::new(AlignedBuf::padded(&root.encode()));
        for block in slots_of(superblock, index).into_iter().flatten() {
            device.write(block * BLOCK_BYTES as u64, data.clone())?;
        }
        self.clear_row_log(device.as_ref())?;
        device.flush()?;
        self.seat(index, Some(device), superblock.members());
        Ok(())
    }

    /// Nothing is written to a device any more; it, and how much of it was used.
    pub fn unseat(&self, index: u16) -> Option<(Arc<dyn BlockDevice>, u64)> {
        let mut table = self.table();
        table.expected = table.expected.filter(|i| *i != index);
        let superblock = table.superblock.as_ref()?;
        let blocks = superblock.devices.get(usize::from(index))?.blocks;
        let device = self.device(index);
        self.seat(index, None, superblock.members());
        Some((device?, blocks))
    }

    /// From now on segments lie like this. What is needed at the moment lies as before.
    pub fn lay(&self, bands: Vec<Band>) {
        let _table = self.table();
        self.change_roster(|r| r.layout = Arc::new(Layout::new(r.layout.segment_blocks, bands)));
    }

    /// Puts a device in a place of the table, or takes the one that is there away. `count`: how many there should be.
    fn seat(&self, index: u16, device: Option<Arc<dyn BlockDevice>>, count: usize) {
        let standing = if device.is_some() { Standing::Active } else { Standing::Absent };
        self.change_roster(|r| {
            while r.members.len() <= usize::from(index) {
                r.members.push(Member::new(r.members.len() as u16, None, Standing::Absent as u8));
            }
            if let Some(place) = r.members.get_mut(usize::from(index)) {
                if device.is_none() {
                    // Who still sees it there reads it no more.
                    place.stand(standing as u8);
                }
                *place = Member::new(index, device, standing as u8);
            }
            r.count = count;
        });
    }
}
