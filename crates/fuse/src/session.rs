//! A mounted volume: from mount to unmount.
//!
//! Invariants
//! 1. When [`Session::run`] returns, no request is under way in a serving
//!    thread, nothing more will arrive, and everything the kernel held of the
//!    volume was given back. Only then may the volume be closed.
//! 2. A request that makes the library panic is answered with EIO, and the
//!    others are served on.

use crate::crew::Crew;
use crate::device::FuseDevice;
use crate::dispatch::{AccessTimes, Behaviour, PAST_VALID, Server};
use crate::init::{self, Agreed, Answer, TRANSFER_BYTES_MAX, Wishes};
use crate::mount::{self, Mount, MountError, MountOptions, Seat};
use crate::notify::Notifier;
use crate::past::ShowPast;
use crate::proto::request::{self, Op};
use crate::requests::Requests;
use crate::ring::{self, Desk, Leaders, Queue};
use crate::sys;
use crate::transport::{Received, Receiver, Reply, Transport};
use crate::volume::Volume;
use nenrin_core::At;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::Scope;
use std::time::Duration;
use std::{fs, io, thread};

/// Where written content is kept first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// The volume has every byte when write(2) returns.
    #[default]
    WriteThrough,
    /// The kernel keeps written pages and sends them later.
    WriteBack,
}

/// How requests come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// By read(2).
    #[default]
    Classic,
    /// Over io_uring, where the kernel has that switched on.
    Uring,
}

/// Who checks permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permissions {
    /// The kernel.
    #[default]
    Kernel,
    /// The front end, which saves the kernel asking for attributes. Only where
    /// one user alone can enter, and without ACLs that can be changed.
    Own,
}

/// So many threads lead commits at once. Those that were called in their place go on listening: to lie down, and be called again for
/// the next commit, would cost each time more than a thread that listens does.
const LEADERS: usize = nenrin_core::COMMITS_AT_ONCE as usize;

/// How a session serves.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Threads that listen for requests at first.
    pub threads: usize,
    /// Threads that serve at once at most, when requests have to wait for something.
    pub threads_max: usize,
    /// Bytes of memory for writes that wait for a thread, so that others are served meanwhile.
    pub left_bytes_max: usize,
    /// See [`Way`].
    pub way: Way,
    /// See [`Cache`].
    pub cache: Cache,
    /// See [`Permissions`].
    pub permissions: Permissions,
    /// POSIX access control lists are obeyed and can be set.
    pub acl: bool,
    /// How long the kernel may believe names and attributes, which nobody else changes.
    pub valid: Duration,
    /// How often [`Volume::tick`] is called; zero when somebody else does.
    pub tick: Duration,
    /// The past inside a live mount, as `.nenrin` and `.snapshots`.
    pub past: ShowPast,
    /// How far the kernel reads ahead, in KiB. Only root can set it.
    pub read_ahead_kib: u32,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            threads: 4,
            threads_max: 128,
            left_bytes_max: 128 << 20,
            way: Way::default(),
            cache: Cache::default(),
            permissions: Permissions::default(),
            acl: true,
            valid: Duration::from_secs(3600),
            tick: Duration::from_millis(100),
            past: ShowPast::default(),
            read_ahead_kib: 4096,
        }
    }
}

impl SessionOptions {
    /// Whether a mount has a chance, as far as that can be known before the volume is opened: who opens it writes to it.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn can_mount(&self, how: &MountOptions) -> Result<(), MountError> {
        self.go_with(how).and_then(|()| mount::check(how))
    }

    fn go_with(&self, how: &MountOptions) -> Result<(), MountError> {
        match self.permissions == Permissions::Own && how.allow_other {
            true => Err(MountError::Conflict(
                "own_check and allow_other exclude each other: with several users only the kernel \
                 can check permissions",
            )),
            false => Ok(()),
        }
    }
}

/// A mounted volume that waits to be served.
pub struct Session {
    server: Arc<Server>,
    device: FuseDevice,
    /// None where requests come the classic way.
    queues: Vec<Arc<Queue>>,
    receivers: Vec<Box<dyn Receiver>>,
    threads_max: usize,
    mount: Mount,
    ended: Arc<AtomicBool>,
    ticker: Option<(Arc<dyn Volume>, Duration)>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("mount", &self.mount).finish_non_exhaustive()
    }
}

/// Ends a session from another thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    seat: Seat,
    /// Nothing of the session is mounted any more; something else may be.
    ended: Arc<AtomicBool>,
}

