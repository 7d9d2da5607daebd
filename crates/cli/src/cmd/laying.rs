//! What `nenrin device add`, `device remove` and `nenrin resize` have in common: they wait until space is laid anew.

use super::made::Made;
use super::{forget, mkfs};
use crate::control::{Client, LayingData, Order, Request, VolumeInfo, Wants};
use crate::device;
use crate::error::{At as _, Fail, Outcome};
use crate::output::{self, Progress, shell_quoted};
use crate::size::{parse_bytes, show_bytes};
use crate::target::Target;
use serde_json::json;
use std::ffi::OsStr;
use std::path::Path;

/// Bytes moved between two answers.
const STEP_BYTES: u64 = 16 << 20;

/// How a device that is to be added is made ready.
#[derive(Default)]
pub struct NewDevice {
    /// Make an image file of so many bytes.
    pub size: Option<u64>,
    /// Without reserving its space.
    pub sparse: bool,
    /// Whatever is on it.
    pub force: bool,
}

/// A size on the command line.
pub fn size(name: &str, text: &str) -> Result<u64, Fail> {
    parse_bytes(text).ok_or_else(|| Fail::usage(format!("{name} {text}: a size such as 512M or 10G is needed")))
}

/// The owner of the volume, if it may be changed.
fn writable(target: &mut Target, place: &Path) -> Result<(), Fail> {
    match target.owner()?.hello.read_only {
        true => Err(Fail::at(place.display(), "mounted read-only; mount it writable to change its devices")),
        false => Ok(()),
    }
}

/// `nenrin device add`.
pub fn add(place: &Path, device: &Path, new: &NewDevice, as_json: bool) -> Outcome {
    let mut target = Target::find(place)?;
    writable(&mut target, place)?;
    let space = target.owner()?.shares(device).map_err(|why| Fail::at(device.display(), why))?;
    let made = mkfs::prepare_for(device, new.size, new.sparse, new.force)?;
    let uuid = mkfs::random_uuid().at("/dev/urandom")?;
    let request = Request::DeviceAdd { device: device::absolute(device), uuid, space };
    let owner = target.owner()?;
    let number: u16 = owner.call(&request).map_err(|why| not_added(why, &made, place, device))?;
    let info: Result<VolumeInfo, Fail> = owner.call(&Request::Info);
    if let Some(profile) = info.ok().map(|info| info.profile).filter(|p| ["single", "stripe"].contains(&p.as_str())) {
        output::notice(format!(
            "under {profile} a device that is added is no second copy of anything, and the profile cannot be changed"
        ));
    }
    let which = format!("device {number} ({})", device.display());
    let order = Order { number, uuid, wants: Wants::Stays(0) };
    let later = format!("{which} is a device of it now, and comes into use");
    follow(owner, place, &order, as_json, (&format!("{which} is added"), &later))
}

/// Why a device was not added. What was made for it goes only where it is known to be no device of the volume, nor anybody else's.
fn not_added(why: Fail, made: &Made, place: &Path, device: &Path) -> Fail {
    if why.is_untouched {
        let stays = if made.take_back() { "" } else { "; the file stays, since somebody else may have it by now" };
        return Fail { message: why.message + stays, ..why };
    }
    let (place, device) = (shell_quoted(place), device.display());
    let help = format!("nenrin device list {place} tells whether it is; where not, nothing needs it");
    let message = format!("{}; {device} may be a device of the volume by now, and stays as it is: {help}", why.message);
    Fail { message, ..why }
}

/// `nenrin device remove`.
pub fn remove(place: &Path, which: &OsStr, keep: bool, as_json: bool) -> Outcome {
    let mut target = Target::find(place)?;
    writable(&mut target, place)?;
    let owner = target.owner()?;
    let order: Order = owner.call(&Request::DeviceRemove { device: device::for_owner(which), keep })?;
    let what = format!("device {} {}", order.number, if keep { "stays" } else { "is removed" });
    follow(owner, place, &order, as_json, (&what, &what))
}

/// `nenrin device forgive`.
pub fn forgive(place: &Path, which: &OsStr, as_json: bool) -> Outcome {
    let mut target = Target::find(place)?;
    writable(&mut target, place)?;
    let number: u16 = target.owner()?.call(&Request::DeviceForgive { device: device::for_owner(which) })?;
    match as_json {
        true => output::json(&json!({ "device": number }))?,
        false => output::line(format!("{}: what device {number} did wrong is counted anew", place.display())),
    }
    Ok(0)
}

