//! Which volume a directory belongs to, from /proc/self/mountinfo.

use crate::error::{At, Fail};
use crate::sys;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The type our mounts have.
pub const FSTYPE: &str = "fuse.nenrin";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of the file system.
    pub device: String,
    /// What of the file system is shown there; a bind mount may show a directory.
    pub root: PathBuf,
    /// Where it is, absolute and without links.
    pub point: PathBuf,
    /// Options of this mount.
    pub options: String,
    /// Type, with subtype.
    pub fstype: String,
    /// What it was mounted from: the device's path.
    pub source: PathBuf,
    /// Who runs the program behind it.
    pub user: u32,
}

/// All mounts; a later one lies over an earlier one.
pub fn all() -> io::Result<Vec<Mount>> {
    Ok(parse_all(&agreed(|| fs::read("/proc/self/mountinfo"))?))
}

/// Readings of the list after which the last one has to do.
const READINGS_MAX: usize = 20;

/// The kernel gives the list in pieces of a page, and a line may be missing where something is
/// unmounted between two of them. So it is read until two readings agree.
fn agreed(mut read: impl FnMut() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    let mut last = read()?;
    for _ in 1..READINGS_MAX {
        let next = read()?;
        if next == last {
            break;
        }
        last = next;
    }
    Ok(last)
}

fn parse_all(text: &[u8]) -> Vec<Mount> {
    text.split(|&b| b == b'\n').filter_map(parse).collect()
}

/// `ID PARENT MAJ:MIN ROOT POINT OPTIONS [TAG...] - FSTYPE SOURCE SUPER-OPTIONS`
fn parse(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    let path = |b: &[u8]| PathBuf::from(OsString::from_vec(unescape(b)));
    let dash = fields.iter().position(|f| *f == b"-")?;
    let super_options = text(fields.get(dash + 3)?);
    let user = super_options.split(',').find_map(|o| o.strip_prefix("user_id=")?.parse().ok());
    Some(Mount {
        device: text(fields.get(2)?),
        root: path(fields.get(3)?),
        point: path(fields.get(4)?),
        options: text(fields.get(5)?),
        fstype: text(fields.get(dash + 1)?),
        source: path(fields.get(dash + 2)?),
        user: user.unwrap_or(0),
    })
}

/// Blanks, tabs, newlines and backslashes are written as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut i = 0;
    while i < field.len() {
        let code = field.get(i + 1..i + 4).filter(|d| field[i] == b'\\' && d.iter().all(|b| (b'0'..b'8').contains(b)));
        match code {
            Some(d) => {
                out.push((d[0] - b'0').wrapping_mul(64) + (d[1] - b'0') * 8 + (d[2] - b'0'));
                i += 4;
            }
            None => {
                out.push(field[i]);
                i += 1;
            }
        }
    }
    out
}

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

    /// A line that one reading missed is there in the next; where no two agree, it ends all the same.
    #[test]
    fn a_list_counts_when_two_readings_agree() {
        let readings = [&b"a\nb\n"[..], b"a\n", b"a\nb\nc\n", b"a\nb\nc\n", b"later"];
        let mut left = readings.iter();
        assert_eq!(agreed(|| Ok(left.next().unwrap().to_vec())).unwrap(), b"a\nb\nc\n");
        assert_eq!(left.len(), 1);
        let mut count = 0u8;
        let changing = || {
            count += 1;
            Ok(vec![count])
        };
        assert_eq!(agreed(changing).unwrap(), [READINGS_MAX as u8]);
    }

    #[test]
    fn lines_of_mountinfo() {
        let text = br"36 35 0:45 / /mnt\0402 rw,nosuid shared:1 - fuse.nenrin /a\134b rw,user_id=1000,group_id=1000
1 0 8:1 / / rw - ext4 /dev/sda1 rw
garbage";
        let all = parse_all(text);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].point, Path::new("/mnt 2"));
        assert_eq!(all[0].source, Path::new(r"/a\b"));
        assert_eq!((all[0].user, all[0].device.as_str()), (1000, "0:45"));
        assert_eq!(all[1].user, 0);
        assert_eq!(unescape(br"\377\9"), b"\xff\\9");
    }

    #[test]
    fn every_path_lies_on_a_mount() {
        let (mount, real) = of(Path::new(".")).unwrap();
        assert!(real.starts_with(&mount.point));
        assert!(of(Path::new("/no/such/path")).is_err());
    }
}
