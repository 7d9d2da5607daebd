//! `nenrin trace`: what it reads, what it refuses, what it leaves behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use nenrin_trace::{DeviceInfo, End, Event, EventKind, Flags, Header, Level, Op, Writer};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

const BLKPARSE: &str = "\
  8,0    3       10     0.000021450   697  D  WS 223496 + 56 [jbd2/sda-8]
  8,0    3       11     0.009507758     0  C  WS 223496 + 56 [0]
  8,0    3       12     0.011000000   697  D  FN [jbd2/sda-8]
  8,0    3       13     0.012000000     0  C  FN 0 [0]
";

/// A loop device over an empty image.
fn disk(place: &Place) -> Option<Loop> {
    fs::File::create(place.path("disk")).unwrap().set_len(32 << 20).unwrap();
    Loop::over(&place.text("disk"))
}

/// Whether recording works here; says so when not.
fn can_record(device: &Loop, place: &Place) -> bool {
    let out = nenrin(["trace", "record", "--device", &device.0, "-o", &place.text("try"), "--", "true"]);
    if out.stderr.contains("tracefs") || out.stderr.contains("tracepoint") {
        crate::common::left_out(format_args!("{}", out.stderr));
        return false;
    }
    out.ok();
    true
}

fn instances() -> usize {
    let all = fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten().flatten();
    all.filter(|e| e.file_name().to_string_lossy().starts_with("nenrin-")).count()
}

#[test]
fn calls_that_do_not_fit() {
    let place = Place::new();
    let file = place.text("file");
    fs::write(&file, "precious").unwrap();
    nenrin(["trace"]).fails(2, &["record or report is needed", "usage"]);
    nenrin(["trace", "play"]).fails(2, &["record or report"]);
    nenrin(["trace", "record"]).fails(2, &["--device is needed", "findmnt"]);
    nenrin(["trace", "record", "--device", "/no/such"]).fails(1, &["/no/such", "No such file"]);
    nenrin(["trace", "record", "--device", &file]).fails(1, &["not a block device", "losetup"]);
    nenrin(["trace", "record", "--for", "soon", "--device", &file]).fails(2, &["--for", "30s"]);
    nenrin(["trace", "report"]).fails(2, &["a trace is needed"]);
    nenrin(["trace", "report", "--json", "--csv", &file]).fails(2, &["exclude each other"]);
    nenrin(["trace", "report", "--data", "much", &file]).fails(2, &["--data", "512M"]);
    nenrin(["trace", "report", "/no/such"]).fails(1, &["/no/such", "No such file"]);
    nenrin(["trace", "report", &file]).fails(1, &["file", "too short"]);
    assert!(nenrin(["trace", "--help"]).ok().contains("trace record --device"));
    assert!(nenrin(["trace", "report", "--help"]).ok().contains("blkparse"));
}

#[test]
fn files_that_are_no_trace() {
    let place = Place::new();
    let file = place.text("file");
    fs::write(&file, "x".repeat(100)).unwrap();
    nenrin(["trace", "report", &file]).fails(1, &["neither a trace", "blkparse", "nenrin trace record"]);
    fs::write(&file, b"NENTRACE\x07\0\0\0\x02\0\0\0{}").unwrap();
    nenrin(["trace", "report", &file]).fails(1, &["version 7", "version 1", "update nenrin"]);
    fs::write(&file, b"NENTRACE\x01\0\0\0\x02\0\0\0{}").unwrap();
    nenrin(["trace", "report", &file]).fails(1, &["the header is damaged"]);
    fs::write(&file, "8,0 0 1 0.1 5 Q W 1 + 8 [a]\n").unwrap();
    nenrin(["trace", "report", &file]).fails(1, &["no request found"]);
    let text = place.text("text");
    fs::write(&text, BLKPARSE).unwrap();
    fs::write(place.image(), vec![0; 8 << 20]).unwrap();
    nenrin(["trace", "report", "--volume", &place.image(), &text]).fails(1, &["not a nenrin volume"]);
    nenrin(["trace", "report", "--html", "/no/such/dir/page", &text]).fails(1, &["/no/such/dir/page"]);
}

