//! The states of a name, as the data that is printed and sent.

use crate::control::{GoneData, PART_ENTRIES, StateData};
use crate::diff::TOLD_EVERY;
use crate::error::Fail;
use crate::fuller::Fuller;
use crate::output::{printable, table};
use crate::restore::{has_hidden, is_hidden};
use crate::size::show_bytes;
use crate::{report, when};
use nenrin_core::{Attr, Change, CheckpointInfo, Error, FileKind, Fs, GoneName, LandmarkInfo, NameState, ShedInfo};
use nenrin_format::Cno;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

/// Why there is no list of what is gone from something.
pub const NO_DIRECTORY: &str = "is not a directory, so nothing was removed from it; nenrin history tells its states";

/// The kind of what cannot be read.
const UNKNOWN: &str = "unknown";

/// What stands for the end of time.
const FOREVER: &str = "forever";

/// Until when a state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Forever,
    /// In nanoseconds since 1970.
    Moment(i64),
}

/// The states of `path`, which begins at the root of the volume; oldest first.
///
/// # Errors
/// It never stood for anything, as far as is known; damage.
pub fn of(fs: &Fs, path: &Path) -> Result<Vec<StateData>, Fail> {
    let checkpoints = fs.checkpoints();
    let (kept, landmarks, now) = (fs.keeps_for(), fs.landmarks(), crate::clock::now());
    let until = |s: &NameState| {
        let landmark = |l: &&LandmarkInfo| {
            s.landmark.is_some() && s.shown_by == Some((l.cno, l.cno)) && s.attr.is_some_and(|a| a.ino == l.ino)
        };
        match landmarks.iter().find(landmark) {
            Some(l) => Some(Until::after(l.left, now)),
            None => s.shown_by.map(|shown| until(&kept, shown, now)),
        }
    };
    match fs.history(&parts(path)) {
        Ok(states) => {
            let mut list: Vec<StateData> = states.iter().map(|s| state(s, &checkpoints, until(s))).collect();
            note_shed(&mut list, &fs.shed().unwrap_or_default());
            Ok(without_hidden(list, path))
        }
        Err(Error::NotFound) => Err(never(fs, path, &checkpoints)),
        Err(e) => Err(Fail::at(path.display(), e)),
    }
}

/// Without what a restore made on its way to its place, unless that is asked about.
fn without_hidden(mut list: Vec<StateData>, asked: &Path) -> Vec<StateData> {
    if has_hidden(asked.as_os_str().as_bytes()) {
        return list;
    }
    list.retain(|s| !has_hidden(s.path.as_bytes()));
    for s in list.iter_mut().filter(|s| s.from.as_ref().is_some_and(|from| has_hidden(from.as_bytes()))) {
        (s.from, s.from_bytes) = (None, None);
        s.change = if s.change == "moved" { "removed" } else { "made" }.into();
    }
    list
}

/// Notes at the oldest state that is left of an inode that earlier ones were let go.
fn note_shed(list: &mut [StateData], shed: &[ShedInfo]) {
    for s in shed {
        let is_after = |d: &&mut StateData| d.ino == Some(s.ino.0) && d.cno.is_none_or(|cno| cno >= s.upto.0);
        if let Some(oldest) = list.iter_mut().find(is_after) {
            oldest.let_go_before = Some(s.upto.0);
        }
    }
}

