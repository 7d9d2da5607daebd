//! `user.nenrin.history`: a past state shows all of a moment or says that it does not know (decision 0020).
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
use nenrin_core::format::items::{HISTORY_XATTR, Keep};
use nenrin_core::format::{Cno, Ino};
use nenrin_core::{
    At, CheckOptions, Error, FileKind, Fs, MountOptions, NewInode, RenameMode, SetAttr, Writer, XattrMode, check,
};
use nenrin_device::{BlockDevice, Prng};
use std::collections::BTreeMap;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

fn open(w: &World) -> Arc<Fs> {
    w.open_with(MountOptions { checkpoint_nanos: 0, ..MountOptions::default() })
}

fn set(fs: &Fs, ino: Ino, keep: &str) {
    fs.setxattr(ino, HISTORY_XATTR, keep.as_bytes(), XattrMode::Any).unwrap();
}

/// A directory under the root that says how much history is kept below it.
fn below(fs: &Fs, name: &[u8], keep: &str) -> Ino {
    let made = fs.create(Ino::ROOT, name, &dir()).unwrap().ino;
    set(fs, made, keep);
    made
}

fn put(fs: &Fs, parent: Ino, name: &[u8], bytes: &[u8]) -> Ino {
    let ino = match fs.lookup(At::Live, parent, name) {
        Ok(f) => f.ino,
        Err(_) => fs.create(parent, name, &file(0o644)).unwrap().ino,
    };
    fs.write(ino, 0, bytes, 0).unwrap();
    fs.fsync_wait(ino).unwrap();
    ino
}

fn cut(fs: &Fs, name: Option<&[u8]>) -> Cno {
    fs.checkpoint_create(name).unwrap().cno
}

fn settle(w: &World, fs: &Fs) {
    for _ in 0..40 {
        w.pass(SECOND);
        fs.tick().unwrap();
    }
}

fn sound(w: &World) {
    let device: Arc<dyn BlockDevice> = w.device.clone();
    let report = check::check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
    let wrong: Vec<String> = report
        .findings
        .iter()
        .filter(|f| f.what.severity() == check::Severity::Error)
        .map(ToString::to_string)
        .collect();
    assert_eq!(wrong, Vec::<String>::new());
}

