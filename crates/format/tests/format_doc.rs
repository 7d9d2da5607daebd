//! `docs/FORMAT.md` and this crate say the same: structs, records, constants.
//! The document is parsed here, so a change on either side alone fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use nenrin_format as fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document() -> String {
    fs::read_to_string(root().join("docs/FORMAT.md")).unwrap()
}

/// All sources of the crate, one string for each file.
fn sources() -> Vec<String> {
    let mut out = Vec::new();
    let mut dirs = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(fs::read_to_string(path).unwrap());
            }
        }
    }
    out
}

type Row = Vec<String>;

fn cells(line: &str) -> Row {
    line.trim().trim_matches('|').split('|').map(|c| c.trim().trim_matches('`').to_owned()).collect()
}

/// Every table of the document: its heading row, and its rows.
fn tables(text: &str) -> Vec<(String, Row, Vec<Row>)> {
    let mut out: Vec<(String, Row, Vec<Row>)> = Vec::new();
    let mut heading = String::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim().to_owned();
        }
        let is_row = line.starts_with('|');
        if is_row && !inside {
            out.push((heading.clone(), cells(line), Vec::new()));
        } else if is_row && !line.starts_with("|---") {
            out.last_mut().unwrap().2.push(cells(line));
        }
        inside = is_row;
    }
    out
}

fn table(first: &str, second: &str) -> Vec<Row> {
    let found: Vec<_> =
        tables(&document()).into_iter().filter(|(_, head, _)| head[0] == first && head[1] == second).collect();
    assert_eq!(found.len(), 1, "FORMAT.md must have exactly one table | {first} | {second} |");
    found.into_iter().next().unwrap().2
}

#[test]
fn structs_are_as_documented() {
    let mut documented = BTreeMap::new();
    for (heading, head, rows) in tables(&document()) {
        if head == ["offset", "bytes", "field", "meaning"] {
            assert!(documented.insert(heading.clone(), rows).is_none(), "{heading}: described twice");
        }
    }
    for layout in fmt::layouts() {
        let heading = format!("{} ({} bytes)", layout.name, layout.bytes);
        let rows = documented.remove(&heading).unwrap_or_else(|| panic!("FORMAT.md has no table `### {heading}`"));
        let code: Vec<Row> =
            layout.fields.iter().map(|f| vec![f.offset.to_string(), f.bytes.to_string(), f.name.to_owned()]).collect();
        let doc: Vec<Row> = rows.iter().map(|r| r[..3].to_vec()).collect();
        assert_eq!(doc, code, "left: FORMAT.md, right: {}", layout.name);
        assert!(rows.iter().all(|r| !r[3].is_empty()), "{heading}: a field without a meaning");
        // Fields touch: no byte of a struct is without a name.
        let end = layout.fields.iter().fold(0, |at, f| {
            assert_eq!(f.offset, at, "{}.{}: a gap", layout.name, f.name);
            at + f.bytes
        });
        assert_eq!(end, layout.bytes, "{}: a gap at the end", layout.name);
    }
    assert!(documented.is_empty(), "in FORMAT.md, but not in the code: {:?}", documented.keys());
}

#[test]
fn every_disk_struct_is_listed() {
    let mut declared = BTreeSet::new();
    for text in sources() {
        for part in text.split("disk_struct! {").skip(1) {
            let after = part.split_once("pub struct ").unwrap().1;
            declared.insert(after.split_whitespace().next().unwrap().to_owned());
        }
    }
    let listed: BTreeSet<String> = fmt::layouts().iter().map(|l| l.name.to_owned()).collect();
    assert!(declared.len() > 10, "the sources were not found");
    assert_eq!(declared, listed, "left: disk_struct! in the sources, right: layouts()");
}

#[test]
fn records_are_as_documented() {
    let doc = table("type", "record");
    let code: Vec<Row> =
        fmt::records::TABLE.iter().map(|(n, name, body)| vec![n.to_string(), (*name).into(), (*body).into()]).collect();
    assert_eq!(doc, code, "left: FORMAT.md, right: records::TABLE");
}

