//! Tests of restoring, on any file system.

use super::place::{Movable, take_free};
use super::*;
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

type Step<'a> = &'a mut dyn FnMut() -> Result<(), Fail>;
type Fits<'a> = &'a mut dyn FnMut(&[LeftOut]) -> Result<(), Fail>;

/// Copies within one file system, with these calls.
fn copied(from: &Path, to: &Path, replace: bool, keep: Step<'_>, fits: Fits<'_>) -> Result<Restored, Fail> {
    copied_to(from, &Spot::open(to).unwrap(), if replace { There::Goes } else { There::Stays }, keep, fits)
}

fn copied_to(from: &Path, to: &Spot, there: There, keep: Step<'_>, fits: Fits<'_>) -> Result<Restored, Fail> {
    let mut calls = Calls {
        volume: fs::metadata(from).unwrap().dev(),
        is_of_user: false,
        progress: &mut |_| {},
        sync: Some(&mut || Ok(())),
        keep,
        fits,
        is_kept: &|_| Ok(true),
        shown: &|| None,
        stop: &|| false,
        salvage: false,
    };
    copy(from, to, there, &mut calls)
}

fn names(directory: &Path) -> Vec<OsString> {
    let mut all: Vec<_> = fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name()).collect();
    all.sort();
    all
}

/// Where a copy is being made.
fn hidden_in(directory: &Path) -> Option<PathBuf> {
    names(directory).into_iter().find(|n| is_hidden(n.as_encoded_bytes())).map(|n| directory.join(n))
}

#[test]
fn what_does_not_fit_in_the_end_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("f"), "then").unwrap();
    let went = copied(&from, &to, false, &mut || Ok(()), &mut |_| Err(Fail::new("it went")));
    assert_eq!(went.unwrap_err().message, "it went");
    assert_eq!(names(dir.path()), ["from"]);
    copied(&from, &to, false, &mut || Ok(()), &mut |_| Ok(())).unwrap();
    assert_eq!(fs::read_to_string(to.join("f")).unwrap(), "then");
}

/// What is done to `to` where `is_kept` answers so, and how often a checkpoint was asked for.
fn copied_while(
    to: &Path,
    there: There,
    is_kept: &dyn Fn(less::Keeper) -> Result<bool, Fail>,
) -> (Result<Restored, Fail>, u32) {
    // Of a file that is written to it has to be the same.
    let from = if there == There::Changes { to.to_owned() } else { to.with_file_name("from") };
    // It was made a while ago.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut made = 0;
    let mut calls = Calls {
        volume: fs::metadata(&from).unwrap().dev(),
        is_of_user: false,
        progress: &mut |_| {},
        sync: Some(&mut || Ok(())),
        keep: &mut || {
            made += 1;
            Ok(())
        },
        is_kept,
        fits: &mut |_| Ok(()),
        shown: &|| None,
        stop: &|| false,
        salvage: false,
    };
    let restored = copy(&from, &Spot::open(to).unwrap(), there, &mut calls);
    (restored, made)
}

