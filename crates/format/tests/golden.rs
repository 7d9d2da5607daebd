//! Fixed values and the bytes they must become, kept in `testdata/format.hex`,
//! so that no change of the format goes unnoticed. A wanted change (until the
//! first release) is taken over with `NENRIN_GOLDEN=write cargo test -p
//! nenrin-format --test golden`, and its diff is read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use nenrin_format::heartbeat::Heartbeat;
use nenrin_format::items::{
    Checkpoint, Dirent, Extent, Inode, Keep, KeepRule, Landmark, Reap, Segment, Shed, XattrPiece,
};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{Entries, NodePtr, TreeId};
use nenrin_format::partial::{Header, MapEntry, PartialKind};
use nenrin_format::records::{ContentOp, Record};
use nenrin_format::root::{Past, Root, TreeRoot};
use nenrin_format::row_log::{RowEntry, RowLog};
use nenrin_format::superblock::{Band, DeviceEntry, Profile, Scrubbed, Superblock, Trouble};
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, Cno, Epoch, Generation, Ino, SegmentNo, Seq, Time};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

fn addr(segment: u64, block: u32) -> Addr {
    Addr::new(SegmentNo(segment), block)
}

fn heartbeat() -> Heartbeat {
    Heartbeat {
        interval_millis: 2000,
        owner: *b"0123456789abcdef",
        sequence: 0x0102_0304_0506_0708,
        written_at: Time(-2),
        in_use: true,
        node: b"host".to_vec(),
    }
}

/// A claim, and the head of an entry.
fn row_log() -> [RowLog; 2] {
    let claim = RowLog { number: 0x0102_0304, row: Some((SegmentNo(0x55), 6)), slot: 7, entry: None };
    let entry = RowEntry { unit: 1, block: 3, blocks: 12, payload_crc: 0xaabb_ccdd };
    [claim, RowLog { entry: Some(entry), ..claim }]
}

fn superblock() -> Superblock {
    let device = |uuid, active| DeviceEntry {
        active,
        target_blocks: 0x8000,
        stands_since: 3,
        ..DeviceEntry::active(uuid, 0x1_0020, 4)
    };
    Superblock {
        device_index: 0,
        uuid: *b"0123456789abcdef",
        features: [0x11, 0, 0],
        generation: Generation(0x1122),
        epoch: Epoch(0x33),
        segment_blocks: 2048,
        profile: Profile::Mirror,
        stripe_shift: 16,
        clean: true,
        hash_key: *b"fedcba9876543210",
        mount_id: 0x5152_5354_5556_5758,
        troubles: Default::default(),
        scrubbed: None,
        made_at: Time(1_700_000_000_000_000_001),
        written_at: Time(-2),
        mounted_nanos: 0x0102_0304_0506,
        root: [(addr(5, 7), 0xaabb_ccdd), (addr(6, 8), 0x1122_3344)],
        root_blocks: 3,
        chain: (SegmentNo(9), 17),
        chain_next: Some(SegmentNo(10)),
        chain_seq: Seq(0x7766),
        chain_last: addr(9, 15),
        chain_crc: 0xdead_beef,
        label: "年輪".as_bytes().to_vec(),
        devices: vec![device(*b"DEVICE0123456789", true), device(*b"DEVICE1123456789", false)],
        bands: vec![
            Band { first: SegmentNo(0), segments: 20, copies: 2, parity: false, members: vec![(1, 0), (0, 0x102)] },
            Band { first: SegmentNo(20), segments: 3, copies: 1, parity: true, members: vec![(1, 0xa00), (0, 0xb10)] },
        ],
    }
}

fn extent() -> Extent {
    Extent {
        birth: Cno(3),
        addr: addr(12, 100),
        blocks: 5,
        flags: 0,
        granule_shift: 2,
        lead: 1,
        tail: 2,
        crcs: vec![0x0102_0304, 0x0506_0708],
    }
}

fn key() -> Key {
    Key::new(Ino(0x1234), Kind::Extent, 2, 0x99).died(0x55)
}

