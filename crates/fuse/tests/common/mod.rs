//! A volume mounted in a directory of its own, for as long as a test lasts.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

pub mod later;
pub mod raw;
pub mod real;
pub mod slow;
pub mod special;
pub mod suite;
pub mod toy;

use nenrin_core::At;
use nenrin_fuse::{MountOptions, Pages, Requests, Session, SessionOptions, Stopper, Volume, Way};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fs, io};

/// Says that a test, or a part of one, is left out here, also to whoever runs all of them: to the file that is named in the environment.
pub fn left_out(why: std::fmt::Arguments<'_>) {
    use std::io::Write;
    eprintln!("skipped: {why}");
    if let Some(file) = std::env::var_os("NENRIN_LEFT_OUT") {
        let opened = std::fs::File::options().create(true).append(true).open(file);
        opened.and_then(|mut f| f.write_all(format!("   skipped: {why}\n").as_bytes())).unwrap();
    }
}

/// Why no mounted test can run here, if so.
pub fn missing() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("/dev/fuse is missing");
    }
    let writable = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    (!writable && !Path::new("/usr/bin/fusermount3").exists())
        .then_some("/dev/fuse cannot be opened, and fusermount3 is not installed")
}

pub struct Mounted {
    /// Kept for its end: the directory goes after the mount.
    _dir: tempfile::TempDir,
    root: PathBuf,
    stopper: Stopper,
    requests: Requests,
    pages: Pages,
    way: Way,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// How requests come in this run: with `NENRIN_TRANSPORT=uring` over io_uring, where the kernel has that switched on.
pub fn way() -> Way {
    match std::env::var("NENRIN_TRANSPORT").as_deref() {
        Ok("uring") => Way::Uring,
        _ => Way::Classic,
    }
}

/// Mounts in a fresh directory; `None`, with the reason printed, where that is impossible.
pub fn mount(
    volume: Arc<dyn Volume>,
    at: At,
    change: impl FnOnce(&mut MountOptions, &mut SessionOptions),
) -> Option<Mounted> {
    if let Some(why) = missing() {
        left_out(format_args!("{why}"));
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut mount = MountOptions::new("test,volume", dir.path());
    let mut options = SessionOptions { way: way(), ..SessionOptions::default() };
    change(&mut mount, &mut options);
    let session = Session::start(volume, at, &mount, &options).unwrap_or_else(|e| panic!("{e}"));
    let (stopper, requests, pages, way) = (session.stopper(), session.requests(), session.pages(), session.way());
    let thread = std::thread::spawn(move || session.run());
    let root = stopper.directory().to_owned();
    Some(Mounted { root, _dir: dir, stopper, requests, pages, way, thread: Some(thread) })
}

impl Mounted {
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// How requests come.
    pub fn way(&self) -> Way {
        self.way
    }
    /// Gives what happens by itself some time.
    pub fn settle(&self) {
        std::thread::sleep(Duration::from_millis(30));
    }
    /// How many requests of each kind came so far.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.requests.counts()
    }
    /// What `action` costs: the requests it causes, all but FORGETs, which nobody
    /// waits for and which come in batches of any size.
    pub fn cost(&self, action: impl FnOnce()) -> Vec<(&'static str, u64)> {
        let settle = || {
            // RELEASE and FORGET come after the call that caused them.
            let mut last = self.requests.counts();
            loop {
                std::thread::sleep(Duration::from_millis(30));
                let now = self.requests.counts();
                if now == last {
                    return now;
                }
                last = now;
            }
        };
        let before: HashMap<_, _> = settle().into_iter().collect();
        action();
        let more = |(name, count): (&'static str, u64)| (name, count - before.get(name).copied().unwrap_or(0));
        settle().into_iter().map(more).filter(|(name, count)| *count > 0 && !name.ends_with("orget")).collect()
    }
    /// What the kernel keeps.
    pub fn pages(&self) -> Pages {
        self.pages.clone()
    }
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
    pub fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
    /// Unmounts and waits until the session has ended.
    pub fn end(mut self) {
        self.finish();
    }
    fn finish(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let _ = self.stopper.stop();
        let start = Instant::now();
        while !thread.is_finished() {
            if start.elapsed() > Duration::from_secs(20) {
                eprintln!("the session did not end: something still uses {}", self.root.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = thread.join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The error number of a result that must be an error.
#[track_caller]
pub fn errno<T>(result: io::Result<T>) -> i32 {
    match result {
        Ok(_) => panic!("this should have failed"),
        Err(e) => e.raw_os_error().unwrap(),
    }
}

/// Bytes that differ everywhere and are the same every time.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}
