//! The history of a name (decision 0012).
#![allow(clippy::unwrap_used, clippy::panic)] // tests say what went wrong by stopping

use crate::common::{World, dir, file};
use nenrin_core::format::{Cno, Ino};
use nenrin_core::{At, Change, Error, Fs, MountOptions, NameState, RenameMode, SetAttr};
use nenrin_device::Prng;

/// One line for each state: change, path, size or "-", and whether it is what there is now.
fn told(fs: &Fs, path: &str) -> Vec<String> {
    let parts: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
    fs.history(&parts).unwrap().iter().map(line).collect()
}

fn line(s: &NameState) -> String {
    let text = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
    let change = match &s.change {
        Change::Made => "made".into(),
        Change::Content => "content".into(),
        Change::Attributes => "attributes".into(),
        Change::Renamed(from) => format!("renamed from {}", text(from)),
        Change::Linked(to) => format!("linked to {}", text(to)),
        Change::Moved(to) => format!("moved to {}", text(to)),
        Change::Removed => "removed".to_owned(),
    };
    let size = s.attr.map_or("-".into(), |a| a.size.to_string());
    format!("{} {size} {change}{}", text(&s.path), if s.is_now { ", now" } else { "" })
}

struct Past {
    w: World,
    fs: std::sync::Arc<Fs>,
}

impl Past {
    fn new() -> Self {
        let w = World::new(64 << 20);
        let fs = w.open();
        Self { w, fs }
    }
    fn cut(&self) -> Cno {
        self.w.pass(1_000_000_000);
        self.fs.checkpoint_create(None).unwrap().cno
    }
    fn write(&self, ino: Ino, bytes: usize) {
        self.w.pass(1000);
        self.fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        self.fs.write(ino, 0, &vec![7; bytes], 1000).unwrap();
        self.fs.fsync_wait(ino).unwrap();
    }
    fn rename(&self, from: (Ino, &str), to: (Ino, &str)) {
        self.fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), RenameMode::Replace).unwrap();
    }
}

const ROOT: Ino = Ino::ROOT;

