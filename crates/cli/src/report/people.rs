//! The same for people, in lines without what would steer a terminal: whoever answers for a volume may be any user.

use super::{SHED_SHOWN, show_rest};
use crate::control::{CheckpointData, MmpData, SegmentData, VolumeInfo};
use crate::output::{printable, table};
use crate::size::show_bytes;
use crate::when;
use std::fmt::Write as _;

/// A volume for people.
pub fn show_volume(v: &VolumeInfo) -> String {
    let mut out = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<12} {}", printable(&value));
    };
    let label = if v.label.is_empty() { String::new() } else { format!(" \"{}\"", printable(&v.label)) };
    row("volume", format!("{}{label}", v.uuid));
    row("device", format!("{}, {} in {} segments", printable(&v.device), show_bytes(v.total_bytes), v.segments));
    let several = v.devices.len() > 1;
    if several {
        row("profile", v.profile.clone());
    }
    for d in v.devices.iter().filter(|_| several) {
        let path = d.path.as_deref().map_or_else(String::new, |p| format!(", {}", printable(p)));
        let why = d.why.as_ref().map_or_else(String::new, |w| format!(": {w}"));
        row(&format!("device {}", d.number), format!("{}{why}{path}, {}", d.state, show_bytes(d.bytes)));
    }
    let owner = v.pid.map_or_else(|| "not mounted".to_owned(), |pid| format!("owned by process {pid}"));
    row("state", if v.read_only { format!("{owner}, read-only") } else { owner });
    if let Some(mmp) = &v.mmp {
        row("mmp", show_mmp(mmp));
    }
    for m in &v.mounts {
        let what = m.checkpoint.map_or_else(|| "live".to_owned(), |c| format!("checkpoint {c}"));
        let how = if m.detached { ", detached and still in use" } else { "" };
        row("mounted at", format!("{} ({what}{how})", printable(&m.directory)));
    }
    let percent = |bytes: u64| bytes.saturating_mul(100).checked_div(v.total_bytes).unwrap_or(0);
    v.space.rows(v.inodes).into_iter().for_each(|(name, value)| row(name, value));
    for s in v.shed.iter().take(SHED_SHOWN) {
        row("shed", format!("states of {} up to {}, but for snapshots", printable(&s.path), s.time));
    }
    if let Some(more @ 1..) = v.shed.len().checked_sub(SHED_SHOWN) {
        row("shed", format!("of {more} others; --json lists them"));
    }
    row("shared", format!("{} saved by copies that share", show_bytes(v.shared_bytes)));
    let available = (show_bytes(v.available_bytes), percent(v.available_bytes));
    row("available", format!("{} ({} %): what is free, and history that goes for it", available.0, available.1));
    let c = &v.cleaner;
    let stuck = match c.stuck_segments {
        0 => String::new(),
        n => format!("; {n} segments cannot be emptied"),
    };
    let so_far = format!("{} segments emptied, {} moved", c.cleaned_segments, show_bytes(c.moved_bytes));
    row("cleaner", format!("{}; {so_far}{stuck}", c.state));
    let reach = v.oldest.as_ref().map(|c| format!(", back to {}", when::show(c.nanos))).unwrap_or_default();
    row("checkpoints", format!("{}, {} of them snapshots{reach}", v.checkpoints, v.snapshots));
    if let Some(rest) = &v.checkpoints_rest {
        row("", show_rest(rest));
    }
    let r = &v.recovery;
    let opened = if r.clean { "after a clean unmount".into() } else { format!("recovered {} records", r.records) };
    let dropped = if r.dropped == 0 { String::new() } else { format!(", {} unfinished writes dropped", r.dropped) };
    row("opened", format!("{opened}{dropped}, {} read in {} requests", show_bytes(r.bytes_read), r.requests));
    row(
        "scrubbed",
        match &v.scrubbed {
            None => "never, as far as is known".into(),
            Some(s) if s.is_clean() => format!("{}, nothing damaged was left", when::show(s.nanos)),
            Some(s) => format!("{}, damage was left", when::show(s.nanos)),
        },
    );
    for note in &v.notes {
        row("note", printable(note));
    }
    row("health", if v.problems.is_empty() { "good".into() } else { "NOT GOOD".into() });
    for problem in &v.problems {
        row("problem", printable(problem));
    }
    out
}

/// A state of the past in a few words.
pub fn show_state(c: &CheckpointData) -> String {
    let name = c.name.as_deref().map(|n| format!(", snapshot {}", printable(n))).unwrap_or_default();
    format!("checkpoint {} of {}{name}", c.cno, when::show(c.nanos))
}

