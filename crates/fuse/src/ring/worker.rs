//! A worker of a queue: serves one request at a time, and may wait for what it takes.

use super::keeper::{Desk, is_end};
use super::sys::{self, Event, Ring};
use crate::dispatch::Syncs;
use crate::init::TRANSFER_BYTES_MAX;
use crate::proto::flags::Opcode;
use crate::transport::RequestBuffer;
use std::io;
use std::thread;

impl Desk {
    /// Serves until the end what the keeper gives, and what comes to the entry of the last answer.
    pub fn work(&self) -> io::Result<()> {
        sys::stay_on(self.queue.number);
        // Without a ring of its own all its replies go through the keeper.
        let mut ring = Ring::new(1).ok();
        let mut buffer = RequestBuffer::new(TRANSFER_BYTES_MAX);
        let mut events = Vec::new();
        while let Some(index) = self.queue.bench.take() {
            while let Some(unique) = self.serve_waiting(index, &mut buffer)? {
                let Some(ring) = &mut ring else {
                    self.queue.inbox.post(index, unique);
                    break;
                };
                ring.commit(&self.queue, index, unique);
                ring.wait(&mut events)?;
                // One command is under way, so one event came.
                if let Some(Event::Back(_, error)) = events.pop() {
                    self.queue.slots[usize::from(index)].is_over();
                    self.queue.inbox.end();
                    return is_end(error);
                }
                self.queue.traffic.begin();
            }
            buffer.rest();
        }
        Ok(())
    }

    /// The number of the request, if this thread has answered it and the entry is its own.
    fn serve_waiting(&self, index: u16, buffer: &mut RequestBuffer) -> io::Result<Option<u64>> {
        let slot = &self.queue.slots[usize::from(index)];
        let alone = self.queue.traffic.is_alone();
        // Who leads for others answers them all before it comes back, and must not keep its own answer so long.
        let comes_back = match slot.head().map(|(head, _)| Opcode::from_number(head.opcode)) {
            Some(Some(Opcode::Fsync | Opcode::Fsyncdir)) => alone,
            // With a sync behind it, where the handle syncs.
            Some(Some(Opcode::Fallocate | Opcode::CopyFileRange | Opcode::CopyFileRange64)) => false,
            _ => true,
        };
        let by = comes_back.then(|| thread::current().id());
        slot.receive(buffer, by)?;
        let how = if alone { Syncs::Once(&self.leaders) } else { Syncs::Joined(&self.leaders) };
        self.handle(index, buffer, &how);
        Ok(slot.answer())
    }
}
