//! The block devices of this machine, and which volume each of them is part of, as its first blocks say.
//!
//! Nothing is written, and nobody waits for a device that does not answer longer than has to be.
//!
//! | the first blocks of a device | whose it is |
//! |---|---|
//! | hold a root slot | the volume's that the newest of them names |
//! | hold a root slot behind the mark of something else | that one's: who made it left the slots |
//! | hold slots that are damaged, or cannot be read | the volume's that the slots at its end name |
//! | hold neither | nobody's, whatever is at its end: what was made anew since may have left that |

use crate::{device, output, signature, sys};
use nenrin_core::bytes_min;
use nenrin_format::BLOCK_BYTES;
use nenrin_format::superblock::{AREA_BLOCKS, SLOT_BLOCK, SLOTS_PER_AREA, SUPERBLOCK_MAGIC, SlotHead, Superblock};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// What a device says of its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sign {
    /// What every version says in the same place.
    pub head: SlotHead,
    /// All of it, where this program understands that.
    pub root: Option<Superblock>,
}

impl Sign {
    /// What a slot says, if it is one.
    fn of(slot: &[u8]) -> Option<Self> {
        Some(Self { head: SlotHead::decode(slot).ok()?, root: Superblock::decode(slot).ok() })
    }
    /// The name of the volume; empty where it has none, or none that this program understands.
    pub fn label(&self) -> &[u8] {
        self.root.as_ref().map_or(&[], |sb| &sb.label)
    }
    /// The identity of the device itself. Two devices in one place of a volume differ in it: one has replaced the other.
    pub fn own(&self) -> Option<[u8; 16]> {
        self.root.as_ref().and_then(own_identity)
    }
    /// The same where the volume has several devices.
    pub fn own_of_several(&self) -> Option<[u8; 16]> {
        self.root.as_ref().filter(|sb| sb.members() > 1).and_then(own_identity)
    }
    /// Whether it says that there is no other device of the volume.
    pub fn is_alone(&self) -> bool {
        self.root.as_ref().is_some_and(|sb| sb.members() == 1)
    }
    /// Whether its table of devices has the other one.
    pub fn knows(&self, other: &Self) -> bool {
        self.root.as_ref().is_some_and(|sb| sb.devices.iter().any(|d| Some(d.uuid) == other.own()))
    }
    /// Which of several devices of a volume knows most of it.
    pub fn rank(&self) -> (u64, u64) {
        (self.root.as_ref().map_or(0, Superblock::table_generation), self.head.generation.0)
    }
}

/// See [`Sign::own`].
pub fn own_identity(sb: &Superblock) -> Option<[u8; 16]> {
    sb.devices.get(usize::from(sb.device_index)).map(|d| d.uuid)
}

/// The slots of an area, as far as they can be read.
#[derive(Default)]
struct Slots {
    /// The newest, as it is on the device.
    newest: Option<(Sign, Vec<u8>)>,
    /// There is one that is not as it was written, or that cannot be read.
    is_damaged: bool,
    /// Why one cannot be read.
    unread: Option<io::Error>,
}

fn slots(file: &File, area: u64) -> Slots {
    let mut slots = Slots::default();
    let mut block = vec![0; BLOCK_BYTES];
    for slot in SLOT_BLOCK..SLOT_BLOCK + SLOTS_PER_AREA {
        if let Err(e) = file.read_exact_at(&mut block, (area + slot) * BLOCK_BYTES as u64) {
            (slots.is_damaged, slots.unread) = (true, Some(e));
            continue;
        }
        let Some(sign) = Sign::of(&block) else {
            slots.is_damaged |= block.starts_with(&SUPERBLOCK_MAGIC);
            continue;
        };
        // What is understood is told rather than what is newer.
        let rank = |s: &Sign| (s.root.is_some(), s.head.generation);
        if slots.newest.as_ref().is_none_or(|(known, _)| rank(known) < rank(&sign)) {
            slots.newest = Some((sign, block.clone()));
        }
    }
    slots
}

