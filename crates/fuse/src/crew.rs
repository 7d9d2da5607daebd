//! The serving threads: a few listen, and as many as there are requests serve.
//!
//! Whoever takes a request and leaves nobody listening calls another thread. So a request that waits for a slow device, for
//! room or for a commit holds up no other one, and several devices have something to do at once.
//!
//! Invariants
//! 1. Somebody listens, as long as fewer than `most` threads serve at once.
//! 2. At most `listening_max` threads listen; who comes back while so many do rests, without memory for requests, until called. While
//!    hardly more than one serves at a time, few listen: each request wakes the one that has listened longest, whose processor sleeps
//!    and whose caches are cold, although the one that served the last would do.
//! 3. When the end has come, nobody rests.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Of so many requests it is remembered how many threads served at once.
const WINDOW: u32 = 256;
/// No more serve at once where one program asks for one thing after another: one, and one that has answered and is on its way back.
const ALONE: usize = 2;
/// So many more are awake then.
const SPARE: usize = 2;

/// Who does what at the moment.
#[derive(Debug, Default)]
struct State {
    /// Threads that wait for a request, or are on the way to.
    listening: usize,
    resting: usize,
    /// Resting threads that were called and have not got up yet.
    called: usize,
    threads: usize,
    /// Most that served at once, of this window and the one before.
    most: [usize; 2],
    /// Requests of this window.
    requests: u32,
    ended: bool,
}

impl State {
    /// A request was taken.
    fn count(&mut self) {
        let serving = self.threads - self.listening - self.resting;
        self.most[0] = self.most[0].max(serving);
        self.requests += 1;
        if self.requests == WINDOW {
            self.requests = 0;
            self.most = [0, self.most[0]];
        }
    }

    /// Whether one more that listens would only take turns with the others.
    fn is_enough(&self) -> bool {
        let most = self.most[0].max(self.most[1]);
        self.listening > 0 && most <= ALONE && self.threads - self.resting > most + SPARE
    }
}

/// The threads of a session.
#[derive(Debug)]
pub(crate) struct Crew {
    state: Mutex<State>,
    changed: Condvar,
    listening_max: usize,
    most: usize,
}

impl Crew {
    /// `listeners` threads that are about to listen, and up to `most` when they are needed, of which up to `listening_max` listen.
    pub fn new(listeners: usize, listening_max: usize, most: usize) -> Self {
        let state = State { listening: listeners, threads: listeners, ..State::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), listening_max, most }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread has taken a request, or will listen no more. True when a further thread is to be started; it counts
    /// as listening already.
    #[must_use]
    pub fn stops_listening(&self) -> bool {
        let mut state = self.lock();
        state.listening -= 1;
        state.count();
        if state.listening > 0 || state.ended {
            return false;
        }
        if state.resting > 0 {
            state.resting -= 1;
            state.called += 1;
            state.listening += 1;
            drop(state);
            self.changed.notify_one();
            return false;
        }
        if state.threads >= self.most {
            return false;
        }
        state.threads += 1;
        state.listening += 1;
        true
    }

    /// The further thread could not be started.
    pub fn not_started(&self) {
        let mut state = self.lock();
        state.threads -= 1;
        state.listening -= 1;
    }

    /// Whether there is no thread at all.
    pub fn is_deserted(&self) -> bool {
        self.lock().threads == 0
    }

    /// The calling thread has served a request: it listens again at once, or after a rest, before which it calls `lie_down`.
    /// False at the end.
    #[must_use]
    pub fn goes_on(&self, lie_down: impl FnOnce()) -> bool {
        let mut state = self.lock();
        if state.ended {
            return false;
        }
        if state.listening < self.listening_max && !state.is_enough() {
            state.listening += 1;
            return true;
        }
        state.resting += 1;
        drop(state);
        lie_down();
        let mut state = self.lock();
        while state.called == 0 && !state.ended {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.called == 0 {
            return false;
        }
        state.called -= 1;
        true
    }

    /// Nothing more will come.
    pub fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn who_leaves_nobody_listening_calls_another() {
        let crew = Crew::new(2, 2, 4);
        assert!(!crew.stops_listening(), "one listens still");
        assert!(crew.stops_listening() && crew.stops_listening());
        assert!(!crew.stops_listening(), "there are four");
        assert!(crew.goes_on(|| {}) && crew.goes_on(|| {}));
        crew.not_started();
        assert!(crew.stops_listening(), "the place of the one that was not started is free");
        assert_eq!(crew.lock().threads, 4);
    }

    #[test]
    fn who_was_called_in_the_place_of_others_listens_on() {
        let crew = Crew::new(1, 2, 8);
        assert!(crew.stops_listening() && crew.stops_listening());
        let listens = || crew.goes_on(|| panic!("while one listens less than may"));
        // One of the three that there are listens already.
        assert!(listens());
        assert!(!crew.stops_listening(), "another listens, and nobody has to be called");
        assert!(listens());
    }

    #[test]
    fn few_listen_while_one_program_asks() {
        let crew = Crew::new(8, 8, 8);
        let awake = |crew: &Crew| {
            let state = crew.lock();
            state.threads - state.resting
        };
        thread::scope(|scope| {
            // One request after the other: all but a few lie down.
            let (laid, heard) = std::sync::mpsc::channel();
            for _ in 0..5 {
                let laid = laid.clone();
                let crew = &crew;
                scope.spawn(move || {
                    assert!(!crew.stops_listening());
                    crew.goes_on(move || laid.send(()).unwrap())
                });
                heard.recv().unwrap();
            }
            assert_eq!(awake(&crew), 1 + SPARE);
            assert!(!crew.stops_listening() && crew.goes_on(|| panic!("there are few")));
            // Three at once call another, and nobody lies down from then on.
            assert!((0..3).all(|_| !crew.stops_listening()));
            assert_eq!(awake(&crew), 2 + SPARE);
            assert!(crew.goes_on(|| panic!("there is much to do")));
            assert!(crew.goes_on(|| panic!("there is much to do")));
            assert!(crew.goes_on(|| panic!("there is much to do")));
            assert_eq!(crew.lock().most, [3, 0]);
            for _ in 0..2 * WINDOW {
                assert!(!crew.stops_listening());
                let mut state = crew.lock();
                state.listening += 1;
            }
            assert_eq!(crew.lock().most[1], 1);
            assert!(crew.lock().is_enough());
            crew.end();
        });
    }

    #[test]
    fn resting_threads_are_called_before_others_are_started_and_get_up_at_the_end() {
        let crew = Crew::new(1, 1, 8);
        assert!(crew.stops_listening());
        let (laid, heard) = std::sync::mpsc::channel();
        let rest = || {
            let laid = laid.clone();
            crew.goes_on(move || laid.send(()).unwrap())
        };
        thread::scope(|scope| {
            let first = scope.spawn(rest);
            heard.recv().unwrap();
            assert!(!crew.stops_listening(), "the resting one is called");
            assert!(first.join().unwrap());
            let second = scope.spawn(rest);
            heard.recv().unwrap();
            thread::sleep(Duration::from_millis(10));
            assert!(!second.is_finished());
            crew.end();
            assert!(!second.join().unwrap());
        });
        assert!(!crew.goes_on(|| {}));
    }
}