/// Whether the content of a file is that, or not known at that time.
fn content(fs: &Fs, cno: Cno, ino: Ino) -> Option<Vec<u8>> {
    let read = fs.getattr(At::Past(cno), ino).and_then(|a| fs.read(At::Past(cno), ino, 0, a.size as usize));
    match read {
        Ok(bytes) => Some(bytes),
        Err(Error::Stale) => None,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn the_attribute_is_shown_inherited_and_removed() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let target = fs.create(Ino::ROOT, b"target", &dir()).unwrap().ino;
    let get = |fs: &Fs, ino| fs.getxattr(At::Live, ino, HISTORY_XATTR);
    assert!(matches!(get(&fs, target), Err(Error::NoAttribute)));
    for bad in [&b""[..], b"some", b"none\0", b"None"] {
        assert!(matches!(fs.setxattr(target, HISTORY_XATTR, bad, XattrMode::Any), Err(Error::BadArgument(_))));
    }
    assert!(matches!(fs.setxattr(target, HISTORY_XATTR, b"none", XattrMode::Replace), Err(Error::NoAttribute)));
    fs.setxattr(target, HISTORY_XATTR, b"none", XattrMode::Create).unwrap();
    assert!(matches!(fs.setxattr(target, HISTORY_XATTR, b"none", XattrMode::Create), Err(Error::Exists)));
    fs.setxattr(target, b"user.other", b"1", XattrMode::Any).unwrap();
    let debug = fs.create(target, b"debug", &dir()).unwrap().ino;
    let object = fs.create(debug, b"a.o", &file(0o644)).unwrap().ino;
    let link = NewInode { mode: 0o120_777, uid: 0, gid: 0, rdev: 0, target: b"a.o" };
    let link = fs.create(debug, b"link", &link).unwrap().ino;
    let kept = fs.create(target, b"kept", &dir()).unwrap().ino;
    set(&fs, kept, "full");
    let below_kept = fs.create(kept, b"file", &file(0o644)).unwrap().ino;
    fs.rename(debug, b"a.o", Ino::ROOT, b"a.o", RenameMode::Replace).unwrap();
    // A crash, then a clean unmount: the records and the items must say the same.
    for crash in [true, false] {
        let fs = if crash {
            fs.sync_all().unwrap();
            open(&w)
        } else {
            let fs = open(&w);
            fs.close().unwrap();
            open(&w)
        };
        for ino in [target, debug, object, link] {
            assert_eq!(get(&fs, ino).unwrap(), b"none", "{ino}");
        }
        assert_eq!(get(&fs, kept).unwrap(), b"full");
        assert!(matches!(get(&fs, below_kept), Err(Error::NoAttribute)));
        let mut names = fs.listxattr(At::Live, target).unwrap();
        names.sort();
        assert_eq!(names, [HISTORY_XATTR.to_vec(), b"user.other".to_vec()]);
        assert_eq!(fs.listxattr(At::Live, object).unwrap(), [HISTORY_XATTR.to_vec()]);
    }
    let fs = open(&w);
    fs.removexattr(object, HISTORY_XATTR).unwrap();
    assert!(matches!(fs.removexattr(object, HISTORY_XATTR), Err(Error::NoAttribute)));
    assert!(fs.listxattr(At::Live, object).unwrap().is_empty());
    sound(&w);
}

#[test]
fn none_keeps_what_snapshots_show_and_nothing_else() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let target = below(&fs, b"target", "none");
    let f = put(&fs, target, b"a.o", &[1; 9000]);
    let plain = put(&fs, Ino::ROOT, b"plain", &[1; 9000]);
    let first = cut(&fs, None);
    put(&fs, target, b"a.o", &[2; 9000]);
    put(&fs, target, b"a.d", &[2; 90]);
    put(&fs, Ino::ROOT, b"plain", &[2; 9000]);
    let snapshot = cut(&fs, Some(b"release"));
    put(&fs, target, b"a.o", &[3; 9000]);
    fs.unlink(target, b"a.d").unwrap();
    put(&fs, Ino::ROOT, b"plain", &[3; 9000]);
    let third = cut(&fs, None);
    let history = fs.usage().history_blocks;
    put(&fs, target, b"a.o", &[4; 9000]);
    assert_eq!(fs.usage().history_blocks, history, "went to history");
    fs.unlink(target, b"a.o").unwrap();
    put(&fs, target, b"b.o", &[5; 9000]);
    for (cno, byte) in [(first, 1), (snapshot, 2), (third, 3)] {
        assert_eq!(content(&fs, cno, plain).unwrap(), [byte; 9000]);
        let known = cno == snapshot;
        assert_eq!(content(&fs, cno, f), known.then(|| vec![byte; 9000]));
        // Its attributes are its own, its entries are not known.
        fs.lookup(At::Past(cno), Ino::ROOT, b"target").unwrap();
        let looked = fs.lookup(At::Past(cno), target, b"a.o").map(|a| a.ino);
        let listed = fs.readdir(At::Past(cno), target, 0, &mut |_| true);
        if known {
            assert_eq!(looked.unwrap(), f);
            listed.unwrap();
            assert!(matches!(fs.lookup(At::Past(cno), target, b"b.o"), Err(Error::NotFound)));
        } else {
            assert!(matches!(looked, Err(Error::Stale)), "{looked:?}");
            assert!(matches!(listed, Err(Error::Stale)), "{listed:?}");
            assert!(matches!(fs.lookup(At::Past(cno), target, b"b.o"), Err(Error::Stale)));
        }
    }
    // Only what can be read is told.
    let states = fs.history(&[b"target", b"a.o"]).unwrap();
    let told: Vec<_> = states.iter().filter(|s| s.attr.is_some()).map(|s| s.shown_by).collect();
    assert_eq!(told, [Some((snapshot, snapshot))], "{states:?}");
    let gone = fs.gone(&[b"target"]).unwrap();
    assert_eq!(
        gone.iter().map(|g| (g.name.as_slice(), g.last)).collect::<Vec<_>>(),
        [(&b"a.d"[..], snapshot), (b"a.o", snapshot)]
    );
    // With the snapshot goes what it kept, though unnamed checkpoints lie in its time, and nothing is guessed.
    fs.checkpoint_name(snapshot, None).unwrap();
    assert_eq!(content(&fs, snapshot, f), None);
    assert_eq!(content(&fs, snapshot, plain).unwrap(), [2; 9000]);
    let before = fs.usage().history_blocks;
    fs.checkpoint_drop(&[first]).unwrap();
    settle(&w, &fs);
    assert!(fs.usage().history_blocks + 6 <= before, "{} of {before}", fs.usage().history_blocks);
    // A name that comes again does not bring back what went.
    fs.checkpoint_name(snapshot, Some(b"again")).unwrap();
    assert_eq!(content(&fs, snapshot, f), None);
    fs.close().unwrap();
    sound(&w);
}

