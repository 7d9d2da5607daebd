//! `nenrin mount`: starts the daemon that serves a volume, or asks the one that
//! owns it to show a state of the past as well.

use crate::command::{Command, arguments, text_value};
use crate::control::{self, CheckpointData, Client, PastMount, Request};
use crate::daemon::{self, Plan, Started};
use crate::error::{At, FAILURE, Fail, Outcome};
use crate::mounts::{self, Mount};
use crate::options::{self, Options};
use crate::{clock, libmount, members, output, report, sys, tag, when};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// The command.
pub const COMMAND: Command = Command {
    name: "mount",
    usage: &["mount [-o OPTIONS] [-f] [--log FILE] DEVICE[,DEVICE...] DIR"],
    about: "Mounts a volume, or a past state of it beside the live mount",
    options: &[
        ("-o OPTIONS", "comma separated; several -o add up"),
        ("-f", "stay in the foreground"),
        ("--log FILE", "append what happens to the volume to this file"),
    ],
    notes: "mount options:\n\
\x20 ro                   nothing is written, the log is replayed in memory\n\
\x20 cp=N, at=WHEN        a state of the past, read-only: a checkpoint number, a snapshot's name, RFC 3339,\n\
\x20                      YYYY-MM-DD[ HH:MM[:SS]] as clocks here show it, or \"N seconds|minutes|hours|days ago\":\n\
\x20                      the newest not later than the end of what is said\n\
\x20 order=relaxed|strict               what a sync carries besides its file\n\
\x20 barrier=sync|checkpoint|none       when the device is flushed\n\
\x20 cache=writethrough|writeback       where written content is kept first\n\
\x20 transport=classic|uring            how requests of the kernel come; uring where enable_uring of the module fuse is Y\n\
\x20 nopoll               syncs of a program that is alone do not spend processor time to be faster\n\
\x20 commit=SECONDS       everything is committed within this time (1; 0.2 at least)\n\
\x20 checkpoint=SECONDS   an unnamed checkpoint is cut this often (5; 0: never)\n\
\x20 cache-size=SIZE      memory for the index (96M)\n\
\x20 log=FILE             as --log FILE, for fstab\n\
\x20 noatime, relatime (also atime, strictatime), discard, norecovery, allow_other, nonempty\n\
\x20 degraded             go on without a device that the others can stand in for (mirror, parity)\n\
\x20 mmp                  another host that reaches the devices is refused while this one has the volume;\n\
\x20                      mounting takes 5 seconds more, and after a mount that did not end 10\n\
\x20 own_check            we check permissions, not the kernel: faster, for one user (not with allow_other)\n\
\x20 dev, suid, exec and their opposites, as in mount(8); dev and suid need root\n\
\x20 sync and dirsync are refused: what is written is durable when a program syncs it, else within commit=;\n\
\x20 what mount(8) uses among itself (auto, nofail, user, x-..., async, lazytime) is taken and means nothing\n\
\n\
DEVICE may be LABEL=NAME or UUID=... of a volume on block devices of this machine, which nenrin probe lists (./LABEL=NAME is\n\
a path).\n\
Two volumes with one label, or two copies of a device, are an error that names both: nobody guesses which is meant.\n\
In /etc/fstab: UUID=... DIR nenrin nofail 0 0 (or LABEL=NAME, a space in it written \\040), by the rule for udev of make install.\n\
A device that was away is brought up to date in the background. Where mount(8) asks, as for fstab, devices of the volume that are\n\
not there yet are waited for, 10 seconds at most; with degraded not for those that it went on without before.\n\
Of a volume of several devices one is enough where the others are files in the same directory, or block devices of this machine.\n\
remount changes ro, suid, dev, exec and their opposites of a mount that is there, and refuses to change anything else. With ro\n\
what was written before is durable when it returns, and reading moves no access times; the daemon goes on cleaning.\n\
Returns when the mount is up; interrupted before, it leaves none. A mount whose program was killed is\n\
cleared; an owner that is only finishing is waited for, up to 10 seconds.",
    examples: &[
        ("mount work.img ~/work", "mounts a volume"),
        ("mount LABEL=backup /mnt", "by its label, whatever its device is called today"),
        ("mount -o at='10 minutes ago' work.img ~/before", "shows it as it was, beside the live mount"),
        ("mount -o ro,allow_other /dev/sdb1 /mnt", "read-only, and for all users"),
    ],
    run,
};

