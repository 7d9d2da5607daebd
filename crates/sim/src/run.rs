//! Carries out a workload on a file system and on the model, call by call, and
//! compares every answer.
//!
//! Invariants
//! 1. A call that reports an error has changed nothing (checked by what later
//!    calls and the final walk see).
//! 2. `eras` holds one model per mount that had to find its state in the log;
//!    the last one is live. Each knows from which device operation on its
//!    starting state is durable.

use crate::clock::VirtualClock;
use crate::content::pattern;
use crate::hash;
use crate::model::{Mark, Model};
use crate::ops::Op;
use crate::oracle::{self, Rules};
use crate::subject::Subject;
use crate::tree::{Fresh, Outcome, Tree};
use crate::walk::{is_past_end, walk};
use crate::workload::Workload;
use nenrin_core::{
    At, Attr, Barrier, CheckpointInfo, Clock, Error, FileKind, MountOptions, NewInode, Order, RenameMode, Seek, SetAttr,
};
use nenrin_device::{BlockDevice, CrashDisk};
use nenrin_format::{Cno, Ino, Time};
use std::collections::{BTreeMap, VecDeque};
use std::mem::discriminant;
use std::sync::{Arc, Mutex, PoisonError};

/// How a call ended.
#[derive(Debug)]
pub enum Step {
    /// Well, as the model says.
    Done,
    /// With the error that the model says.
    Denied,
    /// No space.
    Refused,
    /// The volume has failed and says so.
    Failed(Error),
}

/// What keeps a mounted file system and its model together.
pub struct Run<S> {
    fs: Option<S>,
    /// What the file system is told to write to.
    device: Arc<dyn BlockDevice>,
    /// What counts its operations.
    pub disk: Arc<CrashDisk>,
    /// Its time.
    pub clock: Arc<VirtualClock>,
    options: MountOptions,
    /// Device operation from which on the state is durable, and the model.
    pub eras: Vec<(usize, Model)>,
    marks: VecDeque<(u64, Mark)>,
    listed: Vec<CheckpointInfo>,
    /// Checkpoints cut in this mount that the model knows of.
    cuts_known: u64,
    /// Hash of all calls and answers.
    pub digest: u64,
    /// Calls by kind: made, and refused.
    pub calls: BTreeMap<&'static str, (u64, u64)>,
    /// What the file system has done inside, over all mounts.
    pub activity: BTreeMap<&'static str, u64>,
    /// The last calls, for a failure.
    pub trace: Option<Vec<String>>,
}

type Check = Result<Step, String>;

impl<S: Subject> Run<S> {
    /// Formats `disk` and mounts it through `device`.
    ///
    /// # Errors
    /// What went wrong.
    pub fn format(
        disk: Arc<CrashDisk>,
        device: Arc<dyn BlockDevice>,
        segment_blocks: u32,
        options: MountOptions,
    ) -> Result<Self, String> {
        let clock = Arc::new(VirtualClock::new());
        let (plain, time): (Arc<dyn BlockDevice>, Arc<dyn Clock>) = (disk.clone(), clock.clone());
        S::mkfs(&plain, &time, segment_blocks).map_err(|e| format!("mkfs: {e}"))?;
        clock.advance(1_000_000);
        let durable = disk.cut_points();
        Self::mount(disk, device, clock, options, Some(durable))
    }

    /// Mounts what is on `disk` and takes what is found for granted, from
    /// `durable` device operations on or, without that, as soon as it is mounted.
    ///
    /// # Errors
    /// What went wrong.
    pub fn mount(
        disk: Arc<CrashDisk>,
        device: Arc<dyn BlockDevice>,
        clock: Arc<VirtualClock>,
        options: MountOptions,
        durable: Option<usize>,
    ) -> Result<Self, String> {
        let mut run = Self {
            fs: None,
            device,
            disk,
            clock,
            options,
            eras: Vec::new(),
            marks: VecDeque::new(),
            listed: Vec::new(),
            cuts_known: 0,
            digest: 0,
            calls: BTreeMap::new(),
            activity: BTreeMap::new(),
            trace: None,
        };
        run.open()?;
        let durable = durable.unwrap_or_else(|| run.disk.cut_points());
        run.adopt(durable)?;
        Ok(run)
    }

