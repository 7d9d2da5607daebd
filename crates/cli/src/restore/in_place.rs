//! Gives a file that is there the content and the attributes of a copy, so that all its names have them.
//!
//! Invariants
//! 1. It is emptied and gets all it will have before anybody is told that it is durable: the volume holds an emptied file back from
//!    commits until it is synced, for half a minute at most, and not where that is all the room there is. So a crash shows what it had
//!    or what it got, under all names; where it takes longer, a part of that, and the checkpoint has what it had.
//! 2. Who cannot give it all it had then, since it is another's, gives it nothing.
//! 3. Meanwhile nobody may more than both grant: what it had is not shown to who may see what it gets, nor the other way round.

use super::attributes::{ACCESS_LIST, Had, Setting, of_no_group};
use super::place::{Left, Stop};
use super::spot::Spot;
use super::{Copied, Work};
use crate::error::{At, Fail};
use nenrin_fuse::INO_MASK;
use rustix::fs::{self as sys, XattrFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// What is at `to`, which has to be what was at `from`: the same file, to which its names can be restored.
///
/// # Errors
/// What there is instead, and what to do.
pub(super) fn same_file(from: &Path, to: &Spot) -> Result<Metadata, Fail> {
    let place = to.shown().display();
    let instead = |text: &str| Fail::at(&place, text);
    let now = match fs::symlink_metadata(to.there()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(instead("is not there, so that no file is restored in place; without --in-place it is made"));
        }
        now => now.at(&place)?,
    };
    let then = fs::symlink_metadata(from).at(from.display())?;
    if !now.is_file() || !then.is_file() {
        return Err(instead("is not a file then and now, which alone are restored in place; --force replaces it"));
    }
    if now.ino() != then.ino() & INO_MASK {
        return Err(instead(
            "is another file than it was then; --force replaces it, and nothing but this name changes",
        ));
    }
    is_own(&now, to.shown()).map(|()| now)
}

/// Whether who restores may change all of a file: another's may let him write to it, and to give it permissions and times is the owner's.
fn is_own(file: &Metadata, shown: &Path) -> Result<(), Fail> {
    let (me, owner) = (crate::sys::euid(), file.uid());
    if me == 0 || me == owner {
        return Ok(());
    }
    let text = format!(
        "belongs to user {owner}, and only that user and root can give it what it was; --to DEST restores beside it"
    );
    Err(Fail::at(shown.display(), text))
}

/// Of what a file gets, that which its state had and it could not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    pub owner: bool,
    pub permissions: bool,
}

/// What a file is to be: content, and what its state had besides.
pub(super) struct Wanted<'a> {
    /// Where the content is, in a copy that has nobody's permissions but those of who restores.
    pub copy: PathBuf,
    pub had: &'a Had,
}

/// Gives the file at `there`, which is `known`, what is `wanted`, where `is_kept` says that it is still what a checkpoint has; what it
/// could not have then. It is `shown` so.
///
/// # Errors
/// What could not be read or written, and what then is there.
pub(super) fn give(
    wanted: &Wanted<'_>,
    there: &Path,
    (known, is_kept): (&Metadata, &dyn Fn(&Metadata) -> bool),
    shown: &Path,
) -> Result<Option<Lost>, Stop> {
    let place = shown.display();
    let source = File::open(&wanted.copy).at(&place)?;
    let bytes = source.metadata().at(&place)?.len();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let target = OpenOptions::new().write(true).custom_flags(flags).open(there).at(&place)?;
    let now = target.metadata().at(&place)?;
    if (now.dev(), now.ino(), now.is_file()) != (known.dev(), known.ino(), true) {
        return Err(Fail::at(&place, "became another file meanwhile, and was left as it is").into());
    }
    is_own(&now, shown)?;
    if !is_kept(&now) {
        return Ok(None);
    }
    let both = of_both(&target, &now, wanted.had);
    if both != now.mode() & 0o7777 {
        target.set_permissions(Permissions::from_mode(both)).at(&place)?;
    }
    let given = content(&source, &target, bytes).and_then(|()| attributes(&target, wanted.had));
    // Also where that failed: what others have seen of it by now is undone by no crash.
    let synced = target.sync_all();
    let given = given.and_then(|lost| synced.map(|()| Some(lost)));
    // What it was to get may be nowhere else by now, where room was short.
    given.map_err(|e| {
        let text = format!("{e}; it may have lost what it had, which the checkpoint that was made for that has, unless that went meanwhile");
        Stop::After(Fail::at(&place, text), Left::Wanted)
    })
}

/// The permissions that a file has while it changes: what both grant. The group's are another group's where that changes, and where there
/// are access lists they are the most that these grant to anybody.
fn of_both(target: &File, now: &Metadata, had: &Had) -> u32 {
    let both = now.mode() & had.mode() & 0o777;
    let mut list = vec![0; 65_536];
    let list_now = sys::fgetxattr(target, ACCESS_LIST, list.as_mut_slice()).map(|bytes| &list[..bytes]);
    let list_then = had.xattrs.iter().find(|(name, _)| name.as_c_str() == ACCESS_LIST).map(|(_, list)| &**list);
    let both = if now.gid() == had.meta.gid() { both } else { of_no_group(both) };
    if list_now.ok() == list_then { both } else { both & !0o070 }
}

fn content(source: &File, target: &File, bytes: u64) -> io::Result<()> {
    target.set_len(0)?;
    // What was copied just now is not read once more, and who stops now would leave half of it.
    let (mut untold, onwards) = (|_: &Copied| {}, || false);
    Work::new(&mut untold, &onwards).content(source, target, bytes).map_err(super::Failed::why)
}

fn attributes(target: &File, had: &Had) -> io::Result<Lost> {
    let mut names = vec![0; 65_536];
    let listed = sys::flistxattr(target, names.as_mut_slice())?;
    for name in names[..listed].split_inclusive(|b| *b == 0) {
        let name = CStr::from_bytes_with_nul(name).map_err(io::Error::other)?;
        if had.xattrs.iter().any(|(kept, _)| kept.as_c_str() == name) {
            continue;
        }
        match sys::fremovexattr(target, name) {
            // trusted.* and security.* are root's.
            Ok(()) | Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
    }
    // What does not fit did not fit the copy, either, which lies beside it.
    let given = had.give(&Setting {
        owner: &|uid, gid| fchown(target, uid, gid),
        xattr: &|name, value| sys::fsetxattr(target, name, value, XattrFlags::empty()),
        is_same_volume: true,
    })?;
    target.set_permissions(Permissions::from_mode(given.mode))?;
    sys::futimens(target, &had.times())?;
    Ok(Lost { owner: given.is_owner_lost, permissions: given.is_less })
}
