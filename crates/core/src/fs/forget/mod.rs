//! Forgetting: what a path ever stood for goes out of every state, and off the
//! devices. Decision 0016 has the reasons and the cases.
//!
//! Invariants
//! 1. Only inodes that are not in the live tree are forgotten.
//! 2. What the list has is wiped from the start by each mount; nothing about how far that
//!    came is believed after a crash.

mod wipe;

pub use wipe::ForgetStatus;
pub(super) use wipe::Wiper;

use super::account::Counting;
use super::history::{Link, Named};
use super::usage::{Run, joined, run_of};
use super::{Fs, Inner};
use crate::breaks::{Break, broken};
use crate::state::bad_item;
use crate::{Barrier, CheckpointInfo, Error, FileKind, NewInode, Result, Standing};
use nenrin_format::items::{Dirent, Extent, Inode};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::TreeId;
use nenrin_format::records::Record;
use nenrin_format::{Addr, Cno, EXTENT_BLOCKS_MAX, Ino, NAME_BYTES_MAX};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Inodes that are looked up under one lock.
const LOOKED_AT_ONCE: usize = 256;
/// Items of content that are looked at under one clone of a tree.
const ITEMS_AT_ONCE: usize = 4096;
/// Inodes that one commit puts on the list.
const LISTED_AT_ONCE: usize = 8192;
/// Inodes in one record.
const RECORD_INODES: usize = 2048;
/// Pieces of a directory, by the hashes of its names, that are looked at under one lock.
const PIECES: u64 = 64;

/// A name of something that is to be forgotten, which lies in nothing that is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForgetName {
    /// Its path from the root of the volume, without a slash before it.
    pub path: Vec<u8>,
    /// It is there now; else only in the past.
    pub is_now: bool,
}

/// What forgetting a path takes away.
#[derive(Clone, Debug, Default)]
pub struct ForgetPlan {
    /// The inodes: of directories those in them first.
    pub inodes: Vec<Ino>,
    /// Their names, without those within directories that are forgotten.
    pub names: Vec<ForgetName>,
    /// Snapshots that lose something.
    pub snapshots: Vec<CheckpointInfo>,
    /// Files that share blocks with them, by path: these blocks stay.
    pub shared_with: Vec<Vec<u8>>,
    /// Their owners, now and in the past.
    pub owners: BTreeSet<u32>,
    /// Bytes of content, of all versions.
    pub bytes: u64,
}

impl Fs {
    /// What [`Fs::forget`] of `path` (its parts, from the root of the volume) would take away, and what of
    /// it is there now.
    ///
    /// # Errors
    /// [`Error::NotFound`] when the path never stood for anything, as far as is known;
    /// [`Error::Forget`] for the root directory.
    pub fn forget_plan(&self, path: &[&[u8]]) -> Result<ForgetPlan> {
        if !self.options.read_only {
            self.sync_received(false)?;
        }
        self.forget_plan_of(self.inodes_of(path)?)
    }

    /// The same of inodes that an earlier plan told, of whose names no state may know any more.
    ///
    /// # Errors
    /// Damage.
    pub fn forget_plan_of(&self, inodes: Vec<Ino>) -> Result<ForgetPlan> {
        let mut plan = ForgetPlan { inodes, ..ForgetPlan::default() };
        let all: BTreeSet<Ino> = plan.inodes.iter().copied().collect();
        let (mut names, mut snapshots, mut sharers) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for ino in plan.inodes.clone() {
            // Others get the volume in between.
            let inner = self.lock();
            inner.names_outside(ino, &all, &mut names)?;
            inner.versions_to_forget(ino, &mut plan, &mut snapshots)?;
            drop(inner);
            self.content_to_forget(ino, &all, &mut plan.bytes, &mut sharers)?;
        }
        let now: BTreeSet<Vec<u8>> = names.iter().filter(|n| n.is_now).map(|n| n.path.clone()).collect();
        plan.names = names.into_iter().filter(|n| n.is_now || !now.contains(&n.path)).collect();
        plan.snapshots = self.checkpoints().into_iter().filter(|c| snapshots.contains(&c.cno)).collect();
        let mut paths = BTreeSet::new();
        for ino in sharers {
            paths.insert(self.lock().newest_path(ino)?);
        }
        plan.shared_with = paths.into_iter().collect();
        Ok(plan)
    }

