//! Databases of SQLite that are restored. They lie in several files: the log of changes that are not in the database yet (`-wal`), or of
//! how to undo those that are half in it (`-journal`), belongs to one state of it; and a program that has it open goes by what it had.

use crate::error::Fail;
use crate::mounts::User;
use crate::output::{self, printable, shell_quoted};
use crate::restore::Spot;
use std::ffi::OsString;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// What a database begins with.
const DATABASE: &[u8] = b"SQLite format 3\0";
/// And each of its logs.
const LOGS: [&[u8]; 3] =
    [&[0x37, 0x7f, 6, 0x82], &[0x37, 0x7f, 6, 0x83], &[0xd9, 0xd5, 5, 0xf9, 0x20, 0xa1, 0x63, 0xd7]];
/// How the names of these end.
const SUFFIXES: [&str; 2] = ["-wal", "-journal"];

fn begins_with(path: &Path, magic: &[u8]) -> bool {
    let mut head = vec![0; magic.len()];
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    opened.is_ok_and(|mut file| file.read_exact(&mut head).is_ok()) && head == magic
}

/// Whether a file is a database, or a log of one.
fn is_of_sqlite(path: &Path) -> bool {
    std::iter::once(DATABASE).chain(LOGS).any(|magic| begins_with(path, magic))
}

/// Fails where a program has what is about to be replaced, or written to, open for writing, and it is a database or its log. The program
/// would go on by what it had in memory: with --in-place it writes that over what came back, and otherwise whoever opens the database next
/// finds the program's log beside it, and applies that.
///
/// # Errors
/// Who has it open.
pub fn is_at_rest(spot: &Spot, users: &[User]) -> Result<(), Fail> {
    let writers: Vec<&str> = users.iter().filter(|user| user.writes).map(|user| user.name.as_str()).collect();
    if writers.is_empty() || !is_of_sqlite(&spot.there()) {
        return Ok(());
    }
    let text = format!(
        "is a database that {} has open for writing, which would be spoilt; end that first (--in-use goes on all the same), or \
         restore beside it by --to DEST",
        writers.join(", ")
    );
    Err(Fail::at(spot.shown().display(), text))
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let name = [path.as_os_str().to_owned().into_vec(), suffix.as_bytes().to_vec()].concat();
    OsString::from_vec(name).into()
}

/// A log with something in it, if there is one.
fn log_of(path: &Path, suffix: &str) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(with(path, suffix)) {
        Ok(meta) => Ok(Some(meta).filter(|m| m.is_file() && m.len() > 0)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// What was restored, and where.
pub struct CameBack<'a> {
    /// Where it is now.
    pub dest: &'a Path,
    /// Where the state shows it.
    pub from: &'a Path,
    /// Where it is, or was, on the volume, as it was named.
    pub path: &'a Path,
    /// The number of the state.
    pub cno: u64,
    /// It lies on the volume that it was on: what is replaced there stays in the past.
    pub is_same_volume: bool,
}

/// Tells what does not go with a database that came back alone: logs of its state that are not there, without which some of what was in
/// it then is missing, or half of a change in it; and logs that are there, and belong to something else, which SQLite would apply to it.
pub fn tell_logs(came: &CameBack<'_>) {
    if !begins_with(came.dest, DATABASE) {
        return;
    }
    about_logs(came, &|suffix| log_of(came.from, suffix)).into_iter().for_each(output::notice);
}

/// What is told; `then` looks for a log in the state.
fn about_logs(came: &CameBack<'_>, then: &dyn Fn(&str) -> io::Result<Option<Metadata>>) -> Vec<String> {
    let all = SUFFIXES.map(|suffix| (suffix, then(suffix)));
    let mut told = Vec::new();
    if all.iter().any(|(_, then)| then.as_ref().is_err_and(went_meanwhile)) {
        let text = "whether there was a -wal or -journal beside it then, without which changes are missing, or half made, is not \
                    known: that state was let go meanwhile";
        told.push(format!("{}: {text}", printable(&came.dest.to_string_lossy())));
    }
    told.extend(all.into_iter().filter_map(|(suffix, then)| about_log(came, suffix, then)));
    told
}

fn went_meanwhile(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::ESTALE)
}

