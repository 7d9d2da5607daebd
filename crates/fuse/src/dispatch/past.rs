//! The past inside a live mount: which state a node belongs to, what of it is
//! shown, and what is refused.

use super::{Result, Server, checked_name};
use crate::acl::{self, Acl};
use crate::errno::Errno;
use crate::past::{self, Life, Made, Node, Shelf};
use crate::perm;
use crate::proto::abi::InHeader;
use crate::proto::flags::ROOT_NODE;
use crate::proto::reply;
use crate::proto::request::Op;
use crate::transport::Reply;
use nenrin_core::{At, Attr, DirEntry, Error, FileKind};
use nenrin_format::{Ino, Time};
use std::time::{Duration, SystemTime};

/// How long the kernel may believe what it was told of the past: its
/// permissions are also those of now.
pub(crate) const PAST_VALID: Duration = Duration::from_secs(1);

/// Whether a name on a shelf means one state for as long as that is there, as numbers do. A snapshot may be deleted, and another get its
/// name, and who has asked for that looks at once.
fn means_the_same(name: &[u8]) -> bool {
    name.iter().all(u8::is_ascii_digit)
}

/// The time of this machine: states may have come and gone until now.
pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// The permissions of an inode of the past: no file runs as another user.
fn permissions(then: &Attr) -> u32 {
    then.mode & if then.kind() == FileKind::Regular { 0o1777 } else { 0o7777 }
}

/// Where the library has what a node id stands for.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub at: At,
    pub ino: Ino,
    /// The view through which it is seen, if it is not the state that is mounted.
    view: Option<u16>,
}

impl Server {
    /// Where the library has an inode.
    pub(super) fn place(&self, id: u64) -> Result<Place> {
        match Node::of(id) {
            Node::Own(ino) => Ok(Place { at: self.behaviour.at, ino, view: None }),
            Node::Past(view, ino) => {
                let cno = self.views.cno(view).ok_or(Errno(libc::ESTALE))?;
                Ok(Place { at: At::Past(cno), ino, view: Some(view) })
            }
            // The callers have dealt with what is ours.
            Node::Made(_) | Node::Nothing => Err(Errno(libc::ENOENT)),
        }
    }

    /// The kernel is about to be given what a node holds, and may keep that for as long as it knows it. The past does not change: so of
    /// that it is told when something is forgotten, and else never.
    pub(super) fn keeps_pages(&self, id: u64) {
        let is_past = self.behaviour.at != At::Live || past::is_past(id);
        let _ = is_past && self.past_nodes.hold(id);
    }

    /// Has the kernel drop what it keeps of states of the past. Only for a thread that serves no request (invariant 1 of the module
    /// above), after something was forgotten; what was read before that, and is answered meanwhile, takes another call.
    pub fn drop_past(&self) {
        self.past_nodes.held().into_iter().for_each(|id| self.drop_pages(id));
    }

    /// How long the kernel may believe what it is told of a node.
    pub(super) fn valid(&self, id: u64) -> Duration {
        if past::is_past(id) { PAST_VALID.min(self.behaviour.valid) } else { self.behaviour.valid }
    }

