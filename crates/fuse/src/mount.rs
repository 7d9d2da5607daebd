//! Mounting and unmounting: by mount(2) as root, otherwise through fusermount3,
//! which is allowed to.
//!
//! Invariants
//! 1. Nothing is mounted over a directory that has entries, or over a living
//!    mount of ours, unless that was asked for.
//! 2. A mount whose daemon is gone is cleared, and only when it was one of ours.
//! 3. A [`Mount`] that is dropped takes its mount with it.
//! 4. What somebody else has mounted since in the place of a mount of ours stays.

use crate::device::DEVICE_PATH;
use crate::mountinfo;
use crate::sys;
use std::ffi::{CString, OsStr};
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{fmt, fs, io};

const SUBTYPE: &str = "nenrin";
const FSTYPE: &str = "fuse.nenrin";
const HELPER: &str = "fusermount3";

/// Where and how the volume appears.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What mount(8) and df(1) show as the source: the device.
    pub source: String,
    /// The directory to mount on.
    pub directory: PathBuf,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Other users than the one who mounts may enter.
    pub allow_other: bool,
    /// The directory need not be empty.
    pub nonempty: bool,
    /// Device files work. Root only.
    pub dev: bool,
    /// Set-user-id and set-group-id bits work. Root only.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Reading moves no access times.
    pub noatime: bool,
}

impl MountOptions {
    /// The usual options: for one user, without devices and set-id programs.
    pub fn new(source: impl Into<String>, directory: impl Into<PathBuf>) -> Self {
        Self {
            source: source.into(),
            directory: directory.into(),
            read_only: false,
            allow_other: false,
            nonempty: false,
            dev: false,
            suid: false,
            exec: true,
            noatime: false,
        }
    }
}

/// Why a volume could not be mounted.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountError {
    /// The directory does not exist.
    Missing(PathBuf),
    /// It is no directory.
    NotDirectory(PathBuf),
    /// It has entries, and `nonempty` was not given.
    NotEmpty(PathBuf),
    /// A nenrin volume is mounted there already.
    Mounted(PathBuf),
    /// Something else is mounted there whose daemon is gone.
    Dead(PathBuf),
    /// /dev/fuse does not exist: the kernel lacks FUSE, or this is a container without it.
    NoDevice,
    /// Not root, and fusermount3 is not installed.
    NoHelper,
    /// fusermount3 refused; its words.
    Helper(String),
    /// An option contains a byte that mount options cannot.
    BadOption(String),
    /// Options that exclude each other; which, and why.
    Conflict(&'static str),
    /// The kernel speaks another version of the protocol than 7.31 or later.
    Protocol(u32, u32),
    /// A system call failed; what it was for.
    Io(&'static str, PathBuf, io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(p) => write!(f, "{}: no such directory; create it first", p.display()),
            Self::NotDirectory(p) => write!(f, "{}: not a directory", p.display()),
            Self::NotEmpty(p) => write!(
                f,
                "{}: the directory is not empty; give another one, or -o nonempty to hide what is in it",
                p.display()
            ),
            Self::Mounted(p) => write!(f, "{}: a nenrin volume is mounted there already", p.display()),
            Self::Dead(p) => {
                write!(f, "{0}: a mount whose program has ended is in the way; umount -l {0} clears it", p.display())
            }
            Self::NoDevice => {
                write!(f, "{DEVICE_PATH} is missing; load the kernel's fuse module, or give the container that device")
            }
            Self::NoHelper => {
                write!(f, "{HELPER} is missing, without which only root can mount; install the package fuse3")
            }
            Self::Helper(text) => write!(f, "{text}"),
            Self::BadOption(text) => write!(f, "a mount option cannot contain {text:?}"),
            Self::Conflict(text) => f.write_str(text),
            Self::Protocol(major, minor) => {
                write!(f, "the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) or later is needed")
            }
            Self::Io(what, path, e) => write!(f, "{}: {what}: {e}", path.display()),
        }
    }
}

impl std::error::Error for MountError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, _, e) => Some(e),
            _ => None,
        }
    }
}

/// Where a mount of ours is.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    directory: PathBuf,
    /// The number of its file system, as the kernel lists it; a helper may have mounted where that cannot be seen.
    listed: Option<String>,
}

