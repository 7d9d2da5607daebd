//! What `nenrin restore` tells when it is done: of what was left out, what could not be kept, and what was replaced.

use crate::control::CheckpointData;
use crate::error::{FAILURE, Outcome};
use crate::less::Keeper;
use crate::output::{self, printable, shell_quoted};
use crate::restore::{Copied, Lack, Restored, There, Unfit};
use crate::size::show_bytes;
use crate::states::{tell_path, tell_paths};
use crate::when;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What was restored, from where and to where.
pub(super) struct CameFrom<'a> {
    /// As it was asked for.
    pub path: &'a Path,
    /// Where the state has it.
    pub from: &'a Path,
    /// Where it is now.
    pub dest: &'a Path,
    pub state: &'a CheckpointData,
    /// What the state is called.
    pub named: &'a str,
    pub there: There,
    /// It came back to its own place.
    pub is_itself: bool,
    /// The checkpoint that has what was replaced.
    pub kept_in: Option<CheckpointData>,
}

impl CameFrom<'_> {
    /// What was met in the state, as its user knows it.
    fn place_of(&self, p: &Path) -> PathBuf {
        match p.strip_prefix(self.from) {
            Ok(below) if below.as_os_str().is_empty() => self.path.to_owned(),
            below => self.path.join(below.unwrap_or(p)),
        }
    }

    fn shown(&self, p: &Path) -> String {
        printable(&self.place_of(p).to_string_lossy())
    }

    fn with_path(&self, mut told: Value, p: &Path) -> Value {
        tell_path(&mut told, "path", &self.place_of(p));
        told
    }
}

/// Tells it; the exit code is that of a failure where what is there is not all that was, or more than that.
pub(super) fn tell(restored: Restored, came: &CameFrom<'_>, json: bool) -> Outcome {
    lacking(&restored, came).iter().for_each(output::notice);
    tell_changed(&restored.copied);
    if restored.beyond_count > 0 {
        output::notice(went_with(&restored.beyond, restored.beyond_count, came.named, &kept_by(&restored, came)));
    }
    let parted = parted(&restored.parted_then, &restored.parted_now, came.dest, came.is_itself);
    tell_parted(&parted);
    let Restored { left_out, salvaged, unfit, rest, unkept, .. } = &restored;
    let is_all = left_out.is_empty() && salvaged.is_empty() && unfit.is_empty() && rest.is_none() && unkept.is_none();
    if json {
        output::json(&as_json(&restored, came, &parted))?;
    } else {
        let what = amount(&restored.copied);
        let kept = came.kept_in.as_ref().map(|kept| kept_in(kept, "has what was there", restored.keeper));
        let kept = kept.map_or_else(String::new, |kept| format!("; {kept}"));
        output::line(format!(
            "{} restored from {}: {what}{kept}",
            printable(&came.dest.display().to_string()),
            came.named
        ));
    }
    Ok(if is_all { 0 } else { FAILURE })
}

/// That a checkpoint has something, and until when the rule keeps it; and what of it a snapshot alone has.
fn kept_in(kept: &CheckpointData, has: &str, keeper: Keeper) -> String {
    let until =
        kept.kept_until_nanos.map_or_else(String::new, |nanos| format!(", and is kept until {}", when::show(nanos)));
    match keeper {
        Keeper::State => format!("checkpoint {} {has}{until}", kept.cno),
        Keeper::Snapshot(cno) => {
            format!("snapshot {cno} {has}, as far as that keeps less history, checkpoint {} all else{until}", kept.cno)
        }
    }
}

/// What has what was replaced.
fn kept_by(restored: &Restored, came: &CameFrom<'_>) -> String {
    match (&restored.unkept, &came.kept_in, &restored.rest) {
        (Some(_), _, Some(rest)) if rest.has_replaced => {
            let path = printable(&rest.path.display().to_string());
            match rest.is_unkept && !rest.is_part {
                true => format!("it is in {path}"),
                false => format!("what is left of it is in {path}, and the rest may be in no checkpoint any more"),
            }
        }
        (None, Some(kept), _) => kept_in(kept, "has it", restored.keeper),
        (unkept, ..) => unkept.as_ref().map_or_else(|| "it was in no checkpoint".to_owned(), ToString::to_string),
    }
}