#[test]
fn every_state_that_a_checkpoint_shows_is_told() {
    let p = Past::new();
    let f = p.fs.create(ROOT, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 10);
    let first = p.cut();
    p.write(f, 20);
    // No checkpoint shows this one.
    p.write(f, 21);
    let second = p.cut();
    p.cut();
    p.fs.setattr(f, &SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    p.cut();
    p.write(f, 5000);
    assert_eq!(told(&p.fs, "f"), ["f 10 made", "f 21 content", "f 21 attributes", "f 5000 content, now"]);
    let states = p.fs.history(&[b"f"]).unwrap();
    assert_eq!(states[0].shown_by, Some((first, first)));
    assert_eq!(states[1].shown_by, Some((second, second.next())));
    assert_eq!(states[3].shown_by, None);
    assert_eq!(states[1].editor_uid, 1000);
    // A state whose checkpoints are let go is told no more.
    p.fs.checkpoint_drop(&[first]).unwrap();
    assert_eq!(told(&p.fs, "f"), ["f 21 made", "f 21 attributes", "f 5000 content, now"]);
    assert!(matches!(p.fs.history(&[b"g"]), Err(Error::NotFound)));
    assert!(matches!(p.fs.history(&[b"f", b"g"]), Err(Error::NotFound)));
    assert!(matches!(p.fs.history(&[&[b'x'; 256]]), Err(Error::NameTooLong)));
    p.fs.close().unwrap();
}

#[test]
fn who_cut_a_file_short_is_told() {
    let p = Past::new();
    let f = p.fs.create(ROOT, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 9000);
    for (editor, uid) in [(None, 1000), (Some(7), 7)] {
        p.cut();
        let size = Some(5000 - u64::from(uid));
        p.fs.setattr(f, &SetAttr { size, editor, ..SetAttr::default() }).unwrap();
        p.fs.sync_all().unwrap();
        assert_eq!(p.fs.history(&[b"f"]).unwrap().last().unwrap().editor_uid, uid);
    }
    p.fs.close().unwrap();
}

#[test]
fn reading_makes_no_state_of_its_own() {
    let p = Past::new();
    let f = p.fs.create(ROOT, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 10);
    p.cut();
    p.w.pass(3_600_000_000_000 * 30);
    p.fs.accessed(f).unwrap();
    p.w.pass(3_600_000_000_000 * 30);
    p.fs.tick().unwrap();
    p.cut();
    assert_eq!(told(&p.fs, "f"), ["f 10 made, now"]);
}

/// As editors save: a new file, renamed over the old one.
#[test]
fn a_name_is_followed_over_files_that_replace_each_other() {
    let p = Past::new();
    for size in [10, 20, 30] {
        let f = p.fs.create(ROOT, b".f.swp", &file(0o600)).unwrap().ino;
        p.write(f, size);
        if size == 20 {
            // This one a checkpoint has seen before it got its name.
            p.cut();
        }
        p.rename((ROOT, ".f.swp"), (ROOT, "f"));
        p.cut();
    }
    assert_eq!(told(&p.fs, "f"), ["f 10 made", ".f.swp 20 made", "f 20 renamed from .f.swp", "f 30 made, now"]);
}

#[test]
fn removed_and_made_again() {
    let p = Past::new();
    let f = p.fs.create(ROOT, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 10);
    p.cut();
    p.fs.unlink(ROOT, b"f").unwrap();
    let gone = p.cut();
    let f = p.fs.create(ROOT, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 20);
    p.cut();
    p.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(told(&p.fs, "f"), ["f 10 made", "f - removed", "f 20 made", "f - removed, now"]);
    assert_eq!(p.fs.history(&[b"f"]).unwrap()[1].shown_by, Some((gone, gone)));
    // What is not shown by any checkpoint any more is nothing between two absences.
    let last = p.cut();
    let between: Vec<Cno> = p.fs.checkpoints().iter().map(|c| c.cno).filter(|c| *c > gone && *c < last).collect();
    p.fs.checkpoint_drop(&between).unwrap();
    assert_eq!(told(&p.fs, "f"), ["f 10 made", "f - removed, now"]);
    let all: Vec<Cno> = p.fs.checkpoints().iter().map(|c| c.cno).collect();
    p.fs.checkpoint_drop(&all).unwrap();
    assert!(matches!(p.fs.history(&[b"f"]), Err(Error::NotFound)));
}

#[test]
fn directories_on_the_way_may_move_and_be_made_anew() {
    let p = Past::new();
    let d = p.fs.create(ROOT, b"d", &dir()).unwrap().ino;
    let f = p.fs.create(d, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 10);
    p.cut();
    p.rename((ROOT, "d"), (ROOT, "old"));
    let d = p.fs.create(ROOT, b"d", &dir()).unwrap().ino;
    p.cut();
    let g = p.fs.create(d, b"f", &file(0o600)).unwrap().ino;
    p.write(g, 20);
    p.cut();
    assert_eq!(told(&p.fs, "d/f"), ["d/f 10 made", "d/f - moved to old/f", "d/f 20 made, now"]);
    assert_eq!(told(&p.fs, "old/f"), ["d/f 10 made", "old/f 10 renamed from d/f, now"]);
}

#[test]
fn links_and_moves_between_directories() {
    let p = Past::new();
    let d = p.fs.create(ROOT, b"d", &dir()).unwrap().ino;
    let f = p.fs.create(ROOT, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 10);
    p.cut();
    p.fs.link(f, d, b"link").unwrap();
    p.cut();
    p.fs.unlink(ROOT, b"f").unwrap();
    p.cut();
    p.rename((d, "link"), (ROOT, "back"));
    p.cut();
    assert_eq!(
        told(&p.fs, "d/link"),
        ["f 10 made", "d/link 10 linked to f", "d/link 10 attributes", "d/link - moved to back, now"]
    );
    assert_eq!(
        told(&p.fs, "back"),
        ["f 10 made", "f 10 attributes", "d/link 10 attributes", "back 10 renamed from d/link, now"]
    );
}

/// A file is told from its other names, also when the directory of both was renamed meanwhile.
#[test]
fn links_in_a_directory_that_was_renamed() {
    let p = Past::new();
    let d = p.fs.create(ROOT, b"s", &dir()).unwrap().ino;
    let f = p.fs.create(d, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 10);
    p.cut();
    p.rename((ROOT, "s"), (ROOT, "t"));
    p.fs.link(f, d, b"h").unwrap();
    p.cut();
    assert_eq!(told(&p.fs, "t/f"), ["s/f 10 made", "t/f 10 renamed from s/f, now"]);
    assert_eq!(told(&p.fs, "t/h"), ["s/f 10 made", "t/h 10 linked to t/f, now"]);
    assert_eq!(told(&p.fs, "s/f"), ["s/f 10 made", "s/f - moved to t/f, now"]);
    p.rename((ROOT, "t"), (ROOT, "u"));
    p.cut();
    assert_eq!(told(&p.fs, "u/h").last().unwrap(), "u/h 10 renamed from t/h, now");
    // Another name that it had all the time is not where it went.
    p.fs.unlink(d, b"h").unwrap();
    p.cut();
    assert_eq!(told(&p.fs, "u/h").last().unwrap(), "u/h - removed, now");
}

/// Names that were gone before a directory above them got its name are found under the one that it has.
#[test]
fn what_a_directory_lost_before_it_was_renamed_is_found() {
    let p = Past::new();
    let above = p.fs.create(ROOT, b"a", &dir()).unwrap().ino;
    let d = p.fs.create(above, b"proj", &dir()).unwrap().ino;
    // Removed; replaced as editors save; moved away, and still there elsewhere.
    let x = p.fs.create(d, b"x", &file(0o600)).unwrap().ino;
    p.write(x, 10);
    let saved = p.fs.create(d, b"y", &file(0o600)).unwrap().ino;
    p.write(saved, 20);
    p.fs.create(d, b"z", &file(0o600)).unwrap();
    let first = p.cut();
    p.fs.unlink(d, b"x").unwrap();
    let saved = p.fs.create(d, b".new", &file(0o600)).unwrap().ino;
    p.write(saved, 21);
    p.rename((d, ".new"), (d, "y"));
    p.rename((d, "z"), (ROOT, "elsewhere"));
    let second = p.cut();
    p.rename((above, "proj"), (above, "old"));
    let third = p.cut();
    p.rename((ROOT, "a"), (ROOT, "b"));
    p.cut();

    let gone = |path: &[&[u8]]| {
        let one = |g: nenrin_core::GoneName| {
            let text = |path: Option<Vec<u8>>| path.map_or("-".into(), |path| String::from_utf8(path).unwrap());
            format!("{} {} {} {}", text(Some(g.name)), g.last, text(g.then), text(g.now))
        };
        p.fs.gone(path).unwrap().into_iter().map(one).collect::<Vec<_>>()
    };
    let lost = [format!("x {first} a/proj/x -"), format!("z {first} a/proj/z elsewhere")];
    assert_eq!(gone(&[b"b", b"old"]), lost);
    assert_eq!(told(&p.fs, "b/old/x"), ["a/proj/x 10 made", "b/old/x - removed, now"]);
    assert_eq!(p.fs.history(&[b"b", b"old", b"x"]).unwrap()[1].shown_by, Some((second, third.next())));
    assert_eq!(
        told(&p.fs, "b/old/y"),
        ["a/proj/y 20 made", "a/proj/y 21 made", "b/old/y 21 renamed from a/old/y, now"]
    );
    assert_eq!(told(&p.fs, "b/old/z"), ["a/proj/z 0 made", "b/old/z - moved to elsewhere, now"]);
    // Under the name that it had, as ever.
    let taken = ["old", "proj"].map(|name| format!("{name} {} - b/old", if name == "old" { third } else { second }));
    assert_eq!(gone(&[b"a"]), taken);
    assert_eq!(told(&p.fs, "a/proj/x"), ["a/proj/x 10 made", "a/proj/x - removed, now"]);

    // A name that there is again is not gone; and what another directory of that name had is told, too.
    p.fs.create(d, b"x", &file(0o600)).unwrap();
    let again = p.fs.create(ROOT, b"a", &dir()).unwrap().ino;
    let other = p.fs.create(again, b"old", &dir()).unwrap().ino;
    p.fs.create(other, b"w", &file(0o600)).unwrap();
    let fifth = p.cut();
    assert_eq!(gone(&[b"b", b"old"]), lost[1..]);
    assert_eq!(told(&p.fs, "b/old/x"), ["a/proj/x 10 made", "b/old/x - removed", "b/old/x 0 made, now"]);
    p.fs.unlink(other, b"w").unwrap();
    p.cut();
    // The directory that went on took along what it had.
    let all = [&format!("w {fifth} - -"), &lost[0], &format!("y {third} - b/old/y"), &lost[1]];
    assert_eq!(gone(&[b"a", b"old"]).iter().collect::<Vec<_>>(), all);
    p.fs.close().unwrap();
}

/// What was removed under one name of its directory and made again under another is there between two absences; and of two names of
/// a file that which is removed is not told as moved to the one that stays.
#[test]
fn removed_again_while_its_directory_had_another_name() {
    let p = Past::new();
    let d = p.fs.create(ROOT, b"d", &dir()).unwrap().ino;
    let f = p.fs.create(ROOT, b"keep", &file(0o600)).unwrap().ino;
    p.write(f, 10);
    p.fs.link(f, d, b"f").unwrap();
    p.cut();
    p.fs.unlink(d, b"f").unwrap();
    p.cut();
    p.rename((ROOT, "d"), (ROOT, "e"));
    p.cut();
    let f = p.fs.create(d, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 20);
    p.cut();
    p.fs.unlink(d, b"f").unwrap();
    p.cut();
    p.rename((ROOT, "e"), (ROOT, "d"));
    p.cut();
    assert_eq!(told(&p.fs, "d/f"), ["d/f 10 made", "d/f - removed", "e/f 20 made", "d/f - removed, now"]);
    p.rename((ROOT, "d"), (ROOT, "g"));
    p.cut();
    assert_eq!(told(&p.fs, "g/f").last().unwrap(), "g/f - removed, now");
    assert_eq!(told(&p.fs, "g/f").iter().filter(|line| line.contains("moved to")).count(), 0);
    p.fs.close().unwrap();
}

/// One file that bore the name under both names of its directory is told under both, and its end there.
#[test]
fn the_same_file_under_two_names_of_its_directory() {
    let p = Past::new();
    let d = p.fs.create(ROOT, b"d", &dir()).unwrap().ino;
    let f = p.fs.create(d, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 10);
    let first = p.cut();
    p.rename((ROOT, "d"), (ROOT, "e"));
    p.write(f, 20);
    let second = p.cut();
    p.fs.unlink(d, b"f").unwrap();
    let third = p.cut();
    p.rename((ROOT, "e"), (ROOT, "d"));
    let fourth = p.cut();
    assert_eq!(
        told(&p.fs, "d/f"),
        ["d/f 10 made", "d/f - moved to e/f", "e/f 20 renamed from d/f", "d/f - removed, now"]
    );
    let shown: Vec<_> = p.fs.history(&[b"d", b"f"]).unwrap().iter().map(|s| s.shown_by).collect();
    assert_eq!(shown, [(first, first), (second, second), (second, second), (third, fourth)].map(Some));
}

/// The same when it came back to the directory while that had another name, and where nothing happened but that.
#[test]
fn back_in_a_directory_while_that_has_another_name() {
    let p = Past::new();
    let d = p.fs.create(ROOT, b"d", &dir()).unwrap().ino;
    let f = p.fs.create(d, b"f", &file(0o600)).unwrap().ino;
    p.fs.create(d, b"g", &file(0o600)).unwrap();
    p.write(f, 10);
    p.cut();
    p.rename((d, "f"), (ROOT, "keep"));
    p.cut();
    p.rename((ROOT, "d"), (ROOT, "e"));
    p.rename((ROOT, "keep"), (d, "f"));
    p.cut();
    p.fs.unlink(d, b"f").unwrap();
    p.cut();
    p.rename((ROOT, "e"), (ROOT, "d"));
    assert_eq!(
        told(&p.fs, "d/f"),
        ["d/f 10 made", "d/f - moved to keep", "e/f 10 renamed from keep", "d/f - removed, now"]
    );
    assert_eq!(
        told(&p.fs, "d/g"),
        ["d/g 0 made", "d/g - moved to e/g", "e/g 0 renamed from d/g", "d/g 0 renamed from e/g, now"]
    );
}

/// What stood for `DIRECTORY/f`, below a directory of the root, as a state shows it.
fn look(fs: &Fs, at: At, directory: &str) -> Option<(Ino, u64)> {
    let dir = fs.lookup(at, ROOT, directory.as_bytes()).ok()?;
    fs.lookup(at, dir.ino, b"f").ok().map(|f| (f.ino, f.size))
}

/// Files and directories that change places at random: what each checkpoint shows under the name, and in the directories that had it up to
/// the end of that, is told for that checkpoint; absences are none of a checkpoint that shows it; the last row alone is what there is now.
#[test]
fn directories_and_files_that_change_places() {
    for seed in 0..80 {
        let (p, mut random) = (Past::new(), Prng::new(seed));
        for _ in 0..14 {
            change_places(&p, &mut random);
            if random.below(3) > 0 {
                p.cut();
            }
        }
        for asked in DIRECTORIES {
            all_is_told(&p.fs, asked, seed);
        }
        // Of what is told none is left but what the others show.
        let mut some: Vec<Cno> = p.fs.checkpoints().iter().map(|c| c.cno).collect();
        some.retain(|_| random.below(2) == 0);
        p.fs.checkpoint_drop(&some).unwrap();
        for asked in DIRECTORIES {
            all_is_told(&p.fs, asked, seed);
        }
    }
}

const DIRECTORIES: [&str; 3] = ["d", "e", "g"];

fn change_places(p: &Past, random: &mut Prng) {
    let mut one = || DIRECTORIES[random.below(3) as usize];
    let (from, to) = (one(), one());
    let Ok(dir) = p.fs.lookup(At::Live, ROOT, from.as_bytes()).map(|a| a.ino) else {
        p.fs.create(ROOT, from.as_bytes(), &dir()).unwrap();
        return;
    };
    let there = p.fs.lookup(At::Live, dir, b"f").map(|a| a.ino);
    match random.below(8) {
        // What is replaced must be empty; else nothing happens.
        0..3 => drop(p.fs.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameMode::Replace)),
        3 => drop(p.fs.rename(dir, b"f", ROOT, b"keep", RenameMode::Replace)),
        4 => drop(p.fs.rename(ROOT, b"keep", dir, b"f", RenameMode::Replace)),
        5 => drop(p.fs.unlink(dir, b"f")),
        6 if there.is_ok() => p.write(there.unwrap(), 1 + random.below(1000) as usize),
        // As editors save.
        _ => {
            let new = p.fs.create(ROOT, b".new", &file(0o600)).unwrap().ino;
            p.write(new, 1 + random.below(1000) as usize);
            p.rename((ROOT, ".new"), (dir, "f"));
        }
    }
}

