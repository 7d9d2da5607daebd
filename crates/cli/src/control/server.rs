//! The side that answers.

use super::{REQUEST_BYTES_MAX, Reply, Request, own_directory};
use crate::daemon::Log;
use crate::error::{At as _, Fail};
use crate::sys;
use serde::Serialize;
use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Answers one request; of a long answer it sends parts before.
pub type Handler = dyn Fn(Request, &mut Parts<'_>) -> Result<Answer, Fail> + Send + Sync;

type WriteTo = dyn FnOnce(&mut dyn Write) -> serde_json::Result<()>;

/// A value to be told, which is written where it goes and is nowhere else before: who owns a volume may have little memory.
pub struct Answer(Box<WriteTo>);

impl Answer {
    /// To be told as it is.
    pub fn of(value: impl Serialize + 'static) -> Self {
        Self(Box::new(move |to| serde_json::to_writer(to, &Reply::<_, ()>::Ok(value))))
    }

    /// What is told, for tests.
    #[cfg(test)]
    pub fn told<T: serde::de::DeserializeOwned>(self) -> T {
        let mut line = Vec::new();
        (self.0)(&mut line).unwrap();
        match serde_json::from_slice(&line).unwrap() {
            Reply::<T, ()>::Ok(value) => value,
            _ => unreachable!("answers are told whole"),
        }
    }
}

/// Where the parts of a long answer go as they come.
pub struct Parts<'a> {
    to: &'a mut dyn Write,
    wanted: Wanted<'a>,
}

/// Whether who asked is there.
#[derive(Clone, Copy)]
pub struct Waits<'a>(&'a UnixStream);

impl Waits<'_> {
    /// Also while the volume is being released.
    pub fn is_so(&self) -> bool {
        !sys::has_hung_up(self.0)
    }
}

/// Whether anybody still waits for an answer.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    stream: &'a UnixStream,
    leaving: &'a AtomicBool,
}

impl Wanted<'_> {
    /// Who asked is there, and the volume is not being released.
    pub fn is_so(&self) -> bool {
        !self.leaving.load(Ordering::Acquire) && !sys::has_hung_up(self.stream)
    }
}

impl<'a> Parts<'a> {
    /// Tells whether anybody still waits, while parts are sent, too.
    pub const fn wanted(&self) -> Wanted<'a> {
        self.wanted
    }

    /// The same of who waits for the release itself.
    pub const fn waits(&self) -> Waits<'a> {
        Waits(self.wanted.stream)
    }

    /// Sends one. No lock of the library may be held: it waits for who asked.
    ///
    /// # Errors
    /// Who asked went away or does not read on; the volume is being released.
    pub fn send(&mut self, part: &impl Serialize) -> Result<(), Fail> {
        if self.wanted.leaving.load(Ordering::Acquire) {
            return Err(Fail::new("the volume is being released"));
        }
        serde_json::to_writer(&mut *self.to, &Reply::<(), _>::Part(part)).at("answer")?;
        self.to.write_all(b"\n").at("answer")?;
        // Whether anybody still waits for it is seen by that.
        self.to.flush().at("answer")
    }
}

/// How long an answer waits for who asked to read on.
const READ_ON_TIME: Duration = Duration::from_secs(60);

/// Where an answer goes. Who asked and does not read on keeps nobody from releasing the volume.
struct Outlet<'a> {
    stream: &'a UnixStream,
    leaving: &'a AtomicBool,
    /// What was sent ends where it ends: nothing more may follow.
    ended: bool,
}

