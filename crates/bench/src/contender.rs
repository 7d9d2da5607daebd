//! What is compared: how each contender is named, made and mounted.
//!
//! A name is a kind, how many devices it lies on and how, and mount options: `ext4`, `raw`, `nenrin+cache=writeback+own_check`,
//! `nenrin@4`, `btrfs@2:mirror`.

use std::path::{Path, PathBuf};

use crate::command;
use crate::error::{Error, Result};
use crate::machine;

/// Sorts of contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The loop device itself: the control.
    Raw,
    /// The same, by another thread that is asked as a daemon is: the control of file systems in user space.
    Relay,
    /// A volume behind nenrin's front end that keeps nothing: the control of what is mounted so (crates/fuse/examples/bare.rs).
    Bare,
    /// ext4, the reference of all ratios.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// NILFS2.
    Nilfs2,
    /// F2FS.
    F2fs,
    /// JFS.
    Jfs,
    /// This project.
    Nenrin,
}

impl Kind {
    /// Whether it is the device, without a file system.
    pub fn is_device(self) -> bool {
        matches!(self, Self::Raw | Self::Relay)
    }

    /// Whether a daemon of ours serves it, and not the kernel.
    pub fn has_daemon(self) -> bool {
        matches!(self, Self::Bare | Self::Nenrin)
    }
}

const CLEANERD: &str = "cleanerd";

/// How a contender lies on several devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Spread over all (RAID 0).
    Stripe,
    /// Two copies of everything (RAID 1).
    Mirror,
    /// Everything but one device's part of it, and parity (RAID 5).
    Parity,
    /// A mirror that has lost its last device after the preparation.
    Degraded,
}

/// One contender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    /// Its name, as given.
    pub name: String,
    /// Its sort.
    pub kind: Kind,
    /// Devices that it is made on.
    pub devices: usize,
    /// How it lies on them, where they are several.
    pub layout: Layout,
    /// Mount options beyond the defaults.
    pub options: Vec<String>,
}

impl Contender {
    /// Reads a name.
    pub fn parse(name: &str) -> Result<Self> {
        let mut words = name.split('+');
        let (kind, devices) = place(words.next().unwrap_or_default());
        let (devices, layout) = places(devices)?;
        let kind = match kind {
            "raw" => Kind::Raw,
            "relay" => Kind::Relay,
            "bare" => Kind::Bare,
            "ext4" => Kind::Ext4,
            "xfs" => Kind::Xfs,
            "btrfs" => Kind::Btrfs,
            "nilfs2" => Kind::Nilfs2,
            "f2fs" => Kind::F2fs,
            "jfs" => Kind::Jfs,
            "nenrin" => Kind::Nenrin,
            other => {
                return Err(Error::Refused(format!(
                    "unknown contender `{other}`: there are raw, relay, bare, ext4, xfs, btrfs, nilfs2, f2fs, jfs and nenrin, with \
                     mount options after `+` as in nenrin+cache=writeback, and devices after `@` as in nenrin@4 or btrfs@2:mirror"
                )));
            }
        };
        let options: Vec<String> = words.map(str::to_owned).collect();
        if kind.is_device() && !options.is_empty() {
            return Err(Error::Refused("the raw device has no mount options".to_owned()));
        }
        if devices > 1 && !matches!(kind, Kind::Nenrin | Kind::Btrfs) {
            return Err(Error::Refused(format!("{name}: only nenrin and btrfs lie on several devices")));
        }
        Ok(Self { name: name.to_owned(), kind, devices, layout, options })
    }

    /// Whether nilfs2's cleaner runs beside it: the word `cleanerd`, which is no mount option.
    pub fn has_cleanerd(&self) -> bool {
        self.kind == Kind::Nilfs2 && self.options.iter().any(|o| o == CLEANERD)
    }

    /// The cache mode this contender runs in.
    pub fn cache_mode(&self) -> &str {
        let given = self.options.iter().find_map(|o| o.strip_prefix("cache="));
        match self.kind {
            Kind::Raw | Kind::Relay => "direct I/O",
            Kind::Bare => "writethrough",
            Kind::Nenrin => given.unwrap_or("default (writethrough)"),
            _ => "page cache, write-back",
        }
    }
}

