//! A device of a mounted volume that is replaced, on request of a command.

use super::devices::await_left;
use super::service::Service;
use crate::control::{Answer, JoinData};
use crate::device;
use crate::error::Fail;
use nenrin_core::{JoinStatus, NewDevice};
use nenrin_device::OpenMode;
use nenrin_format::BLOCK_BYTES;
use std::path::Path;

impl Service {
    pub(super) fn replace(&self, old: &str, new: &Path, uuid: [u8; 16]) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let index = device::member(&fs, old)?.index;
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

    /// How far the replacement `uuid` is, or whichever there is where none is named.
    pub(super) fn join_data(&self, uuid: Option<[u8; 16]>) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let is_meant = |s: &JoinStatus| s.replacement.is_some() && (uuid.is_none() || s.uuid == uuid);
        let under_way = fs.join_status();
        let status = under_way.clone().filter(is_meant);
        let is_under_way = status.is_some();
        if !is_under_way {
            self.note_joined();
            self.watch_anew(&fs);
            await_left(&fs);
        }
        // Where it was quick nobody had asked before it was done. Before it is looked who has the place: who gives that has this.
        let last = fs.joined_last().filter(is_meant);
        let is_seated = uuid.is_none_or(|uuid| fs.health().iter().any(|d| d.uuid == uuid));
        let why = fs.join_failed().filter(|_| under_way.is_none() && last.is_some());
        let is_taken_back = !is_seated && why.as_ref().is_none_or(|why| why.contains(ON_REQUEST));
        let failed = if is_seated { why.filter(|_| uuid.is_none()) } else { Some(why.unwrap_or_else(taken_back)) };
        let at = status.or(last);
        let of = |blocks: fn(&JoinStatus) -> u64| at.as_ref().map_or(0, blocks) * BLOCK_BYTES as u64;
        Ok(Answer::of(JoinData {
            done: !is_under_way,
            bytes: of(|s| s.blocks),
            bytes_expected: of(|s| s.blocks_expected),
            unreadable_bytes: of(|s| s.unreadable_blocks),
            failed: failed.filter(|_| !is_under_way),
            taken_back: is_taken_back && !is_under_way,
        }))
    }
}

/// What the volume says of a replacement that was given up for no other reason.
const ON_REQUEST: &str = "given up on request";

/// Why a device has no place that nothing else is known of any more.
fn taken_back() -> String {
    "that was taken back meanwhile".into()
}
