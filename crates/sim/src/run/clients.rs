//! Syncs and writes of other clients, under way while the calls of the workload are made.

use super::{Check, Run, Step};
use crate::clock::VirtualClock;
use crate::hash;
use crate::model::Promise;
use crate::queue::Queue;
use crate::subject::{Elsewhere, Subject, UID};
use crate::turns::{TURNS_MAX, Turns};
use nenrin_core::{At, Done, Error, Order};
use nenrin_device::BlockDevice;
use nenrin_format::{Ino, Time};
use std::sync::{Arc, Mutex, PoisonError};

/// Most calls of other clients at once.
const CLIENTS_MAX: usize = 3;
/// One of so many writes is another client's.
const WRITES_BESIDE: u64 = 3;

/// What a sync was answered, and after how many device operations.
pub(super) type Answer = Arc<Mutex<Option<(Result<(), Error>, usize)>>>;

/// A sync that was asked for.
struct Asked {
    ino: u64,
    promise: Promise,
    answer: Answer,
}

/// How many bytes a write took that has ended.
type Taken = Arc<Mutex<Option<Result<usize, Error>>>>;

/// A write whose call has not ended, but what it wrote is there.
struct Writing {
    ino: u64,
    bytes: usize,
    taken: Taken,
}

/// The queues of the devices, and the clients besides the workload.
#[derive(Default)]
pub struct Clients {
    queues: Vec<Arc<Queue<Arc<dyn BlockDevice>>>>,
    turns: Option<Arc<Turns>>,
    asked: Vec<Asked>,
    writing: Vec<Writing>,
    /// Writes that were taken, and whose programs have not been told.
    untold: Vec<(u64, Answer)>,
    /// What cleaning by another client was answered.
    cleaning: Option<Answer>,
    /// Writes that ever were under way when the next call was made.
    left_writing: u64,
}

impl Clients {
    /// The queue in front of each device and, where there are others, who decides turns.
    #[must_use]
    pub fn new(queues: Vec<Arc<Queue<Arc<dyn BlockDevice>>>>, turns: Option<Arc<Turns>>) -> Self {
        Self { queues, turns, ..Self::default() }
    }
    /// Where a call waits it lets the others run.
    pub fn decide_turns(&self, clock: &VirtualClock) {
        if let Some(t) = &self.turns {
            clock.decide_turns(Arc::clone(t));
        }
    }
    /// Whether a call of theirs is under way or not answered.
    pub(super) fn are_busy(&self) -> bool {
        !self.asked.is_empty() || self.turns.as_ref().is_some_and(|t| t.under_way() > 0)
    }
    /// A sync was asked for, and is answered later.
    pub(super) fn ask(&mut self, ino: u64, promise: Promise, answer: Answer) {
        self.asked.push(Asked { ino, promise, answer });
    }
    /// A write was taken, and its program is told, now or later.
    pub(super) fn tells(&mut self, ino: u64, answer: Answer) {
        self.untold.push((ino, answer));
    }
    /// Whether the next sync is another client's.
    pub(super) fn takes_over(&self) -> bool {
        self.turns.as_ref().is_some_and(|t| t.chance(60))
    }
    /// Others may have their turn between two calls.
    pub(super) fn between(&self) {
        if let Some(t) = &self.turns {
            while t.under_way() > 0 && t.chance(30) {
                t.run_one();
            }
        }
    }
    /// Requests that overtook others, and calls that were interrupted.
    #[must_use]
    pub fn activity(&self) -> [(&'static str, u64); 3] {
        [
            ("writes under way beside other calls", self.left_writing),
            ("requests that overtook others", self.queues.iter().map(|q| q.overtaken()).sum()),
            ("calls interrupted by others", self.turns.as_ref().map_or(0, |t| t.pauses())),
        ]
    }
    /// The process dies: its threads end where they are, and what they submitted is carried out.
    pub(super) fn die(&mut self) -> Result<(), String> {
        self.asked.clear();
        self.writing.clear();
        self.untold.clear();
        self.cleaning = None;
        self.turns.as_ref().map_or(Ok(()), |t| t.stop())?;
        for q in &self.queues {
            q.settle();
        }
        Ok(())
    }
}

impl<S: Subject> Run<S> {
    /// Another client asks for a sync of `ino`; it is under way when this returns, or answered.
    pub(super) fn fsync_beside(&mut self, ino: u64, start: usize) -> Check {
        let Some(turns) = self.clients.turns.clone() else {
            return self.fsync(ino, true, start);
        };
        if self.model()?.tree.inode(ino).is_err() {
            return self.fsync(ino, true, start);
        }
        turns.run_until(CLIENTS_MAX - 1)?;
        self.hear()?;
        let all = self.options.order == Order::Strict;
        let model = self.model()?;
        if all {
            model.end_holds(start);
        } else {
            model.flush(ino, start);
            model.ask(ino);
        }
        let promise = model.promise(ino, all);
        let (answer, done) = self.teller();
        match self.fs()?.fsync_elsewhere(Ino(ino), done) {
            Ok(call) => turns.begin(call),
            // A file system that only one thread uses.
            Err(_) => return self.fsync(ino, true, start),
        }
        self.clients.ask(ino, promise, answer);
        self.hear()?;
        Ok(Step::Done)
    }

