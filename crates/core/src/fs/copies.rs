//! Copies of blocks on several devices: what is done so that each device that should have one has it.

use super::Fs;
use crate::breaks::{Break, broken};
use crate::recovery::Unproven;
use crate::{DeviceHealth, Result};

impl Fs {
    /// Before the first write of a mount: the roots say who is absent, and what recovery took for granted
    /// although perhaps not every device has it, every device has. Blocks that were written for that.
    pub(crate) fn before_writing(&self, unproven: &[Unproven]) -> Result<u64> {
        self.storage.settle()?;
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

    /// The members of the volume and how they are.
    #[must_use]
    pub fn health(&self) -> Vec<DeviceHealth> {
        self.storage.health()
    }
}
