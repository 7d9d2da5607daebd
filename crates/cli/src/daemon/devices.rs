//! Devices of a mounted volume that are added, removed and resized, on request of a command.

use super::open_owned;
use super::service::Service;
use crate::control::{Answer, LayingData, Order, Wants};
use crate::error::{At as _, Fail};
use crate::{device, report, sys};
use nenrin_core::{DeviceHealth, Fs};
use nenrin_device::{HostId, HostPlace};
use nenrin_format::BLOCK_BYTES;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest that a command waits for a device that was taken out to be closed, and how often it looks.
const LEFT_MAX: Duration = Duration::from_secs(5);
const LEFT_STEP: Duration = Duration::from_millis(2);
/// Most that one request moves.
const STEP_BYTES_MAX: u64 = 64 << 20;

fn plain(e: impl std::fmt::Display) -> Fail {
    Fail::new(e.to_string())
}

/// An image file that is to be cut, once the volume uses no more of it than that.
pub(super) struct Cut {
    file: File,
    /// The device that it is, as the volume knows it.
    uuid: [u8; 16],
    bytes: u64,
}

/// What is to become of a [`Cut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Nothing lies behind the new end.
    Cut,
    /// Something may still lie there.
    Wait,
    /// The file is none of the volume's any more, or the volume is to use more of it after all.
    Drop,
}

impl Cut {
    /// By what the volume says of its devices now, whoever changed them since.
    fn then(&self, fs: &Fs) -> Then {
        let all = fs.health();
        // Asked after the lengths: that nothing is being laid is said of a table at least as new.
        let is_laid = fs.laying_status().is_none() && fs.failed().is_none();
        match all.iter().find(|d| d.uuid == self.uuid) {
            Some(d) if d.target_bytes == 0 || d.target_bytes > self.bytes => Then::Drop,
            Some(d) if is_laid && d.bytes == d.target_bytes => Then::Cut,
            Some(_) => Then::Wait,
            None => Then::Drop,
        }
    }
}

impl Service {
    pub(super) fn device_add(&self, path: &Path, uuid: [u8; 16]) -> Result<Answer, Fail> {
        let fs = self.fs().map_err(Fail::untouched)?;
        let device = open_owned(path, self.polling).map_err(Fail::untouched)?;
        let had_failed = fs.failed().is_some();
        let added = fs.device_add(device, uuid).at(path.display()).map_err(|e| {
            // Where it failed on the way the table may tell of it.
            let may_be = !had_failed && fs.failed().is_some() || fs.health().iter().any(|d| d.uuid == uuid);
            if may_be { e } else { e.untouched() }
        })?;
        self.watch_anew(&fs);
        self.log.line(&format!("{} added as device {}", path.display(), added + 1));
        Ok(Answer::of(added + 1))
    }

