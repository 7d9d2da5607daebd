//! `nenrin umount`: unlike umount(2), it returns when everything is on the device.

use crate::command::{Command, arguments};
use crate::control::{self, Awaited, Client, MountData, Released, Request};
use crate::error::{At, Fail, Outcome};
use crate::mounts::{self, FSTYPE};
use crate::{daemon, libmount, output, sys, tag};
use std::borrow::Cow;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The command.
pub const COMMAND: Command = Command {
    name: "umount",
    usage: &["umount [--force] DIR|DEVICE"],
    about: "Unmounts a volume; returns when everything is on its device, and that is free where nobody else uses the volume",
    options: &[("--force", "also where the image was deleted while mounted, and is lost with its mount")],
    notes: "DEVICE, also as LABEL=NAME or UUID=..., is that of a volume that is mounted in one place; of several DIR has to say which. Of\n\
            another user's mount it is told where it is: also root unmounts that by DIR alone.\n\
            Where the image has no name any more it is not unmounted: what is in it can be copied from DIR, and the image itself as\n\
            the message says. A plain umount(8) works too; without the helper umount.nenrin in /sbin (make install) it returns before the last\n\
            commit, for which the next mount waits. Where states of the\n\
            past are mounted as well, the volume is released with the last of its mounts. What a bind mount or another mount\n\
            name space (a container) shows as well goes on there: DIR is unmounted, where the command runs, and it is told where the\n\
            volume is still used. The exit code is 0 then, too: what was written is on the device, which is not free yet. Whether it is\n\
            tells nenrin info --json DEVICE: pid is null when no process has the volume.",
    examples: &[
        ("umount ~/work", "unmounts, commits, releases"),
        ("umount LABEL=backup", "the same, wherever the volume with this label is mounted"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut force = false;
    let given = arguments(&COMMAND, parser, 1, |flag, _| {
        force |= flag.is("--force");
        Ok(flag.is("--force"))
    })?;
    let [directory] = given.as_slice() else { return Err(COMMAND.misuse("a directory is needed")) };
    let directory = &*point_of(Path::new(directory))?;
    let real = mounts::real_path(directory).at(directory.display())?;
    if unmounted(directory, force)? == Seen::ByOwner {
        libmount::forget(&real);
    }
    Ok(0)
}

/// Where a volume is mounted that is named by its device: its live state, or all that is shown of it.
fn point_of(given: &Path) -> Result<Cow<'_, Path>, Fail> {
    let device = tag::device(given)?;
    let is_device = fs::metadata(&device).is_ok_and(|m| m.is_file() || m.file_type().is_block_device());
    if !is_device {
        return Ok(Cow::Borrowed(given));
    }
    let owner = match control::asked_of_device(&device) {
        (Some(owner), _) => owner,
        (None, Some(silent)) => return Err(Fail::at(given.display(), silent)),
        (None, None) => {
            let nothing =
                Fail::at(given.display(), "nothing is mounted here, and no volume from here of yours or root's");
            return Err(control::with_place(&device, nothing));
        }
    };
    let seen: Vec<MountData> = owner.hello.mounts.into_iter().filter(|m| !m.detached).collect();
    let live: Vec<&MountData> = seen.iter().filter(|m| m.checkpoint.is_none()).collect();
    let meant = if live.is_empty() { seen.iter().collect() } else { live };
    match meant.as_slice() {
        [one] => shown_here(one).map(Cow::Owned).map_err(|why| Fail::at(given.display(), why)),
        [] => Err(Fail::at(given.display(), "the volume is in use, and mounted nowhere; nenrin info tells by whom")),
        all => {
            let places: Vec<&str> = all.iter().map(|m| m.directory.as_str()).collect();
            let text = format!("mounted at {}; name the directory that is meant", places.join(" and "));
            Err(Fail::at(given.display(), text))
        }
    }
}

/// Where a mount is in our own name space, on top: a path alone, as its owner has it, may be that of another one here.
fn shown_here(mount: &MountData) -> Result<PathBuf, String> {
    if mount.device.is_empty() {
        // Its owner could not tell.
        return Err(format!("mounted at {}; name that directory", mount.directory));
    }
    let points = mounts::points(&mount.device);
    // What is bound elsewhere as well is meant where it was mounted.
    let point = match (points.iter().find(|p| p.display().to_string() == mount.directory), points.as_slice()) {
        (Some(own), _) => own,
        (None, [one]) => one,
        (None, []) => return Err("is mounted in another mount name space, not here".to_owned()),
        (None, all) => return Err(format!("mounted at {}; name the directory that is meant", mounts::listed(all))),
    };
    // What lies over a directory above it covers it, too.
    let tops = [mounts::of_point(point).map(|top| top.device), mounts::device_of(point)];
    if tops.into_iter().flatten().any(|top| top != mount.device) {
        let text = "where another mount covers it; unmount that first";
        return Err(format!("is mounted at {}, {text}", point.display()));
    }
    Ok(point.clone())
}

/// What a directory was to the owner of the volume.
#[derive(PartialEq, Eq)]
enum Seen {
    /// The same as here.
    ByOwner,
    /// He is in another mount name space.
    Here,
}

/// Takes the mount out of sight at once; the volume is released when its last user has gone.
pub fn detach(directory: &Path) -> Outcome {
    clear(&mounts::real_path(directory).at(directory.display())?).at(directory.display())?;
    Ok(0)
}

/// Commits, unmounts, and waits for the release. `force`: also where that loses the volume.
pub fn umount(directory: &Path, force: bool) -> Outcome {
    unmounted(directory, force).map(|_| 0)
}

fn unmounted(directory: &Path, force: bool) -> Result<Seen, Fail> {
    control::is_answered(directory)?;
    let real = mounts::real_path(directory).at(directory.display())?;
    let Some(mount) = mounts::of_point(&real) else {
        return Err(Fail::at(directory.display(), "nothing is mounted here"));
    };
    if mount.fstype != FSTYPE {
        let text = format!("{} is mounted here, not a nenrin volume; umount(8) unmounts it", mount.fstype);
        return Err(Fail::at(directory.display(), text));
    }
    if mounts::is_dead(&real) {
        return cleared(directory, &real);
    }
    let (mut owner, ..) = match control::owner_of_directory(&real) {
        Err(_) if control::has_ended(&mount) => return cleared(directory, &real),
        other => other?,
    };
    // Who asks for it does not keep it.
    std::env::set_current_dir("/").at("/")?;
    let is_elsewhere = owner.hello.space.is_some() && owner.hello.space != mounts::space();
    let released: Released = match is_elsewhere {
        true => leave_here(&mut owner, &real, mount.device, force)?,
        false => owner.call(&Request::Umount { directory: real, force })?,
    };
    released.warnings.iter().for_each(|warning| output::notice(output::printable(warning)));
    if released.released {
        owner.wait_for_end();
    } else if let Some(why) = &released.stays {
        output::notice(format!("the volume stays in use: {}", output::printable(why)));
    } else if released.mounts.iter().all(|m| m.checkpoint.is_some()) {
        // The live state has gone, which is what a user means by unmounting.
        let places: Vec<String> = released.mounts.iter().map(|m| output::printable(&m.directory)).collect();
        let all = if places.len() == 1 { "that" } else { "each of these" };
        let again = format!("to mount it anew, unmount {all}, too");
        output::notice(format!("the volume stays in use: also mounted at {}; {again}", places.join(" and ")));
    }
    Ok(if is_elsewhere { Seen::Here } else { Seen::ByOwner })
}

/// Takes a mount away that nobody is behind any more.
fn cleared(directory: &Path, real: &Path) -> Result<Seen, Fail> {
    clear(real).at(directory.display())?;
    output::notice(format!(
        "{}: the program behind this mount had ended; the mount is cleared, and the next mount of the volume recovers it",
        directory.display()
    ));
    Ok(Seen::ByOwner)
}

/// In another mount name space than the owner's a path is of something else there, or of nothing: who asks unmounts it himself.
fn leave_here(owner: &mut Client, real: &Path, device: String, force: bool) -> Result<Released, Fail> {
    // What cannot be committed is reported, and keeps nobody from leaving.
    let synced = if owner.hello.read_only { Ok(()) } else { owner.call::<()>(&Request::Sync) };
    let warnings: Vec<String> = match force {
        true => Vec::new(),
        false => owner.call(&Request::MayLeave { directory: real.to_owned() })?,
    };
    let closing = owner.await_closing();
    daemon::leave(real, &device)?;
    let released = left(owner, closing, device).map(|r| Released { warnings, ..r });
    synced.and(released)
}

/// What became of the volume that we have unmounted.
fn left(owner: &mut Client, closing: Result<Awaited, Fail>, device: String) -> Result<Released, Fail> {
    match owner.call(&Request::Left { device }) {
        // It was the last mount, and he has closed the volume before we could ask, or was ended by somebody.
        Err(_) if owner.has_ended() => {
            let closed = closing.and_then(Awaited::told);
            let closed = closed.map_err(|why| Fail {
                message: format!("unmounted, but not known to be whole on its device: {why}"),
                ..why
            });
            closed.map(|()| Released { released: true, mounts: Vec::new(), stays: None, warnings: Vec::new() })
        }
        other => other,
    }
}

/// Takes a mount away whether it is used or not, by fusermount3 where the system does not let us.
fn clear(directory: &Path) -> std::io::Result<()> {
    match sys::unmount_lazily(directory) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            let mut helper = std::process::Command::new("fusermount3");
            let status = helper.args(["-u", "-z", "--"]).arg(directory).stdin(Stdio::null()).status()?;
            if status.success() { Ok(()) } else { Err(e) }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    /// An owner who has gone when he is told that somebody has left, and says this of closing the volume.
    fn goes_away(socket: &Path, said: &'static str) {
        let listener = UnixListener::bind(socket).unwrap();
        let hello = "{\"ok\":{\"identities\":[],\"pid\":7,\"read_only\":false,\"closing\":false,\"mounts\":[]}}\n";
        thread::spawn(move || {
            let heard = |stream: &UnixStream, what: &str| {
                let mut line = String::new();
                BufReader::new(stream).read_line(&mut line).unwrap();
                assert!(line.contains(what), "{line}");
            };
            let greet = || {
                let mut stream = listener.accept().unwrap().0;
                heard(&stream, "hello");
                stream.write_all(hello.as_bytes()).unwrap();
                stream
            };
            let (first, mut second) = (greet(), greet());
            heard(&second, "closing");
            second.write_all(b"{\"part\":null}\n").unwrap();
            heard(&first, "left");
            drop(first);
            let _ = second.write_all(said.as_bytes());
        });
    }

    /// The process ends when it has closed the volume, and also when it is killed before.
    #[test]
    fn who_has_gone_has_released_the_volume_only_where_he_said_so() {
        let dir = tempfile::tempdir().unwrap();
        let mut number = 0;
        let mut after = |said, is_asked: bool| {
            number += 1;
            let socket = dir.path().join(number.to_string());
            goes_away(&socket, said);
            let mut owner = Client::at(&socket);
            let closing = owner.await_closing();
            assert!(closing.is_ok());
            let closing = if is_asked { closing } else { Err(Fail::new("does not understand")) };
            left(&mut owner, closing, "0:1".into()).map(|r| r.released).map_err(|why| why.message)
        };
        assert_eq!(after("{\"ok\":null}\n", true), Ok(true));
        let failed = after("{\"error\":{\"code\":1,\"message\":\"a write failed\"}}\n", true).unwrap_err();
        assert!(failed.contains("a write failed"), "{failed}");
        let killed = after("", true).unwrap_err();
        assert!(killed.contains("unmounted, but") && killed.contains("went away"), "{killed}");
        // One of an earlier version.
        let unknown = after("", false).unwrap_err();
        assert!(unknown.contains("unmounted, but") && unknown.contains("does not understand"), "{unknown}");
    }
}
