//! Volumes with a deep index: what they hold before the work begins that is cut, and changes of many neighbours at a time,
//! so that nodes of all levels are split, joined and emptied.

use super::{DIRECTORY, Later, REGULAR, Workload};
use crate::model::Model;
use crate::ops::Op;
use crate::prng::Prng;
use crate::run::{Run, Step};
use crate::subject::Subject;
use nenrin_core::{FileKind, SetAttr, XattrMode};
use nenrin_format::Ino;

/// Directories of a wide volume, files in each, and pieces of its file with holes.
const DIRS: u64 = 5;
const FILES: u64 = 36;
const PIECES: u64 = 150;
/// Neighbours that are changed one after the other, at most.
const SWATH_MAX: usize = 40;

/// One of the names of a wide volume.
pub(super) fn name(n: u64) -> Vec<u8> {
    format!("w{n}").into_bytes()
}

/// Fills a volume as [`super::Profile::Wide`] finds it: it may be cut from the device operation returned.
///
/// # Errors
/// A wrong answer, or a call that was refused.
pub fn prefill<S: Subject>(run: &mut Run<S>, seed: u64) -> Result<usize, String> {
    let mut rng = Prng::stream(seed, 41);
    let call = |run: &mut Run<S>, op: Op| match run.step(&op)? {
        Step::Done => Ok(()),
        step => Err(format!("before the work begins {op:?} is answered by {step:?}")),
    };
    let create = |parent, name, mode| Op::Create { parent, name, mode, uid: 0, gid: 0, rdev: 0, target: Vec::new() };
    let mut id = 1 << 20;
    for d in 0..DIRS {
        call(run, create(Ino::ROOT.0, format!("wide {d}").into_bytes(), DIRECTORY | 0o755))?;
        let dir = run.newest_inode()?;
        for n in 0..FILES {
            call(run, create(dir, name(d * FILES + n), REGULAR | 0o644))?;
            let ino = run.newest_inode()?;
            id += 1;
            if n % 2 == 0 {
                call(run, Op::Write { ino, offset: rng.below(3) * 8192, bytes: 1 + rng.index(6000), id })?;
            }
            if n % 3 == 0 {
                let value = crate::content::pattern(id, 0, rng.index(90));
                call(run, Op::SetXattr { ino, name: b"user.w".to_vec(), value, mode: XattrMode::Any })?;
            }
        }
        if d == DIRS / 2 {
            call(run, Op::CheckpointCreate { name: Some(b"half".to_vec()) })?;
        }
    }
    call(run, create(Ino::ROOT.0, b"pieces".to_vec(), REGULAR | 0o644))?;
    let ino = run.newest_inode()?;
    for n in 0..PIECES {
        call(run, Op::Write { ino, offset: n * 8192, bytes: 100, id: id + n as u32 })?;
    }
    // Until the index is on the device: what is changed then is not in memory.
    let before = run.fs()?.index_checkpoints();
    call(run, Op::SyncAll)?;
    for _ in 0..600 {
        call(run, Op::Advance { nanos: 1_000_000_000 })?;
        call(run, Op::Tick)?;
        if run.fs()?.index_checkpoints() > before {
            break;
        }
    }
    Ok(run.disk.cut_points())
}

impl Workload {
    /// Neighbours are removed, or made, or changed, one after the other.
    pub(super) fn swath(&mut self, model: &Model) -> Option<Op> {
        let dir = self.dir(model);
        let entries: Vec<(&Vec<u8>, u64)> = model.tree.inodes.get(&dir)?.entries.iter().map(|(n, i)| (n, *i)).collect();
        let count = 1 + self.rng.index(SWATH_MAX);
        let from = self.rng.index(entries.len().max(1));
        let is_dir = |ino: &u64| model.tree.inodes.get(ino).is_some_and(|i| i.attr.kind() == FileKind::Directory);
        let there = entries.iter().skip(from).filter(|(_, ino)| !is_dir(ino)).take(count);
        let id = self.next_id();
        let swath: Vec<Op> = match self.rng.below(5) {
            0..=1 => there.map(|(name, _)| Op::Unlink { parent: dir, name: (*name).clone() }).collect(),
            2 => there
                .map(|(_, ino)| {
                    let value = crate::content::pattern(id, 0, 1 + *ino as usize % 50);
                    Op::SetXattr { ino: *ino, name: b"user.a".to_vec(), value, mode: XattrMode::Any }
                })
                .collect(),
            3 => there
                .map(|(_, ino)| Op::SetAttr { ino: *ino, set: SetAttr { mode: Some(0o640), ..SetAttr::default() } })
                .collect(),
            _ => {
                let made = self.rng.below(400)..400;
                let create = |n| {
                    let (name, target) = (name(n), Vec::new());
                    Op::Create { parent: dir, name, mode: REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target }
                };
                made.take(count).map(create).collect()
            }
        };
        self.later.extend(swath.into_iter().map(Later::Do));
        self.later.pop_front().and_then(|first| self.resolve(first, model))
    }
}
