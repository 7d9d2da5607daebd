//! What the library tells of a volume, as the data that is printed and sent.

mod people;

use crate::clock;
use crate::control::{
    CheckpointData, CleanData, CleanEstimateData, CleanerData, DeviceData, ForgetData, ForgetNameData, ForgetPlanData,
    LayingData, MmpData, PART_ENTRIES, RecoveryData, RestData, ScrubData, ScrubFindingData, ScrubbedData, SegmentData,
    ShedData, VolumeInfo,
};
use crate::error::Fail;
use crate::opening;
use crate::output::printable;
use crate::size::show_bytes;
use crate::space::SpaceData;
use crate::states::{self, no_text};
use crate::when;
use nenrin_core::heartbeat::Said;
use nenrin_core::{
    At, CheckpointInfo, CheckpointsRest, Clean, CleanEstimate, Counters, DamagedRead, DamagedReads, DeviceHealth,
    ForgetPlan, ForgetStatus, Fs, JoinStatus, LayingStatus, LostWrites, MountOptions, OrderStatus, Rest as CleanerRest,
    Scrub, ScrubFinding, SegmentInfo, SegmentState, ShedInfo, Standing, Usage,
};
use nenrin_format::superblock::Scrubbed;
use nenrin_format::{BLOCK_BYTES, Ino};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub use people::{show_checkpoints, show_segments, show_snapshots, show_state, show_volume};

/// What a failed write means for who uses the volume.
pub fn failure(why: &str) -> String {
    format!(
        "a write failed, so the volume is read-only: {why}; what was acknowledged before is safe, nothing is any more; \
         unmount, see to the device, and mount again"
    )
}

/// Why a volume that was to be written to is read-only.
pub fn why_read_only(fs: &Fs) -> Option<String> {
    let damaged =
        |why: &String| format!("damaged, so mounted read-only: {why}; unmount it, then nenrin check tells more");
    fs.failed().map(|why| failure(&why)).or_else(|| fs.recovery_report().damage.as_ref().map(damaged))
}

