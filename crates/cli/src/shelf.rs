//! States of the past as the mount shows them, below `.nenrin/at` in its root: where the kernel asks for the permissions of whoever looks
//! (docs/decisions/0036-the-past-for-other-users.md).

use crate::control::{CheckpointData, GoneData, StateData};
use crate::error::{At, Fail};
use crate::mounts::Mount;
use crate::output::Progress;
use crate::then::Then;
use crate::{clock, restore, states, when};
use nenrin_core::FileKind;
use nenrin_fuse::{INO_MASK, STATE};
use rustix::fs as sys;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// More than a checkpoint takes, with a name of 255 bytes of which each is written as six.
const TOLD_BYTES_MAX: usize = 4096;

/// The directory below whose names the states of a volume lie.
#[derive(Debug)]
pub struct Shelf {
    at: PathBuf,
}

/// What a user can see of the past, and how many of the states did not let him.
#[derive(Debug)]
pub struct Seen<T> {
    pub list: Vec<T>,
    pub unseen: u64,
}

impl Shelf {
    /// That of a mount.
    ///
    /// # Errors
    /// It shows none.
    pub fn of(mount: &Mount) -> Result<Self, Fail> {
        if mount.root != Path::new("/") {
            let text = "only a directory of the volume is mounted here; ask where its root is mounted";
            return Err(Fail::at(mount.point.display(), text));
        }
        let past = mount.point.join(".nenrin");
        let at = past.join("at");
        // The numbers of what no volume stores have the highest bit. What is a link, or of another file system, somebody made.
        let volume = fs::metadata(&mount.point).at(mount.point.display())?.dev();
        let is_ours = |path: &Path| -> io::Result<bool> {
            let meta = fs::symlink_metadata(path)?;
            Ok(meta.is_dir() && meta.dev() == volume && meta.ino() >> 63 == 1)
        };
        // Below what is not ours there may be anything, or nothing.
        match is_ours(&past).and_then(|above| Ok(above && is_ours(&at)?)) {
            Ok(true) => Ok(Self { at }),
            Ok(false) => Err(Fail::at(past.display(), "is the volume's own, and hides the past; rename it")),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(Fail::at(at.display(), e)),
            Err(_) => {
                Err(Fail::at(mount.point.display(), "shows a state of the past; ask where the volume is mounted live"))
            }
        }
    }

    /// The root of a state.
    pub fn root(&self, cno: u64) -> PathBuf {
        self.at.join(cno.to_string())
    }

