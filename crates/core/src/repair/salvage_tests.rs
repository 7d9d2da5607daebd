//! Volumes of which no root is left, or whose index has lost branches.

use super::losses::Losses;
use super::tests::{
    assert_exact, assert_said, clock, destroy, device, new, nodes, numbers, offset, read_only, repair, tree, volume,
};
use super::{LossKind, MendKind, RepairPlan, RepairReport, base};
use crate::devices::assemble;
use crate::testing::TestClock;
use crate::{At, Error, Fs, MkfsOptions, MountOptions, RenameMode, SetAttr, mkfs};
use nenrin_device::{BlockDevice, MemDevice};
use nenrin_format::node::{NODE_MAGIC, NodeHeader, NodePtr, TreeId};
use nenrin_format::partial::{Header, PartialKind};
use nenrin_format::records::Record;
use nenrin_format::superblock::Superblock;
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, BLOCK_BYTES, Ino, NODE_BYTES};
use std::sync::Arc;

/// Destroys every root partial there is.
fn destroy_roots(bytes: &mut [u8]) -> usize {
    let mut destroyed = 0;
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        if Header::peek(block).is_ok_and(|h| h.kind == PartialKind::Root) {
            block.fill(0x5a);
            destroyed += 1;
        }
    }
    destroyed
}

/// Destroys every index node for which `which` holds, of any checkpoint; told by tree, level and generation.
fn destroy_nodes(bytes: &mut [u8], mut which: impl FnMut(u32, u8, u64) -> bool) -> usize {
    let mut destroyed = 0;
    let blocks = bytes.len() / BLOCK_BYTES;
    for block in 0..blocks - NODE_BYTES / BLOCK_BYTES {
        let at = block * BLOCK_BYTES;
        let node = &bytes[at..at + NODE_BYTES];
        if nenrin_format::node::verify(node) && node[..4] == NODE_MAGIC.to_le_bytes() {
            let (head, _) = NodeHeader::read_prefix(node).unwrap();
            if which(head.tree.get(), head.level, head.generation.get()) {
                bytes[at..at + NODE_BYTES].fill(0xa5);
                destroyed += 1;
            }
        }
    }
    destroyed
}

fn mended(report: &RepairReport, kind: MendKind) -> u64 {
    report.mends.iter().find(|(k, _)| *k == kind).map_or(0, |(_, n)| *n)
}

/// Names, owners, content: all of it is what it was.
fn assert_live_state(bytes: &[u8], damaged: &[u8]) -> (Vec<u8>, RepairReport) {
    let before = tree(&read_only(bytes), At::Live);
    let (after, report) = repair(damaged);
    assert_eq!(before, tree(&read_only(&after), At::Live));
    (after, report)
}

/// The same, by a salvage: only the past is gone.
fn assert_all_there(bytes: &[u8], damaged: &[u8]) {
    let (after, report) = assert_live_state(bytes, damaged);
    assert_eq!(mended(&report, MendKind::IndexFound), 1);
    assert!(report.losses.iter().all(|l| l.kind == LossKind::CheckpointsLost), "{:?}", report.losses);
    assert!(!report.losses.is_empty() && read_only(&after).checkpoints().is_empty());
}

#[test]
fn without_any_root_partial_the_live_state_is_found() {
    for clean in [true, false] {
        let bytes = volume(400, clean);
        let mut damaged = bytes.clone();
        assert!(destroy_roots(&mut damaged) >= 8);
        assert_all_there(&bytes, &damaged);
    }
}

/// A volume that was used and unmounted several times more, so that its last checkpoints differ.
fn with_checkpoints(files: u64) -> Vec<u8> {
    let memory = Arc::new(MemDevice::from_bytes(volume(files, true)));
    for round in 0..4 {
        let fs = Fs::open(vec![memory.clone()], clock(), MountOptions::default()).unwrap();
        for n in 0..20 {
            let f = fs.create(Ino::ROOT, format!("round {round} file {n}").as_bytes(), &new(0o100_644)).unwrap();
            fs.write(f.ino, 0, &vec![round + 1; 3000 * n], 0).unwrap();
        }
        fs.unlink(Ino::ROOT, format!("round {round} file 3").as_bytes()).unwrap();
        fs.close().unwrap();
    }
    memory.snapshot()
}

