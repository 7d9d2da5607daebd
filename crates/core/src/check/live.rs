//! The live tree, inode by inode: its items come together, the inode first.
//!
//! Invariants
//! 1. Nothing is kept of an inode once the next begins, but a directory's place.

use super::content;
use super::findings::What;
use super::names::{self, Directories};
use super::report::{Finding, Log, Step};
use super::roots::Entered;
use super::usage::Usage;
use crate::state::{State, orphan_key, reap_key};
use crate::storage::Storage;
use crate::{Error, FileKind, Result};
use nenrin_format::items::{self, Dirent, INODE_XATTR, Inode, Reap};
use nenrin_format::key::{Key, Kind};
use nenrin_format::{INLINE_BYTES_MAX, Ino, Invalid};

/// What has been seen of an inode.
#[derive(Default)]
pub struct Group {
    pub ino: Ino,
    pub inode: Option<Inode>,
    /// The inode item is there but cannot be understood.
    unknown: bool,
    items: u64,
    entries: u64,
    subdirectories: u64,
    links: u64,
    link_parent: Option<Ino>,
    inline: Option<usize>,
    target: Option<usize>,
    xattrs: u64,
    /// Blocks of the current fork.
    pub blocks: u64,
    /// Where the last extent ended: fork and file block.
    pub end: (u32, u64),
    /// The fork other than the current one that was looked at last.
    pub old_fork: Option<u32>,
    /// A lost range that is being gone through: file blocks from, to.
    pub lost: Option<(u64, u64)>,
    /// Items that are no extents.
    others: u64,
    /// A fork of an inode that is not there, with extents that nobody reaps by themselves: the first.
    pub unreaped: Option<u32>,
}

/// Checks the live tree.
pub struct Live<'a, 'p> {
    pub state: &'a State,
    pub storage: &'a Storage,
    pub log: &'a mut Log<'p>,
    pub usage: &'a mut Usage,
    directories: Directories,
    /// Everything can be read, so that what is missing is really missing.
    pub whole: bool,
    pub group: Group,
}

/// Checks the live tree; counts into `usage`.
pub fn check(entered: &Entered, usage: &mut Usage, log: &mut Log<'_>) -> Result<()> {
    let state = &entered.opened.state;
    log.step(Step::Live, state.live.items());
    let mut this = Live {
        state,
        storage: &entered.opened.storage,
        log,
        usage,
        directories: Directories::default(),
        whole: entered.audit.lost == 0,
        group: Group::default(),
    };
    let lost = state.live.walk(&state.cache, &mut |key, value| this.item(key, value))?;
    this.whole &= lost == 0;
    this.finish()?;
    if this.whole {
        this.root_directory()?;
        let directories = std::mem::take(&mut this.directories);
        directories.check(state, this.log);
    }
    Ok(())
}

/// A look-up that met an item without meaning: that is, or will be, noted with
/// the item itself.
fn noted(result: Result<()>) -> Result<()> {
    match result {
        Err(Error::Corrupt(_)) => Ok(()),
        other => other,
    }
}

impl Live<'_, '_> {
    /// A finding about the inode at hand.
    pub fn bad(&mut self, what: What, text: impl Into<String>) {
        self.log.add_in(self.state, Finding::new(what, text).of(self.group.ino));
    }

    fn item(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        self.log.advance(1);
        self.log.report.counts.live_items += 1;
        if key.ino != self.group.ino.0 || self.group.items == 0 {
            self.finish()?;
            self.group = Group { ino: Ino(key.ino), ..Group::default() };
        }
        self.group.items += 1;
        self.group.others += u64::from(key.kind != Kind::Extent);
        if key.death != 0 || key.kind > Kind::Extent {
            self.bad(What::ItemMisplaced, format!("{:?} at {} of the live tree", key.kind, key.off));
            return Ok(());
        }
        match items::birth(value) {
            Ok(birth) if birth > self.state.open_cno => {
                let text = format!("{:?} born in checkpoint {birth}, {} is open", key.kind, self.state.open_cno);
                self.bad(What::ItemUnborn, text);
            }
            Ok(_) => {}
            Err(why) => return self.invalid(key, why),
        }
        noted(match key.kind {
            Kind::Inode => self.inode(key, value),
            Kind::Inline => self.bytes(key, value, false),
            Kind::Symlink => self.bytes(key, value, true),
            Kind::Xattr => content::check_xattr(self, key, value),
            Kind::Dirent => self.entry(key, value),
            Kind::Link => self.link(key, value),
            _ => content::check_extent(self, key, value),
        })
    }

