//! Damage on the device: each kind is found for what it is.
#![allow(clippy::unwrap_used, clippy::panic, clippy::type_complexity)] // tests say what went wrong by stopping

use crate::common::{TestClock, World, dir, file};
use nenrin_core::check::What;
use nenrin_core::format::node::{Entries, NodePtr, TreeId, decode};
use nenrin_core::format::partial::Header;
use nenrin_core::format::root::Root;
use nenrin_core::format::superblock::{AREA_BLOCKS, SLOT_BLOCK, Superblock, segment_block, slot_blocks};
use nenrin_core::format::{Addr, BLOCK_BYTES, Generation, Ino, SegmentNo};
use nenrin_core::{CheckOptions, CheckReport, Fs, MountOptions, SetAttr, check, probe};
use nenrin_device::{BlockDevice, Fault, Faulty, MemDevice, Observed, OpKind, Prng};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The bytes of a volume, to be damaged.
struct Image {
    bytes: Vec<u8>,
    newest: Superblock,
}

impl Image {
    fn new(clean: bool) -> Self {
        let w = World::new(16 << 20);
        for _ in 0..3 {
            w.open().close().unwrap();
        }
        let fs = w.open();
        let d = fs.create(Ino::ROOT, b"dir", &dir()).unwrap();
        let f = fs.create(d.ino, b"file", &file(0o600)).unwrap();
        for i in 0..600 {
            fs.create(d.ino, format!("a name that takes some room {i}").as_bytes(), &file(0o600)).unwrap();
        }
        for i in 0..10u8 {
            fs.write(f.ino, u64::from(i) * 40_960, &[i + 1; 40_960], 0).unwrap();
            fs.fsync_wait(f.ino).unwrap();
        }
        fs.checkpoint_create(None).unwrap();
        fs.write(f.ino, 0, &[99; 4096], 0).unwrap();
        fs.fsync_wait(f.ino).unwrap();
        if clean {
            fs.close().unwrap();
            for _ in 0..3 {
                w.open().close().unwrap();
            }
        } else {
            for i in 0..20u32 {
                fs.setattr(f.ino, &SetAttr { mode: Some(0o600 + i), ..SetAttr::default() }).unwrap();
                fs.fsync_wait(f.ino).unwrap();
            }
        }
        drop(fs);
        Self::of(w.device.inner().snapshot())
    }
    fn of(bytes: Vec<u8>) -> Self {
        let device = MemDevice::from_bytes(bytes.clone());
        let newest = probe(&device).unwrap().newest().unwrap().clone();
        Self { bytes, newest }
    }
    fn blocks(&self) -> u64 {
        (self.bytes.len() / BLOCK_BYTES) as u64
    }
    fn offset(&self, addr: Addr) -> usize {
        let first = segment_block(addr.segment().0 as u32, self.newest.segment_blocks);
        (first as usize + addr.block() as usize) * BLOCK_BYTES
    }
    fn at(&self, addr: Addr) -> &[u8] {
        &self.bytes[self.offset(addr)..]
    }
    fn flip(&mut self, addr: Addr) {
        let offset = self.offset(addr) + 1234;
        self.bytes[offset] ^= 0x40;
    }
    fn root_summary(&self, copy: usize) -> nenrin_core::format::partial::Summary<'_> {
        Header::decode(self.at(self.newest.root[copy].0)).unwrap()
    }
    fn root(&self) -> Root {
        Root::decode(self.root_summary(0).records).unwrap()
    }
    fn tree(&self, id: TreeId) -> NodePtr {
        self.root().trees.iter().find(|t| t.tree == id).unwrap().ptr.unwrap()
    }
    fn leaf(&self, id: TreeId) -> NodePtr {
        let mut ptr = self.tree(id);
        while let Entries::Inner(v) = decode(id, &self.at(ptr.copies[0])[..16384]).unwrap().1 {
            ptr = v[v.len() / 2].1;
        }
        ptr
    }
    /// Writes another root as if it were the right one.
    fn with_root(mut self, edit: impl FnOnce(&mut Root)) -> Self {
        let mut root = self.root();
        edit(&mut root);
        for copy in 0..2 {
            let header = self.root_summary(copy).header;
            let (bytes, crc) = header.encode(&root.encode(), &[]);
            let offset = self.offset(header.addr);
            self.bytes[offset..offset + bytes.len()].copy_from_slice(&bytes);
            self.newest.root[copy].1 = crc;
        }
        let sb = self.newest.clone();
        self.with_slots(&sb)
    }
    fn with_slots(mut self, sb: &Superblock) -> Self {
        for block in slot_blocks(sb.generation, self.blocks()) {
            self.set_slot(block, sb);
        }
        self
    }
    fn set_slot(&mut self, block: u64, sb: &Superblock) {
        let start = block as usize * BLOCK_BYTES;
        self.bytes[start..start + BLOCK_BYTES].copy_from_slice(&sb.encode());
    }
    fn report(&self) -> CheckReport {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(self.bytes.clone()));
        let report = check(&[device], &CheckOptions { data: true }, &mut |_| {}).unwrap();
        report.findings.iter().for_each(|f| println!("  {f}"));
        report
    }
    fn numbers(&self) -> BTreeSet<u16> {
        self.report().findings.iter().map(|f| f.what.number()).collect()
    }
}

