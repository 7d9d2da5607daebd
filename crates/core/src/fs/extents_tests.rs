//! Which extents overlap a range, as [`crate::state::State::extents`] finds them.

use super::Fs;
use crate::index::Value;
use crate::testing::{create, device, mount};
use crate::{At, Error, MountOptions};
use nenrin_format::items::Extent;
use nenrin_format::key::{Key, Kind};
use nenrin_format::{BLOCK_BYTES, Ino};
use std::ops::ControlFlow;

/// All extents of a file that overlap a range, by looking at each.
fn by_looking_at_all(fs: &Fs, ino: Ino, from: u64, to: u64) -> Vec<(Key, Extent)> {
    let inner = fs.lock();
    let (first, last) = (Key::new(ino, Kind::Extent, 0, 0), Key::new(ino, Kind::Extent, 0, u64::MAX));
    let mut found = Vec::new();
    let mut look = |k: &Key, v: &Value| {
        let e = Extent::decode(v).unwrap();
        if k.off < to && k.off + u64::from(e.blocks) > from {
            found.push((*k, e));
        }
        ControlFlow::Continue(())
    };
    inner.state.live.scan(&inner.state.cache, &first, &last, &mut look).unwrap();
    found
}

#[test]
fn extents_are_those_that_overlap_the_range() {
    let fs = mount(&device(256, 0), MountOptions::default());
    let files = ["before", "f", "behind"].map(|name| create(&fs, name));
    let mut random = nenrin_device::Prng::new(5);
    for _ in 0..150 {
        for ino in files {
            let (from, blocks) = (random.below(700), 1 + random.below(12));
            fs.write(ino, from * BLOCK_BYTES as u64, &vec![1; blocks as usize * BLOCK_BYTES], 0).unwrap();
            fs.fsync_wait(ino).unwrap();
        }
    }
    let mut kinds = [0; 3];
    for _ in 0..3000 {
        let from = random.below(720);
        let most = 1 + random.below(40);
        let to = from + 1 + random.below(most);
        let expected = by_looking_at_all(&fs, files[1], from, to);
        kinds[expected.len().min(2)] += 1;
        let found = fs.lock().state.extents(files[1], 0, from, to, usize::MAX).unwrap();
        assert_eq!(found, expected, "{from}..{to}");
        let first = fs.lock().state.extents(files[1], 0, from, to, 1).unwrap();
        assert_eq!(first, expected[..expected.len().min(1)], "{from}..{to}");
    }
    assert!(kinds.iter().all(|n| *n > 20), "{kinds:?}");
}

/// Content that cannot be understood, in a node whose checksum is right, is said to be damaged, and nothing is made of it.
#[test]
fn small_content_that_means_nothing_is_no_zeros() {
    let fs = mount(&device(64, 0), MountOptions::default());
    let ino = create(&fs, "f");
    fs.write(ino, 0, b"little", 0).unwrap();
    fs.fsync_wait(ino).unwrap();
    let key = Key::new(ino, Kind::Inline, 0, 0);
    let good = fs.put_unlogged(key, vec![0xff; 3].into());
    assert!(matches!(fs.read(At::Live, ino, 0, 6), Err(Error::Corrupt(_))), "zeros are read");
    assert!(matches!(fs.write(ino, 3, b"x", 0), Err(Error::Corrupt(_))), "zeros are written");
    fs.put_unlogged(key, good);
    fs.write(ino, 3, b"x", 0).unwrap();
    assert_eq!(fs.read(At::Live, ino, 0, 6).unwrap(), b"litxle");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "zeros are read")]
fn small_content_that_reads_as_zeros_is_noticed() {
    crate::breaks::with(crate::breaks::Break::GarbledIsZeros, small_content_that_means_nothing_is_no_zeros);
}
