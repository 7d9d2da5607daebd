//! How long a mount with `mmp` may write without having shown that it has the volume, and the gate that holds it to that.
//!
//! Who is about to write looks first ([`crate::Fs::beat`] and what asks for it in `fs/beats.rs`). The gate is for what was looked at
//! too early: a thread that was stopped in between, or that waited for a device. Where the last beat is too old it looks itself, at
//! the device that is about to be written: one that answers slowly keeps nobody from writing to the others.
//!
//! Invariants
//! 1. What a mount with `mmp` writes to a device of its volume passes the gate of that device, but for its heartbeat.
//! 2. Each device has its own lease, from the last beat that arrived there: of what was shown on others nobody knows who reaches this one.
//! 3. Behind the end of a lease a device is written to only where its own block was read a moment ago, and is this mount's: who takes
//!    the volume over shows that for longer than a look is good for before he writes anything else. A device that is about to become
//!    one of the volume has no such block before it joins, and is not written to then.
//! 4. A beat that took longer to arrive than others wait may have replaced one of theirs: it tells nothing, and the device has failed.
//! 5. Who submits waits for no look.
//! 6. Without `mmp` there is no gate.

use crate::Clock;
use crate::breaks::{Break, broken};
use crate::heartbeat::{self, hold_nanos, lease_nanos};
use nenrin_device::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, Outcome, Pending, Ticket};
use nenrin_format::heartbeat::HEARTBEAT_BLOCK;
use nenrin_format::{BLOCK_BYTES, Time};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
        // That of a slow device comes behind a later one of another.
        if self.beaten.fetch_max(at, Relaxed) <= at {
            self.beaten_wall.store(wall.0, Relaxed);
        }
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

    /// A device that has taken the last beat, behind its gate.
    pub fn guard(self: &Arc<Self>, device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        self.gate(device, self.beaten.load(Relaxed))
    }

    /// A device that is about to become one of the volume, and has taken none: it is written to as long as the others may be.
    pub fn guard_new(self: &Arc<Self>, device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        self.gate(device, NEVER)
    }

    fn gate(self: &Arc<Self>, inner: Arc<dyn BlockDevice>, beaten: u64) -> Arc<dyn BlockDevice> {
        let (lease, looked) = (Arc::clone(self), AtomicU64::new(NEVER));
        Arc::new(Leased(Arc::new(Gate { inner, lease, beaten: AtomicU64::new(beaten), looked })))
    }
}

const NEVER: u64 = 0;

/// A device that is written to only while its lease lasts.
struct Leased(Arc<Gate>);

struct Gate {
    inner: Arc<dyn BlockDevice>,
    lease: Arc<Lease>,
    /// When (of the lease) the last beat began that arrived here.
    beaten: AtomicU64,
    /// When it was last looked at here, and nobody else's.
    looked: AtomicU64,
}

impl Gate {
    fn now(&self) -> u64 {
        self.lease.clock.lease_nanos()
    }

    fn since_beat(&self) -> u64 {
        match self.beaten.load(Relaxed) {
            NEVER => self.lease.since_beat(),
            _ if broken(Break::LeaseShared) => self.lease.since_beat(),
            at => self.now().saturating_sub(at),
        }
    }

    /// Whether another host may be about to have this device.
    fn is_over(&self) -> bool {
        self.since_beat() > hold_nanos(self.lease.interval_nanos)
    }

    /// Whether these bytes may be written without a look. Heartbeats may, always: who writes them has looked.
    fn is_open(&self, offset: u64, bytes: u64) -> bool {
        let looked = self.looked.load(Relaxed);
        is_heartbeat(offset, bytes)
            || !self.is_over()
            || looked != NEVER && self.is_fresh(looked)
            || OPEN_FOR.iter().any(|b| broken(*b))
    }

    fn is_fresh(&self, at: u64) -> bool {
        self.now().saturating_sub(at) <= self.lease.interval_nanos
    }

    /// Whether the block of this device, as it was read from then on, is this mount's. `None` where that took too long to tell.
    fn seen(&self, at: u64, read: Outcome) -> Result<Option<()>, DeviceError> {
        if !heartbeat::is_of(&read?, &self.lease.owner) {
            return Err(self.refused());
        }
        let is_fresh = self.is_fresh(at);
        if is_fresh {
            self.looked.store(at, Relaxed);
        }
        Ok(is_fresh.then_some(()))
    }

    fn refused(&self) -> DeviceError {
        DeviceError::Unowned { seconds: self.since_beat() / 1_000_000_000 }
    }

    /// Looks, and waits for that.
    fn may_write(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        if self.is_open(offset, bytes) {
            return Ok(());
        }
        for _ in 0..LOOKS_MAX {
            let at = self.now();
            if self.seen(at, heartbeat::submit_read(self.inner.as_ref()).wait())?.is_some() {
                return Ok(());
            }
        }
        Err(self.refused())
    }