/// Hexadecimal, with the dashes of a UUID.
pub fn show_uuid(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A checkpoint as data.
pub fn checkpoint(info: &CheckpointInfo) -> CheckpointData {
    CheckpointData {
        cno: info.cno.0,
        time: when::show_rfc3339(info.wall.0),
        nanos: info.wall.0,
        name: info.name.as_ref().map(|n| String::from_utf8_lossy(n).into_owned()),
        asked: info.asked,
        frees_bytes: None,
        landmarks_only: false,
        held_back_files: None,
        kept_until: None,
        kept_until_nanos: None,
    }
}

/// What a state that was just made does not have, in a line.
pub fn held_back(made: &CheckpointData) -> Option<String> {
    match made.held_back_files? {
        0 => None,
        1 => Some("of one file that a program has emptied and is still writing anew it has the old content".into()),
        n => Some(format!("of {n} files that programs have emptied and are still writing anew it has the old content")),
    }
}

/// All checkpoints, oldest first.
pub fn checkpoints(fs: &Fs) -> Vec<CheckpointData> {
    fs.checkpoints().iter().map(checkpoint).collect()
}

/// All snapshots, oldest first, with what letting each go would free.
pub fn snapshots(fs: &Fs) -> nenrin_core::Result<Vec<CheckpointData>> {
    let freed = fs.freed_by_each_snapshot()?;
    let frees = |c: &CheckpointInfo| freed.get(&c.cno).map(|freed| freed.blocks() * BLOCK_BYTES as u64);
    let named = fs.checkpoints().into_iter().filter(|c| c.name.is_some());
    Ok(named.map(|c| CheckpointData { frees_bytes: frees(&c), ..checkpoint(&c) }).collect())
}

/// All segments, some at a time; the last ones are returned.
///
/// # Errors
/// What `each` says.
pub fn segments(fs: &Fs, each: &mut dyn FnMut(Vec<SegmentData>) -> Result<(), Fail>) -> Result<Vec<SegmentData>, Fail> {
    let all = fs.segments();
    let (parts, rest) = all.split_at(all.len() / PART_ENTRIES * PART_ENTRIES);
    let data = |some: &[SegmentInfo]| some.iter().map(segment).collect();
    parts.chunks(PART_ENTRIES).try_for_each(|some| each(data(some)))?;
    Ok(data(rest))
}

/// What cleaning would gain: whole segments, since only these count, and files in order.
pub fn clean_estimate(e: &CleanEstimate, order: &OrderStatus, segment_blocks: u64) -> CleanEstimateData {
    CleanEstimateData {
        segments: e.segments,
        moved_bytes: e.live_blocks * BLOCK_BYTES as u64,
        freed_bytes: e.freed_segments * segment_blocks * BLOCK_BYTES as u64,
        scattered_files: order.files,
        scattered_bytes: order.blocks * BLOCK_BYTES as u64,
    }
}

/// How far cleaning came.
pub fn clean(clean: &Clean, segment_blocks: u64) -> CleanData {
    let order = clean.order();
    CleanData {
        done: clean.is_done(),
        out_of_room: clean.is_out_of_room(),
        moved_bytes: clean.moved_blocks() * BLOCK_BYTES as u64,
        moved_bytes_expected: clean.estimate().live_blocks * BLOCK_BYTES as u64,
        freed_bytes: clean.freed_segments() * segment_blocks * BLOCK_BYTES as u64,
        ordering: clean.is_ordering(),
        looked: order.looked,
        scattered_files: order.files,
        scattered_bytes: order.blocks * BLOCK_BYTES as u64,
        ordered_files: order.ordered_files,
        ordered_bytes: order.ordered_blocks * BLOCK_BYTES as u64,
        left_files: order.left_files,
        left_bytes: order.left_blocks * BLOCK_BYTES as u64,
    }
}

fn cleaner(fs: &Fs, usage: &Usage) -> CleanerData {
    let s = fs.cleaner_status();
    let is_full = usage.available_blocks == 0;
    // It is about segments, and what is available about what may be stored in them.
    let rest = if is_full && s.rest == CleanerRest::EnoughRoom { CleanerRest::Full } else { s.rest };
    let state = match s.victims {
        _ if s.ordering => "puts files in order".to_owned(),
        0 if fs.options().read_only => "rests: the volume is read-only".to_owned(),
        0 => format!("rests: {}", rest_words(rest, usage)),
        n => format!("empties {n} segments"),
    };
    CleanerData {
        working: s.victims > 0 || s.ordering,
        ordering: s.ordering,
        state,
        cleaned_segments: s.cleaned_segments,
        moved_bytes: s.moved_blocks * BLOCK_BYTES as u64,
        stuck_segments: s.stuck_segments,
    }
}

/// Why the cleaner rests. Enough room is free for what is available, be that nearly nothing.
fn rest_words(rest: CleanerRest, usage: &Usage) -> &'static str {
    let is_little = usage.available_blocks < usage.total_blocks / 100;
    match rest {
        CleanerRest::EnoughRoom if is_little => {
            "the little that is available needs no cleaning; removing something makes room"
        }
        rest => rest.words(),
    }
}

/// How far scrubbing came; findings are told when it is done.
pub fn scrub(scrub: &Scrub) -> ScrubData {
    let r = scrub.report();
    let (bytes, bytes_expected) = scrub.progress();
    let finding = |f: &ScrubFinding| ScrubFindingData {
        text: f.text.clone(),
        ino: f.ino.map(|i| i.0),
        path: f.path.as_ref().map(|p| String::from_utf8_lossy(p).into_owned()),
        path_bytes: f.path.as_deref().and_then(no_text),
        offset: f.offset,
        addr: f.addr.to_string(),
    };
    ScrubData {
        done: scrub.is_done(),
        bytes,
        bytes_expected,
        has_losses: r.has_losses(),
        nodes: r.nodes,
        blocks: r.blocks,
        copies_damaged: r.copies_damaged,
        copies_mended: r.copies_mended,
        nodes_lost: r.nodes_lost,
        extents_damaged: r.extents_damaged,
        findings: r.findings.iter().filter(|_| scrub.is_done()).map(finding).collect(),
    }
}

fn segment(s: &SegmentInfo) -> SegmentData {
    let state = match s.state {
        SegmentState::Free => "free",
        SegmentState::Open => "open",
        SegmentState::Sealed => "sealed",
        SegmentState::Pending => "pending",
    };
    let kind = match s.kind {
        1 => "chain",
        2 => "data",
        3 => "index",
        _ => "unused",
    };
    SegmentData {
        segment: s.segment.0,
        state: state.into(),
        kind: kind.into(),
        live_blocks: s.live_blocks,
        history_blocks: s.history_blocks,
        nodes: s.nodes,
        chain: s.chain_held,
    }
}

