//! `nenrin mkfs`: makes a volume, in a new image file or on a block device.

use crate::command::{Command, arguments, text_value};
use crate::device::{self, Device};
use crate::error::{At, Fail, Outcome};
use crate::output::{self, Progress};
use crate::size::{parse_bytes, show_bytes};
use crate::{clock, mounts, report, signature, sys};
use nenrin_core::{MkfsOptions, bytes_min, mkfs_on, probe};
use nenrin_device::{BLOCK_BYTES, Op, OpenMode};
use nenrin_format::superblock::{LABEL_BYTES_MAX, Profile};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The command.
pub const COMMAND: Command = Command {
    name: "mkfs",
    usage: &["mkfs [--size SIZE] [--label LABEL] [--profile PROFILE] [--sparse] [--force] [--json] DEVICE..."],
    about: "Makes an empty volume on block devices or in image files",
    options: &[
        ("--size SIZE", "size of each image file, which is made, or made so long; K, M, G, T are powers of 1024"),
        ("--label LABEL", "a name for the volume, at most 64 bytes"),
        (
            "--profile PROFILE",
            "layout over devices: single (one after the other), stripe, parity, or mirror, the default for several",
        ),
        ("--sparse", "do not allocate the image file; syncs are slower then and the host may become full"),
        ("--force", "overwrite what is there: another file system, or anything else that does not begin with zeros"),
        ("--json", "print what was made as JSON"),
    ],
    notes: "mirror keeps two copies of everything, on different devices, and goes on without any one of them. So does parity, on three\n\
            or more, with room for all but one of them. stripe spreads everything over all devices and bears no loss, as single.\n\
            Devices may differ in size.\n\
            A device that was used before needs --force, unless its first 256K are zeros, as after blkdiscard on most, and nothing\n\
            that is known (a second partition table, RAID, ZFS) is marked at its end.\n\
            An image file is allocated whole by writing zeros, so that later syncs never wait for the host's journal. On a\n\
            host that copies on write the file is marked NOCOW. One that is made only its owner can read (mode 600); one that\n\
            is there keeps its mode. The root directory belongs to who runs this (under sudo, to root).",
    examples: &[
        ("mkfs --size 10G work.img", "a volume of 10 GiB in a new file"),
        ("mkfs --label backup /dev/sdb1", "a volume on a partition"),
        ("mkfs --profile mirror /dev/sdb1 /dev/sdc1", "a volume that survives one of two partitions"),
    ],
    run,
};

/// Bytes cleared at both ends, so that no old signature is left for others to find.
const WIPE_BYTES: u64 = 1 << 20;
/// Zeros written between two looks at the progress.
const STEP_BYTES: u64 = 16 << 20;

