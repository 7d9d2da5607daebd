//! Checkpoints: made, named, dropped, listed and read.

use super::{Check, Run, Step, is_failure};
use crate::ops::Op;
use crate::oracle;
use crate::subject::{Subject, UID};
use crate::tree::Tree;
use crate::walk::walk;
use nenrin_core::{At, CheckpointInfo, Error};
use nenrin_format::{Cno, Ino, Time};

impl<S: Subject> Run<S> {
    pub(super) fn checkpoint_create(&mut self, name: Option<&[u8]>, start: usize) -> Check {
        let taken = name.is_some() && self.listed.iter().any(|c| c.name.as_deref() == name);
        match self.fs()?.checkpoint_create(name) {
            Ok(info) if !taken => {
                if info.name.as_deref() != name || !info.asked {
                    return Err(format!("made {info:?}"));
                }
                let end = self.disk.cut_points();
                let model = self.model()?;
                model.checkpoint(info.cno.0, true, info.name.clone(), start, end);
                model.synced(end);
                self.cuts_known += 1;
                self.reasons.cut(info.cno.0, info.wall.0, self.clock.as_ref());
                self.listed.push(info);
                Ok(Step::Done)
            }
            Err(Error::Checkpoint(_) | Error::Exists) if taken => Ok(Step::Denied),
            Ok(info) => Err(format!("the name was taken, and {info:?} was made")),
            Err(e) if is_failure(&e) => {
                let end = self.disk.cut_points();
                self.model()?.passing_checkpoint(true, name.map(<[u8]>::to_vec), start, end);
                Ok(Step::Failed(e))
            }
            Err(e) => self.answer(Err::<(), _>(e), Ok(())),
        }
    }

    pub(super) fn checkpoint_name(&mut self, cno: u64, name: Option<&[u8]>, start: usize) -> Check {
        // By another one, or this one has another.
        let in_the_way = |c: &CheckpointInfo| c.name.is_some() && (c.cno.0 == cno) != (c.name.as_deref() == name);
        let taken = name.is_some() && self.listed.iter().any(in_the_way);
        match self.fs()?.checkpoint_name(Cno(cno), name) {
            Ok(()) if !taken => {
                // What is cut with it is seen when checkpoints are compared.
                let end = self.disk.cut_points();
                self.model()?.name_checkpoint(cno, name.map(<[u8]>::to_vec), start);
                self.model()?.synced(end);
                if let Some(c) = self.listed.iter_mut().find(|c| c.cno.0 == cno) {
                    c.name = name.map(<[u8]>::to_vec);
                }
                Ok(Step::Done)
            }
            Err(Error::Checkpoint(_) | Error::Exists) if taken => Ok(Step::Denied),
            Ok(()) => Err("the name was taken, and given again".to_owned()),
            Err(e) if is_failure(&e) => {
                let end = self.disk.cut_points();
                if name.is_some() {
                    self.model()?.passing_checkpoint(false, None, start, end);
                }
                self.model()?.name_checkpoint(cno, name.map(<[u8]>::to_vec), start);
                Ok(Step::Failed(e))
            }
            Err(e) => self.answer(Err::<(), _>(e), Ok(())),
        }
    }

    pub(super) fn checkpoint_drop(&mut self, cno: u64, start: usize) -> Check {
        let named = self.listed.iter().any(|c| c.cno.0 == cno && c.name.is_some());
        match self.fs()?.checkpoint_drop(&[Cno(cno)]) {
            Ok(()) if named => Err("a named checkpoint was dropped".to_owned()),
            Ok(()) => {
                let end = self.disk.cut_points();
                self.model()?.checkpoint_gone(cno, start);
                self.model()?.synced(end);
                self.listed.retain(|c| c.cno.0 != cno);
                match self.fs()?.getattr(At::Past(Cno(cno)), Ino::ROOT) {
                    Err(Error::Stale | Error::Checkpoint(_)) => Ok(Step::Done),
                    other => Err(format!("a dropped checkpoint answers {other:?}")),
                }
            }
            Err(Error::Checkpoint(_)) if named => Ok(Step::Denied),
            Err(e) if is_failure(&e) => {
                self.model()?.checkpoint_gone(cno, start);
                Ok(Step::Failed(e))
            }
            Err(e) => self.answer(Err::<(), _>(e), Ok(())),
        }
    }

