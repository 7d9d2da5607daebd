//! A thread for what no serving thread may wait for: whole-volume syncs, what is
//! let go of, and changes that first need the kernel to write out its pages.
//!
//! Invariants
//! 1. What is waited for is the last job and not the end of its thread: the kernel keeps a thread that has requests under way to a
//!    device that does not answer.

use crate::sys;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;
type Running = Option<(Sender<Job>, Over)>;

/// Ends with the last job of a thread.
type Over = Receiver<()>;

/// Runs jobs one after the other on a thread that is started with the first, if it was not before.
pub(crate) struct Helper(Mutex<Running>);

impl Helper {
    pub fn new() -> Self {
        Self(Mutex::new(None))
    }
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Starts the thread.
    ///
    /// # Errors
    /// There can be no more.
    pub fn start(&self) -> io::Result<()> {
        self.started(&mut self.lock())
    }
    fn started(&self, running: &mut Running) -> io::Result<()> {
        if running.is_none() {
            let (sender, jobs) = mpsc::channel();
            *running = Some((sender, start("nenrin-helper", jobs)?));
        }
        Ok(())
    }
    /// Has `job` run. A job that cannot be is dropped, which answers its request.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        drop(self.take(Box::new(job)));
    }
    /// The same of what has to be done in any case: by the calling thread where no other can be started.
    pub fn run_anyhow(&self, job: impl FnOnce() + Send + 'static) {
        if let Err(job) = self.take(Box::new(job)) {
            job();
        }
    }
    /// Gives `job` to the thread, or back where there is none.
    fn take(&self, job: Job) -> Result<(), Job> {
        let mut running = self.lock();
        // Where that fails the job is the caller's again.
        let _ = self.started(&mut running);
        match &*running {
            // The receiving end lives as long as this one does.
            Some((sender, _)) => sender.send(job).map_err(|mpsc::SendError(job)| job),
            None => Err(job),
        }
    }
    /// Waits until every job has run.
    pub fn finish(&self) {
        let running = self.lock().take();
        if let Some((sender, over)) = running {
            drop(sender);
            let _ = over.recv();
        }
    }
}

/// A thread for these jobs.
fn start(name: &str, jobs: Receiver<Job>) -> io::Result<Over> {
    #[cfg(test)]
    if NO_THREADS.get() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let (ended, over) = mpsc::channel::<()>();
    let body = move || {
        work(jobs);
        drop(ended);
    };
    thread::Builder::new().name(name.into()).spawn(body).map(|_| over)
}

fn work(jobs: Receiver<Job>) {
    let _ = sys::set_io_flusher();
    for job in jobs {
        // A job that panics must not take the later ones with it.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}

/// Runs each job on a thread of its own: those that may take for as long as others ask for more.
#[derive(Default)]
pub(crate) struct Apart(Mutex<Vec<Over>>);

impl Apart {
    /// Has `job` run: by the calling thread where no other can be started.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let (sender, jobs) = mpsc::channel::<Job>();
        let Ok(started) = start("nenrin-apart", jobs) else { return job() };
        // It waits for that.
        let _ = sender.send(Box::new(job));
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|over| matches!(over.try_recv(), Err(TryRecvError::Empty)));
        running.push(started);
    }
    /// Waits until every job has run.
    pub fn finish(&self) {
        let running = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        running.into_iter().for_each(|over| _ = over.recv());
    }
}

#[cfg(test)]
thread_local! {
    /// This thread can start none.
    pub(crate) static NO_THREADS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_thread_starts_what_has_to_be_done_is_done_in_place() {
        let (sender, receiver) = mpsc::channel();
        let job = |i: u32| {
            let sender = sender.clone();
            move || sender.send((i, thread::current().id())).unwrap()
        };
        let (helper, apart, here) = (Helper::new(), Apart::default(), thread::current().id());
        NO_THREADS.set(true);
        helper.run(job(0));
        helper.run_anyhow(job(1));
        apart.run(job(2));
        NO_THREADS.set(false);
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [(1, here), (2, here)]);
        // And once there is one again, by that.
        helper.run_anyhow(job(3));
        helper.finish();
        apart.finish();
        assert!(matches!(receiver.try_iter().collect::<Vec<_>>()[..], [(3, by)] if by != here));
    }

    #[test]
    fn jobs_apart_wait_for_none_and_are_waited_for() {
        let (sender, receiver) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let apart = Apart::default();
        let first = sender.clone();
        apart.run(move || {
            let _ = wait.recv();
            first.send(1).unwrap();
        });
        apart.run(move || sender.send(2).unwrap());
        assert_eq!(receiver.recv(), Ok(2));
        drop(go);
        apart.finish();
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn jobs_run_in_order_and_outlive_a_panic() {
        let (sender, receiver) = mpsc::channel();
        let helper = Helper::new();
        for i in 0..3 {
            let sender = sender.clone();
            helper.run(move || {
                assert_ne!(i, 1, "this panic is part of the test");
                sender.send(i).unwrap();
            });
        }
        drop(sender);
        helper.finish();
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [0, 2]);
    }
}
