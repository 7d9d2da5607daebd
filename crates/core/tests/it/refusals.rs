//! P7: nobody is refused for want of room while df tells that there is much.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::Ino;
use nenrin_core::{Error, Fs, MkfsOptions, MountOptions, SetAttr};

const SEGMENT_BLOCKS: u32 = 64;
/// Blocks that df may tell and yet nobody gets: what cleaning leaves in segments, and what waits.
const MARGIN_BLOCKS: u64 = 8 * SEGMENT_BLOCKS as u64;

fn world() -> World {
    World::with(64 << 20, &MkfsOptions { segment_blocks: SEGMENT_BLOCKS, ..MkfsOptions::default() })
}

/// A mount without checkpoints of its own.
fn plain(w: &World) -> std::sync::Arc<Fs> {
    w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() })
}

fn create(fs: &Fs, name: &str) -> Ino {
    fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino
}

/// Appends until that is refused, or until so many blocks were taken.
fn append(fs: &Fs, ino: Ino, at: u64, blocks: u64) -> u64 {
    for n in 0..blocks {
        match fs.write(ino, (at + n) * 4096, &[n as u8; 4096], 0) {
            Ok(_) => {}
            Err(Error::NoSpace) => return n,
            Err(e) => unreachable!("{e}"),
        }
    }
    blocks
}

/// What df tells can be written now, less the margin.
fn told_is_there(fs: &Fs, ino: Ino, at: u64, least: u64) {
    let told = fs.usage().available_blocks;
    assert!(told >= least, "{told} blocks are available");
    let taken = append(fs, ino, at, told - MARGIN_BLOCKS);
    assert_eq!(taken, told - MARGIN_BLOCKS, "of {told} blocks that are available");
}

/// What a snapshot kept is swept in the background; who writes before that must not be told that the volume is full.
#[test]
fn what_a_deleted_snapshot_kept_can_be_written_at_once() {
    let w = world();
    let fs = plain(&w);
    let old = create(&fs, "old");
    append(&fs, old, 0, 6000);
    let kept = fs.checkpoint_create(Some(b"kept")).unwrap().cno;
    fs.unlink(Ino::ROOT, b"old").unwrap();
    let new = create(&fs, "new");
    let fits = append(&fs, new, 0, u64::MAX);
    fs.checkpoint_name(kept, None).unwrap();
    fs.checkpoint_drop(&[kept]).unwrap();
    told_is_there(&fs, new, fits, 4000);
}

/// A truncation is held back until the file is closed; where that is all the room there is, who writes gets it.
#[test]
fn what_an_emptied_file_had_can_be_written_before_it_is_closed() {
    let w = world();
    let fs = plain(&w);
    let saved = create(&fs, "saved");
    append(&fs, saved, 0, 6000);
    fs.sync_all().unwrap();
    append(&fs, create(&fs, "other"), 0, u64::MAX);
    fs.retain(saved);
    fs.setattr(saved, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    told_is_there(&fs, saved, 0, 4000);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "blocks that are available")]
fn what_is_left_to_be_swept_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::SweepLeft, what_a_deleted_snapshot_kept_can_be_written_at_once);
}