    /// A value that means nothing.
    pub fn invalid(&mut self, key: &Key, why: Invalid) -> Result<()> {
        self.bad(What::ItemInvalid, format!("{:?} at {}: {why}", key.kind, key.off));
        Ok(())
    }

    fn inode(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        if key.fork != 0 || key.off != 0 {
            self.bad(What::ItemMisplaced, "a second inode item");
            return Ok(());
        }
        self.usage.inodes += 1;
        self.log.report.counts.inodes += 1;
        if key.ino >= self.state.next_ino.0 {
            self.bad(What::InodeNumberWrong, format!("the next inode will be {}", self.state.next_ino));
        }
        let inode = match Inode::decode(value) {
            Ok(inode) => inode,
            Err(why) => {
                self.group.unknown = true;
                return self.invalid(key, why);
            }
        };
        if FileKind::from_mode(inode.mode).mode() != inode.mode & !0o7777 {
            self.bad(What::ItemInvalid, format!("mode {:o} is no file type", inode.mode));
        }
        self.group.inode = Some(inode);
        if self.whole && self.state.reap_of_inode(self.group.ino)?.is_some() {
            self.bad(What::ReapWrong, "the inode is to be removed, but exists");
        }
        Ok(())
    }

    /// What the space tree says is to be removed of the inode at hand.
    pub fn reap(&self, fork: u32) -> Result<Option<Reap>> {
        let value = self.state.space.get(&self.state.cache, &reap_key(self.group.ino, fork))?;
        Ok(value.and_then(|v| Reap::decode(&v).ok()))
    }

    fn bytes(&mut self, key: &Key, value: &[u8], target: bool) -> Result<()> {
        if key.fork != 0 || key.off != 0 {
            self.bad(What::ItemMisplaced, format!("{:?} at {}", key.kind, key.off));
            return Ok(());
        }
        match items::decode_bytes(value) {
            Ok(bytes) if target => self.group.target = Some(bytes.len()),
            Ok(bytes) => self.group.inline = Some(bytes.len()),
            Err(why) => return self.invalid(key, why),
        }
        Ok(())
    }

    fn entry(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        let d = match Dirent::decode_any_name(value) {
            Ok(d) => d,
            Err(why) => return self.invalid(key, why),
        };
        self.log.report.counts.names += 1;
        self.group.entries += 1;
        self.group.subdirectories +=
            u64::from(FileKind::from_mode(u32::from(d.file_type) << 12) == FileKind::Directory);
        if self.whole && self.group.inode.is_some() {
            names::check_entry(self.state, key, &d, self.log)?;
        }
        Ok(())
    }

    fn link(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        let link = match Dirent::decode_any_name(value) {
            Ok(link) => link,
            Err(why) => return self.invalid(key, why),
        };
        self.group.links += 1;
        self.group.link_parent = self.group.link_parent.or(Some(link.ino));
        if self.whole && self.group.inode.is_some() {
            names::check_link(self.state, key, &link, self.log)?;
        }
        Ok(())
    }

    /// All items of the inode have come.
    fn finish(&mut self) -> Result<()> {
        content::end_lost(self);
        if self.group.items == 0 || !self.whole || self.group.unknown {
            return Ok(());
        }
        let Some(inode) = self.group.inode else {
            if !self.is_reaped()? {
                self.bad(What::StrayItems, format!("{} items", self.group.items));
            }
            return Ok(());
        };
        let kind = FileKind::from_mode(inode.mode);
        if kind == FileKind::Directory {
            self.directory(&inode);
        } else {
            if self.group.entries > 0 {
                self.bad(What::EntriesInFile, format!("{} entries, mode {:o}", self.group.entries, inode.mode));
            }
            if u64::from(inode.nlink) != self.group.links {
                self.bad(What::LinkCountWrong, format!("{} stated, {} names", inode.nlink, self.group.links));
            }
        }
        if inode.nlink == 0 {
            self.log.report.counts.orphans += 1;
            let listed = self.state.space.get(&self.state.cache, &orphan_key(self.group.ino))?;
            if listed.is_none() {
                self.bad(What::OrphanUnlisted, "no names, and not listed");
            }
        }
        self.content(&inode, kind);
        if self.group.xattrs > 0 && inode.flags & INODE_XATTR == 0 {
            self.bad(What::XattrUnflagged, format!("{} attributes", self.group.xattrs));
        }
        Ok(())
    }

