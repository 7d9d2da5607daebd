//! What devices gave wrong or not at all, as the log tells it.

use nenrin_core::{DeviceHealth, Fs};
use std::collections::BTreeMap;

/// What devices gave wrong or not at all so far, and how much of that was written anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    blocks: u64,
    /// Of each device: its number and name; wrong blocks, failed reads, failed writes.
    devices: BTreeMap<u16, (Option<String>, [u64; 3])>,
}

impl Mended {
    /// What it is by now.
    pub fn of(fs: &Fs) -> Self {
        let device = |d: DeviceHealth| (d.index + 1, (d.name, [d.wrong_blocks, d.read_errors, d.write_errors]));
        Self { blocks: fs.counters().mended_blocks, devices: fs.health().into_iter().map(device).collect() }
    }

    /// What came since then, in one line.
    pub fn since(&self, before: &Self) -> Option<String> {
        let count = |n: u64, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
        let mut said = Vec::new();
        for (number, (name, now)) in &self.devices {
            let then = before.devices.get(number).map_or([0; 3], |(_, then)| *then);
            let [wrong, unread, unwritten] = std::array::from_fn(|i| now[i].saturating_sub(then[i]));
            let parts = [
                (wrong, count(wrong, "wrong block", "wrong blocks")),
                (unread, count(unread, "failed read", "failed reads")),
                (unwritten, count(unwritten, "failed write", "failed writes")),
            ];
            let parts: Vec<String> = parts.into_iter().filter(|(n, _)| *n > 0).map(|(_, text)| text).collect();
            if !parts.is_empty() {
                let name = name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
                said.push(format!("device {number}{name} had {}", parts.join(", ")));
            }
        }
        match self.blocks.saturating_sub(before.blocks) {
            0 => {}
            1 => said.push("1 block was written anew from what others have".into()),
            n => said.push(format!("{n} blocks were written anew from what others have")),
        }
        (!said.is_empty()).then(|| said.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_devices_did_wrong_is_told_once() {
        let of = |blocks, devices: &[(u16, [u64; 3])]| Mended {
            blocks,
            devices: devices.iter().map(|(n, did)| (*n, ((*n > 1).then(|| "b".to_owned()), *did))).collect(),
        };
        let before = of(5, &[(1, [1, 0, 0]), (2, [0; 3])]);
        assert_eq!(before.since(&before), None);
        let now = of(7, &[(1, [1, 0, 0]), (2, [1, 2, 0])]);
        let told = "device 2 (b) had 1 wrong block, 2 failed reads; 2 blocks were written anew from what others have";
        assert_eq!(now.since(&before).as_deref(), Some(told));
        assert_eq!(of(5, &[(1, [0; 3])]).since(&before), None, "forgiven");
    }
}
