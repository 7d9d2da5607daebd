//! Devices that take no part in the volume, not yet or not any more, and that are written to all the same: made ready to become members, or cleared.
//!
//! Invariants
//! 1. Who waits for such a device is seen, and is let go when it does not answer for long: nobody needs it.
//! 2. A device that is made ready to take the place of another does not begin to, once somebody has said that it is to be given up.

use super::{Devices, Member, Standing};
use crate::breaks::{Break, broken};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Op, Ticket};
use nenrin_format::BLOCK_BYTES;
use nenrin_format::superblock::{AREA_BLOCKS, SLOT_BLOCK, SLOTS_PER_AREA};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The place of what is no member.
const NOWHERE: u16 = u16::MAX;

/// So long others wait, at each request, until the roots of a device are ended whose place another has.
const ENDING: Duration = Duration::from_secs(2);
/// And so often as long who ended them, whom nobody waits for.
const ENDINGS_MAX: usize = 15;

/// A device that takes no part.
pub(crate) struct Apart(Arc<Member>);

impl Apart {
    /// One that was a member until now.
    pub(super) fn of(devices: &Devices, member: Arc<Member>) -> Self {
        member.stand(Standing::Absent as u8);
        if !broken(Break::NewcomerAwaited) {
            devices.look_at(&member);
        }
        Self(member)
    }

    /// Carries these out one after the other, and flushes.
    ///
    /// # Errors
    /// What the device reported; that it did not answer.
    pub fn carry_out(&self, ops: impl IntoIterator<Item = Op>) -> Result<(), DeviceError> {
        ops.into_iter().chain([Op::Flush]).try_for_each(|op| self.0.submit(op).wait().map(drop))
    }

    /// The device, for who waits for nothing but tickets.
    pub fn device(&self) -> Option<&dyn BlockDevice> {
        self.0.device.as_deref()
    }

    /// The same, for who looks at several.
    pub fn devices(&self) -> &[Arc<dyn BlockDevice>] {
        self.0.device.as_slice()
    }
}

/// A device that is made ready to take the place of a member: until it begins to, or is given up.
pub(crate) struct Preparing<'a> {
    devices: &'a Devices,
    entry: Arc<Prepared>,
}

/// What others know of it.
pub(super) struct Prepared {
    apart: Apart,
    is_stopped: AtomicBool,
}

impl Preparing<'_> {
    /// The device.
    pub fn apart(&self) -> &Apart {
        &self.entry.apart
    }

    /// Whether somebody has said that it is to be given up.
    pub fn is_stopped(&self) -> bool {
        self.entry.is_stopped.load(SeqCst)
    }
}

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        *self.devices.preparing.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The roots of a device whose place another has: they are to be there no longer. Where it is broken, or does not answer, they may stay: then
/// its table is older than that of the others.
pub(super) struct Ending {
    member: Arc<Member>,
    todo: VecDeque<Op>,
    under_way: Option<Ticket>,
}

impl Ending {
    /// Those of a device of which so many blocks were used.
    pub fn of(member: Arc<Member>, blocks: u64) -> Self {
        let zeros = Arc::new(AlignedBuf::zeroed(SLOTS_PER_AREA as usize * BLOCK_BYTES));
        let zero = |area: u64| Op::Write { offset: (area + SLOT_BLOCK) * BLOCK_BYTES as u64, data: zeros.clone() };
        let areas = [0, blocks.saturating_sub(AREA_BLOCKS)].map(zero);
        Self { member, todo: areas.into_iter().chain([Op::Flush]).collect(), under_way: None }
    }

    /// The same of a device that was none of the volume any more when it was opened.
    pub fn of_stranger(device: Arc<dyn BlockDevice>, blocks: u64) -> Self {
        Self::of(Member::new(NOWHERE, Some(device), Standing::Absent as u8), blocks)
    }

    /// Whose they are.
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Goes on; whether nothing is left to do. False when it has to be waited for.
    pub fn go_on(&mut self) -> bool {
        while let Some(ticket) = self.under_way.take().or_else(|| Some(self.member.submit(self.todo.pop_front()?))) {
            if !broken(Break::OldAwaited) && !ticket.wait_at_most(ENDING) {
                self.under_way = Some(ticket);
                return false;
            }
            if ticket.wait().is_err() {
                self.todo.clear();
            }
        }
        true
    }

    /// Waits for it as long as for any device that nobody needs: whoever waits for something else there is let go then, too. It stands as it
    /// did: who began before it was replaced reads from it.
    fn end(mut self) {
        if !(0..ENDINGS_MAX).any(|_| self.go_on()) {
            self.member.watch.give_up();
        }
    }
}

impl Devices {
    /// These were replaced, and a cut left them their roots.
    pub(super) fn note_replaced(&self, devices: Vec<(Arc<dyn BlockDevice>, u64)>) {
        let endings: Vec<_> = devices.into_iter().map(|(device, blocks)| Ending::of_stranger(device, blocks)).collect();
        endings.iter().for_each(|ending| self.look_at(&ending.member));
        self.table().replaced.extend(endings);
    }

    /// Ends what a cut left, or a device that did not answer; the roots of the others are durable.
    pub fn end_replaced(&self) {
        let replaced = std::mem::take(&mut self.table().replaced);
        replaced.into_iter().for_each(Ending::end);
    }

    /// A device that is no member yet.
    pub fn apart(&self, device: Arc<dyn BlockDevice>) -> Apart {
        Apart::of(self, Member::new(NOWHERE, Some(device), Standing::Absent as u8))
    }

    /// From now on this device is made ready to take the place of a member. `None` where another one is.
    pub fn prepare(&self, device: Arc<dyn BlockDevice>) -> Option<Preparing<'_>> {
        let mut preparing = self.preparing.lock().unwrap_or_else(PoisonError::into_inner);
        if preparing.is_some() {
            return None;
        }
        let entry = Arc::new(Prepared { apart: self.apart(device), is_stopped: AtomicBool::new(false) });
        *preparing = Some(Arc::clone(&entry));
        drop(preparing);
        Some(Preparing { devices: self, entry })
    }

    /// A device that is made ready to take the place of a member is not to; whether there is one. Where somebody has waited for it for long
    /// it is left.
    pub fn stop_preparing(&self) -> bool {
        let preparing = self.preparing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = preparing.as_ref().filter(|_| !broken(Break::NewcomerHeld)) else { return false };
        entry.is_stopped.store(true, SeqCst);
        if entry.apart.0.watch.keeps_waiting() {
            entry.apart.0.watch.give_up();
        }
        true
    }
}
