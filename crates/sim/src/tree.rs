//! One state of the model file system: what POSIX says each call does, in
//! memory, without any notion of durability.
//!
//! Invariants
//! 1. `sum` adds up the hashes of everything that can be reached by a name
//!    and belongs to the namespace stream; content and its times are not in it.
//! 2. An inode without names stays while `uses` is above zero, then it is gone.

use crate::content::Content;
use crate::hash;
use crate::walk::Part;
use nenrin_core::{AllocateMode, Attr, Error, FileKind, RenameMode, SetAttr, SetTime, XattrMode};
use nenrin_format::items::{HISTORY_XATTR, Keep};
use nenrin_format::{Ino, NAME_BYTES_MAX, Time, XATTR_BYTES_MAX};
use std::collections::BTreeMap;

/// Result of a model call; the error is one a caller can tell apart.
pub type Outcome<T> = Result<T, Error>;

/// Bytes of a file at most: what off_t has.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

fn ends_within(offset: u64, bytes: u64) -> Outcome<()> {
    let end = offset.checked_add(bytes).filter(|end| *end <= FILE_BYTES_MAX);
    end.map(drop).ok_or(Error::TooLarge)
}

const SUID: u32 = 0o4000;
const SGID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o10;
/// The attribute that a write takes away together with set-user-id.
pub const CAPABILITY: &[u8] = b"security.capability";

/// An inode with everything that belongs to it.
#[derive(Clone, Debug)]
pub struct Inode {
    /// As stat(2) shows it; `size` of a file is its content's.
    pub attr: Attr,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Bytes of a regular file.
    pub content: Content,
    /// Entries of a directory.
    pub entries: BTreeMap<Vec<u8>, u64>,
    /// The directory above a directory.
    pub parent: u64,
    /// Open handles.
    pub uses: u32,
    shown: u64,
}

impl Inode {
    /// A new inode with these attributes and nothing else.
    #[must_use]
    pub fn new(attr: Attr) -> Self {
        Self {
            attr,
            xattrs: BTreeMap::new(),
            target: Vec::new(),
            content: Content::default(),
            entries: BTreeMap::new(),
            parent: 0,
            uses: 0,
            shown: 0,
        }
    }
    /// How much of its history is kept.
    #[must_use]
    pub fn keep(&self) -> Keep {
        self.xattrs.get(HISTORY_XATTR).and_then(|text| Keep::parse(text)).unwrap_or_default()
    }
    /// Hash of what the namespace stream says about the inode.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let ino = self.attr.ino.0;
        let mut sum = attr_hash(&self.attr);
        for (name, value) in &self.xattrs {
            sum = sum.wrapping_add(xattr_hash(ino, name, value));
        }
        if self.attr.kind() == FileKind::Symlink {
            sum = sum.wrapping_add(target_hash(ino, &self.target));
        }
        for (name, child) in &self.entries {
            sum = sum.wrapping_add(entry_hash(ino, name, *child));
        }
        sum
    }
}

/// Hash of the attributes that the namespace stream decides. Times of content
/// belong to the file's own stream and are left out for regular files.
#[must_use]
pub fn attr_hash(a: &Attr) -> u64 {
    let regular = a.kind() == FileKind::Regular;
    let time = |t: Time| if regular { 0 } else { t.0 as u64 };
    hash::of_words(&[
        a.ino.0,
        u64::from(a.mode) << 32 | u64::from(a.nlink),
        u64::from(a.uid) << 32 | u64::from(a.gid),
        u64::from(a.rdev),
        a.atime.0 as u64,
        a.btime.0 as u64,
        time(a.mtime),
        time(a.ctime),
    ])
}

/// Hash of an extended attribute.
#[must_use]
pub fn xattr_hash(ino: u64, name: &[u8], value: &[u8]) -> u64 {
    hash::of_words(&[ino, 2, hash::of_bytes(0, name), hash::of_bytes(0, value)])
}

/// Hash of a link's target.
#[must_use]
pub fn target_hash(ino: u64, target: &[u8]) -> u64 {
    hash::of_words(&[ino, 3, hash::of_bytes(0, target)])
}

