//! `nenrin probe`: which volume is on a device, by its first blocks, for people, scripts and udev.

use crate::command::{Command, arguments};
use crate::encode::{encoded, safe};
use crate::error::{FAILURE, Fail, Outcome, USAGE};
use crate::machine::{self, Patience, Seen, Sign};
use crate::output::{self, printable, table};
use crate::report::show_uuid;
use crate::states::tell_path;
use crate::tag;
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The command.
pub const COMMAND: Command = Command {
    name: "probe",
    usage: &["probe [--json] [DEVICE...]", "probe --udev DEVICE"],
    about: "Tells which volume is on a device, or lists those on the block devices of this machine",
    options: &[
        ("--udev", "as properties for udev, as blkid -p -o udev does; nothing is said where there is no volume"),
        ("--json", "as JSON"),
    ],
    notes: "Only a few blocks are read, nothing is opened for writing, and the volume may be in use. By what is listed it can be\n\
            mounted: nenrin mount LABEL=NAME DIR, nenrin mount UUID=... DIR, and so in /etc/fstab, where make install has put a rule\n\
            for udev. Of several devices of a volume each is listed; one of them is enough to mount it.\n\
            A device that bears the mark of something else before the slots of a volume is that, and not the volume's.\n\
            --udev: ID_FS_TYPE, ID_FS_USAGE, ID_FS_VERSION, ID_FS_UUID and ID_FS_LABEL, the last two also as _ENC, where what is\n\
            neither a letter nor a digit nor one of #+-.:=@_ is \\x and two digits; of several devices ID_FS_UUID_SUB, the device's own.\n\
            exit codes, as blkid(8): 0 there is a volume, 2 there is none, or it cannot be told, 4 called wrongly.",
    examples: &[
        ("probe", "all volumes on the block devices of this machine"),
        ("probe /dev/sdb1", "its label, its UUID"),
        ("probe LABEL=backup", "where the volume with this label is"),
        ("probe --udev /dev/sdb1", "what the rule for udev asks"),
    ],
    run,
};

/// There is no volume.
const NOTHING: u8 = 2;
/// It was called wrongly.
const MISUSE: u8 = 4;

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let mut rest = parser.raw_args()?;
    if rest.next_if(|word| word == machine::LOOK).is_some() {
        machine::look_for_another(rest.map(PathBuf::from).collect());
        return Ok(0);
    }
    let misuse = |fail: Fail| match fail.code {
        USAGE => fail.with_code(MISUSE),
        FAILURE => fail.with_code(NOTHING),
        _ => fail,
    };
    let (mut as_json, mut udev) = (false, false);
    let given = arguments(&COMMAND, parser, usize::MAX, |flag, _| {
        match flag.shown().as_str() {
            "--json" => as_json = true,
            "--udev" => udev = true,
            _ => return Ok(false),
        }
        Ok(true)
    })
    .map_err(misuse)?;
    if udev {
        return match given.as_slice() {
            [device] if !as_json => properties_of(Path::new(device)),
            _ => Err(misuse(COMMAND.misuse("--udev goes with one device, and not with --json"))),
        };
    }
    if given.is_empty() { all(as_json) } else { some(&given, as_json) }
}

/// What udev asks: of one device, and of no other.
fn properties_of(device: &Path) -> Outcome {
    match machine::sign_of(device) {
        Ok(Some(sign)) => {
            output::print(&properties(&sign));
            Ok(0)
        }
        Ok(None) => Ok(NOTHING),
        Err(e) => Err(Fail::at(device.display(), tag::why(&e)).with_code(NOTHING)),
    }
}

/// Whatever a label is, these are lines of the names that are here, each with its value.
fn properties(sign: &Sign) -> String {
    let uuid = |bytes: &[u8; 16]| show_uuid(bytes).into_bytes();
    let mut named = vec![("ID_FS_UUID", uuid(&sign.head.uuid))];
    named.extend(sign.own_of_several().map(|own| ("ID_FS_UUID_SUB", uuid(&own))));
    named.extend(Some(("ID_FS_LABEL", sign.label().to_vec())).filter(|(_, label)| !label.is_empty()));
    let mut out = format!("ID_FS_TYPE=nenrin\nID_FS_USAGE=filesystem\nID_FS_VERSION={}\n", sign.head.version);
    for (name, value) in named {
        out.push_str(&format!("{name}={}\n{name}_ENC={}\n", safe(&value), encoded(&value)));
    }
    out
}

