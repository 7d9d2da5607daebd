//! `nenrin device replace`.

use crate::control::{Client, DeviceData, JoinData, Request, VolumeInfo};
use crate::error::{At as _, Fail, Outcome};
use crate::output::{self, Progress};
use crate::size::show_bytes;
use crate::target::Target;
use crate::{device, tag};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// How often the owner is asked how far it is.
const ASK: Duration = Duration::from_millis(200);

/// How it is wished for.
#[derive(Default)]
pub struct Wishes {
    /// Whatever is on the new device.
    pub force: bool,
    /// As JSON.
    pub json: bool,
}

/// Has the device `new` take the place of `old`, and waits until it has.
pub fn replace(place: &Path, old: &OsStr, new: &Path, wishes: &Wishes) -> Outcome {
    tag::refuse(new)?;
    let mut target = Target::find(place)?;
    let owner = target.owner()?;
    if owner.hello.read_only {
        return Err(Fail::at(place.display(), "mounted read-only; mount it writable to change its devices"));
    }
    let space = owner.shares(new).map_err(|why| Fail::at(new.display(), why))?;
    let identity = match device::identity(new) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(is_to_be_made(owner, old, new)),
        identity => identity.at(new.display())?,
    };
    if owner.hello.identities.contains(&identity) {
        return Err(Fail::at(new.display(), "a device of this volume already; name another one"));
    }
    // Before anything is asked of the owner: is it free, and may it be overwritten?
    super::mkfs::may_overwrite(new, wishes.force)?;
    let mut uuid = [0; 16];
    File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut uuid)).at("/dev/urandom")?;
    let old = device::for_owner(old);
    let request = Request::Replace { old, new: device::absolute(new), uuid, space };
    let number: u16 = owner.call(&request)?;
    follow(owner, place, new, (number, uuid), wishes.json)
}

/// What is to take the place of a device is not there: how a file for it is made.
fn is_to_be_made(owner: &mut Client, old: &OsStr, new: &Path) -> Fail {
    let info: Option<VolumeInfo> = owner.call(&Request::Info).ok();
    let is_meant = |d: &DeviceData| {
        let same =
            |path: &String| Path::new(path) == Path::new(old) || Path::new(path) == device::absolute(Path::new(old));
        let number = old.to_str().and_then(device::number);
        number.map_or_else(|| d.path.as_ref().is_some_and(same), |number| number == Some(d.number))
    };
    let bytes = info.iter().flat_map(|i| &i.devices).find(|d| is_meant(d)).map(|d| d.target_bytes.max(d.bytes));
    let size = bytes.map_or_else(
        || "SIZE".to_owned(),
        |bytes| match bytes % (1 << 20) {
            0 => format!("{}M", bytes >> 20),
            _ => bytes.to_string(),
        },
    );
    let place = new.display();
    Fail::at(&place, format!("is not there; name a device, or make a file for it first: fallocate -l {size} {place}"))
}

/// Gives up what is under way.
pub fn cancel(place: &Path) -> Outcome {
    let mut target = Target::find(place)?;
    let stopped: bool = target.owner()?.call(&Request::ReplaceCancel)?;
    if !stopped {
        return Err(Fail::at(place.display(), "no device is being replaced"));
    }
    output::line(format!("{}: the new device is not used; the old one goes on", place.display()));
    Ok(0)
}

/// Waits until the device `uuid` has the place `number`, or is not to have it any more.
fn follow(owner: &mut Client, place: &Path, new: &Path, (number, uuid): (u16, [u8; 16]), json: bool) -> Outcome {
    let mut progress = Progress::new();
    let data = loop {
        let data: Result<JoinData, Fail> = owner.call(&Request::JoinStatus { uuid: Some(uuid) });
        let data = data.map_err(|why| {
            let shown = new.display();
            let begins = "the old device goes on, and mounted again, the same command with --force begins anew";
            owner.unless_left(why, &format!("unless nenrin device list shows {shown}, {begins}"))
        })?;
        if data.done {
            break data;
        }
        progress.at("copying", data.bytes, data.bytes_expected);
        thread::sleep(ASK);
    };
    drop(progress);
    ended(&data, place, new, number, json)
}

/// Says how it ended.
fn ended(data: &JoinData, place: &Path, new: &Path, number: u16, json: bool) -> Outcome {
    if json {
        let mut told = serde_json::to_value(data).map_err(|e| Fail::new(e.to_string()))?;
        told["device"] = number.into();
        output::json(&told)?;
        return Ok(u8::from(data.failed.is_some() || data.unreadable_bytes > 0));
    }
    if let Some(why) = &data.failed {
        return Err(Fail::at(new.display(), format!("{why}; it is not used, and the old device goes on")));
    }
    let lost = match data.unreadable_bytes {
        0 => String::new(),
        n => format!(
            "; {} could be read nowhere: keep the old device, which may give it once more; nenrin scrub tells what was there",
            show_bytes(n)
        ),
    };
    let (place, new) = (place.display(), new.display());
    output::line(format!("{place}: {new} is device {number} now, {} copied{lost}", show_bytes(data.bytes)));
    Ok(u8::from(data.unreadable_bytes > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who goes by the exit code must not throw the old device away where it may still have what was lost.
    #[test]
    fn lost_content_is_no_success() {
        let data = |unreadable_bytes, failed: Option<&str>| JoinData {
            done: true,
            bytes: 1 << 20,
            bytes_expected: 1 << 20,
            unreadable_bytes,
            failed: failed.map(str::to_owned),
            taken_back: false,
        };
        let code = |data: &JoinData, json| match ended(data, Path::new("mnt"), Path::new("new"), 2, json) {
            Ok(code) => code,
            Err(why) => why.code,
        };
        for json in [false, true] {
            assert_eq!(code(&data(0, None), json), 0);
            assert_eq!(code(&data(8192, None), json), 1);
            assert_eq!(code(&data(0, Some("it is full")), json), 1);
        }
    }
}
