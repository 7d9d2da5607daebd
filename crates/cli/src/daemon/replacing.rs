//! A device of a mounted volume that is replaced, on request of a command.

use super::devices::await_left;
use super::service::Service;
use crate::control::{Answer, JoinData};
use crate::device;
use crate::error::Fail;
use nenrin_core::{Fs, JoinStatus, NewDevice};
use nenrin_device::OpenMode;
use nenrin_format::BLOCK_BYTES;
use std::path::Path;

/// The index of the device that a number or a path means.
fn index_of(fs: &Fs, text: &str) -> Result<u16, Fail> {
    let number = text.parse::<u16>().ok();
    let identity = device::identity(Path::new(text)).ok();
    let all = fs.health();
    let found = all.iter().find(|d| {
        let same = d.name.as_ref().and_then(|n| device::identity(&device::path_of(n)).ok());
        number == Some(d.index + 1) || identity.is_some() && same == identity || d.name.as_deref() == Some(text)
    });
    found.map(|d| d.index).ok_or_else(|| Fail::at(text, "no device of this volume; nenrin device list shows them"))
}

impl Service {
    pub(super) fn replace(&self, old: &str, new: &Path, uuid: [u8; 16]) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let index = index_of(&fs, old)?;
        let device = device::open(new, OpenMode { polling: self.polling, ..OpenMode::OWNER })?;
        fs.replace_device(index, NewDevice { device, uuid }).map_err(|e| Fail::new(e.to_string()))?;
        self.watch_anew(&fs);
        self.log.line(&format!("device {} is being replaced by {}", index + 1, new.display()));
        self.note_joined();
        Ok(Answer::of(index + 1))
    }

    pub(super) fn stop_replacing(&self) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let under_way = fs.stop_replacing();
        self.note_joined();
        self.watch_anew(&fs);
        await_left(&fs);
        Ok(Answer::of(under_way))
    }

    pub(super) fn join_data(&self) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let status = fs.join_status().filter(|s| s.replacement.is_some());
        let is_under_way = status.is_some();
        if !is_under_way {
            self.note_joined();
            self.watch_anew(&fs);
            await_left(&fs);
        }
        // Where it was quick nobody had asked before it was done.
        let at = status.or_else(|| fs.joined_last().filter(|s| s.replacement.is_some()));
        let of = |blocks: fn(&JoinStatus) -> u64| at.as_ref().map_or(0, blocks) * BLOCK_BYTES as u64;
        Ok(Answer::of(JoinData {
            done: !is_under_way,
            bytes: of(|s| s.blocks),
            bytes_expected: of(|s| s.blocks_expected),
            unreadable_bytes: of(|s| s.unreadable_blocks),
            failed: if is_under_way { None } else { fs.join_failed() },
        }))
    }
}
