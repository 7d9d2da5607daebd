//! Situations that people and papers have found to go wrong, by name. Each is a
//! fixed run of calls that is cut everywhere like any workload.

use crate::model::HOLD_NANOS;
use crate::ops::Op;
use crate::run::{Run, Step};
use crate::subject::Subject;
use crate::tree::FILE_BYTES_MAX;
use nenrin_core::{AllocateMode, RenameMode, SetAttr};
use nenrin_format::Ino;

/// A named scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A file is emptied, written anew and closed, again and again, beside another file's loop of fsync.
    TruncateBesideFsync,
    /// New files are emptied, written anew and closed several times before anything is committed, and again while it is.
    SavedAgain,
    /// A new file is renamed over an old one while a program still writes to it.
    RenameNotClosed,
    /// The volume is filled until nothing fits, emptied, and filled again.
    Fill,
    /// The wall clock jumps a year forward, and back, with checkpoints around it.
    ClockJumps,
    /// Overwrites with little free space, so that cleaning moves what is alive.
    Clean,
    /// Files written at random are put in order, while a copy shares blocks with one and a snapshot keeps another, and are
    /// overwritten between.
    Order,
    /// Two programs sync at once, the second while the first is told that its sync is done.
    TwoClients,
    /// Three programs write and sync; each sync is under way while the others write, sync, rename and remove.
    Clients,
    /// A file is copied by sharing, then both are overwritten, cleaned, removed and read, with snapshots between.
    Reflink,
    /// A copy waits to be committed while its source goes and the volume is full.
    ReflinkHeld,
    /// Space is reserved, others take all the rest, and what was reserved is written.
    Reserve,
    /// Files that share blocks with each other and with the past are overwritten and cleaned, while copies wait to be committed.
    ReflinkClean,
    /// Syncs wait for their turn while others write and create: under order=strict nothing overtakes what was received before.
    Waiting,
    /// A large file is emptied to be written anew while another client's sync waits for its data.
    EmptiedInSync,
    /// What a kernel that caches writes sends: whole pages, out of order, then times, then a sync.
    Writeback,
    /// Two programs write much beside one that syncs all the time, each while a burst of the other's data may be under way.
    WritersBesideSyncs,
    /// Files of very many pieces are removed, emptied, and replaced, with the past and without, beside a loop of fsync.
    RemoveHuge,
    /// Ranges that end where a file may, and behind that.
    FarEnd,
    /// Files are put in order by another client while they are overwritten and synced.
    OrderBesideSyncs,
    /// The files of a full volume are emptied by programs that do not close them, which is all the room there is.
    EmptiedWhenFull,
}