/// P1: who may read the past of a file that is gone goes by the last state in which it is known, and not by one that shows no more of it.
fn a_file_that_was_closed() -> (Option<Cno>, Cno) {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let target = below(&fs, b"target", "none");
    let f = put(&fs, target, b"f", b"for all");
    cut(&fs, Some(b"open"));
    fs.setattr(f, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    let closed = cut(&fs, Some(b"closed"));
    put(&fs, target, b"f", b"touched");
    let last = cut(&fs, Some(b"last"));
    let unnamed = cut(&fs, None);
    fs.unlink(target, b"f").unwrap();
    fs.sync_all().unwrap();
    assert_eq!(fs.last_seen(f).unwrap(), Some(unnamed), "known by the snapshot before it");
    fs.checkpoint_name(last, None).unwrap();
    assert!(matches!(fs.getattr(At::Past(unnamed), f), Err(Error::Stale)));
    assert_eq!(fs.getattr(At::Past(closed), f).unwrap().mode & 0o777, 0o600);
    (fs.last_seen(f).unwrap(), closed)
}

#[test]
fn what_is_seen_last_is_known() {
    let (seen, closed) = a_file_that_was_closed();
    assert_eq!(seen, Some(closed));
}

#[cfg(feature = "breaks")]
#[test]
fn without_that_a_state_is_taken_of_which_nothing_is_known_noticed() {
    let (seen, closed) = nenrin_core::breaks::with(nenrin_core::breaks::Break::LastSeenUnknown, a_file_that_was_closed);
    assert!(seen > Some(closed), "{seen:?}");
}

/// A checkpoint gets its name while nothing was cut since, and what it shows is replaced and removed at once: in directories that keep
/// less, after a crash and without.
fn named_late_and_replaced(keep: &str, crash: bool) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let target = below(&fs, b"target", keep);
    let [f, g] = [b"a.o", b"b.o"].map(|name| put(&fs, target, name, &[1; 9000]));
    let first = (keep == "daily").then(|| cut(&fs, None));
    let shown = cut(&fs, None);
    assert_ne!(first, Some(shown));
    fs.checkpoint_name(shown, Some(b"late")).unwrap();
    put(&fs, target, b"a.o", &[2; 9000]);
    fs.unlink(target, b"b.o").unwrap();
    fs.sync_all().unwrap();
    if !crash {
        settle(&w, &fs);
        fs.close().unwrap();
    }
    drop(fs);
    let fs = open(&w);
    settle(&w, &fs);
    sound(&w);
    (content(&fs, shown, f), content(&fs, shown, g))
}

#[test]
fn what_a_late_name_shows_when_it_is_given_stays() {
    for (keep, crash) in [("none", true), ("none", false), ("daily", true), ("daily", false), ("full", true)] {
        let (f, g) = named_late_and_replaced(keep, crash);
        assert_eq!(f.as_deref(), Some(&[1; 9000][..]), "{keep}, {crash}: what was replaced");
        assert_eq!(g.as_deref(), Some(&[1; 9000][..]), "{keep}, {crash}: what was removed");
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what was replaced")]
fn a_late_name_that_counts_late_is_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::LateNameUncut, what_a_late_name_shows_when_it_is_given_stays);
}

