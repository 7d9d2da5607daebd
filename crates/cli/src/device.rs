//! Opening devices and volumes, and saying in one line why one cannot be.

use crate::error::Fail;
use crate::{clock, signature, sys};
use nenrin_core::{DeviceHealth, Error, Fs, MountOptions};
use nenrin_device::{BLOCK_BYTES, BlockDevice, DeviceError, HostId, HostPlace, OpenMode, make_best, open_best};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open device.
pub type Device = Arc<dyn BlockDevice>;

/// Opens a device, or says why it cannot be.
pub fn open(path: &Path, mode: OpenMode) -> Result<Device, Fail> {
    try_open(path, mode).map_err(|e| describe(path, mode, &e))
}

/// Opens a device. On failure the device's own words, for who wants to decide.
pub fn try_open(path: &Path, mode: OpenMode) -> Result<Device, DeviceError> {
    if !mode.read_only && is_read_only(path) {
        return Err(DeviceError::ReadOnly);
    }
    open_best(path, mode).map(Arc::from)
}

/// Makes an empty file, as its owner: nobody else has it before.
pub fn make(path: &Path) -> Result<Device, Fail> {
    make_best(path).map(Arc::from).map_err(|e| match e {
        // Of the directory that it was to be in.
        DeviceError::Os(_) => Fail::at(path.display(), e),
        e => describe(path, OpenMode::OWNER, &e),
    })
}

/// Whether a block device refuses writes, which open(2) does not tell.
fn is_read_only(path: &Path) -> bool {
    let is_block = fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    is_block && fs::File::open(path).is_ok_and(|f| sys::block_device_is_read_only(&f))
}

/// Whether somebody has it, or it is not for who asks: where it is in use elsewhere helps then.
pub fn is_refused(e: &DeviceError) -> bool {
    matches!(e, DeviceError::Busy { .. } | DeviceError::Os(libc::EACCES | libc::EPERM))
}

/// Whether a device could be read, but not written to.
pub fn is_write_protected(e: &DeviceError) -> bool {
    matches!(e, DeviceError::ReadOnly | DeviceError::Os(libc::EROFS))
}

/// One line: what, where, what to do.
pub fn describe(path: &Path, mode: OpenMode, error: &DeviceError) -> Fail {
    let text = match error {
        DeviceError::Os(libc::ENOENT) => "no such file or device".to_owned(),
        DeviceError::Os(libc::EACCES | libc::EPERM) => {
            let what = if mode.read_only { "read" } else { "write" };
            format!("permission denied: you may not {what} it; run this as its owner or as root")
        }
        e if is_write_protected(e) => "a read-only device: nothing can be written to it".to_owned(),
        DeviceError::Os(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM) => {
            "there is no device behind this name; look whether it is attached".to_owned()
        }
        DeviceError::Busy { .. } => {
            format!("{error}; if it is mounted, nenrin umount DIR releases it")
        }
        DeviceError::Mounted { at } => format!("mounted at {at}; unmount it first"),
        DeviceError::NotADevice => "neither a regular file nor a block device".to_owned(),
        other => other.to_string(),
    };
    Fail::at(path.display(), text)
}

/// Opens the volume on `devices`, or says why it cannot be.
pub fn open_volume(path: &Path, devices: Vec<Device>, options: MountOptions) -> Result<Arc<Fs>, Fail> {
    open_volume_and(path, devices, options, &mut |_| {})
}

/// The same, and has it beat from before its first write on: see [`Fs::open_and`].
pub fn open_volume_and(
    path: &Path,
    devices: Vec<Device>,
    options: MountOptions,
    begins: &mut dyn FnMut(&Arc<Fs>),
) -> Result<Arc<Fs>, Fail> {
    let foreign = devices.first().and_then(foreign);
    Fs::open_and(devices, clock::HostClock::shared(), options, begins).map_err(|e| describe_volume(path, foreign, &e))
}

/// What is on the device, if it is known and not a nenrin volume.
pub fn foreign(device: &Device) -> Option<&'static str> {
    let geometry = device.geometry();
    let bytes = signature::HEAD_BYTES.min(geometry.bytes as usize / BLOCK_BYTES * BLOCK_BYTES);
    let head = device.read(0, bytes).ok()?;
    signature::find(&head).filter(|name| !name.contains("nenrin"))
}

/// Whether there is no volume at all.
pub fn is_foreign(error: &Error) -> bool {
    matches!(error, Error::Open(text) if text.contains("not a nenrin volume"))
}

