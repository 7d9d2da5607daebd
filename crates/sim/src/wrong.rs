//! A world of which one device misbehaves: the only one, or one of several, which is drawn.

use crate::config::Config;
use crate::hash;
use crate::members::Members;
use crate::queue::Queue;
use crate::run::Run;
use crate::subject::Subject;
use nenrin_core::MountOptions;
use nenrin_device::{CrashDisk, Faults, Faulty};
use std::sync::Arc;

/// A volume in use.
pub(crate) struct Wrong<S> {
    pub run: Run<S>,
    /// What the device does.
    pub faults: Faults,
    /// Which of the members it is.
    pub hit: usize,
}

/// The same settings without other clients and remounts, and on devices with which nothing else happens.
pub(crate) fn alone(config: &Config) -> Config {
    let Members { count, profile, collides, .. } = config.members;
    let members = Members { collides, ..Members::new(count, profile) };
    Config { remounts: false, clients: false, members, ..config.clone() }
}

impl<S: Subject> Wrong<S> {
    /// Formats a volume and mounts it; one device of it can be made to misbehave. `salt`: what else decides which.
    pub fn format(config: &Config, options: MountOptions, salt: u64) -> Result<Self, String> {
        let disk = Arc::new(CrashDisk::new(config.disk_bytes()));
        let plain = config.members.of(&disk);
        let (mut device, mut faults) = (plain.clone(), Faults::default());
        let hit = hash::of_words(&[config.seed, salt, 81]) as usize % device.members.len().max(1);
        for (i, member) in device.members.iter_mut().enumerate() {
            let seed = config.seed.wrapping_add(i as u64);
            if i == hit {
                let faulty = Faulty::new(member.clone());
                faults = faulty.faults();
                *member = Arc::new(Queue::new(faulty, seed, config.queued));
            } else {
                *member = Arc::new(Queue::new(member.clone(), seed, config.queued));
            }
        }
        let run = Run::format_on(disk, device, plain, config.segment_blocks, options)?;
        Ok(Self { run, faults, hit })
    }
}
