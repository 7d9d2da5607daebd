//! What `history` and the list of names that are gone tell, against what the
//! kept checkpoints show: both are looked up, neither is believed.

use nenrin_core::{At, Attr, Error, FileKind, Fs, GoneName, NameState};
use nenrin_format::{Cno, Ino};
use std::collections::{BTreeMap, BTreeSet};

/// Names of the root directory that are asked for.
const NAMES_MAX: usize = 8;

/// The names of the root directory in a state; `None` where that does not know them.
fn names(fs: &Fs, at: At) -> Result<Option<BTreeSet<Vec<u8>>>, String> {
    let mut out = BTreeSet::new();
    let listed = fs.readdir(at, Ino::ROOT, 0, &mut |e| {
        out.insert(e.name);
        true
    });
    match listed {
        Ok(()) => {}
        Err(Error::Stale) if at != At::Live => return Ok(None),
        Err(e) => return Err(format!("the root directory: {e}")),
    }
    out.remove(&b"."[..]);
    out.remove(&b".."[..]);
    Ok(Some(out))
}

/// What a name stood for, if the state knows that, and all that belongs to it.
fn look(fs: &Fs, at: At, name: &[u8]) -> Result<Option<Attr>, String> {
    let text = || String::from_utf8_lossy(name).into_owned();
    let attr = match fs.lookup(at, Ino::ROOT, name) {
        Ok(attr) => attr,
        Err(Error::NotFound) => return Ok(None),
        Err(Error::Stale) if at != At::Live => return is_unknown(fs, at, name).map(|()| None),
        Err(e) => return Err(format!("{}: {e}", text())),
    };
    let known = match attr.kind() {
        FileKind::Directory => fs.readdir(at, attr.ino, 0, &mut |_| true),
        FileKind::Regular => fs.read(at, attr.ino, 0, 1).map(drop),
        _ => Ok(()),
    };
    match known {
        Ok(()) => Ok(Some(attr)),
        Err(Error::Stale) if at != At::Live => Ok(None),
        Err(e) => Err(format!("{}: {e}", text())),
    }
}

/// A name of a past state that is looked up is said to be unknown: so is what the directory lists, or what the name stood for.
fn is_unknown(fs: &Fs, at: At, name: &[u8]) -> Result<(), String> {
    let mut ino = None;
    let listed = fs.readdir(at, Ino::ROOT, 0, &mut |e| {
        if e.name == name {
            ino = Some(e.ino);
        }
        true
    });
    let known = listed.and_then(|()| ino.map_or(Ok(()), |ino| fs.getattr(at, ino).map(drop)));
    match known {
        Err(Error::Stale) => Ok(()),
        Err(e) => Err(format!("{}: {e}", String::from_utf8_lossy(name))),
        Ok(()) => Err(format!(
            "{} is said to be unknown in {at:?}, and the directory and inode {ino:?} are known",
            String::from_utf8_lossy(name)
        )),
    }
}

/// Compares both; how many names were asked for.
///
/// # Errors
/// What is told and not so, or so and not told.
pub fn agrees(fs: &Fs) -> Result<u64, String> {
    let kept: Vec<Cno> = fs.checkpoints().iter().map(|c| c.cno).collect();
    let now = names(fs, At::Live)?.unwrap_or_default();
    let told = fs.gone(&[]).map_err(|e| format!("names that are gone: {e}"))?;
    let mut all: BTreeSet<Vec<u8>> = told.iter().map(|g| g.name.clone()).collect();
    for cno in &kept {
        all.extend(names(fs, At::Past(*cno))?.unwrap_or_default());
    }
    let mut last: BTreeMap<Vec<u8>, Cno> = BTreeMap::new();
    for name in &all {
        for cno in kept.iter().rev() {
            if look(fs, At::Past(*cno), name)?.is_some() {
                last.insert(name.clone(), *cno);
                break;
            }
        }
    }
    gone(&told, &now, &last)?;
    let all: BTreeSet<&Vec<u8>> = now.iter().chain(last.keys()).collect();
    for name in all.iter().take(NAMES_MAX) {
        let states = fs.history(&[name]).map_err(|e| format!("history of {}: {e}", String::from_utf8_lossy(name)))?;
        history(fs, name, &states, &kept).map_err(|e| format!("{e}: {states:?}"))?;
    }
    Ok(all.len().min(NAMES_MAX) as u64)
}

