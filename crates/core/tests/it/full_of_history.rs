//! P7: a volume that is full, whatever it is full of, lets go of whatever it is asked to, and what df says afterwards can be written
//! at once.
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
use nenrin_core::format::{Cno, Ino};
use nenrin_core::{AllocateMode, At, Error, Fs, MkfsOptions, MountOptions, SetAttr};
use nenrin_device::{MemDevice, Prng};
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
const VOLUME_BYTES: usize = 24 << 20;
const FILES: u64 = 12;
/// What df may tell where nothing can be written any more: five segments of 64 blocks, scattered over others of which none is worth cleaning.
const DF_ROUNDS_BY: u64 = 5 * 64;

/// What the volume is full of, besides the file that takes the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// A thousand small files, which are nothing but index.
    Names,
    /// Unnamed checkpoints of files that are overwritten at random.
    History,
    /// The same with names.
    Snapshots,
    /// Space that is reserved.
    Promises,
    /// Files that share their blocks.
    Copies,
}

const FILLS: [Fill; 5] = [Fill::Names, Fill::History, Fill::Snapshots, Fill::Promises, Fill::Copies];

/// How something is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Rule,
    Thinning,
    Checkpoints,
    Snapshots,
    Clean,
    Unlink,
    Rmdir,
    /// And closed.
    Empty,
    /// And not closed, so held back.
    EmptyAndHold,
    EmptyAgain,
    Shorter,
    RemoveAttribute,
}

const WAYS: [Way; 12] = [
    Way::Rule,
    Way::Thinning,
    Way::Checkpoints,
    Way::Snapshots,
    Way::Clean,
    Way::Unlink,
    Way::Rmdir,
    Way::Empty,
    Way::EmptyAndHold,
    Way::EmptyAgain,
    Way::Shorter,
    Way::RemoveAttribute,
];

struct Full {
    w: World,
    fs: Arc<Fs>,
    files: Vec<Ino>,
    rest: Ino,
    checkpoints: Vec<Cno>,
    what: String,
}

fn size(bytes: u64) -> SetAttr {
    SetAttr { size: Some(bytes), ..SetAttr::default() }
}

