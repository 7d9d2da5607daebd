//! Wiping where no segment lies: whatever the bands were before left there what it held.
//!
//! Invariants
//! 1. Nothing is zeroed there before both usable roots have the bands as they are, and they stay so meanwhile: who changes devices
//!    has to wait.
//! 2. Whoever changes devices is not waited for.

use super::{CHUNK_BLOCKS, Stage, Wiper};
use crate::breaks::{Break, broken};
use crate::devices::{Outside, Zeroed};
use crate::fs::Fs;
use crate::fs::laying::Laying;
use crate::{Error, Result};
use std::sync::{MutexGuard, TryLockError};

impl Fs {
    /// Zeroes some of what no segment has; the stage after that, and what it cost in blocks.
    pub(super) fn wipe_outside(&self, wiper: &mut Wiper, come: Option<Outside>) -> Result<(Stage, u64)> {
        if broken(Break::OutsideUnwiped) {
            return Ok((Stage::End(None), 1));
        }
        let devices = self.storage.devices();
        if devices.joins() != wiper.joins {
            return Ok((Stage::Begin, 1));
        }
        let Some(_bands_stay) = self.bands_stay() else {
            wiper.waits = Some("devices are being changed at this moment".into());
            return Ok((Stage::Outside(come), 1));
        };
        if let Some(why) = self.why_absent() {
            wiper.waits = Some(why);
            return Ok((Stage::Outside(None), 1));
        }
        let Some(mut come) = come else {
            self.renew()?;
            return Ok((Stage::Outside(Some(devices.outside())), 1));
        };
        let zeroed = devices.zero_outside(&mut come, u64::from(CHUNK_BLOCKS), || self.owns_to_write());
        let zeroed = zeroed.inspect_err(|e: &Error| self.lock().fail(&e.to_string()))?;
        Ok(match zeroed {
            Zeroed::Some(blocks) => (Stage::Outside(Some(come)), blocks),
            Zeroed::Changed => (Stage::Outside(None), 1),
            Zeroed::All => {
                if self.options.discard && come.has_zeroed() {
                    // Not before: a device may then give back what was there.
                    self.flush_device()?;
                    self.owns_to_write()?;
                    devices.discard_outside(&come);
                }
                (Stage::End(Some(come)), 1)
            }
            Zeroed::Left(why) => {
                wiper.waits = Some(why);
                (Stage::Outside(Some(come)), 1)
            }
        })
    }

