//! What is mounted where, from /proc/self/mountinfo.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of the file system, as in /sys/class/bdi.
    pub device: String,
    /// What of the file system is shown there; a bind mount may show a directory.
    pub root: PathBuf,
    /// Where it is, absolute and without links.
    pub point: PathBuf,
    /// Options of this mount.
    pub options: String,
    /// Type, with subtype.
    pub fstype: String,
    /// What it was mounted from: the device's path.
    pub source: PathBuf,
    /// Who runs the program behind it.
    pub user: u32,
    /// Other users may enter.
    pub allow_other: bool,
    /// The file system as a whole is read-only, whatever this mount of it says.
    pub read_only: bool,
}

/// All mounts; a later one lies over an earlier one.
///
/// # Errors
/// The list cannot be read.
pub fn all() -> io::Result<Vec<Mount>> {
    Ok(parse_all(&agreed(|| fs::read("/proc/self/mountinfo"))?))
}

/// The topmost mount at `path`, which must be absolute and without links.
pub(crate) fn find(path: &Path) -> io::Result<Option<Mount>> {
    Ok(all()?.into_iter().rfind(|m| m.point == path))
}

/// Readings of the list after which the last one has to do.
const READINGS_MAX: usize = 20;

/// The kernel gives the list in pieces of a page, and a line may be missing where something is
/// unmounted between two of them. So it is read until two readings agree.
fn agreed(mut read: impl FnMut() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    let mut last = read()?;
    for _ in 1..READINGS_MAX {
        let next = read()?;
        if next == last {
            break;
        }
        last = next;
    }
    Ok(last)
}

/// The mounts in the text of such a list.
#[must_use]
pub fn parse_all(text: &[u8]) -> Vec<Mount> {
    text.split(|&b| b == b'\n').filter_map(parse).collect()
}

/// `ID PARENT MAJ:MIN ROOT POINT OPTIONS [TAG...] - FSTYPE SOURCE SUPER-OPTIONS`
fn parse(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    let path = |b: &[u8]| PathBuf::from(OsString::from_vec(unescape(b)));
    let dash = fields.iter().position(|f| *f == b"-")?;
    let super_options = text(fields.get(dash + 3)?);
    let user = super_options.split(',').find_map(|o| o.strip_prefix("user_id=")?.parse().ok());
    Some(Mount {
        device: text(fields.get(2)?),
        root: path(fields.get(3)?),
        point: path(fields.get(4)?),
        options: text(fields.get(5)?),
        fstype: text(fields.get(dash + 1)?),
        source: path(fields.get(dash + 2)?),
        user: user.unwrap_or(0),
        allow_other: super_options.split(',').any(|o| o == "allow_other"),
        read_only: super_options.split(',').any(|o| o == "ro"),
    })
}

/// Blanks, tabs, newlines and backslashes are written as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut i = 0;
    while i < field.len() {
        let code = field.get(i + 1..i + 4).filter(|d| field[i] == b'\\' && d.iter().all(|b| (b'0'..b'8').contains(b)));
        match code {
            Some(d) => {
                out.push((d[0] - b'0').wrapping_mul(64) + (d[1] - b'0') * 8 + (d[2] - b'0'));
                i += 4;
            }
            None => {
                out.push(field[i]);
                i += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that one reading missed is there in the next; where no two agree, it ends all the same.
    #[test]
    fn a_list_counts_when_two_readings_agree() {
        let readings = [&b"a\nb\n"[..], b"a\n", b"a\nb\nc\n", b"a\nb\nc\n", b"later"];
        let mut left = readings.iter();
        assert_eq!(agreed(|| Ok(left.next().unwrap().to_vec())).unwrap(), b"a\nb\nc\n");
        assert_eq!(left.len(), 1);
        let mut count = 0u8;
        let changing = || {
            count += 1;
            Ok(vec![count])
        };
        assert_eq!(agreed(changing).unwrap(), [READINGS_MAX as u8]);
    }

    #[test]
    fn lines_of_mountinfo() {
        let text =
            br"36 35 0:45 / /mnt\0402 rw,nosuid shared:1 master:2 - fuse.nenrin /a\134b ro,user_id=1000,allow_other
1 0 8:1 /root / rw - ext4 /dev/sda1 rw
garbage
36 35 98:0 / /mnt rw -";
        let all = parse_all(text);
        assert_eq!(all.len(), 2);
        assert_eq!((&*all[0].point, &*all[0].source), (Path::new("/mnt 2"), Path::new(r"/a\b")));
        assert_eq!((all[0].user, all[0].device.as_str(), all[0].allow_other), (1000, "0:45", true));
        assert_eq!((all[0].fstype.as_str(), all[0].options.as_str()), ("fuse.nenrin", "rw,nosuid"));
        assert_eq!((all[1].user, all[1].allow_other, &*all[1].root), (0, false, Path::new("/root")));
        assert_eq!((all[0].read_only, all[1].read_only), (true, false));
        assert_eq!(unescape(br"\377\9"), b"\xff\\9");
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(find(Path::new("/")).unwrap().is_some());
        assert!(find(Path::new("/no/such/place")).unwrap().is_none());
    }
}