/// Tells the daemon that somebody reads how its start went. Not for users.
const REPORT_START: &str = "--report-start";

/// A mount as asked for.
#[derive(Default)]
pub struct Call {
    /// -o, as given.
    pub options: Vec<String>,
    /// In the foreground.
    pub foreground: bool,
    /// Where to log.
    pub log: Option<PathBuf>,
    /// Devices that are not there yet are waited for.
    waits: bool,
    report_start: bool,
}

impl Call {
    /// By mount(8), as when a machine starts, whose devices come one after the other.
    pub fn by_mount8() -> Self {
        Self { waits: true, ..Self::default() }
    }
}

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut call = Call::default();
    let given = arguments(&COMMAND, parser, 2, |flag, parser| {
        match flag.shown().as_str() {
            "-o" => call.options.push(text_value(parser)?),
            "-f" => call.foreground = true,
            "--log" => call.log = Some(parser.value()?.into()),
            REPORT_START => {
                // Before those are asked for whom the paths are of: threads that do may still be at it later.
                sys::close_inherited();
                call.report_start = true;
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    match given.as_slice() {
        [device, directory] => mount(&call, device, Path::new(directory)),
        _ => Err(COMMAND.misuse("a device and a directory are needed")),
    }
}

/// Mounts, or changes a mount, or asks an owner to.
pub fn mount(call: &Call, device: &OsString, directory: &Path) -> Outcome {
    let options = options::parse(&call.options)?;
    // By mount(8) nobody has asked whether somebody answers below them.
    [Path::new(device), directory].into_iter().try_for_each(control::is_answered)?;
    if options.remount {
        return remount(directory, &options);
    }
    let late = if call.waits { members::LATE_TIME } else { Duration::ZERO };
    let path = &*tag::device_within(Path::new(device), late)?;
    let device = members::absolute(path);
    // What mount(8) shows: as given, but never relative to a directory nobody knows.
    let path = if path.is_absolute() { path } else { device.as_path() };
    let directory = daemon::check_directory(directory)?;
    if let (Some(when), false) = (&options.past, call.report_start) {
        if let Some(done) = ask_owner(call, &device, path, &directory, when, &options) {
            return done;
        }
    }
    if call.waits {
        members::wait_for_late(&members::split(&device), options.core.degraded, members::LATE_TIME);
    }
    let log = call.log.as_deref().or(options.log.as_deref()).map(std::path::absolute).transpose().at("log file")?;
    if call.foreground {
        let source = path.to_owned();
        return daemon::run(&Plan { device, source, directory, options, log, report_start: call.report_start });
    }
    start(call, path, &directory, log.as_deref())
}

/// Has the owner of a mounted volume show a past state too; `None` when there is no owner.
fn ask_owner(call: &Call, device: &Path, source: &Path, directory: &Path, when: &str, o: &Options) -> Option<Outcome> {
    let mut owner = control::owner_of_device(device)?;
    if owner.hello.closing {
        return None;
    }
    if call.foreground || call.log.is_some() || o.log.is_some() {
        let text = "the volume is mounted, and its owner shows the past as well, with a log of its own; leave out -f, --log and log=";
        return Some(Err(Fail::usage(format!("{}: {text}", source.display()))));
    }
    // What is mounted in another name space is not seen in this one, as a rule, also where the directory is the same.
    let space = match owner.is_in_our_space().and_then(|()| owner.shares(directory)) {
        Ok(space) => space,
        Err(why) => {
            let text =
                format!("{why}; where a mount of the volume is seen here, it has that state at .nenrin/at/{when}");
            return Some(Err(Fail::at(directory.display(), text)));
        }
    };
    let when = match when::for_owner(when, clock::now()) {
        Ok(when) => when,
        Err(why) => return Some(Err(Fail::usage(format!("mount option at={when}: {why}")))),
    };
    let request = Request::MountPast(PastMount {
        when,
        source: source.to_owned(),
        directory: directory.to_owned(),
        allow_other: o.allow_other,
        nonempty: o.nonempty,
        dev: o.dev,
        suid: o.suid,
        noexec: o.noexec,
        space,
    });
    Some(owner.call(&request).map_err(|f| Fail::at(source.display(), f)).map(|c: CheckpointData| {
        output::line(report::show_state(&c));
        libmount::remember(source, directory);
        0
    }))
}

/// Starts the daemon and waits until the mount is up, or has failed.
fn start(call: &Call, source: &Path, directory: &Path, log: Option<&Path>) -> Outcome {
    let program = std::env::current_exe().at("this program")?;
    let mut command = std::process::Command::new(program);
    command.args(["mount", "-f", REPORT_START]);
    for o in &call.options {
        command.arg("-o").arg(o);
    }
    if let Some(log) = log {
        command.arg("--log").arg(log);
    }
    command.arg("--").arg(source).arg(directory).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().at("the daemon cannot be started")?;
    let started = read_start(&mut child);
    let Some(started) = started else {
        let ended = child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
        return Err(Fail::at(source.display(), format!("the daemon ended before the mount was up ({ended})")));
    };
    started.notes.iter().for_each(output::notice);
    if let Some(shown) = &started.shown {
        output::line(report::show_state(shown));
    }
    match started.error {
        None => {
            libmount::remember(source, directory);
            Ok(0)
        }
        Some((code, message)) => {
            let _ = child.wait();
            Err(Fail::new(message).with_code(code.max(FAILURE)))
        }
    }
}

fn read_start(child: &mut Child) -> Option<Started> {
    let mut line = String::new();
    BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// Changes those flags of a mount that were given. The daemon goes on.
fn remount(directory: &Path, o: &Options) -> Outcome {
    let real = mounts::real_path(directory).at(directory.display())?;
    let Some(mount) = mounts::of_point(&real).filter(|m| m.fstype == mounts::FSTYPE) else {
        return Err(Fail::at(directory.display(), "no nenrin volume is mounted here, so nothing can be remounted"));
    };
    let (mut owner, ..) = control::owner_of_directory(&real)?;
    let shown = owner.hello.mounts.iter().find(|m| m.device == mount.device).and_then(|m| m.checkpoint);
    may_be_remounted(&mut owner, &mount, shown, o).map_err(|why| Fail::at(directory.display(), why))?;
    let always = if shown.is_some() { libc::MS_RDONLY } else { 0 };
    let flags = flags(&mount, o) | always;
    sys::remount(&real, flags).map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => Fail::at(directory.display(), "only root can remount"),
        _ => Fail::at(directory.display(), e),
    })?;
    let is_told = o.last_given(&["ro", "rw"]).is_some() && shown.is_none() && !owner.hello.read_only;
    if is_told { tell_remounted(&mut owner, mount.device, flags & libc::MS_RDONLY != 0, directory) } else { Ok(0) }
}

/// The kernel tells nobody: what was written until then is to be durable, and reading is to change nothing any more, or again.
fn tell_remounted(owner: &mut Client, device: String, read_only: bool, directory: &Path) -> Outcome {
    let told = match (owner.hello.hears_remounts, read_only) {
        (true, _) => owner.call(&Request::Remounted { device, read_only }),
        // One of an earlier version: reading goes on to move access times.
        (false, true) => owner.call(&Request::Sync),
        (false, false) => Ok(()),
    };
    told.map(|()| 0).map_err(|why: Fail| match read_only {
        true => {
            let text = "is read-only now, but what was written may not be on the device";
            Fail::at(directory.display(), format!("{text}: {why}")).with_code(why.code)
        }
        false => Fail::at(directory.display(), why),
    })
}

/// Whether a mount, which may show a checkpoint, can become what is asked for while its owner stays as it is.
fn may_be_remounted(owner: &mut Client, mount: &Mount, shown: Option<u64>, o: &Options) -> Result<(), Fail> {
    // mount(8) puts rw before what fstab says unless that is ro, which who names a state of the past need not say.
    let becomes_writable = o.last_given(&["ro", "rw"]) == Some("rw") && o.past.is_none();
    if becomes_writable && shown.is_some() {
        return Err(Fail::new("shows a state of the past, which nothing changes"));
    }
    let failed = if becomes_writable { owner.call::<Option<String>>(&Request::Failure)? } else { None };
    if let Some(why) = failed {
        return Err(Fail::new(why));
    }
    if becomes_writable && owner.hello.read_only {
        return Err(Fail::new("the volume was opened read-only, and stays so; unmount it, then mount it writable"));
    }
    let meant = o.past.as_deref().map(|when| when::for_owner(when, clock::now()).map_err(Fail::usage)).transpose()?;
    let meant = meant.map(|when| owner.call::<CheckpointData>(&Request::Find { when })).transpose()?;
    let differs = match shown {
        // How the volume is mounted is another mount's matter.
        Some(cno) => meant.filter(|c| c.cno != cno).map(|_| "what it shows"),
        None if meant.is_some() => Some("what it shows"),
        None => o.first_unlike(&owner.call(&Request::Lasting)?),
    };
    let differs = differs.or((o.allow_other && !mount.allow_other).then_some("allow_other"));
    differs.map_or(Ok(()), |what| {
        let text = "a remount changes only ro, suid, dev, exec and their opposites; unmount it, then mount it so";
        Err(Fail::new(format!("{what}: {text}")))
    })
}

/// What was given, and of what was not, what there is.
fn flags(mount: &Mount, o: &Options) -> libc::c_ulong {
    let mut now: Vec<&str> = mount.options.split(',').collect();
    if mount.read_only {
        // A bind mount may say nothing of it, and yet a remount there is one of the whole.
        now.push("ro");
    }
    let all = [
        ("ro", "rw", libc::MS_RDONLY),
        ("nosuid", "suid", libc::MS_NOSUID),
        ("nodev", "dev", libc::MS_NODEV),
        ("noexec", "exec", libc::MS_NOEXEC),
    ];
    let is_set = |on: &str, off: &str| o.last_given(&[on, off]).map_or(now.contains(&on), |given| given == on);
    let flag = |(on, off, flag)| if is_set(on, off) { flag } else { 0 };
    all.into_iter().map(flag).fold(0, |flags, flag| flags | flag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    /// What an owner is asked who hears of remounts, or does not know of them, and says yes to everything.
    fn asked(hears: &str, read_only: bool) -> String {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let hello = format!(
            "{{\"ok\":{{\"identities\":[],\"pid\":7,\"read_only\":false,\"closing\":false,\"mounts\":[]{hears}}}}}\n"
        );
        let owner = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut from = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut asked) = (String::new(), String::new());
            from.read_line(&mut line).unwrap();
            stream.write_all(hello.as_bytes()).unwrap();
            from.read_line(&mut asked).unwrap();
            let _ = stream.write_all(b"{\"ok\":null}\n");
            asked
        });
        let mut client = Client::at(&socket);
        tell_remounted(&mut client, "0:1".into(), read_only, dir.path()).unwrap();
        drop(client);
        owner.join().unwrap()
    }

    /// One of before an upgrade goes on as long as the volume is mounted.
    #[test]
    fn an_owner_of_an_earlier_version_is_asked_what_it_knows() {
        assert!(asked(",\"hears_remounts\":true", true).contains("remounted"));
        assert!(asked(",\"hears_remounts\":true", false).contains("remounted"));
        assert!(asked("", true).contains("sync"));
        assert_eq!(asked("", false), "");
    }
}
