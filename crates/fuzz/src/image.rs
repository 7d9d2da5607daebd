//! The target for whole images: changed, probed, checked, mounted read-only,
//! walked with all its past, mounted, used, closed, and looked at again.

use crate::alter;
use crate::choices::Choices;
use crate::guard::Guard;
use crate::memory;
use crate::volume::{self, Steps};
use nenrin_core::format::Ino;
use nenrin_core::{
    AllocateMode, At, CheckOptions, FileKind, Fs, MountOptions, NewInode, RenameMode, Seek, SetAttr, XattrMode, check,
    probe,
};
use nenrin_device::{BlockDevice, CrashDisk, Image};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// Memory that mounting, walking and using may take: the limits of the mount
/// (2 MiB), buffers of single requests, and what `check` keeps.
pub const MEMORY_MAX: usize = 48 << 20;
/// Changes of one image.
const CHANGES_MAX: usize = 6;
/// Directories, and entries of one, that a walk looks at.
const DIRECTORIES_MAX: usize = 40;
const ENTRIES_MAX: usize = 60;

/// An image with the places where it can be changed.
type Base = (&'static Image, Vec<alter::Place>);

fn bases() -> &'static [Base] {
    static BASES: OnceLock<Vec<Base>> = OnceLock::new();
    BASES.get_or_init(|| {
        let with_places = |i: &'static Image| (i, alter::places(&CrashDisk::from_image(i.clone()).without_history()));
        volume::volumes().iter().map(with_places).collect()
    })
}

/// The image of a case, and what was changed.
///
/// # Errors
/// When there is no image to begin with.
pub fn altered(case: &[u8]) -> Result<(Image, Vec<String>), String> {
    let mut c = Choices::new(case);
    let (image, places) = c.pick(bases()).ok_or("the volumes to begin with could not be made")?;
    let disk = CrashDisk::from_image((*image).clone()).without_history();
    let count = 1 + c.below(CHANGES_MAX);
    let said = (0..count).map(|_| alter::change(&disk, places, &mut c)).collect();
    Ok((disk.current(), said))
}

/// The target.
///
/// # Errors
/// What is wrong.
pub fn image(case: &[u8]) -> Result<(), String> {
    watched(case, try_all)
}

/// Tries the image of a case, within the limit of memory.
///
/// # Errors
/// What `tried` says is wrong, or that it took too much; and what was changed.
pub fn watched(case: &[u8], tried: fn(&Image) -> Result<(), String>) -> Result<(), String> {
    let (image, said) = altered(case)?;
    let (result, bytes) = memory::peak(|| tried(&image));
    result.map_err(|e| format!("{e}; changed: {}", said.join("; ")))?;
    if bytes > MEMORY_MAX {
        return Err(format!("{} MiB of memory were in use; changed: {}", bytes >> 20, said.join("; ")));
    }
    Ok(())
}

fn try_all(image: &Image) -> Result<(), String> {
    let guard = Arc::new(Guard::new(Arc::new(CrashDisk::from_image(image.clone()).without_history())));
    let device: Arc<dyn BlockDevice> = guard.clone();
    let wrong = |when: &str| guard.wrong().map_or(Ok(()), |e| Err(format!("{when}: {e}")));
    drop(probe(device.as_ref()));
    drop(check(std::slice::from_ref(&device), &CheckOptions { data: true }, &mut |_| {}));
    wrong("check")?;
    let clock = Arc::new(Steps::default());
    for no_recovery in [true, false] {
        let options = MountOptions { read_only: true, no_recovery, ..volume::options() };
        if let Ok(fs) = Fs::open(vec![device.clone()], clock.clone(), options) {
            walk(&fs, At::Live);
            for past in fs.checkpoints().iter().take(3) {
                walk(&fs, At::Past(past.cno));
            }
            let _ = fs.usage();
        }
        wrong("mounted read-only")?;
    }
    if let Ok(fs) = Fs::open(vec![device.clone()], clock.clone(), volume::options()) {
        work(&fs, &clock);
        wrong("mounted")?;
        walk(&fs, At::Live);
        drop(fs.close());
        drop(fs);
        wrong("closed")?;
        drop(check(std::slice::from_ref(&device), &CheckOptions { data: false }, &mut |_| {}));
        drop(Fs::open(vec![device.clone()], clock.clone(), volume::options()));
        wrong("mounted again")?;
    }
    Ok(())
}

