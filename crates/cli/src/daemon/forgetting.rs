//! What is forgotten on request of a command: what was listed, and nothing else.

use super::service::{Service, plain};
use crate::control::{Answer, ForgetPlanData};
use crate::error::Fail;
use crate::{report, states};
use nenrin_core::{Error, ForgetPlan};
use nenrin_format::Ino;
use nenrin_fuse::Pages;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

/// The kernel lets go of a removed file a moment after its name went.
const FORGET_WAIT: Duration = Duration::from_secs(3);
const FORGET_STEP: Duration = Duration::from_millis(50);

/// What a path stood for. When its names have gone nothing may be known of it any more.
#[derive(Clone, Default)]
pub(super) struct Planned {
    path: PathBuf,
    inodes: Vec<Ino>,
    owners: BTreeSet<u32>,
    /// The names and the snapshots that were listed, in short.
    listed: u64,
}

impl Planned {
    fn of(path: PathBuf, plan: ForgetPlan) -> Self {
        let mut listed = DefaultHasher::new();
        let names: BTreeSet<&[u8]> = plan.names.iter().map(|n| &n.path[..]).collect();
        (names, plan.snapshots.iter().map(|s| s.cno.0).collect::<BTreeSet<_>>()).hash(&mut listed);
        Self { path, listed: listed.finish(), inodes: plan.inodes, owners: plan.owners }
    }
    /// Tells what goes from anything else that might: whoever listed that asks for no more.
    fn name(&self) -> String {
        let mut hash = DefaultHasher::new();
        (&self.path, self.inodes.iter().map(|ino| ino.0).collect::<BTreeSet<_>>(), self.listed).hash(&mut hash);
        format!("{:016x}", hash.finish())
    }
}

impl Service {
    /// What a path stands for is noted, since its names go before it is forgotten; but not for who only wants to know.
    pub(super) fn forget_plan(&self, path: PathBuf, only_tell: bool) -> Result<Answer, Fail> {
        self.bring_in();
        let fs = self.fs()?;
        let mut noted = self.forget.lock().unwrap_or_else(PoisonError::into_inner);
        let before = noted.as_ref().filter(|p| p.path == path).cloned().unwrap_or_default();
        let plan = match fs.forget_plan(&states::parts(&path)) {
            Err(Error::NotFound) if before.inodes.is_empty() => None,
            Err(Error::NotFound) => {
                let plan = fs.forget_plan_of(before.inodes).map_err(|e| Fail::at(path.display(), e))?;
                Some(ForgetPlan { owners: plan.owners.union(&before.owners).copied().collect(), ..plan })
            }
            other => Some(other.map_err(|e| Fail::at(path.display(), e))?),
        };
        let unknown = plan.is_none().then(|| states::unheard_of(fs.checkpoints_cut(), &fs.checkpoints()));
        let plan = plan.unwrap_or_default();
        if !only_tell && plan.names.iter().any(|n| n.is_now) {
            // Whoever removes it now must find it in the past then.
            fs.checkpoint_create(None).map_err(plain)?;
        }
        let elsewhere = fs.elsewhere(&states::parts(&path), &plan.inodes).map_err(|e| Fail::at(path.display(), e))?;
        let elsewhere_bytes = states::no_texts(&elsewhere);
        let elsewhere = elsewhere.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect();
        let data = ForgetPlanData { unknown, elsewhere, elsewhere_bytes, ..report::forget_plan(&plan) };
        let planned = Planned::of(path, plan);
        let data = ForgetPlanData { plan: planned.name(), ..data };
        if !only_tell {
            *noted = Some(planned);
        }
        Ok(Answer::of(data))
    }

