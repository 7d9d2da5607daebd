//! What a block device lies on: the files behind loop devices, which can be used without going through them.
//!
//! Two programs may take two ways to the same bytes: a loop device and its file, two loop devices over one file, one over
//! another. So who locks a device locks, by the same rules, every file beneath it.
//!
//! | what the device is of the file | lock of the file |
//! |---|---|
//! | the whole of it | as if it was opened itself: flock and a lock of all ranges, of a block device O_EXCL too |
//! | a range: behind an offset, a partition; all of it, encrypted | a lock of that range |
//! | nobody knows what: by way of the device mapper | a shared lock behind all that a range may be |
//!
//! Only who uses the whole takes the flock: others use that, too, and wait for it (cryptsetup, on the file of an encrypted device).
//! On NFS both kinds are locks of ranges, and one of them is enough; on SMB a lock keeps the loop device itself from its file, so
//! nothing beneath is locked there.
//!
//! Invariants
//! 1. Only that somebody else has the lock keeps a device from being opened. A file that is not found or cannot be opened, as one
//!    that was deleted or is in another mount namespace, does not.
//! 2. A name alone is not believed: where the device can be asked which file it has, that one is locked, or none.

use crate::{DeviceError, OpenMode, holder, sys};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Devices on top of each other that are followed.
const DEPTH_MAX: usize = 16;
/// What sysfs counts in.
const SECTOR_BYTES: u64 = 512;
/// Behind all that is a part of a file: what [`Part::Unknown`] locks, and [`Part::Whole`] among all.
const BEYOND: u64 = 1 << 62;

/// Which part of a file somebody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// From, and how long; `None`: to the end.
    Range(u64, Option<u64>),
    Unknown,
}

impl Part {
    /// The same bytes, of what this begins in at `offset` and has `bytes` of, or all behind that.
    fn inside(self, offset: u64, bytes: Option<u64>) -> Self {
        match (self, offset, bytes) {
            (Self::Unknown, ..) => Self::Unknown,
            (all, 0, None) => all,
            (Self::Whole, ..) => Self::Range(offset, bytes),
            (Self::Range(from, len), ..) => {
                let left = bytes.map(|b| b.saturating_sub(from));
                let len = len.into_iter().chain(left).min();
                Self::Range(offset.saturating_add(from), len)
            }
        }
    }
}

/// A file beneath a device.
#[derive(Debug, PartialEq, Eq)]
struct Beneath {
    path: PathBuf,
    part: Part,
}

/// What a device that is locked holds besides.
#[derive(Debug, Default)]
pub(crate) struct Locks(#[allow(dead_code)] Vec<File>); // held, not used

/// Locks what lies beneath a device.
///
/// # Errors
/// Somebody else has it.
pub(crate) fn lock(device: &Metadata, mode: OpenMode) -> Result<Locks, DeviceError> {
    let mut held = Vec::new();
    for Beneath { path, part } in beneath(device) {
        match open(&path, part, mode) {
            Ok(file) if sys::host_of(&file) == sys::Host::Smb => {}
            Ok(file) => match take(&file, part, mode.read_only) {
                Ok(()) => held.push(file),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let taken = file.metadata()?;
                    drop((file, held));
                    return Err(holder::busy(&taken));
                }
                Err(_) => {}
            },
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                drop(held);
                return Err(holder::busy(&fs::metadata(&path)?));
            }
            Err(_) => {}
        }
    }
    Ok(Locks(held))
}

/// The files and devices of which this one shows the whole.
///
/// # Errors
/// There is no such path.
pub fn same_as(path: &Path) -> io::Result<Vec<Metadata>> {
    let whole = |b: Beneath| (b.part == Part::Whole).then(|| fs::metadata(b.path).ok())?;
    Ok(beneath(&fs::metadata(path)?).into_iter().filter_map(whole).collect())
}

/// Opened so that it can be locked: for that some hosts want it to be writable.
fn open(path: &Path, part: Part, mode: OpenMode) -> io::Result<File> {
    let exclusive = part == Part::Whole && !mode.read_only && fs::metadata(path)?.file_type().is_block_device();
    let flags = libc::O_NONBLOCK | if exclusive { libc::O_EXCL } else { 0 };
    let open = |write| OpenOptions::new().read(true).write(write).custom_flags(flags).open(path);
    match open(!mode.read_only) {
        Err(e) if e.raw_os_error() != Some(libc::EBUSY) => open(false),
        other => other,
    }
}

/// Locks part of an open file.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when somebody else has it; what the kernel says.
pub(crate) fn take(file: &File, part: Part, shared: bool) -> io::Result<()> {
    if part == Part::Whole {
        sys::try_lock(file, shared)?;
        if sys::host_of(file) != sys::Host::Local {
            return Ok(());
        }
    }
    let (from, bytes) = match part {
        Part::Range(from, bytes) => {
            let most = BEYOND.saturating_sub(from);
            (from, Some(bytes.unwrap_or(most).min(most)))
        }
        Part::Whole => (0, None),
        Part::Unknown => (BEYOND, Some(1)),
    };
    let shared = shared || part == Part::Unknown;
    let locked = match sys::try_lock_range(file, from, bytes, shared) {
        // Who may only read it keeps out who wants the whole for himself.
        Err(e) if e.raw_os_error() == Some(libc::EBADF) && !shared => sys::try_lock_range(file, from, bytes, true),
        other => other,
    };
    match locked {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(e),
        // Not every host has locks of ranges.
        _ => Ok(()),
    }
}

