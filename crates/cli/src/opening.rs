//! What was found when a volume was opened, for as long as it is so.

use nenrin_core::{Fs, Standing};

/// What was told then, but for what is no longer so.
pub fn notes(fs: &Fs) -> Vec<String> {
    let (report, health, slots) = (fs.recovery_report(), fs.health(), fs.has_slots_as_found());
    let is_over = |index: u16| {
        let member = health.iter().find(|d| d.index == index);
        member.is_none_or(|d| d.standing == Standing::Active)
    };
    let over = |note: &String| {
        let of_device = report.about_devices.iter().any(|(index, about)| about == note && is_over(*index));
        of_device || !slots && report.about_slots.contains(note)
    };
    report.notes.iter().filter(|note| !over(note)).cloned().collect()
}

/// That superblock slots were found damaged, and have not been written anew.
pub fn slots_problem(fs: &Fs) -> Option<String> {
    let count = fs.recovery_report().about_slots.len();
    let (what, them) = if count == 1 { ("superblock slot is", "it") } else { ("superblock slots are", "them") };
    let helps =
        if fs.options().read_only { "mount it writable, and nenrin scrub writes" } else { "nenrin scrub writes" };
    (count > 0 && fs.has_slots_as_found())
        .then(|| format!("{count} {what} not as written, as noted; {helps} {them} anew"))
}
