//! Talking to the process that owns a mounted volume: one line of JSON each way
//! over a Unix socket.
//!
//! Invariants
//! 1. Only root and the user who runs the daemon are answered; the kernel says
//!    who is at the other end.
//! 2. A socket is believed only in a directory that belongs to that user alone.
//! 3. What comes over the socket is bounded in length and is no more trusted
//!    than the command line.
//! 4. The name of a socket is taken away by whom it belongs to, once, or by who
//!    starts and finds that nobody answers there; one at a time starts.

mod client;
mod data;
mod order;
mod past;
mod server;
mod silent;

pub use client::{
    Awaited, Client, Line, asked_of_device, has_ended, is_answered, mount_of_directory, owner_of_device,
    owner_of_directory, with_place,
};
pub use data::{
    CleanData, CleanEstimateData, CleanerData, DeviceData, ForgetData, ForgetNameData, ForgetPlanData, Hello, JoinData,
    LayingData, MmpData, MountData, PastMount, RecoveryData, Released, Reply, Request, RestData, ScrubData,
    ScrubFindingData, ScrubbedData, SegmentData, ShedData, VolumeInfo,
};
pub use order::{Order, Wants};
pub use past::{CheckpointData, DeletedData, DiffData, DiffResult, GoneData, StateData};
pub use server::{Answer, Parts, Presence, Server};

use crate::sys;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Longest line of a request.
const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// Longest line of an answer: a listing of very many checkpoints.
const REPLY_BYTES_MAX: u64 = 256 << 20;
/// Entries of a long listing that are sent at a time.
pub const PART_ENTRIES: usize = 1000;

/// Directories in which a user's daemons have their sockets, best first. Whoever asks knows them, as root or from a job of cron that has
/// another environment than the mount had: so that is asked for none.
fn directories(uid: u32) -> [PathBuf; 2] {
    let usual = if uid == 0 { "/run/nenrin".into() } else { format!("/run/user/{uid}/nenrin") };
    [usual.into(), format!("/tmp/nenrin-{uid}").into()]
}

/// Where those that an earlier version mounted with may have them still.
fn given(uid: u32) -> Option<PathBuf> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_absolute());
    given.filter(|_| uid != 0 && uid == sys::euid()).map(|p| p.join("nenrin"))
}

/// Whether the directory is `uid`'s and closed to others (invariant 2).
fn is_safe(directory: &Path, uid: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o077 == 0)
}

/// The directory for this process's own socket; it is made if need be.
fn own_directory() -> io::Result<PathBuf> {
    let uid = sys::euid();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in directories(uid) {
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => last = e,
            _ if is_safe(&directory, uid) => return Ok(directory),
            _ => {
                let text = format!("{} belongs to somebody else or is open to others", directory.display());
                last = io::Error::new(io::ErrorKind::PermissionDenied, text);
            }
        }
    }
    Err(last)
}

/// Every socket of `uid`'s daemons.
fn sockets(uid: u32) -> Vec<PathBuf> {
    let all: std::collections::BTreeSet<PathBuf> = directories(uid).into_iter().chain(given(uid)).collect();
    let safe = all.into_iter().filter(|d| is_safe(d, uid));
    let entries = safe.flat_map(|d| fs::read_dir(d).into_iter().flatten().flatten());
    entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "sock")).collect()
}
