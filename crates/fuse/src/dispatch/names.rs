//! Names: LOOKUP, READLINK, LINK, UNLINK, RMDIR, RENAME.

use super::{Result, Server, caller, checked_name};
use crate::errno::Errno;
use crate::perm;
use crate::proto::abi::InHeader;
use crate::transport::Reply;
use nenrin_core::{At, Attr, Error, FileKind, RenameMode};
use nenrin_format::Ino;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const CHANGE: u32 = perm::WRITE | perm::EXECUTE;

/// Who waits for what the kernel sends. What may be left to answer at once takes nothing from who protects content, and nothing from
/// each other.
#[derive(Clone, Copy)]
pub(super) enum Waiter {
    /// A change of names or permissions.
    Change,
    /// Who looks for holes, or sets a time.
    Seek,
    /// Who writes to a full volume.
    Write,
}

impl Waiter {
    pub const KINDS: usize = 3;

    /// So many of them may wait: a part of a ring. Together they leave entries for what they wait for.
    const fn most(self) -> usize {
        let part = match self {
            Self::Change => 2,
            Self::Seek => 4,
            Self::Write => 8,
        };
        crate::ring::DEPTH as usize / part
    }
}

const _: () = assert!(
    Waiter::Change.most() + Waiter::Seek.most() + Waiter::Write.most() + crate::ring::DEPTH as usize / 8
        <= crate::ring::DEPTH as usize
);

/// A request that waits for what the kernel sends, until it is answered.
struct Waits(Arc<Server>, Waiter);

