//! What is said over a control socket. The same structures are what --json prints.

use super::order::Order;
use super::past::CheckpointData;
use crate::space::SpaceData;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a command asks the owner of a volume.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Who are you?
    Hello,
    /// Everything about the volume.
    Info,
    /// What the volume was mounted with and has until its end, by the names of the mount options.
    Lasting,
    /// Make everything received durable.
    Sync,
    /// All checkpoints.
    Checkpoints,
    /// All snapshots, with what letting each go would free.
    Snapshots,
    /// Cut a checkpoint; with a name, a snapshot.
    CheckpointCreate {
        /// The snapshot's name.
        name: Option<String>,
    },
    /// Let checkpoints go that have no name and are not mounted.
    CheckpointDelete {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
    /// Keep an existing checkpoint by name.
    SnapshotName {
        /// The checkpoint.
        cno: u64,
        /// The name.
        name: String,
    },
    /// Let a snapshot go.
    SnapshotDelete {
        /// Its name.
        name: String,
    },
    /// How long checkpoints are kept.
    Retention,
    /// The states of a name.
    History {
        /// Its path from the root of the volume.
        #[serde(with = "path_bytes")]
        path: PathBuf,
    },
    /// Which other path a checkpoint has what a path has to do with under.
    PathThen {
        /// The path, from the root of the volume.
        #[serde(with = "path_bytes")]
        path: PathBuf,
        /// The checkpoint.
        cno: u64,
    },
    /// The names that a directory has no more.
    Gone {
        /// Its path from the root of the volume.
        #[serde(with = "path_bytes")]
        path: PathBuf,
    },
    /// How far back anything is known of what is below a directory.
    Reach {
        /// Its path from the root of the volume.
        #[serde(with = "path_bytes")]
        path: PathBuf,
    },
    /// The checkpoint that a WHEN means.
    Find {
        /// As the user said it; a moment as RFC 3339.
        when: String,
    },
    /// What differs between two states.
    Diff {
        /// The directory, from the root of the volume.
        #[serde(with = "path_bytes")]
        path: PathBuf,
        /// The older state, as WHEN; a moment as RFC 3339.
        from: String,
        /// The newer one; none for what there is now.
        to: Option<String>,
    },
    /// Change how long checkpoints are kept.
    SetRetention {
        /// The rule.
        rule: String,
    },
    /// The use of every segment.
    Segments,
    /// Scrub on, from the beginning or from where the last such request ended.
    Scrub {
        /// Begin anew.
        begin: bool,
        /// Which command asks: who begins takes over.
        #[serde(default)]
        run: u64,
        /// About how many bytes to read before answering.
        bytes: u64,
    },
    /// What cleaning would gain.
    CleanEstimate,
    /// Clean on, from the beginning or from where the last such request ended.
    Clean {
        /// Begin anew.
        begin: bool,
        /// Which command asks: who begins takes over.
        #[serde(default)]
        run: u64,
        /// About how many bytes to move before answering.
        bytes: u64,
    },
    /// What forgetting a path would take away.
    ForgetPlan {
        /// Its path from the root of the volume.
        #[serde(with = "path_bytes")]
        path: PathBuf,
        /// It is not to be forgotten now: nothing is kept for that.
        #[serde(default)]
        only_tell: bool,
    },
    /// Forget what the last such plan found; its names are gone by now.
    Forget {
        /// The path of that plan.
        #[serde(with = "path_bytes")]
        path: PathBuf,
        /// What that plan called itself.
        #[serde(default)]
        plan: String,
    },
    /// Wipe on.
    ForgetStep {
        /// About how many bytes to read and write before answering.
        bytes: u64,
    },
    /// Have a device take the place of another.
    Replace {
        /// Number or place of the device that goes.
        old: String,
        /// Where the new one is, absolute.
        #[serde(with = "path_bytes")]
        new: PathBuf,
        /// Identity of the new one within the volume: random.
        uuid: [u8; 16],
        /// The mount name space in which the path is right.
        #[serde(default)]
        space: Option<String>,
    },
    /// Give that up.
    ReplaceCancel,
    /// How far it is.
    JoinStatus {
        /// The new one's identity: of another nothing is told.
        #[serde(default)]
        uuid: Option<[u8; 16]>,
    },
    /// Add a device, on which nothing is needed.
    DeviceAdd {
        /// Where it is, absolute.
        #[serde(with = "path_bytes")]
        device: PathBuf,
        /// Its identity within the volume: random.
        uuid: [u8; 16],
        /// The mount name space in which the path is right.
        #[serde(default)]
        space: Option<String>,
    },
    /// Take a device out.
    DeviceRemove {
        /// Its number or where it is.
        device: String,
        /// It is to stay after all.
        keep: bool,
    },
    /// Forget what a device has done wrong.
    DeviceForgive {
        /// Its number or where it is.
        device: String,
    },
    /// Use more or less of a device.
    Resize {
        /// Its number or where it is; none for the only one.
        device: Option<String>,
        /// How much; none for all there is.
        bytes: Option<u64>,
    },
    /// Lay space anew, where devices came, went or changed.
    LayingStep {
        /// About how many bytes to move before answering.
        bytes: u64,
        /// What is to come of it.
        #[serde(default)]
        order: Option<Order>,
    },
    /// Mount a state of the past beside what is mounted.
    MountPast(PastMount),
    /// Unmount, and release the volume if that was its last mount.
    Umount {
        /// Where it is mounted, absolute and without links.
        #[serde(with = "path_bytes")]
        directory: PathBuf,
        /// Also where that loses the volume.
        #[serde(default)]
        force: bool,
    },
    /// Whether the volume may be unmounted there without losing it; what should be known about its devices.
    MayLeave {
        /// Where it is mounted, for messages.
        #[serde(with = "path_bytes")]
        directory: PathBuf,
    },
    /// Why nothing can be changed although that was asked for: something failed, or is damaged. Not told by hello, since that waits
    /// for nobody who uses the volume.
    Failure,
    /// A mount was made read-only, or writable again: what was written before is to be durable then.
    Remounted {
        /// `major:minor` in mountinfo.
        device: String,
        /// Which of the two.
        read_only: bool,
    },
    /// Tell how closing the volume went once that is done, whatever begins it. A part says before that this was heard.
    Closing,
    /// The sender has unmounted it in a mount name space of his own: release the volume if that was its last mount.
    Left {
        /// `major:minor` in mountinfo.
        device: String,
    },
}

