//! What is done beside requests, on threads of its own.
//!
//! Invariants
//! 1. A mistake in one of them costs what it did this time, and is told: it goes on.
//! 2. None of them is left when the volume is closed.

use super::service::{Event, Service};
use super::{TICK, TICKS_PER_WATCH};
use crate::control::{Presence, Server};
use crate::sys;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Longest pause after mistakes in a row.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A thread that does the same again and again, until this goes.
struct Repeated {
    thread: Option<thread::JoinHandle<()>>,
    stop: mpsc::Sender<()>,
}

impl Repeated {
    /// `tell` gets what a mistake in `work` said.
    fn start(
        name: &str,
        tell: impl Fn(&str) + Send + 'static,
        mut work: impl FnMut() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let repeat = move || {
            sys::set_io_flusher();
            let mut pause = TICK;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                match catch_unwind(AssertUnwindSafe(&mut work)) {
                    Ok(()) => pause = TICK,
                    Err(why) => {
                        let text = why.downcast_ref::<String>().map(String::as_str);
                        tell(text.or(why.downcast_ref::<&str>().copied()).unwrap_or("unknown"));
                        // What is wrong may be so for long.
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
            }
        };
        let thread = Some(thread::Builder::new().name(name.into()).spawn(repeat)?);
        Ok(Self { thread, stop })
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// What a thread does each time.
type Work = Box<dyn FnMut(&Arc<Service>) + Send>;

/// All of them.
pub struct Threads {
    _ticker: Repeated,
    /// A tick may be long at other work.
    _committer: Repeated,
    judges: Judges,
}

/// Those that are needed until the volume was closed, which may take its time, and wait for a device.
pub struct Judges {
    /// It may wait for a device that does not answer.
    _judge: Repeated,
    /// It does nothing but show other hosts that this one has the volume: a tick may take its time.
    _beater: Option<Repeated>,
}

impl Threads {
    /// Starts them.
    ///
    /// # Errors
    /// No threads are left; then none of these is.
    pub fn start(service: &Arc<Service>, server: &Server) -> std::io::Result<Self> {
        let start = |name: &'static str, mut work: Work| {
            let (told, service) = (service.clone(), service.clone());
            Repeated::start(name, move |what| told.note_mistake(name, what), move || work(&service))
        };
        let has_heart = service.fs().is_ok_and(|fs| fs.mmp().is_some());
        let this = Self {
            _ticker: start("nenrin-tick", ticking(server.presence()))?,
            _committer: start("nenrin-commit", Box::new(|s| s.commit_due()))?,
            judges: Judges {
                _judge: start("nenrin-judge", Box::new(|s| s.judge()))?,
                _beater: has_heart.then(|| start("nenrin-mmp", Box::new(|s| s.beat()))).transpose()?,
            },
        };
        let signals = service.clone();
        let waiter = move || loop {
            match sys::wait_for_ending_signal() {
                // As those who move logs away ask for it; there is no terminal that could have gone.
                libc::SIGHUP if signals.log.is_of_background() => signals.log.reopen(),
                signal => signals.send(Event::Signal(signal)),
            }
        };
        thread::Builder::new().name("nenrin-signal".into()).spawn(waiter)?;
        Ok(this)
    }

    /// Ends those that are not needed while the volume is closed.
    pub fn leave(self) -> Judges {
        self.judges
    }
}

/// What is looked at comes first: a mistake in a tick keeps none of it from being done.
fn ticking(presence: Presence) -> Work {
    let mut count = 0;
    Box::new(move |service| {
        count += 1;
        if count % TICKS_PER_WATCH == 0 {
            presence.keep();
            service.watch();
            service.note_damage();
            service.note_lost_writes();
            service.note_mended(false);
            service.note_let_go();
            service.note_rest();
            service.note_absent();
            service.note_joined();
            service.cut_in_background();
        }
        service.tick();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn work_goes_on_after_a_mistake_which_is_told() {
        let (count, told) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, heard) = (count.clone(), told.clone());
        let work = move || {
            let n = counted.fetch_add(1, Ordering::SeqCst);
            assert!(n != 1, "the second time");
        };
        let repeated = Repeated::start("work", move |what| heard.lock().unwrap().push(what.to_owned()), work).unwrap();
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while count.load(Ordering::SeqCst) < 5 {
            assert!(std::time::Instant::now() < end, "it goes on");
            thread::sleep(TICK / 4);
        }
        drop(repeated);
        let after = count.load(Ordering::SeqCst);
        thread::sleep(3 * TICK);
        assert_eq!(count.load(Ordering::SeqCst), after, "it has ended");
        assert_eq!(*told.lock().unwrap(), ["the second time"]);
    }
}
