//! What a seed means: the volume, the mount options, the workload.

use crate::life::Life;
use crate::members::Members;
use crate::prng::Prng;
use crate::scenario::Scenario;
use crate::workload::{Allow, Profile, Workload};
use nenrin_core::{BEAT_NANOS, Barrier, Mmp, MountOptions, Order};
use nenrin_format::NODE_BYTES;
use nenrin_format::row_log::ROW_LOG_UNITS;
use nenrin_format::superblock::{AREA_BLOCKS, Profile as Layout, UNIT_BLOCKS, cells_of_segment, rows};

/// Everything that decides a run. Two runs of equal settings are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The seed.
    pub seed: u64,
    /// Calls of the workload.
    pub steps: usize,
    /// `order=`.
    pub order: Order,
    /// `barrier=`.
    pub barrier: Barrier,
    /// Kind of program, when it is not left to the seed.
    pub profile: Option<Profile>,
    /// Bytes of the device.
    pub device_bytes: u64,
    /// Blocks in a segment.
    pub segment_blocks: u32,
    /// Unmounts and deaths of the process in between.
    pub remounts: bool,
    /// The device carries requests out in an order drawn from the seed.
    pub queued: bool,
    /// Syncs of other clients are under way while the calls are made.
    pub clients: bool,
    /// `cache=writeback`: the kernel keeps what is written, and sends it later in whole pages.
    pub writeback: bool,
    /// Mounted as users mount, with `checkpoint=` so many nanoseconds; else what no promise depends on is drawn.
    pub mounted: Option<u64>,
    /// The steps of a bounded-exhaustive sequence ([`crate::ace`]), in place of the random workload.
    pub ace: Vec<u16>,
    /// A named scenario, in place of the random workload.
    pub scenario: Option<Scenario>,
    /// Something over several lives of the volume, in place of cuts in one.
    pub life: Option<Life>,
    /// Devices of the volume.
    pub members: Members,
}

const UNIT_BYTES: u64 = UNIT_BLOCKS as u64 * 4096;

