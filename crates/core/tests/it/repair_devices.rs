//! Repair of volumes that lie on several devices.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::devices::{World, bring_up, content, degraded, read, write};
use nenrin_core::check::{CheckOptions, What, check};
use nenrin_core::format::Ino;
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::row_log::ROW_LOG_UNITS;
use nenrin_core::format::superblock::{AREA_BLOCKS, Profile};
use nenrin_core::repair::{LossKind, MendKind};
use nenrin_core::{At, Fs, MountOptions, RepairPlan, RepairReport, probe};
use nenrin_device::{AlignedBuf, BlockDevice, CrashChoice, CrashDisk, Fault, Faulty, MemDevice, Window};
use std::sync::Arc;

const FILES: usize = 24;
const MIB: u64 = 1 << 20;
/// Where segments begin, also behind a row log.
const FIRST: u64 = (AREA_BLOCKS + 16 * ROW_LOG_UNITS as u64) * 4096;

/// A volume with some files, cleanly closed.
fn volume(profile: Profile, count: usize) -> World {
    let w = World::new(profile, &vec![64; count]);
    let fs = w.open(&(0..count).collect::<Vec<_>>(), MountOptions::default()).unwrap();
    for i in 0..FILES {
        write(&fs, &format!("file {i}"), &content(i, 300_000));
    }
    fs.close().unwrap();
    w
}

/// Zeros where a device held something.
fn zero(device: &dyn BlockDevice, offset: u64, bytes: u64) {
    device.write(offset, Arc::new(AlignedBuf::zeroed(bytes as usize))).unwrap();
}

/// All of a device but its root slots.
fn zero_all(device: &dyn BlockDevice) {
    let area = AREA_BLOCKS * 4096;
    for at in (area..device.geometry().bytes - area).step_by(MIB as usize) {
        zero(device, at, MIB.min(device.geometry().bytes - area - at));
    }
}

fn repair(devices: &[Arc<dyn BlockDevice>], w: &World) -> nenrin_core::Result<RepairReport> {
    RepairPlan::new(devices, w.time().as_ref(), &mut |_| {})?.carry_out(w.time())
}

fn all_there(fs: &Fs) {
    for i in 0..FILES {
        assert!(read(fs, &format!("file {i}"), 300_000).unwrap() == content(i, 300_000), "{i}");
    }
}

fn clean(devices: &[Arc<dyn BlockDevice>]) {
    let report = check(devices, &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.clean(), "{:?}", report.findings);
}

/// All devices but one.
fn others(count: usize, without: usize) -> Vec<usize> {
    (0..count).filter(|i| *i != without).collect()
}

/// Without any one of them but this all is there.
fn all_there_without_another(w: &World, count: usize, but: usize) {
    for gone in others(count, but) {
        let fs = w.open(&others(count, gone), MountOptions { read_only: true, ..degraded() }).unwrap();
        all_there(&fs);
    }
}

/// Whatever one device has lost: it gets it from the others, and any of them may be lost afterwards.
#[test]
fn all_that_one_device_has_lost_comes_from_the_others() {
    for (profile, count) in [(Profile::Mirror, 2), (Profile::Parity, 3), (Profile::Parity, 4)] {
        for lost in 0..count {
            let w = volume(profile, count);
            zero_all(w.members[lost].as_ref());
            let report = repair(&w.all(), &w).unwrap();
            assert!(report.needed && report.losses_total == 0 && report.copies_mended > 40, "{profile:?} {report:?}");
            clean(&w.all());
            let again = RepairPlan::new(&w.all(), w.time().as_ref(), &mut |_| {}).unwrap();
            assert!(!again.report().needed, "{profile:?} {:?}", again.report());
            all_there_without_another(&w, count, lost);
        }
    }
}

/// A unit that begins with a part of a file.
fn of_a_file(device: &dyn BlockDevice) -> u64 {
    let blocks: std::collections::BTreeSet<Vec<u8>> = (0..FILES)
        .flat_map(|i| content(i, 300_000).chunks_exact(4096).map(<[u8]>::to_vec).collect::<Vec<_>>())
        .collect();
    let begins = |at: &u64| blocks.contains(&device.read(*at, 4096).unwrap()[..]);
    (FIRST..device.geometry().bytes - MIB).step_by(64 << 10).find(begins).unwrap()
}

