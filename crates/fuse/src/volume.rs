//! What the front end needs of a volume: the library's calls, as a trait, so
//! that tests can put something small behind a real mount.

use nenrin_core::{
    AllocateMode, At, Attr, DirEntry, NewInode, RenameMode, Result, Seek, SetAttr, Usage, XattrMode,
};
use nenrin_format::Ino;

/// Called once with the outcome of a sync.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// The calls of `nenrin_core::Fs` that requests of the kernel turn into. Their
/// meaning, shapes and errors are the library's (docs/decisions/0001-core-api.md).
#[expect(missing_docs, reason = "described once, in the library")]
#[expect(clippy::missing_errors_doc, reason = "described once, in the library")]
pub trait Volume: Send + Sync {
    fn lookup(&self, at: At, parent: Ino, name: &[u8]) -> Result<Attr>;
    fn getattr(&self, at: At, ino: Ino) -> Result<Attr>;
    fn readlink(&self, at: At, ino: Ino) -> Result<Vec<u8>>;
    fn read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<Vec<u8>>;
    fn readdir(
        &self,
        at: At,
        dir: Ino,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()>;
    fn getxattr(&self, at: At, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    fn listxattr(&self, at: At, ino: Ino) -> Result<Vec<Vec<u8>>>;
    fn seek(&self, at: At, ino: Ino, offset: u64, what: Seek) -> Result<u64>;

    fn create(&self, parent: Ino, name: &[u8], new: &NewInode<'_>) -> Result<Attr>;
    fn tmpfile(&self, new: &NewInode<'_>) -> Result<Attr>;
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()>;
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()>;
    fn rename(&self, from: Ino, old: &[u8], to: Ino, new: &[u8], mode: RenameMode) -> Result<()>;
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr>;
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    fn retain(&self, ino: Ino);
    fn release(&self, ino: Ino);
    fn write(&self, ino: Ino, offset: u64, data: &[u8], uid: u32) -> Result<usize>;
    fn allocate(&self, ino: Ino, mode: AllocateMode, offset: u64, bytes: u64) -> Result<()>;
    fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        bytes: u64,
        uid: u32,
    ) -> Result<u64>;
    fn flush(&self, ino: Ino) -> Result<()>;

    fn fsync(&self, ino: Ino, done: Done);
    fn sync_all(&self) -> Result<()>;

    fn usage(&self) -> Usage;
    fn tick(&self) -> Result<()>;
}
