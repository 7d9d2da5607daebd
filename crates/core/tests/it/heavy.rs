//! When room is short, the history of the heaviest files goes first (decision 0020).
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::{Cno, Ino};
use nenrin_core::{At, CheckOptions, Error, Fs, MkfsOptions, MountOptions, check};
use nenrin_device::BlockDevice;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
const IMAGE_BYTES: usize = 2 << 20;

fn open(w: &World) -> Arc<Fs> {
    w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() })
}

/// What both files are in a round.
fn image(round: u64) -> Vec<u8> {
    (0..IMAGE_BYTES as u64).map(|i| (i / 8 * 31 + round * 7) as u8).collect()
}

fn note(round: u64) -> Vec<u8> {
    vec![round as u8; 6000]
}

fn known(fs: &Fs, cno: Cno, ino: Ino, expected: &[u8]) -> bool {
    match fs.read(At::Past(cno), ino, 0, expected.len() + 1) {
        Ok(bytes) => {
            assert!(bytes == expected, "inode {ino} of checkpoint {cno} is something else");
            true
        }
        Err(Error::Stale) => false,
        Err(e) => panic!("{e}"),
    }
}

struct Used {
    w: World,
    fs: Arc<Fs>,
    image: Ino,
    note: Ino,
    rounds: Vec<(Cno, u64)>,
}

impl Used {
    fn new() -> Self {
        let w = World::with(72 << 20, &MkfsOptions { segment_blocks: 128, ..MkfsOptions::default() });
        let fs = open(&w);
        let make = |name: &[u8]| fs.create(Ino::ROOT, name, &file(0o644)).unwrap().ino;
        let (image, note) = (make(b"image"), make(b"note"));
        Self { w, fs, image, note, rounds: Vec::new() }
    }

    fn round(&mut self, name: Option<&[u8]>) -> Cno {
        let round = self.rounds.len() as u64;
        self.fs.write(self.image, 0, &image(round), 0).unwrap();
        self.fs.write(self.note, 0, &note(round), 0).unwrap();
        self.w.pass(5 * SECOND);
        self.fs.tick().unwrap();
        let cno = self.fs.checkpoint_create(name).unwrap().cno;
        self.rounds.push((cno, round));
        cno
    }
}

#[test]
fn the_heaviest_files_go_first_and_snapshots_stay() {
    let mut u = Used::new();
    u.round(None);
    let snapshot = u.round(Some(b"made"));
    let late = u.round(None);
    u.round(None);
    u.fs.checkpoint_name(late, Some(b"named later")).unwrap();
    while u.fs.counters().inodes_shed == 0 {
        u.round(None);
        assert!(u.rounds.len() < 300, "room was never short");
    }
    assert_eq!(u.fs.counters().checkpoints_shed, 0);
    let (of_image, of_note) = (u.image, u.note);
    let judge = |fs: &Fs, rounds: &[(Cno, u64)]| {
        let known_of_image: Vec<bool> = rounds.iter().map(|(cno, r)| known(fs, *cno, of_image, &image(*r))).collect();
        for (cno, round) in rounds {
            assert!(known(fs, *cno, of_note, &note(*round)), "the note of {cno}");
            assert_eq!(fs.getattr(At::Past(*cno), of_image).unwrap().size, IMAGE_BYTES as u64);
        }
        known_of_image
    };
    let of_image = judge(&u.fs, &u.rounds);
    let lost = of_image.iter().filter(|known| !**known).count();
    // The older half, snapshots apart.
    let first = of_image.iter().rposition(|known| !known).unwrap() + 1;
    assert!(lost == first - 2 && lost * 3 > of_image.len() && lost < of_image.len(), "{of_image:?}");
    let shed = u.fs.shed().unwrap();
    assert_eq!(shed.iter().map(|s| s.path.as_slice()).collect::<Vec<_>>(), [b"image"]);
    assert_eq!(shed[0].upto, u.rounds[first].0);
    // A name that comes now does not bring back what went, and what is there stays with it.
    let (gone, there) = (u.rounds[0].0, u.rounds[first].0);
    u.fs.checkpoint_name(gone, Some(b"too late")).unwrap();
    u.fs.checkpoint_name(there, Some(b"in time")).unwrap();
    u.round(None);
    let before = u.fs.counters().inodes_shed;
    while u.fs.counters().inodes_shed == before {
        u.round(None);
        assert!(u.rounds.len() < 600, "room was never short again");
    }
    let of_image = judge(&u.fs, &u.rounds);
    assert!(!of_image[0] && of_image[1] && of_image[2] && of_image[first], "{of_image:?}");
    assert!(u.fs.shed().unwrap().len() >= 2);
    // States are told as far as they can be read, and the same after a crash and after unmounting.
    let told = u.fs.history(&[b"image"]).unwrap().len();
    assert!(told <= of_image.iter().filter(|k| **k).count() + 1, "{told}");
    u.fs.sync_all().unwrap();
    for _ in 0..2 {
        let fs = open(&u.w);
        assert_eq!(judge(&fs, &u.rounds), of_image);
        assert_eq!(fs.shed().unwrap(), u.fs.shed().unwrap());
        fs.close().unwrap();
    }
    let device: Arc<dyn BlockDevice> = u.w.device.clone();
    let report = check::check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.findings.iter().all(|f| f.what.severity() != check::Severity::Error), "{:?}", report.findings);
    // What nothing is left to ask about is not remembered.
    let fs = open(&u.w);
    let snapshots = fs.checkpoints().into_iter().filter(|c| c.name.is_some());
    for c in snapshots {
        fs.checkpoint_name(c.cno, None).unwrap();
    }
    let newest = fs.checkpoints().last().unwrap().cno;
    let older: Vec<Cno> = fs.checkpoints().iter().map(|c| c.cno).filter(|c| *c < newest).collect();
    fs.checkpoint_drop(&older).unwrap();
    assert_eq!(fs.shed().unwrap(), []);
    assert!(snapshot < late);
}

