//! How much memory the control groups of this process allow, so that what the volume keeps in memory fits into it: who goes beyond is
//! killed, which is a power cut.

use crate::mounts::{self, Mount};
use nenrin_core::MountOptions;
use std::fs;
use std::path::{Path, PathBuf};

/// Of what is allowed, content that is not yet written, clean index nodes and changed ones take one part each of so many at most. The
/// rest is for requests and answers under way, what is known of files and segments, and the program itself, about 25 MiB.
const CONTENT_PART: usize = 6;
const NODES_PART: usize = 4;
const CHANGED_PART: usize = 6;
/// So much is reckoned for each changed node that asks for an index checkpoint: one takes a third of that, and as many again are changed
/// while they are written.
const CHANGED_BYTES: usize = 128 << 10;
/// Less would be slow, and save little: a burst, and the nodes of one operation.
const BYTES_MIN: usize = 4 << 20;
/// Version 1 says "no limit" with the largest number that is a multiple of a page.
const NO_LIMIT: u64 = 1 << 60;

/// Makes the memory that a volume may take fit. `nodes_given` says that the user chose how much is for index nodes. What
/// is allowed, if that made it less.
pub fn fit(options: &mut MountOptions, nodes_given: bool) -> Option<u64> {
    fit_into(allowed()?, options, nodes_given)
}

fn fit_into(allowed: u64, options: &mut MountOptions, nodes_given: bool) -> Option<u64> {
    let part = |of: usize| (usize::try_from(allowed).unwrap_or(usize::MAX) / of).max(BYTES_MIN);
    let before = (options.dirty_bytes_max, options.cache_bytes);
    options.dirty_bytes_max = before.0.min(part(CONTENT_PART));
    options.dirty_nodes_max = options.dirty_nodes_max.min((part(CHANGED_PART) / CHANGED_BYTES) as u64);
    if !nodes_given {
        options.cache_bytes = before.1.min(part(NODES_PART));
    }
    (before != (options.dirty_bytes_max, options.cache_bytes)).then_some(allowed)
}

/// The smallest limit of this process' groups and of those around them, in bytes; none where there is none, or none can be read.
fn allowed() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    allowed_by(&groups, &mounts::all().ok()?, |path| fs::read_to_string(path).ok())
}

fn allowed_by(groups: &str, mounts: &[Mount], read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().filter_map(group).flat_map(|(names, fstype, group)| {
        let at = mounts.iter().filter(move |m| m.fstype == fstype).flat_map(move |m| up_to_the_mount(m, group));
        at.flat_map(move |directory| names.iter().map(move |name| directory.join(name)))
    });
    limits.filter_map(|file| read(&file)?.trim().parse().ok()).filter(|limit| *limit < NO_LIMIT).min()
}

/// `ID:CONTROLLERS:GROUP`, where it can limit memory: the files that say so, the type of the mount they are in, and the group.
fn group(line: &str) -> Option<(&'static [&'static str], &'static str, &str)> {
    let (_, line) = line.split_once(':')?;
    let (controllers, group) = line.split_once(':')?;
    if controllers.is_empty() {
        return Some((&["memory.max", "memory.high"], "cgroup2", group));
    }
    controllers.split(',').any(|c| c == "memory").then_some((&["memory.limit_in_bytes"], "cgroup", group))
}

/// The directories of a group and of all around it, as far as this mount shows them; that of the mount itself is always among them, since
/// inside a container it may be all that is seen.
fn up_to_the_mount(mount: &Mount, group: &str) -> Vec<PathBuf> {
    let inside = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
    inside.ancestors().map(|a| mount.point.join(a)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(fstype: &str, root: &str, point: &str) -> Mount {
        Mount {
            device: "0:32".into(),
            root: root.into(),
            point: point.into(),
            options: "rw".into(),
            fstype: fstype.into(),
            source: "cgroup".into(),
            user: 0,
            allow_other: false,
            read_only: false,
        }
    }

    fn limit(groups: &str, mounts: &[Mount], files: &[(&str, &str)]) -> Option<u64> {
        allowed_by(groups, mounts, |path| {
            files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| format!("{text}\n"))
        })
    }

    #[test]
    fn the_smallest_limit_of_version_2_on_the_way_up() {
        let mounts = [at("cgroup2", "/", "/sys/fs/cgroup")];
        let files = [
            ("/sys/fs/cgroup/system.slice/memory.max", "2000000"),
            ("/sys/fs/cgroup/system.slice/nenrin/memory.max", "max"),
            ("/sys/fs/cgroup/system.slice/nenrin/memory.high", "3000000"),
        ];
        assert_eq!(limit("0::/system.slice/nenrin\n", &mounts, &files), Some(2_000_000));
        assert_eq!(limit("0::/system.slice/nenrin\n", &mounts, &files[1..]), Some(3_000_000));
        assert_eq!(limit("0::/other\n", &mounts, &files), None);
        assert_eq!(limit("", &mounts, &files), None);
    }

    #[test]
    fn version_1_says_a_large_number_for_no_limit() {
        let mounts = [at("cgroup", "/", "/sys/fs/cgroup/cpu"), at("cgroup", "/", "/sys/fs/cgroup/memory")];
        let groups = "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n";
        let mut files = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "50331648"),
        ];
        assert_eq!(limit(groups, &mounts, &files), Some(50_331_648));
        files[2].1 = "9223372036854771712";
        assert_eq!(limit(groups, &mounts, &files), None);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let mounts = [at("cgroup2", "/docker/1", "/sys/fs/cgroup")];
        let files = [("/sys/fs/cgroup/memory.max", "77")];
        for groups in ["0::/docker/1", "0::/", "0::/../other"] {
            assert_eq!(limit(groups, &mounts, &files), Some(77), "{groups}");
        }
    }

    #[test]
    fn what_is_kept_fits_and_what_the_user_chose_stays() {
        let (default, mut options) = (MountOptions::default(), MountOptions::default());
        assert_eq!(fit_into(8 << 30, &mut options, false), None);
        assert_eq!((options.dirty_bytes_max, options.cache_bytes), (default.dirty_bytes_max, default.cache_bytes));
        assert_eq!(fit_into(48 << 20, &mut options, true), Some(48 << 20));
        assert_eq!((options.dirty_bytes_max, options.cache_bytes), (8 << 20, default.cache_bytes));
        assert_eq!((default.dirty_nodes_max, options.dirty_nodes_max), (1000, 64));
        assert_eq!(fit_into(48 << 20, &mut options, false), Some(48 << 20));
        assert_eq!((options.dirty_bytes_max, options.cache_bytes), (8 << 20, 12 << 20));
        assert_eq!(fit_into(1, &mut options, false), Some(1));
        assert_eq!((options.dirty_bytes_max, options.cache_bytes), (BYTES_MIN, BYTES_MIN));
    }
}