const ROOT: u64 = Ino::ROOT.0;
/// Bytes of a huge file whose pieces share blocks.
const HUGE_SHARED: u64 = 8 << 20;
const YEAR_NANOS: i64 = 365 * 86_400 * 1_000_000_000;

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::TruncateBesideFsync,
        Self::SavedAgain,
        Self::RenameNotClosed,
        Self::Fill,
        Self::ClockJumps,
        Self::Clean,
        Self::Order,
        Self::TwoClients,
        Self::Clients,
        Self::Reflink,
        Self::ReflinkHeld,
        Self::Writeback,
        Self::Reserve,
        Self::ReflinkClean,
        Self::Waiting,
        Self::EmptiedInSync,
        Self::WritersBesideSyncs,
        Self::RemoveHuge,
        Self::FarEnd,
        Self::OrderBesideSyncs,
        Self::EmptiedWhenFull,
    ];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TruncateBesideFsync => "truncate-beside-fsync",
            Self::SavedAgain => "saved-again",
            Self::RenameNotClosed => "rename-not-closed",
            Self::Fill => "fill",
            Self::ClockJumps => "clock-jumps",
            Self::Clean => "clean",
            Self::Order => "order",
            Self::TwoClients => "two-clients",
            Self::Clients => "clients",
            Self::Reflink => "reflink",
            Self::ReflinkHeld => "reflink-held",
            Self::Writeback => "writeback",
            Self::Reserve => "reserve",
            Self::ReflinkClean => "reflink-clean",
            Self::Waiting => "waiting",
            Self::EmptiedInSync => "emptied-in-sync",
            Self::WritersBesideSyncs => "writers-beside-syncs",
            Self::RemoveHuge => "remove-huge",
            Self::FarEnd => "far-end",
            Self::OrderBesideSyncs => "order-beside-syncs",
            Self::EmptiedWhenFull => "emptied-when-full",
        }
    }

    /// The device it needs, where `usual` bytes are.
    #[must_use]
    pub const fn device_bytes(self, usual: u64) -> u64 {
        let huge = 48 << 20;
        if matches!(self, Self::RemoveHuge) && usual < huge { huge } else { usual }
    }

    /// Different images that are enough, where `usual` are: of very many pieces each takes long to compare.
    #[must_use]
    pub const fn images_max(self, usual: u64) -> u64 {
        if matches!(self, Self::RemoveHuge) && usual > 50 { 50 } else { usual }
    }

    /// The scenario with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// Makes the calls.
    ///
    /// # Errors
    /// A wrong answer.
    pub fn carry_out<S: Subject>(self, run: &mut Run<S>) -> Result<(), String> {
        let mut s = Calls { run, id: 0 };
        match self {
            Self::TruncateBesideFsync => s.truncate_beside_fsync(),
            Self::SavedAgain => s.saved_again(),
            Self::RenameNotClosed => s.rename_not_closed(),
            Self::Fill => s.fill(),
            Self::ClockJumps => s.clock_jumps(),
            Self::Clean => s.clean(),
            Self::Order => s.order(),
            Self::TwoClients => s.two_clients(),
            Self::Clients => s.clients(),
            Self::Reflink => s.reflink(),
            Self::ReflinkHeld => s.reflink_held(),
            Self::Writeback => s.writeback(),
            Self::Reserve => s.reserve(),
            Self::ReflinkClean => s.reflink_clean(),
            Self::Waiting => s.waiting(),
            Self::EmptiedInSync => s.emptied_in_sync(),
            Self::WritersBesideSyncs => s.writers_beside_syncs(),
            Self::RemoveHuge => s.remove_huge(),
            Self::FarEnd => s.far_end(),
            Self::OrderBesideSyncs => s.order_beside_syncs(),
            Self::EmptiedWhenFull => s.emptied_when_full(),
        }
    }
}

struct Calls<'a, S> {
    run: &'a mut Run<S>,
    id: u32,
}

