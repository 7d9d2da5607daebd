//! Mounts whose partials count as proof of what was durable. Blocks behind the end of the log hold whatever lay there before: content of
//! files, which may look like partials of this volume, be it because it is a copy of one (a backup kept on what was restored from it), or
//! because somebody wants it to.
//!
//! Invariants
//! 1. Nobody who only writes files knows the identity of a mount.
//! 2. A mount writes a root with its identity, durable, before any partial that has it. So while no root is lost no other counts.
//! 3. That root says behind which partial the mount went on: what else followed there was dropped.

use crate::storage::{Probe, SlotState};
use nenrin_format::superblock::{SLOTS_PER_AREA, Superblock};
use nenrin_format::{Addr, Epoch, SegmentNo, Seq, Time};
use std::collections::BTreeSet;
use std::hash::Hasher;

/// The mounts that roots name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mounts {
    known: BTreeSet<u64>,
    /// A root may be lost, and with it the only one that names a mount.
    any: bool,
    /// What the roots say of the log.
    points: Vec<Point>,
}

/// Where the log stood when a root was written: the last partial that it contains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub uuid: [u8; 16],
    /// The epoch of the mount that wrote the root.
    pub epoch: Epoch,
    pub seq: Seq,
    pub last_addr: Addr,
    pub last_crc: u32,
    /// Where the log goes on, and the segment after that one.
    pub chain: (SegmentNo, u32),
    pub next: Option<SegmentNo>,
}

impl Point {
    const fn of(root: &Superblock) -> Self {
        let Superblock { uuid, epoch, chain_seq: seq, chain_last: last_addr, chain_crc: last_crc, .. } = *root;
        Self { uuid, epoch, seq, last_addr, last_crc, chain: root.chain, next: root.chain_next }
    }
}

impl Mounts {
    /// Of these devices.
    pub fn of<'a>(probes: impl Iterator<Item = &'a Probe> + Clone) -> Self {
        // What programs wrote that gave mounts no identity has 0, as anybody may: a walk that comes through it adds it.
        let known = probes.clone().flat_map(|p| &p.roots).map(|root| root.mount_id).filter(|id| *id != 0).collect();
        let points = probes.clone().flat_map(|p| &p.roots).map(Point::of).collect();
        Self { known, any: probes.clone().all(lacks_a_root), points }
    }

    /// Whatever has the checksum of a partial counts.
    pub const fn any() -> Self {
        Self { known: BTreeSet::new(), any: true, points: Vec::new() }
    }

    /// What the log leads to was written by a mount of this volume.
    pub fn add(&mut self, mount_id: u64) {
        self.known.insert(mount_id);
    }

    /// Whether both copies of a root may be lost, on every device.
    pub const fn lack_a_root(&self) -> bool {
        self.any
    }

    /// Where the log stood when the roots were written that can be read.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    pub fn has(&self, mount_id: u64) -> bool {
        self.any || self.known.contains(&mount_id)
    }
}

/// Behind this generation no slot is empty any more.
const ALL_WRITTEN: u64 = 2 * SLOTS_PER_AREA;

/// Whether both copies of a slot are lost.
fn lacks_a_root(probe: &Probe) -> bool {
    let is_written = probe.roots.first().is_some_and(|newest| newest.generation.0 > ALL_WRITTEN);
    let is_lost = |(_, state): &(u64, SlotState)| match state {
        SlotState::Valid(_) => false,
        SlotState::Empty => is_written,
        _ => true,
    };
    let (head, tail) = probe.slots.split_at(probe.slots.len() / 2);
    head.len() != tail.len() || head.is_empty() || head.iter().zip(tail).any(|(a, b)| is_lost(a) && is_lost(b))
}

/// The identity of a mount that begins an epoch now.
pub(crate) fn identity(hash_key: [u8; 16], epoch: Epoch, now: Time) -> u64 {
    let mut h = siphasher::sip::SipHasher13::new_with_key(&hash_key);
    h.write(b"mount");
    h.write_u64(epoch.0);
    h.write_i64(now.0);
    h.finish().max(1)
}
