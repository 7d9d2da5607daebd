//! The owner of a volume with `mmp` shows that it has it, and stops when somebody else does.
//!
//! Invariants
//! 1. Before each beat its block is read: what another mount wrote is never written over unseen.
//! 2. Who was kept from beating for the length of a lease accepts, writes, syncs and publishes nothing before it has looked. What it was about
//!    to write after the last look [`crate::lease`] refuses.
//! 3. A device that does not answer keeps the beats of no other, nor who asks whether one of them arrived.

use super::{Fs, locked};
use crate::Result;
use crate::breaks::{Break, broken};
use crate::heartbeat::{self, Claim, Mmp, Said};
use crate::lease::{LOOKS_MAX, Lease};
use crate::storage::probe;
use nenrin_device::{BlockDevice, DeviceError, Ticket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// So long one device at a time is waited for, and so often, before a beat is left to arrive by itself: half an interval in all.
const LOOK: Duration = Duration::from_millis(100);
const LOOKS: u32 = 10;

/// What an owner shows, and where.
struct Shown {
    claim: Claim,
    /// The volume was closed, or is somebody else's.
    over: bool,
    pulses: Vec<Pulse>,
}

/// The beats of one device.
struct Pulse {
    device: Weak<dyn BlockDevice>,
    /// Since when (of the lease) its block cannot be read.
    unread: Option<u64>,
    /// What is under way, since when: where it does not end, nothing more is asked for.
    under_way: Option<(u64, Step)>,
}

enum Step {
    Read(Ticket),
    /// With the wall time of the beat, and when (of the lease) the look before it began.
    Write(Ticket, nenrin_format::Time, u64),
}

impl Pulse {
    fn new(device: &Arc<dyn BlockDevice>) -> Self {
        Self { device: Arc::downgrade(device), unread: None, under_way: None }
    }

    fn is_of(&self, device: &Arc<dyn BlockDevice>) -> bool {
        self.device.ptr_eq(&Arc::downgrade(device))
    }

    /// What was under way, if that is done within so long. What cannot tell is waited for.
    fn ended(&mut self, time: Duration) -> Option<(u64, Step)> {
        let is_done = |ticket: &Ticket| ticket.is_done() || ticket.wait_at_most(time);
        self.under_way.take_if(|(_, Step::Read(ticket) | Step::Write(ticket, ..))| is_done(ticket))
    }
}

/// What a device failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failed {
    Write,
    /// To read its block, for so long that it counts where another one takes beats.
    Unread,
    /// That may pass; or it took too long, which is no failure, and whoever asks looks again.
    Once,
}

