//! Looks now and then whether the image under a mounted volume is still the
//! one that was opened. What is open cannot be taken away, but what was deleted
//! is gone when the volume is released, and what was cut off is gone now.
//!
//! Invariants
//! 1. A look at one image asks nothing of the host of another, which may not answer.

use super::look::Look;
use crate::device;
use crate::output::shell_quoted;
use nenrin_device::{HostId, HostPlace};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// An image file, as it was when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    place: HostPlace,
    uuid: [u8; 16],
    identity: String,
    beneath: Vec<String>,
    /// Descriptors of this process that were it then.
    open_as: Vec<u32>,
    bytes: u64,
    /// Its place in the device table.
    index: u16,
    /// Other devices have what it has.
    stands_in: bool,
}

impl Image {
    /// Whether it is the same one, however much of it is used since.
    pub fn is_same(&self, other: &Self) -> bool {
        self.uuid == other.uuid && self.place == other.place && self.identity == other.identity
    }
}

/// An image, and who looks at it.
#[derive(Clone)]
pub struct Watch {
    image: Image,
    look: Arc<Look>,
}

impl Watch {
    /// Of the device at this place, which the volume knows as `uuid`, by this place in its table, and uses so many bytes of; whether
    /// others stand in for it.
    pub fn new(place: &HostPlace, uuid: [u8; 16], (index, bytes): (u16, u64), stands_in: bool) -> Self {
        let identity = device::identity_by(place.id);
        // What is at the path by now may be another.
        let is_there = device::identity(&place.path).is_ok_and(|now| now == identity);
        let beneath = if is_there { device::identities_beneath(&place.path) } else { Vec::new() };
        let open_as = descriptors(&place.path, &identity);
        let image = Image { place: place.clone(), uuid, identity, beneath, open_as, bytes, index, stands_in };
        Self { image, look: Look::new(Image::problem) }
    }
    /// The same, after the devices or how much is used of them have changed. Of one that was there before, what is at its path
    /// by now is not asked for again.
    pub fn anew(
        before: &[Self],
        place: &HostPlace,
        uuid: [u8; 16],
        (index, bytes): (u16, u64),
        stands_in: bool,
    ) -> Self {
        match before.iter().find(|w| w.image.uuid == uuid && w.image.place == *place) {
            Some(known) => {
                let image = Image { bytes, index, stands_in, ..known.image.clone() };
                Self { image, look: known.look.clone() }
            }
            None => Self::new(place, uuid, (index, bytes), stands_in),
        }
    }
    /// What tells it from other devices, and what tells the files apart that it shows the whole of.
    pub fn identities(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.image.identity).chain(&self.image.beneath)
    }
    /// Has somebody look at it. The number of that look.
    pub fn ask(&self) -> u64 {
        self.look.ask(&self.image)
    }
    /// Waits for that look, no longer than until then.
    pub fn wait(&self, number: u64, end: Instant) {
        self.look.wait(number, end);
    }
    /// What was wrong with it when it was looked at last.
    pub fn seen(&self) -> Option<Problem> {
        self.look.seen(&self.image)
    }
}

/// What this process has a file open as that was opened at this path.
fn descriptors(path: &Path, identity: &str) -> Vec<u32> {
    let path = fs::canonicalize(path).ok();
    let all = || fs::read_dir("/proc/self/fd").into_iter().flatten().flatten().map(|e| e.path());
    let number = |fd: &Path| fd.file_name()?.to_str()?.parse().ok();
    let is_it = |fd: &PathBuf| fs::metadata(fd).is_ok_and(|meta| device::identity_of(&meta) == identity);
    // To read where one leads asks nothing of its host.
    let leads_there = |fd: &PathBuf| path.is_some() && fs::read_link(fd).ok() == path;
    let by_path: Vec<u32> = all().filter(leads_there).filter(is_it).filter_map(|fd| number(&fd)).collect();
    match by_path.is_empty() {
        // It has another name already.
        true => all().filter(is_it).filter_map(|fd| number(&fd)).collect(),
        false => by_path,
    }
}

impl Image {
    /// What is wrong with it now.
    fn problem(&self) -> Option<Problem> {
        let path = self.place.path.display();
        let problem = |text, open_as| Some(Problem { uuid: self.uuid, text, open_as });
        match device::identity(&self.place.path) {
            Ok(now) if now == self.identity => {}
            // The directory may be unreadable for us; that is no news about the image.
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return None,
            _ => {
                let (text, open_as) = self.fate();
                return problem(format!("{path} was {text}"), open_as);
            }
        }
        let bytes = fs::metadata(&self.place.path).ok()?.len();
        if matches!(self.place.id, HostId::Block(_)) || bytes >= self.bytes {
            return None;
        }
        let (was, number) = (self.bytes, self.index + 1);
        let cut = format!("{path} was cut to {bytes} of {was} bytes while mounted");
        let text = match self.stands_in {
            true => format!(
                "device {number}: {cut}: what lay behind is had from the others; truncate -s {was} {} and nenrin scrub bring it \
                 back, or nenrin device replace DIR {number} NEW",
                shell_quoted(&self.place.path)
            ),
            false => format!("{cut}: what lay behind is lost; unmount and check it"),
        };
        problem(text, None)
    }

