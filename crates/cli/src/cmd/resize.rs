//! `nenrin resize`.

use super::laying;
use crate::command::{Command, arguments};
use crate::error::Outcome;
use crate::size::parse_bytes;
use std::ffi::OsString;
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "resize",
    usage: &["resize [--device DEVICE] [--json] [DIR] [SIZE|max]"],
    about: "Uses more or less of a device while the volume is in use",
    options: &[
        ("--device DEVICE", "which, by path or number (digits alone), where there are several"),
        ("--json", "as JSON"),
    ],
    notes: "max, the default: all there is, after the partition or the volume below became longer. With SIZE an image file is made as long\n\
            as that, or cut when what lay behind was moved. A partition is made shorter after this, not before. It goes on in the\n\
            background when it is interrupted, and with the next mount; that cuts no image file: the same command, given again, does.\n\
            nenrin device remove --cancel DIR DEVICE takes a shorter SIZE back as long as it is on the way.",
    examples: &[
        ("resize ~/work 20G", "an image file"),
        ("resize ~/work max", "a partition that was made longer"),
        ("resize --device /dev/sdb1 ~/work 500G", "one of several"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut json, mut device) = (false, None::<OsString>);
    let given = arguments(&COMMAND, parser, 2, |flag, parser| {
        match flag.shown().as_str() {
            "--json" => json = true,
            "--device" => device = Some(parser.value()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let is_size = |text: &OsString| text == "max" || text.to_str().and_then(parse_bytes).is_some();
    let (place, size) = match &given[..] {
        [] => (None, None),
        [one] if is_size(one) && !Path::new(one).is_dir() => (None, Some(one)),
        [one] => (Some(one), None),
        [place, size, ..] => (Some(place), Some(size)),
    };
    let bytes = match size {
        Some(text) if text != "max" => Some(laying::size("SIZE", &text.to_string_lossy())?),
        _ => None,
    };
    laying::resize(place.map_or(Path::new("."), Path::new), device.as_deref(), bytes, json)
}
