//! The system calls that the standard library has no safe call for. With
//! `ring::sys` the only `unsafe` of this crate.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `_IOR(229, 0, uint32_t)`: joins a newly opened /dev/fuse to a connection.
const FUSE_DEV_IOC_CLONE: libc::Ioctl = 0x8004_e500;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// mount(2).
pub fn mount(source: &CStr, target: &CStr, fstype: &CStr, flags: libc::c_ulong, data: &CStr) -> io::Result<()> {
    // SAFETY: all four pointers are to strings that end in zero and outlive the
    // call; FUSE reads `data` as such a string.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), fstype.as_ptr(), flags, data.as_ptr().cast()) })
        .map(drop)
}

/// umount2(2).
pub fn umount(target: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the pointer is to a string that ends in zero and outlives the call.
    check(unsafe { libc::umount2(target.as_ptr(), flags) }).map(drop)
}

/// statfs(2), for whether it succeeds.
pub fn statfs(path: &CStr) -> io::Result<()> {
    // SAFETY: statfs is plain data for which zero is valid; both pointers are to
    // live memory of the right kind.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        check(libc::statfs(path.as_ptr(), &raw mut stat)).map(drop)
    }
}

/// Makes `fresh`, a newly opened /dev/fuse, another queue of `mounted`'s connection.
pub fn clone_device(fresh: BorrowedFd<'_>, mounted: BorrowedFd<'_>) -> io::Result<()> {
    let from = mounted.as_raw_fd() as u32;
    // SAFETY: the request reads one u32 from the pointer, which is to a live one.
    check(unsafe { libc::ioctl(fresh.as_raw_fd(), FUSE_DEV_IOC_CLONE, &raw const from) }).map(drop)
}

/// Receives one file descriptor over a Unix socket, as fusermount3 sends it.
/// `None` when the other side closed without sending one.
pub fn receive_fd(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    const FD_BYTES: u32 = size_of::<libc::c_int>() as u32;
    let mut byte = [0u8; 1];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    // Room for one descriptor, in u64 so that it is aligned as a cmsghdr must be.
    let mut control = [0u64; 4];
    // SAFETY: msghdr is plain data for which zero is valid; its pointers are to
    // live buffers with the lengths given; CMSG_* stay within `control`, which
    // recvmsg filled, and the descriptor is new and owned by nobody else.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        loop {
            let got = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
            if got >= 0 {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        if head.is_null()
            || (*head).cmsg_level != libc::SOL_SOCKET
            || (*head).cmsg_type != libc::SCM_RIGHTS
            || (*head).cmsg_len as usize != libc::CMSG_LEN(FD_BYTES) as usize
        {
            return Ok(None);
        }
        let fd = libc::CMSG_DATA(head).cast::<libc::c_int>().read_unaligned();
        Ok(Some(OwnedFd::from_raw_fd(fd)))
    }
}

/// Tells the kernel that this thread serves writeback, so that it never waits
/// for its own file system to free memory. False without the right to; then nothing changes.
pub fn set_io_flusher() -> bool {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    const NONE: libc::c_ulong = 0;
    const ON: libc::c_ulong = 1;
    // SAFETY: PR_SET_IO_FLUSHER takes integers only.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, ON, NONE, NONE, NONE) == 0 }
}

/// Bytes in a page of memory.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf takes no pointer.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Whether the real user of this process may write to something.
pub fn may_write(path: &CStr) -> io::Result<()> {
    // SAFETY: the pointer is to a string that ends in zero and outlives the call.
    check(unsafe { libc::access(path.as_ptr(), libc::W_OK) }).map(drop)
}

/// Real user and group of this process, and whether it acts as root.
pub fn user() -> (u32, u32, bool) {
    // SAFETY: these calls take nothing and cannot fail.
    unsafe { (libc::getuid(), libc::getgid(), libc::geteuid() == 0) }
}
