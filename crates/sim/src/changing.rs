//! Devices of a volume come, go and change their length, as drawn.

use crate::members::Drive;
use nenrin_core::{Error, Fs, Result};
use nenrin_device::{BLOCK_BYTES, BlockDevice};
use std::sync::Arc;

/// Steps of one call at most: what is left goes on later.
const STEPS_MAX: u64 = 40;

/// One change, or some steps of what is under way.
///
/// # Errors
/// Those of the file system, but not what it refuses.
pub fn change(fs: &Fs, drive: &Drive, draw: u64) -> Result<()> {
    let (what, draw) = (draw % 16, draw / 16);
    let health = fs.health();
    let Some(one) = health.get((draw % health.len().max(1) as u64) as usize) else { return Ok(()) };
    let changed = match what {
        0..=2 => match spare(fs, drive) {
            Some(device) => fs.device_add(device, uuid(draw)).map(drop),
            None => Ok(()),
        },
        3..=4 => fs.device_remove(one.index),
        5 => fs.device_keep(one.index).map(drop),
        6..=7 => {
            let there = drive.members.iter().find(|d| Some(d.geometry().name) == one.name);
            let blocks = there.map_or(0, |d| d.geometry().bytes / BLOCK_BYTES as u64);
            let part = 4 + draw / 64 % 5;
            fs.device_resize(one.index, blocks * part / 8)
        }
        8..=13 => steps(fs, 1 + draw % 4, (1 + draw / 4 % 8) << 14),
        _ => steps(fs, STEPS_MAX, 1 << 20),
    };
    match changed {
        Err(Error::Devices(_) | Error::NoSpace) => Ok(()),
        // One that dies cannot be added. The volume goes on, or the next call tells.
        Err(Error::Device(_)) if drive.dies && fs.failed().is_none() => Ok(()),
        other => other,
    }
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