/// Which volume a block device, or an image file, is part of.
///
/// # Errors
/// It is neither; it cannot be opened, or read.
pub fn sign_of(path: &Path) -> io::Result<Option<Sign>> {
    newest_slot(path).map(|newest| newest.map(|(sign, _)| sign))
}

/// The same, with the slot that says so.
fn newest_slot(path: &Path) -> io::Result<Option<(Sign, Vec<u8>)>> {
    // Of what else there may be, as a pipe, opening waits.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("neither a regular file nor a block device"));
    }
    let blocks = device::bytes_of(&file)? / BLOCK_BYTES as u64;
    if blocks < 2 * AREA_BLOCKS {
        return Ok(None);
    }
    let mut before = vec![0; SLOT_BLOCK as usize * BLOCK_BYTES];
    let is_read = file.read_exact_at(&mut before, 0).is_ok();
    if is_read && signature::find(&before).is_some_and(|found| found != signature::BOOT_SECTOR) {
        return Ok(None);
    }
    let first = slots(&file, 0);
    if first.newest.is_some() || !first.is_damaged {
        return Ok(first.newest);
    }
    let last = slots(&file, blocks - AREA_BLOCKS);
    match (last.newest, first.unread) {
        (None, Some(e)) => Err(e),
        (newest, _) => Ok(newest),
    }
}

/// How long devices are waited for that do not answer.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// While what is looked for was not found: a disk that sleeps takes its time.
    pub missing: Duration,
    /// Once it was.
    pub found: Duration,
}

impl Patience {
    /// Of somebody who needs a volume.
    pub const USUAL: Self = Self { missing: Duration::from_secs(30), found: Duration::from_secs(3) };
    /// Of somebody who looks again, or only asks.
    pub const SHORT: Self = Self { missing: Duration::from_secs(3), found: Duration::from_secs(3) };
}

/// What came of looking at a device.
#[derive(Debug)]
pub struct Seen {
    /// The device.
    pub path: PathBuf,
    /// The volume that it is part of, if any; or why that is not known.
    pub sign: io::Result<Option<Sign>>,
}

/// Looks at devices, all at once, since one that does not answer must not keep us from others. Who has not answered when patience
/// ends is told as [`io::ErrorKind::TimedOut`]. `is_enough`: nothing is missing any more.
///
/// A process of its own does that: a thread that opens, reads or closes a dead device may not be ended, nor may its process, and
/// that would keep what it has open for as long.
pub fn look(paths: Vec<PathBuf>, patience: Patience, is_enough: impl Fn(&[Sign]) -> bool) -> Vec<Seen> {
    if paths.is_empty() {
        return Vec::new();
    }
    let (mut child, answers) = match start(&paths) {
        Ok(started) => started,
        Err(e) => {
            let why = || Err(io::Error::new(e.kind(), e.to_string()));
            return paths.into_iter().map(|path| Seen { path, sign: why() }).collect();
        }
    };
    let (seen, is_over) = collect(paths, answers, patience, is_enough);
    if is_over {
        let _ = child.wait();
    } else {
        leave_to_its_end(child);
    }
    seen
}

/// Ends a process that may hang for long yet. Nobody waits for that but a thread, so that nothing of it is left when it has ended.
fn leave_to_its_end(mut child: Child) {
    let _ = child.kill();
    aside(move || drop(child.wait()));
}

/// Does something on a thread of its own, which no signal ends the process by: who mounts in the foreground blocks them only later.
fn aside(work: impl FnOnce() + Send + 'static) {
    drop(sys::spawned_deaf(|| thread::Builder::new().stack_size(STACK_BYTES).spawn(work)));
}

/// What `nenrin probe` gets first when it is to look for another process. Not for users.
pub const LOOK: &str = "--look";

/// Starts who looks.
fn start(paths: &[PathBuf]) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["probe", LOOK]).args(paths);
    // Nothing of ours stays open there.
    command.stdin(Stdio::null()).stdout(OwnedFd::from(theirs)).stderr(Stdio::null()).current_dir("/");
    Ok((command.spawn()?, ours))
}

/// Memory of a thread that reads a few blocks.
const STACK_BYTES: usize = 256 << 10;