    /// Adds the bytes of all content of an inode, and who shares blocks with it.
    fn content_to_forget(
        &self,
        ino: Ino,
        all: &BTreeSet<Ino>,
        bytes: &mut u64,
        sharers: &mut BTreeSet<Ino>,
    ) -> Result<()> {
        let _counting = Counting::begin(self);
        let history: Vec<TreeId> = self.lock().state.history.iter().rev().map(|t| t.tree.id()).collect();
        for tree in [TreeId::LIVE].into_iter().chain(history) {
            let mut from = Some(Key::new(ino, Kind::Inline, 0, 0));
            while let Some(key) = from {
                let mut shared = Vec::new();
                from = self.some_content(tree, key, bytes, &mut shared)?;
                self.sharers_of(joined(shared), all, sharers)?;
            }
        }
        Ok(())
    }

    /// Looks at some content of the inode of a key, from there on, while others work: its bytes, and what of it is shared. Where to go on.
    fn some_content(&self, tree: TreeId, from: Key, bytes: &mut u64, shared: &mut Vec<Run>) -> Result<Option<Key>> {
        let inner = self.lock();
        let Some(tree) = inner.tree(tree).cloned() else { return Ok(None) };
        let (cache, generation) = (inner.state.cache.clone(), inner.generation());
        drop(inner);
        let to = Key { kind: Kind::Extent, fork: u32::MAX, off: u64::MAX, death: u64::MAX, ..from };
        let (mut seen, mut next, mut found) = (0, None, 0);
        let read = tree.scan(&cache, &from, &to, &mut |k, v| {
            if seen == ITEMS_AT_ONCE {
                next = Some(*k);
                return ControlFlow::Break(());
            }
            seen += 1;
            match (k.kind, Extent::decode(v)) {
                (Kind::Inline, _) => found += v.len().saturating_sub(8) as u64,
                (Kind::Extent, Ok(e)) => {
                    found += u64::from(e.stored_blocks()) * nenrin_format::BLOCK_BYTES as u64;
                    shared.extend((e.is_shared() && e.stored_blocks() > 0).then(|| run_of(&e)));
                }
                _ => {}
            }
            ControlFlow::Continue(())
        });
        match read {
            Ok(()) => {
                *bytes += found;
                Ok(next)
            }
            // Index checkpoints since then may have used the places of old nodes again.
            Err(_) if self.lock().generation() != generation => {
                shared.clear();
                Ok(Some(from))
            }
            Err(why) => Err(why),
        }
    }

    /// Others that own some of these blocks.
    fn sharers_of(&self, runs: Vec<Run>, all: &BTreeSet<Ino>, sharers: &mut BTreeSet<Ino>) -> Result<()> {
        for (mut at, to) in runs {
            while at < to {
                let blocks = (to - at).min(u64::from(EXTENT_BLOCKS_MAX));
                let owners = self.lock().state.owners(Addr(at), blocks as u32)?;
                sharers.extend(owners.into_iter().map(|(_, b)| Ino(b.owner.ino)).filter(|ino| !all.contains(ino)));
                at += blocks;
            }
        }
        Ok(())
    }

    /// Forgets what `path` ever stood for, and what was ever below it: no past state shows it any more when this
    /// returns, whatever happens then. The devices are wiped by [`Fs::forget_step`], or with time. `planned`: the inodes that a
    /// plan told, all of which go, though nothing may be known of them any more since their names went. How many inodes it is.
    ///
    /// # Errors
    /// [`Error::Forget`] while any of it has a name, [`Error::ForgetInUse`] while it is in use; the first also when something came there that was not planned, or a device is
    /// absent; [`Error::NotFound`] as for [`Fs::forget_plan`].
    pub fn forget(&self, path: &[&[u8]], planned: &[Ino]) -> Result<u64> {
        drop(self.lock_to_accept()?);
        self.all_devices_are_there()?;
        self.sync_received(false)?;
        let mut all = match self.inodes_of(path) {
            Err(Error::NotFound) if !planned.is_empty() => Vec::new(),
            other => other?,
        };
        let told: BTreeSet<Ino> = planned.iter().copied().collect();
        if all.iter().any(|ino| !told.contains(ino)) {
            return Err(Error::Forget("something came there since what goes was listed; list it again".into()));
        }
        let known: BTreeSet<Ino> = all.iter().copied().collect();
        let next = self.lock().state.next_ino;
        all.splice(0..0, planned.iter().copied().filter(|ino| *ino < next && !known.contains(ino)));
        // Before any is on the list; what is not live never is again, so others get the volume in between.
        for some in all.chunks(LOOKED_AT_ONCE) {
            let inner = self.lock();
            some.iter().try_for_each(|ino| inner.refuse_live(*ino))?;
        }
        self.put_on_the_list(&all)?;
        Ok(all.len() as u64)
    }

