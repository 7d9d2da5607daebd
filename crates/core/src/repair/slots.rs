//! Slots alone are wrong, and the newest root is whole: that root is written into all of them. A repair that was cut when
//! its root was there and not yet in every slot ends so, too: it needs no room, of which the first has taken some.
//!
//! Invariants
//! 1. No segment is written to.
//! 2. Nothing that a root leads to depends on a slot that is lost.
//! 3. Every root written is the same state as the newest one; each is durable before the next takes the place of another.

use super::losses::MendKind;
use super::{RepairReport, is_of_structure};
use crate::breaks::{Break, broken};
use crate::check::{self, CheckOptions, CheckReport, Progress, What};
use crate::devices::Assembly;
use crate::recovery::{Walk, chain_of};
use crate::storage::{Storage, storage_of};
use crate::{Clock, Result};
use nenrin_device::BlockDevice;
use nenrin_format::features::Access;
use nenrin_format::superblock::{SLOTS_PER_AREA, Superblock};
use std::sync::Arc;

/// The root to write into every slot.
pub(super) struct Slots {
    storage: Arc<Storage>,
    newest: Superblock,
}

/// What to do where slots alone are wrong; `None` where more is, or where a device may lack more than a slot.
pub(super) fn alone(
    assembly: &Assembly,
    before: &CheckReport,
    devices: &[Arc<dyn BlockDevice>],
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<(Slots, RepairReport)>> {
    let of_slot = |what: What| matches!(what, What::SlotDamaged | What::SlotStale);
    let mut structural = before.kinds.keys().filter(|what| is_of_structure(**what)).peekable();
    let are_slots = structural.peek().is_some() && structural.all(|what| of_slot(*what));
    let (storage, newest) = (storage_of(assembly), assembly.found.newest()?);
    // What this program does not know it would not write again.
    let is_known = matches!(assembly.found.access(newest), Access::ReadWrite);
    if !is_known
        || !are_slots
        || !assembly.notes.is_empty()
        || storage.others_stand_in()
        || broken(Break::SlotsTakeRoom)
    {
        return Ok(None);
    }
    // Without a lost slot nobody would look for what the log does not name: that is to be in a root first.
    if Walk::new(&storage, &chain_of(newest)).run()?.sought {
        return Ok(None);
    }
    let slots = before.count(What::SlotDamaged) + before.count(What::SlotStale);
    let mut report =
        RepairReport { needed: true, mends: vec![(MendKind::SlotsRewritten, slots)], ..RepairReport::default() };
    report.add_content(&check::check(devices, &CheckOptions { data: true }, progress)?);
    Ok(Some((Slots { storage, newest: newest.clone() }, report)))
}

impl Slots {
    /// Writes them, one generation after another.
    pub fn write(mut self, clock: &dyn Clock) -> Result<()> {
        for _ in 0..SLOTS_PER_AREA {
            self.newest.generation = self.newest.generation.next();
            self.newest.written_at = clock.wall();
            self.storage.write_slots(&self.newest)?;
            self.storage.flush()?;
        }
        Ok(())
    }
}