impl Request {
    /// Whether the answer takes no time, but for devices that stand still: nothing is read for it, or little.
    pub const fn is_quick(&self) -> bool {
        matches!(
            self,
            Self::Hello
                | Self::Info
                | Self::Lasting
                | Self::Checkpoints
                | Self::Retention
                | Self::Find { .. }
                | Self::JoinStatus { .. }
                | Self::Failure
        )
    }
}

/// The answer: a value, or one line that says why not. What is long comes in parts before it, of which each has a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T, P> {
    /// A part, and more follows.
    Part(P),
    /// It was done.
    Ok(T),
    /// It was not.
    Error {
        /// Exit code.
        code: u8,
        /// One line.
        message: String,
        /// Nothing has changed: what was made for it is needed no more.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        untouched: bool,
    },
}

/// Who owns a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    /// What tells its devices from others.
    pub identities: Vec<String>,
    /// Process id.
    pub pid: u32,
    /// Nothing can be changed.
    pub read_only: bool,
    /// It is being released.
    pub closing: bool,
    /// Its mounts.
    pub mounts: Vec<MountData>,
    /// The mount name space in which its paths are right, where it can tell.
    #[serde(default)]
    pub space: Option<String>,
    /// It is to be told of remounts: one of an earlier version is not, and does not understand it.
    #[serde(default)]
    pub hears_remounts: bool,
}

/// One mount of a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountData {
    /// Where, for reading.
    pub directory: String,
    /// `major:minor` in mountinfo.
    pub device: String,
    /// The checkpoint that is shown; none for the live state.
    pub checkpoint: Option<u64>,
    /// It is mounted there no more, nor anywhere else that its owner sees, and goes on because somebody uses it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
}

/// A state of the past to mount.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PastMount {
    /// Which state, as WHEN; a moment as RFC 3339.
    pub when: String,
    /// What mount(8) shows as source.
    #[serde(with = "path_bytes")]
    pub source: PathBuf,
    /// Where, absolute.
    #[serde(with = "path_bytes")]
    pub directory: PathBuf,
    /// Other users may enter.
    pub allow_other: bool,
    /// The directory may have entries.
    pub nonempty: bool,
    /// Device files work.
    pub dev: bool,
    /// Set-id programs work.
    pub suid: bool,
    /// Programs do not run.
    pub noexec: bool,
    /// The mount name space in which the directory is right.
    #[serde(default)]
    pub space: Option<String>,
}

