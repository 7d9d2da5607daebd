//! System calls that the tests make on a mounted volume and that the standard
//! library does not. The only unsafe code of the tests.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn path(p: &Path) -> CString {
    CString::new(p.as_os_str().as_bytes()).unwrap()
}
fn check(result: i64) -> io::Result<u64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as u64) }
}

pub fn setxattr(p: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let name = CString::new(name).unwrap();
    // SAFETY: the pointers are to live strings and a buffer of the length given.
    let r = unsafe { libc::setxattr(path(p).as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) };
    check(r.into()).map(drop)
}

pub fn getxattr(p: &Path, name: &str) -> io::Result<Vec<u8>> {
    let name = CString::new(name).unwrap();
    let mut value = vec![0; 65536];
    // SAFETY: as above, and the buffer may be written.
    let r = unsafe { libc::getxattr(path(p).as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(check(r as i64)? as usize);
    Ok(value)
}

/// The size that getxattr(2) reports for a buffer of this length.
pub fn getxattr_sized(p: &Path, name: &str, bytes: usize) -> io::Result<u64> {
    let name = CString::new(name).unwrap();
    let mut value = vec![0u8; bytes];
    // SAFETY: as above.
    let r = unsafe { libc::getxattr(path(p).as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), bytes) };
    check(r as i64)
}

pub fn listxattr(p: &Path) -> io::Result<Vec<String>> {
    let mut list = vec![0u8; 65536];
    // SAFETY: as above.
    let r = unsafe { libc::listxattr(path(p).as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    list.truncate(check(r as i64)? as usize);
    let names = list.split(|&b| b == 0).filter(|n| !n.is_empty());
    Ok(names.map(|n| String::from_utf8_lossy(n).into_owned()).collect())
}

/// The size that listxattr(2) reports for a buffer of this length.
pub fn listxattr_sized(p: &Path, bytes: usize) -> io::Result<u64> {
    let mut list = vec![0u8; bytes];
    // SAFETY: as above.
    check(unsafe { libc::listxattr(path(p).as_ptr(), list.as_mut_ptr().cast(), bytes) } as i64)
}

pub fn removexattr(p: &Path, name: &str) -> io::Result<()> {
    let name = CString::new(name).unwrap();
    // SAFETY: as above.
    check(unsafe { libc::removexattr(path(p).as_ptr(), name.as_ptr()) }.into()).map(drop)
}

pub fn fallocate(f: &File, mode: i32, offset: i64, bytes: i64) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::fallocate(f.as_raw_fd(), mode, offset, bytes) }.into()).map(drop)
}

/// Has the kernel send what it keeps of a file, as its own threads do in time; what comes of that is not told.
pub fn write_out(f: &File) {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: no pointers.
    unsafe { libc::sync_file_range(f.as_raw_fd(), 0, 0, how) };
}

pub fn lseek(f: &File, offset: i64, whence: i32) -> io::Result<u64> {
    // SAFETY: no pointers.
    check(unsafe { libc::lseek(f.as_raw_fd(), offset, whence) })
}

pub fn copy_file_range(from: &File, mut off: i64, to: &File, mut to_off: i64, bytes: usize) -> io::Result<u64> {
    // SAFETY: the pointers are to two live offsets.
    let r = unsafe { libc::copy_file_range(from.as_raw_fd(), &raw mut off, to.as_raw_fd(), &raw mut to_off, bytes, 0) };
    check(r as i64)
}

pub fn renameat2(old: &Path, new: &Path, flags: u32) -> io::Result<()> {
    // SAFETY: the pointers are to live strings.
    let r = unsafe { libc::renameat2(libc::AT_FDCWD, path(old).as_ptr(), libc::AT_FDCWD, path(new).as_ptr(), flags) };
    check(r.into()).map(drop)
}

pub fn mknod(p: &Path, mode: u32, dev: u64) -> io::Result<()> {
    // SAFETY: the pointer is to a live string.
    check(unsafe { libc::mknod(path(p).as_ptr(), mode, dev) }.into()).map(drop)
}

pub fn truncate(p: &Path, bytes: i64) -> io::Result<()> {
    // SAFETY: the path is a string that ends with zero.
    check(unsafe { libc::truncate(path(p).as_ptr(), bytes) }.into()).map(drop)
}

pub fn open(p: &Path, flags: i32, mode: u32) -> io::Result<File> {
    // SAFETY: the pointer is to a live string, and the descriptor is new.
    unsafe {
        let fd = check(libc::open(path(p).as_ptr(), flags | libc::O_CLOEXEC, mode).into())?;
        Ok(File::from_raw_fd(fd as i32))
    }
}

/// Gives an O_TMPFILE file a name.
pub fn link_fd(f: &File, new: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", f.as_raw_fd())).unwrap();
    // SAFETY: the pointers are to live strings.
    let r = unsafe {
        libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, path(new).as_ptr(), libc::AT_SYMLINK_FOLLOW)
    };
    check(r.into()).map(drop)
}

/// Ends a FUSE mount: who waits for it gets an error.
pub fn abort(p: &Path) {
    for how in [libc::MNT_FORCE, libc::MNT_DETACH] {
        // SAFETY: the pointer is to a live string. The first says that it is busy, and ends it all the same.
        unsafe { libc::umount2(path(p).as_ptr(), how) };
    }
}

