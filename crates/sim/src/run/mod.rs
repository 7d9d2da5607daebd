//! Carries out a workload on a file system and on the model, call by call, and
//! compares every answer.
//!
//! Invariants
//! 1. A call that reports an error has changed nothing (checked by what later
//!    calls and the final walk see).
//! 2. `eras` holds one model per mount that had to find its state in the log;
//!    the last one is live. Each knows from which device operation on its
//!    starting state is durable.

mod calls;
mod clients;
mod compare;
mod deleting;
mod listing;
mod past;
mod promises;
mod room;
mod vanished;

use crate::clock::VirtualClock;
use crate::content::pattern;
use crate::hash;
use crate::members::Drive;
use crate::model::{Mark, Model, RuleLog};
use crate::ops::Op;
use crate::oracle::{self, Binds, Rules};
use crate::subject::Subject;
use crate::tree::Tree;
use crate::walk::walk;
use crate::workload::Workload;
use nenrin_core::{At, Barrier, CheckpointInfo, Clock, Error, MountOptions};
use nenrin_device::CrashDisk;
use nenrin_format::Ino;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use clients::Clients;

/// Operations of the device after which a call is taken for one that never ends.
const CALL_OPERATIONS_MAX: usize = 20_000;

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
    pub device: Drive,
    /// From this device operation on every member is up to date.
    pub whole_from: Option<usize>,
    /// The same without anything in between.
    pub plain: Drive,
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
    /// Index checkpoints of this mount that the model knows of.
    roots_known: u64,
    /// Who else is at work.
    pub clients: Clients,
    /// A sync of another client failed with the volume.
    beside_failed: Option<Error>,
    promises: promises::Promises,
    reasons: vanished::Reasons,
    /// Hash of all calls and answers.
    pub digest: u64,
    /// Calls by kind: made, and refused.
    pub calls: BTreeMap<&'static str, (u64, u64)>,
    /// What the file system has done inside, over all mounts.
    pub activity: BTreeMap<&'static str, u64>,
    /// The last calls, for a failure.
    pub trace: Option<Vec<String>>,
    listing: Option<listing::Listing>,
}

type Check = Result<Step, String>;

impl<S: Subject> Run<S> {
    /// Formats `disk` and mounts it through `device`.
    ///
    /// # Errors
    /// What went wrong.
    pub fn format(
        disk: Arc<CrashDisk>,
        device: impl Into<Drive>,
        segment_blocks: u32,
        options: MountOptions,
    ) -> Result<Self, String> {
        let plain = disk.clone().into();
        Self::format_on(disk, device.into(), plain, segment_blocks, options)
    }

    /// The same on the devices `plain`, which are parts of `disk`.
    ///
    /// # Errors
    /// What went wrong.
    pub fn format_on(
        disk: Arc<CrashDisk>,
        device: Drive,
        plain: Drive,
        segment_blocks: u32,
        options: MountOptions,
    ) -> Result<Self, String> {
        let clock = Arc::new(VirtualClock::new());
        let time: Arc<dyn Clock> = clock.clone();
        S::mkfs_on(plain.clone(), &time, segment_blocks).map_err(|e| format!("mkfs: {e}"))?;
        clock.advance(1_000_000);
        let durable = disk.cut_points();
        Self::mount_on(disk, device, plain, clock, options, Some(durable))
    }

    /// Mounts what is on `disk` and takes what is found for granted, from
    /// `durable` device operations on or, without that, as soon as it is mounted.
    ///
    /// # Errors
    /// What went wrong.
    pub fn mount(
        disk: Arc<CrashDisk>,
        device: impl Into<Drive>,
        clock: Arc<VirtualClock>,
        options: MountOptions,
        durable: Option<usize>,
    ) -> Result<Self, String> {
        let plain = disk.clone().into();
        Self::mount_on(disk, device.into(), plain, clock, options, durable)
    }