#[track_caller]
fn assert_finds(numbers: &[u16], image: &Image) {
    assert_eq!(image.numbers(), numbers.iter().copied().collect());
}

fn damaged(clean: bool, edit: impl FnOnce(&mut Image)) -> Image {
    let mut image = Image::new(clean);
    edit(&mut image);
    image
}

#[test]
fn the_images_are_sound() {
    assert_finds(&[], &Image::new(true));
    assert_finds(&[], &Image::new(false));
    assert_finds(&[], &Image::new(true).with_root(|_| {}));
    assert!(Image::new(true).root().trees[0].level > 0);
}

#[test]
fn superblock_slots() {
    let slot = |i: &Image, back: u64| slot_blocks(Generation(i.newest.generation.0 - back), i.blocks());
    for back in 0..4 {
        for copy in 0..2 {
            let image = damaged(true, |i| {
                let block = slot(i, back)[copy] as usize;
                i.bytes[block * BLOCK_BYTES + 99] ^= 1;
            });
            // The slot after the newest may be the first that the next mount was writing.
            assert_finds(&[if back == 3 { 103 } else { 101 }], &image);
        }
    }
    let older =
        |i: &Image, back: u64| Superblock { generation: Generation(i.newest.generation.0 - back), ..i.newest.clone() };
    // A cut between the two writes of the last slot.
    assert_finds(&[103], &damaged(true, |i| i.set_slot(slot(i, 0)[1], &older(i, 4))));
    assert!(damaged(true, |i| i.set_slot(slot(i, 0)[0], &older(i, 4))).report().clean());
    assert_finds(&[102], &damaged(true, |i| i.set_slot(slot(i, 3)[1], &older(i, 7))));
    assert_finds(&[102], &damaged(true, |i| i.set_slot(slot(i, 2)[1], &older(i, 6))));
    assert_finds(&[102], &damaged(true, |i| i.bytes[..16 * BLOCK_BYTES].fill(0)));
    let second = |i: &Image| (i.blocks() - AREA_BLOCKS + SLOT_BLOCK) as usize * BLOCK_BYTES;
    let tail = damaged(true, |i| {
        let start = second(i);
        i.bytes[start..].fill(0);
    });
    assert_finds(&[102], &tail);
    // The write of the newest generation, or of the next, was under way.
    assert_finds(&[103], &damaged(false, |i| i.set_slot(slot(i, 0)[1], &older(i, 4))));
    let torn = damaged(false, |i| {
        let block = slot(i, 3)[0] as usize;
        i.bytes[block * BLOCK_BYTES + 99] ^= 1;
    });
    assert_finds(&[103], &torn);
    assert!(torn.report().clean());
    let foreign = |i: &Image| Superblock { uuid: [9; 16], ..older(i, 2) };
    assert_finds(&[104], &damaged(true, |i| i.set_slot(slot(i, 2)[0], &foreign(i))));
}