fn all_is_told(fs: &Fs, asked: &str, seed: u64) {
    let kept: Vec<Cno> = fs.checkpoints().iter().map(|c| c.cno).collect();
    let path = format!("{asked}/f");
    let states = fs.history(&[asked.as_bytes(), b"f"]).unwrap_or_default();
    let text =
        || format!("seed {seed}, {path}: {:#?}", states.iter().map(|s| (line(s), s.shown_by)).collect::<Vec<_>>());
    let shows = |s: &NameState, cno: Cno| s.shown_by.is_some_and(|(oldest, newest)| oldest <= cno && cno <= newest);
    let tells = |cno: Cno, (ino, size): (Ino, u64), path: Option<&str>| {
        let is_it = |s: &&NameState| s.attr.is_some_and(|a| (a.ino, a.size) == (ino, size));
        let has_path = |s: &NameState| path.is_none_or(|path| s.path == path.as_bytes());
        states.iter().filter(is_it).any(|s| shows(s, cno) && has_path(s))
    };
    for cno in &kept {
        let there = look(fs, At::Past(*cno), asked);
        assert!(there.is_none_or(|there| tells(*cno, there, Some(&path))), "{cno} {there:?} {}", text());
        let absent = |s: &&NameState| s.attr.is_none() && shows(s, *cno);
        assert!(there.is_none() || !states.iter().any(|s| absent(&s)), "{cno} is no absence: {}", text());
        let dir_then = |cno: &Cno| fs.lookup(At::Past(*cno), ROOT, asked.as_bytes()).ok();
        let is_live = fs.lookup(At::Live, ROOT, asked.as_bytes()).ok();
        for dir in kept.iter().filter(|later| *later >= cno).filter_map(dir_then).chain(is_live) {
            let Ok(f) = fs.lookup(At::Past(*cno), dir.ino, b"f") else { continue };
            assert!(tells(*cno, (f.ino, f.size), None), "{cno} {:?}, followed: {}", f.ino, text());
        }
    }
    for s in &states {
        let (Some(attr), Some((oldest, _))) = (s.attr, s.shown_by) else { continue };
        let mut parts = s.path.split(|b| *b == b'/');
        let found = parts.try_fold(ROOT, |dir, name| fs.lookup(At::Past(oldest), dir, name).map(|a| a.ino));
        assert_eq!(found.ok(), Some(attr.ino), "{oldest} {}", text());
    }
    let now = look(fs, At::Live, asked);
    let told_now: Vec<_> = states.iter().filter(|s| s.is_now).map(|s| s.attr.map(|a| (a.ino, a.size))).collect();
    assert!(states.is_empty() && now.is_none() || told_now == [now], "{now:?} {}", text());
    assert!(states.last().is_none_or(|s| s.is_now), "{}", text());
}

