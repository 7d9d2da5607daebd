//! `nenrin dump`: what is on a device, structure by structure, straight from its
//! bytes. It opens no volume, so it also shows what cannot be mounted.

use crate::command::{Command, arguments};
use crate::describe;
use crate::device::{self, Device};
use crate::error::{At, Fail, Outcome};
use crate::{output, tag};
use nenrin_device::{BLOCK_BYTES, OpenMode};
use nenrin_format::node::{self, TreeId};
use nenrin_format::partial::{Header, PartialHeader, PartialKind, SUMMARY_BLOCKS_MAX, Summary};
use nenrin_format::records::Record;
use nenrin_format::root::Root;
use nenrin_format::superblock::{AREA_BLOCKS, SLOT_BLOCK, SLOTS_PER_AREA, Superblock};
use nenrin_format::wire::Reader;
use nenrin_format::{Addr, Invalid, NODE_BYTES, SegmentNo};
use serde_json::{Value, json};
use std::path::Path;

/// The command.
pub const COMMAND: Command = Command {
    name: "dump",
    usage: &["dump [--json] [--nodes] DEVICE [SEGMENT]"],
    about: "Decodes what is on a device: root slots and roots, or one segment with its records",
    options: &[("--nodes", "with SEGMENT: the items of index nodes too"), ("--json", "as JSON")],
    notes: "DEVICE may be LABEL=NAME or UUID=... as well.\n\
            Nothing is recovered, and nothing is written. The structures are described in docs/FORMAT.md.",
    examples: &[
        ("dump work.img", "the root slots, and the roots they name"),
        ("dump work.img 3", "every partial segment in segment 3"),
    ],
    run,
};

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut as_json, mut nodes) = (false, false);
    let given = arguments(&COMMAND, parser, 2, |flag, _| {
        match flag.shown().as_str() {
            "--json" => as_json = true,
            "--nodes" => nodes = true,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let path = &*tag::device(Path::new(given.first().ok_or_else(|| COMMAND.misuse("a device is needed"))?))?;
    let segment = match given.get(1) {
        Some(text) => Some(text.to_str().and_then(|t| t.parse().ok()).ok_or_else(|| {
            Fail::usage(format!("{text:?}: the number of a segment is needed; nenrin segments lists them"))
        })?),
        None => None,
    };
    // Not exclusive: a mounted volume may be looked at, while it changes.
    let device = device::open(path, OpenMode { exclusive: false, ..OpenMode::READER })?;
    let found = match segment {
        None => {
            known(path, &device)?;
            slots(&device).at(path.display())?
        }
        Some(n) => dump_segment(path, &device, n, nodes)?,
    };
    if as_json {
        output::json(&found)?;
    } else {
        output::print(&describe::text(&found));
    }
    Ok(0)
}

/// Refuses what shows no trace of a volume, as other commands do; a damaged one is what this is for.
fn known(path: &Path, device: &Device) -> Result<(), Fail> {
    match nenrin_core::probe(&**device).at(path.display())?.newest() {
        Err(e) if device::is_foreign(&e) => Err(device::describe_volume(path, device::foreign(device), &e)),
        _ => Ok(()),
    }
}

/// Both areas' slots, and the roots that the newest names.
fn slots(device: &Device) -> Result<Value, nenrin_device::DeviceError> {
    let blocks = device.geometry().bytes / BLOCK_BYTES as u64;
    let mut slots = Vec::new();
    let mut newest: Option<Superblock> = None;
    if blocks >= 2 * AREA_BLOCKS {
        for area in [0, blocks - AREA_BLOCKS] {
            for slot in 0..SLOTS_PER_AREA {
                let block = area + SLOT_BLOCK + slot;
                let bytes = device.read(block * BLOCK_BYTES as u64, BLOCK_BYTES)?;
                let state = match Superblock::decode(&bytes) {
                    Ok(sb) => {
                        let shown = describe::superblock(&sb);
                        if newest.as_ref().is_none_or(|n| n.generation < sb.generation) {
                            newest = Some(sb);
                        }
                        shown
                    }
                    Err(_) if bytes.iter().all(|b| *b == 0) => json!("empty"),
                    Err(why) => json!({"invalid": why.to_string()}),
                };
                slots.push(json!({"block": block, "slot": state}));
            }
        }
    }
    let roots = newest
        .filter(|sb| sb.members() == 1)
        .map(|sb| sb.root.iter().map(|(addr, crc)| root(device, &sb, *addr, *crc)).collect());
    let roots: Vec<Value> = roots.unwrap_or_default();
    Ok(json!({"blocks": blocks, "slots": slots, "newest_roots": roots}))
}

/// Refuses volumes of several devices.
///
/// # Errors
/// It is one.
pub fn one_device(path: &Path, sb: &Superblock) -> Result<(), Fail> {
    match sb.members() {
        1 => Ok(()),
        n => Err(Fail::at(
            path.display(),
            format!("one of {n} devices of a volume; this version reads segments of one device only"),
        )),
    }
}

/// Reads blocks of a volume of one device; `None` where there are none.
pub fn read(device: &Device, sb: &Superblock, addr: Addr, blocks: u64) -> Option<Vec<u8>> {
    let inside = u64::from(addr.block()) + blocks <= u64::from(sb.segment_blocks);
    let block = sb.block_alone(addr)?;
    let bytes = device.read(block * BLOCK_BYTES as u64, blocks as usize * BLOCK_BYTES);
    bytes.ok().filter(|_| inside).map(|b| b.to_vec())
}

fn root(device: &Device, sb: &Superblock, addr: Addr, crc: u32) -> Value {
    let Some(bytes) = read(device, sb, addr, u64::from(sb.root_blocks)) else {
        return json!({"addr": addr.to_string(), "invalid": "unreadable"});
    };
    let decoded = Header::decode(&bytes).and_then(|s| {
        if s.crc != crc {
            return Err(Invalid::Checksum);
        }
        Root::decode(s.records)
    });
    match decoded {
        Ok(root) => json!({"addr": addr.to_string(), "root": describe::root(&root)}),
        Err(why) => json!({"addr": addr.to_string(), "invalid": why.to_string()}),
    }
}

/// Every partial segment from the start of a segment to where none follows.
fn dump_segment(path: &Path, device: &Device, number: u64, nodes: bool) -> Result<Value, Fail> {
    let probe = nenrin_core::probe(&**device).at(path.display())?;
    let sb = probe.newest().at(path.display())?;
    one_device(path, sb)?;
    if sb.numbers().all(|no| no.0 != number) {
        let last = sb.numbers().last().unwrap_or_default();
        return Err(Fail::at(path.display(), format!("there is no segment {number}; the last is {last}")));
    }
    let segment = SegmentNo(number);
    let mut partials = Vec::new();
    let mut block = 0;
    let end = loop {
        let addr = Addr::new(segment, block);
        let Some(summary) = read_summary(device, sb, addr) else { break "the end of the segment".to_owned() };
        let summary = match Header::decode(&summary) {
            Ok(summary) => summary,
            Err(why) => break why.to_string(),
        };
        if summary.header.uuid != sb.uuid || summary.header.addr != addr {
            break "what follows belongs to another volume or place".into();
        }
        partials.push(partial(device, sb, &summary, nodes));
        block += summary.header.total_blocks();
    };
    Ok(json!({"segment": number, "partials": partials, "next_block": block, "ends_because": end}))
}

/// The whole summary at `addr`, if a header there says how long it is.
pub fn read_summary(device: &Device, sb: &Superblock, addr: Addr) -> Option<Vec<u8>> {
    let first = read(device, sb, addr, 1)?;
    debug_assert!(first.len() >= PartialHeader::BYTES);
    match Header::peek(&first) {
        Ok(h) if h.summary_blocks <= SUMMARY_BLOCKS_MAX => {
            read(device, sb, addr, u64::from(h.summary_blocks)).or(Some(first))
        }
        // Its error is found again, and said, by who decodes it.
        _ => Some(first),
    }
}

fn partial(device: &Device, sb: &Superblock, summary: &Summary<'_>, nodes: bool) -> Value {
    let h = &summary.header;
    let mut out = describe::header(summary);
    let payload = read(device, sb, h.payload_addr(), u64::from(h.payload_blocks));
    // Of the other kinds the payload is verified by what names it.
    if h.kind == PartialKind::Chain {
        let intact = payload.as_ref().map(|p| nenrin_format::crc(p) == h.payload_crc);
        out["payload"] = json!(match intact {
            Some(true) => "intact",
            Some(false) => "checksum mismatch",
            None => "unreadable",
        });
    }
    match h.kind {
        PartialKind::Root => {
            out["root"] = Root::decode(summary.records)
                .map_or_else(|why| json!({"invalid": why.to_string()}), |root| describe::root(&root));
        }
        PartialKind::Chain | PartialKind::Data => out["records"] = json!(records(summary.records)),
        PartialKind::Index => {}
    }
    out["map"] = summary.map.iter().map(|m| describe::map_entry(h.kind, m)).collect();
    if let (PartialKind::Index, Some(payload)) = (h.kind, payload) {
        out["nodes"] = payload.chunks_exact(NODE_BYTES).map(|n| index_node(n, nodes)).collect();
    }
    out
}

fn records(bytes: &[u8]) -> Vec<Value> {
    let mut reader = Reader::new(bytes);
    let mut out = Vec::new();
    while !reader.is_empty() {
        match Record::decode(&mut reader) {
            Ok(record) => out.push(describe::record(&record)),
            Err(why) => {
                out.push(json!({"invalid": why.to_string()}));
                break;
            }
        }
    }
    out
}

fn index_node(bytes: &[u8], items: bool) -> Value {
    let header = match node::NodeHeader::read_prefix(bytes) {
        Ok((header, _)) => header,
        Err(why) => return json!({"invalid": why.to_string()}),
    };
    match node::decode(TreeId(header.tree.get()), bytes) {
        Ok((header, entries)) => describe::index_node(&header, &entries, items),
        Err(why) => json!({"invalid": why.to_string()}),
    }
}