/// Everything about a volume that is not mounted here; the owner adds its own.
pub fn volume(fs: &Fs, device: &Path) -> VolumeInfo {
    let sb = fs.superblock();
    // Where this cannot be read, all of history counts as kept by snapshots.
    while matches!(fs.count_named_history(), Ok(true)) {}
    let usage = fs.usage();
    let report = fs.recovery_report();
    let list = checkpoints(fs);
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    VolumeInfo {
        label: String::from_utf8_lossy(&sb.label).into_owned(),
        uuid: show_uuid(&sb.uuid),
        device: device.display().to_string(),
        device_bytes: no_text(device.as_os_str().as_bytes()),
        format: nenrin_format::features::VERSION,
        profile: sb.profile.name().into(),
        devices: devices(fs),
        made_at: when::show_rfc3339(sb.made_at.0),
        pid: None,
        mounts: Vec::new(),
        mmp: mmp(fs),
        read_only: fs.options().read_only,
        problems: problems(fs).into_iter().chain(sb.scrubbed.as_ref().and_then(scrub_problem)).collect(),
        scrubbed: sb.scrubbed.as_ref().map(scrubbed),
        notes: opening::notes(fs).into_iter().chain(forgetting(fs)).chain(laying(fs)).chain(troubles(fs)).collect(),
        segment_bytes: bytes(u64::from(sb.segment_blocks)),
        segments: sb.segments(),
        total_bytes: bytes(usage.total_blocks),
        live_bytes: bytes(usage.live_blocks),
        history_bytes: bytes(usage.history_blocks + usage.history_index_blocks),
        snapshot_bytes: bytes(usage.snapshot_blocks + usage.snapshot_index_blocks),
        shed: shed(fs),
        shared_bytes: bytes(usage.shared_blocks),
        reserved_bytes: bytes(usage.reserved_blocks),
        available_bytes: bytes(usage.available_blocks),
        space: SpaceData::of(&usage),
        cleaner: cleaner(fs, &usage),
        inodes: usage.inodes,
        checkpoints: list.len() as u64,
        snapshots: list.iter().filter(|c| c.name.is_some()).count() as u64,
        oldest: list.first().cloned(),
        newest: list.last().cloned(),
        checkpoints_rest: checkpoints_rest(fs.checkpoints_rest(), clock::now()),
        generation: sb.generation.0,
        epoch: sb.epoch.0,
        options: options(fs.options()),
        recovery: RecoveryData {
            clean: report.clean,
            partials: report.partials,
            records: report.records,
            dropped: report.dropped,
            bytes_read: report.bytes_read,
            requests: report.requests,
        },
        counters: counters(&fs.counters()),
    }
}

/// What the heartbeat says; nothing where no mount ever had one.
fn mmp(fs: &Fs) -> Option<MmpData> {
    let (on, said) = (fs.mmp().is_some(), fs.said());
    let beat = match &said {
        Said::Nothing => return None,
        Said::Unclear => None,
        Said::InUse(beat) | Said::Ended(beat) => Some(beat),
    };
    Some(MmpData {
        on,
        in_use: said.may_be_in_use(),
        node: said.node(),
        last_beat: beat.map(|b| when::show_rfc3339(b.written_at.0)),
        interval_ms: beat.map(|b| b.interval_millis),
    })
}

/// Why no checkpoints are made by themselves, and until when.
fn checkpoints_rest(rest: Option<CheckpointsRest>, now: i64) -> Option<RestData> {
    let ask = "those you ask for are made";
    Some(match rest? {
        CheckpointsRest::Crowded { for_nanos } => {
            let end = now.saturating_add_unsigned(for_nanos);
            RestData {
                why: format!("so much is written that history of some minutes does not fit beside it; {ask}"),
                until: format!("until there is room, or {}", when::show_zoned(end)),
                until_time: Some(when::show_rfc3339(end)),
            }
        }
        CheckpointsRest::Full => RestData {
            why: format!("the volume is nearly full; {ask}"),
            until: "until 2 % of it are available".into(),
            until_time: None,
        },
    })
}

/// That no checkpoints are made by themselves, in one line.
pub fn show_rest(rest: &RestData) -> String {
    format!("none is made by itself {}: {}", rest.until, rest.why)
}