#[test]
fn what_was_before_the_attribute_stays() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let f = put(&fs, Ino::ROOT, b"f", &[1; 9000]);
    let first = cut(&fs, None);
    set(&fs, f, "none");
    let second = cut(&fs, None);
    put(&fs, Ino::ROOT, b"f", &[2; 9000]);
    let third = cut(&fs, None);
    put(&fs, Ino::ROOT, b"f", &[3; 9000]);
    set(&fs, f, "full");
    let fourth = cut(&fs, None);
    fs.unlink(Ino::ROOT, b"f").unwrap();
    for (cno, byte) in [(first, Some(1)), (second, None), (third, None), (fourth, Some(3))] {
        assert_eq!(content(&fs, cno, f), byte.map(|b| vec![b; 9000]), "{cno}");
        // What says so itself keeps its attributes.
        assert_eq!(fs.getattr(At::Past(cno), f).unwrap().size, 9000);
    }
    fs.close().unwrap();
    sound(&w);
}

#[test]
fn daily_keeps_the_first_of_each_day() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let cache = below(&fs, b"cache", "daily");
    let mut shown = Vec::new();
    for hour in 0..100u8 {
        let f = put(&fs, cache, b"f", &[hour; 5000]);
        shown.push((cut(&fs, None), f, hour));
        w.pass(3600 * SECOND);
    }
    let kept: Vec<u8> = shown
        .iter()
        .filter(|(cno, f, hour)| {
            let found = content(&fs, *cno, *f);
            assert!(found.is_none() || found == Some(vec![*hour; 5000]));
            found.is_some()
        })
        .map(|(.., hour)| *hour)
        .collect();
    let firsts: Vec<Cno> = fs.checkpoints().iter().filter(|c| c.daily).map(|c| c.cno).collect();
    assert_eq!(firsts.len(), 5, "{firsts:?}");
    let expected: Vec<u8> =
        shown.iter().filter(|(cno, _, hour)| firsts.contains(cno) || *hour == 99).map(|s| s.2).collect();
    assert_eq!(kept, expected);
    // The ladder keeps the same checkpoint of a day.
    fs.set_retention("1h:all 30d:1d").unwrap();
    settle(&w, &fs);
    w.pass(600 * SECOND);
    settle(&w, &fs);
    let left = fs.checkpoints();
    assert!(left.len() < 8 && firsts.iter().all(|f| left.iter().any(|c| c.cno == *f)), "{left:?}");
    fs.close().unwrap();
    sound(&w);
}

#[test]
fn shared_blocks_forks_links_and_open_files() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let target = below(&fs, b"target", "none");
    let source = put(&fs, Ino::ROOT, b"source", &[7; 40 << 10]);
    // A copy below shares blocks of a file that keeps all; and the other way round.
    let copy = fs.create(target, b"copy", &file(0o644)).unwrap().ino;
    assert_eq!(fs.copy_range(source, 0, copy, 0, 40 << 10, 0).unwrap(), 40 << 10);
    let huge = put(&fs, target, b"huge", &vec![8; 3 << 20]);
    let linked = put(&fs, target, b"linked", &[9; 5000]);
    fs.link(linked, Ino::ROOT, b"outside").unwrap();
    let opened = put(&fs, target, b"opened", &[10; 5000]);
    fs.retain(opened);
    let snapshot = cut(&fs, Some(b"s"));
    let unnamed = cut(&fs, None);
    put(&fs, Ino::ROOT, b"source", &[17; 40 << 10]);
    put(&fs, target, b"copy", &[17; 40 << 10]);
    fs.setattr(huge, &nenrin_core::SetAttr { size: Some(0), ..Default::default() }).unwrap();
    fs.flush(huge).unwrap();
    put(&fs, target, b"huge", &[18; 5000]);
    put(&fs, Ino::ROOT, b"outside", &[19; 5000]);
    fs.unlink(target, b"opened").unwrap();
    fs.write(opened, 0, &[20; 5000], 0).unwrap();
    fs.sync_all().unwrap();
    let later = cut(&fs, None);
    fs.write(opened, 0, &[21; 5000], 0).unwrap();
    fs.sync_all().unwrap();
    fs.release(opened);
    settle(&w, &fs);
    fs.unlink(target, b"huge").unwrap();
    settle(&w, &fs);
    let all = [(source, 7, 40 << 10), (copy, 7, 40 << 10), (huge, 8, 3 << 20), (linked, 9, 5000), (opened, 10, 5000)];
    for (ino, byte, bytes) in all {
        assert_eq!(content(&fs, snapshot, ino).unwrap(), vec![byte; bytes], "{ino}");
        let full = ino == source;
        // The same version: what the snapshot keeps, the checkpoint behind it shows, too.
        assert_eq!(content(&fs, unnamed, ino).unwrap(), vec![byte; bytes], "{ino} of {full}");
    }
    assert_eq!(content(&fs, later, huge), None);
    assert_eq!(content(&fs, later, opened), None);
    assert!(matches!(fs.lookup(At::Past(later), target, b"huge"), Err(Error::Stale)));
    // Back from the past, it lives: with the history that its place keeps.
    let back = fs.create(Ino::ROOT, b"back", &file(0o644)).unwrap().ino;
    assert_eq!(fs.copy_range_at(At::Past(snapshot), huge, 0, back, 0, 3 << 20, Writer::default()).unwrap(), 3 << 20);
    assert!(matches!(fs.copy_range_at(At::Past(later), huge, 0, back, 0, 5000, Writer::default()), Err(Error::Stale)));
    fs.sync_all().unwrap();
    fs.checkpoint_name(snapshot, None).unwrap();
    fs.checkpoint_drop(&[snapshot, unnamed]).unwrap();
    settle(&w, &fs);
    assert_eq!(fs.read(At::Live, back, 0, 3 << 20).unwrap(), vec![8; 3 << 20]);
    let shown = cut(&fs, None);
    fs.unlink(Ino::ROOT, b"back").unwrap();
    assert_eq!(content(&fs, shown, back).unwrap(), vec![8; 3 << 20]);
    fs.close().unwrap();
    sound(&w);
}