/// A trace of these devices, by name and length in sectors: each wrote a block at this sector.
fn trace_of(place: &Place, name: &str, devices: &[(&str, u64)], sector: u64) -> String {
    let info = |(name, sectors): &(&str, u64)| DeviceInfo {
        name: (*name).to_owned(),
        start: 0,
        sectors: *sectors,
        partition: false,
        level: Level::Request,
    };
    let header = Header { devices: devices.iter().map(info).collect(), source: "kernel".into(), ..Header::default() };
    let mut writer = Writer::create(&place.path(name), &header).unwrap();
    for device in 0..devices.len() as u8 {
        for kind in [EventKind::Issue, EventKind::Complete] {
            let (op, flags) = (Op::Write, Flags(0));
            let event =
                Event { kind, device, op, flags, sectors: 8, sector, nanos: 1, pid: 1, name: u16::MAX, error: 0 };
            writer.event(&event).unwrap();
        }
    }
    writer.end(&End::default()).unwrap();
    place.text(name)
}

/// What was written to another device is not looked up in the volume.
#[test]
fn the_trace_of_another_device() {
    let place = Place::with_volume();
    let sectors = fs::metadata(place.image()).unwrap().len() / 512;
    let explain = |trace: &str| nenrin(["trace", "report", "--json", "--volume", &place.image(), trace]);
    let disk = trace_of(&place, "disk", &[("sda", 1 << 20)], 0);
    explain(&disk).fails(1, &["disk: a trace of sda (512M), not of", "image (32M)", "the loop device over that file"]);
    let as_long = trace_of(&place, "as-long", &[("sda", sectors)], 0);
    explain(&as_long).fails(1, &["as-long: a trace of sda (32M)", "the loop device over that file"]);
    let text = place.text("text");
    fs::write(&text, BLKPARSE).unwrap();
    explain(&text).fails(1, &["does not tell how long devices are"]);

    let both = trace_of(&place, "both", &[("sda", 1 << 20), ("loop3", sectors)], 0);
    let volume = &explain(&both).json()[0]["volume"];
    assert_eq!(volume["kinds"], serde_json::json!({"superblock": {"writes": 1, "bytes": 4096}}));
    assert_eq!(volume["device"], "loop3");
    assert_eq!(volume["left_out"], serde_json::json!(["sda"]));
    let said = nenrin(["trace", "report", "--volume", &place.image(), &both]).ok();
    assert!(said.contains("note: what writes were is told of loop3 only, not of sda"), "{said}");
}

#[test]
fn numbers_that_no_device_has() {
    let place = Place::new();
    let trace = trace_of(&place, "trace", &[("sda", u64::MAX)], u64::MAX - 3);
    for how in [&["--json"][..], &["--csv"], &[]] {
        nenrin(["trace", "report", &trace].iter().chain(how)).ok();
    }
}

/// Names in a trace are whoever's made it. A program gets them as they are.
#[test]
fn cells_steer_no_terminal() {
    if !has("script") {
        return;
    }
    let place = Place::new();
    trace_of(&place, "a\u{1b}[2Jb", &[("sd\u{1b}]0;x\u{7}", 1 << 20)], 0);
    let told = |script: &str| shell(script, place.dir()).ok();
    let plain = told("$NENRIN trace report --csv a*");
    assert!(plain.contains("a\u{1b}[2Jb") && plain.contains("sd\u{1b}]0;x\u{7}"), "{plain:?}");
    let shown = told("script -qec '$NENRIN trace report --csv a*' /dev/null");
    assert!(shown.contains("a\u{fffd}[2Jb,") && shown.contains("sd\u{fffd}]0;x\u{fffd},"), "{shown:?}");
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    let full = shell("$NENRIN trace report --csv a* >/dev/full", place.dir());
    full.fails(1, &["standard output: No space left"]);
}

