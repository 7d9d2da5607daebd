//! Processes that own volumes and do not answer: stopped, or waiting for what does not come. Who asks for anything below their
//! mounts waits with them, so that nothing there is touched before they have answered.

use crate::error::Fail;
use crate::mounts::{self, FSTYPE, Mount};
use crate::sys;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// How long is waited for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Who is there, when nothing was asked yet.
    pub hello: Duration,
    /// The same, of who was there and works on what was asked, unless he was stopped.
    pub alive: Duration,
    /// News, before it is asked whether he is there.
    pub step: Duration,
    /// The answer to what is quick, as long as he is there.
    pub quick: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let of = Duration::from_secs;
        Self { hello: of(5), alive: of(30), step: of(5), quick: of(120) }
    }
}

/// Whether a process was stopped, so that nothing that it works on keeps it from answering.
pub(super) fn is_stopped(pid: impl std::fmt::Display) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|l| l.strip_prefix("State:").is_some_and(|s| s.trim().starts_with(['T', 't'])))
}

/// That a process does not say who it is.
pub(super) fn no_answer(pid: i32) -> Fail {
    let why = match is_stopped(pid) {
        true => format!("is stopped; kill -CONT {pid} has it go on"),
        false => format!(
            "hangs, or its device does; ask again later, or kill -KILL {pid} and mount again, which goes on from what was committed"
        ),
    };
    Fail::new(format!("the process that owns the volume does not answer: process {pid} {why}"))
}

/// That a process is there, and does not tell what takes no time.
pub(super) fn no_news(pid: u32, after: Duration) -> Fail {
    let seconds = after.as_secs();
    Fail::new(format!(
        "process {pid} answers others, and had nothing to tell of this volume for {seconds} seconds: its device may stand still; look \
         at that, and ask again"
    ))
}

/// Whether a process has the file or device at a path open.
pub(super) fn has_open(pid: i32, path: &Path) -> bool {
    let Ok(real) = fs::canonicalize(path) else { return false };
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|to| to == real)
}

/// Whether a process is the one behind a mount. Where the kernel does not tell, it may be.
pub(super) fn serves(pid: i32, mount: &Mount) -> bool {
    // What the device is called where the process has it may lie in another mount name space.
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    if !open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|to| to.file_name().is_some_and(|n| n == "fuse")) {
        return false;
    }
    let wanted = mount.device.split(':').nth(1);
    let open = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let texts = open.filter_map(|fd| fs::read_to_string(fd.path()).ok());
    let told: Vec<String> = texts
        .flat_map(|text| {
            text.lines()
                .filter_map(|l| l.strip_prefix("fuse_connection:"))
                .map(|n| n.trim().to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    told.is_empty() || told.iter().any(|n| Some(&**n) == wanted)
}

/// Whether no process is behind a mount, as root sees it, whom that of another user does not tell: nobody is asked. Where a process may
/// be it, it has not.
pub(super) fn has_ended(mount: &Mount) -> bool {
    // Root of a container does not see what everybody has open.
    let is_closed =
        |pid| fs::read_dir(format!("/proc/{pid}/fd")).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
    let may_be = |pid| is_closed(pid) || i32::try_from(pid).is_ok_and(|pid| serves(pid, mount));
    sys::euid() == 0 && !mounts::others().any(may_be)
}

/// Links that are followed on one way.
const LINKS_MAX: usize = 40;

/// The first mount of ours that a path leads into. What is in it is not looked at.
pub(super) fn mount_on_the_way(path: &Path) -> Option<Mount> {
    let fits = |m: &Mount| m.fstype == FSTYPE;
    let mounts = mounts::all().ok()?;
    if !mounts.iter().any(fits) {
        return None;
    }
    // Among those at one place the last covers the others.
    let of =
        |at: &Path| mounts.iter().filter(|m| at.starts_with(&m.point)).max_by_key(|m| m.point.components().count());
    // Asks nobody about what is in the directory that we are in.
    let mut at = if path.is_absolute() { PathBuf::from("/") } else { std::env::current_dir().ok()? };
    let names = |path: &Path| -> VecDeque<OsString> {
        let is_name = |c: &Component<'_>| matches!(c, Component::Normal(_) | Component::ParentDir);
        path.components().filter(is_name).map(|c| c.as_os_str().to_owned()).collect()
    };
    let (mut left, mut links) = (names(path), 0);
    loop {
        if let Some(mount) = of(&at).filter(|m| fits(m)) {
            return Some(mount.clone());
        }
        let name = left.pop_front()?;
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        if of(&next).is_some_and(fits) {
            at = next;
            continue;
        }
        match fs::read_link(&next) {
            Ok(to) if links < LINKS_MAX => {
                links += 1;
                if to.is_absolute() {
                    at = PathBuf::from("/");
                }
                let mut all = names(&to);
                all.append(&mut left);
                left = all;
            }
            _ => at = next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_no_mount_of_ours_is_not_waited_for() {
        for path in ["/", ".", "/proc/self/fd", "/no/such/../path", ""] {
            assert!(mount_on_the_way(Path::new(path)).is_none_or(|m| m.fstype == FSTYPE), "{path}");
        }
    }

    #[test]
    fn a_process_is_named_with_what_helps() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let said = no_answer(pid).message;
        assert!(said.contains(&format!("process {pid} hangs")) && said.contains("mount again"), "{said}");
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(has_open(pid, file.path()) && !has_open(pid, Path::new("/no/such/file")));
    }
}
