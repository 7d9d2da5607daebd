//! Results for people: a table for the terminal, and the same as Markdown.

use std::fmt::Write;

use crate::schema::{Better, Entry, Results, Row, Target};
use crate::stats::Summary;

const HEAD: [&str; 19] = [
    "contender",
    "median",
    "p10",
    "p90",
    "min",
    "max",
    "n",
    "x ext4",
    "x raw",
    "by p50",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "max us",
    "writes/op",
    "with data",
    "KiB/op",
    "flushes/op",
    "daemon us/op",
];

/// A number with about three digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        a if a >= 100.0 => format!("{value:.0}"),
        a if a >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn optional(value: Option<f64>) -> String {
    value.map(number).unwrap_or_default()
}

fn ratio(summary: Option<&Summary>) -> String {
    summary.map(|s| format!("{:.2} ({:.2}-{:.2})", s.median, s.p10, s.p90)).unwrap_or_default()
}

fn cells(row: &Row, entry: &Entry) -> Vec<String> {
    let Some(s) = &entry.summary else {
        let mut cells = vec![entry.name.clone(), "failed".to_owned()];
        cells.resize(HEAD.len(), String::new());
        return cells;
    };
    let latency = entry.latency.as_ref();
    let cost = entry.per_operation.as_ref().filter(|_| row.unit != "MB");
    vec![
        entry.name.clone(),
        number(s.median),
        number(s.p10),
        number(s.p90),
        number(s.min),
        number(s.max),
        s.n.to_string(),
        ratio(entry.to_ext4.as_ref()),
        ratio(entry.to_raw.as_ref()),
        entry.to_ext4_by_p50.as_ref().map(|s| format!("{:.2}", s.median)).unwrap_or_default(),
        optional(latency.map(|l| l.p50_us)),
        optional(latency.map(|l| l.p99_us)),
        optional(latency.map(|l| l.p999_us)),
        optional(latency.map(|l| l.max_us)),
        optional(cost.map(|c| c.writes)),
        optional(cost.and_then(|c| c.data_writes)),
        optional(cost.map(|c| (c.write_bytes + c.read_bytes) / 1024.0)),
        optional(cost.map(|c| c.flushes)),
        optional(cost.and_then(|c| c.daemon_us)),
    ]
}

/// What a result means against what was set out, one line for each target that has a ratio.
pub fn verdicts(row: &Row, entry: &Entry) -> Vec<String> {
    entry.targets.iter().filter_map(|target| verdict(row.better, entry, target)).collect()
}

fn verdict(better: Better, entry: &Entry, target: &Target) -> Option<String> {
    let reached = entry.ratios.get(&target.against)?.median;
    let meets = |wanted: f64| if better == Better::Higher { reached >= wanted } else { reached <= wanted };
    let word = match (meets(target.aim), meets(target.floor), better) {
        (true, ..) => "aim reached",
        (false, true, Better::Higher) => "above the floor",
        (false, false, Better::Higher) => "BELOW THE FLOOR",
        (false, true, Better::Lower) => "within the bound",
        (false, false, Better::Lower) => "OVER THE BOUND",
    };
    let busy = if entry.gate_gave_up * 2 > entry.samples.len() { ", on a busy machine" } else { "" };
    let by_p50 = entry.ratios_by_p50.get(&target.against).filter(|_| better == Better::Higher);
    let by_p50 = by_p50.map(|s| format!(" ({:.2}x by p50)", s.median)).unwrap_or_default();
    let (name, floor, aim) = (&target.against, target.floor, target.aim);
    Some(format!("{reached:.2}x {name}{by_p50}, floor {floor}x, aim {aim}x: {word}{busy}"))
}