/// The checkpoint that was to keep it may go meanwhile, or nobody say whether it is there: before the names change hands, so that another
/// one is made, or nothing done; after that, so that what was replaced is left; or when that is removed, which is told.
#[test]
fn what_no_checkpoint_keeps_any_more_is_not_removed() {
    let (went, silent) = (Unkept::Went(less::Keeper::State), Unkept::Unasked("no answer".into()));
    for (there, look, unkept, asked, is_left) in [
        (There::Goes, 0, None, 1, false),
        (There::Goes, 1, None, 2, false),
        (There::Goes, 2, Some(&went), 1, true),
        (There::Goes, 2, Some(&silent), 1, true),
        (There::Goes, 3, Some(&went), 1, false),
        (There::Goes, 3, Some(&silent), 1, false),
        (There::Changes, 0, None, 1, false),
        (There::Changes, 1, None, 2, false),
        (There::Changes, 2, Some(&went), 1, false),
        (There::Changes, 2, Some(&silent), 1, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        fs::write(dir.path().join("from"), "then").unwrap();
        fs::write(&to, "now").unwrap();
        let looks = Cell::new(0);
        let (restored, made) = copied_while(&to, there, &|by| {
            looks.set(looks.get() + 1);
            assert_eq!(by, less::Keeper::State);
            match looks.get() == look {
                true if unkept == Some(&silent) => Err(Fail::new("no answer")),
                is_then => Ok(!is_then),
            }
        });
        let restored = restored.unwrap();
        assert_eq!((made, restored.unkept.as_ref()), (asked, unkept), "{there:?} {look}");
        assert_eq!(restored.rest.is_some(), is_left, "{there:?} {look}");
        assert!(hidden_in(dir.path()).is_none());
        if let Some(rest) = restored.rest {
            let kept = dir.path().join("to.kept-by-restore");
            assert_eq!((&rest.path, rest.is_unkept, rest.is_part), (&kept, true, false));
            let why = unkept.unwrap().to_string();
            assert!(rest.to_string().ends_with(&format!("kept-by-restore, and was not removed: {why}")), "{rest}");
            assert_eq!(fs::read_to_string(kept.join("to")).unwrap(), "now");
        } else {
            assert_eq!(names(dir.path()), ["from", "to"]);
        }
    }
    // Before anything is done nobody loses anything by it.
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to");
    fs::write(dir.path().join("from"), "then").unwrap();
    fs::write(&to, "now").unwrap();
    let (told, _) = copied_while(&to, There::Goes, &|_| Err(Fail::new("no answer")));
    assert_eq!(told.unwrap_err().message, "no answer");
    assert_eq!((names(dir.path()).len(), fs::read_to_string(&to).unwrap()), (2, "now".into()));
}

/// Of a large tree it is asked while that goes, and what is left of it then stays.
#[test]
fn what_is_left_when_the_checkpoint_goes_stays() {
    for (there_is, look) in [(true, 3), (true, 5), (false, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        fs::create_dir(dir.path().join("from")).unwrap();
        fs::create_dir(&to).unwrap();
        for n in 0..400 {
            fs::write(to.join(n.to_string()), "now").unwrap();
        }
        // Somebody's, which has the name that the first would have.
        fs::create_dir(dir.path().join("to.kept-by-restore")).unwrap();
        let looks = Cell::new(0);
        let (restored, _) = copied_while(&to, There::Goes, &|_| {
            looks.set(looks.get() + 1);
            Ok(looks.get() != look)
        });
        let restored = restored.unwrap();
        assert_eq!(restored.unkept.is_some(), there_is);
        let Some(rest) = restored.rest else {
            assert!(!there_is && looks.get() >= 400 / crate::remove::NAMES_A_LOOK, "{looks:?}");
            assert_eq!(names(dir.path()), ["from", "to", "to.kept-by-restore"]);
            continue;
        };
        let left = names(&rest.path.join("to")).len() as u32;
        assert_eq!((left, looks.get()), (401 - (look - 2) * crate::remove::NAMES_A_LOOK, look));
        assert!(rest.path.ends_with("to.kept-by-restore-2") && rest.is_part && rest.is_unkept, "{rest:?}");
        let text = "what is left of what was replaced is in ";
        assert!(rest.to_string().starts_with(text) && rest.to_string().contains("that was to keep it went"), "{rest}");
        assert!(names(&to).is_empty());
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "left: (1, None)")]
fn who_removes_what_nothing_keeps_is_noticed() {
    nenrin_core::breaks::with(Break::UnkeptRemoved, what_no_checkpoint_keeps_any_more_is_not_removed);
}

/// Where the newest snapshot alone has some of it, the snapshot is asked for as well.
#[test]
fn a_snapshot_that_keeps_what_is_replaced_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, "then").unwrap();
    fs::write(&to, "now").unwrap();
    if sys::lsetxattr(&to, c"user.nenrin.history", b"none", sys::XattrFlags::empty()).is_err() {
        return;
    }
    fs::hard_link(&to, dir.path().join("snapshot")).unwrap();
    let asked = std::cell::RefCell::new(Vec::new());
    let mut calls = Calls {
        volume: fs::metadata(&from).unwrap().dev(),
        is_of_user: false,
        progress: &mut |_| {},
        sync: Some(&mut || Ok(())),
        keep: &mut || Ok(()),
        is_kept: &|by| {
            asked.borrow_mut().push(by);
            Ok(by == less::Keeper::State)
        },
        fits: &mut |_| Ok(()),
        shown: &|| {
            let then = || crate::then::Then::new(dir.path().to_owned(), "snapshot".into()).unwrap();
            Some(less::Shown { now: then(), snapshot: then(), snapshot_cno: 6 })
        },
        stop: &|| false,
        salvage: false,
    };
    let restored = copy(&from, &Spot::open(&to).unwrap(), There::Goes, &mut calls).unwrap();
    let by = less::Keeper::Snapshot(6);
    assert_eq!((restored.keeper, restored.unkept), (by, Some(Unkept::Went(by))));
    assert_eq!(asked.into_inner().last(), Some(&by));
    let kept = restored.rest.unwrap();
    assert!(kept.to_string().contains("the snapshot, or the checkpoint, that was to keep it went"), "{kept}");
    assert_eq!(fs::read_to_string(kept.path.join("to")).unwrap(), "now");
}

