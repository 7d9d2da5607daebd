//! Adding, removing and resizing devices: a change of the device table, which says how segments should lie, and, when they
//! do, another that says so.

use super::super::Fs;
use super::Laying;
use crate::breaks::{Break, broken};
use crate::devices::bands_for;
use crate::storage::cleared_areas;
use crate::{Error, LayingStatus, Result, SEGMENTS_MIN, heartbeat};
use nenrin_device::BlockDevice;
use nenrin_format::superblock::{AREA_BLOCKS, BANDS_MAX, Band, DEVICES_MAX, DeviceEntry, Profile, UNIT_BLOCKS};
use nenrin_format::{BLOCK_BYTES, SEGMENTS_MAX};
use std::sync::{Arc, MutexGuard};

fn refused<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Devices(text.into()))
}

/// Segments of bands.
fn segments(bands: &[Band]) -> u64 {
    bands.iter().map(|b| b.segments).sum()
}

/// As much of a device as asked for, or less: the area at its end must not lie over the one that counts until it is written.
fn apart(blocks: u64, used: u64) -> u64 {
    if blocks == used || blocks.abs_diff(used) >= AREA_BLOCKS || broken(Break::TailsOverlap) {
        blocks
    } else if blocks > used {
        used
    } else {
        used.saturating_sub(AREA_BLOCKS)
    }
}

/// Where a device is to come.
struct Coming<'a> {
    laying: MutexGuard<'a, Laying>,
    index: u16,
    entry: DeviceEntry,
}

impl Fs {
    /// Adds a device, on which nothing is needed; its number in the table. Its space becomes usable in
    /// [`Fs::laying_step`], or in the background.
    ///
    /// # Errors
    /// [`Error::Devices`] when it cannot be used, [`Error::Open`] when another host is at work on it; device errors.
    pub fn device_add(&self, device: Arc<dyn BlockDevice>, uuid: [u8; 16]) -> Result<u16> {
        let device = self.guarded(device);
        // It may take its time, or not answer, from its first request on: neither who changes other devices waits for that nor who closes the volume.
        let apart = self.storage.devices().apart(device.clone());
        heartbeat::refuse_to_replace(apart.devices(), self.clock.as_ref())?;
        drop(self.to_add(&device, uuid)?);
        let held = broken(Break::NewcomerHeld).then(|| self.laying());
        self.storage.clear_ends(apart)?;
        drop(held);
        let Coming { laying, index, entry } = self.to_add(&device, uuid)?;
        let expected = self.storage.devices().expect(index);
        // The others first: a device that they do not know must never be what a volume goes by.
        self.change_table(|entries, number| {
            entries.resize(entries.len().max(usize::from(index) + 1), entry);
            entries[usize::from(index)] = DeviceEntry::active(uuid, entry.blocks, number);
        })?;
        if let Err(e) = self.storage.take_in(index, device) {
            drop(expected);
            self.unlist(index)?;
            return Err(e);
        }
        drop(expected);
        self.begin(laying);
        self.lock().counters.devices_added += 1;
        Ok(index)
    }

