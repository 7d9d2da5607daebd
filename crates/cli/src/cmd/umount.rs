//! `nenrin umount`: unlike umount(2), it returns when everything is on the device.

use crate::command::{Command, arguments};
use crate::control::{self, Released, Request};
use crate::error::{At, Fail, Outcome};
use crate::mounts::{self, FSTYPE};
use crate::{libmount, output, sys};
use std::path::Path;
use std::process::Stdio;

/// The command.
pub const COMMAND: Command = Command {
    name: "umount",
    usage: &["umount DIR"],
    about: "Unmounts a volume, and returns when everything is on its device and the device is free",
    options: &[],
    notes: "A plain umount(8) works too; without the helper umount.nenrin in /sbin (make install) it returns before the last\n\
            commit, for which the next mount waits. Where states of the\n\
            past are mounted as well, the volume is released with the last of its mounts. What a bind mount or another mount\n\
            name space (a container) shows as well goes on there: DIR is unmounted, and it is told where the volume is still used.",
    examples: &[("umount ~/work", "unmounts, commits, releases")],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let given = arguments(&COMMAND, parser, 1, |_, _| Ok(false))?;
    let [directory] = given.as_slice() else { return Err(COMMAND.misuse("a directory is needed")) };
    let directory = Path::new(directory);
    let code = umount(directory)?;
    libmount::forget(&mounts::real_path(directory).at(directory.display())?);
    Ok(code)
}

/// Takes the mount out of sight at once; the volume is released when its last user has gone.
pub fn detach(directory: &Path) -> Outcome {
    clear(&mounts::real_path(directory).at(directory.display())?).at(directory.display())?;
    Ok(0)
}

/// Commits, unmounts, and waits for the release.
pub fn umount(directory: &Path) -> Outcome {
    let real = mounts::real_path(directory).at(directory.display())?;
    let Some(mount) = mounts::of_point(&real) else {
        return Err(Fail::at(directory.display(), "nothing is mounted here"));
    };
    if mount.fstype != FSTYPE {
        let text = format!("{} is mounted here, not a nenrin volume; umount(8) unmounts it", mount.fstype);
        return Err(Fail::at(directory.display(), text));
    }
    if mounts::is_dead(&real) {
        clear(&real).at(directory.display())?;
        output::notice(format!(
            "{}: the program behind this mount had ended; the mount is cleared, and the next mount of the volume recovers it",
            directory.display()
        ));
        return Ok(0);
    }
    let (mut owner, ..) = control::owner_of_directory(&real)?;
    let released: Released = owner.call(&Request::Umount { directory: real })?;
    if released.released {
        owner.wait_for_end();
    } else if let Some(why) = &released.stays {
        output::notice(format!("the volume stays in use: {}", output::printable(why)));
    } else if released.mounts.iter().all(|m| m.checkpoint.is_some()) {
        // The live state has gone, which is what a user means by unmounting.
        let places: Vec<String> = released.mounts.iter().map(|m| output::printable(&m.directory)).collect();
        output::notice(format!("the volume stays in use: also mounted at {}", places.join(" and ")));
    }
    Ok(0)
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