/// Copies that are not the first to be read, and parity.
#[test]
fn copies_that_nobody_would_read_are_mended() {
    for (profile, count) in [(Profile::Mirror, 2), (Profile::Parity, 3)] {
        let w = volume(profile, count);
        let plan = |w: &World| RepairPlan::new(&w.all(), w.time().as_ref(), &mut |_| {}).unwrap();
        assert!(!plan(&w).report().needed);
        for lost in 0..count {
            zero(w.members[lost].as_ref(), of_a_file(w.members[lost].as_ref()), 64 << 10);
            let found = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
            let seen = found.count(What::ContentCopyDamaged) > 0 || profile == Profile::Parity;
            assert!(seen, "device {lost} is wrong: {:?}", found.findings);
            let repair = plan(&w);
            let rewritten = |(kind, n): &(MendKind, u64)| *kind == MendKind::CopiesRewritten && *n > 0;
            assert!(repair.report().mends.iter().any(rewritten), "{profile:?} {lost}: {:?}", repair.report());
            let _ = repair.carry_out(w.time()).unwrap();
            clean(&w.all());
            assert!(!plan(&w).report().needed);
            all_there_without_another(&w, count, lost);
        }
    }
}

/// A bad place on either device of a mirror, which any other read would go around.
#[test]
fn a_copy_that_cannot_be_read_is_found() {
    let w = volume(Profile::Mirror, 2);
    for lost in 0..2 {
        let device = Faulty::new(w.all()[lost].clone());
        let begin = of_a_file(w.members[lost].as_ref());
        device.faults().inject(Fault::FailReads { range: begin..begin + 8192 });
        let mut devices = w.all();
        devices[lost] = Arc::new(device);
        let found = check(&devices, &CheckOptions { data: true }, &mut |_| {}).unwrap();
        let of = |what| found.count(what);
        let seen = (of(What::ContentCopyDamaged) > 0, of(What::ContentUnreadable), of(What::ContentDamaged));
        assert_eq!(seen, (true, 0, 0), "device {lost}: {:?}", found.findings);
        let fs = Fs::open(devices, w.time(), MountOptions::default()).unwrap();
        let mut scrub = fs.scrub();
        while !scrub.is_done() {
            fs.scrub_step(&mut scrub, MIB).unwrap();
        }
        let r = scrub.report();
        assert!(r.copies_damaged > 0 && r.copies_mended == r.copies_damaged && !r.has_losses(), "device {lost}: {r:?}");
        fs.close().unwrap();
    }
}

/// What one device of a mirror cannot read at all, in both copies of each node, the other has: nothing is lost.
#[test]
fn nodes_that_only_one_device_can_read_are_not_lost() {
    let w = volume(Profile::Mirror, 2);
    for bad in 0..2 {
        let device = Faulty::new(w.all()[bad].clone());
        let faults = device.faults();
        let mut devices = w.all();
        devices[bad] = Arc::new(device);
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let fs = Fs::open(devices, w.time(), options).unwrap();
        faults.inject(Fault::FailReads { range: 0..u64::MAX });
        let mut scrub = fs.scrub();
        while !scrub.is_done() {
            fs.scrub_step(&mut scrub, MIB).unwrap();
        }
        let r = scrub.report();
        let told: Vec<&str> = r.findings.iter().map(|f| &f.text[..]).collect();
        assert!(told.iter().any(|t| t.contains("a copy of an index node")), "{told:?}");
        assert!(r.copies_damaged > 1 && r.nodes_lost == 0, "device {bad}: {r:?}");
        assert!(told.iter().all(|t| t.contains("a copy of")), "{told:?}");
    }
}

/// Of the nodes of a mirror both copies are wrong on one device: a check finds that, whichever it is, and nothing is lost.
fn a_check_looks_at_nodes_on_each_device() {
    for wrong in 0..2 {
        let w = volume(Profile::Mirror, 2);
        lose_payload(w.members[wrong].as_ref(), &[PartialKind::Index]);
        let found = check(&w.all(), &CheckOptions::default(), &mut |_| {}).unwrap();
        assert!(found.count(What::NodeCopyDamaged) > 2, "device {wrong} is wrong: {:?}", found.findings);
        assert_eq!(found.count(What::NodeLost), 0, "{:?}", found.findings);
    }
}

#[test]
fn nodes_that_one_device_has_wrong_are_found() {
    a_check_looks_at_nodes_on_each_device();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "is wrong")]