/// That no checkpoints are made by themselves at the moment, in one line.
pub fn resting(fs: &Fs) -> Option<String> {
    checkpoints_rest(fs.checkpoints_rest(), clock::now()).map(|rest| format!("checkpoints: {}", show_rest(&rest)))
}

/// History of single files that was let go for want of room.
fn shed(fs: &Fs) -> Vec<ShedData> {
    // Where names cannot be read, `check` has more to say.
    let one = |s: ShedInfo| ShedData {
        path: String::from_utf8_lossy(&s.path).into_owned(),
        path_bytes: no_text(&s.path),
        ino: s.ino.0,
        before: s.upto.0,
        time: when::show_rfc3339(s.upto_wall.0),
        shed_at: when::show_rfc3339(s.wall.0),
        history_bytes: s.blocks * BLOCK_BYTES as u64,
    };
    fs.shed().unwrap_or_default().into_iter().map(one).collect()
}

/// What was let go for want of room since these counts, in one line.
pub fn let_go(fs: &Fs, before: &Counters) -> Option<String> {
    let now = fs.counters();
    let checkpoints = now.checkpoints_shed - before.checkpoints_shed;
    let files = (now.inodes_shed - before.inodes_shed) as usize;
    if checkpoints == 0 && files == 0 {
        return None;
    }
    let mut said = vec![format!("{checkpoints} unnamed checkpoints")];
    let newest = shed(fs).into_iter().take(files.min(SHED_SHOWN));
    said.extend(newest.map(|s| format!("history of {} up to {}", printable(&s.path), s.time)));
    Some(format!("room was short, and this was let go: {}", said.join(", ")))
}

/// Files of which `info` and the log tell that their history was let go.
const SHED_SHOWN: usize = 5;

/// What is being forgotten, in one line.
fn forgetting(fs: &Fs) -> Option<String> {
    let s = fs.forget_status()?;
    let waits = s.waits.map_or_else(String::new, |why| format!("; {why}"));
    let how = if fs.options().read_only { "a writable mount goes on with that" } else { "going on" };
    let (left, all) = (s.segments_left, s.segments);
    Some(format!("{} files are forgotten, {left} of {all} segments are still to be wiped: {how}{waits}", s.inodes))
}

/// What is being laid anew, in one line.
fn laying(fs: &Fs) -> Option<String> {
    let on_the_way = fs.health().iter().any(|d| d.target_bytes != d.bytes);
    let s = fs.laying_status().filter(|s| on_the_way || s.segments_left > 0 || s.waits.is_some())?;
    let waits = s.waits.map_or_else(String::new, |why| format!("; it waits: {why}"));
    let how = if fs.options().read_only { "a writable mount goes on with that" } else { "going on" };
    let what = match s.segments_left {
        0 => "their space is not all used as it will be".to_owned(),
        n => format!("{n} segments are still to be moved"),
    };
    Some(format!("devices have changed, and {what}: {how}{waits}"))
}

/// What devices have done wrong, a line for each: others had what was needed, and that may not be so for ever.
fn troubles(fs: &Fs) -> Vec<String> {
    let one = |d: &DeviceHealth| {
        let all = [
            (d.read_errors, "failed read", "failed reads"),
            (d.wrong_blocks, "wrong block", "wrong blocks"),
            (d.write_errors, "failed write", "failed writes"),
        ];
        let told: Vec<_> =
            all.iter().filter(|t| t.0 > 0).map(|t| format!("{} {}", t.0, if t.0 == 1 { t.1 } else { t.2 })).collect();
        let number = d.index + 1;
        let then = format!("nenrin device replace if it goes on, nenrin device forgive {number} to count anew");
        (!told.is_empty()).then(|| format!("device {number} had {} since it is a member; {then}", told.join(", ")))
    };
    fs.health().iter().filter_map(one).collect()
}

/// How far laying space anew came.
pub fn laying_data(fs: &Fs, status: Option<LayingStatus>) -> LayingData {
    let done = status.is_none();
    let LayingStatus { segments_left, segments, waits, is_behind_forgetting } = status.unwrap_or_default();
    let usage = fs.usage();
    LayingData {
        done,
        segments_left,
        segments,
        total_bytes: usage.total_blocks * BLOCK_BYTES as u64,
        available_bytes: usage.available_blocks * BLOCK_BYTES as u64,
        waits,
        is_behind_forgetting,
        taken_back: false,
    }
}

