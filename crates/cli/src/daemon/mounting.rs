//! Mounts that begin or change on request of a command, and where a path of its means what it means to the command.

use super::service::Service;
use crate::control::{Answer, PastMount};
use crate::error::Fail;
use crate::options::Options;
use crate::{mounts, past, report};
use nenrin_core::At;
use nenrin_fuse::MountOptions;
use std::sync::Arc;

impl Service {
    /// Mounts a state of the past beside what is mounted.
    pub(super) fn mount_past(self: &Arc<Self>, how: &PastMount) -> Result<Answer, Fail> {
        paths_are_right(how.space.as_deref())?;
        let info = past::find(&*self.fs()?, &how.when)?;
        let mut options = MountOptions::new(how.source.display().to_string(), &how.directory);
        options.read_only = true;
        options.allow_other = how.allow_other;
        options.nonempty = how.nonempty;
        options.dev = how.dev;
        options.suid = how.suid;
        options.exec = !how.noexec;
        self.add(At::Past(info.cno), &options, &super::session_options(&Options::default()))?;
        let shown = report::checkpoint(&info);
        self.log.line(&format!("{} mounted at {}", report::show_state(&shown), how.directory.display()));
        Ok(Answer::of(shown))
    }

    /// The mount `device` was made read-only, or writable again: reading changes it no more, and what was written before is durable.
    pub(super) fn remounted(&self, device: &str, read_only: bool) -> Result<Answer, Fail> {
        let pages: Vec<_> = self.lock().mounts.iter().filter(|m| m.device == device).map(|m| m.pages.clone()).collect();
        pages.iter().for_each(|pages| pages.became_read_only(read_only));
        if read_only {
            self.committed(Some(&*self.fs()?))?;
        }
        Ok(Answer::of(()))
    }
}

/// Fails where a path that a command says is another's here: who asks is in another mount name space.
pub(super) fn paths_are_right(space: Option<&str>) -> Result<(), Fail> {
    match mounts::is_same_space(mounts::space().as_deref(), space) {
        true => Ok(()),
        false => Err(mounts::elsewhere(std::process::id()).untouched()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_another_name_space_is_refused() {
        let own = mounts::space();
        assert!(own.is_some() && paths_are_right(own.as_deref()).is_ok());
        // Who cannot tell, as an earlier version.
        assert!(paths_are_right(None).is_ok());
        let why = paths_are_right(Some("mnt:[1]")).unwrap_err();
        let there = format!("nsenter --mount=/proc/{}/ns/mnt", std::process::id());
        assert!(why.is_untouched && why.message.contains(&there), "{why:?}");
    }
}
