//! What a trace says: totals, distributions, and the lists that plots need.
//!
//! Invariants
//! 1. One pass; memory is bounded by the kinds of things counted, by requests
//!    under way, and by one bit for each block written, not by the length.
//! 2. Requests are counted where they are issued; one given back is taken off.

mod grid;
mod histogram;
mod summary;

pub use grid::{Grid, Series};
pub use histogram::Histogram;
pub use summary::{Depth, OpTotals, Phase, Process, Summary, Traffic};

use crate::event::{Event, EventKind, Op};
use crate::file::{End, Header, Item};
use crate::{Reader, TraceError, text};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::io::Read;
use std::path::Path;

/// A request, put together from its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its issue.
    pub event: Event,
    /// Nanoseconds until it was complete; `None` where no completion was seen.
    pub latency: Option<u64>,
    /// 0, or a negative errno.
    pub error: i16,
}

/// A trace to be read, whatever wrote it.
pub enum Trace {
    /// A file of ours.
    File(Box<Reader>),
    /// Text of another tool.
    Text(std::vec::IntoIter<Item>, Box<(Header, Vec<String>, u64)>),
}

impl Trace {
    /// Opens what is at `path`.
    ///
    /// # Errors
    /// It cannot be read, or is neither a trace nor text of a tool that is known.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let mut head = Vec::new();
        let file = fs::File::open(path).map_err(TraceError::io(path))?;
        file.take(16 << 10).read_to_end(&mut head).map_err(TraceError::io(path))?;
        if !head.starts_with(&crate::file::MAGIC) && text::looks_like_text(&head) {
            let bytes = fs::read(path).map_err(TraceError::io(path))?;
            let t = text::parse(&String::from_utf8_lossy(&bytes), path)?;
            return Ok(Self::Text(t.items.into_iter(), Box::new((t.header, t.names, t.skipped))));
        }
        Reader::open(path).map(|r| Self::File(Box::new(r)))
    }
    /// Its header.
    #[must_use]
    pub fn header(&self) -> &Header {
        match self {
            Self::File(r) => r.header(),
            Self::Text(_, t) => &t.0,
        }
    }
    /// Names of processes, as far as they were read.
    #[must_use]
    pub fn names(&self) -> &[String] {
        match self {
            Self::File(r) => r.names(),
            Self::Text(_, t) => &t.1,
        }
    }
    /// Lines of text that were not understood.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        match self {
            Self::File(_) => 0,
            Self::Text(_, t) => t.2,
        }
    }
    /// Whether the file stopped before its end.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        match self {
            Self::File(r) => r.was_cut(),
            Self::Text(..) => false,
        }
    }
    /// The next item; `None` after the end.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn item(&mut self) -> Result<Option<Item>, TraceError> {
        match self {
            Self::File(r) => r.item(),
            Self::Text(items, _) => Ok(items.next()),
        }
    }
}

/// Puts requests together from events, in the order in which they were issued.
#[derive(Default)]
pub struct Matcher {
    waiting: HashMap<(u8, Op, u64, u32), VecDeque<u64>>,
    requests: VecDeque<(Request, bool)>,
    first: u64,
    /// Completions that no request was seen for.
    pub unmatched: u64,
}

/// A request under way for longer than so many others is given up for lost.
const WINDOW: usize = 1 << 16;

