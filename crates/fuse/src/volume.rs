//! What the front end needs of a volume: the library's calls, as a trait, so
//! that tests can put something small behind a real mount.

use nenrin_core::{
    Accepted, AlignedBuf, AllocateMode, At, Attr, DirEntry, Done, Fs, Joined, NewInode, ReadBytes, RenameMode, Result,
    Seek, SetAttr, Usage, Writer, XattrMode, Xattrs,
};
use nenrin_format::{Cno, Ino};

/// The calls of `nenrin_core::Fs` that requests of the kernel turn into. Their
/// meaning, shapes and errors are the library's (docs/decisions/0001-core-api.md).
#[expect(missing_docs, reason = "described once, in the library")]
#[expect(clippy::missing_errors_doc, reason = "described once, in the library")]
pub trait Volume: Send + Sync {
    fn lookup(&self, at: At, parent: Ino, name: &[u8]) -> Result<Attr>;
    fn getattr(&self, at: At, ino: Ino) -> Result<Attr>;
    fn readlink(&self, at: At, ino: Ino) -> Result<Vec<u8>>;
    fn read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<ReadBytes>;
    fn readdir(&self, at: At, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()>;
    fn getxattr(&self, at: At, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    fn each_xattr(&self, at: At, ino: Ino, each: &mut dyn FnMut(&[u8]) -> bool) -> Result<()>;
    fn seek(&self, at: At, ino: Ino, offset: u64, what: Seek) -> Result<u64>;

    fn create_with(&self, parent: Ino, name: &[u8], new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr>;
    fn tmpfile_with(&self, new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr>;
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()>;
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()>;
    fn rename(&self, from: Ino, old: &[u8], to: Ino, new: &[u8], mode: RenameMode) -> Result<()>;
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr>;
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
    /// As `setxattr`, with permission bits to set in the same step.
    fn setxattr_with_mode(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        permissions: Option<u32>,
    ) -> Result<()>;
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    fn retain(&self, ino: Ino);
    fn release(&self, ino: Ino);
    fn accept(&self, ino: Ino, offset: u64, data: &[u8], writer: Writer) -> Result<Accepted>;
    /// As `accept`, of bytes that are given away.
    fn accept_buf(&self, ino: Ino, offset: u64, data: AlignedBuf, writer: Writer) -> Result<Accepted> {
        self.accept(ino, offset, &data, writer)
    }
    fn tell_later(&self, _ino: Ino, done: Done) {
        done(Ok(()));
    }
    fn note_lost_write(&self, _ino: Ino, _bytes: u64) {}
    fn allocate(&self, writer: Writer, ino: Ino, mode: AllocateMode, offset: u64, bytes: u64) -> Result<()>;
    #[expect(clippy::too_many_arguments, reason = "as copy_file_range(2)")]
    fn copy_range(
        &self,
        at: At,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        bytes: u64,
        writer: Writer,
    ) -> Result<u64>;
    fn note_closed(&self, ino: Ino) -> Result<()>;
    fn write_closed(&self, ino: Ino) -> Result<()>;

    fn fsync(&self, ino: Ino, done: Done);
    fn fsync_once(&self, ino: Ino, done: Done) -> bool {
        self.fsync(ino, done);
        false
    }
    fn join_sync(&self, _ino: Ino, done: Done) -> Joined {
        Joined::Waits(done)
    }
    fn lead_announced(&self) {}
    fn syncs_at_once(&self, _ino: Ino) -> bool {
        false
    }
    fn takes_at_once(&self, _ino: Ino, _offset: u64, _bytes: usize) -> bool {
        false
    }
    fn sync_all(&self) -> Result<()>;

    /// A checkpoint is looked into, and no more.
    fn hold_checkpoint(&self, cno: Cno) -> Result<()>;
    fn let_checkpoint_go(&self, cno: Cno);
    fn last_seen(&self, ino: Ino) -> Result<Option<Cno>>;

    /// The content of an inode was read: its access time may have to move.
    fn accessed(&self, ino: Ino) -> Result<()>;
    fn usage(&self) -> Usage;
    fn tick(&self) -> Result<()>;
}

impl Volume for Fs {
    fn lookup(&self, at: At, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.noting(at, parent, Self::lookup(self, at, parent, name))
    }
    fn getattr(&self, at: At, ino: Ino) -> Result<Attr> {
        self.noting(at, ino, Self::getattr(self, at, ino))
    }
    fn readlink(&self, at: At, ino: Ino) -> Result<Vec<u8>> {
        self.noting(at, ino, Self::readlink(self, at, ino))
    }
    fn read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<ReadBytes> {
        Self::read_bytes(self, at, ino, offset, bytes)
    }
    fn readdir(&self, at: At, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.noting(at, dir, Self::readdir(self, at, dir, cookie, each))
    }
    fn getxattr(&self, at: At, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.noting(at, ino, Self::getxattr(self, at, ino, name))
    }
    fn each_xattr(&self, at: At, ino: Ino, each: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        self.noting(at, ino, Self::each_xattr(self, at, ino, each))
    }
    fn seek(&self, at: At, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        Self::seek(self, at, ino, offset, what)
    }
    fn create_with(&self, parent: Ino, name: &[u8], new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr> {
        Self::create_with(self, parent, name, new, xattrs)
    }
    fn tmpfile_with(&self, new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr> {
        Self::tmpfile_with(self, new, xattrs)
    }
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        Self::link(self, ino, parent, name)
    }
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        Self::unlink(self, parent, name)
    }
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        Self::rmdir(self, parent, name)
    }
    fn rename(&self, from: Ino, old: &[u8], to: Ino, new: &[u8], mode: RenameMode) -> Result<()> {
        Self::rename(self, from, old, to, new, mode)
    }
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        Self::setattr(self, ino, set)
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        Self::setxattr(self, ino, name, value, mode)
    }
    fn setxattr_with_mode(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        permissions: Option<u32>,
    ) -> Result<()> {
        Self::setxattr_with_mode(self, ino, name, value, mode, permissions)
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        Self::removexattr(self, ino, name)
    }
    fn retain(&self, ino: Ino) {
        Self::retain(self, ino);
    }
    fn release(&self, ino: Ino) {
        Self::release(self, ino);
    }
    fn accept(&self, ino: Ino, offset: u64, data: &[u8], writer: Writer) -> Result<Accepted> {
        Self::accept(self, ino, offset, data, writer)
    }
    fn accept_buf(&self, ino: Ino, offset: u64, data: AlignedBuf, writer: Writer) -> Result<Accepted> {
        Self::accept_buf(self, ino, offset, data, writer)
    }
    fn tell_later(&self, ino: Ino, done: Done) {
        Self::tell_later(self, ino, done);
    }
    fn allocate(&self, writer: Writer, ino: Ino, mode: AllocateMode, offset: u64, bytes: u64) -> Result<()> {
        Self::allocate_for(self, writer, ino, mode, offset, bytes)
    }
    fn copy_range(
        &self,
        at: At,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        bytes: u64,
        writer: Writer,
    ) -> Result<u64> {
        Self::copy_range_at(self, at, from, from_offset, to, to_offset, bytes, writer)
    }
    fn note_closed(&self, ino: Ino) -> Result<()> {
        Self::note_closed(self, ino)
    }
    fn write_closed(&self, ino: Ino) -> Result<()> {
        Self::write_closed(self, ino)
    }
    fn fsync(&self, ino: Ino, done: Done) {
        Self::fsync(self, ino, done);
    }
    fn fsync_once(&self, ino: Ino, done: Done) -> bool {
        Self::fsync_once(self, ino, done)
    }
    fn join_sync(&self, ino: Ino, done: Done) -> Joined {
        Self::join_sync(self, ino, done)
    }
    fn note_lost_write(&self, ino: Ino, bytes: u64) {
        Self::note_lost_write(self, ino, bytes);
    }
    fn lead_announced(&self) {
        Self::lead_announced(self);
    }
    fn syncs_at_once(&self, ino: Ino) -> bool {
        Self::syncs_at_once(self, ino)
    }
    fn takes_at_once(&self, ino: Ino, offset: u64, bytes: usize) -> bool {
        Self::takes_at_once(self, ino, offset, bytes)
    }
    fn sync_all(&self) -> Result<()> {
        Self::sync_all(self)
    }
    fn hold_checkpoint(&self, cno: Cno) -> Result<()> {
        Self::hold_checkpoint(self, cno)
    }
    fn let_checkpoint_go(&self, cno: Cno) {
        Self::let_checkpoint_go(self, cno);
    }
    fn last_seen(&self, ino: Ino) -> Result<Option<Cno>> {
        Self::last_seen(self, ino)
    }
    fn usage(&self) -> Usage {
        Self::usage(self)
    }
    fn accessed(&self, ino: Ino) -> Result<()> {
        Self::accessed(self, ino)
    }
    fn tick(&self) -> Result<()> {
        Self::tick(self)
    }
}