/// Of what is not kept nothing is known, however large it was: it is no hole.
#[test]
fn what_is_not_kept_of_a_large_file_is_no_hole() {
    let w = World::new(96 << 20);
    let fs = open(&w);
    let f = put(&fs, Ino::ROOT, b"image", &vec![1; 20 << 20]);
    set(&fs, f, "none");
    let then = cut(&fs, None);
    fs.write(f, 0, &vec![2; 20 << 20], 0).unwrap();
    fs.sync_all().unwrap();
    let later = cut(&fs, None);
    fs.write(f, 0, &vec![3; 20 << 20], 0).unwrap();
    settle(&w, &fs);
    assert_eq!(content(&fs, then, f), None);
    let back = fs.create(Ino::ROOT, b"back", &file(0o644)).unwrap().ino;
    let copied = fs.copy_range_at(At::Past(then), f, 0, back, 0, 20 << 20, Writer::default());
    assert!(matches!(copied, Err(Error::Stale)), "zeros are copied: {copied:?}");
    let sought = fs.seek(At::Past(then), f, 0, nenrin_core::Seek::Data);
    assert!(matches!(sought, Err(Error::Stale)), "{sought:?}");
    let same = fs.has_same_content((At::Past(then), f), (At::Past(later), f), &mut || true);
    assert!(same.is_err(), "{same:?}");
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "zeros are copied")]
fn zeros_for_what_is_not_kept_are_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::UnkeptIsHole, what_is_not_kept_of_a_large_file_is_no_hole);
}

/// What a file that keeps all is in a directory that keeps nothing can be found, and forgotten.
#[test]
fn a_name_is_kept_as_long_as_what_it_names() {
    let w = World::new(64 << 20);
    let fs = open(&w);
    let target = below(&fs, b"target", "none");
    let f = put(&fs, target, b"notes", &[1; 5000]);
    set(&fs, f, "full");
    let first = cut(&fs, None);
    put(&fs, target, b"notes", &[2; 5000]);
    let second = cut(&fs, None);
    fs.unlink(target, b"notes").unwrap();
    put(&fs, target, b"other", &[3; 5000]);
    cut(&fs, None);
    assert_eq!(fs.lookup(At::Past(first), target, b"notes").unwrap().ino, f);
    assert_eq!(content(&fs, first, f).unwrap(), [1; 5000]);
    assert!(matches!(fs.lookup(At::Past(first), target, b"never"), Err(Error::Stale)));
    let states = fs.history(&[b"target", b"notes"]).unwrap();
    assert_eq!(states.iter().filter(|s| s.attr.is_some()).count(), 2, "{states:?}");
    assert_eq!(fs.gone(&[b"target"]).unwrap().iter().map(|g| g.last).collect::<Vec<_>>(), [second]);
    assert!(fs.forget_plan(&[b"target", b"notes"]).unwrap().inodes.contains(&f));
}

