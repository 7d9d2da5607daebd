//! P4: a leaf of history that is lost in both copies keeps nothing from being read that it does not hold.

use super::*;
use crate::testing::{create, device, mount};
use crate::{At, SetAttr};
use nenrin_device::{BlockDevice, MemDevice, Op};
use nenrin_format::key::Kind;
use nenrin_format::node::{Entries, TreeId, decode, first_key};
use nenrin_format::{BLOCK_BYTES, NODE_BYTES};

const FILES: u64 = 1200;

fn chmod(fs: &Fs, ino: Ino) {
    fs.setattr(ino, &SetAttr { mode: Some(0o644), ..SetAttr::default() }).unwrap();
}

/// Leaves of a tree: the first inode of each, and where on the device it is.
fn leaves(image: &[u8], tree: TreeId) -> Vec<(u64, usize)> {
    let mut all = Vec::new();
    for at in (0..image.len() - NODE_BYTES).step_by(BLOCK_BYTES) {
        let node = &image[at..at + NODE_BYTES];
        let Ok((head, _)) = first_key(node) else { continue };
        if TreeId(head.tree.get()) != tree {
            continue;
        }
        if let Ok((_, Entries::Leaf(items))) = decode(tree, node) {
            all.extend(items.first().filter(|(key, _)| key.kind == Kind::Inode).map(|(key, _)| (key.ino, at)));
        }
    }
    all.sort_unstable();
    all
}

fn image(device: &Arc<dyn BlockDevice>) -> Vec<u8> {
    let all = Op::Read { offset: 0, bytes: device.geometry().bytes as usize };
    device.submit(all).wait().unwrap().to_vec()
}

/// Every second file is changed in one history tree, the others in the next; then a leaf of the first tree is lost. Whether the file
/// right before the first of that leaf can be read as it was, which has nothing in that tree.
fn read_beside_a_lost_leaf() -> Result<u32> {
    let options = || MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let device = device(64, 0);
    let fs = mount(&device, options());
    let inos: Vec<Ino> = (0..FILES).map(|n| create(&fs, &format!("f{n}"))).collect();
    let then = fs.checkpoint_create(None).unwrap().cno;
    inos.iter().step_by(2).for_each(|ino| chmod(&fs, *ino));
    fs.checkpoint_create(None).unwrap();
    let first = fs.lock().state.history.last().unwrap().tree.id();
    fs.lock().log(&Record::Seal { tree: first }, 0).unwrap();
    inos.iter().skip(1).step_by(2).for_each(|ino| chmod(&fs, *ino));
    fs.sync_all().unwrap();
    assert!(fs.lock().state.history.len() >= 2, "one tree has all");
    fs.close().unwrap();
    drop(fs);
    let mut bytes = image(&device);
    let all = leaves(&bytes, first);
    let (lost, _) = *all.iter().rev().find(|(ino, _)| *ino > inos[1].0).unwrap();
    for (_, at) in all.iter().filter(|(ino, _)| *ino == lost) {
        bytes[at + 100..at + 200].fill(0xa5);
    }
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(bytes));
    let fs = mount(&device, options());
    assert!(fs.getattr(At::Past(then), Ino(lost)).is_err(), "the leaf is not lost");
    let beside = Ino(lost - 1);
    assert!(inos.contains(&beside));
    fs.getxattr(At::Past(then), beside, b"user.x")
        .map_or_else(|e| if matches!(e, Error::NoAttribute) { Ok(()) } else { Err(e) }, |_| Ok(()))?;
    fs.getattr(At::Past(then), beside).map(|attr| attr.mode & 0o777)
}

#[test]
fn a_lost_leaf_of_history_hides_nothing_that_is_not_in_it() {
    assert_eq!(read_beside_a_lost_leaf().unwrap(), 0o600);
}

#[cfg(feature = "breaks")]
#[test]
fn what_is_hidden_by_the_next_leaf_is_noticed() {
    let read = crate::breaks::with(Break::NextLeafNeeded, read_beside_a_lost_leaf);
    assert!(matches!(read, Err(Error::Damaged(..))), "{read:?}");
}