    /// A beat that was begun then has arrived.
    fn arrived(&self, at: u64) -> Result<(), DeviceError> {
        let took = self.now().saturating_sub(at);
        if took > hold_nanos(self.lease.interval_nanos) && !broken(Break::LeaseShared) {
            return Err(DeviceError::Unanswered { seconds: took / 1_000_000_000 });
        }
        self.beaten.fetch_max(at, Relaxed);
        Ok(())
    }
}

fn is_heartbeat(offset: u64, bytes: u64) -> bool {
    (offset, bytes) == (HEARTBEAT_BLOCK * BLOCK_BYTES as u64, BLOCK_BYTES as u64)
}

impl Leased {
    /// Starts what writes these bytes: at once, or when a look has told that it may. That is waited for by who waits for the rest.
    fn start(&self, (offset, bytes): (u64, u64), submit: Submit) -> Ticket {
        let gate = &self.0;
        if gate.is_open(offset, bytes) {
            return submit(gate.inner.as_ref());
        }
        let look = (gate.now(), heartbeat::submit_read(gate.inner.as_ref()));
        let stage = Stage::Looks { look, left: LOOKS_MAX - 1, submit };
        Ticket::new(Behind { gate: Arc::clone(gate), stage: Mutex::new(stage) })
    }
}

type Submit = Box<dyn FnOnce(&dyn BlockDevice) -> Ticket + Send>;

/// A write that comes behind the end of the lease.
struct Behind {
    gate: Arc<Gate>,
    stage: Mutex<Stage>,
}

enum Stage {
    /// It waits for a look, begun then.
    Looks {
        look: (u64, Ticket),
        left: u32,
        submit: Submit,
    },
    Writes(Ticket),
    Over,
}

impl Stage {
    /// What it waits for.
    const fn ticket(&self) -> Option<&Ticket> {
        match self {
            Self::Looks { look: (_, ticket), .. } | Self::Writes(ticket) => Some(ticket),
            Self::Over => None,
        }
    }
}

impl Behind {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes when its look is done.
    fn next(&self, stage: Stage) -> Stage {
        let Stage::Looks { look: (at, ticket), left, submit } = stage else { return stage };
        match (self.gate.seen(at, ticket.wait()), left.checked_sub(1)) {
            (Err(e), _) => Stage::Writes(Ticket::done(Err(e))),
            (Ok(Some(())), _) => Stage::Writes(submit(self.gate.inner.as_ref())),
            (Ok(None), None) => Stage::Writes(Ticket::done(Err(self.gate.refused()))),
            (Ok(None), Some(left)) => {
                let look = (self.gate.now(), heartbeat::submit_read(self.gate.inner.as_ref()));
                Stage::Looks { look, left, submit }
            }
        }
    }

    /// Goes on as far as `is_done` says that it can; whether the write itself is what is to be waited for, and is done.
    fn go_on(&self, is_done: impl Fn(&Ticket) -> bool) -> bool {
        let mut stage = self.stage();
        while stage.ticket().is_some_and(&is_done) {
            if !matches!(*stage, Stage::Looks { .. }) {
                return true;
            }
            *stage = self.next(std::mem::replace(&mut *stage, Stage::Over));
        }
        matches!(*stage, Stage::Over)
    }
}

impl Pending for Behind {
    fn wait(self: Box<Self>) -> Outcome {
        loop {
            let stage = std::mem::replace(&mut *self.stage(), Stage::Over);
            match self.next(stage) {
                Stage::Writes(ticket) => return ticket.wait(),
                Stage::Over => return Err(DeviceError::Misuse("the ticket was waited for before")),
                looks @ Stage::Looks { .. } => *self.stage() = looks,
            }
        }
    }
    fn is_done(&self) -> bool {
        self.go_on(Ticket::is_done)
    }
    fn wait_at_most(&self, time: Duration) -> bool {
        self.go_on(|ticket| ticket.wait_at_most(time))
    }
}

/// A beat under way.
struct Beat {
    gate: Arc<Gate>,
    ticket: Ticket,
    at: u64,
}

impl Pending for Beat {
    fn wait(self: Box<Self>) -> Outcome {
        let outcome = self.ticket.wait()?;
        self.gate.arrived(self.at).map(|()| outcome)
    }
    fn is_done(&self) -> bool {
        self.ticket.is_done()
    }
    fn wait_at_most(&self, time: Duration) -> bool {
        self.ticket.wait_at_most(time)
    }
}