    /// The state that WHEN means, as it is said here.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, text: &str) -> Result<CheckpointData, Fail> {
        let name = when::for_owner(text, clock::now()).map_err(Fail::usage)?;
        let is_name = matches!(Path::new(&name).components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
        let found = if is_name { told(&self.at.join(&name)) } else { Err(ErrorKind::NotFound.into()) };
        found.map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                let text = format!("there is no state {text:?} (any more); those there are have their names in");
                Fail::new(format!("{text} {}", self.at.display()))
            }
            _ => untold(&self.at.join(&name), &e),
        })
    }

    /// How far back anything is shown.
    ///
    /// # Errors
    /// The states cannot be listed.
    pub fn reach(&self) -> Result<String, Fail> {
        Ok(self.states()?.first().map_or_else(
            || "the volume has no checkpoints".to_owned(),
            |first| format!("what is kept begins with checkpoint {} of {}", first.cno, when::show_zoned(first.nanos)),
        ))
    }

    /// All states, oldest first.
    fn states(&self) -> Result<Vec<CheckpointData>, Fail> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.at).at(self.at.display())? {
            let name = entry.at(self.at.display())?.file_name();
            numbers.extend(name.to_str().and_then(|n| n.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        let mut list = Vec::with_capacity(numbers.len());
        for cno in numbers {
            let root = self.root(cno);
            match told(&root) {
                Ok(state) => list.push(state),
                // It was let go meanwhile.
                Err(e) if is_unknown(&e) => {}
                Err(e) => return Err(untold(&root, &e)),
            }
        }
        Ok(list)
    }

    /// What each state shows of the volume's `inside`, oldest first, and last what is at `path` now; and how many do not let us see.
    fn views(&self, inside: &Path, path: &Path) -> Result<Seen<View>, Fail> {
        let (mut list, mut unseen, mut progress) = (Vec::new(), 0, Progress::new());
        let all = self.states()?;
        for (done, state) in all.iter().enumerate() {
            progress.at("states", done as u64, all.len() as u64);
            match Then::new(self.root(state.cno), inside.to_owned()).and_then(|then| then.metadata()) {
                Ok(meta) => list.push(View { state: Some(state.clone()), meta: Some(meta) }),
                Err(e) if is_absent(&e) => list.push(View { state: Some(state.clone()), meta: None }),
                Err(_) => unseen += 1,
            }
        }
        match fs::symlink_metadata(path) {
            Ok(meta) => list.push(View { state: None, meta: Some(meta) }),
            Err(e) if is_absent(&e) => list.push(View { state: None, meta: None }),
            Err(_) => unseen += 1,
        }
        Ok(Seen { list, unseen })
    }

    /// The states of the name `inside` in the volume, which is `path` here, oldest first.
    ///
    /// # Errors
    /// It never stood for anything that could be seen.
    pub fn history(&self, inside: &Path, path: &Path) -> Result<Seen<StateData>, Fail> {
        let Seen { list: views, unseen } = self.views(inside, path)?;
        let mut list: Vec<StateData> = Vec::new();
        let mut last: Option<&View> = None;
        for view in views.iter().skip_while(|v| v.meta.is_none()) {
            match last {
                Some(before) if before.shows_same(view) => {
                    if let Some(row) = list.last_mut() {
                        row.last_cno = view.state.as_ref().map(|s| s.cno).or(row.last_cno);
                        row.is_now = view.state.is_none();
                    }
                }
                before => list.push(view.row(before, inside)),
            }
            last = Some(view);
        }
        match list.is_empty() {
            true => Err(Fail::at(path.display(), not_seen(unseen, "nothing of this name is"))),
            false => Ok(Seen { list, unseen }),
        }
    }

    /// The names that the directory `inside` of the volume, which is `path` here, has no more: in any order.
    ///
    /// # Errors
    /// It never was a directory that could be listed.
    pub fn gone(&self, inside: &Path, path: &Path) -> Result<Seen<GoneData>, Fail> {
        let is_now_other = fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_dir());
        if is_now_other {
            return Err(Fail::at(path.display(), states::NO_DIRECTORY));
        }
        let (mut found, mut unseen, mut listed) = (HashMap::new(), 0, 0);
        let mut progress = Progress::new();
        let all = self.states()?;
        for (done, state) in all.iter().rev().enumerate() {
            progress.at("states", done as u64, all.len() as u64);
            let then = Then::new(self.root(state.cno), inside.to_owned()).at(path.display())?;
            match gone_since(&then, state, path, &mut found) {
                Ok(seen) => {
                    listed += 1;
                    unseen += u64::from(!seen);
                }
                Err(e) if is_absent(&e) => {}
                Err(_) => unseen += 1,
            }
        }
        match listed {
            0 => Err(Fail::at(path.display(), not_seen(unseen, "no directory of this name is"))),
            _ => Ok(Seen { list: found.into_values().flatten().collect(), unseen }),
        }
    }
}

/// Adds what a directory had in a state, has no more, and newer states did not show. Whether all could be seen.
fn gone_since(
    then: &Then,
    state: &CheckpointData,
    now: &Path,
    found: &mut HashMap<OsString, Option<GoneData>>,
) -> io::Result<bool> {
    if !then.metadata()?.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    let mut all_seen = true;
    for entry in fs::read_dir(then.path())? {
        let entry = entry?;
        let name = entry.file_name();
        if found.contains_key(&name) || restore::is_hidden(name.as_bytes()) {
            continue;
        }
        let there = fs::symlink_metadata(now.join(&name));
        if !there.as_ref().is_err_and(is_absent) {
            all_seen &= there.is_ok();
            found.insert(name, None);
            continue;
        }
        // Of what cannot be seen an older state may show more.
        let Ok(meta) = entry.metadata() else {
            all_seen = false;
            continue;
        };
        let data = GoneData {
            name: name.to_string_lossy().into_owned(),
            cno: state.cno,
            cut: state.time.clone(),
            nanos: state.nanos,
            kind: states::kind(FileKind::from_mode(meta.mode())).into(),
            size: meta.len(),
            damage: None,
            is_landmark: false,
            fuller_cno: None,
            now: None,
            then: None,
            name_bytes: states::no_text(name.as_bytes()),
            then_bytes: None,
            now_bytes: None,
        };
        found.insert(name, Some(data));
    }
    Ok(all_seen)
}

