//! Puts the members of a volume together: which device is which, who misses something, who is missing.
//!
//! | the newest table says of a device | what is on it | verdict |
//! |---|---|---|
//! | anything | a table with a change of any device that the newest does not know | diverged |
//! | anything | a table without a device that the newest has, and had without a break since before that | diverged |
//! | active | a root, at most one generation behind | a member |
//! | active | a root further behind | stale: an old copy |
//! | another device, or none | anything older | no member: it was removed, or never quite added |
//! | absent | a table from before it became that | stale: it misses what was written since |
//! | absent | a later table | diverged: it was written to without the others |
//! | active, with another identity | a table that the newest knows | replaced: no member any more |
//!
//! A device that was about to take a member's place has that place in its only root. If the others went on without it
//! since, be it that only their table says so, that root counts for nothing ([`is_unfinished`]).
//!
//! Invariants
//! 1. Nothing is written, and nothing is read but root slots.

use super::{Devices, slots_of};
use crate::breaks::{Break, broken};
use crate::storage::{Probe, SlotState, probe};
use crate::{Error, Result};
use nenrin_device::BlockDevice;
use nenrin_format::BLOCK_BYTES;
use nenrin_format::superblock::{DeviceEntry, Profile, Superblock};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Members put together, and what is told of them.
pub(crate) struct Assembly {
    pub devices: Arc<Devices>,
    /// The roots of all members that count.
    pub found: Probe,
    /// The same of each: its index, and its name where there are several.
    pub probes: Vec<(u16, Option<String>, Probe)>,
    /// The members that are there, also those that missed something, as they were given.
    pub there: Vec<There>,
    /// One line for each device that is left out.
    pub notes: Vec<String>,
    /// Of these, those that are true as long as that member is not active.
    pub about: Vec<(u16, String)>,
    /// One line for each that is none of the volume, or that it does without.
    pub asides: Vec<String>,
}

/// A member that is there, and may be written to.
pub(crate) struct There {
    pub device: Arc<dyn BlockDevice>,
    /// What its block of heartbeats holds.
    pub heartbeat: Vec<u8>,
}

/// A device that was given.
struct Given {
    device: Arc<dyn BlockDevice>,
    name: String,
    probe: Probe,
    /// The root with its newest table.
    newest: Superblock,
}

impl Given {
    const fn index(&self) -> usize {
        self.newest.device_index as usize
    }
    /// Whether only one of the two slots of its newest root has that, with its table: a cut came between them, or one was lost since.
    fn lacks_a_copy(&self) -> bool {
        let generation = self.newest.generation;
        let of_other = |state: &SlotState| !matches!(state, SlotState::Valid(g) if *g == generation);
        let is_twin =
            |block: &u64| slots_of(&self.newest, self.newest.device_index).is_some_and(|both| both.contains(block));
        // What the device does not give it may not take either.
        let is_wrong = |s: &SlotState| of_other(s) && !matches!(s, SlotState::Unreadable(_));
        let table = self.newest.table_generation();
        let is_before = |(block, of): &(u64, u64)| is_twin(block) && *of < table && !broken(Break::OldTwinsKept);
        self.probe.slots.iter().any(|(block, state)| is_twin(block) && is_wrong(state))
            || self.probe.tables.iter().any(is_before)
    }
    /// Its identity within the volume, as it knows it itself.
    fn identity(&self) -> Option<[u8; 16]> {
        identity(&self.newest)
    }
}

/// The identity of the device that holds a root.
fn identity(s: &Superblock) -> Option<[u8; 16]> {
    s.devices.get(usize::from(s.device_index)).map(|d| d.uuid)
}

/// What of a device that the newest table lists.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Member,
    Stale,
    Former,
    Diverged,
    Replaced,
}

