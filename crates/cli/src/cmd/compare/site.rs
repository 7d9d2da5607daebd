//! The device that is written to, and what is mounted from it. Whatever is
//! begun here is undone when its value goes, also after an error or a signal.

use super::plan::Contender;
use crate::cmd::trace::child;
use crate::error::{At, Fail};
use crate::{device, mounts, signature, sys};
use nenrin_device::OpenMode;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long an unmount is tried while something is still busy.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(30);

/// Where to write.
pub struct Site {
    /// The block device.
    pub device: PathBuf,
    /// A place that nobody else knows, or can enter.
    own: PathBuf,
    /// Where it is mounted, in that.
    pub mount: PathBuf,
    /// For traces and other files; removed at the end unless it was asked for.
    pub work: PathBuf,
    keep_work: bool,
    attached: bool,
    image: Option<PathBuf>,
}

impl Site {
    /// A device that is there, or an image of `bytes` behind a loop device.
    ///
    /// # Errors
    /// It holds something, is in use, does not exist; no space for the image.
    pub fn open(
        at: Option<&Path>,
        image: Option<&Path>,
        bytes: u64,
        keep: Option<&Path>,
        destroy: bool,
    ) -> Result<Self, Fail> {
        let work = match keep {
            Some(dir) => fs::create_dir_all(dir).map(|()| dir.to_owned()).at(dir.display())?,
            None => private_directory(&std::env::temp_dir())?,
        };
        let work = device::absolute(&work);
        // Of its own: whatever is mounted there is of this run.
        let own = private_directory(&work)?;
        let mount = own.join("mnt");
        fs::create_dir(&mount).at(mount.display())?;
        let mut this =
            Self { device: PathBuf::new(), own, mount, work, keep_work: keep.is_some(), attached: false, image: None };
        match at {
            Some(path) => {
                let meta = fs::metadata(path).at(path.display())?;
                if !meta.file_type().is_block_device() {
                    return Err(Fail::at(path.display(), "not a block device; --image is for files"));
                }
                refuse(path, destroy)?;
                this.device = path.to_owned();
            }
            None => this.attach(image, bytes, destroy)?,
        }
        Ok(this)
    }

    /// Where a program says what it did.
    pub fn told(&self) -> PathBuf {
        self.own.join("told.json")
    }

    fn attach(&mut self, image: Option<&Path>, bytes: u64, destroy: bool) -> Result<(), Fail> {
        let path = image.map_or_else(|| self.work.join("image"), Path::to_owned);
        if path.exists() {
            if !fs::metadata(&path).at(path.display())?.is_file() {
                return Err(Fail::at(path.display(), "not a file; --device is for block devices"));
            }
            refuse(&path, destroy)?;
        } else {
            let file = OpenOptions::new().write(true).create_new(true).open(&path).at(path.display())?;
            self.image = Some(path.clone());
            sys::reserve(&file, bytes).map_err(|e| match e.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Fail::at(
                    path.display(),
                    format!(
                        "no room for {}; choose a smaller --size, or --image elsewhere",
                        crate::size::show_bytes(bytes)
                    ),
                ),
                _ => Fail::at(path.display(), e),
            })?;
        }
        // Past the cache of the file below, where that can be; the counts are the same without.
        let attach = |direct: &str| {
            let args = ["--find", "--show", direct];
            Command::new("losetup").args(args).arg(&path).stdin(Stdio::null()).output().at("losetup")
        };
        let mut out = attach("--direct-io=on")?;
        if !out.status.success() {
            out = attach("--direct-io=off")?;
        }
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            return Err(Fail::at(path.display(), format!("cannot become a loop device: {said}")));
        }
        self.device = String::from_utf8_lossy(&out.stdout).trim().into();
        self.attached = true;
        Ok(())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.attached {
            let _ = Command::new("losetup").arg("--detach").arg(&self.device).stderr(Stdio::null()).status();
        }
        if let Some(image) = &self.image {
            let _ = fs::remove_file(image);
        }
        let _ = fs::remove_file(self.told());
        let _ = fs::remove_dir(&self.mount);
        let _ = fs::remove_dir(&self.own);
        // Never what something is still mounted in.
        if !self.keep_work && !self.mount.exists() {
            let _ = fs::remove_dir_all(&self.work);
        }
    }
}

/// A new directory that nobody else can enter, or had a hand in: what is made in it is overwritten, attached and mounted by its path.
fn private_directory(within: &Path) -> Result<PathBuf, Fail> {
    let name = u128::from_le_bytes(sys::random().at("/dev/urandom")?);
    let path = within.join(format!("nenrin-compare-{name:032x}"));
    fs::DirBuilder::new().mode(0o700).create(&path).at(path.display())?;
    Ok(path)
}