    /// The list is what it was, but for unnamed ones that time has brought or space has taken.
    pub(super) fn compare_checkpoints(&mut self, op: &Op, start: usize) -> Result<(), String> {
        let now = self.fs()?.checkpoints();
        let cut = self.fs()?.checkpoints_cut();
        if now == self.listed && cut == self.cuts_known {
            return Ok(());
        }
        let end = self.disk.cut_points();
        let before = std::mem::replace(&mut self.listed, now.clone());
        for info in now.iter().filter(|i| !before.iter().any(|b| b.cno == i.cno)) {
            let may_cut = matches!(op, Op::Tick | Op::Remount | Op::CheckpointName { name: Some(_), .. });
            if info.asked || info.name.is_some() || !may_cut {
                return Err(format!("{info:?} came from nowhere"));
            }
            self.cuts_known += 1;
            self.reasons.cut(info.cno.0, info.wall.0, self.clock.as_ref());
            self.model()?.checkpoint(info.cno.0, false, None, start, end);
        }
        while self.cuts_known < cut {
            // Cut and let go again within the call; a power cut in between can show it.
            self.cuts_known += 1;
            self.model()?.passing_checkpoint(false, None, start, end);
        }
        let is_gone = |c: &&CheckpointInfo| c.name.is_none() && !now.iter().any(|n| n.cno == c.cno);
        let gone: Vec<u64> = before.iter().filter(is_gone).map(|c| c.cno.0).collect();
        self.judge_gone(op, &gone, &before, &now)?;
        for old in before {
            match now.iter().find(|i| i.cno == old.cno) {
                Some(new) if new.name == old.name && new.wall == old.wall => {}
                Some(new) => return Err(format!("{old:?} turned into {new:?}")),
                None if old.name.is_some() => return Err(format!("{old:?} is gone")),
                None => self.model()?.checkpoint_gone(old.cno.0, start),
            }
        }
        Ok(())
    }

    /// A file gets back what a checkpoint shows of a file.
    pub(super) fn copy_past(
        &mut self,
        cno: u64,
        from: (u64, u64),
        to: (u64, u64),
        bytes: u64,
        start: usize,
        now: Time,
    ) -> Check {
        let at = At::Past(Cno(cno));
        // What it shows is judged where checkpoints are read; here the copy must be the same.
        let source = match self.fs()?.read(at, Ino(from.0), from.1, bytes as usize) {
            Ok(data) => data,
            // It was let go for want of room, or shows no such file.
            Err(Error::Stale | Error::NotFound | Error::IsDirectory | Error::BadArgument(_)) => return Ok(Step::Done),
            Err(e) => return self.answer(Err::<(), _>(e), Ok(())),
        };
        let got = self.fs()?.copy_past(Cno(cno), (Ino(from.0), from.1), (Ino(to.0), to.1), bytes, UID);
        match &got {
            Ok(n) if *n as usize <= source.len() && (*n > 0 || source.is_empty()) => {
                let data = source.get(..*n as usize).unwrap_or_default().to_vec();
                if data.is_empty() {
                    return Ok(Step::Done);
                }
                self.content(got, to.0, start, |t| t.write(to.0, to.1, &data, now))
            }
            Ok(n) => Err(format!("{n} bytes copied of {}", source.len())),
            Err(Error::NotSupported | Error::Stale) => Ok(Step::Denied),
            Err(_) => self.answer(got, Ok(())),
        }
    }

    /// What landmarks keep is what it was.
    pub(super) fn judge_landmarks(&self) -> Result<(), String> {
        let (fs, era) = (self.fs()?, self.eras.last().ok_or("no model")?);
        oracle::judge_landmarks(fs, &era.1).map(drop)
    }

    pub(super) fn read_past(&mut self, cno: u64) -> Check {
        let Some(info) = self.listed.iter().find(|c| c.cno.0 == cno).cloned() else { return Ok(Step::Done) };
        let found = walk(self.fs()?, At::Past(Cno(cno)), None).map_err(|e| format!("checkpoint {cno}: {e}"))?;
        let shed = self.fs()?.shed().map_err(|e| format!("what was shed: {e}"))?;
        let model = self.model()?;
        let log = model.checkpoints.get(&cno).ok_or("checkpoint without a log")?;
        match oracle::judge_past(&info, log, &found, &shed) {
            Ok(()) => self.judge_landmarks().map(|()| Step::Done),
            Err(e) => {
                let mut tree = Tree::default();
                walk(self.fs()?, At::Past(Cno(cno)), Some(&mut tree))?;
                Err(format!("{e}\n{}", oracle::difference(self.model()?, &tree)))
            }
        }
    }
}
