//! Copies of blocks on several devices: what is done so that each device that should have one has it.

use super::Fs;
use crate::breaks::{Break, broken};
use crate::covered;
use crate::recovery::Unproven;
use crate::storage::Turn;
use crate::{DeviceHealth, Error, Result};
use nenrin_format::Addr;
use nenrin_format::items::Extent;
use nenrin_format::superblock::{DEVICES_MAX, Trouble};

impl Fs {
    /// Before the first write of a mount: the roots say who is absent, and what recovery took for granted
    /// although perhaps not every device has it, or none has more of it than its host's cache, every device has. Blocks that were written
    /// for that.
    pub(crate) fn before_writing(&self, unproven: &[Unproven]) -> Result<u64> {
        self.even_out(unproven, false)
    }

    /// The same for a repair: what no device has right is among what it lists.
    pub(crate) fn before_repairing(&self, unproven: &[Unproven]) -> Result<()> {
        self.even_out(unproven, true).map(drop)
    }

    fn even_out(&self, unproven: &[Unproven], repairs: bool) -> Result<u64> {
        self.owns_to_write()?;
        self.storage.settle()?;
        self.storage.devices().end_replaced();
        self.storage.devices().clear_left()?;
        let (mut written, mut right) = (0, Vec::new());
        for turn in self.storage.turns() {
            if written > 0 {
                self.flush_device()?;
                self.owns_to_write()?;
            }
            let of_turn = self.write_anew(unproven, *turn, repairs)?;
            (written, right) = (written.max(of_turn.0), of_turn.1);
        }
        // Not before: it may be what the others were rebuilt from.
        self.owns_to_write()?;
        written += self.storage.parity_anew(&right)?;
        self.owns_to_write()?;
        if self.storage.settle_rows()? || written > 0 {
            self.flush_device()?;
        }
        self.storage.devices().rows_settled();
        Ok(written)
    }

    /// Writes all of this anew whose `turn` it is: how many blocks, and where.
    fn write_anew(&self, unproven: &[Unproven], turn: Turn, repairs: bool) -> Result<(u64, Vec<(Addr, u32)>)> {
        let (mut written, mut right) = (0, Vec::new());
        for u in unproven.iter().filter(|_| !broken(Break::CopiesUnequal)) {
            self.owns_to_write()?;
            match u.write_anew(&self.storage, turn) {
                Err(Error::Damaged(..)) if repairs => continue,
                done => written += done?,
            }
            right.push(u.place());
        }
        Ok((written, right))
    }

    /// Whether what is wrong on one device can be had from others.
    pub(crate) fn others_stand_in(&self) -> bool {
        self.storage.others_stand_in()
    }

    /// A copy of this extent is wrong, and another is right: writes it anew, if anything may be written. The
    /// caller has pinned its segment, so what is written over is still the same extent.
    pub(super) fn mend_copies(&self, e: &Extent) -> bool {
        if !self.may_mend() {
            return false;
        }
        let written = covered::mend(&self.storage, e);
        self.lock().counters.mended_blocks += written;
        written > 0
    }

    /// Says that a device is slow, or is not any more: for who knows better than what [`Fs::tick`] measures, and for tests.
    /// What is new goes to the others then, while there is room.
    pub fn declare_slow(&self, index: u16, slow: bool) {
        self.storage.devices().declare_slow(index, slow, self.clock.monotonic_nanos(), self.clock.wall());
    }

    /// Looks which devices have become slow, are fast again, or do not answer at all. [`Fs::tick`] does this, too; who wants a device
    /// that does not answer to be noticed also while a tick waits for it calls this about as often, on a thread of its own. Waits
    /// for no device.
    pub fn judge_devices(&self) {
        let mmp = self.mmp().is_some();
        self.storage.devices().judge(self.clock.monotonic_nanos(), self.clock.wall(), mmp);
    }

    /// Numbers of the devices that are slow, from 0. Waits for no device.
    #[must_use]
    pub fn slow_devices(&self) -> Vec<u16> {
        let slow = self.storage.slow();
        (0..DEVICES_MAX as u16).filter(|i| slow.has(*i)).collect()
    }

    /// What a member has done wrong until now is forgotten, durably. Whether there is such a member.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; what keeps roots from being written.
    pub fn device_forgive(&self, index: u16) -> Result<bool> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        let Some(before) = self.storage.set_trouble(index, Trouble::default()) else { return Ok(false) };
        let told = self.index_checkpoint(false);
        if told.is_err() {
            self.storage.set_trouble(index, before);
        }
        told.map(|()| true)
    }

    /// Whether everything can be had, also without some of the members (numbers from 0).
    #[must_use]
    pub fn is_whole_without(&self, gone: &[u16]) -> bool {
        self.storage.is_whole_without(gone)
    }

    /// The members of the volume and how they are.
    #[must_use]
    pub fn health(&self) -> Vec<DeviceHealth> {
        self.storage.health()
    }
}
