//! A large device of which only blocks that are not all zeros take memory.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)] // each user needs a part

use nenrin_device::{AlignedBuf, BLOCK_BYTES, BlockDevice, Geometry, Op, Outcome, Ticket};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// See the module.
pub struct Sparse {
    bytes: u64,
    blocks: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

impl BlockDevice for Sparse {
    fn geometry(&self) -> Geometry {
        let name = "sparse memory".to_owned();
        Geometry { bytes: self.bytes, writable: true, discard: true, name, place: None }
    }

    fn submit(&self, op: Op) -> Ticket {
        let mut blocks = self.blocks.lock().unwrap();
        let block = BLOCK_BYTES as u64;
        let done: Outcome = match &op {
            Op::Read { offset, bytes } => {
                let mut data = AlignedBuf::zeroed(*bytes);
                for (no, b) in blocks.range(offset / block..(offset + *bytes as u64) / block) {
                    let at = (no * block - offset) as usize;
                    data[at..at + BLOCK_BYTES].copy_from_slice(b);
                }
                Ok(data)
            }
            Op::Write { offset, data } => {
                for (i, b) in data.chunks(BLOCK_BYTES).enumerate() {
                    let no = offset / block + i as u64;
                    if b.iter().all(|byte| *byte == 0) {
                        blocks.remove(&no);
                    } else {
                        blocks.insert(no, b.into());
                    }
                }
                Ok(AlignedBuf::zeroed(0))
            }
            Op::Flush => Ok(AlignedBuf::zeroed(0)),
            Op::Discard { offset, bytes } | Op::Zero { offset, bytes } => {
                let range: Vec<u64> = blocks.range(offset / block..(offset + bytes) / block).map(|b| *b.0).collect();
                range.iter().for_each(|no| drop(blocks.remove(no)));
                Ok(AlignedBuf::zeroed(0))
            }
        };
        Ticket::done(done)
    }
}

impl Sparse {
    pub fn new(bytes: u64) -> Self {
        Self { bytes, blocks: Mutex::default() }
    }
}
