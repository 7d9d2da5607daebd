//! One step of a workload, as data.

use nenrin_core::{AllocateMode, RenameMode, SetAttr, XattrMode};

/// What a workload does next. Inodes are the numbers the file system gave.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the arguments of the calls of decision 0001
pub enum Op {
    Create {
        parent: u64,
        name: Vec<u8>,
        mode: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        target: Vec<u8>,
    },
    /// With extended attributes from its beginning, as in a directory with a default access control list.
    CreateWith {
        parent: u64,
        name: Vec<u8>,
        mode: u32,
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// The inode is also opened.
    Tmpfile {
        mode: u32,
        uid: u32,
        gid: u32,
    },
    Link {
        ino: u64,
        parent: u64,
        name: Vec<u8>,
    },
    Unlink {
        parent: u64,
        name: Vec<u8>,
    },
    Rmdir {
        parent: u64,
        name: Vec<u8>,
    },
    Rename {
        from: u64,
        old: Vec<u8>,
        to: u64,
        new: Vec<u8>,
        mode: RenameMode,
    },
    SetAttr {
        ino: u64,
        set: SetAttr,
    },
    SetXattr {
        ino: u64,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
    },
    RemoveXattr {
        ino: u64,
        name: Vec<u8>,
    },
    /// The bytes are [`crate::content::pattern`] of `id`.
    Write {
        ino: u64,
        offset: u64,
        bytes: usize,
        id: u32,
    },
    /// What a kernel that caches writes sends.
    WritePages {
        ino: u64,
        offset: u64,
        data: Vec<u8>,
    },
    Allocate {
        ino: u64,
        mode: AllocateMode,
        offset: u64,
        bytes: u64,
    },
    CopyRange {
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        bytes: u64,
    },
    /// As `CopyRange`, of what the source was in a checkpoint.
    CopyPast {
        cno: u64,
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        bytes: u64,
    },
    Open {
        ino: u64,
    },
    /// One handle is closed: flush, then release.
    Close {
        ino: u64,
    },
    /// A handle goes without close(2), as when its process dies.
    Release {
        ino: u64,
    },
    Flush {
        ino: u64,
    },
    /// With `callback`, through the asynchronous call.
    Fsync {
        ino: u64,
        callback: bool,
    },
    /// Two clients: the second asks while the first is being told. Or, `submitted`, one client that
    /// submits both, then waits for one after the other.
    FsyncPair {
        first: u64,
        second: u64,
        submitted: bool,
    },
    /// Another client asks for a sync, and the next calls are made while that is under way.
    FsyncBeside {
        ino: u64,
    },
    SyncAll,
    CheckpointCreate {
        name: Option<Vec<u8>>,
    },
    CheckpointName {
        cno: u64,
        name: Option<Vec<u8>>,
    },
    CheckpointDrop {
        cno: u64,
    },
    /// A snapshot goes with its name, as by `snapshot delete`, unless somebody uses it.
    SnapshotDrop {
        cno: u64,
        name: Vec<u8>,
        in_use: bool,
    },
    /// Of these go that are there, have no name and are not used, as by `checkpoint delete A..B`.
    CheckpointsDrop {
        cnos: Vec<u64>,
        in_use: Vec<u64>,
    },
    /// Somebody reads from a checkpoint, as a mount of it does, which the rule leaves alone as long as that is so.
    HoldCheckpoint {
        cno: u64,
    },
    /// No longer.
    LetCheckpointGo {
        cno: u64,
    },
    Advance {
        nanos: u64,
    },
    /// The wall clock is set.
    Jump {
        nanos: i64,
    },
    Tick,
    /// Everything that can be cleaned is.
    Clean,
    /// The same by another client, and the next calls are made while that is under way.
    CleanBeside,
    /// A device is added, removed or resized, or that goes on, as drawn.
    Devices {
        draw: u64,
    },
    /// Everything is verified.
    Scrub,
    /// The rule by which checkpoints are kept.
    SetRetention {
        rule: &'static str,
    },
    Read {
        ino: u64,
        offset: u64,
        bytes: usize,
    },
    Seek {
        ino: u64,
        offset: u64,
    },
    List {
        dir: u64,
    },
    /// The next piece of a listing that is under way while other calls are made; of this directory, if none is.
    ListOn {
        dir: u64,
    },
    ReadPast {
        cno: u64,
    },
    /// Clean unmount and mount.
    Remount,
    /// The process dies and the volume is mounted again on the same device, whose cache keeps its power.
    Kill,
}

impl Op {
    /// Short name, for counting.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::CreateWith { .. } => "create_with",
            Self::Tmpfile { .. } => "tmpfile",
            Self::Link { .. } => "link",
            Self::Unlink { .. } => "unlink",
            Self::Rmdir { .. } => "rmdir",
            Self::Rename { .. } => "rename",
            Self::SetAttr { .. } => "setattr",
            Self::SetXattr { .. } => "setxattr",
            Self::RemoveXattr { .. } => "removexattr",
            Self::Write { .. } => "write",
            Self::WritePages { .. } => "write_pages",
            Self::Allocate { .. } => "allocate",
            Self::CopyRange { .. } => "copy_range",
            Self::CopyPast { .. } => "copy_past",
            Self::Open { .. } => "open",
            Self::Close { .. } => "close",
            Self::Release { .. } => "release",
            Self::Flush { .. } => "flush",
            Self::Fsync { .. } => "fsync",
            Self::FsyncPair { .. } => "fsync_pair",
            Self::FsyncBeside { .. } => "fsync_beside",
            Self::SyncAll => "sync_all",
            Self::CheckpointCreate { .. } => "checkpoint_create",
            Self::CheckpointName { .. } => "checkpoint_name",
            Self::CheckpointDrop { .. } => "checkpoint_drop",
            Self::SnapshotDrop { .. } => "snapshot_drop",
            Self::CheckpointsDrop { .. } => "checkpoints_drop",
            Self::HoldCheckpoint { .. } => "hold_checkpoint",
            Self::LetCheckpointGo { .. } => "let_checkpoint_go",
            Self::Advance { .. } => "advance",
            Self::Jump { .. } => "jump",
            Self::Tick => "tick",
            Self::Clean => "clean",
            Self::CleanBeside => "clean_beside",
            Self::Devices { .. } => "devices",
            Self::Scrub => "scrub",
            Self::SetRetention { .. } => "set_retention",
            Self::Read { .. } => "read",
            Self::Seek { .. } => "seek",
            Self::List { .. } => "list",
            Self::ListOn { .. } => "list_on",
            Self::ReadPast { .. } => "read_past",
            Self::Remount => "remount",
            Self::Kill => "kill",
        }
    }
}
