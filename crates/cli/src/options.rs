//! The options of `nenrin mount -o`, as data: what each is called, what it
//! takes, what it does. README's table is checked against [`OPTIONS`].
//!
//! Options that mount(8) and fstab handle themselves are accepted and mean
//! nothing here; anything else that is not listed is an error that names it.

use crate::error::Fail;
use crate::size::{parse_bytes, parse_seconds};
use crate::sys;
use nenrin_core::{BEAT_NANOS, Barrier, Mmp, Order};
use nenrin_fuse::{Cache, Way};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Everything -o can say.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How the library opens the volume.
    pub core: nenrin_core::MountOptions,
    /// State of the past, as asked for: `cp=` and `at=`.
    pub past: Option<String>,
    /// Which of the two said it.
    past_by: Option<&'static str>,
    /// Where written content is kept first.
    pub cache: Cache,
    /// How requests come.
    pub way: Way,
    /// Nobody looks for the end of a write instead of sleeping.
    pub nopoll: bool,
    /// Other users may enter.
    pub allow_other: bool,
    /// The front end checks permissions rather than the kernel.
    pub own_check: bool,
    /// Device files work.
    pub dev: bool,
    /// Set-id programs work.
    pub suid: bool,
    /// Programs do not run.
    pub noexec: bool,
    /// Memory for the index was chosen.
    pub cache_size_given: bool,
    /// No access times.
    pub noatime: bool,
    /// The directory may have entries.
    pub nonempty: bool,
    /// Where to log, absolute.
    pub log: Option<PathBuf>,
    /// Change a mount that is there.
    pub remount: bool,
    /// Each option that was given: its name, and all of it.
    pub given: Vec<(&'static str, String)>,
}

impl Options {
    /// What a mount has from its beginning, so that a remount cannot change it, by the name of the option.
    pub fn lasting(&self) -> BTreeMap<String, String> {
        let core = &self.core;
        let all = [
            ("order", format!("{:?}", core.order)),
            ("barrier", format!("{:?}", core.barrier)),
            ("cache", format!("{:?}", self.cache)),
            ("transport", format!("{:?}", self.way)),
            ("commit", core.commit_nanos.to_string()),
            ("checkpoint", core.checkpoint_nanos.to_string()),
            ("cache-size", core.cache_bytes.to_string()),
            ("nopoll", self.nopoll.to_string()),
            ("discard", core.discard.to_string()),
            ("noatime", self.noatime.to_string()),
            ("norecovery", core.no_recovery.to_string()),
            ("degraded", core.degraded.to_string()),
            ("mmp", core.mmp.is_some().to_string()),
            ("own_check", self.own_check.to_string()),
            ("log", self.log.as_ref().map_or_else(String::new, |path| path.display().to_string())),
        ];
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The first option that was given and says something else than what a mount has ([`Options::lasting`]).
    pub fn first_unlike(&self, mount: &BTreeMap<String, String>) -> Option<&str> {
        let wanted = self.lasting();
        let differs = |name: &str| {
            let name = match name {
                "relatime" | "atime" | "strictatime" => "noatime",
                "nodiscard" => "discard",
                "default_permissions" => "own_check",
                name => name,
            };
            wanted.get(name).is_some_and(|wanted| mount.get(name) != Some(wanted))
        };
        self.given.iter().find(|(name, _)| differs(name)).map(|(_, word)| word.as_str())
    }

    /// The last of these options that was given.
    pub fn last_given(&self, names: &[&str]) -> Option<&'static str> {
        self.given.iter().rev().map(|(name, _)| *name).find(|name| names.contains(name))
    }
}

/// One option.
pub struct OptionInfo {
    /// Its name.
    pub name: &'static str,
    /// What its value is called; empty for none.
    pub value: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
}

const fn flag(name: &'static str, set: fn(&mut Options, &str) -> Result<(), String>) -> OptionInfo {
    OptionInfo { name, value: "", set }
}

const fn with(
    name: &'static str,
    value: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
) -> OptionInfo {
    OptionInfo { name, value, set }
}

/// Seconds that `commit=` and `checkpoint=` take at most: a day.
const NANOS_MAX: u64 = 86_400_000_000_000;
const CACHE_BYTES_MIN: u64 = 1 << 20;

