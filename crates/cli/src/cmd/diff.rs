//! `nenrin diff`.

use crate::command::{Command, arguments};
use crate::control::{DiffData, DiffResult, Request};
use crate::error::{At as _, FAILURE, Fail, Outcome};
use crate::mounts::Mount;
use crate::output::{self, octal, printable};
use crate::restore::has_hidden;
use crate::shelf::Shelf;
use crate::then::Then;
use crate::{clock, patch, when};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The command.
pub const COMMAND: Command = Command {
    name: "diff",
    usage: &["diff [--json] [--content] DIR FROM [TO]"],
    about: "Tells what differs below a directory between two states",
    options: &[("--content", "also what changed in files, as diff -u shows it"), ("--json", "as JSON")],
    notes: "FROM and TO are states of the past: the number of a checkpoint, a snapshot's name, a time as clocks here show it (the\n\
            newest state not later than the end of that day, minute or second), or \"10 minutes ago\"; without TO, what there is now.\n\
            What was removed and came back as it was, as by nenrin restore, is not told. Letters: + came, - went, M was modified\n\
            (content or attributes, or another file was renamed to its name; of a directory: its entries; with \"(attributes)\"\n\
            behind it: the same content, in JSON attributes_only), R was renamed; ? where one of the states does not know what it\n\
            was (see nenrin retention --help).\n\
            --content writes names as patch(1) reads them: those with control characters, quotes or backslashes, and those that are\n\
            no text, in quotes; --json has the bytes of the latter as path_bytes and from_bytes.",
    examples: &[
        ("diff ~/work monday", "since the snapshot monday"),
        ("diff ~/work/src '1 hour ago' '10 minutes ago'", "between two times"),
        ("diff --content ~/work/src '1 hour ago'", "line by line, for reading or patch(1)"),
    ],
    run,
};

/// Larger files are not compared line by line.
const TEXT_BYTES_MAX: u64 = 16 << 20;
/// How long the search for a small difference of one file may take; then it is a larger one.
const SEARCH_TIME: Duration = Duration::from_secs(2);

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut json, mut content) = (false, false);
    let given = arguments(&COMMAND, parser, 3, |flag, _| {
        json |= flag.is("--json");
        content |= flag.is("--content");
        Ok(flag.is("--json") || flag.is("--content"))
    })?;
    let (Some(dir), Some(from)) = (given.first(), given.get(1)) else {
        return Err(COMMAND.misuse("a directory and a state to compare with are needed"));
    };
    let (mut owner, mount, path) = super::history::inside(Path::new(dir))?;
    let when = |t: &OsString| when::for_owner(&t.to_string_lossy(), clock::now()).map_err(Fail::usage);
    let (from, to) = (when(from)?, given.get(2).map(when).transpose()?);
    let mut all = Vec::new();
    let request = Request::Diff { path: path.clone(), from, to };
    let mut result: DiffResult = owner.call_for_parts(&request, &mut |some: Vec<DiffData>| all.extend(some))?;
    all.append(&mut result.differences);
    result.differences = joined(without_hidden(all));
    let places = content.then(|| Places::new(&mount, &result, &path)).transpose()?;
    let mut code = 0;
    if json {
        for d in &mut result.differences {
            d.content = places.as_ref().and_then(|p| p.content(d, &mut code));
        }
        output::json(&result)?;
        return Ok(code);
    }
    let to = result.to.as_ref().map_or("now".into(), |c| format!("checkpoint {} of {}", c.cno, when::show(c.nanos)));
    output::notice(format!("checkpoint {} of {} and {to}", result.from.cno, when::show(result.from.nanos)));
    for d in &result.differences {
        show(d);
        if let Some(content) = places.as_ref().and_then(|p| p.content(d, &mut code)) {
            output::exactly(&content);
        }
    }
    Ok(code)
}

