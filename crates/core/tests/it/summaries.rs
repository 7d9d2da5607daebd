//! What the summaries of data partials prove without any index.
#![allow(clippy::unwrap_used)] // tests say what went wrong by stopping

use crate::common::{World, file};
use nenrin_core::format::partial::{Header, PartialKind};
use nenrin_core::format::{self, Addr, BLOCK_BYTES, Ino};
use nenrin_core::{MkfsOptions, SegmentState, probe};
use nenrin_device::MemDevice;

/// CRC32C of the checksums of granules of `1 << shift` blocks.
fn crc_of(bytes: &[u8], shift: u8) -> u32 {
    let crcs: Vec<u8> = bytes.chunks(BLOCK_BYTES << shift).flat_map(|c| format::crc(c).to_le_bytes()).collect();
    format::crc(&crcs)
}

/// Every block of content written behind is described by the summary of its
/// partial: whose it is, and by what checksum it is known.
#[test]
fn the_map_of_a_data_partial_describes_its_runs() {
    let w = World::with(64 << 20, &MkfsOptions { segment_blocks: 256, ..MkfsOptions::default() });
    let fs = w.open();
    let mut written = 0;
    for (i, blocks) in [1usize, 40, 250, 700, 1000, 33, 300].into_iter().enumerate() {
        let f = fs.create(Ino::ROOT, format!("f{i}").as_bytes(), &file(0o600)).unwrap();
        let content: Vec<u8> = (0..blocks * BLOCK_BYTES).map(|b| (b / 4096 * 7 + i) as u8).collect();
        // Large pieces go straight to the device, small ones become pages.
        let piece = if i % 2 == 0 { 1 << 20 } else { 10_000 };
        for (n, part) in content.chunks(piece).enumerate() {
            fs.write(f.ino, (n * piece) as u64, part, 0).unwrap();
        }
        fs.fsync_wait(f.ino).unwrap();
        written += blocks;
    }
    fs.close().unwrap();
    let bytes = w.device.inner().snapshot();
    let sb = probe(&MemDevice::from_bytes(bytes.clone())).unwrap().newest().unwrap().clone();
    let (mut described, mut coarse) = (0, 0);
    for s in fs.segments() {
        if s.state == SegmentState::Free {
            continue;
        }
        let first = (16 + s.segment.0 as usize * sb.segment_blocks as usize) * BLOCK_BYTES;
        let segment = &bytes[first..first + sb.segment_blocks as usize * BLOCK_BYTES];
        let mut at = 0;
        while at < sb.segment_blocks {
            let Ok(summary) = Header::decode(&segment[at as usize * BLOCK_BYTES..]) else { break };
            let header = &summary.header;
            assert_eq!(header.addr, Addr::new(s.segment, at));
            let mut block = at + header.summary_blocks;
            for run in summary.map.iter().filter(|_| header.kind == PartialKind::Data) {
                let content = &segment[block as usize * BLOCK_BYTES..][..run.blocks.get() as usize * BLOCK_BYTES];
                assert_eq!(run.crc.get(), crc_of(content, run.level), "{:?}", run);
                described += run.blocks.get() as usize;
                coarse += usize::from(run.level > 0);
                block += run.blocks.get();
            }
            at += header.total_blocks();
        }
    }
    // Small commits travel in the chain.
    assert!(described > written - 200 && described <= written, "{described} of {written} blocks");
    assert!(coarse > 0);
}