fn records() -> Vec<Record<'static>> {
    let time = Time(0x0102_0304_0506_0708);
    vec![
        Record::Create {
            parent: Ino(1),
            ino: Ino(16),
            mode: 0o120_777,
            uid: 1000,
            gid: 100,
            rdev: 0x0801,
            time,
            name: b"name",
            target: b"target",
        },
        Record::Link { parent: Ino(1), ino: Ino(16), time, name: b"second" },
        Record::Unlink { parent: Ino(1), drop: true, time, name: b"name" },
        Record::Rename { from: Ino(1), to: Ino(17), flags: 1, drop: false, time, old: b"old", new: b"new" },
        Record::SetAttr {
            ino: Ino(16),
            mask: 63,
            mode: 0o644,
            uid: 1,
            gid: 2,
            atime: time,
            mtime: Time(-1),
            ctime: Time(0),
        },
        Record::SetXattr { ino: Ino(16), ctime: time, mode: u32::MAX, name: b"user.a", value: b"value" },
        Record::RemoveXattr { ino: Ino(16), ctime: time, name: b"user.a" },
        Record::Content {
            ino: Ino(16),
            size: 20_000,
            mtime: time,
            ctime: time,
            editor_uid: 1000,
            ops: vec![
                ContentOp::NewFork,
                ContentOp::Hole(7, u64::MAX),
                ContentOp::Extent(0, extent()),
                ContentOp::Inline(b"inline"),
            ],
        },
        Record::Release { ino: Ino(16) },
        Record::ReapStep { ino: Ino(16), fork: 1, max: 64 },
        Record::Checkpoint { cno: Cno(4), wall: time, mounted_nanos: 77, flags: 3, name: b"snap" },
        Record::NameCheckpoint { cno: Cno(4), name: b"" },
        Record::DropCheckpoints { cnos: vec![Cno(1), Cno(2)] },
        Record::Sweep { tree: TreeId(16), from: key(), max: 128 },
        Record::Move { tree: TreeId(1), key: key().living(), old: addr(2, 3), new: extent() },
        Record::Share { ino: Ino(16), from: 1, blocks: 3 },
        Record::OpenSegment { segment: SegmentNo(8), kind: 2 },
        Record::Mark,
        Record::Retention { value: b"all:1h" },
        Record::SharePast { ino: Ino(16), cno: Cno(7), from: 1, blocks: 3 },
        Record::Landmark { cno: Cno(7), number: 1, landmark: landmark() },
        Record::DropLandmarks { which: vec![(Cno(7), 1), (Cno(8), 0)] },
        Record::Forget { time, inos: vec![Ino(16), Ino(17)] },
        Record::ForgetStep { tree: TreeId(16), from: key(), max: 128 },
        Record::ForgetEnd { max: 64 },
        Record::Shed { ino: Ino(16), upto: Cno(9), wall: time, blocks: 5 },
        Record::Seal { tree: TreeId(17) },
        Record::Merge { from: TreeId(17), into: TreeId(16), behind: key(), max: 256 },
    ]
}

fn landmark() -> Landmark {
    let steps = vec![(Ino(1), 0x1230), (Ino(17), 0x4561)];
    Landmark { ino: Ino(18), wall: Time(1), mounted_nanos: 2, stood_nanos: 3, level: 4, steps }
}

fn record_bytes() -> Vec<u8> {
    let mut out = Vec::new();
    for r in records() {
        r.encode_into(&mut out);
    }
    out
}

fn header() -> Header {
    Header {
        kind: PartialKind::Chain,
        flags: 7,
        summary_blocks: 1,
        uuid: superblock().uuid,
        epoch: Epoch(0x33),
        seq: Seq(0x7767),
        addr: addr(9, 17),
        prev_addr: addr(9, 15),
        prev_crc: 0xdead_beef,
        payload_crc: 0x1357_9bdf,
        durable_seq: Seq(0x7760),
        open_cno: Cno(5),
        written_at: Time(1_700_000_000_000_000_002),
        record_bytes: record_bytes().len() as u32,
        map_count: 1,
        payload_blocks: 2,
        left_out: 32,
        next: Some(SegmentNo(10)),
        mount_id: 0x5152_5354_5556_5758,
    }
}

/// Each in its place of the slot.
#[test]
fn what_devices_did_wrong_lies_where_the_document_says() {
    let mut s = superblock();
    s.troubles[1] = Trouble { unread: 1, wrong: 0x0203, failed: 4 };
    let bytes = s.encode();
    assert_eq!(bytes[272..284], [0, 0, 0, 0, 0, 0, 1, 0, 3, 2, 4, 0]);
    assert_eq!(Superblock::decode(&bytes).unwrap().troubles, s.troubles);
}

