//! What the simulator needs of a file system: the library's calls (decision
//! 0001), as a trait, so that the harness can be tried on a toy that is broken
//! on purpose as well as on the real core.

use crate::changing::Changed;
use crate::content::PAGE_BYTES;
use crate::members::{Drive, Members};
use crate::turns::pause;
use nenrin_core::check;
use nenrin_core::{
    AllocateMode, At, Attr, CheckpointInfo, Clock, DeviceHealth, DirEntry, Done, Fs, Joined, MkfsOptions, MountOptions,
    NewDevice, NewInode, RenameMode, Result, Seek, SetAttr, Standing, XattrMode, Xattrs,
};
use nenrin_device::{AlignedBuf, BlockDevice};
use nenrin_format::{Cno, Ino};
use std::sync::Arc;

/// Whose writes the simulator's are.
pub const UID: u32 = 1000;

/// What must never happen, among what is counted.
pub const WAITS_LOCKED: &str = "waits for the device under the lock";

/// A write of another thread.
pub struct Elsewhere {
    /// Where to.
    pub ino: Ino,
    /// The same, in bytes.
    pub offset: u64,
    /// What.
    pub data: Vec<u8>,
    /// How many bytes were taken.
    pub taken: Box<dyn FnOnce(Result<usize>) + Send>,
    /// Called when the program is to be told.
    pub told: Done,
}

/// What a check may find although nothing is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excused {
    /// A cut between the two writes of a root slot, or in one, leaves them different until the next mount.
    pub slots: bool,
    /// A device has died, or misses something.
    pub absent: bool,
}

impl Excused {
    const fn covers(self, what: check::What) -> bool {
        match what {
            check::What::SlotDamaged | check::What::SlotStale | check::What::SlotUnfinished => self.slots,
            check::What::DeviceAbsent => self.absent,
            _ => false,
        }
    }
}

