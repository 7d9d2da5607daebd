//! Syncs of other clients, under way while the calls of the workload are made.

use super::{Check, Run, Step};
use crate::clock::VirtualClock;
use crate::model::Promise;
use crate::queue::Queue;
use crate::subject::Subject;
use crate::turns::Turns;
use nenrin_core::{Error, Order};
use nenrin_device::BlockDevice;
use nenrin_format::Ino;
use std::sync::{Arc, Mutex, PoisonError};

/// Most calls of other clients at once.
const CLIENTS_MAX: usize = 3;

/// What a sync was answered, and after how many device operations.
pub(super) type Answer = Arc<Mutex<Option<(Result<(), Error>, usize)>>>;

/// A sync that was asked for.
struct Asked {
    ino: u64,
    promise: Promise,
    answer: Answer,
}

/// The queues of the devices, and the clients besides the workload.
#[derive(Default)]
pub struct Clients {
    queues: Vec<Arc<Queue<Arc<dyn BlockDevice>>>>,
    turns: Option<Arc<Turns>>,
    asked: Vec<Asked>,
}

impl Clients {
    /// The queue in front of each device and, where there are others, who decides turns.
    #[must_use]
    pub fn new(queues: Vec<Arc<Queue<Arc<dyn BlockDevice>>>>, turns: Option<Arc<Turns>>) -> Self {
        Self { queues, turns, asked: Vec::new() }
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
    pub fn activity(&self) -> [(&'static str, u64); 2] {
        [
            ("requests that overtook others", self.queues.iter().map(|q| q.overtaken()).sum()),
            ("syncs interrupted by other calls", self.turns.as_ref().map_or(0, |t| t.pauses())),
        ]
    }
    /// The process dies: its threads end where they are, and what they submitted is carried out.
    pub(super) fn die(&mut self) -> Result<(), String> {
        self.asked.clear();
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

    /// Where an answer comes to, and what brings it. Promises bind from that moment on, not from when a call returns.
    pub(super) fn teller(&self) -> (Answer, nenrin_core::Done) {
        let answer = Answer::default();
        let (inner, disk) = (Arc::clone(&answer), Arc::clone(&self.disk));
        let done = move |r| *inner.lock().unwrap_or_else(PoisonError::into_inner) = Some((r, disk.cut_points()));
        (answer, Box::new(done))
    }

    /// Takes in what clients were told meanwhile.
    pub(super) fn hear(&mut self) -> Result<(), String> {
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