impl BlockDevice for Leased {
    fn geometry(&self) -> Geometry {
        self.0.inner.geometry()
    }
    fn remeasure(&self) -> Result<(), DeviceError> {
        self.0.inner.remeasure()
    }
    fn completed(&self) -> Option<u64> {
        self.0.inner.completed()
    }
    fn submit(&self, op: Op) -> Ticket {
        let range = match &op {
            Op::Read { .. } | Op::Flush => return self.0.inner.submit(op),
            Op::Write { offset, data } => (*offset, data.len() as u64),
            Op::Discard { offset, bytes } | Op::Zero { offset, bytes } => (*offset, *bytes),
        };
        if is_heartbeat(range.0, range.1) {
            let (gate, at) = (Arc::clone(&self.0), self.0.now());
            return Ticket::new(Beat { ticket: gate.inner.submit(op), gate, at });
        }
        self.start(range, Box::new(|device| device.submit(op)))
    }
    fn read(&self, offset: u64, bytes: usize) -> Outcome {
        self.0.inner.read(offset, bytes)
    }
    fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.0.may_write(offset, data.len() as u64)?;
        self.0.inner.write(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.0.inner.flush()
    }
    fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.0.may_write(offset, data.len() as u64)?;
        self.0.inner.write_flush(offset, data)
    }
    fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
        self.0.may_write(offset, data.len() as u64)?;
        self.0.inner.write_durable(offset, data)
    }
    fn submit_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Ticket {
        self.start((offset, data.len() as u64), Box::new(move |device| device.submit_durable(offset, data)))
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
            let is_over = lease.since_beat() > hold_nanos(2 * SECOND);
            assert_eq!((lease.is_late(), is_over), (late, over), "{which}");
            lease.renew(clock.lease_nanos(), clock.wall());
            assert!(!lease.is_late() && lease.since_beat() == 0);
        }
        let (clock, lease) = lease();
        lease.renew(0, Time(3600 * SECOND as i64));
        assert!(!lease.is_late(), "the wall clock was set back");
        clock.0[2].store(4 * SECOND, Relaxed);
        assert!(!lease.is_late());
        clock.0[2].store(4 * SECOND + 1, Relaxed);
        assert!(lease.is_late());
    }

    /// Nothing is written in any way behind the end of the lease where another mount shows itself, but a heartbeat; where nobody does, all is.
    #[test]
    fn what_is_written_too_late_is_refused() {
        let (clock, lease) = lease();
        let inner = Arc::new(MemDevice::new(1 << 20));
        lease.renew(SECOND, Time(0));
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
        clock.0[2].store(9 * SECOND, Relaxed);
        assert!(all(0).iter().all(Result::is_ok));
        // Whose it is is looked at, and known for a while.
        heartbeat::write(inner.as_ref(), &beat_of(OWNER)).unwrap();
        clock.0[2].store(10 * SECOND, Relaxed);
        assert!(all(0).iter().all(Result::is_ok));
        heartbeat::write(inner.as_ref(), &beat_of([2; 16])).unwrap();
        clock.0[2].store(13 * SECOND, Relaxed);
        for refused in all(0) {
            assert_eq!(refused, Err(DeviceError::Unowned { seconds: 12 }));
        }
        assert!(device.read(0, BLOCK_BYTES).is_ok() && device.flush().is_ok());
        assert!(device.submit(Op::Flush).wait().is_ok());
        // A beat that arrived elsewhere says nothing of this device.
        lease.renew(13 * SECOND, Time(0));
        assert!(all(0).iter().all(Result::is_err));
        heartbeat::write(device.as_ref(), &beat_of(OWNER)).unwrap();
        assert!(all(0).iter().all(Result::is_ok));
        assert!(all(HEARTBEAT_BLOCK * BLOCK_BYTES as u64).iter().all(Result::is_ok));
        clock.0[2].store(30 * SECOND, Relaxed);
        heartbeat::write(inner.as_ref(), &beat_of([2; 16])).unwrap();
        assert!(all(0).iter().all(Result::is_err));
    }

    /// It may have replaced what another host showed meanwhile.
    #[test]
    fn a_beat_that_arrives_too_late_has_failed() {
        let (clock, lease) = lease();
        let device = lease.guard(Arc::new(MemDevice::new(1 << 20)));
        let submit = || {
            let (offset, data) = (HEARTBEAT_BLOCK * BLOCK_BYTES as u64, Arc::new(AlignedBuf::padded(&beat_of(OWNER))));
            device.submit(Op::Write { offset, data })
        };
        for (seconds, arrives) in [(8, true), (9, false)] {
            let ticket = submit();
            clock.0[2].fetch_add(seconds * SECOND, Relaxed);
            assert_eq!(ticket.wait().is_ok(), arrives, "{seconds}");
        }
    }
}
