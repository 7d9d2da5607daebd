//! The page of a report.

use super::view::{FILES_HEAD, KINDS_HEAD, OPS_HEAD, PHASES_HEAD, PROCESSES_HEAD, SIZES_HEAD, View, size_classes};
use crate::error::Fail;
use crate::size::show_bytes;
use nenrin_trace::analysis::{self, Grid, Series};
use nenrin_trace::{Op, TraceError, plot};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Cells of the plot of places.
const COLUMNS: u32 = 720;
const ROWS: u32 = 300;
/// Parts of the time for which rates are shown.
const BINS: usize = 180;

/// What plots show of several traces.
pub struct Plots {
    /// Time by place.
    pub places: String,
    /// Writes by size.
    pub sizes: String,
    /// Bytes over time.
    pub rates: String,
}

/// A page about these traces; the files are read once more for the plots.
pub fn page(paths: &[PathBuf], views: &[View]) -> Result<String, Fail> {
    let plots = plots(paths, &views.iter().collect::<Vec<_>>())?;
    let figure = |svg: &str, text: &str| format!("<figure>{svg}<figcaption>{text}</figcaption></figure>\n");
    let mut body = String::new();
    body += &figure(
        &plots.places,
        "When and where: each mark is a request; time from left to right, offset on the device upwards.",
    );
    body += &figure(&plots.sizes, "Write requests by size, up to the size named.");
    body += &figure(&plots.rates, "Throughput over time.");
    for view in views {
        body += &section(view);
    }
    let title = match views {
        [one] => format!("What reached {}: {}", one.devices(), one.name),
        _ => "What reached the device".to_owned(),
    };
    Ok(plot::page(&title, &body))
}

fn section(view: &View) -> String {
    let mut out = format!(
        "<h2>{}</h2>\n<p>{}, {:.2} s</p>\n",
        plot::escape(&view.name),
        plot::escape(&view.devices()),
        view.found.end.nanos as f64 / 1e9
    );
    if !view.found.header.command.is_empty() {
        out += &format!("<p><code>{}</code></p>\n", plot::escape(&view.found.header.command.join(" ")));
    }
    let lines: Vec<String> = view.lines().iter().map(|l| plot::escape(l)).collect();
    out += &format!("<p class=\"answer\">{}</p>\n", lines.join("<br>\n"));
    // What can be relied on is no warning.
    let sound = view.agrees() != Some(false) && view.found.end.lost == 0 && !view.found.cut && view.found.skipped == 0;
    let class = if sound { "answer" } else { "note" };
    out += &format!("<p class=\"{class}\">{}</p>\n", plot::escape(&view.trust()));
    for note in view.notes() {
        out += &format!("<p class=\"note\">{}</p>\n", plot::escape(&note));
    }
    out += &plot::table(&OPS_HEAD, &view.op_rows());
    out += "<h3>Writes by size</h3>\n";
    out += &plot::table(&SIZES_HEAD, &view.size_rows(Op::Write));
    if !view.found.summary.phases().is_empty() {
        out += "<h3>Phases</h3>\n";
        out += &plot::table(&PHASES_HEAD, &view.phase_rows());
    }
    out += "<h3>Processes</h3>\n";
    out += &plot::table(&PROCESSES_HEAD, &view.process_rows(20));
    if let Some(kinds) = &view.kinds {
        out += "<h3>What the writes to the volume were</h3>\n";
        out += &plot::table(&KINDS_HEAD, &kinds.rows());
        out += "<h3>Files that were written most</h3>\n";
        out += &plot::table(&FILES_HEAD, &kinds.file_rows(20));
    }
    out
}

/// Draws what several traces have in common.
pub fn plots(paths: &[PathBuf], views: &[&View]) -> Result<Plots, TraceError> {
    let nanos = views.iter().map(|v| v.found.end.nanos).max().unwrap_or(0);
    let reach = |v: &&View| v.found.summary.reach.map(|(_, end)| end);
    let device = |v: &&View| v.found.header.devices.iter().map(|d| d.start + d.sectors).max().filter(|n| *n > 0);
    let top = views.iter().filter_map(|v| device(v).max(reach(v))).max().unwrap_or(1);
    let mut series = Vec::new();
    let mut rates = Vec::new();
    for (path, view) in paths.iter().zip(views) {
        let names = if views.len() == 1 {
            ["written".to_owned(), "read".into()]
        } else {
            [view.name.clone(), format!("{}: read", view.name)]
        };
        let mut grids = [Grid::new(COLUMNS, ROWS, nanos, 0, top), Grid::new(COLUMNS, ROWS, nanos, 0, top)];
        let mut bins = [vec![0u64; BINS], vec![0u64; BINS]];
        let starts: Vec<u64> = view.found.header.devices.iter().map(|d| d.start).collect();
        analysis::read(path, |r, _, _| {
            let which = match r.event.op {
                Op::Write | Op::Zeroes => 0,
                Op::Read => 1,
                _ => return,
            };
            let start = starts.get(usize::from(r.event.device)).copied().unwrap_or(0);
            grids[which].add(r.event.nanos, r.event.sector.saturating_sub(start), r.event.end().saturating_sub(start));
            let bin = (u128::from(r.event.nanos) * BINS as u128 / u128::from(nanos.max(1))) as usize;
            bins[which][bin.min(BINS - 1)] += r.event.bytes();
        })?;
        // Of several traces only what they wrote is compared.
        let shown = if views.len() == 1 { 2 } else { 1 };
        for ((name, grid), bin) in names.into_iter().zip(grids).zip(bins).take(shown) {
            if bin.iter().any(|b| *b > 0) {
                rates.push((name.clone(), bin));
                series.push(Series { name, grid });
            }
        }
    }
    Ok(Plots {
        places: plot::places(&series, "time by offset"),
        sizes: sizes(views),
        rates: plot::rates(&rates, nanos, "throughput over time"),
    })
}

fn sizes(views: &[&View]) -> String {
    let classes: Vec<_> = views.iter().map(|v| size_classes(&v.found.summary.op(Op::Write).by_size)).collect();
    let all: BTreeSet<u64> = classes.iter().flat_map(|c| c.keys().copied()).collect();
    let labels: Vec<String> = all.iter().map(|b| show_bytes(*b)).collect();
    let values = |c: &std::collections::BTreeMap<u64, analysis::Traffic>| {
        all.iter().map(|b| c.get(b).map_or(0, |t| t.requests)).collect()
    };
    let series: Vec<(String, Vec<u64>)> =
        views.iter().zip(&classes).map(|(v, c)| (v.name.clone(), values(c))).collect();
    plot::bars(&labels, &series, plot::Scale::Linear, "write requests by size")
}