/// What is not there, or not as it was, a line for each.
fn lacking(Restored { left_out, salvaged, unfit, rest, unkept, .. }: &Restored, came: &CameFrom<'_>) -> Vec<String> {
    let (mut lines, named) = (Vec::new(), came.named);
    for left in left_out {
        let what = if left.lack == Lack::Attributes { "these were" } else { "was" };
        lines.push(format!("{} {} in {named}, and {what} left out", came.shown(&left.path), left.lack.words()));
    }
    for file in salvaged {
        lines.push(format!("{} {}", came.shown(&file.path), bad_bytes(&file.bad, named)));
    }
    for Unfit { path, attributes } in unfit {
        let what = printable(&attributes.join(", "));
        let why = "extended attributes that do not fit where it is now were left out";
        lines.push(format!("{}: {why}: {what}", came.shown(path)));
    }
    let dest = printable(&came.dest.display().to_string());
    // What stays for that reason says so.
    if let Some(unkept) = unkept.as_ref().filter(|_| !rest.as_ref().is_some_and(|rest| rest.is_unkept)) {
        let what = match came.there {
            There::Changes => "what it was may be in no checkpoint any more",
            _ => "what was replaced was removed, and may be in no checkpoint any more",
        };
        lines.push(format!("{dest}: {what}: {}", printable(&unkept.to_string())));
    }
    if let Some(rest) = rest {
        lines.push(format!("{}; {dest} is restored", printable(&rest.to_string())));
    }
    lines
}

/// What the copies have otherwise than what they were made of, or than what was there.
fn tell_changed(copied: &Copied) {
    if copied.owners_lost > 0 {
        let what = plural(copied.owners_lost, "file or directory belongs", "files and directories belong");
        output::notice(format!(
            "{what} to you now, and not to who, or the group that, had it then: only root can restore that"
        ));
    }
    if copied.permissions_lost > 0 {
        let what = plural(copied.permissions_lost, "inode", "inodes");
        let why = "more is told to its owner and root only, or would go to another group, or access lists are not taken there";
        output::notice(format!("{what} did not get all permissions of then: {why}"));
    }
    if copied.links_lost > 0 {
        let what = plural(copied.links_lost, "name is a file of its own", "names are files of their own");
        output::notice(format!("{what} there, where no hard links can be made"));
    }
    if copied.permissions_back > 0 {
        let what = plural(copied.permissions_back, "inode has", "inodes have");
        output::notice(format!("{what} permissions of then that had been changed since"));
    }
}

fn as_json(restored: &Restored, came: &CameFrom<'_>, parted: &[PathBuf]) -> Value {
    let Restored { copied, left_out, salvaged, unfit, rest, beyond, beyond_count, keeper, .. } = restored;
    let left_out: Vec<_> = left_out.iter().map(|l| came.with_path(json!({ "why": l.lack.word() }), &l.path)).collect();
    let salvaged: Vec<_> = salvaged.iter().map(|s| came.with_path(json!({ "bad": s.bad }), &s.path)).collect();
    let unfit: Vec<_> = unfit.iter().map(|u| came.with_path(json!({ "attributes": u.attributes }), &u.path)).collect();
    let (kept_in, in_snapshot) = match (&came.kept_in, keeper) {
        (Some(_), Keeper::Snapshot(cno)) => (None, Some(cno)),
        (kept, _) => (kept.as_ref(), None),
    };
    let mut told = json!({
        "from": came.state,
        "files": copied.files,
        "directories": copied.directories,
        "bytes": copied.bytes,
        "owners_lost": copied.owners_lost,
        "permissions_lost": copied.permissions_lost,
        "permissions_back": copied.permissions_back,
        "links_lost": copied.links_lost,
        "left_out": left_out,
        "salvaged": salvaged,
        "attributes_left_out": unfit,
        "replaced_kept_in": kept_in.map(|kept| kept.cno),
        "replaced_kept_until": kept_in.and_then(|kept| kept.kept_until.as_ref()),
        "replaced_kept_in_snapshot": in_snapshot,
        "went_count": beyond_count,
        "in_place": came.there == There::Changes,
        "rest": null,
    });
    tell_path(&mut told, "path", came.dest);
    tell_paths(&mut told, "went", beyond);
    tell_paths(&mut told, "parted", parted);
    if let Some(rest) = rest {
        tell_path(&mut told, "rest", &rest.path);
    }
    told
}

