//! The side that answers.

use super::{REQUEST_BYTES_MAX, Reply, Request, own_directory};
use crate::daemon::Log;
use crate::error::Fail;
use crate::sys;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Answers one request.
pub type Handler = dyn Fn(Request) -> Result<serde_json::Value, Fail> + Send + Sync;

/// Volumes with one identity that may be served at a time: copies of an image.
const COPIES_MAX: u32 = 64;

/// A socket that refuses is left over from this age on.
const LEFT_OVER_AGE: Duration = Duration::from_secs(60);

/// Time to let pass when something is short.
const PAUSE: Duration = Duration::from_millis(100);

/// A bound socket; its name goes when this does.
pub struct Server {
    name: Option<Name>,
    busy: Arc<AtomicUsize>,
}

/// The name of one socket, which goes with this. Whoever is found there instead stays.
struct Name {
    path: PathBuf,
    socket: (u64, u64),
}

impl Name {
    fn of(path: PathBuf) -> io::Result<Self> {
        Ok(Self { socket: socket_at(&path)?, path })
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if socket_at(&self.path).is_ok_and(|there| there == self.socket) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Which one has a name: device and inode number, which no other gets while it is open.
fn socket_at(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|m| (m.dev(), m.ino()))
}

impl Server {
    /// Binds a socket for the volume `uuid` and answers on threads of its own.
    ///
    /// # Errors
    /// No directory for it, or no threads.
    pub fn start(uuid: &str, handler: Arc<Handler>, log: Arc<Log>) -> io::Result<Self> {
        Self::start_in(&own_directory()?, uuid, handler, log)
    }

    fn start_in(directory: &Path, uuid: &str, handler: Arc<Handler>, log: Arc<Log>) -> io::Result<Self> {
        let (listener, name) = bind(directory, uuid)?;
        let busy = Arc::new(AtomicUsize::new(0));
        let this = Self { name: Some(name), busy: busy.clone() };
        thread::Builder::new().name("nenrin-control".into()).spawn(move || {
            let mut short = false;
            for stream in listener.incoming() {
                let stream = match stream {
                    Ok(stream) => stream,
                    Err(e) => {
                        if !std::mem::replace(&mut short, true) {
                            log.line(&format!("commands have to wait: no descriptor for them ({e})"));
                        }
                        // Who asks waits in the queue, and asking again at once would not help.
                        thread::sleep(PAUSE);
                        continue;
                    }
                };
                short = false;
                let (handler, busy) = (handler.clone(), busy.clone());
                let spawned =
                    thread::Builder::new().name("nenrin-request".into()).spawn(move || serve(stream, &*handler, &busy));
                if spawned.is_err() {
                    // The connection was dropped, which the other side sees.
                    thread::sleep(PAUSE);
                }
            }
        })?;
        Ok(this)
    }

    /// Takes the name away, so that nobody new asks. From then on it may be another's.
    pub fn retire(&mut self) {
        self.name = None;
    }

    /// Waits until every request was answered, but not for ever.
    pub fn finish(&self, time: Duration) {
        let end = Instant::now() + time;
        while self.busy.load(Ordering::Acquire) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Takes away the names that processes left which were killed: every command would ask there. Those alone that are old enough that
/// nobody can be about to listen.
fn sweep(directory: &Path) {
    let old = |path: &Path| {
        let made = fs::symlink_metadata(path).and_then(|m| m.modified()).ok();
        made.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > LEFT_OVER_AGE)
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path());
    for path in entries.filter(|p| p.extension().is_some_and(|e| e == "sock") && old(p)) {
        if sys::connect_now(&path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// The first free name: one that nobody answers at is left over from a process
/// that was killed.
fn bind(directory: &Path, uuid: &str) -> io::Result<(UnixListener, Name)> {
    // Between finding that nobody answers and taking the name, another could bind it.
    let _alone = sys::lock_directory(directory)?;
    sweep(directory);
    for copy in 0..COPIES_MAX {
        let name = if copy == 0 { format!("{uuid}.sock") } else { format!("{uuid}-{copy}.sock") };
        let path = directory.join(name);
        match sys::connect_now(&path) {
            // Nobody is taken for gone who is slow to answer.
            Ok(_) => continue,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => {}
        }
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let name = Name::of(path)?;
        fs::set_permissions(&name.path, fs::Permissions::from_mode(0o600))?;
        return Ok((listener, name));
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{COPIES_MAX} volumes with the identity {uuid} are mounted")))
}

/// Counts a request that is being answered, also when that panics.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(stream: UnixStream, handler: &Handler, busy: &AtomicUsize) {
    let allowed = sys::peer_uid(&stream).is_ok_and(|uid| uid == 0 || uid == sys::euid());
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match stream.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line) {
            Ok(n) if n > 0 => {}
            _ => return,
        }
        let busy = Busy::new(busy);
        let reply = answer(&line, allowed, handler);
        let mut text = serde_json::to_string(&reply).unwrap_or_default();
        text.push('\n');
        let sent = stream.get_mut().write_all(text.as_bytes());
        drop(busy);
        if sent.is_err() || !allowed {
            return;
        }
    }
}

fn answer(line: &str, allowed: bool, handler: &Handler) -> Reply {
    let result = if !allowed {
        Err(Fail::new("permission denied: only root and the user who mounted the volume are answered"))
    } else {
        match serde_json::from_str(line) {
            Ok(request) => handler(request),
            Err(_) => {
                Err(Fail::new("the owner of the volume does not understand this request; mount it with this nenrin"))
            }
        }
    };
    match result {
        Ok(value) => Reply::Ok(value),
        Err(Fail { code, message }) => Reply::Error { code, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn start(directory: &Path) -> Server {
        let log = Arc::new(Log::open(None, false).unwrap());
        Server::start_in(directory, "volume", Arc::new(|_| Ok(serde_json::Value::Null)), log).unwrap()
    }

    #[test]
    fn who_ends_leaves_the_name_of_who_came_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume.sock");
        let mut first = start(dir.path());
        let beside = start(dir.path());
        assert!(dir.path().join("volume-1.sock").exists(), "another volume of this identity");
        first.retire();
        assert!(!path.exists());
        let second = start(dir.path());
        drop(first);
        assert!(sys::connect_now(&path).is_ok());
        drop(second);
        drop(beside);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_the_own_socket_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume.sock");
        let server = start(dir.path());
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(server);
        assert!(sys::connect_now(&path).is_ok());
        drop(other);
    }

    #[test]
    fn those_who_start_at_once_get_a_name_each() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..500 {
            drop(UnixListener::bind(dir.path().join("volume.sock")).unwrap());
            let together = Barrier::new(4);
            let start = || {
                together.wait();
                bind(dir.path(), "volume").unwrap()
            };
            let bound: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            for (_, name) in &bound {
                assert_eq!(socket_at(&name.path).unwrap(), name.socket, "{}", name.path.display());
            }
        }
    }
}