fn nodes_that_are_checked_on_one_device_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::OneCopyChecked, a_check_looks_at_nodes_on_each_device);
}

/// Where devices came later segments have other numbers than where all were there from the beginning.
#[test]
fn a_volume_that_got_another_device_is_repaired() {
    for (profile, count) in [(Profile::Mirror, 2), (Profile::Parity, 3)] {
        let w = volume(profile, count);
        let fs = w.open(&(0..count).collect::<Vec<_>>(), MountOptions::default()).unwrap();
        let new: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
        fs.device_add(new.clone(), [9; 16]).unwrap();
        let is_laid = |_| {
            fs.tick().unwrap();
            fs.laying_step(1 << 20).unwrap().is_none()
        };
        assert!((0..20_000).any(is_laid), "{:?}", fs.laying_status());
        fs.close().unwrap();
        drop(fs);
        let devices = [w.all(), vec![new.clone()]].concat();
        clean(&devices);
        zero(new.as_ref(), 4 * 4096, 4 * 4096);
        let report = repair(&devices, &w).unwrap();
        assert!(report.needed && report.losses.is_empty(), "{profile:?}: {report:?}");
        clean(&devices);
        all_there(&Fs::open(devices, w.time(), MountOptions::default()).unwrap());
    }
}

/// Every megabyte of all devices in turn: what is lost is told, and nothing else is.
#[test]
fn what_all_devices_have_lost_is_told() {
    let mut repaired = 0;
    let all = [(Profile::Mirror, 2), (Profile::Mirror, 3), (Profile::Stripe, 2), (Profile::Parity, 3)];
    for (profile, count) in all {
        for at in [1, 2, 4, 7, 9, 12, 16, 20, 33, 48] {
            let w = volume(profile, count);
            let lost = match profile {
                Profile::Mirror => count,
                Profile::Parity => 2,
                _ => 1,
            };
            w.members.iter().take(lost).for_each(|d| zero(d.as_ref(), at * MIB, MIB));
            let plan = RepairPlan::new(&w.all(), w.time().as_ref(), &mut |_| {}).unwrap();
            let report = plan.report().clone();
            plan.carry_out(w.time()).unwrap();
            repaired += u64::from(report.needed);
            let after = check(&w.all(), &CheckOptions { data: true }, &mut |_| {}).unwrap();
            let structure: Vec<_> = after.findings.iter().filter(|f| f.what.number() < 700).collect();
            assert!(structure.is_empty(), "{profile:?} {at}: {structure:?}");
            let fs = w.open(&(0..count).collect::<Vec<_>>(), MountOptions::default()).unwrap();
            for i in 0..FILES {
                let name = format!("file {i}");
                let path = format!("/{name}");
                let told = report.losses.iter().any(|l| l.path.as_deref() == Some(path.as_bytes()))
                    || report.losses.iter().any(|l| matches!(l.kind, LossKind::InodesLost | LossKind::LogGap));
                let got = read(&fs, &name, 300_000);
                assert!(told || got.is_ok_and(|b| b == content(i, 300_000)), "{profile:?} {at} {i}: {report:?}");
            }
            fs.close().unwrap();
        }
    }
    assert!(repaired > 0, "no place was one of the index");
}

/// One copy of the root partial, on these devices, and what a row log has of it; the other one is elsewhere.
fn damage_root(w: &World, devices: &[usize]) {
    let newest = nenrin_core::probe(w.members[devices[0]].as_ref()).unwrap().newest().unwrap().clone();
    let first = if newest.profile == Profile::Parity { FIRST } else { 0 };
    let damaged = newest.root.iter().any(|(addr, _)| {
        let mut places = 0;
        for device in devices.iter().map(|i| &w.members[*i]) {
            for at in (0..device.geometry().bytes).step_by(4096) {
                let block = device.read(at, 4096).unwrap();
                if Header::peek(&block).is_ok_and(|h| h.addr == *addr) {
                    zero(device.as_ref(), at, 4096);
                    places += usize::from(at >= first);
                }
            }
        }
        places > 0
    });
    assert!(damaged, "no copy of the root partial");
}

