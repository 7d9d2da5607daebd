//! Finds out who keeps a device busy, for the message only.
//!
//! Invariants
//! 1. Nothing here decides anything: a wrong or missing answer changes a text.
//! 2. Unreadable parts of /proc are skipped, not reported.

use crate::DeviceError;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// The error for a device that is taken: mounted, or held by a process.
/// Call it after closing one's own descriptor, or it is found as well.
pub(crate) fn busy(device: &Metadata) -> DeviceError {
    if let Some(at) = mounted_at(device) {
        return DeviceError::Mounted { at };
    }
    let pid = lock_owner(device).or_else(|| opener(device));
    let command = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    DeviceError::Busy { pid, command: command.map(|c| c.trim_end().to_owned()) }
}

/// The process that took the flock, from lines like
/// `1: FLOCK  ADVISORY  WRITE 4711 08:01:131073 0 EOF`.
fn lock_owner(device: &Metadata) -> Option<u32> {
    let (major, minor) = (libc::major(device.dev()), libc::minor(device.dev()));
    let wanted = format!("{major:02x}:{minor:02x}:{}", device.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1).filter(|w| *w != "->");
        let kind = words.next()?;
        let pid = words.nth(2)?.parse().ok().filter(|pid| *pid > 0)?;
        (kind == "FLOCK" && words.next()? == wanted).then_some(pid)
    })
}

/// A process that has the device open, ourselves last.
fn opener(device: &Metadata) -> Option<u32> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let mut found = None;
    for pid in pids.filter(|pid| has_open(*pid, device)) {
        if pid != own {
            return Some(pid);
        }
        found = Some(pid);
    }
    found
}

fn has_open(pid: u32, device: &Metadata) -> bool {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    fds.flatten().any(|fd| fs::metadata(fd.path()).is_ok_and(|open| same(&open, device)))
}

fn same(a: &Metadata, b: &Metadata) -> bool {
    if b.file_type().is_block_device() {
        return a.file_type().is_block_device() && a.rdev() == b.rdev();
    }
    a.dev() == b.dev() && a.ino() == b.ino()
}

/// Where a block device is mounted.
fn mounted_at(device: &Metadata) -> Option<String> {
    if !device.file_type().is_block_device() {
        return None;
    }
    let wanted = format!("{}:{}", libc::major(device.rdev()), libc::minor(device.rdev()));
    point_of(&wanted, &fs::read("/proc/self/mountinfo").ok()?)
}

/// The first mount point of a device, from lines like `29 1 8:1 / /home rw,relatime - ext4 /dev/sda1 rw`: bytes, as names are.
fn point_of(device: &str, mounts: &[u8]) -> Option<String> {
    mounts.split(|b| *b == b'\n').find_map(|line| {
        let mut words = line.split(|b| *b == b' ').skip(2);
        let point = (words.next()? == device.as_bytes()).then(|| words.nth(1))??;
        Some(String::from_utf8_lossy(point).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_mount_points_are_bytes() {
        let mounts = b"28 1 8:2 / /\xff rw - ext4 /dev/sda2 rw\n29 1 8:1 / /home rw - ext4 /dev/sda1 rw\n";
        assert_eq!(point_of("8:1", mounts).as_deref(), Some("/home"));
        assert_eq!(point_of("8:2", mounts).as_deref(), Some("/\u{fffd}"));
        assert_eq!(point_of("8:3", mounts), None);
    }

    #[test]
    fn who_has_a_file_open_is_found_without_a_lock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let device = file.as_file().metadata().unwrap();
        assert_eq!(lock_owner(&device), None);
        assert_eq!(opener(&device), Some(std::process::id()));
        drop(file);
        assert_eq!(opener(&device), None);
    }
}