#[derive(Default)]
struct Wishes {
    size: Option<u64>,
    label: String,
    sparse: bool,
    force: bool,
    json: bool,
    profile: Option<Profile>,
}

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut wishes = Wishes::default();
    let given = arguments(&COMMAND, parser, usize::MAX, |flag, parser| {
        match flag.shown().as_str() {
            "--size" | "-s" => wishes.size = Some(size(&text_value(parser)?)?),
            "--label" | "-L" => wishes.label = text_value(parser)?,
            "--profile" => wishes.profile = Some(profile(&text_value(parser)?)?),
            "--sparse" => wishes.sparse = true,
            "--force" | "-f" => wishes.force = true,
            "--json" => wishes.json = true,
            // mkfs(8) passes these on.
            "-t" => drop(text_value(parser)?),
            "-V" | "-v" => {}
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if wishes.label.len() > LABEL_BYTES_MAX {
        return Err(Fail::usage(format!("the label has {} bytes; {LABEL_BYTES_MAX} fit", wishes.label.len())));
    }
    match given.as_slice() {
        [] => Err(COMMAND.misuse("no device given")),
        [_] if !matches!(wishes.profile, None | Some(Profile::Single)) => {
            Err(Fail::usage("--profile stripe and mirror need at least two devices, parity three"))
        }
        [_, _] if wishes.profile == Some(Profile::Parity) => {
            Err(Fail::usage("--profile parity needs at least three devices; mirror bears the loss of one with two"))
        }
        paths => make(&paths.iter().map(PathBuf::from).collect::<Vec<_>>(), &wishes),
    }
}

fn size(text: &str) -> Result<u64, Fail> {
    parse_bytes(text).ok_or_else(|| Fail::usage(format!("--size {text}: a size such as 512M or 10G is needed")))
}

fn profile(text: &str) -> Result<Profile, Fail> {
    match text {
        "single" => Ok(Profile::Single),
        "stripe" => Ok(Profile::Stripe),
        "mirror" => Ok(Profile::Mirror),
        "parity" => Ok(Profile::Parity),
        _ => Err(Fail::usage(format!("--profile {text}: there are single, stripe, mirror and parity"))),
    }
}

fn make(paths: &[PathBuf], wishes: &Wishes) -> Outcome {
    let (mut new, mut devices, mut seen, mut longer) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut prepare_all = || -> Result<(), Fail> {
        // Nothing is touched before all of them were looked at.
        for path in paths {
            if let (Ok(_), false) = (fs::metadata(path), paths.len() == 1) {
                look(path, wishes)?;
            }
        }
        for path in paths {
            let is_new = match fs::metadata(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    new.push(new_image(path, wishes)?);
                    true
                }
                Err(e) => return Err(Fail::at(path.display(), e)),
                Ok(_) => false,
            };
            let identities = device::identities(path);
            if identities.iter().any(|i| seen.contains(i)) {
                return Err(Fail::at(path.display(), "named twice; each device of a volume is another one"));
            }
            seen.extend(identities);
            devices.push(prepare(path, wishes, is_new, &mut longer)?);
        }
        Ok(())
    };
    let prepared = prepare_all();
    let result = prepared.and_then(|()| write(paths, &devices, wishes));
    if result.is_err() {
        // Half a volume in files that were not there before helps nobody.
        for path in new {
            let _ = fs::remove_file(path);
        }
        take_back(&longer);
    }
    result
}

/// An image file that was there and was made longer, and how long it was.
type Longer = (File, u64);

/// The host may be full with what they were made longer by.
fn take_back(longer: &[Longer]) {
    for (file, bytes) in longer {
        let _ = file.set_len(*bytes);
    }
}

/// Whether a device that is there may become one of a volume.
///
/// # Errors
/// It is in use, or holds something and `force` is not set.
pub(super) fn may_overwrite(path: &Path, force: bool) -> Result<(), Fail> {
    look(path, &Wishes { force, ..Wishes::default() })
}

/// Makes a device ready for a volume that is there: a new image file, or what may be overwritten. Whether it was made.
pub(super) fn prepare_for(path: &Path, size: Option<u64>, sparse: bool, force: bool) -> Result<bool, Fail> {
    let wishes = Wishes { size, sparse, force, ..Wishes::default() };
    let is_new = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            new_image(path, &wishes)?;
            true
        }
        Err(e) => return Err(Fail::at(path.display(), e)),
        Ok(_) => false,
    };
    let mut longer = Vec::new();
    let prepared = prepare(path, &wishes, is_new, &mut longer);
    if prepared.is_err() {
        take_back(&longer);
        if is_new {
            let _ = fs::remove_file(path);
        }
    }
    prepared.map(|_| is_new)
}

/// What would be refused later.
fn look(path: &Path, wishes: &Wishes) -> Result<(), Fail> {
    let meta = fs::metadata(path).at(path.display())?;
    drop(device::open(path, OpenMode::OWNER)?);
    refuse_content(path, meta.is_file(), wishes.force)
}

/// Whether something new there would be a device, as in /dev, but not in what is mounted below it, as /dev/shm.
fn is_for_devices(path: &Path) -> bool {
    let device = |p: &Path| fs::metadata(p).map(|m| m.dev()).ok();
    let above = mounts::above(path).canonicalize().unwrap_or_else(|_| path.to_owned());
    above.starts_with("/dev") && (device(&above).is_none() || device(&above) == device(Path::new("/dev")))
}

