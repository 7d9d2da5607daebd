//! Checkpoints that are cut on request of a command.

use super::service::plain;
use crate::control::CheckpointData;
use crate::error::Fail;
use crate::states::Until;
use crate::{clock, report};
use nenrin_core::Fs;
use std::thread;
use std::time::{Duration, Instant};

/// How long files are waited for that may have been closed, and how often it is looked: the kernel tells of a close(2) when that has
/// returned.
const CLOSING_TIME: Duration = Duration::from_secs(1);
const CLOSING_STEP: Duration = Duration::from_millis(2);
/// The longest of these steps, each of which is twice the one before: each looks at all files that are changed.
const CLOSING_STEP_MAX: Duration = Duration::from_millis(50);

/// Cuts one, or a snapshot, when what was closed before is known to be. It tells how many files are still being written, so that it has
/// what was in them before.
pub(super) fn cut(fs: &Fs, name: Option<&str>) -> Result<CheckpointData, Fail> {
    await_closed(fs);
    let held = fs.held_back().len() as u64;
    let info = fs.checkpoint_create(name.map(str::as_bytes)).map_err(plain)?;
    let until = match name {
        Some(_) => None,
        None => {
            fs.keeps_for().iter().find(|(cno, _)| *cno == info.cno).map(|(_, left)| Until::after(*left, clock::now()))
        }
    };
    let (kept_until, kept_until_nanos) = (until.map(Until::text), until.and_then(Until::nanos));
    Ok(CheckpointData { held_back_files: Some(held), kept_until, kept_until_nanos, ..report::checkpoint(&info) })
}

/// Those that are emptied meanwhile are not waited for.
fn await_closed(fs: &Fs) {
    let (mut held, end) = (fs.held_back(), Instant::now() + CLOSING_TIME);
    let mut step = CLOSING_STEP;
    while !held.is_empty() && Instant::now() < end {
        thread::sleep(step);
        step = (step * 2).min(CLOSING_STEP_MAX);
        let now = fs.held_back();
        held.retain(|ino| now.contains(ino));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HostClock;
    use crate::device::{self, Device};
    use nenrin_core::{At, MkfsOptions, MountOptions, NewInode, SetAttr, mkfs_on};
    use nenrin_device::MemDevice;
    use nenrin_format::{Cno, Ino};
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn what_is_just_being_closed_is_waited_for_and_what_stays_open_is_told() {
        let device: Device = Arc::new(MemDevice::new(64 << 20));
        mkfs_on(std::slice::from_ref(&device), &HostClock::shared(), &MkfsOptions::default()).unwrap();
        let fs = device::open_volume(Path::new("v"), vec![device], MountOptions::default()).unwrap();
        let new = NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let [closes, stays] = ["closes", "stays"].map(|name| fs.create(Ino::ROOT, name.as_bytes(), &new).unwrap().ino);
        let write = |ino, text: &str| fs.write(ino, 0, text.as_bytes(), 0).unwrap();
        for ino in [closes, stays] {
            write(ino, "old");
            fs.flush(ino).unwrap();
        }
        assert_eq!(cut(&fs, None).unwrap().held_back_files, Some(0));
        for ino in [closes, stays] {
            fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
            write(ino, "new");
        }
        let begun = Instant::now();
        let made = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(CLOSING_TIME / 4);
                fs.flush(closes).unwrap();
            });
            cut(&fs, Some("after")).unwrap()
        });
        assert!(begun.elapsed() >= CLOSING_TIME);
        let content = |ino| fs.read(At::Past(Cno(made.cno)), ino, 0, 9).unwrap();
        assert_eq!((content(closes), content(stays)), (b"new".to_vec(), b"old".to_vec()));
        assert_eq!(made.held_back_files, Some(1));
        assert!(report::held_back(&made).unwrap().contains("of one file"));
        fs.flush(stays).unwrap();
        let made = cut(&fs, None).unwrap();
        assert_eq!((made.held_back_files, report::held_back(&made)), (Some(0), None));
        fs.close().unwrap();
    }
}