/// So nothing is wrong any more when the mount that comes next is closed.
#[test]
fn a_slot_that_was_being_written_is_written_again_by_the_next_mount() {
    for (copy, torn) in [(0, false), (0, true), (1, false), (1, true)] {
        let image = damaged(false, |i| {
            let newest = i.newest.generation.0;
            let block = slot_blocks(Generation(newest), i.blocks())[copy];
            i.set_slot(block, &Superblock { generation: Generation(newest - 4), ..i.newest.clone() });
            i.bytes[block as usize * BLOCK_BYTES + 99] ^= u8::from(torn);
        });
        assert_finds(&[103], &image);
        let device = Arc::new(MemDevice::from_bytes(image.bytes));
        let fs = Fs::open(vec![device.clone()], Arc::new(TestClock::default()), MountOptions::default()).unwrap();
        fs.close().unwrap();
        assert_finds(&[], &Image::of(device.snapshot()));
    }
}

#[test]
fn roots() {
    assert_finds(&[105], &damaged(true, |i| i.flip(i.newest.root[0].0)));
    assert_finds(&[105], &damaged(true, |i| i.flip(i.newest.root[1].0)));
    // The older of the two roots leads to the same state, if nothing was written since.
    let image = damaged(true, |i| i.newest.root.map(|r| r.0).into_iter().for_each(|a| i.flip(a)));
    assert_finds(&[106], &image);
    assert!(image.report().recovery.is_some());
    let all = damaged(true, |i| {
        let device = MemDevice::from_bytes(i.bytes.clone());
        for sb in probe(&device).unwrap().roots {
            sb.root.map(|r| r.0).into_iter().for_each(|a| i.flip(a));
        }
    });
    assert_finds(&[106], &all);
    assert!(all.report().recovery.is_none() && !all.report().clean());
    assert_finds(&[108], &Image::new(true).with_root(|r| r.open_cno = r.open_cno.next()));
    assert_finds(&[108], &Image::new(true).with_root(|r| r.next_tree = 16));
    assert_finds(&[108], &Image::new(true).with_root(|r| r.index_segments.push((SegmentNo(1 << 50), 1))));
    assert_finds(&[108], &Image::new(true).with_root(|r| r.trees.push(r.trees[0].clone())));
}

#[test]
fn the_log() {
    let image = damaged(false, |i| {
        // The second partial from where the chain goes on after the root; later ones prove it was durable.
        let mut addr = Addr::new(i.newest.chain.0, i.newest.chain.1);
        for _ in 0..2 {
            addr = addr.add(Header::decode(i.at(addr)).unwrap().header.total_blocks());
        }
        i.flip(addr);
    });
    assert_finds(&[109], &image);
}

#[test]
fn index_nodes() {
    for tree in [TreeId::LIVE, TreeId::SPACE, TreeId::HISTORY] {
        for copy in 0..2 {
            assert_finds(&[201], &damaged(true, |i| i.flip(i.tree(tree).copies[copy])));
            assert_finds(&[201], &damaged(true, |i| i.flip(i.leaf(tree).copies[copy])));
        }
    }
    let both = |ptr: fn(&Image) -> NodePtr| damaged(true, |i| ptr(i).copies.into_iter().for_each(|a| i.flip(a)));
    assert_finds(&[202, 208], &both(|i| i.leaf(TreeId::LIVE)));
    assert_finds(&[202, 208], &both(|i| i.tree(TreeId::LIVE)));
    assert_finds(&[202, 208], &both(|i| i.tree(TreeId::HISTORY)));
    let numbers = both(|i| i.tree(TreeId::SPACE)).numbers();
    assert!(numbers.contains(&202) && numbers.contains(&107), "{numbers:?}");
    assert_finds(&[203, 208], &Image::new(true).with_root(|r| r.trees[0].level += 1));
    assert_finds(&[203, 208], &Image::new(true).with_root(|r| r.trees[0].level = 200));
    assert_finds(&[203, 208], &Image::new(true).with_root(|r| r.trees[2].ptr = r.trees[0].ptr));
    let together = Image::new(true).with_root(|r| {
        let ptr = r.trees[0].ptr.as_mut().unwrap();
        ptr.copies[1] = ptr.copies[0];
    });
    assert_finds(&[204, 504], &together);
    assert_finds(&[205], &Image::new(true).with_root(|r| r.trees[0].items += 1));
    assert_finds(&[205], &Image::new(true).with_root(|r| r.trees[0].nodes += 1));
    assert_finds(&[504], &Image::new(true).with_root(|r| r.index_segments[0].1 += 1));
    let forgotten = Image::new(true).with_root(|r| r.index_segments.retain(|s| s.1 == 0)).numbers();
    assert!(forgotten.contains(&505), "{forgotten:?}");
}

