//! Numbers of the kernel's protocol: versions, flags, and what they are for.
//! Only those that the front end looks at or sets are here.

/// The only major version there is.
pub const MAJOR: u32 = 7;
/// Newest minor version this front end speaks (Linux 6.18).
pub const MINOR: u32 = 45;
/// Oldest minor version it works with (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// The node id of the root, and the inode number of a volume's root.
pub const ROOT_NODE: u64 = 1;

/// Flags of INIT. Those above bit 31 travel in `flags2`, under [`init::INIT_EXT`].
pub mod init {
    /// Several reads of one file at a time.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// LOOKUP of "." and "..", for file handles that outlive the kernel's memory of an inode.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// WRITE of more than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The umask is ours to apply, since a default ACL replaces it.
    pub const DONT_MASK: u64 = 1 << 6;
    /// READDIRPLUS exists.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// The kernel chooses between READDIR and READDIRPLUS.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Direct I/O in several requests at a time.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The kernel keeps written pages and sends them later.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// Lookups and listings of one directory at a time.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel checks ACLs that we store.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// `max_pages` counts.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The kernel keeps targets of symbolic links.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// ENOSYS to OPENDIR means that it need not be asked again.
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// We clear set-id bits and capabilities at write, truncate and chown.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR carries flags.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` counts.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Shared mappings of files that are open for direct I/O.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests come over io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// GETATTR names a handle.
pub const GETATTR_FH: u32 = 1 << 0;

/// Which fields of a SETATTR count.
pub mod setattr {
    /// mode
    pub const MODE: u32 = 1 << 0;
    /// uid
    pub const UID: u32 = 1 << 1;
    /// gid
    pub const GID: u32 = 1 << 2;
    /// size
    pub const SIZE: u32 = 1 << 3;
    /// atime
    pub const ATIME: u32 = 1 << 4;
    /// mtime
    pub const MTIME: u32 = 1 << 5;
    /// fh: through an open file
    pub const FH: u32 = 1 << 6;
    /// atime, from our clock
    pub const ATIME_NOW: u32 = 1 << 7;
    /// mtime, from our clock
    pub const MTIME_NOW: u32 = 1 << 8;
    /// ctime
    pub const CTIME: u32 = 1 << 10;
    /// Also clear set-id bits and capabilities.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of the reply to OPEN.
pub mod fopen {
    /// What the kernel has cached of the file stays valid.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// close(2) sends no FLUSH.
    pub const NOFLUSH: u32 = 1 << 5;
}

/// Flags of OPEN and CREATE.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// WRITE comes out of the page cache; its owner and handle are guessed.
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE must clear set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// SETXATTR of the access ACL must clear the set-group-id bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// Notification: drop what is cached of an inode.
pub const NOTIFY_INVAL_INODE: i32 = 2;

macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Opcode { $($name = $number),* }
        impl Opcode {
            /// From the number in the header; `None` for one we do not know.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
            /// The name that messages use.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}
opcodes! {
    Lookup = 1, Forget = 2, Getattr = 3, Setattr = 4, Readlink = 5, Symlink = 6, Mknod = 8,
    Mkdir = 9, Unlink = 10, Rmdir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16,
    Statfs = 17, Release = 18, Fsync = 20, Setxattr = 21, Getxattr = 22, Listxattr = 23,
    Removexattr = 24, Flush = 25, Init = 26, Opendir = 27, Readdir = 28, Releasedir = 29,
    Fsyncdir = 30, Getlk = 31, Setlk = 32, Setlkw = 33, Access = 34, Create = 35, Interrupt = 36,
    Bmap = 37, Destroy = 38, Ioctl = 39, Poll = 40, NotifyReply = 41, BatchForget = 42,
    Fallocate = 43, Readdirplus = 44, Rename2 = 45, Lseek = 46, CopyFileRange = 47,
    SetupMapping = 48, RemoveMapping = 49, Syncfs = 50, Tmpfile = 51, Statx = 52,
    CopyFileRange64 = 53,
}
