//! System calls that the standard library has no safe call for, and the only
//! `unsafe` of this crate.
#![allow(unsafe_code)] // the one place of this crate that calls the system directly

use rustix::fs::FlockOperation;
use rustix::io::retry_on_intr;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Connects to a socket, unless that would take waiting: at one who is stopped connections pile up.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when somebody listens who has too many waiting; what the kernel says.
pub fn connect_now(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Waits until nobody else has this lock on a directory, and takes it for as long as the file is open.
///
/// # Errors
/// What the kernel says.
pub fn lock_directory(path: &Path) -> io::Result<File> {
    let directory = File::open(path)?;
    retry_on_intr(|| rustix::fs::flock(&directory, FlockOperation::LockExclusive))?;
    Ok(directory)
}

/// The effective user of this process.
pub fn euid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether standard output is a pipe that nobody reads any more.
pub fn nobody_reads_output() -> bool {
    let mut output = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: the pointer is to one live value.
    unsafe { libc::poll(&raw mut output, 1, 0) == 1 && output.revents & libc::POLLERR != 0 }
}

/// Leaves the caller's session, so that its terminal's end is not ours.
pub fn new_session() {
    // SAFETY: takes nothing. It fails for a group leader, which needs no new session then.
    unsafe { libc::setsid() };
}

/// Closes every descriptor but the standard streams. A daemon must not keep
/// what its caller happened to have open. Call it before anything is opened.
pub fn close_inherited() {
    // SAFETY: takes integers. At the start of the program nothing of ours is
    // open; an old kernel refuses the call and nothing happens.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

/// The user at the other end of a Unix socket.
pub fn peer(socket: &impl AsFd) -> io::Result<Peer> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a live ucred and its size.
    check(unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut bytes,
        )
    })?;
    Ok(Peer { uid: cred.uid, pid: cred.pid })
}

/// The process at the other end of a socket, when it began to listen.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its number.
    pub pid: i32,
}

/// Whether the other end of a socket has closed it.
pub fn has_hung_up(socket: &impl AsFd) -> bool {
    hangs_up_within(socket, Duration::ZERO)
}

/// The same, and waits so long for that; a signal may end it early.
pub fn hangs_up_within(socket: &impl AsFd, time: Duration) -> bool {
    let gone = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let mut fd = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    let millis = i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: the pointer is to one live pollfd.
    unsafe { libc::poll(&raw mut fd, 1, millis) > 0 && fd.revents & gone != 0 }
}

/// Broken-down local time of a moment, and the offset from UTC in seconds.
pub struct Local {
    /// Year, month from 1, day from 1.
    pub date: (i64, u32, u32),
    /// Hour, minute, second.
    pub time: (u32, u32, u32),
    /// Seconds east of UTC.
    pub offset: i64,
}

/// What clocks here show at `secs` since 1970.
pub fn local_time(secs: i64) -> Local {
    // SAFETY: tm is plain data for which zero is valid.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    let time = secs as libc::time_t;
    // SAFETY: both pointers are to live values; the result is not used.
    unsafe { libc::localtime_r(&raw const time, &raw mut tm) };
    Local {
        date: (i64::from(tm.tm_year) + 1900, tm.tm_mon as u32 + 1, tm.tm_mday as u32),
        time: (tm.tm_hour as u32, tm.tm_min as u32, tm.tm_sec as u32),
        offset: tm.tm_gmtoff as i64,
    }
}

/// Blocks the signals that end a daemon, for this thread and those it starts.
/// Call it before any other thread exists, but for those of [`spawned_deaf`].
pub fn block_ending_signals() -> io::Result<()> {
    let set = ending_signals();
    // SAFETY: the pointer is to a live set; the old one is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e)),
    }
}

/// Takes that back for this thread: one that has come ends the process.
pub fn allow_ending_signals() -> io::Result<()> {
    let set = ending_signals();
    // SAFETY: the pointer is to a live set; the old one is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e)),
    }
}

/// Signals that mean nothing to a daemon, and whose default is to end it, are ignored: a volume is not lost to a timer that it
/// inherited, nor to a limit of its caller.
pub fn ignore_stray_signals() {
    for signal in [
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGXCPU,
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
    ] {
        // SAFETY: SIG_IGN is a valid disposition, and nothing else of this process handles these.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// A write beyond the limit on the length of files fails, and is told, rather than ending this program in the middle of its work.
pub fn fail_at_file_size_limit() {
    // SAFETY: SIG_IGN is a valid disposition, and nothing else of this process handles it.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Raises the limit on the length of files that this process writes as far as it may be. The limit that is left, in bytes.
pub fn raise_file_size_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live value.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Root may have all of it; who may not, as much as his hard limit says.
    for most in [libc::RLIM_INFINITY, limit.rlim_max] {
        let raised = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the pointer is to a live value.
        if unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const raised) } == 0 {
            return Ok(most);
        }
    }
    Ok(limit.rlim_cur)
}

/// Starts a thread that gets none of these signals: who blocks them later would not keep it from ending the process by one.
pub fn spawned_deaf<T>(spawn: impl FnOnce() -> T) -> T {
    let set = ending_signals();
    // SAFETY: sigset_t is plain data; pthread_sigmask writes the whole of it.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live sets.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) } == 0;
    let spawned = spawn();
    if blocked {
        // SAFETY: the pointer is to a live set; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    }
    spawned
}

/// Waits for one of the blocked signals.
pub fn wait_for_ending_signal() -> i32 {
    let set = ending_signals();
    let mut signal = 0;
    // SAFETY: both pointers are to live values.
    while unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {}
    signal
}

/// Whether one of the blocked signals has come and waits.
pub fn ending_signal_waits() -> bool {
    // SAFETY: sigset_t is plain data, and sigpending makes it valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut set) == 0
            && ENDING_SIGNALS.iter().any(|signal| libc::sigismember(&raw const set, *signal) == 1)
    }
}

