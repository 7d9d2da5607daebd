//! A trace as tables and as JSON.

use super::volume::Kinds;
use crate::output::{printable, table};
use crate::size::show_bytes;
use nenrin_trace::analysis::{Analysed, OpTotals, Traffic};
use nenrin_trace::{Level, Op};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// What is shown of one trace.
pub struct View {
    /// Its name.
    pub name: String,
    /// What was found in it.
    pub found: Analysed,
    /// How much file data was written, where the caller knows.
    pub data: Option<u64>,
    /// What the writes to a nenrin volume were.
    pub kinds: Option<Kinds>,
}

/// What a device counted, and what was counted here.
struct Figure<'a> {
    device: &'a str,
    what: &'static str,
    counted: u64,
    told: u64,
    is_compared: bool,
}

/// `1.25 ms` and the like.
pub fn show_nanos(nanos: u64) -> String {
    match nanos {
        n if n < 10_000 => format!("{n} ns"),
        n if n < 10_000_000 => format!("{} us", n / 1000),
        n if n < 10_000_000_000 => format!("{} ms", n / 1_000_000),
        n => format!("{} s", n / 1_000_000_000),
    }
}

/// A share in per cent.
pub fn percent(part: u64, all: u64) -> String {
    if all == 0 { "-".into() } else { format!("{:.1} %", part as f64 * 100.0 / all as f64) }
}

/// Lengths by powers of two: the class's name, requests, bytes.
pub fn size_classes(by_size: &BTreeMap<u64, u64>) -> BTreeMap<u64, Traffic> {
    let mut out: BTreeMap<u64, Traffic> = BTreeMap::new();
    for (bytes, requests) in by_size.iter().filter(|(bytes, _)| **bytes > 0) {
        let class = out.entry(bytes.checked_next_power_of_two().unwrap_or(u64::MAX)).or_default();
        class.requests += requests;
        class.bytes += requests * bytes;
    }
    out
}

/// Latency of 50, 99 and 100 per cent.
fn latency(t: &OpTotals) -> [u64; 3] {
    [t.latency.quantile(0.5), t.latency.quantile(0.99), t.latency.max()]
}

impl View {
    /// Of a trace that was read.
    pub fn new(path: &Path, found: Analysed) -> Self {
        let name = path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        Self { name: printable(&name), found, data: None, kinds: None }
    }
    /// Names of the devices.
    pub fn devices(&self) -> String {
        let one = |d: &nenrin_trace::DeviceInfo| {
            let size = if d.sectors == 0 {
                String::new()
            } else {
                format!(" ({})", show_bytes(d.sectors.saturating_mul(512)))
            };
            printable(&d.name) + &size
        };
        self.found.header.devices.iter().map(one).collect::<Vec<_>>().join(", ")
    }
    /// Metadata: what was written beyond the file data.
    pub fn metadata(&self) -> Option<u64> {
        self.data.map(|d| self.found.summary.written_bytes().saturating_sub(d))
    }

    /// Whether all that happened is in the trace, as far as that can be told.
    pub fn is_sound(&self) -> bool {
        let a = &self.found;
        !a.cut && a.end.lost == 0 && a.skipped == 0 && self.agrees() != Some(false)
    }

