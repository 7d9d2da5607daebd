//! Which volume a directory belongs to, from /proc/self/mountinfo.

use crate::error::{At, Fail};
use crate::sys;
use nenrin_fuse::mountinfo::parse_all;
pub use nenrin_fuse::mountinfo::{Mount, all};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The type our mounts have.
pub const FSTYPE: &str = "fuse.nenrin";

/// Whether what a path leads to is there, and cannot be read: the program of its mount has ended, or it was lost to damage.
pub fn is_out_of_reach(e: &io::Error) -> bool {
    is_of_dead(e) || matches!(e.raw_os_error(), Some(libc::EIO | libc::ESTALE))
}

/// Whether an error says that the program of a mount has ended; who was asking it as it did is told something else than who asks later.
pub fn is_of_dead(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// The directory that a path names something in: of a bare name the one we are in.
pub fn above(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path without links, also where what is at its end cannot be read.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(e) if is_out_of_reach(&e) => Ok(real_path(above(path))?.join(path.file_name().ok_or(e)?)),
        other => other,
    }
}

/// The mount that `path` lies on, and that path without links.
pub fn of(path: &Path) -> Result<(Mount, PathBuf), Fail> {
    let real = real_path(path).at(path.display())?;
    let found = of_real(&real).at("/proc/self/mountinfo")?;
    found.map(|m| (m, real)).ok_or_else(|| Fail::at(path.display(), "lies on no mount"))
}

/// The same of a path without links.
///
/// # Errors
/// There is no list of mounts.
pub fn of_real(real: &Path) -> io::Result<Option<Mount>> {
    // The longest mount point that is above; among equals the last, which covers the others.
    let above = all()?.into_iter().filter(|m| real.starts_with(&m.point));
    Ok(above.max_by_key(|m| m.point.components().count()))
}

/// The number of a device that the list gives as `major:minor`.
pub fn number_of(device: &str) -> Option<u64> {
    let (major, minor) = device.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The topmost mount at `point`, which is absolute and without links.
pub fn of_point(point: &Path) -> Option<Mount> {
    all().ok()?.into_iter().rfind(|m| m.point == point)
}

/// Where a file system is mounted, whole or in part.
pub fn points(device: &str) -> Vec<PathBuf> {
    let all = all().unwrap_or_default();
    all.into_iter().filter(|m| m.device == device).map(|m| m.point).collect()
}

/// The mount name space that this process is in.
pub fn space() -> Option<String> {
    space_of("self").map(|link| link.to_string_lossy().into_owned())
}

/// Whether a path means the same in both of these mount name spaces, as far as that is known.
pub fn is_same_space(one: Option<&str>, other: Option<&str>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

/// Whether a process finds the same by a path as this one, or in the same directory where nothing has that name yet: in another mount name
/// space it may, under another root it may not. `None` where that cannot be told.
pub fn finds_the_same(pid: u32, path: &Path) -> Option<bool> {
    let path = std::path::absolute(path).ok()?;
    let here = fs::canonicalize(&path).or_else(|_| fs::canonicalize(path.parent().unwrap_or(&path))).ok()?;
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    // A block device may have several nodes.
    let what = |m: Metadata| if m.file_type().is_block_device() { (m.rdev(), 0) } else { (m.dev(), m.ino()) };
    let of = |path: &Path| fs::metadata(path).map(what);
    of(&root).ok()?;
    match of(&root.join(here.strip_prefix("/").ok()?)) {
        Ok(there) => Some(there == of(&here).ok()?),
        Err(e) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&e.kind()) => Some(false),
        Err(_) => None,
    }
}

/// That the owner of a volume, this process, would find something else, or nothing, by a path.
pub fn elsewhere(pid: u32) -> Fail {
    Fail::new(format!(
        "process {pid}, which has the volume, is in another mount name space or under another root, where this path leads elsewhere or \
         nowhere: nsenter --mount=/proc/{pid}/ns/mnt and the same command do it there"
    ))
}

fn space_of(pid: &str) -> Option<PathBuf> {
    fs::read_link(Path::new("/proc").join(pid).join("ns/mnt")).ok()
}

/// Places in one line.
pub fn listed(places: &[PathBuf]) -> String {
    places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" and ")
}

/// Whether the program behind a mount answers.
pub fn is_dead(point: &Path) -> bool {
    sys::statfs(point).is_err_and(|e| is_of_dead(&e))
}

/// Who uses something below a mount point, as `name (pid N)`; the caller itself is not meant.
pub fn users(point: &Path) -> Vec<String> {
    let uses = |pid: &u32| links_of(*pid).any(|l| fs::read_link(l).is_ok_and(|target| target.starts_with(point)));
    others().filter(uses).map(named).collect()
}

