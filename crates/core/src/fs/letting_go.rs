//! What lets history go where room is short, and room for that.
//!
//! Invariants
//! 1. A sweep takes no room that emptying index segments needs, unless nothing else makes any.
//! 2. What cannot be read is passed over and told; others go all the same.

use super::Fs;
use super::background::ToSweep;
use super::crowded::Held;
use super::guard::{Awaited, Guard};
use crate::{Error, Result};
use nenrin_format::records::Record;

/// Landmarks that one record lets go when room is short.
const LANDMARKS_AT_ONCE: usize = 512;
/// Items of history swept by one record.
const SWEEP_ITEMS: u32 = 4096;
/// How often index segments are emptied before a sweep goes on.
const TIDIED_MAX: u32 = 8;

impl Fs {
    /// Lets history go: that of the heaviest files; where there are none, the oldest unnamed checkpoints and what only they
    /// saw. False when that could not be freed.
    pub(super) fn shed_history(&self) -> Result<bool> {
        // Where history cannot be read there may be damage; what can be let go without reading it, is.
        match self.shed_heavy() {
            Ok(true) => return Ok(true),
            Err(e @ (Error::Failed(_) | Error::ReadOnly)) => return Err(e),
            Ok(false) | Err(_) => {}
        }
        let mut inner = self.lock_to_change()?;
        inner.shed_oldest(self, Held::Last)?;
        let landmarks = inner.state.landmarks.len().div_ceil(2).min(LANDMARKS_AT_ONCE);
        if landmarks > 0 {
            let which = inner.state.landmarks.iter().take(landmarks).map(|(at, _)| *at).collect();
            inner.log(&Record::DropLandmarks { which }, self.clock.monotonic_nanos())?;
        }
        inner.sweep_wanted = true;
        let before = inner.state.history_blocks;
        drop(inner);
        let all = self.sweep_released()?;
        let mut inner = self.lock();
        if !all && inner.state.history_blocks >= before {
            inner.shed_in_vain();
        }
        Ok(all)
    }

    /// Frees what was let go and was not swept yet; whether that gained something, or all of it is free.
    pub(super) fn sweep_gains(&self) -> Result<bool> {
        let before = self.lock().state.history_blocks;
        Ok(self.sweep_released()? || self.lock().state.history_blocks < before)
    }

    /// Frees what was let go and was not swept yet; whether all of it. In the background it would go by and by, but df counts it
    /// already.
    pub(super) fn sweep_released(&self) -> Result<bool> {
        let (what, mut unread) = self.lock_to_change()?.take_released();
        let mut all = true;
        let mut ended = Ok(());
        let awaited = Awaited(self);
        for range in what {
            match self.sweep_for_room(range) {
                Ok(done) => all &= done,
                Err(e @ (Error::Failed(_) | Error::ReadOnly)) => ended = Err(e),
                // Others can be read.
                Err(_) => unread = true,
            }
            if !all || ended.is_err() {
                break;
            }
        }
        drop(awaited);
        let mut inner = self.lock();
        inner.sweeping = false;
        // In the background it is all done again; that tells of what cannot be read, too.
        if unread {
            inner.rest_sweep(self.clock.monotonic_nanos());
        } else if !all || ended.is_err() {
            inner.sweep_wanted = true;
        }
        ended.map(|()| all && !unread)
    }

    /// Writes out what waits, so that steps which make nodes of the index dirty have room for them; `None` where there is none after that
    /// either.
    pub(super) fn room_for_nodes(&self) -> Result<Option<Guard<'_>>> {
        self.sync_received(false)?;
        self.promote_for_room()?;
        let inner = self.lock_to_change()?;
        Ok((inner.nodes_to_spare(self) > 0).then_some(inner))
    }

    /// The same for steps that let go of what lies all over the index: what became garbage is got back before they make more of it. Where
    /// that gained nothing, not again while nothing changes: a sweep that waits for room costs the device nothing.
    pub(super) fn room_to_sweep(&self) -> Result<Option<Guard<'_>>> {
        let inner = self.lock_to_change()?;
        if inner.sweeps_in_vain() {
            return Ok(None);
        }
        drop(inner);
        drop(self.room_for_nodes()?);
        for _ in 0..TIDIED_MAX {
            let mut inner = self.lock_to_change()?;
            let (room, before) = (inner.nodes_to_let_go(self), inner.blocks_for_index(self));
            if room > 0 {
                return Ok(Some(inner));
            }
            inner.swept_in_vain = Some((inner.picture_of_room(), self.clock.monotonic_nanos()));
            drop(inner);
            if self.touch_sparse()? == 0 {
                break;
            }
            self.promote_for_room()?;
            let mut inner = self.lock_to_change()?;
            if inner.blocks_for_index(self) >= before {
                inner.swept_in_vain = Some((inner.picture_of_room(), self.clock.monotonic_nanos()));
                break;
            }
        }
        Ok(None)
    }

    /// Sweeps this much; false when there was no room left to do it in. What cannot be read is passed over, and told then.
    pub(super) fn sweep_for_room(&self, what: ToSweep) -> Result<bool> {
        let (mut from, mut lost) = (Some(what.from), None);
        while let Some(key) = from.filter(|key| key.ino < what.behind.0) {
            let mut inner = self.lock_to_change()?;
            if inner.nodes_to_let_go(self) == 0 || inner.dirty_nodes() >= self.options.dirty_nodes_max {
                drop(inner);
                let Some(with_room) = self.room_to_sweep()? else { return Ok(false) };
                inner = with_room;
            }
            let looked = self.sweep_step(&mut inner, what.tree, key, SWEEP_ITEMS)?;
            from = looked.go_on;
            lost = lost.or(looked.lost);
        }
        lost.map_or(Ok(true), Err)
    }
}