/// What forgetting would take away.
pub fn forget_plan(plan: &ForgetPlan) -> ForgetPlanData {
    use std::os::unix::ffi::OsStringExt;
    let path = |bytes: &[u8]| std::ffi::OsString::from_vec(bytes.to_vec()).into();
    ForgetPlanData {
        inodes: plan.inodes.len() as u64,
        bytes: plan.bytes,
        names: plan.names.iter().map(|n| ForgetNameData { path: path(&n.path), is_now: n.is_now }).collect(),
        snapshots: plan.snapshots.iter().map(checkpoint).collect(),
        shared_with: plan.shared_with.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect(),
        shared_with_bytes: states::no_texts(&plan.shared_with),
        owners: plan.owners.iter().copied().collect(),
        unknown: None,
        elsewhere: Vec::new(),
        elsewhere_bytes: Vec::new(),
        plan: String::new(),
    }
}

/// How far forgetting came.
pub fn forget(fs: &Fs, status: Option<ForgetStatus>) -> ForgetData {
    let done = status.is_none();
    let ForgetStatus { removing, segments_left, waits, .. } = status.unwrap_or_default();
    ForgetData { done, removing, segments_left, segments: fs.superblock().segments(), waits }
}

/// What is wrong, one line each.
pub fn problems(fs: &Fs) -> Vec<String> {
    let absent = absent(fs).into_iter().map(|(_, text)| text);
    let failed = fs.health().into_iter().filter_map(|d| {
        let name = d.name.map_or_else(String::new, |n| format!(" ({n})"));
        Some(format!("device {}{name} failed, and no other has all that it has: {}", d.index + 1, d.failed?))
    });
    let damage = fs.recovery_report().damage.clone();
    let damage = damage.into_iter().chain(damaged_reads(fs)).chain(lost_writes(fs));
    let slots = opening::slots_problem(fs);
    fs.failed().map(|why| failure(&why)).into_iter().chain(damage).chain(absent).chain(failed).chain(slots).collect()
}

/// Devices without which what is written has no second copy, and that in one line.
pub fn absent(fs: &Fs) -> Vec<(u16, String)> {
    let status = fs.join_status();
    let absent = fs.health().into_iter().filter(|d| d.standing != Standing::Active);
    let told = absent.map(|d| {
        let name = d.name.map_or_else(String::new, |n| format!(" ({n})"));
        let why = d.why.map_or_else(String::new, |w| format!(": {w}"));
        let number = d.index + 1;
        let text = match status.as_ref().filter(|s| s.index == d.index).map(progress) {
            Some(progress) => {
                let until = "until then what is written has no second copy";
                format!("device {number}{name} is being brought up to date, {progress}: {until}")
            }
            None => format!("device {number}{name} is absent, so what is written has no second copy{why}"),
        };
        (d.index, text)
    });
    told.collect()
}

/// Reads that were refused because of damage, with what could not be read of the first few files.
fn damaged_reads(fs: &Fs) -> Option<String> {
    let DamagedReads { count, first } = fs.damaged_reads();
    let files: Vec<String> = first.iter().take(DAMAGED_SHOWN).map(|read| damaged_read(fs, read)).collect();
    let refused = if count == 1 { "1 read was".to_owned() } else { format!("{count} reads were") };
    (count > 0).then(|| format!("{refused} refused because of damage: {}; nenrin scrub tells all", files.join("; ")))
}

/// Content that was lost because there was no room for it when the kernel sent it.
pub fn lost_writes(fs: &Fs) -> Option<String> {
    let LostWrites { bytes, files } = fs.lost_writes();
    let named = |ino: &Ino| {
        let path = fs.path_of_inode(At::Live, *ino).map(|p| String::from_utf8_lossy(&p).into_owned());
        path.unwrap_or_else(|| format!("inode {ino}"))
    };
    let shown: Vec<String> = files.iter().take(DAMAGED_SHOWN).map(named).collect();
    let more = if files.len() > DAMAGED_SHOWN { " and others" } else { "" };
    let text = "that programs had written found no room when the kernel sent it, and is lost: zeros, or what was there before, is read in";
    (bytes > 0).then(|| format!("{} {text} {}{more}", show_bytes(bytes), shown.join(", ")))
}

/// Files of which `info` tells what could not be read.
const DAMAGED_SHOWN: usize = 5;

