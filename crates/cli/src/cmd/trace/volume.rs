//! What each write to a nenrin volume was, from the headers in its log. They are
//! read after the recording, and hold the time at which they were written: a
//! write from before that time is of an earlier use of its segment, or zeros. Of
//! written-behind content that is only known to ten seconds.

use crate::cmd::dump;
use crate::device::{self, Device};
use crate::error::{At, Fail};
use crate::output::{Progress, printable};
use crate::size::show_bytes;
use nenrin_core::{At as When, FileKind, Fs, MountOptions};
use nenrin_device::{BLOCK_BYTES, OpenMode};
use nenrin_format::partial::{DATA_MOVED, Header, PartialKind, Summary};
use nenrin_format::superblock::{AREA_BLOCKS, Superblock};
use nenrin_format::{Addr, Ino, SegmentNo};
use nenrin_trace::analysis::{Request, Traffic};
use nenrin_trace::{DeviceInfo, Op, SECTOR_BYTES};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

const SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A root slot.
    Superblock,
    /// Header and records of the chain.
    Records,
    /// Content that travels with its records.
    ChainData,
    /// Header and map of written-behind content.
    DataMap,
    /// Written-behind content.
    Data,
    /// Content that the cleaner moved.
    Moved,
    /// Index nodes, and what precedes them.
    Index,
    /// The roots of an index checkpoint.
    Roots,
    /// Zeros that the device was told to fill in: mkfs or the system beneath, not a mounted volume.
    Zeros,
    /// What was written there since is something else.
    Earlier,
    /// Nothing of the log.
    Unknown,
}

impl Kind {
    /// For tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Records => "chain: records",
            Self::ChainData => "chain: file data",
            Self::DataMap => "data: headers",
            Self::Data => "data: file data",
            Self::Moved => "cleaner: file data",
            Self::Index => "index",
            Self::Roots => "index roots",
            Self::Zeros => "zero-fill",
            Self::Earlier => "earlier use",
            Self::Unknown => "not in the log",
        }
    }
    /// Whether it is content of files.
    const fn is_content(self) -> bool {
        matches!(self, Self::ChainData | Self::Data | Self::Moved)
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    end: u64,
    kind: Kind,
    ino: u64,
    written_at: i64,
}

/// What every block of a volume holds.
pub struct Map {
    runs: BTreeMap<u64, Run>,
    blocks: u64,
    home: Home,
}

/// What the volume lies on.
struct Home {
    path: PathBuf,
    /// Length in sectors.
    sectors: u64,
    /// The device's name, as traces have it; an image file has none.
    name: Option<String>,
}

/// What the writes of a trace were.
#[derive(Default)]
pub struct Kinds {
    /// Writes and bytes by kind; a write that holds several counts for each.
    pub by_kind: BTreeMap<Kind, Traffic>,
    /// Bytes of content by inode.
    pub by_ino: BTreeMap<u64, u64>,
    /// Names and bytes of files, the largest first.
    pub files: Vec<(String, u64)>,
    /// Name of the volume's device in the trace.
    pub device: String,
    /// Names of the trace's other devices, of whose writes nothing is told here.
    pub left_out: Vec<String>,
    /// What the volume's device is called now, where that is something else.
    pub now: Option<String>,
}

impl Map {
    /// Reads the log of the volume on `path`, which may be mounted.
    ///
    /// # Errors
    /// There is no volume.
    pub fn read(path: &Path) -> Result<Self, Fail> {
        let device = device::open(path, OpenMode { exclusive: false, ..OpenMode::READER })?;
        let probe = nenrin_core::probe(&*device).at(path.display())?;
        let sb = probe.newest().at(path.display())?;
        dump::one_device(path, sb)?;
        let bytes = device.geometry().bytes;
        let blocks = bytes / BLOCK_BYTES as u64;
        let mut this = Self { runs: BTreeMap::new(), blocks, home: Home::of(path, bytes / SECTOR_BYTES) };
        let count: u64 = sb.segments();
        let mut progress = Progress::new();
        for (done, segment) in sb.numbers().enumerate() {
            this.segment(&device, sb, segment);
            progress.at("reading the log", done as u64, count);
        }
        Ok(this)
    }

