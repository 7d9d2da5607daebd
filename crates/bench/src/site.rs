//! A contender on its disk: made, mounted, looked after and unmounted.
//!
//! Invariants
//! 1. Whatever this mounted or started (nilfs2's cleaner too) is unmounted and ended when the value is dropped, however the run ends.
//! 2. A daemon runs in its own process group, so that Ctrl-C reaches the harness alone, which then unmounts in order.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::{self, run, run_with};
use crate::contender::{Contender, Kind, Layout, Tools};
use crate::disk::{Counters, Disk};
use crate::error::{Doing, Error, Result};
use crate::{machine, place, sys};

const MOUNT_LIMIT: Duration = Duration::from_secs(60);
const UNMOUNT_LIMIT: Duration = Duration::from_secs(60);

/// A contender with its disk and, while mounted, its mount.
pub struct Site {
    /// Who this is.
    pub contender: Contender,
    /// Where it lives.
    pub disk: Disk,
    /// The other devices, where there are several.
    more: Vec<Disk>,
    tools: Tools,
    point: PathBuf,
    log: PathBuf,
    mounted: bool,
    daemon: Option<Child>,
    /// nilfs2's cleaner, by its process id.
    cleanerd: Option<u32>,
}

/// How nilfs2's cleaner is set, where one runs: it keeps nothing of the past, begins when a fifth is left, and does not
/// pause. As packaged it would protect an hour, and a volume that is overwritten for minutes would be full.
pub const CLEANERD_SETTINGS: &str = "protection_period 0
min_clean_segments 10%
max_clean_segments 20%
clean_check_interval 1
selection_policy timestamp
nsegments_per_clean 4
mc_nsegments_per_clean 8
cleaning_interval 0.1
mc_cleaning_interval 0.01
retry_interval 1
min_reclaimable_blocks 10%
mc_min_reclaimable_blocks 10%
use_set_suinfo
use_mmap
log_priority info
";

/// Files that are synced one by one behind a slice, at most, and how deep they lie. Those that workloads write to again and again are few;
/// of very many small ones a daemon has written all but the last second by then.
const SYNCED_MAX: usize = 256;
const SYNCED_DEPTH: u32 = 3;

/// Syncs the files in a directory and below it.
fn sync_files(dir: &Path, depth: u32, left: &mut usize) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let Ok(entry) = entry else { continue };
        let Ok(kind) = entry.file_type() else { continue };
        if *left == 0 {
            break;
        }
        if kind.is_file() {
            *left -= 1;
            match File::open(entry.path()) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                file => file?.sync_all()?,
            }
        } else if kind.is_dir() && depth > 1 && entry.file_name() != ".nenrin" {
            sync_files(&entry.path(), depth - 1, left)?;
        }
    }
    Ok(())
}

impl Site {
    /// A site that is neither made nor mounted.
    pub fn new(contender: Contender, disk: Disk, more: Vec<Disk>, tools: Tools, work: &Path) -> Result<Self> {
        let point = place::mount_point(work, &contender.name);
        fs::create_dir_all(&point).doing(|| format!("making {}", point.display()))?;
        let log = place::log(work, &contender.name);
        Ok(Self { contender, disk, more, tools, point, log, mounted: false, daemon: None, cleanerd: None })
    }

    fn disks(&self) -> impl Iterator<Item = &Disk> {
        std::iter::once(&self.disk).chain(&self.more)
    }

    /// Paths of its devices.
    pub fn devices(&self) -> Vec<&Path> {
        self.disks().map(Disk::device).collect()
    }

    /// What each device has done so far.
    pub fn each_counters(&self) -> Vec<Counters> {
        self.disks().map(Disk::counters).collect()
    }

    /// Bytes of the images that are holes or unwritten.
    pub fn hole_bytes(&self) -> u64 {
        self.disks().map(Disk::hole_bytes).sum()
    }

    /// Takes the last device away, where the contender is to go on without it. What the workload has open must be closed.
    pub fn lose_device(&mut self) -> Result<()> {
        if self.contender.layout != Layout::Degraded {
            return Ok(());
        }
        self.unmount()?;
        drop(self.more.pop());
        if self.contender.kind == Kind::Btrfs {
            run(&["btrfs", "device", "scan", "--forget"])?;
        }
        self.mount().map(drop)
    }

    /// The mount point.
    pub fn root(&self) -> &Path {
        &self.point
    }

    /// A path on the contender.
    pub fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    /// Makes an empty file system on a fully written device.
    pub fn make(&mut self) -> Result<()> {
        let Some(line) = self.tools.mkfs_command(&self.contender, &self.devices()) else { return Ok(()) };
        self.disks().try_for_each(Disk::wipe)?;
        // mke2fs would zero by ZERO_RANGE, which leaves unwritten extents below the loop device.
        run_with(&line, &[("UNIX_IO_NOZEROOUT", "1")])?;
        self.disks().try_for_each(|disk| disk.fill_holes().map(drop))
    }