impl Config {
    /// The settings of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Prng::stream(seed, 2);
        let order = if rng.chance(25) { Order::Strict } else { Order::Relaxed };
        let barrier = match rng.below(20) {
            0..=1 => Barrier::Checkpoint,
            2 => Barrier::None,
            _ => Barrier::Sync,
        };
        let segment_blocks = [32, 64, 64, 128][rng.index(4)];
        let segments = match segment_blocks {
            32 => rng.range(36, 64),
            64 => rng.range(27, 40),
            _ => rng.range(27, 32),
        };
        let mut others = Prng::stream(seed, 10);
        let steps = if rng.chance(10) { rng.range(300, 900) } else { rng.range(30, 110) };
        Self {
            seed,
            steps: steps as usize,
            order,
            barrier,
            profile: None,
            device_bytes: nenrin_format::superblock::device_blocks(segments, segment_blocks) * 4096,
            segment_blocks,
            remounts: rng.chance(40),
            queued: others.chance(50),
            clients: others.chance(40),
            // order=strict and a kernel that decides what arrives when exclude each other.
            writeback: Prng::stream(seed, 17).chance(25) && order == Order::Relaxed,
            mounted: None,
            ace: Vec::new(),
            scenario: None,
            life: None,
            members: Members::default(),
        }
    }

    /// On a device that is large enough for the kind of program.
    #[must_use]
    pub fn sized(mut self) -> Self {
        self.device_bytes = self.profile.map_or(self.device_bytes, |p| p.device_bytes(self.device_bytes));
        self
    }

    /// The settings of a bounded-exhaustive sequence.
    #[must_use]
    pub fn of_sequence(seed: u64, ace: Vec<u16>) -> Self {
        Self { ace, remounts: false, ..Self::of_seed(seed) }
    }

    /// How the volume is mounted: small limits, so that everything that limits trigger happens often. All else is drawn, or
    /// what a mount takes by itself.
    #[must_use]
    pub fn options(&self) -> MountOptions {
        let drawn = self.drawn_options();
        let Some(checkpoint_nanos) = self.mounted else { return drawn };
        MountOptions {
            order: drawn.order,
            barrier: drawn.barrier,
            checkpoint_nanos,
            cache_bytes: drawn.cache_bytes,
            dirty_bytes_max: drawn.dirty_bytes_max,
            left_out_share: drawn.left_out_share,
            degraded: drawn.degraded,
            history_tree_items: drawn.history_tree_items,
            node_bytes_max: drawn.node_bytes_max,
            ..MountOptions::default()
        }
    }

    fn drawn_options(&self) -> MountOptions {
        let mut rng = Prng::stream(self.seed, 3);
        MountOptions {
            order: self.order,
            barrier: self.barrier,
            commit_nanos: [1_000_000_000, 200_000_000][rng.index(2)],
            checkpoint_nanos: [5_000_000_000, 1_000_000_000, 0][rng.index(3)],
            cache_bytes: [64 << 10, 1 << 20][rng.index(2)],
            dirty_bytes_max: [256 << 10, 4 << 20][rng.index(2)],
            discard: rng.chance(30),
            left_out_share: [32, 2][rng.index(2)],
            degraded: self.members.bears_a_loss(),
            history_tree_items: [4, 16, 8192][Prng::stream(self.seed, 31).index(3)],
            node_bytes_max: self.profile.map_or(NODE_BYTES, |p| p.node_bytes_max(self.seed)),
            mmp: Prng::stream(self.seed, 24).chance(12).then(|| mmp_of("this host", self.seed)),
            ..MountOptions::default()
        }
    }

    /// The same volume over several devices, which together hold as much.
    #[must_use]
    pub fn on(mut self, members: Members) -> Self {
        if members.changes {
            // Room for what is moved, and for less.
            self.device_bytes += self.device_bytes / 8192 * 4096;
        }
        if members.count > 1 {
            let copies = if members.profile == Layout::Mirror { 2 } else { 1 };
            // The areas of each device come on top.
            let segments = self.device_bytes / 4096 / u64::from(self.segment_blocks) + u64::from(members.count) - 1;
            let parity = members.profile == Layout::Parity;
            let rows = rows(segments, self.segment_blocks, u32::from(members.count), copies, parity)
                + if parity { u64::from(ROW_LOG_UNITS) } else { 0 };
            self.device_bytes = u64::from(members.count) * (2 * AREA_BLOCKS * 4096 + rows * UNIT_BYTES);
        }
        // What a mount has begun to replace is not gone on with by the next one.
        self.remounts &= members.joins.is_none_or(|j| j.replaced().is_none());
        self.members = members;
        self
    }

    /// Bytes of all devices, those included that may take a place.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let bytes = self.device_bytes / u64::from(self.members.count) / 4096 * 4096;
        if self.members.parts() > u64::from(self.members.count) {
            bytes * self.members.parts()
        } else {
            self.device_bytes
        }
    }

    /// Bytes that the volume holds.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        let bytes = match self.members.profile {
            Layout::Mirror => self.device_bytes / 2,
            // What the row log takes is known, and so is what a segment does.
            Layout::Parity => {
                let width = u64::from(self.members.count);
                let logs = width * u64::from(ROW_LOG_UNITS) * UNIT_BYTES;
                let cells = cells_of_segment(self.segment_blocks, width as u32, 1, true) * UNIT_BYTES;
                self.device_bytes.saturating_sub(logs) / cells * u64::from(self.segment_blocks) * 4096
            }
            Layout::Single | Layout::Stripe => self.device_bytes,
        };
        // What there is least, where devices come and go.
        if self.members.changes { bytes / 2 } else { bytes }
    }

    /// The workload.
    #[must_use]
    pub fn workload(&self) -> Workload {
        // Without flushes a mount cannot know what a later power cut takes away again.
        let kill = self.remounts && self.barrier != Barrier::None;
        let plain =
            Workload::new(self.seed, self.capacity_bytes(), Allow { remount: self.remounts, kill }, self.profile);
        if self.writeback { plain.through_page_cache(self.seed) } else { plain }
    }

    /// The arguments that give these settings again.
    #[must_use]
    pub fn arguments(&self) -> String {
        let mut base =
            Self { order: self.order, barrier: self.barrier, profile: self.profile, ..Self::of_seed(self.seed) }
                .sized();
        let mut out = format!("--seed {}", self.seed);
        match self.mounted {
            Some(_) => {
                base.writeback = self.writeback;
                out += &format!(" --mounted {}", self.mount_options());
            }
            None => out += &format!(" --order {} --barrier {}", order_name(self.order), barrier_name(self.barrier)),
        }
        if !self.ace.is_empty() {
            let steps: Vec<String> = self.ace.iter().map(u16::to_string).collect();
            out += &format!(" --ace {}", steps.join(","));
        }
        if let Some(scenario) = self.scenario {
            out += &format!(" --scenario {}", scenario.name());
        }
        if let Some(life) = self.life {
            out += &format!(" --life {}", life.name());
        }
        out += &self.members.arguments();
        if self.steps != base.steps {
            out += &format!(" --steps {}", self.steps);
        }
        if let Some(p) = self.profile {
            out += &format!(" --profile {}", p.name());
        }
        if self.device_bytes != base.clone().on(self.members).device_bytes {
            out += &format!(" --device {}", self.device_bytes);
        }
        if self.segment_blocks != base.segment_blocks {
            out += &format!(" --segment-blocks {}", self.segment_blocks);
        }
        if self.remounts != base.remounts {
            out += &format!(" --remounts {}", self.remounts);
        }
        let switches = [
            ("queued", self.queued, base.queued),
            ("clients", self.clients, base.clients),
            ("writeback", self.writeback, base.writeback),
        ];
        for (name, mine, usual) in switches {
            if mine != usual {
                out += &format!(" --{name} {mine}");
            }
        }
        out
    }

    /// What `--mounted` takes.
    fn mount_options(&self) -> String {
        let (order, barrier) = (order_name(self.order), barrier_name(self.barrier));
        let cache = if self.writeback { "writeback" } else { "writethrough" };
        let seconds = self.mounted.unwrap_or_default() / NANOS;
        format!("order={order},barrier={barrier},cache={cache},checkpoint={seconds}")
    }
}

