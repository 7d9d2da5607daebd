//! All devices of a volume: as they were named, or found beside the one that was.
//!
//! Where one device of several is named, the others are looked for where it lies itself: among the files of the same
//! directory, or among the block devices of this machine.

use crate::device::{self, Device};
use crate::error::Fail;
use crate::machine::{self, Patience, Seen, Sign, own_identity};
use crate::output;
use nenrin_device::{DeviceError, OpenMode};
use nenrin_format::superblock::Superblock;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

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
            for other in others(path, &sb, Patience::USUAL) {
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

/// How long mount(8) waits for devices of a volume that are not there yet.
pub const LATE_TIME: Duration = Duration::from_secs(10);
/// How often it looks.
const LATE_STEP: Duration = Duration::from_millis(200);

/// Waits for devices that a volume needs and that are not there, `time` at most: those of a machine that starts come one after the other.
/// Which these are a device says that is named and there; without one nobody waits. `degraded`: others stand in for those that are
/// missing, and those that the volume went on without before are not waited for.
pub fn wait_for_late(named: &[PathBuf], degraded: bool, time: Duration) {
    let (end, mut told) = (Instant::now() + time, false);
    loop {
        let missing = missing(named, degraded);
        if missing == 0 || Instant::now() >= end {
            return;
        }
        if !told {
            let (what, are) = if missing == 1 { ("device", "is") } else { ("devices", "are") };
            let seconds = time.as_secs();
            let text =
                format!("{missing} {what} of the volume {are} not there yet; waiting for {seconds} seconds at most");
            output::notice(format!("{}: {text}", joined(named).display()));
            told = true;
        }
        thread::sleep(LATE_STEP);
    }
}

/// How many devices are missing that a volume needs, as the newest of those says that are there: one that was away has an older table.
fn missing(named: &[PathBuf], degraded: bool) -> usize {
    let mut there: Vec<Superblock> = named.iter().filter_map(|path| newest_of(path)).collect();
    let beside = match (named, &there[..]) {
        ([path], [sb]) if sb.members() > 1 => others(path, sb, Patience::SHORT),
        _ => Vec::new(),
    };
    there.extend(beside.iter().filter_map(|path| newest_of(path)));
    let newest = there.iter().max_by_key(|sb| (sb.table_generation(), sb.generation.0));
    let Some(sb) = newest.filter(|sb| sb.members() > 1) else { return 0 };
    let found: Vec<[u8; 16]> = there.iter().filter_map(own_identity).collect();
    let is_used = |index: usize| sb.bands.iter().any(|b| b.members.iter().any(|m| usize::from(m.0) == index));
    let needed = sb.devices.iter().enumerate().filter(|(i, d)| !d.removed && is_used(*i) && (d.active || !degraded));
    needed.filter(|(_, d)| !found.contains(&d.uuid)).count()
}

/// Other devices of the volume that `path` belongs to.
fn others(path: &Path, sb: &Superblock, patience: Patience) -> Vec<PathBuf> {
    let is_other = |sign: &Sign| sign.head.uuid == sb.uuid && sign.own().is_some() && sign.own() != own_identity(sb);
    let is_block = fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    let candidates: Vec<Seen> = if is_block {
        let is_complete = |signs: &[Sign]| signs.iter().filter(|sign| is_other(sign)).count() + 1 >= sb.members();
        machine::look(machine::block_devices(), patience, is_complete)
    } else {
        siblings(path).into_iter().map(|path| Seen { sign: machine::sign_of(&path), path }).collect()
    };
    let mut found = Vec::new();
    let mut known = device::identities(path);
    for candidate in candidates.into_iter().filter(|c| matches!(&c.sign, Ok(Some(sign)) if is_other(sign))) {
        // Another way to one that is known is no other device.
        let identities = device::identities(&candidate.path);
        if !identities.is_empty() && !identities.iter().any(|i| known.contains(i)) {
            known.extend(identities);
            found.push(candidate.path);
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

/// What a device says of its volume, where this program understands it.
fn newest_of(path: &Path) -> Option<Superblock> {
    machine::sign_of(path).ok()?.and_then(|sign| sign.root)
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
