//! Attributes: GETATTR, STATX, SETATTR, ACCESS, and the privileges that a
//! change of content takes away.

use super::files::handle_number;
use super::names::Waiter;
use super::{Result, Server, caller};
use crate::acl;
use crate::perm::{self, Caller};
use crate::proto::abi::{AttrOut, InHeader, StatxOut};
use crate::proto::reply;
use crate::proto::request::Setattr;
use nenrin_core::{At, Attr, FileKind, SetAttr, SetTime};
use nenrin_format::Ino;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// The set-id bits of a mode that a write takes away. A set-group-id bit without group execution once stood for mandatory locking: a
/// member of the group leaves it, whom chmod(2) would let set it; somebody else does not.
fn killed_bits(mode: u32, may_set: impl FnOnce() -> bool) -> u32 {
    let loses_group = mode & SET_GID != 0 && (mode & GROUP_EXECUTE != 0 || !may_set());
    mode & SET_UID | if loses_group { SET_GID } else { 0 }
}

impl Server {
    /// Whether a file has no block and the kernel may have content for it: tar(1) takes one without blocks for all hole, and does not
    /// read it. Under writeback the kernel also has the size.
    fn looks_empty(&self, attr: &Attr) -> bool {
        let has_size = attr.size > 0 || self.agreed.writeback();
        attr.blocks_512 == 0 && has_size && attr.kind() == FileKind::Regular && self.may_wait(attr.ino.0)
    }

    /// What the kernel is told of an inode of the state that is mounted.
    pub(super) fn told(&self, mut attr: Attr) -> Attr {
        if self.looks_empty(&attr) {
            attr.blocks_512 = 1;
        }
        attr
    }

    /// A handle was opened or closed: the kernel may have been told otherwise of a file without blocks.
    pub(super) fn tell_blocks(&self, ino: u64) {
        if self.volume.getattr(At::Live, Ino(ino)).is_ok_and(|attr| attr.blocks_512 == 0) {
            self.drop_attributes(ino);
        }
    }

    pub(super) fn getattr(&self, ino: u64) -> Result<AttrOut> {
        Ok(reply::attr_out(&self.attr_of(ino)?, self.valid(ino)))
    }

    pub(super) fn statx(&self, ino: u64) -> Result<StatxOut> {
        Ok(reply::statx(&self.attr_of(ino)?, self.valid(ino)))
    }

    pub(super) fn access(&self, head: &InHeader, mask: u32) -> Result<()> {
        if mask & perm::WRITE != 0 {
            self.changeable()?;
        }
        self.check(head, head.nodeid, mask & 7)
    }

