//! A toy of which some calls do something else as well.

use super::toy::Toy;
use nenrin_core::{
    Accepted, AllocateMode, At, Attr, DirEntry, Done, NewInode, ReadBytes, RenameMode, Result, Seek, SetAttr, Usage,
    Writer, XattrMode, Xattrs,
};
use nenrin_format::{Cno, Ino};
use nenrin_fuse::Volume;
use std::sync::{Arc, Condvar, Mutex};

/// Nobody passes until it is opened.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn pass(&self) {
        let (is_open, opened) = &*self.0;
        drop(opened.wait_while(is_open.lock().unwrap(), |open| !*open));
    }
    pub fn open(&self) {
        let (is_open, opened) = &*self.0;
        *is_open.lock().unwrap() = true;
        opened.notify_all();
    }
}

pub struct Special {
    pub toy: Toy,
    pub before_read: fn(),
    pub before_write: Box<dyn Fn(Ino) + Send + Sync>,
    pub before_release: Box<dyn Fn() + Send + Sync>,
    /// What who leads for others does when his own sync is answered.
    pub after_sync: Box<dyn Fn() + Send + Sync>,
    /// Answers to syncs get lost on the way.
    pub loses_syncs: bool,
}

impl Special {
    /// One that does nothing else yet.
    pub fn new() -> Self {
        Self {
            toy: Toy::new(),
            before_read: || (),
            before_write: Box::new(|_| ()),
            before_release: Box::new(|| ()),
            after_sync: Box::new(|| ()),
            loses_syncs: false,
        }
    }
}

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&self, $($arg: $ty),*) $(-> $ret)? { self.toy.$name($($arg),*) })*
    };
}

impl Volume for Special {
    fn read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<ReadBytes> {
        (self.before_read)();
        self.toy.read(at, ino, offset, bytes)
    }
    fn accept(&self, ino: Ino, offset: u64, data: &[u8], writer: Writer) -> Result<Accepted> {
        (self.before_write)(ino);
        self.toy.accept(ino, offset, data, writer)
    }
    fn release(&self, ino: Ino) {
        (self.before_release)();
        self.toy.release(ino);
    }
    fn fsync(&self, _: Ino, done: Done) {
        if !self.loses_syncs {
            // On its own thread, as who leads is.
            done(Ok(()));
            (self.after_sync)();
        }
    }
    pass_on! {
        lookup(at: At, parent: Ino, name: &[u8]) -> Result<Attr>;
        getattr(at: At, ino: Ino) -> Result<Attr>;
        readlink(at: At, ino: Ino) -> Result<Vec<u8>>;
        readdir(at: At, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()>;
        getxattr(at: At, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        each_xattr(at: At, ino: Ino, each: &mut dyn FnMut(&[u8]) -> bool) -> Result<()>;
        seek(at: At, ino: Ino, offset: u64, what: Seek) -> Result<u64>;
        create_with(parent: Ino, name: &[u8], new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr>;
        tmpfile_with(new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr>;
        link(ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;
        unlink(parent: Ino, name: &[u8]) -> Result<()>;
        rmdir(parent: Ino, name: &[u8]) -> Result<()>;
        rename(from: Ino, old: &[u8], to: Ino, new: &[u8], mode: RenameMode) -> Result<()>;
        setattr(ino: Ino, set: &SetAttr) -> Result<Attr>;
        setxattr(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        setxattr_with_mode(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, permissions: Option<u32>) -> Result<()>;
        removexattr(ino: Ino, name: &[u8]) -> Result<()>;
        retain(ino: Ino);
        allocate(writer: Writer, ino: Ino, mode: AllocateMode, offset: u64, bytes: u64) -> Result<()>;
        copy_range(at: At, from: Ino, from_offset: u64, to: Ino, to_offset: u64, bytes: u64, writer: Writer) -> Result<u64>;
        hold_checkpoint(cno: Cno) -> Result<()>;
        let_checkpoint_go(cno: Cno);
        last_seen(ino: Ino) -> Result<Option<Cno>>;
        note_closed(ino: Ino) -> Result<()>;
        write_closed(ino: Ino) -> Result<()>;
        sync_all() -> Result<()>;
        usage() -> Usage;
        accessed(ino: Ino) -> Result<()>;
        tick() -> Result<()>;
    }
}