/// Whether `own` is the root of a device that took a member's place on itself only, while `other` went on without it.
/// `roots`: how many it has.
fn is_unfinished(own: &Superblock, roots: usize, other: &Superblock) -> bool {
    let index = usize::from(own.device_index);
    let (Some(mine), Some(theirs)) = (own.devices.get(index), other.devices.get(index)) else { return false };
    let same = own.devices.iter().zip(&other.devices).enumerate();
    // Before its first root it may have said who else was absent.
    let marked = other.generation == own.generation
        && other.table_generation() >= own.table_generation()
        && !broken(Break::MarkedUnseen);
    roots == 1
        && (other.generation > own.generation || marked)
        && mine.uuid != theirs.uuid
        && mine.member_generation >= theirs.member_generation
        && same.filter(|(i, _)| *i != index).all(|(_, (a, b))| a.member_generation <= b.member_generation)
}

/// Whether devices go together as one volume, where members may be missing that the others can stand in for. Nothing is written.
///
/// # Errors
/// [`Error::Open`] with which one does not, and what to do.
pub fn go_together(devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
    assemble(devices, true).map(drop)
}

/// Compares what is on a device with what the newest root says of it.
fn verdict(newest: &Superblock, own: &Superblock) -> Verdict {
    let index = usize::from(own.device_index);
    let Some(entry) = newest.devices.get(index) else { return Verdict::Former };
    let known = |(a, b): (&DeviceEntry, &DeviceEntry)| a.member_generation < b.member_generation || says_the_same(a, b);
    if !own.devices.iter().zip(&newest.devices).all(known) || went_on_without(own, newest) {
        return Verdict::Diverged;
    }
    if entry.removed {
        return Verdict::Former;
    }
    if identity(own) != Some(entry.uuid) {
        // Where it went on alone since, that must not go without a word.
        return if own.generation > newest.generation { Verdict::Diverged } else { Verdict::Replaced };
    }
    match entry.active {
        true if own.generation.0.saturating_add(1) < newest.generation.0 => Verdict::Stale,
        true => Verdict::Member,
        false if own.table_generation() < left_at(entry) => Verdict::Stale,
        false => Verdict::Diverged,
    }
}

/// Whether two tables say the same of a place. A program that does not know since when it does leaves that out of every entry.
fn says_the_same(a: &DeviceEntry, b: &DeviceEntry) -> bool {
    *a == DeviceEntry { stands_since: a.stands_since, ..*b }
}

/// Whether a device was replaced in the newest table and nothing else changed since: a cut may have left it its roots. Where more changed it
/// may have gone on alone, and what it has is nobody's to end.
fn was_just_replaced(newest: &Superblock, own: &Superblock) -> bool {
    let mut others = own.devices.iter().zip(&newest.devices).enumerate();
    own.generation == newest.generation
        && own.devices.len() == newest.devices.len()
        && others.all(|(i, (a, b))| i == usize::from(own.device_index) || says_the_same(a, b))
}

/// Since when a device misses something. What else was said of it since (that it is to be removed, and is not) tells nothing of that.
fn left_at(entry: &DeviceEntry) -> u64 {
    if broken(Break::LeftAnew) { entry.member_generation } else { entry.stands_since }
}

/// Whether a table lacks a device that the newest one never did without: who goes on alone leaves out whoever goes on without it, and numbers of
/// changes are counted on in both lines.
fn went_on_without(own: &Superblock, newest: &Superblock) -> bool {
    let never = |(a, b): (&DeviceEntry, &DeviceEntry)| {
        !a.active && !a.removed && b.active && b.stands_since <= a.stands_since && !broken(Break::LinesByNumber)
    };
    own.devices.iter().zip(&newest.devices).any(never)
}

/// Which table, and then which root, is newer.
fn rank(s: &Superblock) -> (u64, u64) {
    (s.table_generation(), s.generation.0)
}

