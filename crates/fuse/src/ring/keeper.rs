//! The keeper of a queue: holds entries and never waits for anything but them.

use super::entry::Place;
use super::leaders::Leaders;
use super::sys::{self, Event, Ring};
use super::{DEPTH, Queue};
use crate::dispatch::{Server, Syncs};
use crate::init::TRANSFER_BYTES_MAX;
use crate::transport::{RequestBuffer, Sink};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

/// A queue with what serves it.
pub(crate) struct Desk {
    pub(super) queue: Arc<Queue>,
    /// Where replies go, by entry.
    pub(super) sinks: Vec<Arc<dyn Sink>>,
    pub(super) server: Arc<Server>,
    pub(super) leaders: Arc<Leaders>,
}

impl Desk {
    pub fn new(queue: Arc<Queue>, server: Arc<Server>, leaders: Arc<Leaders>) -> Self {
        let place = |index| Arc::new(Place { queue: queue.clone(), index }) as Arc<dyn Sink>;
        Self { sinks: (0..DEPTH).map(place).collect(), queue, server, leaders }
    }

    /// Serves until the end. `start_worker` has another thread call [`Desk::work`], and says whether it could.
    pub fn keep(&self, start_worker: &dyn Fn() -> bool) -> io::Result<()> {
        sys::stay_on(self.queue.number);
        let kept = self.keep_entries(start_worker);
        self.queue.bench.end();
        kept
    }

    fn keep_entries(&self, start_worker: &dyn Fn() -> bool) -> io::Result<()> {
        let queue = &self.queue;
        let mut ring = Ring::new(sys::commands_of(&queue.slots))?;
        ring.register(queue)?;
        ring.hear(queue);
        let mut held = queue.slots.len();
        let mut buffer = RequestBuffer::new(TRANSFER_BYTES_MAX);
        let (mut answered, mut events, mut over) = (Vec::new(), Vec::new(), false);
        loop {
            queue.inbox.take(&mut answered);
            over |= queue.inbox.over.load(Ordering::Acquire);
            held += answered.len();
            answered.drain(..).for_each(|(index, unique)| ring.commit(queue, index, unique));
            if over && held == 0 {
                break;
            }
            ring.wait(&mut events)?;
            for event in events.drain(..) {
                match event {
                    Event::Bell(rings_on) => {
                        if !rings_on {
                            ring.hear(queue);
                        }
                    }
                    Event::Back(index, error) => {
                        queue.slots[usize::from(index)].is_over();
                        held -= 1;
                        over = true;
                        is_end(error)?;
                    }
                    Event::Request(index) => {
                        held -= 1;
                        queue.traffic.begin();
                        if !self.at_once(index) && self.give(index, start_worker) {
                            continue;
                        }
                        if let Some(unique) = self.serve(index, &mut buffer)? {
                            ring.commit(queue, index, unique);
                            held += 1;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the request in an entry can be answered here. Of a client that is alone a worker does all, and the entry stays with it.
    fn at_once(&self, index: u16) -> bool {
        let slot = &self.queue.slots[usize::from(index)];
        !self.queue.traffic.is_alone()
            && slot.head().is_some_and(|(head, args)| self.server.takes_at_once(&head, &args))
    }

    /// Gives the request to a worker; false where there can be none.
    fn give(&self, index: u16, start_worker: &dyn Fn() -> bool) -> bool {
        let bench = &self.queue.bench;
        // What comes back is what was just given: where no worker is, none of the others stayed.
        !bench.give(index) || start_worker() || bench.not_started().is_none()
    }

    /// The number of the request, if it was answered.
    fn serve(&self, index: u16, buffer: &mut RequestBuffer) -> io::Result<Option<u64>> {
        let slot = &self.queue.slots[usize::from(index)];
        slot.receive(buffer, Some(thread::current().id()))?;
        self.handle(index, buffer, &Syncs::AtOnce(&self.leaders));
        Ok(slot.answer())
    }

    pub(super) fn handle(&self, index: u16, buffer: &mut RequestBuffer, syncs: &Syncs<'_>) {
        // The panic hook has said what happened; the reply that was dropped on the way out has answered.
        let handled = || self.server.handle(buffer, &self.sinks[usize::from(index)], syncs);
        let _ = catch_unwind(AssertUnwindSafe(handled));
    }
}

/// Whether an error with which the kernel gives an entry back says that the mount is gone, or that there is no ring: then the
/// kernel goes on without. Anything else is an error.
pub(super) fn is_end(error: i32) -> io::Result<()> {
    match error {
        libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::EOPNOTSUPP => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