    /// Whether the counts can be relied on, in a few words.
    pub fn trust(&self) -> String {
        let a = &self.found;
        let mut said = Vec::new();
        if a.cut {
            said.push("the trace was CUT SHORT".to_owned());
        }
        if a.end.lost > 0 {
            said.push(format!("{} events LOST: counts are too low", a.end.lost));
        }
        if a.skipped > 0 {
            said.push(format!("{} lines not understood", a.skipped));
        }
        match self.agrees() {
            Some(true) => {
                said.push("the device's own counters agree".into());
                let others = self.not_compared();
                if !others.is_empty() {
                    said.push(format!("not compared: {}", others.join("; ")));
                }
            }
            Some(false) => said.push(format!("the device's own counters DIFFER: {}", self.differences().join(", "))),
            None => {}
        }
        if said.is_empty() { "nothing lost".into() } else { said.join("; ") }
    }
    /// Whether counted completions equal the device's counters; `None` where there are none.
    pub fn agrees(&self) -> Option<bool> {
        (!self.found.end.counters.is_empty()).then(|| self.differences().is_empty())
    }
    /// What the device's counters say otherwise than was counted.
    fn differences(&self) -> Vec<String> {
        let told = |f: &Figure<'_>| format!("{} {} {}, here {}", f.device, f.told, f.what, f.counted);
        self.figures().iter().filter(|f| f.is_compared).map(told).collect()
    }
    /// What they say otherwise, and may: of each device what it counts differently, or not at all.
    fn not_compared(&self) -> Vec<String> {
        let mut of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let figures = self.figures();
        figures.iter().filter(|f| !f.is_compared).for_each(|f| of.entry(f.device).or_default().push(f.what));
        of.iter().map(|(device, what)| format!("{} of {}", what.join(", "), printable(device))).collect()
    }
    /// What differs.
    fn figures(&self) -> Vec<Figure<'_>> {
        let mut out = Vec::new();
        let s = &self.found.summary;
        let all = self.found.header.devices.iter().zip(&self.found.end.counters).zip(&s.counted);
        for (i, ((device, told), counted)) in all.enumerate() {
            // Bios are merged and split below where they are counted; a partition has no flushes of its own.
            let requests = device.level == Level::Request;
            let whole = requests && !device.partition;
            let writes = if whole && s.agrees_on_writes(i, told.writes) { told.writes } else { counted.writes };
            let rows = [
                ("reads", counted.reads, told.reads, requests),
                ("bytes read", counted.read_bytes, told.read_bytes, true),
                ("writes", writes, told.writes, whole),
                ("bytes written", counted.write_bytes, told.write_bytes, true),
                ("discarded bytes", counted.discard_bytes, told.discard_bytes, requests),
                ("flushes", counted.flushes, told.flushes, whole && told.flushes > 0),
            ];
            let differ = rows.into_iter().filter(|(_, counted, told, _)| counted != told);
            let of =
                |(what, counted, told, is_compared)| Figure { device: &device.name, what, counted, told, is_compared };
            out.extend(differ.map(of));
        }
        out
    }

    /// For people.
    pub fn text(&self) -> String {
        let a = &self.found;
        let s = &a.summary;
        let mut out =
            format!("{}: {}, {:.2} s; {}\n", self.name, self.devices(), a.end.nanos as f64 / 1e9, self.trust());
        if !a.header.command.is_empty() {
            let code = a.end.exit_code.map(|c| format!(" (exit code {c})")).unwrap_or_default();
            out += &format!("command: {}{code}\n", printable(&a.header.command.join(" ")));
        }
        for note in self.notes() {
            out += &format!("note: {note}\n");
        }
        out += "\n";
        out += &table(&OPS_HEAD, &self.op_rows());
        let rows = self.size_rows(Op::Write);
        if !rows.is_empty() {
            out += &format!("\nwrites by size (up to)\n{}", table(&SIZES_HEAD, &rows));
        }
        if !s.phases().is_empty() {
            out += &format!("\n{}", table(&PHASES_HEAD, &self.phase_rows()));
        }
        out += &format!("\n{}", table(&PROCESSES_HEAD, &self.process_rows(10)));
        if let Some(kinds) = &self.kinds {
            out += &format!("\nwhat the writes to the volume were\n{}", table(&KINDS_HEAD, &kinds.rows()));
            if !kinds.files.is_empty() {
                out += &format!("\n{}", table(&FILES_HEAD, &kinds.file_rows(10)));
            }
        }
        out += "\n";
        for line in self.lines() {
            out += &format!("{line}\n");
        }
        out
    }

    /// What needs a sentence.
    pub fn notes(&self) -> Vec<String> {
        let mut out = Vec::new();
        for d in &self.found.header.devices {
            if d.partition {
                out.push(format!("{} is a partition: flushes are those of its whole disk", d.name));
            }
            if d.level == Level::Bio {
                out.push(format!("{} takes no requests: bios are shown, before they are merged or split", d.name));
            }
        }
        out.extend(self.kinds.iter().flat_map(Kinds::notes));
        out
    }

    /// Figures that stand by themselves.
    pub fn lines(&self) -> Vec<String> {
        let s = &self.found.summary;
        let written = s.written_bytes();
        let mut out = vec![format!(
            "written {} in {} requests, {} of it different blocks; flushes {}, FUA writes {}",
            show_bytes(written),
            s.write_requests(),
            show_bytes(s.distinct_bytes.min(written)),
            s.flushes(),
            s.op(Op::Write).fua.requests
        )];
        if let (Some(data), Some(meta)) = (self.data, self.metadata()) {
            let per = if data == 0 {
                String::new()
            } else {
                format!(
                    " ({:.2} % of it); {:.3} device bytes for each byte",
                    meta as f64 * 100.0 / data as f64,
                    written as f64 / data as f64
                )
            };
            out.push(format!("file data {}, metadata {}{per}", show_bytes(data), show_bytes(meta)));
        }
        if s.depth.max > 0 {
            out.push(format!(
                "requests under way: {:.1} in the mean while busy, at most {}; busy {} of the time",
                s.depth.mean,
                s.depth.max,
                percent(s.depth.busy, self.found.end.nanos)
            ));
        }
        if s.unfinished + s.unmatched > 0 {
            out.push(format!(
                "{} requests whose completion, {} completions whose issue was not seen",
                s.unfinished, s.unmatched
            ));
        }
        out
    }

    /// Rows under [`OPS_HEAD`].
    pub fn op_rows(&self) -> Vec<Vec<String>> {
        let row = |(op, t): (Op, &OpTotals)| {
            let [p50, p99, max] = latency(t).map(show_nanos);
            vec![
                op.name().to_owned(),
                t.all.requests.to_string(),
                show_bytes(t.all.bytes),
                show_bytes(t.all.bytes.checked_div(t.all.requests).unwrap_or(0)),
                percent(t.sequential.requests, t.all.requests),
                percent(t.sync.requests, t.all.requests),
                show_bytes(t.meta.bytes),
                p50,
                p99,
                max,
                t.failed.to_string(),
            ]
        };
        self.found.summary.ops().map(row).collect()
    }
    /// Rows under [`SIZES_HEAD`].
    pub fn size_rows(&self, op: Op) -> Vec<Vec<String>> {
        let t = self.found.summary.op(op);
        let row = |(class, c): (u64, Traffic)| {
            vec![show_bytes(class), c.requests.to_string(), show_bytes(c.bytes), percent(c.bytes, t.all.bytes)]
        };
        size_classes(&t.by_size).into_iter().map(row).collect()
    }
    /// Rows under [`PHASES_HEAD`].
    pub fn phase_rows(&self) -> Vec<Vec<String>> {
        let row = |p: &nenrin_trace::analysis::Phase| {
            vec![
                printable(&p.name),
                format!("{:.2}", p.nanos as f64 / 1e9),
                p.write.requests.to_string(),
                show_bytes(p.write.bytes),
                show_bytes(p.read.bytes),
                p.flushes.to_string(),
            ]
        };
        self.found.summary.phases().iter().map(row).collect()
    }
    /// Rows under [`PROCESSES_HEAD`], the largest first.
    pub fn process_rows(&self, most: usize) -> Vec<Vec<String>> {
        let row = |(name, p): (&str, &nenrin_trace::analysis::Process)| {
            vec![printable(name), p.write.requests.to_string(), show_bytes(p.write.bytes), show_bytes(p.read.bytes)]
        };
        self.found.summary.processes().into_iter().take(most).map(row).collect()
    }

    /// For programs. Times in nanoseconds.
    pub fn json(&self) -> Value {
        let a = &self.found;
        let s = &a.summary;
        let traffic = |t: &Traffic| json!({"requests": t.requests, "bytes": t.bytes});
        let op = |(op, t): (Op, &OpTotals)| {
            let [p50, p99, max] = latency(t);
            let sizes: Vec<Value> = t.by_size.iter().map(|(bytes, n)| json!({"bytes": bytes, "requests": n})).collect();
            let value = json!({
                "requests": t.all.requests, "bytes": t.all.bytes, "sequential": traffic(&t.sequential), "sync": traffic(&t.sync),
                "meta": traffic(&t.meta), "fua": traffic(&t.fua), "preflush": traffic(&t.preflush), "failed": t.failed,
                "latency": {"mean": t.latency.mean(), "p50": p50, "p99": p99, "max": max}, "sizes": sizes,
            });
            (op.name().to_owned(), value)
        };
        let phases: Vec<Value> = s.phases().iter().map(|p| json!({
            "name": p.name, "begin": p.begin, "nanos": p.nanos, "read": traffic(&p.read), "write": traffic(&p.write), "flushes": p.flushes,
        })).collect();
        let processes: Vec<Value> = s
            .processes()
            .iter()
            .map(|(n, p)| json!({"name": n, "read": traffic(&p.read), "write": traffic(&p.write)}))
            .collect();
        json!({
            "trace": self.name, "source": a.header.source, "kernel": a.header.kernel, "command": a.header.command,
            "exit_code": a.end.exit_code, "devices": a.header.devices, "nanos": a.end.nanos, "lost": a.end.lost, "cut": a.cut,
            "lines_skipped": a.skipped, "counters": a.end.counters, "counted": s.counted, "counters_agree": self.agrees(),
            "counters_not_compared": self.not_compared(),
            "written_bytes": s.written_bytes(), "write_requests": s.write_requests(), "distinct_bytes": s.distinct_bytes,
            "flushes": s.flushes(), "data_bytes": self.data, "metadata_bytes": self.metadata(),
            "depth": {"mean": s.depth.mean, "max": s.depth.max, "busy": s.depth.busy},
            "unfinished": s.unfinished, "unmatched": s.unmatched,
            "operations": s.ops().map(op).collect::<serde_json::Map<_, _>>(), "phases": phases, "processes": processes,
            "volume": self.kinds.as_ref().map(Kinds::json),
        })
    }
}

