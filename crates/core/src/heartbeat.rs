//! Multi-mount protection (`-o mmp`): of two hosts that reach the same devices, the second to mount is refused.
//! Decision 0024 has the steps and the cases.
//!
//! | the devices say | `mmp` | before its first write, a mount |
//! |---|---|---|
//! | nothing, or that the last mount ended | no | goes on |
//! | the same | yes | claims |
//! | in use, or something unclear | no | watches, then says that it ended |
//! | the same | yes | watches, then claims |
//!
//! *Watching* is waiting for longer than two beats and looking whether anything has changed. *Claiming* is writing a beat,
//! waiting as long, and looking whether it is still there.
//!
//! Invariants
//! 1. Nothing is written to what is not known to be a device of the volume.
//! 2. The state of a volume is read after it was claimed: what another host did until then is seen.
//! 3. An owner that could not beat for as long as others watch, less a margin, writes nothing before it has looked.

use crate::breaks::{Break, broken};
use crate::devices::{Assembly, assemble};
use crate::lease::{LOOKS_MAX, Lease};
use crate::{Clock, Error, MountOptions, Result};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Op, Ticket};
use nenrin_format::features::Access;
use nenrin_format::heartbeat::{HEARTBEAT_BLOCK, Heartbeat};
use nenrin_format::{BLOCK_BYTES, Time};
use std::sync::Arc;

/// Nanoseconds from one beat to the next.
pub const BEAT_NANOS: u64 = 2_000_000_000;
/// The longest interval that is believed of another mount.
const INTERVAL_MAX: u64 = 60_000_000_000;
/// By how much who watches is slower than an owner may be.
const MARGIN_NANOS: u64 = 1_000_000_000;

/// How a mount shows other hosts that it has the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mmp {
    /// Name of this host, for who is refused.
    pub node: String,
    /// Identity of the mount: random.
    pub owner: [u8; 16],
    /// Nanoseconds from one beat to the next: [`BEAT_NANOS`].
    pub interval_nanos: u64,
}

/// What the block of a device says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// No mount ever had `mmp`.
    Nothing,
    /// The last mount that had it ended.
    Ended(Heartbeat),
    /// A mount has the volume, or had it and did not end.
    InUse(Heartbeat),
    /// Something that is no heartbeat.
    Unclear,
}

impl Said {
    /// What a block means.
    #[must_use]
    pub fn of(block: &[u8]) -> Self {
        match Heartbeat::decode(block) {
            Ok(None) => Self::Nothing,
            Ok(Some(beat)) if beat.in_use => Self::InUse(beat),
            Ok(Some(beat)) => Self::Ended(beat),
            Err(_) => Self::Unclear,
        }
    }
    /// Whether somebody may have the volume.
    #[must_use]
    pub const fn may_be_in_use(&self) -> bool {
        matches!(self, Self::InUse(_) | Self::Unclear)
    }
    /// The host that wrote it.
    #[must_use]
    pub fn node(&self) -> Option<String> {
        match self {
            Self::InUse(beat) | Self::Ended(beat) => Some(String::from_utf8_lossy(&beat.node).into_owned()),
            _ => None,
        }
    }
    /// Of what several devices say that counts which keeps others out, and then what is newest.
    pub(crate) fn rank(&self) -> (bool, u64) {
        (self.may_be_in_use(), self.sequence())
    }
    fn watch_nanos(&self) -> u64 {
        match self {
            Self::InUse(beat) => watch_nanos(u64::from(beat.interval_millis).saturating_mul(1_000_000)),
            _ => watch_nanos(BEAT_NANOS),
        }
    }
    fn sequence(&self) -> u64 {
        match self {
            Self::InUse(beat) | Self::Ended(beat) => beat.sequence,
            _ => 0,
        }
    }
}

/// How long others watch before they take a mount with this interval for gone.
#[must_use]
pub fn watch_nanos(interval_nanos: u64) -> u64 {
    lease_nanos(interval_nanos.min(INTERVAL_MAX)) + MARGIN_NANOS
}

/// How long an owner may write without having looked.
#[must_use]
pub const fn lease_nanos(interval_nanos: u64) -> u64 {
    interval_nanos.saturating_mul(2)
}

/// How long at most what it was about to write may take until it writes: others, who watch and then claim, need longer.
pub(crate) const fn hold_nanos(interval_nanos: u64) -> u64 {
    lease_nanos(interval_nanos).saturating_mul(2)
}

/// The block of the heartbeat.
///
/// # Errors
/// Device errors.
pub(crate) fn read(device: &dyn BlockDevice) -> std::result::Result<AlignedBuf, DeviceError> {
    submit_read(device).wait()
}

