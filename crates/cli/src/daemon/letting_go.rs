//! Letting checkpoints and snapshots go when somebody asks for it: what is mounted stays, also what is mounted while it is being looked
//! at what goes, which takes a while. What is only looked into (`.nenrin/at`) goes.

use super::service::{Service, plain};
use crate::control::{Answer, DeletedData};
use crate::error::Fail;
use crate::report;
use nenrin_core::At;
use nenrin_format::Cno;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Checkpoints let go by one commit.
const CHECKPOINTS_AT_ONCE: usize = 512;

/// The states that are mounted or being mounted, once for each mount. It is asked under a lock of the library: whoever has its own takes
/// no other.
#[derive(Clone, Default)]
pub(super) struct InUse(Arc<Mutex<Vec<Cno>>>);

impl InUse {
    fn lock(&self) -> MutexGuard<'_, Vec<Cno>> {
        // Nothing ends in the middle of a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A state is about to be mounted. To be said before it is held: what is let go before that is not there to be held.
    pub fn begin(&self, at: At) -> Use {
        let At::Past(cno) = at else { return Use(None) };
        self.lock().push(cno);
        Use(Some((self.clone(), cno)))
    }

    fn has(&self, cno: Cno) -> bool {
        self.lock().contains(&cno)
    }
}

/// A mount of a state, until it is dropped.
pub(super) struct Use(Option<(InUse, Cno)>);

impl Drop for Use {
    fn drop(&mut self) {
        let Some((all, cno)) = self.0.take() else { return };
        let mut all = all.lock();
        if let Some(i) = all.iter().position(|c| *c == cno) {
            all.swap_remove(i);
        }
    }
}

impl Service {
    /// What has a name, and what is mounted, stays.
    pub(super) fn delete_checkpoints(&self, from: u64, to: u64) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let is_mounted = |cno: Cno| self.in_use.has(cno);
        let mut data = DeletedData { deleted: 0, freed_bytes: 0, named: Vec::new(), mounted: Vec::new() };
        let mut gone = Vec::new();
        for info in fs.checkpoints().into_iter().filter(|c| (from..=to).contains(&c.cno.0)) {
            match (info.name.is_some(), is_mounted(info.cno)) {
                (true, _) => data.named.push(info.cno.0),
                (_, true) => data.mounted.push(info.cno.0),
                _ => gone.push(info.cno),
            }
        }
        data.freed_bytes = fs.freed_by_dropping(&gone).map_err(plain)?.blocks() * nenrin_format::BLOCK_BYTES as u64;
        for cnos in gone.chunks(CHECKPOINTS_AT_ONCE) {
            // Others let some go, and name or mount them, meanwhile.
            let went = fs.checkpoint_drop_unnamed(cnos, &is_mounted).map_err(|e| match data.deleted {
                0 => plain(e),
                n => Fail::new(format!("{n} were let go, then: {e}")),
            })?;
            data.deleted += went as u64;
            if went == cnos.len() {
                continue;
            }
            for stays in fs.checkpoints().iter().filter(|c| cnos.binary_search(&c.cno).is_ok()) {
                let which = if stays.name.is_some() { &mut data.named } else { &mut data.mounted };
                which.push(stays.cno.0);
            }
        }
        Ok(Answer::of(data))
    }

    /// A snapshot that is mounted stays.
    pub(super) fn delete(&self, name: &str) -> Result<Answer, Fail> {
        let fs = self.fs()?;
        let none = || Fail::new(format!("there is no snapshot {name:?}; nenrin snapshot list shows what there is"));
        let info = fs.checkpoint_find(name.as_bytes()).ok_or_else(none)?;
        // Without its name only the retention rule might keep it, which a user who deletes does not mean.
        let dropped = fs.snapshot_drop(info.cno, name.as_bytes(), &|cno| self.in_use.has(cno)).map_err(plain)?;
        if dropped.is_some() {
            return Ok(Answer::of(report::checkpoint(&info)));
        }
        if !self.in_use.has(info.cno) {
            // Somebody else has let it go.
            return Err(none());
        }
        let mounted = self.mounts().into_iter().find(|m| m.checkpoint == Some(info.cno.0));
        let place = mounted.map_or_else(|| "just now".to_owned(), |m| format!("at {}", m.directory));
        Err(Fail::new(format!("snapshot {name:?} is mounted {place}; unmount it first")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_twice_is_in_use_until_both_have_ended() {
        let all = InUse::default();
        let (first, second, live) = (all.begin(At::Past(Cno(7))), all.begin(At::Past(Cno(7))), all.begin(At::Live));
        assert!(all.has(Cno(7)) && !all.has(Cno(8)));
        drop((first, live));
        assert!(all.has(Cno(7)));
        drop(second);
        assert!(!all.has(Cno(7)));
    }
}
