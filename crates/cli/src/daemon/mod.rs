//! The process that owns a volume: opens it, serves its mounts, answers
//! commands, and lets it go when the last mount has ended.
//!
//! Invariants
//! 1. The volume is opened by this process alone (an exclusive lock on its
//!    device) and closed by it: everything committed, a clean root written.
//! 2. Whoever waits for the start hears of success only when the mount is up.
//! 3. Once the last mount has ended no new one is made; `closing` says so.
//! 4. A request is answered "released" only after the device was closed.

mod cutting;
mod devices;
mod forgetting;
mod leaving;
mod letting_go;
mod log;
mod look;
mod memory;
mod mounting;
mod replacing;
mod service;
mod steps;
mod threads;
mod watch;

use crate::control::{CheckpointData, Server};
use crate::device::{self, Device};
use crate::error::{At as _, Fail, Outcome};
use crate::options::Options;
use crate::output::shell_quoted;
use crate::size::show_bytes;
use crate::{control, members, mounts, past, report, sys};
pub use leaving::leave;
pub use log::Log;
use nenrin_core::{At, Fs};
use nenrin_device::{DeviceError, OpenMode};
use nenrin_fuse::{MountError, MountOptions, Permissions, SessionOptions, ShowPast};
use serde::{Deserialize, Serialize};
use service::{Event, Service};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};
use threads::{Rising, Threads};

/// How long a process that has released its volume stays for the sake of who
/// asked for it: with a million inodes known, umount(2) itself takes seconds
/// after the session has ended.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// And for what is to be in the log.
const LOG_TIME: Duration = Duration::from_secs(5);
/// How long a mount waits for an owner that is still finishing.
const OWNER_TIME: Duration = Duration::from_secs(10);
/// How often the library does what is due.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two looks at the image.
const TICKS_PER_WATCH: u32 = 10;
/// How long programs may hold on to a mount after a signal.
const STOP_TIME: Duration = Duration::from_secs(5);

/// What to serve.
pub struct Plan {
    /// The volume's device, absolute.
    pub device: PathBuf,
    /// What mount(8) shows as source: the device as given.
    pub source: PathBuf,
    /// Where to mount it, absolute.
    pub directory: PathBuf,
    /// How.
    pub options: Options,
    /// Where to log.
    pub log: Option<PathBuf>,
    /// Somebody reads [`Started`] from standard output.
    pub report_start: bool,
}

/// What the process says on standard output once it is clear how the start went.
#[derive(Debug, Serialize, Deserialize)]
pub struct Started {
    /// Why it failed: exit code and line.
    pub error: Option<(u8, String)>,
    /// What the user should know, one line each.
    pub notes: Vec<String>,
    /// The state of the past that is shown, if one was asked for.
    pub shown: Option<CheckpointData>,
}

/// Serves until the last mount has ended. The exit code is for who waits in the
/// foreground.
///
/// # Errors
/// The volume could not be mounted, or not be closed.
pub fn run(plan: &Plan) -> Outcome {
    if plan.report_start {
        sys::new_session();
    }
    match start(plan) {
        Ok(running) => running.serve(),
        Err(fail) if plan.report_start => {
            let error = Some((fail.code, fail.to_string()));
            match tell(&Started { error, notes: Vec::new(), shown: None }) {
                Ok(()) => Ok(fail.code),
                // Whoever sees what is printed may know more than who asked.
                Err(_) => Err(fail),
            }
        }
        Err(fail) => Err(fail),
    }
}

/// Why there is no mount although all went well.
const GONE: &str = "who asked for this mount did not wait for it, so nothing is mounted";

/// Fails where nobody reads it any more.
fn tell(started: &Started) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(started).unwrap_or_default()).and_then(|()| out.flush())
}

struct Running {
    service: Arc<Service>,
    events: Receiver<Event>,
    server: Server,
    threads: Threads,
}

