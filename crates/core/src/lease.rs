//! How long a mount with `mmp` may write without having shown that it has the volume, and the gate that holds it to that.
//!
//! Who is about to write looks first ([`crate::Fs::beat`] and what asks for it in `fs/beats.rs`). The gate is for what was looked at
//! too early: a thread that was stopped in between, or that waited for a device. Where the last beat is too old it looks itself, at
//! the device that is about to be written: one that answers slowly keeps nobody from writing to the others.
//!
//! Invariants
//! 1. What a mount with `mmp` writes to a device of its volume passes the gate of that device, but for its heartbeat.
//! 2. Behind the end of a lease a device is written to only where its own block was read a moment ago, and is this mount's: who takes
//!    the volume over shows that for longer than a look is good for before he writes anything else. A device that is about to become
//!    one of the volume has no such block, and is not written to then.
//! 3. Without `mmp` there is no gate.

use crate::Clock;
use crate::breaks::{Break, broken};
use crate::heartbeat::{self, hold_nanos, lease_nanos};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, Outcome, Ticket};
use nenrin_format::heartbeat::HEARTBEAT_BLOCK;
use nenrin_format::{BLOCK_BYTES, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Where the gate stays open: what is to be seen there is what becomes of those who do not look.
const OPEN_FOR: [Break; 5] =
    [Break::LeaseOpen, Break::MmpLate, Break::MmpSyncsLate, Break::HeldUnowned, Break::BehindUnowned];

/// A look that takes too long tells nothing, and is made again.
pub(crate) const LOOKS_MAX: u32 = 3;

/// When the last heartbeat of a mount was written, and how long that is good for.
pub(crate) struct Lease {
    interval_nanos: u64,
    /// The mount that it is of.
    owner: [u8; 16],
    clock: Arc<dyn Clock>,
    /// When the last beat began that arrived: of the lease, and wall time.
    beaten: AtomicU64,
    beaten_wall: AtomicI64,
}

impl Lease {
    /// Of a mount that beats so often, and is about to do so for the first time.
    pub fn new(interval_nanos: u64, owner: [u8; 16], clock: Arc<dyn Clock>) -> Arc<Self> {
        let (beaten, beaten_wall) = (clock.lease_nanos().into(), clock.wall().0.into());
        Arc::new(Self { interval_nanos, owner, clock, beaten, beaten_wall })
    }

    /// A beat arrived that was begun then.
    pub fn renew(&self, at: u64, wall: Time) {
        self.beaten.store(at, Relaxed);
        self.beaten_wall.store(wall.0, Relaxed);
    }

    /// Nanoseconds since the last beat.
    pub fn since_beat(&self) -> u64 {
        self.clock.lease_nanos().saturating_sub(self.beaten.load(Relaxed))
    }

    /// Whether its owner has to look before anything is accepted, written, synced or published. A wall clock that was set may be the only
    /// one that knows of a time in which nothing ran.
    pub fn is_late(&self) -> bool {
        let wall = self.clock.wall().0.saturating_sub(self.beaten_wall.load(Relaxed));
        let wall = u64::try_from(wall).unwrap_or(0);
        self.since_beat().max(wall) > lease_nanos(self.interval_nanos)
    }

    /// Whether another host may be about to have the volume: nothing is written.
    fn is_over(&self) -> bool {
        self.since_beat() > hold_nanos(self.interval_nanos)
    }

    /// A device of the volume, behind the gate.
    pub fn guard(self: &Arc<Self>, device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        Arc::new(Leased { inner: device, lease: Arc::clone(self), looked: AtomicU64::new(0) })
    }
}

/// A device that is written to only while the lease lasts.
struct Leased {
    inner: Arc<dyn BlockDevice>,
    lease: Arc<Lease>,
    /// When (of the lease) it was last looked at here, and nobody else's.
    looked: AtomicU64,
}

impl Leased {
    /// Whether these bytes may be written. Heartbeats may, always: who writes them has looked.
    fn may_write(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let block = BLOCK_BYTES as u64;
        let is_heartbeat = (offset, bytes) == (HEARTBEAT_BLOCK * block, block);
        if is_heartbeat || !self.lease.is_over() || OPEN_FOR.iter().any(|b| broken(*b)) {
            return Ok(());
        }
        self.look()
    }

    /// Whether the block of this device is this mount's: read now, or a moment ago.
    fn look(&self) -> Result<(), DeviceError> {
        let now = || self.lease.clock.lease_nanos();
        let is_fresh = |at: u64| now().saturating_sub(at) <= self.lease.interval_nanos;
        let looked = self.looked.load(Relaxed);
        if looked > 0 && is_fresh(looked) {
            return Ok(());
        }
        for _ in 0..LOOKS_MAX {
            let at = now();
            let block = heartbeat::read(self.inner.as_ref())?;
            if !heartbeat::is_of(&block, &self.lease.owner) {
                break;
            }
            // One that takes long tells nothing.
            if is_fresh(at) {
                self.looked.store(at, Relaxed);
                return Ok(());
            }
        }
        Err(DeviceError::Unowned { seconds: self.lease.since_beat() / 1_000_000_000 })
    }
}

impl BlockDevice for Leased {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn remeasure(&self) -> Result<(), DeviceError> {
        self.inner.remeasure()
    }
    fn completed(&self) -> Option<u64> {
        self.inner.completed()
    }
    fn submit(&self, op: Op) -> Ticket {
        let may = match &op {
            Op::Read { .. } | Op::Flush => Ok(()),
            Op::Write { offset, data } => self.may_write(*offset, data.len() as u64),
            Op::Discard { offset, bytes } | Op::Zero { offset, bytes } => self.may_write(*offset, *bytes),
        };
        match may {
            Ok(()) => self.inner.submit(op),
            Err(e) => Ticket::done(Err(e)),
        }
    }
    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.inner.read(offset, bytes)
    }
    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.may_write(offset, data.len() as u64)?;
        self.inner.write(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.may_write(offset, data.len() as u64)?;
        self.inner.write_flush(offset, data)
    }
    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.may_write(offset, data.len() as u64)?;
        self.inner.write_durable(offset, data)
    }
    fn submit_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Ticket {
        match self.may_write(offset, data.len() as u64) {
            Ok(()) => self.inner.submit_durable(offset, data),
            Err(e) => Ticket::done(Err(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_device::MemDevice;

    const SECOND: u64 = 1_000_000_000;
    const OWNER: [u8; 16] = [1; 16];

    fn beat_of(owner: [u8; 16]) -> Vec<u8> {
        let mmp = heartbeat::Mmp { owner, node: "node".into(), interval_nanos: 2 * SECOND };
        heartbeat::beat(&mmp, 7, Time(0), true)
    }

    /// Wall time, monotonic time, and the time of the lease.
    #[derive(Default)]
    struct Three([AtomicU64; 3]);

    impl Clock for Three {
        fn wall(&self) -> Time {
            Time(self.0[0].load(Relaxed) as i64)
        }
        fn monotonic_nanos(&self) -> u64 {
            self.0[1].load(Relaxed)
        }
        fn lease_nanos(&self) -> u64 {
            self.0[2].load(Relaxed)
        }
    }

    fn lease() -> (Arc<Three>, Arc<Lease>) {
        let clock = Arc::new(Three::default());
        (clock.clone(), Lease::new(2 * SECOND, OWNER, clock))
    }

    /// A machine that was suspended: its monotonic clock stood.
    #[test]
    fn a_lease_runs_on_while_the_machine_sleeps() {
        for (which, late, over) in [(1, false, false), (2, true, true), (0, true, false)] {
            let (clock, lease) = lease();
            clock.0[which].store(3600 * SECOND, Relaxed);
            assert_eq!((lease.is_late(), lease.is_over()), (late, over), "{which}");
            lease.renew(clock.lease_nanos(), clock.wall());
            assert!(!lease.is_late() && !lease.is_over());
        }
        let (clock, lease) = lease();
        lease.renew(0, Time(3600 * SECOND as i64));
        assert!(!lease.is_late(), "the wall clock was set back");
        clock.0[2].store(4 * SECOND, Relaxed);
        assert!(!lease.is_late());
        clock.0[2].store(4 * SECOND + 1, Relaxed);
        assert!(lease.is_late() && !lease.is_over());
    }

    /// Nothing is written in any way behind the end of the lease where another mount shows itself, but a heartbeat; where nobody does, all is.
    #[test]
    fn what_is_written_too_late_is_refused() {
        let (clock, lease) = lease();
        let inner = Arc::new(MemDevice::new(1 << 20));
        let device = lease.guard(inner.clone());
        let data = Arc::new(AlignedBuf::zeroed(BLOCK_BYTES));
        let all = |offset: u64| {
            let op = || Op::Write { offset, data: data.clone() };
            [
                device.submit(op()).wait().map(drop),
                device.submit(Op::Zero { offset, bytes: BLOCK_BYTES as u64 }).wait().map(drop),
                device.write(offset, data.clone()),
                device.write_flush(offset, data.clone()),
                device.write_durable(offset, data.clone()),
                device.submit_durable(offset, data.clone()).wait().map(drop),
            ]
        };
        clock.0[2].store(8 * SECOND, Relaxed);
        assert!(all(0).iter().all(Result::is_ok));
        // Whose it is is looked at, and known for a while.
        heartbeat::write(inner.as_ref(), &beat_of(OWNER)).unwrap();
        clock.0[2].store(9 * SECOND, Relaxed);
        assert!(all(0).iter().all(Result::is_ok));
        heartbeat::write(inner.as_ref(), &beat_of([2; 16])).unwrap();
        clock.0[2].store(12 * SECOND, Relaxed);
        for refused in all(0) {
            assert_eq!(refused, Err(DeviceError::Unowned { seconds: 12 }));
        }
        assert!(device.read(0, BLOCK_BYTES).is_ok() && device.flush().is_ok());
        assert!(device.submit(Op::Flush).wait().is_ok());
        assert!(all(HEARTBEAT_BLOCK * BLOCK_BYTES as u64).iter().all(Result::is_ok));
        lease.renew(12 * SECOND, Time(0));
        assert!(all(0).iter().all(Result::is_ok));
    }
}
