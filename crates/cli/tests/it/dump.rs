//! `nenrin dump` and `nenrin segments`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use crate::common::*;
use std::fs;

fn used_volume() -> Option<Place> {
    if !can_mount() {
        return None;
    }
    let place = Place::with_volume();
    place.mount("checkpoint=0").ok();
    fs::write(place.path("mnt/small"), b"inline").unwrap();
    fs::write(place.path("mnt/big"), vec![1; 1 << 20]).unwrap();
    nenrin(["snapshot", "create", &place.text("mnt"), "snap"]).ok();
    fs::remove_file(place.path("mnt/small")).unwrap();
    Some(place)
}

#[test]
fn segments_add_up() {
    let Some(place) = used_volume() else { return };
    place.umount().ok();
    let list = nenrin(["segments", "--json", &place.image()]).json();
    let list = list.as_array().unwrap();
    let info = nenrin(["info", "--json", &place.image()]).json();
    assert_eq!(list.len() as u64, info["segments"].as_u64().unwrap());
    let live: u64 = list.iter().map(|s| s["live_blocks"].as_u64().unwrap()).sum();
    assert!(live >= 256, "the big file alone has 256 blocks, and {live} are live");
    for s in list.iter().filter(|s| s["state"] == "free") {
        assert_eq!(s["live_blocks"].as_u64().unwrap() + s["nodes"].as_u64().unwrap(), 0, "{s}");
    }
    let text = nenrin(["segments", &place.image()]).ok();
    assert_eq!(text.lines().count(), list.len() + 1);
}

#[test]
fn records_and_nodes_are_shown() {
    let Some(place) = used_volume() else { return };
    // A power cut: what was done last is in the chain only.
    fs::File::open(place.path("mnt")).unwrap().sync_all().unwrap();
    let chain = nenrin(["segments", "--json", &place.text("mnt")]).json();
    place.kill();
    let segment = |kind: &str| {
        // Of the chain's segments the one that is in use, not the one that comes next.
        let used = |s: &&serde_json::Value| s["kind"] == kind && (kind != "chain" || s["chain"] == true);
        let found = chain.as_array().unwrap().iter().find(used);
        found.unwrap()["segment"].to_string()
    };
    let text = nenrin(["dump", &place.image(), &segment("chain")]).ok();
    for part in ["kind=chain", "record=Create", "name=small", "step=Inline", "record=Unlink", "name=snap"] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    let dump = nenrin(["dump", "--json", &place.image(), &segment("chain")]).json();
    let seqs: Vec<u64> = dump["partials"].as_array().unwrap().iter().map(|p| p["seq"].as_u64().unwrap()).collect();
    assert!(seqs.windows(2).all(|w| w[1] == w[0] + 1), "the chain has gaps: {seqs:?}");
    let index = nenrin(["dump", "--nodes", "--json", &place.image(), &segment("index")]).json();
    let nodes = |p: &serde_json::Value| p["nodes"].as_array().cloned().unwrap_or_default();
    let nodes: Vec<serde_json::Value> = index["partials"].as_array().unwrap().iter().flat_map(nodes).collect();
    assert!(nodes.iter().any(|n| n["tree"] == 1 && n["level"] == 0), "no leaf of the live tree: {index}");
}

#[test]
fn roots_are_shown_even_when_damaged() {
    let place = Place::with_volume();
    let dump = nenrin(["dump", "--json", &place.image()]).json();
    let valid = |d: &serde_json::Value| {
        let slots = d["slots"].as_array().unwrap();
        slots.iter().filter(|s| s["slot"]["generation"].is_u64()).count()
    };
    assert!(valid(&dump) >= 2);
    assert_eq!(dump["slots"].as_array().unwrap().len(), 8);
    assert_eq!(dump["newest_roots"][0]["root"]["trees"][0]["tree"], 1);
    for slot in place.slots() {
        place.patch(slot + 100, b"rotten");
    }
    let dump = nenrin(["dump", "--json", &place.image()]).json();
    assert_eq!(valid(&dump), 0);
    assert!(nenrin(["dump", &place.image()]).ok().contains("checksum mismatch"));
}

#[test]
fn wrong_calls() {
    let place = Place::with_volume();
    nenrin(["dump"]).fails(2, &["a device is needed"]);
    nenrin(["dump", &place.image(), "x"]).fails(2, &["number of a segment"]);
    nenrin(["dump", &place.image(), "99999"]).fails(1, &["no segment 99999; the last is"]);
    nenrin(["dump", "/no/such/image"]).fails(1, &["no such file or device"]);
    for bytes in [10, 1 << 20] {
        fs::write(place.path("other"), vec![7; bytes]).unwrap();
        nenrin(["dump", &place.text("other")]).fails(1, &["other: not a nenrin volume"]);
    }
    nenrin(["segments", "/"]).fails(1, &["not on a nenrin volume"]);
}