/// What is replaced is there until the copy is complete, and stays where that fails.
#[test]
fn what_is_replaced_stays_until_the_copy_is_complete() {
    for (is_tree, fails) in [(false, false), (false, true), (true, false), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let content = |at: &Path| fs::read_to_string(if is_tree { at.join("f") } else { at.to_owned() }).ok();
        for (at, text) in [(&from, "then"), (&to, "now")] {
            if is_tree {
                fs::create_dir(at).unwrap();
            }
            fs::write(if is_tree { at.join("f") } else { at.clone() }, text).unwrap();
        }
        let mut fits = |_: &[LeftOut]| {
            let copy = hidden_in(dir.path()).unwrap().join("copy");
            assert_eq!(content(&copy).as_deref(), Some("then"), "it is complete by now");
            assert_eq!(content(&to).as_deref(), Some("now"), "what is replaced is there still");
            if fails { Err(Fail::new("it failed")) } else { Ok(()) }
        };
        let done = copied(&from, &to, true, &mut || Ok(()), &mut fits);
        assert_eq!((done.is_err(), content(&to)), (fails, Some(if fails { "now" } else { "then" }.to_owned())));
        assert_eq!(names(dir.path()), ["from", "to"]);
    }
}

#[cfg(feature = "breaks")]
#[test]
#[should_panic(expected = "what is replaced is there still")]
fn who_removes_what_is_replaced_first_is_noticed() {
    nenrin_core::breaks::with(Break::ReplacedGoesFirst, what_is_replaced_stays_until_the_copy_is_complete);
}

/// A file that was emptied to get what it was, and cannot get it: what it was to be stays beside it.
#[test]
fn what_a_file_was_to_be_stays_where_it_cannot_be_given() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "now").unwrap();
    let mut kept = 0;
    let mut keep = || {
        kept += 1;
        // The second time all is copied: what is read then is a directory.
        if let Some(hidden) = hidden_in(dir.path()) {
            fs::rename(hidden.join("copy"), hidden.join("then")).unwrap();
            fs::create_dir(hidden.join("copy")).unwrap();
        }
        Ok(())
    };
    let mut fits = |_: &[LeftOut]| {
        fs::write(&file, "later").unwrap();
        Ok(())
    };
    let why = copied_to(&file, &Spot::open(&file).unwrap(), There::Changes, &mut keep, &mut fits).unwrap_err().message;
    assert_eq!(fs::metadata(&file).unwrap().len(), 0, "{why}");
    assert!(why.contains("unless that went meanwhile; what it was to be is in ") && kept >= 2, "{why}");
    assert!(fs::read(dir.path().join("f.kept-by-restore/then")).is_ok(), "{why}: {:?}", names(dir.path()));
}

