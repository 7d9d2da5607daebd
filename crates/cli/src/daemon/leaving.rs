//! Mounts that end on request of a command.

use super::service::Service;
use super::watch::Problem;
use crate::control::{Answer, Parts, Released};
use crate::error::Fail;
use crate::mounts;
use nenrin_core::Fs;
use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

/// How long a busy directory without users is tried again, and how often.
const LEAVE_TIME: Duration = Duration::from_secs(3);
const LEAVE_STEP: Duration = Duration::from_millis(50);
/// How long the kernel may take to let go of what no mount shows any more.
const END_TIME: Duration = Duration::from_secs(3);
/// How often who waits for the closing is looked after.
const WAITED_STEP: Duration = Duration::from_secs(1);

impl Service {
    /// Commits, unmounts, and where it was the last mount waits for the release; but not where it is shown or used elsewhere, too.
    /// Where that loses the volume only with `force`.
    pub(super) fn umount(&self, directory: &Path, force: bool) -> Result<Answer, Fail> {
        let (number, device) = self.shown_at(directory)?;
        // What cannot be committed is reported, and keeps nobody from leaving.
        let synced = self.committed(Some(&*self.fs()?));
        let warnings = self.may_leave(directory, force)?;
        leave(directory, &device)?;
        let released = self.await_release(number, &device, "", warnings);
        synced.and(released)
    }

    /// The same where somebody else unmounted it, who saw it as `device`.
    pub(super) fn left(&self, device: &str) -> Result<Answer, Fail> {
        let number = self.lock().mounts.iter().find(|m| m.device == device).map(|m| m.number);
        // Without one it has ended already.
        self.await_release(number.unwrap_or(u64::MAX), device, ", in the mount name space of its owner", Vec::new())
    }

    /// Waits until the volume is closed, and tells how that went: to who asked before it began, and is answered before this process ends.
    pub(super) fn await_closing(&self, parts: &mut Parts<'_>) -> Result<Answer, Fail> {
        parts.send(&())?;
        let waits = parts.waits();
        while waits.is_so() {
            let state = self.lock();
            let state = self.changed.wait_timeout_while(state, WAITED_STEP, |state| state.closed.is_none());
            if let Some(closed) = &state.unwrap_or_else(PoisonError::into_inner).0.closed {
                return closed.clone().map(|()| Answer::of(()));
            }
        }
        Err(Fail::new("nobody waits for it any more"))
    }

    /// What should be known of devices before the volume is let go of.
    ///
    /// # Errors
    /// The file of one has no name any more, the others do not have what is in it, and that is not to be lost by `force`.
    pub(super) fn may_leave(&self, directory: &Path, force: bool) -> Result<Vec<String>, Fail> {
        let (fs, problems) = (self.fs()?, self.problems());
        let members = fs.health();
        let nameless: Vec<_> = problems.iter().filter(|p| p.open_as.is_some()).collect();
        let number = |p: &&Problem| members.iter().find(|d| d.uuid == p.uuid).map(|d| d.index);
        let gone: Vec<u16> = nameless.iter().filter_map(number).collect();
        match nameless.first() {
            Some(first) if !force && !fs.is_whole_without(&gone) => {
                let help = "then nenrin umount --force gives up what is mounted";
                Err(Fail::at(directory.display(), format!("not unmounted: {}; {help}", first.text)))
            }
            _ => Ok(problems.into_iter().map(|p| p.text).collect()),
        }
    }

    /// Waits for the release where what was unmounted was the last mount; but not where it is shown or used elsewhere, too: then what
    /// came until it left is committed. `here`: what is said of places that this process sees.
    fn await_release(&self, number: u64, device: &str, here: &str, warnings: Vec<String>) -> Result<Answer, Fail> {
        let stays = self.await_end(number, device, here);
        let released = self.release_or_commit()?;
        Ok(Answer::of(Released { released, mounts: self.mounts(), stays, warnings }))
    }

    /// Whether the volume is released. Who has begun to close commits, too; else all is committed while nobody closes.
    fn release_or_commit(&self) -> Result<bool, Fail> {
        loop {
            let mut state = self.lock();
            while (state.mounts.is_empty() || state.fs.is_none()) && state.closed.is_none() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if let Some(closed) = state.closed.clone() {
                return closed.map(|()| true);
            }
            drop(state);
            let _open = self.committing();
            let fs = self.lock().fs.clone();
            if let Some(fs) = fs {
                return self.committed(Some(&*fs)).map(|()| false);
            }
        }
    }

    /// Makes durable what programs have written by now, through any mount.
    pub(super) fn committed(&self, fs: Option<&Fs>) -> Result<(), Fail> {
        let Some(fs) = fs.filter(|fs| !fs.options().read_only) else { return Ok(()) };
        self.bring_in();
        fs.sync_all().map_err(|e| Fail::at(self.path.display(), e))
    }

    /// The mount that a directory shows, be it by a bind mount: its number, and that of its file system.
    fn shown_at(&self, directory: &Path) -> Result<(u64, String), Fail> {
        let seen = mounts::of_point(directory).map(|m| m.device);
        let state = self.lock();
        let shown = state.mounts.iter().find(|m| match &seen {
            Some(device) if !m.device.is_empty() => *device == m.device,
            _ => m.stopper.directory() == directory,
        });
        shown.map(|m| (m.number, m.device.clone())).ok_or_else(|| {
            let text =
                "not mounted here any more, or not where the owner of the volume can see it: umount(8) unmounts it";
            Fail::at(directory.display(), text)
        })
    }

