//! The names by which other programs call this one: mount(8), mkfs(8) and
//! fsck(8) look for a helper with the type in its name.
//!
//! | name | called by | arguments |
//! |---|---|---|
//! | mount.nenrin, mount.fuse.nenrin | mount(8), fstab | DEVICE DIR [-sfnvrw] [-N ns] [-o OPTIONS] [-t TYPE] |
//! | umount.nenrin, umount.fuse.nenrin | umount(8) | DIR [-flnrv] [-N ns] [-t TYPE] |
//! | mkfs.nenrin | mkfs(8) | as `nenrin mkfs` |
//! | fsck.nenrin | fsck(8), at boot | [-apyn] DEVICE |

use crate::cmd::{check, mkfs, mount, umount};
use crate::command::text_value;
use crate::error::{At, Fail, Outcome};
use crate::output::shell_quoted;
use crate::{control, device, members, output, tag};
use nenrin_device::OpenMode;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A name, and what the program does when it is called by it.
pub struct Helper {
    /// The name.
    pub name: &'static str,
    /// The command that it is a form of.
    pub command: &'static str,
    run: fn(&mut lexopt::Parser) -> Outcome,
}

const fn helper(name: &'static str, command: &'static str, run: fn(&mut lexopt::Parser) -> Outcome) -> Helper {
    Helper { name, command, run }
}

/// All of them; scripts/install.sh reads the names here.
pub const HELPERS: &[Helper] = &[
    helper("mount.nenrin", "mount", mount_helper),
    helper("mount.fuse.nenrin", "mount", mount_helper),
    helper("umount.nenrin", "umount", umount_helper),
    helper("umount.fuse.nenrin", "umount", umount_helper),
    helper("mkfs.nenrin", "mkfs", |parser| (mkfs::COMMAND.run)(parser)),
    helper("fsck.nenrin", "check", |parser| fsck(parser).map_err(check::misuse)),
];

/// mount(8) and umount(8): wrong call, and failure.
const MOUNT_MISUSE: u8 = 1;
const MOUNT_FAILED: u8 = 32;

/// Runs as the helper called `name`; `None` when it is no such name.
pub fn run(name: &str, arguments: Vec<OsString>) -> Option<Outcome> {
    let helper = HELPERS.iter().find(|helper| helper.name == name)?;
    Some((helper.run)(&mut lexopt::Parser::from_args(arguments)))
}

fn mount_helper(parser: &mut lexopt::Parser) -> Outcome {
    for_mount8(mount_as_asked(parser))
}

/// As mount(8) and umount(8) count.
fn for_mount8(outcome: Outcome) -> Outcome {
    let outcome = outcome.and_then(|code| output::failed().map_or(Ok(code), Err));
    outcome.map_err(|f| match f.code {
        0 => f,
        crate::error::USAGE => f.with_code(MOUNT_MISUSE),
        _ => f.with_code(MOUNT_FAILED),
    })
}

fn mount_as_asked(parser: &mut lexopt::Parser) -> Outcome {
    let mut call = mount::Call::by_mount8();
    let mut positional: Vec<OsString> = Vec::new();
    let mut fake = false;
    while let Some(arg) = parser.next()? {
        match arg {
            lexopt::Arg::Value(v) if positional.len() < 2 => positional.push(v),
            lexopt::Arg::Short('o') => call.options.push(text_value(parser)?),
            lexopt::Arg::Short('f') => fake = true,
            // Sloppy: unknown options are ignored by who supports it. We rather say what is wrong.
            lexopt::Arg::Short('s' | 'n' | 'v') => {}
            lexopt::Arg::Short('r') => call.options.push("ro".to_owned()),
            lexopt::Arg::Short('w') => call.options.push("rw".to_owned()),
            lexopt::Arg::Short('t') => drop(parser.value()?),
            lexopt::Arg::Short('N') => in_own_space(&parser.value()?, "mount DEVICE DIR")?,
            other => return Err(Fail::from(other.unexpected())),
        }
    }
    let [device, directory] = positional.as_slice() else {
        return Err(Fail::usage("a device and a directory are needed: mount.nenrin DEVICE DIR [-o OPTIONS]"));
    };
    if fake {
        return crate::options::parse(&call.options).map(|_| 0);
    }
    mount::mount(&call, device, Path::new(directory))
}