/// Branches of the newest live tree are lost, both copies: an older tree and the log behind it have it all.
#[test]
fn a_lost_branch_is_found_in_an_older_tree() {
    let bytes = with_checkpoints(400);
    let mut all = Vec::new();
    destroy_nodes(&mut bytes.clone(), |tree, level, generation| {
        all.extend((tree == 1 && level > 0).then_some(generation));
        false
    });
    all.sort_unstable();
    all.dedup();
    assert!(all.len() >= 4, "{all:?}");
    // One checkpoint after another loses its branches.
    for lost in 1..3 {
        let from = all[all.len() - lost];
        let mut damaged = bytes.clone();
        destroy_nodes(&mut damaged, |tree, level, generation| tree == 1 && level > 0 && generation >= from);
        assert_live_state(&bytes, &damaged);
        // The roots may be gone as well.
        destroy_roots(&mut damaged);
        assert_all_there(&bytes, &damaged);
    }
}

/// A leaf of history that the newest root shares with those before it.
fn old_leaf_of_history(bytes: &[u8]) -> NodePtr {
    let generation = |ptr: &NodePtr| {
        let (head, _) = NodeHeader::read_prefix(&bytes[offset(bytes, ptr.copies[0])..]).unwrap();
        head.generation.get()
    };
    let of_history = nodes(bytes).into_iter().filter(|(tree, level, _)| *tree >= TreeId::HISTORY.0 && *level == 0);
    of_history.map(|(_, _, ptr)| ptr).min_by_key(generation).unwrap()
}

/// A leaf of history is lost that all roots share, and of the newest root more: what is whole behind an older one is taken
/// from there, and the past with it.
fn roots_of_which_none_is_whole() {
    let bytes = with_checkpoints(400);
    let before = tree(&read_only(&bytes), At::Live);
    for level in [0, 1] {
        let mut damaged = bytes.clone();
        let newest = nodes(&bytes).iter().filter(|(tree, l, _)| *tree == 1 && *l == level).count();
        assert!(newest > 0);
        let mut last = 0;
        destroy_nodes(&mut bytes.clone(), |tree, l, generation| {
            last = if tree == 1 && l == level { last.max(generation) } else { last };
            false
        });
        assert!(destroy_nodes(&mut damaged, |tree, l, generation| tree == 1 && l == level && generation == last) >= 2);
        destroy(&mut damaged, &old_leaf_of_history(&bytes));
        let (after, report) = repair(&damaged);
        let fs = read_only(&after);
        assert!(before == tree(&fs, At::Live), "what an older root has is lost: {:?}", report.losses);
        assert!(!fs.checkpoints().is_empty(), "the past is lost with one leaf of it: {:?}", report.losses);
        assert!(report.losses.iter().all(|l| l.kind == LossKind::PastIncomplete), "{:?}", report.losses);
    }
}

