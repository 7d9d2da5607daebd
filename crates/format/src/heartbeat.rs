//! The heartbeat: what the owner of a volume on devices that other hosts reach, too, rewrites while it has it.
//!
//! It lies in a block of its own in the head area of each device, far from root slots in meaning and apart from them in
//! writing: nothing that recovery believes depends on it. It takes the first 512 bytes, so that no cut tears it.

use crate::disk_struct;
use crate::layout::le::{I64, U32, U64};
use crate::{BLOCK_BYTES, Invalid, Time};

/// "NENRINhb".
pub const HEARTBEAT_MAGIC: [u8; 8] = *b"NENRINhb";
/// Its block within the head area.
pub const HEARTBEAT_BLOCK: u64 = 8;
/// Longest name of a host in bytes.
pub const NODE_BYTES_MAX: usize = 64;

disk_struct! {
    /// A heartbeat.
    pub struct HeartbeatDisk [512] {
        /// [`HEARTBEAT_MAGIC`].
        pub magic: [u8; 8],
        /// CRC32C of the struct with this field zero.
        pub crc: U32,
        /// Milliseconds from one beat to the next.
        pub interval_millis: U32,
        /// Identity of the mount: random.
        pub owner: [u8; 16],
        /// Raised with each beat.
        pub sequence: U64,
        /// When it was written, by the clock of the host.
        pub written_at: I64,
        /// 1 in use; 0 after a clean unmount.
        pub in_use: u8,
        /// Length of the host's name.
        pub node_bytes: u8,
        /// Must be zero.
        pub reserved: [u8; 6],
        /// Name of the host, padded with zeros.
        pub node: [u8; 64],
        /// Must be zero.
        pub reserved2: [u8; 392],
    }
}

/// A decoded heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Milliseconds from one beat to the next.
    pub interval_millis: u32,
    /// Identity of the mount.
    pub owner: [u8; 16],
    /// Raised with each beat.
    pub sequence: u64,
    /// When it was written, by the clock of the host.
    pub written_at: Time,
    /// Not after a clean unmount.
    pub in_use: bool,
    /// Name of the host, as it gave it.
    pub node: Vec<u8>,
}

impl Heartbeat {
    /// One block; of a name that is too long, the beginning.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut d = HeartbeatDisk::zeroed();
        let node = &self.node[..self.node.len().min(NODE_BYTES_MAX)];
        d.magic = HEARTBEAT_MAGIC;
        d.interval_millis.set(self.interval_millis);
        d.owner = self.owner;
        d.sequence.set(self.sequence);
        d.written_at.set(self.written_at.0);
        d.in_use = u8::from(self.in_use);
        d.node_bytes = node.len() as u8;
        d.node[..node.len()].copy_from_slice(node);
        d.crc.set(crate::crc(d.bytes()));
        let mut out = d.bytes().to_vec();
        out.resize(BLOCK_BYTES, 0);
        out
    }

    /// Verifies and decodes a block; `None` where there never was one.
    ///
    /// # Errors
    /// [`Invalid::Magic`] when it is something else, then checksum and bounds.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Invalid> {
        let (d, _) = HeartbeatDisk::read_prefix(bytes)?;
        if d.bytes().iter().all(|b| *b == 0) {
            return Ok(None);
        }
        if d.magic != HEARTBEAT_MAGIC {
            return Err(Invalid::Magic);
        }
        let mut unsummed = d;
        unsummed.crc.set(0);
        if crate::crc(unsummed.bytes()) != d.crc.get() {
            return Err(Invalid::Checksum);
        }
        let node = d.node.get(..usize::from(d.node_bytes)).ok_or(Invalid::Bounds)?;
        Ok(Some(Self {
            interval_millis: d.interval_millis.get(),
            owner: d.owner,
            sequence: d.sequence.get(),
            written_at: Time(d.written_at.get()),
            in_use: d.in_use != 0,
            node: node.to_vec(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_heartbeat_is_told_apart() {
        let beat = Heartbeat {
            interval_millis: 2000,
            owner: [7; 16],
            sequence: 9,
            written_at: Time(5),
            in_use: true,
            node: vec![b'x'; 100],
        };
        let bytes = beat.encode();
        let cut = Heartbeat { node: vec![b'x'; NODE_BYTES_MAX], ..beat };
        assert_eq!(Heartbeat::decode(&bytes), Ok(Some(cut)));
        assert_eq!(Heartbeat::decode(&[0; 4096]), Ok(None));
        assert_eq!(Heartbeat::decode(&[1; 4096]), Err(Invalid::Magic));
        assert_eq!(Heartbeat::decode(&bytes[..100]), Err(Invalid::Short));
        for at in 8..HeartbeatDisk::BYTES {
            let mut rotten = bytes.clone();
            rotten[at] ^= 1;
            assert_eq!(Heartbeat::decode(&rotten), Err(Invalid::Checksum), "{at}");
        }
    }
}