/// What is told where the state has, or may have had, this log.
fn about_log(came: &CameBack<'_>, suffix: &str, then: io::Result<Option<Metadata>>) -> Option<String> {
    let CameBack { dest, path, cno, .. } = came;
    let beside = with(dest, suffix);
    let (shown, first) = (printable(&beside.to_string_lossy()), "before anything opens the database");
    let now = log_of(dest, suffix).ok().flatten();
    let strange = format!("{shown} beside it belongs to what was there before");
    let then = match then {
        Ok(then) => then,
        Err(e) => {
            let strange = now.map(|_| format!("{strange}; remove it, {first}"));
            if went_meanwhile(&e) {
                return strange;
            }
            let text = "what of the database was in it is not in what came back, or half of a change is";
            let missing = format!("{shown} of then cannot be had ({e}): {text}");
            return Some([Some(missing), strange].into_iter().flatten().collect::<Vec<_>>().join("; "));
        }
    };
    let bring = || {
        let (log, is_there) = (shell_quoted(&with(path, suffix)), fs::symlink_metadata(&beside).is_ok());
        let bring = |how| format!("nenrin restore {log} --at {cno} {how} {}", shell_quoted(&beside));
        // What is there is replaced only where it stays in the past.
        match (is_there, came.is_same_volume) {
            (true, true) => format!("bring back that of then, {first}: {}", bring("--force --as")),
            (true, false) => format!("remove it, {first}, then bring back that of then: {}", bring("--as")),
            (false, _) => format!("bring it back, {first}: {}", bring("--as")),
        }
    };
    match (then, now) {
        (None, None) => None,
        (Some(then), Some(now)) if (then.len(), then.modified().ok()) == (now.len(), now.modified().ok()) => None,
        (Some(_), None) => {
            let text = "belongs to it, and is not there: without it changes are missing, or half made";
            Some(format!("{shown} of then {text}; {}", bring()))
        }
        (Some(_), Some(_)) => Some(format!("{strange}; {}", bring())),
        (None, Some(_)) => Some(format!("{strange}; remove it, {first}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files {
        dir: tempfile::TempDir,
    }

    impl Files {
        fn at(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }
        fn told_on(&self, is_same_volume: bool, then: &dyn Fn(&str) -> io::Result<Option<Metadata>>) -> Vec<String> {
            let (dest, from, path) = (self.at("now"), self.at("then"), Path::new("/v/my db"));
            about_logs(&CameBack { dest: &dest, from: &from, path, cno: 7, is_same_volume }, then)
        }
        fn told(&self, suffix: &str) -> Option<String> {
            let mut told = self.told_on(true, &|suffix| log_of(&self.at("then"), suffix));
            told.retain(|t| t.contains(&format!("now{suffix} ")));
            assert!(told.len() < 2, "{told:?}");
            told.into_iter().next()
        }
    }

    /// Of each way in which logs of then and of now may lie beside it, what is told, and the command that helps.
    #[test]
    fn logs_that_are_missing_and_logs_that_are_strange_are_told() {
        let files = Files { dir: tempfile::tempdir().unwrap() };
        for suffix in SUFFIXES {
            let (then, now) =
                (files.at("then").with_file_name(format!("then{suffix}")), files.at(&format!("now{suffix}")));
            let shown = now.display().to_string();
            assert_eq!(files.told(suffix), None);
            fs::write(&now, "").unwrap();
            assert_eq!(files.told(suffix), None, "there is nothing in it");
            fs::write(&now, "of now").unwrap();
            let told = files.told(suffix).unwrap();
            assert!(
                told.starts_with(&format!("{shown} beside it belongs to what was")) && told.contains("remove it"),
                "{told}"
            );
            fs::write(&then, "longer, of then").unwrap();
            let told = files.told(suffix).unwrap();
            let command = format!("nenrin restore '/v/my db{suffix}' --at 7 --force --as {shown}");
            assert!(told.contains("belongs to what was there before") && told.ends_with(&command), "{told}");
            for is_there in [true, false] {
                if is_there {
                    fs::write(&now, "").unwrap()
                } else {
                    fs::remove_file(&now).unwrap()
                }
                let told = files.told(suffix).unwrap();
                let how = if is_there { "--force --as" } else { "--as" };
                let command = format!("nenrin restore '/v/my db{suffix}' --at 7 {how} {shown}");
                assert!(told.contains("belongs to it, and is not there") && told.ends_with(&command), "{told}");
            }
            std::process::Command::new("cp").arg("-p").args([&then, &now]).status().unwrap();
            assert_eq!(files.told(suffix), None, "the same");
            fs::remove_file(&now).unwrap();
        }
    }

    /// Where the state, or that part of it, cannot be read any more, what is there now is as strange.
    #[test]
    fn strange_logs_are_told_also_where_those_of_then_cannot_be_looked_up() {
        let files = Files { dir: tempfile::tempdir().unwrap() };
        let failing = |code| files.told_on(true, &|_| Err(io::Error::from_raw_os_error(code)));
        let is_strange =
            |told: &String| told.contains("now-wal beside it belongs to what was") && told.contains("remove it");
        let told = failing(libc::ESTALE);
        assert!(told.len() == 1 && told[0].contains("is not known"), "{told:?}");
        let told = failing(libc::EIO);
        assert!(told.len() == 2 && told.iter().all(|t| t.contains("of then cannot be had")), "{told:?}");
        fs::write(files.at("now-wal"), "of now").unwrap();
        let told = failing(libc::ESTALE);
        assert!(told.len() == 2 && told[0].contains("is not known") && is_strange(&told[1]), "{told:?}");
        let told = failing(libc::EIO);
        assert!(told.len() == 2 && is_strange(&told[0]) && told[0].contains("of then cannot be had"), "{told:?}");
        assert!(!is_strange(&told[1]), "{told:?}");
    }

    /// Off the volume nothing that is there is replaced.
    #[test]
    fn the_command_for_a_log_off_the_volume_is_not_refused() {
        let files = Files { dir: tempfile::tempdir().unwrap() };
        for name in ["now-wal", "then-wal"] {
            fs::write(files.at(name), name).unwrap();
        }
        let told = files.told_on(false, &|suffix| log_of(&files.at("then"), suffix));
        let command = format!("nenrin restore '/v/my db-wal' --at 7 --as {}", files.at("now-wal").display());
        assert!(told.len() == 1 && told[0].contains("remove it, before") && told[0].ends_with(&command), "{told:?}");
    }

    #[test]
    fn logs_and_databases_are_known_by_how_they_begin() {
        let dir = tempfile::tempdir().unwrap();
        let is = |bytes: &[u8]| {
            fs::write(dir.path().join("f"), bytes).unwrap();
            is_of_sqlite(&dir.path().join("f"))
        };
        assert!(is(b"SQLite format 3\0 and more") && is(&[0x37, 0x7f, 6, 0x83, 0]) && is(&[LOGS[2], b"x"].concat()));
        assert!(!is(b"SQLite format 2") && !is(b"") && !is(b"text that is long enough for each of them"));
    }
}