    /// Mounts and waits until the root can be looked at; how long that took from the start of the command.
    pub fn mount(&mut self) -> Result<Duration> {
        let Some(line) = self.tools.mount_command(&self.contender, &self.devices(), &self.point) else {
            return Ok(Duration::ZERO);
        };
        let begin = Instant::now();
        if self.contender.kind.has_daemon() {
            self.start_daemon(&line)?;
        } else {
            run(&line)?;
        }
        self.mounted = true;
        let took = begin.elapsed();
        if self.contender.has_cleanerd() {
            self.start_cleanerd()?;
        }
        Ok(took)
    }

    fn start_cleanerd(&mut self) -> Result<()> {
        let settings = self.log.with_extension("conf");
        fs::write(&settings, CLEANERD_SETTINGS).doing(|| format!("writing {}", settings.display()))?;
        let log = File::create(&self.log).doing(|| format!("making {}", self.log.display()))?;
        let copy = log.try_clone().doing(|| format!("sharing {}", self.log.display()))?;
        let mut line = Command::new("nilfs_cleanerd");
        line.arg("-c").arg(settings).arg(self.disk.device()).arg(&self.point);
        let started = line.stdin(Stdio::null()).stdout(log).stderr(copy).process_group(0).status();
        started.doing(|| "starting nilfs_cleanerd".to_owned())?;
        // It leaves a process behind, which prints its id.
        let begin = Instant::now();
        let (mut id, mut text) = (None, String::new());
        while id.is_none() && begin.elapsed() < MOUNT_LIMIT {
            std::thread::sleep(Duration::from_millis(20));
            text = fs::read_to_string(&self.log).unwrap_or_default();
            id = text.lines().find_map(|line| line.strip_prefix("NILFS_CLEANERD_PID=")?.trim().parse().ok());
        }
        let why = || Error::Wrong(format!("nilfs_cleanerd did not start: {}", command::tail(text.trim(), 300)));
        self.cleanerd = Some(id.ok_or_else(why)?);
        Ok(())
    }