    /// What is refused because it is about the past, or about a name of ours.
    pub(super) fn refused(&self, head: &InHeader, op: &Op<'_>) -> Option<Errno> {
        self.behaviour.past.as_ref()?;
        let (node, is_past) = (head.nodeid, past::is_past(head.nodeid));
        let writes = |flags: u32| super::files::wanted(flags as i32) & perm::WRITE != 0;
        let read_only = Some(Errno(libc::EROFS));
        match op {
            Op::Setattr(_)
            | Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Create { .. }
            | Op::Tmpfile { .. }
            | Op::Write { .. }
            | Op::Fallocate { .. }
            | Op::Setxattr { .. }
            | Op::Removexattr { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
                if is_past =>
            {
                read_only
            }
            Op::Open { flags, .. } if is_past && writes(*flags) => read_only,
            Op::Access { mask } if is_past && mask & perm::WRITE != 0 => read_only,
            Op::Rename { to, .. } if past::is_past(*to) => read_only,
            Op::CopyFileRange { args, .. } if past::is_past(args.nodeid_out) => read_only,
            Op::Link { ino, .. } if past::is_past(*ino) => Some(Errno(libc::EXDEV)),
            Op::Rmdir { name } | Op::Unlink { name } if self.is_ours(node, name) => Some(Errno(libc::EPERM)),
            Op::Rename { old, to, new, .. } if self.is_ours(node, old) || self.is_ours(*to, new) => {
                Some(Errno(libc::EPERM))
            }
            _ => None,
        }
    }

    /// Whether a name stands for a directory that no volume stores.
    fn is_ours(&self, dir: u64, name: &[u8]) -> bool {
        self.made(dir, name).is_some_and(|made| made.is_ok())
    }

    /// The directory of ours that a name in one of ours, or in the root, stands
    /// for. What the volume has in its root under such a name comes first.
    pub(super) fn made(&self, dir: u64, name: &[u8]) -> Option<Result<Made>> {
        match Node::of(dir) {
            Node::Made(Made::Home) if name == b"at" => Some(Ok(Made::At)),
            Node::Made(_) | Node::Nothing => Some(Err(Errno(libc::ENOENT))),
            Node::Own(Ino::ROOT) if self.behaviour.past.is_some() => {
                let made = Made::in_root(name)?;
                let there = self.volume.lookup(At::Live, Ino::ROOT, name);
                matches!(there, Err(Error::NotFound)).then_some(Ok(made))
            }
            _ => None,
        }
    }

    /// The shelf that a node is.
    pub(super) fn shelf(&self, id: u64) -> Option<Shelf> {
        match Node::of(id) {
            Node::Made(made) => made.shelf(),
            _ => None,
        }
    }

    /// Answers a lookup on a shelf with the root of a state.
    pub(super) fn answer_state(&self, reply: Reply, shelf: Shelf, name: &[u8]) {
        let view = match self.enter(shelf, name) {
            Ok(Some(view)) => view,
            // Tomorrow there may be one.
            Ok(None) => return reply.value(&reply::no_entry(Duration::ZERO)).whatever(),
            Err(e) => return reply.error(e),
        };
        let root = past::id_of(view, Ino::ROOT).ok_or(Errno(libc::EOVERFLOW));
        let made = root.and_then(|id| self.attr_of(id)).map(|attr| {
            let mut entry = self.entry(&attr);
            if !means_the_same(name) {
                (entry.entry_valid, entry.entry_valid_nanos) = (0, 0);
            }
            (entry, attr)
        });
        self.answer_entry_with(reply, made);
        self.views.forget(&*self.volume, view, 1);
    }

    /// The view of the state that a name means, with one reference to be given back.
    /// Each name has its own, since the kernel wants a directory to have one name only, until they are very many
    /// ([`past`], invariant 3).
    fn enter(&self, shelf: Shelf, name: &[u8]) -> Result<Option<u16>> {
        let name = checked_name(name)?;
        let Some(cno) = self.behaviour.past.as_ref().and_then(|states| states.find(shelf, name)) else {
            return Ok(None);
        };
        self.views.enter(&*self.volume, cno, shelf, name).map(Some)
    }

    /// An inode as it is shown: of the past by its node id, and with permissions
    /// of then and now.
    pub(super) fn seen(&self, place: Place, mut attr: Attr) -> Result<Attr> {
        let Some(view) = place.view else { return Ok(self.told(attr)) };
        attr.mode = attr.mode & !0o7777 | permissions(&attr);
        if let Some((at, now)) = self.newest(place.at, attr.ino)? {
            let same_acl = self.has_same_acl((place.at, &attr), (at, &now))?;
            let life = if at == At::Live { Life::Alive } else { Life::Over };
            attr.mode = past::mode_of_both(&attr, (&now, life), same_acl);
        }
        // Whether a device may be opened we are not asked, and nothing of it is read-only: what is behind it is of today.
        if matches!(attr.kind(), FileKind::CharDevice | FileKind::BlockDevice) {
            attr.mode &= !0o777;
        }
        attr.ino = Ino(past::id_of(view, attr.ino).ok_or(Errno(libc::EOVERFLOW))?);
        Ok(attr)
    }

    /// What an inode is now; or was last, as far as that is known, when it is gone: who closes a file and
    /// then replaces it does not open its past again.
    fn newest(&self, than: At, ino: Ino) -> Result<Option<(At, Attr)>> {
        match self.volume.getattr(At::Live, ino) {
            Ok(now) => return Ok(Some((At::Live, now))),
            Err(Error::NotFound) => {}
            Err(e) => return Err(e.into()),
        }
        let Some(last) = self.volume.last_seen(ino)?.map(At::Past).filter(|last| *last != than) else {
            return Ok(None);
        };
        match self.volume.getattr(last, ino) {
            Ok(attr) => Ok(Some((last, attr))),
            Err(Error::NotFound) => Ok(None),
            // It went just now, and what there was before it is looked for the next time.
            Err(e) => Err(e.into()),
        }
    }

    /// Whether the access list of an inode says now what it said then, or there was none and is none. It names
    /// neither the owner nor the owning group, so it says something else once one of them is another.
    fn has_same_acl(&self, then: (At, &Attr), now: (At, &Attr)) -> Result<bool> {
        let of = |(at, attr): (At, &Attr)| match self.volume.getxattr(at, attr.ino, acl::ACCESS) {
            Ok(bytes) => Ok(Some(Some(bytes))),
            Err(Error::NoAttribute | Error::NotSupported | Error::NotFound) => Ok(Some(None)),
            // One that is not known any more is taken for another.
            Err(Error::Stale) => Ok(None),
            Err(e) => Err(Errno::from(e)),
        };
        let same_owners = (then.1.uid, then.1.gid) == (now.1.uid, now.1.gid);
        let (then, now) = (of(then)?, of(now)?);
        Ok(then.is_some() && then == now && (same_owners || then == Some(None)))
    }

    /// Whether an access list of the past says what may be done today, too.
    fn acl_counts(&self, place: Place) -> Result<bool> {
        if place.view.is_none() {
            return Ok(true);
        }
        let Some((at, now)) = self.newest(place.at, place.ino)? else { return Ok(true) };
        let then = self.volume.getattr(place.at, place.ino)?;
        self.has_same_acl((place.at, &then), (at, &now))
    }

    /// The access list by which a node is to be judged.
    pub(super) fn shown_acl(&self, id: u64) -> Result<Option<Acl>> {
        if let Node::Made(_) = Node::of(id) {
            return Ok(None);
        }
        let place = self.place(id)?;
        if !self.acl_counts(place)? {
            return Ok(None);
        }
        self.acl_of(place.at, place.ino.0, acl::ACCESS)
    }

    /// What is told of the state whose root a node is.
    pub(super) fn state_told(&self, id: u64) -> Result<Vec<u8>> {
        let unknown = Errno(libc::EOPNOTSUPP);
        let Node::Past(view, Ino::ROOT) = Node::of(id) else { return Err(unknown) };
        let cno = self.views.cno(view).ok_or(Errno(libc::ESTALE))?;
        let states = self.behaviour.past.as_ref().ok_or(unknown)?;
        states.told(cno).ok_or(Errno(libc::ESTALE))
    }

    /// The permissions that an inode had in a state, without bits that the past does not show.
    pub(super) fn mode_then(&self, head: &InHeader) -> Result<Vec<u8>> {
        let (_, then) = self.then_for(head)?;
        Ok(format!("{:o}", permissions(&then)).into_bytes())
    }

    /// The access list that it had.
    pub(super) fn acl_then(&self, head: &InHeader) -> Result<Vec<u8>> {
        let (place, _) = self.then_for(head)?;
        Ok(self.volume.getxattr(place.at, place.ino, acl::ACCESS)?)
    }

    /// An inode as it was, for who may know: `EACCES` for others where less is shown to them.
    fn then_for(&self, head: &InHeader) -> Result<(Place, Attr)> {
        let Node::Past(..) = Node::of(head.nodeid) else { return Err(Errno(libc::EOPNOTSUPP)) };
        let place = self.place(head.nodeid)?;
        let then = self.volume.getattr(place.at, place.ino)?;
        let caller = super::caller(head);
        let may = caller.uid == crate::sys::user().0 || {
            let now = self.newest(place.at, place.ino)?;
            caller.owns(&then) && now.is_none_or(|(_, now)| caller.owns(&now))
        };
        let is_shown = || -> Result<bool> {
            Ok(permissions(&self.seen(place, then)?) == permissions(&then) && self.acl_counts(place)?)
        };
        if may || is_shown()? { Ok((place, then)) } else { Err(Errno(libc::EACCES)) }
    }

    /// An extended attribute of a node.
    pub(super) fn shown_xattr(&self, id: u64, name: &[u8]) -> Result<Vec<u8>> {
        if let Node::Made(_) = Node::of(id) {
            return Err(Errno(libc::ENODATA));
        }
        let place = self.place(id)?;
        // Privileges of then are not shown, as set-id bits are not.
        let hidden =
            place.view.is_some() && name == b"security.capability" || name == acl::ACCESS && !self.acl_counts(place)?;
        if hidden {
            return Err(Errno(libc::ENODATA));
        }
        Ok(self.volume.getxattr(place.at, place.ino, name)?)
    }

    /// Gives the names of the extended attributes of a node to `each`, until that has enough.
    pub(super) fn shown_xattrs(&self, id: u64, each: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        if let Node::Made(_) = Node::of(id) {
            return Ok(());
        }
        let place = self.place(id)?;
        let (mut has_list, mut goes_on) = (false, true);
        self.volume.each_xattr(place.at, place.ino, &mut |name| {
            // The library is not called from within its own call.
            let waits = name == acl::ACCESS;
            has_list |= waits;
            let is_hidden = place.view.is_some() && name == b"security.capability";
            goes_on = waits || is_hidden || each(name);
            goes_on
        })?;
        if has_list && goes_on && self.acl_counts(place)? {
            each(acl::ACCESS);
        }
        Ok(())
    }

    /// A listing of any directory, by node ids.
    pub(super) fn entries(&self, id: u64, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        if let Node::Made(made) = Node::of(id) {
            self.entries_of_ours(made, cookie, each);
            return Ok(());
        }
        let place = self.place(id)?;
        match place.view {
            None => self.volume.readdir(place.at, place.ino, cookie, each)?,
            Some(view) => {
                let mut each = |e: DirEntry| match past::id_of(view, e.ino) {
                    Some(id) => each(DirEntry { ino: Ino(id), ..e }),
                    // One that cannot be looked up is not listed either.
                    None => true,
                };
                self.entries_of_past(place, cookie, &mut each)?;
            }
        }
        Ok(())
    }

    /// Without what a restore was making when the state was cut: a directory of that name that is closed to all others.
    fn entries_of_past(&self, place: Place, mut cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        loop {
            let mut met = None;
            self.volume.readdir(place.at, place.ino, cookie, &mut |e: DirEntry| {
                let goes_on = e.kind != FileKind::Directory || !past::is_of_restore(&e.name);
                if goes_on {
                    return each(e);
                }
                // The library is not called from within its own call.
                met = Some(e);
                false
            })?;
            let Some(e) = met else { return Ok(()) };
            cookie = e.cookie;
            let is_private = self.volume.getattr(place.at, e.ino).is_ok_and(|a| a.mode & 0o777 == 0o700);
            if !is_private && !each(e) {
                return Ok(());
            }
        }
    }

    fn entries_of_ours(&self, made: Made, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) {
        let states = |shelf| self.behaviour.past.as_ref().map(|p| p.names(shelf)).unwrap_or_default();
        let names = match made.shelf() {
            None => vec![(0, b"at".to_vec())],
            Some(shelf) => states(shelf),
        };
        let above = if made == Made::At { Made::Home.id() } else { ROOT_NODE };
        let dots = [(1, b".".to_vec(), made.id()), (2, b"..".to_vec(), above)];
        // Programs take an inode number of 0 for a name that was removed.
        let of_state = |(place, name): (u64, Vec<u8>)| (place.saturating_add(3), name, Made::At.id());
        let all = dots.into_iter().chain(names.into_iter().map(of_state));
        for (next, name, ino) in all.filter(|(next, ..)| *next > cookie) {
            if !each(DirEntry { name, ino: Ino(ino), kind: FileKind::Directory, cookie: next }) {
                return;
            }
        }
    }
}