/// It is repaired without a device that is not there; that one is brought up to date when it is back.
#[test]
fn a_volume_is_repaired_without_a_device_that_others_stand_in_for() {
    for (profile, count) in [(Profile::Mirror, 2), (Profile::Parity, 3)] {
        let there = others(count, count - 1);
        let w = volume(profile, count);
        damage_root(&w, &there);
        let report = repair(&w.some(&there), &w).unwrap();
        assert!(report.needed && report.losses_total == 0, "{profile:?} {report:?}");
        let absent = format!("device {count} is absent");
        assert!(report.absent.iter().any(|n| n.contains(&absent)), "{report:?}");
        let fs = w.open(&(0..count).collect::<Vec<_>>(), MountOptions::default()).unwrap();
        all_there(&fs);
        bring_up(&fs);
        fs.close().unwrap();
        clean(&w.all());
        all_there_without_another(&w, count, count - 1);
    }
}

#[test]
fn a_stripe_is_not_repaired_without_a_device() {
    let w = volume(Profile::Stripe, 3);
    zero(w.members[0].as_ref(), 2 * MIB, MIB);
    let error = repair(&w.some(&[0, 2]), &w).unwrap_err().to_string();
    assert!(error.contains("device 2 (") && error.contains("cannot stand in"), "{error}");
}

/// The repair is cut anywhere, and then it goes on; one of the devices may go with the cut, once it is complete.
fn is_cut(profile: Profile, count: usize, least: usize) {
    let lost = count - 1;
    let w = volume(profile, count);
    zero_all(w.members[lost].as_ref());
    let bytes = w.members[0].geometry().bytes;
    let disk = Arc::new(CrashDisk::new(count as u64 * bytes));
    let parts = |disk: &Arc<CrashDisk>| -> Vec<Arc<dyn BlockDevice>> {
        let part =
            |i: u64| Arc::new(Window::new(disk.clone(), i * bytes..(i + 1) * bytes, format!("device {}", i + 1)));
        (0..count as u64).map(|i| part(i) as Arc<dyn BlockDevice>).collect()
    };
    for (from, to) in w.all().iter().zip(parts(&disk)) {
        for at in (0..bytes).step_by(MIB as usize) {
            to.write(at, Arc::new(from.read(at, MIB as usize).unwrap())).unwrap();
        }
    }
    let disk = Arc::new(CrashDisk::from_image(disk.current()));
    repair(&parts(&disk), &w).unwrap();
    let history = disk.history().unwrap();
    let (mut cursor, last) = (history.cursor(), history.cut_points());
    let mut judged = 0;
    for at in (0..=last).filter(|at| at % (last / 40).max(1) == 0 || last - at < 20) {
        cursor.advance_to(at);
        for choice in [CrashChoice::SEED_APPLIED, CrashChoice::SEED_DROPPED, 3 + at as u64] {
            let image = cursor.image(&CrashChoice::from_seed(choice)).content();
            let cut = Arc::new(CrashDisk::from_image(image).without_history());
            let fs = Fs::open(parts(&cut), w.time(), MountOptions::default()).unwrap();
            all_there(&fs);
            fs.close().unwrap();
            repair(&parts(&cut), &w).unwrap();
            clean(&parts(&cut));
            let without = parts(&cut).into_iter().enumerate().filter(|(i, _)| *i != at % lost).map(|(_, d)| d);
            let fs = Fs::open(without.collect(), w.time(), degraded()).unwrap();
            all_there(&fs);
            judged += 1;
        }
    }
    assert!(judged > least, "{judged} of {last}");
}

#[test]
fn the_repair_of_a_mirror_is_cut() {
    is_cut(Profile::Mirror, 2, 60);
}

#[test]
fn the_repair_of_rows_with_parity_is_cut() {
    is_cut(Profile::Parity, 3, 60);
}

/// Where partials of these kinds lie on a device, and what their headers say.
fn partials(device: &dyn BlockDevice, kinds: &[PartialKind]) -> Vec<(u64, Header)> {
    let header = |at: u64| Header::peek(&device.read(at, 4096).unwrap()).ok().filter(|h| kinds.contains(&h.kind));
    (0..device.geometry().bytes).step_by(4096).filter_map(|at| Some((at, header(at)?))).collect()
}

/// Partials of these kinds are lost on a device.
fn lose(device: &dyn BlockDevice, kinds: &[PartialKind]) {
    let lost = partials(device, kinds);
    assert!(!lost.is_empty());
    lost.into_iter().for_each(|(at, h)| zero(device, at, u64::from(h.total_blocks()) * 4096));
}