/// Looks at everything within bounds. Errors are fine.
fn walk(fs: &Fs, at: At) {
    let mut open = vec![Ino::ROOT];
    let mut seen = BTreeSet::new();
    while let Some(dir) = open.pop() {
        if seen.len() >= DIRECTORIES_MAX || !seen.insert(dir) {
            continue;
        }
        let mut entries = Vec::new();
        drop(fs.readdir(at, dir, 0, &mut |e| {
            entries.push(e);
            entries.len() < ENTRIES_MAX
        }));
        for e in entries {
            drop(fs.lookup(at, dir, &e.name));
            if inode(fs, at, e.ino) == Some(FileKind::Directory) {
                open.push(e.ino);
            }
        }
    }
}

fn inode(fs: &Fs, at: At, ino: Ino) -> Option<FileKind> {
    let attr = fs.getattr(at, ino).ok()?;
    for name in fs.listxattr(at, ino).unwrap_or_default() {
        drop(fs.getxattr(at, ino, &name));
    }
    drop(fs.readlink(at, ino));
    for offset in [0, 40_000, attr.size / 2, attr.size.saturating_sub(5000), u64::MAX - 10] {
        drop(fs.read(at, ino, offset, 20_000));
    }
    drop(fs.seek(at, ino, 0, Seek::Hole));
    drop(fs.seek(at, ino, attr.size / 2, Seek::Data));
    Some(attr.kind())
}

/// Uses the volume. Errors are fine.
fn work(fs: &Fs, clock: &Steps) {
    let new = |mode| NewInode { mode, uid: 0, gid: 0, rdev: 0, target: b"" };
    let dir = fs.lookup(At::Live, Ino::ROOT, b"d").map_or(Ino::ROOT, |a| a.ino);
    let big = fs.lookup(At::Live, dir, b"big").map_or(Ino(20), |a| a.ino);
    drop(fs.write(big, 100, &[8; 9000], 0));
    drop(fs.write(big, 150_000, &[8; 150_000], 0));
    drop(fs.setattr(big, &SetAttr { size: Some(20_000), ..SetAttr::default() }));
    drop(fs.allocate(big, AllocateMode::Punch, 4096, 8192));
    drop(fs.setxattr(big, b"user.large", b"short", XattrMode::Any));
    drop(fs.removexattr(big, b"user.small"));
    drop(fs.fsync_wait(big));
    if let Ok(made) = fs.create(Ino::ROOT, b"made", &new(0o040_755)) {
        drop(fs.rename(dir, b"kept", made.ino, b"kept", RenameMode::Replace));
        drop(fs.rename(Ino::ROOT, b"made", dir, b"made", RenameMode::Replace));
        drop(fs.link(big, made.ino, b"link"));
    }
    for n in [300, 301, 600, 899] {
        drop(fs.unlink(dir, format!("name {n}").as_bytes()));
    }
    drop(fs.rename(dir, b"name 700", dir, b"name 701", RenameMode::Exchange));
    drop(fs.rename(dir, b"name 702", dir, b"name 703", RenameMode::Replace));
    for _ in 0..3 {
        clock.pass(6_000_000_000);
        drop(fs.tick());
    }
    drop(fs.checkpoint_create(Some(b"tuesday")));
    let all: Vec<_> = fs.checkpoints().iter().filter(|c| c.name.is_none()).map(|c| c.cno).take(4).collect();
    drop(fs.checkpoint_drop(&all));
    clock.pass(40_000_000_000);
    drop(fs.tick());
    drop(fs.sync_all());
    let _ = (fs.usage(), fs.segments(), fs.counters());
}