/// The programs that make and mount contenders.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The `nenrin` program, if there is one.
    pub nenrin: Option<PathBuf>,
    /// The program of the control `bare`, if there is one.
    pub bare: Option<PathBuf>,
    /// More words for `nenrin mkfs`.
    pub nenrin_mkfs: Vec<String>,
    /// More mount options for every nenrin contender.
    pub nenrin_mount: Vec<String>,
}

impl Tools {
    /// Why this contender cannot run here; None when it can.
    pub fn missing(&self, contender: &Contender) -> Option<String> {
        let needed = match contender.kind {
            Kind::Raw | Kind::Relay => return None,
            Kind::Nenrin if self.nenrin.is_some() => return None,
            Kind::Nenrin => return Some("no nenrin program: build it (make build) or give --nenrin PATH".to_owned()),
            Kind::Bare if self.bare.is_some() => return None,
            Kind::Bare => {
                let build = "cargo build --release -p nenrin-fuse --example bare";
                return Some(format!(
                    "no program of that control: {build}, and give --bare target/release/examples/bare"
                ));
            }
            Kind::Ext4 => ("mkfs.ext4", "e2fsprogs"),
            Kind::Xfs => ("mkfs.xfs", "xfsprogs"),
            Kind::Btrfs => ("mkfs.btrfs", "btrfs-progs"),
            Kind::Nilfs2 => ("mkfs.nilfs2", "nilfs-tools"),
            Kind::F2fs => ("mkfs.f2fs", "f2fs-tools"),
            Kind::Jfs => ("mkfs.jfs", "jfsutils"),
        };
        let name = needed.0.strip_prefix("mkfs.").unwrap_or_default();
        if !command::find(needed.0) {
            return Some(format!("{} is missing: apt-get install {}", needed.0, needed.1));
        }
        if contender.has_cleanerd() && !command::find("nilfs_cleanerd") {
            return Some("nilfs_cleanerd is missing: apt-get install nilfs-tools".to_owned());
        }
        (!machine::knows(name)).then(|| format!("this kernel has no {name}"))
    }

    /// Version line of the program that makes this contender.
    pub fn version(&self, contender: &Contender) -> Option<(String, String)> {
        let (program, flag) = match contender.kind {
            Kind::Raw | Kind::Relay | Kind::Bare => return None,
            Kind::Ext4 => ("mkfs.ext4".to_owned(), "-V"),
            Kind::Xfs => ("mkfs.xfs".to_owned(), "-V"),
            Kind::Btrfs => ("mkfs.btrfs".to_owned(), "-V"),
            Kind::Nilfs2 => ("mkfs.nilfs2".to_owned(), "-V"),
            Kind::F2fs => ("mkfs.f2fs".to_owned(), "-V"),
            Kind::Jfs => ("mkfs.jfs".to_owned(), "-V"),
            Kind::Nenrin => (self.nenrin.as_ref()?.display().to_string(), "--version"),
        };
        let version = machine::version(&program, &[flag])?;
        Some((if contender.kind == Kind::Nenrin { "nenrin".to_owned() } else { program }, version))
    }

    /// All mount options given for this contender.
    pub fn mount_options(&self, contender: &Contender) -> Vec<String> {
        let common = match contender.kind {
            Kind::Nenrin => self.nenrin_mount.clone(),
            // The default since Linux 6.2 is discard=async, which would punch holes into the image.
            Kind::Btrfs => vec!["nodiscard".to_owned()],
            // On by default there as well.
            Kind::F2fs => vec!["nodiscard".to_owned()],
            _ => Vec::new(),
        };
        common.into_iter().chain(contender.options.iter().filter(|o| *o != CLEANERD).cloned()).collect()
    }

