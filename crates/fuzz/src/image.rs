//! The target for whole images: changed, probed, checked, mounted read-only,
//! walked with all its past, mounted, used, closed, and looked at again.

use crate::alter;
use crate::choices::Choices;
use crate::guard::Guard;
use crate::memory;
use crate::volume::{self, Steps};
use nenrin_core::format::Ino;
use nenrin_core::format::superblock::SLOTS_PER_AREA;
use nenrin_core::{
    AllocateMode, At, CheckOptions, FileKind, Fs, MountOptions, NewInode, RenameMode, Seek, SetAttr, Writer, XattrMode,
    check, probe,
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
    within_memory(&image, tried).map_err(|e| format!("{e}; changed: {}", said.join("; ")))
}

/// Tries an image, within the limit of memory.
///
/// # Errors
/// What `tried` says is wrong, or that it took too much.
pub fn within_memory(image: &Image, tried: fn(&Image) -> Result<(), String>) -> Result<(), String> {
    let (result, bytes) = memory::peak(|| tried(image));
    result?;
    if bytes > MEMORY_MAX {
        return Err(format!("{} MiB of memory were in use", bytes >> 20));
    }
    Ok(())
}

/// Checks the image, mounts it in every way, looks at everything and uses it.
///
/// # Errors
/// What is wrong.
pub fn try_all(image: &Image) -> Result<(), String> {
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

/// An image that can be mounted can be after it was written to, or nothing of it is.
///
/// # Errors
/// That it cannot be any more.
pub fn mounts_again(image: &Image) -> Result<(), String> {
    let device: Arc<dyn BlockDevice> = Arc::new(CrashDisk::from_image(image.clone()).without_history());
    let clock = Arc::new(Steps::default());
    let open = |read_only| {
        let options = MountOptions { read_only, ..volume::options() };
        Fs::open(vec![device.clone()], clock.clone(), options)
    };
    open(true).map_err(|e| format!("it cannot be mounted: {e}"))?;
    if let Ok(fs) = open(false) {
        work(&fs, &clock);
        // Each writes a root: none of before is left.
        (0..=SLOTS_PER_AREA).for_each(|_| drop(fs.device_forgive(0)));
        drop(fs.close());
    }
    open(true).map(drop).map_err(|e| format!("it cannot be mounted any more: {e}"))
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

/// Steps of a chore, after which it does not end.
const STEPS_MAX: usize = 5000;

/// Copies within the volume, and out of its past.
fn shares(fs: &Fs, dir: Ino, big: Ino) {
    let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let source = fs.lookup(At::Live, dir, b"source").map_or(big, |a| a.ino);
    let Ok(to) = fs.create(dir, b"another copy", &new) else { return };
    drop(fs.copy_range(source, 0, to.ino, 4096, 80_000, 0));
    drop(fs.copy_range(big, 0, source, 0, 20_000, 0));
    drop(fs.fsync_wait(to.ino));
    drop(fs.write(source, 4096, &[7; 9000], 0));
    for past in fs.checkpoints().iter().take(3) {
        let at = At::Past(past.cno);
        // As restore does: into a temporary name, then over the old one.
        let found = fs.lookup(at, dir, b"big").or_else(|_| fs.lookup(at, dir, b"source"));
        if let (Ok(was), Ok(to)) = (found, fs.create(dir, b".restoring", &new)) {
            drop(fs.copy_range_at(at, was.ino, 0, to.ino, 0, was.size.min(1 << 20), Writer::default()));
            drop(fs.fsync_wait(to.ino));
            drop(fs.rename(dir, b".restoring", dir, b"brought back", RenameMode::Replace));
        }
    }
    drop(fs.unlink(dir, b"copy 0"));
}

/// The states of names, and what is gone.
fn looks_back(fs: &Fs, dir: Ino) {
    for path in [&[&b"d"[..], b"big"][..], &[b"d", b"source"], &[b"d", b"copy 2"], &[b"d"], &[]] {
        drop(fs.history(path));
        drop(fs.gone(path));
    }
    drop(fs.last_seen(dir));
    let _ = fs.keeps_for();
    drop(fs.freed_by_each_snapshot());
}

/// Scrubbing and cleaning, to their ends.
fn chores(fs: &Fs) {
    let mut scrub = fs.scrub();
    for _ in 0..STEPS_MAX {
        if scrub.is_done() || fs.scrub_step(&mut scrub, 1 << 20).is_err() {
            break;
        }
    }
    let mut clean = fs.clean();
    for _ in 0..STEPS_MAX {
        if clean.is_done() || fs.clean_step(&mut clean, 64).is_err() {
            break;
        }
    }
    drop(fs.set_retention("1s:all forever:1d"));
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
    shares(fs, dir, big);
    for _ in 0..3 {
        clock.pass(6_000_000_000);
        drop(fs.tick());
    }
    looks_back(fs, dir);
    chores(fs);
    drop(fs.checkpoint_create(Some(b"tuesday")));
    let all: Vec<_> = fs.checkpoints().iter().filter(|c| c.name.is_none()).map(|c| c.cno).take(4).collect();
    drop(fs.checkpoint_drop(&all));
    clock.pass(40_000_000_000);
    drop(fs.tick());
    drop(fs.sync_all());
    let _ = (fs.usage(), fs.segments(), fs.counters());
}
