//! What is compared: file systems and patterns by name.

use crate::error::Fail;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system that can be made and mounted.
pub struct Kind {
    /// Its name in --fs.
    pub name: &'static str,
    /// Its type for mount(8) and the kernel.
    pub fstype: &'static str,
    /// The program that makes it, and its package in Debian.
    pub mkfs: (&'static str, &'static str),
    /// Its arguments before the device: quiet, and over what is there.
    pub flags: &'static [&'static str],
    /// Metadata beyond the data in per cent in the published comparison of 2023: sequential, random.
    pub published: Option<(f64, f64)>,
    /// What a reader of the table must know.
    pub note: &'static str,
}

const fn kind(
    name: &'static str,
    fstype: &'static str,
    mkfs: (&'static str, &'static str),
    flags: &'static [&'static str],
    published: Option<(f64, f64)>,
) -> Kind {
    Kind { name, fstype, mkfs, flags, published, note: "" }
}

const EXT4: (&str, &str) = ("mkfs.ext4", "e2fsprogs");

/// All that are known.
pub const KINDS: &[Kind] = &[
    kind("ext4", "ext4", EXT4, &["-q", "-F"], Some((0.22, 1.34))),
    Kind {
        note: "ext4 whose inode tables are written by mkfs, and not by a thread after the mount",
        ..kind(
            "ext4-full",
            "ext4",
            EXT4,
            &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            Some((0.22, 1.34)),
        )
    },
    kind("xfs", "xfs", ("mkfs.xfs", "xfsprogs"), &["-q", "-f"], Some((0.01, 0.01))),
    kind("btrfs", "btrfs", ("mkfs.btrfs", "btrfs-progs"), &["-q", "-f"], Some((0.17, 1.15))),
    kind("nilfs2", "nilfs2", ("mkfs.nilfs2", "nilfs-tools"), &["-q", "-f"], Some((1.75, 7.01))),
    kind("f2fs", "f2fs", ("mkfs.f2fs", "f2fs-tools"), &["-q", "-f"], Some((0.40, 1.26))),
    kind("exfat", "exfat", ("mkfs.exfat", "exfatprogs"), &[], Some((0.00, 99.93))),
    kind("jfs", "jfs", ("mkfs.jfs", "jfsutils"), &["-q"], Some((1.49, 3.51))),
    kind("nenrin", "fuse.nenrin", ("nenrin", "nenrin"), &["mkfs", "--force"], None),
];

/// A file system with its mount options.
#[derive(Clone)]
pub struct Contender {
    /// As it was named.
    pub label: String,
    /// What it is.
    pub kind: &'static Kind,
    /// For mount -o; may be empty.
    pub options: String,
}

impl Contender {
    /// From `NAME[:OPTION[+OPTION]...]`.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn parse(text: &str) -> Result<Self, Fail> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let known = KINDS.iter().find(|k| k.name == name).ok_or_else(|| {
            let all: Vec<&str> = KINDS.iter().map(|k| k.name).collect();
            Fail::usage(format!("--fs {name:?}: unknown file system; known are {}", all.join(", ")))
        })?;
        Ok(Self { label: text.to_owned(), kind: known, options: options.replace('+', ",") })
    }
    /// What files of it are called.
    pub fn file_name(&self) -> String {
        self.label.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
    }
    /// Whether it is ours.
    pub fn is_ours(&self) -> bool {
        self.kind.name == "nenrin"
    }
    /// The program that makes it.
    pub fn mkfs(&self) -> PathBuf {
        if self.is_ours() { super::own_program() } else { self.kind.mkfs.0.into() }
    }
    /// Version of the program that makes it, in its own words.
    pub fn version(&self) -> String {
        let flag = if self.is_ours() { "--version" } else { "-V" };
        let Ok(out) = Command::new(self.mkfs()).arg(flag).output() else { return String::new() };
        let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        text.lines().map(str::trim).find(|l| l.bytes().any(|b| b.is_ascii_digit())).unwrap_or_default().to_owned()
    }
}

/// What is done between mount and unmount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Nothing, for five seconds: what mounting costs by itself.
    Idle,
    /// One writer, sequential.
    Sequential,
    /// Eight writers, random places.
    Random,
    /// Small files, one after the other.
    Small,
    /// Random overwrites of 4 KiB, each followed by fdatasync.
    Database,
    /// Appends of 4 KiB, each followed by fsync.
    Log,
    /// A job file of fio.
    Job(PathBuf),
}