/// Creates an empty file of the wanted size.
fn new_image(path: &Path, wishes: &Wishes) -> Result<PathBuf, Fail> {
    if is_for_devices(path) {
        return Err(Fail::at(path.display(), "no such device"));
    }
    let Some(bytes) = wishes.size else {
        return Err(Fail::at(path.display(), "no such file or device; --size SIZE makes an image file of that size"));
    };
    enough(path, bytes)?;
    // What is in the volume is for those whom its mount lets in.
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).at(path.display())?;
    let sized = size_image(path, &file, bytes, wishes.sparse);
    if sized.is_err() {
        let _ = fs::remove_file(path);
    }
    sized.map(|()| path.to_owned())
}

fn enough(path: &Path, bytes: u64) -> Result<(), Fail> {
    if bytes < bytes_min() {
        let text = format!("{bytes} bytes are too small for a volume; the smallest is {} bytes ({})", bytes_min(), {
            show_bytes(bytes_min())
        });
        return Err(Fail::at(path.display(), text));
    }
    Ok(())
}

/// Makes an image file `bytes` long, and has the host reserve the space.
fn size_image(path: &Path, file: &File, bytes: u64, sparse: bool) -> Result<(), Fail> {
    if file.metadata().at(path.display())?.len() == 0 {
        // Best effort: most hosts neither need nor know it.
        sys::set_nocow(file);
    }
    let bytes = bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let sized = if sparse { file.set_len(bytes) } else { sys::reserve(file, bytes) };
    sized.map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Fail::at(
            path.display(),
            format!("the host has no room for {}; choose a smaller --size, or --sparse", show_bytes(bytes)),
        ),
        Some(libc::EFBIG) => Fail::at(
            path.display(),
            format!("the host cannot hold a file of {}; choose a smaller --size", show_bytes(bytes)),
        ),
        _ => Fail::at(path.display(), e),
    })
}

/// Opens the device for this process alone, after a look at what is there. What it makes longer it adds to `longer`.
fn prepare(path: &Path, wishes: &Wishes, new: bool, longer: &mut Vec<Longer>) -> Result<Device, Fail> {
    let meta = fs::metadata(path).at(path.display())?;
    let is_file = meta.is_file();
    if !is_file && !meta.file_type().is_block_device() {
        return Err(Fail::at(path.display(), "neither a regular file nor a block device"));
    }
    if !is_file && wishes.size.is_some() {
        return Err(Fail::usage(format!(
            "{}: --size is for image files; a block device is used whole",
            path.display()
        )));
    }
    if !new {
        // Before anything else: a volume in use is no matter of --force.
        drop(device::open(path, OpenMode::OWNER)?);
        refuse_content(path, is_file, wishes.force)?;
    }
    let Some(bytes) = wishes.size.filter(|_| !new) else { return cleared(path, is_file, wishes) };
    enough(path, bytes)?;
    let file = OpenOptions::new().read(true).write(true).open(path).at(path.display())?;
    if bytes < meta.len() {
        file.set_len(bytes).at(path.display())?;
    }
    if bytes > meta.len() {
        longer.push((file.try_clone().at(path.display())?, meta.len()));
    }
    size_image(path, &file, bytes, wishes.sparse)?;
    cleared(path, is_file, wishes)
}

/// The device, with nothing left on it that others would take for theirs.
fn cleared(path: &Path, is_file: bool, wishes: &Wishes) -> Result<Device, Fail> {
    let device = device::open(path, OpenMode::OWNER)?;
    let bytes = device.geometry().bytes;
    enough(path, bytes)?;
    if is_file && !wishes.sparse {
        fill(path, &device, bytes)?;
    } else {
        for offset in [0, bytes - WIPE_BYTES] {
            zero(path, &device, offset, WIPE_BYTES)?;
        }
    }
    Ok(device)
}