    /// An account of what is written to that device of a trace which is the volume's; and its number in the trace.
    ///
    /// # Errors
    /// None of them is, or several may be.
    pub fn account(&self, devices: &[DeviceInfo]) -> Result<(usize, Kinds), String> {
        let number = self.home.among(devices)?;
        let name = |d: &DeviceInfo| printable(&d.name);
        let others = devices.iter().enumerate().filter(|(i, _)| *i != number);
        let device = devices.get(number).map(name).unwrap_or_default();
        let now = self.home.name.clone().filter(|now| *now != device);
        Ok((number, Kinds { device, left_out: others.map(|(_, d)| name(d)).collect(), now, ..Kinds::default() }))
    }

    fn segment(&mut self, device: &Device, sb: &Superblock, segment: SegmentNo) {
        let mut block = 0;
        loop {
            let addr = Addr::new(segment, block);
            let Some(bytes) = dump::read_summary(device, sb, addr) else { return };
            let Ok(summary) = Header::decode(&bytes) else { return };
            let h = &summary.header;
            if h.uuid != sb.uuid || h.addr != addr {
                return;
            }
            let Some(first) = sb.block_alone(addr) else { return };
            self.partial(first, &summary);
            block += h.total_blocks();
        }
    }

    fn partial(&mut self, first: u64, summary: &Summary<'_>) {
        let h = &summary.header;
        let (head, payload) = match h.kind {
            PartialKind::Chain => (Kind::Records, Kind::ChainData),
            PartialKind::Data if h.flags & DATA_MOVED != 0 => (Kind::DataMap, Kind::Moved),
            PartialKind::Data => (Kind::DataMap, Kind::Data),
            PartialKind::Index => (Kind::Index, Kind::Index),
            PartialKind::Root => (Kind::Roots, Kind::Roots),
        };
        let mut at = first;
        let mut add = |blocks: u32, kind: Kind, ino: u64| {
            if blocks > 0 {
                self.runs.insert(at, Run { end: at + u64::from(blocks), kind, ino, written_at: h.written_at.0 });
                at += u64::from(blocks);
            }
        };
        add(h.summary_blocks, head, 0);
        let mut left = h.payload_blocks;
        for m in &summary.map {
            let blocks = m.blocks.get().min(left);
            left -= blocks;
            let ino = if payload.is_content() { m.ino.get() } else { 0 };
            add(blocks, payload, ino);
        }
        add(left, payload, 0);
    }

    /// Counts a request; `started` is when the recording began and `start` the
    /// first sector of the volume's device on its disk.
    pub fn add(&self, kinds: &mut Kinds, r: &Request, started: u64, start: u64) -> Kind {
        let e = &r.event;
        let mut first = None;
        if !matches!(e.op, Op::Write | Op::Zeroes) || e.sectors == 0 {
            return Kind::Unknown;
        }
        let wall = i64::try_from(started.saturating_add(e.nanos)).unwrap_or(i64::MAX);
        let mut counted = BTreeSet::new();
        let from = e.sector.saturating_sub(start);
        let (mut block, end) = (from / SECTORS, from.saturating_add(u64::from(e.sectors)).div_ceil(SECTORS));
        while block < end {
            let (kind, until, ino) = if e.op == Op::Zeroes { (Kind::Zeros, u64::MAX, 0) } else { self.at(block, wall) };
            let bytes = (until.min(end) - block) * BLOCK_BYTES as u64;
            let t = kinds.by_kind.entry(kind).or_default();
            t.bytes += bytes;
            t.requests += u64::from(counted.insert(kind));
            if ino != 0 {
                *kinds.by_ino.entry(ino).or_default() += bytes;
            }
            first.get_or_insert(kind);
            block = until.min(end);
        }
        first.unwrap_or(Kind::Unknown)
    }