/// A volume, its files, and its checkpoints with what all of these held.
type Alike = (World, Arc<Fs>, Vec<Ino>, Vec<(Cno, u8)>);

/// Many files that change alike, until room was short.
fn where_all_are_alike() -> Alike {
    let w = World::with(72 << 20, &MkfsOptions { segment_blocks: 128, ..MkfsOptions::default() });
    let fs = open(&w);
    let files: Vec<Ino> =
        (0..40).map(|i| fs.create(Ino::ROOT, format!("f{i}").as_bytes(), &file(0o644)).unwrap().ino).collect();
    let mut rounds: Vec<(Cno, u8)> = Vec::new();
    while fs.counters().checkpoints_shed == 0 {
        let byte = rounds.len() as u8;
        for ino in &files {
            fs.write(*ino, 0, &[byte; 50_000], 0).unwrap();
        }
        w.pass(5 * SECOND);
        fs.tick().unwrap();
        rounds.push((fs.checkpoint_create(None).unwrap().cno, byte));
        assert!(rounds.len() < 250, "room was never short");
    }
    assert_eq!(fs.counters().inodes_shed, 0);
    (w, fs, files, rounds)
}

/// Many files that change alike: none has more than its share, and the oldest checkpoints go.
#[test]
fn where_all_are_alike_the_oldest_goes() {
    let (_, fs, files, rounds) = where_all_are_alike();
    let left: Vec<Cno> = fs.checkpoints().iter().map(|c| c.cno).collect();
    assert!(left.len() < rounds.len() && left[0] > rounds[0].0);
    for (cno, byte) in rounds.iter().filter(|r| left.contains(&r.0)) {
        assert!(files.iter().all(|ino| known(&fs, *cno, *ino, &[*byte; 50_000])));
    }
}

/// From then on one file changes, and another one little: how much history there is when it has to go is the same each time, and
/// whose it is is not.
fn one_becomes_heavy() {
    let (w, fs, ..) = where_all_are_alike();
    let [large, little] = [&b"image"[..], b"note"].map(|name| fs.create(Ino::ROOT, name, &file(0o644)).unwrap().ino);
    let mut u = Used { w, fs, image: large, note: little, rounds: Vec::new() };
    let before = u.fs.counters().checkpoints_shed;
    while u.rounds.len() < 40 {
        u.round(None);
    }
    let counters = u.fs.counters();
    assert!(counters.inodes_shed > 0, "nobody was looked for: {counters:?}");
    let stay = u.rounds.iter().all(|(cno, round)| known(&u.fs, *cno, u.note, &note(*round)));
    assert!(stay && counters.checkpoints_shed == before, "{before} {counters:?}");
    u.fs.close().unwrap();
}

#[test]
fn who_becomes_heavy_later_is_found() {
    one_becomes_heavy();
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "nobody was looked for")]
fn heavy_files_that_are_not_looked_for_again_are_noticed() {
    nenrin_core::breaks::with(nenrin_core::breaks::Break::NoneHeavyStays, one_becomes_heavy);
}
