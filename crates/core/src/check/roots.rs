//! The way in: superblock slots, root partials, and opening from a root in
//! memory, as a mount would.

use super::findings::What;
use super::nodes::{self, Audit};
use super::report::{Finding, Log};
use crate::breaks::{Break, broken};
use crate::devices::assemble;
use crate::fs::Opened;
use crate::recovery::{read_root_copy, recover_from};
use crate::storage::{Storage, storage_of};
use crate::{Error, MountOptions, Result};
use nenrin_device::{AlignedBuf, BlockDevice};
use nenrin_format::node::TreeId;
use nenrin_format::partial::Header;
use nenrin_format::root::Root;
use nenrin_format::superblock::{AREA_BLOCKS, SLOT_BLOCK, SLOTS_PER_AREA, Superblock};
use nenrin_format::{Addr, BLOCK_BYTES, Generation, Invalid};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Memory for index nodes while checking.
const CACHE_BYTES: usize = 64 << 20;

/// A volume recovered in memory, and what is known of the root it came from.
pub struct Entered {
    pub opened: Opened,
    pub audit: Audit,
    /// What the root says of the chain, before anything was replayed.
    pub superblock: Superblock,
    /// The older of the roots that recovery may begin with; `None` where the state is only in memory.
    pub older: Option<Superblock>,
}

/// Checks slots and roots, and opens the volume. `None` when no root can be
/// used, which was noted then.
pub fn enter(devices: &[Arc<dyn BlockDevice>], log: &mut Log<'_>) -> Result<Option<Entered>> {
    let assembly = assemble(devices, true)?;
    let newest = assembly.found.newest()?.clone();
    for note in &assembly.notes {
        log.add(Finding::new(What::DeviceAbsent, note.clone()));
    }
    let active = assembly.devices.active();
    for (index, name, _) in &assembly.probes {
        if let Some((_, device)) = active.iter().find(|(i, _)| i == index) {
            check_slots(device.as_ref(), (*index, name.as_deref()), &newest, &assembly.found.roots, log)?;
        }
    }
    let storage = storage_of(&assembly);
    let options = MountOptions { read_only: true, cache_bytes: CACHE_BYTES, ..MountOptions::default() };
    let mut entered: Option<Entered> = None;
    let usable = || assembly.found.roots.iter().take(2).filter(|s| s.uuid == newest.uuid);
    for superblock in usable() {
        let root = read_copies(&storage, superblock, log);
        if entered.is_some() {
            continue;
        }
        let audit = root.map(|root| {
            check_root(&storage, superblock, &root, log);
            nodes::audit(&storage, &root, log)
        });
        let opened = recover_from(&assembly, superblock, &options, crate::RecoveryReport::default());
        match (opened, audit) {
            (Ok(opened), Some(audit)) => {
                if let Some(damage) = &opened.report.damage {
                    log.add(Finding::new(What::LogDamaged, damage.clone()));
                }
                let older = usable().next_back().cloned();
                entered = Some(Entered { opened, audit, superblock: superblock.clone(), older });
            }
            (Err(e @ Error::Open(_)), _) => return Err(e),
            (Err(e), Some(_)) => {
                let text = format!("generation {}: {e}", superblock.generation);
                log.add(Finding::new(What::RootUnusable, text));
            }
            // Neither copy of the root: said already.
            (_, None) => {}
        }
    }
    Ok(entered)
}