    /// As long as this is held no bands change; `None` where somebody may be at it.
    pub(super) fn bands_stay(&self) -> Option<MutexGuard<'_, Laying>> {
        match self.laying.try_lock() {
            Ok(laying) => Some(laying),
            Err(TryLockError::Poisoned(laying)) => Some(laying.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{create, device, mount};
    use nenrin_device::{AlignedBuf, BlockDevice, Fault, Faulty, MemDevice};
    use nenrin_format::superblock::AREA_BLOCKS;
    use nenrin_format::{BLOCK_BYTES, Ino};
    use std::sync::Arc;

    /// What is left of the device behind its last segment is zeroed, and the areas are not; where devices are being changed it waits.
    fn what_lies_behind_the_last_segment_goes() {
        let device = device(33, 64);
        let end = device.geometry().bytes / BLOCK_BYTES as u64 - AREA_BLOCKS;
        let rest = (end - AREA_BLOCKS) % 64;
        assert!(rest > 2, "{rest}");
        let old = Arc::new(AlignedBuf::padded(&[0xa7; BLOCK_BYTES]));
        let places = [end - rest, end - 1].map(|block| block * BLOCK_BYTES as u64);
        places.iter().for_each(|at| device.write(*at, old.clone()).unwrap());
        let tail = device.read(end * BLOCK_BYTES as u64, AREA_BLOCKS as usize * BLOCK_BYTES).unwrap();
        assert!(tail.iter().any(|b| *b != 0));
        let fs = mount(&device, MountOptions::default());
        create(&fs, "f");
        fs.checkpoint_create(None).unwrap();
        fs.unlink(Ino::ROOT, b"f").unwrap();
        fs.forget(&[b"f"], &fs.forget_plan(&[b"f"]).unwrap().inodes).unwrap();
        let laying = fs.laying.lock().unwrap();
        let waits = (0..1000).find_map(|_| fs.forget_step(1 << 20).unwrap()?.waits);
        assert!(waits.is_some_and(|why| why.contains("being changed")));
        drop(laying);
        assert!((0..1000).any(|_| fs.forget_step(1 << 20).unwrap().is_none()));
        fs.close().unwrap();
        for at in places {
            let found = device.read(at, BLOCK_BYTES).unwrap();
            assert!(found.iter().all(|b| *b == 0), "old content is left at {at}");
        }
        drop(fs);
        mount(&device, MountOptions::default()).close().unwrap();
    }

    #[test]
    fn what_no_segment_has_is_wiped() {
        what_lies_behind_the_last_segment_goes();
    }

    const OLD: u8 = 0xa7;

    /// A volume of one device on which something is to be forgotten.
    fn forgetting(device: &Arc<dyn BlockDevice>) -> Arc<Fs> {
        let fs = mount(device, MountOptions::default());
        create(&fs, "f");
        fs.checkpoint_create(None).unwrap();
        fs.unlink(Ino::ROOT, b"f").unwrap();
        fs.forget(&[b"f"], &fs.forget_plan(&[b"f"]).unwrap().inodes).unwrap();
        fs
    }

    /// A block behind the last segment takes no writes: all else goes on, and is wiped; the block again when it takes some.
    fn a_block_there_takes_no_zeros() {
        let memory = device(33, 64);
        let end = memory.geometry().bytes / BLOCK_BYTES as u64 - AREA_BLOCKS;
        let old = Arc::new(AlignedBuf::padded(&[OLD; BLOCK_BYTES]));
        let bytes = |block: u64| block * BLOCK_BYTES as u64;
        (end - 2..end).for_each(|block| memory.write(bytes(block), old.clone()).unwrap());
        let is_old = |block: u64| memory.read(bytes(block), BLOCK_BYTES).unwrap()[0] == OLD;
        let faulty = Arc::new(Faulty::new(memory.clone()));
        faulty.faults().inject(Fault::FailWrites { range: bytes(end - 2)..bytes(end - 1) });
        let device: Arc<dyn BlockDevice> = faulty.clone();
        let fs = forgetting(&device);
        let waits = (0..1000).find_map(|_| fs.forget_step(1 << 20).unwrap()?.waits);
        let place = format!("block {} of device 1", end - 2);
        assert!(waits.as_ref().is_some_and(|why| why.contains(&place)), "{waits:?}");
        assert_eq!((is_old(end - 2), is_old(end - 1)), (true, false));
        create(&fs, "g");
        fs.sync_all().unwrap();
        assert_eq!(fs.health()[0].write_errors, 0);
        faulty.faults().clear();
        assert!((0..10).any(|_| fs.forget_step(1 << 20).unwrap().is_none()));
        assert!(!is_old(end - 2));
        fs.close().unwrap();
    }

    #[test]
    fn a_bad_block_where_nothing_lies_ends_nothing() {
        a_block_there_takes_no_zeros();
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "Failed")]
    fn a_device_that_goes_with_it_is_noticed() {
        crate::breaks::with(Break::OutsideFailsDevice, a_block_there_takes_no_zeros);
    }

    /// A device is added when all is wiped and the list has not ended yet.
    #[test]
    fn what_is_added_at_the_end_is_looked_at_too() {
        let first = device(32, 64);
        let fs = forgetting(&first);
        for _ in 0..100_000 {
            if matches!(fs.wiper().stage, Stage::End(_)) {
                break;
            }
            fs.forget_step(1).unwrap();
        }
        assert!(matches!(fs.wiper().stage, Stage::End(_)));
        let second: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(vec![OLD; 16 << 20]));
        fs.device_add(second.clone(), [7; 16]).unwrap();
        assert!((0..1000).any(|_| fs.forget_step(1 << 20).unwrap().is_none()));
        let found = second.read(0, 16 << 20).unwrap();
        assert!(!found.chunks(BLOCK_BYTES).any(|b| b.iter().all(|b| *b == OLD)));
        fs.close().unwrap();
    }
}