#[test]
fn of_several_roots_that_is_taken_of_which_least_is_lost() {
    roots_of_which_none_is_whole();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what an older root has is lost")]
fn an_older_root_that_is_not_taken_is_noticed() {
    crate::breaks::with(crate::breaks::Break::RootAllOrNone, roots_of_which_none_is_whole);
}

/// A volume whose last four roots have each changed a leaf that none before it has, and share one of history.
fn with_different_roots() -> Vec<u8> {
    let memory = Arc::new(MemDevice::from_bytes(with_checkpoints(400)));
    let fs = Fs::open(vec![memory.clone()], clock(), MountOptions::default()).unwrap();
    for round in 0..6u32 {
        let set = SetAttr { mode: Some(0o600 + round), ..SetAttr::default() };
        fs.setattr(Ino::ROOT, &set).unwrap();
        fs.index_checkpoint(true).unwrap();
    }
    drop(fs);
    memory.snapshot()
}

/// The root from which a repair starts, counted from the newest: one of all that can be read of the same volume.
fn start_of(bytes: &[u8], roots: &[Superblock]) -> usize {
    let assembly = assemble(&[device(bytes)], true).unwrap();
    let base = base::find(&assembly, base::Begin::NewestTree, &mut Losses::default()).unwrap().unwrap();
    roots.iter().position(|r| r.generation == base.superblock.generation).unwrap()
}

/// Of roots before the two newest nodes may have been written over: where none is whole the less that is lost behind one of these is no
/// reason to start there, also where the newest root cannot be read.
#[test]
fn of_roots_that_are_not_whole_an_old_one_is_not_taken() {
    let bytes = with_different_roots();
    let roots = assemble(&[device(&bytes)], true).unwrap().found.roots;
    assert!(roots.len() >= 4 && start_of(&bytes, &roots) == 0);
    let mut shared = bytes.clone();
    destroy(&mut shared, &old_leaf_of_history(&bytes));
    let lose = |damaged: &mut Vec<u8>, of: usize| {
        let of = roots[of].generation.0;
        assert!(destroy_nodes(damaged, |tree, level, generation| tree == 1 && level == 0 && generation == of) >= 2);
    };
    for (lost, start) in [(0, 0), (1, 1), (2, 0)] {
        let mut damaged = shared.clone();
        (0..lost).for_each(|of| lose(&mut damaged, of));
        assert_eq!(start_of(&damaged, &roots), start, "{lost} roots lack a leaf");
    }
    for (lost, start) in [(false, 1), (true, 1)] {
        let mut damaged = shared.clone();
        for (addr, _) in roots[0].root {
            let at = offset(&bytes, addr);
            damaged[at..at + BLOCK_BYTES].fill(0x5a);
        }
        if lost {
            lose(&mut damaged, 1);
        }
        assert_eq!(start_of(&damaged, &roots), start, "the newest cannot be read, the next one lacks a leaf: {lost}");
    }
    // One that is whole is taken, however old.
    let mut damaged = bytes;
    (0..2).for_each(|of| lose(&mut damaged, of));
    assert_eq!(start_of(&damaged, &roots), 2);
}

/// How long checkpoints are kept stands in each root, whatever became of the index.
#[test]
fn the_rule_of_retention_outlives_the_index() {
    let memory = Arc::new(MemDevice::from_bytes(volume(400, true)));
    let open = || Fs::open(vec![memory.clone()], clock(), MountOptions::default()).unwrap();
    let fs = open();
    let usual = fs.retention();
    fs.set_retention("2h:all 30d:1d").unwrap();
    let rule = fs.retention();
    assert_ne!(rule, usual);
    fs.close().unwrap();
    drop(fs);
    (0..4).for_each(|_| open().close().unwrap());
    let mut damaged = memory.snapshot();
    assert!(destroy_nodes(&mut damaged, |tree, level, _| tree == 1 && level > 0) > 1);
    let (after, report) = repair(&damaged);
    assert_eq!(read_only(&after).retention(), rule, "{:?}", report.losses);
    let is_told = |report: &RepairReport| report.losses.iter().any(|l| l.text.contains("by the usual rule"));
    assert!(!is_told(&report));
    // Where the log says nothing of it, and then without a root, too.
    for block in damaged.chunks_exact_mut(BLOCK_BYTES) {
        if Header::peek(block).is_ok_and(|h| h.kind == PartialKind::Chain) {
            block.fill(0x5a);
        }
    }
    let (after, report) = repair(&damaged);
    assert!(read_only(&after).retention() == rule && !is_told(&report), "{:?}", report.losses);
    destroy_roots(&mut damaged);
    let (after, report) = repair(&damaged);
    assert!(read_only(&after).retention() == usual && is_told(&report), "{:?}", report.losses);
    // What the log says is newer than what the roots say, and counts alone where there is none.
    let fs = open();
    fs.set_retention("3h:all 40d:1d").unwrap();
    let newer = fs.retention();
    assert!(newer != rule && newer != usual);
    fs.sync_all().unwrap();
    drop(fs);
    for has_roots in [true, false] {
        let mut damaged = memory.snapshot();
        assert!(destroy_nodes(&mut damaged, |tree, level, _| tree == 1 && level > 0) > 1);
        if !has_roots {
            destroy_roots(&mut damaged);
        }
        let (after, report) = repair(&damaged);
        assert!(read_only(&after).retention() == newer && !is_told(&report), "{:?}", report.losses);
    }
}

/// Nothing of the index is left: names and content come from the log.
#[test]
fn without_index_the_log_tells() {
    for clean in [true, false] {
        let bytes = volume(400, clean);
        let before = tree(&read_only(&bytes), At::Live);
        let mut damaged = bytes.clone();
        destroy_roots(&mut damaged);
        assert!(destroy_nodes(&mut damaged, |_, _, _| true) > 20);
        let (after, report) = repair(&damaged);
        let found = tree(&read_only(&after), At::Live);
        assert_exact(&before, &found, &report);
        let same = before.iter().filter(|(path, file)| found.get(*path) == Some(file)).count();
        // Where the log was written over, the names made there are gone; all of it is told.
        let least = if clean { before.len() } else { before.len() / 2 };
        assert!(same >= least, "{same} of {}", before.len());
        assert!(clean || report.losses.iter().any(|l| l.kind == LossKind::LogGap));
    }
}

/// Neither index nor log are left: what the summaries of data say whose it was is in lost+found.
#[test]
fn without_index_and_log_the_summaries_tell_whose_content_it_was() {
    let bytes = volume(400, true);
    let before = tree(&read_only(&bytes), At::Live);
    let mut damaged = bytes;
    destroy_roots(&mut damaged);
    destroy_nodes(&mut damaged, |_, _, _| true);
    let mut data = Vec::new();
    for (at, block) in damaged.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        match Header::peek(block).map(|h| h.kind) {
            Ok(PartialKind::Data) => data.push(at),
            Ok(_) => block.fill(0x5a),
            Err(_) => {}
        }
    }
    // A run whose content does not fit its checksum is none: the first block behind a summary.
    let hit = (data[data.len() / 2] + 1) * BLOCK_BYTES;
    damaged[hit] ^= 1;
    let (after, report) = repair(&damaged);
    let found = tree(&read_only(&after), At::Live);
    let by_ino: std::collections::BTreeMap<_, _> = before.values().map(|f| (f.ino, f)).collect();
    let mut whole = 0;
    for (path, file) in found.iter().filter(|(_, f)| f.size > 0) {
        assert!(path.starts_with(b"/lost+found/"), "{}", String::from_utf8_lossy(path));
        let Some(was) = by_ino.get(&file.ino) else { panic!("inode {} was never there", file.ino) };
        assert_eq!((file.mode, file.owner), (0o100_600, (0, 0)));
        // Whole blocks, behind the end zeros; what is not known cannot be read.
        let (Ok(then), Ok(now)) = (&was.content, &file.content) else { continue };
        // The one that was hit may have lost its end.
        let both = then.len().min(now.len());
        assert_eq!(then[..both], now[..both], "inode {}", file.ino);
        assert!(now[both..].iter().all(|b| *b == 0));
        whole += usize::from(both == then.len());
    }
    let large = before.values().filter(|f| f.content.as_ref().is_ok_and(|c| c.len() > 4096)).count();
    assert!(whole > large / 2, "{whole} of {large}");
    let told = report.losses.iter().filter(|l| l.kind == LossKind::ContentFound).count();
    assert!(told >= whole && told <= large, "{told} of {large}");
    // Of the sparse file everything is told that was not found.
    let gap = found.values().filter(|f| f.content.is_err()).count();
    assert!(gap > 0 && report.losses.iter().any(|l| l.kind == LossKind::RangeLost));
    assert_said(&[805]);
}

