//! One measurement: make, mount, load, unmount, recorded.

use super::plan::{Contender, Pattern};
use super::site::{Mounted, Site, run};
use crate::cmd::trace::record::Fresh;
use crate::cmd::trace::view::View;
use crate::cmd::trace::volume::Map;
use crate::cmd::trace::{child, report};
use crate::error::{At, Fail};
use nenrin_trace::{BlockDev, Op, Recording};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long nothing is done for the fixed cost.
const IDLE: Duration = Duration::from_secs(5);

/// What one measurement came to.
pub struct Measured {
    /// Index of the contender.
    pub contender: usize,
    /// Name of the pattern.
    pub pattern: String,
    /// The trace.
    pub trace: PathBuf,
    /// Bytes that the programs wrote, as the pattern is meant.
    pub data: u64,
    /// Bytes that they wrote before, to have something to work on: no part of what is compared.
    pub before: u64,
    /// Bytes that reached the device.
    pub written: u64,
    /// Of those, by ext4's thread that writes inode tables after the mount: what it sent itself, or has the device zero.
    pub background: u64,
    /// Write requests.
    pub requests: u64,
    /// Flushes.
    pub flushes: u64,
    /// fio's rate in bytes a second; 0 where nothing was written.
    pub rate: u64,
    /// Seconds from the start of the load to the end of the unmount.
    pub seconds: f64,
    /// A trace that was cut short, events lost, or counters that differ: the figures cannot be relied on.
    pub doubt: Option<String>,
    /// The whole report.
    pub view: View,
}

/// Makes, mounts, loads and unmounts `contender`, and counts.
pub fn measure(
    site: &Site,
    contender: &Contender,
    index: usize,
    pattern: &Pattern,
    turn: u32,
    bytes: u64,
) -> Result<Measured, Fail> {
    run(Command::new(contender.mkfs()).args(contender.kind.flags).arg(&site.device))?;
    run(&mut Command::new("sync"))?;
    // Best effort: in a container this may not be allowed.
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    let trace = site.work.join(format!("{}.{}.{turn}.trace", contender.file_name(), pattern.name()));
    let device = BlockDev::find(&site.device)?;
    let words = vec!["nenrin".to_owned(), "compare".into(), contender.label.clone(), pattern.name()];
    // Others may have a hand in where traces are kept.
    let (mut file, open) = Fresh::beside(&trace)?;
    let recording = Recording::start(std::slice::from_ref(&device), &words, open, &trace)?;
    file.take_name().at(trace.display())?;
    recording.mark("mount");
    let mounted = Mounted::new(site, contender)?;
    let begin = Instant::now();
    recording.mark("load");
    let (data, before, rate) = load(site, pattern, bytes)?;
    recording.mark("unmount");
    mounted.unmount()?;
    let seconds = begin.elapsed().as_secs_f64();
    recording.stop(None)?;
    let map = if contender.is_ours() { Some(Map::read(&site.device)?) } else { None };
    let mut view = report::read(&trace, map.as_ref(), map.as_ref().map(|_| site.device.as_path()))?;
    view.name = pattern.name();
    view.data = Some(data + before);
    let s = &view.found.summary;
    let lazy = if contender.kind.fstype == "ext4" {
        // Zeros that the device writes by itself are sent by whoever comes along.
        let sent = s.processes().iter().find(|(n, _)| *n == "ext4lazyinit").map_or(0, |(_, p)| p.write.bytes);
        sent.max(s.op(Op::Zeroes).all.bytes)
    } else {
        0
    };
    Ok(Measured {
        contender: index,
        pattern: pattern.name(),
        trace,
        data,
        before,
        written: s.written_bytes(),
        background: lazy,
        requests: s.write_requests(),
        flushes: s.flushes(),
        rate,
        seconds,
        doubt: doubt(&view),
        view,
    })
}

/// Why the figures of a trace cannot be relied on, if so.
fn doubt(view: &View) -> Option<String> {
    let doubtful = view.found.cut || view.found.end.lost > 0 || view.agrees() == Some(false);
    doubtful.then(|| view.trust())
}

/// Runs the pattern's calls of fio; bytes written by the last, by those before, and the rate of the last.
fn load(site: &Site, pattern: &Pattern, bytes: u64) -> Result<(u64, u64, u64), Fail> {
    let mut out = (0, 0, 0);
    if *pattern == Pattern::Idle {
        let end = Instant::now() + IDLE;
        while Instant::now() < end {
            if let Some(signal) = child::interrupted() {
                return Err(child::interruption(signal));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    for call in pattern.calls(bytes) {
        let told = site.told();
        let mut fio = Command::new("fio");
        fio.args(&call).arg("--output-format=json").arg(format!("--output={}", told.display()));
        // A job file may not name a place of its own.
        fio.arg(format!("--directory={}", site.mount.display())).current_dir(&site.mount);
        run(&mut fio).map_err(|e| full(e, pattern))?;
        let text = fs::read_to_string(&told).at(told.display())?;
        let _ = fs::remove_file(&told);
        let (data, rate) =
            told_by_fio(&text).ok_or_else(|| Fail::new("fio: its report is not understood; fio 3 is needed"))?;
        out = (data, out.0 + out.1, rate);
    }
    Ok(out)
}

fn full(e: Fail, pattern: &Pattern) -> Fail {
    if e.message.contains("No space left") {
        return Fail {
            message: format!("the device is too small for {}; choose a smaller --size", pattern.name()),
            ..e
        };
    }
    e
}

/// Bytes written by all jobs, and bytes a second. fio may print notes before its JSON.
fn told_by_fio(text: &str) -> Option<(u64, u64)> {
    let json: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let sum =
        |field: &str| -> Option<u64> { json["jobs"].as_array()?.iter().map(|j| j["write"][field].as_u64()).sum() };
    Some((sum("io_bytes")?, sum("bw_bytes")?))
}

impl Measured {
    /// Bytes a request, in the mean.
    pub fn mean_bytes(&self) -> u64 {
        let t = self.view.found.summary.op(Op::Write).all;
        t.bytes.checked_div(t.requests).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_trace::analysis::Analysed;

    #[test]
    fn traces_that_are_doubted() {
        let view = |found| View::new(std::path::Path::new("t"), found);
        assert_eq!(doubt(&view(Analysed::default())), None);
        let cut = Analysed { cut: true, ..Analysed::default() };
        assert!(doubt(&view(cut)).unwrap().contains("CUT SHORT"));
        let mut lost = Analysed::default();
        lost.end.lost = 3;
        assert!(doubt(&view(lost)).unwrap().contains("3 events LOST"));
    }

    #[test]
    fn what_fio_tells() {
        let text = "note: both iodepth >= 1 and synchronous I/O engine\n{\"jobs\":[{\"write\":{\"io_bytes\":10,\"bw_bytes\":5}},{\"write\":{\"io_bytes\":2,\"bw_bytes\":1}}]}";
        assert_eq!(super::told_by_fio(text), Some((12, 6)));
        for bad in ["", "{}", "{\"jobs\":[{}]}", "{\"jobs\":[{\"write\":{\"io_bytes\":1}}]}", "fio: error"] {
            assert_eq!(super::told_by_fio(bad), None, "{bad}");
        }
    }
}