/// Columns of [`View::op_rows`].
pub const OPS_HEAD: [&str; 11] =
    ["operation", "requests", "bytes", "mean", "sequential", "sync", "metadata flag", "p50", "p99", "max", "failed"];
/// Columns of [`View::size_rows`].
pub const SIZES_HEAD: [&str; 4] = ["size", "requests", "bytes", "share"];
/// Columns of [`View::phase_rows`].
pub const PHASES_HEAD: [&str; 6] = ["phase", "seconds", "writes", "written", "read", "flushes"];
/// Columns of [`View::process_rows`].
pub const PROCESSES_HEAD: [&str; 4] = ["process", "writes", "written", "read"];
/// Columns of [`Kinds::rows`].
pub const KINDS_HEAD: [&str; 4] = ["what", "writes", "written", "share"];
/// Columns of [`Kinds::file_rows`].
pub const FILES_HEAD: [&str; 2] = ["file", "written"];

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_trace::{Counters, DeviceInfo, End, Header, analysis::Summary};

    /// What was not compared is not said to agree.
    #[test]
    fn what_agrees_is_told() {
        let said = |level: Level, partition: bool, told: Counters, counted: Counters| {
            let device = DeviceInfo { name: "sda1".into(), start: 0, sectors: 4096, partition, level };
            let header = Header { devices: vec![device], ..Header::default() };
            let mut summary = Summary::new(&header);
            summary.counted = vec![counted];
            let end = End { counters: vec![told], ..End::default() };
            let found = Analysed { header, end, summary, cut: false, skipped: 0 };
            let view = View::new(Path::new("t"), found);
            (view.agrees(), view.trust())
        };
        let counted =
            Counters { reads: 5, read_bytes: 20480, writes: 7, write_bytes: 28672, flushes: 2, ..Counters::default() };
        let agree = "the device's own counters agree";
        assert_eq!(said(Level::Request, false, counted, counted), (Some(true), agree.into()));
        let no_flushes = Counters { flushes: 0, ..counted };
        let told = said(Level::Request, false, no_flushes, counted);
        assert_eq!(told, (Some(true), format!("{agree}; not compared: flushes of sda1")));
        let others = Counters { writes: 9, flushes: 0, ..counted };
        let told = said(Level::Request, true, others, counted);
        assert_eq!(told, (Some(true), format!("{agree}; not compared: writes, flushes of sda1")));
        let merged = Counters { reads: 3, writes: 2, ..counted };
        let told = said(Level::Bio, false, merged, counted);
        assert_eq!(told, (Some(true), format!("{agree}; not compared: reads, writes of sda1")));
        let other = Counters { write_bytes: 4096, ..counted };
        let told = said(Level::Bio, false, other, counted);
        assert_eq!(told.0, Some(false));
        assert!(told.1.contains("DIFFER: sda1 4096 bytes written, here 28672"), "{}", told.1);
    }
}