impl<S: Subject> Calls<'_, S> {
    /// One call that is not refused.
    fn call(&mut self, op: Op) -> Result<(), String> {
        match self.step(op)? {
            (op, Step::Refused) => Err(format!("{op:?} was refused for want of space")),
            _ => Ok(()),
        }
    }
    fn step(&mut self, op: Op) -> Result<(Op, Step), String> {
        let before = self.run.disk.cut_points();
        let step = self.run.step(&op).map_err(|e| format!("{op:?}: {e}"))?;
        if let Some(trace) = &mut self.run.trace {
            trace.push(format!("{before}..{} {op:?}: {step:?}", self.run.disk.cut_points()));
        }
        match step {
            Step::Failed(e) => Err(format!("{op:?}: the volume failed without a fault: {e}")),
            step => Ok((op, step)),
        }
    }
    fn create(&mut self, name: &str) -> Result<u64, String> {
        let (name, target) = (name.as_bytes().to_vec(), Vec::new());
        self.call(Op::Create { parent: ROOT, name, mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target })?;
        self.run.newest_inode()
    }
    fn write(&mut self, ino: u64, offset: u64, bytes: usize) -> Result<(), String> {
        self.id += 1;
        self.call(Op::Write { ino, offset, bytes, id: self.id })
    }
    fn empty(&mut self, ino: u64) -> Result<(), String> {
        self.call(Op::SetAttr { ino, set: SetAttr { size: Some(0), ..SetAttr::default() } })
    }
    fn fsync(&mut self, ino: u64) -> Result<(), String> {
        self.call(Op::Fsync { ino, callback: true })
    }
    fn pass(&mut self, nanos: u64) -> Result<(), String> {
        self.call(Op::Advance { nanos })?;
        self.call(Op::Tick)
    }
    fn unlink(&mut self, name: &str) -> Result<(), String> {
        self.call(Op::Unlink { parent: ROOT, name: name.as_bytes().to_vec() })
    }

    fn saved_again(&mut self) -> Result<(), String> {
        let other = self.create("other")?;
        for round in 0..6 {
            let saved = self.create(&format!("saved {round}"))?;
            self.call(Op::Open { ino: saved })?;
            for save in 0..3 {
                self.empty(saved)?;
                self.write(saved, 0, 3000 * save + 100 + round as usize)?;
                self.call(Op::Flush { ino: saved })?;
            }
            self.empty(saved)?;
            self.write(saved, 0, 200)?;
            self.write(other, round * 4096, 100)?;
            self.fsync(other)?;
            self.pass(1_100_000_000)?;
            self.write(saved, 100, 8000)?;
            self.call(Op::Close { ino: saved })?;
        }
        self.pass(2_000_000_000)
    }

    fn truncate_beside_fsync(&mut self) -> Result<(), String> {
        let (saved, other) = (self.create("saved")?, self.create("other")?);
        self.write(saved, 0, 9000)?;
        self.call(Op::SyncAll)?;
        for round in 0..6 {
            self.call(Op::Open { ino: saved })?;
            self.empty(saved)?;
            self.write(other, round * 4096, 4096)?;
            self.fsync(other)?;
            self.write(saved, 0, 7000 + round as usize)?;
            self.write(other, round * 4096, 100)?;
            self.fsync(other)?;
            self.call(Op::Close { ino: saved })?;
            self.fsync(other)?;
            self.pass(1_100_000_000)?;
        }
        // Nobody closes it.
        self.call(Op::Open { ino: saved })?;
        self.empty(saved)?;
        self.write(saved, 0, 5000)?;
        self.pass(HOLD_NANOS + 1_000_000_000)?;
        self.pass(2_000_000_000)
    }

    /// The largest file has so many bytes. What goes beyond is refused, and so is to reserve what no volume has.
    fn far_end(&mut self) -> Result<(), String> {
        const MAX: u64 = FILE_BYTES_MAX;
        let file = self.create("far")?;
        let modes = [
            AllocateMode::Reserve,
            AllocateMode::ReserveKeepSize,
            AllocateMode::Zero,
            AllocateMode::ZeroKeepSize,
            AllocateMode::Punch,
        ];
        let ranges = [(MAX - 5000, 5000), (MAX - 5000, 5001), (8000, MAX - 8000), (MAX, 1), (u64::MAX - 3, 10)];
        for mode in modes {
            self.write(file, 0, 9000)?;
            for (offset, bytes) in ranges {
                self.step(Op::Allocate { ino: file, mode, offset, bytes })?;
                self.call(Op::Seek { ino: file, offset: 8500 })?;
                self.call(Op::Seek { ino: file, offset: MAX - 4500 })?;
                self.fsync(file)?;
            }
            self.write(file, MAX - 300, 300)?;
            self.write(file, MAX - 300, 301)?;
            self.call(Op::Read { ino: file, offset: MAX - 6000, bytes: 6000 })?;
            self.fsync(file)?;
            self.call(Op::CheckpointCreate { name: None })?;
            self.call(Op::SetAttr { ino: file, set: SetAttr { size: Some(6000), ..SetAttr::default() } })?;
        }
        self.call(Op::SyncAll)
    }

    fn rename_not_closed(&mut self) -> Result<(), String> {
        let old = self.create("file")?;
        self.write(old, 0, 12_000)?;
        self.call(Op::SyncAll)?;
        let other = self.create("other")?;
        for round in 0..5 {
            let new = self.create("file.new")?;
            self.call(Op::Open { ino: new })?;
            self.write(new, 0, 6000 + round)?;
            let (old, to) = (b"file.new".to_vec(), b"file".to_vec());
            self.call(Op::Rename { from: ROOT, old, to: ROOT, new: to, mode: RenameMode::Replace })?;
            self.write(new, 3000, 5000)?;
            self.fsync(other)?;
            self.write(new, 8000, 3000)?;
            self.call(Op::Close { ino: new })?;
        }
        self.pass(2_000_000_000)
    }

    /// Files until nothing fits: name and inode of each.
    fn fill_up(&mut self) -> Result<Vec<(String, u64)>, String> {
        let mut files = Vec::new();
        loop {
            let name = format!("f{}", files.len());
            let (bytes, target) = (name.as_bytes().to_vec(), Vec::new());
            let op = Op::Create { parent: ROOT, name: bytes, mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target };
            if matches!(self.step(op)?.1, Step::Refused) {
                break;
            }
            let ino = self.run.newest_inode()?;
            files.push((name, ino));
            self.id += 1;
            if matches!(self.step(Op::Write { ino, offset: 0, bytes: 400_000, id: self.id })?.1, Step::Refused) {
                break;
            }
        }
        self.run.compare_all()?;
        self.call(Op::SyncAll)?;
        Ok(files)
    }

    fn fill(&mut self) -> Result<(), String> {
        for _ in 0..2 {
            for (name, _) in self.fill_up()? {
                self.unlink(&name)?;
            }
            self.pass(2_000_000_000)?;
        }
        Ok(())
    }

    /// Every write that is refused is judged by what was available.
    fn emptied_when_full(&mut self) -> Result<(), String> {
        let files = self.fill_up()?;
        for (_, ino) in &files {
            self.call(Op::Open { ino: *ino })?;
            self.step(Op::SetAttr { ino: *ino, set: SetAttr { size: Some(0), ..SetAttr::default() } })?;
        }
        for (i, (_, ino)) in files.iter().enumerate() {
            self.id += 1;
            self.step(Op::Write { ino: *ino, offset: 0, bytes: 200_000 + i * 100, id: self.id })?;
        }
        for (_, ino) in &files {
            self.call(Op::Close { ino: *ino })?;
        }
        self.pass(2_000_000_000)?;
        self.run.compare_all()
    }

    /// Sparse, with more pieces than many records of the reaper take away, which take 64 each while somebody syncs: some
    /// of its own, and 1,024 that share blocks among each other, which few calls make.
    fn huge(&mut self, name: &str) -> Result<u64, String> {
        let ino = self.create(name)?;
        for piece in 0..530 {
            self.write(ino, HUGE_SHARED + piece * 8192, 700)?;
        }
        for piece in 0..64 {
            self.write(ino, piece * 8192, 900)?;
        }
        self.fsync(ino)?;
        let mut bytes = 64 * 8192;
        while bytes < HUGE_SHARED {
            self.call(Op::CopyRange { from: ino, from_offset: 0, to: ino, to_offset: bytes, bytes })?;
            self.fsync(ino)?;
            bytes *= 2;
        }
        Ok(ino)
    }

    fn remove_huge(&mut self) -> Result<(), String> {
        let neighbour = self.create("neighbour")?;
        let work = |s: &mut Self| {
            // While somebody syncs less is reaped at a time; the next mount goes on with it.
            for round in 0..6 {
                s.write(neighbour, 0, 3000)?;
                s.fsync(neighbour)?;
                if round == 1 {
                    s.call(Op::Remount)?;
                }
                s.pass(100_000_000)?;
            }
            s.pass(12_000_000_000)?;
            s.pass(2_000_000_000)
        };
        // Nobody looks back on this one.
        self.huge("replaced")?;
        self.create("new")?;
        let (old, new) = (b"new".to_vec(), b"replaced".to_vec());
        self.call(Op::Rename { from: ROOT, old, to: ROOT, new, mode: RenameMode::Replace })?;
        work(self)?;
        let emptied = self.huge("emptied")?;
        self.empty(emptied)?;
        self.call(Op::Flush { ino: emptied })?;
        self.call(Op::SyncAll)?;
        work(self)?;
        self.huge("removed")?;
        self.call(Op::CheckpointCreate { name: Some(b"before".to_vec()) })?;
        self.unlink("removed")?;
        work(self)?;
        let before = self.run.named_checkpoint(b"before")?;
        self.call(Op::ReadPast { cno: before })?;
        self.call(Op::CheckpointName { cno: before, name: None })?;
        self.call(Op::CheckpointDrop { cno: before })?;
        work(self)
    }

    fn clock_jumps(&mut self) -> Result<(), String> {
        let ino = self.create("f")?;
        for (round, jump) in [0, YEAR_NANOS, 0, -2 * YEAR_NANOS, 0, YEAR_NANOS].into_iter().enumerate() {
            self.call(Op::Jump { nanos: jump })?;
            self.write(ino, round as u64 * 3000, 4000)?;
            self.pass(6_000_000_000)?;
            self.call(Op::CheckpointCreate { name: Some(format!("round {round}").into_bytes()) })?;
            self.write(ino, 0, 5000)?;
            self.fsync(ino)?;
        }
        Ok(())
    }

    fn clean(&mut self) -> Result<(), String> {
        let mut inodes = Vec::new();
        loop {
            let (name, target) = (format!("f{}", inodes.len()).into_bytes(), Vec::new());
            let op = Op::Create { parent: ROOT, name, mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target };
            if matches!(self.step(op)?.1, Step::Refused) {
                break;
            }
            let ino = self.run.newest_inode()?;
            inodes.push(ino);
            self.id += 1;
            if matches!(self.step(Op::Write { ino, offset: 0, bytes: 90_000, id: self.id })?.1, Step::Refused) {
                break;
            }
        }
        for n in [0, 1] {
            self.unlink(&format!("f{n}"))?;
            inodes.remove(0);
        }
        self.call(Op::SyncAll)?;
        for round in 0..4 {
            for ino in inodes.iter().skip(round % 3).step_by(3) {
                self.id += 1;
                let op = Op::Write { ino: *ino, offset: (round as u64 % 2) * 40_960, bytes: 45_056, id: self.id };
                if matches!(self.step(op)?.1, Step::Refused) {
                    self.pass(2_000_000_000)?;
                }
            }
            self.call(Op::SyncAll)?;
            self.pass(6_000_000_000)?;
            // Time for the background, in which what it found is overwritten.
            for ino in inodes.iter().skip(round).step_by(5) {
                self.pass(100_000_000)?;
                self.id += 1;
                let op = Op::Write { ino: *ino, offset: 20_480, bytes: 8192, id: self.id };
                if matches!(self.step(op)?.1, Step::Refused) {
                    self.pass(2_000_000_000)?;
                }
            }
        }
        self.call(Op::Clean)?;
        self.run.compare_all()
    }

    /// Each block once, the one behind the last one seven blocks on.
    fn scattered(&mut self, ino: u64, blocks: u64) -> Result<(), String> {
        for i in 0..blocks {
            self.write(ino, i * 7 % blocks * 4096, 4096)?;
            if i % 3 == 2 {
                self.fsync(ino)?;
            }
        }
        self.fsync(ino)
    }

    fn order(&mut self) -> Result<(), String> {
        let (a, b, copy) = (self.create("a")?, self.create("b")?, self.create("copy")?);
        self.scattered(a, 60)?;
        self.call(Op::CheckpointCreate { name: Some(b"kept".to_vec()) })?;
        self.scattered(b, 40)?;
        for round in 0..3u64 {
            // Uncommitted while files are put in order.
            let from_offset = round * 49_152;
            self.call(Op::CopyRange { from: a, from_offset, to: copy, to_offset: 0, bytes: 40_960 })?;
            self.call(Op::Clean)?;
            self.fsync(copy)?;
            self.run.compare_all()?;
            for i in 0..14 {
                self.write(a, (i * 11 + round) % 60 * 4096, 4096)?;
                self.write(b, (i * 17 + round) % 40 * 4096, 4096)?;
                self.fsync(if i % 2 == 0 { a } else { b })?;
            }
            // Time for index checkpoints, which make free what was emptied, and for others to use it.
            self.pass(6_000_000_000)?;
            self.write(copy, 200_000, 30_000)?;
            self.call(Op::Clean)?;
        }
        self.call(Op::Clean)?;
        self.run.compare_all()
    }

    /// What is found to be moved is overwritten, and committed, before the move is recorded.
    fn order_beside_syncs(&mut self) -> Result<(), String> {
        let files = [self.create("a")?, self.create("b")?];
        for round in 0..3u64 {
            for ino in files {
                self.scattered(ino, 40)?;
            }
            self.call(Op::CleanBeside)?;
            for i in 0..16 {
                let ino = files[(i % 2) as usize];
                self.write(ino, (i * 11 + round) % 40 * 4096, 4096)?;
                self.fsync(ino)?;
            }
            self.run.compare_all()?;
            self.pass(6_000_000_000)?;
        }
        self.call(Op::SyncAll)
    }

    fn two_clients(&mut self) -> Result<(), String> {
        let (a, b) = (self.create("a")?, self.create("b")?);
        for round in 0..8 {
            self.write(a, round * 5000, 6000)?;
            self.write(b, round * 100, 3000)?;
            self.call(Op::FsyncPair { first: a, second: b, submitted: round % 2 == 1 })?;
            if round % 3 == 2 {
                self.pass(1_500_000_000)?;
            }
        }
        Ok(())
    }

    fn clients(&mut self) -> Result<(), String> {
        let files = [self.create("a")?, self.create("b")?, self.create("c")?];
        for round in 0..10u64 {
            for (n, ino) in files.into_iter().enumerate() {
                self.write(ino, round * 3000, 2000 + n * 3000)?;
                self.call(Op::FsyncBeside { ino })?;
            }
            let new = self.create("new")?;
            self.call(Op::Open { ino: new })?;
            self.write(new, 0, 40_000)?;
            self.call(Op::FsyncBeside { ino: new })?;
            self.write(new, 3000, 5000)?;
            let mode = RenameMode::Replace;
            let (old, to) = (b"new".to_vec(), format!("kept {}", round % 3).into_bytes());
            self.call(Op::Rename { from: ROOT, old, to: ROOT, new: to, mode })?;
            self.empty(files[0])?;
            self.call(Op::FsyncBeside { ino: files[1] })?;
            self.call(Op::Close { ino: new })?;
            match round % 5 {
                1 => self.call(Op::CheckpointCreate { name: None })?,
                2 => self.pass(1_500_000_000)?,
                3 => self.call(Op::SyncAll)?,
                4 => self.call(Op::Clean)?,
                _ => self.unlink(&format!("kept {}", round % 3))?,
            }
        }
        self.call(Op::Scrub)?;
        self.run.compare_all()
    }

    fn waiting(&mut self) -> Result<(), String> {
        let files = [self.create("a")?, self.create("b")?, self.create("c")?];
        for round in 0..20u64 {
            for ino in files.into_iter().take(2) {
                self.write(ino, round * 300, 2000)?;
                self.call(Op::FsyncBeside { ino })?;
            }
            self.write(files[2], round * 500, 3000)?;
            let name = format!("new {}", round % 4);
            if round >= 4 {
                self.unlink(&name)?;
            }
            self.create(&name)?;
        }
        self.call(Op::SyncAll)
    }

    fn emptied_in_sync(&mut self) -> Result<(), String> {
        let (large, other) = (self.create("large")?, self.create("other")?);
        self.call(Op::SyncAll)?;
        for round in 0..8u64 {
            self.call(Op::Open { ino: large })?;
            self.write(large, 0, 200_000)?;
            self.call(Op::FsyncBeside { ino: large })?;
            self.empty(large)?;
            self.write(other, round * 4096, 4096)?;
            self.fsync(other)?;
            self.write(large, 0, 90_000)?;
            self.call(Op::Close { ino: large })?;
            self.fsync(other)?;
            self.pass(1_100_000_000)?;
        }
        Ok(())
    }

    /// The whole of a file, as cp(1) asks for it.
    fn copy(&mut self, from: u64, to: u64) -> Result<(), String> {
        self.call(Op::CopyRange { from, from_offset: 0, to, to_offset: 0, bytes: 1 << 30 })
    }
    /// Writes new files and removes them, so that space is used again.
    fn churn(&mut self, rounds: u64) -> Result<(), String> {
        for round in 0..rounds {
            let (name, target) = (b"churn".to_vec(), Vec::new());
            let create = Op::Create { parent: ROOT, name, mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target };
            if matches!(self.step(create)?.1, Step::Refused) {
                self.pass(2_000_000_000)?;
                continue;
            }
            let ino = self.run.newest_inode()?;
            self.id += 1;
            let write = Op::Write { ino, offset: 0, bytes: 200_000, id: self.id };
            let full = matches!(self.step(write)?.1, Step::Refused);
            if round % 3 == 0 {
                self.fsync(ino)?;
            }
            self.unlink("churn")?;
            if full {
                self.pass(2_000_000_000)?;
            }
        }
        Ok(())
    }

    fn reflink(&mut self) -> Result<(), String> {
        let a = self.create("a")?;
        self.write(a, 0, 150_000)?;
        self.fsync(a)?;
        let b = self.create("b")?;
        self.copy(a, b)?;
        self.fsync(b)?;
        self.call(Op::CheckpointCreate { name: Some(b"both".to_vec()) })?;
        for round in 0..4 {
            self.write(a, round * 40_000, 5000)?;
            self.write(b, 3000 + round * 30_000, 9000)?;
            let c = self.create(&format!("c{round}"))?;
            self.copy(if round % 2 == 0 { b } else { a }, c)?;
            self.fsync(c)?;
            self.churn(3)?;
            self.pass(2_000_000_000)?;
        }
        self.unlink("a")?;
        self.unlink("c0")?;
        self.pass(6_000_000_000)?;
        self.churn(6)?;
        self.call(Op::CheckpointCreate { name: None })?;
        self.unlink("b")?;
        self.churn(6)?;
        self.call(Op::SyncAll)?;
        self.run.compare_all()
    }

    fn reflink_held(&mut self) -> Result<(), String> {
        let old = self.create("old")?;
        self.write(old, 0, 30_000)?;
        self.call(Op::SyncAll)?;
        for round in 0..3 {
            let source = self.create("source")?;
            self.write(source, 0, 140_000 + round * 1000)?;
            self.fsync(source)?;
            self.call(Op::Open { ino: old })?;
            self.empty(old)?;
            self.copy(source, old)?;
            self.unlink("source")?;
            self.fsync(ROOT)?;
            self.churn(12)?;
            self.run.compare_all()?;
            self.call(Op::Close { ino: old })?;
            self.fsync(old)?;
        }
        self.run.compare_all()
    }

    fn reflink_clean(&mut self) -> Result<(), String> {
        let mut files = Vec::new();
        for i in 0..8 {
            let ino = self.create(&format!("f{i}"))?;
            self.write(ino, 0, 90_000)?;
            self.fsync(ino)?;
            let copy = self.create(&format!("c{i}"))?;
            self.copy(ino, copy)?;
            self.fsync(copy)?;
            files.extend([ino, copy]);
        }
        self.call(Op::CheckpointCreate { name: Some(b"all".to_vec()) })?;
        for round in 0..3u64 {
            for i in 0..4 {
                let (ino, copy) = (files[i * 4], files[i * 4 + 1]);
                self.write(ino, round * 20_480, 16_384)?;
                // A part of a copy, somewhere else, in a third file.
                let (from_offset, to_offset) = (round * 8192, 40_960 + round * 4096);
                self.call(Op::CopyRange { from: copy, from_offset, to: files[i * 4 + 2], to_offset, bytes: 20_480 })?;
            }
            self.pass(1_100_000_000)?;
            if round == 1 {
                for i in [1, 5] {
                    self.unlink(&format!("f{i}"))?;
                }
                self.call(Op::CheckpointCreate { name: None })?;
            }
            // Uncommitted while segments are emptied.
            self.call(Op::CopyRange { from: files[13], from_offset: 0, to: files[8], to_offset: 0, bytes: 61_440 })?;
            self.call(Op::Clean)?;
            self.fsync(files[8])?;
            self.run.compare_all()?;
        }
        self.call(Op::CheckpointName { cno: 1, name: None })?;
        self.churn(4)?;
        self.pass(6_000_000_000)?;
        self.call(Op::Clean)?;
        self.run.compare_all()
    }

    fn reserve(&mut self) -> Result<(), String> {
        let (a, b) = (self.create("a")?, self.create("b")?);
        let mode = AllocateMode::Reserve;
        self.call(Op::Allocate { ino: a, mode, offset: 0, bytes: 900_000 })?;
        self.fsync(a)?;
        self.call(Op::Allocate { ino: b, mode: AllocateMode::ReserveKeepSize, offset: 10_000, bytes: 400_000 })?;
        for (n, bytes) in [400_000, 100_000, 20_000, 3000, 100, 0].into_iter().enumerate() {
            for i in 0.. {
                let (name, target) = (format!("{n} {i}").into_bytes(), Vec::new());
                let op = Op::Create { parent: ROOT, name, mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target };
                if matches!(self.step(op)?.1, Step::Refused) {
                    break;
                }
                let ino = self.run.newest_inode()?;
                self.id += 1;
                if matches!(self.step(Op::Write { ino, offset: 0, bytes, id: self.id })?.1, Step::Refused) {
                    break;
                }
            }
        }
        self.call(Op::Remount)?;
        for place in [3, 0, 7, 1, 5, 2, 6, 4] {
            self.write(a, place * 100_000 + 50_000, 40_000)?;
            self.fsync(a)?;
            self.write(b, 12_288 + place * 40_960, 40_960)?;
            self.pass(300_000_000)?;
        }
        self.call(Op::SyncAll)?;
        self.run.compare_all()?;
        self.call(Op::SetAttr { ino: a, set: SetAttr { size: Some(300_000), ..SetAttr::default() } })?;
        self.unlink("b")?;
        self.pass(6_000_000_000)
    }

    fn writers_beside_syncs(&mut self) -> Result<(), String> {
        let (log, a, b) = (self.create("log")?, self.create("a")?, self.create("b")?);
        for round in 0..24u64 {
            self.write(log, round * 4096, 4096)?;
            self.call(Op::FsyncBeside { ino: log })?;
            let at = round % 4 * 139_264;
            self.write(if round % 2 == 0 { a } else { b }, at, 139_264)?;
            self.write(if round % 3 == 0 { a } else { b }, at, 20_480)?;
        }
        self.call(Op::SyncAll)
    }

    fn writeback(&mut self) -> Result<(), String> {
        let (a, b) = (self.create("a")?, self.create("b")?);
        for round in 0..6u64 {
            for page in [5, 1, 4, 0, 3, 2] {
                self.write(a, (page + round) * 4096, 4096)?;
                self.write(b, page * 4096, 4096)?;
            }
            let now = nenrin_core::Clock::wall(self.run.clock.as_ref());
            let set = SetAttr { mtime: Some(nenrin_core::SetTime::At(now)), ..SetAttr::default() };
            self.call(Op::SetAttr { ino: a, set })?;
            self.fsync(a)?;
            self.call(Op::SetAttr { ino: b, set })?;
            if round % 2 == 0 {
                self.call(Op::Flush { ino: b })?;
            }
        }
        self.call(Op::SyncAll)
    }
}
