//! Inodes and names: every name leads to an inode that knows it, every
//! directory to the root, and what has no name to lost+found.
//!
//! | what is there | what it proves | what is done |
//! |---|---|---|
//! | an entry, its inode, no back reference | the name | the back reference is made anew |
//! | a back reference, its directory, no entry | the name | the entry is made anew |
//! | an entry or a back reference to a lost directory | that it was one | it is made anew in its place, attributes unknown |
//! | an entry to a lost file | that there was one | the name goes; items of the file go to lost+found |
//! | items of an inode that was not lost | that it was removed | the reaper gets them |
//! | an inode without names that is no orphan | itself | lost+found |

use super::losses::{About, LossKind, MendKind};
use super::mender::Mender;
use crate::state::{SLOT_MASK, State, reap_key};
use crate::{FileKind, Result};
use nenrin_format::items::{Dirent, Inode, KeepRule, Reap};
use nenrin_format::key::{Key, Kind};
use nenrin_format::records::Record;
use nenrin_format::{Addr, Cno, Ino};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Where inodes without a name go.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Names that are tried for that directory.
const NAMES_TRIED: u32 = 1000;

/// Directories that have a name, with the item that gave it to them.
type Named = BTreeMap<u64, Key>;

/// What was seen of an inode.
#[derive(Default)]
struct Seen {
    ino: u64,
    kinds: u32,
    file_type: Option<u8>,
    /// The last fork of an inode whose item is not there, and the first that nobody reaps by itself.
    fork: Option<u32>,
    unreaped: Option<u32>,
}

impl Seen {
    const fn has(&self, kind: Kind) -> bool {
        self.kinds & 1 << kind as u8 != 0
    }

    /// An extent.
    fn note_fork(&mut self, state: &State, fork: u32) -> Result<()> {
        if !self.has(Kind::Inode) && self.fork != Some(fork) {
            self.fork = Some(fork);
            let is_reaped = self.unreaped.is_some() || state.is_fork_reaped(Ino(self.ino), fork)?;
            self.unreaped = self.unreaped.or((!is_reaped).then_some(fork));
        }
        Ok(())
    }
}

/// Puts an entry or a back reference into a slot in which it hides no past of another.
pub(super) fn place_name(state: &mut State, group: Key, item: Dirent<'_>) -> Result<Key> {
    for slot in 0..=SLOT_MASK {
        let key = Key { off: group.off | slot, ..group };
        if state.get(&key)?.is_none() && newest_death(state, &key)? <= item.birth {
            state.live.insert(&state.cache, key, item.encode().into())?;
            return Ok(key);
        }
    }
    let key = state.free_slot(group)?;
    state.live.insert(&state.cache, key, Dirent { birth: state.open_cno, ..item }.encode().into())?;
    Ok(key)
}

/// When the last past version of an item died; 0 when there is none.
fn newest_death(state: &State, key: &Key) -> Result<Cno> {
    let mut newest = Cno(0);
    for t in &state.history {
        if let Some((k, _)) = t.tree.prev(&state.cache, &key.died(u64::MAX))? {
            if k.living() == *key {
                newest = newest.max(Cno(k.death));
            }
        }
    }
    Ok(newest)
}

impl Mender {
    /// All of it.
    pub(super) fn names(&mut self) -> Result<()> {
        self.root_directory()?;
        self.inodes_without_item()?;
        self.nothing_found()?;
        let mut named = Named::new();
        self.entries(&mut named)?;
        self.back_references(&mut named)?;
        drop(named);
        self.circles()?;
        self.nameless()
    }

    fn root_directory(&mut self) -> Result<()> {
        let root = self.state.inode(Ino::ROOT)?;
        if root.is_some_and(|r| FileKind::from_mode(r.mode) == FileKind::Directory && r.nlink > 0) {
            return Ok(());
        }
        let text = "the root directory is lost; a new one belongs to root, mode 755";
        self.losses.add(LossKind::AttributesLost, About::Inode(Ino::ROOT), text);
        self.make(Ino::ROOT, 0o040_755)
    }

