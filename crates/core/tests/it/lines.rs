//! Halves of a volume that each went on without the other are two volumes, whatever became of their devices since.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::devices::{World, content, degraded, read, write};
use nenrin_core::format::superblock::Profile;
use nenrin_core::{Error, MountOptions};
use nenrin_device::{BlockDevice, MemDevice};
use std::sync::Arc;

/// A mirror is mounted apart, on two machines. On the first the other device is to be removed, and is not after all, and its own length
/// changes: all that is said of either device there is newer than what the second machine said.
fn halves_whose_entries_changed() {
    let w = World::new(Profile::Mirror, &[96, 96]);
    w.open(&[0, 1], MountOptions::default()).unwrap().close().unwrap();
    let more: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(96 << 20));
    let fs = w.open(&[0], degraded()).unwrap();
    write(&fs, "first", &content(1, 4096));
    fs.device_add(more.clone(), [7; 16]).unwrap();
    fs.device_remove(1).unwrap();
    assert!(fs.device_keep(1).unwrap());
    fs.device_resize(0, (88 << 20) / 4096).unwrap();
    fs.close().unwrap();
    let fs = w.open(&[1], degraded()).unwrap();
    write(&fs, "second", &content(2, 4096));
    fs.close().unwrap();
    let first = [w.some(&[0])[0].clone(), more];
    let all = [first.to_vec(), w.some(&[1])].concat();
    for degraded in [false, true] {
        let options = MountOptions { degraded, ..MountOptions::default() };
        let told = nenrin_core::Fs::open(all.clone(), w.time(), options).map(drop);
        let refused = matches!(&told, Err(Error::Open(text)) if text.contains("without the other"));
        assert!(refused, "two lines are put together: {told:?}");
    }
    let fs = nenrin_core::Fs::open(first.to_vec(), w.time(), degraded()).unwrap();
    assert!(read(&fs, "first", 4096).unwrap() == content(1, 4096));
    fs.close().unwrap();
    let fs = w.open(&[1], degraded()).unwrap();
    assert!(read(&fs, "second", 4096).unwrap() == content(2, 4096));
    fs.close().unwrap();
}

#[test]
fn halves_that_went_on_alone_are_refused_whatever_changed_since() {
    halves_whose_entries_changed();
}