#[test]
fn what_a_scrub_found_lies_where_the_document_says() {
    let mut s = superblock();
    assert_eq!(Superblock::decode(&s.encode()).unwrap().scrubbed, None);
    s.scrubbed = Some(Scrubbed { ended_at: Time(0x0102), content: 3, nodes: 4, copies: u32::MAX });
    let bytes = s.encode();
    assert_eq!(bytes[464..472], [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[472..488], [3, 0, 0, 0, 4, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]);
    assert_eq!(Superblock::decode(&bytes).unwrap().scrubbed, s.scrubbed);
}

fn map() -> Vec<MapEntry> {
    let mut m = MapEntry::zeroed();
    m.kind = 5;
    m.ino.set(16);
    m.off.set(9);
    m.fork.set(1);
    m.blocks.set(2);
    m.crc.set(0x2468_ace0);
    m.level = 1;
    vec![m]
}

fn items() -> Vec<(Key, Arc<[u8]>)> {
    let inode = Inode {
        birth: Cno(2),
        mode: 0o100_644,
        nlink: 2,
        uid: 1000,
        gid: 100,
        size: 20_000,
        blocks: 5,
        atime: Time(1),
        mtime: Time(2),
        ctime: Time(3),
        btime: Time(4),
        rdev: 5,
        fork: 1,
        editor_uid: 1000,
        flags: 0x77,
        parent: Ino(6),
        entries: 7,
        history_since: Cno(2),
    };
    let ino = Ino(16);
    let dirent = Dirent { birth: Cno(2), ino: Ino(17), file_type: 8, name: b"file" };
    let xattr = XattrPiece { birth: Cno(2), value_bytes: 5, name: b"user.a", bytes: b"value" };
    vec![
        (Key::new(ino, Kind::Inode, 0, 0), inode.encode().into()),
        (Key::new(ino, Kind::Xattr, 0, 3), xattr.encode().into()),
        (Key::new(ino, Kind::Dirent, 0, 0x1_0000), dirent.encode().into()),
        (Key::new(ino, Kind::Extent, 1, 0), extent().encode().into()),
    ]
}

fn space_items() -> Vec<(Key, Arc<[u8]>)> {
    let segment = Segment {
        live_blocks: 10,
        history_blocks: 11,
        emptied_generation: 12,
        chain_seq: Seq(13),
        written_at: Time(14),
        kind: 2,
    };
    let checkpoint = Checkpoint { wall: Time(1), mounted_nanos: 2, flags: 3, name: b"snap".to_vec(), named_at: Cno(4) };
    let rule = KeepRule { keep: Keep::Daily, since: Cno(3) };
    let shed = Shed { upto: Cno(3), at: Cno(5), wall: Time(6), blocks: 7 };
    let reap = Reap { death: Cno(4), fork: 5, whole: true, rule };
    vec![
        (Key::space(Kind::Segment, 0, 3), segment.encode().into()),
        (Key::space(Kind::Checkpoint, 0, 4), checkpoint.encode().into()),
        (Key::space(Kind::Reap, 5, 16), reap.encode().into()),
        (Key::space(Kind::Landmark, 1, 7), landmark().encode().into()),
        (Key::space(Kind::Shed, 0, 16), shed.encode().into()),
    ]
}

fn inner() -> Entries {
    let ptr = |n: u64| NodePtr { copies: [addr(n, 4), addr(n + 1, 8)], crc: 0x0bad_cafe };
    Entries::Inner(vec![
        (Key::new(Ino(1), Kind::Inode, 0, 0), ptr(20)),
        (Key::new(Ino(99), Kind::Inode, 0, 0), ptr(30)),
    ])
}

fn root() -> Root {
    Root {
        next_ino: Ino(18),
        open_cno: Cno(5),
        last_cno: Cno(4),
        next_tree: 17,
        inodes: 3,
        live_blocks: 5,
        history_blocks: 6,
        named_blocks: 7,
        promised_blocks: 5,
        retention: b"1h:all".to_vec(),
        past: Some(Past { blocks: 4, bytes: 300, all_bytes: 500 }),
        trees: vec![
            TreeRoot {
                tree: TreeId::LIVE,
                level: 1,
                ptr: Some(NodePtr { copies: [addr(20, 4), addr(21, 8)], crc: 0x0bad_cafe }),
                items: 8,
                nodes: 9,
                deaths: (Cno(0), Cno(0)),
                sealed: false,
            },
            TreeRoot {
                tree: TreeId::HISTORY,
                level: 0,
                ptr: None,
                items: 0,
                nodes: 0,
                deaths: (Cno(1), Cno(4)),
                sealed: true,
            },
        ],
        index_segments: vec![(SegmentNo(20), 3), (SegmentNo(21), 3)],
    }
}

fn everything() -> Vec<(&'static str, Vec<u8>)> {
    use nenrin_format::node::encode;
    vec![
        ("root slot", superblock().encode()),
        ("heartbeat", heartbeat().encode()),
        ("row log", row_log().iter().flat_map(|r| r.encode(*b"0123456789abcdef")).collect()),
        ("summary", header().encode(&record_bytes(), &map()).0),
        ("key", key().encode().to_vec()),
        ("leaf", encode(TreeId::LIVE, 0, 0x1122, &Entries::Leaf(items()))),
        ("space leaf", encode(TreeId::SPACE, 0, 0x1122, &Entries::Leaf(space_items()))),
        ("inner node", encode(TreeId::LIVE, 1, 0x1122, &inner())),
        ("root", root().encode()),
    ]
}

/// Sixteen bytes a line behind their offset; lines of zeros are left out.
fn text() -> String {
    let mut out = String::from("# Written by crates/format/tests/golden.rs. Lines of zeros are left out.\n");
    for (name, bytes) in everything() {
        writeln!(out, "\n[{name}] {} bytes", bytes.len()).unwrap();
        for (i, line) in bytes.chunks(16).enumerate() {
            if line.iter().any(|b| *b != 0) {
                let hex: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
                writeln!(out, "{:04x}  {}", i * 16, hex.join(" ")).unwrap();
            }
        }
    }
    out
}

#[test]
fn bytes_are_as_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/format.hex");
    let now = text();
    if std::env::var_os("NENRIN_GOLDEN").is_some_and(|v| v == "write") {
        std::fs::write(&path, &now).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap();
    for (n, (was, is)) in recorded.lines().zip(now.lines()).enumerate() {
        assert_eq!(was, is, "line {} of testdata/format.hex (left: recorded, right: now)", n + 1);
    }
    assert_eq!(recorded.lines().count(), now.lines().count());
}

#[test]
fn bytes_mean_what_was_written() {
    assert_eq!(Superblock::decode(&superblock().encode()).unwrap(), superblock());
    assert_eq!(Heartbeat::decode(&heartbeat().encode()).unwrap(), Some(heartbeat()));
    for log in row_log() {
        assert_eq!(RowLog::decode(&log.encode([7; 16]), [7; 16]), Ok(log));
    }
    let (bytes, crc) = header().encode(&record_bytes(), &map());
    let summary = Header::decode(&bytes).unwrap();
    assert_eq!((summary.header, summary.crc, summary.map), (header(), crc, map()));
    let mut reader = Reader::new(summary.records);
    for record in records() {
        assert_eq!(Record::decode(&mut reader).unwrap(), record);
    }
    assert!(reader.is_empty());
    assert_eq!(Key::decode(&key().encode()).unwrap(), key());
    let leaf = nenrin_format::node::encode(TreeId::LIVE, 0, 1, &Entries::Leaf(items()));
    assert_eq!(nenrin_format::node::decode(TreeId::LIVE, &leaf).unwrap().1, Entries::Leaf(items()));
    let node = nenrin_format::node::encode(TreeId::LIVE, 1, 1, &inner());
    assert_eq!(nenrin_format::node::decode(TreeId::LIVE, &node).unwrap().1, inner());
    assert_eq!(Root::decode(&root().encode()).unwrap(), root());
}

#[test]
fn every_record_is_recorded() {
    let bytes: Vec<u8> = records()
        .iter()
        .map(|r| {
            let mut out = Vec::new();
            r.encode_into(&mut out);
            out[0]
        })
        .collect();
    let table: Vec<u8> = nenrin_format::records::TABLE.iter().map(|(n, ..)| *n).collect();
    assert_eq!(bytes, table);
}

/// A flipped bit anywhere in what a checksum covers is noticed.
#[test]
fn every_flip_is_noticed() {
    let slot = superblock().encode();
    for i in 0..2048 {
        let mut b = slot.clone();
        b[i] ^= 0x10;
        assert!(Superblock::decode(&b).is_err(), "byte {i} of the root slot");
    }
    let (summary, _) = header().encode(&record_bytes(), &map());
    for i in 0..summary.len() {
        let mut b = summary.clone();
        b[i] ^= 0x10;
        assert!(Header::decode(&b).is_err(), "byte {i} of the summary");
    }
    let leaf = nenrin_format::node::encode(TreeId::LIVE, 0, 1, &Entries::Leaf(items()));
    for i in 0..leaf.len() {
        let mut b = leaf.clone();
        b[i] ^= 0x10;
        assert!(nenrin_format::node::decode(TreeId::LIVE, &b).is_err(), "byte {i} of the leaf");
    }
}