/// What is replaced is kept before the copy is made, and once more where it has changed since.
#[test]
fn what_is_replaced_is_kept_as_it_is_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    let change = |which: usize| match which {
        1 => fs::write(to.join("sub/f"), "same").unwrap(),
        2 => fs::write(to.join("sub/g"), "").unwrap(),
        3 => fs::remove_file(to.join("sub/f")).unwrap(),
        4 => fs::rename(to.join("sub/f"), to.join("f")).unwrap(),
        5 => fs::set_permissions(&to, Permissions::from_mode(0o700)).unwrap(),
        _ => {}
    };
    for which in 0..6 {
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(to.join("sub")).unwrap();
        fs::write(to.join("sub/f"), "same").unwrap();
        let mut asked = Vec::new();
        let mut keep = || {
            asked.push(names(dir.path()).len());
            Ok(())
        };
        let mut fits = |_: &[LeftOut]| {
            change(which);
            Ok(())
        };
        copied(&from, &to, true, &mut keep, &mut fits).unwrap();
        // The hidden directory is there the second time.
        assert_eq!(asked, if which == 0 { vec![2] } else { vec![2, 3] }, "{which}");
    }
    // And where it changes while it is kept that time, after it was looked at.
    for which in 1..6 {
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(to.join("sub")).unwrap();
        fs::write(to.join("sub/f"), "same").unwrap();
        let mut asked = Vec::new();
        let mut keep = || {
            asked.push(names(dir.path()).len());
            if asked.len() == 2 {
                change(which);
            }
            Ok(())
        };
        let mut fits = |_: &[LeftOut]| {
            fs::write(to.join("h"), "").unwrap();
            Ok(())
        };
        copied(&from, &to, true, &mut keep, &mut fits).unwrap();
        assert_eq!(asked, [2, 3, 3], "{which}");
    }
}

/// What a program writes while what is replaced is kept is kept, too, before it is gone; who writes all the time is told.
#[test]
fn what_is_written_while_a_directory_is_kept_is_kept_too() {
    for (is_file, writes, fails) in
        [(false, 0, false), (false, 2, false), (false, usize::MAX, true), (true, 2, false), (true, usize::MAX, true)]
    {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(if is_file { &name[..name.find('/').unwrap()] } else { name });
        for name in ["from/f", "to/f"] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), if name == "to/f" { "now" } else { "then" }).unwrap();
        }
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let mut seen = Vec::new();
        let mut keep = || {
            seen.push(fs::read_to_string(at("to/f")).unwrap());
            if seen.len() <= writes {
                fs::write(at("to/f"), format!("written {}", seen.len())).unwrap();
            }
            Ok(())
        };
        let done = copied(&from, &to, true, &mut keep, &mut |_| Ok(()));
        assert_eq!(names(dir.path()), ["from", "to"]);
        if fails {
            assert!(done.unwrap_err().message.contains("changed each time it was replaced"));
            // Before the copy is made, and with each try.
            assert_eq!(seen.len(), if is_file { 11 } else { 4 });
            assert_eq!(
                fs::read_to_string(at("to/f")).unwrap(),
                format!("written {}", seen.len()),
                "it is left as it is"
            );
            continue;
        }
        done.unwrap();
        let all: Vec<String> = (1..=writes).map(|n| format!("written {n}")).collect();
        assert_eq!(seen, [vec!["now".to_owned()], all].concat());
        assert_eq!(fs::read_to_string(at("to/f")).unwrap(), "then");
    }
}

/// The copy has the name for a moment, each time that is tried: what somebody writes to it then is not lost where it is given up.
#[test]
fn what_is_written_to_a_copy_that_is_given_up_is_told() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    for made in [&from, &to] {
        fs::create_dir(made).unwrap();
    }
    fs::write(from.join("copied"), "").unwrap();
    let over = AtomicBool::new(false);
    let told = std::thread::scope(|scope| {
        scope.spawn(|| {
            // As long as the copy has the name.
            while !over.load(Ordering::Relaxed) {
                let into = File::open(&to).unwrap();
                if place::within(&into).join("copied").exists() {
                    fs::write(place::within(&into).join("late"), "his").unwrap();
                }
            }
        });
        let mut count = 0;
        let mut keep = || {
            count += 1;
            fs::write(to.join("f"), count.to_string()).unwrap();
            Ok(())
        };
        let told = copied(&from, &to, true, &mut keep, &mut |_| Ok(()));
        over.store(true, Ordering::Relaxed);
        told.unwrap_err().message
    });
    let kept = dir.path().join("to.kept-by-restore");
    assert!(told.contains(&format!("; what had its name meanwhile is in {}", kept.display())), "{told}");
    assert_eq!(fs::read_to_string(kept.join("to/late")).unwrap(), "his");
    assert_eq!(names(&to), ["f"]);
}

