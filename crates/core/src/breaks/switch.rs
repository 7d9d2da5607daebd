//! What is broken in a thread at the moment.

use super::Break;
use std::cell::Cell;

thread_local! {
    static NOW: Cell<Option<Break>> = const { Cell::new(None) };
}

/// Runs `f` with `what` broken, in this thread only: the core starts none.
pub fn with<T>(what: Break, f: impl FnOnce() -> T) -> T {
    struct Mend(Option<Break>);
    impl Drop for Mend {
        fn drop(&mut self) {
            NOW.set(self.0);
        }
    }
    let _mend = Mend(NOW.replace(Some(what)));
    f()
}

/// What is broken in this thread at the moment.
pub fn now() -> Option<Break> {
    NOW.get()
}

/// Whether this is broken at the moment.
pub fn broken(what: Break) -> bool {
    NOW.get() == Some(what)
}
