//! Volumes by what they are: `LABEL=NAME` and `UUID=...` instead of a device, looked for among the block devices of this machine.
//!
//! | devices that fit | what is meant |
//! |---|---|
//! | one, by whatever paths | that |
//! | several of one volume | the one that knows most; the others are found beside it (see `members`) |
//! | two that say to be one and the same device | nobody knows: it is an error that names both |
//! | two that each say to be all of one volume, and do not know each other | the same |
//! | devices of different volumes | the same |
//!
//! Invariant: what has this form is never a path, whatever there is in the directory that a command is run in; `./LABEL=NAME` is one.

use crate::device;
use crate::error::Fail;
use crate::machine::{self, Patience, Seen, Sign};
use crate::report::show_uuid;
use crate::sys;
use nenrin_format::superblock::LABEL_BYTES_MAX;
use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// What a volume is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tag {
    Label(Vec<u8>),
    Uuid([u8; 16]),
}

impl Tag {
    /// Nothing where a path is meant.
    fn parse(given: &Path) -> Result<Option<Self>, Fail> {
        let bytes = given.as_os_str().as_bytes();
        let refused = |why: &str| Err(Fail::usage(format!("{}: {why}", given.display())));
        if let Some(label) = bytes.strip_prefix(b"LABEL=") {
            return match label.len() {
                0 => refused("a label is needed; nenrin probe lists the volumes of this machine"),
                n if n > LABEL_BYTES_MAX => refused(&format!("no label has more than {LABEL_BYTES_MAX} bytes")),
                _ => Ok(Some(Self::Label(label.to_owned()))),
            };
        }
        let Some(digits) = bytes.strip_prefix(b"UUID=") else { return Ok(None) };
        match uuid(digits) {
            Some(uuid) => Ok(Some(Self::Uuid(uuid))),
            None => refused(
                "not a UUID: 32 hexadecimal digits are needed, in groups of 8-4-4-4-12; nenrin probe lists them",
            ),
        }
    }
    fn fits(&self, sign: &Sign) -> bool {
        match self {
            Self::Label(label) => sign.label() == label,
            Self::Uuid(uuid) => sign.head.uuid == *uuid,
        }
    }
    const fn what(&self) -> &'static str {
        match self {
            Self::Label(_) => "label",
            Self::Uuid(_) => "UUID",
        }
    }
}

/// With its hyphens, or without any.
fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    let text = std::str::from_utf8(text).ok()?;
    let is_grouped = text.len() == 36 && [8, 13, 18, 23].iter().all(|at| text.as_bytes()[*at] == b'-');
    let digits: String = if is_grouped { text.split('-').collect() } else { text.to_owned() };
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// The device that is meant: a path as it is, or where the volume is that is known by what was given.
///
/// # Errors
/// There is none, or nobody knows which is meant.
pub fn device(given: &Path) -> Result<Cow<'_, Path>, Fail> {
    device_within(given, Duration::ZERO)
}

/// The same; one that is not there yet is waited for, `time` at most.
///
/// # Errors
/// As there.
pub fn device_within(given: &Path, time: Duration) -> Result<Cow<'_, Path>, Fail> {
    let Some(tag) = Tag::parse(given)? else { return Ok(Cow::Borrowed(given)) };
    let end = Instant::now() + time;
    loop {
        let patience = if time.is_zero() { Patience::USUAL } else { Patience::SHORT };
        let seen = machine::look(machine::block_devices(), patience, |signs| signs.iter().any(|sign| tag.fits(sign)));
        match chosen(given, &tag, &hits(&tag, &seen))? {
            Some(path) => {
                machine::tell_silent(&seen);
                return Ok(Cow::Owned(path));
            }
            None if Instant::now() >= end => return Err(none(given, &tag, &seen)),
            None => thread::sleep(LATE_STEP),
        }
    }
}

/// How often it is looked for one that is not there yet.
const LATE_STEP: Duration = Duration::from_millis(200);

/// The devices that are meant: of lists all parts.
///
/// # Errors
/// See [`device`].
pub fn devices(given: &[OsString]) -> Result<Vec<PathBuf>, Fail> {
    let mut all = Vec::new();
    for one in given {
        match device(Path::new(one))? {
            Cow::Owned(found) => all.push(found),
            Cow::Borrowed(path) => all.extend(crate::members::split(path)),
        }
    }
    Ok(all)
}

/// Refuses to take for a new device what names a volume that there is.
///
/// # Errors
/// It does.
pub fn refuse(path: &Path) -> Result<(), Fail> {
    let bytes = path.as_os_str().as_bytes();
    if !bytes.starts_with(b"LABEL=") && !bytes.starts_with(b"UUID=") {
        return Ok(());
    }
    let text = "this names a volume that there is, and what was there is lost on a new device: name that by its path";
    Err(Fail::usage(format!("{}: {text}", path.display())))
}