pub(crate) fn write(device: &dyn BlockDevice, block: &[u8]) -> std::result::Result<(), DeviceError> {
    submit_write(device, block).wait().map(drop)
}

fn submit_write(device: &dyn BlockDevice, block: &[u8]) -> Ticket {
    let (offset, data) = (HEARTBEAT_BLOCK * BLOCK_BYTES as u64, Arc::new(AlignedBuf::padded(block)));
    device.submit(Op::Write { offset, data })
}

/// What the heartbeat of a device says, whatever else is on it.
///
/// # Errors
/// Device errors.
pub fn look(device: &dyn BlockDevice) -> Result<Said> {
    Ok(Said::of(&read(device)?))
}

/// A heartbeat of this mount.
pub(crate) fn beat(mmp: &Mmp, sequence: u64, written_at: Time, in_use: bool) -> Vec<u8> {
    let interval_millis = u32::try_from(mmp.interval_nanos / 1_000_000).unwrap_or(u32::MAX);
    let node = mmp.node.as_bytes().to_vec();
    Heartbeat { interval_millis, owner: mmp.owner, sequence, written_at, in_use, node }.encode()
}

/// Who is there, in one line.
pub(crate) fn in_use_by(block: &[u8]) -> String {
    match Said::of(block).node() {
        Some(node) => format!("in use on host {node}"),
        None => "in use on another host".into(),
    }
}

/// Whether a block says that this mount has the volume.
pub(crate) fn is_of(block: &[u8], owner: &[u8; 16]) -> bool {
    matches!(Said::of(block), Said::InUse(b) if b.owner == *owner)
}

/// What stands for a block that the device does not give: no heartbeat, and not nothing. A power cut in the middle of a beat leaves such
/// a one on some disks, until it is written again.
pub(crate) fn unread() -> Vec<u8> {
    vec![0xff; BLOCK_BYTES]
}

/// Starts reading the block of a device.
pub(crate) fn submit_read(device: &dyn BlockDevice) -> Ticket {
    device.submit(Op::Read { offset: HEARTBEAT_BLOCK * BLOCK_BYTES as u64, bytes: BLOCK_BYTES })
}

/// A device with what its block held.
type Seen = (Arc<dyn BlockDevice>, AlignedBuf);

/// A volume that was claimed: the beat that lies on its devices.
pub(crate) struct Claim {
    pub mmp: Mmp,
    sequence: u64,
    block: Vec<u8>,
    /// What the beats are good for.
    pub lease: Arc<Lease>,
}

impl Claim {
    /// Makes the next beat.
    pub fn next(&mut self, wall: Time) {
        self.sequence = self.sequence.wrapping_add(1);
        self.block = beat(&self.mmp, self.sequence, wall, true);
    }

    /// Whether a look that was begun then is too long ago to write a beat by it.
    pub fn is_outdated(&self, looked_at: u64, clock: &dyn Clock) -> bool {
        clock.lease_nanos().saturating_sub(looked_at) > lease_nanos(self.mmp.interval_nanos)
    }

    /// Starts writing the beat that was made last.
    pub fn submit(&self, device: &dyn BlockDevice) -> Ticket {
        submit_write(device, &self.block)
    }

    /// Writes the next beat to all of these; the devices that did not take it, with why. Their blocks were read at `looked_at` (of the
    /// lease): where that is long ago nothing is written.
    fn write(
        &mut self,
        devices: &[Arc<dyn BlockDevice>],
        clock: &dyn Clock,
        looked_at: u64,
    ) -> Vec<(usize, DeviceError)> {
        let (at, wall) = (clock.lease_nanos(), clock.wall());
        self.next(wall);
        let submit = |d: &Arc<dyn BlockDevice>| match self.is_outdated(looked_at, clock) {
            true => Ticket::done(Err(DeviceError::Unowned { seconds: at.saturating_sub(looked_at) / 1_000_000_000 })),
            false => self.submit(d.as_ref()),
        };
        // Under way together: one that is slow makes none late for the others.
        let tickets: Vec<Ticket> = devices.iter().map(submit).collect();
        let written = tickets.into_iter().map(|ticket| ticket.wait().map(drop)).enumerate();
        let failed: Vec<_> = written.filter_map(|(i, done)| done.err().map(|e| (i, e))).collect();
        if failed.len() < devices.len() {
            self.lease.renew(at, wall);
        }
        failed
    }

    /// The next beat, on devices that were read then; those that fail it are taken out. Whether it came too late, which is no failure.
    fn write_to(&mut self, those: &mut Vec<&Seen>, clock: &dyn Clock, looked_at: u64) -> bool {
        let devices: Vec<_> = those.iter().map(|(d, _)| d.clone()).collect();
        let failed = self.write(&devices, clock, looked_at);
        let is_late = |e: &DeviceError| matches!(e, DeviceError::Unowned { .. });
        let mut places = 0..;
        those.retain(|_| {
            let place = places.next();
            !failed.iter().any(|(i, e)| Some(*i) == place && !is_late(e))
        });
        failed.iter().any(|(_, e)| is_late(e))
    }