    fn open(&mut self) -> Result<(), String> {
        let fs = S::open(Arc::clone(&self.device), self.clock.clone(), self.options.clone());
        self.fs = Some(fs.map_err(|e| format!("open: {e}"))?);
        self.cuts_known = 0;
        Ok(())
    }

    /// A new era begins with what the mount shows.
    fn adopt(&mut self, durable: usize) -> Result<(), String> {
        let mut tree = Tree::default();
        let fs = self.fs()?;
        walk(fs, At::Live, Some(&mut tree))?;
        let mut model = Model::new(tree, durable);
        let listed = fs.checkpoints();
        for info in &listed {
            let found = walk(fs, At::Past(info.cno), None).map_err(|e| format!("checkpoint {}: {e}", info.cno))?;
            model.adopt_checkpoint(info, &found, durable);
        }
        self.listed = listed;
        self.marks.clear();
        self.eras.push((durable, model));
        Ok(())
    }

    /// The mounted file system.
    ///
    /// # Errors
    /// When it is not mounted.
    pub fn fs(&self) -> Result<&S, String> {
        self.fs.as_ref().ok_or_else(|| "not mounted".to_owned())
    }

    /// The live model.
    ///
    /// # Errors
    /// When there is none.
    pub fn model(&mut self) -> Result<&mut Model, String> {
        self.eras.last_mut().map(|e| &mut e.1).ok_or_else(|| "no model".to_owned())
    }

    /// Mounts again after a close and compares everything.
    ///
    /// # Errors
    /// What is not as it was.
    pub fn reopen(&mut self) -> Result<(), String> {
        let start = self.disk.cut_points();
        self.compare_after_close(start)
    }

    /// Lets go of the file system without a word, as a killed process does.
    pub fn forget(&mut self) {
        if let Some(fs) = self.fs.take() {
            for (what, n) in fs.activity() {
                *self.activity.entry(what).or_default() += n;
            }
        }
    }

    /// Runs `steps` steps of `workload`. Stops early when the volume fails.
    ///
    /// # Errors
    /// The first answer that was wrong.
    pub fn steps(&mut self, workload: &mut Workload, steps: usize) -> Result<Option<Error>, String> {
        for n in 0..steps {
            let op = workload.next(self.model()?);
            let handles_lost = matches!(op, Op::Remount | Op::Kill);
            let before = self.disk.cut_points();
            let step = self.step(&op).map_err(|e| format!("call {n} {op:?}: {e}"))?;
            if let Some(trace) = &mut self.trace {
                trace.push(format!("{before}..{} {op:?}: {step:?}", self.disk.cut_points()));
            }
            if handles_lost {
                workload.handles_lost();
            }
            if let (Op::Tmpfile { .. }, Step::Done) = (&op, &step)
                && let Some((ino, _)) = self.model()?.tree.inodes.last_key_value()
            {
                workload.opened(*ino);
            }
            if let Step::Failed(e) = step {
                return Ok(Some(e));
            }
        }
        Ok(None)
    }