impl Seat {
    /// Of what was mounted just now.
    fn new(directory: PathBuf) -> Self {
        let listed = mountinfo::find(&directory).ok().flatten().filter(|m| m.fstype == FSTYPE);
        Self { directory, listed: listed.map(|m| m.device) }
    }
    /// Absolute and without links.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
    /// `major:minor` of its file system.
    pub fn device(&self) -> Option<&str> {
        self.listed.as_deref()
    }
    /// Takes the mount out of the name space, if it is still there, and under no other.
    pub fn leave(&self) -> io::Result<()> {
        if self.listed.is_some() && mountinfo::find(&self.directory)?.map(|m| m.device) != self.listed {
            return Ok(());
        }
        unmount_lazily(&self.directory)
    }
}

/// A mount of ours, which goes when this does.
#[derive(Debug)]
pub(crate) struct Mount {
    seat: Seat,
    gone: bool,
}

impl Mount {
    /// Mounts, and gives the descriptor over which the kernel will speak.
    pub fn new(options: &MountOptions, default_permissions: bool) -> Result<(Self, OwnedFd), MountError> {
        may_be_asked_for(options)?;
        let directory = prepare(&options.directory, options.nonempty)?;
        let (_, _, root) = sys::user();
        let device = if root {
            mount_directly(options, &directory, default_permissions)?
        } else {
            mount_by_helper(options, &directory, default_permissions)?
        };
        Ok((Self { seat: Seat::new(directory), gone: false }, device))
    }
    /// It was unmounted by somebody else.
    pub fn forget(&mut self) {
        self.gone = true;
    }
    pub fn seat(&self) -> &Seat {
        &self.seat
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.gone {
            // Whoever unmounted first did the same.
            let _ = self.seat.leave();
        }
    }
}

/// Whether one of our mounts, living or dead, is the topmost at `directory`.
fn is_ours(directory: &Path) -> bool {
    matches!(mountinfo::find(directory), Ok(Some(m)) if m.fstype == FSTYPE)
}

/// Takes the mount out of the name space at once. What is open stays usable,
/// and the connection ends with the last of it.
fn unmount_lazily(directory: &Path) -> io::Result<()> {
    let target = CString::new(directory.as_os_str().as_bytes())?;
    match sys::umount(&target, libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => unmount_by_helper(directory, true),
        other => other,
    }
}

/// Unmounts the volume at `directory`. Fails with EBUSY while something on it
/// is in use.
///
/// # Errors
/// What umount(2) or fusermount3 say.
pub fn unmount(directory: &Path) -> io::Result<()> {
    let target = CString::new(directory.as_os_str().as_bytes())?;
    match sys::umount(&target, libc::UMOUNT_NOFOLLOW) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => unmount_by_helper(directory, false),
        other => other,
    }
}

fn unmount_by_helper(directory: &Path, lazy: bool) -> io::Result<()> {
    let flags: &[&str] = if lazy { &["-u", "-z", "--"] } else { &["-u", "--"] };
    let output = Command::new(HELPER).args(flags).arg(directory).stdin(Stdio::null()).output()?;
    if output.status.success() { Ok(()) } else { Err(told_by_helper(&output)) }
}

/// Why the helper failed. It says so in words, and always in English.
fn told_by_helper(output: &Output) -> io::Error {
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // As the C libraries have it: "Device or resource busy", "Resource busy".
    if text.to_ascii_lowercase().ends_with("resource busy") {
        return io::Error::from_raw_os_error(libc::EBUSY);
    }
    io::Error::other(if text.is_empty() { without_a_word(output) } else { text })
}

fn without_a_word(output: &Output) -> String {
    format!("{HELPER} failed without a word ({})", output.status)
}

/// Why there will be no mount, as far as that can be known before the volume is opened, which may write to its devices.
///
/// # Errors
/// What stands in the way.
pub fn check(options: &MountOptions) -> Result<(), MountError> {
    may_be_asked_for(options)?;
    let real = real(&options.directory)?;
    // What a mount whose program has ended lies over is seen when it was cleared, by who mounts.
    if !is_dead_of_ours(&real)? {
        look(&options.directory, &real, options.nonempty)?;
        if !sys::user().2 {
            is_for_helper(&real)?;
        }
    }
    Ok(())
}

