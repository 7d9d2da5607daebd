//! What the calls of programs come to under `cache=writeback`, where the kernel
//! keeps what is written and sends it later.
//!
//! Invariants
//! 1. What programs wrote to a file is sent before any call that makes it
//!    durable, gives it another's name, or has the file system look at its bytes.
//! 2. It is sent in whole pages, the last one cut at the end of the file, in an
//!    order drawn from the seed, and followed by the times that the kernel has
//!    given it.

use crate::content::{Content, PAGE_BYTES, pattern};
use crate::model::Model;
use crate::ops::Op;
use crate::prng::Prng;
use nenrin_core::{FileKind, RenameMode, SetAttr, SetTime};
use nenrin_format::Time;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages in one request.
const REQUEST_PAGES_MAX: u64 = 256;
/// Pages that are kept, over all files.
const PAGES_MAX: usize = 96;

/// A file of which something was not sent yet.
#[derive(Clone, Debug)]
struct Kept {
    /// As programs see it.
    content: Content,
    pages: BTreeSet<u64>,
}

/// The kernel's cache.
#[derive(Clone, Debug)]
pub(super) struct PageCache {
    rng: Prng,
    kept: BTreeMap<u64, Kept>,
}

impl PageCache {
    pub(super) fn new(rng: Prng) -> Self {
        Self { rng, kept: BTreeMap::new() }
    }

    /// The process that serves the volume is gone, and what was kept with it.
    pub(super) fn lost(&mut self) {
        self.kept.clear();
    }

    /// What the kernel sends for a call; nothing when it answers it by itself.
    pub(super) fn pass(&mut self, op: Op, model: &Model) -> Vec<Op> {
        let mut out = Vec::new();
        match &op {
            Op::Write { ino, offset, bytes, id } if self.keep(*ino, *offset, &pattern(*id, *offset, *bytes), model) => {
                if self.kept.values().map(|k| k.pages.len()).sum::<usize>() > PAGES_MAX {
                    self.send_one(model, &mut out);
                }
                return out;
            }
            // What is kept is also what is read.
            Op::Read { ino, .. } if self.kept.contains_key(ino) && self.rng.chance(50) => return out,
            Op::SetAttr { ino, set: SetAttr { size: Some(size), .. } } => self.cut(*ino, *size, model, &mut out),
            Op::Fsync { ino, .. }
            | Op::FsyncBeside { ino }
            | Op::Flush { ino }
            | Op::Close { ino }
            | Op::Release { ino }
            | Op::Allocate { ino, .. }
            | Op::Read { ino, .. }
            | Op::Seek { ino, .. }
            | Op::Link { ino, .. }
            | Op::CopyPast { to: ino, .. } => self.send(*ino, model, &mut out),
            Op::FsyncPair { first: a, second: b, .. } | Op::CopyRange { from: a, to: b, .. } => {
                self.send(*a, model, &mut out);
                self.send(*b, model, &mut out);
            }
            Op::Rename { from, old, to, new, mode } => self.renamed((*from, old), (*to, new), *mode, model, &mut out),
            Op::SyncAll | Op::Remount => while self.send_one(model, &mut out) {},
            // The kernel writes back what is old.
            Op::Advance { .. } if self.rng.chance(40) => drop(self.send_one(model, &mut out)),
            _ => {}
        }
        out.push(op);
        out
    }

    fn open(&mut self, ino: u64, model: &Model) -> Option<&mut Kept> {
        let inode = model.tree.inodes.get(&ino).filter(|i| i.attr.kind() == FileKind::Regular)?;
        let fresh = || Kept { content: inode.content.clone(), pages: BTreeSet::new() };
        Some(self.kept.entry(ino).or_insert_with(fresh))
    }

    /// Keeps what is written. False when there is no such file, which is for the file system to say.
    fn keep(&mut self, ino: u64, offset: u64, data: &[u8], model: &Model) -> bool {
        let Some(kept) = self.open(ino, model) else { return false };
        let Some(last) = (offset + data.len() as u64).checked_sub(1).filter(|_| !data.is_empty()) else { return false };
        kept.content.write(offset, data);
        kept.pages.extend(offset / PAGE..=last / PAGE);
        true
    }

    /// A file is cut or grows: pages behind the new end are never sent.
    fn cut(&mut self, ino: u64, size: u64, model: &Model, out: &mut Vec<Op>) {
        if self.rng.chance(50) {
            return self.send(ino, model, out);
        }
        if let Some(kept) = self.kept.get_mut(&ino) {
            kept.content.resize(size);
            kept.pages.retain(|page| page * PAGE < size);
        }
    }

    /// A file that takes the place of another is sent before; so is each of two that change places.
    fn renamed(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), mode: RenameMode, model: &Model, out: &mut Vec<Op>) {
        let find = |(dir, name): (u64, &[u8])| model.tree.inodes.get(&dir)?.entries.get(name).copied();
        let (Some(source), Some(target)) = (find(from), find(to)) else { return };
        self.send(source, model, out);
        if mode == RenameMode::Exchange {
            self.send(target, model, out);
        }
    }

    /// Sends one of the files of which something is kept.
    fn send_one(&mut self, model: &Model, out: &mut Vec<Op>) -> bool {
        let all: Vec<u64> = self.kept.keys().copied().collect();
        let Some(ino) = self.rng.pick(&all).copied() else { return false };
        self.send(ino, model, out);
        true
    }

    /// Sends what is kept of a file.
    fn send(&mut self, ino: u64, model: &Model, out: &mut Vec<Op>) {
        let Some(kept) = self.kept.remove(&ino) else { return };
        // Nobody has it open any more, and it has no name.
        let Some(inode) = model.tree.inodes.get(&ino) else { return };
        let mut requests: Vec<(u64, u64)> = Vec::new();
        for page in kept.pages {
            match requests.last_mut() {
                Some((first, count))
                    if *first + *count == page && *count < REQUEST_PAGES_MAX && !self.rng.chance(10) =>
                {
                    *count += 1;
                }
                _ => requests.push((page, 1)),
            }
        }
        while !requests.is_empty() {
            let next = if self.rng.chance(60) { self.rng.index(requests.len()) } else { 0 };
            let (first, count) = requests.remove(next);
            let data = kept.content.read(first * PAGE, (count * PAGE) as usize);
            if !data.is_empty() {
                out.push(Op::WritePages { ino, offset: first * PAGE, data });
            }
        }
        let now = SetTime::At(Time(inode.attr.ctime.0 + 1 + self.rng.below(1000) as i64));
        out.push(Op::SetAttr { ino, set: SetAttr { mtime: Some(now), ctime: Some(now), ..SetAttr::default() } });
    }
}
