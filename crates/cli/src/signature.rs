//! What is on a device already: file systems and other things that mkfs must
//! not overwrite unasked, known by the bytes they begin with, or end with.

use nenrin_format::BLOCK_BYTES;
use nenrin_format::superblock::{AREA_BLOCKS, SLOT_BLOCK, SLOTS_PER_AREA, SUPERBLOCK_MAGIC};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes at the start of a device that [`find`] looks at: a label of ZFS.
pub const HEAD_BYTES: usize = ZFS_LABEL_BYTES;
/// Bytes at the end of a device that [`find_at_end`] looks at: two labels of ZFS, which begin at a multiple of their length.
const TAIL_BYTES: usize = 3 * ZFS_LABEL_BYTES;

/// What a device holds that begins with something else than zeros, and with nothing that is known.
pub const UNKNOWN: &str = "something that is not known";

/// What a device or file holds; nothing where it begins with zeros and ends with nothing that is known.
///
/// # Errors
/// It cannot be read.
pub fn occupant(path: &Path) -> io::Result<Option<&'static str>> {
    let mut file = File::open(path)?;
    let bytes = file.seek(SeekFrom::End(0))?;
    let read = |offset: u64, most: usize| {
        let mut piece = vec![0; usize::try_from(bytes - offset).map_or(most, |rest| rest.min(most))];
        file.read_exact_at(&mut piece, offset).map(|()| piece)
    };
    let head = read(0, HEAD_BYTES)?;
    if let Some(known) = find(&head) {
        return Ok(Some(known));
    }
    let tail = read(bytes.saturating_sub(TAIL_BYTES as u64), TAIL_BYTES)?;
    let unknown = head.iter().any(|b| *b != 0).then_some(UNKNOWN);
    Ok(find_at_end(&tail, bytes).or(unknown))
}

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
    mark("bcachefs", 4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    mark("bcache", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    mark("apfs", 32, b"NXSB"),
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
    mark(MD, 4096, MD_MAGIC),
    mark(MD, 0, MD_MAGIC),
];

/// What begins as something to boot from, which a volume may, too.
pub const BOOT_SECTOR: &str = "a boot sector";
const MD: &str = "a RAID member (md)";
const MD_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
const GPT: &str = "a partition table (GPT)";
const GPT_MAGIC: &[u8] = b"EFI PART";
const NENRIN: &str = "a nenrin volume";

const ZFS_LABEL_BYTES: usize = 256 * 1024;
/// The second half of a label is a ring of these, a KiB each or more.
const ZFS_RING: usize = 128 * 1024;
const ZFS_RING_STEP: usize = 1024;
/// In the byte order of whoever wrote it.
const ZFS_MAGIC: u64 = 0x00ba_b10c;

const EXT_MAGIC: usize = 1024 + 56;
const EXT_COMPAT: usize = 1024 + 92;
const EXT_INCOMPAT: usize = 1024 + 96;

/// What the first bytes of a device say it holds.
pub fn find(head: &[u8]) -> Option<&'static str> {
    let holds = |offset: usize, bytes: &[u8]| head.get(offset..offset + bytes.len()) == Some(bytes);
    if slots(0).any(|offset| holds(offset as usize, &SUPERBLOCK_MAGIC)) {
        return Some(NENRIN);
    }
    if let Some(m) = MARKS.iter().find(|m| holds(m.offset, m.bytes)) {
        return Some(m.name);
    }
    if holds(EXT_MAGIC, &[0x53, 0xef]) {
        return Some(ext_version(head));
    }
    if holds(512, GPT_MAGIC) || holds(4096, GPT_MAGIC) {
        return Some(GPT);
    }
    if is_zfs_label(head) {
        return Some("zfs");
    }
    // Four entries whose first byte is 0 or 0x80, at least one in use.
    if holds(510, &[0x55, 0xaa]) {
        let entries: Vec<&[u8]> = head[446..510].chunks_exact(16).collect();
        let plausible = entries.iter().all(|e| e[0] & 0x7f == 0) && entries.iter().any(|e| e[4] != 0);
        return Some(if plausible { "a partition table (MBR)" } else { BOOT_SECTOR });
    }
    None
}