/// What has nothing to do with the directory.
fn may_be_asked_for(options: &MountOptions) -> Result<(), MountError> {
    let (_, _, root) = sys::user();
    if !root && (options.dev || options.suid) {
        return Err(MountError::Conflict("only root can mount with the options dev and suid"));
    }
    if !Path::new(DEVICE_PATH).exists() {
        return Err(MountError::NoDevice);
    }
    if !root && !is_in_path(HELPER) {
        return Err(MountError::NoHelper);
    }
    Ok(())
}

fn is_in_path(program: &str) -> bool {
    std::env::var_os("PATH").is_none_or(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// fusermount3 mounts where the user may write, and has the directory itself where names of others are not his to remove.
fn is_for_helper(directory: &Path) -> Result<(), MountError> {
    let fail = |e| MountError::Io("cannot be mounted on", directory.to_owned(), e);
    let meta = fs::metadata(directory).map_err(fail)?;
    let (uid, ..) = sys::user();
    if meta.mode() & libc::S_ISVTX != 0 && meta.uid() != uid {
        return Err(fail(io::Error::from_raw_os_error(libc::EACCES)));
    }
    sys::may_write(&CString::new(directory.as_os_str().as_bytes()).map_err(|e| fail(e.into()))?).map_err(fail)
}

/// Looks at the directory, clears a dead mount of ours, and gives the real path.
fn prepare(directory: &Path, nonempty: bool) -> Result<PathBuf, MountError> {
    let real = real(directory)?;
    while is_dead_of_ours(&real)? {
        if let Err(e) = unmount_lazily(&real) {
            let what = "the mount of a program that ended cannot be cleared";
            return Err(MountError::Io(what, directory.to_owned(), e));
        }
    }
    look(directory, &real, nonempty)?;
    Ok(real)
}

fn real(directory: &Path) -> Result<PathBuf, MountError> {
    // A dead mount answers ENOTCONN to everything, so its path must be found without it.
    real_path(directory).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => MountError::Missing(directory.to_owned()),
        _ => MountError::Io("cannot be found", directory.to_owned(), e),
    })
}

/// Whether a mount of ours is there whose program has ended; one that lives is in the way.
fn is_dead_of_ours(real: &Path) -> Result<bool, MountError> {
    match is_ours(real).then(|| probe(real)) {
        None => Ok(false),
        // The latter while its program is just ending.
        Some(Err(e)) if matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)) => Ok(true),
        // It may have gone since it was found in the list.
        Some(Ok(())) if !is_ours(real) => Ok(false),
        Some(_) => Err(MountError::Mounted(real.to_owned())),
    }
}

/// Whether something may be mounted there. `directory`: as it was given.
fn look(directory: &Path, real: &Path, nonempty: bool) -> Result<(), MountError> {
    match fs::read_dir(real) {
        Err(e) if e.raw_os_error() == Some(libc::ENOTDIR) => Err(MountError::NotDirectory(real.to_owned())),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Err(MountError::Dead(real.to_owned())),
        _ if nonempty => Ok(()),
        Err(e) => Err(MountError::Io("cannot be listed", directory.to_owned(), e)),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(MountError::NotEmpty(real.to_owned())),
        },
    }
}

/// Asks the daemon behind `directory` for a sign of life. Attributes would not
/// do, since the kernel still has those of a daemon that is gone.
fn probe(directory: &Path) -> io::Result<()> {
    sys::statfs(&CString::new(directory.as_os_str().as_bytes())?)
}

/// The path without links. Its last part is only looked at when it can be.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => {
            let parent = match path.parent() {
                Some(p) if !p.as_os_str().is_empty() => p,
                _ => Path::new("."),
            };
            let name = path.file_name().ok_or(e)?;
            Ok(fs::canonicalize(parent)?.join(name))
        }
        other => other,
    }
}