/// That nothing was found, and what there may be that was not seen.
fn not_seen(unseen: u64, text: &str) -> String {
    match unseen {
        0 => format!("{text} known in any state that is kept"),
        n => format!("{text} in any state that you may see; {n} states could not be looked into"),
    }
}

/// Whether there is nothing of that name.
fn is_absent(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Whether a state is gone, or not known.
fn is_unknown(e: &io::Error) -> bool {
    e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESTALE)
}

/// Why a state does not tell which it is.
fn untold(root: &Path, e: &io::Error) -> Fail {
    match e.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENODATA) => {
            let text = "the program that mounted the volume is older than this one, and tells its states to nobody but root and \
                        the user who mounted it; mount the volume anew";
            Fail::at(root.display(), text)
        }
        _ => Fail::at(root.display(), e),
    }
}

/// Which state a directory is the root of.
fn told(root: &Path) -> io::Result<CheckpointData> {
    let mut bytes = vec![0; TOLD_BYTES_MAX];
    let length = sys::lgetxattr(root, STATE, bytes.as_mut_slice())?;
    serde_json::from_slice(&bytes[..length]).map_err(io::Error::from)
}

/// What there was of a name, or nothing, in a state or now.
struct View {
    state: Option<CheckpointData>,
    meta: Option<Metadata>,
}

impl View {
    /// What is the same in two states that show the same.
    fn key(&self) -> Option<(Content, (i64, i64))> {
        let ctime = |m: &Metadata| (m.ctime(), m.ctime_nsec());
        self.content().zip(self.meta.as_ref().map(ctime))
    }
    /// Whether both show the same. What there is now has the kernel's times, and under writeback a state may be some nanoseconds
    /// newer than these.
    fn shows_same(&self, later: &Self) -> bool {
        let nanos =
            |view: &Self| view.meta.as_ref().map_or(0, |m| m.ctime().saturating_mul(1_000_000_000) + m.ctime_nsec());
        let is_near =
            || later.state.is_none() && nanos(self).saturating_sub(nanos(later)).unsigned_abs() < KERNEL_NANOS;
        self.content() == later.content() && (self.key() == later.key() || is_near())
    }
    fn content(&self) -> Option<Content> {
        let of = |m: &Metadata| (m.ino() & INO_MASK, m.len(), (m.mtime(), m.mtime_nsec()));
        self.meta.as_ref().map(of)
    }
    /// The state that begins here, after `before`.
    fn row(&self, before: Option<&Self>, inside: &Path) -> StateData {
        let change = match (before.and_then(Self::content), self.content()) {
            (_, None) => "removed",
            (None, Some(_)) => "made",
            (Some(a), Some(b)) if a != b => "content",
            _ => "attributes",
        };
        let (state, meta) = (self.state.as_ref(), self.meta.as_ref());
        let changed = meta.map(|m| m.ctime().saturating_mul(1_000_000_000).saturating_add(m.ctime_nsec()));
        StateData {
            cno: state.map(|s| s.cno),
            last_cno: state.map(|s| s.cno),
            cut: state.map(|s| s.time.clone()),
            kept_until: None,
            kept_until_nanos: None,
            landmark: None,
            is_now: state.is_none(),
            path: inside.to_string_lossy().into_owned(),
            change: change.into(),
            from: None,
            path_bytes: states::no_text(inside.as_os_str().as_bytes()),
            from_bytes: None,
            changed: changed.map(when::show_rfc3339),
            nanos: changed.or_else(|| state.map(|s| s.nanos)).unwrap_or(0),
            kind: meta.map(|m| states::kind(FileKind::from_mode(m.mode())).into()),
            size: meta.map(Metadata::len),
            // The past is shown with no more rights than there are now, so this may not be what it was.
            mode: None,
            uid: meta.map(Metadata::uid),
            editor_uid: None,
            ino: meta.map(|m| m.ino() & INO_MASK),
            let_go_before: None,
        }
    }
}

/// By which times of the kernel and of a state may differ that show the same.
const KERNEL_NANOS: u64 = 1_000_000;

/// Inode, size, time of modification.
type Content = (u64, u64, (i64, i64));
