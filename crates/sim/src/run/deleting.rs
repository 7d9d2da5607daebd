//! Checkpoints and snapshots that are deleted as the commands do it.
//!
//! Invariants
//! 1. A snapshot that is deleted goes with its name, both or neither: no state shows it without one.
//! 2. What is in use stays, and is no reason for others to stay.
//! 3. Whoever is told that something is gone, or that there was nothing left to delete, finds it gone after any power cut.

use super::{Check, Run, Step, is_failure};
use crate::subject::Subject;
use nenrin_core::{At, Error};
use nenrin_format::{Cno, Ino};

impl<S: Subject> Run<S> {
    pub(super) fn snapshot_drop(&mut self, cno: u64, name: &[u8], in_use: bool, start: usize) -> Check {
        let is_it = |c: &&nenrin_core::CheckpointInfo| c.cno.0 == cno && c.name.as_deref() == Some(name) && !in_use;
        let there = self.listed.iter().find(is_it).cloned();
        match self.fs()?.snapshot_drop(Cno(cno), name, &|c| in_use && c.0 == cno) {
            Ok(went) if went != there => Err(format!("{went:?} was deleted, and not {there:?}")),
            Ok(went) => {
                self.went(went.map(|c| c.cno.0).as_slice(), start)?;
                Ok(if there.is_some() { Step::Done } else { Step::Denied })
            }
            Err(Error::NotSupported) => Ok(Step::Denied),
            Err(e) if is_failure(&e) => {
                if there.is_some() {
                    self.model()?.checkpoint_gone(cno, start);
                }
                Ok(Step::Failed(e))
            }
            Err(e) => self.answer(Err::<(), _>(e), Ok(())),
        }
    }

    pub(super) fn checkpoints_drop(&mut self, cnos: &[u64], in_use: &[u64], start: usize) -> Check {
        let goes =
            |cno: &&u64| !in_use.contains(cno) && self.listed.iter().any(|c| c.cno.0 == **cno && c.name.is_none());
        let going: Vec<u64> = cnos.iter().filter(goes).copied().collect();
        let asked: Vec<Cno> = cnos.iter().copied().map(Cno).collect();
        let got = self.fs()?.checkpoint_drop_unnamed(&asked, &|c| in_use.contains(&c.0));
        match got {
            // What went before for want of room is not counted.
            Ok(n) if n > going.len() => Err(format!("{n} checkpoints were deleted, of {going:?}")),
            Ok(n) => {
                self.went(&going, start)?;
                Ok(if n > 0 { Step::Done } else { Step::Denied })
            }
            Err(Error::NotSupported) => Ok(Step::Denied),
            Err(e) if is_failure(&e) => {
                for cno in going {
                    self.model()?.checkpoint_gone(cno, start);
                }
                Ok(Step::Failed(e))
            }
            Err(e) => self.answer(Err::<(), _>(e), Ok(())),
        }
    }

    /// These were deleted, and all that was received before is durable, also where none was left to delete.
    fn went(&mut self, cnos: &[u64], start: usize) -> Result<(), String> {
        let end = self.disk.cut_points();
        for cno in cnos {
            self.model()?.checkpoint_gone(*cno, start);
            match self.fs()?.getattr(At::Past(Cno(*cno)), Ino::ROOT) {
                Err(Error::Stale | Error::Checkpoint(_)) => {}
                other => return Err(format!("checkpoint {cno}, which was deleted, answers {other:?}")),
            }
        }
        self.model()?.synced(end);
        self.listed.retain(|c| !cnos.contains(&c.cno.0));
        Ok(())
    }
}