/// Of partials of these kinds a device has the summaries, and something else behind them.
fn lose_payload(device: &dyn BlockDevice, kinds: &[PartialKind]) {
    let lost = partials(device, kinds).into_iter().filter(|(_, h)| h.payload_blocks > 0);
    for (at, h) in lost {
        zero(device, at + u64::from(h.summary_blocks) * 4096, u64::from(h.payload_blocks) * 4096);
    }
}

const BLOCKS: usize = 200;
const NEWER_BLOCKS: usize = 150;

/// Files that were written, and most of each once more: of the older run the end is left, somewhere in a stripe.
fn written_twice(w: &World) -> Vec<(Ino, Vec<u8>)> {
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    let file = |i: usize| {
        let mut data = content(i, BLOCKS * 4096);
        let ino = write(&fs, &format!("file {i}"), &data);
        let newer = content(i + 100, NEWER_BLOCKS * 4096);
        fs.write(ino, 0, &newer, 0).unwrap();
        fs.fsync_wait(ino).unwrap();
        data[..newer.len()].copy_from_slice(&newer);
        (ino, data)
    };
    let files = (0..12).map(file).collect();
    fs.close().unwrap();
    files
}

/// All of a salvaged volume is right, on either device.
fn found_on_both(w: &World, files: &[(Ino, Vec<u8>)], report: &RepairReport) {
    clean(&w.all());
    for there in [&[0][..], &[1]] {
        let fs = w.open(there, MountOptions { read_only: true, ..degraded() }).unwrap();
        for (ino, data) in files {
            let found = fs.read(At::Live, *ino, 0, data.len() + 1);
            assert!(found.is_ok_and(|b| b == *data), "{there:?}, inode {ino}: {report:?}");
        }
    }
}

/// Neither index nor log are left, and the content on one device is wrong: what is found is that of the other.
#[test]
fn content_found_without_index_is_that_of_the_device_which_has_it() {
    for wrong in 0..2 {
        let w = World::new(Profile::Mirror, &[64; 2]);
        let files = written_twice(&w);
        let others = [PartialKind::Root, PartialKind::Index, PartialKind::Chain];
        w.members.iter().for_each(|m| lose(m.as_ref(), &others));
        lose_payload(w.members[wrong].as_ref(), &[PartialKind::Data]);
        let report = repair(&w.all(), &w).unwrap();
        assert!(report.losses.iter().any(|l| l.kind == LossKind::ContentFound), "{report:?}");
        found_on_both(&w, &files, &report);
    }
}

/// No root is left, and nodes and content on one device are wrong: nothing but the past is lost.
#[test]
fn a_salvage_takes_nodes_and_content_from_the_device_which_has_them() {
    for wrong in 0..2 {
        let w = World::new(Profile::Mirror, &[64; 2]);
        let files = written_twice(&w);
        w.members.iter().for_each(|m| lose(m.as_ref(), &[PartialKind::Root]));
        lose_payload(w.members[wrong].as_ref(), &[PartialKind::Index, PartialKind::Data]);
        let report = repair(&w.all(), &w).unwrap();
        assert!(report.losses.iter().all(|l| l.kind == LossKind::CheckpointsLost), "{report:?}");
        assert!(report.mends.iter().any(|(kind, _)| *kind == MendKind::IndexFound), "{report:?}");
        found_on_both(&w, &files, &report);
    }
}

/// After a cut a device may lack what nobody was told of: a note, while the same of what was durable before is damage.
#[test]
fn a_copy_that_nobody_was_promised_is_no_damage() {
    let w = World::new(Profile::Mirror, &[64, 64]);
    let fs = w.open(&[0, 1], MountOptions::default()).unwrap();
    for i in 1..=2 {
        write(&fs, &format!("file {i}"), &content(100 * i, 300_000));
    }
    let images: Vec<Vec<u8>> = w.members.iter().map(|m| m.inner().inner().snapshot()).collect();
    for (i, damage) in [(2, false), (1, true)] {
        let mut seen = 0;
        for member in 0..2 {
            let mut images = images.clone();
            let wanted = &content(100 * i, 300_000)[4096..8192];
            let block = images[member].chunks_exact_mut(4096).find(|block| *block == wanted).unwrap();
            block[100] ^= 1;
            let devices: Vec<Arc<dyn BlockDevice>> = images
                .into_iter()
                .map(|bytes| Arc::new(MemDevice::from_bytes(bytes)) as Arc<dyn BlockDevice>)
                .collect();
            let report = check(&devices, &CheckOptions { data: true }, &mut |_| {}).unwrap();
            let (copies, unproven) = (report.count(What::ContentCopyDamaged), report.count(What::ContentCopyUnproven));
            assert!(report.errors == copies && (copies > 0 && damage || copies == 0), "{i}: {:?}", report.findings);
            assert!(unproven == 0 || !damage);
            seen += copies + unproven;
            // The next mount writes it, and reads what is damaged from the other.
            let fs = Fs::open(devices.clone(), w.time(), MountOptions::default()).unwrap();
            assert!(read(&fs, &format!("file {i}"), 300_000).unwrap() == content(100 * i, 300_000));
            fs.close().unwrap();
            drop(fs);
            if !damage {
                clean(&devices);
            }
        }
        assert!(seen > 0, "{i}");
    }
}

