//! Structures of the format as JSON values, and such values as text for people.

use crate::report::show_uuid;
use crate::when;
use nenrin_format::items::{
    Backref, Checkpoint, Dirent, Extent, Forget, Inode, Landmark, Reap, Segment, Shed, XattrPiece, birth,
};
use nenrin_format::key::{Key, Kind};
use nenrin_format::node::{Entries, NodeHeader, NodePtr};
use nenrin_format::partial::{DATA_FLUSHED, DATA_MOVED, LOGICAL_BEGIN, LOGICAL_END, MapEntry, PartialKind, Summary};
use nenrin_format::records::{ContentOp, Record};
use nenrin_format::root::Root;
use nenrin_format::superblock::Superblock;
use nenrin_format::{Addr, Time};
use serde_json::{Value, json};
use std::fmt::Write as _;

fn name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn time(t: Time) -> String {
    when::show_rfc3339(t.0)
}

fn crc(value: u32) -> String {
    format!("{value:08x}")
}

fn addr(a: Addr) -> String {
    if a.is_payload() { format!("payload+{}", a.0 & 0xffff_ffff) } else { a.to_string() }
}

/// A root slot.
pub fn superblock(sb: &Superblock) -> Value {
    let roots: Vec<Value> = sb.root.iter().map(|(a, c)| json!({"addr": addr(*a), "summary_crc": crc(*c)})).collect();
    let devices: Vec<Value> = sb
        .devices
        .iter()
        .map(|d| {
            json!({
                "uuid": show_uuid(&d.uuid),
                "blocks": d.blocks,
                "member_generation": d.member_generation,
                "stands_since": d.stands_since,
                "active": d.active,
                "removed": d.removed,
                "target_blocks": d.target_blocks,
            })
        })
        .collect();
    let bands: Vec<Value> = sb
        .bands
        .iter()
        .map(|b| {
            let members: Vec<Value> = b.members.iter().map(|(d, unit)| json!({"device": d, "unit": unit})).collect();
            json!({
                "first_segment": b.first.0,
                "segments": b.segments,
                "copies": b.copies,
                "parity": b.parity,
                "members": members,
            })
        })
        .collect();
    json!({
        "generation": sb.generation.0,
        "uuid": show_uuid(&sb.uuid),
        "label": name(&sb.label),
        "device_index": sb.device_index,
        "compat": format!("{:#x}", sb.features[0]),
        "ro_compat": format!("{:#x}", sb.features[1]),
        "incompat": format!("{:#x}", sb.features[2]),
        "epoch": sb.epoch.0,
        "clean": sb.clean,
        "segment_blocks": sb.segment_blocks,
        "profile": sb.profile.name(),
        "stripe_shift": sb.stripe_shift,
        "made_at": time(sb.made_at),
        "written_at": time(sb.written_at),
        "mounted_nanos": sb.mounted_nanos,
        "roots": roots,
        "root_blocks": sb.root_blocks,
        "chain": {"segment": sb.chain.0.0, "block": sb.chain.1},
        "chain_next": sb.chain_next.map(|s| s.0),
        "chain_seq": sb.chain_seq.0,
        "chain_last": addr(sb.chain_last),
        "chain_crc": crc(sb.chain_crc),
        "devices": devices,
        "bands": bands,
    })
}

fn node_ptr(p: &NodePtr) -> Value {
    json!({"copies": [addr(p.copies[0]), addr(p.copies[1])], "crc": crc(p.crc)})
}

/// The roots of an index checkpoint.
pub fn root(r: &Root) -> Value {
    let trees: Vec<Value> = r
        .trees
        .iter()
        .map(|t| {
            json!({
                "tree": t.tree.0,
                "level": t.level,
                "root": t.ptr.as_ref().map(node_ptr),
                "items": t.items,
                "nodes": t.nodes,
                "deaths": [t.deaths.0.0, t.deaths.1.0],
                "sealed": t.sealed,
            })
        })
        .collect();
    let segments: Vec<Value> = r.index_segments.iter().map(|(s, n)| json!({"segment": s.0, "nodes": n})).collect();
    json!({
        "next_ino": r.next_ino.0,
        "open_cno": r.open_cno.0,
        "last_cno": r.last_cno.0,
        "next_tree": r.next_tree,
        "inodes": r.inodes,
        "live_blocks": r.live_blocks,
        "history_blocks": r.history_blocks,
        "named_blocks": r.named_blocks,
        "promised_blocks": r.promised_blocks,
        "retention": name(&r.retention),
        "kept_by_snapshots": r.past.map(|p| json!({"blocks": p.blocks, "bytes": p.bytes, "all_bytes": p.all_bytes})),
        "trees": trees,
        "index_segments": segments,
    })
}

