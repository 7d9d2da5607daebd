//! What an hour of a busy source tree (edit, build, test) costs in history, with and without `user.nenrin.history=none` on what is built.
//! `cargo run --release -p nenrin-core --example busy_tree -- [minutes]`; `--json` as JSON.
//!
//! The sources are those of this repository. What a build and its tests write is a list that was recorded (busy_tree.txt: bytes and place of
//! each file that `cargo test -p nenrin-core --test it --no-run` wrote anew after a change of the library). Time is virtual; content is zeros,
//! which nothing here compresses or shares.
#![allow(clippy::unwrap_used)] // an example stops at the first error

#[path = "../tests/it/common/sparse.rs"]
mod sparse;

use nenrin_core::format::items::HISTORY_XATTR;
use nenrin_core::format::{Ino, Time};
use nenrin_core::{At, Clock, Fs, MkfsOptions, MountOptions, NewInode, RenameMode, XattrMode, mkfs};
use nenrin_device::BlockDevice;
use sparse::Sparse;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SECOND: u64 = 1_000_000_000;
/// A cycle of edits, a build and its tests.
const CYCLE_SECONDS: u64 = 120;
const EDITS: u64 = 4;
const VOLUME_BYTES: u64 = 64 << 30;

#[derive(Default)]
struct Virtual(AtomicU64);

impl Clock for Virtual {
    fn wall(&self) -> Time {
        Time(1_000_000_000_000 + self.0.load(Ordering::Relaxed) as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Tree {
    clock: Arc<Virtual>,
    fs: Arc<Fs>,
    sources: Vec<(PathBuf, u64)>,
    built: Vec<(PathBuf, u64)>,
}

/// Blocks of content that only history needs, and both copies of its index, in bytes.
#[derive(Clone, Copy)]
struct Cost {
    content: u64,
    index: u64,
    checkpoints: usize,
}

fn sources(root: &Path, below: &Path, out: &mut Vec<(PathBuf, u64)>) {
    let mut entries: Vec<_> = std::fs::read_dir(root.join(below)).unwrap().map(|e| e.unwrap()).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for e in entries {
        let (path, kind) = (below.join(e.file_name()), e.file_type().unwrap());
        if kind.is_dir() && path != Path::new("target") && path != Path::new(".git") {
            sources(root, &path, out);
        } else if kind.is_file() {
            out.push((path, e.metadata().unwrap().len()));
        }
    }
}

impl Tree {
    fn new(keep: Option<&str>) -> Self {
        let device: Arc<dyn BlockDevice> = Arc::new(Sparse::new(VOLUME_BYTES));
        let clock = Arc::new(Virtual::default());
        let shared: Arc<dyn Clock> = clock.clone();
        mkfs(&device, &shared, &MkfsOptions::default()).unwrap();
        let fs = Fs::open(vec![device], shared, MountOptions::default()).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (mut all, mut built) = (Vec::new(), Vec::new());
        sources(&root, Path::new(""), &mut all);
        for line in include_str!("busy_tree.txt").lines() {
            let (bytes, path) = line.split_once(' ').unwrap();
            built.push((Path::new("target").join(path), bytes.parse().unwrap()));
        }
        let this = Self { clock, fs, sources: all, built };
        this.directory(Path::new("target"));
        if let Some(keep) = keep {
            let target = this.fs.lookup(At::Live, Ino::ROOT, b"target").unwrap().ino;
            this.fs.setxattr(target, HISTORY_XATTR, keep.as_bytes(), XattrMode::Any).unwrap();
        }
        for (path, bytes) in this.sources.iter().chain(&this.built) {
            this.replace(path, *bytes);
        }
        this.pass(60);
        this
    }

    fn directory(&self, path: &Path) -> Ino {
        let mut at = Ino::ROOT;
        for part in path.components() {
            let name = part.as_os_str().as_encoded_bytes();
            let new = NewInode { mode: 0o040_755, uid: 0, gid: 0, rdev: 0, target: b"" };
            at = match self.fs.lookup(At::Live, at, name) {
                Ok(there) => there.ino,
                Err(_) => self.fs.create(at, name, &new).unwrap().ino,
            };
        }
        at
    }

    /// As editors and compilers save: a new file, then its name.
    fn replace(&self, path: &Path, bytes: u64) {
        let directory = self.directory(path.parent().unwrap());
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let ino = self.fs.create(directory, b".new", &new).unwrap().ino;
        let zeros = vec![0; 1 << 20];
        let mut at = 0;
        while at < bytes {
            let some = (bytes - at).min(1 << 20);
            self.fs.write(ino, at, &zeros[..some as usize], 0).unwrap();
            at += some;
        }
        self.fs.flush(ino).unwrap();
        let name = path.file_name().unwrap().as_encoded_bytes();
        self.fs.rename(directory, b".new", directory, name, RenameMode::Replace).unwrap();
    }

    fn pass(&self, seconds: u64) {
        for _ in 0..seconds * 2 {
            self.clock.0.fetch_add(SECOND / 2, Ordering::Relaxed);
            self.fs.tick().unwrap();
        }
    }

    fn cycle(&self, number: u64) {
        for edit in 0..EDITS {
            let (path, bytes) = &self.sources[((number * EDITS + edit) * 37) as usize % self.sources.len()];
            self.replace(path, bytes + 40);
            self.pass(15);
        }
        // A build takes a while, so several checkpoints see parts of it.
        for some in self.built.chunks(self.built.len().div_ceil(20).max(1)) {
            for (path, bytes) in some {
                self.replace(path, *bytes);
            }
            self.pass(1);
        }
        self.pass(CYCLE_SECONDS - 15 * EDITS - 20);
    }

    fn cost(&self) -> Cost {
        self.fs.sync_all().unwrap();
        self.pass(30);
        let index: u64 = self.fs.segments().iter().map(|s| u64::from(s.nodes)).sum::<u64>() * 4 * 4096;
        Cost { content: self.fs.usage().history_blocks * 4096, index, checkpoints: self.fs.checkpoints().len() }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let as_json = args.iter().any(|a| a == "--json");
    let minutes = args.iter().find_map(|a| a.parse::<u64>().ok()).unwrap_or(60);
    let mut costs = Vec::new();
    let mut totals = (0, 0);
    for keep in [None, Some("daily"), Some("none")] {
        let tree = Tree::new(keep);
        totals = (tree.built.iter().map(|b| b.1).sum::<u64>(), tree.sources.iter().map(|b| b.1).sum::<u64>());
        for number in 0..minutes * 60 / CYCLE_SECONDS {
            tree.cycle(number);
        }
        costs.push((keep.unwrap_or("full"), tree.cost()));
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    if as_json {
        let rows: Vec<String> = costs
            .iter()
            .map(|(keep, c)| {
                format!(
                    "{{\"target\": \"{keep}\", \"history_bytes\": {}, \"index_bytes\": {}, \"checkpoints\": {}}}",
                    c.content, c.index, c.checkpoints
                )
            })
            .collect();
        println!("{{\"minutes\": {minutes}, \"built_bytes\": {}, \"rows\": [{}]}}", totals.0, rows.join(", "));
        return;
    }
    println!(
        "{minutes} minutes; every {CYCLE_SECONDS} s {EDITS} files are edited and {:.1} MiB are built anew; sources {:.1} MiB",
        mib(totals.0),
        mib(totals.1)
    );
    for (keep, c) in costs {
        println!(
            "target keeps {keep:5}: {:9.1} MiB of history, {:6.1} MiB of index in all, {} checkpoints kept",
            mib(c.content),
            mib(c.index),
            c.checkpoints
        );
    }
}
