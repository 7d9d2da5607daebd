//! Which volume a directory belongs to, from /proc/self/mountinfo.

use crate::error::{At, Fail};
use crate::sys;
use nenrin_fuse::mountinfo::parse_all;
pub use nenrin_fuse::mountinfo::{Mount, all};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The type our mounts have.
pub const FSTYPE: &str = "fuse.nenrin";

/// The path without links, also where a dead mount is at its end.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Ok(real_path(parent)?.join(path.file_name().ok_or(e)?))
        }
        other => other,
    }
}

/// The mount that `path` lies on, and that path without links.
pub fn of(path: &Path) -> Result<(Mount, PathBuf), Fail> {
    let real = real_path(path).at(path.display())?;
    let mounts = all().at("/proc/self/mountinfo")?;
    // The longest mount point that is above; among equals the last, which covers the others.
    let found = mounts.into_iter().filter(|m| real.starts_with(&m.point)).max_by_key(|m| m.point.components().count());
    found.map(|m| (m, real)).ok_or_else(|| Fail::at(path.display(), "lies on no mount"))
}

/// The topmost mount at `point`, which is absolute and without links.
pub fn of_point(point: &Path) -> Option<Mount> {
    all().ok()?.into_iter().rfind(|m| m.point == point)
}

/// Whether the program behind a mount answers.
pub fn is_dead(point: &Path) -> bool {
    matches!(sys::statfs(point), Err(e) if e.raw_os_error() == Some(libc::ENOTCONN))
}

/// Who uses something below a mount point, as `name (pid N)`; the caller itself is not meant.
pub fn users(point: &Path) -> Vec<String> {
    let own = std::process::id();
    let Ok(pids) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = pids.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let uses = |pid: u32| {
        let base = PathBuf::from(format!("/proc/{pid}"));
        let links = ["cwd", "root", "exe"].map(|l| base.join(l));
        let files = fs::read_dir(base.join("fd")).into_iter().flatten().flatten().map(|e| e.path());
        links.into_iter().chain(files).any(|l| fs::read_link(l).is_ok_and(|target| target.starts_with(point)))
    };
    pids.filter(|pid| *pid != own && uses(*pid))
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} (pid {pid})", name.trim_end())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_lies_on_a_mount() {
        let (mount, real) = of(Path::new(".")).unwrap();
        assert!(real.starts_with(&mount.point));
        assert!(of(Path::new("/no/such/path")).is_err());
    }
}