    /// What a block is, up to where, and whose.
    fn at(&self, block: u64, wall: i64) -> (Kind, u64, u64) {
        /// Clocks are read a little apart; and the header of a long data segment is
        /// written seconds after the content it describes.
        const SLACK_NANOS: i64 = 2_000_000;
        const BEHIND_NANOS: i64 = 10_000_000_000;
        if block < AREA_BLOCKS {
            return (Kind::Superblock, AREA_BLOCKS, 0);
        }
        if block >= self.blocks - AREA_BLOCKS {
            return (Kind::Superblock, u64::MAX, 0);
        }
        let next = self.runs.range(block + 1..).next().map_or(self.blocks - AREA_BLOCKS, |(at, _)| *at);
        match self.runs.range(..=block).next_back().filter(|(_, r)| r.end > block) {
            Some((_, r)) => {
                let behind = matches!(r.kind, Kind::Data | Kind::Moved);
                let slack = if behind { BEHIND_NANOS } else { SLACK_NANOS };
                let ours = wall.saturating_add(slack) >= r.written_at;
                if ours { (r.kind, r.end, r.ino) } else { (Kind::Earlier, r.end, 0) }
            }
            None => (Kind::Unknown, next, 0),
        }
    }
}

impl Home {
    fn of(path: &Path, sectors: u64) -> Self {
        let is_device = fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
        let name = || device::absolute(path).file_name().map(|n| n.to_string_lossy().into_owned());
        Self { path: path.to_owned(), sectors, name: is_device.then(name).flatten() }
    }

    /// Which device of a trace this is: of those that have as many blocks the one of the same name, or the only one. Loop devices are
    /// numbered anew each time, so they go by their length; and so does an image file, which has been behind one of them.
    fn among(&self, devices: &[DeviceInfo]) -> Result<usize, String> {
        let is_loop = |name: &str| name.starts_with("loop");
        // Of the volume's only whole blocks are known.
        let is_as_long = |d: &DeviceInfo| d.sectors / SECTORS == self.sectors / SECTORS;
        let fits = |d: &DeviceInfo| is_as_long(d) && (self.name.is_some() || is_loop(&d.name));
        let as_long: Vec<usize> = (0..devices.len()).filter(|i| devices.get(*i).is_some_and(fits)).collect();
        let same = as_long.iter().find(|i| devices.get(**i).is_some_and(|d| Some(&d.name) == self.name.as_ref()));
        match (same, as_long.as_slice()) {
            (Some(i), _) | (None, [i]) => Ok(*i),
            (None, []) => Err(self.absent(devices)),
            _ => Err(format!("a trace of several devices that are as long as {}", self.path.display())),
        }
    }

    fn absent(&self, devices: &[DeviceInfo]) -> String {
        if devices.iter().all(|d| d.sectors == 0) {
            return "it does not tell how long devices are, so the volume's cannot be found; nenrin trace record does"
                .into();
        }
        let bytes = |sectors: u64| show_bytes(sectors.saturating_mul(SECTOR_BYTES));
        let of: Vec<String> =
            devices.iter().map(|d| format!("{} ({})", printable(&d.name), bytes(d.sectors))).collect();
        let own =
            if self.name.is_some() { "a trace of that device" } else { "a trace of the loop device over that file" };
        let (of, path, own_bytes) = (of.join(", "), self.path.display(), bytes(self.sectors));
        format!("a trace of {of}, not of {path} ({own_bytes}); {own} tells what was written to the volume")
    }
}

impl Kinds {
    /// Rows: what, writes, bytes, share.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let all: u64 = self.by_kind.values().map(|t| t.bytes).sum();
        let row = |(k, t): (&Kind, &Traffic)| {
            vec![k.name().to_owned(), t.requests.to_string(), show_bytes(t.bytes), super::view::percent(t.bytes, all)]
        };
        self.by_kind.iter().map(row).collect()
    }
    /// Rows: file, bytes.
    pub fn file_rows(&self, most: usize) -> Vec<Vec<String>> {
        self.files.iter().take(most).map(|(name, bytes)| vec![name.clone(), show_bytes(*bytes)]).collect()
    }
    /// For programs.
    pub fn json(&self) -> Value {
        let kinds =
            self.by_kind.iter().map(|(k, t)| (k.name().to_owned(), json!({"writes": t.requests, "bytes": t.bytes})));
        let files: Vec<Value> = self.files.iter().map(|(name, bytes)| json!({"file": name, "bytes": bytes})).collect();
        json!({
            "kinds": kinds.collect::<serde_json::Map<_, _>>(), "files": files, "device": self.device, "left_out": self.left_out,
        })
    }
    /// What a reader must know of it.
    pub fn notes(&self) -> Vec<String> {
        let mut out = Vec::new();
        if !self.left_out.is_empty() {
            out.push(format!("what writes were is told of {} only, not of {}", self.device, self.left_out.join(", ")));
        }
        if let Some(now) = &self.now {
            out.push(format!("the volume is taken to be that on {}, now {now}, since it is as long", self.device));
        }
        out
    }

    /// Finds names for the inodes; those that have none (any more) keep their number.
    pub fn find_names(&mut self, path: &Path) {
        let mut names: BTreeMap<u64, String> = BTreeMap::new();
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let opened = device::try_open(path, OpenMode::READER)
            .ok()
            .and_then(|d| device::open_volume(path, vec![d], options).ok());
        if let Some(fs) = opened {
            walk(&fs, &self.by_ino, &mut names);
        }
        let name = |ino: &u64| names.get(ino).cloned().unwrap_or_else(|| format!("inode {ino}"));
        self.files = self.by_ino.iter().map(|(ino, bytes)| (name(ino), *bytes)).collect();
        self.files.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    }
}

