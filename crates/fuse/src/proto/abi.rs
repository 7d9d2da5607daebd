//! The structures of the kernel's protocol, byte for byte as in
//! `include/uapi/linux/fuse.h`, in the machine's own byte order.
//!
//! Invariants
//! 1. Each structure's size is asserted against the kernel's.
//! 2. Every field is a plain integer, so that any bytes are a valid value and
//!    reading one never fails for another reason than too few bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! wire {
    ($($(#[$doc:meta])* struct $name:ident [$bytes:literal] { $($field:ident : $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

wire! {
    /// In front of every request.
    struct InHeader [40] {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        ext_len: u16, padding: u16,
    }
    /// In front of every reply and notification.
    struct OutHeader [16] { len: u32, error: i32, unique: u64 }

    struct InitIn [64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    struct InitOut [64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }

    struct Attr [88] {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atime_nanos: u32,
        mtime_nanos: u32, ctime_nanos: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    struct EntryOut [128] {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nanos: u32,
        attr_valid_nanos: u32, attr: Attr,
    }
    struct AttrOut [104] { attr_valid: u64, attr_valid_nanos: u32, dummy: u32, attr: Attr }

    struct ForgetIn [8] { nlookup: u64 }
    struct ForgetOne [16] { nodeid: u64, nlookup: u64 }
    struct BatchForgetIn [8] { count: u32, dummy: u32 }

    struct GetattrIn [16] { flags: u32, dummy: u32, fh: u64 }
    struct SetattrIn [88] {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64,
        ctime: i64, atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }

    struct StatxTime [16] { secs: i64, nanos: u32, reserved: i32 }
    struct Statx [256] {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime,
        btime: StatxTime, ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    struct StatxIn [24] { getattr_flags: u32, reserved: u32, fh: u64, flags: u32, mask: u32 }
    struct StatxOut [288] {
        attr_valid: u64, attr_valid_nanos: u32, flags: u32, spare: [u64; 2], stat: Statx,
    }

    struct MknodIn [16] { mode: u32, rdev: u32, umask: u32, padding: u32 }
    struct MkdirIn [8] { mode: u32, umask: u32 }
    struct RenameIn [8] { newdir: u64 }
    struct Rename2In [16] { newdir: u64, flags: u32, padding: u32 }
    struct LinkIn [8] { oldnodeid: u64 }

    struct OpenIn [8] { flags: u32, open_flags: u32 }
    struct CreateIn [16] { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    struct OpenOut [16] { fh: u64, open_flags: u32, backing_id: i32 }
    /// The reply to CREATE and TMPFILE.
    struct CreateOut [144] { entry: EntryOut, open: OpenOut }
    struct ReleaseIn [24] { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }

    struct ReadIn [40] {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    struct WriteIn [40] {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    struct WriteOut [8] { size: u32, padding: u32 }
    struct FsyncIn [16] { fh: u64, flags: u32, padding: u32 }
    struct FallocateIn [32] { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    struct LseekIn [24] { fh: u64, offset: u64, whence: u32, padding: u32 }
    struct LseekOut [8] { offset: u64 }
    struct CopyFileRangeIn [56] {
        fh_in: u64, offset_in: u64, nodeid_out: u64, fh_out: u64, offset_out: u64, len: u64,
        flags: u64,
    }
    /// The reply to COPY_FILE_RANGE_64; the older call answers [`WriteOut`].
    struct CopyFileRangeOut [8] { bytes: u64 }

    struct Kstatfs [80] {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }

    /// SETXATTR before SETXATTR_EXT was agreed on.
    struct SetxattrInShort [8] { size: u32, flags: u32 }
    struct SetxattrIn [16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    struct GetxattrIn [8] { size: u32, padding: u32 }
    struct GetxattrOut [8] { size: u32, padding: u32 }

    struct AccessIn [8] { mask: u32, padding: u32 }
    struct InterruptIn [8] { unique: u64 }

    /// In front of a name in the reply to READDIR.
    struct Dirent [24] { ino: u64, off: u64, namelen: u32, kind: u32 }
    /// The same for READDIRPLUS.
    struct DirentPlus [152] { entry: EntryOut, dirent: Dirent }

    struct NotifyInvalInode [24] { ino: u64, off: i64, len: i64 }

    /// What a command over io_uring is about.
    struct RingCommand [24] { flags: u64, commit_id: u64, queue: u16, padding: [u16; 3] }
    /// Of a request or reply over io_uring, what its other headers do not say.
    struct RingEntry [32] { flags: u64, commit_id: u64, payload_bytes: u32, padding: u32, reserved: u64 }
}

/// Bytes of a READ or WRITE request in front of the data.
pub const WRITE_PREFIX_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();