/// A device that fits.
#[derive(Debug)]
struct Hit<'a> {
    path: &'a Path,
    identities: Vec<String>,
    sign: &'a Sign,
}

fn hits<'a>(tag: &Tag, seen: &'a [Seen]) -> Vec<Hit<'a>> {
    let fits = |s: &'a Seen| s.sign.as_ref().ok()?.as_ref().filter(|sign| tag.fits(sign)).map(|sign| (&*s.path, sign));
    let hit = |(path, sign)| Hit { path, identities: device::identities(path), sign };
    once_each(seen.iter().filter_map(fits).map(hit).collect())
}

/// Of several ways to one device the shortest: the device itself rather than what shows the whole of it.
fn once_each(mut hits: Vec<Hit<'_>>) -> Vec<Hit<'_>> {
    hits.sort_by_key(|h| h.identities.len());
    let mut all: Vec<Hit<'_>> = Vec::new();
    for hit in hits {
        if !all.iter().any(|known| hit.identities.iter().any(|i| known.identities.contains(i))) {
            all.push(hit);
        }
    }
    all.sort_by_key(|h| h.path);
    all
}

/// The table of this module.
fn chosen(given: &Path, tag: &Tag, hits: &[Hit<'_>]) -> Result<Option<PathBuf>, Fail> {
    let Some(first) = hits.first() else { return Ok(None) };
    let named = |h: &Hit<'_>| format!("{} (UUID={})", h.path.display(), show_uuid(&h.sign.head.uuid));
    if let Some(other) = hits.iter().find(|h| h.sign.head.uuid != first.sign.head.uuid) {
        let text = format!(
            "{} and {} are different volumes with the same {}; name the one that is meant by its UUID, or by its device",
            named(first),
            named(other),
            tag.what()
        );
        return Err(Fail::at(given.display(), text));
    }
    for (at, hit) in hits.iter().enumerate() {
        // Of a version that this program does not know nothing tells them apart, and whoever opens it says so.
        let is_same = |h: &&Hit<'_>| h.sign.own().is_some() && h.sign.own() == hit.sign.own();
        if let Some(copy) = hits[at + 1..].iter().find(is_same) {
            let (one, two) = (hit.path.display(), copy.path.display());
            let text = format!(
                "{one} and {two} say to be the same device, so one is a copy of the other; name the one that is meant by its path"
            );
            return Err(Fail::at(given.display(), text));
        }
    }
    if let Some((one, two)) = strangers(hits) {
        let (one, two) = (one.path.display(), two.path.display());
        let text = format!(
            "{one} and {two} each say to be all of this volume, and do not know each other, so it went on without one of them; \
             name the one that is meant by its path"
        );
        return Err(Fail::at(given.display(), text));
    }
    Ok(hits.iter().max_by_key(|h| h.sign.rank()).map(|h| h.path.to_owned()))
}

/// Two devices of one volume neither of which has the other in its table, where each device says that there are no others.
fn strangers<'a>(hits: &'a [Hit<'_>]) -> Option<(&'a Hit<'a>, &'a Hit<'a>)> {
    if !hits.iter().all(|h| h.sign.is_alone()) {
        return None;
    }
    let of = |(at, one): (usize, &'a Hit<'_>)| {
        let other = hits[at + 1..].iter().find(|two| !one.sign.knows(two.sign) && !two.sign.knows(one.sign));
        other.map(|two| (one, two))
    };
    hits.iter().enumerate().find_map(of)
}

/// Paths that a message lists.
const LISTED_MAX: usize = 8;

fn listed(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [one] => one.clone(),
        all if all.len() <= LISTED_MAX => format!("{} and {}", all[..all.len() - 1].join(", "), all[all.len() - 1]),
        all => format!("{} and {} more", all[..LISTED_MAX].join(", "), all.len() - LISTED_MAX),
    }
}

/// That there is none, and what was looked at.
fn none(given: &Path, tag: &Tag, seen: &[Seen]) -> Fail {
    Fail::at(given.display(), format!("no volume has this {}: {}", tag.what(), looked_at(seen)))
}

/// What was looked at, and what could not be.
pub fn looked_at(seen: &[Seen]) -> String {
    let read = seen.iter().filter(|s| s.sign.is_ok()).map(|s| s.path.display().to_string()).collect::<Vec<_>>();
    let mut text = match read.len() {
        0 if seen.is_empty() => "this machine has no block device that one could be on".to_owned(),
        0 => "no block device of this machine could be read".to_owned(),
        1 => format!("{} was looked at, of the block devices of this machine", read[0]),
        _ => format!("{} were looked at, of the block devices of this machine", listed(&read)),
    };
    let mut whys: Vec<(String, Vec<String>)> = Vec::new();
    for one in seen {
        let Err(e) = &one.sign else { continue };
        let (why, path) = (why(e), one.path.display().to_string());
        match whys.iter_mut().find(|(known, _)| *known == why) {
            Some((_, paths)) => paths.push(path),
            None => whys.push((why, vec![path])),
        }
    }
    for (why, paths) in whys {
        text.push_str(&format!("; not {} ({why})", listed(&paths)));
    }
    text
}

/// Why a device could not be looked at.
pub fn why(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::PermissionDenied if sys::euid() != 0 => "permission denied; root may".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::TimedOut if e.raw_os_error().is_none() => "does not answer".to_owned(),
        io::ErrorKind::NotFound => "no such file or device".to_owned(),
        _ => e.to_string(),
    }
}