    /// Of what the plan called `plan` told. Where somebody else has listed since, that may be more.
    pub(super) fn forget(&self, path: &Path, plan: &str) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let planned = self.forget.lock().unwrap_or_else(PoisonError::into_inner).take_if(|p| p.name() == plan);
        let inodes = planned.map(|p| p.inodes).ok_or_else(|| {
            Fail::at(path.display(), "what goes is not what was listed, since somebody else forgets, too; look again")
        })?;
        let begin = Instant::now();
        let forgotten = loop {
            let forgotten = match fs.forget(&states::parts(path), &inodes) {
                Err(Error::NotFound) if inodes.is_empty() => fs.forget_free().map(|()| 0),
                other => other,
            };
            match forgotten {
                Err(Error::ForgetInUse(_)) if begin.elapsed() < FORGET_WAIT => {
                    thread::sleep(FORGET_STEP);
                }
                other => break other,
            }
        };
        // Also of a part of it.
        self.each_pages(Pages::drop_past);
        let forgotten = forgotten.map_err(plain)?;
        self.log.line(&format!("forgetting {forgotten} files and directories"));
        Ok(Answer::of(forgotten))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Log;
    use super::*;
    use crate::clock::HostClock;
    use crate::device::Device;
    use crate::options::Options;
    use nenrin_core::{Fs, MkfsOptions, MountOptions, NewInode, mkfs_on};
    use nenrin_device::MemDevice;
    use std::sync::{Arc, mpsc};

    /// A file that was made, kept, and removed.
    fn gone(fs: &Fs) -> Ino {
        let new = NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let ino = fs.create(Ino::ROOT, b"f", &new).unwrap().ino;
        fs.checkpoint_create(None).unwrap();
        fs.unlink(Ino::ROOT, b"f").unwrap();
        fs.release(ino);
        ino
    }

    /// Two list what a path stood for, and between them it stood for one more: who has seen the first list alone forgets nothing by it.
    #[test]
    fn what_somebody_else_listed_is_not_forgotten() {
        let device: Device = Arc::new(MemDevice::new(64 << 20));
        let options = MkfsOptions { uuid: [7; 16], ..MkfsOptions::default() };
        mkfs_on(std::slice::from_ref(&device), &HostClock::shared(), &options).unwrap();
        let fs = Fs::open(vec![device], HostClock::shared(), MountOptions::default()).unwrap();
        let log = Arc::new(Log::open(None, false).unwrap());
        let service = Service::new(fs.clone(), "v".into(), &Options::default(), log, mpsc::channel().0);
        let path = Path::new("f");
        let list = || service.forget_plan(path.into(), false).unwrap().told::<ForgetPlanData>();
        let forget = |plan: &str| service.forget(path, plan).map(Answer::told::<u64>);
        gone(&fs);
        let first = list();
        gone(&fs);
        let second = list();
        assert_eq!((first.inodes, second.inodes), (1, 2));
        // Nor by who has seen no list at all.
        for plan in [&first.plan[..], ""] {
            let refused = forget(plan).unwrap_err().message;
            assert!(refused.contains("not what was listed") && refused.contains("look again"), "{refused}");
        }
        // The other list counts still, and who lists the same once more changes nothing of that.
        assert_eq!(list().plan, second.plan);
        assert_eq!(forget(&second.plan), Ok(2));
        fs.close().unwrap();
    }

    /// The same things under one more name are another list: who has seen the first has not seen that.
    #[test]
    fn a_name_that_was_not_listed_is_not_forgotten() {
        let device: Device = Arc::new(MemDevice::new(64 << 20));
        let options = MkfsOptions { uuid: [7; 16], ..MkfsOptions::default() };
        mkfs_on(std::slice::from_ref(&device), &HostClock::shared(), &options).unwrap();
        let fs = Fs::open(vec![device], HostClock::shared(), MountOptions::default()).unwrap();
        let log = Arc::new(Log::open(None, false).unwrap());
        let service = Service::new(fs.clone(), "v".into(), &Options::default(), log, mpsc::channel().0);
        let path = Path::new("f");
        let list = || service.forget_plan(path.into(), false).unwrap().told::<ForgetPlanData>();
        let new = NewInode { mode: 0o100_600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let ino = fs.create(Ino::ROOT, b"f", &new).unwrap().ino;
        fs.checkpoint_create(None).unwrap();
        let first = list();
        fs.link(ino, Ino::ROOT, b"g").unwrap();
        fs.checkpoint_create(None).unwrap();
        fs.unlink(Ino::ROOT, b"f").unwrap();
        fs.unlink(Ino::ROOT, b"g").unwrap();
        fs.release(ino);
        let second = list();
        assert_eq!((first.inodes, first.names.len(), second.inodes, second.names.len()), (1, 1, 1, 2));
        let forget = |plan: &str| service.forget(path, plan).map(Answer::told::<u64>);
        assert!(forget(&first.plan).unwrap_err().message.contains("not what was listed"));
        assert_eq!(forget(&list().plan), Ok(1));
        fs.close().unwrap();
    }
}
