//! `nenrin mkfs`: makes a volume, in a new image file or on a block device.

use super::made::{Made, opened};
use crate::command::{Command, arguments, text_value};
use crate::device::{self, Device};
use crate::error::{At, Fail, INTERRUPTED, Outcome};
use crate::output::{self, Progress};
use crate::size::{parse_bytes, show_bytes};
use crate::{clock, mounts, report, signature, sys, tag};
use nenrin_core::heartbeat::refuse_to_replace;
use nenrin_core::{MkfsOptions, bytes_min, mkfs_fits, mkfs_on, probe};
use nenrin_device::{BLOCK_BYTES, Op, OpenMode};
use nenrin_format::superblock::{LABEL_BYTES_MAX, Profile};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
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
            Devices may differ in size. No profile can be changed later: under single and stripe a device that is added is no second copy.\n\
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

/// Largest device that a volume can use.
const BYTES_MAX: u64 = nenrin_format::COUNTER_MAX;

fn size(text: &str) -> Result<u64, Fail> {
    parse_bytes(text).ok_or_else(|| {
        let [min, max] = [bytes_min(), BYTES_MAX].map(show_bytes);
        Fail::usage(format!(
            "--size {text}: a size such as 512M or 10G is needed (units are K, M, G and T), from {min} to {max}"
        ))
    })
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

/// A device as it is, and as it is to be. All that can be refused of it was, and nothing was written.
struct Looked {
    path: PathBuf,
    /// What there is: it stays open, so that nobody else takes it.
    there: Option<Device>,
    is_file: bool,
    /// Bytes that there are, and that there are to be.
    had: u64,
    bytes: u64,
}

fn make(paths: &[PathBuf], wishes: &Wishes) -> Outcome {
    // Whoever ends this finds no files that are half made.
    sys::block_ending_signals().at("signals")?;
    let all = look_at_all(paths, wishes)?;
    let place = paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(",");
    let refused = |e: nenrin_core::Error| device::describe_volume(Path::new(&place), None, &e);
    let options = options(paths, wishes)?;
    let lengths: Vec<(String, u64)> = all.iter().map(|l| (l.path.display().to_string(), l.bytes)).collect();
    mkfs_fits(&lengths, &options).map_err(refused)?;
    let there: Vec<Device> = all.iter().filter_map(|l| l.there.clone()).collect();
    refuse_to_replace(&there, clock::HostClock::shared().as_ref()).map_err(refused)?;
    drop(there);
    let mut made = Made::default();
    // Nothing is overwritten before all of them have their lengths.
    let result = sized(&all, wishes, &mut made).and_then(|devices| {
        paths.iter().zip(&devices).try_for_each(|(path, device)| clear(path, device, wishes))?;
        // From here on it is nearly done.
        paths.iter().try_for_each(|path| not_interrupted(path))?;
        write(paths, &devices, wishes, &options)
    });
    if result.is_err() {
        made.take_back();
    }
    result
}

fn look_at_all(paths: &[PathBuf], wishes: &Wishes) -> Result<Vec<Looked>, Fail> {
    let (mut all, mut seen) = (Vec::new(), Vec::new());
    for path in paths {
        let identities = match fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => vec![identity_of_new(path)],
            _ => device::identities(path),
        };
        if identities.iter().any(|i| seen.contains(i)) {
            return Err(Fail::at(path.display(), "named twice; each device of a volume is another one"));
        }
        seen.extend(identities);
        all.push(look_at(path, wishes)?);
    }
    Ok(all)
}

/// What tells a file that is to be made from others.
fn identity_of_new(path: &Path) -> String {
    let above = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let above = above.canonicalize().unwrap_or_else(|_| above.to_owned());
    // Of a path that is no text all of it.
    format!("new {:?}", above.join(path.file_name().unwrap_or_default()))
}