    /// An inode item of which only the type is known.
    fn make(&mut self, ino: Ino, mode: u32) -> Result<()> {
        let now = self.now;
        let dir = mode & 0o170_000 == 0o040_000;
        let inode = Inode {
            birth: self.state.open_cno,
            mode,
            nlink: if dir { 2 } else { 1 },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            parent: if dir { Ino::ROOT } else { Ino(0) },
            ..Inode::default()
        };
        self.state.next_ino = self.state.next_ino.max(ino.next());
        self.set(Key::new(ino, Kind::Inode, 0, 0), inode.encode())
    }

    fn make_directory(&mut self, ino: Ino) -> Result<()> {
        let text = "the directory is made anew; it belongs to root, mode 700";
        self.losses.add(LossKind::AttributesLost, About::Inode(ino), text);
        self.make(ino, 0o040_700)
    }

    /// Items of inodes whose inode item is not there.
    fn inodes_without_item(&mut self) -> Result<()> {
        let mut seen = Seen::default();
        self.sweep(&mut |this, key, value| {
            if key.ino != seen.ino {
                let before = std::mem::take(&mut seen);
                this.without_item(&before)?;
                seen.ino = key.ino;
            }
            seen.kinds |= 1 << key.kind as u8;
            if key.kind == Kind::Extent {
                seen.note_fork(&this.state, key.fork)?;
            }
            if key.kind == Kind::Link {
                seen.file_type = Dirent::decode(value).ok().map(|l| l.file_type);
            }
            Ok(())
        })?;
        self.without_item(&seen)
    }

    fn without_item(&mut self, seen: &Seen) -> Result<()> {
        let ino = Ino(seen.ino);
        if seen.kinds == 0 || seen.has(Kind::Inode) && !self.is_broken_link(ino, seen)? {
            return Ok(());
        }
        if seen.has(Kind::Inode) {
            self.losses.add(LossKind::ItemDropped, About::Inode(ino), "the target of the symbolic link is lost");
            return self.drop_inode(ino);
        }
        let reap = self.state.reap_of_inode(ino)?;
        let is_reaped = match reap {
            Some(r) => seen.unreaped.is_none_or(|fork| r.fork <= fork),
            None => seen.kinds == 1 << Kind::Extent as u8 && seen.unreaped.is_none(),
        };
        let was_removed = reap.is_some() || !self.inode_may_be_lost(ino);
        if was_removed && is_reaped {
            return Ok(());
        }
        if was_removed {
            // Its item is gone and was not lost: it was being removed.
            return self.list_for_removal(ino, 0, true);
        }
        let is_dir = seen.file_type == Some(0o04);
        if seen.has(Kind::Dirent) || is_dir {
            return self.make_directory(ino);
        }
        if seen.has(Kind::Extent) || seen.has(Kind::Inline) {
            let text = "the inode is lost, and with it owner, permissions, times and the exact size";
            self.losses.add(LossKind::AttributesLost, About::Inode(ino), text);
            self.unproven.insert(ino.0);
            return self.make(ino, 0o100_600);
        }
        self.drop_inode(ino)
    }

    /// Inodes that were made for the log, and of which it has nothing but names: they are lost like others.
    fn nothing_found(&mut self) -> Result<()> {
        for ino in self.unproven.clone().into_iter().map(Ino) {
            let key = Key::new(ino, Kind::Inode, 0, 0);
            let empty = self.state.inode(ino)?.is_some_and(|i| i.nlink > 0 && i.size == 0);
            if empty && self.may_be_lost(&key, &key) {
                let mut kept = false;
                let last = Key::new(ino, Kind::Extent, u32::MAX, u64::MAX);
                self.state.live.scan(&self.state.cache, &key, &last, &mut |k, _| {
                    kept |= matches!(k.kind, Kind::Inline | Kind::Symlink | Kind::Extent);
                    ControlFlow::Continue(())
                })?;
                if !kept {
                    self.drop_inode(ino)?;
                }
            }
        }
        Ok(())
    }

    fn is_broken_link(&self, ino: Ino, seen: &Seen) -> Result<bool> {
        let inode = self.state.inode(ino)?;
        Ok(inode.is_some_and(|i| FileKind::from_mode(i.mode) == FileKind::Symlink) && !seen.has(Kind::Symlink))
    }

