//! What `mkfs` and `device add` make, or make longer, before anything that was there is touched, and take back where they fail.
//!
//! Invariants
//! 1. From the moment it is there it is locked, until all is done or it is handed over to who owns a volume.
//! 2. Only what is locked is taken back. What was handed over may be somebody's by now, so it has to be, too, as it was then.

use crate::device::{self, Device};
use crate::error::{At, Fail};
use crate::size::show_bytes;
use crate::{signature, sys};
use nenrin_device::{HostId, OpenMode};
use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Default)]
pub(super) struct Made(Vec<One>);

/// An image file.
struct One {
    path: PathBuf,
    /// That it is locked.
    device: Option<Device>,
    /// The same, to change its length.
    file: File,
    /// How long it was; not at all where it was not there.
    had: Option<u64>,
    /// How it was when it was handed over.
    then: Option<State>,
}

/// Length, and time of the last write.
type State = (u64, i64, i64);

fn state(meta: &Metadata) -> State {
    (meta.len(), meta.mtime(), meta.mtime_nsec())
}

impl Made {
    /// Makes an image file of so many bytes.
    pub fn image(&mut self, path: &Path, bytes: u64, sparse: bool) -> Result<Device, Fail> {
        // What is in the volume is for those whom its mount lets in.
        let device = device::make(path)?;
        self.begin(path, &device, None)?.size(bytes, sparse)?;
        Ok(device)
    }

    /// Makes one longer that is there, which is open and had so many bytes, or reserves the space that it has.
    pub fn lengthen(&mut self, path: &Path, device: &Device, had: u64, bytes: u64, sparse: bool) -> Result<(), Fail> {
        self.begin(path, device, Some(had))?.size(bytes, sparse)
    }

    fn begin(&mut self, path: &Path, device: &Device, had: Option<u64>) -> Result<&One, Fail> {
        let file = opened(path, device)?;
        self.0.push(One { path: path.to_owned(), device: Some(device.clone()), file, had, then: None });
        self.0.last().ok_or_else(|| Fail::at(path.display(), "is not there"))
    }

    /// From now on somebody else may have it.
    pub fn hand_over(&mut self) {
        for one in &mut self.0 {
            one.then = one.file.metadata().ok().map(|meta| state(&meta));
            one.device = None;
        }
    }

    /// Half a volume in new files helps nobody, and the host may be full with what others were made longer by. Whether nothing stays.
    pub fn take_back(&self) -> bool {
        self.0.iter().filter(|one| !one.take_back()).count() == 0
    }
}

impl One {
    fn size(&self, bytes: u64, sparse: bool) -> Result<(), Fail> {
        size_image(&self.path, &self.file, bytes, sparse)?;
        self.device.as_ref().map_or(Ok(()), |device| device.remeasure()).at(self.path.display())
    }

    fn take_back(&self) -> bool {
        let locked = self.device.clone().or_else(|| device::try_open(&self.path, OpenMode::OWNER).ok());
        let Some(device) = locked.filter(|_| self.device.is_some() || self.is_as_it_was()) else { return false };
        match self.had {
            Some(bytes) => self.file.set_len(bytes).is_ok(),
            None => is_at(&self.path, &device) && fs::remove_file(&self.path).is_ok(),
        }
    }

    /// Whether nobody has used it since it was handed over. What is new and holds nothing nobody needs.
    fn is_as_it_was(&self) -> bool {
        let Ok(now) = self.file.metadata() else { return false };
        let is_there = fs::metadata(&self.path).is_ok_and(|there| HostId::of(&there) == HostId::of(&now));
        let is_empty = || self.had.is_none() && matches!(signature::occupant(&self.path), Ok(None));
        is_there && (self.then == Some(state(&now)) || is_empty())
    }
}

/// Whether the path leads to what was opened.
fn is_at(path: &Path, device: &Device) -> bool {
    let id = device.geometry().place.map(|place| place.id);
    fs::metadata(path).is_ok_and(|there| Some(HostId::of(&there)) == id)
}