/// Looks at one device: it may be used, and is or will be long enough.
fn look_at(path: &Path, wishes: &Wishes) -> Result<Looked, Fail> {
    tag::refuse(path)?;
    let meta = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let bytes = bytes_of_new(path, wishes)?;
            return Ok(Looked { path: path.to_owned(), there: None, is_file: true, had: 0, bytes });
        }
        other => other.at(path.display())?,
    };
    let is_file = meta.is_file();
    if !is_file && !meta.file_type().is_block_device() {
        return Err(Fail::at(path.display(), "neither a regular file nor a block device"));
    }
    // Before anything else: a volume in use is no matter of --force.
    let there = device::open(path, OpenMode::OWNER)?;
    refuse_content(path, is_file, wishes.force)?;
    if !is_file && wishes.size.is_some() {
        return Err(Fail::usage(format!(
            "{}: --size is for image files; a block device is used whole",
            path.display()
        )));
    }
    // Now that nobody else changes that.
    let had = if is_file { fs::metadata(path).at(path.display())?.len() } else { there.geometry().bytes };
    let bytes = wishes.size.map_or(there.geometry().bytes, whole_blocks);
    enough(path, wishes.size.unwrap_or(bytes))?;
    Ok(Looked { path: path.to_owned(), there: Some(there), is_file, had, bytes })
}

const fn whole_blocks(bytes: u64) -> u64 {
    bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}

/// Gives all of them their lengths, with room for that on the host; shorter ones last, since that cannot be taken back.
fn sized(all: &[Looked], wishes: &Wishes, made: &mut Made) -> Result<Vec<Device>, Fail> {
    let mut devices = Vec::new();
    for one in all {
        let path = &one.path;
        devices.push(match &one.there {
            None => made.image(path, one.bytes, wishes.sparse)?,
            Some(there) => {
                if one.is_file && (one.bytes > one.had || !wishes.sparse) {
                    made.lengthen(path, there, one.had, one.bytes, wishes.sparse)?;
                }
                there.clone()
            }
        });
    }
    let (shorter, others): (Vec<_>, Vec<_>) =
        all.iter().zip(&devices).partition(|(one, _)| one.is_file && wishes.size.is_some() && one.bytes < one.had);
    others.into_iter().try_for_each(|(one, device)| has_length(one, device))?;
    for (one, device) in shorter {
        opened(&one.path, device)?.set_len(one.bytes).at(one.path.display())?;
        has_length(one, device)?;
    }
    Ok(devices)
}

/// That it has the length by now that it is to have.
fn has_length(one: &Looked, device: &Device) -> Result<(), Fail> {
    device.remeasure().at(one.path.display())?;
    match device.geometry().bytes == one.bytes {
        true => Ok(()),
        false => Err(Fail::at(one.path.display(), "got another length meanwhile")),
    }
}

/// Whether a device that is there may become one of a volume.
///
/// # Errors
/// It is in use, or holds something and `force` is not set.
pub(super) fn may_overwrite(path: &Path, force: bool) -> Result<(), Fail> {
    let meta = fs::metadata(path).at(path.display())?;
    drop(device::open(path, OpenMode::OWNER)?);
    refuse_content(path, meta.is_file(), force)
}

/// Makes a device ready for a volume that is there: a new image file, or what may be overwritten, which its owner does when it takes it.
pub(super) fn prepare_for(path: &Path, size: Option<u64>, sparse: bool, force: bool) -> Result<Made, Fail> {
    let wishes = Wishes { size, sparse, force, ..Wishes::default() };
    // Before anything starts a thread, which would take them.
    sys::block_ending_signals().at("signals")?;
    let looked = look_at(path, &wishes)?;
    let (is_file, had, bytes) = (looked.is_file, looked.had, looked.bytes);
    if size.is_some() && bytes < whole_blocks(had) {
        let text = format!("has {had} bytes, more than --size says; make it shorter, or leave --size away");
        return Err(Fail::at(path.display(), text));
    }
    let mut made = Made::default();
    let ready = sized(&[looked], &wishes, &mut made).and_then(|devices| {
        // What is new of it becomes the host's for good.
        let grown = is_file && !sparse && bytes > had;
        devices
            .iter()
            .filter(|_| grown)
            .try_for_each(|d| fill(path, d, had.next_multiple_of(BLOCK_BYTES as u64)..bytes))
    });
    let ready = ready.and_then(|()| not_interrupted(path));
    if ready.is_err() {
        made.take_back();
    }
    ready?;
    // From here on it goes on without us.
    made.hand_over();
    sys::allow_ending_signals().at("signals")?;
    Ok(made)
}