    /// All items of an inode but extents go; it counts as lost.
    fn drop_inode(&mut self, ino: Ino) -> Result<()> {
        self.missing.insert(ino.0);
        self.gone.insert(Key::new(ino, Kind::Inode, 0, 0));
        let (from, to) = (Key::new(ino, Kind::Inode, 0, 0), Key::new(ino, Kind::Link, u32::MAX, u64::MAX));
        loop {
            let some = self.some(&from, &to, 256)?;
            for (key, value) in &some {
                self.remove(key)?;
                if let (Kind::Link, Ok(l)) = (key.kind, Dirent::decode(value)) {
                    // With an entry the name is told when that goes.
                    if self.state.dirent(l.ino, l.name)?.is_none_or(|(_, named, _)| named != ino) {
                        self.lose_name(l.ino, &l, &format!("inode {ino} is lost"));
                    }
                }
            }
            if some.is_empty() {
                return Ok(());
            }
        }
    }

    pub(super) fn list_for_removal(&mut self, ino: Ino, fork: u32, whole: bool) -> Result<()> {
        let reap = Reap { death: self.state.open_cno, fork, whole, rule: KeepRule::default() };
        self.losses.mended(MendKind::OrphansListed, 1);
        self.state.space.insert(&self.state.cache, reap_key(ino, fork), reap.encode().into()).map(drop)
    }

    /// The inode, if it is a directory that can hold names.
    fn directory(&self, ino: Ino) -> Result<Option<Inode>> {
        let inode = self.state.inode(ino)?;
        Ok(inode.filter(|i| FileKind::from_mode(i.mode) == FileKind::Directory && i.nlink > 0))
    }

    /// Entries: what they name is there, and knows it.
    fn entries(&mut self, named: &mut Named) -> Result<()> {
        self.sweep(&mut |this, key, value| {
            if key.kind != Kind::Dirent {
                return Ok(());
            }
            let Ok(d) = Dirent::decode(value) else { return Ok(()) };
            this.entry(key, &d, named)
        })
    }

    fn entry(&mut self, key: &Key, d: &Dirent<'_>, named: &mut Named) -> Result<()> {
        let dir = Ino(key.ino);
        if self.directory(dir)?.is_none() {
            // Of what is being removed the reaper takes care.
            return if self.state.inode(dir)?.is_some() {
                self.drop_name(key, dir, d, "it was in no directory")
            } else {
                Ok(())
            };
        }
        if key.off & !SLOT_MASK != self.state.name_hash(0, d.name) {
            self.unset(key)?;
            if self.state.dirent(dir, d.name)?.is_some() {
                self.lose_name(dir, d, "it occurred twice");
                return Ok(());
            }
            let birth = d.birth;
            let group = self.state.dirent_key(dir, d.name);
            // It comes again, or is behind: then it is looked at here.
            let key = self.place_name(group, Dirent { birth, ..*d })?;
            return self.entry(&key, d, named);
        }
        if self.state.dirent(dir, d.name)?.is_some_and(|(first, ..)| first != *key) {
            return self.drop_name(key, dir, d, "it occurred twice");
        }
        let Some(inode) = self.target(d)? else {
            self.missing.insert(d.ino.0);
            return self.drop_name(key, dir, d, &format!("inode {} is lost", d.ino));
        };
        if self.unproven.contains(&d.ino.0) {
            let text = format!("its inode {} is lost; what was found of it is in lost+found", d.ino);
            if let Some(link) = self.link(d.ino, dir, d.name)? {
                self.remove(&link)?;
            }
            return self.drop_name(key, dir, d, &text);
        }
        let is_dir = FileKind::from_mode(inode.mode) == FileKind::Directory;
        if is_dir && (inode.nlink == 0 || d.ino == Ino::ROOT || *named.entry(d.ino.0).or_insert(*key) != *key) {
            return self.drop_name(key, dir, d, "a directory has one name only");
        }
        let file_type = (inode.mode >> 12) as u8;
        if file_type != d.file_type {
            self.change(*key, Dirent { file_type, birth: self.state.open_cno, ..*d }.encode())?;
        }
        if self.link(d.ino, dir, d.name)?.is_none() {
            self.losses.mended(MendKind::NamesRestored, 1);
            let group = self.state.link_key(d.ino, dir, d.name);
            self.place_name(group, Dirent { birth: d.birth, ino: dir, file_type, name: d.name })?;
        }
        Ok(())
    }

