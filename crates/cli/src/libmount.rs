//! What umount(8) has to know in order to call our helper. Of a FUSE mount it
//! sees only that it is one, unless its own table, /run/mount/utab, has an
//! entry for the directory. mount(8) and umount(8) with --fake keep that table
//! without mounting anything.

use crate::mounts::FSTYPE;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where `make install` links the helper.
const HELPER: &str = "/sbin/umount.fuse.nenrin";
const TABLE: &str = "/run/mount/utab";

/// From now on umount(8) calls the helper, if it is installed, for this
/// directory. Without it, or without being root, nothing happens.
pub fn remember(source: &Path, directory: &Path) {
    if crate::sys::euid() == 0 && Path::new(HELPER).exists() {
        let words = ["--internal-only", "--fake", "-t", FSTYPE, "-o", "uhelper=nenrin", "--"];
        quietly("mount", &words, &[source.as_os_str(), directory.as_os_str()]);
    }
}

/// The directory is not ours any more.
pub fn forget(directory: &Path) {
    let known = || std::fs::read_to_string(TABLE).is_ok_and(|t| t.contains("uhelper=nenrin"));
    if crate::sys::euid() == 0 && known() {
        quietly("umount", &["--internal-only", "--fake", "--"], &[directory.as_os_str()]);
    }
}

/// It is a convenience only: a failure changes nothing but how long umount(8) waits.
fn quietly(program: &str, words: &[&str], paths: &[&OsStr]) {
    let mut command = Command::new(program);
    command.args(words).args(paths).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(command.status());
}
