//! A volume in memory, behind one lock, with the library's calls and no more
//! than they need: what the front end's tests mount.

use nenrin_core::{
    Accepted, AllocateMode, At, Attr, DirEntry, Done, Error, FileKind, Joined, NewInode, ReadBytes, RenameMode, Result,
    Seek, SetAttr, SetTime, Usage, Writer, XattrMode, Xattrs,
};
use nenrin_format::{Cno, Ino, Time};
use nenrin_fuse::Volume;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

const PAGE: u64 = 4096;

#[derive(Clone)]
struct Inode {
    attr: Attr,
    parent: u64,
    content: Vec<u8>,
    /// Pages with content; the others are holes.
    pages: BTreeSet<u64>,
    target: Vec<u8>,
    names: HashMap<Vec<u8>, u64>,
    /// Names by cookie, which is given once and never again.
    listing: BTreeMap<u64, (Vec<u8>, u64)>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    uses: u32,
}

#[derive(Clone)]
struct State {
    inodes: HashMap<u64, Inode>,
    next: u64,
    next_cookie: u64,
}

pub struct Toy {
    live: Mutex<State>,
    past: Mutex<HashMap<u64, State>>,
    pub syncs: std::sync::atomic::AtomicU32,
    /// Names of attributes that were given to who lists them.
    pub names_given: std::sync::atomic::AtomicU32,
    log: Option<Box<dyn Log>>,
    /// What is written can be read.
    keeps_content: bool,
    /// Programs that wrote and are kept waiting, where they are.
    waiting: Option<Mutex<Vec<Done>>>,
    /// Copies are done, and said to have come to their half.
    pub tells_half: std::sync::atomic::AtomicBool,
    /// What changes attributes or space is done, and said to have failed.
    pub fails: std::sync::atomic::AtomicBool,
}

/// What makes durable what a sync asks for, where anything does.
pub trait Log: Send + Sync {
    /// Answers when it is, maybe for others as well.
    fn sync(&self, done: Done);
    /// The same, without waiting; see [`Volume::join_sync`].
    fn join(&self, done: Done) -> Joined;
    fn lead(&self);
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Time(since.as_nanos() as i64)
}

fn with(mut inode: Inode, xattrs: Xattrs<'_>) -> Inode {
    inode.xattrs = xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    inode
}

fn inode(ino: u64, new: &NewInode<'_>, parent: u64) -> Inode {
    let t = now();
    let attr = Attr {
        ino: Ino(ino),
        mode: new.mode,
        nlink: if new.mode & libc::S_IFMT == libc::S_IFDIR { 2 } else { 1 },
        uid: new.uid,
        gid: new.gid,
        rdev: new.rdev,
        size: new.target.len() as u64,
        blocks_512: 0,
        atime: t,
        mtime: t,
        ctime: t,
        btime: t,
    };
    Inode {
        attr,
        parent,
        content: Vec::new(),
        pages: BTreeSet::new(),
        target: new.target.to_vec(),
        names: HashMap::new(),
        listing: BTreeMap::new(),
        xattrs: BTreeMap::new(),
        uses: 0,
    }
}

impl Inode {
    fn touch(&mut self) {
        self.attr.mtime = now();
        self.attr.ctime = self.attr.mtime;
    }
    fn resize(&mut self, bytes: u64) {
        self.content.resize(bytes as usize, 0);
        self.pages.retain(|page| page * PAGE < bytes);
        self.attr.size = bytes;
        self.count();
    }
    fn count(&mut self) {
        self.attr.blocks_512 = self.pages.len() as u64 * PAGE / 512;
    }
    fn put(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        if end > self.attr.size {
            self.resize(end);
        }
        self.content[offset as usize..end as usize].copy_from_slice(data);
        self.pages.extend(offset / PAGE..end.div_ceil(PAGE));
        self.count();
        self.touch();
    }
}