/// Lines below a table: verdicts, errors, figures of their own, doubts.
fn remarks(row: &Row) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in &row.contenders {
        if let Some(error) = &entry.error {
            lines.push(format!("{}: {error}", entry.name));
        }
        for text in verdicts(row, entry) {
            lines.push(format!("{}: {text}", entry.name));
        }
        if let Some(quiet) = &entry.to_ext4_quiet {
            let all = entry.to_ext4.as_ref().map_or(0, |s| s.n);
            if quiet.n < all && !entry.targets.is_empty() {
                lines
                    .push(format!("{}: {:.2}x ext4 over the {} undisturbed rounds", entry.name, quiet.median, quiet.n));
            }
        }
        if let Some(last) = entry.samples.last().filter(|s| !s.extra.is_empty()) {
            let figures: Vec<_> = last.extra.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
            lines.push(format!("{}: last slice: {}", entry.name, figures.join(", ")));
        }
        if entry.hole_bytes > 0 {
            lines.push(format!("{}: {} bytes of the image were holes at the end", entry.name, entry.hole_bytes));
        }
    }
    let slices: usize = row.contenders.iter().map(|entry| entry.samples.len()).sum();
    let noisy: usize = row.contenders.iter().map(|entry| entry.gate_gave_up).sum();
    if noisy > 0 {
        lines.push(format!("{noisy} of {slices} slices ran although the machine was not idle"));
    }
    lines
}