/// All options.
pub const OPTIONS: &[OptionInfo] = &[
    flag("ro", |o, _| {
        o.core.read_only = true;
        Ok(())
    }),
    flag("rw", |o, _| {
        o.core.read_only = false;
        Ok(())
    }),
    with("cp", "N", |o, v| {
        if v.is_empty() || !v.bytes().all(|b| b.is_ascii_digit()) {
            return Err("the number of a checkpoint is needed, as nenrin checkpoint list shows it".into());
        }
        past(o, "cp", v)
    }),
    with("at", "WHEN", |o, v| {
        crate::when::parse(v, crate::clock::now())?;
        past(o, "at", v)
    }),
    with("order", "relaxed|strict", |o, v| {
        o.core.order = choose(v, &[("relaxed", Order::Relaxed), ("strict", Order::Strict)])?;
        Ok(())
    }),
    with("barrier", "sync|checkpoint|none", |o, v| {
        let all = [("sync", Barrier::Sync), ("checkpoint", Barrier::Checkpoint), ("none", Barrier::None)];
        o.core.barrier = choose(v, &all)?;
        Ok(())
    }),
    with("cache", "writethrough|writeback", |o, v| {
        o.cache = choose(v, &[("writethrough", Cache::WriteThrough), ("writeback", Cache::WriteBack)])?;
        Ok(())
    }),
    with("transport", "classic|uring", |o, v| {
        o.way = choose(v, &[("classic", Way::Classic), ("uring", Way::Uring)])?;
        Ok(())
    }),
    flag("nopoll", |o, _| {
        o.nopoll = true;
        Ok(())
    }),
    with("commit", "SECONDS", |o, v| {
        o.core.commit_nanos = seconds(v, COMMIT_NANOS_MIN)?;
        Ok(())
    }),
    with("checkpoint", "SECONDS", |o, v| {
        o.core.checkpoint_nanos = seconds(v, 0)?;
        Ok(())
    }),
    with("cache-size", "SIZE", |o, v| {
        let bytes =
            parse_bytes(v).ok_or("a size is needed, such as 256M: at least 1M, and less than this machine's memory")?;
        if bytes < CACHE_BYTES_MIN {
            return Err("at least 1M is needed, and less than this machine's memory".into());
        }
        o.core.cache_bytes = usize::try_from(bytes).map_err(|_| "larger than this machine's memory")?;
        o.cache_size_given = true;
        Ok(())
    }),
    flag("noatime", |o, _| {
        o.noatime = true;
        Ok(())
    }),
    flag("relatime", |o, _| {
        o.noatime = false;
        Ok(())
    }),
    // As relatime, since there is nothing stricter: a read that the kernel answers is seen by nobody.
    flag("atime", |o, _| {
        o.noatime = false;
        Ok(())
    }),
    flag("strictatime", |o, _| {
        o.noatime = false;
        Ok(())
    }),
    flag("discard", |o, _| {
        o.core.discard = true;
        Ok(())
    }),
    flag("nodiscard", |o, _| {
        o.core.discard = false;
        Ok(())
    }),
    flag("norecovery", |o, _| {
        o.core.no_recovery = true;
        o.core.read_only = true;
        Ok(())
    }),
    flag("degraded", |o, _| {
        o.core.degraded = true;
        Ok(())
    }),
    flag("mmp", |o, _| {
        let owner = sys::random().map_err(|e| format!("no random numbers: {e}"))?;
        o.core.mmp = Some(Mmp { node: sys::node(), owner, interval_nanos: BEAT_NANOS });
        Ok(())
    }),
    flag("allow_other", |o, _| {
        o.allow_other = true;
        Ok(())
    }),
    flag("default_permissions", |o, _| {
        o.own_check = false;
        Ok(())
    }),
    flag("own_check", |o, _| {
        o.own_check = true;
        Ok(())
    }),
    flag("dev", |o, _| {
        o.dev = true;
        Ok(())
    }),
    flag("nodev", |o, _| {
        o.dev = false;
        Ok(())
    }),
    flag("suid", |o, _| {
        o.suid = true;
        Ok(())
    }),
    flag("nosuid", |o, _| {
        o.suid = false;
        Ok(())
    }),
    flag("exec", |o, _| {
        o.noexec = false;
        Ok(())
    }),
    flag("noexec", |o, _| {
        o.noexec = true;
        Ok(())
    }),
    flag("nonempty", |o, _| {
        o.nonempty = true;
        Ok(())
    }),
    with("log", "FILE", |o, v| {
        o.log = Some(std::path::absolute(v).map_err(|_| "the name of a file is needed")?);
        Ok(())
    }),
    flag("remount", |o, _| {
        o.remount = true;
        Ok(())
    }),
];