/// Without what a restore made on its way to its place: that came there, and went from there what it replaced.
fn without_hidden(all: Vec<DiffData>) -> Vec<DiffData> {
    let plain = |d: DiffData| {
        let [was, is] = [d.old_path_as_bytes(), d.path_as_bytes()].map(has_hidden);
        match (was, is) {
            (false, false) => Some(d),
            (true, false) => Some(DiffData { change: "+".into(), from: None, from_bytes: None, ..d }),
            (false, true) => {
                let (path, path_bytes) = (d.from.clone().unwrap_or_default(), d.from_bytes.clone());
                Some(DiffData { change: "-".into(), from: None, from_bytes: None, path, path_bytes, ..d })
            }
            (true, true) => None,
        }
    };
    let mut all: Vec<DiffData> = all.into_iter().filter_map(plain).collect();
    // What went under a name before what came under it.
    all.sort_by(|a, b| a.path_as_bytes().cmp(b.path_as_bytes()).then((a.change != "-").cmp(&(b.change != "-"))));
    all
}

/// A file that went and one that came under the same name, which follow each other: the name was saved to by renaming, and that is how
/// it was modified.
fn joined(all: Vec<DiffData>) -> Vec<DiffData> {
    let mut out: Vec<DiffData> = Vec::with_capacity(all.len());
    for d in all {
        let went = out.last_mut().filter(|went| {
            let are = |kind: &str| went.kind == kind && d.kind == kind;
            let same_path = went.path_as_bytes() == d.path_as_bytes();
            went.change == "-" && d.change == "+" && same_path && (are("file") || are("symlink"))
        });
        match went {
            Some(went) => *went = DiffData { change: "M".into(), replaced: true, ..d },
            None => out.push(d),
        }
    }
    out
}

fn show(d: &DiffData) {
    let slash = if d.kind == "directory" { "/" } else { "" };
    match d.from.as_deref().filter(|_| d.change == "R") {
        Some(from) => output::line(format!("R {}{slash} -> {}{slash}", printable(from), printable(&d.path))),
        None => {
            let only = if d.attributes_only { " (attributes)" } else { "" };
            output::line(format!("{} {}{slash}{only}", d.change, printable(&d.path)));
        }
    }
}

/// Where both states of the directory are seen.
struct Places {
    old: Then,
    new: Then,
}

impl Places {
    fn new(mount: &Mount, result: &DiffResult, path: &Path) -> Result<Self, Fail> {
        let shelf = Shelf::of(mount)?;
        let old = shelf.root(result.from.cno);
        let new = match &result.to {
            Some(to) => shelf.root(to.cno),
            None => mount.point.clone(),
        };
        let of = |root: PathBuf| Then::new(root, path.to_owned()).at(path.display());
        Ok(Self { old: of(old)?, new: of(new)? })
    }

    /// What changed in a file. One that cannot be read is told of, and keeps nobody from the others; unless it only went
    /// meanwhile, that is a failure in the end.
    fn content(&self, d: &DiffData, code: &mut u8) -> Option<String> {
        if d.kind != "file" {
            return None;
        }
        let (from, path) = (d.old_path_as_bytes(), d.path_as_bytes());
        let within = |then: &Then, path: &[u8]| {
            let path = Path::new(OsStr::from_bytes(path));
            then.join(path).map_err(|e| Unread::Failed(Fail::at(path.display(), e)))
        };
        let was = (d.change != "+").then(|| within(&self.old, from));
        let is = (d.change != "-").then(|| within(&self.new, path));
        let name = |prefix: &[u8], path: &[u8], there: bool| {
            if there { quoted(&[prefix, path].concat()) } else { "/dev/null".into() }
        };
        let names = (name(b"a/", from, was.is_some()), name(b"b/", path, is.is_some()));
        let compared = was.transpose().and_then(|was| content_diff(was.as_ref(), is.transpose()?.as_ref(), &names));
        match compared {
            Ok(content) => content,
            Err(Unread::Gone(path)) => {
                output::notice(format!("{}: went while it was compared", printable(&path.to_string_lossy())));
                None
            }
            Err(Unread::Failed(why)) => {
                output::notice(why);
                *code = FAILURE;
                None
            }
        }
    }
}

/// Why a file was not read.
enum Unread {
    /// It is there no more, or something else is.
    Gone(PathBuf),
    Failed(Fail),
}

/// The content of a file; nothing of one that is too large.
fn read(place: Option<&Then>) -> Result<Option<Vec<u8>>, Unread> {
    let Some(place) = place else { return Ok(Some(Vec::new())) };
    let path = place.path();
    let unread = |e: io::Error| match (e.kind(), e.raw_os_error()) {
        (io::ErrorKind::NotFound | io::ErrorKind::NotADirectory, _) | (_, Some(libc::ELOOP | libc::ENXIO)) => {
            Unread::Gone(path.clone())
        }
        _ => Unread::Failed(Fail::at(path.display(), e)),
    };
    let file = place.open().map_err(unread)?;
    if !file.metadata().map_err(unread)?.is_file() {
        return Err(Unread::Gone(path.clone()));
    }
    let mut bytes = Vec::new();
    file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unread)?;
    Ok(Some(bytes).filter(|b| b.len() as u64 <= TEXT_BYTES_MAX))
}