/// Looks for another process: tells on standard output of each device as it answers.
pub fn look_for_another(paths: Vec<PathBuf>) {
    sys::close_inherited();
    let (sender, answers) = mpsc::channel();
    for (at, path) in paths.into_iter().enumerate() {
        let (sender, again) = (sender.clone(), sender.clone());
        let ask = move || drop(sender.send(told(at, newest_slot(&path).map(|newest| newest.map(|(_, slot)| slot)))));
        if let Err(e) = thread::Builder::new().stack_size(STACK_BYTES).spawn(ask) {
            drop(again.send(told(at, Err(e))));
        }
    }
    drop(sender);
    let mut out = io::stdout().lock();
    for told in answers {
        if out.write_all(&told).and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// Kinds of answers: there is no volume; the slot that names one; the number of an error; the text of one.
const NONE: u8 = 0;
const SLOT: u8 = 1;
const NUMBER: u8 = 2;
const TEXT: u8 = 3;
/// The device's place in the list, the kind, and how many bytes follow.
const HEADER_BYTES: usize = 9;

/// An answer, as it is sent.
fn told(at: usize, newest: io::Result<Option<Vec<u8>>>) -> Vec<u8> {
    let (kind, bytes) = match newest {
        Ok(None) => (NONE, Vec::new()),
        Ok(Some(slot)) => (SLOT, slot),
        Err(e) => match e.raw_os_error() {
            Some(number) => (NUMBER, number.to_le_bytes().to_vec()),
            None => (TEXT, e.to_string().into_bytes()),
        },
    };
    let mut out = (at as u32).to_le_bytes().to_vec();
    out.push(kind);
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
    out
}

/// The first answer of what came, and its length; nothing while it is not all there.
fn heard(bytes: &[u8]) -> Option<(usize, io::Result<Option<Sign>>, usize)> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (at, kind, length) = (word(0)? as usize, *bytes.get(4)?, word(5)? as usize);
    let body = bytes.get(HEADER_BYTES..HEADER_BYTES.checked_add(length)?)?;
    let sign = match kind {
        NONE => Ok(None),
        SLOT => Ok(Sign::of(body)),
        NUMBER => Err(io::Error::from_raw_os_error(body.try_into().map_or(libc::EIO, i32::from_le_bytes))),
        _ => Err(io::Error::other(String::from_utf8_lossy(body).into_owned())),
    };
    Some((at, sign, HEADER_BYTES + length))
}

/// What is told of each device, and whether all have answered.
fn collect(
    paths: Vec<PathBuf>,
    mut answers: UnixStream,
    patience: Patience,
    is_enough: impl Fn(&[Sign]) -> bool,
) -> (Vec<Seen>, bool) {
    let mut all: Vec<Option<io::Result<Option<Sign>>>> = paths.iter().map(|_| None).collect();
    let (mut signs, mut bytes, mut piece) = (Vec::new(), Vec::new(), vec![0; 64 << 10]);
    let begun = Instant::now();
    while all.iter().any(Option::is_none) {
        let time = if is_enough(&signs) { patience.found } else { patience.missing };
        let left = time.saturating_sub(begun.elapsed());
        if left.is_zero() || answers.set_read_timeout(Some(left)).is_err() {
            break;
        }
        match answers.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        }
        while let Some((at, sign, used)) = heard(&bytes) {
            bytes.drain(..used);
            if let Ok(Some(sign)) = &sign {
                signs.push(sign.clone());
            }
            if let Some(place) = all.get_mut(at) {
                *place = Some(sign);
            }
        }
    }
    let is_over = all.iter().all(Option::is_some);
    let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "does not answer"));
    let seen = paths.into_iter().zip(all).map(|(path, sign)| Seen { path, sign: sign.unwrap_or_else(late) }).collect();
    (seen, is_over)
}

/// Tells of devices that were not looked at since they do not answer.
pub fn tell_silent(seen: &[Seen]) {
    let silent = |s: &&Seen| matches!(&s.sign, Err(e) if e.kind() == io::ErrorKind::TimedOut);
    for one in seen.iter().filter(silent) {
        output::notice(format!("{}: does not answer, and was not looked at", one.path.display()));
    }
}