    fn end_cleanerd(&mut self) {
        let Some(id) = self.cleanerd.take() else { return };
        command::best_effort("ending nilfs_cleanerd", sys::signal(id, libc::SIGTERM));
        let begin = Instant::now();
        while machine::is_alive(id) && begin.elapsed() < UNMOUNT_LIMIT {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn start_daemon(&mut self, line: &[String]) -> Result<()> {
        let Some((program, arguments)) = line.split_first() else { return Ok(()) };
        let log = File::create(&self.log).doing(|| format!("making {}", self.log.display()))?;
        let copy = log.try_clone().doing(|| format!("sharing {}", self.log.display()))?;
        let outside = fs::metadata(&self.point).doing(|| format!("looking at {}", self.point.display()))?.dev();
        let begin = Instant::now();
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(copy)
            .process_group(0)
            .spawn()
            .doing(|| format!("starting `{}`", line.join(" ")))?;
        let daemon = self.daemon.insert(child);
        loop {
            if fs::metadata(&self.point).is_ok_and(|m| m.dev() != outside) {
                return Ok(());
            }
            let ended = daemon.try_wait().doing(|| "waiting for the daemon".to_owned())?;
            let status = match ended {
                Some(status) => status.to_string(),
                None if begin.elapsed() > MOUNT_LIMIT => "not mounted after a minute".to_owned(),
                None if sys::interrupted() => return Err(Error::Interrupted),
                None => {
                    std::thread::sleep(Duration::from_micros(200));
                    continue;
                }
            };
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            if ended.is_some() {
                self.daemon = None;
            }
            let outcome = format!("{status}: {}", command::tail(text.trim(), 600));
            return Err(Error::Command { line: line.join(" "), outcome });
        }
    }

    /// Unmounts and waits for the daemon's end.
    pub fn unmount(&mut self) -> Result<()> {
        if !self.mounted && self.daemon.is_none() {
            return Ok(());
        }
        // A slice that failed may have left the harness inside.
        std::env::set_current_dir("/").doing(|| "leaving the mount".to_owned())?;
        let point = self.point.display().to_string();
        let mut result = Ok(String::new());
        self.end_cleanerd();
        if self.mounted {
            for attempt in 0..20 {
                result = if attempt < 19 { run(&["umount", &point]) } else { run(&["umount", "-l", &point]) };
                if result.is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        self.mounted = false;
        let ended = self.end_daemon();
        result.map(drop).and(ended)
    }

    fn end_daemon(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        let begin = Instant::now();
        while begin.elapsed() < UNMOUNT_LIMIT {
            match daemon.try_wait().doing(|| "waiting for the daemon".to_owned())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(Error::Wrong(format!("the daemon ended with {status}"))),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        command::best_effort("killing a daemon that did not end", daemon.kill());
        command::best_effort("waiting for it", daemon.wait());
        Err(Error::Wrong("the daemon did not end within a minute of umount and was killed".to_owned()))
    }

    /// Unmounts and mounts again; how long mounting took.
    pub fn remount(&mut self) -> Result<Duration> {
        self.unmount()?;
        self.mount()
    }

    /// Kills the daemon as a crash would, and clears the dead mount.
    pub fn crash(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else {
            return Err(Error::Wrong(format!("{} has no daemon to kill", self.contender.name)));
        };
        daemon.kill().doing(|| "killing the daemon".to_owned())?;
        daemon.wait().doing(|| "waiting for the killed daemon".to_owned())?;
        run(&["umount", "-l", &self.point.display().to_string()])?;
        self.mounted = false;
        Ok(())
    }

    /// Process id of the daemon.
    pub fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// How the daemon ended and the end of what it printed, when it ended by itself.
    pub fn daemon_end(&mut self) -> Option<String> {
        let status = self.daemon.as_mut()?.try_wait().ok()??;
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        Some(format!("the daemon ended with {status}: {}", command::tail(text.trim(), 600)))
    }

    /// Runs a `nenrin` command about the mounted volume, whose directory comes last, and reads the JSON it prints.
    pub fn nenrin(&self, words: &[&str]) -> Result<serde_json::Value> {
        let program = self.tools.nenrin.as_ref().map(|p| p.display().to_string()).unwrap_or_default();
        let point = self.point.display().to_string();
        let line: Vec<&str> =
            [program.as_str()].into_iter().chain(words.iter().copied()).chain([point.as_str()]).collect();
        let text = run(&line)?;
        serde_json::from_str(&text).map_err(|e| Error::Wrong(format!("`{}` printed no JSON: {e}", line.join(" "))))
    }

    /// Bytes in segments that nothing is needed of, where the contender has segments and tells: what cleaning has left to
    /// do can be seen by how this changes.
    pub fn free_segment_bytes(&self) -> Option<u64> {
        let disk = self.disk.device().file_name()?.to_string_lossy().into_owned();
        let number = |path: String| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        match self.contender.kind {
            Kind::Nenrin => {
                let info = self.nenrin(&["info", "--json"]).ok()?;
                let segments = self.nenrin(&["segments", "--json"]).ok()?;
                let free =
                    segments.as_array()?.iter().filter(|s| s["state"] == "free" || s["state"] == "pending").count();
                Some(free as u64 * info["segment_bytes"].as_u64()?)
            }
            // A segment of f2fs is 2 MiB.
            Kind::F2fs => Some(number(format!("/sys/fs/f2fs/{disk}/free_segments"))? << 21),
            Kind::Nilfs2 => {
                let of = |name| number(format!("/sys/fs/nilfs2/{disk}/segments/{name}"));
                Some(of("clean_segments")? * of("blocks_per_segment")? * 4096)
            }
            _ => None,
        }
    }

    /// Processor time the daemon has used.
    pub fn daemon_time(&self) -> Option<Duration> {
        machine::process_time(self.daemon()?)
    }

    /// Writes everything out and waits for a quiet device, so that the next contender does not pay for it. Whether
    /// the device became quiet.
    pub fn settle(&self) -> Result<bool> {
        if self.mounted {
            let doing = || format!("syncing {}", self.point.display());
            let root = File::open(&self.point).doing(doing)?;
            sys::sync_file_system(&root).doing(doing)?;
            root.sync_all().doing(doing)?;
            // syncfs(2) reaches no daemon, and the sync of a directory commits the content of no file.
            if self.daemon.is_some() {
                sync_files(&self.point, SYNCED_DEPTH, &mut { SYNCED_MAX }).doing(doing)?;
            }
        }
        Ok(self.disks().map(|disk| disk.quiet(Duration::from_millis(500))).filter(|quiet| !quiet).count() == 0)
    }

    /// Source, type and options as /proc/self/mounts shows them.
    pub fn mount_facts(&self) -> String {
        let point = self.point.display().to_string();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let line = mounts.lines().rev().find(|line| line.split(' ').nth(1) == Some(&point)).unwrap_or_default();
        let facts = line.split(' ').skip(2).take(2).collect::<Vec<_>>().join(" ");
        match self.in_place_policy() {
            Some(policy) => format!("{facts} (ipu_policy {policy})"),
            None => facts,
        }
    }

    /// What f2fs overwrites in place, as it tells: by itself everything on volumes of up to 16 GiB.
    fn in_place_policy(&self) -> Option<String> {
        let disk = self.disk.device().file_name()?.to_string_lossy().into_owned();
        let text = fs::read_to_string(format!("/sys/fs/f2fs/{disk}/ipu_policy")).ok()?;
        Some(text.trim().to_owned())
    }

    /// Part of the file system that is in use.
    pub fn fill_level(&self) -> Option<f64> {
        let space = self.mounted.then(|| sys::space(&self.point).ok())??;
        (space.total > 0).then(|| 1.0 - space.free as f64 / space.total as f64)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        command::best_effort(&format!("unmounting {}", self.point.display()), self.unmount());
        command::best_effort("removing a mount point", fs::remove_dir(&self.point));
    }
}
