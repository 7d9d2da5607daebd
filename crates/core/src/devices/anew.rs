//! Blocks that are written once more where they lie, while others count on them.
//!
//! Invariants
//! 1. Where a copy is mended what is right elsewhere is not touched: it may be the only right one, and the write the last that its device fails.
//! 2. Who writes all copies anew does so with one of them at a time: whatever becomes of it, the others are as they were.

use super::layout::{Place, Runs};
use super::requests::{Part, Patience, bytes};
use super::returning::blocks_of;
use super::whole_rows::block_bytes;
use super::{Devices, Member};
use crate::breaks::{Break, broken};
use nenrin_device::{AlignedBuf, DeviceError, Op};
use nenrin_format::{Addr, BLOCK_BYTES};
use std::sync::Arc;

impl Devices {
    /// Writes blocks to each device that has something else there, or does not give them. One that joins gets them anyway: what it shows
    /// may be in its cache alone. Whether there was any.
    pub fn write_unlike(self: &Arc<Self>, addr: Addr, data: &Arc<AlignedBuf>) -> Result<bool, DeviceError> {
        let blocks = (data.len() / BLOCK_BYTES) as u32;
        let entry = self.enter(addr, blocks);
        match Self::write_runs(&entry.roster, addr, blocks) {
            Err(e) => {
                entry.end();
                Err(e)
            }
            Ok((parts, left_out)) => {
                let parts: Vec<Part> = parts.into_iter().flat_map(|part| unlike(part, data)).collect();
                self.start_writes(entry, &parts, left_out, data).wait().map(|_| !parts.is_empty())
            }
        }
    }

    /// Writes this copy of blocks, counted from 0, and waits; nothing where they have fewer.
    pub fn write_copy(self: &Arc<Self>, addr: Addr, data: &Arc<AlignedBuf>, copy: usize) -> Result<(), DeviceError> {
        let blocks = (data.len() / BLOCK_BYTES) as u32;
        let entry = self.enter(addr, blocks);
        match Self::write_runs_of(&entry.roster, addr, blocks, |i| i == copy) {
            Err(e) => {
                entry.end();
                Err(e)
            }
            Ok((parts, left_out)) => self.start_writes(entry, &parts, left_out, data).wait().map(drop),
        }
    }
}

/// What of a part a device does not have.
fn unlike((member, run): Part, data: &[u8]) -> Vec<Part> {
    if !member.is_active() || broken(Break::MendedOverRight) {
        return vec![(member, run)];
    }
    let read = |block: u64, blocks: u32| read_own(&member, block, blocks);
    let whole = read(run.block, run.blocks);
    let patience = Patience::default();
    let mut runs = Runs::default();
    for (i, to) in (0..).zip(blocks_of(&run)) {
        let wanted = &data[block_bytes(to)];
        let is_like = match &whole {
            Some(whole) => whole[block_bytes(i)] == *wanted,
            None => patience.ask(|| read(run.block + u64::from(i), 1)).is_some_and(|one| one[..] == *wanted),
        };
        if !is_like {
            runs.add(Place { device: run.device, block: run.block + u64::from(i) }, to, 1);
        }
    }
    runs.0.into_iter().map(|run| (member.clone(), run)).collect()
}

fn read_own(member: &Member, block: u64, blocks: u32) -> Option<AlignedBuf> {
    member.submit(Op::Read { offset: bytes(block), bytes: blocks as usize * BLOCK_BYTES }).wait().ok()
}