/// Hash of a directory entry.
#[must_use]
pub fn entry_hash(dir: u64, name: &[u8], child: u64) -> u64 {
    hash::of_words(&[dir, 4, hash::of_bytes(0, name), child])
}

/// A state.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// All inodes, by number.
    pub inodes: BTreeMap<u64, Inode>,
    sum: u64,
}

/// What of a new inode is not decided by the tree.
#[derive(Clone, Debug)]
pub struct Fresh {
    /// Its number, which the file system under test has chosen.
    pub ino: u64,
    /// File type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
}

impl Tree {
    /// Hash of the whole namespace.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }
    /// Puts an inode in as it is, as when a state is read back.
    pub fn insert(&mut self, mut inode: Inode) {
        let ino = inode.attr.ino.0;
        inode.shown = self.inodes.get(&ino).map_or(0, |old| old.shown);
        self.inodes.insert(ino, inode);
        self.touch(ino);
    }
    /// What has a name, by inode.
    pub fn parts(&self) -> impl Iterator<Item = (u64, Part)> + '_ {
        let named = self.inodes.iter().filter(|(_, i)| i.attr.nlink > 0);
        named.map(|(ino, i)| (*ino, Part { hash: Some(i.shown), ctime: Some(i.attr.ctime), keep: i.keep() }))
    }
    /// The inode with this number.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn inode(&self, ino: u64) -> Outcome<&Inode> {
        self.inodes.get(&ino).ok_or(Error::NotFound)
    }
    fn get(&mut self, ino: u64) -> Outcome<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Error::NotFound)
    }
    /// Brings `sum` up to date after a change of an inode.
    fn touch(&mut self, ino: u64) {
        if let Some(i) = self.inodes.get_mut(&ino) {
            let now = if i.attr.nlink > 0 { i.hash() } else { 0 };
            self.sum = self.sum.wrapping_add(now).wrapping_sub(i.shown);
            i.shown = now;
        }
    }
    fn forget_if_unused(&mut self, ino: u64) {
        if self.inodes.get(&ino).is_some_and(|i| i.attr.nlink == 0 && i.uses == 0) {
            self.inodes.remove(&ino);
        }
    }
    fn dir(&self, ino: u64) -> Outcome<&Inode> {
        let d = self.inode(ino)?;
        if d.attr.kind() != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(d)
    }
    fn child(&self, dir: u64, name: &[u8]) -> Outcome<u64> {
        self.dir(dir)?.entries.get(name).copied().ok_or(Error::NotFound)
    }
    fn regular(&mut self, ino: u64) -> Outcome<&mut Inode> {
        let i = self.get(ino)?;
        match i.attr.kind() {
            FileKind::Regular => Ok(i),
            FileKind::Directory => Err(Error::IsDirectory),
            _ => Err(Error::BadArgument("not a regular file")),
        }
    }
    /// A directory that changed its entries.
    fn dir_changed(&mut self, ino: u64, now: Time) {
        if let Some(d) = self.inodes.get_mut(&ino) {
            d.attr.mtime = now;
            d.attr.ctime = now;
        }
        self.touch(ino);
    }
    fn room_for(&self, parent: u64, name: &[u8]) -> Outcome<()> {
        check_name(name)?;
        if self.dir(parent)?.attr.nlink == 0 {
            return Err(Error::NotFound);
        }
        if self.dir(parent)?.entries.contains_key(name) { Err(Error::Exists) } else { Ok(()) }
    }

    /// A new inode under a name, or without one.
    ///
    /// # Errors
    /// As open(2), mkdir(2), symlink(2).
    pub fn create(&mut self, place: Option<(u64, &[u8])>, new: &Fresh, now: Time) -> Outcome<()> {
        let kind = FileKind::from_mode(new.mode);
        let mut attr = Attr {
            ino: Ino(new.ino),
            mode: new.mode,
            nlink: 0,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            size: new.target.len() as u64,
            blocks_512: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let mut above = Keep::Full;
        if let Some((parent, name)) = place {
            self.room_for(parent, name)?;
            attr.nlink = if kind == FileKind::Directory { 2 } else { 1 };
            let p = self.get(parent)?;
            p.entries.insert(name.to_vec(), new.ino);
            if kind == FileKind::Directory {
                p.attr.nlink += 1;
            }
            above = p.keep();
            self.dir_changed(parent, now);
        }
        let mut inode = Inode::new(attr);
        if above != Keep::Full {
            inode.xattrs.insert(HISTORY_XATTR.to_vec(), above.text().into());
        }
        inode.target.clone_from(&new.target);
        inode.parent = place.map_or(0, |(p, _)| p);
        self.insert(inode);
        Ok(())
    }

    /// A further name.
    ///
    /// # Errors
    /// As link(2).
    pub fn link(&mut self, ino: u64, parent: u64, name: &[u8], now: Time) -> Outcome<()> {
        if self.inode(ino)?.attr.kind() == FileKind::Directory {
            return Err(Error::Permission);
        }
        self.room_for(parent, name)?;
        let i = self.get(ino)?;
        i.attr.nlink += 1;
        i.attr.ctime = now;
        self.touch(ino);
        self.get(parent)?.entries.insert(name.to_vec(), ino);
        self.dir_changed(parent, now);
        Ok(())
    }

    fn drop_name(&mut self, ino: u64, now: Time) {
        if let Some(i) = self.inodes.get_mut(&ino) {
            i.attr.nlink = if i.attr.kind() == FileKind::Directory { 0 } else { i.attr.nlink - 1 };
            i.attr.ctime = now;
        }
        self.touch(ino);
        self.forget_if_unused(ino);
    }

    /// A name goes.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn unlink(&mut self, parent: u64, name: &[u8], now: Time) -> Outcome<u64> {
        let ino = self.child(parent, name)?;
        if self.inode(ino)?.attr.kind() == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        self.get(parent)?.entries.remove(name);
        self.dir_changed(parent, now);
        self.drop_name(ino, now);
        Ok(ino)
    }

    /// An empty directory goes.
    ///
    /// # Errors
    /// As rmdir(2).
    pub fn rmdir(&mut self, parent: u64, name: &[u8], now: Time) -> Outcome<u64> {
        let ino = self.child(parent, name)?;
        if !self.dir(ino)?.entries.is_empty() {
            return Err(Error::NotEmpty);
        }
        let p = self.get(parent)?;
        p.entries.remove(name);
        p.attr.nlink -= 1;
        self.dir_changed(parent, now);
        self.drop_name(ino, now);
        Ok(ino)
    }

    fn is_below(&self, mut dir: u64, above: u64) -> bool {
        loop {
            if dir == above {
                return true;
            }
            match self.inodes.get(&dir) {
                Some(d) if dir != Ino::ROOT.0 && d.parent != 0 => dir = d.parent,
                _ => return false,
            }
        }
    }

    /// A name moves. Returns the inode whose name was replaced.
    ///
    /// # Errors
    /// As renameat2(2).
    pub fn rename(
        &mut self,
        from: u64,
        old: &[u8],
        to: u64,
        new: &[u8],
        mode: RenameMode,
        now: Time,
    ) -> Outcome<Option<u64>> {
        check_name(new)?;
        let moved = self.child(from, old)?;
        if self.dir(to)?.attr.nlink == 0 {
            return Err(Error::NotFound);
        }
        let target = self.dir(to)?.entries.get(new).copied();
        let is_dir = |t: &Self, ino: u64| t.dir(ino).is_ok();
        let moved_dir = is_dir(self, moved);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            _ => {}
        }
        if moved_dir && self.is_below(to, moved) {
            return Err(Error::Loop);
        }
        if let Some(t) = target {
            if t == moved {
                return Ok(None);
            }
            let target_dir = is_dir(self, t);
            if mode == RenameMode::Exchange {
                if target_dir && self.is_below(from, t) {
                    return Err(Error::Loop);
                }
                return self.exchange((from, old, moved), (to, new, t), now);
            }
            match (moved_dir, target_dir) {
                (true, false) => return Err(Error::NotDirectory),
                (false, true) => return Err(Error::IsDirectory),
                (true, true) if !self.inode(t)?.entries.is_empty() => return Err(Error::NotEmpty),
                _ => {}
            }
            let p = self.get(to)?;
            p.entries.remove(new);
            if target_dir {
                p.attr.nlink -= 1;
            }
            self.drop_name(t, now);
        }
        self.get(from)?.entries.remove(old);
        self.get(to)?.entries.insert(new.to_vec(), moved);
        self.moved_between(moved, moved_dir, from, to);
        self.renamed(&[moved], from, to, now);
        Ok(target)
    }

    fn moved_between(&mut self, ino: u64, is_dir: bool, from: u64, to: u64) {
        if is_dir && from != to {
            if let Some(p) = self.inodes.get_mut(&from) {
                p.attr.nlink -= 1;
            }
            if let Some(p) = self.inodes.get_mut(&to) {
                p.attr.nlink += 1;
            }
        }
        if let Some(i) = self.inodes.get_mut(&ino).filter(|_| is_dir) {
            i.parent = to;
        }
    }

    fn renamed(&mut self, inodes: &[u64], from: u64, to: u64, now: Time) {
        for ino in inodes {
            if let Some(i) = self.inodes.get_mut(ino) {
                i.attr.ctime = now;
            }
            self.touch(*ino);
        }
        self.dir_changed(from, now);
        self.dir_changed(to, now);
    }

    fn exchange(&mut self, a: (u64, &[u8], u64), b: (u64, &[u8], u64), now: Time) -> Outcome<Option<u64>> {
        self.get(a.0)?.entries.insert(a.1.to_vec(), b.2);
        self.get(b.0)?.entries.insert(b.1.to_vec(), a.2);
        let (a_dir, b_dir) = (self.dir(a.2).is_ok(), self.dir(b.2).is_ok());
        self.moved_between(a.2, a_dir, a.0, b.0);
        self.moved_between(b.2, b_dir, b.0, a.0);
        self.renamed(&[a.2, b.2], a.0, b.0, now);
        Ok(None)
    }

    /// Attributes change.
    ///
    /// # Errors
    /// As chmod(2), chown(2), truncate(2), utimensat(2).
    pub fn setattr(&mut self, ino: u64, set: &SetAttr, now: Time) -> Outcome<()> {
        if let Some(size) = set.size {
            self.regular(ino)?;
            ends_within(0, size)?;
        }
        let i = self.get(ino)?;
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        if let Some(size) = set.size {
            i.content.resize(size);
            i.attr.size = size;
            i.attr.mtime = now;
        }
        let before = i.attr;
        let mut changed = set.size.is_some() || set.ctime.is_some();
        if set.kill_privileges {
            i.attr.mode &= !SUID;
            if i.attr.mode & GROUP_EXEC != 0 {
                i.attr.mode &= !SGID;
            }
            changed |= i.xattrs.remove(CAPABILITY).is_some();
        }
        let a = &mut i.attr;
        changed |= a.mode != before.mode || set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        changed |= set.atime.is_some() || set.mtime.is_some();
        if let Some(mode) = set.mode {
            a.mode = a.mode & !0o7777 | mode & 0o7777;
        }
        a.uid = set.uid.unwrap_or(a.uid);
        a.gid = set.gid.unwrap_or(a.gid);
        a.atime = set.atime.map_or(a.atime, time);
        a.mtime = set.mtime.map_or(a.mtime, time);
        a.ctime = if changed { set.ctime.map_or(now, time) } else { a.ctime };
        self.touch(ino);
        Ok(())
    }

    /// An extended attribute is set.
    ///
    /// # Errors
    /// As setxattr(2).
    pub fn setxattr(&mut self, ino: u64, name: &[u8], value: &[u8], mode: XattrMode, now: Time) -> Outcome<()> {
        if value.len() > XATTR_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        if name == HISTORY_XATTR && Keep::parse(value).is_none() {
            return Err(Error::BadArgument("no part of history"));
        }
        let i = self.get(ino)?;
        match (mode, i.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Error::Exists),
            (XattrMode::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        i.xattrs.insert(name.to_vec(), value.to_vec());
        i.attr.ctime = now;
        self.touch(ino);
        Ok(())
    }

    /// An extended attribute goes.
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn removexattr(&mut self, ino: u64, name: &[u8], now: Time) -> Outcome<()> {
        let i = self.get(ino)?;
        i.xattrs.remove(name).ok_or(Error::NoAttribute)?;
        i.attr.ctime = now;
        self.touch(ino);
        Ok(())
    }

    fn content_changed(&mut self, ino: u64, now: Time) {
        if let Some(i) = self.inodes.get_mut(&ino) {
            i.attr.size = i.content.size();
            i.attr.mtime = now;
            i.attr.ctime = now;
        }
    }

    /// Bytes are written.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write(&mut self, ino: u64, offset: u64, data: &[u8], now: Time) -> Outcome<()> {
        let c = &mut self.regular(ino)?.content;
        ends_within(offset, data.len() as u64)?;
        c.write(offset, data);
        self.content_changed(ino, now);
        Ok(())
    }

    /// Space is reserved, punched or zeroed.
    ///
    /// # Errors
    /// As fallocate(2).
    pub fn allocate(&mut self, ino: u64, mode: AllocateMode, offset: u64, bytes: u64, now: Time) -> Outcome<()> {
        let c = &mut self.regular(ino)?.content;
        ends_within(offset, bytes)?;
        if bytes == 0 {
            return Err(Error::BadArgument("no bytes"));
        }
        if matches!(mode, AllocateMode::Punch | AllocateMode::Zero | AllocateMode::ZeroKeepSize) {
            c.zero(offset, bytes);
        }
        let grows = offset + bytes > c.size() && matches!(mode, AllocateMode::Reserve | AllocateMode::Zero);
        if grows {
            c.resize(offset + bytes);
        }
        let reserved = matches!(mode, AllocateMode::Reserve | AllocateMode::ReserveKeepSize);
        let mtime = self.inode(ino)?.attr.mtime;
        self.content_changed(ino, now);
        if reserved && !grows {
            self.get(ino)?.attr.mtime = mtime;
        }
        Ok(())
    }

    /// What a copy of `bytes` bytes reads, when it is possible at all.
    ///
    /// # Errors
    /// As copy_file_range(2).
    pub fn copy_source(&mut self, from: (u64, u64), to: (u64, u64), bytes: u64) -> Outcome<Vec<u8>> {
        self.regular(to.0)?;
        let data = self.regular(from.0)?.content.read(from.1, bytes as usize);
        if from.0 == to.0 && from.1 < to.1.saturating_add(bytes) && to.1 < from.1.saturating_add(bytes) {
            return Err(Error::BadArgument("the ranges overlap"));
        }
        Ok(data)
    }

    /// One use more.
    pub fn retain(&mut self, ino: u64) {
        if let Some(i) = self.inodes.get_mut(&ino) {
            i.uses += 1;
        }
    }

    /// One use less; the last one of an inode without a name lets it go.
    pub fn release(&mut self, ino: u64) {
        if let Some(i) = self.inodes.get_mut(&ino) {
            i.uses = i.uses.saturating_sub(1);
        }
        self.forget_if_unused(ino);
    }

    /// All handles are gone, and with them what had no name.
    pub fn release_all(&mut self) {
        for i in self.inodes.values_mut() {
            i.uses = 0;
        }
        self.inodes.retain(|_, i| i.attr.nlink > 0);
    }

    /// A path that leads to the inode, for messages.
    #[must_use]
    pub fn path(&self, ino: u64) -> String {
        let mut at = ino;
        let mut path = String::new();
        for _ in 0..64 {
            if at == Ino::ROOT.0 {
                return if path.is_empty() { "/".into() } else { path };
            }
            let found = self.inodes.iter().find_map(|(dir, d)| {
                d.entries.iter().find(|(_, child)| **child == at).map(|(name, _)| (*dir, name.clone()))
            });
            let Some((dir, name)) = found else { break };
            path = format!("/{}{path}", String::from_utf8_lossy(&name));
            at = dir;
        }
        format!("<inode {ino}>")
    }
}

fn check_name(name: &[u8]) -> Outcome<()> {
    match name {
        b"" => Err(Error::BadArgument("empty name")),
        n if n.len() > NAME_BYTES_MAX => Err(Error::NameTooLong),
        _ => Ok(()),
    }
}
