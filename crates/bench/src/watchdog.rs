//! Kills a daemon that hangs, so that a benchmark ends even when a contender does not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{command, sys};

/// Watches one span at a time.
#[derive(Default)]
pub struct Watchdog {
    watched: Arc<Mutex<Option<(Instant, u32)>>>,
    started: bool,
}

impl Watchdog {
    /// Runs `work`; when it takes longer than `limit`, the daemon is killed and `work` fails by itself.
    pub fn during<T>(&mut self, daemon: Option<u32>, limit: Duration, work: impl FnOnce() -> T) -> T {
        let Some(daemon) = daemon else { return work() };
        if !self.started {
            self.started = true;
            let watched = Arc::clone(&self.watched);
            std::thread::spawn(move || watch(&watched));
        }
        self.set(Some((Instant::now() + limit, daemon)));
        let result = work();
        self.set(None);
        result
    }

    fn set(&self, value: Option<(Instant, u32)>) {
        *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

fn watch(watched: &Mutex<Option<(Instant, u32)>>) {
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, daemon)) = watched.filter(|(end, _)| Instant::now() > *end) {
            eprintln!("nenrin-bench: the daemon {daemon} hangs and is killed");
            command::best_effort("killing it", sys::signal(daemon, libc::SIGKILL));
            *watched = None;
        }
    }
}