    /// Takes nothing away that a state knows, and has all wiped that is free: what went before any state knew it. The list of what is to
    /// be forgotten gets an inode that never had a name.
    ///
    /// # Errors
    /// [`Error::ForgetInUse`] while a file that was removed is in use; [`Error::Forget`] when a device is absent; [`Error::NoSpace`] while
    /// there is no room to let go of one that nobody uses.
    pub fn forget_free(&self) -> Result<()> {
        drop(self.lock_to_accept()?);
        self.all_devices_are_there()?;
        self.let_unused_go()?;
        let ino = self.tmpfile(&NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" })?.ino;
        self.release(ino);
        self.sync_received(false)?;
        // What is live stays off the list, and then nothing would be wiped.
        if self.lock().state.inode(ino)?.is_some() {
            return Err(Error::NoSpace);
        }
        if broken(Break::ForgetFreeSkipped) { Ok(()) } else { self.put_on_the_list(&[ino]) }
    }

    /// No file that was removed is live any more.
    fn let_unused_go(&self) -> Result<()> {
        let mut inner = self.room_to_let_go()?;
        while inner.nodes_to_spare(self) > 0 && inner.let_orphan_left_go(self)? {}
        let used = inner.state.orphans()?;
        if used.is_empty() {
            return Ok(());
        }
        if used.iter().all(|ino| inner.orphans_left.contains(ino)) {
            return Err(Error::NoSpace);
        }
        let text = "a file that was removed is in use by a program, and may be what is meant; close it, then try again";
        Err(Error::ForgetInUse(text.into()))
    }

    fn all_devices_are_there(&self) -> Result<()> {
        let health = self.health();
        let Some(d) = health.iter().find(|d| d.standing != Standing::Active) else { return Ok(()) };
        let (number, joins) = (d.index + 1, d.standing == Standing::Joining);
        let text = if joins { "is being brought up to date" } else { "is absent" };
        let help = if joins { "try again when it is" } else { "mount with all devices" };
        let text = format!("device {number} of the volume {text}, so nothing on it can be forgotten; {help}");
        Err(Error::Forget(text))
    }

    /// Durably: from then on no past state shows them, and they are wiped.
    fn put_on_the_list(&self, all: &[Ino]) -> Result<()> {
        for inodes in all.chunks(LISTED_AT_ONCE) {
            let mut inner = self.room_to_let_go()?;
            let (time, now) = (self.clock.wall(), self.clock.monotonic_nanos());
            for some in inodes.chunks(RECORD_INODES) {
                inner.log(&Record::Forget { time, inos: some.to_vec() }, now)?;
            }
            if broken(Break::ForgetDropsSnapshots) {
                let cnos = inner.state.kept.iter().filter(|(_, c)| c.is_named()).map(|(cno, _)| *cno).collect();
                inner.log(&Record::DropCheckpoints { cnos }, now)?;
            }
            drop(inner);
            self.sync_received(false)?;
        }
        // Without this a power cut would bring it back, and take it off the list, where syncs do not flush.
        if self.options.barrier != Barrier::Sync && !broken(Break::ForgetNotDurable) {
            self.index_checkpoint(false)?;
            self.flush_device().inspect_err(|e| self.lock().fail(&e.to_string()))?;
        }
        Ok(())
    }

    /// The inodes that ever bore a path, and all that was ever below them; these come first.
    fn inodes_of(&self, path: &[&[u8]]) -> Result<Vec<Ino>> {
        if path.iter().any(|name| name.len() > NAME_BYTES_MAX) {
            return Err(Error::NameTooLong);
        }
        if path.is_empty() {
            return Err(Error::Forget("the root of a volume cannot be forgotten; forget what is in it".into()));
        }
        let mut named = vec![Named::always(Ino::ROOT)];
        for name in path {
            named = self.lock().state.named(&named, name)?;
        }
        let mut order: Vec<Ino> = Vec::new();
        let mut known: BTreeSet<Ino> = BTreeSet::new();
        let mut add = |ino: Ino, order: &mut Vec<Ino>| {
            if known.insert(ino) {
                order.push(ino);
            }
        };
        named.iter().for_each(|n| add(n.ino, &mut order));
        let mut next = 0;
        while let Some(ino) = order.get(next).copied() {
            next += 1;
            if self.lock().was_directory(ino)? {
                for piece in 0..PIECES {
                    let children = self.lock().children(ino, piece)?;
                    children.into_iter().for_each(|child| add(child, &mut order));
                }
            }
        }
        match order.is_empty() {
            true => Err(Error::NotFound),
            false if known.contains(&Ino::ROOT) => {
                Err(Error::Forget("the root of the volume would be forgotten".into()))
            }
            false => {
                order.reverse();
                Ok(order)
            }
        }
    }
}

impl Inner {
    /// Whether any version of an inode is a directory, or there are entries in it.
    fn was_directory(&self, ino: Ino) -> Result<bool> {
        let key = Key::new(ino, Kind::Inode, 0, 0);
        let versions = self.state.versions(&key, &key)?;
        // The inode's own items may have been swept before those of its names.
        let Some(v) = versions.first() else { return Ok(true) };
        let inode = Inode::decode(&v.value).map_err(|why| bad_item(&v.key, why))?;
        Ok(FileKind::from_mode(inode.mode) == FileKind::Directory)
    }