/// `nenrin resize`.
pub fn resize(place: &Path, which: Option<&OsStr>, bytes: Option<u64>, as_json: bool) -> Outcome {
    let mut target = Target::find(place)?;
    writable(&mut target, place)?;
    let owner = target.owner()?;
    let order: Order = owner.call(&Request::Resize { device: which.map(device::for_owner), bytes })?;
    let what = format!("device {} is resized", order.number);
    follow(owner, place, &order, as_json, (&what, &what))
}

/// Waits until segments lie as they should, and before that for what is being forgotten, which is wiped meanwhile. `what` has happened
/// then, `later` will where it cannot be done now; but not where somebody has taken back what was ordered.
fn follow(owner: &mut Client, place: &Path, order: &Order, as_json: bool, (what, later): (&str, &str)) -> Outcome {
    let mut progress = Progress::new();
    let mut moved = Moved::default();
    let data = loop {
        let step = owner.call(&Request::LayingStep { bytes: STEP_BYTES, order: Some(order.clone()) });
        let data: LayingData = step.map_err(|why| owner.unless_left(why, "moving goes on with the next mount"))?;
        if data.taken_back {
            break data;
        }
        if data.is_behind_forgetting {
            match forget::wipe(owner)?.waits {
                None => continue,
                Some(why) => {
                    break LayingData { waits: Some(format!("what is being forgotten comes first: {why}")), ..data };
                }
            }
        }
        if data.done || data.waits.is_some() {
            break data;
        }
        moved.note(&data);
        progress.at("moving segments", data.segments - data.segments_left.min(data.segments), data.segments);
    };
    drop(progress);
    moved.note(&data);
    if as_json {
        output::json(&json!({
            "device": order.number,
            "done": data.done,
            "taken_back": data.taken_back,
            "segments_moved": moved.segments,
            "segments_left": data.segments_left,
            "total_bytes": data.total_bytes,
            "available_bytes": data.available_bytes,
            "waits": data.waits,
        }))?;
        return Ok(u8::from(!data.done));
    }
    told(place, order, &data, (what, later))
}

/// How many segments were moved, by all answers so far.
#[derive(Default)]
struct Moved {
    segments: u64,
    /// How many there were to move.
    all: u64,
}

impl Moved {
    fn note(&mut self, data: &LayingData) {
        self.all = self.all.max(data.segments);
        // What is taken back is moved again, and of what is done nothing is counted any more.
        self.segments = match data {
            LayingData { done: true, .. } => self.all,
            LayingData { taken_back: true, .. } => self.segments,
            _ => data.segments.saturating_sub(data.segments_left),
        };
    }
}

/// The same in words.
fn told(place: &Path, order: &Order, data: &LayingData, (what, later): (&str, &str)) -> Outcome {
    let shown = place.display();
    if data.taken_back {
        let (number, place) = (order.number, shell_quoted(place));
        let help = format!("nenrin device list {place} tells what is so now");
        let text = format!("what was asked for of device {number} was taken back meanwhile; {help}");
        return Err(Fail::at(shown, text));
    }
    if let Some(why) = &data.waits {
        return Err(Fail::at(shown, format!("{later} as soon as that is possible, but it waits: {why}")));
    }
    let (total, available) = (show_bytes(data.total_bytes), show_bytes(data.available_bytes));
    output::line(format!("{shown}: {what}; {total} in all, {available} available"));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_moved_is_told_as_moved() {
        let data = |segments, segments_left| LayingData {
            done: false,
            segments_left,
            segments,
            total_bytes: 0,
            available_bytes: 0,
            waits: None,
            is_behind_forgetting: false,
            taken_back: false,
        };
        let told = |answers: &[LayingData]| {
            let mut moved = Moved::default();
            answers.iter().for_each(|data| moved.note(data));
            moved.segments
        };
        let done = LayingData { done: true, ..data(0, 0) };
        let waits = LayingData { waits: Some("no room".into()), ..data(10, 7) };
        let taken_back = LayingData { taken_back: true, ..data(0, 0) };
        assert_eq!(told(&[data(10, 9), waits.clone()]), 3);
        assert_eq!(told(&[waits]), 3);
        assert_eq!(told(&[data(10, 9), done.clone()]), 10);
        assert_eq!(told(&[done]), 0);
        assert_eq!(told(&[data(10, 6), taken_back]), 4);
    }
}
