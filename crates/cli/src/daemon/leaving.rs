//! Mounts that end on request of a command.

use super::service::Service;
use crate::control::{Answer, Released};
use crate::error::Fail;
use crate::mounts;
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

impl Service {
    /// Commits, unmounts, and where it was the last mount waits for the release; but not where it is shown or used elsewhere, too.
    pub(super) fn umount(&self, directory: &Path) -> Result<Answer, Fail> {
        let (number, device) = self.shown_at(directory)?;
        // What cannot be committed is reported, and keeps nobody from leaving.
        let fs = self.fs()?;
        let synced = if fs.options().read_only { Ok(()) } else { fs.sync_all() };
        let synced = synced.map_err(|e| Fail::at(self.path.display(), e));
        drop(fs);
        leave(directory).map_err(|e| cannot_leave(directory, &e))?;
        let stays = self.await_end(number, &device);
        let mut state = self.lock();
        while state.mounts.is_empty() && state.closed.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let closed = state.closed.clone();
        drop(state);
        let released = Released { released: closed.is_some(), mounts: self.mounts(), stays };
        synced.and(closed.unwrap_or(Ok(())))?;
        Ok(Answer::of(released))
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
    fn await_end(&self, number: u64, device: &str) -> Option<String> {
        let begun = Instant::now();
        let points = mounts::points(device);
        if !points.is_empty() {
            return Some(format!("also mounted at {}", mounts::listed(&points)));
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
    e.raw_os_error() == Some(libc::EBUSY) || e.to_string().contains("busy")
}

/// Unmounts. The kernel lets go of the last handle a moment after its process
/// did, so a directory that nobody is seen to use is tried again for a while.
fn leave(directory: &Path) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match nenrin_fuse::unmount(directory) {
            Err(e) if is_busy(&e) && begin.elapsed() < LEAVE_TIME && mounts::users(directory).is_empty() => {
                thread::sleep(LEAVE_STEP);
            }
            other => return other,
        }
    }
}
