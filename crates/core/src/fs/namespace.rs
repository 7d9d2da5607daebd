//! Names: looking up, making, removing, renaming.

use super::attrs::{blocks_of, check_value};
use super::beside::giving_way;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::{At, Attr, DirEntry, Error, FileKind, NewInode, RenameMode, Result, Xattrs};
use nenrin_format::items::{self, Dirent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::records::{RENAME_EXCHANGE, Record};
use nenrin_format::{BLOCK_BYTES, INLINE_BYTES_MAX, Ino, NAME_BYTES_MAX, SYMLINK_BYTES_MAX};
use std::ops::ControlFlow;

/// Units of st_blocks in a block.
const SECTORS: u64 = BLOCK_BYTES as u64 / 512;
/// Most links to one inode.
const LINKS_MAX: u32 = 65_000;

pub(super) fn attr_of(ino: Ino, inode: &Inode) -> Attr {
    Attr {
        ino,
        mode: inode.mode,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        size: match FileKind::from_mode(inode.mode) {
            FileKind::Directory => inode.entries.saturating_mul(32),
            _ => inode.size,
        },
        blocks_512: inode.blocks.saturating_mul(SECTORS),
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        btime: inode.btime,
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    match name {
        b"" => Err(Error::NotFound),
        b"." | b".." => Err(Error::Exists),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Error::BadArgument("a name with a slash or a zero byte")),
        _ => Ok(()),
    }
}

/// Blocks for which there has to be room to make an inode with these attributes, if it may have them.
fn blocks_with(xattrs: Xattrs<'_>) -> Result<u64> {
    xattrs.iter().try_for_each(|(name, value)| check_value(name, value))?;
    Ok(1 + xattrs.iter().map(|(_, value)| blocks_of(value)).sum::<u64>())
}

impl Inner {
    /// The directory, which must be one and have a name.
    fn directory(&self, ino: Ino) -> Result<Inode> {
        let inode = self.state.inode(ino)?.ok_or(Error::NotFound)?;
        if FileKind::from_mode(inode.mode) != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if inode.nlink == 0 { Err(Error::NotFound) } else { Ok(inode) }
    }

    pub(super) fn attr(&self, at: At, ino: Ino) -> Result<Attr> {
        let inode = self.current_inode(at, ino)?;
        let mut attr = attr_of(ino, &inode);
        if at == At::Live {
            if let Some(c) = self.files.get(&ino).and_then(|f| f.content.as_ref()) {
                attr.blocks_512 = c.blocks_over(inode.blocks).saturating_mul(SECTORS);
            }
        }
        // A file that its inode holds has no blocks, and must not look like one
        // that is all hole: tar(1) and others would not read it.
        let held = attr.kind() == FileKind::Regular && (1..=INLINE_BYTES_MAX as u64).contains(&attr.size);
        if held && attr.blocks_512 == 0 {
            attr.blocks_512 = 1;
        }
        Ok(attr)
    }

    /// The inode that a name stands for.
    pub(super) fn child(&self, at: At, parent: Ino, name: &[u8]) -> Result<Ino> {
        let view = self.state.view(at)?;
        let dir = view.inode(parent)?;
        if FileKind::from_mode(dir.mode) != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(match name {
            b"." => parent,
            b".." => dir.parent,
            _ => {
                let group = self.state.dirent_key(parent, name);
                let last = Key { off: group.off | crate::state::SLOT_MASK, ..group };
                let mut found = None;
                view.scan_what_is_left(&group, &last, &mut |_, v| match Dirent::decode(v) {
                    Ok(d) if d.name == name => {
                        found = Some(d.ino);
                        ControlFlow::Break(())
                    }
                    _ => ControlFlow::Continue(()),
                })?;
                match found {
                    Some(ino) => ino,
                    None => return Err(view.all_is_known(parent).err().unwrap_or(Error::NotFound)),
                }
            }
        })
    }

    /// Whether nobody uses the inode, so that its last name may take it along.
    /// Content that was never committed goes with it.
    pub(super) fn is_unused(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_none_or(|f| f.uses == 0)
    }

    /// Whether the last name of an inode takes it along. Where somebody uses it, or what goes with it cannot be read, it stays without a
    /// name, and each mount tries again.
    ///
    /// # Errors
    /// It cannot be noted either that it stays: the space tree cannot be read there.
    fn goes_with_last_name(&self, ino: Ino) -> Result<bool> {
        let goes = self.is_unused(ino) && self.state.drop_ahead(ino, self.state.open_cno).is_ok();
        if !goes {
            self.state.orphan_ahead(ino)?;
        }
        Ok(goes)
    }

    /// Forgets uncommitted content of an inode that is gone.
    pub(super) fn forget_content(&mut self, ino: Ino) {
        if self.is_unused(ino) {
            if let Some(mut c) = self.files.remove(&ino).and_then(|f| f.content) {
                self.let_go(&mut c);
            }
            self.batch.files.remove(&ino);
            self.forget_aside(ino);
        }
    }

    /// Content of an inode that is gone needs no commit any more.
    pub(super) fn forget_aside(&mut self, ino: Ino) {
        let (gone, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.batch.aside).into_iter().partition(|a| a.0 == ino);
        self.batch.aside = rest;
        for (_, mut content) in gone {
            self.let_go(&mut content);
        }
    }

    /// Whether `ancestor` is `ino` or lies above it.
    fn is_below(&self, mut ino: Ino, ancestor: Ino) -> Result<bool> {
        // On a damaged volume directories may lie below each other in a circle:
        // whoever walks in one comes by the inode seen after 2, 4, 8, … steps.
        let (mut seen, mut steps) = (ino, 0u64);
        loop {
            if ino == ancestor {
                return Ok(true);
            }
            if ino == Ino::ROOT {
                return Ok(false);
            }
            ino = self.directory(ino)?.parent;
            if ino == seen {
                return Err(Error::Corrupt(format!("directory {ino} lies below itself")));
            }
            steps += 1;
            if steps.is_power_of_two() {
                seen = ino;
            }
        }
    }
}

impl Fs {
    /// The inode a name stands for; "." and ".." too.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`].
    pub fn lookup(&self, at: At, parent: Ino, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        if at != At::Live && broken(Break::PastUnnamed) {
            return Err(Error::Stale);
        }
        let inner = self.lock();
        let ino = inner.child(at, parent, name)?;
        inner.attr(at, ino)
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn getattr(&self, at: At, ino: Ino) -> Result<Attr> {
        self.lock().attr(at, ino)
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::BadArgument`] for anything else than a link.
    pub fn readlink(&self, at: At, ino: Ino) -> Result<Vec<u8>> {
        let inner = self.lock();
        let view = inner.state.view(at)?;
        let inode = view.inode(ino)?;
        if FileKind::from_mode(inode.mode) != FileKind::Symlink {
            return Err(Error::BadArgument("not a symbolic link"));
        }
        let key = Key::new(ino, Kind::Symlink, 0, 0);
        let value = view.get(&key)?.ok_or_else(|| Error::Corrupt(format!("link {ino} has no target")))?;
        items::decode_bytes(&value).map(<[u8]>::to_vec).map_err(|why| crate::state::bad_item(&key, why))
    }

    /// Entries of a directory after `cookie` (0: from the start), "." and ".."
    /// first, until `each` says false.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`]; [`Error::Stale`] where not all that there was is left.
    pub fn readdir(&self, at: At, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let inner = self.lock();
        let view = inner.state.view(at)?;
        let inode = view.inode(dir)?;
        if FileKind::from_mode(inode.mode) != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        view.all_is_known(dir)?;
        let dots: [(u64, &[u8], Ino); 2] = [(1, b".", dir), (2, b"..", inode.parent)];
        for (c, name, ino) in dots {
            if cookie < c && !each(DirEntry { name: name.to_vec(), ino, kind: FileKind::Directory, cookie: c }) {
                return Ok(());
            }
        }
        let from = Key::new(dir, Kind::Dirent, 0, cookie.saturating_add(1).max(crate::state::SLOT_MASK + 1));
        let to = Key::new(dir, Kind::Dirent, 0, u64::MAX);
        let mut next = inner.entries_from(at, &from, &to, each)?;
        drop(inner);
        // Of the past there may be much that it does not show, and others wait for the lock.
        let mut way = None;
        while let Some(from) = next {
            way.get_or_insert_with(giving_way);
            next = self.lock().entries_from(at, &from, &to, each)?;
        }
        Ok(())
    }

    /// Makes an inode of any type under a name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], and those of a bad name.
    pub fn create(&self, parent: Ino, name: &[u8], new: &NewInode<'_>) -> Result<Attr> {
        self.create_with(parent, name, new, &[])
    }

    /// The same, with extended attributes that it has from its beginning: no state of the volume has it without.
    ///
    /// # Errors
    /// Those of [`Fs::create`] and [`Fs::setxattr`].
    pub fn create_with(&self, parent: Ino, name: &[u8], new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr> {
        check_name(name)?;
        if new.target.len() > SYMLINK_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let mut inner = self.room_for(blocks_with(xattrs)?)?;
        inner.directory(parent)?;
        if inner.state.dirent(parent, name)?.is_some() {
            return Err(Error::Exists);
        }
        inner.state.unused_name_ahead(parent, inner.state.next_ino, name)?;
        self.make(&mut inner, parent, name, new, xattrs)
    }

    /// Makes an inode without a name, in use by the caller.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn tmpfile(&self, new: &NewInode<'_>) -> Result<Attr> {
        self.tmpfile_with(new, &[])
    }

    /// The same, with extended attributes from its beginning.
    ///
    /// # Errors
    /// Those of [`Fs::tmpfile`] and [`Fs::setxattr`].
    pub fn tmpfile_with(&self, new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr> {
        let mut inner = self.room_for(blocks_with(xattrs)?)?;
        inner.state.orphan_ahead(inner.state.next_ino)?;
        let attr = self.make(&mut inner, Ino(0), b"", new, xattrs)?;
        inner.files.entry(attr.ino).or_default().uses += 1;
        Ok(attr)
    }

    /// All records of it are in one batch, which is committed and replayed as a whole.
    fn make(
        &self,
        inner: &mut Inner,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        xattrs: Xattrs<'_>,
    ) -> Result<Attr> {
        let ino = inner.state.next_ino;
        inner.state.new_xattrs_ahead(ino, xattrs)?;
        let (ctime, now) = (self.clock.wall(), self.clock.monotonic_nanos());
        let record = Record::Create {
            parent,
            ino,
            mode: new.mode,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            time: ctime,
            name,
            target: new.target,
        };
        inner.log(&record, now)?;
        for (name, value) in xattrs {
            inner.log(&Record::SetXattr { ino, ctime, mode: u32::MAX, name, value }, now)?;
        }
        inner.attr(At::Live, ino)
    }

    /// A further name for an inode.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Permission`] for a directory; [`Error::TooManyLinks`].
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        // Who is refused waits for nothing.
        if self.lock().state.dirent(parent, name)?.is_none() {
            self.settle_to_carry(ino)?;
        }
        let mut inner = self.room_for(1)?;
        inner.directory(parent)?;
        let inode = inner.state.inode(ino)?.ok_or(Error::NotFound)?;
        if FileKind::from_mode(inode.mode) == FileKind::Directory {
            return Err(Error::Permission);
        }
        if inode.nlink >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        if inner.state.dirent(parent, name)?.is_some() {
            return Err(Error::Exists);
        }
        inner.state.new_name_ahead(parent, ino, name)?;
        if inode.nlink == 0 {
            inner.state.orphan_ahead(ino)?;
        }
        inner.carry_content(ino);
        let time = self.clock.wall();
        inner.log(&Record::Link { parent, ino, time, name }, self.clock.monotonic_nanos())?;
        inner.set_content_ctime(ino, time);
        inner.attr(At::Live, ino)
    }

    /// Removes a name that is no directory's.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`].
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove_name(parent, name, false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`].
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Error::BadArgument("the directory itself")),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        self.remove_name(parent, name, true)
    }

    fn remove_name(&self, parent: Ino, name: &[u8], directory: bool) -> Result<()> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let mut inner = self.room_to_remove()?;
        inner.directory(parent)?;
        let (_, ino, _) = inner.state.dirent(parent, name)?.ok_or(Error::NotFound)?;
        let inode = inner.state.need_inode(ino)?;
        match (FileKind::from_mode(inode.mode) == FileKind::Directory, directory) {
            (true, false) => return Err(Error::IsDirectory),
            (false, true) => return Err(Error::NotDirectory),
            (true, true) if inode.entries > 0 => return Err(Error::NotEmpty),
            _ => {}
        }
        inner.state.name_ahead(parent, ino, name)?;
        let unused = inner.is_unused(ino);
        let last = directory || inode.nlink == 1;
        let drop = if last { inner.goes_with_last_name(ino)? } else { unused };
        let time = self.clock.wall();
        inner.log(&Record::Unlink { parent, drop, time, name }, self.clock.monotonic_nanos())?;
        inner.set_content_ctime(ino, time);
        if last && unused {
            inner.forget_content(ino);
        }
        Ok(())
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// As rename(2) says.
    pub fn rename(&self, from: Ino, old: &[u8], to: Ino, new: &[u8], mode: RenameMode) -> Result<()> {
        if old.len() > NAME_BYTES_MAX || new.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let dot = |n: &[u8]| n == b"." || n == b"..";
        if dot(old) || dot(new) {
            return Err(Error::BadArgument("a name of dots cannot be renamed"));
        }
        check_name(new)?;
        self.settle_to_rename(from, old, to, new, mode)?;
        let mut inner = self.room_to_remove()?;
        inner.directory(from)?;
        inner.directory(to)?;
        let (_, ino, _) = inner.state.dirent(from, old)?.ok_or(Error::NotFound)?;
        let target = inner.state.dirent(to, new)?.map(|(_, ino, _)| ino);
        let replaced = match inner.renaming(from, to, ino, target, mode)? {
            Renaming::Nothing => return Ok(()),
            Renaming::Moves => None,
            Renaming::Replaces { other, is_last } => Some((other, is_last)),
        };
        inner.state.name_ahead(from, ino, old)?;
        inner.state.new_name_ahead(to, ino, new)?;
        if let Some(other) = target {
            inner.state.name_ahead(to, other, new)?;
        }
        let flags = if mode == RenameMode::Exchange { RENAME_EXCHANGE } else { 0 };
        if let Some(other) = target.filter(|_| flags != 0) {
            inner.state.new_name_ahead(from, other, old)?;
        }
        let unused = replaced.is_some_and(|(other, _)| inner.is_unused(other));
        let drop = match replaced {
            Some((other, true)) => inner.goes_with_last_name(other)?,
            _ => unused,
        };
        match target {
            Some(other) => {
                inner.carry_content(ino);
                if mode == RenameMode::Exchange {
                    inner.carry_content(other);
                }
            }
            // Others may reach it there.
            None if from != to => inner.carry_over_older(ino)?,
            None => {}
        }
        let time = self.clock.wall();
        inner.log(&Record::Rename { from, to, flags, drop, time, old, new }, self.clock.monotonic_nanos())?;
        for touched in [Some(ino), target].into_iter().flatten() {
            inner.set_content_ctime(touched, time);
        }
        if let Some((other, true)) = replaced {
            if unused {
                inner.forget_content(other);
            }
        }
        Ok(())
    }
}

/// What a rename comes to.
enum Renaming {
    /// Both names are of the same inode.
    Nothing,
    Moves,
    /// What had the name loses it, and with it maybe the last one.
    Replaces {
        other: Ino,
        is_last: bool,
    },
}

impl Inner {
    /// Whether `ino`, which has a name in `from`, may get one in `to` that `target` has.
    fn renaming(&self, from: Ino, to: Ino, ino: Ino, target: Option<Ino>, mode: RenameMode) -> Result<Renaming> {
        let moved = self.state.need_inode(ino)?;
        let is_dir = |i: &Inode| FileKind::from_mode(i.mode) == FileKind::Directory;
        let into_itself = Error::BadArgument("a directory cannot be moved into itself");
        if is_dir(&moved) && self.is_below(to, ino)? {
            return Err(into_itself);
        }
        let Some(other) = target else {
            return if mode == RenameMode::Exchange { Err(Error::NotFound) } else { Ok(Renaming::Moves) };
        };
        if mode == RenameMode::NoReplace {
            return Err(Error::Exists);
        }
        let inode = self.state.need_inode(other)?;
        if mode == RenameMode::Exchange && is_dir(&inode) && self.is_below(from, other)? {
            return Err(into_itself);
        }
        match (is_dir(&moved), is_dir(&inode)) {
            _ if other == ino => Ok(Renaming::Nothing),
            _ if mode == RenameMode::Exchange => Ok(Renaming::Moves),
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (true, true) if inode.entries > 0 => Err(Error::NotEmpty),
            _ => Ok(Renaming::Replaces { other, is_last: is_dir(&inode) || inode.nlink == 1 }),
        }
    }
}

impl Fs {
    /// Before a rename: the data of what it carries, and of what others may reach by it.
    fn settle_to_rename(&self, from: Ino, old: &[u8], to: Ino, new: &[u8], mode: RenameMode) -> Result<()> {
        let inner = self.lock();
        let Some((_, ino, _)) = inner.state.dirent(from, old)? else { return Ok(()) };
        let target = inner.state.dirent(to, new)?;
        drop(inner);
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => Ok(()),
            (Some(_), RenameMode::Replace) => self.settle_to_carry(ino),
            (Some((_, other, _)), RenameMode::Exchange) => {
                self.settle_to_carry(ino).and_then(|()| self.settle_to_carry(other))
            }
            (None, _) if from != to => self.settle_to_grant(ino),
            (None, _) => Ok(()),
        }
    }

    /// Before somebody is allowed more of a file whose content will be committed with that: who grants waits for the data, and not who
    /// syncs next.
    pub(super) fn settle_to_grant(&self, ino: Ino) -> Result<()> {
        let inner = self.lock();
        if self.options.read_only || !inner.hides_older(ino)? {
            return Ok(());
        }
        drop(inner);
        self.settle_file(ino).map(drop)
    }
}

impl Inner {
    /// Entries of a directory with keys from `from` to `to`, until `each` says false; where to go on, where that was not all.
    fn entries_from(
        &self,
        at: At,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<Option<Key>> {
        let view = self.state.view(at)?;
        view.all_is_known(Ino(from.ino))?;
        let mut bad = None;
        let mut one = |k: &Key, v: &crate::index::Value| match Dirent::decode(v) {
            Ok(d) => {
                let kind = FileKind::from_mode(u32::from(d.file_type) << 12);
                match each(DirEntry { name: d.name.to_vec(), ino: d.ino, kind, cookie: k.off }) {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            }
            Err(why) => {
                bad = Some(crate::state::bad_item(k, why));
                ControlFlow::Break(())
            }
        };
        let mut next = view.scan_some(from, to, &mut one)?;
        while let (Some(from), true) = (next, broken(Break::SeeksLocked)) {
            next = view.scan_some(&from, to, &mut one)?;
        }
        bad.map_or(Ok(next), Err)
    }

    /// A name is about to appear that must never show older content: the
    /// file's content is committed together with that namespace operation.
    fn carry_content(&mut self, ino: Ino) {
        if broken(Break::NoCarry) {
            return;
        }
        self.join(ino);
    }

    /// Somebody is about to be allowed more of a file. It is of what the file is now that this is said: what it was, where that is committed
    /// or about to be, must not be seen under it. Who is still writing the file anew gives up that it is seen old or new as a whole.
    pub(super) fn carry_over_older(&mut self, ino: Ino) -> Result<()> {
        if self.hides_older(ino)? && !broken(Break::GrantedAhead) {
            self.join(ino);
        }
        Ok(())
    }

    /// Whether content of a file waits which is not all that others would see of it, if it were not committed.
    fn hides_older(&self, ino: Ino) -> Result<bool> {
        let Some(content) = self.files.get(&ino).and_then(|f| f.content.as_ref()) else { return Ok(false) };
        let older = self.state.inode(ino)?.is_some_and(|i| i.size > 0 && content.hides_older(i.size));
        Ok(older || self.batch.aside.iter().any(|(of, _)| *of == ino))
    }

    /// Content of a file, if there is any, is part of the next commit, held back or not.
    fn join(&mut self, ino: Ino) {
        if let Some(c) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) {
            c.held_since = None;
            self.batch.files.insert(ino);
        }
    }
}
