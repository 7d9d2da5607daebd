//! What keeps segments where they are, and what does not.

use super::policy::Pace;
use super::{Left, Stage};
#[cfg(feature = "breaks")]
use crate::breaks::{Break, with};
use crate::fs::sharing_tests::neighbours;
use crate::testing::{Still, create, device, mount};
use crate::{Clock, Fs, MkfsOptions, MountOptions, mkfs};
use nenrin_device::{AlignedBuf, BlockDevice, MemDevice};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{Entries, TreeId, decode, first_key};
use nenrin_format::{Addr, BLOCK_BYTES, NODE_BYTES};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Damages all copies of the leaves with this item.
fn rot(device: &MemDevice, key: &Key) {
    let bytes = device.snapshot();
    let mut copies = 0;
    for (block, node) in (0..).zip(bytes.windows(NODE_BYTES).step_by(BLOCK_BYTES)) {
        let Ok((head, _)) = first_key(node) else { continue };
        let Ok((_, Entries::Leaf(items))) = decode(TreeId(head.tree.get()), node) else { continue };
        if items.iter().any(|(k, _)| k == key) {
            let mut damaged = node[..BLOCK_BYTES].to_vec();
            damaged[1234] ^= 8;
            device.write(block * BLOCK, Arc::new(AlignedBuf::padded(&damaged))).unwrap();
            copies += 1;
        }
    }
    assert!(copies >= 2, "{copies}");
}

/// A leaf of many is lost when the owners of a batch have been found.
fn a_leaf_is_lost_before_moves_are_weighed() {
    const PIECES: u64 = 5000;
    let memory = Arc::new(MemDevice::new(64 << 20));
    let (device, still): (Arc<dyn BlockDevice>, Arc<dyn Clock>) = (memory.clone(), Arc::new(Still));
    mkfs(&device, &still, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
    let options = MountOptions { cache_bytes: 1, checkpoint_nanos: 0, ..MountOptions::default() };
    let fs = Fs::open(vec![device], still, options).unwrap();
    let f = create(&fs, "f");
    for round in 0..2 {
        // Of each segment a third is left.
        for n in (0..PIECES).filter(|n| round == 0 || n % 3 > 0) {
            assert!(fs.write(f, n * 2 * BLOCK, &[round; BLOCK_BYTES], 0).is_ok());
        }
        fs.sync_all().unwrap();
    }
    (0..2).for_each(|_| fs.index_checkpoint(false).unwrap());
    let mut cleaner = fs.cleaner();
    assert!(fs.begin_job(&mut cleaner, Pace::Idle, None).unwrap());
    while !matches!(cleaner.job.as_ref().map(|j| &j.stage), Some(Stage::Compare)) {
        fs.step(&mut cleaner, 64).unwrap();
    }
    let victims = cleaner.job.as_ref().map_or(0, |j| j.victims.len());
    rot(&memory, &Key::new(f, Kind::Extent, 0, PIECES));
    fs.finish_job(&mut cleaner).unwrap();
    let stuck = cleaner.left.values().filter(|(_, why)| *why == Left::Stuck).count();
    assert!(stuck > 0 && stuck * 2 < victims, "{stuck} of {victims} segments stay as they are");
    assert!(fs.lock().cleaner_status.cleaned_segments as usize + stuck >= victims);
    assert_eq!(fs.failed(), None);
}

#[test]
fn what_is_lost_keeps_its_own_segments_only() {
    a_leaf_is_lost_before_moves_are_weighed();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "segments stay as they are")]
fn a_batch_that_a_lost_leaf_keeps_is_noticed() {
    with(Break::BatchStuck, a_leaf_is_lost_before_moves_are_weighed);
}

/// Owners are found a piece at a time, wherever a piece ends.
#[test]
fn groups_are_the_same_in_pieces() {
    let fs = mount(&device(64, 512), MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    neighbours(&fs, 200, 12);
    let segments: Vec<_> = fs.segments().iter().filter(|s| s.live_blocks > 0).map(|s| s.segment).collect();
    let (mut found, mut owners) = (0, 0);
    for segment in segments {
        let pieces = fs.groups_of(segment).unwrap().unwrap();
        let inner = fs.lock();
        let at_once = inner.groups(Addr::new(segment, 0), 512).unwrap().unwrap();
        let told = |groups: &[super::shared::Group]| -> Vec<_> {
            groups.iter().map(|g| (g.start(), g.blocks, g.leaves_max())).collect()
        };
        assert_eq!(told(&pieces), told(&at_once));
        found += pieces.len();
        owners += pieces.iter().map(|g| g.leaves_max() / 3).sum::<u64>();
        // Whatever a piece holds they are all there, in order.
        let (start, end) = (Addr::new(segment, 0), Addr::new(segment, 511));
        let (mut from, mut some) = (Some(crate::state::backref_key(start, 0)), Vec::new());
        while let Some(key) = from {
            let (next, go_on) = inner.state.some_owners(&key, end, 7).unwrap();
            assert!(next.len() == 7 || go_on.is_none());
            some.extend(next);
            from = go_on;
        }
        assert_eq!(some, inner.state.owners(start, 511).unwrap());
    }
    assert_eq!((found, owners), (200, 200 * 13));
}