/// Puts a volume together. `degraded`: members may be missing that the others can stand in for.
///
/// # Errors
/// [`Error::Open`] with which device is wrong, or missing, and what to do; device errors.
pub(crate) fn assemble(given: &[Arc<dyn BlockDevice>], degraded: bool) -> Result<Assembly> {
    let (mut notes, mut asides, mut about) = (Vec::new(), Vec::new(), Vec::new());
    let mut given = identify(given, &mut notes)?;
    drop_unfinished(&mut given, &mut asides);
    let Some(newest) = given.iter().map(|g| &g.newest).max_by_key(|s| rank(s)).cloned() else {
        return Err(Error::Open("no device that can be read was given".into()));
    };
    let short = if degraded { leave_out_short(&mut given, &newest, &mut notes) } else { BTreeSet::new() };
    let mut slots: Vec<Option<Given>> = newest.devices.iter().map(|_| None).collect();
    let (mut stale, mut replaced) = (Vec::new(), Vec::new());
    for g in given {
        let (device, used) = (g.device.clone(), g.newest.devices.get(g.index()).map_or(0, |e| e.blocks));
        match place(g, &newest, &mut slots, &mut notes, &mut asides)? {
            (Verdict::Replaced, Some(g)) if was_just_replaced(&newest, &g.newest) => replaced.push((device, used)),
            (Verdict::Stale, g) => stale.extend(g),
            _ => {}
        }
    }
    let there = |i: u16| slots.get(usize::from(i)).is_some_and(Option::is_some);
    let missing: Vec<usize> = (0..slots.len()).filter(|i| slots[*i].is_none() && !newest.devices[*i].removed).collect();
    if !missing.is_empty() {
        let whole = super::Layout::new(newest.segment_blocks, newest.bands.clone()).is_whole(there);
        let used = |i: usize| newest.bands.iter().any(|b| b.members.iter().any(|m| usize::from(m.0) == i));
        // Those that are there can be brought up to date; those on which nothing lies are not needed.
        let (gone, idle): (Vec<usize>, Vec<usize>) =
            missing.iter().filter(|i| stale.iter().all(|g| g.index() != **i)).partition(|i| used(**i));
        if !whole || !gone.is_empty() && !degraded {
            return Err(without(if gone.is_empty() { &missing } else { &gone }, &newest, whole, &notes));
        }
        let lines = gone.iter().map(|i| (*i as u16, format!("device {} is absent", i + 1)));
        about.extend(lines);
        notes.extend(about.iter().map(|(_, line)| line.clone()));
        asides.extend(idle.iter().map(|i| format!("device {} is not there, and nothing lies on it", i + 1)));
    }
    about.extend(stale.iter().map(|g| (g.index() as u16, missed(g))));
    for g in slots.iter().flatten().chain(&stale) {
        check_length(g, &newest).map_err(|text| Error::Open(go_on_without(text, g, &newest, there)))?;
    }
    let several = newest.members() > 1;
    let reason = |i: &usize| match stale.iter().any(|g| g.index() == *i) {
        true => "it missed what was written without it",
        false if short.contains(i) => "it is truncated",
        false => "it was not there when the volume was opened",
    };
    let why = missing.iter().map(|i| (*i as u16, reason(i).to_owned())).collect();
    // So that none is ever more than one behind, and no slot that was being written stays as it is.
    let behind = slots.iter().flatten().any(|g| rank(&g.newest) < rank(&newest) || g.lacks_a_copy());
    let of = |g: &Given| There { device: g.device.clone(), heartbeat: g.probe.heartbeat.clone() };
    let missed = stale.iter().filter(|_| !broken(Break::JoinerUnshown));
    let there = slots.iter().flatten().chain(missed).map(of).collect();
    let (mut devices, mut probes) = (Vec::new(), Vec::new());
    for (i, g) in slots.into_iter().enumerate() {
        match g {
            None => devices.push(None),
            Some(g) => {
                devices.push(Some(g.device));
                probes.push((i as u16, several.then_some(g.name), g.probe));
            }
        }
    }
    let indices: Vec<u16> = stale.iter().map(|g| g.newest.device_index).collect();
    let of_stale: Vec<_> = stale.iter().flat_map(|g| g.probe.heads.iter().copied()).collect();
    for g in stale {
        let index = g.index();
        devices[index] = Some(g.device);
    }
    let mut found = merged(&probes);
    found.heads.extend(of_stale);
    let devices = Devices::open(devices, &indices, newest, why, behind);
    devices.note_replaced(replaced);
    Ok(Assembly { devices, found, probes, there, notes, about, asides })
}

