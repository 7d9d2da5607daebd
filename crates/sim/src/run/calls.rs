//! The calls that need more than one line, on both sides.

use super::{Check, Run, Step};
use crate::changing::Changed;
use crate::content::PAGE_BYTES;
use crate::ops::Op;
use crate::subject::{Subject, UID};
use crate::tree::Fresh;
use crate::walk::is_past_end;
use nenrin_core::{At, Attr, Clock, Done, Error, NewInode, Order, RenameMode, Seek, SetAttr, XattrMode};
use nenrin_format::{Ino, Time};
use std::sync::{Arc, Mutex, PoisonError};

impl<S: Subject> Run<S> {
    pub(super) fn create(&mut self, op: &Op, start: usize, now: Time) -> Check {
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
        let ino = self.given(&got)?;
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

    /// The number of what was made, which nobody else has; 0 where nothing was.
    fn given(&mut self, got: &Result<Attr, Error>) -> Result<u64, String> {
        let Ok(attr) = got else { return Ok(0) };
        let model = self.model()?;
        let prefix = model.prefix() + 1;
        model.numbers.give(attr.ino.0, prefix).map(|()| attr.ino.0)
    }

    /// A new inode with attributes from its beginning: no state has it without.
    pub(super) fn create_with(
        &mut self,
        (parent, name): (u64, &[u8]),
        mode: u32,
        xattrs: &[(Vec<u8>, Vec<u8>)],
        start: usize,
        now: Time,
    ) -> Check {
        let new = NewInode { mode, uid: 0, gid: 0, rdev: 0, target: b"" };
        let given: Vec<(&[u8], &[u8])> = xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let got = self.fs()?.create_with(Ino(parent), name, &new, &given);
        if matches!(got, Err(Error::NotSupported)) {
            return Ok(Step::Denied);
        }
        let ino = self.given(&got)?;
        let fresh = Fresh { ino, mode, uid: 0, gid: 0, rdev: 0, target: Vec::new() };
        let step = self.namespace(got.map(drop), start, &[ino, parent], |t| {
            t.create(Some((parent, name)), &fresh, now)?;
            xattrs.iter().try_for_each(|(name, value)| t.setxattr(ino, name, value, XattrMode::Any, now))
        })?;
        for (name, _) in xattrs {
            self.compare_xattr(ino, name)?;
        }
        Ok(step)
    }

    /// An attribute that says who may do what came or went: somebody may do more, as a list may have kept him out. Where the call
    /// was refused, what that has to bring along may be there all the same.
    pub(super) fn note_grant(&mut self, ino: u64, name: &[u8], step: &Step, start: usize) -> Result<(), String> {
        let grants = [&b"security."[..], b"system.posix_acl_"].iter().any(|prefix| name.starts_with(prefix));
        match step {
            _ if !grants || !S::CARRIES => {}
            Step::Done => self.model()?.grant(ino, start),
            _ => self.model()?.end_hold_perhaps(ino, start),
        }
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: RenameMode,
        start: usize,
        now: Time,
    ) -> Check {
        let got = self.fs()?.rename(Ino(from.0), from.1, Ino(to.0), to.1, mode);
        let source = self.entry(from.0, from.1)?.unwrap_or(0);
        let target = self.entry(to.0, to.1)?.unwrap_or(0);
        let touched = [source, target, from.0, to.0];
        let step =
            self.namespace(got, start, &touched, |t| t.rename(from.0, from.1, to.0, to.1, mode, now).map(drop))?;
        match target {
            _ if !matches!(step, Step::Done) => {}
            0 if from.0 != to.0 && S::CARRIES => self.model()?.grant(source, start),
            0 => {}
            _ if source == target => {}
            _ => {
                self.model()?.carry(source, start, true);
                if mode == RenameMode::Exchange {
                    self.model()?.carry(target, start, true);
                }
            }
        }
        Ok(step)
    }

    pub(super) fn setattr(&mut self, ino: u64, set: &SetAttr, start: usize, now: Time) -> Check {
        let got = self.fs()?.setattr(Ino(ino), set).map(drop);
        if set.size.is_none() {
            let was = self.model()?.tree.inodes.get(&ino).map(|i| i.attr);
            let other = |new: Option<u32>, old: u32| new.is_some_and(|new| new != old);
            let grants = was.is_some_and(|was| {
                let more = set.mode.is_some_and(|mode| mode & !was.mode & 0o7777 != 0);
                more || other(set.uid, was.uid) || other(set.gid, was.gid)
            });
            let step = self.namespace(got, start, &[ino], |t| t.setattr(ino, set, now))?;
            if grants && S::CARRIES && matches!(step, Step::Done) {
                self.model()?.grant(ino, start);
            }
            return Ok(step);
        }
        let nanos = self.clock.monotonic_nanos();
        if set.size == Some(0) && got.is_ok() {
            // In strict order another client's sync takes everything along that is there when its turn comes.
            let perhaps = self.options.order == Order::Strict && self.clients.are_busy();
            self.model()?.hold(ino, nanos);
            if perhaps {
                self.model()?.end_hold_perhaps(ino, start);
            }
        }
        self.content(got, ino, start, |t| t.setattr(ino, set, now))
    }

    pub(super) fn write(&mut self, ino: u64, offset: u64, data: &[u8], start: usize, now: Time) -> Check {
        let (answer, told) = self.teller();
        *self.activity.entry("writes of bytes given away").or_default() += u64::from(S::gives_away(offset, data.len()));
        let got = if self.writes_beside(ino, start)? {
            self.write_beside(ino, offset, data, now, told)?
        } else {
            self.fs()?.accept(Ino(ino), offset, data, UID, told)
        };
        if got.is_ok() {
            self.clients.tells(ino, answer);
        }
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

    pub(super) fn copy(&mut self, from: (u64, u64), to: (u64, u64), bytes: u64, start: usize, now: Time) -> Check {
        let got = self.fs()?.copy_range((Ino(from.0), from.1), (Ino(to.0), to.1), bytes, UID);
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

    pub(super) fn fsync(&mut self, ino: u64, callback: bool, start: usize) -> Check {
        match self.options.order {
            Order::Relaxed => self.model()?.flush(ino, start),
            Order::Strict => self.model()?.end_holds(start),
        }
        let all = self.options.order == Order::Strict;
        let promise = self.model()?.promise(ino, all);
        let (got, end) = if callback {
            let (answer, done) = self.teller();
            self.fs()?.fsync(Ino(ino), done);
            let now = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
            match now {
                Some(now) => now,
                // Whoever commits now tells it later.
                None if self.clients.are_busy() => {
                    self.clients.ask(ino, promise, answer);
                    return Ok(Step::Done);
                }
                None => return Err("fsync did not call back, though nothing else is under way".to_owned()),
            }
        } else {
            let got = self.fs()?.fsync_wait(Ino(ino));
            (got, self.disk.cut_points())
        };
        let want = self.model()?.tree.inode(ino).map(drop);
        let step = self.answer(got, want)?;
        if matches!(step, Step::Done) {
            match self.options.order {
                Order::Relaxed => self.model()?.fsynced(ino, end),
                Order::Strict => self.model()?.synced(end),
            }
        }
        Ok(step)
    }

    pub(super) fn fsync_pair(&mut self, (first, second): (u64, u64), submitted: bool, start: usize) -> Check {
        match self.options.order {
            Order::Relaxed => {
                self.model()?.flush(first, start);
                self.model()?.flush(second, start);
            }
            Order::Strict => self.model()?.end_holds(start),
        }
        let answers = Arc::new(Mutex::new(Vec::new()));
        let teller = || {
            let (answers, disk) = (Arc::clone(&answers), Arc::clone(&self.disk));
            Box::new(move |r| answers.lock().unwrap_or_else(PoisonError::into_inner).push((r, disk.cut_points())))
        };
        let pair = ((Ino(first), teller() as Done), (Ino(second), teller() as Done));
        if submitted {
            self.fs()?.fsync_submitted(pair.0, pair.1);
        } else {
            self.fs()?.fsync_pair(pair.0, pair.1);
        }
        let answers = std::mem::take(&mut *answers.lock().unwrap_or_else(PoisonError::into_inner));
        if answers.len() != 2 {
            return Err(format!("{} of two syncs called back", answers.len()));
        }
        for (ino, (got, end)) in [first, second].into_iter().zip(answers) {
            let want = self.model()?.tree.inode(ino).map(drop);
            let step = self.answer(got, want)?;
            if !matches!(step, Step::Done) {
                return Ok(step);
            }
            match self.options.order {
                Order::Relaxed => self.model()?.fsynced(ino, end),
                Order::Strict => self.model()?.synced(end),
            }
        }
        Ok(Step::Done)
    }

    pub(super) fn tick(&mut self, start: usize) -> Check {
        let now = self.clock.monotonic_nanos();
        self.model()?.expire_holds(now, start);
        let got = self.fs()?.tick();
        let step = self.answer(got, Ok(()))?;
        let end = self.disk.cut_points();
        if !matches!(step, Step::Done) {
            self.model()?.passing_checkpoint(false, None, start, end);
            return Ok(step);
        }
        if self.clients.are_busy() {
            // What a commit under way carries is promised when that is done.
            return Ok(step);
        }
        let commit_nanos = self.options.commit_nanos;
        let due = now.saturating_sub(commit_nanos);
        while self.marks.front().is_some_and(|(at, _)| *at <= due) {
            if let Some((_, mark)) = self.marks.pop_front() {
                self.model()?.mark_reached(&mark, end, (now, commit_nanos));
            }
        }
        Ok(step)
    }

    pub(super) fn clean(&mut self, start: usize) -> Check {
        let now = self.clock.monotonic_nanos();
        self.model()?.expire_holds(now, start);
        let got = self.fs()?.clean();
        self.answer(got, Ok(()))
    }

    pub(super) fn change_devices(&mut self, draw: u64, start: usize) -> Check {
        let now = self.clock.monotonic_nanos();
        self.model()?.expire_holds(now, start);
        let got = self.fs()?.change_devices(&self.device, draw);
        if let Ok(Changed { what, wrong }) = &got {
            if let Some(wrong) = wrong {
                return Err(format!("refused without a reason: {wrong}"));
            }
            what.iter().for_each(|what| *self.activity.entry(what).or_default() += 1);
        }
        self.answer(got, Ok(()))
    }

    pub(super) fn scrub(&mut self) -> Check {
        match self.fs()?.scrub() {
            Ok(lost) if lost.is_empty() => Ok(Step::Done),
            Ok(lost) => Err(format!("scrub, where nothing is damaged: {}", lost.join("; "))),
            Err(e) => self.answer(Err::<(), _>(e), Ok(())),
        }
    }

    pub(super) fn set_retention(&mut self, rule: &str, start: usize) -> Check {
        // The toy has no rule.
        if self.fs()?.retention().is_none() {
            return Ok(Step::Done);
        }
        let got = self.fs()?.set_retention(rule);
        let step = self.answer(got, Ok(()))?;
        let end = self.disk.cut_points();
        let now = self.fs()?.retention();
        let done = matches!(step, Step::Done);
        let model = self.model()?;
        let promised = if done { end } else { usize::MAX };
        model.rules.extend(now.map(|rule| crate::model::RuleLog { start, promised, rule }));
        if done {
            model.synced(end);
        }
        Ok(step)
    }

    pub(super) fn seek(&mut self, ino: u64, offset: u64) -> Check {
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
        let hole = match &hole {
            Ok(at) if *at >= offset && *at <= content.size() && offset < content.size() => *at,
            Err(e) if is_past_end(e) && offset >= content.size() => return Ok(Step::Done),
            other => return Err(format!("next hole from {offset}: {other:?} of {}", content.size())),
        };
        let page = PAGE_BYTES as u64;
        if !content.is_zero(hole, (hole / page + 1) * page) {
            return Err(format!("data at {hole} is said to be a hole, the next from {offset}"));
        }
        if (skipped == offset) == (hole == offset) {
            return Err(format!("{offset} is in data and in a hole, or in neither: data at {skipped}, hole at {hole}"));
        }
        Ok(Step::Done)
    }

    /// Listing in small pieces gives every entry once.
    pub(super) fn list(&mut self, dir: u64) -> Check {
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
}