impl State {
    fn get(&self, ino: Ino) -> Result<&Inode> {
        self.inodes.get(&ino.0).ok_or(Error::NotFound)
    }
    fn get_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino.0).ok_or(Error::NotFound)
    }
    fn dir(&mut self, ino: Ino) -> Result<&mut Inode> {
        let dir = self.get_mut(ino)?;
        if dir.attr.kind() == FileKind::Directory { Ok(dir) } else { Err(Error::NotDirectory) }
    }
    fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let dir = self.get(dir)?;
        if dir.attr.kind() != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        match name {
            b"." => return Ok(dir.attr.ino),
            b".." => return Ok(Ino(dir.parent)),
            _ => {}
        }
        let cookie = dir.names.get(name).ok_or(Error::NotFound)?;
        Ok(Ino(dir.listing[cookie].1))
    }
    fn attach(&mut self, dir: Ino, name: &[u8], child: Ino) -> Result<()> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let is_dir = self.get(child)?.attr.kind() == FileKind::Directory;
        let parent = self.dir(dir)?;
        parent.names.insert(name.to_vec(), cookie);
        parent.listing.insert(cookie, (name.to_vec(), child.0));
        parent.attr.nlink += u32::from(is_dir);
        parent.touch();
        self.get_mut(child)?.parent = dir.0;
        Ok(())
    }
    fn detach(&mut self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let child = self.find(dir, name)?;
        let is_dir = self.get(child)?.attr.kind() == FileKind::Directory;
        let parent = self.dir(dir)?;
        let cookie = parent.names.remove(name).ok_or(Error::NotFound)?;
        parent.listing.remove(&cookie);
        parent.attr.nlink -= u32::from(is_dir);
        parent.touch();
        Ok(child)
    }
    /// One link less; the inode goes when nobody uses it.
    fn unref(&mut self, ino: Ino) {
        let inode = self.inodes.get_mut(&ino.0).unwrap();
        inode.attr.nlink = if inode.attr.kind() == FileKind::Directory { 0 } else { inode.attr.nlink - 1 };
        inode.attr.ctime = now();
        self.reap(ino);
    }
    fn reap(&mut self, ino: Ino) {
        if self.inodes.get(&ino.0).is_some_and(|i| i.attr.nlink == 0 && i.uses == 0) {
            self.inodes.remove(&ino.0);
        }
    }
}

impl Toy {
    pub fn new() -> Self {
        let new = NewInode { mode: libc::S_IFDIR | 0o755, uid: 0, gid: 0, rdev: 0, target: &[] };
        let inodes = HashMap::from([(1, inode(1, &new, 1))]);
        let live = Mutex::new(State { inodes, next: 16, next_cookie: 3 });
        let (past, syncs, fails, names_given) = (Mutex::default(), 0.into(), false.into(), 0.into());
        Self {
            live,
            past,
            syncs,
            names_given,
            log: None,
            keeps_content: true,
            waiting: None,
            tells_half: false.into(),
            fails,
        }
    }
    /// One whose syncs a log makes durable; without content only the sizes of files are kept.
    pub fn with_log(log: impl Log + 'static, keeps_content: bool) -> Self {
        Self { log: Some(Box::new(log)), keeps_content, ..Self::new() }
    }
    /// One that keeps whoever writes waiting until [`Toy::tell`].
    pub fn telling_later() -> Self {
        Self { waiting: Some(Mutex::default()), ..Self::new() }
    }
    /// Tells those who are kept waiting, and how many they were.
    pub fn tell(&self) -> usize {
        let told = std::mem::take(&mut *self.waiting.as_ref().unwrap().lock().unwrap());
        let count = told.len();
        told.into_iter().for_each(|done| done(Ok(())));
        count
    }
    fn outcome<T>(&self, value: T) -> Result<T> {
        if self.fails.load(std::sync::atomic::Ordering::Relaxed) { Err(Error::NoSpace) } else { Ok(value) }
    }
    pub fn kept_waiting(&self) -> usize {
        self.waiting.as_ref().unwrap().lock().unwrap().len()
    }
    /// Gives the root directory to somebody.
    pub fn give_root_to(&self, uid: u32, gid: u32) {
        let mut s = self.state();
        let root = s.get_mut(Ino::ROOT).unwrap();
        (root.attr.uid, root.attr.gid) = (uid, gid);
    }
    /// Makes an empty file of somebody's.
    pub fn add_file(&self, name: &str, mode: u32, uid: u32) {
        let new = NewInode { mode: libc::S_IFREG | mode, uid, gid: uid, rdev: 0, target: &[] };
        self.create_with(Ino::ROOT, name.as_bytes(), &new, &[]).unwrap();
    }
    /// Keeps the present state under a number.
    pub fn keep(&self, cno: u64) {
        let now = self.state().clone();
        self.past.lock().unwrap().insert(cno, now);
    }
    /// What a name in the root directory shows, without asking the kernel.
    pub fn content(&self, name: &str) -> Vec<u8> {
        let s = self.state();
        s.get(s.find(Ino::ROOT, name.as_bytes()).unwrap()).unwrap().content.clone()
    }
    /// Inodes that exist, and uses of them.
    pub fn inodes_and_uses(&self) -> (usize, u32) {
        let s = self.state();
        (s.inodes.len(), s.inodes.values().map(|i| i.uses).sum())
    }
    /// Inodes that exist without a name.
    pub fn unnamed(&self) -> usize {
        self.state().inodes.values().filter(|i| i.attr.nlink == 0).count()
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.live.lock().unwrap()
    }
    fn read_at<T>(&self, at: At, f: impl FnOnce(&State) -> Result<T>) -> Result<T> {
        match at {
            At::Live => f(&self.state()),
            At::Past(Cno(cno)) => f(self.past.lock().unwrap().get(&cno).ok_or(Error::Stale)?),
        }
    }
}

