//! All devices of a volume: as they were named, or found beside the one that was.
//!
//! Where one device of several is named, the others are looked for where it lies itself: among the files of the same
//! directory, or among the block devices of this machine.

use crate::device::{self, Device};
use crate::error::Fail;
use nenrin_device::{BLOCK_BYTES, DeviceError, OpenMode};
use nenrin_format::superblock::{SLOT_BLOCK, SLOTS_PER_AREA, Superblock};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// Files of a directory that are looked into at most.
const CANDIDATES_MAX: usize = 4096;

/// Open devices of a volume.
pub struct Members {
    /// Where they are, absolute.
    pub paths: Vec<PathBuf>,
    /// In the same order.
    pub devices: Vec<Device>,
}

impl Members {
    /// For who goes on without others: leaves out what was found beside the only one that was named and does not go with it, so that it
    /// is as if it were not there. What that is, and why.
    pub fn leave_out_misfits(&mut self, named: &[PathBuf]) -> Vec<String> {
        // Of two in one place nobody knows which one is meant.
        let places =
            self.devices.iter().filter_map(|d| Some(nenrin_core::probe(d.as_ref()).ok()?.newest().ok()?.device_index));
        let mut seen = std::collections::BTreeSet::new();
        if !places.into_iter().all(|place| seen.insert(place)) {
            return Vec::new();
        }
        let alone = self.devices.get(..1).filter(|d| named.len() == 1 && nenrin_core::go_together(d).is_ok());
        let mut together = match alone {
            Some(alone) if nenrin_core::go_together(&self.devices).is_err() => alone.to_vec(),
            _ => return Vec::new(),
        };
        let (mut left_out, mut paths) = (Vec::new(), self.paths[..1].to_vec());
        for (device, path) in self.devices.iter().zip(&self.paths).skip(1) {
            together.push(device.clone());
            match nenrin_core::go_together(&together) {
                Ok(()) => paths.push(path.clone()),
                Err(why) => {
                    together.pop();
                    left_out.push(format!("{} is left out: {why}", path.display()));
                }
            }
        }
        (self.devices, self.paths) = (together, paths);
        left_out
    }
}

/// The paths in `DEVICE[,DEVICE...]`. What exists as it stands is one path, commas or not.
pub fn split(given: &Path) -> Vec<PathBuf> {
    let bytes = given.as_os_str().as_bytes();
    if !bytes.contains(&b',') || given.exists() {
        return vec![given.to_owned()];
    }
    let parts = bytes.split(|b| *b == b',').filter(|p| !p.is_empty());
    parts.map(|p| PathBuf::from(OsStr::from_bytes(p))).collect()
}

/// The same list with absolute paths.
pub fn absolute(given: &Path) -> PathBuf {
    let all: Vec<PathBuf> = split(given).iter().map(|p| device::absolute(p)).collect();
    joined(&all)
}

/// Paths as one `DEVICE[,DEVICE...]`.
pub fn joined(all: &[PathBuf]) -> PathBuf {
    let all: Vec<&[u8]> = all.iter().map(|p| p.as_os_str().as_bytes()).collect();
    OsString::from_vec(all.join(&b',')).into()
}

/// Opens the devices that are named, with `open`, and those that are found beside a single one.
///
/// # Errors
/// One that was named or found cannot be opened.
pub fn open(named: &[PathBuf], open: impl Fn(&Path) -> Result<Device, Fail>) -> Result<Members, Fail> {
    let mut members = Members { paths: Vec::new(), devices: Vec::new() };
    let mut known = Vec::new();
    for path in named {
        let identities = device::identities(path);
        if identities.iter().any(|i| known.contains(i)) {
            return Err(Fail::at(path.display(), "named twice; each device of a volume is another one"));
        }
        known.extend(identities);
        members.devices.push(open(path)?);
        members.paths.push(device::absolute(path));
    }
    if let ([device], [path]) = (&members.devices[..], &members.paths[..]) {
        let newest = nenrin_core::probe(device.as_ref()).ok().and_then(|p| p.newest().ok().cloned());
        if let Some(sb) = newest.filter(|sb| sb.members() > 1) {
            for other in others(path, &sb) {
                members.devices.push(open(&other)?);
                members.paths.push(other);
            }
        }
    }
    Ok(members)
}

/// As [`open`], for commands that only want to look.
///
/// # Errors
/// As there.
pub fn open_named(named: &[PathBuf], mode: OpenMode) -> Result<Members, Fail> {
    open(named, |path| device::open(path, mode))
}

/// As [`open_named`], for the device's own words when the only one cannot be opened.
///
/// # Errors
/// As there.
pub fn try_open(path: &Path, mode: OpenMode) -> Result<Result<Members, Fail>, DeviceError> {
    match &split(path)[..] {
        [only] => {
            drop(device::try_open(only, mode)?);
            Ok(open_named(std::slice::from_ref(only), mode))
        }
        all => Ok(open_named(all, mode)),
    }
}

/// Other devices of the volume that `path` belongs to.
fn others(path: &Path, sb: &Superblock) -> Vec<PathBuf> {
    let is_block = fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    let candidates = if is_block { block_devices() } else { siblings(path) };
    let mut found = Vec::new();
    let mut known = device::identities(path);
    for candidate in candidates {
        // Another way to one that is known is no other device.
        let identities = device::identities(&candidate);
        if !identities.is_empty()
            && !identities.iter().any(|i| known.contains(i))
            && member_of(&candidate).is_some_and(|(uuid, own)| uuid == sb.uuid && own != own_identity(sb))
        {
            known.extend(identities);
            found.push(candidate);
        }
    }
    found.sort();
    found
}

fn siblings(path: &Path) -> Vec<PathBuf> {
    let Some(entries) = path.parent().and_then(|d| fs::read_dir(d).ok()) else { return Vec::new() };
    let files = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_file()));
    files.map(|e| e.path()).take(CANDIDATES_MAX).collect()
}

fn block_devices() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/partitions").unwrap_or_default();
    let names = table.lines().skip(2).filter_map(|line| line.split_whitespace().nth(3));
    names.map(|name| Path::new("/dev").join(name)).collect()
}

/// The identity of the device that holds a root. Two devices in one place of the volume differ in it: one has replaced the other.
fn own_identity(sb: &Superblock) -> Option<[u8; 16]> {
    sb.devices.get(usize::from(sb.device_index)).map(|d| d.uuid)
}

/// The volume that the first slots of a device name, and its own identity.
fn member_of(path: &Path) -> Option<([u8; 16], Option<[u8; 16]>)> {
    let file = File::open(path).ok()?;
    let mut slots = vec![0; SLOTS_PER_AREA as usize * BLOCK_BYTES];
    file.read_exact_at(&mut slots, SLOT_BLOCK * BLOCK_BYTES as u64).ok()?;
    slots.chunks_exact(BLOCK_BYTES).find_map(|s| Superblock::decode(s).ok()).map(|sb| (sb.uuid, own_identity(&sb)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_split_unless_it_is_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a,b");
        let both = |p: &Path| split(p).len();
        assert_eq!(both(&odd), 2);
        fs::write(&odd, "").unwrap();
        assert_eq!(both(&odd), 1);
        assert_eq!(split(Path::new("/x/a,/y/b")), [PathBuf::from("/x/a"), PathBuf::from("/y/b")]);
        assert_eq!(absolute(Path::new("/x/a,/y/b")), PathBuf::from("/x/a,/y/b"));
    }
}