/// Refuses what is in use, and what holds anything unless that may go.
fn refuse(path: &Path, destroy: bool) -> Result<(), Fail> {
    drop(device::open(path, OpenMode::OWNER)?);
    let holds = signature::occupant(path).at(path.display())?.filter(|_| !destroy);
    let Some(holds) = holds else { return Ok(()) };
    Err(Fail::at(path.display(), format!("holds {holds}; --destroy overwrites it, and its content is lost")))
}

/// Runs a program to its end; its words are the failure's.
pub fn run(command: &mut Command) -> Result<(), Fail> {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Through a file: a pipe that nobody reads would stop a talkative program.
    let mut said = tempfile_like()?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone().at("a temporary file")?);
    let mut running = child::spawn(command)?;
    let status = child::wait(&mut running, || false).at(&name)?;
    if let Some(signal) = child::interrupted() {
        return Err(child::interruption(signal));
    }
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    let _ = std::io::Seek::rewind(&mut said);
    let _ = said.read_to_string(&mut text);
    let last: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let last = last.iter().rev().take(3).rev().copied().collect::<Vec<_>>().join("; ");
    Err(Fail::at(name, format!("ended with {}: {last}", child::exit_code(status))))
}

/// A file without a name.
fn tempfile_like() -> Result<File, Fail> {
    use std::os::unix::fs::OpenOptionsExt;
    let dir = std::env::temp_dir();
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o600)
        .open(&dir)
        .or_else(|_| {
            let name = u128::from_le_bytes(sys::random()?);
            let path = dir.join(format!("nenrin-said-{name:032x}"));
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            fs::remove_file(&path)?;
            Ok::<_, std::io::Error>(file)
        })
        .at(dir.display())
}

/// A mounted file system; dropping it unmounts it.
pub struct Mounted<'a> {
    site: &'a Site,
    contender: &'a Contender,
    up: bool,
}

impl<'a> Mounted<'a> {
    /// Mounts what was made on the site's device.
    pub fn new(site: &'a Site, contender: &'a Contender) -> Result<Self, Fail> {
        let mut command;
        if contender.is_ours() {
            command = Command::new(super::own_program());
            command.arg("mount");
        } else {
            command = Command::new("mount");
            command.args(["-t", contender.kind.fstype]);
        }
        if !contender.options.is_empty() {
            command.args(["-o", &contender.options]);
        }
        let this = Self { site, contender, up: true };
        match run(command.arg(&site.device).arg(&site.mount)) {
            Ok(()) => Ok(this),
            Err(e) => {
                // A signal may have come when it was mounted already.
                drop(this);
                Err(e)
            }
        }
    }
    /// Unmounts, and waits until everything is on the device.
    pub fn unmount(mut self) -> Result<(), Fail> {
        self.up = false;
        self.try_unmount()
    }
    fn try_unmount(&self) -> Result<(), Fail> {
        let end = Instant::now() + UNMOUNT_PATIENCE;
        while mounts::of_point(&self.site.mount).is_some() {
            let mut command = if self.contender.is_ours() {
                let mut c = Command::new(super::own_program());
                c.arg("umount");
                c
            } else {
                Command::new("umount")
            };
            // Not under watch: this is what an interruption waits for.
            let out = command.arg(&self.site.mount).stdin(Stdio::null()).output().at("umount")?;
            if !out.status.success() && Instant::now() > end {
                let said = String::from_utf8_lossy(&out.stderr).trim().replace('\n', " ");
                return Err(Fail::at(self.site.mount.display(), format!("cannot be unmounted: {said}")));
            }
            if !out.status.success() {
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        Ok(())
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if self.up
            && let Err(e) = self.try_unmount()
        {
            crate::output::notice(e);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a user has where traces are kept is neither unmounted nor removed.
    #[test]
    fn nothing_that_was_there_is_mounted_on() {
        let keep = tempfile::tempdir().unwrap();
        let [mnt, file] = ["mnt", "file"].map(|name| keep.path().join(name));
        fs::create_dir(&mnt).unwrap();
        fs::write(&file, "").unwrap();
        assert!(Site::open(Some(&file), None, 0, Some(keep.path()), false).is_err());
        assert!(mnt.exists());
        let mut left: Vec<_> = fs::read_dir(keep.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["file", "mnt"]);
    }
}
