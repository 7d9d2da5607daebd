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
}

/// Tells what does not go with a database that came back alone: logs of its state that are not there, without which some of what was in
/// it then is missing, or half of a change in it; and logs that are there, and belong to something else, which SQLite would apply to it.
pub fn tell_logs(came: &CameBack<'_>) {
    if !begins_with(came.dest, DATABASE) {
        return;
    }
    SUFFIXES.iter().filter_map(|suffix| about_log(came, suffix)).for_each(output::notice);
}

fn about_log(CameBack { dest, from, path, cno }: &CameBack<'_>, suffix: &str) -> Option<String> {
    let beside = with(dest, suffix);
    let (shown, first) = (printable(&beside.to_string_lossy()), "before anything opens the database");
    let now = log_of(dest, suffix).ok().flatten();
    let then = match log_of(from, suffix) {
        Ok(then) => then,
        Err(e) => {
            let text = "what of the database was in it is not in what came back, or half of a change is";
            return Some(format!("{shown} of then cannot be had ({e}): {text}"));
        }
    };
    let bring = || {
        let how = if fs::symlink_metadata(&beside).is_ok() { "--force --as" } else { "--as" };
        let (log, beside) = (shell_quoted(&with(path, suffix)), shell_quoted(&beside));
        format!("nenrin restore {log} --at {cno} {how} {beside}")
    };
    match (then, now) {
        (None, None) => None,
        (Some(then), Some(now)) if (then.len(), then.modified().ok()) == (now.len(), now.modified().ok()) => None,
        (Some(_), None) => {
            let text = "belongs to it, and is not there: without it changes are missing, or half made";
            Some(format!("{shown} of then {text}; bring it back, {first}: {}", bring()))
        }
        (then, Some(_)) => {
            let text = "beside it belongs to what was there before";
            let help = match then {
                Some(_) => format!("bring back that of then, {first}: {}", bring()),
                None => format!("remove it, {first}"),
            };
            Some(format!("{shown} {text}; {help}"))
        }
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
        fn told(&self, suffix: &str) -> Option<String> {
            let (dest, from, path) = (self.at("now"), self.at("then"), Path::new("/v/my db"));
            about_log(&CameBack { dest: &dest, from: &from, path, cno: 7 }, suffix)
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