fn start(plan: &Plan) -> Result<Running, Fail> {
    let log = Log::open(plan.log.as_deref(), !plan.report_start);
    let log = Arc::new(log.at(format!("log file {}", plan.log.as_deref().unwrap_or(Path::new("")).display()))?);
    // Before any thread, so that all of them leave signals to the one that waits.
    sys::block_ending_signals().at("signals")?;
    sys::ignore_stray_signals();
    sys::set_io_flusher();
    spare_from_memory_shortage();

    let read_only = plan.options.core.read_only || plan.options.past.is_some();
    let mode = OpenMode { read_only, exclusive: true, polling: !plan.options.nopoll };
    let mut core = nenrin_core::MountOptions { read_only, ..plan.options.core.clone() };
    let limited = memory::fit(&mut core, plan.options.cache_size_given);
    if limited.is_some() {
        // Before anything is allocated that stays.
        sys::save_memory();
    }
    // Opening it writes, and is not undone by there being no mount.
    let how = how(plan, read_only);
    let end = Instant::now() + OWNER_TIME;
    while let Err(e) = session_options(&plan.options).can_mount(&how) {
        // An owner that is only finishing is waited for.
        let finishes = |d: &PathBuf| control::owner_of_device(d).is_some_and(|owner| owner.hello.closing);
        let is_mounted = matches!(e, MountError::Mounted(_));
        if !is_mounted || Instant::now() >= end || !members::split(&plan.device).iter().any(finishes) {
            return Err(service::describe_mount(&e));
        }
        thread::sleep(TICK);
    }
    let named = members::split(&plan.device);
    let mut members = members::open(&named, |path| open_device(path, mode, "; mount it with -o ro"))?;
    let left_out = if core.degraded { members.leave_out_misfits(&named) } else { Vec::new() };
    if let Some(allowed) = limited {
        let [allowed, index, content] = [allowed, core.cache_bytes as u64, core.dirty_bytes_max as u64].map(show_bytes);
        log.line(&format!(
            "the control group allows {allowed} of memory: {index} are used for the index, {content} for content not yet written"
        ));
    }
    // Until there are threads for that, and where there will be none, until it is closed again.
    let mut rising = None;
    let mut begins = |fs: &Arc<Fs>| rising = Rising::start(fs, &log);
    let fs = device::open_volume_and(&plan.device, members.devices, core, &mut begins)?;
    let notes = [left_out, notes(&fs, plan)].concat();
    let (sender, events) = mpsc::channel();
    let service = Arc::new(Service::new(fs, plan.device.clone(), &plan.options, log.clone(), sender));

    // Who was interrupted, or lost patience, wants no mount.
    let is_wanted = || match plan.report_start && sys::nobody_reads_output() {
        true => Err(Fail::at(plan.device.display(), GONE)),
        false => Ok(()),
    };
    let started = is_wanted().and_then(|()| mount(&service, plan)).and_then(|shown| {
        let uuid = report::show_uuid(&service.fs()?.superblock().uuid);
        let handler = service.clone();
        let server = Server::start(
            &uuid,
            Arc::new(move |request, parts: &mut control::Parts<'_>| handler.answer(request, parts)),
            log.clone(),
        );
        let server = server.at("control socket")?;
        let threads = Threads::start(&service, &server).at("a thread")?;
        Ok((server, threads, shown))
    });
    let (server, threads, shown) = match started {
        Ok(started) => started,
        Err(fail) => {
            service.stop_all();
            return Err(service.close().err().unwrap_or(fail));
        }
    };
    drop(rising);

    let (place, directory) = (plan.device.display(), plan.directory.display());
    log.line(&match &shown {
        Some(c) => format!("{} of {place} mounted at {directory}", report::show_state(c)),
        None => format!("{place} mounted at {directory}"),
    });
    notes.iter().for_each(|n| log.line(n));
    if plan.report_start {
        if tell(&Started { error: None, notes, shown }).is_err() {
            log.line(GONE);
            service.send(Event::Signal(libc::SIGTERM));
        }
        let _ = detach(plan.log.as_deref());
    }
    Ok(Running { service, events, server, threads })
}

/// What lies behind a limit on the length of files could not be written, and the volume would stop there.
fn can_be_written(path: &Path) -> Result<(), Fail> {
    let file_bytes_max = sys::raise_file_size_limit().at("the limit on the length of files")?;
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() && meta.len() > file_bytes_max => {
            let limit = show_bytes(file_bytes_max);
            let text = format!(
                "is longer than files may be here ({limit}); raise that (ulimit -f unlimited), or mount it with -o ro"
            );
            Err(Fail::at(path.display(), text))
        }
        _ => Ok(()),
    }
}