    /// What became of it, which is not any more where it was, and what it is open as where it has no name at all.
    fn fate(&self) -> (String, Option<u32>) {
        let Some((open_as, meta)) = self.opened() else {
            return ("deleted or replaced while mounted: copy what you need now, unmounting loses it".to_owned(), None);
        };
        if meta.nlink() == 0 {
            let pid = std::process::id();
            let text = format!(
                "deleted while mounted: unmounting loses it; copy what you need now, or all of it: \
                 cp --sparse=always /proc/{pid}/fd/{open_as} NEW"
            );
            return (text, Some(open_as));
        }
        let now = fs::read_link(format!("/proc/self/fd/{open_as}")).ok();
        let is_it = |now: &PathBuf| device::identity(now).is_ok_and(|identity| identity == self.identity);
        let text = match now.filter(is_it) {
            Some(now) => format!("renamed or replaced while mounted: what is mounted is in {} now", now.display()),
            None => "renamed or replaced while mounted: what is mounted is in that file, under another name".to_owned(),
        };
        (text, None)
    }

    /// What this process has it open as.
    fn opened(&self) -> Option<(u32, fs::Metadata)> {
        let mut all =
            self.open_as.iter().filter_map(|fd| Some((*fd, fs::metadata(format!("/proc/self/fd/{fd}")).ok()?)));
        all.find(|(_, meta)| device::identity_of(meta) == self.identity)
    }

    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.place.path
    }

    /// One of which nothing is known but that.
    #[cfg(test)]
    pub(super) fn at(path: &str) -> Self {
        let place = HostPlace { path: path.into(), id: HostId::File(0, 0) };
        let (uuid, identity) = ([1; 16], "none".to_owned());
        Self { place, uuid, identity, beneath: Vec::new(), open_as: Vec::new(), bytes: 0, index: 0, stands_in: false }
    }
}

/// What is wrong with a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What the volume knows it as.
    pub uuid: [u8; 16],
    /// In one line.
    pub text: String,
    /// It has no name any more, and is gone when it is closed: as this it is open.
    pub open_as: Option<u32>,
}

#[cfg(test)]
impl Watch {
    /// Of nothing, looked at so.
    pub(super) fn by(how: impl Fn(&Image) -> Option<Problem> + Send + Sync + 'static) -> Self {
        Self { image: Image::at("/image"), look: Look::new(how) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_changes_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        fs::write(&path, [0; 8192]).unwrap();
        // The daemon has it open, so its number is given to no other file.
        let _open = fs::File::open(&path).unwrap();
        let place = |open: &fs::File| HostPlace { path: path.clone(), id: HostId::of(&open.metadata().unwrap()) };
        let at = place(&_open);
        let watch = Watch::new(&at, [1; 16], (0, 8192), false);
        assert_eq!(watch.image.problem(), None);
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let text = |watch: &Watch| watch.image.problem().unwrap().text;
        assert!(text(&watch).contains("cut to 4096 of 8192"));
        let of_several = Watch::anew(std::slice::from_ref(&watch), &at, [1; 16], (1, 8192), true);
        let told = text(&of_several);
        assert!(
            told.starts_with("device 2: ") && told.contains("truncate -s 8192") && !told.contains("lost"),
            "{told}"
        );
        let away = dir.path().join("away");
        fs::rename(&path, &away).unwrap();
        let problem = watch.image.problem().unwrap();
        let told = format!("renamed or replaced while mounted: what is mounted is in {} now", away.display());
        assert!(problem.text.ends_with(&told) && problem.open_as.is_none(), "{problem:?}");
        fs::remove_file(&away).unwrap();
        let problem = watch.image.problem().unwrap();
        let open_as = std::os::fd::AsRawFd::as_raw_fd(&_open) as u32;
        assert!(problem.text.contains("deleted while mounted") && problem.open_as == Some(open_as), "{problem:?}");
        assert!(problem.text.contains(&format!("/fd/{open_as} NEW")), "{problem:?}");
        fs::write(dir.path().join("other"), [0; 8192]).unwrap();
        fs::rename(dir.path().join("other"), &path).unwrap();
        assert!(watch.image.problem().is_some());
        // What is there instead does not become what is watched when something else changes; another device is.
        let again = Watch::anew(std::slice::from_ref(&watch), &at, [1; 16], (0, 4096), false);
        assert!(again.image.identity == watch.image.identity && again.image.problem().is_some());
        let other = place(&fs::File::open(&path).unwrap());
        assert_eq!(Watch::anew(&[watch], &other, [2; 16], (0, 4096), false).image.problem(), None);
    }
}
