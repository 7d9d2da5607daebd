//! Bounded-exhaustive workloads, in the manner of ACE: every sequence of a few
//! operations on a small tree, each operation followed by every kind of sync,
//! each cut everywhere (Mohan et al., "Finding Crash-Consistency Bugs with
//! Bounded Black-Box Crash Testing", 2018).
//!
//! A step is an operation and a sync choice, one number below [`STEPS`]. An
//! operation whose names are gone does nothing, so every sequence is possible.

use crate::model::Model;
use crate::ops::Op;
use crate::run::{Run, Step};
use crate::subject::Subject;
use nenrin_core::{AllocateMode, RenameMode, SetAttr, SetTime, XattrMode};
use nenrin_format::{Ino, Time};

/// Operations there are.
pub const OPERATIONS: usize = 35;
/// Ways to sync after one.
pub const SYNCS: usize = 8;
/// Steps there are.
pub const STEPS: u16 = (OPERATIONS * SYNCS) as u16;

const ROOT: u64 = Ino::ROOT.0;
const FILE: u32 = 0o100_644;
const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;

/// How many sequences of `length` steps there are.
#[must_use]
pub const fn sequences(length: u32) -> u64 {
    (STEPS as u64).pow(length)
}

/// The steps of sequence `number`.
#[must_use]
pub fn sequence(number: u64, length: u32) -> Vec<u16> {
    (0..length).map(|i| (number / sequences(i) % u64::from(STEPS)) as u16).collect()
}

/// Carries out one call; it must succeed or be refused as the model says.
fn call<S: Subject>(run: &mut Run<S>, op: &Op) -> Result<(), String> {
    let before = run.disk.cut_points();
    let step = run.step(op).map_err(|e| format!("{op:?}: {e}"))?;
    if let Some(trace) = &mut run.trace {
        trace.push(format!("{before}..{} {op:?}: {step:?}", run.disk.cut_points()));
    }
    match step {
        Step::Failed(e) => Err(format!("{op:?}: the volume failed without a fault: {e}")),
        _ => Ok(()),
    }
}

/// The tree that every sequence starts from, durable: `/d`, `/d/h` small
/// enough for the index, `/f` and `/g` with blocks. Cuts begin behind it.
///
/// # Errors
/// A wrong answer.
pub fn setup<S: Subject>(run: &mut Run<S>) -> Result<usize, String> {
    call(run, &create(ROOT, b"d", DIRECTORY))?;
    let dir = run.newest_inode()?;
    for (parent, name, bytes, id) in [(ROOT, b"f", 10_000, 1), (ROOT, b"g", 5000, 2), (dir, b"h", 500, 3)] {
        call(run, &create(parent, name, FILE))?;
        let ino = run.newest_inode()?;
        call(run, &Op::Write { ino, offset: 0, bytes, id })?;
    }
    call(run, &Op::SyncAll)?;
    Ok(run.disk.cut_points())
}

/// Carries out a sequence.
///
/// # Errors
/// A wrong answer.
pub fn carry_out<S: Subject>(run: &mut Run<S>, steps: &[u16]) -> Result<(), String> {
    for (n, step) in steps.iter().enumerate() {
        let (operation, sync) = (usize::from(*step) / SYNCS, usize::from(*step) % SYNCS);
        let id = 10 + n as u32;
        let Some(ops) = operations(run.model()?, operation, id) else { continue };
        let target = target(run.model()?, operation);
        for op in &ops {
            call(run, op)?;
        }
        for op in syncs(run.model()?, sync, target) {
            call(run, &op)?;
        }
    }
    Ok(())
}

fn create(parent: u64, name: &[u8], mode: u32) -> Op {
    let target = if mode == SYMLINK { b"somewhere".to_vec() } else { Vec::new() };
    Op::Create { parent, name: name.to_vec(), mode, uid: 0, gid: 0, rdev: 0, target }
}

fn find(model: &Model, parent: u64, name: &[u8]) -> Option<u64> {
    model.tree.inodes.get(&parent)?.entries.get(name).copied()
}

fn size(ino: u64, size: u64) -> Op {
    Op::SetAttr { ino, set: SetAttr { size: Some(size), ..SetAttr::default() } }
}

/// The file that operation works on, for syncing it.
fn target(model: &Model, operation: usize) -> Option<u64> {
    let dir = find(model, ROOT, b"d").unwrap_or(0);
    match operation {
        13 | 18 | 30 | 31 => find(model, ROOT, b"g"),
        15 | 25 => find(model, dir, b"h"),
        _ => find(model, ROOT, b"f").or_else(|| find(model, ROOT, b"g")),
    }
}

