//! Text that other tools print: `blkparse` in its default format, and
//! `biosnoop` of bcc or of libbpf-tools. Both are read whole, since they must be
//! put in order.

use crate::device::Level;
use crate::event::{Event, EventKind, Flags, Op, parse_rwbs};
use crate::file::{DeviceInfo, End, Header, Item};
use crate::{SECTOR_BYTES, TraceError};
use std::collections::HashMap;
use std::path::Path;

/// A trace made of text.
#[derive(Debug)]
pub struct Text {
    /// Its header.
    pub header: Header,
    /// Names of processes.
    pub names: Vec<String>,
    /// Events in the order of time, and the end.
    pub items: Vec<Item>,
    /// Lines that were not understood.
    pub skipped: u64,
}

/// Whether this may be text of one of the tools.
#[must_use]
pub fn looks_like_text(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    text.lines().take(64).any(|l| is_biosnoop_head(l) || Line::parse(l).is_some())
}

/// Reads text of either tool; `place` is for messages.
///
/// # Errors
/// No line is understood.
pub fn parse(text: &str, place: &Path) -> Result<Text, TraceError> {
    let mut out = Builder::default();
    let source = match text.lines().find(|l| is_biosnoop_head(l)) {
        Some(head) => {
            biosnoop(text, head, &mut out);
            "biosnoop"
        }
        None => {
            blkparse(text, &mut out);
            "blkparse"
        }
    };
    if out.events.is_empty() {
        return Err(TraceError::file(
            place,
            "no request found; text of blkparse (its default format) or biosnoop is needed, or a file of nenrin trace record",
        ));
    }
    Ok(out.finish(source))
}

#[derive(Default)]
struct Builder {
    events: Vec<Event>,
    devices: Vec<String>,
    names: Vec<String>,
    name_of: HashMap<String, u16>,
    skipped: u64,
}

impl Builder {
    fn device(&mut self, name: &str) -> Option<u8> {
        let found = self.devices.iter().position(|d| d == name).unwrap_or_else(|| {
            self.devices.push(name.to_owned());
            self.devices.len() - 1
        });
        u8::try_from(found).ok()
    }
    fn name(&mut self, name: &str) -> u16 {
        if let Some(&n) = self.name_of.get(name) {
            return n;
        }
        let Ok(n) = u16::try_from(self.names.len()) else { return u16::MAX };
        self.names.push(name.to_owned());
        self.name_of.insert(name.to_owned(), n);
        n
    }
    fn finish(mut self, source: &str) -> Text {
        self.events.sort_by_key(|e| e.nanos);
        let start = self.events.first().map_or(0, |e| e.nanos);
        for e in &mut self.events {
            e.nanos -= start;
        }
        let end = End { nanos: self.events.last().map_or(0, |e| e.nanos), ..End::default() };
        let device = |name: String| DeviceInfo { name, start: 0, sectors: 0, partition: false, level: Level::Request };
        let devices = self.devices.into_iter().map(device).collect();
        let mut items: Vec<Item> = self.events.into_iter().map(Item::Event).collect();
        items.push(Item::End(end));
        let header = Header { devices, source: source.into(), ..Header::default() };
        Text { header, names: self.names, items, skipped: self.skipped }
    }
}

/// `0.009507758`, in nanoseconds; digits beyond the ninth are dropped.
fn seconds(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) {
        return None;
    }
    let part = &part[..part.len().min(9)];
    let fraction = if part.is_empty() { 0 } else { part.parse::<u64>().ok()? * 10u64.pow(9 - part.len() as u32) };
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// A line of blkparse: `8,0 3 1 0.000000000 697 D WS 223490 + 8 [kjournald]`.
struct Line<'a> {
    device: &'a str,
    nanos: u64,
    pid: u32,
    action: &'a str,
    rwbs: &'a str,
    sector: u64,
    sectors: u32,
    bracket: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, bracket) = match line.find('[') {
            Some(at) => (&line[..at], line[at + 1..].trim_end().strip_suffix(']')?),
            None => (line, ""),
        };
        let mut words = before.split_ascii_whitespace();
        let device = words.next().filter(|d| is_number_pair(d))?;
        let _cpu: u32 = words.next()?.parse().ok()?;
        let _sequence: u64 = words.next()?.parse().ok()?;
        let nanos = seconds(words.next()?)?;
        let pid = words.next()?.parse().ok()?;
        let action = words.next()?;
        let rwbs = words.next()?;
        let sector = words.next().and_then(|w| w.parse().ok()).unwrap_or(0);
        let sectors = match words.next() {
            Some("+") => words.next()?.parse().ok()?,
            _ => 0,
        };
        Some(Self { device, nanos, pid, action, rwbs, sector, sectors, bracket })
    }
}

fn is_number_pair(text: &str) -> bool {
    text.split_once(',').is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok())
}

fn blkparse(text: &str, out: &mut Builder) {
    for line in text.lines() {
        let Some(l) = Line::parse(line) else {
            // The summary at the end has no line that begins with a device.
            out.skipped += u64::from(line.split_ascii_whitespace().next().is_some_and(is_number_pair));
            continue;
        };
        let kind = match l.action {
            "D" => EventKind::Issue,
            "C" => EventKind::Complete,
            "R" => EventKind::Requeue,
            _ => continue,
        };
        // An empty request without an operation is how old kernels show a flush.
        let parsed = match (l.rwbs, l.sectors) {
            ("FN", 0) => Some((Op::Flush, Flags(Flags::PREFLUSH))),
            (rwbs, _) => parse_rwbs(rwbs.as_bytes()),
        };
        let (Some((op, flags)), Some(device)) = (parsed, out.device(l.device)) else {
            out.skipped += 1;
            continue;
        };
        let (name, error) = match kind {
            EventKind::Complete => (u16::MAX, l.bracket.parse().unwrap_or(0)),
            _ => (out.name(l.bracket), 0),
        };
        let sector = if l.sectors == 0 { 0 } else { l.sector };
        out.events.push(Event {
            kind,
            device,
            op,
            flags,
            sectors: l.sectors,
            sector,
            nanos: l.nanos,
            pid: l.pid,
            name,
            error,
        });
    }
}