    pub(super) fn device_remove(&self, which: &str, keep: bool) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        // Held meanwhile, so that what it drops, or tells of the table, is no later order.
        let mut to_cut = self.to_cut();
        let d = device::member(&fs, which)?;
        if keep {
            if !fs.device_keep(d.index).at(which)? {
                return Err(Fail::at(which, "it is not being removed or shrunk"));
            }
            to_cut.retain(|c| c.uuid != d.uuid);
            return Ok(Answer::of(ordered(&fs, &d, Wants::Stays)));
        }
        fs.device_remove(d.index).at(which)?;
        self.log.line(&format!("device {} is being removed", d.index + 1));
        Ok(Answer::of(Order { wants: Wants::Gone, ..ordered(&fs, &d, Wants::Stays) }))
    }

    pub(super) fn device_forgive(&self, which: &str) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let d = device::member(&fs, which)?;
        fs.device_forgive(d.index).at(which)?;
        let [reads, wrong, writes] = [d.read_errors, d.wrong_blocks, d.write_errors];
        self.log.line(&format!(
            "device {}: {reads} reads that failed, {wrong} blocks that were wrong and {writes} failed writes are forgotten",
            d.index + 1
        ));
        Ok(Answer::of(d.index + 1))
    }

    /// Uses more or less of a device; an image file is made as long as that.
    pub(super) fn resize(&self, which: Option<&str>, bytes: Option<u64>) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let d = match (which, &fs.health()[..]) {
            (Some(which), _) => device::member(&fs, which)?,
            (None, [only]) => only.clone(),
            (None, all) => {
                return Err(Fail::new(format!("the volume has {} devices: name one with --device", all.len())));
            }
        };
        let name = d.name.as_deref().ok_or_else(|| Fail::new(format!("device {} is absent", d.index + 1)))?;
        // One at a time: who fails takes back what he made longer.
        let mut to_cut = self.to_cut();
        let place = d.place.as_ref().ok_or_else(|| Fail::at(name, "not of the host, so it cannot be resized"))?;
        let file = opened(place)?;
        let meta = file.metadata().at(name)?;
        let there = device::bytes_of(&file).at(name)?;
        let bytes = bytes.unwrap_or(there) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let grows = meta.is_file() && bytes > there;
        let grown = if grows { lengthen(&file, &meta, bytes).at(name) } else { Ok(()) };
        let done = grown.and_then(|()| fs.device_resize(d.index, bytes / BLOCK_BYTES as u64).at(name));
        // Where that failed on the way the roots may say that it is used.
        if done.is_err() && grows && fs.failed().is_none() {
            cut(&file, there);
        }
        done?;
        to_cut.retain(|c| c.uuid != d.uuid);
        if meta.is_file() && bytes < there {
            to_cut.push(Cut { file, uuid: d.uuid, bytes });
        }
        let order = ordered(&fs, &d, Wants::Bytes);
        drop(to_cut);
        self.watch_anew(&fs);
        self.log.line(&format!("device {}: {bytes} bytes are to be used", d.index + 1));
        Ok(Answer::of(order))
    }

    /// Lays on. It is done where nothing is left to be laid, and of what was ordered where the table says that it is so: somebody else may
    /// have taken it back meanwhile, and then nothing is left to be laid either.
    pub(super) fn lay(&self, bytes: u64, order: Option<&Order>) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let status = fs.laying_step(bytes.min(STEP_BYTES_MAX)).map_err(plain)?;
        let all = fs.health();
        if status.is_none() {
            self.watch_anew(&fs);
            self.cut_emptied(&fs, &mut self.to_cut());
            await_left(&fs);
            self.log.line("everything lies as it should on the devices there are");
        }
        let data = report::laying_data(&fs, status);
        Ok(Answer::of(LayingData {
            done: data.done && order.is_none_or(|order| order.is_done(&all)),
            taken_back: order.is_some_and(|order| !order.stands(&all)),
            ..data
        }))
    }

    /// Cuts images of which the volume uses no more than was asked for. Who asked may have gone, and what is left to do was done
    /// in the background then.
    pub(super) fn cut_emptied(&self, fs: &Fs, to_cut: &mut Vec<Cut>) {
        to_cut.retain(|order| {
            let then = order.then(fs);
            if then == Then::Cut {
                self.watch_anew(fs);
                cut(&order.file, order.bytes);
            }
            then == Then::Wait
        });
    }

    /// The same, on a thread of its own: where the host takes its time the volume does not wait.
    pub(super) fn cut_in_background(self: &Arc<Self>) {
        let is_due = |fs: &Fs| match self.to_cut.try_lock() {
            Ok(to_cut) => to_cut.iter().any(|c| c.then(fs) != Then::Wait),
            Err(TryLockError::Poisoned(e)) => e.into_inner().iter().any(|c| c.then(fs) != Then::Wait),
            // Who has it is at work on a device.
            Err(TryLockError::WouldBlock) => false,
        };
        if self.fs().is_ok_and(|fs| is_due(&fs)) {
            let this = self.clone();
            let body = move || {
                // First, so that who closes the volume can wait until nobody here has it any more.
                let mut to_cut = this.to_cut();
                if let Ok(fs) = this.fs() {
                    this.cut_emptied(&fs, &mut to_cut);
                }
            };
            // Without a thread it is tried again.
            drop(thread::Builder::new().name("nenrin-cut".into()).spawn(body));
        }
    }
}