/// What a program writes to a file while that is kept is kept, too, before the file is written to in place; who writes all the time is
/// told.
#[test]
fn what_is_written_while_a_file_is_kept_is_kept_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    for (writes, fails) in [(0, false), (2, false), (usize::MAX, true)] {
        fs::write(&file, "now").unwrap();
        let mut seen = Vec::new();
        let mut keep = || {
            seen.push(fs::read_to_string(&file).unwrap());
            if seen.len() <= writes {
                fs::write(&file, format!("written {}", seen.len())).unwrap();
            }
            Ok(())
        };
        let done = copied_to(&file, &Spot::open(&file).unwrap(), There::Changes, &mut keep, &mut |_| Ok(()));
        if fails {
            assert!(done.unwrap_err().message.contains("is written to all the time"));
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("written {}", seen.len()), "it is left as it is");
            continue;
        }
        done.unwrap();
        let all: Vec<String> = (1..=writes).map(|n| format!("written {n}")).collect();
        assert_eq!(seen, [vec!["now".to_owned()], all].concat());
        assert_eq!(names(dir.path()), ["f"]);
    }
}

/// Whose the directory above is puts a link in its place, at the last moment.
#[test]
fn a_link_that_is_put_in_place_of_the_directory_leads_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for made in ["from", "above/d", "victim/d"] {
        fs::create_dir_all(at(made)).unwrap();
    }
    fs::write(at("victim/d/f"), "").unwrap();
    fs::write(at("from/new"), "").unwrap();
    for closed in ["above/d", "victim/d"] {
        fs::set_permissions(at(closed), Permissions::from_mode(0o500)).unwrap();
    }
    let mut asked = 0;
    let mut exchange = || {
        asked += 1;
        // The first time before anything was done; again since something was changed meanwhile.
        if asked == 2 {
            fs::rename(at("above"), at("moved")).unwrap();
            symlink(at("victim"), at("above")).unwrap();
        }
        Ok(())
    };
    let mut change = |_: &[LeftOut]| {
        fs::set_permissions(at("above/d"), Permissions::from_mode(0o500)).unwrap();
        Ok(())
    };
    copied(&at("from"), &at("above/d"), true, &mut exchange, &mut change).unwrap();
    assert_eq!(asked, 2);
    assert_eq!(fs::metadata(at("victim/d")).unwrap().mode() & 0o7777, 0o500);
    assert_eq!((names(&at("victim/d")), names(&at("moved/d"))), (vec!["f".into()], vec!["new".into()]));
    assert_eq!(names(&at("moved")), ["d"]);
    fs::set_permissions(at("victim/d"), Permissions::from_mode(0o700)).unwrap();
}