/// How much was restored.
fn amount(copied: &Copied) -> String {
    let bytes = match copied.bytes {
        n if n < 1024 => plural(n, "byte", "bytes"),
        n => show_bytes(n),
    };
    match (copied.files, copied.directories) {
        (_, 0) => bytes,
        (files, n) => {
            format!("{} and {}, {bytes}", plural(files, "file", "files"), plural(n, "directory", "directories"))
        }
    }
}

pub(super) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Ranges that are told of each file.
const BAD_SHOWN: usize = 100;

/// Which bytes of a copy are zeros since they could not be read.
fn bad_bytes(bad: &[(u64, u64)], named: &str) -> String {
    let bytes: u64 = bad.iter().map(|(from, to)| to - from).sum();
    let ranges: Vec<String> = bad.iter().take(BAD_SHOWN).map(|(from, to)| format!("{from} to {}", to - 1)).collect();
    let more = match bad.len().saturating_sub(BAD_SHOWN) {
        0 => String::new(),
        n => format!(" and {n} more ranges (--json lists all)"),
    };
    let ranges = ranges.join(", ");
    format!(
        "is damaged in {named}, and {bytes} bytes of the copy are zeros that could not be read: bytes {ranges}{more}"
    )
}

/// What a directory had that was replaced, and the state has not.
fn went_with(first: &[PathBuf], count: u64, named: &str, kept: &str) -> String {
    let names = first.iter().map(|p| printable(&p.to_string_lossy())).collect::<Vec<_>>().join(", ");
    let more = match count.saturating_sub(first.len() as u64) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let what = if count == 1 { "what is not in" } else { "all that is not in" };
    format!("{what} {named} is not there any more: {names}{more}; {kept}")
}

/// Files that are of their own now, while names elsewhere keep what they have. Beside its place nobody takes a copy for what it was.
fn parted(then: &BTreeSet<PathBuf>, now: &BTreeSet<PathBuf>, dest: &Path, is_itself: bool) -> Vec<PathBuf> {
    let all: BTreeSet<&PathBuf> = now.iter().chain(then.iter().filter(|_| is_itself)).collect();
    let there = |below: &PathBuf| if below.as_os_str().is_empty() { dest.to_owned() } else { dest.join(below) };
    all.into_iter().map(there).collect()
}

/// Files of their own that are told.
const PARTED_SHOWN: usize = 5;

