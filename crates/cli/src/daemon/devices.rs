//! Devices of a mounted volume that are added, removed and resized, on request of a command.

use super::open_owned;
use super::service::Service;
use crate::control::Answer;
use crate::error::{At as _, Fail};
use crate::{device, report, sys};
use nenrin_core::{DeviceHealth, Fs};
use nenrin_format::BLOCK_BYTES;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
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
    pub(super) fn device_add(&self, path: &Path, uuid: [u8; 16]) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let added = fs.device_add(open_owned(path, self.polling)?, uuid).at(path.display())?;
        self.watch_anew(&fs);
        self.log.line(&format!("{} added as device {}", path.display(), added + 1));
        Ok(Answer::of(added + 1))
    }

    pub(super) fn device_remove(&self, which: &str, keep: bool) -> Result<Answer, Fail> {
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
        Ok(Answer::of(d.index + 1))
    }

    /// Uses more or less of a device; an image file is made as long as that.
    pub(super) fn resize(&self, which: Option<&str>, bytes: Option<u64>) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let d = match (which, &fs.health()[..]) {
            (Some(which), _) => member(&fs, which)?,
            (None, [only]) => only.clone(),
            (None, all) => {
                return Err(Fail::new(format!("the volume has {} devices: name one with --device", all.len())));
            }
        };
        let name = d.name.as_deref().ok_or_else(|| Fail::new(format!("device {} is absent", d.index + 1)))?;
        // One at a time: who fails takes back what he made longer.
        let mut to_cut = self.to_cut();
        let file = self.opened(Path::new(name))?;
        let meta = file.metadata().at(name)?;
        let there = device::bytes_of(&file).at(name)?;
        let bytes = bytes.unwrap_or(there) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let grows = meta.is_file() && bytes > there;
        let grown = if grows { lengthen(&file, &meta, bytes).at(name) } else { Ok(()) };
        let done = grown.and_then(|()| fs.device_resize(d.index, bytes / BLOCK_BYTES as u64).at(name));
        // Where that failed on the way the roots may say that it is used.
        if done.is_err() && grows && fs.failed().is_none() {
            cut(&file, there);
        }
        done?;
        *to_cut = (meta.is_file() && bytes < there).then_some((file, bytes));
        drop(to_cut);
        self.watch_anew(&fs);
        self.log.line(&format!("device {}: {bytes} bytes are to be used", d.index + 1));
        Ok(Answer::of(d.index + 1))
    }

    /// The device that the volume has there, and not what somebody may have put in its place.
    fn opened(&self, path: &Path) -> Result<File, Fail> {
        let is_file = fs::symlink_metadata(path).is_ok_and(|m| m.is_file());
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let opened = OpenOptions::new().read(true).write(is_file).custom_flags(flags).open(path);
        let is_it = |file: &File| {
            let identity = file.metadata().map(|m| device::identity_of(&m));
            identity.is_ok_and(|i| self.watches().iter().any(|w| w.is_at(path) && w.identity() == i))
        };
        match opened {
            Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ELOOP)) => Err(Fail::at(path.display(), e)),
            Ok(file) if is_it(&file) => Ok(file),
            _ => Err(Fail::at(
                path.display(),
                "deleted or replaced while mounted, so it cannot be resized; put it back first",
            )),
        }
    }

    pub(super) fn lay(&self, bytes: u64) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let status = fs.laying_step(bytes.min(STEP_BYTES_MAX)).map_err(plain)?;
        if status.is_none() {
            self.watch_anew(&fs);
            if let Some((file, bytes)) = self.to_cut().take() {
                cut(&file, bytes);
            }
            await_left(&fs);
            self.log.line("everything lies as it should on the devices there are");
        }
        Ok(Answer::of(report::laying_data(&fs, status)))
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

/// Makes an image file longer. One with holes stays one.
fn lengthen(file: &File, meta: &Metadata, bytes: u64) -> io::Result<()> {
    let is_sparse = meta.blocks() * 512 < meta.len();
    let done = if is_sparse { file.set_len(bytes) } else { sys::reserve(file, bytes) };
    done.and_then(|()| file.sync_all())
}

/// What lies behind is the volume's no more: where it stays, it only takes room.
fn cut(file: &File, bytes: u64) {
    let _ = file.set_len(bytes);
}
