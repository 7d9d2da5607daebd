//! What a comparison found: tables, JSON, a page, Markdown.

use super::measure::Measured;
use super::plan::{Contender, Pattern};
use super::site::Site;
use crate::cmd::trace::html::{Plots, plots};
use crate::error::{At, Fail};
use crate::output::table;
use crate::size::show_bytes;
use crate::written;
use nenrin_trace::{BlockDev, plot};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::ops::{Add, Div};
use std::path::{Path, PathBuf};

/// One contender with one pattern, over all runs.
struct Row {
    label: String,
    pattern: String,
    data: u64,
    /// Written before, to have something to work on.
    before: u64,
    /// Bytes written beyond data and fixed cost; the lowest, the median, the highest of the runs.
    metadata: [i64; 3],
    written: u64,
    fixed: u64,
    background: u64,
    requests: u64,
    mean: u64,
    flushes: u64,
    rate: u64,
    seconds: f64,
    published: Option<f64>,
    doubt: Option<String>,
}

/// Everything that is shown.
pub struct Result<'a> {
    contenders: &'a [Contender],
    patterns: &'a [Pattern],
    measured: &'a [Measured],
    rows: Vec<Row>,
    bytes: u64,
    runs: u32,
    device: String,
    kernel: String,
    versions: Vec<(String, String)>,
}

/// The middle value, or the mean of the two middle ones.
fn median<T: Copy + PartialOrd + Add<Output = T> + Div<Output = T> + From<u8>>(values: &[T], none: T) -> T {
    let mut all = values.to_vec();
    all.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    let (low, high) = (all.get(all.len().saturating_sub(1) / 2), all.get(all.len() / 2));
    low.zip(high).map_or(none, |(low, high)| (*low + *high) / T::from(2_u8))
}

impl Row {
    /// In per cent of the data, where something was written.
    fn percent(&self, bytes: i64) -> Option<f64> {
        (self.data > 0).then(|| bytes as f64 * 100.0 / self.data as f64)
    }
    /// Device bytes for each byte of data, fixed cost and all.
    fn shown_amplification(&self) -> String {
        let added = self.written.saturating_sub(self.before);
        if self.data == 0 { NONE.into() } else { format!("{:.3}", added as f64 / self.data as f64) }
    }
    fn shown_percent(&self) -> String {
        let [Some(low), Some(middle), Some(high)] = self.metadata.map(|b| Some(format!("{:.2}", self.percent(b)?)))
        else {
            return NONE.into();
        };
        if low == high { format!("{middle} %") } else { format!("{middle} % ({low} to {high})") }
    }
}

/// Shown where nothing was written that something could be counted for.
const NONE: &str = "-";
/// Who writes up to half a per cent more than the least is named with it: for wear that is the same.
const EQUAL: f64 = 1.005;
/// How [`Result::choice`] is read.
const CHOICE: &str = "Bytes that reach the device for each 100 that programs write: flash wears by them, so less is better. What a card does with \
     them is not counted: it programs whole pages and erases large blocks, so many small requests wear it more than this says. \
     Those within half a per cent of the least are named together, the least first. What mounting alone writes is not in it, \
     nor what ext4's thread writes into inode tables once after mkfs.";

const HEAD: [&str; 11] = [
    "file system",
    "pattern",
    "metadata",
    "bytes per byte",
    "written",
    "requests",
    "mean",
    "flushes",
    "fio",
    "seconds",
    "fixed cost",
];

/// Names, the best first; of many that are as good as each other only how many they are.
fn shortly(best: &[&str], all: &[&str]) -> String {
    let others: Vec<&str> = all.iter().copied().filter(|name| !best.contains(name)).collect();
    match (best.len(), others.len()) {
        (5.., 0) => "all alike".into(),
        (5.., 1 | 2) => format!("all alike but {}", others.join(" and ")),
        _ => best.join(", "),
    }
}

