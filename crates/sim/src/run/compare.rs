//! Comparing what the file system answers with what the model says.

use super::{Check, Run, Step, is_failure};
use crate::subject::Subject;
use crate::tree::{Outcome, Tree};
use nenrin_core::{At, Attr, Error, FileKind};
use nenrin_format::Ino;
use std::mem::discriminant;

impl<S: Subject> Run<S> {
    pub(super) fn answer<A, B>(&self, got: Result<A, Error>, want: Outcome<B>) -> Check {
        match (got, want) {
            (Ok(_), Ok(_)) => Ok(Step::Done),
            (Err(e), _) if is_failure(&e) => Ok(Step::Failed(e)),
            (Err(Error::NoSpace), _) => Ok(Step::Refused),
            (Err(a), Err(b)) if discriminant(&a) == discriminant(&b) => Ok(Step::Denied),
            (Err(Error::Stale | Error::NotFound), Err(Error::NotFound)) => Ok(Step::Denied),
            // Which of two reasons is named first is left to the implementation.
            (Err(Error::BadArgument(_)), Err(_)) => Ok(Step::Denied),
            (Ok(_), Err(e)) => Err(format!("succeeded and should have failed: {e}")),
            (Err(e), Ok(_)) => Err(format!("failed and should not have: {e:?}")),
            (Err(a), Err(b)) => Err(format!("failed with {a:?} instead of {b:?}")),
        }
    }

    pub(super) fn same_bytes(&self, got: Result<Vec<u8>, Error>, want: Outcome<Vec<u8>>) -> Check {
        if let (Ok(a), Ok(b), true) = (&got, &want, got.as_ref().ok() != want.as_ref().ok()) {
            let at = a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(a.len().min(b.len()));
            return Err(format!("other bytes: {} instead of {}, first difference at {at}", a.len(), b.len()));
        }
        self.answer(got, want)
    }

    pub(super) fn namespace(
        &mut self,
        got: Result<(), Error>,
        start: usize,
        inodes: &[u64],
        f: impl FnOnce(&mut Tree) -> Outcome<()>,
    ) -> Check {
        if matches!(got, Err(Error::NoSpace | Error::Failed(_) | Error::Device(_))) {
            return self.answer(got, Ok(()));
        }
        let want = self.model()?.change_namespace(start, inodes, f);
        let step = self.answer(got, want)?;
        for ino in inodes {
            self.compare_attr(*ino)?;
        }
        Ok(step)
    }

    pub(super) fn content<A>(
        &mut self,
        got: Result<A, Error>,
        ino: u64,
        start: usize,
        f: impl FnOnce(&mut Tree) -> Outcome<()>,
    ) -> Check {
        if matches!(got, Err(Error::NoSpace | Error::Failed(_) | Error::Device(_))) {
            return self.answer(got, Ok(()));
        }
        let want = self.model()?.change_content(start, ino, f);
        let step = self.answer(got, want)?;
        self.compare_attr(ino)?;
        Ok(step)
    }

    /// Attributes as the model has them, or gone as in the model.
    pub(super) fn compare_attr(&mut self, ino: u64) -> Result<(), String> {
        if ino == 0 {
            return Ok(());
        }
        let got = self.fs()?.getattr(At::Live, Ino(ino));
        match (got, self.model()?.tree.inode(ino)) {
            (Ok(a), Ok(i)) => {
                let size = if a.kind() == FileKind::Directory { a.size } else { i.attr.size };
                let want = Attr { blocks_512: a.blocks_512, size, ..i.attr };
                if a == want { Ok(()) } else { Err(format!("attributes {a:?}, should be {want:?}")) }
            }
            (Err(Error::NotFound | Error::Stale), Err(_)) => Ok(()),
            (Ok(a), Err(_)) => Err(format!("an inode that should be gone is there: {a:?}")),
            (Err(e), Ok(i)) => Err(format!("inode {ino} is gone ({e}), should be {:?}", i.attr)),
            (Err(e), Err(_)) => Err(format!("inode {ino}: {e:?} instead of not found")),
        }
    }

    pub(super) fn compare_xattr(&mut self, ino: u64, name: &[u8]) -> Result<(), String> {
        let got = match self.fs()?.getxattr(At::Live, Ino(ino), name) {
            Ok(value) => Some(value),
            Err(e @ (Error::Device(_) | Error::Failed(_) | Error::Damaged(..) | Error::Corrupt(_))) => {
                return Err(format!("the attribute of inode {ino}: {e}"));
            }
            Err(_) => None,
        };
        let want = self.model()?.tree.inode(ino).ok().and_then(|i| i.xattrs.get(name).cloned());
        if got == want { Ok(()) } else { Err(format!("the attribute of inode {ino} is {got:?}, should be {want:?}")) }
    }

    pub(super) fn entry(&mut self, dir: u64, name: &[u8]) -> Result<Option<u64>, String> {
        Ok(self.model()?.tree.inodes.get(&dir).and_then(|d| d.entries.get(name).copied()))
    }
}