/// A name as patch(1) takes it from a header, and on one line: in quotes, as of a string in C, where it could not be told from what
/// is around it, or is no text.
fn quoted(name: &[u8]) -> String {
    let is_special = |c: char| c.is_control() || matches!(c, '"' | '\\');
    match std::str::from_utf8(name) {
        Ok(text) if !text.contains(is_special) && !text.ends_with(char::is_whitespace) => return text.to_owned(),
        _ => {}
    }
    let mut out = String::from('"');
    for part in name.utf8_chunks() {
        for c in part.valid().chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() => octal(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => out.push(c),
            }
        }
        octal(&mut out, part.invalid());
    }
    out.push('"');
    out
}

/// A name in a header: a tab says where one with blanks ends.
fn in_header(name: &str) -> String {
    let has_blank = !name.starts_with('"') && name.contains(char::is_whitespace);
    format!("{name}{}", if has_blank { "\t" } else { "" })
}

/// How two files differ, for patch(1); nothing where only attributes do.
fn content_diff(old: Option<&Then>, new: Option<&Then>, names: &(String, String)) -> Result<Option<String>, Unread> {
    let (Some(old), Some(new)) = (read(old)?, read(new)?) else {
        return Ok(Some(format!("{} and {} are too large to be compared line by line\n", names.0, names.1)));
    };
    if old == new {
        return Ok(None);
    }
    let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok() && !bytes.contains(&0);
    if !is_text(&old) || !is_text(&new) {
        return Ok(Some(format!("{} and {} differ, and are no text\n", names.0, names.1)));
    }
    let out = patch::unified(&old, &new, &(in_header(&names.0), in_header(&names.1)), SEARCH_TIME);
    Ok(Some(String::from_utf8_lossy(&out).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_restore_makes_on_its_way_is_not_told() {
        let of = |change: &str, path: &str, from: Option<&str>| DiffData {
            change: change.into(),
            replaced: false,
            attributes_only: false,
            path: path.into(),
            from: from.map(str::to_owned),
            path_bytes: None,
            from_bytes: None,
            kind: "directory".into(),
            size: 0,
            content: None,
        };
        let all = vec![
            of("R", "d", Some(".restoring-7-0123456789abcdef0123456789abcdef/copy")),
            of("M", "d/f", Some(".restoring-7-0123456789abcdef0123456789abcdef/copy/f")),
            of("R", ".restoring-7-0123456789abcdef0123456789abcdef/copy", Some("d")),
            of("+", ".restoring-7-0123456789abcdef0123456789abcdef", None),
            of("M", "a", None),
        ];
        let told: Vec<_> = without_hidden(all).into_iter().map(|d| (d.change, d.path, d.from)).collect();
        let told: Vec<_> = told.iter().map(|(c, p, f)| (&**c, &**p, f.as_deref())).collect();
        assert_eq!(told, [("M", "a", None), ("-", "d", None), ("+", "d", None), ("+", "d/f", None)]);
    }

    #[test]
    fn names_in_headers() {
        let header = |name: &str| in_header(&quoted(name.as_bytes()));
        for plain in ["a/f", "a/\u{5e74}\u{8f2a}", "/dev/null", "a/it's"] {
            assert_eq!(header(plain), plain);
        }
        assert_eq!(header("a/two words"), "a/two words\t");
        assert_eq!(header("a/tail "), "\"a/tail \"");
        assert_eq!(header("a/x\ny z"), r#""a/x\ny z""#);
        assert_eq!(header("a/t\tr\re\u{1b}[31m\u{7f}\u{85}"), r#""a/t\tr\re\033[31m\177\302\205""#);
        assert_eq!(header("a/\"q\" \\"), r#""a/\"q\" \\""#);
        assert_eq!(quoted(b"a/gr\xfc\xdf \xe5\xb9\xb4"), "\"a/gr\\374\\337 \u{5e74}\"");
    }
}