/// Lets go of the caller's terminal and directory.
fn detach(log: Option<&Path>) -> std::io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    sys::redirect(&null, 0)?;
    sys::redirect(&null, 1)?;
    match log.and_then(|p| File::options().append(true).open(p).ok()) {
        // What a panic prints must be somewhere.
        Some(file) => sys::redirect(&file, 2)?,
        None => sys::redirect(&null, 2)?,
    }
    std::env::set_current_dir("/")
}

/// A daemon that is killed is a power cut for its volume: rather something else.
fn spare_from_memory_shortage() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "-500");
}

/// Opens a device for this process alone, so that the volume may use it.
pub(super) fn open_owned(path: &Path, polling: bool) -> Result<Device, Fail> {
    open_device(path, OpenMode { polling, ..OpenMode::OWNER }, "")
}

/// Opens the device; an owner that is only finishing is waited for. `help`: what to do where it is write-protected.
fn open_device(path: &Path, mode: OpenMode, help: &str) -> Result<Device, Fail> {
    let end = Instant::now() + OWNER_TIME;
    loop {
        let error = match device::try_open(path, mode) {
            Ok(device) if mode.read_only => return Ok(device),
            Ok(device) => return can_be_written(path).map(|()| device),
            Err(e) => e,
        };
        let DeviceError::Busy { command, .. } = &error else {
            let fail = device::describe(path, mode, &error);
            let help = if device::is_write_protected(&error) { help } else { "" };
            return Err(Fail { message: fail.message + help, ..fail });
        };
        let owner = control::asked_of_device(path).0;
        let late = Instant::now() >= end;
        let stays = |o: &control::Client| !o.hello.closing && o.hello.mounts.iter().any(|m| late || is_seen(m));
        if let Some(owner) = owner.filter(stays) {
            return Err(Fail::at(path.display(), format!("{error}, {}", where_it_is(&owner.hello.mounts))));
        }
        let ours = command.as_ref().is_none_or(|c| c.contains("nenrin"));
        if !ours || late {
            return Err(control::with_place(path, device::describe(path, mode, &error)));
        }
        thread::sleep(TICK);
    }
}

/// Where a volume is in use that cannot be mounted for that, and what to do.
fn where_it_is(all: &[control::MountData]) -> String {
    let places: Vec<&str> = all.iter().filter(|m| !m.detached).map(|m| m.directory.as_str()).collect();
    if !places.is_empty() {
        let each = |place: &&str| format!("nenrin umount {}", shell_quoted(Path::new(place)));
        let each: Vec<String> = places.iter().map(each).collect();
        let does = match (each.len(), all.iter().all(|m| m.checkpoint.is_some())) {
            (1, false) => "releases it",
            (1, true) => "releases it: what is left of its mounts shows the past only, and keeps it",
            (_, false) => "release it, all of them",
            (_, true) => "release it, all of them: they show the past only, and each keeps it",
        };
        return format!("mounted at {}; {} {does}", places.join(" and "), each.join(" and "));
    }
    let gone: Vec<&str> = all.iter().map(|m| m.directory.as_str()).collect();
    let holders = all.first().map(|m| mounts::held_by(&m.device)).unwrap_or_default();
    format!("detached from {}, {holders}", gone.join(" and "))
}

/// Whether a mount that its owner tells of is still in the kernel's list: after umount(2) the owner hears of it a moment
/// later. One of another mount namespace is not in ours.
fn is_seen(m: &control::MountData) -> bool {
    mounts::all().is_ok_and(|all| all.iter().any(|k| k.fstype == mounts::FSTYPE && k.point == Path::new(&m.directory)))
}