impl Full {
    fn new(fill: Fill, seed: u64) -> Self {
        let w = World::with(VOLUME_BYTES, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
        let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
        let create = |name: &str| fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
        let files: Vec<Ino> = (0..FILES).map(|i| create(&format!("f{i}"))).collect();
        let rest = create("rest");
        create("empty");
        fs.create(Ino::ROOT, b"nothing in it", &dir()).unwrap();
        fs.setxattr(files[0], b"user.some", &[7; 300], nenrin_core::XattrMode::Any).unwrap();
        let what = format!("{fill:?}, seed {seed}");
        let mut full = Self { w, fs, files, rest, checkpoints: Vec::new(), what };
        full.fill(fill, &mut Prng::new(seed));
        full.take_the_rest();
        full
    }

    fn fill(&mut self, fill: Fill, random: &mut Prng) {
        let fs = &self.fs;
        for ino in &self.files {
            fs.write(*ino, 0, &vec![1; 60 * 4096], 0).unwrap();
        }
        for round in 0..8u64 {
            for ino in &self.files {
                let (block, blocks) = (random.below(60), 1 + random.below(20));
                fs.write(*ino, block * 4096, &vec![round as u8; blocks as usize * 4096], 0).unwrap();
            }
            let name = format!("s{round}").into_bytes();
            let named = (fill == Fill::Snapshots).then_some(&name[..]);
            self.checkpoints.push(fs.checkpoint_create(named).unwrap().cno);
        }
        match fill {
            Fill::Names => {
                for i in 0..1000 {
                    fs.create(Ino::ROOT, format!("a file with a longer name {i}").as_bytes(), &file(0o600)).unwrap();
                }
            }
            Fill::Promises => {
                let ino = fs.create(Ino::ROOT, b"promised", &file(0o600)).unwrap().ino;
                let blocks = fs.usage().available_blocks * 3 / 4;
                fs.allocate(ino, AllocateMode::Reserve, 0, blocks * 4096).unwrap();
            }
            Fill::Copies => {
                for i in 0..FILES {
                    let ino = fs.create(Ino::ROOT, format!("copy{i}").as_bytes(), &file(0o600)).unwrap().ino;
                    fs.copy_range(self.files[i as usize], 0, ino, 0, 60 * 4096, 0).unwrap();
                }
            }
            Fill::History | Fill::Snapshots => {}
        }
    }

    /// Until even a block is refused.
    fn take_the_rest(&self) {
        let mut at = 0;
        for blocks in [64, 8, 1] {
            while self.fs.write(self.rest, at * 4096, &vec![9; blocks * 4096], 0).is_ok() {
                at += blocks as u64;
            }
        }
        self.fs.sync_all().unwrap();
        while self.fs.write(self.rest, at * 4096, &[9; 4096], 0).is_ok() {
            at += 1;
        }
        assert!(at > 100, "{}: {at}", self.what);
    }

    fn pass(&self, times: u64, nanos: u64) {
        for _ in 0..times {
            self.w.pass(nanos);
            self.fs.tick().unwrap();
        }
    }

    fn kept(&self, named: bool) -> Vec<Cno> {
        let is = |c: &nenrin_core::CheckpointInfo| c.name.is_some() == named;
        self.fs.checkpoints().into_iter().filter(is).map(|c| c.cno).collect()
    }

    fn let_go(&self, way: Way) -> Result<(), Error> {
        let fs = &self.fs;
        let by_name = |name: &[u8]| fs.lookup(At::Live, Ino::ROOT, name).unwrap().ino;
        match way {
            Way::Rule => fs.set_retention("10m:all"),
            Way::Thinning => {
                fs.set_retention("10m:all")?;
                self.pass(4, 700 * SECOND);
                assert_eq!(self.kept(false), [], "{}", self.what);
                Ok(())
            }
            Way::Checkpoints => fs.checkpoint_drop(&self.kept(false)),
            Way::Snapshots => {
                let named = self.kept(true);
                for cno in &named {
                    fs.checkpoint_name(*cno, None)?;
                }
                fs.checkpoint_drop(&named)
            }
            Way::Clean => {
                let mut clean = fs.clean();
                for _ in 0..10_000 {
                    if clean.is_done() {
                        break;
                    }
                    fs.clean_step(&mut clean, 1024)?;
                }
                assert!(clean.is_done(), "{}", self.what);
                Ok(())
            }
            Way::Unlink => (0..FILES).try_for_each(|i| fs.unlink(Ino::ROOT, format!("f{i}").as_bytes())),
            Way::Rmdir => fs.rmdir(Ino::ROOT, b"nothing in it"),
            Way::Empty => self.files.iter().try_for_each(|ino| {
                fs.setattr(*ino, &size(0))?;
                fs.flush(*ino)
            }),
            Way::EmptyAndHold => self.files.iter().try_for_each(|ino| fs.setattr(*ino, &size(0)).map(drop)),
            Way::EmptyAgain => fs.setattr(by_name(b"empty"), &size(0)).map(drop),
            Way::Shorter => self.files.iter().try_for_each(|ino| fs.setattr(*ino, &size(4096 * 3)).map(drop)),
            Way::RemoveAttribute => fs.removexattr(self.files[0], b"user.some"),
        }
    }

    /// What df says can be written now, nine tenths of it, without time passing.
    fn write_what_is_available(&self) -> Result<(), String> {
        let usage = self.fs.usage();
        let blocks = usage.available_blocks.saturating_sub(DF_ROUNDS_BY) / 10 * 9;
        let new = self.fs.create(Ino::ROOT, b"new", &file(0o600));
        let ino = match new {
            Err(Error::NoSpace) if blocks == 0 => return Ok(()),
            other => other.map_err(|e| format!("create: {e}: {usage:?}"))?.ino,
        };
        let mut at = 0;
        while at < blocks {
            let some = (blocks - at).min(16);
            let wrote = self.fs.write(ino, at * 4096, &vec![5; some as usize * 4096], 0);
            wrote.map_err(|e| format!("block {at} of {blocks}: {e}: {usage:?}"))?;
            at += some;
        }
        self.fs.sync_all().map_err(|e| e.to_string())
    }
}

/// What each way of each kind of full volume came to, where it went wrong.
fn letting_go_of(fills: &[Fill], ways: &[Way], seeds: std::ops::Range<u64>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (fill, seed) in fills.iter().flat_map(|f| seeds.clone().map(move |s| (*f, s))) {
        for way in ways {
            let full = Full::new(fill, seed);
            let done = full.let_go(*way).map_err(|e| format!("refused: {e}"));
            if let Err(e) = done.and_then(|()| full.write_what_is_available()) {
                wrong.push(format!("{}, {way:?}: {e}", full.what));
            }
            full.pass(20, SECOND);
            full.fs.close().unwrap();
            assert_eq!(full.w.open().failed(), None, "{}, {way:?}", full.what);
        }
    }
    wrong
}

#[test]
fn a_full_volume_lets_go_and_is_written_again_at_once() {
    let wrong = letting_go_of(&FILLS, &WAYS, 1..3);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// After the power went: what it holds of a file.
fn content_after_a_cut(w: &World, name: &[u8]) -> Vec<u8> {
    let device = MemDevice::from_bytes(w.device.inner().snapshot());
    let fs = Fs::open(vec![Arc::new(device)], w.clock.clone(), MountOptions::default()).unwrap();
    let ino = fs.lookup(At::Live, Ino::ROOT, name).unwrap().ino;
    fs.read(At::Live, ino, 0, 1 << 30).unwrap()
}

/// P3, where room is short: a file that was emptied and is still open keeps what it held for a power cut, unless nothing else makes
/// room; and a small one even then.
#[test]
fn what_is_held_back_is_let_go_last() {
    let w = World::with(VOLUME_BYTES, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let make = |name: &str, byte: u8, blocks: usize| {
        let ino = fs.create(Ino::ROOT, name.as_bytes(), &file(0o600)).unwrap().ino;
        fs.write(ino, 0, &vec![byte; blocks * 4096], 0).unwrap();
        ino
    };
    let emptied = [make("large", 1, 200), make("small", 3, 3)];
    // History of files that are gone.
    for round in 0..8u8 {
        for n in 0..4 {
            make(&format!("{n}"), round, 50);
        }
        fs.checkpoint_create(None).unwrap();
        (0..4).for_each(|n| fs.unlink(Ino::ROOT, format!("{n}").as_bytes()).unwrap());
    }
    fs.sync_all().unwrap();
    let rest = make("rest", 9, 1);
    for ino in emptied {
        fs.retain(ino);
        fs.setattr(ino, &size(0)).unwrap();
    }
    let before = content_after_a_cut(&w, b"large");
    assert!(before == vec![1; 200 * 4096]);
    let mut at = 1;
    let mut write = |blocks: u64| {
        let wrote = fs.write(rest, at * 4096, &vec![9; blocks as usize * 4096], 0);
        at += blocks;
        wrote.is_ok()
    };
    let kept = fs.checkpoints().len();
    while fs.checkpoints().len() > 2 {
        assert!(write(8));
        let held = content_after_a_cut(&w, b"large") == before;
        assert!(held || fs.checkpoints().len() <= 2, "held back no longer, though history was there");
    }
    assert_eq!(kept, 8);
    // And then nothing does.
    while write(8) {}
    let now = content_after_a_cut(&w, b"large");
    assert!(now.is_empty(), "still held back");
    assert!(content_after_a_cut(&w, b"small") == vec![3; 3 * 4096], "a small one is held back no longer");
}

/// A volume on which even removing is refused: each of many small files is changed while a snapshot keeps it as it was. And a file of
/// it that has no name and is in use.
fn where_removing_is_refused() -> (Full, Ino) {
    let w = World::with(12 << 20, &MkfsOptions { segment_blocks: 64, ..MkfsOptions::default() });
    let fs = w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() });
    let create = |i: usize| fs.create(Ino::ROOT, format!("file number {i}").as_bytes(), &file(0o600));
    let open = fs.tmpfile(&file(0o600)).unwrap().ino;
    let mut files = Vec::new();
    while let Ok(f) = create(files.len()) {
        files.push(f.ino);
    }
    let room_for = |name: &[u8], files: &mut Vec<Ino>| {
        while fs.checkpoint_create(Some(name)).is_err() {
            for _ in 0..files.len() / 64 {
                files.pop();
                fs.unlink(Ino::ROOT, format!("file number {}", files.len()).as_bytes()).unwrap();
            }
            fs.sync_all().unwrap();
        }
    };
    room_for(b"all", &mut files);
    let last = files[files.len() - 1];
    // One more that holds nothing by itself, and loses its name, so that the rule may have it.
    let unnamed = fs.checkpoints()[0].cno;
    let full = Full { w, fs, rest: last, files, checkpoints: vec![unnamed], what: "removing is refused".into() };
    let fs = &full.fs;
    let refused = (0..8).any(|round| {
        full.files.iter().any(|ino| {
            let mode = SetAttr { mode: Some(0o600 + round), ..SetAttr::default() };
            matches!(fs.setattr(*ino, &mode), Err(Error::NoSpace))
        })
    });
    let names = (0..full.files.len()).map(|i| format!("file number {i}"));
    let refused =
        refused && names.into_iter().any(|n| matches!(fs.unlink(Ino::ROOT, n.as_bytes()), Err(Error::NoSpace)));
    assert!(refused, "removing is never refused here");
    (full, open)
}

/// The way out of a volume on which nothing else is possible.
#[test]
fn where_removing_is_refused_the_past_can_be_let_go() {
    for way in [Way::Rule, Way::Clean, Way::Snapshots] {
        let (full, open) = where_removing_is_refused();
        full.fs.release(open);
        let done = full.let_go(way);
        assert!(done.is_ok(), "{way:?}: {done:?}");
        if way == Way::Snapshots {
            full.fs.unlink(Ino::ROOT, b"file number 0").unwrap();
            full.write_what_is_available().unwrap();
        }
        full.pass(20, SECOND);
        full.fs.close().unwrap();
    }
}

/// Whether what was closed when there was no room to remove anything is still there when there is some.
fn closed_without_room() -> bool {
    let (full, open) = where_removing_is_refused();
    let is_there = || match full.fs.getattr(At::Live, open) {
        Ok(_) => true,
        Err(Error::NotFound) => false,
        Err(e) => panic!("{e}"),
    };
    full.fs.release(open);
    assert!(is_there(), "there was room");
    full.let_go(Way::Snapshots).unwrap();
    full.pass(20, SECOND);
    let stays = is_there();
    full.fs.close().unwrap();
    stays
}

#[test]
fn a_file_without_a_name_that_was_closed_without_room_goes_later() {
    assert!(!closed_without_room(), "it stays until the next mount");
}

#[cfg(feature = "breaks")]
mod broken {
    use super::*;
    use nenrin_core::breaks::{Break, with};