/// Each checkpoint's state of a name is told, and what there is now.
fn history(fs: &Fs, name: &[u8], states: &[NameState], kept: &[Cno]) -> Result<(), String> {
    let text = String::from_utf8_lossy(name);
    for cno in kept {
        let Some(attr) = look(fs, At::Past(*cno), name)? else { continue };
        let is_it = |s: &&NameState| {
            let shows = s.shown_by.is_some_and(|(oldest, newest)| oldest <= *cno && *cno <= newest);
            shows && s.attr.as_ref().is_some_and(|a| is_same(a, &attr))
        };
        if !states.iter().any(|s| is_it(&s)) {
            return Err(format!("history of {text} does not tell of {attr:?} in checkpoint {cno}"));
        }
    }
    let told = states.iter().any(|s| s.is_now && s.attr.is_some());
    if told != look(fs, At::Live, name)?.is_some() {
        return Err(format!("history of {text} says that it is there now: {told}"));
    }
    Ok(())
}

/// The same inode with the same content, as far as attributes tell.
fn is_same(a: &Attr, b: &Attr) -> bool {
    a.ino == b.ino && (a.kind() != FileKind::Regular || (a.size, a.mtime) == (b.size, b.mtime))
}

/// What is gone is listed, with the newest checkpoint that shows it; nothing else is.
fn gone(told: &[GoneName], now: &BTreeSet<Vec<u8>>, last: &BTreeMap<Vec<u8>, Cno>) -> Result<(), String> {
    for g in told {
        let text = String::from_utf8_lossy(&g.name);
        if now.contains(&g.name) {
            return Err(format!("{text} is there, and is told as gone"));
        }
        let newest = last.get(&g.name).copied();
        if !g.is_landmark && newest != Some(g.last) || g.is_landmark && newest >= Some(g.last) {
            return Err(format!("{text} is told as last in {}, and was last in {newest:?}", g.last));
        }
    }
    let listed: BTreeSet<&Vec<u8>> = told.iter().map(|g| &g.name).collect();
    match last.keys().find(|name| !now.contains(*name) && !listed.contains(name)) {
        Some(name) => Err(format!("{} is gone, and is not told", String::from_utf8_lossy(name))),
        None => Ok(()),
    }
}

#[cfg(all(test, feature = "breaks"))]
mod tests {
    use super::*;
    use crate::clock::VirtualClock;
    use nenrin_core::breaks::{Break, with};
    use nenrin_core::{MkfsOptions, MountOptions, NewInode};
    use nenrin_device::{BlockDevice, CrashDisk};
    use std::sync::Arc;

    #[test]
    fn names_that_cannot_be_looked_up_in_the_past_are_noticed() {
        let (device, clock): (Arc<dyn BlockDevice>, Arc<VirtualClock>) =
            (Arc::new(CrashDisk::new(64 << 20)), Arc::default());
        nenrin_core::mkfs(&device, &(clock.clone() as Arc<dyn nenrin_core::Clock>), &MkfsOptions::default()).unwrap();
        let fs = Fs::open(vec![device], clock, MountOptions::default()).unwrap();
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        fs.create(Ino::ROOT, b"stays", &new).unwrap();
        fs.checkpoint_create(None).unwrap();
        assert_eq!(agrees(&fs), Ok(1));
        let told = with(Break::PastUnnamed, || agrees(&fs)).unwrap_err();
        assert!(told.starts_with("stays is said to be unknown"), "{told}");
    }
}