    /// The mkfs command; None for the controls. Nothing discards, and nothing is left for later.
    pub fn mkfs_command(&self, contender: &Contender, devices: &[&Path]) -> Option<Vec<String>> {
        let several = contender.devices > 1;
        let (of_btrfs, profile) = match contender.layout {
            Layout::Stripe => ("-d raid0 -m raid0", "stripe"),
            // What its manual says: metadata in raid5 is not for use.
            Layout::Parity => ("-d raid5 -m raid1", "parity"),
            Layout::Mirror | Layout::Degraded => ("-d raid1 -m raid1", "mirror"),
        };
        let nenrin = self.nenrin.as_ref().map(|p| p.display().to_string()).unwrap_or_default();
        let mut line: Vec<String> = match contender.kind {
            Kind::Raw | Kind::Relay | Kind::Bare => return None,
            Kind::Ext4 => words("mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
            Kind::Xfs => words("mkfs.xfs -q -f -K"),
            Kind::Btrfs if several => words(&format!("mkfs.btrfs -q -f -K {of_btrfs}")),
            Kind::Btrfs => words("mkfs.btrfs -q -f -K"),
            Kind::Nilfs2 => words("mkfs.nilfs2 -q -f -K"),
            Kind::F2fs => words("mkfs.f2fs -q -f -t 0"),
            Kind::Jfs => words("mkfs.jfs -q"),
            Kind::Nenrin => {
                let mut line = vec![nenrin, "mkfs".to_owned(), "--force".to_owned()];
                line.extend(self.nenrin_mkfs.iter().cloned());
                if several {
                    line.extend(["--profile".to_owned(), profile.to_owned()]);
                }
                line
            }
        };
        line.extend(devices.iter().map(|device| device.display().to_string()));
        Some(line)
    }

    /// The mount command; None for the raw device. What has a daemon stays in the foreground, as that.
    pub fn mount_command(&self, contender: &Contender, devices: &[&Path], point: &Path) -> Option<Vec<String>> {
        let first = devices.first()?.display().to_string();
        let mut options = self.mount_options(contender);
        if devices.len() < contender.devices {
            options.push("degraded".to_owned());
        }
        let (source, options) = match contender.kind {
            Kind::Btrfs if contender.devices > 1 => {
                options.extend(devices.iter().map(|device| format!("device={}", device.display())));
                (first, options.join(","))
            }
            _ => {
                let all: Vec<String> = devices.iter().map(|device| device.display().to_string()).collect();
                (all.join(","), options.join(","))
            }
        };
        let mut line = match contender.kind {
            Kind::Raw | Kind::Relay => return None,
            Kind::Ext4 => words("mount -t ext4"),
            Kind::Xfs => words("mount -t xfs"),
            Kind::Btrfs => words("mount -t btrfs"),
            // Not by mount.nilfs2, which would start a cleaner: most of what is done here is too short to need one, and
            // where it does, `cleanerd` starts it with settings that are told.
            Kind::Nilfs2 => words("mount -i -t nilfs2"),
            Kind::F2fs => words("mount -t f2fs"),
            Kind::Jfs => words("mount -t jfs"),
            Kind::Bare => vec![self.bare.as_ref()?.display().to_string()],
            Kind::Nenrin => {
                vec![self.nenrin.as_ref()?.display().to_string(), "mount".to_owned(), "-f".to_owned()]
            }
        };
        if !options.is_empty() {
            line.extend(["-o".to_owned(), options]);
        }
        line.extend([source, point.display().to_string()]);
        Some(line)
    }
}

/// What is before and behind the `@`.
fn place(word: &str) -> (&str, Option<&str>) {
    word.split_once('@').map_or((word, None), |(kind, devices)| (kind, Some(devices)))
}

/// `4` or `4:mirror`.
fn places(text: Option<&str>) -> Result<(usize, Layout)> {
    let Some(text) = text else { return Ok((1, Layout::Stripe)) };
    let (count, layout) = text.split_once(':').unwrap_or((text, "stripe"));
    let layout = match layout {
        "stripe" => Some(Layout::Stripe),
        "mirror" => Some(Layout::Mirror),
        "degraded" => Some(Layout::Degraded),
        "parity" => Some(Layout::Parity),
        _ => None,
    };
    let least = if layout == Some(Layout::Parity) { 3 } else { 2 };
    let count = count.parse().ok().filter(|count| (least..=16).contains(count));
    count.zip(layout).ok_or_else(|| {
        Error::Refused(format!(
            "`@{text}`: 2 to 16 devices (parity from 3), with `:stripe`, `:mirror`, `:parity` or `:degraded` after the number"
        ))
    })
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Tools {
        Tools {
            nenrin: Some("/n".into()),
            bare: Some("/b".into()),
            nenrin_mkfs: vec![],
            nenrin_mount: vec!["checkpoint=5".into()],
        }
    }

    #[test]
    fn names() {
        let c = Contender::parse("nenrin+cache=writeback+own_check").unwrap();
        assert_eq!((c.kind, c.options.len(), c.cache_mode()), (Kind::Nenrin, 2, "writeback"));
        assert_eq!(Contender::parse("ext4").unwrap().kind, Kind::Ext4);
        assert!(Contender::parse("zfs").is_err());
        assert!(Contender::parse("raw+x").is_err() && Contender::parse("relay+x").is_err());
        assert!(Contender::parse("relay").unwrap().kind.is_device());
    }

    #[test]
    fn nothing_discards_at_mkfs() {
        let line = |name| tools().mkfs_command(&Contender::parse(name).unwrap(), &[Path::new("/d")]).unwrap().join(" ");
        assert!(line("ext4").contains("nodiscard"));
        assert!(line("xfs").contains(" -K "));
        assert!(line("btrfs").contains(" -K "));
        assert_eq!(line("nenrin"), "/n mkfs --force /d");
    }

    #[test]
    fn options_of_all_and_of_one() {
        let c = Contender::parse("nenrin+own_check").unwrap();
        let line = tools().mount_command(&c, &[Path::new("/d")], Path::new("/m")).unwrap().join(" ");
        assert_eq!(line, "/n mount -f -o checkpoint=5,own_check /d /m");
        let c = Contender::parse("ext4").unwrap();
        let line = tools().mount_command(&c, &[Path::new("/d")], Path::new("/m")).unwrap().join(" ");
        assert_eq!(line, "mount -t ext4 /d /m");
        let bare = Contender::parse("bare+transport=uring").unwrap();
        let line = tools().mount_command(&bare, &[Path::new("/d")], Path::new("/m")).unwrap().join(" ");
        assert_eq!(line, "/b -o transport=uring /d /m");
        assert!(bare.kind.has_daemon() && !bare.kind.is_device());
        assert!(tools().missing(&bare).is_none() && Tools { bare: None, ..tools() }.missing(&bare).is_some());
    }

    #[test]
    fn several_devices() {
        let c = |name| Contender::parse(name).unwrap();
        assert_eq!((c("nenrin@4").devices, c("nenrin@4").layout), (4, Layout::Stripe));
        assert_eq!((c("btrfs@2:mirror+x").devices, c("btrfs@2:mirror+x").layout), (2, Layout::Mirror));
        for wrong in ["nenrin@1", "nenrin@x", "nenrin@4:raid5", "nenrin@2:parity", "ext4@2", "raw@2"] {
            assert!(Contender::parse(wrong).is_err(), "{wrong}");
        }
        let both = [Path::new("/a"), Path::new("/b")];
        let made = |name| tools().mkfs_command(&c(name), &both).unwrap().join(" ");
        assert_eq!(made("nenrin@2:degraded"), "/n mkfs --force --profile mirror /a /b");
        assert!(made("btrfs@2").ends_with("-d raid0 -m raid0 /a /b"));
        assert!(made("btrfs@3:parity").contains("-d raid5 -m raid1"));
        assert!(made("nenrin@3:parity").contains("--profile parity"));
        let mounted =
            |name, devices: &[&Path]| tools().mount_command(&c(name), devices, Path::new("/m")).unwrap().join(" ");
        assert_eq!(mounted("nenrin@2", &both), "/n mount -f -o checkpoint=5 /a,/b /m");
        assert_eq!(mounted("nenrin@2:degraded", &both[..1]), "/n mount -f -o checkpoint=5,degraded /a /m");
        assert_eq!(mounted("btrfs@2:degraded", &both[..1]), "mount -t btrfs -o nodiscard,degraded,device=/a /a /m");
    }
}
