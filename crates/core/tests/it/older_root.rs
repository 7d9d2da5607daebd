//! The newest root cannot be read in one mount, and can be in the next: whatever the mount in between wrote, all is there.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{TestClock, World, file};
use nenrin_core::format::node::TreeId;
use nenrin_core::format::partial::Header;
use nenrin_core::format::root::Root;
use nenrin_core::format::superblock::{Superblock, slot_blocks};
use nenrin_core::format::{Addr, Ino, NODE_BLOCKS};
use nenrin_core::{At, Fs, MkfsOptions, MountOptions};
use nenrin_device::{BlockDevice, CrashChoice, CrashDisk, Fault, Faulty, Image};
use std::ops::Range;
use std::sync::Arc;

const BLOCK: usize = 4096;
const FILES: u32 = 3500;

fn name(i: u32) -> Vec<u8> {
    format!("a file with a name of some length {i}").into_bytes()
}

/// A volume that crashed, and was mounted again: the index checkpoint of that mount fills more than a segment with each copy. Then the
/// power was cut.
fn mounted_after_a_crash() -> (Vec<u8>, Superblock) {
    let w = World::with(32 << 20, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
    let fs = w.open();
    for i in 0..FILES {
        let ino = fs.create(Ino::ROOT, &name(i), &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &[i as u8; 100], 0).unwrap();
    }
    fs.sync_all().unwrap();
    drop(fs);
    let fs = w.open();
    assert_eq!(fs.recovery_report().damage, None);
    assert!(fs.counters().nodes > 45, "{}", fs.counters().nodes);
    let sb = fs.superblock();
    drop(fs);
    (w.device.inner().snapshot(), sb)
}

/// The bytes of the device where these blocks of the volume are.
fn bytes_of(sb: &Superblock, addr: Addr, blocks: u32) -> Range<u64> {
    let first = sb.block_alone(addr).unwrap() * BLOCK as u64;
    first..first + u64::from(blocks) * BLOCK as u64
}

/// Both copies of the root of the space tree.
fn space_tree(image: &[u8], sb: &Superblock) -> Vec<Range<u64>> {
    let at = bytes_of(sb, sb.root[0].0, sb.root_blocks).start as usize;
    let root = Root::decode(Header::decode(&image[at..]).unwrap().records).unwrap();
    let space = root.trees.iter().find(|t| t.tree == TreeId::SPACE).unwrap();
    space.ptr.unwrap().copies.map(|addr| bytes_of(sb, addr, NODE_BLOCKS)).to_vec()
}

fn assert_whole(fs: &Fs, when: &str) {
    assert_eq!(fs.recovery_report().damage, None, "{when}");
    for i in (0..FILES).step_by(23) {
        let found = fs.lookup(At::Live, Ino::ROOT, &name(i));
        let content = found.and_then(|f| fs.read(At::Live, f.ino, 0, BLOCK));
        assert!(content.is_ok_and(|bytes| bytes == [i as u8; 100]), "what was there is gone: file {i}, {when}");
    }
}

/// One mount cannot read these bytes, and is cut after every write.
fn cut_without(image: &[u8], unread: &[Range<u64>], what: &str) {
    let disk = Arc::new(CrashDisk::from_image(Image::from_bytes(image)));
    let device = Arc::new(Faulty::new(disk.clone()));
    for range in unread {
        device.faults().inject(Fault::FailReads { range: range.clone() });
    }
    let clock = Arc::new(TestClock::default());
    let fs = Fs::open(vec![device], clock.clone(), MountOptions::default()).unwrap();
    assert!(fs.recovery_report().notes.iter().any(|n| n.contains("newest root") || n.contains("both copies")));
    assert_whole(&fs, what);
    drop(fs);
    let history = disk.history().unwrap();
    assert!(history.cut_points() > 10, "{}", history.cut_points());
    for cut in 0..=history.cut_points() {
        for seed in [CrashChoice::SEED_DROPPED, CrashChoice::SEED_APPLIED] {
            let image = history.image_at(cut, &CrashChoice::from_seed(seed)).content();
            let after: Arc<dyn BlockDevice> = Arc::new(CrashDisk::from_image(image).without_history());
            let when = format!("{what}, cut {cut}, seed {seed}");
            let fs = Fs::open(vec![after.clone()], clock.clone(), MountOptions::default());
            let fs = fs.unwrap_or_else(|e| panic!("what was there is gone: {when}: {e}"));
            assert_whole(&fs, &when);
            if cut % 4 == 0 {
                fs.close().unwrap();
                let fs = Fs::open(vec![after], clock.clone(), MountOptions::default()).unwrap();
                assert_whole(&fs, &format!("{when}, and closed"));
            }
        }
    }
}

fn unread_once() {
    let (image, sb) = mounted_after_a_crash();
    cut_without(&image, &space_tree(&image, &sb), "the space tree");
    let roots: Vec<_> = sb.root.iter().map(|(addr, _)| bytes_of(&sb, *addr, sb.root_blocks)).collect();
    cut_without(&image, &roots, "the root");
    let slots = slot_blocks(sb.generation, (image.len() / BLOCK) as u64);
    let slots: Vec<_> = slots.into_iter().map(|b| b * BLOCK as u64..(b + 1) * BLOCK as u64).collect();
    cut_without(&image, &slots, "the slot");
}

#[test]
fn a_root_that_could_not_be_read_once_leads_nowhere_later() {
    unread_once();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was there is gone")]
fn a_newer_root_that_is_left_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NewerRootLeft, unread_once);
}