/// What was just ordered of a device, by what the table says of it now: of its length somewhat less than was asked for may be used.
fn ordered(fs: &Fs, d: &DeviceHealth, wants: fn(u64) -> Wants) -> Order {
    let target = fs.health().iter().find(|now| now.uuid == d.uuid).map_or(0, |now| now.target_bytes);
    Order { number: d.index + 1, uuid: d.uuid, wants: wants(target) }
}

/// Waits until devices that were taken out are closed, so that whoever had one taken out can use it. What was under way to the
/// others has it, too; on a device that does not answer that may be for long, and then the command does not wait for it.
pub(super) fn await_left(fs: &Fs) {
    let begun = Instant::now();
    while fs.devices_left_in_use() > 0 && begun.elapsed() < LEFT_MAX {
        thread::sleep(LEFT_STEP);
    }
}

/// The device that the volume has there, and not what somebody may have put in its place.
fn opened(place: &HostPlace) -> Result<File, Fail> {
    let path = &place.path;
    let is_file = fs::symlink_metadata(path).is_ok_and(|m| m.is_file());
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).write(is_file).custom_flags(flags).open(path);
    match opened {
        Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ELOOP)) => Err(Fail::at(path.display(), e)),
        Ok(file) if file.metadata().is_ok_and(|m| HostId::of(&m) == place.id) => Ok(file),
        _ => {
            let text = "deleted or replaced while mounted, so it cannot be resized; put it back first";
            Err(Fail::at(path.display(), text))
        }
    }
}

/// Makes an image file longer. One with holes stays one.
fn lengthen(file: &File, meta: &Metadata, bytes: u64) -> io::Result<()> {
    let is_sparse = meta.blocks() * 512 < meta.len();
    let done = if is_sparse { file.set_len(bytes) } else { sys::reserve(file, bytes) };
    done.and_then(|()| file.sync_all())
}