    /// The beat that was written last.
    pub fn block(&self) -> &[u8] {
        &self.block
    }

    /// Whether another mount wrote this. What is no heartbeat, or an older one of this mount, is what devices make of it.
    pub fn is_foreign(&self, block: &[u8]) -> bool {
        matches!(Said::of(block), Said::InUse(b) | Said::Ended(b) if b.owner != self.mmp.owner)
    }

    /// Nothing more will be written: the volume is free for others.
    ///
    /// # Errors
    /// When a device was not told: the next mount waits and looks.
    pub fn end(&self, devices: &[Arc<dyn BlockDevice>], now: Time) -> std::result::Result<(), DeviceError> {
        let ended = beat(&self.mmp, self.sequence.wrapping_add(1), now, false);
        let ours = devices.iter().filter(|d| read(d.as_ref()).is_ok_and(|block| !self.is_foreign(&block)));
        ours.map(|d| write(d.as_ref(), &ended)).fold(Ok(()), std::result::Result::and)
    }
}

/// Puts a volume together that nobody else has, and claims it where the options say so.
///
/// # Errors
/// [`Error::Open`] when another host has it; what putting it together says.
pub(crate) fn take(
    devices: &[Arc<dyn BlockDevice>],
    clock: &Arc<dyn Clock>,
    options: &MountOptions,
) -> Result<(Assembly, Option<Claim>)> {
    let assembly = assemble(devices, options.degraded)?;
    let access = assembly.found.access(assembly.found.newest()?);
    let writes = !options.read_only && !options.no_recovery && access == Access::ReadWrite;
    let writes = writes || options.read_only && broken(Break::ReadOnlyClaims);
    let free = assembly.there.iter().all(|there| !Said::of(&there.heartbeat).may_be_in_use());
    if !writes || options.mmp.is_none() && free {
        return Ok((assembly, None));
    }
    let seen = seen_on(&assembly);
    watch(&seen, clock.as_ref())?;
    let mut there = devices.to_vec();
    let claim = match &options.mmp {
        Some(mmp) => {
            let (claim, claimed) = claim(&seen, mmp, clock)?;
            // One on which others do not see who has it is as good as absent.
            let is_unclaimed = |d: &Arc<dyn BlockDevice>| {
                is_among(assembly.there.iter().map(|there| &there.device), d) && !is_among(claimed.iter(), d)
            };
            let lost = there.iter().find(|d| is_unclaimed(d));
            if let (Some(device), true) = (lost, !options.degraded || claimed.is_empty()) {
                let name = device.geometry().name;
                let what = if read(device.as_ref()).is_ok() { "written" } else { "read" };
                return Err(Error::Open(format!(
                    "{name}: the heartbeat cannot be {what}; look for errors of the device"
                )));
            }
            there.retain(|d| !is_unclaimed(d) || broken(Break::ClaimUnheard));
            let guard = |d| if is_among(claimed.iter(), &d) { claim.lease.guard(d) } else { claim.lease.guard_new(d) };
            there = there.into_iter().map(guard).collect();
            Some(claim)
        }
        None => {
            // Where that fails, the next mount watches once more.
            seen.iter().for_each(|(device, block)| drop(write(device.as_ref(), &ended(block))));
            None
        }
    };
    Ok((assemble(&there, options.degraded)?, claim))
}

fn is_among<'a>(mut all: impl Iterator<Item = &'a Arc<dyn BlockDevice>>, device: &Arc<dyn BlockDevice>) -> bool {
    all.any(|d| Arc::ptr_eq(d, device))
}

/// Refuses a volume that is in use on another host, before it is written to by who does not mount it.
///
/// # Errors
/// [`Error::Open`] when it is.
pub(crate) fn refuse_if_in_use(assembly: &Assembly, clock: &dyn Clock) -> Result<()> {
    watch(&seen_on(assembly), clock)
}

/// Refuses devices on which another host has a volume, before what is there is replaced. What is no heartbeat is of no
/// interest: it may be anything.
///
/// # Errors
/// [`Error::Open`] when one is in use.
pub fn refuse_to_replace(devices: &[Arc<dyn BlockDevice>], clock: &dyn Clock) -> Result<()> {
    let seen = devices.iter().filter_map(|d| read(d.as_ref()).ok().map(|block| (d.clone(), block)));
    let seen: Vec<Seen> = seen.filter(|(_, block)| matches!(Said::of(block), Said::InUse(_))).collect();
    watch(&seen, clock)
}