/// What cleaning would gain.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CleanEstimateData {
    /// Segments that would be emptied.
    pub segments: u64,
    /// Bytes that would be moved.
    pub moved_bytes: u64,
    /// Bytes in whole segments that would become free.
    pub freed_bytes: u64,
    /// Files that lie scattered and would be put in order.
    pub scattered_files: u64,
    /// Bytes of them that would be moved for that, as far as there is room.
    pub scattered_bytes: u64,
}

/// How far cleaning came.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CleanData {
    /// Everything that was to be cleaned is.
    pub done: bool,
    /// It ended early, because no room was left to copy into.
    pub out_of_room: bool,
    /// Bytes moved.
    pub moved_bytes: u64,
    /// About how many it will be.
    pub moved_bytes_expected: u64,
    /// Bytes in whole segments that are free now and were not before.
    pub freed_bytes: u64,
    /// Files are looked at, or put in order.
    pub ordering: bool,
    /// All files were looked at.
    pub looked: bool,
    /// Files found that lay scattered.
    pub scattered_files: u64,
    /// Bytes of them that are to be moved.
    pub scattered_bytes: u64,
    /// Those that were put in order.
    pub ordered_files: u64,
    /// Bytes moved for that.
    pub ordered_bytes: u64,
    /// Those that stay as they are for want of room.
    pub left_files: u64,
    /// Bytes of them that would have been moved.
    pub left_bytes: u64,
}

/// What the cleaner of a mounted volume does in the background.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CleanerData {
    /// It is at work.
    pub working: bool,
    /// It puts files in order, because somebody asked for it.
    pub ordering: bool,
    /// What it does, or why it does nothing.
    pub state: String,
    /// Segments emptied since the volume was opened.
    pub cleaned_segments: u64,
    /// Bytes moved since then.
    pub moved_bytes: u64,
    /// Segments with garbage that are left alone, since something in them cannot be moved.
    pub stuck_segments: u64,
}

/// What forgetting a path would take away.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForgetPlanData {
    /// Files and directories, also those that are gone.
    pub inodes: u64,
    /// Bytes of content, of all versions.
    pub bytes: u64,
    /// Their names, without those within directories that are forgotten.
    pub names: Vec<ForgetNameData>,
    /// Snapshots that lose something.
    pub snapshots: Vec<CheckpointData>,
    /// Files that share blocks with them, which stay.
    pub shared_with: Vec<String>,
    /// The bytes of those of them that are no text; nothing where all are.
    #[serde(default)]
    pub shared_with_bytes: Vec<Option<Vec<u8>>>,
    /// Their owners, now and in the past.
    pub owners: Vec<u32>,
    /// Nothing is known of the path: why that may be.
    #[serde(default)]
    pub unknown: Option<String>,
    /// What had this name while a directory above had another, before or since: paths of it. It stays.
    #[serde(default)]
    pub elsewhere: Vec<String>,
    /// See `shared_with_bytes`.
    #[serde(default)]
    pub elsewhere_bytes: Vec<Option<Vec<u8>>>,
    /// What this list calls itself: [`Request::Forget`] says it, and takes nothing else.
    #[serde(default)]
    pub plan: String,
}

/// A name of what is to be forgotten.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForgetNameData {
    /// From the root of the volume.
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
    /// It is there now.
    pub is_now: bool,
}

/// How far forgetting came.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForgetData {
    /// The devices hold nothing of it any more.
    pub done: bool,
    /// Items are still being taken out of the index.
    pub removing: bool,
    /// Segments that may still hold something.
    pub segments_left: u64,
    /// Segments of the volume.
    pub segments: u64,
    /// Why it does not go on.
    pub waits: Option<String>,
}

/// How far laying space anew came.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LayingData {
    /// Everything lies as it should.
    pub done: bool,
    /// Segments that are still to go.
    pub segments_left: u64,
    /// How many there were at the beginning.
    pub segments: u64,
    /// Bytes that segments hold now.
    pub total_bytes: u64,
    /// Bytes that are available now.
    pub available_bytes: u64,
    /// Why it does not go on.
    pub waits: Option<String>,
    /// It waits for what is being forgotten.
    #[serde(default)]
    pub is_behind_forgetting: bool,
    /// What was ordered was taken back, or something else ordered of that device, and will not be.
    #[serde(default)]
    pub taken_back: bool,
}