/// Where the log has a gap: what the rest of it tells counts more than what summaries say.
#[test]
fn what_the_log_tells_of_is_not_sought_in_summaries() {
    const BYTES: usize = 3 << 20;
    let memory = Arc::new(MemDevice::new(48 << 20));
    let shared: Arc<dyn BlockDevice> = memory.clone();
    mkfs(&shared, &clock(), &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() }).unwrap();
    let time = Arc::new(TestClock::default());
    let fs = Fs::open(vec![shared], time.clone(), MountOptions::default()).unwrap();
    let make = |name: &str, fill: u8| {
        let ino = fs.create(Ino::ROOT, name.as_bytes(), &new(0o100_640)).unwrap().ino;
        for at in (0..BYTES).step_by(1 << 16) {
            fs.write(ino, at as u64, &[fill; 1 << 16], 0).unwrap();
        }
        fs.fsync_wait(ino).unwrap();
        ino
    };
    make("before", 1);
    let source = make("lost source", 2);
    let alone = make("lost alone", 3);
    make("after", 4);
    let copy = fs.create(Ino::ROOT, b"copy", &new(0o100_640)).unwrap().ino;
    assert_eq!(fs.copy_range(source, 0, copy, 0, BYTES as u64, 0).unwrap(), BYTES as u64);
    fs.fsync_wait(copy).unwrap();
    let removed = make("removed", 5);
    fs.unlink(Ino::ROOT, b"removed").unwrap();
    // Until nothing of it is left in the index.
    for _ in 0..40 {
        time.0.fetch_add(200_000_000, std::sync::atomic::Ordering::Relaxed);
        fs.tick().unwrap();
    }
    fs.sync_all().unwrap();
    let bytes = memory.snapshot();
    let mut damaged = bytes.clone();
    destroy_roots(&mut damaged);
    destroy_nodes(&mut damaged, |_, _, _| true);
    // Their creation and all of their content.
    let is_lost = |record: Record<'_>| match record {
        Record::Create { ino, .. } | Record::Content { ino, .. } => ino == source || ino == alone,
        _ => false,
    };
    let mut hit = Vec::new();
    for at in (0..damaged.len()).step_by(BLOCK_BYTES) {
        let Ok(summary) = Header::decode(&damaged[at..]) else { continue };
        let mut r = Reader::new(summary.records);
        while let (PartialKind::Chain, false) = (summary.header.kind, r.is_empty()) {
            if is_lost(Record::decode(&mut r).unwrap()) {
                hit.push(at);
            }
        }
    }
    assert!(hit.len() >= 2, "{hit:?}");
    hit.into_iter().for_each(|at| damaged[at..at + BLOCK_BYTES].fill(0x5a));
    let (after, report) = repair(&damaged);
    let (before, found) = (tree(&read_only(&bytes), At::Live), tree(&read_only(&after), At::Live));
    let by_ino = |ino: Ino| found.iter().find(|(_, f)| f.ino == ino);
    // The copy has all of its blocks, whatever became of what it was copied from.
    let (_, there) = by_ino(copy).unwrap();
    assert_eq!(there.content, before[&b"/copy"[..]].content, "{report:?}");
    assert!(by_ino(source).is_none(), "all its blocks are the copy's");
    assert!(by_ino(removed).is_none(), "the log tells that it was removed");
    let (path, there) = by_ino(alone).unwrap();
    assert!(path.starts_with(b"/lost+found/"));
    assert_eq!(there.content, Ok(vec![3; BYTES]));
    let told = |ino: Ino| report.losses.iter().any(|l| l.kind == LossKind::ContentFound && l.ino == Some(ino));
    assert!(told(alone) && !told(source) && !told(removed), "{report:?}");
}

