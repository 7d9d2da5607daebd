//! Nodes that are whole in parts, or lie beside content.

use super::tests::{clock, device, nodes, numbers, offset, read_only, repair, tree, volume};
use crate::check::{CheckOptions, What, check};
use crate::fs::Opened;
use crate::recovery::recover;
use crate::{At, Fs, MountOptions};
use nenrin_device::{BlockDevice, MemDevice};
use nenrin_format::items::Extent;
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::NODE_MAGIC;
use nenrin_format::superblock::segment_block;
use nenrin_format::{Addr, BLOCK_BYTES, NODE_BLOCKS, SegmentNo};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Nodes of which each copy has lost another block are whole, for whoever reads them; a repair writes them anew.
fn nodes_in_parts() {
    let bytes = volume(200, true);
    let before = tree(&read_only(&bytes), At::Live);
    let mut damaged = bytes.clone();
    for (_, _, ptr) in nodes(&bytes) {
        for (copy, block) in [(0, 0), (1, 2)] {
            let at = offset(&bytes, ptr.copies[copy]) + block * BLOCK_BYTES;
            damaged[at..at + BLOCK_BYTES].fill(0xa5);
        }
    }
    assert_eq!(tree(&read_only(&damaged), At::Live), before);
    let found = check(&[device(&damaged)], &CheckOptions::default(), &mut |_| {}).unwrap();
    assert!(found.count(What::NodeCopyDamaged) > 3 && found.count(What::NodeLost) == 0, "{:?}", found.findings);
    let (after, report) = repair(&damaged);
    assert!(report.needed && report.losses.is_empty(), "{report:?}");
    assert_eq!(tree(&read_only(&after), At::Live), before);
}

#[test]
fn nodes_of_which_each_copy_has_lost_a_part_are_whole() {
    nodes_in_parts();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "Damaged(Addr(")]
fn nodes_that_are_not_put_together_are_noticed() {
    crate::breaks::with(crate::breaks::Break::NodesUnmixed, nodes_in_parts);
}

/// A volume of which a file's content lies in a segment with nodes of the index, where a node was that is superseded: what an older root
/// leads to once content has come into a segment that the newer ones had no node in.
fn mixed() -> (Vec<u8>, SegmentNo) {
    let mut bytes = volume(200, true);
    let options = MountOptions::default;
    let live: BTreeSet<Addr> = nodes(&bytes).iter().flat_map(|(_, _, ptr)| ptr.copies).collect();
    let place = |a: Addr| (segment_block(a.segment().0 as u32, 64) as usize + a.block() as usize) * BLOCK_BYTES;
    let is_node = |addr: Addr| bytes[place(addr)..][..4] == NODE_MAGIC.to_le_bytes();
    let old = live.iter().map(|a| a.segment()).find_map(|segment| {
        (1..64 - NODE_BLOCKS).map(|block| Addr::new(segment, block)).find(|a| is_node(*a) && !live.contains(a))
    });
    let old = old.expect("a segment with a node that is superseded");
    let read = recover(&[device(&bytes)], &MountOptions { read_only: true, ..options() }).unwrap();
    let mut found = None;
    let each = &mut |key: &Key, value: &Arc<[u8]>| {
        let plain = Extent::decode(value).ok().filter(|e| (e.flags, e.lead, e.tail, e.blocks) == (0, 0, 0, 3));
        found = found.take().or((key.kind == Kind::Extent).then_some(*key).zip(plain));
        Ok(())
    };
    read.state.live.walk(&read.state.cache, each).unwrap();
    drop(read);
    let (key, extent) = found.expect("a file of three blocks");
    let (from, to) = (place(extent.addr), place(old));
    bytes.copy_within(from..from + 3 * BLOCK_BYTES, to);

    let memory = Arc::new(MemDevice::from_bytes(bytes));
    let shared: Arc<dyn BlockDevice> = memory.clone();
    let mut opened: Opened = recover(std::slice::from_ref(&shared), &options()).unwrap();
    let s = &mut opened.state;
    s.live.insert(&s.cache, key, Extent { addr: old, ..extent }.encode().into()).unwrap();
    let fs = Fs::assemble(opened, clock(), options());
    for _ in 0..2 {
        fs.index_checkpoint(true).unwrap();
    }
    (memory.snapshot(), old.segment())
}

/// A segment has nodes or content: the nodes are written elsewhere, and every file is what it was.
#[test]
fn nodes_in_a_segment_with_content_go_elsewhere() {
    let (bytes, segment) = mixed();
    let in_segment =
        |bytes: &[u8]| nodes(bytes).iter().flat_map(|n| n.2.copies).filter(|a| a.segment() == segment).count();
    assert!(in_segment(&bytes) > 0);
    assert!(numbers(&device(&bytes)).contains(&507));
    let before = tree(&read_only(&bytes), At::Live);
    let (after, report) = repair(&bytes);
    assert!(report.losses.is_empty(), "{report:?}");
    assert_eq!(in_segment(&after), 0);
    assert_eq!(tree(&read_only(&after), At::Live), before);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "507")]
fn nodes_that_stay_beside_content_are_noticed() {
    crate::breaks::with(crate::breaks::Break::NodesNotApart, nodes_in_a_segment_with_content_go_elsewhere);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "507 segment-mixed")]
fn places_of_nodes_that_still_count_there_are_noticed() {
    crate::breaks::with(crate::breaks::Break::SupersededCounts, nodes_in_a_segment_with_content_go_elsewhere);
}
