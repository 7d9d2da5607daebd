//! Devices of a mounted volume that are added, removed and resized, on request of a command.

use super::open_owned;
use super::service::Service;
use crate::error::{At as _, Fail};
use crate::{device, report, sys};
use nenrin_core::{DeviceHealth, Fs};
use nenrin_format::BLOCK_BYTES;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Longest that a command waits for a device that was taken out to be closed, and how often it looks.
const LEFT_MAX: Duration = Duration::from_secs(5);
const LEFT_STEP: Duration = Duration::from_millis(2);
/// Most that one request moves.
const STEP_BYTES_MAX: u64 = 64 << 20;

fn plain(e: impl std::fmt::Display) -> Fail {
    Fail::new(e.to_string())
}

fn value(data: &impl serde::Serialize) -> Result<Value, Fail> {
    serde_json::to_value(data).map_err(plain)
}

/// The device that a number or a path means.
fn member(fs: &Fs, text: &str) -> Result<DeviceHealth, Fail> {
    let all = fs.health();
    let number = text.parse::<u16>().ok();
    let identity = device::identity(Path::new(text)).ok();
    let is_it = |d: &&DeviceHealth| {
        let same = d.name.as_ref().and_then(|n| device::identity(Path::new(n)).ok());
        number == Some(d.index + 1) || identity.is_some() && same == identity || d.name.as_deref() == Some(text)
    };
    let found = all.iter().find(is_it).cloned();
    found.ok_or_else(|| Fail::at(text, "no device of this volume; nenrin device list shows them"))
}

impl Service {
    pub(super) fn device_add(&self, path: &Path, uuid: [u8; 16]) -> Result<Value, Fail> {
        let fs = self.fs()?;
        let added = fs.device_add(open_owned(path, self.polling)?, uuid).at(path.display())?;
        self.watch_anew(&fs);
        self.log.line(&format!("{} added as device {}", path.display(), added + 1));
        value(&(added + 1))
    }

    pub(super) fn device_remove(&self, which: &str, keep: bool) -> Result<Value, Fail> {
        let fs = self.fs()?;
        let d = member(&fs, which)?;
        if keep {
            let was = fs.device_keep(d.index).at(which)?;
            *self.to_cut() = None;
            if !was {
                return Err(Fail::at(which, "it is not being removed or shrunk"));
            }
        } else {
            fs.device_remove(d.index).at(which)?;
            self.log.line(&format!("device {} is being removed", d.index + 1));
        }
        value(&(d.index + 1))
    }

    /// Uses more or less of a device; an image file is made as long as that.
    pub(super) fn resize(&self, which: Option<&str>, bytes: Option<u64>) -> Result<Value, Fail> {
        let fs = self.fs()?;
        let d = match (which, &fs.health()[..]) {
            (Some(which), _) => member(&fs, which)?,
            (None, [only]) => only.clone(),
            (None, all) => {
                return Err(Fail::new(format!("the volume has {} devices: name one with --device", all.len())));
            }
        };
        let name = d.name.as_deref().ok_or_else(|| Fail::new(format!("device {} is absent", d.index + 1)))?;
        let path = PathBuf::from(name);
        let meta = fs::metadata(&path).at(path.display())?;
        let there = if meta.is_file() { meta.len() } else { device::block_bytes(&path)? };
        let bytes = bytes.unwrap_or(there) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let grown = meta.is_file() && bytes > there;
        if grown {
            let file = OpenOptions::new().write(true).open(&path).at(path.display())?;
            // A file with holes stays one.
            let is_sparse = meta.blocks() * 512 < there;
            let done = if is_sparse { file.set_len(bytes) } else { sys::reserve(&file, bytes) };
            done.and_then(|()| file.sync_all()).at(path.display())?;
        }
        let done = fs.device_resize(d.index, bytes / BLOCK_BYTES as u64).at(path.display());
        // Where that failed on the way the roots may say that it is used.
        if done.is_err() && grown && fs.failed().is_none() {
            cut(&path, there);
        }
        done?;
        *self.to_cut() = (meta.is_file() && bytes < there).then_some((path, bytes));
        self.watch_anew(&fs);
        self.log.line(&format!("device {}: {bytes} bytes are to be used", d.index + 1));
        value(&(d.index + 1))
    }

    pub(super) fn lay(&self, bytes: u64) -> Result<Value, Fail> {
        let fs = self.fs()?;
        let status = fs.laying_step(bytes.min(STEP_BYTES_MAX)).map_err(plain)?;
        if status.is_none() {
            self.watch_anew(&fs);
            if let Some((path, bytes)) = self.to_cut().take() {
                cut(&path, bytes);
            }
            await_left(&fs);
            self.log.line("everything lies as it should on the devices there are");
        }
        value(&report::laying_data(&fs, status))
    }
}

/// Waits until devices that were taken out are closed, so that whoever had one taken out can use it. What was under way to the
/// others has it, too; on a device that does not answer that may be for long, and then the command does not wait for it.
pub(super) fn await_left(fs: &Fs) {
    let begun = Instant::now();
    while fs.devices_left_in_use() > 0 && begun.elapsed() < LEFT_MAX {
        thread::sleep(LEFT_STEP);
    }
}

/// What lies behind is the volume's no more: where it stays, it only takes room.
fn cut(path: &Path, bytes: u64) {
    let _ = OpenOptions::new().write(true).open(path).and_then(|f| f.set_len(bytes));
}