    /// The same on the devices `plain`, which are parts of `disk`.
    ///
    /// # Errors
    /// What went wrong.
    pub fn mount_on(
        disk: Arc<CrashDisk>,
        device: Drive,
        plain: Drive,
        clock: Arc<VirtualClock>,
        options: MountOptions,
        durable: Option<usize>,
    ) -> Result<Self, String> {
        let mut run = Self {
            fs: None,
            device,
            whole_from: None,
            plain,
            disk,
            clock,
            options,
            eras: Vec::new(),
            marks: VecDeque::new(),
            listed: Vec::new(),
            cuts_known: 0,
            roots_known: 0,
            clients: Clients::default(),
            beside_failed: None,
            promises: promises::Promises::default(),
            reasons: vanished::Reasons::default(),
            digest: 0,
            calls: BTreeMap::new(),
            activity: BTreeMap::new(),
            trace: None,
            listing: None,
        };
        run.open()?;
        let durable = durable.unwrap_or_else(|| run.disk.cut_points());
        run.adopt(durable, 0)?;
        Ok(run)
    }

    fn open(&mut self) -> Result<(), String> {
        let fs = S::open(self.device.clone(), self.clock.clone(), self.options.clone());
        self.fs = Some(fs.map_err(|e| format!("open: {e}"))?);
        self.reasons.mounted();
        self.cuts_known = 0;
        self.roots_known = self.fs()?.index_checkpoints();
        self.note_whole();
        Ok(())
    }

    /// Notes when every member is up to date.
    pub fn note_whole(&mut self) {
        if self.whole_from.is_none() && self.fs.as_ref().is_some_and(|fs| !fs.is_joining() && !fs.lacks_one()) {
            self.whole_from = Some(self.disk.cut_points());
        }
    }

    /// A new era begins with what the mount shows, which is this prefix of the last one's namespace.
    fn adopt(&mut self, durable: usize, prefix: u32) -> Result<(), String> {
        let mut tree = Tree::default();
        let fs = self.fs()?;
        walk(fs, At::Live, Some(&mut tree))?;
        let mut model = Model::new(tree, durable);
        let listed = fs.checkpoints();
        for info in &listed {
            let found = walk(fs, At::Past(info.cno), None).map_err(|e| format!("checkpoint {}: {e}", info.cno))?;
            model.adopt_checkpoint(info, &found, durable);
        }
        model.rules.extend(fs.retention().map(|rule| RuleLog { start: 0, promised: 0, rule }));
        if let Some((_, earlier)) = self.eras.last() {
            model.goes_on_from(earlier, false);
            model.numbers.had(earlier.numbers.up_to(prefix));
        }
        model.numbers.had(fs.landmarks().iter().map(|(_, ino)| ino.0));
        if !listed.is_empty() {
            self.reasons.forget_ages();
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
        // Should they not end, they sleep on.
        drop(self.clients.die());
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
            let drawn = hash::of_words(&[self.digest, n as u64, 21]);
            if self.device.changes && drawn % 4 == 0 {
                let before = self.disk.cut_points();
                let step = self.step(&Op::Devices { draw: drawn >> 2 });
                let step = step.map_err(|e| format!("devices {} at call {n}: {e}", drawn >> 2))?;
                if let Some(trace) = &mut self.trace {
                    trace.push(format!("{before}..{} devices {}: {step:?}", self.disk.cut_points(), drawn >> 2));
                }
                if let Step::Failed(e) = step {
                    return Ok(Some(e));
                }
            }
            if self.device.slow && drawn % 5 == 0 {
                self.fs()?.declare_slow(drawn >> 3);
            }
            let op = match workload.next(self.model()?) {
                Op::Fsync { ino, callback: true } if self.clients.takes_over() => Op::FsyncBeside { ino },
                op => op,
            };
            let handles_lost = matches!(op, Op::Remount | Op::Kill);
            let before = self.disk.cut_points();
            let step = self.step(&op).map_err(|e| format!("call {n} {op:?}: {e}"))?;
            if let Some(trace) = &mut self.trace {
                trace.push(format!("{before}..{} {op:?}: {step:?}", self.disk.cut_points()));
            }
            self.perhaps_way_out(&op, &step).map_err(|e| format!("call {n} {op:?}: {e}"))?;
            if handles_lost {
                workload.handles_lost();
            }
            if let (Op::Tmpfile { .. }, Step::Done) = (&op, &step) {
                workload.opened(self.newest_inode()?);
            }
            if let Step::Failed(e) = step {
                return Ok(Some(e));
            }
        }
        Ok(None)
    }