/// The root from its copies, each of which is checked.
fn read_copies(storage: &Storage, superblock: &Superblock, log: &mut Log<'_>) -> Option<Root> {
    let copies = [0, 1].map(|copy| (superblock.root[copy].0, read_root_copy(storage, superblock, copy)));
    let lost = copies.iter().all(|(_, r)| r.is_err());
    let mut root: Option<Root> = None;
    for (i, (addr, copy)) in copies.into_iter().enumerate() {
        let crc = superblock.root[i].1;
        // What is right was perhaps so on one device alone.
        let whole = copy.is_ok().then(|| storage.read_summary(addr, Some(crc)).ok()).flatten();
        for why in whole.map_or_else(Vec::new, |b| wrong_copies(storage, addr, (b.len() / BLOCK_BYTES) as u32, crc)) {
            let text = format!("copy {} of the root of generation {}: {why}", i + 1, superblock.generation);
            log.add(Finding::new(What::RootCopyDamaged, text).at(addr));
        }
        match copy {
            Ok(r) if root.as_ref().is_some_and(|first| *first != r) => {
                log.add(Finding::new(What::RootInvalid, "the two copies of the root differ").at(addr));
            }
            Ok(r) => root = root.or(Some(r)),
            Err(e) => {
                let what = if lost { What::RootLost } else { What::RootCopyDamaged };
                let text = format!("copy {} of the root of generation {}: {e}", i + 1, superblock.generation);
                if !lost || i == 0 {
                    log.add(Finding::new(what, text).at(addr));
                }
            }
        }
    }
    root
}

/// Where the summary of a partial is not right that is so somewhere, one line for each device.
pub fn wrong_copies(storage: &Storage, addr: Addr, blocks: u32, crc: u32) -> Vec<String> {
    let right = |bytes: &[u8]| Header::decode(bytes).is_ok_and(|s| s.crc == crc);
    let why = |read: Result<AlignedBuf>| match read {
        Ok(_) => Invalid::Checksum.to_string(),
        Err(e) => e.to_string(),
    };
    if broken(Break::OneCopyChecked) {
        return Vec::new();
    }
    if storage.has_parity() {
        let (read, unread) = storage.read_telling(addr, blocks);
        let is_right = read.as_ref().is_ok_and(|bytes| right(bytes));
        return match (is_right, unread) {
            (true, false) => Vec::new(),
            (true, true) => vec!["a device does not give it; the rest of its row does".into()],
            (false, _) => vec![format!("{}; the rest of its row gives it", why(read))],
        };
    }
    let wrong = |avoid: u16| {
        let read = storage.read_around(addr, blocks, avoid);
        if read.as_ref().is_ok_and(|bytes| right(bytes)) {
            return None;
        }
        let on = storage.named_around(addr, blocks, Some(avoid)).unwrap_or_else(|| "another device".into());
        Some(format!("{} on {on}", why(read)))
    };
    storage.ways_around(addr, blocks).into_iter().filter_map(wrong).collect()
}

fn check_root(storage: &Storage, superblock: &Superblock, root: &Root, log: &mut Log<'_>) {
    let mut bad = |text: String| {
        let text = format!("generation {}: {text}", superblock.generation);
        log.add(Finding::new(What::RootInvalid, text).at(superblock.root[0].0));
    };
    let mut ids = BTreeSet::new();
    for t in &root.trees {
        let id = t.tree;
        if !ids.insert(id) {
            bad(format!("tree {} is listed twice", id.0));
        }
        let history = id >= TreeId::HISTORY;
        if !history && id != TreeId::LIVE && id != TreeId::SPACE {
            bad(format!("tree {} has no meaning", id.0));
        }
        if history && id.0 >= root.next_tree {
            bad(format!("history tree {} has a number that is still to be given", id.0));
        }
        if history && t.ptr.is_some() && (t.deaths.0 > t.deaths.1 || t.deaths.1 > root.open_cno) {
            bad(format!("history tree {} covers deaths from {} to {}", id.0, t.deaths.0, t.deaths.1));
        }
    }
    let mut segments = BTreeSet::new();
    for (segment, _) in &root.index_segments {
        if !storage.has(*segment) || !segments.insert(*segment) {
            bad(format!("segment {segment} of the index is outside the volume or listed twice"));
        }
    }
    if root.open_cno.0 != root.last_cno.0.wrapping_add(1) {
        bad(format!("checkpoint {} is open, but the newest ever made is {}", root.open_cno, root.last_cno));
    }
}