impl Stopper {
    /// Takes the mount away at once, if it is still there; what somebody else has mounted there since stays. Programs that
    /// still use something on it go on being served, and [`Session::run`] returns when the last has let go.
    ///
    /// # Errors
    /// What umount2(2) or fusermount3 say; or that the list of mounts cannot be read.
    pub fn stop(&self) -> io::Result<()> {
        if self.has_ended() { Ok(()) } else { self.seat.leave() }
    }
    /// Whether the kernel has let go of it: where it was unmounted, but is mounted elsewhere as well, or used, it has not.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
    /// Where the volume is mounted, absolute and without links.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.seat.directory()
    }
}

/// What the kernel keeps of a mounted volume. Knows nothing once the session has ended.
#[derive(Clone)]
pub struct Pages(Weak<Server>);

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

impl Pages {
    /// Has the kernel send what was written before this call: content that shared mappings changed, and under writeback what files have
    /// that are still open. It drops those pages. Waits until the volume has it all, so a thread that serves requests must not call it,
    /// nor anybody who holds a lock that serving needs.
    pub fn bring_in(&self) {
        if let Some(server) = self.0.upgrade() {
            server.bring_in_all();
        }
    }

    /// To be told when the mount was made read-only, or writable again: the kernel, which did that, says nothing of it. Reading moves no
    /// access times while it is read-only.
    pub fn became_read_only(&self, is_so: bool) {
        if let Some(server) = self.0.upgrade() {
            server.became_read_only(is_so);
        }
    }

    /// Has the kernel drop what it keeps of states of the past: content, listings, link targets. To be called after something was
    /// forgotten, and once more when what was asked for before that has been answered. By whom, see [`Pages::bring_in`].
    pub fn drop_past(&self) {
        if let Some(server) = self.0.upgrade() {
            server.drop_past();
        }
    }
}

impl Session {
    /// Mounts the state `at` of `volume`. A past state is mounted read-only.
    /// Until [`Session::run`] is called, whoever enters the directory waits.
    ///
    /// # Errors
    /// Why it could not be mounted.
    pub fn start(
        volume: Arc<dyn Volume>,
        at: At,
        mount_options: &MountOptions,
        options: &SessionOptions,
    ) -> Result<Self, MountError> {
        let mut mount_options = mount_options.clone();
        mount_options.read_only |= at != At::Live;
        let own_check = options.permissions == Permissions::Own;
        options.go_with(&mount_options)?;
        let wishes = Wishes {
            writeback: options.cache == Cache::WriteBack && !mount_options.read_only,
            acl: options.acl && !own_check,
            rings: options.way == Way::Uring && ring::possible(),
            page_bytes: sys::page_bytes(),
        };
        let (mount, fd) = Mount::new(&mount_options, !own_check)?;
        let seat = mount.seat();
        let (device, agreed) = shake_hands(fd, wishes).map_err(|e| e.in_directory(seat.directory()))?;
        raise_limits(seat, options.read_ahead_kib, agreed.writeback());
        let failed = |e| HandshakeError::Io(e).in_directory(seat.directory());
        let queues = if agreed.rings() {
            device.descriptor().and_then(|fd| ring::queues(fd, TRANSFER_BYTES_MAX)).map_err(failed)?
        } else {
            Vec::new()
        };
        // Beside rings there is little to listen for.
        let threads = if queues.is_empty() { options.threads.max(1) } else { 1 };
        let receivers = (0..threads).map(|_| device.receiver()).collect::<io::Result<Vec<_>>>().map_err(failed)?;
        let read_only = mount_options.read_only;
        let access_times = AccessTimes::new(!read_only && !mount_options.noatime);
        let past = options.past.0.clone().filter(|_| at == At::Live);
        // What is forgotten is gone from all states, and nobody tells the kernel of a mount of one.
        let valid = if at == At::Live { options.valid } else { options.valid.min(PAST_VALID) };
        let behaviour =
            Behaviour { at, read_only, access_times, own_check, valid, left_bytes_max: options.left_bytes_max, past };
        let ticks = at == At::Live && !options.tick.is_zero();
        let ticker = ticks.then(|| (volume.clone(), options.tick));
        let notifier = Notifier::new(device.notifications());
        let server = Arc::new(Server::new(volume, behaviour, agreed, notifier));
        if !read_only {
            let failed = |e| MountError::Io("a thread cannot be started", seat.directory().to_owned(), e);
            server.start_helpers().map_err(failed)?;
        }
        let threads_max = options.threads_max.max(receivers.len());
        Ok(Self { server, device, queues, receivers, threads_max, mount, ended: Arc::default(), ticker })
    }