/// What could not be read of a file, in one line.
pub fn damaged_read(fs: &Fs, read: &DamagedRead) -> String {
    let named = fs.path_of_inode(read.at, read.ino).map(|p| String::from_utf8_lossy(&p).into_owned());
    let named = named.unwrap_or_else(|| format!("inode {}", read.ino));
    let state = match read.at {
        At::Past(cno) => format!(" as of checkpoint {cno}"),
        At::Live => String::new(),
    };
    let offset = read.offset.map_or_else(String::new, |offset| format!(" at byte {offset}"));
    format!("{named}{state}{offset} cannot be read: {}", read.why)
}

/// What the last scrub found that is left, for as long as none has found it gone.
pub fn scrub_problem(found: &Scrubbed) -> Option<String> {
    let Scrubbed { ended_at, content, nodes, copies } = found;
    let time = when::show(ended_at.0);
    (!found.is_clean()).then(|| match content.saturating_add(*nodes) {
        0 => format!("the scrub of {time} found {copies} damaged copies that it could not mend"),
        _ => format!(
            "the scrub of {time} found {content} pieces of content and {nodes} index nodes damaged, without a right copy{}",
            repair_soon((*nodes).into())
        ),
    })
}

/// The last scrub as data.
pub fn scrubbed(found: &Scrubbed) -> ScrubbedData {
    ScrubbedData {
        ended_at: when::show_rfc3339(found.ended_at.0),
        nanos: found.ended_at.0,
        extents_damaged: found.content.into(),
        nodes_lost: found.nodes.into(),
        copies_damaged: found.copies.into(),
    }
}

/// What to do about index nodes that are lost.
pub const fn repair_soon(nodes_lost: u64) -> &'static str {
    match nodes_lost {
        0 => "",
        _ => ": unmount it and run nenrin check --repair before more is written, as an older root may have them whole",
    }
}

/// Devices that were not slow when it was last looked at, or are not any more, one line each.
pub fn became_slow(fs: &Fs, before: &[u16], now: &[u16]) -> Vec<String> {
    let health = fs.health();
    let called = |i: &u16| {
        let name = health.iter().find(|d| d.index == *i).and_then(|d| d.name.clone());
        format!("device {}{}", i + 1, name.map_or_else(String::new, |n| format!(" ({n})")))
    };
    let slow = now
        .iter()
        .filter(|i| !before.contains(i))
        .map(|i| format!("{} has become slow: what is new goes to other devices while there is room", called(i)));
    let standing =
        |i: &u16| health.iter().find(|d| d.index == *i).map(|d| (d.standing, d.why.clone().unwrap_or_default()));
    let gone = before.iter().filter(|i| !now.contains(i)).map(|i| match standing(i) {
        Some((Standing::Absent, why)) => format!("{} is left out: {why}", called(i)),
        _ => format!("{} is slow no more", called(i)),
    });
    slow.chain(gone).collect()
}

/// How far a device is that is brought up to date.
pub fn progress(s: &JoinStatus) -> String {
    // Nearly done is not done.
    let percent = s.blocks.saturating_mul(100).checked_div(s.blocks_expected).unwrap_or(0).min(99);
    let unreadable = match s.unreadable_blocks {
        0 => String::new(),
        n => format!(", {n} blocks could not be read"),
    };
    format!("{percent}%{unreadable}")
}

/// Its devices, in the order of their numbers.
fn devices(fs: &Fs) -> Vec<DeviceData> {
    let status = fs.join_status();
    let state = |d: &DeviceHealth| match d.standing {
        Standing::Active if d.failed.is_some() => "failed",
        Standing::Active if d.target_bytes == 0 => "leaving",
        Standing::Active if d.target_bytes < d.bytes => "shrinking",
        Standing::Active if d.slow_since.is_some() => "slow",
        Standing::Active => "active",
        Standing::Joining => "joining",
        Standing::Absent => "absent",
    };
    let why = |d: &DeviceHealth| {
        let joins = status.as_ref().filter(|s| s.index == d.index)?;
        Some(match &joins.replacement {
            Some(path) => format!("being replaced by {path}, {}", progress(joins)),
            None => format!("being brought up to date, {}", progress(joins)),
        })
    };
    let slow = |d: &DeviceHealth| {
        let since = when::show_rfc3339(d.slow_since?.0);
        Some(format!("since {since}, so what is new goes to other devices while there is room"))
    };
    let one = |d: DeviceHealth| DeviceData {
        number: d.index + 1,
        state: state(&d).to_owned(),
        why: why(&d).or_else(|| d.failed.clone()).or_else(|| slow(&d)).or(d.why),
        slow_since: d.slow_since.map(|at| when::show_rfc3339(at.0)),
        path_bytes: d.place.as_ref().and_then(|place| no_text(place.path.as_os_str().as_bytes())),
        path: d.name,
        uuid: show_uuid(&d.uuid),
        bytes: d.bytes,
        target_bytes: d.target_bytes,
        read_errors: d.read_errors,
        wrong_blocks: d.wrong_blocks,
        write_errors: d.write_errors,
    };
    fs.health().into_iter().map(one).collect()
}