/// Every slot holds the newest generation that belongs there.
fn check_slots(
    device: &dyn BlockDevice,
    (index, name): (u16, Option<&str>),
    newest: &Superblock,
    roots: &[Superblock],
    log: &mut Log<'_>,
) -> Result<()> {
    let entry = |sb: &Superblock| sb.devices.get(usize::from(index)).copied();
    let blocks = entry(newest).map_or(0, |e| e.blocks);
    // Of a time at which this device was no member, or not up to date.
    let missed =
        |root: &Superblock| entry(root).is_none_or(|e| !e.active || entry(newest).is_none_or(|now| now.uuid != e.uuid));
    let root_of = |generation: Generation| roots.iter().find(|r| r.generation == generation);
    // It has come back since then: what was in its slots before may be anything, or nothing.
    let is_back = roots.iter().any(missed);
    let of = name.map_or_else(|| "the device".to_owned(), str::to_owned);
    let g = newest.generation.0;
    for area in [0, blocks.saturating_sub(AREA_BLOCKS)] {
        for slot in 0..SLOTS_PER_AREA {
            let block = area + SLOT_BLOCK + slot;
            let bytes = match device.read(block * BLOCK_BYTES as u64, BLOCK_BYTES) {
                Ok(bytes) => bytes,
                Err(e) => {
                    let text = format!("the slot at block {block} of {of} cannot be read: {e}");
                    log.add(Finding::new(What::SlotDamaged, text));
                    continue;
                }
            };
            // The newest generation not above g that belongs into this slot; none before the first.
            let back = (g % SLOTS_PER_AREA + SLOTS_PER_AREA - slot) % SLOTS_PER_AREA;
            let expected = g.checked_sub(back).filter(|e| *e > 0).map(Generation);
            // What ended was writing g, perhaps, or the one after it; where g says that it was closed, the one after it was
            // the first of the next mount.
            let (of_newest, of_next) = (back == 0, back == SLOTS_PER_AREA - 1);
            let unwritten = of_newest || of_next && !newest.clean;
            let torn = of_next || of_newest && !newest.clean;
            let decoded = Superblock::decode(&bytes);
            let empty = bytes.iter().all(|b| *b == 0);
            let finding = match (&decoded, expected) {
                (Ok(sb), _) if sb.uuid != newest.uuid || sb.segment_blocks != newest.segment_blocks => {
                    Some((What::SlotForeign, "belongs to another volume".to_owned()))
                }
                (Err(Invalid::Version(_) | Invalid::Feature(_)), _) => {
                    Some((What::SlotForeign, "belongs to another volume".to_owned()))
                }
                (Ok(sb), Some(e)) if sb.generation == e => None,
                (Ok(_), Some(e)) if root_of(e).is_some_and(missed) => None,
                (Ok(sb), _) => {
                    let before = sb.generation.0.checked_add(SLOTS_PER_AREA);
                    let older = expected.is_some_and(|e| before == Some(e.0) || is_back && sb.generation < e);
                    let what = if unwritten && older { What::SlotUnfinished } else { What::SlotStale };
                    Some((what, format!("holds generation {}", sb.generation)))
                }
                (Err(_), None) if empty => None,
                (Err(_), Some(e)) if empty && root_of(e).is_none_or(missed) => None,
                (Err(_), Some(e)) if empty => {
                    let first = (e.0 <= SLOTS_PER_AREA || is_back) && unwritten;
                    let what = if first { What::SlotUnfinished } else { What::SlotStale };
                    Some((what, "is empty".to_owned()))
                }
                (Err(why), _) => {
                    let what = if torn { What::SlotUnfinished } else { What::SlotDamaged };
                    Some((what, why.to_string()))
                }
            };
            if let Some((what, text)) = finding {
                log.add(Finding::new(what, format!("the slot at block {block} of {of}: {text}")));
            }
        }
    }
    Ok(())
}