/// Refuses a device that holds something, unless that was meant.
fn refuse_content(path: &Path, is_file: bool, force: bool) -> Result<(), Fail> {
    if force {
        return Ok(());
    }
    let holds = match signature::occupant(path).at(path.display())? {
        None => return Ok(()),
        Some(signature::UNKNOWN) if is_file => "a file that has content".to_owned(),
        Some(what) => format!("holds {what}"),
    };
    Err(Fail::at(path.display(), format!("{holds}; --force overwrites it, and its content is lost")))
}

/// Writes zeros over the whole image, so that its blocks are the host's for good.
fn fill(path: &Path, device: &Device, bytes: u64) -> Result<(), Fail> {
    let mut progress = Progress::new();
    let mut offset = 0;
    while offset < bytes {
        let now = STEP_BYTES.min(bytes - offset);
        zero(path, device, offset, now)?;
        offset += now;
        progress.at("allocating", offset, bytes);
    }
    device.flush().map_err(|e| full(path, &e))
}

fn zero(path: &Path, device: &Device, offset: u64, bytes: u64) -> Result<(), Fail> {
    device.submit(Op::Zero { offset, bytes }).wait().map(drop).map_err(|e| full(path, &e))
}

fn full(path: &Path, e: &nenrin_device::DeviceError) -> Fail {
    match e {
        nenrin_device::DeviceError::Os(libc::ENOSPC) => {
            Fail::at(path.display(), "the host is full; choose a smaller --size, or --sparse")
        }
        _ => device::describe(path, OpenMode::OWNER, e),
    }
}

fn write(paths: &[PathBuf], devices: &[Device], wishes: &Wishes) -> Outcome {
    let [path, ..] = paths else { return Err(COMMAND.misuse("no device given")) };
    let place = paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(",");
    let (uid, gid) = owner(path);
    let usual = if devices.len() > 1 { Profile::Mirror } else { Profile::Single };
    let profile = wishes.profile.unwrap_or(usual);
    let options = MkfsOptions {
        label: wishes.label.clone().into_bytes(),
        uuid: random_uuid().at("/dev/urandom")?,
        hash_key: sys::random().at("/dev/urandom")?,
        uid,
        gid,
        profile,
        ..MkfsOptions::default()
    };
    mkfs_on(devices, &clock::HostClock::shared(), &options)
        .map_err(|e| device::describe_volume(Path::new(&place), None, &e))?;
    let superblock = probe(devices[0].as_ref()).at(&place)?.newest().at(&place)?.clone();
    let segments: u64 = superblock.segments();
    let segment_bytes = u64::from(superblock.segment_blocks) * BLOCK_BYTES as u64;
    let uuid = report::show_uuid(&superblock.uuid);
    if wishes.json {
        output::json(&serde_json::json!({
            "device": path.display().to_string(),
            "devices": paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>(),
            "profile": profile.name(),
            "uuid": uuid,
            "label": wishes.label,
            "bytes": segments * segment_bytes,
            "segments": segments,
            "segment_bytes": segment_bytes,
        }))?;
    } else {
        output::line(format!(
            "{place}: volume {uuid}, {}{} in {segments} segments of {}",
            if devices.len() > 1 {
                format!("{} of {} devices, ", profile.name(), devices.len())
            } else {
                String::new()
            },
            show_bytes(segments * segment_bytes),
            show_bytes(segment_bytes)
        ));
    }
    Ok(0)
}

/// Whose the root directory shall be: who runs this.
fn owner(path: &Path) -> (u32, u32) {
    // /proc/self shows this process's effective user and group.
    fs::metadata("/proc/self").or_else(|_| fs::metadata(path)).map_or((0, 0), |m| (m.uid(), m.gid()))
}

/// A random UUID says so in its version and variant.
pub(super) fn random_uuid() -> io::Result<[u8; 16]> {
    let mut bytes = sys::random()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}