/// This thread, and those that it starts, run on the first processor that it may use.
pub fn stay_on_one_cpu() {
    // SAFETY: zero is a valid set; both calls are told how long it is, and the macros write within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let bytes = size_of::<libc::cpu_set_t>();
        check(libc::sched_getaffinity(0, bytes, &raw mut set).into()).unwrap();
        let first = (0..8 * bytes).find(|cpu| libc::CPU_ISSET(*cpu, &set)).unwrap();
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(first, &mut one);
        check(libc::sched_setaffinity(0, bytes, &raw const one).into()).unwrap();
    }
}

pub fn geteuid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

pub struct Statfs {
    pub blocks: u64,
    pub available: u64,
    pub block_bytes: u64,
    pub name_bytes_max: u64,
}

pub fn statfs(p: &Path) -> io::Result<Statfs> {
    // SAFETY: zero is a valid statfs, and both pointers are to live memory.
    let s = unsafe {
        let mut s: libc::statfs = std::mem::zeroed();
        check(libc::statfs(path(p).as_ptr(), &raw mut s).into())?;
        s
    };
    Ok(Statfs {
        blocks: s.f_blocks,
        available: s.f_bavail,
        block_bytes: s.f_bsize as u64,
        name_bytes_max: s.f_namelen as u64,
    })
}

/// Maps the first `bytes` of a file, shared, and lets `body` change them.
pub fn with_shared_mapping(f: &File, bytes: usize, body: impl FnOnce(&mut [u8])) -> io::Result<()> {
    // SAFETY: the mapping is ours, has the length given, and is used only while
    // it lasts; nobody else maps the file.
    unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), bytes, prot, libc::MAP_SHARED, f.as_raw_fd(), 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        body(std::slice::from_raw_parts_mut(at.cast(), bytes));
        check(libc::msync(at, bytes, libc::MS_SYNC).into())?;
        check(libc::munmap(at, bytes).into()).map(drop)
    }
}

/// A file handle: it outlives the mount, as one of NFS does.
#[repr(C)]
pub struct Handle {
    bytes: u32,
    kind: i32,
    id: [u8; 128],
}

pub fn handle(p: &Path) -> io::Result<Handle> {
    let mut handle = Handle { bytes: 128, kind: 0, id: [0; 128] };
    let mut mount = 0i32;
    let (at, path, to) = (i64::from(libc::AT_FDCWD), path(p), &raw mut handle);
    // SAFETY: the pointers are to a live string, to a handle with as much room as it says, and to a number.
    check(unsafe { libc::syscall(libc::SYS_name_to_handle_at, at, path.as_ptr(), to, &raw mut mount, 0) })?;
    Ok(handle)
}

/// What a handle leads to, on the file system on which `root` is.
pub fn open_handle(root: &File, handle: &Handle) -> io::Result<File> {
    // SAFETY: the pointer is to a live handle, and the descriptor is new.
    unsafe {
        let (root, handle) = (i64::from(root.as_raw_fd()), std::ptr::from_ref(handle));
        let fd = check(libc::syscall(libc::SYS_open_by_handle_at, root, handle, libc::O_RDONLY as i64))?;
        Ok(File::from_raw_fd(fd as i32))
    }
}

/// All names of a directory by readdir(3), with telldir(3) in front of each.
pub struct Dir(*mut libc::DIR);

impl Dir {
    pub fn open(p: &Path) -> io::Result<Self> {
        // SAFETY: the pointer is to a live string.
        let dir = unsafe { libc::opendir(path(p).as_ptr()) };
        if dir.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(dir)) }
    }
    pub fn next(&mut self) -> Option<(i64, Vec<u8>)> {
        // SAFETY: the stream is open; the entry lives until the next call, and
        // its name ends in zero.
        unsafe {
            let place = libc::telldir(self.0);
            let entry = libc::readdir(self.0);
            if entry.is_null() {
                return None;
            }
            let name = std::ffi::CStr::from_ptr((*entry).d_name.as_ptr());
            Some((place, name.to_bytes().to_vec()))
        }
    }
    pub fn seek(&mut self, place: i64) {
        // SAFETY: the stream is open, and the place is one of its own.
        unsafe { libc::seekdir(self.0, place) }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // SAFETY: the stream is open and not used again.
        unsafe { libc::closedir(self.0) };
    }
}

/// Runs `body` in a thread of its own under another user and group, with these
/// supplementary groups. The calls are made raw, since libc's would change the
/// whole process.
pub fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the pointer is to as many groups as the count says; the
            // others take no pointers. Only this thread changes.
            unsafe {
                let set = |n, a: u64, b: u64, c: u64| assert_eq!(libc::syscall(n, a, b, c), 0);
                set(libc::SYS_setgroups, groups.len() as u64, groups.as_ptr() as u64, 0);
                set(libc::SYS_setresgid, gid.into(), gid.into(), gid.into());
                set(libc::SYS_setresuid, uid.into(), uid.into(), uid.into());
            }
            body()
        });
        match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

pub struct Btime(pub i64);

/// The time of creation, by statx(2).
pub fn btime(p: &Path) -> io::Result<Option<Btime>> {
    // SAFETY: zero is a valid statx, and both pointers are to live memory.
    unsafe {
        let mut s: libc::statx = std::mem::zeroed();
        let r = libc::statx(libc::AT_FDCWD, path(p).as_ptr(), 0, libc::STATX_BTIME, &raw mut s);
        check(r.into())?;
        Ok((s.stx_mask & libc::STATX_BTIME != 0).then_some(Btime(s.stx_btime.tv_sec)))
    }
}