/// The calls of an operation; `None` when its names are gone.
fn operations(model: &Model, operation: usize, id: u32) -> Option<Vec<Op>> {
    let dir = || find(model, ROOT, b"d");
    let f = || find(model, ROOT, b"f");
    let g = || find(model, ROOT, b"g");
    let h = || find(model, dir()?, b"h");
    let write = |ino: u64, offset: u64, bytes: usize| Op::Write { ino, offset, bytes, id };
    let rename = |from: u64, old: &[u8], to: u64, new: &[u8], mode| {
        find(model, from, old)?;
        Some(Op::Rename { from, old: old.to_vec(), to, new: new.to_vec(), mode })
    };
    let copy = |from: u64, from_offset: u64, to: u64, to_offset: u64, bytes: u64| Op::CopyRange {
        from,
        from_offset,
        to,
        to_offset,
        bytes,
    };
    let allocate = |mode, offset, bytes| Some(Op::Allocate { ino: f()?, mode, offset, bytes });
    let set = |set| Some(Op::SetAttr { ino: f()?, set });
    let one = match operation {
        0 => create(ROOT, b"new", FILE),
        1 => create(ROOT, b"nd", DIRECTORY),
        2 => create(dir()?, b"ns", SYMLINK),
        3 => write(f()?, model.tree.inode(f()?).ok()?.content.size(), 4096),
        4 => write(f()?, 0, 6000),
        5 => write(f()?, 50_000, 100),
        6 => size(f()?, 0),
        7 => size(f()?, 3000),
        8 => size(f()?, 20_000),
        9 => allocate(AllocateMode::Punch, 4096, 4096)?,
        10 => allocate(AllocateMode::Zero, 1000, 8000)?,
        11 => allocate(AllocateMode::Reserve, 8192, 30_000)?,
        12 => Op::Link { ino: f()?, parent: dir()?, name: b"l".to_vec() },
        13 => Op::Link { ino: g()?, parent: ROOT, name: b"l".to_vec() },
        14 => Op::Unlink { parent: ROOT, name: f().map(|_| b"f".to_vec())? },
        15 => Op::Unlink { parent: dir()?, name: h().map(|_| b"h".to_vec())? },
        16 => rename(ROOT, b"f", ROOT, b"g", RenameMode::Replace)?,
        17 => rename(ROOT, b"f", dir()?, b"f", RenameMode::Replace)?,
        18 => rename(ROOT, b"g", dir()?, b"h", RenameMode::Replace)?,
        19 => g().and(rename(ROOT, b"f", ROOT, b"g", RenameMode::Exchange))?,
        20 => rename(ROOT, b"d", ROOT, b"e", RenameMode::NoReplace)?,
        21 => Op::SetXattr { ino: f()?, name: b"user.x".to_vec(), value: vec![id as u8; 5000], mode: XattrMode::Any },
        22 => Op::RemoveXattr { ino: f()?, name: b"user.x".to_vec() },
        23 => set(SetAttr { mode: Some(0o600), ..SetAttr::default() })?,
        24 => set(SetAttr { mtime: Some(SetTime::At(Time(7))), ..SetAttr::default() })?,
        25 => write(h()?, 100, 700),
        26 => write(f()?, 8192, 400_000),
        27 => return Some(vec![Op::Open { ino: f()? }, size(f()?, 0), write(f()?, 0, 9000)]),
        28 => Op::Tmpfile { mode: FILE, uid: 0, gid: 0 },
        29 => Op::Rmdir { parent: ROOT, name: dir().map(|_| b"d".to_vec())? },
        30 => write(g()?, 4096, 4096),
        31 => copy(f()?, 0, g()?, 0, 1 << 20),
        32 => copy(g()?, 0, f()?, 4096, 5000),
        33 => copy(f()?, 0, f()?, 16_384, 8192),
        _ => Op::CheckpointCreate { name: Some(format!("s{id}").into_bytes()) },
    };
    Some(vec![one])
}

/// The calls of a sync choice.
fn syncs(model: &Model, sync: usize, target: Option<u64>) -> Vec<Op> {
    let alive = |ino: &u64| model.tree.inodes.contains_key(ino);
    let fsync = |ino: Option<u64>, callback: bool| {
        ino.filter(alive).map(|ino| Op::Fsync { ino, callback }).into_iter().collect()
    };
    let other = find(model, ROOT, b"g").filter(|g| Some(*g) != target).or_else(|| find(model, ROOT, b"f"));
    match sync {
        0 => Vec::new(),
        1 => fsync(target, true),
        2 => fsync(other, false),
        3 => fsync(Some(ROOT), true),
        4 => vec![Op::SyncAll],
        5 => vec![Op::CheckpointCreate { name: None }],
        6 => target.filter(alive).map(|ino| Op::Flush { ino }).into_iter().collect(),
        _ => vec![Op::Advance { nanos: 1_200_000_000 }, Op::Tick],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sequence_has_its_number() {
        assert_eq!(sequences(1), u64::from(STEPS));
        assert_eq!(sequence(0, 3), [0, 0, 0]);
        assert_eq!(sequence(sequences(2) - 1, 2), [STEPS - 1, STEPS - 1]);
        let all: std::collections::BTreeSet<_> = (0..sequences(1)).map(|n| sequence(n, 1)).collect();
        assert_eq!(all.len() as u64, sequences(1));
    }
}