#[test]
fn steps_are_as_documented() {
    use fmt::records::{ContentOp, Record};
    let extent = fmt::items::Extent {
        birth: fmt::Cno(0),
        addr: fmt::Addr::NONE,
        blocks: 1,
        flags: fmt::items::EXTENT_UNWRITTEN,
        granule_shift: 0,
        lead: 0,
        tail: 0,
        crcs: vec![],
    };
    let steps = [
        ("Hole", ContentOp::Hole(0, 0)),
        ("Extent", ContentOp::Extent(0, extent)),
        ("Inline", ContentOp::Inline(b"")),
        ("NewFork", ContentOp::NewFork),
    ];
    let empty = |ops| {
        let mut out = Vec::new();
        let zero = fmt::Time(0);
        Record::Content { ino: fmt::Ino(0), size: 0, mtime: zero, ctime: zero, editor_uid: 0, ops }
            .encode_into(&mut out);
        out
    };
    let head = empty(vec![]).len();
    let code: Vec<Row> =
        steps.into_iter().map(|(name, op)| vec![empty(vec![op])[head].to_string(), name.to_owned()]).collect();
    let doc: Vec<Row> = table("type", "step").iter().map(|r| r[..2].to_vec()).collect();
    assert_eq!(doc, code, "left: FORMAT.md, right: ContentOp");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Every constant of the crate that a reader of a volume must know.
fn constants() -> Vec<(&'static str, String)> {
    use fmt::{
        SEGMENTS_MAX, features::*, heartbeat::*, items::*, key::Key, node::*, packed::*, partial::*, records::*,
        row_log::*, superblock::*, units::*,
    };
    macro_rules! list {
        ($($($name:ident)::+ $(. $field:tt)?),* $(,)?) => {
            vec![$((concat!($("::", stringify!($name)),+).trim_start_matches("::"), ($($name)::+ $(.$field)?).to_string())),*]
        };
    }
    let mut all = list![
        BLOCK_BYTES,
        NODE_BYTES,
        NODE_BLOCKS,
        HEARTBEAT_BLOCK,
        NODE_BYTES_MAX,
        AREA_BLOCKS,
        SLOT_BLOCK,
        SLOTS_PER_AREA,
        DEVICES_MAX,
        BANDS_MAX,
        SEGMENTS_MAX,
        NUMBERS_UNUSED_MAX,
        UNIT_BLOCKS,
        ROW_SLOTS,
        ROW_LOG_UNITS,
        LABEL_BYTES_MAX,
        SUMMARY_BLOCKS_MAX,
        Addr::BLOCK_BITS,
        Addr::NONE.0,
        Addr::PAYLOAD,
        Key::BYTES,
        NODE_ROOM_BYTES,
        LEAF_ENTRY_EXTRA,
        ENTRY_NEAR,
        ENTRY_DEATH,
        ENTRY_EXTENT,
        ENTRY_SINGLE,
        ENTRY_NOWHERE,
        INNER_ENTRY_BYTES,
        VALUE_BYTES_MAX,
        TreeId::LIVE.0,
        TreeId::SPACE.0,
        TreeId::HISTORY.0,
        Ino::ROOT.0,
        Ino::FIRST.0,
        Cno::NEVER.0,
        NAME_BYTES_MAX,
        SYMLINK_BYTES_MAX,
        XATTR_BYTES_MAX,
        XATTR_PIECE_BYTES,
        INLINE_BYTES_MAX,
        EXTENT_BLOCKS_MAX,
        COUNTER_MAX,
        INODE_XATTR,
        INODE_ACL,
        INODE_CAPS,
        INODE_HISTORY_MASK,
        INODE_HISTORY_INHERITED,
        EXTENT_UNWRITTEN,
        EXTENT_SHARED,
        EXTENT_LOST,
        EXTENT_KEEP_MASK,
        CHECKPOINT_NAMED,
        CHECKPOINT_ASKED,
        CHECKPOINT_DAILY,
        CHECKPOINT_MOUNT,
        LOGICAL_BEGIN,
        LOGICAL_END,
        DATA_FLUSHED,
        DATA_MOVED,
        RENAME_EXCHANGE,
        attr_mask::MODE,
        attr_mask::UID,
        attr_mask::GID,
        attr_mask::ATIME,
        attr_mask::MTIME,
        attr_mask::CTIME,
        VERSION,
        COMPAT_KNOWN,
        RO_COMPAT_KNOWN,
        INCOMPAT_KNOWN,
    ];
    all.push(("SUPERBLOCK_MAGIC", hex(&SUPERBLOCK_MAGIC)));
    all.push(("HEARTBEAT_MAGIC", hex(&HEARTBEAT_MAGIC)));
    all.push(("PARTIAL_MAGIC", hex(&PARTIAL_MAGIC.to_le_bytes())));
    all.push(("ROW_LOG_MAGIC", hex(&ROW_LOG_MAGIC.to_le_bytes())));
    all.push(("NODE_MAGIC", hex(&NODE_MAGIC.to_le_bytes())));
    all.push(("HISTORY_XATTR", String::from_utf8_lossy(HISTORY_XATTR).into_owned()));
    all
}

#[test]
fn constants_are_as_documented() {
    let doc: BTreeMap<String, String> =
        table("constant", "value").into_iter().map(|r| (r[0].clone(), r[1].clone())).collect();
    let code: BTreeMap<String, String> = constants().into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
    assert_eq!(doc, code, "left: FORMAT.md, right: the code");
}

#[test]
fn every_constant_is_listed() {
    // Said elsewhere in the document, or no part of it.
    let elsewhere = [
        "LAYOUT",   // the tables of the structs
        "TABLE",    // the table of records
        "VERSIONS", // the table of versions
    ];
    let listed: BTreeSet<&str> = constants().iter().map(|(n, _)| n.rsplit(':').next().unwrap()).collect();
    for text in sources() {
        // Numbers of records and steps are private, and tested by the tables above.
        let text = text.split("\nmod tag {").enumerate().map(|(i, part)| match i {
            0 => part,
            _ => part.split_once("\n}").unwrap().1,
        });
        for line in text.flat_map(str::lines) {
            let Some(rest) = line.trim().strip_prefix("pub const ") else { continue };
            let name = rest.split(':').next().unwrap();
            if name.chars().all(|c| c.is_ascii_uppercase() || c == '_') && !elsewhere.contains(&name) {
                assert!(listed.contains(name), "{name} is missing in constants() and FORMAT.md");
            }
        }
    }
}

/// Numbers a `from_u8` knows, with their names.
fn numbers<T: std::fmt::Debug>(from: impl Fn(u8) -> Option<T>) -> Vec<(String, u8)> {
    (0..=255).filter_map(|n| from(n).map(|k| (format!("{k:?}"), n))).collect()
}

fn documented_numbers(first: &str, third: Option<&str>) -> Vec<(String, u8)> {
    tables(&document())
        .into_iter()
        .find(|(_, head, _)| head[0] == first && head[1] == "number" && head.get(2).map(String::as_str) == third)
        .unwrap()
        .2
        .iter()
        .map(|r| (r[0].clone(), r[1].parse().unwrap()))
        .collect()
}

#[test]
fn kinds_are_as_documented() {
    use fmt::{key::Kind, partial::PartialKind, superblock::Profile};
    assert_eq!(documented_numbers("kind", Some("tree")), numbers(|n| Kind::from_u8(n).ok()));
    assert_eq!(documented_numbers("kind", Some("what it carries")), numbers(|n| PartialKind::from_u8(n).ok()));
    let profiles: Vec<(String, u8)> = numbers(|n| Profile::from_u8(n).ok().map(Profile::name))
        .into_iter()
        .map(|(s, n)| (s.replace('"', ""), n))
        .collect();
    assert_eq!(documented_numbers("profile", None), profiles);
}

#[test]
fn versions_are_as_documented() {
    let doc = table("version", "why");
    let code: Vec<Row> = fmt::features::VERSIONS.iter().map(|(n, why)| vec![n.to_string(), (*why).into()]).collect();
    assert_eq!(doc, code);
}

#[test]
fn the_checksum_is_the_documented_one() {
    assert!(document().contains(&format!("{:#010x}", fmt::crc(b"123456789"))));
}
