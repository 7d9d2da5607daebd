//! What was asked for of a device, so that whoever did can tell it from what somebody else asks for meanwhile.

use nenrin_core::DeviceHealth;
use serde::{Deserialize, Serialize};

/// What is to become of a device. It is looked for in the device table whether that is so, whoever changes that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Its number, from 1.
    pub number: u16,
    /// Its identity within the volume: another may get its number.
    pub uuid: [u8; 16],
    /// What of it.
    pub wants: Wants,
}

/// See [`Order`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wants {
    /// It is no device of the volume any more.
    Gone,
    /// So many bytes of it are used.
    Bytes(u64),
    /// It is a device of the volume, and so many bytes of it are used, or more.
    Stays(u64),
}

impl Order {
    /// Whether the table, which says this of all devices, still asks for it.
    pub fn stands(&self, all: &[DeviceHealth]) -> bool {
        let target = all.iter().find(|d| d.uuid == self.uuid).map(|d| d.target_bytes);
        match self.wants {
            Wants::Gone => target.is_none_or(|bytes| bytes == 0),
            Wants::Bytes(bytes) => target == Some(bytes),
            Wants::Stays(bytes) => target.is_some_and(|target| target > 0 && target >= bytes),
        }
    }

    /// Whether it is done.
    pub fn is_done(&self, all: &[DeviceHealth]) -> bool {
        let there = all.iter().find(|d| d.uuid == self.uuid);
        self.stands(all) && there.is_none_or(|d| d.target_bytes > 0 && d.bytes == d.target_bytes)
    }
}