/// The signals that end a daemon, or a command that must leave nothing half done.
const ENDING_SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Whether whoever started this process wants it to go on in spite of such a signal, as nohup(1) does and a shell for what runs in the
/// background. A blocked one is pending all the same, and would be taken for a wish. SIGTERM is never ignored.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: sigaction is plain data for which zero is valid; the pointer is to a live value, and nothing is set.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let is_known = libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0;
        is_known && signal != libc::SIGTERM && action.sa_sigaction == libc::SIG_IGN
    }
}

fn ending_signals() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; sigemptyset makes it valid, sigaddset keeps it so.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in ENDING_SIGNALS.into_iter().filter(|signal| !is_ignored(*signal)) {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Tells the kernel that this thread, and those it starts, serve writeback, so
/// that they never wait for their own file system to free memory. Without the
/// right to, nothing changes.
pub fn set_io_flusher() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: PR_SET_IO_FLUSHER takes integers only.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Has what is allocated from now on lie close together: in one heap for all threads, since of several each keeps what was freed in
/// it, and in no larger pages than it needs.
pub fn save_memory() {
    // SAFETY: M_ARENA_MAX takes an integer, and says how many heaps there may be from then on.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
    // SAFETY: PR_SET_THP_DISABLE takes integers only.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// Makes `target` (a standard stream) refer to what `file` does.
pub fn redirect(file: &File, target: i32) -> io::Result<()> {
    // SAFETY: dup2 takes integers; `file` keeps its own descriptor.
    check(unsafe { libc::dup2(file.as_raw_fd(), target) }).map(drop)
}

/// Asks a copy-on-write host to overwrite this (still empty) file in place. The
/// answer says whether it will.
pub fn set_nocow(file: &File) -> bool {
    const FS_IOC_GETFLAGS: libc::Ioctl = 0x8008_6601;
    const FS_IOC_SETFLAGS: libc::Ioctl = 0x4008_6602;
    const FS_NOCOW_FL: libc::c_long = 0x0080_0000;
    let mut flags: libc::c_long = 0;
    // SAFETY: both requests take a pointer to a long, which is live.
    unsafe {
        if libc::ioctl(file.as_raw_fd(), FS_IOC_GETFLAGS, &raw mut flags) != 0 {
            return false;
        }
        flags |= FS_NOCOW_FL;
        libc::ioctl(file.as_raw_fd(), FS_IOC_SETFLAGS, &raw const flags) == 0
    }
}

/// Reserves `bytes` of the host's space for a file, and makes it that long where it is shorter; never shorter.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let bytes = libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    loop {
        // SAFETY: fallocate takes integers only.
        match check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return lengthen(file, bytes as u64),
            other => return other.map(drop),
        }
    }
}

/// Makes a file that long where it is shorter.
fn lengthen(file: &File, bytes: u64) -> io::Result<()> {
    if file.metadata()?.len() < bytes { file.set_len(bytes) } else { Ok(()) }
}

/// Whether a block device refuses writes.
pub fn block_device_is_read_only(device: &File) -> bool {
    const BLKROGET: libc::Ioctl = 0x125e;
    let mut answer: libc::c_int = 0;
    // SAFETY: the request writes one int to the pointer, which is live.
    unsafe { libc::ioctl(device.as_raw_fd(), BLKROGET, &raw mut answer) == 0 && answer != 0 }
}

/// Changes flags of a mount and nothing else: mount(2) with MS_REMOUNT.
pub fn remount(directory: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let target = c_path(directory)?;
    let nothing: &CStr = c"";
    // SAFETY: all pointers are to strings that end in zero and outlive the call.
    check(unsafe {
        libc::mount(
            nothing.as_ptr(),
            target.as_ptr(),
            nothing.as_ptr(),
            flags | libc::MS_REMOUNT,
            nothing.as_ptr().cast(),
        )
    })
    .map(drop)
}

/// Takes a mount out of the name space at once.
pub fn unmount_lazily(directory: &Path) -> io::Result<()> {
    let target = c_path(directory)?;
    // SAFETY: the pointer is to a string that ends in zero and outlives the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) }).map(drop)
}

/// Whether a file system answers at `path`; a dead mount says ENOTCONN, or ECONNABORTED to who was asking.
pub fn statfs(path: &Path) -> io::Result<()> {
    let target = c_path(path)?;
    // SAFETY: statfs is plain data for which zero is valid; both pointers are live.
    unsafe {
        let mut out: libc::statfs = std::mem::zeroed();
        check(libc::statfs(target.as_ptr(), &raw mut out)).map(drop)
    }
}

/// Asks a process to end.
pub fn terminate(pid: u32) {
    // SAFETY: kill takes integers. The caller has not waited for this child yet, so the number is still its own.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGTERM) };
}

/// Nobody can connect to this any more, and who waits for a connection is told.
pub fn shut_down(listener: &impl AsRawFd) {
    // SAFETY: shutdown takes integers.
    unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Has a child get the signals that are blocked here, and the one that is ignored.
pub fn unblock_in_child(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let unblock = || {
        // SAFETY: SIG_DFL is a valid disposition.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
        allow_ending_signals()
    };
    // SAFETY: between fork and exec only signal and pthread_sigmask are called, which may be called there.
    unsafe { command.pre_exec(unblock) };
}

/// Random bytes.
pub fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A random number.
pub fn random_number() -> io::Result<u64> {
    random().map(|bytes| u128::from_le_bytes(bytes) as u64)
}

/// The name of this host.
pub fn node() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "a host without a name".to_owned() } else { name.to_owned() }
}