impl Waits {
    /// Unless too many do: what the kernel sends takes an entry of a ring, of which each that waits has one until it is answered.
    fn begin(server: &Arc<Server>, waiter: Waiter) -> Option<Self> {
        let most = if server.agreed.rings() { waiter.most() } else { usize::MAX };
        let one_more = |n: usize| (n < most).then_some(n + 1);
        let begun = server.bringing[waiter as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        begun.ok().map(|_| Self(server.clone(), waiter))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.bringing[self.1 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    pub(super) fn lookup(&self, head: &InHeader, name: &[u8]) -> Result<Attr> {
        // A file handle of NFS asks for "." of any inode, not only of directories.
        if name == b"." {
            return self.attr_of(head.nodeid);
        }
        let name = checked_name(name)?;
        self.check(head, head.nodeid, perm::EXECUTE)?;
        if let Some(made) = self.made(head.nodeid, name) {
            return made.and_then(|made| self.attr_of(made.id()));
        }
        let place = self.place(head.nodeid)?;
        self.seen(place, self.volume.lookup(place.at, place.ino, name)?)
    }

    pub(super) fn readlink(&self, id: u64) -> Result<Vec<u8>> {
        let place = self.place(id)?;
        self.keeps_pages(id);
        let target = self.volume.readlink(place.at, place.ino)?;
        self.accessed(id);
        Ok(target)
    }

    pub(super) fn unlink(&self, head: &InHeader, name: &[u8]) -> Result<()> {
        let name = self.ready_to_remove(head, name)?;
        Ok(self.volume.unlink(Ino(head.nodeid), name)?)
    }

    pub(super) fn rmdir(&self, head: &InHeader, name: &[u8]) -> Result<()> {
        let name = self.ready_to_remove(head, name)?;
        Ok(self.volume.rmdir(Ino(head.nodeid), name)?)
    }

    fn ready_to_remove<'a>(&self, head: &InHeader, name: &'a [u8]) -> Result<&'a [u8]> {
        self.changeable()?;
        let name = checked_name(name)?;
        self.check_removal(head, head.nodeid, name)?;
        self.hold(self.volume.lookup(At::Live, Ino(head.nodeid), name)?.ino);
        Ok(name)
    }

    pub(super) fn link(self: &Arc<Self>, head: &InHeader, ino: u64, name: &[u8], reply: Reply) {
        let ready = self.changeable().and_then(|()| {
            let name = checked_name(name)?.to_vec();
            self.check(head, head.nodeid, CHANGE)?;
            Ok((name, self.may_wait(ino)))
        });
        let (name, waits) = match ready {
            Ok(ready) => ready,
            Err(e) => return reply.error(e),
        };
        let (server, parent) = (self.clone(), head.nodeid);
        self.with_pages(waits.then_some(ino).as_slice(), move || {
            let made = server.volume.link(Ino(ino), Ino(parent), &name);
            server.answer_entry(reply, made.map_err(Errno::from));
        });
    }

    pub(super) fn rename(self: &Arc<Self>, head: &InHeader, old: &[u8], to: u64, new: &[u8], flags: u32, reply: Reply) {
        let from = head.nodeid;
        let ready = rename_mode(flags).and_then(|mode| {
            self.changeable()?;
            let (old, new) = (checked_name(old)?.to_vec(), checked_name(new)?.to_vec());
            self.check_rename(head, &old, to, &new, mode)?;
            let replacing = self.replacing(from, &old, to, &new, mode)?;
            Ok((mode, old, new, replacing))
        });
        let (mode, old, new, replacing) = match ready {
            Ok(ready) => ready,
            Err(e) => return reply.error(e),
        };
        let server = self.clone();
        self.with_pages(&replacing, move || {
            reply.done(server.volume.rename(Ino(from), &old, Ino(to), &new, mode));
        });
    }

    /// Runs `change`, after the pages of these files that the kernel still keeps have
    /// come in. A file may get the name of another before its content was sent, under writeback or
    /// where it is mapped; the name would then show an old or empty file. And others may see what that content hides, where the change
    /// lets them see the file.
    pub(super) fn with_pages(self: &Arc<Self>, inos: &[u64], change: impl FnOnce() + Send + 'static) {
        if inos.is_empty() {
            return change();
        }
        let Some(waits) = Waits::begin(self, Waiter::Change) else { return change() };
        let inos = inos.to_vec();
        self.names.run(move || {
            waits.0.bring_in(&inos);
            inos.iter().for_each(|ino| waits.0.await_notices(*ino));
            change();
        });
    }

    /// Runs `answer` where it may wait for pages of a file, for which no directory is locked; or at once, and tells it so, where too
    /// many wait already.
    pub(super) fn after_pages(self: &Arc<Self>, waiter: Waiter, answer: impl FnOnce(bool) + Send + 'static) {
        let Some(waits) = Waits::begin(self, waiter) else { return answer(false) };
        self.pages.run(move || {
            answer(true);
            drop(waits);
        });
    }

    /// Has the kernel send what it keeps of these files. Only for a thread that serves no request (invariant 1).
    pub(super) fn bring_in(&self, inos: &[u64]) {
        inos.iter().for_each(|ino| self.drop_pages(*ino));
    }

    /// The same of all files of which it may keep something.
    pub fn bring_in_all(&self) {
        self.bring_in(&self.open_files.waiting(self.agreed.writeback()));
    }

    /// Gets ready for the target of a rename to lose its name, if there is one,
    /// and says which files get the name of another, or come to another directory, where others may see them, with content that may not have
    /// come yet.
    fn replacing(&self, from: u64, old: &[u8], to: u64, new: &[u8], mode: RenameMode) -> Result<Vec<u64>> {
        let target = match self.volume.lookup(At::Live, Ino(to), new) {
            Ok(target) => Some(target.ino),
            Err(Error::NotFound) if from == to => return Ok(Vec::new()),
            Err(Error::NotFound) => None,
            Err(e) => return Err(e.into()),
        };
        let mut renamed = vec![self.volume.lookup(At::Live, Ino(from), old)?.ino];
        if let Some(target) = target {
            self.hold(target);
            renamed.extend((mode == RenameMode::Exchange).then_some(target));
        }
        Ok(renamed.into_iter().map(|ino| ino.0).filter(|ino| self.may_wait(*ino)).collect())
    }

    /// Our own check that a name may be taken out of a directory.
    fn check_removal(&self, head: &InHeader, dir: u64, name: &[u8]) -> Result<()> {
        if !self.behaviour.own_check {
            return Ok(());
        }
        let dir_attr = self.attr_of(dir)?;
        self.check_attr(&caller(head), &dir_attr, CHANGE)?;
        let inode = self.volume.lookup(At::Live, Ino(dir), name)?;
        perm::may_remove(&caller(head), &dir_attr, &inode)
    }

    fn check_rename(&self, head: &InHeader, old: &[u8], to: u64, new: &[u8], mode: RenameMode) -> Result<()> {
        if !self.behaviour.own_check {
            return Ok(());
        }
        self.check_removal(head, head.nodeid, old)?;
        match self.check_removal(head, to, new) {
            Err(Errno(libc::ENOENT)) if mode != RenameMode::Exchange => {}
            other => other?,
        }
        if head.nodeid == to {
            return Ok(());
        }
        // A directory that moves gets another "..", which is a change of itself.
        let mut moved = vec![self.volume.lookup(At::Live, Ino(head.nodeid), old)?];
        if mode == RenameMode::Exchange {
            moved.push(self.volume.lookup(At::Live, Ino(to), new)?);
        }
        let directories = moved.iter().filter(|attr| attr.kind() == FileKind::Directory);
        for attr in directories {
            self.check_attr(&caller(head), attr, perm::WRITE)?;
        }
        Ok(())
    }
}

fn rename_mode(flags: u32) -> Result<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Errno(libc::EINVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::init::Wishes;

    /// Who asks takes no entry of a ring from who changes something, nor writers from those who look for holes.
    #[test]
    fn those_who_wait_leave_entries_to_each_other() {
        let most = |rings| {
            let (_, server, _) = testing::server(Wishes { writeback: true, acl: true, rings, page_bytes: 4096 });
            let begin = |waiter| Waits::begin(&server, waiter);
            let mut all = Vec::new();
            let mut counts = [0; Waiter::KINDS];
            for (count, waiter) in counts.iter_mut().zip([Waiter::Write, Waiter::Seek, Waiter::Change]) {
                while let Some(waits) = begin(waiter).filter(|_| *count < 100) {
                    all.push(waits);
                    *count += 1;
                }
            }
            all.pop();
            assert!(begin(Waiter::Change).is_some(), "who is answered leaves his place");
            counts
        };
        assert_eq!(most(true), [4, 8, 16]);
        assert_eq!(most(false), [100; Waiter::KINDS]);
    }
}
