//! What a command is about: a mounted volume, by any path on it, or a device.

use crate::control::{self, CheckpointData, Client, Request, SegmentData, VolumeInfo};
use crate::error::Fail;
use crate::{device, machine, members, mounts, report, tag};
use nenrin_core::{Fs, MountOptions};
use nenrin_device::{DeviceError, OpenMode};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A volume to ask.
pub enum Target {
    /// It is mounted, and this is its owner.
    Owner(Client),
    /// It is not, and was opened for reading.
    Device(Arc<Fs>, PathBuf),
}

/// Whether what there is may be a mount that cannot be looked at: also root may not look at one that is for its user alone.
fn is_closed(e: &io::Error) -> bool {
    mounts::is_out_of_reach(e) || e.kind() == io::ErrorKind::PermissionDenied
}

/// Whether that is one of our mounts, of which not even the root can be read, or in one whose program has ended.
fn is_ours(path: &Path, e: &io::Error) -> bool {
    let is_dead = mounts::is_of_dead(e);
    mounts::of(path).is_ok_and(|(mount, real)| mount.fstype == mounts::FSTYPE && (is_dead || mount.point == real))
}

/// Whether a file lies on a volume and is no image of one. Its lock is not touched to see that: programs have it, and try for it.
fn is_content(file: &Path) -> bool {
    let is_on_ours = mounts::of(file).is_ok_and(|(mount, _)| mount.fstype == mounts::FSTYPE);
    is_on_ours && !matches!(machine::sign_of(file), Ok(Some(_)))
}

impl Target {
    /// The volume that a directory lies on, or that is on a device, or is known by its label or UUID.
    ///
    /// # Errors
    /// There is none; somebody else has it.
    pub fn find(path: &Path) -> Result<Self, Fail> {
        let path = &*tag::device(path)?;
        if members::split(path).len() > 1 {
            return Self::of_devices(path);
        }
        let stands_for_its_volume = match fs::metadata(path) {
            Ok(m) if m.is_file() => {
                // An image that is mounted need not be known by its head, wherever it lies.
                if let Some(owner) = Self::asked(path)? {
                    return Ok(owner);
                }
                if !is_content(path) {
                    return Self::opened(path);
                }
                true
            }
            Ok(m) => m.is_dir(),
            Err(e) if is_closed(&e) && is_ours(path, &e) => true,
            Err(e) => return Err(Fail::at(path.display(), e)),
        };
        if stands_for_its_volume {
            return control::owner_of_directory(path).map(|(owner, ..)| Self::Owner(owner));
        }
        Self::of_devices(path)
    }

    fn of_devices(path: &Path) -> Result<Self, Fail> {
        Self::asked(path)?.map_or_else(|| Self::opened(path), Ok)
    }

    /// Who has these devices.
    fn asked(path: &Path) -> Result<Option<Self>, Fail> {
        match control::asked_of_device(&members::absolute(path)) {
            (Some(owner), _) => Ok(Some(Self::Owner(owner))),
            (None, Some(silent)) => Err(Fail::at(path.display(), silent)),
            (None, None) => Ok(None),
        }
    }

    fn opened(path: &Path) -> Result<Self, Fail> {
        let absolute = members::absolute(path);
        // Whoever is in the way of one that is named is told of.
        let told = |fail: Fail| {
            let refused = |p: &PathBuf| device::try_open(p, OpenMode::READER).is_err_and(|e| device::is_refused(&e));
            let is_refused = members::split(&absolute).iter().any(refused);
            if is_refused { control::with_place(&absolute, fail) } else { fail }
        };
        let mut members = match members::try_open(&absolute, OpenMode::READER) {
            Ok(members) => members.map_err(told)?,
            // What else there is on a volume stands for it, too.
            Err(DeviceError::NotADevice) => {
                return control::owner_of_directory(path).map(|(owner, ..)| Self::Owner(owner));
            }
            Err(e) => return Err(told(device::describe(path, OpenMode::READER, &e))),
        };
        members.leave_out_misfits(&members::split(path));
        let options = MountOptions { read_only: true, degraded: true, ..MountOptions::default() };
        match device::open_volume(path, members.devices, options) {
            Ok(fs) => Ok(Self::Device(fs, absolute)),
            Err(fail) => control::owner_of_directory(path).map(|(owner, ..)| Self::Owner(owner)).map_err(|_| fail),
        }
    }

    /// Everything about the volume.
    pub fn info(&mut self) -> Result<VolumeInfo, Fail> {
        match self {
            Self::Owner(owner) => owner.call(&Request::Info),
            Self::Device(fs, path) => Ok(report::volume(fs, path)),
        }
    }
    /// Its checkpoints, oldest first.
    pub fn checkpoints(&mut self) -> Result<Vec<CheckpointData>, Fail> {
        match self {
            Self::Owner(owner) => owner.call(&Request::Checkpoints),
            Self::Device(fs, _) => Ok(report::checkpoints(fs)),
        }
    }
    /// Its snapshots, oldest first, with what letting each go would free.
    pub fn snapshots(&mut self) -> Result<Vec<CheckpointData>, Fail> {
        match self {
            Self::Owner(owner) => owner.call(&Request::Snapshots),
            Self::Device(fs, path) => report::snapshots(fs).map_err(|e| Fail::at(path.display(), e)),
        }
    }
    /// How long its checkpoints are kept.
    pub fn retention(&mut self) -> Result<String, Fail> {
        match self {
            Self::Owner(owner) => owner.call(&Request::Retention),
            Self::Device(fs, _) => Ok(fs.retention()),
        }
    }
    /// Its segments.
    pub fn segments(&mut self) -> Result<Vec<SegmentData>, Fail> {
        let mut all = Vec::new();
        let rest: Vec<SegmentData> = match self {
            Self::Owner(owner) => owner.call_for_parts(&Request::Segments, &mut |some: Vec<_>| all.extend(some))?,
            Self::Device(fs, _) => report::segments(fs, &mut |some| {
                all.extend(some);
                Ok(())
            })?,
        };
        all.extend(rest);
        Ok(all)
    }
    /// The owner, for what changes the volume.
    ///
    /// # Errors
    /// The volume is not mounted.
    pub fn owner(&mut self) -> Result<&mut Client, Fail> {
        match self {
            Self::Owner(owner) => Ok(owner),
            Self::Device(_, path) => Err(Fail::at(path.display(), "the volume is not mounted; mount it first")),
        }
    }
}