/// The header of a partial segment.
pub fn header(s: &Summary<'_>) -> Value {
    let h = &s.header;
    let flags = [
        (LOGICAL_BEGIN, "begin"),
        (LOGICAL_END, "end"),
        (DATA_FLUSHED, "data-flushed"),
        (DATA_MOVED, "moved-by-cleaner"),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(bit, _)| h.flags & bit != 0).map(|(_, name)| *name).collect();
    json!({
        "addr": addr(h.addr),
        "kind": format!("{:?}", h.kind).to_lowercase(),
        "flags": flags,
        "epoch": h.epoch.0,
        "seq": h.seq.0,
        "prev_addr": addr(h.prev_addr),
        "prev_crc": crc(h.prev_crc),
        "summary_crc": crc(s.crc),
        "payload_crc": crc(h.payload_crc),
        "durable_seq": h.durable_seq.0,
        "open_cno": h.open_cno.0,
        "written_at": time(h.written_at),
        "summary_blocks": h.summary_blocks,
        "payload_blocks": h.payload_blocks,
        "record_bytes": h.record_bytes,
        "map_count": h.map_count,
        "left_out": h.left_out,
        "next": h.next.map(|s| s.0),
    })
}

/// What a run of payload is.
pub fn map_entry(kind: PartialKind, m: &MapEntry) -> Value {
    if kind == PartialKind::Index {
        return json!({
            "tree": m.fork.get(),
            "level": m.level,
            "ino": m.ino.get(),
            "kind": m.kind,
            "off": m.off.get(),
            "blocks": m.blocks.get(),
            "crc": crc(m.crc.get()),
        });
    }
    json!({
        "ino": m.ino.get(),
        "fork": m.fork.get(),
        "off": m.off.get(),
        "blocks": m.blocks.get(),
        "crc": crc(m.crc.get()),
    })
}

fn extent(e: &Extent) -> Value {
    json!({
        "addr": addr(e.addr),
        "blocks": e.blocks,
        "flags": e.flags,
        "birth": e.birth.0,
        "granule_blocks": 1u32 << e.granule_shift.min(16),
        "lead": e.lead,
        "tail": e.tail,
        "crcs": e.crcs.iter().map(|c| crc(*c)).collect::<Vec<_>>(),
    })
}

fn key(k: &Key) -> Value {
    json!({"ino": k.ino, "kind": format!("{:?}", k.kind), "fork": k.fork, "off": k.off, "death": k.death})
}

fn step(op: &ContentOp<'_>) -> Value {
    match op {
        ContentOp::Hole(from, u64::MAX) => json!({"step": "Hole", "from": from, "blocks": "to the end"}),
        ContentOp::Hole(from, blocks) => json!({"step": "Hole", "from": from, "blocks": blocks}),
        ContentOp::Extent(off, e) => json!({"step": "Extent", "off": off, "extent": extent(e)}),
        ContentOp::Inline(bytes) => json!({"step": "Inline", "bytes": bytes.len()}),
        ContentOp::NewFork => json!({"step": "NewFork"}),
    }
}