    /// Files that others may see more of after a change of attributes, of which the kernel may keep content that hides older bytes: it
    /// has to come in first. Under writeback the kernel itself sends it before it asks; with a new size it sends nothing until it is
    /// answered, so there it is not waited for.
    pub(super) fn granted_by_attributes(&self, ino: u64, set: &SetAttr) -> Vec<u64> {
        let grants = set.size.is_none() && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some());
        let waits = grants && !self.agreed.writeback() && self.may_wait(ino);
        waits.then_some(ino).into_iter().collect()
    }

    /// Whether a time is set of a file of which the kernel may keep content, which would count as a change of later when it comes. As
    /// above, under writeback the kernel sends it before.
    fn is_dated(&self, ino: u64, set: &SetAttr) -> bool {
        let dates = set.size.is_none() && matches!(set.mtime, Some(SetTime::At(_)));
        dates && !self.agreed.writeback() && self.may_wait(ino)
    }

    /// Runs a change of attributes, when what has to come in before it has.
    pub(super) fn with_pages_for(self: &Arc<Self>, ino: u64, set: &SetAttr, change: impl FnOnce() + Send + 'static) {
        let granted = self.granted_by_attributes(ino, set);
        if !granted.is_empty() || !self.is_dated(ino, set) {
            return self.with_pages(&granted, change);
        }
        let server = self.clone();
        // A time alone takes no place from who protects content, and no name waits for it.
        self.after_pages(Waiter::Seek, move |waits| {
            if waits {
                server.drop_pages(ino);
            }
            change();
        });
    }

    pub(super) fn setattr(&self, head: &InHeader, change: &Setattr) -> Result<AttrOut> {
        self.changeable()?;
        let ino = head.nodeid;
        // The kernel opens a file before it empties it for O_TRUNC, and says of that no more than of truncate(2).
        let closed = change.handle.is_none() && self.open_files.writer(ino).is_none();
        let mut set = SetAttr { editor: Some(head.uid), closed, ..change.set };
        if self.behaviour.own_check {
            let attr = self.attr_of(ino)?;
            let needed = perm::may_set(&caller(head), &attr, change)?;
            if needed.write {
                self.check_attr(&caller(head), &attr, perm::WRITE)?;
            }
            if needed.clear_setgid {
                set.mode = set.mode.map(|mode| mode & !SET_GID);
            }
        }
        if set.mode.is_some() || set.gid.is_some() {
            self.plain_directories.remove(ino);
        }
        if set.kill_privileges && set.mode.is_none() {
            self.shed_privileges(&caller(head), ino)?;
        }
        if let Some(mode) = set.mode {
            self.chmod_acl(ino, mode)?;
        }
        self.keep_times_of_same_size(ino, &mut set)?;
        if set.size == Some(0) && !closed {
            // First: what another handle's end finds held is then not taken for that one's.
            self.open_files.emptied(ino, change.handle.map(handle_number));
        }
        let attr = self.volume.setattr(Ino(ino), &set)?;
        if set.mode.is_some_and(|mode| mode & (SET_UID | SET_GID) != 0) {
            self.privileges_may_have_grown();
        }
        Ok(reply::attr_out(&self.told(attr), self.behaviour.valid))
    }

    /// Under writeback the kernel, which has the times, moves none for the size that a file has, and sends none.
    fn keep_times_of_same_size(&self, ino: u64, set: &mut SetAttr) -> Result<()> {
        // What changes more than the size moves them.
        let only_size = SetAttr { editor: set.editor, closed: set.closed, size: set.size, ..SetAttr::default() };
        if !self.agreed.writeback() || set.size.is_none() || *set != only_size {
            return Ok(());
        }
        let attr = self.attr_of(ino)?;
        if set.size == Some(attr.size) {
            (set.mtime, set.ctime) = (Some(SetTime::At(attr.mtime)), Some(SetTime::At(attr.ctime)));
        }
        Ok(())
    }

    /// Brings the access list of an inode, if it has one, in line with a new
    /// mode, and sets that in the same step.
    fn chmod_acl(&self, ino: u64, mode: u32) -> Result<()> {
        if let Some(old) = self.acl_of(At::Live, ino, acl::ACCESS)? {
            self.set_acl(ino, acl::ACCESS, &old.with_mode(mode), Some(mode))?;
        }
        Ok(())
    }

    /// To be called after every change by which a file may get set-id bits.
    pub(super) fn privileges_may_have_grown(&self) {
        self.privilege_epoch.fetch_add(1, Ordering::Release);
    }

    /// Takes set-id bits from a file whose content is about to change, so that
    /// they are gone in every state in which the new content is there.
    ///
    /// A file that was looked at once is not looked at again before some mode
    /// changes: otherwise every write would pay for it.
    pub(super) fn shed_privileges(&self, caller: &Caller, ino: u64) -> Result<()> {
        if !self.agreed.kills_privileges() {
            return Ok(());
        }
        let epoch = self.privilege_epoch.load(Ordering::Acquire);
        if self.open_files.is_unprivileged(ino, epoch) {
            return Ok(());
        }
        let attr = self.attr_of(ino)?;
        let killed = killed_bits(attr.mode, || caller.is_root() || caller.is_member(attr.gid));
        let mode = attr.mode & 0o7777 & !killed;
        if killed != 0 {
            let kill = SetAttr { kill_privileges: true, mode: Some(mode), ..Default::default() };
            self.open_files.leave_alone(ino, Instant::now());
            let taken = self.volume.setattr(Ino(ino), &kill);
            // The kernel thinks it knows the mode, and would run the file with it.
            self.permissions_changed(ino);
            taken?;
        }
        // A bit that this one leaves somebody else takes.
        if mode & SET_GID == 0 {
            self.open_files.set_unprivileged(ino, epoch);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::init::Wishes;
    use nenrin_format::Time;

    #[test]
    fn what_a_change_of_attributes_waits_for() {
        for writeback in [false, true] {
            let (_, server, _) = testing::server(Wishes { writeback, acl: true, rings: false, page_bytes: 4096 });
            server.open_files.open(7, 0, true);
            server.open_files.open(8, 0, false);
            let waits = |set: SetAttr| {
                let of = |ino| (!server.granted_by_attributes(ino, &set).is_empty(), server.is_dated(ino, &set));
                assert!(writeback || of(8) == (false, false), "nobody maps it");
                of(7)
            };
            let none = SetAttr::default;
            let (then, now) = (Some(SetTime::At(Time(1))), Some(SetTime::Now));
            assert_eq!(waits(SetAttr { mode: Some(0o644), ..none() }), (!writeback, false));
            assert_eq!(waits(SetAttr { atime: now, mtime: then, ..none() }), (false, !writeback));
            assert_eq!(waits(SetAttr { mtime: now, ..none() }), (false, false), "what comes later is later");
            assert_eq!(waits(SetAttr { atime: then, ..none() }), (false, false));
            let cut = SetAttr { mtime: then, size: Some(5), ..none() };
            assert_eq!(waits(cut), (false, false), "nothing comes before the answer");
        }
    }

    #[test]
    fn what_counts_as_privileged() {
        assert_eq!(killed_bits(0o104_644, || false), SET_UID);
        assert_eq!(killed_bits(0o106_755, || true), SET_UID | SET_GID);
        assert_eq!(killed_bits(0o102_745, || true), 0);
        assert_eq!(killed_bits(0o102_745, || false), SET_GID);
        assert_eq!(killed_bits(0o101_777, || false), 0);
    }
}
