//! P7: a write to space that fallocate reserved is never refused.
//!
//! The run knows of the files made since the last mount that had to find its
//! state which blocks are reserved and were never touched otherwise: of these
//! it is certain, of others the file system may know better.

use super::{Run, Step};
use crate::ops::Op;
use crate::subject::Subject;
use nenrin_core::AllocateMode;
use nenrin_format::BLOCK_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks of one file.
#[derive(Debug, Default)]
struct Blocks {
    reserved: BTreeSet<u64>,
    /// Written, or cut in part, at some time.
    touched: BTreeSet<u64>,
}

impl Blocks {
    fn touch(&mut self, blocks: Range<u64>) {
        for b in blocks {
            self.reserved.remove(&b);
            self.touched.insert(b);
        }
    }
    fn write(&mut self, offset: u64, bytes: usize, step: &Step) -> Result<(), String> {
        let blocks = touched(offset, bytes as u64);
        let promised = bytes > 0 && blocks.clone().all(|b| self.reserved.contains(&b));
        if promised && matches!(step, Step::Refused) {
            return Err("a write to reserved space was refused".to_owned());
        }
        self.touch(blocks);
        Ok(())
    }
    fn free(&mut self, blocks: Range<u64>) {
        self.reserved.retain(|b| !blocks.contains(b));
    }
}

/// What is known to be reserved, by inode.
#[derive(Debug, Default)]
pub(super) struct Promises(BTreeMap<u64, Blocks>);

fn touched(offset: u64, bytes: u64) -> Range<u64> {
    offset / BLOCK..offset.saturating_add(bytes).div_ceil(BLOCK)
}

impl Promises {
    pub(super) fn made(&mut self, ino: u64) {
        self.0.insert(ino, Blocks::default());
    }

    /// Notes what a call did.
    pub(super) fn note(&mut self, op: &Op, step: &Step) -> Result<(), String> {
        let done = matches!(step, Step::Done);
        let (Op::Write { ino, .. }
        | Op::WritePages { ino, .. }
        | Op::Allocate { ino, .. }
        | Op::SetAttr { ino, .. }
        | Op::CopyRange { to: ino, .. }
        | Op::CopyPast { to: ino, .. }) = op
        else {
            return Ok(());
        };
        let Some(file) = self.0.get_mut(ino) else { return Ok(()) };
        match op {
            Op::Write { offset, bytes, .. } => file.write(*offset, *bytes, step)?,
            Op::WritePages { offset, data, .. } => file.write(*offset, data.len(), step)?,
            Op::Allocate { mode: AllocateMode::Reserve | AllocateMode::ReserveKeepSize, offset, bytes, .. } if done => {
                let fresh = touched(*offset, *bytes).filter(|b| !file.touched.contains(b));
                file.reserved.extend(fresh);
            }
            Op::Allocate { mode: AllocateMode::Zero | AllocateMode::ZeroKeepSize, offset, bytes, .. } => {
                let all = touched(*offset, *bytes);
                // What held something may hold zeros.
                file.touch(all.start..(all.start + 1).min(all.end));
                file.touch(all.end.saturating_sub(1).max(all.start)..all.end);
                if done {
                    let fresh: Vec<u64> = all.filter(|b| !file.touched.contains(b)).collect();
                    file.reserved.extend(fresh);
                }
            }
            Op::Allocate { offset, bytes, .. } => {
                let all = touched(*offset, *bytes);
                // Cut in part, they may have become content.
                file.touch(all.start..(all.start + 1).min(all.end));
                file.touch(all.end.saturating_sub(1).max(all.start)..all.end);
                file.free(all);
            }
            Op::SetAttr { set, .. } => {
                if let Some(size) = set.size {
                    file.touch(size / BLOCK..size.div_ceil(BLOCK));
                    file.free(size / BLOCK..u64::MAX);
                }
            }
            Op::CopyRange { to_offset, bytes, .. } | Op::CopyPast { to_offset, bytes, .. } => {
                let all = touched(*to_offset, (*bytes).min(1 << 31));
                file.free(to_offset / BLOCK..u64::MAX);
                file.touched.extend(all.start..all.end.min(all.start + (1 << 14)));
            }
            _ => {}
        }
        Ok(())
    }
}

impl<S: Subject> Run<S> {
    pub(super) fn note_promises(&mut self, op: &Op, step: &Step) -> Result<(), String> {
        match (op, step) {
            (Op::Create { .. } | Op::Tmpfile { .. }, Step::Done) => {
                let ino = self.newest_inode()?;
                self.promises.made(ino);
            }
            (Op::Kill, _) => self.promises = Promises::default(),
            _ => self.promises.note(op, step)?,
        }
        Ok(())
    }
}