impl Write for Outlet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let begin = Instant::now();
        while !self.ended {
            match self.stream.write(bytes) {
                // Nothing was read for the time that a write to it waits at most.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.ended = self.leaving.load(Ordering::Acquire) || begin.elapsed() >= READ_ON_TIME;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => {
                    self.ended = other.is_err();
                    return other;
                }
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Volumes with one identity that may be served at a time: copies of an image.
const COPIES_MAX: u32 = 64;

/// A socket that refuses is left over from this age on.
const LEFT_OVER_AGE: Duration = Duration::from_secs(60);

/// Time to let pass when something is short.
const PAUSE: Duration = Duration::from_millis(100);

/// A bound socket; its name goes when this does.
pub struct Server {
    presence: Presence,
    state: Arc<State>,
}

/// Sees to it that who owns a volume can be asked.
#[derive(Clone)]
pub struct Presence(Arc<Place>);

struct Place {
    uuid: String,
    handler: Arc<Handler>,
    log: Arc<Log>,
    state: Arc<State>,
    /// None once nobody is to ask any more.
    bound: Mutex<Option<Bound>>,
    /// There is no name, and it was told.
    unreachable: AtomicBool,
}

/// A name, and who listens there.
struct Bound {
    name: Name,
    listener: UnixListener,
}

/// What it shares with its threads.
#[derive(Default)]
struct State {
    /// Requests that are being answered.
    busy: AtomicUsize,
    /// The volume is being released.
    leaving: AtomicBool,
}

impl Presence {
    /// Where the socket has no name any more, it gets another one: a login manager takes all below /run/user away with the last session, and
    /// what is old in /tmp may go, too.
    pub fn keep(&self) {
        self.keep_in(own_directory);
    }

    fn keep_in(&self, directory: impl FnOnce() -> io::Result<PathBuf>) {
        let place = &*self.0;
        let is_there = |b: &Bound| socket_at(&b.name.path).is_ok_and(|at| at == b.name.socket);
        if place.bound().as_ref().is_none_or(is_there) {
            return;
        }
        // Not held meanwhile: whoever starts there may take his time, and who leaves waits for nobody.
        let anew = match directory().and_then(|directory| place.listen(&directory)) {
            Ok(anew) => anew,
            Err(e) => {
                if !place.unreachable.swap(true, Ordering::AcqRel) {
                    place.log.line(&format!(
                        "no command reaches this process: its socket was removed, and there is no other place: {e}"
                    ));
                }
                return;
            }
        };
        let mut bound = place.bound();
        let Some(there) = &*bound else { return sys::shut_down(&anew.listener) };
        place.unreachable.store(false, Ordering::Release);
        place.log.line(&format!(
            "commands reach this process at {}, since its socket was removed",
            anew.name.path.display()
        ));
        sys::shut_down(&there.listener);
        *bound = Some(anew);
    }
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
        let state = Arc::<State>::default();
        let (uuid, bound) = (uuid.to_owned(), Mutex::new(None));
        let place = Place { uuid, handler, log, state: state.clone(), bound, unreachable: AtomicBool::new(false) };
        *place.bound() = Some(place.listen(directory)?);
        Ok(Self { presence: Presence(Arc::new(place)), state })
    }

    /// What keeps its name there.
    pub fn presence(&self) -> Presence {
        self.presence.clone()
    }

    /// Takes the name away, so that nobody new asks. From then on it may be another's. Long answers end.
    pub fn retire(&mut self) {
        *self.presence.0.bound() = None;
        self.state.leaving.store(true, Ordering::Release);
    }

    /// Waits until every request was answered, but not for ever.
    pub fn finish(&self, time: Duration) {
        let end = Instant::now() + time;
        while self.state.busy.load(Ordering::Acquire) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.retire();
    }
}

impl Place {
    fn bound(&self) -> MutexGuard<'_, Option<Bound>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds a socket and answers there.
    fn listen(&self, directory: &Path) -> io::Result<Bound> {
        let (listener, name) = bind(directory, &self.uuid)?;
        let bound = Bound { name, listener: listener.try_clone()? };
        let (handler, state, log) = (self.handler.clone(), self.state.clone(), self.log.clone());
        let accept = move || accept_all(&listener, &handler, &state, &log);
        thread::Builder::new().name("nenrin-control".into()).spawn(accept)?;
        Ok(bound)
    }
}

/// Answers whoever connects, until the socket is shut down.
fn accept_all(listener: &UnixListener, handler: &Arc<Handler>, state: &Arc<State>, log: &Log) {
    let mut short = false;
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => return,
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
        let (handler, state) = (handler.clone(), state.clone());
        let spawned =
            thread::Builder::new().name("nenrin-request".into()).spawn(move || serve(stream, &*handler, &state));
        if spawned.is_err() {
            // The connection was dropped, which the other side sees.
            thread::sleep(PAUSE);
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

fn serve(stream: UnixStream, handler: &Handler, state: &State) {
    let allowed = sys::peer(&stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == sys::euid());
    if stream.set_write_timeout(Some(PAUSE)).is_err() {
        return;
    }
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match stream.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line) {
            Ok(n) if n > 0 => {}
            _ => return,
        }
        let busy = Busy::new(&state.busy);
        let mut to = BufWriter::new(Outlet { stream: stream.get_ref(), leaving: &state.leaving, ended: false });
        let wanted = Wanted { stream: stream.get_ref(), leaving: &state.leaving };
        let sent = answer(&line, allowed, handler, &mut to, wanted).and_then(|()| to.flush());
        drop(to);
        drop(busy);
        if sent.is_err() || !allowed {
            return;
        }
    }
}