/// That a member is to be brought up to date.
fn missed(g: &Given) -> String {
    format!("{} (device {}) missed what was written without it", g.name, g.index() + 1)
}

/// Devices that were about to take a place when the others went on without them are no members.
fn drop_unfinished(given: &mut Vec<Given>, asides: &mut Vec<String>) {
    let roots: Vec<Superblock> = given.iter().map(|g| g.newest.clone()).collect();
    given.retain(|g| {
        let unfinished = roots.iter().any(|other| is_unfinished(&g.newest, g.probe.roots.len(), other));
        if unfinished {
            let number = g.newest.device_index + 1;
            let text =
                format!("{} was about to replace device {number}, which went on without it; it is not used", g.name);
            asides.push(text);
        }
        !unfinished
    });
}

/// The devices that hold a root of one volume.
fn identify(given: &[Arc<dyn BlockDevice>], notes: &mut Vec<String>) -> Result<Vec<Given>> {
    let several = given.len() > 1;
    let mut out: Vec<Given> = Vec::new();
    for device in given {
        let name = device.geometry().name;
        let probe = match probe(device.as_ref()) {
            Err(Error::Device(e)) if several => {
                notes.push(format!("{name} cannot be read: {e}"));
                continue;
            }
            other => other?,
        };
        if let (Err(e), true) = (probe.newest(), several) {
            return Err(Error::Open(format!("{name}: {e}")));
        }
        let newest = probe.newest()?.clone();
        let newest = probe.roots.iter().max_by_key(|s| rank(s)).cloned().unwrap_or(newest);
        if let Some(first) = out.first() {
            if first.newest.uuid != newest.uuid {
                return Err(Error::Open(format!("{name} belongs to another volume than {}", first.name)));
            }
        }
        let same = |o: &&Given| o.newest.device_index == newest.device_index && o.identity() == identity(&newest);
        if let Some(other) = out.iter().find(same) {
            let index = newest.device_index + 1;
            let text =
                format!("{} and {name} are the same device of the volume ({index}): name one of them", other.name);
            return Err(Error::Open(text));
        }
        out.push(Given { device: device.clone(), name, probe, newest });
    }
    Ok(out)
}

/// Puts a device where it belongs, or gives it back with what it is instead.
fn place(
    g: Given,
    newest: &Superblock,
    slots: &mut [Option<Given>],
    notes: &mut Vec<String>,
    asides: &mut Vec<String>,
) -> Result<(Verdict, Option<Given>)> {
    let (name, number) = (&g.name, g.index() + 1);
    let verdict = verdict(newest, &g.newest);
    match verdict {
        Verdict::Member => {
            if let Some(slot) = slots.get_mut(g.index()) {
                *slot = Some(g);
            }
            return Ok((verdict, None));
        }
        Verdict::Stale => {
            notes.push(missed(&g));
        }
        Verdict::Replaced => {
            asides.push(format!("{name} was device {number} and has been replaced; it is not used"));
        }
        Verdict::Former => asides.push(format!("{name} is no device of this volume any more: it was removed")),
        Verdict::Diverged => {
            return Err(Error::Open(format!(
                "{name} (device {number}) and the rest of the volume were each written to without the other: \
                 mount what you want to keep without the other, with -o degraded, and clear the other"
            )));
        }
    }
    Ok((verdict, Some(g)))
}

/// What to say where devices are missing.
fn without(gone: &[usize], newest: &Superblock, whole: bool, notes: &[String]) -> Error {
    let why: String = notes.iter().map(|n| format!("{n}; ")).collect();
    let bytes = |i: &usize| newest.devices[*i].blocks.saturating_mul(BLOCK_BYTES as u64);
    let called: Vec<String> = gone.iter().map(|i| format!("device {} ({} bytes)", i + 1, bytes(i))).collect();
    let (are, them) = if gone.len() == 1 { ("is", "it") } else { ("are", "them") };
    let text = format!("{why}{} {are} missing", called.join(" and "));
    Error::Open(if whole {
        format!("{text}: name all devices (DEVICE,DEVICE), or go on without {them} with -o degraded")
    } else {
        let bears = bears(newest.profile);
        format!("{text}, and the others cannot stand in for {them}: {bears}; name all devices (DEVICE,DEVICE)")
    })
}