fn options(o: &MountOptions) -> BTreeMap<String, String> {
    let seconds = |nanos: u64| format!("{}", nanos as f64 / 1e9);
    BTreeMap::from([
        ("order".into(), format!("{:?}", o.order).to_lowercase()),
        ("barrier".into(), format!("{:?}", o.barrier).to_lowercase()),
        ("commit".into(), seconds(o.commit_nanos)),
        ("checkpoint".into(), seconds(o.checkpoint_nanos)),
        ("cache-size".into(), show_bytes(o.cache_bytes as u64)),
        ("discard".into(), o.discard.to_string()),
    ])
}

fn counters(c: &Counters) -> BTreeMap<String, u64> {
    let all = [
        ("commits", c.commits),
        ("chain_partials", c.chain_partials),
        ("chain_blocks", c.chain_blocks),
        ("data_blocks", c.data_blocks),
        ("left_out_blocks", c.left_out_blocks),
        ("chain_steps_aside", c.chain_steps_aside),
        ("nodes", c.nodes),
        ("flushes", c.flushes),
        ("index_checkpoints", c.index_checkpoints),
        ("checkpoints", c.checkpoints),
        ("checkpoints_shed", c.checkpoints_shed),
        ("inodes_shed", c.inodes_shed),
        ("moved_blocks", c.moved_blocks),
        ("ordered_blocks", c.ordered_blocks),
        ("tree_walks", c.tree_walks),
        ("room_rounds", c.room_rounds),
        ("rooms_ahead", c.rooms_ahead),
        ("shared_commits", c.shared_commits),
        ("overlapped_commits", c.overlapped_commits),
        ("commits_in_turn", c.commits_in_turn),
        ("flushes_awaited", c.flushes_awaited),
        ("bursts", c.bursts),
        ("burst_rests", c.burst_rests),
        ("writes_told_later", c.writes_told_later),
        ("device_waits_locked", c.device_waits_locked),
        ("held_by_own_sync", c.held_by_own_sync),
        ("cut_steps", c.cut_steps),
        ("held_for_memory", c.held_for_memory),
        ("mended_blocks", c.mended_blocks),
        ("joined_blocks", c.joined_blocks),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_room_is_not_said_of_next_to_none() {
        let words = |available_blocks| {
            let usage = Usage { total_blocks: 1000, available_blocks, ..Usage::default() };
            rest_words(CleanerRest::EnoughRoom, &usage)
        };
        assert!(words(9).starts_with("the little that is available"));
        assert_eq!(words(10), CleanerRest::EnoughRoom.words());
    }

    #[test]
    fn that_checkpoints_rest_is_told_with_why_and_until_when() {
        assert_eq!(checkpoints_rest(None, 0), None);
        let second = 1_000_000_000;
        let crowded = checkpoints_rest(Some(CheckpointsRest::Crowded { for_nanos: 90 * second }), 10 * second as i64);
        let crowded = crowded.unwrap();
        assert_eq!(crowded.until_time.as_deref(), Some(&*when::show_rfc3339(100 * second as i64)));
        let said = show_rest(&crowded);
        let end = when::show_zoned(100 * second as i64);
        assert!(said.starts_with(&format!("none is made by itself until there is room, or {end}: so much")), "{said}");
        let full = checkpoints_rest(Some(CheckpointsRest::Full), 0).unwrap();
        assert_eq!(full.until_time, None);
        let said = show_rest(&full);
        assert!(said.starts_with("none is made by itself until 2 % of it are available: the volume is"), "{said}");
    }
}