/// The same once the directory is open, before anything of it was looked at.
#[test]
fn a_link_in_place_of_an_open_directory_leads_nowhere() {
    for (there, has, copies) in
        [(There::Stays, "from", true), (There::Goes, "from", true), (There::Changes, "above/f", false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for made in ["above", "victim"] {
            fs::create_dir(at(made)).unwrap();
        }
        fs::write(at("from"), "new").unwrap();
        if there != There::Stays {
            fs::write(at("above/f"), "old").unwrap();
            fs::write(at("victim/f"), "root's").unwrap();
        }
        let spot = Spot::open(&at("above/f")).unwrap();
        let from = at(has);
        // That of the same file, which --in-place is given.
        let from = if copies { from } else { at("moved/f") };
        fs::rename(at("above"), at("moved")).unwrap();
        symlink(at("victim"), at("above")).unwrap();
        let before = names(&at("victim"));
        copied_to(&from, &spot, there, &mut || Ok(()), &mut |_| Ok(())).unwrap();
        assert_eq!(fs::read_to_string(at("moved/f")).unwrap(), if copies { "new" } else { "old" }, "{there:?}");
        assert_eq!((names(&at("victim")), names(&at("moved"))), (before, vec!["f".into()]), "{there:?}");
        assert!(there == There::Stays || fs::read_to_string(at("victim/f")).unwrap() == "root's", "{there:?}");
        // What is told names the path that was said.
        let told = copied_to(&from, &spot, There::Stays, &mut || Ok(()), &mut |_| Ok(())).unwrap_err().message;
        assert!(told.starts_with(&format!("{}: is there already", at("above/f").display())), "{told}");
        let mut keep = || Err(Fail::at(spot.there().display(), "not kept"));
        let told = copied_to(&from, &spot, There::Goes, &mut keep, &mut |_| Ok(())).unwrap_err().message;
        assert_eq!(told, format!("{}: not kept", at("above/f").display()));
    }
}

/// What a volume says of a file gives nobody privileges.
#[test]
fn no_file_gets_privileges() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    let (file, below) = (from.join("f"), from.join("d"));
    fs::write(&file, "f").unwrap();
    fs::create_dir(&below).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(&below, Permissions::from_mode(0o2755)).unwrap();
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let given = sys::lsetxattr(&file, c"security.capability", &capability, sys::XattrFlags::empty());
    copied(&from, &to, false, &mut || Ok(()), &mut |_| Ok(())).unwrap();
    let mode = |name: &str| fs::metadata(to.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d")), (0o755, 0o2755));
    if given.is_ok() {
        let got = sys::lgetxattr(to.join("f"), c"security.capability", [0; 64].as_mut_slice());
        assert_eq!(got, Err(Errno::NODATA));
    }
}

/// On a file system whose renames replace whatever is there.
#[test]
fn a_name_that_was_taken_meanwhile_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (private, above) = (dir.path().join("private"), dir.path().join("above"));
    for made in [&private, &above] {
        fs::create_dir(made).unwrap();
    }
    let name = OsStr::new("f");
    let take = || take_free(&File::open(&private).unwrap(), &File::open(&above).unwrap(), name);
    let there = || fs::read_to_string(above.join("f")).unwrap();
    fs::write(private.join("copy"), "copy").unwrap();
    fs::write(above.join("f"), "his").unwrap();
    assert_eq!((take(), there()), (Err(Errno::EXIST), "his".into()));
    fs::remove_file(above.join("f")).unwrap();
    assert_eq!((take(), there(), names(&private).len()), (Ok(()), "copy".into(), 0));
    fs::remove_file(above.join("f")).unwrap();
    symlink("nowhere", private.join("copy")).unwrap();
    assert_eq!(take(), Ok(()));
    assert_eq!(fs::read_link(above.join("f")).unwrap(), Path::new("nowhere"));
    fs::create_dir(private.join("copy")).unwrap();
    assert_eq!(take(), Err(Errno::EXIST));
    fs::remove_file(above.join("f")).unwrap();
    assert!(take().is_ok() && above.join("f").is_dir() && names(&private).is_empty());
}

/// A directory that nobody may write to keeps its mode where the names cannot change hands.
#[test]
fn what_is_not_replaced_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    for made in [&from, &to] {
        fs::create_dir(made).unwrap();
        fs::set_permissions(made, Permissions::from_mode(0o555)).unwrap();
    }
    let mut asked = 0;
    let mut spoil = || {
        asked += 1;
        if asked == 2 {
            let hidden = hidden_in(dir.path()).unwrap();
            fs::rename(hidden.join("copy"), dir.path().join("away")).unwrap();
        }
        Ok(())
    };
    let mut change = |_: &[LeftOut]| {
        fs::set_permissions(&to, Permissions::from_mode(0o555)).unwrap();
        Ok(())
    };
    let told = copied(&from, &to, true, &mut spoil, &mut change).unwrap_err();
    assert!(told.message.contains("to: No such file"), "{told}");
    assert_eq!(fs::metadata(&to).unwrap().mode() & 0o7777, 0o555);
    assert_eq!(names(dir.path()), ["away", "from", "to"]);
}

