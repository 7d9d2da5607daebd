//! What is mounted where, from /proc/self/mountinfo.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of mountinfo, as far as the front end looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountPoint {
    /// `major:minor` of the file system, as in /sys/class/bdi.
    pub device: String,
    pub path: PathBuf,
    pub fstype: String,
}

/// The topmost mount at `path`, which must be absolute and without links.
pub(crate) fn find(path: &Path) -> io::Result<Option<MountPoint>> {
    let text = fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse).rfind(|m| m.path == path))
}

/// `ID PARENT MAJ:MIN ROOT PATH OPTIONS [TAG...] - FSTYPE SOURCE SUPER-OPTIONS`
fn parse(line: &[u8]) -> Option<MountPoint> {
    let mut fields = line.split(|&b| b == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let path = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let fstype = fields.skip_while(|f| *f != b"-").nth(1)?;
    Some(MountPoint { device, path, fstype: String::from_utf8_lossy(fstype).into_owned() })
}

/// Blanks, tabs, newlines and backslashes are written as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let digit = |b: &u8| b.is_ascii_digit().then(|| u32::from(b - b'0'));
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let code = match (first, tail) {
            (b'\\', [a, b, c, ..]) => digit(a).zip(digit(b)).zip(digit(c)),
            _ => None,
        };
        match code {
            Some(((a, b), c)) => {
                out.push((a * 64 + b * 8 + c) as u8);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_everything() {
        let line = br"36 35 98:0 /root /mnt\0402 rw,noatime shared:1 master:2 - fuse.nenrin /dev/x rw";
        let want = MountPoint { device: "98:0".into(), path: "/mnt 2".into(), fstype: "fuse.nenrin".into() };
        assert_eq!(parse(line), Some(want));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 98:0 / /mnt rw -"), None);
        assert_eq!(unescape(br"a\134b\9"), br"a\b\9");
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(find(Path::new("/")).unwrap().is_some());
        assert!(find(Path::new("/no/such/place")).unwrap().is_none());
    }
}