impl Matcher {
    /// Takes an event, and hands on every request that is settled.
    pub fn add(&mut self, e: &Event, each: &mut impl FnMut(&Request)) {
        if e.is_empty_end() {
            return;
        }
        let key = (e.device, e.op, e.sector, e.sectors);
        match e.kind {
            EventKind::Issue => {
                let number = self.first + self.requests.len() as u64;
                self.requests.push_back((Request { event: *e, latency: None, error: 0 }, false));
                self.waiting.entry(key).or_default().push_back(number);
                if self.requests.len() > WINDOW {
                    self.pop(each);
                }
            }
            EventKind::Requeue => {
                if let Some(number) = self.take(&key, true) {
                    // Nothing was done; the request will be issued again.
                    if let Some(slot) = self.slot(number) {
                        slot.0.event.op = Op::Other;
                        slot.0.event.sectors = 0;
                        slot.0.event.kind = EventKind::Requeue;
                        slot.1 = true;
                    }
                }
            }
            EventKind::Complete => match self.take(&key, false) {
                Some(number) => {
                    if let Some(slot) = self.slot(number) {
                        slot.0.latency = Some(e.nanos.saturating_sub(slot.0.event.nanos));
                        slot.0.error = e.error;
                        slot.1 = true;
                    }
                }
                None => self.unmatched += 1,
            },
        }
        while self.requests.front().is_some_and(|r| r.1) {
            self.pop(each);
        }
    }
    /// Hands on what is left.
    pub fn finish(&mut self, each: &mut impl FnMut(&Request)) {
        while !self.requests.is_empty() {
            self.pop(each);
        }
    }
    fn slot(&mut self, number: u64) -> Option<&mut (Request, bool)> {
        self.requests.get_mut(number.checked_sub(self.first)? as usize)
    }
    fn take(&mut self, key: &(u8, Op, u64, u32), newest: bool) -> Option<u64> {
        let queue = self.waiting.get_mut(key)?;
        let number = if newest { queue.pop_back() } else { queue.pop_front() };
        if queue.is_empty() {
            self.waiting.remove(key);
        }
        number
    }
    fn pop(&mut self, each: &mut impl FnMut(&Request)) {
        let Some((request, settled)) = self.requests.pop_front() else { return };
        if !settled {
            let e = &request.event;
            let key = (e.device, e.op, e.sector, e.sectors);
            if let Some(queue) = self.waiting.get_mut(&key) {
                queue.retain(|n| *n != self.first);
                if queue.is_empty() {
                    self.waiting.remove(&key);
                }
            }
        }
        self.first += 1;
        if request.event.kind != EventKind::Requeue {
            each(&request);
        }
    }
}

/// Everything that is known after a trace was read.
#[derive(Debug, Default)]
pub struct Analysed {
    /// The header.
    pub header: Header,
    /// The end; for a trace that was cut short, as far as is known.
    pub end: End,
    /// What was counted.
    pub summary: Summary,
    /// The file stopped before its end.
    pub cut: bool,
    /// Lines of text that were not understood.
    pub skipped: u64,
}

/// Reads a whole trace; `each` sees every request in the order of issue, with
/// the name of its process and of the phase.
///
/// # Errors
/// The file cannot be read or is damaged.
pub fn read(path: &Path, mut each: impl FnMut(&Request, &str, &str)) -> Result<Analysed, TraceError> {
    let mut trace = Trace::open(path)?;
    let mut out = Analysed { header: trace.header().clone(), ..Analysed::default() };
    let mut matcher = Matcher::default();
    let mut summary = Summary::new(&out.header);
    let mut marks: BTreeMap<u64, String> = BTreeMap::new();
    let mut last = 0;
    let mut ended = false;
    while let Some(item) = trace.item()? {
        match item {
            Item::Mark(nanos, name) => {
                marks.insert(nanos, name.clone());
                summary.mark(nanos, &name);
            }
            Item::End(end) => {
                ended = true;
                out.end = end;
            }
            Item::Event(e) => {
                last = e.nanos;
                summary.event(&e);
                let (names, summary) = (trace.names(), &mut summary);
                matcher.add(&e, &mut |r| {
                    let name = name_of(names, r);
                    summary.request(r, name);
                    each(r, name, phase_at(&marks, r.event.nanos));
                });
            }
        }
    }
    matcher.finish(&mut |r| {
        let name = name_of(trace.names(), r);
        summary.request(r, name);
        each(r, name, phase_at(&marks, r.event.nanos));
    });
    out.cut = trace.was_cut() || !ended;
    if out.cut {
        out.end.nanos = last;
    }
    summary.finish(out.end.nanos, matcher.unmatched);
    out.summary = summary;
    out.skipped = trace.skipped();
    Ok(out)
}

fn name_of<'a>(names: &'a [String], r: &Request) -> &'a str {
    names.get(usize::from(r.event.name)).map_or("?", String::as_str)
}

fn phase_at(marks: &BTreeMap<u64, String>, nanos: u64) -> &str {
    marks.range(..=nanos).next_back().map_or("", |(_, name)| name.as_str())
}

#[cfg(test)]
mod tests;