impl<'a> Result<'a> {
    /// Puts runs together.
    pub fn new(
        contenders: &'a [Contender],
        patterns: &'a [Pattern],
        measured: &'a [Measured],
        bytes: u64,
        runs: u32,
        site: &Site,
    ) -> std::result::Result<Self, Fail> {
        let mut rows = Vec::new();
        for (i, c) in contenders.iter().enumerate() {
            let of = |pattern: &str| -> Vec<&Measured> {
                measured.iter().filter(|m| m.contender == i && m.pattern == pattern).collect()
            };
            let idle = of("idle");
            let fixed = median(&idle.iter().map(|m| m.written.saturating_sub(m.background)).collect::<Vec<_>>(), 0);
            for pattern in patterns {
                let name = pattern.name();
                let published = match pattern {
                    Pattern::Sequential => c.kind.published.map(|p| p.0),
                    Pattern::Random => c.kind.published.map(|p| p.1),
                    _ => None,
                };
                rows.push(row(&c.label, &name, &of(&name), fixed, published));
            }
        }
        let mut versions: Vec<(String, String)> = Vec::new();
        for c in contenders {
            if !versions.iter().any(|(n, _)| n == c.kind.name) {
                versions.push((c.kind.name.to_owned(), c.version()));
            }
        }
        let device = BlockDev::find(&site.device)?;
        let kernel = measured.first().map_or_else(String::new, |m| m.view.found.header.kernel.clone());
        let device = format!("{} ({})", device.name, show_bytes(device.sectors * nenrin_trace::SECTOR_BYTES));
        Ok(Self { contenders, patterns, measured, rows, bytes, runs, device, kernel, versions })
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let row = |r: &Row| {
            vec![
                r.label.clone(),
                r.pattern.clone(),
                r.shown_percent(),
                r.shown_amplification(),
                show_bytes(r.written),
                r.requests.to_string(),
                show_bytes(r.mean),
                r.flushes.to_string(),
                format!("{}/s", show_bytes(r.rate)),
                format!("{:.1}", r.seconds),
                show_bytes(r.fixed),
            ]
        };
        self.rows.iter().map(row).collect()
    }

    /// Who writes least for which work: what reaches the device for each 100 bytes of data, once it is mounted. Work in
    /// which nobody wrote has no line.
    fn choice(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let names = self.contenders.iter().map(|c| c.label.clone());
        let head = ["your work".to_owned(), "writes least".into()].into_iter().chain(names).collect();
        let line = |p: &Pattern| {
            let of = |label: &String| self.rows.iter().find(|r| r.label == *label && r.pattern == p.name());
            let hundred = |label: &String| of(label).and_then(|r| Some(100.0 + r.percent(r.metadata[1])?));
            let all: Vec<(&str, Option<f64>)> =
                self.contenders.iter().map(|c| (c.label.as_str(), hundred(&c.label))).collect();
            let mut wrote: Vec<(&str, f64)> = all.iter().filter_map(|(name, n)| Some((*name, (*n)?))).collect();
            wrote.sort_by(|a, b| a.1.total_cmp(&b.1));
            let least = wrote.first()?.1;
            let best: Vec<&str> = wrote.iter().filter(|(_, n)| *n <= least * EQUAL).map(|(name, _)| *name).collect();
            let best = shortly(&best, &wrote.iter().map(|(name, _)| *name).collect::<Vec<_>>());
            let cells = all.iter().map(|(_, n)| n.map_or(NONE.into(), |n| format!("{n:.1}")));
            Some([p.work(), best].into_iter().chain(cells).collect())
        };
        (head, self.patterns.iter().filter_map(line).collect())
    }

    /// Who writes least beyond the data, pattern by pattern.
    fn answers(&self) -> Vec<String> {
        let answer = |p: &Pattern| {
            let mut rows: Vec<&Row> = self.rows.iter().filter(|r| r.pattern == p.name() && r.data > 0).collect();
            rows.sort_by_key(|r| r.metadata[1]);
            let shown = |r: &&Row| Some(format!("{} {:.2} %", r.label, r.percent(r.metadata[1])?));
            let all: Vec<String> = rows.iter().filter_map(shown).collect();
            let (name, about) = (p.name(), p.about());
            (!all.is_empty()).then(|| format!("{name} ({about}): least metadata first: {}", all.join(", ")))
        };
        self.patterns.iter().filter_map(answer).collect()
    }