/// A record.
pub fn record(r: &Record<'_>) -> Value {
    match r {
        Record::Create { parent, ino, mode, uid, gid, rdev, time: t, name: n, target } => json!({
            "record": "Create", "parent": parent.0, "ino": ino.0, "mode": format!("{mode:o}"), "uid": uid, "gid": gid,
            "rdev": rdev, "time": time(*t), "name": name(n), "target": name(target),
        }),
        Record::Link { parent, ino, time: t, name: n } => {
            json!({"record": "Link", "parent": parent.0, "ino": ino.0, "time": time(*t), "name": name(n)})
        }
        Record::Unlink { parent, drop, time: t, name: n } => {
            json!({"record": "Unlink", "parent": parent.0, "drop": drop, "time": time(*t), "name": name(n)})
        }
        Record::Rename { from, to, flags, drop, time: t, old, new } => json!({
            "record": "Rename", "from": from.0, "to": to.0, "flags": flags, "drop": drop, "time": time(*t),
            "old": name(old), "new": name(new),
        }),
        Record::SetAttr { ino, mask, mode, uid, gid, atime, mtime, ctime } => json!({
            "record": "SetAttr", "ino": ino.0, "mask": mask, "mode": format!("{mode:o}"), "uid": uid, "gid": gid,
            "atime": time(*atime), "mtime": time(*mtime), "ctime": time(*ctime),
        }),
        Record::SetXattr { ino, ctime, mode, name: n, value } => json!({
            "record": "SetXattr", "ino": ino.0, "ctime": time(*ctime), "mode": mode, "name": name(n),
            "value_bytes": value.len(),
        }),
        Record::RemoveXattr { ino, ctime, name: n } => {
            json!({"record": "RemoveXattr", "ino": ino.0, "ctime": time(*ctime), "name": name(n)})
        }
        Record::Content { ino, size, mtime, ctime, editor_uid, ops } => json!({
            "record": "Content", "ino": ino.0, "size": size, "mtime": time(*mtime), "ctime": time(*ctime),
            "editor_uid": editor_uid, "steps": ops.iter().map(step).collect::<Vec<_>>(),
        }),
        Record::Release { ino } => json!({"record": "Release", "ino": ino.0}),
        Record::ReapStep { ino, fork, max } => json!({"record": "ReapStep", "ino": ino.0, "fork": fork, "max": max}),
        Record::Checkpoint { cno, wall, mounted_nanos, flags, name: n } => json!({
            "record": "Checkpoint", "cno": cno.0, "wall": time(*wall), "mounted_nanos": mounted_nanos, "flags": flags,
            "name": name(n),
        }),
        Record::NameCheckpoint { cno, name: n } => json!({"record": "NameCheckpoint", "cno": cno.0, "name": name(n)}),
        Record::DropCheckpoints { cnos } => {
            json!({"record": "DropCheckpoints", "cnos": cnos.iter().map(|c| c.0).collect::<Vec<_>>()})
        }
        Record::Landmark { cno, number, landmark: l } => {
            json!({"record": "Landmark", "cno": cno.0, "number": number, "landmark": landmark(l)})
        }
        Record::DropLandmarks { which } => {
            let which: Vec<_> = which.iter().map(|(cno, number)| json!({"cno": cno.0, "number": number})).collect();
            json!({"record": "DropLandmarks", "which": which})
        }
        Record::Sweep { tree, from, max } => {
            json!({"record": "Sweep", "tree": tree.0, "from": key(from), "max": max})
        }
        Record::Seal { tree } => json!({"record": "Seal", "tree": tree.0}),
        Record::Merge { from, into, behind, max } => {
            json!({"record": "Merge", "from": from.0, "into": into.0, "behind": key(behind), "max": max})
        }
        Record::Move { tree, key: k, old, new } => {
            json!({"record": "Move", "tree": tree.0, "key": key(k), "old": addr(*old), "new": extent(new)})
        }
        Record::Share { ino, from, blocks } => {
            json!({"record": "Share", "ino": ino.0, "from": from, "blocks": blocks})
        }
        Record::OpenSegment { segment, kind } => {
            json!({"record": "OpenSegment", "segment": segment.0, "kind": kind})
        }
        Record::Mark => json!({"record": "Mark"}),
        Record::SharePast { ino, cno, from, blocks } => {
            json!({"record": "SharePast", "ino": ino.0, "cno": cno.0, "from": from, "blocks": blocks})
        }
        Record::Retention { value } => json!({"record": "Retention", "value": name(value)}),
        Record::Forget { time: t, inos } => {
            json!({"record": "Forget", "time": time(*t), "inos": inos.iter().map(|i| i.0).collect::<Vec<_>>()})
        }
        Record::ForgetStep { tree, from, max } => {
            json!({"record": "ForgetStep", "tree": tree.0, "from": key(from), "max": max})
        }
        Record::Shed { ino, upto, wall, blocks } => {
            json!({"record": "Shed", "ino": ino.0, "upto": upto.0, "wall": time(*wall), "blocks": blocks})
        }
        Record::ForgetEnd { max } => json!({"record": "ForgetEnd", "max": max}),
    }
}

/// An index node; with its items if wanted.
pub fn index_node(h: &NodeHeader, entries: &Entries, items: bool) -> Value {
    let mut out = json!({
        "tree": h.tree.get(),
        "level": h.level,
        "count": h.count.get(),
        "used_bytes": h.used_bytes.get(),
        "generation": h.generation.get(),
        "crc": crc(h.crc.get()),
    });
    if items {
        out["entries"] = match entries {
            Entries::Leaf(v) => v.iter().map(|(k, v)| json!({"key": key(k), "value": item(k, v)})).collect(),
            Entries::Inner(v) => v.iter().map(|(k, p)| json!({"key": key(k), "child": node_ptr(p)})).collect(),
        };
    }
    out
}

