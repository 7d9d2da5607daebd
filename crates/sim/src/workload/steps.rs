//! The steps a workload is made of.

use super::{DIRECTORY, DIRS_MAX, Later, OPEN_MAX, Profile, REGULAR, Workload};
use crate::model::Model;
use crate::ops::Op;
use crate::prng::Prng;
use crate::tree::CAPABILITY;
use nenrin_core::{AllocateMode, FileKind, RenameMode, SetAttr, SetTime, XattrMode};
use nenrin_format::{Ino, Time};

impl Workload {
    pub(super) fn create(&mut self, model: &Model) -> Option<Op> {
        let (uid, gid) = (self.rng.below(3) as u32 * 1000, self.rng.below(2) as u32 * 100);
        if self.rng.chance(5) && self.open.len() < OPEN_MAX {
            return Some(Op::Tmpfile { mode: REGULAR | 0o600, uid, gid });
        }
        let parent = self.dir(model);
        let name = self.name();
        let dirs = Self::dirs(model).len();
        let many = model.tree.inodes.len() >= self.profile.files_max() + DIRS_MAX;
        let kind = self.rng.below(100);
        let (mode, rdev, target) = match kind {
            0..=21 if dirs < DIRS_MAX => (DIRECTORY | 0o755, 0, Vec::new()),
            22..=29 => {
                let long = if self.rng.chance(20) { 3000 } else { 20 };
                (0o120_777, 0, crate::content::pattern(7, 0, 1 + self.rng.index(long)))
            }
            30..=33 => (0o020_644, 0x0103, Vec::new()),
            34..=36 => (0o010_644, 0, Vec::new()),
            _ if many => return None,
            _ => (REGULAR | [0o644, 0o600, 0o4755, 0o664][self.rng.index(4)], 0, Vec::new()),
        };
        if mode & 0o170_000 == REGULAR && self.rng.chance(40) && self.open.len() < OPEN_MAX {
            self.later.push_back(Later::Open(parent, name.clone()));
            if self.rng.chance(60) {
                let bytes = self.size();
                self.later.push_back(Later::Write(parent, name.clone(), bytes));
            }
        }
        Some(Op::Create { parent, name, mode, uid, gid, rdev, target })
    }

    pub(super) fn link(&mut self, model: &Model) -> Option<Op> {
        let ino = if self.rng.chance(80) { self.file(model)? } else { self.entry(model)?.2 };
        Some(Op::Link { ino, parent: self.dir(model), name: self.name() })
    }

    pub(super) fn unlink(&mut self, model: &Model) -> Option<Op> {
        let (parent, name, ino) = self.entry(model)?;
        if model.tree.inodes.get(&ino)?.attr.kind() == FileKind::Directory {
            return Some(Op::Rmdir { parent, name });
        }
        Some(Op::Unlink { parent, name })
    }