    /// What a reader must know.
    fn notes(&self) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        for c in self.contenders.iter().filter(|c| !c.kind.note.is_empty()) {
            out.push(format!("{}: {}", c.label, c.kind.note));
        }
        for r in self.rows.iter().filter(|r| r.background > 0) {
            let what = "by the thread that writes inode tables after the mount are not among the metadata";
            out.push(format!("{} {}: {} {what}", r.label, r.pattern, show_bytes(r.background)));
        }
        out.extend(
            self.rows
                .iter()
                .filter_map(|r| Some(format!("{} {}: DOUBTFUL: {}", r.label, r.pattern, r.doubt.as_ref()?))),
        );
        out
    }

    fn conditions(&self) -> String {
        format!(
            "{} of data, {} run{} of each, kernel {}, device {}. metadata: written - data - fixed cost - inode tables of ext4's thread, in per cent of the data; of several runs the median (lowest to highest); fixed \
             cost: what a mount of five seconds writes; bytes per byte: all that was written for each byte of data.",
            show_bytes(self.bytes),
            self.runs,
            if self.runs == 1 { "" } else { "s" },
            self.kernel,
            self.device
        )
    }

    /// For people.
    pub fn text(&self) -> String {
        let (head, rows) = self.choice();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let mut out = format!("{}\n\n{}\n", self.conditions(), table(&HEAD, &self.cells()));
        out += &format!("bytes to the device for each 100 of data\n{}\n", table(&head, &rows));
        for line in self.answers().into_iter().chain(self.notes().into_iter().map(|n| format!("note: {n}"))) {
            out += &format!("{line}\n");
        }
        out
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let row = |r: &Row| {
            json!({
                "fs": r.label, "pattern": r.pattern, "data_bytes": r.data, "written_bytes": r.written,
                "metadata_bytes": {"min": r.metadata[0], "median": r.metadata[1], "max": r.metadata[2]},
                "metadata_percent": r.percent(r.metadata[1]), "fixed_bytes": r.fixed, "background_bytes": r.background,
                "requests": r.requests, "mean_bytes": r.mean, "flushes": r.flushes, "fio_bytes_per_second": r.rate,
                "seconds": r.seconds, "published_percent": r.published, "doubt": r.doubt,
            })
        };
        json!({
            "size": self.bytes, "runs": self.runs, "kernel": self.kernel, "device": self.device,
            "versions": self.versions.iter().map(|(n, v)| (n.clone(), json!(v))).collect::<serde_json::Map<_, _>>(),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "runs_detail": self.measured.iter().map(|m| {
                json!({"fs": self.contenders[m.contender].label, "pattern": m.pattern, "trace": m.trace, "report": m.view.json()})
            }).collect::<Vec<_>>(),
        })
    }

    /// Traces of the first run of a contender, without the idle one, and their plots.
    fn plots(&self, contender: usize) -> std::result::Result<Plots, Fail> {
        let mut seen: Vec<&str> = Vec::new();
        let mut all: Vec<&Measured> = Vec::new();
        for m in self.measured.iter().filter(|m| m.contender == contender && m.pattern != "idle") {
            if !seen.contains(&m.pattern.as_str()) {
                seen.push(&m.pattern);
                all.push(m);
            }
        }
        let paths: Vec<PathBuf> = all.iter().map(|m| m.trace.clone()).collect();
        let views: Vec<&crate::cmd::trace::view::View> = all.iter().map(|m| &m.view).collect();
        Ok(plots(&paths, &views)?)
    }

    /// A page with everything.
    pub fn page(&self) -> std::result::Result<String, Fail> {
        let (head, rows) = self.choice();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let mut body = String::from("<h2>Which writes least for your work?</h2>\n");
        body += &plot::table(&head, &rows);
        body += &format!("<p class=\"answer\">{}</p>\n", plot::escape(CHOICE));
        body += &format!("<h2>All figures</h2>\n<p>{}</p>\n", plot::escape(&self.conditions()));
        body += &plot::table(&HEAD, &self.cells());
        let answers: Vec<String> = self.answers().iter().map(|a| plot::escape(a)).collect();
        body += &format!("<p>{}</p>\n", answers.join("<br>\n"));
        body += &self.overview();
        for note in self.notes() {
            body += &format!("<p class=\"note\">{}</p>\n", plot::escape(&note));
        }
        for (i, c) in self.contenders.iter().enumerate() {
            let p = self.plots(i)?;
            body += &format!(
                "<h2>{}</h2>\n<figure>{}<figcaption>When and where it writes: time from left to right, offset on the device upwards; \
                 patterns over each other.</figcaption></figure>\n<figure>{}<figcaption>Write requests by size, up to the size \
                 named.</figcaption></figure>\n<figure>{}<figcaption>Bytes written over time.</figcaption></figure>\n",
                plot::escape(&c.label),
                p.places,
                p.sizes,
                p.rates
            );
        }
        body += "<h2>How it was done</h2>\n";
        body += &plot::table(&["file system", "made by"], &self.version_rows());
        body += &format!("<pre class=\"wide\">{}</pre>\n", plot::escape(&self.jobs().join("\n")));
        Ok(plot::page("What file systems write for the same work", &body))
    }

    /// Metadata of everybody, as bars.
    fn overview(&self) -> String {
        let labels: Vec<String> = self.contenders.iter().map(|c| c.label.clone()).collect();
        let of = |p: &Pattern| {
            let kib = |label: &String| {
                let row = self.rows.iter().find(|r| r.label == *label && r.pattern == p.name());
                row.map_or(0, |r| r.metadata[1].max(0) as u64 >> 10)
            };
            (p.name(), labels.iter().map(kib).collect())
        };
        let series: Vec<_> = self.patterns.iter().map(of).collect();
        let svg = plot::bars(&labels, &series, plot::Scale::Log, "metadata in KiB");
        format!(
            "<figure>{svg}<figcaption>Metadata written, in KiB, without the fixed cost; each step is ten times as much.</figcaption></figure>\n"
        )
    }

    fn version_rows(&self) -> Vec<Vec<String>> {
        self.versions.iter().map(|(n, v)| vec![n.clone(), v.clone()]).collect()
    }
    fn jobs(&self) -> Vec<String> {
        let calls = self.patterns.iter().flat_map(|p| p.calls(self.bytes));
        calls.map(|c| format!("fio {} --directory=MOUNT", c.join(" "))).collect()
    }

    /// Tables as Markdown, and the plots of each beside it as SVG.
    pub fn markdown(&self, file: &Path) -> std::result::Result<(), Fail> {
        let (choice, rows) = self.choice();
        let mut out = format!("{CHOICE}\n\n| {} |\n|{}\n", choice.join(" | "), "---|".repeat(choice.len()));
        rows.iter().for_each(|r| out += &format!("| {} |\n", r.join(" | ")));
        out += &format!("\n{}\n\n", self.conditions());
        let head: Vec<&str> = HEAD.iter().copied().chain(["published"]).collect();
        out += &format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
        for (cells, r) in self.cells().iter().zip(&self.rows) {
            let published = r.published.map(|p| format!("{p:.2} %")).unwrap_or_default();
            out += &format!("| {} | {published} |\n", cells.join(" | "));
        }
        out.push('\n');
        self.answers().iter().chain(&self.notes()).for_each(|line| out += &format!("- {line}\n"));
        out += "\n| file system | made by |\n|---|---|\n";
        self.version_rows().iter().for_each(|r| out += &format!("| {} | {} |\n", r[0], r[1]));
        out.push('\n');
        self.jobs().iter().for_each(|job| out += &format!("    {job}\n"));
        let stem = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        for (i, c) in self.contenders.iter().enumerate() {
            let svg = file.with_file_name(format!("{stem}-{}.svg", c.file_name()));
            written::write(&svg, plot::standalone(&self.plots(i)?.places)).at(svg.display())?;
            let shown = svg.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            out += &format!("\n{}: when and where\n\n![{}]({shown})\n", c.label, c.label);
        }
        written::write(file, out).at(file.display())
    }
}