/// Where another volume is that has this label, beside the one that was just made on `paths`. Only what is quickly told.
pub fn also_labelled(label: &[u8], uuid: &[u8; 16], paths: &[PathBuf]) -> Option<PathBuf> {
    let is_block = |p: &PathBuf| fs::metadata(p).is_ok_and(|m| m.file_type().is_block_device());
    if label.is_empty() || !paths.iter().any(is_block) {
        return None;
    }
    let seen = machine::look(machine::block_devices(), Patience::SHORT, |_| false);
    let has_it = |s: &&Seen| matches!(&s.sign, Ok(Some(sign)) if sign.label() == label && sign.head.uuid != *uuid);
    seen.iter().find(has_it).map(|s| s.path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_format::Generation;
    use nenrin_format::superblock::{DeviceEntry, SlotHead};

    fn sign(uuid: u8, generation: u64) -> Sign {
        let head = SlotHead { version: 1, uuid: [uuid; 16], features: [0; 3], generation: Generation(generation) };
        Sign { head, root: None }
    }

    fn tag(text: &str) -> Result<Option<Tag>, u8> {
        Tag::parse(Path::new(text)).map_err(|f| f.code)
    }

    #[test]
    fn what_is_given_is_a_path_or_a_tag() {
        let label = |text: &str| Ok(Some(Tag::Label(text.as_bytes().to_vec())));
        assert_eq!(tag("LABEL=backup"), label("backup"));
        assert_eq!(tag("LABEL=my disk, Büro=1"), label("my disk, Büro=1"));
        let known = u128::to_be_bytes(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        for text in [
            "01234567-89ab-cdef-0123-456789abcdef",
            "01234567-89AB-CDEF-0123-456789ABCDEF",
            "0123456789abcdef0123456789abcdef",
        ] {
            assert_eq!(tag(&format!("UUID={text}")), Ok(Some(Tag::Uuid(known))), "{text}");
        }
        for path in ["/dev/sdb1", "./LABEL=backup", "label=backup", "LABEL", "/LABEL=x", "", "PARTUUID=1"] {
            assert_eq!(tag(path), Ok(None), "{path}");
        }
        let long = format!("LABEL={}", "x".repeat(65));
        for wrong in [
            "LABEL=",
            &long,
            "UUID=",
            "UUID=0123",
            "UUID=+1234567-89ab-cdef-0123-456789abcdef",
            "UUID=01234567-89ab-cdef-0123-456789abcdeg",
            "UUID=0123456-789ab-cdef-0123-456789abcdef",
            "UUID=年輪年輪年輪年輪年輪年",
        ] {
            assert_eq!(tag(wrong), Err(2), "{wrong}");
        }
        assert!(refuse(Path::new("LABEL=x")).is_err() && refuse(Path::new("./UUID=x")).is_ok());
    }

    fn decided(hits: &[(&str, &[&str], Sign)]) -> Result<Option<PathBuf>, String> {
        let owned: Vec<_> = hits
            .iter()
            .map(|(p, i, s)| (PathBuf::from(p), i.iter().map(|i| (*i).to_owned()).collect::<Vec<_>>(), s))
            .collect();
        let all =
            owned.iter().map(|(path, identities, sign)| Hit { path, identities: identities.clone(), sign }).collect();
        let tag = Tag::Label(b"x".to_vec());
        chosen(Path::new("LABEL=x"), &tag, &once_each(all)).map_err(|f| f.to_string())
    }

    /// A device of a volume of three.
    fn member(uuid: u8, own: u8, generation: u64) -> Sign {
        let mut sign = alone(uuid, own, generation);
        let root = sign.root.as_mut().unwrap();
        root.devices = (1..=3).map(|own| DeviceEntry::active([own; 16], root.devices[0].blocks, 1)).collect();
        root.device_index = u16::from(own) - 1;
        sign
    }

    /// The only device of a volume.
    fn alone(uuid: u8, own: u8, generation: u64) -> Sign {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let device = device::open(file.path(), nenrin_device::OpenMode::OWNER).unwrap();
        nenrin_core::mkfs_on(&[device], &crate::clock::HostClock::shared(), &nenrin_core::MkfsOptions::default())
            .unwrap();
        let mut sign = machine::sign_of(file.path()).unwrap().unwrap();
        (sign.head.uuid, sign.head.generation) = ([uuid; 16], Generation(generation));
        sign.root.as_mut().unwrap().devices[0].uuid = [own; 16];
        sign
    }

    /// Each row of the table.
    #[test]
    fn which_device_is_meant() {
        assert_eq!(decided(&[]), Ok(None));
        assert_eq!(decided(&[("/dev/a", &["1"], sign(1, 1))]), Ok(Some("/dev/a".into())));
        // A loop device over it, and over the same file as another one.
        let ways: [(&str, &[&str], Sign); 2] = [("/dev/a", &["2", "1"], sign(1, 1)), ("/dev/b", &["1"], sign(1, 1))];
        assert_eq!(decided(&ways), Ok(Some("/dev/b".into())));
        // Of those of one volume the one that is not behind.
        let several: [(&str, &[&str], Sign); 3] = [
            ("/dev/a", &["1"], member(1, 1, 5)),
            ("/dev/b", &["2"], member(1, 2, 7)),
            ("/dev/c", &["3"], member(1, 3, 6)),
        ];
        assert_eq!(decided(&several), Ok(Some("/dev/b".into())));
    }

    #[test]
    fn nobody_guesses() {
        let two: [(&str, &[&str], Sign); 2] = [("/dev/a", &["1"], sign(1, 1)), ("/dev/b", &["2"], sign(2, 9))];
        let why = decided(&two).unwrap_err();
        for part in
            ["LABEL=x: /dev/a (UUID=01010101-", "and /dev/b (UUID=02020202-", "different volumes with the same label"]
        {
            assert!(why.contains(part), "{why}");
        }
        let clones: [(&str, &[&str], Sign); 3] = [
            ("/dev/a", &["1"], member(1, 1, 1)),
            ("/dev/b", &["2"], member(1, 2, 2)),
            ("/dev/c", &["3"], member(1, 2, 2)),
        ];
        let why = decided(&clones).unwrap_err();
        assert!(why.contains("/dev/b and /dev/c say to be the same device") && !why.contains("/dev/a"), "{why}");
        // One was replaced, and what there is of it is a copy that was made before.
        let strangers = |own: u8| -> [(&str, &[&str], Sign); 2] {
            [("/dev/a", &["1"], alone(1, 1, 1)), ("/dev/b", &["2"], alone(1, own, 9))]
        };
        let why = decided(&strangers(2)).unwrap_err();
        assert!(
            why.contains("/dev/a and /dev/b each say to be all of this volume") && why.contains("its path"),
            "{why}"
        );
        // One that knows of the other knows that it is none any more.
        let mut known = strangers(2);
        let gone = DeviceEntry { removed: true, active: false, ..DeviceEntry::active([1; 16], 0, 2) };
        known[1].2.root.as_mut().unwrap().devices.push(gone);
        assert_eq!(decided(&known), Ok(Some("/dev/b".into())));
        // And beside one that says that there are more nobody is all there is.
        let [one, two] = strangers(2);
        assert!(decided(&[one, two, ("/dev/c", &["3"], member(1, 3, 1))]).is_ok());
        // Of a version that nobody knows yet members cannot be told from copies.
        let later: [(&str, &[&str], Sign); 2] = [("/dev/a", &["1"], sign(1, 1)), ("/dev/b", &["2"], sign(1, 1))];
        assert!(decided(&later).unwrap().is_some());
    }

    #[test]
    fn what_was_looked_at_is_told() {
        let seen = |path: &str, sign| Seen { path: path.into(), sign };
        let denied = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(looked_at(&[]).contains("no block device that one could be on"));
        let all = [seen("/dev/a", Ok(None)), seen("/dev/b", denied()), seen("/dev/c", denied())];
        let told = none(Path::new("LABEL=x"), &Tag::Label(b"x".to_vec()), &all).to_string();
        let denied = why(&io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(denied.starts_with("permission denied") && denied.contains("root") == (sys::euid() != 0));
        let wanted = "LABEL=x: no volume has this label: /dev/a was looked at, of the block devices of this machine; not /dev/b and /dev/c";
        assert_eq!(told, format!("{wanted} ({denied})"));
        let many: Vec<Seen> = (0..20).map(|n| seen(&format!("/dev/{n}"), Ok(None))).collect();
        assert!(looked_at(&many).contains("/dev/7 and 12 more"));
    }
}