/// Everything beneath a device, of nothing else anything.
fn beneath(device: &Metadata) -> Vec<Beneath> {
    let mut found = Vec::new();
    follow(device, Part::Whole, DEPTH_MAX, &mut found);
    found
}

fn follow(device: &Metadata, part: Part, depth: usize, found: &mut Vec<Beneath>) {
    if device.file_type().is_block_device() {
        let (major, minor) = (libc::major(device.rdev()), libc::minor(device.rdev()));
        if let Ok(dir) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) {
            walk(&dir, part, depth, found);
        }
    }
}

/// `dir`: of the device in sysfs.
fn walk(dir: &Path, part: Part, depth: usize, found: &mut Vec<Beneath>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    if dir.join("partition").exists() {
        let bytes = |name: &str| number(dir, name).and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
        if let (Some(whole), Some(start), Some(len)) = (dir.parent(), bytes("start"), bytes("size")) {
            walk(whole, part.inside(start, Some(len)), depth, found);
        }
        return;
    }
    let behind = dir.join("loop");
    if let Ok(path) = fs::read(behind.join("backing_file")) {
        let path = PathBuf::from(OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path)));
        let limit = number(&behind, "sizelimit").filter(|bytes| *bytes > 0);
        let part = part.inside(number(&behind, "offset").unwrap_or(0), limit);
        if let Ok(meta) = fs::metadata(&path) {
            if is_behind(dir, &meta) {
                found.push(Beneath { path, part });
                follow(&meta, part, depth, found);
            }
        }
        return;
    }
    // What is made of others has claimed them itself, but not what is beneath those.
    let others: Vec<PathBuf> =
        fs::read_dir(dir.join("slaves")).into_iter().flatten().flatten().map(|other| other.path()).collect();
    let is_encrypted = fs::read(dir.join("dm/uuid")).is_ok_and(|uuid| uuid.starts_with(b"CRYPT-"));
    let part = match part {
        // All of it is used, and its bytes are others.
        Part::Whole if is_encrypted && others.len() == 1 => Part::Range(0, None),
        range if is_encrypted && others.len() == 1 => range,
        _ => Part::Unknown,
    };
    for other in others {
        if let Ok(dir) = fs::canonicalize(other) {
            walk(&dir, part, depth, found);
        }
    }
}

fn number(dir: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok()
}

/// Whether this is the file that the loop device has, as far as it can be asked (invariant 2).
fn is_behind(dir: &Path, file: &Metadata) -> bool {
    let node = dir.file_name().map(|name| Path::new("/dev").join(name));
    let asked = node.and_then(|node| sys::loop_file(&File::open(node).ok()?).ok());
    asked.is_none_or(|(device, inode)| (device, inode) == (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ranges() {
        let part =
            |parts: &[(u64, Option<u64>)]| parts.iter().fold(Part::Whole, |p, (from, len)| p.inside(*from, *len));
        assert_eq!(part(&[]), Part::Whole);
        assert_eq!(part(&[(0, None), (0, None)]), Part::Whole);
        assert_eq!(part(&[(0, Some(9))]), Part::Range(0, Some(9)));
        assert_eq!(part(&[(5, Some(9)), (0, None)]), Part::Range(5, Some(9)));
        assert_eq!(part(&[(5, Some(9)), (100, None)]), Part::Range(105, Some(9)));
        assert_eq!(part(&[(5, None), (100, Some(20))]), Part::Range(105, Some(15)));
        assert_eq!(part(&[(5, Some(90)), (100, Some(20))]), Part::Range(105, Some(15)));
        assert_eq!(Part::Unknown.inside(5, Some(9)), Part::Unknown);
    }

    #[test]
    fn who_has_what_of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let taken = |part, shared| {
            let open = File::options().read(true).write(true).open(file.path()).unwrap();
            take(&open, part, shared).is_ok().then_some(open)
        };
        let (head, tail) = (Part::Range(0, Some(4096)), Part::Range(4096, None));
        // What is taken by whom, and who else gets something.
        for (first, others) in [
            ((Part::Whole, false), [false; 8]),
            ((Part::Whole, true), [false, true, false, true, false, true, true, true]),
            ((head, false), [false, false, false, false, true, true, true, true]),
            ((head, true), [false, true, false, true, true, true, true, true]),
            ((tail, false), [false, false, true, true, false, false, true, true]),
            ((Part::Unknown, false), [false, true, true, true, true, true, true, true]),
        ] {
            let held = taken(first.0, first.1).unwrap();
            let all = [Part::Whole, head, tail, Part::Unknown].map(|part| [(part, false), (part, true)]);
            let got = all.concat().into_iter().map(|(part, shared)| taken(part, shared).is_some());
            assert_eq!(got.collect::<Vec<_>>(), others, "{first:?}");
            drop(held);
        }
        assert!(taken(Part::Whole, false).is_some());
    }
}
