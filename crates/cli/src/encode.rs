//! Names as udev has them: in properties, and in the links below /dev/disk.
//!
//! The letters are those of libblkid (`blkid_encode_string`, `blkid_safe_string`), so that a link has the name that others look for:
//! systemd for a device unit, mount(8) for LABEL=. A label is as strange as whoever wrote it wants, so what could mean more than
//! itself is encoded beyond that: control characters behind ASCII, and names of dots alone.

/// What stands for itself, besides letters and digits.
const PLAIN: &str = "#+-.:=@_";

fn is_plain(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || PLAIN.contains(c);
    }
    // Numbers that are no characters are no valid text for others.
    let number = u32::from(c);
    !c.is_control() && !(0xfdd0..=0xfdef).contains(&number) && number & 0xfffe != 0xfffe
}

fn hexadecimal(out: &mut String, bytes: &[u8]) {
    bytes.iter().for_each(|b| out.push_str(&format!("\\x{b:02x}")));
}

/// For a link, or a value that is decoded again: whatever else there is as `\x` and two digits a byte.
pub fn encoded(name: &[u8]) -> String {
    let mut out = String::new();
    if name == b"." || name == b".." {
        hexadecimal(&mut out, name);
        return out;
    }
    for part in name.utf8_chunks() {
        for c in part.valid().chars() {
            if is_plain(c) { out.push(c) } else { hexadecimal(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()) }
        }
        hexadecimal(&mut out, part.invalid());
    }
    out
}

/// To be read: no space at its ends, `_` for space between and for whatever else there is.
pub fn safe(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let is_kept = |c: char| is_plain(c) && c != char::REPLACEMENT_CHARACTER;
    words.join("_").chars().map(|c| if is_kept(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_libblkid_does() {
        for (name, encoded_as, safe_as) in [
            (&b"backup"[..], "backup", "backup"),
            (b"A#b+c-d.e:f=g@h_9", "A#b+c-d.e:f=g@h_9", "A#b+c-d.e:f=g@h_9"),
            (b" my  disk ", r"\x20my\x20\x20disk\x20", "my_disk"),
            ("Büro 年輪".as_bytes(), r"Büro\x20年輪", "Büro_年輪"),
            (b"a/b", r"a\x2fb", "a_b"),
            (b"a\\b\"c'", r"a\x5cb\x22c\x27", "a_b_c_"),
            (b"$(reboot)%k", r"\x24\x28reboot\x29\x25k", "__reboot__k"),
            (b"", "", ""),
        ] {
            assert_eq!((&*encoded(name), &*safe(name)), (encoded_as, safe_as), "{name:?}");
        }
    }

    /// What somebody writes on a stick to have it mean something here.
    #[test]
    fn nothing_gets_out() {
        assert_eq!(encoded(b"x\nID_FS_TYPE=ext4"), r"x\x0aID_FS_TYPE=ext4");
        assert_eq!(safe(b"x\nID_FS_TYPE=ext4"), "x_ID_FS_TYPE=ext4");
        assert_eq!(encoded(b"../../dm-0"), r"..\x2f..\x2fdm-0");
        assert_eq!(
            (encoded(b"."), encoded(b".."), encoded(b"...")),
            (r"\x2e".into(), r"\x2e\x2e".into(), "...".into())
        );
        assert_eq!(encoded("\u{85}\u{9b}\u{fdd0}\u{fffe}".as_bytes()), r"\xc2\x85\xc2\x9b\xef\xb7\x90\xef\xbf\xbe");
        assert_eq!((encoded(b"\xff\xc3a\0"), safe(b"\xff\xc3a\0")), (r"\xff\xc3a\x00".into(), "__a_".into()));
        for byte in 0..=255u8 {
            let text = [encoded(&[b'a', byte, b'b']), safe(&[b'a', byte, b'b'])];
            assert!(
                text.iter().all(|t| !t.contains(|c: char| c.is_control() || " /\"'`$%".contains(c))),
                "{byte}: {text:?}"
            );
        }
        // Nothing is encoded to the same as something else.
        let all: std::collections::BTreeSet<String> = (0..=u16::MAX).map(|n| encoded(&n.to_be_bytes())).collect();
        assert_eq!(all.len(), usize::from(u16::MAX) + 1);
    }
}