    /// What ends this session from elsewhere, for instance when a signal comes.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { seat: self.mount.seat().clone(), ended: self.ended.clone() }
    }

    /// How requests come: not always as wished.
    #[must_use]
    pub fn way(&self) -> Way {
        if self.queues.is_empty() { Way::Classic } else { Way::Uring }
    }

    /// What the kernel keeps and has not sent.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages(Arc::downgrade(&self.server))
    }

    /// What requests came; to be looked at while the session runs.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.server.requests().clone()
    }

    /// Serves until the volume is unmounted.
    ///
    /// # Errors
    /// The first error with which a serving thread ended early. The volume is
    /// unmounted then, too.
    pub fn run(mut self) -> io::Result<()> {
        let receivers = std::mem::take(&mut self.receivers);
        let crew = Crew::new(receivers.len(), receivers.len() + LEADERS, self.threads_max);
        let hands = Hands {
            server: &self.server,
            device: &self.device,
            seat: self.mount.seat(),
            ended: &self.ended,
            crew: &crew,
            changing_max: self.threads_max.saturating_sub(FREE_THREADS).max(1),
            failed: Mutex::default(),
        };
        let (hands, stop) = (&hands, StopFlag::default());
        let result = thread::scope(|scope| {
            let ticker = self.ticker.as_ref().map(|(volume, every)| {
                let stop = &stop;
                spawn(scope, "nenrin-tick", move || tick(&**volume, *every, stop))
            });
            thread::scope(|scope| {
                hands.start_rings(scope, &self.queues);
                for receiver in receivers {
                    hands.start(scope, receiver);
                }
            });
            stop.set();
            if let Some(Ok(ticker)) = ticker {
                let _ = ticker.join();
            }
            hands.failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
        });
        self.ended.store(true, Ordering::Release);
        self.server.let_go();
        if result.is_ok() {
            // Somebody unmounted it, and may have mounted something else since.
            self.mount.forget();
        }
        result
    }
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<thread::ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().name(name.into()).spawn_scoped(scope, body)
}

/// So many threads serve what waits for the device alone, however much waits for room.
const FREE_THREADS: usize = 2;

/// What the serving threads share.
struct Hands<'a> {
    server: &'a Arc<Server>,
    device: &'a FuseDevice,
    seat: &'a Seat,
    ended: &'a AtomicBool,
    crew: &'a Crew,
    /// So many may wait for room at once.
    changing_max: usize,
    /// The first error with which one of them ended early.
    failed: Mutex<Option<io::Error>>,
}

impl Hands<'_> {
    /// Starts a thread that is counted as listening.
    fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, receiver: Box<dyn Receiver>) {
        let started = spawn(scope, "nenrin-fuse", move || self.serve(scope, receiver));
        if let Err(e) = started {
            self.crew.not_started();
            if self.crew.is_deserted() {
                self.fail(e);
            }
        }
    }

    fn serve<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, mut receiver: Box<dyn Receiver>) {
        let _ = sys::set_io_flusher();
        loop {
            match receiver.receive() {
                Ok(Some(Received { request, sink })) => {
                    self.call_another(scope);
                    // The panic hook has said what happened; the reply that was dropped on
                    // the way out has answered.
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        self.server.handle_or_leave(request, sink, self.changing_max)
                    }));
                }
                Ok(None) => {
                    self.ended.store(true, Ordering::Release);
                    return self.crew.end();
                }
                Err(e) => {
                    self.call_another(scope);
                    return self.fail(e);
                }
            }
            if !self.crew.goes_on(|| receiver.rest()) {
                return;
            }
        }
    }

    /// Starts what serves the rings.
    fn start_rings<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, queues: &[Arc<Queue>]) {
        if queues.is_empty() {
            return;
        }
        let leaders = Arc::new(Leaders::default());
        for _ in 0..nenrin_core::COMMITS_AT_ONCE {
            let calls = leaders.clone();
            let lead = move || {
                let _ = sys::set_io_flusher();
                while calls.wait() {
                    let _ = catch_unwind(AssertUnwindSafe(|| self.server.lead()));
                }
            };
            if let Err(e) = spawn(scope, "nenrin-lead", lead) {
                // A lead that nobody follows would keep all syncs waiting.
                leaders.end();
                return self.fail(e);
            }
        }
        let ends = Arc::new(Ends { leaders: leaders.clone() });
        for queue in queues {
            let desk = Arc::new(Desk::new(queue.clone(), self.server.clone(), leaders.clone()));
            let ends = ends.clone();
            let keep = move || {
                let start_worker = || self.start_worker(scope, &desk, &ends);
                self.serve_ring(|| desk.keep(&start_worker));
            };
            if let Err(e) = spawn(scope, "nenrin-keep", keep) {
                self.fail(e);
            }
        }
    }

    fn start_worker<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        desk: &Arc<Desk>,
        ends: &Arc<Ends>,
    ) -> bool {
        let (desk, ends) = (desk.clone(), ends.clone());
        let work = move || {
            self.serve_ring(|| desk.work());
            drop(ends);
        };
        spawn(scope, "nenrin-ring", work).is_ok()
    }

    fn serve_ring(&self, serve: impl FnOnce() -> io::Result<()>) {
        let _ = sys::set_io_flusher();
        if let Err(e) = serve() {
            self.fail(e);
        }
    }

    /// After taking a request: somebody else has to listen.
    fn call_another<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        if self.crew.stops_listening() {
            match self.device.receiver() {
                Ok(receiver) => self.start(scope, receiver),
                // Those that are there have to do.
                Err(_) => self.crew.not_started(),
            }
        }
    }

    /// Others would wait for requests that nobody can rely on.
    fn fail(&self, error: io::Error) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        let _ = self.seat.leave();
    }
}