    pub(super) fn rename(&mut self, model: &Model) -> Option<Op> {
        let (from, old, _) = self.entry(model)?;
        let mode = match self.rng.below(10) {
            0 => RenameMode::NoReplace,
            1..=2 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        let (to, new) = match self.entry(model) {
            Some((dir, name, _)) if self.rng.chance(50) => (dir, name),
            _ => (self.dir(model), self.name()),
        };
        Some(Op::Rename { from, old, to, new, mode })
    }

    pub(super) fn attr(&mut self, model: &Model) -> Option<Op> {
        let ino = if self.rng.chance(70) { self.file(model)? } else { self.entry(model)?.2 };
        let mut set = SetAttr::default();
        match self.rng.below(5) {
            0 => set.mode = Some([0o644, 0o400, 0o4755, 0o2755, 0o777][self.rng.index(5)]),
            1 => set.uid = Some(self.rng.below(5) as u32),
            2 => {
                set.uid = Some(self.rng.below(5) as u32);
                set.gid = Some(self.rng.below(5) as u32);
                set.mode = Some(0o640);
            }
            3 => {
                set.atime = Some(SetTime::At(Time(self.rng.below(1 << 60) as i64)));
                set.mtime = Some(SetTime::At(Time(-(self.rng.below(1 << 60) as i64))));
            }
            _ => set.kill_privileges = true,
        }
        Some(Op::SetAttr { ino, set })
    }

    pub(super) fn xattr(&mut self, model: &Model) -> Option<Op> {
        let dirs = self.rng.chance(30);
        let ino = if dirs { self.dir(model) } else { self.file(model)? };
        let names: [&[u8]; 4] = [b"user.a", b"user.long.name.of.an.attribute", CAPABILITY, b"trusted.t"];
        let name = names[self.rng.index(4)].to_vec();
        if self.rng.chance(25) {
            return Some(Op::RemoveXattr { ino, name });
        }
        let bytes = match self.rng.below(20) {
            0 => 0,
            1 => 5000 + self.rng.index(9000),
            2 => 1500 + self.rng.index(1000),
            _ => self.rng.index(60),
        };
        let mode = [XattrMode::Any, XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace];
        let id = self.next_id();
        Some(Op::SetXattr { ino, name, value: crate::content::pattern(id, 0, bytes), mode: mode[self.rng.index(5)] })
    }

    pub(super) fn next_id(&mut self) -> u32 {
        self.write_id += 1;
        self.write_id
    }

    pub(super) fn size(&mut self) -> usize {
        let large = if matches!(self.profile, Profile::Fill | Profile::Clean) { 25 } else { 4 };
        if self.rng.chance(large) {
            let most = if self.rng.chance(20) { 1 << 20 } else { 128 * 1024 };
            return 1 + self.rng.index(most);
        }
        match self.rng.below(10) {
            0..=2 => 1 + self.rng.index(300),
            3 => 2000 + self.rng.index(100),
            4..=5 => 4096,
            6 => 4096 * (1 + self.rng.index(8)),
            7 => 1 + self.rng.index(9000),
            _ => 1 + self.rng.index(24_000),
        }
    }

    pub(super) fn write(&mut self, ino: u64, offset: u64, bytes: usize) -> Op {
        Op::Write { ino, offset, bytes, id: self.next_id() }
    }

    pub(super) fn offset(&mut self, size: u64) -> u64 {
        match self.rng.below(100) {
            0..=39 => size,
            40..=59 => self.rng.below(size + 1),
            60..=79 => self.rng.below(size + 1) / 4096 * 4096,
            80..=86 => 0,
            87..=94 => size + self.rng.below(20_000),
            95 => self.rng.below(1 << 30),
            96 if self.rng.chance(20) => (1 << 40) + self.rng.below(1 << 20),
            _ => size.saturating_sub(self.rng.below(5000)),
        }
    }

    pub(super) fn some_write(&mut self, model: &Model) -> Option<Op> {
        if Self::live_bytes(model) > self.live_bytes_max && self.rng.chance(80) {
            return if self.rng.chance(50) { self.unlink(model) } else { self.truncate(model) };
        }
        let ino = self.file(model)?;
        let size = model.tree.inodes.get(&ino)?.content.size();
        let (offset, bytes) = (self.offset(size), self.size());
        let op = self.write(ino, offset, bytes);
        if self.rng.chance(15) {
            self.later.push_back(Later::Do(Op::Fsync { ino, callback: self.rng.chance(30) }));
        }
        Some(op)
    }

    pub(super) fn truncate(&mut self, model: &Model) -> Option<Op> {
        let ino = self.file(model)?;
        let size = model.tree.inodes.get(&ino)?.content.size();
        let to = match self.rng.below(10) {
            0..=3 => 0,
            4 => size + self.rng.below(10_000),
            5 => size / 4096 * 4096,
            _ => self.rng.below(size + 1),
        };
        Some(Op::SetAttr { ino, set: SetAttr { size: Some(to), ..SetAttr::default() } })
    }

    pub(super) fn allocate(&mut self, model: &Model) -> Option<Op> {
        let ino = self.file(model)?;
        let size = model.tree.inodes.get(&ino)?.content.size();
        let mode = match self.rng.below(10) {
            0 => AllocateMode::Reserve,
            1 => AllocateMode::ReserveKeepSize,
            2..=5 => AllocateMode::Punch,
            6..=7 => AllocateMode::Zero,
            _ => AllocateMode::ZeroKeepSize,
        };
        let mut offset = self.rng.below(size.min(200_000) + 1);
        let mut bytes = 1 + self.rng.below(20_000);
        if self.rng.chance(40) {
            offset = offset / 4096 * 4096;
            bytes = bytes.next_multiple_of(4096);
        }
        Some(Op::Allocate { ino, mode, offset, bytes })
    }

    pub(super) fn copy(&mut self, model: &Model) -> Option<Op> {
        let (from, to) = (self.file(model)?, self.file(model)?);
        let size = |ino: u64| model.tree.inodes.get(&ino).map(|i| i.content.size());
        let mut from_offset = self.rng.below(size(from)?.min(300_000) + 1);
        let mut to_offset = self.offset(size(to)?.min(300_000));
        let mut bytes = 1 + self.rng.below(40_000);
        if self.rng.chance(60) {
            from_offset = from_offset / 4096 * 4096;
            to_offset = to_offset / 4096 * 4096;
            bytes = bytes.next_multiple_of(4096);
            // The whole file, as cp(1) does.
            if self.rng.chance(40) {
                (from_offset, to_offset, bytes) = (0, 0, size(from)?.clamp(1, 1 << 20) + self.rng.below(2) * 4096);
            }
        }
        Some(Op::CopyRange { from, from_offset, to, to_offset, bytes })
    }

    pub(super) fn open(&mut self, model: &Model) -> Option<Op> {
        if self.open.len() >= OPEN_MAX {
            return None;
        }
        let ino = self.file(model)?;
        self.open.push(ino);
        Some(Op::Open { ino })
    }

    pub(super) fn close(&mut self, ino: u64) -> Option<Op> {
        let at = self.open.iter().position(|o| *o == ino)?;
        self.open.swap_remove(at);
        Some(if self.rng.chance(90) { Op::Close { ino } } else { Op::Release { ino } })
    }

    pub(super) fn sync(&mut self, model: &Model) -> Option<Op> {
        Some(match self.rng.below(10) {
            0 => Op::SyncAll,
            1 => Op::Fsync { ino: self.dir(model), callback: self.rng.chance(50) },
            2 => Op::FsyncPair { first: self.file(model)?, second: self.file(model)?, submitted: true },
            _ => Op::Fsync { ino: self.file(model)?, callback: self.rng.chance(50) },
        })
    }

    pub(super) fn past(&mut self, model: &Model) -> Option<Op> {
        let here: Vec<(u64, bool)> = model
            .checkpoints
            .iter()
            .filter(|(_, c)| c.gone.is_none())
            .map(|(n, c)| (*n, c.names.last().is_some_and(|n| n.name.is_some())))
            .collect();
        let name = |rng: &mut Prng| format!("snap{}", rng.below(30)).into_bytes();
        match self.rng.below(10) {
            0..=3 => {
                let named = self.rng.chance(40).then(|| name(&mut self.rng));
                Some(Op::CheckpointCreate { name: named })
            }
            4..=5 => {
                let (cno, _) = *self.rng.pick(&here)?;
                let named = self.rng.chance(60).then(|| name(&mut self.rng));
                Some(Op::CheckpointName { cno, name: named })
            }
            6 => self.rng.pick(&here).map(|(cno, _)| Op::CheckpointDrop { cno: *cno }),
            _ => self.rng.pick(&here).map(|(cno, _)| Op::ReadPast { cno: *cno }),
        }
    }

    pub(super) fn time(&mut self) -> Op {
        let nanos = match self.rng.below(100) {
            0..=59 => 1_000_000 + self.rng.below(300_000_000),
            60..=84 => 100_000_000 + self.rng.below(2_000_000_000),
            85..=95 => 5_000_000_000 + self.rng.below(3_000_000_000),
            96..=97 => 31_000_000_000,
            98 => 4_000_000_000_000,
            _ => {
                self.later.push_back(Later::Do(Op::Tick));
                return Op::Jump { nanos: self.rng.below(1 << 56) as i64 - (1 << 55) };
            }
        };
        self.later.push_back(Later::Do(Op::Tick));
        Op::Advance { nanos }
    }

    pub(super) fn read(&mut self, model: &Model) -> Option<Op> {
        if self.rng.chance(20) {
            return Some(Op::List { dir: self.dir(model) });
        }
        let ino = self.file(model)?;
        let size = model.tree.inodes.get(&ino)?.content.size();
        if self.rng.chance(20) {
            return Some(Op::Seek { ino, offset: self.rng.below(size + 2) });
        }
        Some(Op::Read { ino, offset: self.rng.below(size + 2), bytes: self.size() })
    }

    /// How programs replace a file.
    pub(super) fn save(&mut self, model: &Model) -> Option<Op> {
        let (parent, name, ino) = self.entry(model)?;
        if model.tree.inodes.get(&ino)?.attr.kind() != FileKind::Regular || self.open.len() >= OPEN_MAX {
            return None;
        }
        let synced = self.rng.chance(40);
        let bytes = self.size();
        if self.rng.chance(50) {
            self.open.push(ino);
            self.later.push_back(Later::Do(Op::SetAttr { ino, set: SetAttr { size: Some(0), ..SetAttr::default() } }));
            self.noise(model);
            self.later.push_back(Later::Write(parent, name.clone(), bytes));
            self.noise(model);
            if synced {
                self.later.push_back(Later::Fsync(parent, name.clone()));
            }
            self.later.push_back(Later::Close(parent, name));
            return Some(Op::Open { ino });
        }
        let beside = b"~tmp".to_vec();
        self.later.push_back(Later::Open(parent, beside.clone()));
        self.later.push_back(Later::Write(parent, beside.clone(), bytes));
        if synced {
            self.later.push_back(Later::Fsync(parent, beside.clone()));
        }
        let closed_first = self.rng.chance(60);
        if closed_first {
            self.later.push_back(Later::Close(parent, beside.clone()));
        }
        self.noise(model);
        let mode = RenameMode::Replace;
        let rename = Op::Rename { from: parent, old: beside.clone(), to: parent, new: name.clone(), mode };
        self.later.push_back(Later::Do(rename));
        if !closed_first {
            self.later.push_back(Later::Close(parent, name));
        }
        Some(Op::Create { parent, name: beside, mode: REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: Vec::new() })
    }

    /// Something else happens in between.
    pub(super) fn noise(&mut self, model: &Model) {
        let other = match self.rng.below(6) {
            0 => self.file(model).map(|ino| Op::Fsync { ino, callback: false }),
            1 => Some(Op::SyncAll),
            2 => Some(Op::CheckpointCreate { name: None }),
            3 => {
                self.later.push_back(Later::Do(Op::Advance { nanos: 1_200_000_000 }));
                Some(Op::Tick)
            }
            _ => None,
        };
        self.later.extend(other.map(Later::Do));
    }

    pub(super) fn append_fsync(&mut self, model: &Model) -> Option<Op> {
        let files = Self::files(model);
        if files.is_empty() || (files.len() < 3 && self.rng.chance(5)) {
            let name = self.name();
            let parent = Ino::ROOT.0;
            return Some(Op::Create {
                parent,
                name,
                mode: REGULAR | 0o644,
                uid: 0,
                gid: 0,
                rdev: 0,
                target: Vec::new(),
            });
        }
        let ino = *self.rng.pick(&files)?;
        let size = model.tree.inodes.get(&ino)?.content.size();
        self.later.push_back(Later::Do(Op::Fsync { ino, callback: self.rng.chance(50) }));
        Some(self.write(ino, size, 4096))
    }
}
