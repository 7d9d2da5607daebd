//! What is on a device already: file systems and other things that mkfs must
//! not overwrite unasked, known by the bytes they begin with.

/// Bytes at the start of a device that [`find`] looks at.
pub const HEAD_BYTES: usize = 128 * 1024;

/// One mark: offset, bytes, and whose it is.
struct Mark {
    name: &'static str,
    offset: usize,
    bytes: &'static [u8],
}

const fn mark(name: &'static str, offset: usize, bytes: &'static [u8]) -> Mark {
    Mark { name, offset, bytes }
}

/// In this order: what may carry another's mark inside comes first.
const MARKS: &[Mark] = &[
    mark("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    mark("an LVM physical volume", 512, b"LABELONE"),
    mark("an LVM physical volume", 0, b"LABELONE"),
    mark("xfs", 0, b"XFSB"),
    mark("btrfs", 0x1_0040, b"_BHRfS_M"),
    mark("bcachefs", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    mark("f2fs", 1024, b"\x10\x20\xf5\xf2"),
    mark("nilfs2", 1024 + 6, b"\x34\x34"),
    mark("ntfs", 3, b"NTFS    "),
    mark("exfat", 3, b"EXFAT   "),
    mark("vfat", 54, b"FAT12   "),
    mark("vfat", 54, b"FAT16   "),
    mark("vfat", 82, b"FAT32   "),
    mark("jfs", 0x8000, b"JFS1"),
    mark("reiserfs", 0x1_0034, b"ReIsErFs"),
    mark("reiserfs", 0x1_0034, b"ReIsEr2Fs"),
    mark("reiserfs", 0x1_0034, b"ReIsEr3Fs"),
    mark("iso9660", 0x8001, b"CD001"),
    mark("squashfs", 0, b"hsqs"),
    mark("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
    mark("swap space", 4096 - 10, b"SWAPSPACE2"),
    mark("swap space", 4096 - 10, b"SWAP-SPACE"),
    mark("a RAID member (md)", 4096, b"\xfc\x4e\x2b\xa9"),
    mark("a RAID member (md)", 0, b"\xfc\x4e\x2b\xa9"),
];

const EXT_MAGIC: usize = 1024 + 56;
const EXT_COMPAT: usize = 1024 + 92;
const EXT_INCOMPAT: usize = 1024 + 96;

/// What the first bytes of a device say it holds.
pub fn find(head: &[u8]) -> Option<&'static str> {
    let holds = |offset: usize, bytes: &[u8]| head.get(offset..offset + bytes.len()) == Some(bytes);
    if (0..4).any(|slot| holds((4 + slot) * 4096, &nenrin_format::superblock::SUPERBLOCK_MAGIC)) {
        return Some("a nenrin volume");
    }
    if let Some(m) = MARKS.iter().find(|m| holds(m.offset, m.bytes)) {
        return Some(m.name);
    }
    if holds(EXT_MAGIC, &[0x53, 0xef]) {
        return Some(ext_version(head));
    }
    if holds(512, b"EFI PART") || holds(4096, b"EFI PART") {
        return Some("a partition table (GPT)");
    }
    // Four entries whose first byte is 0 or 0x80, at least one in use.
    if holds(510, &[0x55, 0xaa]) {
        let entries: Vec<&[u8]> = head[446..510].chunks_exact(16).collect();
        let plausible = entries.iter().all(|e| e[0] & 0x7f == 0) && entries.iter().any(|e| e[4] != 0);
        return Some(if plausible { "a partition table (MBR)" } else { "a boot sector" });
    }
    None
}

fn ext_version(head: &[u8]) -> &'static str {
    let word = |at: usize| head.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    const HAS_JOURNAL: u32 = 4;
    // Those that ext3 knows: file type, recovery, journal device, meta block groups.
    const EXT3_INCOMPAT: u32 = 0x2 | 0x4 | 0x8 | 0x10;
    if word(EXT_INCOMPAT) & !EXT3_INCOMPAT != 0 {
        "ext4"
    } else if word(EXT_COMPAT) & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_found() {
        for m in MARKS {
            let mut head = vec![0; HEAD_BYTES];
            head[m.offset..m.offset + m.bytes.len()].copy_from_slice(m.bytes);
            assert_eq!(find(&head), Some(m.name));
        }
        assert_eq!(find(&vec![0; HEAD_BYTES]), None);
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[0x55; 100]), None);
    }

    #[test]
    fn versions_of_ext() {
        let mut head = vec![0; HEAD_BYTES];
        head[EXT_MAGIC..EXT_MAGIC + 2].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(find(&head), Some("ext2"));
        head[EXT_COMPAT] = 4;
        assert_eq!(find(&head), Some("ext3"));
        head[EXT_INCOMPAT] = 0x42;
        assert_eq!(find(&head), Some("ext4"));
    }

    #[test]
    fn partition_tables() {
        let mut head = vec![0; HEAD_BYTES];
        head[510..512].copy_from_slice(&[0x55, 0xaa]);
        head[446 + 4] = 0x83;
        assert_eq!(find(&head), Some("a partition table (MBR)"));
        head[446] = 7;
        assert_eq!(find(&head), Some("a boot sector"));
        head[512..520].copy_from_slice(b"EFI PART");
        assert_eq!(find(&head), Some("a partition table (GPT)"));
    }
}
