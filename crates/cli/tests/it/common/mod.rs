//! Runs the program, and cleans up what it leaves.
#![allow(dead_code)] // each test file uses its share

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Says that a test, or a part of one, is left out here, also to whoever runs all of them: to the file that is named in the environment.
pub fn left_out(why: std::fmt::Arguments<'_>) {
    use std::io::Write;
    eprintln!("skipped: {why}");
    if let Some(file) = std::env::var_os("NENRIN_LEFT_OUT") {
        let opened = std::fs::File::options().create(true).append(true).open(file);
        opened.and_then(|mut f| f.write_all(format!("   skipped: {why}\n").as_bytes())).unwrap();
    }
}

/// Size of the images that tests make.
pub const SIZE: &str = "32M";

/// What a call came to.
#[derive(Debug)]
pub struct Out {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Out {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
    /// It did what it should, and its standard output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}stderr: {}", self.stdout, self.stderr);
        self.stdout
    }
    /// It failed with this code and one line that contains all of `parts`.
    #[track_caller]
    pub fn fails(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "stdout: {}stderr: {}", self.stdout, self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "not one line: {}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{:?} does not contain {part:?}", self.stderr);
        }
    }
    pub fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// The program with these arguments.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nenrin"));
    command.args(args).stdin(Stdio::null());
    command
}

/// The same, ended by signals also where those who run the tests have them ignored.
pub fn ended_by_signals<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,HUP", env!("CARGO_BIN_EXE_nenrin")]).args(args).stdin(Stdio::null());
    command
}

/// Runs the program.
pub fn nenrin<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Out {
    Out::of(command(args).output().unwrap())
}

/// Runs any program.
pub fn run(program: &str, args: &[&str]) -> Out {
    Out::of(Command::new(program).args(args).stdin(Stdio::null()).output().unwrap())
}

/// Sends a process a signal, by the shell's own `kill`: there is a machine without the program.
pub fn signal(pid: impl std::fmt::Display, name: &str) {
    run("sh", &["-c", &format!("kill -{name} {pid}")]).ok();
}

/// Runs a shell script, with $NENRIN set.
pub fn shell(script: &str, dir: &Path) -> Out {
    let mut command = Command::new("sh");
    command.arg("-ec").arg(script).current_dir(dir).stdin(Stdio::null()).env("NENRIN", env!("CARGO_BIN_EXE_nenrin"));
    Out::of(command.output().unwrap())
}

/// `sh -e` with a script and its `$0`, `$1`.., in a mount name space of its own, which shows the mounts below `dir` and lets go of those
/// of other tests first: their `nenrin umount` waits a few seconds for the last of them, and says after that that the volume stays in
/// use. No test makes such a name space but by this.
pub fn in_own_mounts(dir: &Path, script: &str) -> Command {
    let lets_go = "
        grep ' fuse.nenrin ' /proc/mounts | while read -r _ point _; do
            case $point in \"$(pwd -P)\"/*) ;; *) umount -l \"$point\" 2>/dev/null || true ;; esac
        done";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-ec", &format!("{lets_go}\n{script}")]);
    command.current_dir(dir).stdin(Stdio::null()).env("NENRIN", env!("CARGO_BIN_EXE_nenrin"));
    command
}

/// Runs a script as a user without rights, if that is possible here.
pub fn as_nobody(place: &Place, script: &str) -> Option<Out> {
    beside_nobody(place, "exec $NOBODY sh -ec \"$SCRIPT\"", script)
}

/// Runs a script as root in which `$NOBODY COMMAND` is run by a user without rights, if that is possible here.
pub fn with_nobody(place: &Place, script: &str) -> Option<Out> {
    beside_nobody(place, "exec sh -ec \"$SCRIPT\"", script)
}

fn beside_nobody(place: &Place, runs: &str, script: &str) -> Option<Out> {
    if !is_root() || !has("setpriv") || !has("unshare") {
        return None;
    }
    // Where that user may go: the program lies below a directory that may be closed.
    let program = place.path("nenrin");
    if !program.exists() {
        // By another process: a file open for writing here, and for a moment in
        // what other tests start, cannot be executed.
        run("cp", &[env!("CARGO_BIN_EXE_nenrin"), program.to_str().unwrap()]).ok();
    }
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    // Its own /dev, where everybody may open what everybody usually may.
    let devices = "
        mount -t tmpfs none /dev
        for d in 'null c 1 3' 'zero c 1 5' 'urandom c 1 9' 'fuse c 10 229'; do mknod -m 666 /dev/$d; done";
    let mut command = in_own_mounts(place.dir(), &format!("{devices}\n{runs}"));
    command.env("SCRIPT", script).env("NOBODY", "setpriv --reuid=65534 --regid=65534 --clear-groups");
    command.env("NENRIN", program).env_remove("XDG_RUNTIME_DIR");
    Some(Out::of(command.output().unwrap()))
}