fn row(label: &str, pattern: &str, all: &[&Measured], fixed: u64, published: Option<f64>) -> Row {
    let numbers = |f: &dyn Fn(&Measured) -> u64| median(&all.iter().map(|m| f(m)).collect::<Vec<_>>(), 0);
    let mut metadata: Vec<i64> = all
        .iter()
        .map(|m| m.written as i64 - m.background as i64 - fixed as i64 - (m.data + m.before) as i64)
        .collect();
    metadata.sort_unstable();
    let at = |i: usize| metadata.get(i).copied().unwrap_or(0);
    Row {
        label: label.to_owned(),
        pattern: pattern.to_owned(),
        data: numbers(&|m| m.data),
        before: numbers(&|m| m.before),
        metadata: [at(0), median(&metadata, 0), at(metadata.len().saturating_sub(1))],
        written: numbers(&|m| m.written),
        fixed,
        background: numbers(&|m| m.background),
        requests: numbers(&|m| m.requests),
        mean: numbers(&Measured::mean_bytes),
        flushes: numbers(&|m| m.flushes),
        rate: numbers(&|m| m.rate),
        seconds: median(&all.iter().map(|m| m.seconds).collect::<Vec<_>>(), 0.0),
        published,
        doubt: all.iter().find_map(|m| m.doubt.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::trace::view::View;
    use nenrin_trace::analysis::Analysed;

    #[test]
    fn medians() {
        assert_eq!(median(&[3, 1, 2], 0), 2);
        assert_eq!(median(&[4.0, 1.0], 0.0), 2.5);
        assert_eq!(median(&[1_u64, 9, 3, 5], 0), 4);
        assert_eq!(median(&[], 7), 7);
    }

    /// A row of one run that wrote so much data, and so much more.
    fn of(label: &str, pattern: &str, data: u64, metadata: u64) -> Row {
        let one = Measured {
            contender: 0,
            pattern: pattern.to_owned(),
            trace: PathBuf::new(),
            data,
            before: 0,
            written: data + metadata,
            background: 0,
            requests: 1,
            flushes: 0,
            rate: 0,
            seconds: 1.0,
            doubt: None,
            view: View::new(Path::new("t"), Analysed::default()),
        };
        row(label, pattern, &[&one], 0, None)
    }

    #[test]
    fn work_that_writes_nothing_is_not_judged() {
        let contenders = ["ext4", "xfs"].map(|name| Contender::parse(name).unwrap());
        let patterns = [Pattern::Log, Pattern::Job("reads.fio".into()), Pattern::Small];
        let rows = vec![
            of("ext4", "log", 1000, 50),
            of("xfs", "log", 1000, 60),
            of("ext4", "reads", 0, 4096),
            of("xfs", "reads", 0, 8192),
            of("ext4", "small", 0, 4096),
            of("xfs", "small", 1000, 90),
        ];
        let (device, kernel, versions) = (String::new(), String::new(), Vec::new());
        let (contenders, patterns, measured) = (&contenders[..], &patterns[..], &[][..]);
        let r = Result { contenders, patterns, measured, rows, bytes: 1000, runs: 1, device, kernel, versions };
        let lines: Vec<Vec<String>> = r.choice().1.into_iter().map(|line| line[1..].to_vec()).collect();
        assert_eq!(lines, [["ext4", "105.0", "106.0"], ["xfs", "-", "109.0"]]);
        assert_eq!(r.answers().len(), 2, "{:?}", r.answers());
        let cells = r.cells();
        assert_eq!((cells[0][2].as_str(), cells[0][3].as_str()), ("5.00 %", "1.050"));
        assert_eq!((cells[2][2].as_str(), cells[2][3].as_str()), ("-", "-"));
        assert_eq!(r.json()["rows"][2]["metadata_percent"], Value::Null);
    }
}
