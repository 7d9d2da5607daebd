//! Copies of blocks on several devices: what is done so that each device that should have one has it.

use super::Fs;
use crate::breaks::{Break, broken};
use crate::recovery::Unproven;
use crate::{DeviceHealth, Result};
use nenrin_format::Addr;
use nenrin_format::items::Extent;
use nenrin_format::superblock::DEVICES_MAX;

impl Fs {
    /// Before the first write of a mount: the roots say who is absent, and what recovery took for granted
    /// although perhaps not every device has it, every device has. Blocks that were written for that.
    pub(crate) fn before_writing(&self, unproven: &[Unproven]) -> Result<u64> {
        self.storage.settle()?;
        self.storage.devices().end_replaced();
        let mut written = 0;
        for u in unproven.iter().filter(|_| !broken(Break::CopiesUnequal)) {
            let (addr, blocks) = u.place();
            written += self.storage.equalize(addr, blocks, |bytes| u.is_right(bytes))?;
        }
        if written > 0 {
            self.flush_device()?;
        }
        Ok(written)
    }

    /// Whether blocks have copies on several devices.
    pub(crate) fn has_copies(&self) -> bool {
        self.storage.has_copies()
    }

    /// The same for a repair: what no device has right is among what it lists.
    pub(crate) fn before_repairing(&self, unproven: &[Unproven]) -> Result<()> {
        self.storage.settle()?;
        let mut written = 0;
        for u in unproven {
            let (addr, blocks) = u.place();
            match self.storage.equalize(addr, blocks, |bytes| u.is_right(bytes)) {
                Ok(n) => written += n,
                Err(crate::Error::Damaged(..)) => {}
                Err(e) => return Err(e),
            }
        }
        if written > 0 { self.flush_device() } else { Ok(()) }
    }

    /// A copy of this extent is wrong, and another is right: writes it anew, if anything may be written. The
    /// caller has pinned its segment, so what is written over is still the same extent.
    pub(super) fn mend_copies(&self, e: &Extent) -> bool {
        if !self.may_mend() {
            return false;
        }
        let first = Addr(e.addr.0.saturating_sub(u64::from(e.lead)));
        let right = |bytes: &[u8]| super::verify(e, bytes).is_ok();
        // Where that fails the other copy is still there, and the next reader tries again.
        let written = self.storage.equalize(first, e.lead + e.blocks + e.tail, right).unwrap_or(0);
        self.lock().counters.mended_blocks += written;
        written > 0
    }

    /// Says that a device is slow, or is not any more: for who knows better than what [`Fs::tick`] measures, and for tests.
    /// What is new goes to the others then, while there is room.
    pub fn declare_slow(&self, index: u16, slow: bool) {
        self.storage.devices().declare_slow(index, slow, self.clock.monotonic_nanos(), self.clock.wall());
    }

    /// Numbers of the devices that are slow, from 0. Waits for no device.
    #[must_use]
    pub fn slow_devices(&self) -> Vec<u16> {
        let slow = self.storage.slow();
        (0..DEVICES_MAX as u16).filter(|i| slow.has(*i)).collect()
    }

    /// The members of the volume and how they are.
    #[must_use]
    pub fn health(&self) -> Vec<DeviceHealth> {
        self.storage.health()
    }
}
