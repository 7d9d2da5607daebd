//! `nenrin trace record`.

use super::{COMMAND, child, view};
use crate::command::{arguments, text_value};
use crate::error::{At, Fail, Outcome};
use crate::mounts;
use crate::output::{self, notice};
use crate::size::{parse_seconds, show_bytes};
use crate::written::Place;
use nenrin_trace::{BlockDev, Recording, analysis, file};
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Wishes {
    devices: Vec<PathBuf>,
    output: Option<PathBuf>,
    nanos: Option<u64>,
    json: bool,
}

/// Records until the command, the time or the user's patience ends.
pub fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut w = Wishes::default();
    let command = arguments(&COMMAND, parser, usize::MAX, |flag, parser| {
        match flag.shown().as_str() {
            "--device" | "-d" => w.devices.push(parser.value()?.into()),
            "--output" | "-o" => w.output = Some(parser.value()?.into()),
            "--for" => {
                let text = text_value(parser)?;
                w.nanos = Some(
                    parse_seconds(&text)
                        .ok_or_else(|| Fail::usage(format!("--for {text:?}: a time like 30s or 2m is needed")))?,
                );
            }
            "--json" => w.json = true,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if w.devices.is_empty() {
        return Err(COMMAND.misuse("--device is needed; findmnt -no SOURCE DIR tells that of a directory"));
    }
    let path = w.output.clone().unwrap_or_else(|| "nenrin.trace".into());
    let devices = find(&w.devices)?;
    child::watch()?;
    let words: Vec<String> = command.iter().map(|c| c.to_string_lossy().into_owned()).collect();
    let (mut file, open) = Fresh::beside(&path)?;
    let recording = Recording::start(&devices, &words, open, &path)?;
    if let Some(d) = devices.iter().find(|d| holds(d, &file.at)) {
        notice(format!(
            "{} lies on {}: the trace will hold its own writes; -o elsewhere avoids that",
            path.display(),
            d.name
        ));
    }
    let begin = Instant::now();
    let is_over = || w.nanos.is_some_and(|n| begin.elapsed() >= Duration::from_nanos(n));
    let (code, named) = match command.split_first() {
        Some((program, rest)) => {
            let mut child = child::spawn(std::process::Command::new(program).args(rest))?;
            let named = file.take_name();
            let status = child::wait(&mut child, is_over);
            (Some(child::exit_code(status.at(program.to_string_lossy())?)), named)
        }
        None => {
            let named = file.take_name();
            if w.nanos.is_none() && std::io::stderr().is_terminal() {
                notice("recording; Ctrl-C ends it");
            }
            while child::interrupted().is_none() && !is_over() && !recording.has_ended() {
                std::thread::sleep(Duration::from_millis(20));
            }
            (None, named)
        }
    };
    if let Err(e) = &named {
        notice(format!("{}: cannot be replaced: {e}; the new trace is {}", path.display(), file.at.display()));
    }
    recording.stop(code.map(i32::from))?;
    let (shown, usual) = if named.is_ok() { (&path, 0) } else { (&file.at, 1) };
    conclude(shown, &w)?;
    Ok(code.filter(|code| *code != 0).unwrap_or(usual))
}

fn find(paths: &[PathBuf]) -> Result<Vec<BlockDev>, Fail> {
    let found = paths.iter().map(|p| BlockDev::find(p)).collect::<Result<Vec<_>, _>>()?;
    for (i, d) in found.iter().enumerate() {
        if let Some(twice) =
            found[..i].iter().find(|o| o.whole == d.whole && (o.sysfs == d.sysfs || !o.partition || !d.partition))
        {
            return Err(Fail::usage(format!(
                "{} and {} overlap; give one of them",
                twice.path.display(),
                d.path.display()
            )));
        }
    }
    match found.len() {
        1..=64 => Ok(found),
        n => Err(Fail::usage(format!("{n} devices given; at most 64 are recorded at once"))),
    }
}

/// Refuses to replace what is no trace.
fn may_be_replaced(file: &mut File) -> Result<(), Fail> {
    let mut head = Vec::new();
    file.take(file::MAGIC.len() as u64).read_to_end(&mut head)?;
    match file::MAGIC.starts_with(&head) {
        true => Ok(()),
        false => Err(Fail::new("exists and is no trace; choose another name with -o")),
    }
}

/// The file that is written. A trace that is there stays until there is something to record: it is written beside that, and then takes
/// its name; where it could not be, the trace is emptied and written itself. What was not to be goes.
pub struct Fresh {
    at: PathBuf,
    /// The file whose name it takes.
    instead_of: Option<PathBuf>,
    /// There is no use in it yet, and there was none of this name.
    goes: bool,
}

impl Fresh {
    /// Of what was looked at, and found to be a trace, nothing else is replaced or emptied.
    pub fn beside(path: &Path) -> Result<(Self, File), Fail> {
        Self::made(path).map_err(|e| Fail::at(path.display(), e))
    }

    fn made(path: &Path) -> Result<(Self, File), Fail> {
        let place = Place::of(path)?;
        let itself = |goes| Self { at: place.path.clone(), instead_of: None, goes };
        match fs::symlink_metadata(&place.path) {
            // What a link of one's own leads to was to be there.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let goes = fs::symlink_metadata(path).is_err();
                let open = place.open(File::options().write(true).create_new(true))?;
                return Ok((itself(goes), open));
            }
            // A pipe or /dev/null is the caller's wish; a directory fails by itself.
            Ok(known) if !known.is_file() => return Ok((itself(false), place.open(File::options().write(true))?)),
            _ => {}
        }
        let mut there = place.open(File::options().read(true).write(true))?;
        let known = there.metadata()?;
        may_be_replaced(&mut there)?;
        let real = fs::canonicalize(&place.path)?;
        // What is mounted there by itself, as in a container, cannot be replaced.
        if mounts::of_point(&real).is_some() {
            return Ok((itself(false), emptied(there)?));
        }
        let name = real.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let at = real.with_file_name(format!(".{name}.{}.new", std::process::id()));
        let made = match File::options().write(true).create_new(true).mode(0o600).open(&at) {
            // Who may write to the file need not be let make another one beside it.
            Err(e) if matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
                return Ok((itself(false), emptied(there)?));
            }
            made => made?,
        };
        let this = Self { at, instead_of: Some(real), goes: true };
        // Whoever runs this may not be whose it is.
        let _ = fchown(&made, Some(known.uid()), Some(known.gid()));
        made.set_permissions(fs::Permissions::from_mode(known.mode() & 0o777))?;
        Ok((this, made))
    }

    /// It is what was wanted from now on, and stays where it is if it cannot have the name.
    pub fn take_name(&mut self) -> io::Result<()> {
        self.goes = false;
        if let Some(known) = self.instead_of.take() {
            fs::rename(&self.at, &known)?;
            self.at = known;
        }
        Ok(())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if self.goes {
            let _ = fs::remove_file(&self.at);
        }
    }
}