/// Whether something new there would be a device, as in /dev, but not in what is mounted below it, as /dev/shm.
fn is_for_devices(path: &Path) -> bool {
    let device = |p: &Path| fs::metadata(p).map(|m| m.dev()).ok();
    let above = mounts::above(path).canonicalize().unwrap_or_else(|_| path.to_owned());
    above.starts_with("/dev") && (device(&above).is_none() || device(&above) == device(Path::new("/dev")))
}

/// The length of a file that is to be made.
fn bytes_of_new(path: &Path, wishes: &Wishes) -> Result<u64, Fail> {
    if is_for_devices(path) {
        return Err(Fail::at(path.display(), "no such device"));
    }
    let Some(bytes) = wishes.size else {
        return Err(Fail::at(path.display(), "no such file or device; --size SIZE makes an image file of that size"));
    };
    enough(path, bytes).map(|()| whole_blocks(bytes))
}

fn enough(path: &Path, bytes: u64) -> Result<(), Fail> {
    let [min, max] = [bytes_min(), BYTES_MAX].map(|bytes| format!("{bytes} bytes ({})", show_bytes(bytes)));
    let what = match bytes {
        n if n < bytes_min() => "too small for a volume",
        n if n > BYTES_MAX => "too large for a device of a volume",
        _ => return Ok(()),
    };
    Err(Fail::at(path.display(), format!("{bytes} bytes are {what}; the smallest is {min}, the largest {max}")))
}

/// Nothing is left on a device that others would take for theirs.
fn clear(path: &Path, device: &Device, wishes: &Wishes) -> Result<(), Fail> {
    let bytes = device.geometry().bytes;
    if fs::metadata(path).at(path.display())?.is_file() && !wishes.sparse {
        return fill(path, device, 0..bytes);
    }
    [0, bytes - WIPE_BYTES].into_iter().try_for_each(|offset| zero(path, device, offset, WIPE_BYTES))
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

/// Writes zeros over an image, so that its blocks are the host's for good.
fn fill(path: &Path, device: &Device, range: Range<u64>) -> Result<(), Fail> {
    let mut progress = Progress::new();
    let mut offset = range.start;
    while offset < range.end {
        not_interrupted(path)?;
        let now = STEP_BYTES.min(range.end - offset);
        zero(path, device, offset, now)?;
        offset += now;
        progress.at("allocating", offset, range.end);
    }
    device.flush().map_err(|e| full(path, &e))
}

/// Fails where somebody has asked for the end.
fn not_interrupted(path: &Path) -> Result<(), Fail> {
    match sys::ending_signal_waits() {
        true => Err(Fail::at(path.display(), "interrupted").with_code(INTERRUPTED)),
        false => Ok(()),
    }
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

fn options(paths: &[PathBuf], wishes: &Wishes) -> Result<MkfsOptions, Fail> {
    let (uid, gid) = paths.first().map_or((0, 0), |path| owner(path));
    let usual = if paths.len() > 1 { Profile::Mirror } else { Profile::Single };
    Ok(MkfsOptions {
        label: wishes.label.clone().into_bytes(),
        uuid: random_uuid().at("/dev/urandom")?,
        hash_key: sys::random().at("/dev/urandom")?,
        uid,
        gid,
        profile: wishes.profile.unwrap_or(usual),
        ..MkfsOptions::default()
    })
}

fn write(paths: &[PathBuf], devices: &[Device], wishes: &Wishes, options: &MkfsOptions) -> Outcome {
    let [path, ..] = paths else { return Err(COMMAND.misuse("no device given")) };
    let place = paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(",");
    let profile = options.profile;
    mkfs_on(devices, &clock::HostClock::shared(), options)
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
    if let Some(other) = tag::also_labelled(&options.label, &options.uuid, paths) {
        let text = "has this label, too: LABEL= means neither of them, UUID= does";
        output::notice(format!("{}: {text}", other.display()));
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