    /// One call.
    ///
    /// # Errors
    /// When the answer is not the model's.
    pub fn step(&mut self, op: &Op) -> Check {
        self.clock.advance(10_000);
        let start = self.disk.cut_points();
        self.model()?.begin(start);
        let step = self.dispatch(op, start)?;
        if matches!(step, Step::Failed(_)) {
            let now = self.fs()?.checkpoints();
            for old in std::mem::take(&mut self.listed) {
                if !now.iter().any(|c| c.cno == old.cno) {
                    self.model()?.checkpoint_gone(old.cno.0, start);
                }
            }
        } else {
            self.compare_checkpoints(op, start)?;
        }
        let count = self.calls.entry(op.kind()).or_default();
        count.0 += 1;
        count.1 += u64::from(matches!(step, Step::Refused));
        let sum = self.model()?.tree.sum();
        let end = self.disk.cut_points() as u64;
        let kind = hash::of_bytes(0, op.kind().as_bytes());
        self.digest = hash::of_words(&[self.digest, kind, start as u64, end, sum]);
        Ok(step)
    }

    fn dispatch(&mut self, op: &Op, start: usize) -> Check {
        let now = self.clock.wall();
        match op {
            Op::Create { .. } | Op::Tmpfile { .. } => self.create(op, start, now),
            Op::Link { ino, parent, name } => {
                let got = self.fs()?.link(Ino(*ino), Ino(*parent), name).map(drop);
                let open = self.model()?.tree.inode(*ino).is_ok_and(|i| i.uses > 0);
                let step = self.namespace(got, start, &[*ino, *parent], |t| t.link(*ino, *parent, name, now))?;
                if matches!(step, Step::Done) {
                    self.model()?.carry(*ino, start, open);
                }
                Ok(step)
            }
            Op::Unlink { parent, name } => {
                let got = self.fs()?.unlink(Ino(*parent), name);
                let ino = self.entry(*parent, name)?.unwrap_or(0);
                self.namespace(got, start, &[ino, *parent], |t| t.unlink(*parent, name, now).map(drop))
            }
            Op::Rmdir { parent, name } => {
                let got = self.fs()?.rmdir(Ino(*parent), name);
                let ino = self.entry(*parent, name)?.unwrap_or(0);
                self.namespace(got, start, &[ino, *parent], |t| t.rmdir(*parent, name, now).map(drop))
            }
            Op::Rename { from, old, to, new, mode } => self.rename((*from, old), (*to, new), *mode, start, now),
            Op::SetAttr { ino, set } => self.setattr(*ino, set, start, now),
            Op::SetXattr { ino, name, value, mode } => {
                let got = self.fs()?.setxattr(Ino(*ino), name, value, *mode);
                let step = self.namespace(got, start, &[*ino], |t| t.setxattr(*ino, name, value, *mode, now))?;
                self.compare_xattr(*ino, name)?;
                Ok(step)
            }
            Op::RemoveXattr { ino, name } => {
                let got = self.fs()?.removexattr(Ino(*ino), name);
                let step = self.namespace(got, start, &[*ino], |t| t.removexattr(*ino, name, now))?;
                self.compare_xattr(*ino, name)?;
                Ok(step)
            }
            Op::Write { ino, offset, bytes, id } => {
                self.write(*ino, *offset, &pattern(*id, *offset, *bytes), start, now)
            }
            Op::Allocate { ino, mode, offset, bytes } => {
                let got = self.fs()?.allocate(Ino(*ino), *mode, *offset, *bytes);
                self.content(got, *ino, start, |t| t.allocate(*ino, *mode, *offset, *bytes, now))
            }
            Op::CopyRange { from, from_offset, to, to_offset, bytes } => {
                self.copy((*from, *from_offset), (*to, *to_offset), *bytes, start, now)
            }
            Op::Open { ino } => {
                self.fs()?.retain(Ino(*ino));
                self.model()?.tree.retain(*ino);
                Ok(Step::Done)
            }
            Op::Close { ino } => {
                let got = self.fs()?.flush(Ino(*ino));
                self.fs()?.release(Ino(*ino));
                let model = self.model()?;
                model.flush(*ino, start);
                model.tree.release(*ino);
                self.answer(got, Ok(()))
            }
            Op::Release { ino } => {
                self.fs()?.release(Ino(*ino));
                self.model()?.tree.release(*ino);
                Ok(Step::Done)
            }
            Op::Flush { ino } => {
                let got = self.fs()?.flush(Ino(*ino));
                self.model()?.flush(*ino, start);
                self.answer(got, Ok(()))
            }
            Op::Fsync { ino, callback } => self.fsync(*ino, *callback, start),
            Op::SyncAll => {
                self.model()?.end_holds(start);
                let got = self.fs()?.sync_all();
                let step = self.answer(got, Ok(()))?;
                if matches!(step, Step::Done) {
                    let end = self.disk.cut_points();
                    self.model()?.synced(end);
                }
                Ok(step)
            }
            Op::CheckpointCreate { name } => self.checkpoint_create(name.as_deref(), start),
            Op::CheckpointName { cno, name } => self.checkpoint_name(*cno, name.as_deref(), start),
            Op::CheckpointDrop { cno } => self.checkpoint_drop(*cno, start),
            Op::Advance { nanos } => {
                let mark = (self.clock.monotonic_nanos(), self.model()?.mark());
                self.marks.push_back(mark);
                self.clock.advance(*nanos);
                Ok(Step::Done)
            }
            Op::Jump { nanos } => {
                self.clock.jump(*nanos);
                Ok(Step::Done)
            }
            Op::Tick => self.tick(start),
            Op::Read { ino, offset, bytes } => {
                let got = self.fs()?.read(At::Live, Ino(*ino), *offset, *bytes);
                let want = self.model()?.tree.inode(*ino).map(|i| i.content.read(*offset, *bytes));
                self.same_bytes(got, want)
            }
            Op::Seek { ino, offset } => self.seek(*ino, *offset),
            Op::List { dir } => self.list(*dir),
            Op::ReadPast { cno } => self.read_past(*cno),
            Op::Remount => self.remount(start),
            Op::Kill => self.kill(),
        }
    }