/// Who has a file open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// As `name (pid N)`.
    pub name: String,
    /// Also for writing.
    pub writes: bool,
}

/// Who has a file open, by whatever name, as far as that can be seen; the caller itself is not meant.
pub fn users_of_file(file: &Metadata) -> Vec<User> {
    let wanted = (libc::major(file.dev()), libc::minor(file.dev()), file.ino());
    // Whoever serves it is not asked.
    let is_it = |link: &Path| {
        statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty())
            .is_ok_and(|m| (m.stx_dev_major, m.stx_dev_minor, m.stx_ino) == wanted)
    };
    let user = |pid: u32| {
        let open: Vec<PathBuf> = links_of(pid).filter(|link| is_it(link)).collect();
        (!open.is_empty()).then(|| User { name: named(pid), writes: open.iter().any(|link| writes(pid, link)) })
    };
    others().filter_map(user).collect()
}

/// Whether a process may write by a link to what it uses.
fn writes(pid: u32, link: &Path) -> bool {
    let Some(number) = link.file_name().filter(|_| link.parent().is_some_and(|above| above.ends_with("fd"))) else {
        return false;
    };
    let told = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("fdinfo").join(number));
    let flags = told.ok().and_then(|told| {
        let line = told.lines().find_map(|line| line.strip_prefix("flags:"))?;
        i32::from_str_radix(line.trim(), 8).ok()
    });
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// What keeps a file system that is mounted nowhere here.
pub fn held_by(device: &str) -> String {
    match holders(device).as_slice() {
        [] => "still used by a program, or in a mount name space, that cannot be seen from here".to_owned(),
        all => format!("still used by {}", all.join(", ")),
    }
}

/// Who uses something of a file system, and in each other mount name space that shows it somebody who is there.
fn holders(device: &str) -> Vec<String> {
    let mut seen = HashSet::from([space_of("self")]);
    let shows = |pid: u32| {
        fs::read(format!("/proc/{pid}/mountinfo")).is_ok_and(|t| parse_all(&t).iter().any(|m| m.device == device))
    };
    let mut holds = |pid: &u32| {
        let elsewhere = seen.insert(space_of(&pid.to_string())) && shows(*pid);
        elsewhere || links_of(*pid).any(|l| device_of(&l).is_some_and(|d| d == device))
    };
    others().filter(|pid| holds(pid)).map(named).collect()
}

/// The file system that a path lies on, as mountinfo has it, without asking whoever is behind that.
pub fn device_of(path: &Path) -> Option<String> {
    // Who may not enter it is told this much, and only when asking for no more.
    let meta = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    Some(format!("{}:{}", meta.stx_dev_major, meta.stx_dev_minor))
}

/// All processes but this one.
pub fn others() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).filter(move |pid| *pid != own)
}

/// The links to what a process uses.
fn links_of(pid: u32) -> impl Iterator<Item = PathBuf> {
    let base = PathBuf::from(format!("/proc/{pid}"));
    let files = fs::read_dir(base.join("fd")).into_iter().flatten().flatten().map(|e| e.path());
    ["cwd", "root", "exe"].map(|l| base.join(l)).into_iter().chain(files)
}

fn named(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} (pid {pid})", name.trim_end())
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
    #[test]
    fn who_was_asking_as_a_program_ended_knows_it_too() {
        let says = |code| is_of_dead(&io::Error::from_raw_os_error(code));
        assert!(says(libc::ENOTCONN) && says(libc::ECONNABORTED) && !says(libc::EIO) && !says(libc::EACCES));
        assert!(is_out_of_reach(&io::Error::from_raw_os_error(libc::ECONNABORTED)));
    }
    /// By another name, too, and only for what it was opened.
    #[test]
    fn who_has_a_file_open_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["f", "g"].map(|name| dir.path().join(name));
        fs::write(&path, "").unwrap();
        fs::hard_link(&path, &other).unwrap();
        let _own = fs::File::open(&path).unwrap();
        // What other tests start has it open, too, until it runs.
        let seen = |wanted: &[User]| {
            let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
            loop {
                let users = users_of_file(&fs::metadata(&path).unwrap());
                if users == wanted || std::time::Instant::now() > end {
                    return users;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        };
        assert_eq!(seen(&[]), [], "but for ourselves");
        for writes in [false, true] {
            let open = fs::OpenOptions::new().read(true).write(writes).open(&other).unwrap();
            let mut sleeper = std::process::Command::new("sleep").arg("60").stdin(open).spawn().unwrap();
            let wanted = [User { name: format!("sleep (pid {})", sleeper.id()), writes }];
            let users = seen(&wanted);
            sleeper.kill().unwrap();
            sleeper.wait().unwrap();
            assert_eq!(users, wanted);
        }
    }
}
