//! What a new inode gets from its directory: group, set-group-id bit, ACLs; and
//! the requests that make inodes: MKNOD, MKDIR, SYMLINK, CREATE, TMPFILE.

use super::files::handle_number;
use super::{Result, Server, caller, checked_name};
use crate::acl::{self, Acl};
use crate::errno::Errno;
use crate::perm;
use crate::proto::abi::{CreateIn, CreateOut, InHeader};
use crate::transport::Reply;
use nenrin_core::{At, Attr, FileKind, NewInode, Xattrs};
use nenrin_format::Ino;
use std::sync::atomic::{AtomicU64, Ordering};

const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Directories from which nothing is inherited: no set-group-id bit, no default
/// ACL. A small cache, so that creating a file need not look for both. What is
/// not in it is looked at; what changes is taken out before the change. Who puts
/// something in must hold the kernel's lock of the directory, lest it changes
/// between the look and that.
pub(super) struct PlainDirectories([AtomicU64; Self::SLOTS]);

impl PlainDirectories {
    const SLOTS: usize = 1024;

    pub fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
    fn slot(&self, ino: u64) -> &AtomicU64 {
        &self.0[ino as usize % Self::SLOTS]
    }
    fn contains(&self, ino: u64) -> bool {
        self.slot(ino).load(Ordering::Acquire) == ino
    }
    fn insert(&self, ino: u64) {
        self.slot(ino).store(ino, Ordering::Release);
    }
    pub fn remove(&self, ino: u64) {
        let _ = self.slot(ino).compare_exchange(ino, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// What a new inode starts with.
struct Birth {
    mode: u32,
    gid: u32,
    access: Option<Acl>,
    default: Option<Acl>,
    /// The directory passes nothing on.
    is_plain: bool,
}

impl Birth {
    /// Makes the inode with the lists that it inherits: in one step with it, since the mode alone may let in whom they shut out.
    fn with_lists(&self, make: impl FnOnce(Xattrs<'_>) -> Result<Attr>) -> Result<Attr> {
        let is_directory = FileKind::from_mode(self.mode) == FileKind::Directory;
        let default = self.default.as_ref().filter(|_| is_directory);
        let lists = [(acl::DEFAULT, default), (acl::ACCESS, self.access.as_ref())];
        let lists = lists.map(|(name, list)| (name, list.map(Acl::to_bytes)));
        let lists: Vec<_> = lists.iter().filter_map(|(name, list)| Some((*name, list.as_deref()?))).collect();
        make(&lists)
    }
}

impl Server {
    /// What an inode of this mode inherits in `parent`, where it gets a name.
    fn birth(&self, head: &InHeader, parent: u64, mode: u32, umask: u32) -> Result<Birth> {
        let birth = self.birth_without_name(head, parent, mode, umask)?;
        if birth.is_plain {
            self.plain_directories.insert(parent);
        }
        Ok(birth)
    }

    /// What an inode of this mode inherits in `parent`. Of a directory that is not locked nothing is kept (invariant 4 of the module above).
    fn birth_without_name(&self, head: &InHeader, parent: u64, mode: u32, umask: u32) -> Result<Birth> {
        let is_link = FileKind::from_mode(mode) == FileKind::Symlink;
        let masked = if is_link { mode } else { mode & !(umask & 0o777) };
        let plain = Birth { mode: masked, gid: head.gid, access: None, default: None, is_plain: true };
        if self.plain_directories.contains(parent) {
            return Ok(plain);
        }
        let dir = self.attr_of(parent)?;
        // Also where no list can be set: what is there is obeyed.
        let default = self.acl_of(At::Live, parent, acl::DEFAULT)?;
        if default.is_none() && dir.mode & SET_GID == 0 {
            return Ok(plain);
        }
        let mut birth = Birth { is_plain: false, ..plain };
        if let Some(default) = default.filter(|_| !is_link) {
            let inherited = default.inherit(mode);
            birth.mode = inherited.mode;
            birth.access = inherited.access;
            birth.default = Some(default);
        }
        if dir.mode & SET_GID != 0 {
            birth.gid = dir.gid;
            if FileKind::from_mode(mode) == FileKind::Directory {
                birth.mode |= SET_GID;
            } else if birth.mode & (SET_GID | GROUP_EXECUTE) == SET_GID | GROUP_EXECUTE {
                let caller = caller(head);
                if !caller.is_root() && !caller.is_member(dir.gid) {
                    birth.mode &= !SET_GID;
                }
            }
        }
        Ok(birth)
    }

    fn make(&self, head: &InHeader, name: &[u8], mode: u32, umask: u32, rdev: u32, target: &[u8]) -> Result<Attr> {
        self.changeable()?;
        let name = checked_name(name)?;
        let parent = head.nodeid;
        self.check(head, parent, perm::WRITE | perm::EXECUTE)?;
        let birth = self.birth(head, parent, mode, umask)?;
        let new = NewInode { mode: birth.mode, uid: head.uid, gid: birth.gid, rdev, target };
        birth.with_lists(|lists| Ok(self.volume.create_with(Ino(parent), name, &new, lists)?))
    }

    pub(super) fn mknod(&self, head: &InHeader, name: &[u8], mode: u32, umask: u32, rdev: u32) -> Result<Attr> {
        self.make(head, name, mode, umask, rdev, &[])
    }

    pub(super) fn symlink(&self, head: &InHeader, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.make(head, name, libc::S_IFLNK | 0o777, 0, 0, target)
    }

    pub(super) fn create(&self, head: &InHeader, name: &[u8], new: &CreateIn, reply: Reply) {
        let mode = libc::S_IFREG | new.mode & 0o7777;
        let flags = new.flags as i32;
        let made = match self.make(head, name, mode, new.umask, 0, &[]) {
            // The kernel asks for names that it thinks are free; when one is
            // taken after all, it is opened.
            Err(Errno(libc::EEXIST)) if flags & libc::O_EXCL == 0 => self.open_existing(head, name, new),
            made => made,
        };
        self.answer_created(head, made, flags, reply);
    }

    fn open_existing(&self, head: &InHeader, name: &[u8], new: &CreateIn) -> Result<Attr> {
        let attr = self.volume.lookup(At::Live, Ino(head.nodeid), name)?;
        match attr.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno(libc::EISDIR)),
            _ => return Err(Errno(libc::EEXIST)),
        }
        self.prepare_open(head, attr.ino.0, new.flags as i32, new.open_flags)?;
        self.attr_of(attr.ino.0)
    }

    pub(super) fn tmpfile(&self, head: &InHeader, new: &CreateIn, reply: Reply) {
        let flags = new.flags as i32;
        let made = self.make_tmpfile(head, new);
        if let Ok(attr) = &made {
            // The library counts its maker as a use, which is the one that
            // `hold` would have asked for.
            self.remember(attr.ino.0);
            let _ = self.nodes.hold(attr.ino.0);
        }
        let ino = made.as_ref().ok().map(|attr| attr.ino.0);
        self.answer_created(head, made, flags, reply);
        if let Some(ino) = ino {
            self.forget(ino, 1);
        }
    }

    fn make_tmpfile(&self, head: &InHeader, new: &CreateIn) -> Result<Attr> {
        self.changeable()?;
        self.check(head, head.nodeid, perm::WRITE | perm::EXECUTE)?;
        let mode = libc::S_IFREG | new.mode & 0o7777;
        let birth = self.birth_without_name(head, head.nodeid, mode, new.umask)?;
        let inode = NewInode { mode: birth.mode, uid: head.uid, gid: birth.gid, rdev: 0, target: &[] };
        birth.with_lists(|lists| Ok(self.volume.tmpfile_with(&inode, lists)?))
    }

    /// Answers with a new inode and a handle on it.
    fn answer_created(&self, head: &InHeader, made: Result<Attr>, flags: i32, reply: Reply) {
        let attr = match made {
            Ok(attr) => attr,
            Err(e) => return reply.error(e),
        };
        let ino = attr.ino.0;
        self.remember(ino);
        let open = self.new_handle(head, ino, flags);
        self.open_files.emptied(ino, Some(handle_number(open.fh)));
        let asked = reply.asked();
        if !reply.value(&CreateOut { entry: self.entry(&self.told(attr)), open }).0 {
            let _ = self.release(ino, open.fh);
            self.forget(ino, 1);
        }
        self.told_attributes(ino, asked);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::init::Wishes;
    use nenrin_core::Fs;
    use std::sync::Arc;

    const WISHES: Wishes = Wishes { writeback: false, acl: true, rings: false, page_bytes: 4096 };

    fn server() -> Arc<Server> {
        volume_and_server().1
    }

    fn volume_and_server() -> (Arc<Fs>, Arc<Server>) {
        let (fs, server, _) = testing::server(WISHES);
        (fs, server)
    }

    /// A list from tags, permissions and ids.
    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |(tag, perm, id): &(u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        [2u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
    }

    /// Where the front end checks permissions none can be set, but what is there shuts out whom it shuts out elsewhere.
    #[test]
    fn lists_are_inherited_where_none_can_be_set() {
        let wishes = Wishes { acl: false, ..WISHES };
        let (fs, server, _) = testing::server_with(wishes, |behaviour| behaviour.own_check = true);
        const NO: u32 = u32::MAX;
        let default = list(&[(1, 7, NO), (2, 7, 1001), (4, 5, NO), (16, 7, NO), (32, 0, NO)]);
        fs.setxattr(Ino::ROOT, acl::DEFAULT, &default, nenrin_core::XattrMode::Any).unwrap();
        let head = InHeader { nodeid: Ino::ROOT.0, ..Default::default() };
        let file = server.mknod(&head, b"file", libc::S_IFREG | 0o666, 0o027, 0).unwrap();
        let dir = server.mknod(&head, b"dir", libc::S_IFDIR | 0o777, 0o027, 0).unwrap();
        assert!(!server.plain_directories.contains(Ino::ROOT.0));
        let unnamed =
            server.make_tmpfile(&head, &CreateIn { mode: 0o666, umask: 0o027, ..Default::default() }).unwrap();
        assert_eq!([file.mode, dir.mode, unnamed.mode].map(|mode| mode & 0o7777), [0o660, 0o770, 0o660]);
        let of_file = list(&[(1, 6, NO), (2, 7, 1001), (4, 5, NO), (16, 6, NO), (32, 0, NO)]);
        let kept = |ino: Ino, name: &[u8]| fs.getxattr(At::Live, ino, name).ok();
        assert_eq!((kept(file.ino, acl::ACCESS), kept(file.ino, acl::DEFAULT)), (Some(of_file.clone()), None));
        assert_eq!((kept(dir.ino, acl::ACCESS), kept(dir.ino, acl::DEFAULT)), (Some(default.clone()), Some(default)));
        assert_eq!(kept(unnamed.ino, acl::ACCESS), Some(of_file));
        server.volume.release(unnamed.ino);
    }

    /// No state of the past, nor what a crash recovers to, lets in whom the list of a new inode shuts out.
    #[test]
    fn no_state_has_an_inode_without_the_lists_it_inherits() {
        let (fs, server) = volume_and_server();
        // Whoever is in group 7 may do nothing, though others may look.
        let shuts_out = list(&[(1, 7, u32::MAX), (4, 5, u32::MAX), (8, 0, 7), (16, 5, u32::MAX), (32, 5, u32::MAX)]);
        fs.setxattr(Ino::ROOT, acl::DEFAULT, &shuts_out, nenrin_core::XattrMode::Any).unwrap();
        let head = InHeader { nodeid: Ino::ROOT.0, ..Default::default() };
        let names: Vec<String> = (0..2000).map(|n| format!("d{n}")).collect();
        let made = std::sync::atomic::AtomicBool::new(false);
        let states: Vec<_> = std::thread::scope(|scope| {
            scope.spawn(|| {
                for name in &names {
                    server.mknod(&head, name.as_bytes(), libc::S_IFDIR | 0o755, 0o022, 0).unwrap();
                }
                made.store(true, Ordering::Relaxed);
            });
            let cut = || (!made.load(Ordering::Relaxed)).then(|| fs.checkpoint_create(None).unwrap().cno);
            std::iter::from_fn(cut).take(200).collect()
        });
        for at in states.into_iter().map(At::Past).chain([At::Live]) {
            // The one that was made last is where a state may have been cut.
            let is_there = |name: &&String| fs.lookup(at, Ino::ROOT, name.as_bytes()).is_ok();
            let Some(name) = names.iter().rev().find(is_there) else { continue };
            let ino = fs.lookup(at, Ino::ROOT, name.as_bytes()).unwrap().ino;
            for kind in [acl::ACCESS, acl::DEFAULT] {
                assert_eq!(fs.getxattr(at, ino, kind).unwrap(), shuts_out, "{name} at {at:?}");
            }
        }
    }

    /// The kernel locks no directory for O_TMPFILE: it may get a default list meanwhile.
    #[test]
    fn a_file_without_a_name_tells_nothing_of_its_directory() {
        let server = server();
        let root = Ino::ROOT.0;
        let head = InHeader { nodeid: root, ..Default::default() };
        let unnamed = server.make_tmpfile(&head, &CreateIn { mode: 0o644, ..Default::default() }).unwrap();
        assert!(!server.plain_directories.contains(root));
        server.volume.release(unnamed.ino);
        server.mknod(&head, b"named", libc::S_IFREG | 0o644, 0, 0).unwrap();
        assert!(server.plain_directories.contains(root));
    }

    #[test]
    fn a_plain_directory_is_forgotten_when_it_changes() {
        let plain = PlainDirectories::new();
        assert!(!plain.contains(5));
        plain.insert(5);
        assert!(plain.contains(5));
        plain.remove(5 + 1024);
        assert!(plain.contains(5), "another one of the same slot");
        plain.insert(5 + 1024);
        assert!(!plain.contains(5));
        plain.remove(5 + 1024);
        assert!(!plain.contains(5 + 1024));
    }
}