    /// The inode an entry names; a directory that is lost is made anew.
    fn target(&mut self, d: &Dirent<'_>) -> Result<Option<Inode>> {
        if let Some(inode) = self.state.inode(d.ino)? {
            return Ok(Some(inode));
        }
        if d.file_type == 0o04 && self.inode_may_be_lost(d.ino) && self.can_be(d.ino) {
            self.make_directory(d.ino)?;
        }
        self.state.inode(d.ino)
    }

    fn can_be(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || ino >= Ino::FIRST && ino < self.state.next_ino
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Option<Key>> {
        let group = self.state.link_key(ino, dir, name);
        let found = self.state.find_slot(group, |v| Dirent::decode(v).is_ok_and(|l| l.ino == dir && l.name == name))?;
        Ok(found.map(|(k, _)| k))
    }

    fn drop_name(&mut self, key: &Key, dir: Ino, d: &Dirent<'_>, why: &str) -> Result<()> {
        self.remove(key)?;
        self.lose_name(dir, d, why);
        Ok(())
    }

    fn lose_name(&mut self, dir: Ino, d: &Dirent<'_>, why: &str) {
        self.losses.add(LossKind::NameLost, About::Name(dir, d.name.to_vec()), why);
    }

    /// Puts an entry or a back reference into a slot in which it hides no past of another.
    fn place_name(&mut self, group: Key, item: Dirent<'_>) -> Result<Key> {
        place_name(&mut self.state, group, item)
    }

    /// Back references: the entry they are about is there.
    fn back_references(&mut self, named: &mut Named) -> Result<()> {
        self.sweep(&mut |this, key, value| {
            if key.kind != Kind::Link {
                return Ok(());
            }
            let Ok(l) = Dirent::decode(value) else { return Ok(()) };
            this.back_reference(key, &l, named)
        })
    }

    fn back_reference(&mut self, key: &Key, l: &Dirent<'_>, named: &mut Named) -> Result<()> {
        let (ino, dir) = (Ino(key.ino), l.ino);
        let Some(inode) = self.state.inode(ino)? else { return Ok(()) };
        let group = self.state.link_key(ino, dir, l.name);
        if key.off & !SLOT_MASK != group.off {
            self.unset(key)?;
            if self.link(ino, dir, l.name)?.is_some() {
                return Ok(());
            }
            let key = self.place_name(group, *l)?;
            return self.back_reference(&key, l, named);
        }
        if self.link(ino, dir, l.name)? != Some(*key) {
            return self.remove(key);
        }
        match self.state.dirent(dir, l.name)? {
            Some((_, named, _)) if named == ino => return Ok(()),
            Some(_) => return self.drop_back_reference(key, dir, l, "another file has this name"),
            None => {}
        }
        if self.unproven.contains(&ino.0) {
            let text = format!("its inode {ino} is lost; what was found of it is in lost+found");
            return self.drop_back_reference(key, dir, l, &text);
        }
        if self.state.inode(dir)?.is_none() && self.inode_may_be_lost(dir) && self.can_be(dir) {
            self.make_directory(dir)?;
        }
        let is_dir = FileKind::from_mode(inode.mode) == FileKind::Directory;
        let one_too_many = is_dir && (ino == Ino::ROOT || *named.entry(ino.0).or_insert(*key) != *key);
        if self.directory(dir)?.is_none() || one_too_many {
            return self.drop_back_reference(key, dir, l, "it was in no directory");
        }
        self.losses.mended(MendKind::NamesRestored, 1);
        let file_type = (inode.mode >> 12) as u8;
        let group = self.state.dirent_key(dir, l.name);
        self.place_name(group, Dirent { birth: l.birth, ino, file_type, name: l.name }).map(drop)
    }

    fn drop_back_reference(&mut self, key: &Key, dir: Ino, l: &Dirent<'_>, why: &str) -> Result<()> {
        self.remove(key)?;
        self.lose_name(dir, l, why);
        Ok(())
    }

    /// Directories that contain each other lose a name.
    fn circles(&mut self) -> Result<()> {
        let mut above: BTreeMap<u64, (u64, Key)> = BTreeMap::new();
        let mut dirs = BTreeSet::new();
        self.sweep(&mut |_, key, value| {
            match key.kind {
                Kind::Inode => {
                    let dir = |i: Inode| FileKind::from_mode(i.mode) == FileKind::Directory;
                    if Inode::decode(value).is_ok_and(dir) {
                        dirs.insert(key.ino);
                    }
                }
                Kind::Link if dirs.contains(&key.ino) => {
                    if let Ok(l) = Dirent::decode(value) {
                        above.insert(key.ino, (l.ino.0, *key));
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        let mut settled: BTreeSet<u64> = [Ino::ROOT.0].into();
        for dir in dirs {
            let mut way = BTreeSet::new();
            let mut at = dir;
            while !settled.contains(&at) && way.insert(at) {
                match above.get(&at) {
                    Some((parent, _)) => at = *parent,
                    None => break,
                }
            }
            // Back on the way itself: a circle.
            let circle = !settled.contains(&at) && above.contains_key(&at);
            if let (true, Some((parent, key))) = (circle, above.remove(&at)) {
                if let Some(value) = self.state.get(&key)? {
                    self.remove(&key)?;
                    if let Ok(l) = Dirent::decode(&value) {
                        if let Some((entry, ..)) = self.state.dirent(Ino(parent), l.name)? {
                            self.remove(&entry)?;
                        }
                        self.lose_name(Ino(parent), &l, "directories contained each other");
                    }
                }
            }
            settled.extend(way);
        }
        Ok(())
    }

    /// Inodes without a name get one in lost+found, orphans excepted.
    fn nameless(&mut self) -> Result<()> {
        let mut nameless: Vec<(Ino, Inode)> = Vec::new();
        let mut at: Option<(Ino, Inode)> = None;
        self.sweep(&mut |_, key, value| {
            match key.kind {
                Kind::Inode => {
                    nameless.extend(at.take());
                    let inode = Inode::decode(value).ok();
                    at = inode.filter(|i| i.nlink > 0 && key.ino != Ino::ROOT.0).map(|i| (Ino(key.ino), i));
                }
                Kind::Link if at.as_ref().is_some_and(|(ino, _)| ino.0 == key.ino) => at = None,
                _ => {}
            }
            Ok(())
        })?;
        nameless.extend(at);
        for (ino, inode) in nameless {
            let name = format!("#{ino}");
            self.put_into_lost_and_found(ino, &inode, name.as_bytes())?;
            let what = if FileKind::from_mode(inode.mode) == FileKind::Directory { "directory" } else { "file" };
            self.losses.add(LossKind::FileFound, About::Inode(ino), format!("a {what} without a name"));
        }
        Ok(())
    }

    /// Gives an inode a name there, or one like it.
    pub(super) fn put_into_lost_and_found(&mut self, ino: Ino, inode: &Inode, name: &[u8]) -> Result<()> {
        let dir = self.lost_and_found()?;
        let name = self.unused(dir, name)?;
        let (birth, file_type) = (self.state.open_cno, (inode.mode >> 12) as u8);
        let group = self.state.dirent_key(dir, &name);
        self.place_name(group, Dirent { birth, ino, file_type, name: &name })?;
        let group = self.state.link_key(ino, dir, &name);
        self.place_name(group, Dirent { birth, ino: dir, file_type, name: &name }).map(drop)
    }

    fn unused(&self, dir: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let mut tried = name.to_vec();
        for i in 1..NAMES_TRIED {
            if self.state.dirent(dir, &tried)?.is_none() {
                break;
            }
            tried = [name, format!(".{i}").as_bytes()].concat();
        }
        Ok(tried)
    }

    fn lost_and_found(&mut self) -> Result<Ino> {
        let mut name = LOST_AND_FOUND.to_vec();
        for i in 1..NAMES_TRIED {
            match self.state.dirent(Ino::ROOT, &name)? {
                Some((_, ino, _)) if self.directory(ino)?.is_some() => return Ok(ino),
                Some(_) => name = [LOST_AND_FOUND, format!(".{i}").as_bytes()].concat(),
                None => break,
            }
        }
        let ino = self.state.next_ino.max(Ino::FIRST);
        let record = Record::Create {
            parent: Ino::ROOT,
            ino,
            mode: 0o040_700,
            uid: 0,
            gid: 0,
            rdev: 0,
            time: self.now,
            name: &name,
            target: b"",
        };
        self.state.apply(&record, Addr::NONE)?;
        Ok(ino)
    }
}
