//! The side that answers.

use super::{REQUEST_BYTES_MAX, Reply, Request, own_directory};
use crate::daemon::Log;
use crate::error::Fail;
use crate::sys;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
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
    path: PathBuf,
    busy: Arc<AtomicUsize>,
}

impl Server {
    /// Binds a socket for the volume `uuid` and answers on threads of its own.
    ///
    /// # Errors
    /// No directory for it, or no threads.
    pub fn start(uuid: &str, handler: Arc<Handler>, log: Arc<Log>) -> io::Result<Self> {
        let (listener, path) = bind(uuid)?;
        let busy = Arc::new(AtomicUsize::new(0));
        let this = Self { path, busy: busy.clone() };
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

    /// Takes the name away, so that nobody new asks.
    pub fn retire(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Waits until every request was answered, but not for ever.
    pub fn finish(&self, time: Duration) {
        let end = Instant::now() + time;
        while self.busy.load(Ordering::Acquire) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.retire();
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
fn bind(uuid: &str) -> io::Result<(UnixListener, PathBuf)> {
    let directory = own_directory()?;
    sweep(&directory);
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
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        return Ok((listener, path));
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
