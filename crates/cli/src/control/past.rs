//! What is said of the past over a control socket, and printed by --json.

use serde::{Deserialize, Serialize};

/// One difference between two states.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiffData {
    /// `+`, `-`, `M` or `R`; `?` where one of the states does not know what it was.
    pub change: String,
    /// Of `M`: another file has the name, as of programs that save by renaming a new one over it.
    #[serde(default)]
    pub replaced: bool,
    /// Of `M`: the content is the same, and only times, owner, permissions or other attributes are others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attributes_only: bool,
    /// Its path, from the directory that was asked about.
    pub path: String,
    /// The path it had before, if that is another: it, or a directory above it, was renamed.
    pub from: Option<String>,
    /// The bytes of these two, where they are no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    /// See `path_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_bytes: Option<Vec<u8>>,
    /// file, directory, symlink, ...
    pub kind: String,
    /// Bytes, in the state that has it.
    pub size: u64,
    /// What changed in it, as `diff -u` shows it, where that was asked for and is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

impl DiffData {
    /// Its path, byte for byte.
    pub fn path_as_bytes(&self) -> &[u8] {
        self.path_bytes.as_deref().unwrap_or(self.path.as_bytes())
    }
    /// The path it had before; its path, where that is none.
    pub fn old_path_as_bytes(&self) -> &[u8] {
        match &self.from {
            Some(from) => self.from_bytes.as_deref().unwrap_or(from.as_bytes()),
            None => self.path_as_bytes(),
        }
    }
}

/// What differs between two states.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiffResult {
    /// The older state.
    pub from: CheckpointData,
    /// The newer one; none for what there is now.
    pub to: Option<CheckpointData>,
    /// By path. The owner sends them in any order, and of many the first ones before this, in parts.
    pub differences: Vec<DiffData>,
}

/// What a name stood for during some time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StateData {
    /// The oldest checkpoint that shows it; none when it is only there now.
    pub cno: Option<u64>,
    /// The newest.
    pub last_cno: Option<u64>,
    /// When the oldest was cut, RFC 3339.
    pub cut: Option<String>,
    /// Until when the retention rule keeps a checkpoint that shows it, RFC 3339; "forever"; none when no checkpoint does.
    /// A volume that becomes full may let it go before.
    pub kept_until: Option<String>,
    /// The same in nanoseconds since 1970; none for ever, too.
    #[serde(default)]
    pub kept_until_nanos: Option<i64>,
    /// How much it stands out, from 1, if it is kept for that alone: a landmark.
    pub landmark: Option<u8>,
    /// It is what there is now.
    pub is_now: bool,
    /// Its path in the oldest of them, from the root of the volume.
    pub path: String,
    /// made, content, attributes, renamed, linked, moved or removed.
    pub change: String,
    /// The path it had before, or has too, or went to.
    pub from: Option<String>,
    /// The bytes of these two, where they are no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    /// See `path_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_bytes: Option<Vec<u8>>,
    /// When it was last changed, RFC 3339; none when the name stood for nothing.
    pub changed: Option<String>,
    /// The same in nanoseconds since 1970; then that of the checkpoint.
    pub nanos: i64,
    /// file, directory, symlink, ...
    pub kind: Option<String>,
    /// Bytes.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Who last wrote the content.
    pub editor_uid: Option<u32>,
    /// Inode.
    pub ino: Option<u64>,
    /// What checkpoints before this one showed of it was let go for want of room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub let_go_before: Option<u64>,
}

/// A name that a directory has no more.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GoneData {
    /// The name.
    pub name: String,
    /// The newest checkpoint that shows it, or of which a landmark does.
    pub cno: u64,
    /// When that was cut, RFC 3339.
    pub cut: String,
    /// The same in nanoseconds since 1970.
    pub nanos: i64,
    /// file, directory, symlink, ...; unknown where that cannot be read.
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// Why some of this cannot be read: `now` may be missing then, or be "?".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// No checkpoint shows it any more, only a landmark; of a directory nothing is left but the way to single files.
    #[serde(default)]
    pub is_landmark: bool,
    /// Of a directory that was being removed when that checkpoint was cut: one shortly before, which has more of it.
    #[serde(default)]
    pub fuller_cno: Option<u64>,
    /// Where it is now, from the root of the volume, when it was only moved.
    pub now: Option<String>,
    /// Its path in that checkpoint, from the root of the volume, when a directory above it had another name then.
    #[serde(default)]
    pub then: Option<String>,
    /// The bytes of these three, where they are no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_bytes: Option<Vec<u8>>,
    /// See `name_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then_bytes: Option<Vec<u8>>,
    /// See `name_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now_bytes: Option<Vec<u8>>,
}

/// Which checkpoints were let go.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeletedData {
    /// How many.
    pub deleted: u64,
    /// Bytes of content and of the index, about, that become free in the background.
    pub freed_bytes: u64,
    /// Those of the range that stay, since they have a name.
    pub named: Vec<u64>,
    /// Those that stay, since they are mounted.
    pub mounted: Vec<u64>,
}

/// A checkpoint, for listings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckpointData {
    /// Its number.
    pub cno: u64,
    /// When it was cut, RFC 3339.
    pub time: String,
    /// The same in nanoseconds since 1970.
    pub nanos: i64,
    /// A snapshot's name.
    pub name: Option<String>,
    /// Made on request rather than by time.
    pub asked: bool,
    /// Bytes of content that letting it go, alone, would free; where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frees_bytes: Option<u64>,
    /// The checkpoint itself is gone; of its state only landmarks are left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub landmarks_only: bool,
    /// Files that programs had emptied and were writing anew when it was made: it has what was in them before. Only where it was just made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back_files: Option<u64>,
    /// Until when the retention rule keeps it, RFC 3339; "forever". Only where it was just made, and has no name. A volume that becomes
    /// full may let it go before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<String>,
    /// The same in nanoseconds since 1970; none for ever, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until_nanos: Option<i64>,
}