/// The names that the directory `path` has no more, in any order and some at a time; the last ones are returned.
///
/// # Errors
/// There never was such a directory, as far as is known; damage; what `each` says.
pub fn gone(
    fs: &Fs,
    path: &Path,
    each: &mut dyn FnMut(Vec<GoneData>) -> Result<(), Fail>,
) -> Result<Vec<GoneData>, Fail> {
    let checkpoints = fs.checkpoints();
    let mut fuller = Fuller::new(fs, &checkpoints);
    let mut data = |g: &GoneName| {
        let checkpoint = at(&checkpoints, g.last).map(|c| c.wall);
        let cut = checkpoint.or_else(|| fs.landmark_at(g.last)).map_or(0, |wall| wall.0);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let is_removed_dir =
            |a: &Attr| a.kind() == FileKind::Directory && g.now.is_none() && !g.is_landmark && g.damage.is_none();
        GoneData {
            name: text(&g.name),
            cno: g.last.0,
            cut: when::show_rfc3339(cut),
            nanos: cut,
            kind: g.attr.map_or(UNKNOWN, |a| kind(a.kind())).into(),
            size: g.attr.map_or(0, |a| a.size),
            damage: g.damage.clone(),
            is_landmark: g.is_landmark,
            fuller_cno: g.attr.filter(is_removed_dir).and_then(|a| fuller.of(a.ino, g.last)).map(|c| c.0),
            now: g.now.as_deref().filter(|now| !has_hidden(now)).map(text),
            then: g.then.as_deref().map(text),
            name_bytes: no_text(&g.name),
            then_bytes: g.then.as_deref().and_then(no_text),
            now_bytes: g.now.as_deref().filter(|now| !has_hidden(now)).and_then(no_text),
        }
    };
    let (mut ready, mut sent, mut told_at) = (Vec::new(), Ok(()), Instant::now());
    let told = fs.gone_in_parts(&parts(path), &mut |some| {
        ready.extend(some.iter().filter(|g| !is_hidden(&g.name)).map(&mut data));
        if ready.len() >= PART_ENTRIES || told_at.elapsed() >= TOLD_EVERY {
            (sent, told_at) = (each(std::mem::take(&mut ready)), Instant::now());
        }
        if sent.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    match told {
        Ok(()) => sent.map(|()| ready),
        Err(Error::NotFound) => Err(never(fs, path, &checkpoints)),
        Err(Error::NotDirectory) => Err(Fail::at(path.display(), NO_DIRECTORY)),
        Err(e) => Err(Fail::at(path.display(), e)),
    }
}

/// For people.
pub fn show_gone(list: &[GoneData]) -> String {
    let row = |g: &GoneData| {
        let slash = if g.kind == "directory" { "/" } else { "" };
        let size = match g.kind.as_str() {
            "directory" => "dir".into(),
            UNKNOWN => "?".into(),
            _ => show_bytes(g.size),
        };
        let mut fate = match (&g.now, &g.damage) {
            (Some(now), _) => format!("moved to {}", printable(now)),
            (None, Some(_)) => "removed or moved".into(),
            (None, None) => "removed".into(),
        };
        if let Some(damage) = &g.damage {
            fate = format!("{fate}, {}", printable(damage));
        }
        if let Some(then) = &g.then {
            fate = format!("{fate}, as {}", printable(then));
        }
        if g.is_landmark {
            fate.push_str(", landmark");
        }
        if let Some(fuller) = g.fuller_cno {
            fate = format!("{fate}; checkpoint {fuller} has more of it");
        }
        vec![format!("{}{slash}", printable(&g.name)), size, g.cno.to_string(), when::show(g.nanos), fate]
    };
    table(&["name", "size", "last in checkpoint", "of", "what"], &list.iter().map(row).collect::<Vec<_>>())
}

/// The bytes of a path that cannot be told as text.
pub fn no_text(path: &[u8]) -> Option<Vec<u8>> {
    std::str::from_utf8(path).is_err().then(|| path.to_vec())
}

/// The same of several: nothing for those that are text, and for all where each is.
pub fn no_texts<P: AsRef<[u8]>>(paths: &[P]) -> Vec<Option<Vec<u8>>> {
    let bytes: Vec<_> = paths.iter().map(|p| no_text(p.as_ref())).collect();
    if bytes.iter().any(Option::is_some) { bytes } else { Vec::new() }
}

/// Puts a path into an object of JSON, and beside it its bytes where it is no text.
pub fn tell_path(told: &mut serde_json::Value, name: &str, path: &Path) {
    told[name] = path.to_string_lossy().into();
    if let Some(bytes) = no_text(path.as_os_str().as_bytes()) {
        told[format!("{name}_bytes")] = bytes.into();
    }
}

/// The same of several.
pub fn tell_paths<P: AsRef<Path>>(told: &mut serde_json::Value, name: &str, paths: &[P]) {
    let bytes: Vec<&[u8]> = paths.iter().map(|p| p.as_ref().as_os_str().as_bytes()).collect();
    told[name] = bytes.iter().map(|p| String::from_utf8_lossy(p)).collect();
    let bytes = no_texts(&bytes);
    if !bytes.is_empty() {
        told[format!("{name}_bytes")] = bytes.into();
    }
}

/// The parts of a path.
pub fn parts(path: &Path) -> Vec<&[u8]> {
    path.components().map(|c| c.as_os_str().as_bytes()).filter(|c| *c != b"/").collect()
}

/// Nothing is known of a path.
pub fn never(fs: &Fs, path: &Path, checkpoints: &[CheckpointInfo]) -> Fail {
    let shed = fs.shed().unwrap_or_default();
    let asked = parts(path).join(&b'/');
    let own = shed.iter().find(|s| s.path == asked).map_or_else(String::new, |s| {
        format!("; its states up to {} were let go for want of room", when::show_zoned(s.upto_wall.0))
    });
    let rests = report::resting(fs).map_or_else(String::new, |why| format!("; {why}"));
    Fail::at(path.display(), unheard_of(fs.checkpoints_cut(), checkpoints) + &own + &rests)
}

/// That nothing is known of a name, how far back anything is, and of `cut` checkpoints how many went that may have shown it.
pub fn unheard_of(cut: u64, checkpoints: &[CheckpointInfo]) -> String {
    format!("nothing of this name is known; {}", how_far(cut, checkpoints))
}

/// How far back anything is known of what is below a directory, and what was let go that may have shown more.
pub fn reach(fs: &Fs, path: &Path) -> String {
    let asked = parts(path).join(&b'/');
    let is_below =
        |s: &&ShedInfo| asked.is_empty() || s.path.strip_prefix(&asked[..]).is_some_and(|p| p.starts_with(b"/"));
    let shed = match fs.shed().unwrap_or_default().iter().filter(is_below).count() {
        0 => String::new(),
        1 => "; history of 1 file in it was let go for want of room (nenrin info)".to_owned(),
        n => format!("; history of {n} files in it was let go for want of room (nenrin info)"),
    };
    let rests = report::resting(fs).map_or_else(String::new, |why| format!("; {why}"));
    how_far(fs.checkpoints_cut(), &fs.checkpoints()) + &shed + &rests
}

/// How far back anything is known, and of `cut` checkpoints how many went.
fn how_far(cut: u64, checkpoints: &[CheckpointInfo]) -> String {
    let went = match cut.saturating_sub(checkpoints.len() as u64) {
        0 => String::new(),
        1 => "; 1 checkpoint was let go, and what that alone showed is not known any more".into(),
        n => format!("; {n} checkpoints were let go, and what these alone showed is not known any more"),
    };
    let reach = match checkpoints.first() {
        Some(c) => format!("what is known begins with checkpoint {} of {}", c.cno, when::show_zoned(c.wall.0)),
        None if went.is_empty() => "the volume has no checkpoints yet".to_owned(),
        None => "the volume has no checkpoints any more".to_owned(),
    };
    format!("{reach}{went}")
}

/// The checkpoint of a number, of all in their order.
fn at(checkpoints: &[CheckpointInfo], cno: Cno) -> Option<&CheckpointInfo> {
    checkpoints.binary_search_by_key(&cno, |c| c.cno).ok().and_then(|i| checkpoints.get(i))
}

/// Until when the last of the checkpoints from `first` to `last` is kept.
fn until(kept: &[(Cno, Option<u64>)], (first, last): (Cno, Cno), now: i64) -> Until {
    // In their order, as there may be many, and as many states.
    let from = kept.partition_point(|(cno, _)| *cno < first);
    let of_state = kept[from..].iter().take_while(|(cno, _)| *cno <= last);
    Until::after(of_state.map(|(_, left)| left.unwrap_or(u64::MAX)).max().filter(|left| *left < u64::MAX), now)
}

impl Until {
    /// So many nanoseconds from now.
    pub fn after(left: Option<u64>, now: i64) -> Self {
        left.map_or(Self::Forever, |left| Self::Moment(now.saturating_add_unsigned(left)))
    }
    /// As it is told in JSON.
    pub fn nanos(self) -> Option<i64> {
        match self {
            Self::Forever => None,
            Self::Moment(nanos) => Some(nanos),
        }
    }
    /// As it is told in JSON.
    pub fn text(self) -> String {
        self.nanos().map_or_else(|| FOREVER.into(), when::show_rfc3339)
    }
}

fn state(s: &NameState, checkpoints: &[CheckpointInfo], kept_until: Option<Until>) -> StateData {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let (change, from) = match &s.change {
        Change::Made => ("made", None),
        Change::Content => ("content", None),
        Change::Attributes => ("attributes", None),
        Change::Renamed(from) => ("renamed", Some(&from[..])),
        Change::Linked(to) => ("linked", Some(&to[..])),
        Change::Moved(to) => ("moved", Some(&to[..])),
        Change::Removed => ("removed", None),
    };
    let cut = s.shown_by.and_then(|(cno, _)| at(checkpoints, cno)).map(|c| c.wall.0);
    StateData {
        cno: s.shown_by.map(|(oldest, _)| oldest.0),
        last_cno: s.shown_by.map(|(_, newest)| newest.0),
        cut: cut.map(when::show_rfc3339),
        kept_until: kept_until.map(Until::text),
        kept_until_nanos: kept_until.and_then(Until::nanos),
        landmark: s.landmark,
        is_now: s.is_now,
        path: text(&s.path),
        change: change.into(),
        from: from.map(text),
        path_bytes: no_text(&s.path),
        from_bytes: from.and_then(no_text),
        changed: s.attr.map(|a| when::show_rfc3339(a.ctime.0)),
        nanos: s.attr.map(|a| a.ctime.0).or(cut).unwrap_or(0),
        kind: s.attr.map(|a| kind(a.kind()).into()),
        size: s.attr.map(|a| a.size),
        mode: s.attr.map(|a| a.mode & 0o7777),
        uid: s.attr.map(|a| a.uid),
        editor_uid: s.attr.map(|_| s.editor_uid),
        ino: s.attr.map(|a| a.ino.0),
        let_go_before: None,
    }
}

/// What it is, in a word.
pub fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "pipe",
        FileKind::Socket => "socket",
    }
}