    // -- comparing answers

    fn answer<A, B>(&self, got: Result<A, Error>, want: Outcome<B>) -> Check {
        match (got, want) {
            (Ok(_), Ok(_)) => Ok(Step::Done),
            (Err(e), _) if is_failure(&e) => Ok(Step::Failed(e)),
            (Err(Error::NoSpace), _) => Ok(Step::Refused),
            (Err(a), Err(b)) if discriminant(&a) == discriminant(&b) => Ok(Step::Denied),
            (Err(Error::Stale | Error::NotFound), Err(Error::NotFound)) => Ok(Step::Denied),
            // Which of two reasons is named first is left to the implementation.
            (Err(Error::BadArgument(_)), Err(_)) => Ok(Step::Denied),
            (Ok(_), Err(e)) => Err(format!("succeeded and should have failed: {e}")),
            (Err(e), Ok(_)) => Err(format!("failed and should not have: {e:?}")),
            (Err(a), Err(b)) => Err(format!("failed with {a:?} instead of {b:?}")),
        }
    }

    fn same_bytes(&self, got: Result<Vec<u8>, Error>, want: Outcome<Vec<u8>>) -> Check {
        if let (Ok(a), Ok(b)) = (&got, &want)
            && a != b
        {
            let at = a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(a.len().min(b.len()));
            return Err(format!("other bytes: {} instead of {}, first difference at {at}", a.len(), b.len()));
        }
        self.answer(got, want)
    }

    fn namespace(
        &mut self,
        got: Result<(), Error>,
        start: usize,
        inodes: &[u64],
        f: impl FnOnce(&mut Tree) -> Outcome<()>,
    ) -> Check {
        if matches!(got, Err(Error::NoSpace | Error::Failed(_) | Error::Device(_))) {
            return self.answer(got, Ok(()));
        }
        let want = self.model()?.change_namespace(start, inodes, f);
        let step = self.answer(got, want)?;
        for ino in inodes {
            self.compare_attr(*ino)?;
        }
        Ok(step)
    }

