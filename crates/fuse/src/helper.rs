//! A thread for what no serving thread may wait for: whole-volume syncs, what is
//! let go of, and changes that first need the kernel to write out its pages.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs one after the other on a thread that is started with the first.
pub(crate) struct Helper(Mutex<Option<(Sender<Job>, JoinHandle<()>)>>);

impl Helper {
    pub fn new() -> Self {
        Self(Mutex::new(None))
    }
    /// Has `job` run. A job that cannot be is dropped, which answers its request.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            let (sender, jobs) = mpsc::channel();
            let thread = thread::Builder::new().name("nenrin-helper".into());
            *running = thread.spawn(move || work(jobs)).ok().map(|thread| (sender, thread));
        }
        if let Some((sender, _)) = &*running {
            // The receiving end lives as long as this one does.
            let _ = sender.send(Box::new(job));
        }
    }
    /// Waits until every job has run.
    pub fn finish(&self) {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((sender, thread)) = running {
            drop(sender);
            let _ = thread.join();
        }
    }
}

fn work(jobs: Receiver<Job>) {
    for job in jobs {
        // A job that panics must not take the later ones with it.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}

/// Runs each job on a thread of its own: those that may take for as long as others ask for more.
#[derive(Default)]
pub(crate) struct Apart(Mutex<Vec<JoinHandle<()>>>);

impl Apart {
    /// Has `job` run. A job that cannot be is dropped, which answers its request.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let started = thread::Builder::new().name("nenrin-apart".into()).spawn(job);
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|thread| !thread.is_finished());
        running.extend(started.ok());
    }
    /// Waits until every job has run.
    pub fn finish(&self) {
        let running = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // What a job panicked of the panic hook has said.
        running.into_iter().for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