    /// The place that a device would get, if it can be added as things are.
    fn to_add(&self, device: &Arc<dyn BlockDevice>, uuid: [u8; 16]) -> Result<Coming<'_>> {
        let laying = self.to_change()?;
        let (name, blocks) = (device.geometry().name, device.geometry().bytes / BLOCK_BYTES as u64);
        let mut entries = self.storage.entries();
        let index = entries.iter().position(|e| e.removed).unwrap_or(entries.len());
        if index >= DEVICES_MAX {
            return refused("a volume has at most 32 devices");
        }
        let before = self.target(&entries);
        let entry = DeviceEntry::active(uuid, blocks, 0);
        entries.resize(entries.len().max(index + 1), entry);
        entries[index] = entry;
        let after = self.target(&entries);
        if segments(&after) <= segments(&before) {
            return refused(format!("{name} is too small: with it the volume would hold no more than without"));
        }
        self.check_bands(&after)?;
        Ok(Coming { laying, index: index as u16, entry })
    }

    /// Takes a device out: what lies on it is moved to the others in [`Fs::laying_step`], or in the background, and then it
    /// is no member any more.
    ///
    /// # Errors
    /// [`Error::Devices`] when the others cannot hold what there is.
    pub fn device_remove(&self, index: u16) -> Result<()> {
        let laying = self.to_change()?;
        let mut entries = self.storage.entries();
        let number = index + 1;
        let Some(entry) = entries.get_mut(usize::from(index)).filter(|e| !e.removed) else {
            return refused(format!("there is no device {number}"));
        };
        if !entry.is_leaving() {
            entry.target_blocks = 0;
            let stay: Vec<&DeviceEntry> = entries.iter().filter(|e| !e.removed && !e.is_leaving()).collect();
            if stay.is_empty() {
                return refused("it is the last device of the volume");
            }
            if self.superblock().profile == Profile::Mirror && stay.len() < 2 {
                return refused("a mirror keeps two copies, so it needs two devices: add another one first");
            }
            if self.superblock().profile == Profile::Parity && stay.len() < 3 {
                return refused("a volume with parity needs three devices: add another one first");
            }
            if stay.iter().any(|e| !e.active) {
                return refused("another device is absent: mount with it again, or remove that one first");
            }
            self.check_fits(&entries)?;
            self.change_table(|entries, number| {
                if let Some(e) = entries.get_mut(usize::from(index)) {
                    (e.target_blocks, e.member_generation) = (0, number);
                }
            })?;
            if broken(Break::RemovedEarly) {
                self.storage.clear_slots(index)?;
            }
        }
        self.begin(laying);
        Ok(())
    }

    /// A device that is being emptied stays, with the length it has; whether it was to go.
    ///
    /// # Errors
    /// [`Error::Devices`] when there is no such device.
    pub fn device_keep(&self, index: u16) -> Result<bool> {
        let laying = self.to_change()?;
        let entries = self.storage.entries();
        let Some(entry) = entries.get(usize::from(index)).filter(|e| !e.removed) else {
            return refused(format!("there is no device {}", index + 1));
        };
        if entry.target_blocks == entry.blocks {
            return Ok(false);
        }
        self.change_table(|entries, number| {
            if let Some(e) = entries.get_mut(usize::from(index)) {
                (e.target_blocks, e.member_generation) = (e.blocks, number);
            }
        })?;
        self.begin(laying);
        Ok(true)
    }

    /// Uses so many blocks of a device: more, when it has become longer, or fewer, which are emptied first in
    /// [`Fs::laying_step`], or in the background. Where that is hardly another length it is somewhat less than asked for.
    ///
    /// # Errors
    /// [`Error::Devices`] when the device is not that long, or what there is would not fit.
    pub fn device_resize(&self, index: u16, blocks: u64) -> Result<()> {
        let laying = self.to_change()?;
        let mut entries = self.storage.entries();
        let number = index + 1;
        let Some(entry) = entries.get_mut(usize::from(index)).filter(|e| !e.removed) else {
            return refused(format!("there is no device {number}"));
        };
        if entry.is_leaving() {
            return refused(format!("device {number} is being removed"));
        }
        if !entry.active {
            return refused(format!("device {number} is absent"));
        }
        let there = self.storage.length(index)?;
        if blocks > there {
            let have = there * BLOCK_BYTES as u64;
            return refused(format!("device {number} has {have} bytes; it cannot be used beyond its end"));
        }
        let blocks = apart(blocks, entry.blocks);
        if blocks < 2 * AREA_BLOCKS + u64::from(self.storage.segment_blocks) {
            return refused(format!("device {number} would have no room for a segment; remove it instead"));
        }
        let grows = blocks > entry.blocks;
        entry.target_blocks = blocks;
        entry.blocks = entry.blocks.max(blocks);
        if grows {
            self.check_bands(&self.target(&entries))?;
        } else {
            self.check_fits(&entries)?;
        }
        self.change_table(|entries, number| {
            if let Some(e) = entries.get_mut(usize::from(index)) {
                (e.target_blocks, e.member_generation) = (blocks, number);
                e.blocks = e.blocks.max(blocks);
            }
        })?;
        self.begin(laying);
        Ok(())
    }

    /// Changes the device table, durably. Where it could not be written nothing more is: what was asked for may be true, or not.
    fn change_table(&self, change: impl FnOnce(&mut Vec<DeviceEntry>, u64)) -> Result<()> {
        self.owns_to_write()?;
        let changed = self.storage.change(change);
        self.fail_with_flushes()?;
        changed
    }

    /// A flush that failed ends all writing, whoever made it.
    pub(in super::super) fn fail_with_flushes(&self) -> Result<()> {
        let Some(why) = self.storage.flushes().failure() else { return Ok(()) };
        let mut inner = self.lock();
        inner.fail(&why);
        inner.check_alive()
    }

    /// The lock, where devices may be changed.
    fn to_change(&self) -> Result<MutexGuard<'_, Laying>> {
        let laying = self.laying();
        drop(self.lock_to_accept()?);
        if let Some(index) = self.storage.devices().joining() {
            return refused(format!("device {} is being brought up to date; try again when it is", index + 1));
        }
        if self.storage.segment_blocks % UNIT_BLOCKS != 0 {
            return refused("segments of this volume are no multiple of 64 KiB: its devices cannot be changed");
        }
        Ok(laying)
    }

    /// What is under way ends, and something else begins.
    fn begin(&self, mut laying: MutexGuard<'_, Laying>) {
        self.reopen(&mut laying);
        *laying = Laying::default();
        self.lock().laying = Some(LayingStatus::default());
    }

    fn check_bands(&self, target: &[Band]) -> Result<()> {
        let profile = self.lock().superblock.profile;
        if target.len() > BANDS_MAX {
            return refused(match profile {
                Profile::Single => "the profile single is possible on at most 8 devices; use stripe",
                _ => "these devices differ too much in length: a volume has at most 8 bands",
            });
        }
        if segments(target) > SEGMENTS_MAX {
            return refused(format!(
                "a volume has at most {SEGMENTS_MAX} segments, and these would be {}",
                segments(target)
            ));
        }
        Ok(())
    }

    /// Whether what there is fits how it is to lie.
    fn check_fits(&self, entries: &[DeviceEntry]) -> Result<()> {
        let profile = self.superblock().profile;
        let blocks: Vec<u64> = entries.iter().map(|e| if e.removed { 0 } else { e.target_blocks }).collect();
        let target = bands_for(profile, &blocks, self.storage.segment_blocks);
        self.check_bands(&target)?;
        let count = segments(&target);
        let inner = self.lock();
        let (_, more) = inner.usage_in(self, count);
        drop(inner);
        if count < SEGMENTS_MIN {
            let bytes = u64::from(self.storage.segment_blocks) * BLOCK_BYTES as u64;
            return refused(format!(
                "a volume has {SEGMENTS_MIN} segments at least, which are of {bytes} bytes here, and these would be {count}"
            ));
        }
        if more > 0 || broken(Break::DevicesHeld) {
            let more = more * BLOCK_BYTES as u64;
            return refused(format!(
                "it does not fit: {more} bytes have to go first (nenrin info tells what takes how much)"
            ));
        }
        Ok(())
    }

    /// Devices that were emptied as far as they were to be: lengths are as they should be, those to be removed are no members any
    /// more; whether any was.
    pub(super) fn settle_lengths(&self, entries: &[DeviceEntry]) -> Result<bool> {
        let mut any = false;
        for (i, e) in entries.iter().enumerate().filter(|(_, e)| !e.removed && e.target_blocks < e.blocks) {
            any = true;
            if e.is_leaving() {
                self.unlist(i as u16)?;
                continue;
            }
            self.change_table(|entries, number| {
                if let Some(e) = entries.get_mut(i) {
                    (e.blocks, e.member_generation) = (e.target_blocks, number);
                }
            })?;
        }
        Ok(any)
    }

    /// A device on which nothing lies is no member any more: first the others say so, then it is cleared.
    pub(super) fn unlist(&self, index: u16) -> Result<()> {
        let device = self.storage.unseat(index);
        self.change_table(|entries, number| {
            if let Some(e) = entries.get_mut(usize::from(index)) {
                e.removed = true;
                e.stand(false, number);
                (e.blocks, e.target_blocks) = (0, 0);
            }
        })?;
        self.lock().counters.devices_removed += 1;
        if let Some((device, blocks)) = device {
            // It is none of the volume: where that fails, a mount that finds it says so and leaves it out.
            drop(device.carry_out(cleared_areas(blocks)));
        }
        Ok(())
    }
}