/// What lies behind is the volume's no more: where it stays, it only takes room.
fn cut(file: &File, bytes: u64) {
    let _ = file.set_len(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HostClock;
    use crate::control::JoinData;
    use crate::daemon::Log;
    use crate::options::Options;
    use nenrin_core::{MkfsOptions, MountOptions, mkfs_on};
    use nenrin_device::{Fault, Faulty, OpKind, OpenMode};
    use std::path::PathBuf;
    use std::sync::mpsc;
    use tempfile::TempDir;

    const BYTES: u64 = 64 << 20;
    const HALF: u64 = BYTES / 2;

    /// A volume in the file `image`, and who owns it.
    fn owned() -> (TempDir, PathBuf, Arc<Service>) {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(BYTES).unwrap();
        let device = device::open(&image, OpenMode::OWNER).unwrap();
        let options = MkfsOptions { uuid: [7; 16], ..MkfsOptions::default() };
        mkfs_on(std::slice::from_ref(&device), &HostClock::shared(), &options).unwrap();
        let fs = device::open_volume(&image, vec![device], MountOptions::default()).unwrap();
        let log = Arc::new(Log::open(None, false).unwrap());
        let service = Service::new(fs, image.clone(), &Options::default(), log, mpsc::channel().0);
        (dir, image, Arc::new(service))
    }

    fn length(image: &Path) -> u64 {
        fs::metadata(image).unwrap().len()
    }

    fn lay(fs: &Fs) {
        while fs.laying_step(STEP_BYTES_MAX).unwrap().is_some() {}
    }

    /// What was made for a device goes where that was refused, and stays where the table may tell of it.
    #[test]
    fn a_device_that_may_have_been_added_is_told_from_one_that_was_not() {
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str, bytes| {
            let path = dir.path().join(name);
            File::create(&path).unwrap().set_len(bytes).unwrap();
            path
        };
        let (image, short, new) = (made("image", BYTES), made("short", 64 << 10), made("new", BYTES));
        let faulty = Faulty::new(device::open(&image, OpenMode::OWNER).unwrap());
        let (faults, device): (_, device::Device) = (faulty.faults(), Arc::new(faulty));
        let options = MkfsOptions { uuid: [7; 16], ..MkfsOptions::default() };
        mkfs_on(std::slice::from_ref(&device), &HostClock::shared(), &options).unwrap();
        let fs = device::open_volume(&image, vec![device], MountOptions::default()).unwrap();
        let log = Arc::new(Log::open(None, false).unwrap());
        let service = Service::new(fs, image.clone(), &Options::default(), log, mpsc::channel().0);
        let added = |path: &Path| service.device_add(path, [9; 16]).err().map(|e| e.is_untouched);
        assert_eq!(added(&short), Some(true));
        assert_eq!(added(&dir.path().join("none")), Some(true));
        faults.inject(Fault::Fail { kind: OpKind::Flush, from: 1, times: u64::MAX });
        assert_eq!(added(&new), Some(false));
        assert!(service.fs().unwrap().failed().is_some());
        // By now nothing is written any more.
        assert_eq!(added(&new), Some(true));
    }

    /// A command ends as another asks for less: nothing was moved by then.
    #[test]
    fn an_image_is_not_cut_by_who_laid_before() {
        let (_dir, image, service) = owned();
        let fs = service.fs().unwrap();
        let mut to_cut = service.to_cut();
        let other = service.clone();
        let laying = thread::spawn(move || other.lay(STEP_BYTES_MAX, None).map(drop));
        // It waits for the orders.
        thread::sleep(Duration::from_millis(500));
        let of = fs.health().remove(0);
        let (file, uuid) = (opened(&of.place.unwrap()).unwrap(), of.uuid);
        fs.device_resize(0, HALF / BLOCK_BYTES as u64).unwrap();
        to_cut.push(Cut { file, uuid, bytes: HALF });
        drop(to_cut);
        laying.join().unwrap().unwrap();
        assert_eq!((length(&image), service.to_cut().len()), (BYTES, 1));
        lay(&fs);
        service.lay(STEP_BYTES_MAX, None).unwrap();
        assert_eq!((length(&image), service.to_cut().len()), (HALF, 0));
        fs.close().unwrap();
    }

    /// The command was ended, and since then the device was replaced: its file is somebody else's.
    #[test]
    fn an_image_that_left_is_not_cut() {
        let (dir, image, service) = owned();
        let fs = service.fs().unwrap();
        service.resize(None, Some(HALF)).unwrap();
        lay(&fs);
        let other = dir.path().join("other");
        File::create(&other).unwrap().set_len(BYTES).unwrap();
        service.replace("1", &other, [9; 16]).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while fs.is_joining() {
            assert!(Instant::now() < end);
            service.tick();
            thread::sleep(Duration::from_millis(5));
        }
        assert!(service.join_data(None).is_ok());
        assert_eq!(fs.health()[0].name.as_deref(), other.to_str());
        service.lay(STEP_BYTES_MAX, None).unwrap();
        assert_eq!((length(&image), length(&other), service.to_cut().len()), (BYTES, BYTES, 0));
        fs.close().unwrap();
    }

    #[test]
    fn who_takes_it_back_or_asks_for_more_has_no_image_cut() {
        let (_dir, image, service) = owned();
        let fs = service.fs().unwrap();
        service.resize(None, Some(HALF)).unwrap();
        service.device_remove("1", true).unwrap();
        assert!(service.to_cut().is_empty());
        service.resize(None, Some(HALF)).unwrap();
        service.resize(None, Some(BYTES)).unwrap();
        lay(&fs);
        service.lay(STEP_BYTES_MAX, None).unwrap();
        assert_eq!((length(&image), service.to_cut().len()), (BYTES, 0));
        fs.close().unwrap();
    }

    /// Whoever asked is told what the table says in the end, not what it was asked for.
    #[test]
    fn what_was_taken_back_meanwhile_is_not_told_as_done() {
        let (dir, _image, service) = owned();
        let fs = service.fs().unwrap();
        let more = dir.path().join("more");
        File::create(&more).unwrap().set_len(BYTES).unwrap();
        service.device_add(&more, [9; 16]).unwrap();
        let after = |order: &Order| {
            let step = || service.lay(STEP_BYTES_MAX, Some(order)).unwrap().told::<LayingData>();
            loop {
                let data = step();
                if data.done || data.taken_back {
                    return (data.done, data.taken_back);
                }
            }
        };
        let ordered = |answer: Result<Answer, Fail>| answer.unwrap().told::<Order>();
        let less = || ordered(service.resize(Some("2"), Some(HALF)));
        let (done, taken_back) = ((true, false), (false, true));
        lay(&fs);
        for lays in [false, true] {
            let removal = ordered(service.device_remove("2", false));
            let kept = ordered(service.device_remove("2", true));
            if lays {
                lay(&fs);
            }
            assert_eq!((after(&removal), after(&kept)), (taken_back, done), "{lays}");
            let first = less();
            let second = ordered(service.resize(Some("2"), Some(BYTES)));
            assert_eq!((after(&first), after(&second)), (taken_back, done), "{lays}");
            let first = less();
            let kept = ordered(service.device_remove("2", true));
            assert_eq!((after(&first), after(&kept)), (taken_back, done), "{lays}");
        }
        // Asked for twice it is done once, and both are told.
        let (first, second) = (less(), less());
        assert_eq!((after(&first), after(&second)), (done, done));
        let shorter = less();
        let removal = ordered(service.device_remove("2", false));
        assert_eq!((after(&shorter), after(&removal)), (taken_back, done));
        // Another one gets its number.
        let again = dir.path().join("again");
        File::create(&again).unwrap().set_len(BYTES).unwrap();
        service.device_add(&again, [10; 16]).unwrap();
        assert_eq!((after(&removal), after(&shorter)), (done, taken_back));
        fs.close().unwrap();
    }

    /// The same of a device that was to take the place of another.
    #[test]
    fn a_replacement_that_was_taken_back_is_not_told_as_done() {
        let (dir, _image, service) = owned();
        let fs = service.fs().unwrap();
        let [one, two] = ["one", "two"].map(|name| {
            let path = dir.path().join(name);
            File::create(&path).unwrap().set_len(BYTES).unwrap();
            path
        });
        let told = |uuid| service.join_data(Some(uuid)).unwrap().told::<JoinData>();
        service.replace("1", &one, [9; 16]).unwrap();
        assert!(!told([9; 16]).done);
        service.stop_replacing().unwrap();
        let data = told([9; 16]);
        assert!(data.done && data.taken_back && data.failed.unwrap().contains("given up on request"));
        // And where another one follows, in progress and done.
        service.replace("1", &two, [10; 16]).unwrap();
        let data = told([9; 16]);
        assert!(data.done && data.taken_back && data.failed.unwrap().contains("taken back"));
        let end = Instant::now() + Duration::from_secs(60);
        while !told([10; 16]).done {
            assert!(Instant::now() < end);
            service.tick();
            thread::sleep(Duration::from_millis(5));
        }
        for (uuid, is_taken_back) in [([9; 16], true), ([10; 16], false)] {
            let data = told(uuid);
            assert_eq!((data.failed.is_some(), data.taken_back), (is_taken_back, is_taken_back));
        }
        fs.close().unwrap();
    }
}