    /// Waits until a mount has ended. Where it goes on: what keeps it.
    fn await_end(&self, number: u64, device: &str, here: &str) -> Option<String> {
        let begun = Instant::now();
        let points = mounts::points(device);
        if !points.is_empty() {
            return Some(format!("also mounted at {}{here}", mounts::listed(&points)));
        }
        let mut state = self.lock();
        loop {
            let mounted = state.mounts.iter().find(|m| m.number == number)?;
            // What is gone for the kernel ends; it may have much to finish.
            if !mounted.stopper.has_ended() && begun.elapsed() >= END_TIME {
                break;
            }
            state = self.changed.wait_timeout(state, LEAVE_STEP).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        Some(mounts::held_by(device))
    }
}

/// Unmounts `directory`, where the file system `device` is seen; where that is not known, whatever is there. The kernel lets go of
/// the last handle a moment after its process did, so a directory that nobody is seen to use is tried again for a while.
///
/// # Errors
/// What uses it; what else is in the way.
pub fn leave(directory: &Path, device: &str) -> Result<(), Fail> {
    let begin = Instant::now();
    loop {
        // Committing took its time, and trying does.
        if is_covered(directory, device) {
            let text = "something else was mounted over it meanwhile; unmount that first";
            return Err(Fail::at(directory.display(), text));
        }
        match nenrin_fuse::unmount(directory) {
            Ok(()) => return Ok(()),
            Err(e) if is_busy(&e) && begin.elapsed() < LEAVE_TIME && mounts::users(directory).is_empty() => {
                thread::sleep(LEAVE_STEP);
            }
            Err(e) => return Err(cannot_leave(directory, &e)),
        }
    }
}

/// Whether another file system is mounted there than `device`, which may not be known.
fn is_covered(directory: &Path, device: &str) -> bool {
    !device.is_empty() && mounts::of_point(directory).is_some_and(|m| m.device != device)
}

fn cannot_leave(directory: &Path, e: &io::Error) -> Fail {
    let busy = is_busy(e);
    let text = match mounts::users(directory).as_slice() {
        [] if busy => "in use; close what uses it, then try again".to_owned(),
        users if busy => format!("in use by {}; close it, then try again", users.join(", ")),
        _ => e.to_string(),
    };
    Fail::at(directory.display(), text)
}

fn is_busy(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EBUSY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HostClock;
    use crate::daemon::Log;
    use crate::device::{self, Device};
    use crate::options::Options;
    use nenrin_core::{At, MkfsOptions, mkfs_on};
    use nenrin_device::MemDevice;
    use nenrin_fuse::{MountOptions, SessionOptions};
    use std::sync::{Arc, mpsc};

    /// Who owns a volume that is not mounted, and where it can be; nothing where nothing can be mounted.
    fn owned() -> Option<(tempfile::TempDir, Arc<Service>)> {
        if !Path::new("/dev/fuse").exists() || crate::sys::euid() != 0 {
            return None;
        }
        let device: Device = Arc::new(MemDevice::new(64 << 20));
        mkfs_on(std::slice::from_ref(&device), &HostClock::shared(), &MkfsOptions::default()).unwrap();
        let fs = device::open_volume(Path::new("v"), vec![device], nenrin_core::MountOptions::default()).unwrap();
        let log = Arc::new(Log::open(None, false).unwrap());
        let service = Service::new(fs, "v".into(), &Options::default(), log, mpsc::channel().0);
        Some((tempfile::tempdir().unwrap(), Arc::new(service)))
    }

    fn mount(service: &Arc<Service>, directory: &Path) -> Result<(), Fail> {
        service.add(At::Live, &MountOptions::new("v", directory), &SessionOptions::default())
    }

    fn finish(service: &Service) {
        service.stop_all();
        let end = Instant::now() + Duration::from_secs(60);
        while !service.close_if_unused() {
            assert!(Instant::now() < end, "the mounts are gone");
            thread::sleep(LEAVE_STEP);
        }
        service.close().unwrap();
    }

    /// The last mount has ended, and before anybody closes there is a new one.
    #[test]
    fn who_waits_for_the_release_hears_of_a_new_mount() {
        let Some((dir, service)) = owned() else { return };
        let (told, hears) = mpsc::channel();
        let waits = service.clone();
        let waiter = thread::spawn(move || told.send(waits.release_or_commit()));
        thread::sleep(Duration::from_millis(300));
        mount(&service, dir.path()).unwrap();
        let released = hears.recv_timeout(Duration::from_secs(20)).expect("nobody woke it");
        assert!(!released.unwrap());
        waiter.join().unwrap().unwrap();
        finish(&service);
    }

    /// A mount that is asked for as a signal comes would be dead when the process has ended.
    #[test]
    fn what_is_being_mounted_as_all_is_taken_away_is_not() {
        let Some((dir, service)) = owned() else { return };
        service.stop_all();
        let told = mount(&service, dir.path()).unwrap_err();
        assert!(told.message.contains("being released"), "{told:?}");
        assert!(service.mounts().is_empty() && mounts::of_point(dir.path()).is_none());
        finish(&service);
    }

    #[test]
    fn what_is_mounted_over_it_is_seen() {
        let proc = Path::new("/proc");
        let device = mounts::of_point(proc).unwrap().device;
        assert!(is_covered(proc, "4095:1048575") && !is_covered(proc, &device) && !is_covered(proc, ""));
        assert!(!is_covered(Path::new("/no/such/place"), "4095:1048575"));
    }
}