/// mount(8) and umount(8) with -N leave it to their helper to go to another mount name space. The owner of a volume is reached by
/// paths, and so are its devices, which are others there: who wants that goes there before.
fn in_own_space(space: &OsStr, what: &str) -> Result<(), Fail> {
    let given = space.to_string_lossy();
    let is_number = !given.is_empty() && given.bytes().all(|b| b.is_ascii_digit());
    let path = if is_number { Path::new("/proc").join(space).join("ns/mnt") } else { PathBuf::from(space) };
    let [own, meant] = [Path::new("/proc/self/ns/mnt"), &path].map(|path| {
        let meta = fs::metadata(path).at(path.display())?;
        Ok::<_, Fail>((meta.dev(), meta.ino()))
    });
    if own? == meant? {
        return Ok(());
    }
    let there = format!("nsenter --mount={} nenrin {what} does that there", shell_quoted(&path));
    Err(Fail::new(format!("-N {given}: nothing is done in another mount name space from here; {there}")))
}

/// So that a plain umount(8), too, returns when everything is on the device.
fn umount_helper(parser: &mut lexopt::Parser) -> Outcome {
    for_mount8(umount_as_asked(parser))
}

fn umount_as_asked(parser: &mut lexopt::Parser) -> Outcome {
    let (mut lazy, mut force, mut directory) = (false, false, None);
    while let Some(arg) = parser.next()? {
        match arg {
            lexopt::Arg::Short('l') => lazy = true,
            lexopt::Arg::Short('f') => force = true,
            lexopt::Arg::Short('n' | 'r' | 'v') => {}
            lexopt::Arg::Short('t') => drop(parser.value()?),
            lexopt::Arg::Short('N') => in_own_space(&parser.value()?, "umount DIR")?,
            lexopt::Arg::Value(v) if directory.is_none() => directory = Some(PathBuf::from(v)),
            other => return Err(Fail::from(other.unexpected())),
        }
    }
    let path = directory.ok_or_else(|| Fail::usage("a directory is needed: umount.nenrin DIR"))?;
    if lazy { umount::detach(&path) } else { umount::umount(&path, force) }
}

/// At boot (-a, -p) there is nothing to repair: mounting recovers. A person who
/// asks gets the whole check.
fn fsck(parser: &mut lexopt::Parser) -> Outcome {
    let (mut automatic, mut device) = (false, None);
    while let Some(arg) = parser.next()? {
        match arg {
            lexopt::Arg::Short('a' | 'p') => automatic = true,
            lexopt::Arg::Short('y' | 'n' | 'f' | 'r' | 'v' | 'V' | 'M' | 'T' | 'R' | 'P') => {}
            // Where to show progress, for who wants that; its number may be attached.
            lexopt::Arg::Short('C') => drop(parser.optional_value()),
            lexopt::Arg::Value(v) if device.is_none() => device = Some(PathBuf::from(v)),
            other => return Err(Fail::from(other.unexpected())),
        }
    }
    let path = device.ok_or_else(|| Fail::usage("a device is needed: fsck.nenrin [-apyn] DEVICE"))?;
    control::is_answered(&path).map_err(|f| f.with_code(check::COULD_NOT))?;
    let path = tag::device(&path).map_err(check::not_found)?;
    if automatic { quick(&path) } else { check::check_device(&path, false, false) }
}

/// Only whether there is a root to mount from.
fn quick(path: &Path) -> Outcome {
    let mode = OpenMode { exclusive: false, ..OpenMode::READER };
    let could_not = |f: Fail| f.with_code(check::COULD_NOT);
    let devices = members::open_named(&members::split(path), mode).map_err(could_not)?.devices;
    // One that lacks something is brought up to date when the volume is mounted.
    let newest =
        |d: &device::Device| nenrin_core::probe(&**d).and_then(|p| p.newest().map(|sb| (sb.generation, sb.clean)));
    let roots: Result<Vec<_>, _> = devices.iter().map(newest).collect();
    match roots.map(|all| all.into_iter().max().is_some_and(|(_, clean)| clean)) {
        Ok(clean) => {
            let state = if clean { "clean" } else { "recovers when it is mounted" };
            output::line(format!("{}: {state}", path.display()));
            output::failed().map_or(Ok(0), |f| Err(could_not(f)))
        }
        Err(e) => Err(could_not(device::describe_volume(path, devices.first().and_then(device::foreign), &e))),
    }
}