/// The same file once more, to change its length.
pub(super) fn opened(path: &Path, device: &Device) -> Result<File, Fail> {
    let file = OpenOptions::new().read(true).write(true).open(path).at(path.display())?;
    let (is, id) = (HostId::of(&file.metadata().at(path.display())?), device.geometry().place.map(|place| place.id));
    match Some(is) == id {
        true => Ok(file),
        false => Err(Fail::at(path.display(), "became another file meanwhile; nothing was changed")),
    }
}

/// Makes an image file `bytes` long, and has the host reserve the space.
fn size_image(path: &Path, file: &File, bytes: u64, sparse: bool) -> Result<(), Fail> {
    if file.metadata().at(path.display())?.len() == 0 {
        // Best effort: most hosts neither need nor know it.
        sys::set_nocow(file);
    }
    let sized = if sparse { file.set_len(bytes) } else { sys::reserve(file, bytes) };
    sized.map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Fail::at(
            path.display(),
            format!("the host has no room for {}; choose a smaller --size, or --sparse", show_bytes(bytes)),
        ),
        Some(libc::EFBIG) => Fail::at(
            path.display(),
            format!("the host cannot hold a file of {}; choose a smaller --size", show_bytes(bytes)),
        ),
        _ => Fail::at(path.display(), e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use tempfile::TempDir;

    const BYTES: u64 = 1 << 20;

    /// A file that was made, or made longer, and what is at its path in the end.
    fn made(is_new: bool) -> (TempDir, PathBuf, Made) {
        let dir = tempfile::tempdir().unwrap();
        let (path, mut made) = (dir.path().join("image"), Made::default());
        if is_new {
            made.image(&path, BYTES, true).unwrap();
        } else {
            fs::write(&path, [0; 4096]).unwrap();
            let device = device::open(&path, OpenMode::OWNER).unwrap();
            made.lengthen(&path, &device, 4096, BYTES, true).unwrap();
        }
        assert_eq!(length(&path), Some(BYTES));
        (dir, path, made)
    }

    fn length(path: &Path) -> Option<u64> {
        fs::metadata(path).ok().map(|meta| meta.len())
    }

    fn open(path: &Path) -> Option<Device> {
        device::try_open(path, OpenMode::OWNER).ok()
    }

    /// Nobody else has it as long as it may be taken back.
    #[test]
    fn what_is_made_is_locked_until_it_is_taken_back() {
        for is_new in [true, false] {
            let (_dir, path, made) = made(is_new);
            assert!(open(&path).is_none());
            assert!(made.take_back());
            assert_eq!(length(&path), (!is_new).then_some(4096));
            drop(made);
            assert_eq!(open(&path).is_some(), !is_new);
        }
    }

    /// Another one has the name by now.
    #[test]
    fn what_has_the_name_instead_stays() {
        let (dir, path, made) = made(true);
        fs::rename(&path, dir.path().join("moved")).unwrap();
        fs::write(&path, "his").unwrap();
        assert!(!made.take_back());
        assert_eq!(fs::read_to_string(&path).unwrap(), "his");
    }

    /// What was handed over is whoever's took it, and has it or had it.
    #[test]
    fn what_somebody_else_took_is_not_taken_back() {
        for is_new in [true, false] {
            for (uses, writes, goes) in
                [(false, false, true), (true, false, false), (true, true, false), (false, true, false)]
            {
                let (_dir, path, mut made) = made(is_new);
                made.hand_over();
                let his = open(&path).unwrap();
                if writes {
                    let file = OpenOptions::new().write(true).open(&path).unwrap();
                    file.write_all_at(b"a superblock", 16384).unwrap();
                    // Not in the same tick of the host's clock as it was made.
                    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
                    file.set_times(fs::FileTimes::new().set_modified(later)).unwrap();
                }
                let his = uses.then_some(his);
                let what = format!("new {is_new}, used {uses}, written {writes}");
                // A program that another test starts has what it inherits for a moment, and with it the lock.
                let mut tries = if goes { 1000 } else { 1 };
                while !made.take_back() && tries > 0 {
                    tries -= 1;
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                assert_eq!(tries > 0, goes, "{what}");
                let taken_back = if is_new { None } else { Some(4096) };
                assert_eq!(length(&path), if goes { taken_back } else { Some(BYTES) }, "{what}");
                drop(his);
            }
        }
    }
}
