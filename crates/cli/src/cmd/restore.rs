//! `nenrin restore`.

use super::history::{from_root, told_by};
use super::restored::{self, CameFrom, plural};
use crate::command::{Command, arguments, text_value};
use crate::control::{CheckpointData, Request};
use crate::database::CameBack;
use crate::error::{At, FAILURE, Fail, Outcome};
use crate::less::{Keeper, Shown};
use crate::mounts::{Mount, User};
use crate::output::{self, Progress, shell_quoted};
use crate::restore::{self, Calls, Copied, Lack, LeftOut, Restored, Spot, There};
use crate::shelf::Shelf;
use crate::size::show_bytes;
use crate::teller::Teller;
use crate::then::Then;
use crate::{database, mounts, states, sys, when};
use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// The command.
pub const COMMAND: Command = Command {
    name: "restore",
    usage: &[
        "restore [--json] PATH --at WHEN [--to DEST|--as DEST] [--force [--in-use]|--salvage]",
        "restore [--json] PATH --at WHEN --in-place [--in-use]",
        "restore [--json] --list-deleted DIR",
    ],
    about: "Brings back a file or a directory as it was",
    options: &[
        ("--at WHEN", "the state: a checkpoint's number, a snapshot's name, a time, \"10 minutes ago\""),
        (
            "--to DEST",
            "restore as DEST, which may lie anywhere, rather than as PATH; where DEST is a directory, into it",
        ),
        ("--as DEST", "restore as DEST also where that is a directory: with --force it is replaced"),
        (
            "--force",
            "replace what is there on the volume, which goes to a checkpoint first and can be brought back in turn",
        ),
        (
            "--in-use",
            "also a database that a program has open for writing, which may be spoilt by that, as well as what came back",
        ),
        (
            "--in-place",
            "give the file itself what it was, so that all its hard links have it; a checkpoint keeps what it is now",
        ),
        (
            "--salvage",
            "of damaged files, too, what can be read: zeros stand for the rest, which is listed; replaces nothing",
        ),
        ("--list-deleted DIR", "the names that DIR had and has no more, with where to find them"),
        ("--json", "as JSON"),
    ],
    notes: "What was overwritten: nenrin history PATH shows its states. What was removed: nenrin restore --list-deleted shows what there\n\
            was. As cp does, --to DEST restores into a directory that is there, under the name that PATH has: --force replaces what has\n\
            that name in it, and nothing else. Of a range like 3..7 any number will do for a file; of a directory they differ in what is\n\
            below it. A time, as clocks here show it, means the newest state not later than the end of that day, minute or second. A DEST\n\
            off the volume that is there already is not replaced, since nothing would bring it back. The copy gets owner, permissions,\n\
            times, extended attributes, access lists, hard links and holes, but no capabilities, and files no set-user-id and set-group-id\n\
            bits: the past shows none. It shares its blocks with the past, so that nothing is stored twice: on the volume it takes room\n\
            for names and index, and as much as it has of what no snapshot keeps, which counted as available. It takes the name in one\n\
            step. A directory that programs go on writing to is left as it is, after three tries: end them first.\n\
            What keeps less history (user.nenrin.history) no checkpoint would bring back: --force replaces it only when the newest\n\
            snapshot shows it.\n\
            Until when the rule keeps what was replaced is told (in JSON replaced_kept_until). Where its checkpoint goes during the copy\n\
            another one is made; where that goes, too, or nobody can say whether it is there, what was replaced, or what is left of it,\n\
            stays in DEST.kept-by-restore, it is told why, and the exit code is 1.\n\
            A full volume lets history go, also of a state that is being read, and the checkpoint that has what was replaced. Stop writing\n\
            to it, keep the state that you need by nenrin snapshot create --of N DIR NAME, then restore.\n\
            What the state does not know of a tree, what is damaged of it, what you may not read, device nodes, which only root may make,\n\
            and not off a volume that a user mounted, and what there cannot be on another file system, are left out, and named: the rest\n\
            is restored, and the exit code is 1. So it is where what was replaced cannot be removed, as directories of other users; it is\n\
            told where that is then. With --json left_out tells path and why (unknown, damaged, forbidden, path-too-long, device, unfit;\n\
            attributes: these alone), and beside paths that are no text are their bytes (path_bytes, went_bytes, parted_bytes,\n\
            rest_bytes). Extended attributes that do not fit on another file system are left out, named, and the exit code is 1 (in JSON\n\
            attributes_left_out). All content is read before it is shared; where some of it is damaged --force replaces nothing. A damaged\n\
            file is left out as a whole, unless --salvage asks for what is left of it: it says which bytes are zeros for want of better\n\
            ones (in JSON salvaged: path and bad, pairs of from and up to). Who neither mounted the volume nor is root restores what he\n\
            may read, without --force.\n\
            A name that is restored is a file of its own: other names of what it was, or of what was there (hard links), that are not\n\
            restored with it keep what they have, which is told (in JSON parted: the paths). --in-place writes to the file itself, where\n\
            the name still is that file: whoever has it open sees it change. A crash leaves all of the old or of the new, where that takes\n\
            less than 30 seconds and there is room for both; a checkpoint has the old. It is given up where somebody writes to the file\n\
            all the time.\n\
            Who has something open that is replaced or changed is named, as far as you may see it. A database of SQLite, or its log, that\n\
            a program has open for writing is neither, when it is restored by itself, unless --in-use says so: the program would spoil\n\
            what came back. In a directory that is restored it goes with the rest: who has something open there is named. Of a database\n\
            that is restored alone it is told which of its logs (-wal, -journal) belong to that state and are not there, or are there and\n\
            belong to another, with the command that brings them. The exit code says nothing of either.\n\
            Owners, permissions and hard links that could not be brought back, since only root may, or where it goes there are none, are\n\
            told, and leave the exit code 0, as with cp; --json counts them (owners_lost, permissions_lost, links_lost). Where a copy\n\
            cannot have the group of then, the one that it has gets no more than others.\n\
            exit codes: 0 restored, or listed, 1 not, or not all of it, 2 called wrongly, 130 interrupted: then nothing was restored.",
    examples: &[
        ("restore ~/work/report.txt --at '10 minutes ago' --force", "undo what was saved since"),
        ("restore ~/work/report.txt --at monday --in-place", "the same for all names of a file with hard links"),
        ("restore ~/work/report.txt --at monday --to ~/work/report.monday.txt", "have both"),
        ("restore --list-deleted ~/work", "what is missing here, and which checkpoint had it last, say 1234"),
        ("restore ~/work/old-project --at 1234", "and back it is"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut json, mut how, mut list) = (false, How { there: There::Stays, salvage: false, in_use: false }, false);
    let (mut at, mut to, mut exact) = (None, None, None);
    let (mut is_forced, mut in_place) = (false, false);
    let given = arguments(&COMMAND, parser, 1, |flag, parser| {
        match flag.shown().as_str() {
            "--json" => json = true,
            "--force" => is_forced = true,
            "--in-place" => in_place = true,
            "--salvage" => how.salvage = true,
            "--in-use" => how.in_use = true,
            "--list-deleted" => list = true,
            "--at" => at = Some(text_value(parser)?),
            "--to" => to = Some(PathBuf::from(parser.value()?)),
            "--as" => exact = Some(PathBuf::from(parser.value()?)),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let path = given.first().map(Path::new);
    if in_place && (list || is_forced || how.salvage || to.is_some() || exact.is_some()) {
        let text =
            "--in-place changes the file itself, and goes with none of the other options but --json and --in-use";
        return Err(COMMAND.misuse(text));
    }
    how.there = match (is_forced, in_place) {
        (_, true) => There::Changes,
        (true, _) => There::Goes,
        _ => There::Stays,
    };
    match (list, path, at) {
        (true, Some(_), Some(_)) => Err(COMMAND.misuse("--list-deleted takes no --at")),
        (true, Some(_), None) if to.is_some() || exact.is_some() || is_forced || how.salvage => {
            Err(COMMAND.misuse("--list-deleted restores nothing, so --to, --as, --force and --salvage mean nothing"))
        }
        _ if how.in_use && how.there == There::Stays => {
            Err(COMMAND.misuse("--in-use is about what is replaced, and goes with --force or --in-place"))
        }
        (false, ..) if is_forced && how.salvage => {
            Err(COMMAND.misuse("--salvage goes without --force: what is not whole replaces nothing"))
        }
        (false, ..) if to.is_some() && exact.is_some() => Err(COMMAND.misuse("--to and --as exclude each other")),
        (true, Some(dir), None) => list_deleted(dir, json),
        (true, None, _) => Err(COMMAND.misuse("a directory is needed")),
        (false, Some(path), Some(at)) => {
            let to = exact.map(Dest::Exactly).or(to.map(Dest::Into)).unwrap_or(Dest::Itself);
            bring_back(path, &at, &to, how, json)
        }
        (false, Some(path), None) => Err(COMMAND.misuse(which_state(path))),
        (false, None, _) => Err(COMMAND.misuse("a path is needed")),
    }
}

/// How to find the state, for who does not know it.
fn which_state(path: &Path) -> String {
    let (dir, path) = (shell_quoted(mounts::above(path)), shell_quoted(path));
    format!(
        "--at says which state: nenrin history {path} shows them, nenrin restore --list-deleted {dir} which one had last what is \
         missing there"
    )
}

/// What a user wants to be done.
#[derive(Clone, Copy)]
struct How {
    /// What becomes of what is there.
    there: There,
    /// What is left of damaged files is wanted.
    salvage: bool,
    /// Also a database that a program has open.
    in_use: bool,
}

/// Where a user wants it.
enum Dest {
    /// Where it was.
    Itself,
    /// There, or in that directory.
    Into(PathBuf),
    /// Exactly there.
    Exactly(PathBuf),
}

impl Dest {
    /// Where it comes to lie: `inside` of the volume, which is `path` here.
    fn place(&self, path: &Path, mount: &Mount, inside: &Path) -> Result<PathBuf, Fail> {
        let own = || own_place(mount, inside);
        Ok(match self {
            Self::Exactly(dest) => dest.clone(),
            Self::Into(dest) if !dest.is_dir() || fs::canonicalize(dest).is_ok_and(|real| real == own()) => dest.clone(),
            Self::Into(dest) => dest.join(inside.file_name().ok_or_else(|| {
                let text = "is there already, and all of a volume has no name that it could have in it; say a DEST that is not";
                Fail::at(dest.display(), text)
            })?),
            // Of "." and ".." that is the place, and of a link what it leads to where that is meant.
            Self::Itself if path.file_name().is_none() || is_followed(path) => own(),
            Self::Itself => path.to_owned(),
        })
    }

    /// Opens that place, which has the path `to`. Where it lies is looked up anew by that, and who may have the path lead elsewhere since
    /// `inside` was told by it must not have it done by somebody else.
    fn open(&self, to: &Path, mount: &Mount, inside: &Path) -> Result<Spot, Fail> {
        let spot = Spot::open(to)?;
        let own = own_place(mount, inside);
        let is_there = || spot.real_parent().is_ok_and(|real| own == real.join(spot.name()));
        if matches!(self, Self::Itself) && !is_there() {
            let text =
                "leads elsewhere than a moment ago, since somebody changes what is on the way; nothing was restored";
            return Err(Fail::at(to.display(), text));
        }
        Ok(spot)
    }
}

/// Where `inside` of a volume lies, as this mount shows it.
fn own_place(mount: &Mount, inside: &Path) -> PathBuf {
    let above = mount.root.components().filter(|c| matches!(c, Component::Normal(_))).count();
    mount.point.join(inside.components().skip(above).collect::<PathBuf>())
}

/// Whether a path ends in a slash, or in "/.", and is a link without that: what was found there is meant, and not the link.
fn is_followed(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let follows = bytes.ends_with(b"/") || bytes.ends_with(b"/.");
    let plain: PathBuf = path.components().collect();
    follows && fs::symlink_metadata(plain).is_ok_and(|m| m.is_symlink())
}

/// A program of a user may show links of a sudden where directories and files were just made: root would write wherever they lead.
fn is_to_be_trusted(spot: &Spot) -> Result<(), Fail> {
    let of_user = |m: &Mount| m.user != 0 && mounts::number_of(&m.device) == Some(spot.device());
    if sys::euid() != 0 {
        return Ok(());
    }
    match mounts::all().at("/proc/self/mountinfo")?.iter().find(|m| of_user(m)) {
        Some(m) => {
            let text = "is on a file system that a program of user UID serves, and root writes nothing there: restore as that \
                        user, as by setpriv --reuid=UID --clear-groups, or to another place by --to DEST";
            Err(Fail::at(spot.shown().display(), text.replace("UID", &m.user.to_string())))
        }
        None => Ok(()),
    }
}

/// Whether who asks is in a directory, or below it.
fn is_around_us(dest: &Path) -> bool {
    let is_directory = fs::symlink_metadata(dest).is_ok_and(|m| m.is_dir());
    let here = std::env::current_dir().and_then(|here| Ok(here.starts_with(fs::canonicalize(dest)?)));
    is_directory && here.unwrap_or(false)
}

/// Who uses something in a directory that is to be replaced, or has the file open that is replaced or written to: he goes on with what was
/// there.
fn users_of(spot: &Spot, there: There) -> Vec<User> {
    let Some(meta) = fs::symlink_metadata(spot.there()).ok().filter(|_| there != There::Stays) else {
        return Vec::new();
    };
    if meta.is_file() {
        return mounts::users_of_file(&meta);
    }
    let real = spot.real_parent().ok().filter(|_| meta.is_dir());
    let names = real.map_or_else(Vec::new, |real| mounts::users(&real.join(spot.name())));
    names.into_iter().map(|name| User { name, writes: false }).collect()
}

fn tell_users(users: &[User], dest: &Path, there: There) {
    if users.is_empty() {
        return;
    }
    let names = users.iter().map(|user| user.name.as_str()).collect::<Vec<_>>().join(", ");
    let text = match there {
        There::Changes => "what was read of it before may go on being used, and be written back",
        _ => "what is open there is what was replaced, and what is written to it is lost",
    };
    output::notice(format!("{} was in use by {names}: {text}", dest.display()));
}

fn list_deleted(dir: &Path, json: bool) -> Outcome {
    let (mut teller, _, path) = told_by(dir)?;
    let list = teller.gone(&path, dir)?;
    match (json, list.is_empty()) {
        (true, _) => output::json(&list)?,
        (false, true) => {}
        (false, false) => output::print(&states::show_gone(&list)),
    }
    if list.is_empty() {
        // One that is of an older version cannot say how far it looks.
        let reach = teller.reach(&path).map_or_else(|_| String::new(), |reach| format!("; {reach}"));
        output::notice(format!("{}: nothing is known to have been removed from it{reach}", dir.display()));
    }
    let damaged = list.iter().filter(|g| g.damage.is_some()).count() as u64;
    if damaged > 0 {
        let what = plural(damaged, "name stands for what cannot be read", "names stand for what cannot all be read");
        output::notice(format!(
            "{what}, since it is damaged; another state may have it (nenrin history), and nenrin check tells more"
        ));
    }
    Ok(if damaged > 0 { FAILURE } else { 0 })
}

/// Where the newest state and the newest snapshot show what has this name now, if there is a snapshot.
fn shown_by_states(teller: &mut Teller, spot: &Spot) -> Option<Shown> {
    let Teller::Owner(owner) = teller else { return None };
    let all: Vec<CheckpointData> = owner.call(&Request::Checkpoints).ok()?;
    let snapshot = all.iter().rev().find(|c| c.name.is_some())?;
    let real = spot.real_parent().ok()?;
    let mount = mounts::of_real(&real).ok()??;
    let inside = from_root(&mount, &real, Path::new(spot.name()))?;
    let shelf = Shelf::of(&mount).ok()?;
    let by = |state: &CheckpointData| Then::new(shelf.root(state.cno), inside.clone()).ok();
    Some(Shown { now: by(all.last()?)?, snapshot: by(snapshot)?, snapshot_cno: snapshot.cno })
}

/// Whether a state, which is called so, has what is asked for.
fn is_there(path: &Path, then: &Then, state: &CheckpointData, named: &str) -> Result<(), Fail> {
    let text = match then.metadata() {
        Ok(meta) if state.landmarks_only && meta.is_dir() => {
            format!("of {named} only single files are left; nenrin history tells them")
        }
        Ok(_) => return Ok(()),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            format!(
                "was not there in {named}; nenrin history shows when it was, nenrin restore --list-deleted DIR what else was in DIR"
            )
        }
        Err(e) if state.landmarks_only && e.raw_os_error() == Some(libc::ESTALE) => {
            format!("of {named} only single files are left, and not this one; nenrin history tells them")
        }
        Err(e) if e.raw_os_error() == Some(libc::ESTALE) => {
            let text =
                format!("is not known in {named}, because less of its history is kept, or was let go for want of room");
            format!("{text}; nenrin history tells what is: {e}")
        }
        Err(e) => format!("cannot be read as of {named}: {e}"),
    };
    Err(Fail::at(path.display(), text))
}

/// The other name that a state has for what has to do with this one.
fn named_then(teller: &mut Teller, inside: &Path, cno: u64) -> Option<PathBuf> {
    let Teller::Owner(owner) = teller else { return None };
    let then: Option<Vec<u8>> = owner.call(&Request::PathThen { path: inside.to_owned(), cno }).ok()?;
    then.filter(|then| !restore::has_hidden(then)).map(|then| OsString::from_vec(then).into())
}

/// Whether what is not known is not known in that state: that the state itself went meanwhile looks the same.
fn is_still_there(teller: &mut Teller, state: &CheckpointData) -> Result<(), Fail> {
    let now = teller.find(&state.cno.to_string())?;
    if now.landmarks_only == state.landmarks_only {
        return Ok(());
    }
    Err(Fail::new(format!("checkpoint {} was let go while it was copied; of it only single files are left", state.cno)))
}

/// The checkpoint that was made to have what is replaced. As long as this is open it is in use, so that the rule leaves it alone.
struct Keeping {
    shelf: Shelf,
    made: RefCell<Option<(CheckpointData, Option<File>)>>,
}

impl Keeping {
    fn note(&self, made: serde_json::Value) -> Result<(), Fail> {
        let made: CheckpointData = serde_json::from_value(made).map_err(|e| Fail::new(e.to_string()))?;
        let used = File::open(self.shelf.root(made.cno)).ok();
        self.made.replace(Some((made, used)));
        Ok(())
    }

    /// Whether it is there still, and the snapshot where that is who keeps what is replaced.
    fn is_there(&self, by: Keeper, teller: &mut Teller) -> Result<bool, Fail> {
        let made = self.made.borrow();
        let Some((made, _)) = made.as_ref() else { return Ok(false) };
        Ok(has_state(teller, made.cno, false)?
            && match by {
                Keeper::State => true,
                Keeper::Snapshot(cno) => has_state(teller, cno, true)?,
            })
    }
}

/// Whether there is all of a state, as a snapshot where that is asked for.
fn has_state(teller: &mut Teller, cno: u64, as_snapshot: bool) -> Result<bool, Fail> {
    let is =
        |state: &CheckpointData| state.cno == cno && !state.landmarks_only && (state.name.is_some() || !as_snapshot);
    match (teller.find(&cno.to_string()), teller) {
        (Ok(state), _) => Ok(is(&state)),
        // There is none, or nobody says so: whoever lists them all does.
        (Err(_), Teller::Owner(owner)) => {
            let all: Vec<CheckpointData> = owner.call(&Request::Checkpoints)?;
            Ok(all.iter().any(is))
        }
        (Err(e), Teller::Mount(_)) => Err(e),
    }
}

/// What is asked for, and where it was found.
struct Asked<'a> {
    path: &'a Path,
    mount: Mount,
    /// The path from the root of the volume.
    inside: PathBuf,
    state: CheckpointData,
    /// What the state is called.
    named: String,
    /// Where the state has it.
    then: Then,
    /// Where it comes to lie.
    dest: PathBuf,
    to: &'a Dest,
}

impl<'a> Asked<'a> {
    fn find(path: &'a Path, at: &str, to: &'a Dest) -> Result<(Teller, Self), Fail> {
        let (mut teller, mount, inside) = told_by(path)?;
        let state = teller.find(at)?;
        let root = Shelf::of(&mount)?.root(state.cno);
        if inside.as_os_str().is_empty() && matches!(to, Dest::Itself) {
            let text = "is all of the volume; --to DEST restores it beside, or name what is missing";
            return Err(Fail::at(path.display(), text));
        }
        let dest = to.place(path, &mount, &inside)?;
        let then = Then::new(root, inside.clone()).at(path.display())?;
        let named = format!("checkpoint {} of {}", state.cno, when::show(state.nanos));
        let asked = Self { path, mount, inside, state, named, then, dest, to };
        asked.is_there(&mut teller).map(|()| (teller, asked))
    }

    /// Whether the state has it; under which other name, where it has not.
    fn is_there(&self, teller: &mut Teller) -> Result<(), Fail> {
        is_there(self.path, &self.then, &self.state, &self.named).map_err(|e| {
            let Some(was) = named_then(teller, &self.inside, self.state.cno) else { return e };
            let (was, cno, dest) = (shell_quoted(&self.mount.point.join(was)), self.state.cno, &self.dest);
            let (to, named) = (if dest.is_dir() { "--as" } else { "--to" }, &self.named);
            let text =
                format!("had another name in {named}: nenrin restore {was} --at {cno} {to} {}", shell_quoted(dest));
            Fail { message: format!("{}: {text}", self.path.display()), ..e }
        })
    }

    /// Asks the owner of the volume for something that a replacement needs.
    fn ask(&self, teller: &RefCell<Teller>, request: &Request) -> Result<serde_json::Value, Fail> {
        let Teller::Owner(owner) = &mut *teller.borrow_mut() else {
            let text = "has to go to a checkpoint before it is replaced, which only root and the user who mounted the \
                        volume may ask for; --to DEST restores beside it";
            return Err(Fail::at(self.dest.display(), text));
        };
        owner.call::<serde_json::Value>(request)
    }

    /// A failure, with the path as it was asked for, and what helps.
    fn told(&self, e: Fail, is_same_volume: bool) -> Fail {
        let (from, path) = (self.then.path(), self.path.to_string_lossy());
        let e = restore::with_way_out(e, &self.dest, is_same_volume);
        let e = Fail { message: e.message.replace(&*from.to_string_lossy(), &path), ..e };
        restore::with_plain_copy(e, &from, &self.dest)
    }
}

fn bring_back(path: &Path, at: &str, to: &Dest, how: How, json: bool) -> Outcome {
    let (teller, asked) = Asked::find(path, at, to)?;
    let (dest, there) = (&*asked.dest, how.there);
    let is_around_us = there == There::Goes && is_around_us(dest);
    // As the kernel lists it: what is at its path by now the user may have changed who serves it.
    let no_device = || Fail::at(asked.mount.point.display(), "is of no device");
    let volume = mounts::number_of(&asked.mount.device).ok_or_else(no_device)?;
    let spot = to.open(dest, &asked.mount, &asked.inside)?;
    is_to_be_trusted(&spot)?;
    let is_same_volume = spot.device() == volume;
    if there == There::Stays && spot.is_taken() {
        return Err(restore::exists(dest, is_same_volume));
    }
    let users = users_of(&spot, there);
    if !how.in_use {
        database::is_at_rest(&spot, &users)?;
    }
    // Whoever ends this finds nothing half done.
    sys::block_ending_signals().at("signals")?;
    let keeping = Keeping { shelf: Shelf::of(&asked.mount)?, made: RefCell::default() };
    let restored = copied(&asked, &spot, (volume, how), &RefCell::new(teller), &keeping)
        .map_err(|e| asked.told(e, is_same_volume))?;
    tell_users(&users, dest, there);
    let from = asked.then.path();
    database::tell_logs(&CameBack { dest, from: &from, path, cno: asked.state.cno, is_same_volume });
    if is_around_us {
        output::notice("the directory that you are in was replaced: cd \"$PWD\" enters the new one, if that has it");
    }
    let came = CameFrom {
        path,
        from: &from,
        dest,
        state: &asked.state,
        named: &asked.named,
        there,
        is_itself: matches!(asked.to, Dest::Itself),
        kept_in: keeping.made.into_inner().map(|(made, _)| made).filter(|_| restored.unkept.is_none()),
    };
    restored::tell(restored, &came, json)
}

/// Copies what is asked for from the volume, which has this device number.
fn copied(
    asked: &Asked<'_>,
    spot: &Spot,
    (volume, how): (u64, How),
    teller: &RefCell<Teller>,
    keeping: &Keeping,
) -> Result<Restored, Fail> {
    let has_owner = matches!(*teller.borrow(), Teller::Owner(_));
    let mut sync = || asked.ask(teller, &Request::Sync).map(drop);
    let mut progress = Progress::new();
    let mut calls = Calls {
        volume,
        is_of_user: asked.mount.user != 0 && sys::euid() == 0,
        progress: &mut |c: &Copied| progress.show(|| format!("{} files, {}", c.files, show_bytes(c.bytes))),
        sync: if has_owner { Some(&mut sync) } else { None },
        keep: &mut || keeping.note(asked.ask(teller, &Request::CheckpointCreate { name: None })?),
        is_kept: &|by: Keeper| keeping.is_there(by, &mut teller.borrow_mut()),
        fits: &mut |left_out: &[LeftOut]| match left_out.iter().any(|l| l.lack == Lack::Unknown) {
            false => Ok(()),
            true => is_still_there(&mut teller.borrow_mut(), &asked.state),
        },
        shown: &|| shown_by_states(&mut teller.borrow_mut(), spot),
        stop: &sys::ending_signal_waits,
        salvage: how.salvage,
    };
    restore::copy(&asked.then.path(), spot, how.there, &mut calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the state was looked up by, and where the path leads a moment later.
    #[test]
    fn a_place_that_the_path_leads_to_no_more_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(dir.path()).unwrap();
        let (path, inside) = (top.join("sub/d/f"), Path::new("above/d/f"));
        for made in ["sub/d", "victim"] {
            fs::create_dir_all(top.join(made)).unwrap();
        }
        // A mount of a directory of the volume.
        let [root, point, source] = ["/above".into(), top.join("sub"), PathBuf::new()];
        let (device, options, fstype) = (String::new(), String::new(), mounts::FSTYPE.to_owned());
        let (user, allow_other, read_only) = (0, false, false);
        let mount = Mount { device, root, point, options, fstype, source, user, allow_other, read_only };
        let opened = |to: &Dest, path: &Path| to.open(path, &mount, inside).map(|spot| spot.real_parent().unwrap());
        assert_eq!(opened(&Dest::Itself, &path), Ok(top.join("sub/d")));
        fs::rename(top.join("sub/d"), top.join("sub/e")).unwrap();
        std::os::unix::fs::symlink(top.join("victim"), top.join("sub/d")).unwrap();
        let told = opened(&Dest::Itself, &path).unwrap_err().message;
        assert!(told.starts_with(&format!("{}: leads elsewhere", path.display())), "{told}");
        // Nor where it has another name, or lies deeper.
        assert!(opened(&Dest::Itself, &top.join("sub/e/f")).is_err());
        // Who says where else it is to go means where that leads.
        assert_eq!(opened(&Dest::Into(path.clone()), &path), Ok(top.join("victim")));
        fs::remove_file(top.join("sub/d")).unwrap();
        let told = opened(&Dest::Itself, &path).unwrap_err().message;
        assert!(told.contains("sub/d: is not there; make or restore that directory"), "{told}");
    }
}
