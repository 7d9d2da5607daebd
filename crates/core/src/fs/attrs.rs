//! Attributes, extended attributes, and the uses of an inode.

use super::beside::Pace;
use super::bursts::Who;
use super::guard::Guard;
use super::space::Room;
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::state::xattr_pieces;
use crate::{At, Attr, Error, Result, SetAttr, SetTime, XattrMode};
use nenrin_format::items::{HISTORY_XATTR, INODE_CAPS, INODE_XATTR, Inode, Keep, XattrPiece};
use nenrin_format::key::{Key, Kind};
use nenrin_format::records::{Record, attr_mask};
use nenrin_format::{Ino, NAME_BYTES_MAX, Time, XATTR_BYTES_MAX};
use std::ops::ControlFlow;

/// Pages of a file that is closed which may wait for its commit in memory.
const CLOSED_PAGES_MAX: usize = 31;
/// An attribute that is replaced may become a little larger: up to a multiple of so many bytes.
const REPLACED_BYTES: usize = 256;
/// The attribute that says which capabilities a program has.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

impl Fs {
    /// Changes attributes; a new size cuts or extends the content.
    ///
    /// # Errors
    /// [`Error::NotFound`]; for sizes those of writing.
    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if set.kill_privileges && set.size.is_some() {
            // Of what is cut off some may be committed before the rest.
            self.setattr(ino, &SetAttr { kill_privileges: true, ..SetAttr::default() })?;
        }
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            let inode = self.lock_to_accept()?.state.inode(ino)?;
            if inode.is_some_and(|i| Inner::grants(&i, set, set.mode.unwrap_or(i.mode) & 0o7777)) {
                self.settle_to_grant(ino)?;
            }
        }
        let mut inner = self.resized(ino, set)?;
        let inode = inner.state.inode(ino)?.ok_or(Error::NotFound)?;
        let loses_caps = set.kill_privileges && inode.flags & INODE_CAPS != 0;
        if loses_caps {
            inner.state.xattr_ahead(ino, CAPABILITY, None)?;
        }
        let (wall, now) = (self.clock.wall(), self.clock.monotonic_nanos());
        inner.set_attributes(ino, &inode, set, wall, now)?;
        if loses_caps {
            let record = Record::RemoveXattr { ino, ctime: wall, name: CAPABILITY };
            inner.log(&record, now)?;
            inner.set_content_ctime(ino, wall);
        }
        inner.attr(At::Live, ino)
    }

    /// Cuts or extends the content where a size is given. What is changed behind that can be read, and has room.
    fn resized(&self, ino: Ino, set: &SetAttr) -> Result<Guard<'_>> {
        let Some(size) = set.size else {
            let inner = self.room_to_remove()?;
            inner.state.inode_ahead(ino)?;
            return Ok(inner);
        };
        // Before anything is cut.
        let inner = self.lock_to_accept()?;
        inner.state.inode_ahead(ino)?;
        if set.kill_privileges && inner.state.inode(ino)?.is_some_and(|i| i.flags & INODE_CAPS != 0) {
            inner.state.xattr_ahead(ino, CAPABILITY, None)?;
        }
        drop(inner);
        self.truncate(ino, size, set)
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`].
    pub fn getxattr(&self, at: At, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inner = self.lock();
        let view = inner.state.view(at)?;
        let inode = view.inode(ino)?;
        if name == HISTORY_XATTR {
            return inode.history().map(|h| h.text().into()).ok_or(Error::NoAttribute);
        }
        if inode.flags & INODE_XATTR == 0 {
            return Err(Error::NoAttribute);
        }
        let group = inner.state.xattr_key(ino, name);
        let last = Key { off: group.off | crate::state::SLOT_MASK, ..group };
        let mut found = None;
        view.scan(&group, &last, &mut |k, v| match XattrPiece::decode(v) {
            Ok(p) if p.name == name => {
                found = Some((*k, p.value_bytes as usize, p.bytes.to_vec()));
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })?;
        let (key, length, mut value) = found.ok_or(Error::NoAttribute)?;
        for piece in 1..xattr_pieces(length) {
            let key = Key { fork: piece, ..key };
            let v =
                view.get(&key)?.ok_or_else(|| Error::Corrupt(format!("an attribute of inode {ino} lacks a piece")))?;
            let p = XattrPiece::decode(&v).map_err(|why| crate::state::bad_item(&key, why))?;
            value.extend_from_slice(p.bytes);
        }
        if value.len() == length {
            Ok(value)
        } else {
            Err(Error::Corrupt(format!("an attribute of inode {ino} is too short")))
        }
    }

    /// Names of all extended attributes, in memory for all of them: for one whose attributes may be very many see [`Fs::each_xattr`].
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn listxattr(&self, at: At, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.each_xattr(at, ino, &mut |name| {
            names.push(name.to_vec());
            true
        })?;
        Ok(names)
    }

    /// Gives the names of all extended attributes to `each`, until that has enough. It is not to call the library.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn each_xattr(&self, at: At, ino: Ino, each: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        let (history, mut next) = self.xattrs_begin(at, ino)?;
        if history.is_some() && !each(HISTORY_XATTR) {
            return Ok(());
        }
        while let Some(from) = next {
            // Others come in between.
            next = self.lock().list_some(at, &from, each)?;
        }
        Ok(())
    }

    /// What is kept of the history of an inode, which is one of its attributes, and where the others begin.
    pub(super) fn xattrs_begin(&self, at: At, ino: Ino) -> Result<(Option<Keep>, Option<Key>)> {
        let inode = self.lock().state.view(at)?.inode(ino)?;
        let begin = (inode.flags & INODE_XATTR != 0).then(|| Key::new(ino, Kind::Xattr, 0, 0));
        Ok((inode.history(), begin))
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoAttribute`] as `mode` demands; [`Error::TooLarge`].
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.setxattr_with_mode(ino, name, value, mode, None)
    }

    /// Sets an extended attribute together with the permission bits that an ACL implies.
    ///
    /// # Errors
    /// As [`Fs::setxattr`].
    pub fn setxattr_with_mode(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        permissions: Option<u32>,
    ) -> Result<()> {
        check_value(name, value)?;
        if grants_by(name) || permissions.is_some() {
            self.settle_to_grant(ino)?;
        }
        // In place of another one as large, or to say who may do what and what history is kept, it is no growth.
        let inner = self.lock_to_accept()?;
        let had = inner.check_xattr(ino, name, mode)?;
        drop(inner);
        let as_large = |had: usize| value.len() <= had.max(1).next_multiple_of(REPLACED_BYTES);
        let replaces = had.is_some_and(|had| as_large(had) || broken(Break::LargerAttributes));
        let blocks = blocks_of(value);
        let passes = (replaces || permissions.is_some() || name == HISTORY_XATTR) && !broken(Break::AttributesGrow);
        let mut inner = self.room(if passes { Room::Passing(blocks) } else { Room::Content(blocks) })?;
        inner.check_xattr(ino, name, mode)?;
        inner.state.xattr_ahead(ino, name, Some(value.len()))?;
        if permissions.is_some() || grants_by(name) {
            inner.carry_over_older(ino)?;
        }
        let ctime = self.clock.wall();
        let record = Record::SetXattr { ino, ctime, mode: permissions.map_or(u32::MAX, |m| m & 0o7777), name, value };
        inner.log(&record, self.clock.monotonic_nanos())?;
        inner.set_content_ctime(ino, ctime);
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`].
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        if grants_by(name) {
            self.settle_to_grant(ino)?;
        }
        let mut inner = self.room_to_remove()?;
        inner.state.inode(ino)?.ok_or(Error::NotFound)?;
        if inner.xattr_bytes(ino, name)?.is_none() {
            return Err(Error::NoAttribute);
        }
        inner.state.xattr_ahead(ino, name, None)?;
        if grants_by(name) {
            // A list may have kept somebody out.
            inner.carry_over_older(ino)?;
        }
        let ctime = self.clock.wall();
        inner.log(&Record::RemoveXattr { ino, ctime, name }, self.clock.monotonic_nanos())?;
        inner.set_content_ctime(ino, ctime);
        Ok(())
    }

    /// The inode is in use: unlinking its last name leaves it as an orphan.
    pub fn retain(&self, ino: Ino) {
        self.lock().files.entry(ino).or_default().uses += 1;
    }

    /// One use less; the last of an orphan lets it go: at once, or, where there is no room for that, as soon as there is some.
    pub fn release(&self, ino: Ino) {
        let mut inner = self.lock();
        let Some(f) = inner.files.get_mut(&ino) else { return };
        f.uses = f.uses.saturating_sub(1);
        if f.uses > 0 {
            return;
        }
        if self.options.read_only || !inner.is_unused_orphan(ino) {
            inner.forget_use(ino);
            return;
        }
        drop(inner);
        match self.room_to_remove() {
            Ok(mut inner) if inner.is_unused_orphan(ino) => {
                // What cannot be read is left to the next mount. A failure is noted by `log` and ends all writing.
                drop(inner.let_orphan_go(self, ino));
            }
            Ok(mut inner) => inner.forget_use(ino),
            Err(_) if broken(Break::OrphansLeft) => {}
            Err(_) => drop(self.lock().orphans_left.insert(ino)),
        }
    }

    /// A handle was closed: what was written starts its way to the device, and
    /// a held-back truncation is held no longer.
    ///
    /// # Errors
    /// An earlier failed write.
    pub fn flush(&self, ino: Ino) -> Result<()> {
        self.note_closed(ino)?;
        self.write_closed(ino)
    }

    /// Of this what has to be done before anybody counts on the close: it waits for nothing but the lock.
    ///
    /// # Errors
    /// See [`Self::flush`].
    pub fn note_closed(&self, ino: Ino) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let mut inner = self.lock();
        inner.check_alive()?;
        let Some(file) = inner.files.get_mut(&ino) else { return Ok(()) };
        file.had = None;
        let Some(c) = &mut file.content else { return Ok(()) };
        let was_held = c.held_since.is_some();
        c.note_closed();
        inner.changed_since_cut |= was_held;
        Ok(())
    }

    /// And the rest, which may wait.
    ///
    /// # Errors
    /// See [`Self::flush`].
    pub fn write_closed(&self, ino: Ino) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.write_all_behind(ino, CLOSED_PAGES_MAX, Pace::BesideSyncs(Who::Writes))
    }
}

/// The permission bits that it has then.
fn mode_after(inode: &Inode, set: &SetAttr) -> u32 {
    let mode = set.mode.unwrap_or(inode.mode) & 0o7777;
    match (set.kill_privileges && set.mode.is_none(), mode & 0o010 != 0) {
        (true, true) => mode & !0o6000,
        (true, false) => mode & !0o4000,
        (false, _) => mode,
    }
}

/// Whether an attribute may have this name and this value.
pub(super) fn check_value(name: &[u8], value: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Error::BadArgument("an attribute name of impossible length"));
    }
    if value.len() > XATTR_BYTES_MAX {
        return Err(Error::TooLarge);
    }
    if name == HISTORY_XATTR && Keep::parse(value).is_none() {
        return Err(Error::BadArgument("how much history is kept is one of full, daily, none"));
    }
    Ok(())
}

/// Names of attributes that are listed under one hold of the lock.
const NAMES_AT_ONCE: usize = 512;

/// Names of attributes that say who may do what begin so.
const GRANTING: [&[u8]; 2] = [b"system.posix_acl_", b"security."];

pub(crate) fn grants_by(name: &[u8]) -> bool {
    GRANTING.iter().any(|prefix| name.starts_with(prefix))
}

/// Blocks for which there has to be room to set an attribute.
pub(super) fn blocks_of(value: &[u8]) -> u64 {
    1 + value.len() as u64 / 4096
}

impl Inner {
    /// All but the size, of an inode that is in memory.
    fn set_attributes(&mut self, ino: Ino, inode: &Inode, set: &SetAttr, wall: Time, now: u64) -> Result<()> {
        let mode = mode_after(inode, set);
        if Self::grants(inode, set, mode) {
            self.carry_over_older(ino)?;
        }
        let changed = [
            (mode != inode.mode & 0o7777 || set.mode.is_some(), attr_mask::MODE),
            (set.uid.is_some(), attr_mask::UID),
            (set.gid.is_some(), attr_mask::GID),
            (set.atime.is_some(), attr_mask::ATIME),
            (set.mtime.is_some(), attr_mask::MTIME),
        ];
        let mask = changed.into_iter().filter(|(is, _)| *is).fold(0, |mask, (_, bit)| mask | bit);
        if mask == 0 && set.ctime.is_none() {
            return Ok(());
        }
        // Content that is not committed yet carries its times: what is older must not be seen with them.
        let waits = self.files.get(&ino).is_some_and(|f| f.content.is_some()) && !broken(Break::TimesAhead);
        let carried = if waits { attr_mask::MTIME } else { 0 };
        let time = |t: Option<SetTime>| match t {
            Some(SetTime::Now) => wall,
            Some(SetTime::At(t)) => t,
            None => Time(0),
        };
        let (atime, mtime) = (time(set.atime), time(set.mtime));
        let ctime = if broken(Break::KernelTimesDropped) { wall } else { set.ctime.map_or(wall, |t| time(Some(t))) };
        if !waits || mask & !carried != 0 {
            let mask = mask & !carried | attr_mask::CTIME;
            let (uid, gid) = (set.uid.unwrap_or(0), set.gid.unwrap_or(0));
            self.log(&Record::SetAttr { ino, mask, mode, uid, gid, atime, mtime, ctime }, now)?;
        } else {
            self.changed_since_cut = true;
        }
        if set.atime.is_some() {
            self.accesses.forget(ino);
        }
        // Uncommitted content carries times too; the last one set wins.
        if let Some(c) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) {
            c.ctime = ctime;
            if set.mtime.is_some() {
                c.mtime = mtime;
            }
        }
        Ok(())
    }

    /// Whether somebody may do more with a file afterwards, or may be somebody else.
    fn grants(inode: &Inode, set: &SetAttr, mode: u32) -> bool {
        let is_other = |new: Option<u32>, old: u32| new.is_some_and(|new| new != old);
        let may_more = set.mode.is_some() && mode & !inode.mode & 0o7777 != 0;
        may_more || is_other(set.uid, inode.uid) || is_other(set.gid, inode.gid)
    }

    /// Whether an inode has neither a name nor a use.
    fn is_unused_orphan(&self, ino: Ino) -> bool {
        self.is_unused(ino) && matches!(self.state.inode(ino), Ok(Some(inode)) if inode.nlink == 0)
    }

    /// Nothing is to be known any more of a file that nobody uses, unless it has content that waits.
    fn forget_use(&mut self, ino: Ino) {
        if self.files.get(&ino).is_some_and(|f| f.uses == 0 && f.content.is_none()) {
            self.files.remove(&ino);
        }
    }

    /// Lets an orphan go that nobody uses, with its uncommitted content. It stays until the next mount where something that this needs
    /// cannot be read.
    fn let_orphan_go(&mut self, fs: &Fs, ino: Ino) -> Result<()> {
        let outcome = self.log_release(ino, fs.clock.monotonic_nanos());
        self.forget_content(ino);
        outcome
    }

    /// Lets one of the orphans go for which there was no room before; false when there is none any more. Not without room. What cannot
    /// be read is passed over and noted.
    pub(super) fn let_orphan_left_go(&mut self, fs: &Fs) -> Result<bool> {
        while let Some(ino) = self.orphans_left.pop_first() {
            let gone = match self.state.inode(ino) {
                Ok(Some(inode)) if inode.nlink == 0 && self.is_unused(ino) => {
                    self.let_orphan_go(fs, ino).map(|()| true)
                }
                Err(_) if broken(Break::NotReadAhead) => self.let_orphan_go(fs, ino).map(|()| true),
                other => other.map(|_| false),
            };
            match gone {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(why) => {
                    self.check_alive()?;
                    self.reaper.lost.get_or_insert(why);
                }
            }
        }
        Ok(false)
    }

    /// Bytes of an attribute, where there is one.
    fn xattr_bytes(&self, ino: Ino, name: &[u8]) -> Result<Option<usize>> {
        if name == HISTORY_XATTR {
            return Ok(self.state.need_inode(ino)?.history().map(|h| h.text().len()));
        }
        let group = self.state.xattr_key(ino, name);
        let slot = self.state.find_slot(group, |v| XattrPiece::decode(v).is_ok_and(|p| p.name == name))?;
        Ok(slot.map(|(_, v)| XattrPiece::decode(&v).map_or(0, |p| p.value_bytes as usize)))
    }

    /// Gives names of attributes from this key on to `each`, some at a time; where to go on, unless that has enough.
    pub(super) fn list_some(&self, at: At, from: &Key, each: &mut dyn FnMut(&[u8]) -> bool) -> Result<Option<Key>> {
        let to = Key { off: u64::MAX, ..*from };
        let (mut left, mut next) = (NAMES_AT_ONCE, None);
        self.state.view(at)?.scan(from, &to, &mut |key, v| {
            if left == 0 {
                next = Some(*key);
                return ControlFlow::Break(());
            }
            left -= 1;
            match XattrPiece::decode(v) {
                Ok(p) if !each(p.name) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        })?;
        Ok(next.map(|key: Key| Key { off: key.off, ..*from }))
    }

    /// The same, for who sets it.
    fn check_xattr(&self, ino: Ino, name: &[u8], mode: XattrMode) -> Result<Option<usize>> {
        self.state.inode(ino)?.ok_or(Error::NotFound)?;
        match (mode, self.xattr_bytes(ino, name)?) {
            (XattrMode::Create, Some(_)) => Err(Error::Exists),
            (XattrMode::Replace, None) => Err(Error::NoAttribute),
            (_, had) => Ok(had),
        }
    }

    /// Uncommitted content carries the change time too; it must not turn back
    /// what a namespace operation has set.
    pub(super) fn set_content_ctime(&mut self, ino: Ino, ctime: Time) {
        if let Some(c) = self.files.get_mut(&ino).and_then(|f| f.content.as_mut()) {
            c.ctime = ctime;
        }
    }
}
