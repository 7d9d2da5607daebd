use super::*;
use crate::device::Level;
use crate::event::Flags;
use crate::file::{DeviceInfo, Writer};
use std::io::Write as _;

fn event(kind: EventKind, op: Op, sector: u64, sectors: u32, nanos: u64) -> Event {
    Event { kind, device: 0, op, flags: Flags(0), sectors, sector, nanos, pid: 1, name: 0, error: 0 }
}

/// A trace of what a small file system might do: two sequential writes, one
/// elsewhere that was given back once, a flush, a rewrite that failed.
fn recorded() -> tempfile::NamedTempFile {
    let device = DeviceInfo { name: "sda".into(), start: 0, sectors: 4096, partition: false, level: Level::Request };
    let header = Header { devices: vec![device], ..Header::default() };
    let mut w = Writer::new(Vec::new(), &header).unwrap();
    use EventKind::{Complete, Issue, Requeue};
    w.name("fio").unwrap();
    w.mark(0, "mount").unwrap();
    w.event(&event(Issue, Op::Write, 0, 8, 100)).unwrap();
    w.event(&event(Issue, Op::Write, 8, 16, 200)).unwrap();
    w.event(&event(Complete, Op::Write, 8, 16, 300)).unwrap();
    w.event(&event(Complete, Op::Write, 0, 8, 500)).unwrap();
    w.mark(550, "load").unwrap();
    w.event(&event(Issue, Op::Write, 1000, 8, 600)).unwrap();
    w.event(&event(Requeue, Op::Write, 1000, 8, 650)).unwrap();
    w.event(&event(Issue, Op::Write, 1000, 8, 700)).unwrap();
    w.event(&event(Complete, Op::Write, 1000, 8, 800)).unwrap();
    w.event(&event(Issue, Op::Flush, 0, 0, 900)).unwrap();
    w.event(&event(Complete, Op::Flush, 0, 0, 1900)).unwrap();
    // What asked for the flush ends, and so does a write whose data was complete before.
    w.event(&event(Complete, Op::Write, 0, 0, 1901)).unwrap();
    w.event(&event(Complete, Op::Write, 1000, 0, 1902)).unwrap();
    let again = Event { flags: Flags(Flags::META | Flags::FUA), ..event(Issue, Op::Write, 1000, 8, 2000) };
    w.event(&again).unwrap();
    w.event(&Event { kind: Complete, nanos: 2100, error: -5, ..again }).unwrap();
    w.event(&event(Issue, Op::Read, 0, 8, 2200)).unwrap();
    let bytes = w.end(&End { nanos: 3000, lost: 0, counters: vec![], exit_code: None }).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    file
}

#[test]
fn totals_of_a_trace() {
    let file = recorded();
    let mut seen = Vec::new();
    let a =
        read(file.path(), |r, name, phase| seen.push((r.event.nanos, r.latency, name.to_owned(), phase.to_owned())))
            .unwrap();
    let s = &a.summary;
    let w = s.op(Op::Write);
    assert_eq!((w.all.requests, w.all.bytes, w.sequential.requests, w.failed), (4, 40 * 512, 1, 1));
    assert_eq!(w.by_size.into_iter().collect::<Vec<_>>(), [(4096, 3), (8192, 1)]);
    assert_eq!((w.meta.bytes, w.fua.requests, w.latency.max()), (4096, 1, 400));
    assert_eq!((s.flushes(), s.written_bytes(), s.distinct_bytes), (1, 20480, 16384));
    assert_eq!((s.unfinished, s.unmatched, s.depth.max), (1, 0, 2));
    assert_eq!(s.reach, Some((0, 1008)));
    assert_eq!((s.counted[0].writes, s.counted[0].write_bytes, s.counted[0].flushes), (5, 20480, 1));
    // One of the five is the end of a flush, or of the write to sector 0 before it.
    assert_eq!([3, 4, 5, 6].map(|n| s.agrees_on_writes(0, n)), [false, true, true, false]);
    let phases: Vec<_> = s.phases().iter().map(|p| (p.name.as_str(), p.nanos, p.write.requests, p.flushes)).collect();
    assert_eq!(phases, [("mount", 550, 2, 0), ("load", 2450, 2, 1)]);
    assert_eq!(seen.iter().map(|s| s.0).collect::<Vec<_>>(), [100, 200, 700, 900, 2000, 2200], "in the order of issue");
    assert_eq!((&seen[0].2[..], &seen[0].3[..], seen[0].1), ("fio", "mount", Some(400)));
    assert!(!a.cut);
}

/// Two requests for the same place are told apart by their order; a request
/// that never ends does not hold back the others for ever.
#[test]
fn requests_are_matched() {
    let mut m = Matcher::default();
    let mut out: Vec<(u64, Option<u64>)> = Vec::new();
    let mut each = |r: &Request| out.push((r.event.nanos, r.latency));
    m.add(&event(EventKind::Issue, Op::Write, 999, 8, 1), &mut each);
    for n in 0..WINDOW as u64 + 10 {
        m.add(&event(EventKind::Issue, Op::Write, 0, 8, 10 + n), &mut each);
        m.add(&event(EventKind::Complete, Op::Write, 0, 8, 12 + n), &mut each);
    }
    m.add(&event(EventKind::Complete, Op::Write, 5, 8, 1), &mut each);
    m.finish(&mut each);
    assert_eq!(m.unmatched, 1);
    assert_eq!((out.len(), out[0], out[1]), (WINDOW + 11, (1, None), (10, Some(2))));
    assert!(m.waiting.is_empty());
}
