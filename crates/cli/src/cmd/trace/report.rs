//! `nenrin trace report`.

use super::view::View;
use super::volume::Map;
use super::{COMMAND, html};
use crate::command::{arguments, text_value};
use crate::error::{At, Fail, Outcome};
use crate::size::parse_bytes;
use crate::{output, tag, written};
use nenrin_trace::analysis::{self, Request};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

#[derive(Default)]
struct Wishes {
    json: bool,
    csv: bool,
    html: Option<PathBuf>,
    data: Option<u64>,
    volume: Option<PathBuf>,
}

/// Reports about traces.
pub fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut w = Wishes::default();
    let files = arguments(&COMMAND, parser, usize::MAX, |flag, parser| {
        match flag.shown().as_str() {
            "--json" => w.json = true,
            "--csv" => w.csv = true,
            "--html" => w.html = Some(parser.value()?.into()),
            "--volume" => w.volume = Some(tag::device(Path::new(&parser.value()?))?.into_owned()),
            "--data" => {
                let text = text_value(parser)?;
                w.data = Some(
                    parse_bytes(&text)
                        .ok_or_else(|| Fail::usage(format!("--data {text:?}: a size like 512M is needed")))?,
                );
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if files.is_empty() {
        return Err(COMMAND.misuse("a trace is needed"));
    }
    if w.json && w.csv {
        return Err(COMMAND.misuse("--json and --csv exclude each other"));
    }
    let paths: Vec<PathBuf> = files.into_iter().map(PathBuf::from).collect();
    if w.csv {
        return csv(&paths);
    }
    let map = w.volume.as_deref().map(Map::read).transpose()?;
    let mut views = Vec::new();
    for path in &paths {
        let mut view = read(path, map.as_ref(), w.volume.as_deref())?;
        view.data = w.data;
        views.push(view);
    }
    if w.json {
        let all: Vec<_> = views.iter().map(View::json).collect();
        output::json(&all)?;
    } else {
        let all: Vec<String> = views.iter().map(View::text).collect();
        output::print(&all.join("\n"));
    }
    if let Some(page) = &w.html {
        let text = html::page(&paths, &views)?;
        written::write(page, text).at(page.display())?;
    }
    Ok(0)
}

/// Reads one trace; with the map of a volume, also what the writes to its device were.
pub fn read(path: &Path, map: Option<&Map>, volume: Option<&Path>) -> Result<View, Fail> {
    let header = analysis::Trace::open(path)?.header().clone();
    let account = map.map(|map| map.account(&header.devices).at(path.display())).transpose()?;
    let (number, mut kinds) = account.unwrap_or_default();
    let start = header.devices.get(number).map_or(0, |d| d.start);
    let found = analysis::read(path, |r, _, _| {
        if let Some(map) = map.filter(|_| usize::from(r.event.device) == number) {
            map.add(&mut kinds, r, header.started, start);
        }
    })?;
    let mut view = View::new(path, found);
    if let (Some(_), Some(volume)) = (map, volume) {
        kinds.find_names(volume);
        view.kinds = Some(kinds);
    }
    Ok(view)
}

/// One line for each request of all traces.
fn csv(paths: &[PathBuf]) -> Outcome {
    let cell = if std::io::stdout().is_terminal() { steady } else { quoted };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut result =
        writeln!(out, "trace,seconds,device,operation,flags,offset,bytes,latency_us,error,pid,process,phase");
    for path in paths {
        let header = analysis::Trace::open(path)?.header().clone();
        let name = path.display().to_string();
        let found = analysis::read(path, |r, process, phase| {
            if result.is_ok() {
                result = row(&mut out, cell, &header, r, &[&name, process, phase]);
            }
        })?;
        let view = View::new(path, found);
        if !view.is_sound() {
            output::notice(format!("{name}: {}", view.trust()));
        }
    }
    // A reader that has gone away is no failure.
    match result.and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Fail::at("standard output", e)),
        _ => Ok(0),
    }
}

fn row(
    out: &mut impl Write,
    cell: fn(&str) -> String,
    header: &nenrin_trace::Header,
    r: &Request,
    [trace, process, phase]: &[&str; 3],
) -> std::io::Result<()> {
    let e = &r.event;
    let device = header.devices.get(usize::from(e.device));
    let start = device.map_or(0, |d| d.start);
    writeln!(
        out,
        "{},{:.9},{},{},{},{},{},{},{},{},{},{}",
        cell(trace),
        e.nanos as f64 / 1e9,
        cell(device.map_or("", |d| d.name.as_str())),
        e.op.name(),
        e.flags.letters(),
        e.sector.saturating_sub(start).saturating_mul(nenrin_trace::SECTOR_BYTES),
        e.bytes(),
        r.latency.map(|n| format!("{:.3}", n as f64 / 1e3)).unwrap_or_default(),
        r.error,
        e.pid,
        cell(process),
        cell(phase)
    )
}

/// As RFC 4180 has it, where need be.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// The same for a person at a terminal, which no name of a trace steers.
fn steady(text: &str) -> String {
    quoted(&output::printable(text))
}

#[cfg(test)]
mod tests {
    #[test]
    fn cells_of_csv() {
        assert_eq!(super::quoted("kworker/0:1"), "kworker/0:1");
        assert_eq!(super::quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(super::steady("a\u{1b}[2J,\nb"), "\"a\u{fffd}[2J,\u{fffd}b\"");
    }
}
