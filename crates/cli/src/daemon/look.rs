//! Looks at images, each on a thread of its own: where one lies on a host that does not answer looking does not return, and nobody
//! may wait for that who is needed for anything else.
//!
//! Invariants
//! 1. Nobody but that thread waits for a look for longer than he wants to, nor for the thread.
//! 2. At most one thread looks at an image, however many ask; it goes by itself when nobody asks any more.
//! 3. What is told of an image was seen of it as it is known now.

use super::watch::{Image, Problem};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread waits for somebody to ask again.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// How it is found out what is wrong with an image.
type How = Box<dyn Fn(&Image) -> Option<Problem> + Send + Sync>;

/// The looks at one image.
pub struct Look {
    how: How,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Looks that were asked for.
    asked: u64,
    /// Of which image last.
    image: Option<Image>,
    /// The last of those that has ended.
    ended: u64,
    /// What was seen by then, and of what.
    seen: Option<(Image, Option<Problem>)>,
    has_thread: bool,
}

impl Look {
    pub fn new(how: impl Fn(&Image) -> Option<Problem> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { how: Box::new(how), state: Mutex::default(), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Looking is done without it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has somebody look, from now on. The number of that look.
    pub fn ask(self: &Arc<Self>, image: &Image) -> u64 {
        let mut state = self.lock();
        state.asked += 1;
        state.image = Some(image.clone());
        if !state.has_thread {
            let this = self.clone();
            // Without one it is what was seen last.
            state.has_thread = thread::Builder::new().name("nenrin-look".into()).spawn(move || this.serve()).is_ok();
        }
        self.changed.notify_all();
        state.asked
    }

    /// Waits for a look that was asked for, no longer than that.
    pub fn wait(&self, number: u64, end: Instant) {
        let mut state = self.lock();
        while state.ended < number && state.has_thread {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What was wrong with this image when it was looked at last.
    pub fn seen(&self, image: &Image) -> Option<Problem> {
        let state = self.lock();
        let (_, problem) = state.seen.as_ref().filter(|(of, _)| of.is_same(image))?;
        problem.clone()
    }

    /// Looks as long as somebody asks.
    fn serve(&self) {
        let mut state = self.lock();
        let mut idle_since = Instant::now();
        loop {
            if let Some(image) = state.image.take() {
                let number = state.asked;
                drop(state);
                // What went wrong the panic hook has said; it is what was seen before.
                let seen = catch_unwind(AssertUnwindSafe(|| (self.how)(&image)));
                state = self.lock();
                state.ended = number;
                state.seen = seen.ok().map(|problem| (image, problem)).or(state.seen.take());
                self.changed.notify_all();
                idle_since = Instant::now();
                continue;
            }
            let left = IDLE_TIME.saturating_sub(idle_since.elapsed());
            if left.is_zero() {
                state.has_thread = false;
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    #[test]
    fn a_look_that_does_not_return_is_the_only_one() {
        let (go, wait) = mpsc::channel::<()>();
        let (wait, looks) = (Mutex::new(wait), Arc::new(AtomicU32::new(0)));
        let counted = looks.clone();
        let look = Look::new(move |image| {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = wait.lock().unwrap().recv();
            Some(Problem { uuid: [1; 16], text: image.path().display().to_string(), open_as: None })
        });
        let [first, second] = ["first", "second"].map(Image::at);
        for _ in 0..10 {
            let (number, begun) = (look.ask(&first), Instant::now());
            look.wait(number, begun + Duration::from_millis(20));
            assert!(begun.elapsed() < Duration::from_secs(5) && look.seen(&first).is_none());
        }
        assert_eq!((looks.load(Ordering::SeqCst), Arc::strong_count(&look)), (1, 2));
        // What was asked for meanwhile is looked at once, as it is by then.
        let number = look.ask(&second);
        drop(go);
        look.wait(number, Instant::now() + Duration::from_secs(60));
        assert_eq!(looks.load(Ordering::SeqCst), 2);
        assert_eq!(look.seen(&second).unwrap().text, "second");
        assert!(look.seen(&first).is_none(), "of what it is no more");
    }

    #[test]
    fn a_mistake_is_no_news() {
        let look = Look::new(|image| {
            assert!(image.path().ends_with("good"), "this panic is part of the test");
            Some(Problem { uuid: [1; 16], text: "bad".into(), open_as: None })
        });
        let [good, worse] = ["good", "worse"].map(Image::at);
        for image in [&good, &worse, &good] {
            look.wait(look.ask(image), Instant::now() + Duration::from_secs(60));
            assert_eq!((look.seen(&good).is_some(), look.seen(&worse)), (true, None));
        }
    }
}