/// What a moment was, by inode number.
struct Shown {
    keep: Keep,
    what: What,
}

#[derive(Clone, PartialEq, Debug)]
struct What {
    size: u64,
    nlink: u32,
    bytes: Vec<u8>,
    entries: BTreeMap<Vec<u8>, Ino>,
    attribute: Option<Vec<u8>>,
}

fn look(fs: &Fs, at: At, ino: Ino) -> Result<What, Error> {
    let attr = fs.getattr(at, ino)?;
    let mut entries = BTreeMap::new();
    let mut bytes = Vec::new();
    match attr.kind() {
        FileKind::Directory => fs.readdir(at, ino, 0, &mut |e| {
            if e.name != b"." && e.name != b".." {
                entries.insert(e.name, e.ino);
            }
            true
        })?,
        FileKind::Regular => bytes = fs.read(at, ino, 0, attr.size as usize)?,
        _ => bytes = fs.readlink(at, ino)?,
    }
    let attribute = match fs.getxattr(at, ino, b"user.a") {
        Err(Error::NoAttribute) => None,
        other => Some(other?),
    };
    Ok(What { size: attr.size, nlink: attr.nlink, bytes, entries, attribute })
}

/// A volume at random, and what each checkpoint must show.
struct Random {
    w: World,
    fs: Arc<Fs>,
    rng: Prng,
    moments: BTreeMap<Cno, BTreeMap<Ino, Shown>>,
    /// Snapshots that were made as such, and have had their name since.
    snapshots: Vec<Cno>,
    names: u64,
    stale: u64,
    known: u64,
}

impl Random {
    fn new(seed: u64) -> Self {
        let w = World::new(96 << 20);
        let fs = open(&w);
        let moments = BTreeMap::new();
        Self { w, fs, rng: Prng::new(seed), moments, snapshots: Vec::new(), names: 0, stale: 0, known: 0 }
    }