/// What could not be removed is told, and which it is; the restore is done.
#[test]
fn what_stays_behind_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("from"), "then").unwrap();
    for (to, has_replaced) in [("new", false), ("there", true)] {
        if has_replaced {
            fs::write(at(to), "now").unwrap();
        }
        let volume = fs::metadata(dir.path()).unwrap().dev();
        let mut synced = 0;
        let mut calls = Calls {
            volume,
            is_of_user: false,
            progress: &mut |_| {},
            // The second time the name has changed hands.
            sync: Some(&mut || {
                synced += 1;
                if synced == 2 {
                    fs::create_dir(hidden_in(dir.path()).unwrap().join("more")).unwrap();
                }
                Ok(())
            }),
            keep: &mut || Ok(()),
            fits: &mut |_| Ok(()),
            is_kept: &|_| Ok(true),
            shown: &|| None,
            stop: &|| false,
            salvage: false,
        };
        let rest = copy(
            &at("from"),
            &Spot::open(&at(to)).unwrap(),
            if has_replaced { There::Goes } else { There::Stays },
            &mut calls,
        )
        .unwrap()
        .rest
        .unwrap();
        let left = hidden_in(dir.path()).unwrap_or(at("there.kept-by-restore"));
        assert_eq!((&rest.path, rest.has_replaced), (&left, has_replaced));
        assert!(rest.to_string().contains("could not be removed"), "{rest}");
        assert_eq!(fs::read_to_string(at(to)).unwrap(), "then");
        fs::remove_dir_all(&left).unwrap();
    }
}

/// Of where nothing was there is not said that it was kept.
#[test]
fn a_name_that_is_not_durable_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("from"), "then").unwrap();
    for (to, has_replaced) in [("new", false), ("there", true)] {
        if has_replaced {
            fs::write(at(to), "now").unwrap();
        }
        let mut synced = 0;
        let mut calls = Calls {
            volume: fs::metadata(dir.path()).unwrap().dev(),
            is_of_user: false,
            progress: &mut |_| {},
            sync: Some(&mut || {
                synced += 1;
                if synced == 2 { Err(Fail::new("it failed")) } else { Ok(()) }
            }),
            keep: &mut || Ok(()),
            fits: &mut |_| Ok(()),
            is_kept: &|_| Ok(true),
            shown: &|| None,
            stop: &|| false,
            salvage: false,
        };
        let told = copy(
            &at("from"),
            &Spot::open(&at(to)).unwrap(),
            if has_replaced { There::Goes } else { There::Stays },
            &mut calls,
        )
        .unwrap_err()
        .message;
        assert_eq!(told.contains("what was there before is in"), has_replaced, "{told}");
        assert_eq!(at("there.kept-by-restore/there").exists(), has_replaced);
        assert!(hidden_in(dir.path()).is_none());
    }
}

/// A link that is put in the place of a directory which is about to move.
#[test]
fn what_a_link_leads_to_is_not_made_movable() {
    let dir = tempfile::tempdir().unwrap();
    let (closed, link) = (dir.path().join("closed"), dir.path().join("link"));
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o500)).unwrap();
    symlink(&closed, &link).unwrap();
    let mode = || fs::metadata(&closed).unwrap().mode() & 0o7777;
    let movable = Movable::new(&link).unwrap();
    assert!(movable.0.is_none() && mode() == 0o500);
    let movable = Movable::new(&closed).unwrap();
    assert_eq!(mode(), 0o700);
    movable.restore().unwrap();
    assert_eq!(mode(), 0o500);
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn bad_ranges_that_follow_each_other_are_one() {
    let mut bad = Vec::new();
    for (from, to) in [(0, 0), (4096, 8192), (8192, 8192), (8192, 12288), (20480, 24576)] {
        note_bad(&mut bad, from, to);
    }
    assert_eq!(bad, [(4096, 12288), (20480, 24576)]);
}