/// No root is left, and of what leads to nodes and content each device has every other summary.
fn a_salvage_looks_for_summaries_on_each_device() {
    let w = World::new(Profile::Mirror, &[64; 2]);
    let files = written_twice(&w);
    w.members.iter().for_each(|m| lose(m.as_ref(), &[PartialKind::Root]));
    for (device, member) in w.members.iter().enumerate() {
        let found = partials(member.as_ref(), &[PartialKind::Index, PartialKind::Data]);
        found.iter().skip(device).step_by(2).for_each(|(at, _)| zero(member.as_ref(), *at, 4096));
    }
    let report = repair(&w.all(), &w).unwrap();
    let is_past = |l: &nenrin_core::repair::Loss| l.kind == LossKind::CheckpointsLost;
    assert!(report.losses.iter().all(is_past), "left out what a device has: {report:?}");
    found_on_both(&w, &files, &report);
}

#[test]
fn a_salvage_finds_summaries_on_whichever_device_has_them() {
    a_salvage_looks_for_summaries_on_each_device();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "left out what a device has")]
fn a_salvage_that_looks_at_one_device_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::OneWayBehind, a_salvage_looks_for_summaries_on_each_device);
}

/// The only copy of the root that is left is something else on one device, which is as whole: what was there before a write that it missed.
fn a_root_that_is_not_the_one_is_not_taken() {
    for stale in 0..2 {
        let w = volume(Profile::Mirror, 2);
        let sb = probe(w.members[0].as_ref()).unwrap().newest().unwrap().clone();
        for (device, member) in w.members.iter().enumerate() {
            let roots = partials(member.as_ref(), &[PartialKind::Root]);
            let at = |copy: usize| roots.iter().find(|(_, h)| h.addr == sb.root[copy].0).unwrap();
            zero(member.as_ref(), at(1).0, 4096);
            let (place, header) = at(0);
            let bytes = member.read(*place, header.summary_blocks as usize * 4096).unwrap();
            let summary = Header::decode(&bytes).unwrap();
            let before = Header { open_cno: header.open_cno.next(), ..header.clone() };
            let (other, _) = before.encode(summary.records, &[]);
            if device == stale {
                member.write(*place, Arc::new(AlignedBuf::padded(&other))).unwrap();
            }
        }
        let fs = w.open(&[0, 1], MountOptions { read_only: true, ..MountOptions::default() }).unwrap();
        assert_eq!(fs.superblock().root, sb.root, "device {stale}: another root was taken");
        all_there(&fs);
        let mut scrub = fs.scrub();
        fs.scrub_step(&mut scrub, 1).unwrap();
        assert_eq!(scrub.report().copies_damaged, 2, "device {stale}: {:?}", scrub.report());
    }
}

#[test]
fn a_root_of_before_is_not_taken_for_the_newest() {
    a_root_that_is_not_the_one_is_not_taken();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "another root was taken")]
fn any_whole_root_that_is_taken_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::SummaryUnknown, a_root_that_is_not_the_one_is_not_taken);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "device 0")]
fn a_copy_that_is_given_for_the_other_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::AvoidedReadAnyway, a_copy_that_cannot_be_read_is_found);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "504")]
fn counts_by_the_order_of_segments_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::CountsInOrder, a_volume_that_got_another_device_is_repaired);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "is wrong")]
fn a_copy_that_is_not_checked_is_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::OneCopyChecked, copies_that_nobody_would_read_are_mended);
}