#[test]
fn content() {
    // Find it by what was written: the last version of the first block, and the one before.
    let find = |i: &Image, byte: u8| i.bytes.chunks(BLOCK_BYTES).position(|b| b.iter().all(|x| *x == byte)).unwrap();
    for byte in [99, 1, 5] {
        let image = damaged(true, |i| {
            let block = find(i, byte);
            i.bytes[block * BLOCK_BYTES + 7] ^= 1;
        });
        assert_finds(&[701], &image);
        let report = image.report();
        assert_eq!(report.findings.len(), 1);
        assert_eq!(report.findings[0].path.as_deref(), Some(&b"/dir/file"[..]));
        assert!(report.findings[0].addr.is_some());
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(image.bytes.clone()));
        let quick = check(&[device], &CheckOptions::default(), &mut |_| {}).unwrap();
        assert_eq!((quick.total(), quick.counts.blocks_verified), (0, 0));
    }
}

#[test]
fn content_that_the_device_cannot_read() {
    let image = Image::new(true);
    let device = Arc::new(Faulty::new(MemDevice::from_bytes(image.bytes.clone())));
    let whole = check(&[device.clone() as Arc<dyn BlockDevice>], &CheckOptions { data: true }, &mut |_| {}).unwrap();
    let reads = |data: bool| {
        let count = Arc::new(Observed::new(MemDevice::from_bytes(image.bytes.clone())));
        check(&[count.clone() as Arc<dyn BlockDevice>], &CheckOptions { data }, &mut |_| {}).unwrap();
        count.counters().reads
    };
    // The reads of content are the last ones. Each that fails is repeated piece by piece.
    let (quick, full) = (reads(false), reads(true));
    assert!(full > quick);
    device.faults().inject(Fault::Fail { kind: OpKind::Read, from: quick + 1, times: 1 << 40 });
    let report = check(&[device.clone() as Arc<dyn BlockDevice>], &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(report.errors > 0 && report.findings.iter().all(|f| f.what == What::ContentUnreadable));
    assert!(report.findings.iter().all(|f| f.path.as_deref() == Some(b"/dir/file")));
    assert_eq!((whole.total(), report.counts.blocks_verified), (0, 0));
}

#[test]
fn any_damage_to_any_block_ends_in_a_report() {
    for clean in [true, false] {
        let base = Image::new(clean);
        let mut random = Prng::new(7);
        for round in 0..400 {
            let mut image = Image { bytes: base.bytes.clone(), newest: base.newest.clone() };
            for _ in 0..1 + random.below(4) {
                let block = random.below(image.blocks().min(700)) as usize * BLOCK_BYTES;
                match random.below(3) {
                    0 => image.bytes[block + random.below(4096) as usize] ^= 1 << random.below(8),
                    1 => image.bytes[block..block + BLOCK_BYTES].fill(random.below(256) as u8),
                    _ => {
                        let other = random.below(image.blocks().min(700)) as usize * BLOCK_BYTES;
                        image.bytes.copy_within(other..other + BLOCK_BYTES, block);
                    }
                }
            }
            let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(image.bytes));
            if let Ok(report) = check(&[device], &CheckOptions { data: true }, &mut |_| {}) {
                assert_eq!(report.findings.len() as u64, report.total(), "round {round}");
            }
        }
    }
}