/// The top of every tree is lost: what is found must not pass for the whole.
#[test]
fn part_of_a_tree_is_not_taken_for_the_whole() {
    let bytes = with_checkpoints(1600);
    let before = tree(&read_only(&bytes), At::Live);
    let mut damaged = bytes.clone();
    destroy_roots(&mut damaged);
    assert!(destroy_nodes(&mut damaged, |tree, level, _| tree == 1 && level > 0) > 2);
    let (after, report) = repair(&damaged);
    assert_exact(&before, &tree(&read_only(&after), At::Live), &report);
}

/// The test above can fail: `scripts/crash.sh` runs this.
#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "is gone without a word")]
fn a_part_that_passes_for_the_whole_is_noticed() {
    crate::breaks::with(crate::breaks::Break::FragmentIsWhole, part_of_a_tree_is_not_taken_for_the_whole);
}

#[test]
fn where_nothing_is_left_nothing_is_done() {
    let bytes = volume(40, true);
    let mut damaged = bytes;
    destroy_roots(&mut damaged);
    for block in damaged.chunks_exact_mut(BLOCK_BYTES) {
        if Header::peek(block).is_ok() {
            block.fill(0);
        }
    }
    destroy_nodes(&mut damaged, |_, _, _| true);
    let device = device(&damaged);
    let refused = RepairPlan::new(std::slice::from_ref(&device), clock().as_ref(), &mut |_| {}).unwrap_err();
    assert!(matches!(&refused, Error::Open(t) if t.contains("nothing was changed")), "{refused}");
    assert!(!numbers(&device).is_empty());
}