impl Volume for Toy {
    fn lookup(&self, at: At, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.read_at(at, |s| Ok(s.get(s.find(parent, name)?)?.attr))
    }
    fn getattr(&self, at: At, ino: Ino) -> Result<Attr> {
        self.read_at(at, |s| Ok(s.get(ino)?.attr))
    }
    fn readlink(&self, at: At, ino: Ino) -> Result<Vec<u8>> {
        self.read_at(at, |s| Ok(s.get(ino)?.target.clone()))
    }
    fn read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<ReadBytes> {
        self.read_at(at, |s| {
            let content = &s.get(ino)?.content;
            let start = (offset as usize).min(content.len());
            Ok(content[start..start.saturating_add(bytes).min(content.len())].to_vec().into())
        })
    }
    fn readdir(&self, at: At, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.read_at(at, |s| {
            let d = s.get(dir)?;
            if d.attr.kind() != FileKind::Directory {
                return Err(Error::NotDirectory);
            }
            let dots = [(b".".to_vec(), dir.0, 1), (b"..".to_vec(), d.parent, 2)];
            let names = d.listing.iter().map(|(&cookie, (name, ino))| (name.clone(), *ino, cookie));
            for (name, ino, next) in dots.into_iter().chain(names) {
                let kind = s.get(Ino(ino))?.attr.kind();
                if next > cookie && !each(DirEntry { name, ino: Ino(ino), kind, cookie: next }) {
                    break;
                }
            }
            Ok(())
        })
    }
    fn getxattr(&self, at: At, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.read_at(at, |s| s.get(ino)?.xattrs.get(name).cloned().ok_or(Error::NoAttribute))
    }
    fn each_xattr(&self, at: At, ino: Ino, each: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        let each = |name: &Vec<u8>| {
            self.names_given.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            each(name)
        };
        self.read_at(at, |s| {
            let _ = s.get(ino)?.xattrs.keys().all(each);
            Ok(())
        })
    }
    fn seek(&self, at: At, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.read_at(at, |s| {
            let i = s.get(ino)?;
            if offset >= i.attr.size {
                return Err(Error::NoSuchOffset);
            }
            let pages = offset / PAGE..i.attr.size.div_ceil(PAGE);
            let found = pages.clone().find(|p| i.pages.contains(p) == (what == Seek::Data));
            match (found, what) {
                (Some(page), _) => Ok((page * PAGE).max(offset)),
                (None, Seek::Hole) => Ok(i.attr.size),
                (None, Seek::Data) => Err(Error::NoSuchOffset),
            }
        })
    }