/// What the user should know about the volume that was opened.
fn notes(fs: &Fs, plan: &Plan) -> Vec<String> {
    let report = fs.recovery_report();
    let place = plan.device.display();
    let mut notes: Vec<String> = report.notes.iter().map(|n| format!("{place}: {n}")).collect();
    if let Some(damage) = &report.damage {
        notes.push(format!(
            "{place}: damaged, so mounted read-only: {damage}; copy what you need, then nenrin check, and nenrin check \
             --repair -n for what a repair would do"
        ));
    }
    notes
}

/// Mounts what the plan says. Which state of the past that is, if one.
fn mount(service: &Arc<Service>, plan: &Plan) -> Result<Option<CheckpointData>, Fail> {
    let fs = service.fs()?;
    let found = plan.options.past.as_deref().map(|when| past::find(&fs, when)).transpose();
    let shown = found.map_err(|f| Fail::at(plan.device.display(), f))?;
    let at = shown.as_ref().map_or(At::Live, |c| At::Past(c.cno));
    let mut options = session_options(&plan.options);
    let how = how(plan, fs.options().read_only);
    options.past = ShowPast(Some(Arc::new(past::Shelves(fs))));
    service.add(at, &how, &options)?;
    Ok(shown.as_ref().map(report::checkpoint))
}

/// Where and how the volume is to appear.
fn how(plan: &Plan, read_only: bool) -> MountOptions {
    let o = &plan.options;
    MountOptions {
        read_only,
        allow_other: o.allow_other,
        nonempty: o.nonempty,
        dev: o.dev,
        suid: o.suid,
        exec: !o.noexec,
        noatime: o.noatime,
        ..MountOptions::new(plan.source.display().to_string(), &plan.directory)
    }
}

/// The library is ticked by [`start_ticking`], also while only the past is mounted.
fn session_options(o: &Options) -> SessionOptions {
    let permissions = if o.own_check { Permissions::Own } else { Permissions::Kernel };
    SessionOptions { cache: o.cache, way: o.way, permissions, tick: Duration::ZERO, ..SessionOptions::default() }
}

impl Running {
    fn serve(mut self) -> Outcome {
        let mut stop_at: Option<Instant> = None;
        while !self.service.close_if_unused() {
            let wait = stop_at.map_or(Duration::from_secs(3600), |t| t.saturating_duration_since(Instant::now()));
            match self.events.recv_timeout(wait) {
                Ok(Event::Ended) => {}
                Ok(Event::Signal(_)) => {
                    // A second signal waits no longer than the first.
                    self.service.stop_all();
                    stop_at.get_or_insert(Instant::now() + STOP_TIME);
                }
                Err(_) if stop_at.is_some() => {
                    self.service.log.line("programs still use the volume; leaving all the same");
                    self.service.bring_in();
                    break;
                }
                Err(_) => {}
            }
        }
        self.server.retire();
        let judges = self.threads.leave();
        let closed = self.service.close();
        // Until then: closing may take its time, and wait for a device.
        drop(judges);
        // Those who asked for the unmount are answered before this process ends.
        self.server.finish(ANSWER_TIME);
        self.service.log.finish(LOG_TIME);
        closed.map(|()| 0)
    }
}

/// Why a directory cannot be mounted on, as far as that is clear before the
/// volume was opened.
pub fn check_directory(path: &Path) -> Result<PathBuf, Fail> {
    let real = match mounts::real_path(path) {
        Ok(real) => real,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Fail::at(path.display(), "no such directory; create it first"));
        }
        Err(e) => return Err(Fail::at(path.display(), e)),
    };
    match std::fs::metadata(&real) {
        Ok(m) if !m.is_dir() => Err(Fail::at(path.display(), "not a directory")),
        // A dead mount is cleared when it comes to mounting.
        _ => Ok(real),
    }
}