/// One line for a volume that cannot be opened.
pub fn describe_volume(path: &Path, foreign: Option<&'static str>, error: &Error) -> Fail {
    let text = match error {
        Error::NoSpace => {
            "the volume is full: no segment is free to go on in, so it cannot be mounted for writing; mount \
                           it with -o ro, which shows everything"
                .to_owned()
        }
        Error::Device(DeviceError::Os(libc::ENOSPC)) => {
            "the file system that the image lies on is full; make room there, or mount it with -o ro".to_owned()
        }
        e => e.to_string(),
    };
    let says_where = |p: &PathBuf| {
        text.contains(&absolute(p).display().to_string())
            || text.strip_prefix(&*p.to_string_lossy()).is_some_and(|rest| rest.starts_with([':', ' ']))
    };
    if crate::members::split(path).iter().any(says_where) {
        // It says itself where.
        return Fail::new(text);
    }
    if is_foreign(error) {
        return Fail::at(
            path.display(),
            match foreign {
                Some(name) => format!("not a nenrin volume; it holds {name}"),
                None => {
                    "not a nenrin volume: nothing of one is at the beginning, nor at the end as it is now. If it was one, copy it \
                         before anything else writes to it: without a superblock it cannot be repaired. nenrin mkfs makes a new one, and \
                         what is there now is lost"
                        .to_owned()
                }
            },
        );
    }
    Fail::at(path.display(), text)
}

/// What tells one device from another, whatever path leads to it.
pub fn identity(path: &Path) -> std::io::Result<String> {
    fs::metadata(path).map(|meta| identity_of(&meta))
}

/// Of the device, and of what it shows the whole of: of a loop device also of the file behind it. Of no device none.
pub fn identities(path: &Path) -> Vec<String> {
    identity(path).into_iter().chain(identities_beneath(path)).collect()
}

/// Of what it shows the whole of.
pub fn identities_beneath(path: &Path) -> Vec<String> {
    nenrin_device::same_as(path).unwrap_or_default().iter().map(identity_of).collect()
}

/// The same of one that is open.
pub fn identity_of(meta: &fs::Metadata) -> String {
    identity_by(HostId::of(meta))
}

/// The same by its number.
pub fn identity_by(id: HostId) -> String {
    match id {
        HostId::Block(number) => format!("block {number}"),
        HostId::File(of, number) => format!("file {of} {number}"),
    }
}

/// What is a number, and no path, whatever there is of that name: which one it is, where there can be a device with it.
pub fn number(text: &str) -> Option<Option<u16>> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok())
}

/// A device as the owner understands it, whose working directory is another.
pub fn for_owner(which: &OsStr) -> String {
    let path = Path::new(which);
    let is_path = which.to_str().and_then(number).is_none() && path.exists();
    let shown = if is_path { absolute(path) } else { path.to_owned() };
    shown.to_string_lossy().into_owned()
}

/// The device that a number or a path means.
pub fn member(fs: &Fs, text: &str) -> Result<DeviceHealth, Fail> {
    meant(fs.health(), text).ok_or_else(|| Fail::at(text, "no device of this volume; nenrin device list shows them"))
}

/// See [`member`]. A path that is no text comes as it is shown, which may be how several are, or what another file is called.
fn meant(all: Vec<DeviceHealth>, text: &str) -> Option<DeviceHealth> {
    if let Some(number) = number(text) {
        return all.into_iter().find(|d| number == Some(d.index + 1));
    }
    let id = fs::metadata(text).ok().map(|meta| HostId::of(&meta));
    // By what was opened: what is at its path by now may be another. Its name may be that of several.
    let is_it = |d: &DeviceHealth| {
        let is_there = |place: &HostPlace| id == Some(place.id) || place.path == Path::new(text);
        d.place.as_ref().map_or(d.name.as_deref() == Some(text), is_there)
    };
    let is_shown_so = |d: &DeviceHealth| d.place.as_ref().is_some_and(|place| place.path.to_string_lossy() == text);
    let is_only_shown = id.is_none() && all.iter().filter(|d| is_shown_so(d)).count() == 1;
    let at = all.iter().position(is_it).or_else(|| all.iter().position(is_shown_so).filter(|_| is_only_shown));
    at.and_then(|at| all.into_iter().nth(at))
}

/// Length of an image file or a block device that is open.
///
/// # Errors
/// What the host says.
pub fn bytes_of(mut device: &fs::File) -> std::io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    device.seek(SeekFrom::End(0))
}

/// A path that stays right when the working directory changes.
pub fn absolute(path: &Path) -> PathBuf {
    fs::canonicalize(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_volume_says_what_to_do() {
        let text = describe_volume(Path::new("/nowhere"), None, &Error::NoSpace).to_string();
        assert!(text.contains("the volume is full") && text.contains("-o ro") && !text.contains('\n'), "{text}");
    }
}