/// Until when it is kept, as clocks here show it, to the minute.
fn kept_until(s: &StateData) -> String {
    let minute = |nanos| when::show(nanos).get(..16).map(str::to_owned);
    s.kept_until_nanos.and_then(minute).or_else(|| s.kept_until.clone()).unwrap_or_default()
}

/// For people. `asked` is the path that all states bear that do not say another.
pub fn show(list: &[StateData], asked: &str) -> String {
    let row = |s: &StateData| {
        let checkpoint = match (s.cno, s.last_cno, s.is_now) {
            (Some(a), _, true) => format!("{a}..now"),
            (Some(a), Some(b), false) if a != b => format!("{a}..{b}"),
            (Some(a), ..) => a.to_string(),
            (None, ..) => "now".into(),
        };
        let time = if s.nanos == 0 { String::new() } else { when::show(s.nanos) };
        let mut what = match (s.change.as_str(), &s.from) {
            ("renamed", Some(from)) => format!("renamed from {}", printable(from)),
            ("linked", Some(to)) => format!("linked to {}", printable(to)),
            ("moved", Some(to)) => format!("moved to {}", printable(to)),
            ("made", _) if s.let_go_before.is_some() => "oldest that is left".into(),
            (change, _) => change.to_owned(),
        };
        if s.path != asked {
            what = format!("{what}, as {}", printable(&s.path));
        }
        if s.landmark.is_some() {
            what.push_str(", landmark");
        }
        if s.let_go_before.is_some() {
            what.push_str("; earlier ones were let go for want of room");
        }
        let size = match s.kind.as_deref() {
            Some("directory") => "dir".into(),
            _ => s.size.map(show_bytes).unwrap_or_default(),
        };
        let is_past = !s.is_now && s.kind.is_some();
        let until = if is_past { kept_until(s) } else { String::new() };
        vec![checkpoint, time, size, s.editor_uid.map(|u| u.to_string()).unwrap_or_default(), until, what]
    };
    table(&["checkpoint", "changed", "size", "by", "kept until", "what"], &list.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_format::{Ino, Time};

    fn state(ino: u64, cno: Option<u64>) -> StateData {
        let mut state = of_row(cno);
        state.ino = Some(ino);
        state
    }

    fn of_row(cno: Option<u64>) -> StateData {
        let s = NameState {
            shown_by: cno.map(|cno| (Cno(cno), Cno(cno))),
            landmark: None,
            is_now: cno.is_none(),
            path: b"f".to_vec(),
            attr: None,
            editor_uid: 0,
            change: Change::Made,
        };
        super::state(&s, &[], None)
    }

    /// The oldest state that is left of a file whose history was let go was not made then.
    #[test]
    fn what_was_shed_is_told_where_it_was() {
        let shed = |upto| ShedInfo {
            ino: Ino(7),
            path: b"f".to_vec(),
            upto: Cno(upto),
            upto_wall: Time(0),
            wall: Time(0),
            blocks: 1,
        };
        let told = |upto| {
            let mut list = vec![state(6, Some(9)), state(7, Some(2)), state(7, Some(5)), state(7, None)];
            note_shed(&mut list, &[shed(upto)]);
            list.iter().map(|s| s.let_go_before).collect::<Vec<_>>()
        };
        assert_eq!(told(5), [None, None, Some(5), None], "a snapshot keeps the one before");
        assert_eq!(told(6), [None, None, None, Some(6)]);
        let mut list = vec![state(7, Some(5))];
        note_shed(&mut list, &[shed(5)]);
        assert!(show(&list, "f").contains("oldest that is left; earlier ones were let go for want of room"));
    }
    /// What is damaged of a name is told as unknown, and not as if it had been an empty file.
    #[test]
    fn a_name_that_cannot_all_be_read_is_told_so() {
        let gone = |kind: &str, now: Option<&str>, damage: Option<&str>| GoneData {
            name: "f".into(),
            cno: 7,
            cut: String::new(),
            nanos: 0,
            kind: kind.into(),
            size: 0,
            damage: damage.map(str::to_owned),
            is_landmark: false,
            fuller_cno: None,
            now: now.map(str::to_owned),
            then: None,
            name_bytes: None,
            then_bytes: None,
            now_bytes: None,
        };
        let told = |g: GoneData| show_gone(&[g]).lines().nth(1).unwrap().to_owned();
        let damaged = told(gone(UNKNOWN, None, Some("damage at block 5: checksum")));
        assert!(
            damaged.starts_with("f") && damaged.ends_with("  removed or moved, damage at block 5: checksum"),
            "{damaged}"
        );
        assert!(damaged.contains("  ? "), "{damaged}");
        let moved = told(gone("file", Some("g"), Some("damage at block 5: checksum")));
        assert!(moved.ends_with("  moved to g, damage at block 5: checksum"), "{moved}");
        assert!(told(gone("file", None, None)).ends_with("  removed"));
    }
}