    /// Another client has all cleaned that can be; that is under way when this returns, or done.
    pub(super) fn clean_beside(&mut self, start: usize) -> Check {
        let Some(turns) = self.clients.turns.clone() else {
            return self.clean(start);
        };
        turns.run_until(CLIENTS_MAX - 1)?;
        self.hear()?;
        let (answer, done) = self.teller();
        match self.fs()?.clean_elsewhere(done) {
            Ok(call) => turns.begin(call),
            // A file system that only one thread uses.
            Err(_) => return self.clean(start),
        }
        self.clients.cleaning = Some(answer);
        self.hear()?;
        Ok(Step::Done)
    }

    /// Takes in how cleaning by another client ended, if it did. Where there is no room for it, it is refused.
    fn hear_cleaner(&mut self) -> Result<(), String> {
        let now = |answer: &Answer| answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((result, _)) = self.clients.cleaning.as_ref().and_then(now) else { return Ok(()) };
        self.clients.cleaning = None;
        match result {
            Ok(()) | Err(Error::NoSpace) => Ok(()),
            Err(e) if self.fs.as_ref().is_some_and(|fs| fs.failed().is_some()) => {
                self.beside_failed.get_or_insert(e);
                Ok(())
            }
            Err(e) => Err(format!("cleaning by another client failed: {e}")),
        }
    }

    /// Whether a write of this file is another client's. In strict order a sync waits for all data, and none is held back.
    pub(super) fn writes_beside(&mut self, ino: u64, start: usize) -> Result<bool, String> {
        let drawn = hash::of_words(&[self.digest, start as u64, 31]) % WRITES_BESIDE == 0;
        let Some(turns) = self.clients.turns.clone().filter(|_| drawn && self.options.order == Order::Relaxed) else {
            return Ok(false);
        };
        if self.model()?.tree.inode(ino).is_err() {
            return Ok(false);
        }
        turns.run_until(CLIENTS_MAX - 1)?;
        self.hear()?;
        Ok(true)
    }

