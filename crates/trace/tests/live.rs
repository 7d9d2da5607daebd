//! A recording of a loop device agrees with the device's own counters. Needs
//! root, tracefs and losetup; says so where they are missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use nenrin_trace::{BlockDev, Counters, Op, Recording, TraceError, analysis};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Says that a test, or a part of one, is left out here, also to whoever runs all of them: to the file that is named in the environment.
fn left_out(why: std::fmt::Arguments<'_>) {
    use std::io::Write;
    eprintln!("skipped: {why}");
    if let Some(file) = std::env::var_os("NENRIN_LEFT_OUT") {
        let opened = std::fs::File::options().create(true).append(true).open(file);
        opened.and_then(|mut f| f.write_all(format!("   skipped: {why}\n").as_bytes())).unwrap();
    }
}

/// One recording at a time, so that a test knows whose instances it sees.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

struct Loop {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Loop {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let out = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().ok()?;
        let path = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        (out.status.success() && !path.is_empty()).then(|| Self { path: path.into(), _dir: dir })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

/// A device to record, unless this machine has none.
fn device() -> Option<(Loop, BlockDev)> {
    let Some(made) = Loop::new() else {
        left_out(format_args!("losetup does not work here"));
        return None;
    };
    let device = BlockDev::find(&made.path).unwrap();
    Some((made, device))
}

fn start(devices: &[BlockDev], out: &Path) -> Option<Recording> {
    match Recording::start(devices, &["test".into()], File::create(out).unwrap(), out) {
        Ok(recording) => Some(recording),
        Err(e @ (TraceError::NotPermitted | TraceError::NoTracefs(_) | TraceError::NoEvent(_))) => {
            left_out(format_args!("{e}"));
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn instances() -> Vec<String> {
    let own = format!("nenrin-{}-", std::process::id());
    let all = fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten().flatten();
    all.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|n| n.starts_with(&own)).collect()
}

#[test]
fn counts_agree_with_the_device() {
    let _alone = ALONE.lock().unwrap();
    let (Some((_a, a)), Some((_b, b))) = (device(), device()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("trace");
    let Some(recording) = start(&[a.clone(), b.clone()], &out) else { return };
    let open = |d: &BlockDev| {
        fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&d.path).unwrap()
    };
    let (fa, fb) = (open(&a), open(&b));
    let mut memory = vec![7u8; (256 << 10) + 4096];
    let skip = memory.as_ptr().align_offset(4096);
    recording.mark("writes");
    for i in 0..64 {
        fa.write_all_at(&memory[skip..skip + 4096], i * 8192).unwrap();
    }
    fa.write_all_at(&memory[skip..skip + (256 << 10)], 8 << 20).unwrap();
    fa.sync_all().unwrap();
    recording.mark("reads");
    fb.read_exact_at(&mut memory[skip..skip + 65536], 4096).unwrap();
    fb.write_all_at(&memory[skip..skip + 4096], 0).unwrap();
    let totals = recording.stop(Some(0)).unwrap();
    assert_eq!(totals.lost, 0);
    assert_eq!(instances(), Vec::<String>::new(), "an instance is left in the kernel");

    let mut direct = 0;
    let found = analysis::read(&out, |r, name, phase| {
        if r.event.device == 0 && phase == "writes" && r.event.op == Op::Write && r.event.sectors > 0 {
            assert!(!name.is_empty() && r.latency.is_some());
            direct += r.event.bytes();
        }
    })
    .unwrap();
    assert_eq!(direct, (64 * 4 + 256) << 10);
    assert_eq!(found.end.counters, totals.counters);
    for (i, (counted, device)) in found.summary.counted.iter().zip(&totals.counters).enumerate() {
        // Older kernels do not count flushes.
        let flushes = if device.flushes == 0 { 0 } else { counted.flushes };
        assert_eq!(Counters { flushes, writes: device.writes, ..*counted }, *device);
        assert!(found.summary.agrees_on_writes(i, device.writes), "{} counted, {} told", counted.writes, device.writes);
    }
    assert_eq!((found.summary.unfinished, found.cut), (0, false));
    assert!(found.summary.flushes() >= 1, "the sync sent no flush");
    assert_eq!(totals.counters[1].write_bytes, 4096);
}

/// Nothing that another device does is recorded, and a recording that is let go of is removed.
#[test]
fn only_what_was_asked_for() {
    let _alone = ALONE.lock().unwrap();
    let (Some((_a, a)), Some((_b, b))) = (device(), device()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("trace");
    let Some(recording) = start(std::slice::from_ref(&a), &out) else { return };
    let file = fs::OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&b.path).unwrap();
    let memory = vec![7u8; 8192];
    let skip = memory.as_ptr().align_offset(4096);
    file.write_all_at(&memory[skip..skip + 4096], 0).unwrap();
    drop(recording);
    let found = analysis::read(&out, |r, _, _| assert_ne!(r.event.op, Op::Write)).unwrap();
    assert_eq!(found.summary.write_requests(), 0);
}

/// Two partitions of one disk are told apart, and what is outside of both is not recorded.
#[test]
fn partitions() {
    let _alone = ALONE.lock().unwrap();
    let Some((made, disk)) = device() else { return };
    let add = |number: &str, start: &str| {
        Command::new("addpart")
            .arg(&made.path)
            .args([number, start, "8192"])
            .output()
            .is_ok_and(|out| out.status.success())
    };
    if !add("1", "2048") || !add("2", "10240") {
        left_out(format_args!("addpart does not work here"));
        return;
    }
    let part = |n: u32| PathBuf::from(format!("{}p{n}", made.path.display()));
    let devices = [BlockDev::find(&part(2)).unwrap(), BlockDev::find(&part(1)).unwrap()];
    assert!(devices[0].partition && devices[0].start == 10240 && devices[0].whole == disk.whole);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("trace");
    if let Some(recording) = start(&devices, &out) {
        let memory = vec![7u8; 8192];
        let skip = memory.as_ptr().align_offset(4096);
        for (path, offset) in [(&made.path, 0), (&part(1), 4096), (&part(2), 8192), (&part(2), 16384)] {
            let file = fs::OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
            file.write_all_at(&memory[skip..skip + 4096], offset).unwrap();
        }
        let totals = recording.stop(None).unwrap();
        let mut seen = Vec::new();
        analysis::read(&out, |r, _, _| {
            if r.event.op == Op::Write && r.event.sectors > 0 {
                let start = devices[usize::from(r.event.device)].start;
                seen.push((r.event.device, (r.event.sector - start) * 512));
            }
        })
        .unwrap();
        assert_eq!(seen, [(1, 4096), (0, 8192), (0, 16384)]);
        assert_eq!(totals.counters.iter().map(|c| c.write_bytes).collect::<Vec<_>>(), [8192, 4096]);
    }
    for number in ["1", "2"] {
        let _ = Command::new("delpart").arg(&made.path).arg(number).status();
    }
}