fn seen_on(assembly: &Assembly) -> Vec<Seen> {
    // One that missed something may be another's by now. One that cannot be read is watched: who has the volume writes it.
    let there = assembly.there.iter().map(|there| there.device.clone());
    let block = |d: &Arc<dyn BlockDevice>| read(d.as_ref()).unwrap_or_else(|_| AlignedBuf::padded(&unread()));
    there
        .map(|d| (d.clone(), block(&d)))
        .filter(|s| s.1[..] != unread()[..] || !broken(Break::UnreadBeatLeft))
        .collect()
}

/// What the block of a mount that did not end is replaced by.
fn ended(block: &[u8]) -> Vec<u8> {
    match Said::of(block) {
        Said::InUse(b) => Heartbeat { in_use: false, sequence: b.sequence.wrapping_add(1), ..b }.encode(),
        _ => vec![0; BLOCK_BYTES],
    }
}

/// Waits and looks again, where somebody may have the volume.
fn watch(seen: &[Seen], clock: &dyn Clock) -> Result<()> {
    let said = seen.iter().map(|(_, block)| Said::of(block));
    let Some(nanos) = said.filter(Said::may_be_in_use).map(|s| s.watch_nanos()).max() else { return Ok(()) };
    if broken(Break::MmpUnwatched) {
        return Ok(());
    }
    clock.wait(nanos);
    let (hidden, known): (Vec<&Seen>, Vec<&Seen>) = seen.iter().partition(|(_, block)| block[..] == unread()[..]);
    known.into_iter().try_for_each(|(device, before)| is_still(device, before, nanos))?;
    // What can be read by now is watched in turn: perhaps somebody wrote it, perhaps it was the device.
    let again = hidden.into_iter().filter_map(|(device, _)| Some((device.clone(), read(device.as_ref()).ok()?)));
    let again: Vec<Seen> = again.filter(|(_, block)| block[..] != unread()[..]).collect();
    if again.is_empty() { Ok(()) } else { watch(&again, clock) }
}

/// Whether a block is what it was; where it cannot be read any more, nobody else writes to it either.
fn is_still(device: &Arc<dyn BlockDevice>, before: &[u8], nanos: u64) -> Result<()> {
    match read(device.as_ref()) {
        Ok(now) if now[..] != before[..] => Err(refused(device.as_ref(), &now, nanos)),
        _ => Ok(()),
    }
}

/// Says that this mount has the volume, and makes sure that nobody else says so; on which devices it could.
fn claim(seen: &[Seen], mmp: &Mmp, clock: &Arc<dyn Clock>) -> Result<(Claim, Vec<Arc<dyn BlockDevice>>)> {
    let sequence = seen.iter().map(|(_, block)| Said::of(block).sequence()).max().unwrap_or(0);
    let lease = Lease::new(mmp.interval_nanos, mmp.owner, clock.clone());
    let (mut claim, clock) = (Claim { mmp: mmp.clone(), sequence, block: Vec::new(), lease }, clock.as_ref());
    let mut claimed: Vec<&Seen> = seen.iter().collect();
    claim.write_to(&mut claimed, clock, clock.lease_nanos());
    let nanos = watch_nanos(mmp.interval_nanos);
    clock.wait(nanos);
    for _ in 0..LOOKS_MAX {
        let looked_at = clock.lease_nanos();
        let reads: Vec<Ticket> = claimed.iter().map(|(device, _)| submit_read(device.as_ref())).collect();
        let mut there = Vec::new();
        for (seen, now) in claimed.into_iter().zip(reads.into_iter().map(Ticket::wait)) {
            let Ok(now) = now else { continue };
            let is_taken = now[..] != seen.1[..] && claim.is_foreign(&now);
            if is_taken && !broken(Break::MmpUnwatched) {
                return Err(refused(seen.0.as_ref(), &now, nanos));
            }
            there.push(seen);
        }
        claimed = there;
        // Who watches since then must see that this mount lives.
        // Nor one whose beat took longer than a look is good for: it may lie on what another host has shown since.
        if !claim.write_to(&mut claimed, clock, looked_at) && !claim.is_outdated(looked_at, clock) {
            return Ok((claim, claimed.into_iter().map(|(d, _)| d.clone()).collect()));
        }
    }
    Err(Error::Open(format!(
        "to read the heartbeat takes more than {} seconds: look for what keeps the devices busy",
        lease_nanos(mmp.interval_nanos) / 1_000_000_000
    )))
}

fn refused(device: &dyn BlockDevice, block: &[u8], nanos: u64) -> Error {
    Error::Open(format!(
        "{} is {}, which was seen at work within the last {} seconds: unmount it there first",
        device.geometry().name,
        in_use_by(block),
        nanos / 1_000_000_000
    ))
}
