//! Types of the library's calls.

use nenrin_format::{Cno, Ino, Time};

/// What an inode is, by the type bits of st_mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
}

impl FileKind {
    /// From st_mode; anything unknown counts as a regular file.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Self {
        match mode & 0o170_000 {
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            _ => Self::Regular,
        }
    }
    /// Type bits of st_mode.
    #[must_use]
    pub const fn mode(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }
}

/// Attributes of an inode, as stat(2) shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// File type and permission bits, as st_mode.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks_512: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
}

impl Attr {
    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode)
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The clock's.
    Now,
    /// This one.
    At(Time),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size; content is cut or grows a hole.
    pub size: Option<u64>,
    /// Who sets it: the one who changed the content last.
    pub editor: Option<u32>,
    /// Nobody has the file open to write it, so that no close will come: emptied it is complete, and not held back.
    pub closed: bool,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time; the clock's when anything else is set.
    pub ctime: Option<SetTime>,
    /// Also clear set-user-id, set-group-id and capabilities.
    pub kill_privileges: bool,
}

/// What a new inode shall be.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// File type and permission bits, as st_mode.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Target, for a symbolic link; else empty.
    pub target: &'a [u8],
}

/// Extended attributes: names and values.
pub type Xattrs<'a> = &'a [(&'a [u8], &'a [u8])];

/// Which state of the volume a read is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    /// Now.
    Live,
    /// As of this checkpoint.
    Past(Cno),
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode.
    pub ino: Ino,
    /// What the inode is.
    pub kind: FileKind,
    /// Where a later listing goes on after this entry.
    pub cookie: u64,
}

impl DirEntry {
    /// Grows in a listing, and is the same for a name in all states of a directory; few names share one. So two states can be
    /// compared while they are listed.
    #[must_use]
    pub const fn place(&self) -> u64 {
        self.cookie / (crate::state::SLOT_MASK + 1)
    }
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// It is an error.
    NoReplace,
    /// The two change places.
    Exchange,
}

/// What fallocate does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserve space, growing the file where the range ends behind it.
    Reserve,
    /// Reserve space without growing the file.
    ReserveKeepSize,
    /// Make a hole.
    Punch,
    /// Make it read as zeros, with its room kept, growing the file where needed.
    Zero,
    /// Make it read as zeros without growing the file.
    ZeroKeepSize,
}

/// What lseek looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte with content.
    Data,
    /// The next byte without.
    Hole,
}

/// Whether a value for an extended attribute may, must or must not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// Space and counts, in blocks of 4096 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Everything segments can hold.
    pub total_blocks: u64,
    /// Content and index of the live state.
    pub live_blocks: u64,
    /// Content that only past states need.
    pub history_blocks: u64,
    /// Of these, those that snapshots keep; the others may be shed for want of room.
    pub snapshot_blocks: u64,
    /// Index nodes of history, with both copies.
    pub history_index_blocks: u64,
    /// Of these, about those that hold what snapshots keep.
    pub snapshot_index_blocks: u64,
    /// What shared content would take more if every owner had its own: live state only.
    pub shared_blocks: u64,
    /// Reserved by fallocate, with nothing written to it yet.
    pub reserved_blocks: u64,
    /// What can still be written, counting history that may be shed.
    pub available_blocks: u64,
    /// Inodes of the live state.
    pub inodes: u64,
}

/// A checkpoint, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// Its number.
    pub cno: Cno,
    /// When it was cut.
    pub wall: Time,
    /// Name of a snapshot.
    pub name: Option<Vec<u8>>,
    /// Made on request rather than by time.
    pub asked: bool,
    /// The first of a day.
    pub daily: bool,
}

/// What a sync carries besides the file it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Only that file's content, and every earlier namespace operation.
    #[default]
    Relaxed,
    /// Everything received before, of every file.
    Strict,
}

/// When the device is told to flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Barrier {
    /// Once for each sync.
    #[default]
    Sync,
    /// Only around superblock writes.
    Checkpoint,
    /// Never: for protected caches.
    None,
}

/// How a volume is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Nothing is written.
    pub read_only: bool,
    /// See [`Order`].
    pub order: Order,
    /// See [`Barrier`].
    pub barrier: Barrier,
    /// Everything received is committed within this time, in nanoseconds.
    pub commit_nanos: u64,
    /// An unnamed checkpoint is cut this often while something changes, in nanoseconds; 0 for never.
    pub checkpoint_nanos: u64,
    /// Memory for clean index nodes, in bytes.
    pub cache_bytes: usize,
    /// Memory for content not yet written; writers wait beyond it.
    pub dirty_bytes_max: usize,
    /// Changed index nodes that ask for an index checkpoint, at least 1; who changes something waits for it at twice as many, those
    /// that a commit of what was received would change included. Bounds memory, but for what one call changes: one takes about 45 KB,
    /// and up to 110 KB where it is a leaf of single blocks.
    pub dirty_nodes_max: u64,
    /// Tell the device about freed segments.
    pub discard: bool,
    /// Read-only, without replaying the log.
    pub no_recovery: bool,
    /// Go on without members that the others can stand in for.
    pub degraded: bool,
    /// Other hosts are shown that this one has the volume.
    pub mmp: Option<crate::Mmp>,
    /// On stripes, at most one block of so many is left out so that long runs begin at units.
    pub left_out_share: u32,
    /// Items of history from which on the newest tree of it takes no more; larger ones come from merging.
    pub history_tree_items: u64,
    /// Nodes of the index are filled up to so many bytes, if that many fit: with less, few items make a deep tree. Of any
    /// size they are the same to whoever reads them.
    pub node_bytes_max: usize,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            order: Order::Relaxed,
            barrier: Barrier::Sync,
            commit_nanos: 1_000_000_000,
            checkpoint_nanos: 5_000_000_000,
            cache_bytes: 96 << 20,
            dirty_bytes_max: 256 << 20,
            dirty_nodes_max: 1000,
            discard: false,
            no_recovery: false,
            degraded: false,
            mmp: None,
            left_out_share: 32,
            history_tree_items: 8192,
            node_bytes_max: nenrin_format::NODE_BYTES,
        }
    }
}

/// Time and turns, from outside.
pub trait Clock: Send + Sync {
    /// Wall time.
    fn wall(&self) -> Time;
    /// Nanoseconds since some start; never goes back.
    fn monotonic_nanos(&self) -> u64;
    /// Nanoseconds since some start, those among them in which the machine was suspended: what others go by who watch this host, and
    /// may take a volume from it (`mmp`). Never goes back.
    fn lease_nanos(&self) -> u64 {
        self.monotonic_nanos()
    }
    /// Waits: only before a volume is opened or repaired, to see whether another host has it.
    fn wait(&self, nanos: u64) {
        std::thread::sleep(std::time::Duration::from_nanos(nanos));
    }
    /// Pauses for a moment if the calling thread has computed for long: who waits for its processor may otherwise get it only when
    /// a time slice is over. Asked often, and only by who does what nobody waits for; never under the lock that all operations take.
    fn breathe(&self) {}
    /// Lets so many nanoseconds go by, or fewer: the device is left to others. Never under a lock.
    fn rest(&self, _nanos: u64) {}
    /// Who decides which thread runs, if that is not the kernel.
    fn turns(&self) -> Option<&dyn Turns> {
        None
    }
}

/// Decides which of several threads runs, one at a time, as a simulator does.
pub trait Turns {
    /// The calling thread cannot go on before another one does. It holds no
    /// lock but perhaps the cleaner's. Returns when it is its turn again, which
    /// may be too early: it asks once more then.
    fn let_others_run(&self);
}