/// What all calls of fio share. fallocate is fio's default, and named since it
/// decides whether a file system knows the size beforehand.
const COMMON: &[&str] =
    &["--ioengine=psync", "--invalidate=1", "--fallocate=native", "--randseed=1", "--group_reporting"];
const MEAN_SMALL_BYTES: u64 = 16 << 10;

impl Pattern {
    /// From its name, or the path of a job file.
    ///
    /// # Errors
    /// There is neither.
    pub fn parse(text: &str) -> Result<Self, Fail> {
        Ok(match text {
            "seq" => Self::Sequential,
            "rand" => Self::Random,
            "small" => Self::Small,
            "db" => Self::Database,
            "log" => Self::Log,
            // fio is run elsewhere.
            path if Path::new(path).is_file() => {
                Self::Job(std::path::absolute(path).map_err(|e| Fail::usage(format!("--pattern {path:?}: {e}")))?)
            }
            _ => {
                let why = format!("--pattern {text:?}: neither seq, rand, small, db, log nor a job file of fio");
                return Err(Fail::usage(why));
            }
        })
    }
    /// Its name.
    pub fn name(&self) -> String {
        match self {
            Self::Idle => "idle".into(),
            Self::Sequential => "seq".into(),
            Self::Random => "rand".into(),
            Self::Small => "small".into(),
            Self::Database => "db".into(),
            Self::Log => "log".into(),
            Self::Job(path) => path.file_stem().map_or_else(|| "job".into(), |n| n.to_string_lossy().into_owned()),
        }
    }
    /// The work it stands for, for who knows nothing of patterns.
    pub fn work(&self) -> String {
        match self {
            Self::Idle => "nothing".into(),
            Self::Sequential => "large files written from start to end: copies, video, backups".into(),
            Self::Random => "large files filled in pieces, anywhere: downloads, disk images".into(),
            Self::Small => "many small files: unpacking, source trees".into(),
            Self::Database => "a database: 4 KiB overwritten anywhere, each made safe".into(),
            Self::Log => "a log: 4 KiB appended, each made safe".into(),
            Self::Job(_) => format!("the fio job {}", self.name()),
        }
    }
    /// What it is, for people.
    pub fn about(&self) -> &'static str {
        match self {
            Self::Idle => "mounted for five seconds, nothing written, unmounted",
            Self::Sequential => "one writer, sequential, 256 KiB at a time",
            Self::Random => "eight writers, random places, 256 KiB at a time",
            Self::Small => "files of 4 to 28 KiB, one after the other; an eighth of the size",
            Self::Database => "random overwrites of 4 KiB, fdatasync after each; a 32nd of the size",
            Self::Log => "appends of 4 KiB, fsync after each; a 64th of the size",
            Self::Job(_) => "a job file of fio",
        }
    }
    /// Calls of fio, without directory and output; `bytes` is the size asked for.
    pub fn calls(&self, bytes: u64) -> Vec<Vec<String>> {
        let call = |name: &str, words: &[String]| {
            let mut out = vec![format!("--name={name}")];
            out.extend(COMMON.iter().map(|w| (*w).to_owned()));
            out.extend_from_slice(words);
            out
        };
        let s = |w: &str| w.to_owned();
        let part = |n: u64| (bytes / n).max(1 << 20) / 4096 * 4096;
        match self {
            Self::Idle => Vec::new(),
            Self::Sequential => {
                vec![call(
                    "seq",
                    &[s("--rw=write"), s("--bs=256k"), s("--fsync_on_close=1"), format!("--size={bytes}")],
                )]
            }
            Self::Random => {
                let size = format!("--size={}", part(8));
                vec![call(
                    "rand",
                    &[s("--rw=randwrite"), s("--bs=256k"), s("--fsync_on_close=1"), s("--numjobs=8"), size],
                )]
            }
            Self::Small => {
                let files = format!("--nrfiles={}", (part(8) / MEAN_SMALL_BYTES).max(1));
                let words = [
                    "--rw=write",
                    "--bs=4k",
                    "--filesize=4k-28k",
                    "--create_on_open=1",
                    "--openfiles=1",
                    "--file_service_type=sequential",
                ];
                let words: Vec<String> = words.iter().map(|w| s(w)).chain([files]).collect();
                vec![call("small", &words)]
            }
            Self::Database => {
                let size = format!("--size={}", part(32));
                let file = s("--filename=table");
                vec![
                    call(
                        "table",
                        &[s("--rw=write"), s("--bs=256k"), s("--fsync_on_close=1"), file.clone(), size.clone()],
                    ),
                    call("db", &[s("--rw=randwrite"), s("--bs=4k"), s("--fdatasync=1"), file, size]),
                ]
            }
            Self::Log => {
                let size = format!("--size={}", part(64));
                // An appended file is not preallocated.
                let mut one = call("log", &[s("--rw=write"), s("--bs=4k"), s("--fsync=1"), s("--file_append=1"), size]);
                one.iter_mut().filter(|w| w.starts_with("--fallocate")).for_each(|w| *w = s("--fallocate=none"));
                vec![one]
            }
            Self::Job(path) => vec![vec![path.display().to_string()]],
        }
    }
}