#[test]
fn a_full_volume_is_told_with_what_helps() {
    let told = |message: &str, same| with_way_out(Fail::new(message), Path::new("/v/f"), same).message;
    // Cleaning lets nothing more be stored.
    let way_out = "names and the index of what comes back need some, and what no snapshot keeps counts as in use again; keep the \
                   state first (nenrin snapshot create --of N DIR NAME), then removing files makes room, or deleting snapshots that \
                   do not have what you look for (nenrin snapshot list says how much)";
    for full in ["no space left on the volume", "No space left on device (os error 28)"] {
        assert_eq!(told(full, true), format!("/v/f: {full}: {way_out}"));
        assert_eq!(told(&format!("/v/f: {full}"), true), format!("/v/f: {full}: {way_out}"));
    }
    let elsewhere = "/usb/f: No space left on device (os error 28)";
    assert_eq!(told(elsewhere, false), elsewhere);
    assert_eq!(told("/v/f: Permission denied", true), "/v/f: Permission denied");
}

/// What another file system has no place for is left out of a tree; want of room, and damage, are not that.
#[test]
fn what_cannot_be_where_it_goes_is_known_by_its_failure() {
    let of = |errno: Errno| Lack::of_target(&errno.into());
    for unfit in
        [Errno::PERM, Errno::OPNOTSUPP, Errno::FBIG, Errno::INVAL, Errno::ILSEQ, Errno::NAMETOOLONG, Errno::EXIST]
    {
        assert_eq!(of(unfit), Some(Lack::Unfit), "{unfit}");
    }
    for other in [Errno::NOSPC, Errno::DQUOT, Errno::IO, Errno::ROFS, Errno::ACCESS, Errno::STALE] {
        assert_eq!(of(other), None, "{other}");
    }
}

/// Where no copy is private the command is named that makes one all the same.
#[test]
fn a_file_system_without_permissions_is_told_with_what_helps() {
    let why = Fail::at("/usb", place::NO_PERMISSIONS);
    let told = with_plain_copy(why, Path::new("/v/.nenrin/at/7/my docs"), Path::new("/usb/my docs")).message;
    let command = "cp -r --preserve=timestamps '/v/.nenrin/at/7/my docs' '/usb/my docs'";
    assert!(told.starts_with("/usb: this file system keeps no permissions") && told.contains(command), "{told}");
    let other = Fail::at("/usb/f", "No space left on device");
    assert_eq!(with_plain_copy(other.clone(), Path::new("/v"), Path::new("/usb")), other);
}

/// Elsewhere a name that cannot be linked is a file of its own, which is told once there is one; a name that there cannot be is left out.
#[test]
fn links_that_cannot_be_made_and_names_that_cannot_be_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (from, first, to) = (dir.path().join("from"), dir.path().join("first"), dir.path().join("to"));
    for file in [&from, &first] {
        fs::write(file, "then").unwrap();
    }
    let meta = fs::metadata(&from).unwrap();
    let long = dir.path().join("n".repeat(300));
    // Of a directory there are no links.
    for (linked, to, links_lost, files, left_out) in [
        (dir.path(), &to, 1, 1, 0),
        // And there it is by now.
        (dir.path(), &to, 0, 0, 1),
        (&first, &to, 0, 0, 1),
        (&first, &long, 0, 0, 1),
        (&first, &dir.path().join("other"), 0, 0, 0),
    ] {
        let (mut progress, stop) = (|_: &Copied| {}, || false);
        let mut work = Work::new(&mut progress, &stop);
        (work.volume, work.depth) = (meta.dev(), 1);
        work.links.insert(meta.ino(), linked.to_owned());
        work.copy(&from, to, Path::new("from")).unwrap();
        let Copied { links_lost: lost, files: made, .. } = work.copied;
        assert_eq!((lost, made, work.left_out.len()), (links_lost, files, left_out), "{linked:?} {to:?}");
    }
    assert_eq!(fs::metadata(&first).unwrap().nlink(), 2);
}