fn answer(line: &str, allowed: bool, handler: &Handler, to: &mut dyn Write, wanted: Wanted<'_>) -> io::Result<()> {
    let result = if !allowed {
        let text = "permission denied: only root and the user who mounted the volume are answered";
        Err(Fail::new(text).untouched())
    } else {
        match serde_json::from_str(line) {
            Ok(request) => handler(request, &mut Parts { to, wanted }),
            Err(_) => {
                let text = "the owner of the volume does not understand this request; mount it with this nenrin";
                Err(Fail::new(text).untouched())
            }
        }
    };
    match result {
        Ok(Answer(write)) => write(to)?,
        Err(Fail { code, message, is_untouched: untouched }) => {
            serde_json::to_writer(&mut *to, &Reply::<(), ()>::Error { code, message, untouched })?;
        }
    }
    to.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn start(directory: &Path) -> Server {
        let log = Arc::new(Log::open(None, false).unwrap());
        let handler = |_, _: &mut Parts<'_>| Ok(Answer::of(()));
        Server::start_in(directory, "volume", Arc::new(handler), log).unwrap()
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

    /// A login manager takes the directory away with all that is in it.
    #[test]
    fn a_socket_that_was_removed_gets_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("run"), dir.path().join("tmp"));
        [&first, &second].into_iter().for_each(|d| fs::create_dir(d).unwrap());
        let mut server = start(&first);
        let presence = server.presence();
        presence.keep_in(|| panic!("it is there"));
        fs::remove_dir_all(&first).unwrap();
        presence.keep_in(|| Err(io::ErrorKind::NotFound.into()));
        presence.keep_in(|| Ok(second.clone()));
        let path = second.join("volume.sock");
        let mut command = UnixStream::connect(&path).unwrap();
        command.write_all(b"{\"do\":\"segments\"}\n").unwrap();
        let mut answer = String::new();
        BufReader::new(command).read_line(&mut answer).unwrap();
        assert!(answer.contains("ok"), "{answer}");
        server.retire();
        presence.keep_in(|| panic!("nobody is to ask any more"));
        assert!(!path.exists());
    }

    /// The volume is released, be there ever so much to tell.
    #[test]
    fn who_does_not_read_on_holds_up_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(Log::open(None, false).unwrap());
        let ended = Arc::new(AtomicBool::new(false));
        let told = ended.clone();
        let handler = move |_, parts: &mut Parts<'_>| {
            while parts.send(&vec![7; 1000]).is_ok() {}
            told.store(true, Ordering::Release);
            Ok(Answer::of("the end"))
        };
        let mut server = Server::start_in(dir.path(), "volume", Arc::new(handler), log).unwrap();
        let mut command = UnixStream::connect(dir.path().join("volume.sock")).unwrap();
        command.write_all(b"{\"do\":\"segments\"}\n").unwrap();
        // What it read of the answer, and then no more.
        let mut read = vec![0; 64 << 10];
        command.read_exact(&mut read).unwrap();
        thread::sleep(3 * PAUSE);
        assert!(!ended.load(Ordering::Acquire), "it may read on");
        let begin = Instant::now();
        server.retire();
        server.finish(Duration::from_secs(20));
        assert!(ended.load(Ordering::Acquire) && begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        command.read_to_end(&mut read).unwrap();
        let lines: Vec<&[u8]> = read.split(|byte| *byte == b'\n').collect();
        assert!(lines.iter().all(|line| b"{\"part\":[7,".starts_with(&line[..line.len().min(11)])), "no part");
        assert!(!lines.last().unwrap().ends_with(b"}"), "something follows what was cut off");
    }

    /// What is sent to be seen is sent at once, be it nothing.
    #[test]
    fn a_command_that_has_ended_is_noticed_by_the_next_part() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(Log::open(None, false).unwrap());
        let ended = Arc::new(AtomicBool::new(false));
        let told = ended.clone();
        let handler = move |_, parts: &mut Parts<'_>| {
            while parts.send(&Vec::<u32>::new()).is_ok() {
                thread::sleep(PAUSE);
            }
            told.store(true, Ordering::Release);
            Ok(Answer::of("the end"))
        };
        let _server = Server::start_in(dir.path(), "volume", Arc::new(handler), log).unwrap();
        let mut command = UnixStream::connect(dir.path().join("volume.sock")).unwrap();
        command.write_all(b"{\"do\":\"segments\"}\n").unwrap();
        command.read_exact(&mut [0; 12]).unwrap();
        drop(command);
        let end = Instant::now() + Duration::from_secs(30);
        while !ended.load(Ordering::Acquire) {
            assert!(Instant::now() < end, "nobody waits for it any more");
            thread::sleep(PAUSE / 5);
        }
    }

    /// Also while nothing is sent, as nothing is found for long.
    #[test]
    fn a_command_that_has_ended_is_noticed_without_a_part() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(Log::open(None, false).unwrap());
        let (told, ended) = std::sync::mpsc::channel();
        let begun = Arc::new(Barrier::new(2));
        let at = begun.clone();
        let handler = move |_, parts: &mut Parts<'_>| {
            let wanted = parts.wanted();
            assert!(wanted.is_so());
            at.wait();
            while wanted.is_so() {
                thread::sleep(PAUSE / 20);
            }
            told.send(()).unwrap();
            Ok(Answer::of("the end"))
        };
        let _server = Server::start_in(dir.path(), "volume", Arc::new(handler), log).unwrap();
        let mut command = UnixStream::connect(dir.path().join("volume.sock")).unwrap();
        command.write_all(b"{\"do\":\"segments\"}\n").unwrap();
        begun.wait();
        drop(command);
        ended.recv_timeout(Duration::from_secs(60)).expect("nobody waits for it any more");
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