    fn create_with(&self, parent: Ino, name: &[u8], new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr> {
        let mut s = self.state();
        match s.find(parent, name) {
            Err(Error::NotFound) => {}
            Ok(_) => return Err(Error::Exists),
            Err(e) => return Err(e),
        }
        s.get(parent)?;
        let ino = s.next;
        s.next += 1;
        s.inodes.insert(ino, with(inode(ino, new, parent.0), xattrs));
        s.attach(parent, name, Ino(ino))?;
        Ok(s.get(Ino(ino))?.attr)
    }
    fn tmpfile_with(&self, new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr> {
        let mut s = self.state();
        let ino = s.next;
        s.next += 1;
        let mut inode = with(inode(ino, new, 0), xattrs);
        inode.attr.nlink = 0;
        inode.uses = 1;
        let attr = inode.attr;
        s.inodes.insert(ino, inode);
        Ok(attr)
    }
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let mut s = self.state();
        if s.find(parent, name).is_ok() {
            return Err(Error::Exists);
        }
        s.attach(parent, name, ino)?;
        let inode = s.get_mut(ino)?;
        inode.attr.nlink += 1;
        inode.attr.ctime = now();
        Ok(inode.attr)
    }
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let mut s = self.state();
        let ino = s.find(parent, name)?;
        if s.get(ino)?.attr.kind() == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        s.detach(parent, name)?;
        s.unref(ino);
        Ok(())
    }
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let mut s = self.state();
        let ino = s.find(parent, name)?;
        if !s.dir(ino)?.names.is_empty() {
            return Err(Error::NotEmpty);
        }
        s.detach(parent, name)?;
        s.unref(ino);
        Ok(())
    }
    fn rename(&self, from: Ino, old: &[u8], to: Ino, new: &[u8], mode: RenameMode) -> Result<()> {
        let mut s = self.state();
        let source = s.find(from, old)?;
        let target = s.find(to, new).ok();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            (RenameMode::Exchange, Some(target)) => {
                s.detach(from, old)?;
                s.detach(to, new)?;
                s.attach(from, old, target)?;
                s.attach(to, new, source)?;
                return Ok(());
            }
            (RenameMode::Replace, Some(target)) if target == source => return Ok(()),
            (RenameMode::Replace, Some(target)) => {
                if !s.get(target)?.names.is_empty() {
                    return Err(Error::NotEmpty);
                }
                s.detach(to, new)?;
                s.unref(target);
            }
            (_, None) => {}
        }
        s.detach(from, old)?;
        s.attach(to, new, source)
    }
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut s = self.state();
        let inode = s.get_mut(ino)?;
        if let Some(size) = set.size {
            if inode.attr.kind() == FileKind::Directory {
                return Err(Error::IsDirectory);
            }
            inode.resize(size);
            inode.attr.mtime = now();
        }
        let a = &mut inode.attr;
        if set.kill_privileges {
            let group = if a.mode & 0o010 != 0 { 0o2000 } else { 0 };
            a.mode &= !(0o4000 | group);
            inode.xattrs.remove(&b"security.capability"[..]);
        }
        if let Some(mode) = set.mode {
            a.mode = a.mode & libc::S_IFMT | mode;
        }
        let at = |time| match time {
            SetTime::Now => now(),
            SetTime::At(time) => time,
        };
        a.uid = set.uid.unwrap_or(a.uid);
        a.gid = set.gid.unwrap_or(a.gid);
        a.atime = set.atime.map_or(a.atime, at);
        a.mtime = set.mtime.map_or(a.mtime, at);
        a.ctime = set.ctime.map_or_else(now, at);
        self.outcome(*a)
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.setxattr_with_mode(ino, name, value, mode, None)
    }
    fn setxattr_with_mode(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        permissions: Option<u32>,
    ) -> Result<()> {
        let mut s = self.state();
        let inode = s.get_mut(ino)?;
        match (mode, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Error::Exists),
            (XattrMode::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        if let Some(permissions) = permissions {
            inode.attr.mode = inode.attr.mode & libc::S_IFMT | permissions;
        }
        inode.attr.ctime = now();
        Ok(())
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let mut s = self.state();
        let inode = s.get_mut(ino)?;
        inode.attr.ctime = now();
        inode.xattrs.remove(name).map(drop).ok_or(Error::NoAttribute)
    }

    fn retain(&self, ino: Ino) {
        self.state().get_mut(ino).unwrap().uses += 1;
    }
    fn release(&self, ino: Ino) {
        let mut s = self.state();
        s.get_mut(ino).unwrap().uses -= 1;
        s.reap(ino);
    }
    fn accept(&self, ino: Ino, offset: u64, data: &[u8], _writer: Writer) -> Result<Accepted> {
        let mut s = self.state();
        let inode = s.get_mut(ino)?;
        if self.keeps_content {
            inode.put(offset, data);
        } else {
            inode.attr.size = inode.attr.size.max(offset + data.len() as u64);
            inode.touch();
        }
        Ok(Accepted { bytes: data.len(), is_told_later: self.waiting.is_some() })
    }
    fn tell_later(&self, _ino: Ino, done: Done) {
        self.waiting.as_ref().unwrap().lock().unwrap().push(done);
    }
    fn allocate(&self, _writer: Writer, ino: Ino, mode: AllocateMode, offset: u64, bytes: u64) -> Result<()> {
        let mut s = self.state();
        let inode = s.get_mut(ino)?;
        let end = offset + bytes;
        if matches!(mode, AllocateMode::Reserve | AllocateMode::Zero) && end > inode.attr.size {
            inode.resize(end);
        }
        if !matches!(mode, AllocateMode::Reserve | AllocateMode::ReserveKeepSize) {
            let len = inode.content.len();
            inode.content[(offset as usize).min(len)..(end as usize).min(len)].fill(0);
            let holes = offset.div_ceil(PAGE)..end / PAGE;
            inode.pages.retain(|page| !holes.contains(page));
            inode.count();
        }
        inode.touch();
        self.outcome(())
    }
    fn copy_range(
        &self,
        _at: At,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        bytes: u64,
        _writer: Writer,
    ) -> Result<u64> {
        let data = self.read(At::Live, from, from_offset, bytes as usize)?.into_vec();
        self.state().get_mut(to)?.put(to_offset, &data);
        let half = self.tells_half.load(std::sync::atomic::Ordering::Relaxed);
        self.outcome(data.len() as u64 / if half { 2 } else { 1 })
    }
    fn note_closed(&self, ino: Ino) -> Result<()> {
        self.state().get(ino).map(drop)
    }
    fn write_closed(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    fn fsync(&self, _ino: Ino, done: Done) {
        self.syncs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match &self.log {
            Some(log) => log.sync(done),
            // From another thread, as a group commit does.
            None => drop(std::thread::spawn(move || done(Ok(())))),
        }
    }
    fn join_sync(&self, _ino: Ino, done: Done) -> Joined {
        match &self.log {
            Some(log) => log.join(done),
            None => Joined::Waits(done),
        }
    }
    fn lead_announced(&self) {
        self.log.iter().for_each(|log| log.lead());
    }
    fn syncs_at_once(&self, _ino: Ino) -> bool {
        self.log.is_some()
    }
    fn takes_at_once(&self, _ino: Ino, _offset: u64, _bytes: usize) -> bool {
        self.log.is_some()
    }
    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
    fn usage(&self) -> Usage {
        let inodes = self.state().inodes.len() as u64;
        Usage { total_blocks: 1 << 20, available_blocks: 1 << 19, inodes, ..Default::default() }
    }
    fn hold_checkpoint(&self, _: Cno) -> Result<()> {
        Err(Error::Stale)
    }
    fn let_checkpoint_go(&self, _: Cno) {}
    fn last_seen(&self, _: Ino) -> Result<Option<Cno>> {
        Ok(None)
    }
    fn accessed(&self, _: Ino) -> Result<()> {
        Ok(())
    }
    fn tick(&self) -> Result<()> {
        Ok(())
    }
}