fn tell_parted(parted: &[PathBuf]) {
    let Some(first) = parted.first() else { return };
    let names: Vec<String> = parted.iter().take(PARTED_SHOWN).map(|p| printable(&p.to_string_lossy())).collect();
    let (verb, what) = match parted.len() {
        1 => ("is a file of its own now", "its other names (hard links) keep"),
        _ => ("are files of their own now", "their other names (hard links) keep"),
    };
    let more = match parted.len().saturating_sub(PARTED_SHOWN) {
        0 => String::new(),
        n => format!(" and {n} more (--json lists all)"),
    };
    let first = shell_quoted(first);
    output::notice(format!(
        "{}{more} {verb}: {what} what they have; ln -f {first} OTHER makes them one again, and --in-place instead of --force keeps \
         them so",
        names.join(", ")
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restore::{Rest, Unkept};

    fn restored(unkept: Option<Unkept>, rest: Option<Rest>) -> Restored {
        Restored {
            copied: Copied::default(),
            left_out: Vec::new(),
            salvaged: Vec::new(),
            unfit: Vec::new(),
            rest,
            beyond: Vec::new(),
            beyond_count: 0,
            keeper: Keeper::State,
            unkept,
            parted_then: BTreeSet::new(),
            parted_now: BTreeSet::new(),
        }
    }

    fn state() -> CheckpointData {
        let text = r#"{"cno": 7, "name": null, "time": "2026-01-31T14:00:00Z", "nanos": 0, "asked": true}"#;
        serde_json::from_str(text).unwrap()
    }

    /// That what was replaced is lost is told whatever else is wrong.
    #[test]
    fn what_is_lost_is_told_beside_what_stays() {
        let rest = |has_replaced, is_unkept| {
            let (path, why) = (PathBuf::from("d/f.kept-by-restore"), "Permission denied".to_owned());
            Some(Rest { path, has_replaced, is_part: false, is_unkept, why })
        };
        let (path, state) = (Path::new("d/f"), state());
        let told = |there, unkept: &Unkept, rest| {
            let (from, dest, named) = (path, path, "checkpoint 7");
            let came = CameFrom { path, from, dest, state: &state, named, there, is_itself: true, kept_in: None };
            lacking(&restored(Some(unkept.clone()), rest), &came).join("\n")
        };
        let (went, silent) = (Unkept::Went(Keeper::State), Unkept::Unasked("no answer".into()));
        for (unkept, why) in [(&went, "that was to keep it went meanwhile"), (&silent, "could not be asked: no answer")]
        {
            for (there, rest, what) in [
                (There::Changes, None, "d/f: what it was may be in no checkpoint any more: "),
                (There::Changes, rest(false, false), "d/f: what it was may be in no checkpoint any more: "),
                (There::Goes, None, "d/f: what was replaced was removed, and may be in no checkpoint any more: "),
                (There::Goes, rest(true, false), "d/f: what was replaced was removed, and may be in no "),
            ] {
                let (has_rest, told) = (rest.is_some(), told(there, unkept, rest));
                assert!(told.contains(what) && told.contains(why), "{told}");
                assert_eq!(told.contains("Permission denied; d/f is restored"), has_rest, "{told}");
            }
            let told = told(There::Goes, unkept, rest(true, true));
            assert!(told.contains("is in d/f.kept-by-restore, and was not removed") && !told.contains('\n'), "{told}");
        }
    }

    /// What was removed already is not said to be somewhere.
    #[test]
    fn where_a_part_is_left_no_more_is_promised() {
        let (path, state) = (Path::new("d/f"), state());
        for (is_part, is_unkept, all) in [(false, true, true), (true, true, false), (true, false, false)] {
            let (kept, why) = (PathBuf::from("d/f.kept-by-restore"), String::new());
            let rest = Some(Rest { path: kept, has_replaced: true, is_part, is_unkept, why });
            let (from, dest, named, there) = (path, path, "checkpoint 7", There::Goes);
            let came = CameFrom { path, from, dest, state: &state, named, there, is_itself: true, kept_in: None };
            let told = kept_by(&restored(Some(Unkept::Went(Keeper::State)), rest), &came);
            assert_eq!(told.starts_with("it is in"), all, "{told}");
            assert_eq!(told.contains("may be in no checkpoint"), !all, "{told}");
        }
    }

    #[test]
    fn who_keeps_what_was_replaced_is_told() {
        let kept = kept_in(&state(), "has it", Keeper::State);
        assert_eq!(kept, "checkpoint 7 has it");
        let kept = kept_in(&state(), "has it", Keeper::Snapshot(6));
        assert_eq!(kept, "snapshot 6 has it, as far as that keeps less history, checkpoint 7 all else");
    }
}