/// How many devices may be lost.
const fn bears(profile: Profile) -> &'static str {
    match profile {
        Profile::Single | Profile::Stripe => "this volume needs each of its devices (profile single or stripe)",
        Profile::Mirror => {
            "a mirror bears the loss of one device, or of several that are nowhere the two copies of something"
        }
        Profile::Parity => "parity bears the loss of one device",
    }
}

/// A device has all that is used of it: what bands take, and the area behind that.
fn check_length(g: &Given, newest: &Superblock) -> std::result::Result<(), String> {
    let used = newest.devices.get(g.index()).filter(|_| !broken(Break::TailUnmeasured)).map_or(0, |e| e.blocks);
    let blocks = newest.blocks_needed(g.newest.device_index).max(used);
    let geometry = g.device.geometry();
    if geometry.bytes / BLOCK_BYTES as u64 >= blocks || broken(Break::SizeBelieved) {
        return Ok(());
    }
    let (name, needed, there) = (geometry.name, blocks.saturating_mul(BLOCK_BYTES as u64), geometry.bytes);
    Err(format!(
        "{name} is truncated: the volume needs {needed} bytes, {there} are there; restore its length (of a file: truncate -s \
         {needed})"
    ))
}

/// Devices that are too short are as if they were not there, where the others can stand in for them. Which these were.
fn leave_out_short(given: &mut Vec<Given>, newest: &Superblock, notes: &mut Vec<String>) -> BTreeSet<usize> {
    let layout = super::Layout::new(newest.segment_blocks, newest.bands.clone());
    let is_short = |g: &Given| check_length(g, newest).is_err();
    if !layout.is_whole(|i| given.iter().any(|g| g.index() == usize::from(i) && !is_short(g))) {
        return BTreeSet::new();
    }
    let mut short = BTreeSet::new();
    given.retain(|g| {
        let Err(text) = check_length(g, newest) else { return true };
        notes.push(format!("{} is left out: {text}", g.name));
        short.insert(g.index());
        false
    });
    short
}

/// The same text, with the way that there is without the device, if others stand in for it.
fn go_on_without(text: String, g: &Given, newest: &Superblock, there: impl Fn(u16) -> bool) -> String {
    let layout = super::Layout::new(newest.segment_blocks, newest.bands.clone());
    match layout.is_whole(|i| there(i) && usize::from(i) != g.index()) {
        true => format!("{text}, and nenrin scrub then what was in it; or go on without it with -o degraded"),
        false => text,
    }
}