/// What the last scrub left.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScrubbedData {
    /// When it ended, RFC 3339.
    pub ended_at: String,
    /// The same in nanoseconds since 1970.
    pub nanos: i64,
    /// Pieces of content without a right copy.
    pub extents_damaged: u64,
    /// Index nodes without a right copy.
    pub nodes_lost: u64,
    /// Damaged copies of what has another, that could not be written anew.
    pub copies_damaged: u64,
}

impl ScrubbedData {
    /// Whether it left no damage.
    pub const fn is_clean(&self) -> bool {
        self.extents_damaged == 0 && self.nodes_lost == 0 && self.copies_damaged == 0
    }
}

/// How far scrubbing came, and what it found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScrubData {
    /// Everything was looked at.
    pub done: bool,
    /// Bytes read.
    pub bytes: u64,
    /// About how many it will be.
    pub bytes_expected: u64,
    /// Damage is left.
    pub has_losses: bool,
    /// Index nodes verified.
    pub nodes: u64,
    /// Blocks of content verified.
    pub blocks: u64,
    /// Damaged copies of nodes, roots and superblock slots.
    pub copies_damaged: u64,
    /// Of these, those that were written anew.
    pub copies_mended: u64,
    /// Index nodes without a copy.
    pub nodes_lost: u64,
    /// Damaged pieces of content.
    pub extents_damaged: u64,
    /// What could not be mended; told at the end.
    pub findings: Vec<ScrubFindingData>,
}

/// Something damaged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScrubFindingData {
    /// What, and how.
    pub text: String,
    /// Whose content.
    pub ino: Option<u64>,
    /// A path of it.
    pub path: Option<String>,
    /// Its bytes, where it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    /// Offset in the file in bytes.
    pub offset: Option<u64>,
    /// Place on the volume.
    pub addr: String,
}

/// What umount came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Released {
    /// The volume is free; otherwise it is still mounted elsewhere.
    pub released: bool,
    /// Where it is still mounted.
    pub mounts: Vec<MountData>,
    /// Why what was unmounted goes on all the same, if it does: where else it is shown, or who uses it.
    #[serde(default)]
    pub stays: Option<String>,
    /// What should be known of its devices.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// One segment, for listings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SegmentData {
    /// Its number.
    pub segment: u64,
    /// free, open, sealed or pending.
    pub state: String,
    /// chain, data, index or unused.
    pub kind: String,
    /// Blocks the live state needs.
    pub live_blocks: u32,
    /// Blocks only history needs.
    pub history_blocks: u32,
    /// Copies of index nodes in it that are needed.
    pub nodes: u32,
    /// Recovery still needs the chain in it.
    pub chain: bool,
}

/// What recovery did when the volume was opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecoveryData {
    /// It had been unmounted cleanly.
    pub clean: bool,
    /// Partial segments rolled forward.
    pub partials: u64,
    /// Records in them.
    pub records: u64,
    /// Intact partial segments behind the end of the chain, which do not count.
    pub dropped: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Requests they were read with.
    pub requests: u64,
}

/// How far a device is that takes the place of another.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct JoinData {
    /// It ended, one way or the other.
    pub done: bool,
    /// Bytes copied.
    pub bytes: u64,
    /// Bytes to copy, about.
    pub bytes_expected: u64,
    /// Bytes that could be read nowhere.
    pub unreadable_bytes: u64,
    /// Why the new device is not used.
    pub failed: Option<String>,
    /// It is not, since somebody took back that it was to be.
    #[serde(default)]
    pub taken_back: bool,
}

/// A device of a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeviceData {
    /// Its number, from 1.
    pub number: u16,
    /// Where it is, when it is there.
    pub path: Option<String>,
    /// The bytes of that, where it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    /// Its identity within the volume.
    pub uuid: String,
    /// Its bytes, as far as they are used.
    pub bytes: u64,
    /// How many it will be; 0 when it is to be removed.
    pub target_bytes: u64,
    /// `active`, `slow`, `failed`, `joining`, `absent`, `leaving` or `shrinking`.
    pub state: String,
    /// Why it is not active, or what is done about it.
    pub why: Option<String>,
    /// Reads that it failed while it was a member.
    pub read_errors: u64,
    /// Blocks that it gave otherwise than they were written, and that others had right.
    #[serde(default)]
    pub wrong_blocks: u64,
    /// Writes and flushes that it failed.
    #[serde(default)]
    pub write_errors: u64,
    /// Since when it is slow, RFC 3339: what is new goes to other devices while there is room.
    pub slow_since: Option<String>,
}

