//! Devices of a volume come, go and change their length, as drawn.
//!
//! What is refused is judged: where all members are there and as they should be, enough of them stay, and what there is would fit
//! three times over on the shortest of those, there is no reason to refuse.

use crate::members::Drive;
use nenrin_core::{DeviceHealth, Error, Fs, Result, Standing};
use nenrin_device::{BLOCK_BYTES, BlockDevice};
use nenrin_format::row_log::ROW_LOG_UNITS;
use nenrin_format::superblock::{AREA_BLOCKS, Profile, UNIT_BLOCKS};
use std::sync::Arc;

/// Steps of one call at most: what is left goes on later.
const STEPS_MAX: u64 = 40;
/// Room that is left where a change must not be refused: so many segments, the least that a volume has among them,
const SEGMENTS_LEFT: u64 = 24;
/// and so many times what there is.
const TIMES: u64 = 3;

/// What became of a change that was asked for.
#[derive(Debug, Default)]
pub struct Changed {
    /// What is counted.
    pub what: Option<&'static str>,
    /// Why it should not have been refused.
    pub wrong: Option<String>,
}

/// One change, or some steps of what is under way.
///
/// # Errors
/// Those of the file system, but not what it refuses.
pub fn change(fs: &Fs, drive: &Drive, draw: u64) -> Result<Changed> {
    let (what, draw) = (draw % 16, draw / 16);
    let health = fs.health();
    let Some(one) = health.get((draw % health.len().max(1) as u64) as usize) else { return Ok(Changed::default()) };
    let (names, wrong, changed) = match what {
        0..=2 => {
            let Some(device) = spare(fs, drive) else { return Ok(Changed::default()) };
            (Some(["devices asked to come", "devices refused"]), None, fs.device_add(device, uuid(draw)).map(drop))
        }
        3..=4 => {
            let wrong = no_reason(fs, &health, one.index, 0);
            (Some(["devices asked to go", "devices not let go"]), wrong, fs.device_remove(one.index))
        }
        5 => (None, None, fs.device_keep(one.index).map(drop)),
        6..=7 => {
            let there = drive.members.iter().find(|d| Some(d.geometry().name) == one.name);
            let blocks = there.map_or(0, |d| d.geometry().bytes / BLOCK_BYTES as u64);
            let part = 4 + draw / 64 % 5;
            let wrong = no_reason(fs, &health, one.index, blocks * part / 8);
            let changed = fs.device_resize(one.index, blocks * part / 8);
            (Some(["lengths changed", "lengths not changed"]), wrong, changed)
        }
        8..=13 => (None, None, steps(fs, 1 + draw % 4, (1 + draw / 4 % 8) << 14)),
        _ => (None, None, steps(fs, STEPS_MAX, 1 << 20)),
    };
    match changed {
        Ok(()) => Ok(Changed { what: names.map(|[taken, _]| taken), wrong: None }),
        Err(e @ (Error::Devices(_) | Error::NoSpace)) => {
            let wrong = wrong.map(|why| format!("{e}, though {why}"));
            Ok(Changed { what: names.map(|[_, refused]| refused), wrong })
        }
        // One that dies cannot be added. The volume goes on, or the next call tells.
        Err(Error::Device(_)) if drive.dies && fs.failed().is_none() => Ok(Changed::default()),
        Err(e) => Err(e),
    }
}

/// Why a device must be let go, or have this length: nothing speaks against it, and there is much more room than is needed.
fn no_reason(fs: &Fs, health: &[DeviceHealth], index: u16, blocks: u64) -> Option<String> {
    let is_leaving = |d: &DeviceHealth| d.target_bytes == 0;
    let is_well = |d: &DeviceHealth| d.standing == Standing::Active && d.failed.is_none();
    let leaves = health.iter().any(|d| d.index == index && is_leaving(d));
    if fs.is_joining() || leaves || !health.iter().all(is_well) {
        return None;
    }
    let others = health.iter().filter(|d| d.index != index && !is_leaving(d));
    let lengths = others.map(|d| d.target_bytes / BLOCK_BYTES as u64).chain((blocks > 0).then_some(blocks));
    let lengths: Vec<u64> = lengths.collect();
    let (count, superblock) = (lengths.len() as u64, fs.superblock());
    let each = lengths.iter().min()?.saturating_sub(2 * AREA_BLOCKS);
    let room = match superblock.profile {
        Profile::Single | Profile::Stripe => each * count,
        Profile::Mirror if count >= 2 => each * count / 2,
        Profile::Parity if count >= 3 => {
            each.saturating_sub(u64::from(ROW_LOG_UNITS) * u64::from(UNIT_BLOCKS)) * (count - 1)
        }
        Profile::Mirror | Profile::Parity => return None,
    };
    let usage = fs.usage();
    let needed = usage.live_blocks + usage.snapshot_blocks + usage.snapshot_index_blocks + usage.reserved_blocks;
    let is_enough = room >= TIMES * needed + SEGMENTS_LEFT * u64::from(superblock.segment_blocks);
    is_enough.then(|| format!("{room} blocks would be left for {needed}: {health:?}"))
}

fn uuid(draw: u64) -> [u8; 16] {
    let mut uuid = [0xa5; 16];
    uuid[..8].copy_from_slice(&draw.to_le_bytes());
    uuid
}

/// A device that is no member.
fn spare(fs: &Fs, drive: &Drive) -> Option<Arc<dyn BlockDevice>> {
    let names: Vec<_> = fs.health().into_iter().filter_map(|h| h.name).collect();
    drive.members.iter().find(|d| !names.contains(&d.geometry().name)).cloned()
}

fn steps(fs: &Fs, count: u64, bytes: u64) -> Result<()> {
    for _ in 0..count {
        if fs.laying_step(bytes)?.is_none_or(|s| s.waits.is_some()) {
            break;
        }
    }
    Ok(())
}