    /// Each of these is what one line of the core sees to.
    #[test]
    fn what_keeps_a_full_volume_from_letting_go_is_noticed() {
        let cases = [
            (Break::SweepLeft, Fill::Snapshots, Way::Snapshots),
            (Break::ChangesUnseen, Fill::History, Way::Empty),
            (Break::HoldsOutlast, Fill::History, Way::EmptyAndHold),
            (Break::EmptyNeedsRoom, Fill::History, Way::EmptyAgain),
        ];
        for (what, fill, way) in cases {
            let wrong = with(what, || letting_go_of(&[fill], &[way], 1..8));
            assert!(!wrong.is_empty(), "{what:?}");
        }
    }

    #[test]
    fn letting_go_that_asks_for_room_is_noticed() {
        for way in [Way::Rule, Way::Snapshots] {
            let (full, _) = where_removing_is_refused();
            let done = with(Break::LettingGoNeedsRoom, || full.let_go(way));
            assert!(matches!(done, Err(Error::NoSpace)), "{way:?}: {done:?}");
        }
    }

    #[test]
    fn files_without_a_name_that_stay_are_noticed() {
        assert!(with(Break::OrphansLeft, closed_without_room));
    }

    #[test]
    #[should_panic(expected = "though history was there")]
    fn what_is_let_go_too_early_is_noticed() {
        with(Break::HoldsEndFirst, what_is_held_back_is_let_go_last);
    }

    #[test]
    #[should_panic(expected = "a small one is held back no longer")]
    fn small_ones_that_are_let_go_are_noticed() {
        with(Break::SmallHoldsEnd, what_is_held_back_is_let_go_last);
    }
}