/// Has the leaders end with the last thread that may call them.
struct Ends {
    leaders: Arc<Leaders>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.leaders.end();
    }
}

/// Tells the ticking thread to end.
#[derive(Default)]
struct StopFlag {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    fn set(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
    /// Waits for `time`, or for the end. True at the end.
    fn wait(&self, time: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(stopped, time, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn tick(volume: &dyn Volume, every: Duration, stop: &StopFlag) {
    let _ = sys::set_io_flusher();
    while !stop.wait(every) {
        // A volume that failed says so to everybody who writes, and by `failed`.
        let _ = catch_unwind(AssertUnwindSafe(|| volume.tick()));
    }
}

enum HandshakeError {
    Io(io::Error),
    Protocol(u32, u32),
}

impl HandshakeError {
    fn in_directory(self, directory: &Path) -> MountError {
        match self {
            Self::Io(e) => MountError::Io("the kernel does not talk to us", directory.to_owned(), e),
            Self::Protocol(major, minor) => MountError::Protocol(major, minor),
        }
    }
}

/// Answers INIT, which is the first request on every connection.
fn shake_hands(fd: OwnedFd, wishes: Wishes) -> Result<(FuseDevice, Agreed), HandshakeError> {
    let device = FuseDevice::new(fd, TRANSFER_BYTES_MAX);
    let mut receiver = device.first_receiver();
    loop {
        let received = receiver.receive().map_err(HandshakeError::Io)?;
        let Some(Received { request: received, sink }) = received else {
            return Err(HandshakeError::Io(io::ErrorKind::NotConnected.into()));
        };
        let Some(head) = request::header(received.front()) else {
            continue;
        };
        let reply = Reply::new(sink.clone(), head.unique);
        let Ok(request::Request { op: Op::Init(offer), .. }) =
            request::decode_apart(received.front(), received.data(), false)
        else {
            // Nothing may come before INIT; the reply that is dropped says so.
            continue;
        };
        match init::negotiate(&offer, wishes) {
            Answer::Again(out) => reply.value(&out).whatever(),
            Answer::Refuse => return Err(HandshakeError::Protocol(offer.major, offer.minor)),
            Answer::Serve(out, agreed) => {
                if !reply.value(&out).0 {
                    return Err(HandshakeError::Io(io::ErrorKind::NotConnected.into()));
                }
                drop(receiver);
                return Ok((device, agreed));
            }
        }
    }
}

/// What the kernel gives every FUSE mount little of, and root may raise: read-ahead, of which there are 128 KiB, and under
/// writeback the part of dirty memory that may be ours, which is a hundredth. The threads that write it out are marked as such
/// ([`sys::set_io_flusher`]), so that they never wait for what only they can end; it may be as much as with any file system. Where they
/// cannot be marked it stays little.
fn raise_limits(seat: &Seat, read_ahead_kib: u32, writeback: bool) {
    let Some(device) = seat.device() else {
        return;
    };
    let raise = |name: &str, wanted: u32| {
        let path = format!("/sys/class/bdi/{device}/{name}");
        let now = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u32>().ok());
        if now.is_some_and(|now| now < wanted) {
            // Without the right to, reading or writing is slower and nothing else.
            let _ = fs::write(&path, wanted.to_string());
        }
    };
    raise("read_ahead_kb", read_ahead_kib);
    // Tried on a thread of its own: the caller's is not ours to mark.
    if writeback && thread::spawn(sys::set_io_flusher).join().unwrap_or(false) {
        raise("max_ratio", 100);
    }
}