/// Devices that are named.
fn some(given: &[OsString], as_json: bool) -> Outcome {
    let mut seen = Vec::new();
    for one in given {
        let code = |fail: &Fail| if fail.code == USAGE { MISUSE } else { NOTHING };
        let path = tag::device(Path::new(one)).map_err(|fail| Fail { code: code(&fail), ..fail })?;
        seen.push(Seen { sign: machine::sign_of(&path), path: path.into_owned() });
    }
    show(&seen, as_json)?;
    for one in &seen {
        match &one.sign {
            Ok(Some(_)) => {}
            Ok(None) => output::notice(format!("{}: no nenrin volume", one.path.display())),
            Err(e) => output::notice(format!("{}: {}", one.path.display(), tag::why(e))),
        }
    }
    Ok(if seen.iter().all(|s| matches!(s.sign, Ok(Some(_)))) { 0 } else { NOTHING })
}

/// All that there are.
fn all(as_json: bool) -> Outcome {
    let seen = machine::look(machine::block_devices(), Patience::USUAL, |_| false);
    let found = seen.iter().any(|s| matches!(s.sign, Ok(Some(_))));
    if found || as_json {
        show(&seen, as_json)?;
    }
    if !found {
        return Err(Fail::new(format!("no nenrin volume: {}", tag::looked_at(&seen))).with_code(NOTHING));
    }
    if seen.iter().any(|s| s.sign.is_err()) {
        output::notice(tag::looked_at(&seen));
    }
    Ok(0)
}

/// Prints those that hold a volume.
fn show(seen: &[Seen], as_json: bool) -> Result<(), Fail> {
    let found: Vec<(&Path, &Sign)> =
        seen.iter().filter_map(|s| Some((&*s.path, s.sign.as_ref().ok()?.as_ref()?))).collect();
    if as_json {
        return output::json(&found.iter().map(|(path, sign)| as_value(path, sign)).collect::<Vec<_>>());
    }
    if !found.is_empty() {
        let row = |(path, sign): &(&Path, &Sign)| {
            let label = printable(&String::from_utf8_lossy(sign.label()));
            vec![path.display().to_string(), show_uuid(&sign.head.uuid), place(sign), label]
        };
        output::print(&table(&["path", "UUID", "device", "label"], &found.iter().map(row).collect::<Vec<_>>()));
    }
    Ok(())
}

/// Which of its devices it is.
fn place(sign: &Sign) -> String {
    match &sign.root {
        Some(sb) => format!("{} of {}", sb.device_index + 1, sb.members()),
        None => format!("format {}, which is newer", sign.head.version),
    }
}

fn as_value(path: &Path, sign: &Sign) -> Value {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).ok();
    let mut told = json!({
        "device": null,
        "type": "nenrin",
        "version": sign.head.version,
        "uuid": show_uuid(&sign.head.uuid),
        "uuid_sub": sign.own_of_several().map(|own| show_uuid(&own)),
        "number": sign.root.as_ref().map(|sb| sb.device_index + 1),
        "devices": sign.root.as_ref().map(|sb| sb.members()),
        "label": null,
    });
    tell_path(&mut told, "device", path);
    match text(sign.label()) {
        Some(label) => told["label"] = label.into(),
        None => tell_path(&mut told, "label", Path::new(OsStr::from_bytes(sign.label()))),
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_format::Generation;
    use nenrin_format::superblock::SlotHead;

    #[test]
    fn a_version_that_is_not_known_is_told() {
        let head = SlotHead { version: 7, uuid: [0xab; 16], features: [0; 3], generation: Generation(1) };
        let sign = Sign { head, root: None };
        let uuid = "abababab-abab-abab-abab-abababababab";
        assert_eq!(
            properties(&sign),
            format!(
                "ID_FS_TYPE=nenrin\nID_FS_USAGE=filesystem\nID_FS_VERSION=7\nID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\n"
            )
        );
        assert_eq!(place(&sign), "format 7, which is newer");
    }
}