/// What the last bytes of a device of so many say it holds: what keeps its mark there, or a second one.
fn find_at_end(tail: &[u8], bytes: u64) -> Option<&'static str> {
    let begin = bytes - tail.len() as u64;
    let from = |offset: u64| tail.get(usize::try_from(offset.checked_sub(begin)?).ok()?..);
    let holds = |offset: Option<u64>, mark: &[u8]| offset.and_then(from).is_some_and(|b| b.starts_with(mark));
    let down = |to: u64, less: u64| (bytes / to * to).checked_sub(less);
    let area = down(BLOCK_BYTES as u64, AREA_BLOCKS * BLOCK_BYTES as u64);
    if area.is_some_and(|area| slots(area).any(|offset| holds(Some(offset), &SUPERBLOCK_MAGIC))) {
        return Some(NENRIN);
    }
    // Version 0.90, and 1.0.
    if [down(65_536, 65_536), bytes.checked_sub(8192).map(|b| b / 4096 * 4096)]
        .into_iter()
        .any(|at| holds(at, MD_MAGIC))
    {
        return Some(MD);
    }
    let label = ZFS_LABEL_BYTES as u64;
    if [down(label, label), down(label, 2 * label)].into_iter().flatten().filter_map(from).any(is_zfs_label) {
        return Some("zfs");
    }
    [512, 4096].into_iter().any(|sector| holds(bytes.checked_sub(sector), GPT_MAGIC)).then_some(GPT)
}

/// Where the root slots of an area are.
fn slots(area: u64) -> impl Iterator<Item = u64> {
    (SLOT_BLOCK..SLOT_BLOCK + SLOTS_PER_AREA).map(move |block| area + block * BLOCK_BYTES as u64)
}

fn is_zfs_label(bytes: &[u8]) -> bool {
    let ring = bytes.get(ZFS_RING..bytes.len().min(ZFS_LABEL_BYTES)).unwrap_or_default();
    let magics = [ZFS_MAGIC.to_le_bytes(), ZFS_MAGIC.to_be_bytes()];
    ring.chunks(ZFS_RING_STEP).any(|block| magics.iter().any(|magic| block.starts_with(magic)))
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
        let mut head = vec![0; HEAD_BYTES];
        assert_eq!(find(&head), None);
        head[ZFS_RING + 5 * 4096..][..8].copy_from_slice(b"\x0c\xb1\xba\0\0\0\0\0");
        assert_eq!(find(&head), Some("zfs"));
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[0x55; 100]), None);
    }

    #[test]
    fn marks_at_the_end() {
        // No multiple of what any of them begins at.
        let bytes: u64 = (64 << 20) + 300 * 1024 + 512;
        let big_endian: &[u8] = &ZFS_MAGIC.to_be_bytes();
        for (name, offset, mark) in [
            (NENRIN, (64 << 20) + 300 * 1024 - (16 - 5) * 4096, &SUPERBLOCK_MAGIC[..]),
            (MD, (64 << 20) + 192 * 1024, MD_MAGIC),
            (MD, (64 << 20) + 292 * 1024, MD_MAGIC),
            ("zfs", (64 << 20) + 128 * 1024, big_endian),
            ("zfs", (64 << 20) - 128 * 1024 + 7 * 1024, &ZFS_MAGIC.to_le_bytes()[..]),
            (GPT, bytes - 512, GPT_MAGIC),
            (GPT, bytes - 4096, GPT_MAGIC),
        ] {
            let mut tail = vec![0; TAIL_BYTES];
            let at = (offset - (bytes - TAIL_BYTES as u64)) as usize;
            tail[at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(find_at_end(&tail, bytes), Some(name), "{offset}");
            tail[at] ^= 1;
            assert_eq!(find_at_end(&tail, bytes), None, "{offset}");
        }
        for bytes in [0, 1, 511, 512, 8191, 8192, 65_536, 300_000] {
            assert_eq!(find_at_end(&vec![0; bytes], bytes as u64), None, "{bytes}");
        }
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
        assert_eq!(find(&head), Some(BOOT_SECTOR));
        head[512..520].copy_from_slice(b"EFI PART");
        assert_eq!(find(&head), Some("a partition table (GPT)"));
    }
}