fn emptied(mut file: File) -> io::Result<File> {
    file.set_len(0)?;
    file.rewind()?;
    Ok(file)
}

/// Whether the file lies on the device, so that writing it is recorded too.
fn holds(device: &BlockDev, path: &Path) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    let link = format!("/sys/dev/block/{}:{}", libc::major(meta.dev()), libc::minor(meta.dev()));
    fs::canonicalize(link).is_ok_and(|place| place.starts_with(&device.sysfs))
}

/// Says what was recorded.
fn conclude(path: &Path, w: &Wishes) -> Result<(), Fail> {
    if !fs::metadata(path).at(path.display())?.is_file() {
        return Ok(());
    }
    let found = analysis::read(path, |_, _, _| {})?;
    let view = view::View::new(path, found);
    if w.json {
        return output::json(&view.json());
    }
    let s = &view.found.summary;
    notice(format!(
        "{}: {} in {:.1} s: {} written in {} requests, {} read, {} flushes; {}",
        path.display(),
        view.devices(),
        view.found.end.nanos as f64 / 1e9,
        show_bytes(s.written_bytes()),
        s.write_requests(),
        show_bytes(s.op(nenrin_trace::Op::Read).all.bytes),
        s.flushes(),
        view.trust()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// What was recorded stays, also where it cannot have the name that it was to have; what was never to be goes.
    #[test]
    fn what_was_recorded_is_not_thrown_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let old = [&file::MAGIC[..], b"old"].concat();
        fs::write(&path, &old).unwrap();
        let (file, _) = Fresh::beside(&path).unwrap();
        drop(file);
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(dir.path()).unwrap().count()), (old.clone(), 1));
        let (mut file, mut open) = Fresh::beside(&path).unwrap();
        open.write_all(&[&file::MAGIC[..], b"new"].concat()).unwrap();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        file.take_name().unwrap_err();
        let at = file.at.clone();
        drop(file);
        assert_eq!(fs::read(&at).unwrap(), [&file::MAGIC[..], b"new"].concat());
        fs::remove_dir(&path).unwrap();
        fs::rename(&at, &path).unwrap();
        let (mut file, mut open) = Fresh::beside(&path).unwrap();
        open.write_all(b"newer").unwrap();
        file.take_name().unwrap();
        drop(file);
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(dir.path()).unwrap().count()), (b"newer".to_vec(), 1));
    }

    /// What somebody else lays there is neither followed nor replaced.
    #[test]
    fn only_a_trace_is_replaced() {
        use std::os::unix::fs::{lchown, symlink};
        let dir = tempfile::tempdir().unwrap();
        let [path, other, link] = ["t", "other", "link"].map(|name| dir.path().join(name));
        fs::write(&other, "precious").unwrap();
        let why = |path: &Path| Fresh::beside(path).err().map(|why| why.message).unwrap_or_default();
        assert!(why(&other).contains("is no trace"), "{}", why(&other));
        symlink("other", &link).unwrap();
        assert!(why(&link).contains("is no trace"), "{}", why(&link));
        if crate::sys::euid() == 0 {
            for target in ["other", "t", "none"] {
                fs::remove_file(&link).unwrap();
                symlink(target, &link).unwrap();
                lchown(&link, Some(1000), Some(1000)).unwrap();
                fs::write(&path, file::MAGIC).unwrap();
                assert!(why(&link).contains("a link of another user"), "{target}: {}", why(&link));
            }
        }
        assert_eq!(fs::read(&other).unwrap(), b"precious");
        assert!(!dir.path().join("none").exists());
        // A new one that is not to be goes again.
        let new = dir.path().join("new");
        drop(Fresh::beside(&new).unwrap());
        assert!(!new.exists());
    }
}