/// What came of beats.
#[derive(Default)]
struct Beaten {
    /// One arrived.
    any: bool,
    /// What devices failed.
    failed: Vec<(Arc<dyn BlockDevice>, DeviceError, Failed)>,
    /// Devices on which another host shows itself, with what is there.
    foreign: Vec<(Arc<dyn BlockDevice>, String)>,
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
        Self { mmp, shown: Mutex::new(Shown { claim, over: false, pulses: Vec::new() }), lease, block }
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
        self.beat_now(heart, &mut shown, false)
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
            self.beat_now(heart, &mut shown, true)?;
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
            Some(heart) => heart.lease.guard_new(device),
            None => device,
        }
    }

    fn shown<'a>(&self, heart: &'a Heart) -> MutexGuard<'a, Shown> {
        locked(&heart.shown, self.clock.as_ref()).unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows it on each device. One that does not answer is waited for as long as none has taken a beat, where that is what is asked for.
    fn beat_now(&self, heart: &Heart, shown: &mut Shown, until_one: bool) -> Result<()> {
        if shown.over || self.lock().failed.is_some() {
            return Ok(());
        }
        let now = self.clock.lease_nanos();
        let there = self.storage.devices().shown_on();
        shown.pulses.retain(|p| there.iter().any(|d| p.is_of(d)));
        for device in &there {
            if !shown.pulses.iter().any(|p| p.is_of(device)) {
                shown.pulses.push(Pulse::new(device));
            }
        }
        shown.claim.next(self.clock.wall());
        *heart.block.lock().unwrap_or_else(PoisonError::into_inner) = shown.claim.block().to_vec();
        // Under way together: one that is slow makes none late for the others.
        for pulse in shown.pulses.iter_mut().filter(|p| p.under_way.is_none()) {
            let read = pulse.device.upgrade().map(|d| heartbeat::submit_read(d.as_ref()));
            pulse.under_way = read.map(|ticket| (now, Step::Read(ticket)));
        }
        let mut beaten = Beaten::default();
        for look in 0.. {
            // One after another that does not answer is waited for no longer.
            let mut patience = LOOK;
            for pulse in &mut shown.pulses {
                self.go_on(heart, &shown.claim, pulse, patience, &mut beaten);
                patience = if pulse.under_way.is_some() { Duration::ZERO } else { patience };
            }
            while let Some((device, text)) = beaten.foreign.pop() {
                if self.storage.devices().is_needed(&device) {
                    shown.over = true;
                    return self.stop_for(&text);
                }
                self.storage.devices().leave(&device, &text);
            }
            // Whoever asks looks again where one has ended without a beat.
            let waits = if until_one { !beaten.any && beaten.failed.is_empty() } else { look < LOOKS };
            if !waits && !broken(Break::BeatsAwaited) || shown.pulses.iter().all(|p| p.under_way.is_none()) {
                break;
            }
        }
        let counts = |f: &Failed| *f == Failed::Write || *f == Failed::Unread && beaten.any;
        let is_over = !beaten.any && shown.pulses.iter().all(|p| p.under_way.is_none());
        if is_over && heart.lease.is_late() && !beaten.failed.iter().any(|(.., f)| counts(f)) {
            return match beaten.failed.pop().map_or(DeviceError::Missing, |(_, why, _)| why) {
                DeviceError::Unowned { .. } => Ok(()),
                why => self.stop_for(&cannot_tell(&why)),
            };
        }
        // One that fails a write is left out, or the last.
        let failed = beaten.failed.iter().filter(|(.., f)| counts(f));
        let mut left_out = failed.map(|(device, e, _)| self.storage.devices().fails(device, e.clone()));
        left_out.find_map(|done| done.err()).map_or(Ok(()), |e| self.stop_for(&cannot_tell(&e)))
    }

    /// Goes on with the beat of one device as far as that answers.
    fn go_on(&self, heart: &Heart, claim: &Claim, pulse: &mut Pulse, patience: Duration, beaten: &mut Beaten) {
        while let Some((at, step)) = pulse.ended(patience) {
            let Some(device) = pulse.device.upgrade() else { return };
            match step {
                Step::Read(ticket) => match ticket.wait() {
                    Err(e) => {
                        let now = self.clock.lease_nanos();
                        let since = now.saturating_sub(*pulse.unread.get_or_insert(now));
                        let is_old = since > heartbeat::lease_nanos(heart.mmp.interval_nanos);
                        let failed = if is_old && !broken(Break::LeaseShared) { Failed::Unread } else { Failed::Once };
                        beaten.failed.push((device, e, failed));
                    }
                    Ok(block) if claim.is_foreign(&block) && !broken(Break::MmpDeaf) => {
                        let text = format!(
                            "{} is {}, too: its heartbeat has replaced this mount's; nothing more is written here",
                            device.geometry().name,
                            heartbeat::in_use_by(&block)
                        );
                        beaten.foreign.push((device, text));
                    }
                    // It tells nothing any more.
                    Ok(_) if claim.is_outdated(at, self.clock.as_ref()) => {
                        let seconds = self.clock.lease_nanos().saturating_sub(at) / 1_000_000_000;
                        beaten.failed.push((device, DeviceError::Unowned { seconds }, Failed::Once));
                    }
                    Ok(_) => {
                        let (now, wall) = (self.clock.lease_nanos(), self.clock.wall());
                        pulse.unread = None;
                        pulse.under_way = Some((now, Step::Write(claim.submit(device.as_ref()), wall, at)));
                    }
                },
                Step::Write(ticket, wall, looked_at) => match ticket.wait() {
                    Ok(_) if !claim.is_outdated(looked_at, self.clock.as_ref()) || broken(Break::LeaseShared) => {
                        beaten.any = true;
                        heart.lease.renew(at, wall);
                    }
                    // It may lie on what another host has shown since. Where none has taken the device, it is only late.
                    Ok(_) | Err(DeviceError::Unanswered { .. }) => {
                        let seconds = self.clock.lease_nanos().saturating_sub(at) / 1_000_000_000;
                        let is_lost = self.is_taken(&device);
                        let why = if is_lost {
                            DeviceError::Unanswered { seconds }
                        } else {
                            DeviceError::Unowned { seconds }
                        };
                        beaten.failed.push((device, why, if is_lost { Failed::Write } else { Failed::Once }));
                    }
                    Err(e) => beaten.failed.push((device, e, Failed::Write)),
                },
            }
        }
    }

    /// Whether another mount has written a root to a device, or that cannot be told: it does before it writes anything else.
    fn is_taken(&self, device: &Arc<dyn BlockDevice>) -> bool {
        if broken(Break::LateBeatBelieved) {
            return false;
        }
        // Slots are written in turn: what is newer than this mount's is not its own.
        let known = self.lock().superblock.generation;
        let Ok(probe) = probe(device.as_ref()) else { return true };
        let own = self.lock().superblock.mount_id;
        probe.newest().map_or(true, |newest| newest.generation > known && newest.mount_id != own)
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
        // One that does not answer, and that nobody needs, is not waited for.
        let hangs = |d: &Arc<dyn BlockDevice>| shown.pulses.iter().any(|p| p.is_of(d) && p.under_way.is_some());
        let all = self.storage.devices();
        let devices: Vec<_> = all.shown_on().into_iter().filter(|d| all.is_needed(d) || !hangs(d)).collect();
        Ok(shown.claim.end(&devices, self.clock.wall())?)
    }
}

fn cannot_tell(why: &DeviceError) -> String {
    format!("other hosts cannot be told that this one has the volume: {why}")
}