/// The newest root cannot be read, and of the log behind the one before, which has nothing yet, the beginning: the tree of the newest is
/// there, and whole.
fn a_whole_tree_is_behind_a_gap(named: bool) {
    let memory = Arc::new(MemDevice::new(48 << 20));
    let shared: Arc<dyn BlockDevice> = memory.clone();
    mkfs(&shared, &clock(), &MkfsOptions::default()).unwrap();
    let fs = Fs::open(vec![shared.clone()], clock(), MountOptions::default()).unwrap();
    let dir = fs.create(Ino::ROOT, b"dir", &new(0o040_755)).unwrap().ino;
    for i in 0..200 {
        let ino = fs.create(dir, format!("file {i}").as_bytes(), &new(0o100_600)).unwrap().ino;
        fs.write(ino, 0, format!("content {i}").as_bytes(), 0).unwrap();
    }
    if named {
        fs.sync_all().unwrap();
        fs.checkpoint_create(Some(b"keep")).unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    let bytes = memory.snapshot();
    let roots = assemble(&[device(&bytes)], true).unwrap().found.roots;
    let newest = roots[0].root.map(|(addr, _)| addr);
    let begins = [Some(roots[1].chain.0), roots[1].chain_next].into_iter().flatten().map(|s| Addr::new(s, 0));
    let mut damaged = bytes.clone();
    for addr in newest.into_iter().chain(begins) {
        let at = offset(&bytes, addr);
        damaged[at..at + BLOCK_BYTES].fill(0x5a);
    }
    let before = tree(&read_only(&bytes), At::Live);
    let (after, report) = repair(&damaged);
    let fs = read_only(&after);
    let has_snapshot = fs.checkpoints().iter().any(|c| c.name.as_deref() == Some(&b"keep"[..]));
    assert!(has_snapshot == named, "{:?}", report.losses);
    assert!(named || before == tree(&fs, At::Live), "names are gone: {:?}", report.losses);
}

#[test]
fn a_whole_tree_is_worth_more_than_an_older_root_with_a_gap() {
    a_whole_tree_is_behind_a_gap(false);
}

/// A salvage would have nothing of the past, also of what only the log has.
#[test]
fn a_snapshot_is_worth_more_than_a_whole_tree() {
    a_whole_tree_is_behind_a_gap(true);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "names are gone")]
fn a_newer_tree_that_is_not_taken_is_noticed() {
    crate::breaks::with(crate::breaks::Break::NewerTreeLeft, || a_whole_tree_is_behind_a_gap(false));
}