/// Everything about a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Its label.
    pub label: String,
    /// Its identity.
    pub uuid: String,
    /// Path of its device.
    pub device: String,
    /// The bytes of that, where it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<Vec<u8>>,
    /// Format version of this program.
    pub format: u16,
    /// Layout over devices.
    pub profile: String,
    /// Its devices.
    pub devices: Vec<DeviceData>,
    /// When it was made, RFC 3339.
    pub made_at: String,
    /// Process that owns it; none when it is not mounted.
    pub pid: Option<u32>,
    /// Its mounts.
    pub mounts: Vec<MountData>,
    /// The last scrub that looked at everything, as far as it is known.
    #[serde(default)]
    pub scrubbed: Option<ScrubbedData>,
    /// What the heartbeat says, where a mount ever had `mmp`.
    #[serde(default)]
    pub mmp: Option<MmpData>,
    /// Nothing can be changed.
    pub read_only: bool,
    /// What is wrong, one line each; empty when all is well.
    pub problems: Vec<String>,
    /// What recovery and opening had to say.
    pub notes: Vec<String>,
    /// Bytes in a segment.
    pub segment_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes that segments hold.
    pub total_bytes: u64,
    /// Bytes of the live state.
    pub live_bytes: u64,
    /// Bytes that only past states need.
    pub history_bytes: u64,
    /// Of these, bytes that snapshots keep; the others may be shed for want of room.
    pub snapshot_bytes: u64,
    /// History of single files that was let go for want of room.
    #[serde(default)]
    pub shed: Vec<ShedData>,
    /// What shared content would take more if every owner had its own.
    pub shared_bytes: u64,
    /// Bytes that fallocate has reserved, with nothing written to them yet.
    pub reserved_bytes: u64,
    /// Bytes that can still be written, history that may be shed included.
    pub available_bytes: u64,
    /// Where all of it is.
    #[serde(default)]
    pub space: SpaceData,
    /// What the cleaner does.
    pub cleaner: CleanerData,
    /// Files, directories and so on.
    pub inodes: u64,
    /// Checkpoints that can be gone back to.
    pub checkpoints: u64,
    /// How many of them have a name.
    pub snapshots: u64,
    /// The oldest of them.
    pub oldest: Option<CheckpointData>,
    /// The newest.
    pub newest: Option<CheckpointData>,
    /// Why none is made by itself at the moment, where that should be.
    #[serde(default)]
    pub checkpoints_rest: Option<RestData>,
    /// Generation of the newest root.
    pub generation: u64,
    /// Counts read-write mounts.
    pub epoch: u64,
    /// order, barrier, commit and so on, when mounted.
    pub options: BTreeMap<String, String>,
    /// What recovery did.
    pub recovery: RecoveryData,
    /// Counts since the volume was opened.
    pub counters: BTreeMap<String, u64>,
}

/// The heartbeat of a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MmpData {
    /// This mount shows that it has the volume.
    pub on: bool,
    /// The last mount that had `mmp` has not ended it.
    pub in_use: bool,
    /// The host of that mount.
    pub node: Option<String>,
    /// Its last beat by its clock, RFC 3339.
    pub last_beat: Option<String>,
    /// Milliseconds from one beat to the next.
    pub interval_ms: Option<u32>,
}

/// Something that is not done at the moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestData {
    /// Why.
    pub why: String,
    /// Until what.
    pub until: String,
    /// The latest end of that, RFC 3339, where there is one.
    pub until_time: Option<String>,
}

/// History of a file that was let go for want of room.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShedData {
    /// The file, from the root of the volume.
    pub path: String,
    /// Its bytes, where it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    /// Inode number.
    pub ino: u64,
    /// Of checkpoints before this one only snapshots know what it was, and those that show what it was later.
    pub before: u64,
    /// When the last of these was cut, RFC 3339.
    pub time: String,
    /// When its history was let go, RFC 3339.
    pub shed_at: String,
    /// Bytes that all of its history had then.
    pub history_bytes: u64,
}

/// Paths as bytes: their encoding is nobody's business.
mod path_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(to)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(OsString::from_vec(Vec::deserialize(from)?).into())
    }
}