/// The roots of all members, newest first, one for each generation; the slots of the first, and what all say.
fn merged(probes: &[(u16, Option<String>, Probe)]) -> Probe {
    let slots = probes.first().map_or_else(Vec::new, |(_, _, p)| p.slots.clone());
    let mut roots: Vec<Superblock> = probes.iter().flat_map(|(_, _, p)| p.roots.iter().cloned()).collect();
    roots.sort_by_key(|r| std::cmp::Reverse((r.generation, r.table_generation())));
    roots.dedup_by_key(|r| r.generation);
    let heads = probes.iter().flat_map(|(_, _, p)| p.heads.iter().copied()).collect();
    Probe { roots, slots, heads, ..Probe::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_format::Generation;

    /// A root of two devices, as device `index` holds it.
    fn root(base: &Superblock, index: u16, generation: u64, entries: [(bool, u64); 2]) -> Superblock {
        let entry = |(active, since)| DeviceEntry { active, ..DeviceEntry::active([0; 16], 0, since) };
        let devices = entries.map(entry).to_vec();
        Superblock { device_index: index, generation: Generation(generation), devices, ..base.clone() }
    }

    #[test]
    fn who_is_stale_and_who_has_diverged() {
        let base = super::super::tests::superblock();
        let both = [(true, 1), (true, 1)];
        let newest = root(&base, 0, 10, both);
        assert_eq!(verdict(&newest, &root(&base, 1, 10, both)), Verdict::Member);
        // A cut between the writes of the slots of two devices.
        assert_eq!(verdict(&newest, &root(&base, 1, 9, both)), Verdict::Member);
        assert_eq!(verdict(&newest, &root(&base, 1, 8, both)), Verdict::Stale);
        let alone = root(&base, 0, 10, [(true, 1), (false, 2)]);
        assert_eq!(verdict(&alone, &root(&base, 1, 10, both)), Verdict::Stale);
        assert_eq!(verdict(&alone, &root(&base, 1, 10, [(false, 2), (true, 1)])), Verdict::Diverged);
        assert_eq!(verdict(&alone, &root(&base, 1, 4, [(false, 3), (true, 1)])), Verdict::Diverged);
        // An old copy that was written to alone, while the others had gone on without it and with it again.
        let again = root(&base, 0, 30, [(true, 1), (true, 3)]);
        assert_eq!(verdict(&again, &root(&base, 1, 12, [(false, 2), (true, 1)])), Verdict::Diverged);
        assert_eq!(verdict(&again, &root(&base, 1, 12, [(true, 1), (false, 2)])), Verdict::Stale);
        // It came back once, and went again: its table is older than the second time.
        let again = root(&base, 0, 30, [(true, 1), (false, 4)]);
        assert_eq!(verdict(&again, &root(&base, 1, 20, [(true, 1), (true, 3)])), Verdict::Stale);
        assert!(rank(&alone) > rank(&root(&base, 1, 11, both)), "a newer table counts more than a newer root");
    }

    /// Device 2 is replaced: at first only the new one knows, then the other too.
    #[test]
    fn who_was_replaced_and_who_was_about_to_replace() {
        let base = super::super::tests::superblock();
        let both = [(true, 1), (true, 1)];
        let new = |generation| {
            let mut s = root(&base, 1, generation, [(true, 1), (true, 2)]);
            s.devices[1].uuid = [9; 16];
            s
        };
        let other_knows = Superblock { device_index: 0, ..new(10) };
        for (old, other) in [(10, 10), (10, 9)] {
            let (old, other) = (root(&base, 1, old, both), root(&base, 0, other, both));
            assert!(rank(&new(10)) > rank(&old) && !is_unfinished(&new(10), 1, &old));
            assert_eq!(verdict(&new(10), &other), Verdict::Member);
            assert_eq!(verdict(&new(10), &old), Verdict::Replaced);
            assert_eq!(verdict(&other_knows, &old), Verdict::Replaced);
        }
        assert_eq!(verdict(&other_knows, &new(10)), Verdict::Member);
        assert!(was_just_replaced(&other_knows, &root(&base, 1, 10, both)));
        assert!(!was_just_replaced(&other_knows, &root(&base, 1, 9, both)));
        // It went on alone, and whoever went on without it has been replaced since.
        let mut newer = new(10);
        newer.devices[0] = DeviceEntry::active([8; 16], 0, 4);
        assert!(!was_just_replaced(&newer, &root(&base, 1, 10, [(false, 2), (true, 1)])));
        // The others went on without it, and perhaps lost one that it knows.
        for went_on in [root(&base, 0, 11, both), root(&base, 0, 14, [(true, 1), (false, 2)])] {
            assert!(is_unfinished(&new(10), 1, &went_on));
            assert!(!is_unfinished(&new(10), 2, &went_on), "it went on, too");
            assert!(!is_unfinished(&went_on, 1, &new(10)));
        }
        // Nobody was to replace a device that is only stale.
        assert!(!is_unfinished(&root(&base, 1, 9, [(true, 1), (true, 3)]), 1, &root(&base, 0, 10, both)));
        // The old one went on alone, and so did the new one.
        assert_eq!(verdict(&new(12), &root(&base, 1, 13, both)), Verdict::Diverged);
    }

    /// The others went on without it, and lost one, as only the table says: no root was written since.
    fn who_went_on_without_a_new_root() {
        let base = super::super::tests::superblock();
        let mut new = root(&base, 1, 10, [(true, 1), (true, 2)]);
        new.devices[1].uuid = [9; 16];
        for (index, entries) in [(0, [(true, 1), (false, 2)]), (1, [(false, 2), (true, 1)])] {
            let went_on = root(&base, index, 10, entries);
            assert!(is_unfinished(&new, 1, &went_on), "that the others went on is not seen");
            assert!(!is_unfinished(&new, 2, &went_on) && !is_unfinished(&went_on, 1, &new));
        }
    }

    /// Something else was said of an entry, by a change with this number.
    fn said(entry: &mut DeviceEntry, number: u64) {
        entry.member_generation = number;
    }

    /// Both went on alone, and in the line that counts something else was said of both since.
    fn both_entries_changed_since() {
        let base = super::super::tests::superblock();
        let mut newest = root(&base, 0, 20, [(true, 1), (false, 2)]);
        said(&mut newest.devices[1], 4);
        assert_eq!(verdict(&newest, &root(&base, 1, 10, [(true, 1), (true, 1)])), Verdict::Stale);
        said(&mut newest.devices[0], 5);
        let other = root(&base, 1, 10, [(false, 2), (true, 1)]);
        assert_eq!(verdict(&newest, &other), Verdict::Diverged, "what was written there goes");
        // It has been replaced in the line that counts.
        newest.devices[1].uuid = [9; 16];
        newest.devices[1].stand(true, 6);
        assert_eq!(verdict(&newest, &other), Verdict::Diverged, "what was written there goes");
        assert_eq!(verdict(&newest, &root(&base, 1, 10, [(true, 1), (true, 1)])), Verdict::Replaced);
        // One that was out, and is back since, was not there: it is no sign of another line.
        let both = root(&base, 0, 30, [(true, 5), (true, 1)]);
        assert_eq!(verdict(&both, &root(&base, 1, 29, [(false, 2), (true, 1)])), Verdict::Member);
    }

    /// A program that does not know since when each device is what it is leaves that out of the whole table.
    #[test]
    fn a_table_of_an_older_program_is_of_the_same_line() {
        let base = super::super::tests::superblock();
        let mut before = root(&base, 1, 9, [(true, 1), (true, 1)]);
        said(&mut before.devices[0], 7);
        let mut newest = before.clone();
        (newest.device_index, newest.generation) = (0, Generation(10));
        newest.devices.iter_mut().for_each(|e| e.stands_since = e.member_generation);
        assert_eq!(verdict(&newest, &before), Verdict::Member);
        newest.devices[1].stand(false, 8);
        assert_eq!(verdict(&newest, &before), Verdict::Stale);
    }

    /// The same, where the one device that went on was replaced, too: nothing that is there was never without the other.
    fn who_went_on_was_replaced_since() {
        let base = super::super::tests::superblock();
        let mut newest = root(&base, 0, 20, [(true, 5), (false, 2)]);
        newest.devices[0].uuid = [9; 16];
        said(&mut newest.devices[1], 4);
        let other = root(&base, 1, 10, [(false, 2), (true, 1)]);
        assert_eq!(verdict(&newest, &other), Verdict::Diverged, "it is taken for stale");
        assert_eq!(verdict(&newest, &root(&base, 1, 10, [(true, 1), (true, 1)])), Verdict::Stale);
    }

    #[test]
    fn lines_whose_entries_changed_since_are_told_apart() {
        both_entries_changed_since();
        who_went_on_was_replaced_since();
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "what was written there goes")]
    fn lines_that_are_compared_by_numbers_are_noticed() {
        crate::breaks::with(Break::LinesByNumber, both_entries_changed_since);
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "it is taken for stale")]
    fn a_device_that_counts_as_left_out_anew_is_noticed() {
        crate::breaks::with(Break::LeftAnew, who_went_on_was_replaced_since);
    }

    #[test]
    fn who_was_about_to_replace_gives_way_to_a_newer_table() {
        who_went_on_without_a_new_root();
    }

    #[cfg(feature = "breaks")]
    #[test]
    #[should_panic(expected = "that the others went on is not seen")]
    fn a_newer_table_that_is_not_seen_is_noticed() {
        crate::breaks::with(Break::MarkedUnseen, who_went_on_without_a_new_root);
    }
}