/// A file is forgotten, and not wiped yet, when the top of all later trees is lost and with it the part of the log that says so: an older
/// tree shows it. `listed`: the list of what is to be forgotten can be read; `deep`: with directories above it, which are younger.
fn what_is_forgotten_is_salvaged(listed: bool, deep: bool) {
    let memory = Arc::new(MemDevice::from_bytes(with_checkpoints(400)));
    let open = || Fs::open(vec![memory.clone()], clock(), MountOptions::default()).unwrap();
    let fs = open();
    let secret: Vec<u8> = (0..9000u32).flat_map(|i| (i ^ 0x5ec2_e700).to_le_bytes()).collect();
    let ino = fs.create(Ino::ROOT, b"secret", &new(0o100_600)).unwrap().ino;
    fs.write(ino, 0, &secret, 0).unwrap();
    let mut inos = vec![ino];
    for _ in 0..if deep { 2 } else { 0 } {
        let above = fs.create(Ino::ROOT, b"above", &new(0o040_755)).unwrap().ino;
        fs.rename(Ino::ROOT, b"secret", above, b"secret", RenameMode::Replace).unwrap();
        fs.rename(Ino::ROOT, b"above", Ino::ROOT, b"secret", RenameMode::Replace).unwrap();
        inos.push(above);
    }
    fs.close().unwrap();
    drop(fs);
    let fs = open();
    let before = fs.superblock().generation.0;
    fs.unlink(inos.get(1).copied().unwrap_or(Ino::ROOT), b"secret").unwrap();
    for i in 1..inos.len() {
        fs.rmdir(inos.get(i + 1).copied().unwrap_or(Ino::ROOT), b"secret").unwrap();
    }
    fs.sync_all().unwrap();
    assert_eq!(fs.forget(&[b"secret"], &inos).unwrap(), inos.len() as u64);
    for _ in 0..2 {
        fs.setattr(Ino::ROOT, &SetAttr { mode: Some(0o755), ..SetAttr::default() }).unwrap();
        fs.index_checkpoint(false).unwrap();
    }
    drop(fs);
    let mut damaged = memory.snapshot();
    assert!(destroy_nodes(&mut damaged, |tree, level, generation| tree == 1 && level > 0 && generation > before) >= 2);
    if !listed {
        destroy_nodes(&mut damaged, |tree, _, _| tree == TreeId::SPACE.0);
    }
    let says_so =
        |record: &Record<'_>| matches!(record, Record::Unlink { name: b"secret", .. } | Record::Forget { .. });
    let mut lost = Vec::new();
    for at in (0..damaged.len()).step_by(BLOCK_BYTES) {
        let Ok(summary) = Header::decode(&damaged[at..]) else { continue };
        let mut r = Reader::new(summary.records);
        while let (PartialKind::Chain, false) = (summary.header.kind, r.is_empty()) {
            lost.extend(Some(at).filter(|_| says_so(&Record::decode(&mut r).unwrap())));
        }
    }
    assert!(lost.len() >= 2, "{lost:?}");
    lost.into_iter().for_each(|at| damaged[at..at + BLOCK_BYTES].fill(0x5a));
    let (after, report) = repair(&damaged);
    let is_told = report.losses.iter().any(|l| l.text.contains("has to be forgotten again"));
    assert_eq!(is_told, !listed, "{:?}", report.losses);
    if !listed {
        return;
    }
    let has_secret = |fs: &Fs| tree(fs, At::Live).values().any(|f| inos.contains(&f.ino));
    assert!(!has_secret(&read_only(&after)), "what was forgotten is back: {:?}", report.losses);
    // It is wiped in the end.
    let memory = Arc::new(MemDevice::from_bytes(after));
    let fs = Fs::open(vec![memory.clone()], clock(), MountOptions::default()).unwrap();
    assert!(fs.forget_status().is_some(), "nothing is wiped");
    for _ in 0..1000 {
        if fs.forget_step(1 << 20).unwrap().is_none() {
            break;
        }
        fs.sync_all().unwrap();
        fs.index_checkpoint(false).unwrap();
    }
    assert!(fs.forget_status().is_none(), "{:?}", fs.forget_status());
    fs.close().unwrap();
    let left = memory.snapshot();
    let block = &secret[..BLOCK_BYTES];
    assert!(!left.chunks_exact(BLOCK_BYTES).any(|b| b == block), "some of it is left");
}

#[test]
fn what_is_forgotten_stays_so_in_a_salvage() {
    what_is_forgotten_is_salvaged(true, false);
    what_is_forgotten_is_salvaged(true, true);
    what_is_forgotten_is_salvaged(false, false);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was forgotten is back")]
fn what_is_forgotten_and_comes_back_is_noticed() {
    crate::breaks::with(crate::breaks::Break::SalvageRemembers, || what_is_forgotten_is_salvaged(true, false));
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was forgotten is back")]
fn directories_that_are_forgotten_and_come_back_are_noticed() {
    crate::breaks::with(crate::breaks::Break::ForgottenOnce, || what_is_forgotten_is_salvaged(true, true));
}