/// Patterns that are known by name.
const NAMED: [Pattern; 6] =
    [Pattern::Idle, Pattern::Sequential, Pattern::Random, Pattern::Small, Pattern::Database, Pattern::Log];

/// Refuses what results and files could not be told apart of.
///
/// # Errors
/// Two have one name, or one that of another.
pub fn are_distinct(contenders: &[Contender], patterns: &[Pattern]) -> Result<(), Fail> {
    for (i, c) in contenders.iter().enumerate() {
        if let Some(other) = contenders[..i].iter().find(|other| other.file_name() == c.file_name()) {
            let text = format!("--fs {},{}: both would have one name; leave one out", other.label, c.label);
            return Err(Fail::usage(text));
        }
    }
    for (i, p) in patterns.iter().enumerate() {
        let name = p.name();
        let shown = if let Pattern::Job(path) = p { path.display().to_string() } else { name.clone() };
        if matches!(p, Pattern::Job(_)) && NAMED.iter().any(|named| named.name() == name) {
            let text = format!("--pattern {shown}: {name} is a pattern of its own; give the job file another name");
            return Err(Fail::usage(text));
        }
        if patterns[..i].iter().any(|other| other.name() == name) {
            return Err(Fail::usage(format!("--pattern {shown}: there is one called {name} already; leave one out")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line for each pair of which results could not be told apart.
    #[test]
    fn what_has_one_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let job = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path.to_str().unwrap().to_owned()
        };
        let [idle, seq, mail, other] = ["idle.fio", "seq", "mail.fio", "b/mail"].map(job);
        let told = |fs: &[&str], patterns: &[&str]| {
            let contenders: Vec<Contender> = fs.iter().map(|text| Contender::parse(text).unwrap()).collect();
            let patterns: Vec<Pattern> = patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect();
            are_distinct(&contenders, &patterns).err().map(|fail| fail.message).unwrap_or_default()
        };
        assert_eq!(told(&["ext4", "ext4-full", "ext4:noatime", "xfs"], &["seq", "rand", &mail]), "");
        assert!(told(&["ext4", "xfs", "ext4"], &[]).contains("--fs ext4,ext4: "));
        assert!(told(&["nenrin:a+b", "nenrin:a:b"], &[]).contains("one name"));
        for (patterns, what) in [(["seq", "seq"], "called seq"), ([&*mail, &*other], "called mail")] {
            assert!(told(&["ext4"], &patterns).contains(what), "{patterns:?}");
        }
        for pattern in [&idle, &seq] {
            let said = told(&["ext4"], &[pattern]);
            assert!(said.contains(pattern) && said.contains("a pattern of its own"), "{said}");
        }
    }

    #[test]
    fn names_of_contenders() {
        let c = Contender::parse("nenrin:cache=writeback+own_check").unwrap();
        assert!(c.is_ours() && c.options == "cache=writeback,own_check" && c.label.contains(':'));
        assert_eq!(Contender::parse("ext4").unwrap().options, "");
        let said = Contender::parse("zfs").err().unwrap().message;
        assert!(said.contains("zfs") && said.contains("ext4, ext4-full, xfs"), "{said}");
    }

    #[test]
    fn patterns_and_their_jobs() {
        for name in ["seq", "rand", "small", "db", "log"] {
            let p = Pattern::parse(name).unwrap();
            assert_eq!(p.name(), name);
            let calls = p.calls(1 << 30);
            assert!(!calls.is_empty() && calls.iter().flatten().any(|w| w.starts_with("--fallocate=")));
        }
        assert!(Pattern::Random.calls(1 << 30)[0].contains(&format!("--size={}", 128 << 20)));
        assert!(Pattern::parse("/no/such/job").err().unwrap().message.contains("job file"));
        assert!(Pattern::Idle.calls(1 << 30).is_empty());
    }
}