    fn content<A>(
        &mut self,
        got: Result<A, Error>,
        ino: u64,
        start: usize,
        f: impl FnOnce(&mut Tree) -> Outcome<()>,
    ) -> Check {
        if matches!(got, Err(Error::NoSpace | Error::Failed(_) | Error::Device(_))) {
            return self.answer(got, Ok(()));
        }
        let want = self.model()?.change_content(start, ino, f);
        let step = self.answer(got, want)?;
        self.compare_attr(ino)?;
        Ok(step)
    }

    /// Attributes as the model has them, or gone as in the model.
    fn compare_attr(&mut self, ino: u64) -> Result<(), String> {
        if ino == 0 {
            return Ok(());
        }
        let got = self.fs()?.getattr(At::Live, Ino(ino));
        match (got, self.model()?.tree.inode(ino)) {
            (Ok(a), Ok(i)) => {
                let size = if a.kind() == FileKind::Directory { a.size } else { i.attr.size };
                let want = Attr { blocks_512: a.blocks_512, size, ..i.attr };
                if a == want { Ok(()) } else { Err(format!("attributes {a:?}, should be {want:?}")) }
            }
            (Err(Error::NotFound | Error::Stale), Err(_)) => Ok(()),
            (Ok(a), Err(_)) => Err(format!("an inode that should be gone is there: {a:?}")),
            (Err(e), Ok(i)) => Err(format!("inode {ino} is gone ({e}), should be {:?}", i.attr)),
            (Err(e), Err(_)) => Err(format!("inode {ino}: {e:?} instead of not found")),
        }
    }

    fn compare_xattr(&mut self, ino: u64, name: &[u8]) -> Result<(), String> {
        let got = self.fs()?.getxattr(At::Live, Ino(ino), name).ok();
        let want = self.model()?.tree.inode(ino).ok().and_then(|i| i.xattrs.get(name).cloned());
        if got == want { Ok(()) } else { Err(format!("the attribute of inode {ino} is {got:?}, should be {want:?}")) }
    }

    fn entry(&mut self, dir: u64, name: &[u8]) -> Result<Option<u64>, String> {
        Ok(self.model()?.tree.inodes.get(&dir).and_then(|d| d.entries.get(name).copied()))
    }

    // -- calls that need more than one line