fn mount_directly(options: &MountOptions, directory: &Path, default_permissions: bool) -> Result<OwnedFd, MountError> {
    let fail = |what, e| MountError::Io(what, directory.to_owned(), e);
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open(DEVICE_PATH)
        .map_err(|e| MountError::Io("cannot be opened", DEVICE_PATH.into(), e))?;
    let (uid, gid, _) = sys::user();
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    if default_permissions {
        data += ",default_permissions";
    }
    if options.allow_other {
        data += ",allow_other";
    }
    let flag = |set: bool, flag: libc::c_ulong| if set { flag } else { 0 };
    let flags = flag(!options.suid, libc::MS_NOSUID)
        | flag(!options.dev, libc::MS_NODEV)
        | flag(!options.exec, libc::MS_NOEXEC)
        | flag(options.noatime, libc::MS_NOATIME)
        | flag(options.read_only, libc::MS_RDONLY);
    let text =
        |s: &OsStr| CString::new(s.as_bytes()).map_err(|_| MountError::BadOption(s.to_string_lossy().into_owned()));
    sys::mount(
        &text(OsStr::new(&options.source))?,
        &text(directory.as_os_str())?,
        &text(OsStr::new(FSTYPE))?,
        flags,
        &text(OsStr::new(&data))?,
    )
    .map_err(|e| match e.raw_os_error() {
        Some(libc::ENODEV) => MountError::NoDevice,
        _ => fail("cannot be mounted on", e),
    })?;
    Ok(device.into())
}

/// The options as fusermount3 takes them. In a source, commas and backslashes
/// are escaped by a backslash.
fn helper_options(options: &MountOptions, default_permissions: bool) -> Result<String, MountError> {
    if options.source.contains(['\0', '\n']) {
        return Err(MountError::BadOption(options.source.clone()));
    }
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut text = format!("fsname={source},subtype={SUBTYPE}");
    let mut add = |on: bool, word: &str| {
        if on {
            text += ",";
            text += word;
        }
    };
    // fusermount3 sets nosuid and nodev by itself.
    add(options.read_only, "ro");
    add(!options.exec, "noexec");
    add(options.noatime, "noatime");
    add(options.allow_other, "allow_other");
    add(default_permissions, "default_permissions");
    Ok(text)
}

fn mount_by_helper(options: &MountOptions, directory: &Path, default_permissions: bool) -> Result<OwnedFd, MountError> {
    let fail = |e| MountError::Io("fusermount3 cannot be run", HELPER.into(), e);
    let (ours, theirs) = UnixStream::pair().map_err(fail)?;
    // The helper finds its socket as its standard input, which no other program
    // that is started meanwhile can inherit by accident.
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(options, default_permissions)?)
        .arg("--")
        .arg(directory)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| if e.kind() == io::ErrorKind::NotFound { MountError::NoHelper } else { fail(e) })?;
    let received = sys::receive_fd(ours.as_fd());
    let output = child.wait_with_output().map_err(fail)?;
    match received {
        Ok(Some(device)) if output.status.success() => Ok(device),
        Err(e) if output.status.success() => Err(fail(e)),
        _ => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(MountError::Helper(if text.is_empty() { without_a_word(&output) } else { text }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_will_not_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(matches!(prepare(&path, false), Err(MountError::Missing(_))));
        fs::write(&path, b"").unwrap();
        assert!(matches!(prepare(&path, false), Err(MountError::NotDirectory(_))));
        assert!(matches!(prepare(&path, true), Err(MountError::NotDirectory(_))));
        assert!(matches!(prepare(dir.path(), false), Err(MountError::NotEmpty(_))));
        assert!(prepare(dir.path(), true).is_ok());
    }

    #[test]
    fn a_source_may_contain_commas() {
        let mut options = MountOptions::new(r"a,b\c", "/mnt");
        options.read_only = true;
        let text = helper_options(&options, true).unwrap();
        assert_eq!(text, r"fsname=a\,b\\c,subtype=nenrin,ro,default_permissions");
    }

    #[test]
    fn what_the_helper_says_is_told() {
        use std::os::unix::process::ExitStatusExt;
        let told = |stderr: &str| {
            let status = std::process::ExitStatus::from_raw(1 << 8);
            told_by_helper(&Output { status, stdout: Vec::new(), stderr: stderr.into() })
        };
        let busy = told("fusermount3: failed to unmount /tmp/mnt: Device or resource busy\n");
        assert_eq!(busy.raw_os_error(), Some(libc::EBUSY));
        let other = told("fusermount3: failed to unmount /resource busy/mnt: Invalid argument\n");
        assert_eq!(other.to_string(), "fusermount3: failed to unmount /resource busy/mnt: Invalid argument");
        assert!(told("").to_string().contains("without a word (exit status: 1)"));
    }
}