/// A file system under test. The calls mean what `nenrin_core::Fs` says.
#[allow(missing_docs)] // the calls of decision 0001, one to one
#[allow(clippy::missing_errors_doc)]
pub trait Subject: Sized {
    /// Name, for summaries.
    const NAME: &'static str;
    /// Who is allowed more of a file is not shown what it was before.
    const CARRIES: bool = true;
    /// A listing goes on where it stopped, whatever became of the directory meanwhile.
    const LISTS_ON: bool = true;
    /// It can be mounted read-only.
    const READS_ONLY: bool = true;
    /// Formats a device.
    fn mkfs(device: &Arc<dyn BlockDevice>, clock: &Arc<dyn Clock>, segment_blocks: u32) -> Result<()>;
    /// Formats several.
    fn mkfs_on(drive: Drive, clock: &Arc<dyn Clock>, segment_blocks: u32) -> Result<()> {
        Self::mkfs(&drive.only()?, clock, segment_blocks)
    }
    /// Mounts it, recovering.
    fn open(drive: impl Into<Drive>, clock: Arc<dyn Clock>, options: MountOptions) -> Result<Self>;
    /// Findings of the offline check, content included, one line each; what is excused is none.
    fn check(drive: impl Into<Drive>, excused: Excused) -> Result<Vec<String>>;
    /// Checkpoints cut since it was mounted.
    fn checkpoints_cut(&self) -> u64;
    /// Index checkpoints that are complete, since it was mounted.
    fn index_checkpoints(&self) -> u64 {
        0
    }
    /// What the file system has done inside, by name.
    fn activity(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// The rows of recovery's decision table that applied when it was mounted.
    fn verdicts(&self) -> Vec<&'static str> {
        Vec::new()
    }
    /// Blocks that df tells are available, and blocks in a segment; without a df, nothing.
    fn room(&self) -> Option<(u64, u64)> {
        None
    }
    /// Blocks of these that history has, which goes where room is short.
    fn shed_blocks(&self) -> u64 {
        0
    }
    /// Whether what lies on the devices is being moved, since they came, went or changed their length.
    fn is_laying(&self) -> bool {
        false
    }
    /// Damage that recovery reported.
    fn damage(&self) -> Option<String> {
        None
    }
    /// Whether a member is not up to date, and perhaps will not be: it is to leave.
    fn lacks_one(&self) -> bool {
        false
    }
    /// Whether a device is being brought up to date, or is about to be.
    fn is_joining(&self) -> bool {
        false
    }
    /// Members that are left out, or did not do what they were asked for.
    fn unwell(&self) -> Vec<usize> {
        Vec::new()
    }
    /// Begins to bring a device up to date that takes the place of a member.
    fn replace(&self, _index: u16, _device: Arc<dyn BlockDevice>) -> Result<()> {
        Err(nenrin_core::Error::NotSupported)
    }
    fn close(&self) -> Result<()>;
    fn lookup(&self, at: At, parent: Ino, name: &[u8]) -> Result<Attr>;
    fn getattr(&self, at: At, ino: Ino) -> Result<Attr>;
    fn readlink(&self, at: At, ino: Ino) -> Result<Vec<u8>>;
    fn read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<Vec<u8>>;
    /// `read`, in whole pages but for the end, without a copy where that can be; returns the bytes read.
    fn read_pages(&self, at: At, ino: Ino, offset: u64, bytes: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let data = self.read(at, ino, offset, bytes)?;
        each(&data);
        Ok(data.len())
    }
    fn readdir(&self, at: At, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()>;
    fn getxattr(&self, at: At, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    fn listxattr(&self, at: At, ino: Ino) -> Result<Vec<Vec<u8>>>;
    fn seek(&self, at: At, ino: Ino, offset: u64, what: Seek) -> Result<u64>;
    fn create(&self, parent: Ino, name: &[u8], new: &NewInode<'_>) -> Result<Attr>;
    /// [`Subject::create`] with extended attributes from its beginning.
    fn create_with(&self, _parent: Ino, _name: &[u8], _new: &NewInode<'_>, _xattrs: Xattrs<'_>) -> Result<Attr> {
        Err(nenrin_core::Error::NotSupported)
    }
    fn tmpfile(&self, new: &NewInode<'_>) -> Result<Attr>;
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()>;
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()>;
    fn rename(&self, from: Ino, old: &[u8], to: Ino, new: &[u8], mode: RenameMode) -> Result<()>;
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr>;
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;
    fn retain(&self, ino: Ino);
    fn release(&self, ino: Ino);
    fn write(&self, ino: Ino, offset: u64, data: &[u8], uid: u32) -> Result<usize>;
    /// [`Subject::write`] that does not wait for what others have the device do: `told` is called when that is over.
    fn accept(&self, ino: Ino, offset: u64, data: &[u8], uid: u32, told: Done) -> Result<usize> {
        let bytes = self.write(ino, offset, data, uid)?;
        told(Ok(()));
        Ok(bytes)
    }
    /// Whether [`Subject::accept`] gives such bytes away rather than having them copied.
    fn gives_away(_offset: u64, _bytes: usize) -> bool {
        false
    }
    /// [`Subject::accept`], to be called from another thread, which hands on how many bytes were taken.
    fn accept_elsewhere(&self, write: Elsewhere) -> std::result::Result<Box<dyn FnOnce() + Send>, Elsewhere> {
        Err(write)
    }
    fn allocate(&self, ino: Ino, mode: AllocateMode, offset: u64, bytes: u64) -> Result<()>;
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), bytes: u64, uid: u32) -> Result<u64>;
    /// `copy_range` of a past state.
    fn copy_past(&self, _cno: Cno, _from: (Ino, u64), _to: (Ino, u64), _bytes: u64, _uid: u32) -> Result<u64> {
        Err(nenrin_core::Error::NotSupported)
    }
    fn flush(&self, ino: Ino) -> Result<()>;
    fn fsync(&self, ino: Ino, done: Done);
    fn fsync_wait(&self, ino: Ino) -> Result<()>;
    /// [`Subject::fsync`] of `first`, whose `done` also asks for that of `second`.
    fn fsync_pair(&self, (first, done): (Ino, Done), (second, then): (Ino, Done)) {
        self.fsync(first, done);
        self.fsync(second, then);
    }
    /// Both are submitted, then waited for one after the other.
    fn fsync_submitted(&self, (first, done): (Ino, Done), (second, then): (Ino, Done)) {
        self.fsync(first, done);
        self.fsync(second, then);
    }
    /// [`Subject::fsync`], to be called from another thread.
    fn fsync_elsewhere(&self, _ino: Ino, done: Done) -> std::result::Result<Box<dyn FnOnce() + Send>, Done> {
        Err(done)
    }
    /// [`Subject::clean`], to be called from another thread.
    fn clean_elsewhere(&self, done: Done) -> std::result::Result<Box<dyn FnOnce() + Send>, Done> {
        Err(done)
    }
    fn sync_all(&self) -> Result<()>;
    fn checkpoint_create(&self, name: Option<&[u8]>) -> Result<CheckpointInfo>;
    fn checkpoints(&self) -> Vec<CheckpointInfo>;
    fn checkpoint_name(&self, cno: Cno, name: Option<&[u8]>) -> Result<()>;
    fn checkpoint_drop(&self, cnos: &[Cno]) -> Result<()>;
    /// Takes a snapshot's name away and lets it go, unless it stays. What it was.
    fn snapshot_drop(&self, _cno: Cno, _name: &[u8], _stays: &dyn Fn(Cno) -> bool) -> Result<Option<CheckpointInfo>> {
        Err(nenrin_core::Error::NotSupported)
    }
    /// Lets those go that are there, have no name and do not stay. How many went.
    fn checkpoint_drop_unnamed(&self, _cnos: &[Cno], _stays: &dyn Fn(Cno) -> bool) -> Result<usize> {
        Err(nenrin_core::Error::NotSupported)
    }
    /// Somebody reads from it.
    fn hold_checkpoint(&self, _cno: Cno) -> Result<()> {
        Err(nenrin_core::Error::NotSupported)
    }
    /// One who did no longer does.
    fn let_checkpoint_go(&self, _cno: Cno) {}
    fn checkpoint_find(&self, name: &[u8]) -> Option<CheckpointInfo>;
    fn failed(&self) -> Option<String>;
    fn tick(&self) -> Result<()>;
    /// A device becomes slow, or is not any more, as drawn.
    fn declare_slow(&self, _draw: u64) {}
    /// Adds, removes or resizes one of these devices, or goes on with that, as drawn.
    ///
    /// # Errors
    /// Those of the file system, but not what it refuses.
    fn change_devices(&self, _drive: &Drive, _draw: u64) -> Result<Changed> {
        Ok(Changed::default())
    }
    /// Cleans all there is to clean.
    fn clean(&self) -> Result<()> {
        Ok(())
    }
    /// Verifies everything; what is lost, one line each.
    fn scrub(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
    fn retention(&self) -> Option<String> {
        None
    }
    fn set_retention(&self, _rule: &str) -> Result<()> {
        Ok(())
    }
    /// Versions of single files that are kept without a checkpoint: the one that showed each, and the file.
    fn landmarks(&self) -> Vec<(Cno, Ino)> {
        Vec::new()
    }
    /// History of single files that was let go: the file, and the first checkpoint that is not concerned.
    fn shed(&self) -> Result<Vec<(Ino, Cno)>> {
        Ok(Vec::new())
    }
    /// Whether what is told of names over time is what checkpoints show; how many names were asked for.
    fn told(&self) -> std::result::Result<u64, String> {
        Ok(0)
    }
}

/// The key of name hashes of a volume on which names collide, or not.
#[cfg(feature = "breaks")]
const fn hash_key(collides: bool) -> [u8; 16] {
    if collides { nenrin_core::breaks::COLLIDING } else { [9; 16] }
}
#[cfg(not(feature = "breaks"))]
const fn hash_key(_: bool) -> [u8; 16] {
    [9; 16]
}

/// A lead that was announced is led some turns later, as by another thread.
fn lead_later(fs: &Fs, announced: bool) {
    if announced && pause() {
        fs.lead_announced();
    }
}

impl Subject for Arc<Fs> {
    const NAME: &'static str = "nenrin";
    fn mkfs(device: &Arc<dyn BlockDevice>, clock: &Arc<dyn Clock>, segment_blocks: u32) -> Result<()> {
        Self::mkfs_on(device.clone().into(), clock, segment_blocks)
    }
    fn mkfs_on(drive: Drive, clock: &Arc<dyn Clock>, segment_blocks: u32) -> Result<()> {
        let (uuid, hash_key, profile) = ([7; 16], hash_key(drive.collides), drive.profile);
        let options = MkfsOptions { segment_blocks, uuid, hash_key, profile, ..MkfsOptions::default() };
        let members = Members { changes: drive.changes, ..Members::new(drive.members.len() as u8, profile) };
        nenrin_core::mkfs_on(&drive.members[..members.first()], clock, &options)
    }
    fn open(drive: impl Into<Drive>, clock: Arc<dyn Clock>, options: MountOptions) -> Result<Self> {
        Fs::open(drive.into().present(), clock, options)
    }
    fn check(drive: impl Into<Drive>, excused: Excused) -> Result<Vec<String>> {
        let report = check::check(&drive.into().present(), &check::CheckOptions { data: true }, &mut |_| {})?;
        // After a close without a cut no slot was being written.
        let counts = |w: check::What| w.severity() == check::Severity::Error || w == check::What::SlotUnfinished;
        let wrong = |w: check::What| counts(w) && !excused.covers(w);
        let errors = report.findings.iter().filter(|f| wrong(f.what));
        Ok(errors.map(ToString::to_string).collect())
    }
    fn checkpoints_cut(&self) -> u64 {
        self.counters().checkpoints
    }
    fn index_checkpoints(&self) -> u64 {
        self.counters().index_checkpoints
    }
    fn activity(&self) -> Vec<(&'static str, u64)> {
        let c = self.counters();
        vec![
            ("commits", c.commits),
            ("commits begun beside others", c.overlapped_commits),
            (WAITS_LOCKED, c.device_waits_locked),
            ("bursts beside syncs", c.bursts),
            ("rests before a burst", c.burst_rests),
            ("writes told later", c.writes_told_later),
            ("index checkpoints", c.index_checkpoints),
            ("index nodes written", c.nodes),
            ("index nodes above inner ones", c.upper_nodes),
            ("blocks written behind", c.data_blocks),
            ("blocks left out so that runs begin at units", c.left_out_blocks),
            ("partials of the log beside a slow device", c.chain_steps_aside),
            ("checkpoints shed", c.checkpoints_shed),
            ("histories shed", c.inodes_shed),
            ("blocks moved", c.moved_blocks),
            ("blocks put in order", c.ordered_blocks),
            ("walks of all trees by the cleaner", c.tree_walks),
            ("blocks copied to devices that join", c.joined_blocks),
            ("devices brought up to date", c.joined),
            ("devices added", c.devices_added),
            ("devices removed", c.devices_removed),
            ("segments laid", c.segments_laid),
        ]
    }
    fn verdicts(&self) -> Vec<&'static str> {
        self.recovery_report().verdicts.iter().map(|v| v.name()).collect()
    }
    fn lacks_one(&self) -> bool {
        self.health().iter().any(|d| d.standing == Standing::Absent)
    }
    fn is_joining(&self) -> bool {
        Fs::is_joining(self)
    }
    fn unwell(&self) -> Vec<usize> {
        let is_well = |d: &DeviceHealth| d.standing == Standing::Active && d.failed.is_none() && d.read_errors == 0;
        self.health().iter().filter(|d| !is_well(d)).map(|d| usize::from(d.index)).collect()
    }
    fn room(&self) -> Option<(u64, u64)> {
        Some((self.usage().available_blocks, u64::from(self.superblock().segment_blocks)))
    }
    fn shed_blocks(&self) -> u64 {
        let usage = self.usage();
        let content = usage.history_blocks.saturating_sub(usage.snapshot_blocks);
        content + usage.history_index_blocks.saturating_sub(usage.snapshot_index_blocks)
    }
    fn is_laying(&self) -> bool {
        self.laying_status().is_some()
    }
    fn replace(&self, index: u16, device: Arc<dyn BlockDevice>) -> Result<()> {
        self.replace_device(index, NewDevice { device, uuid: [0x5e; 16] })
    }
    fn damage(&self) -> Option<String> {
        self.recovery_report().damage.clone()
    }
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), bytes: u64, uid: u32) -> Result<u64> {
        Fs::copy_range(self, from.0, from.1, to.0, to.1, bytes, uid)
    }
    fn copy_past(&self, cno: Cno, from: (Ino, u64), to: (Ino, u64), bytes: u64, uid: u32) -> Result<u64> {
        Fs::copy_range_at(self, At::Past(cno), from.0, from.1, to.0, to.1, bytes, uid.into())
    }
    fn lookup(&self, at: At, parent: Ino, name: &[u8]) -> Result<Attr> {
        Fs::lookup(self, at, parent, name)
    }
    fn getattr(&self, at: At, ino: Ino) -> Result<Attr> {
        Fs::getattr(self, at, ino)
    }
    fn readlink(&self, at: At, ino: Ino) -> Result<Vec<u8>> {
        Fs::readlink(self, at, ino)
    }
    fn read(&self, at: At, ino: Ino, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        Fs::read(self, at, ino, offset, bytes)
    }
    fn read_pages(&self, at: At, ino: Ino, offset: u64, bytes: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let data = Fs::read_bytes(self, at, ino, offset, bytes)?;
        let len = data.len();
        let slices = data.slices();
        match slices.split_last() {
            Some((_, before)) if before.iter().any(|s| s.len() % PAGE_BYTES != 0) => each(&slices.concat()),
            _ => slices.into_iter().for_each(each),
        }
        Ok(len)
    }
    fn readdir(&self, at: At, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        Fs::readdir(self, at, dir, cookie, each)
    }
    fn getxattr(&self, at: At, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        Fs::getxattr(self, at, ino, name)
    }
    fn listxattr(&self, at: At, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Fs::listxattr(self, at, ino)
    }
    fn seek(&self, at: At, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        Fs::seek(self, at, ino, offset, what)
    }
    fn create(&self, parent: Ino, name: &[u8], new: &NewInode<'_>) -> Result<Attr> {
        Fs::create(self, parent, name, new)
    }
    fn create_with(&self, parent: Ino, name: &[u8], new: &NewInode<'_>, xattrs: Xattrs<'_>) -> Result<Attr> {
        Fs::create_with(self, parent, name, new, xattrs)
    }
    fn tmpfile(&self, new: &NewInode<'_>) -> Result<Attr> {
        Fs::tmpfile(self, new)
    }
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        Fs::link(self, ino, parent, name)
    }
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        Fs::unlink(self, parent, name)
    }
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        Fs::rmdir(self, parent, name)
    }
    fn rename(&self, from: Ino, old: &[u8], to: Ino, new: &[u8], mode: RenameMode) -> Result<()> {
        Fs::rename(self, from, old, to, new, mode)
    }
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        Fs::setattr(self, ino, set)
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        Fs::setxattr(self, ino, name, value, mode)
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        Fs::removexattr(self, ino, name)
    }
    fn retain(&self, ino: Ino) {
        Fs::retain(self, ino);
    }
    fn release(&self, ino: Ino) {
        Fs::release(self, ino);
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8], uid: u32) -> Result<usize> {
        Fs::write(self, ino, offset, data, uid)
    }
    fn accept(&self, ino: Ino, offset: u64, data: &[u8], uid: u32, told: Done) -> Result<usize> {
        let accepted = if Self::gives_away(offset, data.len()) {
            Fs::accept_buf(self, ino, offset, AlignedBuf::padded(data), uid.into())?
        } else {
            Fs::accept(self, ino, offset, data, uid.into())?
        };
        if accepted.is_told_later {
            self.tell_later(ino, told);
        } else {
            told(Ok(()));
        }
        Ok(accepted.bytes)
    }
    fn gives_away(offset: u64, bytes: usize) -> bool {
        // The front end does where that gains something; who links the library may, or not.
        Fs::takes_buf(offset, bytes) && (offset as usize + bytes) / PAGE_BYTES % 4 > 0
    }
    fn accept_elsewhere(&self, write: Elsewhere) -> std::result::Result<Box<dyn FnOnce() + Send>, Elsewhere> {
        let (fs, Elsewhere { ino, offset, data, taken, told }) = (Self::clone(self), write);
        Ok(Box::new(move || taken(Subject::accept(&fs, ino, offset, &data, UID, told))))
    }
    fn allocate(&self, ino: Ino, mode: AllocateMode, offset: u64, bytes: u64) -> Result<()> {
        Fs::allocate(self, ino, mode, offset, bytes)
    }
    fn flush(&self, ino: Ino) -> Result<()> {
        Fs::flush(self, ino)
    }
    fn fsync(&self, ino: Ino, done: Done) {
        Fs::fsync(self, ino, done);
    }
    fn fsync_pair(&self, (first, done): (Ino, Done), (second, then): (Ino, Done)) {
        let fs = self.clone();
        let both = move |r| {
            done(r);
            Fs::fsync(&fs, second, then);
        };
        Fs::fsync(self, first, Box::new(both));
    }
    fn fsync_submitted(&self, (first, done): (Ino, Done), (second, then): (Ino, Done)) {
        let tickets = (Fs::submit_sync(self, first), Fs::submit_sync(self, second));
        done(tickets.0.wait());
        then(tickets.1.wait());
    }
    fn fsync_wait(&self, ino: Ino) -> Result<()> {
        Fs::fsync_wait(self, ino)
    }
    fn fsync_elsewhere(&self, ino: Ino, done: Done) -> std::result::Result<Box<dyn FnOnce() + Send>, Done> {
        let fs = Self::clone(self);
        Ok(Box::new(move || match ino.0 % 3 {
            0 => Fs::fsync(&fs, ino, done),
            1 => {
                let announced = fs.fsync_once(ino, done);
                lead_later(&fs, announced);
            }
            _ => match fs.join_sync(ino, done) {
                Joined::Seen => {}
                Joined::Unled => lead_later(&fs, true),
                Joined::Waits(done) => Fs::fsync(&fs, ino, done),
            },
        }))
    }
    fn sync_all(&self) -> Result<()> {
        Fs::sync_all(self)
    }
    fn close(&self) -> Result<()> {
        Fs::close(self)
    }
    fn checkpoint_create(&self, name: Option<&[u8]>) -> Result<CheckpointInfo> {
        Fs::checkpoint_create(self, name)
    }
    fn checkpoints(&self) -> Vec<CheckpointInfo> {
        Fs::checkpoints(self)
    }
    fn checkpoint_name(&self, cno: Cno, name: Option<&[u8]>) -> Result<()> {
        Fs::checkpoint_name(self, cno, name)
    }
    fn checkpoint_drop(&self, cnos: &[Cno]) -> Result<()> {
        Fs::checkpoint_drop(self, cnos)
    }
    fn snapshot_drop(&self, cno: Cno, name: &[u8], stays: &dyn Fn(Cno) -> bool) -> Result<Option<CheckpointInfo>> {
        Fs::snapshot_drop(self, cno, name, stays)
    }
    fn checkpoint_drop_unnamed(&self, cnos: &[Cno], stays: &dyn Fn(Cno) -> bool) -> Result<usize> {
        Fs::checkpoint_drop_unnamed(self, cnos, stays)
    }
    fn hold_checkpoint(&self, cno: Cno) -> Result<()> {
        Fs::hold_checkpoint(self, cno)
    }
    fn let_checkpoint_go(&self, cno: Cno) {
        Fs::let_checkpoint_go(self, cno);
    }
    fn checkpoint_find(&self, name: &[u8]) -> Option<CheckpointInfo> {
        Fs::checkpoint_find(self, name)
    }
    fn failed(&self) -> Option<String> {
        Fs::failed(self)
    }
    fn tick(&self) -> Result<()> {
        Fs::tick(self)
    }
    fn scrub(&self) -> Result<Vec<String>> {
        let mut scrub = Fs::scrub(self);
        while !scrub.is_done() {
            self.scrub_step(&mut scrub, 1 << 20)?;
        }
        let report = scrub.report();
        let lost = report.nodes_lost + report.extents_damaged;
        let told = report.findings.iter().map(|f| f.text.clone()).chain([format!("{lost} pieces are lost")]);
        Ok(if lost > 0 { told.collect() } else { Vec::new() })
    }
    fn retention(&self) -> Option<String> {
        Some(Fs::retention(self))
    }
    fn landmarks(&self) -> Vec<(Cno, Ino)> {
        Fs::landmarks(self).iter().map(|l| (l.cno, l.ino)).collect()
    }
    fn shed(&self) -> Result<Vec<(Ino, Cno)>> {
        Ok(Fs::shed(self)?.iter().map(|s| (s.ino, s.upto)).collect())
    }
    fn told(&self) -> std::result::Result<u64, String> {
        crate::told::agrees(self)
    }
    fn set_retention(&self, rule: &str) -> Result<()> {
        Fs::set_retention(self, rule)
    }
    fn declare_slow(&self, draw: u64) {
        // More often than not one that becomes slow is the only one.
        let (only, slow) = (draw % 4 > 0, draw / 4 % 4 > 0);
        let all = self.health();
        let which = (draw >> 8) as usize % all.len().max(1);
        for (i, one) in all.iter().enumerate() {
            if i == which || only {
                Fs::declare_slow(self, one.index, slow && i == which);
            }
        }
    }
    fn change_devices(&self, drive: &Drive, draw: u64) -> Result<Changed> {
        crate::changing::change(self, drive, draw)
    }
    fn clean_elsewhere(&self, done: Done) -> std::result::Result<Box<dyn FnOnce() + Send>, Done> {
        let fs = Self::clone(self);
        Ok(Box::new(move || done(Subject::clean(&fs))))
    }
    fn clean(&self) -> Result<()> {
        let mut clean = Fs::clean(self);
        while !clean.is_done() {
            self.clean_step(&mut clean, 64)?;
        }
        Ok(())
    }
}