/// The block devices on which a volume may be: as long as the smallest one, and with nothing else on top of them, which shows the same
/// (device mapper, RAID) and is meant rather than they.
pub fn block_devices() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/partitions").unwrap_or_default();
    let is_bare = |name: &str| {
        let holders = Path::new("/sys/class/block").join(name.replace('/', "!")).join("holders");
        fs::read_dir(holders).map_or(true, |mut all| all.next().is_none())
    };
    listed(&table).filter(|name| is_bare(name)).map(|name| Path::new("/dev").join(name)).collect()
}

/// Those of the kernel's table that are long enough.
fn listed(table: &str) -> impl Iterator<Item = &str> {
    table.lines().skip(2).filter_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        let kibibytes: u64 = words.next()?.parse().ok()?;
        words.next().filter(|_| kibibytes.saturating_mul(1024) >= bytes_min())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HostClock;
    use nenrin_core::{MkfsOptions, mkfs_on};
    use nenrin_device::OpenMode;

    const BYTES: u64 = 8 << 20;
    const TAIL: u64 = BYTES - (AREA_BLOCKS - SLOT_BLOCK) * BLOCK_BYTES as u64;
    const HEAD: u64 = SLOT_BLOCK * BLOCK_BYTES as u64;

    #[test]
    fn who_is_left_to_its_end_leaves_nothing() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = PathBuf::from(format!("/proc/{}", child.id()));
        leave_to_its_end(child);
        let end = Instant::now() + Duration::from_secs(20);
        while process.exists() {
            assert!(Instant::now() < end, "it is still there");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// A signal that came to it would end a daemon that has blocked it everywhere else.
    #[test]
    fn who_waits_aside_gets_no_signal() {
        let (sender, told) = mpsc::channel();
        aside(move || drop(sender.send(fs::read_to_string("/proc/thread-self/status"))));
        let status = told.recv().unwrap().unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
        assert_ne!(blocked & 1 << (libc::SIGTERM - 1), 0, "{blocked:x}");
    }

    /// A volume in a file.
    fn volume() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES).unwrap();
        let device = device::open(file.path(), OpenMode::OWNER).unwrap();
        let options = MkfsOptions { label: b"known".to_vec(), uuid: [7; 16], ..MkfsOptions::default() };
        mkfs_on(&[device], &HostClock::shared(), &options).unwrap();
        file
    }

    fn label(file: &tempfile::NamedTempFile) -> Option<Vec<u8>> {
        sign_of(file.path()).unwrap().map(|sign| sign.label().to_vec())
    }

    fn overwrite(file: &tempfile::NamedTempFile, at: u64, bytes: &[u8]) {
        file.as_file().write_all_at(bytes, at).unwrap();
    }

    /// Each row of the table above.
    #[test]
    fn whose_a_device_is() {
        let known = Some(b"known".to_vec());
        let file = volume();
        assert_eq!(label(&file), known);
        let sign = sign_of(file.path()).unwrap().unwrap();
        assert_eq!((sign.head.uuid, sign.own_of_several()), ([7; 16], None));
        // One that boots from it, and one that was made something else.
        overwrite(&file, 510, &[0x55, 0xaa]);
        assert_eq!(label(&file), known);
        for (at, mark) in [(0, &b"XFSB"[..]), (1080, &[0x53, 0xef]), (512, b"EFI PART"), (4086, b"SWAPSPACE2")] {
            let file = volume();
            overwrite(&file, at, mark);
            assert_eq!(label(&file), None, "{at}");
        }
        let file = volume();
        for slot in 0..SLOTS_PER_AREA {
            overwrite(&file, HEAD + slot * BLOCK_BYTES as u64 + 100, b"rotten");
        }
        assert_eq!(label(&file), known, "by its end");
        overwrite(&file, TAIL, &vec![0; SLOTS_PER_AREA as usize * BLOCK_BYTES]);
        assert_eq!(label(&file), None);
        let file = volume();
        overwrite(&file, HEAD, &vec![0; SLOTS_PER_AREA as usize * BLOCK_BYTES]);
        assert_eq!(label(&file), None, "only its end is left");
    }

    /// Of a version that is not known yet what has its place in all of them.
    #[test]
    fn a_later_version_has_its_uuid() {
        let file = volume();
        let mut bytes = fs::read(file.path()).unwrap();
        for slot in 0..SLOTS_PER_AREA {
            let at = (HEAD + slot * BLOCK_BYTES as u64) as usize;
            let slot = &mut bytes[at..at + BLOCK_BYTES];
            if slot.starts_with(&SUPERBLOCK_MAGIC) {
                slot[12..14].copy_from_slice(&999u16.to_le_bytes());
                slot[8..12].fill(0);
                let crc = nenrin_format::crc(slot);
                slot[8..12].copy_from_slice(&crc.to_le_bytes());
            }
        }
        file.as_file().write_all_at(&bytes, 0).unwrap();
        let sign = sign_of(file.path()).unwrap().unwrap();
        assert_eq!((sign.head.uuid, sign.head.version, sign.root.is_none()), ([7; 16], 999, true));
        assert_eq!(sign.label(), b"");
    }

    #[test]
    fn what_is_no_device_is_not_read() {
        assert!(sign_of(Path::new("/dev/null")).is_err() && sign_of(Path::new("/")).is_err());
        let mut short = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(sign_of(short.path()).unwrap(), None);
        short.write_all(&[1; 9000]).unwrap();
        assert_eq!(sign_of(short.path()).unwrap(), None);
    }

    /// One that hangs costs what patience allows, and hides nobody.
    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        let milli = Duration::from_millis;
        let file = volume();
        let slot = newest_slot(file.path()).unwrap().unwrap().1;
        // In the order in which they answer, the second as it comes in two pieces.
        let answers =
            [told(3, Err(io::Error::from_raw_os_error(libc::EIO))), told(1, Ok(Some(slot))), told(2, Ok(None))]
                .concat();
        let looked = |answers: &[u8], patience, is_enough: fn(&[Sign]) -> bool| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(answers).unwrap();
            let begun = Instant::now();
            let paths = ["dead", "good", "other", "failing"].map(PathBuf::from).to_vec();
            let (seen, is_over) = collect(paths, ours, patience, is_enough);
            drop(theirs);
            (seen, is_over, begun.elapsed())
        };
        let patience = Patience { missing: milli(900), found: milli(50) };
        let (seen, is_over, time) = looked(&answers, patience, |signs| !signs.is_empty());
        assert!(!is_over && time < milli(800), "{time:?}");
        assert_eq!(seen[0].sign.as_ref().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(seen[1].sign.as_ref().unwrap().as_ref().unwrap().label(), b"known");
        assert!(seen[2].sign.as_ref().unwrap().is_none());
        assert_eq!(seen[3].sign.as_ref().unwrap_err().raw_os_error(), Some(libc::EIO));
        assert!(looked(&answers, patience, |_| false).2 >= milli(900));
        assert!(looked(&answers[..answers.len() - 1], patience, |_| true).0[2].sign.is_err(), "half an answer is none");
        // And nobody is waited for where all have answered.
        let all = [answers, told(0, Err(io::Error::other("why"))), told(99, Ok(None))].concat();
        let (seen, is_over, time) = looked(&all, Patience::USUAL, |_| false);
        assert!(is_over && time < Duration::from_secs(10));
        assert_eq!(seen[0].sign.as_ref().unwrap_err().to_string(), "why");
    }

    #[test]
    fn devices_that_are_too_short_are_left_out() {
        let table = "major minor  #blocks  name\n\n   2        0          4 fd0\n 254        0  268435456 vda\n   8        1          1 sda1\n \
                     104       0     9000000 cciss/c0d0\n strange\n";
        assert_eq!(listed(table).collect::<Vec<_>>(), ["vda", "cciss/c0d0"]);
        assert!(block_devices().iter().all(|p| p.starts_with("/dev")));
    }
}