    /// All that has a name.
    fn inodes(&self) -> Vec<(Ino, Vec<Ino>)> {
        let mut out: Vec<(Ino, Vec<Ino>)> = vec![(Ino::ROOT, Vec::new())];
        let mut at = 0;
        while at < out.len() {
            let dir = out[at].0;
            if self.fs.getattr(At::Live, dir).unwrap().kind() == FileKind::Directory {
                for ino in look(&self.fs, At::Live, dir).unwrap().entries.into_values() {
                    match out.iter_mut().find(|o| o.0 == ino) {
                        Some(o) => o.1.push(dir),
                        None => out.push((ino, vec![dir])),
                    }
                }
            }
            at += 1;
        }
        out
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.rng.below(of.len() as u64) as usize].clone())
    }

    fn keep_of(&self, ino: Ino) -> Keep {
        match self.fs.getxattr(At::Live, ino, HISTORY_XATTR) {
            Ok(text) => Keep::parse(&text).unwrap(),
            Err(_) => Keep::Full,
        }
    }

    fn cut(&mut self, named: bool) {
        self.names += 1;
        let name = format!("snapshot-{}", self.names);
        self.fs.sync_all().unwrap();
        let cno = self.fs.checkpoint_create(named.then_some(name.as_bytes())).unwrap().cno;
        let shown = self
            .inodes()
            .into_iter()
            .map(|(ino, _)| (ino, Shown { keep: self.keep_of(ino), what: look(&self.fs, At::Live, ino).unwrap() }));
        let shown = shown.collect();
        self.moments.insert(cno, shown);
        if named {
            self.snapshots.push(cno);
        }
    }

    fn change(&mut self) {
        let all = self.inodes();
        let kind = |ino: Ino| self.fs.getattr(At::Live, ino).unwrap().kind();
        let dirs: Vec<Ino> = all.iter().map(|i| i.0).filter(|i| kind(*i) == FileKind::Directory).collect();
        let files: Vec<Ino> = all.iter().map(|i| i.0).filter(|i| kind(*i) == FileKind::Regular).collect();
        let fs = self.fs.clone();
        let name = format!("n{}", self.rng.below(6)).into_bytes();
        let directory = self.pick(&dirs).unwrap();
        match self.rng.below(20) {
            0 | 1 => drop(fs.create(directory, &name, &file(0o644))),
            2 if dirs.len() < 6 => drop(fs.create(directory, &name, &dir())),
            3 => drop(fs.unlink(directory, &name)),
            4 => drop(fs.rmdir(directory, &name)),
            5 => {
                let to = self.pick(&dirs).unwrap();
                let new = format!("n{}", self.rng.below(6)).into_bytes();
                let mode = if self.rng.below(4) == 0 { RenameMode::Exchange } else { RenameMode::Replace };
                drop(fs.rename(directory, &name, to, &new, mode));
            }
            6 => {
                let keep = ["none", "none", "daily", "full"][self.rng.below(4) as usize];
                let ino = self.pick(&all).unwrap().0;
                if self.rng.below(5) == 0 {
                    drop(fs.removexattr(ino, HISTORY_XATTR));
                } else {
                    set(&fs, ino, keep);
                }
            }
            7 => {
                let ino = self.pick(&all).unwrap().0;
                let value = self.rng.next_u64().to_le_bytes();
                fs.setxattr(ino, b"user.a", &value, XattrMode::Any).unwrap();
            }
            8 => {
                let Some(ino) = self.pick(&files) else { return };
                drop(fs.link(ino, directory, &name));
            }
            9 => {
                let (Some(from), Some(to)) = (self.pick(&files), self.pick(&files)) else { return };
                if from != to {
                    fs.copy_range(from, 0, to, 0, 1 << 20, 0).unwrap();
                }
            }
            10 => {
                let Some(ino) = self.pick(&files) else { return };
                let size = Some([0, 0, 3000, 50_000][self.rng.below(4) as usize]);
                fs.setattr(ino, &nenrin_core::SetAttr { size, ..Default::default() }).unwrap();
                fs.flush(ino).unwrap();
            }
            _ => {
                let Some(ino) = self.pick(&files) else { return };
                let offset = self.rng.below(8) * 4096;
                let bytes = [100, 1500, 9000, 40_000][self.rng.below(4) as usize];
                let byte = self.rng.next_u64() as u8;
                fs.write(ino, offset, &vec![byte; bytes], 0).unwrap();
            }
        }
    }

    fn past(&mut self) {
        let kept = self.fs.checkpoints();
        let Some(c) = self.pick(&kept) else { return self.cut(false) };
        match self.rng.below(8) {
            0 | 1 => self.cut(true),
            2 if c.name.is_some() => {
                self.fs.checkpoint_name(c.cno, None).unwrap();
                self.snapshots.retain(|s| *s != c.cno);
            }
            3 if c.name.is_none() => {
                self.names += 1;
                self.fs.checkpoint_name(c.cno, Some(format!("late-{}", self.names).as_bytes())).unwrap();
            }
            4 | 5 if c.name.is_none() => {
                self.fs.checkpoint_drop(&[c.cno]).unwrap();
                self.moments.remove(&c.cno);
            }
            _ => self.cut(false),
        }
    }

    /// Every kept checkpoint shows what it must, or says that it does not know where that is right.
    fn judge(&mut self) {
        for c in self.fs.checkpoints() {
            let Some(moment) = self.moments.get(&c.cno) else { continue };
            for (ino, shown) in moment {
                let is_anchor =
                    self.snapshots.contains(&c.cno) || shown.keep == Keep::Full || shown.keep == Keep::Daily && c.daily;
                match look(&self.fs, At::Past(c.cno), *ino) {
                    Ok(what) => {
                        assert_eq!(what, shown.what, "inode {ino} of checkpoint {} ({:?})", c.cno, shown.keep);
                        self.known += 1;
                    }
                    Err(Error::Stale) if !is_anchor => self.stale += 1,
                    Err(e) => panic!("inode {ino} of checkpoint {} ({:?}): {e}", c.cno, shown.keep),
                }
            }
        }
    }

    fn run(&mut self, steps: u64) {
        for step in 0..steps {
            for _ in 0..1 + self.rng.below(4) {
                self.change();
            }
            if self.rng.below(3) == 0 {
                self.past();
            }
            match self.rng.below(12) {
                0 => settle(&self.w, &self.fs),
                1 => self.w.pass(DAY / 3),
                2 => self.fs.sync_all().unwrap(),
                3 if step % 3 == 0 => {
                    self.fs.sync_all().unwrap();
                    // A crash; or a clean unmount.
                    if self.rng.below(2) == 0 {
                        self.fs.close().unwrap();
                    }
                    self.fs = open(&self.w);
                }
                _ => {}
            }
            if step % 10 == 0 {
                self.judge();
            }
        }
        settle(&self.w, &self.fs);
        self.judge();
        self.fs.close().unwrap();
        sound(&self.w);
    }
}