/// Whether mounts are possible here; says so when not.
pub fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && is_root();
    if !can {
        left_out(format_args!("this test needs /dev/fuse and root"));
    }
    can
}

pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// A loop device, detached when it goes.
pub struct Loop(pub String);

impl Loop {
    /// Over an image; nothing where there can be none.
    pub fn over(image: &str) -> Option<Self> {
        if !is_root() || !has("losetup") {
            left_out(format_args!("this test needs root and losetup"));
            return None;
        }
        let out = run("losetup", &["--find", "--show", image]);
        if out.code != 0 {
            left_out(format_args!("{}", out.stderr));
            return None;
        }
        Some(Self(out.stdout.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.0]);
    }
}

/// Whether a program is there; says so when not.
pub fn has(program: &str) -> bool {
    let found = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].iter().any(|d| Path::new(d).join(program).exists());
    if !found {
        left_out(format_args!("this test needs {program}"));
    }
    found
}

/// A directory with an image in it, and directories to mount on. What is
/// mounted when it goes is unmounted.
pub struct Place {
    dir: TempDir,
}

impl Place {
    /// Without an image.
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }
    /// With a fresh volume in `image`.
    pub fn with_volume() -> Self {
        let this = Self::new();
        nenrin(["mkfs", "--size", SIZE, "--label", "test", &this.text("image")]).ok();
        this
    }
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    /// The same as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
    pub fn image(&self) -> String {
        self.text("image")
    }
    /// A directory, made if need be.
    pub fn sub(&self, name: &str) -> String {
        fs::create_dir_all(self.path(name)).unwrap();
        self.text(name)
    }
    /// Mounts the image at `mnt` with these options.
    pub fn mount(&self, options: &str) -> Out {
        let mnt = self.sub("mnt");
        let mut args = vec!["mount".to_owned()];
        if !options.is_empty() {
            args.extend(["-o".to_owned(), options.to_owned()]);
        }
        args.extend([self.image(), mnt]);
        nenrin(args)
    }
    pub fn umount(&self) -> Out {
        nenrin(["umount", &self.text("mnt")])
    }
    pub fn info(&self) -> serde_json::Value {
        nenrin(["info", "--json", &self.text("mnt")]).json()
    }
    /// The process that serves `mnt`.
    pub fn pid(&self) -> i32 {
        self.info()["pid"].as_i64().unwrap() as i32
    }
    /// Kills it as a power cut would.
    pub fn kill(&self) {
        let pid = self.pid();
        signal(pid, "KILL");
        wait_until("the process has ended", || !Path::new(&format!("/proc/{pid}")).exists());
    }
    /// Overwrites bytes of the image.
    pub fn patch(&self, offset: u64, bytes: &[u8]) {
        use std::os::unix::fs::FileExt;
        let file = fs::OpenOptions::new().write(true).open(self.path("image")).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }
    /// Changes every root slot that holds something, and makes its checksum right again.
    pub fn patch_slots(&self, change: impl Fn(&mut [u8])) {
        let image = fs::read(self.path("image")).unwrap();
        for offset in self.slots() {
            let mut slot = image[offset as usize..offset as usize + 4096].to_vec();
            if slot.iter().all(|b| *b == 0) {
                continue;
            }
            change(&mut slot);
            slot[8..12].fill(0);
            let crc = nenrin_format::crc(&slot);
            slot[8..12].copy_from_slice(&crc.to_le_bytes());
            self.patch(offset, &slot);
        }
    }
    /// Offsets of all root slots.
    pub fn slots(&self) -> Vec<u64> {
        let bytes = fs::metadata(self.path("image")).unwrap().len();
        [0, bytes / 4096 - 16].iter().flat_map(|area| (4..8).map(move |slot| (area + slot) * 4096)).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let real = fs::canonicalize(self.dir.path()).unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let ours = mounts.lines().filter_map(|l| l.split(' ').nth(1)).filter(|m| Path::new(m).starts_with(&real));
        for mount in ours.collect::<Vec<_>>().into_iter().rev() {
            // First as a user would, so that the process ends too.
            if nenrin(["umount", mount]).code != 0 {
                let _ = Command::new("umount").args(["-l", mount]).status();
            }
        }
    }
}

/// Waits for something that happens by itself, for a minute: machines that run tests are busy.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