fn is_biosnoop_head(line: &str) -> bool {
    line.starts_with("TIME") && line.contains("SECTOR") && line.contains("BYTES") && line.contains("LAT(ms)")
}

/// `TIME(s) COMM PID DISK T SECTOR BYTES [QUE(ms)] LAT(ms)`. The time is that of
/// the completion; the name may hold blanks.
fn biosnoop(text: &str, head: &str, out: &mut Builder) {
    let columns: Vec<&str> = head.split_ascii_whitespace().collect();
    for line in text.lines().filter(|l| !l.trim().is_empty() && !is_biosnoop_head(l)) {
        if biosnoop_line(line, &columns, out).is_none() {
            out.skipped += 1;
        }
    }
}

fn biosnoop_line(line: &str, columns: &[&str], out: &mut Builder) -> Option<()> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let extra = words.len().checked_sub(columns.len())?;
    let comm = columns.iter().position(|c| *c == "COMM")?;
    let word = |name: &str| {
        let at = columns.iter().position(|c| *c == name)?;
        words.get(if at > comm { at + extra } else { at }).copied()
    };
    let completed = seconds(word("TIME(s)")?)?;
    let latency = seconds(word("LAT(ms)")?)? / 1000;
    let (op, flags) = parse_rwbs(word("T")?.as_bytes())?;
    let bytes: u64 = word("BYTES")?.parse().ok()?;
    let sectors = u32::try_from(bytes / SECTOR_BYTES).ok()?;
    let sector = word("SECTOR")?.parse().unwrap_or(0);
    let device = out.device(word("DISK")?)?;
    let name = out.name(&words[comm..=comm + extra].join(" "));
    let pid = word("PID")?.parse().ok()?;
    let issue = Event {
        kind: EventKind::Issue,
        device,
        op,
        flags,
        sectors,
        sector: if sectors == 0 { 0 } else { sector },
        nanos: completed.saturating_sub(latency),
        pid,
        name,
        error: 0,
    };
    out.events.push(issue);
    out.events.push(Event { kind: EventKind::Complete, nanos: completed, ..issue });
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(t: &Text) -> Vec<Event> {
        t.items.iter().filter_map(|i| if let Item::Event(e) = i { Some(*e) } else { None }).collect()
    }

    #[test]
    fn text_of_blkparse() {
        let text = include_str!("../tests/data/blkparse.txt");
        assert!(looks_like_text(text.as_bytes()));
        let t = parse(text, Path::new("t")).unwrap();
        let all = events(&t);
        assert_eq!(t.header.devices.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["8,0", "8,16"]);
        assert_eq!((all.len(), t.skipped), (9, 1));
        let first = all[0];
        assert_eq!(
            (first.kind, first.op, first.sector, first.sectors, first.nanos),
            (EventKind::Issue, Op::Write, 223_490, 56, 0)
        );
        assert_eq!(t.names[usize::from(first.name)], "kjournald");
        let flush = all.iter().find(|e| e.op == Op::Flush).unwrap();
        assert_eq!((flush.sectors, flush.flags), (0, Flags(Flags::PREFLUSH)));
        assert!(all.iter().any(|e| e.kind == EventKind::Requeue && e.device == 1));
        assert!(all.iter().any(|e| e.kind == EventKind::Complete && e.error == -5));
        assert!(all.iter().any(|e| e.op == Op::Discard && e.sectors == 4096));
    }

    #[test]
    fn text_of_biosnoop() {
        for text in [include_str!("../tests/data/biosnoop-bcc.txt"), include_str!("../tests/data/biosnoop-libbpf.txt")]
        {
            assert!(looks_like_text(text.as_bytes()));
            let t = parse(text, Path::new("t")).unwrap();
            let all = events(&t);
            assert_eq!((all.len(), t.skipped), (8, 1), "{:?}", t.header);
            let issue = all.iter().find(|e| e.sector == 62_914_560).unwrap();
            let done = all.iter().find(|e| e.sector == 62_914_560 && e.kind == EventKind::Complete).unwrap();
            assert_eq!((issue.op, issue.sectors, done.nanos - issue.nanos), (Op::Write, 512, 1_250_000));
            assert!(t.names.contains(&"Web Content".to_owned()), "{:?}", t.names);
            assert!(all.windows(2).all(|w| w[0].nanos <= w[1].nanos));
        }
    }

    #[test]
    fn other_text() {
        for text in [
            "",
            "hello\n",
            "TIME(s) COMM PID DISK T SECTOR BYTES LAT(ms)\n",
            "8,0 1 x\n",
            "8,0 0 1 0.1 5 Q W 1 + 8 [a]\n",
        ] {
            let said = parse(text, Path::new("t")).unwrap_err().to_string();
            assert!(said.starts_with("t: no request found"), "{said}");
        }
        assert!(!looks_like_text(b"\x7fELF\x02\x01\x01"));
    }

    #[test]
    fn times() {
        assert_eq!(seconds("1.5"), Some(1_500_000_000));
        assert_eq!(seconds("0.0000000019"), Some(1));
        assert_eq!(seconds("12"), Some(12_000_000_000));
        for bad in ["", ".", "-1", "1e3", "99999999999999999999"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