#[test]
fn a_past_state_is_whole_or_not_known() {
    let (mut stale, mut known) = (0, 0);
    for seed in 0..12 {
        let mut random = Random::new(seed);
        random.run(150);
        stale += random.stale;
        known += random.known;
    }
    assert!(stale > 500 && known > 5000, "{stale} of {known}");
}

/// Very many attributes are listed some at a time: each of them, once, now and in the past.
#[test]
fn very_many_attributes_are_listed() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let ino = fs.create(Ino::ROOT, b"f", &crate::common::file(0o600)).unwrap().ino;
    let name = |n: usize| format!("user.attribute-{n:05}").into_bytes();
    (0..3000).for_each(|n| fs.setxattr(ino, &name(n), b"1", XattrMode::Any).unwrap());
    let then = At::Past(fs.checkpoint_create(None).unwrap().cno);
    (0..2000).for_each(|n| fs.removexattr(ino, &name(n)).unwrap());
    let listed = |at: At| {
        let mut names = fs.listxattr(at, ino).unwrap();
        names.sort();
        names
    };
    assert_eq!(listed(At::Live), (2000..3000).map(name).collect::<Vec<_>>());
    assert_eq!(listed(then), (0..3000).map(name).collect::<Vec<_>>());
    // Who has enough gets no more.
    for most in [1, 512, 700] {
        let mut count = 0;
        fs.each_xattr(then, ino, &mut |_| {
            count += 1;
            count < most
        })
        .unwrap();
        assert_eq!(count, most);
    }
}

/// Attributes are compared some at a time, each with its value, now and in the past.
#[test]
fn very_many_attributes_are_compared() {
    let w = World::new(64 << 20);
    let fs = w.open();
    let [a, b] = [b"a", b"b"].map(|name| fs.create(Ino::ROOT, name, &crate::common::file(0o600)).unwrap().ino);
    let name = |n: usize| format!("user.attribute-{n:05}").into_bytes();
    let set = |ino, n: usize, value: &[u8]| fs.setxattr(ino, &name(n), value, XattrMode::Any).unwrap();
    let same = |one, other| fs.has_same_xattrs(one, other, &mut || true).unwrap().unwrap();
    let both = || [same((At::Live, a), (At::Live, b)), same((At::Live, b), (At::Live, a))];
    assert_eq!(both(), [true; 2], "none");
    (0..1500).for_each(|n| set(a, n, b"1"));
    assert_eq!(both(), [false; 2]);
    (0..1500).rev().for_each(|n| set(b, n, b"1"));
    assert_eq!(both(), [true; 2]);
    let then = At::Past(fs.checkpoint_create(None).unwrap().cno);
    let changes: [&dyn Fn(); 2] = [&|| set(b, 1400, b"2"), &|| set(b, 1500, b"1")];
    for change in changes {
        change();
        assert_eq!(both(), [false; 2]);
        assert!(same((At::Live, a), (then, b)) && !same((then, b), (At::Live, b)));
        set(b, 1400, b"1");
    }
    fs.removexattr(b, &name(7)).unwrap();
    assert_eq!(both(), [false; 2], "as many, and others");
    set(b, 7, b"1");
    fs.removexattr(b, &name(1500)).unwrap();
    assert_eq!(both(), [true; 2]);
    fs.setxattr(b, HISTORY_XATTR, b"none", XattrMode::Any).unwrap();
    assert_eq!(both(), [false; 2]);
    let mut asked = 0;
    let ended = fs.has_same_xattrs((then, a), (then, b), &mut || {
        asked += 1;
        asked < 600
    });
    assert_eq!((ended.unwrap(), asked), (None, 600), "who does not want to know any more is noticed");
}