/// Checkpoints for people.
pub fn show_checkpoints(list: &[CheckpointData]) -> String {
    let row = |c: &CheckpointData| {
        let kind = match (&c.name, c.asked) {
            (Some(_), _) => "snapshot",
            (None, true) => "asked",
            (None, false) => "timed",
        };
        vec![c.cno.to_string(), when::show(c.nanos), kind.into(), c.name.as_deref().map(printable).unwrap_or_default()]
    };
    table(&["cno", "time", "kind", "name"], &list.iter().map(row).collect::<Vec<_>>())
}

/// Snapshots for people.
pub fn show_snapshots(list: &[CheckpointData]) -> String {
    let row = |c: &CheckpointData| {
        let frees = c.frees_bytes.map(show_bytes).unwrap_or_default();
        vec![c.cno.to_string(), when::show(c.nanos), frees, c.name.as_deref().map(printable).unwrap_or_default()]
    };
    table(&["cno", "time", "frees", "name"], &list.iter().map(row).collect::<Vec<_>>())
}

/// Segments for people.
pub fn show_segments(list: &[SegmentData]) -> String {
    let row = |s: &SegmentData| {
        vec![
            s.segment.to_string(),
            s.state.clone(),
            s.kind.clone(),
            s.live_blocks.to_string(),
            s.history_blocks.to_string(),
            s.nodes.to_string(),
            if s.chain { "held".into() } else { String::new() },
        ]
    };
    let rows: Vec<_> = list.iter().map(row).collect();
    table(&["segment", "state", "kind", "live", "history", "nodes", "chain"], &rows)
}

fn show_mmp(mmp: &MmpData) -> String {
    let node = mmp.node.as_deref().map_or_else(|| "another host".to_owned(), printable);
    let at = mmp.last_beat.as_deref().unwrap_or("an unknown time");
    match (mmp.on, mmp.in_use) {
        (true, _) => {
            let seconds = mmp.interval_ms.unwrap_or_default() / 1000;
            format!("other hosts are shown every {seconds} seconds that {node} has the volume")
        }
        (false, true) if mmp.node.is_none() && mmp.last_beat.is_none() => {
            "something that is no heartbeat lies in its place: who mounts it watches for some seconds whether that changes".into()
        }
        (false, true) => format!("in use on {node}, or that did not end it: last seen {at}"),
        (false, false) => format!("off; {node} had it until {at}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HostClock;
    use crate::control::{MountData, RestData, ShedData};
    use nenrin_core::{Fs, MkfsOptions, MountOptions};
    use nenrin_device::{BlockDevice, MemDevice};
    use std::path::Path;
    use std::sync::Arc;

    /// A volume of which each text is this.
    fn told(text: &str) -> String {
        let (device, clock): (Arc<dyn BlockDevice>, _) = (Arc::new(MemDevice::new(64 << 20)), HostClock::shared());
        nenrin_core::mkfs(&device, &clock, &MkfsOptions::default()).unwrap();
        let fs = Fs::open(vec![device], clock, MountOptions::default()).unwrap();
        let mut v = super::super::volume(&fs, Path::new("/image"));
        let text = || text.to_owned();
        (v.uuid, v.label, v.device, v.profile) = (text(), text(), text(), text());
        let mut device = v.devices[0].clone();
        (device.state, device.why, device.path) = (text(), Some(text()), Some(text()));
        v.devices = vec![device.clone(), device];
        v.mmp =
            Some(MmpData { on: false, in_use: true, node: Some(text()), last_beat: Some(text()), interval_ms: None });
        v.mounts = vec![MountData { directory: text(), device: text(), checkpoint: None, detached: false }];
        v.shed = vec![ShedData {
            path: text(),
            path_bytes: None,
            ino: 1,
            before: 1,
            time: text(),
            shed_at: text(),
            history_bytes: 0,
        }];
        v.cleaner.state = text();
        v.checkpoints_rest = Some(RestData { why: text(), until: text(), until_time: None });
        (v.notes, v.problems) = (vec![text()], vec![text()]);
        show_volume(&v)
    }

    #[test]
    fn no_line_of_a_volume_steers_the_terminal_or_is_two() {
        let (plain, strange) = (told("x"), told("\u{1b}[2J\r\nhealth       good\u{9b}31m"));
        assert!(strange.chars().all(|c| c == '\n' || !c.is_control()), "{strange:?}");
        assert_eq!(strange.lines().count(), plain.lines().count(), "{strange}");
    }
}