    fn create(&mut self, op: &Op, start: usize, now: Time) -> Check {
        let (place, mode, uid, gid, rdev, target) = match op {
            Op::Create { parent, name, mode, uid, gid, rdev, target } => {
                (Some((*parent, name.as_slice())), *mode, *uid, *gid, *rdev, target.clone())
            }
            Op::Tmpfile { mode, uid, gid } => (None, *mode, *uid, *gid, 0, Vec::new()),
            _ => return Err("not a creation".to_owned()),
        };
        let new = NewInode { mode, uid, gid, rdev, target: &target };
        let got = match place {
            Some((parent, name)) => self.fs()?.create(Ino(parent), name, &new),
            None => self.fs()?.tmpfile(&new),
        };
        let ino = got.as_ref().map_or(0, |a| a.ino.0);
        if got.is_ok() && self.model()?.files.contains_key(&ino) {
            return Err(format!("inode number {ino} is given a second time"));
        }
        let fresh = Fresh { ino, mode, uid, gid, rdev, target: target.clone() };
        let parent = place.map_or(0, |p| p.0);
        self.namespace(got.map(drop), start, &[ino, parent], |t| {
            t.create(place, &fresh, now)?;
            if place.is_none() {
                t.retain(ino);
            }
            Ok(())
        })
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), mode: RenameMode, start: usize, now: Time) -> Check {
        let got = self.fs()?.rename(Ino(from.0), from.1, Ino(to.0), to.1, mode);
        let source = self.entry(from.0, from.1)?.unwrap_or(0);
        let target = self.entry(to.0, to.1)?.unwrap_or(0);
        let touched = [source, target, from.0, to.0];
        let step =
            self.namespace(got, start, &touched, |t| t.rename(from.0, from.1, to.0, to.1, mode, now).map(drop))?;
        if matches!(step, Step::Done) && target != 0 && source != target {
            self.model()?.carry(source, start, true);
            if mode == RenameMode::Exchange {
                self.model()?.carry(target, start, true);
            }
        }
        Ok(step)
    }

    fn setattr(&mut self, ino: u64, set: &SetAttr, start: usize, now: Time) -> Check {
        let got = self.fs()?.setattr(Ino(ino), set).map(drop);
        if set.size.is_none() {
            return self.namespace(got, start, &[ino], |t| t.setattr(ino, set, now));
        }
        let nanos = self.clock.monotonic_nanos();
        if set.size == Some(0) && got.is_ok() {
            self.model()?.hold(ino, nanos);
        }
        self.content(got, ino, start, |t| t.setattr(ino, set, now))
    }

    fn write(&mut self, ino: u64, offset: u64, data: &[u8], start: usize, now: Time) -> Check {
        let got = self.fs()?.write(Ino(ino), offset, data, 1000);
        let accepted = match &got {
            Ok(n) if *n > data.len() => return Err(format!("{n} of {} bytes written", data.len())),
            Ok(n) => data.get(..*n).unwrap_or_default(),
            Err(_) => data,
        };
        let short = accepted.len() < data.len();
        if short && accepted.is_empty() {
            return Err("nothing was written, without an error".to_owned());
        }
        let step = self.content(got, ino, start, |t| t.write(ino, offset, accepted, now))?;
        Ok(if short { Step::Refused } else { step })
    }

    fn copy(&mut self, from: (u64, u64), to: (u64, u64), bytes: u64, start: usize, now: Time) -> Check {
        let got = self.fs()?.copy_range((Ino(from.0), from.1), (Ino(to.0), to.1), bytes, 1000);
        if matches!(got, Err(Error::NoSpace | Error::Failed(_) | Error::Device(_))) {
            return self.answer(got, Ok(()));
        }
        if matches!(got, Err(Error::NotSupported)) {
            return Ok(Step::Denied);
        }
        let data = match (&got, self.model()?.tree.copy_source(from, to, bytes)) {
            (Ok(n), Ok(data)) if *n as usize <= data.len() && (*n > 0 || data.is_empty()) => {
                data.get(..*n as usize).unwrap_or_default().to_vec()
            }
            (Ok(n), Ok(data)) => return Err(format!("{n} bytes copied of {}", data.len())),
            (_, want) => return self.answer(got, want),
        };
        if data.is_empty() {
            return Ok(Step::Done);
        }
        self.content(got, to.0, start, |t| t.write(to.0, to.1, &data, now))
    }

    fn fsync(&mut self, ino: u64, callback: bool, start: usize) -> Check {
        match self.options.order {
            Order::Relaxed => self.model()?.flush(ino, start),
            Order::Strict => self.model()?.end_holds(start),
        }
        let fs = self.fs()?;
        let got = if callback {
            let slot = Arc::new(Mutex::new(None));
            let inner = Arc::clone(&slot);
            fs.fsync(
                Ino(ino),
                Box::new(move |r| {
                    *inner.lock().unwrap_or_else(PoisonError::into_inner) = Some(r);
                }),
            );
            let answer = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            answer.ok_or("fsync did not call back, though nothing else is under way")?
        } else {
            fs.fsync_wait(Ino(ino))
        };
        let want = self.model()?.tree.inode(ino).map(drop);
        let step = self.answer(got, want)?;
        if matches!(step, Step::Done) {
            let end = self.disk.cut_points();
            match self.options.order {
                Order::Relaxed => self.model()?.fsynced(ino, end),
                Order::Strict => self.model()?.synced(end),
            }
        }
        Ok(step)
    }

    fn tick(&mut self, start: usize) -> Check {
        let now = self.clock.monotonic_nanos();
        self.model()?.expire_holds(now, start);
        let got = self.fs()?.tick();
        let step = self.answer(got, Ok(()))?;
        let end = self.disk.cut_points();
        if !matches!(step, Step::Done) {
            self.model()?.passing_checkpoint(false, None, start, end);
            return Ok(step);
        }
        let due = now.saturating_sub(self.options.commit_nanos);
        while let Some((at, _)) = self.marks.front()
            && *at <= due
        {
            if let Some((_, mark)) = self.marks.pop_front() {
                self.model()?.mark_reached(&mark, end);
            }
        }
        Ok(step)
    }

    fn checkpoint_create(&mut self, name: Option<&[u8]>, start: usize) -> Check {
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

    fn checkpoint_name(&mut self, cno: u64, name: Option<&[u8]>, start: usize) -> Check {
        let taken = name.is_some() && self.listed.iter().any(|c| c.cno.0 != cno && c.name.as_deref() == name);
        match self.fs()?.checkpoint_name(Cno(cno), name) {
            Ok(()) if !taken => {
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
                self.model()?.name_checkpoint(cno, name.map(<[u8]>::to_vec), start);
                Ok(Step::Failed(e))
            }
            Err(e) => self.answer(Err::<(), _>(e), Ok(())),
        }
    }

    fn checkpoint_drop(&mut self, cno: u64, start: usize) -> Check {
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
    fn compare_checkpoints(&mut self, op: &Op, start: usize) -> Result<(), String> {
        let now = self.fs()?.checkpoints();
        let cut = self.fs()?.checkpoints_cut();
        if now == self.listed && cut == self.cuts_known {
            return Ok(());
        }
        let end = self.disk.cut_points();
        let before = std::mem::replace(&mut self.listed, now.clone());
        for info in now.iter().filter(|i| !before.iter().any(|b| b.cno == i.cno)) {
            if info.asked || info.name.is_some() || !matches!(op, Op::Tick | Op::Remount) {
                return Err(format!("{info:?} came from nowhere"));
            }
            self.cuts_known += 1;
            self.model()?.checkpoint(info.cno.0, false, None, start, end);
        }
        while self.cuts_known < cut {
            // Cut and let go again within the call; a power cut in between can show it.
            self.cuts_known += 1;
            self.model()?.passing_checkpoint(false, None, start, end);
        }
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

    fn seek(&mut self, ino: u64, offset: u64) -> Check {
        let fs = self.fs()?;
        let data = fs.seek(At::Live, Ino(ino), offset, Seek::Data);
        let hole = fs.seek(At::Live, Ino(ino), offset, Seek::Hole);
        let content = self.model()?.tree.inode(ino).map(|i| i.content.clone()).unwrap_or_default();
        let skipped = match &data {
            Ok(at) if *at >= offset && *at < content.size() => *at,
            Err(e) if is_past_end(e) => content.size(),
            other => return Err(format!("next data from {offset}: {other:?} of {}", content.size())),
        };
        if !content.is_zero(offset, skipped.max(offset)) {
            return Err(format!("data between {offset} and {skipped} is said to be a hole"));
        }
        match &hole {
            Ok(at) if *at >= offset && *at <= content.size() && offset < content.size() => {}
            Err(e) if is_past_end(e) && offset >= content.size() => {}
            other => return Err(format!("next hole from {offset}: {other:?} of {}", content.size())),
        }
        Ok(Step::Done)
    }

    /// Listing in small pieces gives every entry once.
    fn list(&mut self, dir: u64) -> Check {
        let mut got: Vec<(Vec<u8>, u64)> = Vec::new();
        let mut cookie = 0;
        loop {
            let before = got.len();
            let listing = self.fs()?.readdir(At::Live, Ino(dir), cookie, &mut |e| {
                cookie = e.cookie;
                got.push((e.name, e.ino.0));
                got.len() < before + 3
            });
            if let Err(e) = listing {
                let want = self.model()?.tree.inode(dir).map(drop);
                return self.answer(Err::<(), _>(e), want);
            }
            if got.len() == before {
                break;
            }
        }
        got.retain(|(name, _)| name != b"." && name != b"..");
        got.sort();
        let entries = &self.model()?.tree.inode(dir).map_err(|e| e.to_string())?.entries;
        let want: Vec<(Vec<u8>, u64)> = entries.iter().map(|(n, i)| (n.clone(), *i)).collect();
        if got == want { Ok(Step::Done) } else { Err(format!("listed {got:?}, should be {want:?}")) }
    }

    fn read_past(&mut self, cno: u64) -> Check {
        if !self.listed.iter().any(|c| c.cno.0 == cno) {
            return Ok(Step::Done);
        }
        let found = walk(self.fs()?, At::Past(Cno(cno)), None).map_err(|e| format!("checkpoint {cno}: {e}"))?;
        let model = self.model()?;
        let log = model.checkpoints.get(&cno).ok_or("checkpoint without a log")?;
        match oracle::judge_past(cno, log, &found) {
            Ok(()) => Ok(Step::Done),
            Err(e) => {
                let mut tree = Tree::default();
                walk(self.fs()?, At::Past(Cno(cno)), Some(&mut tree))?;
                Err(format!("{e}\n{}", oracle::difference(self.model()?, &tree)))
            }
        }
    }

    /// Compares the whole live state with the model's.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare_all(&mut self) -> Result<(), String> {
        let found = walk(self.fs()?, At::Live, None)?;
        let tree = &self.model()?.tree;
        if found.sum != tree.sum() {
            return Err("the live namespace is not the model's".to_owned());
        }
        for file in &found.files {
            let want = tree.inode(file.ino).map_err(|e| e.to_string())?;
            if want.content.fingerprint() != file.fingerprint {
                return Err(format!("the live content of inode {} is not the model's", file.ino));
            }
        }
        Ok(())
    }

    /// Closes the volume.
    ///
    /// # Errors
    /// When that fails in another way than by the device.
    pub fn close(&mut self) -> Check {
        let start = self.disk.cut_points();
        self.model()?.begin(start);
        let got = self.fs()?.close();
        let step = self.answer(got, Ok(()))?;
        if matches!(step, Step::Done) {
            let end = self.disk.cut_points();
            self.model()?.closed(start, end);
        }
        Ok(step)
    }

    fn remount(&mut self, start: usize) -> Check {
        let step = self.close()?;
        if !matches!(step, Step::Done) {
            return Ok(step);
        }
        self.forget();
        self.compare_after_close(start)?;
        Ok(Step::Done)
    }

    fn compare_after_close(&mut self, start: usize) -> Result<(), String> {
        self.open()?;
        self.compare_all().map_err(|e| format!("after a clean unmount: {e}"))?;
        self.compare_checkpoints(&Op::Remount, start)
    }

    fn kill(&mut self) -> Check {
        // Without flushes a mount cannot know what a later power cut takes away again.
        if self.options.barrier == Barrier::None {
            return Ok(Step::Done);
        }
        self.forget();
        self.disk.complete_all();
        let k = self.disk.cut_points();
        self.open()?;
        let found = walk(self.fs()?, At::Live, None)?;
        let rules = Rules { order: self.options.order, durable: true };
        let listed = self.fs()?.checkpoints();
        oracle::judge(self.model()?, rules, k, &found).map_err(|e| format!("after the process died: {e}"))?;
        oracle::judge_checkpoints(self.model()?, rules, k, &listed)?;
        let durable = self.disk.cut_points();
        self.adopt(durable)?;
        Ok(Step::Done)
    }
}

/// Whether the device, or an earlier failure of it, is the reason.
const fn is_failure(e: &Error) -> bool {
    matches!(e, Error::Failed(_) | Error::Device(_))
}