/// How users mount: what `nenrin mount -o` takes of what the file system itself does, and the rest as it is by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// `order=`.
    pub order: Order,
    /// `barrier=`.
    pub barrier: Barrier,
    /// `cache=writeback`.
    pub writeback: bool,
    /// `checkpoint=`, nanoseconds.
    pub checkpoint_nanos: u64,
}

const NANOS: u64 = 1_000_000_000;

impl Mounted {
    /// Reads mount options, with commas between; `defaults` stands for none.
    ///
    /// # Errors
    /// Which option is none of these.
    pub fn parse(text: &str) -> Result<Self, String> {
        let usual = MountOptions::default();
        let mut mounted = Self {
            order: usual.order,
            barrier: usual.barrier,
            writeback: false,
            checkpoint_nanos: usual.checkpoint_nanos,
        };
        for option in text.split(',').filter(|option| *option != "defaults") {
            match option.split_once('=') {
                Some(("order", name)) => mounted.order = order_named(name)?,
                Some(("barrier", name)) => mounted.barrier = barrier_named(name)?,
                Some(("cache", "writeback")) => mounted.writeback = true,
                Some(("cache", "writethrough")) => mounted.writeback = false,
                Some(("checkpoint", seconds)) => {
                    let seconds: Option<u64> = seconds.parse().ok().filter(|s| *s <= 86_400);
                    mounted.checkpoint_nanos = seconds.ok_or("checkpoint= takes seconds")? * NANOS;
                }
                _ => return Err(format!("--mounted takes order=, barrier=, cache= and checkpoint=, not {option}")),
            }
        }
        if mounted.writeback && mounted.order == Order::Strict {
            return Err("order=strict excludes cache=writeback".to_owned());
        }
        Ok(mounted)
    }
}

/// What a host shows of itself in the world of a seed.
#[must_use]
pub fn mmp_of(node: &str, seed: u64) -> Mmp {
    let mut owner = [0; 16];
    owner[..8].copy_from_slice(&seed.to_le_bytes());
    owner[8..].iter_mut().zip(node.bytes()).for_each(|(to, b)| *to = b);
    Mmp { node: node.to_owned(), owner, interval_nanos: BEAT_NANOS }
}

/// `relaxed` or `strict`.
#[must_use]
pub const fn order_name(order: Order) -> &'static str {
    match order {
        Order::Relaxed => "relaxed",
        Order::Strict => "strict",
    }
}

/// `sync`, `checkpoint` or `none`.
#[must_use]
pub const fn barrier_name(barrier: Barrier) -> &'static str {
    match barrier {
        Barrier::Sync => "sync",
        Barrier::Checkpoint => "checkpoint",
        Barrier::None => "none",
    }
}

/// An order by its name.
///
/// # Errors
/// What the names are.
pub fn order_named(name: &str) -> Result<Order, String> {
    let mut all = [Order::Relaxed, Order::Strict].into_iter();
    all.find(|order| order_name(*order) == name).ok_or_else(|| "order is relaxed or strict".to_owned())
}

/// A barrier mode by its name.
///
/// # Errors
/// What the names are.
pub fn barrier_named(name: &str) -> Result<Barrier, String> {
    let mut all = [Barrier::Sync, Barrier::Checkpoint, Barrier::None].into_iter();
    all.find(|barrier| barrier_name(*barrier) == name).ok_or_else(|| "barrier is sync, checkpoint or none".to_owned())
}
