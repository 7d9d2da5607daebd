//! A recording: a thread that empties the kernel's buffers into a file.

use crate::device::{BlockDev, Counters};
use crate::event::{Event, EventKind};
use crate::file::{DeviceInfo, End, Header, Writer};
use crate::kernel::Instance;
use crate::{TraceError, sys};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time between two looks at the buffers.
const ROUND: Duration = Duration::from_millis(20);
/// How long the last requests are waited for at the end.
const SETTLE: Duration = Duration::from_secs(2);

/// What a recording came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests issued, without those given back.
    pub requests: u64,
    /// Events that the kernel had to drop.
    pub lost: u64,
    /// Nanoseconds it lasted.
    pub nanos: u64,
    /// The kernel's counters of each device over the recording.
    pub counters: Vec<Counters>,
}

enum Order {
    Mark(u64, String),
    Stop(Option<i32>),
}

/// A recording under way. Dropping it stops it; [`Recording::stop`] also tells what came of it.
pub struct Recording {
    orders: Sender<Order>,
    started: u64,
    thread: Option<JoinHandle<Result<Totals, TraceError>>>,
}

impl Recording {
    /// Begins to record these devices into a file that is open, which is, or is to be, called `path`: failures name that.
    ///
    /// # Errors
    /// No permission, no tracefs, no such device, a file that cannot be written.
    pub fn start(devices: &[BlockDev], command: &[String], file: File, path: &Path) -> Result<Self, TraceError> {
        let before = devices.iter().map(BlockDev::counters).collect::<Result<Vec<_>, _>>()?;
        let mut instance = Instance::new(devices)?;
        // Before the header, whose time must not be earlier than that of the events.
        let started = instance.start()?;
        let header = Header {
            host: text_of("/proc/sys/kernel/hostname"),
            kernel: text_of("/proc/sys/kernel/osrelease"),
            command: command.to_vec(),
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64),
            devices: devices.iter().map(DeviceInfo::from).collect(),
            source: "kernel".into(),
        };
        let writer = Writer::to(file, &header).map_err(TraceError::io(path))?;
        let (orders, inbox) = channel();
        let worker = Worker { instance, writer, devices: devices.to_vec(), before, path: path.to_owned(), requests: 0 };
        let thread = std::thread::Builder::new().name("trace".into()).spawn(move || worker.run(&inbox));
        Ok(Self { orders, started, thread: Some(thread.map_err(TraceError::io(path))?) })
    }

    /// Says that something else goes on from now.
    pub fn mark(&self, text: &str) {
        // A recorder that has failed says so when it is stopped.
        let _ = self.orders.send(Order::Mark(sys::monotonic_nanos().saturating_sub(self.started), text.to_owned()));
    }

    /// Whether recording has failed; [`Recording::stop`] tells why.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the requests under way, ends the file and removes the instance.
    ///
    /// # Errors
    /// What recording failed with, also a panic of its thread.
    pub fn stop(mut self, exit_code: Option<i32>) -> Result<Totals, TraceError> {
        self.join(exit_code)
    }

    fn join(&mut self, exit_code: Option<i32>) -> Result<Totals, TraceError> {
        let _ = self.orders.send(Order::Stop(exit_code));
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(TraceError::Died),
            None => Ok(Totals::default()),
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.join(None);
        }
    }
}

struct Worker {
    instance: Instance,
    writer: Writer,
    devices: Vec<BlockDev>,
    before: Vec<Counters>,
    path: PathBuf,
    requests: u64,
}

impl Worker {
    fn run(mut self, inbox: &Receiver<Order>) -> Result<Totals, TraceError> {
        let mut marks: Vec<(u64, String)> = Vec::new();
        let mut events = Vec::new();
        let mut wait = ROUND;
        let exit_code = 'recording: loop {
            let order = inbox.recv_timeout(wait);
            self.instance.drain(false, &mut events)?;
            // What was marked before the last of these events was sent before, too.
            for order in std::iter::once(order).chain(inbox.try_iter().map(Ok)) {
                match order {
                    Ok(Order::Mark(nanos, text)) => marks.push((nanos, text)),
                    Ok(Order::Stop(code)) => break 'recording code,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break 'recording None,
                }
            }
            // Busy devices are looked at more often, so that no buffer runs over.
            wait = if events.len() > 2000 { ROUND / 4 } else { ROUND };
            self.write(&mut events, &mut marks, false)?;
        };
        self.settle();
        self.instance.stop()?;
        let nanos = self.instance.elapsed();
        let after = self.devices.iter().map(BlockDev::counters).collect::<Result<Vec<_>, _>>()?;
        self.instance.drain(true, &mut events)?;
        self.write(&mut events, &mut marks, true)?;
        let counters: Vec<Counters> = after.iter().zip(&self.before).map(|(a, b)| a.since(b)).collect();
        let lost = self.instance.lost();
        let end = End { nanos, lost, counters: counters.clone(), exit_code };
        self.writer.end(&end).map_err(TraceError::io(&self.path))?;
        Ok(Totals { requests: self.requests, lost, nanos, counters })
    }

    /// Writes what is in order, with the marks between.
    fn write(&mut self, events: &mut Vec<Event>, marks: &mut Vec<(u64, String)>, last: bool) -> Result<(), TraceError> {
        let failed = TraceError::io(&self.path);
        for name in self.instance.take_names() {
            self.writer.name(&name).map_err(&failed)?;
        }
        let mut due = 0;
        for e in events.iter() {
            while let Some((at, text)) = marks.get(due).filter(|(at, _)| *at <= e.nanos) {
                self.writer.mark(*at, text).map_err(&failed)?;
                due += 1;
            }
            self.writer.event(e).map_err(&failed)?;
            match e.kind {
                EventKind::Issue => self.requests += 1,
                EventKind::Requeue => self.requests = self.requests.saturating_sub(1),
                EventKind::Complete => {}
            }
        }
        marks.drain(..due);
        if last {
            for (at, text) in marks.drain(..) {
                self.writer.mark(at, &text).map_err(&failed)?;
            }
        }
        events.clear();
        Ok(())
    }

    /// Lets what was issued complete, so that counts and counters agree.
    fn settle(&self) {
        let end = Instant::now() + SETTLE;
        while self.devices.iter().any(|d| d.inflight() > 0) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn text_of(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_that_died_has_counted_nothing() {
        let (orders, inbox) = channel();
        let thread = std::thread::spawn(move || {
            let _ = inbox.recv();
            panic!("as a fault would")
        });
        let recording = Recording { orders, started: 0, thread: Some(thread) };
        assert!(matches!(recording.stop(None), Err(TraceError::Died)));
    }
}