/// What had the name while its directory had another is told, whether that was before or after, and whether it is there.
#[test]
fn what_had_the_name_elsewhere_is_told_before_and_after() {
    let p = Past::new();
    let d = p.fs.create(ROOT, b"proj", &dir()).unwrap().ino;
    p.fs.create(d, b"f", &file(0o600)).unwrap();
    p.cut();
    p.rename((ROOT, "proj"), (ROOT, "old"));
    p.fs.create(d, b".new", &file(0o600)).unwrap();
    p.rename((d, ".new"), (d, "f"));
    p.cut();
    let elsewhere = |dir: &[u8]| {
        let paths = p.fs.elsewhere(&[dir, b"f"], &[]).unwrap();
        paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(elsewhere(b"proj"), ["old/f"]);
    // But for what is forgotten anyway.
    let newer = p.fs.lookup(At::Live, d, b"f").unwrap().ino;
    assert!(p.fs.elsewhere(&[b"proj", b"f"], &[newer]).unwrap().is_empty());
    p.fs.unlink(d, b"f").unwrap();
    p.cut();
    assert_eq!(elsewhere(b"proj"), ["old/f"]);
    assert_eq!(elsewhere(b"old"), ["proj/f"]);
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic = "assertion"]
fn directories_that_are_not_followed_are_noticed() {
    use nenrin_core::breaks::{Break, with};
    with(Break::DirectoriesNotFollowed, what_a_directory_lost_before_it_was_renamed_is_found);
}

#[test]
fn history_outlives_a_mount_and_is_told_of_a_volume_that_is_only_read() {
    let p = Past::new();
    let f = p.fs.create(ROOT, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 10);
    p.cut();
    p.write(f, 20);
    p.fs.close().unwrap();
    let want = ["f 10 made", "f 20 content, now"];
    let fs = p.w.open_with(MountOptions { read_only: true, ..MountOptions::default() });
    assert_eq!(told(&fs, "f"), want);
}

/// What it reads does not grow with the number of files: device reads when nothing is cached.
#[test]
fn one_name_among_many() {
    let reads = |others: u32| {
        let p = Past::new();
        for n in 0..others {
            p.fs.create(ROOT, format!("other{n}").as_bytes(), &file(0o600)).unwrap();
        }
        let f = p.fs.create(ROOT, b"f", &file(0o600)).unwrap().ino;
        for size in 1..=50 {
            p.write(f, size);
            p.cut();
        }
        p.fs.close().unwrap();
        let fs = p.w.open_with(MountOptions { cache_bytes: 64 << 10, ..MountOptions::default() });
        let before = p.w.device.counters();
        assert_eq!(fs.history(&[b"f"]).unwrap().len(), 50);
        p.w.device.counters().since(&before).reads
    };
    let (few, many) = (reads(100), reads(20_000));
    assert!(many <= few + 8 && many <= 24, "{few} reads among 100 files, {many} among 20,000");
}

/// What went on from where it had gone is told where it is.
#[test]
fn what_moved_twice_is_told_where_it_is() {
    let p = Past::new();
    let one = p.fs.create(ROOT, b"d1", &dir()).unwrap().ino;
    let f = p.fs.create(one, b"f", &file(0o600)).unwrap().ino;
    p.write(f, 10);
    p.cut();
    p.rename((ROOT, "d1"), (ROOT, "d2"));
    p.write(f, 20);
    p.cut();
    p.rename((one, "f"), (ROOT, "g"));
    p.cut();
    let told_of = told(&p.fs, "d1/f");
    assert_eq!(told_of, ["d1/f 10 made", "d1/f - moved to g, now"]);
    // Also where the directory has its name again.
    p.rename((ROOT, "d2"), (ROOT, "d1"));
    p.cut();
    let told_of = told(&p.fs, "d1/f");
    assert_eq!(told_of.last().unwrap(), "d1/f - moved to g, now", "{told_of:?}");
    p.fs.unlink(ROOT, b"g").unwrap();
    p.cut();
    let told_of = told(&p.fs, "d1/f");
    assert_eq!(told_of.last().unwrap(), "d1/f - removed, now", "{told_of:?}");
    p.fs.close().unwrap();
}