    /// The number of the checkpoint of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn named_checkpoint(&self, name: &[u8]) -> Result<u64, String> {
        let found = self.listed.iter().find(|c| c.name.as_deref() == Some(name));
        found.map(|c| c.cno.0).ok_or_else(|| format!("there is no snapshot {}", String::from_utf8_lossy(name)))
    }

    /// The inode made last.
    ///
    /// # Errors
    /// When there is no model.
    pub fn newest_inode(&mut self) -> Result<u64, String> {
        Ok(self.model()?.tree.inodes.last_key_value().map_or(0, |(ino, _)| *ino))
    }

    /// One call.
    ///
    /// # Errors
    /// When the answer is not the model's.
    pub fn step(&mut self, op: &Op) -> Check {
        self.clock.advance(10_000);
        let start = self.disk.cut_points();
        self.model()?.begin(start);
        self.disk.power_off_at(start + CALL_OPERATIONS_MAX);
        let alone = !self.clients.are_busy();
        self.clients.between();
        self.hear()?;
        let room = self.look_at_room(op, start)?;
        let step = self.dispatch(op, start).and_then(|step| self.hear().map(|()| step));
        if self.disk.cut_points() >= start + CALL_OPERATIONS_MAX {
            return Err(format!("no end after {CALL_OPERATIONS_MAX} operations of the device"));
        }
        let step = match self.beside_failed.take() {
            Some(e) => Step::Failed(e),
            None => step?,
        };
        self.judge_refusal(&step, room)?;
        self.watch_listing()?;
        self.note_promises(op, &step)?;
        self.note_roots(start, alone)?;
        self.note_whole();
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

    /// Index checkpoints that a call which began at `start` has completed. With
    /// other clients at work one may have begun before, and says nothing.
    fn note_roots(&mut self, start: usize, alone: bool) -> Result<(), String> {
        let Some(fs) = &self.fs else { return Ok(()) };
        let roots = fs.index_checkpoints();
        if roots > self.roots_known && alone && !self.clients.are_busy() {
            let end = self.disk.cut_points();
            self.model()?.anchor(end, start);
        }
        self.roots_known = roots;
        Ok(())
    }

    fn dispatch(&mut self, op: &Op, start: usize) -> Check {
        let now = self.clock.wall();
        match op {
            Op::Create { .. } | Op::Tmpfile { .. } => self.create(op, start, now),
            Op::CreateWith { parent, name, mode, xattrs } => {
                self.create_with((*parent, name), *mode, xattrs, start, now)
            }
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
                self.note_grant(*ino, name, &step, start)?;
                self.compare_xattr(*ino, name)?;
                Ok(step)
            }
            Op::RemoveXattr { ino, name } => {
                let got = self.fs()?.removexattr(Ino(*ino), name);
                let step = self.namespace(got, start, &[*ino], |t| t.removexattr(*ino, name, now))?;
                self.note_grant(*ino, name, &step, start)?;
                self.compare_xattr(*ino, name)?;
                Ok(step)
            }
            Op::Write { ino, offset, bytes, id } => {
                self.write(*ino, *offset, &pattern(*id, *offset, *bytes), start, now)
            }
            Op::WritePages { ino, offset, data } => self.write(*ino, *offset, data, start, now),
            Op::Allocate { ino, mode, offset, bytes } => {
                let got = self.fs()?.allocate(Ino(*ino), *mode, *offset, *bytes);
                self.content(got, *ino, start, |t| t.allocate(*ino, *mode, *offset, *bytes, now))
            }
            Op::CopyRange { from, from_offset, to, to_offset, bytes } => {
                self.copy((*from, *from_offset), (*to, *to_offset), *bytes, start, now)
            }
            Op::CopyPast { cno, from, from_offset, to, to_offset, bytes } => {
                self.copy_past(*cno, (*from, *from_offset), (*to, *to_offset), *bytes, start, now)
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
            Op::FsyncPair { first, second, submitted } => self.fsync_pair((*first, *second), *submitted, start),
            Op::FsyncBeside { ino } => self.fsync_beside(*ino, start),
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
            Op::SnapshotDrop { cno, name, in_use } => self.snapshot_drop(*cno, name, *in_use, start),
            Op::CheckpointsDrop { cnos, in_use } => self.checkpoints_drop(cnos, in_use, start),
            Op::HoldCheckpoint { cno } => self.hold_checkpoint(*cno),
            Op::LetCheckpointGo { cno } => self.let_checkpoint_go(*cno),
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
            Op::Clean => self.clean(start),
            Op::CleanBeside => self.clean_beside(start),
            Op::Devices { draw } => self.change_devices(*draw, start),
            Op::Scrub => self.scrub(),
            Op::SetRetention { rule } => self.set_retention(rule, start),
            Op::Read { ino, offset, bytes } => {
                let got = self.fs()?.read(At::Live, Ino(*ino), *offset, *bytes);
                let want = self.model()?.tree.inode(*ino).map(|i| i.content.read(*offset, *bytes));
                self.same_bytes(got, want)
            }
            Op::Seek { ino, offset } => self.seek(*ino, *offset),
            Op::List { dir } => self.list(*dir),
            Op::ListOn { dir } => self.list_on(*dir),
            Op::ReadPast { cno } => self.read_past(*cno),
            Op::Remount => self.remount(start),
            Op::Kill => self.kill(),
        }
    }

    /// Compares the whole live state with the model's.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare_all(&mut self) -> Result<(), String> {
        self.others_end()?;
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
        self.judge_landmarks()
    }

    /// Closes the volume.
    ///
    /// # Errors
    /// When that fails in another way than by the device.
    pub fn close(&mut self) -> Check {
        let start = self.disk.cut_points();
        self.model()?.begin(start);
        self.look_at_room(&Op::Remount, start)?;
        self.model()?.end_holds(start);
        let got = self.fs()?.close();
        let step = self.answer(got, Ok(()))?;
        self.note_let_go(start)?;
        if matches!(step, Step::Done) {
            let end = self.disk.cut_points();
            self.model()?.closed(start, end);
            self.model()?.anchor(end, end);
            self.others_end()?;
        }
        Ok(step)
    }

    /// What the rule does not keep may go before an unmount: checkpoints without a name that are not listed any more.
    fn note_let_go(&mut self, start: usize) -> Result<(), String> {
        let now = self.fs()?.checkpoints();
        let stays = |old: &CheckpointInfo| old.name.is_some() || now.iter().any(|c| c.cno == old.cno);
        let before = std::mem::take(&mut self.listed);
        let (listed, gone): (Vec<_>, Vec<_>) = before.iter().cloned().partition(stays);
        let gone: Vec<u64> = gone.iter().map(|old| old.cno.0).collect();
        self.judge_gone(&Op::Remount, &gone, &before, &now)?;
        self.listed = listed;
        gone.iter().try_for_each(|cno| self.model().map(|m| m.checkpoint_gone(*cno, start)))
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
        self.reasons.forget_ages();
        self.listing = None;
        self.disk.complete_all();
        let k = self.disk.cut_points();
        self.open()?;
        let found = walk(self.fs()?, At::Live, None)?;
        let rules = Rules { order: self.options.order, binds: Binds::Acknowledged };
        let listed = self.fs()?.checkpoints();
        let shown =
            oracle::judge(self.model()?, rules, k, &found).map_err(|e| format!("after the process died: {e}"))?;
        let known = oracle::judge_checkpoints(self.model()?, rules, k, &listed)?;
        let known: Vec<_> = known.into_iter().map(|(info, log)| (info, log.clone())).collect();
        let shed = self.fs()?.shed().map_err(|e| format!("what was shed: {e}"))?;
        for (info, log) in known {
            let cno = info.cno;
            let past = walk(self.fs()?, At::Past(cno), None).map_err(|e| format!("checkpoint {cno}: {e}"))?;
            oracle::judge_past(&info, &log, &past, &shed).map_err(|e| format!("after the process died: {e}"))?;
        }
        let rule = self.fs()?.retention();
        oracle::judge_rule(self.model()?, rules, k, rule.as_deref())?;
        let durable = self.disk.cut_points();
        self.adopt(durable, shown.prefix)?;
        Ok(Step::Done)
    }
}

/// Whether the device, or an earlier failure of it, is the reason.
const fn is_failure(e: &Error) -> bool {
    matches!(e, Error::Failed(_) | Error::Device(_))
}