#[test]
fn text_of_other_tools() {
    let place = Place::new();
    let file = place.text("text");
    fs::write(&file, BLKPARSE).unwrap();
    let page = place.text("page.html");
    let out = nenrin(["trace", "report", "--data", "8K", "--html", &page, &file]).ok();
    for wanted in ["write             1  28K", "jbd2/sda-8", "file data 8K, metadata 20K (250.00 % of it)", "flushes 1"]
    {
        assert!(out.contains(wanted), "{wanted:?} is missing in\n{out}");
    }
    let html = fs::read_to_string(page).unwrap();
    // A link of somebody else is not followed.
    let link = place.text("link");
    std::os::unix::fs::symlink("elsewhere", &link).unwrap();
    if std::os::unix::fs::lchown(&link, Some(1000), None).is_ok() {
        nenrin(["trace", "report", "--html", &link, &file]).fails(1, &[&link, "another user"]);
        assert!(!place.path("elsewhere").exists());
    }
    assert!(html.contains("<svg") && html.contains("prefers-color-scheme") && !html.contains("http"));
    let json = nenrin(["trace", "report", "--json", &file]).json();
    assert_eq!(json[0]["operations"]["write"]["bytes"], 56 * 512);
    assert_eq!(json[0]["operations"]["write"]["latency"]["max"], 9_486_308);
    assert_eq!(json[0]["source"], "blkparse");
    let csv = nenrin(["trace", "report", "--csv", &file]).ok();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    // Who has only these lines is told what they lack.
    fs::write(&file, format!("{BLKPARSE}  8,0 is not understood\n")).unwrap();
    let out = nenrin(["trace", "report", "--csv", &file]);
    assert!(out.code == 0 && out.stdout.lines().count() == 3, "{out:?}");
    assert!(out.stderr.contains("1 lines not understood"), "{out:?}");
    assert!(lines[1].ends_with(",\"8,0\",write,S,114429952,28672,9486.308,0,697,jbd2/sda-8,"), "{}", lines[1]);
}

#[test]
fn only_root_records() {
    if !is_root() || !has("setpriv") {
        return;
    }
    let place = Place::new();
    let Some(device) = disk(&place) else { return };
    let before = instances();
    // From a place where it may be run, whatever the build directory allows.
    let program = place.text("nenrin");
    fs::copy(env!("CARGO_BIN_EXE_nenrin"), &program).unwrap();
    run("chmod", &["-R", "a+rwx", place.dir().to_str().unwrap()]).ok();
    let args = [
        "--reuid=65534",
        "--clear-groups",
        &program,
        "trace",
        "record",
        "--device",
        &device.0,
        "-o",
        &place.text("t"),
        "--",
        "true",
    ];
    run("setpriv", &args).fails(1, &["only root may", "run it as root"]);
    // Other tests record at the same time, so there may be one for a moment.
    wait_until("no instance is left", || instances() <= before);
}

