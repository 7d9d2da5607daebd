//! P7: what may be refused for want of room.
//!
//! Before each call df is asked. A refusal is right only where it told less than the call takes and
//! [`MARGIN_SEGMENTS`] besides. What makes room is never refused, but for removing where snapshots keep
//! what is removed: once they are deleted, which is not refused either, it works.

use super::{Run, Step};
use crate::hash;
use crate::model::Model;
use crate::ops::Op;
use crate::subject::Subject;
use nenrin_core::AllocateMode;
use nenrin_format::{BLOCK_BYTES, NODE_BYTES};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// What df may tell beyond what there is: what cleaning leaves in segments, what the index takes until it is
/// written, and what open segments hold unused.
const MARGIN_SEGMENTS: u64 = 8;
/// And where space is reserved: two segments are kept besides, and nothing is cleaned for it before it is refused.
const RESERVING_SEGMENTS: u64 = MARGIN_SEGMENTS + 2;
/// So many times as much where nodes are small: as often as such a device is larger than others.
const WIDE_SHARE: u64 = 6;

/// What a call asks of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    /// So many blocks at most, about.
    Room(u64),
    /// To remove something.
    Removal,
    /// Nothing that could be refused: to read, to sync, to let the past go, to clean.
    Nothing,
}

/// What was known before a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    asks: Asks,
    available: u64,
    margin: u64,
}

/// Blocks of which `bytes` bytes at `offset` cover at least a part, with their share of summaries.
fn covering(offset: u64, bytes: u64) -> u64 {
    let blocks = offset.saturating_add(bytes).div_ceil(BLOCK) - offset / BLOCK;
    blocks + blocks / 16 + 2
}

fn asks(op: &Op, model: &Model) -> Asks {
    let size = |ino: u64| model.tree.inode(ino).map_or(0, |i| i.content.size());
    match op {
        Op::Create { target, .. } => Asks::Room(2 + target.len() as u64 / BLOCK),
        Op::CreateWith { .. } => Asks::Room(3),
        Op::Tmpfile { .. } | Op::Link { .. } | Op::Rename { .. } | Op::CheckpointCreate { .. } => Asks::Room(2),
        Op::SetXattr { value, .. } => Asks::Room(2 + value.len() as u64 / BLOCK),
        Op::Write { offset, bytes, .. } => Asks::Room(covering(*offset, *bytes as u64)),
        Op::WritePages { offset, data, .. } => Asks::Room(covering(*offset, data.len() as u64)),
        Op::SetAttr { ino, set } => match set.size {
            Some(to) if to < size(*ino) => Asks::Removal,
            _ => Asks::Room(2),
        },
        Op::Allocate { mode, offset, bytes, .. } if *mode != AllocateMode::Punch => {
            let blocks = covering(*offset, *bytes);
            Asks::Room(blocks + blocks / 8)
        }
        Op::Unlink { .. } | Op::Rmdir { .. } | Op::RemoveXattr { .. } | Op::Allocate { .. } => Asks::Removal,
        Op::CopyRange { from, from_offset, to_offset, bytes, .. } => {
            Asks::Room(covering(*to_offset, (*bytes).min(size(*from).saturating_sub(*from_offset))))
        }
        Op::CopyPast { to_offset, bytes, .. } => Asks::Room(covering(*to_offset, *bytes)),
        _ => Asks::Nothing,
    }
}

impl<S: Subject> Run<S> {
    /// What df tells before a call, where the file system has one.
    pub(super) fn look_at_room(&mut self, op: &Op, start: usize) -> Result<Option<Before>, String> {
        let asks = asks(op, self.model()?);
        let Some((available, segment_blocks)) = self.fs()?.room() else { return Ok(None) };
        let reserves = matches!(op, Op::Allocate { mode, .. } if *mode != AllocateMode::Punch);
        let segments = if reserves { RESERVING_SEGMENTS } else { MARGIN_SEGMENTS };
        // Nodes that hold little take as much room as others until they are written.
        let nodes = if self.options.node_bytes_max < NODE_BYTES { WIDE_SHARE } else { 1 };
        let before = Before { asks, available, margin: nodes * segments * segment_blocks };
        let wanted = if let Asks::Room(blocks) = asks { blocks } else { 0 };
        let (shed, is_laying) = (self.fs()?.shed_blocks(), self.fs()?.is_laying());
        // Of what is available the part that truncations will free which are held back is had by ending that.
        let held = self.model()?.held_blocks();
        let had = available.saturating_sub(held);
        let counted = if matches!(asks, Asks::Room(_)) { had } else { available };
        self.reasons.note_room(wanted + before.margin, (counted, shed), is_laying, self.clients.are_busy());
        if had < wanted + before.margin {
            self.model()?.end_holds_perhaps(start);
        }
        Ok(Some(before))
    }

    /// Whether a refusal was right.
    pub(super) fn judge_refusal(&self, step: &Step, before: Option<Before>) -> Result<(), String> {
        let (Step::Refused, Some(before)) = (step, before) else { return Ok(()) };
        let Before { asks, available, margin } = before;
        let named = self.listed.iter().any(|c| c.name.is_some());
        match asks {
            Asks::Nothing => Err("refused for want of room, and takes none".to_owned()),
            Asks::Removal if !named => Err("removing was refused, and no snapshot keeps anything".to_owned()),
            Asks::Removal if available >= margin => {
                Err(format!("removing was refused with {available} blocks available"))
            }
            Asks::Room(blocks) if available >= blocks + margin => {
                Err(format!("refused, with {available} blocks available, of which it takes {blocks}"))
            }
            Asks::Removal | Asks::Room(_) => Ok(()),
        }
    }

    /// Now and then, after a removal was refused.
    pub(super) fn perhaps_way_out(&mut self, op: &Op, step: &Step) -> Result<(), String> {
        let refused = matches!(step, Step::Refused) && asks(op, self.model()?) == Asks::Removal;
        if refused && hash::of_words(&[self.digest, 31]) % 2 == 0 { self.way_out(op) } else { Ok(()) }
    }

    /// The way out of a volume on which snapshots keep what is removed: they can be deleted, and then it works.
    ///
    /// # Errors
    /// When it does not.
    pub fn way_out(&mut self, op: &Op) -> Result<(), String> {
        let named: Vec<u64> = self.listed.iter().filter(|c| c.name.is_some()).map(|c| c.cno.0).collect();
        for cno in named {
            for op in [Op::CheckpointName { cno, name: None }, Op::CheckpointDrop { cno }] {
                let step = self.step(&op).map_err(|e| format!("on the way out, {op:?}: {e}"))?;
                if !matches!(step, Step::Done) {
                    return Err(format!("on the way out, {op:?}: {step:?}"));
                }
            }
        }
        match self.step(op).map_err(|e| format!("on the way out, {op:?}: {e}"))? {
            Step::Done | Step::Denied => Ok(()),
            other => Err(format!("without snapshots, {op:?}: {other:?}")),
        }
    }
}
