//! Runs under one checksum for 64 KiB, overwritten in part, copied, cleaned, and read as of the past: always what a
//! plain array of bytes would hold.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::{BLOCK_BYTES, Cno, Ino};
use nenrin_core::{AllocateMode, At, CheckOptions, CheckReport, Fs, MkfsOptions, MountOptions, check};
use nenrin_device::{BlockDevice, Prng};
use std::sync::Arc;

const BYTES: usize = 3 << 20;

fn world() -> World {
    World::with(512 << 20, &MkfsOptions { segment_blocks: 512, ..MkfsOptions::default() })
}

fn open(w: &World) -> Arc<Fs> {
    w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() })
}

fn checked(w: &World) -> CheckReport {
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let report = check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    report
}

fn clean(fs: &Fs) {
    let mut job = fs.clean();
    while !job.is_done() {
        fs.clean_step(&mut job, 256).unwrap();
    }
}

/// The volume's granules, as powers of two, and how many runs have each.
fn granules(w: &World) -> [u32; 5] {
    let bytes = w.device.inner().snapshot();
    let mut found = [0; 5];
    for block in bytes.chunks_exact(BLOCK_BYTES) {
        if let Ok(s) = Header::decode(block) {
            for run in s.map.iter().filter(|_| s.header.kind == PartialKind::Data) {
                found[usize::from(run.level)] += 1;
            }
        }
    }
    found
}

#[test]
fn coarse_runs_hold_what_was_written() {
    let w = world();
    let mut random = Prng::new(5);
    let mut model = vec![0u8; BYTES];
    let mut kept: Vec<(Cno, Vec<u8>)> = Vec::new();
    let mut fs = open(&w);
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    let copy = fs.create(Ino::ROOT, b"copy", &file(0o600)).unwrap().ino;
    let mut copied = Vec::new();
    let compare = |fs: &Fs, at: At, model: &[u8], random: &mut Prng| {
        assert!(fs.read(at, ino, 0, BYTES).unwrap() == model, "whole, {at:?}");
        for _ in 0..20 {
            let from = random.below(model.len() as u64) as usize;
            let to = (from + 1 + random.below(30_000) as usize).min(model.len());
            assert!(fs.read(at, ino, from as u64, to - from).unwrap() == model[from..to], "{from} to {to}, {at:?}");
        }
    };
    for round in 0..40 {
        // Large pieces at places that are multiples of 64 KiB and some that are not, then small ones anywhere.
        for _ in 0..3 {
            let from = random.below(BYTES as u64 >> 16 << 1) as usize * (32 << 10);
            let to = (from + (1 + random.below(16) as usize) * (64 << 10)).min(BYTES);
            let byte = random.below(256) as u8;
            let piece: Vec<u8> = (0..to - from).map(|i| byte.wrapping_add((i >> 9) as u8)).collect();
            fs.write(ino, from as u64, &piece, 0).unwrap();
            model[from..to].copy_from_slice(&piece);
        }
        for _ in 0..4 {
            let from = random.below(BYTES as u64 - 20_000) as usize;
            let piece = vec![random.below(256) as u8; 1 + random.below(20_000) as usize];
            fs.write(ino, from as u64, &piece, 0).unwrap();
            model[from..from + piece.len()].copy_from_slice(&piece);
        }
        let punched = random.below(700) as usize * 4096;
        fs.allocate(ino, AllocateMode::Punch, punched as u64, 40_000).unwrap();
        model[punched..punched + 40_000].fill(0);
        fs.allocate(ino, AllocateMode::Reserve, 0, BYTES as u64).unwrap();
        compare(&fs, At::Live, &model, &mut random);
        fs.fsync_wait(ino).unwrap();
        compare(&fs, At::Live, &model, &mut random);
        match round % 8 {
            3 => kept.push((fs.checkpoint_create(Some(format!("s{round}").as_bytes())).unwrap().cno, model.clone())),
            4 => {
                let mut done = 0;
                while done < BYTES as u64 {
                    done += fs.copy_range(ino, done, copy, done, BYTES as u64 - done, 0).unwrap();
                }
                copied = model.clone();
            }
            5 => clean(&fs),
            7 => {
                fs.close().unwrap();
                checked(&w);
                fs = open(&w);
            }
            _ => {}
        }
        assert!(fs.read(At::Live, copy, 0, BYTES).unwrap() == copied);
        for (cno, then) in &kept {
            compare(&fs, At::Past(*cno), then, &mut random);
        }
    }
    fs.close().unwrap();
    checked(&w);
    let found = granules(&w);
    assert!(found[4] > 10 && found[2] > 10 && found[0] > 10, "{found:?}");
}

/// What was reserved and never written reads as zeros at a past moment, and no history is kept for that.
#[test]
fn a_reservation_has_no_past() {
    let w = world();
    let fs = open(&w);
    let ino = fs.create(Ino::ROOT, b"f", &file(0o600)).unwrap().ino;
    let bytes = 64 << 20;
    fs.allocate(ino, AllocateMode::Reserve, 0, bytes).unwrap();
    let then = fs.checkpoint_create(Some(b"reserved")).unwrap().cno;
    for at in (0..bytes).step_by(1 << 20) {
        fs.write(ino, at, &[7; 1 << 18], 0).unwrap();
    }
    fs.fsync_wait(ino).unwrap();
    let past = |fs: &Fs| {
        assert_eq!(fs.getattr(At::Past(then), ino).unwrap().size, bytes);
        for at in (0..bytes).step_by(8 << 20) {
            assert!(fs.read(At::Past(then), ino, at, 1 << 20).unwrap().iter().all(|b| *b == 0));
        }
    };
    past(&fs);
    fs.close().unwrap();
    let report = checked(&w);
    assert!(report.counts.history_items <= 4, "{} items of history", report.counts.history_items);
    past(&open(&w));
}