/// The table of a row for the terminal; columns without any value are left out.
pub fn table(row: &Row) -> String {
    let body: Vec<Vec<String>> = row.contenders.iter().map(|entry| cells(row, entry)).collect();
    let mut text = format!("\n{}: {} [{}]\n", row.name, row.title, row.unit);
    let columns = columns(&body);
    let line = |cells: &dyn Fn(usize) -> String| {
        let mut line = String::from(" ");
        for (column, width) in &columns {
            let cell = cells(*column);
            line += &if *column == 0 { format!(" {cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        line + "\n"
    };
    text += &line(&|column| HEAD[column].to_owned());
    for cells in &body {
        text += &line(&|column| cells[column].clone());
    }
    for remark in remarks(row) {
        text += &format!("  {remark}\n");
    }
    text
}

/// Columns that have a value somewhere, with their widths.
fn columns(body: &[Vec<String>]) -> Vec<(usize, usize)> {
    let used = (0..HEAD.len()).filter(|column| body.iter().any(|cells| !cells[*column].is_empty()));
    used.map(|column| {
        let widest = body.iter().map(|cells| cells[column].len()).max().unwrap_or(0);
        (column, widest.max(HEAD[column].len()))
    })
    .collect()
}

/// All results as Markdown.
pub fn markdown(results: &Results) -> String {
    let mut text = String::from("# Benchmark results\n\n");
    let machine = &results.machine;
    let gigabytes = machine.memory_bytes as f64 / f64::from(1 << 30);
    let mut fact = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {name}: {value}");
    };
    let settings = &results.settings;
    fact("run", &format!("{} to {}, `{}`", results.started, results.finished, settings.arguments.join(" ")));
    fact("machine", &format!("{} cores, {gigabytes:.1} GiB, {}", machine.cores, machine.processor));
    fact("system", &format!("{}, Linux {}", machine.system, machine.kernel));
    fact("host file system", &machine.host_file_system);
    fact("load average", &format!("{} at the start, {} at the end", machine.load_start, machine.load_end));
    let gate = &settings.gate;
    fact(
        "slices",
        &format!(
            "{} of {} ms, gate at {} busy cores, nice {}; devices of {} MiB",
            settings.slices,
            settings.slice_ms,
            gate.busy_cores,
            settings.nice,
            settings.device_bytes >> 20
        ),
    );
    if settings.limit_iops.is_some() || settings.limit_bps.is_some() {
        let text = |limit: Option<u64>, unit: &str| limit.map_or(String::new(), |n| format!("{n} {unit} per second"));
        let limits = [text(settings.limit_iops, "requests"), text(settings.limit_bps, "bytes")];
        fact("limit of each device", &limits.join(" "));
    }
    for (program, version) in &machine.versions {
        fact(program, version);
    }
    if !results.complete {
        fact("incomplete", "the run was cut short");
    }
    for note in &results.notes {
        fact("note", note);
    }
    text += "\nA ratio is the median of the ratios of the single rounds, with the 10th and 90th percentile. By p50: the\n\
             same from the median latencies, which a neighbour that takes the processor does not move.\n";
    for row in &results.rows {
        text += &markdown_row(row);
    }
    text
}

fn markdown_row(row: &Row) -> String {
    let body: Vec<Vec<String>> = row.contenders.iter().map(|entry| cells(row, entry)).collect();
    let columns = columns(&body);
    let line = |cells: &dyn Fn(usize) -> String| {
        let cells: Vec<String> = columns.iter().map(|(column, _)| cells(*column)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = format!("\n## {}\n\n{}, {}\n\n", row.name, row.title, row.unit);
    text += &line(&|column| HEAD[column].to_owned());
    text += &line(&|column| if column == 0 { "---" } else { "---:" }.to_owned());
    for cells in &body {
        text += &line(&|column| cells[column].clone());
    }
    text += "\n";
    for remark in remarks(row) {
        text += &format!("- {remark}\n");
    }
    for entry in row.contenders.iter().filter(|entry| !entry.mount.is_empty()) {
        let fill = entry.fill_level.map(|f| format!(", {:.0}% full", f * 100.0)).unwrap_or_default();
        let kept = entry.retention.as_ref().map(|r| format!(", retention {r}")).unwrap_or_default();
        text += &format!("- {}: `{}`, cache {}{kept}{fill}\n", entry.name, entry.mount, entry.cache);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::summarize;

    fn entry(ratio: f64) -> Entry {
        Entry {
            name: "nenrin".to_owned(),
            summary: summarize([1234.0]),
            to_ext4: summarize([ratio]),
            ratios: summarize([ratio]).map(|s| ("ext4".to_owned(), s)).into_iter().collect(),
            targets: vec![Target { against: "ext4".to_owned(), floor: 0.7, aim: 0.9 }],
            ..Entry::default()
        }
    }

    fn row(better: Better, contenders: Vec<Entry>) -> Row {
        let (name, title, unit) = ("seq-write".to_owned(), "writes".to_owned(), "MB/s".to_owned());
        Row { name, title, unit, better, jobs: 1, contenders }
    }

    #[test]
    fn a_verdict_for_each_target() {
        let one = |better, entry: Entry| verdicts(&row(better, vec![]), &entry).pop();
        assert!(one(Better::Higher, entry(0.5)).unwrap().ends_with("BELOW THE FLOOR"));
        assert!(one(Better::Higher, entry(0.8)).unwrap().ends_with("above the floor"));
        assert!(one(Better::Higher, entry(0.9)).unwrap().ends_with("aim reached"));
        assert_eq!(one(Better::Higher, Entry::default()), None);
        let busy = Entry { gate_gave_up: 1, samples: vec![crate::schema::Sample::default()], ..entry(0.9) };
        assert!(one(Better::Higher, busy).unwrap().ends_with("busy machine"));
        let lower = |ratio| {
            let targets = vec![Target { against: "ext4".to_owned(), floor: 0.7, aim: 0.5 }];
            one(Better::Lower, Entry { targets, ..entry(ratio) }).unwrap()
        };
        assert!(lower(0.4).ends_with("aim reached"));
        assert!(lower(0.6).ends_with("within the bound"));
        assert!(lower(0.8).ends_with("OVER THE BOUND"));
    }

    #[test]
    fn tables_have_the_columns_in_use() {
        let broken = Entry { error: Some("broke".to_owned()), ..Entry::default() };
        let row = row(Better::Higher, vec![entry(0.8), broken]);
        let text = table(&row);
        assert!(text.contains("x ext4") && !text.contains("p99 us"), "{text}");
        assert!(text.contains("1234") && text.contains("failed") && text.contains("broke"));
        assert!(markdown_row(&row).contains("| nenrin | 1234 |"));
    }

    #[test]
    fn digits() {
        assert_eq!([number(1234.5), number(56.78), number(1.234)], ["1234", "56.8", "1.23"]);
    }
}
