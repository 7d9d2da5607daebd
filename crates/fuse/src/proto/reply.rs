//! From what the core says to the bytes of a reply.

use super::abi;
use nenrin_core::{Attr, FileKind, Usage};
use nenrin_format::{BLOCK_BYTES, Ino, Time};
use std::time::Duration;
use zerocopy::IntoBytes;

/// What st_blksize says, so that stdio and cp(1) write in big pieces.
const PREFERRED_IO_BYTES: u32 = 1 << 20;
/// STATX_BASIC_STATS and STATX_BTIME.
const STATX_MASK: u32 = 0x7ff | 0x800;

/// Attributes as the kernel wants them.
pub fn attr(a: &Attr) -> abi::Attr {
    abi::Attr {
        ino: a.ino.0,
        // The kernel takes an inode with an impossible size for broken.
        size: a.size.min(i64::MAX as u64),
        blocks: a.blocks_512,
        atime: a.atime.secs(),
        mtime: a.mtime.secs(),
        ctime: a.ctime.secs(),
        atime_nanos: a.atime.nanos(),
        mtime_nanos: a.mtime.nanos(),
        ctime_nanos: a.ctime.nanos(),
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

/// A directory that no volume stores, which everybody may look into. It was changed at `time`: the kernel keeps a
/// listing for as long as that stays.
pub fn directory_of_ours(ino: Ino, time: Time) -> Attr {
    Attr {
        ino,
        mode: FileKind::Directory.mode() | 0o555,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks_512: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
    }
}

/// The reply to GETATTR and SETATTR.
pub fn attr_out(a: &Attr, valid: Duration) -> abi::AttrOut {
    abi::AttrOut { attr_valid: valid.as_secs(), attr_valid_nanos: valid.subsec_nanos(), dummy: 0, attr: attr(a) }
}

/// The reply to LOOKUP and all that make a name. Of a node whose id may come to stand for another the generation tells them apart.
pub fn entry(a: &Attr, generation: u32, valid: Duration) -> abi::EntryOut {
    abi::EntryOut { nodeid: a.ino.0, generation: generation.into(), attr: attr(a), ..no_entry(valid) }
}

/// The reply to LOOKUP of a name that is not there, which the kernel remembers.
pub fn no_entry(valid: Duration) -> abi::EntryOut {
    abi::EntryOut {
        entry_valid: valid.as_secs(),
        attr_valid: valid.as_secs(),
        entry_valid_nanos: valid.subsec_nanos(),
        attr_valid_nanos: valid.subsec_nanos(),
        ..Default::default()
    }
}

/// The reply to STATX.
pub fn statx(a: &Attr, valid: Duration) -> abi::StatxOut {
    let time = |t: nenrin_format::Time| abi::StatxTime { secs: t.secs(), nanos: t.nanos(), reserved: 0 };
    let basic = attr(a);
    abi::StatxOut {
        attr_valid: valid.as_secs(),
        attr_valid_nanos: valid.subsec_nanos(),
        flags: 0,
        spare: [0; 2],
        stat: abi::Statx {
            mask: STATX_MASK,
            blksize: basic.blksize,
            nlink: basic.nlink,
            uid: basic.uid,
            gid: basic.gid,
            // The type and permission bits of st_mode are 16.
            mode: (basic.mode & 0xffff) as u16,
            ino: basic.ino,
            size: basic.size,
            blocks: basic.blocks,
            atime: time(a.atime),
            btime: time(a.btime),
            ctime: time(a.ctime),
            mtime: time(a.mtime),
            rdev_major: (basic.rdev >> 8) & 0xfff,
            rdev_minor: (basic.rdev & 0xff) | ((basic.rdev >> 12) & 0xf_ff00),
            ..Default::default()
        },
    }
}

/// The reply to STATFS. What history holds and may be shed counts as free.
pub fn statfs(u: &Usage) -> abi::Kstatfs {
    abi::Kstatfs {
        blocks: u.total_blocks,
        bfree: u.available_blocks,
        bavail: u.available_blocks,
        files: u.inodes.saturating_add(u.available_blocks),
        ffree: u.available_blocks,
        bsize: BLOCK_BYTES as u32,
        namelen: nenrin_format::NAME_BYTES_MAX as u32,
        frsize: BLOCK_BYTES as u32,
        ..Default::default()
    }
}

/// The reply to READDIR and READDIRPLUS, which fills up to what was asked for.
pub struct Listing {
    bytes: Vec<u8>,
    limit: usize,
}

impl Listing {
    /// A listing of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::with_capacity(limit), limit }
    }
    /// Bytes that a name takes in a listing.
    pub fn bytes_for(name: &[u8], plus: bool) -> usize {
        let prefix = if plus { size_of::<abi::DirentPlus>() } else { size_of::<abi::Dirent>() };
        (prefix + name.len()).next_multiple_of(8)
    }
    /// Adds a name; false when it does not fit.
    pub fn push(&mut self, ino: u64, cookie: u64, kind: FileKind, name: &[u8]) -> bool {
        self.append(&[dirent(ino, cookie, kind, name).as_bytes(), name])
    }
    /// Adds a name with attributes; false when it does not fit.
    pub fn push_plus(&mut self, entry: abi::EntryOut, ino: u64, cookie: u64, kind: FileKind, name: &[u8]) -> bool {
        let plus = abi::DirentPlus { entry, dirent: dirent(ino, cookie, kind, name) };
        self.append(&[plus.as_bytes(), name])
    }
    fn append(&mut self, parts: &[&[u8]]) -> bool {
        let end = self.bytes.len() + parts.iter().map(|p| p.len()).sum::<usize>();
        let padded = end.next_multiple_of(8);
        if padded > self.limit {
            return false;
        }
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.resize(padded, 0);
        true
    }
    /// The bytes of the reply.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

fn dirent(ino: u64, cookie: u64, kind: FileKind, name: &[u8]) -> abi::Dirent {
    abi::Dirent { ino, off: cookie, namelen: name.len() as u32, kind: kind.mode() >> 12 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_aligned_and_ends_where_it_must() {
        let mut listing = Listing::new(80);
        assert!(listing.push(2, 1, FileKind::Directory, b".."));
        assert!(listing.push(3, 2, FileKind::Regular, b"12345678"));
        assert!(!listing.push(3, 3, FileKind::Regular, b"123456789"));
        let bytes = listing.into_bytes();
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes.len(), Listing::bytes_for(b"..", false) + Listing::bytes_for(b"12345678", false));
        assert_eq!(bytes[20], 4, "DT_DIR");
        assert_eq!(&bytes[56..], b"12345678");
    }

    #[test]
    fn device_numbers_are_taken_apart() {
        let a = Attr {
            ino: nenrin_format::Ino(9),
            mode: 0o020_644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: (259 << 8) | 3 | (1 << 20),
            size: 0,
            blocks_512: 0,
            atime: Default::default(),
            mtime: Default::default(),
            ctime: Default::default(),
            btime: Default::default(),
        };
        let stat = statx(&a, Duration::ZERO).stat;
        assert_eq!((stat.rdev_major, stat.rdev_minor), (259, 259));
    }
}