    /// Whether all items of an inode that is not there are on their way out.
    fn is_reaped(&self) -> Result<bool> {
        let g = &self.group;
        Ok(match self.state.reap_of_inode(g.ino)? {
            Some(reap) => g.unreaped.is_none_or(|fork| reap.fork <= fork),
            None => g.others == 0 && g.unreaped.is_none(),
        })
    }

    fn directory(&mut self, inode: &Inode) {
        self.log.report.counts.directories += 1;
        let g = &self.group;
        let (ino, root) = (g.ino, g.ino == Ino::ROOT);
        let (links, entries, link_parent) = (g.links, g.entries, g.link_parent);
        // A directory that was removed while in use has no names and no entries.
        let dead = inode.nlink == 0;
        let nlink = if dead { 0 } else { 2 + g.subdirectories };
        if u64::from(inode.nlink) != nlink || dead && g.subdirectories > 0 {
            let text = format!("{} stated, {} subdirectories", inode.nlink, g.subdirectories);
            self.bad(What::LinkCountWrong, text);
        }
        if links != u64::from(!root && !dead) {
            self.bad(What::DirectoryNames, format!("{links} names"));
        } else if dead && entries > 0 {
            self.bad(What::DirectoryNames, format!("no name, and {entries} entries"));
        }
        if inode.entries != entries {
            self.bad(What::EntryCountWrong, format!("{} stated, {entries} found", inode.entries));
        }
        let parent = if root { Some(Ino::ROOT) } else { link_parent };
        if parent.is_some_and(|p| p != inode.parent) {
            let text = format!("{} stated, {} names it", inode.parent, parent.unwrap_or_default());
            self.bad(What::ParentWrong, text);
        }
        if !dead {
            self.directories.push(ino, parent.unwrap_or(inode.parent));
        }
    }

    fn content(&mut self, inode: &Inode, kind: FileKind) {
        let g = &self.group;
        let (blocks, inline, target) = (g.blocks, g.inline, g.target);
        if blocks != inode.blocks {
            self.bad(What::BlocksWrong, format!("{} stated, {blocks} found", inode.blocks));
        }
        if kind != FileKind::Regular && (blocks > 0 || inline.is_some()) {
            self.bad(What::ContentOfOther, format!("content, and mode {:o}", inode.mode));
        } else if inline.is_some() && blocks > 0 {
            self.bad(What::InlineWithExtents, format!("{blocks} blocks"));
        } else if let Some(n) = inline.filter(|n| *n as u64 != inode.size || *n > INLINE_BYTES_MAX) {
            self.bad(What::InlineSizeWrong, format!("{n} bytes, size is {}", inode.size));
        }
        match (target, kind == FileKind::Symlink) {
            (Some(n), true) if n as u64 == inode.size && n > 0 => {}
            (Some(n), true) => self.bad(What::SymlinkWrong, format!("{n} bytes, {} stated", inode.size)),
            (None, true) => self.bad(What::SymlinkWrong, "no target"),
            (Some(_), false) => self.bad(What::ContentOfOther, format!("a target, and mode {:o}", inode.mode)),
            (None, false) => {}
        }
    }

    /// Counts an extended attribute of the inode at hand.
    pub fn count_xattr(&mut self) {
        self.group.xattrs += 1;
    }

    fn root_directory(&mut self) -> Result<()> {
        let root = self.state.inode(Ino::ROOT).unwrap_or(None);
        if root.is_none_or(|r| FileKind::from_mode(r.mode) != FileKind::Directory || r.nlink == 0) {
            self.log.add(Finding::new(What::RootDirectoryMissing, "inode 1").of(Ino::ROOT));
        }
        Ok(())
    }
}
