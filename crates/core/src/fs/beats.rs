//! The owner of a volume with `mmp` shows that it has it, and stops when somebody else does.
//!
//! Invariants
//! 1. Before each beat its block is read: what another mount wrote is never written over unseen.
//! 2. Who was kept from beating for the length of a lease accepts, syncs and publishes nothing before it has looked.

use super::{Fs, locked};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::heartbeat::{self, Claim, Mmp, Said, lease_nanos};
use nenrin_device::DeviceError;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    /// When (monotonic) the last beat began that arrived.
    last: AtomicU64,
    /// That beat, for who asks. Not held while a device is waited for.
    block: Mutex<Vec<u8>>,
}

impl Heart {
    /// Of a volume that was claimed.
    fn new(claim: Claim) -> Self {
        let last = AtomicU64::new(claim.at);
        let block = Mutex::new(claim.block().to_vec());
        Self { mmp: claim.mmp.clone(), shown: Mutex::new(Shown { claim, over: false }), last, block }
    }
    fn since_last(&self, now: u64) -> u64 {
        now.saturating_sub(self.last.load(SeqCst))
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
        if heart.since_last(self.clock.monotonic_nanos()) < heart.mmp.interval_nanos {
            return Ok(());
        }
        // Who has it beats at this moment.
        let Ok(mut shown) = heart.shown.try_lock() else { return Ok(()) };
        self.beat_now(heart, &mut shown)
    }

    /// Before anything is accepted, synced or published: this mount has the volume for longer than that takes, or looks.
    pub(crate) fn still_owns(&self) -> Result<()> {
        let Some(heart) = &self.heart else { return Ok(()) };
        let is_late = || heart.since_last(self.clock.monotonic_nanos()) > lease_nanos(heart.mmp.interval_nanos);
        if !is_late() || broken(Break::MmpLate) {
            return Ok(());
        }
        let mut shown = self.shown(heart);
        if is_late() { self.beat_now(heart, &mut shown) } else { Ok(()) }
    }

    fn shown<'a>(&self, heart: &'a Heart) -> MutexGuard<'a, Shown> {
        locked(&heart.shown, self.clock.as_ref()).unwrap_or_else(PoisonError::into_inner)
    }

    fn beat_now(&self, heart: &Heart, shown: &mut Shown) -> Result<()> {
        if shown.over || self.lock().failed.is_some() {
            return Ok(());
        }
        let now = self.clock.monotonic_nanos();
        let (mut members, mut why) = (Vec::new(), DeviceError::Missing);
        for (index, device) in self.storage.devices().active() {
            match heartbeat::read(device.as_ref()) {
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
            let late = heart.since_last(now) > lease_nanos(heart.mmp.interval_nanos);
            return if late { self.stop_for(&cannot_tell(&why)) } else { Ok(()) };
        }
        let devices: Vec<_> = members.iter().map(|(_, d)| d.clone()).collect();
        let failed = shown.claim.write(&devices, self.clock.as_ref());
        heart.last.store(now, SeqCst);
        *heart.block.lock().unwrap_or_else(PoisonError::into_inner) = shown.claim.block().to_vec();
        // One that fails a write is left out, or the last.
        let mut left_out = failed.into_iter().map(|(i, e)| self.storage.devices().fails(members[i].0, e));
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
