//! The end of a restore: what was replaced goes, as long as something else keeps it.
//!
//! Invariants
//! 1. Nothing of it is removed that nothing is known to keep. That is asked before, again and again while it goes, and once more behind
//!    that: who lost it nevertheless is told.
//! 2. What stays has a name that says what it is.

use super::place::Place;
use crate::error::Fail;
use crate::less::Keeper;
use nenrin_core::breaks::{Break, broken};
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What was done to what was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// There was nothing.
    Nothing,
    /// It lies where the copy was made.
    Replaced,
    /// It was written to.
    Changed,
}

/// Why what was replaced is not known to be kept by anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unkept {
    /// What was to keep it is not there any more.
    Went(Keeper),
    /// Nobody could say.
    Unasked(String),
}

impl std::fmt::Display for Unkept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = "that was to keep it went meanwhile, for want of room or since somebody deleted it";
        match self {
            Self::Went(Keeper::State) => write!(f, "the checkpoint {why}"),
            Self::Went(Keeper::Snapshot(_)) => write!(f, "the snapshot, or the checkpoint, {why}"),
            Self::Unasked(e) => write!(f, "whether a checkpoint keeps it still could not be asked: {e}"),
        }
    }
}

/// What was made beside the destination and could not be removed in the end, or was not.
#[derive(Debug)]
pub struct Rest {
    /// The directory.
    pub path: PathBuf,
    /// What was replaced is in it, or what is left of that.
    pub has_replaced: bool,
    /// Some of that has gone.
    pub is_part: bool,
    /// It was not to be removed, since nothing is known to have it.
    pub is_unkept: bool,
    /// Why it stayed.
    pub why: String,
}

impl std::fmt::Display for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, why) = (self.path.display(), &self.why);
        let what = if self.is_part { "what is left of what was replaced" } else { "what was replaced" };
        match self.has_replaced {
            true if self.is_unkept => write!(f, "{what} is in {path}, and was not removed: {why}"),
            true => write!(f, "what was replaced could not be removed: what is left of it is in {path}: {why}"),
            false => write!(f, "{path} could not be removed: {why}"),
        }
    }
}

/// Removes what is in the private directory by now, but what was replaced and nothing is known to keep. What stays, and why what was
/// replaced or changed is not known to be kept, where that is so.
pub(super) fn end(
    place: &Place<'_>,
    done: Done,
    keeper: Keeper,
    is_kept: &dyn Fn(Keeper) -> Result<bool, Fail>,
) -> (Option<Rest>, Option<Unkept>) {
    let look = || match is_kept(keeper) {
        _ if broken(Break::UnkeptRemoved) => None,
        Ok(true) => None,
        Ok(false) => Some(Unkept::Went(keeper)),
        Err(e) => Some(Unkept::Unasked(e.message)),
    };
    let has_replaced = done == Done::Replaced;
    let rest = |why: String, is_part, is_unkept| {
        let path = if has_replaced { place.named() } else { place.shown() };
        Rest { path, has_replaced, is_part, is_unkept, why }
    };
    if let Some(unkept) = has_replaced.then(look).flatten() {
        return (Some(rest(unkept.to_string(), false, true)), Some(unkept));
    }
    let stopped = RefCell::new(None);
    let mut may = || match has_replaced.then(look).flatten() {
        None => Ok(()),
        Some(unkept) => {
            let why = io::Error::other(unkept.to_string());
            stopped.replace(Some(unkept));
            Err(why)
        }
    };
    let tidied = place.tidy(&mut may);
    match (stopped.into_inner(), tidied) {
        (Some(unkept), _) => (Some(rest(unkept.to_string(), true, true)), Some(unkept)),
        (None, tidied) => {
            let unkept = (done != Done::Nothing).then(look).flatten();
            (tidied.err().map(|e| rest(e.to_string(), true, false)), unkept)
        }
    }
}

/// Bytes that a name may have.
const NAME_BYTES_MAX: usize = 255;

/// The name of the directory that keeps what had the name `of`, the first, the second and so on.
pub(super) fn kept_name(of: &OsStr, nth: u32) -> OsString {
    let mark = if nth == 0 { ".kept-by-restore".to_owned() } else { format!(".kept-by-restore-{}", nth + 1) };
    let mut end = of.len().min(NAME_BYTES_MAX - mark.len());
    while of.to_str().is_some_and(|of| !of.is_char_boundary(end)) {
        end -= 1;
    }
    OsString::from_vec([&of.as_bytes()[..end], mark.as_bytes()].concat())
}

/// Names of what was replaced and is not there any more that are told.
const BEYOND_MAX: usize = 5;

/// The first names that a directory that was replaced had and what is there now has not, and how many these are, as far as both can be
/// read, and nobody asks to `stop`.
pub(super) fn beyond(place: &Place<'_>, stop: &dyn Fn() -> bool) -> (Vec<PathBuf>, u64) {
    let (mut first, mut count) = (Vec::new(), 0);
    look_beyond(&place.copy(), &place.there(), Path::new(""), &mut |path| {
        count += 1;
        if first.len() < BEYOND_MAX {
            first.push(path);
        }
        !stop()
    });
    (first, count)
}

/// Tells the names that an old directory has and a new one, or what is there instead, has not, as far as both can be read, until `each`
/// says to stop.
fn look_beyond(old: &Path, new: &Path, below: &Path, each: &mut dyn FnMut(PathBuf) -> bool) -> bool {
    let is_directory = |at: &Path| fs::symlink_metadata(at).is_ok_and(|m| m.is_dir());
    if !is_directory(old) {
        return true;
    }
    let (has_names, entries) = (is_directory(new), fs::read_dir(old).into_iter().flatten().flatten());
    let mut entries: Vec<_> = entries.map(|e| (e.file_name(), e.file_type().is_ok_and(|t| t.is_dir()))).collect();
    entries.sort();
    entries.into_iter().all(|(name, is_dir)| {
        let (path, there) = (below.join(&name), new.join(&name));
        let is_gone = || fs::symlink_metadata(&there).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        if !has_names || is_gone() {
            return each(path);
        }
        !is_dir || look_beyond(&old.join(&name), &there, &path, each)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_name_is_no_longer_than_a_name_may_be() {
        assert_eq!(kept_name(OsStr::new("thesis"), 0), "thesis.kept-by-restore");
        assert_eq!(kept_name(OsStr::new("thesis"), 1), "thesis.kept-by-restore-2");
        for name in ["x".repeat(255), "\u{e9}".repeat(127), "\u{65e5}".repeat(85)] {
            for nth in [0, 1, 999] {
                let kept = kept_name(OsStr::new(&name), nth);
                assert!((236..=NAME_BYTES_MAX).contains(&kept.len()) && kept.to_str().is_some(), "{kept:?}");
            }
        }
        let bytes = OsString::from_vec(vec![0xff; 255]);
        assert_eq!(kept_name(&bytes, 0).len(), NAME_BYTES_MAX);
    }
}