/// The names of a file of which history was shed are in a leaf that is lost: it is told all the same, and the others.
fn told_beside_a_lost_leaf() -> Result<Vec<Vec<u8>>> {
    let options = || MountOptions { checkpoint_nanos: 0, ..MountOptions::default() };
    let device = device(64, 0);
    let fs = mount(&device, options());
    let inos: Vec<Ino> = (0..FILES).map(|n| create(&fs, &format!("f{n}"))).collect();
    fs.checkpoint_create(None).unwrap();
    let upto = fs.lock().state.open_cno;
    for ino in [inos[2], inos[FILES as usize / 2], inos[FILES as usize - 2]] {
        let wall = fs.clock.wall();
        fs.lock().log(&Record::Shed { ino, upto, wall, blocks: 1 }, 0).unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    let mut bytes = image(&device);
    let all = leaves(&bytes, TreeId::LIVE);
    let half = inos[FILES as usize / 2].0;
    let lost = all.iter().map(|(ino, _)| *ino).filter(|ino| *ino <= half).max().unwrap();
    for (_, at) in all.iter().filter(|(ino, _)| *ino == lost) {
        bytes[at + 100..at + 200].fill(0xa5);
    }
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(bytes));
    let fs = mount(&device, options());
    let mut paths: Vec<_> = fs.shed()?.into_iter().map(|s| s.path).collect();
    paths.sort_unstable();
    Ok(paths)
}

#[test]
fn what_was_shed_is_told_although_a_path_cannot_be_read() {
    let last = format!("f{}", FILES - 2).into_bytes();
    assert_eq!(told_beside_a_lost_leaf().unwrap(), [b"?".to_vec(), last, b"f2".to_vec()]);
}

#[cfg(feature = "breaks")]
#[test]
fn a_list_of_what_was_shed_that_ends_is_noticed() {
    assert!(crate::breaks::with(Break::ShedListEnds, told_beside_a_lost_leaf).is_err());
}

/// Who reads a state that is past meets other nodes in the places of its own, and that is no damage; a leaf of today that cannot be read
/// is, whoever reads it. Whether either was taken for damage.
fn read_without_the_lock() -> (bool, bool) {
    let device = device(64, 0);
    let options = MountOptions { checkpoint_nanos: 0, cache_bytes: 1, ..MountOptions::default() };
    let fs = mount(&device, options);
    let inos: Vec<Ino> = (0..FILES).map(|n| create(&fs, &format!("f{n}"))).collect();
    fs.sync_all().unwrap();
    fs.index_checkpoint(false).unwrap();
    let overwrite = |places: &[usize]| {
        for at in places {
            let bytes = Arc::new(AlignedBuf::padded(&[0xa5; BLOCK_BYTES]));
            device.submit(Op::Write { offset: *at as u64, data: bytes }).wait().unwrap();
        }
    };
    let places = |ino: u64| -> Vec<usize> {
        leaves(&image(&device), TreeId::LIVE).into_iter().filter(|(first, _)| *first == ino).map(|(_, at)| at).collect()
    };
    let first =
        leaves(&image(&device), TreeId::LIVE).into_iter().map(|(ino, _)| ino).find(|ino| *ino > inos[9].0).unwrap();
    let then = fs.lock().state.live.clone();
    let cache = fs.lock().state.cache.clone();
    let read = |tree: &crate::index::Tree, ino: u64| {
        tree.get(&cache, &nenrin_format::key::Key::new(Ino(ino), Kind::Inode, 0, 0))
    };
    let old = places(first);
    chmod(&fs, Ino(first));
    fs.sync_all().unwrap();
    fs.index_checkpoint(false).unwrap();
    overwrite(&old);
    drop(read(&then, inos[1].0));
    assert!(read(&then, first).is_err(), "the place of the leaf has another");
    let by_the_past = fs.lock().state.has_met_damage();
    let now = fs.lock().state.live.clone();
    overwrite(&places(first));
    drop(read(&now, inos[1].0));
    assert!(read(&now, first).is_err(), "the leaf is not lost");
    let by_today = fs.lock().state.has_met_damage();
    (by_the_past, by_today)
}

#[test]
fn damage_is_what_cannot_be_read_of_today() {
    assert_eq!(read_without_the_lock(), (false, true));
}

#[cfg(feature = "breaks")]
#[test]
fn what_is_past_and_counts_as_damage_is_noticed() {
    assert_eq!(crate::breaks::with(Break::StaleIsDamage, read_without_the_lock), (true, true));
}