/// What mount(8) and fstab use among themselves, and pass on.
const FOR_MOUNT8: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "async",
    "lazytime",
    "mand",
    "iversion",
    "diratime",
    "nodiratime",
    "norelatime",
    "nostrictatime",
    "nolazytime",
    "silent",
    "loud",
    "nomand",
    "noiversion",
];
const FOR_MOUNT8_PREFIXES: &[&str] = &[
    "x-",
    "X-",
    "comment=",
    "uhelper=",
    "helper=",
    "user=",
    "fsname=",
    "subtype=",
    // What the kernel shows of a FUSE mount, and mount(8) gives back on a remount.
    "user_id=",
    "group_id=",
    "rootmode=",
    "fd=",
    "max_read=",
    "blksize=",
];

fn past(o: &mut Options, by: &'static str, value: &str) -> Result<(), String> {
    if o.past_by.replace(by).is_some_and(|other| other != by) {
        return Err("cp= and at= exclude each other; leave one of them away".into());
    }
    o.past = Some(value.to_owned());
    Ok(())
}

fn choose<T: Copy>(value: &str, all: &[(&str, T)]) -> Result<T, String> {
    all.iter().find(|(name, _)| *name == value).map(|(_, v)| *v).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(n, _)| *n).collect();
        format!("{value:?} is none of {}", names.join(", "))
    })
}

/// What can be kept: it is looked at every 100 ms, and a commit takes its time.
const COMMIT_NANOS_MIN: u64 = 200_000_000;

fn seconds(value: &str, min: u64) -> Result<u64, String> {
    let range = format!("from {} to {}", min as f64 / 1e9, NANOS_MAX as f64 / 1e9);
    let nanos = parse_seconds(value).ok_or_else(|| format!("seconds are needed, such as 5 or 0.5: {range}"))?;
    if nanos < min || nanos > NANOS_MAX {
        return Err(format!("that is out of range: seconds {range} are possible"));
    }
    Ok(nanos)
}

/// Understands what was given to -o, all of it.
///
/// # Errors
/// An unknown option, a bad value, options that exclude each other.
pub fn parse(given: &[String]) -> Result<Options, Fail> {
    let mut options = Options::default();
    for word in given.iter().flat_map(|g| g.split(',')).map(str::trim).filter(|w| !w.is_empty()) {
        one(&mut options, word)?;
    }
    consistent(&options)?;
    Ok(options)
}

fn one(options: &mut Options, word: &str) -> Result<(), Fail> {
    if FOR_MOUNT8.contains(&word) || FOR_MOUNT8_PREFIXES.iter().any(|p| word.starts_with(p)) {
        return Ok(());
    }
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    if ["sync", "dirsync"].contains(&word) {
        return Err(Fail::usage(format!(
            "mount option {word}: what is written is durable when a program syncs it (fsync, O_SYNC), else within commit=SECONDS \
             (1); a mount that syncs everything by itself there is not: leave it away"
        )));
    }
    let Some(info) = OPTIONS.iter().find(|i| i.name == name) else {
        return Err(Fail::usage(format!("unknown mount option {name:?}; nenrin help mount lists them")));
    };
    match (info.value.is_empty(), value) {
        (true, Some(_)) => return Err(Fail::usage(format!("mount option {name} takes no value"))),
        (false, None) => return Err(Fail::usage(format!("mount option {name} needs a value: {name}={}", info.value))),
        _ => {}
    }
    options.given.push((info.name, word.to_owned()));
    (info.set)(options, value.unwrap_or("")).map_err(|why| Fail::usage(format!("mount option {word}: {why}")))
}

