//! Hosts with `mmp` of which one does not reach all devices, or not any more.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::devices::bring_up;
use crate::mmp::{World, clean, put, with_mmp};
use nenrin_core::format::heartbeat::HEARTBEAT_BLOCK;
use nenrin_core::format::superblock::Profile;
use nenrin_core::{Fs, MountOptions, Standing};
use nenrin_device::{BlockDevice, Fault, Geometry, Op, OpKind, Ticket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const SECOND: u64 = 1_000_000_000;

fn mount(w: &World, which: &[usize], host: &str, degraded: bool) -> nenrin_core::Result<Arc<Fs>> {
    let devices = which.iter().map(|i| w.devices[*i].clone()).collect();
    Fs::open(devices, w.time(), MountOptions { degraded, ..with_mmp(host) })
}

/// A device that took no beat, or whose block cannot be read, is not claimed: it takes no part.
fn what_cannot_be_claimed() {
    for is_read in [false, true] {
        let w = World::new(Profile::Mirror, 2);
        let offset = HEARTBEAT_BLOCK * 4096;
        let fault = || match is_read {
            true => Fault::FailReads { range: offset..offset + 512 },
            false => Fault::Fail { kind: OpKind::Write, from: 1, times: 1 },
        };
        w.fault(1, fault());
        let error = mount(&w, &[0, 1], "a", false).err().unwrap_or_else(|| panic!("claimed by nobody: {is_read}"));
        assert!(error.to_string().contains("the heartbeat cannot be"), "{error}");
        w.clear(1);
        w.fault(1, fault());
        let a = mount(&w, &[0, 1], "b", true).unwrap();
        assert_eq!(a.health()[1].standing, Standing::Absent, "a member that is claimed by nobody: {is_read}");
        put(&a, "of a").unwrap();
        a.close().unwrap();
        w.clear(1);
        let c = mount(&w, &[0, 1], "c", false).unwrap();
        bring_up(&c);
        c.close().unwrap();
        clean(&w);
        // Where it is the only one there is nothing to mount.
        let w = World::new(Profile::Single, 1);
        w.fault(0, fault());
        assert!(mount(&w, &[0], "a", true).is_err());
    }
}

#[test]
fn a_device_that_cannot_be_claimed_takes_no_part() {
    what_cannot_be_claimed();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "claimed by nobody")]
fn a_device_that_nobody_claimed_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::ClaimUnheard, what_cannot_be_claimed);
}

/// The second look and beat of a claim take longer than a look is good for, once or always.
#[test]
fn a_claim_that_is_slow_blames_no_device() {
    struct Slow {
        inner: Arc<dyn BlockDevice>,
        clock: Arc<crate::mmp::Hours>,
        /// Looks of the claim until it is slow, and how often it is.
        looks: AtomicU64,
        slow: (u64, u64),
    }
    impl BlockDevice for Slow {
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }
        fn submit(&self, op: Op) -> Ticket {
            if matches!(op, Op::Read { offset, bytes: 4096 } if offset == HEARTBEAT_BLOCK * 4096) {
                let look = self.looks.fetch_add(1, SeqCst);
                if (self.slow.0..self.slow.0 + self.slow.1).contains(&look) {
                    self.clock.pass(5 * SECOND);
                }
            }
            self.inner.submit(op)
        }
    }
    for (times, is_taken) in [(1, true), (2, true), (3, false)] {
        let w = World::new(Profile::Mirror, 2);
        // The first is before it waits.
        let slow = |d: &Arc<dyn BlockDevice>| Slow {
            inner: d.clone(),
            clock: w.clock.clone(),
            looks: AtomicU64::new(0),
            slow: (1, times),
        };
        let first: Arc<dyn BlockDevice> = Arc::new(slow(&w.devices[0]));
        let fs = Fs::open(vec![first, w.devices[1].clone()], w.time(), with_mmp("a"));
        match (fs, is_taken) {
            (Ok(fs), true) => {
                assert!(fs.health().iter().all(|d| d.standing == Standing::Active), "{times}");
                put(&fs, "before").unwrap();
                fs.close().unwrap();
                clean(&w);
            }
            (Err(e), false) => assert!(e.to_string().contains("takes more than 4 seconds"), "{e}"),
            (fs, _) => panic!("{times}: {:?}", fs.map(drop)),
        }
    }
}
