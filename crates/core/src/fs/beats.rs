//! The owner of a volume with `mmp` shows that it has it, and stops when somebody else does.
//!
//! Invariants
//! 1. Before each beat its block is read: what another mount wrote is never written over unseen.
//! 2. Who was kept from beating for the length of a lease accepts, writes, syncs and publishes nothing before it has looked. What it was about
//!    to write after the last look [`crate::lease`] refuses.

use super::{Fs, locked};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::heartbeat::{self, Claim, Mmp, Said};
use crate::lease::{LOOKS_MAX, Lease};
use nenrin_device::{BlockDevice, DeviceError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What an owner shows, and where.
struct Shown {
    claim: Claim,
    /// The volume was closed, or is somebody else's.
    over: bool,
}

/// The heart of a mount with `mmp`.
pub(super) struct Heart {
    shown: Mutex<Shown>,
    mmp: Mmp,
    lease: Arc<Lease>,
    /// That beat, for who asks. Not held while a device is waited for.
    block: Mutex<Vec<u8>>,
}

impl Heart {
    /// Of a volume that was claimed.
    fn new(claim: Claim) -> Self {
        let block = Mutex::new(claim.block().to_vec());
        let (mmp, lease) = (claim.mmp.clone(), claim.lease.clone());
        Self { mmp, shown: Mutex::new(Shown { claim, over: false }), lease, block }
    }
}

impl Fs {
    /// From now on this mount shows what it has claimed.
    pub(crate) fn show(&mut self, claim: Claim) {
        self.heart = Some(Heart::new(claim));
    }

    /// What the blocks of its devices said when it was opened.
    pub(crate) fn hear<'a>(&mut self, blocks: impl Iterator<Item = &'a [u8]>) {
        self.heard = blocks.map(Said::of).max_by_key(Said::rank).unwrap_or(Said::Nothing);
    }

    /// The heartbeat of this mount, if it has one.
    #[must_use]
    pub fn mmp(&self) -> Option<&Mmp> {
        self.heart.as_ref().map(|h| &h.mmp)
    }

    /// What the heartbeat says: this mount's, or what was on the devices when it was opened. It does not wait for a device.
    #[must_use]
    pub fn said(&self) -> Said {
        match &self.heart {
            Some(heart) => Said::of(&heart.block.lock().unwrap_or_else(PoisonError::into_inner)),
            None => self.heard.clone(),
        }
    }

    /// Shows other hosts that this one has the volume, when that is due: to be called more often than
    /// [`Mmp::interval_nanos`], also while [`Fs::tick`] takes its time. Without `mmp` this does nothing.
    ///
    /// # Errors
    /// When another host has the volume, or no device took a beat for too long: nothing is written from then on.
    pub fn beat(&self) -> Result<()> {
        let Some(heart) = &self.heart else { return Ok(()) };
        if heart.lease.since_beat() < heart.mmp.interval_nanos && !heart.lease.is_late() {
            return Ok(());
        }
        // Who has it beats at this moment.
        let Ok(mut shown) = heart.shown.try_lock() else { return Ok(()) };
        self.beat_now(heart, &mut shown)
    }

    /// Whether [`Fs::still_owns`] would look. Waits for no device.
    pub(super) fn is_late(&self) -> bool {
        self.heart.as_ref().is_some_and(|heart| heart.lease.is_late())
    }

    /// Before anything is accepted, synced or published: this mount has the volume for longer than that takes, or looks. Not under the
    /// lock.
    pub(crate) fn still_owns(&self) -> Result<()> {
        let Some(heart) = self.heart.as_ref().filter(|heart| heart.lease.is_late()) else { return Ok(()) };
        if broken(Break::MmpLate) {
            return Ok(());
        }
        let mut shown = self.shown(heart);
        for _ in 0..LOOKS_MAX {
            if !heart.lease.is_late() || shown.over || self.lock().failed.is_some() {
                return Ok(());
            }
            self.beat_now(heart, &mut shown)?;
        }
        match heart.lease.is_late() {
            true => {
                self.stop_for("a look whether another host has the volume takes too long: nothing more is written here")
            }
            false => Ok(()),
        }
    }

    /// The same before each piece of what waits in memory, or is moved, is handed to a device: between the pieces devices, locks and others
    /// are waited for.
    pub(crate) fn owns_to_write(&self) -> Result<()> {
        let unasked = [Break::BehindUnowned, Break::HeldUnowned, Break::MmpSyncsLate];
        if unasked.iter().any(|b| broken(*b)) { Ok(()) } else { self.still_owns() }
    }

    /// A device that is to become one of the volume: with `mmp` it is written to as long as this mount has that.
    pub(super) fn guarded(&self, device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        match &self.heart {
            Some(heart) => heart.lease.guard(device),
            None => device,
        }
    }

    fn shown<'a>(&self, heart: &'a Heart) -> MutexGuard<'a, Shown> {
        locked(&heart.shown, self.clock.as_ref()).unwrap_or_else(PoisonError::into_inner)
    }

    fn beat_now(&self, heart: &Heart, shown: &mut Shown) -> Result<()> {
        if shown.over || self.lock().failed.is_some() {
            return Ok(());
        }
        let looked_at = self.clock.lease_nanos();
        let (mut members, mut why) = (Vec::new(), DeviceError::Missing);
        // Under way together: one that is slow makes none late for the others.
        let active = self.storage.devices().active().into_iter();
        let reads: Vec<_> = active.map(|(i, d)| (i, heartbeat::submit_read(d.as_ref()), d)).collect();
        for (index, ticket, device) in reads {
            match ticket.wait() {
                Err(e) => why = e,
                Ok(block) if shown.claim.is_foreign(&block) && !broken(Break::MmpDeaf) => {
                    shown.over = true;
                    let text = format!(
                        "{} is {}, too: its heartbeat has replaced this mount's; nothing more is written here",
                        device.geometry().name,
                        heartbeat::in_use_by(&block)
                    );
                    return self.stop_for(&text);
                }
                Ok(_) => members.push((index, device)),
            }
        }
        if members.is_empty() {
            return if heart.lease.is_late() { self.stop_for(&cannot_tell(&why)) } else { Ok(()) };
        }
        let devices: Vec<_> = members.iter().map(|(_, d)| d.clone()).collect();
        let failed = shown.claim.write(&devices, self.clock.as_ref(), looked_at);
        *heart.block.lock().unwrap_or_else(PoisonError::into_inner) = shown.claim.block().to_vec();
        // One that fails a write is left out, or the last. What came too late is no failure: whoever asks looks again.
        let failed = failed.into_iter().filter(|(_, e)| !matches!(e, DeviceError::Unowned { .. }));
        let mut left_out = failed.map(|(i, e)| self.storage.devices().fails(members[i].0, e));
        left_out.find_map(|done| done.err()).map_or(Ok(()), |e| self.stop_for(&cannot_tell(&e)))
    }

    fn stop_for(&self, why: &str) -> Result<()> {
        let mut inner = self.lock();
        inner.fail(why);
        inner.check_alive()
    }

    /// The volume is free for others.
    ///
    /// # Errors
    /// When a device was not told: the next mount waits.
    pub(super) fn end_beats(&self) -> Result<()> {
        let Some(heart) = &self.heart else { return Ok(()) };
        let mut shown = self.shown(heart);
        if std::mem::replace(&mut shown.over, true) {
            return Ok(());
        }
        let devices: Vec<_> = self.storage.devices().active().into_iter().map(|(_, d)| d).collect();
        Ok(shown.claim.end(&devices, self.clock.wall())?)
    }
}

fn cannot_tell(why: &DeviceError) -> String {
    format!("other hosts cannot be told that this one has the volume: {why}")
}