fn consistent(o: &Options) -> Result<(), Fail> {
    if o.core.order == Order::Strict && o.cache == Cache::WriteBack {
        return Err(Fail::usage(
            "order=strict and cache=writeback exclude each other: with writeback the kernel decides what arrives when; \
             leave one of them away",
        ));
    }
    if o.own_check && o.allow_other {
        return Err(Fail::usage(
            "own_check excludes allow_other: only the kernel sees every name that another user walks through; leave \
             one of them away",
        ));
    }
    if o.past.is_some() && o.core.no_recovery {
        return Err(Fail::usage("norecovery excludes cp= and at=: states of the past need the whole log"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_one(text: &str) -> Result<Options, Fail> {
        parse(&[text.to_owned()])
    }

    #[test]
    fn values_arrive() {
        let text =
            "ro,order=strict,barrier=none,commit=0.5,checkpoint=0,cache-size=64M,noatime,discard,nopoll,allow_other";
        let o = parse_one(text).unwrap();
        assert!(o.core.read_only && o.core.discard && o.noatime && o.nopoll && o.allow_other);
        assert_eq!((o.core.order, o.core.barrier), (Order::Strict, Barrier::None));
        assert_eq!((o.core.commit_nanos, o.core.checkpoint_nanos), (500_000_000, 0));
        assert_eq!(o.core.cache_bytes, 64 << 20);
        assert_eq!(parse_one("cache=writeback").unwrap().cache, Cache::WriteBack);
        assert_eq!(parse_one("at=10 minutes ago").unwrap().past.as_deref(), Some("10 minutes ago"));
        assert_eq!(parse_one("cp=7").unwrap().past.as_deref(), Some("7"));
        assert!(parse_one("norecovery").unwrap().core.read_only);
        assert_eq!(parse_one("log=/var/log/work").unwrap().log.as_deref(), Some(std::path::Path::new("/var/log/work")));
    }

    #[test]
    fn what_fstab_uses_means_nothing() {
        let o = parse_one("defaults,rw,nofail,x-systemd.automount,_netdev,user,comment=mine,,").unwrap();
        assert!(!o.core.read_only);
    }

    #[test]
    fn the_last_one_counts() {
        assert!(!parse_one("ro,rw").unwrap().core.read_only);
        assert!(!parse(&["suid".into(), "nosuid".into()]).unwrap().suid);
        assert_eq!(parse_one("cp=1,cp=2").unwrap().past.as_deref(), Some("2"));
        for other in ["atime", "relatime", "strictatime"] {
            assert!(!parse_one(&format!("noatime,{other}")).unwrap().noatime, "{other}");
            assert!(parse_one(&format!("{other},noatime")).unwrap().noatime, "{other}");
        }
    }

    #[test]
    fn what_a_remount_cannot_change_is_found() {
        let mount = parse_one("commit=2,noatime,discard").unwrap().lasting();
        let unlike = |text: &str| parse_one(text).unwrap().first_unlike(&mount).map(str::to_owned);
        for same in ["", "ro,nosuid,dev,noexec", "commit=2.0,noatime,discard", "cache=writethrough,default_permissions"]
        {
            assert_eq!(unlike(same), None, "{same}");
        }
        for other in
            ["commit=30", "relatime", "atime", "nodiscard", "cache=writeback", "own_check", "mmp", "cache-size=8M"]
        {
            assert_eq!(unlike(&format!("ro,{other}")).as_deref(), Some(other));
        }
        let o = parse_one("ro,rw,nodev,dev").unwrap();
        assert_eq!((o.last_given(&["ro", "rw"]), o.last_given(&["suid", "nosuid"])), (Some("rw"), None));
    }

    #[test]
    fn nonsense_is_named() {
        for (text, part) in [
            ("frobnicate", "unknown mount option \"frobnicate\""),
            ("frobnicate=3", "unknown mount option \"frobnicate\""),
            ("ro=1", "ro takes no value"),
            ("cp", "cp needs a value"),
            ("cp=monday", "number of a checkpoint"),
            ("at=2025-99-99", "say a time as"),
            ("order=loose", "\"loose\" is none of relaxed, strict"),
            ("barrier=", "none of sync, checkpoint, none"),
            ("commit=0", "out of range"),
            ("commit=0.1", "from 0.2 to 86400"),
            ("commit=99999999", "from 0.2 to 86400"),
            ("commit=9999999999999999", "from 0.2 to 86400"),
            ("checkpoint=100000", "from 0 to 86400"),
            ("checkpoint=1e9", "seconds are needed, such as 5 or 0.5: from 0 to 86400"),
            ("commit=soon", "seconds are needed"),
            ("sync", "leave it away"),
            ("dirsync", "mount option dirsync: what is written is durable when"),
            ("checkpoint=2d", "seconds are needed"),
            ("cache-size=12", "at least 1M"),
            ("cache-size=big", "a size is needed"),
            ("log=", "the name of a file is needed"),
            ("order=strict,cache=writeback", "exclude each other"),
            ("own_check,allow_other", "own_check excludes allow_other"),
            ("norecovery,cp=1", "excludes"),
            ("cp=1,at=2", "cp= and at= exclude each other"),
            ("at=monday,ro,cp=1", "cp= and at= exclude each other"),
        ] {
            let fail = parse_one(text).unwrap_err();
            assert!(fail.message.contains(part), "{text}: {fail}");
            assert_eq!(fail.code, crate::error::USAGE, "{text}");
        }
    }

    #[test]
    fn readme_lists_every_option() {
        let readme = include_str!("../../../README.md");
        let table = readme.split("## Mount options").nth(1).unwrap().split("\n## ").next().unwrap();
        for info in OPTIONS.iter().filter(|i| !["rw", "remount", "nodiscard"].contains(&i.name)) {
            let found = table.contains(&format!("`{}`", info.name)) || table.contains(&format!("`{}=", info.name));
            assert!(found, "README.md does not list the mount option {}", info.name);
        }
    }
}
