//! Work in steps that may be ended at any time: who ends it is told how far it came.

use crate::error::INTERRUPTED;
use crate::output;
use crate::sys;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// What is told when somebody ends this process by a signal.
pub struct Ending(Arc<Mutex<String>>);

impl Ending {
    /// From now on such a signal ends the process with a word on that, and [`INTERRUPTED`]. What is under way in the owner of the volume
    /// ends with its step.
    ///
    /// # Errors
    /// Signals cannot be had; no threads are left.
    pub fn told(first: &str) -> io::Result<Self> {
        sys::block_ending_signals()?;
        let text = Arc::new(Mutex::new(first.to_owned()));
        let told = text.clone();
        let wait = move || {
            sys::wait_for_ending_signal();
            // Held until the end: nothing else is said by then.
            let text = told.lock().unwrap_or_else(PoisonError::into_inner);
            output::end_progress();
            output::notice(format!("interrupted: {text}"));
            std::process::exit(i32::from(INTERRUPTED));
        };
        thread::Builder::new().name("nenrin-signal".into()).spawn(wait)?;
        Ok(Self(text))
    }

    /// What was said last.
    pub fn said(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How far it came.
    pub fn say(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}