/// The value of an item.
fn item(k: &Key, value: &[u8]) -> Value {
    let shown = match k.kind {
        Kind::Inode => Inode::decode(value).map(|i| {
            json!({
                "birth": i.birth.0, "mode": format!("{:o}", i.mode), "nlink": i.nlink, "uid": i.uid, "gid": i.gid,
                "size": i.size, "blocks": i.blocks, "atime": time(i.atime), "mtime": time(i.mtime),
                "ctime": time(i.ctime), "btime": time(i.btime), "rdev": i.rdev, "fork": i.fork,
                "editor_uid": i.editor_uid, "flags": i.flags, "parent": i.parent.0, "entries": i.entries,
            })
        }),
        Kind::Dirent | Kind::Link => Dirent::decode(value)
            .map(|d| json!({"birth": d.birth.0, "ino": d.ino.0, "file_type": d.file_type, "name": name(d.name)})),
        Kind::Xattr => XattrPiece::decode(value).map(
            |x| json!({"birth": x.birth.0, "value_bytes": x.value_bytes, "name": name(x.name), "bytes": x.bytes.len()}),
        ),
        Kind::Extent => Extent::decode(value).map(|e| extent(&e)),
        Kind::Inline => birth(value).map(|b| json!({"birth": b.0, "bytes": value.len() - 8})),
        Kind::Symlink => birth(value).map(|b| json!({"birth": b.0, "target": name(&value[8..])})),
        Kind::Segment => Segment::decode(value).map(|s| {
            json!({
                "live_blocks": s.live_blocks, "history_blocks": s.history_blocks,
                "emptied_generation": s.emptied_generation, "chain_seq": s.chain_seq.0,
                "written_at": time(s.written_at), "kind": s.kind,
            })
        }),
        Kind::Checkpoint => Checkpoint::decode(value).map(|c| {
            json!({
                "wall": time(c.wall), "mounted_nanos": c.mounted_nanos, "flags": c.flags, "name": name(&c.name),
            })
        }),
        Kind::Landmark => Landmark::decode(value).map(|l| landmark(&l)),
        Kind::Orphan | Kind::Reap => {
            Reap::decode(value).map(|r| json!({"death": r.death.0, "fork": r.fork, "whole": r.whole}))
        }
        Kind::Forget => Forget::decode(value).map(|f| json!({"begun": time(f.begun)})),
        Kind::Shed => Shed::decode(value).map(
            |s| json!({"upto": s.upto.0, "at": s.at.0, "wall": time(s.wall), "blocks": s.blocks}),
        ),
        Kind::Backref => Backref::decode(value).map(|b| {
            json!({
                "ino": b.owner.ino, "fork": b.owner.fork, "off": b.owner.off, "death": b.owner.death, "blocks": b.blocks,
            })
        }),
    };
    shown.unwrap_or_else(|why| json!({"invalid": why.to_string()}))
}

fn landmark(l: &Landmark) -> Value {
    let steps: Vec<_> = l.steps.iter().map(|(directory, off)| json!({"directory": directory.0, "off": off})).collect();
    json!({
        "ino": l.ino.0, "wall": time(l.wall), "mounted_nanos": l.mounted_nanos, "stood_nanos": l.stood_nanos,
        "level": l.level, "steps": steps,
    })
}

/// A value as indented text: simple members on one line, lists below.
pub fn text(value: &Value) -> String {
    let mut out = String::new();
    write_text(&mut out, value, 0);
    out
}

fn write_text(out: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            let (long, short): (Vec<_>, Vec<_>) = map.iter().partition(|(_, v)| is_long(v));
            let line: Vec<String> = short.iter().map(|(k, v)| format!("{k}={}", plain(v))).collect();
            if !line.is_empty() {
                let _ = writeln!(out, "{indent}{}", line.join(" "));
            }
            for (k, v) in long {
                let _ = writeln!(out, "{indent}{k}:");
                write_text(out, v, depth + 1);
            }
        }
        Value::Array(all) => {
            for v in all {
                write_text(out, v, depth);
            }
        }
        other => {
            let _ = writeln!(out, "{indent}{}", plain(other));
        }
    }
}

/// Whether a value needs lines of its own.
fn is_long(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.len() > 6 || map.values().any(|v| v.is_object() || is_long(v)),
        Value::Array(all) => all.iter().any(|v| v.is_array() || v.is_object()),
        _ => false,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(s) if !s.is_empty() && !s.contains([' ', '"', '=']) => crate::output::printable(s),
        Value::String(s) => format!("{s:?}"),
        Value::Array(all) => format!("[{}]", all.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let all: Vec<String> = map.iter().map(|(k, v)| format!("{k}={}", plain(v))).collect();
            format!("({})", all.join(" "))
        }
        other => other.to_string(),
    }
}