#[test]
fn commands_under_record() {
    let place = Place::new();
    let Some(device) = disk(&place) else { return };
    if !can_record(&device, &place) {
        return;
    }
    let trace = place.text("t");
    let record = |more: &[&str]| nenrin(["trace", "record", "--device", &device.0, "-o", &trace].iter().chain(more));
    // Its exit code is ours, and what it did is there.
    let out = record(&[
        "--",
        "sh",
        "-c",
        &format!("dd if=/dev/zero of={} bs=64k count=4 oflag=direct status=none; exit 7", device.0),
    ]);
    assert_eq!(out.code, 7, "{}", out.stderr);
    assert!(
        out.stderr.contains("256K written in 4 requests") && out.stderr.contains("counters agree"),
        "{}",
        out.stderr
    );
    assert!(nenrin(["trace", "report", &trace]).ok().contains("(exit code 7)"));
    assert_eq!(record(&["--", "sh", "-c", "kill -9 $$"]).code, 137);
    // A command that cannot be started costs no trace that was there, and leaves none.
    let before = fs::read(&trace).unwrap();
    fs::set_permissions(&trace, fs::Permissions::from_mode(0o640)).unwrap();
    record(&["--", "/no/such/program"]).fails(127, &["/no/such/program", "no such program"]);
    record(&["--", &trace]).fails(126, &["may not be run"]);
    assert!(fs::read(&trace).unwrap() == before, "the trace was replaced");
    let fresh = place.text("fresh");
    nenrin(["trace", "record", "--device", &device.0, "-o", &fresh, "--", "/no/such/program"]).fails(127, &["no such"]);
    std::os::unix::fs::symlink("t", place.path("link")).unwrap();
    nenrin(["trace", "record", "--device", &device.0, "-o", &place.text("link"), "--", "true"]).ok();
    assert!(nenrin(["trace", "report", &trace]).ok().contains("(exit code 0)"));
    assert_eq!(fs::metadata(&trace).unwrap().permissions().mode() & 0o777, 0o640);
    let mut names: Vec<_> = fs::read_dir(place.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["disk", "link", "t", "try"], "nothing else is left");
    record(&["--device", &device.0, "--", "true"]).fails(2, &["overlap"]);
    // What is no trace is not replaced; a trace is.
    let other = place.text("other");
    fs::write(&other, "precious").unwrap();
    nenrin(["trace", "record", "--device", &device.0, "-o", &other, "--", "true"])
        .fails(1, &["exists and is no trace", "-o"]);
    assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    nenrin(["trace", "record", "--device", &device.0, "-o", "/no/such/t", "--", "true"]).fails(1, &["/no/such/t"]);
    if std::path::Path::new("/dev/full").exists() {
        let out = nenrin(["trace", "record", "--device", &device.0, "-o", "/dev/full", "--", "true"]);
        out.fails(1, &["/dev/full", "No space left"]);
    }
    // Where it cannot be replaced it is written itself.
    if has("unshare") {
        let mut command =
            in_own_mounts(place.dir(), "mount --bind t t && exec \"$NENRIN\" trace record --device \"$0\" \"$@\"");
        let status = command.args([&device.0, "-o", "t", "--", "sh", "-c", "exit 5"]).status().unwrap();
        assert_eq!(status.code(), Some(5));
        assert!(nenrin(["trace", "report", &trace]).ok().contains("(exit code 5)"));
    }
    record(&["--for", "100ms"]).ok();
    // Who does not heed that the time is over is made to end.
    let out = record(&["--for", "2s", "--", "sh", "-c", "trap '' TERM; exec sleep 300"]);
    assert_eq!(out.code, 137, "{}", out.stderr);
}

/// A signal ends command and recording, and the trace is whole.
#[test]
fn a_signal_ends_it() {
    let place = Place::new();
    let Some(device) = disk(&place) else { return };
    if !can_record(&device, &place) {
        return;
    }
    let trace = place.text("t");
    let mut child = command(["trace", "record", "--device", &device.0, "-o", &trace, "--", "sleep", "60"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let own = format!("nenrin-{}-0", child.id());
    let instance = std::path::Path::new("/sys/kernel/tracing/instances").join(own);
    wait_until("it records", || instance.exists());
    // The command runs by then, or is told as soon as it does.
    std::thread::sleep(std::time::Duration::from_millis(200));
    signal(child.id(), "TERM");
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(143));
    assert!(!instance.exists(), "the instance is left in the kernel");
    assert!(!nenrin(["trace", "report", &trace]).ok().contains("CUT"));
}

/// Where tracefs is not mounted it is mounted; where that may not be, it is said how.
#[test]
fn without_tracefs() {
    let place = Place::new();
    let Some(device) = disk(&place) else { return };
    if !can_record(&device, &place) || !has("unshare") || !has("setpriv") {
        return;
    }
    // In a table of mounts of its own, so that nobody else misses it.
    let hidden = |before: &str| {
        let script = format!(
            "umount /sys/kernel/tracing; ! [ -e /sys/kernel/tracing/instances ] || exit 99; ! [ -e /sys/kernel/debug/tracing ] || exit 99; \
             exec {before} \"$NENRIN\" trace record --device \"$0\" -o t -- true"
        );
        Out::of(in_own_mounts(place.dir(), &script).arg(&device.0).output().unwrap())
    };
    let mounts_it = hidden("");
    if mounts_it.code == 99 || mounts_it.stderr.contains("unshare:") {
        crate::common::left_out(format_args!("tracefs cannot be hidden here"));
        return;
    }
    assert!(mounts_it.stderr.contains("counters agree"), "{}", mounts_it.stderr);
    mounts_it.ok();
    hidden("setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin")
        .fails(1, &["tracefs is not mounted", "mount -t tracefs tracefs /sys/kernel/tracing"]);
}