    /// Another client writes. Its call may be under way when this returns, as when it has a burst made: but what it wrote is there.
    pub(super) fn write_beside(
        &mut self,
        ino: u64,
        offset: u64,
        data: &[u8],
        now: Time,
        told: Done,
    ) -> Result<Result<usize, Error>, String> {
        let taken = Taken::default();
        let hand_on = Arc::clone(&taken);
        let take = move |got| *hand_on.lock().unwrap_or_else(PoisonError::into_inner) = Some(got);
        let write = Elsewhere { ino: Ino(ino), offset, data: data.to_vec(), taken: Box::new(take), told };
        let turns = self.clients.turns.clone().ok_or("there are no other clients")?;
        match self.fs()?.accept_elsewhere(write) {
            Ok(call) => turns.begin(call),
            // A file system that only one thread uses.
            Err(write) => return Ok(self.fs()?.accept(write.ino, offset, data, UID, write.told)),
        }
        for _ in 0..TURNS_MAX {
            if let Some(got) = taken.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Ok(got);
            }
            // No other call has this time.
            let is_there = self.fs()?.getattr(At::Live, Ino(ino)).is_ok_and(|a| a.mtime == now);
            if is_there {
                self.clients.writing.push(Writing { ino, bytes: data.len(), taken });
                self.clients.left_writing += 1;
                return Ok(Ok(data.len()));
            }
            turns.run_one();
        }
        Err(format!("the write to inode {ino} by another client does not end"))
    }

    /// Takes in how writes of others ended. While no call is under way all that were taken have been told.
    fn hear_writers(&mut self) -> Result<(), String> {
        let now = |answer: &Answer| answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut failed = Vec::new();
        let mut wrong = None;
        self.clients.writing.retain(|w| match w.taken.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => true,
            Some(Ok(n)) if n == w.bytes => false,
            Some(Ok(n)) => {
                wrong = Some(format!("{n} of {} bytes to inode {} were written by another client", w.bytes, w.ino));
                false
            }
            Some(Err(e)) => {
                failed.push((w.ino, e));
                false
            }
        });
        self.clients.untold.retain(|(ino, answer)| match now(answer) {
            None => true,
            Some((told, _)) => {
                failed.extend(told.err().map(|e| (*ino, e)));
                false
            }
        });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        for (ino, e) in failed {
            if self.fs.as_ref().is_none_or(|fs| fs.failed().is_none()) {
                return Err(format!("the write to inode {ino} failed after it was taken: {e}"));
            }
            self.beside_failed.get_or_insert(e);
        }
        match self.clients.untold.first() {
            Some((ino, _)) if self.clients.turns.as_ref().is_none_or(|t| t.under_way() == 0) => {
                Err(format!("a write to inode {ino} was taken, and its program is never told"))
            }
            _ => Ok(()),
        }
    }

    /// Where an answer comes to, and what brings it. Promises bind from that moment on, not from when a call returns.
    pub(super) fn teller(&self) -> (Answer, nenrin_core::Done) {
        let answer = Answer::default();
        let (inner, disk) = (Arc::clone(&answer), Arc::clone(&self.disk));
        let done = move |r| *inner.lock().unwrap_or_else(PoisonError::into_inner) = Some((r, disk.cut_points()));
        (answer, Box::new(done))
    }

    /// Takes in what clients were told meanwhile.
    pub(super) fn hear(&mut self) -> Result<(), String> {
        self.hear_writers()?;
        self.hear_cleaner()?;
        let mut told = Vec::new();
        self.clients.asked.retain(|a| {
            let answer = a.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
            match answer {
                Some((result, end)) => {
                    told.push((a.ino, a.promise.clone(), result, end));
                    false
                }
                None => true,
            }
        });
        // In the order of the answers: later promises hold no less.
        told.sort_by_key(|t| t.3);
        for (ino, promise, result, end) in told {
            match result {
                Ok(()) => self.model()?.reached(&promise, end),
                Err(e) if self.fs.as_ref().is_some_and(|fs| fs.failed().is_some()) => {
                    self.beside_failed.get_or_insert(e);
                }
                Err(e) => return Err(format!("the sync of inode {ino} by another client failed: {e}")),
            }
        }
        Ok(())
    }

    /// The calls of all other clients come to their end.
    pub(super) fn others_end(&mut self) -> Result<(), String> {
        if let Some(turns) = self.clients.turns.clone() {
            turns.run_until(0)?;
            self.hear()?;
            if let Some(a) = self.clients.asked.first() {
                return Err(format!("the sync of inode {} by another client was never answered", a.ino));
            }
        }
        Ok(())
    }
}