/// Looks through directories until every inode has a name.
fn walk(fs: &Fs, wanted: &BTreeMap<u64, u64>, names: &mut BTreeMap<u64, String>) {
    let mut left = vec![(Ino::ROOT, String::new())];
    while let Some((dir, base)) = left.pop() {
        if names.len() == wanted.len() {
            return;
        }
        let _ = fs.readdir(When::Live, dir, 2, &mut |entry| {
            let path = format!("{base}/{}", printable(&String::from_utf8_lossy(&entry.name)));
            if wanted.contains_key(&entry.ino.0) {
                names.entry(entry.ino.0).or_insert_with(|| path.clone());
            }
            if entry.kind == FileKind::Directory {
                left.push((entry.ino, path));
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_trace::{Event, EventKind, Flags, Level};

    /// Blocks 100 to 103: a chain partial of one block and records, written at second 50, then index nodes.
    fn map() -> Map {
        let run = |end, kind, ino| Run { end, kind, ino, written_at: 50_000_000_000 };
        let runs =
            [(100, run(101, Kind::Records, 0)), (101, run(103, Kind::ChainData, 7)), (103, run(104, Kind::Index, 0))];
        Map { runs: runs.into(), blocks: 1000, home: home(None) }
    }
    /// What a volume of 8,000 sectors lies on.
    fn home(name: Option<&str>) -> Home {
        Home { path: "there".into(), sectors: 8000, name: name.map(str::to_owned) }
    }
    fn write(block: u64, blocks: u32, nanos: u64) -> Request {
        let event = Event {
            kind: EventKind::Issue,
            device: 0,
            op: Op::Write,
            flags: Flags(0),
            sectors: blocks * SECTORS as u32,
            sector: 2048 + block * SECTORS,
            nanos,
            pid: 1,
            name: 0,
            error: 0,
        };
        Request { event, latency: None, error: 0 }
    }

    /// The cleaner's content is told from what programs wrote, by what the header of its partial says.
    #[test]
    fn what_the_cleaner_moved() {
        use nenrin_format::layout::le::{U32, U64};
        use nenrin_format::partial::MapEntry;
        use nenrin_format::{Cno, Epoch, Seq, Time};
        let mut this = Map { runs: BTreeMap::new(), blocks: 1000, home: home(None) };
        for (first, flags) in [(100, 0), (200, DATA_MOVED)] {
            let header = Header {
                kind: PartialKind::Data,
                flags,
                summary_blocks: 1,
                uuid: [0; 16],
                epoch: Epoch(1),
                seq: Seq(1),
                addr: Addr::new(SegmentNo(0), 0),
                prev_addr: Addr::NONE,
                prev_crc: 0,
                payload_crc: 0,
                durable_seq: Seq(0),
                open_cno: Cno(1),
                written_at: Time(50_000_000_000),
                record_bytes: 0,
                map_count: 1,
                payload_blocks: 3,
                left_out: 0,
                next: None,
                mount_id: 0,
            };
            let map = vec![MapEntry {
                ino: U64::new(9),
                off: U64::new(0),
                fork: U32::new(0),
                blocks: U32::new(3),
                crc: U32::new(0),
                level: 0,
                kind: 0,
                reserved: [0; 2],
            }];
            this.partial(first, &Summary { header, crc: 0, records: &[], map });
        }
        let mut kinds = Kinds::default();
        for (block, op) in [(101, Op::Write), (201, Op::Write), (500, Op::Zeroes)] {
            let mut request = write(block, 3, 1_000_000_000);
            request.event.op = op;
            this.add(&mut kinds, &request, 50_000_000_000, 2048);
        }
        let all: Vec<_> = kinds.by_kind.iter().map(|(k, t)| (k.name(), t.bytes / 4096)).collect();
        assert_eq!(all, [("data: file data", 3), ("cleaner: file data", 3), ("zero-fill", 3)]);
        assert_eq!(kinds.by_ino, BTreeMap::from([(9, 24576)]));
    }

    #[test]
    fn whose_writes_a_trace_has() {
        let devices = |all: &[(&str, u64)]| -> Vec<DeviceInfo> {
            let one = |(name, sectors): &(&str, u64)| DeviceInfo {
                name: (*name).to_owned(),
                start: 0,
                sectors: *sectors,
                partition: false,
                level: Level::Request,
            };
            all.iter().map(one).collect()
        };
        let among = |name, all: &[(&str, u64)]| home(name).among(&devices(all));
        assert_eq!(among(Some("sda1"), &[("sda", 9000), ("sda1", 8000), ("sdb", 8000)]), Ok(1));
        assert_eq!(among(Some("sda1"), &[("sda1", 9000), ("sdb1", 8000)]), Ok(1), "it got another name");
        assert_eq!(among(Some("loop7"), &[("loop3", 8000)]), Ok(0));
        assert_eq!(among(None, &[("sda", 8000), ("loop3", 8000)]), Ok(1));
        // The last block of a device is not always whole.
        assert_eq!(among(Some("sdb1"), &[("sdb", 9000), ("sdb1", 8003)]), Ok(1));
        for (name, all, said) in [
            (Some("sda1"), &[("sda", 9000)][..], "a trace of that device"),
            (Some("sda1"), &[("sda1", 8008)][..], "a trace of that device"),
            (None, &[("sda", 8000)][..], "the loop device over that file"),
            (None, &[("loop3", 8000), ("loop4", 8000)][..], "several devices"),
            (Some("sda"), &[("8,0", 0)][..], "does not tell how long devices are"),
        ] {
            let told = among(name, all).unwrap_err();
            assert!(told.contains(said), "{told}");
        }
        let map = Map { runs: BTreeMap::new(), blocks: 1000, home: home(Some("sda1")) };
        let (number, kinds) = map.account(&devices(&[("sdc", 5), ("sdb1", 8000)])).unwrap();
        assert_eq!((number, kinds.device.as_str(), kinds.left_out.clone()), (1, "sdb1", vec!["sdc".to_owned()]));
        assert!(
            kinds.notes()[0].contains("not of sdc") && kinds.notes()[1].contains("now sda1"),
            "{:?}",
            kinds.notes()
        );
    }

    #[test]
    fn every_block_of_a_write_is_told() {
        let mut kinds = Kinds::default();
        let started = 49_000_000_000;
        let mut add = |block, blocks, nanos| map().add(&mut kinds, &write(block, blocks, nanos), started, 2048);
        assert_eq!(add(4, 1, 0), Kind::Superblock);
        assert_eq!(add(990, 1, 0), Kind::Superblock);
        assert_eq!(add(100, 5, 1_000_000_000), Kind::Records);
        assert_eq!(add(100, 1, 0), Kind::Earlier, "written a second before its header");
        assert_eq!(add(500, 1, 0), Kind::Unknown);
        let bytes: Vec<_> = kinds.by_kind.iter().map(|(k, t)| (*k, t.requests, t.bytes / 4096)).collect();
        assert_eq!(
            bytes,
            [
                (Kind::Superblock, 2, 2),
                (Kind::Records, 1, 1),
                (Kind::ChainData, 1, 2),
                (Kind::Index, 1, 1),
                (Kind::Earlier, 1, 1),
                (Kind::Unknown, 2, 2)
            ]
        );
        assert_eq!(kinds.by_ino, BTreeMap::from([(7, 8192)]));
    }
}