    /// What a piece of a directory ever named.
    fn children(&self, dir: Ino, piece: u64) -> Result<Vec<Ino>> {
        let width = u64::MAX / PIECES + 1;
        let from = Key::new(dir, Kind::Dirent, 0, piece * width);
        let to = Key { off: from.off + (width - 1), ..from };
        let entry =
            |v: &crate::state::Version| Dirent::decode(&v.value).map(|d| d.ino).map_err(|why| bad_item(&v.key, why));
        self.state.versions(&from, &to)?.iter().map(entry).collect()
    }

    /// Names of an inode outside directories that are forgotten.
    fn names_outside(&self, ino: Ino, all: &BTreeSet<Ino>, out: &mut BTreeSet<ForgetName>) -> Result<()> {
        for link in self.state.links(ino)?.into_iter().filter(|l| !all.contains(&l.parent)) {
            let path = self.path_of_link(&link)?;
            out.insert(ForgetName { path, is_now: link.span.to.is_none() });
        }
        Ok(())
    }

    fn path_of_link(&self, link: &Link) -> Result<Vec<u8>> {
        let at = link.span.to.map_or(Cno(u64::MAX), |to| Cno(to.0.saturating_sub(1)));
        self.state.path_in(std::slice::from_ref(link), at)
    }

    /// A path of an inode: of now, else the last it had.
    fn newest_path(&self, ino: Ino) -> Result<Vec<u8>> {
        let links = self.state.links(ino)?;
        let newest = links.iter().max_by_key(|l| l.span.to.map_or(Cno(u64::MAX), |to| to));
        newest.map_or_else(|| Ok(format!("inode {ino}").into_bytes()), |l| self.path_of_link(l))
    }

    fn versions_to_forget(&self, ino: Ino, plan: &mut ForgetPlan, snapshots: &mut BTreeSet<Cno>) -> Result<()> {
        let key = Key::new(ino, Kind::Inode, 0, 0);
        for v in self.state.versions(&key, &key)? {
            let inode = Inode::decode(&v.value).map_err(|why| bad_item(&v.key, why))?;
            plan.owners.insert(inode.uid);
            let end = v.span.to.unwrap_or(Cno(u64::MAX));
            if v.span.from < end {
                let kept = self.state.kept.range(v.span.from..end);
                snapshots.extend(kept.filter(|(_, c)| c.is_named()).map(|(cno, _)| *cno));
            }
        }
        Ok(())
    }

    /// An error while an inode has a name or is in use.
    fn refuse_live(&self, ino: Ino) -> Result<()> {
        let Some(inode) = self.state.inode(ino)? else { return Ok(()) };
        let links = self.state.links(ino)?;
        let text = if inode.nlink == 0 {
            let last = links.iter().max_by_key(|l| l.span.to);
            let path = last.map(|l| self.path_of_link(l)).transpose()?.unwrap_or_default();
            let path = String::from_utf8_lossy(&path).escape_debug().to_string();
            return Err(Error::ForgetInUse(format!("{path} is in use by a program; close it, then try again")));
        } else {
            let path = self.state.path_in(&links, Cno(u64::MAX))?;
            format!("{} is there; remove it first", String::from_utf8_lossy(&path).escape_debug())
        };
        Err(Error::Forget(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::testing::{create, device, mount};

    /// One that only waited for room is not in use by anybody.
    #[test]
    fn what_nobody_uses_does_not_keep_what_is_free_from_being_wiped() {
        let fs = mount(&device(16, 64), MountOptions::default());
        let ino = create(&fs, "f");
        fs.retain(ino);
        fs.unlink(Ino::ROOT, b"f").unwrap();
        fs.sync_all().unwrap();
        // As `release` leaves it where it is refused.
        let mut inner = fs.lock();
        inner.files.get_mut(&ino).unwrap().uses = 0;
        inner.orphans_left.insert(ino);
        drop(inner);
        fs.forget_free().unwrap();
        assert_eq!(fs.lock().state.forgetting.len(), 1);
    }
}
